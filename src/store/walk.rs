//! What is below a directory of this machine, with one look at each file.
//!
//! `object_store` asks the system four times for each and takes every path apart as an address: of a hundred thousand files that was half
//! the time of opening them from an index. What is found is the same, to the entity tag, which reads are held against.

use std::fs::{DirEntry, Metadata, ReadDir};
use std::io::{Error as IoError, ErrorKind};
use std::path::{Path as FsPath, PathBuf};
use std::time::UNIX_EPOCH;

use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::directory::failed;
use crate::error::{Error, Result};

/// Files that are handed over at once.
const AT_ONCE: usize = 1024;
/// Such hand-overs that wait to be taken.
const WAITING: usize = 16;

/// The files at any depth below a directory: some at a time, in no order. Links are followed; what leads nowhere, or goes meanwhile, is left
/// out.
#[derive(Debug)]
pub(super) struct Walk {
    files: mpsc::Receiver<Vec<ObjectMeta>>,
    task: Option<JoinHandle<Result<()>>>,
}

impl Walk {
    /// Begins below `base`, a path from the root of this machine's files. Must be called on a tokio runtime.
    pub(super) fn below(base: &Path) -> Self {
        let (sender, files) = mpsc::channel(WAITING);
        let root = PathBuf::from(format!("/{base}"));
        let task = tokio::task::spawn_blocking(move || {
            let mut some = Vec::with_capacity(AT_ONCE);
            each(root, &mut |file| {
                some.push(file);
                // Where nobody listens any more nothing more is looked for.
                some.len() < AT_ONCE || sender.blocking_send(std::mem::take(&mut some)).is_ok()
            })?;
            drop(sender.blocking_send(some));
            Ok(())
        });
        Self { files, task: Some(task) }
    }

    /// The next files; none after the last.
    ///
    /// # Errors
    /// [`Error::Store`] for what cannot be listed.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<ObjectMeta>>> {
        if let Some(some) = self.files.recv().await {
            return Ok(Some(some));
        }
        match self.task.take() {
            Some(task) => {
                let closed = |error| Err(Error::Closed { why: format!("a directory was not listed: {error}") });
                task.await.unwrap_or_else(closed).map(|()| None)
            }
            None => Ok(None),
        }
    }
}

/// A directory that is being read, and what it is, whatever it is called.
struct Level {
    entries: ReadDir,
    path: PathBuf,
    id: (u64, u64),
}

/// Calls `visit` with each file below `root` for as long as it says so.
fn each(root: PathBuf, visit: &mut dyn FnMut(ObjectMeta) -> bool) -> Result<()> {
    let mut levels = Vec::new();
    enter(&mut levels, root)?;
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next() else {
            levels.pop();
            continue;
        };
        let entry = entry.map_err(|error| failed("list", &level.path, error))?;
        match look(&entry) {
            Ok(Look::Directory) => enter(&mut levels, entry.path())?,
            Ok(Look::File(meta)) => {
                let file = object(&entry.path(), &meta)?;
                if file.is_some_and(|file| !visit(file)) {
                    return Ok(());
                }
            }
            Ok(Look::Other) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look up", &entry.path(), error)),
        }
    }
    Ok(())
}

enum Look {
    Directory,
    File(Metadata),
    /// A pipe, a socket, a link that leads nowhere.
    Other,
}

fn look(entry: &DirEntry) -> Result<Look, IoError> {
    let kind = entry.file_type()?;
    if kind.is_dir() {
        return Ok(Look::Directory);
    }
    // A link's own length is nobody's.
    let meta = if kind.is_symlink() {
        let Ok(meta) = std::fs::metadata(entry.path()) else { return Ok(Look::Other) };
        meta
    } else {
        entry.metadata()?
    };
    Ok(match meta.file_type() {
        kind if kind.is_dir() => Look::Directory,
        kind if kind.is_file() => Look::File(meta),
        _ => Look::Other,
    })
}

