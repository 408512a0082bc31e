//! Reading one row group: what it costs, and its bytes.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::DataType;
use parquet::basic::{Compression, Encoding, Type};
use parquet::schema::types::ColumnDescriptor;

use super::chunks::{Chunks, coalesce};
use super::dictionaries::Dictionary;
use super::footer::TAIL_BYTES;
use super::limits::GROUP_RATIO_FREE;
use super::offsets::Run;
use super::project::{Projection, Root, Source};
use super::{Chunk, Dataset, aligned};
use crate::error::{Error, Result};
use crate::page::MOST_SPLIT;
use crate::store::GONE;
use crate::store::cache::Wanted;

/// One in so many of a unit's bytes may be read for nothing, to save requests.
const LEAST_WANTED: u64 = 20;

/// Bytes that reading a row group takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read, as [`Fetched::bytes`] will tell.
    pub fetched: u64,
    /// Bytes of the decoded arrays beyond the fetched ones, estimated from the footer; an upper bound for all but
    /// delta-encoded strings. Views into uncompressed pages count only as views.
    pub decoded: u64,
    /// Bytes that stay for as long as the decoded arrays do: these, and the fetched ones if views point into them, or rows were left
    /// there.
    pub held: u64,
}

impl Cost {
    /// Bytes of reading and decoding, before anything of it is let go.
    pub fn total(&self) -> u64 {
        self.fetched.saturating_add(self.decoded)
    }
}

/// Range of a page, and its rows by the page index; none for a dictionary.
pub(super) type Paged = (Range<u64>, Option<u64>);

/// The places of the bytes that a row group, or a unit of one, is read from.
struct Located {
    columns: Arc<[Chunk]>,
    /// Requests, in the order of the file.
    ranges: Vec<Range<u64>>,
    runs: Vec<(usize, Run)>,
    /// Dictionaries of leaves that need not be read.
    dictionaries: Vec<(usize, Arc<Dictionary>)>,
    /// Dictionaries that later units need not read again.
    missing: Vec<((u32, usize), Range<u64>)>,
}

/// The bytes of a row group's projected columns. Arrays that are decoded from them may share them.
#[derive(Debug, Clone)]
pub struct Fetched {
    pub(super) group: usize,
    /// The column chunks, up to and with the last one that was asked for.
    pub(super) columns: Arc<[Chunk]>,
    pub(super) chunks: Chunks,
    /// Leaves with only some pages read, with those pages.
    pub(super) pages: Vec<(usize, Vec<Paged>)>,
    /// The pages of a unit that were read of each leaf, by ascending leaf.
    pub(super) runs: Vec<(usize, Run)>,
    /// Dictionaries of leaves with runs that are shared with other units, by ascending leaf.
    pub(super) dictionaries: Vec<(usize, Arc<Dictionary>)>,
}

impl Fetched {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.chunks.bytes()
    }

    /// Run of `leaf` that was read, if it is not the whole chunk but the pages of a unit.
    pub(super) fn run(&self, leaf: usize) -> Option<&Run> {
        let at = self.runs.binary_search_by_key(&leaf, |(leaf, _)| *leaf).ok()?;
        self.runs.get(at).map(|(_, run)| run)
    }

    /// Dictionary of `leaf` that is shared with other units.
    pub(super) fn dictionary(&self, leaf: usize) -> Option<&Dictionary> {
        let at = self.dictionaries.binary_search_by_key(&leaf, |(leaf, _)| *leaf).ok()?;
        self.dictionaries.get(at).map(|(_, dictionary)| &**dictionary)
    }

    /// Returns true if `address` points to one of these bytes.
    pub(crate) fn holds(&self, address: *const u8) -> bool {
        self.chunks.holds(address)
    }

    /// The row group's number in the manifest.
    pub fn group(&self) -> usize {
        self.group
    }
}

impl Dataset {
    /// Cost of reading row group `group` of the manifest. Zero for a number that is not in the manifest.
    pub fn cost(&self, group: usize, projection: &Projection) -> Cost {
        self.cost_without(group, projection, |_, _| false)
    }

