//! The one transfer thread of a device: it takes batches from their source, copies each to a slot ahead of the
//! consumer, and releases host memory when the copies are done.
//!
//! ```text
//!   source ─► pull ─► pending ─► slot free or fenced? ─► copy stream: wait for the fences, copy the slab, convert, record ready ─► queue
//!                                                          host memory back when `ready` is done
//! ```
//!
//! Nothing is lost by an error: the batch that could not be copied comes next again. Whatever follows an error or the
//! end of an epoch is made when the consumer has taken that and asks for more; nothing is made before the consumer asks
//! for the first time.

#![expect(unsafe_code, reason = "copies between host and device; the bounds are stated at each use")]

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::address::Address;
use super::batch::{DeviceBatch, DeviceTensor, DeviceValue};
use super::decoding::in_column;
use super::lease::Lease;
use super::placement::{Part, Placement, Recipes, Work};
use super::ring::{Counts, State};
use super::slot::{Body, Core, Slot, SlotTable};
use super::spec::Fence;
use super::traits::{Device, Kind, refused};
use crate::error::{Error, Result};
use crate::memory::HostBuffer;
use crate::tensor::{Batch, Next, Value};

/// Interval at which the thread checks copies and streams that nobody announces.
const BUSY: Duration = Duration::from_millis(1);
/// How long it waits for a batch, or for a change, when there is nothing to check.
const IDLE: Duration = Duration::from_millis(20);
/// Maximum wait for the consumer to release a batch before the next check, after the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// The parameters of feeding a device.
#[derive(Debug, Clone)]
pub struct Feeding {
    /// Batches in the device's memory at once, at least 2.
    pub slots: usize,
    /// The condition for reusing their memory.
    pub fence: Fence,
    /// Set if more memory is taken when the consumer holds all slots.
    pub overflow: bool,
    /// Conversions of tensors on the device.
    pub recipes: Recipes,
}

/// The source of batches: returns the next one within a time, and its generation. After an error or an end it is not
/// called until the consumer has taken that.
pub type Pull = Box<dyn FnMut(Duration) -> (u64, Result<Next<Batch>>) + Send>;

/// Batches in each state, and the work done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Batches copied.
    pub batches: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Pieces of device memory allocated.
    pub allocations: u64,
    /// Number of times that there was no slot and more memory was taken.
    pub overflows: u64,
    /// Photos that the device refused to decode, so that the host did.
    pub refused: u64,
    /// Batches held by the consumer, and copies of their tensors.
    pub held: usize,
    /// Slots lost because a fence failed.
    pub quarantined: usize,
}

/// A batch, the end of an epoch, or an error, with its generation.
type Item = (u64, Result<Option<DeviceBatch>>);

struct Queue {
    items: Mutex<VecDeque<Item>>,
    filled: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Item>> {
        // Consistent after every statement.
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, generation: u64, item: Result<Option<DeviceBatch>>) {
        self.lock().push_back((generation, item));
        self.filled.notify_all();
    }
}

/// Batches on their way to a device, and the thread that transfers them.
pub struct Transfer {
    core: Arc<Core>,
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transfer(to {})", self.core.device.name())
    }
}

