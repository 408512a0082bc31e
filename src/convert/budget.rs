//! The byte budget that all tasks share, and their progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::memory::{Pool, Reservation, SystemAllocator};

/// Longest wait for others to return bytes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A budget of bytes, first come first served: a [`Pool`] for threads that may block.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Pool>);

/// Bytes of a [`Budget`], returned on drop.
pub(crate) type Permit = Reservation;

impl Budget {
    /// Makes a budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Pool::without_recycling(Arc::new(SystemAllocator), usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    /// Makes a budget of `limit` bytes whose unused part may keep freed blocks for the next row group: returned to the system's
    /// allocator and allocated again, such blocks fragment memory to several times what is in use.
    pub(crate) fn lending(limit: u64) -> Self {
        Self(Pool::new(Arc::new(SystemAllocator), usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    /// Takes `bytes`, waiting until they are free. A task holds one permit at a time, so that none waits for itself.
    ///
    /// # Errors
    /// `Limit` if the budget is smaller than that; `Timeout` if nothing is returned for ten minutes.
    pub(crate) fn reserve(&self, bytes: u64, what: impl FnOnce() -> String) -> Result<Permit> {
        let limit = self.0.budget();
        let asked = usize::try_from(bytes).ok().filter(|asked| *asked <= limit);
        let asked = asked.ok_or_else(|| Error::limit(what(), bytes, limit as u64, "memory_budget"))?;
        let late = || Error::Timeout { stage: "convert", culprit: "memory of other tasks".into(), waited: PATIENCE };
        self.0.reserve_blocking(asked, PATIENCE)?.ok_or_else(late)
    }
}

/// Counts of a running conversion, and the request to stop it, or a comparison. Shared with observers.
#[derive(Debug, Default)]
pub struct Progress {
    pub(crate) rows: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) total: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Returns the rows written; none of a comparison.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Returns the bytes read of the source, and of what was written if it is read again; of a comparison, in all passes over both datasets.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many of them there are to read, as far as is known: more passes may be needed; 0 while it is unknown.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Asks the conversion, or the comparison, to stop after the batches in flight. Finished work of a conversion stays for `resume`.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// For a moment at which work can stop.
    ///
    /// # Errors
    /// `Closed` if it was asked to.
    pub(crate) fn go_on(&self) -> Result<()> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Error::Closed {
                why: "the work was stopped; if it is a conversion, resume goes on with it".into(),
            });
        }
        Ok(())
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
