//! Times of 96 bits, a day and the nanoseconds within it, as Spark, Hive and Impala write them.
//!
//! No type of 64 bits holds them all. The decoder gives seconds, which hold every day there is, and nanoseconds, which wrap;
//! together they are exact, and become the column's unit here or an error, never another time.
//!
//! The unit is microseconds, Spark's own, unless an Arrow writer left another one beside the schema. Days count back from 1970 on the
//! calendar of today, also before 1582, as they are stored.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, TimeUnit};
use arrow::error::ArrowError;
use parquet::basic::Type;
use parquet::schema::types::SchemaDescriptor;

use crate::schema::children;

/// The units that the decoder is asked for.
pub(super) const PARTS: [TimeUnit; 2] = [TimeUnit::Second, TimeUnit::Nanosecond];

/// Reason why a time cannot be converted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It has digits beyond the unit.
    Finer(TimeUnit),
    /// It is too far from 1970.
    Beyond(TimeUnit),
    /// It is before the day that it names, or that day before the first one that is counted, 4713 years before our era.
    Negative,
}

/// Fault in a column of times.
#[derive(Debug)]
pub(super) enum Fault {
    /// A time, which is the value of this number among the leaf's; of the rows where `flat`.
    Time {
        at: usize,
        flat: bool,
        why: Why,
    },
    Arrow(ArrowError),
}

impl From<ArrowError> for Fault {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

/// Returns true if any of these leaves holds such times.
pub(super) fn any(schema: &SchemaDescriptor, leaves: impl IntoIterator<Item = usize>) -> bool {
    leaves.into_iter().filter_map(|leaf| schema.columns().get(leaf)).any(|leaf| leaf.physical_type() == Type::INT96)
}

/// `fields`, the columns of `schema`, with `unit` for every leaf that holds such times.
pub(super) fn with_unit(fields: &Fields, schema: &SchemaDescriptor, unit: TimeUnit) -> Fields {
    let mut units = schema.columns().iter().map(|leaf| (leaf.physical_type() == Type::INT96).then_some(unit));
    fields.iter().map(|field| field_of(field, &mut units)).collect()
}

/// The unit of each of `leaves` that holds such times, in `fields`, the columns of `schema`.
pub(super) fn units(fields: &Fields, schema: &SchemaDescriptor, leaves: &[usize]) -> Vec<Option<TimeUnit>> {
    let mut types = Vec::new();
    fields.iter().for_each(|field| leaf_types(field.data_type(), &mut types));
    let unit = |leaf: &usize| match (schema.columns().get(*leaf)?.physical_type(), types.get(*leaf)?) {
        (Type::INT96, DataType::Timestamp(unit, _)) => Some(*unit),
        _ => None,
    };
    leaves.iter().map(unit).collect()
}

/// The leaves of an Arrow type are those of the Parquet schema, in its order.
fn leaf_types<'a>(data_type: &'a DataType, types: &mut Vec<&'a DataType>) {
    match children(data_type) {
        [] if !matches!(data_type, DataType::Struct(_)) => types.push(data_type),
        children => children.iter().for_each(|child| leaf_types(child.data_type(), types)),
    }
}

fn field_of(field: &FieldRef, units: &mut impl Iterator<Item = Option<TimeUnit>>) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(type_of(field.data_type(), units)))
}

/// `data_type` with these units for its leaves, where they have one.
fn type_of(data_type: &DataType, units: &mut impl Iterator<Item = Option<TimeUnit>>) -> DataType {
    match data_type {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| field_of(field, units)).collect()),
        DataType::List(item) => DataType::List(field_of(item, units)),
        DataType::LargeList(item) => DataType::LargeList(field_of(item, units)),
        DataType::ListView(item) => DataType::ListView(field_of(item, units)),
        DataType::LargeListView(item) => DataType::LargeListView(field_of(item, units)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(field_of(item, units), *length),
        DataType::Map(entries, sorted) => DataType::Map(field_of(entries, units), *sorted),
        leaf => {
            let value = if let DataType::Dictionary(_, value) = leaf { value } else { leaf };
            match (units.next().flatten(), value) {
                (Some(unit), DataType::Timestamp(_, zone)) => DataType::Timestamp(unit, zone.clone()),
                _ => leaf.clone(),
            }
        }
    }
}

/// The array whose times the two hold together, in the units of [`PARTS`]; its leaves have the units `units`, where they are times.
pub(super) fn join(seconds: &ArrayRef, nanos: &ArrayRef, units: &[Option<TimeUnit>]) -> Result<ArrayRef, Fault> {
    let to = type_of(seconds.data_type(), &mut units.iter().copied());
    joined(&seconds.to_data(), &nanos.to_data(), &to, true).map(make_array)
}

