//! Threads that take the GIL with Rust code below them: those of the library, which call Python code, and those of Python, which come back
//! from work without the GIL, or call Python code in turn, during which it may change hands.
//!
//! A thread that takes it after the end of the interpreter has begun is ended in the middle of Rust code, which takes the process down. So
//! the end waits for the entries in progress, and no other one begins: a call is not made, and a thread of Python stays where it is. Only
//! daemons are left by then, and the thread that ends the interpreter.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::fork;

/// Why a call is not made.
pub(crate) const ENDING: &str = "Python is ending";

/// Pause between two looks at the calls in progress.
const PAUSE: Duration = Duration::from_millis(1);

/// Set once no other entry may begin.
const OVER: u64 = 1 << 31;

/// The thread that ends the interpreter; it may always enter.
static LAST: OnceLock<ThreadId> = OnceLock::new();

/// The number of this process, [`OVER`], and the number of entries in progress. No lock: a forked child would find it as its parent's other
/// threads left it. The child has none of their entries either.
static ENTRIES: AtomicU64 = AtomicU64::new(0);

/// The entries of this process, of which `seen` may be another one's.
fn own(seen: u64) -> u64 {
    let process = u64::from(fork::own()) << 32;
    if seen >> 32 << 32 == process { seen } else { process }
}

thread_local! {
    /// Entries of this thread, one within another; the outermost one is counted.
    static WITHIN: Cell<u32> = const { Cell::new(0) };
}

/// Counts as in progress until it is dropped, in the process in which it began. Belongs to its thread.
pub(crate) struct Entry(u32);

impl Entry {
    /// `None` if no other one may begin.
    fn begin() -> Option<Self> {
        let begun = |seen| Some(own(seen)).filter(|entries| entries & OVER == 0).map(|entries| entries + 1);
        let has_begun = ENTRIES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, begun).is_ok();
        has_begun.then(|| {
            WITHIN.set(WITHIN.get() + 1);
            Self(fork::own())
        })
    }

    /// The entry of a thread that needs one: `None` within another one, and for the thread that ends the interpreter. Any other thread that
    /// may not enter any more stays here, so the GIL must not be held then.
    fn needed() -> Option<Self> {
        if WITHIN.get() > 0 {
            return None;
        }
        let entry = Self::begin();
        while entry.is_none() && !is_last() {
            thread::park();
        }
        entry
    }
}

fn is_last() -> bool {
    LAST.get() == Some(&thread::current().id())
}

impl Drop for Entry {
    fn drop(&mut self) {
        WITHIN.set(WITHIN.get().saturating_sub(1));
        if self.0 == fork::own() {
            ENTRIES.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Runs `work` with the GIL; `None` if the interpreter is ending.
pub(crate) fn call<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _entry = Entry::begin()?;
    Python::try_attach(work)
}

/// Runs `work` without the GIL. A thread that would come back to an interpreter that is ending does not: the process is about to end.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (done, entry) = py.detach(|| (work(), Entry::needed()));
    drop(entry);
    done
}

/// For a stretch of Rust code that calls Python code, with the GIL.
pub(crate) fn entered(py: Python<'_>) -> Option<Entry> {
    if WITHIN.get() > 0 {
        return None;
    }
    Entry::begin().or_else(|| py.detach(Entry::needed))
}

/// Waits until no entry of another thread is in progress, for `seconds` at most, and returns true if so. No other one begins any more.
#[pyfunction]
pub(crate) fn calls_done(py: Python<'_>, seconds: f64) -> bool {
    let end = Instant::now() + Duration::try_from_secs_f64(seconds).unwrap_or(PAUSE);
    let _ = LAST.set(thread::current().id());
    py.detach(|| {
        let over = |seen| Some(own(seen) | OVER);
        let begun = ENTRIES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, over);
        debug_assert!(begun.is_ok(), "it is set whatever there is");
        loop {
            if ENTRIES.load(Ordering::SeqCst) & (OVER - 1) == 0 {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(PAUSE);
        }
    })
}
