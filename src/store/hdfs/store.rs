//! The files of a cluster as a read-only object store.
//!
//! HDFS has no entity tags. Modification time, in milliseconds, and size identify a version; together they are the tag, as for local files.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use hdfs_native::client::{FileStatus, ListStatusIterator};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, Extensions, GetOptions, GetRange, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};

use super::cluster::{Cluster, Live};
use super::problem::{Asked, Problem, broken, missing};
use super::readers::{Opened, Readers};
use super::settings::Settings;
use crate::error::Error;

/// Most attempts to open a file that changes meanwhile.
const OPENINGS: usize = 4;

/// See the module. Copies are the same store.
#[derive(Debug, Clone)]
pub(in crate::store) struct Hdfs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    readers: Readers,
}

impl Hdfs {
    /// The cluster at `address`, scheme and authority.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration has no name nodes for it.
    pub(in crate::store) fn new(address: String, settings: Settings) -> crate::error::Result<Self> {
        let cluster = Cluster::new(address, settings)?;
        Ok(Self { inner: Arc::new(Inner { cluster, readers: Readers::default() }) })
    }
}

/// Returns the path in HDFS.
fn absolute(path: &Path) -> String {
    format!("/{path}")
}

fn meta(location: Path, status: &FileStatus) -> ObjectMeta {
    let (modified, size) = (status.modification_time, status.length as u64);
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(modified));
    let last_modified = time.unwrap_or(SystemTime::UNIX_EPOCH).into();
    ObjectMeta { location, last_modified, size, e_tag: Some(format!("\"{modified:x}-{size:x}\"")), version: None }
}

/// Converts an entry of a listing, under its name in the store.
fn listed(status: &FileStatus) -> Result<ObjectMeta> {
    Ok(meta(Path::parse(status.path.trim_start_matches('/'))?, status))
}

fn other_version(path: &Path) -> StoreError {
    let source = "the file is another one now".into();
    StoreError::Precondition { path: path.to_string(), source }
}

impl Inner {
    /// The file at `path` as it is now.
    async fn status(&self, path: &Path) -> Result<ObjectMeta> {
        let name = absolute(path);
        let name = name.as_str();
        let status =
            self.cluster.ask(path.as_ref(), |live| async move { live.client.get_file_info(name).await }).await?;
        if status.isdir {
            return Err(missing(path.as_ref()));
        }
        Ok(meta(path.clone(), &status))
    }

    /// Opens the file at `path`.
    async fn open(&self, path: &Path) -> Result<Opened> {
        let name = absolute(path);
        let name = name.as_str();
        let mut before = self.status(path).await?;
        for _ in 0..OPENINGS {
            let opened = self
                .cluster
                .ask(path.as_ref(), |live| async move { Ok((live.client.read(name).await?, live.runtime)) });
            let (reader, runtime) = opened.await?;
            // Blocks do not name their version: it is that of both checks, if these agree.
            let after = self.status(path).await?;
            if before == after && reader.file_length() as u64 == after.size {
                return Ok(Opened::new(reader, after, runtime));
            }
            before = after;
        }
        Err(broken("the file is being written: read it when its writer has closed it"))
    }

    /// Returns the open file at `path`: the kept one, unless it is `stale`, its tag is not `wanted`, or the file has changed.
    async fn opened(&self, path: &Path, wanted: Option<&str>, stale: Option<&Arc<Opened>>) -> Result<Arc<Opened>> {
        let slot = self.readers.slot(path);
        let mut slot = slot.lock().await;
        let runtime = self.cluster.live()?.runtime;
        let good = |opened: &&Arc<Opened>| {
            opened.is_of(runtime)
                && !stale.is_some_and(|stale| Arc::ptr_eq(stale, opened))
                && wanted.is_none_or(|wanted| opened.meta.e_tag.as_deref() == Some(wanted))
        };
        if let Some(opened) = slot.as_ref().filter(good) {
            if wanted.is_some() && opened.is_fresh() {
                return Ok(Arc::clone(opened));
            }
            if self.status(path).await? == opened.meta {
                opened.is_checked();
                return Ok(Arc::clone(opened));
            }
        }
        *slot = None;
        let opened = Arc::new(self.open(path).await?);
        *slot = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Reads `range` of `opened`, the file at `path`; if DataNodes refuse, opens it again for the current blocks.
    async fn bytes(&self, path: &Path, opened: Arc<Opened>, range: Range<u64>) -> Result<Bytes> {
        let tag = opened.meta.e_tag.clone();
        let whole = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let (start, end) = whole.ok_or_else(|| broken("the range does not fit in memory"))?;
        let Some(length) = end.checked_sub(start).filter(|length| *length > 0) else { return Ok(Bytes::new()) };
        let mut patience = self.cluster.patience();
        let mut opened = opened;
        loop {
            let read = opened.reader.read_range(start, length);
            let problem = match self.cluster.guarded(patience.left(), Asked::DataNodes, path.as_ref(), read).await {
                Ok(bytes) if bytes.len() == length => return Ok(bytes),
                Ok(_) => Problem::passing("a DataNode gives fewer bytes than the block has".to_owned()),
                Err(problem) => problem,
            };
            if !problem.passing || !patience.again().await {
                return Err(problem.error);
            }
            tracing::info!("{self}{path} is opened again: {}", problem.error);
            opened = self.opened(path, tag.as_deref(), Some(&opened)).await?;
            if opened.meta.e_tag != tag {
                return Err(other_version(path));
            }
        }
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.cluster.address())
    }
}

