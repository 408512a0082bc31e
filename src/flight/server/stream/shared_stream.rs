//! A line, the batches of one share, made on demand; and a stream's subscription to it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use tonic::Status;

use super::budget::{ByteBudget, Claim};
use super::shared_plan::SharedPlan;
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::catalog::open_dataset::OpenDataset;
use crate::flight::status::to_status;
use crate::flight::wire::{Encoded, encode};
use crate::pipeline::{Batches, Probe, Trail};

/// The production of one share, and its last batches.
#[derive(Debug)]
pub(crate) struct SharedStream {
    pub(crate) steps: u64,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) source: tokio::sync::Mutex<Batches>,
    /// What the next batch waits for, for those who do not make it.
    pub(crate) probe: Probe,
    pub(crate) memory: Option<Claim>,
    /// Bytes of each batch if they share slabs; else 0.
    pub(crate) together: usize,
    pub(crate) claims: Arc<ByteBudget>,
    /// Tenant that the memory is charged to.
    pub(crate) tenant: Tenant,
    /// True if other tenants read it too: they may have its pages mapped, so the memory must not be reused.
    pub(crate) mixed: AtomicBool,
    /// Reader of the row groups, if it serves other ranks too.
    pub(crate) _plan: Option<Arc<SharedPlan>>,
    // Dropped last: plans are found by its address, which the next dataset may get.
    pub(crate) offer: Arc<OpenDataset>,
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        let pool = self.source.get_mut().pool();
        if let Some(memory) = self.memory.take() {
            if *self.mixed.get_mut() {
                // The pool's memory goes first.
                drop(pool);
                drop(memory);
            } else {
                self.claims.keep(pool, self.offer.fingerprint, memory, self.together);
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) batches: VecDeque<(Arc<Encoded>, Trail)>,
    /// Most batches that are remembered.
    pub(crate) most: usize,
    /// Next step to make.
    pub(crate) next: u64,
    pub(crate) failed: Option<Status>,
    /// True if the other ranks of the plan went on without it: nothing more is made.
    pub(crate) left: bool,
}

impl Ring {
    fn first(&self) -> u64 {
        self.next - self.batches.len() as u64
    }

    pub(crate) fn has(&self, step: u64) -> bool {
        self.failed.is_none() && !self.left && (self.first()..=self.next).contains(&step)
    }

    fn get(&self, step: u64) -> Option<(Arc<Encoded>, Trail)> {
        let at = usize::try_from(step.checked_sub(self.first())?).ok()?;
        self.batches.get(at).cloned()
    }
}

impl SharedStream {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of a subscriber's request.
#[derive(Debug)]
pub(crate) enum Found {
    /// The next batch, and its way; the stream checks the generation.
    Batch(Arc<Encoded>, Trail),
    /// The epoch is over.
    End,
    /// Others are so far ahead that the batch is gone: subscribe again.
    Behind,
    /// The other ranks of the plan went on without this one: subscribe again, alone.
    Left,
}

/// One stream's position in a line.
#[derive(Debug)]
pub(crate) struct Subscriber {
    line: Arc<SharedStream>,
    step: u64,
    outgoing: Option<Claim>,
}

impl Subscriber {
    pub(crate) fn new(line: Arc<SharedStream>, step: u64, tenant: &Tenant, outgoing: Claim) -> Self {
        if line.tenant != *tenant {
            line.mixed.store(true, Ordering::Relaxed);
        }
        Self { line, step, outgoing: Some(outgoing) }
    }

    /// Takes the claim on batches on their way out. It is needed as long as there are any, even if the rest was revoked.
    pub(crate) fn outgoing(&mut self) -> Option<Claim> {
        self.outgoing.take()
    }

    /// Returns a look at what the next batch waits for.
    pub(crate) fn probe(&self) -> Probe {
        self.line.probe.clone()
    }

    /// Returns the next batch of the stream. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Found, Status> {
        if self.step >= self.line.steps {
            return Ok(Found::End);
        }
        if let Some(found) = self.ready()? {
            return Ok(found);
        }
        let line = Arc::clone(&self.line);
        let mut source = line.source.lock().await;
        // Another subscriber may have made it in the meantime.
        if let Some(found) = self.ready()? {
            return Ok(found);
        }
        let made = match source.next().await {
            Some(Ok(batch)) => {
                // From here on it belongs to the ring, whose memory is claimed separately.
                batch.deliver();
                let trail = source
                    .trail()
                    .ok_or_else(|| Status::internal("a batch without a way; this is a bug in bowstring"))?;
                encode(&batch, &self.line.offer.columns, None).map(|batch| (Arc::new(batch), trail))
            }
            Some(Err(_)) if source.is_behind() => {
                self.line.lock().left = true;
                return Ok(Found::Left);
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
                ring.batches.push_back(batch);
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
        if let Some((batch, trail)) = ring.get(self.step) {
            drop(ring);
            self.step += 1;
            return Ok(Some(Found::Batch(batch, trail)));
        }
        if let Some(status) = &ring.failed {
            return Err(status.clone());
        }
        if ring.left {
            return Ok(Some(Found::Left));
        }
        Ok((self.step < ring.first()).then_some(Found::Behind))
    }
}
