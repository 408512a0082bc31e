//! Digests of rows in any order: one per column, one of whole rows.
//!
//! A cell's hash depends on its value, not on its representation: `int32` 5 is `int64` 5, text is its bytes, a fixed-size list is a
//! list, a timestamp counts nanoseconds. So two formats that hold the same values have the same digests. A timestamp without a zone
//! differs from one with a zone, because its instant is unknown. An array of NumPy is its type, shape and elements, in whatever order,
//! byte order and archive they are stored.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::codec::npy::{self, Npy};
use crate::convert::errors::unexpected;
use crate::convert::types::item;
use crate::convert::values::cells::{by_name, npy_read};
use crate::error::{Place, Result};
use crate::schema::{Codec, cast};

pub(crate) const NULL: u64 = 0x9E37_79B9_7F4A_7C15;
pub(crate) const INTEGER: u64 = 1;
const FLOAT: u64 = 2;
const BYTES: u64 = 3;
/// A date, or a time of no known zone.
pub(crate) const WALL: u64 = 4;
pub(crate) const CLOCK: u64 = 5;
const SPAN: u64 = 6;
pub(crate) const DECIMAL: u64 = 7;
pub(crate) const LIST: u64 = 8;
pub(crate) const STRUCT: u64 = 9;
const OTHER: u64 = 10;
/// An array of NumPy.
const ARRAY: u64 = 12;
/// A time of a known zone: the same instant in any other zone has the same hash.
pub(crate) const INSTANT: u64 = 11;

/// The digest of one column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnDigest {
    /// Its name.
    pub name: String,
    /// Sum of its cells' hashes, in hexadecimal.
    pub sum: String,
    /// Number of null cells.
    pub nulls: u64,
}

/// The digest of a dataset: equal for the same rows in any order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Rows.
    pub rows: u64,
    /// Sum of the hashes of whole rows, in hexadecimal.
    pub sum: String,
    /// The columns, by name.
    pub columns: Vec<ColumnDigest>,
}

/// A digest under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summing {
    rows: u64,
    sum: u128,
    columns: Vec<(String, u128, u64)>,
}

impl Summing {
    /// Starts a digest of columns of these names, in any order.
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut columns: Vec<_> = names.map(|name| (name.to_owned(), 0, 0)).collect();
        columns.sort_unstable();
        Self { rows: 0, sum: 0, columns }
    }

    /// Adds the rows of `batch`. Returns the hash of each.
    pub(crate) fn add(&mut self, batch: &RecordBatch) -> Result<Vec<u64>> {
        let mut rows = vec![0_u64; batch.num_rows()];
        let named = by_name(batch);
        for (number, (name, sum, nulls)) in self.columns.iter_mut().enumerate() {
            let Some(column) = named.get(name.as_str()).copied() else { continue };
            let hashes = cells(column).map_err(unexpected)?;
            *nulls += hashes.iter().filter(|hash| **hash == NULL).count() as u64;
            for (row, hash) in rows.iter_mut().zip(&hashes) {
                *sum = sum.wrapping_add(wide(*hash));
                *row = row.wrapping_add(mix(*hash, number as u64 + 1));
            }
        }
        self.rows += batch.num_rows() as u64;
        self.sum = rows.iter().fold(self.sum, |sum, row| sum.wrapping_add(wide(*row)));
        Ok(rows)
    }

    /// Adds one row by the hashes of its cells, in the order of the columns' names.
    pub(crate) fn add_row(&mut self, hashes: &[u64]) {
        let mut row = 0_u64;
        for (number, ((_, sum, nulls), hash)) in self.columns.iter_mut().zip(hashes).enumerate() {
            *nulls += u64::from(*hash == NULL);
            *sum = sum.wrapping_add(wide(*hash));
            row = row.wrapping_add(mix(*hash, number as u64 + 1));
        }
        self.rows += 1;
        self.sum = self.sum.wrapping_add(wide(row));
    }

    /// Returns the digest so far.
    pub(crate) fn digest(&self) -> Digest {
        let column = |(name, sum, nulls): &(String, u128, u64)| ColumnDigest {
            name: name.clone(),
            sum: format!("{sum:032x}"),
            nulls: *nulls,
        };
        Digest {
            rows: self.rows,
            sum: format!("{:032x}", self.sum),
            columns: self.columns.iter().map(column).collect(),
        }
    }

    /// Adds another digest of the same columns.
    pub(crate) fn merge(&mut self, other: &Digest) {
        let number = |text: &str| u128::from_str_radix(text, 16).unwrap_or_default();
        self.rows += other.rows;
        self.sum = self.sum.wrapping_add(number(&other.sum));
        for (name, sum, nulls) in &mut self.columns {
            if let Some(found) = other.columns.iter().find(|column| column.name == *name) {
                *sum = sum.wrapping_add(number(&found.sum));
                *nulls += found.nulls;
            }
        }
    }
}

