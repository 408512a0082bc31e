//! The state independent of rank, epoch and position: the open datasets, their columns, the resolved plan.
//!
//! A [`LocalSource`](super::LocalSource) has its own; a server keeps one for all streams with the same request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;

use super::column_kinds::ColumnKinds;
use super::feed::{Feed, Probe, Task};
use super::foresight::{self, Foresight};
use super::foretold::{self, WideInteger};
use super::hidden_columns::HiddenColumns;
use super::job::{Job, Means, Source, Workers, closed};
use super::memory_need::{MemoryNeed, Weights, within_budget};
use super::ngram::{Frames, Maker};
use super::options::{LoaderOptions, Settings};
use super::same_columns;
use super::shared::SharedReader;
use super::sized::sized;
use super::source::PlanInfo;
use super::stats::{Stats, TimeSpent};
use super::trail::Trail;
use super::{batch_bytes, batches_at_once};
use crate::codec::{BadRows, Columns, Rows};
use crate::dataset::{Dataset, OpenOptions, Sizes};
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::memory::{HostAllocator, Pool, Spare, SystemAllocator};
use crate::plan::{OrderVersion, Plan, PlanSpec, RowRef, Share, Shuffle, Tail};
use crate::schema::Schema;
use crate::tensor::Batch;

/// Bytes of a row's references while its step is made: its place in the plan, and the place of its cells.
const LISTED_ROW: u64 = (size_of::<RowRef>() + size_of::<(u32, u32)>()) as u64;

/// Approximate bytes of a row group in the plan of an epoch.
#[cfg(feature = "flight")]
const PLANNED_GROUP: u64 = 20;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct PreparedPlan {
    /// The datasets in whole row groups, and in units for versions of the order that have them.
    whole: View,
    units: View,
    /// The spec as the options give it, with its open values.
    asked: PlanSpec,
    spec: PlanSpec,
    /// Set if the options name the version of the order.
    names_version: bool,
    /// The options with which the datasets were opened.
    open: OpenOptions,
    pub(super) bad_rows: BadRows,
    kinds: Arc<ColumnKinds>,
}

/// The datasets in row groups or in units.
#[derive(Debug)]
struct View {
    sources: Arc<[Source]>,
    manifests: Vec<Arc<Manifest>>,
    /// The announcer of plans to caches, if there are any.
    foresight: Option<Arc<Foresight>>,
}

impl View {
    fn new(sources: Arc<[Source]>) -> Self {
        let manifests: Vec<_> = sources.iter().map(|source| Arc::clone(source.dataset.manifest())).collect();
        let foresight = Foresight::of(&sources, &manifests);
        Self { sources, manifests, foresight }
    }

    /// The same in units of these sizes.
    async fn in_units(&self, sizes: Sizes, timeout: Duration) -> Result<Self> {
        let units = self.sources.iter().map(|source| source.in_units(sizes, timeout));
        let units: Vec<_> = futures::future::try_join_all(units).await?;
        let is_cut =
            |(units, whole): (&Source, &Source)| !Arc::ptr_eq(units.dataset.manifest(), whole.dataset.manifest());
        let sources =
            if units.iter().zip(&*self.sources).any(is_cut) { units.into() } else { Arc::clone(&self.sources) };
        Ok(Self::new(sources))
    }
}

impl PreparedPlan {
    /// Opens the datasets that `options` name and resolves the plan, as for a loader, but reads no rows: the filter and the windows are tried
    /// on the columns only.
    ///
    /// # Errors
    /// As [`hiding`](Self::hiding), but for those of rows.
    #[cfg(feature = "flight")]
    pub(crate) async fn check(options: &LoaderOptions) -> Result<()> {
        let mut settings = options.settings()?;
        let (filter, ngram) = (settings.open.filter.take(), settings.open.ngram.take());
        let prepared = Self::with(options, &settings).await?;
        for source in &*prepared.whole.sources {
            if let Some(filter) = &filter {
                filter.check(source.dataset.schema())?;
            }
            if let Some(ngram) = &ngram {
                source.dataset.project(std::slice::from_ref(&ngram.timestamp_field))?;
            }
        }
        Ok(())
    }

