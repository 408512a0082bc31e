//! The whole server in a simulated network: two replicas, ranks with a stock Flight client, and faults between them. Every rank must
//! get every step of its share once, in order and with the right rows, whatever happens.
//!
//! Time and network are simulated; reading and decoding are real. The simulation waits a little at each tick to leave time for the real
//! work. A seed repeats the faults, not every interleaving.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightDescriptor, Ticket};
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Catalogue, Config, serve_on};
use bowstring::flight::wire::Position;
use bowstring::{Loader, LoaderOptions};
use futures::{StreamExt, TryStreamExt};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::Endpoint;
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};
use turmoil::{Builder, Sim};

use crate::support::{self, Random};

const PORT: u16 = 8815;
const TICK: Duration = Duration::from_millis(1);
/// Minimum real duration of a tick.
const REAL: Duration = Duration::from_micros(200);
const REPLICAS: [&str; 2] = ["replica0", "replica1"];
/// Maximum wait of a client for one answer or batch.
const PATIENCE: Duration = Duration::from_secs(4);
const BATCH: u64 = 16;

/// A connection of the simulated network, in the form that a server expects.
struct Incoming(TcpStream);

impl Connected for Incoming {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Incoming {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Connects over the simulated network.
#[derive(Clone)]
struct Connector;

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().to_owned();
            TcpStream::connect((host, uri.port_u16().unwrap_or(PORT))).await.map(TokioIo::new)
        })
    }
}

async fn serve(data: PathBuf, key: PathBuf) -> turmoil::Result {
    let mut catalogue = Catalogue::default();
    catalogue.add("numbers", vec![data.display().to_string()])?;
    let options = ServerOptions {
        key_file: Some(key),
        insecure: true,
        // No host to share memory with.
        shared_memory: Some(false),
        threads: Some(1),
        memory_budget: Some(256 << 20),
        ..ServerOptions::default()
    };
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let incoming = futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| Incoming(stream));
        Some((accepted, listener))
    });
    serve_on(incoming, "simulated", Config::new(catalogue, &options)?, std::future::pending()).await?;
    Ok(())
}

type Failed = Box<dyn std::error::Error>;

/// Runs `work` within the patience, or returns an error.
async fn soon<T, E: Into<Failed>>(work: impl Future<Output = Result<T, E>>) -> Result<T, Failed> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| "no answer")?.map_err(Into::into)
}

/// The ids that one rank received, step by step.
type Got = Rc<RefCell<Vec<Vec<i64>>>>;

