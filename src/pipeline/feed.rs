//! The wiring: steps of a plan become batches, in order, within the budget.
//!
//! ```text
//!   ahead:    for each step, its windows ──reserve──► fetch (tokio) ──► decode (CPU) ──► cells     a few row groups ahead
//!                   │ windows of step n                                                   │
//!                   ▼                                                                     ▼
//!   assemble: for each step, memory for the batch ──► wait for its cells ──► gather, decode images in place (CPU)
//!                   │ at most `prefetch` batches
//!                   ▼
//!   consumer: the next batch, in plan order
//! ```
//!
//! Why it cannot dead-lock: reservations are asked for by one task, in plan order. What a step waits for is held only by
//! earlier steps, which need nothing more, or by batches that the consumer has yet to take. That the rows live at one
//! step fit at all is checked during each wait, so a budget that is too small is an error, never a hang.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::groups::{Slot, load};
use super::job::{Job, closed};
use super::step::assemble;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::plan::{Order, Share, WindowUse};
use crate::tensor::Batch;

/// Steps whose windows are known ahead of assembly. It bounds a list of pointers; bytes are bounded by the budget.
const STEPS_AHEAD: usize = 256;

/// Row groups are read ahead of the step that is being made as far as the store takes requests at once, and small ones until they
/// are this many bytes. Memory that is touched without need costs more than it brings.
const AHEAD_BYTES: u64 = 256 << 20;

/// Windows of so many lanes are found at once, in some tens of microseconds; those of more on the CPU pool.
const LANES_AT_ONCE: u64 = 512;

/// How often a wait for memory asks whether it can ever end.
const STUCK_CHECK: Duration = Duration::from_millis(100);

/// The row groups of one window, by name.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) slots: Vec<Arc<Slot>>,
}

/// A step and everything it takes rows from.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) step: u64,
    pub(super) windows: Vec<Arc<Window>>,
}

/// A batch, or why there is none.
pub(super) type Made = Result<Batch, Failure>;

/// An error, or the row group that has it: a row group serves several steps, but its error is told once.
#[derive(Debug)]
pub(super) enum Failure {
    Step(Error),
    Group(Arc<Slot>),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Step(error) => error,
            Failure::Group(slot) => slot.error(),
        }
    }
}

/// Aborts its task when dropped.
#[derive(Debug)]
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Batches of one rank and one epoch, in plan order. The first error ends the stream.
#[derive(Debug)]
pub(super) struct Feed {
    job: Arc<Job>,
    receiver: mpsc::Receiver<Result<Task<Made>>>,
    head: Option<Task<Made>>,
    /// The windows of steps being assembled, to name the culprit of a wait.
    in_flight: Arc<Mutex<Vec<Work>>>,
    loads: Loads,
    ended: bool,
    _stages: [Task<()>; 2],
}

/// Row groups being read and decoded. The feed aborts them when it ends; the reader ahead only starts them.
#[derive(Debug, Clone, Default)]
struct Loads(Arc<Mutex<Loading>>);

#[derive(Debug, Default)]
struct Loading {
    tasks: JoinSet<()>,
    /// The row groups of the tasks, oldest first, and of some that are gone.
    slots: Vec<Weak<Slot>>,
    /// So many of them before the gone ones are looked for again.
    most: usize,
}

/// Fewer row groups are not worth being looked through.
const FEW: usize = 64;

impl Loads {
    fn lock(&self) -> std::sync::MutexGuard<'_, Loading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, job: &Arc<Job>, slot: &Arc<Slot>, reservation: Reservation) {
        let mut loading = self.lock();
        while loading.tasks.try_join_next().is_some() {}
        loading.tasks.spawn(load(Arc::clone(job), Arc::clone(slot), reservation));
        // At twice as many as were left the last time, so that a row group costs one look however many are live.
        if loading.slots.len() >= loading.most.max(FEW) {
            loading.slots.retain(|slot| slot.strong_count() > 0);
            loading.most = 2 * loading.slots.len();
        }
        loading.slots.push(Arc::downgrade(slot));
    }

    /// The oldest row group that is not there yet.
    fn pending(&self, job: &Job) -> Option<(&'static str, String)> {
        self.lock().slots.iter().filter_map(Weak::upgrade).find_map(|slot| slot.pending(job))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.loads.lock().tasks.abort_all();
    }
}

impl Feed {
    /// Starts reading at step `from`. Must be called within the I/O runtime.
    pub(super) fn start(job: Arc<Job>, plan: Arc<dyn Order>, share: Share, from: u64) -> Self {
        let (work_sender, work) = mpsc::channel(STEPS_AHEAD);
        let (sender, receiver) = mpsc::channel(job.prefetch);
        let (asking, asked) = watch::channel(from);
        let in_flight = Arc::default();
        let loads = Loads::default();
        let ahead = Ahead {
            job: Arc::clone(&job),
            plan: Arc::clone(&plan),
            share,
            windows: HashMap::new(),
            loads: loads.clone(),
            slots: HashMap::new(),
            asked,
            early: VecDeque::new(),
            early_bytes: 0,
        };
        let ahead = tokio::spawn(ahead.run(from, work_sender));
        let assembler = Assembler { job: Arc::clone(&job), plan, share, in_flight: Arc::clone(&in_flight) };
        let assembler = tokio::spawn(assembler.run(from, asking, work, sender));
        Self { job, receiver, head: None, in_flight, loads, ended: false, _stages: [Task(ahead), Task(assembler)] }
    }

