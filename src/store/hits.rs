//! The files that one address stands for, and the names of all of them together: relative to the directory that the addresses have in common.
//!
//! Below mounts that directory is one of the namespace. So names say nothing of stores, and stay when files move to others.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::path::Path;

use super::found::Found;
use super::glob;
use super::mounts::{Above, Mount, Target};
use super::percent::decoded;
use super::place::Place;
use super::stamp::Stamp;
use super::table::FoundTable;

/// Files that one address stands for.
pub(super) struct Hits {
    pub(super) place: Place,
    /// The directory of the store that names are relative to.
    pub(super) base: String,
    pub(super) by: By,
    pub(super) files: Vec<File>,
    /// The real paths of those files that links led to.
    pub(super) real: HashMap<Path, Path>,
    /// The address as it is written, from the root, if it names a file of this machine: links and all.
    pub(super) written: Option<PathBuf>,
    pub(super) index: Option<(Found, bool)>,
    /// The address itself, if it is a table that says what its files are.
    pub(super) table: Option<FoundTable>,
    /// The place of `base` in the namespace of mounts, if that is how it was named.
    pub(super) seen: Option<Seen>,
}

/// An object, and the known facts about it.
pub(super) type File = (Path, Option<u64>, Option<Stamp>);

/// The way an address names files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// One, in full.
    Name,
    /// All of a directory.
    Directory,
    /// Those of a directory that match.
    Pattern,
}

/// Directories of the namespace of mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// The one that the address names.
    top: String,
    /// The one that `base` is.
    at: String,
}

impl Seen {
    /// Of an address below a mount; `is_local` if it leads to files of this machine, whose patterns are decoded first.
    pub(super) fn below(target: &Target, by: By, is_local: bool) -> Self {
        let fixed = |text: &str| glob::split(text).0.trim_end_matches('/').to_owned();
        let at = match by {
            By::Name => parent(&target.path),
            By::Directory => target.path.clone(),
            By::Pattern if is_local => fixed(&target.path),
            By::Pattern => decoded(&fixed(&target.raw)).unwrap_or_default(),
        };
        Self { top: at.clone(), at }
    }

    /// Of `mount`, as part of a directory above it.
    pub(super) fn part(above: &Above, mount: &Mount, by: By) -> Self {
        let at = if by == By::Name { parent(mount.name()) } else { mount.name().to_owned() };
        Self { top: above.directory.clone(), at }
    }
}

fn parent(path: &str) -> String {
    path.rsplit_once('/').map_or_else(String::new, |(parent, _)| parent.to_owned())
}

impl Hits {
    /// The path that a file has by whatever name: where a link to `path` leads, if it is one.
    pub(super) fn real<'a>(&'a self, path: &'a Path) -> &'a Path {
        self.real.get(path).unwrap_or(path)
    }

    /// Returns true if `other`, which leads to the same file, names it too, and by the same name: it is meant twice.
    pub(super) fn is_named_as(&self, other: &Self) -> bool {
        self.by == By::Name && other.by == By::Name && self.written == other.written
    }

    /// Returns true if it names a link to a file.
    pub(super) fn is_link(&self) -> bool {
        self.by == By::Name && !self.real.is_empty()
    }

    /// The path of one of its files in the namespace.
    fn path_in(&self, seen: &Seen, path: &Path) -> String {
        let below = below(path.as_ref(), &self.base);
        if seen.at.is_empty() { below.to_owned() } else { format!("{}/{below}", seen.at) }
    }
}

/// `path` relative to `directory`, if it is below it.
fn below<'p>(path: &'p str, directory: &str) -> &'p str {
    path.strip_prefix(directory).unwrap_or(path).trim_start_matches('/')
}

/// The directory that all names are relative to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Common {
    /// Of the one store.
    Store(String),
    /// Of the namespace of mounts.
    Namespace(String),
    /// There is none: files are named by their addresses.
    None,
}

impl Common {
    pub(super) fn of(all: &[Hits]) -> Self {
        let seen: Vec<&Seen> = all.iter().filter_map(|hits| hits.seen.as_ref()).collect();
        if !seen.is_empty() {
            let is_whole = seen.len() == all.len();
            return if is_whole { Self::Namespace(shared(seen.iter().map(|seen| &*seen.top))) } else { Self::None };
        }
        match all.first() {
            Some(first) if all.iter().all(|hits| hits.place.prefix == first.place.prefix) => {
                Self::Store(shared(all.iter().map(|hits| &*hits.base)))
            }
            _ => Self::None,
        }
    }

    /// The name of the file of `hits` at `path`.
    pub(super) fn name(&self, hits: &Hits, path: &Path) -> Arc<str> {
        match (self, &hits.seen) {
            (Self::Store(root), _) => below(path.as_ref(), root).into(),
            (Self::Namespace(root), Some(seen)) => below(&hits.path_in(seen, path), root).into(),
            (_, Some(seen)) => format!("bow://{}", hits.path_in(seen, path)).into(),
            (_, None) => hits.place.url(path).into(),
        }
    }

    /// The same directory in the one store that has it.
    pub(super) fn directory(self, all: &[Hits]) -> Option<(Place, String)> {
        let place = || all.first().map(|first| first.place.clone());
        match self {
            Self::Store(root) => Some((place()?, root)),
            Self::Namespace(_) => {
                let first = place()?;
                // Files of several mounts have nothing beside them all, even if their mounts lead to one store today.
                let is_one = |hits: &Hits| {
                    hits.place.is_same(&first) && hits.seen.as_ref().is_some_and(|seen| seen.top == seen.at)
                };
                all.iter().all(is_one).then(|| (first.clone(), shared(all.iter().map(|hits| &*hits.base))))
            }
            Self::None => None,
        }
    }

    /// The same directory in the namespace of mounts, if it is of that.
    pub(super) fn in_namespace(&self) -> Option<Arc<str>> {
        match self {
            Self::Namespace(root) => Some(root.as_str().into()),
            Self::Store(_) | Self::None => None,
        }
    }
}

/// The directory that all of `paths` are, or are below.
fn shared<'p>(paths: impl IntoIterator<Item = &'p str>) -> String {
    let mut shared: Option<Vec<&str>> = None;
    for path in paths {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        shared = Some(match shared {
            None => parts,
            Some(shared) => {
                let same = shared.iter().zip(&parts).take_while(|(a, b)| a == b).count();
                shared.into_iter().take(same).collect()
            }
        });
    }
    shared.unwrap_or_default().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_directory_is_cut_between_parts() {
        assert_eq!(shared(["a/b/c", "a/b/d", "a/bc"]), "a");
        assert_eq!(shared(["a/b", "a/b/c/"]), "a/b");
        assert_eq!((shared(["a", ""]), shared([])), (String::new(), String::new()));
        assert_eq!((below("a/b/c", "a/b"), below("x", "")), ("c", "x"));
    }
}
