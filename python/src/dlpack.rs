//! Tensors as DLPack capsules, versioned (1.0) and legacy, without a copy.
//!
//! A capsule owns a clone of the tensor, and with it the slab or the device's slot, until the consumer calls the deleter: on any
//! thread, with or without the GIL, at any later time. Two exports of one tensor share its memory, as two views of a NumPy array do.

#![expect(unsafe_code, reason = "a C ABI; ownership is stated at each use")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use bowstring::schema::DType;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::fork::Owned;
use crate::tensor::Held;

/// `kDLCPU`. Page-locked host memory is exported as this too: torch refuses `kDLCUDAHost`.
pub(crate) const CPU: i32 = 1;

/// `kDLCUDA`.
pub(crate) const CUDA: i32 = 2;

/// Version in capsules of the versioned kind: 1.0 has every type used here, and each later 1.x reads it.
const VERSION: Version = Version { major: 1, minor: 0 };

/// A flag of the versioned kind: the memory must not be written.
pub(crate) const READ_ONLY: u64 = 1;

const IS_COPIED: u64 = 1 << 1;

#[repr(C)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) ndim: i32,
    pub(crate) dtype: DataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub(crate) struct Legacy {
    pub(crate) tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Version {
    pub(crate) major: u32,
    minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub(crate) struct Versioned {
    pub(crate) version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) flags: u64,
    pub(crate) tensor: DlTensor,
}

/// The struct that a consumer sees, first, and the data that it keeps alive.
#[repr(C)]
struct Export<M> {
    managed: M,
    /// Shape, then strides in elements; the managed struct points into it.
    dims: Box<[i64]>,
    owner: Owned<Held>,
}

pub(crate) trait Managed: Sized {
    const NAME: &'static CStr;

    fn new(tensor: DlTensor, copied: bool) -> Self;

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

impl Managed for Legacy {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: DlTensor, _copied: bool) -> Self {
        Self { tensor, context: std::ptr::null_mut(), deleter: Some(delete::<Self>) }
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: DlTensor, copied: bool) -> Self {
        let flags = if copied { IS_COPIED } else { 0 };
        Self { version: VERSION, context: std::ptr::null_mut(), deleter: Some(delete::<Self>), flags, tensor }
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

/// Returns code and bits of `DLDataType`.
pub(crate) fn data_type(dtype: DType) -> DataType {
    let code = match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 0,
        DType::Uint8 | DType::Uint16 | DType::Uint32 | DType::Uint64 => 1,
        DType::Float16 | DType::Float32 | DType::Float64 => 2,
        DType::Bfloat16 => 4,
        DType::Bool => 6,
    };
    DataType { code, bits: (dtype.size() * 8) as u8, lanes: 1 }
}

/// Called by the consumer, once, when it is done with the memory.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: `managed` is the first field of a `#[repr(C)]` Export<M> whose box `export` leaked, and the protocol lets the
        // deleter run once.
        let export = unsafe { Box::from_raw(managed.cast::<Export<M>>()) };
        // No panic may pass through the consumer's frames.
        drop(bowstring::quiet(|| drop(export)));
    }
}

/// Called by Python when the capsule is destroyed: frees an export that no consumer took. A consumer renames the capsule to `used_...`.
unsafe extern "C" fn drop_unconsumed<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the GIL held and a capsule that `export` made; a pointer is only read under its own name,
    // and under that name it is the live `M` that `export` leaked.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>();
            if let Some(deleter) = (*managed).deleter() {
                deleter(managed);
            }
        }
    }
}

/// Returns shape and strides in elements, row-major.
fn dims(shape: &[usize]) -> Option<Box<[i64]>> {
    let mut dims = vec![1; shape.len() * 2];
    let (sizes, strides) = dims.split_at_mut(shape.len());
    let mut stride = 1_i64;
    for index in (0..shape.len()).rev() {
        sizes[index] = i64::try_from(shape[index]).ok()?;
        strides[index] = stride;
        stride = stride.checked_mul(sizes[index].max(1))?;
    }
    Some(dims.into())
}

fn export<M: Managed>(py: Python<'_>, tensor: Held, copied: bool) -> PyResult<Bound<'_, PyCapsule>> {
    let too_big = || PyMemoryError::new_err("the tensor's shape does not fit DLPack");
    let mut dims = dims(tensor.shape()).ok_or_else(too_big)?;
    let ndim = tensor.shape().len();
    let (kind, id) = tensor.dlpack_device();
    let data = match &tensor {
        // The slab's own pointer may be written through; one from a slice may not.
        Held::Host(tensor) => {
            let offset = tensor.as_ptr().addr() - tensor.slab().as_ptr().addr();
            tensor.slab().as_ptr().wrapping_add(offset).cast_mut().cast()
        }
        // Not in this address space: only a number.
        Held::Device(tensor) => {
            std::ptr::without_provenance_mut(usize::try_from(tensor.address()).map_err(|_| too_big())?)
        }
    };
    let described = DlTensor {
        data,
        device: Device { kind, id },
        ndim: i32::try_from(ndim).map_err(|_| too_big())?,
        dtype: data_type(tensor.dtype()),
        shape: dims.as_mut_ptr(),
        strides: dims.as_mut_ptr().wrapping_add(ndim),
        byte_offset: 0,
    };
    let export = Box::new(Export { managed: M::new(described, copied), dims, owner: Owned::new(tensor) });
    // Both live exactly as long as the box, and are not read by name.
    let _kept = (&export.dims, &export.owner);
    let pointer = NonNull::from(Box::leak(export)).cast::<c_void>();
    // SAFETY: `pointer` is the leaked box, alive until the deleter runs; the destructor only touches it while nobody consumed it,
    // and may run on any thread because tensors are Send + Sync.
    let capsule =
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, M::NAME, Some(drop_unconsumed::<M>)) };
    if capsule.is_err() {
        // SAFETY: no capsule was made, so this is the only owner; `pointer` is the box leaked above.
        unsafe { delete::<M>(pointer.as_ptr().cast()) };
    }
    capsule
}

/// Makes a capsule that owns a clone of `tensor`: `dltensor_versioned`, or `dltensor` for consumers from before DLPack 1.0.
pub(crate) fn capsule(py: Python<'_>, tensor: Held, versioned: bool, copied: bool) -> PyResult<Bound<'_, PyCapsule>> {
    if versioned { export::<Versioned>(py, tensor, copied) } else { export::<Legacy>(py, tensor, copied) }
}
