//! A store under its address, and what it lists.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

#[cfg(feature = "cloud")]
use super::answer::{answers, passes};
use super::cache::Through;
use super::mounts::Mount;
use super::multipart::PartStore;
use super::registered::kind;
use super::remedy::advised;
use super::unaddressed::{fault, fault_of, named, noting};
use super::walk::{Walk, Ways, below};
use crate::error::{Error, Result};

/// A store, and how its objects are addressed in messages.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Start of an address, before the object's path and without credentials: `s3://bucket/`, or `/` for local files.
    pub(super) prefix: Arc<str>,
    pub(super) local: bool,
    /// True if reads of it that are late are requested a second time.
    pub(super) hedges: bool,
    /// True if directories can be listed without trouble; plain HTTP servers have none.
    pub(super) lists: bool,
    /// The same store, if its uploads have numbers.
    pub(super) numbered: Option<PartStore>,
    /// Cache that its objects are read through, if there is one.
    pub(super) cache: Option<Arc<Through>>,
    /// The mount that it was opened for, with its options alone.
    pub(super) mount: Option<MountedAt>,
}

/// What a place lists.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) files: Vec<ObjectMeta>,
    /// The real paths of those that links led to, by the paths that they have in `files`.
    pub(super) real: HashMap<Path, Path>,
}

/// A mount, and the path in its store that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountedAt {
    pub(super) mount: Arc<Mount>,
    pub(super) root: Path,
}

/// `text` within an address, if nothing of it is encoded yet: what a URL takes for something else, or drops, is, and what a pattern is
/// made of.
pub(super) fn escaped(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '%' | '?' | '#' | '*' | '[' | ']' | '{' | '}' => encoded.push_str(&format!("%{:02X}", u32::from(letter))),
            letter => encoded.push(letter),
        }
    }
    kept(&encoded).replace(" /", "%20/")
}

/// `text` with what a URL would drop encoded: control characters, and blanks at its end.
pub(super) fn kept(text: &str) -> String {
    let blanks = text.len() - text.trim_end_matches(' ').len();
    let mut kept = String::with_capacity(text.len());
    for letter in text.trim_end_matches(' ').chars() {
        if letter.is_ascii_control() {
            kept.push_str(&format!("%{:02X}", u32::from(letter)));
        } else {
            kept.push(letter);
        }
    }
    kept + &"%20".repeat(blanks)
}

impl Place {
    /// A store behind addresses that begin with `prefix`, which lists and has nothing else to it.
    pub(super) fn new(store: Arc<dyn ObjectStore>, prefix: impl Into<Arc<str>>) -> Self {
        let prefix = prefix.into();
        Self { store, prefix, local: false, hedges: false, lists: true, numbered: None, cache: None, mount: None }
    }

