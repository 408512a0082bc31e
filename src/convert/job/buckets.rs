//! The number of buckets for a shuffle, which depends on the source alone.

use crate::convert::source::Shard;

/// Version of the order: another version gives another fingerprint.
pub(crate) const ORDER: u32 = 2;

/// Stored bytes of the source per bucket.
const BUCKET_BYTES: u64 = 8 << 20;

/// Most buckets.
const MOST_BUCKETS: u64 = 256;

/// Returns the number of buckets of a source, given the requested number of files. Neither memory nor cores affect it.
pub(crate) fn buckets(shards: &[Shard], files: Option<usize>) -> usize {
    let bytes: u64 = shards.iter().map(|shard| shard.bytes).sum();
    let wanted = files.map_or(bytes.div_ceil(BUCKET_BYTES), |files| files as u64);
    wanted.clamp(1, MOST_BUCKETS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_of_the_source_alone() {
        let shard = |bytes| Shard { id: String::new(), bytes, rows: None, stamp: String::new() };
        assert_eq!(buckets(&[], None), 1);
        assert_eq!(buckets(&[shard(1)], None), 1);
        assert_eq!(buckets(&[shard(BUCKET_BYTES), shard(1)], None), 2);
        assert_eq!(buckets(&[shard(u64::MAX / 2)], None), 256);
        assert_eq!((buckets(&[shard(1)], Some(3)), buckets(&[shard(1)], Some(1000))), (3, 256));
    }
}
