//! What is fetched ahead of its use, by all readers of a process together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Most bytes of row groups that are fetched ahead at once, unless one alone has more; in units of a permit.
const AT_ONCE: u64 = 64 << 20;
const PERMIT: u64 = 4 << 10;

/// What is fetched ahead, by all readers together.
#[derive(Debug)]
pub(super) struct Ahead {
    at_once: Semaphore,
    /// Bytes of blocks that have no room yet.
    coming: Arc<AtomicU64>,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { at_once: Semaphore::new((AT_ONCE / PERMIT) as usize), coming: Arc::default() }
    }
}

/// A block that is fetched ahead of its use and has no room yet.
#[derive(Debug)]
pub(super) struct Coming {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Ahead {
    /// Waits until `bytes` more may be fetched.
    pub(super) async fn may_begin(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let permits = bytes.div_ceil(PERMIT).clamp(1, AT_ONCE / PERMIT);
        // It is never closed, and the permits are fewer than 2^32.
        self.at_once.acquire_many(permits as u32).await.ok()
    }

    /// Counts `bytes` until what is returned is dropped, and says how many there were before.
    pub(super) fn begin(&self, bytes: u64) -> (u64, Coming) {
        let before = self.coming.fetch_add(bytes, Ordering::Relaxed);
        (before, Coming { bytes, all: Arc::clone(&self.coming) })
    }
}
