//! `bowstring._native.plan`: the reads and the memory of each rank of a world, as JSON.

use bowstring::Error;
use bowstring::error::Result;
use bowstring::pipeline::{LoaderOptions, LocalSource};
use pyo3::prelude::*;

use crate::credentials::{Provider, provide};
use crate::options::parsed;
use crate::wait::apart;

/// Returns the findings of `LocalSource::readings` for these options, which need name no rank.
#[pyfunction]
#[pyo3(signature = (options, provider=None))]
pub(crate) fn plan(py: Python<'_>, options: &str, provider: Option<Provider>) -> PyResult<String> {
    let mut options = parsed(py, options)?;
    provide(py, &mut options, provider)?;
    if options.world_size.is_some() {
        options.rank.get_or_insert(0);
    }
    // A budget that is too small is a finding here, not an error.
    options.memory_budget = Some(isize::MAX as u64);
    apart(py, move || readings(options))
}

fn readings(options: LoaderOptions) -> Result<String> {
    let found = LocalSource::open(options.clone())?.readings(&options)?;
    serde_json::to_string(&found).map_err(|error| Error::Closed { why: error.to_string() })
}
