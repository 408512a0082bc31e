//! NumPy's type of one element, as spelt in the header of an array: `<f8`, `|b1`, `>M8[ms]`, `<U12`.

use std::fmt;

use crate::error::{Error, Place, Result};
use crate::schema::DType;

/// The type of one element of a stored array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Npy {
    /// Its kind.
    pub kind: Kind,
    /// Bytes of one element; 0 for strings that are all empty.
    pub size: usize,
    /// Set if the most significant byte comes first. Always false if an element has no byte order.
    pub big: bool,
    /// The unit of `datetime64` and `timedelta64`, and of nothing else.
    pub unit: Option<Unit>,
}

/// The kind of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `bool`, one byte.
    Bool,
    /// Unsigned integers of 1, 2, 4, 8 bytes.
    Uint,
    /// Signed integers of 1, 2, 4, 8 bytes.
    Int,
    /// IEEE floats of 2, 4, 8 bytes.
    Float,
    /// Two bytes without a type in NumPy: how `ml_dtypes.bfloat16` is stored.
    Raw,
    /// `datetime64`: int64, counted from 1970.
    Datetime,
    /// `timedelta64`: int64.
    Timedelta,
    /// `str_`: UTF-32, padded with zeros.
    Text,
    /// `bytes_`, padded with zeros.
    Bytes,
}

/// The unit of a time: a number of equal parts of a calendar or a clock. The smallest `i64` is "not a time" in every
/// unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit {
    multiple: u32,
    base: Base,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    Generic,
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Milli,
    Micro,
    Nano,
    Pico,
    Femto,
    Atto,
}

/// NumPy's code, name in bowstring, and length in months or in attoseconds: the units of each kind convert exactly.
const BASES: [(Base, &str, &str, Length); 14] = [
    (Base::Generic, "", "generic", Length::None),
    (Base::Year, "Y", "years", Length::Months(12)),
    (Base::Month, "M", "months", Length::Months(1)),
    (Base::Week, "W", "weeks", Length::Attos(604_800 * SECOND)),
    (Base::Day, "D", "days", Length::Attos(86_400 * SECOND)),
    (Base::Hour, "h", "hours", Length::Attos(3_600 * SECOND)),
    (Base::Minute, "m", "minutes", Length::Attos(60 * SECOND)),
    (Base::Second, "s", "s", Length::Attos(SECOND)),
    (Base::Milli, "ms", "ms", Length::Attos(SECOND / 1_000)),
    (Base::Micro, "us", "us", Length::Attos(SECOND / 1_000_000)),
    (Base::Nano, "ns", "ns", Length::Attos(SECOND / 1_000_000_000)),
    (Base::Pico, "ps", "ps", Length::Attos(1_000_000)),
    (Base::Femto, "fs", "fs", Length::Attos(1_000)),
    (Base::Atto, "as", "as", Length::Attos(1)),
];

const SECOND: u128 = 1_000_000_000_000_000_000;

#[derive(Debug, Clone, Copy)]
enum Length {
    None,
    Months(u128),
    Attos(u128),
}

impl Unit {
    /// The unit that bowstring calls `name`: `days`, `hours`, `s`, `ms`, `us`, `ns`, ...
    pub fn named(name: &str) -> Option<Self> {
        BASES.iter().find(|(_, _, own, _)| *own == name).map(|(base, ..)| Self { multiple: 1, base: *base })
    }

    /// Parses NumPy's text between the brackets: `ns`, `25s`.
    fn parse(code: &str) -> Option<Self> {
        let digits = code.bytes().take_while(u8::is_ascii_digit).count();
        let (multiple, code) = code.split_at(digits);
        let multiple = if multiple.is_empty() { 1 } else { multiple.parse::<u32>().ok()? };
        if multiple == 0 || multiple > i32::MAX as u32 || code.is_empty() {
            return None;
        }
        // NumPy also knows `generic` by name.
        let found = BASES.iter().find(|(_, own, name, _)| *own == code || (own.is_empty() && *name == code))?;
        Some(Self { multiple, base: found.0 })
    }

    fn row(self) -> &'static (Base, &'static str, &'static str, Length) {
        BASES.iter().find(|(base, ..)| *base == self.base).unwrap_or(&BASES[0])
    }

    /// The number of `target` units in this one, if that is a whole number everywhere in the calendar.
    pub fn per(self, target: Self) -> Option<i64> {
        if self == target {
            return Some(1);
        }
        let (own, other) = match (self.row().3, target.row().3) {
            (Length::Months(own), Length::Months(other)) | (Length::Attos(own), Length::Attos(other)) => (own, other),
            _ => return None,
        };
        // At most 6e23 attoseconds times 2^31: below 2^128.
        let (own, other) = (own * u128::from(self.multiple), other * u128::from(target.multiple));
        if own % other == 0 { i64::try_from(own / other).ok() } else { None }
    }
}

