//! Offsets of lists, as stored in the file.

use arrow::buffer::{Buffer, OffsetBuffer};

/// Offsets of lists, as stored in the file.
#[derive(Debug, Clone)]
pub(super) enum Offsets {
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
}

impl Offsets {
    /// The start of list `at`, and the end of the one before it.
    #[inline]
    pub(super) fn at(&self, at: usize) -> usize {
        // Arrow's offsets are never negative.
        match self {
            Self::Small(offsets) => offsets[at] as usize,
            Self::Large(offsets) => offsets[at] as usize,
        }
    }

    /// The number of lists.
    pub(super) fn lists(&self) -> usize {
        match self {
            Self::Small(offsets) => offsets.len() - 1,
            Self::Large(offsets) => offsets.len() - 1,
        }
    }

    /// The list that holds `item`, if any.
    pub(super) fn owner(&self, item: usize) -> Option<usize> {
        let after = match self {
            Self::Small(offsets) => offsets.partition_point(|offset| *offset as usize <= item),
            Self::Large(offsets) => offsets.partition_point(|offset| *offset as usize <= item),
        };
        after.checked_sub(1).filter(|list| *list < self.lists())
    }

    pub(super) fn buffer(&self) -> &Buffer {
        match self {
            Self::Small(offsets) => offsets.inner().inner(),
            Self::Large(offsets) => offsets.inner().inner(),
        }
    }
}
