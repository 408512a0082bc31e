//! The observations of the ranks of a gang, in order, and a checker that knows only the promises.
//!
//! Shares no code with the gang: generations, ranks, rounds and steps are plain numbers here. A step counts from 1; position
//! 0 is the start. The gang's acknowledged position makes steps committed: those of generation g are the steps after the
//! position it began at, up to the position that the next generation began at.

use std::collections::{BTreeMap, BTreeSet};

/// One thing that a rank did or saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A process joined generation `generation`, which begins after step `at`.
    Began { generation: u64, rank: u32, process: u128, at: u64 },
    /// A rank got rows of a plan.
    Reads { generation: u64, rank: u32, plan: u64 },
    /// A rank is about to arrive at a round.
    Arrives { generation: u64, rank: u32, round: u64 },
    /// A round opened for a rank.
    Opened { generation: u64, rank: u32, round: u64 },
    /// A rank is about to acknowledge a step.
    Acks { generation: u64, rank: u32, step: u64 },
    /// An acknowledgement was accepted, and the whole gang was at `all`.
    Acked { generation: u64, rank: u32, step: u64, all: u64 },
}

/// Every broken promise, in words. `lossless`: no answer was lost, so that the observations are complete.
pub(crate) fn violations(world: u32, entries: &[Entry], lossless: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut began: BTreeMap<u64, u64> = BTreeMap::new();
    let mut processes: BTreeMap<(u64, u32), u128> = BTreeMap::new();
    let mut arrived: BTreeMap<(u64, u64), BTreeSet<u32>> = BTreeMap::new();
    let mut tried: BTreeSet<(u64, u32, u64)> = BTreeSet::new();
    let mut highest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut plans: BTreeMap<u64, u64> = BTreeMap::new();
    let mut newest = 0;
    for entry in entries {
        match *entry {
            Entry::Began { generation, rank, process, at } => {
                let first = *began.entry(generation).or_insert(at);
                if first != at {
                    found.push(format!("generation {generation} began after step {first} and after step {at}"));
                }
                let same = *processes.entry((generation, rank)).or_insert(process);
                if same != process {
                    found.push(format!("two processes were rank {rank} of generation {generation}"));
                }
                newest = newest.max(generation);
            }
            Entry::Reads { generation, rank, plan } => {
                let first = *plans.entry(generation).or_insert(plan);
                if first != plan {
                    found.push(format!("rank {rank} read plan {plan} in generation {generation}, others plan {first}"));
                }
            }
            Entry::Arrives { generation, rank, round } => {
                arrived.entry((generation, round)).or_default().insert(rank);
            }
            Entry::Opened { generation, rank, round } => {
                let there = arrived.get(&(generation, round)).map_or(0, BTreeSet::len);
                if there != world as usize {
                    found.push(format!(
                        "round {round} of generation {generation} opened for rank {rank} with {there} of {world}"
                    ));
                }
            }
            Entry::Acks { generation, rank, step } => {
                tried.insert((generation, rank, step));
            }
            Entry::Acked { generation, rank, step, all } => {
                if began.get(&generation).is_none_or(|at| step <= *at) {
                    found.push(format!(
                        "rank {rank} acknowledged step {step} in generation {generation}, which began later"
                    ));
                }
                let high = highest.entry(generation).or_insert(all);
                if lossless && all < *high {
                    found.push(format!("the gang went back from step {high} to step {all} in generation {generation}"));
                }
                *high = (*high).max(all);
                if lossless && generation < newest {
                    found.push(format!(
                        "generation {newest} runs, and rank {rank} of generation {generation} was accepted"
                    ));
                }
            }
        }
    }
    // A generation that continues after a step reads the plan of that step.
    let mut read = None;
    for (generation, at) in &began {
        read = read.filter(|_| *at > 0);
        let plan = plans.get(generation).copied();
        if let (Some(before), Some(plan)) = (read, plan)
            && before != plan
        {
            found.push(format!("generation {generation} went on after step {at} of plan {before} with plan {plan}"));
        }
        read = plan.or(read);
    }
    // A step that generation g committed is not done again by a later one, and none is left out in between.
    let order: Vec<(u64, u64)> = began.into_iter().collect();
    for (index, (generation, at)) in order.iter().enumerate() {
        let high = highest.get(generation).copied().unwrap_or(*at);
        for (later, start) in &order[index + 1..] {
            if *start < high {
                found.push(format!(
                    "generation {generation} committed step {high}, and generation {later} began again after step {start}"
                ));
            }
        }
        let end = order.get(index + 1).map_or(high, |(_, start)| *start);
        if lossless && end > high.max(*at) {
            found.push(format!("nobody was told that generation {generation} committed up to step {end}, only {high}"));
        }
        for step in at + 1..=end {
            for rank in (0..world).filter(|rank| !tried.contains(&(*generation, *rank, step))) {
                found
                    .push(format!("step {step} of generation {generation} is committed, but rank {rank} never did it"));
            }
        }
    }
    found.truncate(20);
    found
}

/// Number of steps committed at the end, as far as any rank was told.
pub(crate) fn progress(entries: &[Entry]) -> u64 {
    entries.iter().map(|it| if let Entry::Acked { all, .. } = it { *all } else { 0 }).max().unwrap_or(0)
}

/// Random numbers that are the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}
