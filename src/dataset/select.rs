//! The filter over a whole dataset, once, when it is opened: which rows of which row groups are left.
//!
//! ```text
//!   row groups ─statistics, directories─► may match ─page index─► pages that may match ─read, evaluate─► Selection
//! ```
//!
//! Only the filter's columns are read, and of them only the pages that may match. A few files are under way at a time, each
//! from its statistics to its selections, so that page indexes do not pile up however many files there are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field as ArrowField, Schema};
use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMask, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::chunks::{Chunks, coalesce};
use super::decode::Rows;
use super::filter::{Bound, Expr};
use super::footer;
use super::guard::guard;
use super::project::Projection;
use super::read::Fetched;
use super::selection::Selection;
use super::thrift::{Field, Reader, kind};
use super::{Chunk, DataFile, Dataset, Layout, OpenOptions, times, within};
use crate::error::{Error, Place, Result};

/// KiB that row groups being evaluated may be granted together, whatever the options say: a semaphore counts no further.
const MAX_KIB: u64 = 1 << 28;

/// A file's page index is not read if it spans more than this.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The memory shared by row groups that are read while a dataset is opened.
#[derive(Debug)]
pub(crate) struct Room {
    /// KiB that they may take together.
    memory: Semaphore,
    /// The same in KiB: none may ask for more.
    most: u32,
    /// Bytes that one may take, alone if need be.
    limit: u64,
}

impl Room {
    pub(crate) fn new(options: &OpenOptions) -> Self {
        let most = (options.memory >> 10).clamp(1, MAX_KIB) as u32;
        Self { memory: Semaphore::new(most as usize), most, limit: options.memory_limit }
    }

    /// Waits for room for `columns` of row group `group`, held until the permit is dropped.
    ///
    /// # Errors
    /// [`Error::Limit`] for a row group that takes more than there is.
    pub(crate) async fn take(
        &self,
        dataset: &Dataset,
        columns: &Projection,
        group: usize,
    ) -> Result<SemaphorePermit<'_>> {
        let asked = dataset.cost(group, columns).total();
        if asked > self.limit {
            return Err(Error::limit("the columns that choose rows", asked, self.limit, "memory_budget")
                .at(dataset.place(group)));
        }
        let asked = (asked >> 10).clamp(1, u64::from(self.most)) as u32;
        let closed = |_| Error::Closed { why: "the dataset is no longer opened".to_owned() };
        self.memory.acquire_many(asked).await.map_err(closed)
    }
}

/// State that all files of one evaluation share.
struct Job<'a> {
    dataset: &'a Dataset,
    /// Footers whose bytes are still there.
    footers: Vec<Option<Bytes>>,
    bound: Arc<Bound>,
    projection: Arc<Projection>,
    options: &'a OpenOptions,
    /// Row groups that may be read and evaluated at once, over all files.
    turns: Semaphore,
    /// The memory that they may take together.
    room: Room,
}

/// A row group that may match.
struct Candidate {
    group: usize,
    /// The file with its page index, if that is used.
    indexed: Option<ArrowReaderMetadata>,
    /// Rows in pages that may match; all without one.
    pages: Option<RowSelection>,
}

/// Evaluates `expression` over the dataset: one selection per row group of the manifest.
pub(super) async fn evaluate(
    dataset: &Dataset,
    expression: &Expr,
    footers: Vec<Option<Bytes>>,
    options: &OpenOptions,
) -> Result<Vec<Selection>> {
    let bound = Arc::new(expression.bind(dataset.schema())?);
    let projection = Arc::new(dataset.project_members(bound.paths())?);
    let mut by_file: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let chosen = dataset.manifest().groups.iter().enumerate().filter(|(_, group)| group.selected > 0);
    for (number, group) in chosen {
        by_file.entry(group.file).or_default().push(number);
    }
    let turns = Semaphore::new(options.concurrency.min(Semaphore::MAX_PERMITS));
    let job = Job { dataset, footers, bound, projection, options, turns, room: Room::new(options) };
    let mut selections = vec![Selection::none(); dataset.manifest().groups.len()];
    let evaluated = futures::stream::iter(by_file.into_values())
        .map(|groups| evaluate_file(&job, groups))
        .buffer_unordered(options.concurrency);
    let mut evaluated = std::pin::pin!(evaluated);
    while let Some(of_file) = evaluated.try_next().await? {
        for (group, selection) in of_file {
            if let Some(place) = selections.get_mut(group) {
                *place = selection;
            }
        }
    }
    Ok(selections)
}

