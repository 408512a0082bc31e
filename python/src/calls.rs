//! Calls of Python code from the library's threads, which have no frame of Python below them.
//!
//! A thread that comes back from such a call after the interpreter is gone is ended in the middle of Rust code, which takes the process
//! down. So the end of the interpreter waits for the calls in progress, and no other one begins.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::fork;

/// Why a call is not made.
pub(crate) const ENDING: &str = "Python is ending";

/// Pause between two looks at the calls in progress.
const PAUSE: Duration = Duration::from_millis(1);

/// Set once no other call may begin.
const OVER: u64 = 1 << 31;

/// The number of this process, [`OVER`], and the number of calls in progress. No lock: a forked child would find it as its parent's other
/// threads left it. The child has none of their calls either.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The calls of this process, of which `seen` may be another one's.
fn own(seen: u64) -> u64 {
    let process = u64::from(fork::own()) << 32;
    if seen >> 32 << 32 == process { seen } else { process }
}

/// Counts as in progress until it is dropped, in the process in which it began.
struct Call(u32);

impl Call {
    /// `None` if no other call may begin.
    fn begin() -> Option<Self> {
        let begun = |seen| Some(own(seen)).filter(|calls| calls & OVER == 0).map(|calls| calls + 1);
        CALLS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, begun).is_ok().then(|| Self(fork::own()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.0 == fork::own() {
            CALLS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Runs `work` with the GIL; `None` if the interpreter is ending.
pub(crate) fn call<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _call = Call::begin()?;
    Python::try_attach(work)
}

/// Waits until no call is in progress, for `seconds` at most, and returns true if so. No other call begins any more.
#[pyfunction]
pub(crate) fn calls_done(py: Python<'_>, seconds: f64) -> bool {
    let end = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or(PAUSE);
    py.detach(|| {
        let over = |seen| Some(own(seen) | OVER);
        let begun = CALLS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, over);
        debug_assert!(begun.is_ok(), "it is set whatever there is");
        loop {
            if CALLS.load(Ordering::SeqCst) & (OVER - 1) == 0 {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(PAUSE);
        }
    })
}
