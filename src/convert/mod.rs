//! Datasets in and out of the formats that people have.
//!
//! ```text
//!   source ── shards ─► batches ─► filter, project, cast ─► sink ── files ─┐ hidden directory, journal of finished tasks
//!   one file per format, streaming                        one per format   └─ check ─ _SUCCESS ─ rename ─► destination
//! ```
//! | room | what is in it |
//! |---|---|
//! | `formats` | one file per format, and the lists by which one is found; `guess` tells a format from names and first bytes |
//! | `read` | where a source is, its files, unpacked on the way, and those of a store, read ahead of need |
//! | `values` | tokens and cells: the one strict reading for each type, JSON into columns, clocks and time zones |
//! | `job` | what a conversion does (`plan`), its tasks, what runs them, all rows in another order (`shuffle`), and what survives kills (`journal`, `publish`) |
//! | `check` | whether two datasets have the same rows, rows counted without reading them, and text read a second time by other means |
//!
//! Beside the rooms is what they share: [`Source`] and [`Sink`], the options, limits, budget, types and errors.
//!
//! Nothing in a source is believed before it was checked, nothing of it is run, no path in it is followed. What a format
//! cannot hold is refused before anything is written, by column and type; what depends on the value, by column and row.
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

pub use budget::{Budget, Permit, Progress};
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
pub use types::{parse_type, type_text};

#[doc(hidden)]
pub use formats::mds::fuzz_shard as fuzz_mds_shard;
