//! Tables of Iceberg, read in place: metadata say which files and rows one snapshot has.
//!
//! ```text
//!   metadata/*.metadata.json ─current─► metadata ─travel─► a snapshot ─► list of manifests ─► manifests ─► entries
//!       schema     ─► columns by their numbers, names for files without numbers
//!       data files ─► sorted by name, values of columns that they lack ─┐
//!       deletes    ─► which are of which files ─► positions, by file ───┴─► read as any other dataset's
//! ```
//!
//! Manifests are read here, not by a library: see `avro`. So are deletes: rows that are deleted by their values become positions when the
//! table is opened, so that counts, steps and resuming are exact.

mod avro;
mod avro_schema;
mod bounds;
mod current;
mod deleted;
mod deletes;
mod equality;
mod manifest;
mod metadata;
mod positions;
mod rows;
mod schema;
mod snapshot;
mod table;
mod travel;
mod value;

pub(super) use table::Table;
