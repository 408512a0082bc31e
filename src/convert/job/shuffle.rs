//! A shuffle of all rows within a byte budget: rows are scattered into buckets on the disk, then each bucket is sorted in memory.
//!
//! ```text
//!   task 0 ─ rows ─ draw(seed, shard, row) ─┬─► scratch/0: bucket 0    (phase 1: tasks in parallel)
//!   task 1 ─ ...                            └─► scratch/0: bucket 1
//!   bucket 0 of all tasks ─ sort by draw ─► sink                       (phase 2: buckets in parallel, journaled)
//! ```
//! A row's draw depends on the seed and on the row's position in the source, and the order is that of the draws, so threads, memory and
//! interruptions do not affect it. The number of buckets depends on the source alone, and is part of the fingerprint; one that does not
//! fit into memory is scattered again. Buckets are tasks of the journal; scattering is repeated after an interruption, except for tasks
//! whose buckets are complete.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};

use super::Job;
use super::commit::commit;
use super::journal::Done;
use super::publish::Staging;
use super::scatter::{ALL, Scatter, Scattered, part, sorted};
use crate::convert::budget::{Budget, Progress};
use crate::convert::errors::{FAULT, differs, unexpected};
use crate::convert::formats::ipc;
use crate::convert::parallel::parallel;
use crate::convert::source::slices;
use crate::convert::values::cells;
use crate::error::{Error, Place, Result};
use crate::store::directory::{failed, remove};
use crate::store::pinned::shown;

/// Most parts that a bucket is scattered into again, and most levels of that.
const MOST_PARTS: u64 = 64;
const MOST_AGAIN: usize = 8;

/// Most bytes sorted at once: offsets of texts have 32 bits.
const MOST_BYTES: u64 = 1 << 30;

/// Factors of a draw.
const SHARDS: u64 = 0xA24B_AED4_963E_E407;
const ROWS: u64 = 0x9FB2_1C65_1E98_DF25;
const MULTIPLIERS: [u64; 3] = [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB, 0xD6E8_FEB8_6659_FD93];
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Most rows of a shard whose index does not count them.
const MOST_ROWS: u64 = 1 << 40;

/// Name of the column with the draws, beside those of the dataset.
const DRAW: &str = "bowstring.draw";

/// Runs a job with a shuffle.
pub(crate) fn run(
    job: &Job,
    seed: u64,
    staging: &Staging,
    done: &mut Vec<Done>,
    budget: &Budget,
    progress: &Progress,
) -> Result<()> {
    let scratch = staging.scratch();
    std::fs::create_dir_all(&scratch).map_err(|error| failed("create", &scratch, error))?;
    let threads = job.options.threads();
    let share = job.options.memory_budget / threads as u64;
    let fields = job.schema.fields().iter().cloned().chain([Arc::new(Field::new(DRAW, DataType::UInt64, false))]);
    let schema: SchemaRef = Arc::new(ipc::plain_schema(&Schema::new(fields.collect::<Vec<_>>())));
    let tasks: Vec<usize> = (0..job.tasks.len()).collect();
    parallel(threads, &tasks, progress, |task| {
        let directory = scratch.join(task.to_string());
        if Scattered::of(&directory)?.is_some() {
            return Ok(());
        }
        empty(&directory)?;
        let rows = Scatter::new(&directory, &schema, ALL, job.units, (share / 6).min(MOST_BYTES / 4))?;
        scatter(job, seed, task, budget, progress, &schema, rows)
    })?;
    let whole = scattered(job, &scratch)?;
    let files = job.options.shards;
    let work = |bucket| -> Result<Done> {
        let directory = staging.task(bucket)?;
        let files = files.map(|files| files / job.units + usize::from(bucket < files % job.units));
        let mut writer = job.writer(bucket, &directory, files)?;
        let mut digest = job.summing();
        let mut rows = 0;
        let gather = Gather { schema: &schema, most: (share / 4).min(MOST_BYTES), place: scratch.join("again") };
        gather.bucket(&whole, bucket, part(&ALL, bucket, job.units), &[bucket], &mut |batch, draws| {
            let mut first = 0;
            for piece in slices(batch) {
                if let Some(digest) = &mut digest {
                    digest.add(&piece)?;
                }
                let draw = |row: u64| usize::try_from(row).ok().and_then(|row| draws.get(first + row)).copied();
                writer.write(&piece).map_err(|error| named(error, job, seed, &draw, budget))?;
                first += piece.num_rows();
                rows += piece.num_rows() as u64;
            }
            Ok(())
        })?;
        let parts = writer.finish()?;
        let expected: u64 = whole.iter().map(|own| own.size(bucket).0).sum();
        if rows != expected {
            let (expected, found) = (format!("{expected} rows, which were scattered"), format!("{rows} rows"));
            let what = format!("bucket {bucket} of the shuffle");
            return Err(differs(Place::file(shown(&directory).to_string_lossy()), &what, expected, found, FAULT));
        }
        progress.rows.fetch_add(rows, Ordering::Relaxed);
        Ok(Done { task: bucket, parts, digest: digest.map(|digest| digest.digest()), rows, read: 0 })
    };
    let left = job.left(done);
    commit(staging, job.sink.flushes(), done, |give| parallel(threads, &left, progress, |bucket| give(work(bucket)?)))
}

