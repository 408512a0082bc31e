//! Deciding rows: the filter on a record batch, three-valued inside, yes or no outside.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayAccessor, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, BooleanBufferBuilder, RecordBatch,
    StructArray,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{and_kleene, cast, not, or_kleene};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use arrow::error::ArrowError;

use super::bind::{Bound, Column, Match, Part, Test};
use super::node::Op;
use crate::error::{Error, Place, Result};

impl Bound {
    /// The rows of `batch` that the filter selects: one entry per row, no nulls. A row for which the filter is unknown
    /// (because of a null) is not selected.
    ///
    /// The batch needs the columns of the filter, in any order among others, with the types of the schema that the filter
    /// was bound to; the kind of string or binary array does not matter, nor whether there is a dictionary.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a column is missing, [`Error::Mismatch`] if it has another type.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let columns = self.columns.iter().map(|column| fetch(batch, column)).collect::<Result<Vec<_>>>()?;
        let (values, nulls) = self.part(&self.root, &columns, batch.num_rows())?.into_parts();
        Ok(match nulls {
            Some(nulls) => BooleanArray::new(&values & nulls.inner(), None),
            None => BooleanArray::new(values, None),
        })
    }

    fn part(&self, part: &Part, columns: &[Operand], rows: usize) -> Result<BooleanArray> {
        match part {
            Part::Test { column, test } => {
                let Operand { array, outer } = self.operand(*column, columns)?;
                let passed = self.fits(*column, array.data_type()).then(|| test.on(array)).flatten();
                let (values, nulls) = passed.ok_or_else(|| self.mismatch(*column, array.data_type()))?.into_parts();
                Ok(BooleanArray::new(values, NullBuffer::union(nulls.as_ref(), outer.as_ref())))
            }
            Part::AnyItem { column, test } => {
                let Operand { array, outer } = self.operand(*column, columns)?;
                let (values, nulls) = self
                    .any_item(*column, test, array)
                    .ok_or_else(|| self.mismatch(*column, array.data_type()))?
                    .into_parts();
                Ok(BooleanArray::new(values, NullBuffer::union(nulls.as_ref(), outer.as_ref())))
            }
            Part::IsNull { column } => {
                let Operand { array, outer } = self.operand(*column, columns)?;
                let mask = match NullBuffer::union(array.logical_nulls().as_ref(), outer.as_ref()) {
                    Some(nulls) => !nulls.inner(),
                    None => BooleanBuffer::new_unset(rows),
                };
                Ok(BooleanArray::new(mask, None))
            }
            Part::All(parts) => self.fold(parts, columns, rows, and_kleene),
            Part::Any(parts) => self.fold(parts, columns, rows, or_kleene),
            Part::Not(part) => not(&self.part(part, columns, rows)?).map_err(internal),
        }
    }

    fn fold(
        &self,
        parts: &[Part],
        columns: &[Operand],
        rows: usize,
        join: fn(&BooleanArray, &BooleanArray) -> Result<BooleanArray, ArrowError>,
    ) -> Result<BooleanArray> {
        let mut folded: Option<BooleanArray> = None;
        for part in parts {
            let next = self.part(part, columns, rows)?;
            folded = Some(match folded {
                Some(before) => join(&before, &next).map_err(internal)?,
                None => next,
            });
        }
        Ok(folded.unwrap_or_else(|| BooleanArray::new(BooleanBuffer::new_set(rows), None)))
    }

    /// True for each list of which any item passes; null where the list is. Null items pass nothing.
    fn any_item(&self, column: usize, test: &Test, array: &ArrayRef) -> Option<BooleanArray> {
        let array = match array.data_type() {
            DataType::FixedSizeList(item, _) => &cast(array, &DataType::LargeList(Arc::clone(item))).ok()?,
            DataType::List(item) => &cast(array, &DataType::LargeList(Arc::clone(item))).ok()?,
            _ => array,
        };
        let lists = array.as_list_opt::<i64>()?;
        let items = lists.values();
        let passed = self.fits(column, items.data_type()).then(|| test.on(items)).flatten()?;
        let any = |row: usize| {
            let (start, end) = (lists.value_offsets()[row] as usize, lists.value_offsets()[row + 1] as usize);
            (start..end).any(|item| passed.is_valid(item) && passed.value(item))
        };
        Some(BooleanArray::new(BooleanBuffer::collect_bool(lists.len(), any), lists.nulls().cloned()))
    }

    fn operand<'a>(&self, column: usize, columns: &'a [Operand]) -> Result<&'a Operand> {
        columns
            .get(column)
            .ok_or_else(|| Error::NotFound { what: format!("filter column {column}"), hint: String::new() })
    }

    /// Returns true if an array of type `found` holds what the literals were converted to.
    fn fits(&self, column: usize, found: &DataType) -> bool {
        use DataType as D;
        let found = match found {
            D::Dictionary(_, values) => values,
            other => other,
        };
        self.columns.get(column).is_some_and(|column| match (&column.kind, found) {
            (D::Timestamp(unit, zone), D::Timestamp(other, other_zone)) => {
                unit == other && zone.is_some() == other_zone.is_some()
            }
            (D::Utf8 | D::LargeUtf8 | D::Utf8View, D::Utf8 | D::LargeUtf8 | D::Utf8View) => true,
            (D::Binary | D::LargeBinary | D::BinaryView, D::Binary | D::LargeBinary | D::BinaryView) => true,
            (kind, found) => kind == found,
        })
    }

    fn mismatch(&self, column: usize, found: &DataType) -> Error {
        let column = self.columns.get(column);
        let name = column.map(|column| column.name.dotted()).unwrap_or_default();
        let kind = column.map_or(&DataType::Null, |column| &column.kind);
        Error::Mismatch {
            what: format!("type of filter column {name:?}"),
            expected: kind.to_string(),
            found: found.to_string(),
            hint: "bind the filter to the schema of the batches".to_owned(),
        }
    }
}

