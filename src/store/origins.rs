//! Requests to each origin of bytes (a bucket, a host, the disks of this machine): how many, how long they took, how many failed.
//!
//! An origin is named by what stands before the paths of its objects, which has no credentials. Only reads of data are counted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::hedge::{Decision, Hedge};
use super::latency::Latency;
use crate::figures::{count, plain, plural, seconds};
use crate::histogram::{Counted as Durations, Histogram};
use crate::per_process::PerProcess;
use crate::recent::Recent;

/// Most origins that are told apart; the others are one together.
const MOST: usize = 64;
/// The name of those, and of the disks of this machine.
const OTHERS: &str = "(others)";
const HERE: &str = "(files of this machine)";
/// Most origins that people are shown.
const SHOWN: usize = 8;
/// Amounts: requests, bytes, microseconds, failures.
const AMOUNTS: usize = 4;

/// All origins of this process.
static ALL: PerProcess<Origins> = PerProcess::new();

#[derive(Debug)]
struct Origins {
    born: Instant,
    all: Mutex<BTreeMap<Arc<str>, Counted>>,
    /// Of stores, and of the disks of this machine.
    requests: [Counts; 2],
}

/// Requests of all origins of one kind.
#[derive(Debug, Default)]
struct Counts {
    took: Histogram,
    /// By [`OUTCOMES`].
    outcomes: [AtomicU64; OUTCOMES.len()],
}

/// What becomes of a request: its bytes came, it failed with all its retries, or nobody waited for it any more.
const OUTCOMES: [&str; 3] = ["done", "failed", "abandoned"];

