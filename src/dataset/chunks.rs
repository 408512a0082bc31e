//! Parts of a file that were read, and the ranges that are read together.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

/// One request reads at most this much, unless a single column chunk is larger; more requests run at once.
const REQUEST_BYTES: u64 = 32 << 20;

/// Parts of a file in memory, served to the decoder at their offsets.
#[derive(Debug, Clone)]
pub(super) struct Chunks {
    parts: Arc<[(u64, Bytes)]>,
    size: u64,
}

impl Chunks {
    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Returns true if `address` points to one of these bytes.
    pub(super) fn holds(&self, address: *const u8) -> bool {
        self.parts.iter().any(|(_, bytes)| bytes.as_ptr_range().contains(&address))
    }

    pub(super) fn new(parts: Vec<(u64, Bytes)>, size: u64) -> Self {
        Self { parts: parts.into(), size }
    }

    /// The bytes from `start` on that are here, up to the end of their part.
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let after = self.parts.partition_point(|(at, _)| *at <= start);
        let part = after.checked_sub(1).and_then(|index| self.parts.get(index));
        part.and_then(|(at, bytes)| {
            let offset = usize::try_from(start - at).ok().filter(|offset| *offset <= bytes.len())?;
            Some(bytes.slice(offset..))
        })
        .ok_or_else(|| ParquetError::EOF(format!("byte {start} is outside the columns that were read")))
    }

    pub(super) fn range(&self, range: &Range<u64>) -> Result<Bytes, ParquetError> {
        let bytes = self.from(range.start)?;
        let length = usize::try_from(range.end - range.start).ok().filter(|length| *length <= bytes.len());
        let length =
            length.ok_or_else(|| ParquetError::EOF(format!("bytes {}..{} were not read", range.start, range.end)))?;
        Ok(bytes.slice(..length))
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Chunks {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64).ok_or_else(|| ParquetError::EOF("a range overflows".to_owned()))?;
        self.range(&(start..end))
    }
}

/// Joins ranges that are near each other, up to [`REQUEST_BYTES`]. `ranges` may be in any order and overlap.
pub(super) fn coalesce(mut ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| range.start < range.end) {
        match joined.last_mut() {
            Some(last)
                if range.start < last.end
                    || (range.start - last.end <= gap && range.end - last.start <= REQUEST_BYTES) =>
            {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ranges_are_one_request_and_large_ones_several() {
        assert_eq!(coalesce(vec![20..30, 0..10, 11..15, 30..30], 1), [0..15, 20..30]);
        let joined = coalesce(vec![0..10, 5..8, 5..20], 0);
        assert!(joined.len() == 1 && joined[0] == (0..20), "overlaps are joined at any distance");
        let half = REQUEST_BYTES / 2 + 1;
        assert_eq!(coalesce(vec![0..half, half..2 * half], 9), [0..half, half..2 * half]);
    }

    #[test]
    fn chunks_serve_only_what_is_there() {
        let chunks = Chunks::new(vec![(10, Bytes::from_static(b"abc")), (20, Bytes::from_static(b"xyz"))], 100);
        assert_eq!(chunks.get_bytes(11, 2).unwrap(), "bc");
        assert!(
            chunks.get_bytes(11, 3).is_err() && chunks.get_bytes(5, 1).is_err() && chunks.get_bytes(14, 1).is_err()
        );
        assert!(chunks.get_bytes(u64::MAX, 2).is_err());
        assert_eq!(chunks.len(), 100);
    }
}
