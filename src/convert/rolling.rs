//! Files of a target size, one after another, and the output that they are written through.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use serde_json::Value;

use crate::convert::errors::{unexpected, with_row};
use crate::convert::options::Packing;
use crate::convert::sink::{Part, Writer};
use crate::error::Result;
use crate::store::directory::failed;

/// Returns the extension of a compressed file.
pub(crate) fn ending(extension: &str, packing: Packing) -> String {
    match packing {
        Packing::Gzip => format!("{extension}.gz"),
        Packing::Zstd(_) => format!("{extension}.zst"),
        _ => extension.to_owned(),
    }
}

/// Returns a prefix that makes keys unique across files: the writer's own name, and the number of the file.
pub(crate) fn prefix(unit: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{unit}_{}", name.split('.').next().unwrap_or_default())
}

/// One file that grows by batches.
pub(crate) trait Rows: Send {
    /// Adds rows.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;
    /// Returns the approximate size so far, as stored.
    fn bytes(&self) -> u64;
    /// Ends the file. Returns its size, and its entry for the index.
    fn finish(self: Box<Self>) -> Result<(u64, Value)>;
}

/// Makes the file at a path.
pub(crate) type Make = Arc<dyn Fn(&Path) -> Result<Box<dyn Rows>> + Send + Sync>;

/// Files of about `target` bytes in one directory.
pub(crate) struct RollingWriter {
    make: Make,
    directory: PathBuf,
    extension: String,
    target: u64,
    open: Option<(String, u64, Box<dyn Rows>)>,
    parts: Vec<Part>,
}

impl RollingWriter {
    pub(crate) fn writer(directory: &Path, extension: &str, target: u64, make: Make) -> Box<dyn Writer> {
        let (directory, extension) = (directory.to_owned(), extension.to_owned());
        Box::new(Self { make, directory, extension, target, open: None, parts: Vec::new() })
    }

    fn close(&mut self) -> Result<()> {
        let Some((name, rows, file)) = self.open.take() else { return Ok(()) };
        let (bytes, extra) = file.finish()?;
        self.parts.push(Part { name, rows, bytes, extra });
        Ok(())
    }
}

impl Writer for RollingWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.open.is_none() {
            let name = format!("{:05}.{}", self.parts.len(), self.extension);
            let file = (self.make)(&self.directory.join(&name))?;
            self.open = Some((name, 0, file));
        }
        let Some((_, rows, file)) = &mut self.open else { return Ok(()) };
        file.write(batch)?;
        *rows += batch.num_rows() as u64;
        if file.bytes() >= self.target {
            self.close()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<Part>> {
        self.close()?;
        Ok(self.parts)
    }
}

/// Deals rows to several writers in turn, for an exact number of files.
pub(crate) struct Dealt {
    pub(crate) writers: Vec<Box<dyn Writer>>,
    pub(crate) next: usize,
}

impl Writer for Dealt {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let count = self.writers.len();
        if count == 0 || batch.num_rows() == 0 {
            return Ok(());
        }
        for (number, writer) in self.writers.iter_mut().enumerate() {
            let first = (number + count - self.next) % count;
            let rows: arrow::array::UInt32Array =
                (first..batch.num_rows()).step_by(count).filter_map(|row| u32::try_from(row).ok()).collect();
            if !rows.is_empty() {
                let taken = arrow::compute::take_record_batch(batch, &rows).map_err(unexpected)?;
                let dealt = |row: u64| rows.values().get(usize::try_from(row).ok()?).map(|row| u64::from(*row));
                writer.write(&taken).map_err(|error| with_row(error, dealt))?;
            }
        }
        self.next = (self.next + batch.num_rows()) % count;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        for (number, writer) in self.writers.into_iter().enumerate() {
            for mut part in writer.finish()? {
                part.name = format!("{number}/{}", part.name);
                parts.push(part);
            }
        }
        Ok(parts)
    }
}

/// A file being written, with its compression and its size; errors name it.
pub(crate) struct Output {
    writer: Packer,
    path: PathBuf,
    /// Bytes written, before compression.
    given: u64,
}

