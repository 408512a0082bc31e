//! The data that the ranks of a world read in an epoch, found by counting, without walking rows or steps.
//!
//! A window is needed by the ranks whose slices overlap its lane's part of the list of a step. They are the same in
//! nearly all of its steps, so only a few of these are examined. A row group that lies in one window is read once by
//! each of them. One that is cut between lanes is read once by a rank for as long as any of its windows is needed
//! without a break, as the pipeline does.

use std::collections::BTreeMap;
use std::ops::Range;

use super::layout::Window;
use super::share::{Share, length};
use super::steps::Plan;

/// Steps of a window that are examined where lanes shift back and forth in the list, if windows are few.
const LOOKS: u64 = 64;
/// Steps that are examined in all windows of a source together, apart from four of each.
const MOST_LOOKS: u64 = 1 << 20;
/// Windows of a source that are examined in all its passes; further passes are alike.
const MOST_WINDOWS: u64 = 1 << 18;

/// The data that one rank reads in an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Read {
    /// Row groups, each counted as often as it is read.
    pub groups: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The data that the ranks of a world read in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reads {
    /// Reads of each rank.
    pub ranks: Vec<Read>,
    /// Bytes of the row groups that any rank reads, each once for each pass over its dataset.
    pub data: u64,
    /// Number of these row groups.
    pub groups: u64,
    /// Number of them that more than one rank reads.
    pub shared: u64,
}

impl Reads {
    /// Bytes that all ranks read.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().fold(0, |sum, rank| sum.saturating_add(rank.bytes))
    }

    /// How often the data is read on average: 1 is once.
    pub fn times(&self) -> f64 {
        if self.data == 0 { 1.0 } else { self.bytes() as f64 / self.data as f64 }
    }

    /// Maximum bytes of a rank, relative to the mean.
    pub fn imbalance(&self) -> f64 {
        let most = self.ranks.iter().map(|rank| rank.bytes).max().unwrap_or(0);
        let mean = self.bytes() as f64 / self.ranks.len().max(1) as f64;
        if most == 0 { 1.0 } else { most as f64 / mean }
    }
}

/// A rank that needs a row group shared by several lanes or passes, for one of these: from which step to which.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    rank: u64,
    from: u64,
    to: u64,
    pass: u64,
}

/// Steps in which rows of a window are taken, and the ranks that take them.
pub(super) type Looks = Vec<(u64, Range<u64>)>;

/// Counts so far. Ranges of ranks are kept by their ends: what begins with a rank, less what ended before it.
struct Count {
    groups: Vec<u64>,
    bytes: Vec<u64>,
    /// The row groups themselves: their number, the number read by several ranks, and bytes.
    all: [u64; 3],
}

impl Count {
    fn new(world: u32) -> Self {
        let ends = || vec![0; world as usize + 1];
        Self { groups: ends(), bytes: ends(), all: [0; 3] }
    }

    /// Adds row groups that some ranks read.
    fn reads(&mut self, ranks: &Range<u64>, groups: u64, bytes: u64) {
        let (first, end) = (ranks.start as usize, ranks.end as usize);
        self.groups[first] = self.groups[first].wrapping_add(groups);
        self.groups[end] = self.groups[end].wrapping_sub(groups);
        self.bytes[first] = self.bytes[first].wrapping_add(bytes);
        self.bytes[end] = self.bytes[end].wrapping_sub(bytes);
    }

    /// Adds row groups that are read at all.
    fn are_read(&mut self, groups: u64, bytes: u64, is_shared: bool) {
        let [all, shared, size] = &mut self.all;
        *all += groups;
        *shared += if is_shared { groups } else { 0 };
        *size = size.saturating_add(bytes);
    }

