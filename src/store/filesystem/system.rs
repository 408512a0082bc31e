//! The stores that are reached with one set of options, as a file system.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::super::cache::{CachePlace, CacheStats};
use super::super::directory::failed;
#[cfg(feature = "fuse")]
use super::super::found::Found;
use super::super::place::{Place, check_count, escaped};
use super::super::stamp::Stamp;
use super::change;
use super::entry::Entry;
use super::file::File;
use super::here::Here;
use super::options::{FileOptions, Upload};
use super::origins::{At, Origins, blocking, missing, saves};
use super::saved::{self, Saved};
use super::uploads::Uploads;
use super::writer::Writer;
use crate::error::{Error, Result};

/// The beginnings of addresses whose stores have directories, and not only objects.
const LEVELS: [&str; 3] = ["hdfs://", "viewfs://", "filesystem://"];

/// Files that are read, and directories that are listed, at once.
const AT_ONCE: usize = 16;

/// Files of stores, to read and to save. See the module; clones are the same file system. Its calls block, and must not be made from within an async
/// runtime.
///
/// ```
/// use std::io::Read;
/// use bowstring::store::{FileOptions, FileSystem, Upload};
///
/// # fn main() -> bowstring::Result<()> {
/// let files = FileSystem::new(FileOptions::default())?;
/// let mut file = files.open("fixtures/imagenet40.parquet")?;
/// let mut magic = [0; 4];
/// file.read_exact(&mut magic).unwrap();
/// assert_eq!(&magic, b"PAR1");
/// assert!(file.local_path()?.ends_with("fixtures/imagenet40.parquet"));
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let url = directory.path().join("model.pt").to_str().unwrap().to_owned();
/// let mut file = files.create(&url, Upload::Wait)?;
/// std::io::copy(&mut &b"weights"[..], &mut file).unwrap();
/// file.finish()?;
/// assert_eq!(files.open(&url)?.size(), 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileSystem {
    origins: Arc<Origins>,
    uploads: Arc<Uploads>,
}

impl FileSystem {
    /// Opens none yet. What killed processes have left in the cache to be uploaded is taken up in the background.
    ///
    /// # Errors
    /// [`Error::Config`] for a cache that is none; [`Error::Closed`] if no threads can be started.
    pub fn new(options: FileOptions) -> Result<Self> {
        Self::over(Origins::new(options)?)
    }

    /// As [`new`](Self::new), with a cache that is there already, if one is given: for a [`flush`](Self::flush) of what was saved in it.
    ///
    /// # Errors
    /// As there; [`Error::NotFound`] if there is no such directory, and [`Error::Store`] if its disk fails.
    pub fn of_existing_cache(options: FileOptions) -> Result<Self> {
        options.cache.as_ref().map_or(Ok(()), CachePlace::check_existing)?;
        Self::new(options)
    }

    /// As [`new`](Self::new), with stores that `know` makes known.
    #[cfg(all(test, feature = "cloud"))]
    pub(super) fn reaching(options: FileOptions, know: impl FnOnce(&Origins)) -> Result<Self> {
        let origins = Origins::new(options)?;
        know(&origins);
        Self::over(origins)
    }

    fn over(origins: Origins) -> Result<Self> {
        let origins = Arc::new(origins);
        let uploads = Arc::new(Uploads::new(Arc::clone(&origins)));
        uploads.resume()?;
        Ok(Self { origins, uploads })
    }

    /// Opens the file at `url`, at the version that is there now.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Config`] for what is no address of a file, [`Error::Timeout`], [`Error::Store`].
    pub fn open(&self, url: &str) -> Result<File> {
        match self.at(url)? {
            At::Here(path, _) => {
                let (here, stamp) = Here::open(&path)?;
                Ok(File::here(Arc::clone(&self.origins.means), here, stamp))
            }
            At::Store(place, path) => {
                if let Some((copy, stamp)) = self.saved(&place, &path)? {
                    return Ok(File::saved(Arc::clone(&self.origins.means), copy, place.url(&path), stamp));
                }
                let object = self.run(url, self.origins.pinned(place, path))?;
                File::stored(Arc::clone(&self.origins.means), object)
            }
        }
    }

