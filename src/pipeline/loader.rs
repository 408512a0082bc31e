//! The loader: opens, plans, runs, resumes. One epoch per iteration.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::engine::{BatchMemory, Engine, Parts};
use super::job::closed;
use super::ledger::Ledger;
use super::options::LoaderOptions;
use super::prepared::{MemoryNeed, Prepared};
use super::returned::{Again, At, Returned};
use super::stats::Stats;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::plan::{Plan, PlanSpec, Share, State};
use crate::schema::Schema;
use crate::tensor::Batch;

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
    engine: Engine,
    prepared: Prepared,
    limits: Limits,
    need: MemoryNeed,
    plan: Arc<Plan>,
    /// Steps of `plan`'s epoch already yielded.
    step: u64,
    /// Batches that were yielded and given back.
    returned: Returned<Batch>,
}

impl Loader {
    /// Opens the dataset, makes the plan and checks that it fits the budget. Reads footers, and the filter's columns if there
    /// is a filter, but no row group of the plan yet.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other, [`Error::Limit`] for a budget that can never hold a step, and
    /// whatever opening the dataset gives.
    pub fn open(options: LoaderOptions) -> Result<Self> {
        Self::open_in(options, BatchMemory::default())
    }

    /// As [`open`](Self::open), with batches built in `memory`.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::Device`] if there is no such memory.
    pub fn open_in(options: LoaderOptions, memory: BatchMemory) -> Result<Self> {
        let settings = options.settings()?;
        let limits = Limits { share: settings.share, budget: settings.budget, prefetch: settings.prefetch };
        let (engine, (prepared, plan, need)) = Engine::open(&options, &settings, |runtime| {
            let prepared = runtime.block_on(Prepared::with(&options, &settings))?;
            let plan = prepared.plan(0)?;
            plan.check_share(settings.share)?;
            let need = limits.fit(&prepared, &plan).map_err(|error| limits.remedy(error, &prepared, &settings.spec))?;
            // At most the budget, which is a usize.
            let parts = Parts { sources: Arc::clone(&prepared.sources), batches: need.batches as usize, memory };
            Ok((parts, (prepared, Arc::new(plan), need)))
        })?;
        Ok(Self { engine, prepared, limits, need, plan, step: 0, returned: Returned::default() })
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
        self.returned.position(self.next_new()).0
    }

    /// Steps of the current epoch already yielded, up to the first that was given back.
    pub fn step(&self) -> u64 {
        self.returned.position(self.next_new()).1
    }

    /// The next batch that is made.
    fn next_new(&self) -> At {
        (self.plan.epoch(), self.step)
    }

    /// This rank and the world size.
    pub fn share(&self) -> Share {
        self.limits.share
    }

