//! The position of a loader: a number, the batches put back, and the current pass.
//!
//! A position is an epoch and a number of steps. Two threads may share a loader: one may put a batch back when the
//! other already has the next one, or has even seen the end of the epoch. Everything put back is kept, comes again
//! before anything new, in its order, and the position is before it.
//!
//! A pass covers what one iterator yields: an epoch, or the rest of the one that the loader was moved into.
//!
//! ```text
//!   opened, sent somewhere ──► fresh ──a batch, or the end──► taken from
//!                                │                               │
//!             a new pass stays where it is        a new pass begins the next epoch
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::tensor::Next;

/// Epoch and step.
pub type At = (u64, u64);

/// The identity of one pass of a loader. A pass ends when another begins, or when the loader is moved after something
/// was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(u64);

/// The progress of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It continues.
    Open,
    /// Its end was reported.
    Over,
    /// Another pass has begun since.
    Superseded,
}

/// See the module documentation. Decides, and waits for nothing: a loader asks its source when the cursor has nothing.
#[derive(Debug)]
pub struct Cursor<T> {
    /// The next new item.
    next: At,
    /// The target of the last move: items yielded before it are no longer wanted.
    since: At,
    returned: BTreeMap<At, T>,
    /// Items peeked at before anybody took them: the source is past them, the position is not.
    ahead: VecDeque<Next<T>>,
    /// The first of the items dropped when the loader was closed: they reached nobody.
    lost: Option<At>,
    /// Set if the last item given was of an epoch whose end had been reported.
    reopened: bool,
    pass: u64,
    /// Number of items of this pass that are out.
    out: u64,
    /// Set once its end was reported.
    over: bool,
    closed: bool,
}

impl<T> Default for Cursor<T> {
    /// A cursor at the first step of the first epoch.
    fn default() -> Self {
        Self::new((0, 0))
    }
}

impl<T> Cursor<T> {
    /// A cursor at `at`.
    pub fn new(at: At) -> Self {
        Self {
            next: at,
            since: at,
            returned: BTreeMap::new(),
            ahead: VecDeque::new(),
            lost: None,
            reopened: false,
            pass: 0,
            out: 0,
            over: false,
            closed: false,
        }
    }

    /// Drops everything and continues from `at`, where the source is now. A pass from which nothing was taken moves
    /// along.
    pub fn seek(&mut self, at: At) {
        let pass = self.pass + u64::from(!self.is_fresh());
        *self = Self { pass, closed: self.closed, ..Self::new(at) };
    }

    /// The position of the next new item.
    pub(crate) fn next_new(&self) -> At {
        self.next
    }

    /// The position: everything before it was delivered.
    pub fn position(&self) -> At {
        self.returned.first_key_value().map(|(first, _)| *first).or(self.lost).unwrap_or(self.next)
    }

    /// Returns true if nothing was taken of this pass, not even its end.
    pub(crate) fn is_fresh(&self) -> bool {
        self.out == 0 && !self.over
    }

    /// The start of a new pass: here if nothing was taken of this one, otherwise the next epoch.
    pub fn beginning(&self) -> At {
        if self.closed || self.is_fresh() {
            self.position()
        } else if self.over {
            self.next
        } else {
            (self.next.0.wrapping_add(1), 0)
        }
    }

    /// Begins a pass at `at` if the source need not be moved: nothing was taken, or the next item is there.
    pub fn begin(&mut self, at: At) -> bool {
        if self.is_fresh() && at == self.position() || self.closed {
            self.pass += 1;
            return true;
        }
        if at != self.next {
            return false;
        }
        // Items of the previous pass that others still hold are no longer wanted.
        let ahead = std::mem::take(&mut self.ahead);
        self.seek(at);
        self.ahead = ahead;
        true
    }

    /// The current pass.
    pub fn pass(&self) -> Pass {
        Pass(self.pass)
    }

    /// The progress of `pass`.
    pub(crate) fn standing(&self, pass: Pass) -> Standing {
        if pass.0 != self.pass {
            Standing::Superseded
        } else if self.over && self.returned.is_empty() {
            Standing::Over
        } else {
            Standing::Open
        }
    }