fn internal(error: ArrowError) -> Error {
    Error::corrupt_by(Place::default(), "the filter could not be combined", error)
}

/// A column of a batch.
struct Operand {
    array: ArrayRef,
    /// The nulls of the structs around it: below them nothing is defined.
    outer: Option<NullBuffer>,
}

fn fetch(batch: &RecordBatch, column: &Column) -> Result<Operand> {
    let missing = || Error::NotFound {
        what: format!("column {:?} of the filter in a batch", column.name.dotted()),
        hint: "read the filter's columns too".to_owned(),
    };
    let (first, rest) = column.path.split_first().ok_or_else(missing)?;
    let mut array = batch.column_by_name(first).ok_or_else(missing)?;
    let mut outer: Option<NullBuffer> = None;
    for name in rest {
        let parent: &StructArray = array.as_struct_opt().ok_or_else(missing)?;
        outer = NullBuffer::union(outer.as_ref(), parent.nulls());
        array = parent.column_by_name(name).ok_or_else(missing)?;
    }
    Ok(Operand { array: Arc::clone(array), outer })
}

impl Test {
    /// The test on every value, null where the value is; `None` if the array is of another kind than the test.
    fn on(&self, array: &ArrayRef) -> Option<BooleanArray> {
        if let Some(dictionary) = array.as_any_dictionary_opt() {
            let values = self.on(dictionary.values())?;
            if values.is_empty() {
                return Some(BooleanArray::new(
                    BooleanBuffer::new_unset(array.len()),
                    Some(NullBuffer::new_null(array.len())),
                ));
            }
            let mut passed = BooleanBufferBuilder::new(array.len());
            for key in dictionary.normalized_keys() {
                // A null value of the dictionary is a null row: its bit is not looked at.
                passed.append(values.value(key));
            }
            return Some(BooleanArray::new(passed.finish(), array.logical_nulls()));
        }
        let rows = array.len();
        let values = match self {
            Self::Constant(value) => {
                if *value {
                    BooleanBuffer::new_set(rows)
                } else {
                    BooleanBuffer::new_unset(rows)
                }
            }
            Self::Whole(test) => test.on_wholes(array)?,
            Self::Float(test) => test.on_floats(array)?,
            Self::Bytes(test) => test.on_bytes(array)?,
            Self::Split(split) => split.on(array)?,
        };
        Some(BooleanArray::new(values, array.logical_nulls()))
    }
}

