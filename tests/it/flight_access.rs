//! Refused access: every call of the protocol by callers who may not make it, and every invalid ticket.
//!
//! Calls are made by hand, so that the response can be counted to the byte. `BOWSTRING_SEED=<seed> cargo test --test it
//! flight_access::` repeats the flipped bits of one run.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow_flight::{Action, Criteria, Empty, FlightDescriptor, FlightInfo, HandshakeRequest, Ticket as FlightTicket};
use bowstring::error::Error;
use bowstring::flight::client::Gang;
use bowstring::flight::gang::JoinOptions;
use bowstring::flight::gang::wire::ACTIONS;
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Catalogue, Config};
use bowstring::flight::shm::{ConnectOptions, Refusal};
use bowstring::flight::ticket::Ticket;
use bowstring::pipeline::LoaderOptions;
use bowstring::{Loader, flight};
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use crate::serve_shell::{Authority, LONGEST, PHOTOS, Server, connect, write};
use crate::support;

const ANNA: &str = "planted-token-of-anna-71c2";
const BERT: &str = "planted-token-of-bert-08fd";
const KEY: &str = "planted-key-of-tickets-0123456789-abcdefghijkl";
const STORE: &str = "planted-key-of-a-store-5b2e";
const FLIGHT: &str = "/arrow.flight.protocol.FlightService/";

/// The response to a call.
struct Answer {
    code: Code,
    text: String,
    /// All data of the response: a refusal has none.
    data: Vec<u8>,
}

impl Answer {
    fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.code, Code::Ok, "{}", self.text);
        M::decode(&self.data[5..]).unwrap()
    }

    /// Returns the JSON that an action answered.
    fn json(&self) -> Value {
        serde_json::from_slice(&self.message::<arrow_flight::Result>().body).unwrap()
    }
}

/// Everything that servers sent to anybody, to be searched for secrets.
static SAID: Mutex<String> = Mutex::new(String::new());

/// Frames one gRPC message.
fn framed(message: &impl Message) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.encoded_len() as u32);
    framed.extend_from_slice(&message.encode_to_vec());
    framed.freeze()
}

/// Makes a call by hand. Reads one mebibyte of a longer stream.
async fn call(channel: &Channel, path: &str, authorization: Option<&str>, body: Bytes) -> Answer {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .version(http::Version::HTTP_2)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers");
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request.body(Body::new(Full::new(body))).unwrap();
    let mut channel = channel.clone();
    let calling = async {
        std::future::poll_fn(|context| channel.poll_ready(context)).await?;
        channel.call(request).await
    };
    let (mut found, mut data) = (None, Vec::new());
    match tokio::time::timeout(LONGEST, calling).await.expect("an answer in time") {
        Err(error) => found = Some(Status::unavailable(format!("{error:?}"))),
        Ok(response) => {
            let (parts, mut body) = response.into_parts();
            found = Status::from_header_map(&parts.headers).or(found);
            while let Some(frame) = tokio::time::timeout(LONGEST, body.frame()).await.expect("a frame in time") {
                match frame {
                    Ok(frame) => match frame.into_data() {
                        Ok(more) => data.extend_from_slice(&more),
                        Err(frame) => {
                            found = frame.trailers_ref().and_then(Status::from_header_map).or(found);
                        }
                    },
                    Err(status) => {
                        found = Some(status);
                        break;
                    }
                }
                if data.len() > 1 << 20 {
                    break;
                }
            }
        }
    }
    let status = found.unwrap_or_else(|| Status::ok(""));
    let text = format!("{path}: {status:?}");
    SAID.lock().unwrap().push_str(&text);
    Answer { code: status.code(), text, data }
}

async fn flight(channel: &Channel, method: &str, token: Option<&str>, message: &impl Message) -> Answer {
    let authorization = token.map(|token| format!("Bearer {token}"));
    call(channel, &format!("{FLIGHT}{method}"), authorization.as_deref(), framed(message)).await
}

async fn act(channel: &Channel, token: Option<&str>, action: &str, body: &Value) -> Answer {
    flight(channel, "DoAction", token, &Action::new(action, body.to_string())).await
}

