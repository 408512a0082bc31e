//! HTTP clients of object stores: a request that was never sent is sent again, and a store that has too many requests is known to.
//!
//! An answer that is none of HTTP comes from something that is no web server, or, where the store has answered before, from a connection that
//! broke; such a request is repeated too.
//!
//! A peer may close a connection before a request is sent on it: it restarts, or it speaks another protocol. hyper calls such a request
//! cancelled, a failure that `object_store` does not know and therefore never repeats. It does repeat a request that a busy store refuses,
//! so that only this client sees these answers in time. Nor does it know conditions of the request that completes an upload in parts, or
//! servers that cut a list short without a way to the rest; and it fails a list for one key that no address leads to.
//!
//! Nothing follows a redirect to another host, where the session token, or the signature in an address, would go along.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::header::{self, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};

use super::answer::PREFIX;
use super::origins;
use super::transport::{self, Redirects};
use super::unaddressed;

tokio::task_local! {
    /// The condition of the upload that this task completes.
    static CONDITION: Option<(HeaderName, HeaderValue)>;
}

/// The outcome of `request`, of whose requests the one that completes an upload in parts has the header `condition` as well.
pub(super) async fn completing<T>(condition: Option<(HeaderName, HeaderValue)>, request: impl Future<Output = T>) -> T {
    CONDITION.scope(condition, request).await
}

/// The store does not implement requests with a condition.
#[derive(Debug)]
pub(super) struct Unconditional;

impl fmt::Display for Unconditional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store implements no conditional writes")
    }
}

impl StdError for Unconditional {}

/// Makes clients of the store at one origin, whose unsent requests are repeated as `object_store` repeats requests.
#[derive(Debug)]
pub(super) struct Connector {
    origin: Arc<str>,
    redirects: Redirects,
}

impl Connector {
    /// To the store whose addresses begin with `prefix`.
    pub(super) fn new(prefix: &Arc<str>, redirects: Redirects) -> Self {
        Self { origin: Arc::clone(prefix), redirects }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = HttpClient::new(transport::client(options, self.redirects)?);
        // Those are plain web servers.
        let is_web = self.redirects == Redirects::Anywhere;
        let (origin, answered) = (Arc::clone(&self.origin), AtomicBool::new(false));
        Ok(HttpClient::new(Client { origin, inner, is_web, answered }))
    }
}

#[derive(Debug)]
struct Client {
    origin: Arc<str>,
    inner: HttpClient,
    /// True for a web server, which may send another form of a file than it has.
    is_web: bool,
    /// True once a request had an answer.
    answered: AtomicBool,
}

/// What answered the first request speaks another language than HTTP/1.
#[derive(Debug)]
struct NoWebServer(HttpError);

impl fmt::Display for NoWebServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for NoWebServer {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// The address of a server of bowstring, if `error` is that it answered a web request to `url` in HTTP/2, its only language.
pub(super) fn meant(url: &str, error: &(dyn StdError + 'static)) -> Option<String> {
    let at = url.strip_prefix("http://")?;
    std::iter::successors(Some(error), |error| (**error).source())
        .any(|error| error.is::<NoWebServer>())
        .then(|| format!("grpc://{at}"))
}

/// An answer that says for good that the server cannot do this, in the words that `object_store` has for the end of its retries.
#[derive(Debug)]
struct Refusal(StatusCode, Bytes);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}: {}", self.0, String::from_utf8_lossy(&self.1))
    }
}

impl StdError for Refusal {}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if completes(&request)
            && let Ok(Some((name, value))) = CONDITION.try_with(Clone::clone)
        {
            // S3 lets headers that are not its own come without a signature.
            request.headers_mut().insert(name, value);
        }
        let (is_conditional, lists) = (is_conditional(&request), is_list(&request));
        let answer = self.inner.execute(request).await;
        let answer = answer.map_err(|error| classified(error, self.answered.load(Ordering::Relaxed)))?;
        self.answered.store(true, Ordering::Relaxed);
        let status = answer.status();
        if has_too_many(status.as_u16()) {
            origins::too_many(&self.origin);
        }
        origins::answered(&self.origin, (status.is_server_error() || has_too_many(status.as_u16())).then_some(status));
        // These would be sent again and again, as after other answers of 500 and above.
        if is_conditional && status == StatusCode::NOT_IMPLEMENTED {
            return Err(HttpError::new(HttpErrorKind::Unknown, Unconditional));
        }
        if matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED) {
            let body = answer.into_body().bytes().await?;
            return Err(HttpError::new(HttpErrorKind::Unknown, Refusal(status, body)));
        }
        if let Some(coding) = coding(&answer).filter(|_| self.is_web) {
            return Err(HttpError::new(HttpErrorKind::Unknown, Encoded(coding)));
        }
        if !lists {
            return Ok(answer);
        }
        // A page of at most a few thousand names.
        let (parts, body) = answer.into_parts();
        let page = body.bytes().await?;
        if is_cut_short(&page) {
            return Err(HttpError::new(HttpErrorKind::Unknown, CutShort));
        }
        let page = unaddressed::without(&page).map_or(page, Bytes::from);
        Ok(HttpResponse::from_parts(parts, page.into()))
    }
}

