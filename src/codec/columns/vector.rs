//! Vectors of Spark, stored as structs of `type` (0: sparse, 1: dense), `size`, `indices` and `values`: delivered as a
//! matrix, or as the rows of a sparse one.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int8Array, Int32Array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{Float64Type, Int8Type, Int32Type};

use super::items::{Checked, items};
use super::number::{self, convert};
use super::offsets::Offsets;
use super::output::{Held, Member, NullPlan};
use super::parts::{Bad, Cause, Data, Part, RowSet, mask};
use crate::schema::DType;

/// The type of a sparse vector, and of a dense one.
const SPARSE: i8 = 0;
const DENSE: i8 = 1;

/// The columns of the struct.
struct Vectors<'a> {
    array: &'a ArrayRef,
    kinds: &'a Int8Array,
    sizes: &'a Int32Array,
    indices: (Offsets, ArrayRef),
    values: (Offsets, ArrayRef),
    /// The lists of both, for their nulls.
    lists: [&'a ArrayRef; 2],
}

/// One vector.
enum Vector {
    Null,
    /// Not a vector: its parts do not fit each other.
    Broken,
    Dense(Range<usize>),
    /// Its length, and the ranges of its indices and its values.
    Sparse(usize, Range<usize>, Range<usize>),
}

impl<'a> Vectors<'a> {
    fn of(array: &'a ArrayRef) -> Checked<Self> {
        let of = array.as_struct_opt().ok_or("no struct, where the schema promises a vector of Spark")?;
        let column = |name: &str| of.column_by_name(name).ok_or_else(|| format!("the vector has no member {name}"));
        let wrong = |name: &str| format!("the vector's member {name} is of another type");
        let kinds = column("type")?.as_primitive_opt::<Int8Type>().ok_or_else(|| wrong("type"))?;
        let sizes = column("size")?.as_primitive_opt::<Int32Type>().ok_or_else(|| wrong("size"))?;
        let lists = [column("indices")?, column("values")?];
        let (indices, values) = (items(lists[0])?, items(lists[1])?);
        if indices.1.as_primitive_opt::<Int32Type>().is_none() || values.1.as_primitive_opt::<Float64Type>().is_none() {
            return Err(wrong("values"));
        }
        Ok(Self { array, kinds, sizes, indices, values, lists })
    }

    fn numbers(&self) -> &Float64Array {
        self.values.1.as_primitive()
    }

    fn places(&self) -> &Int32Array {
        self.indices.1.as_primitive()
    }

    fn get(&self, row: usize) -> Vector {
        let [indices, values] = self.lists.map(|list| list.is_null(row));
        if self.array.is_null(row) || self.kinds.is_null(row) || values {
            return Vector::Null;
        }
        if indices && self.kinds.value(row) == SPARSE {
            return Vector::Null;
        }
        let range = |(offsets, _): &(Offsets, ArrayRef)| offsets.at(row)..offsets.at(row + 1);
        let (indices, values) = (range(&self.indices), range(&self.values));
        if self.numbers().null_count() > 0 && values.clone().any(|at| self.numbers().is_null(at)) {
            return Vector::Null;
        }
        match (self.kinds.value(row), self.sizes.is_valid(row).then(|| self.sizes.value(row))) {
            (DENSE, _) => Vector::Dense(values),
            (SPARSE, Some(size)) if indices.len() == values.len() && self.is_ascending(indices.clone(), size) => {
                // Ascending from zero up to it.
                Vector::Sparse(usize::try_from(size).unwrap_or(0), indices, values)
            }
            _ => Vector::Broken,
        }
    }

    /// Returns true if the indices at `places` ascend strictly, as Spark demands, from zero or more to less than `size`.
    fn is_ascending(&self, places: Range<usize>, size: i32) -> bool {
        let indices = self.places();
        let mut least = 0;
        size >= 0
            && places.into_iter().all(|at| {
                let index = indices.value(at);
                let fits = indices.is_valid(at) && (least..size).contains(&index);
                // Below the size, so there is a next number.
                least = if fits { index + 1 } else { least };
                fits
            })
    }
}

/// The length of the first vector in a column of them.
pub(crate) fn length(array: &ArrayRef) -> Option<usize> {
    let vectors = Vectors::of(array).ok()?;
    (0..array.len()).find_map(|row| match vectors.get(row) {
        Vector::Dense(values) => Some(values.len()),
        Vector::Sparse(size, ..) => Some(size),
        Vector::Null | Vector::Broken => None,
    })
}

