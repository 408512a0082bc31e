//! A file of a source, read sequentially and decompressed, with errors that name it.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brotli_decompressor::Decompressor;
use bzip2::bufread::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use super::files::{Found, Stream};
use super::remote;
use crate::convert::limits::Limits;
use crate::error::{Error, Place, Result};

/// Compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packed {
    Plain,
    Gzip,
    Zlib,
    Zstd,
    Bzip2,
    /// Cannot be detected from the first bytes.
    Brotli,
}

impl Packed {
    /// Detects it from the first bytes; zlib's weak mark counts only if `zlib` is set.
    fn of(start: &[u8], zlib: bool) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => Self::Bzip2,
            [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] if zlib => Self::Zlib,
            _ => Self::Plain,
        }
    }
}

/// Counts the bytes read of the file itself.
struct Counted {
    stream: Stream,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Streams of zlib one after another, to the end of the file: what follows a stream is another one, or an error, as with gzip.
struct MultiZlib<R> {
    inner: R,
    state: Decompress,
    /// True between two streams.
    between: bool,
}

impl<R: BufRead> MultiZlib<R> {
    fn new(inner: R) -> Self {
        Self { inner, state: Decompress::new(true), between: true }
    }
}

impl<R: BufRead> Read for MultiZlib<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let input = self.inner.fill_buf()?;
            let ended = input.is_empty();
            if buffer.is_empty() || ended && self.between {
                return Ok(0);
            }
            let (read, written) = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(input, buffer, FlushDecompress::None).map_err(io::Error::from)?;
            let read = (self.state.total_in() - read) as usize;
            let written = (self.state.total_out() - written) as usize;
            self.inner.consume(read);
            self.between = status == Status::StreamEnd;
            if self.between {
                self.state.reset(true);
            }
            if written > 0 {
                return Ok(written);
            }
            if !self.between && (ended || read == 0) {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends within a stream of zlib"));
            }
        }
    }
}

/// A file that is read sequentially and decompressed. Only a buffer of it is in memory.
pub(crate) struct Input {
    reader: BufReader<Box<dyn Read + Send>>,
    count: Arc<AtomicU64>,
    found: Found,
    /// Bytes returned, after decompression.
    offset: u64,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Input({} at byte {})", self.found.name, self.offset)
    }
}

impl Input {
    /// Opens a file; `zlib` permits compression with zlib, whose mark other files may resemble.
    pub(crate) fn open(found: &Found, zlib: bool) -> Result<Self> {
        let mut stream = found.reader(0)?;
        let start = stream.start().map_err(|error| found.failed("read", error))?;
        Self::packed(found, stream, Packed::of(&start, zlib))
    }

    /// Returns true if the first bytes show that a file is compressed, whatever its name.
    pub(crate) fn is_packed(found: &Found) -> Result<bool> {
        let mut stream = found.reader(0)?;
        let start = stream.start().map_err(|error| found.failed("read", error))?;
        Ok(Packed::of(&start, false) != Packed::Plain)
    }

    /// Opens a file with a known compression.
    pub(crate) fn open_as(found: &Found, packed: Packed) -> Result<Self> {
        Self::packed(found, found.reader(0)?, packed)
    }

