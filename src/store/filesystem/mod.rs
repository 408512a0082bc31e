//! Files of stores for programs that know files: opened at one version, read in any order, listed, and, through a cache, copied to this
//! machine once for all its processes.
//!
//! ```text
//!   FileSystem::open(url) ─► File ─ read, seek ─► window: slices here and on their way ─► Object::read ─► cache ─► store
//!                              └─── local_path ─► one file of the cache, or of this machine, to open and map
//! ```

mod ahead;
mod entry;
mod file;
mod here;
mod means;
mod system;
mod window;

pub use entry::Entry;
pub use file::File;
pub use system::{FileOptions, FileSystem};
