//! Results: text for people or JSON for machines, on standard output, and the outcome of the program.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::Error;

/// The version of all documents: it rises if a name in one of them changes its meaning or goes.
const SCHEMA: u32 = 1;

/// The outcome of a verb.
pub(crate) type Outcome = Result<(), Failure>;

/// The reason for an early end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error, with an exit code.
    Error(Error),
    /// Standard output cannot be written.
    Output(io::Error),
    /// A file of output cannot be written.
    File(PathBuf, io::Error),
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
    quiet: bool,
}

/// A document with its version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema: u32,
    #[serde(flatten)]
    document: &'a T,
}

impl Out {
    /// With `quiet`, there are no reports as text and no progress bars. What was asked for by name is still written: a document of `--json`,
    /// a script.
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self { json, quiet }
    }

    /// Returns true if reports are left out.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns true for JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Returns true if standard error is a terminal, for progress bars.
    pub(crate) fn is_watched(&self) -> bool {
        !self.json && !self.quiet && io::stderr().is_terminal()
    }

    /// Writes the result of a verb, in the requested form.
    pub(crate) fn report(&mut self, report: &(impl Serialize + Display)) -> Outcome {
        self.rendered(report)?.map_or(Ok(()), |text| self.text(&text))
    }

    /// Returns the result of a verb, in the requested form; `None` if it is left out.
    pub(crate) fn rendered(&self, report: &(impl Serialize + Display)) -> Result<Option<String>, Failure> {
        match (self.json, self.quiet) {
            (true, _) => Ok(Some(versioned(report)?)),
            (false, true) => Ok(None),
            (false, false) => Ok(Some(report.to_string())),
        }
    }

    /// Writes one JSON document, an object, with its version.
    pub(crate) fn json(&mut self, document: &impl Serialize) -> Outcome {
        let text = versioned(document)?;
        self.text(&text)
    }

    /// Writes a document that has a version of its own.
    pub(crate) fn document(&mut self, document: &impl Serialize) -> Outcome {
        let text = pretty(document)?;
        self.text(&text)
    }

    /// Writes a part of a report for people.
    pub(crate) fn say(&mut self, text: &str) -> Outcome {
        if self.json || self.quiet { Ok(()) } else { self.text(text) }
    }

    /// Writes text unchanged.
    pub(crate) fn text(&mut self, text: &str) -> Outcome {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        Ok(stdout.flush()?)
    }
}

fn pretty(document: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(document).map_err(io::Error::other)? + "\n")
}

fn versioned(document: &impl Serialize) -> Result<String, Failure> {
    pretty(&Versioned { schema: SCHEMA, document })
}
