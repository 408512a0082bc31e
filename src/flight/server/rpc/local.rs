//! Ranks on this host: the same streams, through shared memory.

use std::any::Any;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{FutureExt, StreamExt};

use super::body::Message;
use super::core::{Core, Via, WINDOW};
use crate::error::{Error, Result};
use crate::flight::server::stream::hangup::Hangup;
use crate::flight::shm::{Listener, ListenerOptions, Outgoing, Refusal, Source};
use crate::flight::status::{NO_SLAB, to_status};
use crate::memory::{HostBuffer, Pool, SharedAllocator, SlabAllocator, buffer_bytes};

/// Most sizes of slabs that a stream uses for bodies that are assembled.
const SIZES: usize = 16;

/// Largest body that goes through the socket if no slab is available, in bytes: a rank takes some of them ahead of its budget.
const MAX_INLINE: usize = 8 << 20;

/// Opens a socket for ranks on this host, if the system supports such sockets and shared memory.
pub(crate) fn listen(allocator: &Arc<SharedAllocator>) -> Option<Listener> {
    let options = ListenerOptions { window: WINDOW, ..ListenerOptions::default() };
    // Tried now, so that a system without such memory is detected before the first stream.
    let tried = Gatherer::new(allocator).gather(std::iter::empty(), 1);
    match tried.and_then(|_| Listener::bind(Arc::clone(allocator), options)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(error = %error.chain(), "ranks of this host get no shared memory");
            None
        }
    }
}

/// Serves tickets on `listener` for as long as the future is polled.
pub(crate) async fn serve(listener: Listener, core: Arc<Core>, allocator: Arc<SharedAllocator>) {
    let open = move |ticket: Bytes| {
        let (core, allocator) = (Arc::clone(&core), Arc::clone(&allocator));
        async move { source(&core, &ticket, allocator).await.map_err(|status| refusal(&status)) }
    };
    listener.run(open, std::future::pending()).await;
}

async fn source(core: &Arc<Core>, ticket: &[u8], allocator: Arc<SharedAllocator>) -> Result<Source, tonic::Status> {
    let hangup = Hangup::default();
    let messages = core.open(Via::Local, (None, Some(hangup.clone())), ticket).await?;
    let ended = hangup.asked().map(|()| refusal(&unread())).boxed();
    // A body that is not in one slab is assembled in another.
    let mut gatherer = Gatherer::new(&allocator);
    let batches = messages
        .filter_map(move |message| {
            let outgoing = match message {
                // A rank of this host has the schema from the description of the stream.
                Ok(Message::Schema(_)) => None,
                Ok(Message::Rows(..)) => Some(Err(refusal(&no_rows()))),
                Ok(Message::Batch(batch, metadata, departed)) => {
                    let paid: Option<Box<dyn Any + Send + Sync>> = Some(Box::new(departed));
                    let header = framed(&batch.header, &metadata);
                    let (slab, exclusive) = match batch.slabs.as_slice() {
                        [slab] if batch.tail.is_empty() && allocator.locate(slab).is_some() => {
                            (Ok(Arc::clone(slab)), false)
                        }
                        _ => (gatherer.gather(batch.body(), batch.body_len()).map(Arc::new), true),
                    };
                    Some(match slab {
                        Ok(slab) => Ok(Outgoing { header, slab: Some(slab), exclusive, extra: Vec::new(), paid }),
                        // Goes through the socket, as over TCP.
                        Err(error) if (1..=MAX_INLINE).contains(&batch.body_len()) => {
                            tracing::debug!(error = %error.chain(), "a batch goes without shared memory");
                            let extra = batch.body().filter(|part| !part.is_empty()).collect();
                            Ok(Outgoing { header, slab: None, exclusive: false, extra, paid })
                        }
                        // The rank tries again, then over TCP.
                        Err(error) => {
                            let (bytes, why) = (batch.body_len(), error.chain());
                            let message = format!("no shared memory for a batch of {bytes} bytes: {why}");
                            Err(Refusal { code: NO_SLAB, message })
                        }
                    })
                }
                Err(status) => Some(Err(refusal(&status))),
            };
            std::future::ready(outgoing)
        })
        .boxed();
    Ok(Source { batches, ended })
}

