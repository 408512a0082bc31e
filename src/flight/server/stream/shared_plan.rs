//! The shared part of all ranks of a plan on a server: the reader of its row groups, and memory for all of them.
//!
//! The first rank claims the memory of all ranks in one piece. So the others find theirs there, and no rank waits for a step that
//! another one can never get; if the plan does not fit, each rank gets the error when it opens its stream. Each tenant that wants a plan
//! waits for memory of its own until one of them has it: none waits behind another, or is told what another holds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::budget::{ByteBudget, Claim};
use super::wanted::{AHEAD, RING, Wanted};
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::catalog::open_dataset::PREFETCH;
use crate::flight::server::catalog::turns::Turns;
use crate::pipeline::{SharedReader, Workers};
use crate::plan::Share;

/// Open dataset, epoch, world size.
type Key = (usize, u64, u32);

/// See the module. Lives as long as a line of any rank.
#[derive(Debug)]
pub(crate) struct SharedPlan {
    // Dropped first: its data are in the memory that is claimed.
    pub(crate) reader: Arc<SharedReader>,
    #[expect(dead_code, reason = "held for its drop")]
    row_groups: Claim,
    /// Memory for the lines of ranks that have not come yet.
    lines: Mutex<Claim>,
    pub(crate) footing: Footing,
}

impl SharedPlan {
    /// Takes memory for a line of one rank; `None` if other lines, also of the same rank, have taken it all.
    pub(crate) fn line(&self, bytes: u64) -> Option<Claim> {
        // A claim is consistent between any two statements.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).split(bytes)
    }
}

/// The plans that are being read.
#[derive(Debug, Default)]
pub(crate) struct SharedPlans(Mutex<HashMap<Key, Arc<Entry>>>);

/// The place of one plan.
#[derive(Debug, Default)]
struct Entry {
    plan: Mutex<Weak<SharedPlan>>,
    made: Notify,
    /// The callers of each tenant, who wait for memory one after another, and never for that of others.
    queues: Mutex<HashMap<Tenant, Arc<Queue>>>,
}

/// The error of the last attempt for one tenant, and its time. Locked by the one that makes an attempt.
type Queue = tokio::sync::Mutex<Option<(Instant, Arc<Error>)>>;

impl Entry {
    fn plan(&self) -> MutexGuard<'_, Weak<SharedPlan>> {
        // It is replaced as a whole.
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, tenant: &Tenant) -> Arc<Queue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // An error is for those who wait while it happens.
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        Arc::clone(queues.entry(tenant.clone()).or_default())
    }
}

/// Number of batches that each line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footing {
    /// Batches made ahead.
    pub(crate) prefetch: usize,
    /// Least number of batches remembered.
    pub(crate) ring: u64,
}

impl Footing {
    /// The best number for one stream.
    pub(crate) const FULL: Self = Self { prefetch: PREFETCH, ring: *RING.start() };
    /// The least that works: for plans of many ranks.
    const LEAN: Self = Self { prefetch: 1, ring: 1 };

    /// Returns the bytes that the batches of `wanted` need, and those of one batch.
    pub(crate) fn batches(self, wanted: &Wanted) -> (u64, u64) {
        let batches = wanted.offer.prepared.batches_need(&wanted.plan, wanted.share, self.prefetch);
        (batches, batches / (self.prefetch as u64 + 2))
    }

    /// Returns the least bytes that a line of `wanted` holds.
    pub(crate) fn line(self, wanted: &Wanted) -> u64 {
        let (batches, batch) = self.batches(wanted);
        batches.saturating_add(self.ring.saturating_add(wanted.outgoing).saturating_mul(batch))
    }
}

/// Memory needed by all ranks of a plan.
#[derive(Debug, Clone, Copy)]
struct Need {
    row_groups: u64,
    lines: u64,
    footing: Footing,
}

/// Computes the memory needed by all ranks of the plan of `wanted`. It may take long, and is done in turns.
async fn need(wanted: &Wanted, claims: &ByteBudget, turns: &Turns) -> Result<Need> {
    let world = u64::from(wanted.share.world);
    let (budget, lanes) = (claims.budget(), wanted.plan.lanes());
    let whole = wanted.offer.need(&wanted.plan, (Share::whole(), 1), budget, (turns, &wanted.tenant)).await?;
    // No share is larger than the first one.
    let first = Wanted { share: Share { rank: 0, ..wanted.share }, ..wanted.clone() };
    let row_groups = whole.row_groups;
    let with = |footing: Footing| Need { row_groups, lines: footing.line(&first).saturating_mul(world), footing };
    let fits = |need: &Need| need.row_groups.saturating_add(need.lines) <= budget;
    let lean = with(Footing::LEAN);
    if !fits(&lean) {
        let what = format!(
            "serving {world} ranks: {} MB of row groups over {lanes} lanes and {} MB of batches of all ranks,",
            lean.row_groups >> 20,
            lean.lines >> 20
        );
        let asked = lean.row_groups.saturating_add(lean.lines);
        let option = "memory_budget (or lower lanes, window_rows, batch_size or prefetch)";
        return Err(Error::limit(what, asked, budget, option));
    }
    Ok(Some(with(Footing::FULL)).filter(fits).unwrap_or(lean))
}

