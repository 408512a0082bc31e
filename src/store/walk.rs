//! Files below a directory of this machine, with one look at each.
//!
//! `object_store` asks the system four times for each and takes every path apart as an address: of a hundred thousand files that was half
//! the time of opening them from an index. The result is the same, to the entity tag, which reads are held against.

use std::collections::HashMap;
use std::fs::{DirEntry, Metadata, ReadDir};
use std::io::{Error as IoError, ErrorKind};
use std::path::{Path as FsPath, PathBuf};
use std::time::UNIX_EPOCH;

use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::directory::failed;
use super::pinned::{NOBODY, identity};
use crate::error::{Error, Result};

/// Files that are handed over at once.
const AT_ONCE: usize = 1024;
/// Such hand-overs that wait to be taken.
const WAITING: usize = 16;

/// A file that a walk met.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) meta: ObjectMeta,
    /// Real path, if a link led to it or to a directory above it.
    real: Option<Path>,
}

/// The files at any depth below a directory: some at a time, in no order. Links are followed; links that lead nowhere and files that
/// disappear meanwhile are left out.
#[derive(Debug)]
pub(super) struct Walk {
    files: mpsc::Receiver<Vec<Met>>,
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
                // The walk ends when nobody listens any more.
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
    /// [`Error::Store`] if something cannot be listed.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Met>>> {
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

/// The files below a directory that links led to so far. A second way to one of them is an error: its rows would come twice.
#[derive(Debug)]
pub(super) struct Ways<'a> {
    base: &'a Path,
    /// Real paths, with the names by which they were found.
    linked: HashMap<Path, Path>,
}

impl<'a> Ways<'a> {
    /// None yet, below `base`.
    pub(super) fn new(base: &'a Path) -> Self {
        Self { base, linked: HashMap::new() }
    }

    /// Takes a file that was found; `accept` says which names below the directory are.
    ///
    /// # Errors
    /// [`Error::Config`] naming both ways to one that a link led to, if there is another.
    pub(super) fn take(&mut self, Met { meta, real }: &Met, accept: &impl Fn(&str) -> bool) -> Result<()> {
        let Some(real) = real else { return Ok(()) };
        let found = real.prefix_matches(self.base) && accept(below(self.base, real));
        let before = if found { Some(real.clone()) } else { self.linked.insert(real.clone(), meta.location.clone()) };
        match before {
            None => Ok(()),
            Some(before) => Err(Error::config(
                "urls",
                format!(
                    "/{} is found twice, through a link: it is /{before} too, and its rows would come twice; take the link away, or name \
                     the directories or files that are meant",
                    meta.location
                ),
            )),
        }
    }
}

/// A directory that is being read, identified independently of its name.
struct Level {
    entries: ReadDir,
    path: PathBuf,
    id: (u64, u64),
    /// A link led to it, or to a directory above it.
    linked: bool,
}

/// Calls `visit` with each file below `root` for as long as it says so.
fn each(root: PathBuf, visit: &mut dyn FnMut(Met) -> bool) -> Result<()> {
    let mut levels = Vec::new();
    enter(&mut levels, root, false)?;
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.next() else {
            levels.pop();
            continue;
        };
        let entry = entry.map_err(|error| failed("list", &level.path, error))?;
        let linked = level.linked;
        match look(&entry) {
            Ok((Look::Directory, link)) => enter(&mut levels, entry.path(), linked || link)?,
            Ok((Look::File(meta), link)) => {
                let Some(meta) = object(&entry.path(), &meta)? else { continue };
                let real = if linked || link {
                    match std::fs::canonicalize(entry.path()) {
                        Ok(real) => Some(location(&real)?),
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => return Err(failed("look up", &entry.path(), error)),
                    }
                } else {
                    None
                };
                if !visit(Met { meta, real }) {
                    return Ok(());
                }
            }
            Ok((Look::Other, _)) => {}
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

/// Kind of the entry, and whether it is a link that leads there.
fn look(entry: &DirEntry) -> Result<(Look, bool), IoError> {
    let kind = entry.file_type()?;
    if kind.is_dir() {
        return Ok((Look::Directory, false));
    }
    let link = kind.is_symlink();
    // A link's own length is nobody's.
    let meta = if link {
        let Ok(meta) = std::fs::metadata(entry.path()) else { return Ok((Look::Other, link)) };
        meta
    } else {
        entry.metadata()?
    };
    let found = match meta.file_type() {
        kind if kind.is_dir() => Look::Directory,
        kind if kind.is_file() => Look::File(meta),
        _ => Look::Other,
    };
    Ok((found, link))
}

/// Goes into the directory at `path`; nothing if it is gone.
fn enter(levels: &mut Vec<Level>, path: PathBuf, linked: bool) -> Result<()> {
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
    levels.push(Level { entries, path, id, linked });
    Ok(())
}

/// `path` relative to `base`, which it is below.
pub(super) fn below<'a>(base: &Path, path: &'a Path) -> &'a str {
    path.as_ref().strip_prefix(base.as_ref()).unwrap_or_default().trim_start_matches('/')
}

/// The path of the file at `path` in the store of this machine's files.
fn location(path: &FsPath) -> Result<Path> {
    let name = path.to_str().ok_or_else(|| failed("list", path, "its name is not UTF-8"))?;
    Path::parse(name).map_err(|error| failed("list", path, error))
}

/// The file at `path` as `object_store` describes it; none if one of its writers has not finished it.
fn object(path: &FsPath, meta: &Metadata) -> Result<Option<ObjectMeta>> {
    let location = location(path)?;
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
            found.extend(some.into_iter().map(|met| met.meta));
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

    #[test]
    fn a_second_way_to_a_file_through_a_link_is_an_error_that_names_both() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("data/2024-01-01")).unwrap();
        fs::create_dir(root.join("outside")).unwrap();
        fs::write(root.join("data/2024-01-01/a"), b"a").unwrap();
        fs::write(root.join("outside/b"), b"b").unwrap();
        let base = Path::from_absolute_path(root.join("data")).unwrap();
        let ways = || {
            let (mut ways, mut outcome) = (Ways::new(&base), Ok(()));
            each(root.join("data"), &mut |met| {
                outcome = ways.take(&met, &|name: &str| !name.starts_with('_'));
                outcome.is_ok()
            })
            .unwrap();
            outcome.map_err(|error| error.to_string())
        };
        // Two names that no link makes, and a link to something elsewhere, are intended.
        fs::hard_link(root.join("data/2024-01-01/a"), root.join("data/2024-01-01/again")).unwrap();
        fs::hard_link(root.join("outside/b"), root.join("outside/again")).unwrap();
        symlink(root.join("outside"), root.join("data/more")).unwrap();
        // So is one to what is hidden by its own name.
        fs::create_dir(root.join("data/_hidden")).unwrap();
        fs::write(root.join("data/_hidden/c"), b"c").unwrap();
        symlink(root.join("data/_hidden/c"), root.join("data/shown")).unwrap();
        ways().unwrap();
        for (target, link, names) in [
            ("data/2024-01-01", "data/latest", ["data/latest/", "data/2024-01-01/"]),
            ("data/2024-01-01/a", "data/z", ["data/z", "data/2024-01-01/a"]),
            ("outside/b", "data/c", ["data/c", "data/more/b"]),
        ] {
            symlink(root.join(target), root.join(link)).unwrap();
            let error = ways().unwrap_err();
            assert!(error.contains("twice") && names.iter().all(|name| error.contains(name)), "{error}");
            fs::remove_file(root.join(link)).unwrap();
        }
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
