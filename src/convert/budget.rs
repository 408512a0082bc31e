//! The byte budget that all tasks share, and what they tell of their progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::memory::{Pool, Reservation, SystemAllocator};

/// Longest wait for others to give bytes back.
const PATIENCE: Duration = Duration::from_secs(600);

/// A budget of bytes. Whoever asks for more than is left waits; whoever asks for more than there is gets an error.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: Mutex<u64>,
    freed: Condvar,
    /// Lends what is left of the budget to the recycler of freed blocks.
    pool: Option<Arc<Pool>>,
}

/// Bytes of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
    _reservation: Option<Reservation>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, used: Mutex::new(0), freed: Condvar::new(), pool: None }
    }

    /// A budget of `limit` bytes, of which what nobody has taken may hold freed blocks for the next row group: given back to the
    /// system's allocator and taken again, they leave holes that grow to several times what is in use.
    pub(crate) fn lending(limit: u64) -> Self {
        let pool = Pool::new(Arc::new(SystemAllocator), usize::try_from(limit).unwrap_or(usize::MAX / 4));
        Self { pool: Some(pool), ..Self::new(limit) }
    }

    /// Takes `bytes`, waiting until they are there. A task holds one permit at a time, so that nobody waits for himself.
    ///
    /// # Errors
    /// `Limit` if there can never be so many; `Timeout` if nobody gives any back for ten minutes.
    pub fn reserve(&self, bytes: u64, what: impl FnOnce() -> String) -> Result<Permit<'_>> {
        if bytes > self.limit {
            return Err(Error::limit(what(), bytes, self.limit, "memory_budget"));
        }
        let started = Instant::now();
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used + bytes > self.limit {
            let left = PATIENCE.saturating_sub(started.elapsed());
            if left.is_zero() {
                let waited = started.elapsed();
                return Err(Error::Timeout { stage: "convert", culprit: "memory of other tasks".into(), waited });
            }
            used = self.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *used += bytes;
        // The sum of all permits is within the pool's budget, as it is within this one.
        let reservation = self.pool.as_ref().and_then(|pool| pool.try_reserve(usize::try_from(bytes).ok()?));
        Ok(Permit { budget: self, bytes, _reservation: reservation })
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.budget.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.budget.freed.notify_all();
    }
}

/// What a conversion has done so far, and the wish that it stop. Shared with whoever watches.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) total: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Rows written.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Bytes read of the source.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the source; 0 while they are not known.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Asks the conversion to stop after the batches in flight. What is finished stays for `resume`.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_waited_for_and_given_back() {
        let budget = Budget::new(10);
        let first = budget.reserve(7, String::new).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.reserve(4, String::new).map(drop));
            drop(first);
            waiting.join().unwrap().unwrap();
        });
        assert!(matches!(budget.reserve(11, || "a row group".into()), Err(Error::Limit { asked: 11, limit: 10, .. })));
        drop(budget.reserve(10, String::new).unwrap());
    }
}
