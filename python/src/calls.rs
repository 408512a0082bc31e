//! Calls of Python code from the library's threads, which have no frame of Python below them.
//!
//! A thread that comes back from such a call after the interpreter is gone is ended in the middle of Rust code, which takes the process
//! down. So the end of the interpreter waits for the calls in progress, and no other one begins.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::fork;
use crate::wait::SLICE;

/// Why a call is not made.
pub(crate) const ENDING: &str = "Python is ending";

struct Running {
    /// The process whose calls these are: a forked child has none of its parent's threads.
    process: u32,
    running: usize,
    over: bool,
}

static CALLS: Mutex<Running> = Mutex::new(Running { process: 0, running: 0, over: false });
static ENDED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Running> {
    // Numbers, which agree at any time.
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = fork::own();
    if calls.process != process {
        *calls = Running { process, running: 0, over: false };
    }
    calls
}

/// Counts as running until it is dropped, in the process in which it began.
struct Call(u32);

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = lock();
        if calls.process == self.0 {
            calls.running -= 1;
        }
        drop(calls);
        ENDED.notify_all();
    }
}

/// Runs `work` with the GIL; `None` if the interpreter is ending.
pub(crate) fn call<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _call = {
        let mut calls = lock();
        if calls.over {
            return None;
        }
        calls.running += 1;
        Call(calls.process)
    };
    Python::try_attach(work)
}

/// Waits until no call is running, for `seconds` at most, and returns true if so. No other call begins any more.
#[pyfunction]
pub(crate) fn calls_done(py: Python<'_>, seconds: f64) -> bool {
    let wait = Duration::try_from_secs_f64(seconds).unwrap_or(SLICE);
    py.detach(|| {
        let mut calls = lock();
        calls.over = true;
        let ended = ENDED.wait_timeout_while(calls, wait, |calls| calls.running > 0);
        ended.unwrap_or_else(PoisonError::into_inner).0.running == 0
    })
}
