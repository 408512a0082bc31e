//! One file, at one version: read in any order, and as a file of this machine.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::super::cache::{CacheStats, Held};
use super::super::object::Object;
use super::super::origins::with_refusal;
use super::super::stamp::Stamp;
use super::here::Here;
use super::means::Means;
use super::window::Window;
use crate::error::{Error, Result};

/// Bytes of one read of a file of this machine.
const READ: u64 = 4 << 20;

/// A file of a [`FileSystem`](super::FileSystem), at the version that was there when it was opened. Whoever reads in order has the next
/// bytes fetched in advance. A file that was replaced meanwhile is [`Error::SourceChanged`], never a mixture.
#[derive(Debug)]
pub struct File {
    source: Source,
    means: Arc<Means>,
    url: String,
    stamp: Stamp,
    position: u64,
}

#[derive(Debug)]
enum Source {
    Here(Here),
    Store(Box<Stored>),
    Closed,
}

#[derive(Debug)]
struct Stored {
    object: Object,
    window: Window,
    /// The copy that is being made.
    copy: Option<JoinHandle<Result<Held>>>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.copy.take().inspect(JoinHandle::abort);
    }
}

impl File {
    pub(super) fn here(means: Arc<Means>, here: Here, stamp: Stamp) -> Self {
        let url = here.path().display().to_string();
        Self { source: Source::Here(here), means, url, stamp, position: 0 }
    }

    /// What was saved and is not in its store yet, which is at `url`.
    pub(super) fn saved(means: Arc<Means>, copy: Here, url: String, stamp: Stamp) -> Self {
        Self { source: Source::Here(copy), means, url, stamp, position: 0 }
    }

    pub(super) fn stored(means: Arc<Means>, object: Object) -> Result<Self> {
        let (url, stamp) = (object.url(), object.stamp().clone());
        let source = match means.run(async { Ok(object.copy_here(means.timeout).await) })? {
            Some(copy) => Source::Here(Here::Copy(copy)),
            None => Source::Store(Box::new(Stored { window: Window::new(object.clone()), object, copy: None })),
        };
        Ok(Self { source, means, url, stamp, position: 0 })
    }

    /// Its address, without credentials; of a file of this machine the path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// The version that is read.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Counters of the cache, for what all files of its file system read through it.
    pub fn stats(&self) -> CacheStats {
        self.means.stats()
    }

    /// The longest wait for bytes.
    pub fn timeout(&self) -> Duration {
        self.means.timeout
    }

    /// The error for a wait of `waited`.
    pub fn timed_out(&self, waited: Duration) -> Error {
        Error::Timeout { stage: "read", culprit: with_refusal(&self.url, waited), waited }
    }

    /// Offset of the next read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Makes `position` the offset of the next read. It may lie behind the end.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    /// The next bytes, at most `most`, and their number is not known before; none of them at the end of the file. `None` if they do not
    /// come within `wait`, which costs nothing: a later call gets them.
    ///
    /// # Errors
    /// [`Error::SourceChanged`] if the file was replaced, [`Error::Store`].
    pub fn next_within(&mut self, most: u64, wait: Duration) -> Result<Option<Bytes>> {
        let end = self.position.saturating_add(most).min(self.stamp.size);
        if self.position >= end {
            return Ok(Some(Bytes::new()));
        }
        let range: Range<u64> = self.position..end;
        let taken = match &mut self.source {
            Source::Here(here) => {
                let length = (range.end - range.start).min(READ) as usize;
                Some(here.read(&self.stamp, range.start, length)?)
            }
            Source::Store(stored) => stored.window.take(self.means.runtime()?, range, wait)?,
            Source::Closed => return Err(closed()),
        };
        if let Some(taken) = &taken {
            self.position = self.position.saturating_add(taken.len() as u64);
        }
        Ok(taken)
    }

    /// The path of a file of this machine with these bytes and no others: of the file itself, or of a copy in the cache, which is made
    /// first and which all processes of this machine share. A copy may be mapped, and must not be written to; it is not evicted as long as
    /// this file is open.
    ///
    /// # Errors
    /// [`Error::Config`] without a cache on a disk; [`Error::Limit`] if it has no room; [`Error::Unsupported`] if the store tells neither
    /// a tag nor a time, so that versions cannot be distinguished; [`Error::Timeout`], [`Error::SourceChanged`], [`Error::Store`].
    pub fn local_path(&mut self) -> Result<&Path> {
        while self.local_path_within(self.timeout())?.is_none() {}
        self.local_file().map(|(_, path)| path).ok_or_else(closed)
    }

    /// As [`local_path`](Self::local_path). `None` if the copy is not whole within `wait`: it goes on, and a later call waits for it.
    ///
    /// # Errors
    /// As there.
    pub fn local_path_within(&mut self, wait: Duration) -> Result<Option<&Path>> {
        if let Source::Store(stored) = &mut self.source {
            let (object, patience) = (stored.object.clone(), self.means.timeout);
            let runtime = self.means.runtime()?;
            let copy = stored.copy.get_or_insert_with(|| runtime.spawn(async move { object.copy(patience).await }));
            let Ok(copied) = runtime.block_on(async { tokio::time::timeout(wait, copy).await }) else {
                return Ok(None);
            };
            stored.copy = None;
            let ended = |error| Err(Error::Closed { why: format!("a copy was not ended: {error}") });
            self.source = Source::Here(Here::Copy(copied.unwrap_or_else(ended)?));
        }
        self.local_file().map(|(_, path)| Some(path)).ok_or_else(closed)
    }

    /// The open file of this machine with these bytes, and its path, if there is one: see [`local_path`](Self::local_path).
    pub fn local_file(&self) -> Option<(&std::fs::File, &Path)> {
        match &self.source {
            Source::Here(here) => Some((here.file(), here.path())),
            Source::Store(_) | Source::Closed => None,
        }
    }

    /// Fetches the first bytes, at most `most`, for the reads to come.
    ///
    /// # Errors
    /// As [`next_within`](Self::next_within), and for a store that does not answer in time.
    #[cfg(feature = "fuse")]
    pub(in crate::store) fn begin(&mut self, most: u64) -> Result<()> {
        let wait = self.timeout();
        let begun = self.next_within(most, wait)?.map(drop);
        self.position = 0;
        begun.ok_or_else(|| self.timed_out(wait))
    }

    /// Gives everything back, and waits for nothing: whoever has files open goes on.
    #[cfg(feature = "fuse")]
    pub(in crate::store) fn let_go(&mut self) {
        self.source = Source::Closed;
    }

    /// Gives everything back. Blocks on their way into a cache are waited for, here and on other hosts: other processes need them, also
    /// if this one ends now.
    pub fn close(&mut self) {
        let was = std::mem::replace(&mut self.source, Source::Closed);
        let is_fetched = matches!(was, Source::Store(_) | Source::Here(Here::Copy(_)));
        drop(was);
        if is_fetched && tokio::runtime::Handle::try_current().is_err() {
            self.means.settle();
        }
    }
}

fn closed() -> Error {
    Error::Closed { why: "the file is closed".to_owned() }
}

impl Drop for File {
    fn drop(&mut self) {
        self.close();
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wait = self.timeout();
        let taken = self.next_within(buffer.len() as u64, wait).map_err(io::Error::other)?;
        let taken = taken.ok_or_else(|| io::Error::other(self.timed_out(wait)))?;
        if let Some(part) = buffer.get_mut(..taken.len()) {
            part.copy_from_slice(&taken);
        }
        Ok(taken.len())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.stamp.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
