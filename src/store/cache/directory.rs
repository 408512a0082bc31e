//! The directory of a cache: its layout, and the mark that identifies it.
//!
//! ```text
//!   BOWSTRING_CACHE      says that the directory is a cache: without it nothing is touched
//!   blocks/ab/NAME       blocks, whole and never changed; those that are files of other programs have their checksums in NAME.sums
//!   saved/NAME           what was saved and is not in its store yet; see `saved`
//!   fetch/NAME           a block that some process fetches, locked by it until it has its name
//!   ledger, lock         what there is, and the lock of whoever changes that
//! ```
//! Only files with the name of a block, or one of these, are ever deleted, and only in a directory with the mark.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::address::is_address;
use super::super::directory::failed;
use super::super::pinned::{Pinned, identity};
use super::super::publish::put_file;
use super::block::Block;
use super::remembered::Remembered;
use crate::error::{Error, Result};

/// The mark.
pub(super) const MARK: &str = "BOWSTRING_CACHE";
const MARKED: &str = "{\"bowstring_cache\": 1}\n";
/// The form that the mark names.
const FORM: u64 = 1;
/// Most bytes of a mark that are read.
const LONGEST_MARK: u64 = 4096;
const BLOCKS: &str = "blocks";
const FETCH: &str = "fetch";
pub(super) const LEDGER: &str = "ledger";
/// Name of the ledger while it is rewritten.
pub(super) const LEDGER_ASIDE: &str = "ledger.new";
const LOCK: &str = "lock";
/// The directory of saves; see `saved`.
pub(super) const SAVED: &str = "saved";
/// Attempts to empty a cache that is removed while others write into it.
const TRIES: usize = 1000;
/// Ending of the checksums that lie beside a file.
const SUMS: &str = "sums";

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    /// The directory that was opened, whatever has its name by now: nothing is looked for, written or deleted in another one.
    pinned: Pinned,
    /// The records of its saves that were read.
    records: Arc<Remembered>,
}

impl Directory {
    pub(super) fn records(&self) -> &Remembered {
        &self.records
    }

