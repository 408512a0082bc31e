//! Doubles on their way to half floats, at any depth.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, make_array};
use arrow::datatypes::{DataType, Float64Type};
use arrow::error::ArrowError;

use super::nested::{child, inner};
use super::odd::Odd;

/// Returns the array with doubles that become half floats, at any depth, rounded to odd: Arrow rounds them to the nearest twice.
pub(super) fn odd(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let from = array.data_type();
    if !halves(from, to) {
        return Ok(Arc::clone(array));
    }
    if (from, to) == (&DataType::Float64, &DataType::Float16) {
        let values = array.as_primitive::<Float64Type>();
        return Ok(Arc::new(values.unary::<_, Float64Type>(|value| f64::from(value.odd()))));
    }
    let data = array.to_data();
    let mut children = data.child_data().to_vec();
    for (at, to) in inner(from, to) {
        if let Some(child) = children.get_mut(at) {
            *child = odd(&make_array(child.clone()), &to)?.to_data();
        }
    }
    Ok(make_array(data.into_builder().child_data(children).build()?))
}

/// Returns true if doubles of `from` become half floats in `to`.
fn halves(from: &DataType, to: &DataType) -> bool {
    (from, to) == (&DataType::Float64, &DataType::Float16)
        || inner(from, to).into_iter().any(|(at, to)| child(from, at).is_some_and(|from| halves(from, &to)))
}
