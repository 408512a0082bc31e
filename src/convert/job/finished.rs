//! Whether a destination has what an earlier conversion put there.

use std::path::Path;

use serde_json::Value;

use super::contents;
use crate::convert::options::ConvertOptions;
use crate::convert::read::listing::Listing;
use crate::convert::read::success;
use crate::error::Result;

/// What an earlier conversion by the same job left.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing of this job.
    Nothing,
    /// All that it published, and its `_SUCCESS`.
    Whole(Value),
    /// What it published was changed: how.
    Changed(String),
}

/// Whether `dst` has what the conversion with this fingerprint published. Every file is read.
pub(crate) fn finished(dst: &Path, fingerprint: &str, options: &ConvertOptions) -> Result<Found> {
    let found = Listing::local(dst).ok().and_then(|tree| success::read(&tree, &options.limits));
    let Some(found) = found else { return Ok(Found::Nothing) };
    if found.get("fingerprint").and_then(Value::as_str) != Some(fingerprint) {
        return Ok(Found::Nothing);
    }
    Ok(match contents::difference(dst, &found, options.threads())? {
        None => Found::Whole(found),
        Some(why) => Found::Changed(why),
    })
}
