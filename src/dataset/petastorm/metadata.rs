//! The keys under which Petastorm keeps its metadata, and their values in a Parquet footer.

use std::collections::BTreeMap;

use crate::dataset::thrift::{Reader, kind};
use crate::error::{Error, Place, Result};

/// The schema, pickled: [`Unischema::from_pickle`](super::Unischema::from_pickle).
pub const UNISCHEMA_KEY: &str = "dataset-toolkit.unischema.v1";
/// The number of row groups of each file, as JSON: [`row_group_counts`].
pub const ROW_GROUP_COUNTS_KEY: &str = "dataset-toolkit.num_row_groups_per_file.v1";
/// The indexes, pickled: [`indexes`](super::indexes).
pub const ROW_GROUP_INDEX_KEY: &str = "dataset-toolkit.rowgroups_index.v1";

/// Lists of other structs that are stepped over are shorter.
const MAX_STRUCTS: usize = 1_000_000;

/// Pairs of a footer.
const MAX_PAIRS: usize = 10_000;

/// The key-value metadata of a Parquet footer: its Thrift, without the length and magic number after it.
///
/// Values are bytes here. Parquet calls them strings, and readers that believe it refuse or damage the pickles that Petastorm puts
/// there. A pair without a value has an empty one.
///
/// # Errors
/// [`Error::Corrupt`] if the Thrift is damaged.
pub fn key_values(footer: &[u8], place: &Place) -> Result<Vec<(String, Vec<u8>)>> {
    walk(footer).map_err(|what| Error::corrupt(place.clone(), format!("the footer is damaged: {what}")))
}

fn walk(footer: &[u8]) -> Result<Vec<(String, Vec<u8>)>, &'static str> {
    let mut reader = Reader::new(footer);
    let mut pairs = Vec::new();
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        // FileMetaData: 5: optional list<KeyValue> key_value_metadata.
        if (field.id, field.kind) != (5, kind::LIST) {
            reader.skip(field, MAX_STRUCTS)?;
            continue;
        }
        let (count, element) = reader.list()?;
        if count > MAX_PAIRS || (element != kind::STRUCT && count > 0) {
            return Err("its key-value metadata is not a short list of structs");
        }
        for _ in 0..count {
            let (mut key, mut value) = (&[][..], &[][..]);
            let mut last = 0;
            while let Some(field) = reader.field(&mut last)? {
                match (field.id, field.kind) {
                    (1, kind::BINARY) => key = reader.binary()?,
                    (2, kind::BINARY) => value = reader.binary()?,
                    _ => reader.skip(field, MAX_STRUCTS)?,
                }
            }
            pairs.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
        }
    }
    Ok(pairs)
}

/// The number of row groups of each file, by its path below the dataset's root: the value of [`ROW_GROUP_COUNTS_KEY`].
///
/// # Errors
/// [`Error::Corrupt`] if it is no JSON object of counts.
pub fn row_group_counts(json: &[u8], place: &Place) -> Result<BTreeMap<String, usize>> {
    serde_json::from_slice(json)
        .map_err(|error| Error::corrupt_by(place.clone(), "the row groups per file are not JSON of counts", error))
}

/// The JSON that [`row_group_counts`] reads.
pub fn row_group_counts_to_json(counts: &BTreeMap<String, usize>) -> String {
    serde_json::json!(counts).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bytes_and_lengths_are_checked() {
        // field 1 i32 = 1; field 5: a list of one struct {1: "k", 2: 80 04 ff}.
        let footer = [0x15, 2, 0x49, 0x1c, 0x18, 1, b'k', 0x18, 3, 0x80, 4, 0xff, 0, 0];
        let place = Place::file("_common_metadata");
        assert_eq!(key_values(&footer, &place).unwrap(), [("k".to_owned(), vec![0x80, 4, 0xff])]);
        for end in 0..footer.len() {
            assert!(matches!(key_values(&footer[..end], &place), Err(Error::Corrupt { .. })), "{end}");
        }
        let huge = [0x49, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(key_values(&huge, &place).is_err());
    }

    #[test]
    fn counts_are_json_both_ways() {
        let place = Place::default();
        let counts = row_group_counts(br#"{"part=1/a.parquet": 3, "b": 0}"#, &place).unwrap();
        assert_eq!(row_group_counts(row_group_counts_to_json(&counts).as_bytes(), &place).unwrap(), counts);
        for bad in [&b"[1]"[..], br#"{"a": -1}"#, br#"{"a": 1.5}"#, b"\x80\x04N.", b"", &[b'['; 100_000]] {
            assert!(row_group_counts(bad, &place).is_err(), "{}", bad.escape_ascii());
        }
    }
}
