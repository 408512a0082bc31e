//! Partition columns from `key=value` directories.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringViewBuilder, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The directory name that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Meaning of `key=value` directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitioning {
    /// They are columns of integers or text.
    #[default]
    Hive,
    /// The same, and dates where all values are dates as ISO 8601 writes them, as Spark reads them.
    Dates,
    /// They are directories like any other.
    None,
}

/// Partition keys and values in path order.
pub(crate) type Values = Vec<(Arc<str>, Option<Arc<str>>)>;

/// The partition values in a path relative to the dataset root. Directories that are no `key=value` are passed over.
pub(crate) fn values(path: &str) -> Values {
    let Some((directories, _)) = path.rsplit_once('/') else { return Vec::new() };
    let pairs = directories.split('/').filter_map(|part| part.split_once('=')).filter(|(key, _)| !key.is_empty());
    pairs.map(|(key, value)| (unescape(key), (value != NULL).then(|| unescape(value)))).collect()
}

/// As [`values`], of a file of a dataset.
///
/// # Errors
/// [`Error::Mismatch`] if its directories give one column two values: either would be a guess.
pub(crate) fn agreed(path: &str) -> Result<Values> {
    let values = values(path);
    for (at, (key, value)) in values.iter().enumerate() {
        let earlier = values.iter().take(at).find(|(earlier, _)| earlier == key);
        let number = |value: &Option<Arc<str>>| value.as_deref().and_then(integer);
        let differs = |earlier: &Option<Arc<str>>| {
            earlier != value && number(earlier).zip(number(value)).is_none_or(|(one, two)| one != two)
        };
        if let Some((_, earlier)) = earlier.filter(|(_, earlier)| differs(earlier)) {
            let shown = |value: &Option<Arc<str>>| value.as_deref().unwrap_or(NULL).to_owned();
            return Err(Error::Mismatch {
                what: format!("partition column {key:?} in the directories of file {path}"),
                expected: shown(earlier),
                found: shown(value),
                hint: "one of them is wrong; rename it, or set partitioning to \"none\"".to_owned(),
            });
        }
    }
    Ok(values)
}

/// Undoes `%41`; an invalid escape stays as it is, and so does text that would not be UTF-8.
fn unescape(text: &str) -> Arc<str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |byte: u8| (byte as char).to_digit(16);
        match after {
            [high, low, after @ ..] if first == b'%' && digit(*high).is_some() && digit(*low).is_some() => {
                bytes.push((digit(*high).unwrap_or(0) * 16 + digit(*low).unwrap_or(0)) as u8);
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).map_or_else(|_| text.into(), Into::into)
}

/// The partition columns of all files: every key once, in the order met, `int64` if all its values are integers. As in Spark, `07` is
/// an integer, as months are written, and `zip=01234` is 1234. With `dates`, a column is a date if all its values are.
pub(crate) fn fields<'a>(files: impl Iterator<Item = &'a Values> + Clone, dates: bool) -> Vec<Field> {
    let mut keys: Vec<&Arc<str>> = Vec::new();
    let mut seen = BTreeSet::new();
    for (key, _) in files.clone().flatten() {
        if seen.insert(key) {
            keys.push(key);
        }
    }
    let field = |key: &Arc<str>| {
        let (mut some, mut integers, mut nulls) = (false, true, false);
        for value in values_of(files.clone(), key) {
            match value {
                Some(value) => {
                    some = true;
                    integers &= integer(value).is_some();
                }
                None => nulls = true,
            }
        }
        let data_type = match some && integers {
            true => DataType::Int64,
            false if dates && all_dates(files.clone(), key) => DataType::Date32,
            false => DataType::Utf8View,
        };
        Field::new(key.as_ref(), data_type, nulls)
    };
    keys.into_iter().map(field).collect()
}

/// Value of `key` for each file.
fn values_of<'a>(files: impl Iterator<Item = &'a Values>, key: &str) -> impl Iterator<Item = Option<&'a str>> {
    files.map(move |file| file.iter().find(|(name, _)| &**name == key).and_then(|(_, value)| value.as_deref()))
}

/// Returns true if all values of `key` are dates, and there is one.
pub(super) fn all_dates<'a>(files: impl Iterator<Item = &'a Values>, key: &str) -> bool {
    let mut some = false;
    values_of(files, key).flatten().all(|value| {
        some = true;
        is_date(value)
    }) && some
}

/// Returns true if `text` is a date as `2026-01-31`.
fn is_date(text: &str) -> bool {
    let shape = text.len() == 10 && text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == matches!(at, 4 | 7));
    shape && super::table::parse(text, &DataType::Date32).is_some()
}

fn integer(text: &str) -> Option<i64> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

