//! Encoding of arrays as MDS cells.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field};

use crate::convert::format::Format;
use crate::convert::formats::jsonl;
use crate::convert::types::{self, is_text, item, number};
use crate::convert::values::cells::{as_type_of, npy_read, number_bytes};
use crate::convert::values::unheld::{Unheld, unheld};

use super::encoding::{CODES, Encoding};
use crate::convert::errors::refused_value;
use crate::error::{Place, Result};
use crate::schema::{Codec, DType};

/// A column being written to samples.
pub(super) struct Coder<'a> {
    name: &'a str,
    encoding: &'a Encoding,
    array: ArrayRef,
    /// Bytes of a number.
    width: usize,
    fixed: Vec<u8>,
    /// Codec for cells of arrays.
    codec: Codec,
}

impl<'a> Coder<'a> {
    pub(super) fn new(name: &'a str, encoding: &'a Encoding, column: &ArrayRef) -> Result<Self> {
        if has_nulls(column) {
            let at = column.logical_nulls().and_then(|nulls| nulls.iter().position(|valid| !valid)).unwrap_or(0);
            let hint = "MDS has no nulls: filter them out, or leave the column out";
            return Err(refused_value(Format::Mds, name, at, "a null", hint));
        }
        let mut coder =
            Self { name, encoding, array: Arc::clone(column), width: 0, fixed: Vec::new(), codec: Codec::Npy };
        match encoding {
            Encoding::Number(dtype, _) => {
                let kind = number(*dtype).unwrap_or(DataType::Int64);
                let array = as_type_of(name, column, &kind)?;
                coder.fixed = number_bytes(&array)?;
                coder.width = dtype.size();
            }
            Encoding::Json if !is_text(column.data_type()) => {
                if let Some(Unheld { row: at, what, hint }) = unheld(column)? {
                    return Err(refused_value(Format::Mds, name, at, what, hint));
                }
                let texts: ArrayRef = Arc::new(jsonl::texts(column)?);
                coder.array = as_type_of(name, &texts, &DataType::BinaryView)?;
            }
            Encoding::Digits(_) => {
                let texts = as_type_of(name, column, &DataType::Utf8)?;
                coder.array = as_type_of(name, &texts, &DataType::BinaryView)?;
            }
            Encoding::Array { .. } | Encoding::Images(..) if item(column.data_type()).is_some() => {
                let inner = item(column.data_type()).cloned().unwrap_or(DataType::Null);
                let inner = if matches!(encoding, Encoding::Images(..)) { DataType::BinaryView } else { inner };
                let large = DataType::LargeList(Arc::new(Field::new("item", inner, true)));
                coder.array = as_type_of(name, column, &large)?;
            }
            _ => {
                let plain = match column.data_type() {
                    DataType::FixedSizeBinary(_) => as_type_of(name, column, &DataType::Binary)?,
                    _ => Arc::clone(column),
                };
                coder.array = as_type_of(name, &plain, &DataType::BinaryView)?;
            }
        }
        Ok(coder)
    }

    /// Appends the value of row `at` of the batch.
    pub(super) fn put(&self, at: usize, out: &mut Vec<u8>) -> Result<()> {
        let refused = |what: &str| refused_value(Format::Mds, self.name, at, what, "");
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
                        let found = types::dtype(values.data_type()).unwrap_or(DType::Uint8);
                        let found = if found == DType::Bool { DType::Uint8 } else { found };
                        (found, vec![values.len()], number_bytes(&values)?)
                    }
                    None => {
                        let cell = self.array.as_binary_view().value(at);
                        let codec = if cell.starts_with(b"PK") { Codec::Npz } else { self.codec };
                        npy_read(codec, cell, || Place {
                            column: Some(self.name.into()),
                            row: Some(at as u64),
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

/// Returns true if an array has any null.
pub(super) fn has_nulls(array: &ArrayRef) -> bool {
    !matches!(array.data_type(), DataType::Null) && array.logical_null_count() > 0
}

#[cfg(test)]
mod tests {
    use super::super::take::Taker;
    use super::*;
    use crate::error::Error;

    #[test]
    fn encodings_are_read_as_they_are_written() {
        for text in
            ["bytes", "str", "int", "uint16", "float64", "ndarray", "ndarray:float32", "ndarray:int8:2,3", "json"]
        {
            assert_eq!(Encoding::parse("x", text).unwrap().to_string(), text);
        }
        for text in
            ["pkl", "ndarray:complex64", "ndarray:int8:0", "ndarray:int8:2:3", "jpeg:101", "list[pkl]", "bool", ""]
        {
            let error = Encoding::parse("x", text).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        }
        assert_eq!(Encoding::parse("x", "ndarray:int16:2,3").unwrap().size(), Some(12));
        assert_eq!(Encoding::parse("x", "jpeg:90").unwrap(), Encoding::Image("jpeg"));
    }

    #[test]
    fn lists_of_raw_pixels_become_lists_of_png() {
        let encoding = Encoding::parse("x", "list[pil]").unwrap();
        let field = Arc::new(encoding.field("x", None).unwrap());
        let pixels = |value: u8| [&[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0][..], b"L", &[value, 255 - value]].concat();
        let images = [pixels(7), pixels(250)];
        let sizes = images.iter().flat_map(|image| (image.len() as u32).to_le_bytes());
        let head = [0, 0, 0, 0, 2, 0, 0, 0].into_iter().chain(sizes);
        let cell: Vec<u8> = head.chain(images.concat()).collect();
        let mut taker = Taker::new(encoding, &field);
        taker.push(&cell).unwrap();
        assert!(taker.push(&cell[..cell.len() - 1]).is_err());
        let array = taker.finish().unwrap();
        let found = array.as_list::<i32>().value(0);
        for (png, value) in found.as_binary::<i32>().iter().zip([7, 250]) {
            let image = image::load_from_memory_with_format(png.unwrap(), image::ImageFormat::Png).unwrap();
            assert_eq!(
                (image.width(), image.height(), image.into_luma8().into_raw()),
                (2, 1, vec![value, 255 - value])
            );
        }
        assert_eq!(Encoding::of(&field).unwrap().to_string(), "list[png]");
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
        Coder::new("x", &encoding, &array).unwrap().put(0, &mut out).unwrap();
        assert_eq!(out, cell);
        for cut in 0..cell.len() {
            assert!(taker.push(&cell[..cut]).is_err(), "{cut}");
        }
        assert!(taker.push(&[99, 4, 1, 0]).is_err());
        let huge = [&[8, 2 << 2 | 3][..], &[0xff; 16]].concat();
        assert!(taker.push(&huge).is_err());
    }
}
