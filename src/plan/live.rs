//! The bytes of row groups that a rank needs at once: what a memory budget must hold.
//!
//! Each window is needed from one moment to another, so the answer is the maximum weight of overlapping intervals: sort
//! their ends and sweep. A row group that is cut between lanes weighs once for as long as any of its windows is needed.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::layout::Layout;
use super::share::Share;
use super::spec::Stop;
use super::steps::{Plan, Run};

/// An interval of need from the first moment to the second, both included.
#[derive(Debug, Clone, Copy)]
struct Interval {
    from: u64,
    to: u64,
    bytes: u64,
}

impl Plan {
    /// The maximum bytes of row groups that this rank needs in any one step, where `cost` gives the bytes of a row
    /// group (source, index into the manifest's groups).
    ///
    /// For one dataset it is exact except for lanes that the rank's slice touches in some steps only, all of which
    /// count. For a mixture it is the sum over the sources, each at its worst moment. It never underestimates. Takes
    /// time in proportion to the row groups and lanes, not to the steps, nor to the rows of one.
    pub fn live_bytes(&self, share: Share, cost: &dyn Fn(u32, u32) -> u64) -> u64 {
        let (mut most, full) = (0_u64, self.cuts.full());
        if full > 0 {
            for source in 0..self.sources.len() {
                most = most.saturating_add(self.live_in(source, share, cost));
            }
        }
        // Other steps are sliced differently; there are one or two, so their row groups are simply listed, with those
        // of the next step.
        let mut groups = BTreeSet::new();
        for step in (full..self.steps()).rev() {
            groups.extend(self.groups_of(step, share));
            let bytes = |sum: u64, (source, group): &(u32, u32)| sum.saturating_add(cost(*source, *group));
            most = most.max(groups.iter().fold(0, bytes));
        }
        most
    }

    /// The row groups that `step` takes rows from, including repeated ones: by source, and index into the manifest's
    /// groups.
    fn groups_of(&self, step: u64, share: Share) -> BTreeSet<(u32, u32)> {
        let mut groups = BTreeSet::new();
        let mut visit = |run: Run| {
            let layout = &self.sources[run.source];
            // One pass over a lane visits all its windows.
            let most = run.rows.start.saturating_add(layout.lane_rows(run.lane));
            let rows: Range<u64> = run.rows.start..run.rows.end.min(most);
            self.each_window(&Run { rows, ..run }, |_, window, _| {
                groups.extend(layout.groups(&window).iter().map(|group| (run.source as u32, *group)));
            });
        };
        self.runs(step, share, &mut visit);
        for positions in self.repeats(step, share) {
            self.runs_of(&positions, &mut visit);
        }
        groups
    }

    /// The maximum bytes of one source that full steps need.
    fn live_in(&self, source: usize, share: Share, cost: &dyn Fn(u32, u32) -> u64) -> u64 {
        let layout = &self.sources[source];
        let weigh = |at: usize| cost(source as u32, layout.order()[at]);
        let drawn = self.interleave.count(source, self.rows());
        let full_steps = self.cuts.full();
        // With one source a moment is a step. In a mixture it is the last of the draws that a step can reach: a step
        // has at most as many draws as a batch has rows, so a window is needed until that many draws after its last
        // row.
        let batch = self.spec().global_batch;
        let mixed = self.sources.len() > 1;
        let moments =
            |first: u64, last: u64| if mixed { (first, last + (batch - 1)) } else { (first / batch, last / batch) };
        let mut intervals = Vec::new();
        let mut cut: HashMap<usize, Vec<Interval>> = HashMap::new();
        for lane in (0..self.lanes).filter(|lane| self.may_touch(*lane, share)) {
            for number in 0..layout.windows(lane) {
                let window = layout.window(lane, number);
                let first = window.rows.start * self.lanes + lane;
                if first >= drawn {
                    break;
                }
                let (from, to) = moments(first, (window.rows.end - 1) * self.lanes + lane);
                if !mixed && from >= full_steps {
                    break;
                }
                let mut bytes = 0_u64;
                let edges = [window.groups.start, window.groups.end - 1];
                for at in window.groups {
                    // Only the outer row groups of a lane can be cut, and they are outer in their windows too.
                    if edges.contains(&at) && !layout.inside(at, lane) {
                        cut.entry(at).or_default().push(Interval { from, to, bytes: weigh(at) });
                    } else {
                        bytes = bytes.saturating_add(weigh(at));
                    }
                }
                intervals.push(Interval { from, to, bytes });
            }
        }
        for (_, mut parts) in cut {
            parts.sort_unstable_by_key(|part| part.from);
            let start = intervals.len();
            for part in parts {
                match intervals[start..].last_mut() {
                    Some(open) if part.from <= open.to => open.to = open.to.max(part.to),
                    _ => intervals.push(part),
                }
            }
        }
        if drawn > layout.rows() {
            // The next pass begins while the last windows of this one are still needed.
            again(&mut intervals, layout);
        }
        let all = (0..layout.order().len()).fold(0, |sum: u64, at| sum.saturating_add(weigh(at)));
        sweep(&intervals).min(all)
    }

