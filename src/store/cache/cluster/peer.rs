//! One peer: its connection, and the two things that it is asked for, each with a deadline.
//!
//! Whatever a peer does is a [`Problem`] at most, never an error of the reader: it can read the origin.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData, Ticket};
use bytes::Bytes;
use prost::Message;
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use super::super::super::caller::{Authorization, Credentials};
use super::super::asked::Again;
use super::super::block::Block;
use super::super::counts::Unkept;
use super::members::Member;
use super::ring::Point;
use super::standing::Standing;
use super::transfer::Transfer;
use super::wire::{self, Answer, Arriving, Ask, Given, Kept, Kind, Room};
use crate::error::Error;

/// Time to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest silence of a peer that has been asked: it says a word each second while it waits for others.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest wait for another reader that fetches the block.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that a peer may send before they are read, per block and in all.
const WINDOWS: (u32, u32) = (2 << 20, 16 << 20);
/// Silence of an open connection after which the peer is pinged, and the time that it has to answer.
const PING: Duration = Duration::from_secs(10);
/// Blocks that are given to a peer at once: more would share the links, and all come late.
const GOING: usize = 2;
/// Runtimes of this process whose connections are kept.
const RUNTIMES: usize = 16;

/// The answer of a block's home.
#[derive(Debug)]
pub(super) enum Asked {
    /// The bytes, checked.
    Block(Bytes),
    /// This reader is the one that fetches it.
    Lease(Lease),
    /// It is not there, and will not be kept.
    Declined,
    /// Another reader fetches it, and has not for long.
    InVain,
}

/// The right to fetch a block and to give it to its home, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    number: u64,
    _held: Box<Streaming<FlightData>>,
}

/// Why a peer was of no use.
#[derive(Debug)]
pub(super) enum Problem {
    /// It cannot be reached, or refuses.
    Status(Box<Status>),
    /// It did not answer, or not fast enough.
    Late(&'static str),
    /// What it sent is wrong.
    Wrong(&'static str),
    /// Credentials that cannot be read.
    Config(Error),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{:?}: {}", status.code(), status.message()),
            Self::Late(what) => write!(f, "it is too slow: {what}"),
            Self::Wrong(what) => write!(f, "what it sent is wrong: {what}"),
            Self::Config(error) => write!(f, "{}", error.chain()),
        }
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) member: Member,
    pub(super) point: Point,
    standing: Mutex<Standing>,
    /// Blocks that it had no room for, and calls that failed.
    refused: AtomicU64,
    failures: AtomicU64,
    going: Semaphore,
    /// A connection lives as long as the runtime that made it.
    clients: Mutex<HashMap<Id, FlightServiceClient<Channel>>>,
}

