//! Batches of one epoch from a given step on, across failures of servers.
//!
//! ```text
//!   connect ─► GetFlightInfo(step) ─► ticket ─► DoGet ─► read each body into its slab ─► decode in place ─► channel
//!      ▲                                                        │ a cut, a stall, a server that drains
//!      └─────────── the next address, from the next step ───────┘
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::datatypes::Schema;
use arrow::ipc::convert::try_schema_from_flatbuffer_bytes;
use arrow::ipc::{MessageHeader, root_as_message};
use arrow_flight::{FlightDescriptor, FlightInfo};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::address::Address;
use super::connection::{Connection, Dial, Failure};
use super::local::{self, Local};
use crate::error::{Error, Result};
use crate::flight::grpc_codec::{Event, Limits, Reader};
use crate::flight::request::StreamRequest;
use crate::flight::wire::{Columns, decode};
use crate::manifest::Fingerprint;
use crate::memory::{HostBuffer, Pool};
use crate::pipeline::ColumnKinds;
use crate::plan::PlanSpec;
use crate::store::caller::{Credentials, Transport};
use crate::tensor::Batch;
use crate::trace::Root;

/// Most bytes of a message's header.
const HEADER: usize = 16 << 20;
/// Pauses between attempts.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// A server's description of a stream, as the `app_metadata` of its FlightInfo.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StreamInfo {
    /// The data.
    pub fingerprint: Fingerprint,
    /// The fingerprint that a former version gave the data, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Fingerprint>,
    /// The resolved plan.
    pub spec: PlanSpec,
    /// Steps of an epoch.
    pub steps: u64,
    /// Rows of an epoch over all ranks.
    pub rows: u64,
    /// Version of the server.
    pub server: String,
    /// Location of the same stream in shared memory, for ranks on the server's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<Local>,
    /// What the server's options made of the columns; of a server that does not say it, the client's own options decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Arc<ColumnKinds>>,
}

impl StreamInfo {
    /// The first thing in which `other` is a stream of other rows: here and there, and the remedy.
    fn differs(&self, other: &Self) -> Option<(String, String, &'static str)> {
        if self.fingerprint != other.fingerprint {
            let say = |it: &Self| format!("fingerprint {}", it.fingerprint);
            let hint = "replicas must serve the same files, and files must not change during an epoch";
            return Some((say(self), say(other), hint));
        }
        let (ours, theirs) = (self.options(), other.options());
        let keys: BTreeSet<&String> =
            ours.keys().chain(theirs.keys()).filter(|key| ours.get(*key) != theirs.get(*key)).collect();
        let say = |options: &Map<String, Value>| {
            let one = |key: &&String| format!("{key} {}", options.get(*key).unwrap_or(&Value::Null));
            keys.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let hint = "replicas must serve a dataset with the same options, and these must not change during an epoch";
        (!keys.is_empty()).then(|| (say(&ours), say(&theirs), hint))
    }

    /// What decides the rows of a step, beside the data.
    fn options(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut options)) = serde_json::to_value(&self.spec) else { return Map::new() };
        options.insert("steps".to_owned(), self.steps.into());
        options
    }
}

/// The servers to ask, and how.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) addresses: Vec<Address>,
    pub(super) credentials: Credentials,
    pub(super) dial: Arc<dyn Dial>,
    /// Time without progress after which it fails.
    pub(super) timeout: Duration,
    /// Description of the current wait, to name the culprit.
    pub(super) waiting: Mutex<String>,
    /// The last attempt and its failure, until there is a connection again.
    pub(super) failure: Mutex<Option<String>>,
    /// Attempts that failed.
    pub(super) retries: AtomicU64,
}

