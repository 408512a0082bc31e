//! Names in the logs of tables, and what a catalog knows beyond a log.

use std::collections::BTreeMap;

/// The directory of the metadata of Iceberg.
pub(crate) const METADATA: &str = "metadata";

/// Whether a file of this name has the metadata of a table of Iceberg.
pub(crate) fn is_metadata(name: &str) -> bool {
    name.ends_with(".metadata.json") || name.ends_with(".metadata.json.gz")
}

/// The directory of the log of Delta Lake.
pub(crate) const LOG: &str = "_delta_log";

/// The directory, in the log of Delta Lake, of commits that a catalog has the last word on.
pub(crate) const STAGED: &str = "_staged_commits";

/// The latest commits of a table of Delta Lake, as its catalog has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ratified {
    /// The latest version: later ones in the log are not to be read yet.
    pub(crate) latest: u64,
    /// By version: the name of the file, in [`STAGED`], of each commit that may not be in the log yet. Without a gap up to the latest.
    pub(crate) commits: BTreeMap<u64, String>,
}