    /// Adds this source, after `counted` of `passes` passes were counted.
    fn add_to(self, reads: &mut Reads, counted: u64, passes: u64) {
        let scaled = |number: u64| {
            let scaled = u128::from(number) * u128::from(passes) / u128::from(counted.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let (mut groups, mut bytes) = (0_u64, 0_u64);
        for ((more, most), rank) in self.groups.iter().zip(&self.bytes).zip(&mut reads.ranks) {
            (groups, bytes) = (groups.wrapping_add(*more), bytes.wrapping_add(*most));
            rank.groups = rank.groups.saturating_add(scaled(groups));
            rank.bytes = rank.bytes.saturating_add(scaled(bytes));
        }
        let [all, shared, size] = self.all.map(scaled);
        reads.groups = reads.groups.saturating_add(all);
        reads.shared = reads.shared.saturating_add(shared);
        reads.data = reads.data.saturating_add(size);
    }
}

impl Plan {
    /// The data that the ranks of a world of `world` ranks read in this epoch, where `cost` gives the bytes of a row
    /// group (source, index into the manifest's groups). Repeated rows are left out. Takes time in proportion to the
    /// row groups, the lanes and the ranks.
    ///
    /// It is exact if the global batch is a multiple of the lanes and nothing is mixed; otherwise it may miss a rank
    /// that takes a single row of a window now and then. If a dataset starts again very often, some passes stand for
    /// the others.
    pub fn reads(&self, world: u32, cost: &dyn Fn(u32, u32) -> u64) -> Reads {
        let mut reads = Reads { ranks: vec![Read::default(); world as usize], data: 0, groups: 0, shared: 0 };
        for (source, layout) in self.sources.iter().enumerate() {
            let drawn = self.interleave.count(source, self.rows());
            let passes = drawn.div_ceil(layout.rows().max(1));
            let windows: u64 = (0..self.lanes).map(|lane| u64::from(layout.windows(lane))).sum();
            let counted = passes.min(1 + MOST_WINDOWS / windows.max(1));
            // If a step takes equally many rows of each lane, lanes have fixed places in the list, and only a window's
            // ends differ.
            let even =
                self.spec().global_batch.is_multiple_of(self.lanes) && (self.sources.len() == 1 || self.keeps_lanes());
            let looks = if even { 4 } else { (MOST_LOOKS / windows.saturating_mul(counted).max(1)).clamp(4, LOOKS) };
            let count = self.count(source, 0..counted, (world, looks), &|group| cost(source as u32, group));
            count.add_to(&mut reads, counted, passes);
        }
        reads
    }

    fn count(&self, source: usize, passes: Range<u64>, (world, most): (u32, u64), cost: &dyn Fn(u32) -> u64) -> Count {
        let layout = &self.sources[source];
        let mut count = Count::new(world);
        let mut parts: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
        for pass in passes.clone() {
            for lane in 0..self.lanes {
                for number in 0..layout.windows(lane) {
                    let window = layout.window(lane, number);
                    let Some(looks) = self.looks((source, pass, lane), &window, world, most) else { break };
                    let ranks = together(&looks);
                    // Needed again while still held: its rows in the next pass begin within a step of its last ones in
                    // this.
                    let between = (layout.lane_rows(lane) - length(&window.rows)).saturating_mul(self.lanes);
                    let again = passes.end > 1 && between <= self.spec().global_batch;
                    let (mut groups, mut bytes) = (0, 0_u64);
                    for at in window.groups.clone() {
                        if again || !layout.inside(at, lane) {
                            parts.entry(at).or_default().extend(parts_of(&looks, &ranks, pass));
                        } else {
                            groups += 1;
                            bytes = bytes.saturating_add(cost(layout.order()[at]));
                        }
                    }
                    ranks.iter().for_each(|ranks| count.reads(ranks, groups, bytes));
                    count.are_read(groups, bytes, ranks.iter().map(length).sum::<u64>() > 1);
                }
            }
        }
        for (at, parts) in parts {
            count_parts(cost(layout.order()[at]), parts, &mut count);
        }
        count
    }

    /// The ranks that take rows of a window of a source, pass and lane, in `most` of its steps; `None` if the epoch
    /// ends before it.
    pub(super) fn looks(
        &self,
        (source, pass, lane): (usize, u64, u64),
        window: &Window,
        world: u32,
        most: u64,
    ) -> Option<Looks> {
        let layout = &self.sources[source];
        let before = pass * layout.lane_rows(lane);
        let drawn = self.along(source, self.interleave.count(source, self.rows()), lane);
        let rows = before + window.rows.start..(before + window.rows.end).min(drawn);
        if rows.is_empty() {
            return None;
        }
        let step = |row: u64| {
            let draw = pass * layout.rows() + (row - before) * self.lanes + lane;
            // The draw lies within the epoch, so it has a position.
            self.cuts.step_of(self.interleave.position(source, draw).unwrap_or(u64::MAX))
        };
        let (first, last) = (step(rows.start), step(rows.end - 1));
        let span = last - first;
        let mut steps: Vec<u64> = if span < most {
            (first..=last).collect()
        } else {
            let between = (1..most - 2).map(|at| first + (u128::from(span) * u128::from(at) / u128::from(most)) as u64);
            [first, first + 1].into_iter().chain(between).chain([last - 1, last]).collect()
        };
        steps.sort_unstable();
        steps.dedup();
        let found = steps.into_iter().filter_map(|step| Some((step, self.takers(step, source, lane, &rows, world)?)));
        Some(found.collect())
    }

    /// The ranks that take any of `rows` of a lane, counted over all passes, in `step`.
    fn takers(&self, step: u64, source: usize, lane: u64, rows: &Range<u64>, world: u32) -> Option<Range<u64>> {
        let (at, taken) = self.place(step, source, lane);
        let (start, end) = (rows.start.max(taken.start), rows.end.min(taken.end));
        if start >= end {
            return None;
        }
        let dealt = self.cuts.dealt(step, Share { rank: 0, world });
        let rank = |place: u64| owner(place, dealt, world.into());
        Some(rank(at + (start - taken.start))..rank(at + (end - 1 - taken.start)) + 1)
    }
}

/// The rank that owns place `at` of a list of `n`, see [`Share::part`](super::Share::part).
fn owner(at: u64, n: u64, world: u64) -> u64 {
    let (each, more) = (n / world, n % world);
    let long = more * (each + 1);
    if at < long { at / (each + 1) } else { more + (at - long) / each.max(1) }
}

/// All ranks of `looks`, in ranges that do not touch: the last, incomplete step may have others than those before it.
fn together(looks: &Looks) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = looks.iter().map(|(_, ranks)| ranks.clone()).collect();
    found.sort_unstable_by_key(|ranks| ranks.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for ranks in found {
        match all.last_mut() {
            Some(last) if ranks.start <= last.end => last.end = last.end.max(ranks.end),
            _ => all.push(ranks),
        }
    }
    all
}

/// The first and last step in which each of `ranks` needs a window.
fn parts_of(looks: &Looks, ranks: &[Range<u64>], pass: u64) -> Vec<Part> {
    let of = |rank: u64| {
        let mut steps = looks.iter().filter(|(_, ranks)| ranks.contains(&rank)).map(|(step, _)| *step);
        let from = steps.next()?;
        Some(Part { rank, from, to: steps.next_back().unwrap_or(from), pass })
    };
    ranks.iter().cloned().flatten().filter_map(of).collect()
}

/// Counts one row group that several windows share.
fn count_parts(bytes: u64, mut parts: Vec<Part>, count: &mut Count) {
    parts.sort_unstable();
    let mut open: Option<(u64, u64)> = None;
    for Part { rank, from, to, .. } in &parts {
        match &mut open {
            Some((reader, end)) if reader == rank && from <= end => *end = *to.max(end),
            _ => {
                count.reads(&(*rank..rank + 1), 1, bytes);
                open = Some((*rank, *to));
            }
        }
    }
    let mut readers: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    for Part { rank, pass, .. } in &parts {
        let (first, is_shared) = readers.entry(*pass).or_insert((*rank, false));
        *is_shared |= rank != first;
    }
    for (_, is_shared) in readers.into_values() {
        count.are_read(1, bytes, is_shared);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::cuts::Cuts;
    use crate::plan::{Mix, PlanSpec, Shuffle, Stop, Tail};

    #[test]
    fn every_place_has_its_owner() {
        for world in 1..9 {
            for n in 0..40 {
                for rank in 0..world {
                    let part = Share::new(rank, world).unwrap().part(n);
                    assert!(part.clone().all(|at| owner(at, n, u64::from(world)) == u64::from(rank)), "{n}, {world}");
                }
            }
        }
    }

    #[test]
    fn the_rows_of_a_last_step_have_their_owners() {
        for tail in [Tail::Short, Tail::Even, Tail::Pad] {
            for (rows, world) in (1..40).flat_map(|rows| (1..9).map(move |world| (rows, world))) {
                let cuts = Cuts::new(tail, 9, rows, world).in_one_lane(rows % 2 == 0);
                for (step, rank) in (0..cuts.steps()).flat_map(|step| (0..world).map(move |rank| (step, rank))) {
                    let share = Share::new(rank, world).unwrap();
                    let (own, dealt) = (cuts.own(step, share), cuts.dealt(step, share));
                    assert!(
                        own.clone().all(|at| owner(at, dealt, world.into()) == u64::from(rank)),
                        "{cuts:?}, {own:?}"
                    );
                }
            }
        }
    }

    /// The row groups that each rank reads, step by step, as the pipeline does: one is read when a window needs it and
    /// it is not held.
    fn walked(plan: &Plan, world: u32) -> Vec<u64> {
        let read = |rank| {
            let share = Share::new(rank, world).unwrap();
            let mut reads = 0;
            let mut held: HashMap<_, (u64, Vec<(u32, u32)>)> = HashMap::new();
            for step in 0..plan.steps() {
                held.retain(|_, (last, _)| *last >= step);
                for window in plan.windows(step, share) {
                    let name = (window.source, window.source_epoch, window.lane, window.window);
                    if held.contains_key(&name) {
                        continue;
                    }
                    let groups: Vec<_> = window.groups.iter().map(|group| (window.source, *group)).collect();
                    let there: Vec<_> = held.values().flat_map(|(_, groups)| groups).copied().collect();
                    reads += groups.iter().filter(|group| !there.contains(group)).count() as u64;
                    held.insert(name, (window.last_step, groups));
                }
            }
            reads
        };
        (0..world).map(read).collect()
    }

    #[test]
    fn counts_are_those_of_a_walk() {
        for case in 0..120_u64 {
            let random = |what: u64, most: u64| crate::plan::random(case, what, 0) % most;
            let groups: Vec<u64> = (0..1 + random(1, 30)).map(|at| 1 + random(2 + at, 50)).collect();
            let others: Vec<u64> = (0..1 + random(40, 6)).map(|at| 1 + random(50 + at, 20)).collect();
            let stop = if case % 2 == 0 { Stop::AllExhausted } else { Stop::FirstExhausted };
            let (manifests, mix) = if case % 3 == 0 {
                let mix = Mix { weights: vec![1 + random(60, 5) as u32, 1 + random(61, 5) as u32], stop };
                (vec![Manifest::imaginary(&groups, 1), Manifest::imaginary(&others, 1)], Some(mix))
            } else {
                (vec![Manifest::imaginary(&groups, 1)], None)
            };
            let manifests: Vec<_> = manifests.into_iter().map(Arc::new).collect();
            let batch = 1 + random(62, 60);
            let (shuffle, window_rows) = match case % 4 {
                0 => (Shuffle::None, None),
                _ => (Shuffle::Windows, Some(1 + random(63, 60))),
            };
            let lanes = Some(1 + random(64, batch.min(12)) as u32);
            // Repeated rows are left out.
            let tail = [Tail::Even, Tail::Pad][(case % 5 % 2) as usize];
            let spec = PlanSpec { lanes, window_rows, shuffle, mix, tail, ..PlanSpec::new(case, batch) };
            let world = 1 + random(66, batch.min(10)) as u32;
            let plan =
                Plan::new(&manifests, spec.resolve(&manifests).unwrap(), random(65, 3)).unwrap().for_world(world);
            let reads = plan.reads(world, &|_, _| 3);
            let found: Vec<u64> = reads.ranks.iter().map(|rank| rank.groups).collect();
            assert_eq!(found, walked(&plan, world), "case {case}, {world} ranks, {:?}", plan.spec());
            assert!(reads.ranks.iter().all(|rank| rank.bytes == 3 * rank.groups));
            assert_eq!(reads.data, 3 * reads.groups);
            // The readers of each row group, in any order.
            let mut readers: BTreeMap<_, Vec<u32>> = BTreeMap::new();
            for rank in 0..world {
                for step in 0..plan.steps() {
                    for window in plan.windows(step, Share::new(rank, world).unwrap()) {
                        for group in window.groups {
                            readers.entry((window.source, window.source_epoch, group)).or_default().push(rank);
                        }
                    }
                }
            }
            readers.values_mut().for_each(Vec::dedup);
            assert_eq!(reads.groups, readers.len() as u64, "case {case}");
            assert_eq!(reads.shared, readers.values().filter(|ranks| ranks.len() > 1).count() as u64, "case {case}");
        }
    }

    /// `groups` row groups of 128 MB in pages of `page_rows` rows, which are the units.
    fn in_pages(groups: u64, page_rows: u64) -> [Arc<Manifest>; 1] {
        let (rows, count) = (1 << 20, (1 << 20) / page_rows);
        let unit = move |at| if at + 1 == count { rows - at * page_rows } else { page_rows };
        let units: Vec<u64> = (0..groups).flat_map(|_| (0..count).map(unit)).collect();
        [Arc::new(Manifest::imaginary(&units, 128))]
    }

    #[test]
    fn few_large_row_groups_feed_many_ranks_in_units() {
        // 512 rows for each rank.
        let times = |page_rows, ranks: u32| {
            let manifests = in_pages(8, page_rows);
            let spec = PlanSpec::new(3, u64::from(ranks) * 512).resolve(&manifests).unwrap();
            let plan = Plan::new(&manifests, spec, 0).unwrap();
            plan.reads(ranks, &|_, group| manifests[0].groups[group as usize].bytes).times()
        };
        assert!(times(1 << 20, 64) > 7.9 && times(1 << 20, 256) > 31.9, "whole row groups");
        assert!(times(8192, 64) <= 1.1 && times(8192, 256) <= 1.25);
        assert!(times(20_000, 64) <= 1.16 && times(20_000, 256) <= 1.62, "each rank has one and a half of these pages");
    }

    #[test]
    fn ranks_read_as_few_pages_as_whole_ones_allow() {
        // Ranks have as many rows as each other, and read whole pages. Draw a line from each rank to each page that it
        // reads: where k ranks and m pages are connected there are at least k + m - 1 lines, and only as many ranks can
        // be separate from the others as have the rows of whole pages.
        let (groups, rows) = (8_u64, 1_000_000_u64);
        for (page_rows, ranks) in [(20_000_u64, 64_u64), (20_000, 256), (8000, 64), (8000, 256), (5000, 256)] {
            let (pages, each) = (groups * rows / page_rows, groups * rows / ranks);
            let apart = (1..=ranks).find(|ranks| (ranks * each).is_multiple_of(page_rows)).unwrap();
            let least = (pages + ranks - ranks / apart) as f64 / pages as f64;
            let manifests = [Arc::new(Manifest::imaginary(&vec![page_rows; pages as usize], 90))];
            let spec = PlanSpec::new(3, ranks * 512).resolve(&manifests).unwrap();
            let plan = Plan::new(&manifests, spec, 0).unwrap();
            let times = plan.reads(ranks as u32, &|_, _| 1).times();
            // The last, incomplete step is divided evenly.
            assert!((least - 0.001..least * 1.02).contains(&times), "{ranks} ranks, pages of {page_rows}: {times} x");
        }
    }

    #[test]
    fn units_are_mixed_as_well_as_row_groups_in_the_same_memory() {
        let quality = |page_rows, lanes, window_rows| {
            let manifests = in_pages(32, page_rows);
            let spec = PlanSpec { lanes: Some(lanes), window_rows: Some(window_rows), ..PlanSpec::new(3, 512) };
            Plan::new(&manifests, spec.resolve(&manifests).unwrap(), 0).unwrap().quality()
        };
        // 1 GiB in 8 lanes, as in version 2, or in 32 of units.
        let (groups, units) = (quality(1 << 20, 8, 1 << 20), quality(20_000, 32, 1 << 18));
        assert!(units >= groups, "{units:.3} instead of {groups:.3}");
        // And in a quarter of it.
        let fewer = quality(20_000, 32, 1 << 16);
        assert!(fewer >= groups, "{fewer:.3} instead of {groups:.3}");
    }
}
