//! Cells that shrink to nearly nothing in any form that Parquet has, such as lists of millions of nulls. Loaders take such files for
//! hostile ones and refuse them, with limits that nobody can raise for a dataset that clients write: so the cell is refused while its writer
//! can still be told.

use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::dataset::{CellForm, Limits, cell_form, long_cells};
use crate::error::{Error, Place, Result};

/// Refuses a cell of `batch` that no loader would read; `before` rows came before it. Cells are measured one at a time over all attempts,
/// since the writer's memory for one is as large as it is.
///
/// # Errors
/// [`Error::Unsupported`] naming column and row.
pub(super) fn check(batch: &RecordBatch, before: u64, alone: &Mutex<()>) -> Result<()> {
    // The form with the most bytes, which the writer takes for a cell that no loader would read in another.
    let plain = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        long_cells(column, 0, &mut |row, cell| {
            // Nothing is left half-done by one that panicked.
            let _alone = alone.lock().unwrap_or_else(PoisonError::into_inner);
            // A cell that cannot be written is left to its writer.
            let Ok(CellForm::AsItIs(grown, stored)) = cell_form(field, cell, plain.clone()) else { return Ok(()) };
            let most = Limits::default().max_ratio;
            let what = format!(
                "a cell of {grown} bytes that is stored in {stored}, less than one in {most}, which loaders take for hostile,"
            );
            let hint = "spread it over several rows, or store something shorter that it can be made from";
            let place = Place::default().column(field.name().as_str()).row(before + row as u64);
            Err(Error::unsupported(what, hint).at(place))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BinaryArray, Int8Array, Int64Array, ListArray, StringArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{DataType, Field};

    use super::*;

    fn refused(columns: Vec<(&str, ArrayRef)>) -> Option<String> {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let error = check(&batch, 100, &Mutex::default()).err()?;
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        Some(error.to_string())
    }

    /// Lists of these lengths, of nulls or of zeros.
    fn lists(lengths: &[usize], nulls: bool) -> ArrayRef {
        let count = lengths.iter().sum();
        let values = if nulls { Int8Array::new_null(count) } else { Int8Array::from(vec![0; count]) };
        let field = Arc::new(Field::new("item", DataType::Int8, true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths.iter().copied()), Arc::new(values), None))
    }

    #[test]
    fn a_cell_that_no_loader_reads_is_refused_by_column_and_row() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let error = refused(vec![("id", ids), ("l", lists(&[3, 30 << 20, 1], true))]).unwrap();
        assert!(error.contains("column l, row 101") && error.contains("several rows"), "{error}");
    }

    #[test]
    fn cells_that_can_be_stored_as_they_are_are_kept() {
        assert_eq!(refused(vec![("l", lists(&[3, 30 << 20, 1], false))]), None);
        assert_eq!(refused(vec![("l", lists(&[1 << 20, 1 << 20], true))]), None);
        let same = "a".repeat(20 << 20);
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", same.as_str()]));
        assert_eq!(refused(vec![("t", texts)]), None);
        let zeros = vec![0_u8; 20 << 20];
        assert_eq!(refused(vec![("p", Arc::new(BinaryArray::from(vec![zeros.as_slice()])) as _)]), None);
    }
}
