//! Local files: found in one order, opened with what packs them undone, and every failure named.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Place, Result};
use crate::store::directory::failed;

/// What a source may ask for before it is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of one record, line, sample or file that is read whole. Default 64 MiB.
    pub max_record_bytes: u64,
    /// Columns of a dataset. Default 10,000.
    pub max_columns: usize,
    /// Files of a dataset. Default 10,000,000.
    pub max_files: usize,
    /// Bytes of an index or a description: `index.json`, `state.json`. Default 256 MiB.
    pub max_index_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_record_bytes: 64 << 20, max_columns: 10_000, max_files: 10_000_000, max_index_bytes: 256 << 20 }
    }
}

impl Limits {
    /// Refuses a record of `bytes` bytes.
    pub(super) fn record(&self, what: impl FnOnce() -> String, bytes: u64) -> Result<()> {
        if bytes <= self.max_record_bytes {
            return Ok(());
        }
        let limit = self.max_record_bytes;
        Err(Error::Limit { what: what(), asked: bytes, limit, option: "limits.max_record_bytes" })
    }

    /// Refuses `count` columns.
    pub(super) fn columns(&self, what: impl FnOnce() -> String, count: usize) -> Result<()> {
        if count <= self.max_columns {
            return Ok(());
        }
        let (asked, limit) = (count as u64, self.max_columns as u64);
        Err(Error::Limit { what: what(), asked, limit, option: "limits.max_columns" })
    }
}

/// Deepest directories that are looked into.
const MAX_DEPTH: usize = 16;

/// A file of a source.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// Where it is.
    pub(super) path: PathBuf,
    /// Its name below the source, with `/`.
    pub(super) name: Arc<str>,
    pub(super) bytes: u64,
    /// Size and time of change: what must stay for a conversion to be resumed.
    pub(super) stamp: String,
}

/// A file that should be there.
pub(super) fn missing(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::NotFound { what: format!("{}", path.display()), hint: String::new() };
    }
    failed("open", path, error)
}

/// Names that no reader takes for data.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

impl Found {
    /// The file at `path`, to be called `name`.
    pub(super) fn at(path: &Path, name: &str) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|error| missing(path, error))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let stamp = format!("{}-{}", metadata.len(), changed.map_or(0, |since| since.as_nanos()));
        Ok(Self { path: path.to_owned(), name: name.into(), bytes: metadata.len(), stamp })
    }
}

/// The files below `root` whose names `accept` takes, by name; `root` itself if it is a file. Hidden names are passed over, and
/// linked directories are not followed.
pub(super) fn list(root: &Path, limits: &Limits, accept: &dyn Fn(&str) -> bool) -> Result<Vec<Found>> {
    let metadata = fs::metadata(root).map_err(|error| missing(root, error))?;
    if metadata.is_file() {
        let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Ok(vec![Found::at(root, &name)?]);
    }
    let mut found = Vec::new();
    descend(root, "", 0, limits, accept, &mut found)?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn descend(
    directory: &Path,
    prefix: &str,
    depth: usize,
    limits: &Limits,
    accept: &dyn Fn(&str) -> bool,
    found: &mut Vec<Found>,
) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(|error| failed("list", directory, error))? {
        let entry = entry.map_err(|error| failed("list", directory, error))?;
        let Ok(name) = entry.file_name().into_string() else {
            let what = format!("the file name {} below {}", entry.file_name().display(), directory.display());
            return Err(Error::Unsupported { what, hint: "names must be UTF-8".into() });
        };
        if is_hidden(&name) {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| failed("list", &path, error))?;
        let full = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if kind.is_dir() {
            if depth >= MAX_DEPTH {
                let what = format!("directories below {}", path.display());
                let (asked, limit) = (depth as u64 + 1, MAX_DEPTH as u64);
                return Err(Error::Limit { what, asked, limit, option: "the depth of directories" });
            }
            descend(&path, &full, depth + 1, limits, accept, found)?;
        } else if accept(&full) && fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            if found.len() >= limits.max_files {
                let (asked, limit) = (found.len() as u64 + 1, limits.max_files as u64);
                let what = format!("files below {}", directory.display());
                return Err(Error::Limit { what, asked, limit, option: "limits.max_files" });
            }
            found.push(Found::at(&path, &full)?);
        }
    }
    Ok(())
}

/// A small file as a whole.
pub(super) fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|error| missing(path, error))?;
    let bytes = file.metadata().map_err(|error| failed("read", path, error))?.len();
    if bytes > most {
        let what = path.display().to_string();
        return Err(Error::Limit { what, asked: bytes, limit: most, option: "limits.max_index_bytes" });
    }
    let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    file.take(most).read_to_end(&mut content).map_err(|error| failed("read", path, error))?;
    Ok(content)
}

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packed {
    Plain,
    Gzip,
    Zlib,
    Zstd,
}

impl Packed {
    /// By the first bytes. `zlib` says whether its weak mark counts.
    fn of(start: &[u8], zlib: bool) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] if zlib => Self::Zlib,
            _ => Self::Plain,
        }
    }
}

/// Counts what is read of the file itself.
struct Counted {
    file: File,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A file that is read from its start to its end, unpacked on the way. Nothing of it is in memory but a buffer.
pub(super) struct Input {
    reader: BufReader<Box<dyn Read + Send>>,
    count: Arc<AtomicU64>,
    name: Arc<str>,
    path: PathBuf,
    /// Bytes given out, after unpacking.
    offset: u64,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({} at byte {})", self.name, self.offset)
    }
}

