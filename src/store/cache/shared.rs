//! A cache as all datasets of this process share it: one for each directory.
//!
//! A range is looked up in the cache, then among the fetches in progress, in this process and in others, and only then fetched. Fetched
//! bytes go to the caller at once, and concurrently into the cache.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::asked::Again;
use super::block::Block;
use super::claim::{Claim, Claimed};
use super::coming::{Ahead, Coming};
use super::counts::{CacheStats, Counts, Event};
use super::disk::{Disk, Found, Stored};
use super::fetched::Fetched;
use super::file;
use super::foresight::Foreseen;
use super::keeper::{Due, Keeper};
use super::memory::Memory;
use super::readers::{Reader, Readers};
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// The word for a cache in memory.
pub(crate) const MEMORY: &str = "memory";
/// Most bytes on their way into the cache at once, beyond those that readers hold; in units of a permit.
const WRITING: usize = 256 << 20;
const PERMIT: usize = 4 << 10;
/// Time that another process may take to fetch a range before it is fetched here as well.
const PATIENCE: Duration = Duration::from_secs(60);
/// Shortest and longest pause between two checks of another process's fetch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// The due times of kept blocks are computed again after this time, or once more than one in `REORDER_PART` of them, and `REORDER_LEAST`,
/// have come since.
const REORDER_AFTER: Duration = Duration::from_secs(10);
const REORDER_PART: usize = 8;
const REORDER_LEAST: usize = 64;
/// Heads and checksums of blocks take less than this part of their bytes.
pub(crate) const OVERHEAD: u64 = 64;

/// Counters of all caches that this process has had.
static TOTAL: LazyLock<Counts> = LazyLock::new(Counts::default);

/// Counters of all caches of this process since it began.
pub fn totals() -> CacheStats {
    TOTAL.snapshot()
}

/// See the module.
#[derive(Debug)]
pub struct Cache {
    tier: Tier,
    /// Its place, and why it keeps nothing, if its disk failed when it was opened.
    unopened: Option<(String, Arc<Error>)>,
    pub(super) readers: Arc<Readers>,
    counts: Counts,
    flights: Mutex<HashMap<Block, Weak<Flight>>>,
    writing: Arc<Semaphore>,
    /// Time of the last ordering, and number of blocks since.
    ordered: Mutex<(Instant, usize)>,
    pub(super) ahead: Ahead,
    began: Instant,
}

/// Caches by their directory, or none for memory.
type Open = Vec<(Option<PathBuf>, Weak<Cache>)>;

/// The place of the blocks.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of each cache")]
pub(super) enum Tier {
    Disk(Arc<Disk>),
    Memory(Box<Memory>),
}

/// A range being fetched, or whose bytes are on their way to the disk.
#[derive(Debug, Default)]
pub(super) struct Flight(pub(super) tokio::sync::Mutex<Option<Bytes>>);

/// A block that was fetched.
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) block: Block,
    pub(super) bytes: Bytes,
    pub(super) due: Due,
    /// The rank that room is made for.
    pub(super) room: Due,
    pub(super) coming: Option<Coming>,
}

/// A request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// The row group, or unit of one, that it is read for.
    pub(crate) group: Option<u32>,
    /// True if each opening of the dataset reads it.
    pub(crate) opening: bool,
    /// True if it is only loaded, to be read later.
    pub(crate) ahead: bool,
    /// Set if another host asks for it here, its home.
    pub(crate) home: Option<Again>,
}

