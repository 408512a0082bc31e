//! The wire format of `tf.train.Example` and `SequenceExample`, and their features as columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Float32Builder, Int64Builder, LargeListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type};
use prost::Message;

use crate::convert::errors::{refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::types::{is_binary, is_text, item, type_text};
use crate::convert::values::cells::as_type_of;
use crate::error::{Error, Place, Result};
use crate::schema::cast;

/// `tf.train.Feature`: one kind of list.
#[derive(Clone, PartialEq, Message)]
pub struct Feature {
    /// The list; `None` in an empty feature.
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    pub kind: Option<Kind>,
}

/// The list of a [`Feature`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// Strings of bytes.
    #[prost(message, tag = "1")]
    Bytes(BytesList),
    /// Floats of 32 bits.
    #[prost(message, tag = "2")]
    Float(FloatList),
    /// Integers of 64 bits.
    #[prost(message, tag = "3")]
    Int64(Int64List),
}

/// `tf.train.BytesList`.
#[derive(Clone, PartialEq, Message)]
pub struct BytesList {
    /// The values.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub value: Vec<Vec<u8>>,
}

/// `tf.train.FloatList`.
#[derive(Clone, PartialEq, Message)]
pub struct FloatList {
    /// The values.
    #[prost(float, repeated, packed = "true", tag = "1")]
    pub value: Vec<f32>,
}

/// `tf.train.Int64List`.
#[derive(Clone, PartialEq, Message)]
pub struct Int64List {
    /// The values.
    #[prost(int64, repeated, packed = "true", tag = "1")]
    pub value: Vec<i64>,
}

/// `tf.train.Features`.
#[derive(Clone, PartialEq, Message)]
pub struct Features {
    /// By name; of duplicate names the last one counts, as in protobuf.
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature: BTreeMap<String, Feature>,
}

/// `tf.train.FeatureList`.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureList {
    /// One per step.
    #[prost(message, repeated, tag = "1")]
    pub feature: Vec<Feature>,
}

/// `tf.train.FeatureLists`.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureLists {
    /// By name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub feature_list: BTreeMap<String, FeatureList>,
}

/// `tf.train.Example` and `tf.train.SequenceExample` in one: the first field holds the features of the former or the context of the
/// latter, which alone has the second.
#[derive(Clone, PartialEq, Message)]
pub struct Example {
    /// Features, or the context of a sequence.
    #[prost(message, optional, tag = "1")]
    pub features: Option<Features>,
    /// The steps of a sequence.
    #[prost(message, optional, tag = "2")]
    pub feature_lists: Option<FeatureLists>,
}

/// The three kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Bytes,
    Float,
    Int64,
}

impl Kind {
    fn of(&self) -> Of {
        match self {
            Self::Bytes(_) => Of::Bytes,
            Self::Float(_) => Of::Float,
            Self::Int64(_) => Of::Int64,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(list) => list.value.len(),
            Self::Float(list) => list.value.len(),
            Self::Int64(list) => list.value.len(),
        }
    }
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Float => "floats",
            Self::Int64 => "integers",
        }
    }

    fn data_type(self, text: bool) -> DataType {
        match self {
            Self::Bytes if text => DataType::Utf8,
            Self::Bytes => DataType::Binary,
            Self::Float => DataType::Float32,
            Self::Int64 => DataType::Int64,
        }
    }

    /// Returns the kind that holds values of a type.
    fn holding(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Float16 | DataType::Float32 => Some(Self::Float),
            // Values beyond int64 do not fit.
            DataType::UInt64 => None,
            DataType::Boolean => Some(Self::Int64),
            other if other.is_integer() => Some(Self::Int64),
            other if is_text(other) || is_binary(other) => Some(Self::Bytes),
            _ => None,
        }
    }
}

/// Evidence from a sample of records about one feature.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guess {
    of: Option<Of>,
    mixed: bool,
    /// True if every occurrence so far had one value.
    scalar: Option<bool>,
    sequence: bool,
    text: Option<bool>,
}

