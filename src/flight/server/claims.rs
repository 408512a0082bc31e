//! The memory of a server's streams: one budget, claimed whole before a stream begins, and what ended lines keep of it for those
//! that begin.
//!
//! Nobody waits for memory that nobody needs: while somebody waits, nothing is kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};
use crate::memory::{Pool, Shelf};

/// Unit of the memory budget, in bytes: permits are 32 bits wide.
const UNIT: u64 = 4096;

/// How long a stream waits for others to give memory back.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pools that are kept at most.
const IDLE: usize = 16;

/// The budget.
#[derive(Debug)]
pub(super) struct Claims {
    free: Arc<Semaphore>,
    budget: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Memory of lines that ended, the last one at the end, each with the claim on it: fresh pages cost more than a batch.
    pools: VecDeque<Idle>,
    /// Streams that wait for memory.
    waiting: usize,
}

/// A pool that nobody uses.
#[derive(Debug)]
struct Idle {
    pool: Arc<Pool>,
    /// Bytes of each of its batches, where they share slabs; else 0.
    together: usize,
    claim: Claim,
}

/// A part of the budget, given back on drop.
#[derive(Debug)]
pub(super) struct Claim(OwnedSemaphorePermit);

impl Claim {
    /// Takes `bytes` of it as a claim of their own; none if it has fewer.
    pub(super) fn split(&mut self, bytes: u64) -> Option<Self> {
        self.0.split(usize::try_from(bytes.div_ceil(UNIT)).ok()?).map(Self)
    }

    /// Adds `more`, of the same budget.
    pub(super) fn add(&mut self, more: Self) {
        self.0.merge(more.0);
    }
}

/// One that waits: while there is any, nothing is kept.
struct Waiting<'a>(&'a Claims);

impl<'a> Waiting<'a> {
    fn new(claims: &'a Claims) -> Self {
        let mut kept = claims.kept();
        kept.waiting += 1;
        let given_up = std::mem::take(&mut kept.pools);
        drop(kept);
        drop(given_up);
        Self(claims)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.kept().waiting -= 1;
    }
}

