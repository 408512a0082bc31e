//! Columns and tensors over the Arrow PyCapsule protocol, without a copy.
//!
//! arrow's C structs hold a reference count of every buffer, so a consumer may keep what it imported for ever.

#![expect(unsafe_code, reason = "a buffer over a tensor's memory; the bound is stated at the use")]

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayReader as _, ArrayRef, AsArray, FixedSizeListArray, GenericByteArray, GenericListArray,
    OffsetSizeTrait, RecordBatch, RecordBatchOptions, make_array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{ByteArrayType, DataType, Field, GenericBinaryType, GenericStringType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use bowstring::tensor::{Batch, Tensor};
use bowstring::{Error, Place};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyString, PyTuple};

use crate::errors::raise;
use crate::fork::Owned;
use crate::raised::Raised;
use crate::sound::checked;

/// An Arrow column in Python.
#[pyclass(frozen, name = "ArrowArray", module = "bowstring")]
#[derive(Debug)]
pub(crate) struct ArrowArray {
    array: Owned<ArrayRef>,
    /// True if another process will write to its memory again: not to be read in a forked child.
    foreign: bool,
}

impl ArrowArray {
    pub(crate) fn new(array: ArrayRef) -> Self {
        Self { array: Owned::new(array), foreign: false }
    }

    /// Wraps a column of `batch`.
    pub(crate) fn of(batch: &Batch, array: &ArrayRef) -> Self {
        Self { foreign: batch.is_foreign(), ..Self::new(Arc::clone(array)) }
    }

    fn read(&self, py: Python<'_>) -> PyResult<&ArrayRef> {
        if self.foreign { self.array.checked().map_err(|error| raise(py, &error)) } else { Ok(&self.array) }
    }
}

#[pymethods]
impl ArrowArray {
    #[getter]
    fn r#type(&self) -> String {
        self.array.data_type().to_string()
    }

    #[getter]
    fn null_count(&self) -> usize {
        self.array.null_count()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.array.get_buffer_memory_size()
    }

    fn __len__(&self) -> usize {
        self.array.len()
    }

    fn __repr__(&self) -> String {
        format!("bowstring.ArrowArray({}, {} values)", self.array.data_type(), self.array.len())
    }

    /// Converts strings to `str`, binary to `bytes`, nulls to `None`, lists to `list`.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_list(py, self.read(py)?)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // The protocol lets a producer ignore a schema that it cannot cast to.
        let _ = requested_schema;
        let array = self.read(py)?;
        let field = Field::new("", array.data_type().clone(), array.null_count() > 0);
        array_capsules(py, &array.to_data(), &field)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &Field::new("", self.array.data_type().clone(), self.array.null_count() > 0))
    }
}

fn schema_capsule<'py>(py: Python<'py>, field: &Field) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(field).map_err(|error| refuse(py, field.data_type(), &error.to_string()))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// Returns the schema capsule of a record batch's columns.
pub(crate) fn whole_schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|error| refuse(py, &"this schema", &error.to_string()))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

/// Returns the pair for `__arrow_c_array__`. A consumer moves the structs out and marks them released; otherwise the capsules release
/// them.
pub(crate) fn array_capsules<'py>(py: Python<'py>, data: &ArrayData, field: &Field) -> PyResult<Bound<'py, PyTuple>> {
    let schema = schema_capsule(py, field)?;
    let array = PyCapsule::new_with_value(py, FFI_ArrowArray::new(data), c"arrow_array")?;
    PyTuple::new(py, [schema, array])
}

fn refuse(py: Python<'_>, what: &dyn std::fmt::Display, hint: &str) -> PyErr {
    raise(py, &Error::unsupported(format!("{what} over this protocol"), hint.to_owned()))
}

