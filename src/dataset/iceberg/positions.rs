//! Rows that are deleted by their positions: in files of positions, each read once, and in bitmaps.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use futures::stream::{StreamExt, TryStreamExt};
use roaring::RoaringTreemap;

use super::manifest::Content;
use super::rows::Columns;
use super::table::Table;
use crate::dataset::table::bitmap;
use crate::dataset::{Dataset, OpenOptions, Room, within};
use crate::error::{Error, Place, Result};

/// The columns of a file of positions.
const PATH: &str = "file_path";
const POSITION: &str = "pos";

/// Range of the bitmap of data file number `file`, and the number of rows in it.
struct Framed {
    file: usize,
    rows: i64,
    range: Range<u64>,
}

/// Deleted rows by the numbers of data files.
pub(super) type Rows = BTreeMap<usize, RoaringTreemap>;

/// Adds `found` to `rows`.
pub(super) fn add(rows: &mut Rows, found: Rows) {
    for (number, deleted) in found {
        *rows.entry(number).or_default() |= deleted;
    }
}

impl Table {
    /// The rows that bitmaps delete.
    pub(super) async fn by_vectors(&self, options: &OpenOptions) -> Result<Rows> {
        let mut files: BTreeMap<String, Vec<Framed>> = BTreeMap::new();
        for (number, vector) in &self.applied.vectors {
            let Some(entry) = self.deletes.get(*vector) else { continue };
            let Content::Vector { offset, size } = entry.content else { continue };
            let end = offset.checked_add(size).ok_or_else(|| bitmap::broken(&entry.path, "its range overflows"))?;
            let framed = Framed { file: *number, rows: entry.rows, range: offset..end };
            files.entry(entry.path.clone()).or_default().push(framed);
        }
        let mut rows = Rows::new();
        let mut reading = futures::stream::iter(files)
            .map(|(path, vectors)| self.bitmaps(path, vectors, options))
            .buffer_unordered(options.concurrency)
            .boxed();
        while let Some(found) = reading.try_next().await? {
            add(&mut rows, found);
        }
        Ok(rows)
    }

    /// The bitmaps in the file at `path`.
    async fn bitmaps(&self, path: String, vectors: Vec<Framed>, options: &OpenOptions) -> Result<Rows> {
        let found = self.root.literal(&path, options.access())?;
        let culprit = format!("the deletion vectors in {}", found.url());
        let ranges = vectors.iter().map(|vector| vector.range.clone()).collect();
        let reading = within(options.timeout, culprit, bitmap::bytes(&found, ranges, options.limits.max_index_bytes));
        let bytes = reading.await.map_err(|error| self.about.gone(error))?;
        let mut rows = Rows::new();
        for vector in vectors {
            let deleted = bytes.range(&vector.range).map_err(|_| "it is cut off");
            let deleted = deleted.and_then(|bytes| bitmap::rows(bitmap::framed(&bytes)?, vector.rows));
            rows.insert(vector.file, deleted.map_err(|what| bitmap::broken(&found.name, what))?);
        }
        Ok(rows)
    }

    /// The rows that files of positions delete.
    pub(super) async fn by_positions(&self, room: &Room, options: &OpenOptions) -> Result<Rows> {
        let mut rows = Rows::new();
        if self.applied.positions.is_empty() {
            return Ok(rows);
        }
        let paths = self.data.iter().enumerate().map(|(number, file)| (file.path.as_str(), number)).collect();
        let mut reading = futures::stream::iter(self.applied.positions.iter().copied())
            .map(|delete| self.positions(delete, &paths, room, options))
            .buffer_unordered(options.concurrency)
            .boxed();
        while let Some(found) = reading.try_next().await? {
            add(&mut rows, found);
        }
        Ok(rows)
    }

    /// The rows that file of positions number `delete` deletes, of data files by their `paths`.
    async fn positions(
        &self,
        delete: usize,
        paths: &HashMap<&str, usize>,
        room: &Room,
        options: &OpenOptions,
    ) -> Result<Rows> {
        let Some(entry) = self.deletes.get(delete) else { return Ok(Rows::new()) };
        let mut found = self.root.literal(&entry.path, options.access())?;
        found.size = Some(entry.size).filter(|size| *size > 0);
        let name = found.name.to_string();
        let opened = Dataset::of_log(found, options.beside()).await.map_err(|error| self.about.gone(error))?;
        let broken =
            move |what: &str| Error::corrupt(Place::file(name.as_str()), format!("a file of positions: {what}"));
        let is = |name: &str, ty: &DataType| {
            opened.schema().field_with_name(name).is_ok_and(|field| field.data_type() == ty)
        };
        if !is(PATH, &DataType::Utf8View) || !is(POSITION, &DataType::Int64) {
            return Err(broken("it has no columns file_path and pos of their types"));
        }
        let columns = Columns::new(opened, &[PATH.to_owned(), POSITION.to_owned()], room, options)?;
        let mut rows = Rows::new();
        for group in 0..columns.groups() {
            let broken = broken.clone();
            for (path, deleted) in columns.read(group, move |read| by_path(&read).map_err(broken)).await? {
                let number = paths.get(path.as_str()).copied().filter(|number| {
                    self.data.get(*number).is_some_and(|file| self.applied.by_positions(entry, *number, file))
                });
                if let Some(number) = number {
                    *rows.entry(number).or_default() |= deleted;
                }
            }
        }
        Ok(rows)
    }
}

/// The rows that a row group of a file of positions deletes, by the paths of data files.
fn by_path(columns: &[ArrayRef]) -> Result<HashMap<String, RoaringTreemap>, &'static str> {
    let [of, at] = columns else { return Err("it has other columns") };
    let (of, at) = (of.as_string_view(), at.as_primitive::<Int64Type>());
    if of.null_count() + at.null_count() > 0 {
        return Err("it has nulls");
    }
    let mut rows: HashMap<String, RoaringTreemap> = HashMap::new();
    let mut pairs = of.iter().flatten().zip(at.values()).peekable();
    while let Some((path, first)) = pairs.next() {
        let deleted = rows.entry(path.to_owned()).or_default();
        // As a rule many rows of one file follow each other.
        let mut row = first;
        loop {
            deleted.insert(u64::try_from(*row).map_err(|_| "it has a negative row")?);
            match pairs.next_if(|(next, _)| *next == path) {
                Some((_, next)) => row = next,
                None => break,
            }
        }
    }
    Ok(rows)
}
