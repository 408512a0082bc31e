//! The content of a dataset's footers as one document, which replaces reading them.
//!
//! ```text
//!   magic · version of a table, in an index of one, and the number of its schema, if that is not the version's own · root · cells · _common_metadata · heads · files: name, version, digest, head, row groups · SHA-256 of all of it
//! ```
//!
//! A file's part is used only for the version of the file that it was made of: the listing tells, and every later read names it. So
//! an index that is out of date costs requests, or is an error where it was asked for, and never gives other rows.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::footer::Footer;
use super::head::Head;
use super::limits::Limits;
use super::outline::Sealed;
use super::packed::{Broken, Packed, Part, Reader, put, put_signed};
use super::{Dataset, OpenOptions, described, within};
use crate::error::{Error, Place, Result};
use crate::store::{self, Base, Found, Listing, Stamp};

/// The first bytes. The last one before the line's end is the version of what follows.
const MAGIC: &[u8; 16] = b"bowstring index\x01";

/// The version of what follows if that begins with the version of a table.
const OF_TABLE: u8 = 2;

/// The version of what follows if that begins with the version of a table and the number of a schema.
const OF_SCHEMA: u8 = 3;

const DIGEST_BYTES: usize = 32;

/// Source of the footers' content.
///
/// As text it is `auto`, `none` or an address. [`Bytes`](Self::Bytes) are of this process alone, and are written as `auto`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Index {
    /// From `_bowstring_index` in the dataset's directory, as far as it is of the files that are there; footers of others are read.
    #[default]
    Auto,
    /// From the footers.
    None,
    /// From the file at this address, which must be of the files that are there.
    At(String),
    /// From [`Dataset::index`] of another process, which has listed the files just now. Files of this machine are listed again.
    Bytes(Bytes),
}

impl From<String> for Index {
    fn from(text: String) -> Self {
        match text.as_str() {
            "auto" => Self::Auto,
            "none" => Self::None,
            _ => Self::At(text),
        }
    }
}

impl From<Index> for String {
    fn from(index: Index) -> Self {
        match index {
            Index::Auto | Index::Bytes(_) => "auto".to_owned(),
            Index::None => "none".to_owned(),
            Index::At(url) => url,
        }
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("Auto"),
            Self::None => f.write_str("None"),
            Self::At(url) => write!(f, "At({})", store::display(url)),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
        }
    }
}

/// An index that was read and checked.
#[derive(Debug)]
pub(super) struct Known {
    /// What it pins of the table that it is of, if it is of one.
    pub(super) table: Option<Pinned>,
    base: Base,
    /// The addresses that it was opened by, as they may be shown.
    urls: Vec<String>,
    /// Description of the first file's cells by bowstring's writer.
    cells: Option<String>,
    /// Petastorm's metadata beside the files, if it was looked for.
    pub(super) beside: Option<Option<described::Beside>>,
    heads: Vec<Arc<Head>>,
    files: Vec<KnownFile>,
    /// Row groups of all files.
    groups: Arc<Packed>,
    /// Numbers of the files by name, made when a file is looked for that is not at its place.
    names: OnceLock<HashMap<Arc<str>, usize>>,
}

/// What an index pins of a table: all that open it with the index have the same rows and columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pinned {
    pub(super) version: u64,
    /// The number of the schema, where it is not the version's own.
    pub(super) schema: Option<i64>,
}

/// One file of an index.
#[derive(Debug)]
struct KnownFile {
    name: Arc<str>,
    stamp: Stamp,
    digest: [u8; 32],
    head: usize,
    groups: Range<usize>,
    sealed: Sealed,
}

