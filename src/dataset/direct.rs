//! Columns that need no Arrow reader: plain numbers of a whole row group, and lists of them.
//!
//! Nothing here is an error. What cannot be read this way, or is damaged, is `None` and goes the usual way, which says why.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, FixedSizeListArray, ListArray, make_array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use parquet::file::serialized_reader::SerializedPageReader;

use super::project::{Projection, Source};
use super::read::Fetched;
use super::{Dataset, selection::Selection};
use crate::page::{Element, Source as Pages};

impl Dataset {
    /// The pages of root column number `root`, if it is one flat column of plain numbers of which every row is wanted. Rows that
    /// turn out to be null or damaged are found when they are read.
    pub(crate) fn numbers(&self, fetched: &Fetched, projection: &Projection, root: usize) -> Option<Pages> {
        let width = width(projection.roots().get(root)?.field().data_type())?;
        Some(self.pages(fetched, projection, root, width)?.pages)
    }

    /// Root column number `root` as an array, if its pages hold nothing but numbers.
    pub(super) fn decode_numbers(&self, fetched: &Fetched, projection: &Projection, root: usize) -> Option<ArrayRef> {
        let data_type = projection.roots().get(root)?.field().data_type();
        match data_type {
            DataType::List(item) | DataType::FixedSizeList(item, _) => match width(item.data_type())? {
                4 => self.lists::<u32>(fetched, projection, root, data_type, item.data_type()),
                _ => self.lists::<u64>(fetched, projection, root, data_type, item.data_type()),
            },
            _ => match width(data_type)? {
                4 => self.flat::<u32>(fetched, projection, root, data_type),
                _ => self.flat::<u64>(fetched, projection, root, data_type),
            },
        }
    }

    fn flat<T: Element + ArrowNativeType>(
        &self,
        fetched: &Fetched,
        projection: &Projection,
        root: usize,
        data_type: &DataType,
    ) -> Option<ArrayRef> {
        let Whole { pages, rows, values } = self.pages(fetched, projection, root, size_of::<T>())?;
        let mut chunk = pages.chunk::<T>(None)?;
        let mut found = Vec::with_capacity(values);
        chunk.read(values, &mut found)?;
        chunk.end()?;
        (rows == values).then(|| array(data_type, found))?
    }

    fn lists<T: Element + ArrowNativeType>(
        &self,
        fetched: &Fetched,
        projection: &Projection,
        root: usize,
        data_type: &DataType,
        item: &DataType,
    ) -> Option<ArrayRef> {
        let Whole { pages, rows, values } = self.pages(fetched, projection, root, size_of::<T>())?;
        let found = pages.chunk::<T>(None)?.lists(rows, values)?;
        let items = array(item, found.values)?;
        match data_type {
            DataType::List(field) => {
                let offsets = OffsetBuffer::new(found.offsets.into());
                Some(Arc::new(ListArray::try_new(Arc::clone(field), offsets, items, None).ok()?))
            }
            DataType::FixedSizeList(field, length) => {
                let even = found.offsets.windows(2).all(|pair| pair[1] - pair[0] == *length);
                let array = || FixedSizeListArray::try_new(Arc::clone(field), *length, items, None).ok();
                Some(Arc::new(even.then(array)??))
            }
            _ => None,
        }
    }

    /// All pages of root column number `root`; only if all rows are wanted and the file stores the one leaf in the schema's type.
    fn pages(&self, fetched: &Fetched, projection: &Projection, root: usize, width: usize) -> Option<Whole> {
        let (row_group, file, layout) = self.group(fetched.group).ok()?;
        let all = self.inner.selections.get(fetched.group).is_none_or(|selection| matches!(selection, Selection::All));
        let wanted = projection.roots().get(root)?;
        let leaf = match projection.sources.get(file.layout)?.get(root)? {
            Source::Leaves(leaves) if leaves.len() == 1 => leaves[0],
            _ => return None,
        };
        let stored = layout.schema.field_with_name(wanted.name()).ok()?;
        if !all || !fetched.pages.is_empty() || stored.data_type() != wanted.field().data_type() {
            return None;
        }
        let column = file.metadata.row_groups().get(row_group.ordinal as usize)?.columns().get(leaf)?;
        self.check_pages(fetched, leaf).ok()?;
        let rows = usize::try_from(row_group.rows).ok()?;
        let values = usize::try_from(column.num_values()).ok()?;
        let pages = SerializedPageReader::new(Arc::new(fetched.chunks.clone()), column, rows, None).ok()?;
        Some(Whole { pages: Pages::new(Box::new(pages), column.column_descr(), width)?, rows, values })
    }
}

/// The pages of a whole column chunk.
struct Whole {
    pages: Pages,
    rows: usize,
    values: usize,
}

/// Bytes of a number that is stored in the bits of its type. Times are not: some units are stored as others.
fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Int32 | DataType::UInt32 | DataType::Float32 => Some(4),
        DataType::Int64 | DataType::UInt64 | DataType::Float64 => Some(8),
        _ => None,
    }
}

/// The array of these bits.
fn array<T: ArrowNativeType>(data_type: &DataType, values: Vec<T>) -> Option<ArrayRef> {
    let data = ArrayData::builder(data_type.clone()).len(values.len()).add_buffer(Buffer::from_vec(values)).build();
    data.ok().map(make_array)
}
