//! The journal of finished tasks: a line per task, written after its files are flushed.
//!
//! An incomplete line, cut short by a kill, is ignored. So a task is either finished with all its files, or runs again from its start.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::address::is_other;
use crate::convert::check::digest::Digest;
use crate::convert::read::files;
use crate::convert::sink::Part;
use crate::error::Result;
use crate::store::directory::failed;

/// A finished task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Number of the task.
    pub(crate) task: usize,
    /// Files that it wrote, below its directory.
    pub(crate) parts: Vec<Part>,
    /// Digest of its rows, if requested.
    pub(crate) digest: Option<Digest>,
    /// Rows written.
    pub(crate) rows: u64,
    /// Rows read of the source, before filtering; 0 for a bucket of a shuffle, whose rows were read by scattering.
    pub(crate) read: u64,
}

/// A task that another process finished, and the fingerprint of its conversion.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Worked {
    pub(crate) fingerprint: String,
    #[serde(flatten)]
    pub(crate) done: Done,
}

/// What a journal is compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noted<'a> {
    /// The conversion's fingerprint.
    pub(crate) fingerprint: &'a str,
    /// The one that former versions gave it if it was verified.
    pub(crate) former: &'a str,
    /// The address of its source.
    pub(crate) source: &'a str,
    /// Whether its tasks need digests.
    pub(crate) verify: bool,
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    fingerprint: String,
    /// The address of the source; former versions did not record it.
    #[serde(default)]
    source: Option<String>,
}

/// Result of opening an existing journal.
#[derive(Debug)]
pub(crate) enum Found {
    /// None, or one that a kill left without a complete first line: no task was begun.
    Nothing,
    /// A journal of another source or other options.
    Other,
    /// This conversion's journal, with finished tasks that lack the digests to be verified by.
    Unverified,
    /// This conversion's journal, to continue, and the finished tasks.
    Same(Journal, Vec<Done>),
}

/// The open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
}

impl Journal {
    /// Creates a journal at `path`, of the conversion `noted`.
    pub(crate) fn create(path: &Path, noted: Noted<'_>) -> Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        let file = file.map_err(|error| failed("create", path, error))?;
        let journal = Self { path: path.to_owned(), file: Mutex::new(file) };
        let Noted { fingerprint, source, .. } = noted;
        journal.line(&Head { fingerprint: fingerprint.to_owned(), source: Some(source.to_owned()) })?;
        Ok(journal)
    }

    /// Opens the journal at `path`, and compares it with the conversion `noted`.
    pub(crate) fn reopen(path: &Path, noted: Noted<'_>, most: u64) -> Result<Found> {
        if !path.is_file() {
            return Ok(Found::Nothing);
        }
        let content = files::Found::of(path)?.content(most)?;
        // Bytes after the last line end are an incomplete line. A head without an end was written before any task was begun.
        if !content.contains(&b'\n') {
            return Ok(Found::Nothing);
        }
        let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = content.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n');
        let head = lines.next().and_then(|line| serde_json::from_slice::<Head>(line).ok());
        let is_same = |head: Head| {
            let elsewhere = head.source.is_some_and(|recorded| is_other(&recorded, noted.source));
            [noted.fingerprint, noted.former].contains(&head.fingerprint.as_str()) && !elsewhere
        };
        if !head.is_some_and(is_same) {
            return Ok(Found::Other);
        }
        let done: Vec<Done> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        if noted.verify && done.iter().any(|done| done.digest.is_none()) {
            return Ok(Found::Unverified);
        }
        let file = OpenOptions::new().append(true).open(path).map_err(|error| failed("open", path, error))?;
        file.set_len(whole as u64).map_err(|error| failed("write", path, error))?;
        Ok(Found::Same(Self { path: path.to_owned(), file: Mutex::new(file) }, done))
    }

    /// Records that a task is finished. Its files must have been flushed.
    pub(crate) fn done(&self, done: &Done) -> Result<()> {
        self.line(done)
    }

    fn line(&self, value: &impl Serialize) -> Result<()> {
        let write = || {
            let mut text = serde_json::to_vec(value)?;
            text.push(b'\n');
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(&text)?;
            file.sync_data()
        };
        write().map_err(|error| failed("write", &self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTED: Noted<'_> = Noted { fingerprint: "x", former: "verified", source: "/src", verify: false };

    #[test]
    fn a_journal_is_of_a_conversion_whether_it_is_verified_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let verified = Noted { verify: true, ..NOTED };
        let reopened = |noted| Journal::reopen(&path, noted, 1 << 20).unwrap();
        let journal = Journal::create(&path, verified).unwrap();
        let done = Done { task: 0, parts: Vec::new(), digest: Some(Digest::default()), rows: 0, read: 0 };
        journal.done(&done).unwrap();
        for noted in [NOTED, verified] {
            assert!(matches!(reopened(noted), Found::Same(_, done) if done.len() == 1), "{noted:?}");
        }
        // Gone on with, and not to be verified.
        journal.done(&Done { task: 1, digest: None, ..done }).unwrap();
        assert!(matches!(reopened(NOTED), Found::Same(_, done) if done.len() == 2));
        assert!(matches!(reopened(verified), Found::Unverified));
        std::fs::write(&path, "{\"fingerprint\":\"verified\",\"source\":\"/src\"}\n").unwrap();
        for noted in [NOTED, verified] {
            assert!(matches!(reopened(noted), Found::Same(..)), "of a former version: {noted:?}");
        }
    }

    #[test]
    fn a_cut_line_is_no_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let done = |task| Done { task, parts: Vec::new(), digest: None, rows: 7, read: 7 };
        let journal = Journal::create(&path, NOTED).unwrap();
        journal.done(&done(0)).unwrap();
        journal.done(&done(1)).unwrap();
        drop(journal);
        let content = std::fs::read(&path).unwrap();
        for cut in 0..=content.len() {
            std::fs::write(&path, &content[..cut]).unwrap();
            let whole = content[..cut].iter().filter(|byte| **byte == b'\n').count();
            match Journal::reopen(&path, NOTED, 1 << 20).unwrap() {
                Found::Nothing => assert_eq!(whole, 0),
                Found::Other | Found::Unverified => panic!("cut at {cut}, it is taken for another conversion's"),
                Found::Same(journal, found) => {
                    assert_eq!(found.len(), whole - 1);
                    journal.done(&done(5)).unwrap();
                    let Found::Same(_, again) = Journal::reopen(&path, NOTED, 1 << 20).unwrap() else {
                        panic!("cut at {cut}")
                    };
                    assert_eq!(again.len(), whole);
                }
            }
        }
        let elsewhere = Noted { source: "/other", ..NOTED };
        for other in [Noted { fingerprint: "y", ..NOTED }, elsewhere] {
            assert!(matches!(Journal::reopen(&path, other, 1 << 20).unwrap(), Found::Other));
        }
        std::fs::write(&path, "{\"fingerprint\":\"x\"}\n").unwrap();
        let former = Journal::reopen(&path, elsewhere, 1 << 20).unwrap();
        assert!(matches!(former, Found::Same(..)), "of a version that did not record the source");
    }
}
