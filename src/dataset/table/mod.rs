//! Common parts of tables of every format: columns found by name or number, values that come from a log, deleted rows.
//!
//! ```text
//!   log or metadata ─planner─► files · columns ─naming─► schemas of files by the table's names ─widen─► the table's types
//!                              deleted rows ─► row group by row group, before any filter
//! ```

mod about;
pub(super) mod bitmap;
mod column;
mod columns;
mod deleted;
mod naming;
mod numbers;
mod part;
mod pruned;
mod sieve;
pub(super) mod time;
pub(super) mod value;
mod widen;

pub(super) use about::{About, System};
pub(super) use bitmap::Broken;
pub(super) use column::{Column, Kind};
pub(super) use columns::Columns;
pub(super) use deleted::Deleted;
pub(super) use naming::{Mapping, Naming};
pub(super) use numbers::Numbers;
pub(super) use part::Part;
pub(super) use pruned::Pruned;
pub(super) use sieve::{Sieve, Tested, constant};
pub(super) use value::{binary, exact, parse};
pub(super) use widen::widens;
