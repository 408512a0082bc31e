//! Parquet datasets: found, checked, unified, and read a row group and a column at a time.
//!
//! ```text
//!   urls ─find─► files ─footers, concurrently─► unified schema ─┬─► Manifest: row groups, rows, pinned versions, fingerprint
//!            selector, filter, windows ─► selected samples ─────┘
//!   in_units() ─► the same dataset, large row groups cut into units
//!   project(columns) ─► Projection ─┬─ cost(group)    numbers, before anything is read
//!                                   ├─ fetch(group)   bytes of whole column chunks or a unit's pages, one request batch (async)
//!                                   └─ decode(root)   one Arrow array of the selected rows (CPU)
//! ```
//!
//! If the address is a table of Delta Lake or Iceberg, the table gives the files and their rows: see `delta` and `iceberg`.
//!
//! A file is read only as the version that was there when the dataset was opened; see [`store`](crate::store).
//! Nothing in a file is trusted before it is checked: see [`Limits`].

mod aligned;
mod any_table;
mod cached;
mod chunks;
mod decode;
mod delta;
mod described;
mod dictionaries;
mod direct;
mod features;
mod files;
pub mod filter;
mod footer;
mod guard;
mod head;
pub(crate) mod held;
mod hidden;
pub(crate) mod hive;
mod iceberg;
mod index;
mod julian;
mod layout;
mod levels;
mod limits;
mod local;
mod masked;
mod ngram;
mod offsets;
mod open;
mod outline;
mod packed;
mod page_memory;
mod pages;
pub mod petastorm;
mod project;
mod read;
mod run;
mod select;
mod selection;
mod selector;
mod shape;
mod table;
mod thrift;
mod times;
mod told;
mod unify;
#[cfg(test)]
mod unit_values;
mod units;
mod unpack;
#[cfg(feature = "convert")]
mod version;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, SchemaRef};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescriptor;

pub use described::Petastorm;
#[cfg(feature = "convert")]
pub(crate) use features::{HUGGING_FACE, hugging_face_columns, hugging_face_of};
pub use hidden::Hidden;
pub use hive::Partitioning;
pub use index::Index;
pub use limits::Limits;
pub use ngram::Ngram;
pub use open::OpenOptions;
pub use packed::Chunk;
pub use project::{Projection, Root};
pub use read::{Cost, Fetched};
pub(crate) use select::Room;
pub use selector::Selector;
#[cfg(feature = "flight")]
pub(crate) use write::{CellForm, FileWriter, Sink, cell_form, long_cells};
pub use write::{Compression, DatasetWriter, SCHEMA_KEY, WriterOptions, Written};
#[cfg(feature = "convert")]
pub(crate) use write::{Finished, lacking};

use crate::error::{Error, Place, Result};
#[cfg(feature = "flight")]
use crate::manifest::FileEntry;
use crate::manifest::{Manifest, RowGroup};
use crate::memory::ALIGNMENT;
use crate::store::cache::CacheReader;
use crate::store::{Base, Found, Object};
use layout::Layout;
pub(crate) use open::within;
use outline::{Sealed, Wide};
use packed::Packed;
use selection::Selection;
pub(crate) use told::Told;
pub(crate) use units::Sizes;
use units::Units;

/// Approximate bytes of a value that a directory gives its files, and of what is kept of a leaf column for all files with its schema.
#[cfg(feature = "flight")]
const PARTITION: usize = 64;
#[cfg(feature = "flight")]
const LEAF: usize = 1 << 10;

/// An open dataset. It holds footers and numbers, no data and no open files. Clones share everything.
#[derive(Debug, Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
    /// The columns that are seen, where some are hidden.
    visible: Option<SchemaRef>,
    /// Units that stand for the row groups, if they are cut.
    units: Option<Arc<Units>>,
}

