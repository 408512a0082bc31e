//! Cells that shrink to nearly nothing when they are stored, such as millions of zeros. Loaders take such files for hostile ones and refuse
//! them, with limits that nobody can raise for a dataset that clients write: so the cell is refused while its writer can still be told.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array as _, ArrayRef, RecordBatch};
use arrow::datatypes::{FieldRef, Schema};
use parquet::file::metadata::ParquetMetaData;

use crate::dataset::{FileWriter, Limits, WriterOptions, decoded_column};
use crate::error::{Error, Place, Result};

/// Bytes of a page that loaders do not judge by its ratio. Smaller cells are not looked at.
const PAGE: u64 = 16 << 20;
/// The same of a row group once decoded.
const ROW_GROUP: u64 = 256 << 20;

/// Refuses a cell of `batch` that no loader would read, once stored with `options`; `before` rows came before it. Cells are measured one at
/// a time over all attempts, since the writer's memory for one is as large as it is.
///
/// # Errors
/// [`Error::Unsupported`] naming column and row.
pub(super) fn check(batch: &RecordBatch, before: u64, options: &WriterOptions, alone: &Mutex<()>) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        long_cells(column, 0, &mut |row, cell| {
            // Nothing is left half-done by one that panicked.
            let _alone = alone.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((grown, stored)) = shrinks(field, cell, options) else { return Ok(()) };
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

/// Gives the cells of `column` that are long to `found`, with their rows; `first` is its first row.
fn long_cells(column: &ArrayRef, first: usize, found: &mut impl FnMut(usize, &ArrayRef) -> Result<()>) -> Result<()> {
    let rows = column.len();
    if rows == 0 || decoded_column(column) <= PAGE {
        return Ok(());
    }
    if rows == 1 {
        return found(first, column);
    }
    long_cells(&column.slice(0, rows / 2), first, found)?;
    long_cells(&column.slice(rows / 2, rows - rows / 2), first + rows / 2, found)
}

/// Bytes of a cell, and those that it is stored in, if loaders refuse it for their ratio. A cell that cannot be written is left to its writer.
fn shrinks(field: &FieldRef, cell: &ArrayRef, options: &WriterOptions) -> Option<(u64, u64)> {
    let most = Limits::default().max_ratio;
    let about = written(field, cell, options)?;
    let mut all = 0_u64;
    for chunk in about.row_groups().iter().flat_map(|group| group.columns()) {
        let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let (plain, stored) = (size(chunk.uncompressed_size()), size(chunk.compressed_size()).max(1));
        if plain > PAGE && plain / stored > most {
            return Some((plain, stored));
        }
        all = all.saturating_add(stored);
    }
    let grown = decoded_column(cell);
    (grown > ROW_GROUP && grown / all.max(1) > most).then_some((grown, all))
}

/// The description of a file of this cell alone.
fn written(field: &FieldRef, cell: &ArrayRef, options: &WriterOptions) -> Option<ParquetMetaData> {
    let schema = Arc::new(Schema::new(vec![Arc::clone(field)]));
    let properties = options.check(&schema).ok()?;
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(cell)]).ok()?;
    let mut writer = FileWriter::new(io::sink(), schema, properties).ok()?;
    writer.write(&batch).ok()?;
    writer.finish().ok()
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Int8Array, Int64Array, ListArray, StringArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{DataType, Field};

    use super::*;

    fn refused(columns: Vec<(&str, ArrayRef)>, options: &WriterOptions) -> Option<String> {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let error = check(&batch, 100, options, &Mutex::default()).err()?;
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        Some(error.to_string())
    }

    /// Lists of these lengths, of zeros.
    fn zeros(lengths: &[usize]) -> ArrayRef {
        let values = Arc::new(Int8Array::from(vec![0; lengths.iter().sum()]));
        let field = Arc::new(Field::new("item", DataType::Int8, true));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths.iter().copied()), values, None))
    }

    #[test]
    fn a_cell_that_no_loader_reads_is_refused_by_column_and_row() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        for options in [WriterOptions::default(), WriterOptions::fleeting()] {
            let same = "a".repeat(20 << 20);
            let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", same.as_str()]));
            let error = refused(vec![("id", Arc::clone(&ids)), ("t", texts)], &options).unwrap();
            assert!(error.contains("column t, row 102") && error.contains("several rows"), "{error}");
            let error = refused(vec![("id", Arc::clone(&ids)), ("l", zeros(&[3, 30 << 20, 1]))], &options).unwrap();
            assert!(error.contains("column l, row 101"), "{error}");
        }
    }

    #[test]
    fn cells_that_loaders_read_are_kept() {
        let options = WriterOptions::default();
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..20 << 20).map(|_| byte()).collect();
        let zero = vec![0_u8; 10 << 20];
        let pictures: ArrayRef = Arc::new(BinaryArray::from(vec![noise.as_slice(), &zero, &zero]));
        assert_eq!(refused(vec![("p", pictures), ("l", zeros(&[1 << 20, 1 << 20, 1 << 20]))], &options), None);
        let plain = WriterOptions { compression: crate::dataset::Compression::None, ..options };
        let same = vec![7_u8; 20 << 20];
        assert_eq!(refused(vec![("p", Arc::new(BinaryArray::from(vec![same.as_slice()])) as _)], &plain), None);
    }
}
