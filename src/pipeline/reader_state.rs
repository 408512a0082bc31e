//! The state shared by a [`reader`](super::reader), its members and its task: the members' steps, and the windows being
//! read. Behind one lock, and consistent after every statement.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::groups::Loads;
use super::job::Job;
use super::window::Window;
use crate::error::Result;
use crate::plan::{Order, Share, WindowUse};

/// Steps whose windows are known ahead of assembly, and the maximum lead of one member over another. Bounds a list of
/// pointers; bytes are bounded by the budget.
pub(super) const STEPS_AHEAD: u64 = 256;

/// How long others wait for what an idle member holds before it loses its place: if it is this many steps behind, or
/// any.
const PATIENCE: [(Duration, u64); 2] = [(Duration::from_secs(10), 64), (Duration::from_secs(60), 0)];

/// A step and everything it takes rows from.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) step: u64,
    pub(super) windows: Arc<[Arc<Window>]>,
}

/// A window's identity: source, epoch of the source, lane, number in the lane.
pub(super) type WindowKey = (u32, u64, u32, u32);

pub(super) fn key(window: &WindowUse) -> WindowKey {
    (window.source, window.source_epoch, window.lane, window.window)
}

/// The members that a reader expects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Different ranks.
    pub(super) ranks: usize,
    /// Bytes that may be read ahead before all have joined, or for as long as they are waited for.
    pub(super) ahead: u64,
}

impl Expected {
    /// One share, which is present from the start.
    pub(super) const ALONE: Self = Self { ranks: 1, ahead: u64::MAX };
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) job: Arc<Job>,
    pub(super) plan: Arc<dyn Order>,
    pub(super) expected: Expected,
    /// Memory is left until then to members that have not joined.
    pub(super) gathering: Instant,
    pub(super) loads: Loads,
    pub(super) state: Mutex<State>,
    /// Signals a change that the reader's task may wait for.
    pub(super) attention: Notify,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) members: BTreeMap<u64, Member>,
    /// The number of the next member.
    pub(super) number: u64,
    /// Ranks that have joined.
    pub(super) seen: BTreeSet<u32>,
    /// Windows that some later step needs.
    pub(super) windows: HashMap<WindowKey, Live>,
}

/// A window in memory or in flight.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) window: Arc<Window>,
    /// The first step that it was read for.
    pub(super) first: u64,
    /// The last step that needs it, on any rank.
    pub(super) last: u64,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) share: Share,
    /// The step whose windows enter the queue next.
    pub(super) next: u64,
    /// The highest step requested.
    pub(super) asked: u64,
    pub(super) queue: VecDeque<Result<Work>>,
    pub(super) ready: Arc<Notify>,
    /// Set once it lost its place.
    pub(super) behind: bool,
}

impl Member {
    pub(super) fn leave_behind(&mut self) -> VecDeque<Result<Work>> {
        self.behind = true;
        self.ready.notify_one();
        std::mem::take(&mut self.queue)
    }
}

/// The member and step to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) member: u64,
    pub(super) share: Share,
    pub(super) step: u64,
}

impl State {
    /// The next step of the member that is furthest behind; `None` if there is nothing to prepare.
    pub(super) fn turn(&self, steps: u64) -> Option<Turn> {
        let open = self.members.iter().filter(|(_, member)| member.next < steps && !member.behind);
        let (number, member) = open.min_by_key(|(number, member)| (member.next, **number))?;
        Some(Turn { member: *number, share: member.share, step: member.next })
    }

    /// The furthest step that any member has requested.
    pub(super) fn front(&self) -> u64 {
        self.members.values().map(|member| member.asked).max().unwrap_or(0)
    }

    /// Removes the slowest member if it is more than `lag` steps behind the first; returns whether there was one.
    fn leave_behind(&mut self, lag: u64) -> bool {
        let front = self.front();
        let slowest = self.members.values_mut().filter(|member| !member.behind).min_by_key(|member| member.asked);
        let Some(slowest) = slowest.filter(|member| member.asked + lag < front) else {
            return false;
        };
        drop(slowest.leave_behind());
        true
    }

    /// Removes a member if `waited` exceeds the patience for it.
    pub(super) fn lose_patience(&mut self, waited: Duration) -> bool {
        PATIENCE.iter().any(|(patience, lag)| waited >= *patience && self.leave_behind(*lag))
    }

    /// Drops windows with a failed row group, which later steps have read again. Steps that wait for one keep it, and
    /// learn why it failed. The returned windows are dropped outside the lock.
    pub(super) fn forget_failed(&mut self) -> Vec<Live> {
        self.windows.extract_if(|_, live| live.window.has_failed()).map(|(_, live)| live).collect()
    }

    /// Takes back the windows read for the latest step after `step`, if nobody has taken that yet: the window, and all
    /// steps from the one it was read for on, which are prepared again later. `None` if there is none; the result is
    /// dropped outside the lock.
    pub(super) fn take_back(&mut self, step: u64) -> Option<(Live, Vec<Result<Work>>)> {
        let latest = self.windows.iter().filter(|(_, live)| live.first > step);
        let (key, first) = latest.map(|(key, live)| (*key, live.first)).max_by_key(|(_, first)| *first)?;
        let mut works = Vec::new();
        for member in self.members.values_mut() {
            while matches!(member.queue.back(), Some(Ok(work)) if work.step >= first) {
                member.next -= 1;
                works.extend(member.queue.pop_back());
            }
        }
        Some((self.windows.remove(&key)?, works))
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_gathering(&self) -> bool {
        Instant::now() < self.gathering && self.lock().seen.len() < self.expected.ranks
    }

    pub(super) async fn changed_within(&self, wait: Duration) {
        // A change and the time-out both lead to another check.
        drop(tokio::time::timeout(wait, self.attention.notified()).await);
    }
}

#[cfg(test)]
mod tests {
    use super::super::groups::Slot;
    use super::super::job::closed;
    use super::*;

    #[test]
    fn whoever_comes_finds_no_window_that_failed() {
        let mut state = State::default();
        let slots = [Slot::new(0, 0), Slot::new(0, 1)];
        for (lane, slot) in (0..).zip(&slots) {
            let live = Live { window: Arc::new(Window::new(vec![Arc::clone(slot)])), first: 0, last: 9 };
            state.windows.insert((0, 0, lane, 0), live);
        }
        slots[0].finish(Err(closed()));
        // A step that waits for it keeps it and its error.
        let waiting = Arc::clone(&state.windows[&(0, 0, 0, 0)].window);
        assert_eq!(state.forget_failed().len(), 1);
        assert_eq!(state.windows.keys().collect::<Vec<_>>(), [&(0, 0, 1, 0)], "what is on its way stays");
        assert!(waiting.has_failed() && state.forget_failed().is_empty());
    }
}
