//! The bounds of an epoch's steps, and the rows of a step including those that fill it: the [`Tail`] as arithmetic.
//!
//! ```text
//!   pad, repeat │ G │ G │ G │ left .. filled to G                short │ G │ G │ G │ left .. filled to ceil(left / W) * W
//!   drop        │ G │ G │ G │                                     even │ G │ G │ G │ left │       at least half of G is left
//!                                                                      │ G │ G │ x │ y │          x + y = G + left, halves
//!                                                                      │ G │ G │ G + left │       y is less than W
//! ```
//!
//! The rows of a step must not depend on the number of ranks W: a state is a number of steps, and a resume on other
//! ranks has to find all other rows in the other steps. Under `short` only the filling depends on W. Under `even`, a
//! cut made where fewer rows are left than there are ranks would depend on W: eight ranks would move it, one would not,
//! and between them a state before the last step would mean two things; and three rows left by one rank could never be
//! given to eight. So the last two steps share their rows wherever less than half of a global batch is left. Then every
//! step has half a global batch, which is enough for any number of ranks that have two rows each in a step, and the cut
//! is the same for all of them.
//!
//! Ranks of one row each (G < 2 W) may be more than that. If either of the last two steps has fewer rows than there are
//! ranks, the two become one: a step of one to three rows for each rank, and the epoch has one step fewer. Up to there
//! all worlds have the same steps. The end of such an epoch is written as that of the others, see
//! [`State::step`](super::State::step), so that no world takes the rows again; and a state between the last two steps,
//! whose rows are fewer than the ranks that would resume there, is refused.

use std::ops::Range;

use super::share::{Share, length};
use super::tail::Tail;
use crate::error::{Error, Result};

/// See the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cuts {
    tail: Tail,
    batch: u64,
    /// Ranks.
    world: u32,
    /// Rows delivered.
    rows: u64,
    steps: u64,
    /// Steps of a whole global batch, before all others.
    full: u64,
    /// End of the step after these: before the end of the epoch if there is another one.
    cut: u64,
    /// Set if all rows of a step come from one lane, see [`dealt`](Self::dealt).
    one_lane: bool,
}

impl Cuts {
    /// The cuts of `rows` rows in steps of `batch`, for `world` ranks.
    pub(super) fn new(tail: Tail, batch: u64, rows: u64, world: u32) -> Self {
        let (whole, left) = (rows / batch, rows % batch);
        let plain = |steps, rows| Self { tail, batch, world, rows, steps, full: whole, cut: rows, one_lane: false };
        if left == 0 {
            return plain(whole, rows);
        }
        match tail {
            Tail::Drop => plain(whole, whole * batch),
            Tail::Even if whole > 0 => {
                let start = (whole - 1) * batch;
                let first = if left >= batch.div_ceil(2) { batch } else { (batch + left).div_ceil(2) };
                let is_one = u64::from(world) > first.min(batch + left - first);
                let (steps, full, cut) = match is_one {
                    true => (whole, whole - 1, rows),
                    false if first == batch => (whole + 1, whole, rows),
                    false => (whole + 1, whole - 1, start + first),
                };
                Self { tail, batch, world, rows, steps, full, cut, one_lane: false }
            }
            Tail::Pad | Tail::Repeat | Tail::Short | Tail::Even => plain(whole + 1, rows),
        }
    }

    /// The same for `world` ranks.
    pub(super) fn of_world(self, world: u32) -> Self {
        Self { one_lane: self.one_lane, ..Self::new(self.tail, self.batch, self.rows, world) }
    }

    /// The same with all rows of a step from one lane, if `one_lane`.
    pub(super) fn in_one_lane(self, one_lane: bool) -> Self {
        Self { one_lane, ..self }
    }

