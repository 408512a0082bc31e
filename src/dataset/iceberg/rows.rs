//! The rows of files that say what is deleted, and of those that they are about, row group by row group.

use std::sync::Arc;

use arrow::array::ArrayRef;

use super::snapshot::blocking;
use crate::dataset::{Dataset, OpenOptions, Projection, Room, within};
use crate::error::Result;

/// A dataset with some columns to read, row group by row group.
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

    /// Result of `work` on the columns of row group `group`; it may take its time. The room that they take is held as long as that.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        group: usize,
        work: impl FnOnce(Vec<ArrayRef>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _permit = self.room.take(&self.dataset, &self.projection, group).await?;
        let culprit = format!("the deletes in {}", self.dataset.place(group));
        let fetched = within(self.options.timeout, culprit, self.dataset.fetch(group, &self.projection)).await?;
        let (dataset, projection) = (self.dataset.clone(), Arc::clone(&self.projection));
        blocking(move || {
            let columns = (0..projection.roots().len()).map(|root| dataset.decode(&fetched, &projection, root));
            work(columns.collect::<Result<_>>()?)
        })
        .await
    }
}
