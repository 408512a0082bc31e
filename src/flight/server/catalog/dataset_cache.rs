//! Open datasets by the options they were opened with: streams that ask for the same share one.
//!
//! Files of a directory change, and are looked at from time to time. Those of a version of a written dataset never do: whoever asks gets the
//! newest version at once, except ranks of a job whose other ranks have begun with the version before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::catalogue::Patience;
use super::once::Once;
use super::openings::{Door, Slot};
use super::ranks::{Given, Ranks};
use super::turns::Turns;
use crate::error::{Error, Result};
use crate::flight::put::{Lease, Version};
use crate::flight::server::access::auth::Tenant;
use crate::flight::wire::{Columns, schema_message};
use crate::manifest::Fingerprint;
use crate::pipeline::{HiddenColumns, LoaderOptions, MemoryNeed, PreparedPlan, Stored};
use crate::plan::{Plan, Share};

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

/// Size in bytes above which the memory of an opening must have room for a row: one is made to determine the columns.
const FREE_ROW: u64 = 1 << 20;

/// Longest time from one rank of a job to the next, if the first ones read already.
const TOGETHER: Duration = Duration::from_secs(600);

/// Plans of epochs that are remembered per dataset: ranks of a job are in one epoch or the next, and a plan takes some 20 bytes a row
/// group.
const PLANS: usize = 4;

/// Memory needs of shares that are remembered.
const NEEDS: usize = 64;

/// Batches made ahead for each stream.
pub(crate) const PREFETCH: usize = 4;

/// A dataset with its columns and plan.
#[derive(Debug)]
pub(crate) struct OpenDataset {
    pub(crate) prepared: PreparedPlan,
    pub(crate) columns: Columns,
    /// Bytes of the columns and their kinds in an answer.
    pub(crate) schema_bytes: usize,
    /// Plan of epoch 0 for one rank.
    pub(crate) plan: Arc<Plan>,
    pub(crate) fingerprint: Fingerprint,
    /// Plans of other epochs.
    plans: Once<u64, Arc<Plan>>,
    /// Memory needs by epoch, world of the plan, share, and batches made ahead.
    needs: Once<(u64, u32, Share, usize), MemoryNeed>,
}

impl OpenDataset {
    /// Opens a dataset with `options`, leaving out the `hidden` columns, on a server with a memory `budget`.
    ///
    /// # Errors
    /// Those of opening; [`Error::Limit`] if a row takes more than the memory budget of `options`.
    pub(crate) async fn open(options: LoaderOptions, hidden: HiddenColumns, budget: u64) -> Result<Self> {
        let prepared = PreparedPlan::hiding(&options, &hidden).await?;
        prepared.check_nulls_within(budget).await?;
        let plan = prepared.plan(0)?;
        let (row, paid) = (prepared.row_bytes(), options.memory_budget.unwrap_or(budget));
        if row > paid.max(FREE_ROW) {
            return Err(Error::limit("a row of this dataset, in bytes,", row, paid, "memory_budget"));
        }
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        let columns = Columns::of(prepared.schema(), &prepared.empty_batch(&plan, budget)?);
        let schema_bytes = schema_message(&columns).len() + prepared.kinds().bytes();
        let fingerprint = plan.fingerprint();
        let (plans, needs) = (Once::new(PLANS), Once::new(NEEDS));
        Ok(Self { prepared, columns, schema_bytes, plan: Arc::new(plan), fingerprint, plans, needs })
    }

    /// Returns the memory that `share` of `plan`, a plan of this dataset, needs with `prefetch` batches ahead. Computing it takes time
    /// in proportion to row groups and lanes, so it is done once for all callers, in the turn of one of them.
    ///
    /// # Errors
    /// [`Error::Limit`] if the batches alone exceed `budget`; [`Error::Remote`] if the turn did not come in time.
    pub(crate) async fn need(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
        (share, prefetch): (Share, usize),
        budget: u64,
        turns: (&Turns, &Tenant),
    ) -> Result<MemoryNeed> {
        let key = (plan.epoch(), plan.world(), share, prefetch);
        let (offer, plan) = (Arc::clone(self), Arc::clone(plan));
        self.needs.get(key, turns, move || offer.prepared.need_within(&plan, share, prefetch, budget)).await
    }

