//! Reading the metadata of a table, and the entries of the manifests of one snapshot.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{StreamExt, TryStreamExt};

use super::current::{HINT, Why, current};
use super::manifest::{Content, Entry, Manifest, of_entry, of_entry_with_metrics, of_list};
use super::metadata::{self, Metadata, Snapshot};
use super::{avro, manifest};
use crate::dataset::{OpenOptions, within};
use crate::error::{Error, Place, Result};
use crate::store::{Found, METADATA, Root};

/// The option that limits a file of metadata.
const LIMIT: &str = "limits.max_index_bytes";

/// Bytes of a hint.
const HINT_BYTES: u64 = 4096;

/// Advice in the error of a table that is not read.
pub(super) const ADVICE: &str =
    "read the table with Spark and hand the rows over (docs/spark.md), or write a copy without it";

/// The files of one snapshot.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) data: Vec<Entry>,
    pub(super) deletes: Vec<Entry>,
}

/// Finds the current file of metadata of the table at `root`.
pub(super) async fn find(root: &Root, options: &OpenOptions) -> Result<Found> {
    let url = root.url();
    let listing = root.list(METADATA, options.limits.max_files.saturating_mul(4));
    let files = within(options.timeout, format!("the metadata of the table {url}"), listing).await?;
    let hint = match files.iter().find(|file| *file.name == *HINT) {
        Some(hint) => {
            let bytes = within(options.timeout, format!("{METADATA}/{HINT}"), hint.whole(HINT_BYTES, LIMIT)).await?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
        None => None,
    };
    let name = current(files.iter().map(|file| file.name.as_ref()), hint.as_deref()).map_err(|why| {
        let place = Place::file(format!("{url}/{METADATA}"));
        match why {
            Why::None => Error::corrupt(place, "there is no metadata of a table in it"),
            Why::Hint => Error::corrupt(place, format!("{HINT} is no number; name the file of metadata that is meant")),
            Why::Missing { version } => {
                let what = format!("{HINT} says {version}, and v{version}.metadata.json is not there; name the file of metadata that is meant");
                Error::corrupt(place, what)
            }
            Why::Several { first, second } => {
                let problem = format!(
                    "{url}: either of {first} and {second} may be its current metadata, which its catalog alone knows; give the address of the one \
                     that is meant"
                );
                Error::config("urls", problem)
            }
        }
    })?;
    let found = files.iter().find(|file| *file.name == *name).cloned();
    found.ok_or_else(|| Error::Closed { why: "a file of metadata was not listed".to_owned() })
}

/// Reads the metadata in `found`.
pub(super) async fn read(found: &Found, options: &OpenOptions) -> Result<Metadata> {
    let reading = found.whole(options.limits.max_index_bytes, LIMIT);
    let bytes = within(options.timeout, format!("the metadata {}", found.url()), reading).await?;
    let (url, most) = (found.url(), options.limits.max_index_bytes);
    blocking(move || {
        let bytes = unpacked(bytes, most, &url)?;
        Metadata::parse(&bytes).map_err(|fault| fault_of(fault, &url))
    })
    .await
}

/// `fault` in the metadata at `url`.
pub(super) fn fault_of(fault: metadata::Fault, url: &str) -> Error {
    match fault {
        metadata::Fault::Broken(what) => Error::corrupt(Place::file(url), format!("metadata of Iceberg: {what}")),
        metadata::Fault::Refused(what) => Error::unsupported(format!("{url}: {what} of Iceberg"), ADVICE),
    }
}

/// The same bytes without gzip.
fn unpacked(bytes: Bytes, most: u64, url: &str) -> Result<Bytes> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    let reading = flate2::read::GzDecoder::new(&*bytes).take(most.saturating_add(1)).read_to_end(&mut unpacked);
    reading.map_err(|error| {
        Error::corrupt_by(Place::file(url), "metadata of Iceberg: its compression is damaged", error)
    })?;
    if unpacked.len() as u64 > most {
        return Err(Error::limit(url, unpacked.len() as u64, most, LIMIT));
    }
    Ok(unpacked.into())
}

/// Work that takes its time.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = crate::dataset::held::spawn(work).await;
    done.unwrap_or_else(|error| Err(Error::Closed { why: format!("a table was not read: {error}") }))
}