#[derive(Debug)]
struct Inner {
    files: Vec<DataFile>,
    /// The column chunks of all files.
    packed: Packed,
    layouts: Vec<Layout>,
    schema: SchemaRef,
    petastorm: Option<Petastorm>,
    /// Other facts from the index of the dataset: where its files are, what bowstring's writer said of the first one's cells, and
    /// what lay beside them, if it was looked for.
    base: Option<Base>,
    /// Place where the index of the dataset is looked for.
    place: Option<Found>,
    /// Cache that its objects are read through, if there is one.
    cache: Option<CacheReader>,
    urls: Vec<String>,
    /// True if its files have another order than their addresses.
    is_reordered: bool,
    cells: Option<String>,
    /// Spark's schema in the first footer, where it says more than Parquet's.
    spark: Option<String>,
    /// Hugging Face's descriptions of columns.
    described: features::Described,
    /// Columns that have no type over all files.
    clashes: BTreeMap<Arc<str>, layout::Clash>,
    /// Columns that come from directories, and that a file beside them stores: its name.
    apart: BTreeMap<Arc<str>, Arc<str>>,
    /// Columns that a table requires, and that one of its files lacks: its name.
    lacking: BTreeMap<Arc<str>, Arc<str>>,
    /// Columns whose values in a file that lacks them cannot be read: its name.
    untold: BTreeMap<Arc<str>, Arc<str>>,
    /// True if descriptions of cells are heeded.
    decode: bool,
    beside: Option<Option<described::Beside>>,
    /// The version of a table that this is, if it is one.
    table: Option<table::About>,
    /// Number of columns at the end of `schema` that come from directories, or from the log of a table.
    partitions: usize,
    /// Columns that have a value of their own in files that lack them.
    told: BTreeSet<String>,
    manifest: Arc<Manifest>,
    /// Rows of the pruned files of a table, none of which the filter selects.
    pruned: u64,
    /// Row number of the first row of each row group, before any filter.
    first_rows: Vec<u64>,
    /// Selected rows of each row group; all rows of those that are not here.
    selections: Vec<Selection>,
    /// Number of the first selected row of each row group among all selected rows, modulo [`ALIGNMENT`]; made when it is asked for.
    begins: OnceLock<Vec<u8>>,
    /// First rows of the windows of each row group, among the selected ones, if windows are the samples.
    windows: Option<Vec<Vec<u32>>>,
    limits: Limits,
}

/// One file.
#[derive(Debug)]
struct DataFile {
    object: Object,
    /// Number of its first row group among all, those without rows included, and how many it has.
    first: usize,
    groups: usize,
    layout: usize,
    partitions: hive::Values,
    /// Column chunks that are encrypted.
    sealed: Sealed,
    /// Columns of wide integers, where the footer itself was read.
    wide: Vec<Wide>,
}

/// Stored sizes of one leaf column over all files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnSize {
    /// The leaf's dotted path in Parquet, e.g. `tags.list.element`.
    pub path: String,
    /// Bytes as stored.
    pub compressed: u64,
    /// Bytes of its pages before compression.
    pub uncompressed: u64,
    /// Values, nulls and empty lists included.
    pub values: u64,
    /// Compression codecs in use.
    pub codecs: BTreeSet<String>,
    /// Encodings in use.
    pub encodings: BTreeSet<String>,
}

impl Dataset {
    /// Rows of row group `group` that are decoded: those that the filter selects.
    pub(crate) fn decoded_rows(&self, group: usize) -> u64 {
        let Some(found) = self.manifest().groups.get(group) else { return 0 };
        if self.part(group).is_some() {
            // Windows are not cut, so these are rows.
            return found.selected;
        }
        self.selection(group).map_or(found.rows, |selection| selection.count(found.rows))
    }

    /// The number of the first selected row of row group `group` among all selected rows in file order, modulo [`ALIGNMENT`].
    fn begin(&self, group: usize) -> u64 {
        let line = ALIGNMENT as u64;
        let begins = self.inner.begins.get_or_init(|| {
            let selected = self.inner.manifest.groups.iter().map(|group| group.selected);
            let begins = selected.scan(0, |next, rows| Some(std::mem::replace(next, (*next + rows % line) % line)));
            begins.map(|begin| begin as u8).collect()
        });
        let begin = begins.get(self.number(group)).copied().map_or(0, u64::from);
        (begin + self.selected_before(group) % line) % line
    }

    /// The decoded row that sample `sample` of row group `group` begins with: itself, or the first row of a window.
    pub(crate) fn first_row(&self, group: usize, sample: u32) -> u32 {
        let windows = self.inner.windows.as_ref().and_then(|windows| windows.get(group));
        windows.map_or(sample, |windows| windows.get(sample as usize).copied().unwrap_or(u32::MAX))
    }

    /// Returns true if samples are windows of rows, and not rows.
    pub(crate) fn has_ngrams(&self) -> bool {
        self.inner.windows.is_some()
    }

    /// Files, row groups or [units](Self::in_units) of them, pinned versions and the fingerprint.
    pub fn manifest(&self) -> &Arc<Manifest> {
        self.units.as_ref().map_or(&self.inner.manifest, |units| &units.manifest)
    }

