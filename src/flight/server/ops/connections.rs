//! Admission of connections: counted, and closed when they are silent, idle or old.
//!
//! The transport pings its peers, but only once HTTP/2 has begun: a peer that connects and sends nothing, or too little, would stay for
//! ever. So every connection carries a timer that fires when nothing comes.

use std::any::Any;
use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::limits::Limits;
use super::metrics::{Metrics, Open};
use super::places::{Asked, Place, Places};
use crate::flight::seldom::Seldom;
use crate::flight::server::stream::hangup::{self, Hangup, Hangups};

/// Bytes of the preface of an HTTP/2 client; a TLS hello is longer.
const INTRODUCTION: u64 = 24;
/// Pause after the system refused to accept a connection, e.g. for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Yields the connections of `listener`, for ever; connections that fail during accept are skipped.
pub fn accepted(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> + Send {
    let seldom = Seldom::default();
    futures::stream::unfold((listener, seldom), |(listener, seldom)| async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // Small messages must not wait for the acknowledgement of the last one.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "a connection ended before it began");
                        continue;
                    }
                    return Some((Ok(stream), (listener, seldom)));
                }
                Err(error) => {
                    if let Some(times) = seldom.count(std::time::Instant::now()) {
                        tracing::warn!(times, %error, "no connection could be accepted");
                    }
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

/// Returns the address of the peer of `io`.
fn address<IO: Connected<ConnectInfo: 'static>>(io: &IO) -> Option<SocketAddr> {
    let info: Box<dyn Any> = Box::new(io.connect_info());
    info.downcast_ref::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)
}

/// Admits as many connections at once as `limits` allow, in total and per address. Further ones take the place of one that has made no
/// admitted call; where there is none, they are closed at once, so that their clients try another replica instead of waiting. `hangups`
/// can end admitted connections.
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
    let places = Places::new(limits.connections, limits.connections_per_peer);
    let patience = Patience::of(limits);
    incoming.filter_map(move |incoming| {
        let admitted = incoming.map(|io| {
            let address = address(&io);
            let connected = address.map(|address| (address, hangups.connect(address)));
            let from = connected.as_ref().map(|(address, connected)| (address.ip(), connected.hangup.clone()));
            let place = match places.take(from) {
                Asked::Taken(place) => Some(place),
                Asked::TakenFrom(place) => {
                    metrics.connection_refused();
                    Some(place)
                }
                Asked::Full => {
                    metrics.connection_refused();
                    None
                }
            };
            place.map(|place| {
                let mut admitted = Admitted::new(io, place, patience, metrics.connection(), cut.clone());
                if let Some((_, connected)) = connected {
                    admitted.end_by(connected);
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

/// A connection that holds a place while it lives.
pub struct Admitted<IO> {
    io: IO,
    opened: Instant,
    heard: Instant,
    received: u64,
    patience: Patience,
    clock: Pin<Box<Sleep>>,
    cut: Cut,
    /// Future that completes when the connection is to be ended, and the entry by which the connection is found.
    hangup: Option<(Cut, hangup::Connected)>,
    _place: Place,
    _open: Open,
}

impl<IO> Admitted<IO> {
    fn new(io: IO, place: Place, patience: Patience, open: Open, mut cut: watch::Receiver<bool>) -> Self {
        let now = Instant::now();
        Self {
            io,
            opened: now,
            heard: now,
            received: 0,
            patience,
            clock: Box::pin(tokio::time::sleep(patience.introduction.min(patience.age))),
            cut: Box::pin(
                async move {
                    // A server that is gone without notice cuts its connections too.
                    let _ = cut.wait_for(|cut| *cut).await;
                }
                .fuse(),
            ),
            hangup: None,
            _place: place,
            _open: open,
        }
    }

    /// Ends the connection when `connected` is asked to.
    fn end_by(&mut self, connected: hangup::Connected) {
        self.hangup = Some((Box::pin(connected.hangup.asked().fuse()), connected));
    }

    /// Returns the handle that ends the connection.
    pub(crate) fn hangup(&self) -> Option<Hangup> {
        self.hangup.as_ref().map(|(_, connected)| connected.hangup.clone())
    }

    /// Records the bytes written, or that there is no room for any. A transport that waits for room reads nothing meanwhile, so the end
    /// of the connection is looked for here too.
    fn wrote(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some((_, connected)) = &self.hangup {
            match &written {
                Poll::Ready(Ok(bytes)) => connected.hangup.wrote(Some(*bytes)),
                Poll::Pending => connected.hangup.wrote(None),
                Poll::Ready(Err(_)) => {}
            }
        }
        if written.is_pending() { self.poll_told(cx).map(Err) } else { written }
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

    /// Ready when the connection was told to end.
    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, "the server ends"));
        }
        let Some((asked, connected)) = &mut self.hangup else { return Poll::Pending };
        // The future wakes the task; the reason stays.
        let _ = asked.as_mut().poll(cx);
        match connected.hangup.why() {
            Some(why) => Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, why)),
            None => Poll::Pending,
        }
    }

    /// Ready when the time is up; otherwise wakes the task when it may be.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if let Poll::Ready(told) = self.poll_told(cx) {
            return Poll::Ready(told);
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
        self.wrote(written, cx)
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
        self.wrote(written, cx)
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
    struct Socket(DuplexStream, SocketAddr);

    impl Connected for Socket {
        type ConnectInfo = TcpConnectInfo;

        fn connect_info(&self) -> TcpConnectInfo {
            TcpConnectInfo { local_addr: None, remote_addr: Some(self.1) }
        }
    }

    impl AsyncRead for Socket {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn a_connection_ends_when_that_is_asked_of_its_address() {
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
    async fn whoever_makes_no_call_gives_way_though_it_answers_pings_or_reads_nothing() {
        let (metrics, hangups, limits) = (Metrics::new(), Hangups::default(), limits());
        let (mut near, mut sockets) = (Vec::new(), Vec::new());
        let addresses: Vec<SocketAddr> = (1..=4).map(|host| SocketAddr::from(([10, 0, 0, host], 7))).collect();
        for address in &addresses {
            let (mut client, server) = tokio::io::duplex(64);
            client.write_all(&[0; 48]).await.unwrap();
            near.push(client);
            sockets.push(Ok(Socket(server, *address)));
        }
        let incoming = futures::stream::iter(sockets);
        let mut admitted = Box::pin(admit(incoming, &limits, metrics.clone(), uncut(), hangups));
        let mut next = async || admitted.next().await.unwrap().unwrap();
        let (mut reads, mut writes) = (next().await, next().await);
        reads.read_exact(&mut [0; 48]).await.unwrap();
        let _third = next().await;
        let error = reads.read(&mut [0; 8]).await.unwrap_err().to_string();
        assert!(error.contains("no admitted call"), "{error}");
        let _fourth = next().await;
        let error = writes.write_all(&[0; 100]).await.unwrap_err().to_string();
        assert!(error.contains("no admitted call"), "{error}");
        assert!(metrics.encode().contains("connections_refused_total 2"));
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
