//! Wide rows, left in the pages that held them: a batch is then the first place they are copied to.

use bytes::Bytes;

/// Rows as they lie in a page, one after another.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    /// Number of the first of them in the row group.
    pub(crate) first: usize,
    pub(crate) bytes: Bytes,
}

/// All rows of a column, in order.
#[derive(Debug, Clone)]
pub(crate) struct Stretches {
    pub(crate) rows: usize,
    /// Bytes of a row.
    pub(crate) width: usize,
    pub(crate) of: Vec<Stretch>,
    /// Whether they are parts of the fetched bytes, which then stay.
    pub(crate) in_place: bool,
}
