//! A store that answered before and is unavailable now, as while it is restarted or fails over: which failures pass by
//! themselves, and for how long a read waits for it.
//!
//! `object_store` repeats a request ten times, and a store that refuses connections uses these up within seconds. Opening a
//! dataset fails then: the address may be wrong. A read of an opened object begins anew.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use super::answer::answers;
use crate::error::{Error, Source};

/// Characters of an answer that are shown: some are pages for people.
const SHOWN: usize = 200;

/// Time for which an opened store may be unavailable.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two rounds of requests.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Cause of a failure that passes by itself, as a store of the user's own says.
#[derive(Debug)]
pub(super) struct Unavailable(pub(super) Source);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Unavailable {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

fn causes<'e>(cause: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(cause), |error| (**error).source())
}

/// Returns true if the store could not be reached, or said that it is not able to answer now.
pub(super) fn is_unavailable(error: &Error) -> bool {
    error.source().is_some_and(|cause| causes(cause).any(|error| error.is::<Unavailable>()) || is_cut_off(cause))
}

/// Logs that a store is waited for after `error`.
pub(super) fn waiting(error: &Error) {
    tracing::warn!("waiting for a store that is unavailable: {}", brief(error));
}

/// What `error` says, with the beginning of the store's answer, if it is that, in one line.
fn brief(error: &Error) -> String {
    let Some(answer) = error.source().and_then(|cause| answers(cause).last()) else { return error.chain() };
    let line = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{error}: {}…", &line[..end]),
        None => format!("{error}: {line}"),
    }
}

