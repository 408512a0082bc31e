//! HTTP clients of object stores: a request that was never sent is sent again, and a store that has too many requests is known to.
//!
//! A peer may close a connection before a request is sent on it: it restarts, or it speaks another protocol. hyper calls such a request
//! cancelled, a failure that `object_store` does not know and therefore never repeats. It does repeat a request that a busy store refuses,
//! so that only this client sees these answers in time.

use std::error::Error as StdError;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use super::origins;

/// Makes clients of the store at one origin, whose unsent requests are repeated as `object_store` repeats requests.
#[derive(Debug)]
pub(super) struct Connector {
    origin: Arc<str>,
    inner: ReqwestConnector,
}

impl Connector {
    /// To the store whose addresses begin with `prefix`.
    pub(super) fn new(prefix: &Arc<str>) -> Self {
        Self { origin: Arc::clone(prefix), inner: ReqwestConnector::default() }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Client { origin: Arc::clone(&self.origin), inner: self.inner.connect(options)? }))
    }
}

#[derive(Debug)]
struct Client {
    origin: Arc<str>,
    inner: HttpClient,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.inner.execute(request).await.map_err(classified)?;
        if has_too_many(answer.status().as_u16()) {
            origins::too_many(&self.origin);
        }
        Ok(answer)
    }
}

/// Returns true for the answers of a store that has too many requests: 429 Too Many Requests, 503 Slow Down.
pub(super) fn has_too_many(status: u16) -> bool {
    matches!(status, 429 | 503)
}

/// `error`, of the kind that `object_store` repeats if the request was not sent.
fn classified(error: HttpError) -> HttpError {
    let cause: &(dyn StdError + 'static) = &error;
    let is_unsent = std::iter::successors(Some(cause), |error| (**error).source())
        .filter_map(|error| error.downcast_ref::<hyper::Error>())
        .any(hyper::Error::is_canceled);
    if is_unsent { HttpError::new(HttpErrorKind::Request, error) } else { error }
}

#[cfg(all(test, feature = "flight"))]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use hyper_util::rt::TokioIo;
    use object_store::client::HttpRequestBody;

    use super::*;

    /// Error of hyper for a request whose connection is already closed.
    async fn cancelled() -> hyper::Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        drop(connection);
        sender.send_request(hyper::Request::new(HttpRequestBody::empty())).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_request_that_was_never_sent_is_one_to_repeat() {
        let error = cancelled().await;
        assert!(error.is_canceled(), "{error}");
        let error = classified(HttpError::new(HttpErrorKind::Unknown, error));
        assert_eq!(error.kind(), HttpErrorKind::Request);
        let other = classified(HttpError::new(HttpErrorKind::Unknown, io::Error::other("why")));
        assert_eq!(other.kind(), HttpErrorKind::Unknown);
    }

    #[tokio::test]
    async fn answers_come_through_the_client() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let peer = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
        });
        let client = Connector::new(&url.as_str().into()).connect(&ClientOptions::new().with_allow_http(true)).unwrap();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().unwrap();
        assert_eq!(client.execute(request).await.unwrap().status(), 204);
        peer.join().unwrap();
    }
}
