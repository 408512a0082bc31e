//! `bowstring._native.petastorm_metadata`: Petastorm's metadata of a dataset, as JSON.

use bowstring::Error;
use bowstring::dataset::petastorm::{IndexKind, IndexValue, RowGroupIndex, Unischema};
use bowstring::error::Result;
use bowstring::pipeline::{LoaderOptions, petastorm};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::raise;
use crate::wait::apart;

/// Returns name, fields, row-group counts and indexes of the dataset at `url`, as JSON; `None` if Petastorm did not write it.
#[pyfunction]
pub(crate) fn petastorm_metadata(py: Python<'_>, url: String, storage_options: &str) -> PyResult<Option<String>> {
    let storage_options = serde_json::from_str(storage_options)
        .map_err(|error| raise(py, &Error::Config { option: "storage_options", problem: error.to_string() }))?;
    let options = LoaderOptions { urls: vec![url], storage_options, ..LoaderOptions::default() };
    apart(py, move || read(&options))
}

/// Encodes a schema, given as JSON, as Petastorm keeps it in `_common_metadata`.
#[pyfunction]
pub(crate) fn unischema_metadata(py: Python<'_>, unischema: &str) -> PyResult<Vec<u8>> {
    let unischema: Unischema = serde_json::from_str(unischema)
        .map_err(|error| raise(py, &Error::Config { option: "petastorm", problem: error.to_string() }))?;
    unischema.to_pickle().map_err(|error| raise(py, &error))
}

/// Encodes an index as JSON; a value that JSON lacks is an object that names its type.
fn index(index: &RowGroupIndex) -> Value {
    let value = |value: &IndexValue| match value {
        IndexValue::Null => Value::Null,
        IndexValue::Bool(value) => json!(value),
        IndexValue::Int(value) => json!(value),
        IndexValue::Uint(value) => json!(value),
        IndexValue::Float(value) if !value.is_finite() => json!({ "float": value.to_string() }),
        IndexValue::Float(value) => json!(value),
        IndexValue::Text(value) => json!(value),
        IndexValue::Bytes(value) => json!({ "bytes": value }),
    };
    let (kind, values): (&str, Vec<(Value, &[u32])>) = match &index.kind {
        IndexKind::SingleField { values } => {
            ("single_field", values.iter().map(|(key, groups)| (value(key), groups.as_slice())).collect())
        }
        IndexKind::FieldNotNull { row_groups } => ("field_not_null", vec![(Value::Null, row_groups.as_slice())]),
    };
    json!({ "name": index.name, "columns": index.columns, "kind": kind, "values": values })
}

fn read(options: &LoaderOptions) -> Result<Option<String>> {
    let Some(found) = petastorm(options)? else { return Ok(None) };
    let document = json!({
        "name": found.unischema.name,
        "fields": found.unischema.fields,
        "row_group_counts": found.row_group_counts,
        "indexes": found.indexes()?.iter().map(index).collect::<Vec<_>>(),
    });
    Ok(Some(document.to_string()))
}
