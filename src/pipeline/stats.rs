//! Counters per stage: items, bytes, time worked, time waited. Cheap enough to be always on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::store::cache::CacheStats;

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

    pub(super) fn snapshot(&self, memory: Memory, cache: CacheStats) -> Stats {
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
        }
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
    /// Output bytes: stored (`read`), as Arrow (`decode`), as tensors (`batch`, `consumer`).
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
    /// Bytes copied between decoding and delivery, per byte delivered: 0 for images, at most 1 for plain columns.
    pub copied_per_delivered: f64,
    /// Seconds since the loader was opened.
    pub seconds: f64,
    /// Seconds from opening to the first batch.
    pub seconds_to_first_batch: Option<f64>,
    /// The byte budget.
    pub memory: Memory,
    /// Cache hits and misses; all zero without a cache.
    pub cache: CacheStats,
}

impl Stats {
    /// The stage that limits the throughput, with the share of the consumer's time spent waiting, from 0 to 1.
    ///
    /// If the consumer waits less than 5 % of its time it is the limit itself. Otherwise it is the store, if decoding and
    /// batching waited for it longer than they worked, or the busier of the two.
    pub fn bottleneck(&self) -> (&'static str, f64) {
        let total = self.consumer.worked_seconds + self.consumer.waited_seconds;
        let share = if total > 0.0 { self.consumer.waited_seconds / total } else { 0.0 };
        let stage = if share < 0.05 {
            "consumer"
        } else if self.read.worked_seconds > self.decode.worked_seconds + self.batch.worked_seconds {
            "read"
        } else if self.decode.worked_seconds > self.batch.worked_seconds {
            "decode"
        } else {
            "batch"
        };
        (stage, share)
    }
}
