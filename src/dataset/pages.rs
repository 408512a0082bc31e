//! A walk over the pages of a column chunk before they are decoded: sizes, counts and checksums.
//!
//! The decoder reserves room by the numbers in page headers. Here they are held against the bytes that are there, the
//! limits, and what the footer promised, and each page that carries a checksum is verified.

use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;

use super::limits::{Limits, PAGE_RATIO_FREE};
use super::thrift::{Broken, Field, Reader, kind};
use crate::error::{Error, Place, Result};

/// Slack for writers that count a chunk's uncompressed bytes differently.
const SIZE_SLACK: u64 = 1 << 20;

/// Structs within a page header's lists: there are none.
const NO_STRUCTS: usize = 16;

#[derive(Debug, Default)]
struct Header {
    kind: i64,
    uncompressed: i64,
    compressed: i64,
    checksum: Option<u32>,
    values: i64,
    /// Level bytes of a version 2 page, which are never compressed.
    levels: i64,
    stored: bool,
    length: usize,
}

const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

/// Checks the pages in `bytes`, all that there are of `column` if `whole`.
pub(super) fn check(
    bytes: &[u8],
    column: &ColumnChunkMetaData,
    limits: &Limits,
    whole: bool,
    place: &Place,
) -> Result<()> {
    let corrupt = |what: String| Error::corrupt(place.clone(), what);
    let compressed_codec = column.compression() != Compression::UNCOMPRESSED;
    let expected = column.num_values();
    let (mut values, mut unpacked) = (0_i64, 0_u64);
    let mut rest = bytes;
    let mut number = 0;
    while !rest.is_empty() {
        let header = header(rest).map_err(|what| corrupt(format!("the header of page {number} is damaged: {what}")))?;
        let body = rest.get(header.length..).unwrap_or_default();
        let page = usize::try_from(header.compressed).ok().and_then(|length| body.get(..length));
        let page = page
            .ok_or_else(|| corrupt(format!("page {number} of {} bytes goes beyond its column", header.compressed)))?;
        let size =
            u64::try_from(header.uncompressed).map_err(|_| corrupt(format!("page {number} has a negative size")))?;
        if header.values < 0 || header.levels < 0 || header.levels > header.compressed.min(header.uncompressed) {
            return Err(corrupt(format!("page {number} has impossible counts")));
        }
        let packed = compressed_codec && !header.stored;
        if !packed && size != page.len() as u64 {
            return Err(corrupt(format!("page {number} is stored in {} bytes but states {size}", page.len())));
        }
        if packed {
            within(size, page.len() as u64, number, limits, place)?;
        }
        match header.kind {
            DATA | DATA_V2 => {
                values = values.saturating_add(header.values);
                if values > expected {
                    return Err(corrupt(format!("its pages have more than the {expected} values of the footer")));
                }
            }
            // Every value that a dictionary can hold takes a byte at least.
            DICTIONARY if u64::try_from(header.values).is_ok_and(|values| values > size) => {
                return Err(corrupt(format!("a dictionary of {size} bytes cannot have {} values", header.values)));
            }
            DICTIONARY | INDEX => {}
            other => return Err(corrupt(format!("page {number} is of unknown kind {other}"))),
        }
        unpacked = unpacked.saturating_add(size);
        let stated = column.uncompressed_size().max(column.compressed_size()).max(0) as u64;
        if unpacked > stated.saturating_add(SIZE_SLACK) {
            return Err(corrupt(format!("its pages unpack to more than the {stated} bytes of the footer")));
        }
        if header.checksum.is_some_and(|checksum| checksum != crc32fast::hash(page)) {
            return Err(corrupt(format!("the checksum of page {number} is wrong")));
        }
        rest = body.get(page.len()..).unwrap_or_default();
        number += 1;
    }
    if whole && values != expected {
        return Err(corrupt(format!("its pages have {values} values, the footer states {expected}")));
    }
    Ok(())
}

fn within(size: u64, packed: u64, number: usize, limits: &Limits, place: &Place) -> Result<()> {
    let what = format!("{place}: page {number}");
    if size > limits.max_page_bytes {
        return Err(Error::Limit { what, asked: size, limit: limits.max_page_bytes, option: "limits.max_page_bytes" });
    }
    let ratio = size / packed.max(1);
    if size > PAGE_RATIO_FREE && ratio > limits.max_ratio {
        let what = format!("{what}, unpacking to {ratio} times its size,");
        return Err(Error::Limit { what, asked: ratio, limit: limits.max_ratio, option: "limits.max_ratio" });
    }
    Ok(())
}

fn header(bytes: &[u8]) -> Result<Header, Broken> {
    let mut reader = Reader::new(bytes);
    let mut header = Header::default();
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        match (field.id, field.kind) {
            (1, kind::I32) => header.kind = reader.int()?,
            (2, kind::I32) => header.uncompressed = reader.int()?,
            (3, kind::I32) => header.compressed = reader.int()?,
            // The 32 bits are kept in a signed number.
            (4, kind::I32) => header.checksum = Some(reader.int()? as u32),
            (5 | 7 | 8, kind::STRUCT) => inner(&mut reader, field, &mut header)?,
            _ => reader.skip(field, NO_STRUCTS)?,
        }
    }
    header.length = reader.position();
    Ok(header)
}

fn inner(reader: &mut Reader<'_>, outer: Field, header: &mut Header) -> Result<(), Broken> {
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        match (field.id, field.kind) {
            (1, kind::I32) => header.values = reader.int()?,
            (5 | 6, kind::I32) if outer.id == 8 => {
                let levels = reader.int()?;
                if levels < 0 {
                    return Err("a length of levels is negative");
                }
                header.levels = header.levels.saturating_add(levels);
            }
            (7, kind::FALSE) if outer.id == 8 => header.stored = true,
            _ => reader.skip(field, NO_STRUCTS)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_versions() {
        // v1: kind 0, sizes 100 and 40, crc 7, data_page_header { 12 values, PLAIN, RLE, RLE }
        let v1 = [
            0x15, 0x00, 0x15, 0xc8, 0x01, 0x15, 0x50, 0x15, 0x0e, 0x1c, 0x15, 0x18, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0, 9,
        ];
        let found = header(&v1).unwrap();
        assert_eq!((found.kind, found.uncompressed, found.compressed, found.values), (0, 100, 40, 12));
        assert_eq!((found.checksum, found.length, found.stored), (Some(7), v1.len() - 1, false));
        // v2: kind 3, sizes 9 and 9, header 8 { 3 values, 0 nulls, 3 rows, PLAIN, 2 and 1 bytes of levels, not compressed }
        let v2 = [0x15, 6, 0x15, 18, 0x15, 18, 0x5c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 0, 0x15, 4, 0x15, 2, 0x12, 0, 0];
        let found = header(&v2).unwrap();
        assert_eq!((found.kind, found.values, found.levels, found.stored), (3, 3, 3, true));
    }
}
