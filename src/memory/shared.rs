//! Host memory that another process can map: sealed memfds, which have no name and die with their last user.
//!
//! ```text
//!   server  SharedAllocator ─► Slab (memfd, mapped) ═ fd over a unix socket ═► Mapping ─ lease ─► HostBuffer  rank
//!             pool, decoder write here                                  the same pages, read in place
//! ```
//!
//! Reading memory that another process can write is sound here: a receiver touches only what was leased to it; that was
//! written before the frame that leases it was sent, and the server writes there again only after the receiver has
//! reported that it is done ([`SharedAllocator::retire`] ensures that memory whose receiver left without a report is
//! never used again). Everything else in the slab lies in other pages. The server reads nothing back. The seals forbid
//! shrinking, so that no access can hit a missing page. Both ends are processes of one user, which could just as well
//! trace each other; two receivers may be unable to. So memory with several receivers is sealed against writing too:
//! only this process, which has it mapped already, can write.

#![expect(unsafe_code, reason = "memfd_create, seals and memory that is given back; the bounds are stated at each use")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use rustix::process::{Resource, getrlimit};

use super::buffer::{HostAllocator, HostBuffer, SystemAllocator};
use super::pages::{Access, Pages};
use crate::error::{Error, Result};

/// Maximum slabs of an allocator: each is a mapping, and a process has 65,530 of those by default.
const MAX_SLABS: usize = 16 << 10;

/// Seals of every slab: neither its size nor these seals can be changed any more.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The use of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// One buffer, which its receiver may write to.
    One,
    /// One buffer with several receivers: nobody else may write to it.
    Read,
    /// Several buffers with several receivers: as above.
    Divided,
}

/// Memory of a [`SharedAllocator`]: a sealed memfd and its mapping in this process.
#[derive(Debug)]
pub struct Slab {
    id: u64,
    file: File,
    pages: Pages,
    purpose: Use,
    retired: AtomicBool,
}

impl Slab {
    fn new(id: u64, len: usize, purpose: Use) -> io::Result<Self> {
        // SAFETY: the name is a valid C string; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(c"bowstring".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is open, and nothing else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len as u64)?;
        let pages = Pages::map(&file, len, Access::Exclusive)?;
        pages.provide(&file)?;
        if purpose != Use::One {
            match seal(&file, libc::F_SEAL_FUTURE_WRITE) {
                // Linux before 5.1 has no such seal.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    UNSEALED.call_once(|| {
                        tracing::warn!(
                            "this kernel cannot keep ranks of this host from writing to each other's batches"
                        );
                    });
                }
                sealed => sealed?,
            }
        }
        seal(&file, SEALS)?;
        Ok(Self { id, file, pages, purpose, retired: AtomicBool::new(false) })
    }

    /// The slab's number: never 0, and never given to another slab of the same allocator.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes of the whole slab.
    #[expect(clippy::len_without_is_empty, reason = "no slab is empty")]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns true if several allocations may lie in it.
    #[cfg(test)]
    pub(crate) fn is_divided(&self) -> bool {
        self.purpose == Use::Divided
    }

    /// Returns true if a receiver may write to it: it holds a single buffer, which nobody else receives.
    pub fn is_writable(&self) -> bool {
        self.purpose == Use::One
    }

    /// Returns true if a receiver may still read freed parts of it, so that nothing new may be placed there.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Start address in this process.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.pages.base()
    }
}

/// Warns once that slabs stay writable.
static UNSEALED: Once = Once::new();