/// The name in bowstring: `days`, `ns`, `25 s`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.multiple != 1 {
            write!(f, "{} ", self.multiple)?;
        }
        f.write_str(self.row().2)
    }
}

impl Npy {
    /// Numbers and booleans, little endian.
    pub fn number(dtype: DType) -> Self {
        let kind = match dtype {
            DType::Bool => Kind::Bool,
            DType::Uint8 | DType::Uint16 | DType::Uint32 | DType::Uint64 => Kind::Uint,
            DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => Kind::Int,
            DType::Float16 | DType::Float32 | DType::Float64 => Kind::Float,
            DType::Bfloat16 => Kind::Raw,
        };
        Self { kind, size: dtype.size(), big: false, unit: None }
    }

    /// `datetime64` in `unit`, little endian.
    pub fn datetime(unit: Unit) -> Self {
        Self { kind: Kind::Datetime, size: 8, big: false, unit: Some(unit) }
    }

    /// `timedelta64` in `unit`, little endian.
    pub fn timedelta(unit: Unit) -> Self {
        Self { unit: Some(unit), kind: Kind::Timedelta, size: 8, big: false }
    }

    /// The tensor's element type: int64 for times, `None` for strings.
    pub fn dtype(&self) -> Option<DType> {
        Some(match (self.kind, self.size) {
            (Kind::Bool, 1) => DType::Bool,
            (Kind::Uint, 1) => DType::Uint8,
            (Kind::Uint, 2) => DType::Uint16,
            (Kind::Uint, 4) => DType::Uint32,
            (Kind::Uint, 8) => DType::Uint64,
            (Kind::Int, 1) => DType::Int8,
            (Kind::Int, 2) => DType::Int16,
            (Kind::Int, 4) => DType::Int32,
            (Kind::Int, 8) | (Kind::Datetime | Kind::Timedelta, _) => DType::Int64,
            (Kind::Float, 2) => DType::Float16,
            (Kind::Float, 4) => DType::Float32,
            (Kind::Float, 8) => DType::Float64,
            (Kind::Raw, 2) => DType::Bfloat16,
            _ => return None,
        })
    }

    /// Parses NumPy's spelling.
    ///
    /// # Errors
    /// `Unsupported` for objects, structures, complex numbers, long doubles and other types without a tensor; `Corrupt`
    /// if it is not a type at all.
    pub fn parse(descr: &str) -> Result<Self> {
        let corrupt = || Error::corrupt(Place::default(), format!("{descr:?} is not a dtype of NumPy"));
        let (big, rest) = match descr.as_bytes().first() {
            Some(b'>') => (true, &descr[1..]),
            // `=` and `|` mean the writer's own order, and every machine that matters is little endian.
            Some(b'<' | b'=' | b'|') => (false, &descr[1..]),
            _ => (false, descr),
        };
        if !rest.is_ascii() || rest.is_empty() {
            return Err(corrupt());
        }
        let (letter, rest) = rest.split_at(1);
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = rest.split_at(digits);
        let unsupported =
            |hint: &str| Err(Error::unsupported(format!("an array of NumPy dtype {descr:?}"), hint.to_owned()));
        if letter == "O" {
            return unsupported("arrays of objects are pickles, which could run anything; store numbers or strings");
        }
        let number: usize = number.parse().map_err(|_| corrupt())?;
        let (kind, size) = match (letter, number) {
            ("b", 1) => (Kind::Bool, 1),
            ("u", 1 | 2 | 4 | 8) => (Kind::Uint, number),
            ("i", 1 | 2 | 4 | 8) => (Kind::Int, number),
            ("f", 2 | 4 | 8) => (Kind::Float, number),
            ("V", 2) => (Kind::Raw, 2),
            ("M", 8) => (Kind::Datetime, 8),
            ("m", 8) => (Kind::Timedelta, 8),
            ("U", _) => (Kind::Text, number.checked_mul(4).ok_or_else(corrupt)?),
            ("S" | "a", _) => (Kind::Bytes, number),
            ("c", 8 | 16 | 24 | 32) => return unsupported("store the real and the imaginary part"),
            ("f", 12 | 16) => return unsupported("store float64"),
            ("V", _) => return unsupported("store each field of a structure in a column of its own"),
            ("T", _) => return unsupported("store str_ of a fixed width"),
            _ => return Err(corrupt()),
        };
        if size > i32::MAX as usize {
            return Err(corrupt());
        }
        let unit = match (kind, unit) {
            (Kind::Datetime | Kind::Timedelta, "") => Some(Unit { multiple: 1, base: Base::Generic }),
            (Kind::Datetime | Kind::Timedelta, unit) => {
                let code = unit.strip_prefix('[').and_then(|unit| unit.strip_suffix(']'));
                Some(code.and_then(Unit::parse).ok_or_else(corrupt)?)
            }
            (_, "") => None,
            _ => return Err(corrupt()),
        };
        let ordered = !matches!(kind, Kind::Bytes | Kind::Raw) && size > 1;
        // Big-endian bfloat16 does not exist; such bytes would have no meaning.
        if kind == Kind::Raw && big {
            return unsupported("store little-endian bfloat16");
        }
        Ok(Self { kind, size, big: big && ordered, unit })
    }
}

