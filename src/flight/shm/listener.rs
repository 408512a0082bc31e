//! The server's end: accepts ranks of its own user, sends them batches as they have room, and keeps slabs until they are released.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture, Either, FutureExt};
use futures::stream::{BoxStream, StreamExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::fd;
use super::link::{Broken, Inbox, Outbox, SMALL_FRAME, ticker};
use super::wire::{Body, Frame, Refusal, VERSION};
use crate::error::{Error, Result};
use crate::flight::seldom::Seldom;
use crate::memory::{HostBuffer, SharedAllocator, Slab};

/// Time for a receiver to take the last messages of a connection.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A batch to send.
#[derive(Debug)]
pub struct Outgoing {
    /// Description of the batch, opaque here.
    pub header: Bytes,
    /// Its tensors' slab, from the listener's allocator; `None` if it has no tensors. Kept until the receiver releases it.
    pub slab: Option<Arc<HostBuffer>>,
    /// True if no other receiver gets the batch, and no code here reads it again: the receiver may then write to it if it has a slab of
    /// its own. Otherwise its writes go to a private copy.
    pub exclusive: bool,
    /// Values that are not in the slab; they arrive as one piece.
    pub extra: Vec<Bytes>,
    /// The claim that pays for the slab, if any: kept as long as the slab is, even after the end of the source.
    pub paid: Option<Box<dyn Any + Send + Sync>>,
}

/// The batches for one receiver.
pub struct Source {
    /// The batches. An error is the receiver's last message.
    pub batches: BoxStream<'static, Result<Outgoing, Refusal>>,
    /// Completes if the connection must end although the receiver takes nothing: the reason is sent if possible, and its batches are
    /// taken back.
    pub ended: BoxFuture<'static, Refusal>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl From<BoxStream<'static, Result<Outgoing, Refusal>>> for Source {
    /// Batches for as long as the receiver lasts.
    fn from(batches: BoxStream<'static, Result<Outgoing, Refusal>>) -> Self {
        Self { batches, ended: future::pending().boxed() }
    }
}

/// Limits of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Most receivers at once. Default 256.
    pub connections: usize,
    /// Most unreleased batches that a receiver may hold, even if it requests more. Default 64.
    pub window: u16,
    /// Time between heartbeats to a receiver. Default 2 s.
    pub heartbeat: Duration,
    /// Silence after which a receiver counts as gone and its batches are taken back. Default 30 s.
    pub silence: Duration,
    /// Time for a receiver to send its request. Default 10 s.
    pub handshake: Duration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            connections: 256,
            window: 64,
            heartbeat: Duration::from_secs(2),
            silence: Duration::from_secs(30),
            handshake: Duration::from_secs(10),
        }
    }
}

/// A socket for ranks on this host.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    name: String,
    allocator: Arc<SharedAllocator>,
    options: ListenerOptions,
}

impl Listener {
    /// Binds an abstract socket with a name that cannot be guessed and does not collide. Batches come from `allocator`. Needs a
    /// runtime.
    ///
    /// # Errors
    /// [`Error::Store`] if the system refuses.
    pub fn bind(allocator: Arc<SharedAllocator>, options: ListenerOptions) -> Result<Self> {
        let mut random = [0_u8; 16];
        let failed = |operation: &str, error: std::io::Error| Error::Store {
            operation: operation.to_owned(),
            url: "an abstract unix socket".to_owned(),
            source: error.into(),
        };
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(|error| failed("name", error))?;
        let name = format!("bowstring-{:032x}", u128::from_le_bytes(random));
        let socket = UnixListener::bind(format!("\0{name}")).map_err(|error| failed("bind", error))?;
        Ok(Self { socket, name, allocator, options })
    }

