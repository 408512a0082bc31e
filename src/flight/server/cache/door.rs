//! The door of a served cache: who may call, and the whole of what is asked, before the service sees anything of it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http::header::AUTHORIZATION;
use http::{Request, Response};
use http_body_util::Full;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower_service::Service;

use crate::flight::server::access::auth::{Denied, Tokens, tenant};
use crate::flight::server::access::refusals::Refusals;
use crate::flight::server::ops::limits::Limits;
use crate::flight::server::ops::metrics::Metrics;
use crate::flight::server::ops::request;
use crate::flight::server::stream::hangup::Hangups;

/// The call whose body is a stream, each part of which has its own time.
const DO_PUT: &str = "/arrow.flight.protocol.FlightService/DoPut";

/// Most bytes of every other request: it has the name of a block.
const MOST: usize = 4 << 10;

/// Wraps the service `S`.
#[derive(Debug, Clone)]
pub(super) struct Door<S> {
    inner: S,
    guard: Guard,
    patience: Duration,
    metrics: Metrics,
    refusals: Arc<Refusals>,
    hangups: Hangups,
}

/// Who may call: holders of a token, or of a certificate of the CA of clients, or everybody.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) tokens: Option<Tokens>,
    pub(super) client_ca: bool,
}

impl<S> Door<S> {
    pub(super) fn new(inner: S, guard: Guard, limits: &Limits, metrics: Metrics, hangups: Hangups) -> Self {
        let refusals = Arc::new(Refusals::new(limits.refused_per_minute));
        Self { inner, guard, patience: limits.handshake(), metrics, refusals, hangups }
    }
}

impl Guard {
    /// Admits a call, or refuses it before anything of it is read. Nobody is told apart from others beyond that.
    fn admit(&self, parts: &http::request::Parts) -> Result<(), Denied> {
        let chain = parts.extensions.get::<TlsConnectInfo<TcpConnectInfo>>().and_then(TlsConnectInfo::peer_certs);
        let certificate = chain.as_ref().and_then(|chain| chain.first()).map(AsRef::as_ref);
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        tenant(self.tokens.as_ref(), self.client_ca, header, certificate, SystemTime::now()).map(drop)
    }
}

impl<S: NamedService> NamedService for Door<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Door<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (parts, body) = request.into_parts();
        if let Err(denied) = self.guard.admit(&parts) {
            self.metrics.refused(denied);
            let refusals = Arc::clone(&self.refusals);
            let peer = request::sender(&parts.extensions).map(|address| address.ip().to_canonical());
            return Box::pin(async move { Ok(refusals.hold(peer, denied.into()).await.0.into_http()) });
        }
        self.hangups.admit(request::sender(&parts.extensions));
        let (mut inner, patience) = (self.inner.clone(), self.patience);
        Box::pin(async move {
            if parts.uri.path() == DO_PUT {
                return inner.call(Request::from_parts(parts, body)).await;
            }
            match request::whole(body, MOST, patience).await {
                Ok(body) => inner.call(Request::from_parts(parts, Body::new(Full::new(body)))).await,
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}
