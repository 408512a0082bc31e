//! Files below a directory of this machine, with one look at each.
//!
//! `object_store` asks the system four times for each and takes every path apart as an address: of a hundred thousand files that was half
//! the time of opening them from an index. The result is the same, to the entity tag, which reads are held against.

use std::collections::HashMap;
use std::fs::{DirEntry, File, FileType, Metadata, ReadDir};
use std::io::{Error as IoError, ErrorKind, Read, Seek, SeekFrom};
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
/// Bytes of the smallest file of Parquet, and its last ones: plain, and with an encrypted footer.
pub(super) const LEAST_BYTES: u64 = 12;
const ENDS: [[u8; 4]; 2] = [*b"PAR1", *b"PARE"];

/// A file that a walk met, or a name where there may be one.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) meta: ObjectMeta,
    way: Way,
}

/// The way from a name to its file.
#[derive(Debug)]
enum Way {
    /// No link led to it.
    Plain,
    /// Real path, since a link led to it or to a directory above it.
    Linked(Path),
    /// It is a link to this, where nothing is.
    Nowhere(PathBuf),
    /// It is no file, but this: a pipe, a socket, a device.
    Other(&'static str),
    /// The name is one of a file that is being written, but the file is whole.
    Staged,
}

/// The files at any depth below a directory: some at a time, in no order. Links are followed. Files that disappear meanwhile and
/// unfinished ones of `object_store` are left out; names of data without a file that can be read are for [`Ways`] to refuse.
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

    /// The real paths of the files that links led to, by the names by which they were found.
    pub(super) fn real(self) -> HashMap<Path, Path> {
        self.linked.into_iter().map(|(real, name)| (name, real)).collect()
    }

