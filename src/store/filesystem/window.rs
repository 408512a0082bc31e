//! The part of a file that is in memory, or on its way: what was read last, and what is read next.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::super::cache::Wanted;
use super::super::object::Object;
use super::ahead::{Ahead, Reach, WINDOW};
use crate::error::{Error, Result};

/// Most bytes in memory that were read already: a step back is free.
const BEHIND: u64 = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    object: Object,
    ahead: Ahead,
    chunks: Vec<Chunk>,
    /// Counts uses, so that the last one is known.
    uses: u64,
}

#[derive(Debug)]
struct Chunk {
    range: Range<u64>,
    used: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Coming(JoinHandle<Result<Bytes>>),
    Here(Bytes),
}

impl Drop for Window {
    fn drop(&mut self) {
        self.chunks.drain(..).for_each(|chunk| leave(chunk, self.ahead.shares_slices));
    }
}

/// Gives up a chunk. A request that is on its way ends, unless others wait for its bytes.
fn leave(chunk: Chunk, is_shared: bool) {
    if let State::Coming(task) = chunk.state
        && !is_shared
    {
        task.abort();
    }
}

impl Window {
    /// Nothing of `object` yet.
    pub(super) fn new(object: Object) -> Self {
        let ahead = Ahead::new(object.is_cached());
        Self { object, ahead, chunks: Vec::new(), uses: 0 }
    }

    /// The next bytes of `range`, which is not empty and within the file: at least one. None if they do not come within `wait`; nothing is
    /// lost by that.
    ///
    /// # Errors
    /// As [`Object::read`].
    pub(super) fn take(&mut self, runtime: &Runtime, range: Range<u64>, wait: Duration) -> Result<Option<Bytes>> {
        let size = self.object.stamp().size;
        // Whoever jumps needs no whole slice of what the cache has.
        if self.ahead.shares_slices
            && self.ahead.is_jump(&range)
            && !self.chunks.iter().any(|chunk| chunk.range.contains(&range.start))
            && let Ok(Some(bytes)) =
                runtime.block_on(async { tokio::time::timeout(wait, self.object.look(&range)).await })
        {
            self.ahead.read(&range);
            return Ok(Some(bytes));
        }
        let reach = self.ahead.reach(&range, size);
        self.ask(runtime, range.start, reach);
        let Some(at) = self.chunks.iter().position(|chunk| chunk.range.contains(&range.start)) else {
            return Err(Error::Closed { why: "a read was not begun".to_owned() });
        };
        self.uses += 1;
        let chunk = self.chunks.get_mut(at).ok_or_else(|| Error::Closed { why: "a read was lost".to_owned() })?;
        chunk.used = self.uses;
        if let State::Coming(task) = &mut chunk.state {
            let came = match runtime.block_on(async { tokio::time::timeout(wait, task).await }) {
                Err(_) => return Ok(None),
                Ok(Ok(came)) => came,
                Ok(Err(error)) => Err(Error::Closed { why: format!("a read was not ended: {error}") }),
            };
            match came {
                Ok(bytes) => chunk.state = State::Here(bytes),
                Err(error) => {
                    self.chunks.swap_remove(at);
                    return Err(error);
                }
            }
        }
        let State::Here(bytes) = &chunk.state else { return Ok(None) };
        let first = usize::try_from(range.start - chunk.range.start).unwrap_or(usize::MAX);
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let last = first.saturating_add(length).min(bytes.len());
        if first >= last {
            return Err(Error::Closed { why: "a read has other bytes than it was asked for".to_owned() });
        }
        let taken = bytes.slice(first..last);
        let read = range.start..range.start + taken.len() as u64;
        self.ahead.read(&read);
        self.forget(read.end, reach.end);
        Ok(Some(taken))
    }

    /// Begins the requests for the bytes from `start` on, as far as they `reach`, that are not under way.
    fn ask(&mut self, runtime: &Runtime, start: u64, reach: Reach) {
        let size = self.object.stamp().size;
        let mut at = start;
        while at < reach.end {
            if let Some(chunk) = self.chunks.iter().find(|chunk| chunk.range.contains(&at)) {
                at = chunk.range.end;
                continue;
            }
            let mut range = self.ahead.request(at, reach, size);
            // Up to what is there already.
            let next = self.chunks.iter().map(|chunk| chunk.range.start).filter(|start| *start > at).min();
            range.end = range.end.min(next.unwrap_or(u64::MAX));
            let (object, wanted) = (self.object.clone(), range.clone());
            let read = async move {
                let mut read = object.read_for(vec![wanted], Wanted::default()).await?;
                Ok(read.pop().unwrap_or_default())
            };
            at = range.end;
            self.chunks.push(Chunk { range, used: self.uses, state: State::Coming(runtime.spawn(read)) });
        }
    }

    /// Gives up what was used longest ago, beyond what there may be in memory; what lies between `next` and `end` stays.
    fn forget(&mut self, next: u64, end: u64) {
        let length = |chunk: &Chunk| chunk.range.end - chunk.range.start;
        let mut all: u64 = self.chunks.iter().map(length).sum();
        while all > WINDOW + BEHIND {
            let spare = |chunk: &&(usize, &Chunk)| chunk.1.range.end <= next || chunk.1.range.start >= end;
            let numbered: Vec<_> = self.chunks.iter().enumerate().collect();
            let Some((oldest, _)) = numbered.iter().filter(spare).min_by_key(|(_, chunk)| chunk.used) else { return };
            let chunk = self.chunks.swap_remove(*oldest);
            all = all.saturating_sub(length(&chunk));
            leave(chunk, self.ahead.shares_slices);
        }
    }
}
