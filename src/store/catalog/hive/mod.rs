//! Hive's metastore, `hms://host:9083/database.table`, by the two calls that a reader needs.
//!
//! A client of our own: these are a message each way of some strings, while the crates for it bring generated code for hundreds of calls
//! (`hive_metastore`: 70 crates more) and, of the calls that Hive 4 still has, not the one for tables.

mod connect;
mod messages;
mod table;
mod thrift;

pub(super) use table::table;
