//! Batches of one length side by side, so that a receiver maps several at once.
//!
//! ```text
//!   Pool ─► SlabPool ─► Slab of 2 to 16 MiB │ batch │ batch │ free │ batch │ …    32 KiB to 2 MiB each
//!                └─► SharedAllocator         what has another length, or no place: a slab each
//! ```
//!
//! Mapping a memfd costs a receiver as much as copying 100 KiB, and each small page of it 0.3 us more; huge pages cost
//! next to nothing, but a small batch fills none. The receiver of one batch can read the others in its slab, so each
//! pool has its own slab_pool.

#![expect(unsafe_code, reason = "memory that is given back; the bound is stated")]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::HostAllocator;
use super::pages::{HUGE, page_size};
use super::pool::buffer_bytes;
use super::shared::{SharedAllocator, Slab};
use crate::error::Result;

/// Smallest allocation that shares a slab: smaller ones cost hardly more than the message that carries them.
const SMALLEST: usize = 32 << 10;

/// Minimum allocations per slab; the unused rest is less than an eighth.
const AT_LEAST: usize = 8;

/// Host memory from a [`SharedAllocator`] whose allocations of one length share slabs.
///
/// All shared slabs together never exceed the given bytes, whatever becomes of the allocations in them. Where that is
/// not enough, as while slabs drain that a receiver has left, and for other lengths, each allocation has a slab of its
/// own.
#[derive(Debug)]
pub struct SlabPool {
    shared: Arc<SharedAllocator>,
    /// Bytes of a block: an allocation and the rest of its last page.
    block: usize,
    /// Maximum slabs at once.
    most: usize,
    cuts: Mutex<Vec<PartialSlab>>,
    /// Held while a slab is made: others that need one wait, and find room in it.
    making: Mutex<()>,
}

/// A slab and its free blocks.
#[derive(Debug)]
struct PartialSlab {
    slab: Arc<Slab>,
    /// Free blocks, by number.
    free: Vec<usize>,
    /// Number of blocks that are not free.
    taken: usize,
}

impl SlabPool {
    /// An empty slab_pool, for allocations of `len` bytes in slabs of at most `held` bytes: see [`bytes`](Self::bytes).
    /// `None` if allocations of this length are too small or too large to share any.
    pub fn new(shared: Arc<SharedAllocator>, len: usize, held: usize) -> Option<Self> {
        let block = block(len)?;
        let most = held / slab_bytes(block);
        Some(Self { shared, block, most, cuts: Mutex::default(), making: Mutex::default() })
    }

    /// Bytes of slabs for as many allocations of `len` bytes as a pool of `budget` bytes hands out at once. Never fewer than `budget`.
    pub fn bytes(budget: usize, len: usize) -> usize {
        let Some(block) = block(len) else { return budget };
        let slab = slab_bytes(block);
        (budget / buffer_bytes(len)).div_ceil(slab / block).saturating_mul(slab).max(budget)
    }

    /// Takes a free block of an existing slab.
    fn take(&self) -> Option<NonNull<u8>> {
        let mut cuts = self.cuts();
        let cut = cuts.iter_mut().find(|cut| !cut.free.is_empty() && !cut.slab.is_retired())?;
        let number = cut.free.pop()?;
        cut.taken += 1;
        let base = cut.slab.base();
        // The block is within the slab, so the sum is a valid address.
        base.addr().checked_add(number * self.block).map(|address| base.with_addr(address))
    }

    /// Takes a block of a new slab, or returns `None` at the limit.
    fn add(&self) -> Result<Option<NonNull<u8>>> {
        if self.cuts().len() >= self.most {
            return Ok(None);
        }
        let Some(slab) = self.shared.add(slab_bytes(self.block), true)? else { return Ok(None) };
        let first = slab.base();
        // Blocks are taken from the beginning.
        let free = (1..slab.len() / self.block).rev().collect();
        self.cuts().push(PartialSlab { slab, free, taken: 1 });
        Ok(Some(first))
    }

    /// Finds the slab that holds `ptr`, and the block within it.
    fn find(&self, cuts: &[PartialSlab], ptr: NonNull<u8>) -> Option<(usize, usize)> {
        let at = |cut: &PartialSlab| {
            ptr.addr().get().checked_sub(cut.slab.base().addr().get()).filter(|at| *at < cut.slab.len())
        };
        cuts.iter().enumerate().find_map(|(number, cut)| Some((number, at(cut)? / self.block)))
    }

