//! Where a loader is: a number, what came back, and which pass it is in.
//!
//! A position is an epoch and a number of steps. Two threads may share a loader: one gives a batch back when the other has the next one
//! already, or has even been told that the epoch is over. Everything given back is kept, comes again before anything new, in its order,
//! and the position is before it.
//!
//! A pass is what one iterator goes through: an epoch, or the rest of the one that the loader was sent into.
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

/// The name of one pass of a loader. Whatever begins another pass ends it, and so does whatever sends the loader elsewhere once something
/// was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass(u64);

/// What a pass may still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It continues.
    Open,
    /// Its end was told.
    Over,
    /// Another one began since.
    Superseded,
}

/// See the module. It decides, and waits for nothing: a loader asks its source where the cursor has nothing.
#[derive(Debug)]
pub struct Cursor<T> {
    /// The next one that is new.
    next: At,
    /// Where the loader was sent last: what was yielded before that is wanted no more.
    since: At,
    returned: BTreeMap<At, T>,
    /// What was looked at before anybody took it: the source is past it, the position is not.
    ahead: VecDeque<Next<T>>,
    /// The first of those that were dropped when the loader was closed: they reached nobody.
    lost: Option<At>,
    /// Whether the last one given was of an epoch whose end was told before.
    reopened: bool,
    pass: u64,
    /// How many of this pass somebody has.
    out: u64,
    /// Whether its end was told.
    over: bool,
    closed: bool,
}

impl<T> Default for Cursor<T> {
    /// At the first step of the first epoch.
    fn default() -> Self {
        Self::new((0, 0))
    }
}

impl<T> Cursor<T> {
    /// At `at`.
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

    /// Forgets everything and continues from `at`, where the source is now. A pass of which nothing was taken goes along.
    pub fn seek(&mut self, at: At) {
        let pass = self.pass + u64::from(!self.is_fresh());
        *self = Self { pass, closed: self.closed, ..Self::new(at) };
    }

    /// The next one that is new.
    pub(crate) fn next_new(&self) -> At {
        self.next
    }

    /// The position: everything before it reached somebody.
    pub fn position(&self) -> At {
        self.returned.first_key_value().map(|(first, _)| *first).or(self.lost).unwrap_or(self.next)
    }

    /// Whether nothing was taken of this pass, not even its end.
    pub(crate) fn is_fresh(&self) -> bool {
        self.out == 0 && !self.over
    }

    /// Where a pass would begin: here if nothing was taken of this one, else with the next epoch.
    pub fn beginning(&self) -> At {
        if self.closed || self.is_fresh() {
            self.position()
        } else if self.over {
            self.next
        } else {
            (self.next.0.wrapping_add(1), 0)
        }
    }

    /// Begins a pass at `at` if the source need not be sent there: nothing was taken, or what comes next is there.
    pub fn begin(&mut self, at: At) -> bool {
        if self.is_fresh() && at == self.position() || self.closed {
            self.pass += 1;
            return true;
        }
        if at != self.next {
            return false;
        }
        // What others still hold of the pass before is wanted no more.
        let ahead = std::mem::take(&mut self.ahead);
        self.seek(at);
        self.ahead = ahead;
        true
    }

    /// This pass.
    pub fn pass(&self) -> Pass {
        Pass(self.pass)
    }

    /// What `pass` may still have.
    pub(crate) fn standing(&self, pass: Pass) -> Standing {
        if pass.0 != self.pass {
            Standing::Superseded
        } else if self.over && self.returned.is_empty() {
            Standing::Over
        } else {
            Standing::Open
        }
    }

    /// What comes before anything new: what was given back, or the end of an epoch that was told before all of it had been taken.
    pub fn again(&mut self) -> Option<Next<T>> {
        if let Some(((epoch, _), item)) = self.returned.pop_first() {
            self.reopened = epoch < self.next.0;
            self.out += 1;
            return Some(Next::Item(item));
        }
        // Who is in the middle of the next epoch is told nothing of the last one.
        let ends = std::mem::take(&mut self.reopened) && self.next.1 == 0;
        ends.then_some(Next::End)
    }

    /// What was looked at before: the next that is new, which [`advance`](Self::advance) is still to be told of.
    pub fn looked_at(&mut self) -> Option<Next<T>> {
        self.ahead.pop_front()
    }

    /// Keeps what the source gave to somebody who only looks.
    pub fn look(&mut self, found: Next<T>) {
        self.ahead.push_back(found);
    }

    /// The next item that anybody will get, if it is here.
    pub fn peek(&self) -> Option<&T> {
        let looked_at =
            || self.ahead.iter().find_map(|next| if let Next::Item(item) = next { Some(item) } else { None });
        self.returned.first_key_value().map(|(_, item)| item).or_else(looked_at)
    }

    /// Goes past what is new: `at` says where an item was.
    pub fn advance(&mut self, found: &Next<T>, at: impl FnOnce(&T) -> At) {
        match found {
            Next::Item(item) => {
                // Whoever goes on after the end, as a stream, is in a pass that no iterator has.
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

    /// Takes back `item`, which was yielded as `at`. What was not yielded since the last [`seek`](Self::seek) is dropped.
    pub fn put_back(&mut self, at: At, item: T) {
        let is_known = (self.since..self.next).contains(&at);
        if is_known
            && self.returned.insert(at, item).is_none()
            && at.0.wrapping_add(u64::from(self.over)) == self.next.0
        {
            self.out = self.out.saturating_sub(1);
        }
    }

    /// Drops what came back; the position stays before it, also for passes that begin after this.
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

    /// Begins a pass, as a loader does: where it began, and whether the source was sent there.
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
        // A stream that goes on past the end is in nobody's pass.
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
        // The next epoch's first batch stays, though another pass begins.
        cursor.advance(&Next::End, |at| *at);
        cursor.look(Next::Item((2, 0)));
        assert_eq!((begin(&mut cursor), cursor.peek()), (((2, 0), false), Some(&(2, 0))));
    }
}
