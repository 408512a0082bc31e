//! Row groups in units of the shuffle: equal ranges of their rows, cut where pages begin, so that a rank reads a part of a large row
//! group and no more.
//!
//! If a file has an offset index of every column, a row group of at least two units is cut. The size of a unit depends on
//! the dataset alone: not on the columns that are read, the ranks or the machine, so that all have the same ones.
//!
//! ```text
//!   row group  ├────────────────────────────────────────────────────────────┤
//!   pages      ├────┼────┼────┼────┼────┼────┼────┼────┼────┼────┼────┼────┼┤  of most bytes
//!   units      ├─────────┼─────────┼─────────┼─────────┼─────────┼──────────┤
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::dictionaries::Dictionaries;
use super::offsets::{Kept, Location, MOST_INDEX_BYTES};
use super::{Chunk, Dataset, Selection, within};
use crate::error::{Error, Place, Result};
use crate::manifest::{Manifest, RowGroup};

/// Units that a row group is cut into at most.
const MOST_PARTS: u64 = 1024;
/// Units that a dataset is cut into, as far as that depends on these.
const MOST_UNITS: u64 = 1 << 22;
/// Numbers of rows that are tried for a unit.
const TRIALS: usize = 64;

/// Sizes of units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Uncompressed bytes of a unit, at least and at most; more where its pages are larger.
    pub(crate) bytes: [u64; 2],
    /// Units of a small dataset, between these.
    pub(crate) count: u64,
    /// Bytes of a unit for each of its columns: fewer are no worthwhile request.
    pub(crate) column: u64,
    /// Pages that are cut between units are read twice: at most one in so many bytes of a row group.
    pub(crate) whole: u64,
    /// Every unit reads the dictionaries of its row group again: of the row group's bytes, one in so many more at most. Any with 0.
    pub(crate) dictionary: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { bytes: [1 << 20, 4 << 20], count: 2048, column: 64 << 10, whole: 10, dictionary: 4 }
    }
}

/// One unit that is a part of a row group, or all of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of the row group among those of the files.
    pub(super) group: u32,
    /// Its first row in that.
    pub(super) first: u32,
    /// Selected rows before it.
    before: u32,
    /// True if it is less than the row group.
    pub(super) is_part: bool,
}

/// A dataset's row groups in units.
#[derive(Debug)]
pub(super) struct Units {
    pub(super) manifest: Arc<Manifest>,
    parts: Vec<Part>,
    /// Bytes of pages that are read twice because a unit ends in them, out of each 1,024.
    straddled: u64,
    pub(super) kept: Kept,
    pub(super) dictionaries: Dictionaries,
}

impl Units {
    /// Bytes of memory that it takes beside the names of files, with the indexes of pages and the dictionaries that it may keep.
    #[cfg(feature = "flight")]
    pub(super) fn memory_size(&self) -> usize {
        let kept = MOST_INDEX_BYTES as usize + super::dictionaries::KEPT_BYTES;
        size_of_val(self.manifest.groups.as_slice()) + size_of_val(self.parts.as_slice()) + kept
    }

    pub(super) fn part(&self, unit: usize) -> Option<&Part> {
        self.parts.get(unit)
    }
}

/// Rows of the pages that most bytes are in, and how many such pages make a unit at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    rows: u64,
    least: u64,
    /// See [`Units`].
    straddled: u64,
}

impl Grid {
    /// Rows of a unit that should have about `wanted`.
    fn each(&self, wanted: u64) -> u64 {
        let pages = (wanted.saturating_add(self.rows / 2) / self.rows).max(self.least).max(1);
        pages.saturating_mul(self.rows)
    }

