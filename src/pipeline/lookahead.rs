//! Fetches into the cache what an epoch needs later, while there is room for it.
//!
//! A cache that holds a part of the data has what an epoch reads first, and misses what it reads later. What has been read frees room, unless
//! the next epoch begins with it. That room is filled with the row groups that this epoch still needs, in the order of the plan: the store
//! then gives the same bytes at an even rate instead of all of them at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use super::foresight::Foresight;
use crate::error::Result;
use crate::plan::{Plan, Share, Use};

/// Row groups fetched at once.
const AT_ONCE: usize = 4;
/// Most bytes of row groups fetched at once, unless one alone has more; in units of a permit.
const BYTES_AT_ONCE: usize = 64 << 20;
const PERMIT: u64 = 4 << 10;

/// A row group to be fetched.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    used: Use,
    bytes: u64,
    /// Bytes of all row groups that are needed before it.
    before: u64,
}

/// The row groups that a share reads from a step on.
struct Lookahead {
    foresight: Arc<Foresight>,
    wanted: Vec<Wanted>,
    in_flight: Semaphore,
    /// Bytes that were fetched.
    fetched: AtomicU64,
}

impl Foresight {
    /// Fetches what `share` of `plan` reads after `from`, for as long as it is polled. Call it when the caches know the plan.
    pub(super) async fn look_ahead(self: Arc<Self>, plan: Arc<Plan>, share: Share, from: u64) {
        if !self.sources.iter().filter_map(|source| source.dataset.cache()).any(|cache| cache.ahead() > 0) {
            return;
        }
        let foresight = Arc::clone(&self);
        let Ok(wanted) = tokio::task::spawn_blocking(move || foresight.wanted(&plan, share, from)).await else {
            return;
        };
        let in_flight = Semaphore::new(BYTES_AT_ONCE / PERMIT as usize);
        let numbers = 0..wanted.len();
        let ahead = &Lookahead { foresight: self, wanted, in_flight, fetched: AtomicU64::new(0) };
        let each = futures::stream::iter(numbers).map(|number| ahead.fetch(number));
        // Whoever reads it will have the error, unless it passes.
        if let Err(error) = each.buffered(AT_ONCE).try_collect::<()>().await {
            tracing::debug!("nothing more is fetched ahead in this epoch: {}", error.chain());
        }
    }

    fn wanted(&self, plan: &Plan, share: Share, from: u64) -> Vec<Wanted> {
        let mut before = 0_u64;
        let uses = plan.uses_of(share).into_iter().filter(|used| used.step >= from);
        let wanted = uses.map(|used| {
            let wanted = Wanted { used, bytes: self.cost(used.source, used.group), before };
            before = before.saturating_add(wanted.bytes);
            wanted
        });
        wanted.collect()
    }
}

impl Lookahead {
    /// Fetches one row group once there is room for it, unless it is read before.
    async fn fetch(&self, number: usize) -> Result<()> {
        let Some(wanted) = self.wanted.get(number) else { return Ok(()) };
        let Some(source) = self.foresight.sources.get(wanted.used.source as usize) else { return Ok(()) };
        let Some(cache) = source.dataset.cache().filter(|cache| cache.ahead() > 0) else { return Ok(()) };
        loop {
            let moved = cache.moved();
            let position = cache.position();
            if wanted.used.step < position {
                return Ok(());
            }
            if self.fetched.load(Ordering::Relaxed) < cache.ahead().saturating_add(self.read(position)) {
                let permits = wanted.bytes.div_ceil(PERMIT).clamp(1, BYTES_AT_ONCE as u64 / PERMIT);
                // It is never closed, and the permits are fewer than 2^32.
                let _permit = self.in_flight.acquire_many(permits as u32).await;
                let group = wanted.used.group as usize;
                if let Some(bytes) = source.dataset.fetch_ahead(group, &source.projection).await? {
                    self.fetched.fetch_add(bytes, Ordering::Relaxed);
                    return Ok(());
                }
            }
            moved.await;
        }
    }

    /// Bytes of the row groups that steps before `position` needed.
    fn read(&self, position: u64) -> u64 {
        let next = self.wanted.partition_point(|wanted| wanted.used.step < position);
        match self.wanted.get(next) {
            Some(next) => next.before,
            None => self.wanted.last().map_or(0, |last| last.before.saturating_add(last.bytes)),
        }
    }
}
