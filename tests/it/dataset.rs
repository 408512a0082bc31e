//! Datasets on written files: every flavour of Parquet value by value, layouts, addresses, schemas, filters.

mod answering;
mod catalog;
mod credentials;
mod delta;
mod glue;
mod hive;
pub(crate) mod http;
mod hub;
mod hub_server;
mod iceberg;
mod iceberg_table;
mod index;
mod mounts;
mod pruned;
mod signed;
mod support;
mod trees;
mod twice;
mod unity;
mod values;

pub(crate) use http::{Marks, PINNED, Server};
pub(crate) use support::{open, read_all, read_group, runtime};
