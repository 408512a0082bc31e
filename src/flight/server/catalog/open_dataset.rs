//! A dataset that is open for streams of batches, with the plans and the memory needs of those who read it.

use std::sync::Arc;

use super::dataset_cache::Source;
use super::once::Once;
use super::turns::Turns;
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;
use crate::flight::wire::{Columns, schema_message};
use crate::manifest::Fingerprint;
use crate::pipeline::{HiddenColumns, LoaderOptions, MemoryNeed, PreparedPlan};
use crate::plan::{Plan, Share};

/// Size in bytes above which the memory of an opening must have room for a row: one is made to determine the columns.
const FREE_ROW: u64 = 1 << 20;

/// Plans of epochs that are remembered per dataset: ranks of a job are in one epoch or the next, and a plan takes some 20 bytes a row
/// group.
const PLANS: usize = 4;

/// Memory needs of shares that are remembered.
const NEEDS: usize = 64;

/// Batches made ahead for each stream.
pub(crate) const PREFETCH: usize = 4;

/// A dataset with its columns and plan.
#[derive(Debug)]
pub(crate) struct OpenDataset {
    pub(crate) prepared: PreparedPlan,
    pub(crate) columns: Columns,
    /// Bytes of the columns and their kinds in an answer.
    pub(crate) schema_bytes: usize,
    /// Plan of epoch 0 for one rank.
    pub(crate) plan: Arc<Plan>,
    pub(crate) fingerprint: Fingerprint,
    /// Plans of other epochs.
    plans: Once<u64, Arc<Plan>>,
    /// Memory needs by epoch, world of the plan, share, and batches made ahead.
    needs: Once<(u64, u32, Share, usize), MemoryNeed>,
}

impl OpenDataset {
    /// Opens a dataset with `options`, leaving out the `hidden` columns, on a server with a memory `budget`.
    ///
    /// # Errors
    /// Those of opening; [`Error::Limit`] if a row takes more than the memory budget of `options`.
    pub(crate) async fn open(options: LoaderOptions, hidden: HiddenColumns, budget: u64) -> Result<Self> {
        let prepared = PreparedPlan::hiding(&options, &hidden).await?;
        prepared.check_nulls_within(budget).await?;
        let plan = prepared.plan(0)?;
        let (row, paid) = (prepared.row_bytes(), options.memory_budget.unwrap_or(budget));
        if row > paid.max(FREE_ROW) {
            return Err(Error::limit("a row of this dataset, in bytes,", row, paid, "memory_budget"));
        }
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        let columns = Columns::of(prepared.schema(), &prepared.empty_batch(&plan, budget)?);
        let schema_bytes = schema_message(&columns).len() + prepared.kinds().bytes();
        let fingerprint = plan.fingerprint();
        let (plans, needs) = (Once::new(PLANS), Once::new(NEEDS));
        Ok(Self { prepared, columns, schema_bytes, plan: Arc::new(plan), fingerprint, plans, needs })
    }

    /// Returns the memory that `share` of `plan`, a plan of this dataset, needs with `prefetch` batches ahead. Computing it takes time
    /// in proportion to row groups and lanes, so it is done once for all callers, in the turn of one of them.
    ///
    /// # Errors
    /// [`Error::Limit`] if the batches alone exceed `budget`; [`Error::Remote`] if the turn did not come in time.
    pub(crate) async fn need(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        (share, prefetch): (Share, usize),
        budget: u64,
        turns: (&Turns, &Tenant),
    ) -> Result<MemoryNeed> {
        let key = (plan.epoch(), plan.world(), share, prefetch);
        let (offer, plan) = (Arc::clone(self), Arc::clone(plan));
        self.needs.get(key, turns, move || offer.prepared.need_within(&plan, share, prefetch, budget)).await
    }

    /// Returns the plan of `epoch` for `world` ranks. Making it takes time in proportion to row groups and lanes, so it is done once
    /// for all callers, in the turn of one of them.
    ///
    /// # Errors
    /// Those of [`PreparedPlan::plan`]; [`Error::Remote`] if the turn did not come in time.
    pub(crate) async fn plan(self: &Arc<Self>, epoch: u64, world: u32, turns: (&Turns, &Tenant)) -> Result<Arc<Plan>> {
        let plan = if epoch == self.plan.epoch() {
            Arc::clone(&self.plan)
        } else {
            let offer = Arc::clone(self);
            self.plans.get(epoch, turns, move || offer.prepared.plan(epoch).map(Arc::new)).await?
        };
        let of_world = plan.for_world(world);
        Ok(if of_world.world() == plan.world() { plan } else { Arc::new(of_world) })
    }
}

impl Source for OpenDataset {
    fn is_of(&self, fingerprint: Fingerprint) -> bool {
        self.plan.fingerprint_as(fingerprint) == fingerprint
    }

    fn bytes(&self) -> u64 {
        self.prepared.memory_size(1 + PLANS as u64)
    }

    fn is_current(&self, options: &LoaderOptions) -> impl Future<Output = Result<bool>> + Send {
        self.prepared.is_current(options)
    }
}
