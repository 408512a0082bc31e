//! Reading deleted rows: each file of bitmaps once, and only the bytes that are asked for.

use std::collections::BTreeMap;
use std::ops::Range;

use futures::stream::{StreamExt, TryStreamExt};
use roaring::RoaringTreemap;

use super::path::locate;
use super::table::Table;
use super::vector::{Path, Source};
use crate::dataset::table::{Deleted, bitmap};
use crate::dataset::{OpenOptions, within};
use crate::error::{Error, Place, Result};

impl Table {
    /// Reads which rows are deleted.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a vector that is damaged; [`Error::NotFound`] for one that was vacuumed; [`Error::Timeout`],
    /// [`Error::Store`].
    pub(in crate::dataset) async fn deleted(&self, options: &OpenOptions) -> Result<Deleted> {
        let mut rows = BTreeMap::new();
        // Files of bitmaps, with the vectors in each: the number of the data file, and the bytes.
        let mut shared: BTreeMap<Path, Vec<(usize, Range<u64>)>> = BTreeMap::new();
        for (number, file) in self.files.iter().enumerate() {
            let Some(vector) = &file.vector else { continue };
            match vector.source().map_err(|what| bitmap::broken(file.found.name.as_ref(), what))? {
                Source::Inline(inline) => {
                    let found = vector.rows(&inline).map_err(|what| bitmap::broken(file.found.name.as_ref(), what))?;
                    rows.insert(number, found);
                }
                Source::File { path, range } => shared.entry(path).or_default().push((number, range)),
            }
        }
        let mut reading = futures::stream::iter(shared)
            .map(|(path, vectors)| self.bitmaps(path, vectors, options))
            .buffer_unordered(options.concurrency)
            .boxed();
        while let Some(found) = reading.try_next().await? {
            rows.extend(found);
        }
        Ok(Deleted::new(rows))
    }

    /// The vectors in one file of bitmaps.
    async fn bitmaps(
        &self,
        path: Path,
        vectors: Vec<(usize, Range<u64>)>,
        options: &OpenOptions,
    ) -> Result<Vec<(usize, RoaringTreemap)>> {
        let found = match &path {
            Path::Below(name) => {
                let place = || Place::file(format!("{}/{}", self.about.url, crate::store::LOG));
                self.root
                    .file(name)
                    .ok_or_else(|| Error::corrupt(place(), format!("{name:?} is not the name of a vector")))?
            }
            Path::Encoded(path) => locate(&self.root, path, options)?,
        };
        let culprit = format!("the deletion vectors in {}", found.url());
        let ranges = vectors.iter().map(|(_, range)| range.clone()).collect();
        let bytes = within(options.timeout, culprit, bitmap::bytes(&found, ranges, options.limits.max_index_bytes))
            .await
            .map_err(|error| self.about.gone(error))?;
        let mut rows = Vec::with_capacity(vectors.len());
        for (number, range) in vectors {
            let Some(file) = self.files.get(number) else { continue };
            let Some(vector) = &file.vector else { continue };
            let framed =
                bytes.range(&range).map_err(|_| "it is cut off").and_then(|bytes| vector.rows(bitmap::framed(&bytes)?));
            rows.push((number, framed.map_err(|what| bitmap::broken(&found.name, what))?));
        }
        Ok(rows)
    }
}
