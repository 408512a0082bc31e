//! The columns of a batch as Arrow fields, and back.
//!
//! | in the batch | on the wire |
//! |---|---|
//! | `x` `[B]` | a column of numbers |
//! | `x` `[B, 3, 4]` | `arrow.fixed_shape_tensor` of shape `[3, 4]` |
//! | `x__values`, `x__offsets`, `x__offsets_1` | `x`: large lists of (lists of) numbers or fixed-size lists |
//! | `x__values`, `x__offsets`, `x__indices` | `x` as above, and `x__indices` as one more such column |
//! | Arrow column | as it is |
//! | any of these in a batch of windows, time-major | `x`: a large list whose first value holds all, the others nothing |
//!
//! `bool` is Arrow's `bool8` (a byte each), `bfloat16` is `uint16`; the metadata key [`DTYPE_KEY`] identifies them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field as ArrowField, FieldRef, Schema as ArrowSchema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::schema::{CLASSES_KEY, DType, Dim, Field, Schema, Type, part_name};
use crate::tensor::{Batch, Value};

/// Metadata key of an Arrow field: element type of the tensor, by NumPy's name.
pub(crate) const DTYPE_KEY: &str = "bowstring.tensor_dtype";
/// Metadata key of an Arrow field: the axes of the column, as JSON: `["batch", 3, "ragged", "any", {"padded": 8}, {"cut": 8}]`.
pub(crate) const DIMS_KEY: &str = "bowstring.dims";
/// Metadata key of an Arrow field: unit of dates and times.
pub(crate) const UNIT_KEY: &str = "bowstring.unit";
/// Metadata key of an Arrow field: the column has a validity mask beside it.
const VALID_KEY: &str = "bowstring.valid";
/// Metadata key of an Arrow field: levels of lists around its values.
const LISTS_KEY: &str = "bowstring.lists";
/// Metadata key of an Arrow field: fixed axes of its values, if no extension type gives them.
const SHAPE_KEY: &str = "bowstring.shape";
/// Metadata key of an Arrow field: the names of the classes that its integers stand for, as JSON.
/// Metadata key of an Arrow field: the column whose offsets it shares.
const OFFSETS_OF_KEY: &str = "bowstring.offsets_of";
/// Metadata key of an Arrow field: rows of a window.
const FRAMES_KEY: &str = "bowstring.frames";

const EXTENSION_NAME: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";
const TENSOR: &str = "arrow.fixed_shape_tensor";
const BOOL8: &str = "arrow.bool8";

/// Most columns of a stream.
const MAX_COLUMNS: usize = 100_000;

/// One axis in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", untagged)]
enum Axis {
    Fixed(usize),
    Named(Named),
    Padded { padded: usize },
    Cut { cut: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Batch,
    Ragged,
    Any,
    Sparse,
}

impl From<Dim> for Axis {
    fn from(dim: Dim) -> Self {
        match dim {
            Dim::Batch => Self::Named(Named::Batch),
            Dim::Fixed(n) => Self::Fixed(n),
            Dim::Ragged => Self::Named(Named::Ragged),
            Dim::Any => Self::Named(Named::Any),
            Dim::Sparse => Self::Named(Named::Sparse),
            Dim::Padded(padded) => Self::Padded { padded },
            Dim::Cut(cut) => Self::Cut { cut },
        }
    }
}

impl From<Axis> for Dim {
    fn from(axis: Axis) -> Self {
        match axis {
            Axis::Named(Named::Batch) => Self::Batch,
            Axis::Fixed(n) => Self::Fixed(n),
            Axis::Named(Named::Ragged) => Self::Ragged,
            Axis::Named(Named::Any) => Self::Any,
            Axis::Named(Named::Sparse) => Self::Sparse,
            Axis::Padded { padded } => Self::Padded(padded),
            Axis::Cut { cut } => Self::Cut(cut),
        }
    }
}

/// Layout of a column on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// A tensor of this element type; the axes after the batch.
    Tensor(DType, Vec<usize>),
    /// Values of this element type with these fixed axes, within this many levels of lists.
    Ragged(DType, Vec<usize>, usize),
    /// An Arrow array of this type.
    Arrow(DataType),
}

/// One column of the wire.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// Rows per window, time-major.
    pub(super) frames: Option<usize>,
    /// For lists, the column whose offsets they share.
    pub(super) offsets_of: Option<Arc<str>>,
}

/// The columns of a stream of batches, known before the first one.
#[derive(Debug, Clone)]
pub struct Columns {
    pub(super) columns: Vec<Column>,
    arrow: SchemaRef,
    fields: Schema,
}