    /// Returns what comes before anything new: an item put back, or the end of an epoch that was reported before all of
    /// it had been taken.
    pub fn again(&mut self) -> Option<Next<T>> {
        if let Some(((epoch, _), item)) = self.returned.pop_first() {
            self.reopened = epoch < self.next.0;
            self.out += 1;
            return Some(Next::Item(item));
        }
        // A consumer in the middle of the next epoch is not told the end of the previous one.
        let ends = std::mem::take(&mut self.reopened) && self.next.1 == 0;
        ends.then_some(Next::End)
    }

    /// Returns the next new item if it was peeked at; [`advance`](Self::advance) must still be called with it.
    pub fn looked_at(&mut self) -> Option<Next<T>> {
        self.ahead.pop_front()
    }

    /// Keeps what the source returned to a peek.
    pub fn look(&mut self, found: Next<T>) {
        self.ahead.push_back(found);
    }

    /// The next item that will be yielded, if it is here.
    pub fn peek(&self) -> Option<&T> {
        let looked_at =
            || self.ahead.iter().find_map(|next| if let Next::Item(item) = next { Some(item) } else { None });
        self.returned.first_key_value().map(|(_, item)| item).or_else(looked_at)
    }

    /// Advances past a new item or an end: `at` returns an item's position.
    pub fn advance(&mut self, found: &Next<T>, at: impl FnOnce(&T) -> At) {
        match found {
            Next::Item(item) => {
                // A consumer that continues after the end, as a stream, is in a pass that no iterator has.
                if std::mem::take(&mut self.over) {
                    (self.pass, self.out) = (self.pass + 1, 0);
                }
                self.out += 1;
                let (epoch, step) = at(item);
                self.next = (epoch, step + 1);
            }
            Next::End => (self.next, self.over) = ((self.next.0.wrapping_add(1), 0), true),
            Next::Pending => {}
        }
    }

    /// Takes back `item`, which was yielded as `at`. An item not yielded since the last [`seek`](Self::seek) is
    /// dropped.
    pub fn put_back(&mut self, at: At, item: T) {
        let is_known = (self.since..self.next).contains(&at);
        if is_known
            && self.returned.insert(at, item).is_none()
            && at.0.wrapping_add(u64::from(self.over)) == self.next.0
        {
            self.out = self.out.saturating_sub(1);
        }
    }

