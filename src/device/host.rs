//! The host's own memory as a device: staged memory is delivered as it is, and every call completes before it returns.

#![expect(unsafe_code, reason = "raw host memory; the bounds are those of the trait, stated at each use")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::address::Address;
use super::conversion::Conversion;
use super::decoding::Decoding;
use super::traits::{DEVICE_ALIGNMENT, Device, Event, Fenced, Kind, Stream, refused};
use crate::error::Result;
use crate::memory::{HostAllocator, SystemAllocator};

/// Addresses of this device are addresses of this process, so a slab need not be copied to be on it.
#[derive(Debug)]
pub struct Host {
    staging: Arc<dyn HostAllocator>,
    events: AtomicU64,
}

impl Default for Host {
    fn default() -> Self {
        Self::new(Arc::new(SystemAllocator))
    }
}

impl Host {
    /// The host, with staging memory from `staging`.
    pub fn new(staging: Arc<dyn HostAllocator>) -> Self {
        Self { staging, events: AtomicU64::new(0) }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, DEVICE_ALIGNMENT).ok().filter(|layout| layout.size() > 0)
}

/// The bytes at an address of this process.
fn pointer(at: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

impl Device for Host {
    fn kind(&self) -> Kind {
        Kind::Host
    }

    fn ordinal(&self) -> u32 {
        0
    }

    fn staging(&self) -> Arc<dyn HostAllocator> {
        Arc::clone(&self.staging)
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        // SAFETY: the layout's size is not zero.
        let memory = layout(bytes).map(|layout| unsafe { alloc_zeroed(layout) }).filter(|memory| !memory.is_null());
        let refused = || refused(self.name(), format!("{bytes} bytes"), "there is not so much memory");
        memory.map(|memory| memory.expose_provenance() as Address).ok_or_else(refused)
    }

    unsafe fn free(&self, at: Address, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: the caller promises that `at` came from `allocate(bytes)`, which used this very layout.
            unsafe { dealloc(pointer(at), layout) }
        }
    }

    fn event(&self) -> Result<Event> {
        Ok(Event::new(self.events.fetch_add(1, Ordering::Relaxed)))
    }

    fn destroy(&self, _event: Event) {}

    unsafe fn copy(&self, to: Address, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises that both sides have that many bytes, and that nothing else uses `to`.
        unsafe { std::ptr::copy_nonoverlapping(from, pointer(to), bytes) }
        Ok(())
    }

    unsafe fn convert(&self, what: &Conversion, from: Address, to: Address) -> Result<()> {
        let (Some(read), Some(written)) = (what.from_bytes(), what.to_bytes()) else {
            return Err(refused(self.name(), "a conversion", "its size overflows memory"));
        };
        // SAFETY: the caller promises sides of these sizes, which do not overlap, and the bytes beside them.
        unsafe {
            let beside = what.beside();
            let beside = beside.map(|(at, bytes)| std::slice::from_raw_parts(pointer(at).cast_const(), bytes));
            let from = std::slice::from_raw_parts(pointer(from).cast_const(), read);
            what.on_host(from, std::slice::from_raw_parts_mut(pointer(to), written), beside);
        }
        Ok(())
    }

    unsafe fn decode(&self, what: &Decoding, _rows: *const u8, from: Address, to: Address) -> Result<u64> {
        let (Some(read), Some(written)) = (what.from_bytes(), what.to_bytes()) else {
            return Err(refused(self.name(), "decoding photos", "their size overflows memory"));
        };
        // SAFETY: the caller promises sides of these sizes, which do not overlap.
        let (from, to) = unsafe {
            let from = std::slice::from_raw_parts(pointer(from).cast_const(), read);
            (from, std::slice::from_raw_parts_mut(pointer(to), written))
        };
        what.on_host(from, to).map(|()| 0)
    }

    fn record(&self, _event: &Event) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _event: &Event) -> Result<()> {
        Ok(())
    }

    fn drain(&self) -> Result<()> {
        Ok(())
    }

    fn make_visible(&self, _event: &Event, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn fence(&self, _event: &Event, _stream: Stream) -> Result<Fenced> {
        Ok(Fenced::Recorded)
    }

    fn fence_context(&self, _event: &Event) -> Result<Fenced> {
        Ok(Fenced::Recorded)
    }

    fn synchronize_all(&self) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, _event: &Event) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&self, _event: &Event) -> Result<()> {
        Ok(())
    }

    unsafe fn copy_within(&self, _on: Option<Stream>, to: Address, from: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller promises both sides, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(pointer(from).cast_const(), pointer(to), bytes) }
        Ok(())
    }

    unsafe fn read(&self, from: Address, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller promises that `from` has as many bytes as `to`, which nothing writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(pointer(from).cast_const(), to.as_mut_ptr(), to.len()) }
        Ok(())
    }
}
