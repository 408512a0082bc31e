//! Statistics of a column in a Parquet file: the least and greatest value, nulls and NaNs, of a chunk or a page.
//!
//! Bounds are used only where their order is the one the filter compares in: the deprecated `min`/`max` fields and files
//! without column orders compare bytes as signed, so there only signed numbers count; NaN bounds are dropped; INT96 has no order.
//! Truncated strings are still bounds. Statistics that contradict themselves say nothing: bounds of nothing but nulls, a lower
//! bound above the upper, more nulls and NaNs than rows, nulls in a column that has none.

use arrow::datatypes::DataType;
use parquet::basic::{ColumnOrder, ConvertedType, LogicalType, SortOrder, TimeUnit as ParquetUnit, Type as Physical};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;

use super::facts::{Bounds, Facts, StoredStatistics};
use super::literal::{NANOS_PER_DAY, Scalar, nanos_per};

/// A column chunk: one value per row.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    metadata: &'a ParquetMetaData,
    row_group: usize,
    column: usize,
    rows: u64,
    chunk: &'a ColumnChunkMetaData,
}

/// A bound as stored.
#[derive(Debug, Clone, Copy)]
enum Raw<'a> {
    Bool(bool),
    Int(i32),
    Long(i64),
    Float(f32),
    Double(f64),
    Bytes(&'a [u8]),
}

impl<'a> Chunk<'a> {
    /// The chunk of the leaf column at `path`; `None` if there is none, if it is ambiguous, or below a list.
    pub(super) fn find(metadata: &'a ParquetMetaData, row_group: usize, path: &[String]) -> Option<Self> {
        let group = metadata.row_groups().get(row_group)?;
        let leaves = metadata.file_metadata().schema_descr().columns();
        let mut found = leaves.iter().enumerate().filter(|(_, leaf)| leaf.path().parts() == path);
        let (column, leaf) = found.next()?;
        let chunk = group.columns().get(column)?;
        let rows = u64::try_from(group.num_rows()).ok()?;
        let whole = leaf.max_rep_level() == 0 && chunk.num_values() == group.num_rows();
        (found.next().is_none() && whole).then_some(Self { metadata, row_group, column, rows, chunk })
    }

