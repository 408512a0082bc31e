//! Parquet's hybrid of run-length and bit-packed numbers: levels, and indices into a dictionary.

use std::ops::Range;

use bytes::Bytes;

use super::unpack::{BLOCK, unpack};

/// One run with its header's count.
#[derive(Debug, Clone)]
pub(super) enum Run {
    Repeated(u32, usize),
    /// Byte range of groups of eight numbers; a writer may omit those that no number needs.
    Packed(Range<usize>, usize),
}

/// The runs of one slice of bytes.
#[derive(Debug)]
pub(super) struct Runs {
    bytes: Bytes,
    /// Bytes before the next run: no run is a slice of its own, which would count its references.
    at: usize,
    width: u8,
}

impl Runs {
    /// The runs in `bytes` of numbers of `width` bits.
    pub(super) fn new(bytes: Bytes, width: u8) -> Self {
        Self { bytes, at: 0, width }
    }

    /// The next run, of at least one number; `None` at the end or if the bytes are invalid.
    pub(super) fn next(&mut self) -> Option<Run> {
        let header = self.varint()?;
        let count = usize::try_from(header >> 1).ok().filter(|count| *count > 0)?;
        if header & 1 == 0 {
            let length = usize::from(self.width).div_ceil(8);
            let mut value = [0; 4];
            value.get_mut(..length)?.copy_from_slice(self.bytes.get(self.at..self.at + length)?);
            self.at += length;
            return Some(Run::Repeated(u32::from_le_bytes(value), count));
        }
        let length = count.checked_mul(usize::from(self.width))?.min(self.bytes.len() - self.at);
        let numbers = count.checked_mul(8)?;
        self.at += length;
        Some(Run::Packed(self.at - length..self.at, numbers))
    }

