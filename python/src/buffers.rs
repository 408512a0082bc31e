//! `bowstring._native.Buffers`: tensors allocated by the caller and described by their DLPack capsules, to be filled with batches.
//!
//! A capsule is kept, not consumed: its own destructor releases the caller's tensor. It says where the memory is when it is made, and
//! does not hold it there: `resize_`, `share_memory_` and a queue of processes move that of torch's tensors. So `buffers.py` makes buffers
//! anew once a tensor differs from what they describe.

#![expect(unsafe_code, reason = "a C ABI; what a capsule promises is stated at each use")]

use std::slice;

use bowstring::device::{Kind, Target, Targets};
use bowstring::schema::DType;
use bowstring::{Error, Result};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString, PyTuple};

use crate::dlpack::{self, DlTensor, Legacy, Managed, Versioned};
use crate::errors::raise;

/// `kDLCUDAHost`: page-locked host memory.
const CUDA_HOST: i32 = 3;

/// The tensors of one caller, by column.
#[pyclass(frozen, name = "Buffers", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyBuffers {
    // Declared first, dropped first.
    targets: Targets,
    /// They hold the tensors whose memory the targets write to.
    _capsules: Vec<Py<PyAny>>,
}

impl PyBuffers {
    pub(crate) fn targets(&self) -> &Targets {
        &self.targets
    }
}

/// Returns the error for a tensor for `column` that cannot be filled.
fn unfit(column: &str, expected: &str, found: String, hint: &str) -> Error {
    let what = format!("the tensor for column {column}");
    Error::Mismatch { what, expected: expected.to_owned(), found, hint: hint.to_owned() }
}

/// Exports the capsule of `tensor`. The flag is true if the capsule tells whether it is writable.
fn export<'py>(tensor: &Bound<'py, PyAny>, device: i32) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let py = tensor.py();
    let asked = PyDict::new(py);
    if device == dlpack::CUDA {
        // Writes there are ordered on a stream that is named later.
        asked.set_item("stream", -1)?;
    }
    let old = asked.copy()?;
    asked.set_item("max_version", (1, 0))?;
    match tensor.call_method("__dlpack__", (), Some(&asked)) {
        // Exporters from before DLPack 1.0, which did not export read-only memory.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            Ok((tensor.call_method("__dlpack__", (), Some(&old))?, true))
        }
        exported => {
            let capsule = exported?;
            let versioned =
                capsule.cast::<PyCapsule>().is_ok_and(|capsule| capsule.is_valid_checked(Some(Versioned::NAME)));
            Ok((capsule, versioned))
        }
    }
}

/// Returns the tensor that `capsule` describes, and true if it is writable.
fn describe<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<(&'a DlTensor, bool)> {
    let capsule = capsule.cast::<PyCapsule>()?;
    if capsule.is_valid_checked(Some(Versioned::NAME)) {
        let managed = capsule.pointer_checked(Some(Versioned::NAME))?.cast::<Versioned>();
        // SAFETY: a capsule of this name holds this struct, alive for as long as the capsule, which the result borrows.
        let managed = unsafe { managed.as_ref() };
        if managed.version.major != 1 {
            return Err(PyBufferError::new_err(format!("DLPack {}, which nothing here reads", managed.version.major)));
        }
        return Ok((&managed.tensor, managed.flags & dlpack::READ_ONLY == 0));
    }
    let managed = capsule.pointer_checked(Some(Legacy::NAME))?.cast::<Legacy>();
    // SAFETY: as above.
    Ok((unsafe { &managed.as_ref().tensor }, true))
}

/// Returns the shape, and the strides if there are any.
fn axes(tensor: &DlTensor) -> (&[i64], Option<&[i64]>) {
    let count = usize::try_from(tensor.ndim).unwrap_or(0);
    if count == 0 || tensor.shape.is_null() {
        return (&[], None);
    }
    // SAFETY: both have `ndim` numbers, alive as long as the tensor is; strides may be left out.
    unsafe {
        let strides = (!tensor.strides.is_null()).then(|| slice::from_raw_parts(tensor.strides.cast_const(), count));
        (slice::from_raw_parts(tensor.shape.cast_const(), count), strides)
    }
}

