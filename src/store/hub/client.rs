//! Requests to the Hub and to the hosts of its files: who gets the token, which answers are waited for, and for how long.

use std::error::Error as StdError;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::{Error as StoreError, Result};
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::{Method, StatusCode};
use tokio::time::Instant;
use url::Url;

use super::settings::Settings;
use super::signed;
use crate::store::client::has_too_many;
use crate::store::credentials::{CredentialSource, store_error};
use crate::store::origins;

/// Redirects within the Hub that one request follows: a dataset that was renamed, a file in its cache.
const REDIRECTS: usize = 5;

/// Times that a request is sent again if the network or the server fails.
const RETRIES: u32 = 10;

/// The shortest and the longest wait in between.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(15));

/// Longest wait of one request for a limit to pass. The Hub counts over five minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Error of the store, in the words of `problem`.
pub(super) fn broken(problem: impl Into<Box<dyn StdError + Send + Sync>>) -> StoreError {
    StoreError::Generic { store: "hf", source: problem.into() }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Address that it came from.
    pub(super) url: Url,
}

impl Answer {
    /// A header as text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Target of the redirect, if it is one.
    pub(super) fn location(&self) -> Option<Url> {
        let location = self.headers.get(LOCATION).filter(|_| self.status.is_redirection())?;
        self.url.join(location.to_str().ok()?).ok()
    }
}

/// The token, or its source.
#[derive(Debug)]
enum Authorization {
    Nobody,
    Token(HeaderValue),
    Provided(CredentialSource),
}

/// See the module.
pub(super) struct Client {
    http: reqwest::Client,
    /// The name of the dataset, under which its requests are counted.
    origin: Arc<str>,
    endpoint: Url,
    authorization: Authorization,
    /// Time at which the Hub takes requests again.
    resume: Mutex<Option<Instant>>,
}

