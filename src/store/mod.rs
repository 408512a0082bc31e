//! Addresses become objects, and objects are read only in the version that was pinned.
//!
//! ```text
//!   "s3://b/x/*.parquet"  ─find─►  Found (listed, not pinned)  ─tail─►  Object (pinned)  ─read─►  bytes of that version
//! ```
//!
//! Everything goes through [`object_store`], so local disks, S3, GCS, Azure and HTTP behave alike. This module adds
//! the pin: every read names the entity tag it expects, or compares size and time where a store has none, and a file that
//! is no longer the same is [`Error::SourceChanged`](crate::Error::SourceChanged), never a mixture of two versions. [`FileSystem`] gives the
//! same to programs that know only files.

mod access;
mod address;
mod answer;
#[cfg(feature = "cloud")]
mod azure;
pub mod cache;
#[cfg(feature = "flight")]
pub(crate) mod caller;
#[cfg(feature = "cloud")]
mod catalog;
#[cfg(any(feature = "cloud", all(feature = "fuse", target_os = "linux")))]
mod child;
#[cfg(feature = "cloud")]
mod client;
mod condition;
#[cfg(all(test, feature = "flight"))]
pub(crate) mod crashing;
#[cfg(feature = "cloud")]
mod credentials;
pub(crate) mod data_name;
pub(crate) mod directory;
mod display;
pub(crate) mod fetch_time;
#[cfg(feature = "flight")]
pub(crate) mod files;
mod filesystem;
mod find;
mod found;
#[cfg(all(feature = "fuse", target_os = "linux"))]
mod fuse;
pub(crate) mod glob;
#[cfg(feature = "hdfs")]
mod hdfs;
mod hedge;
mod hits;
mod home;
#[cfg(feature = "cloud")]
mod hub;
mod keys;
mod known;
mod latency;
pub(crate) mod lock;
mod logs;
mod look;
pub(crate) mod member;
mod mounts;
mod multipart;
mod object;
mod origins;
mod own;
mod percent;
pub(crate) mod pinned;
mod place;
mod positional;
#[cfg(feature = "cloud")]
mod profile;
pub(crate) mod publish;
mod race;
mod registered;
mod remedy;
mod root;
#[cfg(feature = "cloud")]
mod secret;
#[cfg(feature = "cloud")]
mod sigv4;
mod stamp;
mod stores;
mod table;
mod tentative;
#[cfg(feature = "cloud")]
mod transport;
#[cfg(feature = "convert")]
mod tree;
mod unaddressed;
mod unavailable;
mod unforked;
pub(crate) mod walk;
mod wanted;
#[cfg(feature = "cloud")]
mod web;

pub use access::Access;
#[cfg(feature = "cloud")]
pub use credentials::{CredentialSource, Credentials};
pub(crate) use display::display;
pub use filesystem::{Entry, File, FileOptions, FileSystem, Upload, Writer, uploads_done};
pub use find::{Listing, find};
pub use found::Found;
#[cfg(all(feature = "fuse", target_os = "linux"))]
pub use fuse::Mounted;
#[cfg(any(feature = "cli", feature = "flight"))]
pub(crate) use home::at_home;
#[cfg(feature = "cli")]
pub(crate) use home::path_at_home;
pub(crate) use known::{Base, index_here, is_local, is_named};
#[cfg(feature = "convert")]
pub(crate) use logs::is_metadata;
pub(crate) use logs::{LOG, METADATA, Ratified, STAGED};
#[cfg(feature = "convert")]
pub(crate) use mounts::is_mounted;
pub use mounts::{Mount, MountSource, Mounts};
pub(crate) use object::GONE;
pub use object::{Object, Tail};
pub use origins::OriginStats;
#[cfg(feature = "flight")]
pub(crate) use origins::requests;
pub(crate) use origins::{Slowest, origins, with_refusal};
pub use own::{OwnEntry, OwnError, OwnFiles, OwnStore, OwnVersion};
#[cfg(feature = "flight")]
pub(crate) use percent::decoded;
#[cfg(feature = "flight")]
pub(crate) use registered::register_memory;
pub(crate) use root::Root;
pub use stamp::Stamp;
#[cfg(feature = "convert")]
pub(crate) use stores::unmounted;
pub(crate) use table::FoundTable;
#[cfg(feature = "convert")]
pub(crate) use tree::{Names, Tree};
