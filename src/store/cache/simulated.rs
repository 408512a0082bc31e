//! The policy over whole runs, without a disk: its hits relative to the possible ones, compared with least recently used.
#![allow(clippy::print_stdout, reason = "tests print their figures")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::asked::Again;
use super::block::{Block, ObjectKey};
use super::foresight::{Foreseen, Later, OpenPlan, ReadBy, Spans, due, spare_from};
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
    fn new(seed: u64, epoch: u64, capacity: u64, spans: &Arc<Spans>) -> Self {
        let (order, next) = (order(seed, epoch), order(seed, epoch + 1));
        let uses = order.iter().chain(&next).zip(0..).map(|(group, step)| (*group, step)).collect();
        let later =
            next.iter().zip(u64::from(GROUPS)..).map(|(group, step)| Later { step, group: *group, bytes: BYTES });
        let foreseen = Arc::new(Foreseen::new(Arc::clone(spans), uses, u64::from(2 * GROUPS), later.collect()));
        let filled = foreseen.filled(capacity * BYTES);
        Self { seed, epoch, order, plan: OpenPlan { foreseen, position: 0, base: 0, pace: 1.0, filled } }
    }
}

/// The reads of some jobs, after the epochs that fill the cache.
#[derive(Debug, Default)]
struct Reads {
    hits: u64,
    all: u64,
    /// Fetches of the store in each tenth of an epoch.
    fetched: [u64; 10],
}

impl Reads {
    /// Share of reads that needed no fetch, ahead or not.
    fn rate(&self) -> f64 {
        1.0 - self.fetched.iter().sum::<u64>() as f64 / self.all as f64
    }
}

/// The reads of jobs of these seeds that take turns, with a cache of `capacity` row groups; `ahead` steps are read before the one that is
/// over. With `looks_ahead`, each job fetches what its epoch needs later as far as there is room.
fn run(seeds: &[u64], capacity: u64, ahead: usize, looks_ahead: bool) -> Reads {
    let spans = (0..GROUPS).map(|group| (block(group).object, block(group).start..block(group).end, group));
    let spans = Arc::new(Spans::new(spans));
    let mut jobs: Vec<Job> = seeds.iter().map(|seed| Job::new(*seed, 0, capacity, &spans)).collect();
    let mut keeper = Keeper::default();
    let mut reads = Reads::default();
    for round in 0..(WARM + COUNTED) * u64::from(GROUPS) {
        let step = (round % u64::from(GROUPS)) as usize;
        let counted = u64::from(round >= WARM * u64::from(GROUPS));
        let tenth = step * 10 / GROUPS as usize;
        for number in 0..jobs.len() {
            if round > 0 && step == 0 {
                jobs[number] = Job::new(jobs[number].seed, jobs[number].epoch + 1, capacity, &spans);
                // As all of a cache's readers do: one begins an epoch, and the order is made anew.
                jobs.iter_mut().for_each(|job| job.plan.base = job.plan.position);
                let plans: Vec<_> = jobs.iter().map(|job| job.plan.clone()).collect();
                keeper.reorder(0, |block| due(&plans, block, None).map(Due::At));
            }
            jobs[number].plan.position = step.saturating_sub(ahead) as u64;
            let wanted = block(jobs[number].order[step]);
            let plans: Vec<_> = jobs.iter().map(|job| job.plan.clone()).collect();
            let group = Some(jobs[number].order[step]);
            let at = due(&plans, &wanted, Some(ReadBy { plan: number, group })).map(Due::At).unwrap();
            reads.all += counted;
            if keeper.has(&wanted) {
                reads.hits += counted;
                keeper.touch(&wanted, at);
            } else {
                reads.fetched[tenth] += counted;
                if keeper.make_room(BYTES, capacity * BYTES, at, |_| false).is_some() {
                    keeper.insert(wanted, BYTES, at, true);
                }
            }
            for later in jobs[number].order.iter().skip(step + 1).filter(|_| looks_ahead) {
                let wanted = block(*later);
                if keeper.has(&wanted) {
                    continue;
                }
                let (at, spare) = (due(&plans, &wanted, None).unwrap(), spare_from(&plans).unwrap());
                if keeper.make_room(BYTES, capacity * BYTES, Due::At(at.max(spare)), |_| false).is_none() {
                    break;
                }
                keeper.insert(wanted, BYTES, Due::At(at), true);
                reads.fetched[tenth] += counted;
            }
            assert!(keeper.used() <= capacity * BYTES);
        }
    }
    reads
}

