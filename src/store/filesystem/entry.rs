//! What a file system has at an address.

use object_store::ObjectMeta;

use super::super::place::Place;
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
        Self { url: place.address(meta.location.as_ref()), stamp: Some(Stamp::of(meta)) }
    }

    /// The directory at `path` in `place`.
    pub(super) fn directory(place: &Place, path: &str) -> Self {
        Self { url: place.address(path), stamp: None }
    }
}
