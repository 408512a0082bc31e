//! Name of a version of a table, in messages and documents.

use std::sync::Arc;

use crate::error::Error;

/// System whose format a table is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataset) enum System {
    Delta,
    Iceberg,
}

/// Name of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dataset) struct About {
    pub(in crate::dataset) system: System,
    pub(in crate::dataset) url: Arc<str>,
    /// The number of the version, or of the snapshot.
    pub(in crate::dataset) version: u64,
    /// The number of the schema whose columns are read, where the snapshot names another one or none.
    pub(in crate::dataset) schema: Option<i64>,
}

impl About {
    /// The version itself, without its table's address.
    pub(in crate::dataset) fn shown(&self) -> String {
        match self.system {
            System::Delta => format!("version {} of the Delta table", self.version),
            System::Iceberg => format!("snapshot {} of the Iceberg table", self.version),
        }
    }

    /// `what`, a part of it.
    pub(in crate::dataset) fn of(&self, what: &str) -> String {
        format!("{what} of {} {}", self.shown(), self.url)
    }

    /// Advice where files of a version are gone.
    pub(in crate::dataset) fn advice(&self) -> String {
        match self.system {
            System::Delta => {
                "a VACUUM deleted it: open a later version, or restore the file; to keep versions for as long as a run takes, set the \
                 table's delta.deletedFileRetentionDuration"
            }
            System::Iceberg => {
                "it was deleted when snapshots were expired, or the table was moved, whose metadata name files in full: open a later \
                 snapshot, or rewrite the paths; to keep snapshots for as long as a run takes, set the table's \
                 history.expire.max-snapshot-age-ms, or tag the snapshot"
            }
        }
        .to_owned()
    }

    /// `error`, adapted if it is about a file that the table names.
    pub(in crate::dataset) fn gone(&self, error: Error) -> Error {
        match error {
            Error::NotFound { what, .. } => Error::NotFound { what: self.of(&what), hint: self.advice() },
            other => other,
        }
    }
}
