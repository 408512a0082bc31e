//! Files of a store, read from their starts to their ends like those of a disk, some megabytes ahead of need.

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

/// Bytes of the first read: samples and marks need no more.
const FIRST: u64 = 256 << 10;

/// Reads that are under way while one is used.
const AHEAD: usize = 2;

/// Reads that a reader has in memory at most.
pub(crate) const READS: u64 = AHEAD as u64 + 1;

/// Small files that are read at once.
const AT_ONCE: usize = 16;

/// What a store has at one address, for callers that wait.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    runtime: Arc<Runtime>,
    tree: store::Tree,
    read_bytes: u64,
}

/// One object of it, of one version.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    runtime: Arc<Runtime>,
    pub(crate) object: Object,
    /// Bytes of each read but the first.
    read_bytes: u64,
}

impl Remote {
    /// What is at `url`, whose files are read so many bytes at once.
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
    /// The bytes from `at` on.
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

    /// These as a whole, some at once. All are of one store.
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

/// Reads one object forward.
pub(crate) struct Reader {
    stored: Stored,
    /// What was read and not yet given out.
    chunk: Bytes,
    /// Where the next read begins.
    asked: u64,
    end: u64,
    /// Reads under way, in order.
    ahead: VecDeque<JoinHandle<Result<Bytes>>>,
    /// Bytes of the next read.
    step: u64,
    /// Whether the first read was not enough.
    went_on: bool,
}

impl Reader {
    fn ask(&mut self) {
        let range = self.asked..self.end.min(self.asked + self.step);
        let object = self.stored.object.clone();
        self.asked = range.end;
        self.ahead.push_back(self.stored.runtime.spawn(async move { object.read_range(range).await }));
    }

    /// The next bytes; none at the end.
    fn next(&mut self) -> Result<Bytes> {
        if self.ahead.is_empty() && self.asked < self.end {
            self.ask();
        }
        let Some(read) = self.ahead.pop_front() else { return Ok(Bytes::new()) };
        let read = self.stored.runtime.block_on(read);
        let bytes = read.map_err(|error| Error::Closed { why: format!("a read was given up: {error}") })??;
        // Only who goes on gets large reads, and some ahead.
        let went_on = std::mem::replace(&mut self.went_on, true);
        self.step = self.stored.read_bytes;
        while went_on && self.asked < self.end && self.ahead.len() < AHEAD {
            self.ask();
        }
        Ok(bytes)
    }

    /// The next bytes, which stay to be read; none at the end. What fails is an [`Error`] in the I/O error, which [`unwrap`] takes out.
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

/// What the store said, if `error` is of a [`Reader`], also through those that unpack.
pub(crate) fn unwrap(error: io::Error) -> Result<io::Error> {
    match error.downcast::<Error>() {
        Ok(own) => Err(own),
        Err(other) => Ok(other),
    }
}
