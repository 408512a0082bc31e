//! `bowstring._native.convert` and `verify`: datasets from one format into another, outside of the GIL.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use bowstring::Error;
use bowstring::convert::{ConvertOptions, Progress};
use bowstring::error::Result;
use pyo3::prelude::*;

use crate::errors::raise;

/// The longest wait without a look at signals.
const SLICE: Duration = Duration::from_millis(100);

fn options(text: &str) -> Result<ConvertOptions> {
    serde_json::from_str(text).map_err(|error| Error::Config { option: "options", problem: error.to_string() })
}

/// Runs in a thread of its own, so that Ctrl-C works; after it, `stop` is called and the thread is waited for.
fn run<T: Send + 'static>(
    py: Python<'_>,
    stop: impl Fn() + Send + 'static,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    let no_thread = |error| raise(py, &Error::Closed { why: format!("no thread can be started: {error}") });
    let thread = std::thread::Builder::new().name("bowstring-convert".to_owned());
    // Nobody receives after Ctrl-C; the outcome is then dropped here.
    let thread = thread.spawn(move || drop(sender.send(work()))).map_err(no_thread)?;
    loop {
        let (back, outcome) = py.detach(move || {
            let outcome = receiver.recv_timeout(SLICE);
            (receiver, outcome)
        });
        receiver = back;
        match outcome {
            Ok(outcome) => return outcome.map_err(|error| raise(py, &error)),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupted) = py.check_signals() {
                    stop();
                    // What is in flight ends with its batches, and the hidden directory is in order.
                    py.detach(move || drop(receiver.recv()));
                    return Err(interrupted);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                // A panic is told by the thread.
                py.detach(|| drop(thread.join()));
                return Err(raise(py, &Error::Closed { why: "the conversion panicked".to_owned() }));
            }
        }
    }
}

/// Converts `src` to `dst` with options as JSON: the report, as JSON.
#[pyfunction]
pub(crate) fn convert(py: Python<'_>, src: String, dst: PathBuf, options_json: &str) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    run(
        py,
        move || progress.stop(),
        move || {
            let report = bowstring::convert::convert(&src, &dst, &options, &watched)?;
            Ok(serde_json::json!(report).to_string())
        },
    )
}

/// What `convert` would do, as JSON.
#[pyfunction]
pub(crate) fn convert_plan(py: Python<'_>, src: String, dst: PathBuf, options_json: &str) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    run(py, || {}, move || Ok(serde_json::json!(bowstring::convert::plan(&src, &dst, &options)?).to_string()))
}

/// Compares two datasets: the findings, as JSON.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, a: String, b: String, options_json: &str) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    run(py, || {}, move || Ok(serde_json::json!(bowstring::convert::verify(&a, &b, &options)?).to_string()))
}
