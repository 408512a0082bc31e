//! What the kernel is told: what is known, and what stores say, which may take long.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};

use super::super::filesystem::{Entry, File, FileSystem};
use super::super::percent::decoded;
use super::super::place::escaped;
use super::nodes::{Known, Nodes, ROOT};
use super::work::held;
use crate::error::{Error, Result};

/// The largest file that is fetched as it is opened: one request finds that it is the version of a list, and brings its bytes.
const SMALL: u64 = 1 << 20;

/// The names in a directory, in order, and what they are.
pub(super) type Names = Vec<(String, FileType)>;

/// See the module.
#[derive(Debug)]
pub(super) struct Answers {
    files: FileSystem,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Handle>>,
    next: AtomicU64,
    user: u32,
    group: u32,
}

/// What a program has open.
#[derive(Debug, Clone)]
pub(super) enum Handle {
    File(Arc<Open>),
    /// The names of a directory when it was opened.
    Directory(Arc<Names>),
}

/// A file that is open.
#[derive(Debug)]
pub(super) struct Open {
    file: Mutex<File>,
    /// The store that it is of.
    pub(super) store: Arc<str>,
}

impl Open {
    /// Bytes of it: all of them that there are, as the kernel asks.
    pub(super) fn read(&self, offset: u64, size: u32) -> Result<Bytes, Errno> {
        part(&mut held(&self.file), offset, size).map_err(|error| number_of(&error))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.file.get_mut().unwrap_or_else(PoisonError::into_inner).let_go();
    }
}

/// The address of `name` in the directory at `url`, which the store has not told.
fn below(url: &str, name: &str) -> String {
    let Some(colon) = url.find("://") else { return format!("{}/{name}", url.trim_end_matches('/')) };
    let (directory, name) = (url.trim_end_matches('/'), escaped(name));
    // A scheme alone, as in bow:// and hdfs:///, keeps its slashes.
    if directory.len() <= colon + 1 { format!("{url}{name}") } else { format!("{directory}/{name}") }
}

/// The last name of an address, as a file's name.
fn name_of(url: &str) -> String {
    let name = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let meant = if url.contains("://") { decoded(name) } else { None };
    meant.unwrap_or_else(|| name.to_owned())
}

