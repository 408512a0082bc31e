//! One pinned version of one object, and reads that return bytes of that version or nothing.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt};
use tokio::time::Instant;

use super::cache::{Held, ObjectKey, Wanted, Whole};
use super::fetch_time;
use super::found::Found;
use super::origins::{self, Late};
use super::place::Place;
use super::race::{Next, race};
use super::stamp::Stamp;
use super::unavailable::{PATIENCE, PAUSE, is_unavailable, waiting};
use crate::error::{Error, Result};

/// Ranges of one read that are requested at once.
const REQUESTS_AT_ONCE: usize = 16;

/// Name of the version of an object that is gone, in messages.
pub(crate) const GONE: &str = "gone";

/// An object with one pinned version.
#[derive(Debug, Clone)]
pub struct Object {
    pub(super) place: Place,
    pub(super) path: Path,
    pub(super) name: Arc<str>,
    pub(super) stamp: Stamp,
}

/// The end of an object, and the object as of that moment.
#[derive(Debug)]
pub struct Tail {
    /// The object, pinned to the version that `bytes` are of.
    pub object: Object,
    /// Offset of `bytes` in the object.
    pub start: u64,
    /// The last bytes.
    pub bytes: Bytes,
}

impl Found {
    /// Returns true for a file of this machine, which [`tail_here`](Self::tail_here) can read.
    pub(crate) fn is_local(&self) -> bool {
        self.place.local
    }

    /// As [`tail`](Self::tail), for a file of this machine, on this thread, which must belong to no runtime: a file needs no hand-over
    /// from thread to thread.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn tail_here(&self, length: u64) -> Result<Tail> {
        let store = |error| self.tail_error(length, error);
        let opened = self.place.store.get_opts(&self.path, GetOptions::default()).now_or_never();
        let opened = opened.ok_or_else(|| self.elsewhere())?;
        let GetResult { payload, meta, .. } = opened.map_err(store)?;
        let GetResultPayload::File(file, _) = payload else { return Err(self.elsewhere()) };
        let stamp = Stamp::of(&meta);
        let start = stamp.size.saturating_sub(length);
        let object = Object { place: self.place.clone(), path: self.path.clone(), name: Arc::clone(&self.name), stamp };
        let range = start..object.stamp.size;
        let bytes = object.take_file(file, std::slice::from_ref(&range))?.pop().unwrap_or_default();
        Ok(Tail { object, start, bytes })
    }

    fn tail_error(&self, length: u64, error: object_store::Error) -> Error {
        match error {
            object_store::Error::NotFound { .. } => {
                Error::NotFound { what: format!("file {}", self.url()), hint: String::new() }
            }
            error => self.place.failed(&format!("read the last {length} bytes"), &self.path, error),
        }
    }

    fn elsewhere(&self) -> Error {
        let source = "it is not a file of this machine, or read from within a runtime".into();
        Error::Store { operation: "open".to_owned(), url: self.url(), source }
    }

    /// Reads the last `length` bytes, or all if there are fewer, and pins the version they are of.
    ///
    /// # Errors
    /// [`Error::NotFound`], or [`Error::Store`].
    pub async fn tail(&self, length: u64) -> Result<Tail> {
        let store = |error| self.tail_error(length, error);
        if let Some(tail) = self.tail_through_cache(length).await? {
            return Ok(tail);
        }
        let mut size = self.size;
        // An object may be replaced between the listing and the read; its new size is then known and tried.
        for _ in 0..4 {
            let range = match size {
                Some(0) => None,
                Some(size) => Some(GetRange::Bounded(size.saturating_sub(length)..size)),
                None => Some(GetRange::Suffix(length)),
            };
            let result =
                match self.place.store.get_opts(&self.path, GetOptions { range, ..GetOptions::default() }).await {
                    Ok(result) => result,
                    Err(error @ object_store::Error::NotFound { .. }) => return Err(store(error)),
                    Err(error) => {
                        // Azure has no suffix ranges, and an object may be empty or shorter than it was: ask for the size.
                        let now = self.place.store.head(&self.path).await.map_err(store)?.size;
                        if Some(now) == size {
                            return Err(store(error));
                        }
                        size = Some(now);
                        continue;
                    }
                };
            let stamp = Stamp::of(&result.meta);
            if size.is_some_and(|size| size != stamp.size) {
                size = Some(stamp.size);
                continue;
            }
            let start = result.range.start;
            let object =
                Object { place: self.place.clone(), path: self.path.clone(), name: Arc::clone(&self.name), stamp };
            let range = result.range.clone();
            let bytes = object.take(result, vec![range]).await?.pop().unwrap_or_default();
            return Ok(Tail { object, start, bytes });
        }
        let source = "the file is being rewritten".into();
        Err(Error::Store { operation: format!("read the last {length} bytes"), url: self.url(), source })
    }
}