impl Dataset {
    /// Content of the footers, for [`Index::Bytes`] or a file: the same for every filter and selection of columns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the files are in several stores and not below mounts, or in one that does not tell versions apart, or if a
    /// filter left out some of those of a table.
    pub fn index(&self) -> Result<Vec<u8>> {
        let inner = &self.inner;
        let unsupported = |what: &str, hint: &str| Error::unsupported(what.to_owned(), hint.to_owned());
        let Some(base) = &inner.base else {
            let hint = "index each store's files on their own, or give the stores one namespace by mounts (bow://)";
            return Err(unsupported("an index of files in several stores", hint));
        };
        if inner.pruned > 0 {
            return Err(unsupported("an index of a part of a table's files", "open the table without a filter for it"));
        }
        let mut bytes = MAGIC.to_vec();
        if let (Some(table), Some(version)) = (&inner.table, bytes.last_mut()) {
            *version = if table.schema.is_some() { OF_SCHEMA } else { OF_TABLE };
            put(&mut bytes, table.version);
            if let Some(schema) = table.schema {
                put_signed(&mut bytes, schema as u64);
            }
        }
        let (store, path) = base.parts();
        put_text(&mut bytes, store);
        put_text(&mut bytes, path);
        put(&mut bytes, inner.urls.len() as u64);
        inner.urls.iter().for_each(|url| put_text(&mut bytes, url));
        put_option(&mut bytes, inner.cells.as_deref().map(str::as_bytes));
        match &inner.beside {
            None => bytes.push(0),
            Some(None) => bytes.push(1),
            Some(Some(beside)) => {
                bytes.push(2);
                put_text(&mut bytes, &beside.name);
                put_bytes(&mut bytes, &beside.footer);
            }
        }
        put(&mut bytes, inner.layouts.len() as u64);
        for layout in &inner.layouts {
            put_bytes(&mut bytes, &layout.head.schema);
            put_option(&mut bytes, layout.head.arrow.as_deref().map(str::as_bytes));
        }
        put(&mut bytes, inner.files.len() as u64);
        let mut before = "";
        for (file, entry) in inner.files.iter().zip(&inner.manifest.files) {
            let stamp = file.object.stamp();
            if stamp.etag.is_none() && stamp.modified.is_none() {
                let what = format!("an index of {}, of which the store tells no version", file.object.name());
                return Err(unsupported(&what, "index datasets on disks and in object stores"));
            }
            // Names follow each other closely.
            let same = before.bytes().zip(entry.path.bytes()).take_while(|(a, b)| a == b).count();
            let same = (0..=same).rev().find(|at| entry.path.is_char_boundary(*at)).unwrap_or(0);
            put(&mut bytes, same as u64);
            put_text(&mut bytes, entry.path.get(same..).unwrap_or_default());
            before = &entry.path;
            put(&mut bytes, stamp.size);
            put_option(&mut bytes, stamp.etag.as_deref().map(str::as_bytes));
            match stamp.modified {
                None => bytes.push(0),
                Some(modified) => {
                    bytes.push(1);
                    put_signed(&mut bytes, modified as u64);
                }
            }
            bytes.extend_from_slice(&entry.footer);
            put(&mut bytes, file.layout as u64);
            put(&mut bytes, file.sealed.len() as u64);
            for (group, leaf) in &file.sealed {
                put(&mut bytes, *group as u64);
                put(&mut bytes, *leaf as u64);
            }
            put(&mut bytes, file.groups as u64);
            bytes.extend_from_slice(inner.packed.bytes_of(file.first..file.first + file.groups));
        }
        let digest = Sha256::digest(&bytes);
        bytes.extend_from_slice(&digest);
        Ok(bytes)
    }

