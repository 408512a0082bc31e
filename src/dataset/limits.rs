//! Limits on what a file may ask for. The numbers come from files that nobody has to trust.

use serde::{Deserialize, Serialize};

/// Limits that hold before anything is allocated. A file over a limit is [`Error::Limit`](crate::Error::Limit), with the
/// name of the option to raise if the file is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a file's footer. Default 64 MiB.
    pub max_footer_bytes: u64,
    /// Bytes that the read columns of one row group may take when decoded. Default 8 GiB.
    pub max_row_group_bytes: u64,
    /// Bytes of one compressed page after decompression. Default 256 MiB.
    pub max_page_bytes: u64,
    /// Ratio of the content to the size of a compressed page of more than 16 MiB, or of the columns of a row group of
    /// more than 256 MiB. Default 1,000.
    pub max_ratio: u64,
    /// Leaf columns of a file. Default 10,000.
    pub max_columns: usize,
    /// Levels of nesting of a schema. Default 64.
    pub max_depth: usize,
    /// Row groups of a file. Default 1,000,000.
    pub max_row_groups: usize,
    /// Files of a dataset. Default 1,000,000.
    pub max_files: usize,
    /// Bytes of a pickled schema or index of Petastorm, and, counted separately, of what is built from it. Default 64 MiB.
    pub max_pickle_bytes: u64,
    /// Bytes of an index of footers. Default 2 GiB.
    pub max_index_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_footer_bytes: 64 << 20,
            max_row_group_bytes: 8 << 30,
            max_page_bytes: 256 << 20,
            max_ratio: 1000,
            max_columns: 10_000,
            max_depth: 64,
            max_row_groups: 1_000_000,
            max_files: 1_000_000,
            max_pickle_bytes: 64 << 20,
            max_index_bytes: 2 << 30,
        }
    }
}

/// Pages up to this size are not judged by their ratio: a page of zeros compresses well.
pub(super) const PAGE_RATIO_FREE: u64 = 16 << 20;

/// Row groups up to this size are not either.
pub(super) const GROUP_RATIO_FREE: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused_and_missing_ones_are_defaults() {
        let limits: Limits = serde_json::from_str(r#"{"max_files": 3}"#).unwrap();
        assert_eq!(limits, Limits { max_files: 3, ..Limits::default() });
        assert!(serde_json::from_str::<Limits>(r#"{"max_flies": 3}"#).is_err());
    }
}
