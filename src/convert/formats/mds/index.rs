//! `index.json`: a dataset's description of its shards.

use serde::Deserialize;

/// Largest shard: offsets have 32 bits.
pub(super) const MAX_SHARD: u64 = u32::MAX as u64;

/// Most bytes of a shard's own configuration.
pub(super) const MAX_CONFIG: u64 = 16 << 20;

#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) version: u64,
    pub(super) shards: Vec<Entry>,
}

/// A shard in the index.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Entry {
    pub(super) format: String,
    pub(super) version: u64,
    pub(super) samples: u64,
    pub(super) column_names: Vec<String>,
    pub(super) column_encodings: Vec<String>,
    pub(super) column_sizes: Vec<Option<u64>>,
    pub(super) compression: Option<String>,
    pub(super) raw_data: File,
    pub(super) zip_data: Option<File>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct File {
    pub(super) basename: String,
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) hashes: std::collections::BTreeMap<String, String>,
}

impl Entry {
    /// Returns the stored file.
    pub(super) fn stored(&self) -> &File {
        self.zip_data.as_ref().filter(|_| self.compression.is_some()).unwrap_or(&self.raw_data)
    }
}
