//! The authentication layer: checks every call before reading any of it, and answers DoGet and DoPut itself, without copies.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::request::Parts;
use http::{HeaderValue, Request, Response, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, Limited};
use prost::Message as _;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower_service::Service;

use super::audit::AuditRecord;
use super::auth::Tenant;
use super::refusals::Refusals;
use crate::flight::server::ops::errors::At;
use crate::flight::server::ops::request;
use crate::flight::server::rpc::body::Messages;
use crate::flight::server::rpc::core::{Core, Via};
use crate::flight::server::rpc::incoming::{Claim, Incoming, Kind, Place};
use crate::flight::server::rpc::put;
use crate::flight::status::to_status;
use crate::flight::version;

/// The call that this layer answers.
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// The call that [`put`] answers.
const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// Calls that are answered without reading their bodies.
const UNREAD: [&str; 2] =
    ["/arrow.flight.protocol.FlightService/Handshake", "/arrow.flight.protocol.FlightService/DoExchange"];

/// Bytes of a gRPC message's prefix.
const FRAME: usize = 5;

/// Bytes of a gRPC message's prefix and of the key and length of a ticket.
const FRAMING: usize = 16;

/// Wraps the stock service `S`.
#[derive(Debug, Clone)]
pub(crate) struct AuthLayer<S> {
    inner: S,
    door: Door,
    incoming: Arc<Incoming>,
    core: Arc<Core>,
}

impl<S> AuthLayer<S> {
    pub(crate) fn new(inner: S, core: Arc<Core>) -> Self {
        let incoming = Incoming::new(core.config.limits.clone(), core.config.memory_budget);
        let refusals = Arc::new(Refusals::new(core.config.limits.refused_per_minute));
        let door = Door { refusals, core: Arc::clone(&core) };
        Self { inner, door, incoming, core }
    }
}

/// Refuses calls.
#[derive(Debug, Clone)]
struct Door {
    refusals: Arc<Refusals>,
    core: Arc<Core>,
}

impl Door {
    /// Refuses a call before it reaches the service.
    async fn refuse(&self, mut line: AuditRecord, peer: Option<IpAddr>, status: Status) -> Status {
        let why = status.clone();
        let (status, held) = self.refusals.hold(peer, status).await;
        if let Some(held) = held {
            line.held = held;
            self.core.config.audit.add(&line.ended(Some(&why)));
        }
        status
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S: NamedService> NamedService for AuthLayer<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for AuthLayer<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (parts, body) = request.into_parts();
        match self.core.tenant(&parts) {
            Ok(tenant) => {
                self.core.hangups.admit(request::sender(&parts.extensions));
                let answer = self.answer(parts, body, tenant);
                // Strangers are not told.
                Box::pin(async move {
                    let mut answer = answer.await?;
                    version::tell(answer.headers_mut());
                    Ok(answer)
                })
            }
            Err(status) => {
                let peer = request::sender(&parts.extensions).map(|address| address.ip().to_canonical());
                let line = AuditRecord::of(call_of(&parts), peer, None);
                let door = self.door.clone();
                Box::pin(async move { Ok(door.refuse(line, peer, status).await.into_http()) })
            }
        }
    }
}

/// The name of a call.
fn call_of(parts: &Parts) -> &str {
    parts.uri.path().rsplit('/').next().unwrap_or_default()
}

impl<S> AuthLayer<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
{
    /// Answers a call of `tenant`.
    fn answer(&self, mut parts: Parts, body: Body, tenant: Tenant) -> Answering {
        let address = request::sender(&parts.extensions);
        let peer = address.map(|address| address.ip().to_canonical());
        let call = call_of(&parts).to_owned();
        let kind = match parts.uri.path() {
            DO_GET => Kind::Ticket,
            DO_PUT => Kind::Write,
            _ => Kind::Call,
        };
        let place = match self.incoming.enter(&tenant, kind) {
            Ok(place) => place,
            Err(error) => {
                self.core.config.admin.metrics().error_at(&error, At::call(&call));
                let status = to_status(&error);
                self.core.config.audit.add(&AuditRecord::of(&call, peer, Some(&tenant)).ended(Some(&status)));
                return Box::pin(std::future::ready(Ok(status.into_http())));
            }
        };
        if kind == Kind::Ticket {
            let door = self.door.clone();
            return Box::pin(async move {
                match get(&door.core, (&tenant, address), body, place).await {
                    Ok(answer) => Ok(answer),
                    // Its line is written already.
                    Err(status) if status.code() == Code::PermissionDenied => {
                        Ok(door.refusals.hold(peer, status).await.0.into_http())
                    }
                    Err(status) => Ok(status.into_http()),
                }
            });
        }
        if kind == Kind::Write {
            let core = Arc::clone(&self.core);
            return Box::pin(async move {
                let mut line = AuditRecord::of(&call, peer, Some(&tenant));
                let space = core.config.spaces.of(&tenant);
                let answer = put::answer(&core, &space, place.messages(body), &mut line.what).await;
                core.config.audit.add(&line.ended(answer.as_ref().err()));
                Ok(answer.unwrap_or_else(Status::into_http))
            });
        }
        let mut inner = self.inner.clone();
        let core = Arc::clone(&self.core);
        let place = Arc::new(place);
        Box::pin(async move {
            let mut line = AuditRecord::of(&call, peer, Some(&tenant));
            let (body, claim) = if UNREAD.contains(&parts.uri.path()) {
                (Body::empty(), None)
            } else {
                match place.request(body).await {
                    Ok((body, claim)) => {
                        if core.config.audit.is_on() {
                            line = line.about(body.get(FRAME..).unwrap_or_default());
                        }
                        (Body::new(Full::new(body)), claim)
                    }
                    Err(status) => {
                        core.config.audit.add(&line.ended(Some(&status)));
                        return Ok(status.into_http());
                    }
                }
            };
            parts.extensions.insert(tenant);
            parts.extensions.insert(Arc::clone(&place));
            let answer = inner.call(Request::from_parts(parts, body)).await;
            let status = answer.as_ref().ok().and_then(|answer| Status::from_header_map(answer.headers()));
            // Each rank sends a heartbeat every few seconds; only failures are logged.
            if line.call != "gang.heartbeat" || status.is_some() {
                core.config.audit.add(&line.ended(status.as_ref()));
            }
            Ok(held(answer?, place, claim))
        })
    }
}