    /// Opens the datasets that `options` name without what `hidden` hides, and resolves the plan. Rank, memory, threads and time-out of the
    /// options are ignored here. Reads footers, and the filter's columns if there is a filter.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other, and any error of opening the dataset; hidden columns are not found.
    pub(crate) async fn hiding(options: &LoaderOptions, hidden: &HiddenColumns) -> Result<Self> {
        let options = hidden.without(options);
        let mut settings = options.settings()?;
        settings.open = hidden.over(settings.open)?;
        Self::with(&options, &settings).await
    }

    pub(super) async fn with(options: &LoaderOptions, settings: &Settings) -> Result<Self> {
        Self::in_units(options, settings, Sizes::default()).await
    }

    /// As [`with`](Self::with), in units of these sizes.
    pub(super) async fn in_units(options: &LoaderOptions, settings: &Settings, sizes: Sizes) -> Result<Self> {
        let whole = View::new(sources(settings, options, Marks::Heeded).await?);
        let units = whole.in_units(sizes, settings.open.timeout).await?;
        let (asked, names_version) = (settings.spec.clone(), options.order_version.is_some());
        let (open, bad_rows) = (settings.open.clone(), options.bad_rows);
        let kinds = Arc::new(ColumnKinds::of(&options.columns, whole.sources[0].maker.fields()));
        let mut prepared = Self { whole, units, spec: asked.clone(), asked, names_version, open, bad_rows, kinds };
        prepared.spec = prepared.asked.resolve(prepared.manifests_in(prepared.asked.order_version))?;
        // As they are read: in units, where the order has them.
        for source in &**prepared.sources_in(prepared.spec.order_version) {
            source.dataset.check_groups(&source.projection)?;
        }
        Ok(prepared)
    }

    /// Checks that no column in which nulls are errors has some, as far as that is known before rows are read; see
    /// [`BadRows`] for other ways to handle them.
    ///
    /// # Errors
    /// [`Error::Nulls`], once for all such columns; [`Error::Timeout`] if the files do not answer.
    pub(crate) async fn check_nulls(&self) -> Result<()> {
        self.check_nulls_within(self.open.memory_limit).await
    }

    /// As [`check_nulls`](Self::check_nulls), with up to `most` bytes of memory.
    ///
    /// # Errors
    /// As [`check_nulls`](Self::check_nulls); and [`Error::Limit`] if the search needs more than the memory it was
    /// opened with, but not more than `most`.
    pub(crate) async fn check_nulls_within(&self, most: u64) -> Result<()> {
        // The rows of windows are not known.
        if self.bad_rows != BadRows::Error || self.open.ngram.is_some() {
            return Ok(());
        }
        foretold::nulls(&self.whole.sources, &self.open, most).await
    }