impl Transfer {
    /// Starts transferring the batches of `pull` to `device`.
    ///
    /// # Errors
    /// [`Error::Config`] for fewer than 2 slots; [`Error::Closed`] if no thread can be started.
    pub fn start(device: Arc<dyn Device>, feeding: Feeding, pull: Pull) -> Result<Self> {
        if feeding.slots < 2 {
            let problem = format!("{}; at least 2: one in use, one being filled", feeding.slots);
            return Err(Error::config("device_slots", problem));
        }
        let core = Core::new(device, feeding.slots, feeding.fence);
        let queue = Arc::new(Queue { items: Mutex::default(), filled: Condvar::new() });
        let thread = Thread {
            in_place: core.device.kind() == Kind::Host,
            core: Arc::clone(&core),
            queue: Arc::clone(&queue),
            feeding,
            pull: Some(pull),
            pending: None,
            flying: VecDeque::new(),
            stranded: Vec::new(),
        };
        let name = format!("bowstring-{}", core.device.name());
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || thread.run())
            .map_err(|error| Error::Closed { why: format!("no thread can be started: {error}") })?;
        Ok(Self { core, queue, thread: Some(thread) })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.core.device
    }

    /// The next batch, perhaps still in flight, within `wait`.
    ///
    /// # Errors
    /// The error of the source or of the device, once; [`Error::Closed`] after [`close`](Self::close), and in
    /// a forked child.
    pub fn next(&mut self, wait: Duration) -> Result<Next<DeviceBatch>> {
        self.core.check_process()?;
        let deadline = Instant::now() + wait;
        loop {
            let over = {
                let board = self.core.board();
                board.finished || board.closed
            };
            let next = self.queue.lock().pop_front();
            match next {
                Some((generation, item)) => {
                    // Unwanted batches are dropped here, outside of every lock.
                    if generation == self.core.board().generation {
                        return item.map(taken);
                    }
                }
                None if over => return Err(closed()),
                None => {
                    self.wake();
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Next::Pending);
                    }
                    let items = self.queue.lock();
                    drop(self.queue.filled.wait_timeout_while(items, left.min(IDLE), |items| items.is_empty()));
                }
            }
        }
    }

    /// Whatever follows an end, an error or a new position is made once it is requested.
    fn wake(&self) {
        let asleep = |board: &SlotTable| board.paused.is_some_and(|paused| paused <= board.generation);
        if asleep(&self.core.board()) {
            self.core.change(|board| board.paused = None);
        }
    }

    /// From now on only batches of `generation` are wanted, once requested.
    pub fn restart(&mut self, generation: u64) {
        if self.core.is_forked() {
            return;
        }
        self.core.change(|board| {
            board.generation = generation;
            board.paused = Some(generation);
        });
        let (wanted, stale) =
            std::mem::take(&mut *self.queue.lock()).into_iter().partition(|(of, _)| *of == generation);
        let stale: VecDeque<Item> = stale;
        let mut items = self.queue.lock();
        let later = std::mem::replace(&mut *items, wanted);
        items.extend(later);
        drop(items);
        drop(stale);
    }

    /// The reason that nothing comes, if the consumer holds all slots.
    pub fn blocked(&self) -> Option<String> {
        let board = self.core.board();
        let counts = board.ring.counts();
        let waits = board.starved && board.ring.is_all_held();
        waits.then(|| {
            format!(
                "a free slot of {}: {} batches are alive; raise device_slots or drop references",
                self.core.device.name(),
                counts.held
            )
        })
    }

    /// The work done so far.
    pub fn stats(&self) -> DeviceStats {
        let counts = self.core.board().ring.counts();
        let counters = &self.core.counters;
        DeviceStats {
            batches: counters.batches.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            allocations: counters.allocations.load(Ordering::Relaxed),
            overflows: counters.overflows.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            held: counts.held,
            quarantined: counts.quarantined,
        }
    }

    /// Stops. Batches held by the consumer stay valid: their memory is given back when they are dropped. That of all
    /// others is given back before this returns.
    pub fn close(&mut self) {
        close(&self.core, &self.queue, &mut self.thread);
    }
}

fn close(core: &Core, queue: &Queue, thread: &mut Option<JoinHandle<()>>) {
    if core.is_forked() {
        // The thread does not exist here, and it may have held any lock.
        drop(thread.take());
        return;
    }
    core.change(|board| board.closed = true);
    drop(std::mem::take(&mut *queue.lock()));
    // While somebody still holds batches, the thread waits for them, not this call.
    let kept = |counts: Counts| counts.held + counts.deferred > 0;
    core.wait_until(|board| board.finished || board.stopping && kept(board.ring.counts()));
    if core.board().finished
        && let Some(thread) = thread.take()
    {
        // It ends without a panic: those are caught inside.
        drop(thread.join());
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // A panic of the thread was caught there, so this returns.
        close(&self.core, &self.queue, &mut self.thread);
    }
}

fn taken(batch: Option<DeviceBatch>) -> Next<DeviceBatch> {
    if let Some(lease) = batch.as_ref().and_then(DeviceBatch::lease) {
        lease.hold();
    }
    batch.map_or(Next::End, Next::Item)
}

fn closed() -> Error {
    Error::Closed { why: "the loader was closed".to_owned() }
}

/// The thread's own side.
struct Thread {
    core: Arc<Core>,
    queue: Arc<Queue>,
    feeding: Feeding,
    pull: Option<Pull>,
    /// Set if slabs stay where they are: the host's memory is the device's.
    in_place: bool,
    /// A batch that is not on the device yet, with its generation.
    pending: Option<(u64, Batch)>,
    /// Slabs that copies may still read, in order of the copies.
    flying: VecDeque<(Arc<Slot>, Vec<Arc<HostBuffer>>)>,
    /// Slabs that copies which failed half way may still read.
    stranded: Vec<Arc<HostBuffer>>,
}

impl Thread {
    fn run(mut self) {
        let (core, queue) = (Arc::clone(&self.core), Arc::clone(&self.queue));
        let ended = crate::page::quiet(|| {
            while !self.core.board().closed {
                self.turn();
            }
        });
        if let Err(panic) = ended {
            // Reported once, and then the consumer sees a closed transfer.
            let generation = core.board().generation;
            let said = crate::page::said(&*panic).unwrap_or("no message");
            let why = format!("it panicked ({said}), which is a bug of bowstring");
            let error = refused(core.device.name(), "the transfer thread", why);
            queue.push(generation, Err(error));
        }
        if let Err(panic) = crate::page::quiet(|| self.stop()) {
            let said = crate::page::said(&*panic).unwrap_or("no message");
            tracing::error!("the transfer thread of {} panicked ({said}); its memory is lost", core.device.name());
        }
        core.change(|board| board.finished = true);
        queue.filled.notify_all();
    }

