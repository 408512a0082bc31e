//! Time zones of timestamps: UTC, under any of its names, becomes the offset +00:00, which Arrow can format and parse without a zone
//! database.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::datatypes::{DataType, Field, FieldRef};

use crate::convert::errors::unexpected;
use crate::convert::values::clock;
use crate::error::Result;

/// Returns true if a timestamp of this type can be formatted: without a zone, in UTC, or at an offset.
pub(crate) fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => is_utc(zone) || zone.starts_with(['+', '-']),
        _ => true,
    }
}

fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "utc" | "Z" | "Etc/UTC" | "GMT")
}

/// Returns the seconds east of Greenwich of a zone that is UTC or an offset.
pub(crate) fn seconds(zone: &str) -> Option<i32> {
    if is_utc(zone) { Some(0) } else { clock::offset(zone) }
}

/// Returns the zone at this many seconds east of Greenwich.
pub(crate) fn of_seconds(seconds: i32) -> Arc<str> {
    if seconds == 0 {
        return "UTC".into();
    }
    let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.unsigned_abs() / 60);
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60).into()
}

/// Replaces zones that `other` selects by the offset +00:00, at any depth.
fn zoned(data_type: &DataType, other: &dyn Fn(&str) -> bool) -> DataType {
    let inner = |field: &FieldRef| Arc::new(Field::clone(field).with_data_type(zoned(field.data_type(), other)));
    match data_type {
        DataType::Timestamp(unit, Some(zone)) if other(zone) => DataType::Timestamp(*unit, Some("+00:00".into())),
        DataType::List(field) => DataType::List(inner(field)),
        DataType::LargeList(field) => DataType::LargeList(inner(field)),
        DataType::ListView(field) => DataType::ListView(inner(field)),
        DataType::LargeListView(field) => DataType::LargeListView(inner(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(inner(field), *size),
        DataType::Struct(members) => DataType::Struct(members.iter().map(inner).collect()),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        DataType::Dictionary(keys, values) => DataType::Dictionary(keys.clone(), Box::new(zoned(values, other))),
        DataType::RunEndEncoded(ends, values) => DataType::RunEndEncoded(Arc::clone(ends), inner(values)),
        other => other.clone(),
    }
}

/// Replaces names of UTC by an offset, at any depth.
pub(crate) fn offset_type(data_type: &DataType) -> DataType {
    zoned(data_type, &is_utc)
}

/// Casts the array to the type of [`offset_type`]: the instants stay.
pub(crate) fn offset(array: &ArrayRef) -> Result<ArrayRef> {
    relabel(array, &offset_type(array.data_type()))
}

/// Returns the array for display: instants of a named zone in UTC, since there is no zone database here.
pub(crate) fn shown(array: &ArrayRef) -> Result<ArrayRef> {
    relabel(array, &zoned(array.data_type(), &|zone| !zone.starts_with(['+', '-'])))
}

/// Changes only the zones in the array's type.
pub(crate) fn relabel(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    Ok(make_array(relabelled(array.to_data(), data_type)?))
}

fn relabelled(data: ArrayData, data_type: &DataType) -> Result<ArrayData> {
    if data.data_type() == data_type {
        return Ok(data);
    }
    let inner: Vec<&DataType> = match data_type {
        DataType::Struct(members) => members.iter().map(|member| member.data_type()).collect(),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => vec![field.data_type()],
        DataType::Dictionary(_, values) => vec![values],
        DataType::RunEndEncoded(ends, values) => vec![ends.data_type(), values.data_type()],
        _ => Vec::new(),
    };
    let children = data.child_data().iter().cloned().zip(inner).map(|(child, kind)| relabelled(child, kind));
    let children = children.collect::<Result<_>>()?;
    data.into_builder().data_type(data_type.clone()).child_data(children).build().map_err(unexpected)
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, ListArray, StructArray, TimestampMicrosecondArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::TimestampMicrosecondType;
    use arrow::util::display::array_value_to_string;

    use super::*;

    #[test]
    fn zones_are_told_at_any_depth() {
        for (zone, plain) in [("UTC", true), ("Europe/Berlin", false)] {
            let times: ArrayRef = Arc::new(
                TimestampMicrosecondArray::from(vec![Some(1_000_000), None, Some(2_000_000)]).with_timezone(zone),
            );
            let item = Arc::new(Field::new("item", times.data_type().clone(), true));
            let list: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::new(vec![0, 2, 3].into()), times, None));
            let field = Arc::new(Field::new("t", list.data_type().clone(), true));
            let array: ArrayRef = Arc::new(StructArray::from(vec![(field, list)]));
            assert_eq!(offset(&array).unwrap().data_type() != array.data_type(), plain);
            let told = shown(&array.slice(1, 1)).unwrap();
            assert_eq!(array_value_to_string(&told, 0).unwrap(), "{t: [1970-01-01T00:00:02Z]}");
            let told = shown(&array).unwrap();
            let inner = Arc::clone(told.as_struct().column(0).as_list::<i32>().values());
            assert_eq!(inner.as_primitive::<TimestampMicrosecondType>().value(2), 2_000_000);
        }
    }
}
