//! The value that stands in for a null in a column that is delivered as it is stored.

use arrow::array::{ArrayDataBuilder, ArrayRef, BooleanArray, Scalar as One, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::kernels::zip::zip;
use arrow::datatypes::{DataType, TimeUnit, i256};

use super::items::Checked;
use super::leaf::{Kind, kind};
use super::number::{Scalar, element};
use crate::schema::DType;

/// Returns true if values of `ty` are numbers, or stored as such.
pub(super) fn is_number(ty: &DataType) -> bool {
    matches!(kind(ty).0, Kind::Number(_) | Kind::Blob(_) | Kind::Decimal)
}

/// The bytes of one value of `ty` with this number, a number of days since 1970 for a date, for example; `None` if `ty`
/// does not hold it.
pub(super) fn of(value: &Scalar, ty: &DataType) -> Option<Vec<u8>> {
    match kind(ty).0 {
        Kind::Number(dtype) => element(value, dtype).filter(|bytes| within_day(bytes, ty)),
        Kind::Blob(length) => element(value, DType::Uint8).map(|byte| byte.repeat(length)),
        Kind::Decimal => decimal(value, ty),
        _ => None,
    }
}

/// Returns false for a time of day that no day has.
fn within_day(bytes: &[u8], ty: &DataType) -> bool {
    let (DataType::Time32(unit) | DataType::Time64(unit)) = ty else { return true };
    let second: u64 = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    // Of 4 or 8 bytes; a negative time is larger than every day.
    let time = bytes.iter().rev().fold(0, |time: u64, byte| time << 8 | u64::from(*byte));
    time < 86_400 * second
}

/// JSON makes floats of whole numbers from here on, which may lose digits.
const LARGEST: f64 = 18_446_744_073_709_551_616.0;

/// The bytes of a decimal, exact to the last digit with which the number is written.
fn decimal(value: &Scalar, ty: &DataType) -> Option<Vec<u8>> {
    let (precision, scale) = match ty {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => (usize::from(*precision), i64::from(*scale)),
        _ => return None,
    };
    let text = match value {
        Scalar::Bool(value) => u8::from(*value).to_string(),
        Scalar::Int(value) => value.to_string(),
        Scalar::Uint(value) => value.to_string(),
        Scalar::Float(value) if value.abs() < LARGEST => value.to_string(),
        Scalar::Text(text) if is_plain(text) => text.clone(),
        Scalar::Float(_) | Scalar::Text(_) => return None,
    };
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{fraction}");
    // The digits without zeros at either end, and the power of ten of the last one.
    let significant = digits.trim_end_matches('0');
    let power = (digits.len() - significant.len()) as i64 - fraction.len() as i64;
    let significant = significant.trim_start_matches('0');
    let zeros = if significant.is_empty() { 0 } else { usize::try_from(power + scale).ok()? };
    if significant.len().checked_add(zeros)? > precision {
        return None;
    }
    let unscaled = i256::from_string(&format!("{sign}0{significant}{}", "0".repeat(zeros)))?;
    Some(match ty {
        DataType::Decimal32(..) => i32::try_from(unscaled.to_i128()?).ok()?.to_le_bytes().to_vec(),
        DataType::Decimal64(..) => i64::try_from(unscaled.to_i128()?).ok()?.to_le_bytes().to_vec(),
        DataType::Decimal128(..) => unscaled.to_i128()?.to_le_bytes().to_vec(),
        _ => unscaled.to_le_bytes().to_vec(),
    })
}

/// Returns true for digits with one sign in front and one point among them at most.
fn is_plain(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !whole.is_empty() && text.len() <= 100 && are_digits(whole) && are_digits(fraction)
}

/// `array` with `value`, the bytes of one value of its type, where `nulls` has nulls.
pub(super) fn filled(array: &ArrayRef, nulls: &NullBuffer, value: &[u8]) -> Checked<ArrayRef> {
    let one = ArrayDataBuilder::new(array.data_type().clone()).len(1).add_buffer(Buffer::from(value));
    let one = one.build().map_err(|error| error.to_string())?;
    let present = BooleanArray::new(nulls.inner().clone(), None);
    zip(&present, array, &One::new(make_array(one))).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, AsArray, Decimal128Array, new_null_array};
    use arrow::datatypes::{Decimal128Type, Int32Type};

    use super::*;

    #[test]
    fn decimals_are_exact_or_refused() {
        let unscaled = |value: Scalar, precision, scale| {
            of(&value, &DataType::Decimal128(precision, scale))
                .map(|bytes| i128::from_le_bytes(bytes.try_into().unwrap()))
        };
        assert_eq!(unscaled(Scalar::Int(0), 1, 0), Some(0));
        assert_eq!(unscaled(Scalar::Int(0), 38, -3), Some(0));
        assert_eq!(unscaled(Scalar::Int(-12), 5, 2), Some(-1200));
        assert_eq!(unscaled(Scalar::Float(0.1), 5, 2), Some(10));
        assert_eq!(unscaled(Scalar::Float(-1.25), 5, 2), Some(-125));
        assert_eq!(unscaled(Scalar::Float(1e300), 38, 2), None);
        assert_eq!(unscaled(Scalar::Float(0.125), 5, 2), None, "a digit too many");
        assert_eq!(unscaled(Scalar::Int(1000), 5, 2), None, "no room for it");
        assert_eq!(unscaled(Scalar::Int(999), 5, 2), Some(99_900));
        assert_eq!(unscaled(Scalar::Int(12_000), 2, -3), Some(12));
        assert_eq!(unscaled(Scalar::Int(12_100), 2, -3), None);
        assert_eq!(unscaled(Scalar::Float(f64::NAN), 5, 2), None);
        assert_eq!(unscaled(Scalar::Bool(true), 5, 2), Some(100));
        let text = |text: &str, precision, scale| unscaled(Scalar::Text(text.into()), precision, scale);
        assert_eq!(text("-1.5", 5, 2), Some(-150));
        assert_eq!(text("100000000000000000000000000000000001", 38, 0), Some(10_i128.pow(35) + 1));
        for wrong in ["", "-", ".5", "1e3", "+1", "1.2.3", "--1", "nan", "1 "] {
            assert_eq!(text(wrong, 38, 2), None, "{wrong}");
        }
        assert_eq!(unscaled(Scalar::Uint(u64::MAX), 38, 0), Some(u64::MAX.into()));
        assert_eq!(unscaled(Scalar::Float(1e20), 38, 0), None, "what was written is not known");
        let minus = Scalar::Int(-1);
        assert_eq!(of(&minus, &DataType::Decimal32(9, 0)), Some(vec![255; 4]));
        assert_eq!(of(&minus, &DataType::Decimal64(18, 0)), Some(vec![255; 8]));
        assert_eq!(of(&minus, &DataType::Decimal256(76, 0)), Some(vec![255; 32]));
        assert_eq!(of(&Scalar::Int(i64::MAX), &DataType::Decimal32(9, 0)), None);
    }

    #[test]
    fn only_values_of_the_type_stand_in() {
        let (zero, minus) = (Scalar::Int(0), Scalar::Int(-1));
        assert_eq!(of(&minus, &DataType::Date32), Some(vec![255; 4]));
        assert_eq!(of(&minus, &DataType::Timestamp(TimeUnit::Second, Some("UTC".into()))), Some(vec![255; 8]));
        assert_eq!(of(&minus, &DataType::Time32(TimeUnit::Second)), None);
        assert_eq!(of(&Scalar::Int(86_399), &DataType::Time32(TimeUnit::Second)).map(|bytes| bytes.len()), Some(4));
        assert_eq!(of(&Scalar::Int(86_400), &DataType::Time32(TimeUnit::Second)), None);
        assert_eq!(of(&minus, &DataType::Time64(TimeUnit::Nanosecond)), None);
        assert_eq!(of(&Scalar::Float(0.5), &DataType::Int32), None);
        assert_eq!(of(&Scalar::Int(2), &DataType::Boolean), None);
        assert_eq!(of(&Scalar::Int(7), &DataType::FixedSizeBinary(3)), Some(vec![7; 3]));
        assert_eq!(of(&zero, &DataType::Null), None);
        assert!(is_number(&DataType::Date64) && !is_number(&DataType::Null) && !is_number(&DataType::Utf8));
    }

    #[test]
    fn nulls_are_filled_and_nothing_else() {
        let numbers = Decimal128Array::from(vec![Some(5), None, Some(-7)]).with_precision_and_scale(5, 2).unwrap();
        let array: ArrayRef = Arc::new(numbers);
        let value = of(&Scalar::Float(0.5), array.data_type()).unwrap();
        let found = filled(&array, array.nulls().unwrap(), &value).unwrap();
        assert_eq!(found.data_type(), array.data_type());
        assert_eq!(
            (found.null_count(), found.as_primitive::<Decimal128Type>().values().to_vec()),
            (0, vec![5, 50, -7])
        );
        for ty in [DataType::Boolean, DataType::Date32, DataType::FixedSizeBinary(3), DataType::Decimal256(50, 1)] {
            let nulls = new_null_array(&ty, 3);
            let found = filled(&nulls, nulls.nulls().unwrap(), &of(&Scalar::Int(1), &ty).unwrap()).unwrap();
            assert_eq!((found.null_count(), found.data_type()), (0, &ty));
        }
        let dates = new_null_array(&DataType::Int32, 2);
        let found = filled(&dates, dates.nulls().unwrap(), &7_i32.to_le_bytes()).unwrap();
        assert_eq!(found.as_primitive::<Int32Type>().values().to_vec(), [7, 7]);
    }
}
