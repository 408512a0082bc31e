//! A column chunk of plain pages, built from arrays that stay in place until their bytes are written to the file.
//!
//! ```text
//!   arrays ─┬─ where rows begin ─► levels ─┐
//!           └─ bytes of values ────────────┴─► header, levels, values; header, levels, ... ─► file
//! ```
//! An encoder copies values into a page, pages into a chunk, and the chunk into the file. If the values of a plain page
//! are those of an array, in its order and width, nothing needs encoding, and the file is the first place they are
//! copied to.

use std::io::{self, Read};

use arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder, GenericListArray, OffsetSizeTrait};
use arrow::datatypes::DataType;
use bytes::{Buf, Bytes};
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::Result;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::ColumnDescPtr;

/// Values with fewer bytes are copied, so that many small arrays do not hold many small pieces of memory.
const SMALL: usize = 16 << 10;

/// Maximum bytes of the values of one row: sizes of pages are 32 bits.
const MAX_ROW: usize = 1 << 29;

/// Bytes of a number that Parquet stores as it is in memory. Times are not: some units are stored as others.
pub(crate) fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Int32 | DataType::UInt32 | DataType::Float32 => Some(4),
        DataType::Int64 | DataType::UInt64 | DataType::Float64 => Some(8),
        _ => None,
    }
}

/// The values of an array of numbers, or of lists of them, where none is null and no list is empty.
#[derive(Debug)]
pub(crate) struct Values {
    rows: usize,
    starts: Starts,
    bytes: Bytes,
}

/// The first value of each row.
#[derive(Debug)]
enum Starts {
    /// Every row has this many values.
    Even(usize),
    /// The start of every row, and the end.
    Lists(Vec<usize>),
}

impl Starts {
    /// The starts of lists with these offsets, unless a list is empty or too large.
    fn of_lists<O: OffsetSizeTrait>(offsets: &[O]) -> Option<Self> {
        let first = offsets.first()?.as_usize();
        let fit = |pair: &[O]| (1..=MAX_ROW / 8).contains(&(pair[1].as_usize() - pair[0].as_usize()));
        let starts = || offsets.iter().map(|offset| offset.as_usize() - first).collect();
        offsets.windows(2).all(fit).then(|| Self::Lists(starts()))
    }

    /// Number of the first value of row `row`, or of the value after the last row.
    fn at(&self, row: usize) -> usize {
        match self {
            Self::Even(each) => row * each,
            Self::Lists(starts) => starts[row],
        }
    }

    /// The first of the rows `from..to` that ends beyond value `end`; `to` if none does.
    fn beyond(&self, end: usize, from: usize, to: usize) -> usize {
        match self {
            Self::Even(each) => (end / each).clamp(from, to),
            Self::Lists(starts) => from + starts[from + 1..=to].partition_point(|start| *start <= end),
        }
    }
}

impl Values {
    /// Bytes of the values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The values of `array`; `None` if a plain chunk cannot take them.
    pub(crate) fn of(array: &dyn Array) -> Option<Self> {
        if array.null_count() > 0 {
            return None;
        }
        let rows = array.len();
        let of = |values: &dyn Array, starts| Some(Self { rows, starts, bytes: bytes(values)? });
        match array.data_type() {
            DataType::FixedSizeList(_, length) => {
                let each = usize::try_from(*length).ok().filter(|each| (1..=MAX_ROW / 8).contains(each))?;
                of(array.as_fixed_size_list().values(), Starts::Even(each))
            }
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                of(&within(lists), Starts::of_lists(lists.value_offsets())?)
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                of(&within(lists), Starts::of_lists(lists.value_offsets())?)
            }
            _ => of(array, Starts::Even(1)),
        }
    }
}

/// The values that the lists of `lists` hold: for a slice, a part of all.
fn within<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> ArrayRef {
    let offsets = lists.value_offsets();
    let (first, end) = (offsets[0].as_usize(), offsets[lists.len()].as_usize());
    lists.values().slice(first, end - first)
}