    /// Opens the file that `entry` is of. One of at most `most` bytes is fetched at once at the version that the entry tells, which is then
    /// known to be there, by one request and not two; or is in the cache.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg(feature = "fuse")]
    pub(in crate::store) fn open_known(&self, entry: &Entry, most: u64) -> Result<File> {
        let known = entry.stamp.as_ref().filter(|stamp| stamp.size <= most && stamp.condition().is_some());
        if let (Some(stamp), At::Store(place, path)) = (known, self.at(&entry.url)?)
            && self.saved(&place, &path)?.is_none()
        {
            let name = place.url(&path).into();
            let found = Found { place, path, name, size: Some(stamp.size), stamp: None };
            let mut file = File::stored(Arc::clone(&self.origins.means), found.pinned(stamp.clone()))?;
            match file.begin(most) {
                Ok(()) => return Ok(file),
                Err(Error::SourceChanged { .. }) => file.let_go(),
                Err(error) => return Err(error),
            }
        }
        self.open(&entry.url)
    }

    /// The mount that `url` is of, if it is of one. No store is asked.
    #[cfg(feature = "fuse")]
    pub(in crate::store) fn mount(&self, url: &str) -> Option<String> {
        self.origins.mount(url)
    }

    /// The directories of this machine, without links, that are at `url` or mounted below it.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no address.
    #[cfg(feature = "fuse")]
    pub(in crate::store) fn shown(&self, url: &str) -> Result<Vec<PathBuf>> {
        let shown = self.origins.shown(url)?.into_iter();
        Ok(shown.map(|path| std::fs::canonicalize(&path).unwrap_or(path)).collect())
    }

    /// Waits until the cache has written what was fetched.
    #[cfg(feature = "fuse")]
    pub(in crate::store) fn settle(&self) {
        self.origins.means.settle();
    }

