//! A loader in words: what its consumer waits for, caches, memory, slow origins, bad rows. One process, at one moment.

use std::fmt;

use serde::Serialize;

use super::Loader;
use crate::figures::{bytes, count, plain, plural, rate, seconds};
use crate::pipeline::{Bottleneck, Cause, Ledger, Stats};
use crate::plan::Share;
use crate::store::cache::CacheStats;
use crate::store::{self, OriginStats};

/// Most bad rows that are shown with their places, and letters of each.
const BAD_ROWS: usize = 5;
const LETTERS: usize = 300;

/// A loader at one moment; its `Display` is for people.
///
/// ```
/// # fn main() -> bowstring::Result<()> {
/// use bowstring::{Loader, LoaderOptions};
///
/// let mut loader = Loader::open(LoaderOptions::new("fixtures/imagenet40.parquet", 16))?;
/// for batch in &mut loader {
///     batch?;
/// }
/// let report = loader.report();
/// assert!(report.to_string().contains("The consumer waits for data"));
/// let shares: f64 = report.time.iter().map(|part| part.percent).sum();
/// assert!((shares - 100.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where batches are delivered.
    pub device: String,
    /// This rank, and the number of ranks.
    pub rank: u32,
    /// See [`rank`](Self::rank).
    pub world_size: u32,
    /// The position.
    pub epoch: u64,
    /// See [`epoch`](Self::epoch).
    pub step: u64,
    /// Steps of an epoch.
    pub steps: u64,
    /// What the time of the consumer went to since its first call; in percent it sums to 100, or is all 0.
    pub time: Vec<TimePart>,
    /// What limits the throughput; nothing before the first call.
    pub bottleneck: Option<Bottleneck>,
    /// Origins of bytes of the whole process.
    pub origins: Vec<OriginStats>,
    /// Bad rows.
    pub bad_rows: BadRowsFound,
    /// All counters.
    pub stats: Stats,
}

/// A part of the consumer's time.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TimePart {
    /// What it went to.
    pub cause: Cause,
    /// Its share.
    pub percent: f64,
    /// Its length.
    pub seconds: f64,
}

/// Counts of bad rows, and the first few of them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BadRowsFound {
    /// Rows that another one replaces.
    pub skipped: u64,
    /// Rows with a column of zeros.
    pub zeroed: u64,
    /// The errors of the first few, with their places.
    pub first: Vec<String>,
}

impl BadRowsFound {
    fn of(ledger: &Ledger) -> Self {
        let letters = |error: &String| error.chars().take(LETTERS).collect();
        let first = ledger.entries.iter().take(BAD_ROWS).map(|entry| letters(&entry.error)).collect();
        Self { skipped: ledger.skipped, zeroed: ledger.zeroed, first }
    }
}

impl Report {
    /// Of `loader`, now.
    pub(super) fn of(loader: &Loader) -> Self {
        let (stats, Share { rank, world }) = (loader.stats(), loader.share());
        let part =
            |cause: Cause| TimePart { cause, percent: stats.spent.percent(cause), seconds: stats.spent.of(cause) };
        Self {
            device: loader.device().map_or_else(|| "cpu".to_owned(), |device| device.name()),
            rank,
            world_size: world,
            epoch: loader.epoch(),
            step: loader.step(),
            steps: loader.steps(),
            time: Cause::ALL.map(part).to_vec(),
            bottleneck: stats.bottleneck(),
            origins: store::origins(),
            bad_rows: BadRowsFound::of(&loader.ledger()),
            stats,
        }
    }

    fn times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (batches, total) = (self.stats.consumer.items, self.stats.spent.total());
        if total <= 0.0 {
            return writeln!(f, "No batch was asked for yet.");
        }
        let each = |time: f64| seconds(time / batches.max(1) as f64);
        writeln!(f, "Time: {}, {} a step", seconds(total), each(total))?;
        for part in self.time.iter().filter(|part| part.seconds > 0.0) {
            let TimePart { cause, percent, seconds: time } = *part;
            writeln!(f, "  {:<9} {percent:>5.1} %  {:>9} a step", cause.name(), each(time))?;
        }
        Ok(())
    }
}