/// Returns the rows read of the source and the rows scattered, after all tasks have run.
pub(crate) fn tally(job: &Job, staging: &Staging) -> Result<(u64, u64)> {
    let whole = scattered(job, &staging.scratch())?;
    Ok(whole.iter().fold((0, 0), |(read, rows), own| (read + own.read, rows + own.rows)))
}

/// Returns true if rows of a task are scattered to its end: a resumed conversion does not read them again.
pub(crate) fn has_scattered(job: &Job, staging: &Staging) -> bool {
    let scratch = staging.scratch();
    let is_whole = |task: usize| matches!(Scattered::of(&scratch.join(task.to_string())), Ok(Some(_)));
    job.options.shuffle.is_some() && (0..job.tasks.len()).any(is_whole)
}

/// Returns the scattered output of every task.
fn scattered(job: &Job, scratch: &Path) -> Result<Vec<Scattered>> {
    let of = |task: usize| {
        let missing = || Error::Closed { why: format!("task {task} was not scattered to its end") };
        Scattered::of(&scratch.join(task.to_string()))?.ok_or_else(missing)
    };
    (0..job.tasks.len()).map(of).collect()
}

/// Makes a new and empty directory.
fn empty(directory: &Path) -> Result<()> {
    remove(directory)?;
    std::fs::create_dir_all(directory).map_err(|error| failed("create", directory, error))
}

/// Draws a number for a row: always the same one.
fn draw(seed: u64, shard: usize, row: u64) -> u64 {
    let mut x = seed ^ (shard as u64).wrapping_mul(SHARDS) ^ row.wrapping_mul(ROWS);
    for multiplier in MULTIPLIERS {
        x = (x ^ (x >> 31)).wrapping_add(STEP).wrapping_mul(multiplier);
    }
    x ^ (x >> 32)
}

/// Returns the row of `shard` for which this number is drawn; for numbers of other shards, any.
fn drawn(seed: u64, shard: usize, draw: u64) -> u64 {
    // Each step of a draw has an inverse: a multiplication by an odd number that of its reciprocal modulo 2^64.
    let reciprocal =
        |odd: u64| (0..5).fold(odd, |so_far, _| so_far.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(so_far))));
    let mut x = draw ^ (draw >> 32);
    for multiplier in MULTIPLIERS.into_iter().rev() {
        x = x.wrapping_mul(reciprocal(multiplier)).wrapping_sub(STEP);
        x ^= (x >> 31) ^ (x >> 62);
    }
    (x ^ seed ^ (shard as u64).wrapping_mul(SHARDS)).wrapping_mul(reciprocal(ROWS))
}

/// Names the place in the source that an error of a writer is about. Its rows are known by their draws.
fn named(error: Error, job: &Job, seed: u64, draw: &dyn Fn(u64) -> Option<u64>, budget: &Budget) -> Error {
    let told = error.place().filter(|place| place.file.is_none()).cloned();
    let Some((place, row)) = told.and_then(|place| place.row.map(|row| (place, row))) else { return error };
    let found = draw(row).and_then(|draw| {
        let shards = job.source.shards().iter().enumerate();
        let candidates = shards.filter_map(|(shard, of)| {
            let row = drawn(seed, shard, draw);
            (row < of.rows.unwrap_or(MOST_ROWS)).then_some((shard, row))
        });
        candidates.filter_map(|(shard, row)| Some((shard, job.selected(shard, row, budget).ok()??))).next()
    });
    match found {
        Some((shard, row)) => error.at(Place { column: place.column, ..job.source.place(shard, row) }),
        None => error.at(Place { row: None, ..place }),
    }
}

