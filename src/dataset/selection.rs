//! The rows of a row group that a filter selected, kept small: runs, or one bit per row, whichever is less.

use std::ops::Range;

use arrow::array::{Array, BooleanArray, BooleanBufferBuilder};
use arrow::buffer::BooleanBuffer;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

/// Selected rows of one row group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selection {
    /// Every row.
    All,
    /// Runs of rows.
    Runs(Vec<Run>),
    /// One bit per row, and before each block of [`BLOCK`] rows how many are selected.
    Bits(BooleanBuffer, Vec<u32>),
}

/// Rows `start..start + length`; `before` rows are selected before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    start: u32,
    length: u32,
    before: u32,
}

/// Rows per counted block.
const BLOCK: usize = 1024;

impl Selection {
    /// Nothing.
    pub(super) fn none() -> Self {
        Self::Runs(Vec::new())
    }

    /// Bytes of memory that it takes.
    #[cfg(feature = "flight")]
    pub(super) fn memory_size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::All => 0,
                Self::Runs(runs) => size_of_val(runs.as_slice()),
                Self::Bits(bits, counts) => bits.inner().len() + size_of_val(counts.as_slice()),
            }
    }

    /// The rows where `mask` is true, of those that `read` selected; null counts as false.
    pub(super) fn among(read: &RowSelection, mask: &BooleanArray) -> Self {
        let mut bits = BooleanBufferBuilder::new(read.total_row_count());
        let mut at = 0;
        for selector in read.iter() {
            if selector.skip {
                bits.append_n(selector.row_count, false);
            } else {
                let length = selector.row_count.min(mask.len().saturating_sub(at));
                (at..at + length).for_each(|row| bits.append(mask.is_valid(row) && mask.value(row)));
                at += length;
            }
        }
        Self::of(&BooleanArray::new(bits.finish(), None))
    }

    /// The rows where `mask` is true; null counts as false.
    pub(super) fn of(mask: &BooleanArray) -> Self {
        let bits = match mask.nulls() {
            Some(nulls) => mask.values() & nulls.inner(),
            None => mask.values().clone(),
        };
        let rows = bits.len();
        let selected = bits.count_set_bits();
        if selected == rows {
            return Self::All;
        }
        let worth = rows.div_ceil(8) / size_of::<Run>() + 1;
        let mut runs = Vec::new();
        let mut before = 0;
        for (start, end) in bits.set_slices() {
            if runs.len() > worth {
                break;
            }
            let length = (end - start) as u32;
            runs.push(Run { start: start as u32, length, before });
            before += length;
        }
        if runs.len() <= worth {
            runs.shrink_to_fit();
            return Self::Runs(runs);
        }
        let mut counts = Vec::with_capacity(rows.div_ceil(BLOCK));
        let mut count = 0;
        for start in (0..rows).step_by(BLOCK) {
            counts.push(count);
            count += bits.slice(start, BLOCK.min(rows - start)).count_set_bits() as u32;
        }
        // A slice of a larger buffer would keep all of it.
        Self::Bits(bits.iter().collect(), counts)
    }

    /// The rows, of `rows`, that both select.
    pub(super) fn and(&self, other: &Self, rows: u64) -> Self {
        match (self, other) {
            (Self::All, one) | (one, Self::All) => one.clone(),
            (one, other) => {
                let rows = usize::try_from(rows).unwrap_or(usize::MAX);
                Self::of(&BooleanArray::new(&one.bits(rows) & &other.bits(rows), None))
            }
        }
    }

    /// One bit for each of `rows` rows.
    fn bits(&self, rows: usize) -> BooleanBuffer {
        match self {
            Self::All => BooleanBuffer::new_set(rows),
            Self::Runs(runs) => {
                let mut bits = BooleanBufferBuilder::new(rows);
                for run in runs {
                    bits.append_n((run.start as usize).saturating_sub(bits.len()), false);
                    bits.append_n(run.length as usize, true);
                }
                bits.append_n(rows.saturating_sub(bits.len()), false);
                bits.finish()
            }
            Self::Bits(bits, _) => bits.clone(),
        }
    }

    /// One bit for each row in `range`, of a row group of `rows` rows; `None` if it has no such rows.
    pub(super) fn bits_of(&self, rows: u64, range: &Range<u64>) -> Option<BooleanBuffer> {
        let narrow = |row: u64| usize::try_from(row).ok();
        let (rows, start, end) = (narrow(rows)?, narrow(range.start)?, narrow(range.end)?);
        let bits = self.bits(rows);
        (start <= end && end <= bits.len()).then(|| bits.slice(start, end - start))
    }

    /// The runs of selected rows, of a row group of `rows` rows: the same ones in every form.
    #[cfg(feature = "convert")]
    pub(super) fn runs(&self, rows: u64) -> Vec<(usize, usize)> {
        self.bits(usize::try_from(rows).unwrap_or(usize::MAX)).set_slices().collect()
    }

    /// Selected rows out of `rows`.
    pub(super) fn count(&self, rows: u64) -> u64 {
        match self {
            Self::All => rows,
            Self::Runs(runs) => runs.last().map_or(0, |run| u64::from(run.before) + u64::from(run.length)),
            Self::Bits(bits, _) => bits.count_set_bits() as u64,
        }
    }

    /// The row number of the `nth` selected row; `nth` itself if there is no such row.
    pub(super) fn row(&self, nth: u64) -> u64 {
        match self {
            Self::All => nth,
            Self::Runs(runs) => {
                let after = runs.partition_point(|run| u64::from(run.before) <= nth);
                let run = after.checked_sub(1).and_then(|index| runs.get(index));
                run.map_or(nth, |run| u64::from(run.start) + nth - u64::from(run.before))
            }
            Self::Bits(bits, counts) => {
                let after = counts.partition_point(|count| u64::from(*count) <= nth);
                let Some(block) = after.checked_sub(1) else { return nth };
                let start = block * BLOCK;
                let skip = nth - u64::from(counts.get(block).copied().unwrap_or_default());
                let slice = bits.slice(start, BLOCK.min(bits.len() - start));
                let found = slice.set_indices().nth(skip as usize);
                found.map_or(nth, |row| (start + row) as u64)
            }
        }
    }

    /// Selected rows before row `row`.
    pub(super) fn before(&self, row: u64) -> u64 {
        match self {
            Self::All => row,
            Self::Runs(runs) => {
                let after = runs.partition_point(|run| u64::from(run.start) < row);
                let run = after.checked_sub(1).and_then(|index| runs.get(index));
                run.map_or(0, |run| u64::from(run.before) + (row - u64::from(run.start)).min(run.length.into()))
            }
            Self::Bits(bits, counts) => {
                let row = usize::try_from(row).unwrap_or(usize::MAX).min(bits.len());
                let block = (row / BLOCK).min(counts.len().saturating_sub(1));
                let start = block * BLOCK;
                let counted = u64::from(counts.get(block).copied().unwrap_or_default());
                counted + bits.slice(start, row - start).count_set_bits() as u64
            }
        }
    }

    /// The decoder's form of those in `range`.
    pub(super) fn within(&self, range: &Range<u64>) -> RowSelection {
        let mut selectors = Vec::new();
        let mut at = 0;
        let mut select = |start: u64, end: u64| {
            let (start, end) = (start.max(range.start), end.min(range.end));
            if start < end {
                selectors.push(RowSelector::skip((start - at) as usize));
                selectors.push(RowSelector::select((end - start) as usize));
                at = end;
            }
        };
        match self {
            Self::All => select(range.start, range.end),
            Self::Runs(runs) => {
                let end = |run: &Run| u64::from(run.start) + u64::from(run.length);
                let first = runs.partition_point(|run| end(run) <= range.start);
                let of = runs.iter().skip(first).take_while(|run| u64::from(run.start) < range.end);
                of.for_each(|run| select(run.start.into(), end(run)));
            }
            Self::Bits(bits, _) => {
                let narrow = |row: u64| usize::try_from(row).unwrap_or(usize::MAX).min(bits.len());
                let (start, end) = (narrow(range.start), narrow(range.end));
                let of = bits.slice(start, end.saturating_sub(start));
                of.set_slices().for_each(|(from, to)| select((start + from) as u64, (start + to) as u64));
            }
        }
        RowSelection::from(selectors)
    }

    /// The decoder's form; `None` for every row.
    pub(super) fn to_parquet(&self, rows: u64) -> Option<RowSelection> {
        match self {
            Self::All => None,
            Self::Bits(bits, _) => Some(RowSelection::from_boolean_buffer(bits.clone())),
            Self::Runs(runs) => {
                let mut selectors = Vec::with_capacity(runs.len() * 2 + 1);
                let mut at = 0;
                for run in runs {
                    selectors.push(RowSelector::skip((run.start - at) as usize));
                    selectors.push(RowSelector::select(run.length as usize));
                    at = run.start + run.length;
                }
                selectors.push(RowSelector::skip((rows.saturating_sub(u64::from(at))) as usize));
                Some(RowSelection::from(selectors))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_form_names_the_same_rows(runs in prop::collection::vec((any::<bool>(), 1_usize..200), 0..60), dense in any::<bool>()) {
            let mut mask: Vec<bool> = runs.iter().flat_map(|(set, length)| vec![*set; *length]).collect();
            if dense {
                mask.iter_mut().step_by(2).for_each(|bit| *bit = !*bit);
            }
            let selection = Selection::of(&BooleanArray::from(mask.clone()));
            let rows: Vec<u64> = mask.iter().enumerate().filter(|(_, set)| **set).map(|(row, _)| row as u64).collect();
            prop_assert_eq!(selection.count(mask.len() as u64), rows.len() as u64);
            for (nth, row) in rows.iter().enumerate() {
                prop_assert_eq!(selection.row(nth as u64), *row);
            }
            let parts = (0..=rows.len().min(9)).map(|at| (mask.len() * at / 7) as u64).collect::<Vec<_>>();
            for pair in parts.windows(2).filter(|pair| pair[1] <= mask.len() as u64) {
                let wanted: Vec<u64> = rows.iter().copied().filter(|row| (pair[0]..pair[1]).contains(row)).collect();
                let before = selection.before(pair[0]);
                prop_assert_eq!(selection.before(pair[1]) - before, wanted.len() as u64);
                prop_assert!(wanted.iter().enumerate().all(|(nth, row)| selection.row(before + nth as u64) == *row));
                let mut found = Vec::new();
                let mut at = 0;
                for selector in selection.within(&(pair[0]..pair[1])).iter() {
                    if !selector.skip {
                        found.extend(at..at + selector.row_count as u64);
                    }
                    at += selector.row_count as u64;
                }
                prop_assert_eq!(found, wanted);
            }
            if let Some(parquet) = selection.to_parquet(mask.len() as u64) {
                prop_assert_eq!(parquet.row_count(), rows.len());
                prop_assert_eq!(parquet.total_row_count(), mask.len());
            }
        }
    }

    #[test]
    fn rows_of_skipped_pages_are_not_selected() {
        let read = RowSelection::from(vec![
            RowSelector::skip(3),
            RowSelector::select(2),
            RowSelector::skip(4),
            RowSelector::select(1),
        ]);
        let selection = Selection::among(&read, &BooleanArray::from(vec![false, true, true]));
        assert_eq!((0..selection.count(10)).map(|nth| selection.row(nth)).collect::<Vec<_>>(), [4, 9]);
    }

    #[test]
    fn forms_are_chosen_by_size_and_null_is_false() {
        assert_eq!(Selection::of(&BooleanArray::from(vec![true; 9])), Selection::All);
        assert_eq!(Selection::of(&BooleanArray::from(vec![Some(false), None])), Selection::none());
        let alternating: BooleanArray = (0..10_000).map(|row| Some(row % 2 == 0)).collect();
        assert!(matches!(Selection::of(&alternating), Selection::Bits(..)));
        let halves: BooleanArray = (0..10_000).map(|row| Some(row < 5_000)).collect();
        assert!(matches!(Selection::of(&halves), Selection::Runs(_)));
    }
}
