//! Answers to the kernel's requests.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

use super::super::filesystem::{Entry, File, FileSystem};
use super::super::percent::decoded;
use super::super::place::escaped;
use super::nodes::{Known, Nodes, ROOT};
use crate::error::{Error, Result};

/// The kernel asks each time: what is believed, and for how long, is known here.
const ASK_AGAIN: Duration = Duration::ZERO;

/// Bytes that the kernel may read ahead of a program.
const READ_AHEAD: u32 = 1 << 20;

/// The largest file that is fetched as it is opened: one request finds that it is the version of a list, and brings its bytes.
const SMALL: u64 = 1 << 20;

/// The number of an entry of a list, which the kernel gets with its attributes if it looks it up.
const UNNUMBERED: INodeNo = INodeNo(u32::MAX as u64);

/// A file system that is mounted.
#[derive(Debug)]
pub(super) struct Serving {
    files: FileSystem,
    nodes: Mutex<Nodes>,
    open: Mutex<HashMap<u64, Handle>>,
    next: AtomicU64,
    user: u32,
    group: u32,
}

/// What a program has open.
#[derive(Debug, Clone)]
enum Handle {
    File(Arc<Mutex<File>>),
    /// The names of a directory when it was opened.
    Directory(Arc<Vec<(String, FileType)>>),
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each is whole after every statement.
    of.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Serving {
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

    /// What is behind a number.
    fn entry(&self, number: u64) -> Result<Entry, Errno> {
        let now = Instant::now();
        let (url, parent, name) = {
            let nodes = held(&self.nodes);
            if let Some(entry) = nodes.recent(number, now) {
                return Ok(entry.clone());
            }
            let (parent, name) = nodes.place(number).ok_or(Errno::ESTALE)?;
            (nodes.url(number).ok_or(Errno::ESTALE)?.to_owned(), parent, name.to_owned())
        };
        let entry = self.ask(&url, parent, &name)?;
        // The kernel looks the name up again, and gets the number of the other version.
        if held(&self.nodes).update(number, entry.clone(), now) { Ok(entry) } else { Err(Errno::ESTALE) }
    }

    /// The number of `name` in a directory, and what it is.
    fn find(&self, parent: u64, name: &OsStr) -> Result<(u64, Entry), Errno> {
        // No store has other names.
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let now = Instant::now();
        let (known, url) = {
            let nodes = held(&self.nodes);
            (nodes.find(parent, name, now), nodes.url(parent).ok_or(Errno::ESTALE)?.to_owned())
        };
        let (entry, then) = match known {
            Known::There(entry, then) => (entry, then),
            Known::Missing => return Err(Errno::ENOENT),
            Known::Ask => (self.ask(&below(&url, name), parent, name)?, now),
        };
        let number = held(&self.nodes).look_up(parent, name, entry.clone(), then);
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
        let now = Instant::now();
        let listed = self.listed(parent)?;
        let entry = listed.get(name).cloned();
        held(&self.nodes).list(parent, listed, now);
        entry.ok_or(missing)
    }

    /// The names in a directory, which are noted.
    fn list(&self, number: u64) -> Result<Vec<(String, FileType)>, Errno> {
        let now = Instant::now();
        if let Some(listed) = held(&self.nodes).listed(number, now) {
            return Ok(named(listed));
        }
        let listed = self.listed(number)?;
        let names = named(&listed);
        held(&self.nodes).list(number, listed, now);
        Ok(names)
    }

    /// What the store has in a directory.
    fn listed(&self, number: u64) -> Result<HashMap<String, Entry>, Errno> {
        let url = held(&self.nodes).url(number).ok_or(Errno::ESTALE)?.to_owned();
        match self.files.list(&url) {
            Ok(found) => Ok(found.into_iter().map(|entry| (name_of(&entry.url), entry)).collect()),
            // It was found before it is listed: there is a mark of it and nothing else, or it went just now.
            Err(Error::NotFound { .. }) if number != ROOT => Ok(HashMap::new()),
            Err(error) => Err(number_of(&error)),
        }
    }

    fn keep(&self, handle: Handle) -> FileHandle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        held(&self.open).insert(number, handle);
        FileHandle(number)
    }

    fn handle(&self, handle: FileHandle) -> Option<Handle> {
        held(&self.open).get(&handle.0).cloned()
    }

    fn attributes(&self, number: u64, entry: &Entry) -> FileAttr {
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
fn named(listed: &HashMap<String, Entry>) -> Vec<(String, FileType)> {
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

impl Filesystem for Serving {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // It says what it allows, if that is less.
        if let Err(most) = config.set_max_readahead(READ_AHEAD) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.files.settle();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent.0, name) {
            Ok((number, entry)) => reply.entry(&ASK_AGAIN, &self.attributes(number, &entry), Generation(0)),
            Err(number) => reply.error(number),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        held(&self.nodes).forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        // An open file is as it was when it was opened.
        let open = handle.and_then(|handle| self.handle(handle));
        let entry = match open {
            Some(Handle::File(file)) => {
                let file = held(&file);
                Ok(Entry { url: file.url().to_owned(), stamp: Some(file.stamp().clone()) })
            }
            _ => self.entry(number.0),
        };
        match entry {
            Ok(entry) => reply.attr(&ASK_AGAIN, &self.attributes(number.0, &entry)),
            Err(number) => reply.error(number),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let now = Instant::now();
        let (url, recent) = {
            let nodes = held(&self.nodes);
            let Some(url) = nodes.url(number.0).map(str::to_owned) else { return reply.error(Errno::ESTALE) };
            (url, nodes.recent(number.0, now).cloned())
        };
        let opened = match recent {
            Some(entry) => self.files.open_known(&entry, SMALL),
            None => self.files.open(&url),
        };
        let file = match opened {
            Ok(file) => file,
            Err(error) => return reply.error(number_of(&error)),
        };
        let was_opened = {
            let mut nodes = held(&self.nodes);
            let entry = Entry { url, stamp: Some(file.stamp().clone()) };
            if !nodes.update(number.0, entry, now) {
                // The kernel looks the name up again, and opens what is there now.
                return reply.error(Errno::ESTALE);
            }
            nodes.opened(number.0)
        };
        // Without the flag the kernel drops the pages that it has of the file.
        let flags = if was_opened { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        reply.opened(self.keep(Handle::File(Arc::new(Mutex::new(file)))), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(Handle::File(file)) = self.handle(handle) else { return reply.error(Errno::EBADF) };
        let read = part(&mut held(&file), offset, size);
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(number_of(&error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let closed = held(&self.open).remove(&handle.0);
        if let Some(Handle::File(file)) = closed {
            held(&file).let_go();
        }
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.list(number.0) {
            Ok(names) => reply.opened(self.keep(Handle::Directory(Arc::new(names))), FopenFlags::empty()),
            Err(number) => reply.error(number),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(Handle::Directory(names)) = self.handle(handle) else { return reply.error(Errno::EBADF) };
        let dots = [(".", number), ("..", INodeNo(ROOT))].map(|(name, number)| (name, FileType::Directory, number));
        let rest = names.iter().map(|(name, kind)| (name.as_str(), *kind, UNNUMBERED));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, kind, number)) in dots.into_iter().chain(rest).enumerate().skip(from) {
            if reply.add(number, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        held(&self.open).remove(&handle.0);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
