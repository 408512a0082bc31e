//! The task of a [`reader`](super::reader): chooses the step to prepare next, and when to read its row groups.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::groups::{Slot, TakenBy};
use super::reader_state::{Live, Member, STEPS_AHEAD, Shared, State, Turn, WindowKey, Work, key};
use super::window::Window;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::plan::{Share, WindowUse};

/// Row groups are read ahead of the current step up to the number of requests that the store takes at once, and small
/// ones up to this many bytes. Touching more memory than necessary costs more than it brings.
const AHEAD_BYTES: u64 = 256 << 20;

/// Returns true if so many row groups of so many bytes may be read before a step asks for them: one always, so that reading goes on
/// while another is used. A tight budget is not for them alone: what is not reserved is memory that is used over and over.
fn is_room_ahead((groups, bytes): (usize, u64), reads_at_once: usize, budget: u64) -> bool {
    groups <= 1 || groups <= reads_at_once && bytes <= budget / 2 || bytes <= AHEAD_BYTES.min(budget / 4)
}

/// The windows of up to this many lanes are found at once, in some tens of microseconds; those of more on the CPU pool.
const LANES_AT_ONCE: u64 = 512;

/// Interval at which a wait for memory checks whether it can ever end.
const STUCK_CHECK: Duration = Duration::from_millis(100);

/// A wait that only a change ends.
const FOREVER: Duration = Duration::from_secs(3600);

