//! What data comes from: shards with stable names, each a stream of record batches.

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::budget::Budget;
use super::files::{self, Limits};
use super::format::Format;
use super::listing::{Listing, is_pattern, is_remote};
use super::options::ConvertOptions;
use super::tokens::Text;
use super::types::{self, Types};
use super::{csv, huggingface, images, ipc, jsonl, mds, numpy, parquet, tfrecord, webdataset};
use crate::error::{Place, Result};

/// Rows of a batch at most.
pub(super) const BATCH_ROWS: usize = 8192;

/// Bytes of a batch at which it ends. A single row may be larger.
pub(super) const BATCH_BYTES: usize = 4 << 20;

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

/// What sources are opened with.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    pub(super) types: Types,
    pub(super) limits: Limits,
    pub(super) storage_options: std::collections::BTreeMap<String, String>,
    /// Bytes that are read of a store at once.
    pub(super) read_bytes: u64,
    /// What a finished conversion says of the columns at this place.
    pub(super) written: Option<SchemaRef>,
}

impl Opening {
    /// The type that is wanted for column `name`: as given, or as it was written.
    pub(super) fn wanted(&self, name: &str) -> Option<&arrow::datatypes::DataType> {
        let written = || self.written.as_ref().and_then(|schema| schema.field_with_name(name).ok());
        self.types.get(name).or_else(|| written().map(|field| field.data_type()))
    }

    /// The metadata that column `name` was written with.
    pub(super) fn metadata(&self, name: &str) -> arrow::datatypes::Metadata {
        let written = self.written.as_ref().and_then(|schema| schema.field_with_name(name).ok());
        written.map(|field| field.metadata().clone()).unwrap_or_default()
    }
}

/// Opens the dataset at `src`, in the format that the options give or its names tell.
///
/// # Errors
/// `NotFound` if nothing is there; `Config` names `from` if its format cannot be told; `Corrupt`, `Unsupported`, `Limit` and `Store` for
/// what cannot be read.
pub fn open(src: &str, options: &ConvertOptions) -> Result<Box<dyn Source>> {
    let mut opening = Opening {
        types: options.schema.clone().unwrap_or_default(),
        limits: options.limits.clone(),
        storage_options: options.storage_options.clone(),
        read_bytes: options.read_bytes(),
        written: None,
    };
    let known = options.from.or_else(|| Format::of_address(src));
    // The dataset finds its files itself. (Of Petastorm's, `_SUCCESS` says which arrays were lists.)
    if known == Some(Format::Parquet) && is_remote(src) || is_pattern(src) {
        return open_as(known.unwrap_or(Format::Parquet), src, &opening);
    }
    let tree = Listing::open(src, &opening.storage_options, opening.read_bytes)?;
    let format = known.map_or_else(|| Format::guess(&tree), Ok)?;
    opening.written = super::publish::success(&tree, &options.limits)
        .and_then(|success| types::schema_from_json(success.get("schema")?));
    open_in(Some(tree), format, src, &opening)
}

pub(super) fn open_as(format: Format, src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    open_in(None, format, src, opening)
}

/// Opens `src`, which `tree` is, if somebody looked there before.
fn open_in(tree: Option<Listing>, format: Format, src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    let open = match format {
        Format::Parquet | Format::Petastorm => return parquet::open(src, opening),
        Format::Arrow => ipc::open,
        Format::Csv => csv::open,
        Format::Jsonl => jsonl::open,
        Format::Tfrecord => tfrecord::open,
        Format::Webdataset => webdataset::open,
        Format::Mds => mds::open,
        Format::Images => images::open,
        Format::Numpy => numpy::open,
        Format::Datasets => huggingface::open,
    };
    let tree = tree.map_or_else(|| Listing::open(src, &opening.storage_options, opening.read_bytes), Ok)?;
    open(&tree, opening)
}

/// A shard without rows.
#[derive(Debug)]
pub(super) struct Nothing;

impl Batches for Nothing {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        Ok(None)
    }

    fn consumed(&self) -> u64 {
        0
    }
}

/// A shard for each file.
pub(super) fn shards_of(found: &[files::Found]) -> Vec<Shard> {
    let shard = |found: &files::Found| Shard {
        id: found.name.to_string(),
        bytes: found.bytes,
        rows: None,
        stamp: found.stamp.clone(),
    };
    found.iter().map(shard).collect()
}

/// Batches that were made before, cut into pieces of some megabytes.
pub(super) fn slices(batch: &RecordBatch) -> impl Iterator<Item = RecordBatch> + '_ {
    let rows = batch.num_rows();
    let each = batch.get_array_memory_size().max(1) / rows.max(1);
    let step = (BATCH_BYTES / each.max(1)).clamp(1, BATCH_ROWS);
    (0..rows).step_by(step).map(move |at| batch.slice(at, step.min(rows - at)))
}

/// Everything of a shard, for tests and samples.
pub(super) fn drain(batches: &mut dyn Batches, mut each: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    while let Some(batch) = batches.next()? {
        each(batch)?;
    }
    Ok(())
}
