//! The admin endpoints over plain HTTP, on a port of their own: `/metrics`, `/livez`, `/readyz`, and the page at `/ui`.
//!
//! Readiness is public. Counters and snapshots require a token if admin tokens are configured; if not, and other hosts can reach the port, they are
//! shown without names of datasets.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::StreamExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service as _;

use super::connections::{accepted, admit};
use super::limits::Limits;
use super::metrics::Metrics;
pub use super::state::AdminState;
use super::ui;
use crate::error::{Error, Result};
use crate::flight::server::stream::hangup::{Hangup, Hangups};

/// Most connections at once. A scraper needs one, and so does a probe.
const CONNECTIONS: usize = 128;
/// Most of them of one address, so that whoever takes all that it may leaves places to probes from elsewhere.
const OF_ONE_ADDRESS: usize = 32;
/// Time for the head of a request, since the connection began or since the last answer. Scrapers reconnect.
const HEAD: Duration = Duration::from_secs(10);
/// Longest head of a request, in bytes.
const HEAD_BYTES: usize = 16 << 10;
/// Longest silence of a connection, and its longest life, in seconds.
const IDLE: u64 = 90;
const AGE: u64 = 600;
/// Time that answers may take after shutdown began.
const LAST: Duration = Duration::from_millis(500);

