//! The hidden directory beside the destination, and its atomic publication as the destination.
//!
//! ```text
//!   .NAME.bowstring-convert.lock     lock of the process at work; removed at its end
//!   .NAME.bowstring-convert/
//!     journal        the finished tasks
//!     tasks/3/...    files of task 3
//!     attempts/1f0c.../...   output of other processes for tasks of this source and these options, until adopted
//!     data/          all files under their names; renamed to NAME at the end
//!     old/           former content of NAME, briefly, while it is replaced
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::contents;
use super::journal::{Done, Found, Journal, Noted};
use crate::convert::budget::Progress;
use crate::convert::errors::differs;
use crate::convert::limits::Limits;
use crate::convert::sink::Part;
use crate::error::{Error, Place, Result};
use crate::store::directory::{Destination, Replace, SUCCESS, failed, flush, remove};
use crate::store::lock::{self, Attempt, Lock};
use crate::store::pinned::{Pinned, shown};
use crate::store::publish::{Publication, put_file, recover};

/// Former content of the destination, for a moment.
const OLD: &str = "old";

/// The journal of finished tasks.
const JOURNAL: &str = "journal";
/// What is published, in the hidden directory.
const DATA: &str = "data";

/// Attempts to remove the hidden directory, and the pause between them.
const REMOVALS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// The hidden directory, locked for this process.
#[derive(Debug)]
pub(crate) struct Staging {
    /// It, whatever has its name meanwhile.
    pinned: Pinned,
    /// Its name.
    hidden: PathBuf,
    destination: Destination,
    replace: Replace,
    pub(crate) journal: Journal,
    lock: Lock,
}

