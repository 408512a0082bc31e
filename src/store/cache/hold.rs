//! Whole objects as files that other programs open and map: fetched once, and kept while somebody holds them.
//!
//! ```text
//!   hold ─► blocks/.. there, locked for sharing, and good ─► its path, until the lock goes
//!        └► claim (fetch/.. locked) ─► room in the ledger ─► slices are written as they come ─► checksums beside it, renamed
//! ```
//! A holder has a shared lock on the file, of the operating system, which ends with the process; whoever makes room leaves locked files
//! alone. What is mapped stays mapped even if the file goes.

use std::fs::{File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use twox_hash::XxHash3_64;

use super::super::pinned::is_at;
use super::super::pinned::shown;
use super::super::unforked::{Locked, Unforked};
use super::beside::{self, Beside};
use super::block::{Block, ObjectKey};
use super::claim::{Claim, Claimed};
use super::counts::Event;
use super::directory::{Directory, changeable, readable};
use super::disk::Disk;
use super::fetched::Fetched;
use super::file::{self, Bad, PIECE};
use super::keeper::Due;
use super::readers::Reader;
use super::shared::{Cache, Tier, Wanted};
use crate::error::{Error, Result};

/// Bytes of a slice, of which an object is put together.
pub(crate) const SLICE: u64 = 4 << 20;
/// Slices that are fetched at once.
const AT_ONCE: usize = 16;
/// Shortest and longest pause between two looks at another process's fetch.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Attempts with a file that is damaged, or goes, each time.
const TRIES: usize = 8;

/// A whole object as a file, which is not evicted while this lives.
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
    path: PathBuf,
}

impl Held {
    /// The file at `path`, which this process has locked for sharing, and found good.
    pub(super) fn new(file: File, path: &Path) -> Self {
        // It is given to other programs, which open it by its name.
        Self { file, path: shown(path) }
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The outcome of a look for a whole object.
#[derive(Debug)]
enum Holding {
    Held(Held),
    Gone,
    /// It was there, but was damaged, or could not be read, and has been removed.
    Unusable(Event),
}

/// A whole object that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    /// Its version.
    pub(crate) key: ObjectKey,
    /// Its bytes.
    pub(crate) size: u64,
    /// Its address, for messages.
    pub(crate) url: String,
    /// For so long another process may fetch it without progress.
    pub(crate) patience: Duration,
    /// Shuffles the order in which slices are fetched. Hosts that fetch them in one order would ask the same homes at the same time, and
    /// all wait for whoever came first.
    pub(crate) seed: Option<u64>,
}

impl Whole {
    fn failed(&self, cache: &Path, error: io::Error) -> Error {
        Error::Store { operation: format!("copy to {}", cache.display()), url: self.url.clone(), source: error.into() }
    }
}

/// A file that is being written, slice by slice, in any order.
#[derive(Debug)]
struct Writing {
    claim: Claim,
    block: Block,
    /// The checksums of all pieces; zeros for those that have not come.
    sums: Vec<u8>,
    /// Blocks that had to go for it; none if there is no room.
    evicted: Option<u64>,
}

impl Writing {
    fn new(claim: Claim, block: Block) -> io::Result<Self> {
        let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
        let sums = usize::try_from(8 * file::pieces(block.len())).map_err(too_large)?;
        Ok(Self { claim, block, sums: vec![0; sums], evicted: None })
    }

    /// Writes the bytes of the slice `range`, which begins with a piece.
    fn add(&mut self, range: &Range<u64>, bytes: &[u8]) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a slice has another length");
        let sums = file::sums(bytes);
        let at = usize::try_from(8 * (range.start / PIECE)).map_err(|_| wrong())?;
        let of_slice = self.sums.get_mut(at..at + sums.len()).filter(|_| range.end - range.start == bytes.len() as u64);
        of_slice.ok_or_else(wrong)?.copy_from_slice(&sums);
        let mut file = self.claim.file();
        file.seek(SeekFrom::Start(range.start))?;
        file.write_all(bytes)
    }
}

/// The slices of an object of `size` bytes, from the first to the last, or shuffled by a seed.
fn slices(size: u64, seed: Option<u64>) -> Vec<Range<u64>> {
    let mut starts: Vec<u64> = (0..size).step_by(SLICE as usize).collect();
    if let Some(seed) = seed {
        starts.sort_by_cached_key(|start| XxHash3_64::oneshot_with_seed(seed, &start.to_le_bytes()));
    }
    starts.into_iter().map(|start| start..(start + SLICE).min(size)).collect()
}

