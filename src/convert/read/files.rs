//! Files of a source, on a disk or in a store.

use std::fmt;
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
use crate::store::pinned::identity;

/// A file of a source.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    place: Where,
    /// Name below the source, with `/`.
    pub(crate) name: Arc<str>,
    pub(crate) bytes: u64,
    /// What must not change for a conversion to be resumed, or to count as made from the same source.
    pub(crate) stamp: String,
}

#[derive(Debug, Clone)]
enum Where {
    /// A local file, with its state.
    Local(PathBuf, State),
    /// Boxed, because most of the many files are local.
    Stored(Box<Stored>),
}

/// What must not change of a file while it is read. A file that is copied over it, or over its name, may have its size and modification
/// time: archives and mirrors give them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    bytes: u64,
    /// Modification time in nanoseconds since 1970.
    modified: u128,
    /// The time that no program sets. Access rights and links set it too, and nothing but reading tells them from new content.
    touched: i128,
    /// Device and number of the file.
    file: (u64, u64),
}

impl State {
    fn of(metadata: &fs::Metadata) -> Self {
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = modified.map_or(0, |since| since.as_nanos());
        Self { bytes: metadata.len(), modified, touched: touched(metadata), file: identity(metadata) }
    }

    /// Without the number, which is another one where the same files are mounted elsewhere.
    fn stamp(&self) -> String {
        let Self { bytes, modified, touched, .. } = self;
        format!("{bytes}-{modified}-{touched}")
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, inode) = self.file;
        write!(f, "{}-{device}:{inode}", self.stamp())
    }
}

/// The time of the last change of any kind of the file at `path`, in nanoseconds since 1970; none if it cannot be looked up.
pub(crate) fn last_touched(path: &Path) -> Option<i128> {
    fs::metadata(path).ok().map(|metadata| touched(&metadata))
}

/// The time of the last change of any kind, in nanoseconds since 1970.
#[cfg(unix)]
fn touched(metadata: &fs::Metadata) -> i128 {
    use std::os::unix::fs::MetadataExt as _;
    i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn touched(_: &fs::Metadata) -> i128 {
    0
}

/// Returns the error for a file that should exist.
pub(crate) fn missing(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::NotFound { what: format!("{}", path.display()), hint: String::new() };
    }
    failed("open", path, error)
}

/// Returns true for names that no reader takes for data.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

