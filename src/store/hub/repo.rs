//! The repository and the revision that an address names.

use object_store::path::Path;
use url::Url;

use crate::error::{Error, Result};
use crate::store::percent;

/// Scheme of the Hub's addresses.
pub(in crate::store) const SCHEME: &str = "hf";

/// Revision of an address that names none.
const MAIN: &str = "main";

/// Revision in which the Hub keeps the Parquet that it made of other formats, and its short form.
const CONVERTED: (&str, &str) = ("refs/convert/parquet", "~parquet");

/// A revision of a repository of datasets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Repo {
    /// `owner/name`.
    pub(super) id: String,
    /// A branch, a tag, a commit, or a reference such as `refs/convert/parquet`.
    pub(super) revision: String,
    /// Start of an address, before the path of a file.
    prefix: String,
}

impl Repo {
    /// Revision and path that `url`, typed as `text`, names; messages show it as `shown`. A slash in a revision is `%2F`, except in `refs/convert/...` and `refs/pr/...`.
    ///
    /// # Errors
    /// [`Error::Config`] if `url` is not an address of a dataset.
    pub(in crate::store) fn parse(url: &Url, text: &str, shown: &str) -> Result<(Self, Path)> {
        let wrong = |what: &str| {
            let problem = format!("{what}; datasets of the Hub are hf://datasets/owner/name@revision/path");
            Error::config("urls", problem)
        };
        if url.host_str() != Some("datasets") {
            return Err(wrong(&format!("{shown} is no dataset")));
        }
        let mut parts = url.path().trim_start_matches('/').splitn(3, '/');
        let (owner, named, rest) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
        let (Some(owner), Some(named)) = (owner.filter(|owner| !owner.is_empty()), named) else {
            return Err(wrong(&format!("{shown} has no owner and name")));
        };
        let (name, revision) = named.split_once('@').map_or((named, None), |(name, revision)| (name, Some(revision)));
        if ![owner, name].iter().all(|part| is_name(part)) {
            return Err(wrong(&format!("{owner}/{name} is no name of a dataset")));
        }
        // A reference has slashes in it.
        let whole = revision.map(|revision| format!("{revision}/{rest}"));
        let referred = whole.as_deref().and_then(reference);
        let (revision, rest) = referred.map_or((revision, rest), |(revision, rest)| (Some(revision), rest));
        let decoded = |text: &str| Path::from_url_path(text).map_err(|error| wrong(&format!("{shown}: {error}")));
        let path = decoded(rest)?;
        let id = format!("{owner}/{name}");
        let Some(revision) = revision else {
            let prefix = format!("{SCHEME}://datasets/{id}/");
            return Ok((Self { id, revision: MAIN.to_owned(), prefix }, path));
        };
        // Addresses of files begin with it as it is written: they are compared with the address that led to them, and read again. A URL
        // encodes letters that are typed.
        let typed = text.split('/').nth(4).and_then(|named| Some(named.split_once('@')?.1));
        let typed = typed.filter(|typed| referred.is_none() && percent::decoded(typed) == percent::decoded(revision));
        let written = typed.unwrap_or(revision).to_owned();
        let revision = decoded(revision)?.to_string();
        if revision.is_empty() {
            return Err(wrong(&format!("{shown} has an empty revision")));
        }
        let prefix = format!("{SCHEME}://datasets/{id}@{written}/");
        let revision = if revision == CONVERTED.1 { CONVERTED.0.to_owned() } else { revision };
        Ok((Self { id, revision, prefix }, path))
    }

    /// Start of an address, before the path of a file, for messages.
    pub(in crate::store) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The revision, if it is a commit already.
    pub(super) fn commit(&self) -> Option<&str> {
        let is_commit = self.revision.len() == 40 && self.revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_commit.then_some(&self.revision)
    }
}

/// Returns true if the Hub allows `text` as a name.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 96 && !text.starts_with('.') && text.bytes().all(plain)
}

/// `refs/convert/x` or `refs/pr/1` at the start of `text`, and what follows it.
fn reference(text: &str) -> Option<(&str, &str)> {
    let rest = ["refs/convert/", "refs/pr/"].iter().find_map(|start| text.strip_prefix(start))?;
    let end = text.len() - rest.len() + rest.find('/').unwrap_or(rest.len());
    let (reference, rest) = text.split_at(end);
    (!reference.ends_with('/')).then_some((reference, rest.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Repo, Path)> {
        Repo::parse(&Url::parse(text).unwrap(), text, text)
    }

    #[test]
    fn an_address_names_a_revision_and_a_path() {
        for (text, revision, path, prefix) in [
            ("hf://datasets/o/n", "main", "", "hf://datasets/o/n/"),
            ("hf://datasets/o/n/a/b.parquet", "main", "a/b.parquet", "hf://datasets/o/n/"),
            ("hf://datasets/o/n@v1.0/a%20b", "v1.0", "a b", "hf://datasets/o/n@v1.0/"),
            ("hf://datasets/o/n@a%2Fb/c", "a/b", "c", "hf://datasets/o/n@a%2Fb/"),
            ("hf://datasets/o/n@100%25%3F/c", "100%?", "c", "hf://datasets/o/n@100%25%3F/"),
            ("hf://datasets/o/n@%C3%BC/c", "ü", "c", "hf://datasets/o/n@%C3%BC/"),
            ("hf://datasets/o/n@ü/c", "ü", "c", "hf://datasets/o/n@ü/"),
            ("hf://datasets/o/./n@x%2Fy/c", "x/y", "c", "hf://datasets/o/n@x%2Fy/"),
            (
                "hf://datasets/o/n@refs%2Fconvert%2Fparquet/c",
                "refs/convert/parquet",
                "c",
                "hf://datasets/o/n@refs%2Fconvert%2Fparquet/",
            ),
            ("hf://datasets/o/n@refs/pr/12/c/d", "refs/pr/12", "c/d", "hf://datasets/o/n@refs/pr/12/"),
            (
                "hf://datasets/o/n@refs/convert/parquet",
                "refs/convert/parquet",
                "",
                "hf://datasets/o/n@refs/convert/parquet/",
            ),
            (
                "hf://datasets/o/n@~parquet/default/x",
                "refs/convert/parquet",
                "default/x",
                "hf://datasets/o/n@~parquet/",
            ),
        ] {
            let (repo, found) = parse(text).unwrap();
            assert_eq!((repo.id.as_str(), repo.revision.as_str()), ("o/n", revision), "{text}");
            assert_eq!((found.as_ref(), repo.prefix()), (path, prefix), "{text}");
            // What is found there has an address of the same revision.
            let (again, file) = parse(&format!("{prefix}d/e.parquet")).unwrap();
            assert_eq!((again, file.as_ref()), (repo, "d/e.parquet"), "{text}");
        }
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(parse(&format!("hf://datasets/o/n@{commit}/x")).unwrap().0.commit(), Some(commit));
        assert_eq!(parse("hf://datasets/o/n").unwrap().0.commit(), None);
    }

    #[test]
    fn what_names_no_dataset_is_told_how_one_is_named() {
        for text in [
            "hf://models/o/n",
            "hf://o/n/x",
            "hf://datasets",
            "hf://datasets/o",
            "hf://datasets/o/",
            "hf://datasets//n",
            "hf://datasets/o/n@/x",
            "hf://datasets/o/n@a%2F..%2F../x",
            "hf://datasets/o%2Fp/n",
            "hf://datasets/o/@main/x",
        ] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, Error::Config { option: "urls", .. }), "{text}: {error}");
            assert!(error.to_string().contains("hf://datasets/owner/name@revision/path"), "{error}");
        }
    }
}