impl Guess {
    fn feature(&mut self, feature: &Feature) {
        let Some(kind) = &feature.kind else { return };
        self.mixed |= self.of.is_some_and(|of| of != kind.of());
        self.of = Some(kind.of());
        self.scalar = Some(self.scalar.unwrap_or(true) && kind.len() == 1);
        if let Kind::Bytes(list) = kind {
            for value in &list.value {
                // Values with control characters are hardly text, even if they happen to be UTF-8.
                let text = std::str::from_utf8(value)
                    .is_ok_and(|text| !text.chars().any(|c| c.is_control() && !c.is_whitespace()));
                if !value.is_empty() {
                    self.text = Some(self.text.unwrap_or(true) && text);
                }
            }
        }
    }

    /// Returns the type of the column.
    pub(crate) fn data_type(&self, name: &str) -> Result<DataType> {
        if self.mixed {
            return Err(Error::unsupported(
                format!("feature {name:?} of several kinds"),
                "such records cannot be one table",
            ));
        }
        let of = self.of.unwrap_or(Of::Bytes);
        let inner = of.data_type(self.text == Some(true));
        Ok(match (self.sequence, self.scalar) {
            (true, _) => DataType::new_list(DataType::new_list(inner, true), true),
            (false, Some(true)) => inner,
            _ => DataType::new_list(inner, true),
        })
    }
}

/// Adds a record to the guesses.
pub(crate) fn observe(example: &Example, guesses: &mut BTreeMap<String, Guess>) {
    let features = example.features.iter().flat_map(|features| &features.feature);
    for (name, feature) in features {
        guesses.entry(name.clone()).or_default().feature(feature);
    }
    let lists = example.feature_lists.iter().flat_map(|lists| &lists.feature_list);
    for (name, list) in lists {
        let guess = guesses.entry(name.clone()).or_default();
        guess.sequence = true;
        list.feature.iter().for_each(|feature| guess.feature(feature));
    }
}

/// Returns true if records hold columns of this type.
pub(crate) fn holds(data_type: &DataType) -> bool {
    let inner = item(data_type).unwrap_or(data_type);
    Of::holding(item(inner).unwrap_or(inner)).is_some()
}

/// Refuses a column of a type that records do not hold.
pub(crate) fn check(field: &Field) -> Result<()> {
    if holds(field.data_type()) {
        return Ok(());
    }
    let inner = item(field.data_type()).unwrap_or(field.data_type());
    let hint = match item(inner).unwrap_or(inner) {
        DataType::Float64 => "records hold floats of 32 bits: cast with --schema, at the loss of digits",
        DataType::UInt64 => "records hold integers of 64 bits with a sign: cast with --schema",
        _ => "records hold integers, floats of 32 bits, text, bytes, and lists of them; choose with --columns",
    };
    Err(refused(Format::Tfrecord, field, hint))
}

/// Returns true if a column needs steps: a list of lists.
pub(crate) fn is_sequence(data_type: &DataType) -> bool {
    item(data_type).and_then(item).is_some()
}

/// The values of one feature, gathered from records.
#[derive(Debug)]
pub(crate) struct Column {
    name: String,
    data_type: DataType,
    of: Of,
    /// Levels of lists.
    levels: usize,
    ints: Int64Builder,
    floats: Float32Builder,
    bytes: BinaryBuilder,
    values: usize,
    /// Ends of the inner lists of a sequence.
    inner: Vec<i64>,
    /// Ends of the rows.
    outer: Vec<i64>,
    valid: Vec<bool>,
}

impl Column {
    pub(crate) fn new(field: &Field) -> Result<Self> {
        check(field)?;
        let inner = item(field.data_type());
        let innermost = inner.map(|inner| item(inner).unwrap_or(inner)).unwrap_or(field.data_type());
        let levels = usize::from(inner.is_some()) + usize::from(inner.and_then(item).is_some());
        let of = Of::holding(innermost).unwrap_or(Of::Bytes);
        Ok(Self {
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            of,
            levels,
            ints: Int64Builder::new(),
            floats: Float32Builder::new(),
            bytes: BinaryBuilder::new(),
            values: 0,
            inner: vec![0],
            outer: vec![0],
            valid: Vec::new(),
        })
    }