    /// As [`cost`](Self::cost), where the rows of root columns that `stays` selects may be left among the fetched bytes, except for one
    /// in [`MOST_SPLIT`] of them, which pages share. Any of them may be decoded all the same. `stays` is given the row group's chunks.
    pub(crate) fn cost_without(
        &self,
        group: usize,
        projection: &Projection,
        stays: impl Fn(&[Chunk], usize) -> bool,
    ) -> Cost {
        let Ok((row_group, file, layout)) = self.group(group) else { return Cost::default() };
        let whole = self.chunks(group, projection);
        let columns: Vec<Chunk> = whole.iter().map(|chunk| self.share_of(group, chunk)).collect();
        let descriptors = layout.descriptor().columns();
        let leaves = projection.leaves(file.layout);
        let chunks = leaves.iter().filter_map(|leaf| columns.get(*leaf));
        let fetched = match self.part(group) {
            Some(_) => chunks.map(|chunk| chunk.stored).fold(0, u64::saturating_add),
            None => {
                let ranges = coalesce(chunks.map(Chunk::range).collect(), file.object.gap());
                ranges.iter().map(|range| range.end - range.start).sum()
            }
        };
        let selected = self.decoded_rows(group);
        let mut decoded = 0_u64;
        let (mut left, mut least) = (0_u64, None);
        let mut shared = false;
        let sources = projection.sources.get(file.layout).map(Vec::as_slice).unwrap_or_default();
        for (at, (root, source)) in projection.roots().iter().zip(sources).enumerate() {
            let bytes = match source {
                Source::Leaves(leaves) => {
                    let stored = layout.schema.fields().get(leaves.field);
                    let copied = stored.is_some_and(|field| !is_view(field.data_type()));
                    let chunks =
                        leaves.numbers.iter().filter_map(|leaf| columns.get(*leaf).zip(descriptors.get(*leaf)));
                    shared |= chunks.clone().any(|(chunk, column)| is_in_place(chunk, column, copied));
                    let width = root.field().data_type().primitive_width();
                    let bytes = chunks
                        .map(|(chunk, column)| decoded_bytes(chunk, column, row_group.rows, selected, copied, width));
                    bytes.fold(aligned::beside(root.field().data_type()), u64::saturating_add)
                }
                Source::Partition | Source::Missing => selected.saturating_mul(width(root.field().data_type())),
            };
            decoded = decoded.saturating_add(bytes);
            if stays(&whole, at) {
                left = left.saturating_add(bytes);
                least = Some(least.map_or(bytes, |least: u64| least.min(bytes)));
            }
        }
        let held = decoded.saturating_add(if shared { fetched } else { 0 });
        // One column that stays keeps all that was fetched, whatever becomes of the others.
        let beside = least.map_or(0, |least| fetched.saturating_add(decoded - least).saturating_add(left / MOST_SPLIT));
        Cost { fetched, decoded, held: held.max(beside) }
    }

    /// Reads the bytes of row group `group` of the manifest: whole column chunks of the projection, or the pages that hold a unit's
    /// rows; all requests at once.
    ///
    /// # Errors
    /// [`Error::SourceChanged`] if the file is not the one that was opened, [`Error::Limit`], [`Error::Store`].
    pub async fn fetch(&self, group: usize, projection: &Projection) -> Result<Fetched> {
        let wanted = Wanted { group: u32::try_from(group).ok(), ..Wanted::default() };
        self.fetch_for(group, projection, wanted).await
    }

