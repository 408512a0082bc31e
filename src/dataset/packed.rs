//! Column chunks of all row groups in a few bytes each: the part of the footers that reading needs. The footers are dropped.
//!
//! A parsed footer of 40 columns takes 38 KB, most of which repeats what came before. Here a chunk is its difference from its
//! neighbour, as numbers of as many bytes as they need: about 15. A row group is unpacked as a whole, when something is asked of it.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{Compression, CompressionCodec, Encoding, EncodingMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, SchemaDescriptor};

/// Fault in packed bytes.
pub(super) type Broken = &'static str;

const CODECS: [CompressionCodec; 8] = [
    CompressionCodec::UNCOMPRESSED,
    CompressionCodec::SNAPPY,
    CompressionCodec::GZIP,
    CompressionCodec::LZO,
    CompressionCodec::BROTLI,
    CompressionCodec::LZ4,
    CompressionCodec::ZSTD,
    CompressionCodec::LZ4_RAW,
];

/// One column chunk, as its footer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Start of its pages, with the dictionary if there is one.
    pub start: u64,
    /// Bytes of its pages as stored.
    pub stored: u64,
    /// Bytes of its pages before compression.
    pub unpacked: u64,
    /// Start of the first page of data.
    pub data: u64,
    /// Values, nulls and empty lists included.
    pub values: u64,
    /// Nulls, if its statistics tell.
    pub nulls: Option<u64>,
    /// True if it begins with a dictionary.
    pub dictionary: bool,
    /// Offset and length of the index of its pages; `None` without one.
    pub offset_index: Option<(u64, u32)>,
    pub(super) codec: u8,
    /// One bit for each encoding, by its number.
    pub(super) encodings: u16,
}

impl Chunk {
    /// The bytes of all its pages.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.stored)
    }

    /// Compression of its pages.
    pub fn compression(&self) -> Compression {
        self.codec().into()
    }

    /// The encodings of its pages.
    pub fn encodings(&self) -> impl Iterator<Item = Encoding> {
        EncodingMask::try_new(i32::from(self.encodings)).unwrap_or_default().encodings().collect::<Vec<_>>().into_iter()
    }

    fn codec(&self) -> CompressionCodec {
        CODECS.get(usize::from(self.codec)).copied().unwrap_or(CompressionCodec::UNCOMPRESSED)
    }

    /// Chunk of a checked footer.
    fn of(column: &ColumnChunkMetaData, nulls: Option<u64>) -> Self {
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        let dictionary = column.dictionary_page_offset();
        let data = unsigned(column.data_page_offset());
        let offset = column.offset_index_offset().and_then(|offset| u64::try_from(offset).ok());
        let length = column.offset_index_length().and_then(|length| u32::try_from(length).ok());
        let codec = column.compression_codec();
        Self {
            start: dictionary.map_or(data, unsigned),
            stored: unsigned(column.compressed_size()),
            unpacked: unsigned(column.uncompressed_size()),
            data,
            values: unsigned(column.num_values()),
            nulls,
            dictionary: dictionary.is_some(),
            offset_index: offset.zip(length),
            codec: CODECS.iter().position(|known| *known == codec).unwrap_or(0) as u8,
            encodings: column.encodings_mask().as_i32() as u16,
        }
    }

    /// The chunk as Parquet's readers want it.
    pub(super) fn metadata(&self, column: &ColumnDescPtr) -> Result<ColumnChunkMetaData, ParquetError> {
        let signed =
            |number: u64| i64::try_from(number).map_err(|_| ParquetError::General("a number is too large".into()));
        ColumnChunkMetaData::builder(Arc::clone(column))
            .set_encodings_mask(EncodingMask::try_new(i32::from(self.encodings))?)
            .set_compression_codec(self.codec())
            .set_num_values(signed(self.values)?)
            .set_total_compressed_size(signed(self.stored)?)
            .set_total_uncompressed_size(signed(self.unpacked)?)
            .set_data_page_offset(signed(self.data)?)
            .set_dictionary_page_offset(self.dictionary.then(|| signed(self.start)).transpose()?)
            .build()
    }

    /// Fault of the chunk, in a row group of `rows` rows of a file of `size` bytes: for numbers that do not come from a
    /// checked footer.
    fn wrong(&self, column: &ColumnDescriptor, rows: u64, size: u64) -> Option<Broken> {
        let flat = column.max_rep_level() == 0;
        if self.values < rows || self.values > i32::MAX as u64 || (flat && self.values != rows) {
            return Some("its values do not fit its rows");
        }
        if (rows, self.values, self.stored) == (0, 0, 0) {
            return None;
        }
        let end = self.start.checked_add(self.stored).filter(|end| *end <= size);
        match end {
            Some(end) if self.start >= 4 && (rows == 0 || (self.start <= self.data && self.data < end)) => None,
            _ => Some("its bytes are outside the file"),
        }
    }
}

