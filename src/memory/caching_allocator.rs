//! A global allocator that keeps large blocks for the next row group instead of giving them back to the kernel.
//!
//! Column chunks and decoded columns are large, short-lived and written once. To map and unmap each of them costs more, in
//! page faults, than decoding. This allocator keeps freed blocks of [`SMALLEST`] bytes or more, by size class, as long as
//! they and what pools hold are within the pools' budgets plus a sixteenth; others go [back](super::fresh). Small blocks
//! go to the system.
//!
//! Row groups are seldom equally long. Where there is no kept block of a class, one of a class nearby is made longer or
//! shorter: most of its pages stay, and those are what is expensive.
//!
//! What pools hold is at most what they have reserved, and at most all blocks that are in use; the smaller of the two
//! counts. Reservations are for the worst case, and blocks in use may be those of others.

#![expect(unsafe_code, reason = "a global allocator with intrusive free lists; the bounds are stated at each use")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::fresh;

/// Smallest block kept: below it, the system keeps freed blocks itself.
const SMALLEST: usize = 1 << SMALLEST_LOG2;
const SMALLEST_LOG2: u32 = 15;
/// Classes per doubling, as a power of two: rounding up wastes at most an eighth.
const STEPS_LOG2: u32 = 3;
/// Classes up to 2 GiB; larger blocks go to the system.
const CLASSES: usize = 16 << STEPS_LOG2;
/// Classes around one whose blocks are made to be of it: up to one and a half times as long, or two thirds.
const NEAR: usize = 4;
/// Alignment of every kept block, as for Arrow's buffers; blocks that need more go to the system.
const ALIGN: usize = 128;

/// Attempts to lock the free lists before doing without them; they are held for tens of nanoseconds.
const PATIENCE: usize = 1000;

/// What all pools together may hold, and a part of it. Zero until there is a pool.
static BUDGETS: AtomicIsize = AtomicIsize::new(0);
/// What pools have reserved.
static RESERVED: AtomicIsize = AtomicIsize::new(0);
/// Bytes of all blocks of a class that are in use, whether a pool knows of them or not, and of pools' buffers
/// [elsewhere](Elsewhere).
static IN_USE: AtomicIsize = AtomicIsize::new(0);
static FREE: Mutex<Free> = Mutex::new(Free { heads: [0; CLASSES], bytes: 0 });

/// Addresses of the first free block of each class, 0 for none. The first word of a free block is the address of the next.
struct Free {
    heads: [usize; CLASSES],
    bytes: usize,
}

/// The system's allocator with a cache of large blocks. The binary and the Python extension use it; a Rust program may
/// do the same.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;
/// # fn main() {
/// drop(vec![1_u8; 8 << 20]);
/// assert!(vec![0_u8; 8 << 20].iter().all(|byte| *byte == 0), "kept blocks are cleared where zeros are asked for");
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CachingAllocator;

/// A pool begins that holds at most `bytes`. Has no effect unless [`CachingAllocator`] is the global allocator.
pub(super) fn begin(bytes: usize) {
    BUDGETS.fetch_add(bytes as isize, Relaxed);
}

/// The pool ends; blocks kept beyond the limit go back to the system.
pub(super) fn end(bytes: usize) {
    BUDGETS.fetch_sub(bytes as isize, Relaxed);
    trim();
}

/// A pool has reserved `bytes`. Blocks kept beyond the limit stay until fresh memory is needed: most of what a pool
/// hands out is soon made of kept blocks, and until then nothing has grown.
pub(super) fn reserve(bytes: usize) {
    RESERVED.fetch_add(bytes as isize, Relaxed);
}

/// A pool has `bytes` back.
pub(super) fn release(bytes: usize) {
    RESERVED.fetch_sub(bytes as isize, Relaxed);
}

/// A buffer of a pool in memory that is not this allocator's, such as a device's or that of a shared slab.
#[derive(Debug)]
pub(super) struct Elsewhere(usize);

impl Elsewhere {
    pub(super) fn new(bytes: usize) -> Self {
        IN_USE.fetch_add(bytes as isize, Relaxed);
        Self(bytes)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0 as isize, Relaxed);
    }
}

