//! Dates, times and instants as text: parsed completely and exactly, or refused.
//!
//! A date is `2024-02-29`, a time `23:59:59.5`, an instant both with `T` or a space in between, and optionally an offset. Nothing is
//! guessed, rounded or shifted: any other form is refused.

use arrow::datatypes::TimeUnit;

/// The reason that a token is no value of a type.
pub(crate) type Why = &'static str;

const NO_DATE: Why = "it is not a date such as 2024-02-29";
const NO_TIME: Why = "it is not a time such as 23:59:59.5";
const NO_INSTANT: Why = "it is not a date and time such as 2024-02-29T23:59:59.5";

/// A date and time as in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instant {
    /// Seconds since 1970 of the local clock, at an unknown or known offset.
    local: i64,
    nanos: u32,
    /// Seconds east of Greenwich, if the text has an offset.
    pub(crate) offset: Option<i32>,
}

impl Instant {
    pub(crate) fn parse(text: &str) -> Result<Self, Why> {
        let at = text.bytes().skip(8).position(|byte| matches!(byte, b'T' | b' ')).ok_or(NO_INSTANT)? + 8;
        let (date, rest) = (text.get(..at).ok_or(NO_INSTANT)?, text.get(at + 1..).ok_or(NO_INSTANT)?);
        let end = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
        let (clock, zone) = (rest.get(..end).unwrap_or_default(), rest.get(end..).unwrap_or_default());
        let (seconds, nanos) = time(clock).map_err(|_| NO_INSTANT)?;
        let offset = if zone.is_empty() { None } else { Some(offset(zone).ok_or(NO_INSTANT)?) };
        let local = days(date).map_err(|_| NO_INSTANT)? * 86_400 + i64::from(seconds);
        Ok(Self { local, nanos, offset })
    }

    /// Returns seconds since 1970, in UTC if there is an offset, and nanoseconds.
    pub(crate) fn parts(self) -> (i64, u32) {
        (self.local - i64::from(self.offset.unwrap_or(0)), self.nanos)
    }

    /// Returns the count of `unit` since 1970, in UTC if there is an offset.
    pub(crate) fn count(self, unit: TimeUnit) -> Result<i64, Why> {
        let (seconds, nanos) = self.parts();
        // The whole seconds of the earliest instants are beyond 64 bits, their sum with the rest is not.
        let count = i128::from(seconds) * i128::from(per_second(unit)) + i128::from(part(nanos, unit)?);
        count.try_into().map_err(|_| "it is beyond what the type can hold")
    }
}

/// Parses a time of day as a count of `unit`.
pub(crate) fn time_count(text: &str, unit: TimeUnit) -> Result<i64, Why> {
    let (seconds, nanos) = time(text)?;
    Ok(i64::from(seconds) * per_second(unit) + part(nanos, unit)?)
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Converts the fraction of a second to `unit`, if that is exact.
fn part(nanos: u32, unit: TimeUnit) -> Result<i64, Why> {
    let each = 1_000_000_000 / per_second(unit);
    if i64::from(nanos) % each != 0 {
        return Err("its fraction of a second is finer than the type");
    }
    Ok(i64::from(nanos) / each)
}

/// Parses exactly these digits as a number.
fn digits(text: Option<&str>) -> Option<u32> {
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok()
}

/// Parses a date as days since 1970-01-01.
pub(crate) fn days(text: &str) -> Result<i64, Why> {
    let (sign, bare) = match text.as_bytes().first() {
        Some(b'-') => (-1, text.get(1..).unwrap_or_default()),
        // Years beyond 9999 are written with a sign.
        Some(b'+') => (1, text.get(1..).unwrap_or_default()),
        _ => (1, text),
    };
    let year_digits = bare.find('-').ok_or(NO_DATE)?;
    let rest = bare.get(year_digits..).unwrap_or_default();
    let dashed = rest.len() == 6 && rest.as_bytes().first() == Some(&b'-') && rest.as_bytes().get(3) == Some(&b'-');
    let year_fits = match text.as_bytes().first() {
        Some(b'-' | b'+') => (4..=6).contains(&year_digits),
        _ => year_digits == 4,
    };
    if !dashed || !year_fits {
        return Err(NO_DATE);
    }
    let year = i64::from(digits(bare.get(..year_digits)).ok_or(NO_DATE)?) * sign;
    let month = i64::from(digits(rest.get(1..3)).ok_or(NO_DATE)?);
    let day = i64::from(digits(rest.get(4..6)).ok_or(NO_DATE)?);
    let leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let last = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return Err("there is no such month"),
    };
    if !(1..=last).contains(&day) {
        return Err("there is no such day");
    }
    // The year begins in March, so that a leap day is its last day.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Ok(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Parses a time as seconds since midnight, and nanoseconds.
fn time(text: &str) -> Result<(u32, u32), Why> {
    let (clock, fraction) = match text.split_once('.') {
        Some((clock, fraction)) => (clock, Some(fraction)),
        None => (text, None),
    };
    let colons = clock.len() == 8 && clock.as_bytes().get(2) == Some(&b':') && clock.as_bytes().get(5) == Some(&b':');
    if !colons {
        return Err(NO_TIME);
    }
    let hour = digits(clock.get(..2)).filter(|hour| *hour < 24).ok_or(NO_TIME)?;
    let minute = digits(clock.get(3..5)).filter(|minute| *minute < 60).ok_or(NO_TIME)?;
    let second = digits(clock.get(6..)).filter(|second| *second < 60).ok_or(NO_TIME)?;
    let nanos = match fraction {
        None => 0,
        Some(fraction) => {
            let (nine, finer) = fraction.split_at_checked(9).unwrap_or((fraction, ""));
            if nine.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(NO_TIME);
            }
            if finer.bytes().any(|byte| byte != b'0') {
                return Err("its fraction of a second is finer than the type");
            }
            let scale = 10_u32.pow(9 - nine.len() as u32);
            nine.parse::<u32>().map_err(|_| NO_TIME)? * scale
        }
    };
    Ok((hour * 3600 + minute * 60 + second, nanos))
}

