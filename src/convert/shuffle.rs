//! A shuffle of all rows within a byte budget: rows are scattered into buckets on the disk, then each bucket is sorted in memory.
//!
//! ```text
//!   task 0 ─ rows ─ draw(seed, task, row) ─┬─► scratch/0/bucket 0    (phase 1: tasks in parallel)
//!   task 1 ─ ...                           └─► scratch/0/bucket 1
//!   bucket 0 of all tasks ─ sort by draw ─► sink                     (phase 2: buckets in parallel, journaled)
//! ```
//! A row's draw depends on the seed and on where the row was, so the order does not depend on threads or interruptions. Buckets are
//! tasks of the journal; scattering is done again after an interruption, except for tasks whose buckets are whole.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use super::chain::{Job, unexpected};
use super::gate::{Gate, Progress};
use super::journal::Done;
use super::options::Packing;
use super::publish::{Staging, remove};
use super::roll::{Output, put_file};
use super::settle::settle;
use super::tasks::parallel;
use crate::error::{Error, Result};
use crate::store::directory::failed;

/// Most buckets: each is an open file per task.
const MOST_BUCKETS: u64 = 512;

/// The column with the draws, beside those of the dataset.
const DRAW: &str = "bowstring.draw";

/// Runs a job with a shuffle.
pub(super) fn run(
    job: &Job,
    seed: u64,
    staging: &Staging,
    done: &mut Vec<Done>,
    gate: &Gate,
    progress: &Progress,
) -> Result<()> {
    let scratch = staging.scratch();
    std::fs::create_dir_all(&scratch).map_err(|error| failed("create", &scratch, error))?;
    let threads = job.options.threads();
    let share = job.options.memory_budget / threads as u64;
    let files = job.options.shards;
    // Stored bytes are a guess of what rows take in memory; phase 2 says so if the guess is too low.
    let guess = progress.total().saturating_mul(8).div_ceil(share.max(1)).max(1);
    let buckets = files.map_or(guess.min(MOST_BUCKETS), |files| (files as u64).min(MOST_BUCKETS)) as usize;
    let fields = job.schema.fields().iter().cloned().chain([Arc::new(Field::new(DRAW, DataType::UInt64, false))]);
    let schema: SchemaRef = Arc::new(super::ipc::plain_schema(&Schema::new(fields.collect::<Vec<_>>())));
    let left = job.left(done, buckets);
    if left.is_empty() {
        return Ok(());
    }
    let tasks: Vec<usize> = (0..job.tasks.len()).collect();
    parallel(threads, &tasks, progress, |task| {
        let directory = scratch.join(task.to_string());
        if directory.join("whole").exists() {
            return Ok(());
        }
        remove(&directory)?;
        std::fs::create_dir(&directory).map_err(|error| failed("create", &directory, error))?;
        scatter(job, seed, task, &directory, &schema, buckets, gate, progress)?;
        put_file(&directory.join("whole"), b"")
    })?;
    let most = share / 3;
    let work = |bucket| -> Result<Done> {
        let batch = gather(&scratch, job.tasks.len(), bucket, &schema, most)?;
        let directory = staging.task(bucket)?;
        let files = files.map(|files| files / buckets + usize::from(bucket < files % buckets));
        let mut writer = job.writer(&directory, files)?;
        let mut digest = job.summing();
        let mut rows = 0;
        if let Some(batch) = batch {
            for piece in super::source::slices(&batch) {
                if let Some(digest) = &mut digest {
                    digest.add(&piece)?;
                }
                writer.write(&piece)?;
                rows += piece.num_rows() as u64;
            }
        }
        let parts = writer.finish()?;
        progress.rows.fetch_add(rows, Ordering::Relaxed);
        Ok(Done { task: bucket, parts, digest: digest.map(|digest| digest.digest()), rows })
    };
    settle(staging, job.sink.flushes(), done, |give| parallel(threads, &left, progress, |bucket| give(work(bucket)?)))
}