    /// Takes a file that was found; `accept` says which names below the directory are.
    ///
    /// # Errors
    /// [`Error::Config`] naming both ways to one that a link led to, if there is another, and for a [staged](is_staged) name;
    /// [`Error::Store`] for a link to nothing, and for what is no file: rows would be missing.
    pub(super) fn take(&mut self, Met { meta, way }: &Met, accept: &impl Fn(&str) -> bool) -> Result<()> {
        let real = match way {
            Way::Plain => return Ok(()),
            Way::Linked(real) => real,
            Way::Nowhere(target) => return Err(nowhere(FsPath::new(&format!("/{}", meta.location)), target)),
            Way::Other(kind) => return Err(no_file(FsPath::new(&format!("/{}", meta.location)), kind)),
            Way::Staged => return Err(staged(&format!("/{}", meta.location))),
        };
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
            Ok((Look::File(found), link)) => {
                let meta = object(&entry.path(), &found)?;
                let way = if meta.location.filename().is_some_and(is_staged) {
                    if !is_whole(&entry.path(), &found) {
                        continue;
                    }
                    Way::Staged
                } else if linked || link {
                    match std::fs::canonicalize(entry.path()) {
                        Ok(real) => Way::Linked(location(&real)?),
                        Err(error) if error.kind() == ErrorKind::NotFound => continue,
                        Err(error) => return Err(failed("look up", &entry.path(), error)),
                    }
                } else {
                    Way::Plain
                };
                if !visit(Met { meta, way }) {
                    return Ok(());
                }
            }
            Ok((Look::Nowhere(target, found), _)) => {
                let meta = object(&entry.path(), &found)?;
                if !visit(Met { meta, way: Way::Nowhere(target) }) {
                    return Ok(());
                }
            }
            Ok((Look::Other(kind, found), _)) => {
                let meta = object(&entry.path(), &found)?;
                if !visit(Met { meta, way: Way::Other(kind) }) {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look up", &entry.path(), error)),
        }
    }
    Ok(())
}

enum Look {
    Directory,
    File(Metadata),
    /// A link to what is not there, and what is known of the link.
    Nowhere(PathBuf, Metadata),
    /// A pipe, a socket, a device.
    Other(&'static str, Metadata),
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
        match std::fs::metadata(entry.path()) {
            // The link itself may have gone meanwhile.
            Err(error) if leads_nowhere(&error) => {
                return Ok((Look::Nowhere(std::fs::read_link(entry.path())?, entry.metadata()?), link));
            }
            outcome => outcome?,
        }
    } else {
        entry.metadata()?
    };
    let found = match meta.file_type() {
        kind if kind.is_dir() => Look::Directory,
        kind if kind.is_file() => Look::File(meta),
        kind => Look::Other(named(kind), meta),
    };
    Ok((found, link))
}

/// The name of a `kind` that is neither a file nor a directory.
fn named(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return "a named pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    #[cfg(not(unix))]
    let _ = kind;
    "a device"
}

/// Returns true if a path could not be followed because nothing is there.
fn leads_nowhere(error: &IoError) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The error for a link to nothing at `path`, a name of data.
fn nowhere(path: &FsPath, target: &FsPath) -> Error {
    let problem = format!(
        "it is a link to {}, where nothing is, and its rows would be missing; fetch what it leads to, or remove the link",
        target.display()
    );
    failed("look up", path, problem)
}

/// The error for what is no file at `path`, a name of data.
fn no_file(path: &FsPath, kind: &str) -> Error {
    let problem = format!(
        "it is {kind}, of which no rows can be read, and they would be missing; remove it, or hide it by a name that begins with a dot"
    );
    failed("look up", path, problem)
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

/// The file at `path` as `object_store` describes it.
fn object(path: &FsPath, meta: &Metadata) -> Result<ObjectMeta> {
    let location = location(path)?;
    let modified = meta.modified().map_err(|error| failed("look up", path, error))?;
    let micros = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let (size, (_, inode)) = (meta.len(), identity(meta));
    let e_tag = Some(format!("\"{inode:x}-{micros:x}-{size:x}\""));
    Ok(ObjectMeta { location, last_modified: modified.into(), size, e_tag, version: None })
}

/// Returns true for a name that `object_store` gives a file while it writes it: it neither lists nor opens such names.
pub(super) fn is_staged(name: &str) -> bool {
    let number = name.split_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The error for a file at `path` whose name [is taken](is_staged) for one of an unfinished file.
pub(super) fn staged(path: &str) -> Error {
    let problem = format!(
        "{path} has the name of a file that is being written, which ends in # and a number, and is not read by that name; rename it, or \
         remove it if its writer left it there"
    );
    Error::config("urls", problem)
}

/// Returns true for the last four bytes of a file of Parquet.
pub(super) fn is_end(end: &[u8]) -> bool {
    ENDS.iter().any(|known| known == end)
}

/// Returns true if a file ends as those of Parquet do, so that its writer has nothing left to write. What cannot be looked at may.
fn is_whole(path: &FsPath, meta: &Metadata) -> bool {
    let end = || -> Result<[u8; 4], IoError> {
        let (mut file, mut end) = (File::open(path)?, [0; 4]);
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut end)?;
        Ok(end)
    };
    meta.len() >= LEAST_BYTES
        && match end() {
            Ok(end) => is_end(&end),
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use futures::TryStreamExt;
    use object_store::ObjectStore;
    use object_store::local::LocalFileSystem;

    use super::*;

    async fn found(root: &FsPath) -> Result<Vec<ObjectMeta>> {
        let mut found = Vec::new();
        let mut walk = Walk::below(&Path::from_absolute_path(root).unwrap());
        while let Some(some) = walk.next().await? {
            found.extend(
                some.into_iter().filter(|met| !matches!(met.way, Way::Nowhere(_) | Way::Other(_))).map(|met| met.meta),
            );
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

    #[test]
    fn a_name_of_data_that_cannot_be_read_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("data")).unwrap();
        fs::write(root.join("data/a.parquet"), b"a").unwrap();
        let base = Path::from_absolute_path(root.join("data")).unwrap();
        let accept = |name: &str| !name.ends_with(".txt");
        let ways = || {
            let (mut ways, mut outcome) = (Ways::new(&base), Ok(()));
            each(root.join("data"), &mut |met| {
                if accept(below(&base, &met.meta.location)) {
                    outcome = ways.take(&met, &accept);
                }
                outcome.is_ok()
            })?;
            outcome
        };
        for target in ["../annex/key", "a.parquet/key"] {
            symlink(target, root.join("data/b.parquet")).unwrap();
            let error = ways().unwrap_err();
            let said = error.chain();
            assert!(matches!(error, Error::Store { .. }) && said.contains("data/b.parquet"), "{said}");
            assert!(said.contains(target) && said.contains("fetch"), "{said}");
            // Notes that lead nowhere are nobody's rows.
            fs::rename(root.join("data/b.parquet"), root.join("data/b.txt")).unwrap();
            ways().unwrap();
        }
        symlink("loop.txt", root.join("data/loop.txt")).unwrap();
        let said = ways().unwrap_err().chain();
        assert!(said.contains("data/loop.txt"), "{said}");
        fs::remove_file(root.join("data/loop.txt")).unwrap();
        // Unfinished ones, of which the first has no more than the mark in front, and whole ones.
        for (content, whole) in [
            ("PAR1", false),
            ("PAR1 rows of it", false),
            ("PAR1 rows PAR1", true),
            ("PAR1 r PARE", false),
            ("PAR1 rows PARE", true),
        ] {
            fs::write(root.join("data/part#7"), content).unwrap();
            match ways() {
                Ok(()) => assert!(!whole, "{content}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(whole && said.contains("data/part#7") && said.contains("rename"), "{content}: {said}");
                }
            }
        }
        fs::rename(root.join("data/part#7"), root.join("data/part#7.txt")).unwrap();
        ways().unwrap();
    }

    #[test]
    fn what_is_no_file_under_a_name_of_data_is_an_error_that_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let base = Path::from_absolute_path(&root).unwrap();
        let accept = |name: &str| name.ends_with(".parquet");
        let ways = || {
            let (mut ways, mut outcome) = (Ways::new(&base), Ok(()));
            each(root.clone(), &mut |met| {
                if accept(below(&base, &met.meta.location)) {
                    outcome = ways.take(&met, &accept);
                }
                outcome.is_ok()
            })?;
            outcome
        };
        let _socket = UnixListener::bind(root.join("socket")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
        ways().unwrap();
        let refused = |kind: &str| {
            let error = ways().unwrap_err();
            let said = error.chain();
            assert!(
                matches!(error, Error::Store { .. }) && said.contains("x.parquet") && said.contains(kind),
                "{said}"
            );
            fs::remove_file(root.join("x.parquet")).unwrap();
        };
        for (target, kind) in [("socket", "a socket"), ("pipe", "a named pipe"), ("/dev/null", "a device")] {
            symlink(target, root.join("x.parquet")).unwrap();
            refused(kind);
        }
        fs::rename(root.join("pipe"), root.join("x.parquet")).unwrap();
        refused("a named pipe");
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
