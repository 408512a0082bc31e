//! The lock of a directory or a file that one process works on at a time.
//!
//! It is an advisory lock of the operating system (`flock`) on a file. The system frees it when the process ends, however it ends, even if
//! children that it has forked live on. It holds between containers and, where the file system has locks, between hosts. The content of
//! the file names the holder for error messages and decides nothing.
//!
//! A lock is on the file, not on its name. Only its holder removes the file, and a process that gets a lock checks that the name
//! still means the locked file; otherwise two processes could lock two files of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::directory::failed;
use super::pinned::shown;
use super::unforked::Unforked;
use crate::error::{Error, Result};

/// The longest description of a holder that is read, in bytes.
const LONGEST: u64 = 256;
/// Pause between two attempts of a waiting process.
const PAUSE: Duration = Duration::from_millis(50);

/// Attempts to open a lock file whose holder removes it meanwhile.
const TRIES: usize = 1000;

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: Unforked,
    path: PathBuf,
}

/// Frees the lock by name. To close the file is not enough: the lock is of the open file, and a child process that another thread
/// is starting just now has it open too until it runs its program.
impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!("the lock {} is freed when its file is closed: {error}", shown(&self.path).display());
        }
    }
}

/// The outcome of an attempt to lock.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The lock is ours.
    Held(Lock),
    /// Another open file has it; the text says whose, as far as it is known.
    Busy(String),
}

impl Lock {
    /// Locks the file at `path`, which is made if it is not there, without waiting.
    ///
    /// # Errors
    /// [`Error::Store`] if the file cannot be opened or written, or the file system has no locks.
    pub(crate) fn attempt(path: &Path) -> Result<Attempt> {
        for _ in 0..TRIES {
            let mut file = Unforked::new(open(path).map_err(|error| failed("open the lock", path, error))?);
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    // A holder that is writing its name just now is unknown.
                    let _ = Read::by_ref(&mut *file).take(LONGEST).read_to_string(&mut holder);
                    let holder = holder.trim();
                    let holder = if holder.is_empty() { "another process" } else { holder };
                    return Ok(Attempt::Busy(format!("{holder} holds {}", shown(path).display())));
                }
                Err(TryLockError::Error(error)) => return Err(failed("lock", path, error)),
            }
            // Its holder may have removed it between our opening and our locking.
            if !is_at(&file, path)? {
                continue;
            }
            let written = file
                .set_len(0)
                .and_then(|()| file.seek(SeekFrom::Start(0)))
                .and_then(|_| writeln!(file, "process {} of host {}", std::process::id(), host()));
            // A full disk may not take the name. Who holds the lock does not depend on it.
            if let Err(error) = written {
                tracing::debug!("the lock {} does not name its holder: {error}", shown(path).display());
            }
            return Ok(Attempt::Held(Self { file, path: path.to_owned() }));
        }
        Ok(Attempt::Busy(format!("others take and remove {} all the time", shown(path).display())))
    }

    /// Removes the file and frees the lock: for a lock whose directory must be left as it was. Without permission to remove it, the file
    /// stays, which does no harm.
    pub(crate) fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("the lock {} stays: {error}", shown(&self.path).display());
        }
    }

    /// Locks the file at `path` for `work`, for example "convert to /data/train".
    ///
    /// # Errors
    /// [`Error::Closed`] naming the holder if another process has it; [`Error::Store`].
    #[cfg_attr(not(any(feature = "convert", feature = "flight")), allow(dead_code, reason = "saves wait for theirs"))]
    pub(crate) fn take(path: &Path, work: &str) -> Result<Self> {
        match Self::attempt(path)? {
            Attempt::Held(lock) => Ok(lock),
            Attempt::Busy(holder) => Err(Error::Closed { why: format!("cannot {work}: {holder}") }),
        }
    }

    /// As [`take`](Self::take), but waits up to `patience` for a holder that may be about to end.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) async fn take_within(path: &Path, work: &str, patience: Duration) -> Result<Self> {
        let begin = Instant::now();
        let mut told = false;
        loop {
            let holder = match Self::attempt(path)? {
                Attempt::Held(lock) => return Ok(lock),
                Attempt::Busy(holder) => holder,
            };
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let waited = if patience.is_zero() { String::new() } else { format!(", after waiting {patience:?}") };
                return Err(Error::Closed { why: format!("cannot {work}: {holder}{waited}") });
            }
            if !told {
                tracing::info!("{holder}; waiting up to {patience:?} to {work}");
                told = true;
            }
            tokio::time::sleep(PAUSE.min(left)).await;
        }
    }
}

/// The lock file of the file at `path`: beside it, since a file that is replaced by a rename takes its lock with it.
#[cfg_attr(not(any(feature = "convert", feature = "flight")), allow(dead_code, reason = "saves have one of their own"))]
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Opens or makes the file that is locked. Somebody who may make files in its directory could have left a link there, and its target
/// would be written over; so a link is an error, as is anything but a file.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(std::io::Error::other("it is not a regular file; remove it"))
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata().map_err(|error| failed("read the lock", path, error))?;
    match std::fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("read the lock", path, error)),
    }
}

/// Elsewhere an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> Result<bool> {
    Ok(true)
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_the_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = beside(&directory.path().join("journal"));
        let held = Lock::take(&path, "write the journal").unwrap();
        let error = Lock::take(&path, "write the journal").unwrap_err();
        assert!(matches!(error, Error::Closed { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("process {}", std::process::id())) && text.contains("journal.lock"), "{text}");
        drop(held);
        assert!(path.exists());
        Lock::take(&path, "write the journal").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, precious) = (directory.path().join("lock"), directory.path().join("precious"));
        std::fs::write(&precious, "work of years").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let error = Lock::take(&path, "write").unwrap_err();
        assert!(matches!(error, Error::Store { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "work of years");
    }

    #[test]
    fn a_removed_lock_is_held_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let (inside, rounds) = (std::sync::atomic::AtomicUsize::new(0), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        if let Attempt::Held(lock) = Lock::attempt(&path).unwrap() {
                            use std::sync::atomic::Ordering::SeqCst;
                            assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold one lock");
                            rounds.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, SeqCst);
                            lock.remove();
                        }
                    }
                });
            }
        });
        assert!(rounds.into_inner() > 0 && !path.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_it_when_the_holder_ends_or_is_told_who_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Lock::take(&path, "serve").unwrap();
        let begin = Instant::now();
        let error = Lock::take_within(&path, "serve", Duration::from_secs(3)).await.unwrap_err().to_string();
        assert!(error.contains("cannot serve: process") && error.contains("3s"), "{error}");
        assert_eq!(begin.elapsed(), Duration::from_secs(3));
        let waiting = Lock::take_within(&path, "serve", Duration::from_secs(3));
        let ending = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(held);
        };
        let (taken, ()) = futures::join!(waiting, ending);
        taken.unwrap();
    }
}