    /// Adds the values of `kind`. Returns their number.
    fn values(&mut self, kind: &Kind) -> Result<usize, String> {
        match (kind, self.of) {
            (Kind::Int64(list), Of::Int64) => self.ints.append_slice(&list.value),
            (Kind::Float(list), Of::Float) => self.floats.append_slice(&list.value),
            (Kind::Bytes(list), Of::Bytes) => list.value.iter().for_each(|value| self.bytes.append_value(value)),
            // An empty list may be of any kind.
            (kind, _) if kind.len() == 0 => {}
            (kind, of) => return Err(format!("it holds {} where {} are expected", kind.of().name(), of.name())),
        }
        self.values += kind.len();
        Ok(kind.len())
    }

    /// Adds a record's value of this column.
    pub(crate) fn push(&mut self, example: &Example) -> Result<(), String> {
        let feature = || example.features.as_ref().and_then(|features| features.feature.get(&self.name));
        match self.levels {
            0 => match feature().and_then(|feature| feature.kind.clone()) {
                Some(kind) => {
                    let count = self.values(&kind)?;
                    if count != 1 {
                        let name = type_text(&self.data_type);
                        return Err(format!(
                            "it holds {count} values where one is expected; give its type with --schema, as list<{name}>"
                        ));
                    }
                    self.valid.push(true);
                }
                None => {
                    match self.of {
                        Of::Int64 => self.ints.append_null(),
                        Of::Float => self.floats.append_null(),
                        Of::Bytes => self.bytes.append_null(),
                    }
                    self.values += 1;
                    self.valid.push(false);
                }
            },
            1 => {
                let kind = feature().and_then(|feature| feature.kind.clone());
                if let Some(kind) = &kind {
                    self.values(kind)?;
                }
                self.outer.push(self.values as i64);
                self.valid.push(kind.is_some());
            }
            _ => {
                let lists = example.feature_lists.as_ref().and_then(|lists| lists.feature_list.get(&self.name));
                for step in lists.iter().flat_map(|list| &list.feature) {
                    if let Some(kind) = &step.kind {
                        self.values(kind)?;
                    }
                    self.inner.push(self.values as i64);
                }
                self.outer.push(self.inner.len() as i64 - 1);
                self.valid.push(lists.is_some());
            }
        }
        Ok(())
    }

    /// Returns the array of the gathered values. An error names the row among them.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef> {
        let values: ArrayRef = match self.of {
            Of::Int64 => Arc::new(self.ints.finish()),
            Of::Float => Arc::new(self.floats.finish()),
            Of::Bytes => Arc::new(self.bytes.finish()),
        };
        self.values = 0;
        let mut array = values;
        let valid = NullBuffer::from(std::mem::take(&mut self.valid));
        let inner = std::mem::replace(&mut self.inner, vec![0]);
        let outer = std::mem::replace(&mut self.outer, vec![0]);
        let list = |values: ArrayRef, ends: Vec<i64>, valid: Option<NullBuffer>| -> Result<ArrayRef> {
            let field = Arc::new(Field::new("item", values.data_type().clone(), true));
            let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
            Ok(Arc::new(LargeListArray::try_new(field, offsets, values, valid).map_err(unexpected)?))
        };
        if self.levels == 2 {
            array = list(array, inner, None)?;
        }
        if self.levels > 0 {
            array = list(array, outer, Some(valid))?;
        }
        cast(&array, &self.data_type).map_err(|misfit| {
            let mut place = Place::default().column(self.name.as_str());
            place.row = misfit.row.map(|row| row as u64);
            Error::corrupt(place, format!("{misfit}; give its type with --schema"))
        })
    }
}

