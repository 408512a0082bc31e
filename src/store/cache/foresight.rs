//! The times at which open plans need blocks next, by arithmetic: no disk, no clock.
//!
//! A plan tells in which steps of this epoch and the next it needs each row group; the dataset tells their places. So the next use of a
//! block is the nearest use of the row groups whose bytes it holds, over all plans that are open in the process. One epoch ahead is enough:
//! blocks needed later than the end of the next epoch rank last, whenever that is.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::block::{Block, ObjectKey};

/// The places of row groups, or units of them: by object, in the order of their first bytes.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    objects: HashMap<ObjectKey, Vec<Span>>,
    /// Numbers of row groups are below this.
    groups: usize,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    end: u64,
    /// The last byte of this one and of all before it.
    reach: u64,
    group: u32,
}

impl Spans {
    /// Makes the spans of the row groups `spans`: the object, the bytes from the first to the last one that is read, and the number.
    pub(crate) fn new(spans: impl Iterator<Item = (ObjectKey, Range<u64>, u32)>) -> Self {
        let mut found = Self::default();
        for (object, range, group) in spans {
            let span = Span { start: range.start, end: range.end, reach: 0, group };
            found.objects.entry(object).or_default().push(span);
            found.groups = found.groups.max(group as usize + 1);
        }
        for spans in found.objects.values_mut() {
            spans.sort_unstable_by_key(|span| (span.start, span.group));
            let mut reach = 0;
            for span in spans {
                reach = reach.max(span.end);
                span.reach = reach;
            }
        }
        found
    }

    /// The row groups that have bytes of `block`.
    pub(super) fn of(&self, block: &Block) -> impl Iterator<Item = u32> {
        let spans = self.objects.get(&block.object).map(Vec::as_slice).unwrap_or_default();
        let end = spans.partition_point(|span| span.start < block.end);
        let start = spans.partition_point(|span| span.reach <= block.start);
        let near = spans.get(start..end).unwrap_or_default();
        near.iter().filter(move |span| span.end > block.start).map(|span| span.group)
    }
}

/// The steps in which a plan needs each row group, in this epoch and the next.
#[derive(Debug)]
pub(crate) struct Foreseen {
    spans: Arc<Spans>,
    /// Start of each row group's steps, and the end.
    first: Vec<u32>,
    /// Ascending for each row group; those of the next epoch are counted on from this one's.
    steps: Vec<u64>,
    /// The end of the next epoch.
    end: u64,
    /// The row groups that this process reads in the next epoch, in the order of their steps.
    later: Vec<Later>,
    /// By row group, true for those that it reads.
    own: Vec<bool>,
    /// This epoch.
    epoch: u64,
    /// The same number for all that follow this plan.
    #[cfg(feature = "flight")]
    job: u64,
}

/// A row group that the next epoch reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Later {
    /// The first step that needs it, counted on from this epoch's.
    pub(crate) step: u64,
    pub(crate) group: u32,
    /// Bytes that are read of it.
    pub(crate) bytes: u64,
}

impl Foreseen {
    /// `uses` of this epoch and the next, row group and step, over both epochs counted from 0 to `end`. All ranks need these; this process
    /// reads those of `later` in the next epoch, given in the order of their steps.
    pub(crate) fn new(spans: Arc<Spans>, mut uses: Vec<(u32, u64)>, end: u64, later: Vec<Later>) -> Self {
        uses.sort_unstable();
        let (mut first, mut steps) = (Vec::with_capacity(spans.groups + 1), Vec::with_capacity(uses.len()));
        let mut uses = uses.into_iter().peekable();
        for group in 0..spans.groups {
            first.push(steps.len() as u32);
            while let Some((_, step)) = uses.next_if(|(number, _)| *number as usize <= group) {
                steps.push(step);
            }
        }
        first.push(steps.len() as u32);
        let mut own = vec![false; spans.groups];
        for Later { group, .. } in &later {
            if let Some(own) = own.get_mut(*group as usize) {
                *own = true;
            }
        }
        Self {
            spans,
            first,
            steps,
            end,
            later,
            own,
            epoch: 0,
            #[cfg(feature = "flight")]
            job: 0,
        }
    }

    /// The same, as the plan of `epoch`.
    pub(crate) fn of_epoch(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// Its epoch, 0 if none was told.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The same, as the plan of `job`: the same number for all that follow it.
    #[cfg(feature = "flight")]
    pub(crate) fn of_job(self, job: u64) -> Self {
        Self { job, ..self }
    }

    /// The job, 0 if it has no number.
    #[cfg(feature = "flight")]
    pub(super) fn job(&self) -> u64 {
        self.job
    }

    /// Returns true if this process reads bytes of `block`.
    pub(super) fn is_own(&self, block: &Block) -> bool {
        self.spans.of(block).any(|group| self.own.get(group as usize).copied().unwrap_or_default())
    }

    /// The step of the next epoch by which its own row groups fill `room` bytes, or its end. What is needed after that has to go before this
    /// epoch ends, whatever else is read.
    pub(super) fn filled(&self, room: u64) -> u64 {
        let mut bytes = 0_u64;
        let full = self.later.iter().find(|later| {
            bytes = bytes.saturating_add(later.bytes);
            bytes > room
        });
        full.map_or(self.end, |later| later.step)
    }

    /// The step in which `group` is needed, from `from` on; with `again` the one after that.
    fn next(&self, group: u32, from: u64, again: bool) -> Option<u64> {
        let group = group as usize;
        let range = *self.first.get(group)? as usize..*self.first.get(group + 1)? as usize;
        let steps = self.steps.get(range)?;
        let at = steps.partition_point(|step| *step < from) + usize::from(again);
        Some(steps.get(at).copied().unwrap_or(self.end))
    }
}

/// An open plan, its position, and its speed.
#[derive(Debug, Clone)]
pub(super) struct OpenPlan {
    pub(super) foreseen: Arc<Foreseen>,
    /// Steps that are over now.
    pub(super) position: u64,
    /// The step that stands at zero on that scale.
    pub(super) base: u64,
    /// Time that one step takes, on the scale of all plans.
    pub(super) pace: f64,
    /// See [`Foreseen::filled`].
    pub(super) filled: u64,
}

impl OpenPlan {
    fn time(&self, step: u64) -> u64 {
        let time = step.saturating_sub(self.base) as f64 * self.pace;
        // A float beyond all numbers becomes the greatest of them.
        time as u64
    }
}

/// A reader of a block: its plan, and its row group, if known.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadBy {
    pub(super) plan: usize,
    pub(super) group: Option<u32>,
}

