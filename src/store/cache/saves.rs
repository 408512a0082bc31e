//! The saves of a cache: made, found and held by readers, uploaded by one process at a time, in the order in which they were closed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::pinned::is_at;
use super::super::pinned::shown;
use super::super::unforked::Unforked;
use super::beside;
use super::block::{Block, ObjectKey};
use super::claim::Claimed;
use super::directory::readable;
use super::disk::Disk;
use super::file::{self, Bad, PIECE};
use super::hold::{Held, prove};
use super::keeper::Due;
use super::record::{Record, Target};
use super::saved::{Records, Save};
use super::shared::{Cache, Tier, is_of_the_disk};
use crate::error::{Error, Place, Result};
use crate::store::directory::failed;
use crate::store::lock::{Attempt, Lock};
use crate::store::positional::read_exact_at;

/// The longest wait for another process of this machine that makes an object appear at the same address.
const PATIENCE: Duration = Duration::from_secs(600);

/// See the module. It needs a cache on a disk.
#[derive(Debug, Clone)]
pub(crate) struct Saves(Arc<Disk>);

/// The right to do something that one process does at a time, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Lock>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            lock.remove();
        }
    }
}

/// The bytes of a save, for its upload.
#[derive(Debug)]
pub(crate) struct Source {
    held: Held,
    sums: Vec<u8>,
}

impl Source {
    /// `start..end` of its bytes, where the first is a multiple of 64 KiB; found good.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Store`].
    pub(crate) fn read(&self, start: u64, end: u64) -> Result<Bytes> {
        let path = self.held.path();
        let length = usize::try_from(end.saturating_sub(start)).map_err(|error| failed("read", path, error))?;
        let mut bytes = vec![0; length];
        read_exact_at(self.held.file(), &mut bytes, start).map_err(|error| failed("read", path, error))?;
        let first = usize::try_from(start / PIECE * 8).unwrap_or(usize::MAX);
        let expected = self.sums.get(first..).unwrap_or_default();
        if !start.is_multiple_of(PIECE) || !expected.starts_with(&file::sums(&bytes)) {
            return Err(damaged(path, "a checksum does not agree"));
        }
        Ok(bytes.into())
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    let what = format!("what was saved here and is not in its store yet is damaged: {what}");
    Error::Corrupt { place: Place::file(shown(path).display().to_string()), what, source: None }
}

impl Saves {
    /// Those of `cache`; none of one in memory.
    pub(crate) fn of(cache: &Cache) -> Option<Self> {
        match cache.tier() {
            Tier::Disk(disk) => Some(Self(Arc::clone(disk))),
            Tier::Memory(_) => None,
        }
    }

    pub(super) fn new(disk: Disk) -> Self {
        Self(Arc::new(disk))
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.0
    }

    pub(super) fn failed(&self, operation: &str, error: io::Error) -> Error {
        failed(operation, self.0.path(), error)
    }

    /// All of them, also those that only tell of an upload to be ended.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn all(&self) -> Result<Vec<Save>> {
        let found = self.found()?;
        self.0.tell_unread(&found.bad);
        Ok(found.good)
    }

