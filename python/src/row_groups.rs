//! `bowstring._native.RowGroups`: row groups in an order that Python decides, behind a lock, awaited in slices.

use std::collections::BTreeMap;
use std::time::Duration;

use bowstring::Error;
use bowstring::pipeline::{ColumnKinds, Piece, RowGroups};
use pyo3::prelude::*;

use crate::field;
use crate::loader::columns;
use crate::options::parsed;
use crate::wait::{Shared, Source, apart};

/// Decoded row groups of a dataset, in any requested order.
#[pyclass(frozen, name = "RowGroups", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyRowGroups(Shared<RowGroups>);

impl Source for RowGroups {
    fn timeout(&self) -> Duration {
        self.timeout()
    }

    fn timed_out(&self, waited: Duration) -> Error {
        self.timed_out(waited)
    }
}

#[pymethods]
impl PyRowGroups {
    #[new]
    #[pyo3(signature = (options, max_rows=None))]
    fn new(py: Python<'_>, options: &str, max_rows: Option<u64>) -> PyResult<Self> {
        let options = parsed(py, options)?;
        let groups = apart(py, move || RowGroups::open(options, max_rows))?;
        Ok(Self(Shared::new(groups)))
    }

    /// File, ordinal in the file, and selected rows of each row group, in file order.
    #[getter]
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<(String, u32, u64)>> {
        self.0.get(py, |groups| {
            let manifest = groups.dataset().manifest();
            let path = |file: u32| manifest.files.get(file as usize).map(|file| file.path.to_string());
            let group = manifest.groups.iter();
            group.map(|of| (path(of.file).unwrap_or_default(), of.ordinal, of.selected)).collect()
        })
    }

    /// Row groups of each file, including those without rows.
    #[getter]
    fn row_group_counts(&self, py: Python<'_>) -> PyResult<BTreeMap<String, usize>> {
        self.0.get(py, |groups| groups.dataset().row_group_counts())
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |groups| Ok(field::documents(groups.schema(), &ColumnKinds::default()).to_string()))
    }

    /// Name, Arrow type and nullability of every stored column, partition columns last.
    #[getter]
    fn stored(&self, py: Python<'_>) -> PyResult<Vec<(String, String, bool)>> {
        self.0.get(py, |groups| {
            let fields = groups.dataset().schema().fields().iter();
            fields.map(|of| (of.name().clone(), of.data_type().to_string(), of.is_nullable())).collect()
        })
    }

    fn start(&self, py: Python<'_>, order: Vec<u32>) -> PyResult<()> {
        self.0.with(py, |groups| groups.start(&order))
    }

    /// Returns the result of `convert` on the next piece: on its row group's number, its first row, and its columns; `None` at the end.
    ///
    /// No exception, Ctrl-C above all, costs a piece: one that was not converted is delivered again.
    fn next<'py>(&self, convert: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = convert.py();
        let convert = |piece: &Piece| convert.call1((piece.group, piece.first, columns(py, &piece.batch)?));
        self.0.next(py, RowGroups::next_within, RowGroups::put_back, convert)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |groups| serde_json::to_string(&groups.stats()))
    }

    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.document(py, |groups| serde_json::to_string(&groups.ledger()))
    }

    /// Stops everything at once; a forked child has nothing to stop.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, RowGroups::close)
    }
}
