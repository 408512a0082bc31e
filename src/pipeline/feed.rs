//! The wiring: steps of a plan become batches, in order, within the budget.
//!
//! ```text
//!   reader:   for each step, its windows ──reserve──► fetch (tokio) ──► decode (CPU) ──► cells     a few row groups ahead
//!                   │ windows of step n                                                   │
//!                   ▼                                                                     ▼
//!   assemble: memory for a batch ──► the next step ──► wait for its cells ──► gather, decode images in place (CPU)
//!                   │ at most `prefetch` batches
//!                   ▼
//!   consumer: the next batch, in plan order
//! ```
//!
//! The [`reader`](super::reader) manages memory for row groups; a batch's memory is held by batches that the consumer
//! has yet to take. A step is taken from the reader only once there is memory for its batch, so that it is completed
//! regardless of the consumer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cause::Cause;
use super::job::{Job, closed};
use super::reader::{Membership, Reader};
use super::reader_state::{Expected, Work};
use super::step::{Failure, Made, assemble};
use super::trail::Trail;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::plan::{Order, Share};
use crate::tensor::Batch;

/// Aborts its task when dropped.
#[derive(Debug)]
pub(super) struct Task<T>(pub(super) JoinHandle<T>);

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
    member: Arc<Membership>,
    ended: bool,
    /// The way of the last batch.
    trail: Option<Trail>,
    _assembler: Task<()>,
}

impl Feed {
    /// Starts reading at step `from`. Must be called within the I/O runtime.
    pub(super) fn start(job: Arc<Job>, plan: Arc<dyn Order>, share: Share, from: u64) -> Self {
        let reader = Reader::start(Arc::clone(&job), plan, Expected::ALONE);
        Self::of(job, share, from, reader.first(share, from))
    }

    /// Makes batches of the windows that `member` gets from its reader.
    pub(super) fn of(job: Arc<Job>, share: Share, from: u64, member: Membership) -> Self {
        let (sender, receiver) = mpsc::channel(job.prefetch);
        let (in_flight, member) = (Arc::default(), Arc::new(member));
        let assembler = Assembler {
            job: Arc::clone(&job),
            plan: Arc::clone(member.reader().plan()),
            share,
            in_flight: Arc::clone(&in_flight),
            member: Arc::clone(&member),
        };
        let assembler = tokio::spawn(assembler.run(from, sender));
        Self { job, receiver, head: None, in_flight, member, ended: false, trail: None, _assembler: Task(assembler) }
    }

    /// Returns true if the other members of its reader continued without it.
    pub(super) fn is_behind(&self) -> bool {
        self.member.is_behind()
    }

    /// The way of the last batch.
    pub(super) fn trail(&self) -> Option<Trail> {
        self.trail.clone()
    }

    /// See [`Probe`].
    pub(super) fn probe(&self) -> Probe {
        let (in_flight, member) = (Arc::downgrade(&self.in_flight), Arc::downgrade(&self.member));
        Probe { job: Arc::downgrade(&self.job), in_flight, member }
    }

    /// Stage and culprit that the next batch waits for.
    pub(super) fn culprit(&self) -> (&'static str, String) {
        culprit(&self.job, &self.in_flight, &self.member)
    }
}

/// What the next batch waits for, for lookers-on while somebody waits. Keeps nothing alive.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    job: Weak<Job>,
    in_flight: Weak<Mutex<Vec<Work>>>,
    member: Weak<Membership>,
}

impl Probe {
    /// The cause of a wait at this moment; `None` if there is nothing to wait for any more.
    pub(crate) fn cause(&self) -> Option<Cause> {
        let (job, in_flight) = (self.job.upgrade()?, self.in_flight.upgrade()?);
        let (stage, _) = culprit(&job, &in_flight, &*self.member.upgrade()?);
        Some(match stage {
            "read" => Cause::Store,
            "decode" => Cause::Decode,
            "batch" => Cause::Batch,
            _ => Cause::Queue,
        })
    }
}

fn culprit(job: &Job, in_flight: &Mutex<Vec<Work>>, member: &Membership) -> (&'static str, String) {
    let in_flight = in_flight.lock().unwrap_or_else(PoisonError::into_inner);
    let slots = in_flight.iter().flat_map(|work| &*work.windows).flat_map(|window| &window.slots);
    slots.map(|slot| slot.pending(job)).find_map(|pending| pending).unwrap_or_else(|| match in_flight.first() {
        Some(work) => ("batch", format!("the rows of step {} to be decoded", work.step)),
        None => {
            let memory = || ("memory", "room within memory_budget".to_owned());
            member.reader().pending().unwrap_or_else(memory)
        }
    })
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
                let made = made.map(|(batch, trail)| {
                    this.trail = Some(trail);
                    batch
                });
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

/// Turns steps into batches, `prefetch` ahead of the consumer.
#[derive(Debug)]
struct Assembler {
    job: Arc<Job>,
    plan: Arc<dyn Order>,
    share: Share,
    in_flight: Arc<Mutex<Vec<Work>>>,
    member: Arc<Membership>,
}

impl Assembler {
    async fn run(self, from: u64, sender: mpsc::Sender<Result<Task<Made>>>) {
        for step in from.. {
            let task = match self.next(step).await {
                Ok(Some(task)) => Ok(task),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let failed = task.is_err();
            if sender.send(task).await.is_err() || failed {
                return;
            }
        }
    }

    /// Starts the batch of `step`; `None` after the last.
    async fn next(&self, step: u64) -> Result<Option<Task<Made>>> {
        let pool = &self.job.batches;
        let bytes = self.job.batch.min(pool.budget());
        let started = Instant::now();
        let reservation = pool.reserve(bytes).await?;
        self.job.counters.batch.waited(started.elapsed());
        match self.member.work(step).await {
            Some(work) => Ok(Some(self.start(work?, reservation))),
            None => Ok(None),
        }
    }

    fn start(&self, work: Work, reservation: Reservation) -> Task<Made> {
        self.lock().push(Work { step: work.step, windows: Arc::clone(&work.windows) });
        let (job, plan, share, in_flight) =
            (Arc::clone(&self.job), Arc::clone(&self.plan), self.share, Arc::clone(&self.in_flight));
        Task(tokio::spawn(async move {
            let step = work.step;
            let batch = assemble(&job, plan, share, work, reservation).await;
            in_flight.lock().unwrap_or_else(PoisonError::into_inner).retain(|work| work.step != step);
            batch
        }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Work>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
