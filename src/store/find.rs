//! From addresses to a sorted list of objects: files, directories, patterns, lists of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path as FsPath;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::access::Access;
use super::address::{Address, written};
use super::answer::is_refusal;
#[cfg(feature = "cloud")]
use super::catalog::{self, Content, Location, PLAIN};
use super::data_name::{LOOKED_AT, extension, is_data, is_parquet, is_renamed, marks_directory, refuse_whole};
use super::directory::{INDEX, above};
use super::display::display;
use super::found::Found;
use super::glob::{self, Pattern};
use super::hits::{By, Common, Hits, Seen};
use super::keys;
use super::logs::{METADATA, is_metadata};
use super::mounts::{Mount, Resolved, is_mounted};
use super::place::{Listed, Place, check_count};
use super::root::{Root, one_name};
use super::stamp::Stamp;
use super::stores::Stores;
use super::table::{FoundTable, SIGNS, Table};
use super::tentative;
use super::walk::{below, is_staged, staged};
use super::wanted::Wanted;
use crate::error::{Error, Result};

/// Files or a table that were found, and their directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// The data files, sorted by name.
    pub files: Vec<Found>,
    /// The directory that names are relative to, if all addresses are in one store that has directories.
    pub(super) root: Option<(Place, String)>,
    /// The same directory in the namespace of mounts, below which all addresses are.
    pub(super) namespace: Option<Arc<str>>,
    /// The file [`INDEX`] in the one directory that was listed, and whether it is there.
    pub(crate) index: Option<(Found, bool)>,
    /// The one address, if it is a table of Delta Lake or Iceberg: that says which files are data, and nothing else was listed.
    pub(crate) table: Option<FoundTable>,
    /// True if sorting took the files out of the order of the addresses.
    pub(crate) is_reordered: bool,
}

impl Listing {
    /// The file `name` in the directory that all names are relative to, which may not exist. None if looking for it is not
    /// worth a request: on a server without directories.
    pub fn beside(&self, name: &str) -> Option<Found> {
        let (place, root) = self.root.as_ref().filter(|(place, _)| place.lists)?;
        let path = Path::parse(root).ok()?.join(name);
        Some(Found { place: place.clone(), path, name: name.into(), size: None, stamp: None })
    }
}

/// Finds the data files behind `urls`, sorted by name. A file that several of `urls` name in full is there as often: its rows are
/// repeated as often, each with a number of its own.
///
/// Directories are searched to any depth; files and directories whose name begins with `_` or `.` are left out (except
/// `_key=value` directories), and so are files that carry another format's extension. A whole file of Parquet whose name has a further ending
/// (`a.parquet.gz`, `a.parquet.1`) is an error. A file that is named in full is always taken. More than `max_files` files are an error.
///
/// A directory that is a table of Delta Lake or Iceberg is not searched: the listing has no files, and says where it is. The same holds for
/// a file of metadata of Iceberg.
///
/// # Errors
/// [`Error::NotFound`] if an address leads to nothing, [`Error::Unsupported`] if a directory holds a table of Hudi, or another one
/// further down, whose files are not its rows; [`Error::Config`] for such a table among other addresses, for a file that is found twice otherwise, in a directory, by a pattern or through a link;
/// [`Error::Limit`], [`Error::Store`].
pub async fn find(urls: &[String], access: Access<'_>, max_files: usize) -> Result<Listing> {
    // Boxed: else the futures of whoever opens a dataset are nested too deeply for the compiler.
    found(urls, access, max_files).boxed().await
}

