//! Decoding one row group: its columns as arrays.
//!
//! ```text
//!   pages of a leaf ─walked─► sizes, counts, checksums ─► levels held against the schema ─► Arrow's reader ─► the schema's type
//! ```

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array as _, ArrayRef, new_empty_array, new_null_array};
use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowGroups, RowSelection,
    RowSelectionPolicy,
};
use parquet::arrow::{FieldLevels, ProjectionMask};
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::ColumnDescPtr;

use super::chunks::Chunks;
use super::dictionaries::Dictionary;
use super::guard::guard;
use super::levels::Levels;
use super::masked::masked;
use super::offsets::Run;
use super::project::{Leaves, Projection, Source};
use super::read::{Fetched, Paged};
use super::run::{self, Framed};
use super::{Chunk, Dataset, Layout, Selection, hive, pages, times, unify, unpack};
use crate::error::{Error, Place, Result};
use crate::manifest::RowGroup;
use crate::page::{Checked, Lineage, Tally};
use crate::schema::cast;

/// The rows of a row group to decode.
#[derive(Debug)]
pub(super) struct Rows {
    /// All without one.
    pub(super) selection: Option<RowSelection>,
    /// Number of these rows.
    pub(super) count: u64,
}

impl Dataset {
    /// Decodes root column number `root` of the projection: its selected rows, in row order, in the type of the schema.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Limit`] or [`Error::Unsupported`], each with its place.
    pub fn decode(&self, fetched: &Fetched, projection: &Projection, root: usize) -> Result<ArrayRef> {
        if let Some(array) = self.decode_numbers(fetched, projection, root) {
            return Ok(array);
        }
        let (row_group, ..) = self.group(fetched.group)?;
        let selection = match self.part(fetched.group) {
            Some(_) => {
                Some(self.selection(fetched.group).unwrap_or(&Selection::All).within(&self.range(fetched.group)))
            }
            None => self.selection(fetched.group).and_then(|selection| selection.to_parquet(row_group.rows)),
        };
        let rows = Rows { selection, count: self.decoded_rows(fetched.group) };
        self.decode_rows(fetched, projection, root, None, rows)
    }

    /// As [`decode`](Self::decode), for other rows than the dataset's. `indexed` knows the pages where only some were read.
    pub(super) fn decode_rows(
        &self,
        fetched: &Fetched,
        projection: &Projection,
        root: usize,
        indexed: Option<&ArrowReaderMetadata>,
        rows: Rows,
    ) -> Result<ArrayRef> {
        let (_, file, layout) = self.group(fetched.group)?;
        let place = self.place(fetched.group);
        let count = usize::try_from(rows.count).map_err(|_| Error::corrupt(place.clone(), "it has too many rows"))?;
        let source = projection.sources.get(file.layout).and_then(|sources| sources.get(root));
        let (Some(wanted), Some(source)) = (projection.roots().get(root), source) else {
            return Err(Error::NotFound { what: format!("column {root} of the projection"), hint: String::new() });
        };
        let place = place.column(wanted.name());
        let data_type = wanted.field().data_type();
        let leaves = match source {
            Source::Partition => {
                let value = file.partitions.iter().find(|(key, _)| key.as_ref() == wanted.name());
                let value = value.and_then(|(_, value)| value.as_deref());
                return guard(&place, "a partition value", || Ok(hive::constant(value, data_type, count)?));
            }
            // Nested fixed sizes multiply, and Arrow panics where they overflow.
            Source::Missing => {
                return guard(&place, "a column that the file lacks", || Ok(new_null_array(data_type, count)));
            }
            Source::Leaves(_) if count == 0 => return Ok(new_empty_array(data_type)),
            Source::Leaves(leaves) => leaves,
        };
        for leaf in &leaves.numbers {
            self.check_pages(fetched, *leaf)?;
        }
        let group = Group {
            chunks: Arc::new(fetched.chunks.clone()),
            columns: &fetched.columns,
            layout,
            // Rows are counted over the row group; a unit has some of them.
            row_group: self.whole_group(self.number(fetched.group))?.0,
            runs: leaves.numbers.iter().map(|leaf| fetched.run(*leaf)).collect(),
            dictionaries: leaves.numbers.iter().map(|leaf| fetched.dictionary(*leaf)).collect(),
            leaves: &leaves.numbers,
            lineages: Lineage::of(layout.descriptor(), &leaves.numbers),
            tally: Mutex::new(Arc::new(Tally::new(0))),
            complete: self.range(fetched.group).end - self.range(fetched.group).start == rows.count,
        };
        let array = match indexed.filter(|_| !fetched.pages.is_empty()) {
            Some(reader) => group.some_pages(reader, leaves, &rows, &fetched.pages, &place)?,
            None => group.all_pages(leaves, &rows, &place)?,
        };
        let array = adapted(&array, data_type, &rows, &place)?;
        if array.len() == count {
            Ok(array)
        } else {
            Err(Error::corrupt(place, format!("it has {} rows where {count} were expected", array.len())))
        }
    }