/// A web server sends a file in another form, whose bytes are at other places.
#[derive(Debug)]
struct Encoded(String);

impl fmt::Display for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server sends the file compressed (Content-Encoding: {}), so that its parts cannot be read; switch that off there",
            self.0
        )
    }
}

impl StdError for Encoded {}

/// The form in which `answer` has a file, if that is another than the file's own.
fn coding(answer: &HttpResponse) -> Option<String> {
    // Some servers tell others too, which change no byte, such as aws-chunked.
    const COMPRESSED: [&str; 7] = ["gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress"];
    let coding = answer.headers().get(header::CONTENT_ENCODING).filter(|_| answer.status().is_success())?;
    let coding: String = String::from_utf8_lossy(coding.as_bytes()).chars().take(64).collect();
    let is_compressed = |one: &str| COMPRESSED.iter().any(|known| one.trim().eq_ignore_ascii_case(known));
    coding.split(',').any(is_compressed).then_some(coding)
}

/// The store's list of objects ends before its end.
#[derive(Debug)]
struct CutShort;

impl fmt::Display for CutShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the list of objects is cut short, and the store does not say where it goes on: it does not know ListObjectsV2")
    }
}

impl StdError for CutShort {}

/// Returns true if `page`, of a list of objects of S3, is not the last one and names no next one.
fn is_cut_short(page: &[u8]) -> bool {
    let has = |text: &str| page.windows(text.len()).any(|found| found == text.as_bytes());
    has("<IsTruncated>true</IsTruncated>") && !has("<NextContinuationToken>")
}

/// Returns true if `request` asks for a list of objects, in the language of S3 or Azure.
fn is_list(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == Method::GET && query.split('&').any(|part| matches!(part, "list-type=2" | "comp=list"))
}

/// Returns true if `request` completes an upload in parts, in the language of S3.
fn completes(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == Method::POST && query.split('&').any(|part| part.starts_with("uploadId="))
}

/// Returns true if `request` is to change something under a condition.
fn is_conditional(request: &HttpRequest) -> bool {
    let headers = request.headers();
    matches!(*request.method(), Method::PUT | Method::POST)
        && (headers.contains_key(header::IF_MATCH) || headers.contains_key(header::IF_NONE_MATCH))
}

/// Returns true for the answers of a store that has too many requests: 429 Too Many Requests, 503 Slow Down.
pub(super) fn has_too_many(status: u16) -> bool {
    matches!(status, 429 | 503)
}

