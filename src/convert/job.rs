//! What drives a source into a sink: the columns that are written, the tasks, and what each does.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::budget::{Budget, Progress};
use super::cells::as_type_at;
use super::commit::commit;
use super::conversion::{Found, finished};
use super::digest::Summing;
use super::format::Format;
use super::journal::Done;
use super::listing::is_remote;
use super::options::ConvertOptions;
use super::publish::Staging;
use super::remote;
use super::resize::Resizer;
use super::rolling::Dealt;
use super::sample;
use super::shuffle;
use super::sink::{self, Part, Sink, Writer};
use super::source::{self, Source};
use super::tasks::{parallel, tasks};
use super::types::{schema_json, type_text};
use crate::dataset::filter::Bound;
use crate::error::{Error, Place, Result};
use crate::store::directory::Destination;

/// What would be done.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The source's format.
    pub from: Format,
    /// Whether it was guessed.
    pub guessed: bool,
    /// The destination's format.
    pub to: Format,
    /// The columns that would be written: name, type, and whether they may be null.
    pub schema: Vec<(String, String, bool)>,
    /// Parts of the source.
    pub shards: usize,
    /// Bytes of the source.
    pub bytes: u64,
    /// Rows of the source, where that is known without reading it.
    pub rows: Option<u64>,
    /// Tasks.
    pub tasks: usize,
    /// The first rows, as text by column.
    pub sample: Vec<Vec<String>>,
    /// Whether the destination is there already, made from the same source with the same options.
    pub unchanged: bool,
}

/// An error of Arrow in code that gave it what it takes.
pub(super) fn unexpected(error: ArrowError) -> Error {
    Error::corrupt_by(Place::default(), "a batch cannot be processed", error)
}

/// A conversion that is ready to run: nothing has been written.
#[derive(Debug)]
pub(super) struct Job {
    /// Where the source is.
    pub(super) src: String,
    pub(super) source: Box<dyn Source>,
    pub(super) sink: Box<dyn Sink>,
    /// Ascending numbers of the source's columns to read.
    pub(super) read: Vec<usize>,
    pub(super) filter: Option<Bound>,
    pixels: Option<Resizer>,
    /// The columns that are written.
    pub(super) schema: SchemaRef,
    pub(super) tasks: Vec<Range<usize>>,
    /// What the journal counts: tasks, or buckets of a shuffle.
    pub(super) units: usize,
    /// Files of each task, where their number is given.
    files: Option<Vec<usize>>,
    pub(super) fingerprint: String,
    sample: RecordBatch,
    /// The shard that the sample is from.
    sampled: usize,
    /// Bytes that a task has read of a store beyond what it looks at.
    read_ahead: u64,
    pub(super) options: ConvertOptions,
}

/// What [`convert`](super::convert) would do: opens the source, infers its columns, asks the sink, reads the first rows, and writes nothing.
///
/// # Errors
/// As of [`convert`](super::convert), as far as it comes.
pub fn plan(src: &str, dst: &Path, options: &ConvertOptions) -> Result<Plan> {
    super::destination::check(src, dst)?;
    let job = Job::new(src, dst, options)?;
    let shown = job.transform(job.sample.slice(0, job.sample.num_rows().min(5)), job.sampled, 0)?;
    let format = arrow::util::display::FormatOptions::default().with_null("null");
    let mut sample = Vec::new();
    for column in shown.columns() {
        let column = &super::timezone::offset(column)?;
        let formatter = arrow::util::display::ArrayFormatter::try_new(column, &format).map_err(unexpected)?;
        let cell = |row| formatter.value(row).try_to_string().unwrap_or_default();
        sample.push((0..column.len()).map(|row| cell(row).chars().take(80).collect()).collect());
    }
    let shards = job.source.shards();
    let column = |field: &Arc<Field>| (field.name().clone(), type_text(field.data_type()), field.is_nullable());
    Ok(Plan {
        from: job.source.format(),
        guessed: options.from.is_none(),
        to: job.sink.format(),
        schema: job.schema.fields().iter().map(column).collect(),
        shards: shards.len(),
        bytes: job.source_bytes(),
        rows: shards.iter().map(|shard| shard.rows).sum(),
        tasks: job.tasks.len(),
        sample,
        unchanged: !options.overwrite && matches!(finished(dst, &job)?, Found::Whole(_)),
    })
}