/// Views `tensor` as an Arrow array with its field: a primitive array if it has one axis, else `arrow.fixed_shape_tensor`.
fn over(tensor: &Tensor) -> Option<(ArrayData, Field)> {
    let values_type = tensor.dtype().arrow()?;
    let count = tensor.shape().iter().product::<usize>();
    // SAFETY: the tensor's bytes are valid and initialised for their whole length while the owner given along, which holds the
    // slab, lives; slices are never null.
    let buffer = unsafe {
        let bytes = tensor.bytes();
        let owner = AssertUnwindSafe(Owned::new(tensor.clone()));
        Buffer::from_custom_allocation(NonNull::from(bytes).cast(), bytes.len(), Arc::new(owner))
    };
    let values = ArrayData::builder(values_type.clone()).len(count).add_buffer(buffer).build().ok()?;
    let Some((rows, cell)) = tensor.shape().split_first().filter(|(_, cell)| !cell.is_empty()) else {
        return Some((values, Field::new("", values_type, false)));
    };
    let item = Arc::new(Field::new("item", values_type, false));
    let size = i32::try_from(cell.iter().product::<usize>()).ok()?;
    let list =
        FixedSizeListArray::try_new_with_length(Arc::clone(&item), size, make_array(values), None, *rows).ok()?;
    let metadata = serde_json::json!({ "shape": cell }).to_string();
    let field = Field::new("", list.data_type().clone(), false).with_metadata(
        [("ARROW:extension:name", "arrow.fixed_shape_tensor"), ("ARROW:extension:metadata", &*metadata)]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    Some((list.into_data(), field))
}

const NOT_ARROW: &str = "Arrow has no such bytes; use __dlpack__, or to_pyarrow() of the batch";

/// Returns the capsules of a tensor.
pub(crate) fn tensor_capsules<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyTuple>> {
    let (data, field) = over(tensor).ok_or_else(|| refuse(py, &tensor.dtype(), NOT_ARROW))?;
    array_capsules(py, &data, &field)
}

/// Returns the schema capsule of a tensor.
pub(crate) fn tensor_schema<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyCapsule>> {
    let (_, field) = over(tensor).ok_or_else(|| refuse(py, &tensor.dtype(), NOT_ARROW))?;
    schema_capsule(py, &field)
}

fn to_list<'py>(py: Python<'py>, array: &dyn Array) -> PyResult<Bound<'py, PyList>> {
    match array.data_type() {
        DataType::Utf8 => bytes_list::<GenericStringType<i32>, _>(py, array.as_bytes(), PyString::new),
        DataType::LargeUtf8 => bytes_list::<GenericStringType<i64>, _>(py, array.as_bytes(), PyString::new),
        DataType::Binary => bytes_list::<GenericBinaryType<i32>, _>(py, array.as_bytes(), PyBytes::new),
        DataType::LargeBinary => bytes_list::<GenericBinaryType<i64>, _>(py, array.as_bytes(), PyBytes::new),
        DataType::Utf8View => {
            PyList::new(py, array.as_string_view().iter().map(|value| value.map(|text| PyString::new(py, text))))
        }
        DataType::BinaryView => {
            PyList::new(py, array.as_binary_view().iter().map(|value| value.map(|bytes| PyBytes::new(py, bytes))))
        }
        DataType::List(_) => nested_list(py, array.as_list::<i32>()),
        DataType::LargeList(_) => nested_list(py, array.as_list::<i64>()),
        other => {
            let hint = "install pyarrow: pyarrow.array(column) takes it without a copy".to_owned();
            Err(raise(py, &Error::unsupported(format!("to_pylist() of {other}"), hint)))
        }
    }
}

fn bytes_list<'py, T: ByteArrayType, P>(
    py: Python<'py>,
    array: &GenericByteArray<T>,
    wrap: impl Fn(Python<'py>, &T::Native) -> Bound<'py, P>,
) -> PyResult<Bound<'py, PyList>> {
    let values: Vec<_> = array.iter().map(|value| value.map(|value| wrap(py, value).into_any())).collect();
    PyList::new(py, values)
}

fn nested_list<'py, O: OffsetSizeTrait>(py: Python<'py>, array: &GenericListArray<O>) -> PyResult<Bound<'py, PyList>> {
    let cells = array.iter().map(|cell| cell.map(|cell| to_list(py, &cell)).transpose());
    PyList::new(py, cells.collect::<PyResult<Vec<_>>>()?)
}

/// Returns the pointer in a capsule of the protocol, checking the name that the protocol requires.
fn taken<T>(py: Python<'_>, capsule: &Bound<'_, PyAny>, name: &'static std::ffi::CStr) -> PyResult<*mut T> {
    let capsule = capsule.cast::<PyCapsule>()?;
    capsule
        .pointer_checked(Some(name))
        .map(|pointer| pointer.as_ptr().cast::<T>())
        .map_err(|_| refuse(py, &"a capsule of another kind", "pass an object of an Arrow library"))
}

