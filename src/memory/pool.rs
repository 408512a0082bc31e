//! One byte budget with first-come-first-served reservations, and the free list of batch buffers.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
#[cfg(feature = "convert")]
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
#[cfg(feature = "convert")]
use std::task::{Context, Poll, Wake, Waker};
#[cfg(feature = "convert")]
use std::thread;
#[cfg(feature = "convert")]
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::buffer::{HostAllocator, HostBuffer, Raw};
use super::caching_allocator;
use crate::error::{Error, Result};
use crate::mutex::{Mutex, MutexGuard};

/// Buffers are kept by size rounded up to this, so that batches of similar size share them.
const SIZE_CLASS: usize = 4096;

/// Freed blocks may exceed what is left of the budget by a sixteenth of it: a row group's memory is claimed before the blocks
/// it will reuse are taken.
const RECYCLED_PART: usize = 16;

/// Bytes of [`Spare::Little`].
const SPARE: usize = 8 << 20;

/// Returned buffers that a pool keeps in addition to its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spare {
    /// None.
    None,
    /// Up to 8 MiB, where the budget is claimed: a claim that is not a buffer yet needs none of its memory, and a new buffer
    /// would have to be cleared.
    Little,
    /// This many, of any size, and all in addition to the budget: for memory that is expensive to allocate. One of
    /// them serves for a buffer of half its size and more.
    Buffers(usize),
}

/// A budget beyond this counts as unlimited: no freed blocks are kept for it.
const UNLIMITED: usize = 1 << 40;

/// Bytes of freed blocks that may be kept while nothing of a pool is in use.
fn recyclable(budget: usize) -> usize {
    if budget > UNLIMITED { 0 } else { budget + budget / RECYCLED_PART }
}

/// Bytes of budget that a buffer of `len` bytes takes.
pub(crate) fn buffer_bytes(len: usize) -> usize {
    len.max(1).div_ceil(SIZE_CLASS).saturating_mul(SIZE_CLASS)
}

/// A byte budget. `used + kept <= budget` always, except for [`Reservation::grow`]; spare buffers come on top.
#[derive(Debug)]
pub struct Pool {
    allocator: Arc<dyn HostAllocator>,
    budget: usize,
    spare: Spare,
    /// Set if freed blocks may be kept in the rest of the budget.
    recycles: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    peak: usize,
    /// Recycled buffers by capacity, and their sum. They are evicted before anybody waits.
    kept: HashMap<usize, Vec<Raw>>,
    kept_bytes: usize,
    /// Buffers beyond the budget, the oldest first.
    spare: VecDeque<Raw>,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    bytes: usize,
    granted: oneshot::Sender<Reservation>,
}

impl State {
    fn charge(&mut self, bytes: usize) {
        self.used += bytes;
        self.peak = self.peak.max(self.used + self.kept_bytes);
    }

    /// Returns true if `bytes` more fit once kept buffers are evicted.
    fn fits(&self, bytes: usize, budget: usize) -> bool {
        self.used.checked_add(bytes).is_some_and(|sum| sum <= budget)
    }

    /// Keeps `raw` beyond the budget, with as many of the others as `most` allows. Returns those that it does not.
    fn spare(&mut self, raw: Raw, most: Spare) -> Vec<Raw> {
        self.spare.push_back(raw);
        let mut replaced = Vec::new();
        while match most {
            Spare::None => !self.spare.is_empty(),
            Spare::Little => self.spare.iter().map(Raw::capacity).sum::<usize>() > SPARE,
            Spare::Buffers(count) => self.spare.len() > count,
        } {
            replaced.extend(self.spare.pop_front());
        }
        replaced
    }

    /// Takes a recycled buffer of this capacity, or of up to `most`.
    fn take(&mut self, capacity: usize, most: usize) -> Option<Raw> {
        if let Some(raw) = self.kept.get_mut(&capacity).and_then(Vec::pop) {
            self.kept_bytes -= capacity;
            return Some(raw);
        }
        let fitting = self.spare.iter().enumerate().filter(|(_, raw)| (capacity..=most).contains(&raw.capacity()));
        // Of equal ones the latest, whose pages are more likely in a cache.
        let (at, _) = fitting.min_by_key(|(at, raw)| (raw.capacity(), Reverse(*at)))?;
        self.spare.remove(at)
    }

