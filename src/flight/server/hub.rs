//! Decode once, many consumers: streams of the same share of the same plan take their batches from one line.
//!
//! ```text
//!   line   Batches ─► encode ─► ring of the last batches ─► every stream that is within the ring
//! ```
//!
//! Whoever comes first to the end of the ring makes the next batch; the others wait for it. A stream that falls behind the ring
//! goes on with a line of its own, so that nobody waits for the slowest. All memory is claimed when a stream begins (see
//! [`claims`](super::claims)): what the line needs, its ring, and the batches that each stream may have on their way out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::StreamExt;
use tonic::Status;

use super::claims::{Claim, Claims};
use super::opened::{Offer, PREFETCH};
use crate::error::{Error, Result};
use crate::flight::status::to_status;
use crate::flight::wire::{Encoded, encode};
use crate::memory::{HostAllocator, SharedAllocator, Shelf, SystemAllocator};
use crate::pipeline::{Batches, Run, Workers};
use crate::plan::{Plan, Share};

/// Batches that a line remembers at least, and at most if nothing is said.
const RING: std::ops::RangeInclusive<u64> = 4..=256;

/// Bytes of batches that a line remembers where they are many, if nothing is said: enough for jobs that begin a moment apart.
const RING_BYTES: u64 = 64 << 20;

/// Most batches that a line remembers where it was said how many bytes.
const MAX_RING: u64 = 1024;

/// Batches that a stream has on its way out at most, where the receiver keeps none.
pub(super) const OUTGOING: u64 = 2;

/// Most memory for reading ahead that a line asks for beyond its need.
const AHEAD: u64 = 256 << 20;

type Key = (usize, u64, u32, u32);

/// What all streams of a server share.
#[derive(Debug)]
pub(super) struct Hub {
    lines: Mutex<HashMap<Key, Vec<Weak<Line>>>>,
    workers: Arc<Workers>,
    /// Where batches are built; none for memory that no other process sees.
    shared: Option<Arc<SharedAllocator>>,
    claims: Arc<Claims>,
    /// Bytes of batches that a line remembers, and how many batches at most.
    ring: (u64, u64),
    /// Rows of batches that were made, padding included.
    decoded: Arc<AtomicU64>,
}

impl Hub {
    /// Streams share `budget`. Each line remembers `share` bytes of batches where that is given.
    pub(super) fn new(
        workers: Arc<Workers>,
        shared: Option<Arc<SharedAllocator>>,
        budget: u64,
        share: Option<u64>,
    ) -> Self {
        Self {
            lines: Mutex::default(),
            workers,
            shared,
            claims: Arc::new(Claims::new(budget)),
            ring: share.map_or((RING_BYTES, *RING.end()), |bytes| (bytes, MAX_RING)),
            decoded: Arc::default(),
        }
    }

    /// The budget that streams claim their memory of.
    pub(super) fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// The threads that decode.
    pub(super) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Rows of batches that were made since the start, padding included.
    pub(super) fn decoded(&self) -> u64 {
        self.decoded.load(Ordering::Relaxed)
    }

    /// A stream of one share of `plan` from `step` on.
    pub(super) async fn subscribe(
        &self,
        offer: &Arc<Offer>,
        plan: &Arc<Plan>,
        share: Share,
        step: u64,
        outgoing: u64,
    ) -> Result<Subscriber> {
        plan.check_share(share)?;
        let need = offer.prepared.need(plan, share, PREFETCH);
        let batch = need.batches / (PREFETCH as u64 + 2);
        let out = outgoing.saturating_mul(batch);
        let key = (Arc::as_ptr(offer) as usize, plan.epoch(), share.rank, share.world);
        if self.find(key, step).is_some() {
            let claim = self.claims.claim(out).await?;
            if let Some(line) = self.find(key, step) {
                return Ok(Subscriber { line, step, _outgoing: claim });
            }
        }
        // What it needs at least is claimed in one piece: two streams that each held a part would wait for each other.
        let least = need.total().saturating_add(RING.start().saturating_mul(batch));
        let mut memory = self.claims.claim(out.saturating_add(least)).await?;
        let claim = memory.split(out).ok_or_else(|| Error::Closed { why: "a claim is too small".to_owned() })?;
        // Others may have begun the same line while this one waited.
        if let Some(line) = self.find(key, step) {
            return Ok(Subscriber { line, step, _outgoing: claim });
        }
        // Streams that begin together see the same memory free: each takes what it can get, the ring first.
        let spare = || self.claims.budget().saturating_sub(self.claims.used()) / 4;
        let (bytes, most) = self.ring;
        let mut ring = (bytes.min(spare()) / batch.max(1)).clamp(*RING.start(), most);
        while ring > *RING.start() {
            if let Some(more) = self.claims.try_spare((ring - RING.start()).saturating_mul(batch)) {
                memory.add(more);
                break;
            }
            ring = (ring / 2).max(*RING.start());
        }
        let keep = usize::try_from(ring.saturating_add(outgoing).saturating_mul(batch)).unwrap_or(usize::MAX);
        let batches = usize::try_from(need.batches).unwrap_or(usize::MAX).saturating_add(keep);
        let (allocator, held) = self.allocator(batches, batch, &mut memory);
        let mut ahead = AHEAD.min(spare());
        match self.claims.try_spare(ahead) {
            Some(more) => memory.add(more),
            None => ahead = 0,
        }
        let pool = self.claims.reuse(batches, held);
        let budget = usize::try_from(need.total().saturating_add(ahead)).unwrap_or(usize::MAX);
        let workers = Arc::clone(&self.workers);
        let run = Run { share, from: step, workers, allocator, budget, keep, pool, prefetch: PREFETCH };
        let batches = offer.prepared.batches(Arc::clone(plan), run)?;
        let line = Arc::new(Line {
            offer: Arc::clone(offer),
            steps: plan.steps(),
            ring: Mutex::new(Ring { batches: VecDeque::new(), most: ring as usize, next: step, failed: None }),
            source: tokio::sync::Mutex::new(batches),
            decoded: Arc::clone(&self.decoded),
            memory: Some(memory),
            held,
            claims: Arc::clone(&self.claims),
        });
        let mut lines = self.lock();
        lines.retain(|_, lines| {
            lines.retain(|line| line.strong_count() > 0);
            !lines.is_empty()
        });
        lines.entry(key).or_default().push(Arc::downgrade(&line));
        drop(lines);
        Ok(Subscriber { line, step, _outgoing: claim })
    }

