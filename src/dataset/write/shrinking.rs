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
pub(super) const SHORT: u64 = PAGE_RATIO_FREE - BESIDE;

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

/// How a cell is stored so that readers accept it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellForm {
    /// As the properties say, beside other cells.
    Packed,
    /// As the properties say, in a row group of its own: a page with more in it might be refused.
    Alone,
    /// Without compression. Packed, it would shrink from so many bytes to so many, or is longer than a packed page may be.
    AsItIs(u64, u64),
}

/// The form of a cell, by writing it with `properties`.
///
/// # Errors
/// Those of the Parquet crate, for a cell that cannot be written.
pub(crate) fn cell_form(field: &FieldRef, cell: &ArrayRef, properties: WriterProperties) -> Result<CellForm> {
    let Limits { max_ratio, max_page_bytes, .. } = Limits::default();
    let schema = Arc::new(Schema::new(vec![Arc::clone(field)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(cell)])?;
    let mut writer = ArrowWriter::try_new(io::sink(), schema, Some(properties))?;
    writer.write(&batch)?;
    let (mut all, mut form) = (0_u64, CellForm::Packed);
    for chunk in writer.close()?.row_groups().iter().flat_map(|group| group.columns()) {
        let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        let (plain, stored) = (size(chunk.uncompressed_size()), size(chunk.compressed_size()).max(1));
        all = all.saturating_add(stored);
        if chunk.compression() == Compression::UNCOMPRESSED {
            continue;
        }
        // A chunk has headers beside its page.
        let shrinks = |free: u64, ratio: u64| plain > free && plain / stored > ratio;
        if shrinks(PAGE_RATIO_FREE, max_ratio / 10 * 9) || plain > max_page_bytes {
            return Ok(CellForm::AsItIs(plain, stored));
        }
        if shrinks(SHORT, max_ratio / 2) || plain > max_page_bytes - BESIDE {
            form = CellForm::Alone;
        }
    }
    let grown = decoded_column(cell);
    Ok(if grown > GROUP_RATIO_FREE && grown / all.max(1) > max_ratio { CellForm::AsItIs(grown, all) } else { form })
}

#[cfg(test)]
mod tests {
    use arrow::array::BinaryArray;
    use arrow::datatypes::{DataType, Field};
    use parquet::basic::ZstdLevel;

    use super::*;

    #[test]
    fn a_cell_is_packed_as_far_as_readers_accept_it() {
        let properties = || {
            let zstd = Compression::ZSTD(ZstdLevel::default());
            WriterProperties::builder().set_compression(zstd).set_dictionary_enabled(false).build()
        };
        let field = Arc::new(Field::new("x", DataType::Binary, false));
        let of = |bytes: &[u8]| {
            let cell: ArrayRef = Arc::new(BinaryArray::from(vec![bytes]));
            cell_form(&field, &cell, properties()).unwrap()
        };
        // Of these bytes one in so many is not zero, with no pattern.
        let sparse = |length: usize, each: u32| {
            let mut seed = 1_u32;
            let mut random = || {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                seed >> 8
            };
            (0..length).map(|_| if random() % each == 0 { random() as u8 } else { 0 }).collect::<Vec<_>>()
        };
        assert_eq!(of(&sparse(20 << 20, 40)), CellForm::Packed);
        assert_eq!(of(&vec![0; 15 << 20]), CellForm::Alone);
        assert!(matches!(of(&vec![0; 17 << 20]), CellForm::AsItIs(..)));
    }
}
