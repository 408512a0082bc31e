//! The encodings of MDS columns, and their Arrow types.

use std::fmt;

use arrow::datatypes::{DataType, Field, Metadata};

use crate::convert::format::Format;

use crate::convert::errors::refused;
use crate::convert::types::{dtype, is_binary, is_text, item, number};
use crate::convert::values::sample::IMAGE_KEY;
use crate::error::{Error, Result};
use crate::schema::{Codec, DType, Element, Stored};

/// Metadata key of a field: the MDS encoding that it was read from, if Arrow's type does not imply it.
pub(super) const ENCODING_KEY: &str = "bowstring.mds";

/// The encoding of a list of raw images.
pub(super) const PIXELS: &str = "list[pil]";

/// Encoding of an MDS column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Encoding {
    Bytes,
    Str,
    Json,
    /// A number as its digits: `str_int`, `str_float`, `str_decimal`.
    Digits(&'static str),
    /// A number; the flag is set if the encoding is called `int`.
    Number(DType, bool),
    Array {
        dtype: Option<DType>,
        shape: Option<Vec<usize>>,
    },
    /// A file of an image: `jpeg` or `png`.
    Image(&'static str),
    /// Raw pixels with their size and mode.
    Pixels,
    /// A list of images by the name of the encoding; the flag is set if a word precedes the count.
    Images(&'static str, bool),
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes"),
            Self::Str => f.write_str("str"),
            Self::Json => f.write_str("json"),
            Self::Number(_, true) => f.write_str("int"),
            Self::Number(dtype, false) => f.write_str(dtype.name()),
            Self::Digits(name) | Self::Image(name) | Self::Images(name, _) => f.write_str(name),
            Self::Pixels => f.write_str("pil"),
            Self::Array { dtype: None, .. } => f.write_str("ndarray"),
            Self::Array { dtype: Some(dtype), shape: None } => write!(f, "ndarray:{dtype}"),
            Self::Array { dtype: Some(dtype), shape: Some(shape) } => {
                let axes: Vec<String> = shape.iter().map(ToString::to_string).collect();
                write!(f, "ndarray:{dtype}:{}", axes.join(","))
            }
        }
    }
}

/// Element types of arrays, by their code.
pub(super) const CODES: [(u8, DType); 11] = [
    (8, DType::Uint8),
    (9, DType::Int8),
    (16, DType::Uint16),
    (17, DType::Int16),
    (18, DType::Float16),
    (32, DType::Uint32),
    (33, DType::Int32),
    (34, DType::Float32),
    (64, DType::Uint64),
    (65, DType::Int64),
    (66, DType::Float64),
];

pub(super) fn scalar(name: &str) -> Option<DType> {
    CODES.iter().map(|(_, dtype)| *dtype).find(|dtype| dtype.name() == name)
}

impl Encoding {
    /// Parses the name of an encoding.
    pub(super) fn parse(column: &str, text: &str) -> Result<Self> {
        let unsupported = |hint: &str| {
            Error::unsupported(
                format!("column {column:?} with the encoding {:?} of MDS", text.chars().take(60).collect::<String>()),
                hint.to_owned(),
            )
        };
        Ok(match text {
            "bytes" => Self::Bytes,
            "str" => Self::Str,
            "json" => Self::Json,
            "str_int" => Self::Digits("str_int"),
            "str_float" => Self::Digits("str_float"),
            "str_decimal" => Self::Digits("str_decimal"),
            "int" => Self::Number(DType::Int64, true),
            "jpeg" => Self::Image("jpeg"),
            "png" => Self::Image("png"),
            "pil" => Self::Pixels,
            "list[jpeg]" => Self::Images("list[jpeg]", true),
            "list[png]" => Self::Images("list[png]", true),
            "list[pil]" => Self::Images(PIXELS, true),
            "jpeg_array" | "jpegarray" => Self::Images("jpeg_array", false),
            "pkl" => return Err(unsupported("it holds pickles, which run code when they are read")),
            _ => {
                if let Some(dtype) = scalar(text) {
                    return Ok(Self::Number(dtype, false));
                }
                // The quality that it was written with.
                if let Some(quality) = text.strip_prefix("jpeg:") {
                    let known = quality.parse::<u8>().is_ok_and(|quality| quality <= 100);
                    return if known { Ok(Self::Image("jpeg")) } else { Err(unsupported("its quality is none")) };
                }
                let mut parts = text.split(':');
                if parts.next() != Some("ndarray") {
                    return Err(unsupported(""));
                }
                let dtype = match parts.next() {
                    Some(name) => Some(scalar(name).ok_or_else(|| unsupported("no such element type is known"))?),
                    None => None,
                };
                let shape = match parts.next() {
                    Some(axes) => {
                        let axes: Option<Vec<usize>> =
                            axes.split(',').map(|axis| axis.parse().ok().filter(|axis| *axis > 0)).collect();
                        let axes = axes.filter(|axes| axes.len() <= 32);
                        let product =
                            axes.as_ref().and_then(|axes| axes.iter().try_fold(8_usize, |a, b| a.checked_mul(*b)));
                        Some(axes.filter(|_| product.is_some()).ok_or_else(|| unsupported("its shape is none"))?)
                    }
                    None => None,
                };
                if parts.next().is_some() {
                    return Err(unsupported(""));
                }
                Self::Array { dtype, shape }
            }
        })
    }

