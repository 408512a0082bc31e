//! Ranks on this host: the same streams, through shared memory.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;

use super::body::Message;
use super::core::{Core, Via};
use crate::error::Result;
use crate::flight::shm::{Listener, ListenerOptions, Outgoing, Refusal, Source};
use crate::flight::status::to_status;
use crate::memory::{HostBuffer, Pool, SharedAllocator, SlabAllocator};

/// Batches that one rank may hold before it gives some back.
pub(super) const WINDOW: u16 = 8;

/// The largest body that goes through the socket where no slab can be had, in bytes: with its header it is within what a rank takes.
const MAX_INLINE: usize = 32 << 20;

/// A socket for ranks on this host, if the system has such sockets.
pub(super) fn listen(allocator: &Arc<SharedAllocator>) -> Option<Listener> {
    let options = ListenerOptions { window: WINDOW, ..ListenerOptions::default() };
    // Where the system gives no such memory, that is to be known now, not in the first stream.
    let slabs = Arc::new(SlabAllocator(Arc::clone(allocator)));
    let tried = gathered(&Pool::new(slabs, usize::MAX), std::iter::empty(), 1);
    match tried.and_then(|_| Listener::bind(Arc::clone(allocator), options)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(error = %error.chain(), "ranks of this host get no shared memory");
            None
        }
    }
}

/// Serves tickets on `listener` for as long as the future is polled.
pub(super) async fn serve(listener: Listener, core: Arc<Core>, allocator: Arc<SharedAllocator>) {
    let open = move |ticket: Bytes| {
        let (core, allocator) = (Arc::clone(&core), Arc::clone(&allocator));
        async move { source(&core, &ticket, allocator).await.map_err(|status| refusal(&status)) }
    };
    listener.run(open, std::future::pending()).await;
}

async fn source(core: &Arc<Core>, ticket: &[u8], allocator: Arc<SharedAllocator>) -> Result<Source, tonic::Status> {
    let messages = core.open(Via::Local, ticket).await?;
    // What does not lie in one slab is put together in another. Its size is bounded by the claim of the stream.
    let pool = Pool::new(Arc::new(SlabAllocator(Arc::clone(&allocator))), usize::MAX);
    Ok(messages
        .filter_map(move |message| {
            let outgoing = match message {
                // A rank of this host has the schema from the announcement.
                Ok(Message::Schema(_)) => None,
                Ok(Message::Rows(..)) => Some(Err(refusal(&no_rows()))),
                Ok(Message::Batch(batch, metadata)) => {
                    let header = framed(&batch.header, &metadata);
                    let (slab, exclusive) = match batch.slabs.as_slice() {
                        [slab] if batch.tail.is_empty() && allocator.locate(slab).is_some() => {
                            (Ok(Arc::clone(slab)), false)
                        }
                        _ => (gathered(&pool, batch.body(), batch.body_len()).map(Arc::new), true),
                    };
                    Some(match slab {
                        Ok(slab) => Ok(Outgoing { header, slab: Some(slab), exclusive, extra: Vec::new() }),
                        // Not even that many files can be opened: through the socket, as over TCP.
                        Err(_) if batch.body_len() <= MAX_INLINE => {
                            let extra = batch.body().filter(|part| !part.is_empty()).collect();
                            Ok(Outgoing { header, slab: None, exclusive: false, extra })
                        }
                        Err(error) => Err(refusal(&to_status(&error))),
                    })
                }
                Err(status) => Some(Err(refusal(&status))),
            };
            std::future::ready(outgoing)
        })
        .boxed())
}

/// Stored rows lie in no slab.
fn no_rows() -> tonic::Status {
    tonic::Status::invalid_argument("stored rows come over Flight only")
}

/// The length of the header, the header, the metadata.
fn framed(header: &[u8], metadata: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(4 + header.len() + metadata.len());
    framed.put_u32_le(header.len() as u32);
    framed.extend_from_slice(header);
    framed.extend_from_slice(metadata);
    framed.freeze()
}

/// The parts of a body one after another in a slab of their own.
fn gathered(pool: &Arc<Pool>, parts: impl Iterator<Item = Bytes>, length: usize) -> Result<HostBuffer> {
    let claim = pool.try_reserve(crate::memory::buffer_bytes(length));
    let claim = claim.ok_or_else(|| crate::Error::Closed { why: "no memory for a batch".to_owned() })?;
    let mut slab = claim.allocate(length.max(1))?;
    let mut at = 0;
    for part in parts {
        slab[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    Ok(slab)
}

/// A status as the last word of a connection.
fn refusal(status: &tonic::Status) -> Refusal {
    let code = i32::from(status.code()).unsigned_abs();
    Refusal { code, message: crate::flight::status::to_text(status) }
}
