//! `bowstring.Tensor`: one tensor of a batch, exported to any framework.

use std::ffi::c_void;
use std::sync::Arc;

use bowstring::device::{Consumer, DeviceTensor, Stream};
use bowstring::memory::{Pool, SystemAllocator};
use bowstring::schema::DType;
use bowstring::tensor::{BatchBuilder, Tensor, TensorSpec};
use bowstring::{Error, Result};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::raise;
use crate::fork::Owned;
use crate::{arrow, dlpack};

/// A tensor in host memory, or in a device's.
#[derive(Debug, Clone)]
pub(crate) enum Held {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Held {
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Host(tensor) => tensor.dtype(),
            Self::Device(tensor) => tensor.dtype(),
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(tensor) => tensor.shape(),
        }
    }

    fn byte_len(&self) -> usize {
        match self {
            Self::Host(tensor) => tensor.bytes().len(),
            Self::Device(tensor) => tensor.byte_len(),
        }
    }

    /// Address of the first element, in whoever's memory it is.
    fn address(&self) -> u64 {
        match self {
            Self::Host(tensor) => tensor.as_ptr().addr() as u64,
            Self::Device(tensor) => tensor.address(),
        }
    }

    /// The first element as DLPack's `data`.
    pub(crate) fn data(&self) -> *mut c_void {
        match self {
            Self::Host(tensor) => {
                // The slab's own pointer may be written through; one from a slice may not.
                let offset = tensor.as_ptr().addr() - tensor.slab().as_ptr().addr();
                tensor.slab().as_ptr().wrapping_add(offset).cast_mut().cast()
            }
            // No address of this process: only the device reads through it.
            Self::Device(tensor) => std::ptr::without_provenance_mut(tensor.address() as usize),
        }
    }

    /// What DLPack calls the device.
    pub(crate) fn dlpack_device(&self) -> (i32, i32) {
        match self {
            Self::Host(_) => (dlpack::CPU, 0),
            Self::Device(tensor) => (dlpack::CUDA, i32::try_from(tensor.device().ordinal()).unwrap_or(i32::MAX)),
        }
    }

    /// What torch calls the device.
    fn device(&self) -> String {
        match self {
            Self::Host(_) => "cpu".to_owned(),
            Self::Device(tensor) => tensor.device().name(),
        }
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

    /// The tensor, if it is in host memory.
    fn host(&self, py: Python<'_>, what: &str) -> PyResult<&Tensor> {
        match &*self.0 {
            Held::Host(tensor) => Ok(tensor),
            Held::Device(tensor) => {
                let what = format!("{what} of a tensor on {}", tensor.device().name());
                Err(raise(py, &Error::Unsupported { what, hint: "copy it to the host with .cpu()".to_owned() }))
            }
        }
    }

    /// The tensor's bytes in memory of their own.
    fn copied(&self, py: Python<'_>) -> PyResult<Tensor> {
        let held = &*self.0;
        let copied = py.detach(|| match held {
            Held::Host(tensor) => filled(tensor.dtype(), tensor.shape().to_vec(), tensor.bytes()),
            Held::Device(tensor) => filled(tensor.dtype(), tensor.shape().to_vec(), &tensor.to_host()?),
        });
        copied.map_err(|error| raise(py, &error))
    }
}

/// Who reads a tensor of a device, as DLPack's `stream` says.
fn consumer(stream: Option<&Bound<'_, PyAny>>) -> PyResult<Consumer> {
    let Some(stream) = stream else { return Ok(Consumer::Stream(Stream::LegacyDefault)) };
    // torch's own streams say (0, handle) by a protocol that is not DLPack's; numbers are.
    match stream.extract::<i64>() {
        Ok(-1) => Ok(Consumer::Unordered),
        Ok(1) => Ok(Consumer::Stream(Stream::LegacyDefault)),
        Ok(2) => Ok(Consumer::Stream(Stream::PerThreadDefault)),
        Ok(handle) if handle > 2 => Ok(Consumer::Stream(Stream::Handle(handle.unsigned_abs()))),
        Ok(other) => Err(PyBufferError::new_err(format!(
            "stream {other} is ambiguous: give None, -1, 1, 2 or a stream's handle"
        ))),
        Err(_) => Err(PyBufferError::new_err("stream must be None or a number")),
    }
}

