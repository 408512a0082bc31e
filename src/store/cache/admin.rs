//! Administration of a cache's directory: show it, check it, and remove it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use serde::Serialize;

use super::super::directory::failed;
use super::beside;
use super::block::Block;
use super::directory::Directory;
use super::disk::Disk;
use super::file::{self, Bad};
use super::ledger::is_at;
use super::readers::Readers;
use crate::error::Result;

/// The content of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The directory.
    pub directory: String,
    /// Blocks that are there.
    pub blocks: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Objects, each version for itself, that they are of.
    pub objects: u64,
    /// Blocks that processes are fetching.
    pub awaited: u64,
    /// Bytes according to the ledger, which processes compare with their limit.
    pub accounted: u64,
}

/// The result of a check of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The directory.
    pub directory: String,
    /// Blocks that are as they were written.
    pub good: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are damaged or cannot be read, and why. They are removed, unless that fails, and read from their origins again.
    pub damaged: Vec<String>,
}

/// The removed part of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// The directory.
    pub directory: String,
    /// Blocks that were removed.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// True if the directory is gone; it stays if it holds anything that is not the cache's.
    pub gone: bool,
}

/// Reads the content of the cache in `path`.
///
/// # Errors
/// [`Error::NotFound`](crate::Error::NotFound) and [`Error::Config`](crate::Error::Config) where no cache is;
/// [`Error::Store`](crate::Error::Store).
pub fn status(path: &Path) -> Result<Status> {
    let directory = Directory::existing(path)?;
    let list = |error| failed("list", path, error);
    // First, room taken by killed processes is freed.
    let disk = Disk::open(path, u64::MAX, Readers::default().into())?;
    let accounted = disk.keeper().used();
    let (blocks, fetched) = (directory.blocks().map_err(list)?, directory.fetched().map_err(list)?);
    let mut objects: Vec<_> = blocks.iter().map(|block| block.object).collect();
    objects.sort_unstable();
    objects.dedup();
    Ok(Status {
        directory: directory.path().display().to_string(),
        blocks: blocks.len() as u64,
        bytes: bytes(&blocks),
        objects: objects.len() as u64,
        awaited: fetched.len() as u64,
        accounted,
    })
}

/// Reads all blocks of the cache in `path` and removes those that are damaged.
///
/// # Errors
/// As [`status`].
pub fn verify(path: &Path) -> Result<Verified> {
    let directory = Directory::existing(path)?;
    let disk = Disk::open(path, u64::MAX, Readers::default().into())?;
    let blocks = directory.blocks().map_err(|error| failed("list", path, error))?;
    let (mut good, mut bytes, mut damaged) = (0, 0, Vec::new());
    for block in blocks {
        let place = directory.block(&block);
        let mut file = match File::open(&place) {
            Ok(file) => file,
            Err(error) => {
                // It was evicted meanwhile, if it is not there.
                if error.kind() != ErrorKind::NotFound {
                    damaged.push(format!("{}: {error}", place.display()));
                }
                continue;
            }
        };
        let read = if block.is_whole() {
            beside::check(&file, &block, &directory.sums(&block))
        } else {
            file::read(&mut file, &block, &(block.start..block.end)).map(drop)
        };
        let what = match read {
            Ok(()) => {
                (good, bytes) = (good + 1, bytes + file::size(block.len()));
                continue;
            }
            Err(Bad::Gone) => continue,
            Err(Bad::Damaged(what)) => what.to_string(),
            Err(Bad::Failed(error)) => error.to_string(),
        };
        if disk.discard(&block, &file, &place) {
            damaged.push(format!("{}: {what}", place.display()));
        } else if is_at(&file, &place) {
            damaged.push(format!("{}: {what}, and it cannot be removed", place.display()));
        }
    }
    Ok(Verified { directory: directory.path().display().to_string(), good, bytes, damaged })
}

/// Removes the cache in `path`, and nothing else that is there. Processes that use it read from the origin from then on.
///
/// # Errors
/// As [`status`].
pub fn remove(path: &Path) -> Result<Removed> {
    let directory = Directory::existing(path)?;
    let blocks = directory.blocks().map_err(|error| failed("list", path, error))?;
    let disk = Disk::open(path, u64::MAX, Readers::default().into())?;
    let gone = disk.change(|_, _| directory.remove()).map_err(|error| failed("remove", path, error))?;
    let left = blocks.iter().filter(|block| fs::symlink_metadata(directory.block(block)).is_ok()).count();
    let shown = directory.path().display().to_string();
    Ok(Removed { directory: shown, blocks: (blocks.len() - left) as u64, bytes: bytes(&blocks), gone })
}

fn bytes(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| file::size(block.len())).sum()
}
