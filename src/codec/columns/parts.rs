//! The values of one column of a row group, and its bad rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryViewArray};
use arrow::buffer::Buffer;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::offsets::Offsets;
use super::take_order::TakeOrder;
use super::{bytes, strings};
use crate::codec::npy::NpyDecoder;
use crate::error::{Error, Place};
use crate::page::PagedRows;
use crate::schema::{DType, zones};

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

    /// The first row of the set.
    pub(super) fn first(&self) -> Option<usize> {
        let at = self.words.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.words[at].trailing_zeros() as usize)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(super) fn add(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// One byte for each of `rows` rows: 1 if it is not null.
pub(super) fn mask(rows: usize, nulls: Option<&RowSet>) -> Buffer {
    let bytes: Vec<u8> = match nulls {
        None => vec![1; rows],
        Some(nulls) => (0..rows).map(|row| u8::from(!nulls.contains(row))).collect(),
    };
    Buffer::from_vec(bytes)
}

/// The reason that rows are bad.
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
    /// The error of row `row` of the cells, which is row `stored` of the row group.
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
                    // It decodes on its own, so it was too large together with the others.
                    _ => strings::TOO_MANY.to_owned(),
                }
            }
            // Lists that the device pads are cut here: one text for both.
            Cause::Long(length) => {
                format!(
                    "a list longer than the length {length} in lists; raise it, or set truncate: {}",
                    self.show(row)
                )
            }
        };
        Error::corrupt(place, what)
    }

    /// The value as text, cut to a line.
    fn show(&self, row: usize) -> String {
        let options = FormatOptions::default().with_null("null");
        let one = self.array.as_ref().filter(|array| row < array.len()).map(|array| array.slice(row, 1));
        let one = one.and_then(|one| zones::shown(&one).ok());
        let formatter = one.as_ref().and_then(|one| ArrayFormatter::try_new(one, &options).ok());
        let text = formatter.and_then(|formatter| formatter.value(0).try_to_string().ok()).unwrap_or_default();
        let mut chars = text.chars();
        let start: String = chars.by_ref().take(80).collect();
        if chars.next().is_some() { format!("{start}...") } else { start }
    }
}

/// The values of one column over all rows of a row group.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// Rows of `width` bytes, `stride` bytes apart. After preparation the two are equal.
    Fixed { bytes: Buffer, width: usize, stride: usize },
    /// Wide rows left in their pages; for lists, rows of one length.
    Pages(PagedRows),
    /// Lists, outermost level first, of items of `width` bytes.
    Lists { offsets: Vec<Offsets>, values: Buffer, width: usize },
    /// Text, binary, encoded images: views; for images, into the fetched bytes.
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
    /// One byte per row (per row and column for packs), 1 if it is not null.
    pub(super) valid: Option<Buffer>,
    pub(super) bad: Vec<Bad>,
    /// The root column, kept for packed columns until they are cast: to show values that do not fit.
    pub(super) root: Option<ArrayRef>,
    /// Set if `data` and `valid` are at the places of [`RowGroupBlock::places`](super::RowGroupBlock) rather than in the order of
    /// the row group.
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
