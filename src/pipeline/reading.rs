//! The reads and memory of the ranks of a world, before anything is read: figures for choosing lanes, batches and row groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use super::local::LocalSource;
use super::options::LoaderOptions;
use super::source::BatchSource as _;
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::plan::{Plan, Reads, Share, Shuffle};

/// Numbers of ranks reported besides the requested one.
const WORLDS: [u32; 6] = [1, 8, 64, 256, 1024, 4096];
/// From here on a change is worthwhile.
const TOO_OFTEN: f64 = 1.25;
/// Bytes read again in an epoch for which a loader warns; fewer are soon read.
const WORTH_A_WARNING: u64 = 64 << 20;
/// Maximum row groups for which the memory of other worlds is reported too: each takes microseconds.
const MOST_GROUPS: usize = 200_000;
/// Row groups per rank at which hardly any is shared.
const GROUPS_PER_RANK: u64 = 10;
/// Rows of the global batch for each lane, by default.
const ROWS_PER_LANE: u64 = 512;

/// The reads of one number of ranks in an epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reading {
    /// Number of ranks.
    pub world_size: u32,
    /// Rows of all ranks together per step.
    pub global_batch_size: u64,
    /// Lanes of the plan.
    pub lanes: u32,
    /// Stored bytes that all ranks fetch in an epoch, relative to those of the row groups: 1 means each once.
    pub times_read: f64,
    /// Stored bytes that all ranks fetch in an epoch.
    pub bytes: u64,
    /// Row groups that are read, or units of them if they are cut.
    pub row_groups: u64,
    /// Number of them that more than one rank fetches and decodes.
    pub shared_row_groups: u64,
    /// Stored bytes of the rank that fetches most, relative to the mean.
    pub imbalance: f64,
    /// Minimum bytes that a rank needs; `None` for other worlds with very many row groups.
    pub memory: Option<u64>,
    /// Stored bytes that a rank fetches before its first batch.
    pub first_batch_bytes: u64,
}

/// The result of [`LocalSource::readings`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Readings {
    /// Row groups of the files.
    pub row_groups: usize,
    /// The units of shuffling, dealing and reading: these row groups, or more units if large ones are cut at their
    /// pages.
    pub units: usize,
    /// The world that the options name.
    pub asked: Reading,
    /// Other worlds, with as many rows per rank if the options give `batch_size`, otherwise with the same global batch.
    pub worlds: Vec<Reading>,
    /// Suggested changes if the requested world reads the data 1.25 times or more.
    pub advice: Vec<String>,
    /// Reads of each rank.
    #[serde(skip)]
    pub reads: Reads,
}

impl LocalSource {
    /// The reads of the ranks of this source's world in the current epoch, and those of other worlds; by arithmetic, in
    /// proportion to the row groups. `options` are those with which it was opened.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn readings(&self, options: &LoaderOptions) -> Result<Readings> {
        let reader = Reader::new(self, options);
        let world = self.info().share.world;
        let (asked, reads) = reader.reading(self.plan(), world, true)?;
        let mut worlds = BTreeSet::from(WORLDS);
        worlds.insert(world);
        let mut found = Vec::new();
        for other in worlds {
            if other == world {
                found.push(asked.clone());
            } else if let Some(plan) = reader.plan(other, options.lanes)? {
                found.push(reader.reading(&plan, other, false)?.0);
            }
        }
        let advice = if asked.times_read >= TOO_OFTEN { reader.advice(&asked)? } else { Vec::new() };
        let (row_groups, units) = (self.row_groups(), self.units());
        Ok(Readings { row_groups, units, asked, worlds: found, advice, reads })
    }

    /// Warns if ranks read the same row groups because they are more than the plan's lanes. The first rank does it for all.
    pub(crate) fn warn_of_shared_reads(&self, options: &LoaderOptions) {
        let Share { rank, world } = self.info().share;
        if rank != 0 || f64::from(world) < TOO_OFTEN * f64::from(self.plan().lanes()) {
            return;
        }
        let reader = Reader::new(self, options);
        let advice = reader.reading(self.plan(), world, true).and_then(|(asked, _)| {
            let again = asked.bytes as f64 * (1.0 - 1.0 / asked.times_read.max(1.0));
            let is_worth = asked.times_read >= TOO_OFTEN && again >= WORTH_A_WARNING as f64;
            if is_worth { reader.advice(&asked) } else { Ok(Vec::new()) }
        });
        match advice {
            Ok(advice) if advice.is_empty() => {}
            Ok(advice) => tracing::warn!("{}", advice.join("; ")),
            // It was opened, so it can be read.
            Err(error) => tracing::debug!("the reads of {world} ranks are not known: {}", error.chain()),
        }
    }
}

/// The inputs of each world's calculation.
struct Reader<'a> {
    source: &'a LocalSource,
    options: &'a LoaderOptions,
    manifests: &'a [Arc<Manifest>],
    /// Bytes fetched for each row group, or each unit, of each dataset.
    stored: Vec<Vec<u64>>,
    /// Bytes fetched for all units, relative to those of the row groups that they are cut from: dictionaries are read
    /// for each unit, and pages that lie in two units for both.
    more: f64,
}