    pub(super) fn world(&self) -> u32 {
        self.world
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps of a whole global batch, which come first; the others are cut differently.
    pub(super) fn full(&self) -> u64 {
        self.full
    }

    /// Positions that `step` delivers for the first time.
    pub(super) fn positions(&self, step: u64) -> Range<u64> {
        if step >= self.steps {
            return self.rows..self.rows;
        }
        if step < self.full {
            return step * self.batch..(step + 1) * self.batch;
        }
        if step == self.full { self.full * self.batch..self.cut } else { self.cut..self.rows }
    }

    /// The step that delivers `position` of the epoch for the first time.
    pub(super) fn step_of(&self, position: u64) -> u64 {
        match position / self.batch {
            step if step < self.full => step,
            _ => self.full + u64::from(position >= self.cut),
        }
    }

    /// Rows of `step` on the ranks of `share` together, with padded and repeated ones.
    pub(super) fn places(&self, step: u64, share: Share) -> u64 {
        let real = length(&self.positions(step));
        match self.tail {
            Tail::Pad | Tail::Repeat | Tail::Drop => self.batch,
            Tail::Even => real,
            Tail::Short if real == self.batch => real,
            Tail::Short => {
                // `Share::whole` stands for all ranks of the plan.
                let world = u64::from(if share.world == 1 { self.world } else { share.world });
                real.div_ceil(world) * world
            }
        }
    }

    /// Number of places of the list of `step` that are dealt out to ranks, each a part as [`Share::part`] says, with
    /// the rows delivered for the first time in the first of them. Under `short` in one lane these are all places:
    /// repeated rows then come after the rows of all ranks, and can be cut off after joining the ranks' batches. In
    /// several lanes this would move ranks to the lanes of others, whose row groups they would read for one step.
    /// There, and under other tails, every rank has its own places to fill.
    pub(super) fn dealt(&self, step: u64, share: Share) -> u64 {
        match self.tail {
            Tail::Short if self.one_lane => self.places(step, share),
            Tail::Short | Tail::Even | Tail::Pad | Tail::Repeat | Tail::Drop => length(&self.positions(step)),
        }
    }

    /// Places of the list of `step` that `share` delivers for the first time.
    pub(super) fn own(&self, step: u64, share: Share) -> Range<u64> {
        let (part, real) = (share.part(self.dealt(step, share)), length(&self.positions(step)));
        part.start.min(real)..part.end.min(real)
    }

    /// Maximum rows of `share` in a step.
    pub(super) fn most(&self, share: Share) -> u64 {
        let others = (self.full..self.steps).map(|step| self.places(step, share));
        let full = (self.full > 0 || self.steps == 0).then_some(self.batch);
        others.chain(full).map(|places| length(&share.part(places))).max().unwrap_or(0)
    }

    /// Refuses ranks that would get no row in some step although nothing is repeated or padded.
    pub(super) fn check(&self, share: Share) -> Result<()> {
        let world = u64::from(share.world);
        if self.tail != Tail::Even || self.rows == 0 || share.world == 1 {
            return Ok(());
        }
        let Self { rows, .. } = self;
        if *rows < world {
            let problem = format!(
                "even: an epoch of {rows} rows for {world} ranks, of which some get none; use at most {rows} ranks, or tail=short, which \
                 repeats rows, or tail=pad"
            );
            return Err(Error::config("tail", problem));
        }
        let least = (self.full..self.steps).map(|step| length(&self.positions(step))).min();
        if least.is_some_and(|least| least < world) {
            let problem = format!("even: the plan was made for {} ranks, not {world}: use Plan::for_world", self.world);
            return Err(Error::config("tail", problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(tail: Tail, batch: u64, rows: u64, world: u32) -> Vec<u64> {
        let cuts = Cuts::new(tail, batch, rows, world);
        let sizes: Vec<_> = (0..cuts.steps()).map(|step| length(&cuts.positions(step))).collect();
        assert_eq!(sizes.iter().sum::<u64>(), cuts.rows());
        for step in 0..cuts.steps() {
            assert!(cuts.positions(step).all(|position| cuts.step_of(position) == step), "{cuts:?}, step {step}");
            assert_eq!(step < cuts.full(), sizes[..=step as usize].iter().all(|size| *size == batch), "{cuts:?}");
        }
        assert!(cuts.positions(cuts.steps()).is_empty());
        sizes
    }

    #[test]
    fn steps_are_cut_as_the_drawing_says() {
        for (tail, rows, world, expected) in [
            (Tail::Pad, 27, 3, &[8, 8, 8, 3][..]),
            (Tail::Repeat, 27, 3, &[8, 8, 8, 3]),
            (Tail::Short, 27, 3, &[8, 8, 8, 3]),
            (Tail::Drop, 27, 3, &[8, 8, 8]),
            (Tail::Even, 24, 3, &[8, 8, 8]),
            (Tail::Even, 28, 4, &[8, 8, 8, 4]),
            (Tail::Even, 27, 3, &[8, 8, 6, 5]),
            (Tail::Even, 27, 1, &[8, 8, 6, 5]),
            (Tail::Even, 27, 6, &[8, 8, 11]),
            (Tail::Even, 28, 8, &[8, 8, 12]),
            (Tail::Even, 9, 4, &[5, 4]),
            (Tail::Even, 9, 8, &[9]),
            (Tail::Even, 3, 3, &[3]),
            (Tail::Even, 0, 3, &[]),
        ] {
            assert_eq!(sizes(tail, 8, rows, world), expected, "{tail:?}, {rows} rows, {world} ranks");
        }
    }

    #[test]
    fn a_cut_of_even_is_that_of_all_worlds_of_two_rows_each() {
        for batch in 1..20 {
            for rows in 1..80 {
                let one = sizes(Tail::Even, batch, rows, 1);
                assert!(one.iter().all(|size| *size <= batch && *size >= (batch / 2).min(rows)), "{batch}, {rows}");
                for world in 1..=batch as u32 {
                    let other = sizes(Tail::Even, batch, rows, world);
                    let is_one = other.len() < one.len();
                    assert!(other == one || is_one && 2 * u64::from(world) > batch, "{batch}, {rows}, {world}");
                    assert!(!is_one || other[..other.len() - 1] == one[..other.len() - 1], "{batch}, {rows}, {world}");
                    let has_rows = other.iter().all(|size| *size >= u64::from(world));
                    assert_eq!(has_rows, rows >= u64::from(world), "{batch}, {rows}, {world}");
                    let share = Share::new(0, world).unwrap();
                    assert_eq!(Cuts::new(Tail::Even, batch, rows, world).check(share).is_ok(), has_rows);
                }
            }
        }
    }

    #[test]
    fn what_short_repeats_comes_behind_the_rows_of_all_ranks() {
        let parts = |tail, rows, world| {
            let cuts = Cuts::new(tail, 8, rows, 1).in_one_lane(true).of_world(world);
            let own = |rank| length(&cuts.own(cuts.steps() - 1, Share::new(rank, world).unwrap()));
            (0..world).map(own).collect::<Vec<_>>()
        };
        assert_eq!(parts(Tail::Short, 29, 4), [2, 2, 1, 0]);
        assert_eq!(parts(Tail::Short, 27, 2), [2, 1]);
        assert_eq!(parts(Tail::Short, 25, 4), [1, 0, 0, 0]);
        assert_eq!(parts(Tail::Short, 24, 3), [3, 3, 2]);
        assert_eq!(parts(Tail::Repeat, 29, 4), [2, 1, 1, 1]);
        assert_eq!(parts(Tail::Even, 29, 4), [2, 1, 1, 1]);
    }

    #[test]
    fn the_last_step_of_short_has_the_rows_that_are_left_on_every_rank() {
        for (rows, world, expected) in [(27, 1, 3), (27, 2, 4), (27, 3, 3), (27, 8, 8), (24, 3, 8), (1, 5, 5)] {
            let cuts = Cuts::new(Tail::Short, 8, rows, world);
            let last = cuts.steps() - 1;
            assert_eq!(cuts.places(last, Share::new(0, world).unwrap()), expected, "{rows}, {world}");
            assert_eq!(cuts.places(last, Share::whole()), expected, "{rows}, {world}");
        }
        // Ranks with unequal batches: the last has more rows in the last step than in any other.
        let cuts = Cuts::new(Tail::Short, 11, 21, 3);
        assert_eq!(cuts.most(Share::new(2, 3).unwrap()), 4);
    }
}
