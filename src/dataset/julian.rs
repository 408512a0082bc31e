//! Days and times on the calendar that ended in 1582, which Spark 2 wrote and later versions write in their legacy mode. Spark alone
//! takes them for other days than are stored: they are delivered as stored, and a warning says so.

use parquet::basic::{ConvertedType, LogicalType, TimeUnit};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

const VERSION: &str = "org.apache.spark.version";
const LEGACY: &str = "org.apache.spark.legacyDateTime";
/// The first version of Spark that writes the calendar of today.
const PROLEPTIC: u32 = 3;

/// Days from 1970-01-01 to 1582-10-15, the first day of the calendar of today.
const FIRST_DAY: i64 = -141_427;
/// Seconds from 1970-01-01 to 1900-01-01. Older times also differ in the offsets of their zones.
const FIRST_SECOND: i64 = -2_208_988_800;

/// Returns true if the footer with the values `said` is of a Spark that counted days on the former calendar.
pub(super) fn is_legacy<'a>(said: impl Fn(&str) -> Option<&'a str>) -> bool {
    let Some(version) = said(VERSION) else { return false };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    said(LEGACY).is_some() || major.is_some_and(|major| major < PROLEPTIC)
}

/// Returns true if a file with this `schema` may have such days or times.
pub(super) fn may_be_old(schema: &SchemaDescriptor) -> bool {
    schema.columns().iter().any(|leaf| first(leaf).is_some())
}

/// The first column that has such a day or time, by its statistics. Those of INT96 have no order, and are not looked at.
pub(super) fn old_column(metadata: &ParquetMetaData) -> Option<String> {
    let chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    let mut old = chunks.filter(|chunk| {
        let least = match chunk.statistics() {
            Some(Statistics::Int32(of)) => of.min_opt().copied().map(i64::from),
            Some(Statistics::Int64(of)) => of.min_opt().copied(),
            _ => None,
        };
        least.zip(first(chunk.column_descr())).is_some_and(|(least, first)| least < first)
    });
    old.next().map(|chunk| chunk.column_path().string())
}

/// The first value of a column of days or times that no calendar changes.
fn first(leaf: &ColumnDescriptor) -> Option<i64> {
    match (leaf.logical_type_ref(), leaf.converted_type()) {
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => Some(FIRST_DAY),
        (Some(LogicalType::Timestamp(of)), _) => Some(FIRST_SECOND * per_second(of.unit)),
        (None, ConvertedType::TIMESTAMP_MILLIS) => Some(FIRST_SECOND * per_second(TimeUnit::MILLIS)),
        (None, ConvertedType::TIMESTAMP_MICROS) => Some(FIRST_SECOND * per_second(TimeUnit::MICROS)),
        _ => None,
    }
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::MILLIS => 1_000,
        TimeUnit::MICROS => 1_000_000,
        TimeUnit::NANOS => 1_000_000_000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_of_an_old_spark_or_of_the_legacy_mode_is_legacy() {
        let footer = |pairs: &'static [(&'static str, &'static str)]| {
            is_legacy(|key| pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1))
        };
        assert!(footer(&[(VERSION, "2.4.8")]));
        assert!(footer(&[(VERSION, "3.5.1"), (LEGACY, "")]));
        assert!(!footer(&[(VERSION, "3.0.0")]) && !footer(&[(VERSION, "10.1")]) && !footer(&[(LEGACY, "")]));
    }
}
