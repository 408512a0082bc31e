//! An address as users write it, taken apart.

use std::path::{Component, Path, PathBuf};

use url::Url;

use super::display::unparsed;
use crate::error::{Error, Result};

/// An address, taken apart but not looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Local(PathBuf),
    Remote(String),
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::config("urls", "an address is empty"));
        }
        let Some((scheme, _)) = text.split_once("://") else {
            return Ok(Self::Local(PathBuf::from(text)));
        };
        if scheme != "file" {
            return Ok(Self::Remote(text.to_owned()));
        }
        let url = Url::parse(text).map_err(|error| bad_url(text, error))?;
        if url.query().is_some() || url.fragment().is_some() {
            // The path would end there, and be another one that may exist as well.
            let problem =
                format!("{text} has a ? or # in it: write %3F and %23 in a file: URL, or give the plain path");
            return Err(Error::config("urls", problem));
        }
        let path =
            url.to_file_path().map_err(|()| Error::config("urls", format!("{text} is not an absolute local path")))?;
        Ok(Self::Local(path))
    }
}

/// Returns true for an address instead of a path of this machine. Hadoop writes those with one slash too (`hdfs:/x`, `file:/x`).
pub(super) fn is_address(text: &str) -> bool {
    let is_scheme = |text: &str| {
        let mut letters = text.bytes();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || b"+.-".contains(&letter))
    };
    // A scheme of one letter is a drive.
    text.contains("://") || text.split_once(":/").is_some_and(|(scheme, _)| scheme.len() > 1 && is_scheme(scheme))
}

/// `path` from the root, as it is written: `..` takes back what is before it, and links are not followed.
pub(super) fn written(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut written = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            written.pop();
        } else {
            written.push(part);
        }
    }
    written
}

pub(super) fn bad_url(text: &str, error: url::ParseError) -> Error {
    Error::config("urls", format!("{} is not an address: {error}", unparsed(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme() {
        for address in ["s3://b/x", "hdfs:/x", "file:/tmp/x", "s3a:/b", "x y://b"] {
            assert!(is_address(address), "{address}");
        }
        for path in ["/a:/x", "C:/data", "a/b:/x", "1:/x", ":/x", "x", "a:b", "a b:/x"] {
            assert!(!is_address(path), "{path}");
        }
    }

    #[test]
    fn a_path_is_written_from_the_root() {
        assert_eq!(written(Path::new("/a//b/./../c/")), PathBuf::from("/a/c"));
        assert_eq!(written(Path::new("/../a")), PathBuf::from("/a"));
        assert_eq!(written(Path::new("x/../a")), std::env::current_dir().unwrap().join("a"));
    }

    #[test]
    fn a_file_url_names_all_of_its_path_or_nothing() {
        for text in ["file:///data/train#2", "file:///data/train?", "file:///data/train?x=1", "file:///a#/*.parquet"] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains("%23"), "{error}");
        }
        let Address::Local(path) = Address::parse("file:///data/train%232%3F").unwrap() else { panic!("not local") };
        assert_eq!(path, PathBuf::from("/data/train#2?"));
        assert!(matches!(Address::parse("/data/train#2").unwrap(), Address::Local(_)));
    }
}
