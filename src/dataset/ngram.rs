//! Windows of consecutive rows, as Petastorm's `NGram`: where they start in each row group, found once when the dataset is opened.
//!
//! A window is a sample, so the plan counts windows instead of rows; rows are still what is read and decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use futures::stream::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};

use super::select::Room;
use super::{Dataset, OpenOptions, within};
use crate::error::{Error, Place, Result};

/// Windows of consecutive rows of one row group, in ascending order of a timestamp.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ngram {
    /// For each offset in the window, e.g. `-1`, `0`, `1`, the columns to deliver of that row, by name or glob.
    pub fields: BTreeMap<i64, Vec<String>>,
    /// The column that orders rows: integers, floats, dates or timestamps, ascending within each row group.
    pub timestamp_field: String,
    /// Largest step of the timestamp from a row of a window to the next, in the column's own unit.
    pub delta_threshold: f64,
    /// True if windows may share rows.
    #[serde(default = "yes")]
    pub timestamp_overlap: bool,
}

fn yes() -> bool {
    true
}

/// Most rows of a window.
const MAX_LENGTH: u64 = 1 << 20;

impl Ngram {
    /// Rows of a window, from the least offset to the greatest.
    ///
    /// # Errors
    /// [`Error::Config`] without fields, and for windows of more rows than any row group has.
    pub fn length(&self) -> Result<usize> {
        let (Some(first), Some(last)) = (self.fields.keys().next(), self.fields.keys().next_back()) else {
            return Err(Error::config("ngram", "no offset is given; fields maps offsets to columns"));
        };
        let length = last.abs_diff(*first).saturating_add(1);
        if length > MAX_LENGTH {
            return Err(Error::config(
                "ngram",
                format!("windows of {length} rows; at most {MAX_LENGTH} are delivered"),
            ));
        }
        if self.delta_threshold.is_nan() {
            return Err(Error::config("ngram", "delta_threshold is NaN"));
        }
        Ok(length as usize)
    }

    /// All columns that are named at any offset.
    pub fn columns(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self.fields.values().flatten().collect();
        names.into_iter().cloned().collect()
    }

    /// The first rows of the windows among rows with these timestamps.
    fn starts<T: Copy + PartialOrd>(&self, times: &[T], close: impl Fn(T, T) -> bool) -> Result<Vec<u32>, String> {
        let length = self.length().map_err(|error| error.to_string())?;
        if let Some(row) =
            times.windows(2).position(|pair| pair[0].partial_cmp(&pair[1]).is_none_or(|order| order.is_gt()))
        {
            return Err(format!("its rows are not in ascending order of the timestamp at row {}", row + 1));
        }
        let mut starts = Vec::new();
        // Consecutive rows up to the current one, each close to the next.
        let mut run = 0;
        let mut end: Option<T> = None;
        for row in 0..times.len() {
            run = if row > 0 && close(times[row - 1], times[row]) { run + 1 } else { 1 };
            let Some(start) = (row + 1).checked_sub(length).filter(|_| run >= length) else { continue };
            let overlaps = end.is_some_and(|end| times[start] <= end);
            if self.timestamp_overlap || !overlaps {
                starts.push(u32::try_from(start).map_err(|_| "it has too many rows".to_owned())?);
                end = Some(times[row]);
            }
        }
        Ok(starts)
    }

    fn of(&self, times: &ArrayRef) -> Result<Vec<u32>, String> {
        if times.logical_null_count() > 0 {
            return Err("the timestamp is null in some of its rows".to_owned());
        }
        let threshold = self.delta_threshold;
        let wrong = |error: arrow::error::ArrowError| error.to_string();
        match times.data_type() {
            DataType::Float16 | DataType::Float32 | DataType::Float64 => {
                let times = cast(times, &DataType::Float64).map_err(wrong)?;
                self.starts(times.as_primitive::<Float64Type>().values(), |a, b| b - a <= threshold)
            }
            DataType::UInt64 => {
                let times = times.as_primitive::<arrow::datatypes::UInt64Type>();
                self.starts(times.values(), |a, b| b.wrapping_sub(a) as f64 <= threshold)
            }
            ty if ty.is_integer() || ty.is_temporal() => {
                let times = cast(times, &whole(ty)).map_err(wrong)?;
                let times = cast(&times, &DataType::Int64).map_err(wrong)?;
                // Ascending, so the difference is not negative, and fits in 64 bits without a sign.
                self.starts(times.as_primitive::<Int64Type>().values(), |a, b| b.abs_diff(a) as f64 <= threshold)
            }
            ty => Err(format!("a timestamp of type {ty}; integers, floats, dates and timestamps order rows")),
        }
    }
}