    /// Returns the plan of `epoch` for `world` ranks. Making it takes time in proportion to row groups and lanes, so it is done once
    /// for all callers, in the turn of one of them.
    ///
    /// # Errors
    /// Those of [`PreparedPlan::plan`]; [`Error::Remote`] if the turn did not come in time.
    pub(crate) async fn plan(self: &Arc<Self>, epoch: u64, world: u32, turns: (&Turns, &Tenant)) -> Result<Arc<Plan>> {
        let plan = if epoch == self.plan.epoch() {
            Arc::clone(&self.plan)
        } else {
            let offer = Arc::clone(self);
            self.plans.get(epoch, turns, move || offer.prepared.plan(epoch).map(Arc::new)).await?
        };
        let of_world = plan.for_world(world);
        Ok(if of_world.world() == plan.world() { plan } else { Arc::new(of_world) })
    }
}

impl Source for OpenDataset {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    fn bytes(&self) -> u64 {
        self.prepared.memory_size(1 + PLANS as u64)
    }

    fn is_current(&self, options: &LoaderOptions) -> impl Future<Output = Result<bool>> + Send {
        self.prepared.is_current(options)
    }
}

impl Source for Stored {
    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint()
    }

    fn bytes(&self) -> u64 {
        self.memory_size()
    }

    fn is_current(&self, options: &LoaderOptions) -> impl Future<Output = Result<bool>> + Send {
        self.is_current(options)
    }
}

/// An entry of the cache.
pub(crate) trait Source: Send + Sync + 'static {
    /// Returns the identity of its data.
    fn fingerprint(&self) -> Fingerprint;

    /// Returns the approximate memory that it takes, in bytes.
    fn bytes(&self) -> u64;

    /// Returns true if `options` would still open the same data.
    fn is_current(&self, options: &LoaderOptions) -> impl Future<Output = Result<bool>> + Send;
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
            options.urls.clone_from(&entry.urls);
            let opened = door.open(&entry.slot, options, &open, |opened| self.admit(door.tenant, opened)).await;
            if let (Err(_), Some(ranks)) = (&opened, begins) {
                entry.given().remove(ranks);
            }
            let found = opened?;
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
            *entry.key == *key && entry.slot.get().is_some_and(|found| found.fingerprint() == fingerprint)
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
mod tests {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::super::catalogue::{Catalogue, Current};
    use super::super::openings::Openings;
    use super::*;
    use crate::flight::server::stream::budget::ByteBudget;

    /// The data of the files, and how often they were opened.
    #[derive(Debug, Default)]
    struct Files {
        now: AtomicU8,
        opened: AtomicU8,
        /// Seconds that the store takes for a check.
        slow: AtomicU8,
        /// Bytes of them kept in memory.
        bytes: AtomicU64,
    }

    #[derive(Debug)]
    struct Data(Arc<Files>, u8);

    fn data(version: u8) -> Fingerprint {
        Fingerprint::from_bytes([version; 32])
    }

    impl Source for Data {
        fn fingerprint(&self) -> Fingerprint {
            data(self.1)
        }

        fn bytes(&self) -> u64 {
            self.0.bytes.load(Ordering::Relaxed)
        }

        async fn is_current(&self, _: &LoaderOptions) -> Result<bool> {
            // Lets other tasks run in between.
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_secs(self.0.slow.load(Ordering::Relaxed).into())).await;
            Ok(self.0.now.load(Ordering::Relaxed) == self.1)
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    /// A request for files that were not written here.
    fn of(options: LoaderOptions) -> Asked<'static> {
        static NOTHING: LazyLock<HiddenColumns> = LazyLock::new(HiddenColumns::default);
        Asked { options, hidden: &NOTHING, version: None, ranks: None }
    }

    async fn get(opened: &DatasetCache<Data>, files: &Arc<Files>, fingerprint: Option<u8>) -> (Arc<Data>, u8) {
        get_of(opened, files, fingerprint, minute()).await
    }

