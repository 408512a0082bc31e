//! HDFS, `hdfs://nameservice/path` and `viewfs://...`, as a store that is only read.
//!
//! ```text
//!   file ─asked once─► name node: version, blocks and where they are ─kept open─► ranges from DataNodes, which ask nobody
//! ```
//!
//! The protocol is spoken by [`hdfs_native`], without Java. Its own object store asks the name node twice for each range; this one keeps
//! files open, and asks again whether a file is still the same when it was last asked some seconds ago, or when DataNodes refuse.

mod cluster;
mod problem;
mod readers;
mod settings;
mod store;

pub(super) use settings::Settings;
pub(super) use store::Hdfs;