/// Answers on `listener` until `shutdown` completes.
///
/// # Errors
/// [`Error::Remote`] if the listener fails.
pub async fn admin(
    listener: TcpListener,
    state: Arc<AdminState>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let address = listener.local_addr().map_err(|error| Error::Remote {
        peer: "admin port".to_owned(),
        what: "it has no address".to_owned(),
        source: Some(Box::new(error)),
    })?;
    let known = Arc::clone(&state);
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .merge(ui::routes())
        .with_state((state, !address.ip().to_canonical().is_loopback()));
    let limits = Limits {
        connections: CONNECTIONS,
        connections_per_peer: OF_ONE_ADDRESS,
        handshake_seconds: HEAD.as_secs(),
        idle_seconds: IDLE,
        connection_age_seconds: AGE,
        connection_grace_seconds: 0,
        ..Limits::default()
    };
    // Counts of its own: the server's counters cover its clients only. Connections end with this call.
    let (_cut, cutting) = watch::channel(false);
    let mut incoming = Box::pin(admit(accepted(listener), &limits, Metrics::new(), cutting, Hangups::default()));
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(incoming) = incoming.next() => {
                if let Ok(stream) = incoming {
                    let caller = Caller { hangup: stream.hangup(), state: Arc::clone(&known) };
                    connections.spawn(serve(stream, router.clone(), caller, stopping.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(incoming);
    stop.send_replace(true);
    // A slow peer does not delay the end of the process.
    let _ = tokio::time::timeout(LAST, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

/// The caller of one connection. Probes need no token, so connections give way to new ones until one of their requests has a good one.
#[derive(Debug)]
struct Caller {
    hangup: Option<Hangup>,
    state: Arc<AdminState>,
}

impl Caller {
    /// Notes a request with these headers.
    fn asks(&self, headers: &HeaderMap) {
        if let Some(hangup) = self.hangup.as_ref().filter(|hangup| hangup.is_stranger())
            && self.state.knows(headers)
        {
            hangup.admit();
        }
    }
}

/// Answers the requests of one connection until it ends, or until its answer is sent after `stopping`.
async fn serve<IO>(io: IO, router: Router, caller: Caller, mut stopping: watch::Receiver<bool>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        caller.asks(request.headers());
        router.clone().call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    // Its errors are those of its peer.
    tokio::select! {
        _ = connection.as_mut() => return,
        // A port that is gone without notice ends its connections too.
        _ = stopping.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// The state, and true if other hosts can reach the port.
type Told = (Arc<AdminState>, bool);

async fn metrics(State((state, wide)): State<Told>, headers: HeaderMap) -> Response {
    let shown = match state.admit(&headers) {
        Err(denied) => return (StatusCode::UNAUTHORIZED, format!("{denied}\n")).into_response(),
        Ok(false) if wide || !ui::is_here(&headers) => nameless(&state.text()),
        Ok(_) => state.text(),
    };
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], shown).into_response()
}

/// Sums the counters of all datasets into one without names.
fn nameless(text: &str) -> String {
    let named = |line: &str| {
        let (name, rest) = line.split_once("{dataset=")?;
        Some((name.to_owned(), rest.rsplit_once(' ')?.1.parse::<u64>().ok()?))
    };
    let mut shown: Vec<(String, Option<u64>)> = Vec::new();
    for line in text.lines() {
        match (named(line), shown.last_mut()) {
            (Some((name, value)), Some((last, Some(sum)))) if *last == name => *sum = sum.saturating_add(value),
            (Some((name, value)), _) => shown.push((name, Some(value))),
            // Any other line with a dataset's name is left out.
            (None, _) if line.contains("dataset=") => {}
            (None, _) => shown.push((line.to_owned(), None)),
        }
    }
    let lines = shown.into_iter().map(|(line, sum)| match sum {
        Some(sum) => format!("{line} {sum}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

async fn ready(State((state, _)): State<Told>) -> impl IntoResponse {
    let phase = state.phase();
    let code = if phase == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, format!("{phase}\n"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::flight::server::access::auth::Tokens;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    async fn ask(address: SocketAddr, path: &str) -> String {
        ask_as("localhost", address, path).await
    }

    /// The answer to a request that names `host`.
    async fn ask_as(host: &str, address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn counters_name_datasets_to_this_host_and_to_holders_of_tokens_alone() {
        for (listen, tokens) in [("0.0.0.0:0", false), ("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
            let listener = TcpListener::bind(listen).await.unwrap();
            let address: SocketAddr = ([127, 0, 0, 1], listener.local_addr().unwrap().port()).into();
            let state = Arc::new(AdminState::new());
            for (dataset, rows) in [("photos", 3), ("texts", 4)] {
                state.metrics().stream(dataset).sent(rows, 100);
            }
            if tokens {
                state.set_tokens(Tokens::from_text("operator:correct-horse-battery").unwrap());
            }
            tokio::spawn(admin(listener, Arc::clone(&state), std::future::pending()));
            let plain = ask(address, "/metrics").await;
            assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
            let path = "/metrics HTTP/1.1\r\nauthorization: Bearer correct-horse-battery\r\nx: ";
            let told = ask(address, path).await;
            if tokens {
                assert!(plain.starts_with("HTTP/1.1 401") && !plain.contains("photos"), "{plain}");
                assert!(told.starts_with("HTTP/1.1 200") && told.contains("photos"), "{told}");
            } else if listen.starts_with("127") {
                assert!(plain.contains("bowstring_rows_total{dataset=\"photos\"} 3"), "{plain}");
                let foreign = ask_as("evil.example", address, "/metrics").await;
                assert!(!foreign.contains("photos") && foreign.contains("bowstring_rows_total 7\n"), "{foreign}");
            } else {
                assert!(!plain.contains("photos") && plain.contains("bowstring_rows_total 7\n"), "{plain}");
                assert!(plain.contains("# EOF"), "{plain}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_is_not_waited_for() {
        let (_stop, stopping) = watch::channel(false);
        let router = Router::new().route("/livez", get(|| async { "alive\n" }));
        let begun = "GET /livez HTTP/1.1\r\nhost: x\r\nx-a: ";
        for (sent, seconds, answers) in [
            (begun.to_owned(), 10, 0),
            (format!("{begun}a\r\n\r\n"), 10, 1),
            (format!("{begun}a\r\n\r\n{begun}"), 10, 1),
        ] {
            let (near, far) = tokio::io::duplex(1 << 16);
            let caller = Caller { hangup: None, state: Arc::new(AdminState::new()) };
            tokio::spawn(serve(far, router.clone(), caller, stopping.clone()));
            let start = Instant::now();
            let (mut answer, mut writes) = tokio::io::split(near);
            writes.write_all(sent.as_bytes()).await.unwrap();
            // A byte each second is no head.
            let writing = tokio::spawn(async move {
                while !sent.ends_with("\r\n\r\n") && writes.write_all(b"a").await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                writes
            });
            let mut text = String::new();
            answer.read_to_string(&mut text).await.unwrap();
            assert_eq!((start.elapsed().as_secs(), text.matches("alive").count()), (seconds, answers), "{text}");
            writing.abort();
        }
    }

    // Other systems have one address of this kind.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn probes_find_a_place_however_many_others_hold_theirs() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let address: SocketAddr = ([127, 0, 0, 1], listener.local_addr().unwrap().port()).into();
        let state = Arc::new(AdminState::new());
        state.set_tokens(Tokens::from_text("operator:correct-horse-battery").unwrap());
        tokio::spawn(admin(listener, state, std::future::pending()));
        let connect = async |host: u8| {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
            socket.connect(address).await.unwrap()
        };
        let answered = async |stream: &mut TcpStream| {
            let mut head = [0; 12];
            stream.read_exact(&mut head).await.is_ok_and(|_| &head == b"HTTP/1.1 200")
        };
        let request = "GET /livez HTTP/1.1\r\nhost: x\r\n";
        let mut operator = connect(1).await;
        operator
            .write_all(format!("{request}authorization: Bearer correct-horse-battery\r\n\r\n").as_bytes())
            .await
            .unwrap();
        assert!(answered(&mut operator).await);
        let mut held = Vec::new();
        for at in 0..CONNECTIONS + 2 * OF_ONE_ADDRESS {
            let mut stream = connect(2 + (at / OF_ONE_ADDRESS) as u8).await;
            stream.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
            assert!(answered(&mut stream).await, "{at}");
            held.push(stream);
        }
        let mut probe = connect(100).await;
        probe.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
        assert!(answered(&mut probe).await);
        // The first have given way, and who showed a token has not.
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), held[0].read_to_end(&mut rest)).await.unwrap();
        operator.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
        operator.read_exact(&mut [0; 1]).await.unwrap();
    }

    #[tokio::test]
    async fn phases_and_counters_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(AdminState::new());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(admin(listener, Arc::clone(&state), async {
            let _ = stopped.await;
        }));
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
        state.set_ready();
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        state.set_probe(|metrics| metrics.memory(1, 2));
        let answer = ask(address, "/metrics").await;
        assert!(answer.contains("openmetrics-text") && answer.contains("bowstring_memory_used_bytes 1"), "{answer}");
        assert!(ask(address, "/else").await.starts_with("HTTP/1.1 404"));
        state.set_draining();
        state.set_ready();
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("draining"), "{answer}");
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/metrics").await.contains("bowstring_draining 1"));
        // An idle connection does not delay the end.
        let _mute = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(5), running).await.unwrap().unwrap().unwrap();
    }
}
