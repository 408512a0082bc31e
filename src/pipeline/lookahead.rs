//! Fetches into the cache what an epoch needs later, while there is room for it.
//!
//! A cache that holds a part of the data has what an epoch reads first, and misses what it reads later. What has been read frees room, unless
//! the next epoch begins with it. That room is filled with the row groups that this epoch still needs, in the order of the plan: the store
//! then gives the same bytes throughout the epoch instead of at its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;

use super::foresight::Foresight;
use crate::error::Result;
use crate::plan::{Plan, Share, Use};

/// Row groups fetched at once.
const AT_ONCE: usize = 4;
/// Row groups that may fail before nothing more is fetched ahead in this epoch.
const MOST_FAILURES: u32 = 8;
/// Least time between two looks for room.
const PAUSE: Duration = Duration::from_millis(20);

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
    /// Bytes that were fetched.
    fetched: AtomicU64,
}

impl Foresight {
    /// Fetches what `share` of `plan` reads after `from`, for as long as it is polled. Call it when the caches know the plan.
    pub(super) async fn look_ahead(self: Arc<Self>, plan: Arc<Plan>, share: Share, from: u64) {
        if !self.looks_ahead() {
            return;
        }
        let foresight = Arc::clone(&self);
        let Ok(wanted) = tokio::task::spawn_blocking(move || foresight.wanted(&plan, share, from)).await else {
            return;
        };
        let numbers = 0..wanted.len();
        let ahead = &Lookahead { foresight: self, wanted, fetched: AtomicU64::new(0) };
        let mut each = futures::stream::iter(numbers).map(|number| ahead.fetch(number)).buffered(AT_ONCE);
        let mut failures = 0;
        while let Some(fetched) = each.next().await {
            let Err(error) = fetched else { continue };
            // Whoever reads it will have the error, unless it passes.
            tracing::debug!("a row group is not fetched ahead: {}", error.chain());
            failures += 1;
            if failures == MOST_FAILURES {
                return;
            }
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
            let is_over = || wanted.used.step < cache.position() || cache.has_read(wanted.used.group);
            if is_over() {
                return Ok(());
            }
            if self.fetched.load(Ordering::Relaxed) < cache.ahead().saturating_add(self.read(position)) {
                let _permit = cache.cache().may_fetch_ahead(wanted.bytes).await;
                if is_over() {
                    return Ok(());
                }
                let group = wanted.used.group as usize;
                let (bytes, is_all) = source.dataset.fetch_ahead(group, &source.projection).await?;
                self.fetched.fetch_add(bytes, Ordering::Relaxed);
                if is_all {
                    return Ok(());
                }
            }
            moved.await;
            tokio::time::sleep(PAUSE).await;
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
