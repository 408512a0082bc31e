//! Locations of the pages of a column chunk, and the rows they hold: the offset index, which writers put after the data.
//!
//! It is held against the footer here, and against the pages when they are read.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::errors::ParquetError;
use tokio::sync::OnceCell;

use super::chunks::{Chunks, coalesce};
use super::guard::guard;
use super::thrift::{Broken, Reader, kind};
use super::{Chunk, Dataset};
use crate::error::{Error, Result};
use crate::store::cache::Wanted;

/// Offset indexes of a row group are not read if they take more bytes than this together: it is then read as a whole.
pub(super) const MOST_INDEX_BYTES: u64 = 4 << 20;
/// Bytes of offset indexes that are kept, the latest ones.
const KEPT_BYTES: usize = 16 << 20;

/// One page of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    /// Start in the file, with its header.
    pub(super) start: u64,
    /// Bytes of it, with its header.
    pub(super) length: u32,
    /// Its first row in the row group.
    pub(super) row: u32,
}

impl Location {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.length.into())
    }

    /// Returns true if `next` holds the rest of this page's last row. Pages should end with rows, but Arrow's C++ writer cuts the last row
    /// of a list column where batches of a value are written. Both then count as one page.
    fn goes_on_in(&self, next: &Self) -> bool {
        self.row == next.row && self.end() == next.start && self.length > 0 && next.length > 0
    }
}

/// The pages of a column chunk in which the rows of a unit lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// Range of the dictionary, if there is one.
    pub(super) dictionary: Option<Range<u64>>,
    /// Range of the pages, which follow each other.
    pub(super) pages: Range<u64>,
    /// Rows of the row group that these pages hold.
    pub(super) rows: Range<u64>,
}

impl Run {
    /// The run of `pages` that holds `rows`. The pages are all that `chunk` has in a row group of `total` rows.
    fn of(chunk: &Chunk, pages: &[Location], total: u64, rows: &Range<u64>) -> Option<Self> {
        let first = pages.partition_point(|page| u64::from(page.row) <= rows.start).checked_sub(1)?;
        let end = pages.partition_point(|page| u64::from(page.row) < rows.end);
        let of = pages.get(first..end)?;
        let start = pages.first()?.start;
        let dictionary = (start > chunk.start).then_some(chunk.start..start);
        let held = u64::from(of.first()?.row)..pages.get(end).map_or(total, |page| u64::from(page.row));
        Some(Self { dictionary, pages: of.first()?.start..of.last()?.end(), rows: held })
    }
}

/// The pages that an offset index names.
pub(super) fn locations(bytes: &[u8]) -> Result<Vec<Location>, Broken> {
    let mut reader = Reader::new(bytes);
    let (mut last, mut found) = (0, Vec::<Location>::new());
    while let Some(field) = reader.field(&mut last)? {
        if (field.id, field.kind) != (1, kind::LIST) {
            reader.skip(field, 0)?;
            continue;
        }
        let (count, element) = reader.list()?;
        if element != kind::STRUCT && count > 0 {
            return Err("its pages are not a list of structs");
        }
        // Each takes four bytes at least.
        found.reserve(count.min(bytes.len() / 4));
        for _ in 0..count {
            let (mut last, mut numbers) = (0, [None; 3]);
            while let Some(field) = reader.field(&mut last)? {
                match (field.id, field.kind) {
                    (1, kind::I64) => numbers[0] = Some(reader.int()?),
                    (2, kind::I32) => numbers[1] = Some(reader.int()?),
                    (3, kind::I64) => numbers[2] = Some(reader.int()?),
                    _ => reader.skip(field, 0)?,
                }
            }
            let [Some(start), Some(length), Some(row)] = numbers else { return Err("a page lacks a number") };
            let number = |number: i64| u32::try_from(number).map_err(|_| "a number of a page is out of range");
            let start = u64::try_from(start).map_err(|_| "a page is before the file")?;
            let page = Location { start, length: number(length)?, row: number(row)? };
            match found.last_mut() {
                Some(before) if before.goes_on_in(&page) => {
                    let length = before.length.checked_add(page.length);
                    before.length = length.ok_or("a number of a page is out of range")?;
                }
                _ => found.push(page),
            }
        }
    }
    Ok(found)
}

