//! Footers: read with one request where possible, checked before they are parsed, and again before they are believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
    RowGroupMetaData,
};
use parquet::schema::types::SchemaDescPtr;
use sha2::{Digest, Sha256};

use super::features;
use super::guard::guard;
use super::head::{ARROW_SCHEMA, Head, Heads};
use super::julian;
use super::limits::Limits;
use super::outline::{Outline, Sealed, Wide};
use super::packed::{Packed, Part};
use super::write::SCHEMA_KEY;
use crate::error::{Error, Place, Result};
use crate::store::{Found, Object, Tail};

/// Read from the end of every file at first: most footers fit, and a larger read costs a store nothing more.
pub(super) const TAIL_BYTES: u64 = 64 << 10;

/// Most footers of a dataset that are searched for days on the former calendar, which takes a second look at each.
const MOST_SEARCHED: u64 = 64;

/// The length of the footer and the magic number.
const END_BYTES: u64 = 8;

/// A file whose footer was read and checked.
#[derive(Debug)]
pub(super) struct Footer {
    pub(super) object: Object,
    /// SHA-256 of the footer's bytes.
    pub(super) digest: [u8; 32],
    /// Its schemas.
    pub(super) head: Arc<Head>,
    /// Its row groups.
    pub(super) groups: Part,
    /// Column chunks that are encrypted.
    pub(super) sealed: Sealed,
    /// Columns of wide integers, where the footer itself was read.
    pub(super) wide: Vec<Wide>,
    /// Description of its cells by bowstring's writer.
    pub(super) cells: Option<String>,
    /// Spark's schema, where it says more than Parquet's.
    pub(super) spark: Option<String>,
    /// Its bytes, where more of it is needed.
    pub(super) bytes: Option<Bytes>,
}

/// State that the reading of many footers shares.
#[derive(Debug)]
pub(super) struct Footers {
    pub(super) limits: Limits,
    pub(super) heads: Heads,
    /// Bytes of footers that may still be kept as they are.
    room: AtomicU64,
    /// True once a file with days on the former calendar was named.
    told_days: AtomicBool,
    /// Footers that were searched for such days.
    searched: AtomicU64,
}

impl Footers {
    /// Reader of footers that keeps at most so many of their bytes as they are.
    pub(super) fn new(limits: Limits, room: u64) -> Self {
        let (room, searched) = (AtomicU64::new(room), AtomicU64::new(0));
        Self { limits, heads: Heads::default(), room, told_days: AtomicBool::new(false), searched }
    }

    /// `bytes`, if there is room for them.
    fn keep(&self, bytes: &Bytes) -> Option<Bytes> {
        let length = bytes.len() as u64;
        let take = |room: u64| room.checked_sub(length);
        // A copy: a slice would keep all that was read of the file's end.
        self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Bytes::copy_from_slice(bytes))
    }

    /// Reads and checks the footer of `found`.
    pub(super) async fn read(self: Arc<Self>, found: Found) -> Result<Footer> {
        let place = Place::file(Arc::clone(&found.name));
        let (object, bytes, start) = fetch(&found, &self.limits, &place).await?;
        let parsed = super::held::spawn(move || self.footer(object, &bytes, start, &place));
        parsed.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a footer was not parsed: {error}") }))
    }

    /// Kept parts of a footer that begins at byte `start` of its file.
    pub(super) fn footer(&self, object: Object, bytes: &Bytes, start: u64, place: &Place) -> Result<Footer> {
        let digest = Sha256::digest(bytes).into();
        let outline = Outline::read(bytes, &self.limits, place)?;
        let known = self.heads.of_schema(&outline.digest).map(|head| head.descriptor());
        let typed = outline.typed(bytes);
        let metadata = parse(&typed, false, known, place)?;
        validate(&metadata, start, &self.limits, place)?;
        let pairs = metadata.file_metadata().key_value_metadata();
        let said = |key: &str| {
            let mut pairs = pairs.into_iter().flatten();
            pairs.find(|pair| pair.key == key)?.value.as_deref()
        };
        let schema = metadata.file_metadata().schema_descr_ptr();
        // Nothing depends on these statistics: a file with damaged ones is read all the same.
        if julian::is_legacy(said)
            && julian::may_be_old(&schema)
            && self.may_tell_days()
            && let Ok(metadata) = parse(&typed, true, Some(schema), place)
        {
            self.tell_days(&metadata, place);
        }
        let head = self.heads.intern(outline.schema, outline.digest, said(ARROW_SCHEMA), &self.limits, place)?;
        let mut groups = Packed::default();
        let mut nulls = outline.nulls.as_slice();
        for group in metadata.row_groups() {
            let (own, rest) = nulls.split_at_checked(group.num_columns()).unwrap_or_default();
            groups.push(group, own);
            nulls = rest;
        }
        groups.shrink();
        let groups = Part::whole(groups);
        let cells = said(SCHEMA_KEY).map(str::to_owned);
        let spark = said(features::SPARK_ROW).filter(|row| features::tells(row)).map(str::to_owned);
        let Outline { sealed, wide, .. } = outline;
        Ok(Footer { object, digest, head, groups, sealed, wide, cells, spark, bytes: self.keep(bytes) })
    }

    /// Returns true if one more footer is to be searched for days on the former calendar.
    fn may_tell_days(&self) -> bool {
        !self.told_days.load(Ordering::Relaxed) && self.searched.fetch_add(1, Ordering::Relaxed) < MOST_SEARCHED
    }

    /// Warns, once, of days on the calendar of before 1582.
    fn tell_days(&self, metadata: &ParquetMetaData, place: &Place) {
        let Some(column) = julian::old_column(metadata) else { return };
        if !self.told_days.swap(true, Ordering::Relaxed) {
            let place = Place { column: Some(column.into()), ..place.clone() };
            tracing::warn!(
                "{place}: days before 1582-10-15 or times before 1900 are on Spark's legacy calendar; they are delivered as stored, \
                 which Spark shows as other days. Write the data anew with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
            );
        }
    }
}

