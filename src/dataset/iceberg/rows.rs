//! The rows of files that say what is deleted, and of those that they are about, row group by row group.

use std::sync::Arc;

use arrow::array::ArrayRef;
use tokio::sync::SemaphorePermit;

use super::snapshot::blocking;
use crate::dataset::{Dataset, Index, OpenOptions, Projection, Room, within};
use crate::error::Result;

/// How files beside the data are opened.
pub(super) fn beside(options: &OpenOptions) -> OpenOptions {
    OpenOptions {
        storage_options: options.storage_options.clone(),
        #[cfg(feature = "cloud")]
        credential_provider: options.credential_provider.clone(),
        index: Index::None,
        decode: false,
        limits: options.limits.clone(),
        concurrency: options.concurrency,
        memory: options.memory,
        memory_limit: options.memory_limit,
        timeout: options.timeout,
        ..OpenOptions::default()
    }
}

/// A dataset of which some columns are read, row group by row group.
pub(super) struct Columns<'a> {
    pub(super) dataset: Dataset,
    projection: Arc<Projection>,
    room: &'a Room,
    options: &'a OpenOptions,
}

impl<'a> Columns<'a> {
    /// The columns `names` of `dataset`.
    pub(super) fn new(dataset: Dataset, names: &[String], room: &'a Room, options: &'a OpenOptions) -> Result<Self> {
        let projection = Arc::new(dataset.project(names)?);
        Ok(Self { dataset, projection, room, options })
    }

    pub(super) fn groups(&self) -> usize {
        self.dataset.manifest().groups.len()
    }

    /// The columns of row group `group`, and the room that they take, which is held as long as that.
    pub(super) async fn read(&self, group: usize) -> Result<(Vec<ArrayRef>, SemaphorePermit<'a>)> {
        let permit = self.room.take(&self.dataset, &self.projection, group).await?;
        let culprit = format!("the deletes in {}", self.dataset.place(group));
        let fetched = within(self.options.timeout, culprit, self.dataset.fetch(group, &self.projection)).await?;
        let (dataset, projection) = (self.dataset.clone(), Arc::clone(&self.projection));
        let columns = blocking(move || {
            (0..projection.roots().len()).map(|root| dataset.decode(&fetched, &projection, root)).collect()
        });
        Ok((columns.await?, permit))
    }
}
