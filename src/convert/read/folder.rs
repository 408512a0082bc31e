//! Files of which each is one row, in shards.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::files::{self, Found};
use crate::error::Place;

/// The files of a folder, and those of each shard.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) files: Vec<Found>,
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Folder {
    /// The files of this machine.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        files::paths(&self.files)
    }

    /// The file that row `row` of shard `shard` is.
    pub(crate) fn place(&self, shard: usize, row: u64) -> Place {
        let file = self.ranges.get(shard).and_then(|range| self.files.get(range.start + usize::try_from(row).ok()?));
        Place { file: file.map(|file| Arc::clone(&file.name)), ..Place::default() }
    }

    /// The files of shard `shard`.
    pub(crate) fn of(&self, shard: usize) -> &[Found] {
        self.ranges.get(shard).and_then(|range| self.files.get(range.clone())).unwrap_or_default()
    }
}