enum Packer {
    Plain(Counting),
    Gzip(flate2::write::GzEncoder<Counting>),
    Zstd(zstd::Encoder<'static, Counting>),
}

struct Counting {
    file: BufWriter<File>,
    bytes: u64,
}

impl Write for Counting {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output {
    /// Creates a file at `path`.
    pub(crate) fn create(path: &Path, packing: Packing) -> Result<Self> {
        Self::create_for(path, packing, None)
    }

    /// Creates a file at `path` for exactly `bytes` bytes, if given. zstd's header then tells them, as readers of whole files want.
    pub(crate) fn create_for(path: &Path, packing: Packing, bytes: Option<u64>) -> Result<Self> {
        let file = File::create_new(path).map_err(|error| failed("create", path, error))?;
        let counting = Counting { file: BufWriter::with_capacity(256 << 10, file), bytes: 0 };
        let writer = match packing {
            Packing::Gzip => Packer::Gzip(flate2::write::GzEncoder::new(counting, flate2::Compression::default())),
            Packing::Zstd(level) => {
                let make = || {
                    let mut encoder = zstd::Encoder::new(counting, level)?;
                    encoder.set_pledged_src_size(bytes)?;
                    Ok::<_, io::Error>(encoder)
                };
                Packer::Zstd(make().map_err(|error| failed("create", path, error))?)
            }
            _ => Packer::Plain(counting),
        };
        Ok(Self { writer, path: path.to_owned(), given: 0 })
    }

    /// Adds bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.given += bytes.len() as u64;
        let outcome = match &mut self.writer {
            Packer::Plain(writer) => writer.write_all(bytes),
            Packer::Gzip(writer) => writer.write_all(bytes),
            Packer::Zstd(writer) => writer.write_all(bytes),
        };
        outcome.map_err(|error| failed("write", &self.path, error))
    }

    /// Returns the bytes stored so far.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.writer {
            Packer::Plain(writer) => writer.bytes,
            Packer::Gzip(writer) => writer.get_ref().bytes,
            Packer::Zstd(writer) => writer.get_ref().bytes,
        }
    }

    /// Returns the bytes written so far, before compression.
    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// Ends the file without flushing it. Returns its size.
    pub(crate) fn close(self) -> Result<u64> {
        self.end(|_| Ok(()))
    }

    /// Ends and flushes the file. Returns its size.
    pub(crate) fn close_on_disk(self) -> Result<u64> {
        self.end(|file| file.sync_all())
    }

    fn end(self, last: impl FnOnce(&File) -> io::Result<()>) -> Result<u64> {
        let path = self.path;
        let finish = || -> io::Result<u64> {
            let counting = match self.writer {
                Packer::Plain(writer) => writer,
                Packer::Gzip(writer) => writer.finish()?,
                Packer::Zstd(writer) => writer.finish()?,
            };
            let bytes = counting.bytes;
            last(&counting.file.into_inner().map_err(|error| error.into_error())?)?;
            Ok(bytes)
        };
        finish().map_err(|error| failed("write", &path, error))
    }
}

impl Write for Output {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.given += buffer.len() as u64;
        match &mut self.writer {
            Packer::Plain(writer) => writer.write_all(buffer)?,
            Packer::Gzip(writer) => writer.write_all(buffer)?,
            Packer::Zstd(writer) => writer.write_all(buffer)?,
        }
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_known_size_tells_it() {
        let folder = tempfile::tempdir().unwrap();
        let size = |path: &Path| zstd::zstd_safe::get_frame_content_size(&std::fs::read(path).unwrap()).unwrap();
        // More than a block: in a single one the size is told anyway.
        let bytes = [7; 1 << 18];
        for (name, told) in [("told", Some(bytes.len() as u64)), ("untold", None)] {
            let path = folder.path().join(name);
            let mut output = Output::create_for(&path, Packing::Zstd(3), told).unwrap();
            bytes.chunks(100_000).for_each(|piece| output.put(piece).unwrap());
            output.close().unwrap();
            assert_eq!(size(&path), told, "{name}");
            assert_eq!(zstd::decode_all(File::open(&path).unwrap()).unwrap(), bytes);
        }
    }
}
