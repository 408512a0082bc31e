//! The dataset's side of a cache below it.

use super::Dataset;
use super::packed::Chunk;
use super::project::Projection;
use crate::store::cache::{CacheReader, Spans};

impl Dataset {
    /// Cache that its objects are read through, if there is one.
    pub(crate) fn cache(&self) -> Option<&CacheReader> {
        self.inner.cache.as_ref()
    }

    /// Spans of the manifest's row groups: from the first to the last byte of the projection. That of a unit is the whole row group's.
    pub(crate) fn spans(&self, projection: &Projection) -> Spans {
        let groups = 0..self.manifest().groups.len();
        let leaves: Vec<Vec<usize>> = (0..self.inner.layouts.len()).map(|layout| projection.leaves(layout)).collect();
        let keys: Vec<_> = self.inner.files.iter().map(|file| file.object.cache_key()).collect();
        let mut last = None;
        Spans::new(groups.filter_map(|group| {
            let (row_group, file, _) = self.group(group).ok()?;
            let key = (*keys.get(row_group.file as usize)?)?;
            let number = self.number(group);
            let span = match last {
                Some((known, span)) if known == number => span,
                _ => {
                    let chunks = self.chunks(group, projection);
                    let read = leaves.get(file.layout)?.iter().filter_map(|leaf| chunks.get(*leaf)).map(Chunk::range);
                    let span = read.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))?;
                    (span.start, span.end)
                }
            };
            last = Some((number, span));
            Some((key, span.0..span.1, u32::try_from(group).ok()?))
        }))
    }
}