async fn get(channel: &Channel, token: Option<&str>, ticket: &[u8]) -> Answer {
    flight(channel, "DoGet", token, &FlightTicket::new(ticket.to_vec())).await
}

/// Checks that a call was refused with `code`, without a byte of data.
#[track_caller]
fn refused(answer: &Answer, code: Code, what: &str) {
    assert_eq!(answer.code, code, "{what}: {}", answer.text);
    assert_eq!(answer.data.len(), 0, "{what}: data came with {}", answer.text);
}

fn asked() -> Value {
    json!({"dataset": "photos", "options": {"batch_size": 4, "columns": {"columns": ["label"]}}, "rank": 0})
}

fn descriptor(asked: &Value) -> FlightDescriptor {
    FlightDescriptor::new_cmd(asked.to_string())
}

/// Returns every call of the protocol, with a valid message.
fn calls(ticket: &[u8]) -> Vec<(String, Bytes)> {
    let attempt = format!("{:032x}", 7);
    let caller = json!({"gang": "run", "generation": 1, "rank": 0, "attempt": attempt});
    let body = |action: &str| match action {
        "state" => asked(),
        "gang.join" => join("run", 7),
        "gang.state" => json!({"gang": "run"}),
        "gang.barrier" | "gang.all_gather" => {
            json!({"caller": caller, "round": 1, "message": "", "timeout_ms": 100, "poll_ms": 100})
        }
        "gang.ack" => json!({"caller": caller, "position": {"epoch": 0, "step": 0}}),
        "gang.leave" => json!({"caller": caller, "failure": null}),
        "put.commit" => json!({"dataset": "new", "write": "w", "mode": "create", "tokens": []}),
        "put.abort" => json!({"dataset": "new", "write": "w"}),
        "put.drop" => json!({"dataset": "new"}),
        _ => json!({"caller": caller}),
    };
    let own = ["stats", "state", "put.commit", "put.abort", "put.drop", "no.such.action"];
    let mut calls: Vec<(String, Bytes)> = own
        .into_iter()
        .chain(ACTIONS)
        .map(|action| (format!("{FLIGHT}DoAction"), framed(&Action::new(action, body(action).to_string()))))
        .collect();
    let mut add = |method: &str, message: Bytes| calls.push((format!("{FLIGHT}{method}"), message));
    add("ListFlights", framed(&Criteria::default()));
    add("GetFlightInfo", framed(&descriptor(&asked())));
    add("GetSchema", framed(&descriptor(&asked())));
    add("PollFlightInfo", framed(&descriptor(&asked())));
    add("DoGet", framed(&FlightTicket::new(ticket.to_vec())));
    let put = arrow_flight::FlightData {
        flight_descriptor: Some(descriptor(&json!({"dataset": "new", "write": "w", "task": 0, "attempt": 0}))),
        ..Default::default()
    };
    add("DoPut", framed(&put));
    add("DoExchange", framed(&put));
    add("ListActions", framed(&Empty {}));
    add("Handshake", framed(&HandshakeRequest::default()));
    add("NoSuchMethod", framed(&Empty {}));
    calls
}

fn join(gang: &str, attempt: u128) -> Value {
    json!({
        "gang": gang, "rank": 0, "world_size": 1, "attempt": format!("{attempt:032x}"), "share": null,
        "info": {"address": "", "device": "", "host": ""}, "token": null, "timeout_ms": 5000, "poll_ms": 5000,
    })
}

/// Starts a server with the tokens of anna and bert, and everything else that could leak.
fn guarded(directory: &std::path::Path) -> Server {
    let tokens = write(directory, "tokens", &format!("anna:{ANNA}\nbert:{BERT}\n"));
    let key = write(directory, "key", KEY);
    let config = format!(
        "[server]\ntokens = {tokens:?}\nkey_file = {key:?}\nput = \"memory\"\nmemory_budget = 1_073_741_824\n\
         [datasets.photos]\nurl = \"{PHOTOS}\"\nstorage_options = {{ aws_secret_access_key = \"{STORE}\" }}\n"
    );
    Server::start(&["--config", &write(directory, "serve.toml", &config), "-vvv"])
}

