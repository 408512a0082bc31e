//! Datasets as Parquet files in memory, within a byte budget. Readers find them by an address of this process:
//! `memory://put-1/train/00000002-w7/`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::errors::ParquetError;

use super::lease::{Lease, Leases};
use super::{Committed, Mode, Record, WriteId, columns, same_columns};
use crate::dataset::{FileWriter, Sink, WriterOptions};
use crate::error::{Error, Result};
use crate::memory::{Pool, Reservation, SystemAllocator};

/// Bytes that a growing file claims beyond its minimum: headers, levels, the footer.
const SPARE: usize = 64 << 10;

/// Numbers of the stores of this process.
static STORES: AtomicU64 = AtomicU64::new(0);

/// Datasets in memory.
#[derive(Debug)]
pub(super) struct Memory {
    store: Arc<dyn ObjectStore>,
    host: String,
    budget: Arc<Share>,
    /// The shares of tenants' spaces in which there is something.
    shares: Mutex<HashMap<String, Weak<Share>>>,
    options: WriterOptions,
    datasets: Mutex<HashMap<String, Dataset>>,
    leases: Leases,
}

/// The version that readers are sent to, and the one before it, for readers that have opened it.
#[derive(Debug)]
struct Dataset {
    current: Version,
    before: Option<Version>,
    /// Earlier ones that were being read at the last commit.
    read: Vec<Version>,
}

#[derive(Debug, Clone)]
struct Version {
    directory: String,
    record: Record,
    files: Vec<(String, Arc<Blob>)>,
}

/// A file's bytes, and their place in the budget.
#[derive(Debug)]
struct Blob {
    bytes: Bytes,
    _charge: Charge,
}

/// A whole attempt.
#[derive(Debug)]
pub(super) struct Piece {
    blob: Arc<Blob>,
    rows: u64,
    columns: Vec<String>,
}

impl Piece {
    pub(super) fn written(&self) -> (u64, u64) {
        (self.rows, self.blob.bytes.len() as u64)
    }
}

/// Memory for the writes to one space: a pool of its own, within the whole.
#[derive(Debug)]
struct Share {
    own: Arc<Pool>,
    whole: Option<Arc<Pool>>,
}

impl Share {
    fn new(limit: usize, whole: Option<Arc<Pool>>) -> Arc<Self> {
        Arc::new(Self { own: Pool::without_recycling(Arc::new(SystemAllocator), limit), whole })
    }
}

/// Bytes of a share, given back on drop.
#[derive(Debug)]
struct Charge {
    own: Reservation,
    whole: Option<Reservation>,
    share: Arc<Share>,
}

impl Charge {
    /// No bytes yet.
    fn of(share: &Arc<Share>) -> Self {
        Self { own: share.own.nothing(), whole: share.whole.as_ref().map(Pool::nothing), share: Arc::clone(share) }
    }

    /// Changes its size to `bytes`. On an error, the size is unchanged.
    fn resize(&mut self, bytes: u64) -> Result<()> {
        let held = self.own.bytes();
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        let refused = |pool: &Pool, whose: &str| {
            let asked = ((pool.used() - held) as u64).saturating_add(bytes);
            let what = format!("datasets in the server's memory, for which there is half of its budget{whose}");
            Err(Error::limit(what, asked, pool.budget() as u64, "memory_budget"))
        };
        if !self.own.try_resize(wanted) {
            return refused(&self.share.own, if self.whole.is_some() { ", of one tenant" } else { "" });
        }
        if let (Some(part), Some(pool)) = (&mut self.whole, &self.share.whole)
            && !part.try_resize(wanted)
        {
            self.own.shrink_to(held);
            return refused(pool, "");
        }
        Ok(())
    }
}

/// A growing file whose memory is paid for before it is there.
#[derive(Debug)]
struct Growing {
    bytes: Vec<u8>,
    charge: Charge,
    /// The budget's refusal: the Parquet crate makes a text of it where it ends a file.
    refusal: Refusal,
}

type Refusal = Arc<Mutex<Option<Error>>>;

