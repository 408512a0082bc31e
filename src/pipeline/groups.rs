//! Row groups on their way from the store to cells, shared by every step that takes rows from them.
//!
//! ```text
//!   Waiting (for a turn) ─► Reading ─► Decoding ─► Done
//! ```
//!
//! A [`Slot`] holds its reservation; windows hold slots; steps in flight hold windows. When the last of them is gone,
//! the memory goes back to the budget, so nothing has to announce that a row group is finished.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use rayon::prelude::*;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::job::{Job, Source, closed};
use super::stats;
use super::trail::{Read, Way};
use crate::codec::{RowGroupBlock, TakeOrder};
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::plan::{KeptOrder, Order, TakenRows, WindowUse};
use crate::store::fetch_time;
use crate::trace;

/// Progress of a row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Reading,
    Decoding,
    Done,
}

impl Phase {
    /// The stage to blame when this takes too long.
    fn stage(self) -> &'static str {
        match self {
            Self::Waiting | Self::Reading => "read",
            Self::Decoding => "decode",
            Self::Done => "batch",
        }
    }
}

/// One row group in flight.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) source: u32,
    pub(super) group: u32,
    phase: watch::Sender<Phase>,
    born: Instant,
    outcome: OnceLock<Result<Loaded, Arc<Error>>>,
}

/// The outcome of one.
#[derive(Debug)]
pub(super) struct Loaded {
    cells: Arc<RowGroupBlock>,
    /// Held for as long as the cells are.
    reservation: Arc<Reservation>,
    way: Way,
    /// Orders of windows, with which steps find the rows that they take.
    _orders: Vec<KeptOrder>,
}

impl Slot {
    pub(super) fn new(source: u32, group: u32) -> Arc<Self> {
        let (phase, _) = watch::channel(Phase::Waiting);
        Arc::new(Self { source, group, phase, born: Instant::now(), outcome: OnceLock::new() })
    }

    /// Source and number of the row group.
    pub(super) fn name(&self) -> (u32, u32) {
        (self.source, self.group)
    }

    /// Waits until it is done; returns true if there are cells, see [`error`](Self::error).
    pub(super) async fn is_loaded(&self) -> bool {
        // Most are there when a step asks: with small row groups a step asks thousands of them.
        if self.outcome.get().is_none() {
            let mut phase = self.phase.subscribe();
            // The sender lives in `self`, so the channel cannot close before the phase is reached.
            if phase.wait_for(|phase| *phase == Phase::Done).await.is_err() {
                return false;
            }
        }
        self.cells().is_some()
    }

    /// The cells, once they are there.
    pub(super) fn cells(&self) -> Option<&Arc<RowGroupBlock>> {
        self.outcome.get()?.as_ref().ok().map(|loaded| &loaded.cells)
    }

    /// The memory of the cells, once they are there.
    pub(super) fn reservation(&self) -> Option<&Arc<Reservation>> {
        self.outcome.get()?.as_ref().ok().map(|loaded| &loaded.reservation)
    }

    /// When its bytes and its cells were there, once they are.
    pub(super) fn way(&self) -> Option<Way> {
        self.outcome.get()?.as_ref().ok().map(|loaded| loaded.way.clone())
    }

    /// Returns true if it is done without cells.
    pub(super) fn has_failed(&self) -> bool {
        self.outcome.get().is_some_and(Result::is_err)
    }

    /// The error of the row group: the same for every rank that waited for it.
    pub(super) fn error(&self) -> Error {
        match self.outcome.get() {
            Some(Err(error)) => Error::again(error),
            _ => closed(),
        }
    }

    /// Stage, description and age, until it is done.
    pub(super) fn pending(&self, job: &Job) -> Option<(&'static str, String)> {
        let phase = *self.phase.borrow();
        let place = job.sources[self.source as usize].dataset.place(self.group as usize);
        let text = || format!("{place}, requested {:.1} s ago", self.born.elapsed().as_secs_f64());
        (phase != Phase::Done).then(|| (phase.stage(), text()))
    }

