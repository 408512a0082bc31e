//! Staging: the calls of a writer, each a few steps over the [`WriteLedger`] and the target.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::attempt::{Attempt, Buffers, Busy, Running};
use super::lease::Lease;
use super::write_ledger::{Commit, WriteLedger, over};
use super::{Committed, DiskQuotas, Mode, Staged, Token, WriteId, directory, memory};
use crate::dataset::WriterOptions;
use crate::error::{Error, Result};

/// Limits of a staging, and how it writes.
#[derive(Debug, Clone, PartialEq)]
pub struct StagingOptions {
    /// A write without activity for this long vanishes. Default 1 hour.
    pub time_to_live: Duration,
    /// Writes that are open or remembered at once, in each tenant's space; 16 times as many in all. Those that are over make room for
    /// new ones. Default 1,000.
    pub max_writes: usize,
    /// Attempts of one write at once. Default 100,000.
    pub max_attempts: usize,
    /// Bytes of row groups that attempts gather at once, in a directory; beyond it row groups end early. Default 256 MiB.
    pub buffer_bytes: u64,
    /// Disk quotas of spaces in a directory: bytes of staged and committed files. Unlimited by default.
    pub disk: DiskQuotas,
    /// Options of writing files. The schema of Petastorm and `overwrite` do not apply here.
    pub writer: WriterOptions,
    /// Longest wait for a directory that another process has open. Default none.
    pub lock_patience: Duration,
}

impl Default for StagingOptions {
    fn default() -> Self {
        Self {
            time_to_live: Duration::from_secs(3600),
            max_writes: 1000,
            max_attempts: 100_000,
            buffer_bytes: 256 << 20,
            disk: DiskQuotas::default(),
            writer: WriterOptions::default(),
            lock_patience: Duration::ZERO,
        }
    }
}

/// Threads that write at once: far fewer than the runtime has for work that may block, which reading needs too.
const THREADS: usize = 16;

/// The most of these for the tenants of one space.
const THREADS_OF_ONE: usize = THREADS - THREADS / 4;

/// Longest wait of a commit for others of its dataset.
const PATIENCE: Duration = Duration::from_secs(300);

/// The place where writes are gathered and committed. Clones share it.
#[derive(Debug, Clone)]
pub struct Staging {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    book: Mutex<WriteLedger<Piece>>,
    pub(super) target: Target,
    /// One commit at a time to each dataset: each builds on the version before it. Those that wait for it hold no thread.
    committing: Named<String>,
    /// A place for each thread that writes.
    threads: Arc<Semaphore>,
    /// The same for each space.
    threads_of: Named<Option<String>>,
    pub(super) buffers: Buffers,
    /// Held while a row is written for which the Parquet writer takes much memory: one at a time.
    pub(super) long_rows: Mutex<()>,
}

/// Semaphores by name, each alive as long as it is in use.
type Named<K> = Mutex<HashMap<K, Arc<Semaphore>>>;

/// The semaphore of `name`; a new one has `permits` permits.
fn named<K: Hash + Eq>(all: &Named<K>, name: K, permits: usize) -> Arc<Semaphore> {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, known| Arc::strong_count(known) > 1);
    Arc::clone(all.entry(name).or_insert_with(|| Arc::new(Semaphore::new(permits))))
}

/// A place among the threads that write.
#[derive(Debug)]
pub(super) struct Place {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) enum Target {
    Directory(directory::Directory),
    Memory(memory::Memory),
}

/// A staged attempt.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    Directory(Arc<directory::Piece>),
    Memory(Arc<memory::Piece>),
}

/// An attempt that is being written.
#[derive(Debug)]
pub(super) enum Writer {
    Directory(Box<directory::Writer>),
    Memory(Box<memory::Writer>),
}

impl Staging {
    /// Stages writes as directories of Parquet files below `root`, which is made. Leftovers of a killed process are removed; the files that
    /// readers see are never touched. Needs a runtime.
    ///
    /// # Errors
    /// [`Error::Config`] for impossible options; [`Error::Closed`] naming the process that has `root`; [`Error::Store`].
    pub async fn directory(root: &Path, options: StagingOptions) -> Result<Self> {
        let (root, writer, disk) = (root.to_owned(), writer_options(&options)?, options.disk.clone());
        let lock = directory::lock(&root, options.lock_patience).await?;
        let opened = blocking(move || directory::Directory::open(&root, writer, disk, lock)).await?;
        Ok(Self::new(Target::Directory(opened), &options))
    }

