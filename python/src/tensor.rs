//! `bowstring.Tensor`: one tensor of a batch, exported to any framework.

use std::sync::Arc;

use bowstring::device::{Consumer, DeviceTensor, Kind, Stream};
use bowstring::memory::{Pool, SystemAllocator};
use bowstring::schema::DType;
use bowstring::tensor::{BatchBuilder, Tensor, TensorSpec};
use bowstring::{Error, Result};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::calls::{detached, entered};
use crate::errors::raise;
use crate::fork::Owned;
use crate::{arrow, dlpack};

/// A tensor on any device.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Held {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(tensor) => tensor.shape(),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Host(tensor) => tensor.dtype(),
            Self::Device(tensor) => tensor.dtype(),
        }
    }

    /// Returns DLPack's numbers for the kind of device and the device.
    pub(crate) fn dlpack_device(&self) -> (i32, i32) {
        match self {
            Self::Device(tensor) if tensor.device().kind() == Kind::Cuda => {
                (dlpack::CUDA, i32::try_from(tensor.device().ordinal()).unwrap_or(i32::MAX))
            }
            _ => (dlpack::CPU, 0),
        }
    }

    /// Returns its device, for display.
    fn device(&self) -> String {
        match self {
            Self::Host(_) => "cpu".to_owned(),
            Self::Device(tensor) => tensor.device().name(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Host(tensor) => tensor.bytes().len(),
            Self::Device(tensor) => tensor.byte_len(),
        }
    }

    /// Copies it to host memory.
    fn copied(&self) -> Result<Tensor> {
        match self {
            Self::Host(tensor) => filled(tensor.dtype(), tensor.shape().to_vec(), tensor.bytes()),
            Self::Device(tensor) => filled(tensor.dtype(), tensor.shape().to_vec(), &tensor.to_host()?),
        }
    }
}

/// Converts DLPack's argument `stream` to a consumer: the number of a stream, or an object with `__cuda_stream__`.
pub(crate) fn consumer(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Consumer> {
    let Some(stream) = stream else { return Ok(Consumer::Stream(Stream::LegacyDefault)) };
    let number = match stream.extract::<i64>() {
        Ok(number) => number,
        Err(_) if stream.hasattr("__cuda_stream__")? => {
            let (_, handle): (i64, i64) = stream.call_method0("__cuda_stream__")?.extract()?;
            // Unlike in DLPack, 0 is the default stream here.
            if handle == 0 { 1 } else { handle }
        }
        Err(_) => return Err(PyBufferError::new_err(format!("stream must be an integer or None, not {stream}"))),
    };
    match number {
        -1 => Ok(Consumer::Unordered),
        1 => Ok(Consumer::Stream(Stream::LegacyDefault)),
        2 => Ok(Consumer::Stream(Stream::PerThreadDefault)),
        0 => Err(PyBufferError::new_err(
            "stream 0 is ambiguous for CUDA: give 1 (legacy default) or 2 (per-thread default)",
        )),
        3.. => Ok(Consumer::Stream(Stream::Handle(number.unsigned_abs()))),
        _ => Err(PyBufferError::new_err(format!("stream {number} is none: give -1, 1, 2, or a stream's handle"))),
    }
}

/// A tensor of a batch. It owns a share of the batch's memory for as long as it, or anything made from it, lives.
#[pyclass(frozen, name = "Tensor", module = "bowstring")]
#[derive(Debug)]
pub(crate) struct PyTensor(Owned<Held>);

impl PyTensor {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self(Owned::new(Held::Host(tensor)))
    }

    pub(crate) fn on_device(tensor: DeviceTensor) -> Self {
        Self(Owned::new(Held::Device(tensor)))
    }

    /// Returns the tensor for reading. In a forked child, memory that a server wrote is refused: the server writes to it again once the
    /// parent is done.
    fn held(&self, py: Python<'_>) -> PyResult<&Held> {
        match &*self.0 {
            Held::Host(tensor) if tensor.slab().is_foreign() => self.0.checked().map_err(|error| raise(py, &error)),
            held => Ok(held),
        }
    }

    /// Returns the tensor, if it is in host memory.
    pub(crate) fn host(&self, py: Python<'_>) -> PyResult<&Tensor> {
        match self.held(py)? {
            Held::Host(tensor) => Ok(tensor),
            Held::Device(_) => {
                let what = format!("a tensor on {} as an array of the host", self.0.device());
                let hint = "take tensor.cpu(), or give it to a framework on the device by DLPack".to_owned();
                Err(raise(py, &Error::unsupported(what, hint)))
            }
        }
    }

    /// Lets `consumer` read a tensor that is on a device.
    fn give_to(&self, py: Python<'_>, tensor: &DeviceTensor, consumer: Consumer) -> PyResult<()> {
        self.0.checked().map_err(|error| raise(py, &error))?;
        detached(py, || tensor.give_to(consumer)).map_err(|error| raise(py, &error))
    }
}

