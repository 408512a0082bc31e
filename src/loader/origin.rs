//! Where batches come from: this process reads, or a server does.

use std::time::Duration;

use crate::error::{Error, Result};
#[cfg(feature = "flight")]
use crate::flight::client::{Address, Gang, Remote};
use crate::pipeline::{BatchMemory, Ledger, Loader, LoaderOptions, Next, Stats};
use crate::plan::{Share, State};
use crate::schema::Schema;
use crate::tensor::Batch;

/// A loader of either kind.
#[derive(Debug)]
pub(super) enum Origin {
    Local(Box<Loader>),
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

impl Origin {
    /// The dataset that `options.urls` name, with batches in `memory`.
    pub(super) fn open(options: &LoaderOptions, memory: BatchMemory) -> Result<Self> {
        #[cfg(feature = "flight")]
        if Self::is_remote(options) {
            return Ok(Self::Remote(Box::new(Remote::open_to(options, None, memory.allocator)?)));
        }
        Ok(Self::Local(Box::new(Loader::open_in(options.clone(), memory)?)))
    }

    /// Whether a server has the dataset that `options.urls` name.
    #[cfg(feature = "flight")]
    pub(super) fn is_remote(options: &LoaderOptions) -> bool {
        options.urls.iter().any(|url| Address::is_one(url))
    }

    /// No server has any dataset.
    #[cfg(not(feature = "flight"))]
    pub(super) fn is_remote(_: &LoaderOptions) -> bool {
        false
    }

    /// A dataset that a server has, for a member of `gang`.
    #[cfg(feature = "flight")]
    pub(super) fn open_in(options: &LoaderOptions, gang: &Gang, memory: BatchMemory) -> Result<Self> {
        Ok(Self::Remote(Box::new(Remote::open_to(options, Some(gang), memory.allocator)?)))
    }

    pub(super) fn steps(&self) -> u64 {
        either!(self, loader => loader.steps())
    }

    pub(super) fn rows(&self) -> u64 {
        either!(self, loader => loader.rows())
    }

    pub(super) fn epoch(&self) -> u64 {
        either!(self, loader => loader.epoch())
    }

    pub(super) fn step(&self) -> u64 {
        either!(self, loader => loader.step())
    }

    pub(super) fn share(&self) -> Share {
        either!(self, loader => loader.share())
    }

    pub(super) fn schema(&self) -> &Schema {
        either!(self, loader => loader.schema())
    }

    pub(super) fn timeout(&self) -> Duration {
        either!(self, loader => loader.timeout())
    }

    pub(super) fn next_within(&mut self, wait: Duration) -> Result<Next> {
        either!(self, loader => loader.next_within(wait))
    }

    pub(super) fn put_back(&mut self, batch: Batch) {
        either!(self, loader => loader.put_back(batch));
    }

    pub(super) fn timed_out(&self, waited: Duration) -> Error {
        either!(self, loader => loader.timed_out(waited))
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        either!(self, loader => loader.set_epoch(epoch))
    }

    pub(super) fn state(&self) -> State {
        either!(self, loader => loader.state())
    }

    pub(super) fn load_state(&mut self, state: &State) -> Result<()> {
        either!(self, loader => loader.load_state(state))
    }

    pub(super) fn stats(&self) -> Stats {
        either!(self, loader => loader.stats())
    }

    pub(super) fn ledger(&self) -> Ledger {
        either!(self, loader => loader.ledger())
    }

    pub(super) fn close(&mut self) {
        either!(self, loader => loader.close());
    }
}