    /// The plan of the current epoch, that of the next batch that is made.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// What comes out: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        self.prepared.schema()
    }

    /// The datasets, in the order of the options.
    pub fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.prepared.datasets()
    }

    /// The least memory that this rank's first epoch runs in.
    pub fn memory_need(&self) -> MemoryNeed {
        self.need
    }

    /// The least memory that a share of another plan over the same data runs in.
    pub(super) fn need_of(&self, plan: &Plan, share: Share) -> MemoryNeed {
        self.prepared.need(plan, share, self.limits.prefetch)
    }

    /// Bytes that one row group's selected columns take in the store; 0 for a row group that does not exist.
    pub fn stored_bytes(&self, source: usize, group: usize) -> u64 {
        let source = self.prepared.sources.get(source).filter(|source| group < source.dataset.manifest().groups.len());
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
        match self.next_within(self.engine.timeout)? {
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
        if self.engine.is_closed() {
            return Err(closed());
        }
        match self.returned.take(self.next_new()) {
            Some(Again::Item(batch)) => return Ok(Next::Batch(batch)),
            Some(Again::End) => return Ok(Next::End),
            None => {}
        }
        let (plan, share) = (&self.plan, self.limits.share);
        let next = self.engine.next_within(wait, || Arc::clone(plan) as _, share, self.step)?;
        match &next {
            Next::Batch(batch) => {
                self.step = batch.step + 1;
                let rows = self.plan.real_rows(batch.step, share);
                self.engine.job.counters.rows.fetch_add(rows, Ordering::Relaxed);
            }
            Next::End => {
                let plan = self.plan_of(self.plan.epoch().wrapping_add(1))?;
                self.engine.reset();
                (self.plan, self.step) = (plan, 0);
            }
            Next::Pending => {}
        }
        Ok(next)
    }

    /// Takes back a batch that [`next`](Self::next) gave, because it reached nobody: it comes again before any new one, and the
    /// position is before it. Of several the first of the epoch comes first. A batch from before the loader was sent to another
    /// position is dropped.
    pub fn put_back(&mut self, batch: Batch) {
        let next = self.next_new();
        self.returned.put((batch.epoch, batch.step), batch, next);
    }

    /// The error for a wait of `waited` that brought nothing.
    pub fn timed_out(&self, waited: Duration) -> Error {
        let (stage, culprit) = self.engine.culprit();
        let Share { rank, world } = self.limits.share;
        let culprit = format!("{culprit}; rank {rank} of {world}, epoch {}, step {}", self.plan.epoch(), self.step);
        Error::Timeout { stage, culprit, waited }
    }

    /// The longest wait for a batch, as set by the options.
    pub fn timeout(&self) -> Duration {
        self.engine.timeout
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
        if epoch != self.epoch() {
            let plan = self.plan_of(epoch)?;
            self.go(plan, 0);
        }
        Ok(())
    }

    /// The position after the last batch yielded: the same on every rank, and independent of how many there are.
    pub fn state(&self) -> State {
        let (epoch, step) = self.returned.position(self.next_new());
        State::at(self.plan.fingerprint(), self.plan.spec().clone(), epoch, step)
    }

    /// Goes to a position that [`state`](Self::state) gave, here or on any other rank of any world size. Unless the options name the
    /// version of the order, the state's is followed from here on, in later epochs too.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the state belongs to another dataset or plan.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        let spec = self.prepared.spec_in(state.spec.order_version)?;
        state.check(&self.plan.fingerprint(), &spec)?;
        let plan = self.plan_by(&spec, state.epoch)?;
        let step = state.step_in(&plan)?;
        self.go(plan, step);
        Ok(())
    }

    fn plan_of(&self, epoch: u64) -> Result<Arc<Plan>> {
        self.plan_by(self.plan.spec(), epoch)
    }

    fn plan_by(&self, spec: &PlanSpec, epoch: u64) -> Result<Arc<Plan>> {
        if epoch == self.plan.epoch() && spec == self.plan.spec() {
            return Ok(Arc::clone(&self.plan));
        }
        let plan = self.prepared.plan_by(spec, epoch)?;
        // Another epoch puts other row groups side by side: it is refused here, not in the middle of it.
        self.limits.fit(&self.prepared, &plan)?;
        Ok(Arc::new(plan))
    }

    fn go(&mut self, plan: Arc<Plan>, step: u64) {
        self.engine.reset();
        self.returned.restart((plan.epoch(), step));
        self.plan = plan;
        self.step = step;
    }

    /// Counters since the loader was opened.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The bad rows met so far.
    pub fn ledger(&self) -> Ledger {
        self.engine.ledger()
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub fn close(&mut self) {
        self.returned.close();
        self.engine.close();
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

impl Limits {
    fn fit(self, prepared: &Prepared, plan: &Plan) -> Result<MemoryNeed> {
        prepared.fit(plan, self.share, self.prefetch, self.budget)
    }

    /// Says with how many lanes the plan of `asked` would fit, where it leaves that open: by default lanes follow the global batch, and
    /// a rank that has all of them may lack the memory of a gang.
    fn remedy(self, error: Error, prepared: &Prepared, asked: &PlanSpec) -> Error {
        let Error::Limit { place, what, asked: need, limit, option } = error else { return error };
        let manifests: Vec<_> = prepared.datasets().map(|dataset| Arc::clone(dataset.manifest())).collect();
        let fits = |lanes: &u32| {
            let spec = PlanSpec { lanes: Some(*lanes), ..asked.clone() }.resolve(&manifests);
            let plan = spec.and_then(|spec| Plan::new(&manifests, spec, 0));
            plan.is_ok_and(|plan| prepared.need(&plan, self.share, self.prefetch).total() <= self.budget as u64)
        };
        let open = prepared.spec().lanes.filter(|_| asked.lanes.is_none());
        let fewer = open.into_iter().flat_map(|lanes| (1..u32::BITS).map(move |half| lanes >> half));
        let what = match fewer.take_while(|lanes| *lanes > 0).find(fits) {
            Some(lanes) => format!("{} (it fits with lanes={lanes}),", what.trim_end_matches(',')),
            None => what,
        };
        Error::Limit { place, what, asked: need, limit, option }
    }
}
