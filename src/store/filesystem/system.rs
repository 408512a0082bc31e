//! The stores that are reached with one set of options, as a file system to read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path as FsPath;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::super::access::Access;
use super::super::address::{Address, KnownStores, Stores};
use super::super::cache::{CachePlace, CacheStats};
#[cfg(feature = "cloud")]
use super::super::credentials::CredentialSource;
use super::super::directory::failed;
use super::super::found::Found;
use super::super::object::Object;
use super::super::place::Place;
use super::super::stamp::Stamp;
use super::entry::Entry;
use super::file::File;
use super::here::{Here, stamp};
use super::means::Means;
use crate::error::{Error, Result};

/// Files that are read at once.
const AT_ONCE: usize = 16;

/// Options of a [`FileSystem`].
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// Options of the stores, by object_store's names.
    pub storage_options: BTreeMap<String, String>,
    /// Source of expiring credentials, in addition to the options.
    #[cfg(feature = "cloud")]
    pub credential_provider: Option<CredentialSource>,
    /// The cache that files are read through; none without. Files of this machine are read as they are.
    pub cache: Option<CachePlace>,
    /// The longest wait for bytes, and for what a store says of a file or a directory.
    pub timeout: Duration,
    /// Most files that [`FileSystem::find`] gives.
    pub max_files: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            storage_options: BTreeMap::new(),
            #[cfg(feature = "cloud")]
            credential_provider: None,
            cache: None,
            timeout: Duration::from_secs(600),
            max_files: 1 << 20,
        }
    }
}

/// Files of stores, to read. See the module; clones are the same file system. Its calls block, and must not be made from within an async
/// runtime.
///
/// ```
/// use std::io::Read;
/// use bowstring::store::{FileOptions, FileSystem};
///
/// # fn main() -> bowstring::Result<()> {
/// let files = FileSystem::new(FileOptions::default())?;
/// let mut file = files.open("fixtures/imagenet40.parquet")?;
/// let mut magic = [0; 4];
/// file.read_exact(&mut magic).unwrap();
/// assert_eq!(&magic, b"PAR1");
/// assert!(file.local_path()?.ends_with("fixtures/imagenet40.parquet"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileSystem(Arc<System>);

#[derive(Debug)]
struct System {
    options: FileOptions,
    known: Mutex<KnownStores>,
    means: Arc<Means>,
}

/// The place of an address.
enum At {
    Here(std::path::PathBuf),
    Store(Place, Path),
}

impl FileSystem {
    /// Opens none yet.
    ///
    /// # Errors
    /// [`Error::Config`] for a cache that is none; [`Error::Closed`] if no threads can be started.
    pub fn new(options: FileOptions) -> Result<Self> {
        let means = Arc::new(Means::new(options.cache.as_ref(), options.timeout)?);
        Ok(Self(Arc::new(System { options, known: Mutex::default(), means })))
    }

    /// Opens the file at `url`, at the version that is there now.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Config`] for what is no address of a file, [`Error::Timeout`], [`Error::Store`].
    pub fn open(&self, url: &str) -> Result<File> {
        match self.at(url)? {
            At::Here(path) => {
                let (here, stamp) = Here::open(&path)?;
                Ok(File::here(Arc::clone(&self.0.means), here, stamp))
            }
            At::Store(place, path) => {
                let object = self.run(url, self.pinned(place, path))?;
                File::stored(Arc::clone(&self.0.means), object)
            }
        }
    }

