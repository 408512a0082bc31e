//! The stores of a file system: opened at their first address, and kept.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::super::access::Access;
use super::super::address::Address;
use super::super::cache::{Saves, Target};
use super::super::found::Found;
use super::super::mounts::{KeptMounts, MountSource, Mounts, Resolved, is_mounted};
use super::super::object::Object;
use super::super::place::Place;
use super::super::stamp::Stamp;
use super::super::stores::{KnownStores, Stores};
use super::entry::Entry;
use super::means::Means;
use super::options::FileOptions;
use crate::error::{Error, Result};

/// See the module.
#[derive(Debug)]
pub(super) struct Origins {
    pub(super) options: FileOptions,
    known: Mutex<KnownStores>,
    mounts: KeptMounts,
    pub(super) means: Arc<Means>,
}

/// The place of an address.
#[derive(Debug)]
pub(super) enum At {
    /// A path of this machine, and its address if that is below a mount.
    Here(PathBuf, Option<String>),
    Store(Place, Path),
}

impl Origins {
    /// Opens none yet, but threads and the cache.
    ///
    /// # Errors
    /// As [`Means::new`].
    pub(super) fn new(options: FileOptions) -> Result<Self> {
        let means = Arc::new(Means::new(options.cache.as_ref(), options.timeout)?);
        Ok(Self { options, known: Mutex::default(), mounts: KeptMounts::default(), means })
    }

    /// Waits for `work` on `url`, until the timeout.
    pub(super) fn run<T>(&self, url: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.means.run(self.means.in_time(url, work))
    }

    /// The place of `url`, with the cache that it is read through.
    ///
    /// # Errors
    /// [`Error::Config`] for what is no address.
    pub(super) fn at(&self, url: &str) -> Result<At> {
        if !is_mounted(url)
            && let Address::Local(path) = Address::parse(url)?
        {
            return Ok(At::Here(path, None));
        }
        let mounts = if is_mounted(url) { Some(MountSource::Given(self.mounts()?)) } else { None };
        let access = self.access().with_mounts(mounts.as_ref());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stores = Stores::knowing(access, std::mem::take(&mut *known))?;
        let found = stores.target(url).and_then(|(address, _)| match address {
            Address::Local(path) => Ok(At::Here(path, Some(url.trim_end_matches('/').to_owned()))),
            Address::Remote(_) => stores.place(url, "urls").map(|(place, path)| At::Store(place, path)),
        });
        *known = stores.into_known();
        drop(known);
        let (place, path) = match found? {
            At::Store(place, path) => (place, path),
            here @ At::Here(..) => return Ok(here),
        };
        let found = Found { place, path, name: "".into(), size: None, stamp: None };
        let found = match &self.means.cache {
            Some(cache) => Found::through(vec![found], cache, &self.options.storage_options).pop(),
            None => Some(found),
        };
        let found = found.ok_or_else(|| Error::Closed { why: "a file was not looked up".to_owned() })?;
        Ok(At::Store(found.place, found.path))
    }

    fn access(&self) -> Access<'_> {
        let access = Access::from(&self.options.storage_options);
        #[cfg(feature = "cloud")]
        let access = access.with_credentials(self.options.credential_provider.as_ref());
        access
    }

    /// The mounts that there are.
    ///
    /// # Errors
    /// As [`KeptMounts::of`].
    fn mounts(&self) -> Result<Arc<Mounts>> {
        self.mounts.of(self.options.mounts.as_ref())
    }

    /// The mount that `url` is of, if it is of one.
    #[cfg(feature = "fuse")]
    pub(super) fn mount(&self, url: &str) -> Option<String> {
        let mounts = is_mounted(url).then(|| self.mounts().ok())??;
        mounts.target(url).ok().map(|target| target.mount.name().to_owned())
    }

    /// The directories of this machine that are at `url`, or mounted below it.
    ///
    /// # Errors
    /// As [`above`](Self::above), and [`Error::Config`] for what is no address.
    #[cfg(feature = "fuse")]
    pub(super) fn shown(&self, url: &str) -> Result<Vec<PathBuf>> {
        let addresses = if is_mounted(url) {
            match self.mounts()?.resolve(url)? {
                Resolved::Below(target) => vec![target.address],
                Resolved::Above(above) => above.mounts.iter().map(|mount| mount.root()).collect(),
            }
        } else {
            vec![Address::parse(url)?]
        };
        let local = |address| if let Address::Local(path) = address { Some(path) } else { None };
        Ok(addresses.into_iter().filter_map(local).collect())
    }

    /// The directory `url` above mounts, and what is right in it; none for any other address.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no mount.
    pub(super) fn above(&self, url: &str) -> Result<Option<(Entry, Vec<Entry>)>> {
        if !is_mounted(url) {
            return Ok(None);
        }
        match self.mounts()?.resolve(url)? {
            Resolved::Above(above) if above.pattern.is_none() => {
                let url = above.url();
                let start = if above.directory.is_empty() { url.clone() } else { format!("{url}/") };
                let entry = |name| Entry { url: format!("{start}{name}"), stamp: None };
                Ok(Some((Entry { url, stamp: None }, above.names().into_iter().map(entry).collect())))
            }
            _ => Ok(None),
        }
    }

    /// The object at `path`, at the version that is there now.
    pub(super) async fn pinned(&self, place: Place, path: Path) -> Result<Object> {
        let name = place.url(&path).into();
        let found = Found { place, path, name, size: None, stamp: None };
        match found.place.store.head(&found.path).await {
            Ok(meta) => Ok(found.pinned(Stamp::of(&meta))),
            Err(object_store::Error::NotFound { .. }) if found.place.lists => Err(missing(&found.url())),
            Err(error) if found.place.lists => Err(found.place.failed("look up", &found.path, error)),
            // Not all web servers answer to that, and 405 Method Not Allowed comes as not found.
            Err(_) => Ok(found.tail(1).await?.object),
        }
    }

    #[cfg(all(test, feature = "cloud"))]
    pub(super) fn know(&self, start: &str, place: Place) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(start.to_owned(), place);
    }
}

/// The saves of the cache of `place`, and what is to be at `path` there; none without a cache on a disk.
pub(super) fn saves(place: &Place, path: &Path) -> Option<(Saves, Target)> {
    let through = place.cache.as_ref()?;
    Some((through.saves()?, through.target(place.address(path.as_ref()))))
}

pub(super) fn missing(url: &str) -> Error {
    Error::NotFound { what: format!("file {url}"), hint: String::new() }
}

/// Does `work` where it may block.
///
/// # Errors
/// Those of `work`.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let ended = |error| Err(Error::Closed { why: format!("it was not ended: {error}") });
    tokio::task::spawn_blocking(work).await.unwrap_or_else(ended)
}
