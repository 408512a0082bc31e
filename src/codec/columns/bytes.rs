//! Text and binary: delivered as Arrow, in compact copies that keep no row group alive.
//!
//! They are held as views, which costs no copy of the bytes, and delivered as `LargeUtf8` and `LargeBinary`, which
//! every consumer of Arrow reads.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, LargeBinaryArray, LargeListArray, LargeStringArray, new_empty_array,
    new_null_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field};

use super::gather::Picks;
use super::offsets::Offsets;
use crate::schema::cast;

/// Maximum bytes of one compact copy. A dictionary repeats one value a million times in a few bytes; a copy writes it
/// out each time.
const MAX_BYTES: u64 = 8 << 30;

/// The Arrow type in which text (or binary) within `levels` lists is delivered.
pub(super) fn delivered(text: bool, levels: usize) -> DataType {
    let leaf = if text { DataType::LargeUtf8 } else { DataType::LargeBinary };
    (0..levels).fold(leaf, |ty, _| DataType::LargeList(Arc::new(item(ty))))
}

fn item(ty: DataType) -> Field {
    Field::new("item", ty, true)
}

/// `ty` without its storage forms: dictionaries and views written out.
pub(super) fn decoded(ty: &DataType) -> DataType {
    match ty {
        DataType::Dictionary(_, values) => decoded(values),
        DataType::RunEndEncoded(_, values) => decoded(values.data_type()),
        _ => ty.clone(),
    }
}

/// The values of any text or binary array as views.
pub(super) fn views(array: &ArrayRef, text: bool) -> Result<BinaryViewArray, String> {
    let to = |ty: &DataType| cast(array, ty).map_err(|error| error.to_string());
    match array.data_type() {
        DataType::RunEndEncoded(_, values) => views(&to(values.data_type())?, text),
        DataType::BinaryView => Ok(array.as_binary_view().clone()),
        _ if text => Ok(to(&DataType::Utf8View)?.as_string_view().clone().to_binary_view()),
        _ => Ok(to(&DataType::BinaryView)?.as_binary_view().clone()),
    }
}

/// An array of these values.
fn compact<'a>(text: bool, values: impl Iterator<Item = Option<&'a [u8]>> + Clone) -> Result<ArrayRef, String> {
    let total = values.clone().flatten().fold(0_u64, |sum, value| sum.saturating_add(value.len() as u64));
    if total > MAX_BYTES {
        return Err(format!("its values written out take {total} bytes, and no more than {MAX_BYTES} are copied"));
    }
    let rows = values.size_hint().0;
    // At most `MAX_BYTES`; anything beyond the address space is unavailable memory too.
    let mut bytes: Vec<u8> = room(usize::try_from(total).unwrap_or(usize::MAX))?;
    let mut offsets: Vec<i64> = room(rows.saturating_add(1))?;
    let mut valid: Vec<bool> = room(rows)?;
    offsets.push(0);
    for value in values {
        bytes.extend_from_slice(value.unwrap_or_default());
        offsets.push(bytes.len() as i64);
        valid.push(value.is_some());
    }
    let offsets = OffsetBuffer::new(offsets.into());
    let nulls = Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0);
    let bytes = Buffer::from_vec(bytes);
    if text {
        LargeStringArray::try_new(offsets, bytes, nulls)
            .map(|array| Arc::new(array) as ArrayRef)
            .map_err(|e| e.to_string())
    } else {
        LargeBinaryArray::try_new(offsets, bytes, nulls)
            .map(|array| Arc::new(array) as ArrayRef)
            .map_err(|e| e.to_string())
    }
}

/// An empty vector with room for `len`. The sizes come from files, so too little memory is an error, not an abort.
fn room<T>(len: usize) -> Result<Vec<T>, String> {
    let mut vec = Vec::new();
    match vec.try_reserve_exact(len) {
        Ok(()) => Ok(vec),
        Err(_) => Err(format!("there is no memory for a copy of {len} items of {} bytes", size_of::<T>())),
    }
}

/// Lists of text or binary in their delivered type. Nulls inside take `fill`, or stay.
pub(super) fn nested(
    leaf: &BinaryViewArray,
    text: bool,
    fill: Option<&[u8]>,
    offsets: &[Offsets],
) -> Result<ArrayRef, String> {
    let value = |at: usize| if leaf.is_valid(at) { Some(leaf.value(at)) } else { fill };
    let mut array = compact(text, (0..leaf.len()).map(value))?;
    for offsets in offsets.iter().rev() {
        let offsets = match offsets {
            Offsets::Large(offsets) => offsets.clone(),
            Offsets::Small(offsets) => OffsetBuffer::new(offsets.iter().map(|at| i64::from(*at)).collect()),
        };
        let item = Arc::new(item(array.data_type().clone()));
        array = Arc::new(LargeListArray::try_new(item, offsets, array, None).map_err(|error| error.to_string())?);
    }
    Ok(array)
}