/// The number that a program sees for an error, whose words are logged.
fn number_of(error: &Error) -> Errno {
    tracing::warn!(error = %error.chain(), "a file system that is mounted");
    match error {
        Error::NotFound { .. } => Errno::ENOENT,
        Error::SourceChanged { .. } => Errno::ESTALE,
        Error::Timeout { .. } => Errno::ETIMEDOUT,
        Error::Limit { .. } => Errno::EFBIG,
        Error::Unsupported { .. } => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

impl Answers {
    pub(super) fn new(files: FileSystem, root: Entry, trusted: Duration, owner: &Metadata) -> Self {
        Self {
            files,
            nodes: Mutex::new(Nodes::new(root, trusted, Instant::now())),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            user: owner.uid(),
            group: owner.gid(),
        }
    }

    /// The store of what is behind a number, for others to be told from it.
    pub(super) fn store(&self, number: u64) -> Arc<str> {
        self.store_at(held(&self.nodes).url(number).map(str::to_owned))
    }

    /// The store of `name` in the directory behind a number: another one than the directory's, if a mount of the namespace begins there.
    pub(super) fn store_below(&self, number: u64, name: &str) -> Arc<str> {
        self.store_at(held(&self.nodes).url(number).map(|url| below(url, name)))
    }

    fn store_at(&self, url: Option<String>) -> Arc<str> {
        url.and_then(|url| self.files.mount(&url)).unwrap_or_default().into()
    }

    /// What is behind a number, if that is known.
    pub(super) fn recent(&self, number: u64) -> Option<Entry> {
        held(&self.nodes).recent(number, Instant::now()).cloned()
    }

    /// What is behind a number.
    pub(super) fn entry(&self, number: u64) -> Result<Entry, Errno> {
        let (url, parent, name) = {
            let nodes = held(&self.nodes);
            let (parent, name) = nodes.place(number).ok_or(Errno::ESTALE)?;
            (nodes.url(number).ok_or(Errno::ESTALE)?.to_owned(), parent, name.to_owned())
        };
        let entry = self.ask(&url, parent, &name)?;
        // The kernel looks the name up again, and gets the number of the other version.
        let is_same = held(&self.nodes).update(number, entry.clone(), Instant::now());
        if is_same { Ok(entry) } else { Err(Errno::ESTALE) }
    }

    /// The number of `name` in a directory, and what it is, if that is known, or that it is not there.
    pub(super) fn known(&self, parent: u64, name: &str) -> Option<Result<(u64, Entry), Errno>> {
        let mut nodes = held(&self.nodes);
        match nodes.find(parent, name, Instant::now()) {
            Known::There(entry, then) => Some(Ok((nodes.look_up(parent, name, entry.clone(), then), entry))),
            Known::Missing => Some(Err(Errno::ENOENT)),
            Known::Ask => None,
        }
    }

    /// The number of `name` in a directory, and what it is.
    pub(super) fn find(&self, parent: u64, name: &str) -> Result<(u64, Entry), Errno> {
        let url = held(&self.nodes).url(parent).ok_or(Errno::ESTALE)?.to_owned();
        let entry = self.ask(&below(&url, name), parent, name)?;
        let number = held(&self.nodes).look_up(parent, name, entry.clone(), Instant::now());
        Ok((number, entry))
    }

    /// What the store has at `url`, which is `name` in the directory `parent`. Stores have no empty directories: a mark of one is only in the list
    /// of the directory above, which is made anew if it had one.
    fn ask(&self, url: &str, parent: u64, name: &str) -> Result<Entry, Errno> {
        let missing = match self.files.entry(url) {
            Ok(entry) => return Ok(entry),
            Err(Error::NotFound { .. }) => Errno::ENOENT,
            Err(error) => return Err(number_of(&error)),
        };
        if !held(&self.nodes).was_directory(parent, name) {
            return Err(missing);
        }
        let listed = self.listed(parent)?;
        let entry = listed.get(name).cloned();
        held(&self.nodes).list(parent, listed, Instant::now());
        entry.ok_or(missing)
    }

    /// The names in a directory, if they are known.
    pub(super) fn known_names(&self, number: u64) -> Option<Names> {
        held(&self.nodes).listed(number, Instant::now()).map(named)
    }

    /// The names in a directory, which are noted.
    pub(super) fn list(&self, number: u64) -> Result<Names, Errno> {
        let listed = self.listed(number)?;
        let names = named(&listed);
        // A long list is believed as long as a short one.
        held(&self.nodes).list(number, listed, Instant::now());
        Ok(names)
    }

    /// What the store has in a directory.
    fn listed(&self, number: u64) -> Result<HashMap<String, Entry>, Errno> {
        let url = held(&self.nodes).url(number).ok_or(Errno::ESTALE)?.to_owned();
        match self.files.list(&url) {
            // Of a file and a directory of one name the directory comes last, and stays.
            Ok(found) => Ok(found.into_iter().map(|entry| (name_of(&entry.url), entry)).collect()),
            // It was found before it is listed: there is a mark of it and nothing else, or it went just now.
            Err(Error::NotFound { .. }) if number != ROOT => Ok(HashMap::new()),
            Err(error) => Err(number_of(&error)),
        }
    }

    /// Opens the file behind a number, which `store` has. Returns true if pages that the kernel has of it are good.
    pub(super) fn open(&self, number: u64, store: Arc<str>) -> Result<(FileHandle, bool), Errno> {
        let now = Instant::now();
        let (url, recent) = {
            let nodes = held(&self.nodes);
            (nodes.url(number).ok_or(Errno::ESTALE)?.to_owned(), nodes.recent(number, now).cloned())
        };
        let opened = match recent {
            Some(entry) => self.files.open_known(&entry, SMALL),
            None => self.files.open(&url),
        };
        let file = opened.map_err(|error| number_of(&error))?;
        let was_opened = {
            let mut nodes = held(&self.nodes);
            let entry = Entry { url, stamp: Some(file.stamp().clone()) };
            if !nodes.update(number, entry, now) {
                // The kernel looks the name up again, and opens what is there now.
                return Err(Errno::ESTALE);
            }
            nodes.opened(number)
        };
        Ok((self.keep(Handle::File(Arc::new(Open { file: Mutex::new(file), store }))), was_opened))
    }

    pub(super) fn keep(&self, handle: Handle) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        held(&self.open).insert(number, handle);
        FileHandle(number)
    }

    pub(super) fn handle(&self, handle: FileHandle) -> Option<Handle> {
        held(&self.open).get(&handle.0).cloned()
    }

    /// Forgets what a program had open of what is behind a number.
    pub(super) fn close(&self, number: u64, handle: FileHandle) {
        let closed = held(&self.open).remove(&handle.0);
        if let Some(Handle::File(_)) = closed {
            held(&self.nodes).closed(number);
        }
    }

    /// The kernel takes back `lookups` of a number.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        held(&self.nodes).forget(number, lookups);
    }

    /// Waits until the cache has written what was fetched.
    pub(super) fn settle(&self) {
        self.files.settle();
    }

    pub(super) fn attributes(&self, number: u64, entry: &Entry) -> FileAttr {
        let size = entry.stamp.as_ref().map_or(0, |stamp| stamp.size);
        let modified =
            entry.stamp.as_ref().and_then(|stamp| stamp.modified).and_then(|nanos| u64::try_from(nanos).ok());
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(modified.unwrap_or(0));
        let is_directory = entry.is_directory();
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: kind(entry),
            perm: if is_directory { 0o555 } else { 0o444 },
            nlink: if is_directory { 2 } else { 1 },
            uid: self.user,
            gid: self.group,
            rdev: 0,
            blksize: 128 << 10,
            flags: 0,
        }
    }
}

