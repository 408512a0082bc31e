//! What a file system and its files share: threads, a cache, patience.

use std::time::Duration;

use tokio::runtime::Runtime;

use super::super::cache::{CachePlace, CacheReader, CacheStats};
use super::super::origins::with_refusal;
use crate::error::{Error, Result};

/// Threads that wait for stores and hand over bytes.
const THREADS: usize = 2;

/// The longest wait for blocks that are being written into the cache when a file is closed.
const ENDING: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(super) struct Means {
    runtime: Option<Runtime>,
    pub(super) cache: Option<CacheReader>,
    pub(super) timeout: Duration,
}

impl Drop for Means {
    fn drop(&mut self) {
        // Dropping a runtime waits for reads in system calls, which may hang.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Means {
    /// Starts the threads, and opens the cache at `place`.
    ///
    /// # Errors
    /// [`Error::Config`] for a cache that is none; [`Error::Closed`] if no threads can be started.
    pub(super) fn new(place: Option<&CachePlace>, timeout: Duration) -> Result<Self> {
        let cache = place.map(CacheReader::open).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("bowstring-io")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        Ok(Self { runtime: Some(runtime), cache, timeout })
    }

    pub(super) fn runtime(&self) -> Result<&Runtime> {
        self.runtime.as_ref().ok_or_else(|| Error::Closed { why: "the file system is closed".to_owned() })
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