    fn leaf(&self) -> &'a ColumnDescriptor {
        self.chunk.column_descr()
    }

    /// Facts from the chunk's statistics, for a column of type `kind`.
    pub(super) fn facts(&self, kind: &DataType) -> Facts {
        let Some(statistics) = self.chunk.statistics() else {
            return Facts::nothing(self.rows);
        };
        let bounds = match statistics {
            Statistics::Boolean(s) => s.min_opt().copied().map(Raw::Bool).zip(s.max_opt().copied().map(Raw::Bool)),
            Statistics::Int32(s) => s.min_opt().copied().map(Raw::Int).zip(s.max_opt().copied().map(Raw::Int)),
            Statistics::Int64(s) => s.min_opt().copied().map(Raw::Long).zip(s.max_opt().copied().map(Raw::Long)),
            Statistics::Int96(_) => None,
            Statistics::Float(s) => s.min_opt().copied().map(Raw::Float).zip(s.max_opt().copied().map(Raw::Float)),
            Statistics::Double(s) => s.min_opt().copied().map(Raw::Double).zip(s.max_opt().copied().map(Raw::Double)),
            Statistics::ByteArray(_) | Statistics::FixedLenByteArray(_) => {
                statistics.min_bytes_opt().map(Raw::Bytes).zip(statistics.max_bytes_opt().map(Raw::Bytes))
            }
        };
        let trusted = self.trusts(statistics.is_min_max_deprecated());
        StoredStatistics {
            rows: self.rows,
            nulls: statistics.null_count_opt(),
            nans: statistics.nan_count_opt(),
            bounded: statistics.min_bytes_opt().is_some() || statistics.max_bytes_opt().is_some(),
            extent: self.extent(bounds.filter(|_| trusted), kind),
        }
        .facts(self.leaf().max_def_level() == 0)
    }

    /// First row and facts of each page; `None` without a consistent page index.
    pub(super) fn pages(&self, kind: &DataType) -> Option<Vec<(u64, Facts)>> {
        let page_index = self.metadata.page_index()?;
        let index = page_index.column_index(self.row_group, self.column)?;
        let locations = page_index.offset_index(self.row_group, self.column)?.page_locations();
        if u64::try_from(locations.len()).ok()? != index.num_pages() {
            return None;
        }
        let starts: Vec<u64> =
            locations.iter().map(|location| u64::try_from(location.first_row_index)).collect::<Result<_, _>>().ok()?;
        let ascending = starts.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
        if starts.first() != Some(&0) || !ascending || starts.last().is_some_and(|last| *last >= self.rows) {
            return None;
        }
        let trusted = self.trusts(false);
        let ends = starts.iter().copied().skip(1).chain([self.rows]);
        let pages = starts.iter().copied().zip(ends).enumerate().map(|(page, (start, end))| {
            let rows = end - start;
            let count = |counts: Option<&Vec<i64>>| counts.and_then(|all| u64::try_from(*all.get(page)?).ok());
            let all_null = index.is_null_page(page);
            let nulls = count(index.null_counts());
            let bounds = if all_null { None } else { page_bounds(index, page) };
            if all_null && nulls.is_some_and(|nulls| nulls != rows) {
                return (start, Facts::nothing(rows));
            }
            let stored = StoredStatistics {
                rows,
                nulls: if all_null { Some(rows) } else { nulls },
                nans: count(index.nan_counts()),
                bounded: bounds.is_some(),
                extent: self.extent(bounds.filter(|_| trusted), kind),
            };
            (start, stored.facts(self.leaf().max_def_level() == 0))
        });
        Some(pages.collect())
    }

    /// Returns true if bounds are in the order in which the filter compares. `deprecated`: they are in the fields of old writers.
    fn trusts(&self, deprecated: bool) -> bool {
        let orders = self.metadata.file_metadata().column_orders();
        let order = orders.and_then(|orders| orders.get(self.column)).copied().unwrap_or(ColumnOrder::UNDEFINED);
        let leaf = self.leaf();
        let float = matches!(leaf.physical_type(), Physical::FLOAT | Physical::DOUBLE);
        let signed = float || (matches!(leaf.physical_type(), Physical::INT32 | Physical::INT64) && !is_unsigned(leaf));
        match order {
            ColumnOrder::UNKNOWN | ColumnOrder::INT96_TIMESTAMP_ORDER => false,
            _ if deprecated => signed,
            ColumnOrder::UNDEFINED => signed,
            ColumnOrder::IEEE_754_TOTAL_ORDER => float || is_half(leaf),
            ColumnOrder::TYPE_DEFINED_ORDER(order) => order != SortOrder::UNDEFINED,
        }
    }

    fn extent(&self, bounds: Option<(Raw<'_>, Raw<'_>)>, kind: &DataType) -> Bounds {
        let leaf = self.leaf();
        let values = bounds.and_then(|(low, high)| value(low, kind, leaf).zip(value(high, kind, leaf)));
        values.map_or(Bounds::Unknown, |(low, high)| Bounds::between(low, high))
    }
}

fn page_bounds(index: &ColumnIndexMetaData, page: usize) -> Option<(Raw<'_>, Raw<'_>)> {
    Some(match index {
        ColumnIndexMetaData::BOOLEAN(i) => (Raw::Bool(*i.min_value(page)?), Raw::Bool(*i.max_value(page)?)),
        ColumnIndexMetaData::INT32(i) => (Raw::Int(*i.min_value(page)?), Raw::Int(*i.max_value(page)?)),
        ColumnIndexMetaData::INT64(i) => (Raw::Long(*i.min_value(page)?), Raw::Long(*i.max_value(page)?)),
        ColumnIndexMetaData::FLOAT(i) => (Raw::Float(*i.min_value(page)?), Raw::Float(*i.max_value(page)?)),
        ColumnIndexMetaData::DOUBLE(i) => (Raw::Double(*i.min_value(page)?), Raw::Double(*i.max_value(page)?)),
        ColumnIndexMetaData::BYTE_ARRAY(i) | ColumnIndexMetaData::FIXED_LEN_BYTE_ARRAY(i) => {
            (Raw::Bytes(i.min_value(page)?), Raw::Bytes(i.max_value(page)?))
        }
        ColumnIndexMetaData::INT96(_) => return None,
    })
}

fn is_unsigned(leaf: &ColumnDescriptor) -> bool {
    let converted = matches!(
        leaf.converted_type(),
        ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64
    );
    converted || matches!(leaf.logical_type_ref(), Some(LogicalType::Integer(int)) if !int.is_signed)
}