/// One pass with the comparison chosen outside the loop.
fn mask<L, V: PartialOrd<L>>(rows: usize, op: Op, literal: &L, value: impl Fn(usize) -> V) -> BooleanBuffer {
    match op {
        Op::Eq => BooleanBuffer::collect_bool(rows, |row| value(row) == *literal),
        Op::Ne => BooleanBuffer::collect_bool(rows, |row| value(row) != *literal),
        Op::Lt => BooleanBuffer::collect_bool(rows, |row| value(row) < *literal),
        Op::Le => BooleanBuffer::collect_bool(rows, |row| value(row) <= *literal),
        Op::Gt => BooleanBuffer::collect_bool(rows, |row| value(row) > *literal),
        Op::Ge => BooleanBuffer::collect_bool(rows, |row| value(row) >= *literal),
    }
}

impl Match<i128> {
    fn on_wholes(&self, array: &ArrayRef) -> Option<BooleanBuffer> {
        use TimeUnit as U;
        match array.data_type() {
            DataType::Boolean => {
                let values = array.as_boolean().values();
                Some(BooleanBuffer::collect_bool(values.len(), |row| self.holds(&i128::from(values.value(row)))))
            }
            DataType::Int8 => self.on_native::<Int8Type>(array),
            DataType::Int16 => self.on_native::<Int16Type>(array),
            DataType::Int32 => self.on_native::<Int32Type>(array),
            DataType::Int64 => self.on_native::<Int64Type>(array),
            DataType::UInt8 => self.on_native::<UInt8Type>(array),
            DataType::UInt16 => self.on_native::<UInt16Type>(array),
            DataType::UInt32 => self.on_native::<UInt32Type>(array),
            DataType::UInt64 => self.on_native::<UInt64Type>(array),
            DataType::Date32 => self.on_native::<Date32Type>(array),
            DataType::Date64 => self.on_native::<Date64Type>(array),
            DataType::Time32(U::Second) => self.on_native::<Time32SecondType>(array),
            DataType::Time32(U::Millisecond) => self.on_native::<Time32MillisecondType>(array),
            DataType::Time64(U::Microsecond) => self.on_native::<Time64MicrosecondType>(array),
            DataType::Time64(U::Nanosecond) => self.on_native::<Time64NanosecondType>(array),
            DataType::Timestamp(U::Second, _) => self.on_native::<TimestampSecondType>(array),
            DataType::Timestamp(U::Millisecond, _) => self.on_native::<TimestampMillisecondType>(array),
            DataType::Timestamp(U::Microsecond, _) => self.on_native::<TimestampMicrosecondType>(array),
            DataType::Timestamp(U::Nanosecond, _) => self.on_native::<TimestampNanosecondType>(array),
            DataType::Decimal32(..) => self.on_native::<Decimal32Type>(array),
            DataType::Decimal64(..) => self.on_native::<Decimal64Type>(array),
            DataType::Decimal128(..) => self.on_native::<Decimal128Type>(array),
            DataType::Decimal256(..) => {
                let values = array.as_primitive::<Decimal256Type>().values();
                Some(BooleanBuffer::collect_bool(values.len(), |row| self.holds(&nearest_i128(values[row]))))
            }
            _ => None,
        }
    }

    /// Comparisons run on the column's own numbers; `None` if the literal is none of them.
    fn on_native<T: ArrowPrimitiveType>(&self, array: &ArrayRef) -> Option<BooleanBuffer>
    where
        T::Native: TryFrom<i128> + Into<i128> + PartialOrd,
    {
        let values = array.as_primitive_opt::<T>()?.values();
        Some(match self {
            Self::Compare(op, literal) => {
                let literal = T::Native::try_from(*literal).ok()?;
                mask(values.len(), *op, &literal, |row| values[row])
            }
            Self::In(members) => {
                BooleanBuffer::collect_bool(values.len(), |row| members.contains::<i128>(&values[row].into()))
            }
        })
    }
}

/// The value, or the end of the range beyond which it lies: no literal is there, so comparisons stay right.
fn nearest_i128(value: i256) -> i128 {
    value.to_i128().unwrap_or(if value < i256::ZERO { i128::MIN } else { i128::MAX })
}