/// Bytes that may be kept.
fn limit() -> usize {
    let held = RESERVED.load(Relaxed).min(IN_USE.load(Relaxed));
    (BUDGETS.load(Relaxed) - held).max(0) as usize
}

/// Gives kept blocks back to the system until the rest is within the limit.
fn trim() {
    let limit = limit();
    while let Some((block, layout)) = surplus(limit) {
        // SAFETY: the block was made with its class's layout, and is no longer listed.
        unsafe { fresh::free(block, layout) }
    }
}

/// Fresh memory for a block of a class, when none is kept.
///
/// # Safety
/// `whole` is the layout of a class.
unsafe fn make(whole: Layout, zeroed: bool) -> *mut u8 {
    trim();
    // SAFETY: classes have sizes above 0 and one alignment, which is no larger than `allocate` allows.
    unsafe { fresh::allocate(whole, zeroed) }
}

/// Takes a kept block, large ones first, while more than `limit` bytes are kept.
fn surplus(limit: usize) -> Option<(*mut u8, Layout)> {
    let number = {
        let free = lock()?;
        if free.bytes <= limit {
            return None;
        }
        free.heads.iter().rposition(|head| *head != 0)?
    };
    let layout = layout_of(number)?;
    // Another thread may have taken the last one meanwhile: then there is less to give back.
    take(number, layout.size()).map(|block| (block, layout))
}

/// The layout of the blocks of class `number`.
fn layout_of(number: usize) -> Option<Layout> {
    let log2 = SMALLEST_LOG2 + (number >> STEPS_LOG2) as u32;
    let part = (1 << STEPS_LOG2) | (number & ((1 << STEPS_LOG2) - 1));
    Layout::from_size_align(part << (log2 - STEPS_LOG2), ALIGN).ok()
}

/// The class of a block, and the layout of every block of the class; `None` for blocks that are not kept.
fn class(layout: Layout) -> Option<(usize, Layout)> {
    let size = layout.size();
    if size < SMALLEST || layout.align() > ALIGN {
        return None;
    }
    // Round up to the next of the steps between two powers of two.
    let step = 1_usize << (size.ilog2() - STEPS_LOG2);
    let rounded = size.checked_next_multiple_of(step)?;
    let log2 = rounded.ilog2();
    let number =
        ((log2 - SMALLEST_LOG2) as usize) << STEPS_LOG2 | (rounded >> (log2 - STEPS_LOG2)) & ((1 << STEPS_LOG2) - 1);
    let layout = Layout::from_size_align(rounded, ALIGN).ok()?;
    (number < CLASSES).then_some((number, layout))
}

