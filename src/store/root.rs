//! The directory of a table, whose log names the files that are its rows.

use std::sync::{Arc, Mutex, PoisonError};

use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;

use super::access::Access;
use super::address::Address;
use super::found::Found;
use super::place::{MountedAt, Place, check_count, escaped};
use super::registered::is_registered;
use super::stamp::Stamp;
use super::stores::Stores;
use super::walk::below;
use crate::error::{Error, Result};

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    place: Place,
    path: Path,
    /// Other stores that the log led to: each is opened once, since that costs more than all else that is done for a file.
    others: Arc<Mutex<Vec<Place>>>,
}

impl Root {
    pub(super) fn new(place: Place, path: Path) -> Self {
        Self { place, path, others: Arc::default() }
    }

    /// The full address, without credentials.
    pub(crate) fn url(&self) -> String {
        self.place.url(&self.path)
    }

    /// The objects right in `directory`, by their names in it, at most `most` of them; empty ones are left out.
    ///
    /// # Errors
    /// [`Error::Limit`] names `limits.max_files`; [`Error::Store`].
    pub(crate) async fn list(&self, directory: &str, most: usize) -> Result<Vec<Found>> {
        let at = self.path.clone().join(directory);
        let failed = |error| self.place.failed("list", &at, error);
        let listed = if self.place.local {
            self.place.store.list_with_delimiter(Some(&at)).await.map_err(failed)?.objects
        } else {
            // Page by page, so that a limit holds before all of it is there.
            let mut objects = Vec::new();
            let mut listing = self.place.store.list(Some(&at));
            while let Some(meta) = listing.try_next().await.map_err(failed)? {
                if !below(&at, &meta.location).contains('/') {
                    objects.push(meta);
                    check_count(objects.len(), most)?;
                }
            }
            objects
        };
        check_count(listed.len(), most)?;
        let found = listed.into_iter().filter(|meta| meta.size > 0).map(|meta| Found {
            place: self.place.clone(),
            name: below(&at, &meta.location).into(),
            size: Some(meta.size),
            stamp: Some(Stamp::of(&meta)),
            path: meta.location,
        });
        Ok(found.collect())
    }

    /// The object `name` below the directory, which may not exist; none for an invalid name, such as `../x`.
    pub(crate) fn file(&self, name: &str) -> Option<Found> {
        let path = Path::parse(format!("{}/{name}", self.path).trim_start_matches('/')).ok()?;
        // Empty parts would make two names of one object.
        let same = !name.is_empty() && below(&self.path, &path) == name;
        same.then(|| Found { place: self.place.clone(), path, name: name.into(), size: None, stamp: None })
    }

