//! The source that each position of an epoch draws from, with counts in closed form.
//!
//! The sources divide a circle of T cells (T = sum of the integer weights); position p is on cell p * A mod T, where A
//! is coprime to T and near T divided by the golden ratio. So every T positions hold each source exactly as often as
//! its weight says, any run holds nearly its share, and the number of the first p positions that belong to a source is
//! a sum of floors, which Euclid's algorithm finds in O(log T).
//!
//! If a step has many rows of each lane, rounds of one row per lane take the place of single positions on the circle:
//! then a step takes equally many rows of each lane, and ranks keep to their own.

use crate::error::{Error, Result};

/// A periodic sequence of sources in given proportions.
#[derive(Debug, Clone)]
pub(super) struct Interleave {
    /// Length of the circle, and the period.
    total: u64,
    /// Cells from one position to the next.
    stride: u64,
    /// Source k has the cells `bounds[k]..bounds[k + 1]`.
    bounds: Vec<u64>,
    /// Positions that share a cell.
    round: u64,
}

impl Interleave {
    /// Draws source k in `weights[k]` of every `sum(weights)` positions. The sum is from 1 to 2^31, checked by the spec.
    pub(super) fn new(weights: &[u32]) -> Self {
        let mut bounds = vec![0];
        let mut total = 0;
        for weight in weights {
            total += u64::from(*weight);
            bounds.push(total);
        }
        // 0.618... as an integer fraction: no floating point decides an order.
        let near = (u128::from(total) * 0x9E37_79B9_7F4A_7C15) >> 64;
        let stride = (near.max(1) as u64..).find(|stride| gcd(*stride, total) == 1).unwrap_or(1);
        Self { total, stride, bounds, round: 1 }
    }

    /// The same with rounds of `round` positions, at least one.
    pub(super) fn in_rounds(self, round: u64) -> Self {
        Self { round: round.max(1), ..self }
    }

    /// Positions per round.
    pub(super) fn round(&self) -> u64 {
        self.round
    }

    fn weight(&self, source: usize) -> u64 {
        self.bounds[source + 1] - self.bounds[source]
    }

    /// The source of position `at`.
    pub(super) fn source(&self, at: u64) -> usize {
        let cell = (at / self.round % self.total) * self.stride % self.total;
        self.bounds.partition_point(|bound| *bound <= cell) - 1
    }

    /// Counts the positions `0..end` that draw from `source`.
    pub(super) fn count(&self, source: usize, end: u64) -> u64 {
        let (rounds, open) = (end / self.round, end % self.round);
        let open = if open > 0 && self.source(end) == source { open } else { 0 };
        self.rounds(source, rounds) * self.round + open
    }

    /// Counts the first `end` rounds that are of `source`.
    fn rounds(&self, source: usize, end: u64) -> u64 {
        let (periods, rest) = (end / self.total, end % self.total);
        let within = self.below(rest, self.bounds[source + 1]) - self.below(rest, self.bounds[source]);
        periods * self.weight(source) + within
    }

    /// The position of draw number `draw` of `source`.
    ///
    /// # Errors
    /// [`Error::Config`] if it lies beyond 2^62, where a plan ends.
    pub(super) fn position(&self, source: usize, draw: u64) -> Result<u64> {
        let (draw, within) = (draw / self.round, draw % self.round);
        let periods = draw / self.weight(source);
        let fits = |start: &u64| start.checked_mul(self.round).is_some_and(|start| start <= 1 << 62);
        let start = periods.checked_mul(self.total).filter(fits).ok_or_else(|| {
            Error::config(
                "weights",
                "so small a weight makes an epoch of more than 2^62 rows; use stop first_exhausted",
            )
        })?;
        let (mut low, mut high) = (start, start + self.total - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.rounds(source, middle + 1) > draw { high = middle } else { low = middle + 1 }
        }
        // The rounds of one turn of the circle are at most 2^31.
        Ok(low * self.round + within)
    }

    /// Counts the first `n` positions on a cell below `bound`; n < T.
    fn below(&self, n: u64, bound: u64) -> u64 {
        if n == 0 || bound == 0 {
            return 0;
        }
        if bound == self.total {
            return n;
        }
        // [x mod T < b] = floor((x + T) / T) - floor((x + T - b) / T)
        let all = floor_sum(n, self.total, self.stride, self.total);
        all.wrapping_sub(floor_sum(n, self.total, self.stride, self.total - bound))
    }
}

/// Sum of floor((a * i + b) / m) for i in 0..n, modulo 2^64. All arguments are at most 2^31, so nothing inside
/// overflows.
fn floor_sum(mut n: u64, mut m: u64, mut a: u64, mut b: u64) -> u64 {
    let mut sum = 0_u64;
    loop {
        if a >= m {
            sum = sum.wrapping_add((n * n.wrapping_sub(1) / 2).wrapping_mul(a / m));
            a %= m;
        }
        if b >= m {
            sum = sum.wrapping_add(n.wrapping_mul(b / m));
            b %= m;
        }
        let top = a * n + b;
        if top < m {
            return sum;
        }
        n = top / m;
        b = top % m;
        (m, a) = (a, m);
    }
}

pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_are_those_of_the_sequence() {
        for weights in [&[1][..], &[1, 1], &[7, 3], &[1, 2, 3, 4], &[1, 999], &[5, 0, 5], &[13, 17, 1, 64]] {
            for round in [1, 2, 7] {
                let interleave = Interleave::new(weights).in_rounds(round);
                let mut counts = vec![0; weights.len()];
                let total: u32 = weights.iter().sum();
                for at in 0..round * u64::from(3 * total + 5) {
                    for (source, count) in counts.iter().enumerate() {
                        assert_eq!(interleave.count(source, at), *count, "{weights:?}, source {source}, end {at}");
                        let ideal = at as f64 * f64::from(weights[source]) / f64::from(total);
                        let off = (*count as f64 - ideal).abs();
                        assert!(off < 4.0 * round as f64, "{weights:?} drifts at {at}: {count} for {ideal}");
                    }
                    let source = interleave.source(at);
                    assert_eq!(interleave.position(source, counts[source]).unwrap(), at);
                    counts[source] += 1;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn counts_add_up(weights in prop::collection::vec(1_u32..1 << 23, 1..200), at in 0_u64..1 << 60) {
            let interleave = Interleave::new(&weights);
            let count = |end| (0..weights.len()).map(|source| interleave.count(source, end)).collect::<Vec<_>>();
            let (before, after) = (count(at), count(at + 1));
            prop_assert_eq!(before.iter().sum::<u64>(), at);
            let drawn = interleave.source(at);
            for source in 0..weights.len() {
                prop_assert_eq!(after[source] - before[source], u64::from(source == drawn));
            }
            prop_assert_eq!(interleave.position(drawn, before[drawn]).unwrap(), at);
        }
    }
}