/// Checks that a file has its full size: a machine that crashed may have kept its name and lost the rest.
fn whole(path: &Path, part: &Part) -> Result<()> {
    let found = match fs::metadata(path) {
        Ok(found) if found.len() == part.bytes => return Ok(()),
        Ok(found) => format!("{} bytes", found.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "no file".to_owned(),
        Err(error) => return Err(failed("look up", path, error)),
    };
    let place = Place::file(shown(path).to_string_lossy());
    // The finished tasks are discarded with it: there is no telling which of their files are complete.
    let hint = "nothing was published; the same command starts from the beginning";
    Err(differs(place, "its size", format!("{} bytes", part.bytes), found, hint))
}

impl Staging {
    /// Opens the hidden directory for `destination` and the conversion `noted`, with the tasks that were finished in it before.
    ///
    /// # Errors
    /// `Config` naming `overwrite` or `overwrite_foreign` if something is at the destination, and `resume` if a conversion was
    /// interrupted; `Closed` if another process works there; `Store`.
    pub(crate) fn open(
        destination: &Path,
        noted: Noted<'_>,
        resume: bool,
        replace: Replace,
        limits: &Limits,
    ) -> Result<(Self, Vec<Done>)> {
        let destination = Destination::of(destination, "dst")?;
        // Before anything is made beside it: a link may lead to where nothing is to be.
        destination.vacant(replace)?;
        let destination = destination.pinned()?;
        let hidden = hidden(&destination);
        let lock = Lock::take(&lock::beside(&hidden), &format!("convert to {}", destination.shown().display()))?;
        // An error removes the lock's file along with the lock.
        let mut lock = Removed(Some(lock));
        let opened = |error| failed("open", &hidden, error);
        let mut before = there(&hidden).map_err(opened)?;
        if let Some(before) = &before {
            // If a process was killed between two renames, the old dataset is put back.
            recover(&destination.path, &before.at().join(OLD))?;
        }
        destination.vacant(replace)?;
        let found = match before.take() {
            Some(before) if resume || !replace.overwrite => {
                match Journal::reopen(&before.at().join(JOURNAL), noted, limits.max_index_bytes)? {
                    Found::Same(journal, done) if resume => {
                        let lock = lock.take()?;
                        return Ok((Self { pinned: before, hidden, destination, replace, journal, lock }, done));
                    }
                    found => found,
                }
            }
            _ => Found::Nothing,
        };
        match found {
            Found::Unverified | Found::Same(..) | Found::Other if !replace.overwrite => {
                let shown = shown(&hidden);
                let shown = shown.display();
                let problem = if resume && matches!(found, Found::Unverified) {
                    format!(
                        "{shown} has tasks that were finished without verify; go on without it, or set overwrite to start again"
                    )
                } else if resume {
                    format!(
                        "{shown} is of other options, or of another source or another version of its files; set overwrite to start again"
                    )
                } else {
                    format!("an interrupted conversion is in {shown}; set resume to go on, or overwrite to start again")
                };
                return Err(Error::config("resume", problem));
            }
            // A caller that asked to resume is warned that there is nothing to resume.
            Found::Nothing if resume => {
                let shown = destination.shown();
                tracing::warn!(
                    "resume: no unfinished conversion to {} is there to go on with; it starts from the beginning",
                    shown.display()
                );
            }
            _ => {}
        }
        remove(&hidden)?;
        fs::create_dir(&hidden).map_err(|error| failed("create", &hidden, error))?;
        let pinned = Pinned::own(&hidden).map_err(opened)?;
        for path in ["tasks", DATA].map(|name| pinned.at().join(name)) {
            fs::create_dir(&path).map_err(|error| failed("create", &path, error))?;
        }
        let journal = Journal::create(&pinned.at().join(JOURNAL), noted)?;
        Ok((Self { pinned, hidden, destination, replace, journal, lock: lock.take()? }, Vec::new()))
    }

    /// Returns the directory of task `task`.
    pub(crate) fn files(&self, task: usize) -> PathBuf {
        self.pinned.at().join("tasks").join(task.to_string())
    }

    /// The same, created anew and empty.
    pub(crate) fn task(&self, task: usize) -> Result<PathBuf> {
        let path = self.files(task);
        remove(&path)?;
        fs::create_dir_all(&path).map_err(|error| failed("create", &path, error))?;
        Ok(path)
    }

    /// Makes the directory for the output of other processes for the conversion with `fingerprint`, removing their earlier output. They know
    /// it by its name.
    pub(crate) fn attempts(&self, fingerprint: &str) -> Result<PathBuf> {
        let all = self.pinned.at().join("attempts");
        remove(&all)?;
        let path = all.join(fingerprint.get(..16).unwrap_or(fingerprint));
        fs::create_dir_all(&path).map_err(|error| failed("create", &path, error))?;
        Ok(shown(&path))
    }

    /// Takes over another process's output for a task in `directory`.
    pub(crate) fn adopt(&self, done: &Done, directory: &Path) -> Result<()> {
        let path = self.task(done.task)?;
        remove(&path)?;
        fs::rename(directory, &path).map_err(|error| failed("adopt", directory, error))?;
        flush(&self.pinned.at().join("tasks"))?;
        self.journal.done(done)
    }

    /// Returns the directory for data being sorted.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.pinned.at().join("scratch")
    }

    /// Returns the directory of the files under their final names.
    pub(crate) fn data(&self) -> PathBuf {
        self.pinned.at().join(DATA)
    }

    /// Moves the files of all tasks to their final names. It can be interrupted and repeated.
    pub(crate) fn gather(&self, done: &[Done], named: &[Part]) -> Result<()> {
        let data = self.data();
        let parts = done.iter().flat_map(|done| done.parts.iter().map(|part| (done.task, part)));
        for ((task, part), target) in parts.zip(named) {
            let from = self.files(task).join(&part.name);
            let to = data.join(&target.name);
            if to.exists() && !from.exists() {
                whole(&to, part)?;
                continue;
            }
            whole(&from, part)?;
            let renamed = fs::rename(&from, &to).or_else(|error| match (error.kind(), to.parent()) {
                (io::ErrorKind::NotFound, Some(parent)) if from.exists() => {
                    fs::create_dir_all(parent)?;
                    fs::rename(&from, &to)
                }
                _ => Err(error),
            });
            renamed.map_err(|error| failed("rename", &from, error))?;
        }
        Ok(())
    }

    /// Publishes the destination.
    ///
    /// # Errors
    /// `Closed` if `progress` was asked to stop; `Store`, and `Config` if something is at the destination by now, which then stays as it was.
    pub(crate) fn publish(&self, mut success: Value, threads: usize, progress: &Progress) -> Result<()> {
        let data = self.data();
        let path = data.join(SUCCESS);
        remove(&path)?;
        success["contents"] = contents::list(&data, threads, progress)?;
        let mut text = serde_json::to_vec_pretty(&success).map_err(|error| failed("write", &path, error))?;
        text.push(b'\n');
        put_file(&path, &text)?;
        let replaced = self.destination.vacant(self.replace)?.filter(|_| self.replace.overwrite);
        let old = self.pinned.at().join(OLD);
        remove(&old)?;
        let (path, replaced) = (&self.destination.path, replaced.as_ref());
        // Whoever asked to stop may be gone: nothing appears behind them.
        progress.go_on()?;
        // No exchange: a resumed conversion continues with the content of `data`.
        Publication { new: &data, path, aside: &old, exchange: false, only: None, replaced }.publish()
    }

    /// Removes the hidden directory, and then the lock. A worker may still be creating a file in it; any rest stays hidden, and the
    /// next conversion to the same place removes it.
    pub(crate) fn clear_away(self) {
        for _ in 0..REMOVALS {
            match remove(&self.hidden) {
                Ok(()) => break,
                Err(error) => tracing::debug!("{}", error.chain()),
            }
            std::thread::sleep(PAUSE);
        }
        self.lock.remove();
    }

    /// Leaves finished tasks for `resume`, or removes everything if none are.
    pub(crate) fn abandon(self, worth: bool) {
        match worth {
            true => self.lock.remove(),
            false => self.clear_away(),
        }
    }
}

