//! The `_SUCCESS` file of a finished conversion.

use serde_json::Value;

use super::listing::Listing;
use crate::convert::format::Format;
use crate::convert::limits::Limits;
use crate::store::directory::SUCCESS;

/// Reads the `_SUCCESS` of `tree`; `None` if there is none of ours.
pub(crate) fn read(tree: &Listing, limits: &Limits) -> Option<Value> {
    let content = tree.small(SUCCESS, limits.max_index_bytes).ok()?;
    let value: Value = serde_json::from_slice(&content).ok()?;
    value.get("bowstring")?;
    Some(value)
}

/// The format that it says was written.
pub(crate) fn format(success: &Value) -> Option<Format> {
    Format::parse(success.get("format")?.as_str()?).ok()
}
