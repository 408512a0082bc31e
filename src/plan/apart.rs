//! Ranks that continued from another position than the others of their world: a restart that loaded checkpoints of different steps.
//!
//! ```text
//!   position ──►        9  10
//!   rank 0   ├─────────────┼──────────     resumed at 10
//!   rank 1   ├──────────┼─────────────     resumed at 9: its rows of step 9 were in the others' checkpoint already
//! ```
//! Each rank has each step once, so nothing of it is a fault of the order; but a model that all ranks train together has learnt from the
//! steps in between twice, or never, on some of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::rollback::Piece;

/// Maximum ranks that are named.
const NAMED: usize = 16;
/// Maximum positions that are listed.
const LISTED: usize = 1000;

/// Ranks that resumed where others of their world did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Apart {
    /// Epoch and step that they resumed at.
    pub at: (u64, u64),
    /// The first of these ranks.
    pub ranks: Vec<u32>,
    /// Ranks beyond those.
    pub more_ranks: u64,
    /// The number of ranks.
    pub world_size: u32,
}

/// The resumes in `kept`, which were not rolled back, that other ranks of the same world have not among `all`, by position.
pub(super) fn apart(all: &[Piece], kept: &[Piece], position: impl Fn(u128) -> (u64, u64)) -> Vec<Apart> {
    let mut present: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    kept.iter().for_each(|piece| _ = present.entry(piece.world).or_default().insert(piece.rank));
    let resumes = |pieces: &[Piece]| {
        let mut found: BTreeMap<(u128, u32), BTreeSet<u32>> = BTreeMap::new();
        let resumed = pieces.iter().filter(|piece| piece.resumed);
        resumed.for_each(|piece| _ = found.entry((piece.from, piece.world)).or_default().insert(piece.rank));
        found
    };
    // A loader that resumed there and has consumed nothing yet is there as well.
    let there = resumes(all);
    let is_apart = |(key, _): &((u128, u32), BTreeSet<u32>)| {
        let (there, present) = (there.get(key), present.get(&key.1));
        present.zip(there).is_some_and(|(present, there)| !present.is_subset(there))
    };
    let show = |((at, world_size), ranks): ((u128, u32), BTreeSet<u32>)| Apart {
        at: position(at),
        more_ranks: ranks.len().saturating_sub(NAMED) as u64,
        ranks: ranks.into_iter().take(NAMED).collect(),
        world_size,
    };
    resumes(kept).into_iter().filter(is_apart).map(show).take(LISTED).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rollback::roll_back;
    use super::*;

    fn piece(loader: usize, (rank, world): (u32, u32), (from, to): (u128, u128), resumed: bool) -> Piece {
        let opened = 10 * (loader / 4) as u64;
        Piece { from, to, rank, world, loader, number: 0, resumed, opened, written: opened + 9 }
    }

    fn found(pieces: &[Piece]) -> Vec<((u64, u64), Vec<u32>)> {
        let (kept, _) = roll_back(pieces);
        let apart = apart(pieces, &kept, |at| (0, at as u64));
        apart.into_iter().map(|one| (one.at, one.ranks)).collect()
    }

    /// Three ranks that stop at 15 and resume where `at` says.
    fn run(at: [u128; 3]) -> Vec<Piece> {
        let first = (0..3).map(|rank| piece(rank as usize, (rank, 3), (0, 15), false));
        let second = (0..3).map(|rank| piece(4 + rank as usize, (rank, 3), (at[rank as usize], 30), true));
        first.chain(second).collect()
    }

    #[test]
    fn ranks_that_resume_together_are_not_apart() {
        assert_eq!(found(&run([10, 10, 10])), []);
        let mut other = run([10, 10, 10]);
        other.extend((0..2).map(|rank| piece(8 + rank as usize, (rank, 2), (20, 40), true)));
        assert_eq!(found(&other), [], "of another number of ranks");
        let mut idle = run([10, 10, 10]);
        idle[4].to = 10;
        assert_eq!(found(&idle), [], "one has consumed nothing yet");
    }

    #[test]
    fn ranks_that_resume_elsewhere_are_named_with_those_they_are_apart_from() {
        assert_eq!(found(&run([10, 9, 10])), [((0, 9), vec![1]), ((0, 10), vec![0, 2])]);
        let mut again = run([10, 9, 10]);
        again.extend((0..3).map(|rank| piece(8 + rank as usize, (rank, 3), (8, 40), true)));
        assert_eq!(found(&again), [], "all of it was rolled back");
        let mut alone = run([10, 10, 10]);
        alone.push(piece(8, (2, 3), (25, 40), true));
        assert_eq!(found(&alone), [((0, 25), vec![2])]);
    }
}
