//! A walk over the pages of a column chunk before they are decoded: sizes, counts and checksums.
//!
//! The decoder reserves room by the numbers in page headers. Here they are held against the bytes that are there, the
//! limits, and what the footer promised, and each page that carries a checksum is verified.

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::schema::types::ColumnDescriptor;

use super::Chunk;
use super::limits::{Limits, PAGE_RATIO_FREE};
use super::shape::{PAGE, conforms};
use super::thrift::{Broken, Field, Reader, kind};
use crate::error::{Error, Place, Result};

/// Slack for writers that count a chunk's uncompressed bytes differently.
const SIZE_SLACK: u64 = 1 << 20;

/// Structs within a page header's lists: there are none.
const NO_STRUCTS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) kind: i64,
    pub(super) uncompressed: i64,
    pub(super) compressed: i64,
    checksum: Option<u32>,
    pub(super) values: i64,
    pub(super) encoding: i64,
    /// Of a version 2 page.
    pub(super) nulls: i64,
    pub(super) rows: i64,
    /// The kind of page that the inner header is for; -1 without one.
    part: i64,
    /// Level bytes of a version 2 page, which are never compressed.
    levels: i64,
    /// Of other pages, the encoding of levels; of these, how many bytes they take; definition first.
    pub(super) by_level: [i64; 2],
    pub(super) stored: bool,
    pub(super) length: usize,
}

pub(super) const DATA: i64 = 0;
pub(super) const INDEX: i64 = 1;
pub(super) const DICTIONARY: i64 = 2;
pub(super) const DATA_V2: i64 = 3;

const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const BIT_PACKED: i64 = 4;
const RLE_DICTIONARY: i64 = 8;

/// A walk over the pages of `chunk` of `column`, of `rows` rows.
pub(super) struct Walk<'a> {
    pub(super) chunk: &'a Chunk,
    pub(super) column: &'a ColumnDescriptor,
    pub(super) rows: u64,
    pub(super) limits: &'a Limits,
    pub(super) place: &'a dyn Fn() -> Place,
}

/// What is before the pages of a unit.
#[derive(Debug)]
pub(super) enum Before {
    Nothing,
    /// These bytes, which are to be a dictionary.
    Stored(Bytes),
    /// A dictionary of so many bytes, unpacked, that was checked with another unit.
    Checked(u64),
}

/// Facts about the pages met so far.
#[derive(Debug, Default)]
struct Met {
    pages: usize,
    /// Pages of data.
    data: usize,
    dictionary: bool,
    values: i64,
    unpacked: u64,
    /// Rows of pages that state them.
    rows: i64,
    /// Pages that state none.
    silent: bool,
}