    /// One pass over everything there is to do.
    fn turn(&mut self) {
        let (version, paused) = {
            let board = self.core.board();
            (board.version, board.paused.is_some_and(|paused| paused >= board.generation))
        };
        let rest = if self.look_after() { BUSY } else { IDLE };
        if paused {
            return self.core.wait(version, rest);
        }
        if self.pending.is_none()
            && let Some(pull) = &mut self.pull
        {
            match pull(rest) {
                (generation, Ok(Next::Item(batch))) => self.pending = Some((generation, batch)),
                (generation, Ok(Next::End)) => return self.tell(generation, Ok(None)),
                (generation, Err(error)) => return self.tell(generation, Err(error)),
                (_, Ok(Next::Pending)) => return,
            }
        }
        let Some((generation, batch)) = self.pending.take() else { return };
        if generation < self.core.board().generation {
            return;
        }
        match self.bring(&batch) {
            Ok(Some(brought)) => {
                self.core.board().starved = false;
                self.queue.push(generation, Ok(Some(brought)));
            }
            Ok(None) => {
                self.core.board().starved = true;
                self.pending = Some((generation, batch));
                self.core.wait(version, rest);
            }
            Err(error) => {
                self.pending = Some((generation, batch));
                self.tell(generation, Err(error));
            }
        }
    }

    /// Queues an item that must be taken before there is more.
    fn tell(&self, generation: u64, item: Result<Option<DeviceBatch>>) {
        self.core.board().paused = Some(generation);
        self.queue.push(generation, item);
    }

    /// Gives back what is finished, and retries what was deferred. Returns whether to check again soon.
    fn look_after(&mut self) -> bool {
        while let Some((slot, _)) = self.flying.front() {
            let done = slot.body().ready.as_ref().map_or(Ok(true), |ready| self.core.device.is_done(ready));
            // A device that fails reports it at the next copy.
            if !done.unwrap_or(false) {
                break;
            }
            self.flying.pop_front();
        }
        // Deferred slots may require waiting: not while there are other slots.
        let mut left = false;
        if self.core.board().starved {
            self.core.all(State::Deferred).iter().for_each(|slot| self.core.settle(slot));
            left = !self.core.all(State::Deferred).is_empty();
        }
        for slot in [State::Free, State::Fenced].into_iter().flat_map(|state| self.core.all(state)) {
            if self.core.board().ring.is_temporary(slot.number) {
                let done = self.core.is_done(&slot.body()).unwrap_or(false);
                if done {
                    self.core.give_up(&slot, true);
                }
                left |= !done;
            }
        }
        left || !self.flying.is_empty()
    }

    /// Starts copying `batch` to a slot; `None` if no slot is free.
    fn bring(&mut self, batch: &Batch) -> Result<Option<DeviceBatch>> {
        // Copies read page-locked memory that is off the budget: no more of it than there are slots.
        if self.queue.lock().len() >= self.feeding.slots || self.flying.len() >= self.feeding.slots {
            return Ok(None);
        }
        let placement = Placement::new(batch, &self.feeding.recipes, self.in_place)?;
        if placement.tensors.is_empty() {
            return Ok(Some(delivered(batch, Vec::new())));
        }
        if self.core.board().ring.is_lost() {
            let why = "the fences of all batches failed, so that no memory may be used again; open another loader";
            return Err(refused(self.core.device.name(), "copying a batch", why));
        }
        let overflow = self.feeding.overflow && self.queue.lock().is_empty();
        let Some(slot) = self.core.acquire(|ring| overflow && ring.is_all_held()) else { return Ok(None) };
        let mut body = slot.body();
        let mut appended = false;
        if let Err(error) = self.fill(&mut body, &placement, &mut appended) {
            let as_it_was = body.is_fenced();
            drop(body);
            self.core.change(|board| board.ring.abandon(slot.number, as_it_was));
            if appended && self.drain().is_err() {
                // Copies that nobody waits for may still read it.
                self.stranded.extend(placement.slabs.into_iter().map(|(slab, _)| slab));
            }
            return Err(error);
        }
        if self.in_place {
            body.host = Some(batch.clone());
        }
        let base = body.at;
        drop(body);
        self.core.change(|board| board.ring.fill(slot.number));
        let lease = Arc::new(Lease::new(Arc::clone(&self.core), Arc::clone(&slot)));
        let tensor = |part: &Part| {
            let tensor = DeviceTensor {
                dtype: part.dtype,
                shape: part.shape.clone(),
                address: match &part.becomes {
                    Some((_, at)) => base + *at as Address,
                    None => placement.address(part.from, base, self.in_place),
                },
                bytes: part.bytes,
                lease: Arc::clone(&lease),
            };
            (Arc::clone(&part.name), tensor)
        };
        let tensors = placement.tensors.iter().map(tensor).collect();
        if !self.in_place {
            self.flying.push_back((slot, placement.slabs.into_iter().map(|(slab, _)| slab).collect()));
        }
        self.core.counters.batches.fetch_add(1, Ordering::Relaxed);
        Ok(Some(delivered(batch, tensors)))
    }

