//! The door: every call is checked before anything of it is read, and DoGet and DoPut are answered here, without copies.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use prost::Message as _;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use super::auth::Tenant;
use super::body::Messages;
use super::core::{Core, Via};
use super::incoming::{Incoming, Kind};
use super::put;
use crate::flight::status::to_status;

/// The call that is answered here.
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";

/// The call that is answered by [`put`].
const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// Calls that are answered without reading what comes with them.
const UNREAD: [&str; 2] =
    ["/arrow.flight.protocol.FlightService/Handshake", "/arrow.flight.protocol.FlightService/DoExchange"];

/// Bytes of a gRPC message's prefix, and of the key and length of a ticket.
const FRAMING: usize = 16;

/// Wraps the stock service `S`.
#[derive(Debug, Clone)]
pub(super) struct Guard<S> {
    inner: S,
    incoming: Arc<Incoming>,
    core: Arc<Core>,
}

impl<S> Guard<S> {
    pub(super) fn new(inner: S, core: Arc<Core>) -> Self {
        let incoming = Incoming::new(core.config.limits.clone(), core.config.memory_budget);
        Self { inner, incoming, core }
    }
}

impl<S: NamedService> NamedService for Guard<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>,
    S: Clone + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let tenant = match self.core.tenant(&parts) {
            Ok(tenant) => tenant,
            Err(status) => return Box::pin(std::future::ready(Ok(status.into_http()))),
        };
        if parts.uri.path() == DO_GET {
            let core = Arc::clone(&self.core);
            return Box::pin(async move {
                let answer = get(&core, &tenant, body).await;
                Ok(answer.unwrap_or_else(Status::into_http))
            });
        }
        let kind = if parts.uri.path() == DO_PUT { Kind::Write } else { Kind::Call };
        let place = match self.incoming.enter(&tenant, kind) {
            Ok(place) => place,
            Err(error) => {
                self.core.config.admin.metrics().error(&error);
                return Box::pin(std::future::ready(Ok(to_status(&error).into_http())));
            }
        };
        if kind == Kind::Write {
            let core = Arc::clone(&self.core);
            return Box::pin(async move {
                let answer = put::answer(&core, &core.config.spaces.of(&tenant), place.messages(body)).await;
                Ok(answer.unwrap_or_else(Status::into_http))
            });
        }
        let mut inner = self.inner.clone();
        Box::pin(async move {
            let (body, _claim) = if UNREAD.contains(&parts.uri.path()) {
                (Body::empty(), None)
            } else {
                match place.request(body).await {
                    Ok((body, claim)) => (Body::new(Full::new(body)), claim),
                    Err(status) => return Ok(status.into_http()),
                }
            };
            parts.extensions.insert(tenant);
            inner.call(Request::from_parts(parts, body)).await
        })
    }
}

async fn get(core: &Arc<Core>, tenant: &Tenant, body: Body) -> Result<Response<Body>, Status> {
    let limit = core.config.limits.ticket_bytes.saturating_add(FRAMING);
    let reading = Limited::new(body, limit).collect();
    let body = tokio::time::timeout(core.config.limits.handshake(), reading)
        .await
        .map_err(|_| Status::deadline_exceeded("the ticket did not come in time"))?
        .map_err(|_| Status::invalid_argument("the ticket is too long, or was cut off"))?
        .to_bytes();
    let ticket = ticket(body)?;
    let messages = core.open(Via::Network(tenant), &ticket.ticket).await?;
    let mut response = Response::new(Body::new(Messages::new(messages)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// The one message of a request.
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
