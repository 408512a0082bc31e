//! A global allocator that keeps large blocks for the next row group instead of giving them back to the kernel.
//!
//! Column chunks and decoded columns are large, short-lived and written once. To map and unmap each of them costs more, in
//! page faults, than decoding. This allocator keeps freed blocks of [`SMALLEST`] bytes or more, by size class, within
//! what the pools' budgets leave unused plus a sixteenth of the budgets; others go [back](super::fresh). Small blocks
//! go to the system.

#![expect(unsafe_code, reason = "a global allocator with intrusive free lists; the bounds are stated at each use")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::fresh;

/// Smallest block kept: below it, the system keeps freed blocks itself.
const SMALLEST: usize = 1 << SMALLEST_LOG2;
const SMALLEST_LOG2: u32 = 15;
/// Classes per doubling, as a power of two: rounding up wastes at most an eighth.
const STEPS_LOG2: u32 = 3;
/// Classes up to 2 GiB; larger blocks go to the system.
const CLASSES: usize = 16 << STEPS_LOG2;
/// Alignment of every kept block, as for Arrow's buffers; blocks that need more go to the system.
const ALIGN: usize = 128;

/// Attempts to lock the free lists before doing without them; they are held for tens of nanoseconds.
const PATIENCE: usize = 1000;

/// Bytes that may be kept: what all pools together have not handed out. Zero until there is a pool.
static LIMIT: AtomicIsize = AtomicIsize::new(0);
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

/// Raises the limit by `bytes`, which a pool has unused. Has no effect unless [`CachingAllocator`] is the global
/// allocator.
pub(super) fn lend(bytes: usize) {
    LIMIT.fetch_add(bytes as isize, Ordering::Relaxed);
}

/// Takes back what [`lend`] gave, since a pool now uses it. Blocks kept beyond the limit stay until fresh memory is
/// needed: most of what a pool hands out is soon made of kept blocks, and until then nothing has grown.
pub(super) fn claim(bytes: usize) {
    LIMIT.fetch_sub(bytes as isize, Ordering::Relaxed);
}

/// Takes back what [`lend`] gave for good, since the pool is gone; blocks kept beyond the limit go back to the system.
pub(super) fn withdraw(bytes: usize) {
    claim(bytes);
    trim();
}

/// Gives kept blocks back to the system until the rest is within the limit.
fn trim() {
    let limit = LIMIT.load(Ordering::Relaxed).max(0) as usize;
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

/// A kept block of the class, if there is one and the lists are free.
fn take(class: usize, size: usize) -> Option<*mut u8> {
    let mut free = lock()?;
    let block = std::ptr::with_exposed_provenance_mut::<usize>(free.heads[class]);
    if block.is_null() {
        return None;
    }
    // SAFETY: a listed block is free, at least `SMALLEST` bytes long, aligned to `ALIGN`, and its first word was written by
    // `put`; the lock is held.
    free.heads[class] = unsafe { block.read() };
    free.bytes -= size;
    Some(block.cast())
}

/// Keeps `block`; returns false if that exceeds the limit, or the lists are locked.
///
/// # Safety
/// `block` is a block of class `class` from [`fresh`], of `size` bytes, that nothing refers to any more.
unsafe fn put(block: *mut u8, class: usize, size: usize) -> bool {
    let Some(mut free) = lock() else { return false };
    if free.bytes + size > LIMIT.load(Ordering::Relaxed).max(0) as usize {
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
                // SAFETY: `whole` is the layout of a class.
                take(number, whole.size()).unwrap_or_else(|| unsafe { make(whole, false) })
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
        match take(number, whole.size()) {
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
            _ => {
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
        lend(8 << 20);
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
        assert!(lock().unwrap().bytes <= LIMIT.load(Ordering::Relaxed).max(0) as usize);
        withdraw(8 << 20);

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
