//! Footers: read with one request where possible, checked before they are parsed, and again before they are believed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use sha2::{Digest, Sha256};

use super::limits::Limits;
use super::thrift::{Reader, kind};
use crate::error::{Error, Place, Result};
use crate::store::{Found, Object};

/// Read from the end of every file at first: most footers fit, and a larger read costs a store nothing more.
const TAIL_BYTES: u64 = 64 << 10;

/// The length of the footer and the magic number.
const END_BYTES: u64 = 8;

/// Lists of structs that are no columns, row groups or schema elements are short.
const OTHER_STRUCTS: usize = 100_000;

/// A file whose footer was read and checked.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) object: Object,
    pub(super) metadata: Arc<ParquetMetaData>,
    /// SHA-256 of the footer's bytes.
    pub(super) digest: [u8; 32],
}

/// Runs a decoder over bytes that nobody has to trust: its panics and errors become [`Error::Corrupt`] at `place`.
pub(super) fn guard<T>(place: &Place, what: &str, work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    // What the decoder leaves behind after a panic is dropped with it, so nothing half-done is seen afterwards.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::NYI(what))) => {
            Err(Error::Unsupported { what: format!("{place}: {what}"), hint: String::new() })
        }
        Ok(Err(error)) => Err(Error::corrupt_by(place.clone(), what, error)),
        Err(panic) => {
            let text =
                panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(Error::corrupt_by(place.clone(), what, text.unwrap_or("the decoder gave up").to_owned()))
        }
    }
}

/// Reads and checks the footer of `found`. Statistics are kept only if `statistics`: they are most of a footer's memory.
pub(super) async fn read(found: &Found, limits: &Limits, statistics: bool) -> Result<Footer> {
    let place = Place::file(Arc::clone(&found.name));
    let (object, bytes, start) = fetch(found, limits, &place).await?;
    let limits = limits.clone();
    let parsed = tokio::task::spawn_blocking(move || {
        let digest = Sha256::digest(&bytes).into();
        check(&bytes, &limits, &place)?;
        let metadata = parse(&bytes, statistics, &place)?;
        validate(&metadata, start, &limits, &place)?;
        Ok(Footer { object, metadata: Arc::new(metadata), digest })
    });
    parsed.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a footer was not parsed: {error}") }))
}

/// The bytes of the footer of `found`, checked like any other, but not parsed: for files that are nothing but a footer.
pub(super) async fn bytes(found: &Found, limits: &Limits) -> Result<Bytes> {
    let place = Place::file(Arc::clone(&found.name));
    let (_, bytes, _) = fetch(found, limits, &place).await?;
    check(&bytes, limits, &place)?;
    Ok(bytes)
}

/// The file, pinned, the bytes of its footer, and where they begin.
async fn fetch(found: &Found, limits: &Limits, place: &Place) -> Result<(Object, Bytes, u64)> {
    if found.size == Some(0) {
        return Err(Error::corrupt(place.clone(), "not a Parquet file: it is empty"));
    }
    let tail = found.tail(TAIL_BYTES).await?;
    let size = tail.object.stamp().size;
    let length = footer_length(&tail.bytes, size, limits, place)?;
    let start = size - END_BYTES - length;
    let bytes = if start >= tail.start {
        tail.bytes.slice((start - tail.start) as usize..tail.bytes.len() - END_BYTES as usize)
    } else {
        let mut joined = tail.object.read_range(start..tail.start).await?.to_vec();
        joined.extend_from_slice(&tail.bytes[..tail.bytes.len() - END_BYTES as usize]);
        Bytes::from(joined)
    };
    Ok((tail.object, bytes, start))
}

/// The footer's length from the last bytes of a file of `size` bytes.
fn footer_length(tail: &[u8], size: u64, limits: &Limits, place: &Place) -> Result<u64> {
    let corrupt = |what: String| Err(Error::corrupt(place.clone(), what));
    let Some([a, b, c, d, magic @ ..]) = tail.last_chunk::<8>().filter(|_| size >= 12) else {
        return corrupt(format!("not a Parquet file: it has {size} bytes, and none has fewer than 12"));
    };
    match magic {
        b"PAR1" => {}
        b"PARE" => {
            let hint = "write the dataset without encryption".to_owned();
            return Err(Error::Unsupported { what: format!("{place}: an encrypted footer"), hint });
        }
        _ => {
            return corrupt(
                "not a Parquet file: the magic number at the end is missing; perhaps it is cut off".to_owned(),
            );
        }
    }
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if length == 0 || length > size - 12 {
        return corrupt(format!("the footer's length of {length} does not fit a file of {size} bytes"));
    }
    if length > limits.max_footer_bytes {
        return Err(Error::Limit {
            what: format!("{place}: the footer"),
            asked: length,
            limit: limits.max_footer_bytes,
            option: "limits.max_footer_bytes",
        });
    }
    Ok(length)
}