impl Growing {
    /// Makes room for `bytes` more, and for `spare` after them.
    fn reserve(&mut self, bytes: usize, spare: usize) -> Result<()> {
        let needed = self.bytes.len() + bytes;
        if needed > self.bytes.capacity() {
            let capacity = needed + spare;
            self.charge.resize(capacity as u64)?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        Ok(())
    }
}

impl Sink for Growing {
    /// Growing in pieces would copy the content again and again.
    fn expect(&mut self, bytes: usize) {
        // If the estimate does not fit, the real size still may: writing shows it.
        let _ = self.reserve(bytes, (self.bytes.len() / 4).max(bytes / 64 + SPARE));
    }
}

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let spare = (self.bytes.len() / 4).max(SPARE);
        if let Err(error) = self.reserve(bytes.len(), spare) {
            let told = io::Error::other(error.to_string());
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            return Err(told);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An attempt that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    writer: FileWriter<Growing>,
    refusal: Refusal,
    /// The row group that is gathered.
    gathered: Charge,
    rows: u64,
    columns: Vec<String>,
}

impl Writer {
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let found = columns(batch.schema_ref());
        if found != self.columns {
            return Err(Error::Mismatch {
                what: "columns of a batch".to_owned(),
                expected: self.columns.join(", "),
                found: found.join(", "),
                hint: "every batch has the columns that the attempt was begun with".to_owned(),
            });
        }
        self.writer.write(batch).map_err(|error| refused(&self.refusal, error))?;
        self.gathered.resize(self.writer.memory_size() as u64)?;
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Piece> {
        let ended = self.writer.into_inner().map_err(|error| refused(&self.refusal, error));
        let Growing { mut bytes, mut charge, .. } = ended?;
        bytes.shrink_to_fit();
        charge.resize(bytes.len() as u64)?;
        let blob = Arc::new(Blob { bytes: bytes.into(), _charge: charge });
        Ok(Piece { blob, rows: self.rows, columns: self.columns })
    }
}

/// The writer's error: the budget's own if it was that.
fn refused(refusal: &Refusal, error: ParquetError) -> Error {
    if let Some(refusal) = refusal.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return refusal;
    }
    let ParquetError::External(source) = error else {
        return Error::unsupported(
            format!("writing a batch as Parquet ({error})"),
            "store the column as a type that Parquet has",
        );
    };
    Error::Store { operation: "write".to_owned(), url: "memory".to_owned(), source }
}

impl Memory {
    pub(super) fn new(limit: u64, options: WriterOptions) -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let host = format!("put-{}", STORES.fetch_add(1, Ordering::Relaxed) + 1);
        crate::store::register_memory(&host, &store);
        let budget = Share::new(usize::try_from(limit).unwrap_or(usize::MAX), None);
        Self {
            store,
            host,
            budget,
            shares: Mutex::default(),
            options,
            datasets: Mutex::default(),
            leases: Leases::default(),
        }
    }

    /// Bytes of the budget in use.
    pub(super) fn used(&self) -> u64 {
        self.budget.own.used() as u64
    }

    /// Memory for the writes to `space`: at most three quarters for one tenant's, so that it cannot keep the others out.
    fn share(&self, space: Option<&str>) -> Arc<Share> {
        let Some(space) = space else { return Arc::clone(&self.budget) };
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        shares.get(space).and_then(Weak::upgrade).unwrap_or_else(|| {
            let whole = &self.budget.own;
            let share = Share::new(whole.budget() - whole.budget() / 4, Some(Arc::clone(whole)));
            shares.insert(space.to_owned(), Arc::downgrade(&share));
            share
        })
    }

    fn datasets(&self) -> MutexGuard<'_, HashMap<String, Dataset>> {
        // Entries are put in whole.
        self.datasets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL that readers open.
    pub(super) fn url(&self, dataset: &str) -> Option<String> {
        Some(self.url_of(&self.datasets().get(dataset)?.current))
    }

    fn url_of(&self, version: &Version) -> String {
        format!("memory://{}/{}/", self.host, version.directory)
    }

    /// A lease of the version at `url`.
    pub(super) fn lease(&self, url: &str) -> Arc<Lease> {
        self.leases.take(url)
    }

    /// A writer of an attempt of a write in `space`.
    pub(super) fn writer(&self, space: Option<&str>, schema: SchemaRef) -> Result<Writer> {
        let properties = self.options.check(&schema)?;
        let budget = self.share(space);
        let charge = || Charge::of(&budget);
        let refusal = Refusal::default();
        let sink = Growing { bytes: Vec::new(), charge: charge(), refusal: Arc::clone(&refusal) };
        let columns = columns(&schema);
        let writer = FileWriter::new(sink, schema, properties).map_err(|error| refused(&refusal, error))?;
        Ok(Writer { writer, refusal, gathered: charge(), rows: 0, columns })
    }

    /// The answer of a commit that was made.
    pub(super) fn answer(&self, write: &WriteId) -> Option<Committed> {
        self.datasets().get(write.dataset())?.current.record.answer(write.id())
    }

    /// Makes `pieces` visible, which is remembered as `once`. On an error, nothing has changed for readers.
    pub(super) async fn publish(
        &self,
        write: &WriteId,
        once: &str,
        mode: Mode,
        pieces: &[Arc<Piece>],
    ) -> Result<Committed> {
        let old = self.datasets().get(write.dataset()).map(|dataset| dataset.current.clone());
        let columns = same_columns(write, pieces.iter().map(|piece| piece.columns.as_slice()))?;
        let total = |of: fn(&Piece) -> u64| pieces.iter().map(|piece| of(piece)).sum();
        let (rows, bytes) = (total(|piece| piece.rows), total(|piece| piece.blob.bytes.len() as u64));
        let committed = Committed { rows, bytes, files: pieces.len() as u64 };
        let (record, keep) =
            Record::after(old.as_ref().map(|old| &old.record), (write.dataset(), once), mode, columns, committed)?;
        let mut files = old.filter(|_| keep).map(|old| old.files).unwrap_or_default();
        for (task, piece) in pieces.iter().enumerate() {
            let name = format!("{:08}-{task:06}-{}.parquet", record.version, write.id());
            files.push((name, Arc::clone(&piece.blob)));
        }
        let directory = format!("{}/{:08}-{}", write.dataset(), record.version, write.id());
        let version = Version { directory, record, files };
        for (name, blob) in &version.files {
            // The bytes are shared, not copied.
            let put = self.store.put(&version.path(name), blob.bytes.clone().into()).await;
            if let Err(error) = put {
                self.remove(&version).await;
                let url = format!("memory://{}/{}/{name}", self.host, version.directory);
                return Err(Error::Store { operation: "write".to_owned(), url, source: error.into() });
            }
        }
        let forgotten = {
            let mut datasets = self.datasets();
            let old = datasets.remove(write.dataset());
            let (before, past) = match old {
                Some(Dataset { current, before, mut read }) => {
                    read.extend(before);
                    (Some(current), read)
                }
                None => (None, Vec::new()),
            };
            // Memory is short: only what is being read stays.
            let is_read = |version: &Version| self.leases.is_read(&self.url_of(version), Duration::ZERO);
            let (read, forgotten) = past.into_iter().partition::<Vec<_>, _>(is_read);
            datasets.insert(write.dataset().to_owned(), Dataset { current: version, before, read });
            forgotten
        };
        for forgotten in &forgotten {
            self.remove(forgotten).await;
        }
        Ok(committed)
    }

    /// Removes the dataset and gives its bytes back; false if there was none.
    pub(super) async fn drop_dataset(&self, dataset: &str) -> bool {
        let Some(gone) = self.datasets().remove(dataset) else { return false };
        for version in [Some(gone.current), gone.before].iter().flatten().chain(&gone.read) {
            self.remove(version).await;
        }
        true
    }

    async fn remove(&self, version: &Version) {
        for (name, _) in &version.files {
            // A missing dataset needs no removal.
            let _ = self.store.delete(&version.path(name)).await;
        }
    }
}

