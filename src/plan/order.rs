//! The order that a pipeline follows: steps, the rows of each, and the row groups that they need.

use std::fmt::Debug;

use super::recent::TakenRows;
use super::share::Share;
use super::steps::{Plan, RowRef, Step, WindowUse};
use crate::error::{Error, Result};
use crate::manifest::Manifest;

/// Steps in order. Any of them can be requested at any time.
pub trait Order: Debug + Send + Sync {
    /// The number of steps.
    fn steps(&self) -> u64;
    /// The rows of `step` on this rank.
    fn step(&self, step: u64, share: Share) -> Step;
    /// The windows that this rank needs in `step`, each once, in the order of its rows.
    fn windows(&self, step: u64, share: Share) -> Vec<WindowUse>;
    /// The number of lanes that [`windows`](Self::windows) queries for a step: if there are many, it must not run on a
    /// thread that others wait for.
    fn lanes(&self) -> u64;
    /// The epoch.
    fn epoch(&self) -> u64;
    /// Seed of random augmentation, together with epoch and row id.
    fn seed(&self) -> u64;
    /// Returns true if batches carry a mask of real rows.
    fn masked(&self) -> bool;
    /// The rows of row group `group` of `window` in the order in which the epoch takes them; `None` if that is their
    /// own order, or if finding it takes longer than it saves.
    fn take_order(&self, window: &WindowUse, group: u32) -> Option<TakenRows> {
        let _ = (window, group);
        None
    }
}

impl Order for Plan {
    fn steps(&self) -> u64 {
        self.steps()
    }

    fn step(&self, step: u64, share: Share) -> Step {
        self.step(step, share)
    }

    fn windows(&self, step: u64, share: Share) -> Vec<WindowUse> {
        self.windows(step, share)
    }

    fn lanes(&self) -> u64 {
        self.lanes.saturating_mul(self.sources.len() as u64)
    }

    fn epoch(&self) -> u64 {
        self.epoch()
    }

    fn seed(&self) -> u64 {
        self.spec().seed
    }

    fn masked(&self) -> bool {
        self.masked()
    }

    fn take_order(&self, window: &WindowUse, group: u32) -> Option<TakenRows> {
        self.take_order(window, group)
    }
}

/// Row groups of one dataset in a given order: each is one step, or several of a limited number of rows. Every rank
/// gets all of it. A row group may be listed more than once.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    groups: Vec<u32>,
    /// Selected rows of each.
    rows: Vec<u64>,
    /// First step of each, and the number of steps.
    first: Vec<u64>,
    piece: u64,
    seed: u64,
}

impl Listed {
    /// These row groups, in pieces of at most `piece` rows.
    ///
    /// # Errors
    /// [`Error::Config`] for a row group that `manifest` does not have, and for pieces of no rows.
    pub(crate) fn new(manifest: &Manifest, groups: &[u32], piece: Option<u64>, seed: u64) -> Result<Self> {
        let piece = piece.unwrap_or(u64::MAX);
        if piece == 0 {
            return Err(Error::config("max_rows", "a piece needs at least one row"));
        }
        let mut listed = Self { groups: groups.to_vec(), rows: Vec::new(), first: vec![0], piece, seed };
        for group in groups {
            let Some(found) = manifest.groups.get(*group as usize) else {
                let problem = format!("row group {group} of {}", manifest.groups.len());
                return Err(Error::config("order", problem));
            };
            let next = listed.steps() + found.selected.div_ceil(piece);
            listed.rows.push(found.selected);
            listed.first.push(next);
        }
        Ok(listed)
    }

    /// The row group of `step`, and the first of its selected rows.
    pub(crate) fn piece(&self, step: u64) -> Option<(u32, u64)> {
        self.locate(step).map(|at| (self.groups[at], (step - self.first[at]) * self.piece))
    }

    /// Maximum rows of a step.
    pub(crate) fn most_rows(manifest: &Manifest, piece: Option<u64>) -> u64 {
        let rows = manifest.groups.iter().map(|group| group.selected).max().unwrap_or(0);
        rows.min(piece.unwrap_or(u64::MAX))
    }

    /// Index in the list of the row group of `step`.
    fn locate(&self, step: u64) -> Option<usize> {
        let after = self.first.partition_point(|first| *first <= step);
        // Row groups without rows have no step, and the last number is the end.
        (after >= 1 && after < self.first.len()).then(|| after - 1)
    }
}

impl Order for Listed {
    fn steps(&self) -> u64 {
        self.first.last().copied().unwrap_or(0)
    }

    fn step(&self, step: u64, _share: Share) -> Step {
        let mut rows = Vec::new();
        if let Some(at) = self.locate(step) {
            let first = (step - self.first[at]) * self.piece;
            let end = first.saturating_add(self.piece).min(self.rows[at]);
            // Plans refuse row groups of more than 2^32 rows; here rows beyond that have no number.
            rows.extend((first..end.min(1 << 32)).map(|row| RowRef {
                source: 0,
                group: self.groups[at],
                row: row as u32,
            }));
        }
        Step { step, real: rows.len(), size: rows.len(), rows }
    }

    fn windows(&self, step: u64, _share: Share) -> Vec<WindowUse> {
        let window = |at: usize| WindowUse {
            source: 0,
            source_epoch: 0,
            lane: 0,
            window: at as u32,
            groups: vec![self.groups[at]],
            last_step: self.first[at + 1] - 1,
        };
        self.locate(step).map(window).into_iter().collect()
    }

    fn lanes(&self) -> u64 {
        1
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn masked(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_groups_come_in_the_order_and_pieces_asked_for() {
        let manifest = Manifest::imaginary(&[5, 0, 3], 10);
        let listed = Listed::new(&manifest, &[2, 1, 0, 2], Some(2), 0).unwrap();
        let pieces: Vec<_> = (0..listed.steps()).map(|step| listed.piece(step).unwrap()).collect();
        assert_eq!(pieces, [(2, 0), (2, 2), (0, 0), (0, 2), (0, 4), (2, 0), (2, 2)]);
        let sizes: Vec<_> = (0..listed.steps()).map(|step| listed.step(step, Share::whole()).size).collect();
        assert_eq!(sizes, [2, 1, 2, 2, 1, 2, 1]);
        assert_eq!(listed.windows(3, Share::whole())[0].last_step, 4);
        assert_eq!(listed.piece(7), None);
        assert!(Listed::new(&manifest, &[3], None, 0).is_err());
        assert_eq!(Listed::new(&manifest, &[1], None, 0).unwrap().steps(), 0);
    }
}
