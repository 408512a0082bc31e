//! A directory of a store as a directory of this machine, to read, for programs that know only files (Linux, FUSE).
//!
//! ```text
//!   read(2) ─kernel─► /dev/fuse ─► Mounted ─number─► Nodes ─address─► Work ─► FileSystem ─► cache, store
//! ```
//!
//! An open file is read in the version that was there when it was opened, as everywhere; if it is replaced, reading on is an error.

mod answers;
mod nodes;
mod serving;
mod work;

use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Config, MountOption};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{UnmountFlags, unmount};

use super::child::within;
use super::directory::failed;
use super::filesystem::FileSystem;
use crate::error::{Error, Result};
use serving::Serving;
use work::THREADS;

/// Time that the kernel takes at most to end a mount that nobody uses any more.
const ENDING: Duration = Duration::from_secs(1);
/// Pause between two looks at that.
const LOOK: Duration = Duration::from_millis(2);
/// Time that a program has to unmount.
const HELPING: Duration = Duration::from_secs(10);
/// Programs that unmount for users who may not.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// A directory of a store that is mounted. It is unmounted when this is dropped; programs that have files of it open, or stand in it, keep
/// them until they close them, as long as this process lives.
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
    /// The thread that serves it, until it is ended here.
    serving: Option<JoinHandle<io::Result<()>>>,
    directory: PathBuf,
    /// The device of its files, which tells it from what somebody else mounts there; none if the system does not say.
    device: Option<(u32, u32)>,
    is_detached: bool,
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
        let there = fs::read_dir(directory);
        if there.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotConnected) {
            let why = format!("{0} has a mount whose process was killed; umount {0} first", directory.display());
            return Err(Error::config("DIR", why));
        }
        let mut there = there.map_err(|error| failed("list", directory, error))?;
        if there.next().is_some() {
            let why = format!("{} is not empty, and what it has would be hidden", directory.display());
            return Err(Error::config("DIR", why));
        }
        let owner = fs::metadata(directory).map_err(|error| failed("look up", directory, error))?;
        let real = fs::canonicalize(directory).map_err(|error| failed("look up", directory, error))?;
        if let Some(shown) = files.shown(url)?.into_iter().find(|shown| real.starts_with(shown)) {
            let why = format!(
                "{} is in {}, which would be shown in it, and itself in that, without end; take a directory elsewhere",
                directory.display(),
                shown.display()
            );
            return Err(Error::config("DIR", why));
        }
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
        let serving = Serving::new(files, root, trusted, &owner)?;
        let mut session =
            fuser::spawn_mount(serving, directory, &config).map_err(|error| failed("mount", directory, error))?;
        // Joined or dropped, the session would unmount whatever is at the directory by then, also what was mounted there since. That it is kept
        // costs a descriptor.
        let serving = mem::replace(&mut session.guard, thread::spawn(|| Ok(())));
        mem::forget(session);
        let device = device(&real);
        Ok(Self { serving: Some(serving), directory: real, device, is_detached: false })
    }

    /// Returns true once nobody can use it any more: somebody else has unmounted it, or it is detached, and no program has files of it.
    pub fn is_over(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns true if it is at its directory, and not somebody else's mount, or none.
    fn is_there(&self) -> bool {
        !self.is_over() && (self.device.is_none() || self.device == device(&self.directory))
    }

    /// Takes it from its directory, which is free for others then. Programs that have files of it open, or stand in it, keep them as long
    /// as this process lives. Returns true if there are none: it is over.
    ///
    /// # Errors
    /// [`Error::Store`] if the kernel refuses.
    pub fn detach(&mut self) -> Result<bool> {
        self.leave_directory()?;
        let began = Instant::now();
        while !self.is_over() && began.elapsed() < ENDING {
            thread::sleep(LOOK);
        }
        Ok(self.is_over())
    }

    fn leave_directory(&mut self) -> Result<()> {
        if !self.is_detached && self.is_there() {
            // To unmount it would fail as long as it is in use, and leave a dead mount behind a process that ends.
            let detached = match unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Err(rustix::io::Errno::PERM) => helped(&self.directory),
                // Somebody else was faster.
                Err(rustix::io::Errno::INVAL) => Ok(()),
                detached => detached.map_err(io::Error::from),
            };
            if let Err(error) = detached
                && self.is_there()
            {
                return Err(failed("unmount", &self.directory, error));
            }
        }
        self.is_detached = true;
        Ok(())
    }

    /// Unmounts it; see [`detach`](Self::detach).
    ///
    /// # Errors
    /// [`Error::Store`] if the kernel refuses, or the threads that served it have failed.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let failed_before = !self.is_detached && self.serving.as_ref().is_some_and(JoinHandle::is_finished);
        let detached = if self.is_detached { Ok(()) } else { self.detach().map(drop) };
        // Its threads go on for those who use it.
        let Some(serving) = self.serving.take().filter(JoinHandle::is_finished) else { return detached };
        let served = match serving.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))) {
            // The kernel says so to threads that wait for requests when the last file of a mount is closed that is not at its directory any
            // more, whoever took it away.
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionAborted
                    && (!failed_before || device(&self.directory).is_some_and(|there| self.device != Some(there))) =>
            {
                Ok(())
            }
            served => served,
        };
        let ended = served.map_err(|error| {
            // Threads that failed leave a mount that nobody serves.
            if device(&self.directory).is_none_or(|there| self.device == Some(there)) {
                // The kernel may have taken it away by itself.
                let _ = unmount(&self.directory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            }
            failed("serve", &self.directory, error)
        });
        detached.and(ended)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!("{}", error.chain());
        }
    }
}

/// Detaches the mount at `directory` by a program that may.
fn helped(directory: &Path) -> io::Result<()> {
    let mut failure = None;
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.args(["-u", "-q", "-z", "--"]).arg(directory).stdin(Stdio::null()).stdout(Stdio::null());
        match ended(&mut command) {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => {
                failure.get_or_insert_with(|| io::Error::other(format!("{helper}: {status}")));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    Err(failure.unwrap_or_else(|| io::ErrorKind::PermissionDenied.into()))
}

/// The end of `command`, which has [`HELPING`] for it.
fn ended(command: &mut Command) -> io::Result<ExitStatus> {
    let status = within(&mut command.spawn()?, HELPING, || true)?;
    status.ok_or_else(|| {
        let program = command.get_program().to_string_lossy();
        io::Error::new(io::ErrorKind::TimedOut, format!("{program} did not end within {HELPING:?}"))
    })
}

/// The device of the files at `path`. Whoever serves them is not asked: they may hang.
fn device(path: &Path) -> Option<(u32, u32)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}