impl Source {
    pub(super) fn wait_for(&self, what: String) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    pub(super) fn culprit(&self) -> String {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the longest silence accepted from one server: if there are others, half of the timeout is reserved for them.
    fn silence(&self) -> Duration {
        if self.addresses.len() > 1 { self.timeout / 2 } else { self.timeout }
    }

    /// Connects to `address`.
    pub(super) async fn connect(&self, address: &Address) -> Result<Connection, Failure> {
        let failure = || self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let before = failure().as_ref().map(|last| format!("; the last attempt, {last}")).unwrap_or_default();
        self.wait_for(format!("a connection to {}{before}", address.server()));
        let connection = Connection::open(address, &self.credentials, &*self.dial).await?;
        *failure() = None;
        Ok(connection)
    }

    /// Requests the description of the stream of `asked`; `serving` is true if its servers have served before.
    pub(super) async fn announced(&self, asked: &StreamRequest, serving: bool) -> Result<(StreamInfo, Columns)> {
        let asking = async {
            let mut attempts = Attempts { serving, ..Attempts::new(self) };
            loop {
                let address = attempts.address();
                match self.announced_at(address, asked).await {
                    Ok(found) => return Ok(found),
                    Err(failure) => attempts.failed(failure, 0).await?,
                }
            }
        };
        // The last attempt may have begun late, and connecting has a timeout of its own.
        let waited = self.timeout;
        tokio::time::timeout(waited, asking)
            .await
            .unwrap_or_else(|_| Err(Error::late("receive", self.culprit(), waited, waited)))
    }

    async fn announced_at(&self, address: &Address, asked: &StreamRequest) -> Result<(StreamInfo, Columns), Failure> {
        let connection = self.connect(address).await?;
        let asked = StreamRequest { dataset: address.dataset.clone(), ..asked.clone() };
        self.wait_for(format!("{} to open {}", connection.peer(), address.dataset));
        let info = connection.info(FlightDescriptor::new_cmd(asked.to_json()), None, self.silence()).await?;
        let announced = announced(&connection.peer(), &info).map_err(Failure::Final)?;
        Ok((announced, columns(&connection.peer(), info).map_err(Failure::Final)?))
    }
}

/// Time for the other servers to take the place of one that refuses: a wrong token or dataset is not taken for a server that is behind for
/// longer.
const REFUSED: Duration = Duration::from_secs(30);

/// Attempts at one address after another, until there was no progress for too long.
struct Attempts<'a> {
    source: &'a Source,
    at: usize,
    since: Instant,
    progress: u64,
    pause: Duration,
    /// The addresses whose servers have refused since then, by number, and the last refusal.
    refused: BTreeSet<usize>,
    refusal: Option<Error>,
    /// True if these servers have served this loader before: their certificates were trusted then.
    serving: bool,
}

impl<'a> Attempts<'a> {
    fn new(source: &'a Source) -> Self {
        Self {
            source,
            serving: false,
            at: 0,
            since: Instant::now(),
            progress: 0,
            pause: SHORTEST,
            refused: BTreeSet::new(),
            refusal: None,
        }
    }

    /// Returns the address of the current attempt.
    fn address(&self) -> &'a Address {
        &self.source.addresses[self.at % self.source.addresses.len()]
    }

    /// Waits before the next attempt; `progress` is any number that changes with progress.
    ///
    /// # Errors
    /// The failure, if no other attempt helps or each server has refused; the refusal, if one has and no other one has served for
    /// [`REFUSED`]; [`Error::Timeout`] with the failure, if there was no progress for too long.
    async fn failed(&mut self, failure: Failure, progress: u64) -> Result<()> {
        if progress != self.progress {
            (self.since, self.progress, self.pause) = (Instant::now(), progress, SHORTEST);
            self.refused.clear();
            self.refusal = None;
        }
        let address = self.address();
        let error = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Untrusted(error) if self.serving => error.chain().to_string(),
            Failure::Refused(error) | Failure::Untrusted(error) => {
                // New tokens and datasets come to one server before they come to the next.
                self.refused.insert(self.at % self.source.addresses.len());
                if self.refused.len() == self.source.addresses.len() {
                    return Err(error);
                }
                let told = error.chain().to_string();
                self.refusal = Some(error);
                told
            }
            Failure::Transient(error) => error.chain().to_string(),
        };
        self.source.retries.fetch_add(1, Ordering::Relaxed);
        self.at += 1;
        let waited = self.since.elapsed();
        // The whole timeout is used, with a last attempt at its end.
        let left = self.source.timeout.saturating_sub(waited);
        if waited >= REFUSED.min(self.source.timeout)
            && let Some(refusal) = self.refusal.take()
        {
            return Err(refusal);
        }
        if left.is_zero() {
            let culprit = format!("{address}: {error}");
            return Err(Error::late("receive", culprit, waited, self.source.timeout));
        }
        if self.progress == progress && self.pause == SHORTEST {
            tracing::warn!(%error, "{address} failed; trying for {} s more", left.as_secs());
        } else {
            tracing::debug!(%error, pause = ?self.pause, "another attempt");
        }
        self.source.wait_for(format!("{address}, which failed ({error})"));
        *self.source.failure.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(format!("at {}, failed: {error}", address.server()));
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(LONGEST);
        Ok(())
    }
}

