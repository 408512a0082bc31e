//! The table of types as code: from an Arrow schema to its leaves, each with the path to it and its possible outcomes.
//!
//! `docs/types.md` is the same table as documentation.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use serde::Deserialize;

use super::options::ColumnOptions;
use super::select::Names;
use crate::error::{Error, Result};
use crate::schema::{CLASSES_KEY, DTYPE_KEY, DType, Feature, STORED_KEY, Stored, holds_image};

/// Types nested deeper than this are refused; no real schema is.
const DEPTH: usize = 64;

/// One step from a root column down to a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The struct's child of this name.
    Child(String),
    /// The items of a list of varying length (list, large list, list view, map; a fixed-size list around one of those).
    Items,
    /// The items of a fixed-size list of this length.
    Fixed(usize),
}

/// The kind of a leaf's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Numbers and booleans of this type, once dictionaries are decoded.
    Number(DType),
    /// Decimals: delivered as float64.
    Decimal,
    /// Fixed-size binary of this many bytes: uint8 with one more axis.
    Blob(usize),
    Text,
    Binary,
    /// A vector of Spark, of this length if it is stated.
    Vector(Option<usize>),
    /// No type: every value is null.
    Null,
    /// The reason that it cannot be delivered, and an alternative.
    Unsupported(String, &'static str),
}

/// One value column of a schema.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Dotted name. List items add nothing to it; the children of a map are `key` and `value`.
    pub(super) name: String,
    /// The part to read for it: the dotted path down to the first list.
    pub(super) read: String,
    /// Index of its root in the schema.
    pub(super) root: usize,
    pub(super) steps: Vec<Step>,
    /// Levels of varying length.
    pub(super) levels: usize,
    /// Fixed axes below the last of them.
    pub(super) dims: Vec<usize>,
    pub(super) kind: Kind,
    /// Its Arrow type.
    pub(super) ty: DataType,
    pub(super) unit: Option<String>,
    /// The intended element type of its numbers, if the dataset states it.
    pub(super) meant: Option<DType>,
    /// The content of its binary cells, if the dataset states it.
    pub(super) stored: Option<Stored>,
    /// Names of the classes that its integers number, if the dataset has them.
    pub(super) classes: Option<Arc<[Arc<str>]>>,
}

impl Leaf {
    /// Elements per innermost item.
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns true if its values are integers without a unit.
    pub(super) fn is_integer(&self) -> bool {
        self.unit.is_none()
            && matches!(&self.kind, Kind::Number(dtype) if dtype.arrow().is_some_and(|ty| ty.is_integer()))
    }

    /// Returns true if no list is around it.
    pub(super) fn is_scalar(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Child(_)))
    }
}

/// All leaves of `schema`, in order.
pub(super) fn leaves(schema: &Schema) -> Result<Vec<Leaf>> {
    let mut found = Vec::new();
    for (root, field) in schema.fields().iter().enumerate() {
        let at = Leaf {
            name: field.name().clone(),
            read: field.name().clone(),
            root,
            steps: Vec::new(),
            levels: 0,
            dims: Vec::new(),
            kind: Kind::Null,
            ty: DataType::Null,
            unit: None,
            meant: None,
            stored: None,
            classes: None,
        };
        let first = found.len();
        descend(at, field, DEPTH, &mut found)?;
        number_classes(field, &mut found[first..]);
    }
    Ok(found)
}

/// Gives the integers among `leaves`, which are those of `root`, the names of the classes that they number.
fn number_classes(root: &Field, leaves: &mut [Leaf]) {
    type Names = Arc<[Arc<str>]>;
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Classes {
        /// Of the column itself, as batches say it.
        Own(Names),
        /// By dotted name.
        Each(BTreeMap<String, Names>),
    }
    let Some(text) = root.metadata().get(CLASSES_KEY) else { return };
    let Ok(classes) = serde_json::from_str::<Classes>(text) else { return };
    for leaf in leaves.iter_mut().filter(|leaf| leaf.is_integer()) {
        leaf.classes = match &classes {
            Classes::Own(names) => (leaf.name == *root.name()).then(|| Arc::clone(names)),
            Classes::Each(names) => names.get(&leaf.name).cloned(),
        };
    }
}