    /// Drops the items put back; the position stays before them, also for passes that begin after this.
    pub fn close(&mut self) {
        self.lost = self.returned.first_key_value().map(|(first, _)| *first).or(self.lost);
        self.returned.clear();
        self.ahead.clear();
        self.reopened = false;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(next: At, since: At) -> Cursor<At> {
        Cursor { next, ..Cursor::new(since) }
    }

    #[test]
    fn everything_comes_again_once_in_order_and_before_anything_new() {
        let mut cursor = at((1, 6), (1, 2));
        for step in [(1, 4), (1, 2), (1, 5), (1, 1), (1, 6)] {
            cursor.put_back(step, step);
        }
        assert_eq!(cursor.position(), (1, 2), "what was never yielded, or before the start, is none of it");
        assert_eq!(cursor.again(), Some(Next::Item((1, 2))));
        assert_eq!(cursor.position(), (1, 4));
        cursor.put_back((1, 2), (1, 2));
        for step in [(1, 2), (1, 4), (1, 5)] {
            assert_eq!(cursor.again(), Some(Next::Item(step)));
        }
        assert_eq!((cursor.again(), cursor.position()), (None, (1, 6)));
        cursor.put_back((1, 3), (1, 3));
        cursor.close();
        assert_eq!((cursor.again(), cursor.position()), (None, (1, 3)), "closed before it was taken again");
    }

    #[test]
    fn an_end_that_was_told_too_early_is_told_again_unless_the_next_epoch_began() {
        for (begun, expected) in [(0, Some(Next::End)), (1, None)] {
            let mut cursor = at((1, begun), (0, 0));
            cursor.put_back((0, 7), (0, 7));
            assert_eq!(cursor.position(), (0, 7));
            assert_eq!(cursor.again(), Some(Next::Item((0, 7))));
            assert_eq!(cursor.again(), expected);
            assert_eq!(cursor.again(), None);
        }
    }

    #[test]
    fn the_position_goes_on_with_what_is_found() {
        let mut cursor = Cursor::<At>::default();
        for (found, next) in [
            (Next::Pending, (0, 0)),
            (Next::Item((0, 0)), (0, 1)),
            (Next::Item((0, 1)), (0, 2)),
            (Next::End, (1, 0)),
            (Next::Item((1, 0)), (1, 1)),
        ] {
            cursor.advance(&found, |at| *at);
            assert_eq!((cursor.next_new(), cursor.position()), (next, next));
        }
        cursor.seek((4, 3));
        cursor.put_back((1, 0), (1, 0));
        assert_eq!((cursor.position(), cursor.again()), ((4, 3), None));
    }

    fn take(cursor: &mut Cursor<At>, items: u64) {
        for _ in 0..items {
            let at = cursor.next_new();
            cursor.advance(&Next::Item(at), |at| *at);
        }
    }

    /// Begins a pass, as a loader does; returns its start, and whether the source was already there.
    fn begin(cursor: &mut Cursor<At>) -> (At, bool) {
        let at = cursor.beginning();
        let is_there = cursor.begin(at);
        if !is_there {
            cursor.seek(at);
        }
        (cursor.position(), !is_there)
    }

    #[test]
    fn a_pass_begins_the_next_epoch_once_anything_was_taken() {
        let mut cursor = Cursor::default();
        cursor.seek((2, 5));
        assert_eq!((begin(&mut cursor), begin(&mut cursor)), (((2, 5), false), ((2, 5), false)), "nothing was taken");
        take(&mut cursor, 1);
        cursor.put_back((2, 5), (2, 5));
        assert_eq!(begin(&mut cursor), ((2, 5), false), "what was taken came back");
        assert_eq!(cursor.again(), Some(Next::Item((2, 5))));
        take(&mut cursor, 2);
        cursor.put_back((2, 6), (2, 6));
        assert_eq!(begin(&mut cursor), ((3, 0), true), "left in the middle");
        cursor.put_back((2, 7), (2, 7));
        assert_eq!((cursor.position(), begin(&mut cursor)), ((3, 0), ((3, 0), false)), "of a pass that was left");
        cursor.advance(&Next::End, |at| *at);
        assert_eq!(begin(&mut cursor), ((4, 0), false), "of an empty pass the end was taken");
        take(&mut cursor, 3);
        cursor.advance(&Next::End, |at| *at);
        cursor.put_back((4, 2), (4, 2));
        assert_eq!(begin(&mut cursor), ((5, 0), false), "left after its end, when one had come back");
        take(&mut cursor, 3);
        cursor.put_back((5, 1), (5, 1));
        cursor.close();
        assert_eq!(begin(&mut cursor), ((5, 1), false), "closed");
    }

    #[test]
    fn a_pass_has_one_end_and_ends_with_the_next() {
        let mut cursor = Cursor::default();
        let first = cursor.pass();
        take(&mut cursor, 2);
        assert_eq!(cursor.standing(first), Standing::Open);
        cursor.advance(&Next::End, |at| *at);
        assert_eq!(cursor.standing(first), Standing::Over, "for all who take from it");
        cursor.put_back((0, 1), (0, 1));
        assert_eq!(cursor.standing(first), Standing::Open, "one came back");
        assert_eq!((cursor.again(), cursor.again()), (Some(Next::Item((0, 1))), Some(Next::End)));
        assert_eq!(cursor.standing(first), Standing::Over);
        begin(&mut cursor);
        assert_eq!(cursor.standing(first), Standing::Superseded);
        // A stream that continues past the end is in nobody's pass.
        let second = cursor.pass();
        cursor.advance(&Next::End, |at| *at);
        take(&mut cursor, 1);
        assert_eq!(cursor.standing(second), Standing::Superseded);
        assert_eq!(begin(&mut cursor), ((3, 0), true));
    }

    #[test]
    fn what_was_looked_at_is_still_to_come() {
        let mut cursor = Cursor::new((0, 2));
        cursor.look(Next::End);
        assert_eq!(cursor.peek(), None);
        cursor.look(Next::Item((1, 0)));
        assert_eq!((cursor.peek(), cursor.position(), cursor.is_fresh()), (Some(&(1, 0)), (0, 2), true));
        for expected in [Next::End, Next::Item((1, 0))] {
            assert_eq!(cursor.looked_at().as_ref(), Some(&expected));
            cursor.advance(&expected, |at| *at);
        }
        assert_eq!((cursor.peek(), cursor.position()), (None, (1, 1)));
        // The next epoch's first batch stays although another pass begins.
        cursor.advance(&Next::End, |at| *at);
        cursor.look(Next::Item((2, 0)));
        assert_eq!((begin(&mut cursor), cursor.peek()), (((2, 0), false), Some(&(2, 0))));
    }
}
