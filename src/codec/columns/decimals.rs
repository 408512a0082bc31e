//! Decimals as integers, each exactly or not at all, and as `float64`, which holds no more than 15 of their digits: each the nearest one.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, i256};

use super::items::{Checked, unexpected};
use crate::schema::DType;

/// The largest power of ten that is exact as `float64`.
const EXACT_POWERS: u32 = 22;

/// The values as `int64`, or as `uint64` if that is `wanted`. Zero stands for those that are no such integer, whose elements are told.
pub(super) fn whole(array: &ArrayRef, wanted: DType) -> Checked<(Buffer, DType, Vec<usize>)> {
    let numbers = match array.data_type() {
        DataType::Decimal32(_, scale) => narrow(array.as_primitive::<Decimal32Type>().values(), *scale),
        DataType::Decimal64(_, scale) => narrow(array.as_primitive::<Decimal64Type>().values(), *scale),
        DataType::Decimal128(_, scale) => narrow(array.as_primitive::<Decimal128Type>().values(), *scale),
        DataType::Decimal256(_, scale) => wide(array.as_primitive::<Decimal256Type>().values(), *scale),
        _ => return Err(unexpected(array, "decimals")),
    };
    Ok(if wanted == DType::Uint64 {
        let (values, odd) = held::<u64>(&numbers);
        (Buffer::from_vec(values), wanted, odd)
    } else {
        let (values, odd) = held::<i64>(&numbers);
        (Buffer::from_vec(values), DType::Int64, odd)
    })
}

/// The values as `float64`, each rounded once; `None` for decimals that Arrow casts as fast, or whose power of ten is no exact float.
///
/// These are the numbers of Arrow's cast, which prints and parses those beyond 2^53.
pub(super) fn floats(array: &ArrayRef) -> Option<Vec<f64>> {
    match array.data_type() {
        DataType::Decimal64(_, scale) => nearest(array.as_primitive::<Decimal64Type>().values(), *scale),
        DataType::Decimal128(_, scale) => nearest(array.as_primitive::<Decimal128Type>().values(), *scale),
        _ => None,
    }
}

fn nearest<T: Copy + Into<i128>>(unscaled: &[T], scale: i8) -> Option<Vec<f64>> {
    let scale = u32::try_from(scale).ok().filter(|scale| *scale <= EXACT_POWERS)?;
    let (power, fives) = (10_u128.pow(scale) as f64, 5_u128.pow(scale));
    let one = |unscaled: i128| {
        let digits = unscaled.unsigned_abs();
        // Of two exact floats the quotient is rounded once.
        if scale == 0 || digits < 1 << f64::MANTISSA_DIGITS {
            return unscaled as f64 / power;
        }
        // The powers of two in the divisor move the point only. The rest of it has 52 bits at most, so the quotient has 76 or more, the
        // last of which stands for a remainder: it is on the right side of the middle between two floats.
        let shift = digits.leading_zeros();
        let digits = digits << shift;
        let whole = digits / fives;
        let quotient = whole | u128::from(whole * fives != digits);
        let value = quotient as f64 / (1_u128 << (shift + scale)) as f64;
        if unscaled < 0 { -value } else { value }
    };
    Some(unscaled.iter().map(|unscaled| one((*unscaled).into())).collect())
}

fn narrow<T: Copy + Into<i128>>(unscaled: &[T], scale: i8) -> Vec<Option<i128>> {
    let power = 10_i128.checked_pow(u32::from(scale.unsigned_abs()));
    let one = |unscaled: i128| match power {
        // Ids are such, and 128 bits are slow to divide.
        _ if scale == 0 => Some(unscaled),
        Some(power) if scale < 0 => unscaled.checked_mul(power),
        Some(power) => (unscaled % power == 0).then(|| unscaled / power),
        // Beyond all numbers of 128 bits.
        None => (unscaled == 0).then_some(0),
    };
    unscaled.iter().map(|unscaled| one((*unscaled).into())).collect()
}

fn wide(unscaled: &[i256], scale: i8) -> Vec<Option<i128>> {
    let power = i256::from_i128(10).checked_pow(u32::from(scale.unsigned_abs()));
    let one = |unscaled: i256| match power {
        Some(power) if scale < 0 => unscaled.checked_mul(power)?.to_i128(),
        Some(power) => {
            let whole = unscaled.checked_rem(power)? == i256::ZERO;
            unscaled.checked_div(power).filter(|_| whole)?.to_i128()
        }
        None => (unscaled == i256::ZERO).then_some(0),
    };
    unscaled.iter().map(|unscaled| one(*unscaled)).collect()
}