/// Checks that all ranks of the plan of `wanted` can be served at once.
///
/// # Errors
/// [`Error::Limit`] if they need more than the budget.
pub(crate) async fn check(wanted: &Wanted, claims: &ByteBudget, turns: &Turns) -> Result<()> {
    if wanted.share.world > 1 {
        need(wanted, claims, turns).await?;
    }
    Ok(())
}

impl SharedPlans {
    /// Returns the plan that `wanted` is a share of. The first caller with memory for it makes it, for all.
    ///
    /// # Errors
    /// [`Error::Limit`] if all ranks together need more than the budget; those of [`ByteBudget::claim`].
    pub(crate) async fn get(
        &self,
        wanted: &Wanted,
        claims: &ByteBudget,
        (workers, turns): (&Arc<Workers>, &Turns),
    ) -> Result<Arc<SharedPlan>> {
        let key = (Arc::as_ptr(&wanted.offer) as usize, wanted.plan.epoch(), wanted.share.world);
        let asked = Instant::now();
        let entry = {
            let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Removes plans that no stream reads or waits for.
            entries.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.plan().strong_count() > 0);
            Arc::clone(entries.entry(key).or_default())
        };
        if let Some(plan) = entry.plan().upgrade() {
            return Ok(plan);
        }
        // This may wait for a turn of its tenant, and below for memory of its tenant: others who want the plan wait for neither.
        let need = need(wanted, claims, turns).await?;
        let queue = entry.queue(&wanted.tenant);
        let attempt = async {
            let mut failed = queue.lock().await;
            if let Some((_, error)) = failed.as_ref().filter(|(since, _)| *since >= asked) {
                return Err(Error::again(error));
            }
            match claims.claim(&wanted.tenant, need.row_groups.saturating_add(need.lines)).await {
                // The next one of this tenant claims nothing before the plan is there.
                Ok(claim) => Ok((claim, failed)),
                Err(error) => {
                    let error = Arc::new(error);
                    *failed = Some((Instant::now(), Arc::clone(&error)));
                    Err(Error::again(&error))
                }
            }
        };
        let mut attempt = std::pin::pin!(attempt);
        loop {
            let mut made = std::pin::pin!(entry.made.notified());
            // From here on nothing is missed.
            made.as_mut().enable();
            if let Some(plan) = entry.plan().upgrade() {
                return Ok(plan);
            }
            let (claim, _next) = tokio::select! {
                biased;
                () = made => continue,
                claim = &mut attempt => claim?,
            };
            let mut plan = entry.plan();
            // Another tenant's caller may have been as fast.
            if let Some(plan) = plan.upgrade() {
                return Ok(plan);
            }
            let new = Arc::new(make(wanted, claims, workers, (need, claim))?);
            *plan = Arc::downgrade(&new);
            drop(plan);
            entry.made.notify_waiters();
            return Ok(new);
        }
    }
}

/// Makes the plan of `wanted` in the memory that it needs.
fn make(
    wanted: &Wanted,
    claims: &ByteBudget,
    workers: &Arc<Workers>,
    (need, mut row_groups): (Need, Claim),
) -> Result<SharedPlan> {
    let Wanted { tenant, plan, share, .. } = wanted;
    let Need { row_groups: need, lines, footing } = need;
    let split = row_groups.split(lines);
    let lines = split.ok_or_else(|| Error::Closed { why: "a claim is too small".to_owned() })?;
    let mut ahead = AHEAD.min(claims.budget().saturating_sub(claims.used()) / 4);
    match claims.try_spare(tenant, ahead) {
        Some(more) => row_groups.add(more),
        None => ahead = 0,
    }
    let reader = wanted.offer.prepared.shared(Arc::clone(plan), Arc::clone(workers), share.world, need, ahead);
    Ok(SharedPlan { reader, row_groups, lines: Mutex::new(lines), footing })
}