    /// Stages writes as Parquet files in memory, of at most `budget` bytes together with the staged ones. Needs a runtime.
    ///
    /// # Errors
    /// [`Error::Config`] for impossible options.
    pub fn memory(budget: u64, options: StagingOptions) -> Result<Self> {
        let memory = memory::Memory::new(budget, writer_options(&options)?);
        Ok(Self::new(Target::Memory(memory), &options))
    }

    fn new(target: Target, options: &StagingOptions) -> Self {
        // 48 bits of the system's randomness.
        let first = RandomState::new().build_hasher().finish() >> 16;
        let book = Mutex::new(WriteLedger::new(first, options.max_writes, options.max_attempts));
        let inner = Arc::new(Inner {
            book,
            target,
            committing: Mutex::default(),
            threads: Arc::new(Semaphore::new(THREADS)),
            threads_of: Mutex::default(),
            buffers: Buffers::new(options.buffer_bytes),
            long_rows: Mutex::default(),
        });
        let (weak, ttl) = (Arc::downgrade(&inner), options.time_to_live);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep((ttl / 4).max(Duration::from_millis(1))).await;
                let Some(inner) = weak.upgrade() else { return };
                let gone = inner.book().expire(ttl, Instant::now());
                discard((gone, inner)).await;
            }
        });
        Self { inner }
    }

    /// Writes the rows of `batches`, with fields `schema`, as attempt `attempt` of task `task`. They are visible only after a commit
    /// that names the token. If this future is dropped, or `batches` ends with an error, nothing stays.
    ///
    /// # Errors
    /// That of `batches`; [`Error::Over`] if the write is committed or aborted, also meanwhile; [`Error::Limit`] if memory, the quota of
    /// disk, or the number of writes or attempts, is used up; [`Error::Mismatch`] for a batch with other columns; those of the writer.
    pub async fn stage(
        &self,
        write: &WriteId,
        task: u32,
        attempt: u32,
        schema: SchemaRef,
        batches: impl Stream<Item = Result<RecordBatch>>,
    ) -> Result<Staged> {
        self.stage_messages(write, task, attempt, schema, batches, |batch: &RecordBatch| Ok(Some(batch.clone()))).await
    }

    /// [`stage`](Self::stage) of messages that `decode` turns into batches, on the thread that writes them. No thread waits for a message.
    pub(crate) async fn stage_messages<M: Send + 'static>(
        &self,
        write: &WriteId,
        task: u32,
        attempt: u32,
        schema: SchemaRef,
        messages: impl Stream<Item = Result<M>>,
        decode: impl FnMut(&M) -> Result<Option<RecordBatch>> + Send + 'static,
    ) -> Result<Staged> {
        let token = self.inner.book().begin(write, task, attempt, Instant::now())?;
        let busy = Busy::new(Arc::clone(&self.inner), write.clone());
        let mut running = Running::new(Attempt::new(busy, token, decode));
        let outcome = async {
            running.run(move |attempt| attempt.open(schema)).await?;
            let mut messages = pin!(messages);
            while let Some(message) = messages.next().await {
                let message = message?;
                running.run(move |attempt| attempt.write(message)).await?;
            }
            running.run(Attempt::finish).await
        };
        let outcome = outcome.await;
        running.end().await;
        outcome
    }

    /// Makes the attempts of `tokens` visible at once, according to `mode`, and removes all others of the write. A write that was committed
    /// before, with these tokens, is unchanged and has the same answer; so has one that was committed by a process before this one, in a
    /// directory, whatever the tokens. Runs to its end even if this future is dropped.
    ///
    /// # Errors
    /// [`Error::NotFound`] names a token that is not staged; [`Error::Mismatch`] two attempts of one task, tasks of different columns, or
    /// other attempts than the write was committed with; [`Error::Config`] without a token, or if the dataset must not exist;
    /// [`Error::Over`] after an abort;
    /// [`Error::Timeout`] if others change the dataset for too long; [`Error::Store`]. After any of them, readers see what they saw before,
    /// and the write can be committed again. If the disk fails when the rows are already visible, they are taken back; if that fails too,
    /// the commit is made, and the log warns.
    pub async fn commit(&self, write: &WriteId, mode: Mode, tokens: &[Token]) -> Result<Committed> {
        self.commit_as(write, write.id(), mode, tokens).await
    }

    /// As [`commit`](Self::commit), remembered under the name `once` in place of the write's own id: of several writes with one name, which
    /// are attempts at the same thing, the first to be committed counts. The others get its answer, and their staged rows are removed.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); [`Error::Config`] if `once` is not a name.
    pub async fn commit_as(&self, write: &WriteId, once: &str, mode: Mode, tokens: &[Token]) -> Result<Committed> {
        let once = WriteId { dataset: write.dataset.clone(), ..WriteId::new("once", once)? };
        let (inner, write, tokens) = (Arc::clone(&self.inner), write.clone(), tokens.to_vec());
        let dataset = write.clone();
        Inner::alone(&self.inner, dataset, move || {
            if once.id() == write.id() {
                inner.book().check_repeated(&write, &tokens)?;
            }
            if let Some(committed) = inner.target.repeated(&once)? {
                let gone = inner.book().end_commit(&write, Some(committed), Instant::now());
                drop(gone);
                return Ok(committed);
            }
            let pieces = match inner.book().begin_commit(&write, &tokens, Instant::now())? {
                Commit::Done(committed) => return Ok(committed),
                Commit::Publish(pieces) => pieces,
            };
            // Ends the commit even if publishing panics.
            let mut ending = Ending { inner: &inner, write: &write, committed: None };
            let pieces = pieces.into_iter().map(|(_, piece)| piece);
            ending.committed = Some(inner.target.publish(&write, once.id(), mode, pieces)?);
            ending.committed.ok_or_else(|| Error::Closed { why: "the commit was not made".to_owned() })
        })
        .await
    }

    /// Ends a write: all its attempts vanish, also those that are still being written.
    ///
    /// # Errors
    /// [`Error::Over`] if it is committed, also by a process before this one if it was not begun again since; [`Error::Closed`] while it
    /// is being committed; [`Error::Store`] if the record of its dataset cannot be read.
    pub async fn abort(&self, write: &WriteId) -> Result<()> {
        let is_known = self.inner.book().knows(write);
        if !is_known {
            let (inner, unknown) = (Arc::clone(&self.inner), write.clone());
            if blocking(move || inner.target.answer(&unknown)).await?.is_some() {
                return Err(over(write, "committed"));
            }
        }
        let gone = self.inner.book().abort(write, Instant::now())?;
        discard(gone).await;
        Ok(())
    }

    /// Ends all open writes to `dataset` whose ids begin with `prefix`, as [`abort`](Self::abort) does, and returns their number: for a
    /// writer that does not know the ids of its tasks. Ids not seen before may begin afterwards.
    ///
    /// # Errors
    /// [`Error::Config`] unless the prefix could be an id.
    pub async fn abort_all(&self, dataset: &str, prefix: &str) -> Result<usize> {
        Ok(self.abort_like(&WriteId::new(dataset, prefix)?).await)
    }

    /// As [`abort_all`](Self::abort_all), for writes that begin with the id of `prefix`.
    pub(crate) async fn abort_like(&self, prefix: &WriteId) -> usize {
        let (count, gone) = self.inner.book().abort_all(prefix.dataset(), prefix.id(), Instant::now());
        discard(gone).await;
        count
    }

    /// Removes a dataset with all its files; false if there was none. Open writes continue: the next commit makes it anew, from its own
    /// rows only. Commits stay made: repeating one restores nothing. A reader of the dataset then finds its files gone. Runs to its end
    /// even if this future is dropped.
    ///
    /// # Errors
    /// [`Error::Config`] if this names no dataset, or one that was not written here; [`Error::Store`]: then it is as it was, or gone.
    pub async fn drop_dataset(&self, dataset: &str) -> Result<bool> {
        self.drop_of(WriteId::new(dataset, "drop")?).await
    }

    /// As [`drop_dataset`](Self::drop_dataset), for the dataset of `name`.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn drop_of(&self, name: WriteId) -> Result<bool> {
        let inner = Arc::clone(&self.inner);
        let dataset = name.clone();
        // No commit builds on a version that is about to go.
        Inner::alone(&self.inner, dataset, move || match &inner.target {
            Target::Directory(directory) => directory.drop_dataset(name.dataset()),
            Target::Memory(memory) => Ok(Handle::current().block_on(memory.drop_dataset(name.dataset()))),
        })
        .await
    }

    /// The address of the version of a dataset that was committed last, for [`Dataset::open`](crate::dataset::Dataset::open); None
    /// if there is none. The version before it can be read until the next commit, and longer by streams of this server that have begun.
    pub fn url(&self, dataset: &str) -> Option<String> {
        // Names become parts of paths.
        self.url_of(&WriteId::new(dataset, "x").ok()?)
    }

    /// As [`url`](Self::url), for the dataset of `name`.
    pub(crate) fn url_of(&self, name: &WriteId) -> Option<String> {
        match &self.inner.target {
            Target::Directory(directory) => directory.url(name.dataset()),
            Target::Memory(memory) => memory.url(name.dataset()),
        }
    }

    /// The version of the dataset of `name` that was committed last, and a lease of it.
    pub(crate) fn version_of(&self, name: &WriteId) -> Option<Version> {
        let url = self.url_of(name)?;
        let lease = match &self.inner.target {
            Target::Directory(directory) => directory.lease(&url),
            Target::Memory(memory) => memory.lease(&url),
        };
        Some(Version { dataset: name.dataset().to_owned(), url, lease })
    }

    /// Bytes of the memory budget in use; 0 for a directory.
    pub fn memory_used(&self) -> u64 {
        match &self.inner.target {
            Target::Directory(_) => 0,
            Target::Memory(memory) => memory.used(),
        }
    }
}

