//! The rows of one row group in the form from which batches are gathered.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BinaryViewArray};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::output::{Form, Member, Output};
use super::rows::RowLayout;
use super::take_order::TakeOrder;
use super::{bytes, pack, rows, strings};
use crate::codec::npy::NpyDecoder;
use crate::error::{Error, Place, Result};
use crate::page::PagedRows;
use crate::schema::DType;

/// Offsets of lists, as the file had them.
#[derive(Debug, Clone)]
pub(super) enum Offsets {
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
}

impl Offsets {
    /// The start of list `at`, and the end of the one before it.
    #[inline]
    pub(super) fn at(&self, at: usize) -> usize {
        // Arrow's offsets are never negative.
        match self {
            Self::Small(offsets) => offsets[at] as usize,
            Self::Large(offsets) => offsets[at] as usize,
        }
    }

    /// The number of lists.
    pub(super) fn lists(&self) -> usize {
        match self {
            Self::Small(offsets) => offsets.len() - 1,
            Self::Large(offsets) => offsets.len() - 1,
        }
    }

    /// The list that holds `item`, if one does.
    pub(super) fn owner(&self, item: usize) -> Option<usize> {
        let after = match self {
            Self::Small(offsets) => offsets.partition_point(|offset| *offset as usize <= item),
            Self::Large(offsets) => offsets.partition_point(|offset| *offset as usize <= item),
        };
        after.checked_sub(1).filter(|list| *list < self.lists())
    }

    fn buffer(&self) -> &Buffer {
        match self {
            Self::Small(offsets) => offsets.inner().inner(),
            Self::Large(offsets) => offsets.inner().inner(),
        }
    }
}

/// A set of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct RowSet {
    words: Vec<u64>,
}

impl RowSet {
    pub(super) fn new(rows: usize) -> Self {
        Self { words: vec![0; rows.div_ceil(64)] }
    }

    pub(super) fn insert(&mut self, row: usize) {
        if let Some(word) = self.words.get_mut(row / 64) {
            *word |= 1 << (row % 64);
        }
    }