impl Directory {
    /// Returns true if `block` may be removed, which then nobody can begin to hold as long as `locked` is there.
    pub(super) fn may_go(&self, block: &Block, locked: &mut Vec<File>) -> bool {
        if !block.is_whole() {
            return true;
        }
        match readable(&self.block(block)) {
            Ok(file) if file.try_lock().is_ok() => {
                locked.push(file);
                true
            }
            Ok(_) => false,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Disk {
    /// Holds the file of `block`, if it is there and good.
    fn hold(&self, block: &Block, patience: Duration) -> io::Result<Holding> {
        let path = self.directory().block(block);
        let file = match readable(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holding::Gone),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) if is_at(&file, &path) => {}
            // It is being removed, or written this moment.
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(Holding::Gone),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        match prove(&file, block, &self.directory().sums(block), patience) {
            Ok(()) => {
                self.touch(block);
                Ok(Holding::Held(Held::new(file, &path)))
            }
            Err(bad) => {
                let (what, event) = match bad {
                    Bad::Gone => ("it has no checksums".to_owned(), Event::Damaged),
                    Bad::Damaged(what) => (what.to_owned(), Event::Damaged),
                    Bad::Failed(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                    Bad::Failed(error) => (error.to_string(), Event::Failed),
                };
                tracing::warn!("{} is read again from its origin: {what}", shown(&path).display());
                self.discard(block, &file, &path);
                Ok(Holding::Unusable(event))
            }
        }
    }
}

/// Checks `file`, which is `block` with the checksums at `path`, if nobody has since it was written and the machine started.
pub(super) fn prove(file: &File, block: &Block, path: &Path, patience: Duration) -> std::result::Result<(), Bad> {
    // A disk that has turned read-only still has it.
    let mut beside = Locked(Unforked::new(readable(path)?));
    locked(patience, || beside.0.try_lock_shared())?;
    if let Beside::Proven = beside::read(&mut beside.0, file, block)? {
        return Ok(());
    }
    drop(beside);
    // One checks it, the others wait.
    let mut beside = Locked(Unforked::new(changeable(path)?));
    locked(patience, || beside.0.try_lock())?;
    if let Beside::Unproven(sums) = beside::read(&mut beside.0, file, block)? {
        beside::compare(file, &sums)?;
        beside::prove(&mut beside.0, file, block, &sums)?;
    }
    Ok(())
}

/// Work where it may block was not done.
fn ended<T>() -> io::Result<T> {
    Err(io::Error::other("this process ends"))
}

/// Tries to `lock` for so long.
fn locked(patience: Duration, lock: impl Fn() -> std::result::Result<(), TryLockError>) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if begin.elapsed() > patience => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "another process checks it, and does not end"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSES.0),
        }
    }
}

