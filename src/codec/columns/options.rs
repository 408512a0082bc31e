//! Options of columns, as plain fields. Validated once, in [`Columns::new`](super::Columns::new).

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};

use super::number::{Scalar, element};
use super::select;
use crate::codec::ImageOptions;
use crate::codec::image::Decoder;
use crate::schema::DType;

/// The selection of columns to deliver, and the treatment of each.
///
/// A column is named by its dotted path (`user.age`), by a prefix of it (`user`: everything below), or by a glob in
/// which `*` stands for any characters, dots included, and `?` for one. `docs/types.md` has the table of all types.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ColumnOptions {
    /// Columns to deliver, in this order, a glob's in file order; empty means all. A pack's name stands for the pack.
    pub columns: Vec<String>,
    /// Columns to leave out.
    pub exclude: Vec<String>,
    /// Treatment of nulls: one policy for all columns, or one per column (`*`: all others).
    pub nulls: PerColumn<Nulls>,
    /// Delivery of lists of varying length: one policy for all columns, or one per column.
    #[serde(deserialize_with = "lists")]
    pub lists: PerColumn<Lists>,
    /// Groups of columns delivered as one matrix each. Their columns are not delivered on their own.
    pub pack: Vec<Pack>,
    /// Binary columns that hold images, and their decoding.
    pub images: BTreeMap<String, ImageOptions>,
    /// Columns delivered as Arrow arrays of their own type, by name or glob: as stored, neither decoded nor converted.
    /// Not for lists.
    pub arrow: Vec<String>,
    /// Element types to convert to. Integers are checked, and floats to integers must be whole; floats round to nearest.
    pub cast: BTreeMap<String, DType>,
    /// If true, `_row_id`, the row's number in the dataset, is delivered.
    pub row_id: bool,
}

impl ColumnOptions {
    /// Returns true if a null in a column called `name` can only be an error.
    pub(crate) fn nulls_are_errors(&self, name: &str) -> bool {
        select::lookup(&self.nulls.0, name).is_none_or(|(nulls, _)| *nulls == Nulls::Error)
    }

    /// The image options of a delivered column called `name` that is decoded on the CPU, if they do not give a size.
    pub(crate) fn image_without_size(&self, name: &str) -> Option<&ImageOptions> {
        let means = |patterns: &[String]| patterns.iter().any(|pattern| select::means(pattern, name));
        let (image, exactly) = select::lookup(&self.images, name)?;
        let delivered =
            || (self.columns.is_empty() || means(&self.columns)) && !means(&self.exclude) && !means(&self.arrow);
        // A pattern may match columns that hold no images.
        (exactly && image.size.is_none() && image.decoder == Decoder::Cpu && delivered()).then_some(image)
    }

    /// Returns true if any option names something below the column called `name`.
    pub(crate) fn names_below(&self, name: &str) -> bool {
        let named = |pattern: &String| pattern.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        self.columns.iter().chain(&self.exclude).chain(&self.arrow).any(named)
            || self.pack.iter().flat_map(|pack| &pack.columns).any(named)
            || self.nulls.0.keys().chain(self.lists.0.keys()).any(named)
            || self.images.keys().chain(self.cast.keys()).any(named)
    }

    /// Returns true if the length of the vectors of a delivered column called `name` must still be determined.
    pub(crate) fn vector_without_size(&self, name: &str) -> bool {
        let means = |patterns: &[String]| patterns.iter().any(|pattern| select::means(pattern, name));
        let delivered = (self.columns.is_empty() || means(&self.columns)) && !means(&self.exclude);
        let said = select::lookup(&self.lists.0, name);
        // An option that names the column is kept, for an error if it is not about vectors.
        delivered && !self.names_below(name) && !matches!(said, Some((Lists::Vector(_) | Lists::Csr, _) | (_, true)))
    }

    /// The padding of the lists of a column called `name`, if they are padded, and one element of `dtype` to pad with.
    pub(crate) fn padding(&self, name: &str, dtype: DType) -> Option<(&Padded, Vec<u8>)> {
        match select::lookup(&self.lists.0, name)? {
            (Lists::Padded(padded), _) => Some((padded, element(&padded.fill, dtype)?)),
            _ => None,
        }
    }
}

/// A choice per column, by name or glob. An exact name wins; otherwise the pattern with the most literal characters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerColumn<T>(pub BTreeMap<String, T>);

