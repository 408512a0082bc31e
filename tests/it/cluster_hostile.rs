//! The caches of other hosts when they lie, fall silent, or refuse: readers get the right rows from the origin, in time.
//!
//! The messages are built here by hand, from their description in `docs/cache.md` and the layout of a block's file.

use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow_flight::{FlightData, Ticket};
use bowstring::Loader;
use bowstring::store::cache::CacheStats;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower_service::Service;
use twox_hash::XxHash3_64;

use crate::cache::Rig;
use crate::cluster::{NOTHING, Node, all_given, options};
use crate::support::{self, drain};

/// Bytes per checksum.
const PIECE: usize = 64 << 10;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ask {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(string, tag = "2")]
    pub(crate) block: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    /// 0 waiting, 1 block, 2 lease, 3 declined.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(uint64, tag = "2")]
    pub(crate) lease: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) head: Bytes,
}

/// What a home does that is asked for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// One bit of the bytes is another.
    Flipped,
    /// The head is that of another block.
    OtherBlock,
    /// The answer ends before the bytes do.
    Cut,
    /// The answer stops before the bytes do, and does not end.
    Stalled,
    /// There are more bytes than asked for.
    Longer,
    /// The list of checksums is short.
    ShortHead,
    /// No word.
    Silent,
    /// Words without end.
    Waiting,
    /// An answer that nobody knows.
    Unknown,
    /// Metadata that is no message.
    Garbage,
    /// An error.
    Failing,
    /// A lease, and then the block is refused.
    Refusing,
    /// A lease, and then it is gone.
    Leaving,
}

#[derive(Debug, Clone)]
struct Hostile(Way);

impl NamedService for Hostile {
    const NAME: &'static str = "arrow.flight.protocol.FlightService";
}

/// A block's name: the object, and the range.
fn parsed(name: &str) -> ([u8; 16], u64, u64) {
    let mut parts = name.split('-');
    let hex = parts.next().unwrap();
    let mut object = [0; 16];
    for (at, byte) in object.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    }
    let mut number = || u64::from_str_radix(parts.next().unwrap(), 16).unwrap();
    (object, number(), number())
}

/// The head of a block of these bytes.
pub(crate) fn head((object, start, end): ([u8; 16], u64, u64), bytes: &[u8]) -> Vec<u8> {
    let sums: Vec<u8> = bytes.chunks(PIECE).flat_map(|piece| XxHash3_64::oneshot(piece).to_le_bytes()).collect();
    let mut head = b"BOWBLOCK".to_vec();
    head.extend(1_u32.to_le_bytes());
    head.extend((PIECE as u32).to_le_bytes());
    head.extend(object);
    head.extend(start.to_le_bytes());
    head.extend(end.to_le_bytes());
    let sum = XxHash3_64::oneshot(&[head.as_slice(), &sums].concat());
    head.extend(sum.to_le_bytes());
    head.extend(sums);
    head
}

fn framed(answer: Option<Answer>, bytes: &[u8]) -> Bytes {
    let app_metadata = answer.map_or_else(Vec::new, |answer| answer.encode_to_vec()).into();
    message(&FlightData { app_metadata, data_body: Bytes::copy_from_slice(bytes), ..FlightData::default() })
}

fn message(data: &FlightData) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(data.encoded_len() as u32);
    data.encode(&mut framed).unwrap();
    framed.freeze()
}

/// The messages for an asker, and true if the answer ends with them.
fn answer(way: Way, asked: &str) -> (Vec<Bytes>, bool) {
    let name = parsed(asked);
    // A consistent block of other bytes cannot be told apart; whoever has a token is trusted with that.
    let bytes = vec![7; (name.2 - name.1) as usize];
    let block = |head: Vec<u8>| Some(Answer { kind: 1, lease: 0, head: head.into() });
    let good = head(name, &bytes);
    match way {
        Way::Flipped => {
            let mut bad = bytes.clone();
            *bad.last_mut().unwrap() ^= 1;
            (vec![framed(block(good), &bad)], true)
        }
        Way::OtherBlock => (vec![framed(block(head((name.0, name.1 + 1, name.2 + 1), &bytes)), &bytes)], true),
        Way::Cut => (vec![framed(block(good), &bytes[..bytes.len() / 2])], true),
        Way::Stalled => (vec![framed(block(good), &bytes[..bytes.len() / 2])], false),
        Way::Longer => (vec![framed(block(good), &[bytes, vec![7]].concat())], true),
        Way::ShortHead => (vec![framed(block(good[..good.len() - 1].to_vec()), &bytes)], true),
        Way::Silent => (Vec::new(), false),
        Way::Waiting => (Vec::new(), false),
        Way::Unknown => (vec![framed(Some(Answer { kind: 77, ..Answer::default() }), &[])], false),
        Way::Garbage => {
            let app_metadata = Bytes::from_static(&[0xff; 40]);
            (vec![message(&FlightData { app_metadata, ..FlightData::default() })], false)
        }
        Way::Failing => (Vec::new(), true),
        Way::Refusing => (vec![framed(Some(Answer { kind: 2, lease: 9, ..Answer::default() }), &[])], false),
        Way::Leaving => (vec![framed(Some(Answer { kind: 2, lease: 9, ..Answer::default() }), &[])], true),
    }
}