/// Prepares the column `root` of vectors.
pub(super) fn part(member: &Member, root: &ArrayRef) -> Checked<Part> {
    let vectors = Vectors::of(root)?;
    match member.held {
        Held::Dense(size) => dense(member, &vectors, size),
        Held::Sparse => sparse(member, &vectors, true),
        Held::Indices => sparse(member, &vectors, false),
        Held::Values | Held::Strings(..) | Held::Arrow(_) => Err("no vectors".to_owned()),
    }
}

/// The first row of the column `root` of vectors that is null.
pub(super) fn first_null(root: &ArrayRef) -> Checked<Option<usize>> {
    let vectors = Vectors::of(root)?;
    Ok((0..root.len()).find(|row| matches!(vectors.get(*row), Vector::Null)))
}

/// Numbers of vectors, each written once in the delivered type.
struct Numbers {
    dtype: DType,
    /// Aligned for every type.
    words: Vec<u64>,
    /// Bytes written.
    length: usize,
    /// Rows with a number that does not fit the type.
    misfits: RowSet,
}

impl Numbers {
    /// Room for at most `most` numbers in `rows` rows. Their number comes from the file.
    fn new(dtype: DType, rows: usize, most: Option<usize>) -> Checked<Self> {
        let words = most.and_then(|most| most.checked_mul(dtype.size())).map(|bytes| bytes.div_ceil(size_of::<u64>()));
        Ok(Self { dtype, words: zeros(words)?, length: 0, misfits: RowSet::new(rows) })
    }

    /// The place of `count` more numbers.
    fn place(&mut self, count: usize) -> &mut [u8] {
        let start = self.length;
        self.length += count * self.dtype.size();
        &mut bytemuck::cast_slice_mut(&mut self.words)[start..self.length]
    }

    /// Adds the numbers of `row`.
    fn push(&mut self, row: usize, numbers: &[f64]) {
        let dtype = self.dtype;
        if !convert(DType::Float64, bytemuck::cast_slice(numbers), dtype, self.place(numbers.len())) {
            self.misfits.insert(row);
        }
    }

    fn finish(self) -> (Buffer, RowSet) {
        (Buffer::from_vec(self.words).slice_with_length(0, self.length), self.misfits)
    }
}

/// `len` zeros: too little memory is an error, not an abort.
fn zeros<T: Clone + Default>(len: Option<usize>) -> Checked<Vec<T>> {
    let mut zeros = Vec::new();
    let len = len.filter(|len| zeros.try_reserve_exact(*len).is_ok()).ok_or("there is no memory for its vectors")?;
    zeros.resize(len, T::default());
    Ok(zeros)
}

fn dense(member: &Member, vectors: &Vectors<'_>, size: usize) -> Checked<Part> {
    let rows = vectors.array.len();
    let mut numbers = Numbers::new(member.dtype, rows, rows.checked_mul(size))?;
    let (mut nulls, mut broken) = (RowSet::new(rows), RowSet::new(rows));
    // One sparse vector including its zeros.
    let mut spread: Vec<f64> = Vec::new();
    for row in 0..rows {
        match vectors.get(row) {
            Vector::Dense(values) if values.len() == size => numbers.push(row, &vectors.numbers().values()[values]),
            Vector::Sparse(length, indices, values) if length == size => {
                if spread.is_empty() {
                    spread = zeros(Some(size))?;
                }
                spread.fill(0.0);
                for (index, value) in indices.zip(values) {
                    // Checked to be within the size.
                    spread[vectors.places().value(index) as usize] = vectors.numbers().value(value);
                }
                numbers.push(row, &spread);
            }
            Vector::Null => {
                nulls.insert(row);
                let place = numbers.place(size);
                if let NullPlan::Fill(value) = &member.nulls {
                    number::fill(place, value);
                }
            }
            Vector::Broken | Vector::Dense(_) | Vector::Sparse(..) => {
                broken.insert(row);
                numbers.place(size);
            }
        }
    }
    let (bytes, misfits) = numbers.finish();
    let width = size * member.dtype.size();
    let data = Data::Fixed { bytes, width, stride: width };
    Ok(finish(member, vectors, data, (nulls, broken, misfits), Some(size)))
}

