//! The program around the command line: what differs between the binary and the command of the Python package.

use std::ffi::OsString;

use tracing::Dispatch;

/// The program that runs the command line.
#[derive(Debug, Clone)]
pub struct Program {
    /// What starts it: the words before the arguments. `demo` starts a server with them.
    pub command: Vec<OsString>,
    /// Makes a subscriber the one of the whole process.
    pub log: fn(Dispatch),
}
