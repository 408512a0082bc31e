//! Arrays of strings in cells, as nested Arrow lists: strings have no tensor form.

use arrow::array::{ArrayRef, BinaryViewBuilder};
use arrow::buffer::OffsetBuffer;

use super::block::Offsets;
use super::bytes;
use crate::codec::npy::NpyDecoder;
use crate::error::{Error, Place, Result};

/// Most lists that one cell may open: `(10**12, 0)` is an array of no bytes.
const MAX_LISTS: usize = 1 << 24;

/// Lists of strings, row after row, as many levels deep as the arrays have axes.
#[derive(Debug)]
pub(super) struct Lists<'a> {
    decoder: &'a NpyDecoder,
    /// By level.
    offsets: Vec<Vec<i64>>,
    values: BinaryViewBuilder,
}

impl<'a> Lists<'a> {
    /// Lists of arrays with `axes` axes.
    pub(super) fn new(decoder: &'a NpyDecoder, axes: usize) -> Self {
        Self { decoder, offsets: vec![vec![0]; axes], values: BinaryViewBuilder::new() }
    }

    /// Adds the array in `cell`; without one, what is empty.
    ///
    /// # Errors
    /// What is wrong with the cell; then nothing was added.
    pub(super) fn push(&mut self, cell: Option<&[u8]>) -> Result<()> {
        let Some(cell) = cell else {
            if self.offsets.is_empty() {
                self.values.append_value([]);
            }
            // An empty list has no lists in it.
            if let Some(outer) = self.offsets.first_mut() {
                outer.push(outer.last().copied().unwrap_or(0));
            }
            return Ok(());
        };
        let strings = self.decoder.strings(cell)?;
        let inner = strings.shape.split_last().map_or(&[][..], |(_, outer)| outer);
        let lists = inner.iter().try_fold(1_usize, |product, axis| product.checked_mul((*axis).max(1)));
        if strings.shape.len() != self.offsets.len() || lists.is_none_or(|lists| lists > MAX_LISTS) {
            let what = format!("an array of {} strings of shape {:?}", strings.len(), strings.shape);
            return Err(Error::corrupt(Place::default(), what));
        }
        let mut lists = 1;
        for (offsets, length) in self.offsets.iter_mut().zip(&strings.shape) {
            let mut end = offsets.last().copied().unwrap_or(0);
            offsets.extend((0..lists).map(|_| {
                end += *length as i64;
                end
            }));
            // At most `MAX_LISTS`, and at the end the number of strings.
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
