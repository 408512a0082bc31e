//! Opening: what is found becomes one dataset, step by step, each within its time.
//!
//! ```text
//!   find ─► footers, or an index of them ─► unify ─► what is said of cells ─► row groups selected ─► filter evaluated ─► windows found
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::Field;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt as _};
use sha2::{Digest, Sha256};

use super::any_table::AnyTable;
use super::files::Files;
use super::petastorm::RowGroupIndex;
use super::selection::Selection;
use super::{DataFile, Dataset, Hidden, Index, Inner, Limits, Ngram, Partitioning, Selector};
use super::{described, features, filter, hive, layout, ngram, select, table};
use crate::error::{Error, Place, Result};
use crate::hex;
use crate::manifest::{FileEntry, Manifest, RowGroup};
use crate::schema::{DTYPE_KEY, STORED_KEY};
#[cfg(feature = "cloud")]
use crate::store::CredentialSource;
use crate::store::cache::CachePlace;
use crate::store::{Access, Found, Listing, MountSource, with_refusal};

/// Files that are asked at once whether they have changed.
const ASKED_AT_ONCE: usize = 16;

/// Options of opening a dataset.
#[derive(Clone)]
pub struct OpenOptions {
    /// Options of the store, by object_store's names. They win over the environment.
    pub storage_options: BTreeMap<String, String>,
    /// Source of credentials that expire, beside the options of the store.
    #[cfg(feature = "cloud")]
    pub credential_provider: Option<CredentialSource>,
    /// The mounts that addresses below `bow://` lead to; without, those that the environment names.
    pub mounts: Option<MountSource>,
    /// Source of the footers' content.
    pub index: Index,
    /// The cache that objects are read through; none without. Files of this machine are read as they are.
    pub cache: Option<CachePlace>,
    /// The version of a Delta table, or the snapshot of an Iceberg table, to read; the latest one without.
    pub version: Option<u64>,
    /// The branch or tag of an Iceberg table to read.
    pub reference: Option<String>,
    /// The time whose version of a table is read: the last one committed until then. As `2026-01-31`, `2026-01-31 12:30:00`, in
    /// UTC, or `2026-01-31T12:30:00+01:00`.
    pub timestamp: Option<String>,
    /// Meaning of `key=value` directories.
    pub partitioning: Partitioning,
    /// Rows to select; all without one.
    pub filter: Option<filter::Expr>,
    /// Row groups to read; all without one.
    pub selector: Option<Selector>,
    /// Windows of rows as samples, instead of rows.
    pub ngram: Option<Ngram>,
    /// Columns that this reader does not see; none without.
    pub hidden: Option<Hidden>,
    /// True if the dataset's description of its cells is heeded: the schema of bowstring or Petastorm. Without, cells are bytes.
    pub decode: bool,
    /// Limits against hostile files.
    pub limits: Limits,
    /// Footers, and files and row groups for the filter, that are read at once. Default 32.
    pub concurrency: usize,
    /// Bytes that row groups may take together while the filter is evaluated and windows are found. Default 512 MiB.
    pub memory: u64,
    /// Bytes that one row group may take meanwhile, beyond `memory` if necessary; then it goes alone. Without limit by default.
    pub memory_limit: u64,
    /// Longest time of any single wait: the listing, a footer, a page index, a row group's columns for the filter.
    /// Default 600 s.
    pub timeout: Duration,
}

impl std::fmt::Debug for OpenOptions {
    /// Values of the store's options may be secret, so only their names are shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.storage_options.keys().collect();
        f.debug_struct("OpenOptions")
            .field("storage_options", &names)
            .field("mounts", &self.mounts)
            .field("index", &self.index)
            .field("cache", &self.cache)
            .field("version", &self.version)
            .field("reference", &self.reference)
            .field("timestamp", &self.timestamp)
            .field("partitioning", &self.partitioning)
            .field("filter", &self.filter)
            .field("selector", &self.selector)
            .field("ngram", &self.ngram)
            .field("hidden", &self.hidden)
            .field("decode", &self.decode)
            .field("limits", &self.limits)
            .field("concurrency", &self.concurrency)
            .field("memory", &self.memory)
            .field("memory_limit", &self.memory_limit)
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl OpenOptions {
    /// Access to stores.
    pub(crate) fn access(&self) -> Access<'_> {
        let access = Access::from(&self.storage_options).with_mounts(self.mounts.as_ref());
        #[cfg(feature = "cloud")]
        let access = access.with_credentials(self.credential_provider.as_ref());
        access
    }

