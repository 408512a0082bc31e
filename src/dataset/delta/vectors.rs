//! Reading deleted rows: each file of bitmaps once, and of it the bytes that are asked for.

use std::collections::BTreeMap;
use std::ops::Range;

use futures::stream::{StreamExt, TryStreamExt};
use roaring::RoaringTreemap;
use sha2::{Digest, Sha256};

use super::path::locate;
use super::table::Table;
use super::vector::{self, Path, Source};
use crate::dataset::chunks::{Chunks, coalesce};
use crate::dataset::{OpenOptions, Selection, within};
use crate::error::{Error, Place, Result};
use crate::store::Found;

/// The deleted rows of some files of a table.
#[derive(Debug, Default)]
pub(in crate::dataset) struct Deleted {
    /// By the number of the file, and all of them not empty.
    rows: BTreeMap<usize, RoaringTreemap>,
}

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
            match vector.source().map_err(|what| broken(file.found.name.as_ref(), what))? {
                Source::Inline(bitmap) => {
                    let found = vector.rows(&bitmap).map_err(|what| broken(file.found.name.as_ref(), what))?;
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
        rows.retain(|_, rows| !rows.is_empty());
        Ok(Deleted { rows })
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
        let bytes =
            within(options.timeout, culprit, bytes(&found, ranges)).await.map_err(|error| self.vacuumed(error))?;
        let mut rows = Vec::with_capacity(vectors.len());
        for (number, range) in vectors {
            let Some(file) = self.files.get(number) else { continue };
            let Some(vector) = &file.vector else { continue };
            let framed = bytes.range(&range).map_err(|_| "it is cut off").and_then(|bytes| {
                let bitmap = vector::framed(&bytes)?;
                vector.rows(bitmap)
            });
            rows.push((number, framed.map_err(|what| broken(&found.name, what))?));
        }
        Ok(rows)
    }
}

/// These bytes of a file of bitmaps.
async fn bytes(found: &Found, ranges: Vec<Range<u64>>) -> Result<Chunks> {
    let object = found.tail(1).await?.object;
    let size = object.stamp().size;
    if ranges.iter().any(|range| range.end > size) {
        return Err(broken(&found.name, "it is cut off"));
    }
    let ranges = coalesce(ranges, object.gap());
    let parts = object.read(ranges.clone()).await?;
    Ok(Chunks::new(ranges.into_iter().map(|range| range.start).zip(parts).collect(), size))
}

fn broken(name: &str, what: &str) -> Error {
    Error::corrupt(Place::file(name), format!("a deletion vector: {what}"))
}

impl Deleted {
    /// Whether no row is.
    pub(in crate::dataset) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is left of the row groups of file `number`, which is called `name`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a row that the file has not.
    pub(in crate::dataset) fn left(&self, number: usize, name: &str, groups: &[u64]) -> Result<Vec<Selection>> {
        let Some(rows) = self.rows.get(&number) else { return Ok(vec![Selection::All; groups.len()]) };
        let beyond = |row: u64| broken(name, &format!("it deletes row {row}, which the file has not"));
        vector::left(rows, groups.iter().copied()).map_err(beyond)
    }

    /// SHA-256 over the deleted rows, by the numbers of files: whatever way they are stored in.
    pub(in crate::dataset) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for (number, rows) in &self.rows {
            digest.update((*number as u64).to_le_bytes());
            digest.update(rows.len().to_le_bytes());
            rows.iter().for_each(|row| digest.update(row.to_le_bytes()));
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
