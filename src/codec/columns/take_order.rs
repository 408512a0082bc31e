//! The rows of a row group in the order in which batches take them.
//!
//! A shuffled batch takes its rows from random places in a window, and column by column that is a cache miss per value.
//! But the order is known when the row group is decoded. A column that was just decoded is in the cache: sorting it in
//! that order costs little there, and batches then copy runs.

use arrow::buffer::Buffer;

/// See the module documentation.
#[derive(Debug, Clone)]
pub(crate) struct TakeOrder {
    /// The row that comes first, second, and so on.
    rows: Vec<u32>,
    /// The place of each row.
    places: Vec<u32>,
}

impl TakeOrder {
    /// The order `rows`, which has each of `0..rows.len()` once. `None` otherwise.
    pub(crate) fn new(rows: Vec<u32>) -> Option<Self> {
        let mut places = vec![u32::MAX; rows.len()];
        for (place, row) in (0..u32::MAX).zip(&rows) {
            let found = places.get_mut(*row as usize).filter(|found| **found == u32::MAX)?;
            *found = place;
        }
        Some(Self { rows, places })
    }

    /// The number of rows that it orders.
    pub(crate) fn rows(&self) -> usize {
        self.places.len()
    }

    /// The place of `row`.
    #[inline]
    pub(super) fn place(&self, row: u32) -> u32 {
        self.places[row as usize]
    }

    /// Bytes held, once the row group is made.
    pub(super) fn memory(&self) -> usize {
        self.places.len() * size_of::<u32>()
    }

    /// Keeps only what is needed to find rows.
    pub(super) fn settled(self) -> Self {
        Self { rows: Vec::new(), places: self.places }
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
        assert_eq!([0, 1, 2].map(|row| order.place(row)), [1, 2, 0]);
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
    fn only_orders_of_all_rows_are_taken() {
        for rows in [vec![0, 0], vec![1, 2], vec![2, 0]] {
            assert!(TakeOrder::new(rows).is_none());
        }
        assert!(TakeOrder::new(Vec::new()).is_some());
    }
}
