//! From options and leaves to the columns of a batch: the decisions, made once.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;

use super::leaf::{Kind, Leaf};
use super::number::{Scalar, element};
use super::options::{ColumnOptions, Lists, Nulls, Padded, Truncate};
use super::{select, stand_in};
use crate::codec::image::{Decoder, Deferred};
use crate::codec::{Decode, DecodeShaped, ImageDecoder, NpyDecoder, StoredDecoder};
use crate::error::{Error, Result};
use crate::schema::{DType, Dim, Element, Field, Stored, Type};

/// Rows of at least this many bytes are left in their pages: finding one costs less than copying it twice.
const WIDE: usize = 256;

/// A leaf that is read, and its destination.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) leaf: Leaf,
    pub(super) name: Arc<str>,
    pub(super) nulls: NullPlan,
    /// Element type of its values as delivered; that of the pack for a packed column.
    pub(super) dtype: DType,
    pub(super) packed: bool,
    pub(super) held: Held,
}

/// The form in which a member's cells are held, once prepared.
#[derive(Debug, Clone)]
pub(super) enum Held {
    /// Numbers, text, encoded values.
    Values,
    /// Lists of text (true) or bytes, from arrays of them with this many axes.
    Strings(Arc<NpyDecoder>, usize, bool),
    /// An Arrow array of this type.
    Arrow(DataType),
    /// Vectors of Spark of one length, dense.
    Dense(usize),
    /// The non-zero values of vectors of Spark, or all values of dense ones.
    Sparse,
    /// The indices of these values.
    Indices,
}

impl Held {
    /// Returns true if its cells are vectors of Spark.
    pub(super) fn is_vector(&self) -> bool {
        matches!(self, Self::Dense(_) | Self::Sparse | Self::Indices)
    }
}

/// Treatment of nulls, with the value to fill in as bytes: of one element, a value of an Arrow type, or a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NullPlan {
    Error,
    Mask,
    Fill(Vec<u8>),
}

impl NullPlan {
    /// The replacement of a missing text: nothing under a mask, as Arrow has nulls; empty for a bad row that is
    /// still delivered.
    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Error => Some(&[]),
            Self::Mask => None,
            Self::Fill(text) => Some(text),
        }
    }
}

/// One column of the batch with the tensors that belong to it.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) name: Arc<str>,
    pub(super) form: Form,
    /// Element type; meaningless for Arrow forms.
    pub(super) dtype: DType,
    /// Fixed axes after the batch axis and the list axes.
    pub(super) dims: Vec<usize>,
    /// Values per row of its mask, if it has one: 1, or the columns of a pack.
    pub(super) valid: Option<usize>,
    /// Indices of its members.
    pub(super) members: Vec<usize>,
    pub(super) unit: Option<Arc<str>>,
    /// Names of the classes that its integers number.
    pub(super) classes: Option<Arc<[Arc<str>]>>,
}

/// The form of a column in the batch.
#[derive(Debug, Clone)]
pub(super) enum Form {
    Fixed,
    Pack,
    /// Lists of this many levels; plain ones may be cut.
    Ragged(usize, Option<Limit>),
    /// The values of the rows of a sparse matrix, as lists.
    Sparse,
    /// The indices of the preceding output's values: in the same form, without offsets of their own.
    Indices,
    Padded(Padding),
    /// Each cell is decoded to a value of one shape: images, arrays.
    Decoded(Arc<dyn Decode>),
    /// Each cell is decoded to a value of its own shape.
    Shaped(Shaped),
    /// Text (true) or binary without lists around it; nulls take the value, if there is one.
    Bytes(bool, Option<Vec<u8>>),
    /// Lists of text (true) or binary, this many levels deep.
    Nested(bool, usize),
    /// Values of any Arrow type, as they are stored.
    Arrow(DataType),
    /// Prepared, but not in this batch.
    Absent,
}

/// The form in the batch of a column with varying axes.
#[derive(Debug, Clone)]
pub(super) struct Shaped {
    pub(super) decoder: Arc<dyn DecodeShaped>,
    /// Axes of one value.
    pub(super) axes: usize,
    /// Set if only the first axis varies: then a column is like a list of fixed items, and needs no shapes.
    pub(super) list: bool,
    /// Likely ratio of a value's size to its stored size.
    pub(super) expansion: usize,
}

impl Shaped {
    /// Items of a value of this shape: along its first axis, or elements.
    pub(super) fn items(&self, shape: &[usize]) -> usize {
        if self.list {
            return shape.first().copied().unwrap_or(0);
        }
        if shape.is_empty() { 0 } else { shape.iter().fold(1, |product: usize, axis| product.saturating_mul(*axis)) }
    }
}