    /// The object at the absolute address `url`, as a log has it, in the same kind of store as the directory. Its name is the one below the
    /// directory if it is there, and else all of the address.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a file of this machine that a table elsewhere names, or the other way round, and for a relative path;
    /// [`Error::Config`].
    pub(crate) fn elsewhere(&self, url: &str, access: Access<'_>) -> Result<Found> {
        let foreign = || {
            let what = format!("{url}, a file in another kind of store than its table {},", self.url());
            Error::unsupported(what, "copy the table as a whole, for example by a deep clone")
        };
        // Options of a mount are for its own store. Other mounts may well have the same kind of store, with other keys.
        let unmounted = |at: &MountedAt| {
            let what = format!("{url}, a file outside the store of the mount {} that its table is in,", at.mount.url());
            Error::unsupported(what, "open the table by its own address, or copy it as a whole")
        };
        if !url.starts_with('/') && !url.starts_with("file:") && !url.contains("://") {
            let what = format!("{url}, a path in the table {}, which does not say what it is relative to,", self.url());
            return Err(Error::unsupported(what, "write the table with an absolute location, or rewrite its paths"));
        }
        // Hadoop writes file:/x; a path alone is in the table's own store.
        let path = url.strip_prefix("file:").map(|path| format!("/{}", path.trim_start_matches('/')));
        let (place, path) = match path.or_else(|| url.starts_with('/').then(|| url.to_owned())) {
            Some(path) if self.place.local || url.starts_with('/') => {
                let parsed = Path::from_url_path(path.trim_start_matches('/'));
                (self.place.clone(), parsed.map_err(|error| Error::config("urls", format!("{url}: {error}")))?)
            }
            Some(_) => return Err(foreign()),
            None if self.place.local => return Err(foreign()),
            None => match self.known(url) {
                Some(known) => known,
                None => match (&self.place.mount, Address::parse(url)?) {
                    (Some(at), _) => return Err(unmounted(at)),
                    // A table in a cloud makes nobody ask the web, or another cloud, with keys of this one; nor another store of this
                    // process.
                    (None, Address::Remote(text))
                        if family(&text) == family(&self.place.prefix) && !is_registered(&text) =>
                    {
                        let (place, path) = Stores::new(access)?.remote(&text)?;
                        self.others.lock().unwrap_or_else(PoisonError::into_inner).push(place.clone());
                        (place, path)
                    }
                    _ => return Err(foreign()),
                },
            },
        };
        let same = one_name(&place.prefix) == one_name(&self.place.prefix);
        let inside = same && path.prefix_matches(&self.path);
        // The table's own store may have been opened with more than the options say.
        let place = if same { self.place.clone() } else { place };
        let name = if inside { below(&self.path, &path).into() } else { place.url(&path).into() };
        Ok(Found { place, path, name, size: None, stamp: None })
    }

    /// As [`elsewhere`](Self::elsewhere), for an address in which nothing is encoded, as in metadata of Iceberg.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn literal(&self, url: &str, access: Access<'_>) -> Result<Found> {
        self.elsewhere(&escaped(url), access)
    }

    /// The directory at the absolute address `url`, as [`literal`](Self::literal) has it.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn at(&self, url: &str, access: Access<'_>) -> Result<Self> {
        let found = self.literal(url.trim_end_matches('/'), access)?;
        Ok(Self { place: found.place, path: found.path, others: Arc::clone(&self.others) })
    }

    /// The store and path of `url`, if it is in a store that is open.
    fn known(&self, url: &str) -> Option<(Place, Path)> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.place).chain(others.iter()).find_map(|place| {
            let (own, named) = (one_name(&place.prefix), one_name(url));
            let rest = (own.0 == named.0 && own.1.ends_with('/')).then(|| named.1.strip_prefix(own.1))??;
            let is_path = !rest.is_empty() && !rest.contains(['?', '#']);
            Some((place.clone(), is_path.then(|| Path::from_url_path(rest).ok())??))
        })
    }
}

/// The kind of store of an address, whose schemes may differ.
fn family(url: &str) -> &str {
    if url.starts_with("https://") && url.contains(".core.windows.net/") {
        return "azure";
    }
    match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        "s3" | "s3a" | "s3n" => "s3",
        "az" | "adl" | "azure" | "abfs" | "abfss" => "azure",
        other => other,
    }
}