/// Looks at the footer's Thrift before it is parsed: counts, nesting and encryption.
fn check(bytes: &[u8], limits: &Limits, place: &Place) -> Result<()> {
    let corrupt = |what: &str| Error::corrupt(place.clone(), format!("the footer is damaged: {what}"));
    let too_many = |what: &str, asked: usize, limit: usize, option: &'static str| Error::Limit {
        what: format!("{place}: {what}"),
        asked: asked as u64,
        limit: limit as u64,
        option,
    };
    let mut reader = Reader::new(bytes);
    let mut leaves = 0;
    let mut last = 0;
    while let Some(field) = reader.field(&mut last).map_err(corrupt)? {
        match (field.id, field.kind) {
            (2, kind::LIST) => {
                let (count, element) = reader.list().map_err(corrupt)?;
                // Lists of lists take three elements per leaf; anything beyond four is no schema.
                if count > limits.max_columns.saturating_mul(4) {
                    return Err(too_many("the number of columns", count, limits.max_columns, "limits.max_columns"));
                }
                if element != kind::STRUCT {
                    return Err(corrupt("the schema is no list of structs"));
                }
                let (depth, found) = schema_shape(&mut reader, count, limits.max_depth).map_err(corrupt)?;
                leaves = found;
                if leaves > limits.max_columns {
                    let limit = limits.max_columns;
                    return Err(too_many("the number of columns", leaves, limit, "limits.max_columns"));
                }
                if depth > limits.max_depth {
                    return Err(too_many("the nesting of the schema", depth, limits.max_depth, "limits.max_depth"));
                }
            }
            (4, kind::LIST) => {
                let (count, element) = reader.list().map_err(corrupt)?;
                if count > limits.max_row_groups {
                    return Err(too_many(
                        "the number of row groups",
                        count,
                        limits.max_row_groups,
                        "limits.max_row_groups",
                    ));
                }
                if element != kind::STRUCT {
                    return Err(corrupt("the row groups are no structs"));
                }
                (0..count).try_for_each(|_| row_group(&mut reader, leaves)).map_err(corrupt)?;
            }
            (8, _) => {
                let hint = "write the dataset without encryption".to_owned();
                return Err(Error::Unsupported { what: format!("{place}: encrypted columns"), hint });
            }
            _ => reader.skip(field, OTHER_STRUCTS).map_err(corrupt)?,
        }
    }
    Ok(())
}

