//! Whether Arrow data of another library is what it says. Buffers come over as they are, and all code behind relies on offsets within them, keys
//! within dictionaries and text that is UTF-8.

use arrow::array::{Array, ArrayData, AsArray, make_array};
use arrow::buffer::Buffer;
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
    match shown(data) {
        Some(views) => drop(views?),
        None => data.validate_values().or_else(|error| texts(data, error))?,
    }
    match data.data_type() {
        DataType::Dictionary(..) => words(data),
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

/// The same values, checked, without the views that a null hides, which are none, if there are such.
fn shown(data: &ArrayData) -> Option<Result<ArrayData, ArrowError>> {
    if !matches!(data.data_type(), DataType::Utf8View | DataType::BinaryView) {
        return None;
    }
    let nulls = data.nulls().filter(|nulls| nulls.null_count() > 0)?;
    let view = |(at, view): (usize, &u128)| if nulls.is_valid(at) { *view } else { 0 };
    let views: Buffer = data.buffer::<u128>(0).iter().take(data.len()).enumerate().map(view).collect();
    let others = data.buffers().iter().skip(1).cloned();
    let builder = ArrayData::builder(data.data_type().clone()).len(data.len()).nulls(Some(nulls.clone()));
    Some(builder.buffers(std::iter::once(views).chain(others).collect()).build())
}

/// Checks the values of a dictionary. All slices of a table have the same: of one with more texts than keys, only those of keys are looked at.
fn words(data: &ArrayData) -> Result<(), ArrowError> {
    let [values] = data.child_data() else { return Ok(()) };
    let Some(bytes) = bytes_of(values.data_type()).filter(|_| values.len() > data.len()) else {
        return checked(values);
    };
    values.validate()?;
    // Checks offsets and views.
    let values =
        shown(values).transpose()?.unwrap_or_else(|| values.clone()).into_builder().data_type(bytes).build()?;
    let values = make_array(values);
    let keys = make_array(data.clone());
    let keys = keys.as_any_dictionary();
    let at = keys.normalized_keys();
    let named = at.iter().enumerate().filter(|(row, _)| keys.is_valid(*row)).map(|(_, at)| *at);
    let is_odd = |bytes: &[u8]| std::str::from_utf8(bytes).is_err();
    let odd = match values.data_type() {
        DataType::Binary => named.map(|at| values.as_binary::<i32>().value(at)).position(is_odd),
        DataType::LargeBinary => named.map(|at| values.as_binary::<i64>().value(at)).position(is_odd),
        _ => named.map(|at| values.as_binary_view().value(at)).position(is_odd),
    };
    if odd.is_some() {
        return Err(ArrowError::InvalidArgumentError("a text of the dictionary is not UTF-8".to_owned()));
    }
    Ok(())
}

/// The type of the bytes of texts of type `texts`.
fn bytes_of(texts: &DataType) -> Option<DataType> {
    match texts {
        DataType::Utf8 => Some(DataType::Binary),
        DataType::LargeUtf8 => Some(DataType::LargeBinary),
        DataType::Utf8View => Some(DataType::BinaryView),
        _ => None,
    }
}

/// Looks at texts one by one, because what a null hides is none. `error` is that of other types.
fn texts(data: &ArrayData, error: ArrowError) -> Result<(), ArrowError> {
    fn odd<'a>(mut values: impl Iterator<Item = Option<&'a [u8]>>) -> Option<usize> {
        values.position(|value| value.is_some_and(|value| std::str::from_utf8(value).is_err()))
    }
    let Some(bytes) = bytes_of(data.data_type()) else { return Err(error) };
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
