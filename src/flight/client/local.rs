//! A server on this host: batches through shared memory, used in place.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use super::connection::Failure;
use crate::error::{Error, Result};
use crate::flight::shm::{self, ConnectOptions, Incoming, Refusal};
use crate::flight::status::{NO_SLAB, from_status, from_text};
use crate::flight::wire::{Columns, decode};
use crate::memory::{HostBuffer, Pool, buffer_bytes};
use crate::tensor::Batch;

/// Most batches of the server that are held here; further ones that the consumer keeps are copied.
const WINDOW: u16 = 8;
/// Number of these that are reserved for batches on their way.
const SPARE: usize = 3;

/// Location of a server's shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Local {
    /// Name of the abstract unix socket.
    pub socket: String,
    /// Identity of the host for sockets without files: its boot and its network namespace.
    pub host: String,
    /// Version of the frames on that socket; 0 if a server does not give one.
    #[serde(default)]
    pub version: u16,
}

impl Local {
    /// Describes `socket` on this host; `None` if the host cannot be identified.
    pub(crate) fn here(socket: String) -> Option<Self> {
        host().map(|host| Self { socket, host, version: shm::wire::VERSION })
    }

    /// Returns true if this program, on `host`, can use it.
    fn is_for(&self, host: Option<&str>) -> bool {
        host == Some(&self.host) && self.version == shm::wire::VERSION
    }
}

/// Identifies the scope of sockets without files: one boot and one network namespace.
fn host() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(format!("{} {}", boot.trim(), network.display()))
}

/// Connects to `local` if it is on this host and of this version. `None` if it is not, or cannot be reached: TCP is used then.
pub(super) async fn connect(timeout: Duration, local: &Local, ticket: Bytes) -> Result<Option<Stream>, Failure> {
    if !local.is_for(host().as_deref()) {
        return Ok(None);
    }
    // At least a few of the server's heartbeats. The caller enforces a shorter timeout itself.
    let deadline = timeout.clamp(Duration::from_secs(6), Duration::from_secs(30));
    let options = ConnectOptions { window: WINDOW, deadline, ..ConnectOptions::default() };
    match shm::connect(&local.socket, ticket, options).await {
        Ok(receiver) => Ok(Some(Stream { receiver, held: Vec::new(), unusable: false })),
        Err(error) => {
            tracing::debug!(error = %error.chain(), "no shared memory; TCP instead");
            Ok(None)
        }
    }
}

/// Batches through shared memory.
#[derive(Debug)]
pub(super) struct Stream {
    receiver: shm::Receiver,
    /// Bodies that may still be in use.
    held: Vec<Weak<HostBuffer>>,
    /// True if it ended for a reason that TCP would not have had.
    unusable: bool,
}

impl Stream {
    /// Returns true if it ended for a reason that a stream over TCP would not have had.
    pub(super) fn is_unusable(&self) -> bool {
        self.unusable
    }

    /// Returns the server's next message; `None` after the last.
    pub(super) async fn next(&mut self, peer: &str) -> Result<Option<Incoming>, Failure> {
        let Some(incoming) = self.receiver.next().await else { return Ok(None) };
        incoming.map(Some).map_err(|error| {
            // Without a refusal the cause is in this process: a file that cannot be opened or mapped, a limit, a broken connection.
            self.unusable = refusal(&error).is_none_or(|refusal| refusal.code == NO_SLAB);
            failed(peer, error)
        })
    }

    /// Decodes the batch of a message. If the consumer keeps many, it is copied, which may wait for memory: for the consumer, not for
    /// the server.
    pub(super) async fn batch(
        &mut self,
        peer: &str,
        Incoming { header, body, extra }: Incoming,
        columns: &Columns,
        pool: &Arc<Pool>,
    ) -> Result<Batch, Failure> {
        let malformed = || {
            Failure::Final(Error::Mismatch {
                what: format!("a batch through shared memory from {peer}"),
                expected: "a header and a body".to_owned(),
                found: "something else".to_owned(),
                hint: "the server is of another version".to_owned(),
            })
        };
        let (length, rest) = header.split_at_checked(4).ok_or_else(malformed)?;
        let length = length.try_into().map(u32::from_le_bytes).map_err(|_| malformed())?;
        let (header, metadata) = rest.split_at_checked(length as usize).ok_or_else(malformed)?;
        self.held.retain(|held| held.strong_count() > 0);
        let body = match body {
            Some(body) if self.held.len() + SPARE < usize::from(WINDOW) => {
                self.held.push(Arc::downgrade(&body));
                body
            }
            // The consumer keeps batches: it gets copies, so that the server gets its memory back.
            Some(body) => owned(&body, pool).await?,
            // The server cannot open more files.
            None if !extra.is_empty() => owned(&extra, pool).await?,
            None => return Err(malformed()),
        };
        decode(columns, header, metadata, &body).map_err(Failure::Final)
    }
}

/// Copies a body into memory of this process.
async fn owned(body: &[u8], pool: &Arc<Pool>) -> Result<Arc<HostBuffer>, Failure> {
    let claim = pool.reserve(buffer_bytes(body.len())).await.map_err(Failure::Final)?;
    let mut own = claim.allocate(body.len()).map_err(Failure::Final)?;
    own.copy_from_slice(body);
    Ok(Arc::new(own))
}

fn refusal(error: &Error) -> Option<&Refusal> {
    match error {
        Error::Remote { source: Some(source), .. } => source.downcast_ref(),
        _ => None,
    }
}

/// Converts the server's refusal or a broken connection into a failure.
fn failed(peer: &str, error: Error) -> Failure {
    match refusal(&error) {
        Some(refusal) => {
            let status = from_text(refusal.code, &refusal.message);
            let error = from_status(peer, &status);
            Failure::of(&status, error)
        }
        None => Failure::Transient(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_of_another_host_or_version_is_left_alone() {
        let here = Local::here("socket".to_owned()).unwrap();
        let host = host();
        assert!(here.is_for(host.as_deref()) && !here.is_for(None) && !here.is_for(Some("elsewhere")));
        let announced = serde_json::to_value(&here).unwrap();
        let with = |change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
            let mut announced = announced.clone();
            change(announced.as_object_mut().unwrap());
            serde_json::from_value::<Local>(announced).unwrap()
        };
        assert_eq!(with(&|_| ()), here);
        assert!(!with(&|local| drop(local.remove("version"))).is_for(host.as_deref()));
        assert!(!with(&|local| drop(local.insert("version".to_owned(), 99.into()))).is_for(host.as_deref()));
    }
}
