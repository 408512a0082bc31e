//! Literals on the number line of a column: exact, whatever the column's width, scale or unit.
//!
//! A column of integers, decimals, dates or timestamps holds whole numbers of some unit. A literal falls on one of them,
//! between two, or beyond all: knowing which, every comparison can be made on the column's own numbers without rounding.

use arrow::datatypes::{DataType, TimeUnit};

use super::digits::{Digits, Place};
use super::node::Literal;

/// A literal as a column of some type sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Point {
    /// Among whole numbers of the column's unit; booleans are 0 and 1.
    Whole(Place),
    /// Among floats.
    Float(Spot),
    /// Bytes in unsigned order; strings are their UTF-8.
    Bytes(Vec<u8>),
    /// The column has only nulls.
    Null,
}

/// A value in the unit that tests compare in.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) enum Scalar {
    /// In the unit of the column; booleans are 0 and 1.
    Whole(i128),
    Float(f64),
    Bytes(Vec<u8>),
}

/// Place of a literal among the 64-bit floats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spot {
    At(f64),
    /// Between these neighbours.
    Between(f64, f64),
}

/// Reason why a literal cannot be compared with a column.
#[derive(Debug, PartialEq)]
pub(super) enum Wrong {
    /// The type of the column has no order here.
    Column,
    /// The literal is of another kind; the text says what would be right.
    Literal(&'static str),
}

impl Point {
    /// The literal as a column of `data_type` (no dictionary) sees it.
    pub(super) fn of(literal: &Literal, data_type: &DataType) -> Result<Self, Wrong> {
        use DataType as D;
        let place = match (data_type, literal) {
            (D::Null, _) => return Ok(Self::Null),
            (D::Boolean, Literal::Bool(value)) => Some(Place::At(i128::from(*value))),
            (D::Boolean, _) => return Err(Wrong::Literal("true or false")),
            (kind, Literal::Int(_) | Literal::Float(_) | Literal::Exact(..)) if kind.is_integer() => number(literal, 0),
            (kind, _) if kind.is_integer() => return Err(Wrong::Literal("a number")),
            (D::Float16 | D::Float32 | D::Float64, Literal::Int(value)) => return Ok(Self::Float(spot(*value))),
            (D::Float16 | D::Float32 | D::Float64, Literal::Float(value) | Literal::Exact(_, value)) => {
                return Ok(Self::Float(Spot::At(*value)));
            }
            (D::Float16 | D::Float32 | D::Float64, _) => return Err(Wrong::Literal("a number")),
            (
                D::Decimal32(_, scale) | D::Decimal64(_, scale) | D::Decimal128(_, scale) | D::Decimal256(_, scale),
                Literal::Int(_) | Literal::Float(_) | Literal::Exact(..) | Literal::Text(_),
            ) => {
                let place = number(literal, *scale).ok_or(Wrong::Literal("a number, or its digits in quotes"))?;
                if matches!((data_type, place), (D::Decimal256(..), Place::Below | Place::Above)) {
                    return Err(Wrong::Literal("a number of at most 38 digits, those after the point included"));
                }
                Some(place)
            }
            (D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..), _) => {
                return Err(Wrong::Literal("a number, or its digits in quotes"));
            }
            (D::Date32, Literal::Text(text)) => date(text).map(|nanos| in_units(nanos, NANOS_PER_DAY)),
            (D::Date64, Literal::Text(text)) => date(text).map(|nanos| in_units(nanos, 1_000_000)),
            (D::Date32 | D::Date64, _) => return Err(Wrong::Literal("a date in quotes: '2024-05-31'")),
            (D::Timestamp(unit, zone), Literal::Text(text)) => {
                let nanos = instant(text, zone.as_deref())?;
                Some(in_units(nanos, nanos_per(*unit)))
            }
            (D::Timestamp(..), _) => return Err(Wrong::Literal("a timestamp in quotes: '2024-05-31 12:00:00'")),
            (D::Time32(unit) | D::Time64(unit), Literal::Text(text)) => {
                let nanos = whole_time(text).ok_or(Wrong::Literal("a time in quotes: '12:00:00'"))?;
                Some(in_units(nanos, nanos_per(*unit)))
            }
            (D::Time32(_) | D::Time64(_), _) => return Err(Wrong::Literal("a time in quotes: '12:00:00'")),
            (D::Utf8 | D::LargeUtf8 | D::Utf8View, Literal::Text(text))
            | (D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_), Literal::Text(text)) => {
                return Ok(Self::Bytes(text.clone().into_bytes()));
            }
            (D::Utf8 | D::LargeUtf8 | D::Utf8View, _)
            | (D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_), _) => {
                return Err(Wrong::Literal("a string in single quotes"));
            }
            _ => return Err(Wrong::Column),
        };
        place.map(Self::Whole).ok_or(Wrong::Literal("a date in quotes: '2024-05-31'"))
    }

    /// The text of a partition directory as a value of `data_type`; `None` if it is no exact value of it.
    pub(super) fn of_partition(text: &str, data_type: &DataType) -> Option<Self> {
        let literal = match data_type {
            DataType::Boolean => Literal::Bool(text.to_ascii_lowercase().parse().ok()?),
            DataType::Float16 | DataType::Float32 | DataType::Float64 => Literal::Float(text.parse().ok()?),
            kind if kind.is_integer() => Literal::Int(text.parse().ok()?),
            _ => Literal::Text(text.to_owned()),
        };
        Self::of(&literal, data_type).ok()
    }
}