    /// Returns true if `other` is the same store, reached with the same options: two mounts of one bucket are two places.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let name = |place: &Self| place.mount.as_ref().map(|at| Arc::clone(&at.mount));
        self.prefix == other.prefix && name(self) == name(other)
    }

    /// The name that its requests are counted under.
    pub(super) fn origin(&self) -> Arc<str> {
        kind(&self.prefix).map_or_else(|| Arc::clone(&self.prefix), Arc::from)
    }

    /// The full address of `path`, without credentials.
    pub(super) fn url(&self, path: &Path) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The address of what is at `path`, in the namespace of mounts if its store is that of one: there it has its options.
    pub(super) fn address(&self, path: &str) -> String {
        let encoded = |path: &str| if self.local { path.to_owned() } else { escaped(path) };
        match &self.mount {
            Some(at) => {
                let below = path.strip_prefix(at.root.as_ref()).unwrap_or(path).trim_matches('/');
                format!("{}/{}", at.mount.url(), encoded(below)).trim_end_matches('/').to_owned()
            }
            None => format!("{}{}", self.prefix, encoded(path).trim_end_matches('/')),
        }
    }

    /// The store's `error`, from the attempt to `operation` the object at `path`.
    pub(super) fn failed(&self, operation: &str, path: &Path, error: object_store::Error) -> Error {
        let url = self.url(path);
        #[cfg(feature = "cloud")]
        if let Some(meant) = super::client::meant(&url, &error) {
            let problem = format!("{url}: no web server answers there; did you mean {meant}?");
            return Error::config("url", problem);
        }
        // A store of ours may know what to do.
        let error = match error {
            object_store::Error::InvalidPath { source } if operation == "list" => {
                return self.unaddressed(named(&source), fault(&source));
            }
            object_store::Error::Generic { store, source } => match source.downcast::<Error>() {
                Ok(told) => return *told,
                Err(source) => object_store::Error::Generic { store, source },
            },
            error => error,
        };
        let source = advised(&url, error);
        Error::Store { operation: operation.to_owned(), url, source }
    }

    /// The error for `key`, which was listed and has no address: it has `fault` in it.
    fn unaddressed(&self, key: &str, fault: &str) -> Error {
        let what = format!("the key {key:?} of {}, which has {fault} in it,", self.prefix);
        let hint = "no address leads to it, and what it is below cannot be listed: rename or remove it with the store's own tool";
        Error::unsupported(what, hint)
    }

    /// The error of listing `base`: an answer that stays is what web servers have where others have directories.
    fn unlisted(&self, base: &Path, error: object_store::Error) -> Error {
        #[cfg(feature = "cloud")]
        if !self.lists && answers(&error).any(|answer| !passes(&answer)) {
            return no_directories(&self.url(base));
        }
        self.failed("list", base, error)
    }

    /// The objects at any depth below `base` whose names relative to it `accept` takes, at most `most` of them, in no order; those that
    /// were met before `enough` said so.
    ///
    /// # Errors
    /// [`Error::Limit`] names `limits.max_files`; [`Error::Config`] for a file that a link leads to a second time; [`Error::Unsupported`] for
    /// a key that `accept` takes and no address leads to; [`Error::Store`].
    pub(super) async fn list(
        &self,
        base: &Path,
        most: usize,
        accept: impl Fn(&str) -> bool,
        enough: impl Fn() -> bool,
    ) -> Result<Listed> {
        let (mut found, mut real) = (Vec::new(), HashMap::new());
        if self.local {
            let (mut walk, mut ways) = (Walk::below(base), Ways::new(base));
            while !enough()
                && let Some(some) = walk.next().await?
            {
                for met in some {
                    if accept(below(base, &met.meta.location)) {
                        ways.take(&met, &accept)?;
                        found.push(met.meta);
                        check_count(found.len(), most)?;
                    }
                }
            }
            real = ways.real();
        } else {
            let list = async {
                let mut listing = self.store.list(Some(base).filter(|base| !base.as_ref().is_empty()));
                while !enough()
                    && let Some(next) = listing.next().await
                {
                    let meta = next.map_err(|error| self.unlisted(base, error))?;
                    if accept(below(base, &meta.location)) {
                        found.push(meta);
                        check_count(found.len(), most)?;
                    }
                }
                Ok::<_, Error>(())
            };
            let (listed, left_out) = noting(list).await;
            listed?;
            // What is left out is no part of a table, and ends no list.
            let is_wanted = |key: &&String| {
                let name = key.strip_prefix(base.as_ref()).unwrap_or(key);
                let name = name.strip_prefix('/').unwrap_or(name);
                accept(name.strip_suffix('/').unwrap_or(name))
            };
            let is_over = enough();
            if let Some(key) = left_out.iter().filter(|_| !is_over).find(is_wanted) {
                return Err(self.unaddressed(key, fault_of(key)));
            }
        }
        // Some tools mark a directory by an empty object of its name.
        if found.iter().all(|meta| meta.size > 0) {
            return Ok(Listed { files: found, real });
        }
        let parents: BTreeSet<&str> = found
            .iter()
            .filter_map(|meta| meta.location.as_ref().rsplit_once('/'))
            .flat_map(|(parent, _)| ancestors(parent))
            .collect();
        let is_mark = |meta: &ObjectMeta| meta.size == 0 && parents.contains(meta.location.as_ref());
        let keep: Vec<bool> = found.iter().map(|meta| !is_mark(meta)).collect();
        let mut keep = keep.into_iter();
        found.retain(|_| keep.next().unwrap_or(true));
        Ok(Listed { files: found, real })
    }
}

/// The error for a directory `url` of a web server.
#[cfg(any(feature = "cloud", feature = "convert"))]
pub(super) fn no_directories(url: &str) -> Error {
    Error::unsupported(format!("listing {url}"), "give the address of one file; a plain HTTP server has no directories")
}

/// # Errors
/// [`Error::Limit`] names `limits.max_files`.
pub(super) fn check_count(count: usize, most: usize) -> Result<()> {
    if count <= most {
        return Ok(());
    }
    Err(Error::limit("the number of files", count as u64, most as u64, "limits.max_files"))
}

fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| at).chain([path.len()]).filter_map(|end| path.get(..end))
}

#[cfg(test)]
mod tests {
    use super::super::percent::decoded;
    use super::*;

    #[test]
    fn an_address_keeps_every_character_of_a_key() {
        for (key, address) in [
            ("m/x ", "m/x%20"),
            ("t\tab\nx", "t%09ab%0Ax"),
            ("a /b  /c d", "a%20/b %20/c d"),
            ("100%?#", "100%25%3F%23"),
            ("run[1]/a*/{b}", "run%5B1%5D/a%2A/%7Bb%7D"),
            (" ", "%20"),
        ] {
            assert_eq!(escaped(key), address);
            let url = url::Url::parse(&format!("s3://b/k/{address}")).unwrap();
            assert_eq!(decoded(url.path()), Some(format!("/k/{key}")));
        }
        assert_eq!(kept("s3://b/as typed\t "), "s3://b/as typed%09%20");
    }

    #[test]
    fn a_key_without_an_address_is_named_with_what_is_wrong() {
        let place = Place::new(Arc::new(object_store::memory::InMemory::new()), "s3://b/");
        for (key, fault) in
            [("d/_tmp//x.txt", "an empty part"), ("d/a\u{1}b", "a control character"), ("d/../x", "a part `.` or `..`")]
        {
            let source = Path::parse(key).unwrap_err();
            let error = place.failed("list", &Path::from("d"), object_store::Error::InvalidPath { source });
            let said = error.to_string();
            assert!(
                matches!(error, Error::Unsupported { .. }) && said.contains(&format!("{key:?} of s3://b/")),
                "{said}"
            );
            assert!(said.contains(fault) && said.contains("the store's own tool"), "{said}");
        }
    }

    #[test]
    fn directories_above_a_file() {
        assert_eq!(ancestors("a/b/c").collect::<Vec<_>>(), ["a", "a/b", "a/b/c"]);
    }
}
