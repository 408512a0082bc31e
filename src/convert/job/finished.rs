//! Checks that a destination still has the output of an earlier conversion.

use std::path::Path;

use serde_json::Value;

use super::address::is_other;
use super::{Job, contents};
use crate::convert::read::listing::Listing;
use crate::convert::read::success;
use crate::error::{Error, Result};

/// State of a destination with respect to a job.
#[derive(Debug)]
pub(crate) enum Found {
    /// No output of this job.
    Nothing,
    /// The output of the same conversion over another version of the source's files.
    Former,
    /// The complete output, and its `_SUCCESS`.
    Whole(Value),
    /// Output that was changed since, with a description.
    Changed(String),
}

impl Found {
    /// Refuses a destination with the output for a former version of the source, which only `overwrite` may replace.
    ///
    /// # Errors
    /// [`Error::Config`] saying so: that the directory is not empty tells nobody why nothing is repeated.
    pub(crate) fn check_current(&self, dst: &Path) -> Result<()> {
        if !matches!(self, Self::Former) {
            return Ok(());
        }
        let shown = dst.display();
        let problem = format!(
            "{shown} was made from this source with these options, but files of the source have been written, moved or touched since (new \
             access rights and links count too); set overwrite to make it again"
        );
        Err(Error::config("overwrite", problem))
    }
}

/// Checks `dst` for the output of `job`, of the source at this address. Reads every file.
pub(crate) fn finished(dst: &Path, job: &Job, source: &str) -> Result<Found> {
    let options = &job.options;
    let found = Listing::local(dst).ok().and_then(|tree| success::read(&tree, &options.limits));
    let Some(found) = found else { return Ok(Found::Nothing) };
    let recorded = |name: &str| found.get(name).and_then(Value::as_str);
    let is_same = recorded("fingerprint") == Some(&*job.fingerprint);
    if !is_same && recorded("settings") != Some(&*job.settings) {
        return Ok(Found::Nothing);
    }
    if recorded("source").is_some_and(|recorded| is_other(recorded, source)) {
        return Ok(Found::Nothing);
    }
    if !is_same {
        return Ok(Found::Former);
    }
    Ok(match contents::difference(dst, &found, options.threads())? {
        None => Found::Whole(found),
        Some(why) => Found::Changed(why),
    })
}
