//! Datasets that are open, each with what was asked of it: streams that ask for the same share it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::error::{Error, Result};
use crate::flight::wire::Columns;
use crate::manifest::Fingerprint;
use crate::pipeline::{LoaderOptions, Prepared};
use crate::plan::Plan;

/// Datasets that are kept open although no stream reads them.
const KEPT: usize = 64;

/// Batches made ahead for each stream.
pub(super) const PREFETCH: usize = 4;

/// A dataset with its columns and plan.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) prepared: Prepared,
    pub(super) columns: Columns,
    /// The plan of epoch 0.
    pub(super) plan: Arc<Plan>,
    pub(super) fingerprint: Fingerprint,
}

impl Offer {
    pub(super) async fn open(options: LoaderOptions, budget: usize) -> Result<Self> {
        let prepared = Prepared::open(&options).await?;
        let plan = prepared.plan(0)?;
        let columns = Columns::of(prepared.schema(), &prepared.specimen(&plan, budget)?);
        let fingerprint = plan.fingerprint();
        Ok(Self { prepared, columns, plan: Arc::new(plan), fingerprint })
    }

    /// The plan of `epoch`.
    pub(super) fn plan(&self, epoch: u64) -> Result<Arc<Plan>> {
        if epoch == self.plan.epoch() { Ok(Arc::clone(&self.plan)) } else { self.prepared.plan(epoch).map(Arc::new) }
    }
}

type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    urls: Vec<String>,
    /// All options, as JSON.
    options: String,
}

/// What is open by what was asked for, the one used last at the end.
#[derive(Debug)]
pub(super) struct Opened<T> {
    cells: Mutex<VecDeque<(Key, Cell<T>)>>,
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Self { cells: Mutex::default() }
    }
}

impl<T> Opened<T> {
    /// What `options` ask for; opened once by `open`, however many ask at the same time.
    pub(super) async fn get<F: Future<Output = Result<T>>>(
        &self,
        mut options: LoaderOptions,
        open: impl FnOnce(LoaderOptions) -> F,
    ) -> Result<Arc<T>> {
        // The world is the ticket's affair; the environment of the server says nothing about it.
        (options.rank, options.world_size) = (Some(0), Some(1));
        let json = serde_json::to_string(&options).map_err(|error| Error::config("options", error.to_string()))?;
        let cell = self.cell(Key { urls: options.urls.clone(), options: json });
        let offer = cell.get_or_try_init(async || open(options).await.map(Arc::new)).await;
        Ok(Arc::clone(offer?))
    }

    fn cell(&self, key: Key) -> Cell<T> {
        let mut cells = self.lock();
        let cell = match cells.iter().position(|(found, _)| *found == key).and_then(|at| cells.remove(at)) {
            Some((_, cell)) => cell,
            None => Cell::default(),
        };
        cells.push_back((key, Arc::clone(&cell)));
        while cells.len() > KEPT {
            cells.pop_front();
        }
        cell
    }

    /// Forgets `offer`: its data has changed.
    pub(super) fn forget(&self, offer: &Arc<T>) {
        self.lock().retain(|(_, cell)| cell.get().is_none_or(|found| !Arc::ptr_eq(found, offer)));
    }

    /// Forgets all that is at `url`: it is gone.
    pub(super) fn forget_at(&self, url: &str) {
        self.lock().retain(|(key, _)| key.urls.iter().all(|known| known != url));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Key, Cell<T>)>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