fn scatter(
    job: &Job,
    seed: u64,
    task: usize,
    budget: &Budget,
    progress: &Progress,
    schema: &SchemaRef,
    mut rows: Scatter,
) -> Result<()> {
    let (mut shard, mut row) = (usize::MAX, 0);
    let read = job.feed(task, budget, progress, &mut |origin, batch| {
        if origin.shard != shard {
            (shard, row) = (origin.shard, 0);
        }
        let draws: Vec<u64> = (row..row + batch.num_rows() as u64).map(|row| draw(seed, shard, row)).collect();
        row += batch.num_rows() as u64;
        let draws = Arc::new(UInt64Array::from(draws));
        let columns = batch.columns().iter().cloned().chain([draws as _]).zip(schema.fields());
        let columns = columns.map(|(column, field)| cells::as_type(&column, field.data_type()));
        let batch = RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_>>()?).map_err(unexpected)?;
        rows.add(batch)
    })?;
    rows.finish(read).map(drop)
}

/// Restores the order of a bucket's rows.
struct Gather<'a> {
    schema: &'a SchemaRef,
    /// Most bytes sorted at once.
    most: u64,
    /// Directory for scattering a bucket again.
    place: PathBuf,
}

impl Gather<'_> {
    /// Passes the rows of a bucket to `each`, beside their draws. Its draws are in `range`; `path` is its number and those of the
    /// parts that it was scattered into.
    fn bucket(
        &self,
        files: &[Scattered],
        bucket: usize,
        range: Range<u128>,
        path: &[usize],
        each: &mut dyn FnMut(&RecordBatch, &[u64]) -> Result<()>,
    ) -> Result<()> {
        let sizes = files.iter().map(|own| own.size(bucket));
        let (rows, bytes) = sizes.fold((0, 0), |(rows, bytes), own| (rows + own.0, bytes + own.1));
        if bytes > self.most && rows > 1 {
            return self.again(files, bucket, range, path, bytes, each);
        }
        let mut batches = Vec::new();
        for own in files {
            own.read(bucket, &mut |batch| {
                batches.push(batch);
                Ok(())
            })?;
        }
        let Some((whole, order)) = sorted(self.schema, &batches)? else { return Ok(()) };
        drop(batches);
        let last = whole.num_columns() - 1;
        let draws = whole.column(last).as_primitive::<UInt64Type>();
        let draws: Vec<u64> = order.iter().map(|row| draws.value(*row as usize)).collect();
        let whole = whole.project(&(0..last).collect::<Vec<_>>()).map_err(unexpected)?;
        each(&take_record_batch(&whole, &UInt32Array::from(order)).map_err(unexpected)?, &draws)
    }

    /// The same for a bucket that does not fit: it is scattered into parts, which are read one after another.
    fn again(
        &self,
        files: &[Scattered],
        bucket: usize,
        range: Range<u128>,
        path: &[usize],
        bytes: u64,
        each: &mut dyn FnMut(&RecordBatch, &[u64]) -> Result<()>,
    ) -> Result<()> {
        if path.len() > MOST_AGAIN {
            let what = format!("a few rows of bucket {} of the shuffle", path.first().unwrap_or(&bucket));
            return Err(Error::limit(what, bytes * 4, self.most * 4, "memory_budget"));
        }
        let name: Vec<String> = path.iter().map(ToString::to_string).collect();
        let directory = self.place.join(name.join("-"));
        empty(&directory)?;
        let parts = (bytes * 2).div_ceil(self.most.max(1)).clamp(2, MOST_PARTS) as usize;
        let mut rows = Scatter::new(&directory, self.schema, range.clone(), parts, self.most / 2)?;
        for own in files {
            own.read(bucket, &mut |batch| rows.add(batch))?;
        }
        let scattered = [rows.finish(0)?];
        for number in 0..parts {
            let inner: Vec<usize> = path.iter().copied().chain([number]).collect();
            self.bucket(&scattered, number, part(&range, number, parts), &inner, each)?;
        }
        remove(&directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_tells_its_row() {
        for seed in [0, 1, u64::MAX] {
            for shard in [0, 1, 7, 1 << 40] {
                for row in [0, 1, 12_345_678_901, MOST_ROWS - 1] {
                    let draw = draw(seed, shard, row);
                    assert_eq!(drawn(seed, shard, draw), row, "seed {seed}, shard {shard}");
                    assert!(drawn(seed, shard + 1, draw) > MOST_ROWS, "no row of another shard is likely");
                }
            }
        }
    }
}
