//! A file of this machine, open: the user's own, or the copy of an object in a cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::super::cache::Held;
use super::super::positional::read_at;
use super::super::stamp::Stamp;
use crate::error::{Error, Place, Result};

/// See the module.
#[derive(Debug)]
pub(super) enum Here {
    /// The user's.
    Own(fs::File, PathBuf),
    /// An object's, which stays in the cache while this lives.
    Copy(Held),
}

impl Here {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Config`] for a directory, [`Error::Store`].
    pub(super) fn open(path: &Path) -> Result<(Self, Stamp)> {
        let shown = path.display().to_string();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::NotFound { what: format!("file {shown}"), hint: String::new() },
            _ => Error::Store { operation: "open".to_owned(), url: shown.clone(), source: error.into() },
        };
        let path = std::path::absolute(path).map_err(failed)?;
        // Before it is opened: opening a pipe waits for whoever writes to it.
        if !fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(Error::config("urls", format!("{shown} is no regular file; give the address of one file")));
        }
        let file = fs::File::open(&path).map_err(failed)?;
        let stamp = Stamp::of_file(&file.metadata().map_err(failed)?);
        Ok((Self::Own(file, path), stamp))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Own(_, path) => path,
            Self::Copy(held) => held.path(),
        }
    }

    pub(super) fn file(&self) -> &fs::File {
        match self {
            Self::Own(file, _) => file,
            Self::Copy(held) => held.file(),
        }
    }

    /// Up to `length` bytes from `at` on, of the version `pinned`.
    ///
    /// # Errors
    /// [`Error::SourceChanged`] if it was written to since, [`Error::Corrupt`] if a copy was; [`Error::Store`].
    pub(super) fn read(&self, pinned: &Stamp, at: u64, length: usize) -> Result<Bytes> {
        let failed = |error: io::Error| Error::Store {
            operation: format!("read bytes {at}..{}", at.saturating_add(length as u64)),
            url: self.path().display().to_string(),
            source: error.into(),
        };
        let mut bytes = vec![0; length];
        let read = read_at(self.file(), &mut bytes, at).map_err(failed)?;
        let found = self.file().metadata().map_err(failed)?;
        match self {
            Self::Own(_, path) if Stamp::of_file(&found) != *pinned => {
                let (was, now) = (pinned.to_string(), Stamp::of_file(&found).to_string());
                Err(Error::SourceChanged { file: path.display().to_string(), was, now })
            }
            Self::Copy(held) if found.len() != pinned.size => {
                let what = "this copy of an object in the cache was written to; open the file again".to_owned();
                let file = held.path().display().to_string();
                Err(Error::Corrupt { place: Place::file(file), what, source: None })
            }
            _ => {
                bytes.truncate(read);
                Ok(bytes.into())
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("x.parquet");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/null"), folder.path()] {
            let (sender, opened) = mpsc::channel();
            let path = path.to_owned();
            std::thread::spawn(move || drop(sender.send(Here::open(&path))));
            let error = opened.recv_timeout(Duration::from_secs(60)).unwrap().unwrap_err();
            assert!(matches!(error, Error::Config { option: "urls", .. }), "{error}");
        }
    }
}
