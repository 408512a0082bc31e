//! Which part of the time of a read goes to the origin, and which to a cache.
//!
//! The layers between the reader of a row group and the store know nothing of that question, so the answer goes beside them, with the
//! task that reads: once for each range, never for each row.

use std::cell::Cell;
use std::time::Duration;

tokio::task_local! {
    /// Time of ranges, and of those requests of them that went to their origin.
    static SPENT: Cell<(Duration, Duration)>;
}

/// Does `work`, and returns with its result the share of its time, from 0 to 1, that was spent at origins: 1 if no range was read.
pub(crate) async fn measured<T>(work: impl Future<Output = T>) -> (T, f64) {
    SPENT
        .scope(Cell::default(), async {
            let result = work.await;
            let (all, origin) = SPENT.with(Cell::get);
            let share = if all.is_zero() { 1.0 } else { origin.as_secs_f64() / all.as_secs_f64() };
            (result, share.clamp(0.0, 1.0))
        })
        .await
}

/// Counts the time of one range.
pub(super) fn range(took: Duration) {
    add(took, Duration::ZERO);
}

/// Counts the time of a request to an origin, which is part of that of a range.
pub(super) fn origin(took: Duration) {
    add(Duration::ZERO, took);
}

fn add(range: Duration, origin: Duration) {
    // Nobody asks where it is not within `measured`.
    let _ = SPENT.try_with(|spent| {
        let (ranges, origins) = spent.get();
        spent.set((ranges.saturating_add(range), origins.saturating_add(origin)));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_is_told_apart_and_does_not_mix_with_that_of_other_tasks() {
        let (ranges, share) = measured(async {
            range(Duration::from_millis(8));
            origin(Duration::from_millis(2));
            let (_, beside) = tokio::spawn(measured(async { range(Duration::from_secs(9)) })).await.unwrap();
            assert_eq!(beside, 0.0, "a cache had it");
            1
        })
        .await;
        assert_eq!((ranges, share), (1, 0.25));
        assert_eq!(measured(async {}).await.1, 1.0, "files of this machine have no cache");
        origin(Duration::from_secs(1));
    }
}