/// `error`, of a kind that `object_store` repeats if the request was not sent, or if what came back was no answer of a store that has
/// `answered` before.
fn classified(error: HttpError, answered: bool) -> HttpError {
    let cause: &(dyn StdError + 'static) = &error;
    let of_hyper = || {
        std::iter::successors(Some(cause), |error| (**error).source())
            .filter_map(|error| error.downcast_ref::<hyper::Error>())
    };
    if of_hyper().any(hyper::Error::is_canceled) {
        return HttpError::new(HttpErrorKind::Request, error);
    }
    // Words that came before anything was asked, which hyper has no other name for.
    let greets = |error: &hyper::Error| error.to_string().contains("received unexpected message from connection");
    if answered && of_hyper().any(|error| error.is_parse() || greets(error)) {
        return HttpError::new(HttpErrorKind::Interrupted, error);
    }
    if of_hyper().any(|error| greets(error) || error.to_string().contains("invalid HTTP version")) {
        return HttpError::new(HttpErrorKind::Unknown, NoWebServer(error));
    }
    error
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
        let error = classified(HttpError::new(HttpErrorKind::Unknown, error), false);
        assert_eq!(error.kind(), HttpErrorKind::Request);
        let other = classified(HttpError::new(HttpErrorKind::Unknown, io::Error::other("why")), true);
        assert_eq!(other.kind(), HttpErrorKind::Unknown);
    }

    #[tokio::test]
    async fn a_condition_goes_with_the_end_of_an_upload_and_a_store_without_them_is_told_from_one_that_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x?", listener.local_addr().unwrap());
        let peer = thread::spawn(move || {
            (0..4)
                .map(|_| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut heard = vec![0; 4096];
                    let length = stream.read(&mut heard).unwrap();
                    stream.write_all(b"HTTP/1.1 501 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
                    String::from_utf8_lossy(&heard[..length]).to_lowercase().contains("if-match: \"a\"\r\n")
                })
                .collect::<Vec<_>>()
        });
        let client = Connector::new(&url.as_str().into(), Redirects::Anywhere)
            .connect(&ClientOptions::new().with_allow_http(true))
            .unwrap();
        let asked = async |method: Method, query: &str| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method;
            *request.uri_mut() = format!("{url}{query}").parse().unwrap();
            client.execute(request).await
        };
        let condition = Some((header::IF_MATCH, HeaderValue::from_static("\"a\"")));
        let ended = completing(condition.clone(), asked(Method::POST, "uploadId=1")).await.unwrap_err();
        assert!(ended.source().unwrap().is::<Unconditional>(), "{ended:?}");
        // Neither a part, nor the beginning of an upload, nor the end of one without a condition.
        for (method, query) in [(Method::PUT, "uploadId=1&partNumber=1"), (Method::POST, "uploads")] {
            let refused = completing(condition.clone(), asked(method, query)).await.unwrap_err();
            assert!(refused.source().unwrap().is::<Refusal>(), "{refused:?}");
        }
        assert!(asked(Method::POST, "uploadId=1").await.unwrap_err().source().unwrap().is::<Refusal>());
        assert_eq!(peer.join().unwrap(), [true, false, false, false]);
    }

    #[test]
    fn a_list_that_is_cut_short_without_a_next_page_is_known() {
        let page =
            |more: &str| format!("<ListBucketResult><IsTruncated>{more}<Contents/></ListBucketResult>").into_bytes();
        assert!(is_cut_short(&page("true</IsTruncated>")), "the answer of a server that knows ListObjects alone");
        assert!(!is_cut_short(&page("true</IsTruncated><NextContinuationToken>x</NextContinuationToken>")));
        assert!(!is_cut_short(&page("false</IsTruncated>")));
        let asks = |method: Method, query: &str| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method;
            *request.uri_mut() = format!("http://store/bucket?{query}").parse().unwrap();
            is_list(&request)
        };
        assert!(asks(Method::GET, "delimiter=%2F&list-type=2&prefix=a"));
        assert!(asks(Method::GET, "restype=container&comp=list") && !asks(Method::GET, "comp=blocklist"));
        assert!(!asks(Method::GET, "prefix=list-type=2") && !asks(Method::PUT, "list-type=2"));
    }

    #[tokio::test]
    async fn a_web_server_that_compresses_a_file_is_told_so_and_a_store_may_say_what_it_has() {
        for (redirects, coding, is_refused) in [
            (Redirects::Anywhere, "gzip", true),
            (Redirects::Anywhere, "identity", false),
            (Redirects::Within, "gzip", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let peer = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]).unwrap();
                let head = format!("Content-Encoding: {coding}\r\nConnection: close\r\nContent-Length: 1\r\n");
                stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\nx").as_bytes()).unwrap();
            });
            let options = ClientOptions::new().with_allow_http(true);
            let client = Connector::new(&url.as_str().into(), redirects).connect(&options).unwrap();
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = url.parse().unwrap();
            let refused = client.execute(request).await.err().map(|error| error.source().unwrap().to_string());
            assert_eq!(refused.is_some(), is_refused, "{coding}: {refused:?}");
            assert!(refused.is_none_or(|refused| refused.contains("Content-Encoding: gzip")));
            peer.join().unwrap();
        }
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
        let client = Connector::new(&url.as_str().into(), Redirects::Anywhere)
            .connect(&ClientOptions::new().with_allow_http(true))
            .unwrap();
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.parse().unwrap();
        assert_eq!(client.execute(request).await.unwrap().status(), 204);
        peer.join().unwrap();
    }
}
