//! Sources of data: shards with stable names, each a stream of record batches.

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
use crate::dataset::hive::Values;
use crate::error::{Place, Result};

/// A part of a source that one task reads sequentially.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Name, stable as long as the source is the same.
    pub id: String,
    /// Stored bytes.
    pub bytes: u64,
    /// Rows, if known without reading it.
    pub rows: Option<u64>,
    /// Stamp that changes with the shard.
    pub stamp: String,
}

/// An open dataset of some format. It holds metadata only, no data.
pub trait Source: Send + Sync + Debug {
    /// Returns its format.
    fn format(&self) -> Format;

    /// Returns its columns: inferred from a sample if the format does not define them.
    fn schema(&self) -> &SchemaRef;

    /// Returns its parts, in order.
    fn shards(&self) -> &[Shard];

    /// Returns the local files that it reads.
    fn paths(&self) -> Vec<PathBuf>;

    /// Checks that the values of the columns with these numbers mean the same in all files.
    ///
    /// # Errors
    /// `Mismatch` naming a column, and two files in which it means something else.
    fn agree(&self, columns: &[usize]) -> Result<()> {
        let _ = columns;
        Ok(())
    }

    /// Reads shard number `shard`: the columns with these ascending numbers, in batches of some megabytes. Memory that the format keeps
    /// while reading is taken from `budget`.
    ///
    /// # Errors
    /// `Store` if the file cannot be opened, `Limit`, and errors about the start of the data.
    fn read<'a>(&'a self, shard: usize, columns: &[usize], budget: &'a Budget) -> Result<Box<dyn Batches + 'a>>;

    /// Returns the place of row `row` of shard `shard`, for errors.
    fn place(&self, shard: usize, row: u64) -> Place {
        let file = self.shards().get(shard).map(|shard| shard.id.as_str().into());
        Place { file, row: Some(row), ..Place::default() }
    }

    /// Returns the text files of the rows, to be read by other code than [`read`](Self::read); empty if the format is not text.
    fn texts(&self) -> Vec<Text> {
        Vec::new()
    }
}

/// The rows of one shard.
pub trait Batches: Send {
    /// Returns the next batch; `None` at the end.
    ///
    /// Errors about the data, with file and offset.
    /// Errors about the data, with file and offset.
    fn next(&mut self) -> Result<Option<RecordBatch>>;

    /// Returns the bytes of the shard that were read so far.
    fn consumed(&self) -> u64;
}

/// A text file with rows of a source.
#[derive(Debug, Clone)]
pub struct Text {
    pub(crate) found: Found,
    pub(crate) limits: Limits,
    pub(crate) format: Format,
    /// For each column, whether the user gave its type.
    pub(crate) given: Vec<bool>,
    /// The shards in this file, in order.
    pub(crate) shards: Range<usize>,
    /// The values of the directories that it lies in, if these are columns.
    pub(crate) directories: Values,
}

impl Text {
    pub(crate) fn new(found: &Found, limits: &Limits, format: Format, given: &[bool], shards: Range<usize>) -> Self {
        let (found, limits, given) = (found.clone(), limits.clone(), given.to_vec());
        Self { found, limits, format, given, shards, directories: Values::new() }
    }
}

/// Settings for opening a source.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) types: Types,
    pub(crate) limits: Limits,
    pub(crate) storage_options: std::collections::BTreeMap<String, String>,
    /// Bytes that are read of a store at once.
    pub(crate) read_bytes: u64,
    /// Schema recorded by a finished conversion at this place.
    pub(crate) written: Option<SchemaRef>,
}

impl Opening {
    /// Derives the settings from the options of a conversion.
    pub(crate) fn of(options: &ConvertOptions) -> Self {
        Self {
            types: options.schema.clone().unwrap_or_default(),
            limits: options.limits.clone(),
            storage_options: options.storage_options.clone(),
            read_bytes: options.read_bytes(),
            written: None,
        }
    }

    /// Returns the requested type of column `name`: as given, or as it was written.
    pub(crate) fn wanted(&self, name: &str) -> Option<&arrow::datatypes::DataType> {
        let written = || self.written.as_ref().and_then(|schema| schema.field_with_name(name).ok());
        self.types.get(name).or_else(|| written().map(|field| field.data_type()))
    }

    /// Returns the metadata that column `name` was written with.
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

/// Makes a shard of each file.
pub(crate) fn shards_of(found: &[Found]) -> Vec<Shard> {
    let shard = |found: &Found| Shard {
        id: found.name.to_string(),
        bytes: found.bytes,
        rows: None,
        stamp: found.stamp.clone(),
    };
    found.iter().map(shard).collect()
}

/// Splits a batch into slices of some megabytes.
pub(crate) fn slices(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> + '_ {
    let rows = batch.num_rows();
    let each = batch.get_array_memory_size().max(1) / rows.max(1);
    let step = (BATCH_BYTES / each.max(1)).clamp(1, BATCH_ROWS);
    (0..rows).step_by(step).map(move |at| batch.slice(at, step.min(rows - at)))
}

/// Passes all batches of a shard to `each`, for tests and samples.
pub(crate) fn drain(batches: &mut dyn Batches, mut each: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    while let Some(batch) = batches.next()? {
        each(batch)?;
    }
    Ok(())
}
