//! Administration of a cache's directory: show it, check it, and remove it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::super::directory::failed;
use super::super::pinned::is_at;
use super::super::pinned::shown;
use super::beside;
use super::block::Block;
use super::directory::{Directory, readable};
use super::disk::Disk;
use super::file::{self, Bad};
use super::readers::Readers;
use super::saved::Save;
use super::saves::Saves;
use crate::error::{Error, Result};
use crate::store::multipart::part;

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
    /// Files that were saved and are not in their stores yet, in the order in which they were closed.
    pub saves: Vec<Unstored>,
    /// Records of saves that cannot be read, and why: what they tell of may be in no store.
    pub unread: Vec<String>,
}

/// A file that was saved and is not in its store yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unstored {
    /// Its address.
    pub url: String,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of them that the store has.
    pub sent: u64,
    /// Seconds since it was saved.
    pub age: u64,
    /// True if a process is uploading it.
    pub is_going: bool,
    /// The last failure of its upload.
    pub failure: Option<String>,
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
    /// Files that were saved, are not in their stores yet, and are damaged, and why. They stay: they are nowhere else.
    pub damaged_saves: Vec<String>,
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
/// [`Error::NotFound`] and [`Error::Config`] where no cache is;
/// [`Error::Store`].
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
    let saves = Saves::new(disk);
    let found = saves.found()?;
    Ok(Status {
        directory: directory.path().display().to_string(),
        blocks: blocks.len() as u64,
        bytes: bytes(&blocks),
        objects: objects.len() as u64,
        awaited: fetched.len() as u64,
        accounted,
        unread: found.bad.iter().map(|bad| bad.why.to_string()).collect(),
        saves: unstored(&saves, found.good)?,
    })
}

fn unstored(saves: &Saves, found: Vec<Save>) -> Result<Vec<Unstored>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let told = |save: Save| {
        let record = &save.record;
        let parts = record.upload.iter().flat_map(|begun| begun.parts.iter().enumerate());
        let sent = parts.filter(|(_, id)| id.is_some()).filter_map(|(index, _)| part(index));
        Ok(Unstored {
            bytes: record.size,
            sent: sent.map(|part| part.end.min(record.size).saturating_sub(part.start)).sum(),
            age: u64::try_from(now.saturating_sub(record.saved_at.try_into().unwrap_or(0)) / 1_000_000_000)
                .unwrap_or(0),
            is_going: saves.turn(&save)?.is_none(),
            failure: record.failure.clone(),
            url: save.record.target.url,
        })
    };
    found.into_iter().filter(|save| save.record.is_there).map(told).collect()
}

/// Reads all blocks of the cache in `path`, and all that was saved and is not in its store yet, and removes blocks that are damaged.
///
/// # Errors
/// As [`status`].
pub fn verify(path: &Path) -> Result<Verified> {
    verify_seen(path, |_, _| {})
}

/// As [`verify`], and tells the bytes that are read, and all there are, before each block and at the end.
///
/// # Errors
/// As [`status`].
pub(crate) fn verify_seen(path: &Path, mut seen: impl FnMut(u64, u64)) -> Result<Verified> {
    let directory = Directory::existing(path)?;
    let saves = Saves::new(Disk::open(path, u64::MAX, Readers::default().into())?);
    let blocks = directory.blocks().map_err(|error| failed("list", path, error))?;
    let saved = saves.there()?;
    let (mut good, mut bytes, mut damaged) = (0, 0, Vec::new());
    let sizes = blocks.iter().map(Block::len).chain(saved.iter().map(|save| save.record.size));
    let (mut done, all) = (0_u64, sizes.fold(0, u64::saturating_add));
    for block in blocks {
        seen(done, all);
        done += block.len();
        let place = directory.block(&block);
        let named = shown(&place);
        let named = named.display();
        let mut file = match readable(&place) {
            Ok(file) => file,
            Err(error) => {
                // It was evicted meanwhile, if it is not there.
                if error.kind() != ErrorKind::NotFound {
                    damaged.push(format!("{named}: {error}"));
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
        if saves.disk().discard(&block, &file, &place) {
            damaged.push(format!("{named}: {what}"));
        } else if is_at(&file, &place) {
            damaged.push(format!("{named}: {what}, and it cannot be removed"));
        }
    }
    let mut damaged_saves = Vec::new();
    for save in &saved {
        seen(done, all);
        done = done.saturating_add(save.record.size);
        damaged_saves.extend(damage(&saves, save)?);
    }
    seen(done, all);
    Ok(Verified { directory: directory.path().display().to_string(), good, bytes, damaged, damaged_saves })
}

/// What is wrong with the bytes of `save`; none if they are good, or have gone to the store meanwhile.
fn damage(saves: &Saves, save: &Save) -> Result<Option<String>> {
    let directory = saves.disk().directory();
    let (path, block) = (directory.saved_bytes(save.name), Block::whole(save.name, save.record.size));
    let checked = readable(&path)
        .map_err(Bad::from)
        .and_then(|file| beside::check(&file, &block, &directory.saved_sums(save.name)));
    let what = match checked {
        Ok(()) => return Ok(None),
        Err(Bad::Gone) => "its bytes are gone".to_owned(),
        Err(Bad::Damaged(what)) => what.to_owned(),
        Err(Bad::Failed(error)) => error.to_string(),
    };
    Ok(saves.again(save)?.map(|save| format!("{}, {}: {what}", save.record.target.url, shown(&path).display())))
}

/// Removes the cache in `path`, and nothing else that is there. Processes that use it read from the origin from then on. What was saved and
/// is not in its store yet exists nowhere else: it goes only `with_saves`.
///
/// # Errors
/// As [`status`]; [`Error::Config`] if it has such files, or records of them that cannot be read.
pub fn remove(path: &Path, with_saves: bool) -> Result<Removed> {
    let directory = Directory::existing(path)?;
    let blocks = directory.blocks().map_err(|error| failed("list", path, error))?;
    let disk = Disk::open(path, u64::MAX, Readers::default().into())?;
    let removed = disk.change(|_, _| {
        // Here, where nobody closes another one before it is removed.
        let found = directory.saves()?;
        let unstored = found.good.iter().filter(|save| save.record.is_there).count();
        if (unstored > 0 || !found.bad.is_empty()) && !with_saves {
            return Ok(Err((unstored, found.bad)));
        }
        directory.remove().map(Ok)
    });
    let gone = removed.map_err(|error| failed("remove", path, error))?.map_err(|(unstored, unread)| {
        let mut left = Vec::new();
        if unstored > 0 {
            left.push(format!(
                "{unstored} saved files that their stores do not have yet: upload them first (bowstring cache upload)"
            ));
        }
        if let Some(first) = unread.first() {
            left.push(format!(
                "records of saves that cannot be read ({}), whose files may be in no store: {}",
                unread.len(),
                first.why
            ));
        }
        let problem = format!("{} has {}; --with-saves loses them", path.display(), left.join("; and "));
        Error::config("cache", problem)
    })?;
    let left = blocks.iter().filter(|block| fs::symlink_metadata(directory.block(block)).is_ok()).count();
    let shown = directory.path().display().to_string();
    Ok(Removed { directory: shown, blocks: (blocks.len() - left) as u64, bytes: bytes(&blocks), gone })
}

fn bytes(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| file::size(block.len())).sum()
}
