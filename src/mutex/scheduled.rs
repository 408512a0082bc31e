//! A lock that is the standard library's, and shuttle's too while a test tries the orders of its tasks.
//!
//! Tasks of shuttle take turns at a lock, at an unlock and where they wait. So code whose shared state is behind a lock is tried as it is.
//! Atomic numbers and channels that it uses between two of these points belong to one step with them.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{self, LockResult, PoisonError};
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Bytes of a task's stack. Our own code is not optimised in tests.
const STACK: usize = 256 << 10;
/// Changes of the order that PCT makes in a run, less one: a defect that needs so few is found most likely.
const DEPTH: usize = 3;

thread_local! {
    /// True while orders are tried on this thread. Other tests have no scheduler to ask.
    static TRIED: Cell<bool> = const { Cell::new(false) };
}

/// See the module.
#[derive(Default)]
pub(crate) struct Mutex<T> {
    turn: shuttle::sync::Mutex<()>,
    state: sync::Mutex<T>,
}

/// Unlocks on drop: first the state, then the turn, where another task may be next.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    state: sync::MutexGuard<'a, T>,
    _turn: Option<shuttle::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { turn: shuttle::sync::Mutex::new(()), state: sync::Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let _turn = TRIED.get().then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        match self.state.lock() {
            Ok(state) => Ok(MutexGuard { state, _turn }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { state: poisoned.into_inner(), _turn })),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

/// Runs `test`, whose tasks are shuttle's, in 1,000 random orders of them and in as many of PCT; in ten times as many under `BOWSTRING_SOAK`.
/// It fails with the order in which a task panicked, or none could go on.
pub(crate) fn in_many_orders(test: impl Fn() + Copy + Send + Sync + 'static) {
    let orders = if std::env::var_os("BOWSTRING_SOAK").is_some() { 10_000 } else { 1_000 };
    let chosen = std::env::var("SHUTTLE_RANDOM_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let seed = chosen.unwrap_or_else(now);
    let thread = std::thread::current();
    eprintln!("repeat with: SHUTTLE_RANDOM_SEED={seed} cargo test --lib {}", thread.name().unwrap_or_default());
    try_orders(RandomScheduler::new_from_seed(seed, orders), test);
    try_orders(PctScheduler::new_from_seed(seed, DEPTH, orders), test);
}

/// Polls `future` so often, and once more, and drops it then.
pub(crate) async fn impatient<T>(mut polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(found) => Poll::Ready(Some(found)),
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

fn try_orders(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    /// A test that fails leaves the thread as it was.
    struct Trying;
    impl Drop for Trying {
        fn drop(&mut self) {
            TRIED.set(false);
        }
    }
    let mut config = Config::new();
    config.stack_size = STACK;
    let _trying = Trying;
    TRIED.set(true);
    Runner::new(scheduler, config).run(test);
}

mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Negative control: a counter that is read under one lock and written under another is found wrong.
    #[test]
    fn an_update_that_is_lost_in_some_orders_is_found() {
        let tried = thread::spawn(|| {
            in_many_orders(|| {
                let counter = Arc::new(Mutex::new(0));
                let add = |counter: Arc<Mutex<i32>>| {
                    let found = *counter.lock().unwrap();
                    *counter.lock().unwrap() = found + 1;
                };
                let other = Arc::clone(&counter);
                let other = shuttle::thread::spawn(move || add(other));
                add(Arc::clone(&counter));
                other.join().unwrap();
                assert_eq!(*counter.lock().unwrap(), 2);
            });
        });
        assert!(tried.join().is_err(), "none of the orders in which it is lost was tried");
    }

    #[test]
    fn without_a_scheduler_it_is_the_lock_of_the_standard_library() {
        let counter = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| *counter.lock().unwrap() += 1));
            }
        });
        assert_eq!(*counter.lock().unwrap(), 400);
        thread::scope(|scope| scope.spawn(|| panic!("poison: {}", *counter.lock().unwrap())).join().unwrap_err());
        assert_eq!(*counter.lock().unwrap_err().into_inner(), 400);
    }
}