    fn packed(found: &Found, stream: Stream, packed: Packed) -> Result<Self> {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Counted { stream, count: Arc::clone(&count) };
        let reader: Box<dyn Read + Send> = match packed {
            Packed::Plain => Box::new(counted),
            Packed::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(64 << 10, counted))),
            Packed::Zlib => Box::new(MultiZlib::new(BufReader::with_capacity(64 << 10, counted))),
            Packed::Bzip2 => Box::new(MultiBzDecoder::new(BufReader::with_capacity(64 << 10, counted))),
            Packed::Brotli => Box::new(Decompressor::new(counted, 64 << 10)),
            Packed::Zstd => {
                let mut decoder = zstd::Decoder::new(counted).map_err(|error| found.failed("open", error))?;
                // A window beyond 128 MiB would take too much memory.
                decoder.window_log_max(27).map_err(|error| found.failed("open", error))?;
                Box::new(decoder)
            }
        };
        let reader = BufReader::with_capacity(256 << 10, reader);
        Ok(Self { reader, count, found: found.clone(), offset: 0 })
    }

    /// Opens a file at `start`; only for files that are not compressed.
    pub(crate) fn range(found: &Found, start: u64) -> Result<Self> {
        let mut input = Self::packed(found, found.reader(start)?, Packed::Plain)?;
        input.offset = start;
        Ok(input)
    }

    /// Returns the bytes returned so far: the offset of the next one in the decompressed file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes read of the file itself.
    pub(crate) fn consumed(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.found.name
    }

    /// Returns an error about damage at `offset`.
    pub(crate) fn corrupt(&self, offset: u64, what: impl std::fmt::Display) -> Error {
        Error::corrupt(Place::file(Arc::clone(&self.found.name)), format!("byte {offset}: {what}"))
    }

    fn broken(&self, error: io::Error) -> Error {
        let error = match remote::unwrap(error) {
            Ok(error) => error,
            Err(own) => return own,
        };
        match error.kind() {
            // Decompressors report damaged bytes by these kinds; the disk uses others.
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::Other => {
                let place = Place::file(Arc::clone(&self.found.name));
                Error::corrupt_by(place, format!("byte {}: its compression is damaged", self.offset), error)
            }
            _ => self.found.failed("read", error),
        }
    }

    /// Fills `buffer`. Returns the number of bytes, fewer only at the end.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
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

    /// Appends `bytes` bytes to `out`, growing it only by bytes that exist. Returns the number of bytes, fewer only at the end.
    pub(crate) fn append(&mut self, bytes: u64, out: &mut Vec<u8>) -> Result<u64> {
        let read = (&mut self.reader).take(bytes).read_to_end(out).map_err(|error| self.broken(error))? as u64;
        self.offset += read;
        Ok(read)
    }

    /// Skips `bytes` bytes. Returns the number of bytes, fewer only at the end.
    pub(crate) fn skip(&mut self, bytes: u64) -> Result<u64> {
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

    /// Returns buffered bytes, reading more only if there are none; empty at the end.
    pub(crate) fn peek(&mut self) -> Result<&[u8]> {
        // Two calls: the first one's error would hold the borrow that the second returns.
        if let Err(error) = self.reader.fill_buf() {
            return Err(self.broken(error));
        }
        Ok(self.reader.buffer())
    }

    /// Skips the mark of UTF-8 that a file of text may begin with.
    pub(crate) fn skip_mark(&mut self) -> Result<()> {
        if self.offset == 0 && self.peek()?.starts_with(b"\xef\xbb\xbf") {
            self.consume(3);
        }
        Ok(())
    }

    /// Consumes `bytes` of those that [`peek`](Self::peek) returned.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
    }

    /// Appends a line including its end to `out`; false at the end of the file.
    pub(crate) fn line(&mut self, limits: &Limits, out: &mut Vec<u8>) -> Result<bool> {
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
            limits.record(&self.found.name, || format!("byte {started}: a line"), self.offset - started)?;
            if ended {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn all_streams_of_zlib_are_read_and_anything_else_after_one_is_an_error() {
        let long: Vec<u8> = (0..200_000_u32).flat_map(|number| u64::from(number).pow(2).to_le_bytes()).collect();
        let read = |bytes: Vec<u8>, most: usize| {
            let mut out = Vec::new();
            MultiZlib::new(BufReader::with_capacity(most, io::Cursor::new(bytes))).read_to_end(&mut out).map(|_| out)
        };
        for most in [1, 7, 64 << 10] {
            assert_eq!(read(packed(&long), most).unwrap(), long);
            assert_eq!(read([packed(b"one, "), packed(b""), packed(b"two")].concat(), most).unwrap(), b"one, two");
            assert!(read([packed(b"one"), b"junk".to_vec()].concat(), most).is_err());
            let whole = packed(&long);
            for cut in [1, 4, 5, whole.len() / 2] {
                assert!(read(whole[..whole.len() - cut].to_vec(), most).is_err(), "{cut} bytes less");
            }
        }
    }
}