    /// Writes the [index](Self::index) to the file at address `to`, or beside the dataset, where openings find it; its address.
    /// An existing index, or an empty file, is replaced as a whole.
    ///
    /// # Errors
    /// As there; [`Error::Config`] without `to` for a dataset that is no single directory, if something else is there, and for a name of
    /// data below the dataset's directory; [`Error::Store`].
    pub async fn write_index(&self, to: Option<&str>, options: &OpenOptions) -> Result<String> {
        // A file is renamed into its place, which would replace a device.
        let there = to.and_then(|to| std::fs::metadata(to.strip_prefix("file://").unwrap_or(to)).ok());
        if let (Some(to), Some(_)) = (to, there.filter(|there| !there.is_file())) {
            return Err(Error::config("output", format!("{to} is no file; name one")));
        }
        let place = match (to, &self.inner.place) {
            (Some(to), _) => Found::at(to, options.access())?,
            (None, Some(place)) => place.clone(),
            (None, None) => {
                let dataset = match &self.inner.table {
                    Some(_) => "a table, whose index is of one version, has no place for it",
                    None => "the dataset is not a single directory of a store that lists",
                };
                let problem = format!("{dataset}; say where the index goes, and give that to loaders");
                return Err(Error::config("output", problem));
            }
        };
        if let (Some(to), Some(beside), None) = (to, &self.inner.place, &self.inner.table) {
            // A listing names the directory without links.
            let real = real(to).map_or_else(|| Ok(place.clone()), |real| Found::at(&real, options.access()))?;
            if place.is_data_beside(beside) || real.is_data_beside(beside) {
                let problem = format!(
                    "{to} is below the dataset, and later openings would take it for data; name it so that it begins with _ or a dot, or \
                     put it elsewhere"
                );
                return Err(Error::config("output", problem));
            }
        }
        let dataset = self.clone();
        let made = tokio::task::spawn_blocking(move || dataset.index());
        let closed = |error| Err(Error::Closed { why: format!("the index was not made: {error}") });
        let bytes = made.await.unwrap_or_else(closed)?;
        let writing = async {
            // `-o` is easily taken for the file to make an index of. Where only writing is permitted, nobody can look.
            let there = place.beginning(MAGIC.len() as u64).await?.unwrap_or_default();
            if !there.is_empty() && !there.starts_with(&MAGIC[..MAGIC.len() - 1]) {
                let problem = format!("{} is there and is no index; name another place, or remove it", place.url());
                return Err(Error::config("output", problem));
            }
            place.put(bytes.into()).await
        };
        within(options.timeout, format!("the index {}", place.url()), writing).await?;
        Ok(place.url())
    }
}

/// The path of a local file `to`, with no links in its directory's.
fn real(to: &str) -> Option<String> {
    let path = Path::new(to.strip_prefix("file://").unwrap_or(to));
    let directory = std::fs::canonicalize(path.parent()?).ok()?;
    directory.join(path.file_name()?).to_str().map(str::to_owned)
}

impl Known {
    /// Reads the index in `bytes` from `place`. Nothing of it is believed.
    pub(super) fn read(bytes: &[u8], limits: &Limits, place: &Place) -> Result<Self> {
        let corrupt = |what: &str| Error::corrupt(place.clone(), format!("the index is damaged: {what}"));
        let version = MAGIC.len() - 1;
        if bytes.get(..version) != MAGIC.get(..version) {
            return Err(corrupt("it is not one, or it is cut off"));
        }
        let form = bytes.get(version).copied().unwrap_or_default();
        if !(1..=OF_SCHEMA).contains(&form) {
            let own = env!("CARGO_PKG_VERSION");
            let what = format!("{place}: an index of form {form}; bowstring {own} reads forms 1 to {OF_SCHEMA}");
            return Err(Error::unsupported(what, "make it again with bowstring index"));
        }
        let end = bytes.len().checked_sub(DIGEST_BYTES).filter(|end| *end >= MAGIC.len());
        let (content, digest) = bytes.split_at(end.ok_or_else(|| corrupt("it is cut off"))?);
        if Sha256::digest(content).as_slice() != digest {
            return Err(corrupt("its digest is not that of its content"));
        }
        let mut reader = Reader { rest: content.get(MAGIC.len()..).unwrap_or_default() };
        Self::content(&mut reader, form, limits, place).map_err(|fault| match fault {
            Fault::Bytes(what) => corrupt(what),
            Fault::Told(error) => error,
        })
    }

