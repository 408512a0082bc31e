//! A running pipeline: its threads, its shared state, and the current feed.
//!
//! The owner of an engine sets the order and the position; the engine waits, counts, names culprits, and stops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::runtime::Runtime;

use super::cause::Cause;
use super::consumer_time::{ConsumerTime, only};
use super::feed::{Feed, Task};
use super::foresight::cache_stats;
use super::job::{Job, Means, Source, Workers, closed};
use super::ledger::Ledger;
use super::options::{LoaderOptions, Settings};
use super::stats::Stats;
use super::trail::Trail;
use crate::error::{Error, Result};
use crate::memory::{HostAllocator, Spare, SystemAllocator};
use crate::plan::{Order, Share};
use crate::schema::Schema;
use crate::tensor::{Batch, Next};

/// Threads of the I/O runtime. They only wait and hand over data; decoding has its own pool.
const IO_THREADS: usize = 2;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Engine {
    // Declared first, dropped first: its tasks are aborted before the runtime goes.
    feed: Option<Feed>,
    pub(super) job: Arc<Job>,
    runtime: Option<Runtime>,
    pub(super) timeout: Duration,
    time: ConsumerTime,
}

/// The parts of an engine, once the datasets are open.
pub(super) struct Parts {
    pub(super) sources: Arc<[Source]>,
    /// Bytes of the budget for batches not yet delivered.
    pub(super) batches: usize,
    /// Memory in which batches are built.
    pub(super) memory: BatchMemory,
    /// See [`Job::lends`].
    pub(super) lends: bool,
}

/// Memory in which batches are built, and how much of it is kept.
#[derive(Debug, Clone)]
pub struct BatchMemory {
    /// Allocator of their slabs.
    pub allocator: Arc<dyn HostAllocator>,
    /// Number of delivered batches that come back soon: their memory is kept for later ones. For allocators whose
    /// memory is expensive.
    pub returning: usize,
}

impl BatchMemory {
    /// Returns true if any memory of the process would do as well.
    pub(super) fn is_ordinary(&self) -> bool {
        self.returning == 0 && !self.allocator.is_pinned()
    }

    /// Memory that a pool keeps for these batches, with `at_once` undelivered ones.
    pub(crate) fn spare(&self, at_once: usize) -> Spare {
        // Counted, not weighed: the size of a batch of lists is only an estimate until it is made.
        if self.returning == 0 { Spare::Little } else { Spare::Buffers(self.returning.saturating_add(at_once)) }
    }
}

impl Default for BatchMemory {
    /// Pageable memory, which is the consumer's once it is delivered.
    fn default() -> Self {
        Self { allocator: Arc::new(SystemAllocator), returning: 0 }
    }
}

fn job(options: &LoaderOptions, settings: &Settings, parts: Parts) -> Result<Job> {
    let at_once = super::batches_at_once(settings.prefetch);
    let means = Means {
        workers: Workers::new(settings.threads)?,
        spare: parts.memory.spare(at_once),
        allocator: parts.memory.allocator,
        budget: settings.budget,
        groups: None,
        batches: parts.batches,
        keep: 0,
        pool: None,
        prefetch: settings.prefetch,
        bad_rows: options.bad_rows,
        lends: parts.lends,
    };
    Ok(Job::new(parts.sources, means))
}