/// The leaves of `schema` as `options` deliver them: a struct that stands for one value is one leaf, unless the options
/// name its members. These are the structs that the dataset has marked (see [`Feature`]), and those that `images` names
/// as images.
pub(super) fn delivered(schema: &Schema, options: &ColumnOptions) -> Result<Vec<Leaf>> {
    let mut leaves = leaves(schema)?;
    for (root, field) in schema.fields().iter().enumerate() {
        let name = field.name();
        let image = || (options.images.contains_key(name) && holds_image(field.data_type())).then_some(Feature::Image);
        let Some(feature) = Feature::of(field).or_else(image) else { continue };
        let Some(first) = leaves.iter().position(|leaf| leaf.root == root).filter(|_| !options.names_below(name))
        else {
            continue;
        };
        let bytes = leaves.iter().find(|leaf| leaf.root == root && leaf.steps == [Step::Child("bytes".to_owned())]);
        let whole =
            Leaf { name: name.clone(), read: name.clone(), levels: 0, dims: Vec::new(), ..leaves[first].clone() };
        let unsupported = |what: &str, hint: &'static str| {
            let steps = Vec::new();
            Leaf { kind: Kind::Unsupported(what.to_owned(), hint), steps, ..whole.clone() }
        };
        let leaf = match feature {
            Feature::Vector(size) => Leaf { kind: Kind::Vector(size), steps: Vec::new(), ..whole },
            Feature::Matrix => unsupported(
                "Spark's MatrixUDT",
                "exclude it, name what you want of it (\"<column>.values\"), or write vectors",
            ),
            Feature::Variant => {
                unsupported("Spark's variant", "exclude it, or write what you want of it as columns, with variant_get")
            }
            Feature::Image => match bytes {
                Some(bytes) => Leaf { name: name.clone(), ..bytes.clone() },
                None => continue,
            },
        };
        leaves.retain(|leaf| leaf.root != root);
        leaves.insert(first, leaf);
    }
    Ok(leaves)
}

