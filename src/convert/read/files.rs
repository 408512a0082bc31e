//! Files of a source, on a disk or in a store.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::remote::{self, Stored};
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::error::{Error, Result};
use crate::store::directory::failed;

/// A file of a source.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    place: Where,
    /// Its name below the source, with `/`.
    pub(crate) name: Arc<str>,
    pub(crate) bytes: u64,
    /// Size and time of change: what must stay for a conversion to be resumed.
    pub(crate) stamp: String,
}

#[derive(Debug, Clone)]
enum Where {
    Local(PathBuf),
    /// Boxed, since most files are local, and there are many.
    Stored(Box<Stored>),
}

/// A file that should be there.
pub(crate) fn missing(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::NotFound { what: format!("{}", path.display()), hint: String::new() };
    }
    failed("open", path, error)
}

/// Names that no reader takes for data.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

impl Found {
    /// The file at `path`, to be called `name`.
    pub(crate) fn at(path: &Path, name: &str) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|error| missing(path, error))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let stamp = format!("{}-{}", metadata.len(), changed.map_or(0, |since| since.as_nanos()));
        Ok(Self { place: Where::Local(path.to_owned()), name: name.into(), bytes: metadata.len(), stamp })
    }

    /// The file at `path`, by its own name.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Self::at(path, &path.file_name().unwrap_or_default().to_string_lossy())
    }

    /// An object of a store.
    pub(crate) fn stored(stored: Stored) -> Self {
        let (name, version) = (Arc::clone(stored.object.name()), stored.object.stamp());
        let (bytes, stamp) = (version.size, version.to_string());
        Self { place: Where::Stored(Box::new(stored)), name, bytes, stamp }
    }

    /// All of a small file.
    ///
    /// # Errors
    /// `Limit` beyond `most` bytes, `Store`.
    pub(crate) fn content(&self, most: u64) -> Result<Vec<u8>> {
        if self.bytes > most {
            let (what, asked) = (self.shown(), self.bytes);
            return Err(Error::limit(what, asked, most, "limits.max_index_bytes"));
        }
        let mut content = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        let read = self.reader(0)?.take(most).read_to_end(&mut content);
        read.map_err(|error| self.failed("read", error))?;
        Ok(content)
    }

    /// All of each of these files, which are records; those of a store are read at the same time.
    ///
    /// # Errors
    /// `Limit`, `Store`.
    pub(crate) fn contents(all: &[Self], limits: &Limits) -> Result<Vec<Bytes>> {
        all.iter().try_for_each(|found| limits.record(&found.name, || "its content".to_owned(), found.bytes))?;
        let stored = all.iter().map(|found| match &found.place {
            Where::Local(_) => None,
            Where::Stored(stored) => Some(&**stored),
        });
        match stored.collect::<Option<Vec<_>>>() {
            Some(stored) => Stored::read(&stored),
            None => all.iter().map(|found| Ok(found.content(limits.max_record_bytes)?.into())).collect(),
        }
    }

    /// Its address, for people.
    fn shown(&self) -> String {
        match &self.place {
            Where::Local(path) => path.display().to_string(),
            Where::Stored(stored) => stored.object.url(),
        }
    }

    /// Its first bytes, eight or all.
    pub(crate) fn start(&self) -> Result<Vec<u8>> {
        self.reader(0)?.start().map_err(|error| self.failed("read", error))
    }

    /// The bytes from `start` on.
    pub(crate) fn reader(&self, start: u64) -> Result<Stream> {
        match &self.place {
            Where::Local(path) => {
                let mut file = File::open(path).map_err(|error| missing(path, error))?;
                if start > 0 {
                    file.seek(SeekFrom::Start(start)).map_err(|error| failed("read", path, error))?;
                }
                Ok(Stream::File(file))
            }
            Where::Stored(stored) => Ok(Stream::Stored(Box::new(stored.reader(start)))),
        }
    }

    pub(crate) fn failed(&self, operation: &str, error: io::Error) -> Error {
        match remote::unwrap(error) {
            Ok(error) => Error::Store { operation: operation.to_owned(), url: self.shown(), source: error.into() },
            Err(own) => own,
        }
    }
}

/// How many of `files`, from the first on, make a batch of rows that each are a file.
pub(crate) fn batch(files: &[Found]) -> usize {
    let mut before = 0;
    let fits = |file: &&Found| {
        let begins = before < BATCH_BYTES as u64;
        before += file.bytes;
        begins
    };
    files.iter().take(BATCH_ROWS).take_while(fits).count()
}

/// Bytes of a file, forward.
pub(crate) enum Stream {
    File(File),
    Stored(Box<remote::Reader>),
}

impl Stream {
    /// The first bytes, eight or all, which stay to be read; before anything was.
    pub(crate) fn start(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => {
                let mut start = Vec::with_capacity(8);
                file.take(8).read_to_end(&mut start)?;
                file.seek(SeekFrom::Start(0))?;
                Ok(start)
            }
            Self::Stored(reader) => Ok(reader.peek()?.iter().take(8).copied().collect()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(buffer),
            Self::Stored(reader) => reader.read(buffer),
        }
    }
}
