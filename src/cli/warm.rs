//! `bowstring warm URL --cache DIR`: loads what epochs will read into a cache, so that they ask the origin for no data.

use std::fmt;

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::pipeline::{LocalSource, Warmed};

use crate::cli::args::LoaderArgs;
use crate::cli::interrupt::{INTERRUPTED, Interrupt};
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table::{bytes, count, plural};

/// Exit code if something that fits is not in the cache: it could not be written.
const INCOMPLETE: u8 = 4;

/// Options of `warm`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    loader: LoaderArgs,
    /// Load what so many epochs read, from the first on
    #[arg(long, value_name = "N", default_value_t = 1)]
    epochs: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    urls: Vec<String>,
    cache: String,
    #[serde(flatten)]
    warmed: Shown,
}

/// As in the library, where `cache` has the counters.
#[derive(Debug, Serialize)]
struct Shown {
    row_groups: u64,
    bytes: u64,
    loaded: u64,
    left_out: u64,
    left_out_bytes: u64,
    limit: u64,
    stopped: bool,
    whole: bool,
    counters: crate::store::cache::CacheStats,
}

impl From<Warmed> for Shown {
    fn from(warmed: Warmed) -> Self {
        let whole = warmed.is_whole();
        let Warmed { row_groups, bytes, loaded, left_out, left_out_bytes, limit, stopped, cache } = warmed;
        Self { row_groups, bytes, loaded, left_out, left_out_bytes, limit, stopped, whole, counters: cache }
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    // Loads what all ranks read.
    let options = args.loader.options_of_any_rank()?;
    let (urls, cache) = (options.urls.clone(), options.cache.clone().unwrap_or_default());
    let source = LocalSource::open(options)?;
    let interrupt = Interrupt::listen(|| {});
    let bar = progress(out);
    let warmed = source.warm(args.epochs, &|done, all| {
        bar.set_length(all);
        bar.set_position(done);
        !interrupt.is_pressed()
    })?;
    bar.finish_and_clear();
    let warmed = Shown::from(warmed);
    let (stopped, whole) = (warmed.stopped, warmed.whole);
    out.report(&Report { urls, cache, warmed })?;
    match (stopped, whole) {
        (true, _) => Err(Failure::Told(INTERRUPTED)),
        (false, false) => Err(Failure::Told(INCOMPLETE)),
        (false, true) => Ok(()),
    }
}

fn progress(out: &Out) -> ProgressBar {
    let target = if out.is_watched() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    match ProgressStyle::with_template(
        "{bar:40} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left",
    ) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { row_groups, loaded, left_out, counters, .. } = &self.warmed;
        let (read, all) = (count(*loaded), plural(*row_groups, "row group"));
        // A row group is in ranges, and nobody knows of which the missing ones are.
        match counters.refused + counters.failures + counters.bypassed {
            0 => writeln!(f, "{read} of {all} are in {}", self.cache)?,
            _ => writeln!(f, "{read} of {all} were read, but not all of that is in {}", self.cache)?,
        }
        writeln!(f, "  fetched    {} in {}", bytes(counters.origin_bytes), plural(counters.misses, "range"))?;
        writeln!(f, "  there      {} in {}", bytes(counters.hit_bytes), plural(counters.hits, "range"))?;
        if counters.peer_hits + counters.given > 0 {
            let (had, given) = (plural(counters.peer_hits, "range"), count(counters.given));
            writeln!(f, "  elsewhere  {} in {had} on other hosts; {given} given to them", bytes(counters.peer_bytes))?;
        }
        if *left_out > 0 {
            let (size, limit) = (bytes(self.warmed.left_out_bytes), bytes(self.warmed.limit));
            writeln!(f, "  left out   {}, {size}: the cache may take {limit}", plural(*left_out, "row group"))?;
        }
        for (number, what) in [
            (counters.refused, "not kept: other plans need what is there sooner, or the limit is too small"),
            (counters.failures, "failures of the cache's disk"),
            (counters.bypassed, "of objects whose store tells no versions apart, which are never kept"),
        ] {
            if number > 0 {
                writeln!(f, "  MISSING    {} {what}", count(number))?;
            }
        }
        if self.warmed.stopped {
            writeln!(f, "  stopped; the same command goes on from here")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::cache::CacheStats;

    #[test]
    fn what_a_full_disk_did_not_take_is_not_said_to_be_there() {
        let said = |cache: CacheStats| {
            let warmed = Warmed {
                row_groups: 20,
                bytes: 20 << 20,
                loaded: 20,
                left_out: 0,
                left_out_bytes: 0,
                limit: 1 << 30,
                stopped: false,
                cache,
            };
            let report = Report { urls: Vec::new(), cache: "/nvme/c".to_owned(), warmed: Shown::from(warmed) };
            report.to_string()
        };
        let whole = CacheStats { kept: 20, misses: 20, ..CacheStats::default() };
        assert!(said(whole).starts_with("20 of 20 row groups are in /nvme/c\n"), "{}", said(whole));
        let full = said(CacheStats { kept: 4, failures: 16, ..whole });
        assert!(!full.contains("are in /nvme/c") && full.contains("MISSING    16 failures"), "{full}");
    }
}