pub(super) fn announced(peer: &str, info: &FlightInfo) -> Result<StreamInfo> {
    serde_json::from_slice(&info.app_metadata).map_err(|error| Error::Mismatch {
        what: format!("what {peer} says of the stream"),
        expected: "fingerprint, plan, steps and rows".to_owned(),
        found: error.to_string(),
        hint: "the server is not bowstring, or of another version".to_owned(),
    })
}

pub(super) fn columns(peer: &str, info: FlightInfo) -> Result<Columns> {
    let schema = info.try_decode_schema().map_err(|error| Error::Remote {
        peer: peer.to_owned(),
        what: "its schema cannot be read".to_owned(),
        source: Some(Box::new(error)),
    })?;
    Columns::from_arrow(&schema)
}

/// One epoch of one share.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) source: Arc<Source>,
    /// Its step is the next one to receive.
    pub(super) asked: StreamRequest,
    pub(super) announced: StreamInfo,
    pub(super) columns: Columns,
    pub(super) pool: Arc<Pool>,
    /// True if the last attempt through shared memory brought nothing, so that the next one uses TCP.
    pub(super) over_tcp: bool,
    /// The trace of the loader, if it is exported.
    pub(super) root: Option<Root>,
}

impl Receiver {
    /// Receives until the epoch is over or the receiving end is dropped.
    pub(super) async fn run(mut self, sender: mpsc::Sender<Result<Batch>>) {
        let source = Arc::clone(&self.source);
        let mut attempts = Attempts::new(&source);
        (attempts.progress, attempts.serving) = (self.asked.step, true);
        loop {
            let Err(failure) = self.attempt(attempts.address(), &sender).await else { return };
            if let Err(error) = attempts.failed(failure, self.asked.step).await {
                // Fails only after the loader was dropped.
                drop(sender.send(Err(error)).await);
                return;
            }
        }
    }

    async fn attempt(&mut self, address: &Address, sender: &mpsc::Sender<Result<Batch>>) -> Result<(), Failure> {
        let source = Arc::clone(&self.source);
        let connection = source.connect(address).await?;
        let silence = source.silence();
        self.asked.dataset.clone_from(&address.dataset);
        self.source.wait_for(format!("{} to open {}", connection.peer(), address.dataset));
        let info = connection.info(FlightDescriptor::new_cmd(self.asked.to_json()), self.root, silence).await?;
        // Its version is known by now.
        let named = connection.peer();
        let peer = named.as_str();
        let found = announced(peer, &info).map_err(Failure::Final)?;
        if let Some((expected, found, hint)) = self.announced.differs(&found) {
            let (what, hint) = (format!("dataset {} at {peer}", address.dataset), hint.to_owned());
            return Err(Failure::Final(Error::Mismatch { what, expected, found, hint }));
        }
        // Shared memory carries no schema: its stream begins with batches.
        let schema = FlightInfo { schema: info.schema.clone(), ..FlightInfo::default() };
        self.same_columns(peer, columns(peer, schema).map_err(Failure::Final)?.arrow()).map_err(Failure::Final)?;
        let ticket = info.endpoint.into_iter().next().and_then(|endpoint| endpoint.ticket);
        let ticket = ticket.ok_or_else(|| {
            Failure::Final(Error::Remote { peer: peer.to_owned(), what: "it gave no ticket".to_owned(), source: None })
        })?;
        let only_tcp = std::mem::take(&mut self.over_tcp) || source.credentials.transport == Transport::Tcp;
        if let Some(local) = found.local.filter(|_| !only_tcp)
            && let Some(mut stream) = local::connect(source.timeout, &local, ticket.ticket.clone()).await?
        {
            let step = self.asked.step;
            let received = self.attempt_local(peer, &mut stream, sender).await;
            let in_vain = stream.is_unusable() && self.asked.step == step;
            self.over_tcp = in_vain && source.credentials.transport != Transport::SharedMemory;
            return received;
        }
        if source.credentials.transport == Transport::SharedMemory {
            return Err(Failure::Final(Error::Remote {
                peer: peer.to_owned(),
                what: "it offers no shared memory to this process, which was asked for as the transport".to_owned(),
                source: None,
            }));
        }
        let waiting = |step: u64| source.wait_for(format!("{peer} to send step {step}"));
        waiting(self.asked.step);
        let mut body = connection.get(ticket.ticket, silence).await?;
        let limit = self.pool.budget();
        let mut reader = Reader::new(Limits { header: HEADER, body: limit });
        let mut message: Option<Incoming> = None;
        let mut schema = false;
        let mut heard = Instant::now();
        loop {
            let left = silence.saturating_sub(heard.elapsed());
            let piece = tokio::time::timeout(left, connection.piece(&mut body)).await;
            let piece = piece.map_err(|_| {
                Failure::Transient(Error::Timeout {
                    stage: "receive",
                    culprit: format!("{peer} to send step {}", self.asked.step),
                    waited: silence,
                })
            })?;
            let Some(mut piece) = piece? else {
                return if reader.is_idle() && self.asked.step == self.announced.steps {
                    Ok(())
                } else {
                    Err(Failure::Transient(Error::Remote {
                        peer: peer.to_owned(),
                        what: format!("the stream ended before step {} of {}", self.asked.step, self.announced.steps),
                        source: None,
                    }))
                };
            };
            loop {
                match reader.read(&mut piece).map_err(Failure::Final)? {
                    Event::More => break,
                    Event::Head(head) => {
                        // Waiting for memory is waiting for the consumer.
                        let reservation = self.pool.reserve(crate::memory::buffer_bytes(head.body));
                        let slab = reservation.await.and_then(|reservation| reservation.allocate(head.body));
                        let slab = slab.map_err(Failure::Final)?;
                        message = Some(Incoming { header: head.header, metadata: head.metadata, slab, filled: 0 });
                    }
                    Event::Body(some) => {
                        if let Some(message) = &mut message {
                            message.take(piece.split_to(some));
                        }
                    }
                    Event::End => {
                        let Some(message) = message.take() else { continue };
                        if !schema {
                            self.same_schema(peer, &message.header).map_err(Failure::Final)?;
                            schema = true;
                            continue;
                        }
                        let batch = message.decode(&self.columns).map_err(Failure::Final)?;
                        self.hand_over(peer, batch, sender).await?;
                        waiting(self.asked.step);
                    }
                }
            }
            heard = Instant::now();
        }
    }