async fn found(urls: &[String], access: Access<'_>, max_files: usize) -> Result<Listing> {
    let mut stores = Stores::new(access)?;
    let (mut all, mut named_by) = (Vec::new(), Vec::new());
    for (number, url) in urls.iter().enumerate() {
        let hits = if is_mounted(url) {
            mounted(&mut stores, url, max_files).await?
        } else {
            vec![match Address::parse(url)? {
                Address::Local(path) => local(&mut stores, &path, max_files).await?,
                Address::Remote(text) => remote(&mut stores, &text, max_files).await?,
            }]
        };
        if let Some(table) = hits.iter().find_map(|hits| hits.table.as_ref()) {
            if urls.len() > 1 || hits.len() > 1 {
                return Err(among_others(&table.url()));
            }
        } else if hits.iter().all(|hits| hits.files.is_empty()) {
            let hint = "hidden files, files beginning with _ and other formats do not count";
            // What follows it is not shown, since it may be a signature.
            let is_query = url.contains("://") && url.contains('?');
            let hint = if is_query {
                format!("a ? stands for any one character and begins no query; {hint}")
            } else {
                hint.to_owned()
            };
            return Err(Error::NotFound { what: format!("Parquet files at {}", display(url)), hint });
        }
        named_by.extend(hits.iter().map(|_| (number, url)));
        all.extend(hits);
    }
    let common = Common::of(&all);
    // The addresses that files were first found at.
    let mut seen: BTreeMap<String, (&str, &Hits)> = BTreeMap::new();
    let are_many = all.len() > 1;
    let mut found = Vec::new();
    for (hits, (number, url)) in all.iter().zip(named_by) {
        for (path, size, stamp) in &hits.files {
            let name = common.name(hits, path);
            // One address leads to nothing twice.
            if are_many {
                let real = hits.real(path);
                match seen.entry(identity(&hits.place, real)) {
                    Entry::Vacant(entry) => {
                        entry.insert((url.as_str(), hits));
                    }
                    Entry::Occupied(first) if first.get().1.is_named_as(hits) => {}
                    // Stores of content by its digest, as of Hugging Face's cache, have one file for all that are equal.
                    Entry::Occupied(first) if first.get().1.is_link() && hits.is_link() => {}
                    Entry::Occupied(first) => return Err(twice(&hits.place.url(real), first.get().0, url)),
                }
            }
            let (place, path, stamp) = (hits.place.clone(), path.clone(), stamp.clone());
            found.push((number, Found { place, path, name, size: *size, stamp }));
        }
    }
    check_count(found.len(), max_files)?;
    found.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let is_reordered = !found.is_sorted_by_key(|(number, _)| *number);
    let files = found.into_iter().map(|(_, file)| file).collect();
    let namespace = common.in_namespace();
    let root = common.directory(&all);
    let (index, table) = match <[Hits; 1]>::try_from(all) {
        Ok([hits]) => (hits.index, hits.table),
        Err(_) => (None, None),
    };
    Ok(Listing { files, root, namespace, index, table, is_reordered })
}

/// The error for a table among other addresses: its log alone says what is in it, and in which version.
fn among_others(url: &str) -> Error {
    let problem = format!(
        "{url} is a table, and stands among other addresses; open it alone, or give weights to mix it with other datasets"
    );
    Error::config("urls", problem)
}

/// The same for the same object, under whatever address: Hadoop has three names for S3, and two mounts may lead to one directory.
fn identity(place: &Place, path: &Path) -> String {
    let url = place.url(path);
    let (is_s3, bare) = one_name(&url);
    let bare = if is_s3 { format!("s3://{bare}") } else { url.clone() };
    let Some(mounted) = place.mount.as_ref().filter(|_| !place.local) else { return bare };
    // Two endpoints may have buckets of one name. Credentials only say who reads.
    let options: Vec<_> = mounted.mount.options().iter().filter(|(key, _)| !keys::is_credential(key)).collect();
    format!("{bare}\n{options:?}")
}

/// The error for a file that two addresses lead to, one of which does not name it, or by another name: nobody can tell whether it is meant
/// twice.
fn twice(file: &str, first: &str, second: &str) -> Error {
    if first == second {
        let why = if is_mounted(first) {
            "two mounts lead to it; read one of them"
        } else {
            "the address is given twice; leave one out"
        };
        let problem = format!("{file} is found twice below {}: {why}", display(first));
        return Error::config("urls", problem);
    }
    let problem = format!(
        "{file} is found twice, at {} and at {}; name it in full, by one name, as often as it is to be read, or leave one address out",
        display(first),
        display(second)
    );
    Error::config("urls", problem)
}

