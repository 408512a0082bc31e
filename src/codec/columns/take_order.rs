//! The rows of a row group in the order in which batches take them.
//!
//! A shuffled batch takes its rows from random places in a window, and column by column that is a cache miss per value.
//! But the order is known when the row group is decoded. A column that was just decoded is in the cache: sorting it in
//! that order costs little there, and batches then copy runs.

use arrow::buffer::Buffer;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct TakeOrder(Places);

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
        is_whole.then_some(Self(Places { rows, places }))
    }

    /// The number of rows that it orders.
    pub(crate) fn rows(&self) -> usize {
        self.0.rows.len()
    }

    /// The places of rows, which is what batches need.
    pub(super) fn into_places(self) -> Places {
        self.0
    }

    /// Values of `width` bytes, one for each row of the row group, in order; `None` for widths that are not small, and
    /// for too few values.
    pub(super) fn sorted(&self, bytes: &[u8], width: usize) -> Option<Buffer> {
        let bytes = bytes.get(..self.rows().checked_mul(width)?)?;
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
        sorted.extend(self.0.rows.iter().map(|row| values[*row as usize]));
        Buffer::from_vec(sorted.into_flattened())
    }
}

/// The place of each row of a row group in the order in which batches take them.
#[derive(Debug)]
pub(super) struct Places {
    /// The row at each place.
    rows: Vec<u32>,
    /// The place of each row.
    places: Vec<u32>,
}

impl Places {
    /// The place of `row`, which is mostly the `likely` one: then nothing is looked up at random. Rows that the order does not have
    /// stay in place.
    #[inline]
    pub(super) fn of(&self, row: u32, likely: u32) -> u32 {
        if self.rows.get(likely as usize) == Some(&row) {
            return likely;
        }
        self.places.get(row as usize).copied().unwrap_or(row)
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        (self.rows.len() + self.places.len()) * size_of::<u32>()
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
        for likely in 0..5 {
            assert_eq!([0, 1, 2, 3].map(|row| places.of(row, likely)), [1, 2, 0, 3], "{likely}");
        }
    }

    #[test]
    fn only_orders_of_all_rows_are_taken() {
        for rows in [vec![0, 0], vec![1, 2], vec![2, 0]] {
            assert!(TakeOrder::new(rows).is_none());
        }
        assert!(TakeOrder::new(Vec::new()).is_some());
    }
}
