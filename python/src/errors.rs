//! The library's errors as the exception classes of `bowstring.errors`.
//!
//! The classes are Python's own, because most of them also inherit from a builtin (`ValueError`, `OSError`, `TimeoutError`).

use bowstring::{Error, Place};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::calls::entered;
use crate::raised::Raised;

/// Returns the class of `bowstring.errors` for `error`.
fn class(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } => "NotFoundError",
        Error::Corrupt { .. } => "CorruptError",
        Error::Nulls { .. } => "NullsError",
        Error::SourceChanged { .. } => "SourceChangedError",
        Error::Mismatch { .. } => "MismatchError",
        Error::Unsupported { .. } => "UnsupportedError",
        Error::Limit { .. } => "LimitError",
        Error::Config { .. } => "ConfigError",
        Error::Store { .. } => "StoreError",
        Error::Timeout { .. } => "TimeoutError",
        Error::Closed { .. } | Error::Over { .. } => "ClosedError",
        Error::Remote { .. } => "RemoteError",
        Error::Fenced { .. } => "FencedError",
        Error::Device { .. } => "DeviceError",
        // The enum is open: a new variant is still a bowstring error.
        _ => "Error",
    }
}

fn place(error: &Error) -> Place {
    match error {
        Error::SourceChanged { file, .. } => Place::file(file.as_str()),
        Error::Store { url, .. } => Place::file(url.as_str()),
        _ => error.place().cloned().unwrap_or_default(),
    }
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = py.import("bowstring.errors")?.getattr(class(error))?.cast_into::<PyType>()?;
    let Place { file, row_group, column, row } = place(error);
    let about = PyDict::new(py);
    about.set_item("file", file.as_deref())?;
    about.set_item("row_group", row_group)?;
    about.set_item("column", column.as_deref())?;
    about.set_item("row", row)?;
    about.set_item(
        "option",
        match error {
            Error::Config { option, .. } | Error::Limit { option, .. } => Some(*option),
            Error::Nulls { .. } => Some("nulls"),
            _ => None,
        },
    )?;
    let raised = PyErr::from_value(class.call((error.chain(),), Some(&about))?);
    if let Some(cause) = Raised::in_chain(error) {
        let cause = cause.error(py);
        // Ctrl-C in the user's code ends the program, and not what the library was doing alone.
        if cause.is_instance_of::<PyKeyboardInterrupt>(py) {
            if cause.cause(py).is_none() {
                cause.set_cause(py, Some(raised));
            }
            return Ok(cause);
        }
        raised.set_cause(py, Some(cause));
    }
    Ok(raised)
}

/// Makes the exception for `error`: its class, its whole chain as the message, its place as attributes; its cause is the exception of the
/// user's code that it came of, if there is one.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let _entry = entered(py);
    build(py, error).unwrap_or_else(|failure| failure)
}
