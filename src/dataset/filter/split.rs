//! Splits by hash: the same rows go into the same part, whatever else is in the dataset. The hash and its bounds are those of
//! Petastorm's `in_pseudorandom_split`.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use md5::{Digest, Md5};

/// Hashes are taken modulo this: Python's `sys.maxsize`.
const BUCKETS: u64 = i64::MAX as u64;

/// The values whose hash is in `low..high`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Split {
    low: u64,
    high: u64,
}

impl Split {
    /// The part from `low` to `high` of all hashes, as fractions.
    pub(super) fn new(low: f64, high: f64) -> Self {
        let most = (BUCKETS - 1) as f64;
        // Whole numbers are compared with fractional bounds: what matters is the next whole number.
        Self { low: (low * most).ceil() as u64, high: (high * most).ceil() as u64 }
    }

    fn holds(&self, text: &[u8]) -> bool {
        let digest = Md5::digest(text);
        let value = digest.iter().fold(0_u128, |value, byte| value << 8 | u128::from(*byte));
        let bucket = (value % u128::from(BUCKETS)) as u64;
        (self.low..self.high).contains(&bucket)
    }

    /// The test on every value; `None` if the array is of another kind than those that are hashed.
    pub(super) fn on(&self, array: &ArrayRef) -> Option<BooleanBuffer> {
        let rows = array.len();
        Some(match array.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                let texts = cast(array, &DataType::Utf8View).ok()?;
                let texts = texts.as_string_view();
                BooleanBuffer::collect_bool(rows, |row| self.holds(texts.value(row).as_bytes()))
            }
            DataType::UInt64 => {
                let values = array.as_primitive::<UInt64Type>().values();
                BooleanBuffer::collect_bool(rows, |row| self.holds(values[row].to_string().as_bytes()))
            }
            ty if ty.is_integer() => {
                let values = cast(array, &DataType::Int64).ok()?;
                let values = values.as_primitive::<Int64Type>().values();
                BooleanBuffer::collect_bool(rows, |row| self.holds(values[row].to_string().as_bytes()))
            }
            _ => return None,
        })
    }
}
