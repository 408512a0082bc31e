//! Open datasets by the options they were opened with: streams that ask for the same share one.
//!
//! Files of a directory change, and are looked at from time to time. Those of a version of a written dataset never do: whoever asks gets the
//! newest version at once, except ranks of a job whose other ranks have begun with the version before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::catalogue::Patience;
use super::openings::{Door, Slot};
use super::ranks::{Given, Ranks};
use crate::error::{Error, Result};
use crate::flight::put::{Lease, Version};
use crate::flight::server::access::auth::Tenant;
use crate::manifest::Fingerprint;
use crate::pipeline::{HiddenColumns, LoaderOptions, Stored};

/// Name of the option for an error about the memory of all open datasets, when closing others may help.
const OPTION: &str = "open_bytes";

/// The same for a dataset that does not fit even alone.
const ALONE: &str = "open_bytes (or ask for fewer files)";

/// Datasets that are kept open although no stream reads them.
const KEPT: usize = 64;

/// Least time between listings of the files on behalf of streams that resume with data that are not open.
const SOON: Duration = Duration::from_secs(1);

/// Longest wait for another task's check of the files in the store. After it the open dataset is good enough: it is read at the version
/// that was opened.
const LOOK: Duration = Duration::from_secs(5);

/// Longest time from one rank of a job to the next, if the first ones read already.
const TOGETHER: Duration = Duration::from_secs(600);

/// An entry of the cache.
pub(crate) trait Source: Send + Sync + 'static {
    /// Returns true if its data have or had this identity.
    fn is_of(&self, fingerprint: Fingerprint) -> bool;

    /// Returns the approximate memory that it takes, in bytes.
    fn bytes(&self) -> u64;

    /// Returns true if `options` would still open the same data.
    fn is_current(&self, options: &LoaderOptions) -> impl Future<Output = Result<bool>> + Send;
}

impl Source for Stored {
    fn is_of(&self, fingerprint: Fingerprint) -> bool {
        self.fingerprint_as(fingerprint) == fingerprint
    }

    fn bytes(&self) -> u64 {
        self.memory_size()
    }

    fn is_current(&self, options: &LoaderOptions) -> impl Future<Output = Result<bool>> + Send {
        self.is_current(options)
    }
}

/// The request that an entry answers.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    /// The name of a written dataset, whose addresses are left out of the options: all its versions have one key.
    written: Option<String>,
    /// All options and the hidden columns, as JSON.
    options: String,
}

/// A request for an open dataset.
#[derive(Debug, Clone)]
pub(crate) struct Asked<'a> {
    /// Options of the stream, with the addresses of the data.
    pub(crate) options: LoaderOptions,
    /// Columns that the dataset hides.
    pub(crate) hidden: &'a HiddenColumns,
    /// The newest version, if the dataset was written here.
    pub(crate) version: Option<Version>,
    /// The ranks that begin to read it, if any do.
    pub(crate) ranks: Option<Ranks>,
}

/// One opening of a dataset.
#[derive(Debug)]
struct Entry<T> {
    key: Arc<Key>,
    /// Number of this opening among those of its key; a new one follows each change of the files.
    number: u64,
    urls: Vec<String>,
    /// Keeps the version of a written dataset while it is read.
    lease: Option<Arc<Lease>>,
    /// The ranks to which it was given.
    given: Mutex<Given>,
    slot: Slot<Arc<T>>,
    /// Time when it was last known to be current. Locked during a check.
    looked: tokio::sync::Mutex<Instant>,
}

/// Memory of one open dataset, even if it is no longer in the cache.
#[derive(Debug)]
struct Taken<T> {
    /// Tenant that opened it.
    tenant: Tenant,
    dataset: Weak<T>,
    bytes: u64,
}

/// Open datasets by request, the most recently used last.
#[derive(Debug)]
pub(crate) struct DatasetCache<T> {
    entries: Mutex<VecDeque<Arc<Entry<T>>>>,
    /// Most bytes of all, see [`OPTION`]; one tenant's datasets may take three quarters of them.
    most: u64,
    taken: Mutex<Vec<Taken<T>>>,
}

