//! The crop rectangle of an image and its flip: a pure function of the options, the size and one number.
//!
//! Only additions, multiplications, divisions and square roots of IEEE 754 are used, so every machine draws the same
//! boxes.

use super::exif::Orientation;
use super::options::{Crop, ImageOptions, Size};
use crate::error::{Error, Result};

/// A rectangle in pixels of some image; may lie between pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    /// Maps this rectangle of the image as displayed to the image as stored (`width` x `height`).
    pub(super) fn stored(self, orientation: Orientation, width: u32, height: u32) -> Self {
        let mut rect = self;
        if orientation.transpose {
            rect = Self { x: self.y, y: self.x, width: self.height, height: self.width };
        }
        if orientation.flip_x {
            rect.x = f64::from(width) - rect.x - rect.width;
        }
        if orientation.flip_y {
            rect.y = f64::from(height) - rect.y - rect.height;
        }
        rect
    }
}

/// The result of one draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// In pixels of the image as displayed.
    pub(super) rect: Rect,
    /// Set if the crop comes before the resize, which then sees no pixel outside of it. Otherwise the resize comes
    /// first and sees the whole image.
    pub(super) sealed: bool,
    /// Set if the output is flipped horizontally.
    pub(super) flip: bool,
}

/// Draws for an image of `width` x `height` pixels (as displayed).
///
/// # Errors
/// `Mismatch` if the image may not be resized and does not fit.
pub(super) fn sample(options: &ImageOptions, size: Size, width: u32, height: u32, random: u64) -> Result<Sample> {
    let (w, h) = (f64::from(width), f64::from(height));
    let whole = Rect { x: 0.0, y: 0.0, width: w, height: h };
    let (out_w, out_h) = (f64::from(size.width), f64::from(size.height));
    // Flips have their own stream, so that they do not depend on the number of tries of a crop.
    let flip = options.flip > 0.0 && Rng::new(random ^ FLIP_STREAM).unit() < options.flip;
    let fits = match options.crop {
        Crop::None => (width, height) == (size.width, size.height),
        _ => width >= size.width && height >= size.height,
    };
    if !options.resize && !fits {
        return Err(Error::Mismatch {
            what: "size of the image against option size".to_owned(),
            expected: format!("{} x {} pixels", size.width, size.height),
            found: format!("{width} x {height}"),
            hint: "set size (and resize to true) to bring all images to one size".to_owned(),
        });
    }
    let (rect, sealed) = match options.crop {
        Crop::None => (whole, false),
        Crop::RandomResized { scale, ratio } => {
            let [x, y, width, height] =
                random_resized(width, height, scale, ratio, &mut Rng::new(random)).map(f64::from);
            (Rect { x, y, width, height }, true)
        }
        Crop::Center => match (options.resize, options.resize_shorter) {
            (false, _) => {
                let (x, y) = (middle(width, size.width), middle(height, size.height));
                (Rect { x, y, width: out_w, height: out_h }, true)
            }
            (true, Some(shorter)) => {
                let (resized_w, resized_h) = shorter_to(width, height, shorter);
                let (scale_x, scale_y) = (w / f64::from(resized_w), h / f64::from(resized_h));
                let (x, y) = (middle(resized_w, size.width), middle(resized_h, size.height));
                (Rect { x: x * scale_x, y: y * scale_y, width: out_w * scale_x, height: out_h * scale_y }, false)
            }
            (true, None) => {
                let (box_w, box_h) =
                    if w * out_h > h * out_w { (h * out_w / out_h, h) } else { (w, w * out_h / out_w) };
                (Rect { x: (w - box_w) / 2.0, y: (h - box_h) / 2.0, width: box_w, height: box_h }, false)
            }
        },
    };
    Ok(Sample { rect, sealed, flip })
}

/// torchvision's `center_crop` offset: `int(round((outer - inner) / 2))`, half to even.
fn middle(outer: u32, inner: u32) -> f64 {
    (f64::from(outer.saturating_sub(inner)) / 2.0).round_ties_even()
}

