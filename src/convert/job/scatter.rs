//! Rows with their draws in a file on disk, from which any bucket can be read without the others.
//!
//! ```text
//!   rows ─ draw of each ─ some megabytes of them, sorted by draw ─► a batch per bucket ─► one Arrow file and the list of its batches
//! ```
//! A bucket is a range of draws. So the order of all rows is that of their draws, for any number of buckets, and a bucket that does not
//! fit into memory is scattered again into smaller ones.

use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{SchemaRef, UInt64Type};
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use serde::{Deserialize, Serialize};

use crate::convert::errors::unexpected;
use crate::convert::formats::ipc::broken;
use crate::convert::options::Packing;
use crate::convert::rolling::Output;
use crate::error::{Error, Place, Result};
use crate::store::directory::{failed, flush};
use crate::store::pinned::shown;
use crate::store::publish::put_file;

/// The range of all draws.
pub(crate) const ALL: Range<u128> = 0..1 << 64;

/// File of the rows.
const ROWS: &str = "rows.arrow";

/// List of the batches, written last.
const LIST: &str = "whole";
/// The list while it is being written.
const NEW_LIST: &str = "whole.new";

/// Returns the draws of a bucket, one of `buckets` that share `range`.
pub(crate) fn part(range: &Range<u128>, bucket: usize, buckets: usize) -> Range<u128> {
    let at = |bucket: u128| range.start + (range.end - range.start) * bucket / buckets.max(1) as u128;
    at(bucket as u128)..at(bucket as u128 + 1)
}

/// A batch of the file: rows of one bucket, in the order of their draws.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Chunk {
    bucket: usize,
    rows: u64,
    bytes: u64,
}

/// The rows scattered into a directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scattered {
    /// Rows read of the source, before filtering.
    pub(crate) read: u64,
    /// Rows in the directory.
    pub(crate) rows: u64,
    chunks: Vec<Chunk>,
    #[serde(skip)]
    directory: PathBuf,
}

impl Scattered {
    /// Opens the output of a finished [`Scatter`] in `directory`; `None` if it did not finish.
    pub(crate) fn of(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(LIST);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let found: Self = serde_json::from_slice(&text).map_err(|error| failed("read", &path, error))?;
        Ok(Some(Self { directory: directory.to_owned(), ..found }))
    }

    /// Returns the rows of a bucket, and the bytes that they take in memory.
    pub(crate) fn size(&self, bucket: usize) -> (u64, u64) {
        let own = self.chunks.iter().filter(|chunk| chunk.bucket == bucket);
        own.fold((0, 0), |(rows, bytes), chunk| (rows + chunk.rows, bytes + chunk.bytes))
    }

    /// Passes the batches of a bucket to `each`, with their draws.
    pub(crate) fn read(&self, bucket: usize, each: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        if self.chunks.iter().all(|chunk| chunk.bucket != bucket) {
            return Ok(());
        }
        let path = self.directory.join(ROWS);
        let file = File::open(&path).map_err(|error| failed("open", &path, error))?;
        let mut reader = FileReader::try_new(BufReader::new(file), None).map_err(|error| broken(&path, error))?;
        for (number, chunk) in self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.bucket == bucket) {
            reader.set_index(number).map_err(|error| broken(&path, error))?;
            let batch = reader.next().transpose().map_err(|error| broken(&path, error))?;
            match batch.filter(|batch| batch.num_rows() as u64 == chunk.rows) {
                Some(batch) => each(batch)?,
                None => {
                    let what = format!("batch {number} has not the {} rows that were scattered", chunk.rows);
                    return Err(Error::corrupt(Place::file(shown(&path).to_string_lossy().as_ref()), what));
                }
            }
        }
        Ok(())
    }
}

/// Scatters rows into a directory.
pub(crate) struct Scatter {
    directory: PathBuf,
    path: PathBuf,
    writer: FileWriter<Output>,
    schema: SchemaRef,
    range: Range<u128>,
    buckets: usize,
    /// Bytes that are collected before they are sorted.
    most: u64,
    waiting: Vec<RecordBatch>,
    bytes: u64,
    rows: u64,
    chunks: Vec<Chunk>,
}