    /// Returns true if a mixture takes equally many rows of each lane in every full step: it draws in rounds over all
    /// lanes, and starts no dataset again in the middle of one.
    pub(super) fn keeps_lanes(&self) -> bool {
        let once = self.spec().mix.as_ref().is_some_and(|mix| mix.stop == Stop::FirstExhausted);
        once && self.interleave.round() == self.lanes
    }

    /// Returns true if `lane` can overlap this rank's slice in some full step.
    fn may_touch(&self, lane: u64, share: Share) -> bool {
        let (batch, lanes) = (self.spec().global_batch, self.lanes);
        let slice = share.part(batch);
        let start = |lane: u64| {
            if self.sources.len() == 1 || self.keeps_lanes() {
                // batch / lanes rows of each lane below, and the part of the remaining rows that falls on them.
                let (each, more) = (batch / lanes * lane, batch % lanes);
                return (each + more.saturating_sub(lanes - lane), each + more.min(lane));
            }
            // Each run of draws strays from its even share by less than lane * (lanes - lane) / lanes; a source has one run in
            // a step, and one more for each time that it starts again.
            let runs: u64 = self.sources.iter().map(|source| 2 + batch / source.rows().max(1)).sum();
            let even = (u128::from(batch) * u128::from(lane) / u128::from(lanes)) as u64;
            let stray = (lane * (lanes - lane)).div_ceil(lanes).saturating_mul(runs) + 1;
            (even.saturating_sub(stray), even.saturating_add(stray))
        };
        start(lane).0 < slice.end && start(lane + 1).1 > slice.start
    }
}

/// Adds the same intervals one pass later. A third pass overlaps only in a source shorter than a step, which the total bounds.
fn again(intervals: &mut Vec<Interval>, layout: &Layout) {
    let rows = layout.rows();
    let next: Vec<_> = intervals
        .iter()
        .map(|interval| Interval { from: interval.from + rows, to: interval.to + rows, ..*interval })
        .collect();
    intervals.extend(next);
}