/// Views a boolean tensor as a NumPy array over the same memory, by NumPy's array interface: its DLPack supports none before 1.26.
fn bits<'py>(tensor: &Bound<'py, PyTensor>, numpy: &Bound<'py, PyModule>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let shape = tensor.get().shape(py)?;
    if tensor.get().nbytes() == 0 {
        return numpy.call_method1("empty", (shape, "|b1"));
    }
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", shape)?;
    interface.set_item("typestr", "|b1")?;
    interface.set_item("data", (tensor.get().data_ptr(py)?, false))?;
    // NumPy keeps this object, and this keeps the tensor, for as long as the array or a view of it lives.
    let holder = py.import("types")?.getattr("SimpleNamespace")?.call0()?;
    holder.setattr("__array_interface__", interface)?;
    holder.setattr("tensor", tensor)?;
    numpy.call_method1("asarray", (holder,))
}

/// Returns the arrays that `from_dlpack` makes of the tensors among `columns`, over the same memory, and the results of `other` on the
/// names and values of the rest. `stream` is the stream of the consumer for tensors on a device, as [`PyTensor::__dlpack__`] takes it.
///
/// All in one call: for small tensors the interpreter takes as long as the conversion.
#[pyfunction]
pub(crate) fn by_dlpack<'py>(
    columns: &Bound<'py, PyDict>,
    from_dlpack: &Bound<'py, PyAny>,
    stream: Option<&Bound<'py, PyAny>>,
    other: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = columns.py();
    let _entry = entered(py);
    let arrays = PyDict::new(py);
    for (name, value) in columns {
        let array = match value.cast::<PyTensor>() {
            Ok(tensor) => {
                let tensor = tensor.get();
                let stream = stream.filter(|_| matches!(&*tensor.0, Held::Device(_)));
                from_dlpack.call1((tensor.__dlpack__(py, stream, None, None, None)?,))?
            }
            Err(_) => other.call1((&name, value))?,
        };
        arrays.set_item(name, array)?;
    }
    Ok(arrays)
}

