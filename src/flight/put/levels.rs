//! Memory that the Parquet writer takes besides the rows: numbers for each value of a list or struct, of all its leaves at once.
//!
//! A value may take no byte of a message and still some of these numbers: a column of nulls below a list, a bit of a list of booleans. So
//! they are counted before the writer makes them.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;

use crate::error::Result;

/// Bytes for a value of a leaf: its definition and repetition level, and its place among those that are not null.
const EACH: u64 = 2 + 2 + 8;
/// Bytes that a piece of a batch takes at most, if its rows can be parted.
const PIECE: u64 = 64 << 20;

/// Bytes for all columns of `batch` except those of one value a row that takes bytes of its message: each of those is written by itself.
pub(super) fn all(batch: &RecordBatch) -> u64 {
    let flat = |column: &dyn Array| !column.data_type().is_nested() && *column.data_type() != DataType::Null;
    let columns = batch.columns().iter().filter(|column| !flat(column));
    columns.fold(0, |sum: u64, column| sum.saturating_add(of(column, 0)))
}

/// Bytes for the largest column of `batch`: one is written after another.
fn most(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|column| of(column, 0)).max().unwrap_or(0)
}

/// Bytes for all leaves of `array`, which lies in lists that have `above` more entries: those that are empty or null have one each.
fn of(array: &dyn Array, above: u64) -> u64 {
    let rows = above.saturating_add(array.len() as u64);
    let within = |values: &dyn Array, first: usize, end: usize| of(&values.slice(first, end - first), rows);
    match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (first, end) = (list.offsets()[0], list.offsets()[list.len()]);
            within(list.values(), first as usize, end as usize)
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let (first, end) = (list.offsets()[0], list.offsets()[list.len()]);
            within(list.values(), first as usize, end as usize)
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let (first, end) = (map.offsets()[0], map.offsets()[map.len()]);
            within(map.entries(), first as usize, end as usize)
        }
        DataType::FixedSizeList(..) => of(array.as_fixed_size_list().values(), rows),
        DataType::Struct(_) => {
            let members = array.as_struct().columns().iter();
            members.fold(0, |sum: u64, member| sum.saturating_add(of(member, above)))
        }
        _ => rows.saturating_mul(EACH),
    }
}

/// Gives `batch` to `write` in pieces for which the writer takes little, and says of each whether it still takes much: a row
/// that is long by itself.
pub(super) fn in_pieces(batch: &RecordBatch, write: &mut impl FnMut(&RecordBatch, bool) -> Result<()>) -> Result<()> {
    let (rows, much) = (batch.num_rows(), most(batch) > PIECE);
    if !much || rows < 2 {
        return write(batch, much);
    }
    in_pieces(&batch.slice(0, rows / 2), write)?;
    in_pieces(&batch.slice(rows / 2, rows - rows / 2), write)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BooleanArray, Int32Array, ListArray, StructArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::Field;

    use super::*;

    /// Lists of these lengths, of truths.
    fn lists(lengths: &[usize]) -> ArrayRef {
        let values: ArrayRef = Arc::new(BooleanArray::from(vec![true; lengths.iter().sum()]));
        let field = Arc::new(Field::new("item", DataType::Boolean, true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths.iter().copied()), values, None))
    }

    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        RecordBatch::try_from_iter(columns.into_iter().enumerate().map(|(at, column)| (at.to_string(), column)))
            .unwrap()
    }

    #[test]
    fn each_leaf_counts_each_value_and_each_list() {
        let ids: ArrayRef = Arc::new(Int32Array::from(vec![1; 3]));
        assert_eq!(all(&batch(vec![Arc::clone(&ids)])), 0, "no more than a few times its bytes");
        assert_eq!(all(&batch(vec![lists(&[5, 0, 2])])), (3 + 7) * EACH);
        let field = |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
        let truths = lists(&[5, 0, 2]);
        let both: ArrayRef =
            Arc::new(StructArray::from(vec![(field("a", &ids), ids), (field("b", &truths), Arc::clone(&truths))]));
        let whole = batch(vec![both, truths]);
        assert_eq!(all(&whole), (3 + 10 + 10) * EACH);
        assert_eq!(all(&whole.slice(1, 2)), (2 + 4 + 4) * EACH, "a part counts its own");
    }

    #[test]
    fn long_batches_are_written_in_pieces_in_their_order() {
        let long = (PIECE / EACH) as usize;
        let whole = batch(vec![lists(&[10, long / 2, long, 3, long / 2, long / 3])]);
        let mut pieces = Vec::new();
        in_pieces(&whole, &mut |piece, much| {
            pieces.push((piece.clone(), much));
            Ok(())
        })
        .unwrap();
        assert!(pieces.iter().all(|(piece, much)| (most(piece) > PIECE) == *much && (!much || piece.num_rows() == 1)));
        assert_eq!(pieces.iter().filter(|(_, much)| *much).count(), 1);
        let again = arrow::compute::concat_batches(&whole.schema(), pieces.iter().map(|(piece, _)| piece)).unwrap();
        assert_eq!(again, whole);
    }
}
