//! Requests to a catalog: authorization, retries and a limit of the response size.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::CredentialProvider;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, StatusCode};
use url::Url;

use super::answers::{self, Token};
use super::settings::{Auth, Settings};
use crate::error::{Error, Result};
use crate::store::credentials::{CredentialSource, Credentials, store_error};

/// Maximum bytes of a response, which has the whole metadata of a table.
const MOST: usize = 256 << 20;

/// Retries of a request after a failure of network or server, and the first and the longest wait between them.
const RETRIES: u32 = 5;
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A response, read to its end.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// See the module.
pub(super) struct Client {
    http: reqwest::Client,
    authorization: Authorization,
    /// Address of the catalog, for messages.
    name: String,
}

enum Authorization {
    Nobody,
    Token(HeaderValue),
    /// Tokens of OAuth2, which expire.
    Given(CredentialSource),
}

/// The derived text would show the proxy's password.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("catalog", &self.name).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        let name = settings.uri.to_string();
        let failed = |error: reqwest::Error| Error::Store {
            operation: "open".to_owned(),
            url: name.clone(),
            source: error.without_url().into(),
        };
        let mut builder = reqwest::Client::builder()
            // A token never goes to a host that a response names.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(settings.connect_timeout)
            .read_timeout(settings.timeout)
            .user_agent(&settings.user_agent)
            .danger_accept_invalid_certs(settings.allow_invalid_certificates);
        if let Some(proxy) = &settings.proxy {
            builder = builder.proxy(reqwest::Proxy::all(proxy.reveal()).map_err(failed)?);
        }
        let http = builder.build().map_err(failed)?;
        let authorization = match &settings.auth {
            Auth::Nobody => Authorization::Nobody,
            Auth::Token(token) => Authorization::Token(bearer(token.reveal())?),
            Auth::Client { .. } => {
                let tokens = Tokens { http: http.clone(), auth: settings.auth.clone() };
                Authorization::Given(CredentialSource::new(Arc::new(tokens)))
            }
        };
        Ok(Self { http, authorization, name })
    }

    /// Gets `url`; once more with a new token, if the first is refused and tokens can be renewed.
    pub(super) async fn get(&self, url: &Url, headers: &[(&'static str, &'static str)]) -> Result<Answer> {
        let mut renewed = false;
        loop {
            let (header, given) = match &self.authorization {
                Authorization::Nobody => (None, None),
                Authorization::Token(header) => (Some(header.clone()), None),
                Authorization::Given(source) => {
                    let given = source.get().await?;
                    (Some(bearer(&given.credentials.hub()?)?), Some((source, given)))
                }
            };
            let request = || {
                let request = self.http.request(Method::GET, url.clone());
                let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
                match &header {
                    Some(header) => request.header(AUTHORIZATION, header.clone()),
                    None => request,
                }
            };
            let answer = patient(&self.name, &request).await?;
            match given {
                Some((source, given)) if !renewed && is_refusal(answer.status) => source.refused(&given),
                _ => return Ok(answer),
            }
            renewed = true;
        }
    }

    /// The error for response `answer` to `operation`.
    pub(super) fn failed(&self, operation: &str, answer: &Answer) -> Error {
        let reason = answers::reason(&answer.body).map(|reason| format!(" ({reason})")).unwrap_or_default();
        let what = match is_refusal(answer.status) {
            true => format!(
                "it answers {}{reason}: see iceberg_token and iceberg_credential in storage_options",
                answer.status
            ),
            false => format!("it answers {}{reason}", answer.status),
        };
        self.broken(operation, what)
    }

    pub(super) fn broken(&self, operation: &str, what: String) -> Error {
        Error::Store { operation: operation.to_owned(), url: self.name.clone(), source: what.into() }
    }
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header =
        header.map_err(|_| Error::config("storage_options", "the catalog's token has characters that no token has"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Sends `request`, with retries, until the response is one to act on.
async fn patient(name: &str, request: &(dyn Fn() -> reqwest::RequestBuilder + Sync)) -> Result<Answer> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Store {
        operation: "ask the catalog".to_owned(),
        url: name.to_owned(),
        source,
    };
    let mut failures = 0;
    loop {
        let problem = match once(request()).await {
            Ok(Some(answer)) => {
                let passing = answer.status.is_server_error()
                    || matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
                if !passing {
                    return Ok(answer);
                }
                let reason = answers::reason(&answer.body).map(|reason| format!(" ({reason})")).unwrap_or_default();
                failed(format!("it answers {}{reason}", answer.status).into())
            }
            Ok(None) => return Err(failed(format!("it answers with more than {MOST} bytes").into())),
            Err(error) => failed(error.without_url().into()),
        };
        if failures == RETRIES {
            return Err(problem);
        }
        tokio::time::sleep(BACKOFF.0.saturating_mul(1 << failures).min(BACKOFF.1)).await;
        failures += 1;
    }
}

/// Sends `request` once; `None` for a response that is too large.
async fn once(request: reqwest::RequestBuilder) -> std::result::Result<Option<Answer>, reqwest::Error> {
    let mut response = request.send().await?;
    let (status, mut body) = (response.status(), Vec::new());
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MOST {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(Answer { status, body: body.into() }))
}

/// Gets tokens by `client_credentials`.
struct Tokens {
    http: reqwest::Client,
    auth: Auth,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the catalog's tokens")
    }
}

#[async_trait]
impl CredentialProvider for Tokens {
    type Credential = Credentials;

    async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
        self.ask().await.map(Arc::new).map_err(store_error)
    }
}

impl Tokens {
    async fn ask(&self) -> Result<Credentials> {
        let Auth::Client { id, secret, scope, at } = &self.auth else { return Ok(Credentials::default()) };
        let form = {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            form.append_pair("grant_type", "client_credentials");
            if !id.is_empty() {
                form.append_pair("client_id", id);
            }
            form.append_pair("client_secret", secret.reveal()).append_pair("scope", scope).finish()
        };
        let request = || {
            let request = self.http.request(Method::POST, at.clone());
            request.header("content-type", "application/x-www-form-urlencoded").body(form.clone())
        };
        let asked = SystemTime::now();
        let answer = patient(at.as_str(), &request).await?;
        let failed = |what: String| Error::Store {
            operation: "ask for a token".to_owned(),
            url: at.to_string(),
            source: what.into(),
        };
        if !answer.status.is_success() {
            return Err(failed(format!("it answers {}: see iceberg_credential in storage_options", answer.status)));
        }
        answers::parse::<Token>(&answer.body).map(|token| token.credentials(asked)).map_err(failed)
    }
}
