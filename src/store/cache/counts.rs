//! Counters of a cache, for each reader and for all of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::figures::{bytes, count, plural};

/// Numbers since a dataset, or the cache, was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStats {
    /// Ranges that the cache had.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Ranges that another reader was fetching just then: one request served both.
    pub shared: u64,
    /// Their bytes.
    pub shared_bytes: u64,
    /// Ranges that the caches of other hosts had.
    pub peer_hits: u64,
    /// Their bytes.
    pub peer_bytes: u64,
    /// Times that the cache of another host could not be reached, refused, was too slow, or sent something wrong: the next one was asked, or
    /// the origin read.
    pub peer_failures: u64,
    /// Ranges that were fetched from their origin and given to another host, which keeps them for all.
    pub given: u64,
    /// Ranges that were fetched from their origin.
    pub misses: u64,
    /// Their bytes.
    pub origin_bytes: u64,
    /// Ranges that were fetched ahead of their use, from origins or other hosts: they count there as well, and again when they are read.
    pub ahead: u64,
    /// Their bytes.
    pub ahead_bytes: u64,
    /// Ranges that were written into the cache.
    pub kept: u64,
    /// Ranges that were fetched and not kept, for everything there is needed sooner, or they are larger than the cache.
    pub refused: u64,
    /// Ranges that others had to make room for.
    pub evicted: u64,
    /// Ranges whose copy was damaged or was another block: removed, and fetched again.
    pub damaged: u64,
    /// Times that the disk of the cache failed or was full, or another process held it: the origin was read instead.
    pub failures: u64,
    /// Ranges of objects whose versions cannot be distinguished: always fetched.
    pub bypassed: u64,
}

impl CacheStats {
    /// The sum of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            hit_bytes: self.hit_bytes + other.hit_bytes,
            shared: self.shared + other.shared,
            shared_bytes: self.shared_bytes + other.shared_bytes,
            peer_hits: self.peer_hits + other.peer_hits,
            peer_bytes: self.peer_bytes + other.peer_bytes,
            peer_failures: self.peer_failures + other.peer_failures,
            given: self.given + other.given,
            misses: self.misses + other.misses,
            origin_bytes: self.origin_bytes + other.origin_bytes,
            ahead: self.ahead + other.ahead,
            ahead_bytes: self.ahead_bytes + other.ahead_bytes,
            kept: self.kept + other.kept,
            refused: self.refused + other.refused,
            evicted: self.evicted + other.evicted,
            damaged: self.damaged + other.damaged,
            failures: self.failures + other.failures,
            bypassed: self.bypassed + other.bypassed,
        }
    }

    /// The difference to `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(before.hits),
            hit_bytes: self.hit_bytes.saturating_sub(before.hit_bytes),
            shared: self.shared.saturating_sub(before.shared),
            shared_bytes: self.shared_bytes.saturating_sub(before.shared_bytes),
            peer_hits: self.peer_hits.saturating_sub(before.peer_hits),
            peer_bytes: self.peer_bytes.saturating_sub(before.peer_bytes),
            peer_failures: self.peer_failures.saturating_sub(before.peer_failures),
            given: self.given.saturating_sub(before.given),
            misses: self.misses.saturating_sub(before.misses),
            origin_bytes: self.origin_bytes.saturating_sub(before.origin_bytes),
            ahead: self.ahead.saturating_sub(before.ahead),
            ahead_bytes: self.ahead_bytes.saturating_sub(before.ahead_bytes),
            kept: self.kept.saturating_sub(before.kept),
            refused: self.refused.saturating_sub(before.refused),
            evicted: self.evicted.saturating_sub(before.evicted),
            damaged: self.damaged.saturating_sub(before.damaged),
            failures: self.failures.saturating_sub(before.failures),
            bypassed: self.bypassed.saturating_sub(before.bypassed),
        }
    }

    /// Bytes that came from the cache, or from those of other hosts, of all, from 0 to 1. Those that were fetched ahead of their use count as
    /// fetched.
    pub fn hit_rate(&self) -> f64 {
        let own = self.hit_bytes.saturating_add(self.shared_bytes).saturating_add(self.peer_bytes);
        let own = own.saturating_sub(self.ahead_bytes);
        let all = own.saturating_add(self.origin_bytes);
        if all == 0 { 0.0 } else { own as f64 / all as f64 }
    }
}