/// The whole footer of `object` with this digest, statistics included, read once more. `bytes` are its bytes, if they are
/// known. If there is a `schema`, it replaces the footer's own, and has the same leaves under other names.
pub(super) async fn again(
    object: &Object,
    digest: [u8; 32],
    bytes: Option<Bytes>,
    schema: Option<SchemaDescPtr>,
    limits: &Limits,
) -> Result<ParquetMetaData> {
    let place = Place::file(Arc::clone(object.name()));
    let size = object.stamp().size;
    let (bytes, start) = match bytes {
        Some(bytes) => {
            let start = size.saturating_sub(END_BYTES + bytes.len() as u64);
            (bytes, start)
        }
        None => {
            let from = size.saturating_sub(TAIL_BYTES);
            let tail = object.read_range(from..size).await?;
            let tail = Tail { object: object.clone(), start: from, bytes: tail };
            whole(&tail, limits, &place).await?
        }
    };
    let (limits, stamp) = (limits.clone(), object.stamp().to_string());
    let parsed = super::held::spawn(move || {
        if <[u8; 32]>::from(Sha256::digest(&bytes)) != digest {
            let file = place.file.as_deref().unwrap_or_default().to_owned();
            return Err(Error::SourceChanged { file, was: stamp, now: "another footer".to_owned() });
        }
        let outline = Outline::read(&bytes, &limits, &place)?;
        let metadata = parse(&outline.typed(&bytes), true, schema, &place)?;
        validate(&metadata, start, &limits, &place)?;
        Ok(metadata)
    });
    parsed.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a footer was not parsed: {error}") }))
}

/// The bytes of the footer of `found`, checked like any other, but not parsed: for files that are nothing but a footer.
pub(super) async fn bytes(found: &Found, limits: &Limits) -> Result<Bytes> {
    let place = Place::file(Arc::clone(&found.name));
    let (_, bytes, _) = fetch(found, limits, &place).await?;
    Outline::read(&bytes, limits, &place)?;
    Ok(bytes)
}

/// The file, pinned, the bytes of its footer, and where they begin.
async fn fetch(found: &Found, limits: &Limits, place: &Place) -> Result<(Object, Bytes, u64)> {
    not_empty(found, place)?;
    let tail = found.tail(TAIL_BYTES).await?;
    let (bytes, start) = whole(&tail, limits, place).await.map_err(|error| stray(error, &found.name))?;
    Ok((tail.object, bytes, start))
}

/// The bytes of the footer whose end is `tail`, and where they begin.
async fn whole(tail: &Tail, limits: &Limits, place: &Place) -> Result<(Bytes, u64)> {
    match inside(tail, limits, place)? {
        Ok(whole) => Ok(whole),
        Err(start) => Ok(joined(tail, start, &tail.object.read_range(start..tail.start).await?)),
    }
}

