//! A table as a catalog describes it: its kind and place, and how its store is reached.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::store::credentials::{CredentialSource, Credentials};
use crate::store::display::display;
use crate::store::logs::{Ratified, is_metadata};
use crate::store::place::escaped;

/// What lies at a table's location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) enum Content {
    /// A file of metadata of Iceberg.
    Iceberg,
    /// A directory with a log of Delta Lake; the catalog's own commits, where it keeps some.
    Delta(Option<Ratified>),
    /// A directory of Parquet files; only those below some directories in it, where the catalog has partitions.
    Parquet(Option<BTreeSet<String>>),
}

/// See the module.
#[derive(Debug)]
pub(in crate::store) struct CatalogTable {
    pub(in crate::store) content: Content,
    /// Its address, in which nothing is percent-encoded.
    pub(super) location: String,
    /// Options of its store; keys are names of `storage_options`.
    pub(in crate::store) settings: BTreeMap<String, String>,
    pub(in crate::store) credentials: Option<CredentialSource>,
    /// The catalog is on this machine, and may name files of it.
    pub(super) is_near: bool,
}

/// Options and credentials for a store.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StoreAccess {
    /// Keys are names of `storage_options`.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) credentials: Option<Credentials>,
}

/// What is no table of a log, for messages.
pub(in crate::store) const PLAIN: &str = "plain files";

/// Where a table lies.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) enum Location {
    /// A path of this machine.
    Here(String),
    /// An address in a store.
    Store(String),
}

/// Schemes of stores that a catalog may name.
const STORES: &[&str] =
    &["s3://", "s3a://", "s3n://", "gs://", "az://", "azure://", "abfs://", "abfss://", "adl://", "hdfs://"];

impl CatalogTable {
    /// A table without options or credentials of its own.
    pub(super) fn new(content: Content, location: String, is_near: bool) -> Self {
        Self { content, location, settings: BTreeMap::new(), credentials: None, is_near }
    }

    /// Where the table `name` lies.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a place that a catalog may not name.
    pub(in crate::store) fn place(&self, name: &str) -> Result<Location> {
        let location = self.location.as_str();
        let what = if self.content == Content::Iceberg { "metadata are" } else { "files are" };
        let foreign = |why: &str| {
            let what = format!("{name}, whose {what} by its catalog at {}, {why},", display(location));
            Error::unsupported(what, "give the address of the table where it is within reach")
        };
        let here = location.strip_prefix("file:").map(|path| format!("/{}", path.trim_start_matches('/')));
        let here = here.or_else(|| location.starts_with('/').then(|| location.to_owned()));
        match here {
            _ if self.content == Content::Iceberg && !is_metadata(location) => Err(foreign("which is no file of them")),
            Some(path) if self.is_near => Ok(Location::Here(path)),
            Some(_) => Err(foreign("on a disk of another machine")),
            None if STORES.iter().any(|scheme| location.starts_with(scheme)) => {
                // S3 has three names in Hadoop, and addresses in metadata are not percent-encoded.
                let plain = location.replacen("s3n://", "s3://", 1);
                Ok(Location::Store(escaped(&plain)))
            }
            None => Err(foreign("in no store that is read for a catalog")),
        }
    }

    /// Checks that `found`, which lies at the location of the table `name`, is what the catalog says.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming both.
    pub(in crate::store) fn check(&self, name: &str, found: &'static str) -> Result<()> {
        let told = match &self.content {
            Content::Iceberg => "a table of Iceberg",
            Content::Delta(_) => "a table of Delta Lake",
            Content::Parquet(_) => PLAIN,
        };
        if told == found {
            return Ok(());
        }
        let what = format!("{name}, which is by its catalog {told}, and at {} {found},", display(&self.location));
        Err(Error::unsupported(what, "mend the catalog's entry, or give the address"))
    }
}

impl Content {
    /// Whether the file `name`, relative to the table's directory, is one of the table.
    pub(in crate::store) fn has(&self, name: &str) -> bool {
        let Self::Parquet(Some(directories)) = self else { return true };
        let above = name.match_indices('/').filter_map(|(at, _)| name.get(..at));
        above.into_iter().any(|directory| directories.contains(directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_dropped_partitions_are_not_of_the_table() {
        let content = Content::Parquet(Some(["dt=1".to_owned(), "dt=2/h=3".to_owned()].into()));
        assert!(
            content.has("dt=1/a.parquet") && content.has("dt=1/deeper/a.parquet") && content.has("dt=2/h=3/a.parquet")
        );
        assert!(!content.has("dt=10/a.parquet") && !content.has("dt=2/h=4/a.parquet") && !content.has("a.parquet"));
        assert!(Content::Parquet(None).has("a.parquet"));
    }

    #[test]
    fn a_catalog_may_name_some_places_only() {
        let place = |content: Content, location: &str, near: bool| {
            CatalogTable::new(content, location.to_owned(), near).place("uc://a.b.c")
        };
        let (delta, iceberg) = (Content::Delta(None), Content::Iceberg);
        let store = |url: &str| Location::Store(url.to_owned());
        assert_eq!(place(delta.clone(), "s3n://b/a b%20?", false).unwrap(), store("s3://b/a b%2520%3F"));
        assert_eq!(place(iceberg.clone(), "gs://b/v1.metadata.json", false).unwrap(), store("gs://b/v1.metadata.json"));
        assert_eq!(place(delta.clone(), "file:///d/t", true).unwrap(), Location::Here("/d/t".to_owned()));
        for (content, location, near) in [
            (delta.clone(), "file:///d/t", false),
            (delta.clone(), "/d/t", false),
            (delta.clone(), "https://h/t", true),
            (delta.clone(), "r2://b@a.r2.cloudflarestorage.com/t", true),
            (delta, "memory://x/t", true),
            (iceberg, "s3://b/t", true),
        ] {
            let error = place(content, location, near).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("uc://a.b.c"), "{error}");
        }
    }
}
