//! The location of a source, local or in a store, file or directory; and its files, in a fixed order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::files::{Found, is_hidden, missing};
use super::remote::Remote;
use crate::convert::limits::Limits;
use crate::error::{Error, Result};
use crate::store::Names;
use crate::store::data_name::COMPRESSIONS;
use crate::store::directory::failed;
use crate::store::glob::{self, Pattern};
use crate::store::pinned::{NOBODY, identity};

/// Most levels of directories that are searched.
const MAX_DEPTH: usize = 16;

/// Most names of a directory that are examined to detect its format.
const MAX_NAMES: usize = 10_000;

/// Endings of compressed tar files.
const PACKED_TAR: [&str; 6] = ["tgz", "tbz", "tbz2", "txz", "tlz", "tzst"];

/// Returns the name without the ending of a compression, if `accept` takes only that: its rows would be missing without a word. Other
/// files beside the data are the user's own.
fn unpacked(name: &str, accept: &dyn Fn(&str) -> bool) -> Option<String> {
    let (bare, ending) = name.rsplit_once('.')?;
    let is = |known: &[&str]| known.iter().any(|known| ending.eq_ignore_ascii_case(known));
    let bare = match (is(&COMPRESSIONS), is(&PACKED_TAR)) {
        (true, _) => bare.to_owned(),
        (_, true) => format!("{bare}.tar"),
        _ => return None,
    };
    accept(&bare).then_some(bare)
}

/// An existing location.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of each source")]
pub(crate) enum Listing {
    Local(PathBuf),
    Remote(Box<Remote>),
    /// The matches of a pattern below a location.
    Matching(Box<Matching>),
}

/// Files that match a pattern.
#[derive(Debug)]
pub(crate) struct Matching {
    below: Listing,
    pattern: Pattern,
    shown: String,
}

/// Returns true if `src` is a pattern. An existing path of that very name is not; in a store `?` begins a query.
pub(crate) fn is_pattern(src: &str) -> bool {
    if is_remote(src) {
        src.contains(['*', '{'])
    } else {
        src.contains(['*', '?', '[', '{']) && !Path::new(src).exists()
    }
}

/// Returns true if `src` is an address of a store rather than a local path.
pub(crate) fn is_remote(src: &str) -> bool {
    src.contains("://") && !src.starts_with("file://")
}

/// Returns the local path that `src` begins with, and true if it is all of it: for a pattern it is only the part before the first
/// directory that has to be matched. `None` for an address of a store.
pub(crate) fn local_start(src: &str) -> Option<(PathBuf, bool)> {
    if is_remote(src) {
        return None;
    }
    let whole = !is_pattern(src);
    let start = if whole { src } else { glob::split(src).0 };
    let path = match url::Url::parse(start).ok().filter(|url| url.scheme() == "file") {
        Some(url) => url.to_file_path().ok()?,
        None => PathBuf::from(start),
    };
    Some((if path == Path::new("") { PathBuf::from(".") } else { path }, whole))
}

impl Listing {
    /// Opens the location `src`; a store is read that many bytes at once.
    ///
    /// # Errors
    /// `NotFound` if nothing is there, `Config`, `Store`.
    pub(crate) fn open(src: &str, storage_options: &BTreeMap<String, String>, read_bytes: u64) -> Result<Self> {
        if is_pattern(src) {
            let (start, pattern) = glob::split(src);
            let below = Self::open(if start.is_empty() { "." } else { start }, storage_options, read_bytes)?;
            let pattern = if src.contains("://") { Pattern::encoded(pattern) } else { Pattern::new(pattern) };
            return Ok(Self::Matching(Box::new(Matching { below, pattern: pattern?, shown: src.to_owned() })));
        }
        if is_remote(src) {
            return Ok(Self::Remote(Box::new(Remote::open(src, storage_options, read_bytes)?)));
        }
        match url::Url::parse(src).ok().filter(|url| url.scheme() == "file") {
            Some(url) => {
                let path = url.to_file_path();
                Self::local(&path.map_err(|()| Error::config("src", format!("{src} is not an absolute local path")))?)
            }
            None => Self::local(Path::new(src)),
        }
    }

    /// Opens a local path.
    ///
    /// # Errors
    /// `NotFound` if nothing is there, `Store`.
    pub(crate) fn local(path: &Path) -> Result<Self> {
        fs::metadata(path).map_err(|error| missing(path, error))?;
        Ok(Self::Local(path.to_owned()))
    }

