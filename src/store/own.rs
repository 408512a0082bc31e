//! A store of the user's own: files behind functions that may block, such as a file system object of Python.
//!
//! Such a store knows no conditions, so a version is pinned by looks at the file: bytes are of the version that was asked for if that one
//! is there after they were read. Files that say neither a tag nor a time are looked at before as well.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, Extensions, GetOptions, GetRange, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use tokio::sync::Semaphore;

use super::percent::encoded;
use super::registered::{FILES, register};
use super::unavailable::Unavailable;
use crate::error::{Error, Source};

/// Calls of one store at once. Each takes a thread that may block.
const AT_ONCE: usize = 16;

/// Deepest directories that are listed: a link to a directory above would have no end.
const DEEPEST: usize = 64;

/// Most attempts to read a file that is replaced meanwhile.
const ATTEMPTS: usize = 4;

/// Files of the user's own. Paths have `/` between their parts, and none before and behind them; the directory of all is empty.
///
/// The functions are called on threads that may block, several at once, and hold no lock.
pub trait OwnFiles: fmt::Debug + Send + Sync {
    /// The files and directories right in `directory`.
    ///
    /// # Errors
    /// [`OwnError::NotFound`] if there is none, which is the same as an empty one.
    fn list(&self, directory: &str) -> Result<Vec<OwnEntry>, OwnError>;

    /// The file at `path`, as it is now: what was listed or seen before does not count.
    ///
    /// # Errors
    /// [`OwnError::NotFound`] if there is none, or a directory.
    fn look(&self, path: &str) -> Result<OwnVersion, OwnError>;

    /// The bytes in `range`, which is not empty, of the file at `path`. What was opened for an earlier read of the same `version` may be
    /// used again; without one, the file must be opened anew.
    ///
    /// # Errors
    /// Any; fewer or more bytes are an error of the caller's.
    fn read(&self, path: &str, range: Range<u64>, version: Option<&str>) -> Result<Bytes, OwnError>;
}

/// A file or a directory of a listing.
#[derive(Debug, Clone)]
pub struct OwnEntry {
    /// Its whole path.
    pub path: String,
    /// `None` for a directory.
    pub file: Option<OwnVersion>,
}

/// What tells the versions of a file apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnVersion {
    /// Length in bytes.
    pub size: u64,
    /// Last modification, nanoseconds since 1970-01-01 UTC.
    pub modified: Option<i64>,
    /// A tag that no two versions have, if there is such a thing.
    pub tag: Option<String>,
}

/// Reason why a call failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OwnError {
    /// There is no such file.
    NotFound(Source),
    /// It may not be read.
    Denied(Source),
    /// It can perhaps be read in a moment: reads of files that are open already wait for that.
    Unavailable(Source),
    /// Anything else.
    Failed(Source),
}

/// A store of such files, which is open for as long as this is kept, or something that was opened with it.
#[derive(Debug, Clone)]
pub struct OwnStore {
    prefix: Arc<str>,
    _store: Arc<dyn ObjectStore>,
}

impl OwnStore {
    /// Makes `files` a store of this process, called `name` in messages. A call that takes longer than `timeout` is an error, and the last
    /// one.
    pub fn new(name: &str, files: Arc<dyn OwnFiles>, timeout: Duration) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(1);
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let prefix: Arc<str> = format!("{FILES}://{plain}-{}/", STORES.fetch_add(1, Ordering::Relaxed)).into();
        let (turns, gone) = (Arc::new(Semaphore::new(AT_ONCE)), Arc::default());
        let own = Own { files, prefix: Arc::clone(&prefix), timeout, turns, gone };
        let store: Arc<dyn ObjectStore> = Arc::new(own);
        register(&prefix, &store);
        Self { prefix, _store: store }
    }

    /// The address of the file or directory at `path`, for this process alone.
    pub fn url(&self, path: &str) -> String {
        format!("{}{}", self.prefix, encoded(path.trim_matches('/')))
    }
}

/// See the module. Copies are the same store.
#[derive(Debug, Clone)]
struct Own {
    files: Arc<dyn OwnFiles>,
    prefix: Arc<str>,
    timeout: Duration,
    turns: Arc<Semaphore>,
    /// A call was given up: it may have its thread for ever, and others need not wait as long to hear the same.
    gone: Arc<AtomicBool>,
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)
    }
}

