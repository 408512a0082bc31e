//! The memory of slots, their events and fences: everything about a slot except its owner, which the ring tracks.

#![expect(unsafe_code, reason = "device memory is freed here; why nobody uses it any more is stated at each use")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::address::Address;
use super::ring::{Release, Ring, State};
use super::spec::Fence;
use super::traits::{Device, Event, Fenced, Stream};
use crate::error::{Error, Result};
use crate::tensor::Batch;

/// Memory for a batch is rounded up by at most an eighth, so that batches of similar size need no new memory.
const STEPS_LOG2: u32 = 3;

/// State shared by the transfer thread and all leases.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) device: Arc<dyn Device>,
    pub(super) fence: Fence,
    /// The process that opened the device: a forked child cannot use it.
    pid: u32,
    board: Mutex<SlotTable>,
    changed: Condvar,
    pub(super) counters: Counters,
}

/// The owner of each slot, and the signals to the transfer thread.
#[derive(Debug)]
pub(super) struct SlotTable {
    pub(super) ring: Ring,
    slots: Vec<Arc<Slot>>,
    /// Counts changes, so that none is missed between a check and a wait.
    pub(super) version: u64,
    pub(super) closed: bool,
    /// Set once the transfer thread has given back everything without an owner.
    pub(super) stopping: bool,
    /// Set once the transfer thread has ended.
    pub(super) finished: bool,
    /// The generation for which nothing more is made until the consumer asks.
    pub(super) paused: Option<u64>,
    /// Batches of other generations are no longer wanted.
    pub(super) generation: u64,
    /// Set while a batch waits for a slot.
    pub(super) starved: bool,
}

/// One slot: a piece of device memory with its events.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: usize,
    body: Mutex<Body>,
}

#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) at: Address,
    pub(super) capacity: usize,
    /// Recorded after the work that fills the slot.
    pub(super) ready: Option<Event>,
    fences: Vec<Event>,
    /// Number of fences that count.
    recorded: usize,
    /// The streams to which the slot was given.
    streams: Vec<Stream>,
    /// Set if somebody uses it on unknown streams.
    unordered: bool,
    /// Content of the slot, if the host's memory is the device's.
    pub(super) host: Option<Batch>,
}

