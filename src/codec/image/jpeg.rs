//! The part of a JPEG to decode: the rectangle and the scale. The rest is up to the built-in decoder (`turbo` or
//! `zune`).
//!
//! Entropy decoding is most of the cost and cannot be skipped above the crop; below it nothing is decoded, and beside
//! it no colours are converted or transformed. See the figures in `benches/images.rs`.

use super::crop::Rect;
use super::probe::Jpeg;
use crate::error::{Error, Place, Result};

pub(super) fn failed(what: impl Into<String>) -> Error {
    Error::corrupt(Place::default(), format!("JPEG: {}", what.into()))
}

#[cfg(not(feature = "turbo"))]
pub(super) fn failed_by(what: &str, error: impl Into<crate::error::Source>) -> Error {
    Error::corrupt_by(Place::default(), format!("JPEG: {what}"), error)
}

/// The request: this rectangle of the stored image, in this many pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Want {
    pub(super) rect: Rect,
    /// Set if no pixel outside of the rectangle may count.
    pub(super) sealed: bool,
    pub(super) width: u32,
    pub(super) height: u32,
}

/// A decoder's output: a rectangle of whole pixels of the image at 1 / `denominator` of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) denominator: u32,
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Part {
    /// All of an image.
    pub(super) fn whole(width: u32, height: u32) -> Self {
        Self { denominator: 1, left: 0, top: 0, width, height }
    }

    pub(super) fn pixels(&self) -> usize {
        (self.width as usize).saturating_mul(self.height as usize)
    }

    /// The requested rectangle in pixels of this part.
    pub(super) fn local(&self, rect: &Rect) -> Rect {
        let scale = f64::from(self.denominator);
        Rect {
            x: rect.x / scale - f64::from(self.left),
            y: rect.y / scale - f64::from(self.top),
            width: rect.width / scale,
            height: rect.height / scale,
        }
    }

    /// Returns true if this part is the request, pixel for pixel.
    pub(super) fn is(&self, want: &Want) -> bool {
        let (width, height) = (f64::from(self.width), f64::from(self.height));
        (self.width, self.height) == (want.width, want.height)
            && self.local(&want.rect) == Rect { x: 0.0, y: 0.0, width, height }
    }
}

/// The part to decode of an image of `size` (width, height). `block_width`: pixels between the columns where a crop may
/// start, `None` if the decoder does not crop; `scales`: true if it may decode at 1/2, 1/4, 1/8.
pub(super) fn plan(size: (u32, u32), want: &Want, block_width: Option<u32>, scales: bool) -> Part {
    let enough = |denominator: &u32| {
        let scale = f64::from(*denominator);
        want.rect.width / scale >= f64::from(want.width) && want.rect.height / scale >= f64::from(want.height)
    };
    // Other eighths exist, but have no fast inverse transform: they are slower than a full decode.
    let denominator = [8, 4, 2].into_iter().find(|d| scales && enough(d)).unwrap_or(1);
    let whole = Part { denominator, ..Part::whole(size.0.div_ceil(denominator), size.1.div_ceil(denominator)) };
    let Some(block_width) = block_width else { return whole };
    let local = whole.local(&want.rect);
    // One pixel, because colours are interpolated differently at the edge of a cropped decode; and the reach of the
    // filter beyond the box.
    let margin = |from: f64, to: u32| if want.sealed { 1.0 } else { 1.0 + (from / f64::from(to)).max(1.0).ceil() };
    let range = |start: f64, len: f64, margin: f64, size: u32| {
        let first = (start - margin).floor().clamp(0.0, f64::from(size - 1)) as u32;
        let end = (start + len + margin).ceil().clamp(f64::from(first + 1), f64::from(size)) as u32;
        (first, end)
    };
    let (left, right) = range(local.x, local.width, margin(local.width, want.width), whole.width);
    let (top, bottom) = range(local.y, local.height, margin(local.height, want.height), whole.height);
    let left = left - left % (block_width / denominator).max(1);
    Part { denominator, left, top, width: right - left, height: bottom - top }
}

/// Refuses a JPEG that ends before its end marker, wherever the crop lies: libjpeg would fill up with grey.
pub(super) fn check_complete(bytes: &[u8], jpeg: &Jpeg) -> Result<()> {
    // In entropy-coded data 0xff is always followed by 0 or a restart marker, so this is not pixel data; the end is
    // near, if there is one.
    let data = jpeg.scan.and_then(|scan| bytes.get(scan..)).unwrap_or_default();
    if data.windows(2).rev().any(|pair| pair == [0xff, 0xd9]) {
        return Ok(());
    }
    Err(failed(format!("truncated: no end marker in {} bytes", bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(x: f64, y: f64, w: f64, h: f64, out: u32) -> Want {
        Want { rect: Rect { x, y, width: w, height: h }, sealed: true, width: out, height: out }
    }

    #[test]
    fn scale_never_goes_below_the_output() {
        for (side, denominator) in [(223.0, 1), (447.0, 1), (448.0, 2), (895.0, 2), (896.0, 4), (1792.0, 8), (1e4, 8)] {
            let part = plan((20_000, 20_000), &want(0.0, 0.0, side, side, 224), Some(16), true);
            assert_eq!(part.denominator, denominator, "{side}");
            assert_eq!(plan((20_000, 20_000), &want(0.0, 0.0, side, side, 224), Some(16), false).denominator, 1);
        }
        // The narrower side decides.
        assert_eq!(plan((9000, 9000), &want(0.0, 0.0, 8000.0, 300.0, 224), Some(8), true).denominator, 1);
    }

    #[test]
    fn parts_hold_the_box_its_margin_and_start_at_a_block() {
        for block in [8, 16, 32] {
            for (x, y, w, h) in [
                (0.0, 0.0, 10.0, 10.0),
                (37.0, 41.0, 300.0, 120.0),
                (490.0, 370.0, 10.0, 5.0),
                (0.0, 0.0, 500.0, 375.0),
            ] {
                for scales in [false, true] {
                    let want = want(x, y, w, h, 16);
                    let part = plan((500, 375), &want, Some(block), scales);
                    let local = part.local(&want.rect);
                    assert_eq!(part.left % (block / part.denominator), 0);
                    assert!(local.x >= 1.0 || part.left == 0, "{part:?} {local:?}");
                    assert!(local.y >= 1.0 || part.top == 0);
                    assert!(local.x >= 0.0 && local.y >= 0.0);
                    let whole = (500_u32.div_ceil(part.denominator), 375_u32.div_ceil(part.denominator));
                    let (right, bottom) = (part.left + part.width, part.top + part.height);
                    assert!(right <= whole.0 && bottom <= whole.1, "{part:?}");
                    assert!(local.x + local.width + 1.0 <= f64::from(part.width) || right == whole.0);
                    assert!(local.y + local.height + 1.0 <= f64::from(part.height) || bottom == whole.1);
                }
            }
        }
        assert_eq!(plan((500, 375), &want(9.0, 9.0, 9.0, 9.0, 9), None, false), Part::whole(500, 375));
    }

    #[test]
    fn an_end_marker_in_the_header_does_not_count() {
        let jpeg = Jpeg { scan: Some(4), progressive: false, plain: false };
        assert!(check_complete(&[0xff, 0xd9, 0, 0, 1, 0xff, 0xd9, 7], &jpeg).is_ok());
        assert!(check_complete(&[0xff, 0xd9, 0, 0, 1, 0xff], &jpeg).is_err());
        assert!(check_complete(&[0xff, 0xd9], &Jpeg { scan: None, progressive: false, plain: false }).is_err());
    }
}
