//! Requests that ask a store, apart from those that do not: one that hangs takes no thread that names and files of others need.
//!
//! ```text
//!   /dev/fuse ─► THREADS ─► known: answered
//!                   └─────► WAITING of them ask a store ─► answered
//!                                └─ all of these wait ─► AT_ONCE threads of each store ─► answered
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::thread::gettid;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// Threads that take the kernel's requests.
pub(super) const THREADS: usize = 16;
/// Those of them that ask stores themselves, as long as stores answer: that costs no way to another thread.
const WAITING: usize = THREADS / 2;
/// Requests beyond these that are made of one store at once: each has a thread. Others of that store wait for them.
const AT_ONCE: usize = 32;
/// Threads of all stores, which is to be no limit.
const MOST: usize = 1 << 15;

pub(super) fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is whole after every statement.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Work {
    runtime: Option<Runtime>,
    /// What each store may be asked beside what it is asked now.
    stores: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    waiting: AtomicUsize,
    threads: Arc<Threads>,
}

/// The threads that ask stores now, by the system's numbers.
#[derive(Debug, Default)]
struct Threads(Mutex<HashSet<u32>>);

impl Threads {
    /// Does `work`, and knows its thread as long as that takes.
    fn during(&self, work: impl FnOnce()) {
        struct Noted<'a>(&'a Threads, u32);
        impl Drop for Noted<'_> {
            fn drop(&mut self) {
                held(&self.0.0).remove(&self.1);
            }
        }
        let number = gettid().as_raw_nonzero().get().unsigned_abs();
        held(&self.0).insert(number);
        let _noted = Noted(self, number);
        work();
    }
}

impl Work {
    /// # Errors
    /// [`Error::Closed`] if no threads can be started.
    pub(super) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MOST)
            .thread_name("bowstring-fuse")
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        let (stores, waiting, threads) = (Mutex::default(), AtomicUsize::new(0), Arc::default());
        Ok(Self { runtime: Some(runtime), stores, waiting, threads })
    }

    /// Does `work`, which asks `store`: here, or soon on another thread.
    pub(super) fn give(&self, store: Arc<str>, work: impl FnOnce() + Send + 'static) {
        let one_more = |waiting: usize| (waiting < WAITING).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok() {
            self.threads.during(work);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let fresh = || Arc::new(Semaphore::new(AT_ONCE));
        let turns = Arc::clone(held(&self.stores).entry(store).or_insert_with(fresh));
        let threads = Arc::clone(&self.threads);
        // It is there until this is dropped.
        let Some(runtime) = &self.runtime else { return };
        runtime.spawn(async move {
            let Ok(turn) = turns.acquire_owned().await else { return };
            tokio::task::spawn_blocking(move || {
                threads.during(work);
                drop(turn);
            });
        });
    }

    /// Returns true if the thread with the system's number `thread` asks a store: that leads back to the mount itself, which would wait for
    /// itself without end.
    pub(super) fn asks(&self, thread: u32) -> bool {
        held(&self.threads.0).contains(&thread)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Nobody waits for what a store that hangs is asked.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Longer than any of it takes.
    const HANG: Duration = Duration::from_secs(60);

    #[test]
    fn a_store_that_hangs_takes_no_thread_of_others() {
        let work = Arc::new(Work::new().unwrap());
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let (begun, begins) = mpsc::channel();
        let (served, serves) = mpsc::channel();
        for _ in 0..WAITING + AT_ONCE + 5 {
            let (work, released, begun, served) =
                (Arc::clone(&work), Arc::clone(&released), begun.clone(), served.clone());
            // As the kernel's requests come.
            std::thread::spawn(move || {
                work.give("hangs".into(), move || {
                    begun.send(gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
                    let _ = held(&released).recv();
                });
                served.send(()).unwrap();
            });
        }
        let asking: Vec<u32> = (0..WAITING + AT_ONCE).map(|_| begins.recv_timeout(HANG).unwrap()).collect();
        (0..AT_ONCE + 5).for_each(|_| serves.recv_timeout(HANG).unwrap());
        assert!(asking.iter().all(|thread| work.asks(*thread)) && !work.asks(0));
        let (answer, answered) = mpsc::channel();
        work.give("other".into(), move || answer.send(()).unwrap());
        answered.recv_timeout(HANG).unwrap();
        assert!(begins.try_recv().is_err(), "the others wait for these");
        drop(release);
        for _ in 0..5 {
            begins.recv_timeout(HANG).unwrap();
        }
        (0..WAITING).for_each(|_| serves.recv_timeout(HANG).unwrap());
    }
}
