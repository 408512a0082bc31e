//! Checks that the values written are those in a source's text: raw tokens, read a second way, against the values delivered.
//!
//! Each token is hashed as a value of its column's type, by other code than the reader's, so that an error of the reader shows. The
//! sums are compared with the digest of the written data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::timezone::Tz;
use arrow::array::{Array, BooleanArray};
use arrow::compute::kernels::cast_utils::{Parser, string_to_datetime};
use arrow::datatypes::{DataType, Time64NanosecondType};

use super::digest::{self, CLOCK, DECIMAL, Digest, INTEGER, LIST, NULL, STRUCT, Summing, WALL};
use super::raw::{Raw, RawRows};
use crate::convert::budget::{Budget, Progress};
use crate::convert::errors::differs;
use crate::convert::format::Format;
use crate::convert::options::ConvertOptions;
use crate::convert::parallel::parallel;
use crate::convert::source::{Source, Text};
use crate::convert::types::{is_text, item, type_text};
use crate::convert::values::clock::Instant;
use crate::dataset::filter::Bound;
use crate::error::{Place, Result};
use crate::schema::Odd;

/// Compares the text of `source` with `found`, the digest of the columns `names` as written. A filter comes with the columns that it
/// reads. A source that is not text passes.
///
/// # Errors
/// `Corrupt` naming a column, or for a token that is not a value of its column's type; those of reading the text.
pub(crate) fn check<'a>(
    source: &dyn Source,
    names: impl Iterator<Item = &'a str>,
    filter: Option<(&Bound, &[usize])>,
    options: &ConvertOptions,
    found: &Digest,
    progress: &Progress,
) -> Result<()> {
    let texts = source.texts();
    if texts.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    let sum = Mutex::new(Summing::new(names.iter().copied()));
    let files: Vec<usize> = (0..texts.len()).collect();
    parallel(options.threads(), &files, progress, |file| {
        let Some(text) = texts.get(file) else { return Ok(()) };
        let own = of_file(source, text, &names, filter, options, progress)?;
        sum.lock().unwrap_or_else(PoisonError::into_inner).merge(&own.digest());
        Ok(())
    })?;
    let stands = sum.into_inner().unwrap_or_else(PoisonError::into_inner).digest();
    if stands == *found {
        return Ok(());
    }
    let column = stands.columns.iter().zip(&found.columns).find(|(a, b)| a != b);
    let what = match column {
        Some((column, _)) if stands.rows == found.rows => {
            format!("column {:?} and the text of its source", column.name)
        }
        _ => "the rows and the text of their source".to_owned(),
    };
    let digest = |digest: &Digest| format!("{} rows, digest {}", digest.rows, digest.sum);
    let hint = "what was read is not what stands there; this is a fault of bowstring";
    // Sums cover all files of the source together.
    let place = texts.first().map_or_else(Place::default, |text| Place::file(Arc::clone(&text.found.name)));
    Err(differs(place, &what, digest(&stands), digest(found), hint))
}