impl fmt::Display for CacheStats {
    /// Where bytes came from, tier by tier.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} here, {} shared, {} from other hosts, {} from origins ({:.0} % hits); {} evicted, {}",
            bytes(self.hit_bytes),
            bytes(self.shared_bytes),
            bytes(self.peer_bytes),
            bytes(self.origin_bytes),
            100.0 * self.hit_rate(),
            count(self.evicted),
            plural(self.failures, "failure")
        )
    }
}

/// What the cache of another host was offered and does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Unkept {
    /// Name and port of the host.
    pub peer: String,
    /// Ranges that it had no room for.
    pub refused: u64,
    /// Times that it could not be reached, refused, was too slow, or sent something wrong.
    pub failures: u64,
}

impl Unkept {
    /// What came to `now` since `before`, without hosts that nothing came of.
    pub(crate) fn since(now: Vec<Self>, before: &[Self]) -> Vec<Self> {
        let more = |now: Self| {
            let former = before.iter().find(|former| former.peer == now.peer).cloned().unwrap_or_default();
            let refused = now.refused.saturating_sub(former.refused);
            Self { refused, failures: now.failures.saturating_sub(former.failures), ..now }
        };
        now.into_iter().map(more).filter(|more| more.refused + more.failures > 0).collect()
    }
}

/// Something that is counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Hit(u64),
    Shared(u64),
    #[cfg(feature = "flight")]
    PeerHit(u64),
    #[cfg(feature = "flight")]
    PeerFailed,
    #[cfg(feature = "flight")]
    Given,
    Miss(u64),
    Ahead(u64),
    Kept,
    Refused,
    Evicted(u64),
    Damaged,
    Failed,
    Bypassed,
}

/// Counters that are added to from any thread.
#[derive(Debug, Default)]
pub(super) struct Counts {
    hits: [AtomicU64; 2],
    shared: [AtomicU64; 2],
    peers: [AtomicU64; 2],
    peer_failures: AtomicU64,
    given: AtomicU64,
    misses: [AtomicU64; 2],
    ahead: [AtomicU64; 2],
    kept: AtomicU64,
    refused: AtomicU64,
    evicted: AtomicU64,
    damaged: AtomicU64,
    failures: AtomicU64,
    bypassed: AtomicU64,
}

impl Counts {
    pub(super) fn add(&self, event: Event) {
        let more = |counter: &AtomicU64, more: u64| {
            counter.fetch_add(more, Ordering::Relaxed);
        };
        let both = |[count, bytes]: &[AtomicU64; 2], length: u64| {
            more(count, 1);
            more(bytes, length);
        };
        match event {
            Event::Hit(bytes) => both(&self.hits, bytes),
            Event::Shared(bytes) => both(&self.shared, bytes),
            #[cfg(feature = "flight")]
            Event::PeerHit(bytes) => both(&self.peers, bytes),
            #[cfg(feature = "flight")]
            Event::PeerFailed => more(&self.peer_failures, 1),
            #[cfg(feature = "flight")]
            Event::Given => more(&self.given, 1),
            Event::Miss(bytes) => both(&self.misses, bytes),
            Event::Ahead(bytes) => both(&self.ahead, bytes),
            Event::Kept => more(&self.kept, 1),
            Event::Refused => more(&self.refused, 1),
            Event::Evicted(count) => more(&self.evicted, count),
            Event::Damaged => more(&self.damaged, 1),
            Event::Failed => more(&self.failures, 1),
            Event::Bypassed => more(&self.bypassed, 1),
        }
    }

    pub(super) fn snapshot(&self) -> CacheStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ([hits, hit_bytes], [shared, shared_bytes]) = (&self.hits, &self.shared);
        let ([misses, origin_bytes], [peer_hits, peer_bytes]) = (&self.misses, &self.peers);
        let [ahead, ahead_bytes] = &self.ahead;
        CacheStats {
            hits: read(hits),
            hit_bytes: read(hit_bytes),
            shared: read(shared),
            shared_bytes: read(shared_bytes),
            peer_hits: read(peer_hits),
            peer_bytes: read(peer_bytes),
            peer_failures: read(&self.peer_failures),
            given: read(&self.given),
            misses: read(misses),
            origin_bytes: read(origin_bytes),
            ahead: read(ahead),
            ahead_bytes: read(ahead_bytes),
            kept: read(&self.kept),
            refused: read(&self.refused),
            evicted: read(&self.evicted),
            damaged: read(&self.damaged),
            failures: read(&self.failures),
            bypassed: read(&self.bypassed),
        }
    }
}
