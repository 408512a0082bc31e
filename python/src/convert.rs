//! `bowstring._native.convert`, `verify` and `Conversion`: conversion between formats, outside of the GIL.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use bowstring::Error;
use bowstring::convert::{Begun, Conversion, ConvertOptions, Progress};
use bowstring::error::Result;
use pyo3::prelude::*;

use crate::calls::entered;
use crate::errors::raise;
use crate::fork::Owned;
use crate::wait::{Working, apart};

fn options(text: &str) -> Result<ConvertOptions> {
    bowstring::document::read(text)
}

/// What is told how far some work is, some times a second: bytes read, bytes to read (0 while unknown), rows written.
type Told = Option<Py<PyAny>>;

/// Runs `work` in a thread of its own, so that Ctrl-C works: the first one asks it to stop and waits for it, the second leaves it, for a
/// store may hang.
fn run<T: Send + 'static>(py: Python<'_>, work: impl FnOnce(&Progress) -> Result<T> + Send + 'static) -> PyResult<T> {
    run_told(py, None, work)
}

/// As [`run`], and tells `told` how far it is.
fn run_told<T: Send + 'static>(
    py: Python<'_>,
    told: Told,
    work: impl FnOnce(&Progress) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let mut working = Working::start(py, move || work(&watched))?;
    let outcome = working.wait_telling(py, |py| tell(py, &told, &progress)).map_err(|first| {
        progress.stop();
        // Batches in flight are completed, and the hidden directory is left in order.
        match working.wait(py) {
            Ok(_) => first,
            Err(second) => {
                second.set_context(py, Some(first));
                second
            }
        }
    })?;
    outcome.map_err(|error| raise(py, &error))
}

fn tell(py: Python<'_>, told: &Told, progress: &Progress) -> PyResult<()> {
    let Some(told) = told else { return Ok(()) };
    let _entry = entered(py);
    told.call1(py, (progress.bytes(), progress.total(), progress.rows())).map(drop)
}

/// Converts `src` to `dst` with options as JSON. Returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (src, dst, options_json, told=None))]
pub(crate) fn convert(py: Python<'_>, src: String, dst: PathBuf, options_json: &str, told: Told) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    run_told(py, told, move |progress| {
        let report = bowstring::convert::convert(&src, &dst, &options, progress)?;
        Ok(serde_json::json!(report).to_string())
    })
}

/// Returns the plan of `convert` as JSON.
#[pyfunction]
pub(crate) fn convert_plan(py: Python<'_>, src: String, dst: PathBuf, options_json: &str) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    apart(py, move || Ok(serde_json::json!(bowstring::convert::plan(&src, &dst, &options)?).to_string()))
}

/// Compares two datasets. Returns the findings as JSON.
#[pyfunction]
#[pyo3(signature = (a, b, options_json, told=None))]
pub(crate) fn verify(py: Python<'_>, a: String, b: String, options_json: &str, told: Told) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let compare = move || bowstring::convert::verify(&a, &b, &options, &watched);
    let mut working = Working::start(py, move || Ok(serde_json::json!(compare()?).to_string()))?;
    let found = working.wait_telling(py, |py| tell(py, &told, &progress));
    // After Ctrl-C nobody waits for the thread: it writes nothing.
    found.inspect_err(|_| progress.stop())?.map_err(|error| raise(py, &error))
}

/// A conversion whose tasks run in other processes. Without `finish`, finished tasks stay for `resume`.
#[pyclass(frozen, name = "Conversion", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyConversion {
    kept: Owned<Arc<Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// `None` once it is over, and while a thread works on it, which holds the lock.
    begun: Mutex<Option<Begun>>,
    closed: AtomicBool,
}