    /// The cache in `path`, which is made if there is nothing.
    ///
    /// # Errors
    /// [`Error::Config`] naming `cache` for an address, for a file, and for a directory that has other files; [`Error::Store`] where it cannot
    /// be made.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if path.to_str().is_some_and(is_address) {
            let problem =
                format!("{} is an address; a cache is a directory of this machine, or memory", path.display());
            return Err(Error::config("cache", problem));
        }
        match fs::metadata(path) {
            Ok(found) if !found.is_dir() => {
                return Err(Error::config("cache", format!("{} is no directory", path.display())));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                private().recursive(true).create(path).map_err(|error| failed("make the cache", path, error))?;
            }
            Err(error) => return Err(failed("open the cache", path, error)),
        }
        let found = Self::opened(path)?;
        if !found.is_marked()? && found.is_vacant()? {
            match put_file(&found.at().join(MARK), MARKED.as_bytes()) {
                // Another process was faster.
                Err(_) if found.is_marked()? => {}
                outcome => outcome?,
            }
        }
        Ok(found)
    }

    /// The cache in `path`, which has to be there.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no directory, [`Error::Config`] if it is no cache, [`Error::Store`].
    pub(super) fn existing(path: &Path) -> Result<Self> {
        match fs::metadata(path) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(failed("open the cache", path, error));
            }
            Ok(found) if found.is_dir() => {}
            _ => {
                let hint = "it is the directory that was given as cache".to_owned();
                return Err(Error::NotFound { what: format!("cache {}", path.display()), hint });
            }
        }
        let found = Self::opened(path)?;
        if found.is_marked()? {
            return Ok(found);
        }
        Err(Error::config("cache", format!("{} has no {MARK}: it is no cache of bowstring", path.display())))
    }

    fn opened(path: &Path) -> Result<Self> {
        let unopened = |error| failed("open the cache", path, error);
        let real = fs::canonicalize(path).map_err(unopened)?;
        let pinned = Pinned::unlinked(&real).map_err(unopened)?;
        let records = Remembered::of(pinned.identity().map_err(unopened)?);
        let found = Self { path: real, pinned, records };
        found.check_owner()?;
        Ok(found)
    }

    /// Checks that nobody else has filled it: checksums detect damage, not lies.
    ///
    /// # Errors
    /// [`Error::Config`] if it, or its mark, is neither of this user nor of root; [`Error::Store`].
    #[cfg(unix)]
    fn check_owner(&self) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let own = rustix::process::geteuid().as_raw();
        let unopened = |error| failed("open the cache", &self.path, error);
        let refused = |what: &Path, owner: u32| {
            let problem = format!(
                "{} is of user {owner}, who could put other bytes into it; give a directory of user {own}, who runs this process",
                what.display()
            );
            Error::config("cache", problem)
        };
        let owner = fs::metadata(self.at()).map_err(unopened)?.uid();
        // Some file systems say that all of this user is somebody else's.
        if ![own, 0].contains(&owner) && Pinned::own(&self.path).is_err() {
            return Err(refused(&self.path, owner));
        }
        match fs::symlink_metadata(self.at().join(MARK)) {
            Ok(mark) if ![own, 0, owner].contains(&mark.uid()) => Err(refused(&self.path.join(MARK), mark.uid())),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(unopened(error)),
        }
    }

    /// Only Unix tells owners.
    #[cfg(not(unix))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "as above")]
    fn check_owner(&self) -> Result<()> {
        Ok(())
    }

    /// Its path, for people.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its path, for what is done in it.
    pub(super) fn at(&self) -> &Path {
        self.pinned.at()
    }

    /// Returns true if its path still leads to it, and it is still a cache.
    pub(super) fn is_current(&self) -> bool {
        let named = fs::metadata(&self.path).ok().map(|found| identity(&found));
        named.is_some() && named == self.pinned.identity().ok() && self.is_marked().unwrap_or(false)
    }

    fn is_marked(&self) -> Result<bool> {
        let mark = self.at().join(MARK);
        match fs::symlink_metadata(&mark) {
            Ok(found) if found.is_file() => self.check_form(&mark).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("open the cache", &mark, error)),
        }
    }

    /// Two forms in one directory would take each other's files for damaged ones, and delete them.
    fn check_form(&self, mark: &Path) -> Result<()> {
        let file = readable(mark).map_err(|error| failed("open the cache", mark, error))?;
        let found: Option<serde_json::Value> = serde_json::from_reader(file.take(LONGEST_MARK)).ok();
        match found.and_then(|mark| mark.get("bowstring_cache")?.as_u64()) {
            Some(form) if form > FORM => Err(Error::unsupported(
                format!(
                    "form {form} of the cache {}; bowstring {} reads form {FORM}",
                    self.path.display(),
                    env!("CARGO_PKG_VERSION")
                ),
                "a newer version made it: give another directory",
            )),
            _ => Ok(()),
        }
    }

    /// Returns true if it may become a cache, and false if another process has made it one meanwhile.
    fn is_vacant(&self) -> Result<bool> {
        let entries = fs::read_dir(self.at()).map_err(|error| failed("list", &self.path, error))?;
        // A fresh file system has this one.
        let is_foreign = |name: &OsString| name != "lost+found" && name != MARK && !self.is_left(name);
        let other = entries.flatten().map(|entry| entry.file_name()).find(is_foreign);
        // Looked for afterwards: what else the other process has made since it set the mark is not foreign.
        if self.is_marked()? {
            return Ok(false);
        }
        let Some(other) = other else { return Ok(true) };
        let problem = format!(
            "{} has {} in it and is no cache of bowstring; give an empty directory, or one that is not there yet",
            self.path.display(),
            other.to_string_lossy()
        );
        Err(Error::config("cache", problem))
    }

    /// Returns true for what is left of a removed cache if somebody was about to write into it, as long as nothing is in it.
    fn is_left(&self, name: &OsStr) -> bool {
        let path = self.at().join(name);
        let is_bare = |path: &Path| {
            fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
                && entries(path).is_ok_and(|entries| entries.is_empty())
        };
        match name.to_str() {
            Some(BLOCKS) => {
                fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir())
                    && entries(&path).is_ok_and(|entries| entries.iter().all(|path| is_bare(path)))
            }
            Some(FETCH | SAVED) => is_bare(&path),
            Some(LOCK) => fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0),
            _ => false,
        }
    }

    /// Path of the file of `block`.
    pub(super) fn block(&self, block: &Block) -> PathBuf {
        let (directory, name) = block.name();
        self.at().join(BLOCKS).join(directory).join(name)
    }

    /// Path of the checksums that lie beside `block`, a whole object.
    pub(super) fn sums(&self, block: &Block) -> PathBuf {
        self.block(block).with_extension(SUMS)
    }

    /// Removes the file of `block`, and what lies beside it.
    pub(super) fn delete(&self, block: &Block) -> io::Result<()> {
        if block.is_whole() {
            // In this order: a file without checksums is removed by whoever wants it next.
            gone(fs::remove_file(self.sums(block)))?;
        }
        gone(fs::remove_file(self.block(block)))
    }

    /// Path of `block` while it is fetched.
    pub(super) fn fetch(&self, block: &Block) -> PathBuf {
        self.at().join(FETCH).join(block.name().1)
    }

    pub(super) fn ledger(&self) -> PathBuf {
        self.at().join(LEDGER)
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.at().join(LOCK)
    }

    /// Checks that it is still a cache.
    pub(super) fn check_mark(&self) -> io::Result<()> {
        match self.is_marked() {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::Error::other(format!("{} was removed", self.path.display()))),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Makes the directories of the file `path`, as long as it is a cache.
    pub(super) fn prepare(&self, path: &Path) -> io::Result<()> {
        self.check_mark()?;
        path.parent().map_or(Ok(()), |parent| private().recursive(true).create(parent))
    }

    /// The blocks that have files.
    pub(super) fn blocks(&self) -> io::Result<Vec<Block>> {
        let mut found = Vec::new();
        for directory in entries(&self.at().join(BLOCKS))? {
            for path in entries(&directory)? {
                // A file under the wrong directory is not the cache's.
                found.extend(named(&path).filter(|block| self.block(block) == path));
            }
        }
        Ok(found)
    }

    /// The blocks that are being fetched, or were when their process ended.
    pub(super) fn fetched(&self) -> io::Result<Vec<Block>> {
        Ok(entries(&self.at().join(FETCH))?.iter().filter_map(|path| named(path)).collect())
    }

    /// Removes the cache's own files and the directory, if nothing else is in it; returns true if it is gone. Saves go too.
    pub(super) fn remove(&self) -> io::Result<bool> {
        for block in self.blocks()? {
            self.delete(&block)?;
        }
        for directory in entries(&self.at().join(BLOCKS))? {
            // Checksums whose file never came, since their process was killed.
            let beside =
                entries(&directory)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == SUMS));
            let ours =
                beside.filter(|path| named(&path.with_extension("")).is_some_and(|block| self.sums(&block) == *path));
            for path in ours {
                gone(fs::remove_file(path))?;
            }
        }
        for directory in entries(&self.at().join(BLOCKS))? {
            is_empty(fs::remove_dir(directory))?;
        }
        is_empty(fs::remove_dir(self.at().join(BLOCKS)))?;
        self.remove_unfinished()?;
        // Without the mark nobody begins to write here, but for those who have looked at it before: what these make goes too.
        for file in [LEDGER, LEDGER_ASIDE, MARK] {
            gone(fs::remove_file(self.at().join(file)))?;
        }
        for _ in 0..TRIES {
            self.remove_unfinished()?;
            if is_empty(fs::remove_dir(self.at().join(FETCH)))? || self.fetched()?.is_empty() {
                break;
            }
        }
        gone(fs::remove_file(self.at().join(LOCK)))?;
        is_empty(fs::remove_dir(&self.path))
    }

    /// Removes what is being fetched, and saves.
    fn remove_unfinished(&self) -> io::Result<()> {
        for block in self.fetched()? {
            gone(fs::remove_file(self.fetch(&block)))?;
        }
        self.remove_saves()
    }
}

