//! A directory of a store as a directory of this machine, to read, for programs that know only files (Linux, FUSE).
//!
//! ```text
//!   read(2) ─kernel─► /dev/fuse ─► Mounted ─number─► Nodes ─address─► FileSystem ─► cache, store
//! ```
//!
//! An open file is read in the version that was there when it was opened, as everywhere; if it is replaced, reading on is an error.

mod nodes;
mod serving;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption};

use super::directory::failed;
use super::filesystem::FileSystem;
use crate::error::{Error, Result};
use serving::Serving;

/// Requests of the kernel that are answered at once: most of them wait for a store.
const THREADS: usize = 16;

/// A directory of a store that is mounted. It is unmounted when this is dropped; programs that have files of it open keep it alive
/// until they close them.
///
/// ```no_run
/// use std::time::Duration;
/// use bowstring::store::{FileOptions, FileSystem, Mounted};
///
/// # fn main() -> bowstring::Result<()> {
/// let files = FileSystem::new(FileOptions::default())?;
/// let mounted = Mounted::new(files, "s3://bucket/models", "/mnt/models".as_ref(), Duration::from_secs(10))?;
/// println!("{:?}", std::fs::read_dir("/mnt/models"));
/// mounted.end()
/// # }
/// ```
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    directory: PathBuf,
}

impl Mounted {
    /// Mounts the directory at `url` on the empty `directory`. What the store says of files and directories is believed for `trusted`.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::Config`] for a `url` or `directory` that is none; [`Error::Store`] if the kernel refuses: root may
    /// mount, and others with `fusermount3`. Those of [`FileSystem::entry`].
    pub fn new(files: FileSystem, url: &str, directory: &Path, trusted: Duration) -> Result<Self> {
        let root = files.entry(url)?;
        if !root.is_directory() {
            return Err(Error::config("URL", format!("{} is a file, and a directory can be mounted", root.url)));
        }
        let mut there = fs::read_dir(directory).map_err(|error| failed("list", directory, error))?;
        if there.next().is_some() {
            let why = format!("{} is not empty, and what it has would be hidden", directory.display());
            return Err(Error::config("DIR", why));
        }
        let owner = fs::metadata(directory).map_err(|error| failed("look at", directory, error))?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::RO,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::DefaultPermissions,
            MountOption::FSName(root.url.clone()),
            MountOption::Subtype("bowstring".to_owned()),
        ];
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let serving = Serving::new(files, root, trusted, &owner);
        let session =
            fuser::spawn_mount(serving, directory, &config).map_err(|error| failed("mount", directory, error))?;
        Ok(Self { session, directory: directory.to_owned() })
    }

    /// Returns true once somebody else has unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// [`Error::Store`] if the kernel refuses.
    pub fn end(self) -> Result<()> {
        let Self { session, directory } = self;
        let ended = if session.guard.is_finished() { session.join() } else { session.umount_and_join() };
        ended.map_err(|error| failed("unmount", &directory, error))
    }
}