    /// All of them, and the records that cannot be read.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(super) fn found(&self) -> Result<Records> {
        self.0.directory().saves().map_err(|error| self.failed("read the saves", error))
    }

    /// Checks that all records can be read: what one that cannot tells of may be in no store.
    ///
    /// # Errors
    /// [`Error::Store`] naming the first one that cannot.
    pub(crate) fn check(&self) -> Result<()> {
        match self.found()?.bad.into_iter().next() {
            Some(bad) => Err(self.failed("read the saves", bad.why)),
            None => Ok(()),
        }
    }

    /// Those that readers find.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn there(&self) -> Result<Vec<Save>> {
        let mut found = self.all()?;
        found.retain(|save| save.record.is_there);
        Ok(found)
    }

    /// The one that is to be at `target`.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn at(&self, target: &Target) -> Result<Option<Save>> {
        Ok(self.there()?.into_iter().rev().find(|save| save.record.target == *target))
    }

    /// As it is now; none if it is over.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn again(&self, save: &Save) -> Result<Option<Save>> {
        Ok(self.left(save)?.filter(|save| save.record.is_there))
    }

    /// As it is now, also if it is over and an upload is to be ended; none if nothing is left of it.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn left(&self, save: &Save) -> Result<Option<Save>> {
        let record = self.0.directory().read_record(save.name).map_err(|error| self.failed("read", error))?;
        Ok(record.map(|record| Save { name: save.name, record }))
    }

    /// The file of `save`, for readers; none if it has gone to the store meanwhile.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Store`].
    pub(crate) fn hold(&self, save: &Save, patience: Duration) -> Result<Option<Held>> {
        let path = self.0.directory().saved_bytes(save.name);
        let file = match readable(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| failed("open", &path, error))?,
        };
        match file.try_lock_shared() {
            Ok(()) if is_at(&file, &path) => {}
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path, error)),
        }
        let block = Block::whole(save.name, save.record.size);
        match prove(&file, &block, &self.0.directory().saved_sums(save.name), patience) {
            Ok(()) => Ok(Some(Held::new(file, &path))),
            Err(Bad::Gone) if self.again(save)?.is_none() => Ok(None),
            Err(Bad::Gone) => Err(damaged(&path, "it has no checksums")),
            Err(Bad::Damaged(what)) => Err(damaged(&path, what)),
            Err(Bad::Failed(error)) => Err(failed("read", &path, error)),
        }
    }

    /// The bytes of `save`, for its upload; none if it is over.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub(crate) fn source(&self, save: &Save) -> Result<Option<Source>> {
        let Some(held) = self.hold(save, PATIENCE)? else { return Ok(None) };
        let block = Block::whole(save.name, save.record.size);
        match beside::sums(held.file(), &block, &self.0.directory().saved_sums(save.name)) {
            Ok(sums) => Ok(Some(Source { held, sums })),
            Err(Bad::Gone) => Ok(None),
            Err(Bad::Damaged(what)) => Err(damaged(held.path(), what)),
            Err(Bad::Failed(error)) => Err(failed("read", held.path(), error)),
        }
    }

    /// Makes room for what is saved, which is to grow by `more` bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] if the limit is reached by saves, and by what is held; [`Error::Store`].
    pub(super) fn make_room(&self, more: u64) -> Result<()> {
        let made = self.0.change(|disk, ledger| {
            disk.directory().reap_saves()?;
            let saved = disk.directory().saved_size()?.saturating_add(more);
            let room = disk.limit().checked_sub(saved);
            let evicted = room.map(|room| disk.evict(ledger, 0, room, Due::At(0))).transpose()?.flatten();
            Ok((saved, evicted.is_some()))
        });
        match made.map_err(|error| self.failed("free space in the cache", error))? {
            (_, true) => Ok(()),
            (saved, false) => {
                let what = format!("what is saved in {} and not in its store yet", self.0.path().display());
                Err(Error::limit(what, saved, self.0.limit(), "cache_bytes"))
            }
        }
    }

    /// Writes what `save` has become: the progress of its upload, or its failure. Returns false if it is over.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn note(&self, save: &Save) -> Result<bool> {
        let noted = self.0.change(|disk, _| {
            let now = disk.directory().read_record(save.name)?;
            // Another process may have given it another address.
            let now = now.filter(|now| now.is_there && now.target == save.record.target);
            if let Some(now) = &now {
                let record = Record { before: now.before.clone(), ..save.record.clone() };
                disk.directory().write_record(save.name, &record, false)?;
            }
            Ok(now.is_some())
        });
        noted.map_err(|error| self.failed("write", error))
    }

    /// Gives `save` another address, where the store has `found`, if that is known; what was saved for that is over. An upload that was
    /// begun is given up by whoever has it.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn rename(&self, save: &Save, target: &Target, found: Option<String>) -> Result<bool> {
        let renamed = self.0.change(|disk, _| {
            let Some(mut record) = disk.directory().read_record(save.name)?.filter(|record| record.is_there) else {
                return Ok(false);
            };
            if record.upload.is_some() {
                return Ok(false);
            }
            let others = disk.directory().saves()?;
            (record.target, record.before) = (target.clone(), None);
            // As for one that is saved there.
            record.found = found.filter(|_| others.good.iter().all(|other| other.record.target != *target));
            // It is the last one of its new address, also if this process is killed before it has ended the others.
            record.sequence = others.next();
            disk.directory().write_record(save.name, &record, true)?;
            let earlier = |other: &&Save| other.name != save.name && other.is_for(target);
            others.good.iter().filter(earlier).for_each(|other| drop(self.end(other)));
            Ok(true)
        });
        renamed.map_err(|error| self.failed("write", error))
    }

    /// Ends all saves for `target` but the one that was closed last: a process that was killed between the two steps of a save has left the
    /// one before as well, which would come after it in the store.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn end_replaced(&self, target: &Target) -> Result<()> {
        let ended = self.0.change(|disk, _| {
            let mut same = disk.directory().saves()?.good;
            same.retain(|save| save.is_for(target));
            let last = same.iter().map(|save| (save.record.sequence, save.name)).max();
            let replaced = same.iter().filter(|save| Some((save.record.sequence, save.name)) != last);
            replaced.into_iter().try_for_each(|save| self.end(save))
        });
        ended.map_err(|error| self.failed("write", error))
    }

    /// Ends `last` and what was saved for its address before: something else is there now. What was closed later stays.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn end_until(&self, last: &Save) -> Result<()> {
        let ended = self.0.change(|disk, _| {
            let is_meant =
                |save: &&Save| save.is_for(&last.record.target) && save.record.sequence <= last.record.sequence;
            disk.directory().saves()?.good.iter().filter(is_meant).try_for_each(|save| self.end(save))
        });
        ended.map_err(|error| self.failed("write", error))
    }

    /// Notes at the saves for `target` that something later is about to be put there, where the store has `before` now; or with none that
    /// nothing is. If this process is killed, whoever comes next sees whether it was put there.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn note_before(&self, target: &Target, before: Option<&str>) -> Result<()> {
        let noted = self.0.change(|disk, _| {
            let is_meant = |save: &Save| save.is_for(target) && save.record.before.as_deref() != before;
            disk.directory().saves()?.good.into_iter().filter(is_meant).try_for_each(|save| {
                let record = Record { before: before.map(str::to_owned), ..save.record };
                disk.directory().write_record(save.name, &record, true)
            })
        });
        noted.map_err(|error| self.failed("write", error))
    }

    /// Ends `save`: something that came later is in its store.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn end_one(&self, save: &Save) -> Result<()> {
        self.0.change(|_, _| self.end(save)).map_err(|error| self.failed("write", error))
    }

    /// Ends `save`. Its record stays if an upload is to be ended.
    pub(super) fn end(&self, save: &Save) -> io::Result<()> {
        let directory = self.0.directory();
        match directory.read_record(save.name)? {
            Some(record) if record.upload.is_some() => {
                let record = Record { is_there: false, ..record };
                directory.write_record(save.name, &record, true)
            }
            _ => directory.delete_save(save.name),
        }
    }

    /// Forgets `save`, which is in its store, or was given up there.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn forget(&self, save: &Save) -> Result<()> {
        let forgotten = self.0.change(|disk, _| disk.directory().delete_save(save.name));
        forgotten.map_err(|error| self.failed("write", error))
    }

    /// Removes the files of saves that are over, which somebody still had open when they ended.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn reap(&self) -> Result<()> {
        let reaped = self.0.change(|disk, _| disk.directory().reap_saves());
        reaped.map_err(|error| self.failed("clean up", error))
    }

    /// Returns true if a live process is writing `save`, which is not there yet.
    pub(crate) fn is_written(&self, save: &Save) -> bool {
        self.0.directory().is_written(save.name)
    }

    /// Makes the bytes of `save` the block of the version `key` that its store has now. A failure costs a later read of the store.
    pub(crate) fn adopt(&self, save: &Save, source: Source, key: ObjectKey) {
        let (path, Source { held, sums }) = (self.0.directory().saved_bytes(save.name), source);
        drop(held);
        let adopted = readable(&path).and_then(|file| {
            // Whoever has it open may open its path too: then it stays until it is reaped.
            let is_held = file.try_lock().is_err();
            if is_held {
                file.try_lock_shared().map_err(io::Error::from)?;
            }
            adopt(self, save.name, Unforked::new(file), Block::whole(key, save.record.size), &sums, is_held)
        });
        if let Err(error) = adopted {
            tracing::debug!("{} is not kept in the cache: {error}", save.record.target.url);
        }
    }

    /// The turn to upload `save`; none if a live process has it.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn turn(&self, save: &Save) -> Result<Option<Turn>> {
        match Lock::attempt(&self.0.directory().saved_lock(save.name))? {
            Attempt::Held(lock) => Ok(Some(Turn(Some(lock)))),
            Attempt::Busy(_) => Ok(None),
        }
    }

    /// The turn to make an object appear at `target`, or go: on this machine one at a time.
    ///
    /// # Errors
    /// [`Error::Closed`] if another process has it for too long; [`Error::Store`].
    pub(crate) async fn turn_at(&self, target: &Target) -> Result<Turn> {
        let path = self.0.directory().saved_lock(target.name());
        self.0.directory().prepare(&path).map_err(|error| self.failed("write", error))?;
        let lock = Lock::take_within(&path, &format!("put {}", target.url), PATIENCE).await?;
        Ok(Turn(Some(lock)))
    }

    /// [`turn_at`](Self::turn_at), if nobody has it.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    pub(crate) fn turn_at_once(&self, target: &Target) -> Result<Option<Turn>> {
        match Lock::attempt(&self.0.directory().saved_lock(target.name()))? {
            Attempt::Held(lock) => Ok(Some(Turn(Some(lock)))),
            Attempt::Busy(_) => Ok(None),
        }
    }

    /// [`turn_at`](Self::turn_at) for what is done in the store alone. If the cache's disk fails, is full or read-only, or the cache was
    /// removed, it is done without a turn, with a warning: the store is not to blame.
    ///
    /// # Errors
    /// [`Error::Closed`] if another process has it for too long; [`Error::Store`] for a directory that is not as it should be.
    pub(crate) async fn turn_if_any(&self, target: &Target) -> Result<Turn> {
        match self.turn_at(target).await {
            Err(error) if is_of_the_disk(&error) || self.0.directory().check_mark().is_err() => {
                tracing::warn!("{} is changed without regard to other processes: {}", target.url, error.chain());
                Ok(Turn(None))
            }
            turn => turn,
        }
    }
}

