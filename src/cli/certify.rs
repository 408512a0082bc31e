//! `bowstring certify URL`: walks the order of one epoch and checks that each row comes once, with a digest to compare.

use std::fmt;

use clap::Parser;
use serde::Serialize;

use crate::Result;
use crate::pipeline::{BatchSource as _, LocalSource};
use crate::plan::{Census, PlanSpec, Share};

use crate::cli::args::LoaderArgs;
use crate::cli::bar::{Bar, Counts, Unit};
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table::{count, plural};

/// Exit code of an epoch in which a row is missing or repeated: that of data.
const WRONG: u8 = 3;

/// Options of `certify`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    loader: LoaderArgs,
    /// The epoch
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    fingerprint: String,
    spec: PlanSpec,
    epoch: u64,
    steps: u64,
    world_size: u32,
    /// Rows of each rank in the epoch, without padding and repetitions.
    rank_rows: Vec<u64>,
    #[serde(flatten)]
    census: Census,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let mut options = args.loader.options_of_any_rank()?;
    // No data are read.
    options.memory_budget = Some(isize::MAX as u64);
    let counts = Counts::default();
    let bar = Bar::counted(out, "reading footers", Unit::Steps, &counts);
    let mut source = LocalSource::open(options)?;
    source.seek(args.epoch, 0)?;
    let world = source.info().share.world;
    let plan = source.plan();
    let rank_rows = (0..world).map(|rank| Ok(plan.share_rows(Share::new(rank, world)?))).collect::<Result<_>>()?;
    counts.set(0, plan.steps());
    let census = plan.census_counted(counts.done());
    drop(bar);
    let is_wrong = census.each_row_once == Some(false);
    out.report(&Report {
        fingerprint: plan.fingerprint().to_string(),
        spec: plan.spec().clone(),
        epoch: plan.epoch(),
        steps: plan.steps(),
        world_size: world,
        rank_rows,
        census,
    })?;
    if is_wrong { Err(Failure::Told(WRONG)) } else { Ok(()) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let once = match self.census.each_row_once {
            Some(true) => "each selected row once",
            Some(false) => "NOT each selected row once: please report this",
            None => "a part of the rows, or some of them again, as the options ask for",
        };
        writeln!(f, "epoch {}: {}, {once}", self.epoch, plural(self.census.rows, "row"))?;
        if self.census.repeated > 0 {
            writeln!(f, "  repeated    {} to fill the last step", plural(self.census.repeated, "row"))?;
        }
        writeln!(f, "  steps       {} of {} rows", count(self.steps), count(self.spec.global_batch))?;
        let (least, most) = (self.rank_rows.iter().min(), self.rank_rows.iter().max());
        let (least, most) = (least.copied().unwrap_or(0), most.copied().unwrap_or(0));
        writeln!(f, "  ranks       {}, with {} to {} rows each", self.world_size, count(least), count(most))?;
        writeln!(f, "  fingerprint {}", self.fingerprint)?;
        writeln!(f, "  order       version {}, seed {}", self.spec.order_version.number(), self.spec.seed)?;
        writeln!(f, "  digest      {}", self.census.digest)
    }
}
