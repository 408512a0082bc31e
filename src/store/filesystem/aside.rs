//! A file of this machine that is written beside its name, and then takes it: a crash leaves what was there before, or all of it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::directory::{failed, flush_name};
use super::origins::missing;
use crate::error::{Error, Result};

/// The ending of its name meanwhile.
const ENDING: &str = ".saving";

/// Most bytes of its own name in that: names of 255 bytes are the longest that file systems have.
const LONGEST: usize = 200;

/// Attempts to find a name that nothing has.
const TRIES: usize = 1000;

/// See the module.
#[derive(Debug)]
pub(super) struct Aside {
    /// Locked, so that others see that its process lives.
    file: File,
    aside: PathBuf,
    path: PathBuf,
    is_done: bool,
}

/// The beginning of the names in which `path` is written.
fn start(path: &Path) -> Option<OsString> {
    let mut start = OsString::from(".");
    let name = path.file_name()?;
    match name.to_str().filter(|name| name.len() > LONGEST) {
        Some(long) => {
            let end = (0..=LONGEST).rev().find(|end| long.is_char_boundary(*end));
            start.push(long.get(..end.unwrap_or_default()).unwrap_or_default());
        }
        None => start.push(name),
    }
    start.push(".");
    Some(start)
}

/// Returns true for a name in which what begins with `start` was written: `.x.` also begins those of a file `x.pt`.
fn is_left(start: &OsStr, name: &OsStr) -> bool {
    let rest = name.as_encoded_bytes().strip_prefix(start.as_encoded_bytes());
    let number = rest.and_then(|rest| rest.strip_suffix(ENDING.as_bytes()));
    number.is_some_and(|number| number.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-'))
}

impl Aside {
    /// Begins to write what is to be at `path`. A link there is followed. What killed processes left of the same is removed.
    ///
    /// # Errors
    /// [`Error::Config`] for a directory, [`Error::NotFound`] if the directory above is not there, [`Error::Store`].
    pub(super) fn begin(path: &Path) -> Result<Self> {
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path),
            found => found,
        };
        let path = path.map_err(|error| failed("create", Path::new(""), error))?;
        let shown = path.display();
        let is_file = fs::metadata(&path).map_or(true, |found| found.is_file());
        let (Some(start), Some(above), true) = (start(&path), path.parent(), is_file) else {
            return Err(Error::config("urls", format!("{shown} is no regular file; give the address of one file")));
        };
        let entries = match fs::read_dir(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(missing(&above.display().to_string()));
            }
            entries => entries.map_err(|error| failed("list", above, error))?,
        };
        for left in entries.flatten().filter(|entry| is_left(&start, &entry.file_name())) {
            if let Ok(file) = File::open(left.path())
                && file.try_lock().is_ok()
            {
                drop(fs::remove_file(left.path()));
            }
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..TRIES {
            let mut name = start.clone();
            name.push(format!("{:x}-{:x}{ENDING}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let aside = above.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&aside) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("create", &aside, error)),
                Ok(file) => {
                    // Another one that saves the same may have taken it for a leftover before it was locked. Without locks, as on some
                    // network file systems, leftovers stay.
                    let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
                    if !is_taken && aside.exists() {
                        return Ok(Self { file, aside, path, is_done: false });
                    }
                }
            }
        }
        Err(failed("create", &path, io::Error::other("each name for it is taken")))
    }

    /// Adds the next bytes.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| failed("write", &self.aside, error))
    }

    /// Brings it to the disk, and gives it its name.
    ///
    /// # Errors
    /// [`Error::Store`]; what was there before is there still, unless only the way of the name to the disk failed.
    pub(super) fn publish(mut self) -> Result<()> {
        if let Ok(found) = fs::metadata(&self.path) {
            drop(self.file.set_permissions(found.permissions()));
        }
        self.file.sync_all().map_err(|error| failed("write", &self.aside, error))?;
        fs::rename(&self.aside, &self.path).map_err(|error| failed("publish", &self.path, error))?;
        self.is_done = true;
        flush_name(&self.path)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.is_done {
            drop(fs::remove_file(&self.aside));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_there_when_it_is_published_and_never_before() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.pt");
        let mut given_up = Aside::begin(&path).unwrap();
        given_up.write(b"half").unwrap();
        drop(given_up);
        assert!(names(root.path()).is_empty());
        let mut first = Aside::begin(&path).unwrap();
        first.write(b"first").unwrap();
        assert!(!path.exists());
        first.publish().unwrap();
        let (mut one, mut other) = (Aside::begin(&path).unwrap(), Aside::begin(&path).unwrap());
        one.write(b"one").unwrap();
        other.write(b"other").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        one.publish().unwrap();
        other.publish().unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), names(root.path())), (&b"other"[..], vec!["x.pt".to_owned()]));
    }

    #[test]
    fn a_name_may_be_as_long_as_the_file_system_takes_it() {
        let root = tempfile::tempdir().unwrap();
        for name in ["x".repeat(255), format!("y{}", "ä".repeat(127)), format!("{}.pt", "z".repeat(LONGEST))] {
            let path = root.path().join(&name);
            for content in ["old", "new"] {
                let mut file = Aside::begin(&path).unwrap();
                file.write(content.as_bytes()).unwrap();
                file.publish().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), content);
            }
        }
        assert_eq!(names(root.path()).len(), 3);
    }

    #[test]
    fn leftovers_of_the_same_file_go_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        for name in [".x.pt.1-0.saving", ".y.pt.1-0.saving", "x.pt.saving", ".x.pt.swp"] {
            fs::write(root.path().join(name), "x").unwrap();
        }
        drop(Aside::begin(&root.path().join("x")).unwrap());
        assert_eq!(names(root.path()).len(), 4);
        let file = Aside::begin(&root.path().join("x.pt")).unwrap();
        assert_eq!(names(root.path()).len(), 4);
        assert!(!root.path().join(".x.pt.1-0.saving").exists());
        drop(file);
        assert!(matches!(Aside::begin(root.path()), Err(Error::Config { .. })));
        assert!(matches!(Aside::begin(&root.path().join("none/x.pt")), Err(Error::NotFound { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let (path, link) = (root.path().join("x.pt"), root.path().join("latest"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("x.pt", &link).unwrap();
        let mut file = Aside::begin(&link).unwrap();
        file.write(b"new").unwrap();
        file.publish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
