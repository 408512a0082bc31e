//! What a version of a table makes of a row group, beside the bytes of its file: later versions may delete rows of the same file,
//! and give its columns other names.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::Dataset;
use super::layout::Layout;
use crate::hex;

impl Dataset {
    /// Returns a digest of the rows that are left of row group `group`, and of the names of its columns, where these are not all rows
    /// and the file's own names; `None` if they are.
    pub(crate) fn version_of(&self, group: usize) -> Option<String> {
        let (row_group, _, layout) = self.group(group).ok()?;
        let (left, renamed) = (self.selection(group), is_renamed(layout));
        if left.is_none() && !renamed {
            return None;
        }
        let mut digest = Sha256::new();
        for (start, end) in left.into_iter().flat_map(|left| left.runs(row_group.rows)) {
            digest.update((start as u64).to_le_bytes());
            digest.update((end as u64).to_le_bytes());
        }
        for name in if renamed { names(layout.descriptor()) } else { Vec::new() } {
            digest.update(name);
            digest.update([0]);
        }
        Some(hex::of(digest.finalize()))
    }
}

fn is_renamed(layout: &Layout) -> bool {
    !Arc::ptr_eq(&layout.metadata, &layout.head.metadata)
        && names(layout.descriptor()) != names(layout.head.metadata.file_metadata().schema_descr())
}

/// The paths of the leaves.
fn names(schema: &parquet::schema::types::SchemaDescriptor) -> Vec<String> {
    schema.columns().iter().map(|leaf| leaf.path().string()).collect()
}
