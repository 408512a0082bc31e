//! The destination of data: one writer per task, each filling files in a directory of its own.

use std::fmt::Debug;
use std::path::Path;

use arrow::array::RecordBatch;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::convert::format::Format;
use crate::error::Result;

/// A file that a writer finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Name below the writer's directory.
    pub name: String,
    /// Rows in it.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Data for the format's index.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra: Value,
}

/// A format to write. Constructing one refuses schemas that the format cannot hold, before anything is written.
pub trait Sink: Send + Sync + Debug {
    /// Returns the format.
    fn format(&self) -> Format;

    /// Makes a writer of files in `directory`, which exists and is empty. `unit` is the number of the task, or of the task and the file
    /// that its rows are dealt to: it is unique among the writers of the conversion, and makes the names of rows unique.
    ///
    /// # Errors
    /// `Store` if a file cannot be created.
    fn writer(&self, directory: &Path, unit: &str) -> Result<Box<dyn Writer>>;

    /// Returns the name in the dataset of file number `number` of `total`.
    fn name(&self, part: &Part, number: usize, total: usize) -> String;

    /// Returns true if its files are few enough to be flushed one by one.
    fn flushes(&self) -> bool {
        true
    }

    /// Writes additional files, when all data files are in `directory` under their final names.
    ///
    /// # Errors
    /// `Store` if that fails.
    fn finish(&self, directory: &Path, parts: &[Part]) -> Result<()> {
        let _ = (directory, parts);
        Ok(())
    }
}

/// Writes the rows of one task.
pub trait Writer: Send {
    /// Adds rows.
    ///
    /// # Errors
    /// `Unsupported` for values that the format cannot hold, by column and row of the batch; `Store` if the disk fails.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Ends the files, without flushing them.
    ///
    /// # Errors
    /// `Store` if the disk fails.
    fn finish(self: Box<Self>) -> Result<Vec<Part>>;
}