/// Refuses a destination that is the source, or in it.
fn apart(src: &str, dst: &Path) -> Result<()> {
    let Ok(src) = std::fs::canonicalize(src) else { return Ok(()) };
    let mut place = dst.to_owned();
    let dst = loop {
        match std::fs::canonicalize(&place) {
            Ok(found) => break found,
            Err(_) if place.pop() && place != Path::new("") => {}
            Err(_) => break std::env::current_dir().unwrap_or_default(),
        }
    };
    // Below the nearest directory that exists nothing of the source can be, unless that directory is in it.
    let inside = if src.is_dir() { dst.starts_with(&src) } else { dst == src };
    if inside {
        let problem = format!("{} is in the source, which is never modified", place.display());
        return Err(Error::config("dst", problem));
    }
    Ok(())
}

impl Job {
    pub(super) fn new(src: &str, dst: &Path, options: &ConvertOptions) -> Result<Self> {
        options.check()?;
        Destination::of(dst, "dst")?;
        apart(src, dst)?;
        let source = source::open(src, options)?;
        let to = match options.to.or_else(|| Format::of_destination(dst)) {
            Some(format) => format,
            None if source.format() != Format::Parquet => Format::Parquet,
            None => {
                let problem = format!("{} does not tell the format to write; give it", dst.display());
                return Err(Error::config("to", problem));
            }
        };
        let given = source.schema();
        let wanted: Vec<usize> = if options.columns.is_empty() {
            (0..given.fields().len()).collect()
        } else {
            options.columns.iter().map(|name| column(given, name)).collect::<Result<_>>()?
        };
        if let Some((name, _)) =
            options.schema.iter().flat_map(|types| &types.0).find(|(name, _)| given.index_of(name).is_err())
        {
            return Err(column(given, name).map_or_else(|error| error, |_| Error::config("schema", "impossible")));
        }
        let mut read: BTreeSet<usize> = wanted.iter().copied().collect();
        let filter = options.filter.as_ref().map(|filter| filter.bind(given)).transpose()?;
        if let Some(filter) = &filter {
            for path in filter.paths() {
                if let Some(number) = path.first().and_then(|root| given.index_of(root).ok()) {
                    read.insert(number);
                }
            }
        }
        let read: Vec<usize> = read.into_iter().collect();
        let field = |number: &usize| {
            let field = given.field(*number).clone();
            match options.schema.as_ref().and_then(|types| types.get(field.name())) {
                Some(data_type) => field.with_data_type(data_type.clone()),
                None => field,
            }
        };
        let fields: Vec<Field> = wanted.iter().map(field).collect();
        let (sample, sampled) = first_rows(&*source, &read, options)?;
        let mut schema = sample::mark_images(&Schema::new_with_metadata(fields, given.metadata().clone()), &sample)?;
        let at = |row| source.place(sampled, row);
        let pixels = Resizer::new(&schema, options).map_err(|error| sample::odd_image(error, &sample, &at))?;
        if let Some(pixels) = &pixels {
            schema = pixels.schema(&schema);
        }
        let schema = Arc::new(schema);
        let sink = sink::make_with(to, &schema, options, &sample);
        let sink = sink.map_err(|error| sample::odd_image(error, &sample, &at))?;
        let (tasks, files) = tasks(&*source, options);
        let buckets = options.shuffle.map(|_| shuffle::buckets(source.shards(), options.shards));
        let units = buckets.unwrap_or(tasks.len());
        let fingerprint = fingerprint(&*source, to, &schema, options, buckets);
        let ahead = is_remote(src) && !source.format().is_dataset();
        let read_ahead = if ahead { remote::READS * options.read_bytes() } else { 0 };
        let options = options.clone();
        Ok(Self {
            src: src.to_owned(),
            source,
            sink,
            read,
            filter,
            pixels,
            schema,
            tasks,
            units,
            files,
            fingerprint,
            sample,
            sampled,
            read_ahead,
            options,
        })
    }

    /// Runs the tasks that are not done yet.
    pub(super) fn run(&self, staging: &Staging, done: &mut Vec<Done>, progress: &Progress) -> Result<()> {
        let budget = self.budget();
        if let Some(seed) = self.options.shuffle {
            return shuffle::run(self, seed, staging, done, &budget, progress);
        }
        let left = self.left(done);
        commit(staging, self.sink.flushes(), done, |give| {
            let work = |task| give(self.work(task, &staging.task(task)?, &budget, progress)?);
            parallel(self.options.threads(), &left, progress, work)
        })
    }

    /// Bytes of the source.
    pub(super) fn source_bytes(&self) -> u64 {
        self.source.shards().iter().map(|shard| shard.bytes).sum()
    }

    /// The budget of all tasks here, without what they take beside it.
    pub(super) fn budget(&self) -> Budget {
        let reserved = (self.options.sink_bytes() + self.read_ahead) * self.options.threads() as u64;
        Budget::lending(self.options.memory_budget - reserved.min(self.options.memory_budget / 2))
    }