/// The bytes of an array of numbers without nulls.
fn bytes(array: &dyn Array) -> Option<Bytes> {
    let width = width(array.data_type()).filter(|_| array.null_count() == 0)?;
    let data = array.to_data();
    let buffer = data.buffers().first()?.slice_with_length(data.offset() * width, data.len() * width);
    Some(Bytes::from_owner(buffer))
}

/// A column chunk being gathered.
#[derive(Debug)]
pub(crate) struct PlainChunk {
    column: ColumnDescPtr,
    width: usize,
    page_bytes: usize,
    rows: usize,
    bytes: usize,
    values: usize,
    pages: Vec<Page>,
}

/// A page being gathered.
#[derive(Debug)]
struct Page {
    values: usize,
    bytes: usize,
    /// One bit for each value of a list: set if the value continues the row.
    goes_on: BooleanBufferBuilder,
    parts: Vec<Part>,
}

/// A part of the bytes of the values.
#[derive(Debug)]
enum Part {
    Kept(Bytes),
    Copied(Vec<u8>),
}

impl PlainChunk {
    /// A chunk of `column`, whose arrays are of `data_type`, in pages of about `page_bytes`. `None` if such arrays are
    /// not stored in the form that they have in memory.
    pub(crate) fn new(column: &ColumnDescPtr, data_type: &DataType, page_bytes: usize) -> Option<Self> {
        let (item, lists) = match data_type {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                (item.data_type(), true)
            }
            other => (other, false),
        };
        let width = width(item)?;
        let stored = match column.physical_type() {
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            _ => return None,
        };
        let (definition, repetition) = (column.max_def_level(), column.max_rep_level());
        (stored == width && repetition == i16::from(lists) && definition <= 3).then(|| Self {
            column: ColumnDescPtr::clone(column),
            width,
            page_bytes: page_bytes.clamp(1, MAX_ROW),
            rows: 0,
            bytes: 0,
            values: 0,
            pages: Vec::new(),
        })
    }

    /// Approximate bytes of the gathered values and their levels.
    pub(crate) fn bytes(&self) -> usize {
        let levels = if self.column.max_rep_level() > 0 { self.values / 8 } else { 0 };
        self.bytes + levels
    }

    /// Adds the values of an array of the chunk's type: in place until the chunk is written if `kept`, otherwise
    /// copied.
    pub(crate) fn push(&mut self, values: &Values, kept: bool) {
        let Values { rows, starts, bytes } = values;
        let mut row = 0;
        while row < *rows {
            let full = self.pages.last().is_none_or(|page| page.bytes >= self.page_bytes);
            if full {
                self.pages.push(Page { values: 0, bytes: 0, goes_on: BooleanBufferBuilder::new(0), parts: Vec::new() });
            }
            let Some(page) = self.pages.last_mut() else { return };
            // At least one row, so that the page fills up in the end.
            let first = starts.at(row);
            let room = (self.page_bytes - page.bytes) / self.width;
            let end = starts.beyond(first + room, row, *rows).max(row + 1);
            if self.column.max_rep_level() > 0 {
                for row in row..end {
                    page.goes_on.append(false);
                    page.goes_on.append_n(starts.at(row + 1) - starts.at(row) - 1, true);
                }
            }
            let count = starts.at(end) - first;
            page.push(bytes.slice(first * self.width..(first + count) * self.width), count, kept);
            self.values += count;
            row = end;
        }
        self.rows += rows;
        self.bytes += bytes.len();
    }

    /// The chunk's bytes for the file, and its entry for the footer.
    ///
    /// # Errors
    /// Those of the Parquet crate, for a chunk that its format cannot hold.
    pub(crate) fn finish(self) -> Result<(Rope, ColumnCloseResult)> {
        let mut parts = Vec::new();
        for page in self.pages {
            let levels = page.levels(&self.column);
            parts.push(header(page.values, levels.len() + page.bytes).into());
            parts.push(levels.into());
            parts.extend(page.parts.into_iter().map(|part| match part {
                Part::Kept(bytes) => bytes,
                Part::Copied(bytes) => bytes.into(),
            }));
        }
        let rope = Rope { parts };
        let bytes = rope.len();
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE])
            .set_compression(Compression::UNCOMPRESSED)
            .set_num_values(self.values as i64)
            .set_total_compressed_size(bytes as i64)
            .set_total_uncompressed_size(bytes as i64)
            .set_data_page_offset(0)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: bytes,
            rows_written: self.rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok((rope, close))
    }
}

