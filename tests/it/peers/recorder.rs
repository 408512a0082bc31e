//! Two peers for one conversation: a recorder between a client and a server, and a player in the place of a former server.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower_service::Service;

use super::call::{Call, SERVICE};

/// The version that a player tells.
pub(super) const FORMER: &str = "0.0.9";

/// A connection to a server for whole calls.
#[derive(Debug, Clone)]
pub(super) struct Line(Channel);

impl Line {
    pub(super) async fn to(address: SocketAddr) -> Self {
        Self(Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap())
    }

    /// Makes the call that `call` asks for, and keeps the answer in it.
    pub(super) async fn call(&self, call: &mut Call) {
        let body = call.request();
        self.send(call, body).await;
    }

    async fn send(&self, call: &mut Call, body: Bytes) {
        let request = Request::post(call.path())
            .version(http::Version::HTTP_2)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Body::new(Full::new(body)))
            .unwrap();
        let mut channel = self.0.clone();
        std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let (parts, body) = channel.call(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = Status::from_header_map(&trailers).or_else(|| Status::from_header_map(&parts.headers)).unwrap();
        call.hear(body.to_bytes(), &status);
    }
}

/// What answers.
#[derive(Debug)]
enum Role {
    /// A server, whose conversation is noted.
    Record(Line),
    /// The recorded calls by name, the next one first, and all keys that their requests have.
    Play(BTreeMap<String, Vec<Call>>, BTreeMap<String, BTreeSet<String>>),
}

#[derive(Debug, Default)]
struct Notes {
    calls: Vec<Call>,
    complaints: Vec<String>,
}

#[derive(Debug, Clone)]
struct Peer(Arc<(tokio::sync::Mutex<Role>, Mutex<Notes>)>);

/// A peer that listens.
pub(super) struct Listening {
    pub(super) address: SocketAddr,
    peer: Peer,
    runtime: Option<Runtime>,
}

impl Listening {
    /// Notes what is said to the server at `server`.
    pub(super) fn recording(server: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let line = runtime.block_on(Line::to(server));
        Self::start(runtime, Role::Record(line))
    }

    /// Answers as the server did that is recorded in `calls`.
    pub(super) fn playing(calls: &[Call]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (mut left, mut known) = (BTreeMap::<_, Vec<Call>>::new(), BTreeMap::<_, BTreeSet<String>>::new());
        for call in calls {
            // A server refuses keys that it does not know; what it refused it did not know.
            if call.refused.is_none() {
                let known = known.entry(call.name.clone()).or_default();
                call.asked.iter().for_each(|message| keys(message, "", known));
                left.entry(call.name.clone()).or_default().push(call.clone());
            }
        }
        Self::start(runtime, Role::Play(left, known))
    }

    fn start(runtime: Runtime, role: Role) -> Self {
        let peer = Peer(Arc::new((tokio::sync::Mutex::new(role), Mutex::default())));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = futures::stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let server = tonic::transport::Server::builder().add_service(peer.clone()).serve_with_incoming(incoming);
        drop(runtime.spawn(server));
        Self { address, peer, runtime: Some(runtime) }
    }

    pub(super) fn url(&self, dataset: &str) -> String {
        format!("grpc://{}/{dataset}", self.address)
    }

    /// The calls so far, each once.
    pub(super) fn calls(&self) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        for call in &self.peer.0.1.lock().unwrap().calls {
            if !calls.iter().any(|known| known.name == call.name && known.asked == call.asked) {
                calls.push(call.clone());
            }
        }
        calls
    }

    /// What a former server would not have understood.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.peer.0.1.lock().unwrap().complaints.clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Peer {
    async fn answer(&self, path: &str, body: Bytes) -> Call {
        let mut call = Call::asked(path, body.clone());
        let mut role = self.0.0.lock().await;
        match &mut *role {
            Role::Record(line) => {
                let line = line.clone();
                drop(role);
                // As it came: the recorder is to change nothing.
                line.send(&mut call, body).await;
                self.0.1.lock().unwrap().calls.push(call.clone());
            }
            Role::Play(left, known) => {
                let mut asked = BTreeSet::new();
                call.asked.iter().for_each(|message| keys(message, "", &mut asked));
                let known = known.get(&call.name).cloned().unwrap_or_default();
                let unknown: Vec<_> = asked.difference(&known).cloned().collect();
                let left = left.entry(call.name.clone()).or_default();
                let place = left.iter().position(|then| same(then, &call)).filter(|_| unknown.is_empty());
                match place {
                    Some(place) => {
                        // Its turn comes again: heartbeats and polls are repeated.
                        let then = left.remove(place);
                        left.push(then.clone());
                        (call.answered, call.refused) = (then.answered, then.refused);
                    }
                    None => {
                        let what = format!("{} with the unknown {unknown:?}: {:?}", call.name, call.asked);
                        self.0.1.lock().unwrap().complaints.push(what.clone());
                        let detail = json!({"kind": "config", "option": "descriptor", "problem": what});
                        call.refused = Some((i32::from(Code::InvalidArgument), detail));
                    }
                }
            }
        }
        call
    }
}

/// Returns true if the answer to `then` is one to `now`: the same stream, from the same step.
fn same(then: &Call, now: &Call) -> bool {
    let about = |call: &Call| {
        let asked =
            call.asked.first().map(|asked| asked.get("command").or(asked.get("asked")).unwrap_or(asked).clone());
        let part = |key: &str| asked.as_ref().and_then(|asked| asked.get(key).cloned());
        [part("dataset"), part("step"), part("gang"), part("position"), part("round"), part("token")]
    };
    about(then) == about(now)
}

/// Adds the keys of all documents in `value`. Names of columns are not keys.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = if at.ends_with("images") { "*" } else { key.as_str() };
                let place = format!("{at}.{key}");
                keys(value, &place, found);
                found.insert(place);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, at, found)),
        _ => {}
    }
}

impl NamedService for Peer {
    const NAME: &'static str = SERVICE;
}

impl Service<Request<Body>> for Peer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let peer = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let call = peer.answer(parts.uri.path(), body).await;
            let mut trailers = HeaderMap::new();
            call.status().add_header(&mut trailers).unwrap();
            let frames = [Frame::data(call.answer()), Frame::trailers(trailers)];
            let frames = futures::stream::iter(frames.map(Ok::<_, Status>));
            let mut response = Response::new(Body::new(StreamBody::new(frames)));
            response.headers_mut().insert(header::CONTENT_TYPE, "application/grpc".parse().unwrap());
            response.headers_mut().insert("bowstring-version", FORMER.parse().unwrap());
            Ok(response)
        })
    }
}
