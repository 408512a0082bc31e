//! When a read that is late is asked for a second time, a hedge. Pure: time comes in as a number.
//!
//! Stores answer most requests soon, and some of them twenty times as late, for no reason that a reader could see; another request for the
//! same bytes is then most likely answered soon. Nothing is sent before a read is slower than nearly all others of its size, and all
//! second requests together stay within a share of the first, so that a store that is slow as a whole gets hardly more to do.

use std::time::Duration;

use super::latency::Durations;

/// A read is late if so many of a hundred like it were done by then.
const PERCENT: u64 = 95;
/// Requests of about its size that must be known for that.
const LEAST: u64 = 20;
/// No read is late before this: a second request would gain too little.
const FLOOR: Duration = Duration::from_millis(50);
/// Requests that pay for one second request: 5 %.
const PRICE: u64 = 20;
/// Second requests that can be saved up.
const SAVED: u64 = 10;
/// Most bytes that second requests under way ask for: they need memory that no budget holds.
const MOST_BYTES: u64 = 64 << 20;
/// Time without second requests after the store said that it has too many.
const REST: Duration = Duration::from_secs(30);
/// Time until a read that could have no second request asks again.
const AGAIN: Duration = Duration::from_millis(250);

/// The second requests to one origin.
#[derive(Debug, Default)]
pub(super) struct Hedge {
    /// Requests that have not paid for a second one yet.
    paid: u64,
    bytes_under_way: u64,
    /// End of the rest.
    rest: Option<Duration>,
    sent: u64,
    won: u64,
}

/// What becomes of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It waits so long, and asks again.
    Wait(Duration),
    /// It is requested a second time, which is counted.
    Send,
}

impl Hedge {
    /// Counts a first request.
    pub(super) fn begun(&mut self) {
        self.paid = (self.paid + 1).min(SAVED * PRICE);
    }

    /// What becomes of a read of `bytes` bytes that has taken `waited` so far, where the last ones of about its size took so long as `like`
    /// says.
    pub(super) fn decide(&mut self, now: Duration, bytes: u64, waited: Duration, like: &Durations) -> Decision {
        if like.count() < LEAST {
            return Decision::Wait(AGAIN);
        }
        let late = like.within(PERCENT, 100).max(FLOOR);
        if waited < late {
            return Decision::Wait(late - waited);
        }
        let is_resting = self.rest.is_some_and(|end| now < end);
        let all = self.bytes_under_way.saturating_add(bytes);
        if is_resting || self.paid < PRICE || all > MOST_BYTES {
            return Decision::Wait(AGAIN);
        }
        self.paid -= PRICE;
        self.bytes_under_way = all;
        self.sent += 1;
        Decision::Send
    }

    /// Counts the end of a second request for `bytes` bytes, which was the first one that was answered, or not.
    pub(super) fn over(&mut self, bytes: u64, won: bool) {
        self.bytes_under_way = self.bytes_under_way.saturating_sub(bytes);
        self.won += u64::from(won);
    }

    /// The store has too many requests.
    #[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "no file of this machine says so"))]
    pub(super) fn too_many(&mut self, now: Duration) {
        self.rest = Some(now + REST);
    }

    /// Second requests that were sent, and those of them that were answered first.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.sent, self.won)
    }
}

#[cfg(test)]
mod tests {
    use super::super::latency::Latency;
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const MIB: u64 = 1 << 20;

    /// `count` requests of 1 MiB that took `millis`.
    fn took(count: u64, millis: u64) -> Durations {
        let mut latency = Latency::default();
        (0..count).for_each(|_| latency.add(NOW, MIB, Duration::from_millis(millis)));
        latency.like(NOW, MIB)
    }

    fn after(requests: u64) -> Hedge {
        let mut hedge = Hedge::default();
        (0..requests).for_each(|_| hedge.begun());
        hedge
    }

    fn is_sent(hedge: &mut Hedge, bytes: u64, waited: u64, like: &Durations) -> bool {
        hedge.decide(NOW, bytes, Duration::from_millis(waited), like) == Decision::Send
    }

    #[test]
    fn a_read_is_late_after_nearly_all_like_it_and_never_early() {
        let mut hedge = after(1000);
        let wait =
            |hedge: &mut Hedge, waited, like: &Durations| hedge.decide(NOW, MIB, Duration::from_millis(waited), like);
        assert_eq!(wait(&mut hedge, 9000, &took(LEAST - 1, 1)), Decision::Wait(AGAIN), "too little is known");
        assert_eq!(wait(&mut hedge, 20, &took(LEAST, 1)), Decision::Wait(FLOOR - Duration::from_millis(20)));
        assert_eq!(wait(&mut hedge, 50, &took(LEAST, 1)), Decision::Send);
        let slow = took(100, 400);
        let Decision::Wait(left) = wait(&mut hedge, 300, &slow) else { panic!("too early") };
        assert!(left > Duration::from_millis(100) && left <= Duration::from_millis(200), "{left:?}");
        assert_eq!(wait(&mut hedge, 500, &slow), Decision::Send);
        assert_eq!(hedge.counts(), (2, 0));
    }

    #[test]
    fn second_requests_are_at_most_a_twentieth_and_come_in_no_storm() {
        let (mut hedge, like, mut sent) = (Hedge::default(), took(100, 1), 0_u64);
        for requests in 1..=10_000 {
            hedge.begun();
            // Every read is late, and asks more than once.
            for _ in 0..3 {
                if is_sent(&mut hedge, 1, 900, &like) {
                    sent += 1;
                    hedge.over(1, false);
                }
            }
            assert!(sent * 20 <= requests, "{sent} of {requests}");
        }
        assert_eq!(sent, 500, "and all of that");
        let mut hedge = after(1_000_000);
        assert_eq!((0..1000).filter(|_| is_sent(&mut hedge, 1, 900, &like)).count() as u64, SAVED);
    }

    #[test]
    fn second_requests_under_way_are_for_so_many_bytes() {
        let (mut hedge, like) = (after(1000), took(100, 1));
        assert!(!is_sent(&mut hedge, MOST_BYTES + 1, 900, &like));
        assert!(is_sent(&mut hedge, MOST_BYTES - 1, 900, &like) && is_sent(&mut hedge, 1, 900, &like));
        assert!(!is_sent(&mut hedge, 1, 900, &like));
        hedge.over(MOST_BYTES - 1, true);
        assert!(is_sent(&mut hedge, MIB, 900, &like));
        assert_eq!(hedge.counts(), (3, 1));
    }

    #[test]
    fn a_store_that_has_too_many_requests_gets_no_second_ones_for_a_while() {
        let (mut hedge, like) = (after(1000), took(100, 1));
        hedge.too_many(NOW - REST / 2);
        assert!(!is_sent(&mut hedge, MIB, 900, &like));
        let later = NOW + REST / 2;
        assert_eq!(hedge.decide(later, MIB, Duration::from_secs(1), &like), Decision::Send);
    }
}
