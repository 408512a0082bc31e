//! JPEG by zune-jpeg (without feature `turbo`): pure Rust, needs no tools to build. Always decodes the whole image at full size.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::colour;
use super::jpeg::{Part, failed, failed_by};
use super::options::Limits;
use crate::error::Result;

/// For `doctor` and `bench`.
pub(super) const NAME: &str = "zune-jpeg 0.5 (pure Rust; decodes the whole image)";

/// A JPEG whose header has been read.
pub(super) struct Decoder<'a> {
    jpeg: &'a [u8],
    options: DecoderOptions,
    size: (u32, u32),
    input: ColorSpace,
}

impl<'a> Decoder<'a> {
    /// Reads the header.
    pub(super) fn open(jpeg: &'a [u8], limits: &Limits, _fill: bool) -> Result<Self> {
        let options = DecoderOptions::default()
            .set_max_width(limits.max_side as usize)
            .set_max_height(limits.max_side as usize)
            .jpeg_set_max_scans(limits.max_scans as usize)
            .set_strict_mode(true);
        let read = |options: DecoderOptions| {
            let mut decoder = JpegDecoder::new_with_options(ZCursor::new(jpeg), options);
            decoder.decode_headers().map_err(|e| failed_by("header", e))?;
            let (Some((width, height)), Some(input)) = (decoder.dimensions(), decoder.input_colorspace()) else {
                return Err(failed("no picture between the header and the end"));
            };
            let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
            Ok(Self { jpeg, options, size: (side(width), side(height)), input })
        };
        // Strict mode also refuses stray bytes between segments, which lose no pixel.
        read(options).or_else(|_| read(options.set_strict_mode(false)))
    }

    pub(super) fn size(&self) -> (u32, u32) {
        self.size
    }

    pub(super) fn block_width(&self) -> Option<u32> {
        None
    }

    pub(super) fn scales(&self) -> bool {
        false
    }

    /// Decodes `part`, which is the whole image, to `out`, which has `channels` (1, 3 or 4) bytes for each of its pixels.
    pub(super) fn decode(self, part: &Part, channels: usize, out: &mut [u8]) -> Result<()> {
        let run = |space: ColorSpace, out: &mut [u8]| {
            let options = self.options.jpeg_set_out_colorspace(space);
            let mut decoder = JpegDecoder::new_with_options(ZCursor::new(self.jpeg), options);
            decoder.decode_headers().map_err(|e| failed_by("header", e))?;
            if decoder.output_buffer_size() != Some(out.len()) {
                return Err(failed(format!("{} bytes do not hold {part:?}", out.len())));
            }
            decoder.decode_into(out).map_err(|e| failed_by("damaged", e))
        };
        match (channels, self.input) {
            (1, ColorSpace::Luma | ColorSpace::YCbCr) => run(ColorSpace::Luma, out),
            (3, _) => run(ColorSpace::RGB, out),
            _ => {
                let mut colours = vec![0; part.pixels().saturating_mul(3)];
                run(ColorSpace::RGB, &mut colours)?;
                colour::colours(&colours, channels, out);
                Ok(())
            }
        }
    }
}