    /// Removes kept buffers until `bytes` more fit in addition to the rest. Some of them may be spare ones then; the caller
    /// frees the others outside the lock.
    fn evict(&mut self, bytes: usize, budget: usize, spare: Spare) -> Vec<Raw> {
        let mut evicted = Vec::new();
        while self.used + bytes + self.kept_bytes > budget && self.kept_bytes > 0 {
            let Some(class) = self.kept.iter().find(|(_, list)| !list.is_empty()).map(|(class, _)| *class) else {
                break;
            };
            if let Some(raw) = self.kept.get_mut(&class).and_then(Vec::pop) {
                self.kept_bytes -= raw.capacity();
                evicted.append(&mut self.spare(raw, spare));
            }
        }
        evicted
    }
}

impl Pool {
    /// A pool of `budget` bytes whose buffers come from `allocator`.
    pub fn new(allocator: Arc<dyn HostAllocator>, budget: usize) -> Arc<Self> {
        Self::keeping(Spare::None, true, allocator, budget)
    }

    /// As [`new`](Self::new), but keeps `spare` in addition.
    pub(crate) fn with_spare(spare: Spare, allocator: Arc<dyn HostAllocator>, budget: usize) -> Arc<Self> {
        Self::keeping(spare, true, allocator, budget)
    }

    /// As [`new`](Self::new), but without freed blocks beyond it: for memory that is kept, or not made of buffers.
    pub(crate) fn without_recycling(allocator: Arc<dyn HostAllocator>, budget: usize) -> Arc<Self> {
        Self::keeping(Spare::None, false, allocator, budget)
    }

    fn keeping(spare: Spare, recycles: bool, allocator: Arc<dyn HostAllocator>, budget: usize) -> Arc<Self> {
        if recycles {
            caching_allocator::begin(recyclable(budget));
        }
        Arc::new(Self { allocator, budget, spare, recycles, state: Mutex::default() })
    }

    /// The budget, in bytes.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes reserved now, free-listed buffers not counted.
    pub fn used(&self) -> usize {
        self.lock().used
    }

    /// Peak of the bytes held at once, free-listed buffers included.
    pub fn peak(&self) -> usize {
        self.lock().peak
    }

    /// Returns true if buffers of this pool are page-locked.
    pub fn is_pinned(&self) -> bool {
        self.allocator.is_pinned()
    }

    /// Waits until `bytes` are free, first come first served. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// [`Error::Limit`] if `bytes` exceeds the whole budget: it could never be granted.
    pub async fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation> {
        if bytes > self.budget {
            return Err(Error::limit("one item of the pipeline", bytes as u64, self.budget as u64, "memory_budget"));
        }
        let receiver = {
            let mut state = self.lock();
            if state.waiting.is_empty() && state.fits(bytes, self.budget) {
                let evicted = state.evict(bytes, self.budget, self.spare);
                self.charge(&mut state, bytes);
                drop(state);
                drop(evicted);
                return Ok(Reservation { pool: Arc::clone(self), bytes });
            }
            let (granted, receiver) = oneshot::channel();
            state.waiting.push_back(Waiter { bytes, granted });
            receiver
        };
        // A waiter that leaves the queue early must wake the next one: the guard does so on every way out.
        let _leaving = Leaving(self);
        receiver.await.map_err(|_| Error::Closed { why: "the memory pool is gone".to_owned() })
    }