    /// The bytes of a packed run.
    pub(super) fn packed(&self, run: &Range<usize>) -> &[u8] {
        self.bytes.get(run.clone()).unwrap_or_default()
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for (at, byte) in self.bytes.get(self.at..)?.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
            if byte & 0x80 == 0 {
                self.at += at + 1;
                return Some(value);
            }
        }
        None
    }

    /// Returns true if the first `count` numbers all are `level`.
    pub(super) fn all(mut self, level: u32, count: usize) -> bool {
        let mut left = count;
        while left > 0 {
            match self.next() {
                Some(Run::Repeated(value, count)) if value == level => left = left.saturating_sub(count),
                Some(Run::Packed(bytes, numbers)) => {
                    let taken = numbers.min(left);
                    if !packed_all(self.packed(&bytes), self.width, taken, |value| value == level) {
                        return false;
                    }
                    left -= taken;
                }
                _ => return false,
            }
        }
        true
    }

    /// Returns true if the first `count` numbers exist and none of them is above `most`.
    pub(super) fn none_above(mut self, most: u32, count: usize) -> bool {
        // If the bits hold no more than `most`, nothing needs unpacking.
        let tight = 1_u32.checked_shl(u32::from(self.width)).is_some_and(|end| end - 1 <= most);
        let mut left = count;
        while left > 0 {
            match self.next() {
                Some(Run::Repeated(value, count)) if value <= most => left = left.saturating_sub(count),
                Some(Run::Packed(bytes, numbers)) => {
                    let (bytes, taken) = (self.packed(&bytes), numbers.min(left));
                    // Bytes that no number needs may be omitted; groups that no number needs must not be announced and
                    // then omitted.
                    if bytes.len() * 8 < numbers.saturating_mul(usize::from(self.width))
                        && numbers > left.div_ceil(8) * 8
                    {
                        return false;
                    }
                    let fits = match tight {
                        true => bytes.len() * 8 >= taken.saturating_mul(usize::from(self.width)),
                        false => packed_all(bytes, self.width, taken, |value| value <= most),
                    };
                    if !fits {
                        return false;
                    }
                    left -= taken;
                }
                _ => return false,
            }
        }
        true
    }

    /// The first `count` numbers as bytes. `None` if there are fewer, or greater ones.
    pub(super) fn bytes(self, count: usize) -> Option<Vec<u8>> {
        let (mut numbers, mut found) = (Numbers::new(self), Vec::with_capacity(count));
        while found.len() < count {
            match numbers.next(count - found.len())? {
                Piece::Repeated(value, times) => found.resize(found.len() + times, u8::try_from(value).ok()?),
                Piece::Numbers(values) => {
                    if values.iter().any(|value| *value > u32::from(u8::MAX)) {
                        return None;
                    }
                    found.extend(values.iter().map(|value| *value as u8));
                }
            }
        }
        Some(found)
    }

    /// Counts the ones among the first `count` numbers of one bit. `None` if there are fewer.
    pub(super) fn ones(mut self, count: usize) -> Option<usize> {
        let (mut ones, mut left) = (0, count);
        while left > 0 {
            match self.next()? {
                Run::Repeated(value, numbers) => {
                    let taken = numbers.min(left);
                    ones += if value == 1 { taken } else { 0 };
                    left -= taken;
                }
                Run::Packed(bytes, numbers) => {
                    let taken = numbers.min(left);
                    let bytes = self.packed(&bytes);
                    let whole = bytes.get(..taken / 8)?;
                    ones += whole.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
                    if !taken.is_multiple_of(8) {
                        ones += (bytes.get(taken / 8)? & ((1 << (taken % 8)) - 1)).count_ones() as usize;
                    }
                    left -= taken;
                }
            }
        }
        Some(ones)
    }

    /// Calls `each` with the position of every zero among the first `count` numbers of one bit. `None` if there are fewer.
    pub(super) fn zeros(mut self, count: usize, mut each: impl FnMut(usize)) -> Option<()> {
        let mut done = 0;
        while done < count {
            match self.next()? {
                Run::Repeated(2.., _) => return None,
                Run::Repeated(value, numbers) => {
                    let end = done + numbers.min(count - done);
                    if value == 0 {
                        (done..end).for_each(&mut each);
                    }
                    done = end;
                }
                Run::Packed(bytes, numbers) => {
                    let (bytes, end) = (self.packed(&bytes), done + numbers.min(count - done));
                    if bytes.len() * 8 < end - done {
                        return None;
                    }
                    for (at, word) in bytes.chunks(8).enumerate() {
                        let first = done + at * 64;
                        let Some(left) = end.checked_sub(first).filter(|left| *left > 0) else { break };
                        let mut eight = [0; 8];
                        eight[..word.len()].copy_from_slice(word);
                        let mut zeros = !u64::from_le_bytes(eight);
                        if left < 64 {
                            zeros &= (1 << left) - 1;
                        }
                        while zeros != 0 {
                            each(first + zeros.trailing_zeros() as usize);
                            zeros &= zeros - 1;
                        }
                    }
                    done = end;
                }
            }
        }
        Some(())
    }
}

fn packed_all(bytes: &[u8], width: u8, count: usize, fits: impl Fn(u32) -> bool) -> bool {
    let mut block = [0; BLOCK];
    (0..count).step_by(BLOCK).all(|first| {
        let numbers = BLOCK.min(count - first);
        unpack_at(bytes, &(0..bytes.len()), width, first, &mut block)
            .and_then(|there| block[..there].get(..numbers))
            .is_some_and(|block| block.iter().fold(true, |all, value| all & fits(*value)))
    })
}

/// Unpacks the block that starts with number `first`, a multiple of 64, of the packed run at `run` of `bytes`; returns how many numbers
/// have their bytes there.
fn unpack_at(bytes: &[u8], run: &Range<usize>, width: u8, first: usize, block: &mut [u32; BLOCK]) -> Option<usize> {
    let before = first / 8 * usize::from(width);
    let left = run.len().checked_sub(before)?;
    let there = (left * 8).checked_div(usize::from(width)).map_or(BLOCK, |numbers| numbers.min(BLOCK));
    // Mostly something follows the run. Unpacked as well, it fills the last block of a run, and nobody takes it.
    let bytes = bytes.get(run.start + before..)?;
    if unpack(bytes, width, block) {
        return Some(there);
    }
    // The last block of all may be cut short.
    let mut padded = [0; 8 * 32];
    let length = bytes.len().min(padded.len());
    padded[..length].copy_from_slice(&bytes[..length]);
    unpack(&padded, width, block).then_some(there)
}

