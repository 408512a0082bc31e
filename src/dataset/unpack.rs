//! The pages of a column chunk, unpacked.
//!
//! Parquet's reader makes a compressor and a decompressor for every chunk, and memory for every page, which it zeroes for Snappy. The
//! tables of Zstandard cost more than the pages of a small row group, and new memory as much as unpacking into it; here a thread keeps
//! one decompressor, and [`page_memory`](super::page_memory) the pages' memory.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, EncodingMask};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Decompressor;

use super::Chunk;
use super::chunks::Chunks;
use super::page_memory::PageMemory;
use super::pages::{DATA, DATA_V2, DICTIONARY, Header, INDEX, header};

thread_local! {
    static ZSTD: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The pages of `chunk` of `column` among `bytes`, of `rows` rows, which were walked over before.
pub(super) fn pages(bytes: &Chunks, chunk: &Chunk, column: &ColumnDescPtr, rows: usize) -> Result<Pages> {
    let codec = match chunk.compression() {
        Compression::ZSTD(_) => Some(Codec::Zstd),
        Compression::SNAPPY => Some(Codec::Snappy),
        _ => None,
    };
    if let Some(codec) = codec {
        return Ok(Pages::Own(Own { codec, rest: bytes.range(&chunk.range())?, next: None }));
    }
    let column = chunk.metadata(column)?;
    Ok(Pages::Parquets(Box::new(SerializedPageReader::new(Arc::new(bytes.clone()), &column, rows, None)?)))
}

/// The pages of a chunk.
pub(super) enum Pages {
    Own(Own),
    Parquets(Box<SerializedPageReader<Chunks>>),
}

/// Compression of pages that are unpacked here.
#[derive(Debug, Clone, Copy)]
enum Codec {
    Zstd,
    Snappy,
}

impl Codec {
    /// Unpacks `packed` into `output`. Returns the number of bytes.
    fn unpack(self, packed: &[u8], output: &mut [u8]) -> Result<usize> {
        match self {
            Self::Zstd => ZSTD.with_borrow_mut(|zstd| {
                let zstd = match zstd {
                    Some(zstd) => zstd,
                    None => zstd.insert(Decompressor::new()?),
                };
                Ok(zstd.decompress_to_buffer(packed, output)?)
            }),
            Self::Snappy => snap::raw::Decoder::new()
                .decompress(packed, output)
                .map_err(|error| ParquetError::External(Box::new(error))),
        }
    }
}

/// Pages that are unpacked here.
pub(super) struct Own {
    codec: Codec,
    rest: Bytes,
    /// The header of the next page, if it was looked at.
    next: Option<Header>,
}

impl Own {
    /// The header of the next page that is not an index; `None` at the end. The rest begins after it.
    fn header(&mut self) -> Result<Option<Header>> {
        if let Some(header) = self.next.take() {
            return Ok(Some(header));
        }
        while !self.rest.is_empty() {
            let header = header(&self.rest).map_err(|what| ParquetError::General(what.to_owned()))?;
            drop(self.rest.split_to(header.length));
            if header.kind != INDEX {
                return Ok(Some(header));
            }
            self.body(&header)?;
        }
        Ok(None)
    }

    /// The page behind `header`, as it is stored.
    fn body(&mut self, header: &Header) -> Result<Bytes> {
        let length = usize::try_from(header.compressed)?;
        if length > self.rest.len() {
            return Err(ParquetError::EOF("a page goes beyond its column".to_owned()));
        }
        Ok(self.rest.split_to(length))
    }

    fn page(&self, header: &Header, body: Bytes) -> Result<Page> {
        let number = |number: i64| u32::try_from(number).map_err(ParquetError::from);
        let (num_values, encoding) = (number(header.values)?, encoding(header.encoding)?);
        let [definition, repetition] = header.by_level;
        Ok(match header.kind {
            DICTIONARY => {
                Page::DictionaryPage { buf: self.unpacked(header, &body, 0)?, num_values, encoding, is_sorted: false }
            }
            DATA => Page::DataPage {
                buf: self.unpacked(header, &body, 0)?,
                num_values,
                encoding,
                def_level_encoding: self::encoding(definition)?,
                rep_level_encoding: self::encoding(repetition)?,
                statistics: None,
            },
            DATA_V2 => {
                let levels = usize::try_from(definition.saturating_add(repetition))?;
                Page::DataPageV2 {
                    buf: if header.stored { body } else { self.unpacked(header, &body, levels)? },
                    num_values,
                    encoding,
                    num_nulls: number(header.nulls)?,
                    num_rows: number(header.rows)?,
                    def_levels_byte_len: number(definition)?,
                    rep_levels_byte_len: number(repetition)?,
                    is_compressed: !header.stored,
                    statistics: None,
                }
            }
            kind => return Err(ParquetError::General(format!("a page is of unknown kind {kind}"))),
        })
    }

    /// `body` unpacked, but for its first `plain` bytes, which are not packed.
    fn unpacked(&self, header: &Header, body: &[u8], plain: usize) -> Result<Bytes> {
        let size = usize::try_from(header.uncompressed)?;
        let wrong = || ParquetError::General("a page has another size than its header states".to_owned());
        let (levels, packed) = body.split_at_checked(plain).filter(|_| plain <= size).ok_or_else(wrong)?;
        let mut memory = PageMemory::new(size);
        let (before, values) = memory.as_mut().split_at_mut(plain);
        before.copy_from_slice(levels);
        // No values, no bytes, and not even an empty frame.
        let found = if values.is_empty() { 0 } else { self.codec.unpack(packed, values)? };
        if found == values.len() { Ok(memory.into()) } else { Err(wrong()) }
    }
}

/// The encoding of this number.
fn encoding(number: i64) -> Result<Encoding> {
    let bit = u32::try_from(number).ok().and_then(|number| 1_i32.checked_shl(number)).unwrap_or(0);
    let found = EncodingMask::try_new(bit)?.encodings().next();
    found.ok_or_else(|| ParquetError::General(format!("encoding {number} is unknown")))
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self {
            Self::Own(pages) => pages.get_next_page(),
            Self::Parquets(pages) => pages.get_next_page(),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        match self {
            Self::Own(pages) => pages.peek_next_page(),
            Self::Parquets(pages) => pages.peek_next_page(),
        }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        match self {
            Self::Own(pages) => pages.skip_next_page(),
            Self::Parquets(pages) => pages.skip_next_page(),
        }
    }

    fn supports_deferred_dictionary(&self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Parquets(pages) => pages.supports_deferred_dictionary(),
        }
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        match self {
            Self::Own(_) => Ok(None),
            Self::Parquets(pages) => pages.take_deferred_dictionary(),
        }
    }
}

impl Own {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(header) = self.header()? else { return Ok(None) };
        let body = self.body(&header)?;
        self.page(&header, body).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let Some(header) = self.header()? else { return Ok(None) };
        let count = |number: i64| usize::try_from(number).map_err(ParquetError::from);
        let (is_dict, v2) = (header.kind == DICTIONARY, header.kind == DATA_V2);
        let num_levels = if is_dict { None } else { Some(count(header.values)?) };
        let num_rows = if v2 { Some(count(header.rows)?) } else { None };
        self.next = Some(header);
        Ok(Some(PageMetadata { num_rows, num_levels, is_dict }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(header) = self.header()? {
            self.body(&header)?;
        }
        Ok(())
    }
}
