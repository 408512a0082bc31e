//! `bowstring top ADDRESS`: a running server in a terminal: what limits its ranks, and where the time of each goes.

use std::fmt;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Parser;

use crate::Error;
use crate::cli::args::ServerArgs;
use crate::cli::out::{Out, Outcome, tell};
use crate::cli::table::{Table, bytes, count, plain, plural, seconds};
use crate::flight::client::Viewed;
use crate::flight::gang::Overview;
use crate::flight::server::Snapshot;
use crate::flight::server::snapshot::RankView;
use crate::store::Slowest;
use crate::store::cache::CacheStats;

/// Most lines of plans, gangs and errors, each.
const LINES: usize = 8;
/// Characters of a bar.
const BAR: usize = 30;
/// One character for each cause.
const MARKS: [char; 8] = ['S', 'C', 'D', 'T', 'B', 'q', 'w', '.'];
/// Goes to the upper left corner and clears from there.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Options of `top`.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    interval: f64,
    /// Most ranks to list: those furthest behind, then those that wait most
    #[arg(long, value_name = "N", default_value_t = 16)]
    ranks: usize,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let options = args.server.options()?;
    if !(0.1..=3600.0).contains(&args.interval) {
        return Err(Error::config("interval", format!("{} is not from 0.1 to 3600 seconds", args.interval)).into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let mut viewed = Viewed::new(&options)?;
    let screen = io::stdout().is_terminal() && !args.once && !out.is_json();
    let mut seen = false;
    loop {
        match runtime.block_on(viewed.take()) {
            Ok(snapshot) => {
                show(&snapshot, &viewed.name(), args, screen, out)?;
                seen = true;
            }
            // A server that was there comes back, perhaps as another process.
            Err(error) if seen && !args.once && is_passing(&error) => {
                tell(&format!("{}; trying again\n", plain(&error.chain())));
            }
            Err(error) => return Err(error.into()),
        }
        if args.once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Remote { .. } | Error::Timeout { .. } | Error::Closed { .. })
}

fn show(snapshot: &Snapshot, address: &str, args: &Args, screen: bool, out: &mut Out) -> Outcome {
    if out.is_json() {
        if args.once {
            return out.document(snapshot);
        }
        // A line for each look.
        let line = serde_json::to_string(snapshot).map_err(io::Error::other)?;
        return out.text(&format!("{line}\n"));
    }
    let text = Screen { snapshot, address, ranks: args.ranks }.to_string();
    match (screen, args.once) {
        (true, _) => out.text(&format!("{CLEAR}{text}")),
        (false, true) => out.text(&text),
        (false, false) => out.text(&format!("{text}\n")),
    }
}

/// A snapshot as text.
struct Screen<'a> {
    snapshot: &'a Snapshot,
    address: &'a str,
    ranks: usize,
}

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { version, phase, uptime_seconds, datasets, .. } = self.snapshot;
        let rows: f64 = datasets.iter().map(|one| one.rows_per_second).sum();
        let sent: f64 = datasets.iter().map(|one| one.bytes_per_second).sum();
        writeln!(
            f,
            "{}  {}, version {}, up {}; {} rows/s, {}/s",
            plain(self.address),
            plain(phase),
            plain(version),
            long(*uptime_seconds),
            count(rows as u64),
            bytes(sent as u64)
        )?;
        match &self.snapshot.bottleneck {
            None => writeln!(f, "No stream is open.")?,
            Some(found) => write!(f, "{found}")?,
        }
        self.time(f)?;
        self.ranks(f)?;
        self.plans(f)?;
        gangs(&self.snapshot.gangs, f)?;
        self.rest(f)
    }
}