impl Version {
    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_ends_anywhere_in_a_file_is_a_limit() {
        let ids: arrow::array::ArrayRef = Arc::new(arrow::array::Int64Array::from_iter_values(0..500));
        let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        let written = |limit| {
            let memory = Memory::new(limit, WriterOptions::fleeting());
            let mut writer = memory.writer(None, batch.schema())?;
            writer.write(&batch)?;
            writer.finish().map(drop)
        };
        let (mut refused, mut limit) = (0, 64);
        while let Err(error) = written(limit) {
            assert!(matches!(error, Error::Limit { option: "memory_budget", .. }), "{limit}: {error}");
            (refused, limit) = (refused + 1, limit + 16);
        }
        assert!(refused > 100, "it fits into {limit}");
    }

    #[test]
    fn one_tenant_never_has_all_of_the_memory() {
        let memory = Memory::new(1000, WriterOptions::fleeting());
        let charge = |space| Charge::of(&memory.share(space));
        let (mut first, mut second) = (charge(Some("anna")), charge(Some("anna")));
        first.resize(500).unwrap();
        let error = second.resize(251).unwrap_err();
        assert!(matches!(error, Error::Limit { asked: 751, limit: 750, option: "memory_budget", .. }), "{error}");
        second.resize(250).unwrap();
        let mut bert = charge(Some("bert"));
        assert!(bert.resize(251).is_err() && bert.resize(250).is_ok(), "the rest is there for others");
        assert!(second.resize(250).is_ok() && charge(None).resize(1).is_err());
        drop((first, bert));
        assert_eq!((memory.used(), memory.share(Some("anna")).own.used()), (250, 250));
        charge(None).resize(750).unwrap();
        second.resize(0).unwrap();
        charge(None).resize(1000).expect("what is common has no share");
        drop(second);
        assert_eq!(memory.used(), 0);
        memory.share(Some("carl"));
        assert_eq!(memory.shares.lock().unwrap().len(), 1, "who has nothing is forgotten");
    }
}