/// The integer type of the same width, to which every temporal type casts.
fn whole(ty: &DataType) -> DataType {
    match ty {
        DataType::Date32 | DataType::Time32(_) => DataType::Int32,
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, None),
        DataType::Date64 | DataType::Time64(_) | DataType::Duration(_) => DataType::Int64,
        other => other.clone(),
    }
}

/// The first rows of the windows of each row group, among the rows that the filter left.
pub(super) async fn windows(dataset: &Dataset, ngram: &Ngram, options: &OpenOptions) -> Result<Vec<Vec<u32>>> {
    ngram.length()?;
    let projection = Arc::new(dataset.project(std::slice::from_ref(&ngram.timestamp_field))?);
    let room = Room::new(options);
    let group = |group: usize| {
        let (dataset, projection, ngram, room) = (dataset.clone(), Arc::clone(&projection), ngram.clone(), &room);
        async move {
            let place = dataset.place(group).column(ngram.timestamp_field.as_str());
            if dataset.decoded_rows(group) < ngram.length()? as u64 {
                return Ok(Vec::new());
            }
            let _permit = room.take(&dataset, &projection, group).await?;
            let culprit = format!("the timestamps of {place}");
            let fetched = within(options.timeout, culprit, dataset.fetch(group, &projection)).await?;
            let found = super::held::spawn(move || {
                let times = dataset.decode(&fetched, &projection, 0)?;
                ngram.of(&times).map_err(|what| unsorted(place, what))
            });
            found.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("windows were not found: {error}") }))
        }
    };
    let groups = dataset.manifest().groups.len();
    // Timestamps of a few row groups at a time: one column each.
    futures::stream::iter(0..groups).map(group).buffered(options.concurrency.min(8)).try_collect().await
}

fn unsorted(place: Place, what: String) -> Error {
    let hint = "sort each row group by the timestamp when writing".to_owned();
    Error::unsupported(format!("ngram over it ({what})"), hint).at(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, TimestampMicrosecondArray};

    fn ngram(length: i64, threshold: f64, overlap: bool) -> Ngram {
        Ngram {
            fields: (0..length).map(|offset| (offset, vec!["x".to_owned()])).collect(),
            timestamp_field: "t".to_owned(),
            delta_threshold: threshold,
            timestamp_overlap: overlap,
        }
    }

    fn starts(ngram: &Ngram, times: &[i64]) -> Result<Vec<u32>, String> {
        ngram.of(&(Arc::new(Int64Array::from(times.to_vec())) as ArrayRef))
    }

    #[test]
    fn windows_are_consecutive_close_rows() {
        let times = [0, 10, 20, 31, 41, 41];
        assert_eq!(starts(&ngram(2, 10.0, true), &times), Ok(vec![0, 1, 3, 4]));
        assert_eq!(starts(&ngram(3, 10.0, true), &times), Ok(vec![0, 3]));
        assert_eq!(starts(&ngram(2, 10.0, false), &times), Ok(vec![0, 3]));
        assert_eq!(starts(&ngram(1, 0.0, false), &[5, 5, 6]), Ok(vec![0, 2]), "equal timestamps overlap");
        assert_eq!(starts(&ngram(7, 99.0, true), &times), Ok(vec![]));
        assert!(starts(&ngram(2, 1.0, true), &[1, 0]).is_err());
        let micros: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![i64::MIN, -5, 0]));
        assert_eq!(ngram(2, 5.0, true).of(&micros), Ok(vec![1]));
    }
}
