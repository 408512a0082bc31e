//! An object in a listing or a log, before anything of it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use object_store::path::Path;

use super::cache::{CacheReader, Target, Through};
use super::data_name::is_data;
use super::place::Place;
use super::registered::is_registered;
use super::stamp::Stamp;
use crate::error::Result;

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

    /// Returns true if its name is one of data below the directory of `beside`.
    pub(crate) fn is_data_beside(&self, beside: &Self) -> bool {
        let (url, beside) = (self.url(), beside.url());
        let directory = beside.rsplit_once('/').map_or("", |(directory, _)| directory);
        let below = url.strip_prefix(directory).and_then(|below| below.strip_prefix('/'));
        below.is_some_and(|below| is_data(below, 0, self.place.local))
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

    /// The addresses of data that were saved, through the cache of `found`, in the directories that these are in, and are not in their store
    /// yet: who reads what the stores have does not see them.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if the disk of the cache fails.
    pub(crate) fn unstored(found: &[Self]) -> Result<Vec<String>> {
        let through = |found: &Self| found.place.cache.clone();
        let Some(saves) = found.iter().find_map(through).and_then(|through| through.saves()) else {
            return Ok(Vec::new());
        };
        let is_data = |target: &Target| is_data(target.url.rsplit('/').next().unwrap_or_default(), 0, false);
        let mut left: Vec<_> = saves.there()?.into_iter().map(|save| save.record.target).filter(is_data).collect();
        if left.is_empty() {
            return Ok(Vec::new());
        }
        let above = |path: &str| path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
        let mut directories = BTreeMap::new();
        for Self { place, path, .. } in found {
            if let Some(through) = &place.cache {
                directories.entry((Arc::as_ptr(through), above(path.as_ref()))).or_insert((place, through));
            }
        }
        let directory = |((_, path), (place, through)): ((*const Through, String), (&Place, &Arc<Through>))| {
            let Target { url, origin } = through.target(place.address(&path));
            (url.trim_end_matches('/').to_owned(), origin)
        };
        let directories: BTreeSet<_> = directories.into_iter().map(directory).collect();
        left.retain(|target| directories.contains(&(above(&target.url), target.origin.clone())));
        Ok(left.into_iter().map(|target| target.url).collect())
    }
}
