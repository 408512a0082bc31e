//! A client and a hostile server: whatever the server sends, the client returns a typed error, within its time and its memory.
//!
//! The responses of an honest server are recorded, damaged and sent again. `BOWSTRING_SEED=<seed> cargo test --test it
//! flight_hostile::` repeats the random damage of one run.

use std::convert::Infallible;
use std::fs::File;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, UNIX_EPOCH};

use arrow::array::{ArrayRef, Float32Builder, Int64Array, ListBuilder, RecordBatch, StringArray};
use arrow_flight::{FlightData, FlightDescriptor, FlightInfo, Ticket as FlightTicket};
use bowstring::error::{Error, Result};
use bowstring::pipeline::{LoaderOptions, machine};
use bowstring::{Loader, tensor};
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message;
use serde_json::{Value, json};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use crate::{child, flight, support};

/// The client's budget for batches in flight.
const BUDGET: u64 = 64 << 20;

/// The responses of the server.
#[derive(Debug, Clone)]
struct Script {
    /// The body of the response to GetFlightInfo.
    info: Bytes,
    /// The body of the response to DoGet, piece by piece.
    stream: Vec<Bytes>,
    /// A body repeated endlessly afterwards, and the pause before each.
    endless: Option<(Bytes, Duration)>,
    /// The trailers at the end; without them, the server falls silent.
    trailers: Option<HeaderMap>,
}

/// A server that follows its script.
#[derive(Debug, Clone)]
struct Hostile(Arc<Mutex<Script>>);

impl NamedService for Hostile {
    const NAME: &'static str = "arrow.flight.protocol.FlightService";
}

impl Service<Request<Body>> for Hostile {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let script = self.0.lock().unwrap().clone();
        let (pieces, endless, last) = if request.uri().path().ends_with("GetFlightInfo") {
            (vec![script.info], None, Some(trailers(&Status::ok(""))))
        } else {
            (script.stream, script.endless, script.trailers)
        };
        let pieces = futures::stream::iter(pieces.into_iter().map(Frame::data));
        let endless = futures::stream::unfold(endless, |endless| async {
            let (piece, pause) = endless?;
            tokio::time::sleep(pause).await;
            Some((Frame::data(piece.clone()), Some((piece, pause))))
        });
        let last = futures::stream::once(async {
            match last {
                Some(last) => Frame::trailers(last),
                None => std::future::pending().await,
            }
        });
        let frames = pieces.chain(endless).chain(last).map(Ok::<_, Status>);
        let mut response = Response::new(Body::new(StreamBody::new(frames)));
        response.headers_mut().insert(http::header::CONTENT_TYPE, "application/grpc".parse().unwrap());
        Box::pin(std::future::ready(Ok(response)))
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut map = HeaderMap::new();
    status.add_header(&mut map).unwrap();
    map
}

/// The server and its current script; it ends with the runtime.
struct Stage {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    _runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn new(script: &Script) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let script = Arc::new(Mutex::new(script.clone()));
        let hostile = Hostile(Arc::clone(&script));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = futures::stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        runtime.spawn(tonic::transport::Server::builder().add_service(hostile).serve_with_incoming(incoming));
        Self { address, script, _runtime: runtime }
    }

    /// Plays `script` to a client; returns the number of batches it took, and its outcome.
    fn play(&self, script: Script, timeout: f64) -> (usize, Option<Error>, Duration) {
        *self.script.lock().unwrap() = script;
        let start = Instant::now();
        let mut batches = 0;
        let mut read = || -> Result<()> {
            let mut loader = Loader::open(options(format!("grpc://{}/data", self.address), timeout))?;
            while let Some(batch) = loader.next()? {
                assert!(batch.columns().iter().all(|(_, value)| match value {
                    tensor::Value::Tensor(tensor) => tensor.bytes().len() < BUDGET as usize,
                    tensor::Value::Arrow(array) => array.len() == batch.rows,
                }));
                batches += 1;
            }
            assert!(loader.stats().memory.peak <= BUDGET);
            Ok(())
        };
        let error = read().err();
        (batches, error, start.elapsed())
    }
}

