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
use super::pinned::{Pinned, identity};
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
    /// What `new` is, where others may give that name to something else: only this is published.
    pub(crate) only: Option<&'a Pinned>,
    /// What may be replaced, if anything may: it was looked at, and nothing else that has its name by now is taken away.
    pub(crate) replaced: Option<&'a Pinned>,
}

impl Publication<'_> {
    /// Makes the directory appear; with `replaced` in place of an existing one, which is then aside. Without it, only nothing or an empty
    /// directory may be there.
    ///
    /// # Errors
    /// `Store`; the name then means what it meant before, unless only its own way to the disk failed.
    pub(crate) fn publish(&self) -> Result<()> {
        let Self { new, path, aside, exchange, only, replaced } = *self;
        let is_new = || only.map_or(Ok(()), |only| is_it(path, only));
        flush(new)?;
        let replaced = replaced.filter(|_| fs::symlink_metadata(path).is_ok());
        if let Some(replaced) = replaced.filter(|_| exchange)
            && exchanged(new, path).map_err(|error| failed("publish", path, error))?
        {
            if let Err(error) = is_new().and_then(|()| is_it(new, replaced)).and_then(|()| fs::rename(new, aside)) {
                exchanged(new, path).map_err(|error| failed("restore", path, error))?;
                return Err(failed("replace", path, error));
            }
            return flush_name(path);
        }
        if let Some(replaced) = replaced {
            fs::rename(path, aside).map_err(|error| failed("replace", path, error))?;
            if let Err(error) = is_it(aside, replaced) {
                fs::rename(aside, path).map_err(|error| failed("restore", aside, error))?;
                return Err(failed("replace", path, error));
            }
        }
        let published = fs::rename(new, path).and_then(|()| {
            is_new().inspect_err(|_| {
                // The error names the path: if it cannot be given back, that is what is there.
                let _ = fs::rename(path, new);
            })
        });
        if let Err(error) = published {
            if replaced.is_some() {
                // If even that fails, it is still aside, under the name that the error gives.
                fs::rename(aside, path).map_err(|error| failed("restore", aside, error))?;
            }
            return Err(failed("publish", path, error));
        }
        flush_name(path)
    }
}

/// Checks that the name `path` means `expected`, and not something that another user has given the name meanwhile.
fn is_it(path: &Path, expected: &Pinned) -> io::Result<()> {
    if identity(&fs::symlink_metadata(path)?) == expected.identity()? {
        return Ok(());
    }
    Err(io::Error::other("another process has put something else there meanwhile; nothing is replaced"))
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
            let publish = || {
                let replaced = Pinned::unlinked(&path).ok();
                let replaced = replaced.as_ref();
                Publication { new: &new, path: &path, aside: &aside, exchange, only: None, replaced }.publish()
            };
            directory(&new, "first");
            publish().unwrap();
            assert_eq!((what(&path).as_deref(), what(&aside)), (Some("first"), None));
            directory(&new, "second");
            publish().unwrap();
            assert_eq!((what(&path).as_deref(), what(&aside).as_deref()), (Some("second"), Some("first")));
            assert!(!new.exists());
            recover(&path, &aside).unwrap();
            assert!(!aside.exists());
            directory(&new, "third");
            Publication { new: &new, path: &path, aside: &aside, exchange, only: None, replaced: None }
                .publish()
                .unwrap_err();
            assert_eq!((what(&path).as_deref(), what(&new).as_deref()), (Some("second"), Some("third")));
        }
    }

    #[test]
    fn a_rename_that_fails_leaves_what_was_there() {
        let root = tempfile::tempdir().unwrap();
        let [new, path, aside] = ["new", "path", "aside"].map(|name| root.path().join(name));
        directory(&path, "old");
        let replaced = Pinned::unlinked(&path).unwrap();
        let replaced = Some(&replaced);
        for exchange in [false, true] {
            Publication { new: &new, path: &path, aside: &aside, exchange, only: None, replaced }
                .publish()
                .unwrap_err();
            assert_eq!(what(&path).as_deref(), Some("old"));
        }
        directory(&new, "new");
        directory(&aside, "in the way");
        for exchange in [false, true] {
            Publication { new: &new, path: &path, aside: &aside, exchange, only: None, replaced }
                .publish()
                .unwrap_err();
            assert_eq!((what(&path).as_deref(), what(&new).as_deref()), (Some("old"), Some("new")));
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_was_put_there_meanwhile_is_not_replaced() {
        for exchange in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let [new, path, aside, other] = ["new", "path", "aside", "other"].map(|name| root.path().join(name));
            directory(&path, "looked at");
            directory(&new, "new");
            directory(&other, "of somebody");
            let looked_at = Pinned::unlinked(&path).unwrap();
            let replaced = Some(&looked_at);
            let publish =
                || Publication { new: &new, path: &path, aside: &aside, exchange, only: None, replaced }.publish();
            // Another directory, and a link to one.
            fs::rename(&path, root.path().join("moved")).unwrap();
            fs::rename(&other, &path).unwrap();
            assert!(publish().unwrap_err().chain().contains("something else"));
            assert_eq!((what(&path).as_deref(), what(&new).as_deref()), (Some("of somebody"), Some("new")));
            fs::rename(&path, &other).unwrap();
            std::os::unix::fs::symlink(&other, &path).unwrap();
            publish().unwrap_err();
            assert!(fs::symlink_metadata(&path).unwrap().is_symlink() && !aside.exists());
            assert_eq!((what(&other).as_deref(), what(&new).as_deref()), (Some("of somebody"), Some("new")));
            fs::remove_file(&path).unwrap();
            fs::rename(root.path().join("moved"), &path).unwrap();
            // What has the name of the new one by now.
            let made = Pinned::unlinked(&new).unwrap();
            fs::rename(&new, root.path().join("made")).unwrap();
            std::os::unix::fs::symlink(&other, &new).unwrap();
            let only = Some(&made);
            Publication { new: &new, path: &path, aside: &aside, exchange, only, replaced }.publish().unwrap_err();
            assert!(fs::symlink_metadata(&new).unwrap().is_symlink() && !aside.exists());
            assert_eq!(what(&path).as_deref(), Some("looked at"));
            fs::remove_file(&new).unwrap();
            fs::rename(root.path().join("made"), &new).unwrap();
            Publication { new: &new, path: &path, aside: &aside, exchange, only, replaced }.publish().unwrap();
            assert_eq!((what(&path).as_deref(), what(&aside).as_deref()), (Some("new"), Some("looked at")));
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
