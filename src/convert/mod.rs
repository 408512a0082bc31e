//! Conversion of datasets between formats.
//!
//! ```text
//!   source ── shards ─► batches ─► filter, project, cast ─► sink ── files ─┐ hidden directory, journal of finished tasks
//!   one file per format, streaming                        one per format   └─ check ─ _SUCCESS ─ rename ─► destination
//! ```
//! | module | content |
//! |---|---|
//! | `formats` | one file per format, and the lists by which one is found; `guess` tells a format from names and first bytes |
//! | `read` | the location of a source; its files, unpacked while they are read; those of a store, read ahead |
//! | `values` | tokens and cells: one strict parser for each type, JSON into columns, clocks and time zones |
//! | `job` | the plan of a conversion (`plan`), its tasks and their runner, a shuffle of all rows (`shuffle`), recovery after kills (`journal`, `publish`) |
//! | `check` | comparison of two datasets, row counts without reading rows, and a second, independent reading of text |
//!
//! They share [`Source`] and [`Sink`], the options, limits, budget, types and errors.
//!
//! Nothing in a source is trusted before it is checked, nothing in it is run, no path in it is followed. A type that a format
//! cannot hold is refused before anything is written, with the column; a value that it cannot hold, with column and row.
//! Every format is read from any store and written to local disks.

mod budget;
mod check;
mod errors;
mod format;
mod formats;
mod job;
mod limits;
mod options;
mod parallel;
mod read;
mod rolling;
mod sink;
mod source;
mod types;
mod values;

pub use budget::{Budget, Progress};
pub use check::digest::{ColumnDigest, Digest};
pub use check::verify::{ColumnVerdict, Comparison, verify};
pub use format::Format;
pub use formats::{Entry, Example, Feature, Kind, RecordReader, TarReader, open, write_record};
pub use job::{Begun, Conversion, Plan, Report, convert, is_unfinished, plan, work};
pub use limits::Limits;
pub use options::ConvertOptions;
pub use sink::{Part, Sink, Writer};
pub use source::{Batches, Shard, Source, Text};
pub use types::Types;
pub use types::type_text;

#[doc(hidden)]
pub use formats::mds::fuzz_shard as fuzz_mds_shard;