    /// Where a line builds batches of `batch` bytes, `bytes` of them at once, and the bytes that are then held. What small ones take
    /// beyond is added to `memory`; where the budget has no room for it, each has a slab of its own.
    fn allocator(&self, bytes: usize, batch: u64, memory: &mut Claim) -> (Arc<dyn HostAllocator>, u64) {
        let Some(shared) = &self.shared else { return (Arc::new(SystemAllocator), bytes as u64) };
        let held = Shelf::bytes(bytes, usize::try_from(batch).unwrap_or(usize::MAX));
        match self.claims.try_spare((held - bytes) as u64) {
            Some(more) => {
                memory.add(more);
                (Arc::new(Shelf::new(Arc::clone(shared))), held as u64)
            }
            None => (Arc::<SharedAllocator>::clone(shared), bytes as u64),
        }
    }

    /// A line that has `step` in its ring, or makes it next.
    fn find(&self, key: Key, step: u64) -> Option<Arc<Line>> {
        let lines = self.lock();
        let lines = lines.get(&key)?.iter().filter_map(Weak::upgrade);
        lines.into_iter().find(|line| line.lock().has(step))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Weak<Line>>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The production of one share, and the last batches of it.
#[derive(Debug)]
struct Line {
    offer: Arc<Offer>,
    steps: u64,
    ring: Mutex<Ring>,
    source: tokio::sync::Mutex<Batches>,
    decoded: Arc<AtomicU64>,
    memory: Option<Claim>,
    /// Bytes of it that its pool holds at most.
    held: u64,
    claims: Arc<Claims>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let pool = self.source.get_mut().pool();
        if let Some(memory) = self.memory.take() {
            self.claims.keep(pool, memory, self.held);
        }
    }
}

#[derive(Debug)]
struct Ring {
    batches: VecDeque<Arc<Encoded>>,
    /// Batches that are remembered.
    most: usize,
    /// The step that is made next.
    next: u64,
    failed: Option<Status>,
}

impl Ring {
    fn first(&self) -> u64 {
        self.next - self.batches.len() as u64
    }

    fn has(&self, step: u64) -> bool {
        self.failed.is_none() && (self.first()..=self.next).contains(&step)
    }

    fn get(&self, step: u64) -> Option<Arc<Encoded>> {
        let at = usize::try_from(step.checked_sub(self.first())?).ok()?;
        self.batches.get(at).map(Arc::clone)
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a subscriber finds.
#[derive(Debug)]
pub(super) enum Found {
    /// The next batch; its generation is the stream's affair.
    Batch(Arc<Encoded>),
    /// The epoch is over.
    End,
    /// Others are so far ahead that the batch is gone: subscribe again from this step.
    Behind(u64),
}

/// One stream's place in a line.
#[derive(Debug)]
pub(super) struct Subscriber {
    line: Arc<Line>,
    step: u64,
    _outgoing: Claim,
}

impl Subscriber {
    /// The next batch of the stream. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Result<Found, Status> {
        if self.step >= self.line.steps {
            return Ok(Found::End);
        }
        if let Some(found) = self.ready()? {
            return Ok(found);
        }
        let line = Arc::clone(&self.line);
        let mut source = line.source.lock().await;
        // Somebody else may have made it meanwhile.
        if let Some(found) = self.ready()? {
            return Ok(found);
        }
        let made = match source.next().await {
            Some(Ok(batch)) => {
                // From here on it is the ring's, whose memory is claimed apart.
                batch.deliver();
                self.line.decoded.fetch_add(batch.rows as u64, Ordering::Relaxed);
                encode(&batch, &self.line.offer.columns, None)
            }
            Some(Err(error)) => Err(error),
            None => Err(Error::Closed { why: format!("the data ended before step {}", self.step) }),
        };
        let mut ring = self.line.lock();
        match made {
            Ok(batch) => {
                if ring.batches.len() >= ring.most {
                    ring.batches.pop_front();
                }
                ring.batches.push_back(Arc::new(batch));
                ring.next += 1;
            }
            Err(error) => {
                tracing::warn!(error = %error.chain(), "a stream failed");
                ring.failed = Some(to_status(&error));
            }
        }
        drop(ring);
        drop(source);
        match self.ready()? {
            Some(found) => Ok(found),
            None => Err(Status::internal("a batch was made out of order; this is a bug in bowstring")),
        }
    }

    fn ready(&mut self) -> Result<Option<Found>, Status> {
        let ring = self.line.lock();
        if let Some(batch) = ring.get(self.step) {
            drop(ring);
            self.step += 1;
            return Ok(Some(Found::Batch(batch)));
        }
        if let Some(status) = &ring.failed {
            return Err(status.clone());
        }
        Ok((self.step < ring.first()).then_some(Found::Behind(self.step)))
    }

    /// Where the data is.
    pub(super) fn offer(&self) -> &Arc<Offer> {
        &self.line.offer
    }
}