/// The values of vectors, or their indices, as lists.
fn sparse(member: &Member, vectors: &Vectors<'_>, values: bool) -> Checked<Part> {
    let rows = vectors.array.len();
    let mut numbers = Numbers::new(member.dtype, rows, Some(if values { vectors.numbers().len() } else { 0 }))?;
    let mut places: Vec<i32> = Vec::new();
    let mut lengths = Vec::with_capacity(rows);
    let (mut nulls, mut broken) = (RowSet::new(rows), RowSet::new(rows));
    for row in 0..rows {
        lengths.push(match vectors.get(row) {
            Vector::Null => {
                nulls.insert(row);
                0
            }
            Vector::Broken => {
                broken.insert(row);
                0
            }
            Vector::Dense(of) | Vector::Sparse(_, _, of) if values => {
                numbers.push(row, &vectors.numbers().values()[of.clone()]);
                of.len()
            }
            // A dense vector is no longer than its list, whose offsets are 32 bits if Spark wrote them.
            Vector::Dense(of) => {
                places.extend((0..of.len()).map(|at| i32::try_from(at).unwrap_or(i32::MAX)));
                of.len()
            }
            Vector::Sparse(_, of, _) => {
                places.extend_from_slice(&vectors.places().values()[of.clone()]);
                of.len()
            }
        });
    }
    let offsets = vec![Offsets::Large(OffsetBuffer::<i64>::from_lengths(lengths))];
    let (bytes, misfits) = if values { numbers.finish() } else { (Buffer::from_vec(places), RowSet::default()) };
    let data = Data::Lists { offsets, values: bytes, width: member.dtype.size() };
    if !values {
        // Faults of a row are reported with its values.
        (nulls, broken) = (RowSet::default(), RowSet::default());
    }
    Ok(finish(member, vectors, data, (nulls, broken, misfits), None))
}

fn finish(
    member: &Member,
    vectors: &Vectors<'_>,
    data: Data,
    (nulls, broken, misfits): (RowSet, RowSet, RowSet),
    size: Option<usize>,
) -> Part {
    let mut part = Part { data, dtype: member.dtype, valid: None, bad: Vec::new(), root: None, in_take_order: false };
    let bad = |rows, cause| {
        let (column, array) = (Arc::clone(&member.name), Some(Arc::clone(vectors.array)));
        Bad { column, rows, cause, array }
    };
    let some = |rows: RowSet| Some(rows).filter(|rows| !rows.is_empty());
    part.bad.extend(some(broken).map(|rows| bad(rows, Cause::Vector(size))));
    part.bad.extend(some(misfits).map(|rows| bad(rows, Cause::Misfit(member.dtype))));
    match member.nulls {
        NullPlan::Fill(_) => {}
        NullPlan::Mask => part.valid = Some(mask(vectors.array.len(), some(nulls).as_ref())),
        NullPlan::Error => part.bad.extend(some(nulls).map(|rows| bad(rows, Cause::Null))),
    }
    part
}

#[cfg(test)]
mod tests {
    use arrow::array::{ListArray, StructArray};
    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn vectors_without_values_are_null_and_their_indices_ascend() {
        type Row = (i8, Option<i32>, Option<&'static [i32]>, Option<&'static [f64]>);
        let rows: [Row; 7] = [
            (DENSE, None, None, Some(&[1.0, 2.0, 3.0])),
            (DENSE, None, None, None),
            (SPARSE, Some(3), None, None),
            (SPARSE, Some(3), None, Some(&[])),
            (SPARSE, Some(3), Some(&[0, 2]), Some(&[1.0, 2.0])),
            (SPARSE, Some(3), Some(&[1, 1]), Some(&[1.0, 2.0])),
            (SPARSE, Some(3), Some(&[2, 0]), Some(&[1.0, 2.0])),
        ];
        let items = |at: fn(&Row) -> Option<Vec<Option<i32>>>| {
            ListArray::from_iter_primitive::<Int32Type, _, _>(rows.iter().map(at))
        };
        let indices = items(|row| row.2.map(|found| found.iter().copied().map(Some).collect()));
        let values = rows.iter().map(|row| row.3.map(|found| found.iter().copied().map(Some).collect::<Vec<_>>()));
        let values = ListArray::from_iter_primitive::<Float64Type, _, _>(values);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("type", Arc::new(Int8Array::from_iter_values(rows.iter().map(|row| row.0)))),
            ("size", Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.1)))),
            ("indices", Arc::new(indices)),
            ("values", Arc::new(values)),
        ];
        let fields = columns.iter().map(|(name, array)| Field::new(*name, DataType::clone(array.data_type()), true));
        let fields: Vec<_> = fields.collect();
        let arrays = columns.into_iter().map(|(_, array)| array).collect();
        let array: ArrayRef = Arc::new(StructArray::new(fields.into(), arrays, None));

        let vectors = Vectors::of(&array).unwrap();
        let found = (0..rows.len()).map(|row| match vectors.get(row) {
            Vector::Null => "null".to_owned(),
            Vector::Broken => "broken".to_owned(),
            Vector::Dense(values) => format!("dense {values:?}"),
            Vector::Sparse(size, indices, values) => format!("sparse {size} {indices:?} {values:?}"),
        });
        let expected = ["dense 0..3", "null", "null", "null", "sparse 3 0..2 3..5", "broken", "broken"];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