/// Fault in the pages of `chunk`, of a row group of `rows` rows.
fn wrong(chunk: &Chunk, pages: &[Location], rows: u64) -> Option<Broken> {
    let range = chunk.range();
    let Some(first) = pages.first() else { return Some("it names no page") };
    if first.row != 0 || first.start < range.start {
        return Some("its first page is not the chunk's");
    }
    let follows = |pair: &[Location]| pair[0].end() == pair[1].start && pair[0].row < pair[1].row;
    if pages.iter().any(|page| page.length == 0) || !pages.windows(2).all(follows) {
        return Some("its pages do not follow each other");
    }
    let fits = pages.last().is_some_and(|last| last.end() <= range.end && u64::from(last.row) < rows);
    (!fits).then_some("its last page is outside the chunk")
}

/// The pages of some leaves of a row group.
type Indexed = Arc<Vec<(usize, Vec<Location>)>>;

/// Offset indexes that were read, by number of the row group: units of one row group follow each other often enough.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    cells: HashMap<u32, Arc<OnceCell<Indexed>>>,
    /// Those that are there with their bytes, the oldest first.
    read: VecDeque<(u32, usize)>,
    bytes: usize,
}

impl Kept {
    /// Cell for the index of row group `group`.
    fn cell(&self, group: u32) -> Arc<OnceCell<Indexed>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(held.cells.entry(group).or_default())
    }

    /// Notes that the index of `group` was read, and lets older ones go.
    fn note(&self, group: u32, index: &Indexed) {
        let bytes = index.iter().map(|(_, pages)| size_of_val(pages.as_slice())).sum();
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.read.push_back((group, bytes));
        held.bytes += bytes;
        while held.bytes > KEPT_BYTES && held.read.len() > 1 {
            let Some((oldest, bytes)) = held.read.pop_front() else { return };
            held.cells.remove(&oldest);
            held.bytes -= bytes;
        }
    }
}

