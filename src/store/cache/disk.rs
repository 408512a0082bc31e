//! The tier on a disk of this machine: files that processes share.
//!
//! ```text
//!   look ─► blocks/.. there and its checksums agree ─► hit
//!        └► claim (fetch/.. locked) ─► the origin is read ─► room in the ledger ─► written ─► renamed to blocks/..
//! ```
//! Failures of the disk cost at most a read of the origin: each is counted, and logged once.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::super::pinned::is_at;
use super::super::pinned::shown;
use super::super::unforked::{Locked, Unforked};
use super::block::Block;
use super::claim::{Claim, Claimed};
use super::directory::{Directory, gone, readable, writable};
use super::file::{self, Bad};
use super::keeper::{Due, Keeper};
use super::ledger::{Event, Ledger, News};
use super::readers::Readers;
use super::saved::Unread;
use crate::error::Result;

/// The longest wait for another process that changes the ledger, which takes it a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);
/// After a failure to write, so long nothing is written.
const REST: Duration = Duration::from_secs(10);

/// Writes the bytes of a block to the disk; tests have disks that fail.
type WriteBlock = fn(&mut File, &Block, &[u8]) -> io::Result<()>;

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    directory: Directory,
    limit: AtomicU64,
    ledger: Mutex<Ledger>,
    keeper: Mutex<Keeper>,
    /// The readers whose plans tell when blocks are due.
    readers: Arc<Readers>,
    /// Time of the last failure.
    failed: Mutex<Option<Instant>>,
    told: AtomicBool,
    told_unread: AtomicBool,
    write: WriteBlock,
}

/// The outcome of a look.
#[derive(Debug)]
pub(super) enum Found {
    Hit(Bytes),
    Miss,
    /// It was there, but was damaged or another block.
    Damaged,
    /// The disk failed.
    Failed,
}

/// The outcome of a fetched block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// It is kept, and this many others were evicted.
    Kept(u64),
    /// Everything there is needed sooner.
    Refused,
    Failed,
}

