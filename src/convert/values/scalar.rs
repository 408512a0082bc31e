//! One strict parser for each type, which all text formats use: exactly this value, or the reason for refusing it.
//!
//! Nothing is rounded to an integer, wrapped, truncated, shifted or taken for something similar. If the user gave the type, the text is
//! read in its light: leading zeros and quotes of a number do not matter, and an instant with any offset is that instant.

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanBuilder, LargeStringBuilder, PrimitiveBuilder, StringBuilder,
    StringViewBuilder,
};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type, i256,
};
use half::f16;
use std::sync::Arc;

use super::clock::{self, Instant, Why};
use super::timezone;
use crate::schema::Odd;

const NO_INTEGER: Why = "it is not an integer";
const NO_NUMBER: Why = "it is not a number";
const ZEROS: Why = "its leading zeros would be lost";
const BEYOND: Why = "it is beyond what the type can hold";

/// Parses an integer.
pub(crate) fn integer(text: &str, given: bool) -> Result<i128, Why> {
    let bare = text.strip_prefix('-').unwrap_or(text);
    let bare = if given { bare.strip_prefix('+').unwrap_or(bare) } else { bare };
    if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(match decimal(text, given) {
            Ok(_) => "it has a fraction or an exponent, which integers have not",
            Err(_) => NO_INTEGER,
        });
    }
    if !given && bare.len() > 1 && bare.starts_with('0') {
        return Err(ZEROS);
    }
    if !given && text == "-0" {
        return Err("the sign of its zero would be lost");
    }
    text.parse().map_err(|_| BEYOND)
}

/// The parts of a decimal number.
struct Decimal<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    /// True if it has neither point nor exponent.
    integer: bool,
    exponent: i64,
}

fn decimal(text: &str, given: bool) -> Result<Decimal<'_>, Why> {
    let (negative, bare) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') if given => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    let (mantissa, power) = match bare.find(['e', 'E']) {
        Some(at) => (bare.get(..at).unwrap_or_default(), bare.get(at + 1..)),
        None => (bare, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !number(whole) || !number(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return Err(NO_NUMBER);
    }
    let exponent = match power {
        None => 0,
        Some(power) => {
            let digits = power.strip_prefix(['+', '-']).unwrap_or(power);
            if digits.is_empty() || !number(digits) {
                return Err(NO_NUMBER);
            }
            power.parse::<i64>().map_err(|_| BEYOND)?
        }
    };
    if !given && whole.len() > 1 && whole.starts_with('0') {
        return Err(ZEROS);
    }
    Ok(Decimal { negative, whole, fraction, integer: power.is_none() && mantissa.len() == whole.len(), exponent })
}

/// Parses a float: the nearest one to a fraction, and exactly an integer. `nearest` parses it, `digits` is the number of digits of
/// integers that are always exact.
fn float<T: Copy + Into<f64>>(
    text: &str,
    given: bool,
    digits: usize,
    nearest: impl Fn(&str) -> Option<T>,
) -> Result<T, Why> {
    if matches!(text, "NaN" | "nan" | "inf" | "-inf") {
        return nearest(text).ok_or(NO_NUMBER);
    }
    let parts = decimal(text, given)?;
    let value = nearest(text).ok_or(NO_NUMBER)?;
    let wide: f64 = value.into();
    if !wide.is_finite() {
        return Err(BEYOND);
    }
    if wide == 0.0 && parts.whole.bytes().chain(parts.fraction.bytes()).any(|digit| digit != b'0') {
        return Err("the type can only hold it as zero");
    }
    let whole = parts.whole.trim_start_matches('0');
    if parts.integer && whole.len() > digits && format!("{:.0}", wide.abs()) != whole {
        return Err("it is an integer that the type cannot hold exactly");
    }
    Ok(value)
}

/// Parses a `float64`.
pub(crate) fn float64(text: &str, given: bool) -> Result<f64, Why> {
    float(text, given, 15, |text| text.parse().ok())
}

fn float32(text: &str, given: bool) -> Result<f32, Why> {
    float(text, given, 7, |text| text.parse().ok())
}

fn float16(text: &str, given: bool) -> Result<f16, Why> {
    float(text, given, 3, |text| text.parse::<f64>().ok().map(|number| f16::from_f32(number.odd())))
}