impl<T: Source> DatasetCache<T> {
    /// Makes an empty cache, whose datasets may take `most` bytes of memory.
    pub(crate) fn new(most: u64) -> Self {
        Self { entries: Mutex::default(), most, taken: Mutex::default() }
    }

    /// Returns the dataset for `options` without the `hidden` columns to the tenant at the `door`, calling `open` once however many ask at
    /// the same time.
    ///
    /// With a `fingerprint` it returns the data of that fingerprint, if open: a stream that has begun with them resumes with them. A
    /// new stream gets the data that others read just now, unless the catalogue was replaced since they were looked at, or those that the
    /// `patience` lasts for, so that ranks that begin together have one plan; else the data as they are now. Of a written dataset it gets
    /// the newest version, unless it is a rank that others of its world wait for: they have begun with an earlier version lately.
    ///
    /// # Errors
    /// Those of [`Door::open`]; [`Error::Limit`] if too much of what the tenant, or all, have open is in use.
    pub(crate) async fn get<F>(
        &self,
        door: Door<'_>,
        Asked { mut options, hidden, version, ranks }: Asked<'_>,
        fingerprint: Option<Fingerprint>,
        patience: Patience,
        open: impl Fn(LoaderOptions) -> F,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        // The ticket determines the world; the server's environment is irrelevant.
        (options.rank, options.world_size) = (Some(0), Some(1));
        let urls = options.urls.clone();
        if version.is_some() {
            options.urls.clear();
        }
        let json =
            serde_json::to_string(&(&options, hidden)).map_err(|error| Error::config("options", error.to_string()))?;
        let key = Arc::new(Key { written: version.as_ref().map(|version| version.dataset.clone()), options: json });
        if let Some(found) = fingerprint.and_then(|fingerprint| self.known(&key, fingerprint)) {
            return Ok(found);
        }
        if let Some(version) = version {
            let begins = ranks.filter(|_| fingerprint.is_none());
            let entry = self.of_version(&key, (&urls, Some(version.lease)), begins, patience);
            let begun = Begun { given: &entry.given, ranks: begins };
            options.urls.clone_from(&entry.urls);
            let found = door.open(&entry.slot, options, &open, |opened| self.admit(door.tenant, opened)).await?;
            begun.stays();
            entry.keep(found);
            return Ok(Arc::clone(found));
        }
        loop {
            let entry = self.newest(&key, &urls);
            let found =
                door.open(&entry.slot, options.clone(), &open, |opened| self.admit(door.tenant, opened)).await?;
            let mut looked = entry.looked.lock().await;
            // A stream resumes with data that are not open: perhaps they are newer than these.
            let (patience, used) = match fingerprint {
                Some(_) => (patience.at_most(SOON), false),
                None => (patience, Arc::strong_count(found) > 1 && !patience.is_outdated(*looked)),
            };
            if patience.lasts(*looked) {
                return Ok(Arc::clone(found));
            }
            let current = used
                || match tokio::time::timeout(LOOK, found.is_current(&options)).await {
                    Ok(current) => current?,
                    // Tasks that wait for the lock go ahead as well.
                    Err(_) => {
                        tracing::warn!("a store does not say in time whether files changed; what is open is served");
                        true
                    }
                };
            if current {
                *looked = Instant::now();
                return Ok(Arc::clone(found));
            }
            self.renew(&entry, &urls);
        }
    }

