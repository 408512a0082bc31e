//! Batches of one share whose row groups are read with those of other shares.

use std::sync::{Arc, OnceLock};

use super::feed::{Feed, Task};
use super::job::{Job, Means, Workers};
use super::memory_need::MemoryNeed;
use super::prepared::{Batches, PreparedPlan, Run};
use super::reader::Reader;
use super::reader_state::Expected;
use super::shared::SharedReader;
use crate::error::Result;
use crate::memory::{Spare, SystemAllocator};
use crate::plan::{Plan, Share};

impl PreparedPlan {
    /// Reads the row groups of `plan` for `ranks` of its ranks, within `need` bytes and `ahead` more: `need` is
    /// [`need`](Self::need) of the whole plan. Must be called within a tokio runtime that has time enabled.
    pub(crate) fn shared(
        &self,
        plan: Arc<Plan>,
        workers: Arc<Workers>,
        ranks: u32,
        need: u64,
        ahead: u64,
    ) -> Arc<SharedReader> {
        // The first batch tells the position of the ranks.
        let (foresight, following) = self.follow(&plan, Share::whole(), 0).unzip();
        let means = Means {
            workers,
            allocator: Arc::new(SystemAllocator),
            budget: usize::try_from(need.saturating_add(ahead)).unwrap_or(usize::MAX),
            groups: None,
            batches: 0,
            keep: 0,
            spare: Spare::None,
            pool: None,
            prefetch: 1,
            bad_rows: self.bad_rows,
            lends: false,
        };
        let job = Arc::new(Job::new(Arc::clone(self.sources_in(plan.spec().order_version)), means));
        let expected = Expected { ranks: ranks as usize, ahead };
        let reader = Reader::start(job, Arc::clone(&plan) as _, expected);
        let (lookahead, _following) = (OnceLock::new(), following);
        Arc::new(SharedReader { reader, plan, bad_rows: self.bad_rows, foresight, lookahead, _following })
    }
}

impl SharedReader {
    /// Batches of one share from a step on, whose row groups are read with those of others; `None` if the others are
    /// far from that step. Only memory for batches is taken from the budget of `run`, according to `need`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for a share that the plan cannot give.
    pub(crate) fn batches(self: &Arc<Self>, run: Run, need: MemoryNeed) -> Result<Option<Batches>> {
        self.plan.check_share(run.share)?;
        let Some(member) = self.reader.join(run.share, run.from) else { return Ok(None) };
        if let Some(foresight) = &self.foresight {
            let look_ahead = || Arc::clone(foresight).look_ahead(Arc::clone(&self.plan), Share::whole(), run.from);
            self.lookahead.get_or_init(|| Task(tokio::spawn(look_ahead())));
        }
        let (share, from, common) = (run.share, run.from, self.reader.job());
        let groups = Some(Arc::clone(&common.groups));
        let means = run.means(need.batches, groups, self.bad_rows);
        let job = Arc::new(Job::new(Arc::clone(&common.sources), means));
        let feed = Feed::of(Arc::clone(&job), share, from, member);
        Ok(Some(Batches { feed, job, shared: Some(Arc::clone(self)), _lookahead: None }))
    }
}
