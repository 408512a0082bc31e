//! The budget in many orders of its users: who reserves, gives back, leaves the queue, and whose buffers come back.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use futures::poll;
use shuttle::future::{JoinHandle, block_on, spawn, yield_now};

use super::*;
use crate::memory::SystemAllocator;
use crate::mutex::{impatient, in_many_orders};

const BUDGET: usize = 10;

fn pool() -> Arc<Pool> {
    Pool::without_recycling(Arc::new(SystemAllocator), BUDGET)
}

/// Bytes that tasks believe to have.
#[derive(Debug, Default)]
struct Held(AtomicUsize);

impl Held {
    /// Has `reservation` while others go on.
    async fn have(&self, reservation: Reservation) {
        let sum = self.0.fetch_add(reservation.bytes(), Ordering::SeqCst) + reservation.bytes();
        assert!(sum <= BUDGET, "{sum} bytes are out");
        yield_now().await;
        self.0.fetch_sub(reservation.bytes(), Ordering::SeqCst);
    }
}

/// Three tasks that ask for `leaving` bytes each and give up sooner or later, and two that stay until they have had `staying`.
fn queue(pool: &Arc<Pool>, held: &Arc<Held>, leaving: usize, staying: [usize; 2]) -> Vec<JoinHandle<()>> {
    let leaves = |polls| {
        let (pool, held) = (Arc::clone(pool), Arc::clone(held));
        spawn(async move {
            if let Some(reservation) = impatient(polls, pool.reserve(leaving)).await {
                held.have(reservation.unwrap()).await;
            }
        })
    };
    let stays = |bytes| {
        let (pool, held) = (Arc::clone(pool), Arc::clone(held));
        spawn(async move { held.have(pool.reserve(bytes).await.unwrap()).await })
    };
    [0, 1, 2].map(leaves).into_iter().chain(staying.map(stays)).collect()
}

/// Waits for all of `tasks`. One for which nobody will ever have memory fails the test: no task can go on then.
fn all(tasks: Vec<JoinHandle<()>>) {
    block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// All is given back, and nobody waits.
fn is_whole(pool: &Arc<Pool>, bytes: usize) {
    assert_eq!(pool.used(), 0);
    assert!(pool.try_reserve(bytes).is_some(), "somebody is still in the queue");
}

#[test]
fn in_many_orders_everybody_gets_memory_and_nobody_too_much() {
    in_many_orders(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let task = |bytes| {
            let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
            spawn(async move {
                for _ in 0..2 {
                    held.have(pool.reserve(bytes).await.unwrap()).await;
                    if let Some(reservation) = pool.try_reserve(1) {
                        held.have(reservation).await;
                    }
                }
            })
        };
        all([7, 4, 10, 3].map(task).into());
        is_whole(&pool, BUDGET);
    });
}

#[test]
fn in_many_orders_whoever_leaves_the_queue_keeps_nobody_waiting() {
    in_many_orders(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let first = pool.try_reserve(6).unwrap();
        // Those that leave do not fit beside the first, and are in the way of those that would.
        let tasks = queue(&pool, &held, 9, [2, 3]);
        // It is given back only when those that stay have had theirs.
        all(tasks);
        drop(first);
        is_whole(&pool, BUDGET);
    });
}

#[test]
fn in_many_orders_what_is_granted_to_one_that_has_left_goes_to_the_next() {
    in_many_orders(|| {
        let (pool, held) = (pool(), Arc::new(Held::default()));
        let first = pool.try_reserve(6).unwrap();
        let tasks = queue(&pool, &held, 8, [9, 5]);
        drop(first);
        all(tasks);
        is_whole(&pool, BUDGET);
    });
}

#[test]
fn in_many_orders_nobody_overtakes_whoever_waits_already() {
    in_many_orders(|| {
        let pool = pool();
        let (waits, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let first = pool.try_reserve(4).unwrap();
        let all_of_it = {
            let (pool, waits, served) = (Arc::clone(&pool), Arc::clone(&waits), Arc::clone(&served));
            spawn(async move {
                let mut waiting = pin!(pool.reserve(BUDGET));
                let reservation = match poll!(waiting.as_mut()) {
                    Poll::Ready(reservation) => reservation,
                    Poll::Pending => {
                        waits.store(true, Ordering::SeqCst);
                        waiting.await
                    }
                };
                served.store(true, Ordering::SeqCst);
                drop(reservation.unwrap());
            })
        };
        let little = |waiting: bool| {
            let (pool, waits, served) = (Arc::clone(&pool), Arc::clone(&waits), Arc::clone(&served));
            spawn(async move {
                for _ in 0..3 {
                    let is_later = waits.load(Ordering::SeqCst);
                    let reservation = if waiting { pool.reserve(2).await.ok() } else { pool.try_reserve(2) };
                    let is_fair = reservation.is_none() || !is_later || served.load(Ordering::SeqCst);
                    assert!(is_fair, "who asked for all of it waits, and others get some");
                    yield_now().await;
                }
            })
        };
        let tasks = vec![all_of_it, little(true), little(false)];
        drop(first);
        all(tasks);
        is_whole(&pool, BUDGET);
    });
}

#[test]
fn in_many_orders_kept_buffers_are_within_the_budget() {
    in_many_orders(|| {
        const BUFFERS: usize = 3;
        let pool = Pool::new(Arc::new(SystemAllocator), BUFFERS * SIZE_CLASS);
        let is_within = |pool: &Pool| {
            let state = pool.lock();
            let held = state.used + state.kept_bytes;
            assert!(held <= pool.budget, "{held} bytes of {}", pool.budget);
            assert_eq!(state.kept_bytes, state.kept.values().flatten().map(Raw::capacity).sum::<usize>());
        };
        let task = |classes: usize| {
            let pool = Arc::clone(&pool);
            spawn(async move {
                for _ in 0..2 {
                    let reservation = pool.reserve(classes * SIZE_CLASS).await.unwrap();
                    is_within(&pool);
                    let mut buffer = reservation.allocate(classes * SIZE_CLASS).unwrap();
                    buffer.fill(classes as u8);
                    yield_now().await;
                    is_within(&pool);
                    assert!(buffer.iter().all(|byte| *byte == classes as u8), "two have one buffer");
                    drop(buffer);
                    is_within(&pool);
                }
            })
        };
        all([1, 2, 1, 3].map(task).into());
        is_whole(&pool, BUFFERS * SIZE_CLASS);
    });
}
