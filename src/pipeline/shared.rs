//! Row groups of a plan, read once for all of its ranks that one process serves.

use std::sync::{Arc, OnceLock};

use super::feed::Task;
use super::foresight::Foresight;
use super::reader::Reader;
use crate::codec::BadRows;
use crate::plan::Plan;

/// See the module documentation. Reads for as long as it or any stream of its batches lives.
#[derive(Debug)]
pub(crate) struct SharedReader {
    pub(super) reader: Arc<Reader>,
    pub(super) plan: Arc<Plan>,
    pub(super) bad_rows: BadRows,
    /// The announcer of plans to caches, if there are any.
    pub(super) foresight: Option<Arc<Foresight>>,
    /// Fetches ahead into them, from the step of the first member on.
    pub(super) lookahead: OnceLock<Task<()>>,
    pub(super) _following: Option<Task<()>>,
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        self.reader.job().stop();
    }
}