/// Attaches to `answer` the place of its call and the memory claimed for it; both are freed once the answer has been read, as it stays
/// in memory until then.
fn held(answer: Response<Body>, place: Arc<Place>, claim: Option<Claim>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    if body.is_end_stream() {
        return Response::from_parts(parts, body);
    }
    let mut held = Some((place, claim, parts.extensions.remove::<Arc<Claim>>()));
    let body = body.map_frame(move |frame| {
        if frame.is_trailers() {
            drop(held.take());
        }
        frame
    });
    Response::from_parts(parts, Body::new(body))
}

async fn get(
    core: &Arc<Core>,
    (tenant, address): (&Tenant, Option<SocketAddr>),
    body: Body,
    place: Place,
) -> Result<Response<Body>, Status> {
    let peer = address.map(|address| address.ip().to_canonical());
    let ticket = arrived(core, body).await.inspect_err(|status| {
        // Streams have their line by `open`; this one has none.
        core.config.audit.add(&AuditRecord::of("DoGet", peer, Some(tenant)).ended(Some(status)));
    })?;
    drop(place);
    let hangup = address.and_then(|address| core.hangups.of(address));
    let messages = core.open(Via::Network(tenant), (peer, hangup), &ticket.ticket).await?;
    let mut response = Response::new(Body::new(Messages::new(messages)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// Reads the ticket of a request.
async fn arrived(core: &Core, body: Body) -> Result<arrow_flight::Ticket, Status> {
    let limit = core.config.limits.ticket_bytes.saturating_add(FRAMING);
    let reading = Limited::new(body, limit).collect();
    let body = tokio::time::timeout(core.config.limits.handshake(), reading)
        .await
        .map_err(|_| Status::deadline_exceeded("the ticket did not come in time"))?
        .map_err(|_| Status::invalid_argument("the ticket is too long, or was cut off"))?
        .to_bytes();
    ticket(body)
}

/// Decodes the only message of a request.
fn ticket(mut body: Bytes) -> Result<arrow_flight::Ticket, Status> {
    let malformed = || Status::invalid_argument("this is no message of DoGet");
    if body.len() < 5 || body.get_u8() != 0 {
        return Err(malformed());
    }
    let length = body.get_u32() as usize;
    if length != body.len() {
        return Err(malformed());
    }
    arrow_flight::Ticket::decode(body).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;
    use crate::flight::server::limits::Limits;

    #[tokio::test]
    async fn an_answer_keeps_its_place_until_it_is_read() {
        let incoming = Incoming::new(Limits { calls_per_tenant: 1, ..Limits::default() }, 0);
        let tenant = Tenant::new("anna").unwrap();
        let enter = || incoming.enter(&tenant, Kind::Call);
        let place = Arc::new(enter().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"long")), Frame::trailers(http::HeaderMap::new())];
        let body = StreamBody::new(futures::stream::iter(frames.map(Ok::<_, Status>)));
        let mut answer = Response::new(Body::new(body));
        answer.extensions_mut().insert(Arc::new(place.answer(96 << 20).await.unwrap()));
        let mut body = held(answer, place, None).into_body();
        assert!(body.frame().await.unwrap().unwrap().is_data());
        assert!(enter().is_err(), "it is not read yet");
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        let place = Arc::new(enter().unwrap());
        place.answer(96 << 20).await.unwrap();
        // An answer that nobody reads frees its claim when its stream ends, and a refusal takes none.
        let unread = held(Response::new(Body::new(Full::new(Bytes::from_static(b"x")))), Arc::clone(&place), None);
        drop(place);
        assert!(enter().is_err());
        drop(unread);
        let refusal = held(Status::internal("x").into_http(), Arc::new(enter().unwrap()), None);
        assert!(enter().is_ok(), "{refusal:?}");
    }
}
