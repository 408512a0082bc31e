//! A directory that appears at once or not at all: filled under a hidden name beside its destination, then renamed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::error::{Error, Result};

/// The hidden directory. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(super) struct Staging {
    directory: PathBuf,
    destination: PathBuf,
    parent: PathBuf,
    overwrite: bool,
    published: bool,
}

impl Staging {
    /// A new hidden directory beside `destination`, whose parents are made.
    pub(super) fn create(destination: &Path, overwrite: bool) -> Result<Self> {
        // A link is followed: its target is what gets replaced, and where the room must be.
        let destination = match fs::canonicalize(destination) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => destination.to_owned(),
            outcome => outcome.map_err(|error| failed("open", destination, error))?,
        };
        let Some(name) = destination.file_name().map(ToOwned::to_owned) else {
            return Err(Error::config("path", format!("{} names no directory", destination.display())));
        };
        let parent = match destination.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        vacant(&destination, overwrite)?;
        fs::create_dir_all(&parent).map_err(|error| failed("create", &parent, error))?;
        let directory = hidden(&parent, &name, "partial", |path| fs::create_dir(path))?;
        Ok(Self { directory, destination, parent, overwrite, published: false })
    }

    /// Where the file `name` belongs until it is published.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes a new file.
    pub(super) fn file(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::create_new(&path).map_err(|error| failed("create", &path, error))
    }

    /// Gives the directory its name. `_SUCCESS` is written last before that, and everything is on the disk.
    pub(super) fn publish(mut self) -> Result<PathBuf> {
        let success = self.file("_SUCCESS")?;
        success.sync_all().map_err(|error| failed("flush", &self.path("_SUCCESS"), error))?;
        flush(&self.directory)?;
        // Somebody may have been faster.
        vacant(&self.destination, self.overwrite)?;
        let mut old = None;
        if self.overwrite && fs::symlink_metadata(&self.destination).is_ok() {
            let name = self.destination.file_name().unwrap_or_default();
            old = Some(hidden(&self.parent, name, "old", |path| fs::rename(&self.destination, path))?);
        }
        if let Err(error) = fs::rename(&self.directory, &self.destination) {
            if let Some(old) = &old {
                // Back to what was there; if even that fails, it is still under its hidden name, which the error gives.
                fs::rename(old, &self.destination).map_err(|error| failed("restore", old, error))?;
            }
            return Err(failed("publish", &self.destination, error));
        }
        self.published = true;
        flush(&self.parent)?;
        if let Some(old) = old {
            fs::remove_dir_all(&old).map_err(|error| failed("remove", &old, error))?;
        }
        Ok(self.destination.clone())
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

/// Checks that `destination` may become a dataset.
fn vacant(destination: &Path, overwrite: bool) -> Result<()> {
    match fs::read_dir(destination) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("list", destination, error)),
        Ok(_) if overwrite => Ok(()),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Ok(());
            }
            let problem = format!("{} is not empty; set overwrite to replace what is there", destination.display());
            Err(Error::config("overwrite", problem))
        }
    }
}

/// Does `make` with the first free hidden path for `name`.
fn hidden(parent: &Path, name: &std::ffi::OsStr, end: &str, make: impl Fn(&Path) -> io::Result<()>) -> Result<PathBuf> {
    let mut number = 0;
    loop {
        let mut own = OsString::from(".");
        own.push(name);
        own.push(format!(".{}-{number}.{end}", process::id()));
        let path = parent.join(own);
        match make(&path) {
            Ok(()) => return Ok(path),
            Err(error) if taken(&error) && number < 1_000 => number += 1,
            Err(error) => return Err(failed("create", &path, error)),
        }
    }
}

fn taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty)
}

/// Brings the names in `directory` to the disk.
fn flush(directory: &Path) -> Result<()> {
    // Only Unix can open a directory, and only there is it needed.
    if cfg!(unix) {
        let opened = File::open(directory).and_then(|directory| directory.sync_all());
        opened.map_err(|error| failed("flush", directory, error))?;
    }
    Ok(())
}

/// A failure of the disk.
pub(super) fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::Store { operation: operation.to_owned(), url: path.display().to_string(), source: Box::new(error) }
}
