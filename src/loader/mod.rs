//! The public loader: batches of a local or served dataset, delivered on the host or on a device.

mod consumed;
mod decoding;
mod device;
mod open;
mod passes;
mod remote;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{AnyBatch, Consumer, Device, DeviceStats, Targets};
use crate::error::{Error, Result};
#[cfg(feature = "flight")]
use crate::flight::client::Gang;
use crate::manifest::Fingerprint;
use crate::pipeline::{BatchSource, ColumnKinds, Cursor, Ledger, LoaderOptions, Stats, WideInteger};
use crate::plan::{BadRows, Certificate, Share, State};
use crate::schema::{Dim, Field, Schema};
use crate::store::with_refusal;
use crate::tensor::{Batch, Next};
use crate::trace::Root;

use consumed::Consumed;

pub use passes::Epoch;
pub use report::{BadRowsFound, Report, TimePart};

/// The last epoch of a state: the next ones would begin anew at 0.
const LAST_EPOCH: u64 = i64::MAX as u64;

/// Batches of one rank, epoch after epoch: read in this process, or by a server (`grpc://host:port/dataset`). Both give
/// the same batches in the same order, and the same states.
///
/// A loader is at a position: an epoch and the number of its steps already yielded. Every [`iter`](Self::iter) is a
/// pass of its own: the first one of a loader that was opened or moved starts there, and each later one begins the next
/// epoch, wherever the one before stopped. [`next`](Self::next) ignores passes: it continues from the position, epoch
/// after epoch. Reading starts with the first batch requested and stops at once when the loader is dropped. The
/// blocking calls must not be made from within an async runtime.
///
/// With the option `device` batches are delivered on a GPU, copied there ahead of the consumer. Such a loader yields
/// [`AnyBatch::Device`], from [`next_any`](Self::next_any); positions and states are the same as on the CPU.
///
/// ```
/// # fn main() -> bowstring::Result<()> {
/// use bowstring::{Loader, LoaderOptions};
///
/// let mut options = LoaderOptions::new("fixtures/imagenet40.parquet", 8);
/// options.columns.columns = vec!["label".to_owned()];
/// let mut loader = Loader::open(options)?;
/// assert_eq!(loader.steps(), 5);
/// let mut rows = 0;
/// for batch in &mut loader {
///     rows += batch?.tensor("label").map_or(0, |label| label.shape()[0]);
/// }
/// assert_eq!((rows, loader.epoch()), (40, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Loader {
    source: Box<dyn BatchSource>,
    cursor: Cursor<AnyBatch>,
    consumed: Consumed,
    /// Since when the next batch is waited for, if steps are traced.
    asked: Option<Instant>,
    /// The latest error of the source, which may have ended it.
    failed: Option<String>,
}

impl Loader {
    /// Opens the dataset that `options.urls` name.
    ///
    /// # Errors
    /// - [`Error::Config`] for options that contradict each other;
    /// - [`Error::Limit`] for a budget that can never hold a step;
    /// - [`Error::Nulls`] for columns with nulls that the options do not cover, as far as footers tell;
    /// - [`Error::Device`] if `options.device` names a GPU that this process cannot use;
    /// - any error of opening the dataset, or of a server.
    pub fn open(options: LoaderOptions) -> Result<Self> {
        Ok(Self::of(open::at_place(&options, open::any)?).logged())
    }

    /// Opens a dataset on a server, as a member of `gang`. It begins with the step after [`Gang::resume`], which may be the first one of the
    /// next epoch.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::Fenced`].
    #[cfg(feature = "flight")]
    pub fn open_in(options: &LoaderOptions, gang: &Gang) -> Result<Self> {
        let mut loader = Self::of(open::at_place(options, open::in_gang(gang))?).logged();
        if let Some((epoch, done)) = gang.resume()? {
            let within = done.saturating_add(1) < loader.steps();
            let mut state = loader.state();
            (state.epoch, state.step) = if within { (epoch, done + 1) } else { (epoch.saturating_add(1), 0) };
            loader.load_state(&state)?;
        }
        Ok(loader)
    }

