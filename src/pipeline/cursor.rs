//! Where a loader is: a number, and what came back.
//!
//! A position is an epoch and a number of steps. Two threads may share a loader: one gives a batch back when the other has the next one
//! already, or has even been told that the epoch is over. Everything given back is kept, comes again before anything new, in its order,
//! and the position is before it.

use std::collections::BTreeMap;

use crate::tensor::Next;

/// Epoch and step.
pub type At = (u64, u64);

/// See the module. It decides, and waits for nothing: a loader asks its source where the cursor has nothing.
#[derive(Debug)]
pub struct Cursor<T> {
    /// The next one that is new.
    next: At,
    /// Where the loader was sent last: what was yielded before that is wanted no more.
    since: At,
    returned: BTreeMap<At, T>,
    /// The first of those that were dropped when the loader was closed: they reached nobody.
    lost: Option<At>,
    /// Whether the last one given was of an epoch whose end was told before.
    reopened: bool,
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
        Self { next: at, since: at, returned: BTreeMap::new(), lost: None, reopened: false }
    }

    /// Forgets everything and goes on from `at`.
    pub fn seek(&mut self, at: At) {
        *self = Self::new(at);
    }

    /// The next one that is new.
    pub fn next_new(&self) -> At {
        self.next
    }

    /// The position: everything before it reached somebody.
    pub fn position(&self) -> At {
        self.returned.first_key_value().map(|(first, _)| *first).or(self.lost).unwrap_or(self.next)
    }

    /// What comes before anything new: what was given back, or the end of an epoch that was told before all of it had been taken.
    pub fn again(&mut self) -> Option<Next<T>> {
        if let Some(((epoch, _), item)) = self.returned.pop_first() {
            self.reopened = epoch < self.next.0;
            return Some(Next::Item(item));
        }
        // Who is in the middle of the next epoch is told nothing of the last one.
        let ends = std::mem::take(&mut self.reopened) && self.next.1 == 0;
        ends.then_some(Next::End)
    }

    /// Goes past what is new: `at` says where an item was.
    pub fn pass(&mut self, found: &Next<T>, at: impl FnOnce(&T) -> At) {
        self.next = match found {
            Next::Item(item) => {
                let (epoch, step) = at(item);
                (epoch, step + 1)
            }
            Next::End => (self.next.0.wrapping_add(1), 0),
            Next::Pending => return,
        };
    }

    /// Takes back `item`, which was yielded as `at`. What was not yielded since the last [`seek`](Self::seek) is dropped.
    pub fn put_back(&mut self, at: At, item: T) {
        if (self.since..self.next).contains(&at) {
            self.returned.insert(at, item);
        }
    }

    /// Drops what came back; the position stays before it.
    pub fn close(&mut self) {
        self.lost = self.returned.first_key_value().map(|(first, _)| *first).or(self.lost);
        self.returned.clear();
        self.reopened = false;
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
            cursor.pass(&found, |at| *at);
            assert_eq!((cursor.next_new(), cursor.position()), (next, next));
        }
        cursor.seek((4, 3));
        cursor.put_back((1, 0), (1, 0));
        assert_eq!((cursor.position(), cursor.again()), ((4, 3), None));
    }
}
