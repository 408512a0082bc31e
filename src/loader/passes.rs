//! Passes, one per iterator of a loader, and peeks, which move nothing.

use std::time::{Duration, Instant};

use super::Loader;
use crate::device::AnyBatch;
use crate::error::{Error, Result};
use crate::pipeline::{At, Pass, Standing};
use crate::tensor::{Batch, Next};

impl Loader {
    /// Returns a pass as an iterator. It begins when the first batch is taken: at the loader's position if nothing was
    /// taken since the loader was opened or moved there, otherwise at the first step of the next epoch. It ends with
    /// the epoch.
    pub fn iter(&mut self) -> Epoch<'_> {
        Epoch { loader: self, state: Progress::Ahead }
    }

    /// Begins a pass, as [`iter`](Self::iter) does, for iterators that cannot borrow the loader, and ends the previous
    /// one. Batches made ahead for that one are dropped without waiting.
    ///
    /// # Errors
    /// Any error of planning the epoch; the previous pass then continues. [`Error::Closed`] if an error ended the loader, whose
    /// position stays.
    pub fn begin(&mut self) -> Result<Pass> {
        self.send(self.cursor.beginning())?;
        Ok(self.cursor.pass())
    }

    /// As [`next_within`](Self::next_within), for `pass` alone: after its end, the end is returned again.
    ///
    /// # Errors
    /// As [`next_within`](Self::next_within), and [`Error::Closed`] if another pass began, or the loader was moved
    /// after something was taken.
    pub fn next_in(&mut self, pass: Pass, wait: Duration) -> Result<Next<AnyBatch>> {
        self.check()?;
        match self.cursor.standing(pass) {
            Standing::Open => self.next_within(wait),
            Standing::Over => Ok(Next::End),
            Standing::Superseded => Err(Error::Closed { why: SUPERSEDED.to_owned() }),
        }
    }

    /// As [`put_back`](Self::put_back), unless `pass` was superseded by another.
    pub fn put_back_in(&mut self, pass: Pass, batch: AnyBatch) {
        if self.cursor.standing(pass) != Standing::Superseded {
            self.put_back(batch);
        }
    }

    /// Returns a copy of the next batch: the next epoch's first one if this epoch has no more. Nothing moves: the
    /// position stays, and no pass begins or ends. `None` if an epoch has no steps.
    ///
    /// # Errors
    /// As [`next_any`](Self::next_any).
    pub fn peek(&mut self) -> Result<Option<AnyBatch>> {
        let started = Instant::now();
        self.peek_within(self.timeout())?.or_error(|| self.timed_out(started.elapsed()))
    }

    /// As [`peek`](Self::peek), but gives up with [`Next::Pending`] after `wait`.
    ///
    /// # Errors
    /// As [`peek`](Self::peek), except for the time-out.
    pub fn peek_within(&mut self, wait: Duration) -> Result<Next<AnyBatch>> {
        self.check()?;
        if self.steps() == 0 {
            return Ok(Next::End);
        }
        let started = Instant::now();
        loop {
            if let Some(batch) = self.cursor.peek() {
                return batch.copied().map(Next::Item);
            }
            let next = self.source.next(wait.saturating_sub(started.elapsed()));
            match self.noted(next)? {
                Next::Pending => return Ok(Next::Pending),
                found => self.cursor.look(found),
            }
        }
    }

    /// Sets the epoch of the next pass: moves to its first step, and ends a pass that is under way; a pass from which
    /// nothing was taken moves along. Only a loader from which nothing was taken since it was opened or moved into this
    /// very epoch stays where it is, so that a resumed loader keeps its place.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        if self.cursor.is_fresh() && epoch == self.epoch() {
            return Ok(());
        }
        self.send((epoch, 0))
    }

    /// As [`set_epoch`](Self::set_epoch), for the epoch of a framework's own loop, which may be behind: it repeats a short loader while a
    /// longer one lasts. A loader that a state moved into a later epoch, and from which nothing was taken since, keeps its place too.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn reach_epoch(&mut self, epoch: u64) -> Result<()> {
        if self.cursor.is_fresh() && self.consumed.is_resumed() && epoch < self.epoch() {
            return Ok(());
        }
        self.set_epoch(epoch)
    }

    /// Moves to `at`, where a pass may begin. A loader that an error ended stays: its position is the one to resume from.
    fn send(&mut self, at: At) -> Result<()> {
        self.check_alive()?;
        let left = self.cursor.position();
        if !self.cursor.begin(at) {
            self.source.seek(at.0, at.1)?;
            self.cursor.seek(at);
        }
        // Even if the source need not move, batches that were put back may be left behind.
        let begun = self.cursor.position();
        if left != begun {
            self.consumed.jump(left, self.steps(), begun);
        }
        Ok(())
    }
}

const SUPERSEDED: &str = "this iterator ended when its loader began another pass: with a newer iterator, set_epoch or a state that was \
                          loaded; take batches from the newest iterator, and keep one to go on with it";

/// One pass of a [`Loader`]: an epoch, or the rest of the one that the loader was moved into.
#[derive(Debug)]
pub struct Epoch<'a> {
    loader: &'a mut Loader,
    state: Progress,
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Ahead,
    Within,
    Over,
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let begun = match self.state {
            Progress::Ahead => self.loader.begin().map(|_| ()),
            Progress::Within => Ok(()),
            Progress::Over => return None,
        };
        let next = begun.and_then(|()| self.loader.next()).transpose();
        self.state = if matches!(next, Some(Ok(_))) { Progress::Within } else { Progress::Over };
        next
    }
}

impl<'a> IntoIterator for &'a mut Loader {
    type Item = Result<Batch>;
    type IntoIter = Epoch<'a>;

    fn into_iter(self) -> Epoch<'a> {
        self.iter()
    }
}