/// Its own text has the proxy's password.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(settings: &Settings, origin: &str, credentials: Option<CredentialSource>) -> Result<Self> {
        let failed = |error: reqwest::Error| broken(error.without_url());
        let mut builder = reqwest::Client::builder()
            // A redirect is an answer here: it says where a file lies, and who must not get the token.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(settings.connect_timeout)
            .read_timeout(settings.timeout)
            .user_agent(&settings.user_agent)
            .danger_accept_invalid_certs(settings.allow_invalid_certificates);
        if let Some(proxy) = &settings.proxy {
            builder = builder.proxy(reqwest::Proxy::all(proxy.reveal()).map_err(failed)?);
        }
        let authorization = match (credentials, &settings.token) {
            (Some(source), _) => Authorization::Provided(source),
            (None, Some(token)) => Authorization::Token(bearer(token.reveal())?),
            (None, None) => Authorization::Nobody,
        };
        Ok(Self {
            http: builder.build().map_err(failed)?,
            origin: origin.into(),
            endpoint: settings.endpoint.clone(),
            authorization,
            resume: Mutex::new(None),
        })
    }

    /// The Hub, without secrets.
    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// Returns true if a token is sent.
    pub(super) fn has_token(&self) -> bool {
        !matches!(self.authorization, Authorization::Nobody)
    }

    /// The address at the Hub whose path has these parts.
    pub(super) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// Returns true if `url` is at the Hub itself.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    /// Answer of the Hub, of at most `most` bytes. Redirects within the Hub are followed; a redirect elsewhere is the answer.
    pub(super) async fn ask(
        &self,
        method: Method,
        mut url: Url,
        range: Option<&Range<u64>>,
        most: u64,
    ) -> Result<Answer> {
        for _ in 0..=REDIRECTS {
            if !self.is_own(&url) {
                return Err(broken("the Hub named an address elsewhere"));
            }
            let answer = self.known(&method, &url, range, most).await?;
            match answer.location().filter(|next| self.is_own(next)) {
                Some(next) => url = next,
                None => return Ok(answer),
            }
        }
        Err(broken("the Hub redirects without end"))
    }

    /// Answer of the Hub to a request with the token; asks again with another one, if it is refused and another is provided.
    async fn known(&self, method: &Method, url: &Url, range: Option<&Range<u64>>, most: u64) -> Result<Answer> {
        let Authorization::Provided(source) = &self.authorization else {
            let header = match &self.authorization {
                Authorization::Token(header) => Some(header),
                _ => None,
            };
            return self.patient(method, url, range, most, Some(header)).await;
        };
        let mut renewed = false;
        loop {
            let given = source.get().await.map_err(store_error)?;
            let header = bearer(&given.credentials.hub().map_err(store_error)?)?;
            let answer = self.patient(method, url, range, most, Some(Some(&header))).await?;
            if renewed || !matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Ok(answer);
            }
            source.refused(&given);
            renewed = true;
        }
    }

    /// The bytes `range` at the signed address `url`. The request does not say who asks.
    pub(super) async fn fetch(&self, url: &Url, range: &Range<u64>, most: u64) -> Result<Answer> {
        self.patient(&Method::GET, url, Some(range), most, None).await
    }

    /// As `once`, until there is a usable answer. `own` is of requests to the Hub: who asks there.
    async fn patient(
        &self,
        method: &Method,
        url: &Url,
        range: Option<&Range<u64>>,
        most: u64,
        own: Option<Option<&HeaderValue>>,
    ) -> Result<Answer> {
        let start = Instant::now();
        let mut failures = 0;
        loop {
            if own.is_some() {
                self.pause(start).await?;
            }
            let answer = self.once(method, url, range, most, own.flatten()).await;
            if answer.as_ref().is_ok_and(|answer| has_too_many(answer.status.as_u16())) {
                origins::too_many(&self.origin);
            }
            let (wait, problem) = match answer {
                Ok(answer) if answer.status == StatusCode::TOO_MANY_REQUESTS => {
                    let wait = signed::wait(answer.header(RETRY_AFTER.as_str()), answer.header("ratelimit"));
                    let wait = wait.unwrap_or(BACKOFF.1);
                    if own.is_some() {
                        self.limited(wait);
                    }
                    if start.elapsed().saturating_add(wait) > PATIENCE {
                        return Err(too_many(wait));
                    }
                    tracing::info!("{} takes no requests for {} s", host(url), wait.as_secs());
                    tokio::time::sleep(wait).await;
                    continue;
                }
                Ok(answer) if answer.status.is_server_error() || answer.status == StatusCode::REQUEST_TIMEOUT => {
                    let told = signed::wait(answer.header(RETRY_AFTER.as_str()), None);
                    (told.map(|wait| wait.min(BACKOFF.1)), broken(format!("{} answers {}", host(url), answer.status)))
                }
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) => (None, broken(error)),
            };
            if failures == RETRIES {
                return Err(problem);
            }
            let doubled = BACKOFF.0.saturating_mul(1 << failures.min(10));
            failures += 1;
            tokio::time::sleep(wait.unwrap_or(doubled).min(BACKOFF.1)).await;
        }
    }

    async fn once(
        &self,
        method: &Method,
        url: &Url,
        range: Option<&Range<u64>>,
        most: u64,
        who: Option<&HeaderValue>,
    ) -> std::result::Result<Answer, Failure> {
        let mut request = self.http.request(method.clone(), url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(authorization) = who {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(range) = range {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        // An error has the address in it, and that a signature.
        let passing = |error: reqwest::Error| Failure::Passing(error.without_url());
        let mut response = request.send().await.map_err(passing)?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut body = Vec::new();
        if status.is_success() && method != Method::HEAD {
            while let Some(chunk) = response.chunk().await.map_err(passing)? {
                if (body.len() + chunk.len()) as u64 > most {
                    let problem = format!("{} answers with more than {most} bytes", host(url));
                    return Err(Failure::Final(broken(problem)));
                }
                body.extend_from_slice(&chunk);
            }
        }
        Ok(Answer { status, headers, body: body.into(), url: url.clone() })
    }

    /// Records that the Hub takes no requests for now from anybody who shares this.
    fn limited(&self, wait: Duration) {
        let end = Instant::now() + wait.min(PATIENCE);
        let mut resume = self.resume.lock().unwrap_or_else(PoisonError::into_inner);
        *resume = Some(resume.map_or(end, |resume| resume.max(end)));
    }

    /// Waits until the Hub takes requests.
    async fn pause(&self, start: Instant) -> Result<()> {
        loop {
            let resume = *self.resume.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(resume) = resume.filter(|resume| *resume > Instant::now()) else { return Ok(()) };
            if resume.saturating_duration_since(start) > PATIENCE {
                return Err(too_many(resume.saturating_duration_since(Instant::now())));
            }
            tokio::time::sleep_until(resume).await;
        }
    }
}

/// The header with the token, which is never shown.
fn bearer(token: &str) -> Result<HeaderValue> {
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_| broken("the token has characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Failed request, by whether sending it again may help.
enum Failure {
    Passing(reqwest::Error),
    Final(StoreError),
}

fn too_many(wait: Duration) -> StoreError {
    broken(format!(
        "the Hub takes no more requests (429) and asks to wait {} s; a token (HF_TOKEN) raises its limit, and ranks that share a server \
         (bowstring serve) or an index ask for each file once",
        wait.as_secs()
    ))
}

fn host(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The header in which the Hub says what is wrong.
pub(super) const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
