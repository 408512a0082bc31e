//! A directory that appears at once or not at all: filled under a hidden name beside its destination, then renamed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::error::Result;
use crate::store::directory::{Destination, Replace, SUCCESS, failed, remove};
use crate::store::pinned::Pinned;
use crate::store::publish::{Publication, put_file};

/// The hidden directory. Dropped before it is published, it is removed.
#[derive(Debug)]
pub(super) struct Staging {
    /// Its name.
    directory: PathBuf,
    /// It, whatever has its name meanwhile.
    pinned: Pinned,
    destination: Destination,
    replace: Replace,
    published: bool,
}

impl Staging {
    /// A new hidden directory beside `destination`, whose parents are made.
    pub(super) fn create(destination: &Path, replace: Replace) -> Result<Self> {
        let destination = Destination::of(destination, "path")?;
        destination.vacant(replace)?;
        let destination = destination.pinned()?;
        let directory = hidden(&destination, "partial", |path| fs::create_dir(path))?;
        let pinned = Pinned::own(&directory).map_err(|error| failed("open", &directory, error))?;
        Ok(Self { directory, pinned, destination, replace, published: false })
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
        let aside = hidden(&self.destination, "old", |path| match fs::symlink_metadata(path) {
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
fn hidden(destination: &Destination, end: &str, make: impl Fn(&Path) -> io::Result<()>) -> Result<PathBuf> {
    let mut number = 0;
    loop {
        let mut own = OsString::from(".");
        own.push(&destination.name);
        own.push(format!(".{}-{number}.{end}", process::id()));
        let path = destination.parent.join(own);
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
