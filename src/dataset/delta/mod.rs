//! Tables of Delta Lake, read in place: the log of a table gives the files and rows of one version.
//!
//! ```text
//!   _delta_log ─names─► log: a checkpoint, commits ─actions─► replay: files, protocol, metadata
//!       protocol ─► what is asked of a reader, refused by name where it is not known
//!       metadata ─► schema: columns, their names in files ─► naming: schemas of files by the table's names
//!       files    ─► sorted by name, values of partition columns ─┐
//!       statistics ─► files that the filter prunes
//!       vectors  ─► deleted rows, row group by row group ────────┴─► read as any other dataset's
//! ```
//!
//! The log is read here, not by a library: everything else (the order of files, deleted rows, names and types, the reading of data) is
//! this crate's own in any case.

mod action;
mod checkpoint;
mod judge;
mod log;
mod members;
mod path;
mod protocol;
mod replay;
mod schema;
mod snapshot;
mod statistics;
mod table;
mod travel;
mod vector;
mod vectors;

pub(super) use table::Table;