/// Sums the tokens of one file.
fn of_file(
    source: &dyn Source,
    text: &Text,
    names: &[&str],
    filter: Option<(&Bound, &[usize])>,
    options: &ConvertOptions,
    progress: &Progress,
) -> Result<Summing> {
    let schema = source.schema();
    let columns: HashMap<&str, usize> =
        schema.fields().iter().enumerate().map(|(number, field)| (field.name().as_str(), number)).collect();
    let places: HashMap<&str, usize> = names.iter().enumerate().map(|(place, name)| (*name, place)).collect();
    let mut rows = RawRows::open(&text.found, &text.limits, text.format)?;
    let mut sum = Summing::new(names.iter().copied());
    let above = of_directories(source, text, &places).map_err(|(name, why)| rows.wrong(Some(name), &why))?;
    let mut add = |rows: &mut RawRows, wanted: bool| -> Result<bool> {
        progress.go_on()?;
        let Some(row) = rows.next()? else { return Ok(false) };
        let mut hashes = above.clone();
        for (name, raw) in row {
            let Some(number) = columns.get(&*name) else {
                return Err(rows.wrong(Some(&name), "no column was made of it"));
            };
            let (Some(place), true) = (places.get(&*name), wanted) else { continue };
            let of = schema.field(*number).data_type();
            let given = text.given.get(*number).copied().unwrap_or(false);
            let judge = Judge { json: text.format == Format::Jsonl, given };
            let hash = judge
                .hash(&raw, of)
                .map_err(|why| rows.wrong(Some(&name), &format!("{raw:.200?} was read as {}: {why}", type_text(of))))?;
            match hashes.get_mut(*place) {
                Some(slot @ None) => *slot = Some(hash),
                _ => return Err(rows.wrong(Some(&name), "it stands there twice")),
            }
        }
        if wanted {
            let hashes: Vec<u64> = hashes.into_iter().map(|hash| hash.unwrap_or(NULL)).collect();
            sum.add_row(&hashes);
        }
        Ok(true)
    };
    let Some((filter, read)) = filter else {
        while add(&mut rows, true)? {}
        return Ok(sum);
    };
    // Only the values determine which rows were selected; the number of rows in the text is checked by counting.
    let budget = Budget::new(options.memory_budget);
    for shard in text.shards.clone() {
        let mut batches = source.read(shard, read, &budget)?;
        while let Some(batch) = batches.next()? {
            let selected: BooleanArray = filter.evaluate(&batch)?;
            for row in 0..batch.num_rows() {
                if !add(&mut rows, selected.is_valid(row) && selected.value(row))? {
                    return Err(rows.wrong(None, "more rows were read than stand there"));
                }
            }
        }
    }
    if add(&mut rows, false)? {
        return Err(rows.wrong(None, "fewer rows were read than stand there"));
    }
    Ok(sum)
}

/// Hashes the values of the directories that a file lies in, each at the place of its column; fails with a name and the reason.
fn of_directories<'a>(
    source: &dyn Source,
    text: &'a Text,
    places: &HashMap<&str, usize>,
) -> Result<Vec<Option<u64>>, (&'a str, String)> {
    // A directory has no quotes: what its type permits is permitted.
    let judge = Judge { json: false, given: true };
    let mut hashes = vec![None; places.len()];
    for (name, value) in &text.directories {
        let (Some(place), Ok(field)) = (places.get(&**name), source.schema().field_with_name(name)) else { continue };
        let hash = match value {
            None => NULL,
            Some(value) => judge.scalar(value, field.data_type()).map_err(|why| {
                (&**name, format!("its directory's {value:.200?} was read as {}: {why}", type_text(field.data_type())))
            })?,
        };
        if let Some(slot) = hashes.get_mut(*place) {
            *slot = Some(hash);
        }
    }
    Ok(hashes)
}

/// The interpretation of tokens, apart from their type.
#[derive(Debug, Clone, Copy)]
struct Judge {
    json: bool,
    given: bool,
}

impl Judge {
    /// Returns the hash of a token's value, as in [`Digest`].
    fn hash(self, raw: &Raw, of: &DataType) -> Result<u64, String> {
        let text = match raw {
            Raw::Null => return Ok(NULL),
            Raw::List(items) => {
                let inner = item(of).ok_or("it is a list")?;
                let hashes = items.iter().map(|raw| self.hash(raw, inner)).collect::<Result<Vec<_>, _>>()?;
                return Ok(digest::fold(LIST, Some(&hashes)));
            }
            Raw::Object(members) => return self.object(members, of),
            Raw::Quoted(text) => {
                let number = of.is_integer() || of.is_floating();
                if number && (self.json || !self.given) || self.json && *of == DataType::Boolean {
                    return Err("it is a text".to_owned());
                }
                if !self.json || is_text(of) || of.is_temporal() || of.is_decimal() {
                    text
                } else {
                    return Err("a text".into());
                }
            }
            Raw::Bare(text) => {
                if self.json && (is_text(of) || of.is_temporal()) {
                    return Err("it is not text".to_owned());
                }
                text
            }
        };
        self.scalar(text, of)
    }

