//! The ownership of slots: a pure state machine, without memory, threads or a device.
//!
//! ```text
//!            acquire            fill            hold               release
//!   free ────────────► filling ─────► ready ─────────► held ──┬──────────────► fenced ───► filling ...
//!    ▲                    │             │                     ├─► deferred ──► fenced     (after its fences)
//!    └────────────────────┴─────────────┘                     └─► quarantined: for ever
//!          abandon             release
//! ```
//!
//! *Ready* begins when the copy is in flight: the device's events tell when the bytes have arrived, the ring tells who
//! may write. A slot that is *deferred* has no fences yet, because a stream is capturing a graph or because the fence
//! means waiting; one that is *quarantined* has none and never will. Temporary slots, those of an overflow, are not
//! filled again: they are given up when their fences are done.

use std::collections::VecDeque;

/// The current state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Owned by nobody.
    Free,
    /// Owned by the transfer thread.
    Filling,
    /// Waits for the consumer.
    Ready,
    /// Owned by the consumer.
    Held,
    /// Given back; its fences are not recorded yet.
    Deferred,
    /// Given back; the next writer waits for its fences first.
    Fenced,
    /// Given back, but the end of its last reader is unknown.
    Quarantined,
    /// Its memory was given up.
    Gone,
}

/// The way in which a slot is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Nobody read it.
    Unread,
    /// Its fences are recorded.
    Fenced,
    /// Its fences must be recorded later.
    Deferred,
    /// A fence failed.
    Failed,
}

/// Number of slots in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) free: usize,
    pub(super) filling: usize,
    pub(super) ready: usize,
    pub(super) held: usize,
    pub(super) deferred: usize,
    pub(super) fenced: usize,
    pub(super) quarantined: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Ring {
    states: Vec<State>,
    /// Slots from here on are temporary.
    permanent: usize,
    /// Fenced slots, the first one given back at the front: its readers finish first.
    fenced: VecDeque<usize>,
}

impl Ring {
    /// A ring of `slots` free slots.
    pub(super) fn new(slots: usize) -> Self {
        Self { states: vec![State::Free; slots], permanent: slots, fenced: VecDeque::new() }
    }

    /// The next slot to fill: a free one, otherwise the one that was fenced first. `None` if the consumer holds all of
    /// them.
    pub(super) fn acquire(&mut self) -> Option<usize> {
        let free = self.states[..self.permanent].iter().position(|state| *state == State::Free);
        let slot = free.or_else(|| {
            let at = self.fenced.iter().position(|slot| *slot < self.permanent)?;
            self.fenced.remove(at)
        })?;
        self.states[slot] = State::Filling;
        Some(slot)
    }

    /// A temporary slot to fill, in addition to the permanent ones.
    pub(super) fn overflow(&mut self) -> usize {
        let gone = self.states[self.permanent..].iter().position(|state| *state == State::Gone);
        let slot = gone.map_or(self.states.len(), |at| self.permanent + at);
        if slot == self.states.len() {
            self.states.push(State::Filling);
        } else {
            self.states[slot] = State::Filling;
        }
        slot
    }

    /// Records that the slot was not filled. `as_it_was`: its fences still count.
    pub(super) fn abandon(&mut self, slot: usize, as_it_was: bool) {
        if self.step(slot, &[State::Filling], if as_it_was { State::Fenced } else { State::Free }) && as_it_was {
            self.fenced.push_front(slot);
        }
    }

    /// Records that the copies that fill the slot are in flight.
    pub(super) fn fill(&mut self, slot: usize) {
        self.step(slot, &[State::Filling], State::Ready);
    }

    /// Records that the consumer has it.
    pub(super) fn hold(&mut self, slot: usize) {
        self.step(slot, &[State::Ready], State::Held);
    }

    /// Takes the slot back from the consumer, from the way there, or from the deferred state.
    pub(super) fn release(&mut self, slot: usize, how: Release) {
        let to = match how {
            Release::Unread => State::Free,
            Release::Fenced => State::Fenced,
            Release::Deferred => State::Deferred,
            Release::Failed => State::Quarantined,
        };
        if self.step(slot, &[State::Ready, State::Held, State::Deferred], to) && to == State::Fenced {
            self.fenced.push_back(slot);
        }
    }

    /// Records that the memory of a slot without an owner was given up.
    pub(super) fn give_up(&mut self, slot: usize) {
        self.fenced.retain(|fenced| *fenced != slot);
        self.step(slot, &[State::Free, State::Fenced, State::Quarantined, State::Filling], State::Gone);
    }