    /// Passes a batch to the consumer if it is the next one.
    async fn hand_over(
        &mut self,
        peer: &str,
        batch: Batch,
        sender: &mpsc::Sender<Result<Batch>>,
    ) -> Result<(), Failure> {
        let expected = (self.asked.epoch, self.asked.step);
        if (batch.epoch, batch.step) != expected {
            return Err(Failure::Final(Error::Mismatch {
                what: format!("a batch from {peer}"),
                expected: format!("epoch {}, step {}", expected.0, expected.1),
                found: format!("epoch {}, step {}", batch.epoch, batch.step),
                hint: "this is a bug in the server".to_owned(),
            }));
        }
        self.source.wait_for("the consumer to take a batch".to_owned());
        if sender.send(Ok(batch)).await.is_err() {
            return Err(Failure::Final(Error::Closed { why: "nobody takes the batches".to_owned() }));
        }
        self.asked.step += 1;
        Ok(())
    }

    /// Receives through shared memory.
    async fn attempt_local(
        &mut self,
        peer: &str,
        stream: &mut local::Stream,
        sender: &mpsc::Sender<Result<Batch>>,
    ) -> Result<(), Failure> {
        let source = Arc::clone(&self.source);
        loop {
            source.wait_for(format!("{peer} to make step {}", self.asked.step));
            let next = tokio::time::timeout(source.silence(), stream.next(peer)).await;
            let next = next.map_err(|_| {
                Failure::Transient(Error::Timeout {
                    stage: "receive",
                    culprit: format!("{peer} to make step {}", self.asked.step),
                    waited: source.silence(),
                })
            })?;
            match next? {
                Some(incoming) => {
                    // Waiting for memory is waiting for the consumer.
                    source.wait_for("the consumer to give back a batch".to_owned());
                    let batch = stream.batch(peer, incoming, &self.columns, &self.pool).await?;
                    self.hand_over(peer, batch, sender).await?;
                }
                None if self.asked.step == self.announced.steps => return Ok(()),
                None => {
                    let what = format!("the stream ended before step {} of {}", self.asked.step, self.announced.steps);
                    return Err(Failure::Transient(Error::Remote { peer: peer.to_owned(), what, source: None }));
                }
            }
        }
    }

