//! Images that represent arrays, as Petastorm's `CompressedImageCodec` writes them: delivered pixel for pixel, never
//! turned, resized or converted, with the stored channels and bits.

use super::jpeg::{self, Part};
use super::options::Limits;
use super::probe::{self, Info};
use super::scratch::with_scratch;
use super::{Source, backend, raster};
use crate::error::{Error, Place, Result};
use crate::schema::{DType, Element, Stored};

/// Decodes a column whose cells are images of a declared shape, `[height, width]` or `[height, width, channels]`.
#[derive(Debug, Clone)]
pub struct StoredImage {
    dtype: DType,
    shape: Vec<Option<usize>>,
    limits: Limits,
}

impl StoredImage {
    /// A decoder for the declaration in `stored`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for elements other than uint8 and uint16, and for shapes that no image has.
    pub fn new(stored: &Stored) -> Result<Self> {
        let refused = |what: String| {
            let hint = "images hold uint8 or uint16, of shape (height, width) or (height, width, channels)".to_owned();
            Err(Error::unsupported(what, hint))
        };
        let dtype = match stored.element {
            Element::Number(dtype @ (DType::Uint8 | DType::Uint16)) => dtype,
            ref other => return refused(format!("an image column of elements {other:?}")),
        };
        match stored.shape[..] {
            [_, _] | [_, _, Some(1 | 3 | 4) | None] => {}
            _ => return refused(format!("an image column of shape {:?}", stored.shape)),
        }
        Ok(Self { dtype, shape: stored.shape.clone(), limits: Limits::default() })
    }

    /// Element type: uint8 or uint16.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape of the image in `cell`, from its header.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if this is not an image or not one of the declared shape; [`Error::Limit`] if it is too
    /// large.
    pub fn shape(&self, cell: &[u8]) -> Result<Vec<usize>> {
        self.header(cell).map(|(_, _, shape)| shape)
    }

    fn header(&self, cell: &[u8]) -> Result<(Info, Option<probe::Jpeg>, Vec<usize>)> {
        let (info, jpeg) = probe::header(cell)?;
        let cost = super::cost(&info, jpeg.as_ref(), usize::from(info.channels) * self.dtype.size());
        self.limits.check(info.width, info.height, cost)?;
        let mut shape = vec![info.height as usize, info.width as usize];
        if self.shape.len() == 3 {
            shape.push(info.channels.into());
        } else if info.channels != 1 {
            return Err(self.contradicts(&info));
        }
        let fits = shape.iter().zip(&self.shape).all(|(found, declared)| declared.is_none_or(|n| n == *found));
        let narrow = self.dtype == DType::Uint8 && info.bits > 8;
        if fits && !narrow { Ok((info, jpeg, shape)) } else { Err(self.contradicts(&info)) }
    }

    fn contradicts(&self, info: &Info) -> Error {
        let declared: Vec<String> =
            self.shape.iter().map(|n| n.map_or_else(|| "None".to_owned(), |n| n.to_string())).collect();
        let what = format!(
            "an image of {} x {} pixels, {} channels of {} bits, where the schema declares {} of shape ({})",
            info.width,
            info.height,
            info.channels,
            info.bits,
            self.dtype,
            declared.join(", ")
        );
        Error::corrupt(Place::default(), what)
    }

    /// Writes the pixels of `cell` into `row`: rows from top to bottom, channels last, RGB. `row` has the bytes of its
    /// [`shape`](Self::shape).
    ///
    /// # Errors
    /// The fault of the image; the caller adds the place.
    pub fn decode_into(&self, cell: &[u8], row: &mut [u8]) -> Result<()> {
        let (info, jpeg, shape) = self.header(cell)?;
        let bytes = shape.iter().product::<usize>() * self.dtype.size();
        if row.len() != bytes {
            let what = format!("an image of {bytes} bytes, where {} were expected", row.len());
            return Err(Error::corrupt(Place::default(), what));
        }
        let channels = usize::from(info.channels);
        with_scratch(|scratch| {
            let whole = Part::whole(info.width, info.height);
            let source = match &jpeg {
                Some(found) => {
                    jpeg::check_complete(cell, found)?;
                    let decoder = backend::Decoder::open(cell, &self.limits, false)?;
                    if decoder.size() != (info.width, info.height) {
                        return Err(jpeg::failed("two headers that differ"));
                    }
                    Source::Jpeg(decoder)
                }
                None => Source::Raster(cell),
            };
            match (source, self.dtype) {
                (Source::Raster(bytes), DType::Uint16) => {
                    raster::decode_wide(bytes, &info, &self.limits, &mut scratch.raw, row)
                }
                (source, DType::Uint16) => {
                    let narrow = super::grow(&mut scratch.decoded, whole.pixels() * channels);
                    source.decode(&whole, &info, &self.limits, channels, &mut scratch.raw, narrow)?;
                    let wide = row.as_chunks_mut::<2>().0.iter_mut().zip(narrow);
                    wide.for_each(|(to, from)| *to = u16::from(*from).to_ne_bytes());
                    Ok(())
                }
                (source, _) => source.decode(&whole, &info, &self.limits, channels, &mut scratch.raw, row),
            }
        })
    }
}