    fn object(self, members: &[(String, Raw)], of: &DataType) -> Result<u64, String> {
        let named = |name: &str, hash: u64, value: u64| digest::mix(hash ^ digest::bytes(name.as_bytes()), value);
        match of {
            DataType::Struct(fields) => {
                if let Some((name, _)) = members.iter().find(|(name, _)| fields.find(name).is_none()) {
                    return Err(format!("nothing was made of its member {name:?}"));
                }
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_unstable_by_key(|field| field.name());
                let mut hash = STRUCT;
                for field in fields {
                    let mut own = members.iter().filter(|(name, _)| name == field.name());
                    let value = own.next().map_or(Ok(NULL), |(_, raw)| self.hash(raw, field.data_type()))?;
                    if own.next().is_some() {
                        return Err(format!("its member {:?} stands there twice", field.name()));
                    }
                    hash = named(field.name(), hash, value);
                }
                Ok(hash)
            }
            DataType::Map(entries, _) => {
                let DataType::Struct(pair) = entries.data_type() else { return Err("it is a map".into()) };
                let (Some(key), Some(value)) = (pair.first(), pair.get(1)) else { return Err("it is a map".into()) };
                let mut hashes = Vec::new();
                for (name, raw) in members {
                    let mut own = [
                        (key.name(), digest::bytes(name.as_bytes())),
                        (value.name(), self.hash(raw, value.data_type())?),
                    ];
                    own.sort_unstable();
                    hashes.push(own.iter().fold(STRUCT, |hash, (name, value)| named(name, hash, *value)));
                }
                Ok(digest::fold(LIST, Some(&hashes)))
            }
            _ => Err("it is an object".to_owned()),
        }
    }

    fn scalar(self, text: &str, of: &DataType) -> Result<u64, String> {
        let exact =
            |same: bool| if same || self.given { Ok(()) } else { Err("it is written in another way".to_owned()) };
        let nanos = |tag, count: i128| Ok(digest::wide_integer(tag, count));
        match of {
            kind if is_text(kind) => Ok(digest::bytes(text.as_bytes())),
            kind if kind.is_integer() => {
                let number: i128 = text.parse().map_err(|_| "it is not an integer")?;
                exact(number.to_string() == text)?;
                Ok(digest::wide_integer(INTEGER, number))
            }
            kind if kind.is_floating() => {
                let number: f64 = match kind {
                    DataType::Float64 => text.parse().map_err(|_| "it is not a number")?,
                    DataType::Float32 => text.parse::<f32>().map_err(|_| "it is not a number")?.into(),
                    _ => {
                        let wide: f64 = text.parse().map_err(|_| "it is not a number")?;
                        half::f16::from_f32(wide.odd()).into()
                    }
                };
                let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
                let zero = !mantissa.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
                let named = matches!(text, "NaN" | "nan" | "inf" | "-inf") && !self.json;
                let kept = match text.parse::<i128>() {
                    Ok(whole) => number as i128 == whole,
                    Err(_) => named || number.is_finite() && (number == 0.0) == zero,
                };
                if !kept {
                    return Err("the value is another one".to_owned());
                }
                let digits = text.trim_start_matches('-');
                exact(!(digits.starts_with('0') && digits.as_bytes().get(1).is_some_and(u8::is_ascii_digit)))?;
                Ok(digest::float(number))
            }
            DataType::Boolean => match (text.to_ascii_lowercase().as_str(), self.given) {
                ("true", _) | ("1", true) => nanos(INTEGER, 1),
                ("false", _) | ("0", true) => nanos(INTEGER, 0),
                _ => Err("it is not a boolean".to_owned()),
            },
            DataType::Date32 | DataType::Date64 if !text.contains(['T', ' ', ':']) => {
                nanos(WALL, instant(&format!("{text}T00:00:00"))?)
            }
            DataType::Date32 => Err("it is not a date".to_owned()),
            DataType::Date64 => nanos(WALL, instant(text)?),
            DataType::Timestamp(_, zone) => {
                let clock = text.get(11..).unwrap_or_default();
                if clock.contains(['Z', '+', '-']) != zone.is_some() {
                    return Err("its offset or that of the type is lost".to_owned());
                }
                nanos(digest::timestamp(zone), instant(text)?)
            }
            DataType::Time32(_) | DataType::Time64(_) => {
                let count = Time64NanosecondType::parse(text).ok_or("it is not a time")?;
                nanos(CLOCK, i128::from(count))
            }
            kind if kind.is_decimal() => {
                Ok(digest::mix(twox_hash::XxHash3_64::oneshot(plain(text)?.as_bytes()), DECIMAL))
            }
            _ => Err("values of this type have no tokens".to_owned()),
        }
    }
}