impl Match<f64> {
    /// Narrow floats are widened, which changes no value.
    fn on_floats(&self, array: &ArrayRef) -> Option<BooleanBuffer> {
        match array.data_type() {
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>().values();
                Some(self.on_each(values.len(), |row| values[row]))
            }
            DataType::Float32 => {
                let values = array.as_primitive::<Float32Type>().values();
                Some(self.on_each(values.len(), |row| f64::from(values[row])))
            }
            DataType::Float16 => {
                let values = array.as_primitive::<Float16Type>().values();
                Some(self.on_each(values.len(), |row| values[row].to_f64()))
            }
            _ => None,
        }
    }

    fn on_each(&self, rows: usize, value: impl Fn(usize) -> f64) -> BooleanBuffer {
        match self {
            Self::Compare(op, literal) => mask(rows, *op, literal, value),
            Self::In(members) => BooleanBuffer::collect_bool(rows, |row| members.contains(&value(row))),
        }
    }
}

impl Match<Vec<u8>> {
    fn on_bytes(&self, array: &ArrayRef) -> Option<BooleanBuffer> {
        match array.data_type() {
            DataType::Utf8 => Some(self.on_each(array.as_string::<i32>())),
            DataType::LargeUtf8 => Some(self.on_each(array.as_string::<i64>())),
            DataType::Utf8View => Some(self.on_each(array.as_string_view())),
            DataType::Binary => Some(self.on_each(array.as_binary::<i32>())),
            DataType::LargeBinary => Some(self.on_each(array.as_binary::<i64>())),
            DataType::BinaryView => Some(self.on_each(array.as_binary_view())),
            DataType::FixedSizeBinary(_) => Some(self.on_each(array.as_fixed_size_binary())),
            _ => None,
        }
    }

    fn on_each<'a, A: ArrayAccessor>(&self, array: A) -> BooleanBuffer
    where
        A::Item: AsBytes<'a>,
    {
        let nulls = array.logical_nulls();
        // The value under a null is not defined, so it is not looked at.
        let value = |row: usize| -> &'a [u8] {
            let null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            if null { &[] } else { array.value(row).bytes() }
        };
        match self {
            Self::Compare(op, literal) => mask(array.len(), *op, &literal.as_slice(), value),
            Self::In(members) => BooleanBuffer::collect_bool(array.len(), |row| members.contains(value(row))),
        }
    }
}

/// A value that borrows its bytes from the array.
trait AsBytes<'a> {
    fn bytes(self) -> &'a [u8];
}

impl<'a> AsBytes<'a> for &'a str {
    fn bytes(self) -> &'a [u8] {
        self.as_bytes()
    }
}

