//! Waiting for Rust without holding the GIL, with checks for signals in between: Ctrl-C works while a store hangs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowstring::error::Result;
use bowstring::{Error, Next};
use pyo3::prelude::*;

use crate::calls::{detached, entered};
use crate::errors::raise;
use crate::fork::Owned;
use crate::log;

/// Longest wait between two checks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// A source of items, one after another.
pub(crate) trait Source: Send {
    /// Returns the longest wait for the next item.
    fn timeout(&self) -> Duration;
    /// Returns the error for a wait of `waited` without an item.
    fn timed_out(&self, waited: Duration) -> Error;
}

/// A source for all Python threads, each of which waits without the GIL.
#[derive(Debug)]
pub(crate) struct Shared<T>(Owned<Turns<T>>);

#[derive(Debug)]
struct Turns<T> {
    /// Held while waiting for `source`, so that a thread that waits in slices does not overtake the others for ever.
    turn: Mutex<()>,
    source: Mutex<T>,
}

impl<T: Source> Shared<T> {
    pub(crate) fn new(source: T) -> Self {
        Self(Owned::new(Turns { turn: Mutex::new(()), source: Mutex::new(source) }))
    }

    /// Runs `work` on the source without the GIL.
    pub(crate) fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> Result<R> + Send) -> PyResult<R> {
        let Turns { turn, source } = self.0.checked().map_err(|error| raise(py, &error))?;
        detached(py, || {
            // A source is consistent between calls, and turns a panic inside into an error.
            let turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
            drop(turn);
            work(&mut source)
        })
        .map_err(|error| raise(py, &error))
    }

    /// The same for work that cannot fail.
    pub(crate) fn get<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut T) -> R + Send) -> PyResult<R> {
        self.with(py, |source| Ok(work(source)))
    }

    /// Returns a document, which crosses as JSON, supported by both sides.
    pub(crate) fn document<'py>(
        &self,
        py: Python<'py>,
        take: impl FnOnce(&T) -> serde_json::Result<String> + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let json = self.with(py, |source| take(source).map_err(|error| Error::Closed { why: error.to_string() }))?;
        py.import("json")?.call_method1("loads", (json,))
    }

    /// Returns the result of `convert` on the next item, for which `take` waits no longer than it is told; `None` at the end.
    ///
    /// No exception, Ctrl-C above all, costs an item: one that was not converted is returned by `put_back`.
    pub(crate) fn next<I: Send, R>(
        &self,
        py: Python<'_>,
        take: impl Fn(&mut T, Duration) -> Result<Next<I>> + Sync,
        put_back: impl Fn(&mut T, I) + Sync,
        convert: impl Fn(&I) -> PyResult<R>,
    ) -> PyResult<Option<R>> {
        let (started, timeout) = (Instant::now(), self.get(py, |source| source.timeout())?);
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            let next = self.with(py, |source| take(source, left.min(SLICE)));
            let _entry = entered(py);
            let passed_on = log::pass_on(py);
            match next? {
                Next::Item(item) => {
                    let converted = passed_on.and_then(|()| py.check_signals()).and_then(|()| convert(&item));
                    if converted.is_err() {
                        self.get(py, |source| put_back(source, item))?;
                    }
                    return converted.map(Some);
                }
                // The source may be in its next epoch, so the end must be reported; the interpreter checks for signals right after.
                Next::End => return passed_on.map(|()| None),
                Next::Pending if left <= SLICE => {
                    let error = self.get(py, |source| source.timed_out(started.elapsed()))?;
                    return Err(raise(py, &error));
                }
                Next::Pending => passed_on.and_then(|()| py.check_signals())?,
            }
        }
    }

    /// Stops the source with `close`; a forked child has nothing to stop.
    pub(crate) fn close(&self, py: Python<'_>, close: impl FnOnce(&mut T) + Send) -> PyResult<()> {
        if self.0.checked().is_err() { Ok(()) } else { self.get(py, close) }
    }
}

/// Does `work` in a thread of its own that Ctrl-C leaves: it does not wait for a slow store.
pub(crate) fn apart<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let outcome = Working::start(py, work)?.wait(py)?;
    outcome.map_err(|error| raise(py, &error))
}

/// Work in a thread of its own. Nobody waits for it once this is dropped; its outcome is then dropped in the thread.
#[derive(Debug)]
pub(crate) struct Working<T>(Receiver<Result<T>>);

impl<T: Send + 'static> Working<T> {
    pub(crate) fn start(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send + 'static) -> PyResult<Self> {
        log::look(py)?;
        let (sender, receiver) = sync_channel(1);
        let no_thread = |error| raise(py, &Error::Closed { why: format!("no thread can be started: {error}") });
        let thread = std::thread::Builder::new().name("bowstring-apart".to_owned());
        thread.spawn(move || drop(sender.send(work()))).map_err(no_thread)?;
        Ok(Self(receiver))
    }

    /// Waits for the outcome. Messages are logged meanwhile: a server that is not there yet has minutes to come.
    ///
    /// # Errors
    /// The exception of a signal's handler, Ctrl-C above all. The work goes on, and can be waited for again.
    pub(crate) fn wait(&mut self, py: Python<'_>) -> PyResult<Result<T>> {
        self.wait_telling(py, |_| Ok(()))
    }

    /// As [`wait`](Self::wait), and calls `tell` after each slice of waiting.
    ///
    /// # Errors
    /// As of [`wait`](Self::wait), and those of `tell`.
    pub(crate) fn wait_telling(
        &mut self,
        py: Python<'_>,
        tell: impl Fn(Python<'_>) -> PyResult<()>,
    ) -> PyResult<Result<T>> {
        loop {
            let receiver = &mut self.0;
            let outcome = detached(py, move || receiver.recv_timeout(SLICE));
            let passed_on = log::pass_on(py);
            match outcome {
                Ok(Err(error)) => return Ok(Err(error)),
                Ok(done) => return passed_on.map(|()| done),
                Err(RecvTimeoutError::Timeout) => {
                    passed_on.and_then(|()| tell(py)).and_then(|()| py.check_signals())?
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Err(Error::Closed { why: "a thread of the library panicked".to_owned() }));
                }
            }
        }
    }
}
