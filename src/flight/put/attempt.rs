//! One attempt in progress: it holds a thread only while it writes, so that silent writers do not block others.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::staging::{Inner, Writer, discard, joined};
use super::{Staged, Token, WriteId, levels, shrinking};
use crate::error::{Error, Result};

/// Bytes that all attempts together gather before they are written. A mark at which they write earlier, not a budget: nothing waits
/// and nothing is refused, hence no `memory::Pool`.
#[derive(Debug)]
pub(super) struct Buffers {
    limit: u64,
    used: AtomicU64,
}

impl Buffers {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    /// Counts `now` bytes in place of `before`. Returns true if this attempt has at least half of what the others leave. So all together
    /// are never too many, and of many that write alike each has its part before its row group ends: one that has little ends none because
    /// others have much.
    fn count(&self, before: u64, now: u64) -> bool {
        let used = if now >= before {
            self.used.fetch_add(now - before, Ordering::AcqRel) + (now - before)
        } else {
            self.used.fetch_sub(before - now, Ordering::AcqRel) - (before - now)
        };
        used.saturating_add(now) > self.limit
    }
}

/// An attempt's part in the book, which ends on every way out.
pub(super) struct Busy {
    inner: Arc<Inner>,
    write: WriteId,
    ended: bool,
}

impl Busy {
    pub(super) fn new(inner: Arc<Inner>, write: WriteId) -> Self {
        Self { inner, write, ended: false }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if !self.ended {
            // The end of the write does not change the result of an attempt that failed.
            let _ = self.inner.book().end(&self.write, None, Instant::now());
        }
    }
}

/// The writer, and the decoder of its messages.
pub(super) struct Attempt<D> {
    /// Before the part in the book: files are gone before the attempt is.
    writer: Option<Writer>,
    /// Bytes that are counted as gathered.
    gathered: u64,
    /// Rows that were written.
    rows: u64,
    decode: D,
    token: Token,
    busy: Busy,
}

impl<D> Attempt<D> {
    pub(super) fn new(busy: Busy, token: Token, decode: D) -> Self {
        Self { writer: None, gathered: 0, rows: 0, decode, token, busy }
    }

    pub(super) fn open(&mut self, schema: SchemaRef) -> Result<()> {
        self.writer = Some(self.busy.inner.target.writer(&self.busy.write, self.token, schema)?);
        Ok(())
    }

    pub(super) fn write<M>(&mut self, message: M) -> Result<()>
    where
        D: FnMut(&M) -> Result<Option<RecordBatch>>,
    {
        // The message and the claim that pays for it are held until its rows are written. The decoder pays for anything that stays longer.
        let Some(batch) = (self.decode)(&message)? else { return Ok(()) };
        let writer = self.writer.as_mut().ok_or_else(over)?;
        let long_rows = &self.busy.inner.long_rows;
        shrinking::check(&batch, self.rows, long_rows)?;
        levels::in_pieces(&batch, &mut |piece, long| {
            // Nothing is left half-done by one that panicked.
            let _alone = long.then(|| long_rows.lock().unwrap_or_else(PoisonError::into_inner));
            writer.write(piece)
        })?;
        self.rows += batch.num_rows() as u64;
        let now = writer.gathered();
        let full = self.busy.inner.buffers.count(self.gathered, now);
        self.gathered = now;
        if full && now > 0 {
            writer.flush()?;
            let now = writer.gathered();
            self.busy.inner.buffers.count(self.gathered, now);
            self.gathered = now;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<Staged> {
        let (piece, rows, bytes) = self.writer.take().ok_or_else(over)?.finish()?;
        let staged = Staged { token: self.token, rows, bytes };
        self.busy.ended = true;
        self.busy.inner.book().end(&self.busy.write, Some((staged, piece)), Instant::now())?;
        Ok(staged)
    }
}

impl<D> Drop for Attempt<D> {
    fn drop(&mut self) {
        // Files are removed before the attempt leaves the book.
        self.writer = None;
        self.busy.inner.buffers.count(self.gathered, 0);
    }
}

fn over() -> Error {
    Error::Closed { why: "the attempt is over".to_owned() }
}

/// An attempt between two steps. Dropped, it is removed on a thread that may block.
pub(super) struct Running<A: Send + 'static> {
    inner: Arc<Inner>,
    /// The space whose threads it uses.
    space: Option<String>,
    attempt: Option<Box<A>>,
}

impl<A: Send + 'static> fmt::Debug for Running<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl<D: Send + 'static> Running<Attempt<D>> {
    pub(super) fn new(attempt: Attempt<D>) -> Self {
        let space = attempt.busy.write.space().map(str::to_owned);
        Self { inner: Arc::clone(&attempt.busy.inner), space, attempt: Some(Box::new(attempt)) }
    }
}

impl<A: Send + 'static> Running<A> {
    /// Runs one step on a thread, once one is free.
    pub(super) async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut A) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = self.inner.place(self.space.as_deref()).await;
        let mut attempt = self.attempt.take().ok_or_else(over)?;
        let step = tokio::task::spawn_blocking(move || {
            let outcome = work(&mut attempt);
            drop(place);
            Ok((attempt, outcome))
        });
        let (attempt, outcome) = joined(step.await)?;
        self.attempt = Some(attempt);
        outcome
    }

    /// Removes an unfinished attempt, and waits until it is gone.
    pub(super) async fn end(mut self) {
        if let Some(attempt) = self.attempt.take() {
            discard(attempt).await;
        }
    }
}

impl<A: Send + 'static> Drop for Running<A> {
    fn drop(&mut self) {
        if let (Some(attempt), Ok(runtime)) = (self.attempt.take(), Handle::try_current()) {
            runtime.spawn_blocking(move || drop(attempt));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes messages of `message` bytes with each attempt in turn; the row groups of each, in bytes.
    fn row_groups(buffers: &Buffers, held: &mut [u64], message: u64, rounds: usize) -> Vec<Vec<u64>> {
        let mut ended = vec![Vec::new(); held.len()];
        for _ in 0..rounds {
            for (held, ended) in held.iter_mut().zip(&mut ended) {
                let full = buffers.count(*held, *held + message);
                *held += message;
                if full {
                    ended.push(*held);
                    buffers.count(*held, 0);
                    *held = 0;
                }
                assert!(buffers.used.load(Ordering::Acquire) <= buffers.limit + message);
            }
        }
        ended
    }

    #[test]
    fn row_groups_of_many_attempts_end_with_a_fair_part_each() {
        let buffers = Buffers::new(1600);
        let all = row_groups(&buffers, &mut [0; 15], 1, 10_000);
        for ended in &all {
            assert!(ended.iter().all(|bytes| *bytes >= 90), "{ended:?}");
        }
        // A silent attempt does not hold up others.
        let (buffers, mut silent) = (Buffers::new(1600), [0]);
        row_groups(&buffers, &mut silent, 1, 790);
        for ended in row_groups(&buffers, &mut [0; 3], 1, 10_000) {
            assert!(ended.iter().all(|bytes| *bytes >= 190), "{ended:?}");
        }
    }
}
