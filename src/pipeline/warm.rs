//! Loads the data that plans read into the cache below, before a run reads it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::stream::{StreamExt, TryStreamExt};
use serde::Serialize;

use super::foresight::cache_stats;
use super::local::LocalSource;
use crate::error::{Error, Result};
use crate::store::cache::{CacheStats, OVERHEAD, Unkept};

/// Row groups fetched at once.
const AT_ONCE: usize = 16;

/// Bytes read of a file's end when it is opened.
const OPENING: u64 = 64 << 10;

/// The result of loading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warmed {
    /// Row groups, or units of them, that the epochs read, each once.
    pub row_groups: u64,
    /// Their bytes, as far as footers tell.
    pub bytes: u64,
    /// Those of them that were read: refused or failed ones are not in the cache.
    pub loaded: u64,
    /// Those that were not requested, since the cache may not take more bytes: the ones that plans need last.
    pub left_out: u64,
    /// Their bytes.
    pub left_out_bytes: u64,
    /// Bytes that the cache may take, or all caches of the cluster.
    pub limit: u64,
    /// Set if it was stopped before all was requested.
    pub stopped: bool,
    /// Reads for it: hits were there before, misses were fetched. Refused or failed ones are not in the cache.
    pub cache: CacheStats,
    /// The caches of other hosts that do not have all that they were to keep. What one of them has no room for, or cannot be given, is in
    /// this cache if there is room, and else not kept.
    pub unkept: Vec<Unkept>,
}

impl Warmed {
    /// Returns true if everything that fits is in the cache. What is left out fits where a cache has failed.
    pub fn is_whole(&self) -> bool {
        let failed = self.limit == 0 || self.unkept.iter().any(|peer| peer.failures > 0);
        let lost = self.cache.refused + self.cache.failures + self.cache.bypassed;
        !self.stopped && lost == 0 && !(failed && self.left_out > 0)
    }
}

impl LocalSource {
    /// Loads the data that this epoch and the following ones, `epochs` in all, read on all ranks together, in the order
    /// in which they need it, as far as the cache may take it. Blocks are whole or absent, so a killed run continues
    /// where it was. `progress` receives the bytes done and the total, and stops it by returning `false`.
    ///
    /// # Errors
    /// [`Error::Config`] without a cache, and if all datasets are files of this machine; and any error of reading.
    pub fn warm(&self, epochs: u64, progress: &(dyn Fn(u64, u64) -> bool + Sync)) -> Result<Warmed> {
        let sources = self.sources();
        let caches = sources.iter().filter_map(|source| source.dataset.cache());
        // One list of hosts for all sources.
        let unkept =
            || sources.iter().find_map(|source| source.dataset.cache()).map_or_else(Vec::new, |cache| cache.unkept());
        let unkept_before = unkept();
        let rooms = self.block_on(async {
            let rooms = caches.map(|cache| async move {
                // What the opening has read is on its way into the cache.
                cache.settle().await;
                cache.room().await
            });
            Ok(futures::future::join_all(rooms).await)
        })?;
        let Some(limit) = rooms.into_iter().min() else {
            let problem = "there is none to load into: none is given, or all data are files of this machine, which no cache keeps";
            return Err(Error::config("cache", problem));
        };
        let first = self.plan().epoch();
        self.foretell(first)?;
        let (mut seen, mut wanted, mut left) = (HashSet::new(), Vec::new(), (0_u64, 0_u64));
        let (mut bytes, mut taken, mut filled) = (0_u64, 0_u64, 0_u64);
        // Each block has a head and checksums, and the ends of files are kept as well.
        let files = sources.iter().flat_map(|source| &source.dataset.manifest().files);
        let own = files.map(|file| file.version.size.min(OPENING)).fold(0, u64::saturating_add);
        let ends = sources.iter().filter_map(|source| source.dataset.cache()).map(|cache| cache.ends(own)).max();
        let room = limit.saturating_sub(limit / OVERHEAD).saturating_sub(ends.unwrap_or_default());
        for epoch in first..first.saturating_add(epochs.max(1)) {
            for used in self.plan_of(epoch)?.uses() {
                let Some(source) = sources.get(used.source as usize) else { continue };
                if source.dataset.cache().is_none() || !seen.insert((used.source, used.group)) {
                    continue;
                }
                let cost = source.dataset.cost(used.group as usize, &source.projection).fetched;
                bytes = bytes.saturating_add(cost);
                let is_there = source.dataset.is_in_kept_end(used.group as usize, &source.projection);
                // Later row groups may be smaller, but are needed later.
                if !is_there && (left.0 > 0 || filled.saturating_add(cost) > room) {
                    left = (left.0 + 1, left.1.saturating_add(cost));
                } else {
                    taken = taken.saturating_add(cost);
                    filled = filled.saturating_add(if is_there { 0 } else { cost });
                    wanted.push((used.source as usize, used.group as usize, cost));
                }
            }
        }
        let before = cache_stats(sources);
        let row_groups = wanted.len() as u64 + left.0;
        let (loaded, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let (pool, sources) = (self.row_group_memory(), Arc::clone(sources));
        let (loaded, done, stop, sources) = (&loaded, &done, &stop, &sources);
        self.block_on(async {
            let load = |(source, group, cost): (usize, usize, u64)| {
                let pool = Arc::clone(&pool);
                async move {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let memory = usize::try_from(cost).unwrap_or(usize::MAX).min(pool.budget());
                    let _reserved = pool.reserve(memory).await?;
                    if let Some(source) = sources.get(source) {
                        source.dataset.load(group, &source.projection).await?;
                    }
                    loaded.fetch_add(1, Ordering::Relaxed);
                    let done = done.fetch_add(cost, Ordering::Relaxed).saturating_add(cost);
                    if !progress(done, taken) {
                        stop.store(true, Ordering::Relaxed);
                    }
                    Ok::<(), Error>(())
                }
            };
            futures::stream::iter(wanted).map(load).buffered(AT_ONCE).try_collect::<()>().await?;
            for cache in sources.iter().filter_map(|source| source.dataset.cache()) {
                cache.settle().await;
            }
            Ok(())
        })?;
        Ok(Warmed {
            row_groups,
            bytes,
            loaded: loaded.load(Ordering::Relaxed),
            left_out: left.0,
            left_out_bytes: left.1,
            limit,
            stopped: stop.load(Ordering::Relaxed),
            cache: cache_stats(sources).since(&before),
            unkept: Unkept::since(unkept(), &unkept_before),
        })
    }
}
