//! Writes that appear at once or not at all: attempts of tasks are staged, and a commit makes exactly the named ones visible.
//!
//! ```text
//!   stage(write, task, attempt, batches) ─► token ─┐
//!   stage(write, task, attempt, batches) ─► token ─┼─ commit(write, mode, tokens) ─► a version of the dataset, by one rename
//!   ...                                            └─ abort(write), or nothing for its time to live: all of it is gone
//!   drop_dataset(dataset): all its versions are gone, by one removal
//! ```
//! This is what Spark's two-phase commit asks for: a task may be retried or run twice at once, and only the driver decides which
//! attempts count. Batches are written through as they come: an attempt holds one row group.

mod attempt;
mod directory;
mod disk;
pub(crate) mod ipc;
mod lease;
mod levels;
mod memory;
mod shrinking;
mod staging;
mod write_ledger;

use serde::{Deserialize, Serialize};

pub use disk::DiskQuotas;
pub(crate) use lease::Lease;
pub(crate) use staging::Version;
pub use staging::{Staging, StagingOptions};

use crate::error::{Error, Result};
use crate::schema::extension;

/// Longest name of a dataset, and longest id of a write.
const MAX_NAME: usize = 128;

/// One write: everything that one commit makes visible.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WriteId {
    dataset: String,
    id: String,
}

impl WriteId {
    /// The write `id`, chosen by the writer, to the dataset named `dataset`. Both become parts of paths.
    ///
    /// # Errors
    /// [`Error::Config`] unless both have 1 to 128 characters from `a-z A-Z 0-9 . _ -`, the first a letter or digit.
    pub fn new(dataset: &str, id: &str) -> Result<Self> {
        for (option, name) in [("dataset", dataset), ("write", id)] {
            let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
            if name.len() > MAX_NAME || !begins || !name.chars().all(known) {
                let shown: String = name.chars().take(MAX_NAME).collect();
                let problem = format!(
                    "{shown:?} is not 1 to {MAX_NAME} characters from a-z A-Z 0-9 . _ -, beginning with a letter or digit"
                );
                return Err(Error::config(option, problem));
            }
        }
        Ok(Self { dataset: dataset.to_owned(), id: id.to_owned() })
    }

    /// The same write in a space of its own: no [`new`](Self::new) makes its name, since none has an `@`.
    #[must_use]
    pub(crate) fn within(self, space: &str) -> Self {
        Self { dataset: format!("{}@{}", space.replace(':', "@"), self.dataset), ..self }
    }

    /// The space that it is in; none for the common one.
    pub(crate) fn space(&self) -> Option<&str> {
        space_of(&self.dataset)
    }

    /// The dataset's name.
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// The write's own id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// The name of the space for names in no other one.
pub(crate) const COMMON: &str = "common";

/// The space that is part of the name of `dataset`; none for the common one.
fn space_of(dataset: &str) -> Option<&str> {
    dataset.rsplit_once('@').map(|(space, _)| space)
}

/// Treatment of an existing dataset by a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It is an error.
    Create,
    /// The new rows take the place of all old ones.
    Replace,
    /// The new rows come after the old ones; the columns must be the same.
    Append,
}

/// One staged attempt, for its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Token {
    /// The task: which part of the write.
    pub task: u32,
    /// Number of the attempt at the task, as counted by its writer.
    pub attempt: u32,
    /// Number of the staging of that attempt: a call that was repeated because its answer was lost has another one.
    pub number: u64,
}

/// The result of [`Staging::stage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// To be given to the commit.
    pub token: Token,
    /// Rows.
    pub rows: u64,
    /// Bytes, as stored.
    pub bytes: u64,
}

/// The result of [`Staging::commit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Rows of this write.
    pub rows: u64,
    /// Bytes of this write, as stored.
    pub bytes: u64,
    /// Files of this write.
    pub files: u64,
}

/// The columns, for comparing: name, type, nullability and extension types of each.
fn columns(schema: &arrow::datatypes::Schema) -> Vec<String> {
    let column = |field: &std::sync::Arc<arrow::datatypes::Field>| {
        let nullable = if field.is_nullable() { "?" } else { "" };
        format!("{} {}{nullable}{}", field.name(), field.data_type(), extension::extensions(field))
    };
    schema.fields().iter().map(column).collect()
}

