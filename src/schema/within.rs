//! Types made of the types within them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};

/// `data_type` with `change` applied to each type directly within it. Keys of dictionaries and ends of runs stay.
pub(crate) fn within(data_type: &DataType, change: impl Fn(&DataType) -> DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(Field::clone(field).with_data_type(change(field.data_type())));
    match data_type {
        DataType::List(field) => DataType::List(inner(field)),
        DataType::LargeList(field) => DataType::LargeList(inner(field)),
        DataType::ListView(field) => DataType::ListView(inner(field)),
        DataType::LargeListView(field) => DataType::LargeListView(inner(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(inner(field), *size),
        DataType::Struct(members) => DataType::Struct(members.iter().map(inner).collect()),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        DataType::Dictionary(keys, values) => DataType::Dictionary(keys.clone(), Box::new(change(values))),
        DataType::RunEndEncoded(ends, values) => DataType::RunEndEncoded(Arc::clone(ends), inner(values)),
        other => other.clone(),
    }
}