    /// Admits what `tenant` just opened. To make room, datasets that nobody reads are closed, least recently used first.
    fn admit(&self, tenant: &Tenant, opened: T) -> Result<Arc<T>> {
        let bytes = opened.bytes();
        let own_most = self.most / 4 * 3;
        if bytes > own_most {
            let what = "what is kept in memory of the files, row groups and columns of this dataset, in bytes,";
            return Err(Error::limit(what, bytes, own_most, ALONE));
        }
        let refused = |whose: &str, used: u64, limit: u64| {
            let what = format!("this dataset, beside those that {whose} read,");
            Err(Error::limit(what, used.saturating_add(bytes), limit, OPTION))
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            taken.retain(|one| one.dataset.strong_count() > 0);
            let sum = |of: &dyn Fn(&Taken<T>) -> bool| {
                taken.iter().filter(|one| of(one)).map(|one| one.bytes).fold(0, u64::saturating_add)
            };
            let (all, own) = (sum(&|_| true), sum(&|one| one.tenant == *tenant));
            let too_many = |used: u64, limit: u64| used.saturating_add(bytes) > limit;
            if !too_many(all, self.most) && !too_many(own, own_most) {
                break;
            }
            let theirs = |dataset: &Arc<T>| {
                let whose = taken.iter().find(|one| std::ptr::eq(one.dataset.as_ptr(), Arc::as_ptr(dataset)));
                whose.is_some_and(|one| one.tenant == *tenant)
            };
            // The tenant's own ones go first.
            let closed = self.close(&theirs) || !too_many(own, own_most) && self.close(&|_| true);
            if !closed && too_many(own, own_most) {
                return refused("streams of this tenant", own, own_most);
            }
            if !closed {
                return refused("streams", all, self.most);
            }
        }
        let opened = Arc::new(opened);
        taken.push(Taken { tenant: tenant.clone(), dataset: Arc::downgrade(&opened), bytes });
        Ok(opened)
    }

    /// Closes the least recently used of the datasets that nobody reads and that match `meant`. Returns true if there was one.
    fn close(&self, meant: &dyn Fn(&Arc<T>) -> bool) -> bool {
        let mut entries = self.lock();
        let idle =
            |entry: &Arc<Entry<T>>| entry.slot.get().is_some_and(|found| Arc::strong_count(found) == 1 && meant(found));
        let closed = entries.iter().position(idle).and_then(|at| entries.remove(at));
        drop(entries);
        closed.is_some()
    }

    /// Returns the open dataset with the data `fingerprint`.
    fn known(&self, key: &Key, fingerprint: Fingerprint) -> Option<Arc<T>> {
        let mut entries = self.lock();
        let is = |entry: &Arc<Entry<T>>| {
            *entry.key == *key && entry.slot.get().is_some_and(|found| found.is_of(fingerprint))
        };
        // Of several, the newest: files may have changed to ones of the same rows.
        let found = entries.iter().enumerate().filter(|(_, entry)| is(entry));
        let at = found.max_by_key(|(_, entry)| entry.number)?.0;
        let entry = used(&mut entries, at)?;
        let found = entry.slot.get()?;
        entry.keep(found);
        Some(Arc::clone(found))
    }

    /// Returns the entry of the version that some job of the world of `begins` reads without these ranks; else that of the newest version,
    /// which is at `urls`. The ranks are in it when they have it.
    fn of_version(
        &self,
        key: &Arc<Key>,
        (urls, lease): (&[String], Option<Arc<Lease>>),
        begins: Option<Ranks>,
        patience: Patience,
    ) -> Arc<Entry<T>> {
        let mut entries = self.lock();
        let newest = |is: &dyn Fn(&Entry<T>) -> bool| {
            let of_key = entries.iter().enumerate().filter(|(_, entry)| entry.key == *key && is(entry));
            of_key.max_by_key(|(_, entry)| entry.number).map(|(at, entry)| (at, entry.number))
        };
        let awaiting = begins.and_then(|ranks| newest(&|entry| entry.is_awaiting(ranks, patience)));
        let found = awaiting.or_else(|| newest(&|entry| entry.urls == urls));
        let next = newest(&|_| true).map_or(0, |(_, number)| number + 1);
        let entry = match found.and_then(|(at, _)| used(&mut entries, at)) {
            Some(entry) => entry,
            None => add(&mut entries, Entry { lease, ..Entry::new(key, next, urls) }),
        };
        if let Some(ranks) = begins {
            entry.given().add(ranks, Instant::now());
        }
        entry
    }