/// NumPy's spelling.
impl fmt::Display for Npy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            Kind::Bool => 'b',
            Kind::Uint => 'u',
            Kind::Int => 'i',
            Kind::Float => 'f',
            Kind::Raw => 'V',
            Kind::Datetime => 'M',
            Kind::Timedelta => 'm',
            Kind::Text => 'U',
            Kind::Bytes => 'S',
        };
        let order = match self.kind {
            Kind::Bytes | Kind::Bool => '|',
            Kind::Uint | Kind::Int if self.size == 1 => '|',
            _ if self.big => '>',
            _ => '<',
        };
        write!(f, "{order}{letter}{}", if self.kind == Kind::Text { self.size / 4 } else { self.size })?;
        match self.unit {
            Some(Unit { base: Base::Generic, .. }) | None => Ok(()),
            Some(Unit { multiple: 1, .. }) => write!(f, "[{}]", self.unit.map_or("", |unit| unit.row().1)),
            Some(unit) => write!(f, "[{}{}]", unit.multiple, unit.row().1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_come_back() {
        let all = [
            "|b1", "|u1", "<u2", ">i4", "<f2", ">f8", "<V2", "<M8[ns]", ">m8[25s]", "<M8", "<U12", ">U3", "|S0", "|S7",
        ];
        for descr in all {
            assert_eq!(Npy::parse(descr).unwrap().to_string(), descr);
        }
        for (loose, strict) in
            [("f8", "<f8"), ("=i2", "<i2"), ("|f4", "<f4"), (">u1", "|u1"), ("<S3", "|S3"), ("M8[generic]", "<M8")]
        {
            assert_eq!(Npy::parse(loose).unwrap().to_string(), strict);
        }
        for dtype in DType::ALL {
            let element = Npy::number(dtype);
            assert_eq!(element.dtype(), Some(dtype));
            assert_eq!(Npy::parse(&element.to_string()).unwrap(), element);
        }
        for descr in ["|O", "O", "|O8", "<c8", "<c16", "<f16", "<f12", "|V8", ">V2", "|T16"] {
            assert!(matches!(Npy::parse(descr), Err(Error::Unsupported { .. })), "{descr}");
        }
        for descr in [
            "",
            "<",
            "f",
            "<f3",
            "<i16x",
            "é8",
            "<Mé",
            "<M8[",
            "<M8[0s]",
            "<M8[x]",
            "<M4[s]",
            "<f8[s]",
            "<U",
            "<U-1",
            "<U999999999999",
            "<U18446744073709551616",
        ] {
            assert!(matches!(Npy::parse(descr), Err(Error::Corrupt { .. })), "{descr}");
        }
    }

    #[test]
    fn units_convert_where_that_is_exact() {
        let unit = |code: &str| Unit::parse(code).unwrap();
        assert_eq!(unit("s").per(unit("ns")), Some(1_000_000_000));
        assert_eq!(unit("W").per(unit("D")), Some(7));
        assert_eq!(unit("Y").per(unit("M")), Some(12));
        assert_eq!(unit("25s").per(unit("5s")), Some(5));
        for (from, to) in [("ns", "s"), ("M", "D"), ("Y", "s"), ("W", "as"), ("5s", "25s"), ("generic", "s")] {
            assert_eq!(unit(from).per(unit(to)), None, "{from} {to}");
        }
        assert_eq!(Unit::named("days"), Some(unit("D")));
        assert_eq!((unit("D").to_string(), unit("25s").to_string()), ("days".into(), "25 s".into()));
    }
}