    fn same_schema(&self, peer: &str, header: &[u8]) -> Result<()> {
        let wrong = |found| self.other_schema(peer, found);
        let message = root_as_message(header).map_err(|error| wrong(error.to_string()))?;
        if message.header_type() != MessageHeader::Schema {
            return Err(wrong(format!("{:?}", message.header_type())));
        }
        let schema = try_schema_from_flatbuffer_bytes(header).map_err(|error| wrong(error.to_string()))?;
        self.same_columns(peer, &schema)
    }

    /// Checks the columns' names, types and order, which alone determine the layout of a batch's bytes.
    fn same_columns(&self, peer: &str, schema: &Schema) -> Result<()> {
        if schema == &**self.columns.arrow() { Ok(()) } else { Err(self.other_schema(peer, schema.to_string())) }
    }

    fn other_schema(&self, peer: &str, found: String) -> Error {
        Error::Mismatch {
            what: format!("schema of a stream from {peer}"),
            expected: self.columns.arrow().to_string(),
            found,
            hint: "it changed since the loader was opened; open it again".to_owned(),
        }
    }
}

/// A message on its way in.
struct Incoming {
    header: Vec<u8>,
    metadata: Vec<u8>,
    slab: HostBuffer,
    filled: usize,
}

impl Incoming {
    /// Copies a piece into the batch: the only copy after the socket.
    fn take(&mut self, piece: Bytes) {
        // The reader returns no more than the length that the slab was made for.
        let end = (self.filled + piece.len()).min(self.slab.len());
        let room = &mut self.slab[self.filled..end];
        room.copy_from_slice(&piece[..room.len()]);
        self.filled = end;
    }

    fn decode(self, columns: &Columns) -> Result<Batch> {
        decode(columns, &self.header, &self.metadata, &Arc::new(self.slab))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_of_other_rows_is_told_by_what_differs() {
        let of = |data: u8, seed: u64, steps: u64| StreamInfo {
            fingerprint: Fingerprint::from_bytes([data; 32]),
            former: None,
            spec: PlanSpec::new(seed, 8),
            steps,
            rows: 80,
            server: String::new(),
            local: None,
            kinds: None,
        };
        let ours = of(0, 1, 10);
        let same = StreamInfo { server: "another".to_owned(), ..of(0, 1, 10) };
        assert_eq!(ours.differs(&same), None);
        let (expected, found, hint) = ours.differs(&of(7, 1, 10)).unwrap();
        assert!(expected.contains(&"00".repeat(32)) && found.contains(&"07".repeat(32)) && hint.contains("same files"));
        let (expected, found, hint) = ours.differs(&of(0, 9, 11)).unwrap();
        assert_eq!((&*expected, &*found), ("seed 1, steps 10", "seed 9, steps 11"));
        assert!(hint.contains("same options"), "{hint}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_server_that_refuses_is_not_all_of_them() {
        let addresses = ["grpc://10.0.0.1:1/x", "grpc://10.0.0.2:1/x"].map(|url| Address::parse(url).unwrap());
        let source = Source {
            addresses: addresses.into(),
            credentials: Credentials::default(),
            dial: Arc::new(super::super::connection::Tcp),
            timeout: Duration::from_secs(30),
            waiting: Mutex::default(),
            failure: Mutex::default(),
            retries: AtomicU64::new(0),
        };
        let error = || Error::Closed { why: "no".to_owned() };
        let (refused, lost) = (|| Failure::Refused(error()), || Failure::Transient(error()));
        let mut attempts = Attempts::new(&source);
        attempts.failed(refused(), 0).await.unwrap();
        // The other one starts again; the first still refuses.
        attempts.failed(lost(), 0).await.unwrap();
        attempts.failed(refused(), 0).await.unwrap();
        // There was progress at the other one before it was the one to refuse.
        attempts.failed(refused(), 1).await.unwrap();
        let end = attempts.failed(refused(), 1).await.unwrap_err();
        assert!(matches!(end, Error::Closed { .. }), "both refuse: {end}");
        let mut attempts = Attempts::new(&source);
        assert!(attempts.failed(Failure::Final(error()), 0).await.is_err());
        // The other one never answers: the refusal is the error, and not that.
        let source = Source { timeout: Duration::from_secs(600), ..source };
        let (mut attempts, began) = (Attempts::new(&source), Instant::now());
        let end = loop {
            match attempts.failed(if attempts.at % 2 == 0 { refused() } else { lost() }, 0).await {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        assert!(matches!(end, Error::Closed { .. }), "{end}");
        assert!((REFUSED..2 * REFUSED).contains(&began.elapsed()));
    }
}
