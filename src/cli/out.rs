//! Results: text for people or JSON for machines, on standard output, and the outcome of the program.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::Error;

/// The outcome of a verb.
pub(crate) type Outcome = Result<(), Failure>;

/// The reason for an early end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error, with an exit code.
    Error(Error),
    /// Standard output cannot be written.
    Output(io::Error),
    /// Everything has been reported; only the exit code is left.
    Told(u8),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Writes to standard error; if even that is closed, the text is lost.
pub(crate) fn tell(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Standard output.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Returns true for JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Returns true if standard error is a terminal, for progress bars.
    pub(crate) fn is_watched(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }

    /// Writes the result of a verb, in the requested form.
    pub(crate) fn report(&mut self, report: &(impl Serialize + Display)) -> Outcome {
        if self.json { self.json(report) } else { self.text(&report.to_string()) }
    }

    /// Writes one JSON document.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Outcome {
        let mut text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
        text.push('\n');
        self.text(&text)
    }

    /// Writes text unchanged.
    pub(crate) fn text(&mut self, text: &str) -> Outcome {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }
}
