//! A bitmap of deleted rows, as Delta Lake and Iceberg have it in files of bitmaps, and the bytes of several in such a file.
//!
//! ```text
//!   length, big endian · magic, little endian · 64-bit roaring bitmap · CRC-32 of the two before, big endian
//! ```

use std::ops::Range;

use roaring::RoaringTreemap;

use crate::dataset::chunks::{Chunks, coalesce};
use crate::error::{Error, Place, Result};
use crate::store::Found;

/// Magic number at the start of a bitmap, in little endian.
const MAGIC: u32 = 1_681_511_377;

/// Fault in a bitmap.
pub(in crate::dataset) type Broken = &'static str;

/// The bitmap between its length and its checksum.
pub(in crate::dataset) fn framed(bytes: &[u8]) -> Result<&[u8], Broken> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("it is cut off")?;
    let (bitmap, checksum) = rest.split_last_chunk::<4>().ok_or("it is cut off")?;
    if usize::try_from(u32::from_be_bytes(*length)) != Ok(bitmap.len()) {
        return Err("its length is not the one that is told");
    }
    if crc32fast::hash(bitmap) != u32::from_be_bytes(*checksum) {
        return Err("its checksum is not that of its bytes");
    }
    Ok(bitmap)
}

/// The rows in `bitmap`, magic number first, if there are as many as the table says.
pub(in crate::dataset) fn rows(bitmap: &[u8], cardinality: i64) -> Result<RoaringTreemap, Broken> {
    let (magic, bitmap) = bitmap.split_first_chunk::<4>().ok_or("it is cut off")?;
    if u32::from_le_bytes(*magic) != MAGIC {
        return Err("its magic number is not that of a bitmap");
    }
    let rows = RoaringTreemap::deserialize_from(bitmap).map_err(|_| "its bitmap is damaged")?;
    if u64::try_from(cardinality) != Ok(rows.len()) {
        return Err("it has not as many rows as is told of it");
    }
    Ok(rows)
}

/// These bytes of a file of bitmaps; none may have more than `most`.
pub(in crate::dataset) async fn bytes(found: &Found, ranges: Vec<Range<u64>>, most: u64) -> Result<Chunks> {
    let object = found.tail(1).await?.object;
    let size = object.stamp().size;
    if ranges.iter().any(|range| range.end > size) {
        return Err(broken(&found.name, "it is cut off"));
    }
    if let Some(size) = ranges.iter().map(|range| range.end.saturating_sub(range.start)).find(|size| *size > most) {
        return Err(Error::limit(
            format!("a deletion vector in {}", found.url()),
            size,
            most,
            "limits.max_index_bytes",
        ));
    }
    let ranges = coalesce(ranges, object.gap());
    let parts = object.read(ranges.clone()).await?;
    Ok(Chunks::new(ranges.into_iter().map(|range| range.start).zip(parts).collect(), size))
}

/// Error for the broken bitmap of file `name`.
pub(in crate::dataset) fn broken(name: &str, what: &str) -> Error {
    Error::corrupt(Place::file(name), format!("a deletion vector: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_told() {
        let bitmap = [&MAGIC.to_le_bytes()[..], &[0; 8]].concat();
        let frame = |length: u32, sum: u32| [&length.to_be_bytes()[..], &bitmap, &sum.to_be_bytes()].concat();
        let sum = crc32fast::hash(&bitmap);
        assert_eq!(framed(&frame(12, sum)).unwrap(), bitmap);
        assert!(framed(&frame(11, sum)).is_err() && framed(&frame(12, sum ^ 1)).is_err() && framed(&[0; 7]).is_err());
        assert!(rows(&bitmap, 0).unwrap().is_empty() && rows(&bitmap, 1).is_err());
        let huge = [&MAGIC.to_le_bytes()[..], &[0xff; 8]].concat();
        assert!(rows(&huge, 0).is_err() && rows(&[], 0).is_err() && rows(&[1; 12], 0).is_err());
    }
}
