//! `bowstring plan URL`: what a run would do, from footers alone: steps, bytes and row groups per rank, memory, shuffle.

use std::collections::HashSet;
use std::fmt;

use clap::Parser;
use serde::Serialize;

use bowstring::Result;
use bowstring::pipeline::{Loader, machine};
use bowstring::plan::{OrderVersion, Plan, Share, Shuffle, Tail};

use crate::args::LoaderArgs;
use crate::out::{Out, Outcome};
use crate::table::{Table, bytes, count, plural};

/// Most look-ups of a step's windows: enough for a million row groups, done in a few seconds.
const LOOK_UPS: u64 = 1_000_000;

/// Ranks listed one by one.
const RANKS_SHOWN: usize = 16;

/// Options of `plan`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    loader: LoaderArgs,
    /// The epoch to plan
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    urls: Vec<String>,
    fingerprint: String,
    files: usize,
    row_groups: usize,
    epoch: u64,
    /// Rows of the epoch over all ranks, and steps of every rank.
    rows: u64,
    steps: u64,
    world_size: u32,
    global_batch_size: u64,
    /// Rows of the last step that are neither padding nor repeated.
    last_step_rows: u64,
    tail: Tail,
    shuffle: Shuffle,
    order_version: OrderVersion,
    lanes: u32,
    window_rows: u64,
    /// Whether every rank has whole lanes, so that hardly a row group is read by two ranks.
    whole_lanes: bool,
    ranks: Vec<Rank>,
    /// Whether `ranks` was counted window by window; otherwise bytes and row groups are shares of the whole.
    exact: bool,
    memory: Memory,
    /// From 0 (file order) to 1 (as a uniform draw), see `Plan::quality`.
    shuffle_quality: f64,
}

/// What one rank does in the epoch.
#[derive(Debug, Clone, Serialize)]
struct Rank {
    rank: u32,
    batch_size: u64,
    rows: u64,
    row_groups: u64,
    /// Bytes of the row groups' selected columns, as stored.
    bytes: u64,
}

/// What the pipeline needs at least on this machine, in bytes.
#[derive(Debug, Serialize)]
struct Memory {
    /// Row groups that are live at once.
    row_groups: u64,
    /// Batches in flight.
    batches: u64,
    need: u64,
    /// What it would get.
    budget: u64,
    fits: bool,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let mut options = args.loader.options()?;
    if options.world_size.is_some() {
        // The plan is the same on every rank; which one asks decides nothing but whose memory is counted.
        options.rank.get_or_insert(0);
    }
    let budget = options.memory_budget.unwrap_or_else(machine::default_budget);
    // A budget that is too small is a finding here, not an error.
    options.memory_budget = Some(isize::MAX as u64);
    let urls = options.urls.clone();
    let mut loader = Loader::open(options)?;
    loader.set_epoch(args.epoch)?;
    out.report(&examine(&loader, urls, budget)?)
}

fn examine(loader: &Loader, urls: Vec<String>, budget: u64) -> Result<Report> {
    let (plan, world) = (loader.plan(), loader.share().world);
    let spec = plan.spec();
    let (ranks, exact) = ranks(loader, plan, world)?;
    let need = loader.memory_need();
    let total = need.row_groups.saturating_add(need.batches);
    let last = plan.steps().saturating_sub(1).saturating_mul(spec.global_batch);
    Ok(Report {
        urls,
        fingerprint: plan.fingerprint().to_string(),
        files: loader.datasets().map(|dataset| dataset.manifest().files.len()).sum(),
        row_groups: loader.datasets().map(|dataset| dataset.manifest().groups.len()).sum(),
        epoch: plan.epoch(),
        rows: plan.rows(),
        steps: plan.steps(),
        world_size: world,
        global_batch_size: spec.global_batch,
        last_step_rows: plan.rows().saturating_sub(last),
        tail: spec.tail,
        shuffle: spec.shuffle,
        order_version: spec.order_version,
        lanes: plan.lanes(),
        window_rows: spec.window_rows.unwrap_or(0),
        whole_lanes: plan.lanes().is_multiple_of(world) && spec.global_batch.is_multiple_of(u64::from(plan.lanes())),
        ranks,
        exact,
        memory: Memory {
            row_groups: need.row_groups,
            batches: need.batches,
            need: total,
            budget,
            fits: total <= budget,
        },
        shuffle_quality: plan.quality(),
    })
}

