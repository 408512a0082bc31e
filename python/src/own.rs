//! `bowstring._native.OwnStore`: a file system object of Python as a store.
//!
//! Its functions are called on threads of a runtime that may block, one call each, with the GIL for the call alone.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bowstring::Error;
use bowstring::store::{OwnEntry, OwnError, OwnFiles, OwnStore, OwnVersion};
use bytes::Bytes;
use pyo3::exceptions::{
    PyBlockingIOError, PyConnectionError, PyFileNotFoundError, PyInterruptedError, PyIsADirectoryError,
    PyNotADirectoryError, PyPermissionError, PyTimeoutError,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::calls::{ENDING, call};
use crate::errors::raise;
use crate::raised::Raised;

/// Size, nanoseconds of the last modification, tag.
type Version = (u64, Option<i64>, Option<String>);

/// A store behind an object of `bowstring.filesystem`.
#[pyclass(frozen, name = "OwnStore", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyOwnStore(OwnStore);

#[pymethods]
impl PyOwnStore {
    /// The store of `files`, called `name` in messages. A call that takes longer than `timeout` seconds is an error.
    #[new]
    fn new(py: Python<'_>, files: Py<PyAny>, name: &str, timeout: f64) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|error| raise(py, &Error::config("timeout", error.to_string())))?;
        Ok(Self(OwnStore::new(name, Arc::new(PyFiles(files)), timeout)))
    }

    /// Returns the address of the file or directory at `path`, valid in this process for as long as this store is kept.
    fn url(&self, path: &str) -> String {
        self.0.url(path)
    }
}

struct PyFiles(Py<PyAny>);

impl fmt::Debug for PyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The object's own text would take the GIL.
        f.debug_struct("PyFiles").finish_non_exhaustive()
    }
}

impl PyFiles {
    fn call<T>(&self, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, OwnError> {
        let asked = call(|py| ask(self.0.bind(py)).map_err(|error| classified(py, error)));
        asked.unwrap_or_else(|| Err(OwnError::Failed(ENDING.into())))
    }
}

fn classified(py: Python<'_>, error: PyErr) -> OwnError {
    let is_missing = error.is_instance_of::<PyFileNotFoundError>(py)
        || error.is_instance_of::<PyIsADirectoryError>(py)
        || error.is_instance_of::<PyNotADirectoryError>(py);
    let is_denied = error.is_instance_of::<PyPermissionError>(py);
    let may_pass = error.is_instance_of::<PyConnectionError>(py)
        || error.is_instance_of::<PyTimeoutError>(py)
        || error.is_instance_of::<PyInterruptedError>(py)
        || error.is_instance_of::<PyBlockingIOError>(py);
    let source = Box::new(Raised::new(error));
    match (is_missing, is_denied, may_pass) {
        (true, ..) => OwnError::NotFound(source),
        (_, true, _) => OwnError::Denied(source),
        (.., true) => OwnError::Unavailable(source),
        _ => OwnError::Failed(source),
    }
}

fn version((size, modified, tag): Version) -> OwnVersion {
    OwnVersion { size, modified, tag }
}

impl OwnFiles for PyFiles {
    fn list(&self, directory: &str) -> Result<Vec<OwnEntry>, OwnError> {
        let listed: Vec<(String, Option<Version>)> =
            self.call(|files| files.call_method1("list", (directory,))?.extract())?;
        Ok(listed.into_iter().map(|(path, file)| OwnEntry { path, file: file.map(version) }).collect())
    }

    fn look(&self, path: &str) -> Result<OwnVersion, OwnError> {
        self.call(|files| files.call_method1("look", (path,))?.extract()).map(version)
    }

    fn read(&self, path: &str, range: Range<u64>, version: Option<&str>) -> Result<Bytes, OwnError> {
        // The bytes stay Python's: they are looked at where they are.
        let read = |files: &Bound<'_, PyAny>| -> PyResult<PyBackedBytes> {
            Ok(files.call_method1("read", (path, range.start, range.end, version))?.extract()?)
        };
        self.call(read).map(Bytes::from_owner)
    }
}
