//! Hive's metastore, `hms://host:9083/database.table`, by the few calls that a reader needs.
//!
//! A client of our own: each is a message each way of some strings, while `hive_metastore` 0.2 would bring 39 crates, volo among them, and
//! generated code for all the hundreds of calls.

mod connect;
mod messages;
mod table;
mod thrift;

pub(super) use table::table;
