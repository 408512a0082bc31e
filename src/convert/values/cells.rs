//! NumPy arrays in cells: encoded from lists, and decoded to lists.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayDataBuilder, ArrayRef, AsArray, BinaryArray, LargeListArray, RecordBatch, make_array};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};

use crate::codec::npy::{Npy, NpyDecoder, write_npy};
use crate::convert::errors::unexpected;
use crate::convert::types::{item, number};
use crate::convert::values::texts;
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, DType, Element, Misfit, Stored, cast};

/// The columns of a batch by name. There may be thousands, and each look-up in a schema walks them.
pub(crate) fn by_name(batch: &RecordBatch) -> HashMap<&str, &ArrayRef> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    // Of one name the first counts, as in a schema.
    columns.rev().map(|(field, column)| (field.name().as_str(), column)).collect()
}

/// Returns the little-endian bytes of an array of numbers without nulls; a byte per boolean.
pub(crate) fn number_bytes(values: &ArrayRef) -> Result<Vec<u8>> {
    if values.data_type() == &DataType::Boolean {
        return Ok(values.as_boolean().values().iter().map(u8::from).collect());
    }
    let Some(width) = values.data_type().primitive_width() else {
        let what = format!("{} as numbers", values.data_type());
        return Err(Error::unsupported(what, ""));
    };
    let data = values.to_data();
    let buffer = data.buffers().first().map(Buffer::as_slice).unwrap_or_default();
    let start = data.offset() * width;
    let bytes = buffer.get(start..start + data.len() * width);
    Ok(bytes.map(<[u8]>::to_vec).unwrap_or_default())
}

/// Builds an array of numbers from its little-endian bytes.
pub(crate) fn numbers(dtype: DType, bytes: Vec<u8>) -> Result<ArrayRef> {
    if dtype == DType::Bool {
        let values: Vec<bool> = bytes.iter().map(|byte| *byte != 0).collect();
        return Ok(Arc::new(arrow::array::BooleanArray::from(values)));
    }
    let Some(data_type) = number(dtype) else {
        return Err(Error::unsupported(format!("{dtype} in Arrow"), ""));
    };
    let builder = ArrayDataBuilder::new(data_type).len(bytes.len() / dtype.size());
    // A buffer of bytes may be misaligned for the numbers.
    let data = builder.add_buffer(Buffer::from_vec(bytes)).align_buffers(true).build().map_err(unexpected)?;
    Ok(make_array(data))
}

/// Encodes these numbers as `.npy`.
pub(crate) fn npy_cell(dtype: DType, shape: &[usize], values: &ArrayRef) -> Result<Vec<u8>> {
    npy_bytes(dtype, shape, &number_bytes(values)?)
}

/// Encodes the numbers with these little-endian bytes in C order as `.npy`.
pub(crate) fn npy_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Vec<u8>> {
    let mut cell = Vec::with_capacity(bytes.len() + 128);
    write_npy(&Npy::number(dtype), shape, bytes, &mut cell)?;
    Ok(cell)
}

/// Decodes a `.npy` or `.npz`: element type, shape, and little-endian bytes in C order.
pub(crate) fn npy_read(codec: Codec, cell: &[u8], place: impl Fn() -> Place) -> Result<(DType, Vec<usize>, Vec<u8>)> {
    let read = || {
        // Any number of axes and any element type: the header gives both.
        let header = match codec {
            Codec::Npz => crate::codec::npy::npz_header(cell)?,
            _ => crate::codec::npy::header(cell)?,
        };
        let Some(dtype) = header.element.dtype().filter(|dtype| number(*dtype).is_some()) else {
            let what = format!("an array of {}", header.element);
            return Err(Error::unsupported(what, "numbers and booleans are supported"));
        };
        let decoder = any(codec, header.shape.len(), dtype)?;
        let mut bytes = vec![0; header.count() * dtype.size()];
        decoder.decode_into(cell, &mut bytes)?;
        Ok((dtype, header.shape, bytes))
    };
    read().map_err(|error| error.at(place()))
}

fn any(codec: Codec, axes: usize, dtype: DType) -> Result<NpyDecoder> {
    NpyDecoder::new(&Stored { codec, element: Element::Number(dtype), shape: vec![None; axes] })
}

/// Converts cells of arrays to the type of a column: bytes unchanged, or lists.
pub(crate) fn from_npy(cells: &BinaryArray, codec: Codec, field: &Field) -> Result<ArrayRef> {
    let Some(inner) = item(field.data_type()) else {
        // As bytes of the requested kind.
        return as_type_of(field.name(), &(Arc::new(cells.clone()) as ArrayRef), field.data_type());
    };
    let place =
        |row: usize| Place { column: Some(field.name().as_str().into()), row: Some(row as u64), ..Place::default() };
    let wrong = |row: usize, what: String| Error::corrupt(place(row), what);
    let mut found: Option<DType> = None;
    let (mut bytes, mut ends, mut valid) = (Vec::new(), vec![0_i64], Vec::new());
    for (row, cell) in cells.iter().enumerate() {
        valid.push(cell.is_some());
        if let Some(cell) = cell {
            let (dtype, shape, values) = npy_read(codec, cell, || place(row))?;
            if shape.len() != 1 {
                return Err(wrong(row, format!("an array {shape:?}, where a list is wanted")));
            }
            if found.is_some_and(|found| found != dtype) {
                return Err(wrong(row, format!("an array of {dtype}, the ones before are of another type")));
            }
            found = Some(dtype);
            bytes.extend_from_slice(&values);
        }
        ends.push((bytes.len() / found.map_or(1, DType::size)) as i64);
    }
    let values = match found {
        Some(found) => numbers(found, bytes)?,
        None => arrow::array::new_empty_array(inner),
    };
    let list = LargeListArray::try_new(
        Arc::new(Field::new("item", values.data_type().clone(), true)),
        OffsetBuffer::new(ScalarBuffer::from(ends)),
        values,
        Some(NullBuffer::from(valid)),
    );
    let list: ArrayRef = Arc::new(list.map_err(unexpected)?);
    as_type_of(field.name(), &list, field.data_type())
}

/// Casts values to another layout or type; a value that does not fit is an error. For arrays without a name.
pub(crate) fn as_type(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    cast(array, data_type).map_err(|misfit| unfit(Place::default(), |at| at as u64, &misfit))
}

/// The same for column `name`.
pub(crate) fn as_type_of(name: &str, array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    as_type_at(name, |at| at as u64, array, data_type)
}

/// The same, with the row number of each position given by `row`. Texts that become another type are parsed as those of text formats.
pub(crate) fn as_type_at(
    name: &str,
    row: impl Fn(usize) -> u64,
    array: &ArrayRef,
    data_type: &DataType,
) -> Result<ArrayRef> {
    let array = texts::read(array, data_type).map_err(|error| {
        let at = error.place().and_then(|place| place.row).map(|at| row(usize::try_from(at).unwrap_or(usize::MAX)));
        error.at(Place { row: at, ..Place::default().column(name) })
    })?;
    cast(&array, data_type).map_err(|misfit| unfit(Place::default().column(name), row, &misfit))
}

fn unfit(mut place: Place, row: impl Fn(usize) -> u64, misfit: &Misfit) -> Error {
    place.row = misfit.row.map(row);
    Error::corrupt(place, format!("{misfit}; give another type with --schema"))
}
