//! Statistics of a file in the log, as JSON or as columns of a checkpoint, for the columns that a filter tests.
//!
//! A bound need not be a value of the file. Writers truncate strings and append U+FFFD to the upper bound, truncate times to milliseconds,
//! print numbers as the shortest text of 32 or 64 bits, and may date days before the Gregorian calendar by another one than the
//! file does. So each text stands for a range of values, and pruning uses its outer end.

use std::borrow::Cow;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, TimeUnit};
use arrow::util::display::array_value_to_string;

use super::members::{Members, PARTS, Texts};
use crate::dataset::filter::{Bounds, Facts, Scalar, StoredStatistics};
use crate::dataset::table::{Sieve, Tested, exact};

/// 1582-10-15, in days since 1970: earlier days may be of the Julian calendar.
const GREGORIAN: i128 = -141_427;

/// 1900-01-01, in microseconds since 1970: earlier times may also have another offset.
const RAILWAY: i128 = -2_208_988_800_000_000;

/// 1973-01-01, in microseconds since 1970: until 1972 some time zones had offsets with seconds, which texts drop.
const WHOLE_MINUTES: i128 = 94_694_400_000_000;

const MINUTE: i128 = 60_000_000;

/// Digits of a decimal that 64 bits hold.
const NARROW: u8 = 18;

/// Maximum loss of a time that is truncated to milliseconds, in microseconds.
const CUT: i128 = 999;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Statistics {
    pub(super) rows: u64,
    /// By number of the column in the filter.
    facts: Vec<Option<Facts>>,
}

impl Statistics {
    /// Parses `json` for the columns of `sieve`; `None` without a row count.
    pub(super) fn parse(json: &str, sieve: &Sieve) -> Option<Self> {
        let paths: Vec<&[String]> = sieve.tested().map(|(_, tested)| tested.physical.as_slice()).collect();
        let Members { rows, mut texts } = Members::find(json, &paths)?;
        Some(Self::new(rows?, sieve, &mut |nth, _| std::mem::take(&mut texts[nth])))
    }

    /// Reads row `row` of `column`, a struct of parsed statistics; `None` without a row count.
    pub(super) fn at(column: &ArrayRef, row: usize, sieve: &Sieve) -> Option<Self> {
        let rows = text(column, row, &["numRecords"])?.parse().ok()?;
        let of = |part: &str, tested: &Tested| {
            let path: Vec<&str> = std::iter::once(part).chain(tested.physical.iter().map(String::as_str)).collect();
            text(column, row, &path).map(Cow::Owned)
        };
        Some(Self::new(rows, sieve, &mut |_, tested| PARTS.map(|part| of(part, tested))))
    }

    /// The facts that `of` tells of the nth of the tested columns: its [`PARTS`].
    fn new<'a>(rows: u64, sieve: &Sieve, of: &mut dyn FnMut(usize, &Tested) -> Texts<'a>) -> Self {
        let mut facts = Vec::new();
        for (nth, (at, tested)) in sieve.tested().enumerate() {
            facts.resize(at, None);
            let [low, high, nulls] = of(nth, tested);
            let nulls = nulls.filter(|_| tested.is_top()).and_then(|count| count.parse().ok());
            let range = |text: &Option<Cow<'_, str>>| text.as_deref().and_then(|text| range(text, &tested.kind));
            let extent = match (range(&low), range(&high)) {
                (Some((low, _)), Some((_, high))) => Bounds::between(low, high),
                _ => Bounds::Unknown,
            };
            let stored = StoredStatistics { rows, nulls, nans: None, bounded: low.is_some() || high.is_some(), extent };
            facts.push(Some(stored.facts(false)));
        }
        Self { rows, facts }
    }

    /// Takes the facts about column number `at` of the filter.
    pub(super) fn take(&mut self, at: usize) -> Option<Facts> {
        self.facts.get_mut(at)?.take()
    }
}

/// The value of the member at `path` of row `row` of `column`, as text.
fn text(column: &ArrayRef, row: usize, path: &[&str]) -> Option<String> {
    let mut found = column;
    for name in path {
        found = found.as_struct_opt().filter(|all| all.is_valid(row))?.column_by_name(name)?;
    }
    let shown = || array_value_to_string(found, row).ok();
    (found.is_valid(row) && !found.data_type().is_nested()).then(shown).flatten()
}

