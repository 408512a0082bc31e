//! Local directories that appear at once: their destination, the room for them, and their way to the disk.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::address::is_address;
use super::pinned::{Pinned, shown};
use crate::error::{Error, Result};

/// A failure of the disk: `operation` at `path`.
pub(crate) fn failed(operation: &str, path: &Path, error: impl Into<crate::error::Source>) -> Error {
    Error::Store { operation: operation.to_owned(), url: shown(path).display().to_string(), source: error.into() }
}

/// The file that marks a dataset as whole. The content of bowstring's own identifies it.
pub(crate) const SUCCESS: &str = "_SUCCESS";

/// The list of a conversion's files.
pub(crate) const FILES: &str = "_files";

/// The hidden directory of a directory of datasets that a server keeps, and the lock in it, which stays when the server has ended.
pub(crate) const SERVED: &str = ".bowstring";
pub(crate) const SERVED_LOCK: &str = "_lock";
/// Names in it that begin so are of no dataset.
const UNSERVED: char = '_';

/// Deepest directories that are looked into.
const MAX_DEPTH: usize = 64;

/// Name of the file beside a dataset with the content of its footers.
pub(super) const INDEX: &str = "_bowstring_index";

/// Files that bowstring writes beside Parquet files where there is no list.
const BESIDE: [&str; 3] = [INDEX, "_common_metadata", "_metadata"];

/// Most bytes of it that are looked at.
const MAX_SUCCESS_BYTES: u64 = 64 << 20;

/// The part of a `_SUCCESS` that identifies it as bowstring's.
#[derive(Deserialize)]
struct Mark {
    #[serde(rename = "bowstring")]
    _version: IgnoredAny,
    /// Format of the source, set by a conversion.
    format: Option<IgnoredAny>,
}

/// The kinds of existing data that may be replaced.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Replace {
    /// A dataset that bowstring wrote.
    pub(crate) overwrite: bool,
    /// With it, any content.
    pub(crate) foreign: bool,
}

/// The place where a dataset is to appear: a link is followed, because its target is replaced, and the room must be there.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) path: PathBuf,
    pub(crate) parent: PathBuf,
    pub(crate) name: OsString,
    /// The parent, once it is meant by what it is: the paths above lead through it then.
    pinned: Option<Pinned>,
}

impl Destination {
    /// The destination that `path` means. Nothing has to be there.
    ///
    /// # Errors
    /// [`Error::Config`] naming `option` if it is no name for a directory, as the address of a store is none; [`Error::Store`].
    pub(crate) fn of(path: &Path, option: &'static str) -> Result<Self> {
        if let Some(address) = path.to_str().filter(|path| is_address(path)) {
            let shown = super::display(address);
            let problem = if address.starts_with("file:") {
                format!("{shown} is an address; give the plain path")
            } else {
                format!("{shown} is not of this machine; give a path, and copy what is there to the store")
            };
            return Err(Error::config(option, problem));
        }
        check_name(path, option)?;
        check_link(path, option)?;
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                check_target(path, option)?;
                path.to_owned()
            }
            outcome => outcome.map_err(|error| failed("open", path, error))?,
        };
        let Some(name) = path.file_name().map(ToOwned::to_owned) else {
            return Err(Error::config(option, format!("{} names no directory", path.display())));
        };
        check_served(&path, option)?;
        let parent = above(&path).to_owned();
        Ok(Self { path, parent, name, pinned: None })
    }

    /// The same in the parent that is there now, or is made: whatever becomes of the names above, nothing is written or deleted elsewhere.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) fn pinned(mut self) -> Result<Self> {
        fs::create_dir_all(&self.parent).map_err(|error| failed("create", &self.parent, error))?;
        let pinned = Pinned::open(&self.parent).map_err(|error| failed("open", &self.parent, error))?;
        self.parent = pinned.at().to_owned();
        self.path = self.parent.join(&self.name);
        self.pinned = Some(pinned);
        Ok(self)
    }

    /// Its path as people know it.
    pub(crate) fn shown(&self) -> PathBuf {
        shown(&self.path)
    }

    /// Checks that a dataset may appear here, replacing what `replace` allows. Returns what is replaced, if anything is: nothing else must be,
    /// if another user gives it the name meanwhile.
    ///
    /// # Errors
    /// [`Error::Config`] naming `overwrite` or `overwrite_foreign` if something is here that only that would allow to replace;
    /// [`Error::Store`].
    pub(crate) fn vacant(&self, replace: Replace) -> Result<Option<Pinned>> {
        let listed = |error| failed("list", &self.path, error);
        let pinned = match Pinned::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            outcome => outcome.map_err(listed)?,
        };
        let directory = pinned.at();
        let mut entries = fs::read_dir(directory).map_err(listed)?;
        let named = self.shown();
        let named = named.display();
        if replace.overwrite && replace.foreign || entries.next().is_none() {
            Ok(Some(pinned))
        } else if !replace.overwrite {
            Err(Error::config("overwrite", format!("{named} is not empty; set overwrite to replace what is there")))
        } else if let Some(mark) = mark(directory) {
            let Some(name) = added(directory, &mark)? else { return Ok(Some(pinned)) };
            let problem = format!(
                "{named} has {name}, which bowstring did not write there, so overwrite does not replace it; move it away, or set \
                 overwrite_foreign too to delete it"
            );
            Err(Error::config("overwrite_foreign", problem))
        } else {
            let problem = format!(
                "{named} has no {SUCCESS} of bowstring, so overwrite does not replace it; set overwrite_foreign too to delete what is there"
            );
            Err(Error::config("overwrite_foreign", problem))
        }
    }
}

