//! Numbers to `float32` on their way to a narrower float, so that they are rounded once.
//!
//! Rounded to the nearest `float32` and then to the nearest `float16`, a number just above the middle of two of them becomes the lower one,
//! and 65519.999999 becomes infinity. Rounded to odd (towards zero, with the last bit set if that was not exact), it stays on its side
//! of the middle: `float32` has more than two bits more than either.

/// A `float32` from which a narrower float is rounded as from the number itself.
pub(crate) trait Odd {
    /// Rounds to odd; exact numbers, infinity and NaN stay.
    fn odd(self) -> f32;
}

/// The last bit set, and one step towards zero before that if `nearest` is beyond the number.
fn marked(nearest: f32, beyond: bool) -> f32 {
    f32::from_bits((nearest.to_bits() - u32::from(beyond)) | 1)
}

impl Odd for f64 {
    #[inline]
    fn odd(self) -> f32 {
        let nearest = self as f32;
        let back = Self::from(nearest);
        if back == self || self.is_nan() { nearest } else { marked(nearest, back.abs() > self.abs()) }
    }
}

/// Integers that a `float64` does not hold.
macro_rules! large {
    ($($int:ty),*) => { $(
        impl Odd for $int {
            #[inline]
            fn odd(self) -> f32 {
                let nearest = self as f32;
                let (back, own) = (nearest as i128, i128::from(self));
                if back == own { nearest } else { marked(nearest, back.abs() > own.abs()) }
            }
        }
    )* };
}
large!(i64, u64);

/// Numbers that another type holds, by way of it.
macro_rules! small {
    ($($source:ty => $wide:ty),*) => { $(
        impl Odd for $source {
            #[inline]
            fn odd(self) -> f32 { <$wide>::from(self).odd() }
        }
    )* };
}
small!(i32 => f64, u32 => f64);

/// Numbers that a `float32` holds.
macro_rules! exact {
    ($($source:ty),*) => { $(
        impl Odd for $source {
            #[inline]
            fn odd(self) -> f32 { self.into() }
        }
    )* };
}
exact!(i8, u8, i16, u16);

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// The nearest of all values of a narrow float, ties to even, by comparison with each.
    fn nearest(number: f64, values: &[(u16, f64)]) -> u16 {
        let above = values.partition_point(|(_, value)| *value < number);
        let (Some(low), Some(high)) = (values.get(above.saturating_sub(1)), values.get(above)) else { return 0 };
        let (down, up) = (number - low.1, high.1 - number);
        if down < up || down == up && low.0 % 2 == 0 { low.0 } else { high.0 }
    }

    #[test]
    fn numbers_around_the_middle_of_two_are_rounded_once() {
        // Positive and finite ones, ascending.
        let halves: Vec<(u16, f64)> = (0..0x7c00).map(|bits| (bits, f16::from_bits(bits).to_f64())).collect();
        let brains: Vec<(u16, f64)> = (0..0x7f80).map(|bits| (bits, bf16::from_bits(bits).to_f64())).collect();
        for (values, narrow) in [
            (&halves, (|x: f64| f16::from_f32(x.odd()).to_bits()) as fn(f64) -> u16),
            (&brains, |x: f64| bf16::from_f32(x.odd()).to_bits()),
        ] {
            for pair in values.windows(2).step_by(7).chain(values.windows(2).take(3)) {
                let middle = pair[0].1 / 2.0 + pair[1].1 / 2.0;
                for number in [middle.next_down(), middle, middle.next_up(), pair[0].1, pair[0].1.next_up()] {
                    assert_eq!(narrow(number), nearest(number, values), "{number:e}");
                    assert_eq!(narrow(-number), nearest(number, values) | 0x8000, "-{number:e}");
                }
            }
        }
    }

    #[test]
    fn known_values_are_those_of_numpy() {
        // numpy.array(x).astype("float16"), NumPy 2.
        let half = |x: f64| f16::from_f32(x.odd()).to_f64();
        assert_eq!(half(1.0 + 2_f64.powi(-11) + 2_f64.powi(-40)), 1.000_976_562_5);
        assert_eq!(half(65_519.999_999), 65_504.0);
        assert_eq!(half(65_520.0), f64::INFINITY);
        assert_eq!(half(2_f64.powi(-25) + 2_f64.powi(-60)), 2_f64.powi(-24));
        assert_eq!(half(-1e-300).to_bits(), (-0.0_f64).to_bits());
        assert_eq!((half(1e300), half(f64::NEG_INFINITY)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(half(f64::NAN).is_nan());
        let brain = |x: f32| bf16::from_f32(x).to_f64();
        assert_eq!(brain((1.0 + 2_f64.powi(-8) + 2_f64.powi(-45)).odd()), 1.0 + 2_f64.powi(-7));
        assert_eq!(brain(((1_i64 << 30) + (1 << 22) + 1).odd()), f64::from((1 << 30) + (1 << 23)));
        assert_eq!(brain(((1_i32 << 30) + (1 << 22) + 1).odd()), f64::from((1 << 30) + (1 << 23)));
        assert_eq!(brain((-(1_i64 << 62) - (1 << 54) - 1).odd()), -((1_i64 << 62) + (1 << 55)) as f64);
        assert_eq!(brain(u64::MAX.odd()), 2_f64.powi(64));
        assert_eq!((7_u8.odd(), (-7_i16).odd(), u32::MAX.odd()), (7.0, -7.0, 4_294_967_040.0));
    }
}
