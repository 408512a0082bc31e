//! A conversion from options to published output: the columns read and written, and the tasks.

mod address;
mod apart;
mod buckets;
mod check;
mod commit;
mod contents;
mod conversion;
mod destination;
mod finished;
mod journal;
mod plan;
mod publish;
mod resize;
mod run;
mod scatter;
mod shuffle;
mod task;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::apart::{apart, spared};
use self::journal::{Done, Noted};
use self::resize::Resizer;
use self::tasks::tasks;
use crate::convert::budget::Budget;
use crate::convert::errors::unexpected;
use crate::convert::format::Format;
use crate::convert::formats::{self, huggingface, ipc};
use crate::convert::options::ConvertOptions;
use crate::convert::read::listing::is_remote;
use crate::convert::read::remote;
use crate::convert::sink::Sink;
use crate::convert::source::Source;
use crate::convert::types::{schema_json, type_text};
use crate::convert::values::sample;
use crate::dataset::filter::{Bound, Expr, Filter};
use crate::error::{Error, Result};
use crate::hex;
use crate::schema::{missing, within};
use crate::store::directory::Destination;

pub use self::conversion::{Begun, Conversion, Report, convert, work};
pub use self::plan::{Plan, plan};
pub use self::publish::is_unfinished;

/// What a conversion is known by: its source and its options, but for those that change nothing about the output.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) fingerprint: String,
    /// The fingerprint without the versions of the files.
    pub(crate) settings: String,
}

/// A conversion that is ready to run: nothing has been written.
#[derive(Debug)]
pub(crate) struct Job {
    /// Address of the source.
    pub(crate) src: String,
    pub(crate) source: Box<dyn Source>,
    pub(crate) sink: Box<dyn Sink>,
    /// Ascending numbers of the source's columns to read.
    pub(crate) read: Vec<usize>,
    pub(crate) filter: Option<Bound>,
    pixels: Option<Resizer>,
    /// Schema of the written columns.
    pub(crate) schema: SchemaRef,
    pub(crate) tasks: Vec<Range<usize>>,
    /// Number of units in the journal: tasks, or buckets of a shuffle.
    pub(crate) units: usize,
    /// Files of each task, if their number is given.
    files: Option<Vec<usize>>,
    pub(crate) identity: Identity,
    /// The identity that former versions gave it if it was verified.
    former: Identity,
    sample: RecordBatch,
    /// The shard that the sample comes from.
    sampled: usize,
    /// Bytes that a task reads ahead of use from a store.
    read_ahead: u64,
    pub(crate) options: ConvertOptions,
}

impl Job {
    pub(crate) fn new(src: &str, dst: &Path, options: &ConvertOptions) -> Result<Self> {
        options.check()?;
        Destination::of(dst, "dst")?;
        let (src, options) = options.mounted(src)?;
        let (src, options) = (&*src, &*options);
        apart(src, dst)?;
        let source = formats::open(src, options)?;
        spared(&*source, dst)?;
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
        source.agree(&wanted)?;
        for (name, data_type) in options.schema.iter().flat_map(|types| &types.0) {
            let found = given.field(column(given, name)?).data_type();
            if let Some(member) = missing(found, data_type) {
                let problem = format!("column {name:?} of type {} has no member {member:?}", type_text(found));
                return Err(Error::config("schema", problem));
            }
        }
        let mut read: BTreeSet<usize> = wanted.iter().copied().collect();
        let condition = options.filter.as_ref().map(Filter::parse).transpose()?;
        let filter = condition.as_ref().map(|condition| condition.bind(given)).transpose()?;
        if let Some(filter) = &filter {
            for path in filter.paths() {
                if let Some(number) = path.first().and_then(|root| given.index_of(root).ok()) {
                    read.insert(number);
                }
            }
        }
        let read: Vec<usize> = read.into_iter().collect();
        let keeps = matches!(to, Format::Parquet | Format::Datasets);
        let field = |number: &usize| {
            let field = given.field(*number).clone();
            let field = match field.data_type() {
                DataType::Dictionary(..) | DataType::RunEndEncoded(..) if keeps => field,
                // Most formats' readers do not support dictionaries, and an Arrow file has one dictionary for all of its batches.
                packed => {
                    let unpacked = unpacked(packed);
                    field.with_data_type(unpacked)
                }
            };
            match options.schema.as_ref().and_then(|types| types.get(field.name())) {
                Some(data_type) => field.with_data_type(data_type.clone()),
                None => field,
            }
        };
        let fields: Vec<Field> = wanted.iter().map(field).collect();
        // What is said of a column is not said of the type that it is given here.
        let is_kept = |field: &&Field| options.schema.as_ref().is_none_or(|types| types.get(field.name()).is_none());
        let kept: Vec<Field> = fields.iter().filter(is_kept).cloned().collect();
        let metadata = huggingface::metadata_of(given.metadata(), &kept);
        let (sample, sampled) = first_rows(&*source, &read, options)?;
        let mut schema = sample::mark_images(&Schema::new_with_metadata(fields, metadata), &sample)?;
        let at = |row| source.place(sampled, row);
        let pixels = Resizer::new(&schema, options).map_err(|error| sample::odd_image(error, &sample, &at))?;
        if let Some(pixels) = &pixels {
            schema = pixels.schema(&schema);
        }
        let schema = Arc::new(schema);
        let sink = formats::sink(to, &schema, options, &sample);
        let sink = sink.map_err(|error| sample::odd_image(error, &sample, &at))?;
        let (tasks, files) = tasks(&*source, options);
        let buckets = options.shuffle.map(|_| buckets::buckets(source.shards(), options.shards));
        let units = buckets.unwrap_or(tasks.len());
        // Types given for columns that only the filter reads decide about rows, although nothing is written of them.
        let unwritten = read.iter().filter(|number| !wanted.contains(number)).map(|number| given.field(*number));
        let unwritten: BTreeMap<&str, String> = unwritten
            .filter_map(|field| Some((field.name().as_str(), type_text(options.schema.as_ref()?.get(field.name())?))))
            .collect();
        let [identity, former] = identities(&*source, to, &schema, &unwritten, options, condition.as_ref(), buckets);
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
            identity,
            former,
            sample,
            sampled,
            read_ahead,
            options,
        })
    }

    /// Returns what a journal of this conversion, of the source at this address, says.
    pub(crate) fn noted<'a>(&'a self, source: &'a str) -> Noted<'a> {
        let [fingerprint, former] = [&self.identity, &self.former].map(|identity| identity.fingerprint.as_str());
        Noted { fingerprint, former, source, verify: self.options.verify }
    }

    /// Returns the bytes of the source.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.source.shards().iter().map(|shard| shard.bytes).sum()
    }

    /// Returns the numbers of tasks, or of buckets of a shuffle, that remain.
    pub(crate) fn left(&self, done: &[Done]) -> Vec<usize> {
        (0..self.units).filter(|task| done.iter().all(|done| done.task != *task)).collect()
    }
}

