//! `bowstring plan URL`: the plan of a run from footers alone: steps, bytes and row groups per rank, total reads,
//! memory, shuffle.

use std::fmt;

use clap::Parser;
use serde::Serialize;

use crate::pipeline::{BatchSource as _, LoaderOptions, LocalSource, Reading, Readings, machine};
use crate::plan::{OrderVersion, Plan, Reads, Share, Shuffle, Tail, UseSpan};
use crate::{Error, Result};

use crate::cli::args::{self, LoaderArgs};
use crate::cli::bar::Bar;
use crate::cli::html::{HtmlArgs, Plot, PlotKind};
use crate::cli::out::{Out, Outcome};
use crate::cli::table::{Table, bytes, count, plural, seconds};

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
    /// Bytes that a rank reads per second, e.g. 500MB: adds the wait for the first batch
    #[arg(long, value_name = "BYTES", value_parser = args::bytes)]
    rate: Option<u64>,
    #[command(flatten)]
    html: HtmlArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    urls: Vec<String>,
    fingerprint: String,
    files: usize,
    row_groups: usize,
    /// The row groups, or units of them, that are shuffled and read.
    units: usize,
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
    /// True if every rank has whole lanes, so that hardly any row group is read by two ranks.
    whole_lanes: bool,
    ranks: Vec<Rank>,
    /// The reads of all ranks together.
    reading: Reading,
    /// Seconds that reading the row groups of the first batch takes, if the rate is known.
    first_batch_seconds: Option<f64>,
    /// The same for other numbers of ranks.
    worlds: Vec<Reading>,
    /// Advice, if the data is read too often.
    advice: Vec<String>,
    memory: Memory,
    /// From 0 (file order) to 1 (as a uniform draw), see `Plan::quality`.
    shuffle_quality: f64,
}

/// One rank's part of the epoch.
#[derive(Debug, Clone, Serialize)]
struct Rank {
    rank: u32,
    batch_size: u64,
    rows: u64,
    row_groups: u64,
    /// Bytes of the row groups' selected columns, as stored.
    bytes: u64,
}

/// The minimum memory of the pipeline on this machine, in bytes.
#[derive(Debug, Serialize)]
struct Memory {
    /// Row groups that are live at once.
    row_groups: u64,
    /// Batches in flight.
    batches: u64,
    need: u64,
    /// The budget.
    budget: u64,
    fits: bool,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    args.html.check()?;
    // The plan is the same on every rank; the choice only determines whose memory is counted.
    let mut options = args.loader.options_of_any_rank()?;
    if args.rate == Some(0) {
        return Err(Error::config("rate", "0 bytes per second are no rate; leave it out").into());
    }
    let budget = options.memory_budget.unwrap_or_else(machine::default_budget);
    // A budget that is too small is a finding here, not an error.
    options.memory_budget = Some(isize::MAX as u64);
    let urls = options.urls.clone();
    let bar = Bar::waiting(out, "reading footers");
    let mut source = LocalSource::open(options.clone())?;
    source.seek(args.epoch, 0)?;
    let mut report = examine(&source, &options, urls, budget)?;
    drop(bar);
    report.first_batch_seconds = args.rate.map(|rate| report.reading.first_batch_bytes as f64 / rate as f64);
    out.report(&report)?;
    args.html.write(&format!("Plan of {}", report.urls.join(", ")), || report.plots(source.plan()), &report)
}

