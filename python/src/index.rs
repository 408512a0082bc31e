//! `bowstring._native.dataset_index` and `write_index`: the footers of a dataset, for other processes.

use bowstring::pipeline::index;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::credentials::{Provider, provide};
use crate::options::parsed;
use crate::wait::apart;

/// Returns the index of the dataset that `options` name.
#[pyfunction]
#[pyo3(signature = (options, provider=None))]
pub(crate) fn dataset_index<'py>(
    py: Python<'py>,
    options: &str,
    provider: Option<Provider>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut options = parsed(py, options)?;
    provide(py, &mut options, provider)?;
    let (bytes, _) = apart(py, move || index(&options, false, None))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Writes the index of the dataset that `options` name to `output`, or beside the dataset. Returns its address.
#[pyfunction]
#[pyo3(signature = (options, output=None, provider=None))]
pub(crate) fn write_index(
    py: Python<'_>,
    options: &str,
    output: Option<String>,
    provider: Option<Provider>,
) -> PyResult<String> {
    let mut options = parsed(py, options)?;
    provide(py, &mut options, provider)?;
    let (_, address) = apart(py, move || index(&options, true, output.as_deref()))?;
    Ok(address.unwrap_or_default())
}