fn options(url: String, timeout: f64) -> LoaderOptions {
    LoaderOptions {
        rank: Some(0),
        world_size: Some(1),
        timeout,
        memory_budget: Some(BUDGET),
        shuffle: false,
        ..LoaderOptions::new(url, 8)
    }
}

/// Writes numbers, lists and texts: a tensor, a ragged column and one that Arrow reads.
fn write(path: &std::path::Path) {
    let mut lists = ListBuilder::new(Float32Builder::new());
    (0..40).for_each(|row| lists.append_value((0..row % 5).map(|at| Some(at as f32))));
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..40)), false),
        ("list", Arc::new(lists.finish()), false),
        ("text", Arc::new(StringArray::from_iter_values((0..40).map(|row| "x".repeat(row % 7)))), false),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Records an honest server's description of a dataset, the messages of its stream, and its offer of shared memory.
fn record() -> (FlightInfo, Vec<FlightData>, Option<Value>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.parquet");
    write(&path);
    let served = flight::Served::start(&[("data", path.to_str().unwrap())], &flight::hasty());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let mut client = arrow_flight::flight_service_client::FlightServiceClient::new(channel);
        let asked = json!({"dataset": "data", "options": {"global_batch_size": 8, "shuffle": false}, "rank": 0});
        let mut info = client.get_flight_info(FlightDescriptor::new_cmd(asked.to_string())).await.unwrap().into_inner();
        let ticket: FlightTicket = info.endpoint[0].ticket.clone().unwrap();
        let mut stream = client.do_get(ticket).await.unwrap().into_inner();
        let mut messages = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            messages.push(message);
        }
        let mut announced: Value = serde_json::from_slice(&info.app_metadata).unwrap();
        let local = announced.as_object_mut().unwrap().remove("local");
        info.app_metadata = announced.to_string().into();
        (info, messages, local)
    })
}

/// Frames one gRPC message.
fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.extend_from_slice(message);
    framed.freeze()
}

/// Encodes a field that claims to be `length` bytes long, with the bytes there are.
fn field(number: u64, length: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_varint(number << 3 | 2, &mut out);
    prost::encoding::encode_varint(length, &mut out);
    out.extend_from_slice(bytes);
    out
}

/// True for an error that a caller can act on, and that does not report a panic.
fn is_typed(error: &Error) -> bool {
    let text = error.chain();
    !text.is_empty() && !text.contains("bug in bowstring") && !text.contains("without a word")
}