/// The selections of those row groups of one file that may match.
async fn evaluate_file(job: &Job<'_>, groups: Vec<usize>) -> Result<Vec<(usize, Selection)>> {
    let candidates = prune(job, groups).await?;
    futures::stream::iter(candidates)
        .map(|candidate| decide(job, candidate))
        .buffer_unordered(job.options.concurrency)
        .try_collect()
        .await
}

/// The row groups of one file that may match.
async fn prune(job: &Job<'_>, groups: Vec<usize>) -> Result<Vec<Candidate>> {
    let (dataset, bound) = (job.dataset, &job.bound);
    let Some(first) = groups.first() else { return Ok(Vec::new()) };
    dataset.check_sealed(*first, &job.projection)?;
    let (row_group, file, layout) = dataset.group(*first)?;
    let place = Place::file(Arc::clone(file.object.name()));
    let keys: Vec<&str> = dataset.partition_columns().collect();
    // Texts in the log of a table have forms of their own for other types.
    let judged = |name: &str| {
        let ty = dataset.schema().field_with_name(name).map(ArrowField::data_type);
        ty.is_ok_and(|ty| ty.is_integer() || matches!(ty, DataType::Utf8View | DataType::Boolean | DataType::Date32))
    };
    let value = |name: &str| {
        let of_file =
            || file.partitions.iter().find(|(key, _)| key.as_ref() == name).and_then(|(_, value)| value.as_deref());
        (keys.contains(&name) && judged(name)).then(of_file)
    };
    let ordinal = |group: &usize| dataset.group(*group).map_or(0, |(group, ..)| group.ordinal as usize);
    let leaves = job.projection.leaves(file.layout);
    // Row groups that directories alone rule out need no footer, and neither does a filter that asks for nothing else.
    let may_match = |group: &usize, metadata: &ParquetMetaData| bound.may_match(metadata, ordinal(group), &value);
    let mut left = groups;
    left.retain(|group| may_match(group, &layout.metadata));
    let mut metadata = None;
    if !left.is_empty() && !leaves.is_empty() {
        let number = row_group.file as usize;
        let bytes = job.footers.get(number).cloned().flatten();
        let digest = dataset.manifest().files.get(number).map_or([0; 32], |file| file.footer);
        let reading = footer::again(&file.object, digest, bytes, Some(layout.descriptor_ptr()), &dataset.inner.limits);
        let read = within(job.options.timeout, format!("the footer of {place}"), reading).await?;
        // Statistics come from the file, so that their reader is watched as a decoder is.
        left = guard(&place, "its statistics are damaged", || {
            Ok(left.into_iter().filter(|group| may_match(group, &read)).collect())
        })?;
        metadata = Some(read);
    }
    if left.is_empty() {
        return Ok(Vec::new());
    }
    let ordinals: Vec<usize> = left.iter().map(ordinal).collect();
    let indexed = match &metadata {
        Some(metadata) => page_index(metadata, file, layout, &ordinals, &leaves, &place, job.options.timeout).await?,
        None => None,
    };
    let mut candidates = Vec::new();
    for group in left {
        let pages = match &indexed {
            Some(reader) => {
                guard(&place, "its page index is damaged", || Ok(bound.pages(reader.metadata(), ordinal(&group))))?
            }
            None => None,
        };
        if pages.as_ref().is_none_or(RowSelection::selects_any) {
            candidates.push(Candidate { group, indexed: indexed.clone(), pages });
        }
    }
    Ok(candidates)
}

