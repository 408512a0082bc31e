//! `bowstring._native.Loader`: the Rust loader for Python's threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowstring::dataset::Index;
use bowstring::device::{Consumer, DeviceValue};
use bowstring::flight::wire::arrow_schema;
use bowstring::pipeline::{LoaderOptions, Pass, WideInteger};
use bowstring::plan::State;
use bowstring::tensor::Value;
use bowstring::{AnyBatch, Batch, Error, Loader, Next};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::arrow::{ArrowArray, whole_schema_capsule};
use crate::buffers::PyBuffers;
use crate::credentials::{Provider, provide};
use crate::field;
use crate::gang::PyGang;
use crate::nvidia;
use crate::options::parsed;
use crate::tensor::{PyTensor, consumer};
use crate::traces;
use crate::wait::{Shared, Source, apart};

/// One rank's batches, epoch after epoch.
#[pyclass(frozen, name = "Loader", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyLoader(Shared<Loader>, InHand);

/// The batches that were taken and are not delivered yet, while they are converted and handlers of signals run. A position that such a
/// handler saves is before them: nobody has them, and the process may end in it.
#[derive(Debug, Default)]
struct InHand(Mutex<BTreeSet<(u64, u64)>>);

impl InHand {
    fn all(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, next: Next<AnyBatch>) -> Next<AnyBatch> {
        if let Next::Item(batch) = &next {
            self.all().insert(batch.at());
        }
        next
    }

    fn release(&self, batch: &AnyBatch) {
        self.all().remove(&batch.at());
    }

    /// Returns the outcome of a move of the loader: what was taken before it is no longer wanted.
    fn moved<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect(|_| self.all().clear())
    }

    /// The loader's position.
    fn position(&self, loader: &Loader) -> (u64, u64) {
        let position = (loader.epoch(), loader.step());
        self.all().first().map_or(position, |held| position.min(*held))
    }
}

impl Source for Loader {
    fn timeout(&self) -> Duration {
        self.timeout()
    }

    fn timed_out(&self, waited: Duration) -> Error {
        self.timed_out(waited)
    }
}

/// An iterator over one pass, which several threads may use: Python's own iterator over a callable must not be shared when it ends.
///
/// No Python frame is between it and a loop; in one, an interrupt would cost a batch.
#[pyclass(frozen, name = "Pass", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyPass {
    loader: Py<PyLoader>,
    pass: Pass,
    convert: Py<PyAny>,
    /// The callables that describe tensors of the caller, and name the stream they are used on.
    into: Option<(Py<PyAny>, Py<PyAny>)>,
    /// True once its end was reported, which is final.
    ended: AtomicBool,
    /// Called at its end, after an error, and when it is dropped.
    tell: Option<Py<PyAny>>,
}

#[pymethods]
impl PyPass {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the next batch of this pass; an error if another pass began before its end.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (loader, convert) = (self.loader.get(), self.convert.bind(py));
        let take = |loader: &mut Loader, wait| match loader.next_in(self.pass, wait) {
            Err(Error::Closed { .. }) if self.ended.load(Ordering::Relaxed) => Ok(Next::End),
            next => next,
        };
        let put_back = |loader: &mut Loader, batch| loader.put_back_in(self.pass, batch);
        let next = match &self.into {
            None => loader.next_by(py, take, put_back, |batch| taken(convert, batch)),
            Some((buffers, stream)) => {
                let filled = |batch: &_| loader.filled(buffers.bind(py), stream.bind(py), convert, batch);
                loader.next_by(py, take, put_back, filled)
            }
        };
        if let Ok(None) = next {
            self.ended.store(true, Ordering::Relaxed);
        }
        if !matches!(next, Ok(Some(_)))
            && let Some(tell) = &self.tell
        {
            // An interrupt in it counts only if nothing else is raised.
            let told = tell.call0(py);
            return next.and_then(|next| told.map(|_| next));
        }
        next
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.loader)?;
        if let Some((buffers, stream)) = &self.into {
            visit.call(buffers)?;
            visit.call(stream)?;
        }
        if let Some(tell) = &self.tell {
            visit.call(tell)?;
        }
        visit.call(&self.convert)
    }
}

impl Drop for PyPass {
    fn drop(&mut self) {
        // A loop that was left. At the end of the process nobody listens.
        if let Some(tell) = self.tell.take() {
            Python::try_attach(|py| {
                // The pass may go because of an exception, which is to stay.
                let pending = PyErr::take(py);
                if let Err(error) = tell.call0(py) {
                    error.write_unraisable(py, None);
                }
                if let Some(error) = pending {
                    error.restore(py);
                }
            });
        }
    }
}