/// Numbers, taken a piece at a time.
#[derive(Debug)]
pub(super) struct Numbers {
    runs: Runs,
    run: Option<Run>,
    /// Numbers of a packed run unpacked so far; and of its last block, numbers taken and numbers present.
    unpacked: usize,
    block: [u32; BLOCK],
    taken: usize,
    there: usize,
}

/// A piece of the numbers.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    Repeated(u32, usize),
    Numbers(&'a [u32]),
}

impl Numbers {
    pub(super) fn new(runs: Runs) -> Self {
        Self { runs, run: None, unpacked: 0, block: [0; BLOCK], taken: 0, there: 0 }
    }

    /// The next numbers, at least one and at most `most`; `None` at the end or if the bytes are invalid.
    pub(super) fn next(&mut self, most: usize) -> Option<Piece<'_>> {
        if self.taken == self.there {
            self.turn(most)?;
        }
        if let Some(Run::Repeated(value, left)) = &mut self.run {
            let count = most.min(*left);
            *left -= count;
            return Some(Piece::Repeated(*value, count));
        }
        let count = most.min(self.there - self.taken);
        self.taken += count;
        Some(Piece::Numbers(&self.block[self.taken - count..self.taken]))
    }

    /// Ensures that there is a number: moves to the next block of the run, or to the next run.
    fn turn(&mut self, most: usize) -> Option<()> {
        debug_assert!(most > 0);
        loop {
            match &self.run {
                Some(Run::Repeated(_, left)) if *left > 0 => return Some(()),
                Some(Run::Packed(bytes, numbers)) if self.unpacked < *numbers => {
                    let Runs { bytes: all, width, .. } = &self.runs;
                    let there = unpack_at(all, bytes, *width, self.unpacked, &mut self.block)?;
                    self.there = there.min(numbers - self.unpacked);
                    self.unpacked += BLOCK;
                    self.taken = 0;
                    return (self.there > 0).then_some(());
                }
                _ => {
                    self.run = Some(self.runs.next()?);
                    (self.unpacked, self.taken, self.there) = (0, 0, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three times 5, then the numbers 0 to 7 twice, all of three bits; the last bytes hold surplus numbers.
    fn sample() -> Runs {
        let eight = [0b1000_1000, 0b1100_0110, 0b1111_1010];
        Runs::new([&[6, 5, 5][..], &eight, &eight].concat().into(), 3)
    }

    fn numbers(runs: Runs, mut count: usize, most: usize) -> Option<Vec<u32>> {
        let (mut numbers, mut found) = (Numbers::new(runs), Vec::new());
        while count > 0 {
            let before = found.len();
            match numbers.next(most.min(count))? {
                Piece::Repeated(value, times) => found.extend(std::iter::repeat_n(value, times)),
                Piece::Numbers(block) => found.extend(block),
            }
            assert!(found.len() > before);
            count -= found.len() - before;
        }
        Some(found)
    }

    #[test]
    fn runs_come_in_pieces_of_any_size() {
        let expected: Vec<u32> = [5, 5, 5].into_iter().chain(0..8).chain(0..8).collect();
        for most in [1, 2, 3, 7, 64, 1000] {
            assert_eq!(numbers(sample(), 19, most).as_deref(), Some(&*expected), "{most} at a time");
        }
        assert_eq!(numbers(sample(), 20, 64), None, "there are 19");
    }

    #[test]
    fn packed_runs_of_any_length_follow_one_another() {
        for width in 1..=31_u8 {
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for groups in [1_usize, 7, 8, 9, 63, 2] {
                bytes.push((groups << 1 | 1) as u8);
                let mut packed = vec![0_u8; groups * usize::from(width)];
                for at in 0..8 * groups {
                    let number = (expected.len() as u32).wrapping_mul(0x9e37_79b9) >> (32 - width);
                    for bit in (0..usize::from(width)).filter(|bit| number >> bit & 1 == 1) {
                        let bit = at * usize::from(width) + bit;
                        packed[bit / 8] |= 1 << (bit % 8);
                    }
                    expected.push(number);
                }
                bytes.extend(packed);
            }
            for most in [5, 64, 1000] {
                let found = numbers(Runs::new(bytes.clone().into(), width), expected.len(), most);
                assert_eq!(found.as_ref(), Some(&expected), "{width} bits, {most} at a time");
            }
            // Without its last bytes, it holds the numbers before them.
            bytes.truncate(bytes.len() - usize::from(width));
            let found = numbers(Runs::new(bytes.clone().into(), width), expected.len() - 8, 64);
            assert_eq!(found.as_deref(), Some(&expected[..expected.len() - 8]), "{width} bits");
            assert_eq!(numbers(Runs::new(bytes.into(), width), expected.len(), 64), None, "{width} bits");
        }
    }

    #[test]
    fn levels_are_counted_without_unpacking_them_one_by_one() {
        let ones = Runs::new(vec![0xd0, 0x0f, 1, 3, 0xff].into(), 1);
        assert!(ones.all(1, 1008), "1,000 repeated and eight packed ones");
        assert!(!Runs::new(vec![3, 0xfe].into(), 1).all(1, 8));
        assert!(!Runs::new(vec![3].into(), 1).all(1, 8), "no bytes");
        assert!(!Runs::new(Bytes::new(), 1).all(1, 1));
        assert!(Runs::new(Bytes::new(), 1).all(1, 0));
        let mut found = Vec::new();
        let levels = Runs::new(vec![0x03, 0b1110_1010, 0x04, 1, 0x04, 0].into(), 1);
        assert_eq!(levels.zeros(12, |at| found.push(at)), Some(()));
        assert_eq!(found, [0, 2, 4, 10, 11]);
        assert_eq!(Runs::new(vec![0x03].into(), 1).zeros(8, |_| ()), None);
        assert_eq!(Runs::new(vec![0x04, 34].into(), 1).zeros(2, |_| ()), None, "no level of one bit is 34");
    }

    #[test]
    fn levels_that_are_missing_or_too_great_are_seen() {
        let within = |bytes: &[u8], width, most, count| Runs::new(bytes.to_vec().into(), width).none_above(most, count);
        assert!(within(&[0x04, 1], 1, 1, 2) && !within(&[0x04, 1], 1, 1, 3), "two levels");
        assert!(!within(&[0x04, 34], 1, 1, 2), "a repeated level of more bits than it has");
        assert!(within(&[3, 0xff], 1, 1, 8) && !within(&[3], 1, 1, 1));
        // Four levels of two bits: 0, 1, 2, 3.
        assert!(within(&[3, 0b1110_0100, 0], 2, 3, 8) && within(&[3, 0b1110_0100, 0], 2, 2, 3));
        assert!(!within(&[3, 0b1110_0100, 0], 2, 2, 4));
        assert!(
            within(&[5, 0xff, 0xff], 1, 1, 8) && !within(&[5, 0xff], 1, 1, 8),
            "a group that is announced and cut off"
        );
        assert_eq!(Runs::new(vec![0x04, 1, 5, 0b1011_0110, 0xff].into(), 1).ones(11), Some(2 + 5 + 1));
        assert_eq!(Runs::new(vec![0x04, 1].into(), 1).ones(3), None);
    }

    #[test]
    fn hostile_headers_end_it() {
        let header = |bytes: &[u8], width| Runs::new(bytes.to_vec().into(), width).next();
        assert!(header(&[0xff; 11], 8).is_none(), "a header longer than any number");
        assert!(header(&[0, 1], 8).is_none(), "no numbers");
        assert!(header(&[2], 8).is_none(), "a repeated number that is not there");
        assert!(header(&[2, 0, 0, 0, 0, 0], 40).is_none(), "numbers that are too wide");
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2, 3];
        assert_eq!(numbers(Runs::new(huge.to_vec().into(), 8), 64, 64), None, "more numbers than can be counted");
    }
}
