//! Where the values of a flat column begin in memory: so that batches in file order may keep the place of theirs.

use arrow::datatypes::DataType;

use crate::memory::ALIGNMENT;
use crate::page::width;

/// Bytes in addition to the values of a flat column of this type.
pub(super) fn beside(data_type: &DataType) -> u64 {
    if width(data_type).is_some() { ALIGNMENT as u64 } else { 0 }
}

/// Values that fill a unit of alignment.
pub(super) fn line<T>() -> usize {
    ALIGNMENT / size_of::<T>()
}

/// How many values to put before the first one, so that the rows whose number among all selected ones is a multiple of [`line()`] are
/// aligned: batches in file order mostly begin with one, and may stay where they are then. `values` is empty, and row `first` will be its first.
pub(super) fn lead<T>(values: &[T], first: u64) -> usize {
    let line = line::<T>() as u64;
    let address = (values.as_ptr().addr() / size_of::<T>()) as u64;
    // The place of row 0, if it were there, in its line.
    let place = (address + line - first % line) % line;
    ((line - place) % line) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_round_numbers_are_aligned() {
        fn check<T: Copy + Default>() {
            for first in (0..40).chain([1000, u64::MAX]) {
                let mut values: Vec<T> = Vec::with_capacity(200);
                let before = lead(&values, first);
                assert!(before < line::<T>());
                values.resize(before + 100, T::default());
                let is_round = |row: &usize| (first.wrapping_add(*row as u64)).is_multiple_of(line::<T>() as u64);
                let rows: Vec<usize> = (0..100).filter(is_round).collect();
                assert!(!rows.is_empty());
                for row in rows {
                    let address = (&raw const values[before + row]).addr();
                    assert!(address.is_multiple_of(ALIGNMENT), "row {row} behind {first}");
                }
            }
        }
        check::<u32>();
        check::<u64>();
    }
}
