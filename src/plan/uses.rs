//! The times at which row groups are needed, in the order of steps: for eviction by a cache, and for loading before a
//! run.

use super::share::Share;
use super::steps::Plan;

/// Steps of a window that are examined for the ranks that take its rows.
const LOOKS: u64 = 4;

/// Windows that are examined; if a dataset starts again more often than that, the later passes are left out.
const MOST_WINDOWS: u64 = 1 << 22;

/// A row group, or a unit of one, that a step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Use {
    /// The first step in which any rank needs it.
    pub step: u64,
    /// The dataset, in the order of the manifests.
    pub source: u32,
    /// Index into [`Manifest::groups`](crate::manifest::Manifest::groups).
    pub group: u32,
}

/// The steps that need a row group, or a unit of one, in one pass over its dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UseSpan {
    /// The first step in which any rank needs it.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// The dataset, in the order of the manifests.
    pub source: u32,
    /// Index into [`Manifest::groups`](crate::manifest::Manifest::groups).
    pub group: u32,
}

impl Plan {
    /// All row groups that this epoch reads, in the order in which steps need them; each once for each pass over its
    /// dataset. Takes time in proportion to the row groups.
    pub fn uses(&self) -> Vec<Use> {
        let uses = self.spans().into_iter();
        let mut uses: Vec<_> =
            uses.map(|UseSpan { first, source, group, .. }| Use { step: first, source, group }).collect();
        uses.sort_unstable();
        uses
    }

    /// The row groups that one rank reads, in the order in which its steps need them; each once for each pass over its dataset. A row group
    /// of which the rank takes only some rows, in the middle of a window, may be missing. Takes time in proportion to the row groups.
    pub(crate) fn uses_of(&self, share: Share) -> Vec<Use> {
        if share.world == 1 {
            return self.uses();
        }
        let (mut uses, mut looked) = (Vec::new(), 0_u64);
        for (source, layout) in self.sources.iter().enumerate() {
            let drawn = self.interleave.count(source, self.rows());
            for pass in 0..drawn.div_ceil(layout.rows().max(1)) {
                let mut found = Vec::new();
                for lane in 0..self.lanes {
                    for number in 0..layout.windows(lane) {
                        let window = layout.window(lane, number);
                        let Some(looks) = self.looks((source, pass, lane), &window, share.world, LOOKS) else { break };
                        looked += 1;
                        let own = looks.iter().find(|(_, ranks)| ranks.contains(&u64::from(share.rank)));
                        if let Some((step, _)) = own {
                            found.extend(layout.groups(&window).iter().map(|group| (*group, *step)));
                        }
                    }
                }
                found.sort_unstable();
                found.dedup_by_key(|(group, _)| *group);
                uses.extend(found.into_iter().map(|(group, step)| Use { step, source: source as u32, group }));
                if looked > MOST_WINDOWS {
                    break;
                }
            }
        }
        uses.sort_unstable();
        uses
    }

