//! Petastorm's schema: names, element types, shapes, and how each field is stored.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::arena::{Cell, Id, Object};
use super::globals::Global;
use super::numpy::Plain;
use super::pickle::{self, Pickle};
use super::spark::SparkType;
use crate::dataset::Limits;
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, DType, Element, Stored};

/// Axes of a field. NumPy allows 64.
const MAX_AXES: usize = 64;

/// A schema as Petastorm keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unischema {
    /// Its name.
    pub name: String,
    /// Its fields in stored order; each name once.
    pub fields: Vec<UnischemaField>,
}

/// One field of a [`Unischema`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnischemaField {
    /// Its name.
    pub name: String,
    /// The element type by its modern name: NumPy's scalar class (`uint8`, `str_`, `bytes_`, `bool_`, `datetime64`, ...), `Decimal`,
    /// or a class of Python's own (`str`, `bytes`, `int`, `float`, `bool`).
    pub numpy_dtype: String,
    /// Its shape, without axes for a scalar; `None` is an axis that varies from row to row.
    pub shape: Vec<Option<usize>>,
    /// Its storage; `None` is plain Parquet.
    pub codec: Option<FieldCodec>,
    /// True if it may be null.
    pub nullable: bool,
}

/// Storage of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldCodec {
    /// A column of a plain type.
    Scalar {
        /// Its Spark type.
        spark_type: SparkType,
    },
    /// `.npy` in a binary column.
    Ndarray,
    /// `.npz` in a binary column.
    CompressedNdarray,
    /// An image file in a binary column.
    CompressedImage {
        /// The ending that chose its format: `.png`, `.jpeg`.
        format: String,
        /// Quality of the JPEG encoder.
        quality: Option<i64>,
    },
}

impl Unischema {
    /// The schema in the pickle `bytes`, the value of [`UNISCHEMA_KEY`](super::UNISCHEMA_KEY). Nothing is imported or called.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unsupported`] and [`Error::Limit`], with the byte of the pickle or the name of the field.
    pub fn from_pickle(bytes: &[u8], limits: &Limits, place: &Place) -> Result<Self> {
        let mut pickle = pickle::read(bytes, "the Unischema", limits, place)?;
        let root = pickle.root;
        let object = pickle.arena.object(root).filter(|object| object.class == Global::Unischema);
        let Some(object) = object else {
            let what = pickle.arena.describe(root);
            return Err(pickle.budget.corrupt(format_args!("it is {what}, not a Unischema")));
        };
        let name = match pickle.arena.attribute(object, "_name") {
            Some(name) => pickle.text(name)?,
            None => None,
        };
        let name = name.ok_or_else(|| pickle.budget.corrupt("it has no name"))?;
        let pairs = pickle.arena.attribute(object, "_fields").and_then(|fields| pickle.arena.pairs(fields));
        let pairs = pairs.ok_or_else(|| pickle.budget.corrupt("it has no fields"))?;
        if pairs.len() > limits.max_columns {
            let asked = pairs.len();
            return Err(pickle.budget.too_many(
                "the number of fields",
                asked,
                limits.max_columns,
                "limits.max_columns",
            ));
        }
        let pairs: Vec<_> = pairs.collect();
        let mut fields = Vec::with_capacity(pairs.len());
        let mut names = HashSet::with_capacity(pairs.len());
        for (key, value) in pairs {
            let Some(key) = pickle.text(key)? else { return Err(pickle.budget.corrupt("a field has no name")) };
            let field = pickle.field(&key, value)?;
            if !names.insert(key) {
                return Err(pickle.budget.corrupt(format_args!("field {} comes twice", short(&field.name))));
            }
            fields.push(field);
        }
        Ok(Self { name, fields })
    }
}

/// A name for messages, not too long.
fn short(name: &str) -> String {
    format!("{:?}", name.chars().take(60).collect::<String>())
}