/// Returns true for the strides of a row-major tensor.
fn is_row_major(shape: &[i64], strides: Option<&[i64]>) -> bool {
    let Some(strides) = strides else { return true };
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1_i64;
    shape.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == expected;
        expected = expected.saturating_mul(*size);
        fits
    })
}

fn dtype_of(tensor: &DlTensor) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dlpack::data_type(*dtype) == tensor.dtype)
}

/// Returns the target for `column` in the memory that a capsule describes.
fn target(column: &str, tensor: &DlTensor, writable: bool) -> Result<Target> {
    if !writable {
        return Err(unfit(column, "a tensor that may be written", "a read-only one".to_owned(), ""));
    }
    let (shape, strides) = axes(tensor);
    if !is_row_major(shape, strides) {
        let found = format!("shape {shape:?} with strides {:?}", strides.unwrap_or_default());
        let hint = "give a contiguous one; for torch's channels_last deliver layout=\"hwc\" and give tensor.permute(0, 2, 3, 1)";
        return Err(unfit(column, "a row-major tensor", found, hint));
    }
    let Some(dtype) = dtype_of(tensor) else {
        let found = format!("DLPack's type {:?}", tensor.dtype);
        return Err(unfit(column, "an element type of bowstring's", found, ""));
    };
    let sizes: Option<Vec<usize>> = shape.iter().map(|size| usize::try_from(*size).ok()).collect();
    let at = usize::try_from(tensor.byte_offset).ok().map(|offset| tensor.data.cast::<u8>().wrapping_add(offset));
    let (Some(shape), Some(at)) = (sizes, at) else {
        return Err(unfit(column, "sizes that are numbers of bytes", format!("shape {shape:?}"), ""));
    };
    if tensor.data.is_null() && !shape.contains(&0) {
        return Err(unfit(column, "a tensor with memory", "one without memory".to_owned(), ""));
    }
    match (tensor.device.kind, u32::try_from(tensor.device.id)) {
        // SAFETY: the exporter says that so many bytes at `at` are the host's and may be written. Its capsule, which outlives the target,
        // keeps them, unless the caller moves them; the target is used only while `buffers.py` finds them where they were. The caller gave
        // them to be written.
        (dlpack::CPU | CUDA_HOST, _) => unsafe { Target::on_host(column, dtype, shape, at) },
        (dlpack::CUDA, Ok(ordinal)) => {
            // SAFETY: as above, on a GPU; the caller says on which stream they are used.
            unsafe { Target::on_device(column, dtype, shape, (Kind::Cuda, ordinal), at.addr() as u64) }
        }
        (kind, _) => {
            Err(unfit(column, "memory of the host or of a CUDA device", format!("DLPack's device {kind}"), ""))
        }
    }
}

#[pymethods]
impl PyBuffers {
    /// Makes the targets in `tensors`, a mapping of columns to objects with `__dlpack__`.
    #[new]
    fn new(py: Python<'_>, tensors: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (mut targets, mut capsules) = (Vec::new(), Vec::new());
        for (column, tensor) in tensors {
            let column = column.cast::<PyString>()?.to_str()?.to_owned();
            let refused = |error: PyErr| {
                let expected = "a tensor that can be written, with __dlpack__";
                let found = format!("{}: {error}", tensor.get_type());
                let refused = raise(py, &unfit(&column, expected, found, ""));
                refused.set_cause(py, Some(error));
                refused
            };
            let device = tensor.call_method0("__dlpack_device__").map_err(refused)?.cast_into::<PyTuple>();
            let device = device.map_err(PyErr::from).and_then(|device| device.get_item(0)?.extract::<i32>());
            let (capsule, says) = export(&tensor, device.map_err(refused)?).map_err(refused)?;
            let (described, writable) = describe(&capsule).map_err(refused)?;
            if !says {
                let found =
                    format!("{}, which does not say so (arrays of JAX and TensorFlow never may)", tensor.get_type());
                return Err(raise(py, &unfit(&column, "a tensor that may be written", found, "")));
            }
            targets.push(target(&column, described, writable).map_err(|error| raise(py, &error))?);
            capsules.push(capsule.unbind());
        }
        let targets = Targets::new(targets).map_err(|error| raise(py, &error))?;
        Ok(Self { targets, _capsules: capsules })
    }
}