impl Found {
    /// Describes the file at `path` under the name `name`.
    pub(crate) fn at(path: &Path, name: &str) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|error| missing(path, error))?;
        if !metadata.is_file() && !metadata.is_dir() {
            // Opening a pipe waits for whoever writes to it.
            return Err(failed("open", path, "it is no regular file"));
        }
        let state = State::of(&metadata);
        let place = Where::Local(path.to_owned(), state);
        Ok(Self { place, name: name.into(), bytes: state.bytes, stamp: state.stamp() })
    }

    /// Describes the file at `path` under its own name.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Self::at(path, &path.file_name().unwrap_or_default().to_string_lossy())
    }

    /// Describes an object of a store.
    pub(crate) fn stored(stored: Stored) -> Self {
        let (name, version) = (Arc::clone(stored.object.name()), stored.object.stamp());
        let (bytes, stamp) = (version.size, version.to_string());
        Self { place: Where::Stored(Box::new(stored)), name, bytes, stamp }
    }

    /// Reads a small file whole.
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

    /// Reads each of the files, which are records, whole; those of a store are read concurrently.
    ///
    /// # Errors
    /// `Limit`, `Store`.
    pub(crate) fn contents(all: &[Self], limits: &Limits) -> Result<Vec<Bytes>> {
        all.iter().try_for_each(|found| limits.record(&found.name, || "its content".to_owned(), found.bytes))?;
        let stored = all.iter().map(|found| match &found.place {
            Where::Local(..) => None,
            Where::Stored(stored) => Some(&**stored),
        });
        match stored.collect::<Option<Vec<_>>>() {
            Some(stored) => Stored::read(&stored),
            None => all.iter().map(|found| Ok(found.content(limits.max_record_bytes)?.into())).collect(),
        }
    }

    /// Returns its address for display.
    fn shown(&self) -> String {
        match &self.place {
            Where::Local(path, _) => path.display().to_string(),
            Where::Stored(stored) => stored.object.url(),
        }
    }

    /// Returns its first bytes, eight or all.
    pub(crate) fn start(&self) -> Result<Vec<u8>> {
        self.reader(0)?.start().map_err(|error| self.failed("read", error))
    }

    /// Returns its path, if it is local.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.place {
            Where::Local(path, _) => Some(path),
            Where::Stored(_) => None,
        }
    }

    /// Opens the file at `start`. If it is another file than the one found, or changes while it is read, reading fails with
    /// [`Error::SourceChanged`].
    pub(crate) fn reader(&self, start: u64) -> Result<Stream> {
        match &self.place {
            Where::Local(path, found) => {
                let file = File::open(path).map_err(|error| missing(path, error))?;
                let mut watched = Watched { file, name: Arc::clone(&self.name), found: *found };
                watched.check().map_err(|error| self.failed("read", error))?;
                if start > 0 {
                    watched.file.seek(SeekFrom::Start(start)).map_err(|error| failed("read", path, error))?;
                }
                Ok(Stream::File(watched))
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

/// Returns how many of `files`, from the first on, make a batch of rows that are a file each.
pub(crate) fn batch(files: &[Found]) -> usize {
    let mut before = 0;
    let fits = |file: &&Found| {
        let begins = before < BATCH_BYTES as u64;
        before += file.bytes;
        begins
    };
    files.iter().take(BATCH_ROWS).take_while(fits).count()
}

/// Returns the paths of the local ones of these files.
pub(crate) fn paths(files: &[Found]) -> Vec<PathBuf> {
    files.iter().filter_map(Found::path).map(ToOwned::to_owned).collect()
}

/// An open file that is compared with its state when the source was opened.
pub(crate) struct Watched {
    file: File,
    name: Arc<str>,
    found: State,
}

impl Watched {
    fn check(&self) -> io::Result<()> {
        let now = State::of(&self.file.metadata()?);
        if now == self.found {
            return Ok(());
        }
        let (file, was, now) = (self.name.to_string(), self.found.to_string(), now.to_string());
        Err(io::Error::other(Error::SourceChanged { file, was, now }))
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        // Checked after reading: a writer sets the time before it changes the bytes.
        self.check()?;
        Ok(read)
    }
}

/// Bytes of a file, read sequentially.
pub(crate) enum Stream {
    File(Watched),
    Stored(Box<remote::Reader>),
}

impl Stream {
    /// Returns the first bytes, eight or all, without consuming them; to be called before reading.
    pub(crate) fn start(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => {
                let mut start = Vec::with_capacity(8);
                file.take(8).read_to_end(&mut start)?;
                file.file.seek(SeekFrom::Start(0))?;
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

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_file_of_the_same_size_and_time_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.csv");
        let made = |text: &str| {
            fs::write(&path, text).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
            Found::of(&path).unwrap()
        };
        let first = made("version 1");
        assert_eq!(first.stamp, Found::of(&path).unwrap().stamp);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_ne!(first.stamp, made("version 2").stamp, "written again");
        let third = directory.path().join("z");
        fs::write(&third, "version 3").unwrap();
        OpenOptions::new().write(true).open(&third).unwrap().set_modified(UNIX_EPOCH).unwrap();
        fs::rename(third, &path).unwrap();
        assert_ne!(first.stamp, Found::of(&path).unwrap().stamp, "renamed over it");
    }

    #[test]
    #[cfg(unix)]
    fn a_file_that_is_replaced_by_one_of_its_size_and_time_is_read_no_further() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.csv");
        let write = |path: &Path, byte: u8| {
            let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path).unwrap();
            file.write_all(&[byte; 100]).unwrap();
            file.set_modified(UNIX_EPOCH).unwrap();
        };
        let renamed = || {
            let other = directory.path().join("other");
            write(&other, b'y');
            fs::rename(other, &path).unwrap();
        };
        let in_place = || write(&path, b'y');
        let linked = || fs::hard_link(&path, directory.path().join("link")).unwrap();
        let permitted = || fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let changes: [(&str, &dyn Fn()); 4] = [
            ("renamed over it", &renamed),
            ("written in place", &in_place),
            // Nothing but reading tells these from new content.
            ("linked", &linked),
            ("permitted", &permitted),
        ];
        for (what, change) in changes {
            write(&path, b'x');
            let found = Found::of(&path).unwrap();
            let mut open = found.reader(0).unwrap();
            let mut buffer = [0; 8];
            open.read_exact(&mut buffer).unwrap();
            // The clock of a file system may stand still for some milliseconds.
            std::thread::sleep(std::time::Duration::from_millis(20));
            change();
            let changed = |error: Error| match error {
                Error::SourceChanged { was, now, .. } => assert_ne!(was, now, "{what}"),
                other => panic!("{what}: {other}"),
            };
            changed(found.reader(0).err().unwrap());
            // One that is open and lost its name has another time of change by that.
            changed(found.failed("read", open.read(&mut buffer).unwrap_err()));
        }
    }

    #[test]
    fn a_file_that_changes_is_read_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.csv");
        let append = || OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        let changed = |outcome: Result<usize>| {
            let error = outcome.unwrap_err();
            assert!(matches!(&error, Error::SourceChanged { file, .. } if file == "x.csv"), "{error}");
        };
        fs::write(&path, [b'x'; 100]).unwrap();
        // During reading, even if the change is the last event.
        for before in [8, 100] {
            fs::write(&path, [b'x'; 100]).unwrap();
            let found = Found::of(&path).unwrap();
            let mut reader = found.reader(0).unwrap();
            let mut buffer = vec![0; before];
            reader.read_exact(&mut buffer).unwrap();
            append();
            changed(reader.read(&mut buffer).map_err(|error| found.failed("read", error)));
        }
        // Between finding and opening it: rewritten, or replaced by another file.
        let found = Found::of(&path).unwrap();
        append();
        changed(found.reader(0).map(|_| 0));
        let found = Found::of(&path).unwrap();
        fs::write(directory.path().join("new"), [b'y'; 7]).unwrap();
        fs::rename(directory.path().join("new"), &path).unwrap();
        changed(found.content(1000).map(|content| content.len()));
    }
}