pub(super) fn read_only(file: &File) {
    // Where that cannot be said, a change is seen by its time.
    if let Ok(found) = file.metadata() {
        let mut permissions = found.permissions();
        permissions.set_readonly(true);
        drop(file.set_permissions(permissions));
    }
}

/// Makes `file`, the bytes of the save `name`, the file of `block` with these checksums. It is locked, if only for sharing; where others
/// hold it too, it keeps its name beside the new one. Returns false if the block is there.
pub(super) fn adopt(
    saves: &Saves,
    name: ObjectKey,
    file: Unforked,
    block: Block,
    sums: &[u8],
    is_held: bool,
) -> io::Result<bool> {
    let disk = saves.disk();
    let directory = disk.directory();
    let Claimed::Mine(claim) = directory.claim(&block)? else { return Ok(false) };
    disk.reserve_saved(&block, Due::At(0))?;
    let (from, to) = (directory.saved_bytes(name), directory.fetch(&block));
    let moved =
        if is_held { fs::remove_file(&to).and_then(|()| fs::hard_link(&from, &to)) } else { fs::rename(&from, &to) };
    let mut claim = claim.with(file);
    let published = moved.and_then(|()| {
        read_only(claim.file());
        let sums = beside::proven(claim.file(), &block, sums)?;
        disk.publish(&mut claim, &block, Some(&sums))
    });
    if !matches!(published, Ok(true)) {
        disk.give_back(&claim, &block);
    }
    published
}
