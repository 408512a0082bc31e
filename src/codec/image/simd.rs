//! Interleaved RGB to three planes with scaling and conversion, 16 pixels at a time, for processors with AVX2, FMA and F16C.
//!
//! ```text
//!   RGBRGBRG BRGBRGBR GBRGBRGB   48 bytes, 16 pixels
//!   RRRRRRRR GGGGGGGG BBBBBBBB   three byte shuffles and two ors for each plane (mirrored: other shuffle tables)
//!   widen to i32, to f32, fma, narrow to f16 / bf16 / f32, store 16 values of a plane
//! ```
//! The last block of a line overlaps the one before: the same values are written twice, and no line needs a tail.
#![expect(unsafe_code, reason = "vector loads and stores")]

use crate::schema::DType;

/// Returns true if the kernel runs on this processor.
#[cfg(target_arch = "x86_64")]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Returns true if the kernel runs on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn available() -> bool {
    false
}

/// Writes `pixels` (`[height, width, 3]`) to `row` (`[3, height, width]` of `dtype`) as `fma(x, scale, bias)`; u8 is
/// unchanged. Returns false, with nothing written, if the kernel does not apply: other processors, lines under 16
/// pixels, buffers of another size.
pub(super) fn planes(
    pixels: &[u8],
    width: usize,
    flip: bool,
    scale: [f32; 3],
    bias: [f32; 3],
    dtype: DType,
    row: &mut [u8],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if width >= avx2::STEP
        && pixels.len().is_multiple_of(3 * width)
        && Some(row.len()) == pixels.len().checked_mul(dtype.size())
        && available()
    {
        // SAFETY: the features were just detected; `pixels` is whole lines of 3 * width bytes, width >= 16, and `row` has dtype.size()
        // bytes for each byte of `pixels`, where OUT is the code of that dtype.
        unsafe {
            match (dtype, flip) {
                (DType::Uint8, false) => avx2::planes::<{ avx2::U8 }, false>(pixels, width, scale, bias, row),
                (DType::Uint8, true) => avx2::planes::<{ avx2::U8 }, true>(pixels, width, scale, bias, row),
                (DType::Float16, false) => avx2::planes::<{ avx2::F16 }, false>(pixels, width, scale, bias, row),
                (DType::Float16, true) => avx2::planes::<{ avx2::F16 }, true>(pixels, width, scale, bias, row),
                (DType::Bfloat16, false) => avx2::planes::<{ avx2::BF16 }, false>(pixels, width, scale, bias, row),
                (DType::Bfloat16, true) => avx2::planes::<{ avx2::BF16 }, true>(pixels, width, scale, bias, row),
                (DType::Float32, false) => avx2::planes::<{ avx2::F32 }, false>(pixels, width, scale, bias, row),
                (DType::Float32, true) => avx2::planes::<{ avx2::F32 }, true>(pixels, width, scale, bias, row),
                _ => return false,
            }
        }
        return true;
    }
    let _ = (pixels, width, flip, scale, bias, dtype, row);
    false
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Pixels at a time.
    pub(super) const STEP: usize = 16;

    // Output types; a const generic cannot be an enum. Bytes of a value are in `size`.
    pub(super) const U8: u8 = 0;
    pub(super) const F16: u8 = 1;
    pub(super) const BF16: u8 = 2;
    pub(super) const F32: u8 = 3;

    const fn size(out: u8) -> usize {
        match out {
            U8 => 1,
            F16 | BF16 => 2,
            _ => 4,
        }
    }

    /// Shuffle tables: `[plane][which 16 of the 48 bytes][lane]`; -128 gives zero.
    const fn masks(flip: bool) -> [[[i8; 16]; 3]; 3] {
        let mut masks = [[[-128; 16]; 3]; 3];
        let mut plane = 0;
        while plane < 3 {
            let mut lane = 0;
            while lane < 16 {
                let pixel = if flip { 15 - lane } else { lane };
                let byte = 3 * pixel + plane;
                masks[plane][byte / 16][lane] = (byte % 16) as i8;
                lane += 1;
            }
            plane += 1;
        }
        masks
    }

    static FORWARD: [[[i8; 16]; 3]; 3] = masks(false);
    static MIRRORED: [[[i8; 16]; 3]; 3] = masks(true);

    /// See `super::planes`.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; `width >= STEP`; `pixels` is whole lines of `3 * width` bytes; `row` has `size(OUT)` bytes for
    /// each byte of `pixels`.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn planes<const OUT: u8, const FLIP: bool>(
        pixels: &[u8],
        width: usize,
        scale: [f32; 3],
        bias: [f32; 3],
        row: &mut [u8],
    ) {
        let tables = if FLIP { &MIRRORED } else { &FORWARD };
        // SAFETY: each table is 16 bytes.
        let masks = tables.map(|plane| plane.map(|table| unsafe { _mm_loadu_si128(table.as_ptr().cast()) }));
        let scale = scale.map(|scale| _mm256_set1_ps(scale));
        let bias = bias.map(|bias| _mm256_set1_ps(bias));
        let plane = pixels.len() / 3;
        for (y, line) in pixels.chunks_exact(3 * width).enumerate() {
            let mut x = 0;
            loop {
                let from = if FLIP { width - STEP - x } else { x };
                // SAFETY: from + 16 <= width, so 48 bytes at 3 * from end within the line of 3 * width bytes.
                let [a, b, c] = unsafe {
                    let at = line.as_ptr().add(3 * from).cast::<__m128i>();
                    [_mm_loadu_si128(at), _mm_loadu_si128(at.add(1)), _mm_loadu_si128(at.add(2))]
                };
                for channel in 0..3 {
                    let [mask_a, mask_b, mask_c] = masks[channel];
                    let values = _mm_or_si128(
                        _mm_or_si128(_mm_shuffle_epi8(a, mask_a), _mm_shuffle_epi8(b, mask_b)),
                        _mm_shuffle_epi8(c, mask_c),
                    );
                    let index = channel * plane + y * width + x;
                    // SAFETY: x + 16 <= width, so index + 16 <= 3 * plane = pixels.len(), and row has size(OUT) bytes for each.
                    unsafe {
                        let to = row.as_mut_ptr().add(index * size(OUT));
                        store::<OUT>(values, scale[channel], bias[channel], to);
                    }
                }
                if x + STEP == width {
                    break;
                }
                x = (x + STEP).min(width - STEP);
            }
        }
    }

    /// Converts and stores 16 values.
    ///
    /// # Safety
    /// The features of `planes`; `to` is valid for writes of `16 * size(OUT)` bytes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn store<const OUT: u8>(values: __m128i, scale: __m256, bias: __m256, to: *mut u8) {
        if OUT == U8 {
            // SAFETY: 16 bytes at `to`.
            unsafe { _mm_storeu_si128(to.cast(), values) };
            return;
        }
        let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(values));
        let high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(values)));
        let (low, high) = (_mm256_fmadd_ps(low, scale, bias), _mm256_fmadd_ps(high, scale, bias));
        match OUT {
            F16 => {
                let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low);
                let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high);
                // SAFETY: 32 bytes at `to`.
                unsafe { _mm256_storeu_si256(to.cast(), _mm256_set_m128i(high, low)) };
            }
            BF16 => {
                // packus works within 128-bit halves; the permutation puts the four quarters in order.
                let packed = _mm256_packus_epi32(round_bf16(low), round_bf16(high));
                // SAFETY: 32 bytes at `to`.
                unsafe { _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)) };
            }
            _ => {
                // SAFETY: 64 bytes at `to`.
                unsafe {
                    _mm256_storeu_ps(to.cast(), low);
                    _mm256_storeu_ps(to.cast::<f32>().add(8), high);
                }
            }
        }
    }

    /// Finite f32 to the bits of the nearest bf16, ties to even, each in the low half of its lane.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn round_bf16(values: __m256) -> __m256i {
        let bits = _mm256_castps_si256(values);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
        _mm256_srli_epi32::<16>(rounded)
    }
}
