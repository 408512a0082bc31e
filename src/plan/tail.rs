//! The treatment of the last step.

use serde::{Deserialize, Serialize};

/// Treatment of the last step if the rows do not fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tail {
    /// Every rank has ceil(rows left / ranks) rows. If that is more than are left, rows from the start of the epoch,
    /// fewer than there are ranks, fill the batches. In one lane, as in file order, they come after the rows of all
    /// ranks; otherwise each rank has at most one. A single rank gets exactly the rows left.
    Short,
    /// Every row once: ranks differ by at most one row. The last two steps share their rows where fewer than half a
    /// global batch are left, and become one where ranks of one row each would get none, so that no batch is empty.
    Even,
    /// Batches keep their size; a mask marks the real rows.
    Pad,
    /// Rows from the start of the epoch fill the step.
    Repeat,
    /// The last, incomplete step is left out.
    Drop,
}

impl Tail {
    /// The default of new plans and loaders.
    pub(crate) const USUAL: Self = Self::Short;

    /// The tail of documents that name none: there was no other when they were written.
    pub(crate) fn unnamed() -> Self {
        Self::Pad
    }
}
