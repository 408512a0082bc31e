//! A directory that appears at once or not at all: filled under a hidden name beside its destination, then renamed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::error::Result;
use crate::store::directory::{Destination, Replace, SUCCESS, failed, remove};
use crate::store::pinned::{Pinned, is_at};
use crate::store::publish::{Publication, put_file};

/// The ending of its name. Directories without a lock, which end in `partial`, were made before there were locks.
const ENDING: &str = "writing";

/// Attempts to find a name that nothing has.
const TRIES: usize = 1000;

/// The hidden directory. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(super) struct Staging {
    /// Its name.
    directory: PathBuf,
    /// Its lock, by which others see that its process lives.
    _lock: Option<File>,
    /// It, whatever has its name meanwhile.
    pinned: Pinned,
    destination: Destination,
    replace: Replace,
    published: bool,
}

impl Staging {
    /// A new hidden directory beside `destination`, whose parents are made. What killed processes left for the same is removed.
    pub(super) fn create(destination: &Path, replace: Replace) -> Result<Self> {
        let destination = Destination::of(destination, "path")?;
        destination.vacant(replace)?;
        let destination = destination.pinned()?;
        remove_left(&destination);
        let (directory, lock) = hidden(&destination, ENDING, |path| {
            fs::create_dir(path)?;
            lock(path)
        })?;
        let pinned = Pinned::own(&directory).map_err(|error| failed("open", &directory, error))?;
        Ok(Self { directory, _lock: lock, pinned, destination, replace, published: false })
    }

    /// Path of the file `name` until it is published.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.pinned.at().join(name)
    }

    /// Makes a new file.
    pub(super) fn file(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::create_new(&path).map_err(|error| failed("create", &path, error))
    }

    /// Gives the directory its name. `_SUCCESS` is written last before that, so that the dataset is known as ours, and everything
    /// is on the disk.
    pub(super) fn publish(mut self) -> Result<PathBuf> {
        let mark = serde_json::json!({ "bowstring": env!("CARGO_PKG_VERSION") });
        put_file(&self.path(SUCCESS), format!("{mark}\n").as_bytes())?;
        // Somebody may have been faster.
        let replaced = self.destination.vacant(self.replace)?.filter(|_| self.replace.overwrite);
        let path = self.destination.path.clone();
        let (aside, ()) = hidden(&self.destination, "old", |path| match fs::symlink_metadata(path) {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })?;
        let (only, replaced) = (Some(&self.pinned), replaced.as_ref());
        Publication { new: &self.directory, path: &path, aside: &aside, exchange: true, only, replaced }.publish()?;
        self.published = true;
        remove(&aside)?;
        Ok(self.destination.shown())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // Nobody is left to be told; what stays is hidden, and no reader takes it for data.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Does `make` with the first free hidden path beside `destination`.
fn hidden<T>(destination: &Destination, end: &str, make: impl Fn(&Path) -> io::Result<T>) -> Result<(PathBuf, T)> {
    let mut number = 0;
    loop {
        let mut own = start(destination);
        own.push(format!("{}-{number}.{end}", process::id()));
        let path = destination.parent.join(own);
        match make(&path) {
            Ok(made) => return Ok((path, made)),
            Err(error) if taken(&error) && number < TRIES => number += 1,
            Err(error) => return Err(failed("create", &path, error)),
        }
    }
}

/// The beginning of hidden names beside `destination`.
fn start(destination: &Destination) -> OsString {
    let mut start = OsString::from(".");
    start.push(&destination.name);
    start.push(".");
    start
}

fn taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
}

/// The lock of the new directory `path`; `None` where directories have none, as on file systems of networks: leftovers then stay.
///
/// # Errors
/// `AlreadyExists` if another writer has taken it for a leftover just now.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let directory = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => return Ok(None),
        Ok(directory) => directory,
    };
    let is_taken = matches!(directory.try_lock(), Err(TryLockError::WouldBlock));
    if is_taken || !is_at(&directory, path) { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(Some(directory)) }
}

/// Removes what writers that were killed left for the same destination. Nobody is told of what cannot be removed: it is hidden, and no
/// reader takes it for data.
fn remove_left(destination: &Destination) {
    let start = start(destination);
    let Ok(entries) = fs::read_dir(&destination.parent) else { return };
    for left in entries.flatten().filter(|entry| is_left(&start, &entry.file_name())).map(|entry| entry.path()) {
        if let Ok(directory) = File::open(&left)
            && directory.try_lock().is_ok()
            && is_at(&directory, &left)
            && is_of_writer(&left)
        {
            drop(fs::remove_dir_all(&left));
        }
    }
}

/// Returns true for the name of a hidden directory of a writer: `.x.` also begins those of a dataset `x.y`.
fn is_left(start: &OsStr, name: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(start.as_encoded_bytes());
    let number = rest.and_then(|rest| rest.strip_suffix(ENDING.as_bytes())?.strip_suffix(b"."));
    number.is_some_and(|number| number.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-'))
}

/// Returns true if there is nothing in it that a writer does not make.
fn is_of_writer(directory: &Path) -> bool {
    let is_own = |entry: io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        entry.file_type().is_ok_and(|kind| kind.is_file()) && (name.starts_with('_') || name.ends_with(".parquet"))
    };
    fs::read_dir(directory).is_ok_and(|mut entries| entries.all(is_own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_the_same_dataset_go_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let left = |name: &str, file: &str| {
            let directory = root.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join(file), b"x").unwrap();
            directory
        };
        let gone = [left(".out.77-0.writing", "part-00000.parquet"), left(".out.78-12.writing", "_common_metadata")];
        let kept = [
            left(".out.a.77-0.writing", "part-00000.parquet"),
            left(".out.77-1.partial", "part-00000.parquet"),
            left(".out.77-2.writing", "thesis.txt"),
            left(".out.77-0.old", "part-00000.parquet"),
            left(".other.77-0.writing", "part-00000.parquet"),
        ];
        let path = root.path().join("out");
        let first = Staging::create(&path, Replace::default()).unwrap();
        assert!(gone.iter().all(|left| !left.exists()) && kept.iter().all(|left| left.exists()));
        let second = Staging::create(&path, Replace::default()).unwrap();
        assert!(first.directory.exists(), "its writer lives");
        assert_ne!(first.directory, second.directory);
        second.publish().unwrap();
        drop(first);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), kept.len() + 1);
    }
}
