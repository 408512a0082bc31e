//! The one trait of all sources of batches, and a source's description of its plan.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::column_kinds::ColumnKinds;
use super::foretold::WideInteger;
use super::ledger::Ledger;
use super::stats::Stats;
use super::trail::Trail;
use crate::device::{AnyBatch, Device, DeviceStats};
use crate::error::Result;
use crate::manifest::Fingerprint;
use crate::plan::{PlanSpec, Share, State};
use crate::schema::Schema;
use crate::tensor::Next;
use crate::trace::Root;

/// The constant part of a plan over all epochs, with the share of it that is delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInfo {
    /// The data.
    pub fingerprint: Fingerprint,
    /// The fingerprint that a former version of bowstring gave the data, if it was another one: states that have it go on.
    pub former: Option<Fingerprint>,
    /// The resolved plan.
    pub spec: PlanSpec,
    /// Steps of one epoch: exact, and the same on every rank.
    pub steps: u64,
    /// Rows of one epoch over all ranks.
    pub rows: u64,
    /// This rank and the world size.
    pub share: Share,
    /// Set if batches have `_mask`.
    pub masked: bool,
    /// The version of the one Delta table, or the snapshot of the one Iceberg table, that is read; none of other data, and of a server's.
    pub table_version: Option<u64>,
    /// What the options made of the columns; a server's own, if it made the batches.
    pub kinds: Arc<ColumnKinds>,
}

impl PlanInfo {
    /// The position before `step` of `epoch`, valid in any world.
    pub fn state(&self, epoch: u64, step: u64) -> State {
        State::in_world(self.fingerprint, self.spec.clone(), (self.steps, self.rows), (epoch, step))
    }

    /// `given`, if the data have or had that fingerprint; else the one that they have.
    pub(crate) fn fingerprint_as(&self, given: Fingerprint) -> Fingerprint {
        self.fingerprint.or_former(self.former, given)
    }

    /// Rows of `step` on all ranks together, including padded and repeated ones.
    pub fn step_rows(&self, step: u64) -> u64 {
        self.spec.step_rows(self.rows, self.share.world, step)
    }

    /// The first step that this world yields after `state`.
    ///
    /// # Errors
    /// As [`State::check`] and [`State::step_of`].
    pub(crate) fn step_of(&self, state: &State) -> Result<u64> {
        state.check(&self.fingerprint_as(state.fingerprint), &self.spec)?;
        state.step_of(self.rows, self.share.world)
    }
}

/// Batches of one rank, in plan order, epoch after epoch: from files, from a server, on a device. Any processing of
/// batches on the way is a source around a source, and [`Loader::of`](crate::Loader::of) makes a loader of any of them.
///
/// A source only goes forward from its position. The loader on top handles positions that count, batches put back,
/// passes and time-outs, for all sources alike.
pub trait BatchSource: Debug + Send {
    /// Returns the next batch, or [`Next::Pending`] if it does not come within `wait`. After the last one of an epoch
    /// comes the end, once, and then the first of the next epoch. Nothing is lost by giving up.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Closed`](crate::Error::Closed) after that and after
    /// [`close`](Self::close), unless the source states that it continues.
    fn next(&mut self, wait: Duration) -> Result<Next<AnyBatch>>;

    /// Moves to `step` of `epoch` of the same plan. Changes nothing on failure.
    ///
    /// # Errors
    /// Any error of planning the epoch.
    fn seek(&mut self, epoch: u64, step: u64) -> Result<()>;

    /// Moves to a position at which any source of the same data and plan was; in the state's version of the order from
    /// here on, unless the options name one. Returns the step that comes next, as this world counts. Changes nothing on
    /// failure.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if the state belongs to another dataset or plan.
    fn resume(&mut self, state: &State) -> Result<u64>;

    /// The plan that is followed.
    fn info(&self) -> &PlanInfo;

    /// The schema of the batches: one field per column, before suffixes.
    fn schema(&self) -> &Schema;

    /// The longest wait for a batch, as set by the options.
    fn timeout(&self) -> Duration;

    /// Stage and culprit of a wait without a result.
    fn culprit(&self) -> (&'static str, String);

    /// Checks that batches may be delivered, including those made before.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) after [`close`](Self::close); [`Error::Fenced`](crate::Error::Fenced) if
    /// the gang continued without this rank.
    fn check(&self) -> Result<()>;

    /// As [`check`](Self::check), of the source that makes the batches: it may have ended while one that takes them from it has not. May
    /// wait for a batch that is being made.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    fn check_maker(&self) -> Result<()> {
        self.check()
    }

    /// Integers delivered in 64 bits that need more than 32: the first one of each column, as far as that is known
    /// before rows are read; [`Next::Pending`] if the search takes longer than `wait`. Nothing is known of a server's
    /// data.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) after [`close`](Self::close); [`Error::Timeout`](crate::Error::Timeout) if the files do not
    /// answer.
    fn wide_integers(&mut self, wait: Duration) -> Result<Next<Vec<WideInteger>>> {
        let _ = wait;
        Ok(Next::Item(Vec::new()))
    }

    /// The way of the batch that was yielded last, as far as the source knows it: it says what a wait for it was for.
    fn trail(&self) -> Option<Trail> {
        None
    }

    /// The trace of its loader, if it is exported.
    fn root(&self) -> Option<Root> {
        None
    }

    /// Counters since the source was opened.
    fn stats(&self) -> Stats;

    /// Bad rows found so far.
    fn ledger(&self) -> Ledger;

    /// The device that batches are delivered on; `None` for the host.
    fn device(&self) -> Option<&Arc<dyn Device>> {
        None
    }

    /// Counters of copies to the device since the source was opened; `None` without a device.
    fn device_stats(&self) -> Option<DeviceStats> {
        None
    }

    /// The generation of the gang that this is a member of; `None` without one.
    fn generation(&self) -> Option<u64> {
        None
    }

    /// Stops everything at once. Batches already yielded stay valid.
    fn close(&mut self);
}
