//! The loader: opens, plans, runs, resumes. One epoch per iteration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::feed::Feed;
use super::job::{Job, Source};
use super::ledger::{Ledger, SharedLedger};
use super::options::{LoaderOptions, Settings};
use super::stats::{Counters, Stats};
use crate::codec::Columns;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::memory::{HostAllocator, Pool, SystemAllocator};
use crate::plan::{Plan, PlanSpec, Share, Shuffle, State};
use crate::schema::Schema;
use crate::tensor::Batch;

/// Row groups fetched at once from an object store: enough to hide its latency. From local files, one more than there are threads
/// to decode them.
const REMOTE_READS: usize = 16;

/// Threads of the I/O runtime. They only wait and hand over; decoding has its own pool.
const IO_THREADS: usize = 2;

/// What [`Loader::next_within`] found.
#[derive(Debug)]
pub enum Next {
    /// The next batch of the epoch.
    Batch(Batch),
    /// The epoch is over; the next call starts the next one.
    End,
    /// Nothing yet.
    Pending,
}

/// What a loader needs at least to run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Row groups that are live at once: fetched and decoded.
    pub row_groups: u64,
    /// Batches not yet delivered.
    pub batches: u64,
}

/// Batches of one rank, epoch after epoch.
///
/// A loader is at a position: an epoch and the number of steps already yielded of it. Reading starts with the first call of
/// [`next`](Self::next) and stops at once when the loader is dropped. The blocking calls must not be made from within an async
/// runtime.
///
/// ```
/// # fn main() -> bowstring::Result<()> {
/// use bowstring::pipeline::{Loader, LoaderOptions};
///
/// let mut options = LoaderOptions::new("fixtures/imagenet40.parquet", 8);
/// options.columns.columns = vec!["label".to_owned()];
/// let mut loader = Loader::open(options)?;
/// assert_eq!(loader.steps(), 5);
/// let mut rows = 0;
/// while let Some(batch) = loader.next()? {
///     rows += batch.tensor("label").map_or(0, |label| label.shape()[0]);
/// }
/// assert_eq!((rows, loader.epoch()), (40, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loader {
    // Declared first, dropped first: its tasks are aborted before the runtime goes.
    feed: Option<Feed>,
    job: Arc<Job>,
    runtime: Option<Runtime>,
    manifests: Vec<Arc<Manifest>>,
    spec: PlanSpec,
    limits: Limits,
    need: MemoryNeed,
    plan: Arc<Plan>,
    /// Steps of `plan`'s epoch already yielded.
    step: u64,
    /// A batch that was yielded and given back.
    returned: Option<Batch>,
    timeout: Duration,
    last_yield: Option<Instant>,
    closed: AtomicBool,
}

impl Loader {
    /// Opens the dataset, makes the plan and checks that it fits the budget. Reads footers, and the filter's columns if there
    /// is a filter, but no row group of the plan yet.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other, [`Error::Limit`] for a budget that can never hold a step, and
    /// whatever opening the dataset gives.
    pub fn open(options: LoaderOptions) -> Result<Self> {
        let settings = options.settings()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            .thread_name("bowstring-io")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        match Self::over(settings, &options, &runtime) {
            Ok(mut loader) => {
                loader.runtime = Some(runtime);
                Ok(loader)
            }
            Err(error) => {
                // Dropping a runtime waits for reads in system calls, which may hang; the error must not.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    fn sources(settings: &Settings, options: &LoaderOptions, runtime: &Runtime) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        for urls in &settings.datasets {
            let dataset = runtime.block_on(Dataset::open(urls, settings.open.clone()))?;
            let shuffled = settings.spec.shuffle != Shuffle::None;
            let columns = Arc::new(Columns::new(dataset.schema(), &options.columns)?.shuffled(shuffled));
            if let Some(first) = sources.first().map(|first: &Source| &first.columns) {
                same_fields(first.fields(), columns.fields(), urls)?;
            }
            let projection = dataset.project(columns.paths())?;
            let rows = sources.iter().map(|source: &Source| source.dataset.stored_rows());
            let row_base = rows.fold(0, u64::saturating_add);
            sources.push(Source { dataset, projection, columns, row_base });
        }
        Ok(sources)
    }

    /// A loader that still lacks its runtime.
    fn over(settings: Settings, options: &LoaderOptions, runtime: &Runtime) -> Result<Self> {
        let sources = Self::sources(&settings, options, runtime)?;
        let manifests: Vec<_> = sources.iter().map(|source| Arc::clone(source.dataset.manifest())).collect();
        let spec = settings.spec.resolve(&manifests)?;
        let plan = Arc::new(Plan::new(&manifests, spec.clone(), 0)?);
        plan.check_share(settings.share)?;
        let cpu = rayon::ThreadPoolBuilder::new()
            .num_threads(settings.threads)
            .thread_name(|index| format!("bowstring-cpu-{index}"))
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        let limits = Limits { share: settings.share, budget: settings.budget, prefetch: settings.prefetch };
        let need = needed(&sources, &plan, limits)?;
        // At most the budget, which is a usize.
        let batches = need.batches as usize;
        let allocator: Arc<dyn HostAllocator> = Arc::new(SystemAllocator);
        let local = sources.iter().all(|source| source.dataset.is_local());
        let reads_at_once = (settings.threads + 1).max(if local { 0 } else { REMOTE_READS });
        let job = Job {
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
            // `needed` made it of so many batches.
            batch: batches / batches_at_once(settings.prefetch),
            stopped: AtomicBool::new(false),
        };
        Ok(Self {
            feed: None,
            job: Arc::new(job),
            runtime: None,
            returned: None,
            manifests,
            spec,
            limits,
            need,
            plan,
            step: 0,
            timeout: settings.timeout,
            last_yield: None,
            closed: AtomicBool::new(false),
        })
    }

    /// Steps of one epoch: the same on every rank, exact.
    pub fn steps(&self) -> u64 {
        self.plan.steps()
    }

    /// Rows of one epoch over all ranks.
    pub fn rows(&self) -> u64 {
        self.plan.rows()
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.plan.epoch()
    }

    /// Steps of the current epoch already yielded.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// This rank and the world size.
    pub fn share(&self) -> Share {
        self.limits.share
    }

    /// The plan of the current epoch.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// What comes out: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        self.job.sources[0].columns.fields()
    }