/// Maximum lengths of lists, by level, and the treatment of longer ones.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    pub(super) lengths: Vec<usize>,
    pub(super) truncate: Truncate,
}

/// Padding of lists.
#[derive(Debug, Clone)]
pub(super) struct Padding {
    pub(super) limit: Limit,
    /// One element.
    pub(super) fill: Vec<u8>,
    pub(super) left: bool,
}

impl Form {
    /// Returns true if a decoder makes its values when a batch is made.
    pub(super) fn is_decoded(&self) -> bool {
        matches!(self, Self::Decoded(_) | Self::Shaped(_))
    }
}

impl Output {
    /// Returns true if it is a tensor of one shape, made of one column.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self.form, Form::Fixed)
    }

    pub(super) fn is_arrow(&self) -> bool {
        matches!(self.form, Form::Bytes(..) | Form::Nested(..) | Form::Arrow(_))
    }

    /// The limit on the length of its lists, if there is one.
    pub(super) fn limit(&self) -> Option<&Limit> {
        match &self.form {
            Form::Ragged(_, limit) => limit.as_ref(),
            Form::Padded(padding) => Some(&padding.limit),
            _ => None,
        }
    }

    /// Returns true if rows of this many bytes are left in their pages until a batch takes them as they are stored:
    /// wide ones of its own width, or of lists that are not too long.
    pub(super) fn leaves(&self, row: usize) -> bool {
        let width = self.width();
        match &self.form {
            _ if row < WIDE => false,
            Form::Fixed => row == width,
            Form::Ragged(1, _) | Form::Padded(_) => {
                let strict = self.limit().filter(|limit| limit.truncate == Truncate::Error);
                row.is_multiple_of(width) && strict.is_none_or(|limit| row / width <= limit.lengths[0])
            }
            _ => false,
        }
    }

    /// Bytes of one innermost item: the fixed axes times the element.
    pub(super) fn width(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }

    pub(super) fn field(&self) -> Field {
        let mut dims = vec![Dim::Batch];
        match &self.form {
            Form::Ragged(_, Some(limit)) => dims.extend(limit.lengths.iter().map(|length| Dim::Cut(*length))),
            Form::Ragged(levels, None) | Form::Nested(_, levels) => dims.extend((0..*levels).map(|_| Dim::Ragged)),
            Form::Sparse | Form::Indices => dims.push(Dim::Sparse),
            Form::Padded(padding) => dims.extend(padding.limit.lengths.iter().map(|length| Dim::Padded(*length))),
            Form::Shaped(shaped) if shaped.list => dims.push(Dim::Ragged),
            Form::Shaped(shaped) => dims.extend((0..shaped.axes).map(|_| Dim::Any)),
            _ => {}
        }
        dims.extend(self.dims.iter().map(|n| Dim::Fixed(*n)));
        let ty = match &self.form {
            Form::Bytes(text, _) => Type::Arrow(super::bytes::delivered(*text, 0)),
            Form::Nested(text, levels) => Type::Arrow(super::bytes::delivered(*text, *levels)),
            Form::Arrow(ty) => Type::Arrow(ty.clone()),
            _ => Type::Tensor(self.dtype),
        };
        let (unit, classes) = (self.unit.clone(), self.classes.clone());
        Field { name: Arc::clone(&self.name), ty, dims, unit, valid: self.valid.is_some(), classes }
    }
}

/// Whether the option `arrow` means a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AsStored {
    No,
    /// By a prefix or a glob, which may mean leaves that cannot be delivered so.
    Meant,
    /// By its name.
    Named,
}

/// The decoding of a leaf's cells, if there is any.
enum RowGroupBlock {
    Plain,
    Image(ImageDecoder),
    /// Images that a device will decode.
    Deferred(Deferred),
    Stored(StoredDecoder, Vec<Option<usize>>),
    /// Arrays of text (true) or bytes, with this many axes.
    Strings(bool, usize),
    /// As stored, of this type.
    Arrow(DataType),
}

