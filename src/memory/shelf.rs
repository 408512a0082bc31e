//! Small allocations of one pool side by side, so that a receiver maps several at once.
//!
//! ```text
//!   Pool ─► Shelf ─► Slab of 2 to 16 MiB │ batch │ batch │ free │ batch │ …    32 KiB to 2 MiB each
//!                └─► SharedAllocator         smaller and larger ones: a slab each
//! ```
//!
//! Mapping a memfd costs a receiver as much as copying 100 KiB, and each small page of it 0.3 us more; huge pages cost next to nothing,
//! but a small batch fills none. Who receives one batch of a slab can read the others in it: that is why each pool has its own shelf.

#![expect(unsafe_code, reason = "memory that is given back; the bound is stated")]

use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::HostAllocator;
use super::pages::{HUGE, page_size};
use super::shared::{SharedAllocator, Slab};
use crate::error::Result;

/// Smallest allocation that shares a slab: smaller ones hardly cost more than the message that they come with.
const SMALLEST: usize = 32 << 10;

/// Allocations that a slab has room for at least: what is left over of it is less than an eighth.
const AT_LEAST: usize = 8;

/// While more than this part of all slabs and one slab more is free, but nowhere in one piece, there are no further slabs.
const WASTE: usize = 8;

/// Host memory from a [`SharedAllocator`] of which small pieces share slabs.
///
/// Besides what was asked for it holds a slab that is not full, and less than an eighth more where all pieces have one length (see
/// [`bytes`](Self::bytes)). Where lengths differ, a piece that fits nowhere has a slab of its own while an eighth of all slabs and a
/// slab more is free.
#[derive(Debug)]
pub struct Shelf {
    shared: Arc<SharedAllocator>,
    cuts: Mutex<Vec<Cut>>,
}

/// A slab and what is free of it.
#[derive(Debug)]
struct Cut {
    slab: Arc<Slab>,
    gaps: Gaps,
}

impl Cut {
    /// A slab whose first `len` bytes are taken.
    fn new(slab: Arc<Slab>, len: usize) -> Self {
        Self { gaps: Gaps::new(len..slab.len()), slab }
    }

    fn take(&mut self, len: usize) -> Option<NonNull<u8>> {
        if self.slab.is_retired() {
            return None;
        }
        let base = self.slab.base();
        let at = self.gaps.take(len)?;
        // It is in the slab, so the address is one.
        base.addr().checked_add(at).map(|address| base.with_addr(address))
    }

    /// Where `address` is in the slab.
    fn find(&self, address: NonZero<usize>) -> Option<usize> {
        address.get().checked_sub(self.slab.base().addr().get()).filter(|at| *at < self.slab.len())
    }
}

impl Shelf {
    /// A shelf with nothing on it.
    pub fn new(shared: Arc<SharedAllocator>) -> Self {
        Self { shared, cuts: Mutex::default() }
    }

    /// Bytes of slabs for `budget` bytes in pieces of `len`: those that a pool of this budget holds at most.
    pub fn bytes(budget: usize, len: usize) -> usize {
        let Some(block) = block(len) else { return budget };
        let slab = slab_bytes(block);
        (budget / block).div_ceil(slab / block).saturating_mul(slab).max(budget)
    }

    fn cuts(&self) -> MutexGuard<'_, Vec<Cut>> {
        // Every statement leaves them whole.
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for `block` bytes in a slab that is there.
    fn take(&self, block: usize) -> Place {
        let mut cuts = self.cuts();
        if let Some(found) = cuts.iter_mut().find_map(|cut| cut.take(block)) {
            return Place::Found(found);
        }
        let living = cuts.iter().filter(|cut| !cut.slab.is_retired());
        let (free, all) = living.fold((0, 0), |(free, all), cut| (free + cut.gaps.bytes(), all + cut.slab.len()));
        if free < slab_bytes(block) + all / WASTE { Place::InNewSlab } else { Place::Alone }
    }
}

/// Where an allocation goes.
enum Place {
    Found(NonNull<u8>),
    InNewSlab,
    Alone,
}

/// The bytes that an allocation of `len` takes of a slab; none if it is to have a slab of its own.
fn block(len: usize) -> Option<usize> {
    // Whole pages: a receiver that writes to one gets a copy of it, which must be nobody else's.
    len.checked_next_multiple_of(page_size()).filter(|block| (SMALLEST..HUGE).contains(block))
}

/// The bytes of a slab for blocks of `block`.
fn slab_bytes(block: usize) -> usize {
    (AT_LEAST * block).next_multiple_of(HUGE)
}

