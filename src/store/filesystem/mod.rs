//! Files of stores for programs that know files: opened at one version, read in any order, listed, and, through a cache, copied to this
//! machine once for all its processes; and saved, whole or not at all.
//!
//! ```text
//!   FileSystem::open(url) ──► File ─ read, seek ─► window: slices here and on their way ─► Object::read ─► cache ─► store
//!                               └─── local_path ─► one file of the cache, or of this machine, to open and map
//!   FileSystem::create(url) ► Writer ─ finish ─► the store, and the cache; or the cache now, and the store later
//! ```

mod ahead;
mod aside;
mod change;
mod completion;
mod entry;
mod file;
mod here;
mod means;
mod options;
mod origins;
mod saved;
mod sending;
mod system;
#[cfg(all(test, feature = "cloud"))]
mod tests;
mod upload;
mod uploads;
mod window;
mod writer;

pub use entry::Entry;
pub use file::File;
pub use options::{FileOptions, Upload};
pub use system::FileSystem;
pub use uploads::uploads_done;
pub use writer::Writer;
