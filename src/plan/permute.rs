//! A keyed bijection of `0..n` in constant time and space, and the keys of everything random in a plan.
//!
//! A Feistel network over a rectangle of a * b >= n cells, both sides near the square root of n. Each round adds a hash of
//! one coordinate to the other, which any key can undo. A cell outside `0..n` is sent through again until it falls inside
//! (cycle walking); the rectangle has fewer than a cells too many, so this is rare. Integers only: the order never depends
//! on a machine's floating point.

/// Even, so that both coordinates are hashed equally often. Four are enough against an adversary who has good round
/// functions; ours are cheap ones.
const ROUNDS: usize = 6;

/// A bijection of `0..n`, chosen by a key.
///
/// ```
/// use bowstring::plan::Permutation;
/// let shuffle = Permutation::new(10, 42);
/// let mut all: Vec<u64> = (0..10).map(|at| shuffle.forward(at)).collect();
/// assert!((0..10).all(|at| shuffle.inverse(shuffle.forward(at)) == at));
/// all.sort();
/// assert_eq!(all, (0..10).collect::<Vec<_>>());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    /// Width, the smallest number whose square is at least n.
    a: u64,
    /// Height, the smallest number such that a * b >= n.
    b: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The bijection of `0..n` that belongs to `key`. `n` is at most 2^63.
    pub fn new(n: u64, key: u64) -> Self {
        debug_assert!(n <= 1 << 63, "a plan refuses more rows");
        let root = n.isqrt();
        let a = if root * root == n { root } else { root + 1 }.max(1);
        let b = n.div_ceil(a).max(1);
        let mut keys = [0; ROUNDS];
        for (round, slot) in (1..).zip(&mut keys) {
            *slot = mix(key.wrapping_add(GOLDEN.wrapping_mul(round)));
        }
        Self { n, a, b, keys }
    }

    /// How many numbers are permuted.
    pub fn domain(&self) -> u64 {
        self.n
    }

    /// Where `at` goes. A number outside the domain stays where it is.
    #[inline]
    pub fn forward(&self, at: u64) -> u64 {
        if at >= self.n {
            return at;
        }
        let (mut left, mut right) = self.split(at);
        loop {
            for keys in self.keys.as_chunks::<2>().0 {
                left = add(left, below(hash(right, keys[0]), self.a), self.a);
                right = add(right, below(hash(left, keys[1]), self.b), self.b);
            }
            let x = left * self.b + right;
            if x < self.n {
                return x;
            }
        }
    }

    /// The cell of `at`.
    #[inline]
    fn split(&self, at: u64) -> (u64, u64) {
        match (u32::try_from(at), u32::try_from(self.b)) {
            // Dividing 32 bits is several times faster on many machines.
            (Ok(at), Ok(b)) => (u64::from(at / b), u64::from(at % b)),
            _ => (at / self.b, at % self.b),
        }
    }

    /// What goes to `at`: the inverse of [`forward`](Self::forward).
    #[inline]
    pub fn inverse(&self, at: u64) -> u64 {
        if at >= self.n {
            return at;
        }
        let (mut left, mut right) = self.split(at);
        loop {
            for keys in self.keys.as_chunks::<2>().0.iter().rev() {
                right = sub(right, below(hash(left, keys[1]), self.b), self.b);
                left = sub(left, below(hash(right, keys[0]), self.a), self.a);
            }
            let x = left * self.b + right;
            if x < self.n {
                return x;
            }
        }
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's finaliser: every bit of the argument moves every bit of the result.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A round's hash; only its upper bits are used.
#[inline]
fn hash(x: u64, key: u64) -> u64 {
    let x = (x ^ key).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (x ^ (x >> 32)).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// A hash scaled to `0..n`.
#[inline]
fn below(hash: u64, n: u64) -> u64 {
    ((u128::from(hash) * u128::from(n)) >> 64) as u64
}

#[inline]
fn add(x: u64, y: u64, n: u64) -> u64 {
    let sum = x + y;
    if sum >= n { sum - n } else { sum }
}

#[inline]
fn sub(x: u64, y: u64, n: u64) -> u64 {
    if x >= y { x - y } else { x + n - y }
}

/// One key from several numbers; their order matters.
pub(super) fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN, |key, part| mix(key.wrapping_add(GOLDEN) ^ mix(part.wrapping_add(GOLDEN))))
}

/// The random number of one row in one epoch: what augmentation draws from, so that it never depends on a thread.
///
/// ```
/// use bowstring::plan::random;
/// assert_eq!(random(7, 0, 3), random(7, 0, 3));
/// assert_ne!(random(7, 0, 3), random(7, 1, 3));
/// ```
pub fn random(seed: u64, epoch: u64, row_id: u64) -> u64 {
    // The first part keeps it apart from the keys of the order, which start with other numbers.
    key(&[RANDOM, seed, epoch, row_id])
}

/// First part of the keys of [`random`].
const RANDOM: u64 = 1;
/// First part of the key that permutes row groups.
pub(super) const GROUPS: u64 = 2;
/// First part of the keys that permute rows within windows.
pub(super) const WINDOW: u64 = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_domains_are_bijections() {
        for n in 0..200 {
            for seed in 0..20 {
                let shuffle = Permutation::new(n, seed);
                let mut seen = vec![false; n as usize];
                for at in 0..n {
                    let to = shuffle.forward(at);
                    assert!(to < n && !std::mem::replace(&mut seen[to as usize], true), "n {n}, key {seed}, at {at}");
                    assert_eq!(shuffle.inverse(to), at, "n {n}, key {seed}");
                }
                assert_eq!((shuffle.forward(n), shuffle.inverse(n)), (n, n));
            }
        }
    }

    #[test]
    fn every_place_is_equally_likely() {
        // Pearson's chi-squared of (from, to) over many keys, each n: mean n-1 per row, standard deviation sqrt(2(n-1)).
        for n in [2_u64, 3, 5, 12, 31] {
            let keys = 4000;
            let mut counts = vec![0_u32; (n * n) as usize];
            for key in 0..keys {
                let shuffle = Permutation::new(n, mix(key));
                for at in 0..n {
                    counts[(at * n + shuffle.forward(at)) as usize] += 1;
                }
            }
            let expected = keys as f64 / n as f64;
            let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
            let (mean, deviation) = ((n * (n - 1)) as f64, ((2 * n * (n - 1)) as f64).sqrt());
            assert!(chi < mean + 6.0 * deviation, "n {n}: chi-squared {chi:.0}, expected {mean:.0} +- {deviation:.0}");
        }
    }

    #[test]
    fn neighbours_part() {
        // Of two neighbours in a shuffled million, about 2e-6 stay neighbours.
        let shuffle = Permutation::new(1_000_000, 1);
        let close = (0..999_999).filter(|at| shuffle.forward(*at).abs_diff(shuffle.forward(at + 1)) <= 100).count();
        assert!((50..400).contains(&close), "{close} pairs of 1e6 within 100, about 200 expected");
    }

    proptest! {
        #[test]
        fn any_domain_inverts(n in 1_u64..=1 << 63, key: u64, at: u64) {
            let (shuffle, at) = (Permutation::new(n, key), at % n);
            let to = shuffle.forward(at);
            prop_assert!(to < n);
            prop_assert_eq!(shuffle.inverse(to), at);
        }
    }
}
