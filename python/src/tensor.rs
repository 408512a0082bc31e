//! `bowstring.Tensor`: one tensor of a batch, exported to any framework.

use std::sync::Arc;

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

/// A tensor of a batch. It owns a share of the batch's memory for as long as it, or anything made from it, lives.
#[pyclass(frozen, name = "Tensor", module = "bowstring")]
#[derive(Debug)]
pub(crate) struct PyTensor(Owned<Tensor>);

impl PyTensor {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self(Owned::new(tensor))
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
        self.0.bytes().len()
    }

    /// Address of the first element, aligned to 64 bytes.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn __len__(&self) -> usize {
        self.0.shape().first().copied().unwrap_or(0)
    }

    fn __repr__(&self) -> String {
        format!("bowstring.Tensor({}, shape={:?})", self.0.dtype(), self.0.shape())
    }

    /// The tensor as a NumPy array over the same memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
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
        (dlpack::CPU, 0)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if let Some(stream) = stream
            && stream.extract::<i64>().ok() != Some(-1)
        {
            return Err(PyBufferError::new_err("the tensor is in host memory: stream must be None"));
        }
        if let Some(device) = dl_device.filter(|device| *device != (dlpack::CPU, 0)) {
            return Err(PyBufferError::new_err(format!("the tensor is on device (1, 0), not {device:?}")));
        }
        let copied = copy == Some(true);
        let tensor = if copied {
            let tensor = (*self.0).clone();
            py.detach(|| filled(tensor.dtype(), tensor.shape().to_vec(), tensor.bytes()))
                .map_err(|error| raise(py, &error))?
        } else {
            (*self.0).clone()
        };
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::capsule(py, tensor, versioned, copied)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        arrow::tensor_capsules(py, &self.0)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        arrow::tensor_schema(py, &self.0)
    }
}