/// A tensor with its own slab, filled with `bytes`.
fn filled(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Result<Tensor> {
    let spec = TensorSpec { name: "tensor".into(), dtype, shape };
    if spec.bytes()? != bytes.len() {
        let problem = format!("{} bytes do not make {} of shape {:?}", bytes.len(), spec.dtype, spec.shape);
        return Err(Error::Config { option: "data", problem });
    }
    // A budget of its own: the consumer asked for this copy.
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
    /// A tensor from a copy of row-major little-endian `data`.
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
        self.0.byte_len()
    }

    /// Address of the first element, aligned to 64 bytes, in the device's memory.
    #[getter]
    fn data_ptr(&self) -> u64 {
        self.0.address()
    }

    /// Where it is, in torch's words: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.0.device()
    }

    /// The tensor in host memory: itself if it is there, else a copy.
    fn cpu(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        match &*slf.get().0 {
            Held::Host(_) => Ok(slf.clone().unbind()),
            Held::Device(_) => Py::new(slf.py(), Self::new(slf.get().copied(slf.py())?)),
        }
    }

    fn __len__(&self) -> usize {
        self.0.shape().first().copied().unwrap_or(0)
    }

    fn __repr__(&self) -> String {
        let on = match &*self.0 {
            Held::Host(_) => String::new(),
            Held::Device(tensor) => format!(", device={}", tensor.device().name()),
        };
        format!("bowstring.Tensor({}, shape={:?}{on})", self.0.dtype(), self.0.shape())
    }

    /// The tensor as a NumPy array over the same memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().host(py, "a NumPy array")?;
        if slf.get().0.dtype() == DType::Bfloat16 {
            let hint = "use torch.from_dlpack(tensor), or cast the column to float32".to_owned();
            return Err(raise(py, &Error::Unsupported { what: "bfloat16 in NumPy".to_owned(), hint }));
        }
        py.import("numpy")?.call_method1("from_dlpack", (slf,))
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

    /// The capsule. Of a tensor on a device, the consumer's `stream` waits for the batch, and the batch's memory waits for the
    /// stream when it is to be written again; `dl_device=(1, 0)` gives a copy in host memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let own = self.0.dlpack_device();
        let wanted = dl_device.unwrap_or(own);
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        let refused = |why: String| Err(PyBufferError::new_err(why));
        match &*self.0 {
            _ if wanted != own && wanted != (dlpack::CPU, 0) => {
                refused(format!("the tensor is on device {own:?}, not {wanted:?}"))
            }
            Held::Host(tensor) => {
                if stream.is_some_and(|stream| stream.extract::<i64>().ok() != Some(-1)) {
                    return refused("the tensor is in host memory: stream must be None".to_owned());
                }
                let copied = copy == Some(true);
                let tensor = if copied { self.copied(py)? } else { tensor.clone() };
                dlpack::capsule(py, Held::Host(tensor), versioned, copied)
            }
            Held::Device(_) if wanted != own => {
                if copy == Some(false) {
                    return refused(format!("the tensor is on device {own:?}: on the host it is a copy"));
                }
                dlpack::capsule(py, Held::Host(self.copied(py)?), versioned, true)
            }
            Held::Device(_) if copy == Some(true) => {
                refused("copies on the device are the framework's: import the tensor and clone it".to_owned())
            }
            Held::Device(tensor) => {
                let consumer = consumer(stream)?;
                py.detach(|| tensor.give_to(consumer)).map_err(|error| raise(py, &error))?;
                dlpack::capsule(py, Held::Device(tensor.clone()), versioned, false)
            }
        }
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        arrow::tensor_capsules(py, self.host(py, "an Arrow array")?)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::tensor_schema(py, self.host(py, "an Arrow array")?)
    }
}
