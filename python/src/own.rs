//! `bowstring._native.OwnStore`: a file system object of Python as a store.
//!
//! Its functions are called on threads of a runtime that may block, one call each, with the GIL for the call alone.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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

use crate::errors::raise;
use crate::raised::Raised;
use crate::wait::SLICE;

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

/// Waits until no call of a file system is running, for `seconds` at most, and returns true if so. No other call begins any more.
#[pyfunction]
pub(crate) fn calls_done(py: Python<'_>, seconds: f64) -> bool {
    let wait = Duration::try_from_secs_f64(seconds).unwrap_or(SLICE);
    py.detach(|| {
        let mut calls = CALLS.lock();
        calls.over = true;
        let ended = CALLS.ended.wait_timeout_while(calls, wait, |calls| calls.running > 0);
        ended.unwrap_or_else(PoisonError::into_inner).0.running == 0
    })
}

/// Calls of all file systems. A thread that comes back from a call after the interpreter is gone is ended in the middle of Rust code,
/// which takes the process down; so the interpreter's end is told of the calls, and they of it.
struct Calls {
    state: Mutex<Running>,
    ended: Condvar,
}

#[derive(Default)]
struct Running {
    running: usize,
    over: bool,
}

static CALLS: Calls = Calls { state: Mutex::new(Running { running: 0, over: false }), ended: Condvar::new() };

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Running> {
        // Two numbers, which agree at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call, while it is running.
struct Call;

impl Call {
    fn begin() -> Option<Self> {
        let mut calls = CALLS.lock();
        if calls.over {
            return None;
        }
        calls.running += 1;
        Some(Self)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.lock().running -= 1;
        CALLS.ended.notify_all();
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
        let ending = || OwnError::Failed("Python is ending".into());
        let _call = Call::begin().ok_or_else(ending)?;
        let asked = Python::try_attach(|py| ask(self.0.bind(py)).map_err(|error| classified(py, error)));
        asked.unwrap_or_else(|| Err(ending()))
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
