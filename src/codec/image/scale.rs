//! Pixels scaled to another size, by the kernels of `fast_image_resize`.
//!
//! Each of its kernels exists once for every type of pixel, kind of view and precision that a caller may give it, and its door for images whose
//! type is known only at run time may be given any: 8,000 functions. So images come in here by type, and all through one kind of view.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3, U8x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::crop::Rect;
use crate::error::{Error, Place, Result};

/// Pixels of one byte a channel, rows from the top without gaps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pixels<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) width: u32,
    pub(super) height: u32,
    /// 1, 3 or 4; the last of 4 is alpha.
    pub(super) channels: usize,
}

impl Pixels<'_> {
    /// Scales the box `rect` to `width` x `height` pixels: bilinear, with antialiasing. The filter sees beyond the box, unless it is `sealed`.
    ///
    /// # Errors
    /// `Corrupt` if the box is not in the image, or `out` has another size.
    pub(super) fn scale(
        &self,
        resizer: &mut Resizer,
        rect: Rect,
        sealed: bool,
        (width, height): (u32, u32),
        out: &mut [u8],
    ) -> Result<()> {
        let scale = match self.channels {
            1 => scale::<U8>,
            3 => scale::<U8x3>,
            _ => scale::<U8x4>,
        };
        let (mut left, mut top) = (0.0, 0.0);
        let (mut right, mut bottom) = (f64::from(self.width), f64::from(self.height));
        if sealed {
            // Only the pixels that the box touches.
            (left, top) = (rect.x.floor().max(left), rect.y.floor().max(top));
            right = (rect.x + rect.width).ceil().min(right);
            bottom = (rect.y + rect.height).ceil().min(bottom);
        }
        let seen = [left, top, right - left, bottom - top].map(|side| side as u32);
        // Rounding must not push the box over the edge.
        let (x, y) = ((rect.x - left).max(0.0), (rect.y - top).max(0.0));
        let (wide, high) = (rect.width.min(f64::from(seen[2]) - x), rect.height.min(f64::from(seen[3]) - y));
        scale(resizer, self, seen, Rect { x, y, width: wide, height: high }, (width, height), out)
    }
}

/// Scales the box `rect` of what is `seen` of the image. The one place that calls a kernel, with an algorithm that the compiler knows: each kernel
/// exists once a type, and only those of this algorithm.
fn scale<P: PixelTrait>(
    resizer: &mut Resizer,
    from: &Pixels<'_>,
    seen: [u32; 4],
    rect: Rect,
    (width, height): (u32, u32),
    out: &mut [u8],
) -> Result<()> {
    let source = TypedImageRef::<P>::from_buffer(from.width, from.height, from.bytes).map_err(unfit)?;
    let [left, top, seen_width, seen_height] = seen;
    let source = TypedCroppedImage::new(source, left, top, seen_width, seen_height).map_err(unfit)?;
    let mut target = TypedImage::<P>::from_buffer(width, height, out).map_err(unfit)?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
        rect.x,
        rect.y,
        rect.width,
        rect.height,
    );
    resizer.resize_typed(&source, &mut target, &options).map_err(unfit)
}

fn unfit(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::corrupt_by(Place::default(), "image cannot be resized", error)
}
