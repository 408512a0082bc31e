//! Where a loader went: spans of positions, for its certificate.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::pipeline::At;
use crate::plan::{Certificate, Span};

/// The spans before the one that the loader is in, and where that began.
#[derive(Debug)]
pub(super) struct Consumed {
    name: String,
    opened: u64,
    spans: Vec<Span>,
    dropped: u64,
    from: At,
    resumed: bool,
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Default for Consumed {
    /// Of a loader that is opened now, at the first step of the first epoch.
    fn default() -> Self {
        // The standard library seeds its hashes with random bytes of the system.
        let random = || RandomState::new().hash_one(now());
        let name = format!("{:016x}{:016x}", random(), random());
        Self { name, opened: now(), spans: Vec::new(), dropped: 0, from: (0, 0), resumed: false }
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

    /// The loader was at `left` and continues at `to`.
    pub(super) fn jump(&mut self, left: At, to: At) {
        self.end(left);
        (self.from, self.resumed) = (to, false);
    }

    /// As [`jump`](Self::jump), to a state that was loaded.
    pub(super) fn resume(&mut self, left: At, to: At) {
        self.end(left);
        (self.from, self.resumed) = (to, true);
    }

    /// What was consumed before is of another plan, and has no place in this one's certificate.
    pub(super) fn forget(&mut self) {
        self.dropped += std::mem::take(&mut self.spans).len() as u64;
    }

    /// All spans of a loader that is at `position`, and how many had no place.
    pub(super) fn spans(&self, position: At) -> (Vec<Span>, u64) {
        let mut spans = self.spans.clone();
        let last = Span { from: self.from, to: position, resumed: self.resumed };
        let is_lost = !is_empty(&last) && spans.len() >= Certificate::MAX_SPANS;
        if !is_empty(&last) && !is_lost {
            spans.push(last);
        }
        (spans, self.dropped + u64::from(is_lost))
    }

    fn end(&mut self, left: At) {
        let (spans, dropped) = self.spans(left);
        (self.spans, self.dropped) = (spans, dropped);
    }
}

/// Whether nothing was taken. What came back may be from before the span.
fn is_empty(span: &Span) -> bool {
    span.to <= span.from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_go_from_jump_to_jump() {
        let mut consumed = Consumed::default();
        assert_eq!(consumed.spans((0, 0)), (vec![], 0));
        consumed.jump((0, 4), (1, 0));
        consumed.resume((1, 0), (0, 3));
        let span = |from, to, resumed| Span { from, to, resumed };
        let expected = vec![span((0, 0), (0, 4), false), span((0, 3), (2, 1), true)];
        assert_eq!(consumed.spans((2, 1)), (expected, 0));
        assert_ne!(consumed.name(), Consumed::default().name());
        consumed.forget();
        assert_eq!(consumed.spans((2, 1)), (vec![span((0, 3), (2, 1), true)], 1));
    }

    #[test]
    fn spans_without_a_place_are_counted() {
        let mut consumed = Consumed::default();
        for epoch in 0..Certificate::MAX_SPANS as u64 + 3 {
            consumed.jump((epoch, 2), (epoch + 1, 0));
        }
        let (spans, dropped) = consumed.spans((u64::MAX, 0));
        assert_eq!((spans.len(), dropped), (Certificate::MAX_SPANS, 4));
    }
}