/// The record of a version of a dataset, beside its files.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    /// Commits that made it and those before it, the newest last.
    commits: Vec<(String, Committed)>,
    columns: Vec<String>,
    /// Whether the columns have their extension types: records of earlier releases have not.
    #[serde(default)]
    knows_extensions: bool,
    /// Counts commits, so that later files sort after earlier ones.
    version: u64,
}

/// Commits that a dataset remembers, to recognise them.
const REMEMBERED: usize = 1000;

impl Record {
    /// Returns true if its columns are `columns`, as far as it knows them.
    fn has(&self, columns: &[String]) -> bool {
        let is = |(known, column): (&String, &String)| match column.strip_prefix(known.as_str()) {
            Some(rest) => rest.is_empty() || !self.knows_extensions && extension::are(rest),
            None => false,
        };
        self.columns.len() == columns.len() && self.columns.iter().zip(columns).all(is)
    }

    /// The answer to commit `id`, if it was made.
    fn answer(&self, id: &str) -> Option<Committed> {
        self.commits.iter().rev().find(|(known, _)| known == id).map(|(_, committed)| *committed)
    }

    /// The record after the commit `once` to `dataset`, and whether old files stay.
    ///
    /// # Errors
    /// [`Error::Config`] if it must not exist; [`Error::Mismatch`] if rows of other columns are to be appended.
    fn after(
        old: Option<&Self>,
        (dataset, once): (&str, &str),
        mode: Mode,
        columns: &[String],
        committed: Committed,
    ) -> Result<(Self, bool)> {
        let (keep, mut record) = match (old, mode) {
            (Some(_), Mode::Create) => {
                let problem = format!("dataset {dataset:?} exists; commit with replace or append to change it");
                return Err(Error::config("mode", problem));
            }
            (Some(old), Mode::Append) if !old.has(columns) => {
                return Err(Error::Mismatch {
                    what: format!("columns of dataset {dataset:?} and of what is appended"),
                    expected: old.columns.join(", "),
                    found: columns.join(", "),
                    hint: "commit with replace, or write the same columns".to_owned(),
                });
            }
            (Some(old), mode) => (mode == Mode::Append, old.clone()),
            (None, _) => (false, Self::default()),
        };
        record.version += 1;
        record.columns = columns.to_vec();
        record.knows_extensions = true;
        record.commits.push((once.to_owned(), committed));
        let forgotten = record.commits.len().saturating_sub(REMEMBERED);
        record.commits.drain(..forgotten);
        Ok((record, keep))
    }
}

/// Columns that all pieces have.
///
/// # Errors
/// [`Error::Mismatch`] if two differ.
fn same_columns<'a>(write: &WriteId, mut all: impl Iterator<Item = &'a [String]>) -> Result<&'a [String]> {
    let first = all.next().unwrap_or_default();
    match all.find(|other| *other != first) {
        None => Ok(first),
        Some(other) => Err(Error::Mismatch {
            what: format!("columns of two tasks of write {:?}", write.id),
            expected: first.join(", "),
            found: other.join(", "),
            hint: "all tasks of a write have the same columns".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_directory() {
        for name in ["a", "train-2026.v1", "0", &"x".repeat(128)] {
            assert!(WriteId::new(name, name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".hidden", "_x", "-x", "a/b", "a\\b", "a b", "ä", "a\0", "a=b", &"x".repeat(129)] {
            assert!(WriteId::new(name, "w").is_err() && WriteId::new("d", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn modes_and_columns_are_judged() {
        let write = ("d", "w1");
        let committed = Committed { rows: 1, bytes: 2, files: 3 };
        let columns = ["id Int64".to_owned()];
        let (first, keep) = Record::after(None, write, Mode::Append, &columns, committed).unwrap();
        assert_eq!((first.version, keep, first.answer("w1")), (1, false, Some(committed)));
        assert!(Record::after(Some(&first), write, Mode::Create, &columns, committed).is_err());
        assert!(Record::after(Some(&first), write, Mode::Append, &["id Utf8".to_owned()], committed).is_err());
        let (second, keep) = Record::after(Some(&first), write, Mode::Append, &columns, committed).unwrap();
        assert_eq!((second.version, keep), (2, true));
        let (third, keep) = Record::after(Some(&second), write, Mode::Replace, &[], committed).unwrap();
        assert_eq!((third.version, keep, third.commits.len()), (3, false, 3));
    }
}