/// Refuses a name that no address of a dataset can have.
fn check_name(path: &Path, option: &'static str) -> Result<()> {
    if !path.to_string_lossy().chars().any(|letter| letter.is_ascii_control()) {
        return Ok(());
    }
    let problem = format!(
        "{path:?} has a control character in it, such as the end of a line, and could not be opened; give another name"
    );
    Err(Error::config(option, problem))
}

/// Refuses a directory of datasets that a server keeps, and a dataset in it, to whose version its name leads. Attempts of the server itself
/// pass.
fn check_served(path: &Path, option: &'static str) -> Result<()> {
    let is_served = |root: &Path| root.join(SERVED).join(SERVED_LOCK).is_file();
    let shown = path.display();
    if is_served(path) {
        let problem = format!(
            "{shown} has the datasets that clients of `bowstring serve --put` have written; name another directory, or write a dataset \
             through the server"
        );
        return Err(Error::config(option, problem));
    }
    let mut names = path.iter().rev();
    let (_version, dataset, hidden) = (names.next(), names.next(), names.next());
    let (Some(dataset), Some(root)) = (dataset, path.ancestors().nth(3)) else { return Ok(()) };
    let dataset = dataset.to_string_lossy();
    if hidden.is_some_and(|hidden| hidden == SERVED) && !dataset.starts_with(UNSERVED) && is_served(root) {
        let root = root.display();
        let problem = format!(
            "{shown} is the dataset {dataset} that clients of `bowstring serve --put {root}` have written; write or drop it through the \
             server, or name another directory"
        );
        return Err(Error::config(option, problem));
    }
    Ok(())
}

/// Refuses a link of somebody else, who could have this user's data replaced by it.
#[cfg(unix)]
fn check_link(path: &Path, option: &'static str) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let (owner, own) = (found.uid(), rustix::process::geteuid().as_raw());
    if !found.is_symlink() || owner == own || owner == 0 {
        return Ok(());
    }
    let problem =
        format!("{} is a link of user {owner}, not of this one; name the directory that is meant", path.display());
    Err(Error::config(option, problem))
}

#[cfg(not(unix))]
fn check_link(_: &Path, _: &'static str) -> Result<()> {
    Ok(())
}

/// Refuses a link that leads nowhere: nothing can be renamed to it at the end, when all the work is done.
fn check_target(path: &Path, option: &'static str) -> Result<()> {
    // Of a name with a slash at its end the system tells only what the link leads to.
    let Ok(target) = fs::read_link(path.components().as_path()) else { return Ok(()) };
    let (path, target) = (path.display(), target.display());
    let problem = format!("{path} is a link to {target}, where nothing is; make that directory, or remove the link");
    Err(Error::config(option, problem))
}

/// The content of the `_SUCCESS` in `directory`, if it is bowstring's.
fn mark(directory: &Path) -> Option<Mark> {
    let path = directory.join(SUCCESS);
    // Opening something other than a file, such as a pipe, may wait for ever.
    if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let file = File::open(&path).ok()?;
    serde_json::from_reader(BufReader::new(file.take(MAX_SUCCESS_BYTES))).ok()
}

