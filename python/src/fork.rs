//! What a forked child must not touch.
//!
//! After `fork` only the calling thread exists in the child: a lock that another thread held stays locked for ever. So whatever
//! came from a loader is left alone there: used, it is an error; dropped, it is forgotten.

use std::ops::Deref;
use std::process;

use bowstring::Error;

/// A value that only the process that made it drops.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    /// `None` only inside `drop`.
    value: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    /// The value, unless this is a forked child. For what holds locks.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub(crate) fn checked(&self) -> Result<&T, Error> {
        if self.process == process::id() {
            return Ok(self);
        }
        Err(Error::Closed {
            why: format!(
                "this process was forked from process {} after the loader had started its threads, and threads do not \
                 survive a fork; open a new loader in this process, or start the process with \
                 multiprocessing.get_context(\"spawn\")",
                self.process
            ),
        })
    }
}

/// Reading a finished batch is harmless in a child: the fork copied its memory.
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
        if self.process != process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
