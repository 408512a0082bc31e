//! The interface of a device: memory, one copy stream of its own, events, and fences on the streams of its consumers.
//!
//! Everything above this trait is the same for a GPU, for the host's own memory and for the simulation in tests: when a
//! slot may be written is decided in `ring`, never here.

#![expect(unsafe_code, reason = "raw device memory: the contracts of the unsafe functions are stated at each")]

use std::fmt;
use std::sync::Arc;

use super::address::Address;
use super::conversion::Conversion;
use super::decoding::Decoding;
use crate::error::{Error, Result};
use crate::memory::HostAllocator;

/// Minimum alignment in bytes of every allocation of device memory, as for tensors within a slab.
pub const DEVICE_ALIGNMENT: usize = 256;

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The host's own memory: staged memory is delivered as it is.
    Host,
    /// A simulation of a device, for tests.
    Sim,
    /// A GPU driven through CUDA.
    Cuda,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Sim => "sim",
            Self::Cuda => "cuda",
        })
    }
}

/// One reusable event of a device: made by [`Device::event`], given back by [`Device::destroy`]. Not `Copy`, so that
/// each is given back once.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Event(u64);

impl Event {
    /// The event that the device knows as `handle`. For implementations of [`Device`].
    pub fn new(handle: u64) -> Self {
        Self(handle)
    }

    /// The device's handle of it.
    pub fn handle(&self) -> u64 {
        self.0
    }
}

/// A stream of a consumer, as in DLPack's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// 1: the legacy default stream.
    LegacyDefault,
    /// 2: the default stream of each thread.
    PerThreadDefault,
    /// Greater than 2: the driver's handle of a stream.
    Handle(u64),
}

/// The outcome of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fenced {
    /// The event is recorded.
    Recorded,
    /// The stream is capturing a graph, which must not contain the event: nothing was recorded, try again later.
    Capturing,
}

