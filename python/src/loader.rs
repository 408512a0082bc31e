//! `bowstring._native.Loader`: the Rust loader behind a lock, waited for in slices.
//!
//! Results that are
//! documents (state, counters, ledger) cross as JSON, which both sides have.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowstring::dataset::Index;
use bowstring::device::{Consumer, DeviceValue};
use bowstring::error::Result;
use bowstring::plan::State;
use bowstring::tensor::{Batch, Value};
use bowstring::{Error, Loader, NextPlaced, Placed};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrow::ArrowArray;
use crate::buffers::PyBuffers;
use crate::errors::raise;
use crate::field;
use crate::fork::Owned;
use crate::gang::PyGang;
use crate::nvidia;
use crate::options::parsed;
use crate::tensor::{PyTensor, consumer};
use crate::wait::{self, Source, Waited, opened};

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

/// The columns of a batch by name, wherever it is.
fn placed<'py>(py: Python<'py>, batch: &Placed) -> PyResult<Bound<'py, PyDict>> {
    let batch = match batch {
        Placed::Host(batch) => return columns(py, batch),
        Placed::Device(batch) => batch,
    };
    let columns = PyDict::new(py);
    for (name, value) in batch.columns() {
        match value {
            DeviceValue::Tensor(tensor) => columns.set_item(&**name, PyTensor::on_device(tensor.clone()))?,
            DeviceValue::Arrow(array) => columns.set_item(&**name, ArrowArray::new(Arc::clone(array)))?,
        }
    }
    Ok(columns)
}

impl Source for PyLoader {
    type Item = Placed;

    fn timeout(&self, py: Python<'_>) -> PyResult<Duration> {
        self.with(py, |loader| Ok(loader.timeout()))
    }

    fn wait(&self, py: Python<'_>, wait: Duration) -> PyResult<Waited<Placed>> {
        self.with(py, |loader| {
            Ok(match loader.next_placed_within(wait)? {
                NextPlaced::Batch(batch) => Waited::Next(batch),
                NextPlaced::End => Waited::End,
                NextPlaced::Pending => Waited::Pending,
            })
        })
    }

    fn timed_out(&self, py: Python<'_>, waited: Duration) -> PyErr {
        self.with(py, |loader| Ok(loader.timed_out(waited))).map_or_else(|error| error, |error| raise(py, &error))
    }

    fn convert<'py>(&self, batch: &Placed, convert: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        convert.call1((placed(convert.py(), batch)?,))
    }

    fn put_back(&self, py: Python<'_>, batch: Placed) -> PyResult<()> {
        self.with(py, |loader| {
            loader.put_back(batch);
            Ok(())
        })
    }
}

/// The loader, whose batches are copied into tensors of the caller's as well.
struct Filling<'a> {
    loader: &'a PyLoader,
    buffers: &'a PyBuffers,
    /// Asked for each batch.
    stream: &'a Bound<'a, PyAny>,
}

impl Source for Filling<'_> {
    type Item = Placed;

    fn timeout(&self, py: Python<'_>) -> PyResult<Duration> {
        self.loader.timeout(py)
    }

    fn wait(&self, py: Python<'_>, wait: Duration) -> PyResult<Waited<Placed>> {
        self.loader.wait(py, wait)
    }

    fn timed_out(&self, py: Python<'_>, waited: Duration) -> PyErr {
        self.loader.timed_out(py, waited)
    }

    fn convert<'py>(&self, batch: &Placed, convert: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // Written last, so that what fails before leaves the caller's tensors as they were.
        let converted = self.loader.convert(batch, convert)?;
        let consumer = match batch {
            Placed::Host(_) => Consumer::Unordered,
            Placed::Device(_) => consumer(Some(&self.stream.call0()?).filter(|stream| !stream.is_none()))?,
        };
        self.loader.with(convert.py(), |loader| loader.fill(batch, self.buffers.targets(), consumer))?;
        Ok(converted)
    }

    fn put_back(&self, py: Python<'_>, batch: Placed) -> PyResult<()> {
        self.loader.put_back(py, batch)
    }
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (options, gang=None, index=None))]
    fn new(py: Python<'_>, options: &str, gang: Option<&PyGang>, index: Option<Vec<u8>>) -> PyResult<Self> {
        let mut options = parsed(py, options)?;
        if let Some(index) = index {
            options.index = Index::Bytes(index.into());
        }
        nvidia::prepare(py, &options);
        let loader = match gang {
            Some(gang) => {
                let gang = gang.handle(py)?;
                opened(py, move || Loader::open_in(&options, &gang))?
            }
            None => opened(py, move || Loader::open(options))?,
        };
        Ok(Self(Owned::new(Shared { turn: Mutex::new(()), loader: Mutex::new(loader) })))
    }

    /// What `convert` makes of the next batch's columns; `None` at the end of the epoch.
    ///
    /// Whatever is raised meanwhile, Ctrl-C above all, costs no batch: one that was not converted is the next one again.
    fn next<'py>(&self, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        wait::next(self, convert)
    }

    /// As `next`, with the batch copied into `buffers` too; on a GPU on the stream that `stream` returns, as in `Tensor.__dlpack__`.
    fn next_into<'py>(
        &self,
        buffers: &PyBuffers,
        stream: &Bound<'py, PyAny>,
        convert: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        wait::next(&Filling { loader: self, buffers, stream }, convert)
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

    /// Where batches are delivered: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.device().map_or_else(|| "cpu".to_owned(), |device| device.name())))
    }

    /// What comes out, field by field.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |loader| Ok(field::documents(loader.schema()).to_string()))
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
            if let Some(device) = loader.device_stats() {
                document["device"] = serde_json::json!({
                    "batches": device.batches,
                    "bytes": device.bytes,
                    "allocations": device.allocations,
                    "overflows": device.overflows,
                    "refused": device.refused,
                    "decoder": loader.device().and_then(|device| device.decoder()),
                    "held": device.held,
                    "quarantined": device.quarantined,
                });
            }
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