impl Claims {
    pub(super) fn new(budget: u64) -> Self {
        let permits = usize::try_from(budget / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(permits)), budget, kept: Mutex::default() }
    }

    /// Bytes of the budget.
    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that streams have claimed.
    pub(super) fn used(&self) -> u64 {
        let kept: usize = self.kept().pools.iter().map(|idle| idle.claim.0.num_permits()).sum();
        let free = (self.free.available_permits() + kept) as u64;
        self.budget.saturating_sub(free.saturating_mul(UNIT))
    }

    /// Claims `bytes`, waiting for others to give memory back.
    ///
    /// # Errors
    /// [`Error::Limit`] for more than the budget; [`Error::Remote`], to be tried again, where nothing came back in time.
    pub(super) async fn claim(&self, bytes: u64) -> Result<Claim> {
        let permits = u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|_| bytes <= self.budget);
        let permits = permits.ok_or_else(|| Error::Limit {
            what: "one stream".to_owned(),
            asked: bytes,
            limit: self.budget,
            option: "memory_budget",
        })?;
        if let Some(claim) = self.try_claim(bytes) {
            return Ok(claim);
        }
        let waiting = Waiting::new(self);
        let claimed = tokio::time::timeout(PATIENCE, Arc::clone(&self.free).acquire_many_owned(permits)).await;
        drop(waiting);
        match claimed {
            Ok(Ok(permit)) => Ok(Claim(permit)),
            Ok(Err(_)) => Err(Error::Closed { why: "the server is closed".to_owned() }),
            // To be tried again: others will end, and another replica may have room.
            Err(_) => Err(Error::Remote {
                peer: "the server".to_owned(),
                what: format!(
                    "has no memory for another stream: {bytes} bytes beside {} that others hold of a memory_budget of {}",
                    self.used(),
                    self.budget
                ),
                source: None,
            }),
        }
    }

    /// Claims `bytes` if they are there now. What ended lines keep is given up for it, the oldest first.
    pub(super) fn try_claim(&self, bytes: u64) -> Option<Claim> {
        let permits = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_many_owned(permits) {
                return Some(Claim(permit));
            }
            let given_up = self.kept().pools.pop_front();
            drop(given_up?);
        }
    }

    /// As [`try_claim`](Self::try_claim), but leaves alone what ended lines keep and what others wait for: for what is nice to have.
    pub(super) fn try_spare(&self, bytes: u64) -> Option<Claim> {
        let permits = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        if self.kept().waiting > 0 {
            return None;
        }
        Arc::clone(&self.free).try_acquire_many_owned(permits).ok().map(Claim)
    }

    /// Keeps the pool of a line that ended, with as much of the line's claim as it holds at most; the rest of it is free at once.
    /// `together` are the bytes of each of its batches, where they share slabs. Nothing is kept that the claim does not pay for, or
    /// while somebody waits for memory.
    pub(super) fn keep(&self, pool: Arc<Pool>, mut claim: Claim, together: usize) {
        // The rest was for reading.
        let paid = claim.split(Shelf::bytes(pool.budget(), together) as u64);
        let mut kept = self.kept();
        let Some(part) = paid.filter(|_| kept.waiting == 0) else {
            drop(kept);
            // The pool's memory first.
            drop(pool);
            drop(claim);
            return;
        };
        kept.pools.push_back(Idle { pool, together, claim: part });
        let given_up = if kept.pools.len() > IDLE { kept.pools.pop_front() } else { None };
        drop(kept);
        drop(given_up);
    }

    /// The pool of an ended line whose batches were alike.
    pub(super) fn reuse(&self, budget: usize, together: usize) -> Option<Arc<Pool>> {
        let mut kept = self.kept();
        let at = kept.pools.iter().rposition(|idle| idle.pool.budget() == budget && idle.together == together)?;
        let found = kept.pools.remove(at);
        drop(kept);
        found.map(|idle| idle.pool)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Numbers and queues are whole between any two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SystemAllocator;

    fn pool(budget: u64) -> Arc<Pool> {
        Pool::new(Arc::new(SystemAllocator), budget as usize)
    }

    #[tokio::test]
    async fn what_ended_lines_keep_is_nobodys_wait() {
        let claims = Claims::new(100 * UNIT);
        let line = claims.claim(80 * UNIT).await.unwrap();
        assert!(claims.try_claim(30 * UNIT).is_none());
        // The line ends while a stream waits: what it held goes to the stream and is not kept.
        let waits = claims.claim(90 * UNIT);
        let ends = async {
            tokio::task::yield_now().await;
            claims.keep(pool(UNIT), line, 0);
        };
        let (claimed, ()) =
            tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(waits, ends) }).await.unwrap();
        drop(claimed.unwrap());
        // Kept where nobody waits, used again, and given up for whoever needs it.
        claims.keep(pool(60 * UNIT), claims.claim(60 * UNIT).await.unwrap(), 0);
        assert_eq!(claims.used(), 0);
        assert!(claims.try_spare(50 * UNIT).is_none(), "what is nice to have takes nothing from what is kept");
        assert!(claims.reuse(60 * 4096, 100_000).is_none(), "a pool for batches of another length");
        assert!(claims.reuse(60 * 4096, 0).is_some() && claims.reuse(60 * 4096, 0).is_none());
        claims.keep(pool(60 * UNIT), claims.claim(60 * UNIT).await.unwrap(), 0);
        let mut all = claims.claim(100 * UNIT).await.unwrap();
        let part = all.split(40 * UNIT).unwrap();
        drop(all);
        assert_eq!(claims.used(), 40 * UNIT);
        drop(part);
        // Of a line that read far ahead only the pool's own part is kept, so that the next one can read ahead too.
        let claims = Claims::new(1000 * UNIT);
        for _ in 0..3 {
            claims.keep(pool(256 * UNIT), claims.claim(900 * UNIT).await.unwrap(), 0);
            assert_eq!(claims.free.available_permits(), 744);
            claims.reuse(1 << 20, 0).unwrap();
        }
        // What its slabs hold beyond the pool's budget is paid for too.
        claims.keep(pool(256 * UNIT), claims.claim(900 * UNIT).await.unwrap(), 100_000);
        assert_eq!(claims.free.available_permits(), 1000 - 512);
        claims.reuse(1 << 20, 100_000).unwrap();
        // A line that has not paid for all of it keeps nothing.
        claims.keep(pool(256 * UNIT), claims.claim(500 * UNIT).await.unwrap(), 100_000);
        assert!(claims.free.available_permits() == 1000 && claims.reuse(1 << 20, 100_000).is_none());
        assert!(matches!(claims.claim(1001 * UNIT).await, Err(Error::Limit { .. })));
    }
}