impl Columns {
    /// Derives the columns of batches like `empty_batch`, which has any number of rows, of `schema`.
    pub fn of(schema: &Schema, empty_batch: &Batch) -> Self {
        let owner: HashMap<Arc<str>, &Field> =
            schema.fields().iter().flat_map(|field| field.names().into_iter().map(move |name| (name, field))).collect();
        let (mut columns, mut arrow): (Vec<Column>, Vec<FieldRef>) = (Vec::new(), Vec::new());
        for (name, value) in empty_batch.columns() {
            let field = owner.get(name).copied();
            let frames = field.and_then(|field| match field.dims.first() {
                Some(Dim::Fixed(frames)) => Some(*frames),
                _ => None,
            });
            let flat = field.map(Field::flat_names).unwrap_or_default();
            let batch_axes = if frames.is_some() { 2 } else { 1 };
            let mut offsets_of = None;
            let (name, kind) = match (value, field) {
                (Value::Tensor(tensor), Some(field)) if flat.first() == Some(name) => {
                    // The values; every further name without a batch axis is a level of offsets, except indices.
                    let item = tensor.shape().get(1..).unwrap_or_default().to_vec();
                    let indices = usize::from(field.dims.contains(&Dim::Sparse));
                    (&field.name, Kind::Ragged(tensor.dtype(), item, flat.len() - 1 - indices))
                }
                (Value::Tensor(tensor), Some(field))
                    if field.dims.contains(&Dim::Sparse) && *name == part_name(&field.name, "indices", 0) =>
                {
                    offsets_of = Some(Arc::clone(&field.name));
                    (name, Kind::Ragged(tensor.dtype(), Vec::new(), 1))
                }
                (Value::Tensor(_), Some(_)) if flat.contains(name) => continue,
                (Value::Tensor(tensor), _) => {
                    let item = tensor.shape().get(batch_axes..).unwrap_or_default().to_vec();
                    (name, Kind::Tensor(tensor.dtype(), item))
                }
                (Value::Arrow(array), _) => (name, Kind::Arrow(array.data_type().clone())),
            };
            let column = Column { name: Arc::clone(name), kind, frames, offsets_of };
            arrow.push(Arc::new(arrow_field(&column, schema.get(&column.name))));
            columns.push(column);
        }
        Self { columns, arrow: Arc::new(ArrowSchema::new(arrow)), fields: schema.clone() }
    }

    /// Reads the columns that a server describes.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming the column that no bowstring server would send.
    pub fn from_arrow(arrow: &ArrowSchema) -> Result<Self> {
        if arrow.fields().len() > MAX_COLUMNS {
            return Err(foreign("the schema", &format!("{} columns", arrow.fields().len())));
        }
        let (mut columns, mut fields) = (Vec::new(), Vec::new());
        for field in arrow.fields() {
            let metadata = field.metadata();
            let column = Column::from_arrow(field)?;
            if let Some(json) = metadata.get(DIMS_KEY) {
                let axes: Vec<Axis> = serde_json::from_str(json)
                    .map_err(|error| foreign(field.name(), &format!("{DIMS_KEY} {json:?}: {error}")))?;
                fields.push(Field {
                    name: Arc::clone(&column.name),
                    ty: match &column.kind {
                        Kind::Arrow(ty) => Type::Arrow(ty.clone()),
                        Kind::Tensor(dtype, _) | Kind::Ragged(dtype, ..) => Type::Tensor(*dtype),
                    },
                    dims: axes.into_iter().map(Dim::from).collect(),
                    unit: metadata.get(UNIT_KEY).map(|unit| unit.as_str().into()),
                    valid: metadata.contains_key(VALID_KEY),
                    classes: metadata
                        .get(CLASSES_KEY)
                        .map(|json| serde_json::from_str::<Vec<Arc<str>>>(json))
                        .transpose()
                        .map_err(|error| foreign(field.name(), &format!("{CLASSES_KEY}: {error}")))?
                        .map(Into::into),
                });
            }
            columns.push(column);
        }
        Ok(Self { columns, arrow: Arc::new(arrow.clone()), fields: Schema::new(fields) })
    }

    /// Returns the Arrow schema.
    pub fn arrow(&self) -> &SchemaRef {
        &self.arrow
    }

    /// Returns the loader's schema: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        &self.fields
    }
}

