//! Members of JSON that other systems write: catalogs' answers, and metadata of tables.

use serde::{Deserialize, Deserializer};

/// The value of a member; null is as good as none.
///
/// # Errors
/// As those of `T`.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
