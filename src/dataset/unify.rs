//! One schema for files that differ a little, and arrays brought to it.
//!
//! | files have | dataset has |
//! |---|---|
//! | a column in some files only | the column, null where it is missing |
//! | another order of columns | the order of the first file |
//! | integers, floats or decimals of different widths | the wider; unsigned with signed: the next wider signed |
//! | timestamps or durations of different units | the finer unit |
//! | strings, large strings, string views, dictionaries of them | string views |
//! | structs with different members | all members |
//! | anything else that differs | an error naming both files and the column |

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray, make_array,
    new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, TimeUnit};
use arrow::error::ArrowError;

use crate::schema::cast;

/// Metadata that names the writer's field number; files may differ in it without differing in data.
const FIELD_ID: &str = "PARQUET:field_id";

/// The type in which a column is read: strings and bytes as views, which need no copy, and dictionaries that the decoder does not make
/// as their values.
pub(super) fn as_read(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(field.as_ref().clone().with_data_type(as_read(field.data_type())));
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) if is_read_plain(values) => values.as_ref().clone(),
        other => with_inner(other, inner),
    }
}

/// True for values of which the decoder makes no dictionary.
fn is_read_plain(values: &DataType) -> bool {
    matches!(values, DataType::Boolean | DataType::Float16) || values.is_decimal()
}

/// `data_type` with every field in it as `inner` makes it.
fn with_inner(data_type: &DataType, inner: impl Fn(&FieldRef) -> FieldRef) -> DataType {
    match data_type {
        DataType::List(field) => DataType::List(inner(field)),
        DataType::LargeList(field) => DataType::LargeList(inner(field)),
        DataType::FixedSizeList(field, length) => DataType::FixedSizeList(inner(field), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::Map(field, sorted) => DataType::Map(inner(field), *sorted),
        other => other.clone(),
    }
}

/// A field without what does not belong to the data.
pub(super) fn plain(field: &Field) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.remove(FIELD_ID);
    let data_type = with_inner(field.data_type(), |field| Arc::new(plain(field)));
    Field::new(field.name(), data_type, field.is_nullable()).with_metadata(metadata)
}

