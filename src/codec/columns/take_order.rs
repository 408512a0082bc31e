//! The rows of a row group in the order in which batches take them.
//!
//! A shuffled batch takes its rows from random places in a window, and column by column that is a cache miss per value.
//! But the order is known when the row group is decoded. A column that was just decoded is in the cache: sorting it in
//! that order costs little there, and batches then copy runs.

use arrow::buffer::Buffer;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct TakeOrder {
    /// The row that comes first, second, and so on.
    rows: Vec<u32>,
    places: Places,
}

impl TakeOrder {
    /// The order `rows`, which has each of `0..rows.len()` once. `None` otherwise.
    pub(crate) fn new(rows: Vec<u32>) -> Option<Self> {
        const NOWHERE: u32 = u32::MAX;
        let mut places = vec![NOWHERE; rows.len()];
        for (place, row) in (0..NOWHERE).zip(&rows) {
            let slot = places.get_mut(*row as usize).filter(|slot| **slot == NOWHERE)?;
            *slot = place;
        }
        let is_whole = u32::try_from(rows.len()).is_ok_and(|rows| rows < NOWHERE);
        is_whole.then_some(Self { rows, places: Places(places) })
    }

    /// The number of rows that it orders.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The place of each row, which is what batches need.
    pub(super) fn into_places(self) -> Places {
        self.places
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

/// The place of each row of a row group in the order in which batches take them.
#[derive(Debug)]
pub(super) struct Places(Vec<u32>);

impl Places {
    /// The place of `row`. Rows that the order does not have stay in place.
    #[inline]
    pub(super) fn of(&self, row: u32) -> u32 {
        self.0.get(row as usize).copied().unwrap_or(row)
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        self.0.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_order() {
        let order = TakeOrder::new(vec![2, 0, 1]).unwrap();
        let bytes: Vec<u8> = (0..3 * 16).collect();
        for width in [1_u8, 2, 4, 8, 16] {
            let sorted = order.sorted(&bytes, width.into()).unwrap();
            let firsts: Vec<u8> = sorted.chunks(width.into()).map(|value| value[0]).collect();
            assert_eq!((firsts, sorted.len()), (vec![2 * width, 0, width], 3 * usize::from(width)));
        }
        assert!(order.sorted(&bytes, 3).is_none());
        assert!(order.sorted(&bytes[..2], 1).is_none(), "too few");
        let places = order.into_places();
        assert_eq!([0, 1, 2, 3].map(|row| places.of(row)), [1, 2, 0, 3]);
    }

    #[test]
    fn only_orders_of_all_rows_are_taken() {
        for rows in [vec![0, 0], vec![1, 2], vec![2, 0]] {
            assert!(TakeOrder::new(rows).is_none());
        }
        assert!(TakeOrder::new(Vec::new()).is_some());
    }
}