/// A server that cannot open more files has no shared memory for a large batch, and one that behaves more oddly hangs up at once. A
/// server that refuses the stream for another reason is asked again.
#[cfg(target_os = "linux")]
#[test]
fn shared_memory_without_batches_is_abandoned_for_tcp() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bowstring::flight::shm::{Listener, ListenerOptions, Refusal};
    use bowstring::memory::SharedAllocator;

    const NO_SLAB: u32 = 100;
    const UNAVAILABLE: u32 = 14;
    let (mut info, messages, local) = record();
    let (mut local, steps) = (local.unwrap(), messages.len() - 1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    for (code, given_up) in [(Some(NO_SLAB), true), (None, true), (Some(UNAVAILABLE), false)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let (name, serving) = match code {
            Some(code) => {
                let listener = Listener::bind(Arc::new(SharedAllocator::new()), ListenerOptions::default()).unwrap();
                let open = move |_| {
                    count.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(Err(Refusal { code, message: "no".to_owned() }))
                };
                (listener.name().to_owned(), runtime.spawn(listener.run(open, std::future::pending())))
            }
            None => {
                let name = format!("bowstring-test-{}", std::process::id());
                let socket = tokio::net::UnixListener::bind(format!("\0{name}")).unwrap();
                let hang_up = async move {
                    loop {
                        drop(socket.accept().await);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                };
                (name, runtime.spawn(hang_up))
            }
        };
        local["socket"] = name.into();
        let mut announced: Value = serde_json::from_slice(&info.app_metadata).unwrap();
        announced["local"] = local.clone();
        info.app_metadata = announced.to_string().into();
        let script = script(&info, &messages);
        let stage = Stage::new(&script);
        let (batches, error, _) = stage.play(script, if given_up { 30.0 } else { 3.0 });
        serving.abort();
        let asked = asked.load(Ordering::Relaxed);
        if given_up {
            assert!(
                error.is_none() && batches == steps && asked == 1,
                "{batches} of {steps}, asked {asked}: {error:?}"
            );
        } else {
            assert!(error.is_some() && batches == 0 && asked > 1, "{batches}, asked {asked}: {error:?}");
        }
    }
}

/// Simulates a server restarted with its columns in another order while the loader reads: the bytes would fit.
#[test]
fn columns_in_another_order_are_refused_before_a_batch_is_taken() {
    let (info, messages, _) = record();
    let stage = Stage::new(&script(&info, &messages));
    let mut loader = Loader::open(options(format!("grpc://{}/data", stage.address), 5.0)).unwrap();
    let schema = info.clone().try_decode_schema().unwrap();
    let fields = [1, 0, 2].map(|at| Arc::clone(&schema.fields()[at]));
    let other = arrow::datatypes::Schema::new(fields.to_vec());
    *stage.script.lock().unwrap() = script(&info.clone().try_with_schema(&other).unwrap(), &messages);
    let error = loader.next().unwrap_err();
    assert!(matches!(&error, Error::Mismatch { what, .. } if what.contains("schema")), "{}", error.chain());
}

#[test]
fn a_server_that_repeatedly_sends_nothing_is_left_for_another() {
    let (info, messages, _) = record();
    let honest = script(&info, &messages);
    let mut empty = honest.clone();
    empty.stream.truncate(1);
    empty.endless = Some((Bytes::new(), Duration::from_millis(50)));
    let (hostile, other) = (Stage::new(&empty), Stage::new(&honest));
    let [first, second] = [&hostile, &other].map(|stage| format!("grpc://{}/data", stage.address));
    let urls = vec![first.clone(), second];
    let mut loader = Loader::open(LoaderOptions { urls, ..options(first, 8.0) }).unwrap();
    let mut batches = 0;
    while loader.next().unwrap().is_some() {
        batches += 1;
    }
    assert_eq!(batches, messages.len() - 1);
}

/// Runs in a separate process, so that its memory can be measured.
#[test]
fn hostile_responses_are_typed_errors_and_cost_no_memory() {
    let seed = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seed = seed.unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64));
    let variables = [("HOSTILE_SEED", seed.to_string())];
    let output = child::start("flight_hostile::hostile_server", &variables).wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("again: BOWSTRING_SEED={seed} cargo test --test it flight_hostile::\n{text}");
    assert!(output.status.success() && text.contains("1 passed"), "the child failed");
}