/// The field that holds the values of both; `None` if there is none.
pub(super) fn field(a: &Field, b: &Field) -> Option<Field> {
    if a == b {
        return Some(a.clone());
    }
    let nullable = a.is_nullable() || b.is_nullable() || [a, b].iter().any(|field| field.data_type().is_null());
    let extension =
        |field: &Field| field.metadata().iter().filter(|(key, _)| key.starts_with("ARROW:extension:")).count();
    let same = |key: &str| a.metadata().get(key) == b.metadata().get(key);
    let keys_agree = a
        .metadata()
        .keys()
        .chain(b.metadata().keys())
        .filter(|key| key.starts_with("ARROW:extension:"))
        .all(|key| same(key));
    if extension(a) + extension(b) > 0 && !keys_agree {
        return None;
    }
    let metadata: std::collections::HashMap<String, String> =
        a.metadata().iter().filter(|(key, _)| same(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    Some(Field::new(a.name(), data_type(a.data_type(), b.data_type())?, nullable).with_metadata(metadata))
}

/// The type that holds the values of both without loss; `None` if there is none.
fn data_type(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::*;
    if a == b {
        return Some(a.clone());
    }
    if let Some(wider) = number(a, b) {
        return Some(wider);
    }
    Some(match (a, b) {
        (Null, other) | (other, Null) => other.clone(),
        (Dictionary(_, a), Dictionary(_, b)) => data_type(&as_read(a), &as_read(b))?,
        (Dictionary(_, value), other) | (other, Dictionary(_, value)) => data_type(&as_read(value), other)?,
        (Decimal128(p, s), Decimal128(q, t)) if s == t => Decimal128(*p.max(q), *s),
        (Decimal256(p, s), Decimal256(q, t)) if s == t => Decimal256(*p.max(q), *s),
        (
            Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s),
            Decimal32(q, t) | Decimal64(q, t) | Decimal128(q, t),
        ) if s == t => Decimal128(*p.max(q), *s),
        (Timestamp(a, zone), Timestamp(b, other)) if zone == other => Timestamp(finer(*a, *b), zone.clone()),
        (Duration(a), Duration(b)) => Duration(finer(*a, *b)),
        (List(a), List(b)) => List(Arc::new(field(a, b)?)),
        (LargeList(a) | List(a), LargeList(b) | List(b)) => LargeList(Arc::new(field(a, b)?)),
        (FixedSizeList(a, n), FixedSizeList(b, m)) if n == m => FixedSizeList(Arc::new(field(a, b)?), *n),
        (Map(a, sorted), Map(b, other)) => {
            let (Struct(x), Struct(y)) = (a.data_type(), b.data_type()) else { return None };
            let ([k, v], [l, w]) = (x.as_ref(), y.as_ref()) else { return None };
            // Keys and values are matched by position: writers name them differently.
            let value = field(v, &w.as_ref().clone().with_name(v.name()))?;
            let key = field(k, &l.as_ref().clone().with_name(k.name()))?;
            let entries = a.as_ref().clone().with_data_type(Struct(Fields::from(vec![key, value])));
            Map(Arc::new(entries), *sorted && *other)
        }
        (Struct(a), Struct(b)) => Struct(members(a, b)?),
        _ => return None,
    })
}

fn members(a: &Fields, b: &Fields) -> Option<Fields> {
    let mut all = Vec::with_capacity(a.len());
    for member in a {
        all.push(match b.iter().find(|other| other.name() == member.name()) {
            Some(other) => field(member, other)?,
            None => member.as_ref().clone().with_nullable(true),
        });
    }
    let new = b.iter().filter(|member| a.iter().all(|other| other.name() != member.name()));
    all.extend(new.map(|member| member.as_ref().clone().with_nullable(true)));
    Some(all.into())
}

fn number(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::*;
    const SIGNED: [DataType; 4] = [Int8, Int16, Int32, Int64];
    const UNSIGNED: [DataType; 4] = [UInt8, UInt16, UInt32, UInt64];
    const FLOATS: [DataType; 3] = [Float16, Float32, Float64];
    let at = |row: &[DataType], x: &DataType| row.iter().position(|y| y == x);
    for row in [&SIGNED[..], &UNSIGNED, &FLOATS] {
        if let (Some(x), Some(y)) = (at(row, a), at(row, b)) {
            return row.get(x.max(y)).cloned();
        }
    }
    let (signed, unsigned) = match (at(&SIGNED, a), at(&UNSIGNED, b)) {
        (Some(signed), Some(unsigned)) => (signed, unsigned),
        _ => (at(&SIGNED, b)?, at(&UNSIGNED, a)?),
    };
    SIGNED.get(signed.max(unsigned + 1)).cloned()
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    let rank = |unit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    if rank(a) >= rank(b) { a } else { b }
}

/// `array` in the type `to`, which [`field`] made from its type. Nothing is copied where nothing changes.
pub(super) fn adapt(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    match (array.data_type(), to) {
        (DataType::Struct(_), DataType::Struct(fields)) => Ok(Arc::new(adapt_struct(array.as_struct(), fields)?)),
        (DataType::List(_), DataType::List(field)) => {
            let list = array.as_list::<i32>();
            let values = adapt(list.values(), field.data_type())?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(field), list.offsets().clone(), values, list.nulls().cloned())?))
        }
        (DataType::LargeList(_), DataType::LargeList(field)) => {
            let list = array.as_list::<i64>();
            let values = adapt(list.values(), field.data_type())?;
            let offsets = list.offsets().clone();
            Ok(Arc::new(LargeListArray::try_new(Arc::clone(field), offsets, values, list.nulls().cloned())?))
        }
        (DataType::List(_), DataType::LargeList(field)) => {
            let list = array.as_list::<i32>();
            let values = adapt(list.values(), field.data_type())?;
            let offsets: Vec<i64> = list.offsets().iter().map(|offset| i64::from(*offset)).collect();
            let offsets = OffsetBuffer::new(offsets.into());
            Ok(Arc::new(LargeListArray::try_new(Arc::clone(field), offsets, values, list.nulls().cloned())?))
        }
        (DataType::FixedSizeList(_, _), DataType::FixedSizeList(field, length)) => {
            let list = array.as_fixed_size_list();
            let values = adapt(list.values(), field.data_type())?;
            let (nulls, rows) = (list.nulls().cloned(), list.len());
            Ok(Arc::new(FixedSizeListArray::try_new_with_length(Arc::clone(field), *length, values, nulls, rows)?))
        }
        (DataType::Map(..), DataType::Map(entries, sorted)) => {
            let map = array.as_map();
            let DataType::Struct(fields) = entries.data_type() else {
                return Err(ArrowError::CastError("a map without entries".to_owned()));
            };
            let columns =
                map.entries().columns().iter().zip(fields).map(|(column, field)| adapt(column, field.data_type()));
            let inner = StructArray::try_new(
                fields.clone(),
                columns.collect::<Result<_, _>>()?,
                map.entries().nulls().cloned(),
            )?;
            Ok(Arc::new(MapArray::try_new(
                Arc::clone(entries),
                map.offsets().clone(),
                inner,
                map.nulls().cloned(),
                *sorted,
            )?))
        }
        // A table's log says of times what old writers did not: that they are instants. Arrow knows no zone by its name.
        (DataType::Timestamp(_, zone), DataType::Timestamp(unit, wanted)) if zone != wanted => {
            let times = cast(array, &DataType::Timestamp(*unit, zone.clone())).map_err(ArrowError::from)?;
            Ok(make_array(times.to_data().into_builder().data_type(to.clone()).build()?))
        }
        _ => cast(array, to).map_err(ArrowError::from),
    }
}