impl Peer {
    pub(super) fn new(member: Member) -> Self {
        let point = Point::of_member(&member.name);
        let (refused, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        let (standing, going, clients) = (Mutex::default(), Semaphore::new(GOING), Mutex::default());
        Self { member, point, standing, refused, failures, going, clients }
    }

    /// What it was offered and does not have.
    pub(super) fn unkept(&self) -> Unkept {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Unkept { peer: self.member.name.clone(), refused: read(&self.refused), failures: read(&self.failures) }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if it may be asked now; whoever hears that asks it.
    pub(super) fn may_be_asked(&self) -> bool {
        self.standing().may_be_asked(Instant::now())
    }

    /// Notes the outcome of a call that began at `asked`.
    pub(super) fn note(&self, asked: Instant, problem: Option<&Problem>) {
        let Some(problem) = problem else {
            if self.standing().answered() {
                tracing::info!("the cache of {} answers again", self.member.name);
            }
            return;
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.standing().failed(asked, Instant::now()) {
            tracing::warn!("the cache of {} is passed by: {problem}", self.member.name);
        }
        // The next attempt connects anew.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&Handle::current().id());
    }

    fn client(&self, credentials: &Credentials) -> Result<FlightServiceClient<Channel>, Problem> {
        let runtime = Handle::current().id();
        let clients = || self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = clients().get(&runtime).cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        let invalid = |_| Problem::Wrong("its address");
        let mut endpoint = Endpoint::from_shared(self.member.endpoint())
            .map_err(invalid)?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true);
        if self.member.tls {
            let tls = credentials.tls(self.member.certified.as_deref()).map_err(Problem::Config)?;
            endpoint = endpoint.tls_config(tls).map_err(|_| Problem::Wrong("its certificates"))?;
        }
        let client = FlightServiceClient::new(endpoint.connect_lazy()).max_decoding_message_size(wire::MESSAGE);
        let mut clients = clients();
        if clients.len() >= RUNTIMES {
            clients.clear();
        }
        clients.insert(runtime, client.clone());
        Ok(client)
    }

    /// Asks for `block`, which may travel.
    pub(super) async fn ask(&self, credentials: &Credentials, block: &Block, again: Again) -> Result<Asked, Problem> {
        let mut client = self.client(credentials)?;
        let ask = Ask { version: wire::VERSION, block: block.name().1, again: again.after, job: again.job };
        let request = authorized(Ticket { ticket: ask.encode_to_vec().into() }, credentials);
        let begin = Instant::now();
        let answer = timeout(CONNECT + SILENCE, client.do_get(request)).await;
        let mut answer = answer.map_err(|_| Problem::Late("it does not answer"))??.into_inner();
        loop {
            let first = next(&mut answer).await?;
            let told = Answer::decode(first.app_metadata).map_err(|_| Problem::Wrong("no answer"))?;
            match Kind::try_from(told.kind) {
                Ok(Kind::Waiting) if begin.elapsed() > PATIENCE => return Ok(Asked::InVain),
                Ok(Kind::Waiting) => {}
                Ok(Kind::Lease) => return Ok(Asked::Lease(Lease { number: told.lease, _held: Box::new(answer) })),
                Ok(Kind::Declined) => return Ok(Asked::Declined),
                Ok(Kind::Block) => {
                    let mut arriving = Arriving::new(*block, told.head).map_err(Problem::Wrong)?;
                    arriving.add(&first.data_body).map_err(Problem::Wrong)?;
                    let transfer = Transfer::new();
                    let all = async {
                        while !arriving.is_all() {
                            let part = next(&mut answer).await?;
                            if part.data_body.is_empty() {
                                return Err(Problem::Wrong("an empty part"));
                            }
                            transfer.add(part.data_body.len());
                            arriving.add(&part.data_body).map_err(Problem::Wrong)?;
                        }
                        arriving.done().map_err(Problem::Wrong)
                    };
                    let arrived = transfer.in_time(time_for(block), all).await;
                    return arrived.ok_or(Problem::Late("the block is not all there"))?.map(Asked::Block);
                }
                Err(_) => return Err(Problem::Wrong("an unknown answer")),
            }
        }
    }

    /// Bytes that the peer may take.
    pub(super) async fn room(&self, credentials: &Credentials) -> Result<u64, Problem> {
        let mut client = self.client(credentials)?;
        let asking = async {
            let action = authorized(Action::new(wire::ROOM, Bytes::new()), credentials);
            let mut answer = client.do_action(action).await?.into_inner();
            let answer = answer.message().await?.ok_or(Problem::Wrong("no answer"))?;
            Ok(Room::decode(answer.body).map_err(|_| Problem::Wrong("no answer"))?.bytes)
        };
        timeout(CONNECT + SILENCE, asking).await.map_err(|_| Problem::Late("it does not answer"))?
    }

    /// Gives `block` to the peer, its home, which has leased it, and notes the outcome. Returns true if it is kept there, and false also if
    /// the peer has failed before its turn comes.
    pub(super) async fn give(
        &self,
        credentials: &Credentials,
        lease: Lease,
        block: (Block, Again),
        bytes: Bytes,
    ) -> Result<bool, Problem> {
        let leased = Instant::now();
        let _going = self.going.acquire().await;
        // One that failed before has answered with a lease: it is there again.
        if self.standing().has_failed_since(leased) {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return Ok(false);
        }
        let begin = Instant::now();
        let given = self.try_give(credentials, lease, block, bytes).await;
        self.note(begin, given.as_ref().err());
        given
    }

    async fn try_give(
        &self,
        credentials: &Credentials,
        lease: Lease,
        (block, again): (Block, Again),
        bytes: Bytes,
    ) -> Result<bool, Problem> {
        let mut client = self.client(credentials)?;
        let summed = bytes.clone();
        let head = tokio::task::spawn_blocking(move || wire::head(&block, &summed)).await;
        let head = head.map_err(|_| Problem::Late("this process ends"))?;
        let given = Given {
            version: wire::VERSION,
            block: block.name().1,
            lease: lease.number,
            head,
            again: again.after,
            job: again.job,
        };
        let first = FlightData { app_metadata: given.encode_to_vec().into(), ..FlightData::default() };
        let parts = wire::parts(bytes).map(|part| FlightData { data_body: part, ..FlightData::default() });
        let messages = futures::stream::iter(std::iter::once(first).chain(parts));
        let giving = async {
            let mut answer = client.do_put(authorized(messages, credentials)).await?.into_inner();
            let answer = answer.message().await?.ok_or(Problem::Wrong("no answer"))?;
            let kept = Kept::decode(answer.app_metadata).map_err(|_| Problem::Wrong("no answer"))?;
            self.refused.fetch_add(u64::from(!kept.kept), Ordering::Relaxed);
            Ok(kept.kept)
        };
        // Its disk may be slow.
        timeout(time_for(&block) + PATIENCE, giving).await.map_err(|_| Problem::Late("it does not take the block"))?
    }
}

/// Time that all of `block` may take.
fn time_for(block: &Block) -> Duration {
    SILENCE + Duration::from_secs(block.len() / wire::PACE)
}

async fn next(answer: &mut Streaming<FlightData>) -> Result<FlightData, Problem> {
    let message = timeout(SILENCE, answer.message()).await.map_err(|_| Problem::Late("it is silent"))?;
    message?.ok_or(Problem::Wrong("it is cut off"))
}

fn authorized<T>(message: T, credentials: &Credentials) -> Request<T> {
    Authorization::request(credentials.authorization(), message)
}
