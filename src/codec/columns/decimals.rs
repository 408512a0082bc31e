//! Decimals as integers, each exactly or not at all: `float64`, which they are to other types, holds no more than 15 of their digits.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, i256};

use super::items::{Checked, unexpected};
use crate::schema::DType;

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

    use arrow::array::{Decimal32Array, Decimal128Array, Decimal256Array};

    use super::*;

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
