//! `bowstring warm URL --cache DIR`: loads what epochs will read into a cache, so that they ask the origin for no data.

use std::fmt;

use clap::Parser;
use serde::Serialize;

use crate::pipeline::{LocalSource, Warmed};
use crate::store::cache::Unkept;

use crate::cli::args::LoaderArgs;
use crate::cli::bar::{Bar, Counts, Unit};
use crate::cli::interrupt::Interrupt;
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
    unkept: Vec<Unkept>,
}

impl From<Warmed> for Shown {
    fn from(warmed: Warmed) -> Self {
        let whole = warmed.is_whole();
        let Warmed { row_groups, bytes, loaded, left_out, left_out_bytes, limit, stopped, cache, unkept } = warmed;
        Self { row_groups, bytes, loaded, left_out, left_out_bytes, limit, stopped, whole, counters: cache, unkept }
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    // Loads what all ranks read.
    let options = args.loader.options_of_any_rank()?;
    let (urls, cache) = (options.urls.clone(), options.cache.clone().unwrap_or_default());
    let source = LocalSource::open(options)?;
    let interrupt = Interrupt::listen(|| {});
    let counts = Counts::default();
    let bar = Bar::counted(out, "warming", Unit::Bytes, &counts);
    let warmed = source.warm(args.epochs, &|done, all| {
        counts.set(done, all);
        !interrupt.has_come()
    });
    drop(bar);
    let warmed = warmed?;
    let warmed = Shown::from(warmed);
    let (stopped, whole) = (warmed.stopped, warmed.whole);
    out.report(&Report { urls, cache, warmed })?;
    match (stopped, whole) {
        (true, _) => Err(Failure::Told(interrupt.code())),
        (false, false) => Err(Failure::Told(INCOMPLETE)),
        (false, true) => Ok(()),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown { row_groups, loaded, left_out, counters, unkept, .. } = &self.warmed;
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
        if self.warmed.limit == 0 {
            writeln!(
                f,
                "  MISSING    all of it: the disk of {} fails, or is full or read-only; see the log",
                self.cache
            )?;
        }
        for Unkept { peer, refused, failures } in unkept {
            if *refused > 0 {
                let ranges = plural(*refused, "range");
                writeln!(
                    f,
                    "  MISSING    {ranges} at {peer}, their home, which keeps none or has no room left for them"
                )?;
            }
            if *failures > 0 {
                let calls = plural(*failures, "call");
                writeln!(
                    f,
                    "  FAILED     {calls} of {peer}: what it is home to is at the next host or here, if there is room"
                )?;
            }
        }
        let elsewhere: u64 = unkept.iter().map(|peer| peer.refused).sum();
        for (number, what) in [
            (
                counters.refused.saturating_sub(elsewhere),
                "not kept: other plans need what is there sooner, or the limit is too small",
            ),
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

    fn report(limit: u64, cache: CacheStats, unkept: Vec<Unkept>) -> Report {
        let (all, size) = (20, 20 << 20);
        let loaded = if limit > 0 { all } else { 0 };
        let warmed = Warmed {
            row_groups: all,
            bytes: size,
            loaded,
            left_out: all - loaded,
            left_out_bytes: if limit > 0 { 0 } else { size },
            limit,
            stopped: false,
            cache,
            unkept,
        };
        Report { urls: Vec::new(), cache: "/nvme/c".to_owned(), warmed: Shown::from(warmed) }
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_not_said_to_be_there() {
        let said = |cache: CacheStats| report(1 << 30, cache, Vec::new()).to_string();
        let whole = CacheStats { kept: 20, misses: 20, ..CacheStats::default() };
        assert!(said(whole).starts_with("20 of 20 row groups are in /nvme/c\n"), "{}", said(whole));
        let full = said(CacheStats { kept: 4, failures: 16, ..whole });
        assert!(!full.contains("are in /nvme/c") && full.contains("MISSING    16 failures"), "{full}");
    }

    #[test]
    fn a_cache_that_keeps_nothing_is_no_success() {
        let nothing = report(0, CacheStats::default(), Vec::new());
        let said = nothing.to_string();
        assert!(!nothing.warmed.whole && said.contains("MISSING    all of it: the disk of /nvme/c fails"), "{said}");
    }

    #[test]
    fn what_other_hosts_do_not_keep_is_told_by_their_names() {
        let of = |peer: &str, refused, failures| Unkept { peer: peer.to_owned(), refused, failures };
        let cache =
            CacheStats { misses: 20, kept: 20, given: 10, refused: 7, peer_failures: 3, ..CacheStats::default() };
        let short = report(1 << 30, cache, vec![of("a:8816", 7, 0), of("b:8816", 0, 3)]);
        let said = short.to_string();
        assert!(!short.warmed.whole && said.contains("MISSING    7 ranges at a:8816, their home"), "{said}");
        assert!(said.contains("FAILED     3 calls of b:8816") && !said.contains("other plans"), "{said}");
        // All of it has a place.
        let moved = report(1 << 30, CacheStats { refused: 0, ..cache }, vec![of("b:8816", 0, 3)]);
        assert!(moved.warmed.whole, "{moved}");
    }
}