fn seal(file: &File, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: only the descriptor is used, and it is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl AsFd for Slab {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Host memory from sealed memfds: buffers of a [`Pool`](super::Pool) on it can be mapped by another process.
///
/// Every allocation is a slab, which holds one file descriptor until it is freed; small allocations of a
/// [`SlabPool`](super::SlabPool) share slabs. A pool recycles allocations, so that the same slab comes again. Beyond
/// half of the files that the process may open, allocations are ordinary memory, which [`locate`](Self::locate) does
/// not find: to hand it to another process, copy it into a slab.
///
/// ```
/// use std::sync::Arc;
/// use bowstring::memory::{Access, HostAllocator, Mapping, Pool, SharedAllocator};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let allocator = Arc::new(SharedAllocator::new());
/// let provider: Arc<dyn HostAllocator> = Arc::<SharedAllocator>::clone(&allocator);
/// let pool = Pool::new(provider, 1 << 20);
/// let mut buffer = pool.reserve(5000).await?.allocate(5000)?;
/// buffer.fill(7);
/// let (slab, offset) = allocator.locate(&buffer).expect("it is of this allocator");
/// // Another process would do this with the descriptor that it received.
/// let mapping = Mapping::open(&*slab, slab.len(), Access::CopyOnWrite, "the server")?;
/// let received = Arc::new(mapping).lease(offset, 5000, "the server", || println!("done with it"))?;
/// assert_eq!(*received, *buffer);
/// # Ok::<(), bowstring::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct SharedAllocator {
    /// By address.
    slabs: Mutex<BTreeMap<usize, Arc<Slab>>>,
    last: AtomicU64,
    most: usize,
    /// Set if allocations have several receivers, except those that must be slabs.
    many: bool,
    /// Set once the lack of slabs was reported.
    said: AtomicBool,
}

impl Default for SharedAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedAllocator {
    /// An empty allocator, for half of the files that this process may open now, and at most 16,384.
    pub fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::with_most(usize::try_from(files / 2).unwrap_or(usize::MAX).min(MAX_SLABS))
    }

    /// An empty allocator that makes at most `most` slabs at once, besides those that must be slabs.
    pub(crate) fn with_most(most: usize) -> Self {
        let (slabs, said) = (Mutex::default(), AtomicBool::new(false));
        Self { slabs, last: AtomicU64::new(0), most, many: false, said }
    }

    /// The same, for buffers with several receiving processes: none of them can write to another's.
    #[must_use]
    pub(crate) fn for_many(self) -> Self {
        Self { many: true, ..self }
    }

    /// Returns true if there are so many slabs, some of them mandatory, that few files are left for anything else.
    pub(crate) fn is_short(&self) -> bool {
        self.slabs_held() >= self.most.saturating_add(self.most / 2)
    }

    /// Adds a slab, however many there are.
    fn slab(&self, len: usize, purpose: Use) -> io::Result<Arc<Slab>> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let slab = Arc::new(Slab::new(id, len, purpose)?);
        self.slabs().insert(slab.base().addr().get(), Arc::clone(&slab));
        Ok(slab)
    }

    /// Adds a slab, or returns `None` at the limit. `divided`: for several allocations.
    pub(super) fn add(&self, len: usize, divided: bool) -> Result<Option<Arc<Slab>>> {
        if self.slabs_held() >= self.most {
            return Ok(None);
        }
        let purpose = match divided {
            true => Use::Divided,
            false if self.many => Use::Read,
            false => Use::One,
        };
        match self.slab(len, purpose) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Ok(None),
            slab => slab.map(Some).map_err(|error| refused(len, error)),
        }
    }

    /// Removes the slab that begins at `base`, which is empty now. Returns whether there is one.
    pub(super) fn remove(&self, base: NonNull<u8>) -> bool {
        let slab = self.slabs().remove(&base.addr().get());
        // Unmapped here, outside the lock, unless somebody is about to send it; then there.
        slab.is_some()
    }

    /// Allocates ordinary memory, since there are no more slabs.
    fn ordinary(&self, len: usize) -> Result<NonNull<u8>> {
        if !self.said.swap(true, Ordering::Relaxed) {
            let slabs = self.slabs_held();
            tracing::warn!(
                slabs,
                "further batches for ranks of this host are copied: see the limit of open files (ulimit -n)"
            );
        }
        SystemAllocator.allocate(len)
    }

    /// The slab that holds `buffer` and the buffer's offset in it, in bytes; `None` if the buffer came from elsewhere.
    pub fn locate(&self, buffer: &HostBuffer) -> Option<(Arc<Slab>, usize)> {
        let address = buffer.as_ptr().addr();
        let slabs = self.slabs();
        let (base, slab) = slabs.range(..=address).next_back()?;
        let offset = address - base;
        let fits = offset.checked_add(buffer.len()).is_some_and(|end| end <= slab.len());
        fits.then(|| (Arc::clone(slab), offset))
    }

    /// Marks `buffer` as possibly still read by another process when it is dropped: these bytes are then never written
    /// to again.
    pub fn retire(&self, buffer: &HostBuffer) {
        if let Some((slab, _)) = self.locate(buffer) {
            slab.retired.store(true, Ordering::Release);
        }
        buffer.retire();
    }

    /// Slabs with live allocations, including those that a pool keeps for later.
    pub fn slabs_held(&self) -> usize {
        self.slabs().len()
    }

    /// Bytes of all slabs.
    #[cfg(test)]
    pub(crate) fn bytes_held(&self) -> usize {
        self.slabs().values().map(|slab| slab.len()).sum()
    }

    /// The slab allocated last.
    #[cfg(test)]
    pub(crate) fn newest(&self) -> Arc<Slab> {
        let slabs = self.slabs();
        Arc::clone(slabs.values().max_by_key(|slab| slab.id()).unwrap())
    }

    fn slabs(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Slab>>> {
        // Every statement leaves the map consistent.
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostAllocator for SharedAllocator {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        match self.add(len, false)? {
            Some(slab) => Ok(slab.base()),
            None => self.ordinary(len),
        }
    }

    unsafe fn free(&self, ptr: NonNull<u8>, len: usize) {
        if !self.remove(ptr) {
            // SAFETY: the caller promises that `ptr` came from `allocate(len)`; it is not a slab's, so the system
            // allocator made it.
            unsafe { SystemAllocator.free(ptr, len) }
        }
    }
}

fn refused(len: usize, error: io::Error) -> Error {
    Error::Store {
        operation: format!("allocate {len} bytes of shared memory"),
        url: "memfd:bowstring".to_owned(),
        source: error.into(),
    }
}

/// The same allocator for memory that must be a slab, however many there are.
#[derive(Debug)]
pub(crate) struct SlabAllocator(pub(crate) Arc<SharedAllocator>);

impl HostAllocator for SlabAllocator {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        self.0.slab(len, Use::One).map(|slab| slab.base()).map_err(|error| refused(len, error))
    }

    unsafe fn free(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller promises that `ptr` came from `allocate(len)`, which is the inner allocator's.
        unsafe { self.0.free(ptr, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Pool;

    async fn buffer(pool: &Arc<Pool>, len: usize) -> HostBuffer {
        pool.reserve(len).await.unwrap().allocate(len).unwrap()
    }

    #[tokio::test]
    async fn a_released_slab_comes_again_and_a_retired_one_never_does() {
        let allocator = Arc::new(SharedAllocator::new());
        let provider: Arc<dyn HostAllocator> = Arc::<SharedAllocator>::clone(&allocator);
        let pool = Pool::new(provider, 1 << 20);
        let first = buffer(&pool, 10_000).await;
        let (slab, offset) = allocator.locate(&first).unwrap();
        assert_eq!((slab.id(), offset, slab.len()), (1, 0, 12_288));
        drop((first, slab));
        let again = buffer(&pool, 10_001).await;
        assert_eq!(allocator.locate(&again).unwrap().0.id(), 1);
        allocator.retire(&again);
        drop(again);
        assert_eq!((pool.used(), allocator.slabs_held()), (0, 0));
        assert_eq!(allocator.locate(&buffer(&pool, 10_000).await).unwrap().0.id(), 2);
        let elsewhere = Pool::new(Arc::new(crate::memory::SystemAllocator), 1 << 20);
        assert!(allocator.locate(&buffer(&elsewhere, 10).await).is_none());
    }

    #[test]
    fn what_several_receive_none_of_them_writes_to() {
        use crate::memory::pages::Pages;

        let allocator = Arc::new(SharedAllocator::new().for_many());
        let map = |access| {
            let slab = allocator.newest();
            Pages::map(&File::from(slab.as_fd().try_clone_to_owned().unwrap()), slab.len(), access)
        };
        let write = |at: NonNull<u8>| {
            // SAFETY: the slab that begins there is mapped and has 4096 bytes, which nobody refers to.
            unsafe { at.write(7) };
        };
        for divided in [false, true] {
            let slab = allocator.add(4096, divided).unwrap().unwrap();
            assert!(!slab.is_writable());
            write(slab.base());
            assert_eq!(map(Access::Exclusive).unwrap_err().raw_os_error(), Some(libc::EPERM));
            use std::os::unix::fs::FileExt as _;
            assert!(File::from(slab.as_fd().try_clone_to_owned().unwrap()).write_at(b"x", 0).is_err());
            map(Access::CopyOnWrite).unwrap();
        }
        SlabAllocator(Arc::clone(&allocator)).allocate(4096).unwrap();
        assert!(allocator.newest().is_writable());
        map(Access::Exclusive).unwrap();
    }

    #[tokio::test]
    async fn beyond_its_slabs_it_gives_ordinary_memory() {
        let allocator = Arc::new(SharedAllocator::with_most(2));
        let provider: Arc<dyn HostAllocator> = Arc::<SharedAllocator>::clone(&allocator);
        let pool = Pool::new(provider, 1 << 20);
        let mut buffers = Vec::new();
        for number in 0..5_u8 {
            let mut one = buffer(&pool, 5000).await;
            one.fill(number);
            buffers.push(one);
        }
        let slabs = || buffers.iter().filter(|buffer| allocator.locate(buffer).is_some()).count();
        assert_eq!((slabs(), allocator.slabs_held()), (2, 2));
        let must = Pool::new(Arc::new(SlabAllocator(Arc::clone(&allocator))), 1 << 20);
        let slab = buffer(&must, 5000).await;
        assert!(allocator.locate(&slab).is_some(), "what must be a slab is one");
        for (number, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|byte| usize::from(*byte) == number));
        }
        drop((slab, must, buffers, pool));
        assert_eq!(allocator.slabs_held(), 0);
    }
}
