//! A served cache under callers that lie, guess and never finish: no file but its own is touched, nothing is kept that does not agree with
//! its checksums, and honest readers are served meanwhile.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Criteria, Empty, FlightData, Ticket};
use bowstring::Loader;
use bowstring::flight::server::CacheServerOptions;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::join_all;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::cache::Rig;
use crate::cluster::{NOTHING, Node, all_given, options};
use crate::cluster_hostile::{Answer, Ask, head, runtime};
use crate::flight_abuse::{END_HEADERS, HEADERS, frame, headers, introduced};
use crate::serve_shell::write;
use crate::support::drain;

const BLOCK: i32 = 1;
const LEASE: i32 = 2;
const OBJECT: [u8; 16] = [7; 16];
/// Maximum duration of a step of a test.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Message)]
struct Given {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(string, tag = "2")]
    block: String,
    #[prost(uint64, tag = "3")]
    lease: u64,
    #[prost(bytes = "bytes", tag = "4")]
    head: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Kept {
    #[prost(bool, tag = "1")]
    kept: bool,
}

type Client = FlightServiceClient<Channel>;

fn name(start: u64, end: u64) -> String {
    let object: String = OBJECT.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{object}-{start:x}-{end:x}")
}

fn node(directory: &std::path::Path, more: CacheServerOptions) -> Node {
    Node::start(&CacheServerOptions {
        place: directory.join("node").to_str().unwrap().to_owned(),
        bytes: Some(1 << 30),
        ..more
    })
}

async fn client(node: &Node) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", node.address)).unwrap();
    let channel = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(1 << 20).connect().await;
    FlightServiceClient::new(channel.unwrap()).max_decoding_message_size(64 << 20)
}

fn with_token<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

/// An answer: its first message that is no wait, and what follows.
struct Answered {
    told: Answer,
    bytes: Bytes,
    rest: Streaming<FlightData>,
}

impl Answered {
    /// All bytes of the block.
    async fn block(mut self) -> Vec<u8> {
        assert_eq!(self.told.kind, BLOCK);
        let mut bytes = self.bytes.to_vec();
        while let Some(part) = self.rest.message().await.unwrap() {
            bytes.extend_from_slice(&part.data_body);
        }
        bytes
    }
}

async fn asked(client: &Client, token: Option<&str>, ticket: Vec<u8>) -> Result<Answered, Status> {
    let asking = async {
        let mut rest = client.clone().do_get(with_token(Ticket { ticket: ticket.into() }, token)).await?.into_inner();
        loop {
            let message = rest.message().await?.ok_or_else(|| Status::data_loss("no answer"))?;
            let told = Answer::decode(message.app_metadata).unwrap();
            if told.kind != 0 {
                return Ok(Answered { told, bytes: message.data_body, rest });
            }
        }
    };
    tokio::time::timeout(LONGEST, asking).await.expect("it answers")
}

async fn ask(client: &Client, block: &str) -> Result<Answered, Status> {
    asked(client, None, Ask { version: 1, block: block.to_owned() }.encode_to_vec()).await
}

async fn give(client: &Client, metadata: Vec<u8>, parts: Vec<Vec<u8>>) -> Result<bool, Status> {
    let first = FlightData { app_metadata: metadata.into(), ..FlightData::default() };
    let parts = parts.into_iter().map(|part| FlightData { data_body: part.into(), ..FlightData::default() });
    let messages = futures::stream::iter(std::iter::once(first).chain(parts));
    let giving = async {
        let answer = client.clone().do_put(messages).await?.into_inner().message().await?;
        Ok(Kept::decode(answer.unwrap().app_metadata).unwrap().kept)
    };
    tokio::time::timeout(LONGEST, giving).await.expect("it answers")
}

fn gift(block: &str, lease: u64, head: Vec<u8>) -> Vec<u8> {
    Given { version: 1, block: block.to_owned(), lease, head: head.into() }.encode_to_vec()
}