    /// What is at `url`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn entry(&self, url: &str) -> Result<Entry> {
        if let Some((directory, _)) = self.origins.above(url)? {
            return Ok(directory);
        }
        match self.at(url)? {
            At::Here(path, name) => here(&path, name),
            At::Store(place, path) => self.run(url, async {
                let saved = Saved::of(&place, &path)?;
                if let Some(entry) = saved.file() {
                    return Ok(entry);
                }
                if !url.ends_with('/') && !path.as_ref().is_empty() {
                    match place.store.head(&path).await {
                        Ok(meta) => return Ok(Entry::file(&place, &meta)),
                        Err(object_store::Error::NotFound { .. }) if place.lists => {}
                        Err(error) if place.lists => return Err(place.failed("look up", &path, error)),
                        // Not all servers answer to that.
                        Err(_) => {
                            let object = self.origins.pinned(place.clone(), path).await?;
                            let stamp = Some(object.stamp().clone());
                            return Ok(Entry { url: url.to_owned(), stamp });
                        }
                    }
                }
                let is_there = is_directory(&place, &path).await?;
                if !is_there && saved.beside(Vec::new()).is_empty() && !path.as_ref().is_empty() {
                    return Err(missing(&place.url(&path)));
                }
                Ok(Entry::directory(&place, path.as_ref()))
            }),
        }
    }

    /// What is right in the directory at `url`, by name, a file before a directory of its name; of a file, itself.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is neither; [`Error::Unsupported`] where directories cannot be listed; [`Error::Store`].
    pub fn list(&self, url: &str) -> Result<Vec<Entry>> {
        if let Some((_, below)) = self.origins.above(url)? {
            return Ok(below);
        }
        let mut found = match self.at(url)? {
            At::Here(path, name) => {
                let own = here(&path, name.clone())?;
                if !own.is_directory() {
                    return Ok(vec![own]);
                }
                let entries = std::fs::read_dir(&path).map_err(|error| failed("list", &path, error))?;
                let below = |entry: &std::fs::DirEntry| {
                    let (start, name) = (name.as_ref()?, entry.file_name());
                    Some(format!("{start}/{}", escaped(name.to_str()?)))
                };
                // What goes meanwhile, or leads nowhere, is left out.
                entries.flatten().filter_map(|entry| here(&entry.path(), below(&entry)).ok()).collect()
            }
            At::Store(place, path) => {
                lists(&place, &path)?;
                let found = self.run(url, children(&place, &path))?;
                Saved::of(&place, &path)?.beside(found.entries)
            }
        };
        if found.is_empty() {
            return Ok(vec![self.entry(url)?].into_iter().filter(|entry| !entry.is_directory()).collect());
        }
        found.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(found)
    }

    /// The path on this machine that `url` leads to, through mounts and links; none for stores.
    ///
    /// # Errors
    /// [`Error::Config`] for an address that leads nowhere.
    pub fn real_path(&self, url: &str) -> Result<Option<PathBuf>> {
        if self.origins.above(url)?.is_some() {
            return Ok(None);
        }
        match self.at(url)? {
            At::Here(path, _) => Ok(Some(std::fs::canonicalize(&path).unwrap_or(path))),
            At::Store(..) => Ok(None),
        }
    }

    /// The files at any depth below the directory at `url` of a store or of mounts, by name; and directories that only an empty object marks.
    ///
    /// # Errors
    /// As [`list`](Self::list); [`Error::Limit`] for more than [`FileOptions::max_files`]; [`Error::Unsupported`] for a directory of this
    /// machine, which is listed level by level.
    pub fn find(&self, url: &str) -> Result<Vec<Entry>> {
        let most = self.origins.options.max_files;
        let (mut found, mut left) = (Vec::new(), vec![url.to_owned()]);
        // A link may lead to a directory above it.
        let mut entered = HashSet::new();
        while let Some(url) = left.pop() {
            match self.origins.above(&url)? {
                Some((_, below)) => left.extend(below.into_iter().map(|entry| entry.url)),
                None => match self.at(&url)? {
                    At::Store(place, path) => found.extend(self.find_in(&url, &place, &path)?),
                    At::Here(path, Some(_)) => {
                        let real = std::fs::canonicalize(&path);
                        if real.is_ok_and(|path| path.is_dir() && !entered.insert(path)) {
                            continue;
                        }
                        let (directories, files): (Vec<_>, Vec<_>) =
                            self.list(&url)?.into_iter().partition(Entry::is_directory);
                        left.extend(directories.into_iter().map(|entry| entry.url));
                        found.extend(files);
                    }
                    At::Here(_, None) => {
                        let what = format!("a list of all below {url}, of this machine,");
                        return Err(Error::unsupported(what, "list it level by level"));
                    }
                },
            }
            check_count(found.len(), most)?;
        }
        found.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(found)
    }

    /// The files at any depth below `path` of a store, and the directories that only an empty object marks.
    fn find_in(&self, url: &str, place: &Place, path: &Path) -> Result<Vec<Entry>> {
        lists(place, path)?;
        let found = self.run(url, async {
            let most = self.origins.options.max_files;
            let found = place.list(path, most, |name| !name.is_empty(), || false).await?.files;
            let marked = marked(place, &found).await?;
            let entry = |meta: &ObjectMeta| {
                if meta.size == 0 && marked.contains(&meta.location) {
                    Entry::directory(place, meta.location.as_ref())
                } else {
                    Entry::file(place, meta)
                }
            };
            Ok(found.iter().map(entry).collect::<Vec<_>>())
        })?;
        Ok(Saved::of(place, path)?.among(found))
    }

    /// Bytes of many files, concurrently: `ranges` of each, as far as it has them. Files come in order, each with an error of its own.
    pub fn read(&self, wanted: &[(String, Vec<Range<u64>>)]) -> Vec<Result<Vec<Bytes>>> {
        let read = |(url, ranges): &(String, Vec<Range<u64>>)| {
            let (url, ranges) = (url.clone(), ranges.clone());
            async move {
                match self.at(&url)? {
                    At::Here(path, _) => {
                        let read = move || {
                            let (here, stamp) = Here::open(&path)?;
                            ranges.iter().map(|range| part(&here, &stamp, range)).collect()
                        };
                        blocking(read).await
                    }
                    At::Store(place, path) => {
                        let system = self.clone();
                        let (of, at) = (place.clone(), path.clone());
                        if let Some((copy, stamp)) = blocking(move || system.saved(&of, &at)).await? {
                            let read = move || ranges.iter().map(|range| part(&copy, &stamp, range)).collect();
                            return blocking(read).await;
                        }
                        let read = async {
                            let object = self.origins.pinned(place, path).await?;
                            let size = object.stamp().size;
                            let ranges: Vec<_> = ranges.iter().map(|range| within(range, size)).collect();
                            let some: Vec<_> = ranges.iter().filter(|range| range.start < range.end).cloned().collect();
                            let mut read = object.read(some).await?.into_iter();
                            let mut part =
                                |range: &Range<u64>| if range.start < range.end { read.next() } else { None };
                            Ok(ranges.iter().map(|range| part(range).unwrap_or_default()).collect())
                        };
                        self.origins.means.in_time(&url, read).await
                    }
                }
            }
        };
        let all = async { Ok(futures::stream::iter(wanted).map(read).buffered(AT_ONCE).collect().await) };
        self.origins.means.run(all).unwrap_or_else(|error: Error| vec![Err(error)])
    }

    /// Counters of its cache, for what is read through it here.
    pub fn stats(&self) -> CacheStats {
        self.origins.means.stats()
    }

    /// Begins to save what is to be at `url`: written once from start to end, it is there as a whole when its [end](Writer::finish) returns.
    /// Of two that save under one name the last to end wins, as a whole.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a directory of this machine that is not there; [`Error::Config`] for what is no address of a file, and for an
    /// upload in the background without a cache on a disk; [`Error::Store`].
    pub fn create(&self, url: &str, upload: Upload) -> Result<Writer> {
        Writer::begin(&self.origins, &self.uploads, self.at(url)?, upload, url)
    }

    /// Waits until the stores have all that was saved through the cache, by whatever process, and is of a store that is reached here; takes
    /// up what nobody uploads. Without a cache, or with one in memory, nothing waits: each save is in its store when its end returns.
    ///
    /// # Errors
    /// The first one of all uploads, each of which is tried; [`Error::Store`] if the cache's disk failed when it was opened: what was saved
    /// there is not seen.
    pub fn flush(&self) -> Result<()> {
        self.origins.means.run(self.uploads.flush())
    }

    /// Gives the file at `from` the name `to`, in the same store, in place of what may be there.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Unsupported`] for another store, and for a directory of a store; [`Error::Store`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        change::rename(&self.origins, &self.uploads, from, to)
    }

    /// Removes the file at `url`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Config`] for a directory, [`Error::Store`].
    pub fn remove(&self, url: &str) -> Result<()> {
        change::remove(&self.origins, url)
    }

    /// Removes the file at `url`, or all that is below the directory at `url`: of this machine with the directory itself, and links as
    /// links, without what they lead to. Objects that go meanwhile, and marks of directories, which have no name of their own, are
    /// passed over.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is nothing; [`Error::Unsupported`] for a directory above mounts; [`Error::Store`].
    pub fn remove_all(&self, url: &str) -> Result<()> {
        if self.origins.above(url)?.is_some() {
            return Err(Error::unsupported(format!("to remove {url}, a directory of mounts,"), "name one mount"));
        }
        match self.at(url)? {
            At::Here(path, _) => change::remove_tree(&path),
            At::Store(place, path) => {
                let found = if place.lists { self.find_in(url, &place, &path)? } else { Vec::new() };
                if found.is_empty() {
                    return self.remove(url);
                }
                for entry in found {
                    match self.remove(&entry.url) {
                        Ok(()) | Err(Error::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
        }
    }

    /// Makes the directory at `url`, and those above it, if it is of this machine: stores need none.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn make_directory(&self, url: &str) -> Result<()> {
        change::make_directory(&self.origins, url)
    }

    /// Waits for `work` on `url`, until the timeout.
    fn run<T>(&self, url: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.origins.run(url, work)
    }

    fn at(&self, url: &str) -> Result<At> {
        self.origins.at(url)
    }

    /// What was saved for `path` and is not in its store yet.
    fn saved(&self, place: &Place, path: &Path) -> Result<Option<(Here, Stamp)>> {
        let Some((saves, target)) = saves(place, path) else { return Ok(None) };
        let mut last = None;
        loop {
            let Some(save) = saves.at(&target)? else { return Ok(None) };
            if let Some(held) = saves.hold(&save, self.origins.means.timeout)? {
                return Ok(Some((Here::Copy(held), saved::stamp(&save))));
            }
            // It has gone to the store a moment ago, unless something else was saved meanwhile.
            if last.as_ref() == Some(&save) {
                return Ok(None);
            }
            last = Some(save);
        }
    }
}

/// `range` of a file of this machine, as far as it has it.
fn part(here: &Here, stamp: &Stamp, range: &Range<u64>) -> Result<Bytes> {
    let range = within(range, stamp.size);
    here.read(stamp, range.start, usize::try_from(range.end - range.start).unwrap_or(usize::MAX))
}

/// `range` of a file of `size` bytes.
fn within(range: &Range<u64>, size: u64) -> Range<u64> {
    let start = range.start.min(size);
    start..range.end.clamp(start, size)
}

/// # Errors
/// [`Error::Unsupported`] where directories cannot be listed.
fn lists(place: &Place, path: &Path) -> Result<()> {
    if place.lists {
        return Ok(());
    }
    let hint = "give the address of one file; a plain HTTP server has no directories".to_owned();
    Err(Error::unsupported(format!("listing {}", place.url(path)), hint))
}

/// Returns true if something is below `path`, or an empty object says that there is a directory.
async fn is_directory(place: &Place, path: &Path) -> Result<bool> {
    // A cluster, and a store of the user's own, have directories that nothing may be in but others: those are asked for what is right in one.
    if place.lists && !LEVELS.iter().any(|scheme| place.prefix.starts_with(scheme)) {
        // One page, or less: there may be any number.
        let mut found = place.store.list(Some(path).filter(|path| !path.as_ref().is_empty()));
        loop {
            match found.next().await {
                Some(Ok(meta)) if meta.size > 0 && meta.location == *path => {}
                Some(Ok(_)) => return Ok(true),
                None => return Ok(false),
                // Deep below may be a key that no path can be.
                Some(Err(object_store::Error::InvalidPath { .. })) => break,
                Some(Err(error)) => return Err(place.failed("list", path, error)),
            }
        }
    }
    let found = children(place, path).await?;
    Ok(found.is_marked || !found.entries.is_empty())
}

/// What is right below a path.
#[derive(Debug, Default)]
struct Children {
    entries: Vec<Entry>,
    /// An empty object says that there is a directory, which may have nothing in it.
    is_marked: bool,
}

/// What is right below `path`.
async fn children(place: &Place, path: &Path) -> Result<Children> {
    if !place.lists {
        return Ok(Children::default());
    }
    let found = place.store.list_with_delimiter(Some(path).filter(|path| !path.as_ref().is_empty())).await;
    let found = found.map_err(|error| place.failed("list", path, error))?;
    // Some tools mark a directory by an empty object of its name, or of its name and a slash.
    let is_mark = |meta: &&ObjectMeta| {
        meta.location == *path || (meta.size == 0 && found.common_prefixes.contains(&meta.location))
    };
    let files = found.objects.iter().filter(|meta| !is_mark(meta)).map(|meta| Entry::file(place, meta));
    // Of a key that begins with a slash, the directory has no name, and would be this one.
    let (named, nameless): (Vec<_>, Vec<_>) = found.common_prefixes.iter().partition(|below| *below != path);
    if !nameless.is_empty() {
        tell_nameless(place, path);
    }
    let directories = named.into_iter().map(|path| Entry::directory(place, path.as_ref()));
    let is_marked = found.objects.iter().any(|meta| meta.size == 0 && meta.location == *path);
    Ok(Children { entries: files.chain(directories).collect(), is_marked })
}

/// Says that keys below `path` have an empty part and are left out: once, since a directory is listed again and again.
fn tell_nameless(place: &Place, path: &Path) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        let url = place.url(path);
        tracing::warn!(
            "{url} has keys with a slash too many, which no path leads to: they are left out of directories"
        );
    }
}