    /// The slots in `state`.
    pub(super) fn all(&self, state: State) -> impl Iterator<Item = usize> + '_ {
        self.states.iter().enumerate().filter(move |(_, found)| **found == state).map(|(slot, _)| slot)
    }

    /// Returns true if `slot` exists only for an overflow.
    pub(super) fn is_temporary(&self, slot: usize) -> bool {
        slot >= self.permanent
    }

    /// Returns true if the consumer holds every permanent slot that is not lost.
    pub(super) fn is_all_held(&self) -> bool {
        let mut usable = self.states[..self.permanent].iter().filter(|state| **state != State::Quarantined);
        usable.all(|state| *state == State::Held)
    }

    /// Returns true if no permanent slot can ever be filled again.
    pub(super) fn is_lost(&self) -> bool {
        self.states[..self.permanent].iter().all(|state| matches!(state, State::Quarantined | State::Gone))
    }

    /// Number of slots in each state.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for state in &self.states {
            let count = match state {
                State::Free => &mut counts.free,
                State::Filling => &mut counts.filling,
                State::Ready => &mut counts.ready,
                State::Held => &mut counts.held,
                State::Deferred => &mut counts.deferred,
                State::Fenced => &mut counts.fenced,
                State::Quarantined => &mut counts.quarantined,
                State::Gone => continue,
            };
            *count += 1;
        }
        counts
    }

    /// Moves the slot to `to` if its state is one of `from`. Otherwise its owner is unknown, so nobody gets it.
    fn step(&mut self, slot: usize, from: &[State], to: State) -> bool {
        let Some(state) = self.states.get_mut(slot) else { return false };
        let fits = from.contains(state);
        debug_assert!(fits, "slot {slot} is {state:?}, not one of {from:?}");
        *state = if fits { to } else { State::Quarantined };
        if !fits {
            self.fenced.retain(|fenced| *fenced != slot);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_go_first_then_those_that_came_back_first() {
        let mut ring = Ring::new(3);
        let [a, b] = [ring.acquire().unwrap(), ring.acquire().unwrap()];
        for slot in [a, b] {
            ring.fill(slot);
            ring.hold(slot);
        }
        ring.release(b, Release::Fenced);
        ring.release(a, Release::Fenced);
        let c = ring.acquire().unwrap();
        assert_eq!([c, ring.acquire().unwrap(), ring.acquire().unwrap()], [2, b, a]);
        assert_eq!(ring.acquire(), None);
        ring.abandon(a, true);
        ring.abandon(b, false);
        assert_eq!([ring.acquire(), ring.acquire(), ring.acquire()], [Some(b), Some(a), None]);
    }

    #[test]
    fn what_is_held_deferred_or_quarantined_is_not_filled() {
        let mut ring = Ring::new(3);
        while let Some(slot) = ring.acquire() {
            ring.fill(slot);
            ring.hold(slot);
        }
        assert!(ring.is_all_held());
        ring.release(0, Release::Deferred);
        ring.release(1, Release::Failed);
        assert_eq!((ring.acquire(), ring.is_all_held()), (None, false));
        ring.release(0, Release::Fenced);
        assert_eq!(ring.acquire(), Some(0));
        ring.fill(0);
        ring.release(0, Release::Failed);
        ring.release(2, Release::Failed);
        assert!(ring.is_lost());
        assert_eq!(ring.counts(), Counts { quarantined: 3, ..Counts::default() });
    }

    #[test]
    fn temporary_slots_are_given_up_and_their_numbers_used_again() {
        let mut ring = Ring::new(1);
        let first = ring.acquire().unwrap();
        let more = ring.overflow();
        assert!(ring.is_temporary(more) && !ring.is_temporary(first));
        for slot in [first, more] {
            ring.fill(slot);
            ring.hold(slot);
        }
        ring.release(more, Release::Fenced);
        assert_eq!(ring.acquire(), None, "a temporary slot is not filled again");
        ring.give_up(more);
        assert_eq!(ring.overflow(), more);
    }

    /// One thread fills, one consumes, two release, in every order that the seeds give: nobody writes what another
    /// reads.
    #[test]
    fn nobody_writes_what_another_reads() {
        use shuttle::sync::{Arc, Condvar, Mutex};

        const BATCHES: u64 = 6;
        /// The ring, the content of each slot, and its current reader.
        struct Shared {
            ring: Ring,
            contents: Vec<u64>,
            readers: Vec<u32>,
            ready: VecDeque<(usize, u64)>,
        }

        fn run() {
            let state =
                Shared { ring: Ring::new(2), contents: vec![0; 2], readers: vec![0; 2], ready: VecDeque::new() };
            let shared = Arc::new((Mutex::new(state), Condvar::new()));
            let filler = Arc::clone(&shared);
            let filler = shuttle::thread::spawn(move || {
                let (state, changed) = &*filler;
                for batch in 1..=BATCHES {
                    let mut state = state.lock().unwrap();
                    let slot = loop {
                        match state.ring.acquire() {
                            Some(slot) => break slot,
                            None => state = changed.wait(state).unwrap(),
                        }
                    };
                    assert_eq!(state.readers[slot], 0, "slot {slot} is filled while somebody reads it");
                    state.contents[slot] = batch;
                    state.ring.fill(slot);
                    state.ready.push_back((slot, batch));
                    changed.notify_all();
                }
            });
            let mut letting_go = Vec::new();
            for _ in 0..BATCHES {
                let (state, changed) = &*shared;
                let mut state = state.lock().unwrap();
                let (slot, batch) = loop {
                    match state.ready.pop_front() {
                        Some(next) => break next,
                        None => state = changed.wait(state).unwrap(),
                    }
                };
                state.ring.hold(slot);
                state.readers[slot] += 1;
                drop(state);
                let shared = Arc::clone(&shared);
                letting_go.push(shuttle::thread::spawn(move || {
                    let (state, changed) = &*shared;
                    let mut state = state.lock().unwrap();
                    assert_eq!(state.contents[slot], batch);
                    state.readers[slot] -= 1;
                    let how = [Release::Fenced, Release::Deferred, Release::Unread][batch as usize % 3];
                    state.ring.release(slot, how);
                    if how == Release::Deferred {
                        drop(state);
                        shuttle::thread::yield_now();
                        state = shared.0.lock().unwrap();
                        state.ring.release(slot, Release::Fenced);
                    }
                    changed.notify_all();
                }));
            }
            filler.join().unwrap();
            letting_go.into_iter().for_each(|thread| thread.join().unwrap());
            let counts = shared.0.lock().unwrap().ring.counts();
            assert_eq!(counts.free + counts.fenced, 2);
        }
        shuttle::check_random(run, if std::env::var_os("BOWSTRING_SOAK").is_some() { 20_000 } else { 1_000 });
    }
}
