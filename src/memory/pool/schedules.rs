//! The budget under every order of its users: who reserves, gives back, grows, shrinks and leaves the queue, as seeds give it.
//!
//! The code is the pool itself. The scheduler chooses who is next wherever somebody waits, and at the points where the pool has let go of its
//! lock and is not done yet.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::future::{block_on, spawn, yield_now};

use super::{Pool, Reservation};
use crate::memory::SystemAllocator;

thread_local! {
    /// True while schedules are tried on this thread. Other tests have no scheduler to ask.
    static TRIED: Cell<bool> = const { Cell::new(false) };
}

/// A point between two steps of the pool.
pub(super) fn step() {
    if TRIED.get() && !std::thread::panicking() {
        shuttle::thread::yield_now();
    }
}

/// Tries `run` with random schedules, and with those in which few changes of the order suffice to find a defect.
fn tried(run: fn()) {
    let counts = if std::env::var_os("BOWSTRING_SOAK").is_some() { 10_000 } else { 1_000 };
    TRIED.set(true);
    shuttle::check_random(run, counts);
    shuttle::check_pct(run, counts, 3);
    TRIED.set(false);
}

const BUDGET: usize = 10;

fn pool() -> Arc<Pool> {
    Pool::without_recycling(Arc::new(SystemAllocator), BUDGET)
}

/// Bytes that tasks believe to have.
#[derive(Debug, Default)]
struct Held(AtomicUsize);

impl Held {
    fn take(&self, bytes: usize) {
        let sum = self.0.fetch_add(bytes, Ordering::SeqCst) + bytes;
        assert!(sum <= BUDGET, "{sum} bytes are out");
    }

    fn give(&self, reservation: Reservation) {
        self.0.fetch_sub(reservation.bytes(), Ordering::SeqCst);
        drop(reservation);
    }
}

/// Polls `future` so often at most, and drops it then.
async fn impatient<T>(mut polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        std::task::Poll::Ready(found) => std::task::Poll::Ready(Some(found)),
        std::task::Poll::Pending if polls == 0 => std::task::Poll::Ready(None),
        std::task::Poll::Pending => {
            polls -= 1;
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        }
    })
    .await
}

#[test]
fn everybody_gets_memory_and_nobody_too_much() {
    tried(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let tasks: Vec<_> = [7, 4, 10, 3]
            .into_iter()
            .map(|bytes| {
                let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                spawn(async move {
                    for _ in 0..2 {
                        let reservation = pool.reserve(bytes).await.unwrap();
                        held.take(bytes);
                        yield_now().await;
                        held.give(reservation);
                    }
                })
            })
            .collect();
        block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(pool.used(), 0);
        assert!(pool.try_reserve(BUDGET).is_some(), "somebody is still in the queue");
    });
}

#[test]
fn whoever_leaves_the_queue_keeps_nobody_waiting() {
    tried(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let first = pool.try_reserve(6).unwrap();
        held.take(6);
        let leaving: Vec<_> = [0, 1, 2]
            .into_iter()
            .map(|polls| {
                let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                spawn(async move {
                    // It does not fit while the first is there, and is in the way of the others.
                    if let Some(reservation) = impatient(polls, pool.reserve(9)).await {
                        let reservation = reservation.unwrap();
                        held.take(9);
                        yield_now().await;
                        held.give(reservation);
                    }
                })
            })
            .collect();
        let staying: Vec<_> = [2, 3]
            .into_iter()
            .map(|bytes| {
                let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                spawn(async move {
                    let reservation = pool.reserve(bytes).await.unwrap();
                    held.take(bytes);
                    yield_now().await;
                    held.give(reservation);
                })
            })
            .collect();
        block_on(async {
            for task in leaving {
                task.await.unwrap();
            }
            // The first is given back only when those that stay have theirs: they fit beside it.
            for task in staying {
                task.await.unwrap();
            }
        });
        held.give(first);
        assert_eq!(pool.used(), 0);
        assert!(pool.try_reserve(BUDGET).is_some(), "somebody is still in the queue");
    });
}