    /// Integers delivered as they are stored, in 64 bits, that need more than 32: the first one of each column, as far
    /// as that is known before rows are read. The search waits for its memory, which it takes from `pool`.
    pub(super) fn wide_integers(
        &self,
        pool: &Arc<Pool>,
    ) -> impl Future<Output = Result<Vec<WideInteger>>> + Send + 'static {
        let (sources, pool, open) = (Arc::clone(&self.whole.sources), Arc::clone(pool), self.open.clone());
        async move {
            if open.ngram.is_some() {
                return Ok(Vec::new());
            }
            let bytes = pool.budget().min(usize::try_from(open.memory).unwrap_or(usize::MAX));
            let reserved = pool.reserve(bytes).await?;
            let memory = reserved.bytes() as u64;
            foretold::wide_integers(&sources, &OpenOptions { memory, memory_limit: memory, ..open }).await
        }
    }

    fn view(&self, version: OrderVersion) -> &View {
        if version.has_units() { &self.units } else { &self.whole }
    }

    /// The sources of plans of `version`.
    pub(super) fn sources_in(&self, version: OrderVersion) -> &Arc<[Source]> {
        &self.view(version).sources
    }

    /// The manifests of plans of `version`, of row groups or units of them.
    pub(super) fn manifests_in(&self, version: OrderVersion) -> &[Arc<Manifest>] {
        &self.view(version).manifests
    }

    /// The announcer of plans of `version` to caches; `None` without a cache.
    pub(super) fn foresight(&self, version: OrderVersion) -> Option<&Arc<Foresight>> {
        self.view(version).foresight.as_ref()
    }

    /// Tells the caches, if there are any, that `share` of `plan` is followed from `step` on. Must be called within a tokio runtime.
    pub(super) fn follow(&self, plan: &Arc<Plan>, share: Share, step: u64) -> Option<(Arc<Foresight>, Task<()>)> {
        let foresight = Arc::clone(self.foresight(plan.spec().order_version)?);
        let following = Arc::clone(&foresight).follow(Arc::clone(plan), share, step);
        Some((foresight, Task(tokio::spawn(following))))
    }

    /// The same, and lets them fetch ahead until the task is dropped. Must be called within a tokio runtime.
    pub(super) fn foresee(&self, plan: &Arc<Plan>, share: Share, step: u64) -> Option<Task<()>> {
        let foresight = Arc::clone(self.foresight(plan.spec().order_version)?);
        let plan = Arc::clone(plan);
        Some(Task(tokio::spawn(async move {
            Arc::clone(&foresight).follow(Arc::clone(&plan), share, step).await;
            foresight.look_ahead(plan, share, step).await;
        })))
    }

    /// Returns true if `options`, with which it was opened, still lead to the same files: see [`Dataset::is_current`].
    ///
    /// # Errors
    /// As [`Dataset::is_current`].
    pub(crate) async fn is_current(&self, options: &LoaderOptions) -> Result<bool> {
        let settings = options.settings()?;
        for (dataset, urls) in self.datasets().zip(&settings.datasets) {
            if !dataset.is_current(urls, &settings.open).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The schema of the batches: one field per column, before suffixes.
    pub(crate) fn schema(&self) -> &Schema {
        self.whole.sources[0].maker.fields()
    }

    /// What the options made of the columns.
    #[cfg(feature = "flight")]
    pub(crate) fn kinds(&self) -> &Arc<ColumnKinds> {
        &self.kinds
    }

    /// The datasets, in the order of the options, in whole row groups.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.whole.sources.iter().map(|source| &source.dataset)
    }

    /// Approximate bytes of memory of the open datasets and of `plans` plans of epochs.
    #[cfg(feature = "flight")]
    pub(crate) fn memory_size(&self, plans: u64) -> u64 {
        // The datasets in units share everything with those in row groups.
        let datasets = self.units.sources.iter().map(|source| source.dataset.memory_size());
        let groups: usize = self.units.manifests.iter().map(|manifest| manifest.groups.len()).sum();
        datasets.fold(0, u64::saturating_add).saturating_add((groups as u64).saturating_mul(PLANNED_GROUP * plans))
    }

    /// The resolved spec.
    pub(crate) fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// The spec to which the options resolve in `version` of the order, for states that name it. Options that name a
    /// version resolve to that one only.
    ///
    /// # Errors
    /// As [`PlanSpec::resolve`].
    pub(super) fn spec_in(&self, version: OrderVersion) -> Result<PlanSpec> {
        if version == self.spec.order_version || self.names_version {
            return Ok(self.spec.clone());
        }
        PlanSpec { order_version: version, ..self.asked.clone() }.resolve(self.manifests_in(version))
    }

    /// The plan of `epoch`.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub(crate) fn plan(&self, epoch: u64) -> Result<Plan> {
        self.plan_by(&self.spec, epoch)
    }

    /// The plan of `epoch` by a spec of [`spec_in`](Self::spec_in).
    pub(super) fn plan_by(&self, spec: &PlanSpec, epoch: u64) -> Result<Plan> {
        Plan::new(self.manifests_in(spec.order_version), spec.clone(), epoch)
    }

    /// The description of `plan` for `share`.
    pub(crate) fn info(&self, plan: &Plan, share: Share) -> PlanInfo {
        let only = match &self.whole.sources[..] {
            [source] => Some(&source.dataset),
            _ => None,
        };
        PlanInfo {
            fingerprint: plan.fingerprint(),
            former: plan.former(),
            spec: plan.spec().clone(),
            steps: plan.steps(),
            rows: plan.rows(),
            share,
            masked: self.masked(plan),
            table_version: only.and_then(Dataset::table_version),
            kinds: Arc::clone(&self.kinds),
        }
    }

    /// Returns true if batches of `plan` have `_mask`.
    pub(crate) fn masked(&self, plan: &Plan) -> bool {
        plan.masked() || self.whole.sources[0].masked
    }

    /// The minimum memory in which one share of `plan` runs, `prefetch` batches ahead. Examines every row group.
    pub(crate) fn need(&self, plan: &Plan, share: Share, prefetch: usize) -> MemoryNeed {
        self.need_by(&self.weights(plan.spec().order_version), plan, share, prefetch)
    }

    /// The bytes of the row groups of plans in `version` of the order.
    pub(super) fn weights(&self, version: OrderVersion) -> Weights {
        Weights::of(self.sources_in(version))
    }

    /// As [`need`](Self::need), of plans of one version of the order, whose row groups were weighed before.
    pub(super) fn need_by(&self, weights: &Weights, plan: &Plan, share: Share, prefetch: usize) -> MemoryNeed {
        let batches = self.batches_need(plan, share, prefetch);
        // The row groups in the windows of a step, and the largest row group on its way in beside them.
        let live = plan.live_bytes(share, &|source, group| weights.held(source, group));
        // The references to rows of steps being made: more than the batch itself if a row is a single byte.
        let listed = plan.batch_rows(share).saturating_mul(LISTED_ROW).saturating_mul(batches_at_once(prefetch) as u64);
        let row_groups = live.saturating_add(weights.largest()).saturating_add(listed);
        MemoryNeed { row_groups, batches }
    }

    /// Bytes of the batches of one share of `plan`, `prefetch` batches ahead.
    pub(crate) fn batches_need(&self, plan: &Plan, share: Share, prefetch: usize) -> u64 {
        let rows = usize::try_from(plan.batch_rows(share)).unwrap_or(usize::MAX);
        batch_bytes(&self.whole.sources, rows).saturating_mul(batches_at_once(prefetch)) as u64
    }

    /// As [`need`](Self::need), for an untrusted plan: if the batches alone exceed `budget`, nothing else is examined.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn need_within(&self, plan: &Plan, share: Share, prefetch: usize, budget: u64) -> Result<MemoryNeed> {
        let rows = usize::try_from(plan.batch_rows(share)).unwrap_or(usize::MAX);
        let asked = self.batches_need(plan, share, prefetch);
        if asked > budget {
            let what = format!("{} batches of {rows} rows", batches_at_once(prefetch));
            return Err(Error::limit(what, asked, budget, "memory_budget (or lower batch_size)"));
        }
        Ok(self.need(plan, share, prefetch))
    }

    /// Bytes of the memory of each batch of one share of `plan`, if all have the same.
    pub(crate) fn even_batch(&self, plan: &Plan, share: Share) -> Option<usize> {
        let rows = usize::try_from(plan.batch_rows(share)).ok()?;
        let mut lengths = self.whole.sources.iter().map(|source| source.maker.even_bytes(rows, self.masked(plan)));
        let first = lengths.next()??;
        lengths.all(|length| length == Some(first)).then_some(first)
    }

    /// As [`need`](Self::need), refusing a budget that cannot hold it; the rest of a larger one is for reading ahead.
    pub(super) fn fit(&self, plan: &Plan, share: Share, prefetch: usize, budget: usize) -> Result<MemoryNeed> {
        within_budget(self.need(plan, share, prefetch), plan, budget)
    }

    /// Estimated bytes of a batch of one row.
    pub(crate) fn row_bytes(&self) -> u64 {
        batch_bytes(&self.whole.sources, 1) as u64
    }

    /// A batch of one row without data: the columns of all other batches, in their order.
    ///
    /// # Errors
    /// [`Error::Limit`] if a row is larger than `budget`.
    pub(crate) fn empty_batch(&self, plan: &Plan, budget: usize) -> Result<Batch> {
        let none = |_| 0;
        let rows = Rows {
            epoch: plan.epoch(),
            step: 0,
            cells: &[],
            rows: &[],
            size: 1,
            masked: self.masked(plan),
            random: &none,
            row_ids: &none,
            stored_rows: &none,
            bad_rows: self.bad_rows,
            max_bytes: budget,
            lent: None,
            images: None,
        };
        let pool = Pool::new(Arc::new(SystemAllocator), budget);
        let reservation = pool.try_reserve(0).ok_or_else(closed)?;
        Ok(self.whole.sources[0].maker.assemble(&rows, reservation)?.0)
    }

    /// As [`batches_in`](Self::batches_in), in the minimum memory.
    #[cfg(test)]
    pub(crate) fn batches(&self, plan: Arc<Plan>, run: Run) -> Result<Batches> {
        plan.check_share(run.share)?;
        let need = self.fit(&plan, run.share, run.prefetch, run.budget)?;
        self.batches_in(plan, run, need)
    }

    /// Batches of one share of `plan` from a step on, in `need`, the memory that it [needs](Self::need). Must be called
    /// within a tokio runtime that has time enabled; reading starts at once.
    ///
    /// # Errors
    /// [`Error::Limit`] for a budget that can never hold a step; [`Error::Config`] for a share that the plan cannot give.
    pub(crate) fn batches_in(&self, plan: Arc<Plan>, run: Run, need: MemoryNeed) -> Result<Batches> {
        plan.check_share(run.share)?;
        within_budget(need, &plan, run.budget)?;
        let (share, from) = (run.share, run.from);
        let lookahead = self.foresee(&plan, share, from);
        let means = run.means(need.batches, None, self.bad_rows);
        let job = Arc::new(Job::new(Arc::clone(self.sources_in(plan.spec().order_version)), means));
        let feed = Feed::start(Arc::clone(&job), plan, share, from);
        Ok(Batches { feed, job, shared: None, _lookahead: lookahead })
    }
}