    /// The datasets, in the order of the options.
    pub fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.job.sources.iter().map(|source| &source.dataset)
    }

    /// The least memory that this rank's first epoch runs in.
    pub fn memory_need(&self) -> MemoryNeed {
        self.need
    }

    /// Bytes that one row group's selected columns take in the store; 0 for a row group that does not exist.
    pub fn stored_bytes(&self, source: usize, group: usize) -> u64 {
        let source = self.job.sources.get(source).filter(|source| group < source.dataset.manifest().groups.len());
        source.map_or(0, |source| source.dataset.cost(group, &source.projection).fetched)
    }

    /// The next batch, or `None` at the end of the epoch; the call after that starts the next epoch.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Timeout`] with the culprit if nothing comes within `timeout`;
    /// [`Error::Closed`] after [`close`](Self::close).
    #[expect(
        clippy::should_implement_trait,
        reason = "the order of Option and Result suits `?`; iter() has the other one"
    )]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        let started = Instant::now();
        match self.next_within(self.timeout)? {
            Next::Batch(batch) => Ok(Some(batch)),
            Next::End => Ok(None),
            Next::Pending => Err(self.timed_out(started.elapsed())),
        }
    }

    /// As [`next`](Self::next), but gives up with [`Next::Pending`] after `wait`. Nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`next`](Self::next), except for the time-out.
    pub fn next_within(&mut self, wait: Duration) -> Result<Next> {
        let Some(runtime) = self.runtime.as_ref().filter(|_| !self.closed.load(Ordering::Relaxed)) else {
            return Err(super::job::closed());
        };
        if let Some(batch) = self.returned.take() {
            self.step = batch.step + 1;
            return Ok(Next::Batch(batch));
        }
        let started = Instant::now();
        if let Some(last) = self.last_yield.take() {
            self.job.counters.consumer.worked(started - last);
        }
        let feed = match &mut self.feed {
            Some(feed) => feed,
            None => {
                let _inside = runtime.enter();
                self.feed.insert(Feed::start(
                    Arc::clone(&self.job),
                    Arc::clone(&self.plan),
                    self.limits.share,
                    self.step,
                ))
            }
        };
        let next = runtime.block_on(async { tokio::time::timeout(wait, feed.next()).await });
        self.job.counters.consumer.waited(started.elapsed());
        match next {
            Err(_) => Ok(Next::Pending),
            Ok(Some(Ok(batch))) => {
                batch.deliver();
                self.step = batch.step + 1;
                self.job.counters.rows.fetch_add(self.plan.real_rows(batch.step, self.limits.share), Ordering::Relaxed);
                self.job.counters.consumer.done(batch.tensor_bytes() as u64, Duration::ZERO);
                self.job.counters.first_batch_delivered();
                self.last_yield = Some(Instant::now());
                Ok(Next::Batch(batch))
            }
            Ok(Some(Err(error))) => {
                self.close();
                Err(error)
            }
            Ok(None) => {
                let plan = self.plan_of(self.plan.epoch().wrapping_add(1))?;
                self.go(plan, 0);
                Ok(Next::End)
            }
        }
    }

    /// Takes back the batch that [`next`](Self::next) gave last, because it reached nobody: it is the next one again. Any other
    /// batch is dropped.
    pub fn put_back(&mut self, batch: Batch) {
        if batch.epoch == self.plan.epoch() && batch.step + 1 == self.step {
            self.step = batch.step;
            self.returned = Some(batch);
        }
    }

    /// The error for a wait of `waited` that brought nothing.
    pub fn timed_out(&self, waited: Duration) -> Error {
        let (stage, culprit) = self.feed.as_ref().map_or(("read", "the first batch".to_owned()), Feed::culprit);
        let Share { rank, world } = self.limits.share;
        let culprit = format!("{culprit}; rank {rank} of {world}, epoch {}, step {}", self.plan.epoch(), self.step);
        Error::Timeout { stage, culprit, waited }
    }

    /// The longest wait for a batch, as set by the options.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The rest of the current epoch as an iterator.
    pub fn iter(&mut self) -> Epoch<'_> {
        Epoch { loader: self, ended: false }
    }

    /// Goes to the start of `epoch`; stays where it is if that is the current one, so that a resumed loader keeps its place.
    ///
    /// # Errors
    /// Whatever planning the epoch gives.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        if epoch != self.plan.epoch() {
            let plan = self.plan_of(epoch)?;
            self.go(plan, 0);
        }
        Ok(())
    }

    /// The position after the last batch yielded: the same on every rank, and independent of how many there are.
    pub fn state(&self) -> State {
        State::new(&self.plan, self.step)
    }

    /// Goes to a position that [`state`](Self::state) gave, here or on any other rank of any world size.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the state belongs to another dataset or plan.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        state.check(&self.plan.fingerprint(), &self.spec)?;
        let plan = self.plan_of(state.epoch)?;
        let step = state.step_in(&plan)?;
        self.go(plan, step);
        Ok(())
    }

    fn plan_of(&self, epoch: u64) -> Result<Arc<Plan>> {
        if epoch == self.plan.epoch() {
            return Ok(Arc::clone(&self.plan));
        }
        let plan = Plan::new(&self.manifests, self.spec.clone(), epoch)?;
        // Another epoch puts other row groups side by side: it is refused here, not in the middle of it.
        needed(&self.job.sources, &plan, self.limits)?;
        Ok(Arc::new(plan))
    }

    fn go(&mut self, plan: Arc<Plan>, step: u64) {
        self.feed = None;
        self.returned = None;
        self.last_yield = None;
        self.plan = plan;
        self.step = step;
    }

    /// Counters since the loader was opened.
    pub fn stats(&self) -> Stats {
        self.job.counters.snapshot(self.job.memory())
    }

    /// The bad rows met so far.
    pub fn ledger(&self) -> Ledger {
        self.job.ledger.snapshot()
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub fn close(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        self.feed = None;
        self.returned = None;
        self.job.stop();
        if let Some(runtime) = self.runtime.take() {
            // Reads that are inside a system call end by themselves; nobody waits for them.
            runtime.shutdown_background();
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.close();
    }
}

/// The rest of one epoch of a [`Loader`].
#[derive(Debug)]
pub struct Epoch<'a> {
    loader: &'a mut Loader,
    ended: bool,
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.loader.next().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// What a plan has to fit into.
#[derive(Debug, Clone, Copy)]
struct Limits {
    share: Share,
    budget: usize,
    prefetch: usize,
}

/// Batches in memory at once: one being taken, `prefetch` finished, one being made.
fn batches_at_once(prefetch: usize) -> usize {
    prefetch.saturating_add(2)
}

/// What a step needs. Refuses a budget that cannot hold it; what is left of a larger one is for reading ahead.
fn needed(sources: &[Source], plan: &Plan, limits: Limits) -> Result<MemoryNeed> {
    let rows = usize::try_from(plan.batch_rows(limits.share)).unwrap_or(usize::MAX);
    let batches = super::batch_bytes(sources, rows).saturating_mul(batches_at_once(limits.prefetch));
    // What the windows of a step hold, and the largest row group on its way in beside them.
    let live = plan.live_bytes(limits.share, &|source, group| sources[source as usize].cost(group as usize).held);
    let largest = sources.iter().flat_map(|source| {
        let groups = source.dataset.manifest().groups.iter().enumerate();
        groups.filter(|(_, group)| group.selected > 0).map(|(group, _)| source.cost(group).total())
    });
    let row_groups = live.saturating_add(largest.max().unwrap_or(0));
    let asked = row_groups.saturating_add(batches as u64);
    if asked > limits.budget as u64 {
        return Err(Error::Limit {
            what: format!(
                "one step: {} MB of row groups over {} lanes and {} MB of batches,",
                row_groups >> 20,
                plan.lanes(),
                batches >> 20
            ),
            asked,
            limit: limits.budget as u64,
            option: "memory_budget (or lower lanes, window_rows, batch_size or prefetch)",
        });
    }
    Ok(MemoryNeed { row_groups, batches: batches as u64 })
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