/// Requests since the start that are over, of all origins of one kind, without their names.
#[cfg_attr(not(feature = "flight"), allow(dead_code, reason = "only servers have metrics"))]
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    /// `store`, or `disk`: files of this machine.
    pub(crate) at: &'static str,
    /// Durations of those that were not abandoned.
    pub(crate) took: Durations,
    pub(crate) outcomes: [(&'static str, u64); OUTCOMES.len()],
}

#[derive(Debug)]
struct Counted {
    amounts: Recent<AMOUNTS>,
    latency: Latency,
    hedge: Hedge,
    in_flight: u64,
    /// The last answer, if it was that the store cannot answer now, and when it came.
    refusal: Option<(Duration, String)>,
}

/// What is known of one origin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginStats {
    /// Its address: `s3://bucket/`.
    pub address: String,
    /// Requests since the start that are over; second requests for the same bytes are not among them.
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
    /// Seconds within which half of those were done, at most a quarter too many.
    pub median_seconds: f64,
    /// The same for 99 of 100.
    pub p99_seconds: f64,
    /// Second requests since the start, for bytes that were late, and those of them that were answered first.
    pub hedged: u64,
    /// See [`hedged`](Self::hedged).
    pub hedges_won: u64,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Request {
    origin: Arc<str>,
    /// The bytes that it asks for.
    bytes: u64,
    begun: Instant,
    over: bool,
}

/// A second request for the same bytes, under way.
#[derive(Debug)]
pub(super) struct Second {
    origin: Arc<str>,
    bytes: u64,
    won: bool,
}

/// What becomes of a request that is not answered yet.
#[derive(Debug)]
pub(super) enum Late {
    /// It waits so long, and asks again.
    Wait(Duration),
    /// The same bytes are requested once more.
    Second(Second),
}

impl Default for Origins {
    fn default() -> Self {
        Self { born: Instant::now(), all: Mutex::default(), requests: Default::default() }
    }
}

impl Origins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Counted>> {
        // Numbers, which are consistent between any two statements.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is counted for `origin`, and the name that it is counted under.
    fn with<T>(&self, origin: &Arc<str>, change: impl FnOnce(&mut Counted, Duration) -> T) -> (Arc<str>, T) {
        let now = self.born.elapsed();
        let mut all = self.lock();
        let is_known = all.contains_key(origin);
        let name = if is_known || all.len() + 1 < MOST { Arc::clone(origin) } else { OTHERS.into() };
        let new = || Counted {
            amounts: Recent::new(now),
            latency: Latency::default(),
            hedge: Hedge::default(),
            in_flight: 0,
            refusal: None,
        };
        let changed = change(all.entry(Arc::clone(&name)).or_insert_with(new), now);
        (name, changed)
    }

    #[cfg(feature = "cloud")]
    fn answered(&self, origin: &Arc<str>, refusal: Option<impl fmt::Display>) {
        match refusal {
            Some(refusal) => {
                self.with(origin, |counted, now| counted.refusal = Some((now, refusal.to_string())));
            }
            None => {
                if let Some(counted) = self.lock().get_mut(origin) {
                    counted.refusal = None;
                }
            }
        }
    }

    /// The last refusal within `time` of a store that has not answered since.
    fn refusal(&self, time: Duration) -> Option<String> {
        let since = self.born.elapsed().saturating_sub(time);
        let all = self.lock();
        let refusals = all.values().filter_map(|counted| counted.refusal.as_ref()).filter(|(at, _)| *at >= since);
        refusals.max_by_key(|(at, _)| *at).map(|(_, answer)| answer.clone())
    }

    fn begin(&self, origin: &Arc<str>) -> Arc<str> {
        let begin = |counted: &mut Counted, _| {
            counted.in_flight += 1;
            counted.hedge.begun();
        };
        self.with(origin, begin).0
    }

    /// The end of a request for `asked` bytes: its duration and the bytes that came, unless nobody waited for it any more.
    fn end(&self, origin: &Arc<str>, asked: u64, outcome: Option<(Duration, Option<u64>)>) {
        let [store, disk] = &self.requests;
        let counts = if &**origin == HERE { disk } else { store };
        let [done, failed, abandoned] = &counts.outcomes;
        match outcome {
            Some((_, Some(_))) => done,
            Some((_, None)) => failed,
            None => abandoned,
        }
        .fetch_add(1, Ordering::Relaxed);
        if let Some((took, _)) = outcome {
            counts.took.add(took);
        }
        self.with(origin, |counted, now| {
            counted.in_flight = counted.in_flight.saturating_sub(1);
            let Some((took, bytes)) = outcome else { return };
            let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            for (at, more) in [1, bytes.unwrap_or(0), micros, u64::from(bytes.is_none())].into_iter().enumerate() {
                counted.amounts.add(now, at, more);
            }
            counted.latency.add(now, asked, took);
        });
    }

    /// What becomes of a request that waited so long for `bytes` bytes.
    fn late(&self, origin: &Arc<str>, bytes: u64, waited: Duration) -> Decision {
        let decide = |counted: &mut Counted, now| {
            let like = counted.latency.like(now, bytes);
            let decision = counted.hedge.decide(now, bytes, waited, &like);
            counted.in_flight += u64::from(decision == Decision::Send);
            decision
        };
        self.with(origin, decide).1
    }

    /// The end of a second request for `bytes` bytes.
    fn second_ended(&self, origin: &Arc<str>, bytes: u64, won: bool) {
        self.with(origin, |counted, _| {
            counted.in_flight = counted.in_flight.saturating_sub(1);
            counted.hedge.over(bytes, won);
        });
    }

    #[cfg_attr(not(feature = "flight"), allow(dead_code, reason = "only servers have metrics"))]
    fn requests(&self) -> [Requests; 2] {
        let [store, disk] = &self.requests;
        [("store", store), ("disk", disk)].map(|(at, counts)| {
            let counted = |at: usize| counts.outcomes.get(at).map_or(0, |count| count.load(Ordering::Relaxed));
            let outcomes = std::array::from_fn(|at| (OUTCOMES[at], counted(at)));
            Requests { at, took: counts.took.counted(), outcomes }
        })
    }

    fn stats(&self) -> Vec<OriginStats> {
        let now = self.born.elapsed();
        let stats = |(address, counted): (&Arc<str>, &mut Counted)| {
            let totals = counted.amounts.totals();
            let (lately, _) = counted.amounts.lately(now);
            let durations = counted.latency.all(now);
            let (hedged, hedges_won) = counted.hedge.counts();
            OriginStats {
                address: address.to_string(),
                requests: totals[0],
                failures: totals[3],
                bytes: totals[1],
                in_flight: counted.in_flight,
                lately: lately[0],
                mean_seconds: if lately[0] == 0 { 0.0 } else { lately[2] as f64 / 1e6 / lately[0] as f64 },
                median_seconds: durations.within(1, 2).as_secs_f64(),
                p99_seconds: durations.within(99, 100).as_secs_f64(),
                hedged,
                hedges_won,
            }
        };
        self.lock().iter_mut().map(stats).collect()
    }
}

/// The origins of this process, by address.
pub(crate) fn origins() -> Vec<OriginStats> {
    ALL.get().stats()
}

/// The requests of this process to stores, and to its own disks.
#[cfg_attr(not(feature = "flight"), allow(dead_code, reason = "only servers have metrics"))]
pub(crate) fn requests() -> [Requests; 2] {
    ALL.get().requests()
}

/// Lines for people: origins that were asked lately, the slowest first, and how many are not shown.
pub(crate) struct Slowest<'a>(pub(crate) &'a [OriginStats]);