/// Returns the type without dictionaries and runs, at any depth.
fn unpacked(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => unpacked(values),
        DataType::RunEndEncoded(_, values) => unpacked(values.data_type()),
        rest => within(rest, unpacked),
    }
}

/// Returns the number of a column by name.
fn column(schema: &Schema, name: &str) -> Result<usize> {
    schema.index_of(name).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().take(20).map(|field| field.name().as_str()).collect();
        let hint = format!("the columns are {}", names.join(", "));
        Error::NotFound { what: format!("column {name:?}"), hint }
    })
}

/// Returns some rows from the start, and the shard they come from.
fn first_rows(source: &dyn Source, read: &[usize], options: &ConvertOptions) -> Result<(RecordBatch, usize)> {
    let budget = Budget::new(options.memory_budget);
    for shard in 0..source.shards().len() {
        let batch = source.read(shard, read, &budget)?.next()?;
        if let Some(batch) = batch.filter(|batch| batch.num_rows() > 0) {
            let batch = batch.slice(0, batch.num_rows().min(4096));
            // Copied, because views may keep a whole row group alive.
            let schema = Arc::new(ipc::plain_schema(batch.schema_ref()));
            return Ok((ipc::compact(&batch, &schema)?, shard));
        }
    }
    let schema = source.schema().project(read).map_err(unexpected)?;
    Ok((RecordBatch::new_empty(Arc::new(schema)), 0))
}

/// Computes the identity of a conversion, and the one that former versions gave it if it was verified. Parts that few conversions have are
/// left out of the others, so that what a former version began is resumed.
fn identities(
    source: &dyn Source,
    to: Format,
    schema: &Schema,
    unwritten: &BTreeMap<&str, String>,
    options: &ConvertOptions,
    condition: Option<&Expr>,
    buckets: Option<usize>,
) -> [Identity; 2] {
    let images = &options.images;
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
        "filter": condition.map(ToString::to_string),
        "verify": false,
    });
    if !images.is_empty() {
        options["images"] = json!(images);
    }
    if !unwritten.is_empty() {
        options["unwritten"] = json!(unwritten);
    }
    if let Some(buckets) = buckets {
        // Version of the order, and the layout of scattered files.
        options["order"] = json!({ "version": buckets::ORDER, "buckets": buckets });
    }
    if matches!(source.format(), Format::Parquet | Format::Petastorm)
        && let Some(described) = huggingface::kept(to, schema)
    {
        // A former version lost it.
        options["features"] = json!(described);
    }
    let own = identity(source, &options);
    options["verify"] = json!(true);
    // Digests of cells with arrays were others before.
    if schema.fields().iter().any(|field| field.data_type().is_binary()) {
        options["digest"] = json!(2);
    }
    [own, identity(source, &options)]
}

/// The identity of a conversion of `source` with these options.
fn identity(source: &dyn Source, options: &Value) -> Identity {
    let mut settings = Sha256::new();
    settings.update(options.to_string());
    let mut hash = settings.clone();
    for shard in source.shards() {
        for hash in [&mut hash, &mut settings] {
            hash.update([0]);
            hash.update(&shard.id);
            hash.update([0]);
        }
        hash.update(&shard.stamp);
    }
    Identity { fingerprint: hex::of(hash.finalize()), settings: hex::of(settings.finalize()) }
}
