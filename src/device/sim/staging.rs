//! The host memory of a simulated device.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::memory::{HostAllocator, SystemAllocator};

/// Content of freed memory.
pub(super) const POISON: u8 = 0xDD;

/// Host memory that is overwritten when it is freed, and stays readable for commands that run too late.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<Blocks>);

#[derive(Debug, Default)]
struct Blocks {
    allocated: u64,
    freed: Vec<(Block, usize)>,
}

#[derive(Debug, Clone, Copy)]
struct Block(NonNull<u8>);

// SAFETY: a block is owned by the one list that it is in.
unsafe impl Send for Block {}

impl Staging {
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that were allocated, and that were freed since.
    pub(super) fn counts(&self) -> (u64, u64) {
        let blocks = self.lock();
        (blocks.allocated, blocks.freed.len() as u64)
    }
}

impl HostAllocator for Staging {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        let memory = SystemAllocator.allocate(len)?;
        self.lock().allocated += 1;
        Ok(memory)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller gives up `len` bytes at `ptr`; they are freed when this allocator goes.
        unsafe { ptr.as_ptr().write_bytes(POISON, len) }
        self.lock().freed.push((Block(ptr), len));
    }

    fn is_pinned(&self) -> bool {
        true
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for (block, len) in self.lock().freed.drain(..) {
            // SAFETY: the block came from the system's allocator with this length, and was given up by its owner.
            unsafe { SystemAllocator.free(block.0, len) }
        }
    }
}