    fn content(reader: &mut Reader<'_>, form: u8, limits: &Limits, place: &Place) -> Result<Self, Fault> {
        let table = match form {
            OF_TABLE => Some(Pinned { version: reader.number()?, schema: None }),
            OF_SCHEMA => Some(Pinned { version: reader.number()?, schema: Some(reader.signed()? as i64) }),
            _ => None,
        };
        let (store, path) = (reader.text()?, reader.text()?);
        let base = Base::new(store, path);
        let mut urls = Vec::new();
        for _ in 0..reader.count()? {
            urls.push(reader.text()?.to_owned());
        }
        let cells = reader.option()?.map(text).transpose()?.map(str::to_owned);
        let beside = match reader.byte()? {
            0 => None,
            1 => Some(None),
            2 => {
                let name = reader.text()?.into();
                let footer = Bytes::copy_from_slice(reader.bytes()?);
                Some(Some(described::Beside { name, footer }))
            }
            _ => return Err("what is beside it is unknown".into()),
        };
        let mut heads = Vec::new();
        for _ in 0..reader.count()? {
            let schema = reader.bytes()?;
            let arrow = reader.option()?.map(text).transpose()?;
            heads.push(Arc::new(Head::new(schema, arrow, limits, place).map_err(Fault::Told)?));
        }
        let count = reader.count()?;
        if count > limits.max_files {
            let (asked, limit) = (count as u64, limits.max_files as u64);
            let what = format!("{place}: the number of files");
            return Err(Fault::Told(Error::limit(what, asked, limit, "limits.max_files")));
        }
        // A file takes its digest at least.
        let room = count.min(reader.rest.len() / DIGEST_BYTES);
        let mut files: Vec<KnownFile> = Vec::with_capacity(room);
        let mut groups = Packed::with_room(reader.rest.len());
        let mut name = String::new();
        for _ in 0..count {
            let same = reader.count_to(usize::MAX)?;
            if !name.is_char_boundary(same) {
                return Err("a name is like none before it".into());
            }
            name.truncate(same);
            name.push_str(reader.text()?);
            files.push(KnownFile::read(reader, name.as_str().into(), &heads, &mut groups)?);
        }
        groups.shrink();
        if !reader.rest.is_empty() {
            return Err("it goes on behind its end".into());
        }
        let groups = Arc::new(groups);
        Ok(Self { table, base, urls, cells, beside, heads, files, groups, names: OnceLock::new() })
    }

    /// Its files, if they are those that `urls` lead to, in a store that all processes see alike. Mounts may lead each process elsewhere.
    pub(super) fn listing(&self, urls: &[String], options: &OpenOptions) -> Result<Option<Listing>> {
        if self.base.is_of_mounts() {
            return Ok(None);
        }
        let shown = urls.iter().map(|url| store::display(url));
        let Some(first) = urls.first().filter(|_| shown.eq(self.urls.iter().cloned())) else { return Ok(None) };
        if store::is_named(first) || store::is_local(first, options.access())? {
            return Ok(None);
        }
        let names: Vec<Arc<str>> = self.files.iter().map(|file| Arc::clone(&file.name)).collect();
        Listing::known(first, options.access(), &self.base, &names).map(Some)
    }

    /// Description of the cells of file `name` by bowstring's writer, if it is the first file.
    pub(super) fn cells_of(&self, name: &str) -> Option<Option<&str>> {
        self.files.first().filter(|first| *first.name == *name).map(|_| self.cells.as_deref())
    }

