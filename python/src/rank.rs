//! The rank of this process, as given by its launcher.

use pyo3::prelude::*;

use crate::errors::raise;

/// Returns the rank, the number of ranks, and the origin of both: the environment of a launcher, or rank 0 of 1.
#[pyfunction]
pub(crate) fn rank(py: Python<'_>) -> PyResult<(u32, u32, String)> {
    let found = bowstring::pipeline::rank::discover().map_err(|error| raise(py, &error))?;
    Ok((found.rank, found.world_size, found.why))
}

/// Returns the same three from a launcher's environment; `None` if there is no launcher.
#[pyfunction]
pub(crate) fn launched(py: Python<'_>) -> PyResult<Option<(u32, u32, String)>> {
    let found = bowstring::pipeline::rank::said().map_err(|error| raise(py, &error))?;
    Ok(found.map(|found| (found.rank, found.world_size, found.why)))
}
