//! The admin endpoints over plain HTTP, on a port of their own: `/metrics`, `/livez`, `/readyz`, and the page at `/ui`.
//!
//! Readiness is public. Counters and snapshots require a token if admin tokens are configured; if not, and other hosts can reach the port, they are
//! shown without names of datasets.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::connections::{Admitted, Patience};
use super::metrics::{Metrics, Open};
pub use super::state::AdminState;
use super::ui;
use crate::error::{Error, Result};

/// Most connections at once; a scraper needs one.
const CONNECTIONS: usize = 64;
/// Longest life of a connection; scrapers reconnect.
const PATIENCE: Patience =
    Patience { introduction: Duration::from_secs(10), idle: Duration::from_secs(90), age: Duration::from_secs(600) };
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
    let address = listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string());
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .merge(ui::routes())
        .with_state((state, listener.local_addr().map_or(true, |address| !address.ip().to_canonical().is_loopback())));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async move {
        shutdown.await;
        let _ = stop.send(());
    };
    let door = Door {
        listener,
        places: Arc::new(Semaphore::new(CONNECTIONS)),
        open: Metrics::new(),
        cut: watch::channel(false).0,
    };
    let serving = axum::serve(door, router).with_graceful_shutdown(shutdown);
    tokio::select! {
        ended = serving => ended.map_err(|error| Error::Remote {
            peer: format!("admin port {address}"),
            what: "serving failed".to_owned(),
            source: Some(Box::new(error)),
        }),
        // A slow peer does not delay the end of the process.
        () = async { let _ = stopped.await; tokio::time::sleep(LAST).await } => Ok(()),
    }
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

/// The listener, with a permit for each connection.
struct Door {
    listener: TcpListener,
    places: Arc<Semaphore>,
    /// Counts of its own: the server's counters cover its clients only.
    open: Metrics,
    /// Ends all connections with the listener.
    cut: watch::Sender<bool>,
}

impl axum::serve::Listener for Door {
    type Io = Admitted<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
            // Connections beyond the limit are closed at once.
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                let open: Open = self.open.connection();
                return (Admitted::new(stream, place, PATIENCE, open, self.cut.subscribe()), peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::server::access::auth::Tokens;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