/// Work done so far.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) batches: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) allocations: AtomicU64,
    pub(super) overflows: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Core {
    pub(super) fn new(device: Arc<dyn Device>, slots: usize, fence: Fence) -> Arc<Self> {
        let slots: Vec<_> = (0..slots).map(Slot::new).collect();
        let board = SlotTable {
            ring: Ring::new(slots.len()),
            slots,
            version: 0,
            closed: false,
            stopping: false,
            finished: false,
            paused: Some(0),
            generation: 0,
            starved: false,
        };
        let (board, pid) = (Mutex::new(board), std::process::id());
        Arc::new(Self { device, fence, pid, board, changed: Condvar::new(), counters: Counters::default() })
    }

    /// The owners of slots. Never held while the device is called.
    pub(super) fn board(&self) -> MutexGuard<'_, SlotTable> {
        // Consistent after every statement.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the board and notifies all waiters.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SlotTable) -> T) -> T {
        let mut board = self.board();
        let changed = change(&mut board);
        board.version += 1;
        drop(board);
        self.changed.notify_all();
        changed
    }

    /// Wakes all waiters although the ring has not changed.
    pub(super) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Waits until the board has changed since `version`, or until `most` has passed.
    pub(super) fn wait(&self, version: u64, most: std::time::Duration) {
        let board = self.board();
        drop(self.changed.wait_timeout_while(board, most, |board| board.version == version));
    }

    /// Waits until `done`.
    pub(super) fn wait_until(&self, done: impl Fn(&SlotTable) -> bool) {
        drop(self.changed.wait_while(self.board(), |board| !done(board)));
    }

    /// Returns true if this is a child of the process that opened the device.
    pub(super) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub(super) fn check_process(&self) -> Result<()> {
        if !self.is_forked() {
            return Ok(());
        }
        let why =
            format!("this process was forked after {} was opened; open a loader in the child", self.device.name());
        Err(Error::Closed { why })
    }

    /// A permanent slot to fill, or a temporary one if `overflow` allows it.
    pub(super) fn acquire(&self, overflow: impl FnOnce(&Ring) -> bool) -> Option<Arc<Slot>> {
        let mut board = self.board();
        let number = match board.ring.acquire() {
            Some(number) => number,
            None if overflow(&board.ring) => {
                self.counters.overflows.fetch_add(1, Ordering::Relaxed);
                return Some(board.temporary());
            }
            None => return None,
        };
        Some(Arc::clone(&board.slots[number]))
    }

    /// The slots in `state`.
    pub(super) fn all(&self, state: State) -> Vec<Arc<Slot>> {
        let board = self.board();
        board.ring.all(state).filter_map(|number| board.slots.get(number)).map(Arc::clone).collect()
    }

    /// Takes back `slot` from the consumer. Waits for nothing; any thread.
    pub(super) fn release(&self, slot: &Slot) {
        if self.is_forked() {
            // The device belongs to the parent, and its locks may be held by threads that do not exist here.
            return;
        }
        let mut body = slot.body();
        let how = self.fences(&mut body, false);
        let host = body.host.take();
        drop(body);
        self.change(|board| board.ring.release(slot.number, how));
        drop(host);
    }

    /// Retries the fences of a deferred slot; on the transfer thread, which may wait.
    pub(super) fn settle(&self, slot: &Slot) {
        let how = self.fences(&mut slot.body(), true);
        if how != Release::Deferred {
            self.change(|board| board.ring.release(slot.number, how));
        }
    }

    /// Records the fences that must be done before the slot is written again.
    fn fences(&self, body: &mut Body, may_wait: bool) -> Release {
        body.recorded = 0;
        let nobody = body.streams.is_empty() && !body.unordered;
        let how = match self.fence {
            _ if nobody => Ok(Release::Unread),
            Fence::Off => Ok(Release::Unread),
            Fence::Stream if !body.unordered => self.fence_streams(body),
            Fence::Stream | Fence::Context if self.device.fences_context() => self.fence_context(body),
            _ if may_wait => self.wait_for_all(body),
            _ => Ok(Release::Deferred),
        };
        let how = how.unwrap_or_else(|error| {
            tracing::warn!("{}; the memory of one batch is not used again", error.chain());
            Release::Failed
        });
        if how != Release::Deferred {
            body.streams.clear();
            body.unordered = false;
        }
        how
    }

    fn fence_streams(&self, body: &mut Body) -> Result<Release> {
        for at in 0..body.streams.len() {
            if at == body.fences.len() {
                body.fences.push(self.device.event()?);
            }
            if self.device.fence(&body.fences[at], body.streams[at])? == Fenced::Capturing {
                body.recorded = 0;
                return Ok(Release::Deferred);
            }
            body.recorded = at + 1;
        }
        Ok(Release::Fenced)
    }

    fn fence_context(&self, body: &mut Body) -> Result<Release> {
        // The streams first: while one of them is capturing a graph, the context must not be touched.
        if self.fence_streams(body)? == Release::Deferred {
            return Ok(Release::Deferred);
        }
        body.recorded = 0;
        if body.fences.is_empty() {
            body.fences.push(self.device.event()?);
        }
        if self.device.fence_context(&body.fences[0])? == Fenced::Capturing {
            return Ok(Release::Deferred);
        }
        body.recorded = 1;
        Ok(Release::Fenced)
    }

    fn wait_for_all(&self, body: &mut Body) -> Result<Release> {
        if self.fence_streams(body)? == Release::Deferred {
            return Ok(Release::Deferred);
        }
        body.recorded = 0;
        self.device.synchronize_all()?;
        Ok(Release::Unread)
    }

    /// Waits for the fences of a slot.
    fn finish(&self, body: &mut Body) -> Result<()> {
        body.fences[..body.recorded].iter().try_for_each(|fence| self.device.synchronize(fence))?;
        body.recorded = 0;
        Ok(())
    }

    /// Makes copies to the slot from now on wait for its fences.
    pub(super) fn wait_for_fences(&self, body: &mut Body) -> Result<()> {
        body.fences[..body.recorded].iter().try_for_each(|fence| self.device.wait(fence))?;
        body.recorded = 0;
        Ok(())
    }

    /// Returns true if the fences of the slot are done.
    pub(super) fn is_done(&self, body: &Body) -> Result<bool> {
        for fence in &body.fences[..body.recorded] {
            if !self.device.is_done(fence)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ensures that the slot, which the transfer thread owns, has an event and memory for `bytes`.
    pub(super) fn prepare(&self, body: &mut Body, bytes: usize) -> Result<()> {
        if body.ready.is_none() {
            body.ready = Some(self.device.event()?);
        }
        if bytes <= body.capacity {
            return Ok(());
        }
        if body.capacity > 0 {
            self.idle(body)?;
            // SAFETY: nobody has the slot, its readers are done, and so are the copies to it.
            unsafe { self.device.free(body.at, body.capacity) }
            body.capacity = 0;
        }
        let capacity = rounded(bytes);
        body.at = self.device.allocate(capacity)?;
        body.capacity = capacity;
        self.counters.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until nothing on the device uses the slot.
    fn idle(&self, body: &mut Body) -> Result<()> {
        self.finish(body)?;
        body.ready.as_ref().map_or(Ok(()), |ready| self.device.synchronize(ready))
    }

    /// Frees the memory and the events of a slot without an owner. If the end of its readers is unknown, and waiting
    /// for all work of the device fails too, they are lost.
    pub(super) fn give_up(&self, slot: &Slot, is_fenced: bool) {
        let mut body = slot.body();
        let idle = if is_fenced { self.idle(&mut body) } else { self.quiet(&body) };
        // Tried twice: a failure may be over.
        match idle.or_else(|_| self.quiet(&body)) {
            Ok(()) => {
                if body.capacity > 0 {
                    // SAFETY: nobody has the slot, and nothing on the device uses it.
                    unsafe { self.device.free(body.at, body.capacity) }
                }
                let Body { ready, fences, .. } = std::mem::take(&mut *body);
                fences.into_iter().chain(ready).for_each(|event| self.device.destroy(event));
            }
            Err(error) => {
                tracing::warn!("{}; {} bytes of its memory are lost", error.chain(), body.capacity);
                *body = Body::default();
            }
        }
        drop(body);
        self.change(|board| board.ring.give_up(slot.number));
    }

    /// Waits until the device has finished all queued work, on every stream.
    fn quiet(&self, body: &Body) -> Result<()> {
        if body.capacity == 0 { Ok(()) } else { self.device.synchronize_all() }
    }
}

impl SlotTable {
    /// A slot to fill in addition to the permanent ones, which is freed when nobody reads it any more.
    pub(super) fn temporary(&mut self) -> Arc<Slot> {
        let number = self.ring.overflow();
        if number == self.slots.len() {
            self.slots.push(Slot::new(number));
        }
        Arc::clone(&self.slots[number])
    }
}

impl Slot {
    fn new(number: usize) -> Arc<Self> {
        Arc::new(Self { number, body: Mutex::default() })
    }

    /// The device may be called while it is held. Taken before the board, never after.
    pub(super) fn body(&self) -> MutexGuard<'_, Body> {
        // Consistent after every statement.
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body {
    /// Records that `stream` reads the slot.
    pub(super) fn used_on(&mut self, stream: Stream) {
        if !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
    }

    /// Returns true if there are fences to wait for before the slot is written.
    pub(super) fn is_fenced(&self) -> bool {
        self.recorded > 0
    }

    /// Records that the slot is read on unknown streams.
    pub(super) fn used_anywhere(&mut self) {
        self.unordered = true;
    }
}

/// `bytes` rounded up to one of eight sizes between two powers of two.
fn rounded(bytes: usize) -> usize {
    let step = 1_usize << bytes.max(1 << 12).ilog2().saturating_sub(STEPS_LOG2);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_up_by_an_eighth_at_most() {
        assert_eq!([rounded(0), rounded(1), rounded(513), rounded(4096), rounded(4097)], [512, 512, 1024, 4096, 4608]);
        for bytes in (4096..1 << 26).step_by(99_991) {
            assert!(rounded(bytes) >= bytes && rounded(bytes) - bytes <= bytes / 8);
        }
        assert_eq!(rounded(usize::MAX), usize::MAX);
    }
}
