//! An object in a listing or a log, before anything of it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::path::Path;

use super::cache::{CacheReader, Through};
use super::place::Place;
use super::registered::is_registered;
use super::stamp::Stamp;

/// An object that was found; which version of it is read is decided by its first read.
#[derive(Debug, Clone)]
pub struct Found {
    pub(super) place: Place,
    pub(super) path: Path,
    /// Path relative to the root that all addresses have in common, `/` between parts.
    pub name: Arc<str>,
    /// Length in bytes, if a listing told it.
    pub size: Option<u64>,
    /// The version that was there when it was listed, if a listing told it.
    pub(crate) stamp: Option<Stamp>,
}

impl Found {
    /// The full address, without credentials.
    pub fn url(&self) -> String {
        self.place.url(&self.path)
    }

    /// All of `found`, read through a cache unless they are on this machine; opened with `options`, or those of their mounts.
    pub(crate) fn through(found: Vec<Self>, reader: &CacheReader, options: &BTreeMap<String, String>) -> Vec<Self> {
        let mut last: Option<(Place, Arc<Through>)> = None;
        let through = |mut found: Self| {
            // A store of this process needs no cache, or has its own: its name is no one's outside.
            if !found.place.local && !is_registered(&found.place.prefix) {
                let same = last.as_ref().filter(|(place, _)| place.is_same(&found.place));
                let through = same.map(|(_, through)| Arc::clone(through)).unwrap_or_else(|| {
                    let through = Arc::new(match &found.place.mount {
                        Some(at) => {
                            let mount = Some(at.mount.name());
                            Through::new(reader.clone(), &found.place.prefix, at.mount.options(), mount)
                        }
                        None => Through::new(reader.clone(), &found.place.prefix, options, None),
                    });
                    last = Some((found.place.clone(), Arc::clone(&through)));
                    through
                });
                found.place.cache = Some(through);
            }
            found
        };
        found.into_iter().map(through).collect()
    }
}