fn joined(seconds: &ArrayData, nanos: &ArrayData, to: &DataType, flat: bool) -> Result<ArrayData, Fault> {
    // Other leaves were decoded in one type.
    if seconds.data_type() == to && seconds.data_type() == nanos.data_type() {
        return Ok(seconds.clone());
    }
    let builder = seconds.clone().into_builder().data_type(to.clone());
    if let (DataType::Timestamp(TimeUnit::Second, _), DataType::Timestamp(unit, _)) = (seconds.data_type(), to) {
        let time = |at: usize, (seconds, nanos): (&i64, &i64)| {
            exact(*seconds, *nanos, *unit).map_err(|why| Fault::Time { at, flat, why })
        };
        let nulls = seconds.nulls();
        let pairs = seconds.buffer::<i64>(0).iter().zip(nanos.buffer::<i64>(0)).take(seconds.len()).enumerate();
        let times = pairs.map(|(at, pair)| match nulls.is_some_and(|nulls| nulls.is_null(at)) {
            true => Ok(0),
            false => time(at, pair),
        });
        let times = times.collect::<Result<Vec<i64>, Fault>>()?;
        return Ok(builder.offset(0).buffers(vec![Buffer::from_vec(times)]).nulls(nulls.cloned()).build()?);
    }
    let below = flat && matches!(to, DataType::Struct(_));
    let pairs = seconds.child_data().iter().zip(nanos.child_data()).zip(children(to));
    let children = pairs.map(|((seconds, nanos), to)| joined(seconds, nanos, to.data_type(), below));
    Ok(builder.child_data(children.collect::<Result<_, Fault>>()?).build()?)
}

/// Seconds from 1970 back to the day that is counted as 0.
const FIRST: i64 = -2_440_588 * 86_400;

/// The time that is so many whole seconds after 1970, rounded towards the day, and in nanoseconds so many, wrapped.
fn exact(seconds: i64, nanos: i64, unit: TimeUnit) -> Result<i64, Why> {
    let rest = nanos.wrapping_sub(seconds.wrapping_mul(1_000_000_000));
    let (per_second, nanos_each) = match unit {
        TimeUnit::Second => (1, 1_000_000_000),
        TimeUnit::Millisecond => (1_000, 1_000_000),
        TimeUnit::Microsecond => (1_000_000, 1_000),
        TimeUnit::Nanosecond => (1_000_000_000, 1),
    };
    // Others take the day as a number without a sign, and would read another one.
    if rest < 0 || seconds < FIRST {
        return Err(Why::Negative);
    }
    if rest % nanos_each != 0 {
        return Err(Why::Finer(unit));
    }
    let time = i128::from(seconds) * per_second + i128::from(rest / nanos_each);
    i64::try_from(time).map_err(|_| Why::Beyond(unit))
}

#[cfg(test)]
mod tests {
    use parquet::data_type::Int96;

    use super::*;

    fn of(day: i32, nanos: i64, unit: TimeUnit) -> Result<i64, Why> {
        let mut time = Int96::new();
        time.set_data(nanos as u32, (nanos >> 32) as u32, day as u32);
        exact(time.to_seconds(), time.to_nanos(), unit)
    }

    #[test]
    fn a_negative_day_is_none() {
        for day in [-1, i32::MIN] {
            assert_eq!(of(day, 0, TimeUnit::Microsecond), Err(Why::Negative), "day {day}");
        }
    }

    #[test]
    fn every_day_is_exact_or_refused() {
        const EPOCH: i32 = 2_440_588;
        const DAY: i128 = 86_400_000_000;
        for day in [0, 1, EPOCH, EPOCH + 106_751, EPOCH + 106_752, EPOCH - 106_752, 5_373_484, 1_721_426, i32::MAX] {
            for nanos in
                [0, 1_000, 999_999_000, 1_000_000_000, 43_200_000_001_000, 86_399_999_999_000, 86_400_000_000_000]
            {
                let wanted = (i128::from(day) - i128::from(EPOCH)) * DAY + i128::from(nanos / 1_000);
                let wanted = i64::try_from(wanted).map_err(|_| Why::Beyond(TimeUnit::Microsecond));
                assert_eq!(of(day, nanos, TimeUnit::Microsecond), wanted, "day {day}, {nanos} ns");
                assert_eq!(of(day, nanos + 7, TimeUnit::Microsecond), Err(Why::Finer(TimeUnit::Microsecond)));
                let wanted = (i128::from(day) - i128::from(EPOCH)) * DAY * 1000 + i128::from(nanos + 7);
                let wanted = i64::try_from(wanted).map_err(|_| Why::Beyond(TimeUnit::Nanosecond));
                assert_eq!(of(day, nanos + 7, TimeUnit::Nanosecond), wanted, "day {day}, {nanos} ns");
                assert_eq!(of(day, -1 - nanos % 1_000_000_000, TimeUnit::Microsecond), Err(Why::Negative), "day {day}");
            }
        }
    }
}