impl<'a> Reader<'a> {
    fn new(source: &'a LocalSource, options: &'a LoaderOptions) -> Self {
        let manifests = source.manifests();
        let stored = manifests.iter().enumerate().map(|(source_number, manifest)| {
            (0..manifest.groups.len()).map(|group| source.stored_bytes(source_number, group)).collect()
        });
        let stored: Vec<Vec<u64>> = stored.collect();
        let fetched = stored.iter().flatten().copied().fold(0, u64::saturating_add);
        let (whole, is_cut) = (source.whole_bytes(), source.units() > source.row_groups());
        let more = if is_cut && whole > 0 { (fetched as f64 / whole as f64).max(1.0) } else { 1.0 };
        Self { source, options, manifests, stored, more }
    }

    /// The plan of another world or of other lanes; `None` if it is impossible.
    fn plan(&self, world: u32, lanes: Option<u32>) -> Result<Option<Plan>> {
        let mut spec = self.source.plan().spec().clone();
        if let Some(batch) = self.options.batch_size {
            let Some(global) = batch.checked_mul(world.into()) else { return Ok(None) };
            spec.global_batch = global;
        }
        (spec.lanes, spec.window_rows) = (lanes, self.options.window_rows);
        match spec.resolve(self.manifests) {
            Ok(spec) if spec.global_batch >= world.into() => {
                let plan = Plan::new(self.manifests, spec, self.source.plan().epoch())?.for_world(world);
                let can = plan.check_share(Share::new(0, world)?).is_ok();
                Ok(can.then_some(plan))
            }
            // A batch beyond all limits, or too small for the lanes.
            Ok(_) | Err(Error::Config { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stored(&self, source: u32, group: u32) -> u64 {
        self.stored.get(source as usize).and_then(|groups| groups.get(group as usize)).copied().unwrap_or(0)
    }

    fn reading(&self, plan: &Plan, world: u32, is_asked: bool) -> Result<(Reading, Reads)> {
        let reads = plan.reads(world, &|source, group| self.stored(source, group));
        let groups: usize = self.stored.iter().map(Vec::len).sum();
        let (mut memory, mut first_batch_bytes) = (None, 0);
        // A rank at the edge and one with neighbours.
        for rank in BTreeSet::from([0, world / 2]) {
            let share = Share::new(rank, world)?;
            if is_asked || groups <= MOST_GROUPS {
                let need = self.source.need_of(plan, share).total();
                memory = memory.max(Some(need));
            }
            let windows = plan.windows(0, share);
            let first: BTreeSet<_> =
                windows.iter().flat_map(|window| window.groups.iter().map(|group| (window.source, *group))).collect();
            let bytes = first.into_iter().map(|(source, group)| self.stored(source, group));
            first_batch_bytes = bytes.fold(0, u64::saturating_add).max(first_batch_bytes);
        }
        let reading = Reading {
            world_size: world,
            global_batch_size: plan.spec().global_batch,
            lanes: plan.lanes(),
            times_read: reads.times() * self.more,
            bytes: reads.bytes(),
            row_groups: reads.groups,
            shared_row_groups: reads.shared,
            imbalance: reads.imbalance(),
            memory,
            first_batch_bytes,
        };
        Ok((reading, reads))
    }

    /// Suggested changes, the cheapest first.
    fn advice(&self, asked: &Reading) -> Result<Vec<String>> {
        let Reading { world_size: world, times_read, row_groups, shared_row_groups, lanes, .. } = *asked;
        let is_ordered = self.source.plan().spec().shuffle == Shuffle::None;
        let is_cut = self.source.units() > self.source.row_groups();
        let groups = if is_cut { "units of row groups" } else { "row groups" };
        let mut advice = vec![format!(
            "{world} ranks read the data {times_read:.1} times: {shared_row_groups} of {row_groups} {groups} are fetched and decoded by \
             more than one of them"
        )];
        if lanes != world
            && let Some(plan) = self.plan(world, Some(world))?
        {
            let (other, _) = self.reading(&plan, world, true)?;
            if other.times_read < 0.8 * times_read {
                let memory = other.memory.unwrap_or(0).div_ceil(1 << 20);
                let order = if is_ordered { "; each rank then has a part of the file order of its own" } else { "" };
                advice.push(format!(
                    "with lanes={world} they read it {:.1} times, in {memory} MiB of memory each{order}",
                    other.times_read
                ));
            }
        }
        if !is_ordered && self.options.lanes.is_none() && asked.global_batch_size / ROWS_PER_LANE < u64::from(world) {
            let rows = u64::from(world) * ROWS_PER_LANE;
            advice.push(format!("a global batch of {rows} rows has a lane for each rank by default"));
        }
        if row_groups < u64::from(world) * GROUPS_PER_RANK {
            let enough = u64::from(world) * GROUPS_PER_RANK;
            let index = if is_cut {
                ""
            } else {
                "; so are those of a page index, with which large row groups are read in units"
            };
            advice.push(format!(
                "{row_groups} {groups} are few for {world} ranks: smaller ones, {enough} or more, are seldom cut between two{index}"
            ));
        }
        advice.push(
            "ranks that read through a server (`bowstring serve`) fetch nothing from the store themselves".to_owned(),
        );
        Ok(advice)
    }
}
