//! Bytes are fetched into the cache ahead of need.

/// Bytes of a cache line.
const LINE: usize = 64;
/// Most lines that are fetched at once; processors fetch what follows on their own.
const MOST: usize = 4;

/// Asks the processor to fetch the first lines of `bytes`, which are read soon.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE).take(MOST) {
        fetch(line);
    }
}

#[inline]
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "the intrinsic takes any address")]
fn fetch(line: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which reads nothing and faults at no address; every x86-64 processor has it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
}

#[inline]
#[cfg(not(target_arch = "x86_64"))]
fn fetch(_line: &[u8]) {}