impl Engine {
    /// Starts the I/O threads, lets `make` open the datasets, and builds the rest. `make` may return more than
    /// [`Parts`].
    pub(super) fn open<T>(
        options: &LoaderOptions,
        settings: &Settings,
        make: impl FnOnce(&Runtime) -> Result<(Parts, T)>,
    ) -> Result<(Self, T)> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            .thread_name("bowstring-io")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        match make(&runtime).and_then(|(parts, more)| Ok((job(options, settings, parts)?, more))) {
            Ok((job, more)) => {
                let (job, timeout) = (Arc::new(job), settings.timeout);
                Ok((Self { feed: None, job, runtime: Some(runtime), timeout, time: ConsumerTime::default() }, more))
            }
            Err(error) => {
                // Dropping a runtime waits for reads in system calls, which may hang; the error must not.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// The next batch within `wait`; nothing is lost by giving up. Without a feed, starts one that follows `order` from
    /// step `from`.
    pub(super) fn next_within(
        &mut self,
        wait: Duration,
        order: impl FnOnce() -> Arc<dyn Order>,
        share: Share,
        from: u64,
    ) -> Result<Next<Batch>> {
        let Some(runtime) = &self.runtime else { return Err(closed()) };
        self.time.asks(Instant::now());
        let feed = match &mut self.feed {
            Some(feed) => feed,
            None => {
                let _inside = runtime.enter();
                self.feed.insert(Feed::start(Arc::clone(&self.job), order(), share, from))
            }
        };
        let next = runtime.block_on(async { tokio::time::timeout(wait, feed.next()).await });
        match next {
            Err(_) => {
                self.time.gives_up(Instant::now());
                Ok(Next::Pending)
            }
            Ok(Some(Ok(batch))) => {
                batch.deliver();
                let (counters, trail) = (&self.job.counters, feed.trail());
                self.time.takes(Instant::now(), |from, to| {
                    trail.map_or_else(|| only(Cause::Queue, from, to), |trail| trail.waits(from, to))
                });
                counters.consumer.done(batch.bytes() as u64, Duration::ZERO);
                counters.first_batch_delivered();
                Ok(Next::Item(batch))
            }
            Ok(Some(Err(error))) => {
                self.close();
                Err(error)
            }
            Ok(None) => {
                self.time.leaves();
                self.job.ledger.end_pass();
                Ok(Next::End)
            }
        }
    }

    /// Waits for `work` on its own I/O threads.
    ///
    /// # Errors
    /// [`Error::Closed`] after [`close`](Self::close), and those of `work`.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.as_ref().ok_or_else(closed)?.block_on(work)
    }

    /// Starts `work` on its own I/O threads.
    ///
    /// # Errors
    /// [`Error::Closed`] after [`close`](Self::close).
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<Task<T>> {
        Ok(Task(self.runtime.as_ref().ok_or_else(closed)?.spawn(work)))
    }

    /// Stage and culprit of a wait without a result.
    pub(super) fn culprit(&self) -> (&'static str, String) {
        self.feed.as_ref().map_or(("read", "the first batch".to_owned()), Feed::culprit)
    }

    /// Stops the feed. The next one takes rows from `sources`, which may be the same data in other row groups.
    pub(super) fn follow(&mut self, sources: &Arc<[Source]>) {
        self.reset();
        if !Arc::ptr_eq(&self.job.sources, sources) {
            self.job = Arc::new(self.job.over(Arc::clone(sources)));
        }
    }

    /// Stops the feed. The next wait starts another.
    pub(super) fn reset(&mut self) {
        self.feed = None;
        self.time.leaves();
    }

    /// Returns true if it was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.runtime.is_none()
    }

    /// The schema of the batches: one field per column, before suffixes.
    pub(super) fn schema(&self) -> &Schema {
        self.job.sources[0].maker.fields()
    }

    pub(super) fn stats(&self) -> Stats {
        let doing = self.feed.as_ref().and_then(|feed| feed.probe().cause()).unwrap_or(Cause::Queue);
        self.job.counters.snapshot(self.job.memory(), cache_stats(&self.job.sources), self.time.spent(doing))
    }

    /// The way of the last batch.
    pub(super) fn trail(&self) -> Option<Trail> {
        self.feed.as_ref().and_then(Feed::trail)
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.job.ledger.snapshot()
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub(super) fn close(&mut self) {
        self.reset();
        self.job.stop();
        if let Some(runtime) = self.runtime.take() {
            // Reads inside a system call end by themselves, and nobody waits for them.
            runtime.shutdown_background();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}