/// A version of a written dataset.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    /// The dataset's name on this server.
    pub(crate) dataset: String,
    /// Its address. Its files never change.
    pub(crate) url: String,
    /// Given to who opens it.
    pub(crate) lease: Arc<Lease>,
}

/// Checks the options that staged files do not support.
fn writer_options(options: &StagingOptions) -> Result<WriterOptions> {
    if options.time_to_live.is_zero() {
        return Err(Error::config("time_to_live", "must be more than 0 s"));
    }
    if options.writer.petastorm.is_some() || options.writer.overwrite {
        return Err(Error::config("writer", "petastorm and overwrite are not for staged files"));
    }
    Ok(options.writer.clone())
}

impl Inner {
    pub(super) fn book(&self) -> MutexGuard<'_, WriteLedger<Piece>> {
        // Every call leaves the book consistent.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a thread that writes for `space`, once one is free; none if there are no more.
    pub(super) async fn place(&self, space: Option<&str>) -> Option<Place> {
        let own = named(&self.threads_of, space.map(str::to_owned), THREADS_OF_ONE).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.threads).acquire_owned().await.ok()?;
        Some(Place { _own: own, _all: all })
    }

    /// Runs `work` where it may block, as the only one that changes the dataset of `name`, to its end even if this future is dropped.
    async fn alone<T: Send + 'static>(
        inner: &Arc<Self>,
        name: WriteId,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(inner);
        let working = tokio::spawn(async move {
            let turn = named(&inner.committing, name.dataset().to_owned(), 1).acquire_owned();
            let turn = tokio::time::timeout(PATIENCE, turn).await.map_err(|_| Error::Timeout {
                stage: "commit",
                culprit: format!("others that change dataset {:?}", name.dataset()),
                waited: PATIENCE,
            })?;
            let place = inner.place(name.space()).await;
            blocking(move || {
                let _held = (turn, place);
                work()
            })
            .await
        });
        joined(working.await)
    }
}