/// A lock whose file is removed with it, unless the lock is taken out.
struct Removed(Option<Lock>);

impl Removed {
    fn take(&mut self) -> Result<Lock> {
        self.0.take().ok_or_else(|| Error::Closed { why: "the lock was given away".to_owned() })
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            lock.remove();
        }
    }
}

/// Removes the remains of a conversion that was killed after its dataset appeared.
///
/// # Errors
/// `Store` if that fails.
pub(crate) fn sweep(destination: &Path) -> Result<()> {
    let destination = Destination::of(destination, "dst")?;
    if !destination.parent.is_dir() {
        return Ok(());
    }
    let destination = destination.pinned()?;
    let hidden = hidden(&destination);
    let path = lock::beside(&hidden);
    if !hidden.is_dir() && !path.exists() {
        return Ok(());
    }
    // The holder of the lock sweeps too.
    let Attempt::Held(lock) = Lock::attempt(&path)? else { return Ok(()) };
    let lock = Removed(Some(lock));
    remove(&hidden)?;
    drop(lock);
    Ok(())
}

/// Returns true if an interrupted conversion to `destination` can be resumed.
pub fn is_unfinished(destination: &Path) -> bool {
    Destination::of(destination, "dst").is_ok_and(|destination| hidden(&destination).join(JOURNAL).is_file())
}

/// Returns true if a conversion to `destination` was killed when its files had been published: they are moved away then.
pub(crate) fn is_published(destination: &Path) -> bool {
    let moved = |destination| !hidden(&destination).join(DATA).exists();
    is_unfinished(destination) && Destination::of(destination, "dst").is_ok_and(moved)
}

/// The hidden directory beside `destination`.
fn hidden(destination: &Destination) -> PathBuf {
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(&destination.name);
    hidden.push(".bowstring-convert");
    destination.parent.join(hidden)
}

/// The hidden directory, if this user has left one.
fn there(hidden: &Path) -> io::Result<Option<Pinned>> {
    match Pinned::own(hidden) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // A link, or something else that is removed before the work begins.
        Err(_) if !fs::symlink_metadata(hidden)?.is_dir() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::options::ConvertOptions;

    #[test]
    fn a_file_that_lost_its_bytes_is_not_published() {
        let directory = tempfile::tempdir().unwrap();
        let options = ConvertOptions::default();
        let dst = directory.path().join("out");
        let noted = Noted { fingerprint: "x", former: "", source: "/src", verify: false };
        let (staging, _) = Staging::open(&dst, noted, false, options.replace(), &options.limits).unwrap();
        let file = staging.task(0).unwrap().join("a.jpg");
        let part = Part { name: "a.jpg".into(), rows: 1, bytes: 3, extra: Value::Null };
        let done = [Done { task: 0, parts: vec![part.clone()], digest: None, rows: 1, read: 1 }];
        // As after a power failure: only the name is there.
        fs::write(&file, b"").unwrap();
        let error = staging.gather(&done, std::slice::from_ref(&part)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("3 bytes"), "{error}");
        fs::write(&file, b"abc").unwrap();
        staging.gather(&done, std::slice::from_ref(&part)).unwrap();
        let lost = Part { name: "b.jpg".into(), ..part.clone() };
        let done_of = |part: &Part| [Done { task: 0, parts: vec![part.clone()], digest: None, rows: 1, read: 1 }];
        let error = staging.gather(&done_of(&lost), std::slice::from_ref(&lost)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("no file"), "{error}");
        // Repeated, after a kill in between.
        fs::write(staging.data().join("a.jpg"), b"ab").unwrap();
        assert!(staging.gather(&done, std::slice::from_ref(&part)).is_err());
    }
}
