//! A read whose second request, if it is late, may be answered before the first.

use std::pin::pin;
use std::time::Duration;

use futures::future::{BoxFuture, Either, select};
use tokio::time::{Instant, timeout};

use crate::error::Result;

/// What becomes of a read that is not answered yet.
pub(super) enum Next<'a, T> {
    /// It waits so long, and asks again.
    Wait(Duration),
    /// This is requested as well.
    Second(BoxFuture<'a, Result<T>>),
}

/// The answer of `first`, or of the second request that `next` makes once the time since the beginning is so long: of the one that succeeds
/// first. The other is dropped. If both fail, the error that came first is the result.
///
/// # Errors
/// Those of `first`, and of the second request. One that says that the object was replaced is no exception: the other request may have reached
/// the store before that, and its answer is then whole and of the version that is read.
pub(super) async fn race<'a, T>(
    first: impl Future<Output = Result<T>>,
    mut next: impl FnMut(Duration) -> Next<'a, T>,
) -> Result<T> {
    let mut first = pin!(first);
    let began = Instant::now();
    let second = loop {
        match next(began.elapsed()) {
            Next::Second(second) => break second,
            Next::Wait(time) => {
                if let Ok(answer) = timeout(time, first.as_mut()).await {
                    return answer;
                }
            }
        }
    };
    match select(first, second).await {
        Either::Left((Err(error), second)) => second.await.map_err(|_| error),
        Either::Right((Err(error), first)) => first.await.map_err(|_| error),
        Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::error::Error;

    const LATE: Duration = Duration::from_millis(100);

    async fn answers(after: u64, answer: std::result::Result<u32, &'static str>) -> Result<u32> {
        tokio::time::sleep(Duration::from_millis(after)).await;
        answer.map_err(|problem| Error::config("urls", problem))
    }

    /// The answer, and milliseconds until it came. The second request is sent after 100 ms.
    async fn raced(
        first: impl Future<Output = Result<u32>>,
        second: impl Future<Output = Result<u32>> + Send,
    ) -> (std::result::Result<u32, String>, u64) {
        let began = Instant::now();
        let mut second = Some(second.boxed());
        let read = race(first, |waited| match waited < LATE {
            true => Next::Wait(LATE - waited),
            false => Next::Second(second.take().unwrap()),
        });
        let read = read.await.map_err(|error| error.to_string());
        (read, u64::try_from(began.elapsed().as_millis()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_whole_answer_wins() {
        assert_eq!(raced(answers(90, Ok(1)), answers(0, Ok(2))).await, (Ok(1), 90), "there is no second one");
        assert_eq!(raced(answers(9000, Ok(1)), answers(50, Ok(2))).await, (Ok(2), 150));
        assert_eq!(raced(answers(200, Ok(1)), answers(300, Ok(2))).await, (Ok(1), 200));
        assert_eq!(raced(std::future::pending(), answers(10, Ok(2))).await, (Ok(2), 110));
    }

    #[tokio::test(start_paused = true)]
    async fn one_failure_is_no_failure_and_of_two_the_first_counts() {
        assert_eq!(raced(answers(500, Ok(1)), answers(10, Err("b"))).await, (Ok(1), 500));
        assert_eq!(raced(answers(120, Err("a")), answers(300, Ok(2))).await, (Ok(2), 400));
        for (first, second, told, end) in [(120, 300, "a", 400), (500, 10, "b", 500)] {
            let (read, took) = raced(answers(first, Err("a")), answers(second, Err("b"))).await;
            assert!(read.as_ref().unwrap_err().ends_with(told) && took == end, "{read:?} {took}");
        }
        let (read, took) = raced(answers(10, Err("a")), answers(0, Ok(2))).await;
        assert!(read.is_err() && took == 10, "a failure that comes early is told at once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_loser_is_dropped() {
        struct Told<'a>(&'a std::cell::Cell<bool>);
        impl Drop for Told<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = std::cell::Cell::new(false);
        let told = Told(&dropped);
        let first = async move {
            let _told = told;
            std::future::pending().await
        };
        assert_eq!(raced(first, answers(1, Ok(2))).await.0, Ok(2));
        assert!(dropped.get());
    }
}
