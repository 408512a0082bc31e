//! Nulls of structs and fixed-size lists, repeated in their members that cannot be null themselves.
//!
//! Parquet's reader leaves such a member without nulls of its own, although what lies below it is null wherever the
//! parent is. Arrow's kernels take its array for damaged: some refuse it, some panic.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;

/// `array` with the nulls that its members lack. Nothing is copied but nulls.
pub(super) fn masked(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(below(array, None)?.unwrap_or_else(|| Arc::clone(array)))
}

/// `array`, a member that is null wherever `outer` is; `None` if it lacks nothing.
fn below(array: &ArrayRef, outer: Option<&NullBuffer>) -> Result<Option<ArrayRef>, ArrowError> {
    let nulls = || NullBuffer::union(array.nulls(), outer);
    let lacks = outer.is_some_and(|outer| array.nulls().is_none_or(|nulls| !nulls.contains(outer)));
    match array.data_type() {
        DataType::Struct(fields) => {
            let (of, nulls) = (array.as_struct(), nulls());
            let members = fields.iter().zip(of.columns());
            let changed = members.map(|(field, column)| below(column, passed(field, nulls.as_ref())));
            let changed = changed.collect::<Result<Vec<_>, _>>()?;
            if !lacks && changed.iter().all(Option::is_none) {
                return Ok(None);
            }
            let columns = changed.into_iter().zip(of.columns());
            let columns = columns.map(|(changed, column)| changed.unwrap_or_else(|| Arc::clone(column))).collect();
            Ok(Some(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, of.len())?)))
        }
        DataType::FixedSizeList(item, length) => {
            let (of, nulls) = (array.as_fixed_size_list(), nulls());
            let each = passed(item, nulls.as_ref()).map(|nulls| nulls.expand(usize::try_from(*length).unwrap_or(0)));
            let changed = below(of.values(), each.as_ref())?;
            if !lacks && changed.is_none() {
                return Ok(None);
            }
            let values = changed.unwrap_or_else(|| Arc::clone(of.values()));
            let list = FixedSizeListArray::try_new_with_length(Arc::clone(item), *length, values, nulls, of.len())?;
            Ok(Some(Arc::new(list)))
        }
        // A null list has no items that could lack anything.
        DataType::List(item) => {
            let of = array.as_list::<i32>();
            let Some(values) = below(of.values(), None)? else { return Ok(None) };
            let list = ListArray::try_new(Arc::clone(item), of.offsets().clone(), values, of.nulls().cloned())?;
            Ok(Some(Arc::new(list)))
        }
        DataType::LargeList(item) => {
            let of = array.as_list::<i64>();
            let Some(values) = below(of.values(), None)? else { return Ok(None) };
            let list = LargeListArray::try_new(Arc::clone(item), of.offsets().clone(), values, of.nulls().cloned())?;
            Ok(Some(Arc::new(list)))
        }
        DataType::Map(item, sorted) => {
            let of = array.as_map();
            let entries: ArrayRef = Arc::new(of.entries().clone());
            let Some(entries) = below(&entries, None)? else { return Ok(None) };
            let (offsets, entries) = (of.offsets().clone(), entries.as_struct().clone());
            let map = MapArray::try_new(Arc::clone(item), offsets, entries, of.nulls().cloned(), *sorted)?;
            Ok(Some(Arc::new(map)))
        }
        _ => Ok(None),
    }
}

/// The nulls that a member of this field shares with its parent, if there are any.
fn passed<'a>(field: &Field, nulls: Option<&'a NullBuffer>) -> Option<&'a NullBuffer> {
    nulls.filter(|nulls| !field.is_nullable() && nulls.null_count() > 0)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, RecordBatch, UInt32Array};
    use arrow::buffer::OffsetBuffer;
    use arrow::compute::take;
    use arrow::datatypes::{Fields, Schema};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    /// A struct of a list and of a struct that cannot be null, whose number cannot be null: null where `valid` is false.
    fn items(valid: &[bool]) -> ArrayRef {
        let nulls = NullBuffer::from(valid.to_vec());
        let rows = i32::try_from(valid.len()).unwrap();
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..rows));
        let lengths = valid.iter().map(|valid| usize::from(*valid));
        let values: ArrayRef = Arc::new(Int32Array::from_iter_values((0..rows).filter(|at| valid[*at as usize])));
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        let list: ArrayRef =
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, Some(nulls.clone())));
        let inner: Fields = vec![Field::new("x", DataType::Int32, false)].into();
        let inner: ArrayRef = Arc::new(StructArray::new(inner, vec![numbers], None));
        let members: Fields =
            vec![Field::new("l", list.data_type().clone(), true), Field::new("s", inner.data_type().clone(), false)]
                .into();
        Arc::new(StructArray::new(members, vec![list, inner], Some(nulls)))
    }

    /// The only column of a file, as Parquet's reader makes it.
    fn read(array: &ArrayRef) -> ArrayRef {
        let schema = Arc::new(Schema::new(vec![Field::new("c", array.data_type().clone(), true)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(array)]).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, schema, None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let mut reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap().build().unwrap();
        Arc::clone(reader.next().unwrap().unwrap().column(0))
    }

    #[test]
    fn kernels_take_rows_of_structs_that_are_null_where_their_members_cannot_be() {
        let pairs = |valid: &[bool], items: &[bool]| -> ArrayRef {
            let values = self::items(items);
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            Arc::new(FixedSizeListArray::new(item, 2, values, Some(NullBuffer::from(valid.to_vec()))))
        };
        let listed = |values: ArrayRef, lengths: &[usize]| -> ArrayRef {
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths.iter().copied()), values, None))
        };
        let structs = items(&[true, false, true, false]);
        let fixed = pairs(&[false, true, true], &[true, true, true, false, true, true]);
        let lists = listed(Arc::clone(&structs), &[1, 0, 3]);
        let nested = listed(Arc::clone(&fixed), &[2, 1]);
        for array in [structs, fixed, lists, nested] {
            let found = masked(&read(&array)).unwrap();
            assert_eq!(found.data_type(), array.data_type());
            found.to_data().validate_full().unwrap();
            let backwards = UInt32Array::from_iter_values((0..array.len() as u32).rev());
            let (found, expected) = (take(&found, &backwards, None).unwrap(), take(&array, &backwards, None).unwrap());
            assert_eq!(&found, &expected);
        }
        let whole = items(&[true, true]);
        assert!(below(&read(&whole), None).unwrap().is_none(), "nothing to do");
    }
}
