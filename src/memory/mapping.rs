//! A mapped slab of another process, leased as buffers. The head of [`shared`](super::shared) says what makes it sound.

#![expect(unsafe_code, reason = "seals and buffers over mapped files; the bounds are stated at each use")]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::{ALIGNMENT, HostAllocator, HostBuffer};
use super::pages::{Access, Pages};
use crate::error::{Error, Result};

/// A mapped slab of another process.
#[derive(Debug)]
pub struct Mapping {
    pages: Pages,
    access: Access,
    leases: Mutex<Leases>,
}

/// The pages of a mapping that are, or were, leased.
#[derive(Debug, Default)]
struct Leases {
    /// The pages of each live lease.
    live: Vec<Range<usize>>,
    /// A range that covers all pages ever leased, which may have been written to.
    used: Range<usize>,
}

impl Leases {
    /// Leases `pages`. Returns whether some of them may have been leased before, or `None` if some are leased now.
    fn add(&mut self, pages: &Range<usize>) -> Option<bool> {
        if self.live.iter().any(|live| overlap(live, pages)) {
            return None;
        }
        self.live.push(pages.clone());
        let again = overlap(&self.used, pages);
        self.used = if self.used.is_empty() {
            pages.clone()
        } else {
            self.used.start.min(pages.start)..self.used.end.max(pages.end)
        };
        Some(again)
    }

    fn remove(&mut self, pages: &Range<usize>) {
        if let Some(at) = self.live.iter().position(|live| live == pages) {
            self.live.swap_remove(at);
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Mapping {
    /// Maps the slab behind `fd`, which has `len` bytes according to `peer`. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// [`Error::Remote`] naming `peer` if it is not a memfd of exactly `len` bytes that is sealed against shrinking:
    /// truncating it could otherwise kill its reader. Also if it cannot be mapped.
    pub fn open(fd: impl AsFd, len: usize, access: Access, peer: &str) -> Result<Self> {
        let remote = |what: String, source: Option<io::Error>| Error::Remote {
            peer: peer.to_owned(),
            what,
            source: source.map(Into::into),
        };
        let file = fd.as_fd().try_clone_to_owned().map(File::from);
        let file = file.map_err(|error| remote("its shared memory cannot be opened".to_owned(), Some(error)))?;
        // SAFETY: only the descriptor is used, and it is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(remote("sent a file that is not sealed against shrinking".to_owned(), None));
        }
        // Read after the seals: from now on the size cannot shrink.
        let size = file.metadata().map_err(|error| remote("its shared memory has no size".to_owned(), Some(error)))?;
        if len == 0 || isize::try_from(len).is_err() || size.len() != len as u64 {
            return Err(remote(format!("sent shared memory of {} bytes as one of {len}", size.len()), None));
        }
        let pages = Pages::map(&file, len, access)
            .map_err(|error| remote(format!("its {len} bytes of shared memory cannot be mapped"), Some(error)))?;
        pages.populate(&(0..len));
        Ok(Self { pages, access, leases: Mutex::default() })
    }

    /// Bytes mapped.
    #[expect(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        // Every statement leaves the leases consistent.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases the `len` bytes at `offset` as a buffer, which calls `released` when it is dropped. No two live leases
    /// share a page.
    ///
    /// # Errors
    /// [`Error::Remote`] naming `peer`, which gave the place, if the bytes are not all within the mapping, if they are
    /// not aligned to [`ALIGNMENT`], or if another lease of one of their pages is still alive.
    pub fn lease(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        peer: &str,
        released: impl Fn() + Send + Sync + 'static,
    ) -> Result<HostBuffer> {
        let remote = |what: String| Error::Remote { peer: peer.to_owned(), what, source: None };
        let all = self.pages.len();
        if !offset.is_multiple_of(ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > all) {
            return Err(remote(format!("sent {len} bytes at {offset} of a slab of {all}")));
        }
        let part = self.pages.around(&(offset..offset + len));
        let again = self.leases().add(&part);
        let again = again.ok_or_else(|| remote("sent memory again before it was released".to_owned()))?;
        // From here on, returning drops the lease.
        let lease = Lease { mapping: Arc::clone(self), part: part.clone(), released: Box::new(released) };
        if again && self.access == Access::CopyOnWrite && !self.pages.untouched(&part) {
            // SAFETY: the last leases of these pages have ended, and this one has not begun.
            let restored = unsafe { self.pages.restore(&part) };
            restored.map_err(|error| Error::Remote {
                peer: peer.to_owned(),
                what: "its shared memory cannot be seen again after it was written to".to_owned(),
                source: Some(error.into()),
            })?;
        }
        // SAFETY: `offset <= offset + len <= all` was checked, so the address is within the mapping or one past its end, and not 0.
        let address = unsafe { self.pages.base().add(offset) };
        // SAFETY: the mapping is readable and writable, `offset + len` is within it, its file cannot shrink, and it lives until the
        // lease is dropped; mappings begin at pages, so a multiple of the alignment is aligned; `leases` makes this buffer the only
        // one there. The sender writes there again only after `released`; see the head of `shared`.
        Ok(unsafe { HostBuffer::adopt(Arc::new(lease), address, len) })
    }
}

/// The stand-in for an allocator in a buffer over a [`Mapping`].
struct Lease {
    mapping: Arc<Mapping>,
    /// Its pages.
    part: Range<usize>,
    released: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({:?} of {} bytes)", self.part, self.mapping.len())
    }
}

impl HostAllocator for Lease {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        Err(Error::unsupported(format!("allocating {len} bytes in another process"), "allocate from a pool"))
    }

