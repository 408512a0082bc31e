//! `bowstring._native.Loader`: the Rust loader behind a lock, waited for in slices.
//!
//! Every wait gives up the GIL, and comes back for signals after [`SLICE`]: Ctrl-C works while a store hangs. Results that are
//! documents (state, counters, ledger) cross as JSON, which both sides have.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowstring::Error;
use bowstring::error::Result;
use bowstring::pipeline::{Loader, LoaderOptions, Next};
use bowstring::plan::State;
use bowstring::tensor::{Batch, Value};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrow::ArrowArray;
use crate::errors::raise;
use crate::fork::Owned;
use crate::log;
use crate::tensor::PyTensor;

/// The longest wait without a look at signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Shared {
    /// Held while waiting for `loader`, so that whoever waits in slices does not overtake the others for ever.
    turn: Mutex<()>,
    loader: Mutex<Loader>,
}

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut Loader) -> T) -> T {
        // A loader is consistent between calls, and a panic inside it was made an error there.
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        drop(turn);
        work(&mut loader)
    }
}

/// One rank's batches, epoch after epoch.
#[pyclass(frozen, name = "Loader", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyLoader(Owned<Shared>);

impl PyLoader {
    /// Runs `work` on the loader without the GIL.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Loader) -> Result<T> + Send) -> PyResult<T> {
        let shared = self.0.checked().map_err(|error| raise(py, &error))?;
        py.detach(|| shared.with(work)).map_err(|error| raise(py, &error))
    }

    fn document<'py>(
        &self,
        py: Python<'py>,
        take: impl FnOnce(&Loader) -> serde_json::Result<String> + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let json = self.with(py, |loader| take(loader).map_err(|error| Error::Closed { why: error.to_string() }))?;
        py.import("json")?.call_method1("loads", (json,))
    }
}

/// Opens in a thread of its own, so that Ctrl-C need not wait for a slow store.
pub(crate) fn opened<T: Send + 'static>(
    py: Python<'_>,
    open: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<Result<T>> {
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
            Ok(opened) => return Ok(opened),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(Error::Closed { why: "opening the dataset panicked".to_owned() }));
            }
        }
    }
}

/// The columns of a batch by name.
pub(crate) fn columns<'py>(py: Python<'py>, batch: &Batch) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, value) in batch.columns() {
        match value {
            Value::Tensor(tensor) => columns.set_item(&**name, PyTensor::new(tensor.clone()))?,
            Value::Arrow(array) => columns.set_item(&**name, ArrowArray::new(Arc::clone(array)))?,
        }
    }
    Ok(columns)
}

#[pymethods]
impl PyLoader {
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Self> {
        let options: LoaderOptions = serde_json::from_str(options)
            .map_err(|error| raise(py, &Error::Config { option: "options", problem: error.to_string() }))?;
        let loader = opened(py, move || Loader::open(options))?.map_err(|error| raise(py, &error))?;
        Ok(Self(Owned::new(Shared { turn: Mutex::new(()), loader: Mutex::new(loader) })))
    }

    /// What `convert` makes of the next batch's columns; `None` at the end of the epoch.
    ///
    /// Whatever is raised meanwhile, Ctrl-C above all, costs no batch: one that was not converted is the next one again.
    fn next<'py>(&self, py: Python<'py>, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let started = Instant::now();
        loop {
            let next = self.with(py, |loader| {
                let left = loader.timeout().saturating_sub(started.elapsed());
                match loader.next_within(left.min(SLICE))? {
                    Next::Pending if left <= SLICE => Err(loader.timed_out(started.elapsed())),
                    next => Ok(next),
                }
            });
            let passed_on = log::pass_on(py);
            match next? {
                Next::Batch(batch) => {
                    let converted = passed_on
                        .and_then(|()| py.check_signals())
                        .and_then(|()| columns(py, &batch))
                        .and_then(|raw| convert.call1((raw,)));
                    if converted.is_err() {
                        self.with(py, |loader| {
                            loader.put_back(batch);
                            Ok(())
                        })?;
                    }
                    return converted.map(Some);
                }
                // The loader is in the next epoch, so the end must be told; the interpreter looks at signals right after.
                Next::End => return passed_on.map(|()| None),
                Next::Pending => passed_on.and_then(|()| py.check_signals())?,
            }
        }
    }

    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.steps()))
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.rows()))
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.epoch()))
    }

    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| Ok(loader.step()))
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |loader| Ok(loader.share().rank))
    }

    #[getter]
    fn world_size(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |loader| Ok(loader.share().world))
    }

    #[getter]
    fn schema(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.schema().to_string()))
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| loader.set_epoch(epoch))
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |loader| Ok(loader.state().to_json()))
    }

    fn load_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let json: String = py.import("json")?.call_method1("dumps", (state,))?.extract()?;
        self.with(py, |loader| loader.load_state(&State::from_json(json)?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |loader| {
            let stats = loader.stats();
            let (stage, waiting) = stats.bottleneck();
            let mut document = serde_json::to_value(stats)?;
            document["bottleneck"] = stage.into();
            document["waiting"] = waiting.into();
            Ok(document.to_string())
        })
    }

    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |loader| serde_json::to_string(&loader.ledger()))
    }

    /// Stops everything at once; in a forked child there is nothing to stop.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.checked().is_err() {
            return Ok(());
        }
        self.with(py, |loader| {
            loader.close();
            Ok(())
        })
    }
}