/// Gets a ticket and the announcement that comes with it.
async fn ticket(channel: &Channel, token: Option<&str>, asked: &Value) -> (Vec<u8>, Value) {
    let info: FlightInfo = flight(channel, "GetFlightInfo", token, &descriptor(asked)).await.message();
    let ticket = info.endpoint[0].ticket.clone().unwrap().ticket.to_vec();
    (ticket, serde_json::from_slice(&info.app_metadata).unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn no_call_is_answered_without_the_right_token_and_no_secret_leaks() {
    let directory = tempfile::tempdir().unwrap();
    let server = guarded(directory.path());
    let refusals = runtime().block_on(async {
        let channel = connect(server.port(), None).await.unwrap();
        let (good, _) = ticket(&channel, Some(ANNA), &asked()).await;
        let calls = calls(&good);
        let wrong = [
            None,
            Some("Bearer wrong-token-0123456789".to_owned()),
            Some(format!("Bearer {}", &ANNA[..ANNA.len() - 1])),
            Some(format!("Bearer {ANNA}0")),
            Some(format!("Basic {ANNA}")),
            Some(ANNA.to_owned()),
            Some("Bearer".to_owned()),
            Some(format!("Bearer {}", "x".repeat(5000))),
        ];
        for authorization in &wrong {
            for (path, message) in &calls {
                let answer = call(&channel, path, authorization.as_deref(), message.clone()).await;
                refused(&answer, Code::Unauthenticated, path);
            }
        }
        // The same calls by an authorized caller reach the protocol, or its unimplemented parts.
        for (path, message) in &calls {
            let answer = call(&channel, path, Some(&format!("Bearer {ANNA}")), message.clone()).await;
            assert_ne!(answer.code, Code::Unauthenticated, "{}", answer.text);
            let method = path.rsplit('/').next().unwrap();
            if ["Handshake", "PollFlightInfo", "DoExchange", "NoSuchMethod"].contains(&method) {
                refused(&answer, Code::Unimplemented, method);
            }
            if ["ListFlights", "GetFlightInfo", "GetSchema", "DoGet", "ListActions"].contains(&method) {
                assert!(answer.code == Code::Ok && !answer.data.is_empty(), "{}", answer.text);
            }
        }
        // Only the health service answers strangers; an unknown service answers nobody.
        let answer =
            call(&channel, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", None, Bytes::new()).await;
        refused(&answer, Code::Unimplemented, "an unknown service");
        let answer = call(&channel, "/grpc.health.v1.Health/Check", None, framed(&Empty {})).await;
        assert_eq!(answer.code, Code::Ok, "{}", answer.text);
        wrong.len() * calls.len()
    });
    println!("{refusals} calls without the right token: refused, 0 data bytes");

    let mut seen = server.get("/metrics") + &server.get("/readyz") + &server.get("/else") + &server.get("/ui/data");
    assert!(seen.contains("bowstring_auth_refused_total"), "{seen}");
    server.signal("-TERM");
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.len() > 1000, "everything was logged");
    seen.push_str(&log);
    seen.push_str(&SAID.lock().unwrap());
    for secret in [ANNA, BERT, KEY, STORE] {
        assert!(!seen.contains(secret), "{secret} is in\n{seen}");
    }
}

/// Checks that every invalid ticket is refused, over the network and over shared memory.
#[test]
fn no_ticket_but_the_holders_own_opens_a_stream() {
    let directory = tempfile::tempdir().unwrap();
    let server = guarded(directory.path());
    let seed = std::env::var("BOWSTRING_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64));
    println!("again: BOWSTRING_SEED={seed} cargo test --test it flight_access::");
    runtime().block_on(async {
        let channel = connect(server.port(), None).await.unwrap();
        let (good, announced) = ticket(&channel, Some(ANNA), &asked()).await;
        let socket = announced["local"]["socket"].as_str().map(str::to_owned);
        assert!(socket.is_some() || !cfg!(target_os = "linux"), "{announced}");
        let socket = socket.as_deref();
        let answer = get(&channel, Some(ANNA), &good).await;
        assert!(answer.code == Code::Ok && answer.data.len() > 100, "{}", answer.text);
        refused(&get(&channel, Some(BERT), &good).await, Code::PermissionDenied, "another tenant's ticket");
        if let Some(socket) = socket {
            assert_eq!(local(socket, &good).await, Ok(10), "a good ticket through shared memory");
        }

        let read = Ticket::verify(&good, KEY.as_bytes(), SystemTime::now()).unwrap();
        let now = UNIX_EPOCH.elapsed().unwrap().as_secs();
        let signed = |change: &dyn Fn(&mut Ticket)| {
            let mut ticket = read.clone();
            change(&mut ticket);
            ticket.sign(KEY.as_bytes())
        };
        let cases: Vec<(&str, Vec<u8>, Code)> = vec![
            ("an expired ticket", signed(&|ticket| ticket.expires = now - 1), Code::PermissionDenied),
            ("another key", read.sign(b"another-key-of-tickets-0123456789-abcdefghijk"), Code::PermissionDenied),
            ("an empty key", read.sign(b""), Code::PermissionDenied),
            ("no ticket", Vec::new(), Code::PermissionDenied),
            ("half a ticket", good[..good.len() / 2].to_vec(), Code::PermissionDenied),
            ("a ticket and a byte", [&good[..], b" "].concat(), Code::PermissionDenied),
            ("JSON without a signature", good[35..].to_vec(), Code::PermissionDenied),
            ("text", b"BT1 let me in, please, it is only for a moment".to_vec(), Code::PermissionDenied),
            ("a dataset that is not there", signed(&|ticket| ticket.asked.dataset = "x".into()), Code::NotFound),
            ("other data", signed(&|ticket| ticket.asked.options = other_filter()), Code::FailedPrecondition),
            ("a rank that is not there", signed(&|ticket| ticket.asked.rank = Some(9)), Code::InvalidArgument),
        ];
        for (what, ticket, code) in &cases {
            refused(&get(&channel, Some(ANNA), ticket).await, *code, what);
            if let Some(socket) = socket {
                assert_eq!(local(socket, ticket).await, Err(*code), "{what}, through shared memory");
            }
        }

        // A gang of one: its own stream, then those of its neighbours and of its previous generations.
        let joined = act(&channel, Some(ANNA), "gang.join", &join("run", 1)).await.json();
        assert_eq!(joined["generation"], 1, "{joined}");
        let mut in_gang = asked();
        in_gang["gang"] = json!({"gang": "run", "generation": 1, "rank": 0, "attempt": format!("{:032x}", 1)});
        let (own, _) = ticket(&channel, Some(ANNA), &in_gang).await;
        let stream = get(&channel, Some(ANNA), &own).await;
        assert!(stream.code == Code::Ok && stream.data.len() > 100, "{}", stream.text);
        let member = Ticket::verify(&own, KEY.as_bytes(), SystemTime::now()).unwrap();
        let other = |change: &dyn Fn(&mut flight::gang::wire::Caller)| {
            let mut ticket = member.clone();
            change(ticket.asked.gang.as_mut().unwrap());
            ticket.sign(KEY.as_bytes())
        };
        let mut strangers = vec![
            ("another gang's ticket", other(&|caller| caller.gang = "walk".into())),
            ("another process's ticket", other(&|caller| caller.attempt = 2)),
            ("a coming generation", other(&|caller| caller.generation = 2)),
            ("another rank's ticket", other(&|caller| caller.rank = 1)),
        ];
        // The process joins again: its previous generation is over.
        let again = act(&channel, Some(ANNA), "gang.join", &join("run", 3)).await;
        let again = again.json();
        assert!(again["generation"].as_u64().unwrap() > 1, "{again}");
        strangers.push(("an old generation", own));
        for (what, ticket) in &strangers {
            refused(&get(&channel, Some(ANNA), ticket).await, Code::Aborted, what);
            if let Some(socket) = socket {
                assert_eq!(local(socket, ticket).await, Err(Code::Aborted), "{what}, through shared memory");
            }
        }

        let flips = if support::soak() { 1000 } else { 50 };
        let mut random = seed | 1;
        for flip in 0..flips {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bit = (random >> 33) as usize % (good.len() * 8);
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let answer = get(&channel, Some(ANNA), &flipped).await;
            refused(&answer, Code::PermissionDenied, &format!("bit {bit}, flip {flip} of seed {seed}"));
            if let Some(socket) = socket
                && flip % 10 == 0
            {
                assert_eq!(local(socket, &flipped).await, Err(Code::PermissionDenied), "bit {bit} of seed {seed}");
            }
        }
        println!("{} false tickets and {flips} flipped bits: refused, 0 data bytes", cases.len() + strangers.len());
        let answer = get(&channel, Some(ANNA), &good).await;
        assert!(answer.code == Code::Ok && answer.data.len() > 100, "after all that: {}", answer.text);
    });
}

fn other_filter() -> serde_json::Map<String, Value> {
    let options = json!({"batch_size": 4, "columns": {"columns": ["label"]}, "filter": "label >= 0"});
    options.as_object().unwrap().clone()
}

/// Presents a ticket to the shared-memory socket; returns the number of batches, or the code of the refusal.
async fn local(socket: &str, ticket: &[u8]) -> Result<usize, Code> {
    let options = ConnectOptions { deadline: Duration::from_secs(10), ..ConnectOptions::default() };
    let mut receiver = flight::shm::connect(socket, ticket.to_vec().into(), options).await.unwrap();
    let mut batches = 0;
    while let Some(next) = receiver.next().await {
        match next {
            Ok(_) => batches += 1,
            Err(Error::Remote { source: Some(source), .. }) => {
                let refusal = source.downcast_ref::<Refusal>().expect("a refusal");
                assert_eq!(batches, 0, "{refusal:?}");
                SAID.lock().unwrap().push_str(&refusal.message);
                return Err(Code::from(refusal.code as i32));
            }
            Err(error) => panic!("{}", error.chain()),
        }
    }
    Ok(batches)
}

#[test]
fn a_client_without_the_right_certificate_gets_no_answer_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let one = Authority::new(directory.path(), "one");
    let other = Authority::new(directory.path(), "other");
    let tls = [PHOTOS, "--tls-cert", &one.server.0, "--tls-key", &one.server.1];
    let photos =
        json!({"dataset": "imagenet40", "options": {"batch_size": 4, "columns": {"columns": ["label"]}}, "rank": 0});
    // Without a connection there is no call; a connection that the server ends at its first byte carries no answer.
    let nothing = async |port: u16, files: Option<&bowstring::flight::server::tls::ClientFiles>, what: &str| {
        let channel = match connect(port, files).await {
            Ok(channel) => channel,
            Err(_) => return,
        };
        for (path, message) in calls(b"BT1") {
            let answer = call(&channel, &path, None, message).await;
            assert_ne!(answer.code, Code::Ok, "{what}: {}", answer.text);
            assert_eq!(answer.data.len(), 0, "{what}: {}", answer.text);
        }
    };
    let runtime = runtime();

    let server = Server::start(&tls);
    runtime.block_on(async {
        nothing(server.port(), Some(&other.trusting()), "the wrong CA").await;
        nothing(server.port(), None, "plaintext to a TLS port").await;
        let channel = connect(server.port(), Some(&one.trusting())).await.unwrap();
        ticket(&channel, None, &photos).await;
    });
    drop(server);

    let server = Server::start(&[&tls[..], &["--client-ca", &one.ca]].concat());
    runtime.block_on(async {
        nothing(server.port(), Some(&one.trusting()), "no certificate").await;
        nothing(server.port(), Some(&one.showing(&other)), "another CA's certificate").await;
        nothing(server.port(), None, "plaintext to a TLS port").await;
        // Two certificates of the right CA are two tenants.
        let trainer = connect(server.port(), Some(&one.showing(&one))).await.unwrap();
        let second = bowstring::flight::server::tls::ClientFiles {
            cert: Some((&one.server.0).into()),
            key: Some((&one.server.1).into()),
            ..one.trusting()
        };
        let second = connect(server.port(), Some(&second)).await.unwrap();
        let (own, _) = ticket(&trainer, None, &photos).await;
        assert_eq!(get(&trainer, None, &own).await.code, Code::Ok);
        refused(&get(&second, None, &own).await, Code::PermissionDenied, "another certificate's ticket");
    });
    drop(server);

    // With tokens besides, a certificate alone is not enough.
    let tokens = write(directory.path(), "tokens", &format!("anna:{ANNA}\n"));
    let server = Server::start(&[&tls[..], &["--client-ca", &one.ca, "--tokens", &tokens]].concat());
    runtime.block_on(async {
        let channel = connect(server.port(), Some(&one.showing(&one))).await.unwrap();
        for (path, message) in calls(b"BT1") {
            refused(&call(&channel, &path, None, message).await, Code::Unauthenticated, &path);
        }
        ticket(&channel, Some(ANNA), &photos).await;
    });
}

#[test]
fn a_connection_brings_no_calls_once_its_authority_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| Authority::new(directory.path(), name));
    let clients = directory.path().join("clients.pem");
    std::fs::copy(&one.ca, &clients).unwrap();
    let (cert, key) = (&one.server.0, &one.server.1);
    let server =
        Server::start(&[PHOTOS, "--tls-cert", cert, "--tls-key", key, "--client-ca", clients.to_str().unwrap()]);
    let photos =
        json!({"dataset": "imagenet40", "options": {"batch_size": 4, "columns": {"columns": ["label"]}}, "rank": 0});
    runtime().block_on(async {
        let trainer = connect(server.port(), Some(&one.showing(&one))).await.unwrap();
        let list = calls(b"BT1").into_iter().find(|(path, _)| path.ends_with("ListActions")).unwrap();
        let answers = async || call(&trainer, &list.0, None, list.1.clone()).await;
        ticket(&trainer, None, &photos).await;
        // Both are trusted for a while, as in a rotation: nobody notices.
        let both = [&one.ca, &other.ca].map(|ca| std::fs::read_to_string(ca).unwrap()).concat();
        std::fs::write(&clients, both).unwrap();
        server.signal("-HUP");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        ticket(&trainer, None, &photos).await;
        connect(server.port(), Some(&one.showing(&other))).await.expect("the new one is trusted");
        std::fs::copy(&other.ca, &clients).unwrap();
        server.signal("-HUP");
        let begun = std::time::Instant::now();
        let last = loop {
            let answer = answers().await;
            if answer.code != Code::Ok || begun.elapsed() > LONGEST {
                break answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        refused(&last, Code::Unavailable, "the connection that is open");
    });
}

#[test]
fn a_certificate_of_an_unknown_ca_is_told_at_once_and_with_what_to_set() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| Authority::new(directory.path(), name));
    let server = Server::start(&[PHOTOS, "--tls-cert", &one.server.0, "--tls-key", &one.server.1]);
    let options = LoaderOptions {
        urls: vec![format!("grpc+tls://localhost:{}/imagenet40", server.port())],
        storage_options: [("ca".to_owned(), other.ca.clone())].into(),
        timeout: LONGEST.as_secs_f64(),
        ..support::options(directory.path(), 8, 0, 1)
    };
    let begun = std::time::Instant::now();
    let (url, credentials) = (options.urls[0].clone(), options.storage_options.clone());
    let text = Loader::open(options).expect_err("it trusts another CA").chain();
    assert!(text.contains("give its CA as ca") && text.contains("UnknownIssuer"), "{text}");
    let joining = JoinOptions { timeout: LONGEST, ..JoinOptions::new("gang", 0, 1) };
    let server = url.trim_end_matches("/imagenet40");
    let text = Gang::join(server, &credentials, joining).expect_err("so does a rank that joins").chain();
    assert!(text.contains("give its CA as ca"), "{text}");
    assert!(begun.elapsed() < LONGEST / 2, "{text}");
}