/// Opens the file `path` for writing, and creates it if there is none; never follows a link.
pub(super) fn writable(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = open(path, &mut options)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// Opens the file `path` for reading; never follows a link, nor waits where a pipe is. Whatever is there says by its length that it is none.
pub(super) fn readable(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true))
}

/// As [`readable`], for writing too.
pub(super) fn changeable(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true).write(true))
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    options.open(path)
}

/// Directories closed to others than their owner: a cache holds data that only its owner's credentials give access to.
fn private() -> DirBuilder {
    #[allow(unused_mut, reason = "only Unix has modes")]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        outcome => outcome?.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn named(path: &Path) -> Option<Block> {
    Block::parse(path.file_name()?.to_str()?)
}

/// A missing file counts as removed.
pub(super) fn gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Removes a directory unless foreign files are in it; returns true if it is gone.
fn is_empty(outcome: io::Result<()>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_becomes_a_cache() {
        let root = tempfile::tempdir().unwrap();
        let foreign = root.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("thesis.tex"), "work of years").unwrap();
        let error = Directory::open(&foreign).unwrap_err();
        assert!(matches!(error, Error::Config { option: "cache", .. }), "{error}");
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        assert!(matches!(Directory::existing(&foreign), Err(Error::Config { option: "cache", .. })));
        assert!(matches!(Directory::open(&foreign.join("thesis.tex")), Err(Error::Config { option: "cache", .. })));
        assert!(matches!(Directory::open(Path::new("s3://bucket/x")), Err(Error::Config { option: "cache", .. })));
        assert!(matches!(Directory::existing(&root.path().join("none")), Err(Error::NotFound { .. })));
        assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1, "nothing was put there");
        let fresh = root.path().join("a/b/cache");
        Directory::open(&fresh).unwrap();
        Directory::open(&fresh).unwrap();
        Directory::existing(&fresh).unwrap();
    }

    #[test]
    fn what_is_left_of_a_removed_cache_keeps_nobody_from_making_one_there() {
        let root = tempfile::tempdir().unwrap();
        for name in ["fetch", "saved", "blocks/ab"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("lock"), "").unwrap();
        // What has anything in it may be somebody's.
        for name in ["fetch/x", "saved/x", "blocks/ab/x", "blocks/x"] {
            fs::write(root.path().join(name), "").unwrap();
            assert!(matches!(Directory::open(root.path()), Err(Error::Config { option: "cache", .. })), "{name}");
            assert!(root.path().join(name).exists());
            fs::remove_file(root.path().join(name)).unwrap();
        }
        Directory::open(root.path()).unwrap();
    }

    #[test]
    fn a_directory_that_another_process_makes_a_cache_just_now_is_one() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::opened(root.path()).unwrap();
        assert!(directory.is_vacant().unwrap());
        fs::write(root.path().join(MARK), MARKED).unwrap();
        fs::write(root.path().join(LEDGER), "blocks").unwrap();
        assert!(!directory.is_vacant().unwrap());
    }

    #[test]
    fn a_cache_that_is_removed_while_others_fetch_can_be_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache");
        for _ in 0..50 {
            let directory = Directory::open(&path).unwrap();
            let ends = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                for number in 0..4_u8 {
                    let (directory, ends) = (&directory, &ends);
                    scope.spawn(move || {
                        let block = Block::parse(&format!("{}-0-9", format!("{number:02x}").repeat(16))).unwrap();
                        // Whoever fetches has claims all the time, until there is no cache.
                        while directory.claim(&block).is_ok() && !ends.load(std::sync::atomic::Ordering::Relaxed) {}
                    });
                }
                directory.remove().unwrap();
                ends.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            assert!(Directory::existing(&path).is_err());
        }
        Directory::open(&path).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_another_user_has_filled_is_refused() {
        use std::os::unix::fs::chown;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache");
        Directory::open(&path).unwrap();
        for theirs in [path.join(MARK), path.clone()] {
            // Only root may give it away.
            if chown(&theirs, Some(12_345), None).is_err() {
                return;
            }
            for opened in [Directory::open(&path), Directory::existing(&path)] {
                let error = opened.unwrap_err();
                assert!(matches!(error, Error::Config { option: "cache", .. }), "{error}");
                assert!(error.to_string().contains("12345"), "{error}");
            }
            chown(&theirs, Some(0), None).unwrap();
            Directory::open(&path).unwrap();
        }
    }

    #[test]
    fn nothing_is_deleted_that_is_not_the_caches() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache");
        let directory = Directory::open(&path).unwrap();
        let block = Block::parse(&format!("{}-0-9", "ab".repeat(16))).unwrap();
        let place = directory.block(&block);
        directory.prepare(&place).unwrap();
        fs::write(&place, "x").unwrap();
        // A block's name in another place, and foreign names.
        let others = [
            path.join("blocks/notes"),
            path.join("blocks/ab/mine"),
            path.join("blocks").join(block.name().1),
            path.join("data"),
        ];
        for other in &others {
            fs::write(other, "work of years").unwrap();
        }
        assert_eq!(directory.blocks().unwrap(), [block]);
        assert!(!directory.remove().unwrap());
        assert!(!place.exists() && others.iter().all(|other| other.exists()));
        others.iter().for_each(|other| fs::remove_file(other).unwrap());
        assert!(Directory::existing(&path).is_err());
        fs::write(path.join(MARK), MARKED).unwrap();
        assert!(Directory::existing(&path).unwrap().remove().unwrap() && !path.exists());
    }
}
