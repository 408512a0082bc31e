//! The chain from a dataset to batches: `open -> plan -> read -> decode -> batch`, read top to bottom in `feed`.
//!
//! | part | what it is |
//! |---|---|
//! | [`LoaderOptions`] | everything that can be said, validated once |
//! | [`Loader`] | a position and the means to go on from it |
//! | [`Prepared`], [`Batches`] | the same without a position, and without threads of its own: for servers |
//! | [`RowGroups`] | row groups in any order that is asked for |
//! | [`Stored`] | rows as they are stored |
//! | [`Veil`] | what is kept back from whoever asks |
//! | `engine` | what runs for either of them: threads, the feed of the moment |
//! | `feed` | steps become batches, in order, within the budget |
//! | `groups` | row groups on their way from the store to cells |
//! | [`Stats`], [`Ledger`] | what happened |
//! | [`Readings`] | what the ranks of a world read and hold, by arithmetic |
//! | [`rank`], [`machine`] | who this process is, and what it has |

mod engine;
mod feed;
mod groups;
mod job;
mod ledger;
mod loader;
pub mod machine;
mod ngram;
mod options;
mod prepared;
pub mod rank;
mod reading;
mod returned;
mod row_groups;
mod sized;
mod stats;
mod step;
mod stored;
mod veil;

use crate::dataset::Petastorm;
use crate::error::{Error, Result};

pub use engine::BatchMemory;
pub use job::Workers;
pub use ledger::{Entry, LEDGER_ENTRIES, Ledger};
pub use loader::{Epoch, Loader, Next};
pub use options::{Filter, LoaderOptions};
pub use prepared::{Batches, MemoryNeed, Prepared, Run};
pub use reading::{Reading, Readings};
pub(crate) use returned::{Again, At, Returned};
pub use row_groups::{NextPiece, Piece, RowGroups};
pub use stats::{Memory, Stage, Stats};
pub use stored::Stored;
pub use veil::Veil;

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

/// An estimate of the memory of one batch of `rows` rows: exact for fixed shapes, twice the mean for the rest.
fn batch_bytes(sources: &[job::Source], rows: usize) -> usize {
    let batch = sources.iter().map(|source| source.maker.batch_bytes(rows, source.mean_row_bytes())).max();
    crate::memory::buffer_bytes(batch.unwrap_or(0))
}

/// Batches in memory at once: one being taken, `prefetch` finished, one being made.
fn batches_at_once(prefetch: usize) -> usize {
    prefetch.saturating_add(2)
}
