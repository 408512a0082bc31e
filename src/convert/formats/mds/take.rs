//! Decoding of MDS cells into arrays.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, ListBuilder, StringBuilder};
use arrow::datatypes::FieldRef;
use arrow::error::ArrowError;
use image::ExtendedColorType;
use image::ImageEncoder;
use image::codecs::png::PngEncoder;

use super::encoding::{Encoding, PIXELS};
use crate::convert::types::{is_text, type_text};
use crate::convert::values::cells::{from_npy, npy_bytes, numbers};
use crate::convert::values::objects::Values;
use crate::convert::values::scalar::{growing, shown};
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, cast};

/// Gathers the values of a column into an array.
pub(super) struct Taker {
    encoding: Encoding,
    field: FieldRef,
    /// Fixed-size values, concatenated.
    fixed: Vec<u8>,
    bytes: BinaryBuilder,
    text: StringBuilder,
    lists: ListBuilder<BinaryBuilder>,
}

impl Taker {
    pub(super) fn new(encoding: Encoding, field: &FieldRef) -> Self {
        Self {
            encoding,
            field: Arc::clone(field),
            fixed: Vec::new(),
            bytes: BinaryBuilder::new(),
            text: StringBuilder::new(),
            lists: ListBuilder::new(BinaryBuilder::new()),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.field.name()
    }

    /// Adds a value.
    ///
    /// # Errors
    /// The reason that it is invalid.
    pub(super) fn push(&mut self, cell: &[u8]) -> Result<(), String> {
        match &self.encoding {
            Encoding::Number(..) => self.fixed.extend_from_slice(cell),
            Encoding::Bytes | Encoding::Image(_) => self.bytes.append_value(cell),
            Encoding::Str | Encoding::Json | Encoding::Digits(_) => {
                let text = std::str::from_utf8(cell).map_err(|_| "its text is not UTF-8")?;
                if self.encoding == Encoding::Json && serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
                    return Err("its text is not JSON".to_owned());
                }
                self.text.append_value(text);
            }
            Encoding::Array { .. } => {
                let (dtype, shape, bytes) = self.encoding.array(cell)?;
                let npy = npy_bytes(dtype, &shape, &bytes).map_err(|error| error.to_string())?;
                self.bytes.append_value(npy);
            }
            Encoding::Pixels => self.bytes.append_value(png(cell)?),
            Encoding::Images(name, word) => {
                let mut rest = if *word { cell.get(4..).ok_or("the list is cut short")? } else { cell };
                let count =
                    rest.first_chunk().map(|count| u32::from_le_bytes(*count)).ok_or("the list is cut short")?;
                let count = count as usize;
                let sizes =
                    rest.get(4..).and_then(|rest| rest.get(..count.checked_mul(4)?)).ok_or("the list is cut short")?;
                rest = rest.get(4 + count * 4..).unwrap_or_default();
                for four in sizes.chunks_exact(4) {
                    let size = u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize;
                    let (image, left) = rest.split_at_checked(size).ok_or("the list is cut short")?;
                    match *name {
                        PIXELS => self.lists.values().append_value(png(image)?),
                        _ => self.lists.values().append_value(image),
                    }
                    rest = left;
                }
                if !rest.is_empty() {
                    return Err("more follows the list".to_owned());
                }
                self.lists.append(true);
            }
        }
        Ok(())
    }

    /// Returns the error for a value, by its row among those gathered.
    fn wrong(&self, row: usize, what: &str) -> Error {
        let place = Place { column: Some(self.name().into()), row: Some(row as u64), ..Place::default() };
        Error::corrupt(place, format!("{what}; give another type with --schema"))
    }

    /// Returns the array of the gathered values.
    pub(super) fn finish(&mut self) -> Result<ArrayRef> {
        let wanted = self.field.data_type();
        let array: ArrayRef = match &self.encoding {
            Encoding::Number(dtype, _) => numbers(*dtype, std::mem::take(&mut self.fixed))?,
            Encoding::Bytes | Encoding::Image(_) | Encoding::Pixels => Arc::new(self.bytes.finish()),
            Encoding::Array { .. } => {
                let cells = self.bytes.finish();
                from_npy(&cells, Codec::Npy, &self.field)?
            }
            Encoding::Images(..) => Arc::new(self.lists.finish()),
            Encoding::Json if !is_text(wanted) => {
                let texts = self.text.finish();
                let mut values = Values::new(wanted)?;
                for (row, text) in texts.iter().enumerate() {
                    match text {
                        Some(text) => values.push(text.as_bytes()).map_err(|wrong| self.wrong(row, &wrong.what))?,
                        None => values.null(),
                    }
                }
                values.finish()?
            }
            Encoding::Str | Encoding::Digits(_) if !is_text(wanted) => {
                let texts = self.text.finish();
                let of = type_text(wanted);
                let Some(mut values) = growing(wanted, true) else {
                    let hint = "give a type that a text can be read as".to_owned();
                    return Err(Error::unsupported(format!("column {:?} of texts as {of}", self.name()), hint));
                };
                for (row, text) in texts.iter().enumerate() {
                    match text {
                        Some(text) => values
                            .push(text)
                            .map_err(|why| self.wrong(row, &format!("{} is not a valid {of}: {why}", shown(text))))?,
                        None => values.null(),
                    }
                }
                values.finish()
            }
            Encoding::Str | Encoding::Json | Encoding::Digits(_) => Arc::new(self.text.finish()),
        };
        cast(&array, wanted).map_err(|misfit| {
            let place = Place { column: Some(self.field.name().as_str().into()), ..Place::default() };
            Error::corrupt_by(place, "its values are not of the type that is wanted", ArrowError::from(misfit))
        })
    }
}

/// Encodes raw pixels as PNG.
fn png(cell: &[u8]) -> Result<Vec<u8>, String> {
    let word = |at: usize| cell.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_le_bytes(*word));
    let (Some(width), Some(height), Some(len)) = (word(0), word(4), word(8)) else {
        return Err("the image is cut short".to_owned());
    };
    let rest = cell.get(12..).unwrap_or_default();
    let (mode, pixels) = rest.split_at_checked(len as usize).ok_or("the image is cut short")?;
    let (kind, channels) = match mode {
        b"L" => (ExtendedColorType::L8, 1),
        b"RGB" => (ExtendedColorType::Rgb8, 3),
        b"RGBA" => (ExtendedColorType::Rgba8, 4),
        b"LA" => (ExtendedColorType::La8, 2),
        other => return Err(format!("pixels of the mode \"{}\"", other.escape_ascii())),
    };
    let bytes = u64::from(width).checked_mul(u64::from(height)).and_then(|area| area.checked_mul(channels));
    if bytes != Some(pixels.len() as u64) || pixels.is_empty() {
        return Err(format!("an image of {width} x {height} pixels in {} bytes", pixels.len()));
    }
    let mut out = Vec::new();
    PngEncoder::new(&mut out).write_image(pixels, width, height, kind).map_err(|error| error.to_string())?;
    Ok(out)
}
