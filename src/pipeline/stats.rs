//! Counters per stage: items, bytes, time worked, time waited. Cheap enough to be always on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::bottleneck::{Bottleneck, Who};
use super::cause::{CAUSES, Cause, per_mille};
use crate::histogram::Histogram;
use crate::per_process::PerProcess;
use crate::store::cache::CacheStats;

/// How long row groups took to decode, of all loaders of this process.
static DECODES: PerProcess<Histogram> = PerProcess::new();

/// Counts a row group that took so long to decode.
pub(super) fn decoded(took: Duration) {
    DECODES.get().add(took);
}

/// How long row groups took to decode in this process.
#[cfg(feature = "flight")]
pub(crate) fn decodes() -> crate::histogram::Counted {
    DECODES.get().counted()
}

/// Counters of one stage, added to from any thread.
#[derive(Debug, Default)]
pub(super) struct Counter {
    items: AtomicU64,
    bytes: AtomicU64,
    worked: AtomicU64,
    waited: AtomicU64,
}

impl Counter {
    pub(super) fn done(&self, bytes: u64, worked: Duration) {
        self.items.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.worked.fetch_add(nanos(worked), Ordering::Relaxed);
    }

    pub(super) fn worked(&self, worked: Duration) {
        self.worked.fetch_add(nanos(worked), Ordering::Relaxed);
    }

    pub(super) fn waited(&self, waited: Duration) {
        self.waited.fetch_add(nanos(waited), Ordering::Relaxed);
    }

    fn snapshot(&self) -> Stage {
        Stage {
            items: self.items.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            worked_seconds: self.worked.load(Ordering::Relaxed) as f64 / 1e9,
            waited_seconds: self.waited.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// All counters of one loader.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) read: Counter,
    pub(super) decode: Counter,
    pub(super) batch: Counter,
    pub(super) consumer: Counter,
    pub(super) rows: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) first_batch: AtomicU64,
    pub(super) born: Instant,
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            read: Counter::default(),
            decode: Counter::default(),
            batch: Counter::default(),
            consumer: Counter::default(),
            rows: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            first_batch: AtomicU64::new(0),
            born: Instant::now(),
        }
    }

    pub(super) fn snapshot(&self, memory: Memory, cache: CacheStats, spent: TimeSpent) -> Stats {
        let delivered = self.consumer.bytes.load(Ordering::Relaxed);
        let copied = self.copied.load(Ordering::Relaxed);
        Stats {
            read: self.read.snapshot(),
            decode: self.decode.snapshot(),
            batch: self.batch.snapshot(),
            consumer: self.consumer.snapshot(),
            rows: self.rows.load(Ordering::Relaxed),
            copied_per_delivered: if delivered == 0 { 0.0 } else { copied as f64 / delivered as f64 },
            seconds: self.born.elapsed().as_secs_f64(),
            seconds_to_first_batch: match self.first_batch.load(Ordering::Relaxed) {
                0 => None,
                nanos => Some(nanos as f64 / 1e9),
            },
            memory,
            cache,
            spent,
        }
        .taken_by(spent)
    }

    pub(super) fn first_batch_delivered(&self) {
        let now = nanos(self.born.elapsed()).max(1);
        // Only the first delivery writes; the loser of a race is not the first.
        let _ = self.first_batch.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Totals of one stage since the loader was opened.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Stage {
    /// Finished items: row groups (`read`, `decode`) or batches (`batch`, `consumer`).
    pub items: u64,
    /// Output bytes: stored (`read`), as Arrow (`decode`), as tensors and Arrow columns (`batch`, `consumer`).
    pub bytes: u64,
    /// Seconds of work, summed over threads. For `consumer`: seconds spent outside the loader.
    pub worked_seconds: f64,
    /// Seconds of waiting for the previous stage, or for memory. For `consumer`: seconds it waited for a batch.
    pub waited_seconds: f64,
}

/// Memory of one loader, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Memory {
    /// The budget.
    pub budget: u64,
    /// Reserved now.
    pub used: u64,
    /// Peak of reserved bytes.
    pub peak: u64,
}

/// The work of a loader so far.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Stats {
    /// Column chunks fetched from the store.
    pub read: Stage,
    /// Parquet to Arrow, a row group at a time.
    pub decode: Stage,
    /// Cells into their place in a batch, including image decoding.
    pub batch: Stage,
    /// The consumer of the batches.
    pub consumer: Stage,
    /// Rows delivered, padding not counted.
    pub rows: u64,
    /// Bytes copied between decoding and delivery, per byte delivered: 0 for decoded images, at most 1 for plain columns and those of Arrow.
    pub copied_per_delivered: f64,
    /// Seconds since the loader was opened.
    pub seconds: f64,
    /// Seconds from opening to the first batch.
    pub seconds_to_first_batch: Option<f64>,
    /// The byte budget.
    pub memory: Memory,
    /// Cache hits and misses; all zero without a cache.
    pub cache: CacheStats,
    /// What the consumer's time went to, since it asked for the first batch.
    pub spent: TimeSpent,
}

impl Stats {
    /// What limits the throughput, with advice; `None` if no batch was asked for.
    ///
    /// If the consumer waits less than 5 % of its time it is the limit itself, else what it waits for most.
    pub fn bottleneck(&self) -> Option<Bottleneck> {
        Bottleneck::of(&self.spent.0, Who::Consumer)
    }

    /// The share of its time that the consumer waits, from 0 to 1.
    pub fn waiting(&self) -> f64 {
        let Stage { worked_seconds, waited_seconds, .. } = self.consumer;
        let all = worked_seconds + waited_seconds;
        if all > 0.0 { waited_seconds / all } else { 0.0 }
    }

    /// The same with the time of another consumer, who takes the batches from the first one.
    #[must_use]
    pub(crate) fn taken_by(self, spent: TimeSpent) -> Self {
        let (worked_seconds, waited_seconds) = spent.worked_and_waited();
        Self { consumer: Stage { worked_seconds, waited_seconds, ..self.consumer }, spent, ..self }
    }
}

/// Seconds of a consumer by what they went to; as a document, a mapping by the names of causes.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeSpent(pub(crate) [f64; CAUSES]);

impl TimeSpent {
    /// The seconds that went to `cause`.
    pub fn of(&self, cause: Cause) -> f64 {
        self.0[cause as usize]
    }

    /// All of them.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The share of `cause` in percent, rounded to tenths; those of all causes sum to 100, or are all 0.
    pub fn percent(&self, cause: Cause) -> f64 {
        f64::from(per_mille(&self.0)[cause as usize]) / 10.0
    }

    fn worked_and_waited(&self) -> (f64, f64) {
        let worked = self.of(Cause::Consumer);
        (worked, (self.total() - worked).max(0.0))
    }
}

impl Serialize for TimeSpent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Cause::ALL.iter().map(|cause| (cause.name(), self.of(*cause))))
    }
}