/// torchvision's `Resize(shorter)`: the longer side is rounded down.
fn shorter_to(width: u32, height: u32, shorter: u32) -> (u32, u32) {
    let long = |long: u32, short: u32| {
        u32::try_from(u64::from(shorter) * u64::from(long) / u64::from(short.max(1))).unwrap_or(u32::MAX)
    };
    if width <= height { (shorter, long(height, width)) } else { (long(width, height), shorter) }
}

/// torchvision's `RandomResizedCrop.get_params`: ten tries, then the largest centred box within the ratio. Returns x,
/// y, width, height.
fn random_resized(width: u32, height: u32, scale: [f64; 2], ratio: [f64; 2], rng: &mut Rng) -> [u32; 4] {
    let (w, h) = (f64::from(width), f64::from(height));
    let log_span = ln(ratio[1] / ratio[0]);
    for _ in 0..10 {
        let area = w * h * (scale[0] + (scale[1] - scale[0]) * rng.unit());
        let aspect = ratio[0] * exp(log_span * rng.unit());
        let (box_w, box_h) = ((area * aspect).sqrt().round_ties_even(), (area / aspect).sqrt().round_ties_even());
        if 0.0 < box_w && box_w <= w && 0.0 < box_h && box_h <= h {
            let (box_w, box_h) = (box_w as u32, box_h as u32);
            let y = rng.below(height - box_h + 1);
            let x = rng.below(width - box_w + 1);
            return [x, y, box_w, box_h];
        }
    }
    let (box_w, box_h) = if w / h < ratio[0] {
        (width, ((w / ratio[0]).round_ties_even() as u32).clamp(1, height))
    } else if w / h > ratio[1] {
        (((h * ratio[1]).round_ties_even() as u32).clamp(1, width), height)
    } else {
        (width, height)
    };
    [(width - box_w) / 2, (height - box_h) / 2, box_w, box_h]
}

const FLIP_STREAM: u64 = 0xf11b_0000_5eed_f11b;

/// SplitMix64: small, and good enough to place boxes.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1, 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n; the bias is below n / 2^64.
    fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}

/// e to the power of `x`, |x| < 20, from IEEE operations only: a libm may differ in the last bit from one machine to
/// the next.
fn exp(x: f64) -> f64 {
    let r = x / 256.0;
    let (mut sum, mut term) = (1.0, 1.0);
    for n in 1..=10 {
        term *= r / f64::from(n);
        sum += term;
    }
    for _ in 0..8 {
        sum *= sum;
    }
    sum
}

