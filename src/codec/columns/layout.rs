//! The specification of a batch, and the start of each of its columns: shared by the files that fill one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::array::{ArrayRef, BinaryViewArray};

use super::block::RowGroupBlock;
use super::gather::Wide;
use super::lists::ListCell;
use super::options::BadRows;
use super::output::Output;
use super::strided::Strided;
use crate::error::{Error, Place};
use crate::memory::Reservation;
use crate::tensor::TensorSpec;

/// The name of the row numbers.
pub(super) const ROW_ID: &str = "_row_id";
/// The name of the mask that marks padding rows.
pub(crate) const MASK: &str = "_mask";

/// The parts of a batch.
pub struct Rows<'a> {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step within the epoch.
    pub step: u64,
    /// The row groups that the rows come from.
    pub cells: &'a [Arc<RowGroupBlock>],
    /// For each row of the batch: index into `cells`, and row within.
    pub rows: &'a [(u32, u32)],
    /// Rows of the batch, padding included: at least the number of `rows`. Padding rows are zero.
    pub size: usize,
    /// Set if `_mask`, which marks padding rows, is delivered.
    pub masked: bool,
    /// The random number of a row of `cells`, for augmentation.
    pub random: &'a (dyn Fn((u32, u32)) -> u64 + Sync),
    /// The dataset's number of a row of `cells`.
    pub row_ids: &'a (dyn Fn((u32, u32)) -> u64 + Sync),
    /// Row of `cells` -> row within its row group, before any filter. Places in errors name this one.
    pub stored_rows: &'a (dyn Fn((u32, u32)) -> u64 + Sync),
    /// Handling of bad rows.
    pub bad_rows: BadRows,
    /// Maximum bytes of the batch: cells may claim any size, and claims are cheap.
    pub max_bytes: usize,
    /// The reservations of `cells`, if a batch may keep the place of consecutive rows in them instead of copying them: if no
    /// other batch takes these rows, but for those that stand in for bad ones. They are held until the batch is delivered.
    pub lent: Option<&'a [Arc<Reservation>]>,
    /// Takes the nanoseconds that images took, if somebody wants to know.
    pub images: Option<&'a AtomicU64>,
}

impl fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({} of {} in step {} of epoch {})", self.rows.len(), self.size, self.step, self.epoch)
    }
}

/// One output's values in each of the row groups.
pub(super) enum Table<'a> {
    Fixed(Vec<Strided<'a>>),
    /// As `Fixed`, for a tensor that lies in its row group.
    Placed,
    /// Side by side with others, from this byte of each row on.
    Small(usize),
    /// As `Fixed`, in the order in which batches take rows, if that was known when the row group was decoded.
    Taken(Vec<Strided<'a>>),
    /// As `Fixed`, if the rows of some row group were left in its pages.
    Wide(Vec<Wide<'a>>),
    Lists(Vec<ListCell<'a>>),
    Bytes(Vec<&'a BinaryViewArray>),
    Nested(Vec<&'a ArrayRef>),
    Absent,
}

/// The start of an output's tensors among those of the batch, and its ragged rows.
pub(super) struct Layout {
    pub(super) specs: Vec<TensorSpec>,
    /// Minimum bytes of the slab: those of the batch with all lists at their maximum length. So slabs of cut lists have
    /// one size, and their memory is reused, page-locked or a device's.
    pub(super) room: usize,
    /// By output: index of its first tensor, and the starts of rows: [`lists::starts`](super::lists::starts), or those
    /// of [`Shapes`].
    pub(super) outputs: Vec<(usize, Vec<Vec<usize>>)>,
    /// By output, for those whose values have shapes of their own.
    pub(super) shapes: Vec<Shapes>,
}

/// The shapes of one output's values in a batch.
#[derive(Debug, Default, Clone)]
pub(super) struct Shapes {
    /// Start of each row's value, in items, and the end: `rows + 1` numbers, or none if the output is not such a
    /// column.
    pub(super) starts: Vec<usize>,
    /// `axes` numbers for each row.
    pub(super) axes: Vec<usize>,
}

/// A fault in a row: index in the batch, output, and error.
pub(super) struct RowError {
    pub(super) index: usize,
    pub(super) output: usize,
    pub(super) column: Arc<str>,
    pub(super) error: Error,
}

impl RowError {
    /// The fault that a decoder found in the cell of output `at` in row `index` of the batch.
    pub(super) fn of(output: &Output, at: usize, index: usize, rows: &Rows<'_>, error: Error) -> Self {
        let pick = rows.rows[index];
        let group = rows.cells[pick.0 as usize].place.clone();
        let place = group.column(Arc::clone(&output.name)).row((rows.stored_rows)(pick));
        Self { index, output: at, column: Arc::clone(&output.name), error: located(error, place) }
    }
}

/// Adds to the decoder's error the place, which the decoder cannot know.
fn located(error: Error, place: Place) -> Error {
    match error {
        Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Limit { .. } => error.at(place),
        other => Error::corrupt_by(place, "cannot be decoded", other),
    }
}
