//! Values that Arrow can hold and JSON cannot: NaN, infinity, a map with a duplicate key, and dates and times that no calendar or clock
//! has, for which Arrow writes an error message. Found at any depth, before anything is written.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::convert::errors::unexpected;
use crate::convert::types::item;
use crate::convert::values::timezone;
use crate::error::{Error, Result};
use crate::schema::visible;

/// A value that JSON cannot represent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unheld {
    /// Row of the value.
    pub(crate) row: usize,
    pub(crate) what: &'static str,
    pub(crate) hint: &'static str,
}

impl Unheld {
    const fn float(row: usize) -> Self {
        Self { row, what: "a NaN or infinity", hint: "JSON has no NaN and no infinity" }
    }

    const fn key(row: usize) -> Self {
        Self { row, what: "a map that has a key twice", hint: "an object of JSON has each key once" }
    }

    /// A date or time that cannot be written as text.
    pub(crate) const fn time(row: usize) -> Self {
        let what = "a date beyond the calendar, or a time beyond the day,";
        Self {
            row,
            what,
            hint: "years from -262143 to 262142 and times from 00:00 are written; leave the row out with a filter",
        }
    }
}

/// Returns true if a type may have values that JSON cannot represent.
fn is_risky(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(members) => members.iter().any(|member| is_risky(member.data_type())),
        DataType::Dictionary(_, values) => is_risky(values),
        DataType::RunEndEncoded(_, values) => is_risky(values.data_type()),
        DataType::Map(..) | DataType::Union(..) => true,
        other => other.is_floating() || is_time(other) || item(other).is_some_and(is_risky),
    }
}

fn is_time(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..)
    )
}

/// Returns the first value of a column that JSON cannot represent.
///
/// # Errors
/// `Unsupported` for a type that is not searched here.
pub(crate) fn unheld(column: &ArrayRef) -> Result<Option<Unheld>> {
    if !is_risky(column.data_type()) {
        return Ok(None);
    }
    // What a null hides is not written.
    within(&visible(column).map_err(unexpected)?)
}

