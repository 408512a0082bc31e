//! HDFS, `hdfs://nameservice/path` and `viewfs://...`, as a read-only store.
//!
//! ```text
//!   file ─opened once─► name node: version, blocks and their DataNodes ─kept open─► ranges from DataNodes, without the name node
//! ```
//!
//! [`hdfs_native`] speaks the protocol, without Java. Its own object store asks the name node twice for each range. This one keeps files
//! open, and checks the version of a file again some seconds after the last check, or when DataNodes refuse.

mod cluster;
mod problem;
mod readers;
mod settings;
mod store;

pub(super) use settings::Settings;
pub(super) use store::Hdfs;