fn is_half(leaf: &ColumnDescriptor) -> bool {
    leaf.logical_type_ref() == Some(&LogicalType::Float16)
}

/// The scale of a decimal column.
fn decimal_scale(leaf: &ColumnDescriptor) -> Option<i32> {
    match leaf.logical_type_ref() {
        Some(LogicalType::Decimal(decimal)) => Some(decimal.scale),
        Some(_) => None,
        None => (leaf.converted_type() == ConvertedType::DECIMAL).then(|| leaf.type_scale()),
    }
}

fn is_date(leaf: &ColumnDescriptor) -> bool {
    leaf.logical_type_ref() == Some(&LogicalType::Date) || leaf.converted_type() == ConvertedType::DATE
}

/// Nanoseconds per unit of a timestamp or time column.
fn time_unit(leaf: &ColumnDescriptor, timestamp: bool) -> Option<i128> {
    let unit = match leaf.logical_type_ref() {
        Some(LogicalType::Timestamp(kind)) if timestamp => &kind.unit,
        Some(LogicalType::Time(kind)) if !timestamp => &kind.unit,
        Some(_) => return None,
        None => {
            return match (leaf.converted_type(), timestamp) {
                (ConvertedType::TIMESTAMP_MILLIS, true) | (ConvertedType::TIME_MILLIS, false) => Some(1_000_000),
                (ConvertedType::TIMESTAMP_MICROS, true) | (ConvertedType::TIME_MICROS, false) => Some(1_000),
                _ => None,
            };
        }
    };
    Some(match unit {
        ParquetUnit::MILLIS => 1_000_000,
        ParquetUnit::MICROS => 1_000,
        ParquetUnit::NANOS => 1,
    })
}

/// Returns true if the column has no meaning beyond its physical type.
fn is_plain(leaf: &ColumnDescriptor) -> bool {
    leaf.logical_type_ref().is_none() && leaf.converted_type() == ConvertedType::NONE
}

fn is_integer(leaf: &ColumnDescriptor) -> bool {
    let converted = matches!(
        leaf.converted_type(),
        ConvertedType::INT_8 | ConvertedType::INT_16 | ConvertedType::INT_32 | ConvertedType::INT_64
    );
    is_plain(leaf) || is_unsigned(leaf) || converted || matches!(leaf.logical_type_ref(), Some(LogicalType::Integer(_)))
}

/// A stored bound as a value of a column of type `kind`; `None` where reading it would take more than that.
fn value(raw: Raw<'_>, kind: &DataType, leaf: &ColumnDescriptor) -> Option<Scalar> {
    use DataType as D;
    let number = match raw {
        Raw::Bool(value) => i128::from(value),
        Raw::Int(value) if is_unsigned(leaf) => i128::from(value.cast_unsigned()),
        Raw::Long(value) if is_unsigned(leaf) => i128::from(value.cast_unsigned()),
        Raw::Int(value) => i128::from(value),
        Raw::Long(value) => i128::from(value),
        Raw::Float(value) => {
            return matches!(kind, D::Float32 | D::Float64).then(|| Scalar::Float(f64::from(value)));
        }
        Raw::Double(value) => return matches!(kind, D::Float64).then_some(Scalar::Float(value)),
        Raw::Bytes(bytes) => return value_of_bytes(bytes, kind, leaf),
    };
    let is_bool = matches!(raw, Raw::Bool(_));
    let long = matches!(raw, Raw::Long(_));
    let factor = match kind {
        D::Boolean => is_bool.then_some(1),
        _ if is_bool => None,
        kind if kind.is_integer() => is_integer(leaf).then_some(1),
        D::Decimal32(_, scale) | D::Decimal64(_, scale) | D::Decimal128(_, scale) | D::Decimal256(_, scale) => {
            (decimal_scale(leaf) == Some(i32::from(*scale))).then_some(1)
        }
        D::Date32 => is_date(leaf).then_some(1),
        D::Date64 if long => is_plain(leaf).then_some(1),
        D::Date64 => is_date(leaf).then_some(NANOS_PER_DAY / 1_000_000),
        // Arrow's seconds have no unit in Parquet and are stored as they are.
        D::Timestamp(arrow::datatypes::TimeUnit::Second, _) if is_plain(leaf) && long => Some(1),
        D::Timestamp(unit, _) => scale(time_unit(leaf, true)?, nanos_per(*unit)),
        D::Time32(unit) | D::Time64(unit) => scale(time_unit(leaf, false)?, nanos_per(*unit)),
        _ => None,
    };
    number.checked_mul(factor?).map(Scalar::Whole)
}

