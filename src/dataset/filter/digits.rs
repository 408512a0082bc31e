//! Decimal numbers with all the digits that a text has, where a float holds fewer.

use std::fmt;

/// A point farther from the digits than this is as good as there: no column has such numbers.
const FARTHEST: i64 = 1 << 40;

/// Place of a literal among the whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Below,
    At(i128),
    /// Between this number and the next.
    After(i128),
    Above,
}

/// A number: `0.digits` times a power of ten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Digits {
    negative: bool,
    /// Neither the first nor the last is 0; zero has none.
    digits: String,
    /// The power: the place of the point, counted from the first digit.
    point: i64,
}

impl Digits {
    /// The number `mantissa`, which may have a sign and a point, times a power of ten. `None` if it is none.
    pub(super) fn of(mantissa: &str, power: i64) -> Option<Self> {
        let (negative, unsigned) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (before, after) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let all = format!("{before}{after}");
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_start_matches('0');
        if digits.is_empty() {
            return Some(Self { negative: false, digits: String::new(), point: 0 });
        }
        let zeros = all.len() - digits.len();
        let place = i64::try_from(before.len()).ok()? - i64::try_from(zeros).ok()?;
        let point = power.saturating_add(place).clamp(-FARTHEST, FARTHEST);
        Some(Self { negative, digits: digits.trim_end_matches('0').to_owned(), point })
    }

    /// The number that `text` writes, which may have an exponent.
    pub(super) fn read(text: &str) -> Option<Self> {
        let Some((mantissa, power)) = text.split_once(['e', 'E']) else { return Self::of(text, 0) };
        // Only an exponent of too many digits cannot be read.
        let farthest = if power.starts_with('-') { i64::MIN } else { i64::MAX };
        Self::of(mantissa, power.parse().unwrap_or(farthest))
    }

    /// The number that a float stands for: the float itself if it is whole, else the shortest text that reads back as it, so that 0.1 is
    /// one tenth. Whole floats beyond what any column holds are short, too.
    pub(super) fn of_float(value: f64) -> Option<Self> {
        let is_exact = value.fract() == 0.0 && value.abs() < i128::MAX as f64;
        Self::of(&if is_exact { format!("{value:.0}") } else { value.to_string() }, 0)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    /// The number among the whole numbers, in units of `10^-scale`.
    pub(super) fn place(&self, scale: i8) -> Place {
        let outside = if self.negative { Place::Below } else { Place::Above };
        let point = self.point + i64::from(scale);
        if point <= 0 || self.is_zero() {
            // Nothing but a fraction.
            return match (self.is_zero(), self.negative) {
                (true, _) => Place::At(0),
                (false, false) => Place::After(0),
                (false, true) => Place::After(-1),
            };
        }
        let Some(point) = usize::try_from(point).ok().filter(|point| *point <= 39) else { return outside };
        let (whole, fraction) = self.digits.split_at_checked(point).unwrap_or((&self.digits, ""));
        let zeros = "0".repeat(point - whole.len());
        let Ok(whole) = format!("{whole}{zeros}").parse::<i128>() else { return outside };
        match (self.negative, fraction.is_empty()) {
            (false, true) => Place::At(whole),
            (false, false) => Place::After(whole),
            (true, true) => Place::At(-whole),
            (true, false) => Place::After(-whole - 1),
        }
    }
}

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, rest) = self.digits.split_at_checked(1).unwrap_or(("0", ""));
        let (sign, point) = (if self.negative { "-" } else { "" }, if rest.is_empty() { "" } else { "." });
        write!(f, "{sign}{first}{point}{rest}e{}", self.point - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_shift_exactly() {
        for (text, scale, expected) in [
            ("12.5", 1, Place::At(125)),
            ("12.5", 0, Place::After(12)),
            ("-12.5", 0, Place::After(-13)),
            ("-12.50", 2, Place::At(-1250)),
            ("0.001", 2, Place::After(0)),
            ("-0.001", 2, Place::After(-1)),
            ("1200", -2, Place::At(12)),
            ("5", -2, Place::After(0)),
            ("0", -5, Place::At(0)),
            ("1", 38, Place::At(10_i128.pow(38))),
            ("-99", 38, Place::Below),
            ("1", 127, Place::Above),
            ("0", 127, Place::At(0)),
            ("170141183460469231731687303715884105727", 0, Place::At(i128::MAX)),
            ("170141183460469231731687303715884105728", 0, Place::Above),
            ("9007199254740993.0", 0, Place::At((1 << 53) + 1)),
            ("12345678901234567.89", 2, Place::At(1_234_567_890_123_456_789)),
        ] {
            assert_eq!(Digits::of(text, 0).map(|digits| digits.place(scale)), Some(expected), "{text} {scale}");
        }
        for text in ["", "-", ".", "1e3", "x", "1.2.3", "NaN", "inf", "--1"] {
            assert_eq!(Digits::of(text, 0), None, "{text}");
        }
    }

    #[test]
    fn text_reads_back() {
        for (text, shown) in [
            ("4.611686018427388e+18", "4.611686018427388e18"),
            ("-0012.50E-3", "-1.25e-2"),
            ("1e-99999999999999999999", "1e-1099511627777"),
            ("100.0", "1e2"),
        ] {
            let digits = Digits::read(text).unwrap();
            assert_eq!(digits.to_string(), shown);
            assert_eq!(Digits::read(shown), Some(digits), "{text}");
        }
        let tiny = Digits::read("-0.000001e-99999999999999999999").unwrap();
        assert_eq!((tiny.place(38), Digits::read(&tiny.to_string())), (Place::After(-1), Some(tiny)));
    }

    #[test]
    fn floats_are_whole_or_short() {
        let shown = |value: f64| Digits::of_float(value).unwrap().to_string();
        assert_eq!(shown(0.1), "1e-1");
        assert_eq!(shown(2f64.powi(62)), "4.611686018427387904e18");
        assert_eq!(shown(-1e23), "-9.9999999999999991611392e22");
        assert_eq!(shown(f64::MAX), "1.7976931348623157e308");
        assert_eq!(Digits::of_float(f64::NAN), None);
    }
}
