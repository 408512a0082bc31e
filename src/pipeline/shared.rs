//! Row groups of a plan, read once for all of its ranks that are served by one process.

use std::sync::Arc;

use super::reader::Reader;
use crate::codec::BadRows;
use crate::plan::Plan;

/// See the module. It reads for as long as it or any stream of its batches lives.
#[derive(Debug)]
pub(crate) struct SharedReader {
    pub(super) reader: Arc<Reader>,
    pub(super) plan: Arc<Plan>,
    pub(super) bad_rows: BadRows,
}

impl Drop for SharedReader {
    fn drop(&mut self) {
        self.reader.job().stop();
    }
}
