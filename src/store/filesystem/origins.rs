//! The stores of a file system: opened at their first address, and kept.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::super::access::Access;
use super::super::address::{Address, KnownStores, Stores};
use super::super::cache::{Saves, Target};
use super::super::found::Found;
use super::super::object::Object;
use super::super::place::Place;
use super::super::stamp::Stamp;
use super::entry;
use super::means::Means;
use super::options::FileOptions;
use crate::error::{Error, Result};

/// See the module.
#[derive(Debug)]
pub(super) struct Origins {
    pub(super) options: FileOptions,
    known: Mutex<KnownStores>,
    pub(super) means: Arc<Means>,
}

/// The place of an address.
#[derive(Debug)]
pub(super) enum At {
    Here(PathBuf),
    Store(Place, Path),
}

impl Origins {
    /// Opens none yet, but threads and the cache.
    ///
    /// # Errors
    /// As [`Means::new`].
    pub(super) fn new(options: FileOptions) -> Result<Self> {
        let means = Arc::new(Means::new(options.cache.as_ref(), options.timeout)?);
        Ok(Self { options, known: Mutex::default(), means })
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
        let text = match Address::parse(url)? {
            Address::Local(path) => return Ok(At::Here(path)),
            Address::Remote(text) => text,
        };
        let access = Access::from(&self.options.storage_options);
        #[cfg(feature = "cloud")]
        let access = access.with_credentials(self.options.credential_provider.as_ref());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stores = Stores::knowing(access, std::mem::take(&mut *known))?;
        let found = stores.remote(&text);
        *known = stores.into_known();
        drop(known);
        let (place, path) = found?;
        let found = Found { place, path, name: "".into(), size: None, stamp: None };
        let found = match &self.means.cache {
            Some(cache) => Found::through(vec![found], cache, &self.options.storage_options).pop(),
            None => Some(found),
        };
        let found = found.ok_or_else(|| Error::Closed { why: "a file was not looked up".to_owned() })?;
        Ok(At::Store(found.place, found.path))
    }

    /// The object at `path`, at the version that is there now.
    pub(super) async fn pinned(&self, place: Place, path: Path) -> Result<Object> {
        let name = place.url(&path).into();
        let found = Found { place, path, name, size: None, stamp: None };
        match found.place.store.head(&found.path).await {
            Ok(meta) => Ok(found.pinned(Stamp::of(&meta))),
            Err(object_store::Error::NotFound { .. }) => Err(missing(&found.url())),
            // Not all servers answer to that.
            Err(error) if found.place.lists => Err(found.place.failed("look up", &found.path, error)),
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
    Some((through.saves()?, through.target(entry::address(place, path.as_ref()))))
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
