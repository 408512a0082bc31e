//! An address below `bow://`, taken apart into the segments of a path.

use super::super::display::unparsed;
use super::super::percent::decoded;
use crate::error::{Error, Result};

/// The start of such addresses.
pub(in crate::store) const START: &str = "bow://";

/// Returns true if `url` is an address of the namespace of mounts.
pub(crate) fn is_mounted(url: &str) -> bool {
    url.starts_with(START)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Name {
    /// The segments as they were written: percent-encoded, and perhaps parts of a pattern.
    pub(super) raw: Vec<String>,
    /// The same, decoded.
    pub(super) parts: Vec<String>,
    /// True if it ends with a slash, and so names a directory.
    pub(super) slash: bool,
}

impl Name {
    /// # Errors
    /// [`Error::Config`] for what could lead out of a mount, or is no path.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let wrong = |problem: &str| Err(Error::config("urls", format!("{} {problem}", unparsed(url))));
        let rest = url.strip_prefix(START).unwrap_or(url);
        // A URL loses tabs and line breaks when it is read.
        if rest.contains(|letter: char| letter.is_control()) {
            return wrong("has a control character in it");
        }
        let mut name = Self { raw: Vec::new(), parts: Vec::new(), slash: rest.ends_with('/') };
        for raw in rest.split('/').filter(|raw| !raw.is_empty()) {
            let Some(part) = decoded(raw) else {
                return wrong("is no UTF-8, or has a % that begins no byte: write %25");
            };
            if part == "." || part == ".." {
                return wrong("has . or .. in it: write the path without them");
            }
            if part.contains('/') {
                return wrong("has a slash that is percent-encoded: write / between parts");
            }
            name.raw.push(raw.to_owned());
            name.parts.push(part);
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_and_none_leads_upwards() {
        let name = Name::parse("bow://data//photos/a%20b/*.parquet").unwrap();
        assert_eq!(name.parts, ["data", "photos", "a b", "*.parquet"]);
        assert_eq!((name.raw[2].as_str(), name.slash), ("a%20b", false));
        assert!(Name::parse("bow://data/").unwrap().slash && Name::parse("bow://").unwrap().parts.is_empty());
        for wrong in
            ["bow://a/../b", "bow://a/%2e%2E/b", "bow://a/.", "bow://a/x%2F..%2Fy", "bow://a/.\t./b", "bow://a/%ff"]
        {
            let error = Name::parse(wrong).unwrap_err();
            assert!(matches!(error, Error::Config { option: "urls", .. }), "{wrong}: {error}");
        }
        let error = Name::parse("bow://me:secret@a/../b").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