impl Found {
    /// As [`tail`](Self::tail), of the version in a listing, or else of the one that a request without bytes returns. None if there is
    /// no cache, or the object is no longer that version.
    async fn tail_through_cache(&self, length: u64) -> Result<Option<Tail>> {
        if self.place.cache.is_none() {
            return Ok(None);
        }
        // Only a strong tag is the same in a listing and in an answer: their times may be cut at other digits.
        let listed = self.stamp.clone().filter(|stamp| stamp.condition().is_some());
        let stamp = match listed {
            Some(stamp) => stamp,
            None => match self.place.store.head(&self.path).await {
                Ok(meta) => Stamp::of(&meta),
                Err(error @ object_store::Error::NotFound { .. }) if self.place.lists => {
                    return Err(self.tail_error(length, error));
                }
                // Not all web servers answer to that, and 405 Method Not Allowed comes as not found.
                Err(_) => return Ok(None),
            },
        };
        let (start, end) = (stamp.size.saturating_sub(length), stamp.size);
        if start == end {
            return Ok(None);
        }
        let object = Object { place: self.place.clone(), path: self.path.clone(), name: Arc::clone(&self.name), stamp };
        match object.read_range(start..end).await {
            Ok(bytes) => Ok(Some(Tail { object, start, bytes })),
            Err(Error::SourceChanged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Object {
    /// Path relative to the root of the addresses it was found by.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The full address, without credentials.
    pub fn url(&self) -> String {
        self.place.url(&self.path)
    }

    /// The pinned version.
    pub(crate) fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Returns true for a file of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.place.local
    }

    /// Number of unneeded bytes that are worth reading to save a request: none of a disk's, many of a store's.
    pub fn gap(&self) -> u64 {
        if self.place.local { 16 << 10 } else { 1 << 20 }
    }

    /// Reads `ranges`, all at once, from the pinned version.
    ///
    /// # Errors
    /// [`Error::SourceChanged`] if the object is not that version any more, [`Error::Store`] if the store fails.
    pub async fn read(&self, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        self.read_for(ranges, Wanted::default()).await
    }

    /// As [`read`](Self::read), with the purpose for a cache.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn read_for(&self, ranges: Vec<Range<u64>>, wanted: Wanted) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        if self.place.local {
            return self.all(ranges).await;
        }
        futures::stream::iter(ranges)
            .map(|range| async move {
                let began = Instant::now();
                let read = match &self.place.cache {
                    Some(cache) => {
                        let fetch = self.fetch(range.clone());
                        cache.read(&self.url(), &self.stamp, &range, wanted, fetch).await
                    }
                    None => self.fetch(range).await,
                };
                fetch_time::range(began.elapsed());
                read
            })
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await
    }

    /// Fetches `ranges` of the pinned version into the cache that it is read through, ahead of their use. Returns the fetched bytes, and false
    /// if there is no room for some of them now.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) async fn fetch_ahead(&self, ranges: Vec<Range<u64>>) -> Result<(u64, bool)> {
        let Some(cache) = &self.place.cache else { return Ok((0, true)) };
        let url = self.url();
        let fetched = futures::stream::iter(ranges).map(|range| {
            let (url, fetch) = (&url, self.fetch(range.clone()));
            async move { cache.fetch_ahead(url, &self.stamp, &range, fetch).await }
        });
        let fetched: Vec<Option<u64>> = fetched.buffered(REQUESTS_AT_ONCE).try_collect().await?;
        Ok((fetched.iter().flatten().sum(), fetched.iter().all(Option::is_some)))
    }

    /// `range` of the pinned version, if the cache that it is read through has it.
    pub(crate) async fn look(&self, range: &Range<u64>) -> Option<Bytes> {
        self.place.cache.as_ref()?.look(&self.url(), &self.stamp, range).await
    }

    /// Ranges of a file of this machine.
    async fn all(&self, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        let asked = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let counted = origins::begin(&self.place.origin(), true, asked);
        let read = match self.get(None, &ranges).await {
            Ok(result) => self.take(result, ranges).await,
            Err(error) => Err(error),
        };
        let bytes = |parts: &Vec<Bytes>| parts.iter().map(|part| part.len() as u64).sum();
        counted.ended(read.as_ref().ok().map(bytes));
        read
    }

