//! The ranks of a world that have begun to read a dataset.

use std::collections::BTreeMap;

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

/// How often each rank of one world was given a dataset: once for each of its jobs.
#[derive(Debug, Default)]
pub(super) struct Given {
    world: u32,
    times: BTreeMap<u32, u32>,
    last: Option<Instant>,
}

impl Given {
    /// Adds `ranks`. Those of another world belong to another job, and all at once miss nobody.
    pub(super) fn add(&mut self, ranks: Ranks, now: Instant) {
        self.last = Some(now);
        if self.world != ranks.world || ranks.rank.is_none() || self.times.len() >= MOST {
            (self.world, self.times) = (ranks.world, BTreeMap::new());
        }
        if let Some(rank) = ranks.rank {
            *self.times.entry(rank).or_default() += 1;
        }
    }

    /// Takes back what [`add`](Self::add) added.
    pub(super) fn remove(&mut self, ranks: Ranks) {
        if self.world == ranks.world
            && let Some(rank) = ranks.rank
            && let Some(times) = self.times.get_mut(&rank)
        {
            *times = times.saturating_sub(1);
        }
    }

    /// Returns true if some job of this world has begun without these ranks.
    pub(super) fn lacks(&self, ranks: Ranks) -> bool {
        let most = self.times.values().max().copied().unwrap_or(0);
        let times = |rank| self.times.get(&rank).copied().unwrap_or(0);
        self.world == ranks.world && ranks.rank.is_some_and(|rank| times(rank) < most)
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
        given.add(of(2, Some(0)), Instant::now());
        given.add(of(2, Some(1)), Instant::now());
        assert!(given.lacks(of(2, Some(1))), "of the second job that began");
        given.add(of(2, Some(1)), Instant::now());
        assert!((0..2).all(|rank| !given.lacks(of(2, Some(rank)))), "all have come");
        given.add(of(2, Some(1)), Instant::now());
        assert!(given.lacks(of(2, Some(0))), "another job began with its second rank");
        given.remove(of(2, Some(1)));
        assert!(!given.lacks(of(2, Some(0))), "it could not open it");
        given.add(of(2, Some(1)), Instant::now());
        given.add(of(2, None), Instant::now());
        assert!((0..2).all(|rank| !given.lacks(of(2, Some(rank)))), "all came at once");
    }
}
