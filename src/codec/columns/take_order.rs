//! The rows of a row group in the order in which batches take them.
//!
//! A shuffled batch takes its rows from random places in a window, and column by column that is a cache miss per value.
//! But the order is known when the row group is decoded. A column that was just decoded is in the cache: sorting it in
//! that order costs little there, and batches then copy runs.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::buffer::Buffer;

/// Places after the expected one, and then before it, at which a row is looked for first: batches are made side by side,
/// bad rows are left out, and others come in their place.
const NEAR: usize = 16 << 10;

/// Rows compared at once.
const AT_ONCE: usize = 32;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct TakeOrder {
    /// The row that comes first, second, and so on.
    rows: Vec<u32>,
    /// The place after those of the last batch.
    next: AtomicU32,
}

impl TakeOrder {
    /// The order `rows`, which has each of `0..rows.len()` once. `None` otherwise.
    pub(crate) fn new(rows: Vec<u32>) -> Option<Self> {
        let mut seen = vec![0_u64; rows.len().div_ceil(64)];
        for row in &rows {
            let (word, bit) = (*row as usize / 64, 1 << (row % 64));
            let word = seen.get_mut(word).filter(|_| (*row as usize) < rows.len())?;
            if *word & bit != 0 {
                return None;
            }
            *word |= bit;
        }
        Some(Self { rows, next: AtomicU32::new(0) })
    }

    /// The number of rows that it orders.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Probable start of the next batch: after the last one.
    pub(super) fn expected(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Remembers where the next batch probably begins.
    pub(super) fn expect(&self, place: u32) {
        self.next.store(place, Ordering::Relaxed);
    }

    /// The place of `row`, which is probably `expected`.
    #[inline]
    pub(super) fn place(&self, row: u32, expected: u32) -> u32 {
        if self.rows.get(expected as usize) == Some(&row) { expected } else { self.search(row, expected as usize) }
    }

    #[cold]
    fn search(&self, row: u32, expected: usize) -> u32 {
        let end = self.rows.len();
        let at = expected.min(end);
        let (first, last) = (at.saturating_sub(NEAR), (at + NEAR).min(end));
        let within = |range: Range<usize>| {
            let rows = &self.rows[range.clone()];
            let holds = |rows: &[u32]| rows.iter().fold(false, |found, of| found | (*of == row));
            let first = AT_ONCE * rows.chunks(AT_ONCE).position(holds)?;
            let found = rows[first..].iter().position(|of| *of == row)?;
            u32::try_from(range.start + first + found).ok()
        };
        // Each row is somewhere.
        let found = within(at..last).or_else(|| within(first..at));
        found.or_else(|| within(last..end)).or_else(|| within(0..first)).unwrap_or(row)
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        self.rows.len() * size_of::<u32>()
    }

    /// Values of `width` bytes, one for each row of the row group, in order; `None` for widths that are not small, and
    /// for too few values.
    pub(super) fn sorted(&self, bytes: &[u8], width: usize) -> Option<Buffer> {
        let bytes = bytes.get(..self.rows.len().checked_mul(width)?)?;
        match width {
            1 => Some(self.taken::<1>(bytes)),
            2 => Some(self.taken::<2>(bytes)),
            4 => Some(self.taken::<4>(bytes)),
            8 => Some(self.taken::<8>(bytes)),
            16 => Some(self.taken::<16>(bytes)),
            _ => None,
        }
    }

    fn taken<const WIDTH: usize>(&self, bytes: &[u8]) -> Buffer {
        let (values, _) = bytes.as_chunks::<WIDTH>();
        let mut sorted: Vec<[u8; WIDTH]> = Vec::with_capacity(values.len());
        sorted.extend(self.rows.iter().map(|row| values[*row as usize]));
        Buffer::from_vec(sorted.into_flattened())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_order() {
        let order = TakeOrder::new(vec![2, 0, 1]).unwrap();
        for expected in 0..4 {
            assert_eq!([0, 1, 2].map(|row| order.place(row, expected)), [1, 2, 0]);
        }
        let bytes: Vec<u8> = (0..3 * 16).collect();
        for width in [1_u8, 2, 4, 8, 16] {
            let sorted = order.sorted(&bytes, width.into()).unwrap();
            let firsts: Vec<u8> = sorted.chunks(width.into()).map(|value| value[0]).collect();
            assert_eq!((firsts, sorted.len()), (vec![2 * width, 0, width], 3 * usize::from(width)));
        }
        assert!(order.sorted(&bytes, 3).is_none());
        assert!(order.sorted(&bytes[..2], 1).is_none(), "too few");
    }

    #[test]
    fn rows_are_found_however_far_from_the_expected_place() {
        let rows = 3 * NEAR as u32;
        let order = TakeOrder::new((0..rows).rev().collect()).unwrap();
        for row in [0, 1, 70, rows / 2, rows - 1] {
            for expected in [0, 5, rows / 3, rows - 1, rows, u32::MAX] {
                assert_eq!(order.place(row, expected), rows - 1 - row, "{row} at {expected}");
            }
        }
        order.expect(7);
        assert_eq!(order.expected(), 7);
    }

    #[test]
    fn only_orders_of_all_rows_are_taken() {
        for rows in [vec![0, 0], vec![1, 2], vec![2, 0]] {
            assert!(TakeOrder::new(rows).is_none());
        }
        assert!(TakeOrder::new(Vec::new()).is_some());
    }
}
