//! A member's own view of its lease: the time until which it may act as its rank, even without its server. Pure: time comes in.

use std::time::Duration;

use tokio::time::Instant;

/// The lease as its holder counts it: from the moment a call that was answered was *sent*, and a little shorter than on the server, whose
/// clock may run a little faster.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnLease {
    length: Duration,
    ends: Instant,
}

impl OwnLease {
    /// A lease of `length`, by the answer to a call that was sent at `sent`.
    pub(super) fn new(length: Duration, sent: Instant) -> Self {
        Self { length, ends: sent + (length - length / 20) }
    }

    /// Another call was answered, which was sent at `sent`.
    pub(super) fn renew(&mut self, sent: Instant) {
        *self = Self::new(self.length, sent);
    }

    /// Time at which its holder must take itself for dead.
    pub(super) fn ends(&self) -> Instant {
        self.ends
    }

    /// Returns true if the holder must take itself for dead.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.ends
    }
}