/// The bytes of the footer if `tail` has all of them, and where they begin; else only that.
pub(super) fn inside(tail: &Tail, limits: &Limits, place: &Place) -> Result<Result<(Bytes, u64), u64>> {
    let size = tail.object.stamp().size;
    let length = footer_length(&tail.bytes, size, limits, place)?;
    let start = size - END_BYTES - length;
    if start < tail.start {
        return Ok(Err(start));
    }
    let bytes = tail.bytes.slice((start - tail.start) as usize..tail.bytes.len() - END_BYTES as usize);
    Ok(Ok((bytes, start)))
}

/// A footer from its `beginning` at `start`, and the rest in `tail`.
pub(super) fn joined(tail: &Tail, start: u64, beginning: &[u8]) -> (Bytes, u64) {
    let rest = tail.bytes.get(..tail.bytes.len() - END_BYTES as usize).unwrap_or_default();
    ([beginning, rest].concat().into(), start)
}

pub(super) fn not_empty(found: &Found, place: &Place) -> Result<()> {
    if found.size == Some(0) {
        let error = Error::corrupt(place.clone(), "not a Parquet file: it is empty");
        return Err(stray(error, &found.name));
    }
    Ok(())
}

/// The error for file `name`, with advice if it was taken for data only because its name tells nothing.
pub(super) fn stray(error: Error, name: &str) -> Error {
    let last = name.rsplit('/').next().unwrap_or(name);
    match error {
        Error::Corrupt { place, what, source } if !last.contains('.') => {
            let advice = "a file without an extension counts as data: if it is not data, move it away, let its name begin with _ or a dot, \
                          or name the data with a pattern such as **/*.parquet";
            Error::Corrupt { place, what: format!("{what}; {advice}"), source }
        }
        other => other,
    }
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
            return Err(Error::unsupported("an encrypted footer", hint).at(place.clone()));
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
        return Err(
            Error::limit("the footer", length, limits.max_footer_bytes, "limits.max_footer_bytes").at(place.clone())
        );
    }
    Ok(length)
}

/// Parses a footer. Its statistics are read only if `statistics` are asked for: they are most of its memory; and its schema only if
/// it is not `known`.
fn parse(bytes: &[u8], statistics: bool, known: Option<SchemaDescPtr>, place: &Place) -> Result<ParquetMetaData> {
    let keep = if statistics { ParquetStatisticsPolicy::KeepAll } else { ParquetStatisticsPolicy::SkipAll };
    let mut options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(keep.clone())
        .with_encoding_stats_policy(keep)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
    if let Some(schema) = known {
        options.set_schema(schema);
    }
    guard(place, "the footer is damaged", || {
        let metadata = ParquetMetaDataReader::decode_metadata_with_options(bytes, Some(&options))?;
        // Some writers use a zero if there is no dictionary.
        let is_none = |column: &ColumnChunkMetaData| column.dictionary_page_offset() == Some(0);
        if !metadata.row_groups().iter().any(|group| group.columns().iter().any(is_none)) {
            return Ok(metadata);
        }
        let without = |column: &ColumnChunkMetaData| match is_none(column) {
            true => column.clone().into_builder().set_dictionary_page_offset(None).build(),
            false => Ok(column.clone()),
        };
        let group = |group: &RowGroupMetaData| {
            let columns = group.columns().iter().map(without).collect::<Result<_, _>>()?;
            group.clone().into_builder().set_column_metadata(columns).build()
        };
        let groups = metadata.row_groups().iter().map(group).collect::<Result<_, ParquetError>>()?;
        Ok(metadata.into_builder().set_row_groups(groups).build())
    })
}

