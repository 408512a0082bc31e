//! Scaling down of images: decoded, scaled, encoded again.
//!
//! A JPEG becomes a JPEG, any other image a PNG, unless a quality asks for JPEG; grey stays grey, and alpha stays, also that of a colour of
//! a palette, and so does the profile of the colours. An animation is refused: one frame of it would stay. EXIF orientation is
//! applied first, because the new file has none. Images that are small enough stay unchanged, byte for byte, unless a quality asks for
//! re-encoding.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use image::codecs::jpeg::{JpegDecoder, JpegEncoder};
use image::codecs::png::{PngDecoder, PngEncoder};
use image::codecs::webp::WebPDecoder;
use image::{ExtendedColorType, ImageDecoder as _, ImageEncoder};

use crate::codec::Decode;
use crate::codec::image::{Format, ImageDecoder, ImageOptions, Info, Layout, Size, extras, probe};
use crate::convert::errors::unexpected;
use crate::convert::options::ConvertOptions;
use crate::convert::types::is_binary;
use crate::convert::values::cells::as_type_at;
use crate::convert::values::sample::{IMAGE_KEY, NO_IMAGES, is_image};
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, DType, Element, STORED_KEY, Stored};

/// What to do with images that cannot be encoded again.
const HINT: &str = "name the columns to encode again with images, or leave such rows out";

/// Quality if only a size is given.
const QUALITY: u8 = 90;

/// Refuses to lose transparency.
fn transparent() -> Error {
    Error::unsupported("an image with transparency as JPEG", HINT)
}

/// The re-encoding of image columns.
#[derive(Debug)]
pub(crate) struct Resizer {
    columns: Vec<String>,
    quality: Option<u8>,
    side: Option<u32>,
}

impl Resizer {
    /// Makes a resizer; `None` if the options request nothing.
    ///
    /// # Errors
    /// `Config` if there are no images, if a named column holds none, or if several hold images and none is named: settings for a photo
    /// are wrong for the mask beside it.
    pub(crate) fn new(schema: &Schema, options: &ConvertOptions) -> Result<Option<Self>> {
        let option = match (options.resize, options.image_quality) {
            (None, None) if options.images.is_empty() => return Ok(None),
            (None, None) => return Err(Error::config("images", "only goes with resize or image_quality")),
            (Some(_), _) => "resize",
            _ => "image_quality",
        };
        let images = schema.fields().iter().filter(|field| is_image(field) && is_binary(field.data_type()));
        let mut columns: Vec<String> = images.map(|field| field.name().clone()).collect();
        if columns.is_empty() {
            return Err(Error::config(option, NO_IMAGES));
        }
        let all = columns.join(", ");
        if let Some(name) = options.images.iter().find(|name| !columns.contains(name)) {
            return Err(Error::config("images", format!("{name:?} is not a column of images; those are {all}")));
        }
        if columns.len() > 1 && options.images.is_empty() {
            let problem = format!("several columns hold images: {all}; name those to encode again with images");
            return Err(Error::config(option, problem));
        }
        if !options.images.is_empty() {
            columns.retain(|name| options.images.contains(name));
        }
        Ok(Some(Self { columns, quality: options.image_quality, side: options.resize }))
    }

    /// Returns the schema after resizing.
    pub(crate) fn schema(&self, schema: &Schema) -> Schema {
        let field = |field: &Arc<Field>| {
            if !self.columns.contains(field.name()) {
                return Field::clone(field);
            }
            let mut metadata = field.metadata().clone();
            let before = metadata.get(IMAGE_KEY).map(String::as_str);
            // JPEG and PNG keep their format; of other images the small ones do.
            let format = match before {
                _ if self.quality.is_some() => "jpeg",
                Some(same @ ("jpeg" | "png")) => same,
                _ => "",
            };
            metadata.insert(IMAGE_KEY.to_owned(), format.to_owned());
            let stored = Stored::of(&metadata).and_then(Result::ok);
            metadata.remove(STORED_KEY);
            metadata.extend(stored.and_then(|stored| self.stored(stored)).map(|stored| stored.metadata()));
            Field::clone(field).with_data_type(DataType::Binary).with_metadata(metadata)
        };
        Schema::new_with_metadata(schema.fields().iter().map(field).collect::<Vec<_>>(), schema.metadata().clone())
    }