    /// Returns the address for display.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Remote(remote) => remote.url(),
            Self::Matching(matching) => matching.shown.clone(),
        }
    }

    /// Returns the file, if it is one rather than a directory.
    pub(crate) fn file(&self) -> Result<Option<Found>> {
        match self {
            Self::Local(path) if path.is_dir() => Ok(None),
            Self::Local(path) => Found::of(path).map(Some),
            Self::Remote(remote) => Ok(remote.file().map(Found::stored)),
            Self::Matching(_) => Ok(None),
        }
    }

    /// Returns the directory of the file.
    pub(crate) fn parent(&self) -> Self {
        match self {
            Self::Local(path) => Self::Local(match path.parent() {
                Some(parent) if parent != Path::new("") => parent.to_owned(),
                _ => PathBuf::from("."),
            }),
            Self::Remote(remote) => Self::Remote(Box::new(remote.parent())),
            Self::Matching(matching) => matching.below.parent(),
        }
    }

    /// Lists the files below whose names `accept` takes, by name; if it is a file, that file, whatever its name. Hidden names are
    /// skipped, and links are followed.
    ///
    /// # Errors
    /// Those of [`select`](Self::select); `Unsupported` for a file that `accept` would take if it were not compressed so.
    pub(crate) fn list(&self, limits: &Limits, accept: &dyn Fn(&str) -> bool) -> Result<Vec<Found>> {
        let packed = RefCell::new(Vec::new());
        let found = self.select(limits, &|name| {
            let taken = accept(name);
            if !taken && let Some(bare) = unpacked(name, accept) {
                packed.borrow_mut().push((name.to_owned(), bare));
            }
            taken
        })?;
        // Beside a file, the same one packed is a copy.
        let is_copy = |bare: &str| found.binary_search_by(|file| (*file.name).cmp(bare)).is_ok();
        match packed.into_inner().into_iter().filter(|(_, bare)| !is_copy(bare)).min() {
            Some((name, _)) => Err(Error::unsupported(
                format!("the compression of {name} below {}", self.shown()),
                "its rows would be missing: unpack it, move it away, or leave it out by a pattern such as '*.csv'",
            )),
            None => Ok(found),
        }
    }

    /// Lists the same, and leaves out all other files.
    ///
    /// # Errors
    /// `NotFound` if a pattern matches no file, `Limit`, `Unsupported` for names that are not Unicode, `Store`, also for a link to one
    /// of its own parent directories, and for one that `accept` takes and that leads nowhere.
    pub(crate) fn select(&self, limits: &Limits, accept: &dyn Fn(&str) -> bool) -> Result<Vec<Found>> {
        if let Some(file) = self.file()? {
            return Ok(vec![file]);
        }
        match self {
            Self::Local(path) => {
                let mut found = Vec::new();
                descend(path, "", &mut Vec::new(), limits, accept, &mut found)?;
                found.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(found)
            }
            Self::Remote(remote) => {
                let shown = |name: &str| !name.split('/').any(is_hidden) && accept(name);
                Ok(remote.list(limits, shown)?.into_iter().map(Found::stored).collect())
            }
            Self::Matching(matching) => {
                let Matching { below, pattern, shown } = &**matching;
                let found = below.select(limits, &|name| pattern.matches(name).is_some() && accept(name))?;
                if found.is_empty() {
                    let hint =
                        "no file of the format is named so; quote the pattern, so that the shell leaves it alone";
                    return Err(Error::NotFound { what: shown.clone(), hint: hint.to_owned() });
                }
                Ok(found)
            }
        }
    }

    /// Returns the files with these names, relative to the directory.
    ///
    /// # Errors
    /// `NotFound` for a missing one, `Store`.
    pub(crate) fn find(&self, names: &[String]) -> Result<Vec<Found>> {
        match self {
            Self::Local(path) => names.iter().map(|name| Found::at(&path.join(name), name)).collect(),
            Self::Remote(remote) => Ok(remote.find(names)?.into_iter().map(Found::stored).collect()),
            Self::Matching(matching) => matching.below.find(names),
        }
    }

    /// Reads a small file below.
    ///
    /// # Errors
    /// `NotFound`, `Store`, `Limit` beyond `most` bytes.
    pub(crate) fn small(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let found = self.find(&[name.to_owned()])?;
        Ok(found.first().map(|found| found.content(most)).transpose()?.unwrap_or_default())
    }

    /// Lists the names in `directory`, which is relative to this one, and empty for itself; only some of them if there are very many.
    ///
    /// # Errors
    /// `Store`, and `Unsupported` if directories cannot be listed.
    pub(crate) fn names(&self, directory: &str) -> Result<Names> {
        let path = match self {
            Self::Local(path) => path.join(directory),
            Self::Remote(remote) => return remote.names(directory),
            Self::Matching(matching) => return matching.below.names(directory),
        };
        let mut names = Names::default();
        for entry in fs::read_dir(&path).map_err(|error| failed("list", &path, error))?.take(MAX_NAMES) {
            let entry = entry.map_err(|error| failed("list", &path, error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match is_directory(&entry) {
                true => names.directories.push(name),
                false => names.files.push(name),
            }
        }
        Ok(names)
    }
}

fn descend(
    directory: &Path,
    prefix: &str,
    above: &mut Vec<(PathBuf, (u64, u64))>,
    limits: &Limits,
    accept: &dyn Fn(&str) -> bool,
    found: &mut Vec<Found>,
) -> Result<()> {
    let metadata = fs::metadata(directory).map_err(|error| failed("list", directory, error))?;
    let id = identity(&metadata);
    if let Some((place, _)) = above.iter().find(|(_, other)| *other == id && id != NOBODY) {
        let problem = format!("it is a link to {}, which it lies in", place.display());
        return Err(failed("list", directory, problem));
    }
    above.push((directory.to_owned(), id));
    for entry in fs::read_dir(directory).map_err(|error| failed("list", directory, error))? {
        let entry = entry.map_err(|error| failed("list", directory, error))?;
        let Ok(name) = entry.file_name().into_string() else {
            let what = format!("the file name {} below {}", entry.file_name().display(), directory.display());
            return Err(Error::unsupported(what, "names must be UTF-8"));
        };
        if is_hidden(&name) {
            continue;
        }
        let path = entry.path();
        let full = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if is_directory(&entry) {
            if above.len() > MAX_DEPTH {
                let what = format!("directories below {}", path.display());
                let (asked, limit) = (above.len() as u64, MAX_DEPTH as u64);
                return Err(Error::limit(what, asked, limit, "the depth of directories"));
            }
            descend(&path, &full, above, limits, accept, found)?;
        } else if accept(&full) && is_file(&path)? {
            if found.len() >= limits.max_files {
                let (asked, limit) = (found.len() as u64 + 1, limits.max_files as u64);
                let what = format!("files below {}", directory.display());
                return Err(Error::limit(what, asked, limit, "limits.max_files"));
            }
            found.push(Found::at(&path, &full)?);
        }
    }
    above.pop();
    Ok(())
}

/// Returns true for a file, or a link to one; false also for what is gone.
///
/// # Errors
/// `Store` for what cannot be looked at, and for a pipe, a socket or a device. Their rows, and those behind a link to nothing, would be missing.
fn is_file(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(true),
        Ok(_) => Err(failed(
            "look up",
            path,
            "it is no regular file; remove it, or hide it by a name that begins with a dot",
        )),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let Ok(target) = fs::read_link(path) else { return Ok(false) };
            let problem = format!(
                "it is a link to {}, where nothing is; fetch what it leads to, or remove the link",
                target.display()
            );
            Err(failed("look up", path, problem))
        }
        Err(error) => Err(failed("look up", path, error)),
    }
}