/// Finds what is at `url`, an address below or above mounts: one set of files of each mount.
async fn mounted(stores: &mut Stores<'_>, url: &str, max_files: usize) -> Result<Vec<Hits>> {
    let above = match stores.mounts()?.resolve(url)? {
        Resolved::Below(target) => {
            let mut inner = stores.enter(&target.mount)?;
            let found = at(&mut inner, &target.address, max_files).await;
            stores.leave(&target.mount, inner);
            let mut hits = found?;
            hits.seen = Some(Seen::below(&target, hits.by, hits.place.local));
            return Ok(vec![hits]);
        }
        Resolved::Above(above) => above,
    };
    let mut all = Vec::new();
    for mount in &above.mounts {
        let start = above.below(mount);
        let wanted = match above.pattern.as_deref() {
            Some(pattern) => {
                let wanted = Wanted::new(Pattern::encoded(pattern)?, start);
                if !wanted.may_be_below(pattern)? {
                    continue;
                }
                Some(wanted)
            }
            None => None,
        };
        let mut inner = stores.enter(mount)?;
        let found = match &wanted {
            Some(wanted) => matching(&mut inner, mount, wanted, max_files).await,
            None => at(&mut inner, &mount.root(), max_files).await,
        };
        stores.leave(mount, inner);
        let mut hits = found?;
        hits.seen = Some(Seen::part(&above, mount, hits.by));
        all.push(hits);
    }
    Ok(all)
}

/// Finds what is at `address` of one mount.
async fn at(stores: &mut Stores<'_>, address: &Address, max_files: usize) -> Result<Hits> {
    match address {
        Address::Local(path) => local(stores, path, max_files).await,
        Address::Remote(text) => remote(stores, text, max_files).await,
    }
}

/// Finds the files of `mount` that a pattern names, which begins above it.
async fn matching(stores: &mut Stores<'_>, mount: &Mount, wanted: &Wanted<'_>, max_files: usize) -> Result<Hits> {
    let (place, base) = match mount.root() {
        Address::Remote(text) => stores.remote(&text)?,
        Address::Local(path) => match looked(&path).await? {
            Look::Directory(base) | Look::Delta(base) | Look::Iceberg(base) => (stores.local(), base),
            Look::File(..) | Look::Pattern(..) => {
                let problem =
                    format!("{} is no directory, so that no pattern is below {}", path.display(), mount.url());
                return Err(Error::config("urls", problem));
            }
        },
    };
    directory(place, base, Some(wanted), max_files).await
}

async fn local(stores: &mut Stores<'_>, path: &FsPath, max_files: usize) -> Result<Hits> {
    let place = stores.local();
    match looked(path).await? {
        Look::File(found, size, real) => {
            let mut hits = file(place, found.clone(), Some(size));
            hits.real.extend(real.map(|real| (found, real)));
            hits.written = Some(written(path));
            Ok(hits)
        }
        Look::Directory(path) => {
            surrounded(&path).await?;
            directory(place, path, None, max_files).await
        }
        Look::Delta(path) => Ok(table(FoundTable::Delta(Root::new(place.clone(), path.clone()), None), place, path)),
        Look::Iceberg(path) => {
            Ok(table(FoundTable::Iceberg(Root::new(place.clone(), path.clone()), None), place, path))
        }
        Look::Pattern(path, pattern) => {
            directory(place, path, Some(&Wanted::new(Pattern::new(&pattern)?, "")), max_files).await
        }
    }
}

/// As [`look`], where it may block.
async fn looked(path: &FsPath) -> Result<Look> {
    let asked = path.to_owned();
    blocking(path, move || look(&asked)).await
}