    /// Checks what was fetched of one leaf before it is decoded.
    pub(super) fn check_pages(&self, fetched: &Fetched, leaf: usize) -> Result<()> {
        let (row_group, _, layout) = self.group(fetched.group)?;
        let known = fetched.columns.get(leaf).zip(layout.descriptor().columns().get(leaf));
        let Some((chunk, column)) = known else { return Ok(()) };
        let place = || self.place(fetched.group).column(column.path().string());
        let bytes = |range: &Range<u64>| guard(&place(), "it was not read", || fetched.chunks.range(range));
        let walk = pages::Walk { chunk, column, rows: row_group.rows, limits: &self.inner.limits, place: &place };
        if let Some(run) = fetched.run(leaf) {
            let dictionary = match fetched.dictionary(leaf) {
                Some(shared) => match shared.checked() {
                    Some(bytes) => pages::Before::Checked(bytes),
                    None => pages::Before::Stored(shared.stored().clone()),
                },
                None => run
                    .dictionary
                    .as_ref()
                    .map(bytes)
                    .transpose()?
                    .map_or(pages::Before::Nothing, pages::Before::Stored),
            };
            return walk.run(&dictionary, &bytes(&run.pages)?, run.rows.end - run.rows.start);
        }
        match fetched.pages.iter().find(|(number, _)| *number == leaf) {
            Some((_, pages)) => walk.some(pages.iter().map(|(range, rows)| Ok((bytes(range)?, *rows)))),
            None => walk.all(&bytes(&chunk.range())?),
        }
    }
}

/// One row group as Arrow's reader asks for it.
struct Group<'a> {
    chunks: Arc<Chunks>,
    columns: &'a [Chunk],
    layout: &'a Layout,
    row_group: &'a RowGroup,
    /// Run that was read of each leaf, if it is the pages of a unit.
    runs: Vec<Option<&'a Run>>,
    /// The same for dictionaries that are shared with other units.
    dictionaries: Vec<Option<&'a Dictionary>>,
    /// The leaves of the column, and what their levels have to agree with.
    leaves: &'a [usize],
    lineages: Vec<Lineage>,
    /// Facts that the leaves tell of each other in the current reading.
    tally: Mutex<Arc<Tally>>,
    /// True if all rows are read. If not, nothing after the last wanted one is, and pages of the leaves end at other rows.
    complete: bool,
}

