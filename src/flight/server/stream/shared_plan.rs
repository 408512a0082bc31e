//! What the ranks of a plan have in common on a server: the reader of its row groups, and memory for all of them.
//!
//! The first rank that comes claims what all of them need, in one piece. So each of the others finds its memory there, and no rank waits
//! for a step that another one can never get; where the plan does not fit, each is told so when it opens its stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::budget::{ByteBudget, Claim};
use super::wanted::{AHEAD, RING, Wanted};
use crate::error::{Error, Result};
use crate::flight::server::catalog::dataset_cache::PREFETCH;
use crate::flight::server::catalog::turns::Turns;
use crate::pipeline::{SharedReader, Workers};
use crate::plan::Share;

/// OpenDataset, epoch, world size.
type Key = (usize, u64, u32);

/// See the module. It lasts for as long as a line of any rank.
#[derive(Debug)]
pub(crate) struct SharedPlan {
    // Dropped first: what it reads lies in the memory that is claimed.
    pub(crate) reader: Arc<SharedReader>,
    #[expect(dead_code, reason = "held for its drop")]
    row_groups: Claim,
    /// For the lines of ranks that have not come yet.
    lines: Mutex<Claim>,
    pub(crate) footing: Footing,
}

impl SharedPlan {
    /// Memory for a line of one rank; none if others, of the same rank too, have taken it all.
    pub(crate) fn line(&self, bytes: u64) -> Option<Claim> {
        // A claim is whole between any two statements.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).split(bytes)
    }
}

/// The plans that are read.
#[derive(Debug, Default)]
pub(crate) struct SharedPlans(Mutex<HashMap<Key, Arc<tokio::sync::Mutex<Entry>>>>);

#[derive(Debug, Default)]
struct Entry {
    plan: Weak<SharedPlan>,
    /// Why there is none, and since when.
    failed: Option<(Instant, Arc<Error>)>,
}

/// How much of its batches each line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footing {
    /// Batches made ahead.
    pub(crate) prefetch: usize,
    /// Batches that are remembered at least.
    pub(crate) ring: u64,
}

impl Footing {
    /// As much as serves a stream best.
    pub(crate) const FULL: Self = Self { prefetch: PREFETCH, ring: *RING.start() };
    /// As little as serves it at all: for plans of many ranks.
    const LEAN: Self = Self { prefetch: 1, ring: 1 };

    /// What the batches of `wanted` need, and bytes of a batch.
    pub(crate) fn batches(self, wanted: &Wanted) -> (u64, u64) {
        let batches = wanted.offer.prepared.batches_need(&wanted.plan, wanted.share, self.prefetch);
        (batches, batches / (self.prefetch as u64 + 2))
    }

    /// Bytes that a line of `wanted` holds at least.
    pub(crate) fn line(self, wanted: &Wanted) -> u64 {
        let (batches, batch) = self.batches(wanted);
        batches.saturating_add(self.ring.saturating_add(wanted.outgoing).saturating_mul(batch))
    }
}

/// What all ranks of a plan need.
#[derive(Debug, Clone, Copy)]
struct Need {
    row_groups: u64,
    lines: u64,
    footing: Footing,
}

/// What the ranks of the plan of `wanted` need. Asking may be long, and is done in turns.
async fn need(wanted: &Wanted, claims: &ByteBudget, turns: &Turns) -> Result<Need> {
    let world = u64::from(wanted.share.world);
    let (budget, lanes) = (claims.budget(), wanted.plan.lanes());
    let whole = wanted.offer.need(&wanted.plan, (Share::whole(), 1), budget, (turns, &wanted.tenant)).await?;
    // The first share is as large as any.
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

/// That all ranks of the plan of `wanted` can be served at once.
///
/// # Errors
/// [`Error::Limit`] where they need more than the budget.
pub(crate) async fn check(wanted: &Wanted, claims: &ByteBudget, turns: &Turns) -> Result<()> {
    if wanted.share.world > 1 {
        need(wanted, claims, turns).await?;
    }
    Ok(())
}

impl SharedPlans {
    /// The plan of which `wanted` is a share. The first to ask makes it; others wait for that.
    ///
    /// # Errors
    /// [`Error::Limit`] where all ranks together need more than the budget, and as [`ByteBudget::claim`].
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
            // Those that nobody waits for and nobody reads.
            entries.retain(|_, entry| {
                Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|entry| entry.plan.strong_count() > 0)
            });
            Arc::clone(entries.entry(key).or_default())
        };
        if let Some(plan) = entry.try_lock().ok().and_then(|entry| entry.plan.upgrade()) {
            return Ok(plan);
        }
        // Before the others wait for it: it may have to wait for a turn of its tenant's.
        let need = need(wanted, claims, turns).await?;
        let mut entry = entry.lock().await;
        if let Some(plan) = entry.plan.upgrade() {
            return Ok(plan);
        }
        if let Some((_, error)) = entry.failed.as_ref().filter(|(since, _)| *since >= asked) {
            return Err(Error::again(error));
        }
        match make(wanted, claims, workers, need).await {
            Ok(plan) => {
                let plan = Arc::new(plan);
                *entry = Entry { plan: Arc::downgrade(&plan), failed: None };
                Ok(plan)
            }
            Err(error) => {
                let error = Arc::new(error);
                entry.failed = Some((Instant::now(), Arc::clone(&error)));
                Err(Error::again(&error))
            }
        }
    }
}

async fn make(wanted: &Wanted, claims: &ByteBudget, workers: &Arc<Workers>, need: Need) -> Result<SharedPlan> {
    let Wanted { tenant, plan, share, .. } = wanted;
    let Need { row_groups: need, lines, footing } = need;
    let mut row_groups = claims.claim(tenant, need.saturating_add(lines)).await?;
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