    /// As [`reserve`](Self::reserve), for a thread that may block; `None` if they are not free within `patience`.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    #[cfg(feature = "convert")]
    pub(crate) fn reserve_blocking(self: &Arc<Self>, bytes: usize, patience: Duration) -> Result<Option<Reservation>> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let (started, mut waiting) = (Instant::now(), pin!(self.reserve(bytes)));
        loop {
            if let Poll::Ready(reserved) = waiting.as_mut().poll(&mut Context::from_waker(&waker)) {
                return reserved.map(Some);
            }
            match patience.checked_sub(started.elapsed()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => return Ok(None),
            }
        }
    }

    /// An empty reservation, to be resized.
    #[cfg(feature = "flight")]
    pub(crate) fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { pool: Arc::clone(self), bytes: 0 }
    }

    /// Reserves `bytes` if they are free now and nobody waits.
    pub fn try_reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let mut state = self.lock();
        if !state.waiting.is_empty() || !state.fits(bytes, self.budget) {
            return None;
        }
        let evicted = state.evict(bytes, self.budget, self.spare);
        self.charge(&mut state, bytes);
        drop(state);
        drop(evicted);
        Some(Reservation { pool: Arc::clone(self), bytes })
    }

    fn charge(&self, state: &mut State, bytes: usize) {
        if self.recycles {
            caching_allocator::reserve(bytes);
        }
        state.charge(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(self: &Arc<Self>, bytes: usize) {
        let mut granted = Vec::new();
        let mut evicted = Vec::new();
        {
            let mut state = self.lock();
            state.used -= bytes;
            if self.recycles {
                caching_allocator::release(bytes);
            }
            while let Some(waiter) = state.waiting.front() {
                let bytes = waiter.bytes;
                if waiter.granted.is_closed() {
                    state.waiting.pop_front();
                } else if state.fits(bytes, self.budget) {
                    evicted.append(&mut state.evict(bytes, self.budget, self.spare));
                    self.charge(&mut state, bytes);
                    granted.extend(state.waiting.pop_front());
                } else {
                    break;
                }
            }
        }
        drop(evicted);
        for waiter in granted {
            // The reservation of a waiter that left meanwhile comes back here, and dropping it wakes the next one.
            drop(waiter.granted.send(Reservation { pool: Arc::clone(self), bytes: waiter.bytes }));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Reservations hold the pool, so by now all of them are given back.
        if self.recycles {
            caching_allocator::end(recyclable(self.budget));
        }
    }
}

/// Wakes a waiting thread.
#[cfg(feature = "convert")]
struct Unpark(thread::Thread);

#[cfg(feature = "convert")]
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Wakes the next waiter when a wait ends, granted or abandoned.
struct Leaving<'a>(&'a Arc<Pool>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.release(0);
    }
}

/// A claim on bytes of a pool, given back on drop.
#[derive(Debug)]
pub struct Reservation {
    pool: Arc<Pool>,
    bytes: usize,
}

impl Reservation {
    /// Bytes claimed.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives back all but `bytes`; does nothing if fewer are claimed.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(surplus) = self.bytes.checked_sub(bytes).filter(|surplus| *surplus > 0) {
            self.bytes = bytes;
            self.pool.release(surplus);
        }
    }

    /// Raises the claim to `bytes` in total, at once and even over the budget: for sizes that only decoding reveals.
    /// The next reservation waits until the pool is back within its budget.
    pub fn grow(&mut self, bytes: usize) {
        if let Some(missing) = bytes.checked_sub(self.bytes) {
            let mut state = self.pool.lock();
            let evicted = state.evict(missing, self.pool.budget, self.pool.spare);
            self.pool.charge(&mut state, missing);
            drop(state);
            drop(evicted);
            self.bytes = bytes;
        }
    }

    /// Changes the claim to `bytes`, if any extra ones are free now and nobody waits. Returns whether it did.
    #[cfg(feature = "flight")]
    pub(crate) fn try_resize(&mut self, bytes: usize) -> bool {
        self.shrink_to(bytes);
        let missing = bytes - self.bytes;
        let Some(mut more) = (missing > 0).then(|| self.pool.try_reserve(missing)) else { return true };
        self.bytes += more.as_mut().map_or(0, |more| std::mem::take(&mut more.bytes));
        self.bytes == bytes
    }

    /// Splits `bytes` off as a reservation of their own; fewer if fewer are claimed.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { pool: Arc::clone(&self.pool), bytes }
    }

    /// Turns the reservation into a buffer of `len` initialised bytes, growing or shrinking to its capacity.
    ///
    /// The contents are zero, or those of an earlier buffer.
    ///
    /// # Errors
    /// [`Error::Limit`] if the allocator has no memory.
    pub fn allocate(self, len: usize) -> Result<HostBuffer> {
        self.allocate_in(len, len)
    }

    /// As [`allocate`](Self::allocate), with a capacity of at least `room` bytes.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub(crate) fn allocate_in(mut self, len: usize, room: usize) -> Result<HostBuffer> {
        let needed = buffer_bytes(len.max(room));
        let most = if matches!(self.pool.spare, Spare::Buffers(_)) { needed.saturating_mul(2) } else { needed };
        let kept = self.pool.lock().take(needed, most);
        let capacity = kept.as_ref().map_or(needed, Raw::capacity);
        self.grow(capacity);
        self.shrink_to(capacity);
        let raw = match kept {
            Some(raw) => raw,
            None => Raw::allocate(&self.pool.allocator, capacity)?,
        };
        let charge = Charge { pool: Arc::clone(&self.pool), bytes: AtomicUsize::new(self.bytes) };
        self.bytes = 0;
        Ok(HostBuffer::new(raw, len, charge))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pool.release(self.bytes);
        }
    }
}

