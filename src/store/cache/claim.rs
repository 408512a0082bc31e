//! The right to fetch a block: a lock on the file that becomes it, which ends with the process.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::super::pinned::is_at;
use super::super::unforked::Unforked;
use super::block::Block;
use super::directory::{Directory, readable, writable};

/// Attempts to open a file that its holder renames or removes meanwhile.
const TRIES: usize = 100;

/// The outcome of an attempt to claim the fetch of a block.
#[derive(Debug)]
pub(super) enum Claimed {
    Mine(Claim),
    /// It is in the cache already.
    There,
    /// Another reader is fetching it.
    Busy,
    /// The disk fails, or takes no writes: it is fetched, and not kept.
    Failed,
}

/// The right to fetch a block, which ends with the process.
#[derive(Debug)]
pub(super) struct Claim {
    file: Unforked,
    path: PathBuf,
    renamed: bool,
}

impl Claim {
    /// The file, with nothing in it: a process that was killed may have left a part.
    pub(super) fn emptied(&mut self) -> io::Result<&mut File> {
        self.file.set_len(0)?;
        Ok(&mut self.file)
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns true if the file still has the name that it was claimed by.
    pub(super) fn is_valid(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    /// The same right, with `file` as the one that becomes the block: it is at the path of the claim now, and locked by this process.
    pub(super) fn with(self, file: Unforked) -> Self {
        Self { file, path: self.path.clone(), renamed: false }
    }

    /// Gives the file the name of its block.
    pub(super) fn rename(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        Ok(())
    }

    /// Returns true if it is the block's file.
    pub(super) fn is_renamed(&self) -> bool {
        self.renamed
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A process that waited for the lock checks that the name still means this file; and so does this one, since the cache may have
        // been removed and begun anew.
        if !self.renamed && is_at(&self.file, &self.path) {
            drop(fs::remove_file(&self.path));
        }
        drop(self.file.unlock());
    }
}

impl Directory {
    /// Tries to become the one process of this machine that fetches `block`.
    pub(super) fn claim(&self, block: &Block) -> io::Result<Claimed> {
        let path = self.fetch(block);
        for _ in 0..TRIES {
            let file = Unforked::new(match writable(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.prepare(&path)?;
                    writable(&path)?
                }
                opened => opened?,
            });
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Claimed::Busy),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if !is_at(&file, &path) {
                continue;
            }
            let claim = Claim { file, path, renamed: false };
            let is_there = fs::symlink_metadata(self.block(block)).is_ok();
            return Ok(if is_there { Claimed::There } else { Claimed::Mine(claim) });
        }
        Ok(Claimed::Busy)
    }

    /// Removes the leftovers of `block` of a process that has ended; false if a live process has it.
    pub(super) fn release(&self, block: &Block) -> io::Result<bool> {
        let path = self.fetch(block);
        let file = match readable(&path) {
            Ok(file) => Unforked::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        if file.try_lock().is_err() || !is_at(&file, &path) {
            return Ok(false);
        }
        drop(Claim { file, path, renamed: false });
        Ok(true)
    }
}