fn taken<'py>(convert: &Bound<'py, PyAny>, batch: &AnyBatch) -> PyResult<Bound<'py, PyAny>> {
    convert.call1((any(convert.py(), batch)?,))
}

/// Returns the columns of a batch by name.
pub(crate) fn columns<'py>(py: Python<'py>, batch: &Batch) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, value) in batch.columns() {
        match value {
            Value::Tensor(tensor) => columns.set_item(&**name, PyTensor::new(tensor.clone()))?,
            Value::Arrow(array) => columns.set_item(&**name, ArrowArray::of(batch, array))?,
        }
    }
    Ok(columns)
}

/// Returns the columns of a batch by name, on any device.
fn any<'py>(py: Python<'py>, batch: &AnyBatch) -> PyResult<Bound<'py, PyDict>> {
    let batch = match batch {
        AnyBatch::Host(batch) => return columns(py, batch),
        AnyBatch::Device(batch) => batch,
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

impl PyLoader {
    /// The result of `convert` on the next batch.
    fn next_by<R>(
        &self,
        py: Python<'_>,
        take: impl Fn(&mut Loader, Duration) -> Result<Next<AnyBatch>, Error> + Sync,
        put_back: impl Fn(&mut Loader, AnyBatch) + Sync,
        convert: impl Fn(&AnyBatch) -> PyResult<R>,
    ) -> PyResult<Option<R>> {
        let Self(shared, in_hand) = self;
        shared.next(
            py,
            |loader, wait| take(loader, wait).map(|next| in_hand.hold(next)),
            |loader, batch| {
                in_hand.release(&batch);
                put_back(loader, batch);
            },
            // Put back, if that fails.
            |batch| convert(batch).inspect(|_| in_hand.release(batch)),
        )
    }

    fn filled<'py>(
        &self,
        buffers: &Bound<'py, PyAny>,
        stream: &Bound<'py, PyAny>,
        convert: &Bound<'py, PyAny>,
        batch: &AnyBatch,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Written last, so that an earlier failure leaves the caller's tensors as they were.
        let converted = taken(convert, batch)?;
        let consumer = match batch {
            AnyBatch::Host(_) => Consumer::Unordered,
            AnyBatch::Device(_) => consumer(Some(&stream.call0()?).filter(|stream| !stream.is_none()))?,
        };
        // Described for this batch, right before it: the memory of the tensors may have moved since the last one.
        let buffers = buffers.call0()?.cast_into::<PyBuffers>()?;
        let targets = buffers.get().targets();
        self.0.with(convert.py(), |loader| loader.fill(batch, targets, consumer))?;
        Ok(converted)
    }
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (options, gang=None, index=None, provider=None, *, pads=false))]
    fn new(
        py: Python<'_>,
        options: &str,
        gang: Option<&PyGang>,
        index: Option<Vec<u8>>,
        provider: Option<Provider>,
        pads: bool,
    ) -> PyResult<Self> {
        let mut options = LoaderOptions { pads, ..parsed(py, options)? };
        provide(py, &mut options, provider)?;
        if let Some(index) = index {
            options.index = Index::Bytes(index.into());
        }
        nvidia::prepare(py, &options);
        traces::start(py)?;
        traces::within(py, &mut options)?;
        let loader = match gang {
            Some(gang) => {
                let gang = gang.handle(py)?;
                apart(py, move || Loader::open_in(&options, &gang))?
            }
            None => apart(py, move || Loader::open(options))?,
        };
        Ok(Self(Shared::new(loader), InHand::default()))
    }

    /// Begins a pass, and ends the one before. Its batches are the results of `convert` on their columns, each also copied into the
    /// `Buffers` that `buffers` returns then; on a GPU on the stream that `stream` returns, as in `Tensor.__dlpack__`. `ended` is called
    /// when the pass is over, or left.
    ///
    /// No exception, Ctrl-C above all, costs a batch: one that was not converted is delivered again.
    #[pyo3(signature = (convert, buffers=None, stream=None, *, ended=None))]
    fn begin(
        slf: &Bound<'_, Self>,
        convert: Py<PyAny>,
        buffers: Option<Py<PyAny>>,
        stream: Option<Py<PyAny>>,
        ended: Option<Py<PyAny>>,
    ) -> PyResult<PyPass> {
        let Self(shared, in_hand) = slf.get();
        let pass = shared.with(slf.py(), |loader| in_hand.moved(loader.begin()))?;
        let into = buffers.zip(stream);
        Ok(PyPass { loader: slf.clone().unbind(), pass, convert, into, ended: AtomicBool::new(false), tell: ended })
    }

    /// Returns the result of `convert` on the next batch's columns, of any pass; `None` at the end of the epoch.
    fn next<'py>(&self, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.next_by(convert.py(), Loader::next_within, Loader::put_back, |batch| taken(convert, batch))
    }

    /// As `next`, with the batch copied into the `Buffers` that `buffers` returns too.
    fn next_into<'py>(
        &self,
        buffers: &Bound<'py, PyAny>,
        stream: &Bound<'py, PyAny>,
        convert: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let filled = |batch: &_| self.filled(buffers, stream, convert, batch);
        self.next_by(convert.py(), Loader::next_within, Loader::put_back, filled)
    }

    /// Returns the result of `convert` on a copy of the next batch, without advancing; `None` if there is none at all.
    fn peek<'py>(&self, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.next(convert.py(), Loader::peek_within, |_, _| (), |batch| taken(convert, batch))
    }

    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get(py, |loader| loader.steps())
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get(py, |loader| loader.rows())
    }

    fn step_rows(&self, py: Python<'_>, step: u64) -> PyResult<u64> {
        self.0.get(py, |loader| loader.step_rows(step))
    }

    #[getter]
    fn masked(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.get(py, |loader| loader.masked())
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get(py, |loader| self.1.position(loader).0)
    }

    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get(py, |loader| self.1.position(loader).1)
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.0.get(py, |loader| loader.share().rank)
    }

    #[getter]
    fn world_size(&self, py: Python<'_>) -> PyResult<u32> {
        self.0.get(py, |loader| loader.share().world)
    }

    #[getter]
    fn table_version(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.0.get(py, |loader| loader.table_version())
    }

    #[getter]
    fn schema(&self, py: Python<'_>) -> PyResult<String> {
        self.0.get(py, |loader| loader.schema().to_string())
    }

    /// Returns the schema as an `arrow_schema` capsule.
    fn arrow_schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = self.0.get(py, |loader| arrow_schema(loader.schema()))?;
        whole_schema_capsule(py, &schema)
    }

    /// Device of the batches: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        self.0.get(py, |loader| loader.device().map_or_else(|| "cpu".to_owned(), |device| device.name()))
    }

    /// The delivered columns, field by field.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |loader| Ok(field::documents(loader.schema(), loader.kinds()).to_string()))
    }

    /// Returns the integers that are delivered in 64 bits and need more than 32: column, value, and the place as text.
    fn wide_integers(&self, py: Python<'_>) -> PyResult<Vec<(String, i128, String)>> {
        let told = |wide: &WideInteger| (wide.column.to_string(), wide.value, wide.place.to_string());
        let found =
            self.0.next(py, Loader::wide_integers_within, |_, _| (), |found| Ok(found.iter().map(told).collect()))?;
        Ok(found.unwrap_or_default())
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.0.with(py, |loader| self.1.moved(loader.set_epoch(epoch)))
    }

    fn reach_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.0.with(py, |loader| self.1.moved(loader.reach_epoch(epoch)))
    }

    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |loader| {
            let (epoch, step) = self.1.position(loader);
            Ok(loader.state_at(epoch, step).to_json())
        })
    }

    /// Returns the state after `step` steps of `epoch`.
    fn state_at<'py>(&self, py: Python<'py>, epoch: u64, step: u64) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |loader| Ok(loader.state_at(epoch, step).to_json()))
    }

    fn load_state(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<()> {
        let json: String = py.import("json")?.call_method1("dumps", (state,))?.extract()?;
        self.0.with(py, |loader| {
            let state = State::from_json(json)?;
            self.1.moved(loader.load_state(&state))
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |loader| {
            let stats = loader.stats();
            let (limit, waiting) = (stats.bottleneck().map(|found| found.cause), stats.waiting());
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
            document["bottleneck"] = limit.into();
            document["waiting"] = waiting.into();
            Ok(document.to_string())
        })
    }

    fn report(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |loader| Ok(loader.report().to_string()))
    }

    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |loader| serde_json::to_string(&loader.ledger()))
    }

    /// Returns the record of consumption since the loader was opened, signed if a key is given.
    #[pyo3(signature = (key=None))]
    fn certificate<'py>(&self, py: Python<'py>, key: Option<Vec<u8>>) -> PyResult<Bound<'py, PyAny>> {
        let certificate = self.0.with(py, |loader| {
            let mut certificate = loader.certificate();
            key.as_deref().map_or(Ok(()), |key| certificate.sign(key))?;
            Ok(certificate)
        })?;
        py.import("json")?.call_method1("loads", (certificate.to_json(),))
    }

    /// Stops everything at once; a forked child has nothing to stop.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, Loader::close)
    }
}
