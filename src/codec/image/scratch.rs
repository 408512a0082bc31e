//! The memory of one thread for decoding, kept from image to image.

use std::cell::Cell;

use fast_image_resize::Resizer;

use crate::error::{Error, Place, Result};

/// Memory that one thread keeps from image to image.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) decoded: Vec<u8>,
    pub(super) raw: Vec<u8>,
    pub(super) resized: Vec<u8>,
    pub(super) turned: Vec<u8>,
    pub(super) resizer: Resizer,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    /// Maximum bytes that a buffer keeps: enough for photos of 10 megapixels; larger ones are rare enough to allocate.
    const KEEP: usize = 32 << 20;

    fn trim(&mut self) {
        for buffer in [&mut self.decoded, &mut self.raw, &mut self.resized, &mut self.turned] {
            if buffer.capacity() > Self::KEEP {
                *buffer = Vec::new();
            }
        }
        if self.resizer.size_of_internal_buffers() > Self::KEEP {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// The first `len` bytes of `buffer`, which grows but is not cleared.
pub(super) fn grow(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        // The old content is not worth copying.
        buffer.clear();
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Runs a decoder with this thread's memory. The decoders are third-party code, and their input is untrusted.
pub(super) fn with_scratch(decode: impl FnOnce(&mut Scratch) -> Result<()>) -> Result<()> {
    let mut scratch = SCRATCH.take().unwrap_or_default();
    let outcome = crate::page::quiet(|| decode(&mut scratch));
    let Ok(result) = outcome else {
        return Err(Error::corrupt(Place::default(), "damaged image: the decoder panicked"));
    };
    scratch.trim();
    SCRATCH.set(Some(scratch));
    result
}
