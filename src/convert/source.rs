//! What data comes from: shards with stable names, each a stream of record batches.

use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::convert::budget::Budget;
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::options::ConvertOptions;
use crate::convert::read::files::Found;
use crate::convert::types::Types;
use crate::error::{Place, Result};

/// A part of a source that is read from its start to its end by one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its name: the same as long as the source is the same.
    pub id: String,
    /// Its bytes as stored.
    pub bytes: u64,
    /// Its rows, where that is known without reading it.
    pub rows: Option<u64>,
    /// Changes when the shard does.
    pub stamp: String,
}

/// A dataset of some format, open for reading. It holds descriptions, no data.
pub trait Source: Send + Sync + Debug {
    /// Its format.
    fn format(&self) -> Format;

    /// Its columns: inferred from a sample where the format does not say.
    fn schema(&self) -> &SchemaRef;

    /// Its parts, in order.
    fn shards(&self) -> &[Shard];

    /// The files of this machine that it reads.
    fn paths(&self) -> Vec<PathBuf>;

    /// Reads shard number `shard`: the columns with these ascending numbers, in batches of some megabytes. What the format keeps
    /// in memory while reading is taken from `budget`.
    ///
    /// # Errors
    /// `Store` if the file cannot be opened, `Limit`, and what is wrong with its start.
    fn read<'a>(&'a self, shard: usize, columns: &[usize], budget: &'a Budget) -> Result<Box<dyn Batches + 'a>>;

    /// Where row `row` of shard `shard` is, for errors.
    fn place(&self, shard: usize, row: u64) -> Place {
        let file = self.shards().get(shard).map(|shard| shard.id.as_str().into());
        Place { file, row: Some(row), ..Place::default() }
    }

    /// The files of text that the rows stand in, for a reading by other means than [`read`](Self::read); none if it is no text.
    fn texts(&self) -> Vec<Text> {
        Vec::new()
    }
}

/// The rows of one shard.
pub trait Batches: Send {
    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// What is wrong with the data, with file and offset.
    fn next(&mut self) -> Result<Option<RecordBatch>>;

    /// Bytes of the shard that were read so far.
    fn consumed(&self) -> u64;
}

/// A file of text that rows of a source stand in.
#[derive(Debug, Clone)]
pub struct Text {
    pub(crate) found: Found,
    pub(crate) limits: Limits,
    pub(crate) format: Format,
    /// Of each column, whether people gave its type.
    pub(crate) given: Vec<bool>,
    /// The shards that are this file, in order.
    pub(crate) shards: Range<usize>,
}

impl Text {
    pub(crate) fn new(found: &Found, limits: &Limits, format: Format, given: &[bool], shards: Range<usize>) -> Self {
        Self { found: found.clone(), limits: limits.clone(), format, given: given.to_vec(), shards }
    }
}

/// What sources are opened with.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    pub(crate) types: Types,
    pub(crate) limits: Limits,
    pub(crate) storage_options: std::collections::BTreeMap<String, String>,
    /// Bytes that are read of a store at once.
    pub(crate) read_bytes: u64,
    /// What a finished conversion says of the columns at this place.
    pub(crate) written: Option<SchemaRef>,
}

impl Opening {
    /// As the options of a conversion say.
    pub(crate) fn of(options: &ConvertOptions) -> Self {
        Self {
            types: options.schema.clone().unwrap_or_default(),
            limits: options.limits.clone(),
            storage_options: options.storage_options.clone(),
            read_bytes: options.read_bytes(),
            written: None,
        }
    }

    /// The type that is wanted for column `name`: as given, or as it was written.
    pub(crate) fn wanted(&self, name: &str) -> Option<&arrow::datatypes::DataType> {
        let written = || self.written.as_ref().and_then(|schema| schema.field_with_name(name).ok());
        self.types.get(name).or_else(|| written().map(|field| field.data_type()))
    }

    /// The metadata that column `name` was written with.
    pub(crate) fn metadata(&self, name: &str) -> arrow::datatypes::Metadata {
        let written = self.written.as_ref().and_then(|schema| schema.field_with_name(name).ok());
        written.map(|field| field.metadata().clone()).unwrap_or_default()
    }
}

/// A shard without rows.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Batches for Nothing {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        Ok(None)
    }

    fn consumed(&self) -> u64 {
        0
    }
}

/// A shard for each file.
pub(crate) fn shards_of(found: &[Found]) -> Vec<Shard> {
    let shard = |found: &Found| Shard {
        id: found.name.to_string(),
        bytes: found.bytes,
        rows: None,
        stamp: found.stamp.clone(),
    };
    found.iter().map(shard).collect()
}

/// Batches that were made before, cut into pieces of some megabytes.
pub(crate) fn slices(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> + '_ {
    let rows = batch.num_rows();
    let each = batch.get_array_memory_size().max(1) / rows.max(1);
    let step = (BATCH_BYTES / each.max(1)).clamp(1, BATCH_ROWS);
    (0..rows).step_by(step).map(move |at| batch.slice(at, step.min(rows - at)))
}

/// Everything of a shard, for tests and samples.
pub(crate) fn drain(batches: &mut dyn Batches, mut each: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    while let Some(batch) = batches.next()? {
        each(batch)?;
    }
    Ok(())
}