/// Status for a rank that kept batches and took no further ones, when it comes back.
fn unread() -> tonic::Status {
    let why = "nothing was read of this stream while others waited for memory; go on from the next step".to_owned();
    to_status(&Error::Closed { why })
}

/// Refuses stored rows, which are in no slab.
fn no_rows() -> tonic::Status {
    tonic::Status::invalid_argument("stored rows come over Flight only")
}

/// Frames a message: the length of the header, the header, the metadata.
fn framed(header: &[u8], metadata: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(4 + header.len() + metadata.len());
    framed.put_u32_le(header.len() as u32);
    framed.extend_from_slice(header);
    framed.extend_from_slice(metadata);
    framed.freeze()
}

/// Assembles bodies in slabs of one stream.
struct Gatherer {
    slabs: Arc<SlabAllocator>,
    /// Sized for the batches that a rank may hold, and two more.
    pool: Arc<Pool>,
    /// Largest body that the pool is sized for.
    largest: usize,
}

impl Gatherer {
    fn new(allocator: &Arc<SharedAllocator>) -> Self {
        let slabs = Arc::new(SlabAllocator(Arc::clone(allocator)));
        Self { pool: Pool::new(Arc::clone(&slabs) as _, 0), slabs, largest: 0 }
    }

    /// Copies the parts of a body one after another into a slab of their own.
    fn gather(&mut self, parts: impl Iterator<Item = Bytes>, length: usize) -> Result<HostBuffer> {
        if length <= MAX_INLINE && self.slabs.0.is_short() {
            return Err(Error::Closed { why: "most of the files that may be open are slabs".to_owned() });
        }
        // Only a few sizes, so that slabs are reused, and some room above the largest, so that the pool is seldom replaced.
        if length >= self.largest {
            self.largest = (length + length / 4).max(SIZES);
            let budget = (usize::from(WINDOW) + 2) * buffer_bytes(self.largest + self.largest / SIZES);
            self.pool = Pool::new(Arc::clone(&self.slabs) as _, budget);
        }
        let room = length.max(1).next_multiple_of(self.largest / SIZES);
        let claim = self.pool.try_reserve(buffer_bytes(room));
        let claim = claim.ok_or_else(|| Error::Closed { why: "no memory for a batch".to_owned() })?;
        let mut slab = claim.allocate_in(length.max(1), room)?;
        let mut at = 0;
        for part in parts {
            slab[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        Ok(slab)
    }
}

/// Turns a status into the last message of a connection.
fn refusal(status: &tonic::Status) -> Refusal {
    let code = i32::from(status.code()).unsigned_abs();
    Refusal { code, message: crate::flight::status::to_text(status) }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn bodies_of_many_lengths_lie_in_few_slabs() {
        let allocator = Arc::new(SharedAllocator::with_most(1000));
        let mut gatherer = Gatherer::new(&allocator);
        let (mut lent, mut state, mut largest) = (VecDeque::new(), 1_u64, 0);
        for _ in 0..2000 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let length = 1 + (state >> 33) as usize % (1 << 20);
            largest = length.max(largest);
            let part = Bytes::from(vec![state as u8; length]);
            let slab = gatherer.gather(std::iter::once(part.clone()), length).unwrap();
            assert!(allocator.locate(&slab).is_some() && *slab == *part);
            lent.push_back(slab);
            if lent.len() > usize::from(WINDOW) {
                lent.pop_front();
            }
            let most = (usize::from(WINDOW) + 2) * (largest + largest / 4) * 9 / 8;
            assert!(gatherer.pool.peak() <= most.max(1 << 20), "{} bytes", gatherer.pool.peak());
        }
        assert!(allocator.slabs_held() <= 2 * (SIZES + usize::from(WINDOW)), "{} slabs", allocator.slabs_held());
    }

    #[test]
    fn small_bodies_leave_the_last_files_to_others() {
        let allocator = Arc::new(SharedAllocator::with_most(4));
        let mut gatherer = Gatherer::new(&allocator);
        let mut gather = |length| gatherer.gather(std::iter::once(Bytes::from(vec![1; length])), length);
        let held: Vec<_> = (0..6).map(|_| gather(5000).unwrap()).collect();
        assert!(gather(5000).is_err(), "{} slabs", held.len());
        assert!(gather(MAX_INLINE + 1).is_ok(), "what is too large for the socket is a slab");
    }
}