/// Makes a tensor with its own slab, filled with `bytes`.
fn filled(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Result<Tensor> {
    let spec = TensorSpec { name: "tensor".into(), dtype, shape };
    if spec.bytes()? != bytes.len() {
        let problem = format!("{} bytes do not make {} of shape {:?}", bytes.len(), spec.dtype, spec.shape);
        return Err(Error::Config { option: "data", problem });
    }
    // A budget of its own: the consumer requested this copy.
    let pool = Pool::new(Arc::new(SystemAllocator), usize::MAX);
    let nothing = || Error::Closed { why: "the memory pool is gone".to_owned() };
    let mut builder = BatchBuilder::new(vec![spec], pool.try_reserve(0).ok_or_else(nothing)?)?;
    builder.tensor(0).copy_from_slice(bytes);
    let batch = builder.finish(0, 0, 0, Vec::new());
    batch.deliver();
    batch.tensor("tensor").cloned().ok_or_else(nothing)
}

#[pymethods]
impl PyTensor {
    /// Makes a tensor from a copy of row-major little-endian `data`.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8], shape: Vec<usize>, dtype: &str) -> PyResult<Self> {
        let known = DType::parse(dtype).ok_or_else(|| {
            raise(py, &Error::Config { option: "dtype", problem: format!("there is no element type {dtype:?}") })
        })?;
        filled(known, shape, data).map(Self::new).map_err(|error| raise(py, &error))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.0.shape().len()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    /// Device of the tensor: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.0.device()
    }

    /// Address of the first element, aligned to 64 bytes. On a device the tensor has arrived when this returns, and its memory is not
    /// reused before all work that was queued on the device until the tensor was dropped is done.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        match self.held(py)? {
            Held::Host(tensor) => Ok(tensor.as_ptr().addr() as u64),
            Held::Device(tensor) => {
                self.give_to(py, tensor, Consumer::Unordered)?;
                detached(py, || tensor.synchronize()).map_err(|error| raise(py, &error))?;
                Ok(tensor.address())
            }
        }
    }

    /// Returns a copy in host memory; the tensor itself if it is there already.
    fn cpu<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (py, tensor) = (slf.py(), slf.get());
        if matches!(&*tensor.0, Held::Host(_)) {
            return Ok(slf.clone());
        }
        let held = tensor.0.checked().map_err(|error| raise(py, &error))?;
        let copied = detached(py, || held.copied()).map_err(|error| raise(py, &error))?;
        Bound::new(py, Self::new(copied))
    }

    fn __len__(&self) -> usize {
        self.0.shape().first().copied().unwrap_or(0)
    }

    fn __repr__(&self) -> String {
        let place = match &*self.0 {
            Held::Host(_) => String::new(),
            Held::Device(_) => format!(", device={}", self.0.device()),
        };
        format!("bowstring.Tensor({}, shape={:?}{place})", self.0.dtype(), self.0.shape())
    }

    /// Returns the tensor as a NumPy array over the same memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().host(py)?;
        if slf.get().0.dtype() == DType::Bfloat16 {
            let hint = "use torch.from_dlpack(tensor), or cast the column to float32".to_owned();
            return Err(raise(py, &Error::unsupported("bfloat16 in NumPy", hint)));
        }
        let numpy = py.import("numpy")?;
        if slf.get().0.dtype() == DType::Bool {
            return bits(slf, &numpy);
        }
        if !numpy.hasattr("from_dlpack")? {
            let hint = "upgrade NumPy".to_owned();
            return Err(raise(py, &Error::unsupported("NumPy before 1.22, which has no DLPack", hint)));
        }
        numpy.call_method1("from_dlpack", (slf,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::numpy(slf)?;
        let array = match dtype {
            Some(dtype) if !array.getattr("dtype")?.eq(dtype)? => {
                if copy == Some(false) {
                    return Err(pyo3::exceptions::PyValueError::new_err("another dtype needs a copy"));
                }
                return array.call_method1("astype", (dtype,));
            }
            _ => array,
        };
        if copy == Some(true) { array.call_method0("copy") } else { Ok(array) }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.0.dlpack_device()
    }

    /// Returns the tensor as a capsule. On a device the consumer's stream waits for the batch, and this call does not: `stream` is None
    /// or 1 for the legacy default stream, 2 for the per-thread one, a handle, or -1 if the consumer waits by other means. With `copy`
    /// the copy is made on that stream, in memory of its own; for -1 it is complete when this returns.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let own = self.0.dlpack_device();
        let wanted = dl_device.unwrap_or(own);
        let to_host = wanted == (dlpack::CPU, 0);
        if wanted != own && !to_host {
            return Err(PyBufferError::new_err(format!("the tensor is on device {own:?}, not {wanted:?}")));
        }
        if to_host && let Some(stream) = stream.filter(|stream| stream.extract::<i64>().ok() != Some(-1)) {
            let problem = format!("stream {stream}: what is exported is in host memory, so stream must be None");
            return Err(PyBufferError::new_err(problem));
        }
        if wanted != own && copy == Some(false) {
            return Err(PyBufferError::new_err(format!("from device {own:?} to {wanted:?} takes a copy")));
        }
        if let Held::Device(tensor) = &*self.0
            && !to_host
        {
            let consumer = consumer(stream)?;
            if copy == Some(true) {
                self.0.checked().map_err(|error| raise(py, &error))?;
                let copied = detached(py, || tensor.copied(consumer)).map_err(|error| raise(py, &error))?;
                return dlpack::capsule(py, Held::Device(copied), versioned, true);
            }
            self.give_to(py, tensor, consumer)?;
            return dlpack::capsule(py, (*self.0).clone(), versioned, false);
        }
        if copy == Some(true) || matches!(&*self.0, Held::Device(_)) {
            let held = match &*self.0 {
                Held::Device(_) => self.0.checked().map_err(|error| raise(py, &error))?,
                Held::Host(_) => self.held(py)?,
            };
            let copied = detached(py, || held.copied()).map_err(|error| raise(py, &error))?;
            return dlpack::capsule(py, Held::Host(copied), versioned, true);
        }
        dlpack::capsule(py, self.held(py)?.clone(), versioned, false)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        arrow::tensor_capsules(py, self.host(py)?)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::tensor_schema(py, self.host(py)?)
    }
}