impl Dataset {
    /// The pages of `leaves` of row group `group`, which is one of the files', not a unit.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for an index that contradicts the footer, and the errors of reading it.
    pub(super) async fn locations(&self, group: usize, leaves: &[usize]) -> Result<Vec<(usize, Vec<Location>)>> {
        let (row_group, file, layout) = self.whole_group(group)?;
        let count = leaves.last().map_or(0, |last| last + 1);
        let chunks = self.inner.packed.chunks(file.first + row_group.ordinal as usize, count);
        let place = |leaf: usize| {
            let column = layout.descriptor().columns().get(leaf).map(|column| column.path().string());
            self.whole_place(group).column(column.unwrap_or_default())
        };
        let damaged = |leaf, what: Broken| Error::corrupt(place(leaf), format!("its page index is damaged: {what}"));
        let mut ranges = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            let found = chunks.get(*leaf).and_then(|chunk| chunk.offset_index);
            let end = found.and_then(|(start, length)| start.checked_add(length.into()));
            let range = found.zip(end).map(|((start, _), end)| start..end);
            let range = range.filter(|range| range.end <= file.object.stamp().size);
            ranges.push(range.ok_or_else(|| damaged(*leaf, "it is outside the file"))?);
        }
        let joined = coalesce(ranges.clone(), file.object.gap());
        let wanted = Wanted { opening: true, ..Wanted::default() };
        let parts = file.object.read_for(joined.clone(), wanted).await?;
        let parts = joined.into_iter().map(|range| range.start).zip(parts).collect();
        let bytes = Chunks::new(parts, file.object.stamp().size);
        let mut found = Vec::with_capacity(leaves.len());
        for (leaf, range) in leaves.iter().zip(&ranges) {
            let bytes = guard(&place(*leaf), "its page index is damaged", || bytes.range(range))?;
            let pages = locations(&bytes).map_err(|what| damaged(*leaf, what))?;
            if let Some(what) = chunks.get(*leaf).and_then(|chunk| wrong(chunk, &pages, row_group.rows)) {
                return Err(damaged(*leaf, what));
            }
            found.push((*leaf, pages));
        }
        Ok(found)
    }

    /// The pages of `leaves`, whose chunks are `columns`, that hold `rows` of row group `group` of the files.
    pub(super) async fn runs(
        &self,
        kept: &Kept,
        group: u32,
        rows: Range<u64>,
        (leaves, columns): (&[usize], &[Chunk]),
    ) -> Result<Vec<(usize, Run)>> {
        if leaves.is_empty() {
            return Ok(Vec::new());
        }
        let read = || async {
            let found = Arc::new(self.locations(group as usize, leaves).await?);
            kept.note(group, &found);
            Ok::<_, Error>(found)
        };
        let mut index = Arc::clone(kept.cell(group).get_or_try_init(read).await?);
        if !leaves.iter().eq(index.iter().map(|(leaf, _)| leaf)) {
            // Somebody else reads other columns of it.
            index = Arc::new(self.locations(group as usize, leaves).await?);
        }
        let total = self.whole_group(group as usize)?.0.rows;
        let run = |(leaf, pages): &(usize, Vec<Location>)| {
            let run = columns.get(*leaf).and_then(|chunk| Run::of(chunk, pages, total, &rows))?;
            Some((*leaf, run))
        };
        let place = || self.whole_place(group as usize);
        let runs = index.iter().map(run).collect::<Option<Vec<_>>>();
        runs.ok_or_else(|| Error::corrupt_by(place(), "its page index is damaged", ParquetError::EOF("no page".into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> Chunk {
        let offset_index = Some((0, 0));
        let (start, stored, data) = (10, 100, 30);
        let (unpacked, values, nulls, dictionary) = (100, 50, None, true);
        Chunk { start, stored, unpacked, data, values, nulls, dictionary, offset_index, codec: 0, encodings: 0 }
    }

    fn page(start: u64, length: u32, row: u32) -> Location {
        Location { start, length, row }
    }

    #[test]
    fn an_index_is_read_and_held_against_the_chunk() {
        // A list of two structs: 30, 50, 0 and 80, 30, 20.
        let bytes = [0x19, 0x2c, 0x16, 60, 0x15, 100, 0x16, 0, 0, 0x16, 0xa0, 1, 0x15, 60, 0x16, 40, 0, 0];
        let pages = locations(&bytes).unwrap();
        assert_eq!(pages, [page(30, 50, 0), page(80, 30, 20)]);
        assert_eq!(wrong(&chunk(), &pages, 50), None);
        // The second page continues the first one's last row.
        let mut cut = bytes;
        cut[15] = 0;
        assert_eq!(locations(&cut).unwrap(), [page(30, 80, 0)]);
        for bytes in [&bytes[..9], &[0x19, 0xfc, 0xff, 0xff, 0x7f], &[0x19, 0x1c, 0x16, 60, 0]] {
            assert!(locations(bytes).is_err(), "{bytes:?}");
        }
        for bad in [
            &[][..],
            &[page(9, 50, 0)],
            &[page(30, 50, 1)],
            &[page(30, 81, 0)],
            &[page(30, 50, 0), page(81, 9, 20)],
            &[page(30, 50, 0), page(80, 0, 20)],
            &[page(30, 50, 0), page(80, 9, 0)],
            &[page(30, 50, 0), page(80, 9, 50)],
        ] {
            assert!(wrong(&chunk(), bad, 50).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn a_run_is_the_pages_that_hold_the_rows() {
        let pages = [page(30, 20, 0), page(50, 30, 20), page(80, 30, 40)];
        let run = |rows| Run::of(&chunk(), &pages, 50, &rows).unwrap();
        let dictionary = Some(10..30);
        assert_eq!(run(0..20), Run { dictionary: dictionary.clone(), pages: 30..50, rows: 0..20 });
        assert_eq!(run(19..21), Run { dictionary: dictionary.clone(), pages: 30..80, rows: 0..40 });
        assert_eq!(run(45..50), Run { dictionary, pages: 80..110, rows: 40..50 });
        assert_eq!(Run::of(&chunk(), &[page(10, 9, 0)], 50, &(0..50)).unwrap().dictionary, None);
    }
}