fn broken(problem: impl Into<Source>) -> StoreError {
    StoreError::Generic { store: FILES, source: problem.into() }
}

fn failed(path: &str, error: OwnError) -> StoreError {
    let path = path.to_owned();
    match error {
        OwnError::NotFound(source) => StoreError::NotFound { path, source },
        OwnError::Denied(source) => StoreError::PermissionDenied { path, source },
        OwnError::Unavailable(source) => broken(Unavailable(source)),
        OwnError::Failed(source) => broken(source),
    }
}

/// The tag of a version; none if nothing but its size is known.
fn tag(version: &OwnVersion) -> Option<String> {
    let OwnVersion { size, modified, tag } = version;
    let made = modified.map(|modified| format!("\"{modified:x}-{size:x}\""));
    tag.as_ref().map(|tag| format!("\"{}\"", tag.trim_matches('"'))).or(made)
}

fn meta(location: Path, version: &OwnVersion) -> ObjectMeta {
    let since = version.modified.and_then(|modified| u64::try_from(modified).ok()).map(Duration::from_nanos);
    let time = since.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)).unwrap_or(SystemTime::UNIX_EPOCH);
    ObjectMeta { location, last_modified: time.into(), size: version.size, e_tag: tag(version), version: None }
}

impl Own {
    /// The result of `ask`, which is what `doing` says to the file or directory at `path`.
    async fn call<T: Send + 'static>(
        &self,
        doing: &'static str,
        path: &str,
        ask: impl FnOnce(&dyn OwnFiles, &str) -> Result<T, OwnError> + Send + 'static,
    ) -> Result<T> {
        let late = || {
            let culprit = format!("{doing} {}{path}", self.prefix);
            broken(Error::late("read", culprit, self.timeout, self.timeout))
        };
        if self.gone.load(Ordering::Relaxed) {
            return Err(late());
        }
        let (files, turns, own) = (Arc::clone(&self.files), Arc::clone(&self.turns), path.to_owned());
        let asked = async move {
            let turn = turns.acquire_owned().await.map_err(broken)?;
            let asked = tokio::task::spawn_blocking(move || {
                // A call that nobody waits for any more has its turn to its end.
                let _turn = turn;
                ask(&*files, &own).map_err(|error| failed(&own, error))
            });
            asked.await.map_err(broken)?
        };
        tokio::time::timeout(self.timeout, asked).await.unwrap_or_else(|_| {
            self.gone.store(true, Ordering::Relaxed);
            Err(late())
        })
    }

    async fn look(&self, location: &Path) -> Result<ObjectMeta> {
        let version = self.call("look up", location.as_ref(), |files, path| files.look(path)).await?;
        Ok(meta(location.clone(), &version))
    }

    async fn read(&self, location: &Path, range: Range<u64>, version: Option<String>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.call("read", location.as_ref(), move |files, path| files.read(path, range, version.as_deref())).await
    }

    /// The entries right in `directory`, which the one above it listed if `is_listed`.
    async fn level(&self, directory: &str, is_listed: bool) -> Result<Vec<OwnEntry>> {
        let mut entries = match self.call("list", directory, |files, path| files.list(path)).await {
            // A store has no directories: without files there is none.
            Err(StoreError::NotFound { .. }) if !is_listed => Vec::new(),
            // Its files would be missing without a word.
            Err(StoreError::NotFound { source, .. }) => return Err(broken(source)),
            entries => entries?,
        };
        // Some list a directory in itself, and a file as all that is in it.
        entries.retain(|entry| entry.path != directory);
        let below = |path: &str| match path.strip_prefix(directory) {
            Some(rest) if directory.is_empty() => !rest.contains('/'),
            Some(rest) => rest.strip_prefix('/').is_some_and(|name| !name.is_empty() && !name.contains('/')),
            None => false,
        };
        if let Some(other) = entries.iter().find(|entry| !below(&entry.path)) {
            return Err(broken(format!("it lists {:?}, which is not right in {directory:?}", other.path)));
        }
        // A directory may be there as such and as an object of its name.
        let mut names = HashSet::new();
        match entries.iter().filter(|entry| entry.file.is_some()).find(|entry| !names.insert(&entry.path)) {
            Some(twice) => Err(broken(format!("it lists {:?} twice, and its rows would come twice", twice.path))),
            None => Ok(entries),
        }
    }
}

