//! A stream whose items are made to the end though its client stops the transport.
//!
//! A transport need not poll an answer on which its client has closed the window: tonic's encoder asks for the next item before it sends
//! what it has, and some versions of hyper look at the window first. An item that is being made would keep its place before others that
//! wait for memory, and what it holds already. So an item that is not there at once is made by a task: it waits for its client only when
//! it is whole, as what is unread, which has an end.

use std::panic;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{Stream, StreamExt};
use tokio::task::JoinSet;

/// See the module. Dropping it ends the task.
pub(crate) struct InTask<S: Stream>(State<S>);

enum State<S: Stream> {
    /// No item is being made.
    Here(Pin<Box<S>>),
    Making(JoinSet<Made<S>>),
    Ended,
}

/// An item, and the stream for the next one.
type Made<S> = (Option<<S as Stream>::Item>, Pin<Box<S>>);

impl<S: Stream> InTask<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(State::Here(Box::pin(stream)))
    }
}

impl<S> Stream for InTask<S>
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
{
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        loop {
            match &mut self.0 {
                State::Here(stream) => {
                    // Most batches are there when they are asked for: a task would only cost time.
                    if let Poll::Ready(item) = stream.as_mut().poll_next(context) {
                        return Poll::Ready(item);
                    }
                    let State::Here(mut stream) = std::mem::replace(&mut self.0, State::Ended) else { continue };
                    let mut task = JoinSet::new();
                    task.spawn(async move { (stream.next().await, stream) });
                    self.0 = State::Making(task);
                }
                State::Making(task) => match ready!(task.poll_join_next(context)) {
                    Some(Ok((item, stream))) => {
                        self.0 = State::Here(stream);
                        return Poll::Ready(item);
                    }
                    Some(Err(error)) => {
                        self.0 = State::Ended;
                        if let Ok(panic) = error.try_into_panic() {
                            panic::resume_unwind(panic);
                        }
                    }
                    None => self.0 = State::Ended,
                },
                State::Ended => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::*;

    /// Numbers, each of which takes a permit that it gives back when it is made.
    fn numbers(memory: &Arc<Semaphore>) -> impl Stream<Item = u32> + Send + use<> {
        let memory = Arc::clone(memory);
        futures::stream::unfold(0, move |number| {
            let memory = Arc::clone(&memory);
            async move {
                let _held = memory.acquire().await.unwrap();
                Some((number, number + 1))
            }
        })
    }

    #[tokio::test]
    async fn an_item_that_nobody_polls_for_gives_back_what_it_was_granted() {
        let memory = Arc::new(Semaphore::new(0));
        let mut parked = InTask::new(numbers(&memory));
        assert_eq!(parked.next().now_or_never(), None, "it waits, and then its client closes its window");
        let second = memory.acquire();
        memory.add_permits(1);
        drop(timeout(Duration::from_secs(10), second).await.expect("others wait for one that is not polled").unwrap());
        assert_eq!((parked.next().await, parked.next().await), (Some(0), Some(1)), "nothing is lost");
    }

    #[tokio::test]
    async fn dropping_a_stream_ends_its_task() {
        let memory = Arc::new(Semaphore::new(0));
        let mut left = InTask::new(numbers(&memory));
        assert_eq!(left.next().now_or_never(), None);
        drop(left);
        timeout(Duration::from_secs(10), async {
            while Arc::strong_count(&memory) > 1 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    #[should_panic(expected = "in the stream")]
    async fn a_panic_is_passed_on() {
        let stream = futures::stream::once(async {
            tokio::task::yield_now().await;
            panic!("in the stream");
        });
        InTask::new(stream).map(|(): ()| ()).next().await;
    }

    #[tokio::test]
    async fn items_that_are_there_need_no_task() {
        let mut stream = InTask::new(futures::stream::iter(0..3));
        for number in 0..3 {
            assert_eq!(stream.next().now_or_never(), Some(Some(number)));
        }
        assert_eq!((stream.next().await, stream.next().await), (None, None));
    }
}