impl fmt::Display for Hdfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A running listing: the remaining directories, and the one that is being read.
struct Walk {
    inner: Arc<Inner>,
    directories: Vec<String>,
    current: Option<Level>,
    deep: bool,
}

/// A directory and its last listed name: the order of a name node's listing never changes.
struct Level {
    entries: ListStatusIterator,
    live: Arc<Live>,
    path: String,
    last: Option<String>,
}

impl Walk {
    fn below(inner: &Arc<Inner>, prefix: Option<&Path>, deep: bool) -> Self {
        let directories = vec![prefix.map_or_else(|| "/".to_owned(), absolute)];
        Self { inner: Arc::clone(inner), directories, current: None, deep }
    }

    /// Returns the next file, or directory unless the listing is recursive; `None` after the last.
    async fn next(&mut self) -> Result<Option<FileStatus>> {
        loop {
            let mut level = match self.current.take() {
                Some(level) => level,
                None => match self.directories.pop() {
                    Some(path) => self.inner.entries(path, None)?,
                    None => return Ok(None),
                },
            };
            let Some(status) = self.inner.entry(&mut level).await? else { continue };
            // The listed path may be a file; its listing is the file itself.
            let is_itself = status.path == level.path;
            self.current = Some(level);
            if status.isdir && self.deep {
                self.directories.push(status.path);
            } else if !is_itself {
                return Ok(Some(status));
            }
        }
    }
}

impl Inner {
    fn entries(&self, path: String, last: Option<String>) -> Result<Level> {
        let live = self.cluster.live()?;
        Ok(Level { entries: live.client.list_status_iter(&path, false), live, path, last })
    }

    /// Returns the next entry of a directory; `None` at its end, or if the directory is gone: a store has no directories.
    async fn entry(&self, level: &mut Level) -> Result<Option<FileStatus>> {
        let name = level.path.trim_start_matches('/').to_owned();
        let mut patience = self.cluster.patience();
        // After a failure a new listing skips the entries that the failed one returned.
        let mut skip: Option<String> = None;
        loop {
            let next = async { level.entries.next().await.transpose() };
            let limit = self.cluster.limit(&patience);
            match self.cluster.guarded(limit, Asked::NameNode, &name, next).await {
                Ok(Some(status)) if skip.is_some() => {
                    skip = skip.filter(|last| *last != status.path);
                }
                Ok(None) if skip.is_some() => {
                    return Err(broken("the directory changed while it was listed: list it again"));
                }
                Ok(Some(status)) => {
                    level.last = Some(status.path.clone());
                    return Ok(Some(status));
                }
                Ok(None) | Err(Problem { error: StoreError::NotFound { .. }, .. }) => return Ok(None),
                Err(Problem { hung, passing, error }) => {
                    if hung {
                        self.cluster.renew(&level.live);
                    }
                    if !passing || !patience.again().await {
                        return Err(error);
                    }
                    *level = self.entries(std::mem::take(&mut level.path), level.last.take())?;
                    skip.clone_from(&level.last);
                }
            }
        }
    }
}

fn read_only<T>() -> Result<T> {
    let hint = "write to a directory, and copy it there with hdfs dfs -put";
    Err(broken(Error::unsupported("writing to hdfs://", hint)))
}

#[async_trait]
impl ObjectStore for Hdfs {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            let (operation, implementer) = ("versions".to_owned(), "hdfs".to_owned());
            return Err(StoreError::NotImplemented { operation, implementer });
        }
        let answer = |bytes: Bytes, meta: ObjectMeta, range: Range<u64>| {
            let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
            GetResult { payload, meta, range, attributes: Attributes::new(), extensions: Extensions::new() }
        };
        let range = |size: u64| match &options.range {
            None => Ok(0..size),
            Some(GetRange::Suffix(length)) => Ok(size.saturating_sub(*length)..size),
            Some(range) => range.as_range(size).map_err(|error| broken(error.to_string())),
        };
        if options.head {
            let meta = self.inner.status(location).await?;
            options.check_preconditions(&meta)?;
            let range = range(meta.size)?;
            return Ok(answer(Bytes::new(), meta, range));
        }
        let opened = self.inner.opened(location, options.if_match.as_deref(), None).await?;
        options.check_preconditions(&opened.meta)?;
        let range = range(opened.meta.size)?;
        let meta = opened.meta.clone();
        let bytes = self.inner.bytes(location, opened, range.clone()).await?;
        Ok(answer(bytes, meta, range))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let walk = Walk::below(&self.inner, prefix, true);
        let files = stream::try_unfold(walk, |mut walk| async move {
            let next = walk.next().await?;
            Ok::<_, StoreError>(next.map(|status| (status, walk)))
        });
        files.and_then(|status| async move { listed(&status) }).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut walk = Walk::below(&self.inner, prefix, false);
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
        while let Some(status) = walk.next().await? {
            if status.isdir {
                common_prefixes.push(Path::parse(status.path.trim_start_matches('/'))?);
            } else {
                objects.push(listed(&status)?);
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
