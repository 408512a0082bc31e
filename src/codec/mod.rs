//! From stored cells to values in their place in the batch.

pub mod columns;
pub mod image;
pub mod npy;
mod stored;

use std::fmt::Debug;

pub(crate) use self::columns::check_excluded;
pub use self::columns::{
    BadRow, BadRows, ColumnOptions, Columns, Lengths, Lists, Nulls, Pack, Padded, PerColumn, PreparedColumn,
    RowGroupBlock, Rows, Scalar, Truncate, column_is_meant, roots,
};
pub(crate) use self::columns::{MASK, StoredColumn, TakeOrder, Watched, vector_length};
pub use self::image::{ImageDecoder, ImageOptions};
pub use self::npy::NpyDecoder;
pub use self::stored::StoredDecoder;
use crate::error::Result;

/// Decodes one stored cell straight into its row of a tensor.
pub trait Decode: Send + Sync + Debug {
    /// Writes all of `row` from `cell`. `random` is drawn from (seed, epoch, row id) and feeds augmentation.
    ///
    /// # Errors
    /// The fault of the bytes; the caller adds the place.
    fn decode_into(&self, cell: &[u8], random: u64, row: &mut [u8]) -> Result<()>;
}

/// Decodes cells whose values have shapes of their own.
pub trait DecodeShaped: Decode {
    /// The shape of the value in `cell`, from its header alone. [`decode_into`](Decode::decode_into) then expects a row
    /// with that many elements.
    ///
    /// # Errors
    /// The fault of the header; the caller adds the place.
    fn shape_of(&self, cell: &[u8]) -> Result<Vec<usize>>;
}
