//! `bowstring._native`: the table of options, and the parser of their values in variables.

use bowstring::Error;
use bowstring::pipeline::option_table::{About, OPTIONS, misspelling, option};
use bowstring::pipeline::{Kind, LoaderOptions};
use pyo3::prelude::*;
use serde_json::json;

use crate::errors::raise;

/// Parses the options of a loader from a document.
pub(crate) fn parsed(py: Python<'_>, options: &str) -> PyResult<LoaderOptions> {
    LoaderOptions::from_json(options).map_err(|error| raise(py, &error))
}

/// Returns every option, in order: name, values, default, and subject.
#[pyfunction]
pub(crate) fn option_table(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let entries: Vec<_> = OPTIONS
        .iter()
        .map(|entry| {
            json!({
                "name": entry.name,
                "values": entry.kind.to_string(),
                "choices": match entry.kind { Kind::Choice(words) => Some(words), _ => None },
                "default": entry.default,
                "of_columns": entry.about == About::Columns,
                "variable": entry.variable(),
                "flag": entry.flag(),
                "left_to_a_server": entry.is_left_to_a_server(),
                "of_each_process": entry.is_of_each_process(),
                "sentence": entry.sentence,
            })
        })
        .collect();
    py.import("json")?.call_method1("loads", (json!(entries).to_string(),))
}

/// Parses `text` as a value of the option `name`, and returns it as JSON; `origin` names its source in errors.
#[pyfunction]
pub(crate) fn option_from_text(py: Python<'_>, name: &str, text: &str, origin: &str) -> PyResult<String> {
    let wrong = |option, problem| raise(py, &Error::Config { option, problem });
    let entry = option(name).ok_or_else(|| wrong("options", format!("{name} is no option")))?;
    let value = entry.kind.parse(text).map_err(|problem| wrong(entry.name, format!("{origin}{problem}")))?;
    Ok(value.to_string())
}

/// Returns an error text for a variable of the environment, if it is a misspelt one of ours.
#[pyfunction]
pub(crate) fn misspelt_variable(name: &str) -> Option<String> {
    misspelling(name)
}

/// Returns true if `pattern`, a name, a prefix of it or a glob, covers the column `name`, as in the options of columns.
#[pyfunction]
pub(crate) fn column_is_meant(pattern: &str, name: &str) -> bool {
    bowstring::codec::column_is_meant(pattern, name)
}
