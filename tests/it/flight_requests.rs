//! Random and damaged requests of every call against a server in this process: no panic, no stall of its runtime, bounded memory,
//! and an honest client is served afterwards. `BOWSTRING_SEED=<seed> cargo test --test it flight_requests::` repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_flight::{Action, Criteria, FlightData, FlightDescriptor, Ticket};
use bowstring::Loader;
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Catalogue, Config, serve};
use bowstring::pipeline::LoaderOptions;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full, Limited};
use prost::Message;
use serde_json::json;
use tonic::body::Body;
use tonic::transport::Channel;
use tower_service::Service as _;

use crate::support::{self, Random};

const FLIGHT: &str = "/arrow.flight.protocol.FlightService/";
/// Maximum pause of the server's runtime: generous, for a busy machine.
const LONGEST_STALL: Duration = Duration::from_secs(1);
/// Maximum growth of the process: the budget, and memory kept by allocators.
const GROWTH: u64 = 512 << 20;

static PANICS: AtomicUsize = AtomicUsize::new(0);

fn framed(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    [&[0][..], &(body.len() as u32).to_be_bytes(), &body].concat()
}

/// Returns honest requests to be damaged: the call and its body.
fn honest() -> Vec<(String, Vec<u8>)> {
    let asked = json!({"dataset": "data", "rank": 0, "world_size": 2, "options": {"global_batch_size": 8, "seed": 7}});
    let rows = json!({"dataset": "data", "rows": {"parts": 2, "part": 0}, "options": {"columns": ["id"]}});
    let caller = json!({"gang": "g", "rank": 0, "attempt": format!("{:032x}", 1), "generation": 1});
    let join = json!({
        "gang": "g", "rank": 0, "world_size": 1, "attempt": format!("{:032x}", 1), "share": null,
        "info": {"address": "", "device": "", "host": ""}, "token": null, "timeout_ms": 50, "poll_ms": 50,
    });
    let action = |name: &str, body: &serde_json::Value| {
        (format!("{FLIGHT}DoAction"), framed(&Action::new(name, body.to_string())))
    };
    let batch = arrow::array::RecordBatch::try_from_iter([(
        "id",
        Arc::new(arrow::array::Int64Array::from(vec![1, 2])) as arrow::array::ArrayRef,
    )])
    .unwrap();
    let mut put = arrow_flight::utils::batches_to_flight_data(&batch.schema(), [&batch]).unwrap();
    let part = json!({"dataset": "new", "write": "w", "task": 0, "attempt": 0});
    put[0].flight_descriptor = Some(FlightDescriptor::new_cmd(part.to_string()));
    let put = put.iter().flat_map(|data: &FlightData| framed(data)).collect();
    vec![
        (format!("{FLIGHT}GetFlightInfo"), framed(&FlightDescriptor::new_cmd(asked.to_string()))),
        (format!("{FLIGHT}GetFlightInfo"), framed(&FlightDescriptor::new_cmd(rows.to_string()))),
        (format!("{FLIGHT}GetSchema"), framed(&FlightDescriptor::new_path(vec!["data".to_owned()]))),
        (format!("{FLIGHT}ListFlights"), framed(&Criteria::default())),
        (format!("{FLIGHT}DoGet"), framed(&Ticket::new(vec![7; 200]))),
        (format!("{FLIGHT}DoPut"), put),
        (format!("{FLIGHT}DoExchange"), framed(&FlightData::default())),
        (format!("{FLIGHT}Handshake"), vec![]),
        ("/grpc.health.v1.Health/Check".to_owned(), vec![0; 5]),
        action("stats", &json!({})),
        action("state", &asked),
        action("gang.join", &join),
        action("gang.state", &json!({"gang": "g"})),
        action("gang.barrier", &json!({"caller": caller, "round": 1, "message": "", "timeout_ms": 50, "poll_ms": 50})),
        action("put.commit", &json!({"dataset": "new", "write": "w", "mode": "append", "tokens": []})),
        action("put.abort", &json!({"dataset": "new", "prefix": "w"})),
        action("put.drop", &json!({"dataset": "new"})),
    ]
}