/// Parses a decimal number as an integer: the number times ten to the power of `scale`.
pub(crate) fn scaled(text: &str, precision: u8, scale: i8, given: bool) -> Result<i256, Why> {
    let parts = decimal(text, given)?;
    let joined = [parts.whole, parts.fraction].concat();
    let digits = joined.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(i256::ZERO);
    }
    let shift = parts.exponent.saturating_add(i64::from(scale)).saturating_sub(parts.fraction.len() as i64);
    let held = usize::from(precision);
    let digits = if shift < 0 {
        let cut = usize::try_from(shift.unsigned_abs()).unwrap_or(usize::MAX);
        let at = digits.len().checked_sub(cut).ok_or("it has more decimals than the type")?;
        let (kept, lost) = digits.split_at_checked(at).unwrap_or((digits, ""));
        if lost.bytes().any(|digit| digit != b'0') {
            return Err("it has more decimals than the type");
        }
        kept.to_owned()
    } else {
        let zeros = usize::try_from(shift).unwrap_or(usize::MAX);
        if zeros > held {
            return Err(BEYOND);
        }
        digits.to_owned() + &"0".repeat(zeros)
    };
    if digits.len() > held {
        return Err(BEYOND);
    }
    let value = i256::from_string(&digits).ok_or(BEYOND)?;
    Ok(if parts.negative { value.checked_neg().ok_or(BEYOND)? } else { value })
}

/// A scaled decimal in the integer that holds those of its precision.
fn narrow<T: TryFrom<i128>>(scaled: i256) -> Result<T, Why> {
    scaled.to_i128().and_then(|scaled| T::try_from(scaled).ok()).ok_or(BEYOND)
}

/// Parses a boolean: `true` or `false`, in lower or upper case; one or zero if the type was given.
pub(crate) fn boolean(text: &str, given: bool) -> Result<bool, Why> {
    match text {
        "true" | "True" | "TRUE" => Ok(true),
        "false" | "False" | "FALSE" => Ok(false),
        "1" if given => Ok(true),
        "0" if given => Ok(false),
        _ => Err("it is neither true nor false"),
    }
}

/// Parses a timestamp as a count of `unit`: with an offset if the type has a zone, without one if it has none.
fn timestamp(text: &str, unit: TimeUnit, of: Option<&str>, given: bool) -> Result<i64, Why> {
    let instant = Instant::parse(text)?;
    match (instant.offset, of) {
        (None, Some(_)) => return Err("it has no offset, the type is of instants"),
        (Some(_), None) => return Err("its offset would be lost; a type such as timestamp[us, UTC] keeps the instant"),
        (Some(offset), Some(zone)) if !given && timezone::seconds(zone) != Some(offset) => {
            return Err("its offset is another one than that of the type");
        }
        _ => {}
    }
    instant.count(unit)
}

/// An array that grows by tokens.
pub(crate) trait Growing: Send {
    /// Adds the value of a token.
    ///
    /// # Errors
    /// The reason that the token is not such a value; nothing is added then.
    fn push(&mut self, text: &str) -> Result<(), Why>;

    /// Adds a null.
    fn null(&mut self);

    /// Returns the array of the values added since the last call.
    fn finish(&mut self) -> ArrayRef;
}

struct Values<T: ArrowPrimitiveType, F> {
    builder: PrimitiveBuilder<T>,
    read: F,
}

impl<T: ArrowPrimitiveType, F: Fn(&str) -> Result<T::Native, Why> + Send> Growing for Values<T, F> {
    fn push(&mut self, text: &str) -> Result<(), Why> {
        self.builder.append_value((self.read)(text)?);
        Ok(())
    }

    fn null(&mut self) {
        self.builder.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}

struct Booleans(BooleanBuilder, bool);

impl Growing for Booleans {
    fn push(&mut self, text: &str) -> Result<(), Why> {
        self.0.append_value(boolean(text, self.1)?);
        Ok(())
    }

    fn null(&mut self) {
        self.0.append_null();
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.0.finish())
    }
}

macro_rules! texts {
    ($builder:ty) => {
        impl Growing for $builder {
            fn push(&mut self, text: &str) -> Result<(), Why> {
                self.append_value(text);
                Ok(())
            }

            fn null(&mut self) {
                self.append_null();
            }

            fn finish(&mut self) -> ArrayRef {
                Arc::new(<$builder>::finish(self))
            }
        }
    };
}

texts!(StringBuilder);
texts!(LargeStringBuilder);
texts!(StringViewBuilder);

