//! One image of a batch as a small PNG, for viewing.

use fast_image_resize::Resizer;
use half::{bf16, f16};
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use super::crop::Rect;
use super::options::{ImageOptions, Layout, Size};
use super::scale::Pixels;
use crate::error::{Error, Place, Result};
use crate::schema::DType;

/// A PNG of `row`, one image of `size` pixels as a loader with `options` delivers it: `[C, H, W]` or `[H, W, C]`. No
/// side has more than `side` pixels: a larger image is scaled down. Floats are mapped back to 0..=255, the inverse of
/// `options.normalize`.
///
/// # Errors
/// [`Error::Mismatch`] if `row` is not such an image; [`Error::Unsupported`] for an element type that images do not
/// have.
pub fn preview(row: &[u8], options: &ImageOptions, size: Size, side: u32) -> Result<Vec<u8>> {
    let colour = match options.channels {
        1 => ExtendedColorType::L8,
        3 => ExtendedColorType::Rgb8,
        4 => ExtendedColorType::Rgba8,
        other => return Err(Error::config("images", format!("{other} channels; an image has 1, 3 or 4"))),
    };
    let pixels = bytes(row, options, size)?;
    let (width, height) = within(size, side.max(1));
    let scaled = if (width, height) == (size.width, size.height) {
        pixels
    } else {
        let channels = usize::from(options.channels);
        let source = Pixels { bytes: &pixels, width: size.width, height: size.height, channels };
        let whole = Rect { x: 0.0, y: 0.0, width: f64::from(size.width), height: f64::from(size.height) };
        let mut scaled = vec![0; width as usize * height as usize * channels];
        source.scale(&mut Resizer::new(), whole, false, (width, height), &mut scaled)?;
        scaled
    };
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&scaled, width, height, colour).map_err(unfit)?;
    Ok(png)
}

/// The values of `row` as bytes, pixel after pixel.
fn bytes(row: &[u8], options: &ImageOptions, size: Size) -> Result<Vec<u8>> {
    let (step, channels) = (options.dtype.size(), usize::from(options.channels));
    let pixels = (size.height as usize).checked_mul(size.width as usize);
    let expected = pixels.and_then(|pixels| pixels.checked_mul(channels)).and_then(|values| values.checked_mul(step));
    let Some(pixels) = pixels.filter(|pixels| *pixels > 0 && expected == Some(row.len())) else {
        return Err(Error::Mismatch {
            what: format!(
                "bytes of an image of {}x{} pixels of {} {}",
                size.height, size.width, channels, options.dtype
            ),
            expected: expected.map_or_else(|| "too many".to_owned(), |bytes| bytes.to_string()),
            found: row.len().to_string(),
            hint: String::new(),
        });
    };
    let of_channel = |values: &[f32], channel: usize| values.get(channel).or(values.first()).copied();
    let back: Vec<(f32, f32)> = (0..channels)
        .map(|channel| {
            let normalize = options.normalize.as_ref();
            let mean = normalize.and_then(|normalize| of_channel(&normalize.mean, channel));
            let std = normalize.and_then(|normalize| of_channel(&normalize.std, channel));
            (mean.unwrap_or(0.0), std.unwrap_or(1.0))
        })
        .collect();
    let value = number(options.dtype)?;
    let mut out = Vec::with_capacity(pixels * channels);
    for pixel in 0..pixels {
        for (channel, (mean, std)) in back.iter().enumerate() {
            let at = match options.layout {
                Layout::Chw => channel * pixels + pixel,
                Layout::Hwc => pixel * channels + channel,
            };
            let cell = &row[at * step..(at + 1) * step];
            out.push(match value {
                Some(value) => ((value(cell) * std + mean) * 255.0).round() as u8,
                None => cell[0],
            });
        }
    }
    Ok(out)
}

/// Reads the bytes of one value.
type Read = fn(&[u8]) -> f32;

/// The reader of one value of a float type; `None` for bytes.
fn number(dtype: DType) -> Result<Option<Read>> {
    Ok(match dtype {
        DType::Uint8 => None,
        DType::Float16 => Some(|cell| f16::from_le_bytes([cell[0], cell[1]]).to_f32()),
        DType::Bfloat16 => Some(|cell| bf16::from_le_bytes([cell[0], cell[1]]).to_f32()),
        DType::Float32 => Some(|cell| f32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]])),
        other => {
            let hint = "images are uint8, float16, bfloat16 or float32".to_owned();
            return Err(Error::unsupported(format!("a picture of {other}"), hint));
        }
    })
}

