//! The wanted ones among numbers of four or eight bytes, moved together eight or four at a time, for processors with AVX2.
//!
//! ```text
//!   eight numbers   │ a b c d e f g h │     eight bits  1 0 1 1 0 0 0 1
//!   permuted        │ a c d h . . . . │     by a table of the 256 cases; the next ones are written over what follows
//! ```
#![expect(unsafe_code, reason = "a function for processors that have vectors, called where they do")]

/// Numbers that belong to one word of bits.
pub(super) const WORD: usize = 64;

/// Numbers that are written behind the wanted ones.
pub(super) const BEYOND: usize = 8;

/// Moves the numbers of `block` whose bit is set in `words`, least significant first, to the start of `output`. `output` has room for
/// them and for [`BEYOND`] more. Returns their number; `None`, with `output` in no certain state, if this does not apply: other
/// processors, less room.
pub(super) fn fours(block: &[u32], words: impl Iterator<Item = u64>, output: &mut [u32]) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the features were just detected.
        return unsafe { avx2::fours(block, words, output) };
    }
    let _ = (block, words, output);
    None
}

/// As [`fours`], for numbers of eight bytes.
pub(super) fn eights(block: &[u64], words: impl Iterator<Item = u64>, output: &mut [u64]) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the features were just detected.
        return unsafe { avx2::eights(block, words, output) };
    }
    let _ = (block, words, output);
    None
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::WORD;

    /// For each eight bits, the lanes of four bytes whose bit is set, and anything behind them.
    static OF_EIGHT: [[u8; 8]; 256] = lanes(8);
    /// The same for each four bits and lanes of eight bytes.
    static OF_FOUR: [[u8; 8]; 16] = lanes(4);

    const fn lanes<const CASES: usize>(count: usize) -> [[u8; 8]; CASES] {
        let mut cases = [[0; 8]; CASES];
        let halves = 8 / count;
        let mut case = 0;
        while case < CASES {
            let (mut to, mut from) = (0, 0);
            while from < count {
                if case >> from & 1 == 1 {
                    let mut half = 0;
                    while half < halves {
                        cases[case][to] = (from * halves + half) as u8;
                        to += 1;
                        half += 1;
                    }
                }
                from += 1;
            }
            case += 1;
        }
        cases
    }

    /// The lanes of `from` that `lanes` names.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn permuted(from: __m256i, lanes: [u8; 8]) -> __m256i {
        let lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(lanes)));
        _mm256_permutevar8x32_epi32(from, lanes)
    }

    /// See `super::fours`.
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn fours(block: &[u32], words: impl Iterator<Item = u64>, output: &mut [u32]) -> Option<usize> {
        let mut to = 0;
        for (word, numbers) in words.zip(block.as_chunks::<WORD>().0) {
            for (bits, eight) in word.to_le_bytes().into_iter().zip(numbers.as_chunks::<8>().0) {
                let packed = permuted(bytemuck::cast(*eight), OF_EIGHT[usize::from(bits)]);
                *output.get_mut(to..)?.first_chunk_mut::<8>()? = bytemuck::cast(packed);
                to += bits.count_ones() as usize;
            }
        }
        Some(to)
    }

    /// See `super::eights`.
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn eights(block: &[u64], words: impl Iterator<Item = u64>, output: &mut [u64]) -> Option<usize> {
        let mut to = 0;
        for (word, numbers) in words.zip(block.as_chunks::<WORD>().0) {
            for (at, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
                let bits = (word >> (4 * at) & 0xf) as usize;
                let packed = permuted(bytemuck::cast(*four), OF_FOUR[bits]);
                *output.get_mut(to..)?.first_chunk_mut::<4>()? = bytemuck::cast(packed);
                to += bits.count_ones() as usize;
            }
        }
        Some(to)
    }
}