    /// Returns the socket's name, for [`connect`](super::connect). It is no secret: the kernel authenticates peers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Serves until `shutdown` completes; open connections then end at once. `open` makes the batches for a ticket; its result is
    /// asked for a batch only while the receiver has room, and then polled until the batch is made. It must not block: meanwhile the
    /// receiver would get no heartbeats.
    pub async fn run<O, F>(self, open: O, shutdown: impl Future<Output = ()>)
    where
        O: Fn(Bytes) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Source, Refusal>> + Send + 'static,
    {
        let open = Arc::new(open);
        let mut shutdown = pin!(shutdown);
        let room = Arc::new(Semaphore::new(self.options.connections.min(Semaphore::MAX_PERMITS)));
        // Dropped last: ends connections that are still running.
        let mut connections = JoinSet::new();
        let warnings = Arc::<Warnings>::default();
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => return,
                accepted = self.socket.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    // Most likely too many open files, some of which will be closed.
                    tracing::warn!(%error, "cannot accept a rank of this host");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if !same_user(&socket) {
                if let Some(times) = warnings.users.count(std::time::Instant::now()) {
                    tracing::warn!(times, "refused a process of another user");
                }
                continue;
            }
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                if let Some(times) = warnings.crowds.count(std::time::Instant::now()) {
                    tracing::warn!(times, limit = self.options.connections, "refused a rank of this host: too many");
                }
                continue;
            };
            let (allocator, options, open) = (Arc::clone(&self.allocator), self.options.clone(), Arc::clone(&open));
            let warnings = Arc::clone(&warnings);
            connections.spawn(async move {
                let mut connection = Connection::new(socket, allocator, options, warnings);
                if let Err(broken) = connection.serve(&*open).await {
                    connection.refuse(broken).await;
                }
                drop(permit);
            });
        }
    }
}

/// Warnings that anybody on this host can cause.
#[derive(Debug, Default)]
struct Warnings {
    users: Seldom,
    crowds: Seldom,
    nonsense: Seldom,
}

/// Returns true if the peer is a process of this user or of root.
pub(super) fn same_user(socket: &UnixStream) -> bool {
    socket.peer_cred().is_ok_and(|peer| peer.uid() == fd::own_user() || peer.uid() == 0)
}

/// The claim that pays for a batch.
type Paid = Option<Box<dyn Any + Send + Sync>>;

/// Batches that a receiver holds. Those it still holds when the connection ends are never written to again: it may still be reading.
struct Lent {
    allocator: Arc<SharedAllocator>,
    /// By number, each with its claim.
    batches: HashMap<u64, (Arc<HostBuffer>, Paid)>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.batches.values().for_each(|(buffer, _)| self.allocator.retire(buffer));
    }
}

struct Connection {
    socket: UnixStream,
    options: ListenerOptions,
    inbox: Inbox,
    outbox: Outbox,
    lent: Lent,
    /// Batches with a body sent so far.
    sent: u64,
    /// Slabs that the receiver keeps mapped, by number and exclusiveness.
    announced: HashMap<(u64, bool), Weak<Slab>>,
    warnings: Arc<Warnings>,
}

impl Connection {
    fn new(
        socket: UnixStream,
        allocator: Arc<SharedAllocator>,
        options: ListenerOptions,
        warnings: Arc<Warnings>,
    ) -> Self {
        let (inbox, outbox) = (Inbox::new(SMALL_FRAME), Outbox::default());
        let lent = Lent { allocator, batches: HashMap::new() };
        Self { socket, options, inbox, outbox, lent, sent: 0, announced: HashMap::new(), warnings }
    }

    /// Serves one receiver until it leaves.
    async fn serve<O, F>(&mut self, open: &O) -> Result<(), Broken>
    where
        O: Fn(Bytes) -> F,
        F: Future<Output = Result<Source, Refusal>> + Send + 'static,
    {
        let hello = tokio::time::timeout(self.options.handshake, self.inbox.next(&self.socket)).await;
        let Ok(hello) = hello else { return Err(self.protocol("no ticket within the time for it")) };
        let Frame::Hello { version, window, ticket } = hello? else { return Err(self.protocol("no greeting")) };
        if version != VERSION {
            return Err(self.protocol(&format!("version {version} of shared memory; this server has {VERSION}")));
        }
        let window = usize::from(window.min(self.options.window).max(1));
        let mut opening = open(ticket).boxed().fuse();
        let mut source: Option<BoxStream<'static, Result<Outgoing, Refusal>>> = None;
        let mut ended: BoxFuture<'static, Refusal> = future::pending().boxed();
        let mut ticks = ticker(self.options.heartbeat);
        let mut heard = Instant::now();
        // True while the source makes a batch. It may hold locks meanwhile that others wait for, so it is polled until the batch is made,
        // although the receiver may have stopped reading.
        let mut asked = false;
        loop {
            asked |= source.is_some() && self.outbox.is_empty() && self.lent.batches.len() < window;
            let next = match source.as_mut().filter(|_| asked) {
                Some(source) => Either::Left(StreamExt::next(source)),
                None => Either::Right(future::pending()),
            };
            tokio::select! {
                biased;
                frame = self.inbox.next(&self.socket) => {
                    heard = Instant::now();
                    match frame? {
                        Frame::Heartbeat => {}
                        Frame::Release(number) => {
                            if self.lent.batches.remove(&number).is_none() {
                                return Err(self.protocol("the release of a batch that it does not have"));
                            }
                        }
                        _ => return Err(self.protocol("a frame that only servers send")),
                    }
                }
                opened = &mut opening => match opened {
                    Ok(Source { batches, ended: end }) => (source, ended) = (Some(batches), end),
                    Err(refusal) => self.push(&Frame::Failed(refusal), None)?,
                },
                refusal = &mut ended => {
                    self.push(&Frame::Failed(refusal), None)?;
                    let _ = tokio::time::timeout(LAST_WORD, self.outbox.flush(&self.socket)).await;
                    return Ok(());
                }
                sent = self.outbox.flush(&self.socket), if !self.outbox.is_empty() => sent?,
                item = next => {
                    asked = false;
                    match item {
                        Some(Ok(batch)) => self.send(batch)?,
                        Some(Err(refusal)) => {
                            source = None;
                            self.push(&Frame::Failed(refusal), None)?;
                        }
                        None => {
                            source = None;
                            self.push(&Frame::End, None)?;
                        }
                    }
                }
                _ = ticks.tick() => {
                    if self.outbox.is_empty() {
                        self.forget()?;
                        self.push(&Frame::Heartbeat, None)?;
                    }
                }
                () = sleep_until(heard + self.options.silence) => {
                    return Err(self.protocol("nothing for too long"));
                }
            }
        }
    }

