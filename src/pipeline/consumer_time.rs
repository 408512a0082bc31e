//! A consumer's time: busy with the last batch, or waiting for the next, and then for what.
//!
//! ```text
//!   asks ── waits, in one call or several ──► takes ── outside ──► asks ── ...
//! ```
//! Every moment from the first call on has one [`Cause`], except those between two calls of one wait, which are nobody's.

use std::time::{Duration, Instant};

use super::cause::{CAUSES, Cause, Spent};
use super::stats::TimeSpent;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ConsumerTime {
    /// Since when it is outside with the last batch.
    outside: Option<Instant>,
    wait: Option<Wait>,
    spent: Spent,
}

/// A wait for a batch.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Since when, and since when in the last call.
    from: Instant,
    called: Instant,
    /// Time in calls.
    waited: Duration,
}

impl ConsumerTime {
    /// A call for the next batch begins.
    pub(crate) fn asks(&mut self, now: Instant) {
        if let Some(since) = self.outside.take() {
            self.add(Cause::Consumer, now.saturating_duration_since(since));
        }
        let wait = self.wait.get_or_insert(Wait { from: now, called: now, waited: Duration::ZERO });
        wait.called = now;
    }

    /// The call ends without a batch; the wait goes on with the next call.
    pub(crate) fn gives_up(&mut self, now: Instant) {
        if let Some(wait) = &mut self.wait {
            wait.waited += now.saturating_duration_since(wait.called);
        }
    }

    /// The call ends with a batch; `waits` says what a wait for it between two moments was for.
    pub(crate) fn takes(&mut self, now: Instant, waits: impl FnOnce(Instant, Instant) -> Spent) {
        self.gives_up(now);
        if let Some(Wait { from, waited, .. }) = self.wait.take() {
            let whole = now.saturating_duration_since(from);
            let in_calls = if whole.is_zero() { 0.0 } else { waited.as_secs_f64() / whole.as_secs_f64() };
            for (spent, time) in self.spent.iter_mut().zip(waits(from, now)) {
                *spent += time.mul_f64(in_calls.min(1.0));
            }
        }
        self.outside = Some(now);
    }

    /// It goes elsewhere: a wait that is under way was in vain, and the time from here to the next call is not counted.
    pub(crate) fn leaves(&mut self) {
        self.outside = None;
        if let Some(wait) = self.wait.take() {
            self.add(Cause::Queue, wait.waited);
        }
    }

    /// The time so far; that of a wait that was given up goes to `doing`.
    pub(crate) fn spent(&self, doing: Cause) -> TimeSpent {
        let mut seconds = self.spent.map(|time| time.as_secs_f64());
        if let Some(wait) = &self.wait {
            seconds[doing as usize] += wait.waited.as_secs_f64();
        }
        TimeSpent(seconds)
    }

    fn add(&mut self, cause: Cause, time: Duration) {
        self.spent[cause as usize] += time;
    }
}

/// A wait from `from` to `to` for one thing alone.
pub(crate) fn only(cause: Cause, from: Instant, to: Instant) -> Spent {
    let mut spent = [Duration::ZERO; CAUSES];
    spent[cause as usize] = to.saturating_duration_since(from);
    spent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_of_a_taker_is_counted_once() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let millis = |time: &ConsumerTime| time.spent(Cause::Store).0.map(|time| (time * 1e3).round() as u64);
        let of = |cause: Cause, time: &ConsumerTime| millis(time)[cause as usize];
        let mut time = ConsumerTime::default();
        time.asks(at(0));
        time.takes(at(40), |from, to| only(Cause::Decode, from, to));
        assert_eq!(millis(&time).iter().sum::<u64>(), 40, "it is outside, and nobody knows for how long");
        time.asks(at(100));
        assert_eq!((of(Cause::Decode, &time), of(Cause::Consumer, &time)), (40, 60));
        // Two calls of one wait, with a pause of 100 ms between them that is nobody's.
        time.gives_up(at(150));
        assert_eq!(of(Cause::Store, &time), 50, "what is under way");
        time.asks(at(250));
        time.takes(at(300), |from, to| {
            assert_eq!((from, to), (at(100), at(300)));
            only(Cause::Transform, from, to)
        });
        assert_eq!((of(Cause::Store, &time), of(Cause::Transform, &time)), (0, 100));
        time.leaves();
        time.asks(at(900));
        time.gives_up(at(910));
        time.leaves();
        assert_eq!((of(Cause::Consumer, &time), of(Cause::Queue, &time)), (60, 10));
    }
}