/// The reason that a step was not prepared.
enum Stop {
    /// Another member's step takes precedence now.
    Overtaken,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The reader's task: the only one that reserves memory for row groups.
#[derive(Debug)]
pub(super) struct Ahead {
    shared: Arc<Shared>,
    /// Row groups in memory or in flight, so that two windows share one.
    slots: HashMap<(u32, u32), Weak<Slot>>,
    /// Row groups started for later steps: by step, their number and bytes.
    early: BTreeMap<u64, (usize, u64)>,
    /// Sum over all of them.
    early_sum: (usize, u64),
    /// Row groups of a step that was overtaken, until that step is prepared.
    partial: Vec<Arc<Slot>>,
    /// The step of the last query, and the last step of each of its windows on any rank.
    lasts: (u64, HashMap<WindowKey, u64>),
    /// Windows that end before this step are dropped.
    first: u64,
}

impl Ahead {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            slots: HashMap::new(),
            early: BTreeMap::new(),
            early_sum: (0, 0),
            partial: Vec::new(),
            lasts: (u64::MAX, HashMap::new()),
            first: 0,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let turn = self.turn().await;
            let work = match self.prepare(turn).await {
                Ok(work) => Ok(work),
                Err(Stop::Failed(error)) => Err(error),
                Err(Stop::Overtaken) => continue,
            };
            self.partial.clear();
            let mut state = self.shared.lock();
            // The member may have left meanwhile.
            if let Some(member) = state.members.get_mut(&turn.member).filter(|member| !member.behind) {
                // Nothing follows an error.
                member.next = if work.is_ok() { turn.step + 1 } else { self.shared.plan.steps() };
                member.queue.push_back(work);
                member.ready.notify_one();
            }
            drop(state);
            self.forget();
        }
    }

    /// Drops windows that no member's next steps need.
    fn forget(&mut self) {
        let mut state = self.shared.lock();
        let next = state.members.values().filter(|member| !member.behind).map(|member| member.next).min();
        let next = next.unwrap_or(u64::MAX);
        // A member that came late may need dropped windows: they are read again.
        if next != self.first {
            self.first = next;
            let done: Vec<_> = state.windows.extract_if(|_, live| live.last < next).collect();
            drop(state);
            drop(done);
        }
    }

    /// Waits until there is a step to prepare.
    async fn turn(&mut self) -> Turn {
        let shared = Arc::clone(&self.shared);
        let mut full_since = None;
        loop {
            let wait = {
                let mut state = shared.lock();
                let alone = state.members.len() == 1;
                match state.turn(shared.plan.steps()) {
                    Some(turn) if (state.members[&turn.member].queue.len() as u64) < STEPS_AHEAD => return turn,
                    Some(_) if alone => FOREVER,
                    // The other members are at the end of their queues, and this one takes nothing.
                    Some(_) => {
                        let since = *full_since.get_or_insert_with(Instant::now);
                        if state.lose_patience(since.elapsed()) {
                            full_since = None;
                            continue;
                        }
                        STUCK_CHECK
                    }
                    None => FOREVER,
                }
            };
            self.forget();
            shared.changed_within(wait).await;
        }
    }

    /// Returns true if it is still this member's turn.
    fn is_first(&self, turn: Turn) -> bool {
        self.shared.lock().turn(self.shared.plan.steps()) == Some(turn)
    }

    /// The windows that `turn` takes rows from. With many lanes, finding them must not run on a thread that others wait
    /// for.
    async fn wanted(&mut self, turn: Turn) -> Result<Vec<WindowUse>> {
        let shared = &self.shared;
        // The ranks of a lane take turns within a step: the last step of a window is that of all of them.
        let all = turn.share.world > 1 && self.lasts.0 != turn.step;
        let plan = Arc::clone(&shared.plan);
        let find = move || {
            let all = if all { plan.windows(turn.step, Share::whole()) } else { Vec::new() };
            (plan.windows(turn.step, turn.share), all)
        };
        let (wanted, whole) =
            if shared.plan.lanes() > LANES_AT_ONCE { shared.job.on_cpu(move |_| Ok(find())).await? } else { find() };
        if all {
            self.lasts = (turn.step, whole.iter().map(|window| (key(window), window.last_step)).collect());
        }
        Ok(wanted)
    }

    async fn prepare(&mut self, turn: Turn) -> Result<Work, Stop> {
        let wanted = self.wanted(turn).await?;
        let known = {
            // Looks up all at once: they are nearly always there.
            let mut state = self.shared.lock();
            wanted.iter().map(|wanted| self.known(&mut state, turn, wanted)).collect::<Vec<_>>()
        };
        let mut windows = Vec::with_capacity(wanted.len());
        for (wanted, known) in wanted.iter().zip(known) {
            let known = known.or_else(|| self.known(&mut self.shared.lock(), turn, wanted));
            let window = match known {
                Some(window) => window,
                None => {
                    let mut slots = self.slots_of(turn, wanted).await?;
                    slots.sort_unstable_by_key(|slot| slot.name());
                    let window = Arc::new(Window::new(slots));
                    let last = self.last_step(turn, wanted);
                    let live = Live { window: Arc::clone(&window), first: turn.step, last };
                    self.shared.lock().windows.insert(key(wanted), live);
                    window
                }
            };
            windows.push(window);
        }
        Ok(Work { step: turn.step, windows: windows.into() })
    }

    /// The last step that needs the window, on any rank.
    fn last_step(&self, turn: Turn, wanted: &WindowUse) -> u64 {
        let others = if turn.share.world > 1 { self.lasts.1.get(&key(wanted)).copied() } else { None };
        wanted.last_step.max(others.unwrap_or(0))
    }

    /// The window if it is live; it then stays live as long as this step needs it.
    fn known(&self, state: &mut State, turn: Turn, wanted: &WindowUse) -> Option<Arc<Window>> {
        let live = state.windows.get_mut(&key(wanted))?;
        live.first = live.first.min(turn.step);
        live.last = live.last.max(self.last_step(turn, wanted));
        Some(Arc::clone(&live.window))
    }

    async fn slots_of(&mut self, turn: Turn, window: &WindowUse) -> Result<Vec<Arc<Slot>>, Stop> {
        let mut slots = Vec::with_capacity(window.groups.len());
        let named = Arc::new(window.clone());
        for group in &window.groups {
            let key = (window.source, *group);
            // A failed row group is read again: those that waited for it know the reason.
            let slot = match self.slots.get(&key).and_then(Weak::upgrade).filter(|slot| !slot.has_failed()) {
                Some(slot) => slot,
                None => {
                    let slot = Slot::new(window.source, *group);
                    self.wait_to_read(turn, &slot).await?;
                    let reservation = self.reserve(turn, &slot, &slots).await?;
                    let order = TakenBy { plan: Arc::clone(&self.shared.plan), window: Arc::clone(&named) };
                    self.shared.loads.start(&self.shared.job, &slot, order, reservation);
                    self.remember(key, &slot);
                    self.partial.push(Arc::clone(&slot));
                    slot
                }
            };
            slots.push(slot);
        }
        Ok(slots)
    }

    /// Waits until it is time to read `slot`: not at all for a step that somebody waits for, so nothing can hang.
    async fn wait_to_read(&mut self, turn: Turn, slot: &Slot) -> Result<(), Stop> {
        let shared = Arc::clone(&self.shared);
        let source = &shared.job.sources[slot.source as usize];
        let bytes = source.cost(slot.group as usize).total();
        let budget = shared.job.groups.budget() as u64;
        loop {
            let asked = shared.lock().front();
            while let Some(due) = self.early.first_entry().filter(|entry| *entry.key() <= asked) {
                let (count, bytes) = due.remove();
                self.early_sum = (self.early_sum.0 - count, self.early_sum.1.saturating_sub(bytes));
            }
            let (early, sum) = (self.early_sum.0, self.early_sum.1.saturating_add(bytes));
            let gathering = shared.is_gathering();
            let room = if gathering {
                sum <= shared.expected.ahead.min(AHEAD_BYTES)
            } else {
                is_room_ahead((early + 1, sum), shared.job.reads_at_once, budget)
            };
            if turn.step <= asked || room {
                let entry = self.early.entry(turn.step).or_default();
                *entry = (entry.0 + 1, entry.1.saturating_add(bytes));
                self.early_sum = (early + 1, sum);
                return Ok(());
            }
            shared.changed_within(if gathering { STUCK_CHECK } else { FOREVER }).await;
            if !self.is_first(turn) {
                return Err(Stop::Overtaken);
            }
        }
    }

    async fn reserve(&self, turn: Turn, slot: &Slot, beside: &[Arc<Slot>]) -> Result<Reservation, Stop> {
        let shared = &self.shared;
        let source = &shared.job.sources[slot.source as usize];
        let asked = source.cost(slot.group as usize).total();
        let pool = &shared.job.groups;
        let bytes = usize::try_from(asked).unwrap_or(usize::MAX);
        let take_back = || {
            let taken = shared.lock().take_back(turn.step);
            taken.is_some()
        };
        loop {
            if let Some(reservation) = pool.try_reserve(bytes) {
                return Ok(reservation);
            }
            if !take_back() {
                break;
            }
        }
        let started = Instant::now();
        let mut reserving = Box::pin(pool.reserve(bytes));
        let reservation = loop {
            tokio::select! {
                reservation = &mut reserving => break reservation,
                () = shared.changed_within(STUCK_CHECK) => {}
            }
            if !self.is_first(turn) {
                return Err(Stop::Overtaken);
            }
            if take_back() {
                continue;
            }
            // Everything that this step and later ones cannot give back. If that and the new row group exceed the
            // budget, no amount of waiting helps.
            if let Some(live) = self.live(beside).filter(|live| live.saturating_add(asked) > pool.budget() as u64) {
                if self.leave(turn) {
                    return Err(Stop::Overtaken);
                }
                let place = source.dataset.place(slot.group as usize);
                let error = Error::limit(
                    format!("it, beside {live} bytes of other row groups that the same steps need,"),
                    live.saturating_add(asked),
                    pool.budget() as u64,
                    "memory_budget (or lower lanes or window_rows)",
                );
                return Err(Stop::Failed(error.at(place)));
            }
            shared.lock().lose_patience(started.elapsed());
        };
        shared.job.counters.read.waited(started.elapsed());
        Ok(reservation?)
    }

    /// Removes the member whose turn it is if there are others: it is too far from them.
    fn leave(&self, turn: Turn) -> bool {
        let mut state = self.shared.lock();
        let others = state.members.iter().any(|(number, member)| *number != turn.member && !member.behind);
        let works = if others { state.members.get_mut(&turn.member).map(Member::leave_behind) } else { None };
        drop(state);
        works.is_some()
    }

    /// Bytes held by the row groups that this and later steps need; `None` while one of them is still being read, as it
    /// may give back some.
    fn live(&self, beside: &[Arc<Slot>]) -> Option<u64> {
        let state = self.shared.lock();
        let mut seen = HashSet::new();
        let slots = state.windows.values().flat_map(|live| &live.window.slots).chain(beside);
        let held = slots.filter(|slot| seen.insert(slot.name())).map(|slot| slot.held());
        held.sum()
    }

    fn remember(&mut self, key: (u32, u32), slot: &Arc<Slot>) {
        // Drops finished entries now and then; the map stays within twice the number of live ones.
        if self.slots.len() >= 64 && self.slots.len() == self.slots.capacity() {
            self.slots.retain(|_, slot| slot.strong_count() > 0);
        }
        self.slots.insert(key, Arc::downgrade(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_groups_that_nobody_asks_for_yet_take_a_part_of_the_budget() {
        const MIB: u64 = 1 << 20;
        let most = |bytes: u64, reads, budget| {
            (1..).take_while(|groups| is_room_ahead((*groups, *groups as u64 * bytes), reads, budget)).count()
        };
        assert_eq!(most(16 * MIB, 16, 4096 * MIB), 16, "as many as the store takes at once");
        assert_eq!(most(MIB, 16, 4096 * MIB), 256, "or as many bytes");
        assert_eq!((most(16 * MIB, 16, 256 * MIB), most(16 * MIB, 3, 256 * MIB)), (8, 4), "a half, or a quarter");
        assert_eq!(most(200 * MIB, 16, 256 * MIB), 1, "one, however large");
    }
}
