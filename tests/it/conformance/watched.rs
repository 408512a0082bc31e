//! A source around a source, as users may write one: it counts batches, and delegates everything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowstring::device::{Device, DeviceStats};
use bowstring::pipeline::{Ledger, LocalSource, PlanInfo, Stats, Trail, WideInteger};
use bowstring::trace::Root;
use bowstring::{AnyBatch, BatchSource, Loader, LoaderOptions, Next, Result, Schema, State};

use super::ways::next;
use crate::support;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Watched {
    inner: LocalSource,
    passed: Arc<AtomicU64>,
}

impl Watched {
    pub(super) fn open(options: LoaderOptions) -> Result<Loader> {
        Ok(Self::counted(options)?.0)
    }

    fn counted(options: LoaderOptions) -> Result<(Loader, Arc<AtomicU64>)> {
        let (inner, passed) = (LocalSource::open(options)?, Arc::default());
        let source = Self { inner, passed: Arc::clone(&passed) };
        Ok((Loader::of(Box::new(source)), passed))
    }
}

#[deny(clippy::missing_trait_methods, reason = "a new method must not slip past")]
impl BatchSource for Watched {
    fn next(&mut self, wait: Duration) -> Result<Next<AnyBatch>> {
        let next = self.inner.next(wait)?;
        self.passed.fetch_add(u64::from(matches!(next, Next::Item(_))), Ordering::Relaxed);
        Ok(next)
    }

    fn seek(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.inner.seek(epoch, step)
    }

    fn resume(&mut self, state: &State) -> Result<u64> {
        self.inner.resume(state)
    }

    fn info(&self) -> &PlanInfo {
        self.inner.info()
    }

    fn schema(&self) -> &Schema {
        self.inner.schema()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn culprit(&self) -> (&'static str, String) {
        self.inner.culprit()
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    fn check_maker(&self) -> Result<()> {
        self.inner.check_maker()
    }

    fn wide_integers(&mut self, wait: Duration) -> Result<Next<Vec<WideInteger>>> {
        self.inner.wide_integers(wait)
    }

    fn generation(&self) -> Option<u64> {
        self.inner.generation()
    }

    fn trail(&self) -> Option<Trail> {
        self.inner.trail()
    }

    fn root(&self) -> Option<Root> {
        self.inner.root()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn ledger(&self) -> Ledger {
        self.inner.ledger()
    }

    fn device(&self) -> Option<&Arc<dyn Device>> {
        self.inner.device()
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        self.inner.device_stats()
    }

    fn close(&mut self) {
        self.inner.close();
    }
}

#[test]
fn what_came_back_does_not_come_from_the_source_again() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![40, 23]], 1);
    let (mut loader, passed) = Watched::counted(support::options(directory.path(), 8, 0, 1)).unwrap();
    let batch = loader.next_any().unwrap().unwrap();
    for _ in 0..3 {
        loader.put_back(batch.clone());
        assert_eq!(next(&mut loader).unwrap().at, (0, 0));
    }
    assert_eq!(passed.load(Ordering::Relaxed), 1);
}
