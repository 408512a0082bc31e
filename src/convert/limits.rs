//! Limits on a source's demands, and the size of a batch.

use serde::{Deserialize, Serialize};

use crate::dataset;
use crate::error::{Error, Place, Result};

/// Most rows of a batch.
pub(crate) const BATCH_ROWS: usize = 8192;

/// Size in bytes at which a batch ends. A single row may be larger.
pub(crate) const BATCH_BYTES: usize = 4 << 20;

/// Limits on a source's demands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of one record, line, sample or file that is read whole. Default 64 MiB.
    pub max_record_bytes: u64,
    /// Columns of a dataset. Default 10,000.
    pub max_columns: usize,
    /// Files of a dataset. Default 10,000,000.
    pub max_files: usize,
    /// Bytes of an index or a description: `index.json`, `state.json`. Default 256 MiB.
    pub max_index_bytes: u64,
    /// Of Parquet, as [`dataset::Limits`]: ratio of the content to the size of a large packed page or row group.
    /// Default 1,000.
    pub max_ratio: u64,
    /// Of Parquet: bytes of one packed page after decompression. Default 256 MiB.
    pub max_page_bytes: u64,
    /// Of Parquet: bytes that the read columns of one row group may take when decoded. Default 8 GiB.
    pub max_row_group_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let dataset::Limits { max_ratio, max_page_bytes, max_row_group_bytes, .. } = dataset::Limits::default();
        Self {
            max_record_bytes: 64 << 20,
            max_columns: 10_000,
            max_files: 10_000_000,
            max_index_bytes: 256 << 20,
            max_ratio,
            max_page_bytes,
            max_row_group_bytes,
        }
    }
}

impl Limits {
    /// Those of a source that is read as in training.
    pub(crate) fn dataset(&self) -> dataset::Limits {
        dataset::Limits {
            max_ratio: self.max_ratio,
            max_page_bytes: self.max_page_bytes,
            max_row_group_bytes: self.max_row_group_bytes,
            max_columns: self.max_columns,
            ..dataset::Limits::default()
        }
    }

    /// Refuses a record of `bytes` bytes.
    pub(crate) fn record(&self, file: &str, what: impl FnOnce() -> String, bytes: u64) -> Result<()> {
        if bytes <= self.max_record_bytes {
            return Ok(());
        }
        let limit = self.max_record_bytes;
        Err(Error::limit(what(), bytes, limit, "limits.max_record_bytes").at(Place::file(file)))
    }

    /// Refuses `count` columns of something.
    pub(crate) fn columns(&self, file: &str, of: impl FnOnce() -> String, count: usize) -> Result<()> {
        if count <= self.max_columns {
            return Ok(());
        }
        let (asked, limit) = (count as u64, self.max_columns as u64);
        let what = format!("the number of columns of {}", of());
        Err(Error::limit(what, asked, limit, "limits.max_columns").at(Place::file(file)))
    }
}
