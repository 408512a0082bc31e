//! Who this process is among the ranks, as its launcher says.

use pyo3::prelude::*;

use crate::errors::raise;

/// Rank, number of ranks, and where both come from: the environment of a launcher, or rank 0 of 1.
#[pyfunction]
pub(crate) fn rank(py: Python<'_>) -> PyResult<(u32, u32, String)> {
    let found = bowstring::pipeline::rank::discover().map_err(|error| raise(py, &error))?;
    Ok((found.rank, found.world_size, found.why))
}

/// What a launcher says in the environment: the same three; `None` if there is no launcher.
#[pyfunction]
pub(crate) fn launched(py: Python<'_>) -> PyResult<Option<(u32, u32, String)>> {
    let found = bowstring::pipeline::rank::said().map_err(|error| raise(py, &error))?;
    Ok(found.map(|found| (found.rank, found.world_size, found.why)))
}