impl Cache {
    /// Opens the cache at `place`, a directory or `memory`, that may take `limit` bytes; by default half of the free space on its disk.
    /// Caches of one place are one; the last limit counts. Where the disk fails or is full, it is a cache that keeps nothing.
    ///
    /// # Errors
    /// [`Error::Config`] for a place that is no cache and has other files, and for memory without a limit; [`Error::Store`] where it
    /// cannot be made.
    pub fn open(place: &str, limit: Option<u64>) -> Result<Arc<Self>> {
        static OPEN: PerProcess<Mutex<Open>> = PerProcess::new();
        let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, cache)| cache.strong_count() > 0);
        if limit == Some(0) {
            return Err(Error::config("cache_bytes", "a cache of no bytes keeps nothing; leave cache out"));
        }
        let path = if place == MEMORY { None } else { Some(canonical(Path::new(place))) };
        let mut known = open.iter().filter(|(found, _)| *found == path).filter_map(|(_, cache)| cache.upgrade());
        let known = known.find(|cache| match &cache.tier {
            // One whose directory was removed, or has another name by now, is left to those who read through it.
            Tier::Disk(disk) => disk.directory().is_current(),
            Tier::Memory(_) => true,
        });
        if let Some(cache) = known {
            if let Some(limit) = limit {
                cache.set_limit(limit);
            }
            return Ok(cache);
        }
        let readers = Arc::new(Readers::default());
        let tier = if place == MEMORY {
            let limit = limit.ok_or_else(|| Error::config("cache_bytes", "a cache in memory needs it, e.g. 8GiB"))?;
            Tier::Memory(Box::new(Memory::new(limit)))
        } else {
            match disk(place, limit, &readers) {
                Ok(disk) => Tier::Disk(Arc::new(disk)),
                // Not remembered by its place: the next one may find a disk that works.
                Err(error) if is_of_the_disk(&error) => return Ok(Self::keeping_nothing(place, error)),
                Err(error) => return Err(error),
            }
        };
        let cache = Arc::new(Self::new(tier, readers));
        // A default evicts nothing: it follows the free space of the disk.
        if let Some(limit) = limit {
            cache.set_limit(limit);
        }
        open.push((path.map(|path| canonical(&path)), Arc::downgrade(&cache)));
        Ok(cache)
    }

    pub(super) fn new(tier: Tier, readers: Arc<Readers>) -> Self {
        Self {
            tier,
            unopened: None,
            readers,
            counts: Counts::default(),
            flights: Mutex::default(),
            writing: Arc::new(Semaphore::new(WRITING / PERMIT)),
            ordered: Mutex::new((Instant::now(), 0)),
            ahead: Ahead::default(),
            began: Instant::now(),
        }
    }

    /// The cache at `place`, whose disk fails with `error`: a failing cache costs reads from the store, and nothing else.
    pub(super) fn keeping_nothing(place: &str, error: Error) -> Arc<Self> {
        tracing::warn!("the cache {place} keeps nothing until it is opened again: {}", error.chain());
        let cache = Self::new(Tier::Memory(Box::new(Memory::new(0))), Arc::default());
        TOTAL.add(Event::Failed);
        cache.counts.add(Event::Failed);
        Arc::new(Self { unopened: Some((place.to_owned(), Arc::new(error))), ..cache })
    }

    /// Checks that its disk did not fail when it was opened: what is saved there is neither found nor uploaded by it then, and it takes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Store`] with that failure.
    pub(crate) fn check_open(&self) -> Result<()> {
        let Some((place, error)) = &self.unopened else { return Ok(()) };
        let operation = "open the cache".to_owned();
        Err(Error::Store { operation, url: place.clone(), source: Arc::clone(error).into() })
    }

    /// Bytes that it may take.
    pub fn limit(&self) -> u64 {
        match &self.tier {
            Tier::Disk(disk) => disk.limit(),
            Tier::Memory(memory) => memory.limit(),
        }
    }

    /// A limit that leaves what is beyond it where it is, as a default is on a disk that has become nearly full.
    #[cfg(all(test, feature = "cloud"))]
    pub(in crate::store) fn limit_later(&self, limit: u64) {
        if let Tier::Disk(disk) = &self.tier {
            disk.set_limit(limit);
        }
    }

    /// Takes at most `limit` bytes; what is beyond them goes now.
    fn set_limit(&self, limit: u64) {
        let is_over = limit < self.limit() || limit < self.used().0;
        match &self.tier {
            Tier::Disk(disk) => disk.set_limit(limit),
            Tier::Memory(memory) => memory.set_limit(limit),
        }
        if is_over {
            let evicted = Event::Evicted(match &self.tier {
                Tier::Disk(disk) => disk.shrink(),
                Tier::Memory(memory) => memory.shrink(),
            });
            TOTAL.add(evicted);
            self.counts.add(evicted);
        }
    }

    /// Bytes that it takes, as far as this process knows, and blocks.
    pub fn used(&self) -> (u64, usize) {
        self.kept(|keeper| (keeper.used(), keeper.len()))
    }

    /// Its counters for all readers of this process.
    pub fn stats(&self) -> CacheStats {
        self.counts.snapshot()
    }

    /// Returns true if `block` was here, or a part of another one, when this was last known. It takes no time.
    pub(crate) fn may_have(&self, block: &Block) -> bool {
        self.kept(|keeper| keeper.has(block) || keeper.covering(&block.object, &(block.start..block.end)).is_some())
    }

    pub(super) fn tier(&self) -> &Tier {
        &self.tier
    }

    pub(super) fn kept<T>(&self, work: impl FnOnce(&mut Keeper) -> T) -> T {
        match &self.tier {
            Tier::Disk(disk) => work(&mut disk.keeper()),
            Tier::Memory(memory) => work(&mut memory.kept().keeper),
        }
    }

    /// One more reader, until it is dropped.
    pub(crate) fn reader(&self) -> Arc<Reader> {
        self.readers.join()
    }

    /// Lets `reader` follow a plan from `step` on, or none; and asks when each block is needed now. It may block.
    pub(crate) fn follow(&self, reader: &Reader, foreseen: Option<Arc<Foreseen>>, step: u64) {
        reader.follow(foreseen, step);
        self.reorder();
    }

    fn reorder(&self) {
        *self.ordered.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), 0);
        self.readers.rebase();
        let foresight = self.readers.foresee();
        let now = self.now();
        self.kept(|keeper| keeper.reorder(now, |block| foresight.due(block, None).map(Due::At)));
        let limit = self.limit();
        let room = |foreseen: &Foreseen| {
            let others = self.kept(|keeper| keeper.taken(|block| !foreseen.is_own(block)));
            let own = limit.saturating_sub(others);
            own - own / OVERHEAD
        };
        self.readers.fill(room);
    }

    /// Asks anew when blocks are needed, if that was long ago: others of the same plan have read some of them meanwhile.
    pub(super) fn reorder_now_and_then(&self) {
        let blocks = self.used().1;
        let is_old = {
            let mut ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
            ordered.1 += 1;
            ordered.0.elapsed() > REORDER_AFTER || ordered.1 > REORDER_LEAST.max(blocks / REORDER_PART)
        };
        if is_old {
            self.reorder();
        }
    }

    /// Time at which `block` is needed, after `reader` has read it.
    pub(super) fn due(&self, reader: &Arc<Reader>, block: &Block, wanted: Wanted) -> Due {
        if wanted.opening {
            return Due::Opening(self.kept(Keeper::tick));
        }
        if let Some(again) = wanted.home {
            let now = self.now();
            return self.kept(|keeper| keeper.asked(block, now, again));
        }
        let read = (!wanted.ahead).then_some((reader, wanted.group));
        let due = self.readers.foresee().due(block, read);
        due.map_or_else(|| Due::Unknown(self.kept(Keeper::tick)), Due::At)
    }

    /// Milliseconds since this cache was opened here.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn count(&self, reader: &Reader, event: Event) {
        TOTAL.add(event);
        self.counts.add(event);
        reader.count(event);
    }

    /// Counts a range that the cache does not take.
    pub(crate) fn bypassed(&self, reader: &Reader) {
        self.count(reader, Event::Bypassed);
    }

    /// The bytes of `block` if they are here.
    pub(crate) async fn look(self: &Arc<Self>, reader: &Arc<Reader>, block: Block, wanted: Wanted) -> Option<Bytes> {
        let (found, of) = match &self.tier {
            Tier::Memory(memory) => match memory.look(&block) {
                Some((bytes, of)) => (Found::Hit(bytes), of),
                None => (Found::Miss, block),
            },
            Tier::Disk(_) => {
                let cache = Arc::clone(self);
                self.blocking(move || match &cache.tier {
                    Tier::Disk(disk) => disk.look(&block),
                    Tier::Memory(_) => (Found::Miss, block),
                })
                .await
                .unwrap_or((Found::Failed, block))
            }
        };
        match found {
            Found::Hit(bytes) => {
                self.count(reader, Event::Hit(bytes.len() as u64));
                let due = self.due(reader, &of, wanted);
                self.kept(|keeper| keeper.touch(&of, due));
                return Some(bytes);
            }
            Found::Damaged => self.count(reader, Event::Damaged),
            Found::Failed => self.count(reader, Event::Failed),
            Found::Miss => {}
        }
        None
    }

    /// The bytes of `block`: from here, from another reader's fetch, or by `fetch`.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub(crate) async fn read<T: Into<Fetched>>(
        self: &Arc<Self>,
        reader: &Arc<Reader>,
        block: Block,
        wanted: Wanted,
        fetch: impl Future<Output = Result<T>>,
    ) -> Result<Bytes> {
        if let Some(group) = wanted.group.filter(|_| !wanted.ahead) {
            reader.reads(group);
        }
        if let Some(bytes) = self.look(reader, block, wanted).await {
            return Ok(bytes);
        }
        let flight = self.flight(block);
        let mut slot = match flight.0.try_lock() {
            Ok(slot) => slot,
            Err(_) => {
                let slot = flight.0.lock().await;
                if slot.is_none()
                    && let Some(bytes) = self.look(reader, block, wanted).await
                {
                    return Ok(bytes);
                }
                slot
            }
        };
        if let Some(bytes) = &*slot {
            self.count(reader, Event::Shared(bytes.len() as u64));
            return Ok(bytes.clone());
        }
        let claim = match &self.tier {
            Tier::Memory(_) => None,
            Tier::Disk(_) => match self.claim(reader, block, wanted).await {
                Ok(claim) => claim,
                Err(bytes) => return Ok(bytes),
            },
        };
        let fetched: Fetched = fetch.await?.into();
        let bytes = fetched.bytes.clone();
        // Waiting readers get it, whether it is kept or not.
        *slot = Some(bytes.clone());
        drop(slot);
        self.count(reader, fetched.event());
        // Each host reads the ends of files.
        let is_spare = fetched.is_kept_elsewhere() && !wanted.opening;
        let due = if is_spare { Due::Spare } else { self.due(reader, &block, wanted) };
        self.keep(reader, flight, claim, Fresh { block, bytes: bytes.clone(), due, room: due, coming: None }).await;
        Ok(bytes)
    }

    /// Bytes that `block` takes here.
    pub(super) fn size(&self, block: &Block) -> u64 {
        match &self.tier {
            Tier::Memory(_) => block.len(),
            Tier::Disk(_) => file::size(block.len()),
        }
    }

    /// Keeps what was fetched: in memory at once, on a disk while its reader goes on.
    pub(super) async fn keep(
        self: &Arc<Self>,
        reader: &Arc<Reader>,
        flight: Arc<Flight>,
        claim: Option<Claim>,
        fresh: Fresh,
    ) {
        match (&self.tier, claim) {
            (Tier::Memory(memory), _) => {
                let stored = memory.store(&fresh.block, fresh.bytes, fresh.room);
                self.stored(reader, stored.map_or(Stored::Refused, Stored::Kept), fresh.due);
                self.kept(|keeper| keeper.touch(&fresh.block, fresh.due));
                self.reorder_now_and_then();
            }
            (Tier::Disk(_), Some(claim)) => self.store(reader, flight, claim, fresh).await,
            (Tier::Disk(_), None) => {}
        }
    }

    /// Writes a block while its reader continues with the bytes. `flight` holds them until they are written.
    async fn store(self: &Arc<Self>, reader: &Arc<Reader>, flight: Arc<Flight>, claim: Claim, fresh: Fresh) {
        let permits = fresh.bytes.len().div_ceil(PERMIT).clamp(1, WRITING / PERMIT);
        // It is never closed.
        let permit = Arc::clone(&self.writing).acquire_many_owned(permits as u32).await;
        let (cache, reader) = (Arc::clone(self), Arc::clone(reader));
        drop(tokio::task::spawn_blocking(move || {
            if let Tier::Disk(disk) = &cache.tier {
                let Fresh { block, bytes, due, room, coming } = fresh;
                cache.stored(&reader, disk.store(claim, &block, &bytes, room), due);
                cache.kept(|keeper| keeper.touch(&block, due));
                drop(coming);
                cache.reorder_now_and_then();
            }
            drop((flight, permit));
        }));
    }

    pub(super) fn stored(&self, reader: &Reader, stored: Stored, due: Due) {
        match stored {
            Stored::Kept(evicted) => {
                self.count(reader, Event::Kept);
                self.count(reader, Event::Evicted(evicted));
            }
            Stored::Refused if due == Due::Spare => {}
            Stored::Refused => self.count(reader, Event::Refused),
            Stored::Failed => self.count(reader, Event::Failed),
        }
    }

    /// Waits until all fetched blocks are written, or refused.
    pub(crate) async fn settle(&self) {
        drop(self.writing.acquire_many((WRITING / PERMIT) as u32).await);
    }

    pub(super) fn flight(&self, block: Block) -> Arc<Flight> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if flights.len() >= 64 && flights.len() == flights.capacity() {
            flights.retain(|_, flight| flight.strong_count() > 0);
        }
        let flight = flights.get(&block).and_then(Weak::upgrade).unwrap_or_default();
        flights.insert(block, Arc::downgrade(&flight));
        flight
    }

    /// The right to fetch and keep `block`; none to fetch it alone. The error is no error: its bytes, which another process has fetched.
    pub(super) async fn claim(
        self: &Arc<Self>,
        reader: &Arc<Reader>,
        block: Block,
        wanted: Wanted,
    ) -> std::result::Result<Option<Claim>, Bytes> {
        let (begin, mut pause, mut unusable) = (Instant::now(), PAUSES.0, 0);
        loop {
            let cache = Arc::clone(self);
            let claimed = self.blocking(move || match &cache.tier {
                Tier::Disk(disk) => disk.claim(&block),
                Tier::Memory(_) => Claimed::Failed,
            });
            match claimed.await.unwrap_or(Claimed::Failed) {
                Claimed::Mine(claim) => return Ok(Some(claim)),
                Claimed::There => {
                    if let Some(bytes) = self.look(reader, block, wanted).await {
                        return Err(bytes);
                    }
                    // The look-up removes damaged blocks; those that stay cannot be removed.
                    unusable += 1;
                    if unusable > 1 {
                        self.count(reader, Event::Failed);
                        return Ok(None);
                    }
                }
                Claimed::Busy => {}
                Claimed::Failed => {
                    self.count(reader, Event::Failed);
                    return Ok(None);
                }
            }
            if begin.elapsed() > PATIENCE {
                self.count(reader, Event::Failed);
                return Ok(None);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Does `work` where it may block; none if it panicked, or the runtime ends.
    pub(super) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        tokio::task::spawn_blocking(work).await.ok()
    }
}

/// The path as it is known by, if it is there.
fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The cache on the disk at `place`, as [`Cache::open`] has it.
fn disk(place: &str, limit: Option<u64>, readers: &Arc<Readers>) -> Result<Disk> {
    let disk = Disk::open(Path::new(place), limit.unwrap_or(u64::MAX), Arc::clone(readers))?;
    if limit.is_none() {
        disk.set_limit(free(disk.path())?.saturating_add(disk.keeper().used()) / 2);
    }
    Ok(disk)
}

/// True if a disk that fails, is full, or is not written to any more since it failed caused `error`: no mistake of the caller's.
pub(in crate::store) fn is_of_the_disk(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let kinds = [
                io::ErrorKind::StorageFull,
                io::ErrorKind::QuotaExceeded,
                io::ErrorKind::ReadOnlyFilesystem,
                io::ErrorKind::StaleNetworkFileHandle,
            ];
            return kinds.contains(&error.kind()) || error.raw_os_error().is_some_and(|code| FAILING.contains(&code));
        }
        cause = error.source();
    }
    false
}

/// Codes of a disk that fails, of which there are no kinds.
#[cfg(target_os = "linux")]
const FAILING: [i32; 3] = [libc::EIO, libc::EBADMSG, libc::EUCLEAN];
#[cfg(all(unix, not(target_os = "linux")))]
const FAILING: [i32; 2] = [libc::EIO, libc::EBADMSG];
#[cfg(not(unix))]
const FAILING: [i32; 0] = [];

#[cfg(unix)]
fn free(path: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(path)
        .map_err(|error| super::super::directory::failed("look up the free space", path, error))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free(_: &Path) -> Result<u64> {
    Err(Error::config("cache_bytes", "how much is free is not known here; give it, e.g. 500GiB"))
}
