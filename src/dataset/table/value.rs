//! Values of partition columns, which a log has as text.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int64Array, PrimitiveArray,
    StringViewArray,
};
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, DecimalType, TimeUnit, TimestampMicrosecondType};

use crate::dataset::filter::Scalar;
use crate::schema::cast;

/// Days from 0001-01-01 to 1970-01-01 on the calendar of today.
const EPOCH: i64 = 719_162;

/// The value of type `data_type` that `text` stands for; none if it stands for none. Times are in UTC unless they say otherwise.
pub(in crate::dataset) fn exact(text: &str, data_type: &DataType) -> Option<Scalar> {
    let whole = |value: i64| Some(Scalar::Whole(value.into()));
    match data_type {
        DataType::Utf8View => Some(Scalar::Bytes(text.as_bytes().to_vec())),
        DataType::BinaryView => Some(Scalar::Bytes(binary(text))),
        DataType::Boolean => match text {
            "true" => whole(1),
            "false" => whole(0),
            _ => None,
        },
        DataType::Float32 => Some(Scalar::Float(text.parse::<f32>().ok()?.into())),
        DataType::Float64 => Some(Scalar::Float(text.parse().ok()?)),
        DataType::Int8 => whole(text.parse::<i8>().ok()?.into()),
        DataType::Int16 => whole(text.parse::<i16>().ok()?.into()),
        DataType::Int32 => whole(text.parse::<i32>().ok()?.into()),
        DataType::Int64 => whole(text.parse().ok()?),
        DataType::Date32 => whole(i32::try_from(day(text)?).ok()?.into()),
        DataType::Timestamp(TimeUnit::Microsecond, _) => whole(instant(text)?),
        DataType::Decimal128(precision, scale) => {
            let unscaled = decimal(text, *scale)?;
            Decimal128Type::is_valid_decimal_precision(unscaled, *precision).then_some(Scalar::Whole(unscaled))
        }
        _ => None,
    }
}

/// The same value as an array of `data_type`.
pub(in crate::dataset) fn parse(text: &str, data_type: &DataType) -> Option<ArrayRef> {
    Some(match (exact(text, data_type)?, data_type) {
        (Scalar::Bytes(_), DataType::Utf8View) => Arc::new(StringViewArray::from(vec![text])),
        (Scalar::Bytes(bytes), _) => Arc::new(BinaryViewArray::from(vec![bytes.as_slice()])),
        (Scalar::Float(value), DataType::Float32) => Arc::new(Float32Array::from(vec![value as f32])),
        (Scalar::Float(value), _) => Arc::new(Float64Array::from(vec![value])),
        (Scalar::Whole(value), DataType::Boolean) => Arc::new(BooleanArray::from(vec![value != 0])),
        (Scalar::Whole(value), DataType::Date32) => {
            Arc::new(PrimitiveArray::<Date32Type>::from_value(i32::try_from(value).ok()?, 1))
        }
        (Scalar::Whole(value), DataType::Timestamp(_, zone)) => {
            let times = PrimitiveArray::<TimestampMicrosecondType>::from_value(i64::try_from(value).ok()?, 1);
            Arc::new(times.with_timezone_opt(zone.clone()))
        }
        (Scalar::Whole(value), DataType::Decimal128(precision, scale)) => {
            Arc::new(Decimal128Array::from_value(value, 1).with_precision_and_scale(*precision, *scale).ok()?)
        }
        (Scalar::Whole(value), _) => {
            let value: ArrayRef = Arc::new(Int64Array::from(vec![i64::try_from(value).ok()?]));
            cast(&value, data_type).ok()?
        }
    })
}