    /// Bytes held once it is finished; `None` while it may still give some back.
    pub(super) fn held(&self) -> Option<u64> {
        self.outcome.get().map(|outcome| outcome.as_ref().map_or(0, |loaded| loaded.reservation.bytes() as u64))
    }

    fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    pub(super) fn finish(&self, result: Result<Loaded>) {
        // A slot is finished once; a second result would be a bug and is dropped with its reservation.
        drop(self.outcome.set(result.map_err(Arc::new)));
        self.enter(Phase::Done);
    }
}

/// Row groups being read and decoded. The reader aborts them when it ends; its task only starts them.
#[derive(Debug, Default)]
pub(super) struct Loads(Mutex<Loading>);

#[derive(Debug, Default)]
struct Loading {
    tasks: JoinSet<()>,
    /// The row groups of the tasks, oldest first, and some that are gone.
    slots: Vec<Weak<Slot>>,
    /// Number of entries at which gone ones are next removed.
    most: usize,
}

/// The step and window that take the rows of a row group, which determine their order.
#[derive(Debug)]
pub(super) struct TakenBy {
    pub(super) plan: Arc<dyn Order>,
    /// The window that the row group is read for.
    pub(super) window: Arc<WindowUse>,
}

impl TakenBy {
    /// The take order of the `rows` decoded rows of row group `group`, if it is of use. Rows of an ngram lie in several
    /// of its windows. With the orders of windows that its steps need.
    fn find(&self, source: &Source, group: usize, rows: usize) -> Option<(TakeOrder, Vec<KeptOrder>)> {
        if !source.columns.sorts() || source.dataset.has_ngrams() {
            return None;
        }
        let TakenRows { rows: taken, kept } = self.plan.take_order(&self.window, u32::try_from(group).ok()?)?;
        let order = TakeOrder::new(taken).filter(|_| rows > 0).filter(|order| order.rows() == rows)?;
        Some((order, kept))
    }
}

/// Decoded bytes of a row group below which its columns are decoded one after another, on the thread that has it.
const WORTH_WAKING: u64 = 64 << 10;
/// Fewer row groups are not worth scanning.
const FEW: usize = 64;

impl Loads {
    /// Aborts all of them.
    pub(super) fn abort(&self) {
        self.lock().tasks.abort_all();
    }

    fn lock(&self) -> MutexGuard<'_, Loading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, job: &Arc<Job>, slot: &Arc<Slot>, order: TakenBy, reservation: Reservation) {
        let mut loading = self.lock();
        while loading.tasks.try_join_next().is_some() {}
        loading.tasks.spawn(load(Arc::clone(job), Arc::clone(slot), order, reservation));
        // At twice as many as were left the last time, so that a row group costs one check however many are live.
        if loading.slots.len() >= loading.most.max(FEW) {
            loading.slots.retain(|slot| slot.strong_count() > 0);
            loading.most = 2 * loading.slots.len();
        }
        loading.slots.push(Arc::downgrade(slot));
    }

    /// The oldest row group that is not there yet.
    pub(super) fn pending(&self, job: &Job) -> Option<(&'static str, String)> {
        self.lock().slots.iter().filter_map(Weak::upgrade).find_map(|slot| slot.pending(job))
    }
}

/// Fetches and decodes the row group of `slot`, within `reservation`.
async fn load(job: Arc<Job>, slot: Arc<Slot>, order: TakenBy, reservation: Reservation) {
    let result = read_and_decode(&job, &slot, order, reservation).await;
    slot.finish(result);
}

