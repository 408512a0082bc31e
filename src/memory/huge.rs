//! Large blocks straight from the kernel, in huge pages where it has them.
//!
//! A block of a row group is touched from end to end, so a page of 2 MiB costs one fault where 512 small ones cost 512, and rows
//! gathered from all over it miss the processor's address cache less. Kernels that give huge pages only to those who ask
//! (`transparent_hugepage=madvise`, what most distributions set) are asked here; those that give none give small ones.

#![expect(unsafe_code, reason = "mappings of the kernel; the bounds are stated at each use")]

use std::ptr::{NonNull, null_mut};

/// Bytes of a huge page on the processors that bowstring runs on, and the least size of a block that is mapped.
pub(super) const PAGE: usize = 2 << 20;

/// A block of `size` bytes, zeroed, aligned to [`PAGE`]; `None` where the kernel has no room. `size` is a multiple of the kernel's page size.
pub(super) fn map(size: usize) -> Option<NonNull<u8>> {
    let whole = size.checked_add(PAGE)?;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which replaces none.
    let base = unsafe { libc::mmap(null_mut(), whole, access, kind, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base: *mut u8 = base.cast();
    // The mapping is longer by a page than asked, so that an aligned block is in it; its ends go back.
    let before = base.align_offset(PAGE).min(PAGE);
    // SAFETY: `before <= PAGE`, so the block of `size` bytes from there on lies within the mapping.
    let block = unsafe { base.add(before) };
    // SAFETY: all three ranges lie within the mapping, next to each other, and start at multiples of the page size, since `size`
    // is one; nobody knows of the mapping yet. The advice is just that: where it is refused the pages are small.
    unsafe {
        if before > 0 {
            libc::munmap(base.cast(), before);
        }
        if before < PAGE {
            libc::munmap(block.add(size).cast(), PAGE - before);
        }
        let _ = libc::madvise(block.cast(), size, libc::MADV_HUGEPAGE);
    }
    NonNull::new(block)
}

/// Gives a block back.
///
/// # Safety
/// `block` came from [`map`] with this `size`, and nothing refers to it any more.
pub(super) unsafe fn unmap(block: *mut u8, size: usize) {
    // SAFETY: the caller's promise: the range is one mapping, whole, or a part of one that neighbours were merged into. Refusal
    // leaves the memory mapped and nothing else.
    let _ = unsafe { libc::munmap(block.cast(), size) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_of_their_size() {
        let sizes = [PAGE, PAGE + (PAGE >> 3), 5 * PAGE];
        let blocks: Vec<_> = sizes.iter().map(|size| (map(*size).unwrap(), *size)).collect();
        for (block, size) in &blocks {
            assert_eq!(block.as_ptr() as usize % PAGE, 0);
            // SAFETY: the block has `size` bytes, and nobody else refers to it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), *size) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
        }
        for (block, size) in blocks {
            // SAFETY: the block came from `map` with this size, and its bytes are not used again.
            unsafe { unmap(block.as_ptr(), size) }
        }
        assert!(map(usize::MAX - PAGE + 1).is_none());
        assert!(map(1 << 60).is_none());
    }
}
