//! The health service. It answers without a token, so it takes next to nothing from any caller.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use super::request;

/// Largest request: it holds the name of a service.
pub(crate) const MAX_REQUEST: usize = 1024;
/// Most concurrent watches on the whole server: each lasts as long as its client likes.
pub(crate) const WATCHES: usize = 64;

/// Wraps the stock service.
#[derive(Debug, Clone)]
pub(crate) struct Health<S> {
    inner: S,
    watches: Arc<Semaphore>,
    patience: Duration,
}

impl<S> Health<S> {
    /// Wraps `inner`; a request must arrive within `patience`.
    pub(crate) fn new(inner: S, patience: Duration) -> Self {
        Self { inner, watches: Arc::new(Semaphore::new(WATCHES)), patience }
    }
}

impl<S: NamedService> NamedService for Health<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Health<S>
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
        let (mut inner, patience) = (self.inner.clone(), self.patience);
        let (parts, body) = request.into_parts();
        let watch = parts.uri.path().ends_with("/Watch").then(|| Arc::clone(&self.watches).try_acquire_owned());
        Box::pin(async move {
            let place = match watch.transpose() {
                Ok(place) => place,
                Err(_) => {
                    return Ok(
                        Status::resource_exhausted(format!("at most {WATCHES} calls watch; use Check")).into_http()
                    );
                }
            };
            let body = match request::whole(body, MAX_REQUEST, patience).await {
                Ok(body) => Body::new(Full::new(body)),
                Err(status) => return Ok(status.into_http()),
            };
            let response = inner.call(Request::from_parts(parts, body)).await?;
            let Some(place) = place else { return Ok(response) };
            // The answer holds the permit until it ends.
            Ok(response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _held = &place;
                    frame
                }))
            }))
        })
    }
}