/// A foreign file in `directory`, which has a `_SUCCESS` of bowstring: one that is not in its list. The dataset writer leaves no list:
/// there it is one that neither is Parquet nor belongs beside it. A conversion that lost its list passes. Of hidden names, such as `.git`, only
/// those that programs leave behind by themselves are not foreign.
fn added(directory: &Path, mark: &Mark) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Line {
        name: String,
    }
    let path = directory.join(FILES);
    let listed: Option<HashSet<String>> = match fs::metadata(&path).is_ok_and(|found| found.is_file()) {
        true => {
            let file = File::open(&path).map_err(|error| failed("open", &path, error))?;
            let lines = BufReader::new(file).lines().map_while(Result::ok);
            Some(lines.filter_map(|line| Some(serde_json::from_str::<Line>(&line).ok()?.name)).collect())
        }
        false => None,
    };
    let is_ours = |name: &String| match &listed {
        Some(listed) => name == INDEX || listed.contains(name),
        None => mark.format.is_some() || name.ends_with(".parquet") || BESIDE.contains(&name.as_str()),
    };
    Ok(names(directory, true)?.into_iter().find(|name| is_hidden(name) || !is_ours(name)))
}

/// Returns true for a name, or a path whose last name is one, with a dot in front.
fn is_hidden(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with('.'))
}

/// Returns true for hidden names without any work of people: what a killed process of bowstring leaves beside its destination, such as
/// `.NAME.0.writing`, checksums of Hadoop, and what NFS and macOS put into directories.
fn is_left(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let is_numbered = |end: &str| {
        let numbered = name.strip_suffix(end).and_then(|start| start.rsplit_once('.'));
        numbered.is_some_and(|(_, number)| is_number(number))
    };
    [".writing", ".old", ".partial", ".saving"].into_iter().any(is_numbered)
        || [".bowstring-convert", ".bowstring-convert.lock", ".crc"].into_iter().any(|end| name.ends_with(end))
        || [".nfs", "._"].into_iter().any(|start| name.starts_with(start))
        || name == ".DS_Store"
}

/// The names of all files below `directory`, sorted, with `/`; without the list, `_SUCCESS`, and names with a dot in front, which
/// no reader takes for data. With `hidden` also files and directories of such names, but for [those left behind](is_left). A directory that is
/// too deep to look into is named like a file.
///
/// # Errors
/// [`Error::Store`].
pub(crate) fn names(directory: &Path, hidden: bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    descend(directory, "", hidden, 0, &mut found)?;
    found.sort_unstable();
    Ok(found)
}

fn descend(directory: &Path, prefix: &str, hidden: bool, depth: usize, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(|error| failed("list", directory, error))? {
        let entry = entry.map_err(|error| failed("list", directory, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_hidden = is_hidden(&name);
        if (is_hidden && (!hidden || is_left(&name))) || (depth == 0 && (name == SUCCESS || name == FILES)) {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| failed("list", &path, error))?;
        let full = format!("{prefix}{name}");
        if !kind.is_dir() || is_hidden || depth >= MAX_DEPTH {
            found.push(full);
        } else {
            descend(&path, &format!("{full}/"), hidden, depth + 1, found)?;
        }
    }
    Ok(())
}

/// Brings the content of the file at `path` to the disk.
pub(crate) fn flush_file(path: &Path) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.sync_all()).map_err(|error| failed("flush", path, error))
}

/// Brings all data written to the file system of `directory` to the disk. Returns false where the system cannot: only Linux can.
#[cfg_attr(not(feature = "convert"), allow(dead_code, reason = "only conversions write so many files"))]
pub(crate) fn flush_file_system(directory: &Path) -> Result<bool> {
    #[cfg(target_os = "linux")]
    {
        let opened = File::open(directory).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
        opened.map_err(|error| failed("flush", directory, error))?;
    }
    Ok(cfg!(target_os = "linux"))
}

