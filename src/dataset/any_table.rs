//! The table behind a dataset, in any of the formats.

use super::table::{About, Columns, Deleted, Part, Pruned};
use super::{OpenOptions, delta, hive, iceberg};
use crate::error::{Error, Result};
use crate::store::{Found, FoundTable};

/// See the module.
#[derive(Debug)]
pub(super) enum AnyTable {
    Delta(delta::Table),
    Iceberg(Box<iceberg::Table>),
    /// A part of one.
    Part(Part),
}

impl AnyTable {
    /// The version of the table at `at` that `options` ask for; the latest one by default. Its columns are those of `schema`, a number, if one is pinned.
    ///
    /// # Errors
    /// As those of either.
    pub(super) async fn open(at: FoundTable, options: OpenOptions, schema: Option<i64>) -> Result<Self> {
        match (at, &options.reference) {
            (FoundTable::Delta(root, ratified), None) => {
                Ok(Self::Delta(delta::Table::open(root, ratified, options).await?))
            }
            (FoundTable::Delta(root, _), Some(name)) => {
                let problem =
                    format!("{name:?}: tables of Delta Lake have no branches and tags, and {} is one", root.url());
                Err(Error::config("ref", problem))
            }
            (FoundTable::Iceberg(root, file), _) => {
                Ok(Self::Iceberg(Box::new(iceberg::Table::open(root, file, options, schema).await?)))
            }
        }
    }

    /// The version of the table at `at` that is read by default, or the one of the branch or tag of `options`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) async fn latest(at: FoundTable, options: &OpenOptions) -> Result<u64> {
        match at {
            FoundTable::Delta(root, ratified) => delta::Table::latest(root, ratified, options).await,
            FoundTable::Iceberg(root, file) => iceberg::Table::latest(root, file, options).await,
        }
    }

    pub(super) fn about(&self) -> &About {
        match self {
            Self::Delta(table) => &table.about,
            Self::Iceberg(table) => &table.about,
            Self::Part(part) => &part.about,
        }
    }

    /// Its schema as Spark has it, where the table says so.
    pub(super) fn spark(&self) -> Option<&str> {
        match self {
            Self::Delta(table) => Some(&table.spark),
            Self::Iceberg(_) | Self::Part(_) => None,
        }
    }

    /// Its files, sorted by name.
    pub(super) fn files(&self) -> Vec<Found> {
        match self {
            Self::Delta(table) => table.files(),
            Self::Iceberg(table) => table.files(),
            Self::Part(_) => Vec::new(),
        }
    }

    /// Its files that the filter prunes, which [`files`](Self::files) lacks.
    pub(super) fn pruned(&self) -> Pruned {
        match self {
            Self::Delta(table) => table.pruned.clone(),
            Self::Iceberg(table) => table.pruned.clone(),
            Self::Part(_) => Pruned::default(),
        }
    }

    /// Rows of each file, deleted ones included, where its metadata state them.
    pub(super) fn rows(&self) -> Vec<Option<u64>> {
        match self {
            Self::Delta(table) => table.rows(),
            Self::Iceberg(table) => table.rows(),
            Self::Part(_) => Vec::new(),
        }
    }

    /// Values of columns that its metadata hold for each file.
    pub(super) fn partition_values(&self) -> Vec<hive::Values> {
        match self {
            Self::Delta(table) => table.partition_values(),
            Self::Iceberg(table) => table.values(),
            Self::Part(part) => part.values.clone(),
        }
    }

    /// Its columns.
    pub(super) fn columns(&self) -> &Columns {
        match self {
            Self::Delta(table) => table.columns(),
            Self::Iceberg(table) => table.columns(),
            Self::Part(part) => &part.columns,
        }
    }

    /// Reads which rows are deleted.
    ///
    /// # Errors
    /// As those of either.
    pub(super) async fn deleted(&self, options: &OpenOptions) -> Result<Deleted> {
        match self {
            Self::Delta(table) => table.deleted(options).await,
            Self::Iceberg(table) => table.deleted(options).await,
            Self::Part(_) => Ok(Deleted::default()),
        }
    }

    /// `error`, adapted if it is about a file that the table names.
    pub(super) fn gone(&self, error: Error) -> Error {
        self.about().gone(error)
    }
}
