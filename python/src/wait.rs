//! Waiting for Rust without holding the GIL, with a look at signals in between: Ctrl-C works while a store hangs.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use bowstring::Error;
use bowstring::error::Result;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::log;

/// The longest wait without a look at signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// What a wait of one slice brought.
pub(crate) enum Waited<T> {
    Next(T),
    End,
    Pending,
}

/// What comes one after another, and can be given back.
pub(crate) trait Source {
    type Item;

    /// The longest wait for the next one.
    fn timeout(&self, py: Python<'_>) -> PyResult<Duration>;
    /// Waits no longer than `wait`.
    fn wait(&self, py: Python<'_>, wait: Duration) -> PyResult<Waited<Self::Item>>;
    /// The error for a wait of `waited` that brought nothing.
    fn timed_out(&self, py: Python<'_>, waited: Duration) -> PyErr;
    /// What Python's `convert` makes of one.
    fn convert<'py>(&self, item: &Self::Item, convert: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;
    /// Takes back what reached nobody: it is the next one again.
    fn put_back(&self, py: Python<'_>, item: Self::Item) -> PyResult<()>;
}

/// What `convert` makes of the next one; `None` at the end.
///
/// Whatever is raised meanwhile, Ctrl-C above all, costs nothing: one that was not converted is the next one again.
pub(crate) fn next<'py>(source: &impl Source, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = convert.py();
    let (started, timeout) = (Instant::now(), source.timeout(py)?);
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        let waited = source.wait(py, left.min(SLICE));
        let passed_on = log::pass_on(py);
        match waited? {
            Waited::Next(item) => {
                let converted =
                    passed_on.and_then(|()| py.check_signals()).and_then(|()| source.convert(&item, convert));
                if converted.is_err() {
                    source.put_back(py, item)?;
                }
                return converted.map(Some);
            }
            // The source may be in its next epoch, so the end must be told; the interpreter looks at signals right after.
            Waited::End => return passed_on.map(|()| None),
            Waited::Pending if left <= SLICE => return Err(source.timed_out(py, started.elapsed())),
            Waited::Pending => passed_on.and_then(|()| py.check_signals())?,
        }
    }
}

/// Opens in a thread of its own, so that Ctrl-C need not wait for a slow store.
pub(crate) fn opened<T: Send + 'static>(
    py: Python<'_>,
    open: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    let no_thread = |error| raise(py, &Error::Closed { why: format!("no thread can be started: {error}") });
    std::thread::Builder::new()
        .name("bowstring-open".to_owned())
        // Nobody receives after Ctrl-C; what was opened is then dropped here.
        .spawn(move || drop(sender.send(open())))
        .map_err(no_thread)?;
    loop {
        let (back, opened) = py.detach(move || {
            let opened = receiver.recv_timeout(SLICE);
            (receiver, opened)
        });
        receiver = back;
        match opened {
            Ok(opened) => return opened.map_err(|error| raise(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(raise(py, &Error::Closed { why: "opening the dataset panicked".to_owned() }));
            }
        }
    }
}