    /// Returns the type of the cells after resizing: images of any size.
    fn stored(&self, stored: Stored) -> Option<Stored> {
        if !matches!(stored.codec, Codec::Png | Codec::Jpeg) || stored.element != Element::Number(DType::Uint8) {
            return None;
        }
        let codec = if self.quality.is_some() { Codec::Jpeg } else { stored.codec };
        let shape = stored.shape.iter().enumerate().map(|(axis, length)| length.filter(|_| axis > 1)).collect();
        Some(Stored { codec, shape, ..stored })
    }

    /// Resizes the images of a batch; `place` gives the place of a row of it.
    pub(crate) fn apply(&self, batch: &RecordBatch, place: &dyn Fn(usize) -> Place) -> Result<RecordBatch> {
        let mut columns = batch.columns().to_vec();
        for (column, field) in columns.iter_mut().zip(batch.schema_ref().fields()) {
            if self.columns.contains(field.name()) {
                *column = self.column(column, field.name(), place)?;
            }
        }
        RecordBatch::try_new(batch.schema(), columns).map_err(unexpected)
    }

    fn column(&self, column: &ArrayRef, name: &str, place: &dyn Fn(usize) -> Place) -> Result<ArrayRef> {
        let row = |at| place(at).row.unwrap_or_default();
        let views = as_type_at(name, row, column, &DataType::BinaryView)?;
        let views = views.as_binary_view();
        let mut made = BinaryBuilder::new();
        for at in 0..views.len() {
            if views.is_null(at) {
                made.append_null();
                continue;
            }
            let image = self.image(views.value(at)).map_err(|error| error.at(place(at).column(name)))?;
            match image {
                Some(image) => made.append_value(image),
                None => made.append_value(views.value(at)),
            }
        }
        Ok(Arc::new(made.finish()))
    }

    fn is_jpeg(&self, info: &Info) -> bool {
        self.quality.is_some() || info.format == Format::Jpeg
    }

    /// Returns the channels of the new image, and its encoder's colour type.
    ///
    /// # Errors
    /// `Unsupported` for properties that can be neither dropped nor kept: more than eight bits, and transparency in JPEG.
    fn channels(&self, info: &Info) -> Result<(u8, ExtendedColorType)> {
        if info.bits > 8 {
            return Err(Error::unsupported(
                format!("an image of {} bits to scale or to encode again", info.bits),
                HINT,
            ));
        }
        match info.channels {
            1 => Ok((1, ExtendedColorType::L8)),
            // Four channels of a JPEG are CMYK.
            2 | 4 if info.format != Format::Jpeg && self.is_jpeg(info) => Err(transparent()),
            2 if info.format != Format::Jpeg => Ok((2, ExtendedColorType::La8)),
            4 if info.format != Format::Jpeg => Ok((4, ExtendedColorType::Rgba8)),
            _ => Ok((3, ExtendedColorType::Rgb8)),
        }
    }

