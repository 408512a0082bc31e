//! Photos to be decoded by a device: a row holds the bytes of the JPEG as stored, and the requested part of it. Limits,
//! visible damage, and the draw of crop and flip are handled as for the CPU, and beforehand.
//!
//! ```text
//!   row │ header, 64 bytes │ the bytes of the JPEG, or pixels │ unused │
//! ```
//! Images not given to a device (other formats, progressive JPEG, inks, images that do not fit) are stored as pixels,
//! decoded on the CPU: u8, `[height, width, channels]`, of the final size. A row of zeros is no photo: it is padding.

use super::crop::Rect;
use super::scratch::with_scratch;
use super::{Drawn, ImageDecoder, ImageOptions, Layout, Orientation, jpeg, probe};
use crate::codec::Decode;
use crate::error::{Error, Place, Result};
use crate::schema::DType;

/// Bytes of the header of a row; rows are multiples of it.
const HEADER: usize = 64;

const PIXELS: u8 = 1;
const JPEG: u8 = 2;

const SEALED: u8 = 1;
const TRANSPOSE: u8 = 2;
const FLIP_X: u8 = 4;
const FLIP_Y: u8 = 8;

/// Writes and reads rows of photos that are not decoded yet.
#[derive(Debug)]
pub struct Deferred {
    /// Decodes to u8, `[height, width, channels]`.
    pixels: ImageDecoder,
    /// Bytes of one row, header included.
    row: usize,
}

/// The content of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Held<'a> {
    /// No photo.
    Nothing,
    /// Pixels of the final size, `[height, width, channels]`.
    Pixels(&'a [u8]),
    /// A JPEG.
    Jpeg(Stored<'a>),
}

/// A JPEG as stored, and the requested part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored<'a> {
    /// The file.
    pub bytes: &'a [u8],
    /// Pixels of a stored row.
    pub width: u32,
    /// Stored rows.
    pub height: u32,
    /// The box in the image as stored: x, y, width, height; may lie between pixels.
    pub rect: [f64; 4],
    /// Set if no pixel outside of the box counts.
    pub sealed: bool,
    /// Orientation of the box once resized.
    pub turn: Orientation,
}

impl Deferred {
    /// For these options.
    ///
    /// # Errors
    /// As [`ImageDecoder::new`].
    pub fn new(options: &ImageOptions) -> Result<Self> {
        options.check()?;
        let pixels = ImageOptions { dtype: DType::Uint8, layout: Layout::Hwc, normalize: None, ..options.clone() };
        let pixels = ImageDecoder::new(&pixels)?;
        let room = pixels.shape().iter().product::<usize>().max(options.encoded_room as usize);
        Ok(Self { pixels, row: (HEADER + room).next_multiple_of(HEADER) })
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row
    }

    /// Shape of a decoded photo: `[height, width, channels]`.
    pub fn shape(&self) -> Vec<usize> {
        self.pixels.shape()
    }

    /// The content of `row`.
    ///
    /// # Errors
    /// `Corrupt` if it is not a row of these options.
    pub fn held<'a>(&self, row: &'a [u8]) -> Result<Held<'a>> {
        let damaged = || Error::corrupt(Place::default(), "a photo for a device: not a row of these options");
        let (header, rest) = row.split_first_chunk::<HEADER>().filter(|_| row.len() == self.row).ok_or_else(damaged)?;
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let f64_at = |at: usize| f64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let flag = |flag: u8| header[1] & flag != 0;
        let bytes = rest.get(..u32_at(4) as usize).ok_or_else(damaged)?;
        match header[0] {
            0 => Ok(Held::Nothing),
            PIXELS => Ok(Held::Pixels(bytes)),
            JPEG => Ok(Held::Jpeg(Stored {
                bytes,
                width: u32_at(8),
                height: u32_at(12),
                rect: [16, 24, 32, 40].map(f64_at),
                sealed: flag(SEALED),
                turn: Orientation { transpose: flag(TRANSPOSE), flip_x: flag(FLIP_X), flip_y: flag(FLIP_Y) },
            })),
            _ => Err(damaged()),
        }
    }

    /// Decodes the pixels of `row` here, to `out`: those that [`ImageDecoder`] would have delivered.
    ///
    /// # Errors
    /// The fault of the JPEG, or of the row.
    pub fn pixels(&self, row: &[u8], out: &mut [u8]) -> Result<()> {
        match self.held(row)? {
            Held::Nothing => out.fill(0),
            Held::Pixels(pixels) if pixels.len() == out.len() => out.copy_from_slice(pixels),
            Held::Pixels(_) => return Err(Error::corrupt(Place::default(), "a photo for a device: not of its size")),
            Held::Jpeg(Stored { bytes, rect: [x, y, width, height], sealed, turn, .. }) => {
                let (info, jpeg) = probe::header(bytes)?;
                let drawn = Drawn { info, jpeg, rect: Rect { x, y, width, height }, sealed, turn };
                with_scratch(|scratch| self.pixels.decode(bytes, &drawn, out, scratch))?;
            }
        }
        Ok(())
    }

    /// Writes the header of `row` and returns the rest.
    fn header<'a>(row: &'a mut [u8], kind: u8, len: usize, drawn: &Drawn) -> &'a mut [u8] {
        let (header, rest) = row.split_at_mut(HEADER);
        header.fill(0);
        let Orientation { transpose, flip_x, flip_y } = drawn.turn;
        let flags = [(drawn.sealed, SEALED), (transpose, TRANSPOSE), (flip_x, FLIP_X), (flip_y, FLIP_Y)];
        header[0] = kind;
        header[1] = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        for (at, number) in [(4, len as u32), (8, drawn.info.width), (12, drawn.info.height)] {
            header[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let Rect { x, y, width, height } = drawn.rect;
        for (at, number) in [(16, x), (24, y), (32, width), (40, height)] {
            header[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        &mut rest[..len]
    }
}

impl Decode for Deferred {
    fn decode_into(&self, cell: &[u8], random: u64, row: &mut [u8]) -> Result<()> {
        if row.len() != self.row {
            return Err(Error::Mismatch {
                what: "bytes of a row of photos for a device".to_owned(),
                expected: self.row.to_string(),
                found: row.len().to_string(),
                hint: String::new(),
            });
        }
        let drawn = self.pixels.draw(cell, random)?;
        if let Some(found) = drawn.jpeg.filter(|jpeg| jpeg.plain && cell.len() <= self.row - HEADER) {
            jpeg::check_complete(cell, &found)?;
            Self::header(row, JPEG, cell.len(), &drawn).copy_from_slice(cell);
            return Ok(());
        }
        let len = self.shape().iter().product();
        let pixels = Self::header(row, PIXELS, len, &drawn);
        with_scratch(|scratch| self.pixels.decode(cell, &drawn, pixels, scratch))
    }
}