/// The directories beside the empty objects among `found`. A list of all depths tells the mark `t/empty/` by the name of a file, so that the
/// directories above such objects are listed for themselves.
async fn marked(place: &Place, found: &[ObjectMeta]) -> Result<HashSet<Path>> {
    if LEVELS.iter().any(|scheme| place.prefix.starts_with(scheme)) {
        return Ok(HashSet::new());
    }
    // Files such as `_SUCCESS` are empty in many directories.
    let may_mark = |meta: &&ObjectMeta| {
        meta.size == 0 && meta.location.filename().is_some_and(|name| !name.contains('.') && !name.starts_with('_'))
    };
    let above: HashSet<Path> = found.iter().filter(may_mark).filter_map(|meta| meta.location.parent()).collect();
    let directories = |above: Path| async move {
        let found = place.store.list_with_delimiter(Some(&above).filter(|above| !above.as_ref().is_empty())).await;
        found.map(|found| found.common_prefixes).map_err(|error| place.failed("list", &above, error))
    };
    let listed = futures::stream::iter(above).map(directories).buffer_unordered(AT_ONCE);
    Ok(listed.try_collect::<Vec<_>>().await?.into_iter().flatten().collect())
}

/// What is at `path` of this machine, under the address `name` if it has one.
fn here(path: &FsPath, name: Option<String>) -> Result<Entry> {
    let shown = path.display().to_string();
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing(&shown)),
        found => found.map_err(|error| failed("look up", path, error))?,
    };
    let path = std::path::absolute(path).map_err(|error| failed("look up", path, error))?;
    let url = path.to_str().ok_or_else(|| Error::unsupported(format!("{shown}, a name that is not Unicode,"), ""))?;
    let url = name.unwrap_or_else(|| url.trim_end_matches('/').to_owned());
    Ok(Entry { url, stamp: (!found.is_dir()).then(|| Stamp::of_file(&found)) })
}