/// A device. All of it may be called from any thread unless a function states otherwise, and nothing of it panics.
///
/// Errors are [`Error::Device`].
pub trait Device: fmt::Debug + Send + Sync + 'static {
    /// The kind of device.
    fn kind(&self) -> Kind;

    /// Its number among the devices of its kind that this process sees.
    fn ordinal(&self) -> u32;

    /// Host memory that a copy reads directly: page-locked for a GPU.
    fn staging(&self) -> Arc<dyn HostAllocator>;

    /// Allocates `bytes` of device memory, aligned to [`DEVICE_ALIGNMENT`]. `bytes` is never 0.
    ///
    /// # Errors
    /// If there is not enough memory.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives device memory back. Failures are logged.
    ///
    /// # Safety
    /// `at` came from `allocate(bytes)` of this device, was not freed, and nothing on any stream uses it any more.
    unsafe fn free(&self, at: Address, bytes: usize);

    /// A new event, which counts as done until it is recorded.
    ///
    /// # Errors
    /// If the device refuses.
    fn event(&self) -> Result<Event>;

    /// Gives an event back. Failures are logged.
    fn destroy(&self, event: Event);

    /// Appends a copy to the copy stream. Only the transfer thread calls this.
    ///
    /// # Errors
    /// If the device refuses; nothing was appended then.
    ///
    /// # Safety
    /// `from` is readable for `bytes` and not written, and `to` is device memory of `bytes` that nothing else
    /// uses, until the work appended up to here is done, as reported by an event recorded afterwards.
    unsafe fn copy(&self, to: Address, from: *const u8, bytes: usize) -> Result<()>;

    /// Appends `what` to the copy stream. Only the transfer thread calls this.
    ///
    /// # Errors
    /// If the device refuses or does not support this conversion; nothing was appended then.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), both sides in device memory: `from` of [`Conversion::from_bytes`], `to` of
    /// [`Conversion::to_bytes`], not overlapping; and the input [beside](Conversion::beside) it, of the bytes that it
    /// returns.
    unsafe fn convert(&self, what: &Conversion, from: Address, to: Address) -> Result<()>;

    /// Prepares for [`decode`](Self::decode), which is not called without it.
    ///
    /// # Errors
    /// If the device has no decoder, with the remedy.
    fn open_decoder(&self) -> Result<()> {
        Ok(())
    }

    /// Describes the decoder of photos once it is open, for display.
    fn decoder(&self) -> Option<String> {
        None
    }

    /// Appends the decoding of photos to the copy stream, and returns how many of them the host had to decode because
    /// the device refused. It may take as long as that does. Only the transfer thread calls this.
    ///
    /// # Errors
    /// If the device refuses; [`Error::Corrupt`] for a photo that neither can decode. Something may have been appended
    /// even then.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy): `rows` is readable and `from`, to which a copy of them was appended, is memory of the device, both of
    /// [`Decoding::from_bytes`]; `to` of [`Decoding::to_bytes`], not overlapping.
    unsafe fn decode(&self, what: &Decoding, rows: *const u8, from: Address, to: Address) -> Result<u64>;

    /// Records `event` on the copy stream. Only the transfer thread calls this.
    ///
    /// # Errors
    /// If the device refuses.
    fn record(&self, event: &Event) -> Result<()>;

    /// Makes work appended to the copy stream from now on wait for `event`. Only the transfer thread calls this.
    ///
    /// # Errors
    /// If the device refuses.
    fn wait(&self, event: &Event) -> Result<()>;

    /// Waits until the copy stream is empty.
    ///
    /// # Errors
    /// If the device failed meanwhile.
    fn drain(&self) -> Result<()>;

    /// Makes work appended to `stream` from now on wait for `event`, without blocking.
    ///
    /// # Errors
    /// If the device refuses.
    fn make_visible(&self, event: &Event, stream: Stream) -> Result<()>;

    /// Records `event` on `stream`, after everything that was appended to it up to now.
    ///
    /// # Errors
    /// If the device refuses; the event is then meaningless.
    fn fence(&self, event: &Event, stream: Stream) -> Result<Fenced>;

    /// Records `event` after everything that was appended up to now to any stream of the context that frameworks share.
    ///
    /// # Errors
    /// As [`fence`](Self::fence).
    fn fence_context(&self, event: &Event) -> Result<Fenced>;

    /// Returns true if [`fence_context`](Self::fence_context) works here; without it, fences that need it wait for
    /// everything.
    fn fences_context(&self) -> bool {
        true
    }

    /// Waits until all work is done that was appended up to now to any stream of the context that frameworks share.
    /// Must not be called while one of them is capturing a graph. Only the transfer thread calls this.
    ///
    /// # Errors
    /// If the device failed meanwhile.
    fn synchronize_all(&self) -> Result<()>;

    /// Returns true if `event` is done, as is an event that was never recorded.
    ///
    /// # Errors
    /// If the device failed meanwhile.
    fn is_done(&self, event: &Event) -> Result<bool>;

    /// Waits until `event` is done.
    ///
    /// # Errors
    /// If the device failed meanwhile.
    fn synchronize(&self, event: &Event) -> Result<()>;

    /// Appends a copy within the device's memory to the stream `on`; without one, copies now and waits for it.
    ///
    /// # Errors
    /// If the device refuses, or `on` is capturing a graph, of which the copy must not become a part; nothing was
    /// appended then.
    ///
    /// # Safety
    /// Both sides are device memory of `bytes`, not overlapping; nothing writes to either, nor reads `to`,
    /// before the appended work is done. Without `on`, nothing does from now on until this returns.
    unsafe fn copy_within(&self, on: Option<Stream>, to: Address, from: Address, bytes: usize) -> Result<()>;

    /// Copies device memory to `to` and waits for it.
    ///
    /// # Errors
    /// If the device refuses or failed meanwhile.
    ///
    /// # Safety
    /// `from` is device memory of as many bytes as `to`, and nothing writes to it meanwhile.
    unsafe fn read(&self, from: Address, to: &mut [u8]) -> Result<()>;

    /// Its name in errors and logs, e.g. `cuda:0`.
    fn name(&self) -> String {
        format!("{}:{}", self.kind(), self.ordinal())
    }
}

/// The error of `device`: the failed operation, and the reason.
pub fn refused(device: impl Into<String>, what: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Device { device: device.into(), what: what.into(), why: why.into() }
}