    /// As [`fetch`](Self::fetch), only so that a cache has the bytes later.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn load(&self, group: usize, projection: &Projection) -> Result<()> {
        let wanted = Wanted { group: u32::try_from(group).ok(), ahead: true, ..Wanted::default() };
        self.fetch_for(group, projection, wanted).await.map(drop)
    }

    /// Reads what [`fetch`](Self::fetch) reads into the cache below, ahead of its use: as far as there is room for it now. Returns the fetched
    /// bytes, and true if all of it had room.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn fetch_ahead(&self, group: usize, projection: &Projection) -> Result<(u64, bool)> {
        let (_, file, _) = self.group(group)?;
        let ranges = self.located(group, projection).await?.ranges;
        file.object.fetch_ahead(ranges).await
    }

    /// Returns true if a cache has the end of its file, which was read when the dataset was opened, and all that a read of row group `group`
    /// fetches lies in it.
    pub(crate) fn is_in_kept_end(&self, group: usize, projection: &Projection) -> bool {
        let (Ok((_, file, _)), Some(cache)) = (self.group(group), self.cache()) else { return false };
        let size = file.object.stamp().size;
        let end = size.saturating_sub(TAIL_BYTES)..size;
        let chunks = self.chunks(group, projection);
        let leaves = projection.leaves(file.layout);
        let mut ranges = leaves.iter().filter_map(|leaf| chunks.get(*leaf)).map(Chunk::range);
        ranges.all(|range| range.start >= end.start) && file.object.cache_key().is_some_and(|key| cache.has(key, &end))
    }

    /// The places of a row group's bytes.
    async fn located(&self, group: usize, projection: &Projection) -> Result<Located> {
        let (_, file, _) = self.group(group)?;
        self.check_size(group, projection)?;
        let columns: Arc<[Chunk]> = self.chunks(group, projection).into();
        let leaves = projection.leaves(file.layout);
        let (mut ranges, mut gap, mut runs): (Vec<Range<u64>>, _, _) = (Vec::new(), file.object.gap(), Vec::new());
        let (mut dictionaries, mut missing) = (Vec::new(), Vec::new());
        match (&self.units, self.part(group)) {
            (Some(units), Some(part)) => {
                runs = self.runs(&units.kept, part.group, self.range(group), (&leaves, &columns)).await?;
                // A cache keeps the ranges that are read, which are to be the same each time.
                let shares = !file.object.is_cached();
                for (leaf, run) in &runs {
                    if let Some(range) = &run.dictionary {
                        let key = (part.group, *leaf);
                        match units.dictionaries.get(key).filter(|_| shares) {
                            Some(known) => dictionaries.push((*leaf, known)),
                            None => {
                                ranges.push(range.clone());
                                missing.extend(shares.then(|| (key, range.clone())));
                            }
                        }
                    }
                    ranges.push(run.pages.clone());
                }
                // The bytes between belong to other units, which read them for themselves.
                let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                gap = gap.min(bytes / LEAST_WANTED / (ranges.len() as u64).max(1));
            }
            _ => ranges.extend(leaves.iter().filter_map(|leaf| columns.get(*leaf)).map(Chunk::range)),
        }
        Ok(Located { columns, ranges: coalesce(ranges, gap), runs, dictionaries, missing })
    }

    async fn fetch_for(&self, group: usize, projection: &Projection, wanted: Wanted) -> Result<Fetched> {
        let (_, file, _) = self.group(group)?;
        let Located { columns, ranges, runs, mut dictionaries, missing } = self.located(group, projection).await?;
        let parts = file.object.read_for(ranges.clone(), wanted).await.map_err(|error| self.gone(error))?;
        let parts = ranges.into_iter().map(|range| range.start).zip(parts).collect();
        let chunks = Chunks::new(parts, file.object.stamp().size);
        if let (Some(units), false) = (&self.units, missing.is_empty()) {
            let read = |(key, range): (_, Range<u64>)| {
                let bytes = chunks.range(&range).ok()?;
                Some((key, Dictionary::new(range, &bytes)?))
            };
            let read: Vec<((u32, usize), Arc<Dictionary>)> = missing.into_iter().filter_map(read).collect();
            dictionaries.extend(read.iter().map(|((_, leaf), dictionary)| (*leaf, Arc::clone(dictionary))));
            dictionaries.sort_unstable_by_key(|(leaf, _)| *leaf);
            units.dictionaries.add(read);
        }
        Ok(Fetched { group, columns, chunks, pages: Vec::new(), runs, dictionaries })
    }

    /// `error` with advice, if a file of a table is gone.
    fn gone(&self, error: Error) -> Error {
        match (error, &self.inner.table) {
            (Error::SourceChanged { file, was, now }, Some(table)) if now == GONE => {
                let now = format!("{now} from {} ({})", table.shown(), table.advice());
                Error::SourceChanged { file, was, now }
            }
            (error, _) => error,
        }
    }

    /// Refuses what reading a selected row group of the projection would refuse by the footers alone: encrypted columns, and too much
    /// room.
    ///
    /// # Errors
    /// `Unsupported` and `Limit`, with the place.
    pub(crate) fn check_groups(&self, projection: &Projection) -> Result<()> {
        let limits = &self.inner.limits;
        // Lists may repeat a value any number of times; of other columns no row takes more than this beside the bytes of texts.
        let flat = projection.roots().iter().map(Root::field).all(|field| !holds_lists(field.data_type()));
        let widths = projection.roots().iter().map(|root| 32_u64.saturating_add(2 * width(root.field().data_type())));
        let row = widths.fold(0, u64::saturating_add);
        let harmless = GROUP_RATIO_FREE.min(limits.max_row_group_bytes);
        for (number, group) in self.manifest().groups.iter().enumerate().filter(|(_, group)| group.selected > 0) {
            if flat && group.rows.saturating_mul(row).saturating_add(group.bytes) <= harmless {
                self.check_sealed(number, projection)?;
            } else {
                self.check_size(number, projection)?;
            }
        }
        Ok(())
    }

    /// Refuses encrypted columns before anything of them is read.
    pub(super) fn check_sealed(&self, group: usize, projection: &Projection) -> Result<()> {
        let (row_group, file, layout) = self.group(group)?;
        if file.sealed.is_empty() {
            return Ok(());
        }
        let ordinal = row_group.ordinal as usize;
        let leaves = projection.leaves(file.layout);
        let sealed = leaves.iter().find(|leaf| file.sealed.binary_search(&(ordinal, **leaf)).is_ok());
        let Some(column) = sealed.and_then(|leaf| layout.descriptor().columns().get(*leaf)) else { return Ok(()) };
        let hint = "leave the column out, or write the dataset without encryption".to_owned();
        Err(Error::unsupported("an encrypted column", hint).at(self.place(group).column(column.path().string())))
    }

    /// Refuses a row group that would take too much room when decoded, before anything is read.
    pub(super) fn check_size(&self, group: usize, projection: &Projection) -> Result<()> {
        self.check_sealed(group, projection)?;
        let limits = &self.inner.limits;
        let Cost { fetched, decoded, .. } = self.cost(group, projection);
        let over = |what: &str, asked: u64, limit: u64, option: &'static str| {
            Err(Error::limit(what, asked, limit, option).at(self.place(group)))
        };
        if decoded > limits.max_row_group_bytes {
            return over("its decoded columns", decoded, limits.max_row_group_bytes, "limits.max_row_group_bytes");
        }
        let ratio = decoded / fetched.max(1);
        if decoded > GROUP_RATIO_FREE && fetched > 0 && ratio > limits.max_ratio {
            let what = format!("its columns, growing from {fetched} to {decoded} bytes,");
            return over(&what, ratio, limits.max_ratio, "limits.max_ratio");
        }
        Ok(())
    }
}

