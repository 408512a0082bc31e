//! Batches from files that this process reads: opens, plans, runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::engine::{BatchMemory, Engine, Parts};
use super::feed::Task;
use super::foresight;
use super::foretold::WideInteger;
use super::job::{Source, closed};
use super::ledger::Ledger;
use super::memory_need::{MemoryNeed, within_budget};
use super::options::LoaderOptions;
use super::prepared::PreparedPlan;
use super::source::{BatchSource, PlanInfo};
use super::stats::Stats;
use super::trail::Trail;
use crate::dataset::Dataset;
use crate::device::AnyBatch;
use crate::error::{Error, Place, Result};
use crate::manifest::Manifest;
use crate::memory::Pool;
use crate::plan::{OrderVersion, Plan, PlanSpec, RowRef, Share, Shuffle, State};
use crate::schema::Schema;
use crate::tensor::Next;
use crate::trace::Root;

/// See the module documentation. Reading starts with the first call of [`next`](BatchSource::next) and stops at once
/// when the source is dropped. The blocking calls must not be made from within an async runtime.
///
/// Besides the interface of every source, it exposes the plan, the datasets and their memory.
#[derive(Debug)]
pub struct LocalSource {
    engine: Engine,
    /// A search for integers beyond 32 bits, once requested.
    look: Option<Look>,
    prepared: PreparedPlan,
    limits: Limits,
    need: MemoryNeed,
    /// The plan of the epoch being read.
    plan: Arc<Plan>,
    info: PlanInfo,
    /// Steps of `plan`'s epoch already yielded.
    step: u64,
    /// The task that tells the caches below about the plan, and fetches ahead into them; `None` until it is started.
    foreseen: Option<Task<()>>,
    root: Option<Root>,
}

/// The longest wait of a first batch until caches know the plan.
const TELLING: Duration = Duration::from_millis(200);

/// A search for integers beyond 32 bits.
#[derive(Debug)]
enum Look {
    UnderWay(Task<Result<Vec<WideInteger>>>),
    Over(Result<Vec<WideInteger>>),
}

impl LocalSource {
    /// Opens the dataset, makes the plan and checks that it fits the budget, for inspection. Reads footers, and the
    /// filter's columns if there is a filter, but no row group of the plan yet.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other, [`Error::Limit`] for a budget that can never hold a
    /// step, and any error of opening the dataset.
    pub fn open(options: LoaderOptions) -> Result<Self> {
        Self::opened(&options, BatchMemory::default())
    }

    /// As [`open`](Self::open), for taking batches, which are built in `memory`. If footers report nulls that would be
    /// errors, one is searched for.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Nulls`] for all columns whose rows have nulls that no option covers, as far as
    /// footers tell; and [`Error::Device`] if there is no such memory.
    pub fn open_in(options: LoaderOptions, memory: BatchMemory) -> Result<Self> {
        let began = Instant::now();
        let mut source = Self::opened(&options, memory)?;
        source.engine.block_on(source.prepared.check_nulls())?;
        source.root = Root::open(began, source.limits.share.numbers(), &options.urls, options.caller.as_ref());
        Ok(source)
    }

    fn opened(options: &LoaderOptions, memory: BatchMemory) -> Result<Self> {
        let settings = options.settings()?;
        let limits = Limits { share: settings.share, budget: settings.budget, prefetch: settings.prefetch };
        let (engine, (prepared, plan, need)) = Engine::open(options, &settings, |runtime| {
            let prepared = runtime.block_on(PreparedPlan::with(options, &settings))?;
            let plan = prepared.plan(0)?.for_world(settings.share.world);
            plan.check_share(settings.share)?;
            let need = limits.fit(&prepared, &plan).map_err(|error| limits.remedy(error, &prepared, &settings.spec))?;
            limits.fit_later(&prepared, need)?;
            // At most the budget, which is a usize.
            let sources = Arc::clone(prepared.sources_in(plan.spec().order_version));
            let is_alone = sources.len() == 1 && !sources[0].dataset.has_ngrams();
            let lends = is_alone && plan.spec().gives_once() && memory.is_ordinary();
            let parts = Parts { sources, batches: need.batches as usize, memory, lends };
            Ok((parts, (prepared, Arc::new(plan), need)))
        })?;
        let info = prepared.info(&plan, settings.share);
        Ok(Self { engine, look: None, prepared, limits, need, plan, info, step: 0, foreseen: None, root: None })
    }

