//! Everything below one address of a store, whatever its format.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::access::Access;
use super::object::Object;
use super::place::{Place, no_directories};
use super::stamp::Stamp;
use super::stores::Stores;
use super::walk::below;
use crate::error::{Error, Result};

/// Objects that are looked up at once.
const LOOKUPS_AT_ONCE: usize = 32;

/// Target of an address of a store: one object, or all that is below.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    place: Place,
    root: Path,
    file: Option<Object>,
}

/// The next names below a directory.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) files: Vec<String>,
    pub(crate) directories: Vec<String>,
}

impl Tree {
    /// Looks at `url`. A directory may be empty: stores know of none.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such object and directories cannot be listed; [`Error::Config`], [`Error::Store`].
    pub(crate) async fn open(url: &str, access: Access<'_>) -> Result<Self> {
        let (place, root) = Stores::new(access)?.remote(url)?;
        let mut tree = Self { place, root, file: None };
        let name = tree.root.filename().unwrap_or_default().to_owned();
        if !url.ends_with('/') && !name.is_empty() {
            match tree.look(tree.root.clone(), &name).await {
                Ok(object) => tree.file = Some(object),
                Err(Error::NotFound { .. }) if tree.place.lists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tree)
    }

    /// The address, without credentials.
    pub(crate) fn url(&self) -> String {
        self.place.url(&self.root)
    }

    /// The one object that this is; `None` for a directory.
    pub(crate) fn file(&self) -> Option<&Object> {
        self.file.as_ref()
    }

    /// The directory that the object is in.
    pub(crate) fn parent(&self) -> Self {
        let mut parts: Vec<_> = self.root.parts().collect();
        parts.pop();
        Self { place: self.place.clone(), root: parts.into_iter().collect(), file: None }
    }

    /// The objects below the directory with these names, as they are now.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the first that is missing; [`Error::Config`] for an invalid name, [`Error::Store`].
    pub(crate) async fn objects(&self, names: &[String]) -> Result<Vec<Object>> {
        futures::stream::iter(names)
            .map(|name| async move { self.look(self.at(name)?, name).await })
            .buffered(LOOKUPS_AT_ONCE)
            .try_collect()
            .await
    }

    async fn look(&self, path: Path, name: &str) -> Result<Object> {
        match self.place.store.head(&path).await {
            Ok(meta) => Ok(self.named(name.into(), meta)),
            Err(object_store::Error::NotFound { .. }) => {
                Err(Error::NotFound { what: self.place.url(&path), hint: String::new() })
            }
            Err(error) => Err(self.place.failed("look up", &path, error)),
        }
    }

    /// The objects at any depth whose names, relative to the directory, `accept` takes; by name, at most `most`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if directories cannot be listed; [`Error::Limit`] names `limits.max_files`; [`Error::Store`].
    pub(crate) async fn list(&self, most: usize, accept: impl Fn(&str) -> bool) -> Result<Vec<Object>> {
        self.lists()?;
        let found = self.place.list(&self.root, most, |name| !name.is_empty() && accept(name), || false).await?;
        let mut found: Vec<Object> = found.files.into_iter().map(|meta| self.object(meta)).collect();
        found.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(found)
    }

    /// Names in `directory`, which is relative to this one, and empty for itself.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub(crate) async fn names(&self, directory: &str) -> Result<Names> {
        self.lists()?;
        let at = self.at(directory)?;
        let found = self.place.store.list_with_delimiter(Some(&at).filter(|at| !at.as_ref().is_empty())).await;
        let found = found.map_err(|error| self.place.failed("list", &at, error))?;
        let last = |path: &Path| path.filename().unwrap_or_default().to_owned();
        Ok(Names {
            files: found.objects.iter().map(|meta| last(&meta.location)).collect(),
            directories: found.common_prefixes.iter().map(last).collect(),
        })
    }

    fn lists(&self) -> Result<()> {
        if self.place.lists {
            return Ok(());
        }
        Err(no_directories(&self.url()))
    }

    /// The path of `name` below the directory; of the directory itself, if it is empty.
    fn at(&self, name: &str) -> Result<Path> {
        let path = format!("{}/{name}", self.root);
        let wrong = |error| Error::config("urls", format!("{name:?} below {}: {error}", self.url()));
        Path::parse(path.trim_matches('/')).map_err(wrong)
    }

    /// The listed object, by its name below the directory.
    fn object(&self, meta: ObjectMeta) -> Object {
        self.named(below(&self.root, &meta.location).into(), meta)
    }

    fn named(&self, name: Arc<str>, meta: ObjectMeta) -> Object {
        let stamp = Stamp::of(&meta);
        Object { place: self.place.clone(), path: meta.location, name, stamp }
    }
}
