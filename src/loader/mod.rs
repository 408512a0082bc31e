//! The loader that people use: batches of a dataset, wherever it is, delivered where they are wanted.

mod decoding;
mod device;
mod origin;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::device::{NextOnDevice, OnDevice};
use self::origin::Origin;
use crate::device::{Consumer, Device, DeviceBatch, DeviceStats, Gpu, Place, Targets};
use crate::error::{Error, Result};
#[cfg(feature = "flight")]
use crate::flight::client::Gang;
use crate::pipeline::{BatchMemory, Ledger, LoaderOptions, Next, Stats};
use crate::plan::{Share, State};
use crate::schema::{Dim, Field, Schema};
use crate::tensor::Batch;

/// Batches of one rank, epoch after epoch: read here, or by a server (`grpc://host:port/dataset`). Both give the same batches in
/// the same order, and the same states.
///
/// A loader is at a position: an epoch and the number of steps already yielded of it. The blocking calls must not be made from
/// within an async runtime.
///
/// With the option `device` batches are delivered on a GPU, copied there ahead of the consumer. Such a loader yields
/// [`Placed::Device`], from [`next_placed`](Self::next_placed); positions and states are the same as on the CPU.
#[derive(Debug)]
pub struct Loader(Way);

#[derive(Debug)]
enum Way {
    Host(Origin),
    Device(Box<OnDevice>),
}

/// A batch where the option `device` wants it.
#[derive(Debug, Clone)]
pub enum Placed {
    /// In this process's memory.
    Host(Batch),
    /// In the memory of a device.
    Device(DeviceBatch),
}

impl From<Batch> for Placed {
    fn from(batch: Batch) -> Self {
        Self::Host(batch)
    }
}

impl From<DeviceBatch> for Placed {
    fn from(batch: DeviceBatch) -> Self {
        Self::Device(batch)
    }
}

/// What [`Loader::next_placed_within`] found.
#[derive(Debug)]
pub enum NextPlaced {
    /// The next batch of the epoch.
    Batch(Placed),
    /// The epoch is over; the next call starts the next one.
    End,
    /// Nothing yet.
    Pending,
}

/// Runs `$call` on the loader that reads, wherever batches go afterwards.
macro_rules! reading {
    ($self:expr, $origin:ident => $call:expr) => {
        match &$self.0 {
            Way::Host($origin) => $call,
            Way::Device(on_device) => on_device.with(|$origin| $call),
        }
    };
}

impl Loader {
    /// Opens the dataset that `options.urls` name.
    ///
    /// # Errors
    /// As [`pipeline::Loader::open`](crate::pipeline::Loader::open), and what a server says; [`Error::Device`] if `options.device`
    /// names a GPU that this process cannot use.
    pub fn open(options: LoaderOptions) -> Result<Self> {
        Self::open_at(&options, Origin::open)
    }

    /// Opens a dataset that a server has, as a member of `gang`.
    ///
    /// # Errors
    /// As [`Remote::open_in`](crate::flight::client::Remote::open_in), and [`Error::Device`] as for [`open`](Self::open).
    #[cfg(feature = "flight")]
    pub fn open_in(options: &LoaderOptions, gang: &Gang) -> Result<Self> {
        Self::open_at(options, |options, memory| Origin::open_in(options, gang, memory))
    }