pub(crate) fn hostile_server() {
    let seed = support::variable("HOSTILE_SEED").unwrap();
    let (info, messages, _) = record();
    assert!(messages.len() > 4);
    let honest = script(&info, &messages);
    let stage = Stage::new(&honest);
    let (batches, error, _) = stage.play(honest.clone(), 20.0);
    assert!(error.is_none() && batches == messages.len() - 1, "{batches}: {error:?}");
    let before = machine::peak_resident().unwrap();

    let cases = [of_the_info(&info, &honest), of_the_stream(&messages, &honest)].concat();
    let longest = Duration::from_millis(2500);
    let played = cases.len();
    for (what, script) in cases {
        let (mut batches, mut error, mut took) = stage.play(script.clone(), 1.0);
        for _ in 0..4 {
            // Machines are shared: a script that is really slow is slow each time.
            if took >= longest {
                (batches, error, took) = stage.play(script.clone(), 1.0);
            }
        }
        let error = error.unwrap_or_else(|| panic!("{what}: {batches} batches and no error"));
        assert!(is_typed(&error), "{what}: {}", error.chain());
        assert!(took < longest, "{what}: {took:?}, {}", error.chain());
        println!("{what}: {took:.0?}, {}", error.chain().chars().take(120).collect::<String>());
    }
    drop(stage);

    // Flipped bits anywhere: the damage may hit values, so batches may arrive. Errors are typed, and nothing takes long.
    let flips = if support::soak() { 2000 } else { 160 };
    let next = AtomicUsize::new(0);
    let ended = AtomicUsize::new(0);
    let slow = Mutex::new(Vec::new());
    let seed: u64 = seed.parse().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stage = Stage::new(&honest);
                loop {
                    let flip = next.fetch_add(1, Ordering::Relaxed);
                    if flip >= flips {
                        break;
                    }
                    let damaged = flipped(&honest, seed.wrapping_add(flip as u64));
                    let (_, error, took) = stage.play(damaged, 0.4);
                    if let Some(error) = error {
                        assert!(is_typed(&error), "flip {flip} of seed {seed}: {}", error.chain());
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                    if took >= longest {
                        slow.lock().unwrap().push(flip);
                    }
                }
            });
        }
    });
    // Machines are shared: a flip that is really slow is slow alone, and each time.
    let slow = slow.into_inner().unwrap();
    let stage = Stage::new(&honest);
    for flip in &slow {
        let play = || stage.play(flipped(&honest, seed.wrapping_add(*flip as u64)), 0.4).2;
        assert!((0..5).any(|_| play() < longest), "flip {flip} of seed {seed} is slow");
    }
    println!("{} flips were slow once", slow.len());
    let grown = machine::peak_resident().unwrap().saturating_sub(before) >> 20;
    let ended = ended.load(Ordering::Relaxed);
    println!("{played} scripts: errors with types; {flips} flips: {ended} errors; resident memory grew by {grown} MiB");
    assert!(ended > flips / 20, "flips do no damage: {ended}");
    // The budget, the largest response read at once (64 MiB, twice while it grows), and memory kept by threads.
    assert!(grown < 384, "{grown} MiB");
}

fn script(info: &FlightInfo, messages: &[FlightData]) -> Script {
    Script {
        info: framed(&info.encode_to_vec()),
        stream: messages.iter().map(|message| framed(&message.encode_to_vec())).collect(),
        endless: None,
        trailers: Some(trailers(&Status::ok(""))),
    }
}

/// Flips one to three bits, mostly in headers, where numbers are.
fn flipped(honest: &Script, seed: u64) -> Script {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % most
    };
    let mut damaged = honest.clone();
    for _ in 0..=below(3) {
        let piece = below(damaged.stream.len() + 1);
        let target = if piece == 0 { &mut damaged.info } else { &mut damaged.stream[piece - 1] };
        let mut bytes = target.to_vec();
        let reach = if below(4) == 0 { usize::MAX } else { 700 };
        let at = below(bytes.len().min(reach));
        bytes[at] ^= 1 << below(8);
        *target = bytes.into();
    }
    damaged
}