/// Makes an empty array of `data_type`; `None` if no token can be a value of it. `given` marks a type given by the user.
pub(crate) fn growing(data_type: &DataType, given: bool) -> Option<Box<dyn Growing>> {
    fn values<T: ArrowPrimitiveType>(
        data_type: &DataType,
        read: impl Fn(&str) -> Result<T::Native, Why> + Send + 'static,
    ) -> Option<Box<dyn Growing>> {
        let builder = PrimitiveBuilder::<T>::new().with_data_type(data_type.clone());
        Some(Box::new(Values { builder, read }))
    }
    macro_rules! integers {
        ($type:ty) => {
            values::<$type>(data_type, move |text| integer(text, given)?.try_into().map_err(|_| BEYOND))
        };
    }
    macro_rules! instants {
        ($type:ty, $unit:expr, $zone:expr) => {{
            let zone = $zone.clone();
            values::<$type>(data_type, move |text| timestamp(text, $unit, zone.as_deref(), given))
        }};
    }
    let small = |text: &str, unit| clock::time_count(text, unit)?.try_into().map_err(|_| BEYOND);
    match data_type {
        DataType::Boolean => Some(Box::new(Booleans(BooleanBuilder::new(), given))),
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Float16 => values::<Float16Type>(data_type, move |text| float16(text, given)),
        DataType::Float32 => values::<Float32Type>(data_type, move |text| float32(text, given)),
        DataType::Float64 => values::<Float64Type>(data_type, move |text| float64(text, given)),
        DataType::Utf8 => Some(Box::new(StringBuilder::new())),
        DataType::LargeUtf8 => Some(Box::new(LargeStringBuilder::new())),
        DataType::Utf8View => Some(Box::new(StringViewBuilder::new())),
        DataType::Date32 => values::<Date32Type>(data_type, |text| clock::days(text)?.try_into().map_err(|_| BEYOND)),
        DataType::Date64 => values::<Date64Type>(data_type, |text| match clock::days(text) {
            Ok(days) => days.checked_mul(86_400_000).ok_or(BEYOND),
            Err(_) => timestamp(text, TimeUnit::Millisecond, None, true),
        }),
        DataType::Timestamp(TimeUnit::Second, zone) => instants!(TimestampSecondType, TimeUnit::Second, zone),
        DataType::Timestamp(TimeUnit::Millisecond, zone) => {
            instants!(TimestampMillisecondType, TimeUnit::Millisecond, zone)
        }
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            instants!(TimestampMicrosecondType, TimeUnit::Microsecond, zone)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            instants!(TimestampNanosecondType, TimeUnit::Nanosecond, zone)
        }
        DataType::Time32(TimeUnit::Second) => {
            values::<Time32SecondType>(data_type, move |text| small(text, TimeUnit::Second))
        }
        DataType::Time32(_) => {
            values::<Time32MillisecondType>(data_type, move |text| small(text, TimeUnit::Millisecond))
        }
        DataType::Time64(TimeUnit::Nanosecond) => {
            values::<Time64NanosecondType>(data_type, |text| clock::time_count(text, TimeUnit::Nanosecond))
        }
        DataType::Time64(_) => {
            values::<Time64MicrosecondType>(data_type, |text| clock::time_count(text, TimeUnit::Microsecond))
        }
        DataType::Decimal32(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            values::<Decimal32Type>(data_type, move |text| narrow(scaled(text, precision, scale, given)?))
        }
        DataType::Decimal64(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            values::<Decimal64Type>(data_type, move |text| narrow(scaled(text, precision, scale, given)?))
        }
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            values::<Decimal128Type>(data_type, move |text| narrow(scaled(text, precision, scale, given)?))
        }
        DataType::Decimal256(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            values::<Decimal256Type>(data_type, move |text| scaled(text, precision, scale, given))
        }
        _ => None,
    }
}