    async fn get_of(
        opened: &DatasetCache<Data>,
        files: &Arc<Files>,
        fingerprint: Option<u8>,
        patience: Patience,
    ) -> (Arc<Data>, u8) {
        let open = |_| {
            let files = Arc::clone(files);
            async move {
                tokio::task::yield_now().await;
                files.opened.fetch_add(1, Ordering::Relaxed);
                let now = files.now.load(Ordering::Relaxed);
                Ok(Data(files, now))
            }
        };
        let asked = of(LoaderOptions::default());
        let (tenant, (openings, claims)) = (Tenant::anonymous(), means());
        let door = openings.door(&tenant, &claims);
        let found = opened.get(door, asked, fingerprint.map(data), patience, open).await.unwrap();
        let version = found.1;
        (found, version)
    }

    fn means() -> (Openings, ByteBudget) {
        (Openings::new(4), ByteBudget::new(1 << 30))
    }

    /// That of a catalogue that was never replaced.
    fn minute() -> Patience {
        Current::new(Catalogue::default()).patience(MINUTE)
    }

    #[tokio::test(start_paused = true)]
    async fn who_begins_has_the_plan_of_those_who_read_or_what_is_there() {
        let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
        let (first, _) = get(&opened, &files, None).await;
        files.now.store(1, Ordering::Relaxed);
        tokio::time::advance(10 * MINUTE).await;
        assert_eq!(get(&opened, &files, None).await.1, 0, "somebody reads it");
        drop(first);
        assert_eq!(get(&opened, &files, None).await.1, 0, "somebody joined just now");
        tokio::time::advance(2 * MINUTE).await;
        let asked = futures::future::join_all((0..8).map(|_| get(&opened, &files, None))).await;
        assert!(asked.iter().all(|(_, version)| *version == 1));
        assert_eq!(files.opened.load(Ordering::Relaxed), 2, "opened once for all");
        assert_eq!(get(&opened, &files, Some(0)).await.1, 0, "who has begun goes on");
        assert_eq!(get(&opened, &files, None).await.1, 1, "which makes them nobody else's");
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(
            (get(&opened, &files, None).await.1, files.opened.load(Ordering::Relaxed)),
            (1, 2),
            "nothing changed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_shows_changed_files_even_while_others_read() {
        let (opened, files, current) =
            (DatasetCache::new(u64::MAX), Arc::new(Files::default()), Current::new(Catalogue::default()));
        let begin = async || get_of(&opened, &files, None, current.patience(MINUTE)).await;
        let (reading, _) = begin().await;
        files.now.store(1, Ordering::Relaxed);
        tokio::time::advance(MINUTE / 2).await;
        assert_eq!(begin().await.1, 0, "somebody reads it");
        tokio::time::advance(MINUTE / 60).await;
        current.replace(Catalogue::default());
        tokio::time::advance(MINUTE / 60).await;
        let begun = futures::future::join_all((0..8).map(|_| begin())).await;
        assert!(begun.iter().all(|(_, version)| *version == 1));
        assert_eq!(files.opened.load(Ordering::Relaxed), 2, "opened once for all");
        let known = get_of(&opened, &files, Some(0), current.patience(MINUTE)).await;
        assert!(Arc::ptr_eq(&known.0, &reading), "who has begun goes on");
        // The next change waits for its readers again.
        files.now.store(2, Ordering::Relaxed);
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(begin().await.1, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_store_holds_nobody_up_for_long() {
        let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
        drop(get(&opened, &files, None).await);
        files.now.store(1, Ordering::Relaxed);
        files.slow.store(200, Ordering::Relaxed);
        tokio::time::advance(2 * MINUTE).await;
        let start = Instant::now();
        let asked = futures::future::join_all((0..8).map(|_| get(&opened, &files, None))).await;
        assert!(asked.iter().all(|(_, version)| *version == 0), "what is open");
        assert!(start.elapsed() < 2 * LOOK, "{:?}", start.elapsed());
        drop(asked);
        files.slow.store(1, Ordering::Relaxed);
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(get(&opened, &files, None).await.1, 1, "once the store answers in time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_knows_older_files_than_the_ticket_looks_at_once() {
        let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
        let (reading, _) = get(&opened, &files, None).await;
        files.now.store(1, Ordering::Relaxed);
        tokio::time::advance(2 * SOON).await;
        assert_eq!(get(&opened, &files, Some(1)).await.1, 1);
        assert_eq!(get(&opened, &files, Some(0)).await.1, 0);
        files.now.store(2, Ordering::Relaxed);
        assert_eq!(get(&opened, &files, Some(7)).await.1, 1, "but not more often than each second");
        opened.forget(&reading);
        assert_eq!(opened.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_read_stays_open_whatever_is_asked_for() {
        let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
        let (reading, _) = get(&opened, &files, None).await;
        for seed in 0..2 * KEPT as u64 {
            let open = |_| {
                let files = Arc::clone(&files);
                async { Ok(Data(files, 0)) }
            };
            let asked = of(LoaderOptions { seed, ..LoaderOptions::default() });
            let (openings, claims) = means();
            opened.get(openings.door(&Tenant::anonymous(), &claims), asked, None, minute(), open).await.unwrap();
        }
        assert_eq!(opened.lock().len(), KEPT);
        assert!(Arc::ptr_eq(&get(&opened, &files, None).await.0, &reading), "the same for those who read with it");
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_on_with_older_files_is_not_forgotten_for_those_who_begin() {
        let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
        for version in 0..2 * KEPT as u8 {
            files.now.store(version, Ordering::Relaxed);
            tokio::time::advance(2 * MINUTE).await;
            assert_eq!(get(&opened, &files, None).await.1, version);
            assert_eq!(get(&opened, &files, Some(0)).await.1, 0, "version {version}");
            assert_eq!(get(&opened, &files, None).await.1, version);
        }
        assert_eq!(opened.lock().len(), KEPT);
    }

    /// The open version of a written dataset for `rank` of 2, at `version` by now.
    async fn written(opened: &DatasetCache<Data>, version: u8, rank: u32, fingerprint: Option<u8>) -> (Arc<Data>, u8) {
        written_after(opened, &Arc::new(Semaphore::new(1)), (version, rank), fingerprint).await
    }

    /// The same, with an opening that ends once `gate` has a permit.
    async fn written_after(
        opened: &DatasetCache<Data>,
        gate: &Arc<Semaphore>,
        (version, rank): (u8, u32),
        fingerprint: Option<u8>,
    ) -> (Arc<Data>, u8) {
        let open = |options: LoaderOptions| {
            let gate = Arc::clone(gate);
            async move {
                gate.acquire().await.unwrap().forget();
                let version = options.urls[0].parse().unwrap();
                Ok(Data(Arc::default(), version))
            }
        };
        let of_dataset =
            Version { dataset: "d".to_owned(), url: version.to_string(), lease: Arc::new(Lease::default()) };
        let options = LoaderOptions { urls: vec![version.to_string()], ..LoaderOptions::default() };
        let asked =
            Asked { version: Some(of_dataset), ranks: Some(Ranks { world: 2, rank: Some(rank) }), ..of(options) };
        let (tenant, (openings, claims)) = (Tenant::anonymous(), means());
        let door = openings.door(&tenant, &claims);
        let found = opened.get(door, asked, fingerprint.map(data), minute(), open).await.unwrap();
        let version = found.1;
        (found, version)
    }

    #[tokio::test(start_paused = true)]
    async fn ranks_of_a_job_read_one_version_of_a_written_dataset() {
        let opened = DatasetCache::new(u64::MAX);
        let (first, _) = written(&opened, 1, 0, None).await;
        tokio::time::advance(9 * MINUTE).await;
        assert_eq!(written(&opened, 2, 0, None).await.1, 2, "another job");
        let (second, version) = written(&opened, 3, 1, None).await;
        assert_eq!(version, 2, "its other rank has just begun");
        assert_eq!(written(&opened, 3, 1, None).await.1, 1, "that of the first job reads");
        assert_eq!(written(&opened, 3, 1, None).await.1, 3);
        tokio::time::advance(11 * MINUTE).await;
        assert_eq!(written(&opened, 4, 0, None).await.1, 4, "too late for the other rank of that job");
        for rank in 0..2 {
            assert_eq!(written(&opened, 3, rank, Some(1)).await.1, 1, "who has begun goes on");
        }
        drop((first, second));
        assert_eq!(written(&opened, 4, 0, Some(9)).await.1, 4, "nobody has it open: the newest tells so");
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_whose_ranks_come_in_between_leave_nothing_to_later_ones() {
        let opened = DatasetCache::new(u64::MAX);
        let mut reading = Vec::new();
        for rank in [0, 0, 1, 1] {
            reading.push(written(&opened, 1, rank, None).await);
        }
        for rank in 0..2 {
            assert_eq!(written(&opened, 2, rank, None).await.1, 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_while_a_rank_opens_does_not_part_it_from_the_next() {
        let (opened, gate) = (DatasetCache::new(u64::MAX), Arc::new(Semaphore::new(0)));
        let ends = async { gate.add_permits(1) };
        let first = written_after(&opened, &gate, (1, 0), None);
        // They are polled in this order: the second asks while the first one's opening waits.
        let (first, second, ()) = tokio::join!(first, written(&opened, 2, 1, None), ends);
        assert_eq!((first.1, second.1), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_ended_holds_nobody_to_its_version() {
        let opened = DatasetCache::new(u64::MAX);
        drop(written(&opened, 1, 0, None).await);
        assert_eq!(written(&opened, 2, 1, None).await.1, 1, "it may be about to begin");
        let opened = DatasetCache::new(u64::MAX);
        drop(written(&opened, 1, 0, None).await);
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(written(&opened, 2, 1, None).await.1, 2);
        opened.forget_written("d");
        assert!(opened.lock().is_empty());
    }

    /// Opens `seed` of `bytes` bytes for `tenant`.
    async fn open(opened: &DatasetCache<Data>, tenant: &str, seed: u64, bytes: u64) -> Result<Arc<Data>> {
        let files = Arc::new(Files { bytes: AtomicU64::new(bytes), ..Files::default() });
        let asked = of(LoaderOptions { seed, ..LoaderOptions::default() });
        let (tenant, (openings, claims)) = (Tenant::new(tenant).unwrap(), means());
        let open = |_| {
            let files = Arc::clone(&files);
            async { Ok(Data(files, 0)) }
        };
        opened.get(openings.door(&tenant, &claims), asked, None, minute(), open).await
    }

    fn limit(error: Error) -> (u64, u64, &'static str) {
        match error {
            Error::Limit { asked, limit, option, .. } => (asked, limit, option),
            other => panic!("{other}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn open_datasets_are_bounded_by_their_bytes() {
        let opened = DatasetCache::new(1000);
        let held = |opened: &DatasetCache<Data>| {
            opened.lock().iter().filter_map(|entry| entry.slot.get()).map(|data| data.bytes()).sum::<u64>()
        };
        // Those that nobody reads make room, oldest first, for any tenant.
        for seed in 0..20 {
            drop(open(&opened, if seed % 2 == 0 { "anna" } else { "bert" }, seed, 300).await.unwrap());
            assert!(held(&opened) <= 1000, "{seed}");
        }
        let last = open(&opened, "bert", 19, 0).await.unwrap();
        assert_eq!(last.bytes(), 300, "the one that was used last is open still");
        // Datasets in use stay, and the error gives the need and the limit.
        let second = open(&opened, "bert", 100, 400).await.unwrap();
        assert_eq!(limit(open(&opened, "bert", 101, 100).await.unwrap_err()), (800, 750, "open_bytes"));
        let of_anna = open(&opened, "anna", 101, 300).await.unwrap();
        assert_eq!(limit(open(&opened, "anna", 102, 100).await.unwrap_err()), (1100, 1000, "open_bytes"));
        assert!(Arc::ptr_eq(&open(&opened, "carl", 100, 0).await.unwrap(), &second), "what is open is everybody's");
        // A dataset in use counts even if it is no longer found.
        opened.forget(&of_anna);
        assert!(open(&opened, "anna", 102, 100).await.is_err());
        drop(of_anna);
        drop(open(&opened, "anna", 102, 300).await.unwrap());
        drop((last, second));
        assert_eq!(limit(open(&opened, "anna", 103, 751).await.unwrap_err()), (751, 750, ALONE));
        drop(open(&opened, "anna", 103, 750).await.unwrap());
    }
}
