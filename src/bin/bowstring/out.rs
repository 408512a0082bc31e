//! Where results go: text for people or JSON for machines, on standard output, and what ends the program.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use bowstring::Error;

/// What a verb ends with.
pub(crate) type Outcome = Result<(), Failure>;

/// Why the program ends early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell, with an exit code.
    Error(Error),
    /// Standard output cannot be written.
    Output(io::Error),
    /// All was told already; only the exit code is left.
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

/// Standard output.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether a machine reads.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person watches standard error, where progress bars go.
    pub(crate) fn is_watched(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }

    /// The result of a verb, in the form that was asked for.
    pub(crate) fn report(&mut self, report: &(impl Serialize + Display)) -> Outcome {
        if self.json { self.json(report) } else { self.text(&report.to_string()) }
    }

    /// One JSON document.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Outcome {
        let mut text = serde_json::to_string_pretty(value).map_err(io::Error::other)?;
        text.push('\n');
        self.text(&text)
    }

    /// Text as it is.
    pub(crate) fn text(&mut self, text: &str) -> Outcome {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }
}