fn adapt_struct(array: &StructArray, fields: &Fields) -> Result<StructArray, ArrowError> {
    let column = |field: &FieldRef| match array.column_by_name(field.name()) {
        Some(column) => adapt(column, field.data_type()),
        None => Ok(new_null_array(field.data_type(), array.len())),
    };
    let columns = fields.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{DurationSecondArray, Int32Array, Int64Array, TimestampSecondArray};
    use arrow::buffer::NullBuffer;

    #[test]
    fn only_lossless_unions_exist() {
        use DataType::*;
        let union = |a: &DataType, b: &DataType| {
            assert_eq!(data_type(a, b).is_some(), data_type(b, a).is_some());
            data_type(a, b)
        };
        assert_eq!(union(&Int32, &Int64), Some(Int64));
        assert_eq!(union(&Float32, &Float64), Some(Float64));
        assert_eq!(union(&UInt8, &Int8), Some(Int16));
        assert_eq!(union(&UInt64, &Int64), None);
        assert_eq!(union(&Int32, &Float64), None);
        assert_eq!(union(&Utf8View, &BinaryView), None);
        assert_eq!(union(&Dictionary(Box::new(Int8), Box::new(Utf8)), &Utf8View), Some(Utf8View));
        assert_eq!(union(&Decimal128(9, 2), &Decimal128(18, 2)), Some(Decimal128(18, 2)));
        assert_eq!(union(&Decimal128(9, 2), &Decimal128(18, 3)), None);
        let zone = Some("UTC".into());
        assert_eq!(
            union(&Timestamp(TimeUnit::Millisecond, zone.clone()), &Timestamp(TimeUnit::Microsecond, None)),
            None
        );
    }

    #[test]
    fn dictionaries_that_the_decoder_lacks_are_read_as_their_values() {
        use DataType::*;
        let dictionary = |values: &DataType| Dictionary(Box::new(Int8), Box::new(values.clone()));
        let decimals = [Decimal32(9, 2), Decimal64(18, 2), Decimal128(38, 2), Decimal256(50, 2)];
        for values in [Boolean, Float16].iter().chain(&decimals) {
            assert_eq!(as_read(&dictionary(values)), *values);
            let field = |ty: DataType| Fields::from(vec![Field::new("a", ty, true)]);
            let nested = |ty: DataType| DataType::new_list(Struct(field(ty)), true);
            assert_eq!(as_read(&nested(dictionary(values))), nested(values.clone()));
        }
        for values in [Utf8, Int32, Float32, FixedSizeBinary(2)] {
            assert_eq!(as_read(&dictionary(&values)), dictionary(&values));
        }
    }

    #[test]
    fn a_value_that_the_finer_unit_does_not_reach_is_an_error() {
        let seconds = |value: i64| -> [ArrayRef; 2] {
            [
                Arc::new(TimestampSecondArray::from(vec![Some(1), Some(value)])),
                Arc::new(DurationSecondArray::from(vec![Some(1), Some(value)])),
            ]
        };
        for finer in [TimeUnit::Millisecond, TimeUnit::Nanosecond] {
            let types = [DataType::Timestamp(finer, None), DataType::Duration(finer)];
            for (array, to) in seconds(1 << 60).iter().zip(&types) {
                let error = adapt(array, to).unwrap_err().to_string();
                assert!(error.contains("row 1"), "{error}");
            }
            for (array, to) in seconds(1 << 30).iter().zip(&types) {
                assert_eq!((adapt(array, to).unwrap().data_type(), adapt(array, to).unwrap().null_count()), (to, 0));
            }
        }
    }

    #[test]
    fn structs_gain_members_and_keep_nulls() {
        let old = Field::new("s", DataType::Struct(vec![Field::new("a", DataType::Int32, false)].into()), true);
        let new = [Field::new("b", DataType::Utf8View, true), Field::new("a", DataType::Int64, false)];
        let new = Field::new("s", DataType::Struct(new.to_vec().into()), true);
        let both = field(&old, &new).unwrap();
        let DataType::Struct(fields) = both.data_type() else { panic!("{both}") };
        assert_eq!(fields.iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let DataType::Struct(old) = old.data_type() else { unreachable!() };
        let column = Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef;
        let array = StructArray::new(old.clone(), vec![column], Some(NullBuffer::from(vec![true, false])));
        let adapted = adapt(&(Arc::new(array) as ArrayRef), both.data_type()).unwrap();
        let adapted = adapted.as_struct();
        assert_eq!(adapted.column(0).as_ref(), &Int64Array::from(vec![1, 2]) as &dyn Array);
        assert_eq!((adapted.column(1).null_count(), adapted.null_count()), (2, 1));
    }

    #[test]
    fn members_of_listed_structs_may_differ() {
        let structs = |members: Vec<Field>| Field::new("item", DataType::Struct(members.into()), true);
        let old = structs(vec![Field::new("a", DataType::Int32, false)]);
        let new = structs(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Utf8View, true)]);
        let column = Arc::new(Int32Array::from(vec![1, 2, 3, 4])) as ArrayRef;
        let DataType::Struct(members) = old.data_type() else { unreachable!() };
        let items: ArrayRef = Arc::new(StructArray::new(members.clone(), vec![column], None));
        let list = |item: &Field| DataType::List(Arc::new(item.clone()));
        let large = |item: &Field| DataType::LargeList(Arc::new(item.clone()));
        let fixed = |item: &Field| DataType::FixedSizeList(Arc::new(item.clone()), 2);
        let offsets = OffsetBuffer::<i32>::from_lengths([2, 2]);
        let long = OffsetBuffer::<i64>::from_lengths([2, 2]);
        let item = Arc::new(old.clone());
        let lists: [(ArrayRef, DataType); 4] = [
            (Arc::new(ListArray::new(Arc::clone(&item), offsets.clone(), Arc::clone(&items), None)), list(&new)),
            (Arc::new(LargeListArray::new(Arc::clone(&item), long, Arc::clone(&items), None)), large(&new)),
            (Arc::new(ListArray::new(Arc::clone(&item), offsets, Arc::clone(&items), None)), large(&new)),
            (Arc::new(FixedSizeListArray::new(item, 2, items, None)), fixed(&new)),
        ];
        for (array, other) in lists {
            let both = data_type(array.data_type(), &other).unwrap();
            let adapted = adapt(&array, &both).unwrap();
            let (rows, values) = match &both {
                DataType::List(_) => (2, Arc::clone(adapted.as_list::<i32>().values())),
                DataType::LargeList(_) => (2, Arc::clone(adapted.as_list::<i64>().values())),
                _ => (2, Arc::clone(adapted.as_fixed_size_list().values())),
            };
            let values = values.as_struct();
            assert_eq!((adapted.len(), values.column(1).null_count()), (rows, 4), "{both}");
            assert_eq!(values.column(0).as_ref(), &Int64Array::from(vec![1, 2, 3, 4]) as &dyn Array, "{both}");
        }
    }
}
