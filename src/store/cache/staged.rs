//! A file that is being saved: it grows in the directory of a cache, and nobody sees it before it is whole.
//!
//! ```text
//!   write, write, .. ─► commit ─► a save, which readers of this machine find at once, and which is uploaded afterwards
//!                   └─► adopt ──► a block of the version that the store has by then
//!                   └─► dropped, or its process is killed: nothing
//! ```

use std::fs;
use std::io::{self, Write};

use super::super::pinned::is_at;
use super::super::unforked::Unforked;
use super::beside;
use super::block::{Block, ObjectKey};
use super::directory::writable;
use super::file::Sums;
use super::record::{Begun, Record, Target};
use super::saved::{Save, fresh};
use super::saves::{Saves, Turn, adopt, read_only};
use crate::error::Result;

/// Room for saves is looked for each time that one has grown by so many bytes.
const STEP: u64 = 16 << 20;

/// Attempts to make a file that a clean-up of leftovers removes before it is locked.
const TRIES: usize = 100;

/// See the module.
#[derive(Debug)]
pub(crate) struct Staged {
    saves: Saves,
    name: ObjectKey,
    /// Locked; none once it is something else.
    file: Option<Unforked>,
    sums: Sums,
    size: u64,
    /// Size up to which there is room.
    room: u64,
    is_spoilt: bool,
}

impl Staged {
    /// Makes one, with nothing in it.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if the disk fails.
    pub(crate) fn begin(saves: &Saves) -> Result<Self> {
        Self::try_begin(saves).map_err(|error| saves.failed("write", error))
    }

    fn try_begin(saves: &Saves) -> io::Result<Self> {
        let directory = saves.disk().directory();
        for _ in 0..TRIES {
            let name = fresh();
            let path = directory.saved_bytes(name);
            directory.prepare(&path)?;
            let file = Unforked::new(writable(&path)?);
            if file.try_lock().is_ok() && is_at(&file, &path) {
                return Ok(Self {
                    saves: saves.clone(),
                    name,
                    file: Some(file),
                    sums: Sums::default(),
                    size: 0,
                    room: 0,
                    is_spoilt: false,
                });
            }
        }
        Err(io::Error::other("others remove each new file at once"))
    }

    /// Its bytes so far.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Adds the next bytes.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) if the cache has no room for what is saved, [`Error::Store`](crate::Error::Store) if its disk fails.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let size = self.size.saturating_add(bytes.len() as u64);
        if self.is_spoilt {
            self.size = size;
            return Ok(());
        }
        if size > self.room {
            // Near the limit each byte counts.
            let more = size - self.size;
            self.room = match self.saves.make_room(more.saturating_add(STEP)) {
                Ok(()) => size.saturating_add(STEP),
                Err(_) => self.saves.make_room(more).map(|()| size)?,
            };
        }
        let Some(mut file) = self.file.as_deref() else { return Err(self.saves.failed("write", over())) };
        file.write_all(bytes).map_err(|error| self.saves.failed("write", error))?;
        self.sums.add(bytes);
        self.size = size;
        Ok(())
    }

    /// Keeps no bytes from here on, but the note of the upload, and the sign that its process lives.
    pub(crate) fn spoil(&mut self) {
        self.is_spoilt = true;
        drop(self.file.as_ref().map(|file| file.set_len(0)));
    }

    /// Notes the upload to `target` that was begun of these bytes, so that another process can end it if this one is killed.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if the cache's disk fails.
    pub(crate) fn note(&self, target: &Target, upload: &str) -> Result<()> {
        let mut record = Record::new(target.clone(), self.size, false);
        record.upload = Some(Begun { id: upload.to_owned(), parts: Vec::new() });
        let written = self.saves.disk().directory().write_record(self.name, &record, false);
        written.map_err(|error| self.saves.failed("write", error))
    }

    /// Makes it a save of what is to be at `target`: from here on readers of this machine find it, and no crash loses it. Earlier saves of
    /// that are over. `found` is what the store has there, if that is known. The lock is that of its upload.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if the cache's disk fails; there is no save then.
    pub(crate) fn commit(mut self, target: Target, found: Option<String>) -> Result<(Save, Turn)> {
        let saves = self.saves.clone();
        let failed = |error| saves.failed("write", error);
        let (directory, name) = (saves.disk().directory(), self.name);
        let Some(file) = self.file.as_deref() else { return Err(failed(over())) };
        file.sync_all().map_err(failed)?;
        let block = Block::whole(name, self.size);
        let sums = beside::proven(file, &block, &self.sums.finish()).map_err(failed)?;
        let mut beside = writable(&directory.saved_sums(name)).map_err(failed)?;
        beside.write_all(&sums).and_then(|()| beside.sync_all()).map_err(failed)?;
        let mut save = Save { name, record: Record::new(target, self.size, true) };
        let turn = saves.turn(&save)?.ok_or_else(|| failed(io::Error::other("another process has its lock")))?;
        let record = &mut save.record;
        let committed = saves.disk().change(|_, _| {
            let others = directory.saves()?;
            record.sequence = others.next();
            // What others of this address have sent may still come to the store, and is no later save.
            record.found = found.filter(|_| others.good.iter().all(|save| save.record.target != record.target));
            // Nobody is to change it, and whoever finds the record may open it. Clean-ups wait for the ledger.
            read_only(file);
            drop(file.unlock());
            directory.write_record(name, record, true)?;
            let earlier = others.good.iter().filter(|save| save.is_for(&record.target));
            earlier.for_each(|save| drop(saves.end(save)));
            Ok(())
        });
        if let Err(error) = committed {
            drop(directory.delete_save(name));
            return Err(failed(error));
        }
        self.file = None;
        Ok((save, turn))
    }

    /// Makes it the block of the version `key` that the store has now. A failure costs a later read of the store.
    pub(crate) fn adopt(mut self, key: ObjectKey) {
        if self.is_spoilt {
            return self.discard();
        }
        let (saves, name) = (self.saves.clone(), self.name);
        let Some(file) = self.file.take() else { return };
        let sums = self.sums.finish();
        if let Err(error) = adopt(&saves, name, file, Block::whole(key, self.size), &sums, false) {
            saves.disk().fail("write", &error);
        }
        drop(saves.disk().directory().delete_save(name));
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let directory = self.saves.disk().directory();
            let path = directory.saved_bytes(self.name);
            if is_at(&file, &path) {
                drop(fs::remove_file(path));
            }
            drop(file.unlock());
            // A record stays for whoever ends the upload, unless that was done.
            drop(fs::remove_file(directory.saved_sums(self.name)));
        }
    }
}

impl Staged {
    /// Drops it, together with the note of its upload, which was ended.
    pub(crate) fn discard(self) {
        let (saves, name) = (self.saves.clone(), self.name);
        drop(self);
        drop(saves.disk().directory().delete_save(name));
    }
}

fn over() -> io::Error {
    io::Error::other("the file is closed")
}