/// A buffer's debt to its pool.
#[derive(Debug)]
pub(super) struct Charge {
    pool: Arc<Pool>,
    bytes: AtomicUsize,
}

impl Charge {
    pub(super) fn release(&self) {
        let bytes = self.bytes.swap(0, Ordering::AcqRel);
        if bytes > 0 {
            self.pool.release(bytes);
        }
    }

    /// Returns the bytes to the budget, and the memory to the free list if the budget has room for it there.
    pub(super) fn recycle(&self, raw: Raw) {
        let bytes = self.bytes.swap(0, Ordering::AcqRel);
        let may_be_kept = raw.may_be_kept();
        let unwanted = if may_be_kept {
            let mut state = self.pool.lock();
            let held = state.used - bytes + state.kept_bytes;
            let is_beyond = matches!(self.pool.spare, Spare::Buffers(_));
            if !is_beyond && state.waiting.is_empty() && held + raw.capacity() <= self.pool.budget {
                // Both at once: in between, the buffer would count twice. Nobody waits for the bytes.
                state.kept_bytes += raw.capacity();
                state.used -= bytes;
                if self.pool.recycles {
                    caching_allocator::release(bytes);
                }
                state.kept.entry(raw.capacity()).or_default().push(raw);
                return;
            }
            state.spare(raw, self.pool.spare)
        } else {
            vec![raw]
        };
        // The memory first: whoever gets the bytes may allocate at once.
        drop(unwanted);
        if bytes > 0 {
            self.pool.release(bytes);
        }
    }
}

