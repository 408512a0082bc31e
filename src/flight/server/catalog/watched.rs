//! Values from files that may change while the server runs: read again when the files change, and kept if the new files are wrong.
//!
//! Files are checked when their value is requested, at most once a second. A wrong version is refused as a whole with a warning, so
//! that a typing error does not lock out a running job.

use std::fmt;
use std::fs::Metadata;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use crate::error::Result;

/// Least time between two checks of the files.
const LOOK: Duration = Duration::from_secs(1);

/// State of a file: another modification time, length or inode means other content.
type Look = Option<(Option<SystemTime>, u64, u64)>;

/// Makes a value from the files, given the former one.
type Read<T> = dyn Fn(&[PathBuf], Option<&T>) -> Result<T> + Send;

struct Files<T> {
    /// Kind of the files, for the log.
    what: &'static str,
    paths: Vec<PathBuf>,
    read: Box<Read<T>>,
    seen: Vec<Look>,
    looked: Instant,
}

/// A value that may come from files. Clones share it.
pub(crate) struct Watched<T> {
    value: Arc<RwLock<Arc<T>>>,
    files: Option<Arc<Mutex<Files<T>>>>,
}

impl<T> Clone for Watched<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), files: self.files.clone() }
    }
}

impl<T> fmt::Debug for Watched<T> {
    /// Omits the value, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("files", &self.files.is_some()).finish_non_exhaustive()
    }
}

impl<T> Watched<T> {
    /// Makes a value that never changes.
    pub(crate) fn fixed(value: T) -> Self {
        Self { value: Arc::new(RwLock::new(Arc::new(value))), files: None }
    }

    /// Reads a value from `paths`, now and whenever one of them changes; `what` names the files in the log.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn files(
        what: &'static str,
        paths: Vec<PathBuf>,
        read: impl Fn(&[PathBuf], Option<&T>) -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        // Checked before reading: a change in between causes another read.
        let seen = look(&paths);
        let value = read(&paths, None)?;
        let files = Files { what, paths, read: Box::new(read), seen, looked: Instant::now() };
        Ok(Self { value: Arc::new(RwLock::new(Arc::new(value))), files: Some(Arc::new(Mutex::new(files))) })
    }

    /// Returns the value, at most a second old.
    pub(crate) fn get(&self) -> Arc<T> {
        self.refresh(Instant::now());
        Arc::clone(&self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again if they changed and were not checked within the last second.
    pub(crate) fn refresh(&self, now: Instant) {
        let Some(files) = &self.files else { return };
        // If it is locked, another call is reading right now; the known value is returned.
        let Ok(mut files) = files.try_lock() else { return };
        if now.saturating_duration_since(files.looked) < LOOK {
            return;
        }
        files.looked = now;
        let seen = look(&files.paths);
        if seen != files.seen {
            files.seen = seen;
            self.read(&files);
        }
    }

    /// Reads the files now, changed or not.
    pub(crate) fn reload(&self) {
        let Some(files) = &self.files else { return };
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        (files.looked, files.seen) = (Instant::now(), look(&files.paths));
        self.read(&files);
    }

    fn read(&self, files: &Files<T>) {
        let former = Arc::clone(&self.value.read().unwrap_or_else(PoisonError::into_inner));
        match (files.read)(&files.paths, Some(&former)) {
            Ok(value) => {
                tracing::info!(what = files.what, "files were read again");
                *self.value.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
            }
            Err(error) => {
                tracing::warn!(what = files.what, error = %error.chain(), "files changed and are wrong; what was there before stays");
            }
        }
    }
}

fn look(paths: &[PathBuf]) -> Vec<Look> {
    let of = |metadata: Metadata| {
        #[cfg(unix)]
        let file = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let file = 0;
        (metadata.modified().ok(), metadata.len(), file)
    };
    paths.iter().map(|path| std::fs::metadata(path).ok().map(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_changed_file_is_read_again_and_a_wrong_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let read = |paths: &[PathBuf], former: Option<&(u64, u64)>| {
            let text = std::fs::read_to_string(&paths[0]).unwrap_or_default();
            let number = text.parse().map_err(|_| Error::config("number", text))?;
            Ok((number, former.map_or(0, |former| former.0)))
        };
        let watched = Watched::files("numbers", vec![path.clone()], read).unwrap();
        let start = Instant::now();
        let mut later = 0;
        let mut at = |text: Option<&str>| {
            match text {
                // Another file under the same name, as systems that mount secrets replace it.
                Some(text) => {
                    let other = directory.path().join("other");
                    std::fs::write(&other, text).unwrap();
                    std::fs::rename(&other, &path).unwrap();
                }
                None => std::fs::remove_file(&path).unwrap(),
            }
            watched.refresh(start);
            let soon = *watched.get();
            later += 2;
            watched.refresh(start + Duration::from_secs(later));
            (soon, *watched.get())
        };
        assert_eq!(at(Some("2")), ((1, 0), (2, 1)), "not within a second, then with the one before");
        assert_eq!(at(Some("two")).1, (2, 1));
        assert_eq!(at(None).1, (2, 1));
        assert_eq!(at(Some("3")).1, (3, 2));
        std::fs::write(&path, "4").unwrap();
        watched.reload();
        assert_eq!(*watched.get(), (4, 3), "at once");
        assert!(Watched::files("numbers", vec![directory.path().join("none")], read).is_err());
        assert_eq!(*Watched::fixed(7).get(), 7);
    }
}