/// Checks every number that is used later against the file's size; data ends at `data_end`.
fn validate(metadata: &ParquetMetaData, data_end: u64, limits: &Limits, place: &Place) -> Result<()> {
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    if leaves > limits.max_columns {
        let (asked, limit) = (leaves as u64, limits.max_columns as u64);
        return Err(Error::limit("the number of columns", asked, limit, "limits.max_columns").at(place.clone()));
    }
    let mut rows = 0_i64;
    let mut spans: Vec<(std::ops::Range<u64>, usize, usize)> = Vec::new();
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let place = place.clone().row_group(index);
        if group.num_columns() != leaves {
            return Err(Error::corrupt(place, format!("it has {} columns, the schema {leaves}", group.num_columns())));
        }
        if !(0..=i64::from(i32::MAX)).contains(&group.num_rows()) {
            return Err(Error::corrupt(place, format!("it cannot have {} rows", group.num_rows())));
        }
        rows = rows.saturating_add(group.num_rows());
        for (leaf, column) in group.columns().iter().enumerate() {
            if let Some(what) = bad_chunk(column, group.num_rows(), data_end) {
                return Err(Error::corrupt(place.column(column.column_path().string()), what));
            }
            if column.file_path().is_some_and(|path| !path.is_empty()) {
                let place = place.column(column.column_path().string());
                return Err(Error::unsupported("columns in other files", "").at(place));
            }
            if group.num_rows() > 0 {
                spans.push((chunk_range(column), index, leaf));
            }
        }
    }
    // Most writers leave them in order, and then this is one look at each.
    spans.sort_by_key(|(range, ..)| range.start);
    for ((before, ..), (after, index, leaf)) in spans.iter().zip(spans.iter().skip(1)) {
        if after.start < before.end {
            let what = format!("its bytes {} + {} are another column's too", after.start, after.end - after.start);
            let column = metadata.row_groups().get(*index).and_then(|group| group.columns().get(*leaf));
            let column = column.map(|column| column.column_path().string()).unwrap_or_default();
            return Err(Error::corrupt(place.clone().row_group(*index).column(column), what));
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
    // A chunk without a row may have a dictionary and no page of data, whose place is then 0.
    if rows > 0 && start > column.data_page_offset() {
        return Some(format!("its dictionary at byte {start} is behind its data at {}", column.data_page_offset()));
    }
    let end =
        u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok()).and_then(|(a, b)| a.checked_add(b));
    let data = u64::try_from(column.data_page_offset()).unwrap_or_default();
    match end {
        Some(end) if start >= 4 && end <= data_end && (rows == 0 || data < end) => None,
        Some(end) if start >= 4 && end <= data_end => {
            Some(format!("its data at byte {} is behind its end at {end}", column.data_page_offset()))
        }
        _ => Some(format!("its bytes {start} + {} are outside the file's data", column.compressed_size())),
    }
}

/// Range of a column chunk; `validate` has checked that it lies within the file.
fn chunk_range(column: &ColumnChunkMetaData) -> std::ops::Range<u64> {
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
    fn a_file_without_an_extension_is_told_why_it_was_read() {
        let read = |name: &str| {
            let place = Place::file(name);
            stray(footer_length(b"no Parquet at all", 17, &Limits::default(), &place).unwrap_err(), name).to_string()
        };
        assert!(read("data/NOTES").contains("counts as data"), "{}", read("data/NOTES"));
        assert!(!read("data.v2/a.parquet").contains("counts as data"));
    }

    #[test]
    fn an_empty_list_may_be_of_any_type() {
        let schema = [
            // version = 1; the root with one child; `a`, a required INT32; no rows.
            &[0x15, 0x02, 0x19, 0x2c][..],
            &[0x48, 1, b'r', 0x15, 0x02, 0x00],
            &[0x15, 0x02, 0x25, 0x00, 0x18, 1, b'a', 0x00],
            &[0x16, 0x00],
        ]
        .concat();
        let place = Place::file("x");
        for header in [0x0c, 0x00, 0x01, 0x03] {
            // As fastparquet has it: row groups, and pairs of keys and values.
            let bytes = [&schema[..], &[0x19, header, 0x19, header, 0x00]].concat();
            let outline = Outline::read(&bytes, &Limits::default(), &place).unwrap();
            let metadata = parse(&outline.typed(&bytes), false, None, &place).unwrap();
            assert_eq!((metadata.num_row_groups(), metadata.file_metadata().num_rows()), (0, 0), "{header}");
        }
        let one = [&schema[..], &[0x19, 0x10, 0x00, 0x00]].concat();
        assert!(Outline::read(&one, &Limits::default(), &place).is_err(), "a row group of no type");
    }

    #[test]
    fn a_panic_is_an_error_with_its_place() {
        let place = Place::file("x").row_group(1);
        let error = guard(&place, "bad", || -> Result<(), ParquetError> { std::panic::panic_any("boom") }).unwrap_err();
        assert_eq!(error.chain(), "file x, row group 1: bad: boom");
    }
}