    /// The columns of all files together, partition columns last. Strings and bytes are views.
    pub fn schema(&self) -> &SchemaRef {
        self.visible.as_ref().unwrap_or(&self.inner.schema)
    }

    /// The same dataset without the columns and members of structs that `hidden` says, by their dotted names. A list or map that holds
    /// something hidden is hidden as a whole.
    #[must_use]
    pub fn without(&self, hidden: &dyn Fn(&str) -> bool) -> Self {
        Self { visible: Some(hidden::visible(self.schema(), hidden)), ..self.clone() }
    }

    /// The addresses that it was opened at, without secrets.
    pub(crate) fn urls(&self) -> &[String] {
        &self.inner.urls
    }

    /// Returns true if its files, which are sorted by name, have another order than the addresses that lead to them.
    pub(crate) fn is_reordered(&self) -> bool {
        self.inner.is_reordered
    }

    /// Petastorm's description of the dataset, if it wrote it.
    pub fn petastorm(&self) -> Option<&Petastorm> {
        self.inner.petastorm.as_ref()
    }

    /// Names of the columns that come from directories.
    pub fn partition_columns(&self) -> impl Iterator<Item = &str> {
        let fields = self.inner.schema.fields();
        let all = fields.iter().skip(fields.len() - self.inner.partitions).map(|field| field.name().as_str());
        all.filter(|name| self.schema().field_with_name(name).is_ok())
    }

    /// Those of them that are text although all their values are dates: [`Partitioning::Dates`] makes them dates.
    pub fn partition_dates(&self) -> Vec<&str> {
        let is_text = |name: &&str| {
            self.schema().field_with_name(name).is_ok_and(|field| matches!(field.data_type(), DataType::Utf8View))
        };
        let values = || self.inner.files.iter().map(|file| &file.partitions);
        self.partition_columns().filter(is_text).filter(|name| hive::all_dates(values(), name)).collect()
    }

    /// Rows of all row groups, before any filter.
    pub fn stored_rows(&self) -> u64 {
        self.inner.manifest.groups.iter().map(|group| group.rows).fold(self.inner.pruned, u64::saturating_add)
    }

    /// The number in the dataset, before any filter and in file order, of the `row`-th selected row of row group `group`.
    pub fn row_id(&self, group: usize, row: u64) -> u64 {
        let first = self.inner.first_rows.get(self.number(group)).copied().unwrap_or_default();
        first.saturating_add(self.stored_row(group, row))
    }

    /// The number within row group `group`, before any filter, of its `row`-th selected row, as a [`Place`] has it.
    pub(crate) fn stored_row(&self, group: usize, row: u64) -> u64 {
        match self.selection(group) {
            Some(selection) => selection.row(self.selected_before(group).saturating_add(row)),
            None => self.range(group).start.saturating_add(row),
        }
    }

    /// File and row group that number `group` of the manifest stands for.
    pub fn place(&self, group: usize) -> Place {
        let manifest = self.manifest();
        let Some(row_group) = manifest.groups.get(group) else { return Place::default() };
        let file = manifest.files.get(row_group.file as usize).map(|file| Arc::clone(&file.path));
        Place { file, row_group: Some(row_group.ordinal as usize), ..Place::default() }
    }

    /// The footer of file number `file` of the manifest, read once more: what reading rows needs of it is kept, the rest is not.
    ///
    /// # Errors
    /// [`Error::SourceChanged`] if it is not the footer that was opened; [`Error::NotFound`] for a number that is not in the manifest;
    /// [`Error::Store`].
    pub async fn footer(&self, file: usize) -> Result<ParquetMetaData> {
        let entry = self.inner.files.get(file).zip(self.inner.manifest.files.get(file));
        let missing = || Error::NotFound { what: format!("file {file} of the dataset"), hint: String::new() };
        let (data, entry) = entry.ok_or_else(missing)?;
        footer::again(&data.object, entry.footer, None, None, &self.inner.limits).await
    }

    /// Shows `visit` every column chunk, those of row groups without rows included, file by file.
    pub fn each_chunk(&self, visit: &mut dyn FnMut(&ColumnDescriptor, &Chunk)) {
        for file in &self.inner.files {
            let Some(layout) = self.inner.layouts.get(file.layout) else { continue };
            let columns = layout.descriptor().columns();
            for number in file.first..file.first + file.groups {
                for (column, chunk) in columns.iter().zip(self.inner.packed.chunks(number, columns.len())) {
                    visit(column, &chunk);
                }
            }
        }
    }