    /// Does one task in `directory`, which is empty.
    pub(super) fn work(&self, task: usize, directory: &Path, budget: &Budget, progress: &Progress) -> Result<Done> {
        let files = self.files.as_ref().map(|files| files.get(task).copied().unwrap_or(1));
        let mut writer = self.writer(directory, files)?;
        let mut digest = self.summing();
        let mut rows = 0;
        let read = self.feed(task, budget, progress, &mut |_, batch| {
            if let Some(digest) = &mut digest {
                digest.add(batch)?;
            }
            writer.write(batch)?;
            rows += batch.num_rows() as u64;
            progress.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
            Ok(())
        })?;
        let parts = writer.finish()?;
        Ok(Done { task, parts, digest: digest.map(|digest| digest.digest()), rows, read })
    }

    /// Numbers of tasks, or of buckets of a shuffle, that are not done.
    pub(super) fn left(&self, done: &[Done]) -> Vec<usize> {
        (0..self.units).filter(|task| done.iter().all(|done| done.task != *task)).collect()
    }

    /// A digest to grow, if the result is to be checked.
    pub(super) fn summing(&self) -> Option<Summing> {
        let names = self.schema.fields().iter().map(|field| field.name().as_str());
        self.options.verify.then(|| Summing::new(names))
    }

    /// A writer of `files` files, or of as many as their size asks for.
    pub(super) fn writer(&self, directory: &Path, files: Option<usize>) -> Result<Box<dyn Writer>> {
        let Some(files) = files else { return self.sink.writer(directory) };
        let mut writers = Vec::with_capacity(files);
        for number in 0..files {
            let directory = directory.join(number.to_string());
            std::fs::create_dir(&directory)
                .map_err(|error| crate::store::directory::failed("create", &directory, error))?;
            let mut writer = self.sink.writer(&directory)?;
            // A file without rows counts too.
            writer.write(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
            writers.push(writer);
        }
        Ok(Box::new(Dealt { writers, next: 0 }))
    }

    /// Gives the batches of a task to `consume`, as they are to be written, each with the number of its shard. Returns how many
    /// rows the source gave, before some were selected.
    ///
    /// # Errors
    /// `Corrupt` if a shard gives other than the rows that its index claims.
    pub(super) fn feed(
        &self,
        task: usize,
        budget: &Budget,
        progress: &Progress,
        consume: &mut dyn FnMut(usize, &RecordBatch) -> Result<()>,
    ) -> Result<u64> {
        let mut read = 0;
        for number in self.tasks.get(task).cloned().unwrap_or_default() {
            let mut batches = self.source.read(number, &self.read, budget)?;
            let mut consumed = 0;
            let mut row = 0;
            while let Some(batch) = batches.next()? {
                if progress.is_stopped() {
                    return Err(Error::Closed { why: "the conversion was stopped; resume goes on".into() });
                }
                let rows = batch.num_rows() as u64;
                let batch = self.transform(batch, number, row)?;
                row += rows;
                if batch.num_rows() > 0 {
                    consume(number, &batch)?;
                }
                let now = batches.consumed();
                progress.bytes.fetch_add(now.saturating_sub(consumed), Ordering::Relaxed);
                consumed = now;
            }
            let Some(shard) = self.source.shards().get(number) else { continue };
            if let Some(claimed) = shard.rows.filter(|claimed| *claimed != row) {
                let what = format!("{row} rows were read, its index claims {claimed}");
                return Err(Error::corrupt(Place::file(shard.id.as_str()), what));
            }
            read += row;
            progress.bytes.fetch_add(shard.bytes.saturating_sub(consumed), Ordering::Relaxed);
        }
        Ok(read)
    }

    /// The rows that are selected, the columns that are wanted, in the types that are written.
    fn transform(&self, batch: RecordBatch, shard: usize, row: u64) -> Result<RecordBatch> {
        let selected = self.filter.as_ref().map(|filter| filter.evaluate(&batch)).transpose()?;
        let batch = match &selected {
            Some(selected) => filter_record_batch(&batch, selected).map_err(unexpected)?,
            None => batch,
        };
        let stored = |at: usize| {
            // The row before the filter.
            let before = selected.as_ref().and_then(|selected| selected.values().set_indices().nth(at));
            row + before.unwrap_or(at) as u64
        };
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let Some(column) = batch.column_by_name(field.name()) else {
                return Err(Error::NotFound {
                    what: format!("column {:?} of a batch", field.name()),
                    hint: String::new(),
                });
            };
            columns.push(as_type_at(field.name(), stored, column, field.data_type())?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch =
            RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(unexpected)?;
        match &self.pixels {
            Some(pixels) => pixels.apply(&batch, &|at| self.source.place(shard, stored(at))),
            None => Ok(batch),
        }
    }

    /// Names the files, writes what stands beside them, and reads everything again if that was asked for.
    pub(super) fn name_and_check(&self, staging: &Staging, done: &mut Vec<Done>) -> Result<(Vec<Part>, bool)> {
        done.sort_by_key(|done| done.task);
        if done.iter().all(|done| done.parts.is_empty()) {
            // Without rows there is still a schema.
            let task = done.iter().map(|done| done.task + 1).max().unwrap_or(0);
            let mut writer = self.sink.writer(&staging.task(task)?)?;
            writer.write(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
            done.push(Done { task, parts: writer.finish()?, digest: None, rows: 0, read: 0 });
        }
        self.count(staging, done)?;
        let total = done.iter().map(|done| done.parts.len()).sum();
        let mut named = Vec::with_capacity(total);
        for part in done.iter().flat_map(|done| &done.parts) {
            let name = self.sink.name(part, named.len(), total);
            named.push(Part { name, ..part.clone() });
        }
        let mut names: Vec<&str> = named.iter().map(|part| part.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::unsupported(
                format!("two rows for the file {:?} in {}", twice[0], self.sink.format()),
                "the column that names the files must be unique",
            ));
        }
        staging.gather(done, &named)?;
        let data = staging.data();
        self.sink.finish(&data, &named)?;
        if self.options.verify {
            self.check(&data, done)?;
        }
        Ok((named, self.options.verify))
    }
}

/// The number of a column by name.
fn column(schema: &Schema, name: &str) -> Result<usize> {
    schema.index_of(name).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().take(20).map(|field| field.name().as_str()).collect();
        let hint = format!("the columns are {}", names.join(", "));
        Error::NotFound { what: format!("column {name:?}"), hint }
    })
}