/// Hadoop has three names for S3.
pub(super) fn one_name(prefix: &str) -> (bool, &str) {
    let bucket = ["s3://", "s3a://", "s3n://"].iter().find_map(|scheme| prefix.strip_prefix(scheme));
    bucket.map_or((false, prefix), |bucket| (true, bucket))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use object_store::local::LocalFileSystem;

    use super::*;

    #[test]
    fn a_log_names_files_below_its_table_and_elsewhere_and_no_others() {
        let place = Place { local: true, ..Place::new(Arc::new(LocalFileSystem::new()), "/") };
        let root = Root::new(place, Path::parse("data/table").unwrap());
        assert_eq!(root.file("a=1%2F/x.parquet").unwrap().url(), "/data/table/a=1%2F/x.parquet");
        for wrong in ["../x.parquet", "a/../../x", "a//x", "", "/x"] {
            assert!(root.file(wrong).is_none(), "{wrong:?}");
        }
        let options = BTreeMap::<String, String>::new();
        let named =
            |url: &str| root.elsewhere(url, (&options).into()).map(|found| (found.url(), found.name.to_string()));
        let outside = || ("/other/a b.parquet".to_owned(), "/other/a b.parquet".to_owned());
        for url in ["file:/other/a%20b.parquet", "file:///other/a%20b.parquet", "/other/a%20b.parquet"] {
            assert_eq!(named(url).unwrap(), outside(), "{url}");
        }
        assert_eq!(named("file:/data/table/x").unwrap(), ("/data/table/x".to_owned(), "x".to_owned()));
        assert!(named("file:/data/table/../../etc/x").is_err());
        assert!(matches!(named("s3://bucket/x"), Err(Error::Unsupported { .. })));
        let relative = named("warehouse/table/x").unwrap_err();
        assert!(
            matches!(relative, Error::Unsupported { .. }) && relative.to_string().contains("relative"),
            "{relative}"
        );
        let literal =
            |url: &str| root.literal(url, (&options).into()).map(|found| (found.url(), found.name.to_string()));
        let name = "k=a%20b?#/x y";
        for start in ["file:///data/table/", "file:/data/table/", "/data/table/"] {
            assert_eq!(literal(&format!("{start}{name}")).unwrap(), (format!("/data/table/{name}"), name.to_owned()));
        }
        assert_eq!(root.at("file:///data/table/", (&options).into()).unwrap().url(), "/data/table");
        assert_eq!(one_name("s3a://b/"), one_name("s3://b/"));
    }

    #[test]
    fn a_log_leads_into_no_other_store_of_this_process() {
        let none = BTreeMap::new();
        let store = Arc::new(object_store::memory::InMemory::new());
        for (prefix, other) in
            [("filesystem://a-1/", "filesystem://b-2/t/x"), ("memory://put-1/", "memory://put-2/t/x")]
        {
            let root =
                Root::new(Place::new(Arc::<object_store::memory::InMemory>::clone(&store), prefix), Path::from("t"));
            let own = root.elsewhere(&format!("{prefix}t/x"), Access::from(&none)).unwrap();
            assert_eq!(own.name.as_ref(), "x");
            assert!(matches!(root.elsewhere(other, Access::from(&none)), Err(Error::Unsupported { .. })), "{other}");
        }
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn a_store_is_opened_once_whatever_it_is_called() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let place = Place::new(store, "s3://b/");
        let root = Root::new(place, Path::from("t"));
        let (none, wrong) = (BTreeMap::new(), BTreeMap::from([("nonsense".to_owned(), "1".to_owned())]));
        // Code that opens a store looks at the options.
        let found = |url: &str, options| root.elsewhere(url, Access::from(options)).map(|found| found.name.to_string());
        for url in ["s3://b/t/x%20y", "s3a://b/t/x%20y", "s3n://b/t/x%20y"] {
            assert_eq!(found(url, &wrong).unwrap(), "x y");
        }
        assert_eq!(found("s3a://b/u/x", &wrong).unwrap(), "s3://b/u/x");
        for url in ["s3://b/t/x?y", "s3://b/t/../t/x", "s3://bb/t/x", "s3://c/d/x"] {
            assert!(found(url, &wrong).is_err(), "{url}");
        }
        assert_eq!(found("s3://c/d/x", &none).unwrap(), "s3://c/d/x");
        assert_eq!(found("s3a://c/d/y", &wrong).unwrap(), "s3://c/d/y");
        assert_eq!(root.literal("s3a://b/t/a%20b?#", Access::from(&wrong)).unwrap().name.as_ref(), "a%20b?#");
        // Neither the web nor another cloud.
        for url in ["http://169.254.169.254/x", "memory://mount/x", "gs://b/t/x", "abfss://c@a.dfs.core.windows.net/x"]
        {
            assert!(matches!(root.elsewhere(url, Access::from(&none)), Err(Error::Unsupported { .. })), "{url}");
        }
        let azure = ["abfss://c@a.dfs.core.windows.net/x", "az://c/x", "https://a.blob.core.windows.net/c/x"];
        assert_eq!(azure.map(family), ["azure"; 3]);
    }
}