    /// The cut of a row group of `total` rows with these pages of columns into units of about `wanted` rows; `None` if that would cut
    /// too many pages.
    fn of(columns: &[(usize, Vec<Location>)], total: u64, wanted: u64, whole: u64) -> Option<Self> {
        let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
        let mut all = 0_u64;
        for (_, pages) in columns {
            let ends = pages.iter().skip(1).map(|page| u64::from(page.row)).chain([total]);
            for (page, end) in pages.iter().zip(ends) {
                *bytes.entry(end.saturating_sub(page.row.into())).or_default() += u64::from(page.length);
                all += u64::from(page.length);
            }
        }
        let (rows, _) = bytes.into_iter().rev().max_by_key(|(_, bytes)| *bytes)?;
        let straddled = |each: u64| {
            let cut = |pages: &Vec<Location>| {
                let at = |row: u64| pages.partition_point(|page| u64::from(page.row) <= row).checked_sub(1);
                let page = |row| pages.get(at(row)?).filter(|page| u64::from(page.row) < row);
                let cuts = parts(total, each).skip(1).filter_map(|part| page(part.start));
                cuts.map(|page| u64::from(page.length)).sum::<u64>()
            };
            columns.iter().map(|(_, pages)| cut(pages)).sum::<u64>()
        };
        let first = Self { rows: rows.max(1), least: 1, straddled: 0 };
        let mut each = first.each(wanted);
        for trial in 0..TRIALS {
            if parts(total, each).count() < 2 {
                return None;
            }
            let cut = straddled(each);
            if cut.saturating_mul(whole) <= all {
                let least = if trial == 0 { 1 } else { each / first.rows };
                return Some(Self { least, straddled: (cut << 10).checked_div(all)?, ..first });
            }
            each = each.saturating_add((each / 8 / first.rows).max(1).saturating_mul(first.rows));
        }
        None
    }
}

/// Ranges of `each` of `rows` rows, the last one of half as many to one and a half.
fn parts(rows: u64, each: u64) -> impl Iterator<Item = Range<u64>> {
    let each = each.clamp(1, rows.max(1));
    let count = (rows / each + u64::from(rows % each >= each.div_ceil(2))).max(1);
    (0..count).map(move |at| at * each..if at + 1 == count { rows } else { (at + 1) * each })
}

/// About how many rows a unit of `group` has, whose columns are `chunks`; `None` if it is not cut.
fn wanted(group: &RowGroup, chunks: &[Chunk], bytes: u64, sizes: &Sizes) -> Option<u64> {
    let indexed = chunks.iter().map(|chunk| chunk.offset_index.map(|(_, length)| u64::from(length)));
    let length = indexed.sum::<Option<u64>>().filter(|length| *length > 0)?;
    if length > MOST_INDEX_BYTES || u32::try_from(group.rows).is_err() {
        return None;
    }
    let stored = chunks.iter().map(|chunk| chunk.stored).fold(0, u64::saturating_add);
    let dictionaries = chunks.iter().map(dictionary).fold(0, u64::saturating_add);
    let most = stored.checked_div(dictionaries.saturating_mul(sizes.dictionary)).map_or(MOST_PARTS, |parts| parts + 1);
    let bytes = bytes.max(sizes.column.saturating_mul(chunks.len() as u64));
    let rows = u128::from(group.rows) * u128::from(bytes) / u128::from(group.bytes.max(1));
    let least = group.rows.div_ceil(most.min(MOST_PARTS)).max(1);
    let rows = u64::try_from(rows).unwrap_or(u64::MAX).max(least);
    (rows <= group.rows / 2).then_some(rows)
}

/// Bytes of a chunk's dictionary, as stored.
fn dictionary(chunk: &Chunk) -> u64 {
    if chunk.dictionary { chunk.data.saturating_sub(chunk.start).min(chunk.stored) } else { 0 }
}

/// The first row group to cut.
#[derive(Debug)]
struct Sample {
    /// Bytes that units of all row groups should have.
    bytes: u64,
    /// Its number.
    number: usize,
    /// About how many rows its units have.
    rows: u64,
}

/// Runs `work`, which takes a while, beside tasks that wait for stores.
async fn on_cpu<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = super::held::spawn(work).await;
    done.unwrap_or_else(|error| Err(Error::Closed { why: format!("row groups were not cut into units: {error}") }))
}

