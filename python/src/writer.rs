//! `bowstring._native.DatasetWriter`: Arrow data from any library to a native dataset.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use arrow::datatypes::{Field, Schema};
use bowstring::Error;
use bowstring::dataset::{DatasetWriter, WriterOptions};
use bowstring::document::words;
use bowstring::error::Result;
use bowstring::schema::Stored;
use pyo3::prelude::*;

use crate::arrow::{batches, imported_schema};
use crate::calls::detached;
use crate::errors::raise;
use crate::fork::Owned;

/// A dataset being written; nothing of it is visible before `finish`.
#[pyclass(frozen, name = "DatasetWriter", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyDatasetWriter(Owned<Shared>);

/// A writer for all Python threads. A forked child has the same files: dropped there, it would remove those of its parent.
#[derive(Debug)]
struct Shared {
    writer: Mutex<Option<DatasetWriter>>,
    /// The thread that works with it. It may come back, because rows are taken from code of Python's.
    at_work: Mutex<Option<ThreadId>>,
}

/// Notes that no thread works any more, also after a panic.
struct Over<'a>(&'a Mutex<Option<ThreadId>>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn closed() -> Error {
    Error::Closed { why: "the writer was finished or aborted".to_owned() }
}

impl PyDatasetWriter {
    /// Works with the writer, after other threads.
    fn with<T>(&self, work: impl FnOnce(&mut Option<DatasetWriter>) -> Result<T>) -> Result<T> {
        let shared = self.0.checked()?;
        let own = std::thread::current().id();
        let at_work = || shared.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        if *at_work() == Some(own) {
            let why = "the writer is taking the rows from which this call comes; let them end with an error, and call it afterwards";
            return Err(Error::Closed { why: why.to_owned() });
        }
        let mut writer = shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _over = Over(&shared.at_work);
        *at_work() = Some(own);
        work(&mut writer)
    }
}

/// Adds to `schema` the types of cells in `stored`, a JSON object by name.
fn described(schema: &Schema, stored: &str) -> Result<Schema> {
    let wrong = |problem: String| Error::config("stored", problem);
    let stored: std::collections::BTreeMap<String, Stored> =
        serde_json::from_str(stored).map_err(|error| wrong(words(&error.to_string())))?;
    if let Some(name) = stored.keys().find(|name| schema.field_with_name(name).is_err()) {
        return Err(wrong(format!("there is no column {name:?}")));
    }
    let field = |field: &Arc<Field>| match stored.get(field.name()) {
        Some(stored) => {
            let mut metadata = field.metadata().clone();
            let (key, value) = stored.metadata();
            metadata.insert(key, value);
            Arc::new(Field::clone(field).with_metadata(metadata))
        }
        None => Arc::clone(field),
    };
    let fields: Vec<_> = schema.fields().iter().map(field).collect();
    Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

#[pymethods]
impl PyDatasetWriter {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, schema: &Bound<'_, PyAny>, stored: &str, options: &str) -> PyResult<Self> {
        let schema = imported_schema(py, schema)?;
        let made = detached(py, || {
            let options: WriterOptions = bowstring::document::read(options)?;
            DatasetWriter::create(&path, Arc::new(described(&schema, stored)?), options)
        });
        let shared = |writer| Shared { writer: Mutex::new(Some(writer)), at_work: Mutex::new(None) };
        made.map(|writer| Self(Owned::new(shared(writer)))).map_err(|error| raise(py, &error))
    }

    /// Adds the rows of any object with `__arrow_c_stream__` or `__arrow_c_array__`. After an error in the midst of them the writer is of
    /// no more use.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let batches = batches(py, data)?;
        detached(py, || self.with(|writer| writer.as_mut().ok_or_else(closed)?.write_all(batches)))
            .map_err(|error| raise(py, &error))
    }

    /// Publishes the dataset. Returns files, rows, row groups and bytes, as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let written = detached(py, || self.with(|writer| writer.take().ok_or_else(closed)?.finish()));
        let written = written.map_err(|error| raise(py, &error))?;
        Ok(serde_json::json!(written).to_string())
    }

    /// Removes everything written; a forked child has nothing to remove.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.checked().is_err() {
            return Ok(());
        }
        let aborted = detached(py, || self.with(|writer| Ok(writer.take())).map(drop));
        aborted.map_err(|error| raise(py, &error))
    }
}