impl Screen<'_> {
    /// The shares of all ranks, with the marks of the bars.
    fn time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { causes, shares, .. } = self.snapshot;
        let part = |((name, share), mark): ((&String, &f64), char)| format!("{mark} {} {share:.1} %", plain(name));
        let parts: Vec<_> = causes.iter().zip(shares).zip(MARKS).map(part).collect();
        writeln!(f, "\n[{}]  {}", bar(shares, BAR), parts.join("  "))
    }

    fn ranks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.snapshot.ranks;
        if all.is_empty() {
            return Ok(());
        }
        let shown = chosen(all, self.ranks);
        let more = all.len() as u64 + self.snapshot.ranks_left_off;
        writeln!(f, "\nRanks ({} of {})", count(shown.len() as u64), plural(more, "stream"))?;
        let mut table =
            Table::new(&[">rank", "dataset", ">epoch", ">step", ">behind", ">rows/s", "now", "gang", "time"]);
        for rank in shown {
            let gang = rank.gang.iter().map(|gang| format!("{gang} {}", rank.generation.unwrap_or(0))).collect();
            table.row([
                count(rank.rank.into()),
                rank.dataset.clone(),
                count(rank.epoch),
                count(rank.step),
                count(rank.lag),
                count(rank.rows_per_second as u64),
                format!("{} {}", rank.doing, seconds(rank.seconds)),
                gang,
                bar(&rank.shares, BAR),
            ]);
        }
        write!(f, "{table}")
    }

    fn plans(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plans = &self.snapshot.plans;
        if plans.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nPlans")?;
        let mut table = Table::new(&["dataset", ">epoch", ">ranks", ">last at", ">first at", ">steps", "row groups"]);
        for plan in plans.iter().take(LINES) {
            table.row([
                plan.dataset.clone(),
                count(plan.epoch),
                count(plan.world.into()),
                count(plan.behind),
                count(plan.ahead),
                count(plan.steps),
                progress((&plan.strip.first, &plan.strip.last), plan.behind, plan.ahead),
            ]);
        }
        write!(f, "{table}")
    }

    fn rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { memory, cache, origins, errors, .. } = self.snapshot;
        writeln!(f)?;
        if let Some(memory) = memory {
            let share = 100.0 * memory.used as f64 / memory.budget.max(1) as f64;
            writeln!(f, "Memory: {} of {} in flight ({share:.0} %)", bytes(memory.used), bytes(memory.budget))?;
        }
        if let Some(cache) = cache.filter(|cache| *cache != CacheStats::default()) {
            writeln!(f, "Cache: {cache}")?;
        }
        write!(f, "{}", Slowest(origins))?;
        for error in errors.iter().take(LINES) {
            let of = error.dataset.iter().map(|name| format!(" of {name}"));
            let rank = error.rank.iter().map(|rank| format!(", rank {rank}"));
            let place: String = of.chain(rank).collect();
            writeln!(
                f,
                "Error: {} in {}{}, {}",
                plain(&error.kind),
                plain(&error.call),
                plain(&place),
                plural(error.times, "time")
            )?;
        }
        Ok(())
    }
}

fn gangs(gangs: &[Overview], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if gangs.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nGangs")?;
    let mut table = Table::new(&["name", "phase", ">generation", ">there", ">ranks", "waits for"]);
    for gang in gangs.iter().take(LINES) {
        let named = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let waits = match &gang.waits {
            Some(waits) => format!("{} {}: ranks {}", waits.kind, waits.round, named(&waits.missing)),
            None if gang.missing.is_empty() => gang.why.clone(),
            None => format!("ranks {}", named(&gang.missing)),
        };
        table.row([
            gang.gang.clone(),
            gang.phase.clone(),
            count(gang.generation),
            count(gang.present),
            count(gang.world_size.into()),
            waits,
        ]);
    }
    write!(f, "{table}")
}

/// Formats a long time: `2 d 3 h`, `1 min 30 s`.
fn long(time: f64) -> String {
    let whole = time.max(0.0) as u64;
    let parts = [("d", whole / 86_400), ("h", whole / 3600 % 24), ("min", whole / 60 % 60), ("s", whole % 60)];
    let first = parts.iter().position(|(_, number)| *number > 0).unwrap_or(parts.len() - 1);
    let shown = parts.iter().skip(first).take(2).map(|(unit, number)| format!("{number} {unit}"));
    shown.collect::<Vec<_>>().join(" ")
}

/// The ranks that a table of `most` lines shows, in their order in `ranks` if there are no more, else those furthest behind first, then
/// those whose consumers wait most.
fn chosen(ranks: &[RankView], most: usize) -> Vec<&RankView> {
    let mut shown: Vec<&RankView> = ranks.iter().collect();
    if shown.len() > most {
        let idle = |rank: &RankView| rank.shares.last().copied().unwrap_or(0.0);
        shown.sort_by(|one, other| other.lag.cmp(&one.lag).then_with(|| idle(one).total_cmp(&idle(other))));
        shown.truncate(most);
    }
    shown
}

/// Shares as `width` marks, all of them, as long as anything was spent.
fn bar(shares: &[f64], width: usize) -> String {
    let all: f64 = shares.iter().sum();
    if all <= 0.0 || !all.is_finite() {
        return " ".repeat(width);
    }
    let (mut text, mut sum, mut drawn) = (String::with_capacity(width), 0.0, 0);
    for (share, mark) in shares.iter().zip(MARKS) {
        sum += share.max(0.0);
        let until = ((sum / all * width as f64).round() as usize).min(width);
        text.extend(std::iter::repeat_n(mark, until.saturating_sub(drawn)));
        drawn = until.max(drawn);
    }
    text.extend(std::iter::repeat_n(' ', width.saturating_sub(drawn)));
    text
}