    /// As [`uses`](Self::uses), with the last step that needs each.
    pub fn spans(&self) -> Vec<UseSpan> {
        let mut spans = Vec::new();
        let mut looked = 0_u64;
        for (source, layout) in self.sources.iter().enumerate() {
            let drawn = self.interleave.count(source, self.rows());
            let passes = drawn.div_ceil(layout.rows().max(1));
            for pass in 0..passes {
                let mut found = Vec::new();
                for lane in 0..self.lanes {
                    let (before, drawn) = (pass * layout.lane_rows(lane), self.along(source, drawn, lane));
                    for number in 0..layout.windows(lane) {
                        let window = layout.window(lane, number);
                        let row = before + window.rows.start;
                        if row >= drawn {
                            break;
                        }
                        let draw = pass * layout.rows() + window.rows.start * self.lanes + lane;
                        let Ok(position) = self.interleave.position(source, draw) else { break };
                        let first = self.cuts.step_of(position);
                        // The last row of the window that is drawn.
                        let more = window.rows.end.min(drawn - before).saturating_sub(window.rows.start + 1);
                        let position = self.interleave.position(source, draw + more * self.lanes);
                        let last = position.map_or(first, |position| self.cuts.step_of(position).max(first));
                        let span = |group: &u32| UseSpan { first, last, source: source as u32, group: *group };
                        found.extend(layout.groups(&window).iter().map(span));
                        looked += 1;
                    }
                }
                // A row group cut between lanes is read once, for the first of them, and needed until the last.
                found.sort_unstable_by_key(|found| (found.group, found.first));
                found.dedup_by(|next, kept| {
                    let same = next.group == kept.group;
                    if same {
                        kept.last = kept.last.max(next.last);
                    }
                    same
                });
                spans.append(&mut found);
                if looked > MOST_WINDOWS {
                    break;
                }
            }
        }
        spans.sort_unstable();
        spans
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::{Mix, PlanSpec, Share, Shuffle, Stop, Tail, random};

    /// The first and the last step in which a share needs each row group of each pass, by a walk over all steps.
    fn walked(plan: &Plan, share: Share) -> Vec<UseSpan> {
        let mut steps = BTreeMap::new();
        for step in 0..plan.steps() {
            for window in plan.windows(step, share) {
                for group in window.groups {
                    steps.entry((window.source, window.source_epoch, group)).or_insert((step, step)).1 = step;
                }
            }
        }
        let span = |((source, _, group), (first, last))| UseSpan { first, last, source, group };
        let mut spans: Vec<_> = steps.into_iter().map(span).collect();
        spans.sort_unstable();
        spans
    }

    /// A plan drawn at random, and a draw for `case`.
    fn drawn(case: u64) -> (Plan, impl Fn(u64, u64) -> u64) {
        let draw = move |what: u64, most: u64| random(case, what, 1) % most;
        let plan = {
            let groups: Vec<u64> = (0..1 + draw(1, 30)).map(|at| 1 + draw(2 + at, 50)).collect();
            let mut manifests = vec![Arc::new(Manifest::imaginary(&groups, 1))];
            let mut mix = None;
            if case.is_multiple_of(3) {
                manifests.push(Arc::new(Manifest::imaginary(&[7, 9, 3], 1)));
                mix = Some(Mix {
                    weights: vec![1 + draw(60, 5) as u32, 1 + draw(61, 5) as u32],
                    stop: Stop::AllExhausted,
                });
            }
            let batch = 1 + draw(62, 60);
            let shuffle = if case.is_multiple_of(4) { Shuffle::None } else { Shuffle::Windows };
            let spec = PlanSpec { shuffle, mix, tail: Tail::Pad, ..PlanSpec::new(case, batch) };
            Plan::new(&manifests, spec.resolve(&manifests).unwrap(), draw(63, 4)).unwrap()
        };
        (plan, draw)
    }

    #[test]
    fn uses_are_those_of_a_walk() {
        for case in 0..60_u64 {
            let (plan, _) = drawn(case);
            assert_eq!(plan.spans(), walked(&plan, Share::whole()), "case {case}, {:?}", plan.spec());
            assert!(plan.uses().iter().zip(plan.spans()).all(|(one, span)| one.step == span.first), "case {case}");
        }
    }

    #[test]
    fn uses_of_a_rank_are_hers_and_nearly_all_of_them() {
        let (mut found, mut all) = (0, 0);
        for case in 0..60_u64 {
            let (plan, draw) = drawn(case);
            let world = 1 + draw(64, 5) as u32;
            let plan = plan.for_world(world);
            for rank in 0..world {
                let share = Share::new(rank, world).unwrap();
                let walked = walked(&plan, share);
                let uses = plan.uses_of(share);
                for used in &uses {
                    let mut of_it = walked.iter().filter(|span| (span.source, span.group) == (used.source, used.group));
                    assert!(
                        of_it.any(|span| (span.first..=span.last).contains(&used.step)),
                        "case {case}, {share:?}: {used:?}"
                    );
                }
                assert!(uses.is_sorted() && uses.len() <= walked.len(), "case {case}, {share:?}");
                (found, all) = (found + uses.len(), all + walked.len());
            }
        }
        assert!(found * 100 >= all * 95, "{found} of {all}");
    }
}