/// Ends a commit in the book on every way out.
struct Ending<'a> {
    inner: &'a Inner,
    write: &'a WriteId,
    committed: Option<Committed>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let gone = self.inner.book().end_commit(self.write, self.committed, Instant::now());
        // Removed outside the lock.
        drop(gone);
    }
}

impl Target {
    pub(super) fn writer(&self, write: &WriteId, token: Token, schema: SchemaRef) -> Result<Writer> {
        match self {
            Self::Directory(target) => {
                Ok(Writer::Directory(Box::new(target.writer(write.space(), token.number, schema)?)))
            }
            Self::Memory(target) => Ok(Writer::Memory(Box::new(target.writer(write.space(), schema)?))),
        }
    }

    fn answer(&self, write: &WriteId) -> Result<Option<Committed>> {
        match self {
            Self::Directory(target) => target.answer(write),
            Self::Memory(target) => Ok(target.answer(write)),
        }
    }

    /// [`answer`](Self::answer) to a commit that is made again, as durable as the disk lets it be.
    fn repeated(&self, write: &WriteId) -> Result<Option<Committed>> {
        match self {
            Self::Directory(target) => target.repeated(write),
            Self::Memory(target) => Ok(target.answer(write)),
        }
    }

    /// Runs on a thread that may block.
    fn publish(
        &self,
        write: &WriteId,
        once: &str,
        mode: Mode,
        pieces: impl Iterator<Item = Piece>,
    ) -> Result<Committed> {
        // A target only ever meets its own pieces: it made them.
        match self {
            Self::Directory(target) => {
                let own = |piece| if let Piece::Directory(piece) = piece { Some(piece) } else { None };
                target.publish(write, once, mode, &pieces.filter_map(own).collect::<Vec<_>>())
            }
            Self::Memory(target) => {
                let own = |piece| if let Piece::Memory(piece) = piece { Some(piece) } else { None };
                let pieces: Vec<_> = pieces.filter_map(own).collect();
                Handle::current().block_on(target.publish(write, once, mode, &pieces))
            }
        }
    }
}

