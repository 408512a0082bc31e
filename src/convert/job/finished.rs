//! Checks that a destination still has the output of an earlier conversion.

use std::path::Path;

use serde_json::Value;

use super::address::is_other;
use super::contents;
use crate::convert::options::ConvertOptions;
use crate::convert::read::listing::Listing;
use crate::convert::read::success;
use crate::error::Result;

/// State of a destination with respect to a job.
#[derive(Debug)]
pub(crate) enum Found {
    /// No output of this job.
    Nothing,
    /// The complete output, and its `_SUCCESS`.
    Whole(Value),
    /// Output that was changed since, with a description.
    Changed(String),
}

/// Checks `dst` for the output of the conversion with this fingerprint, of the source at this address. Reads every file.
pub(crate) fn finished(dst: &Path, (fingerprint, source): (&str, &str), options: &ConvertOptions) -> Result<Found> {
    let found = Listing::local(dst).ok().and_then(|tree| success::read(&tree, &options.limits));
    let Some(found) = found else { return Ok(Found::Nothing) };
    if found.get("fingerprint").and_then(Value::as_str) != Some(fingerprint) {
        return Ok(Found::Nothing);
    }
    if found.get("source").and_then(Value::as_str).is_some_and(|recorded| is_other(recorded, source)) {
        return Ok(Found::Nothing);
    }
    Ok(match contents::difference(dst, &found, options.threads())? {
        None => Found::Whole(found),
        Some(why) => Found::Changed(why),
    })
}
