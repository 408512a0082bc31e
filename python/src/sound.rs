//! Whether Arrow data of another library is what it says. Buffers come over as they are, and all code behind relies on offsets within them, keys
//! within dictionaries and text that is UTF-8.

use arrow::array::{Array, ArrayData, AsArray, make_array};
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::error::ArrowError;

/// Checks every value, but for those of lists beyond the ends of a slice: writing a table slice by slice looks at each value once.
///
/// # Errors
/// What is wrong, with its position where it has one.
pub(crate) fn checked(data: &ArrayData) -> Result<(), ArrowError> {
    data.validate()?;
    if let Some(nulls) = data.nulls() {
        let (said, found) = (nulls.null_count(), nulls.len() - nulls.inner().count_set_bits());
        if said != found {
            return Err(ArrowError::InvalidArgumentError(format!("it has {found} nulls, and says {said}")));
        }
    }
    data.validate_values().or_else(|error| texts(data, error))?;
    match data.data_type() {
        DataType::List(_) | DataType::Map(..) => items::<i32>(data),
        DataType::LargeList(_) => items::<i64>(data),
        _ => data.child_data().iter().try_for_each(checked),
    }
}

/// Checks the items that are in lists.
fn items<O: ArrowNativeType>(data: &ArrayData) -> Result<(), ArrowError> {
    let offsets = data.buffer::<O>(0);
    let at = |end: usize| offsets.get(end).map_or(0, |offset| offset.as_usize());
    let (first, last) = (at(0), at(data.len()));
    data.child_data().iter().try_for_each(|items| checked(&items.slice(first, last - first)))
}

/// Looks at texts one by one, because what a null hides is none. `error` is that of other types.
fn texts(data: &ArrayData, error: ArrowError) -> Result<(), ArrowError> {
    fn odd<'a>(mut values: impl Iterator<Item = Option<&'a [u8]>>) -> Option<usize> {
        values.position(|value| value.is_some_and(|value| std::str::from_utf8(value).is_err()))
    }
    let bytes = match data.data_type() {
        DataType::Utf8 => DataType::Binary,
        DataType::LargeUtf8 => DataType::LargeBinary,
        DataType::Utf8View => DataType::BinaryView,
        _ => return Err(error),
    };
    // Checks offsets and views.
    let bytes = make_array(data.clone().into_builder().data_type(bytes).build()?);
    let odd = match bytes.data_type() {
        DataType::Binary => odd(bytes.as_binary::<i32>().iter()),
        DataType::LargeBinary => odd(bytes.as_binary::<i64>().iter()),
        _ => odd(bytes.as_binary_view().iter()),
    };
    match odd {
        Some(at) => Err(ArrowError::InvalidArgumentError(format!("the text at position {at} is not UTF-8"))),
        None => Ok(()),
    }
}
