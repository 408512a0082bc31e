//! The calls of a served cache: a block is asked for by DoGet and given by DoPut.
//!
//! A home reads its own cache and no store: see [`wire`].

use std::net::SocketAddr;
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

use super::leases::{Giving, Leases, Taken};
use super::turns::{Turn, Turns};
use crate::flight::server::stream::hangup::Hangups;
use crate::store::cache::cluster::wire::{self, Answer, Arriving, Ask, Given, Kept, Kind, Room};
use crate::store::cache::{Again, Block, Cache, Reader};

/// Pause between two words to a reader that waits; a reader takes a home that skips some of them for gone.
const WORD: Duration = Duration::from_secs(1);
/// Longest time that a reader may take to fetch a block for all.
const LEASE: Duration = Duration::from_secs(60);
/// Longest time that this cache may take to find a block, less than a reader's patience with a silent home: another home or the store has it
/// sooner.
const SLOW: Duration = Duration::from_secs(4);
/// Longest time that a block has its turn while the other side stands still.
const STILL: Duration = Duration::from_secs(2);
/// Longest time that a reader may take for one message of a block, or for the next one.
const STALL: Duration = Duration::from_secs(10);
/// Bytes of blocks on their way in, and as many on their way out, in units of a permit. What came in may wait for its turn to go out, so
/// what goes out has room of its own.
const MOVING: usize = 256 << 20;
const PERMIT: usize = 64 << 10;
/// Blocks that are taken at once: more would share the link of this host.
const TAKING: usize = 4;
/// Messages of an answer that are ready before they are sent.
const READY: usize = 8;
/// Most calls at once. Readers beyond it are told to fetch for themselves, and keep what they fetch.
const CALLS: usize = 16_384;

/// A message to a reader.
type Message = Result<FlightData, Status>;

/// The cache that is served.
#[derive(Debug)]
pub(super) struct Home {
    cache: Arc<Cache>,
    reader: Arc<Reader>,
    leases: Arc<Leases>,
    coming: Arc<Semaphore>,
    going: Arc<Semaphore>,
    turns: Turns,
    taking: Semaphore,
    calls: Arc<Semaphore>,
    hangups: Hangups,
}

/// Where an answer goes.
struct Asker {
    to: mpsc::Sender<Message>,
    /// The other end of its connection.
    address: Option<SocketAddr>,
}

/// The reader is gone, or was told that this home fails.
struct Gone;