/// A column being written to records.
#[derive(Debug)]
pub(crate) struct Encoder {
    name: String,
    of: Of,
    levels: usize,
    /// The innermost values.
    values: ArrayRef,
    /// Ends of lists, outermost first.
    lists: Vec<LargeListArray>,
}

impl Encoder {
    pub(crate) fn new(field: &Field, column: &ArrayRef) -> Result<Self> {
        let mut lists = Vec::new();
        let mut values = Arc::clone(column);
        while let Some(inner) = item(values.data_type()).cloned() {
            let large = DataType::LargeList(Arc::new(Field::new("item", inner, true)));
            let list = as_type_of(field.name(), &values, &large)?;
            let list = list.as_list::<i64>().clone();
            values = Arc::clone(list.values());
            lists.push(list);
        }
        let Some(of) = Of::holding(values.data_type()) else {
            return Err(refused(Format::Tfrecord, field, ""));
        };
        let target = match of {
            Of::Int64 => DataType::Int64,
            Of::Float => DataType::Float32,
            Of::Bytes => DataType::BinaryView,
        };
        let values = if of == Of::Bytes && matches!(values.data_type(), DataType::FixedSizeBinary(_)) {
            as_type_of(field.name(), &as_type_of(field.name(), &values, &DataType::Binary)?, &target)
        } else {
            as_type_of(field.name(), &values, &target)
        };
        let values = values?;
        Ok(Self { name: field.name().clone(), of, levels: lists.len(), values, lists })
    }

    fn kind(&self, range: std::ops::Range<usize>, row: usize) -> Result<Kind> {
        let nulls = self.values.nulls().is_some_and(|nulls| range.clone().any(|at| nulls.is_null(at)));
        if nulls {
            let hint = "a feature has no nulls in it";
            return Err(refused_value(Format::Tfrecord, &self.name, row, "a null in a list", hint));
        }
        Ok(match self.of {
            Of::Int64 => {
                let values = self.values.as_primitive::<Int64Type>().values();
                Kind::Int64(Int64List { value: values.get(range).unwrap_or_default().to_vec() })
            }
            Of::Float => {
                let values = self.values.as_primitive::<Float32Type>().values();
                Kind::Float(FloatList { value: values.get(range).unwrap_or_default().to_vec() })
            }
            Of::Bytes => {
                let values = self.values.as_binary_view();
                Kind::Bytes(BytesList { value: range.map(|at| values.value(at).to_vec()).collect() })
            }
        })
    }

    /// Adds row `at` of the batch to `example`; a null adds nothing.
    pub(crate) fn add(&self, at: usize, example: &mut Example) -> Result<()> {
        let range = |list: &LargeListArray, at: usize| {
            let offsets = list.value_offsets();
            let of = |at: usize| offsets.get(at).map_or(0, |offset| *offset as usize);
            of(at)..of(at + 1)
        };
        let kind = match (self.levels, self.lists.first(), self.lists.get(1)) {
            (0, ..) if self.values.is_null(at) => return Ok(()),
            (0, ..) => self.kind(at..at + 1, at)?,
            (_, Some(list), _) if list.is_null(at) => return Ok(()),
            (1, Some(list), _) => self.kind(range(list, at), at)?,
            (_, Some(outer), Some(inner)) => {
                let mut steps = FeatureList::default();
                for step in range(outer, at) {
                    if inner.is_null(step) {
                        let hint = "a step has no nulls in it";
                        return Err(refused_value(Format::Tfrecord, &self.name, at, "a null in a list", hint));
                    }
                    steps.feature.push(Feature { kind: Some(self.kind(range(inner, step), at)?) });
                }
                let lists = example.feature_lists.get_or_insert_default();
                lists.feature_list.insert(self.name.clone(), steps);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let features = example.features.get_or_insert_default();
        features.feature.insert(self.name.clone(), Feature { kind: Some(kind) });
        Ok(())
    }
}