#[cfg(test)]
mod schedules;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ALIGNMENT, SystemAllocator};

    fn pool(budget: usize) -> Arc<Pool> {
        Pool::new(Arc::new(SystemAllocator), budget)
    }

    #[tokio::test]
    async fn grants_in_order_and_never_over_budget() {
        let pool = pool(100 * SIZE_CLASS);
        let first = pool.reserve(80 * SIZE_CLASS).await.unwrap();
        let big = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.reserve(90 * SIZE_CLASS).await }
        });
        tokio::task::yield_now().await;
        assert!(pool.try_reserve(1).is_none(), "a later, smaller request must not overtake");
        drop(first);
        let big = big.await.unwrap().unwrap();
        assert_eq!(pool.used(), 90 * SIZE_CLASS);
        drop(big);
        assert_eq!((pool.used(), pool.peak()), (0, 90 * SIZE_CLASS));
        assert!(matches!(pool.reserve(101 * SIZE_CLASS).await, Err(Error::Limit { .. })));
    }

    #[cfg(feature = "convert")]
    #[test]
    fn a_thread_waits_until_there_is_room_or_its_patience_ends() {
        let pool = Pool::without_recycling(Arc::new(SystemAllocator), 10);
        let held = pool.reserve_blocking(7, Duration::ZERO).unwrap().unwrap();
        assert!(pool.reserve_blocking(4, Duration::from_millis(1)).unwrap().is_none());
        assert_eq!(pool.try_reserve(3).map(|left| left.bytes()), Some(3), "who gave up waits no more");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.reserve_blocking(4, Duration::from_secs(60)));
            while pool.lock().waiting.is_empty() {
                thread::yield_now();
            }
            drop(held);
            assert_eq!(waiting.join().unwrap().unwrap().map(|granted| granted.bytes()), Some(4));
        });
        assert_eq!(pool.used(), 0);
        assert!(matches!(pool.reserve_blocking(11, Duration::ZERO), Err(Error::Limit { .. })));
    }

    #[tokio::test]
    async fn a_cancelled_waiter_does_not_block_the_next() {
        let pool = pool(10);
        let held = pool.reserve(5).await.unwrap();
        let left = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.reserve(10).await }
        });
        tokio::task::yield_now().await;
        let next = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.reserve(5).await }
        });
        tokio::task::yield_now().await;
        left.abort();
        assert_eq!(next.await.unwrap().unwrap().bytes(), 5, "granted although nothing was released");
        drop(held);
    }

    #[tokio::test]
    async fn buffers_are_aligned_recycled_and_delivered() {
        let pool = pool(4 * SIZE_CLASS);
        let mut buffer = pool.reserve(100).await.unwrap().allocate(100).unwrap();
        buffer.fill(7);
        let address = buffer.as_ptr();
        assert_eq!((buffer.len(), address as usize % ALIGNMENT), (100, 0));
        drop(buffer);
        assert_eq!(pool.used(), 0);
        let again = pool.reserve(120).await.unwrap().allocate(120).unwrap();
        assert_eq!(again.as_ptr(), address);
        assert_eq!(pool.used(), SIZE_CLASS);
        again.deliver();
        assert_eq!(pool.used(), 0);
        drop(again);
        // Kept buffers make room for reservations.
        assert_eq!(pool.reserve(4 * SIZE_CLASS).await.unwrap().bytes(), 4 * SIZE_CLASS);
    }

    #[tokio::test]
    async fn a_buffer_that_comes_back_while_all_is_claimed_is_taken_for_the_next_one() {
        let pool = Pool::with_spare(Spare::Little, Arc::new(SystemAllocator), 2 * SIZE_CLASS);
        let buffer = pool.reserve(SIZE_CLASS).await.unwrap().allocate(SIZE_CLASS).unwrap();
        let address = buffer.as_ptr();
        buffer.deliver();
        let claims = [pool.reserve(SIZE_CLASS).await.unwrap(), pool.reserve(SIZE_CLASS).await.unwrap()];
        drop(buffer);
        assert_eq!((pool.used(), pool.peak()), (2 * SIZE_CLASS, 2 * SIZE_CLASS), "it is no part of the budget");
        let [first, second] = claims.map(|claim| claim.allocate(SIZE_CLASS).unwrap());
        assert_eq!(first.as_ptr(), address);
        assert_ne!(second.as_ptr(), address);
    }

    #[tokio::test]
    async fn a_kept_buffer_in_whose_place_a_reservation_comes_is_taken_for_the_next_one() {
        let pool = Pool::with_spare(Spare::Little, Arc::new(SystemAllocator), SIZE_CLASS);
        let buffer = pool.reserve(SIZE_CLASS).await.unwrap().allocate(SIZE_CLASS).unwrap();
        let address = buffer.as_ptr();
        drop(buffer);
        let claim = pool.reserve(SIZE_CLASS).await.unwrap();
        assert_eq!((pool.used(), pool.lock().kept_bytes), (SIZE_CLASS, 0));
        assert_eq!(claim.allocate(SIZE_CLASS).unwrap().as_ptr(), address);
    }

    #[tokio::test]
    async fn spare_buffers_are_few_bytes() {
        let big = SPARE / 2 + SIZE_CLASS;
        let pool = Pool::with_spare(Spare::Little, Arc::new(SystemAllocator), 2 * big);
        let buffers = [(); 2].map(|()| pool.try_reserve(big).unwrap().allocate(big).unwrap());
        buffers.iter().for_each(HostBuffer::deliver);
        let claims = [pool.try_reserve(big).unwrap(), pool.try_reserve(big).unwrap()];
        drop(buffers);
        assert_eq!(pool.lock().spare.len(), 1, "two are more than {SPARE} bytes");
        drop(claims);
    }

    #[test]
    fn expensive_buffers_are_kept_by_number_though_they_exceed_the_estimate_and_vary_in_size() {
        // The claims were estimated at one size class each.
        let pool = Pool::with_spare(Spare::Buffers(2), Arc::new(SystemAllocator), 2 * SIZE_CLASS);
        let deliver = |classes: [usize; 2]| {
            let buffers = classes.map(|classes| {
                let buffer = pool.try_reserve(SIZE_CLASS).unwrap().allocate(classes * SIZE_CLASS).unwrap();
                buffer.deliver();
                buffer
            });
            let mut addresses = buffers.each_ref().map(HostBuffer::as_ptr);
            addresses.sort_unstable();
            addresses
        };
        let first = deliver([100, 90]);
        for classes in [[90, 100], [90, 95], [50, 91], [51, 50], [99, 89]] {
            assert_eq!(deliver(classes), first, "{classes:?}");
        }
        assert_eq!(pool.used(), 0);
        // Less than half of a buffer is not worth it, and the oldest make room.
        deliver([10, 11]);
        assert_eq!(pool.lock().spare.iter().map(Raw::capacity).sum::<usize>(), 21 * SIZE_CLASS);
    }
}
