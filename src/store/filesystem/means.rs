//! What a file system and its files share: threads, a cache, patience.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::super::cache::{CachePlace, CacheReader, CacheStats};
use super::super::origins::with_refusal;
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// Threads that wait for stores and hand over bytes: one per CPU within these.
const THREADS: RangeInclusive<usize> = 2..=8;

/// The longest wait for blocks that are being written into the cache when a file is closed.
const ENDING: Duration = Duration::from_secs(30);

/// The threads of all file systems of this process, of which there may be one for each open file, or upload in the background.
static SHARED: PerProcess<Mutex<Weak<Threads>>> = PerProcess::new();

#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    /// Those that there are, or new ones.
    fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = shared.upgrade() {
            return Ok(threads);
        }
        let cpus = available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cpus.clamp(*THREADS.start(), *THREADS.end()))
            .thread_name("bowstring-io")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        let threads = Arc::new(Self(Some(runtime)));
        *shared = Arc::downgrade(&threads);
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Dropping a runtime waits for reads in system calls, which may hang.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Means {
    threads: Arc<Threads>,
    pub(super) cache: Option<CacheReader>,
    pub(super) timeout: Duration,
}

impl Means {
    /// Takes the threads, and opens the cache at `place`.
    ///
    /// # Errors
    /// [`Error::Config`] for a cache that is none; [`Error::Closed`] if no threads can be started.
    pub(super) fn new(place: Option<&CachePlace>, timeout: Duration) -> Result<Self> {
        let cache = place.map(CacheReader::open).transpose()?;
        Ok(Self { threads: Threads::shared()?, cache, timeout })
    }

    pub(super) fn runtime(&self) -> Result<&Runtime> {
        self.threads.0.as_ref().ok_or_else(|| Error::Closed { why: "the file system is closed".to_owned() })
    }

    /// Waits for `work`, which has a deadline of its own.
    pub(super) fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime()?.block_on(work)
    }

    /// Ends `work` on `url` after the timeout.
    ///
    /// # Errors
    /// [`Error::Timeout`], and those of `work`.
    pub(super) async fn in_time<T>(&self, url: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let late = |_| Error::Timeout { stage: "read", culprit: with_refusal(url, self.timeout), waited: self.timeout };
        tokio::time::timeout(self.timeout, work).await.map_err(late)?
    }

    /// Waits until the cache has written what was fetched, for [`ENDING`] at most.
    pub(super) fn settle(&self) {
        if let Some(cache) = &self.cache {
            drop(self.run(async { Ok(tokio::time::timeout(ENDING, cache.settle()).await.is_ok()) }));
        }
    }

    /// Counters of the cache, for what is read through it here.
    pub(super) fn stats(&self) -> CacheStats {
        self.cache.as_ref().map(CacheReader::stats).unwrap_or_default()
    }
}