/// The files of `snapshot` of the table at `root`, with what is said of their columns `ids`.
pub(super) async fn entries(
    root: &Root,
    snapshot: &Snapshot,
    ids: Arc<[i32]>,
    options: &OpenOptions,
) -> Result<Entries> {
    let Some(list) = &snapshot.manifest_list else {
        let what = format!("{}: a snapshot without a list of manifests of Iceberg", root.url());
        return Err(Error::unsupported(what, "rewrite its manifests, with a writer of today"));
    };
    let list = root.literal(list, options.access())?;
    let manifests = manifests(&list, options).await?;
    let mut entries = Entries::default();
    let mut kept = 0_u64;
    let mut reading = futures::stream::iter(manifests)
        .map(|manifest| entries_of(root, manifest, Arc::clone(&ids), options))
        .buffered(options.concurrency)
        .boxed();
    while let Some(found) = reading.try_next().await? {
        let (data, deletes): (Vec<_>, Vec<_>) = found.into_iter().partition(|entry| entry.content == Content::Data);
        kept = data.iter().chain(&deletes).map(Entry::bytes).fold(kept, u64::saturating_add);
        entries.data.extend(data);
        entries.deletes.extend(deletes);
        let files = entries.data.len().max(entries.deletes.len()) as u64;
        if files > options.limits.max_files as u64 {
            return Err(Error::limit(
                "the number of files",
                files,
                options.limits.max_files as u64,
                "limits.max_files",
            ));
        }
        if kept > options.limits.max_index_bytes {
            let what = format!("the files of the table {}", root.url());
            return Err(Error::limit(what, kept, options.limits.max_index_bytes, LIMIT));
        }
    }
    Ok(entries)
}

/// The manifests in the list at `found`.
async fn manifests(found: &Found, options: &OpenOptions) -> Result<Vec<Manifest>> {
    let most = options.limits.max_files;
    records(found, options, of_list, most, |record| Manifest::of(&record).map(Some), Manifest::bytes).await
}

/// The files that `manifest` has.
async fn entries_of(root: &Root, manifest: Manifest, ids: Arc<[i32]>, options: &OpenOptions) -> Result<Vec<Entry>> {
    let found = root.literal(&manifest.path, options.access())?;
    let told = manifest.files;
    let wanted = if ids.is_empty() { of_entry } else { of_entry_with_metrics };
    let take = move |record| Entry::of(&record, &manifest, &ids);
    let entries = records(&found, options, wanted, options.limits.max_files, take, Entry::bytes).await?;
    match told.filter(|told| *told != entries.len() as u64) {
        // One that is cut off between two blocks looks like a whole one.
        Some(told) => {
            let what = format!("a manifest of Iceberg: it has {} files, and {told} by its list", entries.len());
            Err(Error::corrupt(Place::file(found.name.as_ref()), what))
        }
        None => Ok(entries),
    }
}

/// Reason why a file of Avro cannot be read.
enum Fault {
    Avro(avro::Fault),
    Entry(manifest::Fault),
    Many(usize),
    /// The kept part of it has so many bytes.
    Large(u64),
}

impl From<avro::Fault> for Fault {
    fn from(fault: avro::Fault) -> Self {
        Self::Avro(fault)
    }
}

/// Results of `take` for the records of the file of Avro `found`, at most `most`; `bytes` says what keeping one takes.
async fn records<T: Send + 'static>(
    found: &Found,
    options: &OpenOptions,
    wanted: fn(i32) -> bool,
    most: usize,
    take: impl Fn(avro::Record) -> Result<Option<T>, manifest::Fault> + Send + 'static,
    bytes: fn(&T) -> u64,
) -> Result<Vec<T>> {
    let room = options.limits.max_index_bytes;
    let file = within(options.timeout, format!("the manifest {}", found.url()), found.whole(room, LIMIT)).await?;
    let (name, url) = (found.name.to_string(), found.url());
    blocking(move || {
        let (mut all, mut kept) = (Vec::new(), 0_u64);
        let mut keep = |record| {
            let Some(one) = take(record).map_err(Fault::Entry)? else { return Ok(()) };
            kept = kept.saturating_add(bytes(&one));
            all.push(one);
            match all.len() > most {
                true => Err(Fault::Many(all.len())),
                false if kept > room => Err(Fault::Large(kept)),
                false => Ok(()),
            }
        };
        let read = avro::File::open(&file, room).map_err(Fault::Avro).and_then(|file| file.each(&wanted, &mut keep));
        let broken = |what: &str| Error::corrupt(Place::file(name.as_str()), format!("a manifest of Iceberg: {what}"));
        match read {
            Ok(()) => Ok(all),
            Err(Fault::Avro(avro::Fault::Broken(what))) => Err(broken(&what)),
            Err(Fault::Entry(manifest::Fault::Broken(what))) => Err(broken(what)),
            Err(Fault::Avro(avro::Fault::Large(asked)) | Fault::Large(asked)) => {
                Err(Error::limit(url, asked, room, LIMIT))
            }
            Err(Fault::Avro(avro::Fault::Codec(codec))) => {
                Err(Error::unsupported(format!("{url}: a manifest of Iceberg in compression {codec:?}"), ADVICE))
            }
            Err(Fault::Entry(manifest::Fault::Refused(what))) => {
                Err(Error::unsupported(format!("{what} of Iceberg"), ADVICE))
            }
            Err(Fault::Many(asked)) => {
                Err(Error::limit("the number of files", asked as u64, most as u64, "limits.max_files"))
            }
        }
    })
    .await
}
