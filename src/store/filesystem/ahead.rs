//! The decision which bytes of a file are fetched for a read, and how far ahead of it: no I/O, no clock.
//!
//! Whoever reads in order gets more and more in advance, up to the window; whoever jumps gets what was asked for. Below a cache all
//! processes fetch the same slices, so that one request serves all of them.

use std::ops::Range;

use super::super::cache::SLICE;

/// Most bytes of one file in memory ahead of its reader.
pub(super) const WINDOW: u64 = 32 << 20;

/// Reads that belong to one run may come in another order, so far apart: the kernel asks several threads at once for what it reads ahead.
const NEAR: u64 = 2 << 20;

/// Least bytes of a request where nothing is shared: a smaller one takes as long.
const LEAST: u64 = 128 << 10;

/// The habits of a reader.
#[derive(Debug, Clone, Default)]
pub(super) struct Ahead {
    /// True if requests are for slices that all processes have in common.
    pub(super) shares_slices: bool,
    /// End of what was read.
    next: u64,
    /// Bytes that were read in order up to there, less those that were left out.
    run: u64,
}

/// The bytes to fetch for a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    /// Their end.
    pub(super) end: u64,
    /// Bytes of a request.
    step: u64,
}

impl Ahead {
    pub(super) fn new(shares_slices: bool) -> Self {
        Self { shares_slices, ..Self::default() }
    }

    /// The bytes to fetch for a read of `range`, at least one; the file has `size` bytes.
    pub(super) fn reach(&self, range: &Range<u64>, size: u64) -> Reach {
        let ahead = if self.continues(range) { self.run } else { 0 };
        let end = range.end.saturating_add(ahead).min(range.start.saturating_add(WINDOW)).min(size);
        let length = range.end.saturating_sub(range.start);
        Reach { end: end.max(range.start.saturating_add(1)), step: length.max(ahead).clamp(LEAST, SLICE) }
    }

    /// Returns true if whoever reads `range` has jumped there, or has just begun.
    pub(super) fn is_jump(&self, range: &Range<u64>) -> bool {
        self.run == 0 || !self.continues(range)
    }

    /// Returns true if a read of `range` belongs to the run of those before: it leaves out, or goes back, less than was read in order.
    fn continues(&self, range: &Range<u64>) -> bool {
        range.start.abs_diff(self.next) <= self.run.min(NEAR)
    }

    /// The request that brings the byte `at`.
    pub(super) fn request(&self, at: u64, reach: Reach, size: u64) -> Range<u64> {
        if self.shares_slices {
            let start = at - at % SLICE;
            return start..start.saturating_add(SLICE).min(size);
        }
        at..at.saturating_add(reach.step).min(size)
    }

    /// Says that `range` was read.
    pub(super) fn read(&mut self, range: &Range<u64>) {
        let length = range.end.saturating_sub(range.start);
        if self.continues(range) {
            let left_out = range.start.saturating_sub(self.next);
            self.run = self.run.saturating_sub(left_out).saturating_add(length);
            self.next = self.next.max(range.end);
        } else {
            (self.run, self.next) = (length, range.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    #[test]
    fn who_reads_in_order_gets_more_and_more_in_advance() {
        let mut ahead = Ahead::new(false);
        let mut advance = Vec::new();
        for at in (0..40 << 20).step_by(1 << 20) {
            let range = at..at + (1 << 20);
            advance.push((ahead.reach(&range, SIZE).end - range.end) >> 20);
            ahead.read(&range);
        }
        assert_eq!((&advance[..4], advance[39]), (&[0, 1, 2, 3][..], 31));
        assert_eq!(ahead.reach(&(7..8), SIZE), Reach { end: 8, step: LEAST }, "who jumps gets what was asked for");
        assert_eq!(
            ahead.reach(&((40 << 20)..(41 << 20)), 45 << 20).end,
            45 << 20,
            "and nobody anything behind the end"
        );
        assert_eq!(ahead.reach(&(0..SIZE), SIZE), Reach { end: WINDOW, step: SLICE }, "a long read is made of many");
    }

    #[test]
    fn reads_in_order_that_come_in_another_are_one_run_and_strides_are_jumps() {
        const READ: u64 = 128 << 10;
        let mut ahead = Ahead::new(true);
        // The first ones come as they are read.
        ahead.read(&(0..8 * READ));
        for begin in (8..256).step_by(8) {
            for number in [1, 0, 2, 5, 3, 4, 7, 6].map(|place| begin + place) {
                let range = number * READ..(number + 1) * READ;
                assert!(!ahead.is_jump(&range), "read {number}");
                ahead.read(&range);
            }
        }
        let next = 256 * READ;
        assert!(ahead.reach(&(next..next + READ), SIZE).end >= next + (8 << 20), "half as much in advance");
        // From there on a part of each MiB.
        let mut strides = (0..40).map(|number| next + (number << 20)..next + (number << 20) + READ);
        let jumps = strides.by_ref().map(|range| {
            let is_jump = ahead.is_jump(&range);
            ahead.read(&range);
            is_jump
        });
        assert!(jumps.skip(24).all(|is_jump| is_jump));
    }

    #[test]
    fn small_reads_in_order_are_served_by_ever_larger_requests() {
        let (mut ahead, mut there, mut requests) = (Ahead::new(false), 0, 0);
        for at in (0..64 << 20).step_by(8 << 10) {
            let range = at..at + (8 << 10);
            let reach = ahead.reach(&range, SIZE);
            while there < reach.end {
                there = ahead.request(there, reach, SIZE).end;
                requests += 1;
            }
            ahead.read(&range);
        }
        assert!((20..40).contains(&requests), "{requests}");
    }

    #[test]
    fn requests_are_neither_tiny_nor_huge_and_those_of_a_cache_are_the_same_for_all() {
        let ahead = Ahead::new(false);
        let request =
            |ahead: &Ahead, range: Range<u64>, size| ahead.request(range.start, ahead.reach(&range, size), size);
        assert_eq!(request(&ahead, 1000..1008, SIZE), 1000..1000 + LEAST);
        assert_eq!(request(&ahead, 1000..1000 + WINDOW, SIZE), 1000..1000 + SLICE);
        assert_eq!(request(&ahead, 1000..1008, 2000), 1000..2000);
        let shared = Ahead::new(true);
        for at in [SLICE, SLICE + 1, 2 * SLICE - 1] {
            assert_eq!(request(&shared, at..at + 1, SIZE), SLICE..2 * SLICE);
        }
        assert_eq!(request(&shared, 2 * SLICE + 5..SIZE, 2 * SLICE + 10), 2 * SLICE..2 * SLICE + 10);
    }
}