/// Some rows from the start, and the shard they are from.
fn first_rows(source: &dyn Source, read: &[usize], options: &ConvertOptions) -> Result<(RecordBatch, usize)> {
    let budget = Budget::new(options.memory_budget);
    for shard in 0..source.shards().len() {
        let batch = source.read(shard, read, &budget)?.next()?;
        if let Some(batch) = batch.filter(|batch| batch.num_rows() > 0) {
            let batch = batch.slice(0, batch.num_rows().min(4096));
            // A copy: what views point into may be a whole row group.
            let schema = Arc::new(super::ipc::plain_schema(batch.schema_ref()));
            return Ok((super::ipc::compact(&batch, &schema)?, shard));
        }
    }
    let schema = source.schema().project(read).map_err(unexpected)?;
    Ok((RecordBatch::new_empty(Arc::new(schema)), 0))
}

/// What makes a conversion the same one.
fn fingerprint(
    source: &dyn Source,
    to: Format,
    schema: &Schema,
    options: &ConvertOptions,
    buckets: Option<usize>,
) -> String {
    let mut hash = Sha256::new();
    let mut options = json!({
        "version": 1,
        "from": source.format(),
        "to": to,
        "columns": options.columns,
        "schema": schema_json(schema),
        "rows_per_group": options.rows_per_group,
        "target_file_size": options.target_file_size,
        "compression": options.compression,
        "image_quality": options.image_quality,
        "resize": options.resize,
        "shuffle": options.shuffle,
        "shards": options.shards,
        "filter": options.filter.as_ref().map(ToString::to_string),
        "verify": options.verify,
    });
    if let Some(buckets) = buckets {
        // Which order it is, and what scattered files are of.
        options["order"] = json!({ "version": shuffle::ORDER, "buckets": buckets });
    }
    hash.update(options.to_string());
    for shard in source.shards() {
        hash.update([0]);
        hash.update(&shard.id);
        hash.update([0]);
        hash.update(&shard.stamp);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};
    use parquet::arrow::ArrowWriter;

    use super::super::conversion::convert;
    use super::*;

    #[test]
    fn a_value_that_does_not_fit_is_named_by_its_row_in_the_source() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.parquet");
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 300]));
        let batch = RecordBatch::try_from_iter([("x", numbers)]).unwrap();
        let mut writer = ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let options = ConvertOptions {
            schema: Some(serde_json::from_str(r#"{"x": "int8"}"#).unwrap()),
            filter: Some("x >= 4".parse().unwrap()),
            to: Some(Format::Jsonl),
            ..ConvertOptions::default()
        };
        let dst = directory.path().join("out");
        let error = convert(path.to_str().unwrap(), &dst, &options, &Progress::default()).unwrap_err();
        assert!(error.chain().contains("row 4"), "{}", error.chain());
    }
}
