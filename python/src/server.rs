//! `bowstring._native.Server`: a Flight server on threads of its own, in a process that does other things.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bowstring::Error;
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Background, Catalogue, Config, Tokens};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::raise;
use crate::fork::Owned;

/// What Python says of a server, as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Datasets by name.
    datasets: BTreeMap<String, Vec<String>>,
    /// Lines of a file of tokens.
    tokens: Option<Vec<String>>,
    server: ServerOptions,
}

/// A running server.
#[pyclass(frozen, name = "Server", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyServer {
    url: String,
    running: Owned<Mutex<Option<Background>>>,
}

#[pymethods]
impl PyServer {
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Self> {
        let started = py.detach(|| {
            let options: Options =
                serde_json::from_str(options).map_err(|error| Error::config("options", error.to_string()))?;
            let mut catalogue = Catalogue::default();
            options.datasets.into_iter().try_for_each(|(name, urls)| catalogue.add(&name, urls))?;
            let mut config = Config::new(catalogue, &options.server)?;
            if let Some(lines) = options.tokens {
                config.tokens = Some(Tokens::from_text(&lines.join("\n"))?);
            }
            Background::start(config, options.server.listen.as_deref().unwrap_or("127.0.0.1:0"))
        });
        let server = started.map_err(|error| raise(py, &error))?;
        Ok(Self { url: server.url(), running: Owned::new(Mutex::new(Some(server))) })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.checked().map_err(|error| raise(py, &error))?;
        let closed = py.detach(|| {
            let server = running.lock().unwrap_or_else(PoisonError::into_inner).take();
            server.map_or(Ok(()), |mut server| server.close())
        });
        closed.map_err(|error| raise(py, &error))
    }
}
