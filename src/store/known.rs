//! Objects that are known without a listing, and small files that are read and written whole.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::access::Access;
use super::address::Address;
use super::directory::INDEX;
use super::find::Listing;
use super::found::Found;
use super::mounts::{START as MOUNTS, is_mounted};
use super::object::Object;
use super::stamp::Stamp;
use super::stores::Stores;
use crate::error::{Error, Result};

/// Base of the names of a listing: the store's address and the directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(super) store: Arc<str>,
    pub(super) path: Arc<str>,
}

impl Base {
    /// One of these parts.
    pub(crate) fn new(store: &str, path: &str) -> Self {
        Self { store: store.into(), path: path.into() }
    }

    /// The store's address, and the directory in it.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.store, &self.path)
    }

    /// Returns true if it is a directory of the namespace of mounts, below which files may be in several stores.
    pub(crate) fn is_of_mounts(&self) -> bool {
        is_mounted(&self.store)
    }
}

impl Found {
    /// The object as the version that is known to be there, without a look at it.
    pub(crate) fn pinned(self, stamp: Stamp) -> Object {
        Object { place: self.place, path: self.path, name: self.name, stamp }
    }

    /// All its bytes, at most so many.
    ///
    /// # Errors
    /// [`Error::Limit`] names `option`; [`Error::NotFound`], [`Error::Store`].
    pub(crate) async fn whole(&self, most: u64, option: &'static str) -> Result<Bytes> {
        let end = self.tail(most.saturating_add(1).min(i64::MAX as u64)).await?;
        if end.start > 0 || end.bytes.len() as u64 > most {
            let asked = end.object.stamp().size;
            return Err(Error::limit(self.url(), asked, most, option));
        }
        Ok(end.bytes)
    }

    /// Its first bytes, at most `most`; `None` if there is nothing, or nothing that may be read.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) async fn beginning(&self, most: u64) -> Result<Option<Bytes>> {
        let reading = async {
            let size = self.place.store.head(&self.path).await?.size;
            if size == 0 { Ok(Bytes::new()) } else { self.place.store.get_range(&self.path, 0..size.min(most)).await }
        };
        match reading.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. } | object_store::Error::PermissionDenied { .. }) => Ok(None),
            Err(error) => Err(self.place.failed("read the beginning", &self.path, error)),
        }
    }

    /// Returns true if its version is to be asked for: it was named, or it is on this machine, where listings tell no times and asking costs
    /// little.
    pub(crate) fn is_untold(&self) -> bool {
        self.stamp.is_none() && (self.size.is_none() || self.place.local)
    }

    /// Returns false if the store has another version by now than `known`, or nothing. Where it does not say, or does not answer, who reads
    /// the object learns of that.
    pub(crate) async fn is_still(&self, known: &Stamp) -> bool {
        match self.place.store.head(&self.path).await {
            Ok(found) => known.same(&Stamp::of(&found)),
            Err(object_store::Error::NotFound { .. }) => false,
            Err(_) => true,
        }
    }

    /// Puts `bytes` there, in place of anything that is there.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) async fn put(&self, bytes: Bytes) -> Result<()> {
        let put = self.place.store.put(&self.path, PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(|error| self.place.failed("write", &self.path, error))
    }

    /// The one object at `url`, which may not exist.
    ///
    /// # Errors
    /// [`Error::Config`] if `url` is not an address.
    pub(crate) fn at(url: &str, access: Access<'_>) -> Result<Self> {
        let (place, path) = Stores::new(access)?.place(url, "index")?;
        let name = path.filename().unwrap_or_default().into();
        Ok(Self { place, path, name, size: None, stamp: None })
    }
}

impl Listing {
    /// Base of its names, if they are in one store, or below mounts.
    pub(crate) fn base(&self) -> Option<Base> {
        match (&self.root, &self.namespace) {
            (Some((place, root)), _) => Some(Base { store: Arc::clone(&place.prefix), path: root.as_str().into() }),
            (None, Some(directory)) => Some(Base { store: MOUNTS.into(), path: Arc::clone(directory) }),
            (None, None) => None,
        }
    }

    /// The files `names` below `base`, known from another listing; without a request.
    ///
    /// # Errors
    /// [`Error::Config`] if `url` is not of that store.
    pub(crate) fn known(url: &str, access: Access<'_>, base: &Base, names: &[Arc<str>]) -> Result<Self> {
        let (place, _) = Stores::new(access)?.place(url, "index")?;
        if place.prefix != base.store {
            let problem = format!("it is of a dataset at {}, not at {}", base.store, place.prefix);
            return Err(Error::config("index", problem));
        }
        let found = |name: &Arc<str>| {
            let path = if base.path.is_empty() { name.to_string() } else { [&base.path, "/", name].concat() };
            let path = Path::parse(&path).map_err(|error| Error::config("index", format!("{path}: {error}")))?;
            Ok(Found { place: place.clone(), path, name: Arc::clone(name), size: None, stamp: None })
        };
        let files = names.iter().map(found).collect::<Result<_>>()?;
        Ok(Self { files, root: Some((place, base.path.to_string())), ..Self::default() })
    }
}

/// The index of the directory `url` of this machine, which may have none; none elsewhere, where looking for it costs a request.
///
/// # Errors
/// [`Error::Config`] if `url` is not an address; [`Error::NotFound`] if it has no mount.
pub(crate) fn index_here(url: &str, access: Access<'_>) -> Result<Option<Found>> {
    if is_local(url, access)? { Found::at(&format!("{url}/{INDEX}"), access).map(Some) } else { Ok(None) }
}

/// Returns true if `url` is the name of a table of a catalog, which alone knows its store.
#[cfg(feature = "cloud")]
pub(crate) fn is_named(url: &str) -> bool {
    super::catalog::is_name(url)
}

/// This build knows no catalogs.
#[cfg(not(feature = "cloud"))]
pub(crate) fn is_named(_: &str) -> bool {
    false
}

/// Returns true if objects of the store at `url` are files of this machine.
///
/// # Errors
/// [`Error::Config`] if `url` is not an address; [`Error::NotFound`] if it has no mount.
pub(crate) fn is_local(url: &str, access: Access<'_>) -> Result<bool> {
    Ok(matches!(Stores::new(access)?.target(url)?.0, Address::Local(_)))
}