/// The entries of a directory, and its depth.
type Level = (Vec<OwnEntry>, usize);

/// A listing of directories, several at once.
struct Walk {
    own: Own,
    /// Directories to list, and their depth.
    left: Vec<(String, usize)>,
    running: FuturesUnordered<BoxFuture<'static, Result<Level>>>,
}

impl Walk {
    /// The files of one more directory; `None` after the last.
    async fn next(&mut self) -> Result<Option<Vec<ObjectMeta>>> {
        while self.running.len() < AT_ONCE
            && let Some((directory, depth)) = self.left.pop()
        {
            let own = self.own.clone();
            self.running.push(Box::pin(async move { Ok((own.level(&directory, depth > 0).await?, depth)) }));
        }
        let Some(level) = self.running.next().await else { return Ok(None) };
        let (entries, depth) = level?;
        let mut found = Vec::new();
        for OwnEntry { path, file } in entries {
            match file {
                Some(version) => found.push(meta(Path::parse(path)?, &version)),
                None if depth < DEEPEST => self.left.push((path, depth + 1)),
                None => return Err(broken(format!("{path:?} has more than {DEEPEST} directories above it"))),
            }
        }
        Ok(Some(found))
    }
}

fn read_only<T>() -> Result<T> {
    Err(broken(Error::unsupported("writing to a store of one's own", "write with the file system itself")))
}

fn answer(bytes: Bytes, meta: ObjectMeta, range: Range<u64>) -> GetResult {
    let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
    GetResult { payload, meta, range, attributes: Attributes::new(), extensions: Extensions::new() }
}

/// `bytes`, if they are as many as `range` has.
fn whole(bytes: Bytes, range: &Range<u64>) -> Result<Bytes> {
    let asked = range.end.saturating_sub(range.start);
    if bytes.len() as u64 == asked {
        return Ok(bytes);
    }
    Err(broken(format!("it gave {} bytes where {asked} were asked for, from {} on", bytes.len(), range.start)))
}

fn part(range: Option<&GetRange>, size: u64) -> Result<Range<u64>> {
    match range {
        None => Ok(0..size),
        Some(GetRange::Suffix(length)) => Ok(size.saturating_sub(*length)..size),
        Some(range) => range.as_range(size).map_err(|error| broken(error.to_string())),
    }
}

#[async_trait]
impl ObjectStore for Own {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            let (operation, implementer) = ("versions".to_owned(), FILES.to_owned());
            return Err(StoreError::NotImplemented { operation, implementer });
        }
        if let (Some(tag), Some(GetRange::Bounded(range)), false) = (&options.if_match, &options.range, options.head) {
            let bytes = self.read(location, range.clone(), Some(tag.clone())).await?;
            let meta = self.look(location).await?;
            options.check_preconditions(&meta)?;
            return Ok(answer(whole(bytes, range)?, meta, range.clone()));
        }
        let mut before = self.look(location).await?;
        for _ in 0..ATTEMPTS {
            options.check_preconditions(&before)?;
            let range = part(options.range.as_ref(), before.size)?;
            if options.head {
                return Ok(answer(Bytes::new(), before, range));
            }
            let read = self.read(location, range.clone(), before.e_tag.clone()).await;
            let after = self.look(location).await?;
            if before == after {
                return Ok(answer(whole(read?, &range)?, after, range));
            }
            before = after;
        }
        Err(broken("the file is replaced again and again: read it when its writer is done"))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let left = vec![(prefix.map(ToString::to_string).unwrap_or_default(), 0)];
        let walk = Walk { own: self.clone(), left, running: FuturesUnordered::new() };
        let levels = stream::try_unfold(walk, |mut walk| async move {
            let found = walk.next().await?;
            Ok::<_, StoreError>(found.map(|found| (found, walk)))
        });
        levels.map_ok(|found| stream::iter(found.into_iter().map(Ok))).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let directory = prefix.map(ToString::to_string).unwrap_or_default();
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
        for OwnEntry { path, file } in self.level(&directory, false).await? {
            let path = Path::parse(path)?;
            match file {
                Some(version) => objects.push(meta(path, &version)),
                None => common_prefixes.push(path),
            }
        }
        Ok(ListResult { objects, common_prefixes, extensions: Extensions::new() })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        read_only()
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        read_only()
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        stream::once(async { read_only() }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        read_only()
    }
}

#[cfg(test)]
mod tests;