impl Disk {
    /// The cache in `path`, which may take `limit` bytes.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub(super) fn open(path: &Path, limit: u64, readers: Arc<Readers>) -> Result<Self> {
        let directory = Directory::open(path)?;
        let ledger = Mutex::new(Ledger::new(directory.ledger()));
        let (limit, told) = (AtomicU64::new(limit), AtomicBool::new(false));
        let (keeper, failed) = (Mutex::default(), Mutex::new(None));
        let told_unread = AtomicBool::new(false);
        let disk = Self { directory, limit, ledger, keeper, readers, failed, told, told_unread, write };
        // Leftovers of killed processes are removed now.
        let reaped = disk.change(|disk, ledger| {
            disk.reap(ledger)?;
            // Leftovers of processes that were killed before they took room.
            disk.directory.fetched()?.iter().try_for_each(|block| disk.directory.release(block).map(drop))?;
            disk.directory.reap_saves()
        });
        if let Err(error) = reaped {
            disk.tell("read", &error);
        }
        Ok(disk)
    }

    /// The same, where blocks come to the disk by `write`.
    #[cfg(test)]
    pub(super) fn writing_by(self, write: WriteBlock) -> Self {
        Self { write, ..self }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Says that `block` was used just now.
    pub(super) fn touch(&self, block: &Block) {
        let mut keeper = self.keeper();
        let now = Due::Unknown(keeper.tick());
        keeper.touch(block, now);
    }

    /// Bytes of `block` that whoever fetches it has written, and when; none if nobody does.
    pub(super) fn fetched_so_far(&self, block: &Block) -> Option<(u64, SystemTime)> {
        let found = fs::metadata(self.directory.fetch(block)).ok()?;
        Some((found.len(), found.modified().ok()?))
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Evicts what is beyond the limit, as long as nobody holds it, whenever it is needed. Returns how many blocks went.
    pub(super) fn shrink(&self) -> u64 {
        let evicted = self.change(|disk, ledger| {
            let limit = disk.limit().saturating_sub(disk.directory.saved_size()?);
            disk.evict(ledger, 0, limit, Due::SOONEST)
        });
        match evicted {
            Ok(evicted) => evicted.unwrap_or_default(),
            Err(error) => {
                self.tell("evict blocks of", &error);
                0
            }
        }
    }

    /// The keeper, locked briefly.
    pub(super) fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of `wanted`, from its own file or one that covers it; and which block they are of.
    pub(super) fn look(&self, wanted: &Block) -> (Found, Block) {
        let range = wanted.start..wanted.end;
        let mut block = *wanted;
        let mut path = self.directory.block(&block);
        let mut opened = readable(&path);
        if matches!(&opened, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            let covering = self.keeper().covering(&wanted.object, &range).filter(|covering| covering != wanted);
            let Some(covering) = covering else { return (Found::Miss, block) };
            block = covering;
            path = self.directory.block(&block);
            opened = readable(&path);
        }
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (Found::Miss, block),
            Err(error) => {
                self.tell("read", &error);
                return (Found::Failed, block);
            }
        };
        match file::read(&mut file, &block, &range) {
            Ok(bytes) => (Found::Hit(bytes), block),
            Err(Bad::Gone) => (Found::Miss, block),
            Err(Bad::Damaged(what)) => {
                tracing::warn!("{} is read again from its origin: {what}", shown(&path).display());
                // Of several that found it at the same time, the one that removes it counts it, or each if it cannot be removed.
                let counts = self.discard(&block, &file, &path) || is_at(&file, &path);
                (if counts { Found::Damaged } else { Found::Miss }, block)
            }
            Err(Bad::Failed(error)) => {
                self.tell("read", &error);
                self.discard(&block, &file, &path);
                (Found::Failed, block)
            }
        }
    }

    /// Removes a damaged or wrong block, unless another process has replaced it meanwhile; returns true if it was removed.
    pub(super) fn discard(&self, block: &Block, file: &File, path: &Path) -> bool {
        let removed = self.change(|disk, ledger| {
            let is_there = is_at(file, path);
            if is_there {
                drop(ledger.append(&[(Event::Awaited, *block)]));
                disk.directory.delete(block)?;
                disk.keeper().remove(block);
                ledger.append(&[(Event::Removed, *block)])?;
            }
            Ok(is_there)
        });
        removed.unwrap_or_else(|error| {
            self.tell("remove a damaged block of", &error);
            false
        })
    }

    /// Tries to become the one process of this machine that fetches `block`.
    pub(super) fn claim(&self, block: &Block) -> Claimed {
        if self.rests() {
            return Claimed::Failed;
        }
        match self.directory.claim(block) {
            Ok(claimed) => claimed,
            Err(error) => {
                self.fail("write", &error);
                Claimed::Failed
            }
        }
    }

    /// Keeps `block`, which was claimed and is due at `due`, if there is room or others are needed later.
    pub(super) fn store(&self, mut claim: Claim, block: &Block, bytes: &[u8], due: Due) -> Stored {
        match self.try_store(&mut claim, block, bytes, due) {
            Ok(stored) => stored,
            Err(error) => {
                self.give_back(&claim, block);
                self.fail("write", &error);
                Stored::Failed
            }
        }
    }

    /// Gives back the room that was taken for `block`, which could not be written; if even that fails, the next process that needs it does.
    pub(super) fn give_back(&self, claim: &Claim, block: &Block) {
        let given_back = self.change(|disk, ledger| {
            if disk.keeper().has(block) && !claim.is_renamed() {
                disk.keeper().remove(block);
                ledger.append(&[(Event::Removed, *block)])?;
            }
            Ok(())
        });
        drop(given_back);
    }

    fn try_store(&self, claim: &mut Claim, block: &Block, bytes: &[u8], due: Due) -> io::Result<Stored> {
        let Some(evicted) = self.reserve(block, due)? else { return Ok(Stored::Refused) };
        let file = claim.emptied()?;
        (self.write)(file, block, bytes)?;
        file.flush()?;
        self.publish(claim, block, None).map(|is_kept| if is_kept { Stored::Kept(evicted) } else { Stored::Refused })
    }

    /// Takes room for `block`, which was claimed, if there is any or others are needed later and not held. Returns the number of those
    /// that had to go.
    pub(super) fn reserve(&self, block: &Block, due: Due) -> io::Result<Option<u64>> {
        let size = file::size(block.len());
        self.change(|disk, ledger| {
            disk.forget_killed(ledger, block)?;
            if disk.keeper().used().saturating_add(size) > disk.limit() {
                disk.reap(ledger)?;
            }
            let limit = disk.limit().saturating_sub(disk.directory.saved_size()?);
            let evicted = disk.evict(ledger, size, limit, due)?;
            if evicted.is_some() {
                ledger.append(&[(Event::Awaited, *block)])?;
                disk.keeper().insert(*block, size, due, false);
            }
            Ok(evicted)
        })
    }

    /// Takes room for `block`, which was claimed, and whose bytes lie there already as a save: the directory takes no more than before, so
    /// nothing has to go, whatever limit this process has.
    pub(super) fn reserve_saved(&self, block: &Block, due: Due) -> io::Result<()> {
        self.change(|disk, ledger| {
            disk.forget_killed(ledger, block)?;
            ledger.append(&[(Event::Awaited, *block)])?;
            disk.keeper().insert(*block, file::size(block.len()), due, false);
            Ok(())
        })
    }

    /// Forgets `block`, of which this process has the claim and there is no file: the ledger's entry for it is that of a killed process.
    fn forget_killed(&self, ledger: &mut Ledger, block: &Block) -> io::Result<()> {
        if self.keeper().has(block) {
            ledger.append(&[(Event::Removed, *block)])?;
            self.keeper().remove(block);
        }
        Ok(())
    }

    /// Evicts what is not needed before `due`, until it takes at most `limit` bytes together with `size` more. Returns the number of those
    /// that had to go; none if that is not possible.
    pub(super) fn evict(&self, ledger: &mut Ledger, size: u64, limit: u64, due: Due) -> io::Result<Option<u64>> {
        // Nobody begins to hold them until they are gone.
        let mut locked = Vec::new();
        let is_held = |block: &Block| !self.directory.may_go(block, &mut locked);
        let Some(going) = self.keeper().make_room(size, limit, due, is_held) else { return Ok(None) };
        // Tells a later clean-up to look for them, if this process is killed before it records their removal. A full disk cannot record
        // this, and has to be emptied all the same.
        let leaving: Vec<_> = going.iter().map(|block| (Event::Awaited, *block)).collect();
        drop(ledger.append(&leaving));
        let mut events = Vec::with_capacity(going.len());
        let mut outcome = Ok(());
        for block in &going {
            if outcome.is_ok() {
                outcome = self.directory.delete(block);
            }
            if outcome.is_ok() {
                events.push((Event::Removed, *block));
            } else {
                // It still takes its room.
                events.push((Event::Arrived, *block));
                let mut keeper = self.keeper();
                let last = Due::Unknown(keeper.tick());
                keeper.insert(*block, file::size(block.len()), last, true);
            }
        }
        ledger.append(&events)?;
        outcome?;
        Ok(Some(going.len() as u64))
    }

    /// Gives the file of `block`, for which room was taken, its name; `sums` are what lies beside it. Returns false if it is not wanted any
    /// more.
    pub(super) fn publish(&self, claim: &mut Claim, block: &Block, sums: Option<&[u8]>) -> io::Result<bool> {
        let path = self.directory.block(block);
        self.change(|disk, ledger| {
            // Another process that scanned the directory may have taken it for lost, or has removed the cache and begun anew.
            if !disk.keeper().has(block) || !claim.is_valid() {
                return Ok(false);
            }
            disk.directory.prepare(&path)?;
            if let Some(sums) = sums {
                let beside = disk.directory.sums(block);
                gone(fs::remove_file(&beside))?;
                writable(&beside)?.write_all(sums)?;
            }
            claim.rename(&path)?;
            disk.keeper().arrived(block);
            ledger.append(&[(Event::Arrived, *block)])?;
            Ok(true)
        })
    }

    /// Runs `work` under the lock of the ledger, with the changes of all processes applied.
    pub(super) fn change<T>(&self, work: impl FnOnce(&Self, &mut Ledger) -> io::Result<T>) -> io::Result<T> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let _locked = self.lock()?;
        match ledger.news()? {
            (_, News::Lost) => self.rebuild(&mut ledger)?,
            (anew, News::Events(events)) => self.apply(events, anew),
        }
        let blocks = self.keeper().len();
        if ledger.is_stale(blocks) {
            let blocks: Vec<_> = self.keeper().blocks().map(|(block, is_there, _)| (*block, is_there)).collect();
            // A full disk takes none; then something has to go before it does.
            if let Err(error) = ledger.rewrite(blocks.into_iter()) {
                self.tell("write the ledger of", &error);
            }
        }
        work(self, &mut ledger)
    }

    /// Applies `events` to the keeper, or replaces its content if they are complete.
    fn apply(&self, events: Vec<(Event, Block)>, all: bool) {
        if events.is_empty() && !all {
            return;
        }
        let foresight = self.readers.foresee();
        let mut keeper = self.keeper();
        let before = if all { keeper.emptied() } else { Keeper::default() };
        for (event, block) in events {
            if event == Event::Removed {
                keeper.remove(&block);
                continue;
            }
            if keeper.has(&block) {
                if event == Event::Awaited {
                    keeper.leaves(&block);
                }
            } else {
                let due = before.due(&block).or_else(|| foresight.due(&block, None).map(Due::At));
                let due = due.unwrap_or_else(|| Due::Unknown(keeper.tick()));
                keeper.insert(block, file::size(block.len()), due, false);
            }
            if event == Event::Arrived {
                keeper.arrived(&block);
            }
        }
    }

    fn lock(&self) -> io::Result<Locked> {
        let (path, begin) = (self.directory.lock(), Instant::now());
        loop {
            // A removed cache is not begun anew by processes that still read through it.
            self.directory.check_mark()?;
            let file = Unforked::new(writable(&path)?);
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Locked(file)),
                Err(TryLockError::Error(error)) => return Err(error),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
            }
            if begin.elapsed() > PATIENCE {
                return Err(io::Error::other(format!(
                    "another process holds {} for {PATIENCE:?}",
                    shown(&path).display()
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Looks through the directory, where the ledger does not tell.
    fn rebuild(&self, ledger: &mut Ledger) -> io::Result<()> {
        let (there, fetched) = (self.directory.blocks()?, self.directory.fetched()?);
        let events = fetched.into_iter().map(|block| (Event::Awaited, block));
        self.apply(events.chain(there.into_iter().map(|block| (Event::Arrived, block))).collect(), true);
        let blocks: Vec<_> = self.keeper().blocks().map(|(block, is_there, _)| (*block, is_there)).collect();
        ledger.rewrite(blocks.into_iter())
    }

    /// Gives back the room of blocks whose process ended before they were there.
    fn reap(&self, ledger: &mut Ledger) -> io::Result<()> {
        let awaited = self.keeper().awaited();
        let mut events = Vec::new();
        for block in awaited {
            if !self.directory.release(&block)? {
                continue;
            }
            let is_there = fs::symlink_metadata(self.directory.block(&block)).is_ok();
            if is_there {
                self.keeper().arrived(&block);
            } else {
                self.keeper().remove(&block);
                drop(self.directory.delete(&block));
            }
            events.push((if is_there { Event::Arrived } else { Event::Removed }, block));
        }
        ledger.append(&events)
    }

    /// Returns true if it failed a moment ago.
    fn rests(&self) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < REST)
    }

    /// Notes a failure: for a while nothing is written.
    pub(super) fn fail(&self, what: &str, error: &io::Error) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.tell(what, error);
    }

    /// Warns once of records that cannot be read: nobody knows for which addresses the store has something older.
    pub(super) fn tell_unread(&self, bad: &[Unread]) {
        if let Some(Unread { why, .. }) = bad.first()
            && !self.told_unread.swap(true, Ordering::Relaxed)
        {
            let (path, count) = (self.directory.path().display(), bad.len());
            tracing::warn!(
                "records of saves in the cache {path} cannot be read ({count}), so the store may have older files: {why}"
            );
        }
    }

    /// Warns of a failure once, and then at a lower level.
    fn tell(&self, what: &str, error: &io::Error) {
        let path = self.directory.path().display();
        if self.told.swap(true, Ordering::Relaxed) {
            tracing::debug!("cannot {what} the cache {path}, the origin is read instead: {error}");
        } else {
            tracing::warn!(
                "cannot {what} the cache {path}, the origin is read instead: {error}; later failures are counted only"
            );
        }
    }
}

fn write(file: &mut File, block: &Block, bytes: &[u8]) -> io::Result<()> {
    file::write(file, block, bytes)
}
