//! The ledger of bad rows: the fault, the place, and how it was handled.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Entries kept in full; beyond that only the counts continue, so that a dataset of bad rows does not fill memory.
pub(crate) const LEDGER_ENTRIES: usize = 10_000;

/// One bad row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Epoch in which it was found.
    pub epoch: u64,
    /// Global step in which it was found.
    pub step: u64,
    /// Its row id.
    pub row_id: u64,
    /// The column that could not be decoded.
    pub column: String,
    /// The error, with file, row group and row.
    pub error: String,
    /// The row id delivered in its place under `skip`; `None` if it was zeroed.
    pub replaced_by: Option<u64>,
}

/// Counts, and the first `LEDGER_ENTRIES` entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Rows replaced by another row of their row group.
    pub skipped: u64,
    /// Rows whose bad column was set to zero.
    pub zeroed: u64,
    /// The entries, in no particular order across steps.
    pub entries: Vec<Entry>,
}

/// A ledger written to from several threads.
#[derive(Debug, Default)]
pub(super) struct SharedLedger(Mutex<Ledger>);

impl SharedLedger {
    pub(super) fn record(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            tracing::warn!(row_id = entry.row_id, column = %entry.column, error = %entry.error, "bad row");
            *(if entry.replaced_by.is_some() { &mut ledger.skipped } else { &mut ledger.zeroed }) += 1;
            if ledger.entries.len() < LEDGER_ENTRIES {
                ledger.entries.push(entry);
            }
        }
    }

    pub(super) fn snapshot(&self) -> Ledger {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
