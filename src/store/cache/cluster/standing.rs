//! When a peer is asked again after it failed: a decision, without a clock of its own.
//!
//! A peer that failed is passed by for a second, then for two, up to half a minute. Then one call tries it; the others pass it by until
//! that one has come back.

use std::time::{Duration, Instant};

/// Shortest and longest time that a peer is passed by.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is known of a peer from its answers.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Failures in a row.
    failures: u32,
    /// Time of the last one.
    failed: Option<Instant>,
    /// It is passed by until then.
    until: Option<Instant>,
}

impl Standing {
    /// Returns true if the peer may be asked now; whoever hears that asks it.
    pub(super) fn may_be_asked(&mut self, now: Instant) -> bool {
        match self.until {
            None => true,
            Some(until) if now < until => false,
            // One tries it; if it does not come back, somebody else does after a while.
            Some(_) => {
                self.until = Some(now + self.pause());
                true
            }
        }
    }

    /// Returns true if it has failed since `begin`, and has not answered after that.
    pub(super) fn has_failed_since(&self, begin: Instant) -> bool {
        self.failed.is_some_and(|failed| failed >= begin)
    }

    /// Notes that a call which began at `asked` failed at `now`. Returns true if the peer was good until then. Calls that began before
    /// the last failure tell nothing new.
    pub(super) fn failed(&mut self, asked: Instant, now: Instant) -> bool {
        if self.failed.is_some_and(|failed| asked < failed) {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        self.failed = Some(now);
        self.until = Some(now + self.pause());
        self.failures == 1
    }

    /// Notes an answer. Returns true if the peer had failed before.
    pub(super) fn answered(&mut self) -> bool {
        std::mem::take(self).failures > 0
    }

    fn pause(&self) -> Duration {
        let doubled = PAUSES.0.saturating_mul(1 << self.failures.saturating_sub(1).min(16));
        doubled.min(PAUSES.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_is_passed_by_for_longer_each_time_and_tried_by_one() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut standing = Standing::default();
        assert!(standing.may_be_asked(at(0.0)) && standing.may_be_asked(at(0.0)));
        assert!(standing.failed(at(0.0), at(1.0)));
        // Others that were asked at the same time fail as well: that is one failure.
        assert!(!standing.failed(at(0.5), at(1.1)) && !standing.failed(at(0.9), at(1.2)));
        assert!(!standing.may_be_asked(at(1.9)));
        assert!(standing.may_be_asked(at(2.0)) && !standing.may_be_asked(at(2.1)), "one tries it");
        assert!(!standing.failed(at(2.0), at(2.5)), "it is told once");
        assert!(!standing.may_be_asked(at(4.4)) && standing.may_be_asked(at(4.6)));
        let mut now = 5.0;
        for _ in 0..40 {
            standing.failed(at(now), at(now));
            now += 31.0;
            assert!(standing.may_be_asked(at(now)), "half a minute is the longest");
        }
        standing.failed(at(now), at(now));
        assert!(standing.has_failed_since(at(now)) && !standing.has_failed_since(at(now + 1.0)));
        assert!(standing.answered() && !standing.answered() && !standing.has_failed_since(at(0.0)));
        assert!(standing.may_be_asked(at(now)) && standing.may_be_asked(at(now)));
    }
}