/// Returns nanoseconds since 1970, as Arrow's own reader does.
fn instant(text: &str) -> Result<i128, String> {
    let utc: Tz = "+00:00".parse().map_err(|_| "there is no UTC")?;
    let fraction = text.split_once('.').map_or("", |(_, rest)| rest);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit);
    if digits.skip(9).any(|digit| digit != b'0') {
        return Err("it is finer than nanoseconds".to_owned());
    }
    match string_to_datetime(&utc, text) {
        Ok(found) => Ok(i128::from(found.timestamp()) * 1_000_000_000 + i128::from(found.timestamp_subsec_nanos())),
        // Arrow reads neither years of five digits nor fractions of more than nine.
        Err(_) => {
            let (seconds, nanos) = Instant::parse(text)?.parts();
            Ok(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
        }
    }
}

/// Normalises a decimal number: no exponent, no redundant zeros.
fn plain(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let (mantissa, power) = lower.split_once('e').unwrap_or((&lower, "0"));
    let power: i64 = power.parse().map_err(|_| "it is not a number")?;
    let negative = mantissa.starts_with('-');
    let mantissa = mantissa.trim_start_matches(['-', '+']);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) || power.abs() > 1000 {
        return Err("it is not a number".to_owned());
    }
    let mut point = whole.len() as i64 + power;
    while point < 0 {
        digits.insert(0, '0');
        point += 1;
    }
    while digits.len() < point as usize {
        digits.push('0');
    }
    let (whole, fraction) = digits.split_at(point as usize);
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let whole = if whole.is_empty() { "0" } else { whole };
    let value = if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") };
    Ok(if negative && value != "0" { format!("-{value}") } else { value })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, RecordBatch};

    use super::*;
    use crate::convert::types::parse_type;
    use crate::convert::values::objects::Values;

    /// Returns true if an array and the tokens that it is compared with have the same digest.
    fn both(of: &str, read: &[&str], stand: &[Raw], json: bool) -> Result<bool, String> {
        let of = parse_type(of).unwrap();
        let mut values = Values::new(&of).unwrap();
        read.iter().for_each(|text| values.push(text.as_bytes()).unwrap());
        let array: ArrayRef = values.finish().unwrap();
        let batch = RecordBatch::try_from_iter([("x", Arc::clone(&array))]).unwrap();
        let (mut written, mut stands) = (Summing::new(["x"].into_iter()), Summing::new(["x"].into_iter()));
        written.add(&batch).unwrap();
        for raw in stand {
            stands.add_row(&[Judge { json, given: false }.hash(raw, &of)?]);
        }
        Ok(written.digest() == stands.digest())
    }

    fn bare(text: &str) -> Raw {
        Raw::Bare(text.to_owned())
    }

    fn quoted(text: &str) -> Raw {
        Raw::Quoted(text.to_owned())
    }

    #[test]
    fn what_stands_there_is_what_was_read() {
        let same = |of: &str, read: &str, raw: Raw, json| assert_eq!(both(of, &[read], &[raw], json), Ok(true), "{of}");
        same("int64", "-7", bare("-7"), true);
        same("uint64", "18446744073709551615", bare("18446744073709551615"), true);
        same("float64", "0.1", bare("0.100e0"), true);
        same("float64", "9007199254740992", bare("9007199254740992"), true);
        same("float32", "0.1", bare("0.1"), false);
        same("bool", "true", bare("TRUE"), false);
        same("string", "\"7\"", quoted("7"), true);
        same("date32", "\"2024-02-29\"", bare("2024-02-29"), false);
        same("date32", "\"+12345-02-28\"", bare("+12345-02-28"), false);
        same("date32", "\"-0044-03-15\"", quoted("-0044-03-15"), true);
        same("date64", "\"+12345-02-28\"", bare("+12345-02-28"), false);
        same("timestamp[us]", "\"2024-02-29T01:02:03.5\"", bare("2024-02-29 01:02:03.500"), false);
        same("timestamp[us]", "\"+12345-02-28T01:02:03\"", bare("+12345-02-28T01:02:03"), false);
        same("timestamp[ns, -05:00]", "\"2024-02-29T01:02:03-05:00\"", bare("2024-02-29T06:02:03Z"), false);
        same("time64[us]", "\"01:02:03.25\"", bare("01:02:03.250"), false);
        same("decimal(20, 3)", "-0.050", bare("-5e-2"), true);
        same("decimal(20, 3)", "100", bare("100.0"), false);
        let list = |items| Raw::List(items);
        same("list<int64>", "[1, null]", list(vec![bare("1"), Raw::Null]), true);
        let object = |members: Vec<(&str, Raw)>| {
            Raw::Object(members.into_iter().map(|(name, raw)| (name.to_owned(), raw)).collect())
        };
        same("struct<b: int64, a: string>", "{\"b\": 1}", object(vec![("b", bare("1"))]), true);
        same("map<string, int64>", "{\"k\": 1, \"j\": null}", object(vec![("k", bare("1")), ("j", Raw::Null)]), true);
    }

    #[test]
    fn what_a_reader_changes_is_seen() {
        // Values that earlier versions of the reader made of these tokens.
        for (of, read, raw, json) in [
            ("int64", "3", bare("3.7"), true),
            ("int64", "7", quoted("7"), true),
            ("int64", "1234", bare("01234"), false),
            ("float64", "9007199254740992", bare("9007199254740993"), true),
            ("float64", "1e308", bare("1e400"), true),
            ("float64", "0.0", bare("1e-400"), true),
            ("bool", "false", bare("no"), false),
            ("bool", "true", bare("on"), false),
            ("timestamp[us]", "\"2024-06-02T04:30:00\"", bare("2024-06-01T23:30:00-05:00"), false),
            ("timestamp[us]", "\"2024-06-01T23:30:00.123456\"", bare("2024-06-01T23:30:00.123456789"), false),
            ("timestamp[us, +00:00]", "\"2024-06-01T23:30:00Z\"", bare("2024-06-01T23:30:00"), false),
            ("date32", "\"2024-06-02\"", bare("2024-06-01T23:30:00-05:00"), false),
            ("date32", "\"2024-06-02\"", bare("2024-06-01"), false),
            ("date32", "\"+12345-06-02\"", bare("+12345-06-02T00:00:00"), false),
            ("date32", "\"+12345-06-02\"", bare("12345-06-02"), false),
            ("string", "\"7\"", bare("7"), true),
            ("list<int64>", "[1]", Raw::List(vec![bare("1"), bare("2")]), true),
            ("struct<a: int64>", "{\"a\": 1}", Raw::Object(vec![("b".into(), bare("1"))]), true),
            ("decimal(9, 2)", "1.00", bare("1.005"), true),
            ("int64", "1", Raw::Null, true),
        ] {
            let found = both(of, &[read], std::slice::from_ref(&raw), json);
            assert_ne!(found, Ok(true), "{raw:?} as {of}");
        }
        assert_eq!(both("int64", &["1", "2"], &[bare("1")], true), Ok(false));
        assert_eq!(both("int64", &["1", "2"], &[bare("2"), bare("1")], true), Ok(true));
    }
}