/// The natural logarithm of `x`, 1 <= x <= 10^6, by Halley's steps on [`exp`].
fn ln(x: f64) -> f64 {
    let mut y = 0.0;
    for _ in 0..20 {
        let e = exp(y);
        y += 2.0 * (x - e) / (x + e);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(crop: Crop, size: Size) -> ImageOptions {
        ImageOptions { size: Some(size), crop, ..ImageOptions::default() }
    }

    #[test]
    fn own_exp_and_ln_are_good() {
        for x in [1.0, 1.2, 16.0 / 9.0, 4.0, 100.0, 1e6] {
            assert!((ln(x) - x.ln()).abs() < 1e-12, "{x}");
            assert!((exp(x.ln()) / x - 1.0).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn centre_crops_are_torchvisions() {
        let mut options = options(Crop::Center, Size::from(224));
        options.resize_shorter = Some(256);
        // Resize(256) of 500 x 375 gives 341 x 256; CenterCrop(224) then takes x 58 (58.5, half to even), y 16.
        let sample = sample(&options, 224.into(), 500, 375, 0).unwrap();
        let (sx, sy) = (500.0 / 341.0, 375.0 / 256.0);
        assert_eq!(sample.rect, Rect { x: 58.0 * sx, y: 16.0 * sy, width: 224.0 * sx, height: 224.0 * sy });
        options.resize_shorter = None;
        let sample = super::sample(&options, 224.into(), 500, 300, 0).unwrap();
        assert_eq!(sample.rect, Rect { x: 100.0, y: 0.0, width: 300.0, height: 300.0 });
        options.resize = false;
        let sample = super::sample(&options, 224.into(), 500, 301, 0).unwrap();
        assert_eq!(sample.rect, Rect { x: 138.0, y: 38.0, width: 224.0, height: 224.0 });
        assert!(super::sample(&options, 224.into(), 500, 223, 0).is_err());
    }

    #[test]
    fn random_boxes_keep_to_scale_and_ratio() {
        let (scale, ratio) = ([0.08, 1.0], [3.0 / 4.0, 4.0 / 3.0]);
        let (mut areas, mut logs, mut xs) = (Vec::new(), Vec::new(), Vec::new());
        for seed in 0..20_000 {
            let [x, y, w, h] = random_resized(500, 400, scale, ratio, &mut Rng::new(seed * 0x1234_5677));
            assert!(w > 0 && h > 0 && x + w <= 500 && y + h <= 400);
            let (area, aspect) = (f64::from(w * h) / 200_000.0, f64::from(w) / f64::from(h));
            assert!(area > 0.078 && area <= 1.0 && aspect > 0.735 && aspect < 1.36, "{area} {aspect}");
            areas.push(area);
            logs.push(aspect.ln());
            if w < 500 {
                xs.push(f64::from(x) / f64::from(500 - w));
            }
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        // Uniform area would have mean 0.54; boxes that do not fit are drawn again, which makes large ones rarer:
        // 0.4534 by torchvision's algorithm with Python's generator, 200,000 draws.
        assert!((mean(&areas) - 0.4534).abs() < 0.008, "{}", mean(&areas));
        assert!((mean(&logs) - 0.0280).abs() < 0.004, "{}", mean(&logs));
        assert!((mean(&xs) - 0.5).abs() < 0.01, "{}", mean(&xs));
    }

    #[test]
    fn an_image_too_long_falls_back_to_its_middle() {
        let draw = |w, h| random_resized(w, h, [1.0, 1.0], [3.0 / 4.0, 4.0 / 3.0], &mut Rng::new(1));
        assert_eq!(draw(1000, 90), [440, 0, 120, 90]);
        assert_eq!(draw(90, 1000), [0, 440, 90, 120]);
        assert_eq!(draw(1, 1), [0, 0, 1, 1]);
        assert_eq!(draw(65_500, 1), [32_749, 0, 1, 1]);
    }

    #[test]
    fn drawing_is_pinned() {
        // A change here changes every user's training data: it needs a line in the changelog.
        let draws: Vec<_> =
            (0..4).map(|seed| random_resized(500, 375, [0.08, 1.0], RATIO, &mut Rng::new(seed))).collect();
        assert_eq!(draws, PINNED);
        let options = ImageOptions { flip: 0.5, ..options(Crop::None, 8.into()) };
        let flips: Vec<_> =
            (0..16).map(|seed| u8::from(sample(&options, 8.into(), 9, 9, seed).unwrap().flip)).collect();
        assert_eq!(flips, PINNED_FLIPS);
        let mean = (0..10_000).filter(|seed| sample(&options, 8.into(), 9, 9, *seed).unwrap().flip).count();
        assert!((4_800..5_200).contains(&mean), "{mean}");
    }

    const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];
    const PINNED: [[u32; 4]; 4] = [[111, 27, 160, 122], [62, 61, 360, 313], [102, 34, 367, 318], [22, 122, 197, 176]];
    const PINNED_FLIPS: [u8; 16] = [0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 0, 0];

    #[test]
    fn rectangles_turn_with_the_image() {
        let rect = Rect { x: 1.0, y: 2.0, width: 3.0, height: 4.0 };
        // Stored 20 x 10, displayed 10 x 20 when transposed.
        let at = |value| {
            let r = rect.stored(Orientation::from_exif(value), 20, 10);
            [r.x, r.y, r.width, r.height]
        };
        assert_eq!(at(1), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(at(2), [16.0, 2.0, 3.0, 4.0]);
        assert_eq!(at(3), [16.0, 4.0, 3.0, 4.0]);
        assert_eq!(at(4), [1.0, 4.0, 3.0, 4.0]);
        assert_eq!(at(5), [2.0, 1.0, 4.0, 3.0]);
        assert_eq!(at(6), [2.0, 6.0, 4.0, 3.0]);
        assert_eq!(at(7), [14.0, 6.0, 4.0, 3.0]);
        assert_eq!(at(8), [14.0, 1.0, 4.0, 3.0]);
    }
}