    /// Options for files beside the data that describe it: the same limits, without the choices that are made of the data.
    pub(super) fn beside(&self) -> Self {
        Self {
            storage_options: self.storage_options.clone(),
            #[cfg(feature = "cloud")]
            credential_provider: self.credential_provider.clone(),
            mounts: self.mounts.clone(),
            index: Index::None,
            // Directories above a file of a log are no columns of it.
            partitioning: Partitioning::None,
            decode: false,
            limits: self.limits.clone(),
            concurrency: self.concurrency,
            memory: self.memory,
            memory_limit: self.memory_limit,
            timeout: self.timeout,
            ..Self::default()
        }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            storage_options: BTreeMap::new(),
            #[cfg(feature = "cloud")]
            credential_provider: None,
            mounts: None,
            index: Index::default(),
            cache: None,
            version: None,
            reference: None,
            timestamp: None,
            partitioning: Partitioning::default(),
            filter: None,
            selector: None,
            ngram: None,
            hidden: None,
            decode: true,
            limits: Limits::default(),
            concurrency: 32,
            memory: 512 << 20,
            memory_limit: u64::MAX,
            timeout: Duration::from_secs(600),
        }
    }
}

impl Dataset {
    /// Opens the dataset at `urls`: finds the files, reads all footers, unifies the schemas and evaluates the filter.
    ///
    /// An address is a file, a directory, a pattern (`*`, `?`, `[a-z]`, `{a,b}`, `**`), or a URL that object_store knows. A directory may be
    /// a table of Delta Lake or Iceberg, one version of which is read, and a file the metadata of one of Iceberg. Must be called on a tokio runtime with timers.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is nothing; [`Error::Corrupt`], [`Error::Unsupported`] and [`Error::Limit`] for files that
    /// cannot be read; [`Error::Mismatch`] for files whose schemas contradict each other; [`Error::Timeout`] if the store does
    /// not answer within [`OpenOptions::timeout`]; [`Error::Store`].
    pub async fn open(urls: &[String], options: OpenOptions) -> Result<Self> {
        if options.concurrency == 0 {
            return Err(Error::config("concurrency", "must be at least 1"));
        }
        if options.timeout.is_zero() {
            return Err(Error::config("timeout", "must be more than 0 s"));
        }
        let files = Files::find(urls, &options).await?;
        Self::of(files, urls, options).await
    }