/// A column of `rows` equal values.
pub(crate) fn constant(
    value: Option<&str>,
    data_type: &DataType,
    rows: usize,
) -> std::result::Result<ArrayRef, ArrowError> {
    match (value, data_type) {
        (Some(value), DataType::Int64) => {
            let value = integer(value)
                .ok_or_else(|| ArrowError::ParseError("a partition value is not an integer".to_owned()))?;
            Ok(Arc::new(Int64Array::from_value(value, rows)))
        }
        (Some(value), DataType::Utf8View) => {
            let mut builder = StringViewBuilder::with_capacity(rows);
            let block = builder.append_block(value.as_bytes().to_vec().into());
            let length = u32::try_from(value.len())
                .map_err(|_| ArrowError::ParseError("a partition value is too long".to_owned()))?;
            for _ in 0..rows {
                builder.try_append_view(block, 0, length)?;
            }
            Ok(Arc::new(builder.finish()))
        }
        (Some(value), _) => {
            let one = super::table::parse(value, data_type)
                .ok_or_else(|| ArrowError::ParseError(format!("{value:?} is not a value of type {data_type}")))?;
            take(&one, &UInt32Array::from_value(0, rows), None)
        }
        (None, _) => Ok(new_null_array(data_type, rows)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray};

    #[test]
    fn values_are_decoded_and_typed_over_all_files() {
        let files: Vec<Values> =
            ["year=2020/c=a b%2Fc%3Dd%25/x", "year=07/c=%zz/x", "d/year=-1/c=__HIVE_DEFAULT_PARTITION__/x"]
                .map(values)
                .to_vec();
        assert_eq!(files[0][1].1.as_deref(), Some("a b/c=d%"));
        assert_eq!(files[1][1].1.as_deref(), Some("%zz"));
        assert_eq!(files[2][1].1, None);
        let fields = fields(files.iter(), true);
        assert_eq!(fields[0], Field::new("year", DataType::Int64, false));
        assert_eq!(fields[1], Field::new("c", DataType::Utf8View, true));
        let padded: Vec<Values> = ["k=01234/x", "k=-0/x"].map(values).to_vec();
        assert_eq!(super::fields(padded.iter(), true)[0].data_type(), &DataType::Int64);
        for other in ["1_0", " 5", "+5", ""] {
            let files = [values(&format!("k={other}/x"))];
            assert_eq!(super::fields(files.iter(), true)[0].data_type(), &DataType::Utf8View, "{other:?}");
        }
        let type_of = |values: &[&str], dates| {
            let files: Vec<Values> = values.iter().map(|value| super::values(&format!("day={value}/x"))).collect();
            super::fields(files.iter(), dates)[0].data_type().clone()
        };
        assert_eq!(type_of(&["2024-02-29", NULL, "1582-10-10"], true), DataType::Date32);
        assert_eq!(type_of(&["2024-02-29"], false), DataType::Utf8View, "as before there were dates");
        for other in ["2023-02-29", "2024-2-29", "+2024-02-2", "2024-02-29 ", "2024-02-29T00", "20240-2-29", NULL] {
            let values = if other == NULL { vec![NULL] } else { vec!["2024-02-29", other] };
            assert_eq!(type_of(&values, true), DataType::Utf8View, "{other:?}");
        }
        let missing: Vec<Values> = ["a=1/x", "y"].map(values).to_vec();
        assert_eq!(super::fields(missing.iter(), false), [Field::new("a", DataType::Int64, true)]);
    }

    #[test]
    fn directories_that_give_a_column_two_values_are_an_error_that_names_file_and_column() {
        for path in ["k=1/k=2/b.parquet", "k=1/d/k=__HIVE_DEFAULT_PARTITION__/b.parquet", "k=a/j=1/k=A/b.parquet"] {
            let error = agreed(path).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains("\"k\"") && said.contains(path), "{said}");
        }
        for path in
            ["k=1/k=1/b.parquet", "k=1/k=01/b.parquet", "k=1/K=2/b.parquet", "k=1/j=2/k.parquet", "k=2=1/b.parquet"]
        {
            assert_eq!(agreed(path).unwrap(), values(path), "{path}");
        }
    }

    #[test]
    fn constants() {
        let long = "longer than twelve bytes";
        let array = constant(Some(long), &DataType::Utf8View, 3).unwrap();
        assert_eq!(array.as_string_view().iter().collect::<Vec<_>>(), [Some(long); 3]);
        assert_eq!(constant(Some("é"), &DataType::Utf8View, 1).unwrap().as_string_view().value(0), "é");
        let day = constant(Some("1970-01-03"), &DataType::Date32, 2).unwrap();
        assert_eq!(day.as_primitive::<arrow::datatypes::Date32Type>().values(), &[2, 2]);
        assert_eq!(constant(None, &DataType::Int64, 2).unwrap().null_count(), 2);
    }
}