fn descend(mut at: Leaf, field: &Field, depth: usize, found: &mut Vec<Leaf>) -> Result<()> {
    if depth == 0 {
        return Err(Error::unsupported(format!("column {}, nested more than {DEPTH} levels deep,", at.name), ""));
    }
    let children = |at: Leaf, children: &[(String, &Field)], found: &mut Vec<Leaf>| {
        for (name, child) in children {
            let mut next = at.clone();
            next.name = format!("{}.{name}", at.name);
            if at.steps.iter().all(|step| matches!(step, Step::Child(_))) {
                next.read = format!("{}.{}", at.read, child.name());
            }
            next.steps.push(Step::Child(child.name().clone()));
            descend(next, child, depth - 1, found)?;
        }
        Ok(())
    };
    match field.data_type() {
        DataType::Struct(fields) if fields.is_empty() => {
            at.kind = Kind::Unsupported("a struct without fields".to_owned(), "exclude it");
            found.push(at);
            Ok(())
        }
        DataType::Struct(fields) => {
            let named: Vec<_> = fields.iter().map(|child| (child.name().clone(), &**child)).collect();
            children(at, &named, found)
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::ListView(item) | DataType::LargeListView(item) => {
            list(&mut at);
            descend(at, item, depth - 1, found)
        }
        DataType::Map(entries, _) => {
            list(&mut at);
            let DataType::Struct(fields) = entries.data_type() else {
                at.kind = Kind::Unsupported("a map without entries".to_owned(), "exclude it");
                found.push(at);
                return Ok(());
            };
            let names = ["key", "value"].into_iter().map(str::to_owned);
            let named: Vec<_> = names.zip(fields.iter().map(|child| &**child)).collect();
            children(at, &named, found)
        }
        DataType::FixedSizeList(item, length) => {
            let length = usize::try_from(*length).unwrap_or(0);
            if holds_lists(item.data_type(), depth) {
                list(&mut at);
                return descend(at, item, depth - 1, found);
            }
            at.steps.push(Step::Fixed(length));
            match extension(field, length) {
                Ok(shape) => at.dims.extend(shape),
                Err((what, hint)) => {
                    at.kind = Kind::Unsupported(what, hint);
                    found.push(at);
                    return Ok(());
                }
            }
            descend(at, item, depth - 1, found)
        }
        leaf => {
            (at.kind, at.unit) = kind(leaf);
            at.ty = leaf.clone();
            // Text has no tensor form, so fixed axes around it are lists like others.
            if matches!(at.kind, Kind::Text | Kind::Binary) {
                at.levels += at.steps.iter().filter(|step| matches!(step, Step::Fixed(_))).count();
                at.steps.iter_mut().filter(|step| matches!(step, Step::Fixed(_))).for_each(|step| *step = Step::Items);
                at.dims.clear();
            }
            if at.is_scalar() && matches!(at.kind, Kind::Number(_)) {
                at.meant = field.metadata().get(DTYPE_KEY).and_then(|name| DType::parse(name));
            }
            if at.kind == Kind::Binary {
                match Stored::of(field.metadata()) {
                    Some(Ok(stored)) if at.levels == 0 => at.stored = Some(stored),
                    Some(Err(error)) => {
                        at.kind =
                            Kind::Unsupported(format!("metadata {STORED_KEY:?} that is wrong ({error})"), "exclude it");
                    }
                    _ => {}
                }
            }
            if let Kind::Blob(bytes) = at.kind {
                at.dims.push(bytes);
            }
            found.push(at);
            Ok(())
        }
    }
}

/// Adds a level of varying length.
fn list(at: &mut Leaf) {
    at.steps.push(Step::Items);
    at.levels += 1;
}

/// Returns true if a list of varying length lies within `ty`.
fn holds_lists(ty: &DataType, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    match ty {
        DataType::List(_) | DataType::LargeList(_) | DataType::ListView(_) | DataType::LargeListView(_) => true,
        DataType::Map(..) => true,
        DataType::FixedSizeList(item, _) => holds_lists(item.data_type(), depth - 1),
        DataType::Struct(fields) => fields.iter().any(|field| holds_lists(field.data_type(), depth - 1)),
        _ => false,
    }
}

/// The shape of a fixed-size list: its length, or that given by `arrow.fixed_shape_tensor`.
fn extension(field: &Field, length: usize) -> Result<Vec<usize>, (String, &'static str)> {
    if field.extension_type_name() != Some("arrow.fixed_shape_tensor") {
        return Ok(vec![length]);
    }
    #[derive(serde::Deserialize)]
    struct Tensor {
        shape: Vec<usize>,
        permutation: Option<Vec<usize>>,
    }
    let text = field.extension_type_metadata().unwrap_or_default();
    let tensor: Tensor = serde_json::from_str(text)
        .map_err(|error| (format!("arrow.fixed_shape_tensor with metadata that is wrong ({error})"), "exclude it"))?;
    let product = tensor.shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
    if product != Some(length) {
        let what = format!("arrow.fixed_shape_tensor of shape {:?} stored as lists of {length}", tensor.shape);
        return Err((what, "exclude it"));
    }
    if tensor.permutation.is_some_and(|axes| axes.iter().enumerate().any(|(at, axis)| at != *axis)) {
        let hint = "write it with its axes in the order in which they lie in memory";
        return Err(("arrow.fixed_shape_tensor with a permutation".to_owned(), hint));
    }
    Ok(tensor.shape)
}

/// The outcome of values of a type without children, and their unit.
pub(super) fn kind(ty: &DataType) -> (Kind, Option<String>) {
    use DataType as T;
    let number = |dtype| (Kind::Number(dtype), None);
    let unit = |dtype, unit: &str| (Kind::Number(dtype), Some(unit.to_owned()));
    match ty {
        T::Boolean => number(DType::Bool),
        T::Int8 => number(DType::Int8),
        T::Int16 => number(DType::Int16),
        T::Int32 => number(DType::Int32),
        T::Int64 => number(DType::Int64),
        T::UInt8 => number(DType::Uint8),
        T::UInt16 => number(DType::Uint16),
        T::UInt32 => number(DType::Uint32),
        T::UInt64 => number(DType::Uint64),
        T::Float16 => number(DType::Float16),
        T::Float32 => number(DType::Float32),
        T::Float64 => number(DType::Float64),
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => (Kind::Decimal, None),
        T::Date32 => unit(DType::Int32, "days"),
        T::Date64 => unit(DType::Int64, "ms"),
        T::Time32(of) => unit(DType::Int32, abbreviation(*of)),
        T::Time64(of) | T::Duration(of) => unit(DType::Int64, abbreviation(*of)),
        T::Timestamp(of, None) => unit(DType::Int64, abbreviation(*of)),
        T::Timestamp(of, Some(zone)) => (Kind::Number(DType::Int64), Some(format!("{}, {zone}", abbreviation(*of)))),
        T::Interval(IntervalUnit::YearMonth) => unit(DType::Int32, "months"),
        T::Utf8 | T::LargeUtf8 | T::Utf8View => (Kind::Text, None),
        T::Binary | T::LargeBinary | T::BinaryView => (Kind::Binary, None),
        T::FixedSizeBinary(bytes) => (Kind::Blob(usize::try_from(*bytes).unwrap_or(0)), None),
        T::Null => (Kind::Null, None),
        T::Dictionary(_, values) => kind(values),
        T::RunEndEncoded(_, values) => kind(values.data_type()),
        T::Interval(_) => (refused(ty, "exclude it, or store days and times as columns of their own"), None),
        _ => (refused(ty, "exclude it"), None),
    }
}

fn refused(ty: &DataType, hint: &'static str) -> Kind {
    Kind::Unsupported(format!("type {ty}"), hint)
}

fn abbreviation(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

/// Checks that every pattern of `exclude` matches a column of `schema`, or something within one.
///
/// # Errors
/// [`Error::NotFound`] with the nearest names.
pub(crate) fn check_excluded(schema: &Schema, exclude: &[String]) -> Result<()> {
    // A type without deliverable leaves still has its root's name.
    let leaves = leaves(schema).unwrap_or_default();
    let names = leaves.iter().map(|leaf| leaf.name.as_str());
    let names = schema.fields().iter().map(|field| field.name().as_str()).chain(names).collect();
    Names::new(names).check(exclude.iter())
}
