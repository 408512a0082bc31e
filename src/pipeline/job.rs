//! The state that all stages of one loader share: the data, the pools, the counters, and the signal to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use super::ledger::SharedLedger;
use super::ngram::Maker;
use super::stats::{Counters, Memory};
use crate::codec::{BadRows, Columns};
use crate::dataset::{Chunk, Cost, Dataset, Projection, Sizes};
use crate::error::{Error, Result};
use crate::memory::{HostAllocator, Pool, Spare, SystemAllocator};
use crate::page;

/// Row groups fetched at once from an object store: enough to hide its latency. From local files, one more than there
/// are threads to decode them.
const REMOTE_READS: usize = 16;

/// Row groups that a mean is taken over; more add no precision.
const MEAN_OVER: usize = 1024;

/// One dataset of the job, and the part of it that is read.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) dataset: Dataset,
    pub(super) projection: Projection,
    pub(super) columns: Arc<Columns>,
    /// Makes the batches.
    pub(super) maker: Maker,
    /// Set if batches have `_mask` regardless of the tail.
    pub(super) masked: bool,
    /// Added to the dataset's own row numbers, so that row ids are unique in a mixture.
    pub(super) row_base: u64,
}

impl Source {
    /// The same, with large row groups in units of these sizes.
    pub(super) async fn in_units(&self, sizes: Sizes, timeout: Duration) -> Result<Self> {
        Ok(Self { dataset: self.dataset.in_units_of(sizes, timeout).await?, ..self.clone() })
    }

    /// Bytes that row group `group` takes: the dataset's, and those that preparation copies.
    pub(super) fn cost(&self, group: usize) -> Cost {
        let stays = |chunks: &[Chunk], root| {
            let in_place =
                |wanted: &dyn Fn(usize) -> bool| self.dataset.in_place(group, chunks, &self.projection, root, wanted);
            self.columns.left_in_place(root, in_place)
        };
        let cost = self.dataset.cost_without(group, &self.projection, stays);
        let rows = self.dataset.decoded_rows(group);
        let copies = self.columns.prepared_row_bytes().saturating_mul(rows);
        let decoded = cost.decoded.saturating_add(copies);
        Cost { decoded, held: cost.held.max(copies), ..cost }
    }

    /// Average uncompressed bytes of one row of the columns that are read.
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

/// CPU threads that decode, for one pipeline or for several.
#[derive(Debug)]
pub struct Workers {
    threads: usize,
    pool: rayon::ThreadPool,
    /// Row groups being decoded at once: one per thread, so that batches of earlier steps never queue behind many.
    pub(super) decodes: Semaphore,
    /// Row groups that were decoded, and their rows.
    decoded: [AtomicU64; 2],
}

impl Workers {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Closed`] if they cannot be started.
    pub fn new(threads: usize) -> Result<Arc<Self>> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("bowstring-cpu-{index}"))
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        Ok(Arc::new(Self { threads, pool, decodes: Semaphore::new(threads), decoded: Default::default() }))
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Counts one more decoded row group, of `rows` rows.
    pub(super) fn count(&self, rows: u64) {
        for (counter, more) in self.decoded.iter().zip([1, rows]) {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Row groups that these threads have decoded since the start, and their rows.
    pub fn decoded(&self) -> (u64, u64) {
        let [groups, rows] = &self.decoded;
        (groups.load(Ordering::Relaxed), rows.load(Ordering::Relaxed))
    }

    /// Runs `work` on a thread of the pool and waits for it without blocking. If the future is dropped, work that has
    /// begun continues; work that has not is discarded.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Closed`] if it panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.pool.spawn_fifo(move || {
            // Nobody waits any more if the future was dropped, before the work begins or after it.
            if sender.is_closed() {
                return;
            }
            let result = page::quiet(work).unwrap_or_else(|panic| Err(panicked(&*panic)));
            drop(sender.send(result));
        });
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// The means of a job, besides its sources.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) workers: Arc<Workers>,
    /// Allocator of batches.
    pub(super) allocator: Arc<dyn HostAllocator>,
    /// Bytes of everything in flight.
    pub(super) budget: usize,
    /// The row groups' part of the budget, if others read them.
    pub(super) groups: Option<Arc<Pool>>,
    /// Bytes of the budget for batches not yet delivered.
    pub(super) batches: usize,
    /// Bytes of returned buffers kept for later batches, beyond the budget.
    pub(super) keep: usize,
    /// Returned buffers kept in addition.
    pub(super) spare: Spare,
    /// The batch pool of an earlier job, if its kept buffers are to be reused.
    pub(super) pool: Option<Arc<Pool>>,
    /// Batches made ahead of the consumer.
    pub(super) prefetch: usize,
    pub(super) bad_rows: BadRows,
    /// See [`Job::lends`].
    pub(super) lends: bool,
}