/// Returns true if cells of this type are views of the bytes that were read.
fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

/// Returns true if there are lists or maps at any depth.
fn holds_lists(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(children) => children.iter().any(|child| holds_lists(child.data_type())),
        data_type => data_type.is_nested(),
    }
}

/// Bytes of one cell of an array, without what views point to. Fixed sizes take their room even where all is null.
fn width(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeList(item, length) => {
            width(item.data_type()).saturating_mul((*length).max(0) as u64).saturating_add(1)
        }
        DataType::FixedSizeBinary(length) => (*length).max(0) as u64 + 1,
        DataType::Struct(children) => {
            children.iter().fold(1, |sum: u64, child| sum.saturating_add(width(child.data_type())))
        }
        _ => data_type.primitive_width().map_or(17, |width| width as u64 + 1),
    }
}

/// Returns true if the array made of `chunk` points into its fetched bytes.
fn is_in_place(chunk: &Chunk, column: &ColumnDescriptor, copied: bool) -> bool {
    let delta = |encoding| matches!(encoding, Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY);
    !copied
        && column.physical_type() == Type::BYTE_ARRAY
        && chunk.compression() == Compression::UNCOMPRESSED
        && !chunk.encodings().any(delta)
}

/// Bytes of an array made of `chunk`, beyond its fetched bytes.
/// `width` is the width of the whole root's cells, if they have one.
fn decoded_bytes(
    chunk: &Chunk,
    descriptor: &ColumnDescriptor,
    rows: u64,
    selected: u64,
    copied: bool,
    width: Option<usize>,
) -> u64 {
    let values = chunk.values;
    let nested = descriptor.max_rep_level() > 0;
    let cells = if nested { values } else { selected };
    let unpacked = chunk.unpacked;
    let value = match descriptor.physical_type() {
        Type::BOOLEAN => 1,
        // A value that is cast is there twice for a moment.
        Type::INT32 | Type::FLOAT => width.map_or(8, |width| if width == 4 { 4 } else { 4 + width as u64 }),
        Type::INT64 | Type::DOUBLE => width.map_or(8, |width| if width == 8 { 8 } else { 8 + width as u64 }),
        Type::BYTE_ARRAY => 16,
        // Decoded in two units, from which a third is made.
        Type::INT96 => 24,
        // Decimals are widened to 16 or 32 bytes.
        Type::FIXED_LEN_BYTE_ARRAY => (descriptor.type_length().max(0) as u64).next_power_of_two().max(16),
    };
    let bytes = match descriptor.physical_type() {
        Type::BYTE_ARRAY if !is_in_place(chunk, descriptor, copied) => unpacked,
        _ => 0,
    };
    // Offsets of lists, and two levels per value while they are decoded.
    let offsets = if nested {
        rows.saturating_mul(4 * descriptor.max_rep_level().max(0) as u64) + values.saturating_mul(4)
    } else {
        0
    };
    cells.saturating_mul(value).saturating_add(cells / 8).saturating_add(bytes).saturating_add(offsets)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn fixed_sizes_count_in_full() {
        let list = |item, length| DataType::new_fixed_size_list(item, length, true);
        assert_eq!(width(&list(DataType::Float32, 1000)), 5001);
        assert_eq!(width(&DataType::FixedSizeBinary(64)), 65);
        let pair = DataType::Struct(
            vec![Field::new("a", DataType::Int64, true), Field::new("b", DataType::Utf8View, true)].into(),
        );
        assert_eq!(width(&pair), 1 + 9 + 17);
        let deep = (0..4).fold(pair, |item, _| list(item, i32::MAX));
        assert_eq!(width(&deep), u64::MAX);
    }
}