    #[inline]
    pub(super) fn contains(&self, row: usize) -> bool {
        self.words.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    /// The first one.
    pub(super) fn first(&self) -> Option<usize> {
        let at = self.words.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.words[at].trailing_zeros() as usize)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    fn add(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// Why rows are bad.
#[derive(Debug, Clone)]
pub(super) enum Cause {
    Null,
    /// A value does not fit this type.
    Misfit(DType),
    /// A list is longer than this.
    Long(usize),
    /// A vector of Spark is broken, or not of this length.
    Vector(Option<usize>),
    /// An array of strings cannot be read.
    Strings(Arc<NpyDecoder>),
}

/// Rows of one column that cannot be delivered.
#[derive(Debug, Clone)]
pub(super) struct Bad {
    pub(super) column: Arc<str>,
    pub(super) rows: RowSet,
    pub(super) cause: Cause,
    /// The root column, to show the value.
    pub(super) array: Option<ArrayRef>,
}

impl Bad {
    /// What is wrong with row `row` of the cells, which is row `stored` of the row group.
    pub(super) fn error(&self, place: &Place, row: usize, stored: u64) -> Error {
        let place = place.clone().column(Arc::clone(&self.column)).row(stored);
        let what = match &self.cause {
            Cause::Null => {
                let hint = "set nulls to `fill` or `mask` for this column, or set bad_rows";
                return Error::nulls("null", hint).at(place);
            }
            Cause::Vector(Some(length)) => {
                format!("no vector of {length} numbers, as the first one is, or as lists says: {}", self.show(row))
            }
            Cause::Vector(None) => format!("no vector of Spark: {}", self.show(row)),
            Cause::Misfit(dtype) => format!("a value does not fit {dtype}: {}", self.show(row)),
            Cause::Strings(decoder) => {
                let cell = self.array.as_ref().and_then(|array| bytes::views(array, false).ok());
                let read = cell.filter(|cells| row < cells.len()).map(|cells| decoder.strings(cells.value(row)));
                match read {
                    Some(Err(error)) => error.to_string(),
                    // It decodes by itself, so that it was too much beside the others.
                    _ => strings::TOO_MANY.to_owned(),
                }
            }
            Cause::Long(length) => {
                format!("a list longer than the padded length {length}; raise it, or set truncate: {}", self.show(row))
            }
        };
        Error::corrupt(place, what)
    }

    /// The value as text, cut to a line.
    fn show(&self, row: usize) -> String {
        let options = FormatOptions::default();
        let array = self.array.as_ref().filter(|array| row < array.len());
        let formatter = array.and_then(|array| ArrayFormatter::try_new(array, &options).ok());
        let text = formatter.and_then(|formatter| formatter.value(row).try_to_string().ok()).unwrap_or_default();
        let mut chars = text.chars();
        let start: String = chars.by_ref().take(80).collect();
        if chars.next().is_some() { format!("{start}...") } else { start }
    }
}

/// The values of one column over all rows of a row group.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// Rows of `width` bytes, `stride` bytes apart. As prepared the two are the same.
    Fixed { bytes: Buffer, width: usize, stride: usize },
    /// Wide rows where they lie in their pages; for lists, rows of one length.
    Pages(PagedRows),
    /// Lists, outermost level first, of items of `width` bytes.
    Lists { offsets: Vec<Offsets>, values: Buffer, width: usize },
    /// Text, binary, encoded images: views, for images into the fetched bytes.
    Bytes(BinaryViewArray),
    /// Lists of text or binary, in the type in which they are delivered.
    Nested(ArrayRef),
}

/// One column, prepared.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) data: Data,
    /// Element type of `data`: for packs to come, the stored one.
    pub(super) dtype: DType,
    /// One byte per row (per row and column for packs), 1 where it is not null.
    pub(super) valid: Option<Buffer>,
    pub(super) bad: Vec<Bad>,
    /// The root column, kept for packed columns until they are cast: to show what does not fit.
    pub(super) root: Option<ArrayRef>,
    /// Whether `data` and `valid` are in the order of [`RowGroupBlock::order`], and not in that of the row group.
    pub(super) in_take_order: bool,
}

impl Part {
    /// Puts its values in the order in which batches take them, if they are small and of one width.
    pub(super) fn sort(&mut self, order: &TakeOrder) {
        let Data::Fixed { bytes, width, stride } = &mut self.data else { return };
        if width != stride {
            return;
        }
        let valid = self.valid.as_ref().map(|valid| order.sorted(valid, 1));
        if let (Some(sorted), None | Some(Some(_))) = (order.sorted(bytes, *width), &valid) {
            (*bytes, self.valid, self.in_take_order) = (sorted, valid.flatten(), true);
        }
    }
}

/// One root column of a row group, prepared, or a pack of several.
#[derive(Debug)]
pub struct PreparedColumn {
    /// The name of the root column or pack.
    pub(super) name: Arc<str>,
    pub(super) rows: usize,
    pub(super) made: Made,
}

/// What was prepared.
#[derive(Debug)]
pub(super) enum Made {
    /// Members, by number.
    Members(Vec<(usize, Part)>),
    /// A whole output, by number.
    Output(usize, Part),
}

/// The rows of one row group: what batches are gathered from. Immutable and shared.
#[derive(Debug)]
pub struct RowGroupBlock {
    pub(super) rows: usize,
    pub(super) place: Place,
    /// By output.
    pub(super) parts: Vec<Part>,
    /// The small ones among them once more as rows, if they lie side by side.
    pub(super) small: Option<rows::Rows>,
    /// The order that the small ones are in instead, if it was known.
    pub(super) order: Option<TakeOrder>,
    /// Rows that are bad in any column, if there are some.
    pub(super) bad: Option<RowSet>,
    memory: usize,
}

impl RowGroupBlock {
    /// Bytes held, those shared with the fetched column chunks included, unless those stay as a whole; memory shared by several
    /// columns counts once.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Of [`memory`](Self::memory), the bytes that lie where `holds` says yes: parts of what was fetched that views point into.
    pub(crate) fn shared(&self, holds: impl Fn(*const u8) -> bool) -> usize {
        distinct(&self.parts, |buffer| holds(buffer.data_ptr().as_ptr()))
    }

    /// Whether rows were left in the fetched column chunks, which then stay as long as the cells do.
    pub(crate) fn in_fetched(&self) -> bool {
        self.parts.iter().any(|part| matches!(&part.data, Data::Pages(pages) if pages.in_place()))
    }