fn examine(source: &LocalSource, options: &LoaderOptions, urls: Vec<String>, budget: u64) -> Result<Report> {
    let (plan, world) = (source.plan(), source.info().share.world);
    let spec = plan.spec();
    let Readings { row_groups, units, asked, worlds, advice, reads } = source.readings(options)?;
    let need = source.memory_need();
    let total = need.row_groups.saturating_add(need.batches);
    Ok(Report {
        urls,
        fingerprint: plan.fingerprint().to_string(),
        files: source.datasets().map(|dataset| dataset.manifest().files.len()).sum(),
        row_groups,
        units,
        epoch: plan.epoch(),
        rows: plan.rows(),
        steps: plan.steps(),
        world_size: world,
        global_batch_size: spec.global_batch,
        last_step_rows: plan.real_rows(plan.steps().saturating_sub(1), Share::whole()),
        tail: spec.tail,
        shuffle: spec.shuffle,
        order_version: spec.order_version,
        lanes: plan.lanes(),
        window_rows: spec.window_rows.unwrap_or(0),
        whole_lanes: plan.lanes().is_multiple_of(world) && spec.global_batch.is_multiple_of(u64::from(plan.lanes())),
        ranks: ranks(plan, &reads)?,
        reading: asked,
        first_batch_seconds: None,
        worlds,
        advice,
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

/// Places along the epoch for which row groups are counted.
const PLACES: u64 = 180;

/// Returns how much of the row groups is needed at so many places along the epoch; `weigh` is what one of them counts.
fn live(plan: &Plan, weigh: impl Fn(&UseSpan) -> u64) -> Vec<f64> {
    let places = PLACES.min(plan.steps()).max(1);
    let place = |step: u64| u128::from(step) * u128::from(places) / u128::from(plan.steps().max(1));
    let mut changes = vec![0_i128; places as usize + 1];
    for span in plan.spans() {
        let (first, last) = (place(span.first) as usize, place(span.last) as usize);
        let weight = i128::from(weigh(&span));
        if let Some(begun) = changes.get_mut(first) {
            *begun += weight;
        }
        if let Some(over) = changes.get_mut(last + 1) {
            *over -= weight;
        }
    }
    let sums = changes.iter().scan(0, |sum, change| {
        *sum += change;
        Some(*sum as f64)
    });
    sums.take(places as usize).collect()
}

impl Report {
    /// Returns the drawings of its page.
    fn plots(&self, plan: &Plan) -> Vec<Plot> {
        let rows = |rank: &Rank| (format!("rank {}", rank.rank), rank.rows as f64, plural(rank.rows, "row"));
        let rank = |rank: &Rank| (format!("rank {}", rank.rank), rank.bytes as f64, bytes(rank.bytes));
        let world = |world: &Reading| {
            let ranks = plural(world.world_size.into(), "rank");
            (ranks, world.times_read, format!("{:.2} x", world.times_read))
        };
        let memory = &self.memory;
        let part = |number: u64, what: &str| (number as f64, format!("{} {what}", bytes(number)));
        let need = vec![part(memory.row_groups, "of row groups"), part(memory.batches, "of batches")];
        let budget = vec![(0.0, String::new()), (0.0, String::new()), (memory.budget as f64, bytes(memory.budget))];
        let size = |span: &UseSpan| plan.unit(span.source, span.group).map_or(0, |unit| unit.bytes);
        let (counts, sizes) = (live(plan, |_| 1), live(plan, size));
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max) as u64;
        let (most_groups, most_bytes) = (plural(most(&counts), "row group"), bytes(most(&sizes)));
        let ends = |most: String| ["step 0".to_owned(), format!("step {}", count(self.steps)), most];
        let quality = [("this plan".to_owned(), self.shuffle_quality), ("a uniform draw".to_owned(), 1.0)];
        vec![
            Plot {
                title: "Row groups needed along the epoch",
                note: "Row groups, or units of them, from which the ranks take rows at a time, from the first step to the last.".to_owned(),
                kind: PlotKind::Columns(counts, ends(most_groups)),
            },
            Plot {
                title: "Bytes of them along the epoch",
                note: "All columns of these row groups, uncompressed: what the ranks together hold, if they take every column.".to_owned(),
                kind: PlotKind::Columns(sizes, ends(most_bytes)),
            },
            Plot {
                title: "Quality of the shuffle",
                note: "From 0, the order of the files, to 1: how evenly the rows of a step come from everywhere in the dataset.".to_owned(),
                kind: PlotKind::Bars(quality.map(|(name, value)| (name, value, format!("{value:.3}"))).to_vec()),
            },
            Plot {
                title: "Memory of a rank",
                note: "The least that one rank needs, and its budget.".to_owned(),
                kind: PlotKind::Stacks(
                    vec!["row groups", "batches", "budget"],
                    vec![("needed".to_owned(), need), ("budget".to_owned(), budget)],
                ),
            },
            Plot {
                title: "Reads by number of ranks",
                note: "How often all ranks together read the data.".to_owned(),
                kind: PlotKind::Bars(self.worlds.iter().map(world).collect()),
            },
            Plot {
                title: "Rows of each rank",
                note: "In the epoch, without padding and repeated rows.".to_owned(),
                kind: PlotKind::Bars(self.ranks.iter().map(rows).collect()),
            },
            Plot {
                title: "Bytes to read",
                note: "By each rank, in the epoch.".to_owned(),
                kind: PlotKind::Bars(self.ranks.iter().map(rank).collect()),
            },
        ]
    }
}

/// Returns each rank's rows and reads.
fn ranks(plan: &Plan, reads: &Reads) -> Result<Vec<Rank>> {
    let world = reads.ranks.len() as u32;
    let rank = |(rank, read): (u32, &crate::plan::Read)| {
        let share = Share::new(rank, world)?;
        let rows = plan.share_rows(share);
        Ok(Rank { rank, batch_size: plan.batch_rows(share), rows, row_groups: read.groups, bytes: read.bytes })
    };
    (0..).zip(&reads.ranks).map(rank).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, groups) = (plural(self.files as u64, "file"), plural(self.row_groups as u64, "row group"));
        let units = match self.units > self.row_groups {
            true => format!(" in {}", plural(self.units as u64, "unit")),
            false => String::new(),
        };
        writeln!(f, "{}, {groups}{units}, {files}; fingerprint {:.12}", plural(self.rows, "row"), self.fingerprint)?;
        writeln!(f)?;
        let last = count(self.last_step_rows);
        let each = count(self.last_step_rows.div_ceil(self.world_size.into()));
        let tail = match (self.tail, self.last_step_rows == self.global_batch_size || self.steps == 0) {
            (_, true) => "no tail".to_owned(),
            (Tail::Short, _) => format!("the last has {last}, {each} on every rank"),
            (Tail::Even, _) => format!("the last has {last}, none of them repeated"),
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
        let reading = &self.reading;
        writeln!(
            f,
            "  reading   {:.2} x the data by all ranks together; {} of {} by more than one",
            reading.times_read,
            count(reading.shared_row_groups),
            plural(reading.row_groups, if self.units > self.row_groups { "unit" } else { "row group" })
        )?;
        let first = bytes(reading.first_batch_bytes);
        match self.first_batch_seconds {
            Some(time) => {
                writeln!(f, "  start     {first} per rank before the first batch, {} to read", seconds(time))?
            }
            None => writeln!(f, "  start     {first} per rank before the first batch")?,
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
            table.row([
                rank.rank.to_string(),
                count(rank.batch_size),
                count(rank.rows),
                count(rank.row_groups),
                bytes(rank.bytes),
            ]);
        }
        write!(f, "{table}")?;
        if self.ranks.len() > RANKS_SHOWN {
            writeln!(f, "  ... and {} more ranks; --json lists all", self.ranks.len() - RANKS_SHOWN)?;
        }
        writeln!(f)?;
        let mut table = Table::new(&[
            ">ranks",
            ">batch",
            ">lanes",
            ">read",
            ">shared",
            ">memory per rank",
            ">before the first batch",
        ]);
        for world in &self.worlds {
            table.row([
                count(world.world_size.into()),
                count(world.global_batch_size),
                count(world.lanes.into()),
                format!("{:.2} x", world.times_read),
                format!("{} of {}", count(world.shared_row_groups), count(world.row_groups)),
                world.memory.map_or_else(|| "-".to_owned(), bytes),
                bytes(world.first_batch_bytes),
            ]);
        }
        write!(f, "{table}")?;
        for (at, advice) in self.advice.iter().enumerate() {
            writeln!(f, "{}{advice}", if at == 0 { "\nWarning: " } else { "  - " })?;
        }
        Ok(())
    }
}