impl RowGroupBlock {
    fn of(leaf: &Leaf, as_stored: AsStored, options: &ColumnOptions) -> Result<Self> {
        let wrong = |option, problem: &str| Err(Error::config(option, format!("column {}: {problem}", leaf.name)));
        let image = select::lookup(&options.images, &leaf.name);
        let (as_arrow, exactly) = (as_stored != AsStored::No, as_stored == AsStored::Named);
        match (image, &leaf.stored) {
            // Text and binary are Arrow arrays anyway.
            _ if as_arrow && matches!(leaf.kind, Kind::Text | Kind::Binary) => Ok(Self::Plain),
            _ if as_arrow && leaf.is_scalar() => Ok(Self::Arrow(super::bytes::decoded(&leaf.ty))),
            _ if exactly => wrong("arrow", "lists and fixed-size lists are not delivered as they are stored"),
            (Some((image, _)), _) if leaf.kind == Kind::Binary && leaf.levels == 0 => Ok(match image.decoder {
                Decoder::Deferred => Self::Deferred(Deferred::new(image)?),
                Decoder::Cpu | Decoder::Nvjpeg => Self::Image(ImageDecoder::new(image)?),
            }),
            (Some((_, true)), _) => wrong("images", "only a binary column holds images"),
            (_, Some(Stored { element: element @ (Element::Text | Element::Bytes), shape, .. })) => {
                Ok(Self::Strings(*element == Element::Text, shape.len()))
            }
            (_, Some(stored)) => Ok(Self::Stored(StoredDecoder::new(stored)?, stored.shape.clone())),
            _ => Ok(Self::Plain),
        }
    }

    /// The element type of the decoded values.
    fn dtype(&self) -> Option<DType> {
        match self {
            Self::Plain => None,
            Self::Image(decoder) => Some(decoder.dtype()),
            Self::Stored(decoder, _) => Some(decoder.dtype()),
            Self::Deferred(_) | Self::Strings(..) | Self::Arrow(_) => Some(DType::Uint8),
        }
    }
}

/// The output of a leaf delivered on its own.
pub(super) fn single(leaf: &Leaf, as_stored: AsStored, at: usize, options: &ColumnOptions) -> Result<(Member, Output)> {
    let name: Arc<str> = leaf.name.as_str().into();
    let wrong = |option, problem: String| Err(Error::config(option, format!("column {name}: {problem}")));
    let (cast, cast_named) = select::lookup(&options.cast, &name).map_or((None, false), |(d, named)| (Some(*d), named));
    let cast = cast.or(leaf.meant);
    let cells = RowGroupBlock::of(leaf, as_stored, options)?;
    let is_bytes = matches!(leaf.kind, Kind::Text | Kind::Binary);
    if (is_bytes || !matches!(cells, RowGroupBlock::Plain)) && cast_named {
        return wrong("cast", "text, binary, images, and arrays in cells are not cast".to_owned());
    }
    let nulls = select::lookup(&options.nulls.0, &name).map_or(Nulls::Error, |(nulls, _)| nulls.clone());
    let dtype = match cells.dtype() {
        Some(dtype) => dtype,
        None if is_bytes => DType::Uint8,
        None => numeric(leaf, cast, &nulls)?,
    };
    let text = leaf.kind == Kind::Text;
    let held = match (&cells, &leaf.stored) {
        (RowGroupBlock::Strings(text, axes), Some(stored)) => {
            Held::Strings(Arc::new(NpyDecoder::new(stored)?), *axes, *text)
        }
        (RowGroupBlock::Arrow(ty), _) => Held::Arrow(ty.clone()),
        _ => Held::Values,
    };
    let list = select::lookup(&options.lists.0, &name);
    let named = matches!(list, Some((Lists::Padded(_) | Lists::Cut(_), true)));
    if named && (leaf.levels == 0 || is_bytes) {
        return wrong("lists", "only lists of numbers, of varying length, are padded".to_owned());
    }
    let is_vector = matches!(leaf.kind, Kind::Vector(_));
    if !is_vector && matches!(list, Some((Lists::Vector(_) | Lists::Csr, true))) {
        return wrong("lists", "only vectors of Spark are a matrix, or one in CSR".to_owned());
    }
    let null_plan = null_plan(leaf, &name, &nulls, dtype, &cells)?;
    let fill = null_plan.text().map(<[u8]>::to_vec);
    let mut dims = leaf.dims.clone();
    let mut unit =
        leaf.unit.as_deref().filter(|_| cast.is_none_or(|dtype| Kind::Number(dtype) == leaf.kind)).map(Arc::from);
    let form = match (cells, leaf.levels, list) {
        (RowGroupBlock::Image(decoder), ..) => {
            dims = decoder.shape().to_vec();
            Form::Decoded(Arc::new(decoder))
        }
        (RowGroupBlock::Deferred(photos), ..) => {
            dims = vec![photos.row_bytes()];
            Form::Decoded(Arc::new(photos))
        }
        (RowGroupBlock::Stored(decoder, shape), ..) => {
            unit = decoder.unit().map(Arc::from);
            let (form, fixed) = stored(decoder, &shape);
            dims = fixed;
            form
        }
        (RowGroupBlock::Strings(text, axes), ..) => Form::Nested(text, axes),
        (RowGroupBlock::Arrow(ty), ..) => Form::Arrow(ty),
        (RowGroupBlock::Plain, _, Some((Lists::Csr, _))) if is_vector => Form::Sparse,
        (RowGroupBlock::Plain, _, list) if is_vector => {
            let size = match (list, &leaf.kind) {
                (Some((Lists::Vector(size), _)), _) | (_, Kind::Vector(Some(size))) => *size,
                _ => 0,
            };
            if size == 0 || i32::try_from(size).is_err() {
                let problem = "nothing says how long its vectors are: give their length, {\"vector\": n}, or \"csr\"";
                return wrong("lists", problem.to_owned());
            }
            dims = vec![size];
            Form::Fixed
        }
        (RowGroupBlock::Plain, 0, _) if is_bytes => Form::Bytes(text, fill),
        (RowGroupBlock::Plain, levels, _) if is_bytes => Form::Nested(text, levels),
        (RowGroupBlock::Plain, 0, _) => Form::Fixed,
        (RowGroupBlock::Plain, levels, Some((Lists::Padded(padded), _))) => {
            Form::Padded(padding(padded, &name, dtype, levels)?)
        }
        (RowGroupBlock::Plain, 1, Some((Lists::Cut(padded), _))) => {
            Form::Ragged(1, Some(padding(padded, &name, dtype, 1)?.limit))
        }
        (RowGroupBlock::Plain, _, Some((Lists::Cut(_), _))) => {
            return wrong("lists", "lists of lists are padded or left as they are, not cut".to_owned());
        }
        (RowGroupBlock::Plain, levels, _) => Form::Ragged(levels, None),
    };
    let held = match (&form, is_vector) {
        (Form::Sparse, _) => Held::Sparse,
        (_, true) => Held::Dense(dims[0]),
        _ => held,
    };
    // Numbers cast to floats no longer number classes.
    let classes = leaf.classes.clone().filter(|_| dtype.arrow().is_some_and(|ty| ty.is_integer()));
    let valid = (null_plan == NullPlan::Mask).then_some(1);
    // The size of a vector follows from its length, not from its leaf.
    let leaf = if is_vector { Leaf { dims: dims.clone(), ..leaf.clone() } } else { leaf.clone() };
    let output = Output { name: Arc::clone(&name), form, dtype, dims, valid, members: vec![at], unit, classes };
    Ok((Member { leaf, name, nulls: null_plan, dtype, packed: false, held }, output))
}