pub(super) const NANOS_PER_DAY: i128 = 86_400_000_000_000;

/// Nanoseconds in one unit of time.
pub(super) fn nanos_per(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

fn in_units(nanos: i128, unit: i128) -> Place {
    let whole = nanos.div_euclid(unit);
    if nanos.rem_euclid(unit) == 0 { Place::At(whole) } else { Place::After(whole) }
}

/// An integer among the floats.
fn spot(value: i128) -> Spot {
    let near = value as f64;
    // Literals have at most 39 digits, so `near` is finite; 2^127 itself would saturate on the way back.
    let back = if near >= i128::MAX as f64 { None } else { Some(near as i128) };
    match back {
        Some(back) if back == value => Spot::At(near),
        Some(back) if back < value => Spot::Between(near, near.next_up()),
        _ => Spot::Between(near.next_down(), near),
    }
}

/// A number in units of `10^-scale`; `None` if a text is not a number.
fn number(literal: &Literal, scale: i8) -> Option<Place> {
    let place = |digits: &Digits| digits.place(scale);
    match literal {
        Literal::Int(value) => Digits::of(&value.to_string(), 0).as_ref().map(place),
        Literal::Float(value) => Digits::of_float(*value).as_ref().map(place),
        Literal::Exact(digits, _) => Some(place(digits)),
        Literal::Text(text) => Digits::of(text.trim(), 0).as_ref().map(place),
        Literal::Bool(_) => None,
    }
}

/// A date, or a timestamp without offset, in nanoseconds since 1970.
fn date(text: &str) -> Option<i128> {
    match timestamp(text.trim())? {
        (nanos, None) => Some(nanos),
        _ => None,
    }
}

/// A timestamp for a column with or without a time zone, in nanoseconds since 1970 (UTC where there is a zone).
fn instant(text: &str, zone: Option<&str>) -> Result<i128, Wrong> {
    let wrong = Wrong::Literal("a timestamp in quotes: '2024-05-31 12:00:00'");
    let (nanos, offset) = timestamp(text.trim()).ok_or(wrong)?;
    match (zone, offset) {
        (None, None) => Ok(nanos),
        (None, Some(_)) => Err(Wrong::Literal("a timestamp without an offset: the column has no time zone")),
        (Some(_), Some(offset)) => Ok(nanos - offset),
        (Some("UTC" | "Z" | "+00:00" | "Etc/UTC" | "GMT"), None) => Ok(nanos),
        (Some(_), None) => Err(Wrong::Literal(
            "a timestamp with an offset, as in '2024-05-31T12:00:00+02:00': the column has a time zone",
        )),
    }
}

/// `YYYY-MM-DD[(T| )HH:MM[:SS[.fraction]][Z|+HH[:MM]|-HH[:MM]]]`: local nanoseconds since 1970, and the offset's.
fn timestamp(text: &str) -> Option<(i128, Option<i128>)> {
    let (day, rest) = text.split_at_checked(10)?;
    let mut parts = day.split('-');
    let (year, month, day) = (fixed(parts.next()?, 4)?, fixed(parts.next()?, 2)?, fixed(parts.next()?, 2)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    let midnight = days_since_1970(year, month, day) * NANOS_PER_DAY;
    if rest.is_empty() {
        return Some((midnight, None));
    }
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let end = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at_checked(end)?;
    let nanos = midnight + time_of_day(clock.trim_end())?;
    let offset = match zone {
        "" => None,
        "Z" | "z" => Some(0),
        _ => {
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            let digits: String = zone.get(1..)?.split(':').collect();
            let (hours, minutes) = digits.split_at_checked(2)?;
            let minutes = if minutes.is_empty() { 0 } else { fixed(minutes, 2)? };
            let hours = fixed(hours, 2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            Some(sign * (hours * 60 + minutes) * 60 * 1_000_000_000)
        }
    };
    Some((nanos, offset))
}

fn whole_time(text: &str) -> Option<i128> {
    time_of_day(text.trim())
}

/// `HH:MM[:SS[.fraction]]` in nanoseconds.
fn time_of_day(text: &str) -> Option<i128> {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = clock.split(':');
    let (hour, minute) = (fixed(parts.next()?, 2)?, fixed(parts.next()?, 2)?);
    let second = match parts.next() {
        Some(second) => fixed(second, 2)?,
        None if text.contains('.') => return None,
        None => 0,
    };
    let digits = fraction.len();
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 59 || !(1..=9).contains(&digits) {
        return None;
    }
    let fraction = fixed(fraction, digits)? * 10_i128.pow(9 - u32::try_from(digits).ok()?);
    Some(((hour * 60 + minute) * 60 + second) * 1_000_000_000 + fraction)
}

/// Exactly `digits` decimal digits.
fn fixed(text: &str, digits: usize) -> Option<i128> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn days_in(year: i128, month: i128) -> i128 {
    match month {
        2 if (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the Gregorian calendar.
pub(in crate::dataset) fn days_since_1970(year: i128, month: i128, day: i128) -> i128 {
    // Years that start in March put the leap day last, so that each month starts at a fixed offset.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_exact_where_columns_are() {
        assert_eq!(number(&Literal::Float(0.1), 2), Some(Place::At(10)));
        assert_eq!(number(&Literal::Float(1e300), 0), Some(Place::Above));
        assert_eq!(number(&Literal::Float(-1e-300), 0), Some(Place::After(-1)));
        for whole in [1_i128 << 62, -(1 << 62), (1 << 53) + 2, 1 << 126] {
            assert_eq!(number(&Literal::Float(whole as f64), 0), Some(Place::At(whole)));
        }
        let at = |literal: &Literal, kind: &DataType| Point::of(literal, kind);
        let written = Literal::number("4611686018427387953.5", 2f64.powi(62));
        assert_eq!(at(&written, &DataType::Int64), Ok(Point::Whole(Place::After((1 << 62) + 49))));
        assert_eq!(at(&written, &DataType::Float32), Ok(Point::Float(Spot::At(2f64.powi(62)))));
        let price = Literal::number("12345678901234567.89", 12_345_678_901_234_568.0);
        assert_eq!(at(&price, &DataType::Decimal128(20, 2)), Ok(Point::Whole(Place::At(1_234_567_890_123_456_789))));
    }

    #[test]
    fn integers_among_floats() {
        assert_eq!(spot(3), Spot::At(3.0));
        let two53 = 9_007_199_254_740_992_i128;
        assert_eq!(spot(two53 + 1), Spot::Between(two53 as f64, (two53 + 2) as f64));
        assert_eq!(spot(-two53 - 1), Spot::Between(-(two53 + 2) as f64, -two53 as f64));
        let Spot::Between(low, high) = spot(i128::MAX) else { panic!() };
        assert!(low < high && high == 2f64.powi(127));
        assert_eq!(spot(i128::MIN), Spot::At(-(2f64.powi(127))));
    }

    #[test]
    fn instants() {
        let day = NANOS_PER_DAY;
        for (text, nanos, offset) in [
            ("1970-01-01", 0, None),
            ("1970-01-02 00:00", day, None),
            ("1969-12-31T23:59:59.5", -500_000_000, None),
            ("2000-03-01", 11_017 * day, None),
            ("2024-02-29T00:00:00Z", 19_782 * day, Some(0)),
            ("1970-01-01 01:00:00.000000001+01:00", 3_600_000_000_001, Some(3_600_000_000_000)),
            ("1970-01-01 00:00-0130", 0, Some(-5_400_000_000_000)),
            ("0000-01-01", -719_528 * day, None),
            ("9999-12-31", 2_932_896 * day, None),
        ] {
            assert_eq!(timestamp(text), Some((nanos, offset)), "{text}");
        }
        for text in [
            "",
            "2023-02-29",
            "2024-13-01",
            "2024-1-01",
            "2024-01-01X",
            "2024-01-01 24:00",
            "2024-01-01 1:00",
            "é024-01-01",
        ] {
            assert_eq!(timestamp(text), None, "{text}");
        }
        assert_eq!(timestamp("2024-01-01 00:00:00.1234567890"), None);
        assert_eq!(timestamp("2024-01-01 00:00.5"), None);
    }

    #[test]
    fn zones_are_not_guessed() {
        let at = |text: &str, zone: Option<&str>| {
            let kind = DataType::Timestamp(TimeUnit::Second, zone.map(Into::into));
            Point::of(&Literal::Text(text.to_owned()), &kind)
        };
        let hour = |n: i128| Ok(Point::Whole(Place::At(n * 3600)));
        assert_eq!(at("1970-01-01 01:00", None), hour(1));
        assert_eq!(at("1970-01-01 01:00", Some("UTC")), hour(1));
        assert_eq!(at("1970-01-01T01:00+02:00", Some("Europe/Berlin")), hour(-1));
        assert!(at("1970-01-01 01:00", Some("Europe/Berlin")).is_err());
        assert!(at("1970-01-01 01:00Z", None).is_err());
        assert_eq!(at("1970-01-01 00:00:00.5", None), Ok(Point::Whole(Place::After(0))));
    }
}
