//! Facts about the values in a data file, from its manifest: metrics of columns (counts and bounds), and partition values.

use arrow::datatypes::{DataType, TimeUnit};

use super::avro::{Record, Value};
use super::value;
use crate::dataset::filter::{Bounds, Bucket, Extent, Facts, Scalar, StoredStatistics, days_since_1970};
use crate::dataset::table::{Tested, constant};

/// Field ids of the maps from column to value count, null count, NaN count, lower and upper bound.
const VALUES: i32 = 109;
const NULLS: i32 = 110;
const NANS: i32 = 137;
const LOWER: i32 = 125;
const UPPER: i32 = 128;

const MICROS_PER_DAY: i128 = 86_400_000_000;

/// Tests whether field `id` of a manifest is one of these maps, or the key or value of one.
pub(super) fn of_columns(id: i32) -> bool {
    [VALUES, NULLS, NANS, LOWER, UPPER].contains(&id)
        || (119..=122).contains(&id)
        || [126, 127, 129, 130, 138, 139].contains(&id)
}

/// Metrics of one column in one data file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ColumnMetrics {
    id: i32,
    values: Option<u64>,
    nulls: Option<u64>,
    nans: Option<u64>,
    lower: Option<Box<[u8]>>,
    upper: Option<Box<[u8]>>,
}

impl ColumnMetrics {
    /// Reads those of the columns `ids` from `file`.
    pub(super) fn of(file: &Record, ids: &[i32]) -> Vec<Self> {
        let find = |map: i32, id: i32| {
            file.list(map)?.iter().find_map(|pair| match pair {
                Value::Record(pair) => match pair.0.as_slice() {
                    [(_, Value::Int(key)), (_, value)] if *key == i64::from(id) => Some(value),
                    _ => None,
                },
                _ => None,
            })
        };
        let count = |map, id| match find(map, id) {
            Some(Value::Int(count)) => u64::try_from(*count).ok(),
            _ => None,
        };
        let bytes = |map, id| match find(map, id) {
            Some(Value::Bytes(bytes)) => Some(bytes.as_slice().into()),
            _ => None,
        };
        let one = |id: &i32| Self {
            id: *id,
            values: count(VALUES, *id),
            nulls: count(NULLS, *id),
            nans: count(NANS, *id),
            lower: bytes(LOWER, *id),
            upper: bytes(UPPER, *id),
        };
        ids.iter().map(one).collect()
    }

    /// Bytes that it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let bound = |bound: &Option<Box<[u8]>>| bound.as_ref().map_or(0, |bytes| bytes.len());
        size_of::<Self>() + bound(&self.lower) + bound(&self.upper)
    }

    /// Facts about `tested` over the `rows` rows of the file; `None` if these metrics are of another column.
    pub(super) fn facts(&self, tested: &Tested, rows: u64) -> Option<Facts> {
        if tested.id != Some(self.id) {
            return None;
        }
        let bound = |bytes: &Option<Box<[u8]>>| bytes.as_deref().and_then(|bytes| scalar(bytes, &tested.kind));
        let extent = match (bound(&self.lower), bound(&self.upper)) {
            (Some(low), Some(high)) => Bounds::between(low, high),
            _ => Bounds::Unknown,
        };
        // The specification leaves open whether a null struct counts as a null of its members.
        let counted = tested.is_top() && self.values.is_none_or(|values| values == rows);
        let nulls = self.nulls.filter(|_| counted);
        let nans = self.nans.filter(|_| counted);
        let bounded = self.lower.is_some() || self.upper.is_some();
        Some(StoredStatistics { rows, nulls, nans, bounded, extent }.facts(false))
    }
}

/// Decodes a bound by the present type of the column, which may have been narrower when the bound was written.
fn scalar(bytes: &[u8], kind: &DataType) -> Option<Scalar> {
    let int = || <[u8; 4]>::try_from(bytes).ok().map(|four| i128::from(i32::from_le_bytes(four)));
    let long = || <[u8; 8]>::try_from(bytes).ok().map(|eight| i128::from(i64::from_le_bytes(eight)));
    let whole = match kind {
        DataType::Boolean => match bytes {
            [byte @ (0 | 1)] => Some(i128::from(*byte)),
            _ => None,
        },
        DataType::Int32 | DataType::Date32 => int(),
        DataType::Int64 => long().or_else(int),
        DataType::Timestamp(TimeUnit::Microsecond, _) => long().or_else(|| int().map(|days| days * MICROS_PER_DAY)),
        DataType::Timestamp(TimeUnit::Nanosecond, _) | DataType::Time64(TimeUnit::Microsecond) => long(),
        DataType::Decimal128(..) => value::big_endian(bytes),
        DataType::Float32 | DataType::Float64 => {
            let float = || <[u8; 4]>::try_from(bytes).ok().map(|four| f64::from(f32::from_le_bytes(four)));
            let double = || <[u8; 8]>::try_from(bytes).ok().map(f64::from_le_bytes);
            let value = if *kind == DataType::Float32 { float() } else { double().or_else(float) };
            return value.map(Scalar::Float);
        }
        // Values of 16 bytes may be UUIDs, which some writers compare as signed numbers.
        DataType::Utf8View | DataType::BinaryView => return Some(Scalar::Bytes(bytes.to_vec())),
        DataType::FixedSizeBinary(size) if *size != 16 => return Some(Scalar::Bytes(bytes.to_vec())),
        _ => None,
    };
    whole.map(Scalar::Whole)
}

