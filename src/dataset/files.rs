//! The files of a dataset and what their footers say, from the footers or from an index.

use std::sync::Arc;

use futures::stream::{StreamExt, TryStreamExt};

use super::any_table::AnyTable;
use super::footer::{Footer, Footers};
use super::index::Known;
use super::{Index, Limits, OpenOptions, described, within};
use crate::error::{Error, Place, Result};
use crate::store::cache::{CachePlace, CacheReader};
use crate::store::{self, Found, Listing};

/// See the module.
pub(super) struct Files {
    /// Their listing, without the files themselves.
    pub(super) listing: Listing,
    pub(super) footers: Vec<Footer>,
    /// Description of the first one's cells by bowstring's writer.
    pub(super) cells: Option<String>,
    /// Petastorm's metadata beside them, if that is known.
    pub(super) beside: Option<Option<described::Beside>>,
    /// The table that they are of, if they are of one.
    pub(super) table: Option<AnyTable>,
    /// Cache that they are read through, if there is one.
    pub(super) cache: Option<CacheReader>,
}

impl Files {
    /// These files, as they are.
    pub(super) async fn of(found: Vec<Found>, options: &OpenOptions) -> Result<Self> {
        let (footers, cells) = footers(found, None, options).await?;
        Ok(Self { listing: Listing::default(), footers, cells, beside: Some(None), table: None, cache: None })
    }

    /// Finds the files behind `urls`, and reads the footers that no index has.
    pub(super) async fn find(urls: &[String], options: &OpenOptions) -> Result<Self> {
        let shown: Vec<String> = urls.iter().map(|url| store::display(url)).collect();
        let mut known = match &options.index {
            Index::Auto | Index::None => None,
            Index::At(url) => {
                let found = Found::at(url, options.access())?;
                Some(read(&found, options).await?)
            }
            Index::Bytes(bytes) => Some(parsed(bytes.clone(), &options.limits, Place::file("index")).await?),
        };
        // An index of a table belongs to one version.
        let pinned = known.as_ref().and_then(|known| known.table);
        let listed = match (&options.index, &known) {
            (Index::Bytes(_), Some(known)) if pinned.is_none() => known.listing(urls, options)?,
            _ => None,
        };
        let mut beside = None;
        let mut early = None;
        let mut listing = match (listed, &known) {
            (Some(listing), Some(known)) => {
                beside = known.beside.clone();
                listing
            }
            _ => {
                let listing = store::find(urls, options.access(), options.limits.max_files);
                let listing = within(options.timeout, format!("the files at {}", shown.join(", ")), listing);
                let (listing, index) = tokio::join!(listing, early_index(urls, options));
                early = index;
                listing?
            }
        };
        let (mut table, mut found) = (None, std::mem::take(&mut listing.files));
        let version = options.version.map(|version| ("version", version.to_string()));
        let time = || options.timestamp.clone().map(|timestamp| ("timestamp", timestamp));
        let asked = version.or_else(time).or_else(|| options.reference.clone().map(|name| ("ref", name)));
        if let Some(at) = listing.table.take() {
            let pinned = pinned.filter(|_| asked.is_none());
            let version = options.version.or(pinned.map(|pinned| pinned.version));
            let open = OpenOptions { version, ..options.clone() };
            let opened = AnyTable::open(at, open, pinned.and_then(|pinned| pinned.schema)).await?;
            found = opened.files();
            // Files beside those of a table are not of Petastorm.
            beside = Some(None);
            table = Some(opened);
        } else if let Some((option, asked)) = asked {
            let problem = format!(
                "{asked}: only tables of Delta Lake and Iceberg have versions, and {} is not one",
                shown.join(", ")
            );
            return Err(Error::config(option, problem));
        }
        if let (Index::Auto, Some((index, true))) = (&options.index, &listing.index) {
            let read = match early {
                Some(read) => read,
                None => read(index, options).await,
            };
            known = match read {
                Ok(known) => Some(known),
                Err(error) => {
                    tracing::warn!("{} is not used, footers are read: {}", index.url(), error.chain());
                    None
                }
            };
        }
        if let Some((file, was)) = known.as_ref().and_then(|known| known.outdated(&found)) {
            let now = file.stamp.as_ref().map_or_else(|| "there".to_owned(), ToString::to_string);
            let was = was.map_or_else(|| "not there".to_owned(), ToString::to_string);
            match (&options.index, &listing.index) {
                (Index::At(url), _) => {
                    let was =
                        format!("{was} when {} was made; make it again with bowstring index", store::display(url));
                    return Err(Error::SourceChanged { file: file.name.to_string(), was, now });
                }
                (Index::Auto, Some((index, _))) => tracing::warn!(
                    "{} is out of date, footers of changed files are read: {} was {was}, it is {now}; make it again with bowstring index",
                    index.url(),
                    file.name
                ),
                // Another machine has its own copy of the files.
                _ => tracing::debug!("the index is of other files: {} was {was}, it is {now}", file.name),
            }
        }
        let cache = match &options.cache {
            Some(place) if !found.iter().all(Found::is_local) => Some(opened(place.clone()).await?),
            _ => None,
        };
        if let Some(cache) = &cache {
            found = Found::through(found, cache, &options.storage_options);
            // What waits for its upload is in no version of a table.
            if table.is_none() {
                found = told(found).await?;
            }
        }
        let read = footers(found, known.as_ref(), options).await;
        let (footers, cells) = match &table {
            Some(table) => read.map_err(|error| table.gone(error))?,
            None => read?,
        };
        if let Some(footer) = footers.iter().find(|footer| !footer.object.stamp().tells_versions()) {
            tracing::warn!(
                "the store of {} tells neither an entity tag nor a time of it: if a file there is replaced by one of the same length while it \
                 is read, rows of both are mixed and nobody is told",
                footer.object.url()
            );
        }
        Ok(Self { listing, footers, cells, beside, table, cache })
    }
}