fn within(column: &ArrayRef) -> Result<Option<Unheld>> {
    if !is_risky(column.data_type()) {
        return Ok(None);
    }
    match column.data_type() {
        kind if is_time(kind) => {
            let shown = timezone::shown(column)?;
            let options = FormatOptions::default();
            let formatter = ArrayFormatter::try_new(&shown, &options).map_err(unexpected)?;
            let mut text = String::new();
            let mut is_told = |row: &usize| {
                text.clear();
                !shown.is_valid(*row) || formatter.value(*row).write(&mut text).is_ok()
            };
            Ok((0..shown.len()).find(|row| !is_told(row)).map(Unheld::time))
        }
        kind if kind.is_floating() => {
            let wide = cast(column, &DataType::Float64).map_err(unexpected)?;
            let odd = |value: Option<f64>| value.is_some_and(|value| !value.is_finite());
            Ok(wide.as_primitive::<Float64Type>().iter().position(odd).map(Unheld::float))
        }
        DataType::Struct(_) => {
            for inner in column.as_struct().columns() {
                if let Some(found) = within(inner)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        }
        DataType::Dictionary(_, values) => within(&cast(column, values).map_err(unexpected)?),
        DataType::RunEndEncoded(_, values) => within(&cast(column, values.data_type()).map_err(unexpected)?),
        DataType::Map(..) => in_maps(column),
        kind => {
            let Some(inner) = item(kind) else {
                return Err(Error::unsupported(format!("{kind} in JSON"), "choose columns with --columns"));
            };
            let large = DataType::LargeList(Arc::new(Field::new("item", inner.clone(), true)));
            let lists = cast(column, &large).map_err(unexpected)?;
            let lists = lists.as_list::<i64>();
            for row in (0..lists.len()).filter(|row| lists.is_valid(*row)) {
                if let Some(found) = within(&lists.value(row))? {
                    return Ok(Some(Unheld { row, ..found }));
                }
            }
            Ok(None)
        }
    }
}

fn in_maps(column: &ArrayRef) -> Result<Option<Unheld>> {
    let maps = column.as_map();
    let keys = cast(maps.keys(), &DataType::Utf8View).map_err(unexpected)?;
    let keys = keys.as_string_view();
    let offsets = maps.value_offsets();
    let deep = is_risky(maps.values().data_type());
    let mut seen = HashSet::new();
    for row in (0..maps.len()).filter(|row| maps.is_valid(*row)) {
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        seen.clear();
        if !range.clone().all(|at| seen.insert(keys.value(at))) {
            return Ok(Some(Unheld::key(row)));
        }
        if deep && let Some(found) = within(&maps.values().slice(range.start, range.len()))? {
            return Ok(Some(Unheld { row, ..found }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use arrow::array::builder::{Float64Builder, MapBuilder, StringBuilder};
    use arrow::array::{
        Date32Array, DictionaryArray, Float64Array, Int8Array, StructArray, Time32MillisecondArray,
        TimestampMicrosecondArray,
    };
    use arrow::buffer::NullBuffer;

    use super::*;

    fn maps(rows: &[&[(&str, f64)]]) -> ArrayRef {
        let mut maps = MapBuilder::new(None, StringBuilder::new(), Float64Builder::new());
        for row in rows {
            for (key, value) in *row {
                maps.keys().append_value(key);
                maps.values().append_value(*value);
            }
            maps.append(true).unwrap();
        }
        Arc::new(maps.finish())
    }

    #[test]
    fn what_json_does_not_hold_is_found_at_any_depth() {
        let good: ArrayRef = maps(&[&[("a", 1.0)], &[("a", 2.0), ("b", 3.0)], &[]]);
        assert_eq!(unheld(&good).unwrap(), None);
        let nan: ArrayRef = maps(&[&[("a", 1.0)], &[], &[("a", 2.0), ("b", f64::NAN)]]);
        assert_eq!(unheld(&nan).unwrap(), Some(Unheld::float(2)));
        assert_eq!(unheld(&nan.slice(1, 2)).unwrap(), Some(Unheld::float(1)));
        let twice: ArrayRef = maps(&[&[], &[("a", 1.0), ("b", 2.0), ("a", 1.0)]]);
        assert_eq!(unheld(&twice).unwrap(), Some(Unheld::key(1)));
        let within = StructArray::from(vec![(Arc::new(Field::new("m", twice.data_type().clone(), true)), twice)]);
        assert_eq!(unheld(&(Arc::new(within) as ArrayRef)).unwrap(), Some(Unheld::key(1)));
        // Dates and times that Arrow writes as "ERROR: ...".
        let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(0), None, Some(i32::MAX), Some(i32::MIN)]));
        assert_eq!((unheld(&days).unwrap(), unheld(&days.slice(0, 2)).unwrap()), (Some(Unheld::time(2)), None));
        let hidden = NullBuffer::from(vec![true, true, false, true]);
        let field = Arc::new(Field::new("d", DataType::Date32, true));
        let within: ArrayRef = Arc::new(StructArray::new(vec![field].into(), vec![days], Some(hidden)));
        assert_eq!(unheld(&within).unwrap(), Some(Unheld::time(3)));
        assert_eq!(unheld(&within.slice(0, 3)).unwrap(), None);
        let times: ArrayRef = Arc::new(Time32MillisecondArray::from(vec![86_399_999, 86_400_000]));
        assert_eq!(unheld(&times).unwrap(), Some(Unheld::time(1)));
        let instants = TimestampMicrosecondArray::from(vec![0, i64::MAX]);
        for zone in [None, Some("UTC"), Some("+02:00")] {
            let instants: ArrayRef = Arc::new(instants.clone().with_timezone_opt(zone));
            assert_eq!(unheld(&instants).unwrap(), Some(Unheld::time(1)), "{zone:?}");
        }
        // Only those values of a dictionary count that rows refer to.
        let values: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::INFINITY]));
        let indices = |indices: Vec<i8>| -> ArrayRef {
            Arc::new(DictionaryArray::try_new(Int8Array::from(indices), Arc::clone(&values)).unwrap())
        };
        assert_eq!(unheld(&indices(vec![0, 0, 1])).unwrap(), Some(Unheld::float(2)));
        assert_eq!(unheld(&indices(vec![0, 0])).unwrap(), None);
    }
}