async fn read_and_decode(
    job: &Arc<Job>,
    slot: &Arc<Slot>,
    order: TakenBy,
    mut reservation: Reservation,
) -> Result<Loaded> {
    let (source, group) = (slot.source as usize, slot.group as usize);
    let begun = Instant::now();
    let permit = job.reads.acquire().await.map_err(|_| closed())?;
    job.counters.read.waited(begun.elapsed());
    slot.enter(Phase::Reading);
    let started = Instant::now();
    let is_traced = trace::is_on();
    let fetch = job.sources[source].dataset.fetch(group, &job.sources[source].projection);
    let (fetched, origin, requests) = fetch_time::measured(is_traced, fetch).await;
    let fetched = fetched?;
    let fetched_bytes = fetched.bytes();
    let cost = job.sources[source].dataset.cost(group, &job.sources[source].projection);
    // For a unit, only its page index tells its bytes; the footer does not.
    let beyond = fetched_bytes.saturating_sub(usize::try_from(cost.fetched).unwrap_or(usize::MAX));
    reservation.grow(reservation.bytes().saturating_add(beyond));
    job.counters.read.done(fetched_bytes as u64, started.elapsed());
    slot.enter(Phase::Decoding);

    let there = Instant::now();
    let decoding = job.workers.decodes.acquire().await.map_err(|_| closed())?;
    job.counters.decode.waited(there.elapsed());
    // Only now may another row group be read: if decoding is slower, fetched bytes would pile up for nothing.
    drop(permit);
    let (cells, shared, orders) = job
        .on_cpu(move |job| {
            let Some(source) = job.sources.get(source) else { return Err(closed()) };
            let place = source.dataset.place(group);
            let started = Instant::now();
            let rows = source.dataset.decoded_rows(group) as usize;
            let (order, orders) = order.find(source, group, rows).unzip();
            let orders: Vec<KeptOrder> = orders.unwrap_or_default();
            let pages = |root| source.dataset.numbers(&fetched, &source.projection, root);
            let packs = source.columns.packs(rows, &pages);
            job.counters.decode.worked(started.elapsed());
            let mut left: Vec<usize> = (0..source.projection.roots().len()).collect();
            left.retain(|root| packs.iter().all(|(_, roots)| !roots.contains(root)));
            // One column of the whole row group at a time.
            let prepare = |root| {
                let started = Instant::now();
                let pages =
                    |wanted: &dyn Fn(usize) -> bool| source.dataset.paged(&fetched, &source.projection, root, wanted);
                let prepared = match source.columns.in_pages(root, pages) {
                    Some(prepared) => prepared,
                    None => {
                        let array = source.dataset.decode(&fetched, &source.projection, root)?;
                        let mut prepared = source.columns.prepare(root, array, &place)?;
                        // While they are in the cache.
                        if let Some(order) = &order {
                            source.columns.sort(&mut prepared, order);
                        }
                        prepared
                    }
                };
                job.counters.decode.worked(started.elapsed());
                Ok(prepared)
            };
            // On all cores if only one row group is wanted, unless waking them takes longer than the work.
            let mut prepared = if cost.decoded < WORTH_WAKING {
                left.into_iter().map(prepare).collect::<Result<Vec<_>>>()?
            } else {
                left.into_par_iter().map(prepare).collect::<Result<Vec<_>>>()?
            };
            prepared.extend(packs.into_iter().map(|(pack, _)| pack));
            let cells = source.columns.cells_in(order, prepared, place)?;
            job.counters.decode.done(cells.memory() as u64, std::time::Duration::ZERO);
            stats::decoded(started.elapsed());
            job.workers.count(rows as u64);
            let shared = cells.shared(|address| fetched.holds(address));
            Ok((cells, shared, orders))
        })
        .await?;
    drop(decoding);
    // Memory that stays: the cells, and the column chunks that views point into as a whole; the cells count
    // only their own parts.
    let is_pinned = cost.held > cost.decoded || shared > 0 || cells.in_fetched();
    let stays = (cells.memory() - shared).saturating_add(if is_pinned { fetched_bytes } else { 0 });
    // Each row group of a window pays for its own rows.
    let own = if orders.is_empty() { 0 } else { cells.rows().saturating_mul(size_of::<u32>()) };
    let stays = stays.saturating_add(own);
    reservation.grow(stays);
    reservation.shrink_to(stays);
    let read = is_traced.then(|| {
        let place = job.sources[slot.source as usize].dataset.place(slot.group as usize);
        Arc::new(Read { place, bytes: fetched_bytes as u64, requests })
    });
    let way = Way { asked: begun, fetched: there, loaded: Instant::now(), origin, read };
    Ok(Loaded { cells: Arc::new(cells), reservation: Arc::new(reservation), way, _orders: orders })
}