    /// The plan of the epoch of the next batch.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The datasets, in the order of the options.
    pub fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.prepared.datasets()
    }

    /// Warns if rows come in file order, and that is not the order of the list that names the files. The first rank does it for all.
    pub(crate) fn warn_of_order(&self) {
        let is_in_file_order = self.plan.spec().shuffle == Shuffle::None && self.info.share.rank == 0;
        if is_in_file_order && self.datasets().any(Dataset::is_reordered) {
            tracing::warn!(
                "shuffle is off, and files are read in the order of their names, which is not that of the list of addresses"
            );
        }
    }

    /// The minimum memory in which this rank's first epoch runs.
    pub fn memory_need(&self) -> MemoryNeed {
        self.need
    }

    /// The minimum memory in which a share of another plan over the same data runs.
    pub(super) fn need_of(&self, plan: &Plan, share: Share) -> MemoryNeed {
        self.prepared.need(plan, share, self.limits.prefetch)
    }

    /// Bytes fetched for the selected columns of one row group of the plan, or of one unit of a row group if they are
    /// cut; 0 for one that does not exist.
    pub fn stored_bytes(&self, source: usize, group: usize) -> u64 {
        let source = self.prepared.sources_in(self.plan.spec().order_version).get(source);
        let source = source.filter(|source| group < source.dataset.manifest().groups.len());
        source.map_or(0, |source| source.dataset.cost(group, &source.projection).fetched)
    }

    /// File, row group and row of a row of the plan, and its row id; `None` for one that does not exist.
    pub fn place(&self, row: RowRef) -> Option<(Place, u64)> {
        let source = self.prepared.sources_in(self.plan.spec().order_version).get(row.source as usize)?;
        let (dataset, group) = (&source.dataset, row.group as usize);
        let place = Place { row: Some(dataset.stored_row(group, row.row.into())), ..dataset.place(group) };
        place.row_group.map(|_| (place, source.row_base + dataset.row_id(group, row.row.into())))
    }

    /// Row groups of the plan, of all datasets: more than the files have if large ones are cut into units.
    pub fn units(&self) -> usize {
        self.manifests().iter().map(|manifest| manifest.groups.len()).sum()
    }

    /// Row groups of all datasets.
    pub fn row_groups(&self) -> usize {
        self.datasets().map(|dataset| dataset.manifest().groups.len()).sum()
    }

    /// The manifests of the plan.
    pub(super) fn manifests(&self) -> &[Arc<Manifest>] {
        self.prepared.manifests_in(self.plan.spec().order_version)
    }

    /// Bytes fetched for the selected columns of all whole row groups.
    pub(super) fn whole_bytes(&self) -> u64 {
        let sources = self.prepared.sources_in(OrderVersion::V1).iter();
        let groups = sources.flat_map(|source| {
            let groups = 0..source.dataset.manifest().groups.len();
            groups.map(|group| source.dataset.cost(group, &source.projection).fetched)
        });
        groups.fold(0, u64::saturating_add)
    }

    fn plan_by(&self, spec: &PlanSpec, epoch: u64) -> Result<Arc<Plan>> {
        if epoch == self.plan.epoch() && spec == self.plan.spec() {
            return Ok(Arc::clone(&self.plan));
        }
        let plan = self.prepared.plan_by(spec, epoch)?.for_world(self.limits.share.world);
        // Another epoch puts other row groups side by side: it is refused here, not in the middle of it.
        self.limits.fit(&self.prepared, &plan)?;
        Ok(Arc::new(plan))
    }

    /// Waits for the search that is under way, if there is one; false if it takes longer than `wait`.
    fn look_ends(&mut self, wait: Duration) -> Result<bool> {
        let Some(Look::UnderWay(task)) = &mut self.look else { return Ok(true) };
        let ended = self.engine.block_on(async { Ok(tokio::time::timeout(wait, &mut task.0).await) })?;
        let Ok(found) = ended else { return Ok(false) };
        self.look = Some(Look::Over(found.unwrap_or_else(|_| Err(closed()))));
        Ok(true)
    }

    fn go(&mut self, plan: Arc<Plan>, step: u64) {
        self.engine.follow(self.prepared.sources_in(plan.spec().order_version));
        self.info = self.prepared.info(&plan, self.limits.share);
        (self.plan, self.step, self.foreseen) = (plan, step, None);
    }

    /// Tells the caches below, if there are any, what is read from here on, and waits at most `wait` until they know.
    fn foresee(&mut self, wait: Duration) -> Result<()> {
        let foresight = self.prepared.foresight(self.plan.spec().order_version);
        if let (None, Some(foresight)) = (&self.foreseen, foresight) {
            let (foresight, plan) = (Arc::clone(foresight), Arc::clone(&self.plan));
            let (share, step) = (self.limits.share, self.step);
            let (knows, known) = tokio::sync::oneshot::channel::<()>();
            let task = self.engine.spawn(async move {
                Arc::clone(&foresight).follow(Arc::clone(&plan), share, step).await;
                drop(knows);
                foresight.look_ahead(plan, share, step).await;
            })?;
            // Row groups read before that are kept on less information; with very many row groups that is better than a
            // late first batch.
            let told = self.engine.block_on(async { Ok(tokio::time::timeout(TELLING.min(wait), known).await) })?;
            if told.is_err() {
                tracing::debug!("the first batches are read before the cache knows the plan");
            }
            self.foreseen = Some(task);
        }
        Ok(())
    }

    /// Tells the caches below that `epoch` is read from its start, and waits until they know.
    pub(super) fn foretell(&self, epoch: u64) -> Result<()> {
        let (plan, version) = (self.plan_of(epoch)?, self.plan.spec().order_version);
        self.engine.block_on(async {
            if let Some(foresight) = self.prepared.foresight(version) {
                let (told, waited) = (Arc::clone(foresight).follow(plan, Share::whole(), 0), self.engine.timeout);
                let late = |_| Error::late("plan", "the cache to learn the plan", waited, waited);
                tokio::time::timeout(waited, told).await.map_err(late)?;
            }
            Ok(())
        })
    }

    /// The plan of `epoch`.
    pub(super) fn plan_of(&self, epoch: u64) -> Result<Arc<Plan>> {
        self.plan_by(self.plan.spec(), epoch)
    }

    /// The part of the budget for row groups.
    pub(super) fn row_group_memory(&self) -> Arc<Pool> {
        Arc::clone(&self.engine.job.groups)
    }

    /// The datasets with row groups as in `plan`.
    pub(super) fn sources(&self) -> &Arc<[Source]> {
        self.prepared.sources_in(self.plan.spec().order_version)
    }

    /// Waits for `work` on its own threads.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.engine.block_on(work)
    }
}

