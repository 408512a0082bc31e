//! Writes to a server by its own process: without a connection, and without copying the data.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;

use crate::error::Result;
use crate::flight::put::{Committed, Mode, Staged, Staging, Token, WriteId};
use crate::flight::server::catalog::catalogue::Current;

/// Handle to a server's [`Staging`] for its own process, with the same semantics as writes of clients. Clones share it.
#[derive(Debug, Clone)]
pub struct Writes {
    staging: Staging,
    runtime: Handle,
    catalogue: Current,
}

impl Writes {
    pub(crate) fn new(staging: Staging, runtime: Handle, catalogue: Current) -> Self {
        Self { staging, runtime, catalogue }
    }

    /// As [`Staging::stage`], and waits for it.
    ///
    /// # Errors
    /// Those of [`Staging::stage`]; [`Error::Config`](crate::Error::Config) for a name of the server's catalogue;
    /// [`Error::Closed`](crate::Error::Closed) once the server has ended.
    ///
    /// # Panics
    /// In a task of an asynchronous runtime, which must not block.
    pub fn stage(
        &self,
        write: &WriteId,
        task: u32,
        schema: SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<Staged> {
        self.catalogue.get().check_free(write.dataset())?;
        self.runtime.block_on(self.staging.stage(write, task, 0, schema, futures::stream::iter(batches)))
    }

    /// As [`Staging::commit`], and waits for it.
    ///
    /// # Errors
    /// Those of [`Staging::commit`]; [`Error::Config`](crate::Error::Config) for a name of the server's catalogue;
    /// [`Error::Closed`](crate::Error::Closed) once the server has ended.
    ///
    /// # Panics
    /// As [`stage`](Self::stage).
    pub fn commit(&self, write: &WriteId, mode: Mode, tokens: &[Token]) -> Result<Committed> {
        self.catalogue.get().check_free(write.dataset())?;
        self.runtime.block_on(self.staging.commit(write, mode, tokens))
    }

    /// As [`Staging::abort`], and waits for it.
    ///
    /// # Errors
    /// Those of [`Staging::abort`].
    ///
    /// # Panics
    /// As [`stage`](Self::stage).
    pub fn abort(&self, write: &WriteId) -> Result<()> {
        self.runtime.block_on(self.staging.abort(write))
    }
}