/// Parses seconds east of Greenwich: `Z`, `+02:00` or `+0200`.
pub(crate) fn offset(text: &str) -> Option<i32> {
    if text == "Z" {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let bare = text.get(1..)?;
    let (hours, minutes) = match bare.len() {
        4 => (bare.get(..2), bare.get(2..)),
        5 if bare.as_bytes().get(2) == Some(&b':') => (bare.get(..2), bare.get(3..)),
        _ => return None,
    };
    let (hours, minutes) = (digits(hours).filter(|hours| *hours < 24)?, digits(minutes).filter(|it| *it < 60)?);
    Some(sign * (hours * 3600 + minutes * 60) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_counted_and_those_that_are_none_are_refused() {
        for (text, count) in [
            ("1970-01-01", 0),
            ("2000-02-29", 11_016),
            ("1969-12-31", -1),
            ("0000-03-01", -719_468),
            ("-0001-12-31", -719_529),
            ("9999-12-31", 2_932_896),
            ("+10000-01-01", 2_932_897),
        ] {
            assert_eq!(days(text), Ok(count), "{text}");
        }
        for text in ["", "2023-02-29", "2024-13-01", "2024-00-01", "2024-1-1", "20240101", "2024-01-01 ", "99-01-01"] {
            assert!(days(text).is_err(), "{text}");
        }
    }

    #[test]
    fn instants_are_exact() {
        let count = |text: &str, unit| Instant::parse(text).and_then(|instant| instant.count(unit));
        assert_eq!(count("1970-01-01T00:00:01.5", TimeUnit::Microsecond), Ok(1_500_000));
        assert_eq!(count("1970-01-01 00:00:00.500000000000", TimeUnit::Millisecond), Ok(500));
        assert_eq!(count("2024-06-01T23:30:00-05:00", TimeUnit::Second), Ok(1_717_302_600));
        assert_eq!(count("2024-06-02T04:30:00Z", TimeUnit::Second), Ok(1_717_302_600));
        assert_eq!(count("2024-06-02T06:30:00+0200", TimeUnit::Second), Ok(1_717_302_600));
        assert!(count("2024-06-01T23:30:00.0000001", TimeUnit::Microsecond).is_err());
        assert!(count("2024-06-01T23:30:00.0000000001", TimeUnit::Nanosecond).is_err());
        assert!(count("2263-01-01T00:00:00", TimeUnit::Nanosecond).is_err());
        assert_eq!(count("1677-09-21T00:12:43.145224192", TimeUnit::Nanosecond), Ok(i64::MIN));
        assert_eq!(count("2262-04-11T23:47:16.854775807", TimeUnit::Nanosecond), Ok(i64::MAX));
        assert!(count("1677-09-21T00:12:43.145224191", TimeUnit::Nanosecond).is_err());
        for text in ["2024-01-01", "2024-01-01T24:00:00", "2024-01-01T00:60:00", "2024-01-01T00:00:60"] {
            assert!(Instant::parse(text).is_err(), "{text}");
        }
        for text in ["2024-01-01T00:00", "2024-01-01T00:00:00.", "2024-01-01T00:00:00+2", "2024-01-01T00:00:00 UTC"] {
            assert!(Instant::parse(text).is_err(), "{text}");
        }
    }
}
