//! Encoded images to their rows of a batch: decode, crop, resize, flip, normalise, straight into place.
//!
//! ```text
//!   bytes ── probe ── limits ── crop ── plan ── decode ── resize ── write ── row of the batch
//!            header   refuse    a box   what of  u8, only   SIMD     flip, scale,
//!            only     bombs     drawn   it all   that part           type, layout
//! ```
//! | file | content |
//! |---|---|
//! | `options` | the options, and their check |
//! | `probe`, `exif` | the data in an image's header |
//! | `extras` | transparency and frames, which encoding again may lose |
//! | `crop` | the crop box: a pure function of size and one random number |
//! | `jpeg`, `turbo`, `zune` | the part of a JPEG to decode; by libjpeg-turbo, or in pure Rust |
//! | `raster`, `colour` | PNG, WebP, GIF, BMP; channels and bits |
//! | `scale` | pixels at another size |
//! | `normalise`, `simd` | pixels to values in place |
//! | `scratch` | the memory of a thread for decoding |
//! | `deferred` | photos to be decoded by a device: their bytes, and the requested part |
//! | `preview` | an image of a batch as a small PNG, for display |
//! | `stored` | images that are arrays: delivered pixel for pixel, as stored |
//!
//! Resizing is bilinear with antialiasing, as in Pillow and torchvision. A damaged image is an error, never a picture
//! with grey in it.

mod colour;
mod crop;
mod deferred;
mod exif;
#[cfg(feature = "convert")]
mod extras;
mod jpeg;
mod normalise;
mod options;
mod preview;
mod probe;
mod raster;
mod scale;
mod scratch;
mod simd;
mod stored;
#[cfg(feature = "turbo")]
mod turbo;
#[cfg(not(feature = "turbo"))]
mod zune;

use fast_image_resize::Resizer;
#[cfg(feature = "turbo")]
use turbo as backend;
#[cfg(not(feature = "turbo"))]
use zune as backend;

pub use deferred::{Deferred, Held, Stored};
pub use exif::Orientation;
#[cfg(feature = "convert")]
pub(crate) use extras::extras;
pub use options::{Crop, Decoder, ImageOptions, Layout, Limits, Normalize, Size, Truncated};
pub use preview::preview;
pub use probe::{Format, Info, probe};
pub use stored::StoredImage;

use crate::codec::Decode;
use crate::error::{Error, Result};
use crate::schema::DType;
use crop::Rect;
use jpeg::{Part, Want};
use scale::Pixels;
use scratch::{Scratch, grow, with_scratch};

/// Name of the built-in JPEG decoder, for display.
pub fn backend() -> &'static str {
    backend::NAME
}

/// Decodes images of any supported format to tensors of one shape.
///
/// ```
/// use bowstring::codec::Decode;
/// use bowstring::codec::image::{ImageDecoder, ImageOptions, Layout};
///
/// let options = ImageOptions { size: Some(1.into()), layout: Layout::Hwc, ..ImageOptions::default() };
/// let decoder = ImageDecoder::new(&options)?;
/// assert_eq!(decoder.shape(), [1, 1, 3]);
/// let bmp = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x03\0";
/// let mut row = [0; 3];
/// decoder.decode_into(bmp, 0, &mut row)?;
/// assert_eq!(row, [3, 2, 1]);
/// # Ok::<(), bowstring::Error>(())
/// ```
#[derive(Debug)]
pub struct ImageDecoder {
    options: ImageOptions,
    size: Size,
    writer: normalise::Writer,
}

impl ImageDecoder {
    /// A decoder for these options.
    ///
    /// # Errors
    /// `Config` names an impossible option; `Limit` if the output itself exceeds `options.limits`.
    pub fn new(options: &ImageOptions) -> Result<Self> {
        let size = options.check()?;
        Ok(Self { options: options.clone(), size, writer: normalise::Writer::new(options) })
    }

    /// Shape of one row: `[channels, height, width]` or `[height, width, channels]`.
    pub fn shape(&self) -> Vec<usize> {
        let [channels, height, width] = [self.channels(), self.size.height as usize, self.size.width as usize];
        match self.options.layout {
            Layout::Chw => vec![channels, height, width],
            Layout::Hwc => vec![height, width, channels],
        }
    }

    /// Type of one value.
    pub fn dtype(&self) -> DType {
        self.options.dtype
    }

    fn channels(&self) -> usize {
        self.options.channels.into()
    }

    /// Reads the header of `cell` and draws the crop and flip.
    fn draw(&self, cell: &[u8], random: u64) -> Result<Drawn> {
        let (info, jpeg) = probe::header(cell)?;
        self.options.limits.check(info.width, info.height, cost(&info, jpeg.as_ref(), self.channels()))?;
        let orientation = if self.options.orient { info.orientation } else { Orientation::default() };
        let (width, height) = orientation.apply(info.width, info.height);
        let sample = crop::sample(&self.options, self.size, width, height, random)?;
        // From here to the last step everything is as stored: the turn is undone for the box and the output size.
        let rect = sample.rect.stored(orientation, info.width, info.height);
        Ok(Drawn { info, jpeg, rect, sealed: sample.sealed, turn: orientation.then_flip(sample.flip) })
    }