#[cfg(feature = "cloud")]
fn is_cut_off(cause: &(dyn StdError + 'static)) -> bool {
    use object_store::client::{HttpError, HttpErrorKind};

    use super::answer::passes;

    let is_cut_off = causes(cause).filter_map(|error| error.downcast_ref::<HttpError>()).any(|error| {
        matches!(
            error.kind(),
            HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Timeout | HttpErrorKind::Interrupted
        )
    });
    is_cut_off || answers(cause).any(|answer| passes(&answer))
}

/// Without stores of clouds.
#[cfg(not(feature = "cloud"))]
fn is_cut_off(_: &(dyn StdError + 'static)) -> bool {
    false
}

#[cfg(all(test, feature = "cloud"))]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{self, BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use object_store::client::{HttpError, HttpErrorKind};

    use super::*;
    use crate::store::{Access, find};

    fn of(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let source = Box::new(object_store::Error::Generic { store: "S3", source: source.into() });
        Error::Store { operation: "read".to_owned(), url: "s3://a/b".to_owned(), source }
    }

    #[test]
    fn only_failures_that_pass_are_waited_for() {
        let failed = |kind| is_unavailable(&of(HttpError::new(kind, io::Error::other("why"))));
        assert!(failed(HttpErrorKind::Connect) && failed(HttpErrorKind::Interrupted) && failed(HttpErrorKind::Timeout));
        assert!(!failed(HttpErrorKind::Decode) && !failed(HttpErrorKind::Unknown));
        let answered =
            |status: &str| is_unavailable(&of(format!("Server returned non-2xx status code: {status}: <Error/>")));
        assert!(answered("503 Service Unavailable") && answered("429 Too Many Requests"));
        assert!(!answered("403 Forbidden") && !answered("404 Not Found"));
        assert!(!answered("501 Not Implemented") && !answered("505 HTTP Version Not Supported"));
        assert!(!is_unavailable(&Error::SourceChanged {
            file: "a".to_owned(),
            was: "1".to_owned(),
            now: "2".to_owned()
        }));
    }

    #[test]
    fn a_page_for_people_is_cut_to_one_line_behind_its_status() {
        let page = format!("<html>\n <body>{}</body>\n</html>", "é ".repeat(5000));
        let said = brief(&of(format!("Server returned non-2xx status code: 503 Service Unavailable: {page}")));
        assert!(said.contains("503 Service Unavailable: <html> <body>é é") && said.ends_with('…'), "{said}");
        assert!(!said.contains('\n') && said.chars().count() < 300, "{said}");
        let said = brief(&of(HttpError::new(HttpErrorKind::Connect, io::Error::other("why"))));
        assert!(said.contains("why"), "{said}");
    }

    /// Serves `bytes` by HTTP, one request a connection. As many connections as the number says have the answer `instead`, and are closed at once
    /// if that is empty.
    fn serve(bytes: &'static [u8], instead: &'static [u8]) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a.bin", listener.local_addr().unwrap());
        let deaf = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&deaf);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let fewer = |left: usize| left.checked_sub(1);
                let fails = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
                if fails && instead.is_empty() {
                    continue;
                }
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(io::Result::ok);
                let request = lines.next().unwrap_or_default();
                let headers: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
                if fails {
                    stream.write_all(instead).unwrap();
                    continue;
                }
                let range = headers.iter().find_map(|line| line.strip_prefix("range: bytes=")?.split_once('-'));
                let (first, last) = match range {
                    None => (0, bytes.len() - 1),
                    Some(("", length)) => (bytes.len() - length.parse::<usize>().unwrap(), bytes.len() - 1),
                    Some((first, last)) => (first.parse().unwrap(), last.parse().unwrap()),
                };
                let mut answer = format!(
                    "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: \"1\"\r\nContent-Length: {}\r\n\
                     Content-Range: bytes {first}-{last}/{}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
                    last + 1 - first,
                    bytes.len()
                )
                .into_bytes();
                if request.starts_with("GET") {
                    answer.extend_from_slice(&bytes[first..=last]);
                } else {
                    answer = String::from_utf8(answer).unwrap().replace("206 Partial Content", "200 OK").into_bytes();
                }
                stream.write_all(&answer).unwrap();
            }
        });
        (url, deaf)
    }

    #[tokio::test]
    async fn a_read_of_an_opened_object_waits_for_a_store_that_is_unavailable() {
        let (url, deaf) = serve(b"0123456789", b"");
        let options = BTreeMap::new();
        let found = find(&[url], Access::from(&options), 10).await.unwrap();
        let object = found.files[0].tail(4).await.unwrap().object;
        // All tries of one request, and the first look at the object.
        deaf.store(12, Ordering::Relaxed);
        assert_eq!(object.read_range(2..5).await.unwrap(), b"234"[..]);
        assert_eq!(deaf.load(Ordering::Relaxed), 0);
    }

    /// Two bytes that no answer begins with.
    const GARBLED: &[u8] = b"\0\0garbage\r\n\r\n";

    #[tokio::test]
    async fn a_broken_answer_of_a_store_that_answered_before_is_waited_for() {
        let (url, broken) = serve(b"0123456789", GARBLED);
        let options = BTreeMap::new();
        let found = find(&[url], Access::from(&options), 10).await.unwrap();
        let object = found.files[0].tail(4).await.unwrap().object;
        for count in [1, 12] {
            broken.store(count, Ordering::Relaxed);
            assert_eq!(object.read_range(2..5).await.unwrap(), b"234"[..]);
            assert_eq!(broken.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn what_never_answered_as_a_web_server_may_be_one_of_bowstring() {
        let (url, broken) = serve(b"0123456789", GARBLED);
        broken.store(usize::MAX, Ordering::Relaxed);
        let options = BTreeMap::new();
        let found = find(std::slice::from_ref(&url), Access::from(&options), 10).await.unwrap();
        let error = found.files[0].tail(4).await.unwrap_err();
        let said = error.to_string();
        let meant = url.replace("http://", "grpc://");
        assert!(matches!(error, Error::Config { .. }) && said.contains(&meant), "{said}");
    }

    #[tokio::test]
    async fn an_answer_that_stays_is_not_waited_for() {
        const REFUSAL: &[u8] = b"HTTP/1.1 501 Not Implemented\r\nConnection: close\r\nContent-Length: 4\r\n\r\nnope";
        let (url, left) = serve(b"0123456789", REFUSAL);
        let options = BTreeMap::new();
        let found = find(&[url], Access::from(&options), 10).await.unwrap();
        let object = found.files[0].tail(4).await.unwrap().object;
        left.store(1000, Ordering::Relaxed);
        let error = object.read_range(2..5).await.unwrap_err();
        let said = error.chain();
        assert!(matches!(error, Error::Store { .. }) && said.contains("501 Not Implemented"), "{said}");
        assert!(left.load(Ordering::Relaxed) >= 996, "{} requests", 1000 - left.load(Ordering::Relaxed));
    }
}