/// Locks the free lists, unless another thread holds them for longer than a moment. In a child forked while another
/// thread held them, that may be for ever, so nobody waits: without the lists, memory comes from the system and goes
/// back there.
fn lock() -> Option<MutexGuard<'static, Free>> {
    for _ in 0..PATIENCE {
        match FREE.try_lock() {
            Ok(free) => return Some(free),
            // Consistent after every statement, and nothing here panics.
            Err(TryLockError::Poisoned(free)) => return Some(free.into_inner()),
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}

impl Free {
    /// A kept block of class `number`, whose blocks have `size` bytes.
    fn take(&mut self, number: usize, size: usize) -> Option<*mut u8> {
        let head = self.heads.get_mut(number)?;
        let block = std::ptr::with_exposed_provenance_mut::<usize>(*head);
        if block.is_null() {
            return None;
        }
        // SAFETY: a listed block is free, at least `SMALLEST` bytes long, aligned to `ALIGN`, and its first word was written by
        // `put`; the lock is held, since there is `&mut self`.
        *head = unsafe { block.read() };
        self.bytes -= size;
        Some(block.cast())
    }

    /// A kept block of a class near `number` whose blocks are mapped, and its layout.
    fn take_near(&mut self, number: usize) -> Option<(*mut u8, Layout)> {
        (1..=NEAR).flat_map(|far| [Some(number + far), number.checked_sub(far)]).flatten().find_map(|near| {
            let layout = layout_of(near).filter(|layout| fresh::is_mapped(layout.size()))?;
            self.take(near, layout.size()).map(|block| (block, layout))
        })
    }
}

/// A kept block of the class, if there is one and the lists are free.
fn take(number: usize, size: usize) -> Option<*mut u8> {
    lock()?.take(number, size)
}

/// Returns true if there is a kept block of the class.
fn is_kept(number: usize) -> bool {
    lock().is_some_and(|free| free.heads.get(number).is_some_and(|head| *head != 0))
}

/// As [`take`], or else a block of a class nearby that is made to be of this one.
fn find(number: usize, size: usize) -> Option<*mut u8> {
    let (block, layout) = {
        let mut free = lock()?;
        if let Some(block) = free.take(number, size) {
            return Some(block);
        }
        if !fresh::is_mapped(size) {
            return None;
        }
        free.take_near(number)?
    };
    // SAFETY: the block was made with its class's layout, and is no longer listed: nobody else has its address.
    unsafe {
        let resized = fresh::resize(block, layout.size(), size);
        if resized.is_none() {
            fresh::free(block, layout);
        }
        resized
    }
}

/// Keeps `block`; returns false if that exceeds the limit, or the lists are locked.
///
/// # Safety
/// `block` is a block of class `class` from [`fresh`], of `size` bytes, that nothing refers to any more.
unsafe fn put(block: *mut u8, class: usize, size: usize) -> bool {
    let Some(mut free) = lock() else { return false };
    if free.bytes + size > limit() {
        return false;
    }
    // SAFETY: the block is ours by the caller's promise, long enough for a word and aligned to `ALIGN`.
    unsafe { block.cast::<usize>().write(free.heads[class]) };
    free.heads[class] = block.expose_provenance();
    free.bytes += size;
    true
}

// SAFETY: blocks of a class are made and freed by `fresh` with the class's own layout, at least as large and as
// aligned as asked; a block is on a free list or in use, never both; all others are forwarded as they came.
unsafe impl GlobalAlloc for CachingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            Some((number, whole)) => {
                IN_USE.fetch_add(whole.size() as isize, Relaxed);
                // SAFETY: `whole` is the layout of a class.
                find(number, whole.size()).unwrap_or_else(|| unsafe { make(whole, false) })
            }
            // SAFETY: the caller's promises about `layout` are those that the system requires.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((number, whole)) = class(layout) else {
            // SAFETY: as above.
            return unsafe { System.alloc_zeroed(layout) };
        };
        IN_USE.fetch_add(whole.size() as isize, Relaxed);
        match find(number, whole.size()) {
            Some(block) => {
                // SAFETY: the block has `whole.size()` bytes, which are no fewer than `layout.size()`.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
            // SAFETY: `whole` is the layout of a class.
            None => unsafe { make(whole, true) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(layout) {
            // SAFETY: `alloc` made this block with the class's layout, since `class` is a function of `layout`; the
            // caller gives it up. A block that is not kept goes back with that layout.
            Some((number, whole)) => unsafe {
                IN_USE.fetch_sub(whole.size() as isize, Relaxed);
                if !put(block, number, whole.size()) {
                    fresh::free(block, whole);
                }
            },
            // SAFETY: `alloc` forwarded this layout.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `new_size` is valid for this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (class(layout), class(new)) {
            // SAFETY: blocks of both layouts belong to the system allocator.
            (None, None) => unsafe { System.realloc(block, layout, new_size) },
            (Some((old, _)), Some((number, _))) if old == number => block,
            (old, number) => {
                if let (Some((_, old)), Some((number, whole))) = (old, number)
                    // Copying to a kept block costs less than the pages of a longer one.
                    && !is_kept(number)
                    // SAFETY: `alloc` made this block with the layout of its class; the caller forgets its address if it moves.
                    && let Some(resized) = unsafe { fresh::resize(block, old.size(), whole.size()) }
                {
                    IN_USE.fetch_add(whole.size() as isize - old.size() as isize, Relaxed);
                    return resized;
                }
                // SAFETY: `new` is a valid layout; the copy stays within both blocks; `block` came from `alloc(layout)`.
                unsafe {
                    let moved = self.alloc(new);
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_their_sizes_and_waste_an_eighth_at_most() {
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        assert!(class(layout(SMALLEST - 1)).is_none());
        assert!(class(Layout::from_size_align(SMALLEST, 256).unwrap()).is_none());
        assert!(class(layout(5 << 30)).is_none());
        let mut last = None;
        for size in (SMALLEST..64 << 20).step_by(77_777) {
            let (number, whole) = class(layout(size)).unwrap();
            assert!(whole.size() >= size && whole.size() - size <= size / 8, "{size} in {}", whole.size());
            assert_eq!(class(layout(whole.size())).unwrap().0, number, "a class's own size is in the class");
            assert_eq!(layout_of(number).unwrap().size(), whole.size());
            assert!(last.is_none_or(|(old, bytes)| number > old || (number == old && whole.size() == bytes)));
            last = Some((number, whole.size()));
        }
    }

    #[test]
    fn blocks_come_back_cleared_when_asked_and_the_limit_holds() {
        let allocator = CachingAllocator;
        begin(8 << 20);
        // A pool reserves for the worst case; blocks are kept beside those that are in use.
        reserve(8 << 20);
        let layout = Layout::from_size_align(3 << 20, 16).unwrap();
        // SAFETY: every block is written within its size and freed once, with the layout it was allocated with.
        unsafe {
            let first = allocator.alloc(layout);
            first.write_bytes(7, layout.size());
            allocator.dealloc(first, layout);
            let again = allocator.alloc_zeroed(layout);
            assert_eq!(again, first, "the kept block");
            assert!(std::slice::from_raw_parts(again, layout.size()).iter().all(|byte| *byte == 0));
            let grown = allocator.realloc(again, layout, 5 << 20);
            assert!(std::slice::from_raw_parts(grown, layout.size()).iter().all(|byte| *byte == 0));
            allocator.dealloc(grown, Layout::from_size_align(5 << 20, 16).unwrap());
            let blocks: Vec<_> = (0..4).map(|_| allocator.alloc(layout)).collect();
            blocks.into_iter().for_each(|block| allocator.dealloc(block, layout));
        }
        assert!(lock().unwrap().bytes <= limit());

        // Where nothing of a class is kept, a block nearby is made to be of it.
        #[cfg(target_os = "linux")]
        for size in [34 << 20, 40 << 20, 30 << 20] {
            begin(64 << 20);
            let (near, layout) = (Layout::from_size_align(36 << 20, 16), Layout::from_size_align(size, 16));
            let (near, layout) = (near.unwrap(), layout.unwrap());
            // All but the word that links kept blocks.
            let rest = size_of::<usize>()..30 << 20;
            // SAFETY: as above.
            unsafe {
                let block = allocator.alloc(near);
                block.write_bytes(7, near.size());
                allocator.dealloc(block, near);
                let other = allocator.alloc(layout);
                let bytes = std::slice::from_raw_parts(other, layout.size());
                assert!(bytes[rest.clone()].iter().all(|byte| *byte == 7), "the same pages");
                other.write_bytes(7, layout.size());
                allocator.dealloc(other, layout);
                let grown = allocator.realloc(allocator.alloc(layout), layout, 60 << 20);
                let bytes = std::slice::from_raw_parts(grown, 60 << 20);
                assert!(bytes[rest].iter().all(|byte| *byte == 7), "resized");
                allocator.dealloc(grown, Layout::from_size_align(60 << 20, 16).unwrap());
            }
            end(64 << 20);
        }
        release(8 << 20);
        end(8 << 20);

        // A forked child may find the lists locked for ever. Tested here because other tests run concurrently with one
        // that holds them.
        let held = lock();
        // SAFETY: the block is written within its size and freed once, with the layout it was grown to.
        unsafe {
            let block = allocator.alloc(layout);
            block.write_bytes(7, layout.size());
            let grown = allocator.realloc(block, layout, 5 << 20);
            assert_eq!(*grown, 7);
            allocator.dealloc(grown, Layout::from_size_align(5 << 20, 16).unwrap());
        }
        drop(held);
    }
}
