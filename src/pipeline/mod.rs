//! The chain from a dataset to batches: `open -> plan -> read -> decode -> batch`, read top to bottom in `feed`.
//!
//! | part | what it is |
//! |---|---|
//! | [`LoaderOptions`], [`option_table`] | all options, validated once; each option once |
//! | [`BatchSource`] | the one trait of all sources of batches; [`LocalSource`] reads files |
//! | [`Cursor`] | a position, what came back, and passes |
//! | `PreparedPlan`, [`Batches`] | the same without a position, and without threads of its own: for servers |
//! | [`RowGroups`] | row groups in any order that is asked for |
//! | [`Stored`] | rows as they are stored |
//! | [`HiddenColumns`] | columns that clients must not see |
//! | `engine` | the running part of either: threads, the current feed |
//! | `feed` | steps become batches, in order, within the budget |
//! | `reader` | reads row groups ahead, once for all shares that are delivered together |
//! | `foresight` | what a plan tells the cache below its datasets |
//! | `foretold` | what is known about values when a dataset is opened |
//! | `window` | what a step takes rows from, by name |
//! | `groups` | row groups on their way from the store to cells |
//! | [`Warmed`] | what was loaded into a cache before a run |
//! | [`Stats`], [`Ledger`] | counters; bad rows |
//! | [`Readings`] | what the ranks of a world read and hold, by arithmetic |
//! | [`rank`], [`machine`] | the rank of this process; the resources of its machine |

mod ahead;
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
pub mod machine;
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
mod shared;
mod sharing;
mod sized;
mod source;
mod stats;
mod step;
mod stored;
#[cfg(test)]
mod units;
mod warm;
mod window;

use crate::dataset::{Dataset, OpenOptions, Petastorm};
use crate::error::{Error, Result};

pub(crate) use cursor::Standing;
pub use cursor::{At, Cursor, Pass};
pub use engine::BatchMemory;
pub use foretold::WideInteger;
pub use hidden_columns::HiddenColumns;
pub use job::Workers;
pub use ledger::{Entry, Ledger};
pub use local::LocalSource;
#[cfg(feature = "flight")]
pub(crate) use option_document::gathered;
pub use option_kind::{Kind, bytes};
pub use options::{Filter, LoaderOptions};
#[cfg(feature = "flight")]
pub(crate) use prepared::PreparedPlan;
pub use prepared::{Batches, MemoryNeed, Run};
pub use reading::{Reading, Readings};
pub use row_groups::{Piece, RowGroups};
#[cfg(feature = "flight")]
pub(crate) use shared::SharedReader;
pub use source::{BatchSource, PlanInfo};
pub use stats::{Memory, Stage, Stats};
pub use stored::Stored;
pub use warm::Warmed;

/// What Petastorm says of the dataset that `options` name, without opening it; none if it is no dataset of Petastorm. Must not be
/// called from within an async runtime.
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

/// What the footers of the dataset that `options` name say, as [`Dataset::index`] has it; whatever they select. Written to `output` or
/// beside the dataset with [`Dataset::write_index`] if it is to be `written`, whose address comes back. Must not be called from within an
/// async runtime.
///
/// # Errors
/// As [`Dataset::open`] and these.
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