/// The least and the greatest value of type `kind` that `text` may stand for; `None` if unknown.
fn range(text: &str, kind: &DataType) -> Option<(Scalar, Scalar)> {
    let whole = |low: i128, high: i128| Some((Scalar::Whole(low), Scalar::Whole(high)));
    match kind {
        DataType::Float32 => {
            let value: f32 = text.parse().ok()?;
            Some((Scalar::Float(value.next_down().into()), Scalar::Float(value.next_up().into())))
        }
        DataType::Float64 => {
            let value: f64 = text.parse().ok()?;
            if value.is_nan() {
                return Some((Scalar::Float(value), Scalar::Float(value)));
            }
            // The column may have had 32 bits when the bound was written.
            let narrow = f64::from(value as f32);
            let (low, high) = (value.min(narrow), value.max(narrow));
            Some((Scalar::Float(low.next_down().next_down()), Scalar::Float(high.next_up().next_up())))
        }
        DataType::Utf8View => {
            let high = match text.strip_suffix('\u{fffd}') {
                // Truncation within a surrogate pair leaves a question mark. 0xFF is above every byte of UTF-8.
                Some(cut) => [cut.strip_suffix('?').unwrap_or(cut).as_bytes(), &[u8::MAX]].concat(),
                None => text.as_bytes().to_vec(),
            };
            Some((Scalar::Bytes(text.as_bytes().to_vec()), Scalar::Bytes(high)))
        }
        // No writer has bounds for binary columns.
        DataType::BinaryView => None,
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let zoned = text.get(10..).is_some_and(|time| time.contains(['Z', 'z', '+', '-']));
            let Scalar::Whole(value) = exact(text, kind).filter(|_| zoned == zone.is_some())? else { return None };
            let offset = if zone.is_some() && value < WHOLE_MINUTES { MINUTE } else { 0 };
            if value < RAILWAY { None } else { whole(value - offset, value + CUT + offset) }
        }
        _ => {
            let Scalar::Whole(value) = exact(text, kind)? else { return None };
            match kind {
                DataType::Date32 if value < GREGORIAN => None,
                // delta-rs moves a bound that 64 bits do not hold to the nearest one that they do.
                DataType::Decimal128(precision, _) if *precision > NARROW => None,
                // Some writers convert decimals to 64-bit floats.
                DataType::Decimal128(..) => {
                    let slack = value.abs() >> 50;
                    whole(value.saturating_sub(slack), value.saturating_add(slack))
                }
                _ => whole(value, value),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::OpenOptions;
    use crate::dataset::filter::Expr;
    use crate::dataset::table::{Column, Kind};

    fn sieve(filter: &str, kind: DataType) -> Sieve {
        let leaf = |name: &str, physical: &str, kind| Column {
            name: name.to_owned(),
            physical: physical.to_owned(),
            id: None,
            nullable: true,
            kind,
        };
        let inner = leaf("x", "col-x", Kind::Leaf(kind.clone()));
        let columns = [leaf("a", "col-a", Kind::Leaf(kind)), leaf("s", "col-s", Kind::Struct(vec![inner]))];
        let options = OpenOptions { filter: Some(Expr::parse(filter).unwrap()), ..OpenOptions::default() };
        Sieve::new(&columns, &options).unwrap()
    }

    fn keeps(filter: &str, kind: DataType, json: &str) -> bool {
        let sieve = sieve(filter, kind);
        let mut found = Statistics::parse(json, &sieve).unwrap();
        sieve.keeps(&mut |at, _| found.take(at).into_iter().collect())
    }

    fn bounds(low: &str, high: &str) -> String {
        format!(
            r#"{{"numRecords":4,"minValues":{{"col-a":{low}}},"maxValues":{{"col-a":{high}}},"nullCount":{{"col-a":1}}}}"#
        )
    }

    #[test]
    fn bounds_stand_for_ranges() {
        let time = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
        let (ntz, utc) = (time(None), time(Some("UTC")));
        for (kind, low, high, kept, not) in [
            (DataType::Int64, "1", "5", "a = 5", "a > 5"),
            (DataType::Utf8View, r#""b""#, "\"d\u{fffd}\"", "a = 'd\u{10ffff}'", "a >= 'e'"),
            (DataType::Utf8View, r#""b""#, "\"d\u{fffd}\"", "a = 'd\u{10ffff}e'", "a >= 'e'"),
            (DataType::Utf8View, r#""b""#, "\"d?\u{fffd}\"", "a = 'd\u{1f600}'", "a >= 'e'"),
            (DataType::Float32, "0.1", "0.1", "a > 0.1", "a > 0.2"),
            (DataType::Float64, "0.1", "0.1", "a > 0.1", "a > 0.2"),
            (DataType::Float64, "0.0", "-0.0", "a = 0.0", "a > 1"),
            (DataType::Float64, "-1", "1", "a != 0", "a > 2"),
            (DataType::Decimal128(9, 2), "1.5", "2", "a = '2.00'", "a > '2.00'"),
            (DataType::Decimal128(18, 2), "1.5", "2", "a = '2.00'", "a > '2.00'"),
            (DataType::Date32, r#""2024-01-01""#, r#""2024-01-02""#, "a = '2024-01-02'", "a > '2024-01-02'"),
            (
                ntz.clone(),
                r#""2024-01-01T00:00:00.001""#,
                r#""2024-01-01T00:00:00.001""#,
                "a = '2024-01-01 00:00:00.001999'",
                "a > '2024-01-01 00:00:00.001999'",
            ),
            (
                utc.clone(),
                r#""2024-01-01T01:00:00.000+01:00""#,
                r#""2024-01-01T00:00:00.000Z""#,
                "a = '2024-01-01'",
                "a > '2024-01-01 00:00:01'",
            ),
            (
                utc.clone(),
                r#""1936-12-31T23:19:00.000-00:44""#,
                r#""1936-12-31T23:19:00.000-00:44""#,
                "a = '1937-01-01 00:03:30'",
                "a > '1937-01-01 00:04:30'",
            ),
            (DataType::Boolean, "false", "false", "a = false", "a = true"),
        ] {
            assert!(keeps(kept, kind.clone(), &bounds(low, high)), "{kind} {low} {high} {kept}");
            assert!(!keeps(not, kind.clone(), &bounds(low, high)), "{kind} {low} {high} {not}");
        }
        for (kind, low, high, kept) in [
            (DataType::Float64, r#""NaN""#, r#""NaN""#, "a > 5"),
            (DataType::Float64, "1", r#""NaN""#, "a > 5"),
            (DataType::Date32, r#""1500-01-01""#, r#""1500-01-02""#, "a = '1499-12-31'"),
            (ntz.clone(), r#""1800-01-01T00:00:00""#, r#""1800-01-01T00:00:00""#, "a > '1850-01-01'"),
            // A time with a zone for a column without one, and the reverse.
            (ntz, r#""2024-01-01T00:00:00Z""#, r#""2024-01-01T00:00:00Z""#, "a > '2025-01-01'"),
            (utc, r#""2024-01-01T00:00:00""#, r#""2024-01-01T00:00:00""#, "a > '2025-01-01'"),
            (DataType::Decimal128(38, 0), "1e30", "1e30", "a > 5"),
            // Of -10^19 and 10^19.
            (DataType::Decimal128(38, 0), "-9223372036854775808", "9223372036854775807", "a = 10000000000000000000"),
            (DataType::Decimal128(19, 0), "-5", "5", "a > 7"),
            (DataType::Int64, "5", "1", "a > 7"),
            (DataType::Int64, "null", "5", "a > 7"),
            (DataType::Int64, r#""x""#, "5", "a > 7"),
            (DataType::BinaryView, r#""a""#, r#""b""#, "a > 'c'"),
        ] {
            assert!(keeps(kept, kind.clone(), &bounds(low, high)), "{kind} {low} {high} {kept}");
        }
        let narrow = f64::from(0.1_f32);
        assert!(keeps(&format!("a = {narrow}"), DataType::Float64, &bounds("0.1", "0.1")), "of 32 bits once");
    }

    #[test]
    fn nulls_count_of_columns_and_not_of_members() {
        let json = r#"{"numRecords":4,"minValues":{"col-s":{"col-x":1}},"maxValues":{"col-s":{"col-x":5}},
            "nullCount":{"col-a":4,"col-s":{"col-x":0}}}"#;
        let keeps = |filter| keeps(filter, DataType::Int64, json);
        assert!(!keeps("a = 1") && keeps("a is null") && !keeps("a is not null"));
        assert!(keeps("s.x = 1") && !keeps("s.x = 7") && keeps("s.x is null"));
        let sieve = sieve("a = 1", DataType::Int64);
        for none in ["", "{}", "[]", r#"{"numRecords":-1}"#, r#"{"numRecords":"4"}"#] {
            assert!(Statistics::parse(none, &sieve).is_none(), "{none}");
        }
    }
}
