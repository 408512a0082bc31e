//! The mounts of a file for one who asks again and again: read where the file has changed, and kept while it is none, as when somebody writes it.

use std::sync::{Arc, Mutex, PoisonError};

use super::super::look::Look;
use super::source::MountSource;
use super::table::Mounts;
use crate::error::Result;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::store) struct KeptMounts(Mutex<Option<Kept>>);

#[derive(Debug)]
struct Kept {
    path: String,
    mounts: Arc<Mounts>,
    /// The file that they were read from; none if it may have changed since.
    look: Option<Look>,
    /// True once it was said that the file cannot be read.
    is_told: bool,
}

impl KeptMounts {
    /// Those of `source`, or else of the environment. A file that can no longer be read, or is wrong, has those that it had; the log says so
    /// once.
    ///
    /// # Errors
    /// As [`Mounts::of`], for a file that was never right.
    pub(in crate::store) fn of(&self, source: Option<&MountSource>) -> Result<Arc<Mounts>> {
        let path = match source {
            Some(MountSource::Given(mounts)) => return Ok(Arc::clone(mounts)),
            Some(MountSource::File(path)) => path.clone(),
            None => Mounts::file_of_environment()?,
        };
        let look = std::fs::metadata(&path).ok().and_then(|found| Look::of(&found));
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = known.as_ref().filter(|kept| kept.path == path)
            && look.is_some()
            && kept.look == look
        {
            return Ok(Arc::clone(&kept.mounts));
        }
        match Mounts::read(&path) {
            Ok(mounts) => {
                let mounts = Arc::new(mounts);
                let look = look.filter(Look::is_settled);
                *known = Some(Kept { path, mounts: Arc::clone(&mounts), look, is_told: false });
                Ok(mounts)
            }
            Err(error) => {
                let Some(kept) = known.as_mut().filter(|kept| kept.path == path) else { return Err(error) };
                if !std::mem::replace(&mut kept.is_told, true) {
                    tracing::warn!("{}; the mounts that it had stay until it is right", error.chain());
                }
                // Once it is right it counts, whatever its time is.
                kept.look = None;
                Ok(Arc::clone(&kept.mounts))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::super::look::SETTLED;
    use super::*;

    fn names(mounts: &Mounts) -> Vec<&str> {
        mounts.iter().map(super::super::mount::Mount::name).collect()
    }

    #[test]
    fn a_file_that_is_being_written_has_the_mounts_that_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mounts.toml");
        let source = MountSource::from(path.to_str().unwrap().to_owned());
        let kept = KeptMounts::default();
        assert!(kept.of(Some(&source)).is_err(), "it was never there");
        let text = |name: &str| format!("[mounts.{name}]\nurl = \"/x\"");
        std::fs::write(&path, text("a")).unwrap();
        for half in ["", "[mounts.b]", "[mounts"] {
            assert_eq!(names(&kept.of(Some(&source)).unwrap()), ["a"]);
            std::fs::write(&path, half).unwrap();
            assert_eq!(names(&kept.of(Some(&source)).unwrap()), ["a"]);
            std::fs::remove_file(&path).unwrap();
            assert_eq!(names(&kept.of(Some(&source)).unwrap()), ["a"]);
            std::fs::write(&path, text("a")).unwrap();
        }
        std::fs::write(&path, text("b")).unwrap();
        assert_eq!(names(&kept.of(Some(&source)).unwrap()), ["b"]);
        let elsewhere = MountSource::from(folder.path().join("other.toml").to_str().unwrap().to_owned());
        assert!(kept.of(Some(&elsewhere)).is_err());
    }

    #[test]
    fn a_file_that_has_not_changed_is_not_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[mounts.a]\nurl = \"/x\"").unwrap();
        file.as_file().set_modified(SystemTime::now() - 2 * SETTLED).unwrap();
        let source = MountSource::from(file.path().to_str().unwrap().to_owned());
        let kept = KeptMounts::default();
        let first = kept.of(Some(&source)).unwrap();
        assert!(Arc::ptr_eq(&first, &kept.of(Some(&source)).unwrap()));
        std::fs::write(file.path(), "[mounts.b]\nurl = \"/x\"").unwrap();
        assert_eq!(names(&kept.of(Some(&source)).unwrap()), ["b"]);
    }
}