/// Widens a word to two well-mixed ones.
fn wide(hash: u64) -> u128 {
    u128::from(mix(hash, 0x1234_5678_9ABC_DEF1)) << 64 | u128::from(mix(hash, 0xFEDC_BA98_7654_3211))
}

/// Mixes a word with a salt, by the finaliser of splitmix64.
pub(crate) fn mix(value: u64, salt: u64) -> u64 {
    let mut x = value ^ salt.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

pub(crate) fn wide_integer(tag: u64, value: i128) -> u64 {
    mix(mix(value as u64, tag), (value >> 64) as u64)
}

/// Returns the tag of a timestamp in `zone`.
pub(crate) fn timestamp(zone: &Option<Arc<str>>) -> u64 {
    if zone.is_some() { INSTANT } else { WALL }
}

pub(crate) fn float(value: f64) -> u64 {
    // All NaNs are one value.
    mix(if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }, FLOAT)
}

pub(crate) fn bytes(value: &[u8]) -> u64 {
    mix(XxHash3_64::oneshot(value), BYTES)
}

/// Hashes a cell of bytes or text.
fn cell(value: &[u8]) -> u64 {
    npy(value).unwrap_or_else(|| bytes(value))
}

/// Hashes an array of NumPy; `None` if the bytes are none, or more than one.
fn npy(cell: &[u8]) -> Option<u64> {
    let (codec, header) = match cell {
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => {
            let header = npy::header(cell).ok()?;
            (Codec::Npy, (header.data.end == cell.len()).then_some(header)?)
        }
        // The end of an archive of one file: without a comment, its number of files is 12 bytes before the last.
        [b'P', b'K', 3, 4, .., 1, 0, _, _, _, _, _, _, _, _, 0, 0] => (Codec::Npz, npy::npz_header(cell).ok()?),
        _ => return None,
    };
    let (_, shape, elements) = npy_read(codec, cell, Place::default).ok()?;
    // The same in any order of bytes.
    let element = Npy { big: false, ..header.element }.to_string();
    let hash = mix(XxHash3_64::oneshot(&elements), ARRAY);
    let hash = mix(hash, XxHash3_64::oneshot(element.as_bytes()));
    Some(shape.iter().fold(mix(hash, shape.len() as u64), |hash, axis| mix(hash, *axis as u64)))
}

fn primitive<T: ArrowPrimitiveType>(array: &ArrayRef, hash: impl Fn(T::Native) -> u64) -> Vec<u64> {
    let array = array.as_primitive::<T>();
    if array.null_count() == 0 {
        return array.values().iter().map(|value| hash(*value)).collect();
    }
    array.iter().map(|value| value.map_or(NULL, &hash)).collect()
}