impl Walk<'_> {
    /// Checks `bytes`, all pages of the chunk.
    pub(super) fn all(&self, bytes: &[u8]) -> Result<()> {
        let mut met = Met::default();
        self.pages(bytes, &mut met)?;
        let (values, expected) = (met.values, self.values());
        if values != expected {
            return self.corrupt(format!("its pages have {values} values, the footer states {expected}"));
        }
        if !met.silent && u64::try_from(met.rows) != Ok(self.rows) {
            return self.corrupt(format!("its pages have {} rows, the footer states {}", met.rows, self.rows));
        }
        Ok(())
    }

    /// Checks `paged`, each of whole pages with the rows that the page index says they have, the dictionary first if there is one.
    pub(super) fn some(&self, paged: impl Iterator<Item = Result<(Bytes, Option<u64>)>>) -> Result<()> {
        let mut met = Met::default();
        for slice in paged {
            let (bytes, rows) = slice?;
            let before = (met.values, met.rows);
            self.pages(&bytes, &mut met)?;
            if let Some(rows) = rows {
                self.indexed(met.values - before.0, (!met.silent).then_some(met.rows - before.1), rows)?;
            }
        }
        Ok(())
    }

    /// Checks `bytes`, pages of `rows` rows as the page index says it, and what is `before` them.
    pub(super) fn run(&self, before: &Before, bytes: &[u8], rows: u64) -> Result<()> {
        let mut met = Met::default();
        match before {
            Before::Stored(dictionary) => {
                self.pages(dictionary, &mut met)?;
                if met.data > 0 {
                    return self.corrupt("its page index leaves out pages".to_owned());
                }
            }
            Before::Checked(bytes) => met = Met { pages: 1, dictionary: true, unpacked: *bytes, ..met },
            Before::Nothing => {}
        }
        self.pages(bytes, &mut met)?;
        self.indexed(met.values, (!met.silent).then_some(met.rows), rows)
    }

    /// Checks pages of so many values and as many rows as `stated` against the `rows` of the page index. Lists whose pages state
    /// nothing are counted when their levels are unpacked.
    fn indexed(&self, values: i64, stated: Option<i64>, rows: u64) -> Result<()> {
        let said = |found: i64| u64::try_from(found) == Ok(rows);
        let flat = self.column.max_rep_level() == 0;
        if (flat && !said(values)) || !stated.is_none_or(said) {
            let found = stated.unwrap_or(values);
            return self.corrupt(format!("its pages have {found} rows, the page index states {rows}"));
        }
        Ok(())
    }

    /// Values that the footer states.
    fn values(&self) -> i64 {
        i64::try_from(self.chunk.values).unwrap_or(i64::MAX)
    }

    fn corrupt<T>(&self, what: String) -> Result<T> {
        Err(Error::corrupt((self.place)(), what))
    }

    fn pages(&self, bytes: &[u8], met: &mut Met) -> Result<()> {
        let compressed_codec = self.chunk.compression() != Compression::UNCOMPRESSED;
        let mut rest = bytes;
        while !rest.is_empty() {
            let number = met.pages;
            let header = match header(rest) {
                Ok(header) => header,
                Err(what) => return self.corrupt(format!("the header of page {number} is damaged: {what}")),
            };
            let body = rest.get(header.length..).unwrap_or_default();
            let page = usize::try_from(header.compressed).ok().and_then(|length| body.get(..length));
            let Some(page) = page else {
                return self.corrupt(format!("page {number} of {} bytes goes beyond its column", header.compressed));
            };
            let Ok(size) = u64::try_from(header.uncompressed) else {
                return self.corrupt(format!("page {number} has a negative size"));
            };
            if header.values < 0 || header.levels < 0 || header.levels > header.compressed.min(header.uncompressed) {
                return self.corrupt(format!("page {number} has impossible counts"));
            }
            let packed = compressed_codec && !header.stored;
            if !packed && size != page.len() as u64 {
                return self.corrupt(format!("page {number} is stored in {} bytes but states {size}", page.len()));
            }
            if packed {
                within(size, page.len() as u64, number, self.limits, self.place)?;
            }
            if let Some(what) = self.contradicts(&header, size, met) {
                return self.corrupt(format!("page {number} {what}"));
            }
            met.unpacked = met.unpacked.saturating_add(size);
            let stated = self.chunk.unpacked.max(self.chunk.stored);
            if met.unpacked > stated.saturating_add(SIZE_SLACK) {
                return self.corrupt(format!("its pages unpack to more than the {stated} bytes of the footer"));
            }
            if header.checksum.is_some_and(|checksum| checksum != crc32fast::hash(page)) {
                return self.corrupt(format!("the checksum of page {number} is wrong"));
            }
            rest = body.get(page.len()..).unwrap_or_default();
            met.pages += 1;
        }
        Ok(())
    }

    /// Contradiction of the header of a page of `size` bytes to the footer, itself, or the pages before it.
    fn contradicts(&self, header: &Header, size: u64, met: &mut Met) -> Option<String> {
        let expected = self.values();
        match header.kind {
            DATA | DATA_V2 => {
                if header.part != header.kind {
                    return Some("is of one kind and described as another".to_owned());
                }
                met.data += 1;
                met.values = met.values.saturating_add(header.values);
                if met.values > expected {
                    return Some(format!("has more than the {expected} values of the footer"));
                }
                if is_index(header.encoding) && !met.dictionary {
                    return Some("has numbers of a dictionary, and there is none".to_owned());
                }
                let states = self.chunk.encodings().any(|known| {
                    let known = known as i64;
                    known == header.encoding || (is_index(known) && is_index(header.encoding))
                });
                if !states {
                    return Some(format!("is of encoding {}, which the footer does not name", header.encoding));
                }
                if header.kind == DATA {
                    met.silent = true;
                    let levels = [self.column.max_def_level(), self.column.max_rep_level()];
                    let old = levels.iter().zip(header.by_level).any(|(most, found)| *most > 0 && found == BIT_PACKED);
                    // Nobody writes these any more. Old writers named them.
                    return (old && !self.chunk.encodings().any(|known| known as i64 == BIT_PACKED))
                        .then(|| "has levels of an encoding that the footer does not name".to_owned());
                }
                met.rows = met.rows.saturating_add(header.rows);
                let flat = self.column.max_rep_level() == 0;
                let fits = (0..=header.values).contains(&header.nulls) && (0..=header.values).contains(&header.rows);
                if !fits || (flat && header.rows != header.values) {
                    return Some(format!(
                        "has {} values, {} nulls and {} rows",
                        header.values, header.nulls, header.rows
                    ));
                }
                if header.nulls > 0 && self.column.max_def_level() == 0 {
                    return Some(format!("has {} nulls in a column that has none", header.nulls));
                }
                None
            }
            DICTIONARY if header.part != DICTIONARY => Some("is of one kind and described as another".to_owned()),
            DICTIONARY if met.data > 0 || met.dictionary => Some("is a dictionary behind other pages".to_owned()),
            // Every value that a dictionary can hold takes a byte at least.
            DICTIONARY if u64::try_from(header.values).is_ok_and(|values| values > size) => {
                Some(format!("is a dictionary of {size} bytes, which cannot have {} values", header.values))
            }
            DICTIONARY => {
                met.dictionary = true;
                (!matches!(header.encoding, PLAIN | PLAIN_DICTIONARY))
                    .then(|| format!("is a dictionary of encoding {}", header.encoding))
            }
            INDEX => None,
            other => Some(format!("is of unknown kind {other}")),
        }
    }
}

