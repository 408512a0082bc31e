//! What the readers of other hosts say of their plans when they ask for blocks, by arithmetic: no disk, no clock.

use std::collections::HashMap;

use super::block::Block;

/// Most blocks that are known of, and most plans of each.
const MOST_BLOCKS: usize = 1 << 20;
const MOST_JOBS: usize = 8;
/// A job that has not asked so many milliseconds after the time that it said has ended.
pub(super) const MOST_LATE: u64 = 600_000;

/// What the reader of another host says of its plan when it asks for a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Again {
    /// The same for all readers that follow one plan.
    pub(crate) job: u64,
    /// Milliseconds until the plan needs the block again; 0 if that is not known.
    pub(crate) after: u64,
}

/// When the plans of other hosts need the blocks that they have asked for, whether these are here or not.
#[derive(Debug, Default)]
pub(super) struct Asked(HashMap<Block, Vec<(u64, u64)>>);

impl Asked {
    /// Notes what a reader has said `now` of `block`.
    pub(super) fn note(&mut self, block: &Block, now: u64, again: Again) {
        if again.after == 0 {
            return;
        }
        if self.0.len() >= MOST_BLOCKS {
            self.forget(now);
        }
        let plans = self.0.entry(*block).or_default();
        plans.retain(|(job, at)| *job != again.job && is_live(*at, now));
        plans.push((again.job, now.saturating_add(again.after)));
        plans.sort_unstable_by_key(|(_, at)| *at);
        plans.truncate(MOST_JOBS);
    }

    /// The soonest of the times at which plans need `block`. A job that lags is expected as much later again: what a job that has ended would
    /// have needed goes soon.
    pub(super) fn soonest(&self, block: &Block, now: u64) -> Option<u64> {
        let live = self.0.get(block)?.iter().map(|(_, at)| *at).filter(|at| is_live(*at, now));
        live.map(|at| if at < now { now.saturating_add(now - at) } else { at }).min()
    }

    /// Forgets what nobody comes for any more, or everything if that is little.
    fn forget(&mut self, now: u64) {
        self.0.retain(|_, plans| plans.iter().any(|(_, at)| is_live(*at, now)));
        if self.0.len() > MOST_BLOCKS / 4 * 3 {
            self.0.clear();
        }
    }
}

fn is_live(at: u64, now: u64) -> bool {
    at.saturating_add(MOST_LATE) >= now
}

#[cfg(test)]
mod tests {
    use super::super::block::ObjectKey;
    use super::*;

    #[test]
    fn the_soonest_of_all_plans_counts_and_those_that_do_not_come_are_forgotten() {
        let block = Block::new(ObjectKey([0; 16]), &(0..9)).unwrap();
        let mut known = Asked::default();
        let mut asked = |now, job, after| {
            known.note(&block, now, Again { job, after });
            known.soonest(&block, now)
        };
        assert_eq!(asked(900, 1, 0), None, "nobody has a plan");
        assert_eq!(asked(1000, 1, 500), Some(1500));
        assert_eq!(asked(1490, 1, 500), Some(1990), "that was this use");
        assert_eq!(asked(1500, 2, 900), Some(1990), "the other job needs it sooner");
        assert_eq!(asked(1600, 3, 0), Some(1990), "a reader without a plan changes nothing");
        assert_eq!(asked(2400, 2, 900), Some(2810), "it is 410 late");
        let later = 1991 + MOST_LATE;
        assert_eq!(asked(later, 2, 900), Some(later + 900), "it does not come any more");
        assert_eq!(asked(later, 3, u64::MAX), Some(later + 900));
        for job in 10..30 {
            assert_eq!(asked(later, job, 1000 + job), Some(later + 900));
        }
        assert_eq!(known.0[&block].len(), MOST_JOBS);
    }

    #[test]
    fn only_so_many_blocks_are_known() {
        let mut known = Asked::default();
        let block = |number: usize| Block::new(ObjectKey([0; 16]), &(0..number as u64 + 1)).unwrap();
        for number in 0..=MOST_BLOCKS {
            known.note(&block(number), 0, Again { job: 1, after: 5 });
        }
        assert_eq!(known.0.len(), 1, "all of them were live");
    }
}