    /// Returns the new image; `None` to keep the old one.
    fn image(&self, cell: &[u8]) -> Result<Option<Vec<u8>>> {
        let info = probe(cell)?;
        let (width, height) = info.oriented();
        let shorter = width.min(height);
        let side = self.side.filter(|side| *side < shorter);
        if side.is_none() && self.quality.is_none() {
            return Ok(None);
        }
        let scaled = |length: u32| match side {
            // Rounded to the nearest, at least one.
            Some(side) => {
                let length = (u64::from(length) * u64::from(side) + u64::from(shorter) / 2) / u64::from(shorter.max(1));
                u32::try_from(length).unwrap_or(u32::MAX).max(1)
            }
            None => length,
        };
        let (width, height) = (scaled(width), scaled(height));
        let (channels, mut colours) = self.channels(&info)?;
        let extras = extras(cell, &info);
        if extras.animated {
            let what = format!("a {} of several frames to scale or to encode again", info.format.name());
            return Err(Error::unsupported(what, HINT));
        }
        // Many files name a transparent colour that no pixel has: the pixels decide.
        let unsure = extras.transparent && matches!(channels, 1 | 3);
        let options = ImageOptions {
            size: Some(Size { height, width }),
            crop: crate::codec::image::Crop::None,
            layout: Layout::Hwc,
            // There is no decoder of grey with alpha.
            channels: if unsure || channels == 2 { 4 } else { channels },
            ..ImageOptions::default()
        };
        let decoder = ImageDecoder::new(&options)?;
        let mut pixels = vec![0; decoder.shape().iter().product()];
        decoder.decode_into(cell, 0, &mut pixels)?;
        if unsure {
            let (whole, _) = pixels.as_chunks::<4>();
            if whole.iter().all(|pixel| pixel[3] == u8::MAX) {
                pixels = whole.iter().flat_map(|pixel| pixel.iter().take(channels.into())).copied().collect();
            } else if self.is_jpeg(&info) {
                return Err(transparent());
            } else if channels == 1 {
                colours = ExtendedColorType::La8;
            } else {
                colours = ExtendedColorType::Rgba8;
            }
        }
        if colours == ExtendedColorType::La8 {
            pixels = pixels.as_chunks::<4>().0.iter().flat_map(|pixel| [pixel[0], pixel[3]]).collect();
        }
        let profile = profile(cell, &info, colours);
        let mut out = Vec::new();
        let (encoded, hint) = match self.is_jpeg(&info) {
            true => {
                let mut encoder = JpegEncoder::new_with_quality(&mut out, self.quality.unwrap_or(QUALITY));
                profiled(&mut encoder, profile);
                (encoder.encode(&pixels, width, height, colours), "JPEG has at most 65,535 pixels to a side")
            }
            false => {
                let mut encoder = PngEncoder::new(&mut out);
                profiled(&mut encoder, profile);
                (encoder.write_image(&pixels, width, height, colours), "")
            }
        };
        encoded.map_err(|error| {
            Error::unsupported(format!("an image of {width} x {height} pixels to encode ({error})"), hint)
        })?;
        Ok(Some(out))
    }
}

/// The profile that says what the colours of `cell` mean, if it holds for pixels of `colours`: that of a CMYK image does not, whose pixels
/// become RGB.
fn profile(cell: &[u8], info: &Info, colours: ExtendedColorType) -> Option<Vec<u8>> {
    let cell = Cursor::new(cell);
    let found = match info.format {
        Format::Jpeg => JpegDecoder::new(cell).and_then(|mut decoder| decoder.icc_profile()),
        Format::Png => PngDecoder::new(cell).and_then(|mut decoder| decoder.icc_profile()),
        Format::Webp => WebPDecoder::new(cell).and_then(|mut decoder| decoder.icc_profile()),
        Format::Gif | Format::Bmp => return None,
    };
    // Pixels were decoded before, so what is damaged is the profile at most.
    let profile = found.ok().flatten()?;
    let grey = matches!(colours, ExtendedColorType::L8 | ExtendedColorType::La8);
    let space: &[u8] = if grey { b"GRAY" } else { b"RGB " };
    (profile.get(16..20) == Some(space)).then_some(profile)
}

/// Gives the profile to an encoder. All that are used here can write one.
fn profiled(encoder: &mut impl ImageEncoder, profile: Option<Vec<u8>>) {
    if let Some(profile) = profile {
        let _ = encoder.set_icc_profile(profile);
    }
}