    unsafe fn free(&self, _: NonNull<u8>, _: usize) {
        // The memory is the mapping's; the lease ends when it is dropped with the buffer.
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In this order: the memory may be sent again as soon as the release is known.
        self.mapping.leases().remove(&self.part);
        (self.released)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Pool, SharedAllocator};

    #[tokio::test]
    async fn writes_reach_the_others_only_through_an_exclusive_mapping() {
        // Small pages, and huge ones followed by small ones where the kernel makes them.
        for len in [8192, (5 << 20) + 4096] {
            let allocator = Arc::new(SharedAllocator::new());
            let provider: Arc<dyn HostAllocator> = Arc::<SharedAllocator>::clone(&allocator);
            let pool = Pool::new(provider, 8 << 20);
            let mut sent = pool.reserve(len).await.unwrap().allocate(len).unwrap();
            assert!(sent.iter().all(|byte| *byte == 0), "fresh memory");
            sent.fill(1);
            let (slab, _) = allocator.locate(&sent).unwrap();
            let all = slab.len();
            for (access, seen) in [(Access::CopyOnWrite, 1), (Access::Exclusive, 9)] {
                let mapping = Arc::new(Mapping::open(&*slab, all, access, "peer").unwrap());
                let mut received = mapping.lease(64, len - 128, "peer", || ()).unwrap();
                assert!(received.iter().all(|byte| *byte == 1));
                received.fill(9);
                assert_eq!((sent[63], sent[64], sent[len - 65], sent[len - 64]), (1, seen, seen, 1));
                assert!(mapping.lease(0, 1, "peer", || ()).unwrap_err().to_string().contains("before it was released"));
                drop(received);
                let again = mapping.lease(0, len, "peer", || ()).unwrap();
                assert_eq!(
                    (again[63], again[64], again[len - 65], again[len - 1]),
                    (1, seen, seen, 1),
                    "what the sender has"
                );
                drop(again);
                sent.fill(1);
                assert_eq!(mapping.lease(0, len, "peer", || ()).unwrap()[..], sent[..]);
                // Kernels before 6.11 do not report that a huge page belongs to a file.
                assert!(
                    len > 8192 || mapping.pages.untouched(&(0..len)),
                    "a mapping that was read only is kept as it is"
                );
                for (offset, len) in [(0, all + 1), (64, all - 63), (1, 1), (usize::MAX - 63, 64)] {
                    let error = mapping.lease(offset, len, "peer", || ()).unwrap_err();
                    assert!(matches!(error, Error::Remote { .. }), "{error}");
                }
            }
        }
    }

    #[test]
    fn what_could_be_cut_is_not_mapped() {
        let allocator = SharedAllocator::new();
        allocator.allocate(4096).unwrap();
        let slab = allocator.newest();
        assert!(File::from(slab.as_fd().try_clone_to_owned().unwrap()).set_len(0).is_err(), "the seals hold");
        for len in [0, 4095, 4097, 8192, usize::MAX] {
            assert!(Mapping::open(&*slab, len, Access::Exclusive, "peer").is_err(), "{len}");
        }
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(4096).unwrap();
        let error = Mapping::open(&plain, 4096, Access::Exclusive, "peer").unwrap_err();
        assert_eq!(error.to_string(), "peer: sent a file that is not sealed against shrinking");
    }
}