    /// Decodes the drawn part of `cell` to `row`.
    fn decode(&self, cell: &[u8], drawn: &Drawn, row: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let Drawn { info, jpeg, rect, sealed, turn } = *drawn;
        let channels = self.channels();
        let (width, height) = turn.apply(self.size.width, self.size.height);
        let want = Want { rect, sealed, width, height };

        let source = match jpeg {
            Some(jpeg) => {
                let fill = self.options.truncated == Truncated::Fill;
                if !fill {
                    jpeg::check_complete(cell, &jpeg)?;
                }
                Source::Jpeg(backend::Decoder::open(cell, &self.options.limits, fill)?)
            }
            None => Source::Raster(cell),
        };
        let part = source.plan(&info, &want, self.options.draft)?;
        let (exact, plain) = (part.is(&want), self.writer.is_plain() && !turn.transpose && !turn.flip_y);
        let Scratch { decoded, raw, resized, turned, resizer } = scratch;
        let limits = &self.options.limits;
        if exact && plain {
            source.decode(&part, &info, limits, channels, raw, row)?;
        } else {
            let decoded = grow(decoded, part.pixels() * channels);
            source.decode(&part, &info, limits, channels, raw, decoded)?;
            if plain {
                resize(resizer, decoded, &part, &want, channels, row)?;
            } else {
                let pixels = if exact {
                    decoded
                } else {
                    let resized = grow(resized, width as usize * height as usize * channels);
                    resize(resizer, decoded, &part, &want, channels, resized)?;
                    resized
                };
                let seen_width = self.size.width as usize;
                if turn.transpose || turn.flip_y {
                    let turned = grow(turned, pixels.len());
                    rotate(pixels, width as usize, channels, turn, turned);
                    self.writer.write(turned, seen_width, false, row);
                } else {
                    self.writer.write(pixels, seen_width, turn.flip_x, row);
                }
                return Ok(());
            }
        }
        if turn.flip_x {
            normalise::mirror(row, width as usize, channels);
        }
        Ok(())
    }
}

impl Decode for ImageDecoder {
    fn decode_into(&self, cell: &[u8], random: u64, row: &mut [u8]) -> Result<()> {
        let bytes = self.shape().iter().product::<usize>() * self.dtype().size();
        if row.len() != bytes {
            return Err(Error::Mismatch {
                what: format!("bytes of a row of images {:?} of {}", self.shape(), self.dtype()),
                expected: bytes.to_string(),
                found: row.len().to_string(),
                hint: String::new(),
            });
        }
        with_scratch(|scratch| self.decode(cell, &self.draw(cell, random)?, row, scratch))
    }
}

/// The plan for one image, before any of it is decoded.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    info: Info,
    jpeg: Option<probe::Jpeg>,
    /// The box, in the image as stored.
    rect: Rect,
    sealed: bool,
    /// Transform of the box once resized.
    turn: Orientation,
}

/// Maximum bytes that decoding takes for each pixel: the output, the stored pixel, and for JPEG in several scans all
/// its coefficients.
fn cost(info: &Info, jpeg: Option<&probe::Jpeg>, channels: usize) -> u64 {
    let stored = match jpeg {
        Some(jpeg) if jpeg.progressive => 2 * u64::from(info.channels),
        Some(_) => u64::from(info.channels == 4) * 4,
        None => u64::from(info.channels) * u64::from(info.bits.div_ceil(8)),
    };
    channels as u64 + stored
}

/// An opened JPEG, or the bytes of another image.
enum Source<'a> {
    Jpeg(backend::Decoder<'a>),
    Raster(&'a [u8]),
}

impl Source<'_> {
    fn plan(&self, info: &Info, want: &Want, draft: bool) -> Result<Part> {
        let Self::Jpeg(decoder) = self else { return Ok(Part::whole(info.width, info.height)) };
        if decoder.size() != (info.width, info.height) {
            return Err(jpeg::failed("two headers that differ"));
        }
        Ok(jpeg::plan(decoder.size(), want, decoder.block_width(), draft && decoder.scales()))
    }

    fn decode(
        self,
        part: &Part,
        info: &Info,
        limits: &Limits,
        channels: usize,
        raw: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<()> {
        match self {
            Self::Jpeg(decoder) => decoder.decode(part, channels, out),
            Self::Raster(bytes) => raster::decode(bytes, info, limits, channels, raw, out),
        }
    }
}

/// Resizes the requested box of `part`, whose pixels are given, to `out`: bilinear, with antialiasing.
fn resize(
    resizer: &mut Resizer,
    bytes: &[u8],
    part: &Part,
    want: &Want,
    channels: usize,
    out: &mut [u8],
) -> Result<()> {
    let pixels = Pixels { bytes, width: part.width, height: part.height, channels };
    pixels.scale(resizer, part.local(&want.rect), want.sealed, (want.width, want.height), out)
}

/// Writes `pixels` (as stored, rows of `width`), turned according to the orientation, to `out`.
fn rotate(pixels: &[u8], width: usize, channels: usize, turn: Orientation, out: &mut [u8]) {
    let height = pixels.len() / (width * channels);
    let seen_width = if turn.transpose { height } else { width };
    for (y, line) in out.chunks_exact_mut(seen_width * channels).enumerate() {
        for (x, pixel) in line.chunks_exact_mut(channels).enumerate() {
            let (mut from_x, mut from_y) = if turn.transpose { (y, x) } else { (x, y) };
            if turn.flip_x {
                from_x = width - 1 - from_x;
            }
            if turn.flip_y {
                from_y = height - 1 - from_y;
            }
            pixel.copy_from_slice(&pixels[(from_y * width + from_x) * channels..][..channels]);
        }
    }
}
