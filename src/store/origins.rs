//! Requests to each origin of bytes (a bucket, a host, the disks of this machine): how many, how long they took, how many failed.
//!
//! An origin is named by what stands before the paths of its objects, which has no credentials. Only reads of data are counted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::figures::{count, plain, plural, seconds};
use crate::recent::Recent;

/// Most origins that are told apart; the others are one together.
const MOST: usize = 64;
/// The name of those, and of the disks of this machine.
const OTHERS: &str = "(others)";
const HERE: &str = "(files of this machine)";
/// Most origins that people are shown.
const SHOWN: usize = 8;
/// Classes of duration: class `n` ends at 2^n microseconds, the last one, at about half an hour, has no end.
const CLASSES: usize = 32;
/// Amounts before the classes: requests, bytes, microseconds, failures.
const BEFORE: usize = 4;

/// All origins of this process.
static ALL: LazyLock<Origins> = LazyLock::new(Origins::new);

#[derive(Debug)]
struct Origins {
    born: Instant,
    all: Mutex<BTreeMap<Arc<str>, Counted>>,
}

#[derive(Debug)]
struct Counted {
    amounts: Recent<{ BEFORE + CLASSES }>,
    in_flight: u64,
}

/// What is known of one origin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginStats {
    /// Its address: `s3://bucket/`.
    pub address: String,
    /// Requests since the start that are over.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// Requests of the last half minute or so, and their mean duration in seconds.
    pub lately: u64,
    /// See [`lately`](Self::lately).
    pub mean_seconds: f64,
    /// Seconds within which half of those were done, as a power of two microseconds.
    pub median_seconds: f64,
    /// The same for 99 of 100.
    pub p99_seconds: f64,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Request {
    origin: Arc<str>,
    begun: Instant,
    over: bool,
}

impl Origins {
    fn new() -> Self {
        Self { born: Instant::now(), all: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Counted>> {
        // Numbers, which are consistent between any two statements.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, origin: &Arc<str>) -> Arc<str> {
        let mut all = self.lock();
        if let Some(counted) = all.get_mut(origin) {
            counted.in_flight += 1;
            return Arc::clone(origin);
        }
        let name = if all.len() + 1 < MOST { Arc::clone(origin) } else { OTHERS.into() };
        let new = || Counted { amounts: Recent::new(self.born.elapsed()), in_flight: 0 };
        all.entry(Arc::clone(&name)).or_insert_with(new).in_flight += 1;
        name
    }

    fn end(&self, origin: &str, outcome: Option<(Duration, Option<u64>)>) {
        let now = self.born.elapsed();
        let mut all = self.lock();
        let Some(Counted { amounts, in_flight }) = all.get_mut(origin) else { return };
        *in_flight = in_flight.saturating_sub(1);
        let Some((took, bytes)) = outcome else { return };
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        amounts.add(now, 0, 1);
        amounts.add(now, 1, bytes.unwrap_or(0));
        amounts.add(now, 2, micros);
        amounts.add(now, 3, u64::from(bytes.is_none()));
        amounts.add(now, BEFORE + class(micros), 1);
    }

    fn stats(&self) -> Vec<OriginStats> {
        let now = self.born.elapsed();
        let stats = |(address, counted): (&Arc<str>, &mut Counted)| {
            let totals = counted.amounts.totals();
            let (lately, _) = counted.amounts.lately(now);
            let classes = &lately[BEFORE..];
            OriginStats {
                address: address.to_string(),
                requests: totals[0],
                failures: totals[3],
                bytes: totals[1],
                in_flight: counted.in_flight,
                lately: lately[0],
                mean_seconds: if lately[0] == 0 { 0.0 } else { lately[2] as f64 / 1e6 / lately[0] as f64 },
                median_seconds: within(classes, 1, 2),
                p99_seconds: within(classes, 99, 100),
            }
        };
        self.lock().iter_mut().map(stats).collect()
    }
}

fn class(micros: u64) -> usize {
    ((u64::BITS - micros.leading_zeros()) as usize).min(CLASSES - 1)
}

/// The end in seconds of the class within which `part` of `whole` requests were done.
fn within(classes: &[u64], part: u64, whole: u64) -> f64 {
    let all: u64 = classes.iter().sum();
    let mut seen = 0;
    for (at, count) in classes.iter().enumerate() {
        seen += count;
        if seen > 0 && u128::from(seen) * u128::from(whole) >= u128::from(all) * u128::from(part) {
            return (1_u64 << at) as f64 / 1e6;
        }
    }
    0.0
}

/// The origins of this process, by address.
pub(crate) fn origins() -> Vec<OriginStats> {
    ALL.stats()
}

/// Those of `origins` that were asked lately, the slowest first, as many as people read.
pub(crate) fn slowest(origins: &[OriginStats]) -> Vec<&OriginStats> {
    let mut slow: Vec<_> = origins.iter().filter(|origin| origin.lately + origin.in_flight > 0).collect();
    slow.sort_by(|one, other| other.mean_seconds.total_cmp(&one.mean_seconds));
    slow.truncate(SHOWN);
    slow
}

impl fmt::Display for OriginStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, mean {}, p99 under {}; {} under way, {} failed",
            plain(&self.address),
            plural(self.lately, "request"),
            seconds(self.mean_seconds),
            seconds(self.p99_seconds),
            count(self.in_flight),
            count(self.failures)
        )
    }
}