    /// Returns the bytes of every value, if they do not vary.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::Number(dtype, _) => Some(dtype.size() as u64),
            Self::Array { dtype: Some(dtype), shape: Some(shape) } => {
                Some((shape.iter().product::<usize>() * dtype.size()) as u64)
            }
            _ => None,
        }
    }

    /// Returns the Arrow field of the column; `sample` is a value of it, which gives an array's type and shape if the encoding does
    /// not.
    pub(super) fn field(&self, name: &str, sample: Option<&[u8]>) -> Result<Field> {
        let noted = |field: Field| {
            let note = std::iter::once((ENCODING_KEY.to_owned(), self.to_string()));
            field.with_metadata(note.collect::<Metadata>())
        };
        Ok(match self {
            Self::Bytes => Field::new(name, DataType::Binary, false),
            Self::Str => Field::new(name, DataType::Utf8, false),
            Self::Json | Self::Digits(_) => noted(Field::new(name, DataType::Utf8, false)),
            Self::Number(dtype, _) => Field::new(name, number(*dtype).unwrap_or(DataType::Binary), false),
            Self::Image(format) => {
                let mut field = noted(Field::new(name, DataType::Binary, false));
                let mut metadata = field.metadata().clone();
                metadata.insert(IMAGE_KEY.to_owned(), (*format).to_owned());
                field = field.with_metadata(metadata);
                field
            }
            Self::Pixels => {
                let note = std::iter::once((IMAGE_KEY.to_owned(), "png".to_owned()));
                Field::new(name, DataType::Binary, false).with_metadata(note.collect::<Metadata>())
            }
            Self::Images(encoding, word) => {
                // Pixels have been converted to image files.
                let encoding = if *encoding == PIXELS { Self::Images("list[png]", *word) } else { self.clone() };
                let note = std::iter::once((ENCODING_KEY.to_owned(), encoding.to_string()));
                let field = Field::new(name, DataType::new_list(DataType::Binary, true), false);
                field.with_metadata(note.collect::<Metadata>())
            }
            Self::Array { dtype, shape } => {
                let sample = sample.and_then(|sample| self.array(sample).ok());
                let found = (*dtype).or(sample.as_ref().map(|(dtype, ..)| *dtype));
                let axes = match (shape, &sample) {
                    (Some(shape), _) => Some(shape.iter().map(|axis| Some(*axis)).collect()),
                    (None, Some((_, shape, _))) => Some(vec![None; shape.len()]),
                    _ => None,
                };
                let field = noted(Field::new(name, DataType::Binary, false));
                match found.zip(axes) {
                    Some((dtype, shape)) => {
                        let stored = Stored { codec: Codec::Npy, element: Element::Number(dtype), shape };
                        let mut metadata = field.metadata().clone();
                        let (key, value) = stored.metadata();
                        metadata.insert(key, value);
                        field.with_metadata(metadata)
                    }
                    None => field,
                }
            }
        })
    }

    /// Checks that the column can be read as `field`.
    pub(super) fn check(&self, field: &Field) -> Result<()> {
        let kind = field.data_type();
        let fits = match self {
            Self::Bytes => is_binary(kind) || is_text(kind),
            Self::Image(_) | Self::Pixels => is_binary(kind),
            Self::Str => is_text(kind) || is_binary(kind),
            Self::Digits(_) => is_text(kind) || dtype(kind).is_some() || matches!(kind, DataType::Decimal128(..)),
            Self::Json => true,
            Self::Number(..) => dtype(kind).is_some(),
            Self::Images(..) => item(kind).is_some_and(is_binary),
            Self::Array { .. } => is_binary(kind) || item(kind).is_some_and(|item| dtype(item).is_some()),
        };
        if fits {
            return Ok(());
        }
        Err(refused(Format::Mds, field, &format!("the column's encoding is {self}")))
    }

    /// Decodes the element type, shape and bytes of an array.
    pub(super) fn array(&self, cell: &[u8]) -> Result<(DType, Vec<usize>, Vec<u8>), String> {
        let Self::Array { dtype, shape } = self else { return Err("it is not an array".to_owned()) };
        let mut rest = cell;
        let mut take = |count: usize| -> Result<&[u8], String> {
            let (taken, left) = rest.split_at_checked(count).ok_or("the array is cut short")?;
            rest = left;
            Ok(taken)
        };
        let dtype = match dtype {
            Some(dtype) => *dtype,
            None => {
                let code = take(1)?[0];
                let known = CODES.iter().find(|(own, _)| *own == code).map(|(_, dtype)| *dtype);
                known.ok_or_else(|| format!("the element type {code} of an array is not known"))?
            }
        };
        let shape = match shape {
            Some(shape) => shape.clone(),
            None => {
                let byte = take(1)?[0];
                let (axes, width) = (usize::from(byte >> 2), 1 << (byte % 4));
                if axes > 32 {
                    return Err(format!("an array of {axes} axes"));
                }
                let mut shape = Vec::with_capacity(axes);
                for _ in 0..axes {
                    let mut axis = [0; 8];
                    axis[..width].copy_from_slice(take(width)?);
                    let axis = usize::try_from(u64::from_le_bytes(axis)).map_err(|_| "an axis is too long")?;
                    shape.push(axis);
                }
                shape
            }
        };
        let bytes = shape.iter().try_fold(dtype.size(), |product, axis| product.checked_mul(*axis));
        if bytes != Some(rest.len()) {
            return Err(format!("an array {shape:?} of {dtype} in {} bytes", rest.len()));
        }
        Ok((dtype, shape, rest.to_vec()))
    }

    /// Chooses the encoding of an Arrow column.
    ///
    /// # Errors
    /// `Unsupported` with the column and its type.
    pub(super) fn of(field: &Field) -> Result<Self> {
        let kind = field.data_type();
        let noted = field.metadata().get(ENCODING_KEY).and_then(|noted| Self::parse(field.name(), noted).ok());
        let writable = |encoding: &Self| !matches!(encoding, Self::Pixels | Self::Number(..));
        if let Some(encoding) = noted.filter(|encoding| writable(encoding) && encoding.check(field).is_ok()) {
            return Ok(encoding);
        }
        let stored = Stored::of(field.metadata()).and_then(Result::ok);
        if let Some(Stored { codec: Codec::Npy | Codec::Npz, element: Element::Number(dtype), shape }) = &stored
            && scalar(dtype.name()).is_some()
        {
            let fixed: Option<Vec<usize>> = shape.iter().copied().collect();
            let shape = fixed.filter(|shape| !shape.is_empty() && shape.iter().all(|axis| *axis > 0));
            return Ok(Self::Array { dtype: Some(*dtype), shape });
        }
        if let Some(stored) = stored.filter(|stored| matches!(stored.codec, Codec::Npy | Codec::Npz)) {
            let hint = format!("its arrays are of {:?}; MDS has arrays of numbers", stored.element);
            return Err(refused(Format::Mds, field, &hint));
        }
        if is_binary(kind) {
            return Ok(match field.metadata().get(IMAGE_KEY).map(String::as_str) {
                Some("jpeg") => Self::Image("jpeg"),
                Some("png") => Self::Image("png"),
                _ => Self::Bytes,
            });
        }
        if is_text(kind) {
            return Ok(Self::Str);
        }
        if let Some(found) = dtype(kind) {
            // There is no boolean; a byte holds its value.
            return Ok(Self::Number(if found == DType::Bool { DType::Uint8 } else { found }, false));
        }
        let inner = item(kind).and_then(dtype).map(|found| if found == DType::Bool { DType::Uint8 } else { found });
        match (inner, kind) {
            (Some(dtype), DataType::FixedSizeList(_, size)) if *size > 0 => {
                Ok(Self::Array { dtype: Some(dtype), shape: usize::try_from(*size).ok().map(|size| vec![size]) })
            }
            (Some(dtype), _) => Ok(Self::Array { dtype: Some(dtype), shape: None }),
            (None, DataType::List(_) | DataType::LargeList(_) | DataType::Struct(_) | DataType::Map(..))
                if plain_json(kind) =>
            {
                Ok(Self::Json)
            }
            _ => Err(refused(Format::Mds, field, "MDS has numbers, text, bytes, images, arrays of numbers, and JSON")),
        }
    }
}

/// Returns true if values survive JSON: text, numbers and booleans in lists and structs.
pub(super) fn plain_json(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(members) => !members.is_empty() && members.iter().all(|member| plain_json(member.data_type())),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => {
                pair.first().is_some_and(|key| is_text(key.data_type()))
                    && pair.get(1).is_some_and(|value| plain_json(value.data_type()))
            }
            _ => false,
        },
        other => is_text(other) || dtype(other).is_some() || item(other).is_some_and(plain_json),
    }
}