impl Dataset {
    /// The same dataset, its large row groups cut into units where their files say where pages begin: each unit counts as a row
    /// group then, of the same file and number. The fingerprint stays, since units follow from the data. Reads the page
    /// index of one row group. If samples are windows of rows, all row groups stay whole.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged page index; [`Error::Timeout`] if it does not come within `timeout`; [`Error::Store`].
    pub async fn in_units(&self, timeout: Duration) -> Result<Self> {
        self.in_units_of(Sizes::default(), timeout).await
    }

    /// As [`in_units`](Self::in_units), with other sizes.
    pub(crate) async fn in_units_of(&self, sizes: Sizes, timeout: Duration) -> Result<Self> {
        // Footers may name as many columns and row groups as their limits allow: too much work for a thread that others wait on.
        let dataset = self.clone();
        let Some(Sample { bytes, number, rows }) = on_cpu(move || Ok(dataset.sample(&sizes))).await? else {
            return Ok(self.clone());
        };
        let (_, _, layout) = self.whole_group(number)?;
        let leaves: Vec<usize> = (0..layout.descriptor().num_columns()).collect();
        let culprit = format!("the page index of {}", self.whole_place(number));
        let pages = within(timeout, culprit, self.locations(number, &leaves)).await?;
        let dataset = self.clone();
        on_cpu(move || {
            let total = dataset.whole_group(number)?.0.rows;
            match Grid::of(&pages, total, rows, sizes.whole) {
                Some(grid) => Ok(dataset.divided(&sizes, bytes, &grid)),
                None => Ok(dataset),
            }
        })
        .await
    }

    /// About how many rows a unit of row group `number` has, where its units should have about `bytes` bytes; `None` if it is not to be
    /// cut.
    fn wanted(&self, number: usize, bytes: u64, sizes: &Sizes) -> Option<u64> {
        let groups = &self.inner.manifest.groups;
        let group = groups.get(number).filter(|group| group.selected > 0 && group.bytes / 2 >= bytes)?;
        let (_, file, layout) = self.whole_group(number).ok()?;
        let columns = layout.descriptor().num_columns();
        let chunks = self.inner.packed.chunks(file.first + group.ordinal as usize, columns);
        file.sealed.is_empty().then(|| wanted(group, &chunks, bytes, sizes)).flatten()
    }

    /// The row group whose page index tells how all are cut.
    fn sample(&self, sizes: &Sizes) -> Option<Sample> {
        if self.inner.windows.is_some() {
            return None;
        }
        let whole = &self.inner.manifest;
        let used = || whole.groups.iter().filter(|group| group.selected > 0);
        let total = used().map(|group| group.bytes).fold(0, u64::saturating_add);
        let [least, most] = sizes.bytes;
        let mut bytes = (total / sizes.count.max(1)).clamp(least, most).max(1);
        while used().map(|group| (group.bytes / bytes).min(MOST_PARTS)).fold(0, u64::saturating_add) > MOST_UNITS {
            bytes = bytes.saturating_mul(2);
        }
        (0..whole.groups.len())
            .find_map(|number| Some(Sample { bytes, number, rows: self.wanted(number, bytes, sizes)? }))
    }

    /// The same dataset, its row groups cut along `grid` into units of about `bytes` bytes.
    fn divided(&self, sizes: &Sizes, bytes: u64, grid: &Grid) -> Self {
        let whole = &self.inner.manifest;
        let mut parts_of = Vec::with_capacity(whole.groups.len());
        let mut groups = Vec::with_capacity(whole.groups.len());
        for (number, group) in whole.groups.iter().enumerate() {
            let each = self.wanted(number, bytes, sizes).map_or(group.rows, |rows| grid.each(rows));
            let before = |row: u64| match self.inner.selections.get(number) {
                Some(selection) => selection.before(row),
                None => row,
            };
            for part in parts(group.rows, each) {
                let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
                let rows = part.end - part.start;
                let is_part = rows < group.rows;
                let range = before(part.start)..before(part.end);
                parts_of.push(Part {
                    group: narrow(number as u64),
                    first: narrow(part.start),
                    before: narrow(range.start),
                    is_part,
                });
                groups.push(RowGroup {
                    rows,
                    selected: if is_part { range.end - range.start } else { group.selected },
                    bytes: share(group.bytes, rows, group.rows),
                    ..*group
                });
            }
        }
        parts_of.shrink_to_fit();
        groups.shrink_to_fit();
        if groups.len() == whole.groups.len() {
            return self.clone();
        }
        let manifest = Arc::new(whole.in_parts(groups));
        let units = Units {
            manifest,
            parts: parts_of,
            straddled: grid.straddled,
            kept: Kept::default(),
            dictionaries: Dictionaries::default(),
        };
        Self { units: Some(Arc::new(units)), ..self.clone() }
    }

