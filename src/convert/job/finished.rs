//! Checks that a destination still has the output of an earlier conversion.

use std::path::Path;

use serde_json::Value;

use super::address::is_other;
use super::{Identity, Job, contents};
use crate::convert::options::ConvertOptions;
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
    /// The output of another conversion, with what is different.
    Other(String),
    /// The complete output.
    Whole {
        /// Its `_SUCCESS`.
        success: Value,
        /// Whether it was read again and found equal.
        verified: bool,
    },
    /// Output that was changed since, with a description.
    Changed(String),
}

impl Found {
    /// Refuses a destination with other output than that of these options and this version of the source, which only `overwrite` may replace.
    ///
    /// # Errors
    /// [`Error::Config`] saying so: that the directory is not empty tells nobody why nothing is repeated.
    pub(crate) fn check_current(&self, dst: &Path, options: &ConvertOptions) -> Result<()> {
        let shown = dst.display();
        let problem = match self {
            Self::Former => format!(
                "{shown} was made from this source with these options, but files of the source have been written, moved or touched since \
                 (new access rights and links count too); set overwrite to make it again"
            ),
            Self::Other(why) => {
                format!("{shown} was made {why}; set overwrite to replace it, or name another destination")
            }
            Self::Whole { verified: false, .. } if options.verify => format!(
                "{shown} was made from this source with these options, but without verify; compare them by `bowstring verify`, or set \
                 overwrite to make it again"
            ),
            Self::Nothing | Self::Whole { .. } | Self::Changed(_) => return Ok(()),
        };
        Err(Error::config("overwrite", problem))
    }
}

/// Checks `dst` for the output of `job`, of the source at this address. Reads every file.
pub(crate) fn finished(dst: &Path, job: &Job, source: &str) -> Result<Found> {
    let options = &job.options;
    let found = Listing::local(dst).ok().and_then(|tree| success::read(&tree, &options.limits));
    let Some(found) = found else { return Ok(Found::Nothing) };
    let recorded = |name: &str| found.get(name).and_then(Value::as_str);
    let Some(fingerprint) = recorded("fingerprint") else { return Ok(Found::Nothing) };
    if let Some(other) = recorded("source").filter(|recorded| is_other(recorded, source)) {
        return Ok(Found::Other(format!("from {other}, which is another source")));
    }
    let is = |identity: &Identity| fingerprint == identity.fingerprint;
    let is_alike = |identity: &Identity| recorded("settings") == Some(&*identity.settings);
    if !is(&job.identity) && !is(&job.former) {
        return Ok(match is_alike(&job.identity) || is_alike(&job.former) {
            true => Found::Former,
            false => Found::Other("with other options, or from other files".to_owned()),
        });
    }
    // Former versions told it by the fingerprint.
    let verified = is(&job.former) || found.get("verified").and_then(Value::as_bool).unwrap_or_default();
    Ok(match contents::difference(dst, &found, options.threads())? {
        None => Found::Whole { success: found, verified },
        Some(why) => Found::Changed(why),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::budget::Progress;
    use crate::convert::convert;
    use crate::convert::format::Format;
    use crate::store::directory::SUCCESS;

    #[test]
    fn output_of_a_former_version_is_known_with_and_without_verification() {
        let directory = tempfile::tempdir().unwrap();
        let (src, dst) = (directory.path().join("a.csv"), directory.path().join("out"));
        std::fs::write(&src, "id,y\n1,x\n").unwrap();
        let (src, options) = (src.to_string_lossy(), ConvertOptions { to: Some(Format::Jsonl), ..Default::default() });
        convert(&src, &dst, &options, &Progress::default()).unwrap();
        let path = dst.join(SUCCESS);
        let mut success: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        success.as_object_mut().unwrap().remove("verified").unwrap();
        let source = success["source"].as_str().unwrap().to_owned();
        for verify in [false, true] {
            let job = Job::new(&src, &dst, &ConvertOptions { verify, ..options.clone() }).unwrap();
            for (identity, told) in [(&job.identity, false), (&job.former, true)] {
                success["fingerprint"] = identity.fingerprint.as_str().into();
                success["settings"] = identity.settings.as_str().into();
                std::fs::write(&path, success.to_string()).unwrap();
                let found = finished(&dst, &job, &source).unwrap();
                assert!(matches!(found, Found::Whole { verified, .. } if verified == told), "{verify}: {found:?}");
                assert_eq!(found.check_current(&dst, &job.options).is_ok(), told || !verify, "{verify}: {found:?}");
                success["fingerprint"] = "of former files".into();
                std::fs::write(&path, success.to_string()).unwrap();
                assert!(matches!(finished(&dst, &job, &source).unwrap(), Found::Former), "{verify}");
            }
        }
    }
}
