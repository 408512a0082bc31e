//! Cells that readers here refuse once they are packed: those that shrink to nearly nothing, such as millions of zeros, and those that are
//! longer than a packed page may be. They are found before they are written, and stored as they are.

use std::io;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{FieldRef, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;

use super::decoded::decoded_column;
use crate::dataset::limits::{GROUP_RATIO_FREE, Limits, PAGE_RATIO_FREE};

/// Bytes that other cells may take in the page of a long one, at most about.
const BESIDE: u64 = PAGE_RATIO_FREE / 8;
/// Cells up to this size are not looked at: with what is beside them, their page is not judged by its ratio.
const SHORT: u64 = PAGE_RATIO_FREE - BESIDE;

/// Gives the cells of `column` that are long to `found`, with their rows; `first` is its first row.
pub(crate) fn long_cells<E>(
    column: &ArrayRef,
    first: usize,
    found: &mut impl FnMut(usize, &ArrayRef) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let rows = column.len();
    if rows == 0 || decoded_column(column) <= SHORT {
        return Ok(());
    }
    if rows == 1 {
        return found(first, column);
    }
    long_cells(&column.slice(0, rows / 2), first, found)?;
    long_cells(&column.slice(rows / 2, rows - rows / 2), first + rows / 2, found)
}

/// Bytes of a cell, and those that it is stored in with `properties`, if readers refuse what it is stored in. Half of their ratio counts,
/// because of what is beside it.
///
/// # Errors
/// Those of the Parquet crate, for a cell that cannot be written.
pub(crate) fn shrinks(field: &FieldRef, cell: &ArrayRef, properties: WriterProperties) -> Result<Option<(u64, u64)>> {
    let Limits { max_ratio, max_page_bytes, .. } = Limits::default();
    let schema = Arc::new(Schema::new(vec![Arc::clone(field)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(cell)])?;
    let mut writer = ArrowWriter::try_new(io::sink(), schema, Some(properties))?;
    writer.write(&batch)?;
    let mut all = 0_u64;
    for chunk in writer.close()?.row_groups().iter().flat_map(|group| group.columns()) {
        let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let (plain, stored) = (size(chunk.uncompressed_size()), size(chunk.compressed_size()).max(1));
        let refused = plain > SHORT && plain / stored > max_ratio / 2 || plain > max_page_bytes - BESIDE;
        if refused && chunk.compression() != Compression::UNCOMPRESSED {
            return Ok(Some((plain, stored)));
        }
        all = all.saturating_add(stored);
    }
    let grown = decoded_column(cell);
    Ok((grown > GROUP_RATIO_FREE && grown / all.max(1) > max_ratio).then_some((grown, all)))
}