/// Each rank's rows and row groups, counted as far as [`LOOK_UPS`] go.
fn ranks(loader: &Loader, plan: &Plan, world: u32) -> Result<(Vec<Rank>, bool)> {
    let mut left = LOOK_UPS;
    let mut counted = Vec::new();
    for rank in 0..world {
        let share = Share::new(rank, world)?;
        let groups = groups_of(plan, share, &mut left);
        counted.push((rank, share, groups));
    }
    let exact = counted.iter().all(|(_, _, groups)| groups.is_some());
    let all: Vec<(u32, u32)> = loader
        .datasets()
        .enumerate()
        .flat_map(|(source, dataset)| {
            (0..dataset.manifest().groups.len()).map(move |group| (source as u32, group as u32))
        })
        .collect();
    let stored = |groups: &mut dyn Iterator<Item = &(u32, u32)>| {
        groups.fold(0u64, |sum, (source, group)| {
            sum.saturating_add(loader.stored_bytes(*source as usize, *group as usize))
        })
    };
    let whole = stored(&mut all.iter());
    let ranks = counted.into_iter().map(|(rank, share, groups)| {
        let full = plan.steps().saturating_sub(1);
        let rows = plan.real_rows(0, share).saturating_mul(full) + plan.real_rows(full, share);
        let (row_groups, bytes) = match groups.filter(|_| exact) {
            Some(groups) => (groups.len() as u64, stored(&mut groups.iter())),
            None => ((all.len() as u64).div_ceil(u64::from(world)), whole / u64::from(world)),
        };
        Rank { rank, batch_size: plan.batch_rows(share), rows, row_groups, bytes }
    });
    Ok((ranks.collect(), exact))
}

/// The row groups that a rank reads in the epoch; `None` if that takes more than `left` look-ups.
///
/// From one end of a window to the next nothing changes, so most steps need not be looked at. In a mixture a window may also
/// begin where none ends; there every step is looked at.
fn groups_of(plan: &Plan, share: Share, left: &mut u64) -> Option<HashSet<(u32, u32)>> {
    let every_step = plan.spec().mix.is_some();
    let mut groups = HashSet::new();
    let mut step = 0;
    while step < plan.steps() {
        *left = left.checked_sub(1)?;
        let uses = plan.windows(step, share);
        let end = uses.iter().map(|window| window.last_step).min().unwrap_or(step);
        groups.extend(uses.iter().flat_map(|window| window.groups.iter().map(|group| (window.source, *group))));
        step = if every_step || end <= step { step + 1 } else { end };
    }
    Some(groups)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, groups) = (plural(self.files as u64, "file"), plural(self.row_groups as u64, "row group"));
        writeln!(f, "{}, {groups}, {files}; fingerprint {:.12}", plural(self.rows, "row"), self.fingerprint)?;
        writeln!(f)?;
        let tail = match (self.tail, self.last_step_rows == self.global_batch_size || self.steps == 0) {
            (_, true) => "no tail".to_owned(),
            (Tail::Pad, _) => format!("the last has {} rows and is padded", count(self.last_step_rows)),
            (Tail::Repeat, _) => {
                format!("the last has {} rows and is filled with repeated ones", count(self.last_step_rows))
            }
            (Tail::Drop, _) => "the incomplete last one is dropped".to_owned(),
        };
        writeln!(
            f,
            "  steps     {} of {} rows, the same on each of {}; {tail}",
            count(self.steps),
            count(self.global_batch_size),
            plural(self.world_size.into(), "rank")
        )?;
        match self.shuffle {
            Shuffle::None => writeln!(f, "  order     as in the files")?,
            Shuffle::Windows => writeln!(
                f,
                "  order     {}, windows of {} or more; version {} of the order",
                plural(self.lanes.into(), "lane"),
                plural(self.window_rows, "row"),
                self.order_version.number()
            )?,
        }
        writeln!(
            f,
            "  shuffle   {:.3}; 0 is file order, 1 a uniform draw (entropy of a batch over 64 bins of the file order)",
            self.shuffle_quality
        )?;
        if self.whole_lanes {
            writeln!(f, "  reading   each rank has whole lanes: nearly every row group is read by one rank, once")?;
        } else {
            writeln!(
                f,
                "  reading   {} cannot share {} evenly: some row groups are read by two ranks",
                plural(self.world_size.into(), "rank"),
                plural(self.lanes.into(), "lane")
            )?;
        }
        let memory = &self.memory;
        let verdict = if memory.fits { "fits" } else { "does NOT fit" };
        writeln!(
            f,
            "  memory    {} needed ({} of row groups, {} of batches): {verdict} the budget of {}",
            bytes(memory.need),
            bytes(memory.row_groups),
            bytes(memory.batches),
            bytes(memory.budget)
        )?;
        writeln!(f)?;
        let mut table = Table::new(&[">rank", ">batch size", ">rows", ">row groups", ">bytes to read"]);
        for rank in self.ranks.iter().take(RANKS_SHOWN) {
            let about = |text: String| if self.exact { text } else { format!("~{text}") };
            table.row([
                rank.rank.to_string(),
                count(rank.batch_size),
                count(rank.rows),
                about(count(rank.row_groups)),
                about(bytes(rank.bytes)),
            ]);
        }
        write!(f, "{table}")?;
        if self.ranks.len() > RANKS_SHOWN {
            writeln!(f, "  ... and {} more ranks; --json lists all", self.ranks.len() - RANKS_SHOWN)?;
        }
        Ok(())
    }
}
