//! Requests to the Hub and to the hosts of its files: who gets the token, which answers are waited for, and for how long.

use std::error::Error as StdError;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::{Error as StoreError, Result};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderName, HeaderValue, RANGE, RETRY_AFTER};
use reqwest::{Method, StatusCode};
use tokio::time::Instant;
use url::Url;

use super::settings::Settings;
use super::signed;
use crate::store::client::has_too_many;
use crate::store::credentials::{CredentialSource, store_error};
use crate::store::origins;
use crate::store::web::{self, Answer, Retries};

/// Redirects within the Hub that one request follows: a dataset that was renamed, a file in its cache.
const REDIRECTS: usize = 5;

/// Times that a request is sent again if the network or the server fails.
const RETRIES: Retries = Retries { most: 10, first: Duration::from_millis(200), longest: Duration::from_secs(15) };

/// Longest wait of one request for a limit to pass. The Hub counts over five minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Error of the store, in the words of `problem`.
pub(super) fn broken(problem: impl Into<Box<dyn StdError + Send + Sync>>) -> StoreError {
    StoreError::Generic { store: "hf", source: problem.into() }
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
        let authorization = match (credentials, &settings.token) {
            (Some(source), _) => Authorization::Provided(source),
            (None, Some(token)) => Authorization::Token(bearer(token.reveal())?),
            (None, None) => Authorization::Nobody,
        };
        Ok(Self {
            http: settings.connection.client().map_err(broken)?,
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

    /// A usable answer. `own` is of requests to the Hub: who asks there.
    async fn patient(
        &self,
        method: &Method,
        url: &Url,
        range: Option<&Range<u64>>,
        most: u64,
        own: Option<Option<&HeaderValue>>,
    ) -> Result<Answer> {
        let start = Instant::now();
        let request = || {
            let mut request = self.http.request(method.clone(), url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = own.flatten() {
                request = request.header(AUTHORIZATION, authorization);
            }
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            }
            Ok(request)
        };
        // A limit is waited for apart from failures.
        let is_limit = |answer: &Answer| answer.status == StatusCode::TOO_MANY_REQUESTS;
        let passes = |answer: &Answer| {
            if has_too_many(answer.status.as_u16()) {
                origins::too_many(&self.origin);
            }
            web::passes(answer) && !is_limit(answer)
        };
        loop {
            if own.is_some() {
                self.pause(start).await?;
            }
            let answer = web::patient(&RETRIES, most, &passes, &request).await.map_err(broken)?;
            if !is_limit(&answer) {
                return Ok(answer);
            }
            let wait = signed::wait(answer.header(RETRY_AFTER.as_str()), answer.header("ratelimit"));
            let wait = wait.unwrap_or(RETRIES.longest);
            if own.is_some() {
                self.limited(wait);
            }
            if start.elapsed().saturating_add(wait) > PATIENCE {
                return Err(too_many(wait));
            }
            tracing::info!("{} takes no requests for {} s", answer.host(), wait.as_secs());
            tokio::time::sleep(wait).await;
        }
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

fn bearer(token: &str) -> Result<HeaderValue> {
    web::bearer(token).ok_or_else(|| broken("the token has characters that no token has"))
}

fn too_many(wait: Duration) -> StoreError {
    broken(format!(
        "the Hub takes no more requests (429) and asks to wait {} s; a token (HF_TOKEN) raises its limit, and ranks that share a server \
         (bowstring serve) or an index ask for each file once",
        wait.as_secs()
    ))
}

/// The header in which the Hub says what is wrong.
pub(super) const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