#[test]
fn secrets_are_in_no_debug_text_and_in_no_error_of_a_client() {
    let directory = tempfile::tempdir().unwrap();
    let server = guarded(directory.path());
    let mut seen = String::new();
    let open = |url: String, token: &str| {
        let mut options = LoaderOptions::new(url, 4);
        (options.rank, options.world_size, options.timeout) = (Some(0), Some(1), 5.0);
        options.storage_options.insert("token".to_owned(), token.to_owned());
        let shown = format!("{options:?}");
        (shown, Loader::open(options))
    };
    let url = format!("grpc://127.0.0.1:{}/photos", server.port());
    let (shown, loader) = open(url.clone(), ANNA);
    let mut loader = loader.unwrap();
    loader.next().unwrap().unwrap();
    seen.push_str(&format!("{shown} {loader:?}"));
    let wrong = "planted-token-of-nobody-55aa";
    for (url, token) in [
        (url, wrong),
        (format!("grpc://127.0.0.1:{}/nothing", server.port()), ANNA),
        (format!("grpc://{wrong}@127.0.0.1:{}/photos", server.port()), ANNA),
        ("grpc://127.0.0.1:1/photos".to_owned(), ANNA),
    ] {
        let (shown, loader) = open(url, token);
        let error = loader.expect_err("nobody may open this");
        seen.push_str(&format!("{shown} {error:?} {error} {}", error.chain()));
    }
    let tokens = directory.path().join("tokens");
    let options = ServerOptions {
        tokens: Some(tokens),
        key_file: Some(directory.path().join("key")),
        memory_budget: Some(1 << 30),
        ..ServerOptions::default()
    };
    let file = std::fs::read_to_string(directory.path().join("serve.toml")).unwrap();
    let file = bowstring::flight::server::file::ServeFile::from_toml(&file, "serve.toml").unwrap();
    let mut catalogue = Catalogue::default();
    catalogue.add("photos", vec![PHOTOS.to_owned()]).unwrap();
    let config = Config::new(catalogue, &options).unwrap();
    seen.push_str(&format!("{options:?} {file:?} {config:?}"));
    for secret in [ANNA, BERT, KEY, STORE, wrong] {
        assert!(!seen.contains(secret), "{secret} is in\n{seen}");
    }
}

