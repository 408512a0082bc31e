//! From Parquet to shuffled, decoded training batches on every rank, in place and with few copies: images are decoded into the batch, plain
//! columns copied into it once, packed and cast ones twice.
//!
//! ```text
//!  Manifest ─► Plan::step(n) ──────┐                                     numbers
//!                                  ▼
//!  store ─► dataset: row group ─► cells ─► gather, decode images ═► Batch ─► DLPack, Arrow
//!  bytes    tokio                 CPU      into one aligned slab     yours to keep
//! ```
//!
//! | floor | modules | content |
//! |---|---|---|
//! | 7 | `cli` | the command line, as a function |
//! | 6 | [`Loader`] | the same batches, local or from a server, on the host or on a GPU |
//! | 5 | [`flight`], [`convert`] | batches to and from other hosts; foreign formats |
//! | 4 | [`pipeline`] | the wiring, the budget, [`BatchSource`] |
//! | 3 | [`plan`], [`dataset`], [`codec`], [`device`] | the order of rows; reading; columns and their decoders; a GPU's memory |
//! | 2 | [`manifest`], `page`, [`tensor`] | files and row groups; numbers from pages; batches |
//! | 1 | [`schema`], [`memory`], [`store`], [`trace`] | types; bytes within a budget; bytes of one version; spans of OpenTelemetry |
//! | 0 | [`error`], `nearest`, `figures`, `hex`, `histogram` | errors with place and remedy; the meaning of a misspelt name; numbers for people; digests; durations for monitoring |
//!
//! A module names only modules on floors below its own; a test checks this.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `cli` | yes | the binary `bowstring`, and the module `cli` that it is made of |
//! | `cloud` | yes | `s3://`, `gs://`, `az://`, `http(s)://`; without it local files |
//! | `flight` | yes | serving ranks over Arrow Flight, and reading from such a server |
//! | `convert` | yes | foreign formats: TFRecord, WebDataset, MDS, CSV, ... |
//! | `otel` | yes | traces of steps, exported over OTLP ([`trace`]) |
//! | `hdfs` | no | `hdfs://` and `viewfs://`, with fail-over and Kerberos |
//! | `fuse` | no | `bowstring mount`: a directory of a store as one of this machine (Linux) |
//! | `cuda` | no | tensors in the memory of NVIDIA GPUs; the driver is found at run time |
//! | `turbo` | no | libjpeg-turbo for JPEG; needs cmake and nasm to build |
//!
//! ```
//! use bowstring::{Loader, LoaderOptions};
//!
//! # fn main() -> bowstring::Result<()> {
//! let mut loader = Loader::open(LoaderOptions::new("fixtures/imagenet40.parquet", 16))?;
//! let mut labels = 0;
//! for batch in &mut loader {
//!     labels += batch?.tensor("label").map_or(0, |label| label.shape()[0]);
//! }
//! assert_eq!(labels, 40, "two steps of 16 rows and one of 8");
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "flight"), allow(dead_code, reason = "some items are used by servers and clients only"))]

#[cfg(feature = "cli")]
pub mod cli;
pub mod codec;
#[cfg(feature = "convert")]
pub mod convert;
pub mod dataset;
pub mod device;
pub mod document;
pub mod error;
mod figures;
#[cfg(feature = "flight")]
pub mod flight;
mod hex;
mod histogram;
mod loader;
pub mod manifest;
pub mod memory;
mod mutex;
mod nearest;
mod page;
mod per_process;
pub mod pipeline;
pub mod plan;
mod recent;
pub mod schema;
pub mod store;
pub mod tensor;
pub mod trace;

pub use dataset::Dataset;
pub use device::AnyBatch;
pub use error::{Error, Place, Result};
pub use loader::{BadRowsFound, Epoch, Loader, Report, TimePart};
/// For the bindings, which must not unwind into foreign frames.
#[doc(hidden)]
pub use page::quiet;
pub use pipeline::{BatchSource, LoaderOptions};
pub use plan::State;
pub use schema::Schema;
pub use tensor::{Batch, Next, Tensor};

/// The README's Rust, as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
