//! Row groups of a plan, read once for all of its ranks that one process serves.

use std::sync::Arc;

use super::feed::Task;
use super::reader::Reader;
use crate::codec::BadRows;
use crate::plan::Plan;

/// See the module documentation. Reads for as long as it or any stream of its batches lives.
#[derive(Debug)]
pub(crate) struct SharedReader {
    pub(super) reader: Arc<Reader>,
    pub(super) plan: Arc<Plan>,
    pub(super) bad_rows: BadRows,
    /// Fetches ahead into the cache, if there is one.
    pub(super) _lookahead: Option<Task<()>>,
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        self.reader.job().stop();
    }
}
