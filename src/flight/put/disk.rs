//! The disk use of a directory's datasets: that of each space, checked against its quota.
//!
//! It counts the bytes of files, each once however many versions of a dataset link to it: of attempts that are staged or under way, and of
//! the kept versions. They are measured when the directory is opened and after each commit, so that the count survives a restart.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{COMMON, space_of};
use crate::error::{Error, Result};
use crate::store::directory::failed;

/// Bytes on the disk that written datasets may take, by space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskQuotas {
    /// Quota of each space that is not named; `None` for no limit.
    pub default: Option<u64>,
    /// Quotas of spaces by name; `common` is that of names in no other one.
    pub spaces: BTreeMap<String, u64>,
}

impl DiskQuotas {
    fn of(&self, space: Option<&str>) -> Option<u64> {
        // By their names in the names of datasets.
        let named = |name: &str| name.replace(':', "@") == space.unwrap_or(COMMON);
        self.spaces.iter().find(|(name, _)| named(name)).map(|(_, bytes)| *bytes).or(self.default)
    }
}

/// The files on the disk.
#[derive(Debug)]
pub(super) struct Disk {
    quotas: DiskQuotas,
    spaces: Mutex<HashMap<Option<String>, Usage>>,
}

/// The files of one space.
#[derive(Debug, Default)]
struct Usage {
    /// Bytes of versions, by dataset.
    datasets: HashMap<String, u64>,
    /// Bytes of attempts.
    staged: u64,
}