fn damaged(random: &mut Random, honest: &[(String, Vec<u8>)]) -> (String, Vec<u8>) {
    let (path, mut body) = random.pick(honest);
    match random.below(8) {
        // Unchanged.
        0 => {}
        // Arbitrary bytes, for any call.
        1 => body = (0..random.index(3000)).map(|_| random.next() as u8).collect(),
        // The body of another call.
        2 => body = random.pick(honest).1,
        // Long, and twice.
        3 => body.resize(body.len() + random.index(200_000), random.next() as u8),
        4 => body = body.repeat(1 + random.index(4)),
        _ => {
            for _ in 0..1 + random.below(6) {
                let at = random.index(body.len().max(1));
                match random.below(4) {
                    0 => body.truncate(at),
                    1 => body.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
                    2 => body.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
                    _ => body.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
                }
            }
        }
    }
    // The prefix is mostly correct, so that the rest is parsed.
    if body.len() >= 5 && !path.ends_with("DoPut") && random.chance(70) {
        let length = (body.len() as u32 - 5).to_be_bytes();
        body[0] = 0;
        body[1..5].copy_from_slice(&length);
    }
    (path, body)
}

/// Returns the status of a call as its number; none if no response came in time.
async fn call(channel: &Channel, path: &str, body: Vec<u8>) -> Option<String> {
    let mut channel = channel.clone();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let request = Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::new(Bytes::from(body))))
        .unwrap();
    let answered = async {
        let response = channel.call(request).await.ok()?;
        if let Some(status) = response.headers().get("grpc-status") {
            return Some(status.to_str().unwrap().to_owned());
        }
        let body = Limited::new(response.into_body(), 64 << 20).collect().await.ok()?;
        Some(body.trailers()?.get("grpc-status")?.to_str().unwrap().to_owned())
    };
    tokio::time::timeout(Duration::from_secs(2), answered).await.ok().flatten()
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Ticks every few milliseconds on its runtime, and records the longest pause in microseconds.
async fn watch(longest: Arc<AtomicU64>) {
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(5)).await;
        longest.fetch_max(last.elapsed().as_micros() as u64, Ordering::Relaxed);
        last = Instant::now();
    }
}

#[test]
fn random_requests_never_stall_the_server() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() == Some("fuzzed-server") {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        hook(info);
    }));
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![40; 4]], 4);
    let mut catalogue = Catalogue::default();
    catalogue.add("data", vec![directory.path().to_str().unwrap().to_owned()]).unwrap();
    let options = ServerOptions {
        put: Some("memory".into()),
        memory_budget: Some(128 << 20),
        threads: Some(1),
        drain_grace: Some(0.1),
        ..Default::default()
    };
    let config = Config::new(catalogue, &options).unwrap();
    // One worker: the watchdog notices whatever blocks it.
    let mut server = tokio::runtime::Builder::new_multi_thread();
    let server = server.worker_threads(1).thread_name("fuzzed-server").enable_all().build().unwrap();
    let listener = server.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = server.spawn(serve(listener, config, async {
        let _ = stopped.await;
    }));
    let longest = Arc::new(AtomicU64::new(0));
    server.spawn(watch(Arc::clone(&longest)));

    let seed = support::variable("BOWSTRING_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("repeat with: BOWSTRING_SEED={seed} cargo test --test it flight_requests::");
    let (mut random, honest) = (Random(seed), honest());
    let count = if support::soak() { 3000 } else { 300 };
    let before = resident();
    let mut statuses: BTreeMap<String, usize> = BTreeMap::new();
    let client = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    client.block_on(async {
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        let mut channel = endpoint.connect().await.unwrap();
        for number in 0..count {
            if number % 50 == 49 {
                channel = endpoint.connect().await.unwrap();
            }
            let (path, body) = damaged(&mut random, &honest);
            let status = call(&channel, &path, body).await;
            *statuses.entry(status.unwrap_or_else(|| "none".to_owned())).or_default() += 1;
        }
    });
    let grown = resident().saturating_sub(before);
    let stall = Duration::from_micros(longest.load(Ordering::Relaxed));
    println!("{count} requests: statuses {statuses:?}, {} MiB grown, longest stall {stall:?}", grown >> 20);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
    assert!(stall < LONGEST_STALL, "{stall:?}");
    assert!(statuses.len() >= 4, "requests of several fates: {statuses:?}");

    let mut options = LoaderOptions { timeout: 30.0, ..LoaderOptions::new(format!("grpc://{address}/data"), 8) };
    options.storage_options.insert("transport".to_owned(), "tcp".to_owned());
    let mut loader = Loader::open(options).unwrap();
    let rows = std::iter::from_fn(|| loader.next().unwrap()).map(|batch| support::ids(&batch).len()).sum::<usize>();
    assert_eq!(rows, 160);
    drop(loader);
    stop.send(()).unwrap();
    server.block_on(serving).unwrap().unwrap();
    server.shutdown_background();
}
