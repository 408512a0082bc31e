//! Tells the cache below the datasets when a plan needs row groups, in this epoch and the next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::job::Source;
use crate::error::Result;
use crate::manifest::Manifest;
use crate::plan::{Plan, Share, Use};
use crate::store::cache::{CacheStats, Foreseen, Later, Spans};

/// See the module documentation. Made once for the row groups that plans consist of.
#[derive(Debug)]
pub(super) struct Foresight {
    pub(super) sources: Arc<[Source]>,
    manifests: Vec<Arc<Manifest>>,
    spans: OnceLock<Vec<Arc<Spans>>>,
    /// By source, the bytes that are read of each row group.
    costs: OnceLock<Vec<Vec<u64>>>,
    /// Counts the plans to be followed: the last one counts, whichever is scanned first.
    asked: AtomicU64,
    followed: Mutex<()>,
}

impl Foresight {
    /// For plans over `sources` with these manifests; `None` without a cache.
    pub(super) fn of(sources: &Arc<[Source]>, manifests: &[Arc<Manifest>]) -> Option<Arc<Self>> {
        let any = sources.iter().any(|source| source.dataset.cache().is_some());
        any.then(|| {
            Arc::new(Self {
                sources: Arc::clone(sources),
                manifests: manifests.to_vec(),
                spans: OnceLock::new(),
                costs: OnceLock::new(),
                asked: AtomicU64::new(0),
                followed: Mutex::new(()),
            })
        })
    }

    /// Returns true if any cache fetches ahead.
    pub(super) fn looks_ahead(&self) -> bool {
        self.sources.iter().filter_map(|source| source.dataset.cache()).any(|cache| cache.ahead() > 0)
    }

    /// Bytes that are read of a row group of a source.
    pub(super) fn cost(&self, source: u32, group: u32) -> u64 {
        let costs = self.costs.get_or_init(|| {
            let of = |source: &Source| {
                let groups = 0..source.dataset.manifest().groups.len();
                groups.map(|group| source.dataset.cost(group, &source.projection).fetched).collect()
            };
            self.sources.iter().map(of).collect()
        });
        costs.get(source as usize).and_then(|costs| costs.get(group as usize)).copied().unwrap_or_default()
    }

    /// Tells the caches that `share` of `plan` is followed from `step` on, and then of the plan of the next epoch; on a thread that
    /// may block. Scans all row groups. Data read meanwhile is kept as if no plan were known.
    pub(super) async fn follow(self: Arc<Self>, plan: Arc<Plan>, share: Share, step: u64) {
        let turn = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let work = move || self.tell(turn, &plan, share, step);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(work).await {
            tracing::warn!("the cache does not know the plan: {}", error.chain());
        }
    }

    fn tell(&self, turn: u64, plan: &Plan, share: Share, step: u64) -> Result<()> {
        let _one = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if turn < self.asked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let next =
            Plan::new(&self.manifests, plan.spec().clone(), plan.epoch().saturating_add(1))?.for_world(plan.world());
        let (steps, end) = (plan.steps(), plan.steps().saturating_add(next.steps()));
        let on = |used: Use| Use { step: used.step.saturating_add(steps), ..used };
        let mut own: Vec<Vec<Later>> = vec![Vec::new(); self.sources.len()];
        let read = if self.looks_ahead() { next.uses_of(share) } else { Vec::new() };
        for Use { step, source, group } in read.into_iter().map(on) {
            if let Some(own) = own.get_mut(source as usize) {
                own.push(Later { step, group, bytes: self.cost(source, group) });
            }
        }
        let later = next.uses().into_iter().map(on);
        let mut uses: Vec<Vec<(u32, u64)>> = vec![Vec::new(); self.sources.len()];
        for Use { step, source, group } in plan.uses().into_iter().chain(later) {
            if let Some(uses) = uses.get_mut(source as usize) {
                uses.push((group, step));
            }
        }
        let spans = self.spans.get_or_init(|| {
            self.sources.iter().map(|source| Arc::new(source.dataset.spans(&source.projection))).collect()
        });
        for ((source, spans), (uses, own)) in self.sources.iter().zip(spans).zip(uses.into_iter().zip(own)) {
            if let Some(cache) = source.dataset.cache() {
                let foreseen = Foreseen::new(Arc::clone(spans), uses, end, own).of_epoch(plan.epoch());
                #[cfg(feature = "flight")]
                let foreseen = foreseen.of_job(job(plan));
                cache.follow(Some(foreseen), step);
            }
        }
        Ok(())
    }
}

/// A number of the run that `plan` is an epoch of.
#[cfg(feature = "flight")]
fn job(plan: &Plan) -> u64 {
    let mut bytes = plan.fingerprint().as_bytes().to_vec();
    bytes.extend_from_slice(format!("{:?}", plan.spec()).as_bytes());
    twox_hash::XxHash3_64::oneshot(&bytes)
}

/// Tells the caches of `sources` that all steps of the plan of `epoch` before `step` are over.
pub(super) fn reached(sources: &[Source], epoch: u64, step: u64) {
    sources.iter().filter_map(|source| source.dataset.cache()).for_each(|cache| cache.reached(epoch, step));
}

/// Cache hits and misses of `sources`.
pub(super) fn cache_stats(sources: &[Source]) -> CacheStats {
    let caches = sources.iter().filter_map(|source| source.dataset.cache());
    caches.fold(CacheStats::default(), |sum, cache| sum.and(&cache.stats()))
}