    /// The part of its file's row group that row group `group` is, if it is one.
    pub(super) fn part(&self, group: usize) -> Option<&Part> {
        self.units.as_ref()?.part(group).filter(|part| part.is_part)
    }

    /// Number of the files' row group that `group` is, or is a part of.
    pub(super) fn number(&self, group: usize) -> usize {
        self.units.as_ref().and_then(|units| units.part(group)).map_or(group, |part| part.group as usize)
    }

    /// The rows of the files' row group that `group` has.
    pub(super) fn range(&self, group: usize) -> Range<u64> {
        let rows = self.manifest().groups.get(group).map_or(0, |group| group.rows);
        let first = self.part(group).map_or(0, |part| u64::from(part.first));
        first..first + rows
    }

    /// Selected rows of the files' row group before those of row group `group`.
    pub(super) fn selected_before(&self, group: usize) -> u64 {
        self.part(group).map_or(0, |part| u64::from(part.before))
    }

    /// The selection of the files' row group of `group`, if not all rows are selected.
    pub(super) fn selection(&self, group: usize) -> Option<&Selection> {
        self.inner.selections.get(self.number(group)).filter(|selection| !matches!(selection, Selection::All))
    }

    /// The part of `chunk` of row group `group` that the unit reads, by its share of the rows.
    pub(super) fn share_of(&self, group: usize, chunk: &Chunk) -> Chunk {
        let (Some(units), Some(_)) = (&self.units, self.part(group)) else { return *chunk };
        let rows = self.manifest().groups.get(group).map_or(0, |group| group.rows);
        let total = self.inner.manifest.groups.get(self.number(group)).map_or(rows, |group| group.rows);
        let dictionary = dictionary(chunk);
        // As much longer as it is packed.
        let opened = u128::from(dictionary) * u128::from(chunk.unpacked) / u128::from(chunk.stored.max(1));
        let opened = u64::try_from(opened).unwrap_or(u64::MAX).min(chunk.unpacked);
        let pages = |bytes: u64| {
            let bytes = share(bytes, rows, total);
            bytes.saturating_add(share(bytes, units.straddled, 1 << 10))
        };
        Chunk {
            stored: dictionary.saturating_add(pages(chunk.stored - dictionary)).min(chunk.stored),
            unpacked: opened.saturating_add(pages(chunk.unpacked - opened)).min(chunk.unpacked),
            values: share(chunk.values, rows, total),
            ..*chunk
        }
    }

    /// File and row group of number `group` of the files'.
    pub(super) fn whole_place(&self, group: usize) -> Place {
        Self { units: None, ..self.clone() }.place(group)
    }

    /// Number `group` of the files' row groups.
    pub(super) fn whole_group(&self, group: usize) -> Result<(&RowGroup, &super::DataFile, &super::Layout)> {
        self.inner
            .group(self.inner.manifest.groups.get(group))
            .ok_or_else(|| Error::NotFound { what: format!("row group {group} of the dataset"), hint: String::new() })
    }
}