impl HostAllocator for Shelf {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        let Some(block) = block(len) else { return self.shared.allocate(len) };
        match self.take(block) {
            Place::Found(found) => return Ok(found),
            Place::Alone => return self.shared.allocate(len),
            Place::InNewSlab => {}
        }
        // What another thread adds meanwhile is there for the next allocations.
        let Some(slab) = self.shared.add(slab_bytes(block), true)? else { return self.shared.allocate(len) };
        let first = slab.base();
        self.cuts().push(Cut::new(slab, block));
        Ok(first)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, len: usize) {
        let mut cuts = self.cuts();
        let found = cuts.iter().enumerate().find_map(|(number, cut)| Some((number, cut.find(ptr.addr())?)));
        let (Some((number, at)), Some(block)) = (found, block(len)) else {
            drop(cuts);
            // SAFETY: the caller promises that `ptr` came from `allocate(len)`; it is in no slab of the shelf, so it is the inner
            // allocator's.
            return unsafe { self.shared.free(ptr, len) };
        };
        let cut = &mut cuts[number];
        cut.gaps.give(at..at + block);
        if cut.gaps.bytes() == cut.slab.len() {
            // Slabs are filled in the order in which they came.
            let cut = cuts.remove(number);
            drop(cuts);
            self.shared.remove(&cut.slab);
        }
    }
}

/// What is free of a range of bytes: in order, and no two parts touch.
#[derive(Debug)]
struct Gaps(Vec<Range<usize>>);

impl Gaps {
    /// One gap.
    fn new(gap: Range<usize>) -> Self {
        Self(std::iter::once(gap).collect())
    }

    /// Free bytes.
    fn bytes(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// Takes `len` bytes, the first that are free.
    fn take(&mut self, len: usize) -> Option<usize> {
        let at = self.0.iter().position(|gap| gap.len() >= len)?;
        let gap = &mut self.0[at];
        let start = gap.start;
        gap.start += len;
        if gap.start == gap.end {
            self.0.remove(at);
        }
        Some(start)
    }

    /// Gives back what was taken.
    fn give(&mut self, mut taken: Range<usize>) {
        let mut at = self.0.partition_point(|gap| gap.start < taken.start);
        if self.0.get(at).is_some_and(|next| next.start == taken.end) {
            taken.end = self.0.remove(at).end;
        }
        if let Some(before) = at.checked_sub(1).filter(|before| self.0[*before].end == taken.start) {
            taken.start = self.0.remove(before).start;
            at = before;
        }
        self.0.insert(at, taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, HostBuffer, Mapping, Pool};

    fn shelf() -> (Arc<SharedAllocator>, Arc<Shelf>) {
        let shared = Arc::new(SharedAllocator::new());
        (Arc::clone(&shared), Arc::new(Shelf::new(shared)))
    }

    /// Pieces that are freed when they are dropped, without a pool that keeps them.
    struct Piece<'a>(&'a Shelf, NonNull<u8>, usize);

    impl<'a> Piece<'a> {
        fn new(shelf: &'a Shelf, len: usize) -> Self {
            Self(shelf, shelf.allocate(len).unwrap(), len)
        }
    }

    impl Drop for Piece<'_> {
        fn drop(&mut self) {
            // SAFETY: allocated with this length by this shelf, freed once, and never referred to.
            unsafe { self.0.free(self.1, self.2) }
        }
    }

    #[test]
    fn small_pieces_share_slabs_and_others_have_their_own() {
        let (shared, shelf) = shelf();
        let (small, half) = (SMALLEST, 512 << 10);
        let pieces: Vec<_> = (0..64).map(|_| Piece::new(&shelf, small)).collect();
        assert_eq!(shared.slabs_held(), 1, "64 of 32 KiB fill one of 2 MiB");
        let more: Vec<_> = (0..9).map(|_| Piece::new(&shelf, half)).collect();
        assert_eq!(shared.slabs_held(), 3, "8 of 512 KiB fill one of 4 MiB");
        let alone = [Piece::new(&shelf, small / 2), Piece::new(&shelf, HUGE), Piece::new(&shelf, 3 * HUGE + 1)];
        assert_eq!(shared.slabs_held(), 6);
        drop((pieces, more, alone));
        assert_eq!((shared.slabs_held(), shelf.cuts().len()), (0, 0));
    }