/// Returns one Arrow field for each delivered column of `schema`, as in a stream; nullable if a mask comes with it.
pub fn arrow_schema(schema: &Schema) -> ArrowSchema {
    let field = |field: &Field| {
        let nullable = field.valid || matches!(field.ty, Type::Arrow(_));
        arrow_field(&Column::of(field), Some(field)).with_nullable(nullable)
    };
    ArrowSchema::new(schema.fields().iter().map(field).collect::<Vec<_>>())
}

/// Returns the Arrow field of a column; `field` is the delivered field, unless the column is only a part of one.
fn arrow_field(column: &Column, field: Option<&Field>) -> ArrowField {
    let mut metadata = HashMap::new();
    if let Some(field) = field {
        let axes: Vec<Axis> = field.dims.iter().copied().map(Axis::from).collect();
        // A list of numbers and short names cannot fail to encode.
        metadata.insert(DIMS_KEY.to_owned(), serde_json::to_string(&axes).unwrap_or_default());
        metadata.extend(field.unit.iter().map(|unit| (UNIT_KEY.to_owned(), unit.to_string())));
        metadata.extend(field.valid.then(|| (VALID_KEY.to_owned(), "true".to_owned())));
        let classes = field.classes.iter().map(|names| serde_json::json!(names.iter().collect::<Vec<_>>()).to_string());
        metadata.extend(classes.map(|names| (CLASSES_KEY.to_owned(), names)));
    }
    metadata.extend(column.offsets_of.iter().map(|of| (OFFSETS_OF_KEY.to_owned(), of.to_string())));
    let ty = match &column.kind {
        Kind::Arrow(ty) => ty.clone(),
        Kind::Tensor(dtype, shape) => {
            metadata.insert(DTYPE_KEY.to_owned(), dtype.name().to_owned());
            if column.frames.is_none() {
                let extension = tensor_extension(*dtype, shape).into_iter().flatten();
                metadata.extend(extension.map(|(key, value)| (key.to_owned(), value)));
            } else {
                metadata.insert(SHAPE_KEY.to_owned(), serde_json::json!(shape).to_string());
            }
            tensor_type(*dtype, shape)
        }
        Kind::Ragged(dtype, shape, levels) => {
            metadata.insert(DTYPE_KEY.to_owned(), dtype.name().to_owned());
            metadata.insert(LISTS_KEY.to_owned(), levels.to_string());
            metadata.insert(SHAPE_KEY.to_owned(), serde_json::json!(shape).to_string());
            (0..*levels).fold(tensor_type(*dtype, shape), |ty, _| large_list(ty))
        }
    };
    let nullable = matches!(column.kind, Kind::Arrow(_));
    let arrow = match column.frames {
        None => ArrowField::new(&*column.name, ty, nullable),
        Some(frames) => {
            metadata.insert(FRAMES_KEY.to_owned(), frames.to_string());
            ArrowField::new(&*column.name, large_list(ty), false)
        }
    };
    arrow.with_metadata(metadata)
}

impl Column {
    /// Returns the column of the values of a delivered field, without lengths, shapes, indices and mask.
    fn of(field: &Field) -> Self {
        let (before, axes) = match field.dims.iter().position(|dim| *dim == Dim::Batch) {
            Some(at) => (&field.dims[..at], &field.dims[at + 1..]),
            None => (&[][..], &field.dims[..]),
        };
        let frames = match before {
            [Dim::Fixed(frames), ..] => Some(*frames),
            _ => None,
        };
        let fixed = axes.iter().filter_map(|dim| match dim {
            Dim::Fixed(n) | Dim::Padded(n) => Some(*n),
            Dim::Batch | Dim::Ragged | Dim::Cut(_) | Dim::Any | Dim::Sparse => None,
        });
        let lists = axes.iter().filter(|dim| matches!(dim, Dim::Ragged | Dim::Cut(_) | Dim::Sparse)).count();
        let kind = match &field.ty {
            Type::Arrow(ty) => Kind::Arrow(ty.clone()),
            Type::Tensor(dtype) if axes.contains(&Dim::Any) => Kind::Ragged(*dtype, Vec::new(), 1),
            Type::Tensor(dtype) if lists > 0 => Kind::Ragged(*dtype, fixed.collect(), lists),
            Type::Tensor(dtype) => Kind::Tensor(*dtype, fixed.collect()),
        };
        Self { name: Arc::clone(&field.name), kind, frames, offsets_of: None }
    }