impl<T> Default for PerColumn<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> From<T> for PerColumn<T> {
    /// The same choice for all columns.
    fn from(one: T) -> Self {
        Self(BTreeMap::from([("*".to_owned(), one)]))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for PerColumn<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let given = serde_json::Value::deserialize(from)?;
        // If it is neither, the error describes the fault of the choice.
        match (T::deserialize(&given), given) {
            (Ok(one), _) => Ok(Self::from(one)),
            (Err(_), serde_json::Value::Object(each)) => {
                let choice =
                    |(column, choice)| T::deserialize(&choice).map(|choice| (column, choice)).map_err(D::Error::custom);
                each.into_iter().map(choice).collect::<Result<_, _>>().map(Self)
            }
            (Err(error), _) => Err(D::Error::custom(error)),
        }
    }
}

/// Reads the option `lists`. Words that need more are refused here: a reader of enums says nothing of what is missing.
fn lists<'de, D: Deserializer<'de>>(from: D) -> Result<PerColumn<Lists>, D::Error> {
    let given = serde_json::Value::deserialize(from)?;
    let each = given.as_object().into_iter().flat_map(serde_json::Map::values);
    let mut words = std::iter::once(&given).chain(each).filter_map(serde_json::Value::as_str);
    let lacking = words.find_map(|word| match word {
        "padded" | "cut" => Some(format!("{word:?} needs a length: {{{word:?}: {{\"length\": 128}}}}")),
        "vector" => Some(format!("{word:?} needs a length: {{{word:?}: 128}}")),
        _ => None,
    });
    match lacking {
        Some(lacking) => Err(D::Error::custom(lacking)),
        None => PerColumn::deserialize(given).map_err(D::Error::custom),
    }
}

/// Treatment of nulls. A row counts as null if its value, a struct around it or anything inside it is null.
///
/// A number or a boolean is short for [`Fill`](Self::Fill) with it. Text is not, since a misspelt word would be text;
/// only `nan` is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "GivenNulls")]
pub enum Nulls {
    /// A null makes its row a bad row: an error that names it, unless `bad_rows` provides otherwise.
    #[default]
    Error,
    /// Null values take this value; null lists are empty.
    Fill(Scalar),
    /// `name__valid` marks the rows that are not null; nulls are zero (Arrow columns keep them).
    Mask,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "neither \"error\", \"mask\", a number to fill in, nor {\"fill\": value}"
)]
enum GivenNulls {
    Fill { fill: Scalar },
    Bare(Scalar),
}

impl TryFrom<GivenNulls> for Nulls {
    type Error = String;

    fn try_from(given: GivenNulls) -> Result<Self, String> {
        Ok(match given {
            GivenNulls::Bare(Scalar::Text(word)) => match word.as_str() {
                "error" => Self::Error,
                "mask" => Self::Mask,
                // JSON has no number for it.
                "nan" => Self::Fill(Scalar::Text(word)),
                _ => {
                    return Err(format!(
                        "{word:?} is neither \"error\" nor \"mask\"; to fill it in, write {{\"fill\": {word:?}}}"
                    ));
                }
            },
            GivenNulls::Fill { fill: value } | GivenNulls::Bare(value) => Self::Fill(value),
        })
    }
}

/// Delivery of lists of varying length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lists {
    /// `name__values` and `name__offsets` (`int64 [B+1]`), with `name__offsets_1` for lists of lists.
    #[default]
    Ragged,
    /// `name` of shape `[B, length, ...]` and `name__lengths` (`int64 [B]`), with `name__lengths_1` for lists of lists.
    Padded(Padded),
    /// As [`Padded`](Self::Padded), cut or refused in the same way, but without the padding: `name__values` and
    /// `name__offsets`. Requested by a device that pads by itself. Not for lists of lists.
    Cut(Padded),
    /// Vectors of Spark as a matrix `[B, n]` with this many columns. If it is not given and Spark does not state it,
    /// `n` is the length of the column's first vector.
    Vector(usize),
    /// Vectors of Spark as the rows of a sparse matrix: `name__values`, `name__indices` (`int32`) and `name__offsets` (`int64 [B+1]`).
    Csr,
}

/// Padding of lists to one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Padded {
    /// The length; one per level for lists of lists.
    pub length: Lengths,
    /// The value of elements that a list does not have.
    #[serde(default = "zero")]
    pub fill: Scalar,
    /// Treatment of longer lists.
    #[serde(default)]
    pub truncate: Truncate,
    /// If true, the padding comes before the values instead of after them.
    #[serde(default)]
    pub left: bool,
}

impl Padded {
    /// The length of plain lists; `None` for lists of lists.
    pub(crate) fn plain_length(&self) -> Option<usize> {
        if let [length] = self.length.as_slice() { Some(*length) } else { None }
    }

