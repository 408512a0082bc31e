//! Whether a block that is late comes from a slow peer, or over a link of this host that is busy.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::wire;

/// A block that gets less than this part of an even share of a busy link comes from a slow peer.
const UNFAIR: u64 = 4;
/// Time that a block may take beyond its own, and after which its share is looked at again.
const MORE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_secs(5);
/// Bytes of blocks that have come to this process from peers and stores, and the blocks that are on their way from peers now.
static RECEIVED: AtomicU64 = AtomicU64::new(0);
static TRANSFERS: AtomicU64 = AtomicU64::new(0);

/// Notes the bytes of a block that have come from its store.
pub(super) fn received(bytes: usize) {
    RECEIVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A block on its way from a peer.
pub(super) struct Transfer {
    begin: Instant,
    /// [`RECEIVED`] when it began, and its own part since.
    before: u64,
    own: AtomicU64,
}

impl Transfer {
    pub(super) fn new() -> Self {
        TRANSFERS.fetch_add(1, Ordering::Relaxed);
        let (begin, before) = (Instant::now(), RECEIVED.load(Ordering::Relaxed));
        Self { begin, before, own: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes as u64, Ordering::Relaxed);
        received(bytes);
    }

    /// Waits for `all` of it. It may take longer than its `time` while it gets its share of what comes fast enough from everywhere: then the
    /// link of this host is busy, and the peer is not slow.
    pub(super) async fn in_time<T>(&self, time: Duration, all: impl Future<Output = T>) -> Option<T> {
        let mut all = pin!(all);
        let (mut until, last) = (self.begin + time, self.begin + time + MORE);
        loop {
            if let Ok(all) = timeout_at(until, &mut all).await {
                return Some(all);
            }
            let received = RECEIVED.load(Ordering::Relaxed).saturating_sub(self.before);
            let own = self.own.load(Ordering::Relaxed).saturating_mul(TRANSFERS.load(Ordering::Relaxed));
            if until >= last || received < self.begin.elapsed().as_secs() * wire::PACE || own < received / UNFAIR {
                return None;
            }
            until = last.min(until + STEP);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        TRANSFERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, sleep_until};

    use super::*;

    /// How long a block of which `own` bytes come each second is waited for, while `others` come as well, in seconds; it never ends.
    async fn waits(own: usize, others: usize) -> u64 {
        let (one, other, begin) = (Transfer::new(), Transfer::new(), Instant::now());
        let all = async {
            for second in 1_u32.. {
                sleep_until(begin + Duration::from_secs(u64::from(second))).await;
                one.add(own);
                other.add(others);
            }
        };
        assert!(one.in_time(Duration::from_secs(6), all).await.is_none());
        begin.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_block_may_be_late_while_it_has_its_share_of_a_busy_link() {
        const MIB: usize = 1 << 20;
        assert_eq!(waits(MIB / 2, MIB).await, 6, "nothing is fast, so it is the peer's fault as well");
        assert_eq!(waits(MIB, 5 * MIB).await, 6 + MORE.as_secs(), "the link is busy");
        assert_eq!(waits(MIB / 4, 5 * MIB).await, 6, "others come faster");
        let quick = Transfer::new();
        assert!(quick.in_time(Duration::from_secs(6), sleep(Duration::from_secs(5))).await.is_some());
    }
}
