//! Values that columns have in files that lack them, as text: those of the file's partition, and defaults.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Date32Array, Decimal128Array, TimestampMicrosecondArray};
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use serde_json::Value as Json;

use super::avro::Value;
use crate::dataset::table::{binary, parse};

/// The text of `value`, of a column of `data_type`; none if it has no text here.
pub(super) fn of_partition(value: &Value, data_type: &DataType) -> Option<Arc<str>> {
    let shown = |array: ArrayRef| array_value_to_string(&array, 0).ok();
    let text = match (value, data_type) {
        (Value::Bool(value), DataType::Boolean) => value.to_string(),
        (Value::Int(value), DataType::Int32 | DataType::Int64) => value.to_string(),
        (Value::Float(value), DataType::Float32) => (*value as f32).to_string(),
        (Value::Float(value), DataType::Float64) => value.to_string(),
        (Value::Int(days) | Value::Date(days), DataType::Date32) => {
            shown(Arc::new(Date32Array::from(vec![i32::try_from(*days).ok()?])))?
        }
        (Value::Int(micros), DataType::Timestamp(..)) => {
            shown(Arc::new(TimestampMicrosecondArray::from(vec![*micros])))?
        }
        (Value::Text(value), DataType::Utf8View) => value.clone(),
        // Not one that stands for other bytes.
        (Value::Bytes(value), DataType::BinaryView) => {
            String::from_utf8(value.clone()).ok().filter(|text| binary(text) == *value)?
        }
        (Value::Bytes(value), DataType::Decimal128(precision, scale)) => {
            let array = Decimal128Array::from(vec![big_endian(value)?]);
            shown(Arc::new(array.with_precision_and_scale(*precision, *scale).ok()?))?
        }
        _ => return None,
    };
    known(text, data_type)
}

/// The text of the default `value`, of a column of `data_type`; none if it has no text here.
pub(super) fn of_default(value: &Json, data_type: &DataType) -> Option<Arc<str>> {
    let text = match (value, data_type) {
        (Json::Bool(value), DataType::Boolean) => value.to_string(),
        (Json::Number(value), DataType::Int32 | DataType::Int64 | DataType::Float32 | DataType::Float64) => {
            value.to_string()
        }
        (
            Json::String(value),
            DataType::Utf8View | DataType::Date32 | DataType::Timestamp(..) | DataType::Decimal128(..),
        ) => value.clone(),
        _ => return None,
    };
    known(text, data_type)
}

/// `text`, if it stands for a value of `data_type`.
fn known(text: String, data_type: &DataType) -> Option<Arc<str>> {
    parse(&text, data_type).filter(|value| !value.is_empty()).map(|_| text.into())
}

/// A number in two's complement.
pub(super) fn big_endian(bytes: &[u8]) -> Option<i128> {
    let first = *bytes.first()?;
    if bytes.len() > 16 {
        return None;
    }
    let start = if first & 0x80 == 0 { 0_i128 } else { -1 };
    Some(bytes.iter().fold(start, |number, byte| number << 8 | i128::from(*byte)))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimeUnit;

    use super::*;

    #[test]
    fn values_have_the_texts_that_stand_for_them() {
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        for (value, ty, text) in [
            (Value::Int(-7), DataType::Int64, Some("-7")),
            (Value::Int(18_661), DataType::Date32, Some("2021-02-03")),
            (Value::Int(1_500_000), time.clone(), Some("1970-01-01T00:00:01.500")),
            (Value::Bytes(vec![0xff, 0x83]), DataType::Decimal128(5, 2), Some("-1.25")),
            (Value::Bytes(vec![0, 0x7d]), DataType::Decimal128(5, 2), Some("1.25")),
            (Value::Float(0.5), DataType::Float32, Some("0.5")),
            (Value::Float(f64::INFINITY), DataType::Float64, Some("inf")),
            (Value::Text(String::new()), DataType::Utf8View, Some("")),
            (Value::Bytes(vec![0xff]), DataType::BinaryView, None),
            (Value::Bytes(b"\\u00FF".to_vec()), DataType::BinaryView, None),
            (Value::Bytes(b"u00FF".to_vec()), DataType::BinaryView, Some("u00FF")),
            (Value::Bytes(vec![0; 16]), DataType::FixedSizeBinary(16), None),
            (Value::Bytes(vec![1; 17]), DataType::Decimal128(38, 0), None),
            (Value::Text("x".to_owned()), DataType::Int64, None),
        ] {
            assert_eq!(of_partition(&value, &ty).as_deref(), text, "{value:?}");
        }
        for (json, ty, text) in [
            ("5", DataType::Int32, Some("5")),
            ("5.5", DataType::Int32, None),
            ("\"14.20\"", DataType::Decimal128(9, 2), Some("14.20")),
            ("\"2021-02-03T04:05:06.000001+00:00\"", time, Some("2021-02-03T04:05:06.000001+00:00")),
            ("\"0aff\"", DataType::BinaryView, None),
            ("[]", DataType::Utf8View, None),
        ] {
            let json: Json = serde_json::from_str(json).unwrap();
            assert_eq!(of_default(&json, &ty).as_deref(), text, "{json}");
        }
    }
}