/// Refuses the directory at `path`, from the root of this machine's files, if one above it is a table: only that one's log tells which of
/// its files are rows.
async fn surrounded(path: &Path) -> Result<()> {
    let path = FsPath::new("/").join(path.as_ref());
    let asked = path.clone();
    let look = move || {
        Table::around(&asked).map_or(Ok(()), |(kind, above)| {
            Err(kind.surrounds(&asked.display().to_string(), &above.display().to_string()))
        })
    };
    blocking(&path, look).await
}

/// As [`surrounded`], for a partition's directory `path` of a store; other parts of tables have names that are common there. Whoever may not
/// list what is above it is not told.
async fn surrounded_in(place: &Place, path: &Path) -> Result<()> {
    let is_partition = path.filename().is_some_and(|name| name.contains('='));
    let above = Table::above(FsPath::new(path.as_ref())).filter(|_| is_partition && place.lists);
    for above in above.filter_map(FsPath::to_str) {
        let above = Path::parse(above).unwrap_or_default();
        for sign in SIGNS {
            let log = above.clone().join(sign.log);
            let mut listing = place.store.list(Some(&log));
            while let Some(next) = listing.next().await {
                match next {
                    Ok(meta) if (sign.is_name)(below(&log, &meta.location)) => {
                        return Err(sign.kind.surrounds(&place.url(path), &place.url(&above)));
                    }
                    Ok(_) => {}
                    Err(object_store::Error::NotFound { .. }) => break,
                    Err(error) if is_refusal(&error) => break,
                    Err(error) => return Err(place.failed("list", &log, error)),
                }
            }
        }
    }
    Ok(())
}

/// The result of `look` at `path`, which may block.
async fn blocking<T: Send + 'static>(path: &FsPath, look: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(look).await.map_err(|error| Error::Store {
        operation: "look up".to_owned(),
        url: path.display().to_string(),
        source: error.into(),
    })?
}

enum Look {
    /// Its path and length, and its real path if it is a link.
    File(Path, u64, Option<Path>),
    Directory(Path),
    Delta(Path),
    Iceberg(Path),
    Pattern(Path, String),
}

/// Looks up a local path. A path that exists is taken literally, whatever characters it has.
fn look(path: &FsPath) -> Result<Look> {
    let shown = path.display().to_string();
    let store = |error: std::io::Error| Error::Store {
        operation: "look up".to_owned(),
        url: shown.clone(),
        source: error.into(),
    };
    let missing = || Error::NotFound { what: format!("file or directory {shown}"), hint: String::new() };
    let absolute = |path: &FsPath| -> Result<Path> {
        Path::from_absolute_path(path).map_err(|error| Error::config("urls", format!("{shown}: {error}")))
    };
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            let found = absolute(&std::fs::canonicalize(path).map_err(store)?)?;
            Ok(match Table::at(path) {
                Some(Table::Delta) => Look::Delta(found),
                Some(Table::Iceberg) => Look::Iceberg(found),
                Some(Table::Hudi) | None => Look::Directory(found),
            })
        }
        Ok(meta) => {
            // The directory is made canonical, the file keeps the name it was given.
            let parent = above(path);
            let name = path.file_name().ok_or_else(missing)?;
            if name.to_str().is_some_and(is_staged) {
                return Err(staged(&shown));
            }
            let path = std::fs::canonicalize(parent).map_err(store)?.join(name);
            let is_link = std::fs::symlink_metadata(&path).is_ok_and(|link| link.is_symlink());
            // A link that the system alone can follow, such as those of /proc/self/fd, is known by its own name.
            let real =
                is_link.then(|| std::fs::canonicalize(&path).ok().and_then(|real| absolute(&real).ok())).flatten();
            Ok(Look::File(absolute(&path)?, meta.len(), real))
        }
        // A pattern may be longer than a name.
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidFilename) => {
            let text = path.to_str().filter(|text| glob::is_pattern(text)).ok_or_else(missing)?;
            let (fixed, pattern) = glob::split(text);
            let fixed = if fixed.is_empty() { "." } else { fixed };
            match std::fs::canonicalize(fixed) {
                Ok(fixed) => Ok(Look::Pattern(absolute(&fixed)?, pattern.to_owned())),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(missing()),
                Err(error) => Err(store(error)),
            }
        }
        Err(error) => Err(store(error)),
    }
}