impl Service<Request<Body>> for Hostile {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let way = self.0;
        if way == Way::Failing || !request.uri().path().ends_with("DoGet") {
            return Box::pin(ready(Ok(Status::internal("no").into_http())));
        }
        Box::pin(async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let ask = Ask::decode(Ticket::decode(body.slice(5..)).unwrap().ticket).unwrap();
            assert_eq!(ask.version, 1);
            let (messages, ends) = answer(way, &ask.block);
            let words = futures::stream::unfold(way == Way::Waiting, |is_waiting| async move {
                if !is_waiting {
                    return None;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
                Some((Frame::data(framed(Some(Answer::default()), &[])), true))
            });
            let last = futures::stream::once(async move {
                if !ends {
                    pending::<()>().await;
                }
                let mut trailers = http::HeaderMap::new();
                Status::ok("").add_header(&mut trailers).unwrap();
                Frame::trailers(trailers)
            });
            let messages = futures::stream::iter(messages.into_iter().map(Frame::data));
            let frames = messages.chain(words).chain(last).map(Ok::<_, Status>);
            let mut response = Response::new(Body::new(StreamBody::new(frames)));
            response.headers_mut().insert(http::header::CONTENT_TYPE, "application/grpc".parse().unwrap());
            Ok(response)
        })
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn hostile(runtime: &Runtime, way: Way) -> SocketAddr {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = Server::builder().add_service(Hostile(way)).serve_with_incoming(TcpIncoming::from(listener));
    drop(runtime.spawn(serving));
    address
}

/// Reads an epoch through a cache with one peer at `address`; it takes at most so long.
fn read(rig: &Rig, name: &str, address: SocketAddr, longest: Duration) -> CacheStats {
    let begin = Instant::now();
    let directory = rig.root.path().join(name);
    let mut loader = Loader::open(options(rig, &directory, NOTHING, 2, vec![address.to_string()])).unwrap();
    let rows = drain(&mut loader);
    let took = begin.elapsed();
    assert_eq!(rows, drain(&mut Loader::open(options(rig, &directory, NOTHING, 2, Vec::new())).unwrap()), "{name}");
    println!("{name}: {took:?}, {:?}", loader.stats().cache);
    assert!(took < longest, "{name} takes {took:?}");
    loader.stats().cache
}

#[test]
fn whatever_a_peer_does_the_rows_are_right_and_in_time() {
    let (rig, runtime) = (Rig::new(), runtime());
    for way in [
        Way::Flipped,
        Way::OtherBlock,
        Way::Cut,
        Way::Stalled,
        Way::Longer,
        Way::ShortHead,
        Way::Silent,
        Way::Unknown,
        Way::Garbage,
        Way::Failing,
        Way::Refusing,
        Way::Leaving,
    ] {
        let stats = read(&rig, &format!("{way:?}"), hostile(&runtime, way), Duration::from_secs(40));
        assert_eq!((stats.peer_hits, stats.given, stats.damaged), (0, 0, 0), "{way:?}: {stats:?}");
        assert!(stats.peer_failures > 0 && stats.origin_bytes >= rig.bytes / 2, "{way:?}: {stats:?}");
    }
}

#[test]
fn who_waits_for_another_reader_does_not_wait_for_ever() {
    if !support::soak() {
        // It waits for half a minute.
        return;
    }
    let (rig, runtime) = (Rig::new(), runtime());
    // The ends of the files, which are read at once.
    let begin = Instant::now();
    let mut options = options(&rig, &rig.root.path().join("x"), NOTHING, 0, Vec::new());
    options.cache_peers = vec![hostile(&runtime, Way::Waiting).to_string()];
    drop(Loader::open(options).unwrap());
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(25) && took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn a_peer_that_is_gone_or_answers_nothing_is_passed_by() {
    let (rig, runtime) = (Rig::new(), runtime());
    let gone = runtime.block_on(async { TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap() });
    let stats = read(&rig, "gone", gone, Duration::from_secs(20));
    assert!(stats.peer_failures > 0 && stats.given == 0, "{stats:?}");
    // Connections that nobody accepts, after a while not even the system.
    let deaf = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let stats = read(&rig, "deaf", deaf.local_addr().unwrap(), Duration::from_secs(40));
    assert!(stats.peer_failures > 0 && stats.peer_hits == 0, "{stats:?}");
}

#[test]
fn bytes_that_are_damaged_on_their_way_are_fetched_again() {
    let (rig, runtime) = (Rig::new(), runtime());
    let node = Node::start(&bowstring::flight::server::CacheServerOptions {
        place: rig.root.path().join("node").to_str().unwrap().to_owned(),
        bytes: Some(1 << 30),
        ..Default::default()
    });
    let mut first =
        Loader::open(options(&rig, &rig.root.path().join("first"), NOTHING, 2, vec![node.address.clone()])).unwrap();
    drain(&mut first);
    all_given(&first);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let to = node.address.clone();
    drop(runtime.spawn(async move {
        while let Ok((reader, _)) = listener.accept().await {
            let (mut asks, mut answers) = reader.into_split();
            let (mut from, mut into) = TcpStream::connect(&to).await.unwrap().into_split();
            drop(tokio::spawn(async move { tokio::io::copy(&mut asks, &mut into).await }));
            drop(tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(length) = from.read(&mut bytes).await {
                    // The middle of long pieces is bytes of blocks.
                    if length > 20_000 {
                        bytes[length / 2] ^= 0x40;
                    }
                    if length == 0 || answers.write_all(&bytes[..length]).await.is_err() {
                        break;
                    }
                }
            }));
        }
    }));
    let stats = read(&rig, "damaged", address, Duration::from_secs(60));
    assert!(stats.peer_failures > 0, "{stats:?}");
}