impl Pickle<'_> {
    /// A text of its own, from the budget.
    pub(super) fn text(&mut self, id: Id) -> Result<Option<String>> {
        Ok(match self.plain(id)? {
            Some(Plain::Text(text)) => Some(text),
            // `str` of Python 2 that is not UTF-8.
            Some(Plain::Bytes(_)) => self.arena.text(id).map(std::borrow::Cow::into_owned),
            _ => None,
        })
    }

    /// The value of attribute `name` of `object`, whose state may be that of many others and is looked through each time: from the budget.
    pub(super) fn attribute(&mut self, object: Object, name: &str) -> Result<Option<Id>> {
        let pairs = object.state.and_then(|state| self.arena.pairs(state)).map_or(0, |pairs| pairs.len());
        self.budget.charge(pairs as u64)?;
        Ok(self.arena.attribute(object, name))
    }

    fn field(&mut self, key: &str, id: Id) -> Result<UnischemaField> {
        let object = self.arena.object(id).filter(|object| object.class == Global::UnischemaField);
        let values = object.and_then(|object| self.arena.tuple(object.arguments)).map(<[Id]>::to_vec);
        let damaged = |pickle: &Self, what: &str| pickle.budget.corrupt(format_args!("field {}: {what}", short(key)));
        let Some(&[name, dtype, shape, ref optional @ ..]) = values.as_deref() else {
            return Err(damaged(self, &format!("it is {}, not a UnischemaField", self.arena.describe(id))));
        };
        let Some(name) = self.text(name)?.filter(|name| name == key) else {
            return Err(damaged(self, "its name is another"));
        };
        let numpy_dtype = match self.arena.cell(dtype) {
            Cell::Class(Global::Type(name)) => name,
            _ => match self.dtype_name(dtype)? {
                Some(name) => name,
                None => return Err(damaged(self, &format!("{} is not an element type", self.arena.describe(dtype)))),
            },
        };
        let shape = self.shape(shape)?.map_err(|what| damaged(self, &what))?;
        let codec = match optional.first() {
            Some(&codec) => self.codec(codec)?.map_err(|what| damaged(self, &what))?,
            None => None,
        };
        let nullable = match optional.get(1) {
            None => false,
            Some(&id) => match self.plain(id)? {
                Some(Plain::Bool(nullable)) => nullable,
                Some(Plain::Null | Plain::Int(0)) => false,
                Some(Plain::Int(1)) => true,
                _ => return Err(damaged(self, &format!("nullable is {}", self.arena.describe(id)))),
            },
        };
        self.budget.charge(256)?;
        Ok(UnischemaField { name, numpy_dtype: numpy_dtype.to_owned(), shape, codec, nullable })
    }

    fn shape(&mut self, id: Id) -> Result<Result<Vec<Option<usize>>, String>> {
        let axes = match self.arena.cell(id) {
            Cell::Tuple(_) | Cell::List(_) => self.arena.elements(id).unwrap_or_default(),
            _ => return Ok(Err(format!("its shape is {}", self.arena.describe(id)))),
        };
        if axes.len() > MAX_AXES {
            return Ok(Err(format!("its shape has {} axes, NumPy allows {MAX_AXES}", axes.len())));
        }
        let axes = axes.to_vec();
        let mut shape = Vec::with_capacity(axes.len());
        for id in axes {
            let axis = match self.plain(id)? {
                Some(Plain::Null) => None,
                Some(Plain::Int(axis)) if axis >= 0 => Some(axis as usize),
                _ => return Ok(Err(format!("its shape has an axis of {}", self.arena.describe(id)))),
            };
            shape.push(axis);
        }
        Ok(Ok(shape))
    }

    fn codec(&mut self, id: Id) -> Result<Result<Option<FieldCodec>, String>> {
        if matches!(self.arena.cell(id), Cell::None) {
            return Ok(Ok(None));
        }
        let Some(object) = self.arena.object(id) else {
            return Ok(Err(format!("its codec is {}", self.arena.describe(id))));
        };
        let codec = match object.class {
            Global::ScalarCodec => {
                let spark = self.attribute(object, "_spark_type")?;
                match spark.map(|spark| self.spark_type(spark)).transpose()? {
                    Some(Some(spark_type)) => FieldCodec::Scalar { spark_type },
                    _ => return Ok(Err("its codec has no Spark type".to_owned())),
                }
            }
            Global::NdarrayCodec => FieldCodec::Ndarray,
            Global::CompressedNdarrayCodec => FieldCodec::CompressedNdarray,
            Global::CompressedImageCodec => {
                let format = match self.attribute(object, "_image_codec")? {
                    Some(format) => self.text(format)?.filter(|format| format.len() <= 20),
                    None => None,
                };
                let Some(format) = format else { return Ok(Err("its codec has no image format".to_owned())) };
                let quality = match self.attribute(object, "_quality")? {
                    Some(quality) => self.plain(quality)?,
                    None => Some(Plain::Null),
                };
                let quality = match quality {
                    Some(Plain::Null) => None,
                    Some(Plain::Int(quality)) => Some(quality),
                    _ => return Ok(Err("the quality of its codec is not a number".to_owned())),
                };
                FieldCodec::CompressedImage { format, quality }
            }
            _ => return Ok(Err(format!("its codec is {}", self.arena.describe(id)))),
        };
        Ok(Ok(Some(codec)))
    }

    fn spark_type(&mut self, id: Id) -> Result<Option<SparkType>> {
        let Some(object) = self.arena.object(id) else { return Ok(None) };
        Ok(match object.class {
            Global::Spark(SparkType::Decimal { .. }) if object.state.is_some() => {
                let mut number = |name: &str| -> Result<Option<i64>> {
                    Ok(match self.attribute(object, name)?.map(|id| self.arena.cell(id)) {
                        Some(Cell::Int(value)) => Some(value),
                        _ => None,
                    })
                };
                let precision = number("precision")?.and_then(|precision| u8::try_from(precision).ok());
                let scale = number("scale")?.and_then(|scale| i8::try_from(scale).ok());
                precision.zip(scale).map(|(precision, scale)| SparkType::Decimal { precision, scale })
            }
            Global::Spark(spark) => Some(spark),
            _ => None,
        })
    }
}

