//! `bowstring._native.Server`: a Flight server on threads of its own, in a process that does other things.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bowstring::Error;
use bowstring::document;
use bowstring::error::Result;
use bowstring::flight::put::{Mode, Token, WriteId};
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Background, Catalogue, Config, Tokens, Writes};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::arrow::batches;
use crate::calls::detached;
use crate::errors::raise;
use crate::fork::Owned;
use crate::traces;
use crate::wait::{SLICE, apart};

/// Arguments of a server from Python, as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Datasets by name.
    datasets: BTreeMap<String, Vec<String>>,
    /// True to open and close each dataset before clients are admitted.
    check: bool,
    /// Lines of a file of tokens.
    tokens: Option<Vec<String>>,
    /// Options of [`ServerOptions`].
    server: serde_json::Map<String, serde_json::Value>,
}

fn start(options: Options) -> Result<Background> {
    let server: ServerOptions = document::from_map(options.server)?;
    let mut catalogue = Catalogue::default();
    options.datasets.into_iter().try_for_each(|(name, urls)| catalogue.add(&name, urls))?;
    let mut config = Config::new(catalogue, &server)?;
    if let Some(lines) = options.tokens {
        config.tokens = Some(Tokens::from_text(&lines.join("\n"))?);
    }
    let listen = server.listen.as_deref().unwrap_or("127.0.0.1:0");
    if options.check { Background::start_checked(config, listen) } else { Background::start(config, listen) }
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
        let options: Options = document::read(options).map_err(|error| raise(py, &error))?;
        traces::start(py)?;
        // Datasets are opened while Ctrl-C works.
        let server = apart(py, move || start(options))?;
        Ok(Self { url: server.url(), running: Owned::new(Mutex::new(Some(server))) })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Stages the rows of any object with `__arrow_c_stream__` as a task of a write. Returns its token, rows and bytes, as JSON.
    fn stage(
        &self,
        py: Python<'_>,
        dataset: &str,
        write: &str,
        task: u32,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<String> {
        let batches = batches(py, data)?;
        let staged = detached(py, || {
            let schema = batches.schema();
            self.writes()?.stage(&WriteId::new(dataset, write)?, task, schema, batches)
        });
        staged.map(|staged| serde_json::json!(staged).to_string()).map_err(|error| raise(py, &error))
    }

    /// Makes staged rows visible, all at once. Returns rows, bytes and files, as JSON. `mode` and `tokens` are JSON.
    fn commit(&self, py: Python<'_>, dataset: &str, write: &str, mode: &str, tokens: &str) -> PyResult<String> {
        let wrong = |option| move |error: serde_json::Error| Error::config(option, error.to_string());
        let asked = || -> Result<_> {
            let mode: Mode = serde_json::from_str(mode).map_err(wrong("mode"))?;
            let tokens: Vec<Token> = serde_json::from_str(tokens).map_err(wrong("tokens"))?;
            Ok((self.writes()?, WriteId::new(dataset, write)?, mode, tokens))
        };
        let (writes, write, mode, tokens) = asked().map_err(|error| raise(py, &error))?;
        let committed = apart(py, move || writes.commit(&write, mode, &tokens))?;
        Ok(serde_json::json!(committed).to_string())
    }

    /// Ends a write and removes its staged rows.
    fn abort(&self, py: Python<'_>, dataset: &str, write: &str) -> PyResult<()> {
        let asked = || -> Result<_> { Ok((self.writes()?, WriteId::new(dataset, write)?)) };
        let (writes, write) = asked().map_err(|error| raise(py, &error))?;
        apart(py, move || writes.abort(&write))
    }

    /// Drains; Ctrl-C cuts the streams. A forked child has nothing to close.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(mut server) = self.taken() else { return Ok(()) };
        loop {
            if let Some(closed) = detached(py, || server.close_within(SLICE)) {
                return closed.map_err(|error| raise(py, &error));
            }
            if let Err(interrupted) = py.check_signals() {
                server.cut();
                return Err(interrupted);
            }
        }
    }
}

/// Other Python threads continue while it drains: it may wait for their loaders.
impl Drop for PyServer {
    fn drop(&mut self) {
        if let Some(server) = self.taken() {
            Python::attach(|py| detached(py, move || drop(server)));
        }
    }
}

impl PyServer {
    /// Takes the server, if it runs in this process.
    fn taken(&self) -> Option<Background> {
        self.running.checked().ok()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the handle for writes of this process. The lock is not held while writing.
    fn writes(&self) -> Result<Writes> {
        let running = self.running.checked()?.lock().unwrap_or_else(PoisonError::into_inner);
        let server = running.as_ref().ok_or_else(|| Error::Closed { why: "the server was closed".to_owned() })?;
        server.writes().cloned()
    }
}
