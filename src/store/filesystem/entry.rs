//! What a file system has at an address.

use object_store::ObjectMeta;

use super::super::place::{Place, escaped};
use super::super::stamp::Stamp;

/// A file or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its address, without credentials, as [`FileSystem::open`](super::FileSystem::open) takes it: of files of this machine the path.
    pub url: String,
    /// The version that is there; none for a directory.
    pub stamp: Option<Stamp>,
}

impl Entry {
    /// Returns true for a directory.
    pub fn is_directory(&self) -> bool {
        self.stamp.is_none()
    }

    /// The object of a listing in `place`.
    pub(super) fn file(place: &Place, meta: &ObjectMeta) -> Self {
        Self { url: address(place, meta.location.as_ref()), stamp: Some(Stamp::of(meta)) }
    }

    /// The directory at `path` in `place`.
    pub(super) fn directory(place: &Place, path: &str) -> Self {
        Self { url: address(place, path), stamp: None }
    }
}

/// The address of what is at `path`, in the namespace of mounts if its store is that of one: there it has its options.
pub(super) fn address(place: &Place, path: &str) -> String {
    let encoded = |path: &str| if place.local { path.to_owned() } else { escaped(path) };
    match &place.mount {
        Some(at) => {
            let below = path.strip_prefix(at.root.as_ref()).unwrap_or(path).trim_matches('/');
            format!("{}/{}", at.mount.url(), encoded(below)).trim_end_matches('/').to_owned()
        }
        None => format!("{}{}", place.prefix, encoded(path).trim_end_matches('/')),
    }
}