    fn cuts(&self) -> MutexGuard<'_, Vec<PartialSlab>> {
        // Nothing panics between two statements that belong together.
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a slab that an allocation of `len` takes; none if it gets a slab of its own.
fn block(len: usize) -> Option<usize> {
    // Whole pages: a receiver that writes to one gets a copy of it, which must hold nobody else's data.
    len.checked_next_multiple_of(page_size()).filter(|block| len >= SMALLEST && *block < HUGE)
}

/// The bytes of a slab for blocks of `block`.
fn slab_bytes(block: usize) -> usize {
    (AT_LEAST * block).next_multiple_of(HUGE)
}

impl HostAllocator for SlabPool {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        if block(len) != Some(self.block) {
            return self.shared.allocate(len);
        }
        if let Some(found) = self.take() {
            return Ok(found);
        }
        let making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have made one meanwhile.
        let found = match self.take() {
            Some(found) => Ok(Some(found)),
            None => self.add(),
        };
        drop(making);
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) => self.shared.allocate(len),
            Err(error) => {
                // A smaller one may still be available.
                tracing::debug!(error = %error.chain(), "no slab for several batches");
                self.shared.allocate(len)
            }
        }
    }

    unsafe fn free(&self, ptr: NonNull<u8>, len: usize) {
        let mut cuts = self.cuts();
        let Some((at, number)) = self.find(&cuts, ptr) else {
            drop(cuts);
            // SAFETY: the caller promises that `ptr` came from `allocate(len)`; it is in no slab of the slab_pool, so it is the inner
            // allocator's.
            return unsafe { self.shared.free(ptr, len) };
        };
        let cut = &mut cuts[at];
        cut.free.push(number);
        cut.taken -= 1;
        if cut.taken == 0 {
            let cut = cuts.swap_remove(at);
            drop(cuts);
            self.shared.remove(cut.slab.base());
        }
    }

    /// False for blocks of a retired slab, which is to become empty, and for allocations that found no place in a slab,
    /// so that the pool keeps no more than the slabs have.
    fn keeps(&self, ptr: NonNull<u8>, len: usize) -> bool {
        let cuts = self.cuts();
        match self.find(&cuts, ptr) {
            Some((at, _)) => !cuts[at].slab.is_retired(),
            None => block(len) != Some(self.block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, HostBuffer, Mapping, Pool};

    const LEN: usize = 100_000;

    /// A slab_pool for 40 pieces of `len` bytes, and a pool of as many on it.
    fn slab_pool(len: usize) -> (Arc<SharedAllocator>, Arc<SlabPool>, Arc<Pool>) {
        let shared = Arc::new(SharedAllocator::new());
        let budget = 40 * buffer_bytes(len);
        let slab_pool = Arc::new(SlabPool::new(Arc::clone(&shared), len, SlabPool::bytes(budget, len)).unwrap());
        let pool = Pool::new(Arc::clone(&slab_pool) as _, budget);
        (shared, slab_pool, pool)
    }

    fn buffer(pool: &Arc<Pool>, len: usize) -> HostBuffer {
        pool.try_reserve(len).unwrap().allocate(len).unwrap()
    }

    /// The slab that holds `buffer`.
    fn slab_of(shared: &SharedAllocator, buffer: &HostBuffer) -> u64 {
        shared.locate(buffer).unwrap().0.id()
    }

    #[test]
    fn a_pool_holds_what_was_foretold_and_not_more() {
        for (len, slabs) in
            [(SMALLEST, 1), (LEN, 2), (300 << 10, 4), (512 << 10, 5), (700_000, 5), ((2 << 20) - 5000, 5)]
        {
            let (shared, _, pool) = slab_pool(len);
            let mut buffers: Vec<_> = (0..40).map(|_| buffer(&pool, len)).collect();
            let held = shared.bytes_held();
            assert_eq!((held, shared.slabs_held()), (SlabPool::bytes(pool.budget(), len), slabs), "{len}");
            assert!(held - pool.budget() <= pool.budget() / AT_LEAST + slab_bytes(block(len).unwrap()));
            let mut places: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[0] + len <= two[1]), "{len}");
            // Delivered buffers are the consumer's, and the pool hands out more: each in a slab of its own, which is
            // not kept.
            buffers[..10].iter().for_each(HostBuffer::deliver);
            let more: Vec<_> = (0..10).map(|_| buffer(&pool, len)).collect();
            let room = slabs * (slab_bytes(block(len).unwrap()) / block(len).unwrap());
            assert_eq!(shared.slabs_held(), slabs + 50_usize.saturating_sub(room));
            drop(more);
            assert_eq!(shared.bytes_held(), held);
            buffers.drain(..39);
            assert_eq!(shared.bytes_held(), held, "kept for later");
            drop((buffers, pool));
            assert_eq!(shared.slabs_held(), 0);
        }
        let shared = Arc::new(SharedAllocator::new());
        for len in [SMALLEST - page_size(), HUGE, 3 * HUGE] {
            assert!(SlabPool::new(Arc::clone(&shared), len, 1 << 30).is_none());
            assert_eq!(SlabPool::bytes(12_345_678, len), 12_345_678);
        }
    }

    #[test]
    fn other_lengths_have_slabs_of_their_own() {
        let (shared, _, pool) = slab_pool(LEN);
        let one = buffer(&pool, LEN);
        let others = [1, LEN - page_size(), LEN + page_size()].map(|len| buffer(&pool, len));
        assert_eq!(shared.slabs_held(), 4);
        drop(others);
        assert_eq!(shared.slabs_held(), 4, "kept as in any pool");
        assert_eq!(slab_of(&shared, &one), slab_of(&shared, &buffer(&pool, LEN)));
    }

    #[test]
    fn threads_that_begin_together_make_no_more_slabs_than_they_need() {
        let (shared, _, pool) = slab_pool(LEN);
        let start = std::sync::Barrier::new(20);
        let buffers: Vec<HostBuffer> = std::thread::scope(|scope| {
            let begin = || {
                start.wait();
                buffer(&pool, LEN)
            };
            let threads: Vec<_> = (0..20).map(|_| scope.spawn(begin)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((buffers.len(), shared.slabs_held()), (20, 1));
    }

    #[test]
    fn after_receivers_that_left_slabs_drain_and_the_bound_holds() {
        let (shared, slab_pool, pool) = slab_pool(LEN);
        let held = SlabPool::bytes(pool.budget(), LEN);
        let mut ring: std::collections::VecDeque<_> = (0..30).map(|_| buffer(&pool, LEN)).collect();
        let (mut retired, mut most_alone) = (Vec::new(), 0);
        for step in 0..2000 {
            let last = ring.pop_front().unwrap();
            if step % 100 == 50 {
                shared.retire(&last);
                retired.push((step, slab_of(&shared, &last)));
            }
            drop(last);
            let next = buffer(&pool, LEN);
            let slab = slab_of(&shared, &next);
            // A buffer that the pool had kept before may come once more.
            assert!(retired.iter().all(|(since, old)| *old != slab || step - since < 40), "step {step}");
            ring.push_back(next);
            assert!(slab_pool.cuts().len() * slab_bytes(slab_pool.block) <= held);
            let alone =
                ring.iter().filter(|one| shared.locate(one).is_some_and(|(slab, _)| !slab.is_divided())).count();
            assert!(!(20..50).contains(&(step % 100)) || alone == 0, "{alone} alone in step {step}");
            most_alone = most_alone.max(alone);
        }
        assert!(retired.len() == 20 && most_alone > 0, "{most_alone}");
        drop((ring, pool));
        assert_eq!(shared.slabs_held(), 0);
    }

    #[test]
    fn pieces_of_one_slab_are_leased_side_by_side() {
        let (shared, _, pool) = slab_pool(65_536);
        let mut sent = [1, 2].map(|_| buffer(&pool, 65_536));
        sent[0].fill(1);
        sent[1].fill(2);
        let places = [0, 1].map(|at: usize| shared.locate(&sent[at]).unwrap());
        assert_eq!(places[0].0.id(), places[1].0.id());
        let slab = &places[0].0;
        let mapping = Arc::new(Mapping::open(&**slab, slab.len(), Access::CopyOnWrite, "peer").unwrap());
        let lease = |at: usize, len| mapping.lease(places[at].1, len, "peer", || ());
        let (mut first, mut second) = (lease(0, 65_536).unwrap(), lease(1, 65_536).unwrap());
        for at in [0, 1] {
            assert!(lease(at, 1).unwrap_err().to_string().contains("before it was released"));
        }
        first.fill(8);
        second.fill(9);
        drop(first);
        // The first buffer's memory is visible again as it was sent, the second's as it was written.
        let first = lease(0, 65_536).unwrap();
        assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 9));
        drop((first, second));
        assert!(lease(1, 65_536).unwrap().iter().all(|byte| *byte == 2));
        drop(lease(0, 1).unwrap());
    }
}