/// Goes into the directory at `path`; nothing if it is gone.
fn enter(levels: &mut Vec<Level>, path: PathBuf) -> Result<()> {
    let opened = std::fs::metadata(&path).and_then(|meta| Ok((std::fs::read_dir(&path)?, identity(&meta))));
    let (entries, id) = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("list", &path, error)),
    };
    if let Some(above) = levels.iter().find(|level| level.id == id && id != NOBODY) {
        let problem = format!("it is a link to {}, which it lies in", above.path.display());
        return Err(failed("list", &path, problem));
    }
    levels.push(Level { entries, path, id });
    Ok(())
}

/// The file at `path` as `object_store` tells of it; none for what one of its writers has not finished.
fn object(path: &FsPath, meta: &Metadata) -> Result<Option<ObjectMeta>> {
    let name = path.to_str().ok_or_else(|| failed("list", path, "its name is not UTF-8"))?;
    let location = Path::parse(name).map_err(|error| failed("list", path, error))?;
    let staged = location.filename().and_then(|name| name.split_once('#')).map(|(_, number)| number);
    if staged.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())) {
        return Ok(None);
    }
    let modified = meta.modified().map_err(|error| failed("look up", path, error))?;
    let micros = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let (size, (_, inode)) = (meta.len(), identity(meta));
    let e_tag = Some(format!("\"{inode:x}-{micros:x}-{size:x}\""));
    Ok(Some(ObjectMeta { location, last_modified: modified.into(), size, e_tag, version: None }))
}

/// The identity of files where the system tells none.
pub(crate) const NOBODY: (u64, u64) = (0, 0);

/// Device and inode.
#[cfg(unix)]
pub(crate) fn identity(meta: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

#[cfg(not(unix))]
pub(crate) fn identity(_: &Metadata) -> (u64, u64) {
    NOBODY
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use futures::TryStreamExt;
    use object_store::ObjectStore;
    use object_store::local::LocalFileSystem;

    use super::*;

    async fn found(root: &FsPath) -> Result<Vec<ObjectMeta>> {
        let mut found = Vec::new();
        let mut walk = Walk::below(&Path::from_absolute_path(root).unwrap());
        while let Some(some) = walk.next().await? {
            found.extend(some);
        }
        found.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(found)
    }

    #[tokio::test]
    async fn what_is_found_is_what_the_store_lists() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b c/k=1%2F2")).unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        for (at, name) in ["x", "a/y.parquet", "a/b c/é*?#z", "a/b c/k=1%2F2/_q", "a/staged#12", "a/#", "a/#7", "a/#7x"]
            .into_iter()
            .enumerate()
        {
            fs::write(root.join(name), vec![7; at]).unwrap();
        }
        symlink(root.join("a/y.parquet"), root.join("link")).unwrap();
        symlink(root.join("a/b c"), root.join("linked")).unwrap();
        symlink(root.join("nowhere"), root.join("broken")).unwrap();
        for number in 0..2 * AT_ONCE {
            fs::write(root.join(format!("empty/{number}")), b"").unwrap();
        }
        let found = found(&root).await.unwrap();
        let base = Path::from_absolute_path(&root).unwrap();
        let mut listed: Vec<ObjectMeta> = LocalFileSystem::new().list(Some(&base)).try_collect().await.unwrap();
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        assert_eq!(found, listed);
        assert_eq!(found.len(), 2 * AT_ONCE + 9);
        assert!(super::tests::found(&root.join("nowhere")).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_link_to_where_it_lies_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("a")).unwrap();
        symlink(&root, root.join("a/again")).unwrap();
        let error = found(&root).await.unwrap_err();
        assert!(matches!(error, Error::Store { .. }) && error.chain().contains("a/again"), "{}", error.chain());
    }

    #[tokio::test]
    async fn who_stops_listening_ends_the_walk() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..AT_ONCE {
            fs::write(folder.path().join(number.to_string()), b"").unwrap();
        }
        let mut seen = 0;
        each(folder.path().to_owned(), &mut |_| {
            seen += 1;
            seen < 10
        })
        .unwrap();
        assert_eq!(seen, 10);
    }
}