    /// One range, from the store, which may be unavailable for a while.
    pub(super) async fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let began = Instant::now();
        let read = loop {
            match self.fetch_once(range.clone()).await {
                Err(error) if is_unavailable(&error) && began.elapsed() < PATIENCE => {
                    waiting(&error);
                    tokio::time::sleep(PAUSE).await;
                }
                read => break read,
            }
        };
        fetch_time::origin(began, range, read.is_ok(), || self.url());
        read
    }

    /// As [`fetch`](Self::fetch), of a store that is not waited for. A request that is late gets a second one beside it: both ask for all
    /// of the range and for the pinned version, so that it does not matter which of them answers.
    async fn fetch_once(&self, range: Range<u64>) -> Result<Bytes> {
        let counted = origins::begin(&self.place.origin(), false, range.end.saturating_sub(range.start));
        let first = self.request(range.clone());
        let read = if self.place.hedges {
            race(first, |waited| match counted.late(waited) {
                Late::Wait(time) => Next::Wait(time),
                Late::Second(second) => {
                    let what = operation(std::slice::from_ref(&range));
                    tracing::debug!("asking a second time after {waited:?}: {what} of {}", self.url());
                    let request = self.request(range.clone());
                    Next::Second(Box::pin(async move {
                        let read = request.await?;
                        second.won();
                        Ok(read)
                    }))
                }
            })
            .await
        } else {
            first.await
        };
        counted.ended(read.as_ref().ok().map(|bytes| bytes.len() as u64));
        read
    }

    /// One request for a range, and its whole answer.
    async fn request(&self, range: Range<u64>) -> Result<Bytes> {
        let ranges = vec![range.clone()];
        let result = self.get(Some(GetRange::Bounded(range)), &ranges).await?;
        Ok(self.take(result, ranges).await?.pop().unwrap_or_default())
    }

    /// The name of this version in the cache that it is read through, if there is one.
    pub(crate) fn cache_key(&self) -> Option<ObjectKey> {
        self.place.cache.as_ref()?.key(&self.url(), &self.stamp)
    }

    /// Returns true if it is read through a cache that can tell its versions apart.
    pub(crate) fn is_cached(&self) -> bool {
        self.cache_key().is_some()
    }

    /// All of the pinned version as a file of this machine, in the cache that it is read through. Another process may fetch it for
    /// `patience` without progress.
    ///
    /// # Errors
    /// [`Error::Config`] without a cache; [`Error::Unsupported`] if versions cannot be distinguished; as [`read`](Self::read) and of the
    /// cache.
    pub(crate) async fn copy(&self, patience: Duration) -> Result<Held> {
        let Some(cache) = &self.place.cache else {
            let problem = format!(
                "{} is in a store, so a path to it needs a cache on a disk of this machine: set cache, e.g. /nvme/bowstring, or \
                 BOWSTRING_CACHE",
                self.url()
            );
            return Err(Error::config("cache", problem));
        };
        let Some(whole) = self.whole(patience) else {
            let hint = "read it without local_path; its store tells neither a strong entity tag nor a time";
            return Err(Error::unsupported(
                format!("a copy of {}, of which no version can be told,", self.url()),
                hint,
            ));
        };
        cache.hold(&whole, |range| self.fetch(range)).await
    }

    /// As [`copy`](Self::copy), if it is there already.
    pub(crate) async fn copy_here(&self, patience: Duration) -> Option<Held> {
        let (cache, whole) = (self.place.cache.as_ref()?, self.whole(patience)?);
        cache.held(&whole).await
    }

    fn whole(&self, patience: Duration) -> Option<Whole> {
        let seed = self.place.cache.as_ref()?.seed_of_slices();
        Some(Whole { key: self.cache_key()?, size: self.stamp.size, url: self.url(), patience, seed })
    }

    /// Reads one range of the pinned version, one that each opening reads.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) async fn read_range(&self, range: Range<u64>) -> Result<Bytes> {
        let ranges = std::iter::once(range).collect();
        let wanted = Wanted { opening: true, ..Wanted::default() };
        Ok(self.read_for(ranges, wanted).await?.pop().unwrap_or_default())
    }

    /// As [`read_range`](Self::read_range), for a file of this machine, on this thread, which must belong to no runtime.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn read_range_here(&self, range: Range<u64>) -> Result<Bytes> {
        let ranges = [range];
        let opened = self.get(None, &ranges).now_or_never().unwrap_or_else(|| Err(self.wrong_length(&ranges)));
        let GetResult { payload, .. } = opened?;
        let GetResultPayload::File(file, _) = payload else { return Err(self.wrong_length(&ranges)) };
        Ok(self.take_file(file, &ranges)?.pop().unwrap_or_default())
    }

    async fn get(&self, range: Option<GetRange>, ranges: &[Range<u64>]) -> Result<GetResult> {
        let options = GetOptions { if_match: self.stamp.condition(), range, ..GetOptions::default() };
        match self.place.store.get_opts(&self.path, options).await {
            Ok(result) => {
                let found = Stamp::of(&result.meta);
                if self.stamp.same(&found) { Ok(result) } else { Err(self.changed(found.to_string())) }
            }
            Err(error) => Err(self.diagnose(error, ranges).await),
        }
    }

    /// Reason why a read failed: stores say "changed" in many ways, so a failed read looks at the object once more.
    async fn diagnose(&self, error: object_store::Error, ranges: &[Range<u64>]) -> Error {
        match self.place.store.head(&self.path).await {
            Ok(meta) => {
                let found = Stamp::of(&meta);
                if !self.stamp.same(&found) || matches!(error, object_store::Error::Precondition { .. }) {
                    return self.changed(found.to_string());
                }
            }
            Err(object_store::Error::NotFound { .. }) => return self.changed(GONE.to_owned()),
            Err(_) => {}
        }
        self.place.failed(&operation(ranges), &self.path, error)
    }

    fn changed(&self, now: String) -> Error {
        Error::SourceChanged { file: self.name.to_string(), was: self.stamp.to_string(), now }
    }

    /// The bytes of an answer whose head has been checked.
    async fn take(&self, result: GetResult, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        match result.payload {
            GetResultPayload::File(file, _) => {
                let object = self.clone();
                let read = tokio::task::spawn_blocking(move || object.take_file(file, &ranges));
                read.await.unwrap_or_else(|error| {
                    Err(Error::Store { operation: "read".to_owned(), url: self.url(), source: error.into() })
                })
            }
            GetResultPayload::Stream(mut stream) => {
                let wanted =
                    usize::try_from(result.range.end - result.range.start).map_err(|_| self.too_big(&ranges))?;
                // Answers of up to one chunk are passed on without a copy.
                let mut first = None;
                let mut all = Vec::new();
                loop {
                    let chunk = match stream.next().await {
                        Some(Ok(chunk)) => chunk,
                        Some(Err(error)) => return Err(self.diagnose(error, &ranges).await),
                        None => break,
                    };
                    if first.is_none() && all.is_empty() {
                        if chunk.len() == wanted {
                            first = Some(chunk);
                            continue;
                        }
                        all.reserve_exact(wanted);
                    }
                    if first.is_some() && !chunk.is_empty() || all.len() + chunk.len() > wanted {
                        return Err(self.wrong_length(&ranges));
                    }
                    all.extend_from_slice(&chunk);
                }
                let bytes = first.unwrap_or_else(|| Bytes::from(all));
                if bytes.len() == wanted { Ok(vec![bytes]) } else { Err(self.wrong_length(&ranges)) }
            }
        }
    }

    /// Reads a local file. Its descriptor was checked when it was opened; checking it again afterwards shows a writer that
    /// came in between.
    fn take_file(&self, mut file: File, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let failed = |error: std::io::Error| Error::Store {
            operation: operation(ranges),
            url: self.url(),
            source: error.into(),
        };
        let before = file.metadata().map_err(failed)?;
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let length = range.end.saturating_sub(range.start);
            let mut bytes = Vec::with_capacity(usize::try_from(length).map_err(|_| self.too_big(ranges))?);
            file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
            file.by_ref().take(length).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() as u64 != length {
                let now = file.metadata().map_err(failed)?.len();
                return Err(self.changed(format!("{now} bytes")));
            }
            parts.push(Bytes::from(bytes));
        }
        let after = file.metadata().map_err(failed)?;
        let (before, after) = (Stamp::of_file(&before), Stamp::of_file(&after));
        if before != after || !self.stamp.same(&after) {
            return Err(self.changed(after.to_string()));
        }
        Ok(parts)
    }

    fn wrong_length(&self, ranges: &[Range<u64>]) -> Error {
        let source = "the answer has another length than announced".into();
        Error::Store { operation: operation(ranges), url: self.url(), source }
    }

    fn too_big(&self, ranges: &[Range<u64>]) -> Error {
        Error::Store {
            operation: operation(ranges),
            url: self.url(),
            source: "the range does not fit in memory".into(),
        }
    }
}

fn operation(ranges: &[Range<u64>]) -> String {
    match ranges {
        [one] => format!("read bytes {}..{}", one.start, one.end),
        many => {
            let start = many.iter().map(|range| range.start).min().unwrap_or_default();
            let end = many.iter().map(|range| range.end).max().unwrap_or_default();
            format!("read {} ranges in bytes {start}..{end}", many.len())
        }
    }
}

#[cfg(all(test, feature = "cloud", feature = "flight"))]
mod tests;
