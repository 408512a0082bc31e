//! Conversions between element types, checked, over slices of bytes.
//!
//! The rules: a value that the target cannot hold is refused (an integer out of range, a fraction or NaN as an integer,
//! anything but 0 and 1 as a boolean); a conversion to a float rounds to the nearest, beyond its range to infinity.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::schema::{DType, Odd};

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// A value in an option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number beyond those.
    Uint(u64),
    /// A number; `nan` and `inf` are written as text.
    Float(f64),
    /// Text, for text and binary columns; `nan`, `inf`, `-inf` for float columns.
    Text(String),
}

/// As it is written in options.
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Uint(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A boolean as stored in a tensor: one byte, 0 or 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Bit(u8);

/// A checked conversion of one value.
trait Cast<T>: Pod {
    fn cast(self) -> Option<T>;
}

/// Every integer to every integer.
macro_rules! ints {
    ($($source:ty),*; $targets:tt) => { $(ints!(@ $source; $targets);)* };
    (@ $source:ty; [$($target:ty),*]) => { $(
        impl Cast<$target> for $source {
            #[inline(always)]
            fn cast(self) -> Option<$target> { <$target>::try_from(self).ok() }
        }
    )* };
}
ints!(u8, i8, u16, i16, u32, i32, u64, i64; [u8, i8, u16, i16, u32, i32, u64, i64]);

macro_rules! int_and_others {
    ($($int:ty),*) => { $(
        impl Cast<f32> for $int {
            #[inline(always)]
            fn cast(self) -> Option<f32> { Some(self as f32) }
        }
        impl Cast<f64> for $int {
            #[inline(always)]
            fn cast(self) -> Option<f64> { Some(self as f64) }
        }
        impl Cast<f16> for $int {
            #[inline(always)]
            fn cast(self) -> Option<f16> { Some(f16::from_f32(self.odd())) }
        }
        impl Cast<bf16> for $int {
            #[inline(always)]
            fn cast(self) -> Option<bf16> { Some(bf16::from_f32(self.odd())) }
        }
        impl Cast<Bit> for $int {
            #[inline(always)]
            fn cast(self) -> Option<Bit> { (self == 0 || self == 1).then_some(Bit((self == 1) as u8)) }
        }
        impl Cast<$int> for Bit {
            #[inline(always)]
            fn cast(self) -> Option<$int> { Some(<$int>::from(self.0 != 0)) }
        }
        impl Cast<$int> for f64 {
            #[inline(always)]
            fn cast(self) -> Option<$int> {
                // Saturates and turns NaN into 0, both of which the round trip reveals; i128 holds the whole range of
                // all targets.
                let whole = self as i128;
                if whole as f64 == self { <$int>::try_from(whole).ok() } else { None }
            }
        }
        through_f64!($int; f32, f16, bf16);
    )* };
}

/// Conversions from the smaller floats, whose values f64 holds exactly.
macro_rules! through_f64 {
    ($target:ty; $($source:ty),*) => { $(
        impl Cast<$target> for $source {
            #[inline(always)]
            fn cast(self) -> Option<$target> { Cast::<$target>::cast(f64::from(self)) }
        }
    )* };
}
int_and_others!(u8, i8, u16, i16, u32, i32, u64, i64);
through_f64!(Bit; f32, f16, bf16);

impl Cast<Bit> for f64 {
    #[inline(always)]
    fn cast(self) -> Option<Bit> {
        (self == 0.0 || self == 1.0).then_some(Bit((self == 1.0) as u8))
    }
}

impl Cast<Bit> for Bit {
    #[inline(always)]
    fn cast(self) -> Option<Bit> {
        Some(self)
    }
}

macro_rules! floats {
    ($($source:ty => $target:ty: $convert:expr;)*) => { $(
        impl Cast<$target> for $source {
            #[inline(always)]
            fn cast(self) -> Option<$target> {
                let convert: fn($source) -> $target = $convert;
                Some(convert(self))
            }
        }
    )* };
}
floats! {
    f32 => f32: |x| x;
    f32 => f64: f64::from;
    f32 => f16: f16::from_f32;
    f32 => bf16: bf16::from_f32;
    f64 => f32: |x| x as f32;
    f64 => f64: |x| x;
    f64 => f16: |x| f16::from_f32(x.odd());
    f64 => bf16: |x| bf16::from_f32(x.odd());
    f16 => f32: f16::to_f32;
    f16 => f64: f16::to_f64;
    f16 => f16: |x| x;
    f16 => bf16: |x| bf16::from_f32(x.to_f32());
    bf16 => f32: bf16::to_f32;
    bf16 => f64: bf16::to_f64;
    bf16 => f16: |x| f16::from_f32(x.to_f32());
    bf16 => bf16: |x| x;
    Bit => f32: |x| f32::from(x.0);
    Bit => f64: |x| f64::from(x.0);
    Bit => f16: |x| f16::from_f32(f32::from(x.0));
    Bit => bf16: |x| bf16::from_f32(f32::from(x.0));
}

/// Runs `$body` with `$T` as the Rust type of `$dtype`.
macro_rules! typed {
    ($dtype:expr, $T:ident, $body:expr) => {
        match $dtype {
            DType::Bool => typed!(@ Bit, $T, $body),
            DType::Uint8 => typed!(@ u8, $T, $body),
            DType::Int8 => typed!(@ i8, $T, $body),
            DType::Uint16 => typed!(@ u16, $T, $body),
            DType::Int16 => typed!(@ i16, $T, $body),
            DType::Uint32 => typed!(@ u32, $T, $body),
            DType::Int32 => typed!(@ i32, $T, $body),
            DType::Uint64 => typed!(@ u64, $T, $body),
            DType::Int64 => typed!(@ i64, $T, $body),
            DType::Float16 => typed!(@ f16, $T, $body),
            DType::Bfloat16 => typed!(@ bf16, $T, $body),
            DType::Float32 => typed!(@ f32, $T, $body),
            DType::Float64 => typed!(@ f64, $T, $body),
        }
    };
    (@ $rust:ty, $T:ident, $body:expr) => {{
        type $T = $rust;
        $body
    }};
}

/// Converts every element of `input`; false if some do not fit: they become zero, and [`misfits`] lists them.
///
/// Both slices hold whole elements, aligned for their types, and equally many; anything else is refused as a misfit too.
pub(super) fn convert(from: DType, input: &[u8], to: DType, output: &mut [u8]) -> bool {
    if from == to && input.len() == output.len() {
        output.copy_from_slice(input);
        return true;
    }
    typed!(from, S, typed!(to, T, slices::<S, T>(input, output)))
}

fn slices<S: Cast<T>, T: Pod + Default>(input: &[u8], output: &mut [u8]) -> bool {
    let (Ok(input), Ok(output)) =
        (bytemuck::try_cast_slice::<u8, S>(input), bytemuck::try_cast_slice_mut::<u8, T>(output))
    else {
        return false;
    };
    let mut fits = input.len() == output.len();
    for (to, from) in output.iter_mut().zip(input) {
        let value = from.cast();
        fits &= value.is_some();
        *to = value.unwrap_or_default();
    }
    fits
}

/// The indices of elements that do not fit, in order.
pub(super) fn misfits(from: DType, input: &[u8], to: DType) -> Vec<usize> {
    typed!(from, S, typed!(to, T, failing::<S, T>(input)))
}

fn failing<S: Cast<T>, T>(input: &[u8]) -> Vec<usize> {
    let Ok(input) = bytemuck::try_cast_slice::<u8, S>(input) else { return Vec::new() };
    input.iter().enumerate().filter(|(_, value)| value.cast().is_none()).map(|(at, _)| at).collect()
}

/// Returns the bytes of one element of `dtype` with this value; `None` if it does not fit.
pub(super) fn element(value: &Scalar, dtype: DType) -> Option<Vec<u8>> {
    let mut bytes = [0u64; 1];
    let output = &mut bytemuck::cast_slice_mut(&mut bytes)[..dtype.size()];
    let fits = match value {
        Scalar::Bool(value) => convert(DType::Bool, &[u8::from(*value)], dtype, output),
        Scalar::Int(value) => convert(DType::Int64, bytemuck::bytes_of(value), dtype, output),
        Scalar::Uint(value) => convert(DType::Uint64, bytemuck::bytes_of(value), dtype, output),
        // Also what JSON makes of whole numbers below those of 64 bits.
        Scalar::Float(value) if dtype == DType::Int64 && *value == -TWO_TO_63 => false,
        Scalar::Float(value) => convert(DType::Float64, bytemuck::bytes_of(value), dtype, output),
        Scalar::Text(text) => {
            let float = matches!(dtype, DType::Float16 | DType::Bfloat16 | DType::Float32 | DType::Float64);
            let value: f64 = text.parse().ok().filter(|_| float)?;
            convert(DType::Float64, bytemuck::bytes_of(&value), dtype, output)
        }
    };
    fits.then(|| output.to_vec())
}

/// Fills `bytes`, a whole number of patterns, with repetitions of `pattern`.
pub(super) fn fill(bytes: &mut [u8], pattern: &[u8]) {
    fn typed<T: Pod>(bytes: &mut [u8], pattern: &[u8]) -> bool {
        match bytemuck::try_cast_slice_mut::<u8, T>(bytes) {
            Ok(values) => {
                values.fill(bytemuck::pod_read_unaligned(pattern));
                true
            }
            Err(_) => false,
        }
    }
    let done = match pattern.len() {
        _ if pattern.iter().all(|byte| *byte == 0) => {
            bytes.fill(0);
            true
        }
        1 => typed::<u8>(bytes, pattern),
        2 => typed::<u16>(bytes, pattern),
        4 => typed::<u32>(bytes, pattern),
        8 => typed::<u64>(bytes, pattern),
        _ => false,
    };
    if !done {
        bytes.chunks_exact_mut(pattern.len().max(1)).for_each(|chunk| chunk.copy_from_slice(pattern));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<S: Pod, T: Pod + PartialEq>(from: DType, value: S, to: DType) -> Option<T> {
        let mut output = [0u64; 1];
        let output = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut output)[..to.size()];
        let input = [value];
        let input = bytemuck::cast_slice(&input);
        let fits = convert(from, input, to, output);
        assert_eq!(misfits(from, input, to).is_empty(), fits);
        fits.then(|| bytemuck::pod_read_unaligned(output))
    }

    #[test]
    fn integers_are_checked() {
        use DType::{Bool, Int8, Int64, Uint8, Uint64};
        assert_eq!(one::<i64, u8>(Int64, 255, Uint8), Some(255));
        assert_eq!(one::<i64, u8>(Int64, 256, Uint8), None);
        assert_eq!(one::<i64, u64>(Int64, -1, Uint64), None);
        assert_eq!(one::<u64, i8>(Uint64, u64::MAX, Int8), None);
        assert_eq!(one::<i64, u8>(Int64, 1, Bool), Some(1));
        assert_eq!(one::<i64, u8>(Int64, 2, Bool), None);
        assert_eq!(one::<u8, i64>(Bool, 1, Int64), Some(1));
    }

    #[test]
    fn floats_become_integers_only_if_they_are_whole_and_fit() {
        use DType::{Float16, Float32, Float64, Int8, Int64, Uint64};
        assert_eq!(one::<f64, i64>(Float64, -3.0, Int64), Some(-3));
        assert_eq!(one::<f64, i64>(Float64, 0.5, Int64), None);
        assert_eq!(one::<f64, i64>(Float64, f64::NAN, Int64), None);
        assert_eq!(one::<f64, i64>(Float64, 9_223_372_036_854_775_808.0, Int64), None, "2^63 does not fit");
        assert_eq!(one::<f64, u64>(Float64, 9_223_372_036_854_775_808.0, Uint64), Some(1 << 63));
        assert_eq!(one::<f64, u64>(Float64, f64::INFINITY, Uint64), None);
        assert_eq!(one::<f32, i8>(Float32, -129.0, Int8), None);
        assert_eq!(one::<f16, i8>(Float16, f16::from_f32(7.0), Int8), Some(7));
    }

    #[test]
    fn what_becomes_a_float_rounds() {
        use DType::{Bfloat16, Float16, Float32, Float64, Int64};
        assert_eq!(one::<i64, f32>(Int64, (1 << 24) + 1, Float32), Some(16_777_216.0));
        assert_eq!(one::<f64, f32>(Float64, 1e300, Float32), Some(f32::INFINITY));
        assert_eq!(one::<f64, f16>(Float64, 0.1, Float16), Some(f16::from_f64(0.1)));
        // Once: neither is beyond the middle of two after a step by way of float32.
        assert_eq!(one::<f64, f16>(Float64, 65_519.999_999, Float16), Some(f16::MAX));
        assert_eq!(one::<i64, bf16>(Int64, (1 << 30) + (1 << 22) + 1, Bfloat16), Some(bf16::from_f32(1_082_130_432.0)));
        assert_eq!(one::<f32, bf16>(Float32, 1.0, Bfloat16), Some(bf16::ONE));
    }

    #[test]
    fn scalars_become_elements_and_patterns() {
        assert_eq!(element(&Scalar::Int(-1), DType::Int16), Some(vec![255, 255]));
        assert_eq!(element(&Scalar::Int(-1), DType::Uint16), None);
        assert_eq!(element(&Scalar::Float(0.5), DType::Float32), Some(0.5f32.to_le_bytes().to_vec()));
        assert_eq!(element(&Scalar::Text("inf".into()), DType::Float64), Some(f64::INFINITY.to_le_bytes().to_vec()));
        assert_eq!(element(&Scalar::Text("1".into()), DType::Int64), None);
        assert_eq!(element(&Scalar::Bool(true), DType::Uint8), Some(vec![1]));
        let parsed = |json: &str, dtype| element(&serde_json::from_str(json).unwrap(), dtype);
        let large = |number: u64| Some(number.to_le_bytes().to_vec());
        assert_eq!(parsed("18446744073709551615", DType::Uint64), large(u64::MAX));
        assert_eq!(parsed("9223372036854775809", DType::Uint64), large((1 << 63) + 1));
        assert_eq!(parsed("-9223372036854775808", DType::Int64), large(1 << 63));
        for (json, dtype) in [
            ("18446744073709551616", DType::Uint64),
            ("9223372036854775808", DType::Int64),
            ("-9223372036854775809", DType::Int64),
        ] {
            assert_eq!(parsed(json, dtype), None, "{json}");
        }
        let mut bytes = [0u8; 12];
        fill(&mut bytes, &[1, 2, 3]);
        assert_eq!(bytes, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
        fill(&mut bytes, &[7, 8]);
        assert_eq!(bytes[8..], [7, 8, 7, 8]);
    }
}
