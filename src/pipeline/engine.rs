//! A running pipeline: its threads, what it shares, and the feed of the moment.
//!
//! Whoever owns an engine says what order to follow and from where; the engine waits, counts, names culprits, and stops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::feed::Feed;
use super::job::{Job, Source, closed};
use super::ledger::{Ledger, SharedLedger};
use super::loader::Next;
use super::ngram::{Frames, Maker};
use super::options::{LoaderOptions, Settings};
use super::stats::{Counters, Stats};
use crate::codec::Columns;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::memory::{HostAllocator, Pool, SystemAllocator};
use crate::plan::{Order, Share, Shuffle};
use crate::schema::Schema;

/// Row groups fetched at once from an object store: enough to hide its latency. From local files, one more than there are threads
/// to decode them.
const REMOTE_READS: usize = 16;

/// Threads of the I/O runtime. They only wait and hand over; decoding has its own pool.
const IO_THREADS: usize = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Engine {
    // Declared first, dropped first: its tasks are aborted before the runtime goes.
    feed: Option<Feed>,
    pub(super) job: Arc<Job>,
    runtime: Option<Runtime>,
    pub(super) timeout: Duration,
    last_yield: Option<Instant>,
}

/// What an engine is built from, once the datasets are open.
pub(super) struct Parts {
    pub(super) sources: Vec<Source>,
    /// Bytes of the budget that are for batches not yet delivered.
    pub(super) batches: usize,
}

impl Engine {
    /// Starts the I/O threads, lets `make` open what there is, and makes the rest. `make` may give more than [`Parts`].
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
                Ok((Self { feed: None, job, runtime: Some(runtime), timeout, last_yield: None }, more))
            }
            Err(error) => {
                // Dropping a runtime waits for reads in system calls, which may hang; the error must not.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// The next batch within `wait`; nothing is lost by giving up. Without a feed, one that follows `order` from step `from` is
    /// started.
    pub(super) fn next_within(
        &mut self,
        wait: Duration,
        order: impl FnOnce() -> Arc<dyn Order>,
        share: Share,
        from: u64,
    ) -> Result<Next> {
        let Some(runtime) = &self.runtime else { return Err(closed()) };
        let started = Instant::now();
        let counters = &self.job.counters;
        if let Some(last) = self.last_yield.take() {
            counters.consumer.worked(started - last);
        }
        let feed = match &mut self.feed {
            Some(feed) => feed,
            None => {
                let _inside = runtime.enter();
                self.feed.insert(Feed::start(Arc::clone(&self.job), order(), share, from))
            }
        };
        let next = runtime.block_on(async { tokio::time::timeout(wait, feed.next()).await });
        counters.consumer.waited(started.elapsed());
        match next {
            Err(_) => Ok(Next::Pending),
            Ok(Some(Ok(batch))) => {
                batch.deliver();
                counters.consumer.done(batch.tensor_bytes() as u64, Duration::ZERO);
                counters.first_batch_delivered();
                self.last_yield = Some(Instant::now());
                Ok(Next::Batch(batch))
            }
            Ok(Some(Err(error))) => {
                self.close();
                Err(error)
            }
            Ok(None) => Ok(Next::End),
        }
    }

    /// Stage and culprit of a wait that brought nothing.
    pub(super) fn culprit(&self) -> (&'static str, String) {
        self.feed.as_ref().map_or(("read", "the first batch".to_owned()), Feed::culprit)
    }

    /// Stops the feed. The next wait starts another.
    pub(super) fn reset(&mut self) {
        self.feed = None;
        self.last_yield = None;
    }

    /// Whether it was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.runtime.is_none()
    }

    /// What comes out: one field per column, before suffixes.
    pub(super) fn schema(&self) -> &Schema {
        self.job.sources[0].maker.fields()
    }

    pub(super) fn stats(&self) -> Stats {
        self.job.counters.snapshot(self.job.memory())
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.job.ledger.snapshot()
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub(super) fn close(&mut self) {
        self.feed = None;
        self.job.stop();
        if let Some(runtime) = self.runtime.take() {
            // Reads that are inside a system call end by themselves; nobody waits for them.
            runtime.shutdown_background();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens the datasets. All must give the same columns.
pub(super) fn sources(settings: &Settings, options: &LoaderOptions, runtime: &Runtime) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for urls in &settings.datasets {
        let dataset = runtime.block_on(Dataset::open(urls, settings.open.clone()))?;
        let shuffled = settings.spec.shuffle != Shuffle::None;
        let mut asked = options.columns.clone();
        if let Some(ngram) = &options.ngram {
            if !asked.columns.is_empty() {
                return Err(Error::config(
                    "columns",
                    "the fields of ngram say which columns are delivered; leave it out",
                ));
            }
            // Packs are asked for by their own names, like columns.
            asked.columns = ngram.columns();
        }
        let columns = Arc::new(Columns::new(dataset.schema(), &asked)?.shuffled(shuffled));
        let maker = match &options.ngram {
            Some(ngram) => Maker::Frames(Arc::new(Frames::new(ngram, &columns, options.bad_rows)?)),
            None => Maker::Rows(Arc::clone(&columns)),
        };
        if let Some(first) = sources.first().map(|first: &Source| &first.maker) {
            same_fields(first.fields(), maker.fields(), urls)?;
        }
        let projection = dataset.project(columns.paths())?;
        let rows = sources.iter().map(|source: &Source| source.dataset.stored_rows());
        let row_base = rows.fold(0, u64::saturating_add);
        sources.push(Source { dataset, projection, columns, maker, row_base });
    }
    Ok(sources)
}

fn job(options: &LoaderOptions, settings: &Settings, parts: Parts) -> Result<Job> {
    let Parts { sources, batches } = parts;
    let cpu = rayon::ThreadPoolBuilder::new()
        .num_threads(settings.threads)
        .thread_name(|index| format!("bowstring-cpu-{index}"))
        .build()
        .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
    let allocator: Arc<dyn HostAllocator> = Arc::new(SystemAllocator);
    let local = sources.iter().all(|source| source.dataset.is_local());
    let reads_at_once = (settings.threads + 1).max(if local { 0 } else { REMOTE_READS });
    Ok(Job {
        sources,
        groups: Pool::new(Arc::clone(&allocator), settings.budget - batches),
        batches: Pool::new(allocator, batches),
        cpu,
        reads: Semaphore::new(reads_at_once),
        reads_at_once,
        decodes: Semaphore::new(settings.threads),
        counters: Counters::new(),
        ledger: SharedLedger::default(),
        bad_rows: options.bad_rows,
        prefetch: settings.prefetch,
        // It was made of so many batches.
        batch: batches / batches_at_once(settings.prefetch),
        stopped: std::sync::atomic::AtomicBool::new(false),
    })
}

/// Batches in memory at once: one being taken, `prefetch` finished, one being made.
pub(super) fn batches_at_once(prefetch: usize) -> usize {
    prefetch.saturating_add(2)
}

/// The largest row group on its way in.
pub(super) fn largest_group(sources: &[Source]) -> u64 {
    let largest = sources.iter().flat_map(|source| {
        let groups = source.dataset.manifest().groups.iter().enumerate();
        groups.filter(|(_, group)| group.selected > 0).map(|(group, _)| source.cost(group).total())
    });
    largest.max().unwrap_or(0)
}

fn same_fields(first: &Schema, other: &Schema, urls: &[String]) -> Result<()> {
    if first == other {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: format!("columns of the mixture's datasets, at {}", urls.join(", ")),
        expected: first.to_string(),
        found: other.to_string(),
        hint: "select and cast columns so that all datasets give the same".to_owned(),
    })
}