/// Hashes every cell.
fn cells(array: &ArrayRef) -> Result<Vec<u64>, ArrowError> {
    macro_rules! integers {
        ($type:ty) => {
            primitive::<$type>(array, |value| wide_integer(INTEGER, i128::from(value)))
        };
    }
    macro_rules! times {
        ($type:ty, $tag:expr, $nanos:expr) => {
            primitive::<$type>(array, |value| wide_integer($tag, i128::from(value) * $nanos))
        };
    }
    const DAY: i128 = 86_400_000_000_000;
    Ok(match array.data_type() {
        DataType::Null => vec![NULL; array.len()],
        DataType::Boolean => {
            let hash = |value: Option<bool>| value.map_or(NULL, |value| wide_integer(INTEGER, i128::from(value)));
            array.as_boolean().iter().map(hash).collect()
        }
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Float16 => primitive::<Float16Type>(array, |value| float(f64::from(value))),
        DataType::Float32 => primitive::<Float32Type>(array, |value| float(f64::from(value))),
        DataType::Float64 => primitive::<Float64Type>(array, float),
        DataType::Date32 => times!(Date32Type, WALL, DAY),
        DataType::Date64 => times!(Date64Type, WALL, 1_000_000),
        DataType::Timestamp(TimeUnit::Second, zone) => times!(TimestampSecondType, timestamp(zone), 1_000_000_000),
        DataType::Timestamp(TimeUnit::Millisecond, zone) => {
            times!(TimestampMillisecondType, timestamp(zone), 1_000_000)
        }
        DataType::Timestamp(TimeUnit::Microsecond, zone) => times!(TimestampMicrosecondType, timestamp(zone), 1_000),
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => times!(TimestampNanosecondType, timestamp(zone), 1),
        DataType::Time32(TimeUnit::Second) => times!(Time32SecondType, CLOCK, 1_000_000_000),
        DataType::Time32(_) => times!(Time32MillisecondType, CLOCK, 1_000_000),
        DataType::Time64(TimeUnit::Microsecond) => times!(Time64MicrosecondType, CLOCK, 1_000),
        DataType::Time64(_) => times!(Time64NanosecondType, CLOCK, 1),
        DataType::Duration(TimeUnit::Second) => times!(DurationSecondType, SPAN, 1_000_000_000),
        DataType::Duration(TimeUnit::Millisecond) => times!(DurationMillisecondType, SPAN, 1_000_000),
        DataType::Duration(TimeUnit::Microsecond) => times!(DurationMicrosecondType, SPAN, 1_000),
        DataType::Duration(TimeUnit::Nanosecond) => times!(DurationNanosecondType, SPAN, 1),
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::Utf8View => {
            let views = cast(array, &DataType::BinaryView)?;
            views.as_binary_view().iter().map(|value| value.map_or(NULL, cell)).collect()
        }
        DataType::FixedSizeBinary(_) => {
            array.as_fixed_size_binary().iter().map(|value| value.map_or(NULL, cell)).collect()
        }
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            texts(array, DECIMAL, |text| {
                if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
            })?
        }
        DataType::List(_) | DataType::LargeList(_) | DataType::ListView(_) | DataType::LargeListView(_) => {
            let item = item(array.data_type()).cloned().unwrap_or(DataType::Null);
            let large = cast(array, &DataType::LargeList(Arc::new(arrow::datatypes::Field::new("item", item, true))))?;
            let lists = large.as_list::<i64>();
            let offsets: Vec<usize> = lists.value_offsets().iter().map(|offset| *offset as usize).collect();
            let first = offsets.first().copied().unwrap_or(0);
            let last = offsets.last().copied().unwrap_or(0);
            let inner = cells(&lists.values().slice(first, last - first))?;
            let list = |row: usize| fold(LIST, inner.get(offsets[row] - first..offsets[row + 1] - first));
            (0..lists.len()).map(|row| if lists.is_null(row) { NULL } else { list(row) }).collect()
        }
        DataType::FixedSizeList(..) => {
            let lists = array.as_fixed_size_list();
            let size = lists.value_length().max(0) as usize;
            let inner = cells(&lists.values().slice(lists.value_offset_at(0), lists.len() * size))?;
            let list = |row: usize| fold(LIST, inner.get(row * size..(row + 1) * size));
            (0..lists.len()).map(|row| if lists.is_null(row) { NULL } else { list(row) }).collect()
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let offsets: Vec<usize> = maps.value_offsets().iter().map(|offset| *offset as usize).collect();
            let entries: ArrayRef = Arc::new(maps.entries().clone());
            let inner = cells(&entries)?;
            let list = |row: usize| fold(LIST, inner.get(offsets[row]..offsets[row + 1]));
            (0..maps.len()).map(|row| if maps.is_null(row) { NULL } else { list(row) }).collect()
        }
        DataType::Struct(fields) => {
            let structs = array.as_struct();
            let mut order: Vec<usize> = (0..fields.len()).collect();
            order.sort_unstable_by_key(|number| fields[*number].name());
            let mut hashes = vec![STRUCT; structs.len()];
            for number in order {
                let name = bytes(fields[number].name().as_bytes());
                for (hash, inner) in hashes.iter_mut().zip(cells(structs.column(number))?) {
                    *hash = mix(*hash ^ name, inner);
                }
            }
            hashes.iter().enumerate().map(|(row, hash)| if structs.is_null(row) { NULL } else { *hash }).collect()
        }
        DataType::Dictionary(_, values) => cells(&cast(array, values)?)?,
        DataType::RunEndEncoded(_, values) => cells(&cast(array, values.data_type())?)?,
        _ => texts(array, OTHER, |text| text)?,
    })
}

