//! The way in which files become visible at once, even if the process is killed: made aside, flushed to the disk, renamed, and the name
//! flushed to the disk.
//!
//! ```text
//!   files ─ flush ─► their directory ─ flush ─► one rename, or an exchange of two names ─► directory above ─ flush ─► what was there goes
//! ```
//! Writers of datasets, conversions and commits of a server all end here. `tests/it/crash.rs` kills each of
//! them at every step that changes a disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

#[cfg(any(feature = "convert", test))]
use super::directory::remove;
use super::directory::{failed, flush, flush_name};
#[cfg(feature = "flight")]
use super::files::Files;
use crate::error::Result;

/// Writes a new small file whole, and brings it to the disk.
///
/// # Errors
/// `Store` if there is one already, or the disk fails.
pub(crate) fn put_file(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(|error| failed("create", path, error))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(|error| failed("write", path, error))
}

/// A directory whose files are on the disk, and the name that it is to have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Publication<'a> {
    /// The directory.
    pub(crate) new: &'a Path,
    /// Its name to be.
    pub(crate) path: &'a Path,
    /// Place in which the former owner of the name stands aside, in the same file system; it must be vacant.
    pub(crate) aside: &'a Path,
    /// If true, the two exchange names in one step where the system can: a process killed after that leaves the old one as `new`, so `new`
    /// must not be taken for work to continue with.
    pub(crate) exchange: bool,
}

impl Publication<'_> {
    /// Makes the directory appear; with `replace` in place of an existing one, which is then aside. Without it, only nothing or an empty
    /// directory may be there.
    ///
    /// # Errors
    /// `Store`; the name then means what it meant before, unless only its own way to the disk failed.
    pub(crate) fn publish(&self, replace: bool) -> Result<()> {
        let Self { new, path, aside, exchange } = *self;
        flush(new)?;
        let replaces = replace && fs::symlink_metadata(path).is_ok();
        if replaces && exchange && exchanged(new, path).map_err(|error| failed("publish", path, error))? {
            if let Err(error) = fs::rename(new, aside) {
                exchanged(new, path).map_err(|error| failed("restore", path, error))?;
                return Err(failed("replace", path, error));
            }
            return flush_name(path);
        }
        if replaces {
            fs::rename(path, aside).map_err(|error| failed("replace", path, error))?;
        }
        if let Err(error) = fs::rename(new, path) {
            if replaces {
                // If even that fails, it is still aside, under the name that the error gives.
                fs::rename(aside, path).map_err(|error| failed("restore", aside, error))?;
            }
            return Err(failed("publish", path, error));
        }
        flush_name(path)
    }
}

/// Restores the directory that a killed process left aside while nothing has its name, or removes it otherwise: kept, it would come back
/// once its replacement is deleted.
///
/// # Errors
/// `Store`.
#[cfg(any(feature = "convert", test))]
pub(crate) fn recover(path: &Path, aside: &Path) -> Result<()> {
    if fs::symlink_metadata(aside).is_err() {
        return Ok(());
    }
    if fs::symlink_metadata(path).is_ok() {
        return remove(aside);
    }
    fs::rename(aside, path).map_err(|error| failed("restore", path, error))
}

/// Turns the link `path` to `target`, at once; `aside` is where it is made. The name is not on the disk yet.
///
/// # Errors
/// `Store`; the link then leads where it led.
#[cfg(feature = "flight")]
pub(crate) fn turn(files: &dyn Files, path: &Path, target: &Path, aside: &Path) -> Result<()> {
    match files.remove_file(aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", aside, error)),
        _ => {}
    }
    files.symlink(target, aside).map_err(|error| failed("link", aside, error))?;
    files.rename(aside, path).map_err(|error| failed("publish", path, error))
}

/// Exchanges two names in one step; `false` where the system cannot.
#[cfg(target_os = "linux")]
fn exchanged(one: &Path, other: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        // Errors of a kernel or a file system that cannot exchange names.
        Err(Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchanged(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(path: &Path, what: &str) {
        fs::create_dir(path).unwrap();
        put_file(&path.join("what"), what.as_bytes()).unwrap();
    }

    fn what(path: &Path) -> Option<String> {
        fs::read_to_string(path.join("what")).ok()
    }

    #[test]
    fn a_directory_takes_the_place_of_another_which_stands_aside() {
        for exchange in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let [new, path, aside] = ["new", "path", "aside"].map(|name| root.path().join(name));
            let publication = Publication { new: &new, path: &path, aside: &aside, exchange };
            directory(&new, "first");
            publication.publish(true).unwrap();
            assert_eq!((what(&path).as_deref(), what(&aside)), (Some("first"), None));
            directory(&new, "second");
            publication.publish(true).unwrap();
            assert_eq!((what(&path).as_deref(), what(&aside).as_deref()), (Some("second"), Some("first")));
            assert!(!new.exists());
            recover(&path, &aside).unwrap();
            assert!(!aside.exists());
            directory(&new, "third");
            publication.publish(false).unwrap_err();
            assert_eq!((what(&path).as_deref(), what(&new).as_deref()), (Some("second"), Some("third")));
        }
    }

    #[test]
    fn a_rename_that_fails_leaves_what_was_there() {
        let root = tempfile::tempdir().unwrap();
        let [new, path, aside] = ["new", "path", "aside"].map(|name| root.path().join(name));
        directory(&path, "old");
        for exchange in [false, true] {
            Publication { new: &new, path: &path, aside: &aside, exchange }.publish(true).unwrap_err();
            assert_eq!(what(&path).as_deref(), Some("old"));
        }
        directory(&new, "new");
        directory(&aside, "in the way");
        for exchange in [false, true] {
            Publication { new: &new, path: &path, aside: &aside, exchange }.publish(true).unwrap_err();
            assert_eq!((what(&path).as_deref(), what(&new).as_deref()), (Some("old"), Some("new")));
        }
    }

    #[test]
    fn what_stands_aside_goes_back_only_where_nothing_is() {
        let root = tempfile::tempdir().unwrap();
        let [path, aside] = ["path", "aside"].map(|name| root.path().join(name));
        recover(&path, &aside).unwrap();
        directory(&aside, "old");
        recover(&path, &aside).unwrap();
        assert_eq!(what(&path).as_deref(), Some("old"));
        directory(&aside, "older");
        recover(&path, &aside).unwrap();
        assert_eq!((what(&path).as_deref(), aside.exists()), (Some("old"), false));
    }
}