/// Time at which `block` is needed next by any of `plans`, given in order; after its present use if it is `read`. `None` if no plan is
/// known to need it.
pub(super) fn due(plans: &[OpenPlan], block: &Block, read: Option<ReadBy>) -> Option<u64> {
    let mut soonest = None;
    for (number, plan) in plans.iter().enumerate() {
        let own = read.filter(|read| read.plan == number);
        let next = |group| plan.foreseen.next(group, plan.position, own.is_some());
        let step = match own.and_then(|own| own.group) {
            Some(group) => next(group),
            None => plan.foreseen.spans.of(block).filter_map(next).min(),
        };
        let Some(step) = step else { continue };
        let time = plan.time(step);
        soonest = Some(soonest.map_or(time, |soonest: u64| soonest.min(time)));
    }
    soonest
}

/// Time after which blocks that any of `plans` needs do not stay until then: their room is free for what is needed in this epoch. `None`
/// without plans.
pub(super) fn spare_from(plans: &[OpenPlan]) -> Option<u64> {
    plans.iter().map(|plan| plan.time(plan.filled)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ObjectKey = ObjectKey([7; 16]);

    fn block(start: u64, end: u64) -> Block {
        Block::new(KEY, &(start..end)).unwrap()
    }

    fn plan(uses: &[(u32, u64)], position: u64, pace: f64) -> OpenPlan {
        let spans = (0..4).map(|group| (KEY, u64::from(group) * 100..u64::from(group) * 100 + 100, group));
        let foreseen = Foreseen::new(Arc::new(Spans::new(spans)), uses.to_vec(), 20, Vec::new());
        OpenPlan { foreseen: Arc::new(foreseen), position, base: position, pace, filled: 20 }
    }

    #[test]
    fn the_next_use_is_that_of_the_row_groups_under_the_block() {
        let uses = [(0, 3), (0, 12), (1, 5), (1, 10), (2, 8), (2, 19)];
        let at = |position, block| due(&[plan(&uses, position, 1.0)], &block, None);
        assert_eq!(at(0, block(0, 100)), Some(3));
        assert_eq!(at(4, block(0, 100)), Some(8), "in the next epoch");
        assert_eq!(at(4, block(50, 250)), Some(1), "the soonest of three");
        assert_eq!(at(13, block(0, 100)), Some(7), "after the end of the next epoch");
        assert_eq!(at(0, block(300, 400)), Some(20), "in neither");
        assert_eq!(at(0, block(400, 500)), None, "of no row group");
        let read = |group| due(&[plan(&uses, 0, 1.0)], &block(0, 100), Some(ReadBy { plan: 0, group }));
        assert_eq!((read(None), read(Some(2))), (Some(12), Some(19)), "after the present use");
    }

    #[test]
    fn the_nearest_use_of_all_plans_counts_by_their_speed() {
        let plans = [plan(&[(0, 10)], 0, 1.0), plan(&[(0, 4), (0, 6)], 0, 2.0)];
        assert_eq!(due(&plans, &block(0, 9), None), Some(8));
        assert_eq!(due(&plans, &block(0, 9), Some(ReadBy { plan: 1, group: None })), Some(10));
        assert_eq!(due(&[], &block(0, 9), None), None);
    }

    #[test]
    fn what_the_next_epoch_reads_fills_the_room_up_to_a_step() {
        let spans = (0..4).map(|group| (KEY, u64::from(group) * 100..u64::from(group) * 100 + 100, group));
        let later = [(10, 1), (12, 0), (15, 3)].map(|(step, group)| Later { step, group, bytes: 100 });
        let foreseen = Foreseen::new(Arc::new(Spans::new(spans)), Vec::new(), 20, later.to_vec());
        assert_eq!([99, 100, 250, 300].map(|room| foreseen.filled(room)), [10, 12, 15, 20]);
        assert!(foreseen.is_own(&block(90, 120)) && !foreseen.is_own(&block(200, 300)), "another rank's");
        let plan = |filled, pace| OpenPlan { filled, ..plan(&[], 0, pace) };
        assert_eq!(spare_from(&[plan(10, 1.0), plan(7, 2.0)]), Some(14), "the last of all plans");
        assert_eq!(spare_from(&[]), None);
    }

    #[test]
    fn spans_that_lie_in_each_other_are_all_found() {
        let spans = Spans::new([(KEY, 0..1000, 0), (KEY, 10..20, 1), (KEY, 500..600, 2)].into_iter());
        let of = |start, end| spans.of(&block(start, end)).collect::<Vec<_>>();
        assert_eq!(
            (of(550, 560), of(15, 16), of(999, 1001), of(1000, 1001)),
            (vec![0, 2], vec![0, 1], vec![0], vec![])
        );
    }
}