    /// Opens one file of a log alone, without the files beside it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn of_log(found: Found, options: OpenOptions) -> BoxFuture<'static, Result<Self>> {
        // Boxed: opening a table opens files of its log.
        let opening = async move {
            let files = Files::of(vec![found], &options).await?;
            Self::of(files, &[], options).await
        };
        opening.boxed()
    }

    /// Opens files of a table alone, by the columns of `part`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn of_part(
        found: Vec<Found>,
        part: table::Part,
        options: OpenOptions,
    ) -> BoxFuture<'static, Result<Self>> {
        let opening = async move {
            let mut files = Files::of(found, &options).await?;
            files.table = Some(AnyTable::Part(part));
            Self::of(files, &[], options).await
        };
        opening.boxed()
    }

    /// The dataset of `files`, which were found at `urls`.
    async fn of(files: Files, urls: &[String], options: OpenOptions) -> Result<Self> {
        let (limits, timeout) = (&options.limits, options.timeout);
        let Files { listing, mut footers, cells, beside, table, cache } = files;
        let names = footers.iter().map(|footer| footer.object.name());
        let partitions = match (&table, options.partitioning) {
            (Some(table), _) => table.partition_values(),
            (None, Partitioning::Hive | Partitioning::Dates) => {
                names.map(|name| hive::agreed(name)).collect::<Result<_>>()?
            }
            (None, Partitioning::None) => vec![hive::Values::new(); footers.len()],
        };
        let columns = table.as_ref().map(|table| table.columns().clone());
        let found_by = columns.as_ref().and_then(|columns| columns.naming.identity());
        let found_by = found_by.as_deref();
        let mut digests: Vec<[u8; 32]> = footers.iter().map(|footer| footer.digest).collect();
        let whole: Vec<Option<Bytes>> = footers.iter_mut().map(|footer| footer.bytes.take()).collect();
        let dates = options.partitioning == Partitioning::Dates;
        let unified = super::held::spawn(move || layout::gather(footers, (partitions, dates), columns.as_ref()));
        let mut inner = unified
            .await
            .unwrap_or_else(|error| Err(Error::Closed { why: format!("schemas were not unified: {error}") }))?;
        if options.decode {
            let culprit = "the dataset's _common_metadata".to_owned();
            let described = async {
                match beside {
                    None => described::petastorm(&listing, limits).await,
                    Some(None) => Ok(None),
                    Some(Some(beside)) => {
                        let said = beside.petastorm(limits, Place::file(Arc::clone(&beside.name))).await?;
                        Ok(said.map(|said| (said, beside)))
                    }
                }
            };
            let (petastorm, beside) = within(timeout, culprit, described).await?.unzip();
            inner.petastorm = petastorm;
            inner.beside = Some(beside);
            let first = inner.files.first();
            let place = first.map_or_else(Place::default, |file| Place::file(Arc::clone(file.object.name())));
            let columns = described::columns(cells.as_deref(), inner.petastorm.as_ref(), &place)?;
            inner.schema = described::apply(&inner.schema, &columns);
        }
        if let Some(table) = &table {
            inner.spark = table.spark().filter(|spark| features::tells(spark)).map(str::to_owned);
            inner.table = Some(table.about().clone());
        }
        inner.decode = options.decode;
        inner.limits = options.limits.clone();
        inner.base = listing.base();
        inner.is_reordered = listing.is_reordered;
        inner.cache = cache;
        inner.place = listing.index.map(|(place, _)| place);
        inner.urls = urls.iter().map(|url| crate::store::display(url)).collect();
        inner.cells = cells;
        let visible = options.hidden.as_ref().map(|hidden| hidden.visible(&inner.schema)).transpose()?;
        if let (Some(hidden), Some(visible)) = (&options.hidden, &visible) {
            // Before anything is read for it, and before anything of the rest is told.
            hidden.check(visible)?;
        }
        if let Some(table) = &table {
            counted_as_stated(&inner, &table.rows())?;
        }
        let pruned = table.as_ref().map(AnyTable::pruned).unwrap_or_default();
        let (mut groups, first_rows) = row_groups(&inner, &pruned);
        inner.first_rows = first_rows;
        inner.pruned = pruned.rows;
        let mut deleted = table::Deleted::default();
        let mut filter = options.filter.as_ref().map(|filter| filter.text_for(&inner.schema)).unwrap_or_default();
        if let Some(table) = &table {
            deleted = table.deleted(&options).await?;
            if !deleted.is_empty() {
                leave_out(&mut inner, &mut groups, &deleted)?;
                filter = serde_json::json!({ "filter": filter, "deleted": deleted.digest() }).to_string();
            }
        }
        if let Some(selector) = &options.selector {
            let (asked, petastorm) = (selector.asks_indexes(), inner.petastorm.clone());
            let indexes = super::held::spawn(move || match petastorm {
                Some(petastorm) if asked => petastorm.indexes(),
                _ => Ok(Vec::new()),
            });
            let indexes = indexes
                .await
                .unwrap_or_else(|error| Err(Error::Closed { why: format!("indexes were not read: {error}") }))?;
            let indexes = options.hidden.iter().fold(indexes, |indexes, hidden| hidden.indexes(indexes));
            if asked {
                counted_as_stored(&inner)?;
            }
            deselect(&mut inner, &mut groups, selector, &indexes)?;
            filter = serde_json::json!({ "filter": filter, "selector": selector }).to_string();
        }
        inner.manifest = Arc::new(manifest(&inner, groups, (&digests, found_by), &filter));
        let mut dataset = Self { inner: Arc::new(inner), visible: None, units: None };
        if let Some(expression) = &options.filter {
            let selections = select::evaluate(&dataset, expression, whole, &options).await?;
            let mut groups = dataset.inner.manifest.groups.clone();
            for (group, selection) in groups.iter_mut().zip(&selections) {
                group.selected = selection.count(group.rows);
            }
            // Nobody else has a share yet, so this takes the contents out.
            if let Some(inner) = Arc::get_mut(&mut dataset.inner) {
                inner.selections = selections;
                if table.is_some() && options.selector.is_none() {
                    let files = leave_files_out(inner, &mut groups);
                    digests = files.iter().filter_map(|file| digests.get(*file).copied()).collect();
                    filter = stands_for(expression, inner, &deleted.of(&files));
                }
                inner.manifest = Arc::new(manifest(inner, groups, (&digests, found_by), &filter));
            }
        }
        if options.hidden.as_ref().is_some_and(|hidden| hidden.ngram) {
            dataset.visible.clone_from(&visible);
        }
        if let Some(ngram) = &options.ngram {
            let windows = ngram::windows(&dataset, ngram, &options).await?;
            let mut groups = dataset.inner.manifest.groups.clone();
            for (group, windows) in groups.iter_mut().zip(&windows) {
                group.selected = windows.len() as u64;
            }
            let sampled = serde_json::json!({ "filter": filter, "ngram": ngram }).to_string();
            let manifest = Arc::new(manifest(&dataset.inner, groups, (&digests, found_by), &sampled));
            if let Some(inner) = Arc::get_mut(&mut dataset.inner) {
                inner.windows = Some(windows);
                inner.manifest = manifest;
            }
        }
        dataset.visible = visible;
        Ok(dataset)
    }

    /// Returns true if `urls` still lead to the files that this dataset was opened with, by names, lengths, and tags or times. Reads none of
    /// them. Files that are named one by one are not listed, so each is a request, or a look at this machine's disk.
    ///
    /// # Errors
    /// [`Error::Timeout`] and [`Error::Store`] if they cannot be listed, and as [`open`](Self::open) if they are no longer a dataset.
    pub async fn is_current(&self, urls: &[String], options: &OpenOptions) -> Result<bool> {
        let shown: Vec<String> = urls.iter().map(|url| crate::store::display(url)).collect();
        let culprit = format!("the files at {}", shown.join(", "));
        let listing = crate::store::find(urls, options.access(), options.limits.max_files);
        match within(options.timeout, culprit.clone(), listing).await {
            Ok(Listing { table: Some(at), .. }) => {
                // A version that was asked for stays what it is.
                let chosen = options.version.is_some() || options.timestamp.is_some();
                let version = self.table_version();
                Ok(version.is_some() && (chosen || Some(AnyTable::latest(at, options).await?) == version))
            }
            Ok(listing) => {
                let files = &self.manifest().files;
                let same = |(found, file): &(&Found, &FileEntry)| {
                    found.name == file.path
                        && found.size.is_none_or(|size| size == file.version.size)
                        && found.stamp.as_ref().is_none_or(|stamp| file.version.same(stamp))
                };
                let pairs = || listing.files.iter().zip(files);
                if listing.files.len() != files.len() || !pairs().all(|pair| same(&pair)) {
                    return Ok(false);
                }
                let untold = pairs().filter(|(found, _)| found.is_untold());
                let asked: Vec<_> = untold.map(|(found, file)| found.is_still(&file.version)).collect();
                let all = futures::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).all(std::future::ready);
                within(options.timeout, culprit, async { Ok(all.await) }).await
            }
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Waits for `work`, but no longer than `limit`: then the error names `culprit`, which did not answer.
pub(crate) async fn within<T>(limit: Duration, culprit: String, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::late("open", with_refusal(culprit, limit), limit, limit)),
    }
}