impl Group<'_> {
    /// The column from whole chunks.
    fn all_pages(&self, leaves: &Leaves, rows: &Rows, place: &Place) -> Result<ArrayRef> {
        let levels = match leaves.levels.get() {
            Some(levels) => levels,
            None => {
                let made = guard(place, "the schema is damaged", || Levels::new(self.layout, &leaves.numbers))?;
                leaves.levels.get_or_init(|| made)
            }
        };
        let read = |levels: &FieldLevels| {
            guard(place, "its pages are damaged", || {
                // A unit needs room for its own rows only.
                let size =
                    if self.runs.iter().any(Option::is_some) { rows.count } else { self.row_group.rows } as usize;
                let tally = Arc::new(Tally::new(self.leaves.len()));
                *self.tally.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&tally);
                let reader =
                    ParquetRecordBatchReader::try_new_with_row_groups(levels, self, size, rows.selection.clone())?;
                let array = gathered(reader)?;
                if self.complete {
                    tally.agree()?;
                }
                Ok(array)
            })
        };
        match levels {
            Levels::Plain(levels) => read(levels),
            Levels::Times([seconds, nanos], units) => {
                let (seconds, nanos) = (read(seconds)?, read(nanos)?);
                times::join(&seconds, &nanos, units).map_err(|fault| untimely(fault, rows, place))
            }
        }
    }

    /// Lineage that the levels of a leaf have to agree with, and the leaf's number among those of the column.
    fn lineage(&self, leaf: usize) -> (Lineage, usize) {
        let at = self.leaves.binary_search(&leaf).unwrap_or(usize::MAX);
        (self.lineages.get(at).cloned().unwrap_or_default(), at)
    }

    /// The footer's description of column `leaf`.
    fn column(&self, leaf: usize) -> Result<(&Chunk, &ColumnDescPtr), ParquetError> {
        let known = self.columns.get(leaf).zip(self.layout.descriptor().columns().get(leaf));
        known.ok_or_else(|| ParquetError::General(format!("column {leaf} is unknown")))
    }

    /// Looks at the levels of `some` pages; Arrow's reader, which has its own way to chosen pages, unpacks them again.
    fn check_levels(&self, leaves: &Leaves, some: &[(usize, Vec<Paged>)]) -> Result<(), ParquetError> {
        for (leaf, ranges) in some.iter().filter(|(leaf, _)| leaves.numbers.contains(leaf)) {
            let (chunk, column) = self.column(*leaf)?;
            let (lineage, _) = self.lineage(*leaf);
            for (range, rows) in ranges {
                // A chunk that is nothing but these pages.
                let stored = range.end - range.start;
                let part = Chunk { start: range.start, data: range.start, stored, dictionary: false, ..*chunk };
                let pages = unpack::pages(&self.chunks, &part, column, self.num_rows())?;
                let mut checked = Checked::new(pages, column, lineage.clone(), None);
                if let Some(rows) = rows {
                    checked = checked.of_rows(usize::try_from(*rows)?);
                }
                checked.try_for_each(|page| page.map(drop))?;
            }
        }
        Ok(())
    }

    /// The column from its pages that were read, which `reader` knows.
    fn some_pages(
        &self,
        reader: &ArrowReaderMetadata,
        leaves: &Leaves,
        rows: &Rows,
        some: &[(usize, Vec<Paged>)],
        place: &Place,
    ) -> Result<ArrayRef> {
        let ordinal = self.row_group.ordinal as usize;
        guard(place, "its pages are damaged", || {
            self.check_levels(leaves, some)?;
            let mask = ProjectionMask::leaves(reader.parquet_schema(), leaves.numbers.iter().copied());
            let mut builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(Chunks::clone(&self.chunks), reader.clone())
                    .with_row_groups(vec![ordinal])
                    .with_projection(mask)
                    .with_batch_size(self.row_group.rows as usize)
                    // Masks would ask for pages in which nothing is selected.
                    .with_row_selection_policy(RowSelectionPolicy::Selectors);
            if let Some(selection) = &rows.selection {
                builder = builder.with_row_selection(selection.clone());
            }
            gathered(builder.build()?)
        })
    }
}

/// The one column of all batches.
fn gathered(reader: ParquetRecordBatchReader) -> Result<ArrayRef, ParquetError> {
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    let arrays = batches.iter().filter_map(|batch| batch.columns().first()).map(masked);
    let arrays: Vec<ArrayRef> = arrays.collect::<Result<_, _>>()?;
    match arrays.as_slice() {
        [one] => Ok(Arc::clone(one)),
        [] => Err(ParquetError::EOF("there are no rows".to_owned())),
        many => Ok(arrow::compute::concat(&many.iter().map(AsRef::as_ref).collect::<Vec<_>>())?),
    }
}

