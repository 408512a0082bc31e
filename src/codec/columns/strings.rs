//! Arrays of strings in cells, as nested Arrow lists: strings have no tensor form.

use arrow::array::{ArrayRef, BinaryViewBuilder};
use arrow::buffer::OffsetBuffer;

use super::bytes;
use super::cells::Offsets;
use crate::codec::npy;
use crate::error::{Error, Place, Result};
use crate::schema::Stored;

/// Most lists that one cell may open: `(10**12, 0)` is an array of no bytes.
const MAX_LISTS: usize = 1 << 24;

/// Lists of strings, row after row, as many levels deep as the arrays have axes.
#[derive(Debug)]
pub(super) struct Lists<'a> {
    stored: &'a Stored,
    /// By level.
    offsets: Vec<Vec<i64>>,
    values: BinaryViewBuilder,
}

impl<'a> Lists<'a> {
    pub(super) fn new(stored: &'a Stored) -> Self {
        let offsets = vec![vec![0]; stored.shape.len()];
        Self { stored, offsets, values: BinaryViewBuilder::new() }
    }

    /// Adds the array in `cell`; without one, what is empty.
    ///
    /// # Errors
    /// What is wrong with the cell; then nothing was added.
    pub(super) fn push(&mut self, cell: Option<&[u8]>) -> Result<()> {
        let axes = self.offsets.len();
        let (shape, strings) = match cell {
            Some(cell) => npy::strings(self.stored, cell)?,
            None => (vec![0; axes], if axes == 0 { vec![Vec::new()] } else { Vec::new() }),
        };
        let product = |axes: &[usize]| axes.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis));
        let counts: Option<Vec<usize>> = (1..=axes).map(|level| product(&shape[..level.min(shape.len())])).collect();
        let counts = counts.filter(|counts| {
            let lists = counts.iter().take(axes.saturating_sub(1));
            shape.len() == axes && product(&shape) == Some(strings.len()) && lists.into_iter().all(|n| *n <= MAX_LISTS)
        });
        if counts.is_none() {
            let what = format!("an array of {} strings of shape {shape:?}", strings.len());
            return Err(Error::corrupt(Place::default(), what));
        }
        let mut lists = 1;
        for (offsets, length) in self.offsets.iter_mut().zip(&shape) {
            let mut end = offsets.last().copied().unwrap_or(0);
            offsets.extend((0..lists).map(|_| {
                end += *length as i64;
                end
            }));
            // At most `MAX_LISTS`, or the number of strings.
            lists *= length;
        }
        strings.iter().for_each(|string| self.values.append_value(string));
        Ok(())
    }

    /// The lists, of text or of bytes.
    pub(super) fn finish(mut self, text: bool) -> Result<ArrayRef, String> {
        let offsets: Vec<Offsets> =
            self.offsets.into_iter().map(|offsets| Offsets::Large(OffsetBuffer::new(offsets.into()))).collect();
        bytes::nested(&self.values.finish(), text, None, &offsets)
    }
}
