//! Memory from the system for large blocks, which goes back to it as a whole.
//!
//! The C library's allocator keeps freed blocks of up to 32 MiB in its heaps, among blocks of other ages, and gives back only what lies
//! at a heap's end: a process with a budget of 128 MiB held 600 MiB after two epochs. A block that is mapped by itself is gone when it
//! is freed, and costs page faults when it is made; the [allocator](super::CachingAllocator) above keeps blocks to save those.

#![expect(unsafe_code, reason = "mmap and munmap, and the system's allocator; the bounds are stated at each use")]

use std::alloc::{GlobalAlloc, Layout, System};

/// Smallest block that is mapped by itself. A process may have some 65,000 mappings, though neighbours count once.
#[cfg(target_os = "linux")]
const MAPPED: usize = 128 << 10;

/// Distance of a block from a page's begin if it could not be mapped. Mapped ones have none, which tells them apart.
#[cfg(target_os = "linux")]
const SHIFT: usize = 128;
#[cfg(target_os = "linux")]
const PAGE: usize = 4096;

/// Memory for a block, or null. It is zeroed if that is asked for.
///
/// # Safety
/// `layout` has a size above 0, and an alignment of at most 128.
pub(super) unsafe fn allocate(layout: Layout, zeroed: bool) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if layout.size() >= MAPPED {
        // SAFETY: the caller's promise.
        return unsafe { map(layout.size()).unwrap_or_else(|| beside(layout.size(), zeroed)) };
    }
    // SAFETY: the caller's promise.
    unsafe { if zeroed { System.alloc_zeroed(layout) } else { System.alloc(layout) } }
}

/// Gives a block back.
///
/// # Safety
/// `block` is from [`allocate`] with this layout, and nothing refers to it any more.
pub(super) unsafe fn free(block: *mut u8, layout: Layout) {
    #[cfg(target_os = "linux")]
    if layout.size() >= MAPPED {
        if block.addr().is_multiple_of(PAGE) {
            // SAFETY: a block that begins at a page was mapped by `map` with this size, and the caller gives it up.
            let done = unsafe { libc::munmap(block.cast(), layout.size()) };
            // In the middle of a larger mapping this makes two of it, for which there may be no room. Then its pages go back, and
            // its addresses stay.
            if done != 0 {
                // SAFETY: as above; nobody reads them again.
                unsafe { libc::madvise(block.cast(), layout.size(), libc::MADV_DONTNEED) };
            }
        } else if let Some(whole) = shifted(layout.size()) {
            // SAFETY: any other block was made by `beside`, `SHIFT` bytes into a block of this layout.
            unsafe { System.dealloc(block.sub(SHIFT), whole) };
        }
        return;
    }
    // SAFETY: `allocate` took it from the system with this layout.
    unsafe { System.dealloc(block, layout) }
}

/// Returns true if blocks of `size` bytes are mapped by themselves, as long as the system can.
pub(super) fn is_mapped(size: usize) -> bool {
    #[cfg(target_os = "linux")]
    return size >= MAPPED;
    #[cfg(not(target_os = "linux"))]
    {
        let _ = size;
        false
    }
}

/// Gives a mapped block `to` bytes instead of `from`, perhaps at another address; the pages that stay keep their bytes. `None` if that is not
/// possible, and the block is as it was.
///
/// # Safety
/// `block` is from [`allocate`] with `from` bytes, which nothing refers to any more if it moves.
pub(super) unsafe fn resize(block: *mut u8, from: usize, to: usize) -> Option<*mut u8> {
    #[cfg(target_os = "linux")]
    if is_mapped(from) && is_mapped(to) && block.addr().is_multiple_of(PAGE) {
        // SAFETY: a block that begins at a page was mapped by `map` with this size, and the caller gives up its old address.
        let found = unsafe { libc::mremap(block.cast(), from, to, libc::MREMAP_MAYMOVE) };
        return (found != libc::MAP_FAILED).then_some(found.cast());
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (block, from, to);
    None
}

/// A mapping of `size` bytes, all of them zero; `None` if the system has no room, or no room for one more mapping.
#[cfg(target_os = "linux")]
fn map(size: usize) -> Option<*mut u8> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory that is in use.
    let found = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
    (found != libc::MAP_FAILED).then_some(found.cast())
}

/// The layout that contains a block which is not mapped, and its shift.
#[cfg(target_os = "linux")]
fn shifted(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(SHIFT)?, PAGE).ok()
}

/// A block from the heap, `SHIFT` bytes behind a page's begin.
///
/// # Safety
/// `size` is above 0.
#[cfg(target_os = "linux")]
unsafe fn beside(size: usize, zeroed: bool) -> *mut u8 {
    let Some(whole) = shifted(size) else { return std::ptr::null_mut() };
    // SAFETY: the caller's promise; the shift is within the block.
    unsafe {
        let found = if zeroed { System.alloc_zeroed(whole) } else { System.alloc(whole) };
        if found.is_null() { found } else { found.add(SHIFT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_size_are_whole_aligned_and_zero_where_that_is_asked() {
        for size in [1 << 15, (128 << 10) - 4096, 128 << 10, 3 << 20, 65 << 20] {
            for zeroed in [false, true] {
                let layout = Layout::from_size_align(size, 128).unwrap();
                // SAFETY: each block is written within its size, and freed once with its layout.
                unsafe {
                    let block = allocate(layout, zeroed);
                    assert!(!block.is_null() && block.addr().is_multiple_of(128));
                    let bytes = std::slice::from_raw_parts_mut(block, size);
                    assert!(!zeroed || bytes.iter().all(|byte| *byte == 0));
                    bytes.fill(7);
                    free(block, layout);
                }
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_mapped_block_takes_another_size_and_keeps_its_bytes() {
        let layout = |size| Layout::from_size_align(size, 128).unwrap();
        let (small, large) = (256 << 10, 9 << 20);
        // SAFETY: the block is written within its size of the moment, and freed once with its last layout.
        unsafe {
            let block = allocate(layout(small), false);
            block.write_bytes(7, small);
            let grown = resize(block, small, large).unwrap();
            let bytes = std::slice::from_raw_parts_mut(grown, large);
            assert!(bytes[..small].iter().all(|byte| *byte == 7) && bytes[small..].iter().all(|byte| *byte == 0));
            bytes.fill(8);
            assert!(resize(grown, large, usize::MAX / 2).is_none() && resize(grown, large, MAPPED - PAGE).is_none());
            let shrunk = resize(grown, large, small).unwrap();
            assert!(std::slice::from_raw_parts(shrunk, small).iter().all(|byte| *byte == 8));
            free(shrunk, layout(small));
            let heap = beside(large, false);
            assert!(resize(heap, large, small).is_none());
            free(heap, layout(large));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_block_that_cannot_be_mapped_comes_from_the_heap_and_goes_back_there() {
        let size = 1 << 20;
        let layout = Layout::from_size_align(size, 128).unwrap();
        // SAFETY: the block is written within its size, and freed once with its layout.
        unsafe {
            let block = beside(size, true);
            assert_eq!(block.addr() % PAGE, SHIFT);
            let bytes = std::slice::from_raw_parts_mut(block, size);
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
            free(block, layout);
        }
        assert!(map(usize::MAX / 2).is_none());
    }
}
