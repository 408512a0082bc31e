//! The policy over whole runs, without a disk: its hits relative to the possible ones, compared with least recently used.
#![allow(clippy::print_stdout, reason = "tests print their figures")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::block::{Block, ObjectKey};
use super::foresight::{Foreseen, OpenPlan, ReadBy, Spans, due};
use super::keeper::{Due, Keeper};

/// Row groups of one size.
const GROUPS: u32 = 1000;
const BYTES: u64 = 10;
/// Epochs that fill the cache, and those that are counted.
const WARM: u64 = 2;
const COUNTED: u64 = 4;

/// Random numbers that are the same for the same seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The order of an epoch of a job.
fn order(seed: u64, epoch: u64) -> Vec<u32> {
    let mut random = Random(seed << 32 | epoch);
    let mut order: Vec<u32> = (0..GROUPS).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, (random.next() % (at as u64 + 1)) as usize);
    }
    order
}

fn block(group: u32) -> Block {
    Block::new(ObjectKey([0; 16]), &(u64::from(group) * BYTES..(u64::from(group) + 1) * BYTES)).unwrap()
}

/// A job in the middle of an epoch.
struct Job {
    seed: u64,
    epoch: u64,
    order: Vec<u32>,
    plan: OpenPlan,
}

impl Job {
    fn new(seed: u64, epoch: u64, spans: &Arc<Spans>) -> Self {
        let (order, next) = (order(seed, epoch), order(seed, epoch + 1));
        let uses = order.iter().chain(&next).zip(0..).map(|(group, step)| (*group, step)).collect();
        let foreseen = Arc::new(Foreseen::new(Arc::clone(spans), uses, u64::from(2 * GROUPS)));
        Self { seed, epoch, order, plan: OpenPlan { foreseen, position: 0, base: 0, pace: 1.0 } }
    }
}

/// The share of hits among the reads of jobs of these seeds that take turns, with a cache of `capacity` row groups; `ahead` steps are read
/// before the one that is over.
fn hits(seeds: &[u64], capacity: u64, ahead: usize) -> f64 {
    let spans = (0..GROUPS).map(|group| (block(group).object, block(group).start..block(group).end, group));
    let spans = Arc::new(Spans::new(spans));
    let mut jobs: Vec<Job> = seeds.iter().map(|seed| Job::new(*seed, 0, &spans)).collect();
    let mut keeper = Keeper::default();
    let (mut hits, mut reads) = (0_u64, 0_u64);
    for round in 0..(WARM + COUNTED) * u64::from(GROUPS) {
        let step = (round % u64::from(GROUPS)) as usize;
        for number in 0..jobs.len() {
            if round > 0 && step == 0 {
                jobs[number] = Job::new(jobs[number].seed, jobs[number].epoch + 1, &spans);
                // As all of a cache's readers do: one begins an epoch, and the order is made anew.
                jobs.iter_mut().for_each(|job| job.plan.base = job.plan.position);
                let plans: Vec<_> = jobs.iter().map(|job| job.plan.clone()).collect();
                keeper.reorder(|block| due(&plans, block, None).map(Due::At));
            }
            jobs[number].plan.position = step.saturating_sub(ahead) as u64;
            let wanted = block(jobs[number].order[step]);
            let plans: Vec<_> = jobs.iter().map(|job| job.plan.clone()).collect();
            let group = Some(jobs[number].order[step]);
            let at = due(&plans, &wanted, Some(ReadBy { plan: number, group })).map(Due::At).unwrap();
            let is_counted = round >= WARM * u64::from(GROUPS);
            reads += u64::from(is_counted);
            if keeper.has(&wanted) {
                hits += u64::from(is_counted);
                keeper.touch(&wanted, at);
            } else if keeper.make_room(BYTES, capacity * BYTES, at, |_| false).is_some() {
                keeper.insert(wanted, BYTES, at, true);
            }
            assert!(keeper.used() <= capacity * BYTES);
        }
    }
    hits as f64 / reads as f64
}

/// The same with the least recently used one evicted.
fn least_recently_used(seeds: &[u64], capacity: usize) -> f64 {
    let (mut used, mut by_time): (HashMap<u32, u64>, BTreeMap<u64, u32>) = Default::default();
    let (mut hits, mut reads, mut now) = (0_u64, 0_u64, 0_u64);
    for epoch in 0..WARM + COUNTED {
        let orders: Vec<_> = seeds.iter().map(|seed| order(*seed, epoch)).collect();
        for step in 0..GROUPS as usize {
            for order in &orders {
                now += 1;
                let before = used.insert(order[step], now);
                before.map(|before| by_time.remove(&before));
                by_time.insert(now, order[step]);
                if by_time.len() > capacity
                    && let Some((_, oldest)) = by_time.pop_first()
                {
                    used.remove(&oldest);
                }
                if epoch >= WARM {
                    reads += 1;
                    hits += u64::from(before.is_some());
                }
            }
        }
    }
    hits as f64 / reads as f64
}

#[test]
fn one_job_has_nearly_all_the_hits_that_are_possible() {
    for (capacity, times) in [(GROUPS / 4, 5.0), (GROUPS / 2, 3.0), (GROUPS * 3 / 4, 1.5)] {
        let bound = f64::from(capacity) / f64::from(GROUPS);
        for ahead in [0, 4, 16] {
            let found = hits(&[7], capacity.into(), ahead);
            let old = least_recently_used(&[7], capacity as usize);
            println!("{capacity} of {GROUPS}, {ahead} ahead: {found:.3} of {bound:.2}, least recently used {old:.3}");
            assert!(found >= 0.97 * bound && found <= bound + 1e-9, "{found} of {bound}");
            assert!(found >= times * old, "{found}, least recently used {old}");
        }
    }
}

#[test]
fn two_jobs_with_other_seeds_share_what_is_kept() {
    for (capacity, least) in [(GROUPS / 4, 0.48), (GROUPS / 2, 0.70), (GROUPS * 3 / 4, 0.85)] {
        let found = hits(&[7, 8], capacity.into(), 0);
        let old = least_recently_used(&[7, 8], capacity as usize);
        println!("{capacity} of {GROUPS}, two jobs: {found:.3}, least recently used {old:.3}");
        assert!(found >= least && found > 1.4 * old, "{found}, least recently used {old}");
    }
}

#[test]
fn a_cache_that_holds_everything_misses_nothing() {
    assert!(hits(&[1, 2, 3], GROUPS.into(), 8) > 1.0 - 1e-9);
}