/// The indices that belong to the values of a sparse matrix, as an output of their own.
pub(super) fn indices(member: &Member, output: &Output) -> Option<(Member, Output)> {
    if !matches!(output.form, Form::Sparse) {
        return None;
    }
    let member = Member { dtype: DType::Int32, held: Held::Indices, ..member.clone() };
    // A null is reported with the values.
    let member = Member { nulls: NullPlan::Fill(vec![0; DType::Int32.size()]), ..member };
    Some((member, Output { form: Form::Indices, dtype: DType::Int32, valid: None, ..output.clone() }))
}

/// The form of arrays of `shape` in cells, and the fixed axes that follow.
fn stored(decoder: StoredDecoder, shape: &[Option<usize>]) -> (Form, Vec<usize>) {
    let fixed = |axes: &[Option<usize>]| axes.iter().copied().collect::<Option<Vec<usize>>>();
    if let Some(dims) = fixed(shape) {
        return (Form::Decoded(Arc::new(decoder)), dims);
    }
    let rest = fixed(&shape[1..]);
    let (axes, list, expansion) = (shape.len(), rest.is_some(), decoder.expansion());
    (Form::Shaped(Shaped { decoder: Arc::new(decoder), axes, list, expansion }), rest.unwrap_or_default())
}

/// The members and the output of a pack.
pub(super) fn pack(
    name: &str,
    dtype: DType,
    leaves: &[&Leaf],
    first: usize,
    options: &ColumnOptions,
) -> Result<(Vec<Member>, Output)> {
    let mut members = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let column: Arc<str> = leaf.name.as_str().into();
        if leaf.levels > 0 || matches!(leaf.kind, Kind::Text | Kind::Binary | Kind::Vector(_)) {
            let problem =
                format!("column {column} of pack {name} is neither a number nor a fixed-size list of numbers");
            return Err(Error::config("pack", problem));
        }
        let nulls = select::lookup(&options.nulls.0, &column).map_or(Nulls::Error, |(nulls, _)| nulls.clone());
        numeric(leaf, Some(dtype), &nulls)?;
        let nulls = null_plan(leaf, &column, &nulls, dtype, &RowGroupBlock::Plain)?;
        members.push(Member { leaf: (*leaf).clone(), name: column, nulls, dtype, packed: true, held: Held::Values });
    }
    let columns = leaves.iter().map(|leaf| leaf.elements()).sum();
    let output = Output {
        name: name.into(),
        form: Form::Pack,
        dtype,
        dims: vec![columns],
        valid: members.iter().any(|member| member.nulls == NullPlan::Mask).then_some(columns),
        members: (first..first + members.len()).collect(),
        unit: None,
        classes: None,
    };
    Ok((members, output))
}