impl Page {
    fn push(&mut self, bytes: Bytes, values: usize, kept: bool) {
        self.values += values;
        self.bytes += bytes.len();
        match self.parts.last_mut() {
            _ if kept && bytes.len() >= SMALL => self.parts.push(Part::Kept(bytes)),
            Some(Part::Copied(copied)) => copied.extend_from_slice(&bytes),
            _ => self.parts.push(Part::Copied(bytes.to_vec())),
        }
    }

    /// The levels of all values: where rows begin, and that no value is null.
    fn levels(&self, column: &ColumnDescPtr) -> Vec<u8> {
        let mut levels = Vec::new();
        let mut prefixed = |run: &[u8]| {
            levels.extend_from_slice(&(run.len() as u32).to_le_bytes());
            levels.extend_from_slice(run);
        };
        if column.max_rep_level() > 0 {
            // One run of bits, in groups of eight.
            let mut run = Vec::new();
            varint(&mut run, (self.values.div_ceil(8) as u64) << 1 | 1);
            run.extend_from_slice(&self.goes_on.as_slice()[..self.values.div_ceil(8)]);
            prefixed(&run);
        }
        if column.max_def_level() > 0 {
            // One run of the highest level.
            let mut run = Vec::new();
            varint(&mut run, (self.values as u64) << 1);
            run.push(column.max_def_level() as u8);
            prefixed(&run);
        }
        levels
    }
}

/// The header of a plain page of `values` values, whose body has `bytes` bytes: Thrift's `PageHeader`, in its compact
/// protocol.
fn header(values: usize, bytes: usize) -> Vec<u8> {
    /// A field of 32 bits whose number is one more than the previous one's.
    fn number(header: &mut Vec<u8>, value: u64) {
        header.push(0x15);
        varint(header, value << 1);
    }
    let mut header = Vec::with_capacity(32);
    // A data page of version 1, and its size before and after compression.
    number(&mut header, 0);
    number(&mut header, bytes as u64);
    number(&mut header, bytes as u64);
    // `data_page_header`, which is field 5, a structure.
    header.push(0x2c);
    number(&mut header, values as u64);
    for encoding in [Encoding::PLAIN, Encoding::RLE, Encoding::RLE] {
        number(&mut header, encoding as u64);
    }
    header.extend([0, 0]);
    header
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// The bytes of a chunk, in pieces.
#[derive(Debug)]
pub(crate) struct Rope {
    parts: Vec<Bytes>,
}

impl Length for Rope {
    fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

impl ChunkReader for Rope {
    type T = RopeReader;

    fn get_read(&self, start: u64) -> Result<RopeReader> {
        let mut reader = RopeReader { parts: self.parts.clone().into_iter(), open: Bytes::new() };
        io::copy(&mut reader.by_ref().take(start), &mut io::sink())?;
        Ok(reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = vec![0; length];
        self.get_read(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// Reads a [`Rope`] from one end to the other.
#[derive(Debug)]
pub(crate) struct RopeReader {
    parts: std::vec::IntoIter<Bytes>,
    open: Bytes,
}

impl Read for RopeReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.open.is_empty() {
            let Some(next) = self.parts.next() else { return Ok(0) };
            self.open = next;
        }
        let count = to.len().min(self.open.len());
        self.open.copy_to_slice(&mut to[..count]);
        Ok(count)
    }
}