fn row_groups(inner: &Inner, pruned: &table::Pruned) -> (Vec<RowGroup>, Vec<u64>) {
    let (mut groups, mut first_rows, mut next) = (Vec::new(), Vec::new(), 0_u64);
    for (file, data) in inner.files.iter().enumerate() {
        for ordinal in 0..data.groups {
            let number = data.first + ordinal;
            let Some(group) = inner.packed.group(number).filter(|group| group.rows > 0) else { continue };
            let (rows, bytes) = (group.rows, inner.packed.unpacked(number));
            groups.push(RowGroup { file: file as u32, ordinal: ordinal as u32, rows, selected: rows, bytes });
            // Rows of pruned files keep their numbers.
            first_rows.push(next.saturating_add(pruned.before.get(file).copied().unwrap_or_default()));
            next = next.saturating_add(rows);
        }
    }
    (groups, first_rows)
}

/// Removes the files of a table in which the filter selects no row, and returns the numbers of the others. So the dataset does not depend
/// on statistics, which may be there or not for the same files.
fn leave_files_out(inner: &mut Inner, groups: &mut Vec<RowGroup>) -> Vec<usize> {
    let mut used = vec![false; inner.files.len()];
    for group in groups.iter().filter(|group| group.selected > 0) {
        if let Some(used) = used.get_mut(group.file as usize) {
            *used = true;
        }
    }
    let is_used = |file: u32| used.get(file as usize).is_some_and(|used| *used);
    let left: Vec<usize> = used.iter().enumerate().filter_map(|(file, used)| used.then_some(file)).collect();

    let gone = groups.iter().filter(|group| !is_used(group.file)).map(|group| group.rows);
    inner.pruned = gone.fold(inner.pruned, u64::saturating_add);
    let keep: Vec<bool> = groups.iter().map(|group| is_used(group.file)).collect();
    let mut kept = keep.iter();
    inner.first_rows.retain(|_| kept.next().is_some_and(|keep| *keep));
    let mut kept = keep.iter();
    inner.selections.retain(|_| kept.next().is_some_and(|keep| *keep));
    groups.retain(|group| is_used(group.file));
    for group in groups {
        group.file = left.partition_point(|file| *file < group.file as usize) as u32;
    }
    let mut kept = used.iter();
    inner.files.retain(|_| kept.next().is_some_and(|used| *used));
    left
}