/// Facts about the `rows` values of a column of type `kind`, of which `transform` made the partition value `value`. `was_date`: the column
/// had dates once and has another type now.
pub(super) fn of_partition(
    transform: &str,
    value: &Value,
    kind: &DataType,
    was_date: bool,
    rows: u64,
) -> Option<Facts> {
    let (name, number) = match transform.split_once('[') {
        Some((name, rest)) => (name, rest.strip_suffix(']')?.trim().parse::<u32>().ok()?),
        None => (transform, 0),
    };
    if !matches!(name, "identity" | "bucket" | "truncate" | "year" | "month" | "day" | "hour") {
        return None;
    }
    if *value == Value::Null {
        return Some(Facts::null(rows));
    }
    let extent = match (name, value) {
        ("identity", _) if was_date => return None,
        ("identity", _) => return constant(Some(&*value::of_partition(value, kind)?), kind, rows),
        ("bucket", Value::Int(bucket)) => match kind {
            _ if was_date => return None,
            DataType::Timestamp(TimeUnit::Nanosecond, _) | DataType::Boolean => return None,
            DataType::Float32 | DataType::Float64 => return None,
            _ => {
                let decimal = matches!(kind, DataType::Decimal128(..));
                Extent::Bucket(Bucket { number: u32::try_from(*bucket).ok()?, of: number, decimal })
            }
        },
        ("truncate", _) => truncated(value, number, kind)?,
        ("year" | "month" | "day" | "hour", Value::Int(at) | Value::Date(at)) => {
            let at = i32::try_from(*at).ok()?;
            // Old writers rounded times before 1970 up, to the next period.
            let first = if at <= 0 { at.checked_sub(1)? } else { at };
            let (low, high) = (start(name, first, kind)?, start(name, at.checked_add(1)?, kind)?);
            Extent::Whole(low, high - 1)
        }
        _ => return None,
    };
    Some(Facts::all(rows, extent))
}

/// The values that truncation to `width` maps to `value`.
fn truncated(value: &Value, width: u32, kind: &DataType) -> Option<Extent> {
    if width == 0 {
        return None;
    }
    let width_of = i128::from(width);
    let numbers = |low: i128| {
        // In Java the difference wraps around at the least integer, to a number that is no multiple of the width.
        let is_multiple = low.rem_euclid(width_of) == 0;
        is_multiple.then(|| low.checked_add(width_of - 1)).flatten().map(|high| Extent::Whole(low, high))
    };
    match (value, kind) {
        (Value::Int(low), DataType::Int32 | DataType::Int64) => numbers((*low).into()),
        (Value::Bytes(bytes), DataType::Decimal128(..)) => numbers(value::big_endian(bytes)?),
        (Value::Text(text), DataType::Utf8View) => {
            let whole = text.chars().count() < width as usize;
            beginning(text.as_bytes(), whole)
        }
        (Value::Bytes(bytes), DataType::BinaryView) => beginning(bytes, bytes.len() < width as usize),
        _ => None,
    }
}

/// The values that begin with `prefix`; only `prefix` itself if `whole`.
fn beginning(prefix: &[u8], whole: bool) -> Option<Extent> {
    if whole {
        return Some(Extent::Bytes(prefix.to_vec(), prefix.to_vec()));
    }
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut after = prefix.get(..=kept)?.to_vec();
    *after.last_mut()? += 1;
    Some(Extent::Bytes(prefix.to_vec(), after))
}

/// Start of year, month, day or hour number `at` since 1970, in the unit of `kind`.
fn start(name: &str, at: i32, kind: &DataType) -> Option<i128> {
    let at = i128::from(at);
    let days = match name {
        "year" => first_of(at.checked_mul(12)?),
        "month" => first_of(at),
        "day" => at,
        _ => at.div_euclid(24),
    };
    let hours = if name == "hour" { at.rem_euclid(24) } else { 0 };
    let per_day = match kind {
        DataType::Date32 if name != "hour" => return Some(days),
        DataType::Timestamp(TimeUnit::Microsecond, _) => MICROS_PER_DAY,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => MICROS_PER_DAY * 1000,
        _ => return None,
    };
    Some(days * per_day + hours * (per_day / 24))
}