/// The element type of a numeric leaf, once cast.
fn numeric(leaf: &Leaf, cast: Option<DType>, nulls: &Nulls) -> Result<DType> {
    let refused =
        |what: &str, hint: &str| Err(Error::unsupported(format!("column {} ({what})", leaf.name), hint.to_owned()));
    match &leaf.kind {
        Kind::Number(dtype) => Ok(cast.unwrap_or(*dtype)),
        Kind::Decimal | Kind::Vector(_) => Ok(cast.unwrap_or(DType::Float64)),
        Kind::Blob(_) => Ok(cast.unwrap_or(DType::Uint8)),
        Kind::Unsupported(what, hint) => refused(what, hint),
        Kind::Null => match cast {
            Some(dtype) if *nulls != Nulls::Error => Ok(dtype),
            _ => refused("type Null: every value is null", "exclude it, or give it a cast and nulls `fill` or `mask`"),
        },
        Kind::Text | Kind::Binary => refused("text or binary", "deliver it on its own"),
    }
}

fn null_plan(leaf: &Leaf, name: &str, nulls: &Nulls, dtype: DType, cells: &RowGroupBlock) -> Result<NullPlan> {
    let wrong = |problem: &str| Err(Error::config("nulls", format!("column {name}: {problem}")));
    let value = match nulls {
        Nulls::Error => return Ok(NullPlan::Error),
        Nulls::Mask => return Ok(NullPlan::Mask),
        Nulls::Fill(value) => value,
    };
    let misfit = |ty: &dyn fmt::Display, hint| wrong(&format!("{value} is not a value of type {ty}{hint}"));
    match (cells, value) {
        (RowGroupBlock::Arrow(ty), _) if !stand_in::is_number(ty) => {
            wrong(&format!("as type {ty}, which it keeps by `arrow`, it has no number to fill in: choose \"mask\""))
        }
        (RowGroupBlock::Arrow(ty), _) => match stand_in::of(value, ty) {
            Some(bytes) => Ok(NullPlan::Fill(bytes)),
            None => misfit(ty, ", which it keeps by `arrow`: give a number that this type holds exactly, or \"mask\""),
        },
        (RowGroupBlock::Plain, Scalar::Text(text)) if matches!(leaf.kind, Kind::Text | Kind::Binary) => {
            Ok(NullPlan::Fill(text.clone().into_bytes()))
        }
        (RowGroupBlock::Plain, _) if matches!(leaf.kind, Kind::Text | Kind::Binary) => {
            wrong("it holds text or binary: give it a text of its own to fill with")
        }
        (RowGroupBlock::Plain, _) => match element(value, dtype) {
            Some(bytes) => Ok(NullPlan::Fill(bytes)),
            None => misfit(&dtype, ""),
        },
        (_, Scalar::Int(0)) => Ok(NullPlan::Fill(Vec::new())),
        _ => wrong("missing images and arrays are filled with 0 only"),
    }
}

fn padding(padded: &Padded, name: &str, dtype: DType, levels: usize) -> Result<Padding> {
    let wrong = |problem: String| Err(Error::config("lists", format!("column {name}: {problem}")));
    let lengths = padded.length.as_slice().to_vec();
    if lengths.len() != levels {
        return wrong(format!("lists nested {levels} deep need {levels} lengths, {} given", lengths.len()));
    }
    if lengths.contains(&0) {
        return wrong("a padded length must be at least 1".to_owned());
    }
    match element(&padded.fill, dtype) {
        Some(fill) => {
            let limit = Limit { lengths, truncate: padded.truncate };
            Ok(Padding { limit, fill, left: padded.left })
        }
        None => wrong(format!("fill {} is not a value of type {dtype}", padded.fill)),
    }
}