    fn protocol(&self, what: &str) -> Broken {
        let pid = self.socket.peer_cred().ok().and_then(|peer| peer.pid());
        if let Some(times) = self.warnings.nonsense.count(std::time::Instant::now()) {
            tracing::warn!(times, pid, "a rank of this host sent {what}");
        }
        Broken::Malformed(super::wire::Malformed(what.to_owned()))
    }

    fn push(&mut self, frame: &Frame, pass: Option<Arc<Slab>>) -> Result<(), Broken> {
        if self.outbox.push(frame, pass) {
            return Ok(());
        }
        Err(self.protocol("for a batch whose description is beyond 4 GiB"))
    }

    fn send(&mut self, batch: Outgoing) -> Result<(), Broken> {
        self.forget()?;
        let Outgoing { header, slab, exclusive, extra, paid } = batch;
        let number = self.sent;
        let Some(buffer) = slab.filter(|buffer| !buffer.is_empty()) else {
            return self.push(&Frame::Batch { number, body: None, header, extra }, None);
        };
        let Some((slab, offset)) = self.lent.allocator.locate(&buffer) else {
            return Err(Broken::Io(std::io::Error::other("a batch is not in the listener's shared memory")));
        };
        if self.lent.batches.values().any(|(lent, _)| lent.as_ptr() == buffer.as_ptr()) {
            return Err(Broken::Io(std::io::Error::other("a batch was sent again before it was released")));
        }
        // Other batches may lie in it, or others have this one.
        let exclusive = exclusive && slab.is_writable();
        let new = self.announced.insert((slab.id(), exclusive), Arc::downgrade(&slab)).is_none();
        let (offset, len, slab_len) = (offset as u64, buffer.len() as u64, slab.len() as u64);
        let body = Some(Body { slab: slab.id(), slab_len, offset, len, new, exclusive });
        self.sent += 1;
        self.lent.batches.insert(number, (buffer, paid));
        let pass = new.then_some(slab);
        self.push(&Frame::Batch { number, body, header, extra }, pass)
    }

    /// Announces freed slabs, so that the receiver does not keep their memory.
    fn forget(&mut self) -> Result<(), Broken> {
        let freed: Vec<(u64, bool)> =
            self.announced.iter().filter(|(_, slab)| slab.strong_count() == 0).map(|(key, _)| *key).collect();
        for key in freed {
            self.announced.remove(&key);
            self.push(&Frame::Forget(key.0), None)?;
        }
        Ok(())
    }

    /// Sends the reason for the end of the connection, if it is still open.
    async fn refuse(&mut self, broken: Broken) {
        let refusal = match broken {
            Broken::Closed => return,
            Broken::Malformed(malformed) => {
                Refusal { code: 7, message: format!("the server received {}", malformed.0) }
            }
            Broken::Io(error) => Refusal { code: 7, message: format!("the server failed: {error}") },
        };
        if self.outbox.push(&Frame::Failed(refusal), None) {
            let _ = tokio::time::timeout(LAST_WORD, self.outbox.flush(&self.socket)).await;
        }
    }
}
