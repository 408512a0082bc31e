//! An object that a listing or a log tells of, before anything of it is read.

use std::sync::Arc;

use object_store::path::Path;

use super::place::Place;
use super::stamp::Stamp;

/// An object that was found; which version of it is read is decided by its first read.
#[derive(Debug, Clone)]
pub struct Found {
    pub(super) place: Place,
    pub(super) path: Path,
    /// Path relative to the root that all addresses have in common, `/` between parts.
    pub name: Arc<str>,
    /// Length in bytes, where a listing told it.
    pub size: Option<u64>,
    /// The version that was there when it was listed, where a listing told it.
    pub(crate) stamp: Option<Stamp>,
}

impl Found {
    /// The full address, without credentials.
    pub fn url(&self) -> String {
        self.place.url(&self.path)
    }
}