impl<'a> AsBytes<'a> for &'a [u8] {
    fn bytes(self) -> &'a [u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Decimal256Array, ListArray, StructArray};
    use arrow::array::{
        DictionaryArray, Float64Array, Int8Array, Int32Array, LargeStringArray, NullArray, StringArray,
    };
    use arrow::datatypes::{Field, Fields, Int8Type as Key, Schema, SchemaRef};

    use super::*;
    use crate::dataset::filter::Expr;

    fn selected(text: &str, columns: &[(&str, ArrayRef)]) -> Vec<usize> {
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.iter().map(|(n, a)| (n, Arc::clone(a), true))).unwrap();
        let bound = Expr::parse(text).unwrap().bind(&batch.schema()).unwrap();
        let mask = bound.evaluate(&batch).unwrap();
        assert!(mask.nulls().is_none());
        mask.values().set_indices().collect()
    }

    #[test]
    fn unknown_is_neither_true_nor_false() {
        let a: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
        let columns = [("a", a)];
        for (text, rows) in [
            ("a = 1", vec![0]),
            ("a != 1", vec![2]),
            ("not a = 1", vec![2]),
            ("a not in (1)", vec![2]),
            ("a in (2)", vec![]),
            ("a < 1e30", vec![0, 2]),
            ("not a < 1e30", vec![]),
            ("a = 1 or a is null", vec![0, 1]),
            ("a = 1 or not a = 1", vec![0, 2]),
            ("not (a = 1 and a is not null)", vec![1, 2]),
            ("a not between 2 and 5", vec![0]),
        ] {
            assert_eq!(selected(text, &columns), rows, "{text}");
        }
    }

    #[test]
    fn floats_compare_as_ieee_754() {
        let a: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, -0.0, 0.0, 1.0, -f64::NAN]));
        let columns = [("a", a)];
        for (text, rows) in [
            ("a = 0", vec![1, 2]),
            ("a in (-0.0, 5)", vec![1, 2]),
            ("a >= -0.0", vec![1, 2, 3]),
            ("a != 0", vec![0, 3, 4]),
            ("not a < 100", vec![0, 4]),
            ("a > 100", vec![]),
        ] {
            assert_eq!(selected(text, &columns), rows, "{text}");
        }
    }

    #[test]
    fn dictionaries_with_nulls_in_keys_and_values() {
        let values: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None, Some("y")]));
        let keys = Int8Array::from(vec![Some(0), Some(1), None, Some(2)]);
        let columns: [(&str, ArrayRef); 1] = [("a", Arc::new(DictionaryArray::<Key>::new(keys, values)))];
        assert_eq!(selected("a = 'x'", &columns), [0]);
        assert_eq!(selected("a != 'x'", &columns), [3]);
        assert_eq!(selected("a is null", &columns), [1, 2]);
        let empty: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
        let keys = Int8Array::from(vec![None, None]);
        let columns: [(&str, ArrayRef); 1] = [("a", Arc::new(DictionaryArray::<Key>::new(keys, empty)))];
        assert_eq!(selected("a != 'x'", &columns), Vec::<usize>::new());
        assert_eq!(selected("a is null", &columns), [0, 1]);
    }

    #[test]
    fn structs_lists_nulls_and_wide_decimals() {
        let inner: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None, Some(7)]));
        let fields = Fields::from(vec![Field::new("x", DataType::Int32, true)]);
        let outer = NullBuffer::from(vec![true, true, false]);
        let huge = i256::from_i128(i128::MAX).wrapping_mul(i256::from_i128(1000));
        let wide = Decimal256Array::from_iter([Some(i256::from_i128(5)), Some(huge), Some(huge.wrapping_neg())]);
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), None, Some(vec![])]);
        let columns: [(&str, ArrayRef); 4] = [
            ("n", Arc::new(StructArray::new(fields, vec![inner], Some(outer)))),
            ("none", Arc::new(NullArray::new(3))),
            ("wide", Arc::new(wide.with_precision_and_scale(76, 0).unwrap())),
            ("list", Arc::new(list)),
        ];
        for (text, rows) in [
            ("n.x = 7", vec![0]),
            ("n.x is null", vec![1, 2]),
            ("n is null", vec![2]),
            ("none is null", vec![0, 1, 2]),
            ("none = 3 or not none = 3", vec![]),
            ("wide = 5", vec![0]),
            ("wide > 100", vec![1]),
            ("wide <= 5", vec![0, 2]),
            ("list is not null", vec![0, 2]),
        ] {
            assert_eq!(selected(text, &columns), rows, "{text}");
        }
    }

    #[test]
    fn batches_of_another_schema_are_refused() {
        let schema = |kind: DataType| -> SchemaRef { Arc::new(Schema::new(vec![Field::new("a", kind, true)])) };
        let batch = RecordBatch::try_from_iter([("a", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]).unwrap();
        let bind = |kind| Expr::parse("a < 300").unwrap().bind(&schema(kind)).unwrap();
        assert!(matches!(bind(DataType::UInt8).evaluate(&batch), Err(Error::Mismatch { .. })));
        let other = RecordBatch::try_from_iter([("b", Arc::clone(batch.column(0)))]).unwrap();
        assert!(matches!(bind(DataType::Int32).evaluate(&other), Err(Error::NotFound { .. })));
        // Another kind of string is the same string.
        let large =
            RecordBatch::try_from_iter([("a", Arc::new(LargeStringArray::from(vec!["x"])) as ArrayRef)]).unwrap();
        let bound = Expr::parse("a = 'x'").unwrap().bind(&schema(DataType::Utf8View)).unwrap();
        assert_eq!(bound.evaluate(&large).unwrap().true_count(), 1);
    }
}