/// `rows` of `total` of these bytes, rounded up.
fn share(bytes: u64, rows: u64, total: u64) -> u64 {
    let share = (u128::from(bytes) * u128::from(rows)).div_ceil(u128::from(total.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of so many rows of so many bytes each.
    fn column(total: u64, rows: u64, bytes: u32) -> (usize, Vec<Location>) {
        let page = |at: u64| Location { start: 4 + at * u64::from(bytes), length: bytes, row: (at * rows) as u32 };
        (0, (0..total.div_ceil(rows)).map(page).collect())
    }

    #[test]
    fn parts_are_all_rows_once() {
        for rows in [1, 2, 9, 10, 11, 14, 15, 100] {
            for each in [1, 2, 10, 99, 1000] {
                let found: Vec<_> = parts(rows, each).collect();
                assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start), "{rows}, {each}");
                assert_eq!((found[0].start, found[found.len() - 1].end), (0, rows));
                let last = found[found.len() - 1].clone();
                assert!(
                    found.len() == 1
                        || (2 * (last.end - last.start) >= each && last.end - last.start < each * 3 / 2 + 1)
                );
            }
        }
    }

    #[test]
    fn units_are_cut_where_pages_begin() {
        let grid = |columns: &[_], wanted| {
            Grid::of(columns, 1_000_000, wanted, 10).map(|grid| (grid.each(wanted), grid.straddled))
        };
        let narrow = column(1_000_000, 20_000, 100_000);
        assert_eq!(grid(&[narrow.clone(), narrow.clone()], 25_000), Some((20_000, 0)));
        assert_eq!(grid(std::slice::from_ref(&narrow), 31_000), Some((40_000, 0)));
        // Every second unit cuts one of the smaller column's pages, which are a fifth of the bytes.
        let wide = column(1_000_000, 40_000, 50_000);
        assert_eq!(grid(&[narrow.clone(), wide.clone()], 20_000), Some((40_000, 0)));
        let small = column(1_000_000, 40_000, 20_000);
        let (each, straddled) = grid(&[narrow.clone(), small], 20_000).unwrap();
        assert!(each == 20_000 && straddled > 0 && straddled < 1024 / 10, "{each}: {straddled}");
        // Pages that fit nowhere.
        let odd = column(1_000_000, 33_333, 150_000);
        let (each, straddled) = grid(&[narrow, odd.clone()], 20_000).unwrap();
        assert!(each > 100_000 && straddled <= 1024 / 10, "{each}: {straddled}");
        assert_eq!(grid(&[column(1_000_000, 600_000, 1)], 20_000), None, "two pages, one of them most of it");
    }

    #[test]
    fn small_and_unindexed_row_groups_and_large_dictionaries_are_not_cut() {
        let group = RowGroup { file: 0, ordinal: 0, rows: 1_000_000, selected: 1_000_000, bytes: 80 << 20 };
        let chunk = Chunk {
            start: 4,
            stored: 80 << 20,
            unpacked: 80 << 20,
            data: 4,
            values: 1_000_000,
            nulls: None,
            dictionary: false,
            offset_index: Some((1 << 30, 100)),
            codec: 0,
            encodings: 0,
        };
        let sizes = Sizes { column: 0, ..Sizes::default() };
        let rows = |chunk: Chunk| wanted(&group, &[chunk], 4 << 20, &sizes);
        assert_eq!(rows(chunk), Some(50_000));
        assert_eq!(rows(Chunk { offset_index: None, ..chunk }), None);
        assert_eq!(rows(Chunk { offset_index: Some((1 << 30, 5 << 20)), ..chunk }), None, "too large an index");
        assert_eq!(wanted(&RowGroup { bytes: 7 << 20, ..group }, &[chunk], 4 << 20, &sizes), None);
        let with = |bytes: u64| rows(Chunk { dictionary: true, data: 4 + bytes, ..chunk });
        assert_eq!(with(1 << 20), Some(50_000));
        assert_eq!(with(2 << 20), Some(1_000_000_u64.div_ceil(11)), "ten units more are a quarter more bytes");
        assert_eq!(with(40 << 20), None);
        assert_eq!(wanted(&group, &vec![Chunk { stored: 1, ..chunk }; 160], 4 << 20, &Sizes::default()), Some(125_000));
    }
}