fn sweep(intervals: &[Interval]) -> u64 {
    let sorted = |end: fn(&Interval) -> u64| {
        let mut ends: Vec<_> = intervals.iter().map(|interval| (end(interval), interval.bytes)).collect();
        ends.sort_unstable();
        ends
    };
    let (starts, ends) = (sorted(|interval| interval.from), sorted(|interval| interval.to));
    let (mut live, mut most, mut ended) = (0_u128, 0_u128, 0);
    for (moment, bytes) in starts {
        while ends.get(ended).is_some_and(|(end, _)| *end < moment) {
            live -= u128::from(ends[ended].1);
            ended += 1;
        }
        live += u128::from(bytes);
        most = most.max(live);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::{Mix, PlanSpec, Shuffle, Tail};

    #[test]
    fn a_sweep_finds_the_heaviest_moment() {
        let interval = |from, to, bytes| Interval { from, to, bytes };
        assert_eq!(sweep(&[]), 0);
        assert_eq!(sweep(&[interval(0, 3, 5), interval(4, 5, 7), interval(5, 9, 1)]), 8);
        assert_eq!(sweep(&[interval(0, 4, u64::MAX), interval(4, 5, 1)]), u64::MAX);
    }

    #[test]
    fn a_source_that_starts_again_needs_its_first_windows_beside_the_last() {
        let manifests = [&[312, 3][..], &[1, 63, 3]].map(|rows| Arc::new(Manifest::imaginary(rows, 1)));
        let mix = Some(Mix { weights: vec![1, 1], stop: Stop::AllExhausted });
        let spec = PlanSpec { shuffle: Shuffle::None, tail: Tail::Drop, mix, ..PlanSpec::new(0, 64) };
        let plan = Plan::new(&manifests, spec.resolve(&manifests).unwrap(), 0).unwrap();
        assert_eq!(plan.live_bytes(Share::whole(), &|source, _| u64::from(source)), 3);
    }

    /// The row groups of every row of the step, row by row.
    fn walked(plan: &Plan, step: u64, share: Share) -> BTreeSet<(u32, u32)> {
        plan.step(step, share).rows.iter().map(|row| (row.source, row.group)).collect()
    }

    #[test]
    fn the_row_groups_of_an_incomplete_step_are_those_of_its_rows() {
        for case in 0..300_u64 {
            let random = |what: u64, most: u64| crate::plan::random(case, what, 0) % most;
            let groups: Vec<u64> = (0..1 + random(1, 9)).map(|at| 1 + random(2 + at, 30)).collect();
            let others: Vec<u64> = (0..1 + random(20, 4)).map(|at| 1 + random(30 + at, 12)).collect();
            let stop = if case % 2 == 0 { Stop::AllExhausted } else { Stop::FirstExhausted };
            let (manifests, mix) = if case % 3 == 0 {
                let mix = Mix { weights: vec![1 + random(40, 5) as u32, 1 + random(41, 5) as u32], stop };
                (vec![Manifest::imaginary(&groups, 1), Manifest::imaginary(&others, 1)], Some(mix))
            } else {
                (vec![Manifest::imaginary(&groups, 1)], None)
            };
            let manifests: Vec<_> = manifests.into_iter().map(Arc::new).collect();
            let batch = 1 + random(50, 400);
            let tail = [Tail::Repeat, Tail::Repeat, Tail::Pad][(case % 5 % 3) as usize];
            let lanes = Some(1 + random(51, batch.min(9)) as u32);
            let spec =
                PlanSpec { lanes, window_rows: Some(1 + random(52, 20)), tail, mix, ..PlanSpec::new(case, batch) };
            let plan = Plan::new(&manifests, spec, random(53, 3)).unwrap();
            let world = 1 + random(54, batch.min(4)) as u32;
            let last = plan.steps() - 1;
            for rank in 0..world {
                let share = Share::new(rank, world).unwrap();
                let listed: BTreeSet<_> = plan
                    .windows(last, share)
                    .into_iter()
                    .flat_map(|window| {
                        window.groups.into_iter().map(move |group| (window.source, group)).collect::<Vec<_>>()
                    })
                    .collect();
                assert_eq!(plan.groups_of(last, share), listed, "case {case}, rank {rank} of {world}");
                assert!(walked(&plan, last, share).is_subset(&listed), "case {case}, rank {rank} of {world}");
            }
        }
    }

    #[test]
    fn a_step_of_two_thousand_million_repeated_rows_is_weighed_by_its_lanes() {
        // Walked row by row this takes minutes, not microseconds.
        let manifests = [Arc::new(Manifest::imaginary(&[50; 40], 10))];
        let spec = PlanSpec { tail: Tail::Repeat, ..PlanSpec::new(1, (1 << 31) - 1) };
        let plan = Plan::new(&manifests, spec.resolve(&manifests).unwrap(), 0).unwrap();
        assert_eq!(plan.live_bytes(Share::whole(), &|_, _| 1), 40);
        assert_eq!(plan.live_bytes(Share::new(3, 1 << 20).unwrap(), &|_, _| 1), 40);
        let lanes = u64::from(plan.lanes());
        assert!((1..=40 + lanes).contains(&(plan.windows(0, Share::whole()).len() as u64)));
    }

    #[test]
    fn aligned_windows_weigh_once_and_a_shared_row_group_too() {
        // 8 lanes of 4 row groups of 64 rows, a step takes 8 rows of each: no step needs two windows of a lane.
        let manifests = [Arc::new(Manifest::imaginary(&[64; 32], 10))];
        let spec = PlanSpec { lanes: Some(8), window_rows: Some(64), ..PlanSpec::new(1, 64) };
        let plan = Plan::new(&manifests, spec, 0).unwrap();
        let one = |_, _| 1;
        assert_eq!(plan.live_bytes(Share::whole(), &one), 8);
        assert_eq!(plan.live_bytes(Share::new(1, 4).unwrap(), &one), 2);
        // One row group for all lanes.
        let manifests = [Arc::new(Manifest::imaginary(&[6400], 10))];
        let spec = PlanSpec { lanes: Some(8), window_rows: Some(64), ..PlanSpec::new(1, 64) };
        let plan = Plan::new(&manifests, spec, 0).unwrap();
        assert_eq!(plan.live_bytes(Share::whole(), &one), 1);
    }
}
