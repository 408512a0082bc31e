//! What a version of a table is called, in messages and documents.

use std::sync::Arc;

/// What a version is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::dataset) struct About {
    pub(in crate::dataset) url: Arc<str>,
    pub(in crate::dataset) version: u64,
}

impl About {
    /// `what`, a part of it.
    pub(super) fn of(&self, what: &str) -> String {
        format!("{what} of version {} of the Delta table {}", self.version, self.url)
    }

    /// What to do where files of a version are gone.
    pub(in crate::dataset) fn advice(&self) -> String {
        "a VACUUM deleted it: open a later version, or restore the file; to keep versions for as long as a run takes, set the table's \
         delta.deletedFileRetentionDuration"
            .to_owned()
    }
}
