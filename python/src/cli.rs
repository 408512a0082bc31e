//! `bowstring._native.command_line()`: the command line of the library as a function, for the command that the package installs.

use std::ffi::OsString;

use bowstring::cli::{self, Program};
use pyo3::prelude::*;

use crate::calls::detached;
use crate::log;

/// Runs the command line and returns its exit code. `command` holds the words before `arguments`. It takes over the log of the process.
#[pyfunction]
pub(crate) fn command_line(py: Python<'_>, command: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let program = Program { command, log: log::give_way, against: Some(against) };
    detached(py, || cli::run(&program, arguments))
}

/// Runs `bowstring.against`, which is Python: the other loaders are.
fn against(comparison: &str) -> u8 {
    Python::attach(|py| {
        let run = || py.import("bowstring.against")?.call_method1("run", (comparison,))?.extract();
        run().unwrap_or_else(|error: PyErr| {
            error.print(py);
            1
        })
    })
}