/// The file's reader with the page index of `leaves` in row groups `ordinals`, if the file has one and it is sound.
async fn page_index(
    metadata: &ParquetMetaData,
    file: &DataFile,
    layout: &Layout,
    ordinals: &[usize],
    leaves: &[usize],
    place: &Place,
    timeout: Duration,
) -> Result<Option<ArrowReaderMetadata>> {
    let chunks = || {
        let groups = ordinals.iter().filter_map(|ordinal| metadata.row_groups().get(*ordinal));
        groups.flat_map(|group| leaves.iter().filter_map(|leaf| group.columns().get(*leaf)))
    };
    let range = |offset: Option<i64>, length: Option<i32>| {
        let start = u64::try_from(offset?).ok()?;
        let end = start.checked_add(u64::try_from(length?).ok()?)?;
        (start < end && end <= file.object.stamp().size).then_some(start..end)
    };
    // Times of 96 bits are made of two readings, and only of whole chunks.
    if times::any(layout.descriptor(), leaves.iter().copied()) {
        return Ok(None);
    }
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for chunk in chunks() {
        let columns = range(chunk.column_index_offset(), chunk.column_index_length());
        let offsets = range(chunk.offset_index_offset(), chunk.offset_index_length());
        // The decoder takes all or nothing.
        let (Some(columns), Some(offsets)) = (columns, offsets) else { return Ok(None) };
        ranges.extend([columns, offsets]);
    }
    let start = ranges.iter().map(|range| range.start).min().unwrap_or_default();
    let end = ranges.iter().map(|range| range.end).max().unwrap_or_default();
    if start >= end || end - start > MAX_INDEX_BYTES {
        return Ok(None);
    }
    let bytes = within(timeout, format!("the page index of {place}"), file.object.read_range(start..end)).await?;
    let index = Chunks::new(vec![(start, bytes)], file.object.stamp().size);
    for range in &ranges {
        let bytes = guard(place, "its page index is damaged", || index.range(range))?;
        // One entry per page at most, and no page without a row: the decoder reserves room by this count.
        let whole = Field { id: 1, kind: kind::STRUCT };
        if Reader::new(&bytes).skip(whole, bytes.len() / 4).is_err() {
            return Err(Error::corrupt(place.clone(), "its page index is damaged"));
        }
    }
    let size = file.object.stamp().size;
    let schema = Arc::clone(&layout.schema);
    guard(place, "its page index is damaged", || {
        let mask = ColumnChunkMask::row_groups_and_columns(ordinals.iter().copied(), leaves.iter().copied());
        let mut reader = ParquetMetaDataReader::new_with_metadata(metadata.clone())
            .with_page_index_policy(PageIndexPolicy::Optional)
            .with_page_index_mask(mask);
        reader.read_page_indexes_sized(&index, size)?;
        let metadata = Arc::new(reader.finish()?);
        ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::new().with_schema(schema)).map(Some)
    })
}

/// Reads the filter's columns of one row group and evaluates it.
async fn decide(job: &Job<'_>, candidate: Candidate) -> Result<(usize, Selection)> {
    let (dataset, projection) = (job.dataset, &job.projection);
    let group = candidate.group;
    // It is never closed.
    let _turn = job.turns.acquire().await.ok();
    let _permit = job.room.take(dataset, projection, group).await?;
    let fetched = async {
        match &candidate.pages {
            Some(pages) => fetch_pages(dataset, projection, &candidate, pages).await,
            None => dataset.fetch(group, projection).await,
        }
    };
    let culprit = format!("the filter's columns of {}", dataset.place(group));
    let fetched = within(job.options.timeout, culprit, fetched).await?;
    let (dataset, bound, projection) = (dataset.clone(), Arc::clone(&job.bound), Arc::clone(projection));
    let work = super::held::spawn(move || {
        let (row_group, ..) = dataset.group(group)?;
        let count = candidate.pages.as_ref().map_or(row_group.rows, |pages| pages.row_count() as u64);
        let columns = (0..projection.roots().len()).map(|root| {
            let rows = Rows { selection: candidate.pages.clone(), count };
            dataset.decode_rows(&fetched, &projection, root, candidate.indexed.as_ref(), rows)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let fields: Vec<_> = projection.roots().iter().map(|root| Arc::clone(root.field())).collect();
        let place = dataset.place(group);
        let mask = match RecordBatch::try_new(Arc::new(Schema::new(fields)), columns) {
            Ok(batch) => bound.evaluate(&batch)?,
            Err(error) => return Err(Error::corrupt_by(place, "the filter's columns contradict the schema", error)),
        };
        let selection = match &candidate.pages {
            Some(pages) => Selection::among(pages, &mask),
            None => Selection::of(&mask),
        };
        // Rows that a table deleted, or a selector left out, stay out.
        let selection = match dataset.selection(group) {
            Some(before) => selection.and(before, row_group.rows),
            None => selection,
        };
        Ok((group, selection))
    });
    work.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("the filter was not evaluated: {error}") }))
}

