//! Admission of connections: counted, and closed when they are silent, idle or old.
//!
//! The transport pings its peers, but only once HTTP/2 has begun: a peer that connects and sends nothing, or too little, would stay for
//! ever. So every connection carries a timer that fires when nothing comes.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future as _;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::limits::Limits;
use super::metrics::{Metrics, Open};
use crate::flight::server::stream::hangup::{self, Hangups};

/// Bytes of the preface of an HTTP/2 client; a TLS hello is longer.
const INTRODUCTION: u64 = 24;
/// Pause after the system refused to accept a connection, e.g. for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Yields the connections of `listener`, for ever; connections that fail during accept are skipped.
pub fn accepted(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> + Send {
    futures::stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Small messages must not wait for the acknowledgement of the last one.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "a connection ended before it began");
                        continue;
                    }
                    return Some((Ok(stream), listener));
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Until its preface has arrived.
    pub(crate) introduction: Duration,
    /// Without a byte from the peer.
    pub(crate) idle: Duration,
    /// In total.
    pub(crate) age: Duration,
}

impl Patience {
    fn of(limits: &Limits) -> Self {
        let seconds = Duration::from_secs;
        Self {
            introduction: limits.handshake(),
            idle: seconds(limits.idle_seconds),
            age: seconds(limits.connection_age_seconds.saturating_add(limits.connection_grace_seconds)),
        }
    }
}

/// Returns the address to count a peer by: one host may use any number of IPv6 addresses, all in one network of 64 bits.
pub(crate) fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

/// Returns the address of the peer of `io`.
fn address<IO: Connected<ConnectInfo: 'static>>(io: &IO) -> Option<SocketAddr> {
    let info: Box<dyn Any> = Box::new(io.connect_info());
    info.downcast_ref::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)
}

/// Number of connections by host.
type Peers = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One connection of a host.
struct Peer {
    peers: Peers,
    address: IpAddr,
}

impl Peer {
    /// Takes a place for one more connection from `address`, if it may have one. Sockets without an address are not counted.
    fn of(address: Option<SocketAddr>, peers: &Peers, most: usize) -> Result<Option<Self>, ()> {
        let Some(address) = address.map(|address| host(address.ip())) else { return Ok(None) };
        let mut counts = peers.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return Err(());
        }
        *count += 1;
        Ok(Some(Self { peers: Arc::clone(peers), address }))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut counts = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Admits as many connections at once as `limits` allow, in total and per address. Further ones are closed at once, so that their
/// clients try another replica instead of waiting. `hangups` can end admitted connections.
pub(crate) fn admit<S, IO>(
    incoming: S,
    limits: &Limits,
    metrics: Metrics,
    cut: watch::Receiver<bool>,
    hangups: Hangups,
) -> impl Stream<Item = io::Result<Admitted<IO>>> + Send
where
    S: Stream<Item = io::Result<IO>> + Send,
    IO: Connected + Send,
{
    let (peers, most) = (Peers::default(), limits.connections_per_peer);
    let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let patience = Patience::of(limits);
    incoming.filter_map(move |incoming| {
        let admitted = incoming.map(|io| {
            let place = Arc::clone(&places).try_acquire_owned().ok();
            let address = address(&io);
            let place = place.and_then(|place| Some((place, Peer::of(address, &peers, most).ok()?)));
            if place.is_none() {
                metrics.connection_refused();
            }
            place.map(|(place, peer)| {
                let mut admitted = Admitted::new(io, place, patience, metrics.connection(), cut.clone());
                admitted.peer = peer;
                if let Some(address) = address {
                    admitted.end_by(hangups.connect(address));
                }
                admitted
            })
        });
        std::future::ready(admitted.transpose())
    })
}

/// Completes when the connection is to be cut.
type Cut = Pin<Box<dyn std::future::Future<Output = ()> + Send>>;

impl<IO> std::fmt::Debug for Admitted<IO> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted")
            .field("received", &self.received)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// A connection that holds a permit while it lives.
pub struct Admitted<IO> {
    io: IO,
    opened: Instant,
    heard: Instant,
    received: u64,
    patience: Patience,
    clock: Pin<Box<Sleep>>,
    cut: Cut,
    /// Place among the connections of its address, held until the connection is gone.
    peer: Option<Peer>,
    /// Future that completes when the connection is to be ended, and the entry by which the connection is found.
    unread: Option<(Cut, hangup::Connected)>,
    _place: OwnedSemaphorePermit,
    _open: Open,
}

impl<IO> Admitted<IO> {
    pub(crate) fn new(
        io: IO,
        place: OwnedSemaphorePermit,
        patience: Patience,
        open: Open,
        mut cut: watch::Receiver<bool>,
    ) -> Self {
        let now = Instant::now();
        Self {
            io,
            opened: now,
            heard: now,
            received: 0,
            patience,
            clock: Box::pin(tokio::time::sleep(patience.introduction.min(patience.age))),
            cut: Box::pin(async move {
                // A server that is gone without notice cuts its connections too.
                let _ = cut.wait_for(|cut| *cut).await;
            }),
            peer: None,
            unread: None,
            _place: place,
            _open: open,
        }
    }