    /// Appends everything that fills a slot to the copy stream. `appended` is set if copies may be in flight, even
    /// after an error.
    fn fill(&self, body: &mut Body, placement: &Placement, appended: &mut bool) -> Result<()> {
        let device = &self.core.device;
        self.core.prepare(body, placement.total)?;
        self.core.wait_for_fences(body)?;
        if !self.in_place {
            for (slab, at) in placement.slabs.iter().filter(|(slab, _)| !slab.is_empty()) {
                *appended = true;
                // SAFETY: the slab lives until the event recorded below is done (`flying`, `stranded`, or this batch while it is
                // pending) and nobody writes to it; the slot has `placement.total` bytes, of which the slab's are a part, and belongs
                // to this thread.
                unsafe { device.copy(body.at + *at as Address, slab.as_ptr(), slab.len())? }
                self.core.counters.bytes.fetch_add(slab.len() as u64, Ordering::Relaxed);
            }
        }
        for part in placement.tensors.iter().filter(|part| part.bytes > 0) {
            let address = |spot| placement.address(spot, body.at, self.in_place);
            let Some((work, at)) = part.work(part.beside.map(address)) else { continue };
            *appended = true;
            let (from, to) = (address(part.from), body.at + at as Address);
            match work {
                // SAFETY: both sides and the bytes beside them lie in the slot (or in slabs that stay where they are),
                // where the placement put them without overlap, with the sizes of the conversion.
                Work::Convert(what) => unsafe { device.convert(&what, from, to)? },
                Work::Decode(what) => {
                    // SAFETY: as above; the rows on the host are those copied to `from`, and live as long.
                    let refused = unsafe { device.decode(&what, placement.on_host(part.from), from, to) };
                    let refused = refused.map_err(|error| in_column(error, &part.name))?;
                    self.core.counters.refused.fetch_add(refused, Ordering::Relaxed);
                }
            }
        }
        body.ready.as_ref().map_or(Ok(()), |ready| device.record(ready))
    }

    /// Waits until the copy stream is empty; tried twice.
    fn drain(&self) -> Result<()> {
        self.core.device.drain().or_else(|_| self.core.device.drain())
    }

    /// Gives everything back that has no owner, then waits for the consumer to release the rest.
    fn stop(&mut self) {
        drop(std::mem::take(&mut *self.queue.lock()));
        if let Err(error) = self.drain() {
            tracing::warn!("{}; host memory that copies may still read is lost", error.chain());
            // Slabs come from pools that would hand them out again.
            self.flying.drain(..).for_each(std::mem::forget);
            self.stranded.drain(..).for_each(std::mem::forget);
            std::mem::forget(self.pending.take());
        }
        self.flying.clear();
        self.stranded.clear();
        self.pending = None;
        self.pull = None;
        loop {
            let version = self.core.board().version;
            self.core.all(State::Deferred).iter().for_each(|slot| self.core.settle(slot));
            for state in [State::Free, State::Fenced, State::Quarantined] {
                for slot in self.core.all(state) {
                    self.core.give_up(&slot, state != State::Quarantined);
                }
            }
            let (counts, now) = {
                let mut board = self.core.board();
                board.stopping = true;
                (board.ring.counts(), board.version)
            };
            if counts == Counts::default() {
                return;
            }
            self.core.announce();
            if now == version {
                self.core.wait(version, if counts.deferred > 0 { BUSY } else { PATIENCE });
            }
        }
    }
}

/// `batch` with these tensors, and their names, in place of its own.
fn delivered(batch: &Batch, tensors: Vec<(Arc<str>, DeviceTensor)>) -> DeviceBatch {
    let mut tensors = tensors.into_iter();
    let columns = batch.columns().iter().filter_map(|(name, value)| match value {
        Value::Tensor(_) => tensors.next().map(|(name, tensor)| (name, DeviceValue::Tensor(tensor))),
        Value::Arrow(array) => Some((Arc::clone(name), DeviceValue::Arrow(Arc::clone(array)))),
    });
    DeviceBatch { epoch: batch.epoch, step: batch.step, rows: batch.rows, columns: columns.collect() }
}