/// Imports the schema of an object with `__arrow_c_schema__`.
pub(crate) fn imported_schema(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Schema> {
    let capsule = object.call_method0("__arrow_c_schema__")?;
    let pointer = taken::<FFI_ArrowSchema>(py, &capsule, c"arrow_schema")?;
    // SAFETY: a capsule of this name holds a valid ArrowSchema until it is released; it is only read here, and the capsule, which
    // is alive, releases it.
    let schema = unsafe { &*pointer };
    Schema::try_from(schema).map_err(|error| refuse(py, &"this schema", &error.to_string()))
}

/// Imports the record batches of an object with `__arrow_c_stream__` or `__arrow_c_array__`.
pub(crate) fn batches(py: Python<'_>, object: &Bound<'_, PyAny>) -> PyResult<Batches> {
    if object.hasattr("__arrow_c_stream__")? {
        let capsule = object.call_method0("__arrow_c_stream__")?;
        let pointer = taken::<FFI_ArrowArrayStream>(py, &capsule, c"arrow_array_stream")?;
        // SAFETY: a capsule of this name holds a valid ArrowArrayStream; from_raw moves it out and leaves a released one, which the
        // capsule then does not release again.
        let reader = unsafe { ArrayStreamReader::from_raw(pointer) };
        let reader = reader.map_err(|error| refuse(py, &"this stream", &error.to_string()))?;
        let field = Arc::clone(reader.field());
        return Batches::new(py, &field, Box::new(reader));
    }
    let pair = object.call_method0("__arrow_c_array__")?;
    let pair = pair.cast::<PyTuple>()?;
    let (schema, array) = (pair.get_item(0)?, pair.get_item(1)?);
    let schema = taken::<FFI_ArrowSchema>(py, &schema, c"arrow_schema")?;
    let array = taken::<FFI_ArrowArray>(py, &array, c"arrow_array")?;
    // SAFETY: capsules of these names hold a valid ArrowArray, which from_raw moves out, and its schema, which is only read while
    // its capsule is alive. They came from one call, so they belong together.
    let (field, data) = unsafe { (Field::try_from(&*schema), from_ffi(FFI_ArrowArray::from_raw(array), &*schema)) };
    let wrong = |error: ArrowError| refuse(py, &"this array", &error.to_string());
    let (field, array) = (field.map_err(wrong)?, make_array(data.map_err(wrong)?));
    Batches::new(py, &field, Box::new(std::iter::once(Ok(array))))
}

const UNTAKEN: &str = "the data cannot be taken over";

/// The error for a stream that fails. Code of Python's that makes the rows may have failed: of that pyarrow passes on the text alone, the
/// traceback with the exception in its last line.
fn untaken(error: ArrowError) -> Error {
    const MARK: &str = "Python exception: ";
    let text = error.to_string();
    let Some((_, traceback)) = text.split_once(MARK) else {
        return Error::corrupt_by(Place::default(), UNTAKEN, error);
    };
    let last = traceback.trim_end().lines().next_back().unwrap_or_default();
    let source = match last.split(':').next() {
        Some("KeyboardInterrupt") => Raised::new(PyKeyboardInterrupt::new_err(())).into(),
        _ => error.into(),
    };
    Error::Store { operation: "take the rows".to_owned(), url: "the stream that was given".to_owned(), source }
}

type Arrays = Box<dyn Iterator<Item = Result<ArrayRef, ArrowError>> + Send>;

/// Record batches, one after another. They are checked, because other libraries do not always.
pub(crate) struct Batches {
    schema: SchemaRef,
    arrays: Arrays,
    /// Rows before the next batch.
    rows: u64,
}

impl Batches {
    /// Batches of arrays of type `field`, which must be structs.
    fn new(py: Python<'_>, field: &Field, arrays: Arrays) -> PyResult<Self> {
        let DataType::Struct(fields) = field.data_type() else {
            return Err(refuse(py, field.data_type(), "pass a record batch or a table"));
        };
        let schema = Schema::new_with_metadata(fields.clone(), field.metadata().clone());
        Ok(Self { schema: Arc::new(schema), arrays, rows: 0 })
    }

    /// Returns the schema of all batches.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn batch(&mut self, array: &ArrayRef) -> bowstring::Result<RecordBatch> {
        let (_, columns, nulls) = array.as_struct().clone().into_parts();
        // What is below a null is no value.
        if let Some(row) = nulls.and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row))) {
            let hint = "leave the row out, or give it with nulls in its columns";
            let null = Error::nulls("a null in place of a row", hint);
            return Err(null.at(Place::default().row(self.rows + row as u64)));
        }
        for (field, column) in self.schema.fields().iter().zip(&columns) {
            checked(&column.to_data())
                .map_err(|error| Error::corrupt_by(Place::default().column(field.name().as_str()), UNTAKEN, error))?;
        }
        self.rows += array.len() as u64;
        let options = RecordBatchOptions::new().with_row_count(Some(array.len()));
        RecordBatch::try_new_with_options(self.schema(), columns, &options).map_err(untaken)
    }
}

impl Iterator for Batches {
    type Item = bowstring::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let array = self.arrays.next()?;
        Some(array.map_err(untaken).and_then(|array| self.batch(&array)))
    }
}