impl fmt::Display for Slowest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slow: Vec<_> = self.0.iter().filter(|origin| origin.lately + origin.in_flight > 0).collect();
        slow.sort_by(|one, other| other.mean_seconds.total_cmp(&one.mean_seconds));
        slow.iter().take(SHOWN).try_for_each(|origin| writeln!(f, "Origin {origin}"))?;
        match slow.len().saturating_sub(SHOWN) as u64 {
            0 => Ok(()),
            left => writeln!(f, "and {}", plural(left, "faster origin")),
        }
    }
}

impl fmt::Display for OriginStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, mean {}, p99 under {}; {} under way, {} hedged, {} failed",
            plain(&self.address),
            plural(self.lately, "request"),
            seconds(self.mean_seconds),
            seconds(self.p99_seconds),
            count(self.in_flight),
            count(self.hedged),
            count(self.failures)
        )
    }
}

/// Counts a request for so many bytes of the objects below `prefix`, or of files of this machine.
pub(super) fn begin(prefix: &Arc<str>, local: bool, bytes: u64) -> Request {
    let origin = if local { ALL.get().begin(&HERE.into()) } else { ALL.get().begin(prefix) };
    Request { origin, bytes, begun: Instant::now(), over: false }
}

/// Counts an answer of the store at `prefix` that it has too many requests.
#[cfg(feature = "cloud")]
pub(super) fn too_many(prefix: &Arc<str>) {
    ALL.get().with(prefix, |counted, now| counted.hedge.too_many(now));
}

/// Notes that the store at `prefix` answered, and the answer if it was that it cannot answer now.
#[cfg(feature = "cloud")]
pub(super) fn answered(prefix: &Arc<str>, refusal: Option<impl fmt::Display>) {
    ALL.get().answered(prefix, refusal);
}

/// `culprit`, which did not come within `waited`, with the last answer of a store that said meanwhile that it cannot answer now.
pub(crate) fn with_refusal(culprit: impl fmt::Display, waited: Duration) -> String {
    match ALL.get().refusal(waited) {
        // Without the store's name, which may be another tenant's.
        Some(answer) => format!("{culprit}; the last answer of a store is {answer}"),
        None => culprit.to_string(),
    }
}

impl Request {
    /// What becomes of it where it has waited for an answer so long.
    pub(super) fn late(&self, waited: Duration) -> Late {
        match ALL.get().late(&self.origin, self.bytes, waited) {
            Decision::Wait(time) => Late::Wait(time),
            Decision::Send => Late::Second(Second { origin: Arc::clone(&self.origin), bytes: self.bytes, won: false }),
        }
    }

    /// Counts its end, and the bytes that came if it did not fail.
    pub(super) fn ended(mut self, bytes: Option<u64>) {
        self.over = true;
        ALL.get().end(&self.origin, self.bytes, Some((self.begun.elapsed(), bytes)));
    }
}

