//! The encoding of a column's cells where it goes beyond the Parquet type: an array or an image in each cell.
//!
//! A dataset carries it as metadata of the Arrow field, under [`KEY`]. It is put there when a dataset is opened, from
//! either source: the JSON schema that bowstring writes, or a Unischema of Petastorm.

use arrow::datatypes::Metadata;
use serde::{Deserialize, Serialize};

use super::DType;

/// The key of the field's metadata that holds a [`Stored`] as JSON.
pub const KEY: &str = "bowstring.stored";

/// The key of the metadata of an Arrow field of numbers that holds the name of their intended element type: Spark has
/// no unsigned numbers, so a `uint8` may be stored in a `short`.
pub(crate) const DTYPE_KEY: &str = "bowstring.dtype";

/// The encoding of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// NumPy's `.npy`.
    Npy,
    /// NumPy's `.npz` with one array.
    Npz,
    /// An image file: PNG, or the format that its first bytes indicate.
    Png,
    /// An image file: JPEG, or the format that its first bytes indicate.
    Jpeg,
}

/// The type of one element of a stored array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// A number or boolean.
    Number(DType),
    /// NumPy's `datetime64`, or `timedelta64` of writers before it had a name of its own: delivered as int64, in `ns`.
    Time,
    /// NumPy's `timedelta64`: delivered as int64, in `ns`.
    Timedelta,
    /// NumPy's `str_`.
    Text,
    /// NumPy's `bytes_`.
    Bytes,
}

/// Content of each cell of a binary column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Encoding of the cell.
    pub codec: Codec,
    /// The type of its elements.
    pub element: Element,
    /// The shape of each value; `None` is an axis that varies from cell to cell.
    pub shape: Vec<Option<usize>>,
}

impl Stored {
    /// Reads the encoding from `metadata` of an Arrow field; `None` if it has none.
    ///
    /// # Errors
    /// The fault in the JSON.
    pub fn of(metadata: &Metadata) -> Option<Result<Self, String>> {
        metadata.get(KEY).map(|json| serde_json::from_str(json).map_err(|error| error.to_string()))
    }

    /// The metadata for an Arrow field.
    pub fn metadata(&self) -> (String, String) {
        (KEY.to_owned(), serde_json::json!(self).to_string())
    }

    /// The shape, if no axis varies.
    pub fn fixed(&self) -> Option<Vec<usize>> {
        self.shape.iter().copied().collect()
    }
}