/// `found`, after a look at the disk of their cache for [what is missing](tell_unstored).
async fn told(found: Vec<Found>) -> Result<Vec<Found>> {
    let told = super::held::spawn(move || {
        tell_unstored(&found);
        found
    });
    told.await.map_err(|error| Error::Closed { why: format!("the cache was not looked at: {error}") })
}

/// Warns of what was saved in the directories of `found` and is not in its store yet: it is not read.
fn tell_unstored(found: &[Found]) {
    match Found::unstored(found) {
        Ok(left) => {
            if let Some(first) = left.first() {
                tracing::warn!(
                    "saved files of the dataset's directories are not in their store yet ({}), {first} for one; what the store has is read: \
                     flush first (bowstring.flush, bowstring cache upload)",
                    left.len()
                );
            }
        }
        Err(error) => tracing::debug!("nobody knows whether saved files wait for their store: {}", error.chain()),
    }
}

/// One more reader of the cache at `place`.
async fn opened(place: CachePlace) -> Result<CacheReader> {
    let opened = super::held::spawn(move || CacheReader::open(&place));
    opened.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("the cache was not opened: {error}") }))
}

/// The footers of `found`, and the description of the first one's cells. Those that `known` does not have are read.
async fn footers(
    found: Vec<Found>,
    known: Option<&Known>,
    options: &OpenOptions,
) -> Result<(Vec<Footer>, Option<String>)> {
    let mut cells = None;
    let mut footers: Vec<Option<Footer>> = Vec::with_capacity(found.len());
    let mut missing = Vec::new();
    for (at, found) in found.into_iter().enumerate() {
        let mut footer = known.and_then(|known| known.footer(at, &found));
        if at == 0 && footer.is_some() {
            match known.and_then(|known| known.cells_of(&found.name)) {
                Some(said) => cells = said.map(str::to_owned),
                None => footer = None,
            }
        }
        if footer.is_none() {
            missing.push(found);
        }
        footers.push(footer);
    }
    // The filter asks for statistics, which are not kept.
    let room = if options.filter.is_some() { options.memory } else { 0 };
    let reader = Arc::new(Footers::new(options.limits.clone(), room));
    let timeout = options.timeout;
    let read: Vec<Footer> = if missing.iter().all(Found::is_local) {
        reader.read_local(missing, options.concurrency, timeout).await?
    } else {
        let reading = missing.into_iter().map(move |found| {
            let culprit = format!("the footer of file {}", found.name);
            within(timeout, culprit, Arc::clone(&reader).read(found))
        });
        futures::stream::iter(reading).buffered(options.concurrency).try_collect().await?
    };
    let mut read = read.into_iter();
    let all: Option<Vec<Footer>> = footers.into_iter().map(|footer| footer.or_else(|| read.next())).collect();
    let mut all = all.ok_or_else(|| Error::Closed { why: "a footer was not read".to_owned() })?;
    let first = all.first_mut().and_then(|first| first.cells.take());
    Ok((all, first.or(cells)))
}

/// The index of a directory of this machine, read while the directory is listed: both take about as long. The listing tells
/// whether it is used.
async fn early_index(urls: &[String], options: &OpenOptions) -> Option<Result<Known>> {
    let (Index::Auto, [url]) = (&options.index, urls) else { return None };
    let found = store::index_here(url, options.access()).ok()??;
    match read(&found, options).await {
        Err(Error::NotFound { .. }) => None,
        read => Some(read),
    }
}

/// The index in `found`.
async fn read(found: &Found, options: &OpenOptions) -> Result<Known> {
    let limits = &options.limits;
    let reading = found.whole(limits.max_index_bytes, "limits.max_index_bytes");
    let bytes = within(options.timeout, format!("the index {}", found.url()), reading).await?;
    parsed(bytes, limits, Place::file(found.url())).await
}

async fn parsed(bytes: bytes::Bytes, limits: &Limits, place: Place) -> Result<Known> {
    let limits = limits.clone();
    let parsed = super::held::spawn(move || Known::read(&bytes, &limits, &place));
    parsed.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("the index was not read: {error}") }))
}