/// The depth of the tree that the flattened schema elements stand for, and its leaves; reading ends soon after `max`.
fn schema_shape(reader: &mut Reader<'_>, count: usize, max: usize) -> Result<(usize, usize), &'static str> {
    // Children still to come at each level.
    let mut open: Vec<i64> = Vec::new();
    let (mut deepest, mut leaves) = (0, 0);
    for _ in 0..count {
        let mut children = 0;
        let mut last = 0;
        while let Some(field) = reader.field(&mut last)? {
            if (field.id, field.kind) == (5, kind::I32) {
                children = reader.int()?;
            } else {
                reader.skip(field, OTHER_STRUCTS)?;
            }
        }
        if let Some(waiting) = open.last_mut() {
            *waiting -= 1;
        }
        if children > 0 {
            open.push(children);
            deepest = deepest.max(open.len());
            if deepest > max {
                return Ok((deepest, leaves));
            }
        } else {
            leaves += 1;
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok((deepest, leaves))
}

fn row_group(reader: &mut Reader<'_>, leaves: usize) -> Result<(), &'static str> {
    let begin = reader.position();
    let mut columns = 0;
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        if (field.id, field.kind) == (1, kind::LIST) {
            let (count, element) = reader.list()?;
            if count > leaves {
                return Err("a row group has more columns than the schema");
            }
            columns = count;
            let element = super::thrift::Field { id: 1, kind: element };
            (0..count).try_for_each(|_| reader.skip(element, OTHER_STRUCTS))?;
        } else {
            reader.skip(field, OTHER_STRUCTS)?;
        }
    }
    // No row group and no column is described in fewer bytes; a parser makes hundreds of each.
    let taken = reader.position() - begin;
    if taken < 4 + columns.saturating_mul(16) { Err("a row group's description is too short") } else { Ok(()) }
}

fn parse(bytes: &[u8], statistics: bool, place: &Place) -> Result<ParquetMetaData> {
    let keep = if statistics { ParquetStatisticsPolicy::KeepAll } else { ParquetStatisticsPolicy::SkipAll };
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(keep)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
    guard(place, "the footer is damaged", || ParquetMetaDataReader::decode_metadata_with_options(bytes, Some(&options)))
}

/// Checks every number that is used later against the file's size, which ends for data at `data_end`.
fn validate(metadata: &ParquetMetaData, data_end: u64, limits: &Limits, place: &Place) -> Result<()> {
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    if leaves > limits.max_columns {
        let (asked, limit) = (leaves as u64, limits.max_columns as u64);
        return Err(Error::Limit {
            what: format!("{place}: the number of columns"),
            asked,
            limit,
            option: "limits.max_columns",
        });
    }
    let mut rows = 0_i64;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let place = place.clone().row_group(index);
        if group.num_columns() != leaves {
            return Err(Error::corrupt(place, format!("it has {} columns, the schema {leaves}", group.num_columns())));
        }
        if !(0..=i64::from(i32::MAX)).contains(&group.num_rows()) {
            return Err(Error::corrupt(place, format!("it cannot have {} rows", group.num_rows())));
        }
        rows = rows.saturating_add(group.num_rows());
        for column in group.columns() {
            if let Some(what) = bad_chunk(column, group.num_rows(), data_end) {
                return Err(Error::corrupt(place.column(column.column_path().string()), what));
            }
            if column.file_path().is_some_and(|path| !path.is_empty()) {
                let what = format!("{}: columns in other files", place.column(column.column_path().string()));
                return Err(Error::Unsupported { what, hint: String::new() });
            }
        }
    }
    let stated = metadata.file_metadata().num_rows();
    if rows != stated {
        return Err(Error::corrupt(
            place.clone(),
            format!("the footer states {stated} rows, its row groups have {rows}"),
        ));
    }
    Ok(())
}

fn bad_chunk(column: &ColumnChunkMetaData, rows: i64, data_end: u64) -> Option<String> {
    let values = column.num_values();
    let flat = column.column_descr().max_rep_level() == 0;
    if values < rows || values > i64::from(i32::MAX) || (flat && values != rows) {
        return Some(format!("{values} values do not fit {rows} rows"));
    }
    if column.uncompressed_size() < 0 {
        return Some("its uncompressed size is negative".to_owned());
    }
    if (rows, values, column.compressed_size()) == (0, 0, 0) {
        // Arrow's C++ writer gives a chunk without pages no place. Nothing of it is ever read.
        return None;
    }
    let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    let end =
        u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok()).and_then(|(a, b)| a.checked_add(b));
    match end {
        Some(end) if start >= 4 && end <= data_end => None,
        _ => Some(format!("its bytes {start} + {} are outside the file's data", column.compressed_size())),
    }
}

/// Where a column chunk lies; `validate` has checked that it lies within the file.
pub(super) fn chunk_range(column: &ColumnChunkMetaData) -> std::ops::Range<u64> {
    let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset()).max(0) as u64;
    start..start.saturating_add(column.compressed_size().max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked_against_the_file() {
        let place = Place::file("x");
        let limits = Limits { max_footer_bytes: 100, ..Limits::default() };
        let length = |length: u32, magic: &[u8; 4], size| {
            footer_length(&[&[0; 40], &length.to_le_bytes()[..], magic].concat(), size, &limits, &place)
        };
        assert_eq!(length(30, b"PAR1", 100).unwrap(), 30);
        assert!(matches!(length(0, b"PAR1", 100), Err(Error::Corrupt { .. })));
        assert!(matches!(length(89, b"PAR1", 100), Err(Error::Corrupt { .. })));
        assert!(matches!(length(101, b"PAR1", 1000), Err(Error::Limit { .. })));
        assert!(matches!(length(30, b"PARE", 100), Err(Error::Unsupported { .. })));
        assert!(matches!(length(30, b"PAR2", 100), Err(Error::Corrupt { .. })));
        assert!(matches!(footer_length(b"PAR1", 4, &limits, &place), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn a_panic_is_an_error_with_its_place() {
        let place = Place::file("x").row_group(1);
        let error = guard(&place, "bad", || -> Result<(), ParquetError> { std::panic::panic_any("boom") }).unwrap_err();
        assert_eq!(error.chain(), "file x, row group 1: bad: boom");
    }

    #[test]
    fn deep_schemas_are_found_before_anything_recurses() {
        // schema elements with one child each: field 5 i32 = 1, stop.
        let element = [0x55, 0x02, 0x00];
        let bytes = [&[0x29, 0xfc, 0xe8, 0x07][..], &element.repeat(1000), &[0]].concat();
        let error = check(&bytes, &Limits::default(), &Place::file("x")).unwrap_err();
        assert!(matches!(error, Error::Limit { option: "limits.max_depth", .. }), "{error}");
        let empty = [&[0x49, 0xfc, 0xe8, 0x07][..], &[0; 1001]].concat();
        assert!(check(&empty, &Limits::default(), &Place::file("x")).is_err(), "empty row groups");
    }
}
