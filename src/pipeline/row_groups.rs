//! Decoded row groups of a dataset in any requested order: for callers that decide the order themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::batches_at_once;
use super::cursor::Cursor;
use super::engine::{BatchMemory, Engine, Parts};
use super::ledger::Ledger;
use super::memory_need::Weights;
use super::options::LoaderOptions;
use super::prepared::{Marks, sources};
use super::stats::Stats;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::plan::{Listed, Share};
use crate::schema::Schema;
use crate::store::with_refusal;
use crate::tensor::{Batch, Next};

/// A row group, or a part of one.
#[derive(Debug)]
pub struct Piece {
    /// Index into [`Manifest::groups`](crate::manifest::Manifest::groups).
    pub group: u32,
    /// The first of its rows among the selected rows of the row group.
    pub first: u64,
    /// The rows.
    pub batch: Batch,
}

/// Reads row groups in any order, ahead and in parallel, and decodes them as a loader decodes batches.
///
/// ```
/// # fn main() -> bowstring::Result<()> {
/// use bowstring::pipeline::{LoaderOptions, RowGroups};
///
/// let mut options = LoaderOptions::new("fixtures/imagenet40.parquet", 1);
/// options.columns.columns = vec!["label".to_owned()];
/// let mut groups = RowGroups::open(options, Some(6))?;
/// groups.start(&[4, 0])?;
/// let mut pieces = Vec::new();
/// while let Some(piece) = groups.next()? {
///     pieces.push((piece.group, piece.first, piece.batch.rows));
/// }
/// assert_eq!(pieces, [(4, 0, 6), (4, 6, 2), (0, 0, 6), (0, 6, 2)]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RowGroups {
    engine: Engine,
    dataset: Dataset,
    listed: Arc<Listed>,
    max_rows: Option<u64>,
    seed: u64,
    cursor: Cursor<Piece>,
}

impl RowGroups {
    /// Opens the dataset. Row groups of more than `max_rows` rows come in pieces. Options of batches, ranks and
    /// shuffling are ignored here.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other or a mixture; [`Error::Limit`] for a budget that cannot
    /// hold the largest row group; and any error of opening the dataset.
    pub fn open(mut options: LoaderOptions, max_rows: Option<u64>) -> Result<Self> {
        if !options.weights.is_empty() {
            return Err(Error::config(
                "weights",
                "row groups of a mixture have no order of their own; open each dataset",
            ));
        }
        if max_rows == Some(0) {
            return Err(Error::config("max_rows", "a piece needs at least one row"));
        }
        options.shuffle = false;
        (options.batch_size, options.global_batch_size) = (Some(1), None);
        (options.rank, options.world_size) = (Some(0), Some(1));
        let settings = options.settings()?;
        let (engine, dataset) = Engine::open(&options, &settings, |runtime| {
            let sources = runtime.block_on(sources(&settings, &options, Marks::Ignored))?;
            let dataset = sources[0].dataset.clone();
            let rows = Listed::most_rows(dataset.manifest(), max_rows);
            let batch = super::batch_bytes(&sources, usize::try_from(rows).unwrap_or(usize::MAX));
            let batches = batch.saturating_mul(batches_at_once(settings.prefetch));
            let largest = Weights::of(&sources).largest();
            let asked = largest.saturating_add(batches as u64);
            if asked > settings.budget as u64 {
                return Err(Error::limit(
                    format!("a row group of {} MB and {} MB of decoded ones,", largest >> 20, batches >> 20),
                    asked,
                    settings.budget as u64,
                    "memory_budget (or lower max_rows or prefetch)",
                ));
            }
            Ok((Parts { sources, batches, memory: BatchMemory::default(), lends: false }, dataset))
        })?;
        let listed = Arc::new(Listed::new(dataset.manifest(), &[], max_rows, options.seed)?);
        Ok(Self { engine, dataset, listed, max_rows, seed: options.seed, cursor: Cursor::default() })
    }

    /// The dataset.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The schema of the pieces: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        self.engine.schema()
    }

    /// Begins with these row groups, in this order, and drops any earlier order. Reading starts with the first call of
    /// [`next`](Self::next).
    ///
    /// # Errors
    /// [`Error::Config`] for a row group that does not exist.
    pub fn start(&mut self, order: &[u32]) -> Result<()> {
        let listed = Listed::new(self.dataset.manifest(), order, self.max_rows, self.seed)?;
        self.engine.reset();
        (self.listed, self.cursor) = (Arc::new(listed), Cursor::default());
        Ok(())
    }

    /// Returns the next piece; `None` when all have come.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Timeout`] with the culprit; [`Error::Closed`] after
    /// [`close`](Self::close).
    #[expect(clippy::should_implement_trait, reason = "the order of Option and Result suits `?`, as in Loader")]
    pub fn next(&mut self) -> Result<Option<Piece>> {
        let started = Instant::now();
        self.next_within(self.engine.timeout)?.or_error(|| self.timed_out(started.elapsed()))
    }

    /// As [`next`](Self::next), but gives up with [`Next::Pending`] after `wait`. Nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`next`](Self::next), except for the time-out.
    pub fn next_within(&mut self, wait: Duration) -> Result<Next<Piece>> {
        if let Some(again) = self.cursor.again() {
            return Ok(again);
        }
        let (listed, (_, step)) = (&self.listed, self.cursor.next_new());
        let next = match self.engine.next_within(wait, || Arc::clone(listed) as _, Share::whole(), step)? {
            Next::Item(batch) => match listed.piece(batch.step) {
                Some((group, first)) => Next::Item(Piece { group, first, batch }),
                None => Next::End,
            },
            Next::End => Next::End,
            Next::Pending => Next::Pending,
        };
        if let Next::Item(piece) = &next {
            self.engine.job.counters.rows.fetch_add(piece.batch.rows as u64, Ordering::Relaxed);
            // The end is not a new epoch here: it is returned again and again.
            self.cursor.advance(&next, |piece| (0, piece.batch.step));
        }
        Ok(next)
    }

    /// Takes back a piece of the current order that reached nobody: it comes again before any new one, the first of
    /// several first.
    pub fn put_back(&mut self, piece: Piece) {
        self.cursor.put_back((0, piece.batch.step), piece);
    }

    /// The error for a wait of `waited` without a result.
    pub fn timed_out(&self, waited: Duration) -> Error {
        let (stage, culprit) = self.engine.culprit();
        let culprit = format!("{culprit}; piece {} of {}", self.cursor.next_new().1, self.steps());
        Error::late(stage, with_refusal(culprit, waited), waited, self.timeout())
    }

    /// Pieces of the current order.
    pub fn steps(&self) -> u64 {
        crate::plan::Order::steps(&*self.listed)
    }

    /// The longest wait for a piece, as set by the options.
    pub fn timeout(&self) -> Duration {
        self.engine.timeout
    }

    /// Counters since the dataset was opened.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Bad rows found so far.
    pub fn ledger(&self) -> Ledger {
        self.engine.ledger()
    }

    /// Stops everything at once. Pieces already yielded stay valid.
    pub fn close(&mut self) {
        self.cursor.close();
        self.engine.close();
    }
}