/// Finds the table `name` in its catalog.
#[cfg(feature = "cloud")]
async fn catalogued(stores: &mut Stores<'_>, name: &str, max_files: usize) -> Result<Hits> {
    let named = catalog::table(name, stores.access()).await?;
    let mut hits = match named.place(name)? {
        Location::Here(path) => local(stores, FsPath::new(&path), max_files).await?,
        Location::Store(url) => {
            let (place, path) = stores.vended(&named, &url)?;
            match &named.content {
                Content::Iceberg => file(place, path, None),
                Content::Delta(_) => {
                    table(FoundTable::Delta(Root::new(place.clone(), path.clone()), None), place, path)
                }
                Content::Parquet(_) => directory(place, path, None, max_files).await?,
            }
        }
    };
    named.check(name, hits.table.as_ref().map_or(PLAIN, FoundTable::kind))?;
    let base = Path::parse(&hits.base).unwrap_or_default();
    hits.files.retain(|(path, ..)| named.content.has(below(&base, path)));
    if let (Some(FoundTable::Delta(_, commits)), Content::Delta(ratified)) = (&mut hits.table, named.content) {
        *commits = ratified;
    }
    Ok(hits)
}

async fn remote(stores: &mut Stores<'_>, text: &str, max_files: usize) -> Result<Hits> {
    #[cfg(feature = "cloud")]
    if catalog::is_name(text) {
        return catalogued(stores, text, max_files).await;
    }
    // In an http URL a question mark begins a query; elsewhere it is part of a pattern.
    let http = text.starts_with("http://") || text.starts_with("https://");
    let path_at = text.find("://").map_or(0, |at| at + 3);
    let (authority, rest) = text.split_at(path_at);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if glob::is_pattern(path) && !(http && path.contains('?')) {
        let (fixed, pattern) = glob::split(path);
        let (place, base) = stores.remote(&format!("{authority}{host}{fixed}"))?;
        return directory(place, base, Some(&Wanted::new(Pattern::encoded(pattern)?, "")), max_files).await;
    }
    let (place, path) = stores.remote(text)?;
    let name = path.filename().unwrap_or_default();
    let named = !text.ends_with('/') && !name.is_empty();
    if named && (!place.lists || extension(name).is_some_and(is_parquet) || is_metadata(name)) {
        return Ok(file(place, path, None));
    }
    surrounded_in(&place, &path).await?;
    // Stores of keys alone may have a file and a directory of one name; looking for it takes no longer than listing.
    let listing = directory(place.clone(), path.clone(), None, max_files);
    let (hits, key) = match named && place.numbered.is_some() {
        true => tentative::beside(listing, &*place.store, &path).await,
        false => (listing.await, None),
    };
    let hits = hits?;
    if !named {
        return Ok(hits);
    }
    if !hits.files.is_empty() || hits.table.is_some() {
        return match key {
            // An empty one marks the directory.
            Some(meta) if meta.size > 0 => Err(is_both(&place.url(&path))),
            _ => Ok(hits),
        };
    }
    // Not a directory; perhaps a file without an extension.
    let key = match key {
        Some(meta) => Ok(meta),
        None => place.store.head(&path).await,
    };
    match key {
        Ok(meta) => Ok(file(place, path, Some(meta.size))),
        Err(object_store::Error::NotFound { .. }) => Ok(hits),
        Err(error) => Err(place.failed("look up", &path, error)),
    }
}

/// The error for the key `url` with others below it: the rows of one of the two would be missing.
fn is_both(url: &str) -> Error {
    let problem = format!(
        "{url} is a file, and a directory of that name is there too: write {url}/ for what is below it, or rename one"
    );
    Error::config("urls", problem)
}

