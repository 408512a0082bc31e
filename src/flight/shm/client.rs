//! The rank's end: a stream of batches in the server's memory, each released when its last user drops it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::link::{Broken, Inbox, Outbox, ticker};
use super::listener::same_user;
use super::wire::{Body, Frame, MAX_TICKET, VERSION};
use crate::error::{Error, Result};
use crate::memory::{Access, HostBuffer, Mapping};

/// Stage named in timeouts.
const STAGE: &str = "shared memory";

/// Limits of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Most unreleased batches to hold, both queued and in use. The server may grant fewer. Default 4.
    pub window: u16,
    /// Silence after which a server counts as gone. Default 30 s.
    pub deadline: Duration,
    /// Time between heartbeats to the server. Default 2 s.
    pub heartbeat: Duration,
    /// Longest description of a batch, with its values outside of the slab, in bytes. Default 64 MiB.
    pub max_frame: usize,
    /// Largest slab, in bytes. Default 4 GiB.
    pub max_slab: u64,
    /// Most bytes of slabs mapped at once. Default 64 GiB.
    pub max_mapped: u64,
    /// Most slabs mapped at once. Default 4,096.
    pub max_slabs: usize,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            window: 4,
            deadline: Duration::from_secs(30),
            heartbeat: Duration::from_secs(2),
            max_frame: 64 << 20,
            max_slab: 4 << 30,
            max_mapped: 64 << 30,
            max_slabs: 4096,
        }
    }
}

/// A received batch.
#[derive(Debug)]
pub struct Incoming {
    /// Description of the batch.
    pub header: Bytes,
    /// Its tensors' bytes, in the server's memory; `None` if it has no tensors. Released when the last reference is dropped.
    pub body: Option<Arc<HostBuffer>>,
    /// Values that are not in the slab, all pieces one after another.
    pub extra: Bytes,
}

/// Batches in order. Ends after the last one or the first error; dropping it ends the connection, and batches that are still in use
/// stay valid.
#[derive(Debug)]
pub struct Receiver {
    batches: mpsc::Receiver<Result<Incoming>>,
    peer: Arc<str>,
}

impl Receiver {
    /// Returns the server's name, for messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }
}

impl Stream for Receiver {
    type Item = Result<Incoming>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.poll_recv(context)
    }
}

/// Connects to the abstract socket `name` and requests the batches of `ticket`. Spawns a task on the current runtime.
///
/// # Errors
/// [`Error::Remote`] if no process listens there, or one of another user does; [`Error::Timeout`] if the server does not accept within
/// the deadline; [`Error::Config`] for a ticket that is too long. The server's answer comes through the stream: its
/// [`Refusal`](super::Refusal) is the source of an [`Error::Remote`].
pub async fn connect(name: &str, ticket: Bytes, options: ConnectOptions) -> Result<Receiver> {
    let peer: Arc<str> = format!("unix socket @{name}").into();
    if ticket.len() > MAX_TICKET {
        let problem = format!("has {} bytes, the limit is {MAX_TICKET}", ticket.len());
        return Err(Error::config("ticket", problem));
    }
    let connected = tokio::time::timeout(options.deadline, dial(name)).await;
    let connected = connected.map_err(|_| timeout(&peer, options.deadline))?;
    let socket = connected.map_err(|error| Error::Remote {
        peer: peer.to_string(),
        what: "cannot be reached".to_owned(),
        source: Some(error.into()),
    })?;
    if !same_user(&socket) {
        let what = "belongs to another user".to_owned();
        return Err(Error::Remote { peer: peer.to_string(), what, source: None });
    }
    let mut outbox = Outbox::default();
    // A ticket within its limit always fits.
    let _ = outbox.push(&Frame::Hello { version: VERSION, window: options.window.max(1), ticket }, None);
    let window = usize::from(options.window.max(1));
    // The queue also holds batches without bodies, and the last message.
    let (sender, batches) = mpsc::channel(window + 2);
    let (released, releases) = mpsc::unbounded_channel();
    let session = Session {
        socket,
        inbox: Inbox::new(options.max_frame),
        outbox,
        options,
        peer: Arc::clone(&peer),
        released,
        mapped: HashMap::new(),
        mapped_bytes: 0,
        lent: HashSet::new(),
    };
    tokio::spawn(session.run(sender, releases));
    Ok(Receiver { batches, peer })
}

/// Connects, retrying while the server's queue is full.
async fn dial(name: &str) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(format!("\0{name}")).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            outcome => return outcome,
        }
    }
}