type Cases = Vec<(&'static str, Script)>;

fn of_the_info(info: &FlightInfo, honest: &Script) -> Cases {
    let mut cases = Cases::new();
    let mut raw = |what, bytes: Bytes| cases.push((what, Script { info: bytes, ..honest.clone() }));
    raw("info: nothing", Bytes::new());
    raw("info: half a message", framed(&info.encode_to_vec()).slice(..40));
    raw("info: bad protobuf", framed(&[0xff; 100]));
    raw("info: an unknown compression", Bytes::from_static(&[7, 0, 0, 0, 0]));
    raw("info: 4 GiB said", Bytes::from_static(&[0, 255, 255, 255, 255, 1, 2, 3]));
    raw("info: 60 MiB of nothing", framed(&field(9, 60 << 20, &vec![0; 60 << 20])));
    let mut changed = |what, change: &dyn Fn(&mut FlightInfo)| {
        let mut info = info.clone();
        change(&mut info);
        raw(what, framed(&info.encode_to_vec()));
    };
    changed("info: no schema", &|info| info.schema = Bytes::new());
    changed("info: a schema of noise", &|info| info.schema = Bytes::from_static(&[0xab; 300]));
    changed("info: half a schema", &|info| info.schema.truncate(info.schema.len() / 2));
    changed("info: a schema of 4 GiB", &|info| {
        info.schema = [&[255, 255, 255, 255, 255, 255, 255, 255][..], &info.schema[8..]].concat().into();
    });
    changed("info: no endpoint", &|info| info.endpoint.clear());
    changed("info: no ticket", &|info| info.endpoint[0].ticket = None);
    for (what, metadata) in [
        ("info: no metadata", Vec::new()),
        ("info: no JSON", vec![0xff; 50]),
        ("info: an empty object", b"{}".to_vec()),
        ("info: a hundred thousand brackets", vec![b'['; 100_000]),
    ] {
        changed(what, &|info| info.app_metadata = metadata.clone().into());
    }
    let mut said = |what, key: &str, value: Value| {
        changed(what, &|info| {
            let mut announced: Value = serde_json::from_slice(&info.app_metadata).unwrap();
            announced[key] = value.clone();
            info.app_metadata = announced.to_string().into();
        });
    };
    said("info: endless steps", "steps", json!(u64::MAX));
    said("info: a step fewer than come", "steps", json!(-1));
    said("info: a fingerprint that is none", "fingerprint", json!("zz"));
    said("info: a plan that is none", "spec", json!({"seed": "x"}));
    cases
}

fn of_the_stream(messages: &[FlightData], honest: &Script) -> Cases {
    let mut cases = Cases::new();
    let mut add = |what, change: &dyn Fn(&mut Script)| {
        let mut script = honest.clone();
        change(&mut script);
        cases.push((what, script));
    };
    add("nothing at all", &|script| script.stream.clear());
    add("nothing, and no end", &|script| (script.stream, script.trailers) = (Vec::new(), None));
    add("a cut within a message", &|script| script.stream[2].truncate(20));
    add("a cut without a status", &|script| {
        script.stream.truncate(3);
        script.trailers = Some(HeaderMap::new());
    });
    add("a status that is none", &|script| {
        script.stream.truncate(3);
        let mut map = HeaderMap::new();
        map.insert("grpc-status", "99999".parse().unwrap());
        script.trailers = Some(map);
    });
    for (what, detail) in [
        ("a detail that is no JSON", &b"\xff\xfe{"[..]),
        ("a detail that is endless", br#"{"kind":"timeout","stage":"x","culprit":"y","seconds":1e300}"#),
        ("a detail from before time", br#"{"kind":"timeout","stage":"x","culprit":"y","seconds":-1}"#),
    ] {
        add(what, &|script| {
            let mut status = Status::deadline_exceeded("late");
            status.metadata_mut().insert_bin("bowstring-error-bin", tonic::metadata::MetadataValue::from_bytes(detail));
            script.stream.truncate(2);
            script.trailers = Some(trailers(&status));
        });
    }
    add("a batch before the schema", &|script| drop(script.stream.remove(0)));
    add("the schema twice", &|script| script.stream.insert(1, script.stream[0].clone()));
    add("a batch twice", &|script| script.stream.insert(2, script.stream[2].clone()));
    add("a batch left out", &|script| drop(script.stream.remove(1)));
    add("a compressed message", &|script| script.stream[1] = [&[1], &script.stream[1][1..]].concat().into());
    add("4 GiB said", &|script| script.stream[1] = Bytes::from_static(&[0, 255, 255, 255, 255, 0x0a]));
    add("a body of 2^64 bytes", &|script| script.stream[1] = framed(&field(1000, u64::MAX, b"")));
    add("a header of 32 MiB", &|script| script.stream[1] = framed(&field(2, 32 << 20, &vec![0; 32 << 20])));
    add("a body that never comes", &|script| {
        let said = field(1000, 60 << 20, b"");
        let length = (said.len() as u32 + (60 << 20)).to_be_bytes();
        script.stream = vec![script.stream[0].clone(), [&[0], &length[..], &said].concat().into()];
        script.trailers = None;
    });
    add("a body that comes a byte at a time", &|script| {
        let said = field(1000, 60 << 20, b"");
        let length = (said.len() as u32 + (60 << 20)).to_be_bytes();
        script.stream = vec![script.stream[0].clone(), [&[0], &length[..], &said].concat().into()];
        script.endless = Some((Bytes::from_static(b"x"), Duration::from_millis(5)));
    });
    for (what, piece) in [
        ("empty messages for ever", Bytes::from_static(&[0; 5])),
        ("unknown fields for ever", framed(&field(7, 1 << 16, &[0; 1 << 16]))),
        ("bare schemas for ever", honest.stream[0].clone()),
        ("zeros for ever", Bytes::from_static(&[0; 1 << 16])),
        ("noise for ever", Bytes::from_static(&[0x5a; 1 << 16])),
    ] {
        add(what, &|script| {
            script.stream.truncate(1);
            script.endless = Some((piece.clone(), Duration::ZERO));
        });
    }
    add("unknown fields for ever in one message", &|script| {
        let head = [&[0], &(63_u32 << 20).to_be_bytes()[..]].concat();
        script.stream = vec![script.stream[0].clone(), head.into()];
        script.endless = Some((Bytes::from(field(7, 10, &[0; 10]).repeat(1000)), Duration::ZERO));
    });
    let mut message = |what, change: &dyn Fn(&mut FlightData)| {
        let mut data = messages[1].clone();
        change(&mut data);
        add(what, &|script| script.stream[1] = framed(&data.encode_to_vec()));
    };
    message("no header", &|data| data.data_header = Bytes::new());
    message("a header of noise", &|data| data.data_header = Bytes::from_static(&[0xab; 200]));
    message("half a header", &|data| data.data_header.truncate(data.data_header.len() / 2));
    message("a header of zeros", &|data| data.data_header = vec![0; data.data_header.len()].into());
    message("no body", &|data| data.data_body = Bytes::new());
    message("half a body", &|data| data.data_body.truncate(data.data_body.len() / 2));
    message("a body of a byte", &|data| data.data_body.truncate(1));
    for (what, metadata) in [
        ("no metadata", String::new()),
        ("metadata of another epoch", json!({"epoch": 1, "step": 0, "rows": 8}).to_string()),
        ("metadata of another step", json!({"epoch": 0, "step": 5, "rows": 8}).to_string()),
        ("metadata with too few rows", json!({"epoch": 0, "step": 0, "rows": 7}).to_string()),
        ("metadata with all rows there are", json!({"epoch": 0, "step": 0, "rows": u64::MAX}).to_string()),
        ("metadata that is long", format!("{{\"epoch\": 0, \"step\": 0, \"rows\": 8{}}}", " ".repeat(2000))),
    ] {
        message(what, &|data| data.app_metadata = metadata.clone().into());
    }
    // False numbers in the header: every small aligned word is enlarged, one at a time.
    for (what, value) in [("lengths of 2^62", 1_u64 << 62), ("lengths below zero", u64::MAX), ("2^40 of all", 1 << 40)]
    {
        message(what, &|data| {
            let mut header = data.data_header.to_vec();
            // The second half of a header holds its nodes and buffers.
            let from = header.len() / 2 / 8 * 8;
            for word in header[from..].chunks_exact_mut(8) {
                if u64::from_le_bytes(word.try_into().unwrap()) < 1 << 20 {
                    word.copy_from_slice(&value.to_le_bytes());
                }
            }
            data.data_header = header.into();
        });
    }
    // Offsets beyond the body: of lists that Arrow or we read.
    message("a body of ones", &|data| data.data_body = vec![0xff; data.data_body.len()].into());
    cases
}
