//! A directory that is meant by what it is, not by its name, which another user may give to something else meanwhile.
//!
//! ```text
//!   /shared/out/x            each step of the path is looked up anew, and may be a link by now
//!   /proc/self/fd/7/x        the file x of the very directory that was opened as 7
//! ```
//! So whatever is written, renamed or deleted by a path through the descriptor stays in that directory. Names in it are as safe as
//! its own permissions make them. Only Linux has such paths; elsewhere a path is what it is.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that is in a new directory for a moment, and stays where its process is killed then.
pub(crate) const PROBE: &str = ".bowstring-owner";

/// Where Linux has the open files of this process.
const OPEN: &str = "/proc/self/fd";

/// See the module. Paths through it are good for as long as one of its copies lives.
#[derive(Debug, Clone)]
pub(crate) struct Pinned {
    at: PathBuf,
    open: Option<Arc<File>>,
}

impl Pinned {
    /// The directory that `path` leads to now; links are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::opened(path, true)
    }

    /// The directory `path`, if it is one: a link is an error.
    pub(crate) fn unlinked(path: &Path) -> io::Result<Self> {
        Self::opened(path, false)
    }

    /// As [`unlinked`](Self::unlinked), of a directory that this process has made, or one like it: if it has another owner, that one has put it
    /// there, and could exchange what will be in it.
    pub(crate) fn own(path: &Path) -> io::Result<Self> {
        let pinned = Self::unlinked(path)?;
        pinned.check_owner(path)?;
        Ok(pinned)
    }

    #[cfg(target_os = "linux")]
    fn opened(path: &Path, follows: bool) -> io::Result<Self> {
        use std::os::fd::AsRawFd;

        use rustix::fs::{Mode, OFlags, open};
        let mut flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follows);
        let file = File::from(open(path, flags, Mode::empty())?);
        let at = Path::new(OPEN).join(file.as_raw_fd().to_string());
        // Some containers have no /proc, or that of another one.
        let is_there = std::fs::metadata(&at).and_then(|found| Ok(identity(&found) == identity(&file.metadata()?)));
        match is_there {
            Ok(true) => Ok(Self { at, open: Some(Arc::new(file)) }),
            _ => Ok(Self { at: path.to_owned(), open: None }),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn opened(path: &Path, follows: bool) -> io::Result<Self> {
        let found = if follows { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) }?;
        if !found.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { at: path.to_owned(), open: None })
    }

    /// Compares the owner with that of a file made in it: a file system of a network may say that all of this user is somebody else's.
    #[cfg(unix)]
    fn check_owner(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt;
        let probe = self.at.join(PROBE);
        // A process that was killed may have left one.
        match std::fs::remove_file(&probe) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let own = File::create_new(&probe)?.metadata()?.uid();
        std::fs::remove_file(&probe)?;
        let owner = std::fs::metadata(&self.at)?.uid();
        if owner != own {
            let problem = format!("{} is not of this user: user {owner} has put it there", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        Ok(())
    }

    #[cfg(not(unix))]
    fn check_owner(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    /// A path of it that its name has no part in.
    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// Its identity.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        match &self.open {
            Some(file) => file.metadata(),
            None => std::fs::metadata(&self.at),
        }
        .map(|found| identity(&found))
    }
}

/// Returns true if the name `path` still means the open `file`, or nothing says otherwise.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let found = file.metadata().and_then(|own| Ok((own, std::fs::symlink_metadata(path)?)));
    found.is_ok_and(|(own, found)| identity(&own) == identity(&found))
}

/// The identity of files where the system tells none.
pub(crate) const NOBODY: (u64, u64) = (0, 0);

/// Device and inode.
#[cfg(unix)]
pub(crate) fn identity(meta: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

#[cfg(not(unix))]
pub(crate) fn identity(_: &Metadata) -> (u64, u64) {
    NOBODY
}

/// `path` as people know it: by the present name of its directory, if it is a path through an open one.
pub(crate) fn shown(path: &Path) -> PathBuf {
    let Ok(rest) = path.strip_prefix(OPEN) else { return path.to_owned() };
    let mut parts = rest.components();
    let Some(number) = parts.next() else { return path.to_owned() };
    let named = std::fs::read_link(Path::new(OPEN).join(number));
    named.map_or_else(
        |_| path.to_owned(),
        |named| if parts.as_path() == Path::new("") { named } else { named.join(parts) },
    )
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_path_through_a_directory_leads_there_whatever_has_its_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let [own, other, moved] = ["own", "other", "moved"].map(|name| root.join(name));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&other).unwrap();
        let pinned = Pinned::own(&own).unwrap();
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "the probe is gone");
        assert_eq!(shown(&pinned.at().join("a/b")), own.join("a/b"));
        fs::rename(&own, &moved).unwrap();
        symlink(&other, &own).unwrap();
        fs::write(pinned.at().join("x"), "1").unwrap();
        assert!(moved.join("x").exists() && !other.join("x").exists());
        // People see the name that it has now.
        assert_eq!(shown(&pinned.at().join("x")), moved.join("x"));
        assert_eq!(pinned.identity().unwrap(), identity(&fs::metadata(&moved).unwrap()));
        assert!(Pinned::unlinked(&own).is_err() && Pinned::own(&own).is_err(), "a link is no directory");
        assert_eq!(Pinned::open(&own).unwrap().identity().unwrap(), identity(&fs::metadata(&other).unwrap()));
        assert!(Pinned::open(&root.join("nowhere")).is_err());
        assert_eq!(shown(Path::new("/a/b")), Path::new("/a/b"));
        // A copy keeps it open.
        let copy = pinned.clone();
        drop(pinned);
        assert!(copy.at().join("x").exists());
    }

    #[test]
    fn a_directory_of_another_user_is_not_ones_own() {
        let root = tempfile::tempdir().unwrap();
        let theirs = root.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        // Only root may give it away.
        if chown(&theirs, Some(12_345), None).is_err() {
            return;
        }
        let error = Pinned::own(&theirs).unwrap_err();
        assert!(error.to_string().contains("12345"), "{error}");
        assert!(Pinned::unlinked(&theirs).is_ok());
    }
}