#[test]
fn names_that_no_reader_has_are_refused_and_touch_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path(), CacheServerOptions::default());
    runtime().block_on(async {
        let client = client(&node).await;
        let good = name(0, 5);
        for bad in [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "/etc/passwd",
            "ledger",
            "BOWSTRING_CACHE",
            &good[..34],
            &format!("../{good}"),
            &format!("{good}/.."),
            &format!("{good}\0"),
            &format!("{good}-5"),
            &good.to_uppercase().replace("-0-5", "-A-F"),
            &name(0, 5).replace("-0-", "-00-"),
            &name(5, 5),
            &name(9, 5),
            &name(1 << 63, 5),
            &name(0, u64::MAX),
            &name(0, 1 << 63),
            &name(0, (256 << 20) + 1),
            &good.replace("-5", "-10000000000000005"),
            &good.replace("-5", "--5"),
        ] {
            let status = ask(&client, bad).await.err().unwrap_or_else(|| panic!("{bad:?} is answered"));
            assert_eq!(status.code(), Code::InvalidArgument, "{bad:?}: {status}");
            let status = give(&client, gift(bad, 1, Vec::new()), vec![vec![1; 5]]).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{bad:?}: {status}");
        }
        let status = ask(&client, &"a".repeat(1 << 20)).await.err().unwrap();
        assert!(matches!(status.code(), Code::OutOfRange | Code::InvalidArgument), "{status}");
        let newer = Ask { version: 2, block: good.clone() }.encode_to_vec();
        for (ticket, code) in [(newer, Code::FailedPrecondition), (vec![0xff; 40], Code::InvalidArgument)] {
            assert_eq!(asked(&client, None, ticket).await.err().unwrap().code(), code);
        }
        for action in ["", "evict", "../room"] {
            let status = client.clone().do_action(Action::new(action, "x")).await.err().unwrap();
            assert_eq!(status.code(), Code::Unimplemented);
        }
        assert_eq!(client.clone().list_flights(Criteria::default()).await.err().unwrap().code(), Code::Unimplemented);
        assert_eq!(client.clone().list_actions(Empty {}).await.err().unwrap().code(), Code::Unimplemented);
        // Any offset of 64 bits is one.
        for start in [(1 << 63) - 2, 1 << 63, u64::MAX - 4] {
            let (block, bytes) = (name(start, start + 4), vec![3; 4]);
            let lease = ask(&client, &block).await.unwrap();
            assert_eq!(lease.told.kind, LEASE);
            let metadata = gift(&block, lease.told.lease, head((OBJECT, start, start + 4), &bytes));
            assert!(give(&client, metadata, vec![bytes.clone()]).await.unwrap());
            assert_eq!(ask(&client, &block).await.unwrap().block().await, bytes);
            // Another object, as of another store, is another block.
            let other = ask(&client, &block.replacen('7', "6", 1)).await.unwrap();
            assert_eq!((other.told.kind, other.bytes.len()), (LEASE, 0));
        }
    });
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["node"]);
}

