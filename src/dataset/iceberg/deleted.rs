//! Every row that a table deleted, in any of the three ways.

use super::positions::add;
use super::table::Table;
use crate::dataset::table::Deleted;
use crate::dataset::{OpenOptions, Room};
use crate::error::Result;

impl Table {
    /// Reads which rows are deleted.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) for deletes that are damaged; [`Error::NotFound`](crate::Error::NotFound) for a file that
    /// is gone; [`Error::Limit`](crate::Error::Limit), [`Error::Timeout`](crate::Error::Timeout), [`Error::Store`](crate::Error::Store).
    pub(in crate::dataset) async fn deleted(&self, options: &OpenOptions) -> Result<Deleted> {
        let room = Room::new(options);
        let mut rows = self.by_vectors(options).await?;
        add(&mut rows, self.by_positions(&room, options).await?);
        add(&mut rows, self.by_values(&room, options).await?);
        Ok(Deleted::new(rows))
    }
}
