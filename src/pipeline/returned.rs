//! What was yielded and given back, because it reached nobody.
//!
//! Two threads may share a loader: one gives a batch back when the other has the next one already, or has even been told that the epoch
//! is over. Everything given back is kept, comes again before anything new, in its order, and the loader's position is before it.

use std::collections::BTreeMap;

/// Epoch and step.
pub(crate) type At = (u64, u64);

/// What comes before anything new.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Again<T> {
    /// What was given back.
    Item(T),
    /// The end of an epoch, which was told before all of it had been taken.
    End,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Returned<T> {
    items: BTreeMap<At, T>,
    /// Where the loader was sent last: what was yielded before that is wanted no more.
    since: At,
    /// The first of those that were dropped when the loader was closed: they reached nobody.
    lost: Option<At>,
    /// Whether the last one given was of an epoch whose end was told before.
    reopened: bool,
}

impl<T> Default for Returned<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), since: (0, 0), lost: None, reopened: false }
    }
}

impl<T> Returned<T> {
    /// Forgets everything: the loader goes on from `at`.
    pub(crate) fn restart(&mut self, at: At) {
        *self = Self { since: at, ..Self::default() };
    }

    /// Drops everything; the position stays before it.
    pub(crate) fn close(&mut self) {
        self.lost = self.items.first_key_value().map(|(first, _)| *first).or(self.lost);
        self.items.clear();
    }

    /// Takes back `item`, which was yielded as `at` by a loader whose next new one is `next`. What it has not yielded since it was sent
    /// to where it began is dropped.
    pub(crate) fn put(&mut self, at: At, item: T, next: At) {
        if (self.since..next).contains(&at) {
            self.items.insert(at, item);
        }
    }

    /// What comes before the new one at `next`.
    pub(crate) fn take(&mut self, next: At) -> Option<Again<T>> {
        if let Some(((epoch, _), item)) = self.items.pop_first() {
            self.reopened = epoch < next.0;
            return Some(Again::Item(item));
        }
        // Who is in the middle of the next epoch is told nothing of the last one.
        let ends = std::mem::take(&mut self.reopened) && next.1 == 0;
        ends.then_some(Again::End)
    }

    /// The position of a loader whose next new one is `next`: everything before it reached somebody.
    pub(crate) fn position(&self, next: At) -> At {
        self.items.first_key_value().map(|(first, _)| *first).or(self.lost).unwrap_or(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_again_once_in_order_and_before_anything_new() {
        let mut returned = Returned::default();
        returned.restart((1, 2));
        for at in [(1, 4), (1, 2), (1, 5), (1, 1), (1, 6)] {
            returned.put(at, at, (1, 6));
        }
        assert_eq!(returned.position((1, 6)), (1, 2), "what was never yielded, or before the start, is none of it");
        assert_eq!(returned.take((1, 6)), Some(Again::Item((1, 2))));
        assert_eq!(returned.position((1, 6)), (1, 4));
        returned.put((1, 2), (1, 2), (1, 6));
        for at in [(1, 2), (1, 4), (1, 5)] {
            assert_eq!(returned.take((1, 6)), Some(Again::Item(at)));
        }
        assert_eq!((returned.take((1, 6)), returned.position((1, 6))), (None, (1, 6)));
        returned.put((1, 3), (1, 3), (1, 6));
        returned.close();
        assert_eq!(
            (returned.take((1, 6)), returned.position((1, 6))),
            (None, (1, 3)),
            "closed before it was taken again"
        );
    }

    #[test]
    fn an_end_that_was_told_too_early_is_told_again_unless_the_next_epoch_began() {
        for (begun, expected) in [(0, Some(Again::End)), (1, None)] {
            let mut returned = Returned::default();
            returned.put((0, 7), 7, (1, begun));
            assert_eq!(returned.position((1, begun)), (0, 7));
            assert_eq!(returned.take((1, begun)), Some(Again::Item(7)));
            assert_eq!(returned.take((1, begun)), expected);
            assert_eq!(returned.take((1, begun)), None);
        }
    }
}
