//! From stored cells to values in their place in the batch.

pub mod columns;
pub mod image;
pub mod npy;

use std::fmt::Debug;

pub use self::columns::{
    BadRow, BadRows, Cells, ColumnOptions, Columns, Lengths, Lists, Nulls, Pack, Padded, PerColumn, Prepared, Rows,
    Scalar, Truncate,
};
pub use self::image::{ImageDecoder, ImageOptions};
pub use self::npy::NpyDecoder;
use crate::error::Result;

/// Decodes one stored cell straight into its row of a tensor.
pub trait Decode: Send + Sync + Debug {
    /// Writes all of `row` from `cell`. `random` is drawn from (seed, epoch, row id) and feeds augmentation.
    ///
    /// # Errors
    /// What is wrong with the bytes; the caller adds the place.
    fn decode_into(&self, cell: &[u8], random: u64, row: &mut [u8]) -> Result<()>;
}