/// The part of a fingerprint that stands for the filter of a table. It covers the numbers of rows, which count those of pruned files.
fn stands_for(expression: &filter::Expr, inner: &Inner, deleted: &table::Deleted) -> String {
    let mut digest = Sha256::new();
    inner.first_rows.iter().for_each(|first| digest.update(first.to_le_bytes()));
    let first = hex::of(digest.finalize());
    let deleted = (!deleted.is_empty()).then(|| deleted.digest());
    serde_json::json!({ "filter": expression.text_for(&inner.schema), "first": first, "deleted": deleted }).to_string()
}

/// Leaves out the rows that a table deleted.
fn leave_out(inner: &mut Inner, groups: &mut [RowGroup], deleted: &table::Deleted) -> Result<()> {
    inner.selections = vec![Selection::All; groups.len()];
    let mut at = 0;
    for (number, file) in inner.files.iter().enumerate() {
        let own = groups.iter().skip(at).take_while(|group| group.file as usize == number).count();
        let (Some(groups), Some(selections)) = (groups.get_mut(at..at + own), inner.selections.get_mut(at..at + own))
        else {
            continue;
        };
        let rows: Vec<u64> = groups.iter().map(|group| group.rows).collect();
        let left = deleted.left(number, file.object.name(), &rows)?;
        for ((group, place), selection) in groups.iter_mut().zip(selections).zip(left) {
            group.selected = selection.count(group.rows);
            *place = selection;
        }
        at += own;
    }
    Ok(())
}

/// Compares the rows of each file by its footer with those that its table states, in the same order. Rows behind a pruned file are
/// numbered by the latter, so an error in either would give rows other numbers.
fn counted_as_stated(inner: &Inner, stated: &[Option<u64>]) -> Result<()> {
    for (file, stated) in inner.files.iter().zip(stated) {
        let Some(stated) = *stated else { continue };
        let groups = (0..file.groups).filter_map(|ordinal| inner.packed.group(file.first + ordinal));
        let rows = groups.map(|group| group.rows).fold(0, u64::saturating_add);
        if rows != stated {
            let what = format!("the file has {rows} rows by its footer and {stated} by the metadata of its table");
            return Err(Error::corrupt(Place::file(Arc::clone(file.object.name())), what));
        }
    }
    Ok(())
}

