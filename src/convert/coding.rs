//! The encodings of MDS's columns: what each is in Arrow, read and written.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, ListBuilder, StringBuilder};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Metadata, Schema, SchemaRef};
use image::ExtendedColorType;
use image::ImageEncoder;
use image::codecs::png::PngEncoder;

use super::cells::{from_npy, npy_bytes, npy_read, number_bytes, numbers};
use super::chain::unexpected;
use super::format::Format;
use super::jsonl;
use super::mds::has_nulls;
use super::sample::IMAGE_KEY;
use super::sink::{is_binary, is_text, item, refused, refused_value};
use super::types::{dtype, number};
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, DType, Element, Stored};

/// Key of a field's metadata: the encoding of MDS that it was read from, where Arrow's type does not tell.
const ENCODING_KEY: &str = "bowstring.mds";

/// How a column of MDS is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Encoding {
    Bytes,
    Str,
    Json,
    /// A number as its digits: `str_int`, `str_float`, `str_decimal`.
    Digits(&'static str),
    /// A number; the flag says that it is named `int`.
    Number(DType, bool),
    Array {
        dtype: Option<DType>,
        shape: Option<Vec<usize>>,
    },
    /// A file of an image: `jpeg` or `png`.
    Image(&'static str),
    /// Raw pixels with their size and mode.
    Pixels,
    /// A list of images by the name of the encoding; the flag says that a word stands before the count.
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
const CODES: [(u8, DType); 11] = [
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

fn scalar(name: &str) -> Option<DType> {
    CODES.iter().map(|(_, dtype)| *dtype).find(|dtype| dtype.name() == name)
}

impl Encoding {
    /// The encoding named `text`.
    pub(super) fn parse(column: &str, text: &str) -> Result<Self> {
        let unsupported = |hint: &str| Error::Unsupported {
            what: format!("column {column:?} with the encoding {:?} of MDS", text.chars().take(60).collect::<String>()),
            hint: hint.to_owned(),
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
            "jpeg_array" | "jpegarray" => Self::Images("jpeg_array", false),
            "pkl" => return Err(unsupported("it holds pickles, which run code when they are read")),
            _ => {
                if let Some(dtype) = scalar(text) {
                    return Ok(Self::Number(dtype, false));
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

    /// Bytes of every value, if they do not vary.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::Number(dtype, _) => Some(dtype.size() as u64),
            Self::Array { dtype: Some(dtype), shape: Some(shape) } => {
                Some((shape.iter().product::<usize>() * dtype.size()) as u64)
            }
            _ => None,
        }
    }

    /// The column in Arrow; `sample` is a value of it, which tells what an array has where the encoding does not.
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
            Self::Images(..) => noted(Field::new(name, DataType::new_list(DataType::Binary, true), false)),
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

    /// Whether the column can be read as `field`.
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

    /// Element type, shape and bytes of an array.
    fn array(&self, cell: &[u8]) -> Result<(DType, Vec<usize>, Vec<u8>), String> {
        let Self::Array { dtype, shape } = self else { return Err("it is no array".to_owned()) };
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

    /// The encoding of a column of Arrow.
    ///
    /// # Errors
    /// `Unsupported` names column and type.
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
            // There is no boolean: a byte is what its value is.
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

/// Whether values are the same after JSON: text, numbers and booleans in lists and structs.
fn plain_json(data_type: &DataType) -> bool {
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

/// Gathers the values of a column into an array.
pub(super) struct Taker {
    encoding: Encoding,
    field: FieldRef,
    /// Fixed-size values, one after another.
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
    /// What is wrong with it.
    pub(super) fn push(&mut self, cell: &[u8]) -> Result<(), String> {
        match &self.encoding {
            Encoding::Number(..) => self.fixed.extend_from_slice(cell),
            Encoding::Bytes | Encoding::Image(_) => self.bytes.append_value(cell),
            Encoding::Str | Encoding::Json | Encoding::Digits(_) => {
                let text = std::str::from_utf8(cell).map_err(|_| "its text is not UTF-8")?;
                if self.encoding == Encoding::Json && serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
                    return Err("its text is no JSON".to_owned());
                }
                self.text.append_value(text);
            }
            Encoding::Array { .. } => {
                let (dtype, shape, bytes) = self.encoding.array(cell)?;
                let npy = npy_bytes(dtype, &shape, &bytes).map_err(|error| error.to_string())?;
                self.bytes.append_value(npy);
            }
            Encoding::Pixels => self.bytes.append_value(png(cell)?),
            Encoding::Images(_, word) => {
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
                    self.lists.values().append_value(image);
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

    /// The array of what was gathered.
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
                let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("c", wanted.clone(), true)]));
                let mut lines = Vec::new();
                for text in texts.iter() {
                    // Line ends may stand between the tokens of JSON, never in them.
                    lines.extend_from_slice(b"{\"c\":");
                    lines.extend_from_slice(text.unwrap_or("null").as_bytes());
                    lines.extend_from_slice(b"}\n");
                }
                let batch = jsonl::decode(&schema, &lines).map_err(|error| {
                    let place = Place { column: Some(self.field.name().as_str().into()), ..Place::default() };
                    Error::corrupt_by(place, "its JSON is not of the type that is wanted", error)
                })?;
                Arc::clone(batch.column(0))
            }
            Encoding::Str | Encoding::Json | Encoding::Digits(_) => Arc::new(self.text.finish()),
        };
        if array.data_type() == wanted {
            return Ok(array);
        }
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(&array, wanted, &options).map_err(|error| {
            let place = Place { column: Some(self.field.name().as_str().into()), ..Place::default() };
            Error::corrupt_by(place, "its values are not of the type that is wanted", error)
        })
    }
}

/// Raw pixels as PNG.
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

/// A column on its way into samples.
pub(super) struct Coder<'a> {
    name: &'a str,
    encoding: &'a Encoding,
    array: ArrayRef,
    /// Width of a number.
    width: usize,
    fixed: Vec<u8>,
    /// How the cells of arrays are kept.
    codec: Codec,
}

impl<'a> Coder<'a> {
    pub(super) fn new(name: &'a str, encoding: &'a Encoding, column: &ArrayRef, row: u64) -> Result<Self> {
        if has_nulls(column) {
            let at = column.logical_nulls().and_then(|nulls| nulls.iter().position(|valid| !valid)).unwrap_or(0);
            let hint = "MDS has no nulls: filter them out, or leave the column out";
            return Err(refused_value(Format::Mds, name, row + at as u64, "a null", hint));
        }
        let mut coder =
            Self { name, encoding, array: Arc::clone(column), width: 0, fixed: Vec::new(), codec: Codec::Npy };
        match encoding {
            Encoding::Number(dtype, _) => {
                let kind = number(*dtype).unwrap_or(DataType::Int64);
                let options = CastOptions { safe: false, ..CastOptions::default() };
                let array = cast_with_options(column, &kind, &options).map_err(unexpected)?;
                coder.fixed = number_bytes(&array)?;
                coder.width = dtype.size();
            }
            Encoding::Json if !is_text(column.data_type()) => {
                if let Some(at) = jsonl::not_finite(column)? {
                    let hint = "it is kept as JSON, which has no NaN and no infinity";
                    return Err(refused_value(Format::Mds, name, row + at as u64, "a NaN or infinity", hint));
                }
                let texts: ArrayRef = Arc::new(jsonl::texts(column)?);
                coder.array = cast(&texts, &DataType::BinaryView).map_err(unexpected)?;
            }
            Encoding::Digits(_) => {
                let texts = cast(column, &DataType::Utf8).map_err(unexpected)?;
                coder.array = cast(&texts, &DataType::BinaryView).map_err(unexpected)?;
            }
            Encoding::Array { .. } | Encoding::Images(..) if item(column.data_type()).is_some() => {
                let inner = item(column.data_type()).cloned().unwrap_or(DataType::Null);
                let inner = if matches!(encoding, Encoding::Images(..)) { DataType::BinaryView } else { inner };
                let large = DataType::LargeList(Arc::new(Field::new("item", inner, true)));
                coder.array = cast(column, &large).map_err(unexpected)?;
            }
            _ => {
                let plain = match column.data_type() {
                    DataType::FixedSizeBinary(_) => cast(column, &DataType::Binary).map_err(unexpected)?,
                    _ => Arc::clone(column),
                };
                coder.array = cast(&plain, &DataType::BinaryView).map_err(unexpected)?;
            }
        }
        Ok(coder)
    }

    /// Appends the value of row `at` of the batch.
    pub(super) fn put(&self, at: usize, row: u64, out: &mut Vec<u8>) -> Result<()> {
        let refused = |what: &str| refused_value(Format::Mds, self.name, row, what, "");
        match self.encoding {
            Encoding::Number(..) => {
                let cell = self.fixed.get(at * self.width..(at + 1) * self.width);
                out.extend_from_slice(cell.unwrap_or_default());
            }
            Encoding::Array { dtype, shape } => {
                let (found, axes, bytes) = match self.array.as_list_opt::<i64>() {
                    Some(lists) => {
                        let values = lists.value(at);
                        if values.null_count() > 0 {
                            return Err(refused("a null in a list"));
                        }
                        let found = super::types::dtype(values.data_type()).unwrap_or(DType::Uint8);
                        let found = if found == DType::Bool { DType::Uint8 } else { found };
                        (found, vec![values.len()], number_bytes(&values)?)
                    }
                    None => {
                        let cell = self.array.as_binary_view().value(at);
                        let codec = if cell.starts_with(b"PK") { Codec::Npz } else { self.codec };
                        npy_read(codec, cell, || Place {
                            column: Some(self.name.into()),
                            row: Some(row),
                            ..Place::default()
                        })?
                    }
                };
                if dtype.is_some_and(|dtype| dtype != found) {
                    return Err(refused(&format!("an array of {found} among those of {}", self.encoding)));
                }
                let code = CODES.iter().find(|(_, known)| *known == found).map(|(code, _)| *code);
                let code = code.ok_or_else(|| refused(&format!("an array of {found}")))?;
                if dtype.is_none() {
                    out.push(code);
                }
                match shape {
                    Some(shape) if *shape != axes => {
                        return Err(refused(&format!("an array {axes:?} among those of {shape:?}")));
                    }
                    Some(_) => {}
                    None => {
                        if axes.is_empty() {
                            return Err(refused("an array without axes"));
                        }
                        let most = axes.iter().copied().max().unwrap_or(0) as u64;
                        let log = if most < 1 << 8 {
                            0
                        } else if most < 1 << 16 {
                            1
                        } else if most < 1 << 32 {
                            2
                        } else {
                            3
                        };
                        out.push((axes.len() as u8) << 2 | log);
                        for axis in &axes {
                            out.extend_from_slice((*axis as u64).to_le_bytes().get(..1 << log).unwrap_or_default());
                        }
                    }
                }
                out.extend_from_slice(&bytes);
            }
            Encoding::Images(_, word) => {
                let images = self.array.as_list::<i64>().value(at);
                let images = images.as_binary_view();
                if images.null_count() > 0 {
                    return Err(refused("a null in a list"));
                }
                if *word {
                    out.extend_from_slice(&[0; 4]);
                }
                out.extend_from_slice(&(images.len() as u32).to_le_bytes());
                for image in images.iter().flatten() {
                    out.extend_from_slice(&(image.len() as u32).to_le_bytes());
                }
                images.iter().flatten().for_each(|image| out.extend_from_slice(image));
            }
            _ => out.extend_from_slice(self.array.as_binary_view().value(at)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_read_as_they_are_written() {
        for text in
            ["bytes", "str", "int", "uint16", "float64", "ndarray", "ndarray:float32", "ndarray:int8:2,3", "json"]
        {
            assert_eq!(Encoding::parse("x", text).unwrap().to_string(), text);
        }
        for text in ["pkl", "ndarray:complex64", "ndarray:int8:0", "ndarray:int8:2:3", "list[pil]", "bool", ""] {
            let error = Encoding::parse("x", text).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        assert_eq!(Encoding::parse("x", "ndarray:int16:2,3").unwrap().size(), Some(12));
    }

    #[test]
    fn arrays_survive_and_damaged_ones_do_not() {
        let encoding = Encoding::parse("x", "ndarray").unwrap();
        // uint16, two axes of one byte each, 2 x 1.
        let cell = [16, 2 << 2, 2, 1, 1, 0, 2, 0];
        let mut taker = Taker::new(encoding.clone(), &Arc::new(encoding.field("x", Some(&cell)).unwrap()));
        taker.push(&cell).unwrap();
        let array = taker.finish().unwrap();
        let mut out = Vec::new();
        Coder::new("x", &encoding, &array, 0).unwrap().put(0, 0, &mut out).unwrap();
        assert_eq!(out, cell);
        for cut in 0..cell.len() {
            assert!(taker.push(&cell[..cut]).is_err(), "{cut}");
        }
        assert!(taker.push(&[99, 4, 1, 0]).is_err());
        let huge = [&[8, 2 << 2 | 3][..], &[0xff; 16]].concat();
        assert!(taker.push(&huge).is_err());
    }
}