/// Width and height of an image of `size` in a square of `side`.
fn within(size: Size, side: u32) -> (u32, u32) {
    let longer = size.width.max(size.height);
    if longer <= side {
        return (size.width, size.height);
    }
    let scaled = |pixels: u32| (u64::from(pixels) * u64::from(side) / u64::from(longer)).max(1) as u32;
    (scaled(size.width), scaled(size.height))
}

fn unfit(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::corrupt_by(Place::default(), "image cannot be shown", error)
}

#[cfg(test)]
mod tests {
    use super::super::Normalize;
    use super::*;

    fn pixels(png: &[u8]) -> (u32, u32, Vec<u8>) {
        let image = image::load_from_memory_with_format(png, image::ImageFormat::Png).unwrap();
        (image.width(), image.height(), image.into_bytes())
    }

    #[test]
    fn a_preview_has_the_pixels_of_every_layout_and_type() {
        // Two rows of three pixels: red, green, blue, and their halves.
        let hwc = [255, 0, 0, 0, 255, 0, 0, 0, 255, 128, 0, 0, 0, 128, 0, 0, 0, 128_u8];
        let size = Size { height: 2, width: 3 };
        let chw: Vec<u8> = (0..18).map(|at| hwc[at % 6 * 3 + at / 6]).collect();
        let options = |layout, dtype| ImageOptions { layout, dtype, ..ImageOptions::default() };
        let bytes = options(Layout::Hwc, DType::Uint8);
        assert_eq!(pixels(&preview(&hwc, &bytes, size, 96).unwrap()), (3, 2, hwc.to_vec()));
        let planes = options(Layout::Chw, DType::Uint8);
        assert_eq!(pixels(&preview(&chw, &planes, size, 96).unwrap()), (3, 2, hwc.to_vec()));
        let normalize = Normalize::imagenet();
        let normal: Vec<f32> =
            (0..18).map(|at| (f32::from(chw[at]) / 255.0 - normalize.mean[at / 6]) / normalize.std[at / 6]).collect();
        let singles = ImageOptions { normalize: Some(normalize.clone()), ..options(Layout::Chw, DType::Float32) };
        let row: Vec<u8> = normal.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(pixels(&preview(&row, &singles, size, 96).unwrap()).2, hwc);
        let halves = ImageOptions { normalize: Some(normalize), ..options(Layout::Chw, DType::Float16) };
        let row: Vec<u8> = normal.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        let found = pixels(&preview(&row, &halves, size, 96).unwrap()).2;
        assert!(found.iter().zip(hwc).all(|(found, pixel)| found.abs_diff(pixel) <= 1), "{found:?}");
    }

    #[test]
    fn a_preview_is_bounded_and_keeps_the_aspect() {
        let options = ImageOptions { channels: 1, layout: Layout::Hwc, ..ImageOptions::default() };
        let size = Size { height: 400, width: 1000 };
        let (width, height, grey) = pixels(&preview(&vec![7; 400_000], &options, size, 100).unwrap());
        assert_eq!((width, height), (100, 40));
        assert!(grey.iter().all(|value| *value == 7));
        let line = Size { height: 1, width: 4000 };
        assert_eq!(within(line, 96), (96, 1));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let options = ImageOptions::default();
        let size = Size { height: 2, width: 2 };
        assert!(matches!(preview(&[0; 11], &options, size, 96), Err(Error::Mismatch { .. })));
        let endless = Size { height: u32::MAX, width: u32::MAX };
        assert!(matches!(preview(&[], &options, endless, 96), Err(Error::Mismatch { .. })));
        assert!(matches!(preview(&[], &options, Size { height: 0, width: 9 }, 96), Err(Error::Mismatch { .. })));
        let wide = ImageOptions { dtype: DType::Int64, ..ImageOptions::default() };
        assert!(matches!(preview(&[0; 96], &wide, size, 96), Err(Error::Unsupported { .. })));
        let many = ImageOptions { channels: 7, ..ImageOptions::default() };
        assert!(matches!(preview(&[0; 28], &many, size, 96), Err(Error::Config { .. })));
    }
}