impl Cache {
    /// Holds the object `whole` as a file: the one that is here, or one that is put together of slices, which `fetch` gets unless they are
    /// here. Of all processes of this machine one fetches it.
    ///
    /// # Errors
    /// Those of `fetch`; [`Error::Config`] for a cache in memory, [`Error::Limit`] if it cannot have room, [`Error::Timeout`] if another
    /// process has the fetch and gets nowhere, [`Error::Store`] if the disk fails.
    pub(crate) async fn hold<F, T>(
        self: &Arc<Self>,
        reader: &Arc<Reader>,
        whole: &Whole,
        fetch: impl Fn(Range<u64>) -> F,
    ) -> Result<Held>
    where
        F: Future<Output = Result<T>>,
        T: Into<Fetched>,
    {
        let Tier::Disk(disk) = self.tier() else {
            let problem = "a cache in memory has no files for others to open; give a directory of this machine";
            return Err(Error::config("cache", problem));
        };
        let block = Block::whole(whole.key, whole.size);
        let failed = |error: io::Error| whole.failed(disk.path(), error);
        let (mut stood, mut pause, mut seen) = (Instant::now(), PAUSES.0, None);
        let mut tries = 0;
        loop {
            match self.look_whole(block, whole.patience).await.map_err(failed)? {
                Holding::Held(held) => {
                    // Whoever fetched it has counted that.
                    if tries == 0 {
                        self.count(reader, Event::Hit(whole.size));
                    }
                    return Ok(held);
                }
                Holding::Unusable(event) => {
                    self.count(reader, event);
                    tries += 1;
                }
                Holding::Gone => {}
            }
            if tries > TRIES {
                return Err(failed(io::Error::other("it is damaged or evicted each time before it can be opened")));
            }
            let cache = Arc::clone(self);
            let claimed = self.blocking(move || match cache.tier() {
                Tier::Disk(disk) => disk.directory().claim(&block),
                Tier::Memory(_) => Ok(Claimed::Failed),
            });
            match claimed.await.unwrap_or_else(ended).map_err(failed)? {
                Claimed::Mine(claim) => {
                    tries += 1;
                    self.fetch_whole(reader, whole, block, claim, &fetch).await?;
                    continue;
                }
                // It has come a moment ago, or is going.
                Claimed::There | Claimed::Failed => {}
                Claimed::Busy => {
                    let now = disk.fetched_so_far(&block);
                    if now != seen {
                        (seen, stood) = (now, Instant::now());
                    }
                }
            }
            if stood.elapsed() > whole.patience {
                let culprit = format!("another process that fetches {} into {}", whole.url, disk.path().display());
                return Err(Error::Timeout { stage: "cache", culprit, waited: stood.elapsed() });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Holds the file of the object `whole`, if it is here and good.
    pub(crate) async fn held(self: &Arc<Self>, reader: &Arc<Reader>, whole: &Whole) -> Option<Held> {
        let event = match self.look_whole(Block::whole(whole.key, whole.size), whole.patience).await {
            Ok(Holding::Held(held)) => {
                self.count(reader, Event::Hit(whole.size));
                return Some(held);
            }
            Ok(Holding::Gone) => return None,
            Ok(Holding::Unusable(event)) => event,
            Err(_) => Event::Failed,
        };
        self.count(reader, event);
        None
    }

    async fn look_whole(self: &Arc<Self>, block: Block, patience: Duration) -> io::Result<Holding> {
        let cache = Arc::clone(self);
        let held = self.blocking(move || match cache.tier() {
            Tier::Disk(disk) => disk.hold(&block, patience),
            Tier::Memory(_) => Ok(Holding::Gone),
        });
        held.await.unwrap_or_else(ended)
    }

    /// Fetches the object `whole` into the file of `block`.
    async fn fetch_whole<F, T>(
        self: &Arc<Self>,
        reader: &Arc<Reader>,
        whole: &Whole,
        block: Block,
        claim: Claim,
        fetch: impl Fn(Range<u64>) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<T>>,
        T: Into<Fetched>,
    {
        let Tier::Disk(disk) = self.tier() else { return Ok(()) };
        let failed = |error: io::Error| whole.failed(disk.path(), error);
        let writing = Writing::new(claim, block).map_err(failed)?;
        let writing = self.step(writing, |writing, disk| {
            // Somebody waits for it, now: it is needed sooner than what plans need later.
            writing.evicted = disk.reserve(&writing.block, Due::At(0))?;
            writing.claim.emptied().map(drop)
        });
        let mut writing = writing.await.map_err(failed)?;
        let Some(evicted) = writing.evicted else {
            self.count(reader, Event::Refused);
            let what = format!("the whole of {}, beside what is held in {},", whole.url, disk.path().display());
            return Err(Error::limit(what, file::size(whole.size), self.limit(), "cache_bytes"));
        };
        self.count(reader, Event::Evicted(evicted));
        let slice = |range: Range<u64>| {
            let fetch = &fetch;
            async move {
                let here = match Block::new(whole.key, &range) {
                    Some(slice) => self.look(reader, slice, Wanted::default()).await,
                    None => None,
                };
                if let Some(bytes) = here {
                    return Ok((range, bytes));
                }
                let fetched: Fetched = fetch(range.clone()).await?.into();
                self.count(reader, fetched.event());
                Ok::<_, Error>((range, fetched.bytes))
            }
        };
        let slices = futures::stream::iter(slices(whole.size, whole.seed)).map(slice);
        let mut slices = std::pin::pin!(slices.buffer_unordered(AT_ONCE));
        while let Some(slice) = slices.next().await {
            let (range, bytes) = match slice {
                Ok(slice) => slice,
                Err(error) => {
                    let given_back = self.step(writing, |writing, disk| {
                        disk.give_back(&writing.claim, &writing.block);
                        Ok(())
                    });
                    drop(given_back.await);
                    return Err(error);
                }
            };
            writing = self.step(writing, move |writing, _| writing.add(&range, &bytes)).await.map_err(failed)?;
        }
        let published = self.step(writing, |writing, disk| {
            let sums = beside::proven(writing.claim.file(), &writing.block, &writing.sums)?;
            disk.publish(&mut writing.claim, &writing.block, Some(&sums))?;
            // Nobody is to change it. Where that cannot be said, a change is seen by its time.
            let mut only_read = writing.claim.file().metadata()?.permissions();
            only_read.set_readonly(true);
            drop(writing.claim.file().set_permissions(only_read));
            Ok(())
        });
        published.await.map_err(failed)?;
        self.count(reader, Event::Kept);
        Ok(())
    }

    /// Takes one step of writing a file, where it may block; if it fails, the room is given back.
    async fn step(
        self: &Arc<Self>,
        mut writing: Writing,
        step: impl FnOnce(&mut Writing, &Disk) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Writing> {
        let cache = Arc::clone(self);
        let stepped = self.blocking(move || {
            let Tier::Disk(disk) = cache.tier() else { return Err(io::Error::other("it is in memory")) };
            match step(&mut writing, disk) {
                Ok(()) => Ok(writing),
                Err(error) => {
                    disk.give_back(&writing.claim, &writing.block);
                    disk.fail("write", &error);
                    Err(error)
                }
            }
        });
        stepped.await.unwrap_or_else(ended)
    }
}

#[cfg(test)]
mod tests;