impl BatchSource for LocalSource {
    fn next(&mut self, wait: Duration) -> Result<Next<AnyBatch>> {
        // Reading ahead would take the memory that the search waits for.
        let started = Instant::now();
        if !self.look_ends(wait)? {
            return Ok(Next::Pending);
        }
        self.foresee(wait.saturating_sub(started.elapsed()))?;
        let wait = wait.saturating_sub(started.elapsed());
        let (plan, share) = (&self.plan, self.limits.share);
        let next = self.engine.next_within(wait, || Arc::clone(plan) as _, share, self.step)?;
        match &next {
            Next::Item(batch) => {
                self.step = batch.step + 1;
                foresight::reached(&self.engine.job.sources, batch.epoch, self.step);
                let rows = self.plan.real_rows(batch.step, share);
                let traced = self.root.and_then(|root| root.step((batch.epoch, batch.step), share.numbers()));
                if let Some((step, trail)) = traced.zip(self.engine.trail()) {
                    trail.trace(&step);
                }
                self.engine.job.counters.rows.fetch_add(rows, Ordering::Relaxed);
            }
            Next::End => self.seek(self.plan.epoch().wrapping_add(1), 0)?,
            Next::Pending => {}
        }
        Ok(next.map(AnyBatch::Host))
    }

    fn seek(&mut self, epoch: u64, step: u64) -> Result<()> {
        let plan = self.plan_by(self.plan.spec(), epoch)?;
        self.go(plan, step);
        Ok(())
    }

    fn resume(&mut self, state: &State) -> Result<u64> {
        let spec = self.prepared.spec_in(state.spec.order_version)?;
        state.check(&self.plan.fingerprint_as(state.fingerprint), &spec)?;
        let plan = self.plan_by(&spec, state.epoch)?;
        let step = state.step_in(&plan)?;
        self.go(plan, step);
        Ok(step)
    }

