//! Bit-packed numbers, eight at a time, for processors with AVX2.
//!
//! ```text
//!   width bytes   │ number 0 1 2 3 ..│.. 4 5 6 7 │       the second four begin at a byte too, or in the middle of one
//!   two loads     │ 16 bytes         │ 16 bytes         from where each four begin
//!   shuffle       │ 4 bytes around each number, in a lane of its own
//!   shift, mask   │ the number
//! ```
#![expect(unsafe_code, reason = "a function for processors that have vectors, called where they do")]

/// Unpacks numbers of `width` bits each, least significant bit first, from `width` bytes for each eight of `output` and more. False, with
/// nothing unpacked, if this does not apply: other processors, fewer than `BEYOND` bytes that follow, numbers that may lie in five bytes.
pub(super) fn unpack(bytes: &[u8], width: u8, output: &mut [[u32; 8]]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if (1..=avx2::WIDEST).contains(&usize::from(width))
        && bytes.len() >= output.len() * usize::from(width) + BEYOND
        && is_x86_feature_detected!("avx2")
    {
        // SAFETY: the feature was just detected.
        return unsafe { avx2::unpack(bytes, usize::from(width), output) };
    }
    let _ = (bytes, width, output);
    false
}

/// Bytes that are loaded beyond the numbers, at most.
#[cfg(target_arch = "x86_64")]
const BEYOND: usize = 16;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Widest numbers that lie in four bytes wherever they begin.
    pub(super) const WIDEST: usize = 25;

    /// For each width, the bytes of each lane among the 16 of its half, and the bits before the number in the first of them.
    static PLACES: [([u8; 32], [u32; 8]); WIDEST + 1] = places();

    const fn places() -> [([u8; 32], [u32; 8]); WIDEST + 1] {
        let mut places = [([0; 32], [0; 8]); WIDEST + 1];
        let mut width = 0;
        while width <= WIDEST {
            let mut lane = 0;
            while lane < 8 {
                let before = if lane < 4 { 0 } else { width / 2 * 8 };
                let bit = lane * width - before;
                let mut byte = 0;
                while byte < 4 {
                    places[width].0[lane * 4 + byte] = (bit / 8 + byte) as u8;
                    byte += 1;
                }
                places[width].1[lane] = (bit % 8) as u32;
                lane += 1;
            }
            width += 1;
        }
        places
    }

    /// See `super::unpack`; false if there are fewer bytes.
    #[target_feature(enable = "avx2")]
    pub(super) fn unpack(bytes: &[u8], width: usize, output: &mut [[u32; 8]]) -> bool {
        let (bytes_of, bits_before) = &PLACES[width];
        let (shuffle, shift): (__m256i, __m256i) = (bytemuck::cast(*bytes_of), bytemuck::cast(*bits_before));
        let mask = _mm256_set1_epi32((1 << width) - 1);
        for (at, eight) in output.iter_mut().enumerate() {
            let load = |from: usize| bytes.get(from..)?.first_chunk::<16>();
            let (Some(low), Some(high)) = (load(at * width), load(at * width + width / 2)) else { return false };
            let both = _mm256_set_m128i(bytemuck::cast(*high), bytemuck::cast(*low));
            let numbers = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(both, shuffle), shift), mask);
            *eight = bytemuck::cast(numbers);
        }
        true
    }
}