    /// The schemas of the files, each once, in the order in which files have them, with the columns that their leaves make up, in the
    /// same order.
    #[cfg(feature = "cli")]
    pub(crate) fn file_columns(&self) -> impl Iterator<Item = (&parquet::schema::types::SchemaDescriptor, &SchemaRef)> {
        self.inner.layouts.iter().map(|layout| (layout.descriptor(), &layout.schema))
    }

    /// The full address of file number `file` of the manifest, without credentials.
    pub fn url(&self, file: usize) -> Option<String> {
        self.inner.files.get(file).map(|file| file.object.url())
    }

    /// Stored sizes of the leaf columns, in the order of the files' schemas.
    pub fn column_sizes(&self) -> Vec<ColumnSize> {
        let mut order = Vec::new();
        let mut sizes: BTreeMap<String, ColumnSize> = BTreeMap::new();
        self.each_chunk(&mut |column, chunk| {
            let path = column.path().string();
            let size = sizes.entry(path.clone()).or_insert_with(|| {
                order.push(path.clone());
                ColumnSize { path, ..ColumnSize::default() }
            });
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut size.compressed, chunk.stored);
            add(&mut size.uncompressed, chunk.unpacked);
            add(&mut size.values, chunk.values);
            size.codecs.insert(format!("{}", chunk.compression()));
            size.encodings.extend(chunk.encodings().map(|encoding| encoding.to_string()));
        });
        order.iter().filter_map(|path| sizes.remove(path)).collect()
    }

    /// The version of the Delta table, or the snapshot of the Iceberg table, that the dataset is; none for other datasets.
    pub fn table_version(&self) -> Option<u64> {
        self.inner.table.as_ref().map(|table| table.version)
    }

    /// Approximate bytes of memory while it is open: what is kept of files and footers, and the rows that a filter selected.
    #[cfg(feature = "flight")]
    pub(crate) fn memory_size(&self) -> u64 {
        let Inner { files, packed, layouts, manifest, first_rows, selections, windows, .. } = &*self.inner;
        // The name is in the object and in the manifest, and the tag of the version too.
        let named = |file: &FileEntry| {
            let partitions = file.partitions.len() * PARTITION;
            size_of::<FileEntry>()
                + 2 * file.path.len()
                + 2 * file.version.etag.as_ref().map_or(0, String::len)
                + partitions
        };
        let names: usize = manifest.files.iter().map(named).sum();
        let leaves: usize = layouts.iter().map(|layout| layout.descriptor().num_columns()).sum();
        let marks = |file: &DataFile| size_of_val(file.sealed.as_slice()) + size_of_val(file.wide.as_slice());
        let whole = names
            + size_of_val(files.as_slice())
            + files.iter().map(marks).sum::<usize>()
            + size_of_val(manifest.groups.as_slice())
            + size_of_val(first_rows.as_slice())
            + packed.memory_size()
            + leaves * LEAF
            + selections.iter().map(Selection::memory_size).sum::<usize>()
            + windows.iter().flatten().map(|first| size_of_val(first) + size_of_val(first.as_slice())).sum::<usize>();
        let units = self.units.as_ref().map_or(0, |units| units.memory_size() + names);
        (whole + units) as u64
    }

    /// Returns true if all its files are on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.inner.files.iter().all(|file| file.object.is_local())
    }

    /// The column chunks of row group `group`, up to and with the last leaf of `projection`.
    pub(crate) fn chunks(&self, group: usize, projection: &Projection) -> Vec<Chunk> {
        let Ok((row_group, file, _)) = self.group(group) else { return Vec::new() };
        let count = projection.leaves(file.layout).last().map_or(0, |last| last + 1);
        self.inner.packed.chunks(file.first + row_group.ordinal as usize, count)
    }

    /// Row group, file and layout behind number `group` of the manifest.
    fn group(&self, group: usize) -> Result<(&RowGroup, &DataFile, &Layout)> {
        let missing = || Error::NotFound { what: format!("row group {group} of the dataset"), hint: String::new() };
        self.inner.group(self.manifest().groups.get(group)).ok_or_else(missing)
    }
}

impl Inner {
    /// `group` with its file and layout.
    fn group<'a>(&'a self, group: Option<&'a RowGroup>) -> Option<(&'a RowGroup, &'a DataFile, &'a Layout)> {
        let row_group = group?;
        let file = self.files.get(row_group.file as usize)?;
        Some((row_group, file, self.layouts.get(file.layout)?))
    }
}
