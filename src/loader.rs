//! The loader that people use: batches of a dataset, wherever it is.

use std::time::{Duration, Instant};

use crate::error::Result;
#[cfg(feature = "flight")]
use crate::flight::client::{Address, Gang, Remote};
use crate::pipeline::{Ledger, LoaderOptions, Next, Stats};
use crate::plan::{Share, State};
use crate::schema::Schema;
use crate::tensor::Batch;

/// Batches of one rank, epoch after epoch: read here, or by a server (`grpc://host:port/dataset`). Both give the same batches in
/// the same order, and the same states.
///
/// A loader is at a position: an epoch and the number of steps already yielded of it. The blocking calls must not be made from
/// within an async runtime.
#[derive(Debug)]
pub struct Loader(Origin);

#[derive(Debug)]
enum Origin {
    Local(Box<crate::pipeline::Loader>),
    #[cfg(feature = "flight")]
    Remote(Box<Remote>),
}

macro_rules! either {
    ($self:expr, $loader:ident => $call:expr) => {
        match $self {
            Origin::Local($loader) => $call,
            #[cfg(feature = "flight")]
            Origin::Remote($loader) => $call,
        }
    };
}

impl Loader {
    /// Opens the dataset that `options.urls` name.
    ///
    /// # Errors
    /// As [`pipeline::Loader::open`](crate::pipeline::Loader::open), and what a server says.
    pub fn open(options: LoaderOptions) -> Result<Self> {
        #[cfg(feature = "flight")]
        if options.urls.iter().any(|url| Address::is_one(url)) {
            return Ok(Self(Origin::Remote(Box::new(Remote::open(&options)?))));
        }
        Ok(Self(Origin::Local(Box::new(crate::pipeline::Loader::open(options)?))))
    }

    /// Opens a dataset that a server has, as a member of `gang`.
    ///
    /// # Errors
    /// As [`Remote::open_in`].
    #[cfg(feature = "flight")]
    pub fn open_in(options: &LoaderOptions, gang: &Gang) -> Result<Self> {
        Ok(Self(Origin::Remote(Box::new(Remote::open_in(options, gang)?))))
    }

    /// Steps of one epoch: the same on every rank, exact.
    pub fn steps(&self) -> u64 {
        either!(&self.0, loader => loader.steps())
    }

    /// Rows of one epoch over all ranks.
    pub fn rows(&self) -> u64 {
        either!(&self.0, loader => loader.rows())
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        either!(&self.0, loader => loader.epoch())
    }

    /// Steps of the current epoch already yielded.
    pub fn step(&self) -> u64 {
        either!(&self.0, loader => loader.step())
    }

    /// This rank and the world size.
    pub fn share(&self) -> Share {
        either!(&self.0, loader => loader.share())
    }

    /// What comes out: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        either!(&self.0, loader => loader.schema())
    }

    /// The longest wait for a batch, as set by the options.
    pub fn timeout(&self) -> Duration {
        either!(&self.0, loader => loader.timeout())
    }

    /// The next batch, or `None` at the end of the epoch; the call after that starts the next epoch.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Timeout`](crate::Error::Timeout) with the culprit if nothing comes within
    /// the time-out; [`Error::Closed`](crate::Error::Closed) after [`close`](Self::close).
    #[expect(clippy::should_implement_trait, reason = "the order of Option and Result suits `?`")]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        let started = Instant::now();
        match self.next_within(self.timeout())? {
            Next::Batch(batch) => Ok(Some(batch)),
            Next::End => Ok(None),
            Next::Pending => Err(self.timed_out(started.elapsed())),
        }
    }

    /// As [`next`](Self::next), but gives up with [`Next::Pending`] after `wait`. Nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`next`](Self::next), except for the time-out.
    pub fn next_within(&mut self, wait: Duration) -> Result<Next> {
        either!(&mut self.0, loader => loader.next_within(wait))
    }

    /// Takes back the batch that came last, because it reached nobody: it is the next one again.
    pub fn put_back(&mut self, batch: Batch) {
        either!(&mut self.0, loader => loader.put_back(batch));
    }

    /// The error for a wait of `waited` that brought nothing.
    pub fn timed_out(&self, waited: Duration) -> crate::Error {
        either!(&self.0, loader => loader.timed_out(waited))
    }

    /// Goes to the start of `epoch`; stays where it is if that is the current one, so that a resumed loader keeps its place.
    ///
    /// # Errors
    /// Whatever planning the epoch gives.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        either!(&mut self.0, loader => loader.set_epoch(epoch))
    }

    /// The position after the last batch yielded: the same on every rank, and independent of how many there are.
    pub fn state(&self) -> State {
        either!(&self.0, loader => loader.state())
    }

    /// Goes to a position that [`state`](Self::state) gave, here or on any other rank of any world size.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if the state belongs to another dataset or plan.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        either!(&mut self.0, loader => loader.load_state(state))
    }

    /// Counters since the loader was opened.
    pub fn stats(&self) -> Stats {
        either!(&self.0, loader => loader.stats())
    }

    /// The bad rows met so far; those that a server met are in its log.
    pub fn ledger(&self) -> Ledger {
        either!(&self.0, loader => loader.ledger())
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub fn close(&mut self) {
        either!(&mut self.0, loader => loader.close());
    }
}
