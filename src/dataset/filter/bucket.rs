//! Hash buckets of partitioned tables: finds the bucket of a value. The hash is Murmur3, x86, 32 bits, seed 0.

use super::literal::Scalar;

/// Bucket `number` out of `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataset) struct Bucket {
    pub(in crate::dataset) number: u32,
    pub(in crate::dataset) of: u32,
    /// Hashes whole numbers as decimals: big-endian, in the fewest bytes that hold them.
    pub(in crate::dataset) decimal: bool,
}

impl Bucket {
    /// Tests whether `value` is in this bucket; `None` for a value without a bucket.
    pub(super) fn holds(&self, value: &Scalar) -> Option<bool> {
        let hash = match value {
            Scalar::Bytes(bytes) => murmur3(bytes),
            Scalar::Whole(value) if self.decimal => {
                let bytes = value.to_be_bytes();
                let is_sign = |pair: &[u8]| {
                    matches!(pair, [0, next] if next & 0x80 == 0) || matches!(pair, [0xff, next] if next & 0x80 != 0)
                };
                let skipped = bytes.windows(2).take_while(|pair| is_sign(pair)).count();
                murmur3(&bytes[skipped..])
            }
            Scalar::Whole(value) => murmur3(&i64::try_from(*value).ok()?.to_le_bytes()),
            Scalar::Float(_) => return None,
        };
        Some((hash & 0x7fff_ffff).checked_rem(self.of)? == self.number)
    }
}

fn murmur3(bytes: &[u8]) -> u32 {
    let mix = |block: u32| block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (blocks, rest) = bytes.as_chunks::<4>();
    let mut hash = blocks.iter().fold(0_u32, |hash, block| {
        (hash ^ mix(u32::from_le_bytes(*block))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    if !rest.is_empty() {
        hash ^= mix(rest.iter().rev().fold(0, |block, byte| block << 8 | u32::from(*byte)));
    }
    // Murmur3 takes the length modulo 2^32.
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_specification() {
        assert_eq!(murmur3(&34_i64.to_le_bytes()).cast_signed(), 2_017_239_379);
        assert_eq!(murmur3(b"iceberg").cast_signed(), 1_210_000_089);
        assert_eq!(murmur3(&[0, 1, 2, 3]).cast_signed(), -188_683_207);
        // 2017-11-16, in days; 22:31:08 in microseconds.
        assert_eq!(murmur3(&17_486_i64.to_le_bytes()).cast_signed(), -653_330_422);
        assert_eq!(murmur3(&81_068_000_000_i64.to_le_bytes()).cast_signed(), -662_762_989);
        let bucket = |value: i128, hash: i32| {
            let number = (hash.cast_unsigned() & 0x7fff_ffff) % 1000;
            Bucket { number, of: 1000, decimal: true }.holds(&Scalar::Whole(value))
        };
        assert_eq!(bucket(1420, -500_754_589), Some(true));
        assert_eq!(bucket(1421, -500_754_589), Some(false));
        let none = Bucket { number: 0, of: 0, decimal: false };
        assert_eq!(none.holds(&Scalar::Whole(1)), None);
        assert_eq!(Bucket { of: 1, ..none }.holds(&Scalar::Whole(i128::MAX)), None);
    }
}