pub(crate) fn fold(tag: u64, inner: Option<&[u64]>) -> u64 {
    let inner = inner.unwrap_or_default();
    inner.iter().fold(mix(inner.len() as u64, tag), |hash, item| mix(hash, *item))
}

/// Hashes the text of cells, for rare types.
fn texts(array: &ArrayRef, tag: u64, trim: impl Fn(&str) -> &str) -> Result<Vec<u64>, ArrowError> {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(array, &options)?;
    let hash = |row| {
        if array.is_null(row) {
            return Ok(NULL);
        }
        Ok(mix(XxHash3_64::oneshot(trim(&formatter.value(row).try_to_string()?).as_bytes()), tag))
    };
    (0..array.len()).map(hash).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Date32Array, FixedSizeListArray, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, StringArray,
        StringViewArray, TimestampMicrosecondArray, TimestampSecondArray,
    };

    use super::*;
    use crate::schema::DType;

    fn same(a: ArrayRef, b: ArrayRef) -> bool {
        cells(&a).unwrap() == cells(&b).unwrap()
    }

    #[test]
    fn arrays_of_numpy_are_their_types_shapes_and_elements() {
        let npy = |descr: &str, fortran: &str, shape: &str, elements: &[u8]| {
            let text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
            let len = (text.len() as u16).to_le_bytes();
            [b"\x93NUMPY\x01\x00".as_slice(), &len, text.as_bytes(), elements].concat()
        };
        let plain = npy("<i2", "False", "(2, 3)", &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        let same = |other: &[u8]| cell(&plain) == cell(other);
        assert!(same(&npy("<i2", "True", "(2, 3)", &[1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0])));
        assert!(same(&npy(">i2", "False", "(2, 3)", &[0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6])));
        assert!(same(&npy("<i2", "False", "(2,3)", &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0])));
        let mut zipped = Vec::new();
        let (element, elements) = (Npy::number(DType::Int16), [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        npy::write_npz(&element, &[2, 3], &elements, &mut zipped).unwrap();
        assert!(same(&zipped));
        for other in [
            npy("<i2", "False", "(3, 2)", &elements),
            npy("<i2", "False", "(6,)", &elements),
            npy("<i2", "False", "(2, 3, 1)", &elements),
            npy("<u2", "False", "(2, 3)", &elements),
            npy("<f2", "False", "(2, 3)", &elements),
            npy("<i2", "True", "(2, 3)", &elements),
            npy(">i2", "False", "(2, 3)", &elements),
            npy("<i2", "False", "(2, 3)", &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 7, 0]),
            [plain.as_slice(), &[0]].concat(),
            elements.to_vec(),
        ] {
            assert!(!same(&other), "{}", other.escape_ascii());
        }
        // What is no array counts by its bytes.
        let damaged = &plain[..plain.len() - 1];
        assert_eq!(cell(damaged), bytes(damaged));
    }

    #[test]
    fn values_count_and_how_they_are_kept_does_not() {
        let int32 = Int32Array::from(vec![Some(1), None, Some(-3)]);
        assert!(same(Arc::new(int32.clone()), Arc::new(Int64Array::from(vec![Some(1), None, Some(-3)]))));
        assert!(!same(Arc::new(int32), Arc::new(Int64Array::from(vec![Some(1), Some(0), Some(-3)]))));
        let text = vec![Some("a"), None, Some("")];
        assert!(same(Arc::new(StringArray::from(text.clone())), Arc::new(StringViewArray::from(text))));
        let (narrow, wide) =
            (Float32Array::from(vec![0.1, f32::NAN]), Float64Array::from(vec![0.1_f32.into(), f64::NAN]));
        assert!(same(Arc::new(narrow), Arc::new(wide)));
        let lists = |values: Vec<Option<Vec<Option<i32>>>>| -> ArrayRef {
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(values))
        };
        let pairs = vec![Some(vec![Some(1), None]), None, Some(vec![Some(5), Some(6)])];
        let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs.clone(), 2);
        assert!(same(lists(pairs.clone()), Arc::new(fixed.clone())));
        assert!(same(lists(pairs).slice(1, 2), Arc::new(fixed.slice(1, 2))));
        assert!(!same(lists(vec![Some(vec![])]), lists(vec![None])));
        let (micros, seconds) = (vec![1_700_000_000_000_000], TimestampSecondArray::from(vec![1_700_000_000]));
        let zoned = |zone: &str| Arc::new(TimestampMicrosecondArray::from(micros.clone()).with_timezone(zone));
        assert!(same(zoned("UTC"), zoned("+05:00")), "the same instant");
        assert!(same(Arc::new(TimestampMicrosecondArray::from(micros.clone())), Arc::new(seconds.clone())));
        assert!(!same(zoned("UTC"), Arc::new(seconds)), "of no zone");
        let (day, midnight) = (Date32Array::from(vec![19_675]), TimestampSecondArray::from(vec![19_675 * 86_400]));
        assert!(same(Arc::new(day), Arc::new(midnight)));
        assert!(!same(lists(vec![Some(vec![Some(1)]), Some(vec![])]), lists(vec![Some(vec![]), Some(vec![Some(1)])])));
    }

    #[test]
    fn the_order_of_rows_does_not_count_and_their_number_does() {
        let batch = |ids: Vec<i64>, names: Vec<&str>| {
            let ids: ArrayRef = Arc::new(Int64Array::from(ids));
            let names: ArrayRef = Arc::new(StringArray::from(names));
            RecordBatch::try_from_iter([("id", ids), ("name", names)]).unwrap()
        };
        let digest = |batches: &[RecordBatch]| {
            let mut summing = Summing::new(["name", "id"].into_iter());
            batches.iter().for_each(|batch| drop(summing.add(batch).unwrap()));
            summing.digest()
        };
        let whole = digest(&[batch(vec![1, 2, 3], vec!["a", "b", "c"])]);
        let parts = [batch(vec![3], vec!["c"]), batch(vec![2, 1], vec!["b", "a"])];
        assert_eq!(digest(&parts), whole);
        let mut merged = Summing::new(["id", "name"].into_iter());
        parts.iter().for_each(|part| merged.merge(&digest(std::slice::from_ref(part))));
        assert_eq!(merged.digest(), whole);
        // The columns are the same, but the rows are not.
        let crossed = digest(&[batch(vec![2, 1, 3], vec!["a", "b", "c"])]);
        assert_eq!(crossed.columns, whole.columns);
        assert_ne!(crossed.sum, whole.sum);
        assert_ne!(digest(&[batch(vec![1, 1], vec!["a", "a"])]).sum, digest(&[batch(vec![1], vec!["a"])]).sum);
    }
}
