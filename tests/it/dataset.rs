//! Datasets on written files: every flavour of Parquet value by value, layouts, addresses, schemas, filters.

mod answering;
mod catalog;
mod credentials;
mod delta;
pub(crate) mod http;
mod hub;
mod hub_server;
mod iceberg;
mod iceberg_table;
mod index;
mod pruned;
mod support;
mod trees;
mod twice;
mod values;

pub(crate) use http::{Marks, PINNED, Server};
pub(crate) use support::{open, read_all, read_group, runtime};