    fn from_arrow(field: &ArrowField) -> Result<Self> {
        let metadata = field.metadata();
        let wrong = |found: String| foreign(field.name(), &found);
        let number = |key: &str| match metadata.get(key) {
            Some(text) => text.parse::<usize>().map(Some).map_err(|_| wrong(format!("{key} {text:?}"))),
            None => Ok(None),
        };
        let item = |ty: &DataType| match ty {
            DataType::LargeList(item) => Ok(item.data_type().clone()),
            ty => Err(wrong(format!("{ty} instead of a large list"))),
        };
        let frames = number(FRAMES_KEY)?;
        let ty = if frames.is_some() { item(field.data_type())? } else { field.data_type().clone() };
        let kind = match metadata.get(DTYPE_KEY) {
            None => Kind::Arrow(ty),
            Some(name) => {
                let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
                let dtype = dtype.ok_or_else(|| wrong(format!("element type {name:?}")))?;
                let levels = number(LISTS_KEY)?;
                let mut ty = ty;
                for _ in 0..levels.unwrap_or(0) {
                    ty = item(&ty)?;
                }
                let shape: Vec<usize> = match (metadata.get(SHAPE_KEY), metadata.get(EXTENSION_METADATA)) {
                    (Some(json), _) => {
                        serde_json::from_str(json).map_err(|_| wrong(format!("{SHAPE_KEY} {json:?}")))?
                    }
                    (None, Some(json)) if metadata.get(EXTENSION_NAME).is_some_and(|name| name == TENSOR) => {
                        let Shape { shape } =
                            serde_json::from_str(json).map_err(|_| wrong(format!("shape {json:?}")))?;
                        shape
                    }
                    (None, _) => Vec::new(),
                };
                if shape.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim)).is_none()
                    || tensor_type(dtype, &shape) != ty
                {
                    return Err(wrong(format!("{ty} for values of {dtype} {shape:?}")));
                }
                match levels {
                    Some(levels) => Kind::Ragged(dtype, shape, levels),
                    None => Kind::Tensor(dtype, shape),
                }
            }
        };
        let offsets_of = metadata.get(OFFSETS_OF_KEY).map(|of| of.as_str().into());
        Ok(Self { name: field.name().as_str().into(), kind, frames, offsets_of })
    }

    /// Returns the names of its parts in a batch, values first.
    pub(super) fn parts(&self) -> Vec<Arc<str>> {
        match &self.kind {
            Kind::Ragged(_, _, levels) if let Some(of) = &self.offsets_of => {
                let offsets = (0..*levels).map(|level| part_name(of, "offsets", level));
                std::iter::once(Arc::clone(&self.name)).chain(offsets).collect()
            }
            Kind::Ragged(_, _, levels) => {
                let values = part_name(&self.name, "values", 0);
                std::iter::once(values)
                    .chain((0..*levels).map(|level| part_name(&self.name, "offsets", level)))
                    .collect()
            }
            Kind::Tensor(..) | Kind::Arrow(_) => vec![Arc::clone(&self.name)],
        }
    }
}

/// The metadata of `arrow.fixed_shape_tensor`.
#[derive(Deserialize)]
struct Shape {
    shape: Vec<usize>,
}

fn foreign(what: &str, found: &str) -> Error {
    Error::Mismatch {
        what: format!("column {what} of the stream"),
        expected: "what bowstring sends".to_owned(),
        found: found.to_owned(),
        hint: "the server is not bowstring, or of another version".to_owned(),
    }
}

fn large_list(item: DataType) -> DataType {
    DataType::LargeList(Arc::new(ArrowField::new("item", item, true)))
}

/// Returns the Arrow type of one element.
fn element(dtype: DType) -> DataType {
    // Types that Arrow lacks: a byte, as in `arrow.bool8`, and two.
    dtype.arrow().unwrap_or(if dtype == DType::Bool { DataType::Int8 } else { DataType::UInt16 })
}

fn tensor_type(dtype: DType, shape: &[usize]) -> DataType {
    if shape.is_empty() {
        return element(dtype);
    }
    let width = shape.iter().product::<usize>();
    let item = ArrowField::new("item", element(dtype), false);
    DataType::FixedSizeList(Arc::new(item), i32::try_from(width).unwrap_or(i32::MAX))
}

fn tensor_extension(dtype: DType, shape: &[usize]) -> Option<[(&'static str, String); 2]> {
    if shape.is_empty() {
        return (dtype == DType::Bool)
            .then(|| [(EXTENSION_NAME, BOOL8.to_owned()), (EXTENSION_METADATA, String::new())]);
    }
    let metadata = serde_json::json!({ "shape": shape }).to_string();
    Some([(EXTENSION_NAME, TENSOR.to_owned()), (EXTENSION_METADATA, metadata)])
}