impl fmt::Display for BadRowsFound {
    /// Nothing if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.skipped + self.zeroed == 0 {
            return Ok(());
        }
        writeln!(f, "Bad rows: {} skipped, {} zeroed", count(self.skipped), count(self.zeroed))?;
        self.first.iter().try_for_each(|error| writeln!(f, "  {}", plain(error)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, rank, world_size, epoch, step, steps, stats, .. } = self;
        writeln!(
            f,
            "Rank {rank} of {world_size} on {}: epoch {}, step {} of {}",
            plain(device),
            count(*epoch),
            count(*step),
            count(*steps)
        )?;
        let first = stats
            .seconds_to_first_batch
            .map_or_else(String::new, |time| format!("; the first batch {} after opening", seconds(time)));
        writeln!(
            f,
            "{} in {} of {}, {} rows/s{first}",
            plural(stats.rows, "row"),
            if stats.consumer.items == 1 {
                "1 batch".to_owned()
            } else {
                format!("{} batches", count(stats.consumer.items))
            },
            bytes(stats.consumer.bytes),
            rate(stats.rows, stats.spent.total())
        )?;
        writeln!(f)?;
        if let Some(found) = &self.bottleneck {
            writeln!(f, "{found}")?;
        }
        self.times(f)?;
        writeln!(f)?;
        let (memory, cache) = (&stats.memory, &stats.cache);
        let share = 100.0 * memory.used as f64 / memory.budget.max(1) as f64;
        let (used, budget, peak) = (bytes(memory.used), bytes(memory.budget), bytes(memory.peak));
        writeln!(f, "Memory: {used} of {budget} in flight ({share:.0} %), at most {peak}")?;
        if *cache != CacheStats::default() {
            writeln!(f, "Cache: {cache}")?;
        }
        write!(f, "{}{}", store::Slowest(&self.origins), self.bad_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::LoaderOptions;

    fn report() -> Report {
        let mut loader = Loader::open(LoaderOptions::new("fixtures/imagenet40.parquet", 8)).unwrap();
        assert!(loader.report().to_string().contains("No batch was asked for yet."), "{}", loader.report());
        for batch in &mut loader {
            drop(batch.unwrap());
        }
        loader.report()
    }

    #[test]
    fn shares_sum_to_all_and_the_text_has_every_part() {
        let report = report();
        let sum: f64 = report.time.iter().map(|part| part.percent).sum();
        assert!((sum - 100.0).abs() < 1e-6, "{:?}", report.time);
        let stage = &report.stats.consumer;
        let time: f64 = report.time.iter().map(|part| part.seconds).sum();
        assert!((time - stage.worked_seconds - stage.waited_seconds).abs() < 1e-6, "{report:?}");
        // The rows are photos: something was read, decoded, and put into batches.
        let spent = |cause| report.stats.spent.of(cause);
        assert!(spent(Cause::Transform) + spent(Cause::Batch) + spent(Cause::Decode) > 0.0, "{:?}", report.time);
        assert_eq!((spent(Cause::Server), spent(Cause::Transfer), spent(Cause::Wire)), (0.0, 0.0, 0.0));
        let found = report.bottleneck.as_ref().unwrap();
        let text = report.to_string();
        for part in [
            "Rank 0 of 1 on cpu: epoch 1, step 0 of 5",
            "40 rows in 5 batches of ",
            found.sentence.as_str(),
            found.advice.as_str(),
            "Time: ",
            " a step",
            "Memory: ",
            "Origin (files of this machine): ",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("Cache:") && !text.contains("Bad rows"), "{text}");
    }

    #[test]
    fn caches_and_bad_rows_are_told_and_cannot_steer_the_terminal() {
        let mut report = report();
        report.stats.cache = CacheStats { hit_bytes: 3 << 20, peer_bytes: 1 << 20, ..CacheStats::default() };
        let first = vec!["a\u{1b}[31m.parquet: no JPEG".to_owned()];
        report.bad_rows = BadRowsFound { skipped: 2, zeroed: 1, first };
        let text = report.to_string();
        assert!(
            text.contains("Cache: 3 MiB here, 0 B shared, 1 MiB from other hosts, 0 B from origins (100 % hits)"),
            "{text}"
        );
        assert!(text.contains("Bad rows: 2 skipped, 1 zeroed\n  a?[31m.parquet: no JPEG\n"), "{text}");
        let document = serde_json::to_value(&report).unwrap();
        assert!(document["stats"]["spent"]["decode"].is_number() && document["time"][0]["cause"] == "store");
    }
}
