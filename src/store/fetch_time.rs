//! Which part of the time of a read goes to the origin, and which to a cache.
//!
//! The layers between the reader of a row group and the store know nothing of that question, so the answer goes beside them, with the
//! task that reads: once for each range, never for each row. Where steps are traced, the requests themselves go with it.

use std::cell::RefCell;
use std::ops::Range;
use std::time::{Duration, Instant as StdInstant};

use tokio::time::Instant;

/// Requests of one read that are kept; a row group seldom has more.
const KEPT: usize = 64;

/// One request of a range to its origin, for a trace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) url: String,
    pub(crate) range: Range<u64>,
    pub(crate) began: StdInstant,
    pub(crate) ended: StdInstant,
    /// False if it failed.
    pub(crate) answered: bool,
}

#[derive(Debug, Default)]
struct Spent {
    /// True if requests are kept.
    keeps: bool,
    ranges: Duration,
    origins: Duration,
    requests: Vec<Request>,
}

tokio::task_local! {
    /// Time of ranges, and of those requests of them that went to their origin.
    static SPENT: RefCell<Spent>;
}

/// Does `work`, and returns with its result the share of its time, from 0 to 1, that was spent at origins: 1 if no range was read; and
/// the requests to origins, if the caller `keeps` them.
pub(crate) async fn measured<T>(keeps: bool, work: impl Future<Output = T>) -> (T, f64, Vec<Request>) {
    SPENT
        .scope(RefCell::new(Spent { keeps, ..Spent::default() }), async {
            let result = work.await;
            let Spent { ranges, origins, requests, .. } = SPENT.with(RefCell::take);
            let share = if ranges.is_zero() { 1.0 } else { origins.as_secs_f64() / ranges.as_secs_f64() };
            (result, share.clamp(0.0, 1.0), requests)
        })
        .await
}

/// Counts the time of one range.
pub(super) fn range(took: Duration) {
    add(|spent| spent.ranges = spent.ranges.saturating_add(took));
}

/// Counts a request to an origin for `range` of the object that `url` names; its time is part of that of a range.
pub(super) fn origin(began: Instant, range: Range<u64>, answered: bool, url: impl FnOnce() -> String) {
    let ended = Instant::now();
    add(|spent| {
        spent.origins = spent.origins.saturating_add(ended.saturating_duration_since(began));
        if spent.keeps && spent.requests.len() < KEPT {
            let (began, ended) = (began.into_std(), ended.into_std());
            spent.requests.push(Request { url: url(), range, began, ended, answered });
        }
    });
}

fn add(more: impl FnOnce(&mut Spent)) {
    // Nobody asks where it is not within `measured`.
    let _ = SPENT.try_with(|spent| more(&mut spent.borrow_mut()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_is_told_apart_and_does_not_mix_with_that_of_other_tasks() {
        let asked = |millis| {
            let began = Instant::now().checked_sub(Duration::from_millis(millis)).unwrap();
            origin(began, 0..9, true, || unreachable!("nothing is traced"));
        };
        let (result, share, requests) = measured(false, async {
            range(Duration::from_secs(80));
            asked(20_000);
            let (_, beside, _) = tokio::spawn(measured(false, async { range(Duration::from_secs(9)) })).await.unwrap();
            assert_eq!(beside, 0.0, "a cache had it");
            1
        })
        .await;
        assert!(result == 1 && (share - 0.25).abs() < 0.01 && requests.is_empty(), "{share}");
        assert_eq!(measured(true, async {}).await.1, 1.0, "files of this machine have no cache");
        asked(1);
    }
}