/// The parameters for running one share of a plan.
#[derive(Debug)]
pub struct Run {
    /// The share to deliver.
    pub share: Share,
    /// The first step.
    pub from: u64,
    /// Threads to decode with.
    pub workers: Arc<Workers>,
    /// Allocator of batches.
    pub allocator: Arc<dyn HostAllocator>,
    /// Bytes that everything in flight may take, batches included until they are dropped or
    /// [delivered](Batch::deliver).
    pub budget: usize,
    /// Bytes of batches that are still in use after delivery: when they come back, their memory is kept for later
    /// batches. For allocators whose memory is expensive.
    pub keep: usize,
    /// The [`pool`](Batches::pool) of an earlier run with the same allocator: its kept buffers are used again, if
    /// batches are alike.
    pub pool: Option<Arc<Pool>>,
    /// Batches made ahead of the consumer, at least 1.
    pub prefetch: usize,
}

impl Run {
    /// The means of this run's job: `batches` bytes for batches, and the row groups' part of the budget if others read
    /// them.
    pub(super) fn means(self, batches: u64, groups: Option<Arc<Pool>>, bad_rows: BadRows) -> Means {
        Means {
            workers: self.workers,
            allocator: self.allocator,
            budget: self.budget,
            groups,
            // At most the budget, which is a usize.
            batches: batches as usize,
            keep: self.keep,
            spare: Spare::None,
            pool: self.pool,
            prefetch: self.prefetch,
            bad_rows,
            lends: false,
        }
    }
}