/// The picked rows of plain text or binary; nulls take `fill`, or stay. Padding rows are empty.
pub(super) fn gather(
    text: bool,
    fill: Option<&[u8]>,
    cells: &[&BinaryViewArray],
    picks: &Picks<'_>,
) -> Result<ArrayRef, String> {
    let value = |at: usize| match picks.rows.get(at) {
        None => Some(&[][..]),
        Some((cell, row)) => {
            let (array, row) = (cells[*cell as usize], *row as usize);
            if array.is_valid(row) { Some(array.value(row)) } else { fill }
        }
    };
    compact(text, (0..picks.size).map(value))
}

/// The picked rows of arrays of any type. Padding rows are null.
pub(super) fn gather_any(ty: &DataType, cells: &[&ArrayRef], picks: &Picks<'_>) -> Result<ArrayRef, String> {
    let padding = new_null_array(ty, 1);
    rows(cells, &padding, picks)
}

/// The picked rows of lists of text or binary, or of strings that are arrays without axes. Padding rows are empty.
pub(super) fn gather_nested(ty: &DataType, cells: &[&ArrayRef], picks: &Picks<'_>) -> Result<ArrayRef, String> {
    let padding: ArrayRef = match ty {
        DataType::LargeList(item) => {
            let ends = OffsetBuffer::new(vec![0i64, 0].into());
            let lists = LargeListArray::try_new(Arc::clone(item), ends, new_empty_array(item.data_type()), None);
            Arc::new(lists.map_err(|error| error.to_string())?)
        }
        DataType::LargeUtf8 => Arc::new(LargeStringArray::from_iter_values([""])),
        DataType::LargeBinary => Arc::new(LargeBinaryArray::from_iter_values([b""])),
        _ => return Err(format!("lists of type {ty}")),
    };
    rows(cells, &padding, picks)
}

/// The picked rows of `cells`, then the row of `padding` once for each padding row.
fn rows(cells: &[&ArrayRef], padding: &dyn Array, picks: &Picks<'_>) -> Result<ArrayRef, String> {
    let mut arrays: Vec<&dyn Array> = cells.iter().map(|array| &***array).collect();
    let rows = picks.rows.iter().map(|(cell, row)| (*cell as usize, *row as usize));
    let rows: Vec<(usize, usize)> =
        rows.chain(std::iter::repeat_n((arrays.len(), 0), picks.size - picks.rows.len())).collect();
    arrays.push(padding);
    interleave(&arrays, &rows).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use arrow::array::BinaryViewBuilder;

    use super::*;

    #[test]
    fn arrays_without_axes_are_strings() {
        for text in [true, false] {
            let mut builder = BinaryViewBuilder::new();
            ["a", "bc"].into_iter().for_each(|value| builder.append_value(value));
            let strings = nested(&builder.finish(), text, None, &[]).unwrap();
            let picks = Picks { rows: &[(0, 1), (0, 0)], size: 3, runs: &[], streams: None };
            let found = gather_nested(&delivered(text, 0), &[&strings], &picks).unwrap();
            assert_eq!(found.data_type(), &delivered(text, 0));
            let found = cast(&found, &DataType::LargeUtf8).unwrap();
            assert_eq!(found.as_string::<i64>().iter().flatten().collect::<Vec<_>>(), ["bc", "a", ""]);
        }
    }

    #[test]
    fn a_value_said_too_often_is_an_error_before_anything_is_reserved() {
        let mut builder = BinaryViewBuilder::new();
        let block = builder.append_block(Buffer::from_vec(vec![0_u8; 1 << 20]));
        for _ in 0..10_000 {
            builder.try_append_view(block, 0, 1 << 20).unwrap();
        }
        let views = builder.finish();
        let error = nested(&views, false, None, &[]).unwrap_err();
        assert!(error.contains("10485760000 bytes"), "{error}");
        let rows: Vec<(u32, u32)> = (0..10_000).map(|row| (0, row)).collect();
        let picks = Picks { rows: &rows, size: rows.len(), runs: &[], streams: None };
        assert!(gather(false, None, &[&views], &picks).is_err());
        assert_eq!(gather(false, None, &[&views], &Picks { rows: &rows[..2], size: 3, ..picks }).unwrap().len(), 3);
        assert!(room::<u64>(usize::MAX).is_err());
    }
}
