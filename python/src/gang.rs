//! `bowstring._native.Gang`: a rank's membership. All waiting is done without the GIL, and Ctrl-C ends a wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowstring::Error;
use bowstring::error::Result;
use bowstring::flight::client::{Gang, Pending};
use bowstring::flight::gang::{JoinOptions, MemberInfo, Share, Token};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use serde::Deserialize;

use crate::calls::detached;
use crate::errors::raise;
use crate::fork::Owned;
use crate::wait::SLICE;

/// Arguments of a join from Python, as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    name: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    share: Option<(u32, u32)>,
    address: String,
    device: String,
    host: String,
    token: Option<String>,
    timeout: f64,
    storage_options: BTreeMap<String, String>,
}

/// A rank that has joined a gang.
#[pyclass(frozen, name = "Gang", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyGang(Owned<Arc<Gang>>);

/// Notifying the others may take a moment, in which other Python threads continue.
impl Drop for PyGang {
    fn drop(&mut self) {
        if let Ok(gang) = self.0.checked() {
            let gang = Arc::clone(gang);
            Python::attach(|py| detached(py, move || gang.abandon()));
        }
    }
}

/// Returns the outcome of `wait`, checking for signals in between. Any exception cancels it.
fn waited<T: Send>(py: Python<'_>, mut wait: impl FnMut(Duration) -> Option<Result<T>> + Send) -> PyResult<T> {
    loop {
        let outcome = detached(py, || wait(SLICE));
        match outcome {
            Some(outcome) => return outcome.map_err(|error| raise(py, &error)),
            None => py.check_signals()?,
        }
    }
}

impl PyGang {
    /// Makes a call of the gang and waits for its outcome; Ctrl-C cancels it at once.
    fn with<T: Send + 'static>(&self, py: Python<'_>, call: impl FnOnce(&Gang) -> Result<Pending<T>>) -> PyResult<T> {
        let mut pending = call(self.shared(py)?).map_err(|error| raise(py, &error))?;
        waited(py, |slice| pending.wait(slice))
    }

    fn shared(&self, py: Python<'_>) -> PyResult<&Arc<Gang>> {
        self.0.checked().map_err(|error| raise(py, &error))
    }

    /// Runs `work` on the gang, without waiting.
    pub(crate) fn look<T>(&self, py: Python<'_>, work: impl FnOnce(&Gang) -> T) -> PyResult<T> {
        Ok(work(self.shared(py)?))
    }

    /// Returns the gang, for a loader's tickets.
    pub(crate) fn handle(&self, py: Python<'_>) -> PyResult<Arc<Gang>> {
        self.shared(py).map(Arc::clone)
    }
}

fn seconds(timeout: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(timeout)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| Error::config("timeout", format!("{timeout} is no positive number of seconds")))
}

#[pymethods]
impl PyGang {
    #[new]
    fn new(py: Python<'_>, url: String, options: &str) -> PyResult<Self> {
        let options: Options = bowstring::document::read(options).map_err(|error| raise(py, &error))?;
        let joining = || {
            let found = bowstring::pipeline::rank::resolve(options.rank, options.world_size)?;
            let mut join = JoinOptions::new(options.name, found.rank, found.world_size);
            join.share = options.share.map(|(rank, of)| Share { rank, of });
            join.info = MemberInfo { address: options.address, device: options.device, host: options.host };
            join.token = options.token.as_deref().map(Token::parse).transpose()?;
            join.timeout = seconds(options.timeout)?;
            Gang::joining(&url, &options.storage_options, join)
        };
        let mut joining = joining().map_err(|error| raise(py, &error))?;
        let gang = waited(py, |slice| joining.wait(slice))?;
        Ok(Self(Owned::new(Arc::new(gang))))
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.look(py, |gang| gang.caller().gang.clone())
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.look(py, |gang| gang.caller().rank)
    }

    #[getter]
    fn world_size(&self, py: Python<'_>) -> PyResult<u32> {
        self.look(py, Gang::world_size)
    }

    #[getter]
    fn share(&self, py: Python<'_>) -> PyResult<(u32, u32)> {
        self.look(py, |gang| (gang.share().rank, gang.share().of))
    }

    #[getter]
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |gang| gang.caller().generation)
    }

    #[getter]
    fn resume(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        self.look(py, Gang::resume)?.map_err(|error| raise(py, &error))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.look(py, Gang::check)?.map_err(|error| raise(py, &error))
    }

    fn barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.with(py, |gang| gang.arriving(seconds(timeout)?))
    }

    fn all_gather<'py>(&self, py: Python<'py>, message: Vec<u8>, timeout: f64) -> PyResult<Bound<'py, PyList>> {
        let messages = self.with(py, |gang| gang.gathering(&message, seconds(timeout)?))?;
        PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))
    }

    fn members(&self, py: Python<'_>) -> PyResult<String> {
        let members = self.with(py, Gang::listing)?;
        serde_json::to_string(&members).map_err(|error| raise(py, &Error::Closed { why: error.to_string() }))
    }

    fn ack(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<String> {
        Ok(self.with(py, |gang| gang.acking(epoch, step))?.to_string())
    }

    #[pyo3(signature = (failed=None))]
    fn leave(&self, py: Python<'_>, failed: Option<String>) -> PyResult<()> {
        match self.shared(py)?.leaving(failed.as_deref()) {
            Some(mut telling) => waited(py, |slice| telling.wait(slice)),
            None => Ok(()),
        }
    }
}