/// The shared part of a running pipeline.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) sources: Arc<[Source]>,
    /// The part of the budget for row groups: fetched bytes and cells.
    pub(super) groups: Arc<Pool>,
    /// The part of the budget for batches not yet delivered.
    pub(super) batches: Arc<Pool>,
    pub(super) workers: Arc<Workers>,
    /// Row groups being fetched at once.
    pub(super) reads: Semaphore,
    pub(super) reads_at_once: usize,
    pub(super) counters: Arc<Counters>,
    pub(super) ledger: Arc<SharedLedger>,
    pub(super) bad_rows: BadRows,
    pub(super) prefetch: usize,
    /// Set if batches may keep the place of their rows in a decoded row group, since no row is in two batches, nobody else reads
    /// the row groups, and ordinary memory will do.
    pub(super) lends: bool,
    /// Bytes of one batch, as estimated when the loader was opened.
    pub(super) batch: usize,
    pub(super) stopped: AtomicBool,
}

impl Job {
    pub(super) fn new(sources: Arc<[Source]>, means: Means) -> Self {
        let Means { workers, allocator, budget, groups, batches, keep, spare, pool, prefetch, bad_rows, lends } = means;
        let pool_bytes = batches.saturating_add(keep);
        let pool = pool.filter(|pool| pool.budget() == pool_bytes);
        let local = sources.iter().all(|source| source.dataset.is_local());
        let reads_at_once = (workers.threads() + 1).max(if local { 0 } else { REMOTE_READS });
        Self {
            sources,
            // Row groups never leave this process: any memory does.
            groups: groups.unwrap_or_else(|| Pool::new(Arc::new(SystemAllocator), budget - batches)),
            batches: pool.unwrap_or_else(|| Pool::with_spare(spare, allocator, pool_bytes)),
            workers,
            reads: Semaphore::new(reads_at_once),
            reads_at_once,
            counters: Arc::new(Counters::new()),
            ledger: Arc::default(),
            bad_rows,
            prefetch,
            lends,
            // The budget was made of this many batches.
            batch: batches / super::batches_at_once(prefetch),
            stopped: AtomicBool::new(false),
        }
    }

    /// The same job over other sources: pools, counters and the ledger continue.
    pub(super) fn over(&self, sources: Arc<[Source]>) -> Self {
        Self {
            sources,
            groups: Arc::clone(&self.groups),
            batches: Arc::clone(&self.batches),
            workers: Arc::clone(&self.workers),
            reads: Semaphore::new(self.reads_at_once),
            counters: Arc::clone(&self.counters),
            ledger: Arc::clone(&self.ledger),
            stopped: AtomicBool::new(self.stopped.load(Ordering::Relaxed)),
            ..*self
        }
    }

    /// Runs `work` on the CPU pool and waits for it on the I/O runtime. A panic becomes an error; a stopped job runs nothing.
    pub(super) async fn on_cpu<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let job = Arc::clone(self);
        // `work` shares only counters and pools, which are consistent after every call.
        let work = move || if job.stopped.load(Ordering::Relaxed) { Err(closed()) } else { work(&job) };
        self.workers.run(work).await
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
    }
}

pub(super) fn closed() -> Error {
    Error::Closed { why: "the loader was closed".to_owned() }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = page::said(panic).unwrap_or("no message");
    Error::Closed { why: format!("a worker panicked ({text}); this is a bug in bowstring") }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_done() {
        let workers = Workers::new(1).unwrap();
        let (end, ends) = mpsc::channel::<()>();
        let mut first = Box::pin(workers.run(move || {
            let _ = ends.recv();
            Ok(())
        }));
        assert!(futures::poll!(&mut first).is_pending());
        let (kept, dropped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let work = |done: &Arc<AtomicBool>| {
            let done = Arc::clone(done);
            Box::pin(workers.run(move || {
                done.store(true, Ordering::Relaxed);
                Ok(())
            }))
        };
        let (mut second, mut third) = (work(&dropped), work(&kept));
        assert!(futures::poll!(&mut second).is_pending() && futures::poll!(&mut third).is_pending());
        drop(second);
        drop(end);
        first.await.unwrap();
        third.await.unwrap();
        assert!(kept.load(Ordering::Relaxed) && !dropped.load(Ordering::Relaxed));
    }
}