    /// Opens the dataset that `options.urls` name, with batches on `device`, whatever `options.device` says.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(options: &LoaderOptions, device: Arc<dyn Device>) -> Result<Self> {
        options.place()?;
        on_device(options, device, Origin::open)
    }

    fn open_at(options: &LoaderOptions, open: impl Fn(&LoaderOptions, BatchMemory) -> Result<Origin>) -> Result<Self> {
        let device = match options.place()? {
            Place::Cpu => {
                decoding::check_host(options)?;
                None
            }
            Place::Pinned => {
                decoding::check_host(options)?;
                let allocator = crate::device::gpu(&Gpu::Default)?.staging();
                let memory = BatchMemory { allocator, returning: options.device_slots };
                return Ok(Self(Way::Host(open(options, memory)?)));
            }
            Place::Gpu(gpu) => Some(crate::device::gpu(&gpu)?),
            Place::Auto => crate::device::gpu(&Gpu::Default)
                .inspect_err(|error| tracing::warn!("device auto: batches stay on the CPU: {}", error.chain()))
                .ok(),
        };
        match device {
            Some(device) => on_device(options, device, open),
            None => Ok(Self(Way::Host(open(&decoding::on_host(options), BatchMemory::default())?))),
        }
    }

    /// Steps of one epoch: the same on every rank, exact.
    pub fn steps(&self) -> u64 {
        match &self.0 {
            Way::Host(origin) => origin.steps(),
            Way::Device(on_device) => on_device.now().steps,
        }
    }

    /// Rows of one epoch over all ranks.
    pub fn rows(&self) -> u64 {
        match &self.0 {
            Way::Host(origin) => origin.rows(),
            Way::Device(on_device) => on_device.now().rows,
        }
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        match &self.0 {
            Way::Host(origin) => origin.epoch(),
            Way::Device(on_device) => on_device.now().state.epoch,
        }
    }

    /// Steps of the current epoch already yielded.
    pub fn step(&self) -> u64 {
        match &self.0 {
            Way::Host(origin) => origin.step(),
            Way::Device(on_device) => on_device.now().state.step,
        }
    }

    /// This rank and the world size.
    pub fn share(&self) -> Share {
        match &self.0 {
            Way::Host(origin) => origin.share(),
            Way::Device(on_device) => on_device.share(),
        }
    }

    /// What comes out: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        match &self.0 {
            Way::Host(origin) => origin.schema(),
            Way::Device(on_device) => on_device.schema(),
        }
    }

    /// The longest wait for a batch, as set by the options.
    pub fn timeout(&self) -> Duration {
        match &self.0 {
            Way::Host(origin) => origin.timeout(),
            Way::Device(on_device) => on_device.timeout(),
        }
    }

    /// The device that batches are delivered on; None if that is the host.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        match &self.0 {
            Way::Host(_) => None,
            Way::Device(on_device) => Some(on_device.device()),
        }
    }

    /// What was copied to the device since the loader was opened; None if there is none.
    pub fn device_stats(&self) -> Option<DeviceStats> {
        match &self.0 {
            Way::Host(_) => None,
            Way::Device(on_device) => Some(on_device.device_stats()),
        }
    }

    /// The next batch, or `None` at the end of the epoch; the call after that starts the next epoch.
    ///
    /// # Errors
    /// The first error of any stage, once; [`Error::Timeout`] with the culprit if nothing comes within the time-out;
    /// [`Error::Closed`] after [`close`](Self::close); [`Error::Config`] if batches are delivered on a device.
    #[expect(clippy::should_implement_trait, reason = "the order of Option and Result suits `?`")]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        self.check_host()?;
        match self.next_placed()? {
            Some(Placed::Host(batch)) => Ok(Some(batch)),
            _ => Ok(None),
        }
    }

    /// As [`next`](Self::next), but gives up with [`Next::Pending`] after `wait`. Nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`next`](Self::next), except for the time-out.
    pub fn next_within(&mut self, wait: Duration) -> Result<Next> {
        match &mut self.0 {
            Way::Host(origin) => origin.next_within(wait),
            Way::Device(_) => self.check_host().map(|()| Next::Pending),
        }
    }

    fn check_host(&self) -> Result<()> {
        match &self.0 {
            Way::Host(_) => Ok(()),
            Way::Device(_) => Err(Error::config("device", "batches are on a device: take them with next_placed")),
        }
    }

    /// The next batch, wherever it is, or `None` at the end of the epoch; the call after that starts the next epoch.
    ///
    /// # Errors
    /// As [`next`](Self::next); [`Error::Device`] for what a device refused, after which the same batch is the next one again;
    /// [`Error::Timeout`] if the consumer has all of the device's slots.
    pub fn next_placed(&mut self) -> Result<Option<Placed>> {
        let started = Instant::now();
        match self.next_placed_within(self.timeout())? {
            NextPlaced::Batch(batch) => Ok(Some(batch)),
            NextPlaced::End => Ok(None),
            NextPlaced::Pending => Err(self.timed_out(started.elapsed())),
        }
    }

    /// As [`next_placed`](Self::next_placed), but gives up with [`NextPlaced::Pending`] after `wait`. Nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`next_placed`](Self::next_placed), except for the time-out.
    pub fn next_placed_within(&mut self, wait: Duration) -> Result<NextPlaced> {
        Ok(match &mut self.0 {
            Way::Host(origin) => match origin.next_within(wait)? {
                Next::Batch(batch) => NextPlaced::Batch(batch.into()),
                Next::End => NextPlaced::End,
                Next::Pending => NextPlaced::Pending,
            },
            Way::Device(on_device) => match on_device.next_within(wait)? {
                NextOnDevice::Batch(batch) => NextPlaced::Batch(batch.into()),
                NextOnDevice::End => NextPlaced::End,
                NextOnDevice::Pending => NextPlaced::Pending,
            },
        })
    }

    /// As [`next_placed`](Self::next_placed), with the batch copied into `targets` too: on the host here, on a device on the stream of
    /// `consumer`, behind the batch's own copy. If that fails, the batch is the next one again.
    ///
    /// # Errors
    /// As [`next_placed`](Self::next_placed) and [`fill`](Self::fill).
    pub fn next_into(&mut self, targets: &Targets, consumer: Consumer) -> Result<Option<Placed>> {
        let Some(batch) = self.next_placed()? else { return Ok(None) };
        match self.fill(&batch, targets, consumer) {
            Ok(()) => Ok(Some(batch)),
            Err(error) => {
                self.put_back(batch);
                Err(error)
            }
        }
    }

    /// Copies `batch`, which this loader yielded, into `targets`. Of [`next_into`](Self::next_into), the part that does not wait.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unsupported`] and [`Error::Mismatch`] for a target that no column fits, before anything is written;
    /// [`Error::Device`] if a device refuses.
    pub fn fill(&self, batch: &Placed, targets: &Targets, consumer: Consumer) -> Result<()> {
        for column in targets.iter().map(|target| target.column()) {
            let varies =
                |field: &&Field| field.dims.iter().any(|dim| matches!(dim, Dim::Ragged | Dim::Cut(_) | Dim::Any));
            let part = |field: &&Field| field.names().iter().any(|name| &**name == column);
            if let Some(field) = self.schema().fields().iter().filter(varies).find(part) {
                let what = format!("filling a tensor with {column}, whose length varies from batch to batch,");
                let hint = format!("pad the lists: lists={{\"{}\": Padded(n)}}", field.name);
                return Err(Error::unsupported(what, hint));
            }
        }
        match batch {
            Placed::Host(batch) => targets.fill(batch),
            Placed::Device(batch) => targets.fill_on_device(batch, consumer),
        }
    }

    /// Takes back a batch that this loader yielded, because it reached nobody: it comes again before any new one, and the position is
    /// before it. Of several the first of the epoch comes first.
    pub fn put_back(&mut self, batch: impl Into<Placed>) {
        match (&mut self.0, batch.into()) {
            (Way::Host(origin), Placed::Host(batch)) => origin.put_back(batch),
            (Way::Device(on_device), Placed::Device(batch)) => on_device.put_back(batch),
            // It came from another loader.
            _ => {}
        }
    }

    /// The error for a wait of `waited` that brought nothing.
    pub fn timed_out(&self, waited: Duration) -> Error {
        match &self.0 {
            Way::Host(origin) => origin.timed_out(waited),
            Way::Device(on_device) => on_device.timed_out(waited),
        }
    }

    /// Goes to the start of `epoch`; stays where it is if that is the current one, so that a resumed loader keeps its place.
    ///
    /// # Errors
    /// Whatever planning the epoch gives.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        match &mut self.0 {
            Way::Host(origin) => origin.set_epoch(epoch),
            Way::Device(on_device) => on_device.set_epoch(epoch),
        }
    }

    /// The position after the last batch yielded: the same on every rank, and independent of how many there are.
    pub fn state(&self) -> State {
        match &self.0 {
            Way::Host(origin) => origin.state(),
            Way::Device(on_device) => on_device.now().state,
        }
    }

    /// Goes to a position that [`state`](Self::state) gave, here or on any other rank of any world size.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the state belongs to another dataset or plan.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        match &mut self.0 {
            Way::Host(origin) => origin.load_state(state),
            Way::Device(on_device) => on_device.load_state(state),
        }
    }

    /// Counters since the loader was opened. With a device, what was made ahead for it counts as consumed.
    pub fn stats(&self) -> Stats {
        reading!(self, origin => origin.stats())
    }

    /// The bad rows met so far; those that a server met are in its log.
    pub fn ledger(&self) -> Ledger {
        reading!(self, origin => origin.ledger())
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub fn close(&mut self) {
        match &mut self.0 {
            Way::Host(origin) => origin.close(),
            Way::Device(on_device) => on_device.close(),
        }
    }
}

/// What `open` opens, read into memory that `device` copies from without a detour, and delivered there.
fn on_device(
    options: &LoaderOptions,
    device: Arc<dyn Device>,
    open: impl Fn(&LoaderOptions, BatchMemory) -> Result<Origin>,
) -> Result<Loader> {
    // As many as there are slots are being copied, and one waits for a slot.
    let memory = BatchMemory { allocator: device.staging(), returning: options.device_slots + 1 };
    let opened = OnDevice::open(options, device, |options| open(options, memory.clone()))?;
    Ok(Loader(Way::Device(Box::new(opened))))
}