    /// Rows; `usize::MAX` if no column was read.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

pub(super) fn cells(
    members: &[Member],
    outputs: &[Output],
    prepared: Vec<PreparedColumn>,
    layout: Option<&Arc<RowLayout>>,
    order: Option<TakeOrder>,
    place: Place,
) -> Result<RowGroupBlock> {
    let rows = prepared.first().map_or(usize::MAX, |first| first.rows);
    if let Some(other) = prepared.iter().find(|other| other.rows != rows) {
        let what = format!("{} rows, where column {} has {rows}", other.rows, prepared[0].name);
        return Err(Error::corrupt(place.column(Arc::clone(&other.name)), what));
    }
    let mut parts: Vec<Option<Part>> = vec![None; members.len()];
    let mut whole: Vec<Option<Part>> = vec![None; outputs.len()];
    for prepared in prepared {
        match prepared.made {
            Made::Members(of) => of.into_iter().for_each(|(at, part)| parts[at] = Some(part)),
            Made::Output(at, part) => whole[at] = Some(part),
        }
    }
    let mut take = |at: usize| {
        parts[at].take().ok_or_else(|| Error::corrupt(place.clone().column(Arc::clone(&members[at].name)), "not read"))
    };
    let mut made = Vec::with_capacity(outputs.len());
    for (output, whole) in outputs.iter().zip(whole) {
        if let Some(part) = whole {
            made.push(part);
            continue;
        }
        let mut of = output.members.iter().map(|at| take(*at)).collect::<Result<Vec<Part>>>()?;
        let part = match output.form {
            Form::Pack => pack::pack(output, members, of, rows, &place)?,
            // Every other output has one member.
            _ => of.swap_remove(0),
        };
        made.push(part);
    }
    let order = order.filter(|_| made.iter().any(|part| part.in_take_order)).map(TakeOrder::settled);
    let moved = layout.filter(|_| order.is_none());
    let small = moved.and_then(|layout| rows::side_by_side(layout, outputs, &mut made, rows));
    let mut bad: Option<RowSet> = None;
    for entry in made.iter().flat_map(|part| &part.bad) {
        bad.get_or_insert_default().add(&entry.rows);
    }
    let memory = distinct(&made, |_| true) + beside(&made) + order.as_ref().map_or(0, TakeOrder::memory);
    Ok(RowGroupBlock { rows, place, parts: made, small, order, bad, memory })
}

/// Bytes of the buffers of `parts` that `counts` takes, each once.
fn distinct(parts: &[Part], counts: impl Fn(&Buffer) -> bool) -> usize {
    let mut seen = HashSet::new();
    let mut sum = 0;
    let mut visit = |buffer: &Buffer| {
        if seen.insert(buffer.data_ptr()) && counts(buffer) {
            sum += buffer.capacity();
        }
    };
    for part in parts {
        part.valid.iter().for_each(&mut visit);
        match &part.data {
            Data::Fixed { bytes, .. } => visit(bytes),
            Data::Pages(_) => {}
            Data::Lists { offsets, values, .. } => {
                visit(values);
                offsets.iter().for_each(|offsets| visit(offsets.buffer()));
            }
            Data::Bytes(array) => {
                visit(array.views().inner());
                array.data_buffers().iter().for_each(&mut visit);
            }
            Data::Nested(array) => buffers(&array.to_data(), &mut visit),
        }
        part.bad.iter().flat_map(|bad| &bad.array).for_each(|array| buffers(&array.to_data(), &mut visit));
    }
    sum
}

/// Every buffer of an array, its children's too.
fn buffers(data: &ArrayData, visit: &mut impl FnMut(&Buffer)) {
    data.buffers().iter().for_each(&mut *visit);
    data.nulls().iter().for_each(|nulls| visit(nulls.buffer()));
    data.child_data().iter().for_each(|child| buffers(child, visit));
}

/// Bytes that are in no buffer: copies of pages, and which rows are bad.
fn beside(parts: &[Part]) -> usize {
    let sizes = parts.iter().map(|part| {
        let pages = match &part.data {
            // What lies in the fetched bytes is theirs, see `in_fetched`.
            Data::Pages(pages) => pages.copied(),
            _ => 0,
        };
        pages + part.bad.iter().map(|bad| bad.rows.bytes()).sum::<usize>()
    });
    sizes.sum()
}
