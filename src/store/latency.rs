//! How long requests took lately, by the number of bytes that they asked for. Pure: time comes in as a number.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::recent::Recent;

/// Classes of duration: four for each power of two microseconds, so that each ends at most a quarter above its beginning. The last one, from
/// about half an hour on, has no end.
const CLASSES: usize = 120;
/// Bytes of the smallest class of size; each further one has four times as many.
const SMALLEST: u64 = 64 << 10;
/// The class of size that has no end: more than 64 MiB.
const LARGEST: u32 = 6;

/// The requests to one origin.
#[derive(Debug, Default)]
pub(super) struct Latency {
    by_size: BTreeMap<u32, Recent<CLASSES>>,
}

/// Numbers of requests by their duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Durations([u64; CLASSES]);

impl Latency {
    /// Counts a request for so many bytes.
    pub(super) fn add(&mut self, now: Duration, bytes: u64, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.by_size.entry(size(bytes)).or_insert_with(|| Recent::new(now)).add(now, class(micros), 1);
    }

    /// The requests of the last half minute or so for about as many bytes.
    pub(super) fn like(&mut self, now: Duration, bytes: u64) -> Durations {
        Durations(self.by_size.get_mut(&size(bytes)).map_or([0; CLASSES], |recent| recent.lately(now).0))
    }

    /// All requests of the last half minute or so.
    pub(super) fn all(&mut self, now: Duration) -> Durations {
        let mut all = [0_u64; CLASSES];
        for recent in self.by_size.values_mut() {
            all.iter_mut().zip(recent.lately(now).0).for_each(|(sum, count)| *sum = sum.saturating_add(count));
        }
        Durations(all)
    }
}

impl Durations {
    /// Number of requests.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Time within which `part` of `whole` requests were done, at most a quarter too long; zero if there are none.
    pub(super) fn within(&self, part: u64, whole: u64) -> Duration {
        let all = self.count();
        let mut seen = 0;
        for (at, count) in self.0.iter().enumerate() {
            seen += count;
            if seen > 0 && u128::from(seen) * u128::from(whole) >= u128::from(all) * u128::from(part) {
                return Duration::from_micros(start(at + 1));
            }
        }
        Duration::ZERO
    }
}

/// The class of a request for so many bytes.
fn size(bytes: u64) -> u32 {
    let above = bytes.saturating_sub(1) / SMALLEST;
    (u64::BITS - above.leading_zeros()).div_ceil(2).min(LARGEST)
}

/// The class of a duration.
fn class(micros: u64) -> usize {
    // Below 4 each number is a class; above, the two bits after the first one divide its power of two.
    let shift = u64::from(micros.max(4).ilog2()) - 2;
    ((shift << 2) + (micros >> shift)).min(CLASSES as u64 - 1) as usize
}

/// The least duration of class `at`, in microseconds.
fn start(at: usize) -> u64 {
    if at < 4 { at as u64 } else { (4 + (at as u64 & 3)) << ((at >> 2) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_duration_lies_in_its_class_and_classes_are_narrow() {
        for micros in (0..5000).chain((0..31).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1])) {
            let at = class(micros);
            assert!(start(at) <= micros, "{micros}");
            assert!(at == CLASSES - 1 || micros < start(at + 1), "{micros}");
            assert!(start(at + 1) * 4 <= start(at) * 5 || at < 4, "{micros}");
        }
        assert_eq!((class(0), class(1), class(u64::MAX)), (0, 1, CLASSES - 1));
        assert!(start(CLASSES - 1) > 1600 * 1_000_000, "the last one begins at about half an hour");
    }

    #[test]
    fn requests_of_about_one_size_are_together() {
        let ends = [0, 64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
        for (class, pair) in ends.windows(2).enumerate() {
            assert_eq!((size(pair[0] + 1), size(pair[1])), (class as u32, class as u32));
        }
        assert_eq!((size(0), size(64 * MIB + 1), size(u64::MAX)), (0, LARGEST, LARGEST));
    }

    #[test]
    fn percentiles_are_those_of_the_last_requests_of_the_size() {
        let (mut latency, millis) = (Latency::default(), Duration::from_millis);
        let now = Duration::from_secs(100);
        for number in 1..=100 {
            latency.add(now, MIB, millis(number));
            latency.add(now, 100, millis(1));
        }
        let like = latency.like(now, MIB - 1);
        let (half, most) = (like.within(1, 2), like.within(95, 100));
        assert!(like.count() == 100 && half > millis(50) && half <= millis(63), "{half:?}");
        assert!(most > millis(95) && most <= millis(119), "{most:?}");
        assert_eq!((latency.all(now).count(), latency.like(now, 8 * MIB).count()), (200, 0));
        assert_eq!(latency.like(now, 8 * MIB).within(1, 2), Duration::ZERO);
        assert_eq!(latency.like(now + Duration::from_secs(60), MIB).count(), 0, "that was long ago");
    }
}