impl Input {
    /// Opens a file; `zlib` says whether it may be packed with zlib, which other files can look like.
    pub(super) fn open(found: &Found, zlib: bool) -> Result<Self> {
        let mut start = [0; 4];
        let mut file = File::open(&found.path).map_err(|error| missing(&found.path, error))?;
        let mut len = 0;
        while let Some(rest) = start.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match file.read(rest).map_err(|error| failed("read", &found.path, error))? {
                0 => break,
                read => len += read,
            }
        }
        file.seek(SeekFrom::Start(0)).map_err(|error| failed("read", &found.path, error))?;
        Self::packed(found, file, Packed::of(start.get(..len).unwrap_or_default(), zlib))
    }

    /// Opens a file that is packed in a known way.
    pub(super) fn open_as(found: &Found, packed: Packed) -> Result<Self> {
        let file = File::open(&found.path).map_err(|error| missing(&found.path, error))?;
        Self::packed(found, file, packed)
    }

    fn packed(found: &Found, file: File, packed: Packed) -> Result<Self> {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, count: Arc::clone(&count) };
        let reader: Box<dyn Read + Send> = match packed {
            Packed::Plain => Box::new(counted),
            Packed::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(64 << 10, counted))),
            Packed::Zlib => Box::new(ZlibDecoder::new(BufReader::with_capacity(64 << 10, counted))),
            Packed::Zstd => {
                let mut decoder = zstd::Decoder::new(counted).map_err(|error| failed("open", &found.path, error))?;
                // A window beyond 128 MiB is a claim on memory.
                decoder.window_log_max(27).map_err(|error| failed("open", &found.path, error))?;
                Box::new(decoder)
            }
        };
        let reader = BufReader::with_capacity(256 << 10, reader);
        Ok(Self { reader, count, name: Arc::clone(&found.name), path: found.path.clone(), offset: 0 })
    }

    /// Goes on at `start`; only for files that are not packed.
    pub(super) fn range(found: &Found, start: u64) -> Result<Self> {
        let mut file = File::open(&found.path).map_err(|error| missing(&found.path, error))?;
        file.seek(SeekFrom::Start(start)).map_err(|error| failed("read", &found.path, error))?;
        let mut input = Self::packed(found, file, Packed::Plain)?;
        input.offset = start;
        Ok(input)
    }

    /// Bytes given out so far: where the next one is in the unpacked file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes read of the file itself.
    pub(super) fn consumed(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Damage at `offset`.
    pub(super) fn corrupt(&self, offset: u64, what: impl std::fmt::Display) -> Error {
        Error::corrupt(Place::file(Arc::clone(&self.name)), format!("byte {offset}: {what}"))
    }

    fn broken(&self, error: io::Error) -> Error {
        match error.kind() {
            // What the unpackers say of damaged bytes; the disk speaks otherwise.
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::Other => {
                let place = Place::file(Arc::clone(&self.name));
                Error::corrupt_by(place, format!("byte {}: its compression is damaged", self.offset), error)
            }
            _ => failed("read", &self.path, error),
        }
    }

    /// Fills `buffer`, or returns how much there was before the end.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut len = 0;
        while len < buffer.len() {
            match self.reader.read(&mut buffer[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        self.offset += len as u64;
        Ok(len)
    }

    /// Appends `bytes` bytes to `out`, growing it only by what is really there; returns how much there was before the end.
    pub(super) fn append(&mut self, bytes: u64, out: &mut Vec<u8>) -> Result<u64> {
        let read = (&mut self.reader).take(bytes).read_to_end(out).map_err(|error| self.broken(error))? as u64;
        self.offset += read;
        Ok(read)
    }

    /// Passes over `bytes` bytes; returns how much there was before the end.
    pub(super) fn skip(&mut self, bytes: u64) -> Result<u64> {
        let mut left = bytes;
        while left > 0 {
            let available = match self.reader.fill_buf() {
                Ok(buffer) => buffer.len(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broken(error)),
            };
            if available == 0 {
                break;
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(available);
            self.reader.consume(step);
            left -= step as u64;
        }
        self.offset += bytes - left;
        Ok(bytes - left)
    }

    /// The bytes that are there without reading further; empty at the end.
    pub(super) fn peek(&mut self) -> Result<&[u8]> {
        // Two calls: the first one's error would hold the borrow that the second returns.
        if let Err(error) = self.reader.fill_buf() {
            return Err(self.broken(error));
        }
        Ok(self.reader.buffer())
    }

    /// Takes `bytes` of what [`peek`](Self::peek) showed.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
    }

    /// Appends a line, its end included, to `out`; false at the end of the file.
    pub(super) fn line(&mut self, limits: &Limits, out: &mut Vec<u8>) -> Result<bool> {
        let started = self.offset;
        loop {
            let buffer = self.peek()?;
            if buffer.is_empty() {
                return Ok(self.offset > started);
            }
            let (step, ended) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (buffer.len(), false),
            };
            out.extend_from_slice(&buffer[..step]);
            self.consume(step);
            limits.record(|| format!("file {}, byte {started}: a line", self.name), self.offset - started)?;
            if ended {
                return Ok(true);
            }
        }
    }
}
