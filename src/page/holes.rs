//! The nulls among the values of a flat column, page by page, and the positions of the others.

use arrow::array::BooleanBufferBuilder;
use arrow::buffer::{BooleanBuffer, NullBuffer};

use super::hybrid::{Run, Runs};

/// Bits of a word.
const WORD: usize = 64;

/// The nulls of a column chunk, as far as it has been read.
#[derive(Debug)]
pub(crate) struct Holes {
    /// One bit for each value taken: set if it is not null.
    found: BooleanBufferBuilder,
    /// The same for the page; `None` if none is null.
    page: Option<BooleanBuffer>,
    /// Values of the page taken or skipped.
    taken: usize,
    /// Nulls of all pages so far.
    nulls: usize,
}

impl Default for Holes {
    fn default() -> Self {
        Self { found: BooleanBufferBuilder::new(0), page: None, taken: 0, nulls: 0 }
    }
}

impl Holes {
    /// Moves to a page with these definition levels of one bit for `count` values; returns the number of non-null
    /// values. `None` if there are fewer levels, or other ones.
    pub(super) fn turn(&mut self, mut levels: Runs, count: usize) -> Option<usize> {
        let mut bits = BooleanBufferBuilder::new(count);
        while bits.len() < count {
            let left = count - bits.len();
            match levels.next()? {
                Run::Repeated(level @ 0..=1, numbers) => bits.append_n(numbers.min(left), level == 1),
                Run::Repeated(..) => return None,
                Run::Packed(bytes, numbers) => {
                    let (bytes, numbers) = (levels.packed(&bytes), numbers.min(left));
                    if bytes.len() < numbers.div_ceil(8) {
                        return None;
                    }
                    bits.append_packed_range(0..numbers, bytes);
                }
            }
        }
        let bits = bits.finish();
        let there = bits.count_set_bits();
        self.nulls += count - there;
        self.page = (there < count).then_some(bits);
        self.taken = 0;
        Some(there)
    }

    /// Takes the next `count` values of the page, and returns their bits if some are null.
    pub(super) fn take(&mut self, count: usize) -> Option<Present> {
        let Some(page) = &self.page else {
            self.found.append_n(count, true);
            return None;
        };
        let bits = page.slice(self.taken, count);
        self.taken += count;
        self.found.append_buffer(&bits);
        Some(Present(bits))
    }

    /// Skips the next `count` values; returns how many of them are not null.
    pub(super) fn pass(&mut self, count: usize) -> usize {
        let first = self.taken;
        self.taken += count;
        self.page.as_ref().map_or(count, |page| page.slice(first, count).count_set_bits())
    }

    /// Nulls of all pages read, including those of skipped values.
    pub(crate) fn nulls(&self) -> usize {
        self.nulls
    }

    /// The same for the values taken whose bit is set, and no others.
    pub(super) fn keep(mut self, kept: BooleanBuffer) -> Self {
        if self.nulls == 0 {
            return self;
        }
        let found = self.found.finish();
        let words = found.bit_chunks().iter_padded().zip(kept.bit_chunks().iter_padded());
        for (found, mut kept) in words {
            if found & kept == kept {
                self.found.append_n(kept.count_ones() as usize, true);
                continue;
            }
            while kept != 0 {
                self.found.append(found >> kept.trailing_zeros() & 1 == 1);
                kept &= kept - 1;
            }
        }
        self
    }

    /// The nulls among the values taken; `None` if there are none.
    pub(crate) fn finish(mut self) -> Option<NullBuffer> {
        Some(NullBuffer::new(self.found.finish())).filter(|nulls| nulls.null_count() > 0)
    }
}

/// Some values of a page: one bit for each, set if it is not null.
#[derive(Debug)]
pub(super) struct Present(BooleanBuffer);

impl Present {
    /// Number of non-null values.
    pub(super) fn there(&self) -> usize {
        self.0.count_set_bits()
    }

    /// Adds the values to `output`: those of `dense` in their order, with zero for nulls.
    pub(super) fn spread<T: Copy + Default>(&self, dense: &[T], output: &mut Vec<T>) {
        let (mut next, mut left) = (0, self.0.len());
        output.reserve(left);
        for mut word in self.0.bit_chunks().iter_padded().take(left.div_ceil(WORD)) {
            let count = left.min(WORD);
            left -= count;
            let there = &dense[next..next + word.count_ones() as usize];
            next += there.len();
            if word == u64::MAX {
                output.extend_from_slice(there);
                continue;
            }
            let mut values = [T::default(); WORD];
            for value in there {
                // There are as many bits as values, so one is left.
                values[word.trailing_zeros() as usize % WORD] = *value;
                word &= word - 1;
            }
            output.extend_from_slice(&values[..count]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bit-packed run of these bits, in groups of eight.
    fn packed(bits: &[bool]) -> Vec<u8> {
        let mut bytes = vec![(bits.len().div_ceil(8) << 1 | 1) as u8];
        bytes.extend(
            bits.chunks(8).map(|bits| bits.iter().enumerate().map(|(at, bit)| u8::from(*bit) << at).sum::<u8>()),
        );
        bytes
    }

    #[test]
    fn values_go_between_the_nulls() {
        for pattern in [1_usize, 2, 3, 7, 64, 65, 1000] {
            // A repeated run that ends within a byte, then a packed one.
            let bits: Vec<bool> = (0..200).map(|at| at % pattern != 0).collect();
            let mut levels = vec![3 << 1, 1];
            levels.extend(packed(&bits));
            let all: Vec<bool> = [true; 3].into_iter().chain(bits).collect();
            let mut holes = Holes::default();
            let there = holes.turn(Runs::new(levels.into(), 1), 203).unwrap();
            assert_eq!(there, all.iter().filter(|bit| **bit).count());
            let (mut output, mut next) = (Vec::new(), 1_u32);
            let first = holes.pass(5);
            assert_eq!(first, all[..5].iter().filter(|bit| **bit).count());
            for count in [70, 128] {
                let page = holes.take(count).unwrap();
                let dense: Vec<u32> = (next..).take(page.there()).collect();
                next += page.there() as u32;
                page.spread(&dense, &mut output);
            }
            let mut value = 0;
            let expected = all[5..].iter().map(|bit| {
                value += u32::from(*bit);
                if *bit { value } else { 0 }
            });
            assert_eq!(output, expected.collect::<Vec<_>>(), "every {pattern}");
            assert_eq!(holes.nulls(), all.iter().filter(|bit| !**bit).count());
            let nulls = holes.finish();
            assert!((0..198).all(|at| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(at)) == all[5 + at]));
        }
    }

    #[test]
    fn levels_that_are_cut_off_or_beyond_one_are_refused() {
        let turn = |levels: &[u8], count| Holes::default().turn(Runs::new(levels.to_vec().into(), 1), count);
        assert_eq!(turn(&[4 << 1, 1], 4), Some(4));
        assert_eq!(turn(&[4 << 1, 1], 5), None, "too few");
        assert_eq!(turn(&[4 << 1, 2], 4), None, "a level of two");
        assert_eq!(turn(&[2 << 1 | 1, 0xff], 9), None, "a packed run that is cut off");
        assert_eq!(turn(&[], 0), Some(0));
    }
}