fn kind(entry: &Entry) -> FileType {
    if entry.is_directory() { FileType::Directory } else { FileType::RegularFile }
}

/// The names of a directory in order, and what they are.
fn named(listed: &HashMap<String, Entry>) -> Names {
    let mut names: Vec<_> = listed.iter().map(|(name, entry)| (name.clone(), kind(entry))).collect();
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    names
}

/// Bytes of a file: all of them that there are, as the kernel asks.
fn part(file: &mut File, offset: u64, size: u32) -> Result<Bytes> {
    file.set_position(offset);
    let mut next = |missing: usize| {
        let wait = file.timeout();
        file.next_within(missing as u64, wait)?.ok_or_else(|| file.timed_out(wait))
    };
    let size = size as usize;
    // Mostly all of them lie together.
    let first = next(size)?;
    if first.len() == size || first.is_empty() {
        return Ok(first);
    }
    let mut read = Vec::with_capacity(size);
    read.extend_from_slice(&first);
    while read.len() < size {
        let bytes = next(size - read.len())?;
        if bytes.is_empty() {
            break;
        }
        read.extend_from_slice(&bytes);
    }
    Ok(read.into())
}

#[cfg(test)]
mod tests {
    use super::super::super::filesystem::FileOptions;
    use super::super::super::mounts::MountSource;
    use super::*;

    #[test]
    fn a_name_is_asked_of_the_store_that_is_mounted_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mounts.toml");
        std::fs::write(&path, "[mounts.a]\nurl = \"/x\"\n[mounts.b]\nurl = \"/y\"").unwrap();
        let mounts = Some(MountSource::from(path.to_str().unwrap().to_owned()));
        let files = FileSystem::new(FileOptions { mounts, ..FileOptions::default() }).unwrap();
        let root = files.entry("bow://").unwrap();
        let owner = std::fs::metadata(folder.path()).unwrap();
        let answers = Answers::new(files, root, Duration::ZERO, &owner);
        let below = ["a", "b", "c"].map(|name| answers.store_below(ROOT, name));
        assert_eq!((&*answers.store(ROOT), below.each_ref().map(|store| &**store)), ("", ["a", "b", ""]));
    }

    #[test]
    fn names_are_those_of_addresses_and_back() {
        for name in ["a", "a b", "a%20b", "50%", "what?", "x#y", "ä"] {
            for directory in ["s3://bucket", "s3://bucket/a/b", "/srv/data"] {
                let url = below(directory, name);
                assert_eq!(name_of(&url), name, "{url}");
            }
        }
        assert_eq!(below("s3://bucket/", "a#b"), "s3://bucket/a%23b");
        assert_eq!(below("/srv", "a#b"), "/srv/a#b");
        assert_eq!(below("/", "a"), "/a");
        assert_eq!((below("bow://", "a"), below("bow://a/", "b")), ("bow://a".to_owned(), "bow://a/b".to_owned()));
        assert_eq!(below("hdfs:///", "a"), "hdfs:///a");
        assert_eq!(name_of("s3://bucket/d/"), "d");
    }
}