    /// Ends the connection when `connected` is asked to.
    fn end_by(&mut self, connected: hangup::Connected) {
        self.unread = Some((Box::pin(connected.hangup.asked().fuse()), connected));
    }

    /// Records the bytes written, or that there is no room for any.
    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        match (&self.unread, written) {
            (Some((_, connected)), Poll::Ready(Ok(bytes))) => connected.hangup.wrote(Some(*bytes)),
            (Some((_, connected)), Poll::Pending) => connected.hangup.wrote(None),
            _ => {}
        }
    }

    /// Returns the time at which the connection is closed if nothing more comes, and the reason.
    fn due(&self) -> (Instant, &'static str) {
        let silence = if self.received < INTRODUCTION {
            (self.opened + self.patience.introduction, "the peer did not introduce itself in time")
        } else {
            (self.heard + self.patience.idle, "the peer was silent for too long")
        };
        let age = (self.opened + self.patience.age, "the connection reached its greatest age");
        if age.0 <= silence.0 { age } else { silence }
    }

    /// Ready when the time is up; otherwise wakes the task when it may be.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, "the server ends"));
        }
        if let Some((asked, _)) = &mut self.unread
            && asked.as_mut().poll(cx).is_ready()
        {
            let why = "its client read nothing while others waited for memory";
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        loop {
            ready!(self.clock.as_mut().poll(cx));
            let (due, why) = self.due();
            if Instant::now() >= due {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            self.clock.as_mut().reset(due);
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Admitted<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, buffer) {
            Poll::Ready(done) => {
                self.heard = Instant::now();
                self.received = self.received.saturating_add((buffer.filled().len() - before) as u64);
                Poll::Ready(done)
            }
            Poll::Pending => self.poll_over(cx).map(Err),
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Admitted<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.wrote(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<IO: Connected> Connected for Admitted<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    fn limits() -> Limits {
        Limits { connections: 2, ..Limits::default() }
    }

    /// A server that never cuts its connections.
    fn uncut() -> watch::Receiver<bool> {
        let (sender, cut) = watch::channel(false);
        tokio::spawn(async move { sender.closed().await });
        cut
    }

    async fn pair(metrics: &Metrics) -> (DuplexStream, Admitted<DuplexStream>) {
        let (near, far) = tokio::io::duplex(1024);
        let incoming = futures::stream::iter([Ok(far)]);
        let limits = limits();
        let mut admitted = Box::pin(admit(incoming, &limits, metrics.clone(), uncut(), Hangups::default()));
        (near, admitted.next().await.unwrap().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn mute_idle_and_old_connections_are_closed_and_busy_ones_are_not() {
        let metrics = Metrics::new();
        let start = Instant::now();
        let elapsed = || start.elapsed().as_secs();
        let (mut near, mut far) = pair(&metrics).await;
        near.write_all(&[0; 23]).await.unwrap();
        let mut bytes = [0; 64];
        assert_eq!(far.read(&mut bytes).await.unwrap(), 23);
        let error = far.read(&mut bytes).await.unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && elapsed() == 10, "{error} after {} s", elapsed());

        let (mut near, mut far) = pair(&metrics).await;
        near.write_all(&[0; 24]).await.unwrap();
        assert_eq!(far.read(&mut bytes).await.unwrap(), 24);
        let error = far.read(&mut bytes).await.unwrap_err().to_string();
        assert!(error.contains("silent") && elapsed() == 10 + 300, "{error} after {} s", elapsed());

        let (mut near, mut far) = pair(&metrics).await;
        let writing = tokio::spawn(async move {
            while near.write_all(&[0; 24]).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        });
        let error = loop {
            if let Err(error) = far.read(&mut bytes).await {
                break error.to_string();
            }
        };
        assert!(error.contains("age") && elapsed() == 310 + 12 * 3600 + 300, "{error} after {} s", elapsed());
        drop(far);
        writing.await.unwrap();
    }

    /// A connection from an address.
    struct From(SocketAddr);

    impl Connected for From {
        type ConnectInfo = TcpConnectInfo;

        fn connect_info(&self) -> TcpConnectInfo {
            TcpConnectInfo { local_addr: None, remote_addr: Some(self.0) }
        }
    }

    #[tokio::test]
    async fn a_host_is_one_peer_however_many_addresses_it_has() {
        let limits = Limits { connections: 100, connections_per_peer: 2, ..Limits::default() };
        let of =
            |addresses: &[&str]| addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 1)).collect::<Vec<_>>();
        for (addresses, let_in) in [
            (of(&["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:3", "2001:db8:0:1::1", "2001:db8:0:1::2"]), 4),
            (of(&["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "10.0.0.2", "10.0.0.3"]), 4),
        ] {
            let incoming = futures::stream::iter(addresses.into_iter().map(|address| Ok(From(address))));
            let admitted: Vec<_> =
                admit(incoming, &limits, Metrics::new(), uncut(), Hangups::default()).collect().await;
            assert_eq!(admitted.len(), let_in);
        }
    }

    #[tokio::test]
    async fn a_connection_ends_when_that_is_asked_of_its_address() {
        struct Socket(DuplexStream, SocketAddr);

        impl Connected for Socket {
            type ConnectInfo = TcpConnectInfo;

            fn connect_info(&self) -> TcpConnectInfo {
                TcpConnectInfo { local_addr: None, remote_addr: Some(self.1) }
            }
        }

        impl AsyncRead for Socket {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.0).poll_read(cx, buffer)
            }
        }

        let (address, hangups) = ("10.0.0.1:7".parse().unwrap(), Hangups::default());
        let (_near, far) = tokio::io::duplex(1024);
        let incoming = futures::stream::iter([Ok(Socket(far, address))]);
        let limits = limits();
        let mut admitted = Box::pin(admit(incoming, &limits, Metrics::new(), uncut(), hangups.clone()));
        let mut connection = admitted.next().await.unwrap().unwrap();
        let asks = async {
            tokio::task::yield_now().await;
            assert!(hangups.of(address).unwrap().ask());
        };
        let mut bytes = [0; 8];
        let (error, ()) = tokio::join!(connection.read(&mut bytes), asks);
        assert!(error.unwrap_err().to_string().contains("read nothing"));
        drop(connection);
        assert!(hangups.of(address).is_none());
    }

    #[tokio::test]
    async fn there_are_only_so_many_places() {
        let metrics = Metrics::new();
        let incoming = futures::stream::iter((0..3).map(|_| Ok(tokio::io::duplex(1).1)));
        let admitted: Vec<_> = admit(incoming, &limits(), metrics.clone(), uncut(), Hangups::default()).collect().await;
        assert_eq!(admitted.len(), 2);
        let text = metrics.encode();
        assert!(
            text.contains("bowstring_connections_open 2") && text.contains("connections_refused_total 1"),
            "{text}"
        );
        drop(admitted);
        assert!(metrics.encode().contains("bowstring_connections_open 0"));
    }
}
