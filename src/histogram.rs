//! A histogram of durations, for monitoring: counts by upper bound, added to from any thread without a lock.
//!
//! The bounds are the same everywhere, from half a millisecond to half a minute: histograms of one fleet can be added up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in seconds. What took longer than the last one is counted too.
const BOUNDS: [f64; 15] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One more than there are bounds.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What was counted so far.
    #[cfg_attr(not(feature = "flight"), allow(dead_code, reason = "only servers have metrics"))]
    pub(crate) fn counted(&self) -> Counted {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Counted { buckets: bounds.zip(counts).collect(), seconds: self.nanos.load(Ordering::Relaxed) as f64 / 1e9 }
    }
}

/// The content of a histogram at one moment.
#[cfg_attr(not(feature = "flight"), allow(dead_code, reason = "only servers have metrics"))]
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counted {
    /// The upper bound of each bucket in seconds, the last one infinite, and the durations in it that are in none before.
    pub(crate) buckets: Vec<(f64, u64)>,
    /// The sum of all durations.
    pub(crate) seconds: f64,
}

impl Counted {
    /// The number of all durations.
    #[cfg_attr(not(feature = "flight"), allow(dead_code, reason = "only servers have metrics"))]
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_one_bucket() {
        let histogram = Histogram::default();
        for micros in [0, 500, 501, 100_000, 30_000_000, 30_000_001] {
            histogram.add(Duration::from_micros(micros));
        }
        let counted = histogram.counted();
        let at = |bound: f64| counted.buckets.iter().find(|(found, _)| *found == bound).map(|(_, count)| *count);
        assert_eq!((at(0.0005), at(0.001), at(0.1)), (Some(2), Some(1), Some(1)));
        assert_eq!((at(30.0), at(f64::INFINITY), counted.count()), (Some(1), Some(1), 6));
        assert!((counted.seconds - 60.101_002).abs() < 1e-9, "{counted:?}");
        assert!(BOUNDS.is_sorted());
    }
}
