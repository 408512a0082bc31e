//! The calls of a served cache: a block is asked for by DoGet and given by DoPut.
//!
//! A home reads its own cache and no store: see [`wire`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket,
};
use bytes::Bytes;
use futures::Stream;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tonic::{Request, Response, Status, Streaming};

use super::leases::{Leases, Taken};
use crate::store::cache::cluster::wire::{self, Answer, Arriving, Ask, Given, Kept, Kind, Room};
use crate::store::cache::{Block, Cache, Reader};

/// Pause between two words to a reader that waits; a reader takes a home that skips some of them for gone.
const WORD: Duration = Duration::from_secs(1);
/// Longest time that a reader may take to fetch a block for all.
const LEASE: Duration = Duration::from_secs(60);
/// Longest time that this cache may take to find a block, less than a reader's patience with a silent home: another home or the store has it
/// sooner.
const SLOW: Duration = Duration::from_secs(4);
/// Longest time that a reader may take for one message of a block, or for the next one.
const STALL: Duration = Duration::from_secs(10);
/// Bytes of blocks on their way in and out, in units of a permit.
const MOVING: usize = 512 << 20;
const PERMIT: usize = 64 << 10;
/// Messages of an answer that are ready before they are sent.
const READY: usize = 2;

/// A message to a reader.
type Message = Result<FlightData, Status>;

/// The cache that is served.
#[derive(Debug)]
pub(super) struct Home {
    cache: Arc<Cache>,
    reader: Arc<Reader>,
    leases: Arc<Leases>,
    moving: Arc<Semaphore>,
}

/// The reader is gone, or was told that this home fails.
struct Gone;

/// A block that is here. The passage is held until its bytes are sent.
struct Found {
    head: Bytes,
    bytes: Bytes,
    _passage: Option<OwnedSemaphorePermit>,
}

impl Home {
    pub(super) fn new(cache: Arc<Cache>) -> Self {
        let reader = cache.reader();
        Self { cache, reader, leases: Arc::default(), moving: Arc::new(Semaphore::new(MOVING / PERMIT)) }
    }

    /// The right to move the bytes of `block`.
    async fn passage(&self, block: &Block) -> Option<OwnedSemaphorePermit> {
        let permits = (block.len() as usize).div_ceil(PERMIT).clamp(1, MOVING / PERMIT);
        Arc::clone(&self.moving).acquire_many_owned(permits as u32).await.ok()
    }

    /// The block, if it is here, with its head. What takes too long is a failure of this home, unlike a wait for another reader.
    async fn look(&self, block: Block, to: &mpsc::Sender<Message>) -> Result<Option<Found>, Gone> {
        let looking = async {
            let passage = self.passage(&block).await;
            let bytes = self.cache.have(&self.reader, block).await?;
            Some(Found { head: head(block, &bytes).await?, bytes, _passage: passage })
        };
        if let Ok(found) = words(to, timeout(SLOW, looking)).await? {
            return Ok(found);
        }
        let late = Err(Status::unavailable("this cache does not find the block in time"));
        let _ = timeout(STALL, to.send(late)).await;
        Err(Gone)
    }

    /// Answers a reader that asks for `block`, until it has what it asked for, has given it or is gone.
    async fn answer(&self, block: Block, to: &mpsc::Sender<Message>) -> Result<(), Gone> {
        loop {
            if let Some(found) = self.look(block, to).await? {
                return send(to, found.head, found.bytes).await;
            }
            match self.leases.take(block) {
                Taken::Mine(lease) => {
                    // It may have come between the look and the lease.
                    if let Some(found) = self.look(block, to).await? {
                        drop(lease);
                        return send(to, found.head, found.bytes).await;
                    }
                    tell(to, Answer { kind: Kind::Lease.into(), lease: lease.number(), ..Answer::default() }).await?;
                    tokio::select! {
                        () = to.closed() => {}
                        () = lease.fulfilled() => {}
                        () = tokio::time::sleep(LEASE) => {}
                    }
                    return Ok(());
                }
                Taken::Theirs(mut waiting) => {
                    if let Some(bytes) = words(to, waiting.outcome()).await? {
                        let head = words(to, head(block, &bytes)).await?.ok_or(Gone)?;
                        return send(to, head, bytes).await;
                    }
                }
                Taken::Full => {
                    return tell(to, Answer { kind: Kind::Declined.into(), ..Answer::default() }).await;
                }
            }
        }
    }