fn file(place: Place, path: Path, size: Option<u64>) -> Hits {
    let base = path.as_ref().rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
    if let Some(name) = path.filename().filter(|name| is_metadata(name)) {
        // As a rule they are right below the table.
        let (above, directory) = base.rsplit_once('/').unwrap_or(("", &base));
        let above = if directory == METADATA { above } else { &base };
        let above = Path::parse(above).unwrap_or_default();
        let found = Found { place: place.clone(), name: name.into(), path: path.clone(), size, stamp: None };
        return table(FoundTable::Iceberg(Root::new(place.clone(), above.clone()), Some(found)), place, above);
    }
    let files = vec![(path, size, None)];
    Hits { place, base, by: By::Name, files, real: HashMap::new(), written: None, index: None, table: None, seen: None }
}

/// Lists what is below `base`, keeping what is `wanted`, if a pattern says so. Without, it must not hold a [`Table`] but may be one
/// itself: then the listing ends at once.
async fn directory(place: Place, base: Path, wanted: Option<&Wanted<'_>>, max_files: usize) -> Result<Hits> {
    let (foreign, index, log, current) = (OnceLock::new(), OnceLock::new(), OnceLock::new(), OnceLock::new());
    let renamed = Mutex::new(Vec::new());
    let accept = |name: &str| match wanted {
        Some(wanted) => wanted.is_meant(name, place.local),
        None => {
            if Table::is_log(name) {
                log.get_or_init(|| ());
            } else if Table::is_own_metadata(name) {
                current.get_or_init(|| ());
            } else if let Some(kind) = Table::of(name) {
                foreign.get_or_init(|| kind);
            }
            if name == INDEX {
                index.get_or_init(|| ());
            }
            if is_renamed(name, place.local) {
                renamed.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
            }
            is_data(name, 0, place.local)
        }
    };
    let is_table = || log.get().is_some() || current.get().is_some();
    let Listed { files: found, real } = place.list(&base, max_files, accept, is_table).await?;
    let root = Root::new(place.clone(), base.clone());
    if log.get().is_some() {
        return Ok(table(FoundTable::Delta(root, None), place, base));
    }
    if current.get().is_some() {
        return Ok(table(FoundTable::Iceberg(root, None), place, base));
    }
    if let Some(kind) = foreign.into_inner() {
        return Err(kind.refused(&place.url(&base)));
    }
    let mut renamed = std::mem::take(&mut *renamed.lock().unwrap_or_else(PoisonError::into_inner));
    renamed.sort_unstable();
    renamed.dedup();
    if !renamed.is_empty() {
        // Beside a file, one with a further ending is a copy.
        let names: BTreeSet<&str> = found.iter().map(|meta| below(&base, &meta.location)).collect();
        renamed.retain(|name| name.rsplit_once('.').is_none_or(|(bare, _)| !names.contains(bare)));
    }
    for name in renamed.iter().take(LOOKED_AT) {
        refuse_whole(&place, &base, name).await?;
    }
    let file = |meta: ObjectMeta| (meta.location.clone(), Some(meta.size), Some(Stamp::of(&meta)));
    let files = found.into_iter().filter(|meta| place.local || !marks_directory(meta)).map(file).collect();
    let path = base.clone().join(INDEX);
    let beside = Found { place: place.clone(), path, name: INDEX.into(), size: None, stamp: None };
    let index = wanted.is_none().then(|| (beside, index.get().is_some()));
    let by = if wanted.is_some() { By::Pattern } else { By::Directory };
    Ok(Hits { place, base: base.to_string(), by, files, real, written: None, index, table: None, seen: None })
}

/// A table at the directory `base`.
fn table(table: FoundTable, place: Place, base: Path) -> Hits {
    let base = base.to_string();
    let (files, real, by) = (Vec::new(), HashMap::new(), By::Directory);
    Hits { place, base, by, files, real, written: None, index: None, table: Some(table), seen: None }
}

#[cfg(test)]
mod tests;
