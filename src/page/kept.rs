//! The wanted values among those of a flat column, block by block: the others are read with them and left out.

use arrow::buffer::BooleanBuffer;
use bytemuck::{Pod, try_cast_slice, try_cast_slice_mut};

use super::compact_avx2::{self, WORD};

/// Values of a block, which is in the cache until the wanted ones are copied out of it.
const BLOCK: usize = 4096;

/// Values that there should be room for behind those that a read adds.
pub(crate) const SPARE: usize = 16;

/// Values read at once even if fewer are wanted.
const LEAST: usize = 64;

const _: () = assert!(SPARE >= compact_avx2::BEYOND);

/// Which values are wanted, and how many of them have been taken or passed.
#[derive(Debug)]
pub(super) struct Kept {
    bits: BooleanBuffer,
    taken: usize,
}

impl Kept {
    /// One bit for each value, set if it is wanted.
    pub(super) fn new(bits: BooleanBuffer) -> Self {
        Self { bits, taken: 0 }
    }

    /// The bits of the next values, of which at most `most` are wanted. `None` at the end.
    pub(super) fn next(&mut self, most: usize) -> Option<BooleanBuffer> {
        let left = self.left();
        let mut bits = self.bits.slice(self.taken, most.clamp(LEAST, BLOCK).min(left));
        if bits.len() > most && bits.count_set_bits() > most {
            let end = bits.set_indices().nth(most).unwrap_or(bits.len());
            bits = bits.slice(0, end);
        }
        self.taken += bits.len();
        (left > 0).then_some(bits)
    }

    /// Values that were neither taken nor passed.
    pub(super) fn left(&self) -> usize {
        self.bits.len() - self.taken
    }

    /// The bits of the values so far.
    pub(super) fn so_far(&self) -> BooleanBuffer {
        self.bits.slice(0, self.taken)
    }
}

/// Adds those of `block` whose bit is set, in their order.
pub(super) fn compact<T: Pod + Default>(block: &mut Vec<T>, bits: &BooleanBuffer, output: &mut Vec<T>) {
    let (first, kept, words) = (output.len(), bits.count_set_bits(), bits.len().div_ceil(WORD));
    block.resize(words * WORD + SPARE, T::default());
    output.resize(first + kept + SPARE, T::default());
    let closed = &mut output[first..];
    let chunks = bits.bit_chunks();
    let words = || chunks.iter_padded().take(words);
    let found = match size_of::<T>() {
        4 => {
            let cast = try_cast_slice(block).ok().zip(try_cast_slice_mut(closed).ok());
            cast.and_then(|(block, closed)| compact_avx2::fours(block, words(), closed))
        }
        8 => {
            let cast = try_cast_slice(block).ok().zip(try_cast_slice_mut(closed).ok());
            cast.and_then(|(block, closed)| compact_avx2::eights(block, words(), closed))
        }
        _ => None,
    };
    if found.is_none() {
        by_run(block, words(), closed);
    }
    output.truncate(first + kept);
}

/// Moves those of `block` whose bit is set to the start of `closed`. Runs of them are copied in steps of [`SPARE`] values, whatever their
/// length: what follows a run is overwritten by the next.
fn by_run<T: Pod>(block: &[T], words: impl Iterator<Item = u64>, closed: &mut [T]) {
    let mut next = 0;
    for (at, word) in words.enumerate() {
        let (mut word, mut from) = (word, at * WORD);
        while word != 0 {
            from += word.trailing_zeros() as usize;
            word >>= word.trailing_zeros();
            let run = word.trailing_ones();
            for step in (0..run as usize).step_by(SPARE) {
                closed[next + step..][..SPARE].copy_from_slice(&block[from + step..][..SPARE]);
            }
            next += run as usize;
            from += run as usize;
            word = word.checked_shr(run).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_runs_move_the_same_values() {
        let mut word = 1_u64;
        for density in 0..=4 {
            let mut bits = Vec::new();
            for _ in 0..10 * WORD {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                bits.push((word >> 40) % 4 < density);
            }
            for length in [0, 1, 7, 63, 64, 65, 600] {
                let bits = BooleanBuffer::from(&bits[3..]).slice(5, length);
                let expected: Vec<u64> = bits.set_indices().map(|at| at as u64 + 7).collect();
                let block: Vec<u64> = (0..length as u64).map(|at| at + 7).collect();
                let narrow = |values: &[u64]| values.iter().map(|value| *value as u32).collect::<Vec<_>>();
                let (mut wide, mut less) = (vec![1], vec![1]);
                compact(&mut block.clone(), &bits, &mut wide);
                compact(&mut narrow(&block), &bits, &mut less);
                assert_eq!(
                    (&wide[1..], &less[1..]),
                    (&expected[..], &narrow(&expected)[..]),
                    "{density} of 4, {length}"
                );
                let mut runs = vec![0; expected.len() + SPARE];
                let words = bits.bit_chunks().iter_padded().take(length.div_ceil(WORD));
                by_run(&[block, vec![0; WORD + SPARE]].concat(), words, &mut runs);
                assert_eq!(runs[..expected.len()], expected);
            }
        }
    }

    #[test]
    fn kept_values_come_in_their_order_however_many_are_asked_for() {
        for every in [1_usize, 2, 3, 10, 64, 65, 5000] {
            for holes in [false, true] {
                let rows = 3 * BLOCK + 77;
                let is_kept = |row: &usize| row.is_multiple_of(every) != holes;
                let expected: Vec<u32> = (0..rows).filter(is_kept).map(|row| row as u32).collect();
                for most in [1, 63, 64, 512, BLOCK, rows] {
                    let mut kept = Kept::new((0..rows).map(|row| is_kept(&row)).collect());
                    let (mut read, mut found) = (0_u32, Vec::new());
                    while found.len() < expected.len() {
                        let wanted = found.len() + most;
                        while found.len() < wanted {
                            let Some(bits) = kept.next(wanted - found.len()) else { break };
                            let mut block: Vec<u32> = (read..read + bits.len() as u32).collect();
                            read += bits.len() as u32;
                            compact(&mut block, &bits, &mut found);
                            assert!(found.len() <= wanted, "every {every}, {most} at once");
                        }
                        assert_eq!(kept.so_far().count_set_bits(), found.len());
                    }
                    assert_eq!(found, expected, "every {every}, {most} at once");
                    assert_eq!(kept.left(), rows - read as usize);
                }
            }
        }
    }
}
