//! PNG, WebP, GIF and BMP by the `image` crate, always whole.

use std::io::Cursor;

use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, png::PngDecoder, webp::WebPDecoder};
use image::{ImageDecoder, ImageError, ImageResult};

use super::colour;
use super::options::Limits;
use super::probe::{Format, Info};
use super::scratch::grow;
use crate::error::{Error, Place, Result};

/// Decodes all of `bytes`, whose header gave `info`, to `out`, which has `channels` (1 to 4) bytes for each pixel. `raw` is scratch.
pub(super) fn decode(
    bytes: &[u8],
    info: &Info,
    limits: &Limits,
    channels: usize,
    raw: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<()> {
    let failed = |error| failed(info, limits, error);
    let decoder = open_checked(bytes, info, limits)?;
    let kind = decoder.color_type();
    let Some(stored) = colour::bytes_per_pixel(kind) else {
        let what = format!("{} with pixels of type {kind:?}", info.format.name());
        return Err(Error::unsupported(what, "store 8 or 16 bits"));
    };
    // The exact type: not more pixels than the limits allow, most of which the caller has checked.
    limits.check(info.width, info.height, (stored + channels) as u64)?;
    let len = usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX);
    let wanted = matches!(
        (kind, channels),
        (image::ColorType::L8, 1)
            | (image::ColorType::La8, 2)
            | (image::ColorType::Rgb8, 3)
            | (image::ColorType::Rgba8, 4)
    );
    if wanted && len == out.len() {
        return read(decoder, out).map_err(failed);
    }
    let raw = grow(raw, len);
    read(decoder, raw).map_err(failed)?;
    colour::samples(raw, kind, channels, out);
    Ok(())
}

/// Decodes all of `bytes` to `out`, 16 bits per value in native byte order, with the stored channels. 8-bit values keep
/// their numbers.
pub(super) fn decode_wide(bytes: &[u8], info: &Info, limits: &Limits, raw: &mut Vec<u8>, out: &mut [u8]) -> Result<()> {
    let failed = |error| failed(info, limits, error);
    let decoder = open_checked(bytes, info, limits)?;
    let kind = decoder.color_type();
    let len = usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX);
    let values = usize::from(kind.channel_count());
    let wide = kind.bytes_per_pixel() == kind.channel_count() * 2;
    if values != usize::from(info.channels) || len.saturating_mul(if wide { 1 } else { 2 }) != out.len() {
        let what = format!("{} with pixels of type {kind:?} where its header says otherwise", info.format.name());
        return Err(Error::corrupt(Place::default(), what));
    }
    if wide {
        return read(decoder, out).map_err(failed);
    }
    let raw = grow(raw, len);
    read(decoder, raw).map_err(failed)?;
    out.as_chunks_mut::<2>().0.iter_mut().zip(raw).for_each(|(to, from)| *to = u16::from(*from).to_ne_bytes());
    Ok(())
}

/// Decodes to `out`, which may hold another image. Decoders leave pixels out, as that of GIF does those whose colour is not in the
/// palette: they are zeros, not what was there.
fn read(decoder: Box<dyn ImageDecoder + '_>, out: &mut [u8]) -> ImageResult<()> {
    out.fill(0);
    decoder.read_image_boxed(out)
}

/// A decoder for an image of the size in its header.
fn open_checked<'a>(bytes: &'a [u8], info: &Info, limits: &Limits) -> Result<Box<dyn ImageDecoder + 'a>> {
    check_complete(bytes, info.format)?;
    let decoder = open(bytes, info.format, limits).map_err(|error| failed(info, limits, error))?;
    if decoder.dimensions() != (info.width, info.height) {
        let (width, height) = decoder.dimensions();
        let what = format!(
            "{}: {width} x {height} pixels, but {} x {} by its header",
            info.format.name(),
            info.width,
            info.height
        );
        return Err(Error::corrupt(Place::default(), what));
    }
    Ok(decoder)
}

/// Refuses a WebP shorter than its stated length: the decoder reads no further than the pixels, and the orientation
/// comes after them.
fn check_complete(bytes: &[u8], format: Format) -> Result<()> {
    let said = |size: &[u8; 4]| u64::from(u32::from_le_bytes(*size)) + 8;
    match bytes.get(4..).and_then(|rest| rest.first_chunk::<4>()).map(said) {
        Some(said) if format == Format::Webp && said > bytes.len() as u64 => {
            let what = format!("WebP: truncated: {} of {said} bytes", bytes.len());
            Err(Error::corrupt(Place::default(), what))
        }
        _ => Ok(()),
    }
}

fn open<'a>(bytes: &'a [u8], format: Format, limits: &Limits) -> ImageResult<Box<dyn ImageDecoder + 'a>> {
    let mut given = image::Limits::default();
    given.max_image_width = Some(limits.max_side);
    given.max_image_height = Some(limits.max_side);
    given.max_alloc = Some(limits.max_bytes);
    let input = Cursor::new(bytes);
    let mut decoder: Box<dyn ImageDecoder> = match format {
        Format::Png => Box::new(PngDecoder::with_limits(input, given.clone())?),
        Format::Webp => Box::new(WebPDecoder::new(input)?),
        Format::Gif => Box::new(GifDecoder::new(input)?),
        // JPEG has its own decoders.
        Format::Bmp | Format::Jpeg => Box::new(BmpDecoder::new(input)?),
    };
    decoder.set_limits(given)?;
    Ok(decoder)
}

fn failed(info: &Info, limits: &Limits, error: ImageError) -> Error {
    let name = info.format.name();
    match error {
        ImageError::Limits(_) => Error::limit(
            format!("decoding {name} of {} x {} pixels", info.width, info.height),
            limits.max_bytes.saturating_add(1),
            limits.max_bytes,
            "limits.max_bytes",
        ),
        ImageError::Unsupported(error) => {
            Error::unsupported(format!("this kind of {name} ({error})"), "store it as plain PNG or JPEG")
        }
        error => Error::corrupt_by(Place::default(), format!("{name}: damaged"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe;
    use super::*;

    /// A GIF of 2 x 2 pixels, colours 0, 1, 2 and 3 of a palette that has two.
    const BEYOND: &[u8] =
        b"GIF89a\x02\0\x02\0\x80\0\0\x0a\x14\x1e\x28\x32\x3c\x2c\0\0\0\0\x02\0\x02\0\0\x02\x03\x44\x34\x05\0\x3b";

    #[test]
    fn pixels_that_a_decoder_leaves_out_are_never_those_of_another_image() {
        let (info, _) = probe::header(BEYOND).unwrap();
        for channels in [1, 3, 4] {
            let decode = |before: u8| {
                let (mut raw, mut out) = (vec![before; 64], vec![before; 4 * channels]);
                decode(BEYOND, &info, &Limits::default(), channels, &mut raw, &mut out).unwrap();
                out
            };
            assert_eq!(decode(0), decode(77), "{channels} channels");
            assert_eq!(decode(200), decode(77), "{channels} channels");
        }
    }
}
