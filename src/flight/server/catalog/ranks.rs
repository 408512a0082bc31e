//! The ranks of a world that have begun to read a dataset.

use std::collections::BTreeSet;

use tokio::time::Instant;

/// Most ranks that are remembered; a world in which more ask one by one is taken for a new one from time to time.
const MOST: usize = 1 << 16;

/// Ranks that ask for one plan: one of them, or all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranks {
    pub(crate) world: u32,
    /// None: all of them.
    pub(crate) rank: Option<u32>,
}

/// The ranks of one world to which a dataset was given.
#[derive(Debug, Default)]
pub(super) struct Given {
    world: u32,
    ranks: BTreeSet<u32>,
    last: Option<Instant>,
}

impl Given {
    /// Adds `ranks`. One of another world, or one that is here already, belongs to another job, which begins.
    pub(super) fn add(&mut self, ranks: Ranks, now: Instant) {
        self.last = Some(now);
        if !self.lacks(ranks) || self.ranks.len() >= MOST {
            (self.world, self.ranks) = (ranks.world, BTreeSet::new());
        }
        match ranks.rank {
            Some(rank) => drop(self.ranks.insert(rank)),
            // Nobody is missing.
            None => self.world = 0,
        }
    }

    /// Returns true if some ranks of this world are here, but not these.
    pub(super) fn lacks(&self, ranks: Ranks) -> bool {
        let is_missing = ranks.rank.is_some_and(|rank| !self.ranks.contains(&rank));
        self.world == ranks.world && !self.ranks.is_empty() && is_missing
    }

    /// The time of the last of them.
    pub(super) fn last(&self) -> Option<Instant> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_lacks_the_ranks_that_have_not_come() {
        let of = |world, rank| Ranks { world, rank };
        let mut given = Given::default();
        assert!(!given.lacks(of(2, Some(0))) && given.last().is_none(), "nobody has begun");
        given.add(of(2, Some(0)), Instant::now());
        assert!(given.lacks(of(2, Some(1))) && given.last().is_some());
        assert!(!given.lacks(of(2, Some(0))), "another job");
        assert!(!given.lacks(of(3, Some(1))) && !given.lacks(of(2, None)), "another world, or all of one");
        given.add(of(2, Some(1)), Instant::now());
        assert!((0..2).all(|rank| !given.lacks(of(2, Some(rank)))), "all have come");
        given.add(of(2, Some(1)), Instant::now());
        assert!(given.lacks(of(2, Some(0))), "another job began with its second rank");
        given.add(of(2, None), Instant::now());
        assert!((0..2).all(|rank| !given.lacks(of(2, Some(rank)))), "all came at once");
    }
}