/// The first day of month number `month` since 1970, in days since then.
fn first_of(month: i128) -> i128 {
    days_since_1970(1970 + month.div_euclid(12), month.rem_euclid(12) + 1, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_bound_the_values_that_they_were_made_of() {
        let (date, time) = (DataType::Date32, DataType::Timestamp(TimeUnit::Microsecond, None));
        let hour = 3_600_000_000;
        for (transform, value, kind, expected) in [
            ("identity", Value::Int(7), &DataType::Int64, (7, 7)),
            ("truncate[10]", Value::Int(-20), &DataType::Int32, (-20, -11)),
            ("truncate[50]", Value::Bytes(vec![0x26, 0xac]), &DataType::Decimal128(9, 2), (9900, 9949)),
            ("day", Value::Date(3), &date, (3, 3)),
            ("day", Value::Int(3), &time, (72 * hour, 96 * hour - 1)),
            ("hour", Value::Int(25), &time, (25 * hour, 26 * hour - 1)),
            // 2024-02, 2024, 1969-12, where old writers put times of the month before too.
            ("month", Value::Int(54 * 12 + 1), &date, (19_754, 19_782)),
            ("year", Value::Int(54), &date, (19_723, 20_088)),
            ("month", Value::Int(-1), &date, (-61, -1)),
            ("day", Value::Int(0), &time, (-24 * hour, 24 * hour - 1)),
        ] {
            let expected = Facts::all(3, Extent::Whole(expected.0, expected.1));
            assert_eq!(of_partition(transform, &value, kind, false, 3), Some(expected), "{transform} {value:?} {kind}");
        }
        for (transform, value, kind) in [
            ("void", Value::Null, &date),
            ("of the future", Value::Int(1), &date),
            ("hour", Value::Int(1), &date),
            ("bucket[x]", Value::Int(1), &DataType::Int64),
            ("bucket[4]", Value::Int(1), &DataType::Float64),
            ("truncate[0]", Value::Int(1), &DataType::Int64),
            ("truncate[10]", Value::Int(2_147_483_646), &DataType::Int32),
            ("truncate[1]", Value::Bytes(vec![0xff]), &DataType::BinaryView),
            ("year", Value::Int(i64::MAX), &date),
            ("year", Value::Int(i32::MAX.into()), &date),
        ] {
            assert_eq!(of_partition(transform, &value, kind, false, 3), None, "{transform} {value:?}");
        }
        assert_eq!(of_partition("bucket[4]", &Value::Null, &date, false, 3), Some(Facts::null(3)));
        for transform in ["identity", "bucket[4]"] {
            assert_eq!(of_partition(transform, &Value::Int(1), &time, true, 3), None, "of dates once");
        }
        let text = |value: &str, width| truncated(&Value::Text(value.to_owned()), width, &DataType::Utf8View);
        assert_eq!(text("ab", 2), Some(Extent::Bytes(b"ab".to_vec(), b"ac".to_vec())));
        assert_eq!(text("ab", 3), Some(Extent::Bytes(b"ab".to_vec(), b"ab".to_vec())), "shorter ones are whole");
        assert_eq!(text("äö", 3), text("äö", 9), "characters count, not bytes");
    }

    #[test]
    fn bounds_are_read_by_the_type_that_wrote_them() {
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        for (bytes, kind, expected) in [
            (&(-5_i32).to_le_bytes()[..], DataType::Int64, Some(Scalar::Whole(-5))),
            (&(1_i64 << 40).to_le_bytes(), DataType::Int64, Some(Scalar::Whole(1 << 40))),
            (&(1_i64 << 40).to_le_bytes(), DataType::Int32, None),
            (&2_i32.to_le_bytes(), time.clone(), Some(Scalar::Whole(2 * MICROS_PER_DAY))),
            (&2_i64.to_le_bytes(), time, Some(Scalar::Whole(2))),
            (&0.5_f32.to_le_bytes(), DataType::Float64, Some(Scalar::Float(0.5))),
            (&[0xff, 0x83], DataType::Decimal128(5, 2), Some(Scalar::Whole(-125))),
            (&[2], DataType::Boolean, None),
            (&[7; 16], DataType::FixedSizeBinary(16), None),
            (b"", DataType::Utf8View, Some(Scalar::Bytes(Vec::new()))),
            (&[1, 2], DataType::Int64, None),
        ] {
            assert_eq!(scalar(bytes, &kind), expected, "{bytes:?} {kind}");
        }
    }
}
