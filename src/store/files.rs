//! The steps on a local file system, any part of which a crash may leave: those of the system, or of a disk that tests crash at each step.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::directory::flush_names;
use super::pinned::Pinned;

/// Files and directories, by path. Errors are those of the system.
pub(crate) trait Files: fmt::Debug + Send + Sync {
    /// The path without links and dots.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf>;

    /// A path of the directory `path`, which is no link, in which its name has no part; good for as long as what comes with it lives.
    fn pinned(&self, path: &Path) -> io::Result<(PathBuf, Option<Pinned>)> {
        Ok((path.to_owned(), None))
    }

    /// Names in a directory, sorted. Names that are not Unicode are not ours.
    fn names(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Returns true if there is a directory, perhaps behind a link.
    fn is_directory(&self, path: &Path) -> bool;

    /// The content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The target of a link.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;

    /// Makes a directory, which must not be there.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory and those above it, unless they exist.
    fn create_directories(&self, path: &Path) -> io::Result<()>;

    /// Writes a new file whole, and flushes its content to the disk.
    fn put_file(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Gives a file another name.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a symbolic link at `at`.
    fn symlink(&self, target: &Path, at: &Path) -> io::Result<()>;

    /// Moves a name, in place of a file or link that has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file or a link.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory with its content.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// Brings the names in a directory to the disk; only Unix can, and only there is it needed.
    fn flush(&self, directory: &Path) -> io::Result<()>;
}

/// The files of the system.
#[derive(Debug)]
pub(crate) struct SystemFiles;

impl Files for SystemFiles {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn pinned(&self, path: &Path) -> io::Result<(PathBuf, Option<Pinned>)> {
        Pinned::unlinked(path).map(|pinned| (pinned.at().to_owned(), Some(pinned)))
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        let all = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>)?;
        let mut names: Vec<String> = all.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_directories(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn put_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(path)?;
        file.write_all(content)?;
        file.sync_all()
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    #[cfg(unix)]
    fn symlink(&self, target: &Path, at: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, at)
    }

    #[cfg(not(unix))]
    fn symlink(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "it needs symbolic links"))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn flush(&self, directory: &Path) -> io::Result<()> {
        flush_names(directory)
    }
}