    /// What the next batch waits for: stage and culprit.
    pub(super) fn culprit(&self) -> (&'static str, String) {
        let in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = in_flight.iter().flat_map(|work| &work.windows).flat_map(|window| &window.slots);
        slots.map(|slot| slot.pending(&self.job)).find_map(|pending| pending).unwrap_or_else(|| {
            match in_flight.first() {
                Some(work) => ("batch", format!("the rows of step {} to be decoded", work.step)),
                None => {
                    let memory = || ("memory", "room within memory_budget".to_owned());
                    self.loads.pending(&self.job).unwrap_or_else(memory)
                }
            }
        })
    }
}

impl Stream for Feed {
    type Item = Result<Batch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            if let Some(task) = &mut this.head {
                let made = ready!(Pin::new(&mut task.0).poll(context)).unwrap_or_else(|_| Err(Failure::Step(closed())));
                this.head = None;
                this.ended = made.is_err();
                return Poll::Ready(Some(made.map_err(Error::from)));
            }
            match ready!(this.receiver.poll_recv(context)) {
                Some(Ok(task)) => this.head = Some(task),
                Some(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.ended = true;
                    return Poll::Ready(None);
                }
            }
        }
    }
}

/// A window's name: source, epoch of the source, lane, number in the lane.
type WindowKey = (u32, u64, u32, u32);

/// Reads ahead: the only task that reserves memory for row groups.
#[derive(Debug)]
struct Ahead {
    job: Arc<Job>,
    plan: Arc<dyn Order>,
    share: Share,
    /// Windows that some later step needs, with the last such step.
    windows: HashMap<WindowKey, (Arc<Window>, u64)>,
    loads: Loads,
    /// Row groups in memory or on their way, so that two windows share one.
    slots: HashMap<(u32, u32), Weak<Slot>>,
    /// The step that the assembler wants next.
    asked: watch::Receiver<u64>,
    /// Row groups that were started for later steps, in their order: the step, and the bytes.
    early: VecDeque<(u64, u64)>,
    /// The bytes of all of them.
    early_bytes: u64,
}

impl Ahead {
    async fn run(mut self, from: u64, sender: mpsc::Sender<Result<Work>>) {
        for step in from..self.plan.steps() {
            let work = self.prepare(step, &sender).await;
            let failed = work.is_err();
            if sender.send(work).await.is_err() || failed {
                return;
            }
        }
    }

    async fn prepare(&mut self, step: u64, sender: &mpsc::Sender<Result<Work>>) -> Result<Work> {
        self.windows.retain(|_, (_, last)| *last >= step);
        let mut windows = Vec::new();
        let windows_of = {
            let (plan, share) = (Arc::clone(&self.plan), self.share);
            move || plan.windows(step, share)
        };
        let wanted = if self.plan.lanes() > LANES_AT_ONCE {
            self.job.on_cpu(move |_| Ok(windows_of())).await?
        } else {
            windows_of()
        };
        for wanted in wanted {
            let key = (wanted.source, wanted.source_epoch, wanted.lane, wanted.window);
            let window = match self.windows.get(&key) {
                Some((window, _)) => Arc::clone(window),
                None => {
                    let mut slots = self.slots_of(step, &wanted, sender).await?;
                    slots.sort_unstable_by_key(|slot| slot.name());
                    let window = Arc::new(Window { slots });
                    self.windows.insert(key, (Arc::clone(&window), wanted.last_step));
                    window
                }
            };
            windows.push(window);
        }
        Ok(Work { step, windows })
    }

    async fn slots_of(
        &mut self,
        step: u64,
        window: &WindowUse,
        sender: &mpsc::Sender<Result<Work>>,
    ) -> Result<Vec<Arc<Slot>>> {
        let mut slots = Vec::with_capacity(window.groups.len());
        for group in &window.groups {
            let key = (window.source, *group);
            let slot = match self.slots.get(&key).and_then(Weak::upgrade) {
                Some(slot) => slot,
                None => {
                    let slot = Slot::new(window.source, *group);
                    self.turn(step, &slot, sender).await?;
                    let reservation = self.reserve(&slot, &slots, sender).await?;
                    self.loads.start(&self.job, &slot, reservation);
                    self.remember(key, &slot);
                    slot
                }
            };
            slots.push(slot);
        }
        Ok(slots)
    }