/// Row groups one after the other, those without rows included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) bytes: Vec<u8>,
    groups: Vec<Entry>,
}

/// Place of one row group among the packed bytes, and what opening asks of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    start: u64,
    /// Bytes of all columns before compression.
    unpacked: u64,
}

/// The row groups of one file, among those that are packed together.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) packed: Arc<Packed>,
    pub(super) numbers: Range<usize>,
}

impl Part {
    /// All that `packed` has.
    pub(super) fn whole(packed: Packed) -> Self {
        Self { numbers: 0..packed.len(), packed: Arc::new(packed) }
    }
}

/// One row group, being unpacked.
#[derive(Debug, Clone)]
pub(super) struct Group<'a> {
    reader: Reader<'a>,
    /// Its rows.
    pub(super) rows: u64,
    before: Before,
}

/// Numbers of the previous chunk, from which the next one's are told apart.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    kind: u64,
    end: u64,
    index_end: u64,
}

impl Packed {
    /// None yet, and room for so many bytes.
    pub(super) fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), groups: Vec::new() }
    }

    /// Row groups in it.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Bytes of memory that it takes.
    #[cfg(feature = "flight")]
    pub(super) fn memory_size(&self) -> usize {
        self.bytes.capacity() + size_of::<Entry>() * self.groups.capacity()
    }

    /// Adds a row group of a checked footer; `nulls` are those of its columns.
    pub(super) fn push(&mut self, group: &RowGroupMetaData, nulls: &[Option<u64>]) {
        let column =
            |(leaf, column): (usize, &ColumnChunkMetaData)| Chunk::of(column, nulls.get(leaf).copied().flatten());
        self.add(u64::try_from(group.num_rows()).unwrap_or(0), group.columns().iter().enumerate().map(column));
    }

    fn add(&mut self, rows: u64, chunks: impl Iterator<Item = Chunk>) {
        let mut entry = Entry { start: self.bytes.len() as u64, unpacked: 0 };
        let bytes = &mut self.bytes;
        put(bytes, rows);
        let mut before = Before { end: 4, ..Before::default() };
        for chunk in chunks {
            let kind = chunk.kind();
            put(bytes, kind ^ before.kind);
            put_signed(bytes, chunk.start.wrapping_sub(before.end));
            put(bytes, chunk.stored);
            put_signed(bytes, chunk.unpacked.wrapping_sub(chunk.stored));
            put_signed(bytes, chunk.data.wrapping_sub(chunk.start));
            put_signed(bytes, chunk.values.wrapping_sub(rows));
            if let Some(nulls) = chunk.nulls {
                put(bytes, nulls);
            }
            before = Before { kind, end: chunk.start.wrapping_add(chunk.stored), ..before };
            if let Some((start, length)) = chunk.offset_index {
                put_signed(bytes, start.wrapping_sub(before.index_end));
                put(bytes, u64::from(length));
                before.index_end = start.wrapping_add(u64::from(length));
            }
            entry.unpacked = entry.unpacked.saturating_add(chunk.unpacked);
        }
        self.groups.push(entry);
    }

    /// The row groups of all `parts`, one behind the other.
    pub(super) fn joined(parts: &[Part]) -> Self {
        let bytes = parts.iter().map(|part| part.packed.bytes_of(part.numbers.clone()).len()).sum();
        let groups = parts.iter().map(|part| part.numbers.len()).sum();
        let mut joined = Self { bytes: Vec::with_capacity(bytes), groups: Vec::with_capacity(groups) };
        for Part { packed, numbers } in parts {
            let entries = packed.groups.get(numbers.clone()).unwrap_or_default();
            let (base, first) = (joined.bytes.len() as u64, entries.first().map_or(0, |entry| entry.start));
            joined.bytes.extend_from_slice(packed.bytes_of(numbers.clone()));
            let moved = |entry: &Entry| Entry { start: base + (entry.start - first), ..*entry };
            joined.groups.extend(entries.iter().map(moved));
        }
        joined
    }

    /// Gives back the room that growing left over.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.groups.shrink_to_fit();
    }

    /// Row group `number`.
    pub(super) fn group(&self, number: usize) -> Option<Group<'_>> {
        let bytes = self.bytes_of(number..number.checked_add(1)?);
        Group::new(Reader { rest: bytes }).ok()
    }

    /// Bytes of all columns of row group `number` before compression; 0 if there is no such row group.
    pub(super) fn unpacked(&self, number: usize) -> u64 {
        self.groups.get(number).map_or(0, |entry| entry.unpacked)
    }

    /// The first `count` columns of row group `number`; none if there is no such row group.
    pub(super) fn chunks(&self, number: usize, count: usize) -> Vec<Chunk> {
        // A column takes six bytes at least.
        let mut chunks = Vec::with_capacity(count.min(self.bytes.len() / 6));
        if let Some(mut group) = self.group(number) {
            chunks.extend(std::iter::from_fn(|| group.next().ok().flatten()).take(count));
        }
        chunks
    }

    /// The next `count` row groups of files of `size` bytes and of this schema, which begin `bytes`; what is left of these. Nothing is
    /// believed.
    pub(super) fn read<'a>(
        &mut self,
        bytes: &'a [u8],
        count: usize,
        schema: &SchemaDescriptor,
        size: u64,
    ) -> Result<&'a [u8], Broken> {
        let mut rest = bytes;
        for _ in 0..count {
            let mut group = Group::new(Reader { rest })?;
            let rows = group.rows;
            if rows > i32::MAX as u64 {
                return Err("a row group cannot have so many rows");
            }
            let mut unpacked = 0_u64;
            for column in schema.columns() {
                let chunk = group.next()?.ok_or("a row group ends within its columns")?;
                if let Some(what) = chunk.wrong(column, rows, size) {
                    return Err(what);
                }
                unpacked = unpacked.saturating_add(chunk.unpacked);
            }
            let taken = rest.len() - group.reader.rest.len();
            self.groups.push(Entry { start: self.bytes.len() as u64, unpacked });
            self.bytes.extend_from_slice(rest.get(..taken).unwrap_or_default());
            rest = group.reader.rest;
        }
        Ok(rest)
    }

    /// The bytes of row groups `numbers`, as [`read`](Self::read) takes them.
    pub(super) fn bytes_of(&self, numbers: Range<usize>) -> &[u8] {
        let at = |number: usize| {
            let entry = self.groups.get(number).and_then(|entry| usize::try_from(entry.start).ok());
            entry.unwrap_or(self.bytes.len())
        };
        self.bytes.get(at(numbers.start)..at(numbers.end)).unwrap_or_default()
    }
}