impl Usage {
    fn bytes(&self) -> u64 {
        self.datasets.values().fold(self.staged, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl Disk {
    pub(super) fn new(quotas: DiskQuotas) -> Arc<Self> {
        Arc::new(Self { quotas, spaces: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<String>, Usage>> {
        // Numbers are whole between any two statements.
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, space: Option<&str>, change: impl FnOnce(&mut Usage) -> T) -> T {
        let (mut spaces, space) = (self.lock(), space.map(str::to_owned));
        let usage = spaces.entry(space.clone()).or_default();
        let changed = change(usage);
        if usage.datasets.is_empty() && usage.staged == 0 {
            spaces.remove(&space);
        }
        changed
    }

    /// An attempt of `space` that has written nothing yet.
    pub(super) fn claim(self: &Arc<Self>, space: Option<&str>) -> DiskClaim {
        DiskClaim { disk: Arc::clone(self), space: space.map(str::to_owned), bytes: 0 }
    }

    /// Measures the versions of `dataset`, which lie in the directory `versions`. The attempts, some of whose files are theirs now, are no
    /// longer charged.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) fn measure<'a>(
        &self,
        dataset: &str,
        versions: &Path,
        attempts: impl Iterator<Item = &'a Mutex<DiskClaim>>,
    ) -> Result<()> {
        let bytes = measured(versions)?;
        let of = |attempt: &Mutex<DiskClaim>| {
            std::mem::take(&mut attempt.lock().unwrap_or_else(PoisonError::into_inner).bytes)
        };
        let staged: u64 = attempts.map(of).sum();
        self.change(space_of(dataset), |usage| {
            usage.staged = usage.staged.saturating_sub(staged);
            if bytes == 0 {
                usage.datasets.remove(dataset);
            } else {
                usage.datasets.insert(dataset.to_owned(), bytes);
            }
        });
        Ok(())
    }
}

/// The disk space of an attempt, returned on drop.
#[derive(Debug)]
pub(super) struct DiskClaim {
    disk: Arc<Disk>,
    space: Option<String>,
    bytes: u64,
}

impl DiskClaim {
    /// Changes its size to `bytes`. On an error, nothing has changed.
    ///
    /// # Errors
    /// [`Error::Limit`] if the space would have more than its quota.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<()> {
        let (space, before) = (self.space.as_deref(), self.bytes);
        let quota = self.disk.quotas.of(space);
        self.disk.change(space, |usage| {
            let asked = usage.bytes().saturating_sub(before).saturating_add(bytes);
            if let Some(quota) = quota.filter(|quota| bytes > before && asked > *quota) {
                let space = space.unwrap_or(COMMON).replace('@', ":");
                let what = format!("all that is written in space {space}, with this attempt,");
                return Err(Error::limit(what, asked, quota, "written_bytes"));
            }
            usage.staged = usage.staged.saturating_sub(before).saturating_add(bytes);
            Ok(())
        })?;
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for DiskClaim {
    fn drop(&mut self) {
        // Less is never refused.
        let _ = self.resize(0);
    }
}

/// Bytes of the files in the directories of `versions`, each once; 0 if it is not there.
fn measured(versions: &Path) -> Result<u64> {
    let (mut seen, mut bytes) = (HashSet::new(), 0_u64);
    let list = |directory: &Path| match fs::read_dir(directory) {
        Ok(entries) => entries.collect::<std::io::Result<Vec<_>>>().map_err(|error| failed("list", directory, error)),
        // Versions come and go meanwhile: commits to other datasets do not wait for this one.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed("list", directory, error)),
    };
    for version in list(versions)?.into_iter().filter(|version| version.file_type().is_ok_and(|kind| kind.is_dir())) {
        for file in list(&version.path())? {
            let Ok(about) = file.metadata() else { continue };
            #[cfg(unix)]
            let new = seen.insert(std::os::unix::fs::MetadataExt::ino(&about));
            #[cfg(not(unix))]
            let new = seen.insert(file.file_name());
            if new {
                bytes = bytes.saturating_add(about.len());
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(error: Error) -> (u64, u64, String) {
        match error {
            Error::Limit { what, asked, limit, option: "written_bytes", .. } => (asked, limit, what),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn each_space_has_its_quota() {
        let spaces = [("common".to_owned(), 50), ("certificate:bert.example".to_owned(), 200)].into();
        let disk = Disk::new(DiskQuotas { default: Some(100), spaces });
        let (mut first, mut second) = (disk.claim(Some("anna")), disk.claim(Some("anna")));
        first.resize(60).unwrap();
        let (asked_bytes, limit, what) = asked(second.resize(41).unwrap_err());
        assert_eq!((asked_bytes, limit), (101, 100));
        assert!(what.contains("anna"), "{what}");
        second.resize(40).unwrap();
        disk.claim(Some("carl")).resize(100).unwrap();
        disk.claim(Some("certificate@bert.example")).resize(200).unwrap();
        assert_eq!(asked(disk.claim(None).resize(51).unwrap_err()).1, 50);
        first.resize(10).unwrap();
        second.resize(90).unwrap();
        drop((first, second));
        assert!(disk.lock().is_empty(), "{disk:?}");
        Disk::new(DiskQuotas::default()).claim(None).resize(u64::MAX).unwrap();
    }

    #[test]
    fn files_count_once_for_all_versions() {
        let (root, disk) =
            (tempfile::tempdir().unwrap(), Disk::new(DiskQuotas { default: Some(100), ..DiskQuotas::default() }));
        let versions = root.path().join("anna@d");
        fs::create_dir_all(versions.join("1")).unwrap();
        fs::create_dir(versions.join("2")).unwrap();
        fs::write(versions.join("1").join("a"), [0; 30]).unwrap();
        fs::hard_link(versions.join("1").join("a"), versions.join("2").join("a")).unwrap();
        fs::write(versions.join("2").join("b"), [0; 40]).unwrap();
        let attempt = Mutex::new(disk.claim(Some("anna")));
        attempt.lock().unwrap().resize(40).unwrap();
        disk.measure("anna@d", &versions, [&attempt].into_iter()).unwrap();
        let mut next = disk.claim(Some("anna"));
        assert_eq!(asked(next.resize(31).unwrap_err()).0, 101, "the attempt's file is the version's now");
        drop(attempt);
        next.resize(30).unwrap();
        fs::remove_dir_all(&versions).unwrap();
        disk.measure("anna@d", &versions, std::iter::empty()).unwrap();
        next.resize(100).unwrap();
    }
}