    /// Opens the dataset that `options.urls` name, with batches on `device`, regardless of `options.device`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(options: &LoaderOptions, device: Arc<dyn Device>) -> Result<Self> {
        options.place()?;
        Ok(Self::of(open::on_device(options, device, open::any)?).logged())
    }

    /// Logs what was opened. Addresses may hold secrets, so they are left out.
    fn logged(self) -> Self {
        let info = self.source.info();
        let Share { rank, world } = info.share;
        tracing::info!("opened: {} rows, {} steps per epoch, rank {rank} of {world}", info.rows, info.steps);
        self
    }

    /// Wraps `source`, which has not been moved yet.
    pub fn of(source: Box<dyn BatchSource>) -> Self {
        Self { source, cursor: Cursor::default(), consumed: Consumed::default(), asked: None, failed: None }
    }

    /// Steps of one epoch: exact, and the same on every rank.
    pub fn steps(&self) -> u64 {
        self.source.info().steps
    }

    /// Rows of one epoch over all ranks.
    pub fn rows(&self) -> u64 {
        self.source.info().rows
    }

    /// Rows of `step` of an epoch on all ranks together, padded and repeated ones included. Steps at the end of the
    /// epoch have fewer under [`Tail::Short`](crate::plan::Tail::Short) and [`Tail::Even`](crate::plan::Tail::Even).
    pub fn step_rows(&self, step: u64) -> u64 {
        self.source.info().step_rows(step)
    }

    /// Returns true if batches have `_mask`: under [`Tail::Pad`](crate::plan::Tail::Pad), and where it was requested.
    pub fn masked(&self) -> bool {
        self.source.info().masked
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.cursor.position().0
    }

    /// Steps of the current epoch already yielded, up to the first that was put back.
    pub fn step(&self) -> u64 {
        self.cursor.position().1
    }

    /// This rank and the world size.
    pub fn share(&self) -> Share {
        self.source.info().share
    }

    /// The version of the Delta table, or the snapshot of the Iceberg table, that is open: a state continues with it. None for other data, a
    /// mixture, and a server's data.
    pub fn table_version(&self) -> Option<u64> {
        self.source.info().table_version
    }

    /// What the options made of the columns, where the schema does not show it; of a server's data, the server's own options.
    pub fn kinds(&self) -> &ColumnKinds {
        &self.source.info().kinds
    }

    /// The schema of the batches: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        self.source.schema()
    }

    /// The longest wait for a batch, as set by the options.
    pub fn timeout(&self) -> Duration {
        self.source.timeout()
    }

    /// The device that batches are delivered on; `None` for the host.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.source.device()
    }

    /// Counters of copies to the device since the loader was opened; `None` without a device.
    pub fn device_stats(&self) -> Option<DeviceStats> {
        self.source.device_stats()
    }

    /// Returns the next batch from the position on, or `None` at the end of the epoch; the call after that starts the
    /// next epoch.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Timeout`] with the culprit if nothing comes within the time-out;
    /// [`Error::Closed`] after [`close`](Self::close); [`Error::Config`] if batches are delivered on a device.
    #[expect(
        clippy::should_implement_trait,
        reason = "the order of Option and Result suits `?`; iter() has the other one"
    )]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        if self.device().is_some() {
            return Err(Error::config("device", "batches are on a device: take them with next_any"));
        }
        Ok(self.next_any()?.and_then(AnyBatch::into_host))
    }

    /// Returns the next batch, on the host or a device, or `None` at the end of the epoch; the call after that starts
    /// the next epoch.
    ///
    /// # Errors
    /// As [`next`](Self::next); [`Error::Device`] if a device refuses, after which the same batch comes next again;
    /// [`Error::Timeout`] if the consumer holds all of the device's slots.
    pub fn next_any(&mut self) -> Result<Option<AnyBatch>> {
        let started = Instant::now();
        self.next_within(self.timeout())?.or_error(|| self.timed_out(started.elapsed()))
    }

    /// As [`next_any`](Self::next_any), but gives up with [`Next::Pending`] after `wait`. Nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`next_any`](Self::next_any), except for the time-out.
    pub fn next_within(&mut self, wait: Duration) -> Result<Next<AnyBatch>> {
        self.check()?;
        if let Some(again) = self.cursor.again() {
            return Ok(again);
        }
        let next = match self.cursor.looked_at() {
            Some(next) => next,
            None => {
                let traced = self.source.root().map(|root| (root, *self.asked.get_or_insert_with(Instant::now)));
                let next = self.source.next(wait);
                if let Some((root, asked)) = traced {
                    self.trace(root, asked, &next);
                }
                self.noted(next)?
            }
        };
        self.cursor.advance(&next, AnyBatch::at);
        Ok(next)
    }

    /// Checks that batches can be had: nobody closed the loader, and no error ended it.
    fn check(&self) -> Result<()> {
        self.source.check().map_err(|error| self.told(error))
    }

    /// Checks that no error ended the loader.
    fn check_alive(&self) -> Result<()> {
        if self.failed.is_none() { Ok(()) } else { self.source.check_maker().map_err(|error| self.told(error)) }
    }

    /// Remembers an error of the source, which may have ended it.
    fn noted<T>(&mut self, outcome: Result<T>) -> Result<T> {
        match outcome {
            Ok(found) => {
                self.failed = None;
                Ok(found)
            }
            Err(error @ Error::Closed { .. }) if self.failed.is_some() => Err(self.told(error)),
            Err(error) => {
                self.failed = Some(error.chain());
                Err(error)
            }
        }
    }

    /// The error that ended the loader, in place of one that only says that it is closed.
    fn told(&self, error: Error) -> Error {
        match (&self.failed, error) {
            (Some(failed), Error::Closed { .. }) => Error::Closed {
                why: format!("an error ended the loader; open it again from its state. The error: {failed}"),
            },
            (_, error) => error,
        }
    }

    /// Exports the wait for the next step since `asked`, if it is over.
    fn trace(&mut self, root: Root, asked: Instant, next: &Result<Next<AnyBatch>>) {
        let (at, found) = match next {
            Ok(Next::Pending) => return,
            Ok(Next::End) => {
                self.asked = None;
                return;
            }
            Ok(Next::Item(batch)) => {
                let rows = match batch {
                    AnyBatch::Host(batch) => batch.rows,
                    AnyBatch::Device(batch) => batch.rows,
                };
                (batch.at(), Ok(rows as u64))
            }
            Err(error) => (self.cursor.next_new(), Err(error)),
        };
        self.asked = None;
        if let Some(step) = root.step(at, self.share().numbers()) {
            step.waited(asked, Instant::now(), found);
        }
    }

    /// As [`next_any`](Self::next_any), and copies the batch into `targets`: on the host before returning, on a device
    /// on the stream of `consumer`, after the batch's own copy. If that fails, the batch comes next again.
    ///
    /// # Errors
    /// As [`next_any`](Self::next_any) and [`fill`](Self::fill).
    pub fn next_into(&mut self, targets: &Targets, consumer: Consumer) -> Result<Option<AnyBatch>> {
        let Some(batch) = self.next_any()? else { return Ok(None) };
        match self.fill(&batch, targets, consumer) {
            Ok(()) => Ok(Some(batch)),
            Err(error) => {
                self.put_back(batch);
                Err(error)
            }
        }
    }

    /// Copies `batch`, which this loader yielded, into `targets`: the part of [`next_into`](Self::next_into) that does
    /// not wait.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unsupported`] and [`Error::Mismatch`] for a target that no column fits, before anything is written;
    /// [`Error::Device`] if a device refuses.
    pub fn fill(&self, batch: &AnyBatch, targets: &Targets, consumer: Consumer) -> Result<()> {
        for column in targets.iter().map(|target| target.column()) {
            let varies = |field: &&Field| {
                field.dims.iter().any(|dim| matches!(dim, Dim::Ragged | Dim::Cut(_) | Dim::Any | Dim::Sparse))
            };
            // Its mask has a value for each row.
            let part = |field: &&Field| {
                let own = field.names();
                own.iter().any(|name| &**name == column && name.strip_prefix(&*field.name) != Some("__valid"))
            };
            if let Some(field) = self.schema().fields().iter().filter(varies).find(part) {
                let what = format!("filling a tensor with {column}, whose length varies from batch to batch,");
                let hint = format!("pad the lists: lists={{\"{}\": Padded(n)}}", field.name);
                return Err(Error::unsupported(what, hint));
            }
        }
        match batch {
            AnyBatch::Host(batch) => targets.fill(batch),
            AnyBatch::Device(batch) => targets.fill_on_device(batch, consumer),
        }
    }

    /// Takes back a batch that this loader yielded but that reached nobody: it comes again before any new one, and the
    /// position is before it. Of several, the first of the epoch comes first. A batch from before a move to another
    /// position is dropped.
    pub fn put_back(&mut self, batch: impl Into<AnyBatch>) {
        let batch = batch.into();
        self.cursor.put_back(batch.at(), batch);
    }

    /// The error for a wait of `waited` without a result.
    pub fn timed_out(&self, waited: Duration) -> Error {
        let (stage, culprit) = self.source.culprit();
        let (Share { rank, world }, (epoch, step)) = (self.share(), self.cursor.next_new());
        let culprit = format!("{culprit}; rank {rank} of {world}, epoch {epoch}, step {step}");
        Error::late(stage, with_refusal(culprit, waited), waited, self.timeout())
    }

    /// The position after the last batch yielded: the same on every rank, and independent of the number of ranks.
    ///
    /// After the last batch of an epoch, and before its end was reported, this is the end of that epoch: a loader that
    /// resumes there has an empty pass before the next epoch, so that `for epoch in saved..n` counts right.
    pub fn state(&self) -> State {
        let (epoch, step) = self.cursor.position();
        self.state_at(epoch, step)
    }

    /// The position after `step` steps of `epoch`.
    pub fn state_at(&self, epoch: u64, step: u64) -> State {
        let (info, left) = (self.source.info(), self.consumed.early().to_vec());
        State { fingerprint: self.data(), left, ..info.state(epoch, step) }
    }

    /// The fingerprint by which this run knows its data.
    fn data(&self) -> Fingerprint {
        self.consumed.data().unwrap_or(self.source.info().fingerprint)
    }

    /// Moves to a position that [`state`](Self::state) returned, here or on any other rank of any world size. Unless
    /// the options name the version of the order, the state's version applies from here on, in later epochs too.
    ///
    /// # Errors
    /// On an error the loader stays where it is.
    /// - [`Error::Mismatch`] if the state belongs to another dataset or plan;
    /// - [`Error::Closed`] if an error ended the loader, with that error;
    /// - [`Error::Config`] for an epoch beyond 2^63 - 1, and for the last rows of an epoch under [`Tail::Even`](crate::plan::Tail::Even) if they are fewer than the ranks.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        self.check_alive()?;
        if state.epoch > LAST_EPOCH {
            return Err(Error::config("epoch", format!("{} of the state is not from 0 to {LAST_EPOCH}", state.epoch)));
        }
        let before = self.source.info().spec.order_version;
        let resumed = self.source.resume(state);
        let step = resumed.map_err(|error| self.of_version(error, state))?;
        self.consumed.resume(self.cursor.position(), (state.epoch, step), state);
        if self.source.info().spec.order_version != before {
            self.consumed.forget();
        }
        self.cursor.seek((state.epoch, step));
        Ok(())
    }

    /// `error`, of resuming from `state`, with the version of the table that is open, if that may be why the data differ.
    fn of_version(&self, error: Error, state: &State) -> Error {
        let differs = state.fingerprint != self.source.info().fingerprint_as(state.fingerprint);
        match (error, self.table_version().filter(|_| differs)) {
            (Error::Mismatch { what, expected, found, hint }, Some(version)) => {
                let hint = format!("{hint}; version {version} of the table is open here");
                Error::Mismatch { what, expected, found, hint }
            }
            (error, _) => error,
        }
    }

    /// Integers delivered in 64 bits that need more than 32: the first one of each column, as far as footers tell where
    /// to look. For consumers that have 32 bits only. Nothing is known of a server's data.
    ///
    /// The search takes its memory from the budget: data read ahead makes room for it, and is read again.
    ///
    /// # Errors
    /// [`Error::Closed`] after [`close`](Self::close); [`Error::Timeout`] if the files do not answer.
    pub fn wide_integers(&mut self) -> Result<Vec<WideInteger>> {
        let started = Instant::now();
        let found = self.wide_integers_within(self.timeout())?.or_error(|| self.timed_out(started.elapsed()))?;
        Ok(found.unwrap_or_default())
    }

    /// As [`wide_integers`](Self::wide_integers), but gives up with [`Next::Pending`] after `wait`; the search
    /// continues.
    ///
    /// # Errors
    /// As [`wide_integers`](Self::wide_integers).
    pub fn wide_integers_within(&mut self, wait: Duration) -> Result<Next<Vec<WideInteger>>> {
        self.source.wide_integers(wait)
    }

    /// A record of what this loader consumed since it was opened, to be joined with the certificates of the other
    /// ranks, and of those before a restart: [`audit`](crate::plan::audit()). Batches that were put back do not count.
    pub fn certificate(&self) -> Certificate {
        let info = self.source.info();
        let (consumed, dropped) = self.consumed.spans(self.cursor.position());
        let is_consumed = |at| consumed.iter().any(|span| (span.from..span.to).contains(&at));
        let (skipped, zeroed) = self.source.ledger().consumed(is_consumed);
        Certificate {
            version: Certificate::VERSION,
            loader: self.consumed.name().to_owned(),
            opened: self.consumed.opened(),
            written: consumed::now(),
            fingerprint: self.data(),
            spec: info.spec.clone(),
            rows: info.rows,
            steps: info.steps,
            rank: info.share.rank,
            world_size: info.share.world,
            generation: self.source.generation(),
            consumed,
            dropped,
            bad_rows: BadRows { skipped, zeroed },
            signature: None,
        }
    }

    /// Counters since the loader was opened. With a device, batches made ahead for it count as consumed.
    pub fn stats(&self) -> Stats {
        self.source.stats()
    }

    /// What the time of the consumer went to and what limits it, caches, memory, origins and bad rows, for people to read: see [`Report`].
    /// A served dataset is read by its server, which knows about its origins, caches and bad rows.
    pub fn report(&self) -> Report {
        Report::of(self)
    }

    /// Bad rows found so far; those that a server found are in its log.
    pub fn ledger(&self) -> Ledger {
        self.source.ledger()
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub fn close(&mut self) {
        self.cursor.close();
        self.source.close();
        self.failed = None;
    }
}