/// The factor from a coarse unit to a fine one; converting the other way would round.
fn scale(from: i128, to: i128) -> Option<i128> {
    (from % to == 0).then_some(from / to)
}

fn value_of_bytes(bytes: &[u8], kind: &DataType, leaf: &ColumnDescriptor) -> Option<Scalar> {
    use DataType as D;
    let fixed = leaf.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY;
    let decimal = decimal_scale(leaf);
    match kind {
        D::Float16 if is_half(leaf) => Some(Scalar::Float(half::f16::from_le_bytes(bytes.try_into().ok()?).to_f64())),
        // Only of fixed length: a truncated number would be another number.
        D::Decimal32(_, scale) | D::Decimal64(_, scale) | D::Decimal128(_, scale) | D::Decimal256(_, scale) => {
            let whole = fixed && usize::try_from(leaf.type_length()) == Ok(bytes.len()) && bytes.len() <= 16;
            if !whole || decimal != Some(i32::from(*scale)) {
                return None;
            }
            let negative = bytes.first()? & 0x80 != 0;
            let start = if negative { -1 } else { 0 };
            Some(Scalar::Whole(bytes.iter().fold(start, |number: i128, byte| (number << 8) | i128::from(*byte))))
        }
        D::Utf8 | D::LargeUtf8 | D::Utf8View | D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => {
            let same = fixed == matches!(kind, D::FixedSizeBinary(_));
            (same && decimal.is_none() && !is_half(leaf)).then(|| Scalar::Bytes(bytes.to_vec()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray, UInt32Array};
    use parquet::arrow::ArrowWriter;
    use parquet::data_type::ByteArray;
    use parquet::file::metadata::{FileMetaData, ParquetMetaDataReader};
    use parquet::file::statistics::ValueStatistics;

    use super::*;
    use crate::dataset::filter::{Bound, Expr};

    /// A file of one column with the given statistics and order instead of its own; four rows.
    fn altered(array: ArrayRef, statistics: Statistics, order: Option<ColumnOrder>) -> (RecordBatch, ParquetMetaData) {
        altered_with(array, true, statistics, order)
    }

    fn altered_with(
        array: ArrayRef,
        nullable: bool,
        statistics: Statistics,
        order: Option<ColumnOrder>,
    ) -> (RecordBatch, ParquetMetaData) {
        let batch = RecordBatch::try_from_iter_with_nullable([("a", array, nullable)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let file = bytes::Bytes::from(writer.into_inner().unwrap());
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
        let old = metadata.file_metadata();
        let orders = order.map(|order| vec![order]);
        let new = FileMetaData::new(old.version(), old.num_rows(), None, None, old.schema_descr_ptr(), orders);
        let chunk = metadata.row_group(0).column(0).clone().into_builder().set_statistics(statistics).build().unwrap();
        let group = metadata.row_group(0).clone().into_builder().set_column_metadata(vec![chunk]).build().unwrap();
        (batch, ParquetMetaData::new(new, vec![group]))
    }

    fn may(text: &str, (batch, metadata): &(RecordBatch, ParquetMetaData)) -> bool {
        let bound: Bound = Expr::parse(text).unwrap().bind(&batch.schema()).unwrap();
        assert!(bound.pages(metadata, 0).is_none(), "there is no page index");
        bound.may_match(metadata, 0, &|_| None)
    }

    fn text(low: &str, high: &str, deprecated: bool) -> Statistics {
        Statistics::byte_array(Some(low.into()), Some(high.into()), None, Some(0), deprecated)
    }

    const UNSIGNED: Option<ColumnOrder> = Some(ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::UNSIGNED));

    #[test]
    fn strings_need_the_unsigned_order() {
        let array: ArrayRef = Arc::new(StringArray::from(vec!["b", "c", "c", "d"]));
        let file = |statistics, order| altered(Arc::clone(&array), statistics, order);
        assert!(!may("a = 'x'", &file(text("b", "d", false), UNSIGNED)));
        assert!(may("a = 'bb'", &file(text("b", "d", false), UNSIGNED)));
        for (statistics, order) in [
            (text("b", "d", true), UNSIGNED),
            (text("b", "d", false), None),
            (text("b", "d", false), Some(ColumnOrder::UNKNOWN)),
            (text("d", "b", false), UNSIGNED),
            (Statistics::byte_array(Some(ByteArray::from("b")), None, None, Some(0), false), UNSIGNED),
        ] {
            let case = format!("{statistics:?} {order:?}");
            assert!(may("a = 'x'", &file(statistics, order)), "{case}");
        }
    }

    #[test]
    fn old_files_bound_signed_numbers_only() {
        let signed: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4]));
        let unsigned: ArrayRef = Arc::new(UInt32Array::from(vec![1, 2, 3, 4]));
        let old = || Statistics::int32(Some(1), Some(4), None, Some(0), true);
        assert!(!may("a > 4", &altered(Arc::clone(&signed), old(), None)));
        assert!(may("a > 3", &altered(signed, old(), None)));
        assert!(may("a > 4", &altered(Arc::clone(&unsigned), old(), None)));
        // Above 2^31 the stored number is negative.
        let new = Statistics::int32(Some(5), Some(-2), None, Some(0), false);
        let file = altered(unsigned, new, UNSIGNED);
        assert!(!may("a < 5", &file) && may("a > 4294967293", &file) && !may("a > 4294967294", &file));
    }

    #[test]
    fn nulls_are_counted_or_assumed() {
        let array: ArrayRef = Arc::new(Int32Array::from(vec![None, Some(2), None, None]));
        let file = |nulls| altered(Arc::clone(&array), Statistics::int32(Some(2), Some(2), None, nulls, false), None);
        assert!(may("a is null", &file(None)) && may("a is not null", &file(None)));
        assert!(!may("a is null", &file(Some(0))));
        // Bounds of nothing but nulls, and more nulls than rows: nothing is known.
        assert!(
            may("a is not null", &file(Some(4))) && may("a is null", &file(Some(4))) && may("a = 7", &file(Some(4)))
        );
        let unbounded = Statistics::int32(None, None, None, Some(4), false);
        assert!(!may("a is not null or a = 2", &altered(Arc::clone(&array), unbounded, None)));
        assert!(may("a is null", &file(Some(9))) && may("a is not null", &file(Some(9))));
        assert!(!may("not a = 2", &file(Some(1))));
        // A lower bound above the upper: the count of nulls may be as wrong.
        let reversed = Statistics::int32(Some(3), Some(1), None, Some(0), false);
        let file = altered(Arc::clone(&array), reversed, None);
        assert!(may("a is null", &file) && may("a = 2", &file) && may("a > 5", &file));
    }

    #[test]
    fn a_required_column_with_nulls_is_not_believed() {
        let array: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4]));
        let file = |nulls| {
            let statistics = Statistics::int32(Some(1), Some(4), None, Some(nulls), false);
            altered_with(Arc::clone(&array), false, statistics, None)
        };
        assert!(!may("a > 4", &file(0)));
        assert!(may("a > 4", &file(1)) && may("a is null", &file(1)));
    }

    #[test]
    fn nan_is_outside_all_bounds() {
        let array: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 0.0, f64::NAN, 0.0]));
        let file = |low: f64, high: f64, nans| {
            let statistics = ValueStatistics::new(Some(low), Some(high), None, Some(0), false).with_nan_count(nans);
            altered(Arc::clone(&array), Statistics::Double(statistics), Some(ColumnOrder::IEEE_754_TOTAL_ORDER))
        };
        let unknown = file(0.0, 0.0, None);
        assert!(may("a != 0", &unknown) && may("not a = 0", &unknown) && may("not a < 1", &unknown));
        assert!(!may("a > 1", &unknown) && !may("a < 0", &unknown) && may("a = -0.0", &unknown));
        let all = file(0.0, 0.0, Some(4));
        assert!(may("a > 1", &all), "bounds of nothing but NaN");
        let none = file(0.0, 0.0, Some(0));
        assert!(!may("a != 0", &none) && !may("not a < 1", &none));
        // Zeros of either sign are equal, so a bound of one is a bound of the other.
        assert!(may("a = 0.0", &file(-0.0, -0.0, Some(0))) && may("a >= 0.0", &file(-1.0, -0.0, Some(0))));
        for (low, high) in [(f64::NAN, 1.0), (0.0, f64::NAN), (f64::NAN, f64::NAN)] {
            assert!(may("a > 5", &file(low, high, Some(1))), "{low} {high}");
            assert!(may("a is null", &file(low, high, Some(0))), "{low} {high} without NaN");
        }
    }
}
