//! What every stage of one loader shares: the data, the pools, the counters, and the word to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Semaphore, oneshot};

use super::ledger::SharedLedger;
use super::ngram::Maker;
use super::stats::{Counters, Memory};
use crate::codec::{BadRows, Columns};
use crate::dataset::{Cost, Dataset, Projection};
use crate::error::{Error, Result};
use crate::memory::Pool;

/// Row groups that a mean is taken over; more say no more.
const MEAN_OVER: usize = 1024;

/// One dataset of the job, and what is read of it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) dataset: Dataset,
    pub(super) projection: Projection,
    pub(super) columns: Arc<Columns>,
    /// What batches are made with.
    pub(super) maker: Maker,
    /// Added to the dataset's own row numbers, so that row ids are unique in a mixture.
    pub(super) row_base: u64,
}

impl Source {
    /// Bytes that row group `group` takes: the dataset's, and what preparing copies.
    pub(super) fn cost(&self, group: usize) -> Cost {
        let cost = self.dataset.cost(group, &self.projection);
        let rows = self.dataset.decoded_rows(group);
        let copies = self.columns.prepared_row_bytes().saturating_mul(rows);
        let decoded = cost.decoded.saturating_add(copies);
        Cost { decoded, held: cost.held.max(copies), ..cost }
    }

    /// Uncompressed bytes of one row of the columns that are read, on average.
    pub(super) fn mean_row_bytes(&self) -> u64 {
        let manifest = self.dataset.manifest();
        let sample = manifest.groups.len().div_ceil(MEAN_OVER);
        let groups = (0..manifest.groups.len()).step_by(sample.max(1));
        let (bytes, rows) = groups.fold((0_u64, 0_u64), |(bytes, rows), group| {
            let cost = self.dataset.cost(group, &self.projection);
            (bytes.saturating_add(cost.decoded), rows.saturating_add(manifest.groups[group].rows))
        });
        if rows == 0 { 0 } else { bytes.div_ceil(rows) }
    }
}

/// The shared part of a running pipeline.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) sources: Vec<Source>,
    /// The part of the budget for row groups: fetched bytes and cells.
    pub(super) groups: Arc<Pool>,
    /// The part of the budget for batches not yet delivered.
    pub(super) batches: Arc<Pool>,
    pub(super) cpu: rayon::ThreadPool,
    /// Row groups being fetched at once.
    pub(super) reads: Semaphore,
    pub(super) reads_at_once: usize,
    /// Row groups being decoded at once: one per thread, so that batches of earlier steps never queue behind many.
    pub(super) decodes: Semaphore,
    pub(super) counters: Counters,
    pub(super) ledger: SharedLedger,
    pub(super) bad_rows: BadRows,
    pub(super) prefetch: usize,
    /// Bytes of one batch, as estimated when the loader was opened.
    pub(super) batch: usize,
    pub(super) stopped: AtomicBool,
}

impl Job {
    /// Runs `work` on the CPU pool and waits for it on the I/O runtime. A panic becomes an error; a stopped job runs nothing.
    pub(super) async fn on_cpu<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let job = Arc::clone(self);
        self.cpu.spawn_fifo(move || {
            let result = if job.stopped.load(Ordering::Relaxed) {
                Err(closed())
            } else {
                // What `work` shares is counters and pools, which are consistent after every call.
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&job)))
                    .unwrap_or_else(|panic| Err(panicked(&*panic)))
            };
            // Nobody waits any more when the loader was dropped.
            drop(sender.send(result));
        });
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(super) fn memory(&self) -> Memory {
        Memory {
            budget: (self.groups.budget() + self.batches.budget()) as u64,
            used: (self.groups.used() + self.batches.used()) as u64,
            peak: (self.groups.peak() + self.batches.peak()) as u64,
        }
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.reads.close();
        self.decodes.close();
    }
}

pub(super) fn closed() -> Error {
    Error::Closed { why: "the loader was closed".to_owned() }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::Closed { why: format!("a worker panicked ({}); this is a bug in bowstring", text.unwrap_or("no message")) }
}