/// Counts a request to the objects below `prefix`, or to files of this machine.
pub(super) fn begin(prefix: &Arc<str>, local: bool) -> Request {
    let origin = if local { ALL.begin(&HERE.into()) } else { ALL.begin(prefix) };
    Request { origin, begun: Instant::now(), over: false }
}

impl Request {
    /// Counts its end, and the bytes that came if it did not fail.
    pub(super) fn ended(mut self, bytes: Option<u64>) {
        self.over = true;
        ALL.end(&self.origin, Some((self.begun.elapsed(), bytes)));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // Nobody waits for it any more.
        if !self.over {
            ALL.end(&self.origin, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_failures_are_told_by_origin() {
        let origins = Origins::new();
        let name = origins.begin(&"s3://b/".into());
        for millis in [1, 1, 1, 100] {
            origins.end(&name, Some((Duration::from_millis(millis), Some(10))));
        }
        origins.end(&name, Some((Duration::from_secs(200), None)));
        let [stats] = origins.stats().try_into().unwrap();
        assert_eq!((stats.address.as_str(), stats.requests, stats.failures, stats.bytes), ("s3://b/", 5, 1, 40));
        assert_eq!((stats.in_flight, stats.lately), (0, 5));
        assert!((stats.mean_seconds - 200.103 / 5.0).abs() < 1e-6, "{stats:?}");
        assert!((stats.median_seconds - 0.001_024).abs() < 1e-9 && stats.p99_seconds >= 200.0, "{stats:?}");
    }

    #[test]
    fn no_more_than_so_many_origins_are_kept() {
        let origins = Origins::new();
        for number in 0..10 * MOST {
            let name = origins.begin(&format!("s3://{number}/").into());
            origins.end(&name, None);
        }
        let stats = origins.stats();
        assert_eq!(stats.len(), MOST);
        assert!(stats.iter().any(|one| one.address == OTHERS && one.in_flight == 0), "{stats:?}");
        let all: Vec<_> = [3.0, 1.0, 2.0]
            .map(|mean_seconds| OriginStats { lately: 1, mean_seconds, ..OriginStats::default() })
            .into_iter()
            .chain([OriginStats { mean_seconds: 9.0, ..OriginStats::default() }])
            .collect();
        assert_eq!(slowest(&all).iter().map(|one| one.mean_seconds).collect::<Vec<_>>(), [3.0, 2.0, 1.0]);
        assert_eq!(slowest(&vec![all[0].clone(); 99]).len(), SHOWN);
        assert_eq!((class(0), class(1), class(1000), class(u64::MAX)), (0, 1, 10, CLASSES - 1));
    }
}
