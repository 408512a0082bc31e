//! A consumer's share of a slot: while any of it lives, nobody writes there.

#![expect(unsafe_code, reason = "device memory is read here, within the slot that the lease keeps")]

use std::fmt;
use std::sync::Arc;

use super::address::Address;
use super::slot::{Core, Slot, SlotTable};
use super::traits::{Device, Stream, refused};
use crate::error::Result;

/// The reader of a batch, in terms of DLPack's `stream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consumer {
    /// A reader on this stream, which waits for the batch.
    Stream(Stream),
    /// A reader that waits by other means (-1): nothing waits, and the batch counts as used on every stream.
    Unordered,
}

/// All tensors of a batch share one lease; dropping the last gives the slot back, from any thread, without waiting.
pub(super) struct Lease {
    core: Arc<Core>,
    slot: Arc<Slot>,
}

impl Lease {
    /// A lease of a filled slot.
    pub(super) fn new(core: Arc<Core>, slot: Arc<Slot>) -> Self {
        Self { core, slot }
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.core.device
    }

    /// The consumer takes the batch.
    pub(super) fn hold(&self) {
        self.core.change(|board| board.ring.hold(self.slot.number));
    }

    /// Lets `consumer` read: see [`DeviceTensor::give_to`](super::DeviceTensor::give_to).
    pub(super) fn give_to(&self, consumer: Consumer) -> Result<()> {
        self.core.check_process()?;
        let mut body = self.slot.body();
        match consumer {
            Consumer::Unordered => body.used_anywhere(),
            Consumer::Stream(stream) => {
                // Even if the rest fails: then it is used less than recorded.
                body.used_on(stream);
                if let Some(ready) = &body.ready {
                    self.core.device.make_visible(ready, stream)?;
                }
            }
        }
        Ok(())
    }

    /// The stream on which `consumer`, now admitted, may read from now on; `None` if it may read at once, since this
    /// waited for the batch.
    pub(super) fn read_on(&self, consumer: Consumer) -> Result<Option<Stream>> {
        match consumer {
            Consumer::Stream(stream) => self.give_to(consumer).map(|()| Some(stream)),
            Consumer::Unordered => self.synchronize().map(|()| None),
        }
    }

    /// Copies `bytes` at `from`, which are the slot's, to memory of their own: returns a lease of that, and its
    /// address. They are copied on the stream of `consumer`, which is admitted there; for [`Consumer::Unordered`] the
    /// copy is complete when this returns.
    pub(super) fn copy(&self, from: Address, bytes: usize, consumer: Consumer) -> Result<(Arc<Self>, Address)> {
        let on = self.read_on(consumer)?;
        // A slot of the ring like any other, so that its memory too is returned behind its readers, without waiting.
        let slot = self.core.change(SlotTable::temporary);
        let mut body = slot.body();
        let appended = self.core.prepare(&mut body, bytes).and_then(|()| {
            // SAFETY: this lease keeps the source until the work queued on the stream is done; the slot is nobody
            // else's, and has that many bytes.
            unsafe { self.core.device.copy_within(on, body.at, from, bytes) }
        });
        if let Err(error) = appended {
            drop(body);
            self.core.change(|board| board.ring.abandon(slot.number, false));
            return Err(error);
        }
        match on {
            Some(stream) => body.used_on(stream),
            None => body.used_anywhere(),
        }
        let at = body.at;
        drop(body);
        self.core.change(|board| {
            board.ring.fill(slot.number);
            board.ring.hold(slot.number);
        });
        // From here on its drop gives the slot back after the copy.
        let lease = Arc::new(Self::new(Arc::clone(&self.core), Arc::clone(&slot)));
        if let (Some(stream), Some(ready)) = (on, &slot.body().ready) {
            self.core.device.fence(ready, stream)?;
        }
        Ok((lease, at))
    }

    /// Waits until the batch is complete.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.core.check_process()?;
        self.slot.body().ready.as_ref().map_or(Ok(()), |ready| self.core.device.synchronize(ready))
    }

    /// Reads `to.len()` bytes at `at`.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if they are not all the slot's, or the device fails.
    pub(super) fn read(&self, at: Address, to: &mut [u8]) -> Result<()> {
        self.synchronize()?;
        let body = self.slot.body();
        let inside = |start: u64, len: usize| {
            at.checked_sub(start)
                .and_then(|offset| offset.checked_add(to.len() as u64))
                .is_some_and(|end| end <= len as u64)
        };
        let host = body.host.iter().flat_map(|batch| batch.columns()).filter_map(|(_, value)| value.tensor());
        let on_host = host.into_iter().any(|tensor| inside(tensor.slab().as_ptr().addr() as u64, tensor.slab().len()));
        if !on_host && !inside(body.at, body.capacity) {
            return Err(refused(self.core.device.name(), "reading a tensor", "it lies outside of its batch"));
        }
        // SAFETY: the bytes lie in memory that this lease keeps: the slot's, or that of the slab in its place (checked
        // above). The work that fills it is done, and nobody writes to it while the lease lives.
        unsafe { self.core.device.read(at, to) }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease(slot {} of {})", self.slot.number, self.core.device.name())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.core.release(&self.slot);
    }
}
