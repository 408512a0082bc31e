//! Time zones of timestamps: UTC by its names is the offset +00:00, which Arrow can show and read without a list of zones.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, make_array};
use arrow::datatypes::DataType;

use crate::convert::errors::unexpected;
use crate::convert::values::clock;
use crate::error::Result;

/// Whether a timestamp of this type can be shown: without a zone, in UTC, or at an offset.
pub(crate) fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => is_utc(zone) || zone.starts_with(['+', '-']),
        _ => true,
    }
}

fn is_utc(zone: &str) -> bool {
    matches!(zone, "UTC" | "utc" | "Z" | "Etc/UTC" | "GMT")
}

/// Seconds east of Greenwich of a zone that is UTC or an offset.
pub(crate) fn seconds(zone: &str) -> Option<i32> {
    if is_utc(zone) { Some(0) } else { clock::offset(zone) }
}

/// The zone at so many seconds east of Greenwich.
pub(crate) fn of_seconds(seconds: i32) -> Arc<str> {
    if seconds == 0 {
        return "UTC".into();
    }
    let (sign, minutes) = (if seconds < 0 { '-' } else { '+' }, seconds.unsigned_abs() / 60);
    format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60).into()
}

/// The type with an offset for a name of UTC; others as they are.
pub(crate) fn offset_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(unit, Some(zone)) if is_utc(zone) => DataType::Timestamp(*unit, Some("+00:00".into())),
        other => other.clone(),
    }
}

/// The array with the type of [`offset_type`]: the instants stay.
pub(crate) fn offset(array: &ArrayRef) -> Result<ArrayRef> {
    relabel(array, &offset_type(array.data_type()))
}

/// The array with a type that differs in the zone alone.
pub(crate) fn relabel(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let data = array.to_data().into_builder().data_type(data_type.clone()).build().map_err(unexpected)?;
    Ok(make_array(data))
}