impl UnischemaField {
    /// The element type of numbers and booleans, by NumPy's own names: Python's `float` has 64 bits.
    pub fn dtype(&self) -> Option<DType> {
        match self.numpy_dtype.as_str() {
            "bool_" | "bool" => Some(DType::Bool),
            "int" => Some(DType::Int64),
            "float" => Some(DType::Float64),
            // The names of DType are NumPy's, except one that NumPy does not have.
            name => DType::ALL.into_iter().find(|dtype| dtype.name() == name && *dtype != DType::Bfloat16),
        }
    }

    /// Content of each cell of its column; `None` for plain Parquet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for element types and image formats that nothing here delivers.
    pub fn stored(&self) -> Result<Option<Stored>> {
        let unsupported = |what: String| {
            let hint = "leave the field out".to_owned();
            Error::unsupported(format!("field {}: {what}", short(&self.name)), hint)
        };
        let codec = match &self.codec {
            None | Some(FieldCodec::Scalar { .. }) => return Ok(None),
            Some(FieldCodec::Ndarray) => Codec::Npy,
            Some(FieldCodec::CompressedNdarray) => Codec::Npz,
            Some(FieldCodec::CompressedImage { format, .. }) => match format.to_ascii_lowercase().as_str() {
                ".png" => Codec::Png,
                ".jpeg" | ".jpg" | ".jpe" => Codec::Jpeg,
                _ => return Err(unsupported(format!("images of the format {format:?}"))),
            },
        };
        let element = match self.numpy_dtype.as_str() {
            "str_" | "str" => Element::Text,
            "bytes_" | "bytes" => Element::Bytes,
            "datetime64" => Element::Time,
            "timedelta64" => Element::Timedelta,
            name => match self.dtype() {
                Some(dtype) => Element::Number(dtype),
                None => return Err(unsupported(format!("arrays of {name}"))),
            },
        };
        let image = matches!(codec, Codec::Png | Codec::Jpeg);
        if image && !matches!(element, Element::Number(DType::Uint8 | DType::Uint16)) {
            return Err(unsupported(format!("images of {}", self.numpy_dtype)));
        }
        Ok(Some(Stored { codec, element, shape: self.shape.clone() }))
    }
}
