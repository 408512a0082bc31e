//! Datasets in and out of the formats that people have.
//!
//! ```text
//!   source ── shards ─► batches ─► filter, project, cast ─► sink ── files ─┐ hidden directory, journal of finished tasks
//!   one file per format, streaming                        one per format   └─ check ─ _SUCCESS ─ rename ─► destination
//! ```
//! | file | what it is |
//! |---|---|
//! | `parquet`, `petastorm` | Parquet through [`dataset`](crate::dataset); the files of Petastorm beside it |
//! | `ipc`, `frames`, `huggingface` | Arrow files and streams, Feather; directories of Hugging Face `datasets` |
//! | `csv`, `jsonl` | text, with types inferred from a sample or given |
//! | `records`, `json`, `objects` | the tokens of both, and columns from those of JSON |
//! | `scalar`, `clock` | the one strict reading of a token for each type |
//! | `tfrecord`, `example` | the framing, and what `tf.train.Example` and `SequenceExample` hold |
//! | `webdataset`, `members`, `tar` | samples in tar files, read without extracting anything |
//! | `mds` | MosaicML's shards, and the encodings of their columns |
//! | `images`, `labels`, `numpy` | directories of one file per row |
//! | `listing`, `files`, `input`, `remote` | where a source is, its files, unpacked on the way, and those of a store, read ahead of need |
//! | `job`, `tasks` | what drives a source into a sink, a task at a time |
//! | `shuffle`, `scatter` | all rows in another order, within the budget |
//! | `conversion`, `commit`, `journal`, `publish` | what survives kills, and lets the result appear at once; tasks in other processes |
//! | `contents` | the list of published files, and whether they are still what was published |
//! | `check`, `verify`, `digest`, `census` | whether two datasets have the same rows, in any order; rows counted without reading them |
//! | `tokens`, `raw` | whether what was read of text is what stands there, by a second reading of it |
//!
//! Nothing in a source is believed before it was checked, nothing of it is run, no path in it is followed. What a format
//! cannot hold is refused before anything is written, by column and type; what depends on the value, by column and row.
//! Every format is read from any store and written to local disks.

mod budget;
mod cells;
mod census;
mod check;
mod clock;
mod commit;
mod contents;
mod conversion;
mod csv;
mod destination;
mod digest;
mod example;
mod files;
mod format;
mod frames;
mod hash;
mod huggingface;
mod images;
mod input;
mod ipc;
mod job;
mod journal;
mod json;
mod jsonl;
mod labels;
mod listing;
mod mds;
mod members;
mod numpy;
mod objects;
mod options;
mod parquet;
mod petastorm;
mod publish;
mod raw;
mod records;
mod remote;
mod resize;
mod rolling;
mod sample;
mod scalar;
mod scatter;
mod shuffle;
mod sink;
mod source;
mod tar;
mod tasks;
mod tfrecord;
mod timezone;
mod tokens;
mod types;
mod verify;
mod webdataset;

pub use budget::{Budget, Permit, Progress};
pub use conversion::{Begun, Conversion, Report, convert, work};
pub use digest::{ColumnDigest, Digest};
pub use example::{Example, Feature, Kind};
pub use files::Limits;
pub use format::Format;
pub use job::{Plan, plan};
pub use options::ConvertOptions;
pub use sink::{Part, Sink, Writer};
pub use source::{Batches, Shard, Source, open};
pub use tar::{Entry, TarReader};
pub use tfrecord::{RecordReader, write_record};
pub use tokens::Text;
pub use types::Types;
pub use types::{parse_type, type_text};
pub use verify::{ColumnVerdict, Comparison, verify};

#[doc(hidden)]
pub use mds::fuzz_shard as fuzz_mds_shard;
