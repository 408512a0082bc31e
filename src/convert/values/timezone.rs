//! Time zones of timestamps: UTC, under any of its names, becomes the offset +00:00, which Arrow can format and parse without a zone
//! database.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;

use crate::convert::errors::unexpected;
use crate::convert::values::clock;
use crate::error::Result;
use crate::schema::zones;

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

/// Replaces names of UTC by an offset, at any depth.
fn offset_type(data_type: &DataType) -> DataType {
    zones::zoned(data_type, &is_utc)
}

/// Casts the array to the type of [`offset_type`]: the instants stay.
pub(crate) fn offset(array: &ArrayRef) -> Result<ArrayRef> {
    zones::relabel(array, &offset_type(array.data_type())).map_err(unexpected)
}

/// Returns the array for display: instants of a named zone in UTC.
pub(crate) fn shown(array: &ArrayRef) -> Result<ArrayRef> {
    zones::shown(array).map_err(unexpected)
}
