//! Files that are kept open with the locations of their blocks, so that ranges need no call to a name node.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdfs_native::file::FileReader;
use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::runtime::Id;
use tokio::time::Instant;

/// Most files that are kept open; each takes some kilobytes for its blocks, and no connection.
const MOST: usize = 1024;

/// Time after which the version of a file is checked at a name node again.
const CHECKED: Duration = Duration::from_secs(10);

/// One version of one file.
pub(super) struct Opened {
    pub(super) reader: FileReader,
    pub(super) meta: ObjectMeta,
    runtime: Id,
    checked: Mutex<Instant>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Opened {
    pub(super) fn new(reader: FileReader, meta: ObjectMeta, runtime: Id) -> Self {
        Self { reader, meta, runtime, checked: Mutex::new(Instant::now()) }
    }

    /// Returns true if it can be read on `runtime`: its connections belong to the runtime that opened it.
    pub(super) fn is_of(&self, runtime: Id) -> bool {
        self.runtime == runtime
    }

    /// Returns true if a name node confirmed this version recently.
    pub(super) fn is_fresh(&self) -> bool {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < CHECKED
    }

    /// Records that a name node confirmed this version now.
    pub(super) fn is_checked(&self) {
        *self.checked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A file that may be open. The opening task holds the lock, so all others get the same file.
pub(super) type Slot = Arc<tokio::sync::Mutex<Option<Arc<Opened>>>>;

/// See the module. A new file replaces the least recently used one.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    slots: HashMap<Path, (Slot, u64)>,
    uses: u64,
}

impl Readers {
    /// Returns the slot of the file at `path`.
    pub(super) fn slot(&self, path: &Path) -> Slot {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let uses = kept.uses;
        if let Some((slot, used)) = kept.slots.get_mut(path) {
            *used = uses;
            return Arc::clone(slot);
        }
        if kept.slots.len() >= MOST {
            let oldest = kept.slots.iter().min_by_key(|(_, (_, used))| *used).map(|(path, _)| path.clone());
            oldest.and_then(|path| kept.slots.remove(&path));
        }
        let slot = Slot::default();
        kept.slots.insert(path.clone(), (Arc::clone(&slot), uses));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_kept_as_fit_and_those_in_use_stay() {
        let readers = Readers::default();
        let first = readers.slot(&Path::from("0"));
        for number in 1..3 * MOST {
            readers.slot(&Path::from(number.to_string()));
            assert!(Arc::ptr_eq(&first, &readers.slot(&Path::from("0"))));
        }
        assert_eq!(readers.0.lock().unwrap().slots.len(), MOST);
    }
}