/// Brings the names in `directory` to the disk; only Unix can open one, and only there is it needed.
pub(crate) fn flush_names(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// As [`flush_names`].
///
/// # Errors
/// [`Error::Store`].
pub(crate) fn flush(directory: &Path) -> Result<()> {
    flush_names(directory).map_err(|error| failed("flush", directory, error))
}

/// The directory that has the name `path`.
pub(crate) fn above(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Brings the name `path` itself to the disk: a new name is durable only then.
///
/// # Errors
/// [`Error::Store`].
pub(crate) fn flush_name(path: &Path) -> Result<()> {
    flush(above(path))
}

/// Removes a file or directory that may be there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let outcome = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    outcome.map_err(|error| failed("remove", path, error))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn a_link_of_another_user_is_not_followed_to_what_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (target, link) = (root.join("target"), root.join("link"));
        fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert_eq!(Destination::of(&link, "dst").unwrap().path, target);
        // Only root may give it away.
        if lchown(&link, Some(12_345), None).is_err() {
            return;
        }
        let error = Destination::of(&link, "dst").unwrap_err();
        assert!(matches!(error, Error::Config { option: "dst", .. }) && error.to_string().contains("12345"), "{error}");
        assert_eq!(Destination::of(&target, "dst").unwrap().path, target);
    }

    #[test]
    fn a_name_with_the_end_of_a_line_in_it_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a\nb", "a\rb", "a\tb/c", "\u{7f}"] {
            let error = Destination::of(&root.path().join(name), "dst").unwrap_err();
            let said = error.to_string();
            assert!(
                matches!(error, Error::Config { option: "dst", .. }) && said.contains("control character"),
                "{said}"
            );
            assert!(!said.contains(char::is_control), "{said}");
        }
        assert!(Destination::of(&root.path().join("zwölf Äpfel"), "dst").is_ok());
    }

    #[test]
    fn what_a_server_keeps_for_its_clients_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (hidden, dataset) = (root.join(SERVED), root.join("train"));
        fs::create_dir_all(hidden.join("train/00000001-w1")).unwrap();
        fs::create_dir_all(hidden.join("_staged")).unwrap();
        symlink(".bowstring/train/00000001-w1", &dataset).unwrap();
        assert!(Destination::of(&dataset, "dst").is_ok(), "without a lock it is any directory");
        fs::write(hidden.join(SERVED_LOCK), "").unwrap();
        for (path, what) in [(&root, "has the datasets"), (&dataset, "is the dataset train")] {
            let error = Destination::of(path, "dst").unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Config { option: "dst", .. }) && said.contains(what), "{said}");
        }
        // What is beside its datasets is none of the server's, and its own attempts are written like any dataset.
        for path in [root.join("other"), hidden.join("_staged/7")] {
            assert!(Destination::of(&path, "dst").is_ok(), "{}", path.display());
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_refused_at_once() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        symlink(&target, &link).unwrap();
        for path in [link.clone(), root.path().join("link/")] {
            let error = Destination::of(&path, "dst").unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Config { option: "dst", .. }) && said.contains("target"), "{said}");
        }
        fs::create_dir(&target).unwrap();
        assert!(Destination::of(&link, "dst").unwrap().path.ends_with("target"));
        assert!(Destination::of(&root.path().join("new"), "dst").is_ok());
    }

    #[test]
    fn hidden_files_of_people_are_not_replaced_and_those_of_programs_are() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("out");
        fs::create_dir_all(out.join("year=1")).unwrap();
        let vacant = || Destination::of(&out, "dst").unwrap().vacant(Replace { overwrite: true, foreign: false });
        // That of the dataset writer, and that of a conversion which lost its list.
        for success in [r#"{"bowstring": "1"}"#, r#"{"bowstring": "1", "format": "parquet"}"#] {
            fs::write(out.join(SUCCESS), success).unwrap();
            for name in [
                ".part-00000.parquet.crc",
                "._part-00000.parquet",
                ".DS_Store",
                ".nfs0000000001",
                ".x.0.writing",
                ".x.77-0.old",
                ".x.1-0.saving",
                ".x.bowstring-convert.lock",
            ] {
                fs::write(out.join(name), "").unwrap();
            }
            fs::create_dir_all(out.join(".x.bowstring-convert")).unwrap();
            assert!(vacant().unwrap().is_some());
            for (name, file) in [
                (".git", ".git/HEAD"),
                (".gitattributes", ".gitattributes"),
                ("year=1/.dvc", "year=1/.dvc"),
                (".mine.parquet", ".mine.parquet"),
                (".thesis.old", ".thesis.old"),
            ] {
                let path = out.join(file);
                fs::create_dir_all(above(&path)).unwrap();
                fs::write(&path, "years of work").unwrap();
                let error = vacant().unwrap_err();
                let said = error.to_string();
                assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{said}");
                assert!(said.contains(&format!(" has {name}, ")), "{said}");
                remove(&out.join(name)).unwrap();
            }
            assert!(vacant().unwrap().is_some());
        }
    }
}