#[test]
fn gifts_that_are_wrong_reach_nobody() {
    const LENGTH: usize = 200_000;
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path(), CacheServerOptions::default());
    runtime().block_on(async {
        let (giver, reader) = (client(&node).await, client(&node).await);
        let (block, bytes): (_, Vec<u8>) =
            (name(64, 64 + LENGTH as u64), (0..LENGTH).map(|at| (at * 31) as u8).collect());
        let key = (OBJECT, 64, 64 + LENGTH as u64);
        let good = head(key, &bytes);
        let lease = ask(&giver, &block).await.unwrap();
        assert_eq!(lease.told.kind, LEASE);
        let number = lease.told.lease;
        let waiting = tokio::spawn({
            let (reader, block) = (reader.clone(), block.clone());
            async move { ask(&reader, &block).await.unwrap().block().await }
        });
        let mut flipped = bytes.clone();
        flipped[LENGTH / 2] ^= 1;
        let mut sums = good.clone();
        *sums.last_mut().unwrap() ^= 1;
        let whole = || vec![bytes.clone()];
        let own = |head: &[u8]| gift(&block, number, head.to_vec());
        for (what, metadata, parts) in [
            ("another byte", own(&good), vec![flipped.clone()]),
            ("another checksum", own(&sums), whole()),
            ("the head of another block", own(&head((OBJECT, 65, 65 + LENGTH as u64), &bytes)), whole()),
            ("the head of another object", own(&head(([8; 16], key.1, key.2), &bytes)), whole()),
            ("a head that claims more", own(&head((OBJECT, 64, 1 << 40), &bytes)), whole()),
            ("a short head", own(&good[..good.len() - 1]), whole()),
            ("a long head", own(&[&good[..], &[0; 8]].concat()), whole()),
            ("no head", own(&[]), whole()),
            ("too few bytes", own(&good), vec![bytes[..LENGTH - 1].to_vec()]),
            ("too many bytes", own(&good), vec![[&bytes[..], &[0]].concat()]),
            ("an empty part", own(&good), vec![bytes[..70_000].to_vec(), Vec::new(), bytes[70_000..].to_vec()]),
            ("nothing", own(&good), Vec::new()),
            ("no message", vec![0xff; 40], whole()),
        ] {
            let status = give(&giver, metadata, parts).await.expect_err(what);
            assert!(matches!(status.code(), Code::DataLoss | Code::InvalidArgument), "{what}: {status}");
        }
        // A block of its own is consistent, and has no lease.
        let mine = head(key, &flipped);
        for guess in [0, number + 1, u64::MAX] {
            assert!(!give(&giver, gift(&block, guess, mine.clone()), vec![flipped.clone()]).await.unwrap(), "{guess}");
        }
        let other = name(64, 65 + LENGTH as u64);
        assert!(!give(&giver, gift(&other, number, good.clone()), whole()).await.unwrap());
        assert!(!waiting.is_finished(), "nobody has it");
        assert!(give(&giver, own(&good), whole()).await.unwrap());
        assert!(waiting.await.unwrap() == bytes && ask(&reader, &block).await.unwrap().block().await == bytes);
        // It is here now, and nobody gives it once more.
        assert!(!give(&giver, gift(&block, number, mine), vec![flipped]).await.unwrap());
        assert!(ask(&reader, &block).await.unwrap().block().await == bytes);
    });
}

#[test]
fn without_a_token_nothing_is_answered_and_guesses_are_slow() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = write(directory.path(), "tokens", "ranks:a-token-of-the-ranks\n");
    let node = node(directory.path(), CacheServerOptions { tokens: Some(tokens.into()), ..Default::default() });
    runtime().block_on(async {
        let client = client(&node).await;
        let ticket = || Ask { version: 1, block: name(0, 5) }.encode_to_vec();
        for token in [None, Some("a-token"), Some("A-token-of-the-ranks"), Some("ranks:a-token-of-the-ranks")] {
            let status = asked(&client, token, ticket()).await.err().unwrap();
            assert_eq!(status.code(), Code::Unauthenticated, "{token:?}");
        }
        let status = give(&client, gift(&name(0, 5), 1, Vec::new()), vec![vec![1; 5]]).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        let status = client.clone().do_action(Action::new("room", "")).await.err().unwrap();
        assert_eq!(status.code(), Code::Unauthenticated);
        // Fewer than refusals that end a connection (h2 closes one with 1,024 streams whose bodies came too late), and few at once.
        let guesses = futures::stream::iter(0..800).map(|number| {
            let (client, guess) = (client.clone(), format!("a-token-{number}"));
            async move { asked(&client, Some(guess.as_str()), ticket()).await.err().unwrap().code() }
        });
        let guesses: Vec<_> = guesses.buffer_unordered(100).collect().await;
        let held = guesses.iter().filter(|code| **code == Code::ResourceExhausted).count();
        assert!(held > 0 && guesses.iter().all(|code| *code != Code::Ok), "{guesses:?}");
        let answer = asked(&client, Some("a-token-of-the-ranks"), ticket()).await.unwrap();
        assert_eq!(answer.told.kind, LEASE, "the holder of a token is not held");
    });
}