    #[test]
    fn gaps_are_found_again_and_grow_together() {
        let mut gaps = Gaps::new(0..100);
        let taken: Vec<usize> = (0..10).map(|_| gaps.take(10).unwrap()).collect();
        assert_eq!((taken, gaps.take(1)), ((0..100).step_by(10).collect(), None));
        for at in [20, 60, 40, 50, 0, 30] {
            gaps.give(at..at + 10);
        }
        assert_eq!(gaps.0, [0..10, 20..70]);
        assert_eq!((gaps.take(11), gaps.take(10), gaps.bytes()), (Some(20), Some(0), 39));
        gaps.give(0..10);
        gaps.give(20..31);
        for at in [10, 70, 90, 80] {
            gaps.give(at..at + 10);
        }
        assert_eq!(gaps.0, Gaps::new(0..100).0);
    }

    #[test]
    fn pieces_of_many_lengths_do_not_overlap_and_hold_little_more_than_they_have() {
        let (shared, shelf) = shelf();
        let mut state = 0x5eed_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut pieces = std::collections::VecDeque::new();
        let (mut most, mut slab, mut worst) = (0, 0, 0.0_f64);
        for step in 0..20_000 {
            // As batches come and go: mostly in order, with lengths that wander.
            let len = (40 << 10) + next((100 << 10) + step * 20);
            pieces.push_back(Piece::new(&shelf, len));
            while pieces.len() > 64 {
                let at = next(8);
                pieces.remove(at);
            }
            most = most.max(pieces.iter().map(|piece| piece.2).sum());
            slab = slab.max(slab_bytes(block(len).unwrap()));
            if step % 64 == 0 {
                let mut ranges: Vec<_> = pieces.iter().map(|piece| (piece.1.addr().get(), piece.2)).collect();
                ranges.sort_unstable();
                assert!(ranges.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "step {step}");
                worst = worst.max(shared.bytes_held().saturating_sub(2 * slab) as f64 / most as f64);
            }
        }
        assert!(worst < 1.15, "besides two slabs {worst} times the most that was asked for at once");
        drop(pieces);
        assert_eq!((shared.slabs_held(), shelf.cuts().len()), (0, 0));
    }

    #[tokio::test]
    async fn a_pool_holds_what_was_foretold() {
        for len in [SMALLEST, 100_000, 300 << 10, 512 << 10, 700_000, HUGE - 4096, HUGE, 5000] {
            let (shared, shelf) = shelf();
            let budget = 40 * len.next_multiple_of(4096);
            let pool = Pool::new(Arc::<Shelf>::clone(&shelf), budget);
            let mut buffers: Vec<HostBuffer> = Vec::new();
            while let Some(claim) = pool.try_reserve(len) {
                buffers.push(claim.allocate(len).unwrap());
            }
            assert_eq!(buffers.len(), 40);
            let held: usize = shared.bytes_held();
            assert_eq!(held, Shelf::bytes(budget, len), "{len}");
            assert!(held - budget <= budget / 8 + slab_bytes(len));
        }
    }

    #[tokio::test]
    async fn after_a_receiver_that_left_nothing_is_added_to_its_slab() {
        let (shared, shelf) = shelf();
        let pool = Pool::new(Arc::<Shelf>::clone(&shelf), 8 << 20);
        let buffer = || pool.try_reserve(100_000).unwrap().allocate(100_000).unwrap();
        let (one, other) = (buffer(), buffer());
        let (slab, _) = shared.locate(&one).unwrap();
        let address = other.as_ptr();
        shared.retire(&other);
        drop(other);
        let next = buffer();
        assert_ne!((next.as_ptr(), shared.locate(&next).unwrap().0.id()), (address, slab.id()));
        drop((one, slab));
        assert_eq!(shared.locate(&buffer()).unwrap().0.id(), 1, "the pool kept what was released");
        drop((next, pool));
        assert_eq!(shared.slabs_held(), 0);
    }

    #[tokio::test]
    async fn pieces_of_one_slab_are_leased_side_by_side() {
        let (shared, shelf) = shelf();
        let pool = Pool::new(shelf, 8 << 20);
        let mut sent = [1, 2].map(|_| pool.try_reserve(65_536).unwrap().allocate(65_536).unwrap());
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
        // The memory of the first is seen again as it was sent, that of the second as it was written.
        let first = lease(0, 65_536).unwrap();
        assert!(first.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 9));
        drop((first, second));
        assert!(lease(1, 65_536).unwrap().iter().all(|byte| *byte == 2));
        drop(lease(0, 1).unwrap());
    }
}