/// A number for a row: the same whenever it is drawn.
fn draw(seed: u64, task: usize, row: u64) -> u64 {
    let mut x = seed ^ (task as u64).wrapping_mul(0xA24B_AED4_963E_E407) ^ row.wrapping_mul(0x9FB2_1C65_1E98_DF25);
    for multiplier in [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB, 0xD6E8_FEB8_6659_FD93_u64] {
        x = (x ^ (x >> 31)).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(multiplier);
    }
    x ^ (x >> 32)
}

#[expect(clippy::too_many_arguments, reason = "a step of one function, which has them all")]
fn scatter(
    job: &Job,
    seed: u64,
    task: usize,
    directory: &Path,
    schema: &SchemaRef,
    buckets: usize,
    gate: &Gate,
    progress: &Progress,
) -> Result<()> {
    let mut writers = Vec::with_capacity(buckets);
    for bucket in 0..buckets {
        let path = directory.join(bucket.to_string());
        let output = Output::create(&path, Packing::None)?;
        writers.push((StreamWriter::try_new(output, schema).map_err(unexpected)?, path));
    }
    let mut row = 0;
    job.feed(task, gate, progress, &mut |batch| {
        let draws: Vec<u64> = (0..batch.num_rows() as u64).map(|at| draw(seed, task, row + at)).collect();
        row += batch.num_rows() as u64;
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); buckets];
        for (at, draw) in draws.iter().enumerate() {
            if let Some(rows) = rows.get_mut((draw % buckets as u64) as usize) {
                rows.push(at as u32);
            }
        }
        let draws = Arc::new(UInt64Array::from(draws));
        let columns = batch.columns().iter().cloned().chain([draws as _]).zip(schema.fields());
        let columns = columns.map(|(column, field)| super::cells::as_type(&column, field.data_type()));
        let batch = RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_>>()?).map_err(unexpected)?;
        for (rows, (writer, path)) in rows.into_iter().zip(&mut writers).filter(|(rows, _)| !rows.is_empty()) {
            let taken = take_record_batch(&batch, &UInt32Array::from(rows)).map_err(unexpected)?;
            writer.write(&taken).map_err(|error| super::ipc::broken(path, error))?;
        }
        Ok(())
    })?;
    for (mut writer, path) in writers {
        writer.finish().map_err(|error| super::ipc::broken(&path, error))?;
        writer.into_inner().map_err(|error| super::ipc::broken(&path, error))?.close_on_disk()?;
    }
    Ok(())
}

/// The rows of a bucket in the order of their draws; `None` if it has none.
fn gather(scratch: &Path, tasks: usize, bucket: usize, schema: &SchemaRef, most: u64) -> Result<Option<RecordBatch>> {
    let mut batches = Vec::new();
    let mut bytes = 0;
    for task in 0..tasks {
        let path = scratch.join(task.to_string()).join(bucket.to_string());
        let file = File::open(&path).map_err(|error| failed("open", &path, error))?;
        bytes += file.metadata().map_err(|error| failed("read", &path, error))?.len();
        if bytes > most {
            let what = format!("bucket {bucket} of the shuffle");
            return Err(Error::Limit { what, asked: bytes * 3, limit: most * 3, option: "memory_budget" });
        }
        let reader =
            StreamReader::try_new(BufReader::new(file), None).map_err(|error| super::ipc::broken(&path, error))?;
        for batch in reader {
            batches.push(batch.map_err(|error| super::ipc::broken(&path, error))?);
        }
    }
    if batches.is_empty() {
        return Ok(None);
    }
    let whole = concat_batches(schema, &batches).map_err(unexpected)?;
    drop(batches);
    let draws = whole.column(whole.num_columns() - 1).as_primitive::<UInt64Type>();
    // Equal draws are next to impossible; the place among the batches decides then, which is the order of tasks and rows.
    let mut order: Vec<u32> = (0..whole.num_rows() as u32).collect();
    order.sort_by_key(|row| draws.value(*row as usize));
    let kept: Vec<usize> = (0..whole.num_columns() - 1).collect();
    let whole = whole.project(&kept).map_err(unexpected)?;
    take_record_batch(&whole, &UInt32Array::from(order)).map(Some).map_err(unexpected)
}