    /// What is at `url`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn entry(&self, url: &str) -> Result<Entry> {
        match self.at(url)? {
            At::Here(path) => here(&path),
            At::Store(place, path) => self.run(url, async {
                if !url.ends_with('/') && !path.as_ref().is_empty() {
                    match place.store.head(&path).await {
                        Ok(meta) => return Ok(Entry::file(&place, &meta)),
                        Err(object_store::Error::NotFound { .. }) if place.lists => {}
                        Err(object_store::Error::NotFound { .. }) => return Err(missing(&place.url(&path))),
                        Err(error) if place.lists => return Err(place.failed("look up", &path, error)),
                        // Not all servers answer to that.
                        Err(_) => {
                            let object = self.pinned(place.clone(), path).await?;
                            let stamp = Some(object.stamp().clone());
                            return Ok(Entry { url: url.to_owned(), stamp });
                        }
                    }
                }
                let below = children(&place, &path).await?;
                if below.is_empty() && !path.as_ref().is_empty() {
                    return Err(missing(&place.url(&path)));
                }
                Ok(Entry::directory(&place, path.as_ref()))
            }),
        }
    }

    /// What is right in the directory at `url`, by name; of a file, itself.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is neither; [`Error::Unsupported`] where directories cannot be listed; [`Error::Store`].
    pub fn list(&self, url: &str) -> Result<Vec<Entry>> {
        let mut found = match self.at(url)? {
            At::Here(path) => {
                if !here(&path)?.is_directory() {
                    return Ok(vec![here(&path)?]);
                }
                let entries = std::fs::read_dir(&path).map_err(|error| failed("list", &path, error))?;
                // What goes meanwhile, or leads nowhere, is left out.
                entries.flatten().filter_map(|entry| here(&entry.path()).ok()).collect()
            }
            At::Store(place, path) => {
                lists(&place, &path)?;
                self.run(url, children(&place, &path))?
            }
        };
        if found.is_empty() {
            return Ok(vec![self.entry(url)?].into_iter().filter(|entry| !entry.is_directory()).collect());
        }
        found.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(found)
    }

    /// The files at any depth below the directory at `url` of a store, by name.
    ///
    /// # Errors
    /// As [`list`](Self::list); [`Error::Limit`] for more than [`FileOptions::max_files`]; [`Error::Unsupported`] for a directory of this
    /// machine, which is listed level by level.
    pub fn find(&self, url: &str) -> Result<Vec<Entry>> {
        let At::Store(place, path) = self.at(url)? else {
            return Err(Error::unsupported(
                format!("a list of all below {url}, of this machine,"),
                "list it level by level",
            ));
        };
        lists(&place, &path)?;
        let found = self.run(url, place.list(&path, self.0.options.max_files, |name| !name.is_empty(), || false))?;
        let mut found: Vec<_> = found.iter().map(|meta| Entry::file(&place, meta)).collect();
        found.sort_by(|a, b| a.url.cmp(&b.url));
        Ok(found)
    }

    /// Bytes of many files, concurrently: `ranges` of each, as far as it has them. Files come in order, each with an error of its own.
    pub fn read(&self, wanted: &[(String, Vec<Range<u64>>)]) -> Vec<Result<Vec<Bytes>>> {
        let read = |(url, ranges): &(String, Vec<Range<u64>>)| {
            let (url, ranges) = (url.clone(), ranges.clone());
            async move {
                match self.at(&url)? {
                    At::Here(path) => {
                        let read = move || {
                            let (here, stamp) = Here::open(&path)?;
                            let read = |range: &Range<u64>| {
                                let range = within(range, stamp.size);
                                let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                                here.read(&stamp, range.start, length)
                            };
                            ranges.iter().map(read).collect()
                        };
                        let ended = |error| Err(Error::Closed { why: format!("a read was not ended: {error}") });
                        tokio::task::spawn_blocking(read).await.unwrap_or_else(ended)
                    }
                    At::Store(place, path) => {
                        let read = async {
                            let object = self.pinned(place, path).await?;
                            let size = object.stamp().size;
                            let ranges: Vec<_> = ranges.iter().map(|range| within(range, size)).collect();
                            let some: Vec<_> = ranges.iter().filter(|range| range.start < range.end).cloned().collect();
                            let mut read = object.read(some).await?.into_iter();
                            let mut part =
                                |range: &Range<u64>| if range.start < range.end { read.next() } else { None };
                            Ok(ranges.iter().map(|range| part(range).unwrap_or_default()).collect())
                        };
                        self.0.means.in_time(&url, read).await
                    }
                }
            }
        };
        let all = async { Ok(futures::stream::iter(wanted).map(read).buffered(AT_ONCE).collect().await) };
        self.0.means.run(all).unwrap_or_else(|error: Error| vec![Err(error)])
    }

    /// Counters of its cache, for what is read through it here.
    pub fn stats(&self) -> CacheStats {
        self.0.means.stats()
    }

    /// Waits for `work` on `url`, until the timeout.
    fn run<T>(&self, url: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.means.run(self.0.means.in_time(url, work))
    }

    fn at(&self, url: &str) -> Result<At> {
        let text = match Address::parse(url)? {
            Address::Local(path) => return Ok(At::Here(path)),
            Address::Remote(text) => text,
        };
        let options = &self.0.options;
        let access = Access::from(&options.storage_options);
        #[cfg(feature = "cloud")]
        let access = access.with_credentials(options.credential_provider.as_ref());
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stores = Stores::knowing(access, std::mem::take(&mut *known))?;
        let found = stores.remote(&text);
        *known = stores.into_known();
        found.map(|(place, path)| At::Store(place, path))
    }

    /// The object at `path`, at the version that is there now.
    async fn pinned(&self, place: Place, path: Path) -> Result<Object> {
        let name = place.url(&path).into();
        let found = Found { place, path, name, size: None, stamp: None };
        let found = match &self.0.means.cache {
            Some(cache) => Found::through(vec![found], cache, &self.0.options.storage_options).pop(),
            None => Some(found),
        };
        let found = found.ok_or_else(|| Error::Closed { why: "a file was not looked up".to_owned() })?;
        match found.place.store.head(&found.path).await {
            Ok(meta) => Ok(found.pinned(Stamp::of(&meta))),
            Err(object_store::Error::NotFound { .. }) => Err(missing(&found.url())),
            // Not all servers answer to that.
            Err(error) if found.place.lists => Err(found.place.failed("look up", &found.path, error)),
            Err(_) => Ok(found.tail(1).await?.object),
        }
    }
}

fn missing(url: &str) -> Error {
    Error::NotFound { what: format!("file {url}"), hint: String::new() }
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

/// What is right below `path`.
async fn children(place: &Place, path: &Path) -> Result<Vec<Entry>> {
    if !place.lists {
        return Ok(Vec::new());
    }
    let found = place.store.list_with_delimiter(Some(path).filter(|path| !path.as_ref().is_empty())).await;
    let found = found.map_err(|error| place.failed("list", path, error))?;
    // Some tools mark a directory by an empty object of its name.
    let is_mark = |meta: &&ObjectMeta| meta.size == 0 && found.common_prefixes.contains(&meta.location);
    let files = found.objects.iter().filter(|meta| !is_mark(meta)).map(|meta| Entry::file(place, meta));
    Ok(files.chain(found.common_prefixes.iter().map(|path| Entry::directory(place, path.as_ref()))).collect())
}

/// What is at `path` of this machine.
fn here(path: &FsPath) -> Result<Entry> {
    let shown = path.display().to_string();
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing(&shown)),
        found => found.map_err(|error| failed("look up", path, error))?,
    };
    let path = std::path::absolute(path).map_err(|error| failed("look up", path, error))?;
    let url = path.to_str().ok_or_else(|| Error::unsupported(format!("{shown}, a name that is not Unicode,"), ""))?;
    Ok(Entry { url: url.trim_end_matches('/').to_owned(), stamp: (!found.is_dir()).then(|| stamp(&found)) })
}