fn held<T: TryFrom<i128> + Default>(numbers: &[Option<i128>]) -> (Vec<T>, Vec<usize>) {
    let mut odd = Vec::new();
    let held = |(at, number): (usize, &Option<i128>)| {
        number.and_then(|number| T::try_from(number).ok()).unwrap_or_else(|| {
            odd.push(at);
            T::default()
        })
    };
    (numbers.iter().enumerate().map(held).collect(), odd)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array};
    use arrow::datatypes::Float64Type;
    use proptest::prelude::*;

    use super::*;

    /// The values as Arrow casts them.
    fn by_arrow(array: &ArrayRef) -> Vec<u64> {
        let floats = arrow::compute::cast(array, &DataType::Float64).unwrap();
        floats.as_primitive::<Float64Type>().values().iter().map(|value| value.to_bits()).collect()
    }

    fn bits(array: &ArrayRef) -> Option<Vec<u64>> {
        Some(floats(array)?.into_iter().map(f64::to_bits).collect())
    }

    fn decimals(unscaled: Vec<i128>, scale: i8) -> ArrayRef {
        let array = Decimal128Array::from(unscaled);
        Arc::new(array.with_precision_and_scale(38, scale).unwrap())
    }

    /// Numbers of any length in bits, and those beside the middle between two floats.
    fn unscaled() -> impl Strategy<Value = i128> {
        let numbers = (any::<i128>(), 0..128_u32).prop_map(|(number, less)| number >> less);
        let middle = (any::<u64>(), 0..74_u32, -1..=1_i128).prop_map(|(number, shift, beside)| {
            // 54 bits, the last of which is set.
            ((i128::from(number >> 10) | 1) << shift) + beside
        });
        prop_oneof![numbers, middle]
    }

    proptest! {
        #[test]
        fn floats_are_those_of_the_text_for_any_digits_and_scale(
            unscaled in prop::collection::vec(unscaled(), 1..20),
            scale in 0..=22_i8,
        ) {
            let array = decimals(unscaled, scale);
            prop_assert_eq!(bits(&array), Some(by_arrow(&array)));
        }
    }

    #[test]
    fn floats_are_rounded_once_at_the_ends_of_the_range() {
        let two53 = 1_i128 << 53;
        let ends = [0, 1, two53 - 1, two53, two53 + 1, two53 + 2, two53 + 3, i128::MAX, i128::MIN, i128::MIN + 1];
        for scale in 0..=22 {
            let unscaled = ends.into_iter().chain(ends.map(i128::wrapping_neg)).collect();
            let array = decimals(unscaled, scale);
            assert_eq!(bits(&array), Some(by_arrow(&array)), "scale {scale}");
        }
        assert_eq!(floats(&decimals(vec![two53 + 1, 123_456_789_012_345_678_901], 0)).unwrap()[0], two53 as f64);
        let ids = Decimal64Array::from(vec![i64::MAX, i64::MIN, 12_345]).with_precision_and_scale(18, 3).unwrap();
        let ids: ArrayRef = Arc::new(ids);
        assert_eq!(bits(&ids), Some(by_arrow(&ids)));
        for other in [decimals(vec![1], 23), decimals(vec![1], -1)] {
            assert_eq!(floats(&other), None, "left to Arrow: {}", other.data_type());
        }
    }

    #[test]
    fn digits_beyond_those_of_a_float_stay_and_remainders_are_told() {
        let integers = |array: ArrayRef, wanted| {
            let (bytes, dtype, odd) = whole(&array, wanted).unwrap();
            (bytes.typed_data::<i64>().to_vec(), dtype, odd)
        };
        let large = i128::from(i64::MAX);
        let ids = Decimal128Array::from(vec![9_007_199_254_740_993, large, large + 1, -1]);
        let ids: ArrayRef = Arc::new(ids.with_precision_and_scale(38, 0).unwrap());
        let (values, dtype, odd) = integers(Arc::clone(&ids), DType::Int64);
        assert_eq!((values[0], values[1], values[3]), (9_007_199_254_740_993, i64::MAX, -1));
        assert_eq!((dtype, odd), (DType::Int64, vec![2]));
        let (bytes, dtype, odd) = whole(&ids, DType::Uint64).unwrap();
        assert_eq!(bytes.typed_data::<u64>()[2], 1 << 63);
        assert_eq!((dtype, odd), (DType::Uint64, vec![3]));
        let prices = Decimal32Array::from(vec![1200, 1201, 0]).with_precision_and_scale(9, 2).unwrap();
        assert_eq!(integers(Arc::new(prices), DType::Int8), (vec![12, 0, 0], DType::Int64, vec![1]));
        let thousands = Decimal32Array::from(vec![7, -7]).with_precision_and_scale(9, -3).unwrap();
        assert_eq!(integers(Arc::new(thousands), DType::Int32), (vec![7000, -7000], DType::Int64, vec![]));
        let power = i256::from_i128(10).checked_pow(40).unwrap();
        let numbers = vec![power, power.checked_mul(i256::from_i128(-12)).unwrap(), i256::from_i128(1), i256::MAX];
        let numbers = Decimal256Array::from(numbers).with_precision_and_scale(76, 40).unwrap();
        assert_eq!(integers(Arc::new(numbers), DType::Int64), (vec![1, -12, 0, 0], DType::Int64, vec![2, 3]));
    }
}