/// Checks that the files have the row groups that Petastorm counted: the numbers in its indexes mean those.
fn counted_as_stored(inner: &Inner) -> Result<()> {
    let Some(stored) = inner.petastorm.as_ref().and_then(|petastorm| petastorm.row_group_counts.as_ref()) else {
        return Ok(());
    };
    let found = row_group_counts(inner);
    if *stored == found {
        return Ok(());
    }
    let row_groups = |counts: &BTreeMap<String, usize>| {
        format!("{} row groups in {} files", counts.values().sum::<usize>(), counts.len())
    };
    Err(Error::Mismatch {
        what: "the row-group index, which was made when the dataset had other files".to_owned(),
        expected: row_groups(stored),
        found: row_groups(&found),
        hint: "build it anew, for example with build_rowgroup_index".to_owned(),
    })
}

fn row_group_counts(inner: &Inner) -> BTreeMap<String, usize> {
    inner.files.iter().map(|file| (file.object.name().to_string(), file.groups)).collect()
}

impl Dataset {
    /// Row groups of each file by its path in the dataset, those without rows included, as the files' footers have them.
    pub fn row_group_counts(&self) -> BTreeMap<String, usize> {
        row_group_counts(&self.inner)
    }
}

/// Leaves out the row groups that `selector` does not select.
fn deselect(inner: &mut Inner, groups: &mut [RowGroup], selector: &Selector, indexes: &[RowGroupIndex]) -> Result<()> {
    // Their numbers count row groups without rows too.
    let chosen = selector.row_groups(indexes, u32::try_from(inner.packed.len()).unwrap_or(u32::MAX))?;
    inner.selections.resize(groups.len(), Selection::All);
    for (group, selection) in groups.iter_mut().zip(&mut inner.selections) {
        let first = inner.files.get(group.file as usize).and_then(|file| u32::try_from(file.first).ok());
        let number = first.map_or(u32::MAX, |first| first.saturating_add(group.ordinal));
        if !chosen.contains(&number) {
            (group.selected, *selection) = (0, Selection::none());
        }
    }
    Ok(())
}

/// The manifest of `inner`, whose files have these digests; the columns of a table are found by what the text says, and by their names
/// without one.
fn manifest(
    inner: &Inner,
    groups: Vec<RowGroup>,
    (digests, found_by): (&[[u8; 32]], Option<&str>),
    filter: &str,
) -> Manifest {
    let entry = |(file, digest): (&DataFile, &[u8; 32])| FileEntry {
        path: Arc::clone(file.object.name()),
        version: file.object.stamp().clone(),
        footer: *digest,
        partitions: file.partitions.clone(),
    };
    let files = inner.files.iter().zip(digests).map(entry).collect();
    let field = |field: &Arc<Field>| {
        let said = |key: &str| field.metadata().get(key).map(|said| format!(" {said}")).unwrap_or_default();
        // Before timedeltas had a name of their own they were times: the same data keep their fingerprint.
        let stored = said(STORED_KEY).replace("\"timedelta\"", "\"time\"") + &said(DTYPE_KEY);
        format!("{} {}{}{stored}\n", field.name(), field.data_type(), if field.is_nullable() { "?" } else { "" })
    };
    let schema: String = inner.schema.fields().iter().map(field).collect();
    let manifest = Manifest::new(files, groups, &schema, filter);
    match inner.table {
        Some(_) => manifest.of_table(found_by, hive::values),
        None => manifest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_beyond_its_limit_names_the_culprit() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let result = runtime.block_on(async {
            let never = std::future::pending::<Result<()>>();
            within(Duration::from_millis(1), "the store".to_owned(), never).await
        });
        assert_eq!(result.unwrap_err().to_string(), "stage open waited 0 s for the store (timeout=0.001)");
        let result = runtime.block_on(async {
            within(Duration::MAX, "the store".to_owned(), std::future::ready(Ok::<_, Error>(7))).await
        });
        assert_eq!(result.unwrap(), 7);
    }
}
