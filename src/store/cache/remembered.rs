//! Records of saves as they were read, for as long as their files are the same: each save and each upload looks at all of them.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use super::super::pinned::{NOBODY, identity};
use super::block::ObjectKey;
use super::record::Record;
use crate::mutex::{Mutex, MutexGuard};

/// A file that was written less than this before it was read may be another one that looks the same: clocks of file systems tick, and numbers
/// of files are used again.
const SETTLED: Duration = Duration::from_secs(1);

/// What a file looks like from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    identity: (u64, u64),
    size: u64,
    modified: SystemTime,
}

impl Look {
    /// None where the system does not tell files apart.
    fn of(found: &Metadata) -> Option<Self> {
        let identity = identity(found);
        let modified = found.modified().ok().filter(|_| identity != NOBODY)?;
        Some(Self { identity, size: found.len(), modified })
    }

    /// Returns true if no other file can look like this from now on.
    fn is_settled(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|age| age >= SETTLED)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<ObjectKey, (Look, Record)>>);

impl Remembered {
    /// The record of `name` in the file at `path`: as it was read, if that is the same file, else by `read`.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn record(
        &self,
        name: ObjectKey,
        path: &Path,
        read: impl FnOnce() -> io::Result<Option<Record>>,
    ) -> io::Result<Option<Record>> {
        // Before it is read: one that is written meanwhile looks otherwise.
        let look = fs::symlink_metadata(path).ok().and_then(|found| Look::of(&found));
        if let Some(look) = &look
            && let Some((seen, record)) = self.all().get(&name)
            && seen == look
        {
            return Ok(Some(record.clone()));
        }
        let record = read()?;
        if let (Some(look), Some(record)) = (look.filter(Look::is_settled), &record) {
            self.all().insert(name, (look, record.clone()));
        }
        Ok(record)
    }

    /// Forgets all but those of `names`.
    pub(super) fn keep(&self, names: &HashSet<ObjectKey>) {
        self.all().retain(|name, _| names.contains(name));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<ObjectKey, (Look, Record)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