    /// Takes a block from the reader that has fetched it.
    async fn take(&self, mut from: Streaming<FlightData>) -> Result<Kept, Status> {
        let first = next(&mut from).await?.ok_or_else(|| Status::invalid_argument("nothing is given"))?;
        let given = Given::decode(first.app_metadata).map_err(|_| Status::invalid_argument("nothing is given"))?;
        let block = asked(given.version, &given.block)?;
        // The store was slow: others fetch it by now.
        let Some(giving) = self.leases.given(block, given.lease) else { return Ok(Kept { kept: false }) };
        let _passage = self.passage(&block).await;
        let wrong = |what: &'static str| Status::data_loss(what);
        let mut arriving = Arriving::new(block, given.head).map_err(wrong)?;
        arriving.add(&first.data_body).map_err(wrong)?;
        while !arriving.is_all() {
            let part = next(&mut from).await?.ok_or_else(|| wrong("it is cut off"))?;
            if part.data_body.is_empty() {
                return Err(wrong("an empty part"));
            }
            arriving.add(&part.data_body).map_err(wrong)?;
        }
        let bytes = arriving.done().map_err(wrong)?;
        giving.is_here(bytes.clone());
        let kept = self.cache.take(&self.reader, block, bytes).await;
        Ok(Kept { kept })
    }
}

async fn head(block: Block, bytes: &Bytes) -> Option<Bytes> {
    let bytes = bytes.clone();
    tokio::task::spawn_blocking(move || wire::head(&block, &bytes)).await.ok()
}

fn asked(version: u32, block: &str) -> Result<Block, Status> {
    if version != wire::VERSION {
        let problem = format!("blocks of version {version} are not known here, only {}", wire::VERSION);
        return Err(Status::failed_precondition(problem));
    }
    wire::travelling(block).ok_or_else(|| Status::invalid_argument("this is no block"))
}

async fn next(from: &mut Streaming<FlightData>) -> Result<Option<FlightData>, Status> {
    let silent = |_| Status::deadline_exceeded("the next part did not come in time");
    timeout(STALL, from.message()).await.map_err(silent)?
}

async fn put(to: &mpsc::Sender<Message>, message: FlightData) -> Result<(), Gone> {
    match timeout(STALL, to.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(Gone),
    }
}

async fn tell(to: &mpsc::Sender<Message>, answer: Answer) -> Result<(), Gone> {
    put(to, FlightData { app_metadata: answer.encode_to_vec().into(), ..FlightData::default() }).await
}

/// Waits for `work`, and tells the reader each second that it does.
async fn words<T>(to: &mpsc::Sender<Message>, work: impl Future<Output = T>) -> Result<T, Gone> {
    let mut work = std::pin::pin!(work);
    let mut clock = tokio::time::interval_at(Instant::now() + WORD, WORD);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = to.closed() => return Err(Gone),
            _ = clock.tick() => tell(to, Answer { kind: Kind::Waiting.into(), ..Answer::default() }).await?,
        }
    }
}

async fn send(to: &mpsc::Sender<Message>, head: Bytes, bytes: Bytes) -> Result<(), Gone> {
    let mut answer = Some(Answer { kind: Kind::Block.into(), head, ..Answer::default() });
    for part in wire::parts(bytes) {
        let app_metadata = answer.take().map_or_else(Vec::new, |answer| answer.encode_to_vec()).into();
        put(to, FlightData { app_metadata, data_body: part, ..FlightData::default() }).await?;
    }
    Ok(())
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Service(pub(super) Arc<Home>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn unimplemented<T>() -> Result<T, Status> {
    Err(Status::unimplemented("this serves the blocks of a cache to other hosts, and no datasets"))
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;
    type DoExchangeStream = Answers<FlightData>;

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let ask = Ask::decode(request.into_inner().ticket).map_err(|_| Status::invalid_argument("nothing is asked"))?;
        let block = asked(ask.version, &ask.block)?;
        let (to, answers) = mpsc::channel(READY);
        let home = Arc::clone(&self.0);
        drop(tokio::spawn(async move {
            // Who is gone needs no answer.
            let _ = home.answer(block, &to).await;
        }));
        let next = |mut answers: mpsc::Receiver<Message>| async move {
            let message = answers.recv().await?;
            Some((message, answers))
        };
        Ok(Response::new(Box::pin(futures::stream::unfold(answers, next))))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        let late = |_| Status::deadline_exceeded("the block did not come in time");
        let kept = timeout(LEASE, self.0.take(request.into_inner())).await.map_err(late)??;
        let answer = PutResult { app_metadata: kept.encode_to_vec().into() };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(answer)]))))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unimplemented()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        unimplemented()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        unimplemented()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unimplemented()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        unimplemented()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        unimplemented()
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        if request.get_ref().r#type != wire::ROOM {
            return unimplemented();
        }
        let room = Room { bytes: self.0.cache.limit() };
        let answer = arrow_flight::Result::new(room.encode_to_vec());
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(answer)]))))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        unimplemented()
    }
}