impl Chunk {
    fn kind(&self) -> u64 {
        u64::from(self.codec)
            | u64::from(self.dictionary) << 3
            | u64::from(self.offset_index.is_some()) << 4
            | u64::from(self.nulls.is_some()) << 5
            | u64::from(self.encodings) << 6
    }
}

impl<'a> Group<'a> {
    fn new(mut reader: Reader<'a>) -> Result<Self, Broken> {
        let rows = reader.number()?;
        Ok(Self { reader, rows, before: Before { end: 4, ..Before::default() } })
    }

    /// The next column; `None` after the last one.
    fn next(&mut self) -> Result<Option<Chunk>, Broken> {
        let reader = &mut self.reader;
        if reader.rest.is_empty() {
            return Ok(None);
        }
        let kind = reader.number()? ^ self.before.kind;
        let encodings = u16::try_from(kind >> 6).map_err(|_| "an encoding is unknown")?;
        if kind != self.before.kind {
            EncodingMask::try_new(i32::from(encodings)).map_err(|_| "an encoding is unknown")?;
        }
        let start = reader.signed()?.wrapping_add(self.before.end);
        let stored = reader.number()?;
        let unpacked = reader.signed()?.wrapping_add(stored);
        let data = reader.signed()?.wrapping_add(start);
        let values = reader.signed()?.wrapping_add(self.rows);
        let nulls = if kind & 1 << 5 == 0 { None } else { Some(reader.number()?) };
        self.before = Before { kind, end: start.wrapping_add(stored), ..self.before };
        let mut offset_index = None;
        if kind & 1 << 4 != 0 {
            let at = reader.signed()?.wrapping_add(self.before.index_end);
            let length = u32::try_from(reader.number()?).map_err(|_| "a page index is too long")?;
            self.before.index_end = at.wrapping_add(u64::from(length));
            offset_index = Some((at, length));
        }
        let (codec, dictionary) = ((kind & 7) as u8, kind & 1 << 3 != 0);
        Ok(Some(Chunk { start, stored, unpacked, data, values, nulls, dictionary, offset_index, codec, encodings }))
    }
}

