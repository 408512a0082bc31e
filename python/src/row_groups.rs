//! `bowstring._native.RowGroups`: row groups in an order that Python decides, behind a lock, waited for in slices.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bowstring::error::Result;
use bowstring::pipeline::{NextPiece, Piece, RowGroups};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::raise;
use crate::field;
use crate::fork::Owned;
use crate::loader::columns;
use crate::options::parsed;
use crate::wait::{self, Source, Waited, opened};

/// Row groups of a dataset, decoded, in any order that is asked for.
#[pyclass(frozen, name = "RowGroups", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyRowGroups(Owned<Mutex<RowGroups>>);

impl PyRowGroups {
    /// Runs `work` without the GIL.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut RowGroups) -> Result<T> + Send) -> PyResult<T> {
        let groups = self.0.checked().map_err(|error| raise(py, &error))?;
        // It is consistent between calls, and a panic inside it was made an error there.
        py.detach(|| work(&mut groups.lock().unwrap_or_else(PoisonError::into_inner)))
            .map_err(|error| raise(py, &error))
    }

    fn document<'py>(
        &self,
        py: Python<'py>,
        take: impl FnOnce(&RowGroups) -> Value + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let json = self.with(py, |groups| Ok(take(groups).to_string()))?;
        py.import("json")?.call_method1("loads", (json,))
    }
}

impl Source for PyRowGroups {
    type Item = Piece;

    fn timeout(&self, py: Python<'_>) -> PyResult<Duration> {
        self.with(py, |groups| Ok(groups.timeout()))
    }

    fn wait(&self, py: Python<'_>, wait: Duration) -> PyResult<Waited<Piece>> {
        self.with(py, |groups| {
            Ok(match groups.next_within(wait)? {
                NextPiece::Piece(piece) => Waited::Next(piece),
                NextPiece::End => Waited::End,
                NextPiece::Pending => Waited::Pending,
            })
        })
    }

    fn timed_out(&self, py: Python<'_>, waited: Duration) -> PyErr {
        self.with(py, |groups| Ok(groups.timed_out(waited))).map_or_else(|error| error, |error| raise(py, &error))
    }

    fn convert<'py>(&self, piece: &Piece, convert: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        convert.call1((piece.group, piece.first, columns(convert.py(), &piece.batch)?))
    }

    fn put_back(&self, py: Python<'_>, piece: Piece) -> PyResult<()> {
        self.with(py, |groups| {
            groups.put_back(piece);
            Ok(())
        })
    }
}

#[pymethods]
impl PyRowGroups {
    #[new]
    #[pyo3(signature = (options, max_rows=None))]
    fn new(py: Python<'_>, options: &str, max_rows: Option<u64>) -> PyResult<Self> {
        let options = parsed(py, options)?;
        let groups = opened(py, move || RowGroups::open(options, max_rows))?;
        Ok(Self(Owned::new(Mutex::new(groups))))
    }

    /// File, ordinal in the file, and selected rows of each row group, in file order.
    #[getter]
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<(String, u32, u64)>> {
        self.with(py, |groups| {
            let manifest = groups.dataset().manifest();
            let path = |file: u32| manifest.files.get(file as usize).map(|file| file.path.to_string());
            let group = manifest.groups.iter();
            Ok(group.map(|of| (path(of.file).unwrap_or_default(), of.ordinal, of.selected)).collect())
        })
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |groups| field::documents(groups.schema()))
    }

    /// Name, Arrow type and nullability of every column as it is stored, partition columns last.
    #[getter]
    fn stored(&self, py: Python<'_>) -> PyResult<Vec<(String, String, bool)>> {
        self.with(py, |groups| {
            let fields = groups.dataset().schema().fields().iter();
            Ok(fields.map(|of| (of.name().clone(), of.data_type().to_string(), of.is_nullable())).collect())
        })
    }

    fn start(&self, py: Python<'_>, order: Vec<u32>) -> PyResult<()> {
        self.with(py, |groups| groups.start(&order))
    }

    /// What `convert` makes of the next piece: of its row group's number, its first row, and its columns; `None` at the end.
    ///
    /// Whatever is raised meanwhile, Ctrl-C above all, costs no piece: one that was not converted is the next one again.
    fn next<'py>(&self, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        wait::next(self, convert)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |groups| json!(groups.stats()))
    }

    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.document(py, |groups| json!(groups.ledger()))
    }

    /// Stops everything at once; in a forked child there is nothing to stop.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.checked().is_err() {
            return Ok(());
        }
        self.with(py, |groups| {
            groups.close();
            Ok(())
        })
    }
}
