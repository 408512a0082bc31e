//! `bowstring._native.petastorm_metadata`: what Petastorm wrote of a dataset, as JSON.

use bowstring::Error;
use bowstring::error::Result;
use bowstring::pipeline::{LoaderOptions, petastorm};
use pyo3::prelude::*;
use serde_json::json;

use crate::errors::raise;
use crate::loader::opened;

/// Name, fields, row-group counts and indexes of the dataset at `url`, as JSON; `None` if Petastorm did not write it.
#[pyfunction]
pub(crate) fn petastorm_metadata(py: Python<'_>, url: String, storage_options: &str) -> PyResult<Option<String>> {
    let storage_options = serde_json::from_str(storage_options)
        .map_err(|error| raise(py, &Error::Config { option: "storage_options", problem: error.to_string() }))?;
    let options = LoaderOptions { urls: vec![url], storage_options, ..LoaderOptions::default() };
    opened(py, move || read(&options))?.map_err(|error| raise(py, &error))
}

fn read(options: &LoaderOptions) -> Result<Option<String>> {
    let Some(found) = petastorm(options)? else { return Ok(None) };
    let document = json!({
        "name": found.unischema.name,
        "fields": found.unischema.fields,
        "row_group_counts": found.row_group_counts,
        "indexes": found.indexes()?,
    });
    Ok(Some(document.to_string()))
}
