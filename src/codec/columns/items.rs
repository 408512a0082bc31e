//! Lists of any kind as offsets and items.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::DataType;

use super::offsets::Offsets;
use crate::schema::cast;

/// A result with the fault of an array; the caller adds the place.
pub(super) type Checked<T> = Result<T, String>;

/// The offsets and items of a list of any kind.
pub(super) fn items(array: &ArrayRef) -> Checked<(Offsets, ArrayRef)> {
    let whole = |ty: DataType| cast(array, &ty).map_err(|error| error.to_string());
    Ok(match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            (Offsets::Small(list.offsets().clone()), Arc::clone(list.values()))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            (Offsets::Large(list.offsets().clone()), Arc::clone(list.values()))
        }
        DataType::Map(..) => {
            let map = array.as_map();
            (Offsets::Small(map.offsets().clone()), Arc::new(map.entries().clone()) as ArrayRef)
        }
        DataType::FixedSizeList(_, length) => {
            let list = array.as_fixed_size_list();
            let length = usize::try_from(*length).unwrap_or(0);
            let offsets = OffsetBuffer::<i64>::from_lengths(std::iter::repeat_n(length, list.len()));
            (Offsets::Large(offsets), Arc::clone(list.values()))
        }
        DataType::ListView(item) => return items(&whole(DataType::List(Arc::clone(item)))?),
        DataType::LargeListView(item) => return items(&whole(DataType::LargeList(Arc::clone(item)))?),
        _ => return Err(unexpected(array, "a list")),
    })
}

pub(super) fn unexpected(array: &ArrayRef, wanted: &str) -> String {
    format!("type {} where the schema promises {wanted}", array.data_type())
}