/// Returns true if values of this encoding are numbers of a dictionary's.
fn is_index(encoding: i64) -> bool {
    matches!(encoding, PLAIN_DICTIONARY | RLE_DICTIONARY)
}

fn within(size: u64, packed: u64, number: usize, limits: &Limits, place: &dyn Fn() -> Place) -> Result<()> {
    let what = || format!("page {number}");
    if size > limits.max_page_bytes {
        let limit = limits.max_page_bytes;
        return Err(Error::limit(what(), size, limit, "limits.max_page_bytes").at(place()));
    }
    let ratio = size / packed.max(1);
    if size > PAGE_RATIO_FREE && ratio > limits.max_ratio {
        let what = format!("{}, unpacking to {ratio} times its size,", what());
        return Err(Error::limit(what, ratio, limits.max_ratio, "limits.max_ratio").at(place()));
    }
    Ok(())
}

/// Values of the pages of data in `bytes`, which were walked over before.
pub(super) fn values(bytes: &[u8]) -> Option<usize> {
    let (mut rest, mut values) = (bytes, 0_usize);
    while !rest.is_empty() {
        let header = header(rest).ok()?;
        if matches!(header.kind, DATA | DATA_V2) {
            values = values.checked_add(usize::try_from(header.values).ok()?)?;
        }
        rest = rest.get(header.length.checked_add(usize::try_from(header.compressed).ok()?)?..)?;
    }
    Some(values)
}

/// The header that `bytes` begin with.
pub(super) fn header(bytes: &[u8]) -> Result<Header, Broken> {
    conforms(&mut Reader::new(bytes), &PAGE, &mut Vec::new())?;
    let mut reader = Reader::new(bytes);
    let mut header = Header { part: -1, ..Header::default() };
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
    header.part = match outer.id {
        5 => DATA,
        7 => DICTIONARY,
        _ => DATA_V2,
    };
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        match (field.id, field.kind) {
            (1, kind::I32) => header.values = reader.int()?,
            (2, kind::I32) if outer.id != 8 => header.encoding = reader.int()?,
            (2, kind::I32) => header.nulls = reader.int()?,
            (3, kind::I32) if outer.id == 8 => header.rows = reader.int()?,
            (4, kind::I32) if outer.id == 8 => header.encoding = reader.int()?,
            (5 | 6, kind::I32) if outer.id == 8 => {
                let levels = reader.int()?;
                if levels < 0 {
                    return Err("a length of levels is negative");
                }
                header.levels = header.levels.saturating_add(levels);
                header.by_level[usize::from(field.id == 6)] = levels;
            }
            (3 | 4, kind::I32) if outer.id == 5 => header.by_level[usize::from(field.id == 4)] = reader.int()?,
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