/// Reads from `replica` from the next step on, until the end or a failure.
async fn read(replica: &str, rank: u32, world: u32, got: &Got) -> Result<(), Failed> {
    let endpoint = Endpoint::from_shared(format!("http://{replica}:{PORT}"))?;
    let channel = soon(endpoint.connect_with_connector(Connector)).await?;
    let mut client = FlightServiceClient::new(channel).max_decoding_message_size(64 << 20);
    let first = got.borrow().len() as u64;
    let asked = serde_json::json!({
        "dataset": "numbers", "options": {"batch_size": BATCH, "seed": 7, "order_version": 2}, "step": first, "rank": rank, "world_size": world,
    });
    let info = soon(client.get_flight_info(FlightDescriptor::new_cmd(asked.to_string()))).await?.into_inner();
    let ticket: Ticket = info.endpoint[0].ticket.clone().ok_or("no ticket")?;
    let stream = soon(client.do_get(ticket)).await?.into_inner();
    let mut decoder = FlightDataDecoder::new(stream.map_err(|status| FlightError::Tonic(Box::new(status))));
    loop {
        let Some(message) = soon(async { decoder.next().await.transpose() }).await? else { return Ok(()) };
        if let DecodedPayload::RecordBatch(batch) = message.payload {
            let position = Position::from_json(&message.inner.app_metadata)?;
            assert_eq!(position.step, got.borrow().len() as u64, "rank {rank}: a step came twice, or not at all");
            let ids = batch.column_by_name("id").ok_or("no id")?.as_primitive::<Int64Type>().values().to_vec();
            got.borrow_mut().push(ids);
            // Batches come quickly: without this pause, every fault would come too late.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns the steps expected at rank `rank`, from a local loader.
fn expected(data: &Path, rank: u32, world: u32) -> Vec<Vec<i64>> {
    let mut options = LoaderOptions::new(data.display().to_string(), BATCH);
    (options.seed, options.rank, options.world_size) = (7, Some(rank), Some(world));
    // The default of a descriptor without a tail.
    options.tail = Some(bowstring::plan::Tail::Pad);
    let mut loader = Loader::open(options).unwrap();
    std::iter::from_fn(|| loader.next().unwrap())
        .map(|batch| batch.tensor("id").unwrap().as_slice::<i64>().unwrap().to_vec())
        .collect()
}

/// Begins or ends a fault between `rank` and `replica`.
fn strike(sim: &mut Sim<'_>, kind: u64, begin: bool, rank: &str, replica: &str) {
    match (kind, begin) {
        (0 | 1, true) => sim.crash(replica),
        (0 | 1, false) => sim.bounce(replica),
        (2, true) => sim.partition(rank, replica),
        (3, true) => sim.partition_oneway(rank, replica),
        (4, true) => sim.partition_oneway(replica, rank),
        (2..=4, false) => sim.repair(rank, replica),
        (5, true) => sim.hold(rank, replica),
        (5, false) => sim.release(rank, replica),
        (6, true) => sim.set_link_latency(rank, replica, Duration::from_millis(200)),
        (6, false) => sim.set_link_latency(rank, replica, Duration::from_millis(1)),
        (_, true) => sim.bounce(replica),
        (_, false) => {}
    }
}

/// Runs one simulation; returns the number of retries by ranks.
fn simulate(seed: u64, data: &Path, key: &Path, world: u32, expected: &[Vec<Vec<i64>>]) -> u64 {
    let mut random = Random(seed);
    let mut below = |limit: u64| random.below(limit);
    let mut sim = Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(3600))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(1 + below(20)))
        .tcp_capacity(4096)
        .build();
    for replica in REPLICAS {
        let (data, key) = (data.to_owned(), key.to_owned());
        sim.host(replica, move || serve(data.clone(), key.clone()));
    }
    let got: Vec<Got> = (0..world).map(|_| Got::default()).collect();
    let retries = Rc::new(RefCell::new(0_u64));
    let done = Rc::new(RefCell::new(0_u32));
    for (rank, got) in (0_u32..).zip(&got) {
        let (got, retries, done) = (Rc::clone(got), Rc::clone(&retries), Rc::clone(&done));
        let steps = expected[rank as usize].len();
        let mut at = (seed + u64::from(rank)) as usize;
        sim.client(format!("rank{rank}"), async move {
            while got.borrow().len() < steps {
                // After any failure: the next replica, from the next step.
                if read(REPLICAS[at % 2], rank, world, &got).await.is_err() {
                    *retries.borrow_mut() += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                at += 1;
            }
            *done.borrow_mut() += 1;
            Ok(())
        });
    }
    let mut events = Vec::new();
    for _ in 0..3 + below(5) {
        let (begin, length) = (below(1_500), 1 + below(1_500));
        let (kind, rank, replica) = (below(8), format!("rank{}", below(world.into())), REPLICAS[below(2) as usize]);
        events.push((begin, true, kind, rank.clone(), replica));
        events.push((begin + length, false, kind, rank, replica));
    }
    events.sort_by_key(|event| event.0);
    let mut events = events.into_iter().peekable();
    while *done.borrow() < world || events.peek().is_some() {
        sim.step().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        std::thread::sleep(REAL);
        while let Some((_, begin, kind, rank, replica)) =
            events.next_if(|event| sim.elapsed() >= Duration::from_millis(event.0))
        {
            strike(&mut sim, kind, begin, &rank, replica);
        }
        assert!(
            sim.elapsed() < Duration::from_secs(600),
            "seed {seed}: {} of {world} ranks were served",
            done.borrow()
        );
    }
    for (rank, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(*got.borrow() == *expected, "seed {seed}: rank {rank} got other rows");
    }
    retries.take()
}

#[test]
fn every_step_comes_once_through_crashes_and_partitions() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("numbers");
    std::fs::create_dir(&data).unwrap();
    // Wide rows: unread batches do not fit into the client's buffers.
    support::write(&data, &[vec![100; 10], vec![100; 10]], 400);
    let key = home.path().join("key");
    let bytes: Vec<u8> = (0..32).map(|n| n * 7).collect();
    std::fs::write(&key, bytes).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let world = 3;
    let expected: Vec<_> = (0..world).map(|rank| expected(&data, rank, world)).collect();
    let chosen = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let count = if support::soak() { 200 } else { 6 };
    let mut retries = 0;
    for seed in chosen.map_or(0..count, |seed| seed..seed + 1) {
        println!("BOWSTRING_SEED={seed} cargo nextest run flight_sim");
        retries += simulate(seed, &data, &key, world, &expected);
    }
    println!("{retries} times a rank asked again");
    assert!(chosen.is_some() || retries > count, "the faults did nothing");
}