    fn info(&self) -> &PlanInfo {
        &self.info
    }

    fn schema(&self) -> &Schema {
        self.prepared.schema()
    }

    fn timeout(&self) -> Duration {
        self.engine.timeout
    }

    fn culprit(&self) -> (&'static str, String) {
        match &self.look {
            Some(Look::UnderWay(_)) => ("open", "a look for integers beyond 32 bits".to_owned()),
            Some(Look::Over(_)) | None => self.engine.culprit(),
        }
    }

    fn check(&self) -> Result<()> {
        if self.engine.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Data read ahead makes room for the search, and is read again: there is one budget.
    fn wide_integers(&mut self, wait: Duration) -> Result<Next<Vec<WideInteger>>> {
        self.check()?;
        if self.look.is_none() {
            self.engine.reset();
            let look = self.prepared.wide_integers(&self.engine.job.groups);
            self.look = Some(Look::UnderWay(self.engine.spawn(look)?));
        }
        if !self.look_ends(wait)? {
            return Ok(Next::Pending);
        }
        match self.look.take() {
            Some(Look::Over(found)) => found.map(Next::Item),
            Some(Look::UnderWay(_)) | None => Err(closed()),
        }
    }

    fn trail(&self) -> Option<Trail> {
        self.engine.trail()
    }

    fn root(&self) -> Option<Root> {
        self.root
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn ledger(&self) -> Ledger {
        self.engine.ledger()
    }

    fn close(&mut self) {
        self.engine.close();
    }
}

/// Epochs whose plans are held against the budget when a loader opens, unless it is ample.
const LOOKED_AT: u64 = 16;

/// The limits that a plan has to fit into.
#[derive(Debug, Clone, Copy)]
struct Limits {
    share: Share,
    budget: usize,
    prefetch: usize,
}

impl Limits {
    fn fit(self, prepared: &PreparedPlan, plan: &Plan) -> Result<MemoryNeed> {
        prepared.fit(plan, self.share, self.prefetch, self.budget)
    }

    /// Refuses a budget that holds the first epoch, but not one of those after it, which put other row groups side by side. Their needs
    /// differ little: a budget of twice the first one's is taken for enough.
    fn fit_later(self, prepared: &PreparedPlan, first: MemoryNeed) -> Result<()> {
        if prepared.spec().shuffle == Shuffle::None || first.total().saturating_mul(2) <= self.budget as u64 {
            return Ok(());
        }
        let weights = prepared.weights(prepared.spec().order_version);
        let mut worst: Option<(MemoryNeed, Plan)> = None;
        for epoch in 1..LOOKED_AT {
            let plan = prepared.plan(epoch)?.for_world(self.share.world);
            let need = prepared.need_by(&weights, &plan, self.share, self.prefetch);
            if worst.as_ref().is_none_or(|(most, _)| need.total() > most.total()) {
                worst = Some((need, plan));
            }
        }
        worst.map_or(Ok(()), |(need, plan)| within_budget(need, &plan, self.budget).map(drop))
    }

    /// Adds to the error the number of lanes with which the plan of `asked` would fit, if that leaves lanes open: by
    /// default lanes follow the global batch, and a rank that has all of them may lack the memory of a gang.
    fn remedy(self, error: Error, prepared: &PreparedPlan, asked: &PlanSpec) -> Error {
        let Error::Limit { place, what, asked: need, limit, option, raise } = error else { return error };
        let manifests = prepared.manifests_in(asked.order_version);
        let fits = |lanes: &u32| {
            let spec = PlanSpec { lanes: Some(*lanes), ..asked.clone() }.resolve(manifests);
            let plan = spec.and_then(|spec| Plan::new(manifests, spec, 0));
            plan.is_ok_and(|plan| prepared.need(&plan, self.share, self.prefetch).total() <= self.budget as u64)
        };
        let open = prepared.spec().lanes.filter(|_| asked.lanes.is_none());
        let fewer = open.into_iter().flat_map(|lanes| (1..u32::BITS).map(move |half| lanes >> half));
        let what = match fewer.take_while(|lanes| *lanes > 0).find(fits) {
            Some(lanes) => format!("{} (it fits with lanes={lanes}),", what.trim_end_matches(',')),
            None => what,
        };
        Error::Limit { place, what, asked: need, limit, option, raise }
    }
}