/// Batches in plan order. The first error ends the stream; dropping it stops everything that feeds it.
#[derive(Debug)]
pub struct Batches {
    pub(super) feed: Feed,
    pub(super) job: Arc<Job>,
    /// The reader of its row groups, if that is shared.
    pub(super) shared: Option<Arc<SharedReader>>,
    /// Fetches ahead into the cache, if there is one and nobody shares its row groups.
    pub(super) _lookahead: Option<Task<()>>,
}

impl Batches {
    /// Stage and culprit of a wait without a result.
    pub fn culprit(&self) -> (&'static str, String) {
        self.feed.culprit()
    }

    /// Returns true if the stream ended because other shares of its plan, whose row groups are read together, continued
    /// without it.
    pub fn is_behind(&self) -> bool {
        self.shared.is_some() && self.feed.is_behind()
    }

    /// The way of the last batch that was returned.
    pub(crate) fn trail(&self) -> Option<Trail> {
        self.feed.trail()
    }

    /// A look at what the next batch waits for, which keeps nothing alive.
    pub(crate) fn probe(&self) -> Probe {
        self.feed.probe()
    }

    /// The pool of its batches.
    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.job.batches)
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        let cache = foresight::cache_stats(&self.job.sources);
        self.job.counters.snapshot(self.job.memory(), cache, TimeSpent::default())
    }
}

