//! Bytes that a reader will need for rows that are being written: an estimate from their arrays, which ends row groups that shrink to nearly nothing.

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch};
use arrow::datatypes::DataType;

use super::bytes;
use crate::dataset::limits::GROUP_RATIO_FREE;

/// Bytes once decoded at which a row group ends whose rows shrink to nearly nothing: below what readers here judge by its ratio. A quarter is
/// left for rows that are unlike those before.
pub(super) const MOST_DECODED: u64 = GROUP_RATIO_FREE / 4 * 3;
/// Such a row group has so many times its encoded bytes once decoded. Readers refuse a thousand times.
pub(super) const SHRINKS: u64 = 100;

/// Bytes that a reader expects of the rows of `batch`, at most about, by the rule of [`Dataset::cost`](crate::dataset::Dataset::cost).
pub(super) fn decoded_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(decoded_column).fold(0, u64::saturating_add)
}

/// The same of one column.
pub(super) fn decoded_column(column: &ArrayRef) -> u64 {
    decoded(column, 0)
}

/// The same of a column, or of what is in it; `lists` is the number of lists above, with which empty ones and offsets are counted.
fn decoded(array: &ArrayRef, lists: u64) -> u64 {
    let len = array.len() as u64;
    let below = lists.saturating_add(len);
    // Bytes of each value, and those of all texts.
    let (value, texts) = match array.data_type() {
        DataType::Struct(_) => {
            let members = array.as_struct().columns().iter();
            return members.map(|member| decoded(member, lists)).fold(0, u64::saturating_add);
        }
        DataType::List(_) => return decoded(&within(array.as_list::<i32>()), below),
        DataType::LargeList(_) => return decoded(&within(array.as_list::<i64>()), below),
        DataType::FixedSizeList(..) => return decoded(array.as_fixed_size_list().values(), below),
        DataType::Map(..) => {
            let maps = array.as_map();
            let offsets = maps.value_offsets();
            let (first, end) = (offsets[0] as usize, offsets[maps.len()] as usize);
            let entries = maps.entries().slice(first, end - first);
            return entries.columns().iter().map(|column| decoded(column, below)).fold(0, u64::saturating_add);
        }
        DataType::Boolean => (1, 0),
        DataType::FixedSizeBinary(length) => (u64::try_from(*length).unwrap_or(0).next_power_of_two().max(16), 0),
        DataType::Decimal256(..) => (40, 0),
        kind if kind.is_decimal() => (24, 0),
        DataType::Float32 | DataType::Float64 => (8, 0),
        kind if kind.is_integer() || (kind.is_temporal() && !matches!(kind, DataType::Interval(_))) => (8, 0),
        kind if kind.is_string() || kind.is_binary() => (16, bytes(array) as u64),
        // A large dictionary is given up, and then each row has its own copy.
        _ => (16, array.as_any_dictionary_opt().map_or(0, |packed| copies(packed.values(), len))),
    };
    let places = if lists > 0 { 4 * (lists + below) } else { 0 };
    below.saturating_mul(value).saturating_add(below / 8).saturating_add(texts).saturating_add(places)
}

/// Bytes of `count` copies of the mean one of `values`.
fn copies(values: &ArrayRef, count: u64) -> u64 {
    (bytes(values) as u64).div_ceil(values.len().max(1) as u64).saturating_mul(count)
}

/// The values that the lists of `lists` hold: for a slice, a part of all.
fn within<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> ArrayRef {
    let offsets = lists.value_offsets();
    let (first, end) = (offsets[0].as_usize(), offsets[lists.len()].as_usize());
    lists.values().slice(first, end - first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, FixedSizeBinaryArray, Int64Array, ListArray, StringArray};
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;

    fn of(array: impl Array + 'static) -> u64 {
        decoded(&(Arc::new(array) as ArrayRef), 0)
    }

    #[test]
    fn values_count_by_their_width_and_texts_by_their_bytes() {
        assert_eq!(of(Int64Array::from_iter_values(0..80)), 80 * 8 + 10);
        let ids = FixedSizeBinaryArray::try_from_iter([[0_u8; 20]; 80].iter()).unwrap();
        assert_eq!(of(ids), 80 * 32 + 10, "no texts beside them");
        let words = StringArray::from_iter_values(vec!["word"; 80]);
        let texts = bytes(&(Arc::new(words.clone()) as ArrayRef)) as u64;
        assert!(texts >= 80 * 4);
        assert_eq!(of(words), 80 * 16 + 10 + texts);
    }

    #[test]
    fn rows_of_a_dictionary_count_as_copies_of_its_mean_value() {
        let packed: DictionaryArray<Int32Type> = vec!["a text of some length"; 80].into_iter().collect();
        let one = bytes(packed.values()) as u64;
        assert!(one >= 21);
        assert_eq!(of(packed), 80 * 16 + 10 + 80 * one);
    }

    #[test]
    fn a_slice_of_lists_counts_its_own_values_only() {
        let lists = || {
            let rows = (0..16).map(|row| Some((0..if row < 8 { 1 } else { 100 }).map(Some).collect::<Vec<_>>()));
            ListArray::from_iter_primitive::<Int64Type, _, _>(rows)
        };
        let (light, heavy) = (of(lists().slice(0, 8)), of(lists().slice(8, 8)));
        assert!(light < 16 * 20 && heavy > 800 * 8, "{light} {heavy}");
        assert!(of(lists()).abs_diff(light + heavy) < 64, "parts add up to the whole");
    }
}
