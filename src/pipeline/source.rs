//! The one trait of everything that gives batches, and what a source says of its plan.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::foretold::WideInteger;
use super::ledger::Ledger;
use super::stats::Stats;
use crate::device::{AnyBatch, Device, DeviceStats};
use crate::error::Result;
use crate::manifest::Fingerprint;
use crate::plan::{Plan, PlanSpec, Share, State};
use crate::schema::Schema;
use crate::tensor::Next;

/// What is the same in every epoch of a plan, with the share of it that is delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInfo {
    /// The data.
    pub fingerprint: Fingerprint,
    /// The resolved plan.
    pub spec: PlanSpec,
    /// Steps of one epoch: the same on every rank, exact.
    pub steps: u64,
    /// Rows of one epoch over all ranks.
    pub rows: u64,
    /// This rank and the world size.
    pub share: Share,
    /// Whether batches have `_mask`.
    pub masked: bool,
}

impl PlanInfo {
    /// What `plan` says to `share`, where batches have `_mask` or not.
    pub fn of(plan: &Plan, share: Share, masked: bool) -> Self {
        let (fingerprint, spec) = (plan.fingerprint(), plan.spec().clone());
        Self { fingerprint, spec, steps: plan.steps(), rows: plan.rows(), share, masked }
    }

    /// The position before `step` of `epoch`, as any world has it.
    pub fn state(&self, epoch: u64, step: u64) -> State {
        State::in_world(self.fingerprint, self.spec.clone(), (self.steps, self.rows), (epoch, step))
    }

    /// Rows of `step` on all ranks together, padding and repeated ones included.
    pub fn step_rows(&self, step: u64) -> u64 {
        self.spec.step_rows(self.rows, self.share.world, step)
    }

    /// The first step that this world yields after `state`.
    ///
    /// # Errors
    /// As [`State::check`] and [`State::step_of`].
    pub(crate) fn step_of(&self, state: &State) -> Result<u64> {
        state.check(&self.fingerprint, &self.spec)?;
        state.step_of(self.rows, self.share.world)
    }
}

/// Batches of one rank, in plan order, epoch after epoch: from files, from a server, on a device. Whatever is done to batches on the way
/// is a source around a source, and [`Loader::of`](crate::Loader::of) makes a loader of any of them.
///
/// A source only goes forward from where it was sent. Positions that count, batches that come back, passes and time-outs are the affair
/// of the loader on top, for all sources alike.
pub trait BatchSource: Debug + Send {
    /// The next batch; nothing yet if it does not come within `wait`. After the last one of an epoch comes the end, once, and then the
    /// first of the next epoch. Nothing is lost by giving up.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Closed`](crate::Error::Closed) after that and after [`close`](Self::close), unless
    /// the source says that it continues.
    fn next(&mut self, wait: Duration) -> Result<Next<AnyBatch>>;

    /// Goes to `step` of `epoch` of the same plan. Nothing changes where that fails.
    ///
    /// # Errors
    /// Whatever planning the epoch gives.
    fn seek(&mut self, epoch: u64, step: u64) -> Result<()>;

    /// Goes to a position that any source of the same data and plan was at; in the state's version of the order from here on, unless the
    /// options name one. Returns the step that comes next, as this world counts. Nothing changes where that fails.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if the state belongs to another dataset or plan.
    fn resume(&mut self, state: &State) -> Result<u64>;

    /// The plan that is followed.
    fn info(&self) -> &PlanInfo;

    /// What comes out: one field per column, before suffixes.
    fn schema(&self) -> &Schema;

    /// The longest wait for a batch, as set by the options.
    fn timeout(&self) -> Duration;

    /// Stage and culprit of a wait that brought nothing.
    fn culprit(&self) -> (&'static str, String);

    /// That batches may be delivered, those too that were made before.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) after [`close`](Self::close); [`Error::Fenced`](crate::Error::Fenced) where the gang went
    /// on without this rank.
    fn check(&self) -> Result<()>;

    /// Integers that are delivered in 64 bits and need more than 32: the first one of each column, as far as that is known before rows are
    /// read; nothing yet if looking for them takes longer than `wait`. Nothing is known of what a server reads.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) after [`close`](Self::close); [`Error::Timeout`](crate::Error::Timeout) if the files do not
    /// answer.
    fn wide_integers(&mut self, wait: Duration) -> Result<Next<Vec<WideInteger>>> {
        let _ = wait;
        Ok(Next::Item(Vec::new()))
    }

    /// Counters since the source was opened.
    fn stats(&self) -> Stats;

    /// The bad rows met so far.
    fn ledger(&self) -> Ledger;

    /// The device that batches are delivered on; none if that is the host.
    fn device(&self) -> Option<&Arc<dyn Device>> {
        None
    }

    /// What was copied to the device since the source was opened; none if there is no device.
    fn device_stats(&self) -> Option<DeviceStats> {
        None
    }

    /// The generation of the gang whose member this is; none without one.
    fn generation(&self) -> Option<u64> {
        None
    }

    /// Stops everything at once. Batches already yielded stay valid.
    fn close(&mut self);
}