/// Bytes of a block on their way. They hold their passage for as long as anybody has a part of them, as a reader has that does not read.
struct Moving {
    bytes: Bytes,
    _passage: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Moving {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Moving {
    fn bytes(bytes: Bytes, passage: Option<OwnedSemaphorePermit>) -> Bytes {
        Bytes::from_owner(Self { bytes, _passage: passage })
    }
}

/// The right to move the bytes of `block` one `way`.
async fn passage(way: &Arc<Semaphore>, block: &Block) -> Option<OwnedSemaphorePermit> {
    let permits = (block.len() as usize).div_ceil(PERMIT).clamp(1, MOVING / PERMIT);
    Arc::clone(way).acquire_many_owned(permits as u32).await.ok()
}

/// A block that is here.
struct Found {
    head: Bytes,
    bytes: Bytes,
}

impl Home {
    pub(super) fn new(cache: Arc<Cache>, hangups: Hangups) -> Self {
        let reader = cache.reader();
        let [coming, going] = [MOVING / PERMIT; 2].map(|permits| Arc::new(Semaphore::new(permits)));
        let (leases, turns, taking) = (Arc::default(), Turns::default(), Semaphore::new(TAKING));
        let calls = Arc::new(Semaphore::new(CALLS));
        Self { cache, reader, leases, coming, going, turns, taking, calls, hangups }
    }

    /// The block, if it is here, with its head. What takes too long is a failure of this home, unlike a wait for another reader.
    async fn look(&self, (block, again): (Block, Again), to: &mpsc::Sender<Message>) -> Result<Option<Found>, Gone> {
        let looking = async {
            let passage = passage(&self.going, &block).await;
            let bytes = self.cache.have(&self.reader, block, again).await?;
            Some(Found { head: head(block, &bytes).await?, bytes: Moving::bytes(bytes, passage) })
        };
        if let Ok(found) = words(to, timeout(SLOW, looking)).await? {
            return Ok(found);
        }
        let late = Err(Status::unavailable("this cache does not find the block in time"));
        let _ = timeout(STALL, to.send(late)).await;
        Err(Gone)
    }

    /// The turn to send a block to a reader, which hears that it waits.
    async fn turn(&self, Asker { to, address }: &Asker) -> Result<Turn, Gone> {
        words(to, self.turns.next(*address)).await?.ok_or(Gone)
    }

    /// Answers a reader that asks for `block` until it has what it asked for, has given it or is gone.
    async fn answer(&self, (block, again): (Block, Again), asker: &Asker) -> Result<(), Gone> {
        let to = &asker.to;
        let mut is_here = self.cache.may_have(&block);
        loop {
            // Its bytes are read in its turn: those of blocks that wait would fill the memory.
            let turn = if is_here { Some(self.turn(asker).await?) } else { None };
            is_here = match (self.look((block, again), to).await?, turn) {
                (Some(found), Some(turn)) => return send(to, &block, found, turn).await,
                (found, _) => found.is_some(),
            };
            if is_here {
                continue;
            }
            match self.leases.take(block) {
                Taken::Mine(lease) => {
                    // It may have come between the look and the lease.
                    is_here = self.look((block, again), to).await?.is_some();
                    if is_here {
                        continue;
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
                        self.cache.asked(&block, again);
                        let head = words(to, head(block, &bytes)).await?.ok_or(Gone)?;
                        return send(to, &block, Found { head, bytes }, self.turn(asker).await?).await;
                    }
                }
                Taken::Full => return declined(to).await,
            }
        }
    }

    /// Takes a block from the reader that has fetched it.
    async fn take(&self, mut from: Streaming<FlightData>) -> Result<Kept, Status> {
        let first = next(&mut from).await?.ok_or_else(|| Status::invalid_argument("nothing is given"))?;
        let given = Given::decode(first.app_metadata).map_err(|_| Status::invalid_argument("nothing is given"))?;
        let block = asked(given.version, &given.block)?;
        let again = Again { job: given.job, after: given.again };
        // The store was slow: others fetch it by now.
        let Some(giving) = self.leases.given(block, given.lease) else { return Ok(Kept { kept: false }) };
        let mut taking = self.taking.acquire().await.ok();
        let passage = passage(&self.coming, &block).await;
        let wrong = |what: &'static str| Status::data_loss(what);
        let mut arriving = Arriving::new(block, given.head).map_err(wrong)?;
        arriving.add(&first.data_body).map_err(wrong)?;
        let all = async {
            while !arriving.is_all() {
                let part = moving(next(&mut from), &mut taking).await?.ok_or_else(|| wrong("it is cut off"))?;
                if part.data_body.is_empty() {
                    return Err(wrong("an empty part"));
                }
                arriving.add(&part.data_body).map_err(wrong)?;
            }
            arriving.done().map_err(wrong)
        };
        let late = |_| Status::deadline_exceeded("the block comes too slowly");
        let bytes = timeout(time_for(&block), all).await.map_err(late)??;
        drop(taking);
        Ok(Kept { kept: self.arrived(&giving, (block, again), bytes, passage).await })
    }

    /// Hands a block that has come to all that wait for it, and keeps it. Returns true if it is kept.
    async fn arrived(
        &self,
        giving: &Giving,
        (block, again): (Block, Again),
        bytes: Bytes,
        passage: Option<OwnedSemaphorePermit>,
    ) -> bool {
        giving.is_here(Moving::bytes(bytes.clone(), passage));
        self.cache.take(&self.reader, block, bytes, again).await
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

async fn declined(to: &mpsc::Sender<Message>) -> Result<(), Gone> {
    tell(to, Answer { kind: Kind::Declined.into(), ..Answer::default() }).await
}

/// Time in which all of `block` comes or goes: a reader gives a home up sooner.
fn time_for(block: &Block) -> Duration {
    STALL + Duration::from_secs(block.len() / wire::PACE)
}

/// Sends a block in its turn, which ends when the reader has taken it, or stands still.
async fn send(to: &mpsc::Sender<Message>, block: &Block, found: Found, turn: Turn) -> Result<(), Gone> {
    let sending = async {
        let mut turn = Some(turn);
        let mut answer = Some(Answer { kind: Kind::Block.into(), head: found.head, ..Answer::default() });
        for part in wire::parts(found.bytes) {
            let app_metadata = answer.take().map_or_else(Vec::new, |answer| answer.encode_to_vec()).into();
            let put = put(to, FlightData { app_metadata, data_body: part, ..FlightData::default() });
            moving(put, &mut turn).await?;
        }
        // It has taken the last part when there is room for all of them again; who is gone by then needs nothing.
        let _ = moving(to.reserve_many(READY), &mut turn).await;
        Ok(())
    };
    timeout(time_for(block), sending).await.unwrap_or(Err(Gone))
}

/// Does `work` of the other side, whose `turn` ends if that stands still.
async fn moving<T, P>(work: impl Future<Output = T>, turn: &mut Option<P>) -> T {
    let mut work = std::pin::pin!(work);
    match timeout(STILL, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            drop(turn.take());
            work.await
        }
    }
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
        let address = request.remote_addr();
        let hangup = address.and_then(|address| self.0.hangups.of(address));
        let ask = Ask::decode(request.into_inner().ticket).map_err(|_| Status::invalid_argument("nothing is asked"))?;
        let block = asked(ask.version, &ask.block)?;
        let again = Again { job: ask.job, after: ask.again };
        let (to, answers) = mpsc::channel(READY);
        let home = Arc::clone(&self.0);
        let place = Arc::clone(&home.calls).try_acquire_owned().ok();
        let is_full = place.is_none();
        let asker = Asker { to, address };
        drop(tokio::spawn(async move {
            let answered = if is_full { declined(&asker.to).await } else { home.answer((block, again), &asker).await };
            // Who is gone needs no answer. Who is there and reads nothing holds messages that only the end of the connection frees.
            if answered.is_err()
                && !asker.to.is_closed()
                && hangup.is_some_and(|hangup| hangup.still() >= STALL && hangup.ask())
            {
                tracing::debug!("a reader that reads nothing is hung up on");
            }
        }));
        // The call lasts until its answer is read.
        let next = |(mut answers, place): (mpsc::Receiver<Message>, Option<OwnedSemaphorePermit>)| async move {
            let message = answers.recv().await?;
            Some((message, (answers, place)))
        };
        Ok(Response::new(Box::pin(futures::stream::unfold((answers, place), next))))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        let late = |_| Status::deadline_exceeded("the block did not come in time");
        let kept = match self.0.calls.try_acquire() {
            Ok(_place) => timeout(LEASE, self.0.take(request.into_inner())).await.map_err(late)??,
            Err(_) => Kept { kept: false },
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_block_on_its_way_holds_its_passage_until_nobody_has_a_part_of_it() {
        let home = Arc::new(Home::new(Cache::open("memory", Some(64 << 20)).unwrap(), Hangups::default()));
        let length = 32 * wire::CHUNK;
        let block = wire::travelling(&format!("{:032x}-0-{length:x}", 7)).unwrap();
        let all = MOVING / PERMIT;
        let Taken::Mine(lease) = home.leases.take(block) else { panic!("it is taken") };
        let (to, mut answers) = mpsc::channel(READY);
        let waiter = tokio::spawn({
            let home = Arc::clone(&home);
            async move { home.answer((block, Again::default()), &Asker { to, address: None }).await.is_ok() }
        });
        // It waits for the other one's lease.
        let word = answers.recv().await.unwrap().unwrap();
        assert_eq!(Answer::decode(word.app_metadata).unwrap().kind, i32::from(Kind::Waiting));
        let giving = home.leases.given(block, lease.number()).unwrap();
        let passage = passage(&home.coming, &block).await;
        assert!(home.arrived(&giving, (block, Again::default()), Bytes::from(vec![1; length]), passage).await);
        drop((giving, lease));
        // The reader takes one part, and no more.
        let first = loop {
            let message = answers.recv().await.unwrap().unwrap();
            if !message.data_body.is_empty() {
                break message;
            }
        };
        assert_eq!(home.coming.available_permits(), all - length / PERMIT);
        assert_eq!(first.data_body.len(), wire::CHUNK);
        drop(answers);
        assert!(!waiter.await.unwrap());
        assert_eq!(home.coming.available_permits(), all - length / PERMIT, "a part of it is still somewhere");
        drop(first);
        assert_eq!(home.coming.available_permits(), all);
    }
}
