//! Mounts: one namespace, `bow://datasets/...`, over directories of any stores.
//!
//! ```text
//!   [mounts."datasets/photos"]                      bow://datasets/photos/train/*.parquet
//!   url = "s3://bucket/photos"              ─►       s3://bucket/photos/train/*.parquet, with these options alone
//!   storage_options = { aws_region = "x" }
//! ```
//!
//! Names of files are relative to the namespace, never to a store, so that an order and a state stay what they are when files move and their
//! mount with them. No mount is inside another one: each address has one meaning, whatever else is mounted.

mod file;
mod kept;
mod mount;
mod name;
mod source;
mod table;

pub(super) use kept::KeptMounts;
pub use mount::Mount;
pub(super) use name::START;
pub(crate) use name::is_mounted;
pub use source::MountSource;
pub use table::Mounts;
pub(super) use table::{Above, Resolved, Target};