#[cfg(test)]
mod tests {
    use image::codecs::gif::GifEncoder;
    use image::{Frame, Rgba, RgbaImage};

    use super::*;

    fn resizer(quality: Option<u8>) -> Resizer {
        Resizer { columns: Vec::new(), quality, side: Some(4) }
    }

    /// A PNG of 8 x 8 pixels of one colour, with `chunk` before the pixels.
    fn png(colours: ExtendedColorType, pixel: &[u8], chunk: Option<(&[u8; 4], &[u8])>) -> Vec<u8> {
        let mut plain = Vec::new();
        PngEncoder::new(&mut plain).write_image(&pixel.repeat(64), 8, 8, colours).unwrap();
        let Some((kind, body)) = chunk else { return plain };
        let mut sum = flate2::Crc::new();
        sum.update(&[kind.as_slice(), body].concat());
        let (head, rest) = plain.split_at(33);
        let len = (body.len() as u32).to_be_bytes();
        [head, &len, kind, body, &sum.sum().to_be_bytes(), rest].concat()
    }

    fn gif(frames: &[[u8; 4]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = GifEncoder::new(&mut bytes);
        for colour in frames {
            let mut pixels = RgbaImage::from_pixel(8, 8, Rgba([200, 100, 50, 255]));
            pixels.enumerate_pixels_mut().filter(|(x, ..)| *x < 4).for_each(|(_, _, pixel)| *pixel = Rgba(*colour));
            encoder.encode_frame(Frame::new(pixels)).unwrap();
        }
        drop(encoder);
        bytes
    }

    fn kind(cell: &[u8]) -> image::ColorType {
        image::codecs::png::PngDecoder::new(std::io::Cursor::new(cell)).unwrap().color_type()
    }

    #[test]
    fn transparency_stays_or_is_refused() {
        use ExtendedColorType::{L8, Rgb8};
        let clear = [
            png(Rgb8, &[1, 2, 3], Some((b"tRNS", &[0, 1, 0, 2, 0, 3]))),
            png(L8, &[7], Some((b"tRNS", &[0, 7]))),
            gif(&[[0, 0, 0, 0]]),
        ];
        for (cell, expected) in clear.into_iter().zip(["Rgba8", "La8", "Rgba8"]) {
            let made = resizer(None).image(&cell).unwrap().unwrap();
            assert_eq!(format!("{:?}", kind(&made)), expected);
            let said = resizer(Some(80)).image(&cell).unwrap_err().to_string();
            assert!(said.contains("transparency"), "{said}");
        }
        // A transparent colour that no pixel has changes nothing.
        for (cell, expected) in [
            (png(Rgb8, &[1, 2, 3], Some((b"tRNS", &[0, 9, 0, 9, 0, 9]))), image::ColorType::Rgb8),
            (png(L8, &[7], Some((b"tRNS", &[0, 9]))), image::ColorType::L8),
            (png(Rgb8, &[1, 2, 3], None), image::ColorType::Rgb8),
            (gif(&[[9, 9, 9, 255]]), image::ColorType::Rgb8),
        ] {
            assert_eq!(kind(&resizer(None).image(&cell).unwrap().unwrap()), expected);
            assert!(resizer(Some(80)).image(&cell).unwrap().is_some());
        }
    }

    #[test]
    fn grey_with_alpha_stays_so() {
        let cell = png(ExtendedColorType::La8, &[90, 30], None);
        let made = resizer(None).image(&cell).unwrap().unwrap();
        assert_eq!(kind(&made), image::ColorType::La8);
        let pixel = image::load_from_memory(&made).unwrap().to_luma_alpha8().get_pixel(1, 1).0;
        // Colours are scaled multiplied by their alpha, in whole numbers.
        assert!(pixel[0].abs_diff(90) <= 255 / 30 && pixel[1] == 30, "{pixel:?}");
    }

    #[test]
    fn the_profile_of_colours_stays_where_it_holds() {
        use ExtendedColorType::{L8, La8, Rgb8, Rgba8};
        // All that is looked at is the space of its colours.
        let of = |space: &[u8; 4]| [&[0; 16], space.as_slice(), &[7; 200]].concat();
        let with = |space: &[u8; 4], colours, pixel: &[u8], jpeg: bool| {
            let (mut out, pixels) = (Vec::new(), pixel.repeat(64));
            if jpeg {
                let mut encoder = JpegEncoder::new(&mut out);
                encoder.set_icc_profile(of(space)).unwrap();
                encoder.write_image(&pixels, 8, 8, colours).unwrap();
            } else {
                let mut encoder = PngEncoder::new(&mut out);
                encoder.set_icc_profile(of(space)).unwrap();
                encoder.write_image(&pixels, 8, 8, colours).unwrap();
            }
            out
        };
        let kept = |cell: &[u8], quality| {
            let made = resizer(quality).image(cell).unwrap().unwrap();
            match probe(&made).unwrap().format {
                Format::Jpeg => JpegDecoder::new(Cursor::new(made)).unwrap().icc_profile().unwrap(),
                _ => PngDecoder::new(Cursor::new(made)).unwrap().icc_profile().unwrap(),
            }
        };
        for (space, colours, pixel) in [
            (b"RGB ", Rgb8, &[1, 2, 3][..]),
            (b"RGB ", Rgba8, &[1, 2, 3, 4]),
            (b"GRAY", L8, &[1]),
            (b"GRAY", La8, &[1, 2]),
        ] {
            assert_eq!(kept(&with(space, colours, pixel, false), None), Some(of(space)), "{colours:?}");
        }
        for (space, colours, pixel) in [(b"RGB ", Rgb8, &[1, 2, 3][..]), (b"GRAY", L8, &[1])] {
            for jpeg in [false, true] {
                assert_eq!(kept(&with(space, colours, pixel, jpeg), Some(80)), Some(of(space)), "{colours:?}");
            }
            assert_eq!(kept(&with(space, colours, pixel, true), None), Some(of(space)), "{colours:?}");
        }
        assert_eq!(kept(&with(b"CMYK", Rgb8, &[1, 2, 3], true), None), None);
        assert_eq!(kept(&png(Rgb8, &[1, 2, 3], None), None), None);
    }

    #[test]
    fn an_animation_is_refused_unless_it_stays_as_it_is() {
        let webp = |frames: usize| {
            let chunk = |kind: &[u8], body: &[u8]| [kind, &(body.len() as u32).to_le_bytes(), body].concat();
            let head = chunk(b"VP8X", &[2, 0, 0, 0, 7, 0, 0, 7, 0, 0]);
            let body =
                [b"WEBP".to_vec(), head, chunk(b"ANIM", &[0; 6]), chunk(b"ANMF", &[0; 16]).repeat(frames)].concat();
            chunk(b"RIFF", &body)
        };
        let apng =
            |frames: u8| png(ExtendedColorType::Rgb8, &[1, 2, 3], Some((b"acTL", &[0, 0, 0, frames, 0, 0, 0, 0])));
        for cell in [gif(&[[1, 1, 1, 255], [2, 2, 2, 255]]), apng(2), webp(2)] {
            for quality in [None, Some(80)] {
                let said = resizer(quality).image(&cell).unwrap_err().to_string();
                assert!(said.contains("several frames"), "{said}");
            }
            let small = Resizer { columns: Vec::new(), quality: None, side: Some(8) };
            assert!(small.image(&cell).unwrap().is_none());
        }
        let info = probe(&webp(1)).unwrap();
        assert!(!extras(&webp(1), &info).animated);
        let said = resizer(None).image(&apng(1)).map(|_| ()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!said.contains("several frames"), "{said}");
    }
}
