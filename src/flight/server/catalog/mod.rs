//! The server's configuration, its catalogue of datasets, and those that are open.

pub mod catalogue;
pub mod config;
pub(crate) mod dataset_cache;
pub mod entry;
pub mod file;
pub(crate) mod once;
pub(crate) mod open_dataset;
pub(crate) mod openings;
pub(crate) mod options;
pub(crate) mod pictures;
pub(crate) mod ranks;
#[cfg(feature = "cli")]
pub(crate) mod schema;
pub(crate) mod turns;
pub(crate) mod watched;
mod write_directory;