/// Quotes and shortens a token for display.
pub(crate) fn shown(token: &str) -> String {
    let short: String = token.chars().take(60).collect();
    let more = if short.len() < token.len() { "..." } else { "" };
    format!("{short:?}{more}")
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use arrow::util::display::array_value_to_string;

    use super::*;
    use crate::convert::types::parse_type;

    /// Returns the value that a token is parsed as, or the reason for refusing it.
    fn read(text: &str, of: &str, given: bool) -> Result<String, Why> {
        let mut growing = growing(&parse_type(of).unwrap(), given).unwrap();
        growing.push(text)?;
        let array = growing.finish();
        assert_eq!((array.len(), array.null_count()), (1, 0));
        Ok(array_value_to_string(&array, 0).unwrap())
    }

    #[test]
    fn a_token_is_exactly_a_value_or_refused() {
        for (text, of, value) in [
            ("-9223372036854775808", "int64", "-9223372036854775808"),
            ("18446744073709551615", "uint64", "18446744073709551615"),
            ("127", "int8", "127"),
            ("0.1", "float64", "0.1"),
            (".5", "float64", "0.5"),
            ("-2e3", "float64", "-2000.0"),
            ("9007199254740992", "float64", "9007199254740992.0"),
            ("100000000000000000000", "float64", "1e20"),
            ("0.1", "float32", "0.1"),
            ("65519.999999", "float16", "65504"),
            ("16777216", "float32", "16777216.0"),
            ("nan", "float64", "NaN"),
            ("True", "bool", "true"),
            ("2024-02-29", "date32", "2024-02-29"),
            ("2024-02-29T23:59:59.123456", "timestamp[us]", "2024-02-29T23:59:59.123456"),
            ("2024-02-29T23:59:59-05:00", "timestamp[us, -05:00]", "2024-02-29T23:59:59-05:00"),
            ("23:59:59.000000001", "time64[ns]", "23:59:59.000000001"),
            ("-1.50", "decimal(10, 2)", "-1.50"),
            ("15e-1", "decimal(10, 2)", "1.50"),
            ("1.2300000", "decimal(3, 2)", "1.23"),
            ("00.001", "string", "00.001"),
        ] {
            assert_eq!(read(text, of, false).as_deref(), Ok(value), "{text} as {of}");
        }
        for (text, of) in [
            ("3.7", "int64"),
            ("3.0", "int64"),
            ("1e3", "int64"),
            ("-0", "int64"),
            ("01234", "int64"),
            ("+7", "int64"),
            ("7 ", "int64"),
            ("128", "int8"),
            ("-1", "uint8"),
            ("9223372036854775808", "int64"),
            ("99999999999999999999999999999999999999999", "int64"),
            ("9007199254740993", "float64"),
            ("16777217", "float32"),
            ("1e400", "float64"),
            ("1e-400", "float64"),
            ("1e39", "float32"),
            ("65520", "float16"),
            ("007.5", "float64"),
            ("infinity", "float64"),
            ("0x10", "float64"),
            ("1_000", "float64"),
            ("no", "bool"),
            ("on", "bool"),
            ("1", "bool"),
            ("2024-02-30", "date32"),
            ("2024-06-01T23:30:00", "date32"),
            ("2024-06-01T23:30:00-05:00", "date32"),
            ("2024-06-01T23:30:00-05:00", "timestamp[us]"),
            ("2024-06-01T23:30:00Z", "timestamp[us]"),
            ("2024-06-01T23:30:00", "timestamp[us, UTC]"),
            ("2024-06-01T23:30:00-05:00", "timestamp[us, UTC]"),
            ("2024-06-01T23:30:00.123456789", "timestamp[us]"),
            ("2024-06-01T23:30:00.1", "timestamp[s]"),
            ("1.234", "decimal(10, 2)"),
            ("123456789.00", "decimal(10, 2)"),
            ("1e999999999999", "decimal(10, 2)"),
            ("1e-999999999999", "decimal(10, 2)"),
        ] {
            assert!(read(text, of, false).is_err(), "{text} as {of}: {:?}", read(text, of, false));
        }
    }

    #[test]
    fn what_people_say_of_a_column_counts() {
        for (text, of, value) in [
            ("007", "int32", "7"),
            ("+7", "int8", "7"),
            ("007.50", "float64", "7.5"),
            ("+007.5", "decimal(4, 1)", "7.5"),
            ("1", "bool", "true"),
            ("2024-06-01T23:30:00-05:00", "timestamp[us, UTC]", "2024-06-02T04:30:00Z"),
        ] {
            let shown = if of.contains("UTC") { "timestamp[us, +00:00]" } else { of };
            assert_eq!(read(text, shown, true).as_deref(), Ok(value), "{text} as {of}");
        }
        for (text, of) in [("3.7", "int64"), ("yes", "bool"), ("2024-06-01T23:30:00Z", "timestamp[us]")] {
            assert!(read(text, of, true).is_err(), "{text} as {of}");
        }
    }
}
