//! Protection of a forked child from the parent's objects.
//!
//! After `fork` only the calling thread exists in the child: a lock that another thread held stays locked for ever. Files that are being
//! written, and their locks, are those of the parent. So these objects are left alone there: using one is an error, dropping one leaks it.

#![expect(unsafe_code, reason = "pthread_atfork; what the handler may do is stated there")]

use std::ops::Deref;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use bowstring::Error;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

/// The number of this process, cached to avoid a system call: each tensor of each batch needs it four times.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Records the number of this process, and of each forked child before any other code runs there: Python drops objects that other
/// threads held before it calls its own hooks.
pub(crate) fn watch() -> PyResult<()> {
    note();
    // SAFETY: `note` asks for a number and stores it, which a forked child may do whatever other threads held; it stays loaded as
    // long as the process lives, for Python unloads no extension.
    match unsafe { libc::pthread_atfork(None, None, Some(note)) } {
        0 => Ok(()),
        code => Err(PyMemoryError::new_err(format!("pthread_atfork: error {code}"))),
    }
}

extern "C" fn note() {
    PROCESS.store(process::id(), Ordering::Relaxed);
}

/// The number of this process.
pub(crate) fn own() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

/// A value that only the process that made it drops.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    /// `None` only inside `drop`.
    value: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: own() }
    }

    /// Returns the value, unless this is a forked child. For values that hold locks.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub(crate) fn checked(&self) -> Result<&T, Error> {
        if self.process == own() {
            return Ok(self);
        }
        Err(Error::Closed {
            why: format!(
                "it belongs to process {}, from which this one was forked, and where its threads, locks and unfinished files \
                 stay; make a new one in this process, or start the process with multiprocessing.get_context(\"spawn\")",
                self.process
            ),
        })
    }
}

/// Reading a finished batch is harmless in a child: the fork copied its memory. Memory of another process is the exception, and is
/// [`checked`](Owned::checked).
impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.value {
            Some(value) => value,
            None => unreachable!("taken only by drop"),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != own() {
            std::mem::forget(self.value.take());
        }
    }
}