    /// Returns the newest entry of `key`, adding one if there is none.
    fn newest(&self, key: &Arc<Key>, urls: &[String]) -> Arc<Entry<T>> {
        let mut entries = self.lock();
        let of_key = entries.iter().enumerate().filter(|(_, entry)| entry.key == *key);
        let newest = of_key.max_by_key(|(_, entry)| entry.number).map(|(at, _)| at);
        newest.and_then(|at| used(&mut entries, at)).unwrap_or_else(|| add(&mut entries, Entry::new(key, 0, urls)))
    }

    /// Adds a newer entry than `old`, unless there is one already.
    fn renew(&self, old: &Entry<T>, urls: &[String]) {
        let mut entries = self.lock();
        if entries.iter().all(|entry| entry.key != old.key || entry.number <= old.number) {
            add(&mut entries, Entry::new(&old.key, old.number + 1, urls));
        }
    }

    /// Forgets `offer`, whose data has changed.
    pub(crate) fn forget(&self, offer: &Arc<T>) {
        self.lock().retain(|entry| entry.slot.get().is_none_or(|found| !Arc::ptr_eq(found, offer)));
    }

    /// Forgets all versions of the written `dataset`, which is gone.
    pub(crate) fn forget_written(&self, dataset: &str) {
        self.lock().retain(|entry| entry.key.written.as_deref() != Some(dataset));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Entry<T>>>> {
        // Entries are inserted whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ranks that are about to have an entry's dataset. Dropped, they are taken back: the opening failed, or nobody waits for it any more.
struct Begun<'a> {
    given: &'a Mutex<Given>,
    ranks: Option<Ranks>,
}

impl Begun<'_> {
    fn stays(mut self) {
        self.ranks = None;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(ranks) = self.ranks {
            self.given.lock().unwrap_or_else(PoisonError::into_inner).remove(ranks);
        }
    }
}

/// Moves entry `at` to the end: it was used last.
fn used<T>(entries: &mut VecDeque<Arc<Entry<T>>>, at: usize) -> Option<Arc<Entry<T>>> {
    let entry = entries.remove(at)?;
    entries.push_back(Arc::clone(&entry));
    Some(entry)
}

/// Adds `entry` at the end; the least recently used entry that nobody reads makes room. Entries in use stay: their datasets are open
/// anyway and must be found again.
fn add<T>(entries: &mut VecDeque<Arc<Entry<T>>>, entry: Entry<T>) -> Arc<Entry<T>> {
    let entry = Arc::new(entry);
    entries.push_back(Arc::clone(&entry));
    let idle = |entry: &Arc<Entry<T>>| entry.slot.get().is_none_or(|found| Arc::strong_count(found) == 1);
    while entries.len() > KEPT
        && let Some(at) = entries.iter().take(entries.len() - 1).position(idle)
    {
        entries.remove(at);
    }
    entry
}

impl<T> Entry<T> {
    fn new(key: &Arc<Key>, number: u64, urls: &[String]) -> Self {
        Self {
            key: Arc::clone(key),
            number,
            urls: urls.to_vec(),
            lease: None,
            given: Mutex::default(),
            slot: Slot::default(),
            looked: tokio::sync::Mutex::new(Instant::now()),
        }
    }

    fn given(&self) -> std::sync::MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the version of `found`, which is what it opened.
    fn keep(&self, found: &Arc<T>)
    where
        T: Send + Sync + 'static,
    {
        if let Some(lease) = &self.lease {
            lease.keep_for(found);
        }
    }

    /// Returns true if other ranks of the world of `ranks` have begun with it, but not these, and go on with it.
    fn is_awaiting(&self, ranks: Ranks, patience: Patience) -> bool {
        let is_read = self.slot.get().is_none_or(|found| Arc::strong_count(found) > 1);
        let given = self.given();
        let patience = if is_read { patience.at_least(TOGETHER) } else { patience };
        given.lacks(ranks) && given.last().is_some_and(|last| patience.lasts(last))
    }
}

#[cfg(test)]
mod tests;