/// Reads the pages of the filter's columns in which `selection` selects rows.
async fn fetch_pages(
    dataset: &Dataset,
    projection: &Projection,
    candidate: &Candidate,
    selection: &RowSelection,
) -> Result<Fetched> {
    let (row_group, file, layout) = dataset.group(candidate.group)?;
    dataset.check_size(candidate.group, projection)?;
    let ordinal = row_group.ordinal as usize;
    let metadata = candidate.indexed.as_ref().map(|indexed| indexed.metadata());
    let columns: Arc<[Chunk]> = dataset.chunks(candidate.group, projection).into();
    let mut pages = Vec::new();
    for leaf in projection.leaves(file.layout) {
        let Some((chunk, column)) = columns.get(leaf).zip(layout.descriptor().columns().get(leaf)) else { continue };
        let chunk = chunk.range();
        let place = || dataset.place(candidate.group).column(column.path().string());
        let damaged = || Error::corrupt(place(), "its page index points outside the column");
        let index =
            metadata.and_then(|metadata| metadata.page_index()).and_then(|index| index.offset_index(ordinal, leaf));
        let locations = index.map(|index| index.page_locations().as_slice()).unwrap_or_default();
        let mut wanted = Vec::new();
        let mut end = chunk.start;
        for location in locations {
            let start = u64::try_from(location.offset).map_err(|_| damaged())?;
            let length = u64::try_from(location.compressed_page_size).map_err(|_| damaged())?;
            if start < end || length == 0 || length > chunk.end.saturating_sub(start) {
                return Err(damaged());
            }
            if wanted.is_empty() && end == chunk.start && start > chunk.start {
                // The bytes before the first page are the dictionary.
                wanted.push((chunk.start..start, None));
            }
            end = start + length;
        }
        let ranges =
            guard(&place(), "its page index is damaged", || Ok::<_, ParquetError>(selection.scan_ranges(locations)))?;
        let total = i64::try_from(row_group.rows).unwrap_or(i64::MAX);
        for range in ranges {
            // They ascend, as was checked above.
            let at = locations.partition_point(|location| location.offset.cast_unsigned() < range.start);
            let row = |at: usize| locations.get(at).map_or(total, |location| location.first_row_index);
            let rows = u64::try_from(row(at + 1).saturating_sub(row(at))).map_err(|_| damaged())?;
            wanted.push((range, Some(rows)));
        }
        pages.push((leaf, wanted));
    }
    let ranges = coalesce(
        pages.iter().flat_map(|(_, pages)| pages.iter().map(|(range, _)| range.clone())).collect(),
        file.object.gap(),
    );
    let parts = file.object.read(ranges.clone()).await?;
    let parts = ranges.into_iter().map(|range| range.start).zip(parts).collect();
    let chunks = Chunks::new(parts, file.object.stamp().size);
    Ok(Fetched { group: candidate.group, columns, chunks, pages, runs: Vec::new(), dictionaries: Vec::new() })
}
