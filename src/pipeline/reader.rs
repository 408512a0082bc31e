//! Reads row groups ahead of the steps that need them: once for all shares of a plan that are delivered together.
//!
//! ```text
//!   member (one share) ──asks for step n──►  reader: the next step of the member that is furthest behind
//!                                               its windows ──reserve──► fetch (tokio) ──► decode (CPU) ──► cells
//!   member's queue     ◄──the windows of n──┘
//! ```
//!
//! A loader has a reader with one member; a server has one reader for all ranks that follow a plan, so that a row group
//! from which several ranks take rows is read, decoded and kept once.
//!
//! It cannot deadlock: one task makes all reservations, always for the member that is furthest behind. The memory it
//! waits for is held by steps being made, which need nothing more; by steps ahead that nobody has taken yet, which are
//! taken back and prepared again later; or by members that take nothing, which lose their place while others wait for
//! what they hold. Each wait checks that the rows live at one step fit at all, so a budget that is too small is an
//! error, never a hang.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::ahead::Ahead;
use super::groups::Loads;
use super::job::{Job, closed};
use super::reader_state::{Expected, Member, STEPS_AHEAD, Shared, State, Work};
use crate::error::{Error, Result};
use crate::plan::{Order, Share};

/// How long memory is left to ranks that have not joined yet.
const GATHERING: Duration = Duration::from_secs(5);

/// See the module documentation. Dropping the last handle ends it.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.loads.abort();
    }
}

impl Reader {
    /// Starts a reader that has no member yet. Must be called within the I/O runtime.
    pub(super) fn start(job: Arc<Job>, plan: Arc<dyn Order>, expected: Expected) -> Arc<Self> {
        let shared = Arc::new(Shared {
            job,
            plan,
            expected,
            gathering: Instant::now() + GATHERING,
            loads: Loads::default(),
            state: Mutex::default(),
            attention: Notify::new(),
        });
        let task = tokio::spawn(Ahead::new(Arc::clone(&shared)).run());
        Arc::new(Self { shared, task })
    }

    /// The job that row groups are read for.
    pub(super) fn job(&self) -> &Arc<Job> {
        &self.shared.job
    }

    /// The plan being followed.
    pub(super) fn plan(&self) -> &Arc<dyn Order> {
        &self.shared.plan
    }

    /// Adds a member for `share` from step `from` on; `None` if that step is far from those of the others, which would
    /// wait for this one or be waited for.
    pub(super) fn join(self: &Arc<Self>, share: Share, from: u64) -> Option<Membership> {
        let state = self.shared.lock();
        let steps = self.shared.plan.steps();
        let mut others = state.members.values().filter(|member| !member.behind && member.asked < steps);
        if others.any(|member| member.asked.abs_diff(from) > STEPS_AHEAD) {
            return None;
        }
        Some(self.place(state, share, from))
    }

    /// As [`join`](Self::join), for the first member.
    pub(super) fn first(self: &Arc<Self>, share: Share, from: u64) -> Membership {
        self.place(self.shared.lock(), share, from)
    }

    fn place(self: &Arc<Self>, mut state: MutexGuard<'_, State>, share: Share, from: u64) -> Membership {
        // A new member, perhaps one that returns after an error, must find working windows.
        let failed = state.forget_failed();
        let number = state.number;
        state.number += 1;
        state.seen.insert(share.rank);
        let ready = Arc::new(Notify::new());
        let member =
            Member { share, next: from, asked: from, queue: VecDeque::new(), ready: Arc::clone(&ready), behind: false };
        state.members.insert(number, member);
        drop(state);
        drop(failed);
        self.shared.attention.notify_one();
        Membership { reader: Arc::clone(self), number, ready }
    }

    /// The oldest row group that is not there yet.
    pub(super) fn pending(&self) -> Option<(&'static str, String)> {
        self.shared.loads.pending(&self.shared.job)
    }
}

/// One share's place in a reader, given back on drop.
#[derive(Debug)]
pub(super) struct Membership {
    reader: Arc<Reader>,
    number: u64,
    ready: Arc<Notify>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let member = self.reader.shared.lock().members.remove(&self.number);
        // Its row groups are given back outside the lock.
        drop(member);
        self.reader.shared.attention.notify_one();
    }
}

impl Membership {
    pub(super) fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    /// Returns true if others continued without this share.
    pub(super) fn is_behind(&self) -> bool {
        self.reader.shared.lock().members.get(&self.number).is_some_and(|member| member.behind)
    }

    /// The windows of `step`, which is the one after the last; `None` at the end.
    pub(super) async fn work(&self, step: u64) -> Option<Result<Work>> {
        let shared = &self.reader.shared;
        loop {
            {
                let mut state = shared.lock();
                let Some(member) = state.members.get_mut(&self.number) else { return Some(Err(closed())) };
                if member.behind {
                    let why = format!("other ranks went on without this one at step {step}");
                    return Some(Err(Error::Closed { why }));
                }
                let was_full = member.queue.len() as u64 >= STEPS_AHEAD;
                let work = member.queue.pop_front();
                if member.asked < step || was_full {
                    member.asked = step;
                    shared.attention.notify_one();
                }
                if work.is_some() {
                    return work;
                }
                if member.next >= shared.plan.steps() {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }
}
