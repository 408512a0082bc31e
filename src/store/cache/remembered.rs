//! Records of saves as they were read, for as long as their files are the same: each save and each upload looks at all of them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, Weak};

use super::super::look::Look;
use super::super::pinned::NOBODY;
use super::block::ObjectKey;
use super::record::Record;
use crate::mutex::{Mutex, MutexGuard};
use crate::per_process::PerProcess;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<ObjectKey, (Look, Record)>>);

/// Those of directories, by device and inode.
type Known = HashMap<(u64, u64), Weak<Remembered>>;

/// Those of all directories that this process has open.
static OPEN: PerProcess<Mutex<Known>> = PerProcess::new();

impl Remembered {
    /// Those of the directory that is `directory`, which all who have it open share: each file that is saved opens it anew.
    pub(super) fn of(directory: (u64, u64)) -> Arc<Self> {
        if directory == NOBODY {
            return Arc::default();
        }
        let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = open.get(&directory).and_then(Weak::upgrade) {
            return known;
        }
        open.retain(|_, known| known.strong_count() > 0);
        let new = Arc::default();
        open.insert(directory, Arc::downgrade(&new));
        new
    }

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
