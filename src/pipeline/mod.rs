//! The chain from a dataset to batches: `open -> plan -> read -> decode -> batch`, read top to bottom in `feed`.
//!
//! | part | description |
//! |---|---|
//! | [`LoaderOptions`], [`option_table`] | all options, validated once; each option once |
//! | [`BatchSource`] | the one trait of all sources of batches; [`LocalSource`] reads files |
//! | [`Cursor`] | a position, batches put back, and passes |
//! | `PreparedPlan`, [`Batches`] | the same without a position, and without threads of its own: for servers |
//! | [`RowGroups`] | row groups in any requested order |
//! | [`Stored`] | rows as they are stored |
//! | [`HiddenColumns`], [`ColumnKinds`] | columns that clients must not see; what options make of columns |
//! | `engine` | the running part of either: threads, the current feed |
//! | `feed` | steps become batches, in order, within the budget |
//! | `reader` | reads row groups ahead, once for all shares that are delivered together |
//! | `foresight` | tells the cache below the datasets what a plan needs |
//! | `lookahead` | fetches into the cache what an epoch needs later |
//! | `foretold` | checks of values when a dataset is opened |
//! | [`Cause`], [`Trail`] | what time goes to; the way of a batch, which says what a wait for it was for |
//! | `taker`, [`Bottleneck`] | the time of whoever takes batches; what limits it, with advice |
//! | `window` | the row groups that a step takes rows from, by name |
//! | `groups` | row groups on their way from the store to cells |
//! | [`Warmed`] | the data loaded into a cache before a run |
//! | [`Stats`], [`Ledger`] | counters; bad rows |
//! | [`Readings`] | the reads and memory of the ranks of a world, by arithmetic |
//! | [`rank`], [`machine`] | the rank of this process; the resources of its machine |

mod ahead;
mod bottleneck;
mod cause;
mod column_kinds;
mod consumer_time;
mod cursor;
mod engine;
mod feed;
mod foresight;
mod foretold;
mod groups;
mod hidden_columns;
mod job;
mod ledger;
mod local;
mod lookahead;
pub mod machine;
mod memory_need;
mod ngram;
mod option_document;
mod option_kind;
pub mod option_table;
mod options;
mod prepared;
pub mod rank;
mod reader;
mod reader_state;
mod reading;
mod row_groups;
mod same_columns;
mod shared;
mod sharing;
mod sized;
mod source;
mod stats;
mod step;
mod stored;
mod trail;
#[cfg(test)]
mod units;
mod warm;
mod window;

use crate::dataset::{Dataset, OpenOptions, Petastorm};
use crate::error::{Error, Result};

pub use bottleneck::Bottleneck;
#[cfg(feature = "flight")]
pub(crate) use bottleneck::Who;
pub use cause::Cause;
pub(crate) use cause::Spent;
#[cfg(feature = "flight")]
pub(crate) use cause::{CAUSES, per_mille};
pub use column_kinds::ColumnKinds;
pub(crate) use consumer_time::{ConsumerTime, only};
pub(crate) use cursor::Standing;
pub use cursor::{At, Cursor, Pass};
pub use engine::BatchMemory;
#[cfg(feature = "flight")]
pub(crate) use feed::Probe;
pub use foretold::WideInteger;
pub use hidden_columns::HiddenColumns;
pub use job::Workers;
pub use ledger::{Entry, Ledger};
pub use local::LocalSource;
pub use memory_need::MemoryNeed;
#[cfg(feature = "flight")]
pub(crate) use option_document::gathered;
#[cfg(any(feature = "cli", feature = "flight"))]
pub(crate) use option_document::paths_at_home;
pub use option_kind::{Kind, bytes};
pub use options::LoaderOptions;
#[cfg(feature = "flight")]
pub(crate) use prepared::PreparedPlan;
pub use prepared::{Batches, Run};
pub use reading::{Reading, Readings};
pub use row_groups::{Piece, RowGroups};
#[cfg(feature = "flight")]
pub(crate) use shared::SharedReader;
pub use source::{BatchSource, PlanInfo};
#[cfg(feature = "flight")]
pub(crate) use stats::decodes;
pub use stats::{Memory, Stage, Stats, TimeSpent};
pub use stored::Stored;
pub use trail::Trail;
pub use warm::Warmed;

/// Petastorm's metadata of the dataset that `options` name, without opening it; `None` if it is not a dataset of
/// Petastorm. Must not be called from within an async runtime.
///
/// # Errors
/// As [`Petastorm::read`].
pub fn petastorm(options: &LoaderOptions) -> Result<Option<Petastorm>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let found = runtime.block_on(Petastorm::read(&options.urls, &options.open_options()?));
    // Dropping a runtime waits for reads in system calls, which may hang.
    runtime.shutdown_background();
    found
}

/// The content of the footers of the dataset that `options` name, in the form of [`Dataset::index`]; regardless of what
/// they select. Written to `output`, or beside the dataset, with [`Dataset::write_index`] if it is to be `written`; the
/// address is then returned. Must not be called from within an async runtime.
///
/// # Errors
/// As [`Dataset::open`], [`Dataset::index`] and [`Dataset::write_index`].
pub fn index(options: &LoaderOptions, written: bool, output: Option<&str>) -> Result<(Vec<u8>, Option<String>)> {
    if !options.weights.is_empty() {
        return Err(Error::config("weights", "an index is of one dataset; index the members of a mixture one by one"));
    }
    let open = OpenOptions { filter: None, selector: None, ngram: None, ..options.open_options()? };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let made = runtime.block_on(async {
        let dataset = Dataset::open(&options.urls, open.clone()).await?;
        let address = if written { Some(dataset.write_index(output, &open).await?) } else { None };
        Ok((if written { Vec::new() } else { dataset.index()? }, address))
    });
    // Dropping a runtime waits for reads in system calls, which may hang.
    runtime.shutdown_background();
    made
}

/// An estimate of the memory of one batch of `rows` rows: exact for fixed shapes, twice the mean for the rest.
fn batch_bytes(sources: &[job::Source], rows: usize) -> usize {
    let batch = sources.iter().map(|source| source.maker.batch_bytes(rows, source.mean_row_bytes())).max();
    crate::memory::buffer_bytes(batch.unwrap_or(0))
}

/// Batches in memory at once: one being taken, `prefetch` finished, one being made.
fn batches_at_once(prefetch: usize) -> usize {
    prefetch.saturating_add(2)
}
