//! Arrays of strings in cells, as nested Arrow lists: strings have no tensor form.

use arrow::array::{ArrayRef, BinaryViewBuilder};
use arrow::buffer::OffsetBuffer;

use super::bytes;
use super::offsets::Offsets;
use crate::codec::npy::NpyDecoder;
use crate::error::{Error, Place, Result};

/// Lists and strings of one row group allowed without bytes behind them: `(10**12, 0)` and `<U0` are arrays of no
/// bytes.
const FREE: usize = 1 << 20;

/// Lists and strings per byte of an `.npz`: zlib packs a thousand equal bytes into one, real text far fewer.
const PACKED: usize = 64;

/// The error of a cell that has more than the bytes of its row group's cells allow.
pub(super) const TOO_MANY: &str = "an array with more lists or strings than the bytes of its row group account for";

/// Lists of strings, row after row, with as many levels as the arrays have axes.
#[derive(Debug)]
pub(super) struct Lists<'a> {
    decoder: &'a NpyDecoder,
    /// By level.
    offsets: Vec<Vec<i64>>,
    values: BinaryViewBuilder,
    /// Lists and strings still allowed. Each cell adds to it by its bytes, so that memory stays proportional to the
    /// stored bytes.
    room: usize,
}

impl<'a> Lists<'a> {
    /// Lists of arrays with `axes` axes.
    pub(super) fn new(decoder: &'a NpyDecoder, axes: usize) -> Self {
        Self { decoder, offsets: vec![vec![0]; axes], values: BinaryViewBuilder::new(), room: FREE }
    }

    /// Adds the array in `cell`, or an empty value without one.
    ///
    /// # Errors
    /// The fault of the cell; nothing is added then.
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
        // A string of one byte may be in a list of its own at each level.
        let room = self.decoder.packed_by(cell, PACKED).saturating_mul(self.offsets.len() + 1);
        self.room = self.room.saturating_add(room);
        let strings = self.decoder.strings_within(cell, self.room)?;
        let inner = strings.shape.split_last().map_or(&[][..], |(_, outer)| outer);
        let lists = inner.iter().try_fold(1_usize, |product, axis| product.checked_mul((*axis).max(1)));
        let levels = strings.shape.len().max(1);
        let asked =
            lists.and_then(|lists| lists.checked_mul(levels)).and_then(|lists| lists.checked_add(strings.len()));
        let left = asked.and_then(|asked| self.room.checked_sub(asked));
        let Some(left) = left.filter(|_| strings.shape.len() == self.offsets.len()) else {
            return Err(Error::corrupt(Place::default(), format!("{TOO_MANY}: its shape is {:?}", strings.shape)));
        };
        self.room = left;
        let mut lists = 1;
        for (offsets, length) in self.offsets.iter_mut().zip(&strings.shape) {
            let mut end = offsets.last().copied().unwrap_or(0);
            offsets.extend((0..lists).map(|_| {
                end += *length as i64;
                end
            }));
            // No more than there was room for, and at the end the number of strings.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Codec, Element, Stored};

    fn cell(descr: &str, shape: &str) -> Vec<u8> {
        let mut literal = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        literal.extend(std::iter::repeat_n(' ', 117 - literal.len()));
        literal.push('\n');
        let mut cell = b"\x93NUMPY\x01\x00".to_vec();
        cell.extend((literal.len() as u16).to_le_bytes());
        cell.extend(literal.as_bytes());
        cell
    }

    #[test]
    fn arrays_of_no_bytes_are_bounded_over_all_cells() {
        for (descr, shape, axes) in [("<U1", "(400000, 0)", 2), ("<U0", "(500000,)", 1), ("|S0", "(1, 1, 300000)", 3)] {
            let stored = Stored { codec: Codec::Npy, element: Element::Text, shape: vec![None; axes] };
            let stored = Stored { element: if descr == "|S0" { Element::Bytes } else { Element::Text }, ..stored };
            let decoder = NpyDecoder::new(&stored).unwrap();
            let (mut lists, cell) = (Lists::new(&decoder, axes), cell(descr, shape));
            lists.push(Some(&cell)).unwrap();
            let refused = (0..9).filter(|_| lists.push(Some(&cell)).is_err()).count();
            assert!(refused >= 7, "{descr}{shape}: only {refused} of 9 are refused");
            assert!(lists.offsets.iter().map(Vec::len).sum::<usize>() <= FREE + 40 * cell.len() + 16);
        }
    }

    #[test]
    fn strings_with_bytes_have_room_for_ever() {
        let decoder = Stored { codec: Codec::Npy, element: Element::Bytes, shape: vec![None] };
        let decoder = NpyDecoder::new(&decoder).unwrap();
        let mut lists = Lists::new(&decoder, 1);
        let mut cell = cell("|S1", "(100000,)");
        cell.resize(cell.len() + 100_000, b'a');
        for _ in 0..30 {
            lists.push(Some(&cell)).unwrap();
        }
        assert_eq!(lists.offsets[0].last(), Some(&3_000_000));
    }
}