/// The share of hits among the reads of jobs that fetch nothing ahead.
fn hits(seeds: &[u64], capacity: u64, ahead: usize) -> f64 {
    run(seeds, capacity, ahead, false).rate()
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

/// The share of hits in the home of all blocks, which knows of a job's plan what its reader says when it asks.
fn hits_at_home(seeds: &[u64], capacity: u64) -> f64 {
    let spans = (0..GROUPS).map(|group| (block(group).object, block(group).start..block(group).end, group));
    let spans = Arc::new(Spans::new(spans));
    let mut jobs: Vec<Job> = seeds.iter().map(|seed| Job::new(*seed, 0, capacity, &spans)).collect();
    let mut keeper = Keeper::default();
    let (mut hits, mut reads) = (0_u64, 0_u64);
    for round in 0..(WARM + COUNTED) * u64::from(GROUPS) {
        let step = (round % u64::from(GROUPS)) as usize;
        for job in &mut jobs {
            if round > 0 && step == 0 {
                *job = Job::new(job.seed, job.epoch + 1, capacity, &spans);
            }
            (job.plan.position, job.plan.base) = (step as u64, step as u64);
            let (group, wanted) = (job.order[step], block(job.order[step]));
            let read = ReadBy { plan: 0, group: Some(group) };
            let again = due(std::slice::from_ref(&job.plan), &wanted, Some(read)).unwrap();
            let at = keeper.asked(&wanted, round, Again { job: job.seed, after: again });
            let is_counted = round >= WARM * u64::from(GROUPS);
            reads += u64::from(is_counted);
            if keeper.has(&wanted) {
                hits += u64::from(is_counted);
                keeper.touch(&wanted, at);
            } else if keeper.make_room(BYTES, capacity * BYTES, at, |_| false).is_some() {
                keeper.insert(wanted, BYTES, at, true);
            }
        }
    }
    hits as f64 / reads as f64
}

#[test]
fn a_home_has_nearly_all_the_hits_that_are_possible() {
    for capacity in [GROUPS / 4, GROUPS / 2, GROUPS * 3 / 4] {
        let (bound, one) = (f64::from(capacity) / f64::from(GROUPS), hits_at_home(&[7], capacity.into()));
        let (two, here) = (hits_at_home(&[7, 8], capacity.into()), hits(&[7, 8], capacity.into(), 0));
        println!("{capacity} of {GROUPS}: {one:.3} of {bound:.2}; two jobs {two:.3}, in one process {here:.3}");
        assert!(one >= 0.97 * bound, "{one} of {bound}");
        assert!(two >= 0.97 * here, "{two}, in one process {here}");
    }
}

#[test]
fn what_is_fetched_ahead_costs_no_hits_and_comes_at_an_even_rate() {
    for capacity in [GROUPS / 10, GROUPS / 4, GROUPS / 2, GROUPS * 3 / 4, GROUPS * 9 / 10] {
        let (without, with) = (hits(&[7], capacity.into(), 0), run(&[7], capacity.into(), 0, true));
        let even = with.fetched.iter().sum::<u64>() as f64 / 10.0;
        println!("{capacity} of {GROUPS}: {without:.3} without, {:.3} with; {:?} by tenths", with.rate(), with.fetched);
        assert!(with.rate() >= 0.97 * without, "{} with, {without} without", with.rate());
        // Each tenth has a hundred row groups, of which chance takes some.
        let chance = 4.0 * even.sqrt();
        assert!(with.fetched.iter().all(|fetched| (*fetched as f64 - even).abs() <= 0.1 * even + chance), "{with:?}");
        assert!(with.hits as f64 >= 0.97 * with.all as f64, "nobody waits for the store: {with:?}");
    }
    for capacity in [GROUPS / 4, GROUPS / 2, GROUPS * 3 / 4] {
        let (without, with) = (hits(&[7, 8], capacity.into(), 0), run(&[7, 8], capacity.into(), 0, true));
        println!("{capacity} of {GROUPS}, two jobs: {without:.3} without, {:.3} with; {:?}", with.rate(), with.fetched);
        assert!(with.rate() >= 0.97 * without, "{} with, {without} without", with.rate());
    }
}

#[test]
fn a_cache_that_holds_everything_misses_nothing() {
    assert!(hits(&[1, 2, 3], GROUPS.into(), 8) > 1.0 - 1e-9);
}
