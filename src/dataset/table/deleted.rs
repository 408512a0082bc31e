//! The deleted rows of a table, wherever they were told: numbers of rows in files, row group by row group left out.

use std::collections::BTreeMap;

use arrow::array::{BooleanArray, BooleanBufferBuilder};
use roaring::RoaringTreemap;
use sha2::{Digest, Sha256};

use crate::dataset::Selection;
use crate::error::{Error, Place, Result};
use crate::hex;

/// The deleted rows of some files of a table.
#[derive(Debug, Default)]
pub(in crate::dataset) struct Deleted {
    /// By the number of the file, and all of them not empty.
    rows: BTreeMap<usize, RoaringTreemap>,
}

impl Deleted {
    /// These rows of the files of these numbers.
    pub(in crate::dataset) fn new(mut rows: BTreeMap<usize, RoaringTreemap>) -> Self {
        rows.retain(|_, rows| !rows.is_empty());
        Self { rows }
    }

    /// Returns true if no row is deleted.
    pub(in crate::dataset) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Deleted rows of `files`, whose numbers ascend, by position in `files`.
    pub(in crate::dataset) fn of(&self, files: &[usize]) -> Self {
        let rows = files.iter().enumerate().filter_map(|(at, number)| Some((at, self.rows.get(number)?.clone())));
        Self { rows: rows.collect() }
    }

    /// Rows left of the row groups of file `number`, which is called `name`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a row that the file does not have.
    pub(in crate::dataset) fn left(&self, number: usize, name: &str, groups: &[u64]) -> Result<Vec<Selection>> {
        let Some(rows) = self.rows.get(&number) else { return Ok(vec![Selection::All; groups.len()]) };
        let beyond = |row: u64| {
            Error::corrupt(Place::file(name), format!("the table deletes row {row} of it, which it has not"))
        };
        left(rows, groups.iter().copied()).map_err(beyond)
    }

    /// SHA-256 over the deleted rows, by the numbers of files, independent of their storage.
    pub(in crate::dataset) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for (number, rows) in &self.rows {
            digest.update((*number as u64).to_le_bytes());
            digest.update(rows.len().to_le_bytes());
            rows.iter().for_each(|row| digest.update(row.to_le_bytes()));
        }
        hex::of(digest.finalize())
    }
}

/// The rows that are left of row groups of so many rows each; `Err` for a deleted row that none of them has.
fn left(deleted: &RoaringTreemap, groups: impl Iterator<Item = u64>) -> Result<Vec<Selection>, u64> {
    let mut deleted = deleted.iter().peekable();
    let mut start = 0_u64;
    let mut selections = Vec::new();
    for rows in groups {
        let end = start.saturating_add(rows);
        if deleted.peek().is_none_or(|row| *row >= end) {
            selections.push(Selection::All);
        } else {
            let count = usize::try_from(rows).unwrap_or(usize::MAX);
            let mut bits = BooleanBufferBuilder::new(count);
            bits.append_n(count, true);
            while let Some(row) = deleted.next_if(|row| *row < end) {
                bits.set_bit((row - start) as usize, false);
            }
            selections.push(Selection::of(&BooleanArray::new(bits.finish(), None)));
        }
        start = end;
    }
    deleted.next().map_or(Ok(selections), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_left_group_by_group() {
        let deleted = RoaringTreemap::from_iter([0, 4, 5, 6, 11]);
        let left_of = |groups: &[u64]| left(&deleted, groups.iter().copied());
        let counts = |groups: &[u64]| -> Vec<u64> {
            left_of(groups).unwrap().iter().zip(groups).map(|(left, rows)| left.count(*rows)).collect()
        };
        assert_eq!(counts(&[4, 3, 3, 2]), [3, 0, 3, 1]);
        assert_eq!(left_of(&[12]).unwrap()[0].row(3), 7);
        assert_eq!(left_of(&[4, 3]).unwrap_err(), 11);
    }
}
