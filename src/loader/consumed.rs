//! Spans of positions that a loader went through, for its certificate, and the passes left early, for its states.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::manifest::Fingerprint;
use crate::pipeline::At;
use crate::plan::{Certificate, Span, State};

/// The spans before the current one, and the start of the current one.
#[derive(Debug)]
pub(super) struct Consumed {
    name: String,
    opened: u64,
    spans: Vec<Span>,
    dropped: u64,
    from: At,
    resumed: bool,
    early: Vec<At>,
    data: Option<Fingerprint>,
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Default for Consumed {
    /// For a loader opened now, at the first step of the first epoch.
    fn default() -> Self {
        // The standard library seeds its hashes with random bytes from the system.
        let random = || RandomState::new().hash_one(now());
        let name = format!("{:016x}{:016x}", random(), random());
        let (opened, spans, early) = (now(), Vec::new(), Vec::new());
        Self { name, opened, spans, dropped: 0, from: (0, 0), resumed: false, early, data: None }
    }
}

impl Consumed {
    /// The loader's random name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// When it was opened, in milliseconds since 1970.
    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    /// Records a move from `left`, in an epoch of `steps` steps, to `to`.
    pub(super) fn jump(&mut self, left: At, steps: u64, to: At) {
        self.end(left);
        (self.from, self.resumed) = (to, false);
        // A pass from which nothing was taken does not count.
        if 0 < left.1 && left.1 < steps {
            self.early.drain(..(self.early.len() + 1).saturating_sub(State::MAX_LEFT));
            self.early.push(left);
        }
    }

    /// Records a resume: the loader was at `left` and continues as `state` says.
    pub(super) fn resume(&mut self, left: At, to: At, state: &State) {
        self.end(left);
        (self.from, self.resumed) = (to, true);
        self.early.clone_from(&state.left);
        self.data = Some(state.fingerprint);
    }

    /// The fingerprint of the data in the state that was loaded, if one was: a former version may have given them another one than they
    /// have now, and the states and certificates of one run name one.
    pub(super) fn data(&self) -> Option<Fingerprint> {
        self.data
    }

    /// Returns true if the loader continues from a state.
    pub(super) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Passes left before their end, here or before the state that was loaded.
    pub(super) fn early(&self) -> &[At] {
        &self.early
    }

    /// Drops what was consumed before: it belongs to another plan, and has no place in this one's certificate.
    pub(super) fn forget(&mut self) {
        self.dropped += std::mem::take(&mut self.spans).len() as u64;
    }

    /// All spans of a loader at `position`, and how many were dropped. One that began at a state counts even if it is empty: what
    /// earlier loaders consumed after that state is rolled back.
    pub(super) fn spans(&self, position: At) -> (Vec<Span>, u64) {
        let mut spans = self.spans.clone();
        // A batch that was put back may be from before the span.
        let last = Span { from: self.from, to: position.max(self.from), resumed: self.resumed };
        let counts = last.from < last.to || last.resumed;
        let is_lost = counts && spans.len() >= Certificate::MAX_SPANS;
        if counts && !is_lost {
            spans.push(last);
        }
        (spans, self.dropped + u64::from(is_lost))
    }

    fn end(&mut self, left: At) {
        let (spans, dropped) = self.spans(left);
        (self.spans, self.dropped) = (spans, dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanSpec;

    fn state() -> State {
        State::at(Fingerprint::from_bytes([1; 32]), PlanSpec::new(1, 8), 0, 3)
    }

    #[test]
    fn passes_that_end_or_give_nothing_were_not_left_early() {
        let mut consumed = Consumed::default();
        consumed.jump((0, 9), 9, (1, 0));
        consumed.jump((1, 0), 9, (2, 0));
        assert_eq!(consumed.early(), []);
    }

    #[test]
    fn spans_go_from_jump_to_jump() {
        let mut consumed = Consumed::default();
        assert_eq!(consumed.spans((0, 0)), (vec![], 0));
        consumed.jump((0, 4), 9, (1, 0));
        let state = State { left: vec![(7, 1)], ..state() };
        assert_eq!(consumed.early(), [(0, 4)]);
        consumed.resume((1, 0), (0, 3), &state);
        assert_eq!(consumed.early(), [(7, 1)]);
        let span = |from, to, resumed| Span { from, to, resumed };
        let expected = vec![span((0, 0), (0, 4), false), span((0, 3), (2, 1), true)];
        assert_eq!(consumed.spans((2, 1)), (expected, 0));
        assert_ne!(consumed.name(), Consumed::default().name());
        consumed.forget();
        assert_eq!(consumed.spans((2, 1)), (vec![span((0, 3), (2, 1), true)], 1));
        // Of a state from which nothing was taken, and which an epoch was set after.
        consumed.resume((2, 1), (1, 9), &state);
        consumed.jump((1, 9), 9, (2, 0));
        let expected = [span((0, 3), (2, 1), true), span((1, 9), (1, 9), true), span((2, 0), (2, 1), false)];
        assert_eq!(consumed.spans((2, 1)).0, expected);
    }

    #[test]
    fn spans_without_a_place_are_counted() {
        let mut consumed = Consumed::default();
        for epoch in 0..Certificate::MAX_SPANS as u64 + 3 {
            consumed.jump((epoch, 2), 3, (epoch + 1, 0));
        }
        let early = consumed.early();
        assert_eq!((early.len(), early.last()), (State::MAX_LEFT, Some(&(Certificate::MAX_SPANS as u64 + 2, 2))));
        let (spans, dropped) = consumed.spans((u64::MAX, 0));
        assert_eq!((spans.len(), dropped), (Certificate::MAX_SPANS, 4));
    }
}
