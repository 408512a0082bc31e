//! The program around the command line: the differences between the binary and the command of the Python package.

use std::ffi::OsString;

use tracing::Dispatch;

/// The program that runs the command line.
#[derive(Debug, Clone)]
pub struct Program {
    /// Words of the command before the arguments. `demo` starts a server with them.
    pub command: Vec<OsString>,
    /// Installs the subscriber of the whole process.
    pub log: fn(Dispatch),
    /// Measures another loader beside this one, as the JSON of `bench --against` says, prints the table, and returns the exit code.
    /// None where there is no Python, which the other loaders need.
    pub against: Option<fn(&str) -> u8>,
}