/// The cells of a strip in `BAR` characters: `#` is done, `o` is needed now, `-` comes later.
fn progress((first, last): (&[u64], &[u64]), behind: u64, ahead: u64) -> String {
    let cells: Vec<char> = first
        .iter()
        .zip(last)
        .map(|(first, last)| match () {
            () if *last < behind => '#',
            () if *first <= ahead => 'o',
            () => '-',
        })
        .collect();
    let each = cells.len().div_ceil(BAR).max(1);
    // What is under way in a part of it is under way.
    let one = |cells: &[char]| {
        let same = cells.first().filter(|first| cells.iter().all(|cell| cell == *first));
        same.copied().unwrap_or('o')
    };
    cells.chunks(each).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let text = r#"{"schema": 1, "version": "1.2", "phase": "ready", "uptime_seconds": 90, "named": true,
            "causes": ["store", "cache", "decode", "transform", "batch", "queue", "wire", "consumer"],
            "shares": [60, 0, 10, 0, 0, 0, 0, 30],
            "bottleneck": {"cause": "store", "waited": 70, "sentence": "Ranks wait.", "advice": "a nearer store"},
            "datasets": [{"name": "photos", "streams": 2, "rows_per_second": 1234, "bytes_per_second": 2048}],
            "plans": [{"dataset": "photos", "epoch": 1, "world": 2, "steps": 100, "ahead": 40, "behind": 20,
                "strip": {"row_groups": 4, "first": [0, 10, 35, 80], "last": [15, 30, 90, 99]}}],
            "ranks": [
                {"plan": 0, "dataset": "photos", "rank": 0, "step": 40, "doing": "store", "seconds": 1.5,
                 "shares": [100, 0, 0, 0, 0, 0, 0, 0], "gang": "train", "generation": 3},
                {"plan": 0, "dataset": "photos", "rank": 1, "step": 20, "lag": 20, "doing": "consumer",
                 "shares": [0, 0, 0, 0, 0, 0, 0, 100]}],
            "gangs": [{"gang": "train", "phase": "running", "generation": 3, "world_size": 2, "present": 2, "missing": [],
                "acknowledged": null, "why": "", "rounds": 4,
                "waits": {"kind": "barrier", "round": 5, "arrived": 1, "missing": [1]}}],
            "memory": {"used": 1024, "budget": 2048, "written": 0},
            "errors": [{"kind": "store", "call": "DoGet", "dataset": "\u001b[31m", "rank": 1, "times": 2, "first": 1, "last": 2}]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_screen_has_everything_and_cannot_steer_the_terminal() {
        let text = Screen { snapshot: &snapshot(), address: "grpc://h:1", ranks: 16 }.to_string();
        for part in [
            "grpc://h:1  ready, version 1.2, up 1 min 30 s;",
            "1,234 rows/s",
            "Ranks wait.\na nearer store.",
            "S store 60.0 %",
            "SSSSSSSSSSSSSSSSSSDDD.........",
            "barrier 5: ranks 1",
            "Ranks (2 of 2 streams)",
            "train 3",
            "#oo-",
            "1 KiB of 2 KiB in flight (50 %)",
            "Error: store in DoGet of ?[31m, rank 1, 2 times",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        let empty = Screen { snapshot: &Snapshot::default(), address: "x", ranks: 1 }.to_string();
        assert!(empty.contains("No stream is open."), "{empty}");
    }

    #[test]
    fn bars_have_their_width_whatever_the_shares() {
        let mut state = 5_u64;
        for _ in 0..1000 {
            let shares: Vec<f64> = (0..8)
                .map(|_| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (state >> 50) as f64
                })
                .collect();
            assert_eq!(bar(&shares, BAR).chars().count(), BAR, "{shares:?}");
        }
        assert_eq!(bar(&[], 3), "   ");
        assert_eq!(bar(&[f64::NAN, 1.0], 3), "   ");
        assert_eq!(bar(&[50.0, 0.0, 50.0], 4), "SSDD");
    }

    #[test]
    fn the_last_ranks_are_shown_first_where_there_are_too_many() {
        let ranks: Vec<RankView> = (0..100)
            .map(|rank| RankView {
                rank,
                lag: u64::from(rank % 10),
                shares: vec![f64::from(rank)],
                ..RankView::default()
            })
            .collect();
        let numbers: Vec<u32> = chosen(&ranks, 3).iter().map(|rank| rank.rank).collect();
        assert_eq!(numbers, [9, 19, 29]);
        assert!(chosen(&ranks, 100).iter().map(|rank| rank.rank).eq(0..100));
        assert_eq!(progress((&[], &[]), 0, 0), "");
        assert_eq!([0.2, 61.0, 7200.0, 180_000.0].map(long), ["0 s", "1 min 1 s", "2 h 0 min", "2 d 2 h"]);
    }
}