    /// The first of `found` that is not as it was, and the version that it had; only with its name if the index has no such file.
    pub(super) fn outdated<'a>(&self, found: &'a [Found]) -> Option<(&'a Found, Option<&Stamp>)> {
        found.iter().enumerate().find_map(|(at, found)| match self.file(at, found) {
            Ok(_) => None,
            Err(stamp) => Some((found, stamp)),
        })
    }

    /// Footer of `found`, number `at` of those that were found, if the index is of its version, as far as a listing told that.
    pub(super) fn footer(&self, at: usize, found: &Found) -> Option<Footer> {
        let file = self.file(at, found).ok()?;
        let head = Arc::clone(self.heads.get(file.head)?);
        Some(Footer {
            object: found.clone().pinned(file.stamp.clone()),
            digest: file.digest,
            head,
            groups: Part { packed: Arc::clone(&self.groups), numbers: file.groups.clone() },
            sealed: file.sealed.clone(),
            wide: Vec::new(),
            cells: None,
            spark: None,
            bytes: None,
        })
    }

    fn names(&self) -> &HashMap<Arc<str>, usize> {
        // A file that was named twice is there twice, and says the same.
        let named = || self.files.iter().enumerate().map(|(at, file)| (Arc::clone(&file.name), at)).collect();
        self.names.get_or_init(named)
    }

    /// The file of the name of `found`. In most cases it has the same number `at` in both.
    fn file(&self, at: usize, found: &Found) -> Result<&KnownFile, Option<&Stamp>> {
        let same_place = self.files.get(at).filter(|file| file.name == found.name);
        let file = same_place.or_else(|| self.files.get(*self.names().get(&found.name)?)).ok_or(None)?;
        let same = match &found.stamp {
            // A listing that tells a length alone tells no versions apart.
            Some(stamp) => file.stamp.same(stamp) && (stamp.etag.is_some() || stamp.modified.is_some()),
            None => found.size.is_none_or(|size| size == file.stamp.size),
        };
        if same { Ok(file) } else { Err(Some(&file.stamp)) }
    }
}

impl KnownFile {
    /// The next file, `name`, whose row groups go behind `packed`.
    fn read(reader: &mut Reader<'_>, name: Arc<str>, heads: &[Arc<Head>], packed: &mut Packed) -> Result<Self, Fault> {
        let size = reader.number()?;
        let etag = reader.option()?.map(text).transpose()?.map(str::to_owned);
        let modified = match reader.byte()? {
            0 => None,
            _ => Some(reader.signed()? as i64),
        };
        if etag.is_none() && modified.is_none() {
            return Err("a file has no version".into());
        }
        let digest = reader.take(DIGEST_BYTES)?.try_into().map_err(|_| "it is cut off")?;
        let head = reader.count_to(usize::MAX)?;
        let schema = heads.get(head).ok_or("a file is of an unknown schema")?.descriptor();
        let mut sealed = Sealed::new();
        for _ in 0..reader.count()? {
            sealed.push((reader.count_to(usize::MAX)?, reader.count_to(usize::MAX)?));
        }
        if !sealed.is_sorted() {
            return Err("its encrypted columns are in no order".into());
        }
        let count = reader.count()?;
        let first = packed.len();
        reader.rest = packed.read(reader.rest, count, &schema, size)?;
        let groups = first..packed.len();
        Ok(Self { name, stamp: Stamp { etag, size, modified }, digest, head, groups, sealed })
    }
}

/// Fault of an index: in its bytes, or in their meaning.
enum Fault {
    Bytes(Broken),
    Told(Error),
}

impl From<Broken> for Fault {
    fn from(what: Broken) -> Self {
        Self::Bytes(what)
    }
}

fn text(bytes: &[u8]) -> Result<&str, Broken> {
    std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")
}

fn put_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    put(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

fn put_text(bytes: &mut Vec<u8>, value: &str) {
    put_bytes(bytes, value.as_bytes());
}

fn put_option(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => bytes.push(0),
        Some(value) => {
            bytes.push(1);
            put_bytes(bytes, value);
        }
    }
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("it is cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Broken> {
        Ok(self.take(1)?.first().copied().unwrap_or(0))
    }

    fn count_to(&mut self, most: usize) -> Result<usize, Broken> {
        let count = usize::try_from(self.number()?).ok().filter(|count| *count <= most);
        count.ok_or("it has more of something than bytes")
    }

    /// A count of things that take a byte each at least.
    fn count(&mut self) -> Result<usize, Broken> {
        self.count_to(self.rest.len())
    }

    fn bytes(&mut self) -> Result<&'a [u8], Broken> {
        let count = self.count()?;
        self.take(count)
    }

    fn text(&mut self) -> Result<&'a str, Broken> {
        text(self.bytes()?)
    }

    fn option(&mut self) -> Result<Option<&'a [u8]>, Broken> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            _ => Err("something is neither there nor not"),
        }
    }
}