/// Bytes of a number that has the highest bit where another follows.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A difference, which may be negative.
pub(super) fn put_signed(bytes: &mut Vec<u8>, difference: u64) {
    let signed = difference as i64;
    put(bytes, ((signed << 1) ^ (signed >> 63)) as u64);
}

/// Reads what [`put`] wrote.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl Reader<'_> {
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, Broken> {
        match self.rest {
            [byte @ ..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_number(),
        }
    }

    /// A number of several bytes.
    fn long_number(&mut self) -> Result<u64, Broken> {
        let (mut number, mut shift) = (0_u64, 0);
        for (at, byte) in self.rest.iter().enumerate() {
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                self.rest = self.rest.get(at + 1..).unwrap_or_default();
                return Ok(number);
            }
            shift += 7;
            if shift >= 64 {
                return Err("a number is longer than 64 bits");
            }
        }
        Err("it ends within a number")
    }

    #[inline]
    pub(super) fn signed(&mut self) -> Result<u64, Broken> {
        let number = self.number()?;
        Ok(((number >> 1) as i64 ^ -((number & 1) as i64)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk() -> impl Strategy<Value = Chunk> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let rest = (any::<Option<u64>>(), any::<bool>(), any::<Option<(u64, u32)>>(), 0..8_u8, 0..0x400_u16);
        (numbers, rest).prop_map(|((start, stored, unpacked, data, values), rest)| {
            let (nulls, dictionary, offset_index, codec, encodings) = rest;
            // No encoding has number 1.
            let encodings = encodings & !2;
            Chunk { start, stored, unpacked, data, values, nulls, dictionary, offset_index, codec, encodings }
        })
    }

    proptest! {
        #[test]
        fn every_number_comes_back(groups in prop::collection::vec((any::<u64>(), prop::collection::vec(chunk(), 0..9)), 0..9)) {
            let mut packed = Packed::default();
            let mut alone = Vec::new();
            for (rows, chunks) in &groups {
                let mut one = Packed::default();
                one.add(*rows, chunks.iter().copied());
                alone.push(Part::whole(one));
                packed.add(*rows, chunks.iter().copied());
            }
            prop_assert_eq!(&Packed::joined(&alone), &packed);
            let whole = Arc::new(packed.clone());
            let part = |numbers| Part { packed: Arc::clone(&whole), numbers };
            let cut = groups.len() / 3;
            prop_assert_eq!(&Packed::joined(&[part(0..cut), part(cut..groups.len())]), &packed);
            prop_assert_eq!(packed.len(), groups.len());
            for (number, (_, chunks)) in groups.iter().enumerate() {
                let unpacked = chunks.iter().map(|chunk| chunk.unpacked).fold(0, u64::saturating_add);
                prop_assert_eq!(packed.unpacked(number), unpacked);
            }
            for (number, (rows, chunks)) in groups.iter().enumerate() {
                prop_assert_eq!(packed.group(number).unwrap().rows, *rows);
                prop_assert_eq!(&packed.chunks(number, usize::MAX >> 8), chunks);
            }
            prop_assert!(packed.chunks(groups.len(), 1).is_empty());
        }
    }

    #[test]
    fn a_common_chunk_takes_few_bytes() {
        let mut packed = Packed::default();
        let chunk = |at: u64| Chunk {
            start: 4 + at * 900,
            stored: 900,
            unpacked: 1000,
            data: 4 + at * 900 + 300,
            values: 100,
            nulls: Some(0),
            dictionary: true,
            offset_index: Some((40_000 + at * 12, 12)),
            codec: 6,
            encodings: 0x109,
        };
        packed.add(100, (0..40).map(chunk));
        assert!(packed.bytes.len() < 40 * 15, "{}", packed.bytes.len());
    }
}
