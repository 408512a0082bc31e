//! Folders of files that are one row each, divided into shards.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::files::{self, Found};
use crate::error::Place;

/// The files of a folder, and the range of each shard.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) files: Vec<Found>,
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Folder {
    /// Returns the paths of the local files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        files::paths(&self.files)
    }

    /// Returns the place of row `row` of shard `shard`: its file.
    pub(crate) fn place(&self, shard: usize, row: u64) -> Place {
        let file = self.ranges.get(shard).and_then(|range| self.files.get(range.start + usize::try_from(row).ok()?));
        Place { file: file.map(|file| Arc::clone(&file.name)), ..Place::default() }
    }

    /// Returns the files of shard `shard`.
    pub(crate) fn of(&self, shard: usize) -> &[Found] {
        self.ranges.get(shard).and_then(|range| self.files.get(range.clone())).unwrap_or_default()
    }
}
