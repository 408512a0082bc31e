//! Types of columns, before and after decoding.

mod cast;
mod dtype;
pub(crate) mod extension;
mod feature;
mod field;
mod half;
mod nested;
mod odd;
mod stored;
mod within;
pub(crate) mod zones;

pub(crate) use cast::cast;
#[cfg(feature = "convert")]
pub(crate) use cast::{Misfit, visible};
pub use dtype::DType;
pub use feature::Feature;
pub(crate) use feature::{CLASSES_KEY, FEATURE_KEY};
pub(crate) use feature::{holds_image, is_matrix, is_vector};
pub(crate) use field::part_name;
pub use field::{Dim, Field, Schema, Type};
pub(crate) use nested::{children, paired};
#[cfg(feature = "convert")]
pub(crate) use nested::{entries, missing};
pub(crate) use odd::Odd;
pub(crate) use stored::DTYPE_KEY;
pub use stored::{Codec, Element, KEY as STORED_KEY, Stored};
#[cfg(feature = "convert")]
pub(crate) use within::within;