impl Kept {
    /// Takes the conversion out, unless a thread works on it.
    fn take(&self) -> Option<Begun> {
        match self.begun.try_lock() {
            Ok(mut begun) => begun.take(),
            Err(TryLockError::Poisoned(begun)) => begun.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl PyConversion {
    /// Calls `work`, which returns the conversion if it is to be kept, outside of the GIL.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Begun, &Progress) -> (Option<Begun>, Result<T>) + Send + 'static,
    ) -> PyResult<T> {
        let kept = Arc::clone(self.kept.checked().map_err(|error| raise(py, &error))?);
        let over = || Error::Closed { why: "the conversion is over".to_owned() };
        run(py, move |progress| {
            let mut begun = kept.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let (left, outcome) = work(begun.take().ok_or_else(over)?, progress);
            *begun = left;
            drop(begun);
            if kept.closed.load(Ordering::SeqCst) {
                // Meanwhile, by a caller that did not wait for this thread.
                drop(kept.take());
            }
            outcome
        })
    }

    fn open<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Conversion) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        self.with(py, |begun, _| match begun {
            Begun::Open(mut conversion) => {
                let outcome = work(&mut conversion);
                (Some(Begun::Open(conversion)), outcome)
            }
            Begun::Unchanged(report) => {
                let why = "the destination is there already; finish() says what it is".to_owned();
                (Some(Begun::Unchanged(report)), Err(Error::Closed { why }))
            }
        })
    }
}

#[pymethods]
impl PyConversion {
    /// Begins to convert `src` to `dst` with options as JSON.
    #[new]
    fn new(py: Python<'_>, src: String, dst: PathBuf, options_json: &str) -> PyResult<Self> {
        let options = options(options_json).map_err(|error| raise(py, &error))?;
        let begun = run(py, move |_| Conversion::begin(&src, &dst, &options))?;
        let kept = Kept { begun: Mutex::new(Some(begun)), closed: AtomicBool::new(false) };
        Ok(Self { kept: Owned::new(Arc::new(kept)) })
    }

    /// Returns the remaining tasks; none if the destination already exists.
    fn tasks(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.with(py, |begun, _| {
            let tasks = match &begun {
                Begun::Open(conversion) => conversion.tasks(),
                Begun::Unchanged(_) => Ok(Vec::new()),
            };
            (Some(begun), tasks)
        })
    }

    /// Returns the format being written.
    fn to(&self, py: Python<'_>) -> PyResult<String> {
        self.open(py, |conversion| Ok(conversion.to().name().to_owned()))
    }

    /// Returns the identity of the source and the options.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        self.open(py, |conversion| Ok(conversion.fingerprint().to_owned()))
    }

    /// Makes a new directory for the directories of tasks.
    fn attempts(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.open(py, |conversion| conversion.attempts())
    }

    /// Takes over what `convert_task` did in `directory`.
    fn adopt(&self, py: Python<'_>, worked: String, directory: PathBuf) -> PyResult<()> {
        self.open(py, move |conversion| conversion.adopt(&worked, &directory))
    }

    /// Publishes the dataset. Returns the report as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |begun, progress| {
            let report = match begun {
                Begun::Open(conversion) => conversion.finish(progress),
                Begun::Unchanged(report) => Ok(report),
            };
            (None, report.map(|report| serde_json::json!(report).to_string()))
        })
    }

    /// Ends it; finished tasks stay for `resume`. A thread that still works on it, which Ctrl-C has left, ends it when that is done. A forked
    /// child has nothing to end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(kept) = self.kept.checked() else { return Ok(()) };
        kept.closed.store(true, Ordering::SeqCst);
        let taken = kept.take();
        run(py, move |_| {
            drop(taken);
            Ok(())
        })
    }
}

/// Runs one task of a conversion in `directory`. Returns the argument of `Conversion.adopt`.
#[pyfunction]
pub(crate) fn convert_task(
    py: Python<'_>,
    src: String,
    directory: PathBuf,
    options_json: &str,
    fingerprint: String,
    task: usize,
) -> PyResult<String> {
    let options = options(options_json).map_err(|error| raise(py, &error))?;
    run(py, move |progress| bowstring::convert::work(&src, &directory, &options, &fingerprint, task, progress))
}
