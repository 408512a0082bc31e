//! Hints of footers about the values of columns: where there are nulls, and integers that 32 bits do not hold. They say where to look, and
//! are not believed: statistics may be wrong, and a filter may leave out the rows that they speak of.

use super::project::Source;
use super::{DataFile, Dataset};
use crate::error::Result;
use crate::manifest::RowGroup;

/// Row groups that are named for a column; more are counted only.
const NAMED: usize = 8;

/// Values and row groups for which footers tell of something in a column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Number of values, before any filter.
    pub(crate) values: u64,
    /// Number of row groups with a selected row.
    pub(crate) groups: usize,
    /// The first of these.
    pub(crate) named: Vec<usize>,
}

impl Told {
    fn add(&mut self, group: usize, values: u64) {
        if values > 0 {
            self.values = self.values.saturating_add(values);
            self.groups += 1;
            if self.named.len() < NAMED {
                self.named.push(group);
            }
        }
    }
}

/// Source of a column's values in files of one layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// A leaf column.
    Leaf(usize),
    /// The directory.
    Partition,
    /// Nowhere: all are null.
    Nowhere,
    /// Several leaves.
    Several,
}

impl Dataset {
    /// The nulls of columns, each a dotted path to one leaf without lists of varying length around it, in row groups that have more of them
    /// than a selection leaves out, so at least one is selected.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) for a path that names nothing.
    pub(crate) fn told_nulls(&self, paths: &[String]) -> Result<Vec<Told>> {
        let origins = self.origins(paths)?;
        let mut told = vec![Told::default(); paths.len()];
        self.each_selected(|number, file, group| {
            let (ordinal, rows) = (group.ordinal as usize, group.rows);
            let left_out = rows.saturating_sub(group.selected);
            let origins = &origins[file.layout];
            let leaves =
                origins.iter().filter_map(|from| if let From::Leaf(leaf) = from { Some(leaf + 1) } else { None });
            let chunks = self.inner.packed.chunks(file.first + ordinal, leaves.max().unwrap_or(0));
            for ((path, from), told) in paths.iter().zip(origins).zip(&mut told) {
                let no_value = || {
                    let own = file.partitions.iter().find(|(key, _)| **key == **path);
                    own.is_none_or(|(_, value)| value.is_none())
                };
                let nulls = match from {
                    From::Leaf(leaf) => chunks.get(*leaf).and_then(|chunk| chunk.nulls).unwrap_or(0),
                    From::Nowhere => rows,
                    From::Partition if no_value() => rows,
                    From::Partition | From::Several => 0,
                };
                told.add(number, if nulls > left_out { nulls } else { 0 });
            }
        });
        Ok(told)
    }

    /// Integers that 32 bits do not hold, in columns of integers with a sign or without one: one row group of a file at most.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) for a path that names nothing.
    pub(crate) fn told_wide(&self, paths: &[String], signed: &[bool]) -> Result<Vec<Told>> {
        let origins = self.origins(paths)?;
        let mut told = vec![Told::default(); paths.len()];
        self.each_selected(|number, file, group| {
            for (at, from) in origins[file.layout].iter().enumerate() {
                let From::Leaf(leaf) = from else { continue };
                let Ok(known) = file.wide.binary_search_by_key(leaf, |wide| wide.leaf) else { continue };
                let wide = file.wide[known];
                let first = if signed[at] { wide.signed } else { wide.unsigned };
                told[at].add(number, u64::from(first == Some(group.ordinal as usize)));
            }
        });
        Ok(told)
    }

    /// Shows `visit` every row group with a selected row: its number, its file, and itself.
    fn each_selected(&self, mut visit: impl FnMut(usize, &DataFile, &RowGroup)) {
        for (number, group) in self.inner.manifest.groups.iter().enumerate().filter(|(_, group)| group.selected > 0) {
            if let Some(file) = self.inner.files.get(group.file as usize) {
                visit(number, file, group);
            }
        }
    }

    /// Sources of the columns, by layout.
    fn origins(&self, paths: &[String]) -> Result<Vec<Vec<From>>> {
        let mut origins = vec![Vec::with_capacity(paths.len()); self.inner.layouts.len()];
        let projector = self.projector();
        for path in paths {
            let projection = projector.project(std::slice::from_ref(path))?;
            for ((from, sources), layout) in origins.iter_mut().zip(&projection.sources).zip(&self.inner.layouts) {
                let name = |leaf: usize| layout.descriptor().columns().get(leaf).map(|leaf| leaf.path().string());
                // A neighbour stands for a member that a file lacks.
                let own =
                    |name: String| name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
                from.push(match sources.first() {
                    Some(Source::Leaves(leaves)) => match leaves.numbers.as_slice() {
                        [leaf] if name(*leaf).is_some_and(own) => From::Leaf(*leaf),
                        [_] => From::Nowhere,
                        _ => From::Several,
                    },
                    Some(Source::Partition) => From::Partition,
                    Some(Source::Missing) | None => From::Nowhere,
                });
            }
        }
        Ok(origins)
    }
}