impl Scatter {
    /// Scatters into `directory`, which exists and is empty. The last column of `schema` is the draw, within `range`.
    pub(crate) fn new(
        directory: &Path,
        schema: &SchemaRef,
        range: Range<u128>,
        buckets: usize,
        most: u64,
    ) -> Result<Self> {
        let path = directory.join(ROWS);
        let writer = FileWriter::try_new(Output::create(&path, Packing::None)?, schema);
        Ok(Self {
            directory: directory.to_owned(),
            writer: writer.map_err(|error| broken(&path, error))?,
            path,
            schema: SchemaRef::clone(schema),
            range,
            buckets,
            most,
            waiting: Vec::new(),
            bytes: 0,
            rows: 0,
            chunks: Vec::new(),
        })
    }

    /// Adds rows.
    pub(crate) fn add(&mut self, batch: RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        self.bytes += batch.get_array_memory_size() as u64;
        self.waiting.push(batch);
        if self.bytes >= self.most { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        let Some((batch, order)) = sorted(&self.schema, &waiting)? else { return Ok(()) };
        drop(waiting);
        let draws = draws(&batch);
        let mut left = order.as_slice();
        for bucket in 0..self.buckets {
            let end = part(&self.range, bucket, self.buckets).end;
            let count = left.partition_point(|row| u128::from(draws[*row as usize]) < end);
            let (own, rest) = left.split_at(count);
            left = rest;
            if own.is_empty() {
                continue;
            }
            let taken = take_record_batch(&batch, &UInt32Array::from(own.to_vec())).map_err(unexpected)?;
            self.writer.write(&taken).map_err(|error| broken(&self.path, error))?;
            let (rows, bytes) = (taken.num_rows() as u64, taken.get_array_memory_size() as u64);
            self.chunks.push(Chunk { bucket, rows, bytes });
        }
        Ok(())
    }

    /// Flushes everything. `read` is the number of rows read of the source.
    pub(crate) fn finish(mut self, read: u64) -> Result<Scattered> {
        self.write()?;
        self.writer.finish().map_err(|error| broken(&self.path, error))?;
        self.writer.into_inner().map_err(|error| broken(&self.path, error))?.close_on_disk()?;
        let Self { directory, rows, chunks, .. } = self;
        let scattered = Scattered { read, rows, chunks, directory };
        let path = scattered.directory.join(LIST);
        // Written by a rename: a process killed here must not leave an incomplete list.
        let new = scattered.directory.join(NEW_LIST);
        put_file(&new, &serde_json::to_vec(&scattered).map_err(|error| failed("write", &path, error))?)?;
        std::fs::rename(&new, &path).map_err(|error| failed("write", &path, error))?;
        flush(&scattered.directory)?;
        Ok(scattered)
    }
}

fn draws(batch: &RecordBatch) -> &[u64] {
    batch.column(batch.num_columns() - 1).as_primitive::<UInt64Type>().values()
}

/// Concatenates the batches, and returns the result with its row numbers in the order of their draws; `None` if there are no rows.
/// Equal draws are next to impossible; the position among the batches breaks ties.
pub(crate) fn sorted(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Option<(RecordBatch, Vec<u32>)>> {
    if batches.iter().all(|batch| batch.num_rows() == 0) {
        return Ok(None);
    }
    let whole = concat_batches(schema, batches).map_err(unexpected)?;
    let draws = draws(&whole);
    let mut order: Vec<u32> = (0..u32::try_from(whole.num_rows()).unwrap_or(u32::MAX)).collect();
    order.sort_by_key(|row| draws[*row as usize]);
    Ok(Some((whole, order)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_share_all_draws() {
        for buckets in [1, 2, 3, 7, 256] {
            let mut next = 0;
            for bucket in 0..buckets {
                let own = part(&ALL, bucket, buckets);
                assert_eq!(own.start, next);
                // The same holds for a part of a part.
                assert_eq!((part(&own, 0, 5).start, part(&own, 4, 5).end), (own.start, own.end));
                next = own.end;
            }
            assert_eq!(next, ALL.end);
        }
    }
}