/// Waits for an answer on any stream of `connection`, which is what the end of a call is.
fn is_answered(connection: &mut TcpStream) -> bool {
    connection.set_read_timeout(Some(LONGEST)).unwrap();
    let mut head = [0; 9];
    loop {
        if connection.read_exact(&mut head).is_err() {
            return false;
        }
        if head[3] == HEADERS {
            return true;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if connection.read_exact(&mut vec![0; length]).is_err() {
            return false;
        }
    }
}

#[test]
fn calls_that_never_come_whole_end_and_honest_readers_are_served_meanwhile() {
    let (rig, runtime) = (Rig::new(), runtime());
    let node = node(rig.root.path(), CacheServerOptions::default());
    let port = node.port().parse().unwrap();
    let mut held = Vec::new();
    for number in 0..30 {
        let Ok(mut connection) = introduced(port) else { continue };
        let block = headers(if number % 3 == 0 { "DoPut" } else { "DoGet" });
        let calls: Vec<u8> = (0..64).flat_map(|call| frame(HEADERS, END_HEADERS, 2 * call + 1, &block)).collect();
        if std::io::Write::write_all(&mut connection, &calls).is_ok() {
            held.push(connection);
        }
    }
    assert!(held.len() > 20, "{} connections", held.len());
    // And leases that nobody fulfils.
    let leases = runtime.block_on(async {
        let client = client(&node).await;
        let names: Vec<_> = (0..900_u64).map(|number| name(number, number + 9)).collect();
        join_all(names.iter().map(|name| ask(&client, name))).await
    });
    assert!(leases.iter().all(|lease| lease.as_ref().unwrap().told.kind == LEASE));
    let read = |name: &str| {
        let directory = rig.root.path().join(name);
        let mut loader = Loader::open(options(&rig, &directory, NOTHING, 2, vec![node.address.clone()])).unwrap();
        let rows = drain(&mut loader);
        all_given(&loader);
        (rows, loader.stats().cache)
    };
    let (first, _) = read("first");
    let (second, stats) = read("second");
    assert_eq!(first, second);
    assert!(stats.peer_hits > 0 && stats.peer_failures == 0, "{stats:?}");
    for connection in [0, 1] {
        assert!(is_answered(&mut held[connection]), "connection {connection} is open for ever");
    }
}

#[test]
fn readers_that_do_not_read_keep_nobody_out() {
    const LENGTH: usize = 8 << 20;
    let directory = tempfile::tempdir().unwrap();
    let node = node(directory.path(), CacheServerOptions::default());
    runtime().block_on(async {
        let (honest, silent) = (client(&node).await, client(&node).await);
        let (block, bytes) = (name(0, LENGTH as u64), vec![5; LENGTH]);
        let lease = ask(&honest, &block).await.unwrap();
        let metadata = gift(&block, lease.told.lease, head((OBJECT, 0, LENGTH as u64), &bytes));
        assert!(give(&honest, metadata, bytes.chunks(1 << 20).map(<[u8]>::to_vec).collect()).await.unwrap());
        // Together they ask for more than may be on its way at once.
        let asking = (0..80).map(|_| {
            let (mut silent, ticket) = (silent.clone(), Ask { version: 1, block: block.clone() }.encode_to_vec());
            async move { silent.do_get(Ticket { ticket: ticket.into() }).await.map(tonic::Response::into_inner) }
        });
        let unread: Vec<_> = join_all(asking).await.into_iter().flatten().collect();
        assert!(!unread.is_empty());
        let begin = Instant::now();
        loop {
            if let Ok(answer) = ask(&honest, &block).await {
                assert!(answer.block().await == bytes);
                break;
            }
            assert!(begin.elapsed() < LONGEST, "the silent ones keep the others out");
        }
        drop(unread);
    });
}
