//! The byte budget that all tasks share, and their progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Pool, Reservation, SystemAllocator};

/// Longest wait for others to give bytes back.
const PATIENCE: Duration = Duration::from_secs(600);

/// A budget of bytes, first come first served: a [`Pool`] for threads that may block.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Pool>);

/// Bytes of a [`Budget`], given back when dropped.
pub(crate) type Permit = Reservation;

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Pool::without_recycling(Arc::new(SystemAllocator), usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    /// A budget of `limit` bytes, of which what nobody has taken may hold freed blocks for the next row group: given back to the
    /// system's allocator and taken again, they leave holes that grow to several times what is in use.
    pub(crate) fn lending(limit: u64) -> Self {
        Self(Pool::new(Arc::new(SystemAllocator), usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    /// Takes `bytes`, waiting until they are there. A task holds one permit at a time, so that none waits for itself.
    ///
    /// # Errors
    /// `Limit` if there can never be so many; `Timeout` if nobody gives any back for ten minutes.
    pub(crate) fn reserve(&self, bytes: u64, what: impl FnOnce() -> String) -> Result<Permit> {
        let limit = self.0.budget();
        let asked = usize::try_from(bytes).ok().filter(|asked| *asked <= limit);
        let asked = asked.ok_or_else(|| Error::limit(what(), bytes, limit as u64, "memory_budget"))?;
        let late = || Error::Timeout { stage: "convert", culprit: "memory of other tasks".into(), waited: PATIENCE };
        self.0.reserve_blocking(asked, PATIENCE)?.ok_or_else(late)
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
    pub(crate) fn is_stopped(&self) -> bool {
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
