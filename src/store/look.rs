//! What a file of this machine looks like from outside: whoever has read it need not read it again while it looks the same.

use std::fs::Metadata;
use std::time::{Duration, SystemTime};

use super::pinned::{NOBODY, identity};

/// A file that was written less than this ago may be written again, or replaced, and look the same: clocks of file systems tick, and numbers
/// of files are used again.
pub(super) const SETTLED: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Look {
    /// Device and inode.
    identity: (u64, u64),
    size: u64,
    modified: SystemTime,
}

impl Look {
    /// None where the system does not tell files apart, or has no time.
    pub(super) fn of(found: &Metadata) -> Option<Self> {
        let identity = identity(found);
        let modified = found.modified().ok().filter(|_| identity != NOBODY)?;
        Some(Self { identity, size: found.len(), modified })
    }

    /// Returns true if no other file, and no other content, looks like this from now on.
    pub(super) fn is_settled(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|age| age >= SETTLED)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_looks_the_same_until_it_is_written_or_replaced_and_is_settled_once_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        let old = SystemTime::now() - 2 * SETTLED;
        let write = |path: &std::path::Path, text: &str| {
            fs::write(path, text).unwrap();
            fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        };
        let look = || Look::of(&fs::metadata(&path).unwrap()).unwrap();
        write(&path, "1");
        let first = look();
        assert!(first.is_settled() && first == look());
        write(&path, "12");
        assert_ne!(first, look(), "longer");
        write(&other, "1");
        fs::rename(&other, &path).unwrap();
        assert_ne!(first, look(), "another file of its size and time");
        fs::write(&path, "1").unwrap();
        assert!(first != look() && !look().is_settled());
    }
}
