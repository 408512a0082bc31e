//! Zones of timestamps. There is no zone database here, so an instant of a named zone is shown in UTC.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use super::within::within;

/// Replaces zones that `other` selects by the offset +00:00, at any depth.
pub(crate) fn zoned(data_type: &DataType, other: &dyn Fn(&str) -> bool) -> DataType {
    match data_type {
        DataType::Timestamp(unit, Some(zone)) if other(zone) => DataType::Timestamp(*unit, Some("+00:00".into())),
        rest => within(rest, |inner| zoned(inner, other)),
    }
}

/// Returns the array for display, in which Arrow can format every zone.
pub(crate) fn shown(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    relabel(array, &zoned(array.data_type(), &|zone| !zone.starts_with(['+', '-'])))
}

/// Changes only the zones in the array's type.
pub(crate) fn relabel(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    Ok(make_array(relabelled(array.to_data(), data_type)?))
}

fn relabelled(data: ArrayData, data_type: &DataType) -> Result<ArrayData, ArrowError> {
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
    let children = children.collect::<Result<_, _>>()?;
    data.into_builder().data_type(data_type.clone()).child_data(children).build()
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, ListArray, StructArray, TimestampMicrosecondArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, TimestampMicrosecondType};
    use arrow::util::display::array_value_to_string;

    use super::*;

    #[test]
    fn zones_are_told_at_any_depth() {
        for zone in ["UTC", "Europe/Berlin"] {
            let times: ArrayRef = Arc::new(
                TimestampMicrosecondArray::from(vec![Some(1_000_000), None, Some(2_000_000)]).with_timezone(zone),
            );
            let item = Arc::new(Field::new("item", times.data_type().clone(), true));
            let list: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::new(vec![0, 2, 3].into()), times, None));
            let field = Arc::new(Field::new("t", list.data_type().clone(), true));
            let array: ArrayRef = Arc::new(StructArray::from(vec![(field, list)]));
            let utc = zoned(array.data_type(), &|zone| zone == "UTC");
            assert_eq!(relabel(&array, &utc).unwrap().data_type() != array.data_type(), zone == "UTC");
            let told = shown(&array.slice(1, 1)).unwrap();
            assert_eq!(array_value_to_string(&told, 0).unwrap(), "{t: [1970-01-01T00:00:02Z]}");
            let told = shown(&array).unwrap();
            let inner = Arc::clone(told.as_struct().column(0).as_list::<i32>().values());
            assert_eq!(inner.as_primitive::<TimestampMicrosecondType>().value(2), 2_000_000);
        }
    }
}
