//! Where data goes: one writer per task, each filling files in a directory of its own.

use std::fmt::Debug;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, SchemaRef};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::Format;
use super::options::ConvertOptions;
use super::types::type_text;
use super::{csv, huggingface, images, ipc, jsonl, mds, numpy, parquet, tfrecord, webdataset};
use crate::error::{Error, Result};

/// A file that a writer finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name below the writer's directory.
    pub name: String,
    /// Rows in it.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
    /// What the format needs for its index.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra: Value,
}

/// A format to write. Making one refuses schemas that the format cannot hold, before anything is written.
pub trait Sink: Send + Sync + Debug {
    /// The format.
    fn format(&self) -> Format;

    /// A writer of files in `directory`, which exists and is empty.
    ///
    /// # Errors
    /// `Store` if a file cannot be made.
    fn writer(&self, directory: &Path) -> Result<Box<dyn Writer>>;

    /// The name in the dataset of file number `number` of `total`.
    fn name(&self, part: &Part, number: usize, total: usize) -> String;

    /// Whether its files are few enough to be brought to the disk one by one.
    fn flushes(&self) -> bool {
        true
    }

    /// Writes what stands beside the files, all of which are in `directory` under their names.
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
    /// `Unsupported` for values that the format cannot hold, by column and row; `Store` if the disk fails.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Ends the files. They need not be on the disk.
    ///
    /// # Errors
    /// `Store` if the disk fails.
    fn finish(self: Box<Self>) -> Result<Vec<Part>>;
}

/// The sink of `format` for columns `schema`.
///
/// # Errors
/// `Unsupported` naming the first column that the format cannot hold, and its type; `Config` for options it does not have.
///
/// `sample` is the first rows of the source, with its types.
pub(super) fn make_with(
    format: Format,
    schema: &SchemaRef,
    options: &ConvertOptions,
    sample: &RecordBatch,
) -> Result<Box<dyn Sink>> {
    check_names(format, schema)?;
    match format {
        Format::Parquet => parquet::sink(schema, options, sample, false),
        Format::Petastorm => parquet::sink(schema, options, sample, true),
        Format::Arrow => ipc::sink(schema, options),
        Format::Csv => csv::sink(schema, options),
        Format::Jsonl => jsonl::sink(schema, options),
        Format::Tfrecord => tfrecord::sink(schema, options),
        Format::Webdataset => webdataset::sink(schema, options),
        Format::Mds => mds::sink(schema, options),
        Format::Images => images::sink(schema, options),
        Format::Numpy => numpy::sink(schema, options),
        Format::Datasets => huggingface::sink(schema, options),
    }
}

/// What a format says of a type it cannot hold.
pub(super) fn refused(format: Format, field: &Field, hint: &str) -> Error {
    Error::unsupported(
        format!("column {:?} of type {} in {format}", field.name(), type_text(field.data_type())),
        hint.to_owned(),
    )
}

/// What a format says of a value it cannot hold; `row` counts within the task.
pub(super) fn refused_value(format: Format, column: &str, row: u64, what: &str, hint: &str) -> Error {
    Error::unsupported(format!("{what} in column {column:?} (row {row} of its task) in {format}"), hint.to_owned())
}

/// Refuses two columns of one name, and no columns.
fn check_names(format: Format, schema: &SchemaRef) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    for field in schema.fields() {
        if !seen.insert(field.name()) {
            let what = format!("two columns named {:?} in {format}", field.name());
            return Err(Error::unsupported(what, "choose with --columns"));
        }
    }
    if schema.fields().is_empty() {
        return Err(Error::config("columns", "none are left to write"));
    }
    Ok(())
}

/// Whether a type holds numbers or booleans.
pub(super) fn is_number(data_type: &DataType) -> bool {
    super::types::dtype(data_type).is_some()
}

/// The type of the items, for all kinds of lists.
pub(super) fn item(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => Some(item.data_type()),
        _ => None,
    }
}

/// Whether a type is text.
pub(super) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Whether a type is bytes.
pub(super) fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}