impl Second {
    /// It is answered, and the first one is not.
    pub(super) fn won(mut self) {
        self.won = true;
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        ALL.get().second_ended(&self.origin, self.bytes, self.won);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // Nobody waits for it any more.
        if !self.over {
            ALL.get().end(&self.origin, self.bytes, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_failures_are_told_by_origin() {
        let origins = Origins::default();
        let name = origins.begin(&"s3://b/".into());
        for millis in [1, 1, 1, 100] {
            origins.end(&name, 10, Some((Duration::from_millis(millis), Some(10))));
        }
        origins.end(&name, 10, Some((Duration::from_secs(200), None)));
        let [stats] = origins.stats().try_into().unwrap();
        assert_eq!((stats.address.as_str(), stats.requests, stats.failures, stats.bytes), ("s3://b/", 5, 1, 40));
        assert_eq!((stats.in_flight, stats.lately), (0, 5));
        assert!((stats.mean_seconds - 200.103 / 5.0).abs() < 1e-6, "{stats:?}");
        assert!((stats.median_seconds - 0.001_024).abs() < 1e-9 && stats.p99_seconds >= 200.0, "{stats:?}");
        let disk = origins.begin(&HERE.into());
        origins.end(&disk, 10, None);
        let [store, disk] = origins.requests();
        assert_eq!((store.at, store.outcomes), ("store", [("done", 4), ("failed", 1), ("abandoned", 0)]));
        assert_eq!((store.took.count(), disk.took.count()), (5, 0));
        assert_eq!((disk.at, disk.outcomes), ("disk", [("done", 0), ("failed", 0), ("abandoned", 1)]));
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn a_refusal_is_the_last_answer_until_there_is_another() {
        let origins = Origins::default();
        let (one, other) = ("s3://a/".into(), "s3://b/".into());
        assert_eq!(origins.refusal(Duration::MAX), None);
        origins.answered(&one, Some("429 Too Many Requests"));
        origins.answered(&other, Some("503 Service Unavailable"));
        assert_eq!(origins.refusal(Duration::MAX).unwrap(), "503 Service Unavailable");
        assert_eq!(origins.refusal(Duration::ZERO), None, "it came before the wait");
        origins.answered(&other, None::<&str>);
        assert_eq!(origins.refusal(Duration::MAX).unwrap(), "429 Too Many Requests");
    }

    #[test]
    fn no_more_than_so_many_origins_are_kept() {
        let origins = Origins::default();
        for number in 0..10 * MOST {
            let name = origins.begin(&format!("s3://{number}/").into());
            origins.end(&name, 1, None);
        }
        let stats = origins.stats();
        assert_eq!(stats.len(), MOST);
        assert!(stats.iter().any(|one| one.address == OTHERS && one.in_flight == 0), "{stats:?}");
        let all: Vec<_> = [3.0, 1.0, 2.0]
            .map(|mean_seconds| OriginStats { lately: 1, mean_seconds, ..OriginStats::default() })
            .into_iter()
            .chain([OriginStats { mean_seconds: 9.0, ..OriginStats::default() }])
            .collect();
        let shown = |origins: &[OriginStats]| Slowest(origins).to_string();
        let means: Vec<_> = ["mean 3.00 s", "mean 2.00 s", "mean 1.00 s"].map(|mean| shown(&all).find(mean)).to_vec();
        assert!(means.is_sorted() && means[0].is_some(), "{}", shown(&all));
        assert!(!shown(&all).contains("mean 9") && !shown(&all).contains("faster"), "{}", shown(&all));
        let many = shown(&vec![all[0].clone(); 99]);
        assert_eq!(many.matches("Origin ").count(), SHOWN);
        assert!(many.ends_with("\nand 91 faster origins\n"), "{many}");
    }

    #[test]
    fn a_second_request_is_counted_beside_the_first() {
        let origins = Origins::default();
        let mut name = Arc::from("s3://b/");
        for _ in 0..40 {
            name = origins.begin(&name);
            origins.end(&name, 10, Some((Duration::from_millis(1), Some(10))));
        }
        name = origins.begin(&name);
        assert!(matches!(origins.late(&name, 10, Duration::ZERO), Decision::Wait(_)));
        assert_eq!(origins.late(&name, 10, Duration::from_secs(1)), Decision::Send);
        assert_eq!(origins.stats()[0].in_flight, 2);
        origins.second_ended(&name, 10, true);
        origins.end(&name, 10, Some((Duration::from_secs(1), Some(10))));
        let stats = origins.stats().remove(0);
        assert_eq!((stats.requests, stats.bytes, stats.in_flight), (41, 410, 0));
        assert_eq!((stats.hedged, stats.hedges_won), (1, 1));
        origins.with(&name, |counted, now| counted.hedge.too_many(now));
        assert!(matches!(origins.late(&name, 10, Duration::from_secs(1)), Decision::Wait(_)));
    }
}