/// One tenant takes all it may, another takes a little: the first does not delay the second.
#[test]
fn the_quota_of_one_tenant_is_not_anothers() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = write(directory.path(), "tokens", &format!("anna:{ANNA}\nbert:{BERT}\n"));
    let data = tempfile::tempdir().unwrap();
    support::write(data.path(), &[vec![256; 40]], 64);
    let config = format!(
        "[server]\ntokens = {tokens:?}\nmemory_budget = 1_073_741_824\n[server.quotas.tenants.anna]\nstreams = 3\n\
         bytes_per_second = 50_000\nin_flight_bytes = 200_000\n[datasets.numbers]\nurl = {:?}\n",
        data.path()
    );
    let server = Server::start(&["--config", &write(directory.path(), "serve.toml", &config)]);
    let runtime = runtime();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", server.port())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let asked = json!({"dataset": "numbers", "options": {"batch_size": 256}, "rank": 0});
        let (of_anna, _) = ticket(&channel, Some(ANNA), &asked).await;
        let (of_bert, _) = ticket(&channel, Some(BERT), &asked).await;
        // Three streams of anna, whose rate allows a fiftieth of a batch per millisecond.
        let greedy: Vec<_> = (0..3)
            .map(|_| {
                let (channel, ticket) = (channel.clone(), of_anna.clone());
                tokio::spawn(async move { get(&channel, Some(ANNA), &ticket).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        refused(&get(&channel, Some(ANNA), &of_anna).await, Code::ResourceExhausted, "a fourth stream");
        let start = std::time::Instant::now();
        let mut most = Duration::ZERO;
        for _ in 0..5 {
            let one = std::time::Instant::now();
            let answer = get(&channel, Some(BERT), &of_bert).await;
            assert!(answer.code == Code::Ok && answer.data.len() > 1 << 20, "{}", answer.text);
            most = most.max(one.elapsed());
        }
        assert!(greedy.iter().all(|stream| !stream.is_finished()), "anna's streams wait for her rate");
        println!(
            "5 streams of bert in {:.2} s, the longest {most:.2?}, beside 3 of anna",
            start.elapsed().as_secs_f64()
        );
        assert!(most < Duration::from_secs(10), "{most:?}");
        greedy.iter().for_each(tokio::task::JoinHandle::abort);
    });
}