impl Stream for Batches {
    type Item = Result<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.feed).poll_next(context);
        if let Poll::Ready(Some(Ok(batch))) = &next {
            foresight::reached(&self.job.sources, batch.epoch, batch.step.saturating_add(1));
        }
        next
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.job.stop();
    }
}

/// Treatment of the marks that other libraries left on columns, see [`Feature`](crate::schema::Feature).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// Columns have the meaning that these libraries give them.
    Heeded,
    /// Columns are as stored.
    Ignored,
}

/// Opens the datasets. All must give the same columns.
pub(super) async fn sources(settings: &Settings, options: &LoaderOptions, marks: Marks) -> Result<Arc<[Source]>> {
    let mut sources: Vec<Source> = Vec::new();
    for urls in &settings.datasets {
        let dataset = Dataset::open(urls, settings.open.clone()).await?;
        let shuffled = settings.spec.shuffle != Shuffle::None;
        let mut asked = options.columns.clone();
        if let Some(ngram) = &options.ngram {
            if !asked.columns.is_empty() {
                return Err(Error::config(
                    "columns",
                    "the fields of ngram say which columns are delivered; leave it out",
                ));
            }
            // Packs are requested by their own names, like columns.
            asked.columns = ngram.columns();
        }
        let schema = match marks {
            Marks::Heeded => dataset.marked_schema(),
            Marks::Ignored => Arc::clone(dataset.schema()),
        };
        let asked = sized(&dataset, &schema, asked, options.budget()).await?;
        let columns = Arc::new(Columns::new(&schema, &asked)?.shuffled(shuffled));
        if options.mask || settings.spec.tail == Tail::Pad {
            columns.check_mask()?;
        }
        let maker = match &options.ngram {
            Some(ngram) => Maker::Frames(Arc::new(Frames::new(ngram, &columns, options.bad_rows)?)),
            None => Maker::Rows(Arc::clone(&columns)),
        };
        if let Some(first) = sources.first() {
            same_columns::fields(first.maker.fields(), maker.fields(), urls)?;
            same_columns::stored_columns(&first.columns, &columns, urls)?;
        }
        let projection = dataset.project(columns.paths())?;
        if let Marks::Heeded = marks {
            dataset.check_classes(columns.integers())?;
        }
        let rows = sources.iter().map(|source| source.dataset.stored_rows());
        let row_base = rows.fold(0, u64::saturating_add);
        sources.push(Source { dataset, projection, columns, maker, masked: options.mask, row_base });
    }
    Ok(sources.into())
}