    /// Padding at the end to `length` with zeros; longer lists are errors.
    pub fn new(length: usize) -> Self {
        Self { length: Lengths::One(length), fill: zero(), truncate: Truncate::Error, left: false }
    }
}

fn zero() -> Scalar {
    Scalar::Int(0)
}

/// One length, or one per level of nesting from the outside in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Lengths {
    /// For a plain list.
    One(usize),
    /// For lists of lists.
    Each(Vec<usize>),
}

impl Lengths {
    pub(super) fn as_slice(&self) -> &[usize] {
        match self {
            Self::One(length) => std::slice::from_ref(length),
            Self::Each(lengths) => lengths,
        }
    }
}

/// Treatment of a list longer than its padded length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncate {
    /// Its row is a bad row.
    #[default]
    Error,
    /// The end is cut off.
    Right,
    /// The beginning is cut off.
    Left,
}

/// Columns delivered as one row-major matrix `[B, n]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// The matrix's name.
    pub name: String,
    /// Its columns in order, by name or glob: numbers, booleans, and fixed-size lists of them.
    pub columns: Vec<String>,
    /// Its element type.
    #[serde(default = "float32")]
    pub dtype: DType,
}

fn float32() -> DType {
    DType::Float32
}

/// Handling of a row that cannot be delivered: an image that does not decode, a null under [`Nulls::Error`], a value
/// that does not fit its type, a list that is too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRows {
    /// The batch is an error that names the first bad row.
    #[default]
    Error,
    /// The next good row of the batch is delivered in its place, so that steps stay equal.
    Skip,
    /// The bad column's value is zero (an empty list, an empty text), the others are unchanged.
    Zero,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_read_as_people_write_them() {
        let text = r#"{
            "columns": ["a", "b.*"],
            "nulls": {"*": "mask", "a": {"fill": -1}, "s": {"fill": "none"}},
            "lists": {"*": {"padded": {"length": [4, 8], "truncate": "right"}}, "v": {"vector": 3}, "w": "csr"},
            "pack": [{"name": "dense", "columns": ["i*"]}],
            "cast": {"a": "float32"}
        }"#;
        let options: ColumnOptions = serde_json::from_str(text).unwrap();
        assert_eq!(options.nulls.0["a"], Nulls::Fill(Scalar::Int(-1)));
        assert_eq!(options.nulls.0["*"], Nulls::Mask);
        assert!(matches!(&options.lists.0["*"], Lists::Padded(p) if p.length.as_slice() == [4, 8] && !p.left));
        assert_eq!((&options.lists.0["v"], &options.lists.0["w"]), (&Lists::Vector(3), &Lists::Csr));
        assert!(!options.names_below("a") && options.names_below("b"));
        assert_eq!(options.pack[0].dtype, DType::Float32);
        let written = serde_json::to_string(&options).unwrap();
        let again: ColumnOptions = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), written);
        let one: ColumnOptions = serde_json::from_str(r#"{"nulls": {"fill": 0.5}}"#).unwrap();
        assert_eq!(one.nulls, Nulls::Fill(Scalar::Float(0.5)).into());
        let bare: ColumnOptions =
            serde_json::from_str(r#"{"nulls": {"a": 0.5, "b": -1, "c": false, "d": "nan"}}"#).unwrap();
        let fills = [Scalar::Float(0.5), Scalar::Int(-1), Scalar::Bool(false), Scalar::Text("nan".to_owned())];
        let fills = fills.map(Nulls::Fill);
        assert!(bare.nulls.0.values().eq(&fills));
        let error = |text: &str| serde_json::from_str::<ColumnOptions>(text).unwrap_err().to_string();
        assert!(error(r#"{"nulls": "maks"}"#).contains("\"maks\" is neither"));
        assert!(error(r#"{"nulls": {"age": "maks"}}"#).contains("\"maks\" is neither"));
        assert!(error(r#"{"nulls": {"age": {"fil": 1}}}"#).contains("nor {\"fill\": value}"));
        assert!(error(r#"{"lists": {"l": "raged"}}"#).contains("unknown variant `raged`"));
        assert!(error(r#"{"lists": "raged"}"#).contains("unknown variant `raged`"));
        let padded = r#""padded" needs a length: {"padded": {"length": 128}}"#;
        assert!(error(r#"{"lists": "padded"}"#).starts_with(padded));
        assert!(error(r#"{"lists": {"a": "ragged", "b": "padded"}}"#).starts_with(padded));
        assert!(error(r#"{"lists": {"v": "vector"}}"#).starts_with(r#""vector" needs a length: {"vector": 128}"#));
        assert!(serde_json::from_str::<ColumnOptions>(r#"{"column": []}"#).is_err());
    }
}