/// `array`, which has the selected `rows`, in the dataset's type.
fn adapted(array: &ArrayRef, data_type: &DataType, rows: &Rows, place: &Place) -> Result<ArrayRef> {
    const WHAT: &str = "its type is not the dataset's";
    let adapted = guard(place, WHAT, || Ok(unify::adapt(array, data_type)?));
    if adapted.is_ok() || array.data_type().is_nested() {
        return adapted;
    }
    // The file is sound if all that is wrong is a value that this type does not hold.
    let Err(misfit) = guard(place, WHAT, || Ok(cast(array, data_type)))? else { return adapted };
    let Some(row) = misfit.row.and_then(|at| stored_row(at, rows)) else { return adapted };
    // A filter on the column itself compares with values of this type.
    let hint = "files of the dataset differ in this type: leave the row out by a filter on another column, or open the files as separate datasets";
    Err(Error::unsupported(misfit.conversion(), hint).at(place.clone().row(row as u64)))
}

/// The row of the row group that is number `at` of those that are selected.
fn stored_row(at: usize, rows: &Rows) -> Option<usize> {
    let Some(selection) = &rows.selection else { return Some(at) };
    let (mut row, mut left) = (0, at);
    for selector in selection.iter() {
        if !selector.skip && left < selector.row_count {
            return Some(row + left);
        }
        row += selector.row_count;
        left -= if selector.skip { 0 } else { selector.row_count };
    }
    None
}

/// The error for times that cannot be converted.
fn untimely(fault: times::Fault, rows: &Rows, place: &Place) -> Error {
    let (at, flat, why) = match fault {
        times::Fault::Arrow(error) => return Error::corrupt_by(place.clone(), "its pages are damaged", error),
        times::Fault::Time { at, flat, why } => (at, flat, why),
    };
    let place = match stored_row(at, rows).filter(|_| flat) {
        Some(row) => place.clone().row(row as u64),
        None => place.clone(),
    };
    match why {
        times::Why::Beyond(unit) => {
            Error::corrupt(place, format!("an INT96 time is further from 1970 than 64 bits of {unit} reach"))
        }
        times::Why::Negative => Error::corrupt(place, "an INT96 time is before its day, or its day is negative"),
        times::Why::Finer(unit) => Error::unsupported(
            format!("an INT96 time with digits beyond {unit}"),
            "rewrite the column as INT64 nanoseconds, or leave it out",
        )
        .at(place),
    }
}

impl RowGroups for Group<'_> {
    fn num_rows(&self) -> usize {
        self.row_group.rows as usize
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>, ParquetError> {
        let (chunk, column) = self.column(leaf)?;
        let (lineage, at) = self.lineage(leaf);
        let tally = Arc::clone(&self.tally.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(run) = self.runs.get(at).copied().flatten() {
            let shared = self.dictionaries.get(at).copied().flatten();
            let pages = run::pages(&self.chunks, chunk, column, run, shared)?;
            let same = self.runs.iter().all(|other| other.is_some_and(|other| other.rows == run.rows));
            let rows = usize::try_from(run.rows.end - run.rows.start)?;
            let checked = Checked::new(pages, column, lineage, same.then_some((tally, at))).of_rows(rows);
            return Ok(Box::new(Once(Some(Box::new(Framed::new(checked, run, self.num_rows())?)))));
        }
        let pages = unpack::pages(&self.chunks, chunk, column, self.num_rows())?;
        // The walk over its pages stays with sizes; levels are seen where pages are unpacked anyway.
        Ok(Box::new(Once(Some(Box::new(Checked::new(pages, column, lineage, Some((tally, at))))))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        // Only row numbers ask for them, which come from elsewhere.
        Box::new(std::iter::empty())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.layout.metadata
    }
}

/// The pages of the one row group.
struct Once(Option<Box<dyn PageReader>>);

impl Iterator for Once {
    type Item = Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for Once {}