/// Returns true for a directory, or a link to one.
fn is_directory(entry: &fs::DirEntry) -> bool {
    let linked = || fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
    entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink() && linked())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::format::Format;

    #[test]
    fn data_in_a_compression_that_is_not_read_is_refused_by_name_and_other_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        let list = |src: &str, format: Format| {
            let listing = Listing::open(src, &BTreeMap::new(), 1 << 20)?;
            let found = listing.list(&Limits::default(), &|name| Format::of_name(name) == Some(format))?;
            Ok::<_, Error>(found.len())
        };
        let own = ["a.csv", "b.CSV.GZ", "a.tar", "b.tgz"];
        let others = [
            "_SUCCESS",
            ".a.csv.crc",
            "a.csv.crc",
            "a.csv.bak",
            "a.csv.tmp",
            "README.md",
            "notes.zip",
            "log.txt.xz",
            "_old.csv.xz",
            "schema.sql.br",
            "a.csv.md5",
            "a.csv.zip",
            "a.tar.xz",
            "a.txz",
        ];
        for name in own.iter().chain(&others) {
            std::fs::write(directory.path().join(name), "x").unwrap();
        }
        assert_eq!((list(root, Format::Csv).unwrap(), list(root, Format::Webdataset).unwrap()), (2, 2));
        for (name, format) in [
            ("c.csv.xz", Format::Csv),
            ("c.csv.lz4", Format::Csv),
            ("c.csv.Z", Format::Csv),
            ("c.CSV.zip", Format::Csv),
            ("c.csv.gzip", Format::Csv),
            ("c.tar.xz", Format::Webdataset),
            ("c.txz", Format::Webdataset),
        ] {
            let path = directory.path().join(name);
            std::fs::write(&path, "x").unwrap();
            let said = list(root, format).unwrap_err().to_string();
            assert!(said.contains(name) && said.contains("unpack"), "{said}");
            // A pattern says which files are meant.
            let pattern = format!("{root}/a.{}", if format == Format::Csv { "[c]sv" } else { "[t]ar" });
            assert_eq!(list(&pattern, format).unwrap(), 1);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_by_a_name_of_data_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.csv"), "x").unwrap();
        for (name, is_data) in [("notes.md", false), ("b.csv", true)] {
            assert!(std::process::Command::new("mkfifo").arg(directory.path().join(name)).status().unwrap().success());
            let listing = Listing::open(directory.path().to_str().unwrap(), &BTreeMap::new(), 1 << 20).unwrap();
            match listing.list(&Limits::default(), &|name| Format::of_name(name) == Some(Format::Csv)) {
                Ok(found) => assert!(found.len() == 1 && !is_data, "{name}"),
                Err(error) => assert!(is_data && error.chain().contains(name), "{}", error.chain()),
            }
        }
    }
}