/// The bytes that `text` stands for: those of escapes such as `\u00FF`, if it has nothing else, as delta-rs writes them; its own, as Spark does.
pub(in crate::dataset) fn binary(text: &str) -> Vec<u8> {
    let byte = |escape: &[u8]| {
        let [first, second] = *escape.strip_prefix(b"\\u00")? else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        u8::try_from(digit(first)? * 16 + digit(second)?).ok()
    };
    text.as_bytes().chunks(6).map(byte).collect::<Option<_>>().unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Days from 1970-01-01 to a date such as `2021-09-08`.
fn day(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut parts = digits.split('-');
    let (year, month, day) = (number(parts.next()?, 9)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let year = if negative { -year } else { year };
    let leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = lengths.get(..usize::try_from(month).ok()?.checked_sub(1)?)?;
    if parts.next().is_some() || !(1..=*lengths.get(before.len())?).contains(&day) {
        return None;
    }
    let past = year - 1;
    let days = past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    Some(days + before.iter().sum::<i64>() + day - 1 - EPOCH)
}

/// Microseconds from 1970 to a time such as `2021-09-08 11:11:11.123456`, `2021-09-08T11:11:11Z` or `.. +02:00`; of midnight for a date
/// alone.
pub(super) fn instant(text: &str) -> Option<i64> {
    let text = text.trim();
    let (date, time) = text.find(['T', ' ']).map_or((text, ""), |at| (&text[..at], &text[at + 1..]));
    let mut micros = day(date)?.checked_mul(86_400_000_000)?;
    if time.is_empty() {
        return (date.len() == text.len()).then_some(micros);
    }
    let zone = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (time, zone) = (time[..zone].trim_end(), &time[zone..]);
    let (time, fraction) = time.split_once('.').map_or((time, None), |(time, fraction)| (time, Some(fraction)));
    let mut parts = time.split(':');
    let mut part = |most: i64| number(parts.next()?, 2).filter(|part| *part <= most);
    let (hours, minutes, seconds) = (part(23)?, part(59)?, part(59)?);
    if parts.next().is_some() {
        return None;
    }
    micros = micros.checked_add(((hours * 60 + minutes) * 60 + seconds) * 1_000_000)?;
    if let Some(fraction) = fraction {
        let (most, rest) = fraction.split_at_checked(6).unwrap_or((fraction, ""));
        // Digits beyond microseconds would be cut off.
        if fraction.is_empty() || rest.bytes().any(|digit| digit != b'0') {
            return None;
        }
        micros = micros.checked_add(number(most, 6)? * 10_i64.pow(6 - most.len() as u32))?;
    }
    if matches!(zone, "" | "Z" | "z") {
        return Some(micros);
    }
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let offset = number(hours, 2)? * 60 + number(minutes, 2)?;
    let offset = if zone.starts_with('-') { -offset } else { offset };
    micros.checked_sub(offset * 60_000_000)
}

/// `text`, at most so many digits and nothing else.
fn number(text: &str, most: usize) -> Option<i64> {
    let digits = (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A decimal in units of `10^-scale`, if it has no digits beyond them.
fn decimal(text: &str, scale: i8) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // Java writes small ones as 1E-7, and zero of scale 7 as 0E-7.
    let (digits, exponent) = match digits.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let both = format!("{whole}{fraction}");
    if both.is_empty() || !both.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let unscaled: i128 = both.parse().ok()?;
    let shift = i32::from(scale).checked_add(exponent)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs());
    let value = match (unscaled, power) {
        (0, _) => 0,
        (_, Some(power)) if shift >= 0 => unscaled.checked_mul(power)?,
        (_, Some(power)) if unscaled % power == 0 => unscaled / power,
        _ => return None,
    };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use arrow::compute::cast as arrow_cast;
    use arrow::util::display::array_value_to_string;

    use super::*;

    #[test]
    fn days_and_times_are_those_of_arrow() {
        // Its parser is another one.
        for text in ["1970-01-01", "2021-09-08", "2000-02-29", "1899-12-31", "0001-01-01", "9999-12-31", "1600-03-01"] {
            let texts: ArrayRef = Arc::new(StringViewArray::from(vec![text]));
            assert_eq!(
                &parse(text, &DataType::Date32).unwrap(),
                &arrow_cast(&texts, &DataType::Date32).unwrap(),
                "{text}"
            );
        }
        let times = DataType::Timestamp(TimeUnit::Microsecond, None);
        for text in [
            "2021-09-08 11:11:11",
            "1969-12-31 23:59:59.9",
            "1500-01-01T00:00:00.000001",
            "2021-09-08T11:11:11Z",
            "2021-09-08T11:11:11+02:30",
        ] {
            let texts: ArrayRef = Arc::new(StringViewArray::from(vec![text]));
            assert_eq!(&parse(text, &times).unwrap(), &arrow_cast(&texts, &times).unwrap(), "{text}");
        }
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        assert_eq!(parse("1970-01-02", &zoned).unwrap().data_type(), &zoned);
    }

    #[test]
    fn bytes_are_escaped_as_a_whole_or_not_at_all() {
        assert_eq!(binary("\\u00FF\\u0000\\u00e9"), [0xff, 0, 0xe9]);
        for plain in ["", "a", "\u{ff}", "\\u00F", "\\u01FF", "\\u00FG", "\\u00FFx", "x\\u00FF"] {
            assert_eq!(binary(plain), plain.as_bytes());
        }
        let found = parse("\\u00FF", &DataType::BinaryView).unwrap();
        assert_eq!(found.as_any().downcast_ref::<BinaryViewArray>().unwrap().value(0), [0xff]);
        assert_eq!(exact("\\u00FF", &DataType::Utf8View), Some(Scalar::Bytes(b"\\u00FF".to_vec())));
    }

    #[test]
    fn values_are_exact_or_none() {
        let shown = |text: &str, ty: &DataType| parse(text, ty).map(|one| array_value_to_string(&one, 0).unwrap());
        let decimal = DataType::Decimal128(5, 2);
        for (text, value) in [
            ("1.5", Some("1.50")),
            ("-7", Some("-7.00")),
            ("0E-7", Some("0.00")),
            ("1E+2", Some("100.00")),
            ("1.505", None),
            ("1000", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(shown(text, &decimal).as_deref(), value, "{text}");
        }
        assert_eq!(shown("-128", &DataType::Int8).as_deref(), Some("-128"));
        assert_eq!(shown("NaN", &DataType::Float32).as_deref(), Some("NaN"));
        assert_eq!(shown("Infinity", &DataType::Float64).as_deref(), Some("inf"));
        for (text, ty) in [
            ("128", DataType::Int8),
            ("1.0", DataType::Int64),
            ("yes", DataType::Boolean),
            ("2021-02-29", DataType::Date32),
            ("2021-9", DataType::Date32),
        ] {
            assert_eq!(shown(text, &ty), None, "{text}");
        }
        let times = DataType::Timestamp(TimeUnit::Microsecond, None);
        for text in
            ["2021-09-08 25:00:00", "2021-09-08 11:11", "2021-09-08 11:11:11.1234567", "2021-09-08 11:11:11 CET"]
        {
            assert_eq!(shown(text, &times), None, "{text}");
        }
    }
}
