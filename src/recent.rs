//! Totals since the beginning, and of the last half minute or so. Pure: time comes in as a number.
//!
//! A total over hours hides what changed a minute ago. So two marks are kept: the amounts at the older one are subtracted from those of
//! now, which leaves the amounts of the last one to two periods.

use std::time::Duration;

/// Time between two marks.
const PERIOD: Duration = Duration::from_secs(15);

/// `N` amounts that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recent<const N: usize> {
    totals: [u64; N],
    /// The totals at two moments, the older one first.
    marks: [(Duration, [u64; N]); 2],
}

impl<const N: usize> Recent<N> {
    /// All amounts are 0 at `now`.
    pub(crate) const fn new(now: Duration) -> Self {
        Self { totals: [0; N], marks: [(now, [0; N]); 2] }
    }

    /// Adds `more` to amount `at`; nothing if there is no such amount.
    pub(crate) fn add(&mut self, now: Duration, at: usize, more: u64) {
        self.mark(now);
        if let Some(total) = self.totals.get_mut(at) {
            *total = total.saturating_add(more);
        }
    }

    fn mark(&mut self, now: Duration) {
        let (last, _) = self.marks[1];
        let gap = now.saturating_sub(last);
        if gap >= PERIOD {
            // After a long pause nothing of what was before it is late.
            let older = if gap >= 2 * PERIOD { (now.saturating_sub(PERIOD), self.totals) } else { self.marks[1] };
            self.marks = [older, (now, self.totals)];
        }
    }

    /// The amounts since the beginning.
    pub(crate) fn totals(&self) -> [u64; N] {
        self.totals
    }

    /// The amounts of the last time, and its length: one to two periods, or all since the beginning, or since nothing was added.
    pub(crate) fn lately(&mut self, now: Duration) -> ([u64; N], Duration) {
        self.mark(now);
        let (since, before) = self.marks[0];
        let mut lately = self.totals;
        lately.iter_mut().zip(before).for_each(|(total, before)| *total = total.saturating_sub(before));
        (lately, now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_past_counts_no_more() {
        let seconds = Duration::from_secs;
        let mut recent = Recent::<2>::new(seconds(100));
        recent.add(seconds(101), 0, 7);
        recent.add(seconds(101), 5, 7);
        assert_eq!(recent.lately(seconds(102)), ([7, 0], seconds(2)));
        recent.add(seconds(116), 1, 3);
        assert_eq!(recent.lately(seconds(120)), ([7, 3], seconds(20)));
        // The second period is over: what came before the first mark is forgotten.
        assert_eq!(recent.lately(seconds(132)), ([0, 3], seconds(16)));
        recent.add(seconds(150), 0, 1);
        assert_eq!(recent.lately(seconds(150)), ([1, 0], seconds(18)));
        assert_eq!(recent.totals(), [8, 3]);
        // After an hour without a look, that hour is not the last half minute.
        assert_eq!(recent.lately(seconds(4000)), ([0, 0], seconds(15)));
        assert_eq!(Recent::<1>::new(seconds(9)).lately(seconds(3)), ([0], Duration::ZERO), "a clock that goes back");
    }
}
