//! Owned, aligned host memory, and the trait that lets a device provide it.

#![expect(unsafe_code, reason = "raw allocation; the bounds are stated at each use")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::buffer::Buffer;

use super::caching_allocator::Elsewhere;
use super::pool::{Charge, Reservation};
use crate::error::{Error, Result};

/// Alignment of every buffer and of every tensor in it, in bytes: a cache line, and what JAX requires of DLPack.
pub const ALIGNMENT: usize = 64;

/// A source of host memory: pageable here, pinned for a GPU.
pub trait HostAllocator: Send + Sync + Debug {
    /// Allocates `len` bytes, zeroed or otherwise initialised, aligned to at least [`ALIGNMENT`]. `len` is never 0.
    fn allocate(&self, len: usize) -> Result<NonNull<u8>>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `ptr` came from `allocate(len)` of this allocator, was not freed, and nothing refers to it any more.
    unsafe fn free(&self, ptr: NonNull<u8>, len: usize);

    /// Returns true if a pool may keep unreferenced memory for another buffer; otherwise the pool gives it back.
    fn keeps(&self, ptr: NonNull<u8>, len: usize) -> bool {
        let _ = (ptr, len);
        true
    }

    /// Returns true if the memory is page-locked.
    fn is_pinned(&self) -> bool {
        false
    }

    /// Returns true if the memory is the global allocator's, which counts it already.
    fn is_global(&self) -> bool {
        false
    }
}

/// Pageable memory from the global allocator.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemAllocator;

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, ALIGNMENT).ok()
}

impl HostAllocator for SystemAllocator {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        let refused = || Error::limit("a host buffer", len as u64, isize::MAX as u64, "memory_budget");
        let layout = layout(len).filter(|layout| layout.size() > 0).ok_or_else(refused)?;
        // SAFETY: the layout's size is not zero (filtered above).
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: the caller promises that `ptr` came from `allocate(len)`, which used this very layout.
            unsafe { dealloc(ptr.as_ptr(), layout) }
        }
    }

    fn is_global(&self) -> bool {
        true
    }
}

/// Memory that no buffer refers to; the pool keeps some of it for the next batch.
#[derive(Debug)]
pub(super) struct Raw {
    ptr: NonNull<u8>,
    capacity: usize,
    allocator: Arc<dyn HostAllocator>,
    _elsewhere: Option<Elsewhere>,
}

// SAFETY: `Raw` owns its memory alone; the allocator is Send + Sync and frees from any thread.
unsafe impl Send for Raw {}
// SAFETY: a shared `Raw` gives no access to its memory.
unsafe impl Sync for Raw {}

impl Raw {
    pub(super) fn allocate(allocator: &Arc<dyn HostAllocator>, capacity: usize) -> Result<Self> {
        let ptr = allocator.allocate(capacity)?;
        let elsewhere = (!allocator.is_global()).then(|| Elsewhere::new(capacity));
        Ok(Self { ptr, capacity, allocator: Arc::clone(allocator), _elsewhere: elsewhere })
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns true if a pool may keep it for another buffer.
    pub(super) fn may_be_kept(&self) -> bool {
        self.allocator.keeps(self.ptr, self.capacity)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: `ptr` came from this allocator with this capacity, and `Raw` is its only owner.
        unsafe { self.allocator.free(self.ptr, self.capacity) }
    }
}

/// `len` initialised bytes, aligned to [`ALIGNMENT`], charged to a pool until delivered or dropped.
#[derive(Debug)]
pub struct HostBuffer {
    raw: Option<Raw>,
    ptr: NonNull<u8>,
    len: usize,
    /// `None` if the memory belongs to another process, which is charged for it, or to a block.
    charge: Option<Charge>,
    block: Option<Block>,
    retired: AtomicBool,
}

/// The decoded values of a row group that a buffer is a part of.
#[derive(Debug)]
struct Block {
    _values: Buffer,
    /// The row group's reservation, until the part is delivered.
    held: Mutex<Option<Arc<Reservation>>>,
}

// SAFETY: the buffer owns its memory alone through `raw`, or shares it through `block`; `&HostBuffer` only reads it.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    pub(super) fn new(raw: Raw, len: usize, charge: Charge) -> Self {
        debug_assert!(len <= raw.capacity);
        Self { ptr: raw.ptr, raw: Some(raw), len, charge: Some(charge), block: None, retired: AtomicBool::new(false) }
    }

    /// A part of a decoded row group, whose `reservation` is held until the part is delivered or dropped. `None` if it
    /// is empty, or not aligned to [`ALIGNMENT`]. Shared from the start, so that nobody here writes to it; a consumer may, by its
    /// address: no other batch has these rows, so nobody else reads these bytes, though slices of the whole block exist meanwhile.
    pub(crate) fn part_of(values: Buffer, reservation: Arc<Reservation>) -> Option<Arc<Self>> {
        let len = values.len();
        let ptr = NonNull::new(values.as_ptr().cast_mut())?;
        if len == 0 || !ptr.addr().get().is_multiple_of(ALIGNMENT) {
            return None;
        }
        let block = Block { _values: values, held: Mutex::new(Some(reservation)) };
        let retired = AtomicBool::new(false);
        Some(Arc::new(Self { raw: None, ptr, len, charge: None, block: Some(block), retired }))
    }

    /// A buffer over memory that no pool is charged for; dropping it gives `ptr` and `len` to `allocator`'s `free`.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` initialised bytes until `allocator` is dropped, aligned to [`ALIGNMENT`], and
    /// this buffer is the only one over them in this process.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn adopt(allocator: Arc<dyn HostAllocator>, ptr: NonNull<u8>, len: usize) -> Self {
        let raw = Raw { ptr, capacity: len, allocator, _elsewhere: None };
        Self { ptr, raw: Some(raw), len, charge: None, block: None, retired: AtomicBool::new(false) }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Bytes of the allocation, which begins with the buffer.
    pub fn capacity(&self) -> usize {
        self.raw.as_ref().map_or(self.len, Raw::capacity)
    }

    /// Returns true if another process made these bytes, and writes there again once the buffer is dropped in this one:
    /// a forked child, which shares the memory, must not read them.
    pub fn is_foreign(&self) -> bool {
        self.charge.is_none() && self.block.is_none()
    }

    /// Returns true if it is a part of a decoded row group.
    pub(crate) fn is_part(&self) -> bool {
        self.block.is_some()
    }

    /// Takes the bytes off the budget: from now on they are the consumer's.
    pub fn deliver(&self) {
        if let Some(charge) = &self.charge {
            charge.release();
        }
        if let Some(block) = &self.block {
            drop(block.held.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Marks these bytes as possibly still read by another process when this buffer is dropped: the memory is then
    /// given back to its allocator, never to another buffer of the pool. The allocator must be told too.
    #[cfg(target_os = "linux")]
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `capacity >= len` initialised bytes (allocators initialise) while `raw` lives, or `block`,
        // whose bytes these are.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` makes the access exclusive, since parts of blocks are shared from the start.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        let raw = self.raw.take();
        match (raw, &self.charge) {
            (Some(raw), Some(charge)) if !self.retired.load(Ordering::Acquire) => charge.recycle(raw),
            (raw, charge) => {
                // The memory is freed before the budget is released.
                drop(raw);
                if let Some(charge) = charge {
                    charge.release();
                }
            }
        }
    }
}
