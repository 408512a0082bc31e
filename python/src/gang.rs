//! `bowstring._native.Gang`: a rank's membership. Whatever waits does so without the GIL, and Ctrl-C ends the wait.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bowstring::Error;
use bowstring::error::Result;
use bowstring::flight::client::Gang;
use bowstring::flight::gang::{JoinOptions, MemberInfo, Share, Token};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use serde::Deserialize;

use crate::errors::raise;
use crate::fork::Owned;
use crate::wait::opened;

/// What Python says of a join, as JSON.
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
pub(crate) struct PyGang(Owned<Arc<RwLock<Gang>>>);

impl PyGang {
    /// Runs `work` on the gang in a thread of its own, with a look at signals meanwhile.
    fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Gang) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let gang = Arc::clone(self.shared(py)?);
        // A gang is consistent between calls, and a panic inside one poisons nothing that matters.
        opened(py, move || work(&gang.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn shared(&self, py: Python<'_>) -> PyResult<&Arc<RwLock<Gang>>> {
        self.0.checked().map_err(|error| raise(py, &error))
    }

    /// Runs `work` on the gang, where nothing is waited for.
    pub(crate) fn look<T>(&self, py: Python<'_>, work: impl FnOnce(&Gang) -> T) -> PyResult<T> {
        Ok(work(&self.shared(py)?.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The gang, for a loader's tickets.
    pub(crate) fn handle(&self, py: Python<'_>) -> PyResult<Arc<RwLock<Gang>>> {
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
        let options: Options =
            serde_json::from_str(options).map_err(|error| raise(py, &Error::config("options", error.to_string())))?;
        let gang = opened(py, move || {
            let found = bowstring::pipeline::rank::resolve(options.rank, options.world_size)?;
            let mut join = JoinOptions::new(options.name, found.rank, found.world_size);
            join.share = options.share.map(|(rank, of)| Share { rank, of });
            join.info = MemberInfo { address: options.address, device: options.device, host: options.host };
            join.token = options.token.as_deref().map(Token::parse).transpose()?;
            join.timeout = seconds(options.timeout)?;
            Gang::join(&url, &options.storage_options, join)
        })?;
        Ok(Self(Owned::new(Arc::new(RwLock::new(gang)))))
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
        self.with(py, move |gang| gang.barrier(seconds(timeout)?))
    }

    fn all_gather<'py>(&self, py: Python<'py>, message: Vec<u8>, timeout: f64) -> PyResult<Bound<'py, PyList>> {
        let messages = self.with(py, move |gang| gang.all_gather(&message, seconds(timeout)?))?;
        PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))
    }

    fn members(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |gang| {
            let members = gang.members()?;
            serde_json::to_string(&members).map_err(|error| Error::Closed { why: error.to_string() })
        })
    }

    fn ack(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<String> {
        self.with(py, move |gang| Ok(gang.ack(epoch, step)?.to_string()))
    }

    #[pyo3(signature = (failed=None))]
    fn leave(&self, py: Python<'_>, failed: Option<String>) -> PyResult<()> {
        let gang = Arc::clone(self.shared(py)?);
        opened(py, move || gang.write().unwrap_or_else(PoisonError::into_inner).leave(failed.as_deref()))
    }
}
