//! Mapped pages of a file: those of a memfd, in huge pages where the kernel makes them.
//!
//! Entering a page into a process's page table costs as much as copying it, and finding a fresh one several times that.
//! A huge page is found and entered once instead of 512 times: as measured, 8 MiB of fresh memory took 0.3 ms instead
//! of 6, and mapping them in the other process 0.03 ms instead of 0.3.

#![expect(unsafe_code, reason = "mmap, madvise and their ownership; the bounds are stated at each use")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

/// Makes huge pages now, from Linux 6.1 on. The crate libc has it for glibc alone.
const MADV_COLLAPSE: libc::c_int = 25;

/// Bytes of a huge page on most machines. Where they are larger, none are used.
pub(super) const HUGE: usize = 2 << 20;

/// Bytes read at once from the page map, which cover 32 MiB of memory.
const PAGEMAP_CHUNK: usize = 64 << 10;
const PAGE_PRESENT: u64 = 1 << 63;
const PAGE_SWAPPED: u64 = 1 << 62;
/// Set for a page of the file, or of memory shared with other processes.
const PAGE_OF_FILE: u64 = 1 << 61;

/// Access to a received slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The slab's own pages, to read and write: for memory that nobody else receives.
    Exclusive,
    /// The slab's own pages to read, and a copy of each page that is written to: for memory that others receive too.
    CopyOnWrite,
}

/// The mapped pages of a file.
#[derive(Debug)]
pub(super) struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `Pages` owns its mapping alone, and unmapping works from any thread.
unsafe impl Send for Pages {}
// SAFETY: a shared `Pages` gives no access to its memory.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps the first `len` bytes of `file`, readable and writable. The file must be that long, and stay so.
    pub(super) fn map(file: &File, len: usize, access: Access) -> io::Result<Self> {
        let sharing = match access {
            Access::Exclusive => libc::MAP_SHARED,
            Access::CopyOnWrite => libc::MAP_PRIVATE,
        };
        // A hint: if another thread was faster, the kernel chooses another address.
        let wish = if len < HUGE { ptr::null_mut() } else { aligned(len) };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, or has found free, overlaps nothing of ours.
        let address = unsafe { libc::mmap(wish, len, access, sharing, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { base, len })
    }

    /// Address of the first page.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Allocates all pages of `file`, a memfd that is mapped here whole and has no pages yet, and enters them into the
    /// page table.
    ///
    /// # Errors
    /// The kernel's: missing memory is an error now, not a signal at the first write.
    pub(super) fn provide(&self, file: &File) -> io::Result<()> {
        let whole = self.len - self.len % HUGE;
        if whole > 0 {
            // A huge page is made where one of its small pages exists already.
            for start in (0..whole).step_by(HUGE) {
                allocate(file, start, 1)?;
            }
            // SAFETY: the range is within this mapping, and making huge pages does not change its content. Where the
            // kernel cannot or will not (before 6.1, memory in pieces), small pages stay.
            let _ = unsafe { libc::madvise(self.base.as_ptr().cast(), whole, MADV_COLLAPSE) };
        }
        allocate(file, 0, self.len)?;
        self.populate(&(0..self.len));
        Ok(())
    }

    /// Enters the pages of `range` into the page table at once; reading them one by one would do so slowly.
    pub(super) fn populate(&self, range: &Range<usize>) {
        if let Some(start) = self.start(range) {
            // SAFETY: the range is within this mapping. Kernels before 5.14 refuse, and pages are then entered when they are read.
            let _ = unsafe { libc::madvise(start.as_ptr().cast(), range.len(), libc::MADV_POPULATE_READ) };
        }
    }

    /// Start of `range`; none if it is not within this mapping.
    fn start(&self, range: &Range<usize>) -> Option<NonNull<u8>> {
        // SAFETY: if the range is within the mapping, so is its start, or it is one past the end.
        (range.start <= range.end && range.end <= self.len).then(|| unsafe { self.base.add(range.start) })
    }

    /// Extends `bytes` to whole pages.
    pub(super) fn around(&self, bytes: &Range<usize>) -> Range<usize> {
        let size = page_size();
        bytes.start / size * size..bytes.end.next_multiple_of(size).min(self.len)
    }

    /// Returns true if no page of `range`, which [`around`](Self::around) gave, was written to in this process: in a
    /// private mapping, written pages are copies. False if unknown, as for huge pages before Linux 6.11.
    pub(super) fn untouched(&self, range: &Range<usize>) -> bool {
        let size = page_size();
        let Ok(pagemap) = File::open("/proc/self/pagemap") else { return false };
        // One word per page of the address space.
        let base = self.base.addr().get();
        let (mut at, end) = ((base + range.start) / size * 8, (base + range.end).div_ceil(size) * 8);
        let mut words = vec![0_u8; PAGEMAP_CHUNK.min(end - at)];
        while at < end {
            let count = words.len().min(end - at);
            let Some(chunk) = words.get_mut(..count) else { return false };
            if pagemap.read_exact_at(chunk, at as u64).is_err() {
                return false;
            }
            let copied = |word: &[u8; 8]| {
                let word = u64::from_le_bytes(*word);
                word & (PAGE_PRESENT | PAGE_SWAPPED) != 0 && word & PAGE_OF_FILE == 0
            };
            if chunk.as_chunks().0.iter().any(copied) {
                return false;
            }
            at += count;
        }
        true
    }

    /// Drops the copies of a private mapping in `range`, which [`around`](Self::around) gave, so that the file's pages
    /// are visible again.
    ///
    /// # Safety
    /// Nobody refers to this memory.
    pub(super) unsafe fn restore(&self, range: &Range<usize>) -> io::Result<()> {
        let start = self.start(range).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is within this mapping, in whole pages, and the caller promises that nobody sees it change.
        if unsafe { libc::madvise(start.as_ptr().cast(), range.len(), libc::MADV_DONTNEED) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.populate(range);
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, whole; nobody has a reference into it, since owners of buffers own this.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Finds an address at which `len` bytes are free now and huge pages can be mapped: a multiple of their size. Null if
/// there is none.
fn aligned(len: usize) -> *mut libc::c_void {
    let Some(room) = len.checked_add(HUGE) else { return ptr::null_mut() };
    let sharing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
    let address = unsafe { libc::mmap(ptr::null_mut(), room, libc::PROT_NONE, sharing, -1, 0) };
    if address == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the range is the mapping that was just made, whole, and nobody has used it.
    let _ = unsafe { libc::munmap(address, room) };
    address.map_addr(|at| at.next_multiple_of(HUGE))
}

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    // SAFETY: no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Linux always answers; a wrong answer is larger than any page.
    usize::try_from(size).unwrap_or(HUGE)
}

/// Allocates pages of `file` for `len` bytes from `start` on.
fn allocate(file: &File, start: usize, len: usize) -> io::Result<()> {
    let offset = libc::off_t::try_from(start).map_err(io::Error::other)?;
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: only the descriptor is used, and it is open.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
