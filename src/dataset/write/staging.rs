//! A directory that appears at once or not at all: filled under a hidden name beside its destination, then renamed.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::error::Result;
use crate::store::directory::{Destination, Replace, SUCCESS, failed, remove};
use crate::store::pinned::{PROBE, Pinned, identity, is_at};
use crate::store::publish::{Publication, put_file};

/// Names that are tried.
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
        let (directory, lock) = claimed(&destination)?;
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
        let aside = aside(&self.destination)?;
        // It has this one's hidden name for a moment, where another writer must not take it for a leftover.
        let _former = replaced.as_ref().and_then(|_| lock(&path).ok());
        let (only, replaced) = (Some(&self.pinned), replaced.as_ref());
        Publication { new: &self.directory, path: &path, aside: &aside, exchange: true, only, replaced }.publish()?;
        self.published = true;
        remove(&aside)?;
        Ok(self.destination.shown())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let is_own = |found: Metadata| self.pinned.identity().is_ok_and(|own| own == identity(&found));
        // Another writer may have the name by now.
        if !self.published && fs::symlink_metadata(&self.directory).is_ok_and(is_own) {
            // Nobody is left to be told; what stays is hidden, and no reader takes it for data.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// The hidden path beside `destination` that ends so.
fn hidden(destination: &Destination, end: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(&destination.name);
    name.push(".");
    name.push(end);
    destination.parent.join(name)
}

/// Makes the hidden directory with the first number that no other writer has, and locks it. What killed writers left is removed on the way: names
/// are tried, and nothing is listed, since a task among thousands has as many directories beside its own.
fn claimed(destination: &Destination) -> Result<(PathBuf, Option<File>)> {
    let path = |number: usize| hidden(destination, &format!("{number}.writing"));
    for number in 0..TRIES {
        let own = path(number);
        remove_left(&own);
        match fs::create_dir(&own).and_then(|()| lock(&own)) {
            Ok(lock) => {
                let mut further = (number + 1..TRIES).map(path);
                while further.next().is_some_and(|left| remove_left(&left)) {}
                return Ok((own, lock));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &own, error)),
        }
    }
    Err(failed("create", &path(TRIES), io::Error::other("too many writers write to the same dataset")))
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

/// A vacant path beside `destination`.
fn aside(destination: &Destination) -> Result<PathBuf> {
    let path = |number: usize| hidden(destination, &format!("{}-{number}.old", process::id()));
    let is_vacant =
        |path: &PathBuf| fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let taken = || failed("create", &path(TRIES), io::Error::from(io::ErrorKind::AlreadyExists));
    (0..TRIES).map(path).find(is_vacant).ok_or_else(taken)
}

/// Removes the directory of a writer that was killed; `false` if it is not there, or not one. Nobody is told of what cannot be removed: it is
/// hidden, and no reader takes it for data.
fn remove_left(path: &Path) -> bool {
    // Locked until it is gone.
    File::open(path).is_ok_and(|directory| {
        directory.try_lock().is_ok()
            && is_at(&directory, path)
            && is_of_writer(path)
            && fs::remove_dir_all(path).is_ok()
    })
}

/// Returns true if there is nothing in it that a writer does not make.
fn is_of_writer(directory: &Path) -> bool {
    let is_own = |entry: io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        entry.file_type().is_ok_and(|kind| kind.is_file())
            && (name.starts_with('_') || name.ends_with(".parquet") || name == PROBE)
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
        let gone = [left(".out.0.writing", "part-00000.parquet"), left(".out.1.writing", "_common_metadata")];
        fs::write(gone[1].join(PROBE), b"").unwrap();
        let kept = [
            left(".out.a.0.writing", "part-00000.parquet"),
            left(".out.77-1.partial", "part-00000.parquet"),
            left(".out.2.writing", "thesis.txt"),
            left(".out.77-0.old", "part-00000.parquet"),
            left(".other.0.writing", "part-00000.parquet"),
        ];
        let path = root.path().join("out");
        let first = Staging::create(&path, Replace::default()).unwrap();
        assert_eq!(first.directory.file_name(), gone[0].file_name(), "its name is free");
        assert!(!gone[0].join("part-00000.parquet").exists() && !gone[1].exists());
        assert!(kept.iter().all(|left| left.exists()));
        let second = Staging::create(&path, Replace::default()).unwrap();
        assert!(first.directory.exists(), "its writer lives");
        assert_ne!(first.directory, second.directory);
        second.publish().unwrap();
        drop(first);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), kept.len() + 1);
    }
}