fn timeout(peer: &Arc<str>, waited: Duration) -> Error {
    Error::Timeout { stage: STAGE, culprit: peer.to_string(), waited }
}

struct Session {
    socket: UnixStream,
    inbox: Inbox,
    outbox: Outbox,
    options: ConnectOptions,
    peer: Arc<str>,
    /// Cloned into each lease.
    released: mpsc::UnboundedSender<u64>,
    /// Slabs by number and exclusiveness, mapped for as long as the server has them.
    mapped: HashMap<(u64, bool), Arc<Mapping>>,
    mapped_bytes: u64,
    /// Batches in use.
    lent: HashSet<u64>,
}

/// State of the session after a frame.
enum After {
    Continue,
    Ended(Option<Error>),
}

impl Session {
    async fn run(mut self, sender: mpsc::Sender<Result<Incoming>>, mut releases: mpsc::UnboundedReceiver<u64>) {
        let (error, connected) = match self.receive(&sender, &mut releases).await {
            Ok(refusal) => (refusal, true),
            Err(Stop::Left) => return,
            Err(Stop::Error(error)) => (Some(error), false),
        };
        if let Some(error) = error {
            // Waits for room in the queue, which the reader makes or closes.
            let _ = sender.send(Err(error)).await;
        }
        drop(sender);
        if connected {
            self.linger(&mut releases).await;
        }
    }

    /// Receives until the server's last message, which is returned if it is a refusal.
    async fn receive(
        &mut self,
        sender: &mpsc::Sender<Result<Incoming>>,
        releases: &mut mpsc::UnboundedReceiver<u64>,
    ) -> Result<Option<Error>, Stop> {
        let mut ticks = ticker(self.options.heartbeat);
        let mut heard = Instant::now();
        // A batch that waits for room in the queue; until then no frame is read.
        let mut waiting: Option<Incoming> = None;
        loop {
            tokio::select! {
                biased;
                frame = self.inbox.next(&self.socket), if waiting.is_none() => {
                    heard = Instant::now();
                    let frame = frame.map_err(|broken| self.broken(broken))?;
                    if let After::Ended(refusal) = self.take(frame, &mut waiting)? {
                        return Ok(refusal);
                    }
                }
                permit = sender.reserve(), if waiting.is_some() => {
                    heard = Instant::now();
                    match (permit, waiting.take()) {
                        (Ok(permit), Some(batch)) => permit.send(Ok(batch)),
                        _ => return Err(Stop::Left),
                    }
                }
                sent = self.outbox.flush(&self.socket), if !self.outbox.is_empty() => {
                    // The server's messages before it left are still to be read.
                    if sent.is_err() {
                        self.outbox = Outbox::default();
                    }
                }
                Some(number) = releases.recv() => self.release(number),
                () = sender.closed() => return Err(Stop::Left),
                _ = ticks.tick() => self.heartbeat(),
                () = sleep_until(heard + self.options.deadline), if waiting.is_none() => {
                    return Err(Stop::Error(timeout(&self.peer, self.options.deadline)));
                }
            }
        }
    }

    /// Releases batches still in use after the last one, so that the server can reuse their slabs.
    async fn linger(&mut self, releases: &mut mpsc::UnboundedReceiver<u64>) {
        let mut ticks = ticker(self.options.heartbeat);
        let mut heard = Instant::now();
        while !self.lent.is_empty() || !self.outbox.is_empty() {
            tokio::select! {
                frame = self.inbox.next(&self.socket) => match frame {
                    Ok(_) => heard = Instant::now(),
                    Err(_) => return,
                },
                sent = self.outbox.flush(&self.socket), if !self.outbox.is_empty() => {
                    if sent.is_err() {
                        return;
                    }
                }
                Some(number) = releases.recv() => self.release(number),
                _ = ticks.tick() => self.heartbeat(),
                () = sleep_until(heard + self.options.deadline) => return,
            }
        }
    }