    /// Waits until it is time to read `slot` for `step`: at once for the step that the assembler waits for, so nothing can hang.
    async fn turn(&mut self, step: u64, slot: &Slot, sender: &mpsc::Sender<Result<Work>>) -> Result<()> {
        let source = &self.job.sources[slot.source as usize];
        let bytes = source.cost(slot.group as usize).total();
        loop {
            let asked = *self.asked.borrow_and_update();
            while let Some((_, bytes)) = self.early.front().filter(|(step, _)| *step <= asked) {
                self.early_bytes = self.early_bytes.saturating_sub(*bytes);
                self.early.pop_front();
            }
            let sum = self.early_bytes.saturating_add(bytes);
            if step <= asked || self.early.len() < self.job.reads_at_once || sum <= AHEAD_BYTES {
                self.early.push_back((step, bytes));
                self.early_bytes = sum;
                return Ok(());
            }
            tokio::select! {
                changed = self.asked.changed() => changed.map_err(|_| closed())?,
                () = sender.closed() => return Err(closed()),
            }
        }
    }

    async fn reserve(
        &self,
        slot: &Slot,
        beside: &[Arc<Slot>],
        sender: &mpsc::Sender<Result<Work>>,
    ) -> Result<Reservation> {
        let source = &self.job.sources[slot.source as usize];
        let asked = source.cost(slot.group as usize).total();
        let pool = &self.job.groups;
        let bytes = usize::try_from(asked).unwrap_or(usize::MAX);
        if let Some(reservation) = pool.try_reserve(bytes) {
            return Ok(reservation);
        }
        let started = Instant::now();
        let mut reserving = Box::pin(pool.reserve(bytes));
        let reservation = loop {
            tokio::select! {
                reservation = &mut reserving => break reservation,
                () = sender.closed() => return Err(closed()),
                () = tokio::time::sleep(STUCK_CHECK) => {}
            }
            // Everything that this step and later ones cannot give back. If that and the new row group exceed the budget, no
            // amount of waiting helps.
            if let Some(live) = self.live(beside).filter(|live| live.saturating_add(asked) > pool.budget() as u64) {
                let place = source.dataset.place(slot.group as usize);
                return Err(Error::limit(
                    format!("it, beside {live} bytes of other row groups that the same steps need,"),
                    live.saturating_add(asked),
                    pool.budget() as u64,
                    "memory_budget (or lower lanes or window_rows)",
                )
                .at(place));
            }
        };
        self.job.counters.read.waited(started.elapsed());
        reservation
    }

    /// Bytes held by the row groups that this and later steps need; `None` while one of them is still being read, for it may
    /// give back some.
    fn live(&self, beside: &[Arc<Slot>]) -> Option<u64> {
        let mut seen = HashSet::new();
        let slots = self.windows.values().flat_map(|(window, _)| &window.slots).chain(beside);
        let held = slots.filter(|slot| seen.insert(slot.name())).map(|slot| slot.held());
        held.sum()
    }

    fn remember(&mut self, key: (u32, u32), slot: &Arc<Slot>) {
        // Forget the finished ones now and then; the map stays within twice what is live.
        if self.slots.len() >= 64 && self.slots.len() == self.slots.capacity() {
            self.slots.retain(|_, slot| slot.strong_count() > 0);
        }
        self.slots.insert(key, Arc::downgrade(slot));
    }
}

/// Turns steps into batches, `prefetch` ahead of the consumer.
#[derive(Debug)]
struct Assembler {
    job: Arc<Job>,
    plan: Arc<dyn Order>,
    share: Share,
    in_flight: Arc<Mutex<Vec<Work>>>,
}

impl Assembler {
    async fn run(
        self,
        from: u64,
        asking: watch::Sender<u64>,
        mut work: mpsc::Receiver<Result<Work>>,
        sender: mpsc::Sender<Result<Task<Made>>>,
    ) {
        for step in from.. {
            asking.send_replace(step);
            let Some(work) = work.recv().await else { return };
            let task = match work {
                Ok(work) => self.start(work).await,
                Err(error) => Err(error),
            };
            let failed = task.is_err();
            if sender.send(task).await.is_err() || failed {
                return;
            }
        }
    }

    async fn start(&self, work: Work) -> Result<Task<Made>> {
        let pool = &self.job.batches;
        let bytes = self.job.batch.min(pool.budget());
        let started = Instant::now();
        let reservation = pool.reserve(bytes).await?;
        self.job.counters.batch.waited(started.elapsed());
        self.lock().push(Work { step: work.step, windows: work.windows.clone() });
        let (job, plan, share, in_flight) =
            (Arc::clone(&self.job), Arc::clone(&self.plan), self.share, Arc::clone(&self.in_flight));
        Ok(Task(tokio::spawn(async move {
            let step = work.step;
            let batch = assemble(&job, plan, share, work, reservation).await;
            in_flight.lock().unwrap_or_else(PoisonError::into_inner).retain(|work| work.step != step);
            batch
        })))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Work>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
