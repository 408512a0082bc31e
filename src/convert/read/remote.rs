//! Files of a store, read sequentially like local ones, some megabytes ahead of use.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures::{StreamExt, TryStreamExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::convert::limits::Limits;
use crate::error::{Error, Result};
use crate::store::{self, Names, Object};

/// Bytes of the first read: samples and magic numbers need no more.
const FIRST: u64 = 256 << 10;

/// Reads in progress while one is used.
const AHEAD: usize = 2;

/// Most reads that a reader holds in memory.
pub(crate) const READS: u64 = AHEAD as u64 + 1;

/// Small files that are read concurrently.
const AT_ONCE: usize = 16;

/// The content of a store at one address, for blocking callers.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    runtime: Arc<Runtime>,
    tree: store::Tree,
    read_bytes: u64,
}

/// One of its objects, at one version.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    runtime: Arc<Runtime>,
    pub(crate) object: Object,
    /// Bytes of each read but the first.
    read_bytes: u64,
}

impl Remote {
    /// Opens `url`, whose files are read `read_bytes` at once.
    ///
    /// # Errors
    /// `NotFound`, `Config`, `Store`.
    pub(crate) fn open(url: &str, options: &BTreeMap<String, String>, read_bytes: u64) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
        let tree = runtime.block_on(store::Tree::open(url, options.into()))?;
        Ok(Self { runtime: Arc::new(runtime), tree, read_bytes })
    }

    pub(crate) fn url(&self) -> String {
        self.tree.url()
    }

    pub(crate) fn file(&self) -> Option<Stored> {
        self.tree.file().map(|object| self.stored(object.clone()))
    }

    pub(crate) fn parent(&self) -> Self {
        Self { runtime: Arc::clone(&self.runtime), tree: self.tree.parent(), read_bytes: self.read_bytes }
    }

    pub(crate) fn list(&self, limits: &Limits, accept: impl Fn(&str) -> bool) -> Result<Vec<Stored>> {
        let found = self.runtime.block_on(self.tree.list(limits.max_files, accept))?;
        Ok(found.into_iter().map(|object| self.stored(object)).collect())
    }

    pub(crate) fn find(&self, names: &[String]) -> Result<Vec<Stored>> {
        let found = self.runtime.block_on(self.tree.objects(names))?;
        Ok(found.into_iter().map(|object| self.stored(object)).collect())
    }

    pub(crate) fn names(&self, directory: &str) -> Result<Names> {
        self.runtime.block_on(self.tree.names(directory))
    }

    fn stored(&self, object: Object) -> Stored {
        Stored { runtime: Arc::clone(&self.runtime), object, read_bytes: self.read_bytes }
    }
}

impl Stored {
    /// Reads the object from `at` on.
    pub(crate) fn reader(&self, at: u64) -> Reader {
        let end = self.object.stamp().size;
        Reader {
            stored: self.clone(),
            chunk: Bytes::new(),
            asked: at.min(end),
            end,
            ahead: VecDeque::new(),
            step: FIRST,
            went_on: false,
        }
    }

    /// Reads the objects whole, some concurrently. All must be in one store.
    pub(crate) fn read(all: &[&Self]) -> Result<Vec<Bytes>> {
        let Some(first) = all.first() else { return Ok(Vec::new()) };
        let reads = futures::stream::iter(all)
            .map(|stored| async move {
                match stored.object.stamp().size {
                    0 => Ok(Bytes::new()),
                    size => stored.object.read_range(0..size).await,
                }
            })
            .buffered(AT_ONCE);
        first.runtime.block_on(reads.try_collect())
    }
}

/// Reads one object sequentially.
pub(crate) struct Reader {
    stored: Stored,
    /// Bytes read and not returned yet.
    chunk: Bytes,
    /// Offset of the next read.
    asked: u64,
    end: u64,
    /// Reads in progress, in order.
    ahead: VecDeque<JoinHandle<Result<Bytes>>>,
    /// Bytes of the next read.
    step: u64,
    /// True if the first read was not enough.
    went_on: bool,
}

impl Reader {
    fn ask(&mut self) {
        let range = self.asked..self.end.min(self.asked + self.step);
        let object = self.stored.object.clone();
        self.asked = range.end;
        self.ahead.push_back(self.stored.runtime.spawn(async move { object.read_range(range).await }));
    }

    /// Returns the next bytes; empty at the end.
    fn next(&mut self) -> Result<Bytes> {
        if self.ahead.is_empty() && self.asked < self.end {
            self.ask();
        }
        let Some(read) = self.ahead.pop_front() else { return Ok(Bytes::new()) };
        let read = self.stored.runtime.block_on(read);
        let bytes = read.map_err(|error| Error::Closed { why: format!("a read was given up: {error}") })??;
        // Large reads, and reads ahead, begin only once a caller continues past the first one.
        let went_on = std::mem::replace(&mut self.went_on, true);
        self.step = self.stored.read_bytes;
        while went_on && self.asked < self.end && self.ahead.len() < AHEAD {
            self.ask();
        }
        Ok(bytes)
    }

    /// Returns the next bytes without consuming them; empty at the end. A failure is an [`Error`] in the I/O error, which [`unwrap`]
    /// extracts.
    pub(crate) fn peek(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.chunk = self.next().map_err(io::Error::other)?;
        }
        Ok(&self.chunk)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.peek()?.len());
        self.chunk.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.ahead.iter().for_each(JoinHandle::abort);
    }
}

/// Extracts the store's error if `error` comes from a [`Reader`], also through decompressors.
pub(crate) fn unwrap(error: io::Error) -> Result<io::Error> {
    match error.downcast::<Error>() {
        Ok(own) => Err(own),
        Err(other) => Ok(other),
    }
}
