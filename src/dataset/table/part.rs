//! Some columns of some files of a table, all of whose rows are there: what a planner reads itself.

use super::about::About;
use super::columns::Columns;
use crate::dataset::hive;

/// See the module.
#[derive(Debug)]
pub(in crate::dataset) struct Part {
    pub(in crate::dataset) about: About,
    pub(in crate::dataset) columns: Columns,
    /// For each file, the values of columns that it may lack.
    pub(in crate::dataset) values: Vec<hive::Values>,
}