impl Writer {
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match self {
            Self::Directory(writer) => writer.write(batch),
            Self::Memory(writer) => writer.write(batch),
        }
    }

    /// Bytes of the row group that is gathered, if nothing else counts them.
    pub(super) fn gathered(&self) -> u64 {
        match self {
            Self::Directory(writer) => writer.gathered(),
            // The budget of the datasets in memory counts them.
            Self::Memory(_) => 0,
        }
    }

    /// Ends the row group that is gathered.
    pub(super) fn flush(&mut self) -> Result<()> {
        match self {
            Self::Directory(writer) => writer.flush(),
            Self::Memory(_) => Ok(()),
        }
    }

    /// A staged attempt, its rows and its bytes.
    pub(super) fn finish(self) -> Result<(Piece, u64, u64)> {
        let (piece, (rows, bytes)) = match self {
            Self::Directory(writer) => {
                let piece = writer.finish()?;
                let written = piece.written();
                (Piece::Directory(Arc::new(piece)), written)
            }
            Self::Memory(writer) => {
                let piece = writer.finish()?;
                let written = piece.written();
                (Piece::Memory(Arc::new(piece)), written)
            }
        };
        Ok((piece, rows, bytes))
    }
}

/// Runs `work` where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    joined(tokio::task::spawn_blocking(work).await)
}

/// Drops values that remove files, on a thread that may block. A failure has no recipient.
pub(super) async fn discard<T: Send + 'static>(gone: T) {
    let _ = tokio::task::spawn_blocking(move || drop(gone)).await;
}

pub(super) fn joined<T>(outcome: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    outcome.unwrap_or_else(|error| Err(Error::Closed { why: format!("the writing thread ended: {error}") }))
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn commits_wait_for_those_of_their_own_dataset_alone_and_not_for_ever() {
        let staging = Staging::memory(64 << 20, StagingOptions::default()).unwrap();
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
        let rows = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
        let stage = async |dataset: &str| {
            let write = WriteId::new(dataset, "w").unwrap();
            let batches = futures::stream::iter([Ok(rows.clone())]);
            let staged = staging.stage(&write, 0, 0, Arc::clone(&schema), batches).await.unwrap();
            (write, [staged.token])
        };
        let ((slow, slow_tokens), (other, tokens)) = (stage("slow").await, stage("other").await);
        let held = named(&staging.inner.committing, "slow".to_owned(), 1).acquire_owned().await.unwrap();
        let start = Instant::now();
        assert_eq!(staging.commit(&other, Mode::Create, &tokens).await.unwrap().rows, 1);
        assert!(start.elapsed() < PATIENCE);
        let error = staging.commit(&slow, Mode::Create, &slow_tokens).await.unwrap_err();
        assert!(matches!(&error, Error::Timeout { culprit, .. } if culprit.contains("\"slow\"")), "{error}");
        drop(held);
        assert_eq!(staging.commit(&slow, Mode::Create, &slow_tokens).await.unwrap().rows, 1, "it can be tried again");
        assert!(staging.drop_dataset("other").await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn one_space_leaves_threads_to_others() {
        let staging = Staging::memory(64 << 20, StagingOptions::default()).unwrap();
        let inner = &staging.inner;
        let mut places = Vec::new();
        for _ in 0..THREADS_OF_ONE {
            places.push(inner.place(Some("anna")).await);
        }
        let wait = |space| tokio::time::timeout(Duration::from_secs(1), inner.place(space));
        assert!(wait(Some("anna")).await.is_err());
        assert!(wait(Some("bert")).await.unwrap().is_some() && wait(None).await.unwrap().is_some());
        places.pop();
        assert!(wait(Some("anna")).await.unwrap().is_some());
    }
}
