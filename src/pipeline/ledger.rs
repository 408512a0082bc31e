//! The ledger of bad rows: the fault, the place, and how it was handled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::codec::BadRow;

/// Entries kept in full; beyond that only the counts continue, so that a dataset of bad rows does not fill memory.
pub(crate) const LEDGER_ENTRIES: usize = 10_000;

/// Rows of a column that are logged one by one; beyond that only their count is, at powers of two and at the end of a pass.
const LOGGED: u64 = 10;

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

impl Ledger {
    /// Rows replaced, and rows set to zero, in the steps that `is_consumed` holds for: data are read ahead, and again after a move. Rows
    /// without an entry count.
    pub(crate) fn consumed(&self, is_consumed: impl Fn((u64, u64)) -> bool) -> (u64, u64) {
        let count = |replaced: bool, all: u64| {
            let of_kind = self.entries.iter().filter(|entry| entry.replaced_by.is_some() == replaced);
            let unlisted = all.saturating_sub(of_kind.clone().count() as u64);
            let consumed = of_kind.filter(|entry| is_consumed((entry.epoch, entry.step)));
            let rows: BTreeSet<_> =
                consumed.map(|entry| (entry.epoch, entry.step, entry.row_id, entry.column.as_str())).collect();
            unlisted + rows.len() as u64
        };
        (count(true, self.skipped), count(false, self.zeroed))
    }
}

/// The rows of a column, and how many of them the log knows of.
#[derive(Debug, Default)]
struct Logged {
    rows: u64,
    told: u64,
}

/// What is logged of one more row.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Row,
    /// The number of rows so far.
    Count(u64),
    Nothing,
}

impl Logged {
    fn next(&mut self) -> Line {
        self.rows = self.rows.saturating_add(1);
        let line = match self.rows {
            ..=LOGGED => Line::Row,
            rows if rows.is_power_of_two() => Line::Count(rows),
            _ => return Line::Nothing,
        };
        self.told = self.rows;
        line
    }

    /// The number of rows at the end of a pass, unless the log knows it.
    fn end(&mut self) -> Option<u64> {
        (std::mem::replace(&mut self.told, self.rows) < self.rows).then_some(self.rows)
    }
}

/// A ledger written to from several threads.
#[derive(Debug, Default)]
pub(super) struct SharedLedger(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    ledger: Ledger,
    /// By column.
    logged: BTreeMap<Arc<str>, Logged>,
}

impl SharedLedger {
    /// Adds the bad rows of a batch of this epoch and step.
    pub(super) fn record(&self, (epoch, step): (u64, u64), bad: Vec<BadRow>) {
        let mut kept = self.lock();
        let Kept { ledger, logged } = &mut *kept;
        for BadRow { row_id, column, error, replaced_by, .. } in bad {
            *(if replaced_by.is_some() { &mut ledger.skipped } else { &mut ledger.zeroed }) += 1;
            let line = logged.entry(Arc::clone(&column)).or_default().next();
            let is_kept = ledger.entries.len() < LEDGER_ENTRIES;
            if line == Line::Nothing && !is_kept {
                // There may be millions: not even the text is made.
                continue;
            }
            let error = error.chain();
            match line {
                Line::Row => tracing::warn!(row_id, column = %column, error = %error, "bad row"),
                Line::Count(rows) => {
                    tracing::warn!(rows, column = %column, row_id, error = %error, "bad rows so far, and the last of them");
                }
                Line::Nothing => {}
            }
            if is_kept {
                let column = column.to_string();
                ledger.entries.push(Entry { epoch, step, row_id, column, error, replaced_by });
            }
        }
    }

    /// Logs the numbers of rows that were not logged one by one: a pass is over.
    pub(super) fn end_pass(&self) {
        for (column, logged) in &mut self.lock().logged {
            if let Some(rows) = logged.end() {
                tracing::warn!(rows, column = %column, "bad rows by the end of the pass");
            }
        }
    }

    pub(super) fn snapshot(&self) -> Ledger {
        self.lock().ledger.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Place};

    #[test]
    fn of_many_bad_rows_the_log_has_the_first_and_counts() {
        let mut logged = Logged::default();
        let lines: Vec<Line> = (0..150_000).map(|_| logged.next()).filter(|line| *line != Line::Nothing).collect();
        let (rows, counts) = lines.split_at(10);
        assert!(rows.iter().all(|line| *line == Line::Row));
        assert!(
            counts.iter().eq((4..=17).map(|power| Line::Count(1 << power)).collect::<Vec<_>>().iter()),
            "{counts:?}"
        );
        assert_eq!((logged.end(), logged.end()), (Some(150_000), None));
        assert_eq!((logged.next(), logged.end()), (Line::Nothing, Some(150_001)), "another pass");
        let mut few = Logged::default();
        assert!((0..10).all(|_| few.next() == Line::Row));
        assert_eq!(few.end(), None, "each is in the log");
    }

    #[test]
    fn each_row_counts_and_the_first_are_kept() {
        let ledger = SharedLedger::default();
        let bad = |row_id: u64| BadRow {
            index: 0,
            row_id,
            column: if row_id.is_multiple_of(3) { "a".into() } else { "b".into() },
            error: Error::corrupt(Place::default(), "damaged"),
            replaced_by: row_id.is_multiple_of(2).then_some(7),
        };
        let rows = LEDGER_ENTRIES as u64 + 1_001;
        for first in (0..rows).step_by(100) {
            ledger.record((1, first), (first..rows.min(first + 100)).map(bad).collect());
        }
        ledger.end_pass();
        // Steps 0 to 99 of epoch 1 had rows 0 to 99; those of the last ones have no entries.
        let consumed = ledger.snapshot().consumed(|at| at == (1, 0));
        assert_eq!(consumed, (50 + 501, 50 + 500), "of rows that are listed, those of the step");
        ledger.record((1, 0), vec![bad(4)]);
        assert_eq!(ledger.snapshot().consumed(|at| at == (1, 0)), (50 + 502, 50 + 500), "without an entry");
        let few = SharedLedger::default();
        for at in [(0, 3), (0, 3), (0, 4)] {
            few.record(at, vec![bad(4), bad(5)]);
        }
        assert_eq!(few.snapshot().consumed(|at| at < (0, 4)), (1, 1), "read twice, consumed once");
        let Ledger { skipped, zeroed, entries } = ledger.snapshot();
        assert_eq!((skipped + zeroed, skipped), (rows + 1, rows.div_ceil(2) + 1));
        assert!(entries.iter().map(|entry| entry.row_id).eq(0..LEDGER_ENTRIES as u64));
        assert_eq!((entries[4].epoch, entries[104].step, entries[4].column.as_str()), (1, 100, "b"));
        assert!(entries[4].error.contains("damaged"));
    }
}