    fn take(&mut self, frame: Frame, waiting: &mut Option<Incoming>) -> Result<After, Stop> {
        match frame {
            Frame::Batch { number, body, header, extra } => {
                let body = body.map(|body| self.map(number, body)).transpose()?.map(Arc::new);
                let extra = extra.into_iter().next().unwrap_or_default();
                *waiting = Some(Incoming { header, body, extra });
                Ok(After::Continue)
            }
            Frame::Heartbeat => Ok(After::Continue),
            Frame::Forget(slab) => {
                for exclusive in [false, true] {
                    if let Some(mapping) = self.mapped.remove(&(slab, exclusive)) {
                        self.mapped_bytes -= mapping.len() as u64;
                    }
                }
                Ok(After::Continue)
            }
            Frame::End => Ok(After::Ended(None)),
            Frame::Failed(refusal) => Ok(After::Ended(Some(Error::Remote {
                peer: self.peer.to_string(),
                what: refusal.message.clone(),
                source: Some(Box::new(refusal)),
            }))),
            Frame::Hello { .. } | Frame::Release(_) => Err(self.wrong("sent a frame that only ranks send")),
        }
    }

    /// Maps the tensors of batch `number`.
    fn map(&mut self, number: u64, body: Body) -> Result<HostBuffer, Stop> {
        if self.lent.contains(&number) {
            return Err(self.wrong("sent two batches with one number"));
        }
        if self.lent.len() >= usize::from(self.options.window.max(1)) {
            return Err(self.wrong("sent more batches than it was told to"));
        }
        let limit = |what: &str, asked: u64, limit: u64, option: &'static str| {
            Stop::Error(Error::limit(format!("{what} from {}", self.peer), asked, limit, option))
        };
        let options = &self.options;
        // The descriptor is taken first, so that it is not mistaken for the next batch's.
        let fd = if body.new {
            Some(self.inbox.descriptor().map_err(|error| self.wrong(&error.to_string()))?)
        } else {
            None
        };
        if body.slab_len > options.max_slab {
            return Err(limit("a slab", body.slab_len, options.max_slab, "max_slab"));
        }
        let key = (body.slab, body.exclusive);
        let mapping = match (fd, self.mapped.get(&key)) {
            (None, Some(known)) if known.len() as u64 == body.slab_len => Arc::clone(known),
            (None, _) => return Err(self.wrong("sent a slab without its descriptor")),
            (Some(_), Some(_)) => return Err(self.wrong("sent the descriptor of a slab twice")),
            (Some(fd), None) => {
                let bytes = self.mapped_bytes.saturating_add(body.slab_len);
                if bytes > options.max_mapped {
                    return Err(limit("the slabs mapped", bytes, options.max_mapped, "max_mapped"));
                }
                let slabs = self.mapped.len() as u64 + 1;
                if slabs > options.max_slabs as u64 {
                    return Err(limit("the number of slabs", slabs, options.max_slabs as u64, "max_slabs"));
                }
                let access = if body.exclusive { Access::Exclusive } else { Access::CopyOnWrite };
                let len = usize::try_from(body.slab_len).unwrap_or(usize::MAX);
                let mapping = Arc::new(Mapping::open(fd, len, access, &self.peer).map_err(Stop::Error)?);
                self.mapped_bytes = bytes;
                self.mapped.insert(key, Arc::clone(&mapping));
                mapping
            }
        };
        // Within `slab_len`, the length of the mapping: decoding the frame has checked that.
        let (offset, len) = (body.offset as usize, body.len as usize);
        let released = self.released.clone();
        let released = move || {
            // After the end of the session nobody needs this.
            let _ = released.send(number);
        };
        let buffer = mapping.lease(offset, len, &self.peer, released).map_err(Stop::Error)?;
        self.lent.insert(number);
        Ok(buffer)
    }

    fn release(&mut self, number: u64) {
        self.lent.remove(&number);
        // A release always fits.
        let _ = self.outbox.push(&Frame::Release(number), None);
    }

    fn heartbeat(&mut self) {
        if self.outbox.is_empty() {
            // A heartbeat always fits.
            let _ = self.outbox.push(&Frame::Heartbeat, None);
        }
    }

    fn wrong(&self, what: &str) -> Stop {
        Stop::Error(Error::Remote { peer: self.peer.to_string(), what: what.to_owned(), source: None })
    }

    fn broken(&self, broken: Broken) -> Stop {
        match broken {
            Broken::Malformed(malformed) => self.wrong(&malformed.to_string()),
            Broken::Closed => self.wrong("closed the connection before the last batch"),
            Broken::Io(error) => Stop::Error(Error::Remote {
                peer: self.peer.to_string(),
                what: "the connection failed".to_owned(),
                source: Some(error.into()),
            }),
        }
    }
}

/// Reason to stop receiving.
enum Stop {
    /// The reader is gone.
    Left,
    /// An error for the reader.
    Error(Error),
}
