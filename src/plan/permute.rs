//! Keyed orders of few and of many items, and the keys of everything random in a plan.
//!
//! Few items are shuffled by Fisher-Yates, with exactly even draws from xoshiro256++ seeded by SplitMix64: every order
//! is as likely as any other, up to the 2^64 keys that exist. Many are permuted by a
//! [`Feistel`](super::feistel::Feistel) network, position by position. Written out here, since an order must outlive
//! any version of a library.

use std::ops::Range;
use std::sync::Arc;

use super::feistel::{Cheap, GOLDEN, Strong, mix};

/// A bijection of the rows of a window.
#[derive(Debug, Clone)]
pub(super) enum Permutation {
    Cheap(Cheap),
    Strong(Strong),
    Drawn(Arc<[u16]>),
    /// The whole order that a `Strong` network gives, looked up.
    Kept(Arc<[u32]>),
}

impl Permutation {
    /// Calls `visit` with the image of each number of `range`, in order.
    #[inline]
    pub(super) fn each(&self, range: Range<u64>, visit: impl FnMut(u64)) {
        match self {
            Self::Cheap(network) => network.each(range, visit),
            Self::Strong(network) => network.each(range, visit),
            Self::Drawn(order) => each_of(order, range, visit),
            Self::Kept(order) => each_of(order, range, visit),
        }
    }
}

fn each_of<T: Copy + Into<u64>>(order: &[T], range: Range<u64>, visit: impl FnMut(u64)) {
    order[range.start as usize..range.end as usize].iter().map(|to| (*to).into()).for_each(visit);
}

/// Puts `items` into the order of `key`.
pub(super) fn shuffle<T>(items: &mut [T], key: u64) {
    let mut generator = Generator::new(key);
    for last in (1..items.len()).rev() {
        items.swap(last, generator.below(last as u64 + 1) as usize);
    }
}

/// xoshiro256++ by Blackman and Vigna.
struct Generator([u64; 4]);

impl Generator {
    /// Seeded by SplitMix64, as its authors advise.
    fn new(key: u64) -> Self {
        let mut seed = key;
        Self(std::array::from_fn(|_| {
            seed = seed.wrapping_add(GOLDEN);
            mix(seed)
        }))
    }

    #[inline]
    fn draw(&mut self) -> u64 {
        let Self(s) = self;
        let drawn = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        drawn
    }

    /// A number of `0..n`, each exactly as likely as any other: Lemire's method.
    #[inline]
    fn below(&mut self, n: u64) -> u64 {
        loop {
            let wide = u128::from(self.draw()) * u128::from(n);
            let low = wide as u64;
            // Rejects draws that would make some numbers more likely, 2^64 mod n of them; the division is rare.
            if low >= n || low >= n.wrapping_neg() % n {
                return (wide >> 64) as u64;
            }
        }
    }
}

/// One key from several numbers; their order matters.
pub(super) fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN, |key, part| mix(key.wrapping_add(GOLDEN) ^ mix(part.wrapping_add(GOLDEN))))
}

/// The random number of one row in one epoch, from which augmentation draws, so that it never depends on a thread.
///
/// ```
/// use bowstring::plan::random;
/// assert_eq!(random(7, 0, 3), random(7, 0, 3));
/// assert_ne!(random(7, 0, 3), random(7, 1, 3));
/// ```
pub fn random(seed: u64, epoch: u64, row_id: u64) -> u64 {
    // The first part separates it from the keys of the order, which start with other numbers.
    key(&[RANDOM, seed, epoch, row_id])
}

/// First part of the keys of [`random`].
const RANDOM: u64 = 1;
/// First part of the key that permutes row groups.
pub(super) const GROUPS: u64 = 2;
/// First part of the keys that permute rows within windows.
pub(super) const WINDOW: u64 = 3;

#[cfg(test)]
mod tests;
