//! One request, sent until there is an answer to act on.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{RequestBuilder, StatusCode};
use url::Url;

use super::retries::{self, Retries};
use crate::error::Source;

/// Most bytes that are read of an answer that refuses.
const MOST_OF_A_REFUSAL: usize = 64 << 10;

/// An answer, read to its end; of one that refuses, the beginning.
#[derive(Debug, Clone)]
pub(in crate::store) struct Answer {
    pub(in crate::store) status: StatusCode,
    pub(in crate::store) headers: HeaderMap,
    pub(in crate::store) body: Bytes,
    /// Address that it came from.
    pub(in crate::store) url: Url,
}

impl Answer {
    /// A header as text.
    pub(in crate::store) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Target of the redirect, if it is one.
    pub(in crate::store) fn location(&self) -> Option<Url> {
        let location = self.headers.get(LOCATION).filter(|_| self.status.is_redirection())?;
        self.url.join(location.to_str().ok()?).ok()
    }

    /// Host that it came from, as messages have it.
    pub(in crate::store) fn host(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

/// Why there is no answer to act on. It has no address in it, which may have a signature.
#[derive(Debug)]
pub(in crate::store) enum Problem {
    /// The request could not be made.
    Request(Source),
    /// The answer of a server that fails, the last time as well.
    Answer(Box<Answer>),
    /// The network failed, the last time as well.
    Network(reqwest::Error),
    /// The answer has more than so many bytes.
    TooLarge(u64),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => write!(f, "{error}"),
            Self::Answer(answer) => write!(f, "{} answers {}", answer.host(), answer.status),
            Self::Network(error) => write!(f, "{error}"),
            Self::TooLarge(most) => write!(f, "it answers with more than {most} bytes"),
        }
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Request(error) => error.source(),
            Self::Network(error) => std::error::Error::source(error),
            Self::Answer(_) | Self::TooLarge(_) => None,
        }
    }
}

/// Returns true if the same request may have another answer later.
pub(in crate::store) fn passes(answer: &Answer) -> bool {
    answer.status.is_server_error()
        || matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// Sends `request` until its answer, of at most `most` bytes, does not `pass`: as often as `retries` allow.
///
/// # Errors
/// The last [`Problem`].
pub(in crate::store) async fn patient(
    retries: &Retries,
    most: u64,
    passes: &(dyn Fn(&Answer) -> bool + Sync),
    request: &(dyn Fn() -> Result<RequestBuilder, Source> + Sync),
) -> Result<Answer, Problem> {
    let mut failures = 0;
    loop {
        let problem = match once(request().map_err(Problem::Request)?, most).await {
            Ok(answer) if passes(&answer) => Problem::Answer(Box::new(answer)),
            Err(error @ Problem::Network(_)) => error,
            outcome => return outcome,
        };
        failures += 1;
        let told = match &problem {
            Problem::Answer(answer) => retries::told(answer.header(RETRY_AFTER.as_str())),
            _ => None,
        };
        match retries.wait(failures, told, chance()) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => return Err(problem),
        }
    }
}

async fn once(request: RequestBuilder, most: u64) -> Result<Answer, Problem> {
    let network = |error: reqwest::Error| Problem::Network(error.without_url());
    let mut response = request.send().await.map_err(network)?;
    let (status, url) = (response.status(), response.url().clone());
    let headers = std::mem::take(response.headers_mut());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(network)? {
        if status.is_success() && (body.len() + chunk.len()) as u64 > most {
            return Err(Problem::TooLarge(most));
        }
        body.extend_from_slice(&chunk);
        if !status.is_success() && body.len() >= MOST_OF_A_REFUSAL {
            body.truncate(MOST_OF_A_REFUSAL);
            break;
        }
    }
    Ok(Answer { status, headers, body: body.into(), url })
}

/// A number from 0 to 1, another one each time.
fn chance() -> f64 {
    RandomState::new().hash_one(0) as f64 / u64::MAX as f64
}

/// The header that shows `token`, which is not shown itself; none for a token with characters that no token has.
pub(in crate::store) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;
    use std::time::Duration;

    use super::*;

    const RETRIES: Retries = Retries { most: 3, first: Duration::from_millis(1), longest: Duration::from_millis(4) };

    /// Asks a server that gives these answers, one for each connection; and says how many it gave.
    async fn asked(answers: &'static [&'static str], most: u64) -> (Result<Answer, Problem>, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            for (at, answer) in answers.iter().enumerate() {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 1024];
                if stream.read(&mut head).unwrap() == 4 {
                    return at;
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
            answers.len()
        });
        let client = reqwest::Client::new();
        let outcome = patient(&RETRIES, most, &passes, &|| Ok(client.get(&url))).await;
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        if let Ok(mut stream) = std::net::TcpStream::connect(address) {
            stream.write_all(b"stop").unwrap();
        }
        (outcome, server.join().unwrap())
    }

    const FINE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nfine";
    const BUSY: &str = "HTTP/1.1 503 Busy\r\nconnection: close\r\nretry-after: 100\r\ncontent-length: 0\r\n\r\n";
    const CUT: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 40\r\n\r\nfi";
    const NONE: &str = "HTTP/1.1 404 None\r\nconnection: close\r\ncontent-length: 4\r\n\r\nnone";

    #[tokio::test]
    async fn what_passes_is_asked_again() {
        let (answer, count) = asked(&[BUSY, CUT, "", FINE], 9).await;
        assert_eq!((answer.unwrap().body, count), ("fine".into(), 4));
        let (answer, count) = asked(&[NONE, FINE], 9).await;
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.body, count), (StatusCode::NOT_FOUND, "none".into(), 1));
        let (answer, count) = asked(&[BUSY; 9], 9).await;
        let problem = answer.unwrap_err();
        assert!(matches!(&problem, Problem::Answer(_)) && problem.to_string().contains("503"), "{problem}");
        assert_eq!(count, 4);
        let (answer, count) = asked(&[CUT; 9], 9).await;
        assert!(matches!(answer, Err(Problem::Network(_))), "{answer:?}");
        assert_eq!(count, 4);
    }

    #[tokio::test]
    async fn answers_have_limits() {
        let (answer, count) = asked(&[FINE, FINE], 3).await;
        assert!(matches!(answer, Err(Problem::TooLarge(3))), "{answer:?}");
        assert_eq!(count, 1);
    }

    #[test]
    fn chance_is_not_always_the_same() {
        let all: Vec<f64> = (0..100).map(|_| chance()).collect();
        assert!(all.iter().all(|chance| (0.0..=1.0).contains(chance)));
        assert!(all.iter().any(|chance| *chance > 0.5) && all.iter().any(|chance| *chance < 0.5));
    }
}
