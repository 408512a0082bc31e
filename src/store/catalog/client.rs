//! Requests to a catalog: who asks, and which answers are an error.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::refusal;
use super::sign::Signer;
use crate::error::{Error, Result, Source};
use crate::store::credentials::{CredentialSource, Credentials, Given, store_error};
use crate::store::secret::Secret;
use crate::store::web::{self, Answer, Connection, Problem, Retries, patient};

/// Maximum bytes of a response, which has the whole metadata of a table.
const MOST: u64 = 256 << 20;

/// Retries of a request after a failure of network or server, for 6 to 12 s; longer if the server asks for that.
const RETRIES: Retries = Retries { most: 5, first: Duration::from_millis(400), longest: Duration::from_secs(10) };

/// How requests are authorized.
#[derive(Debug)]
pub(super) enum Auth {
    Nobody,
    Token(Secret),
    Client(OAuth),
    Signed(Box<Signer>),
}

/// A client of OAuth2, which gets tokens at `at`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OAuth {
    pub(super) id: String,
    pub(super) secret: Secret,
    pub(super) scope: String,
    pub(super) at: Url,
    /// `id` and `secret` go in a header, not in the form.
    pub(super) by_header: bool,
}

/// A request; one with a body is a POST.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) url: &'a Url,
    pub(super) headers: &'a [(&'static str, &'static str)],
    pub(super) body: Option<&'a str>,
}

/// See the module.
pub(super) struct Client {
    http: reqwest::Client,
    authorization: Authorization,
    /// Address of the catalog, for messages.
    name: String,
    /// Options that authorize, for messages.
    remedy: &'static str,
}

enum Authorization {
    Nobody,
    Token(Secret),
    /// Tokens of OAuth2, which expire.
    Given(CredentialSource),
    Signed(Box<Signer>),
}

/// What a request is authorized by.
enum By<'a> {
    Nobody,
    Token(Secret),
    Signed(super::sign::Signing<'a>),
}

/// The derived text would show the proxy's password.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("catalog", &self.name).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the catalog at `uri`; `remedy` names the options that authorize.
    ///
    /// # Errors
    /// [`Error::Config`] for a token that no header can have; [`Error::Store`].
    pub(super) fn new(uri: &Url, connection: &Connection, auth: Auth, remedy: &'static str) -> Result<Self> {
        let name = uri.to_string();
        let failed = |source| Error::Store { operation: "open".to_owned(), url: name.clone(), source };
        let http = connection.client().map_err(failed)?;
        let authorization = match auth {
            Auth::Nobody => Authorization::Nobody,
            Auth::Token(token) => {
                bearer(token.reveal())?;
                Authorization::Token(token)
            }
            Auth::Client(oauth) => {
                let tokens = Tokens { http: http.clone(), oauth, remedy };
                Authorization::Given(CredentialSource::new(Arc::new(tokens)))
            }
            Auth::Signed(signer) => Authorization::Signed(signer),
        };
        Ok(Self { http, authorization, name, remedy })
    }

    /// Gets `url`, as [`send`](Self::send).
    pub(super) async fn get(&self, url: &Url, headers: &[(&'static str, &'static str)]) -> Result<Answer> {
        self.send(Call { url, headers, body: None }).await
    }

    /// Sends `call`; once more with a new token, if the first is refused and tokens can be renewed.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<Answer> {
        let mut renewed = false;
        loop {
            let (by, given): (By<'_>, Option<(&CredentialSource, Arc<Given>)>) = match &self.authorization {
                Authorization::Nobody => (By::Nobody, None),
                Authorization::Token(token) => (By::Token(token.clone()), None),
                Authorization::Given(source) => {
                    let given = source.get().await?;
                    (By::Token(Secret::new(given.credentials.hub()?)), Some((source, given)))
                }
                Authorization::Signed(signer) => {
                    let mut signing = signer.keys().await?;
                    let given = signing.given.take();
                    (By::Signed(signing), given)
                }
            };
            let answer = ask(&self.name, by.secret(), &|| self.request(call, &by)).await?;
            match given {
                Some((source, given)) if !renewed && is_refusal(&answer) => source.refused(&given),
                _ => return Ok(answer),
            }
            renewed = true;
        }
    }

    fn request(&self, call: Call<'_>, by: &By<'_>) -> Result<reqwest::RequestBuilder, Source> {
        let method = if call.body.is_some() { Method::POST } else { Method::GET };
        let body = call.body.unwrap_or_default();
        let given = call.headers.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes())?;
            Ok((name, HeaderValue::from_static(value)))
        });
        let mut headers = given.collect::<Result<HeaderMap, Source>>()?;
        match by {
            By::Nobody => {}
            By::Token(token) => drop(headers.insert(AUTHORIZATION, bearer(token.reveal())?)),
            By::Signed(signing) => headers = signing.headers((&method, call.url), headers, body.as_bytes())?,
        }
        let request = self.http.request(method, call.url.clone()).headers(headers);
        Ok(if call.body.is_some() { request.body(body.to_owned()) } else { request })
    }

    /// The error for response `answer` to `operation`.
    pub(super) fn failed(&self, operation: &str, answer: &Answer) -> Error {
        let reason = refusal::reason(&answer.body).map(|reason| format!(" ({reason})")).unwrap_or_default();
        let what = match is_refusal(answer) {
            true => format!("it answers {}{reason}: see {}", answer.status, self.remedy),
            false => format!("it answers {}{reason}", answer.status),
        };
        self.broken(operation, what)
    }

    pub(super) fn broken(&self, operation: &str, what: String) -> Error {
        Error::Store { operation: operation.to_owned(), url: self.name.clone(), source: what.into() }
    }

    /// Parses the body of `answer`, which may be too much for a thread that does I/O.
    pub(super) async fn parsed<T: DeserializeOwned + Send + 'static>(&self, answer: Answer) -> Result<T> {
        let parsed = tokio::task::spawn_blocking(move || parse(&answer.body)).await;
        let parsed = parsed.unwrap_or_else(|error| Err(format!("an answer was not read: {error}")));
        parsed.map_err(|what| self.broken("read the answer of the catalog", what))
    }
}

impl By<'_> {
    /// The secret that requests have in them.
    fn secret(&self) -> &str {
        match self {
            Self::Nobody => "",
            Self::Token(token) => token.reveal(),
            Self::Signed(signing) => signing.session_token(),
        }
    }
}

/// Parses `body`. The error quotes nothing of it, since it may hold secrets.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body)
        .map_err(|error| format!("an answer is not what the interface says, at its column {}", error.column()))
}

/// Kinds of errors by which services of AWS refuse keys, with status 400.
const REFUSALS: &[&str] =
    &["AccessDeniedException", "ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException"];

/// Status by which catalogs of Iceberg say that a token expired.
const EXPIRED: u16 = 419;

fn is_refusal(answer: &Answer) -> bool {
    matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        || answer.status.as_u16() == EXPIRED
        || (answer.status == StatusCode::BAD_REQUEST
            && refusal::kind(&answer.body).is_some_and(|kind| REFUSALS.contains(&kind.as_str())))
}

/// Whether the same request may succeed later.
fn passes(answer: &Answer) -> bool {
    web::passes(answer)
        || (answer.status == StatusCode::BAD_REQUEST
            && refusal::kind(&answer.body).is_some_and(|kind| kind == "ThrottlingException"))
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let odd = || Error::config("storage_options", "the catalog's token has characters that no token has");
    web::bearer(token).ok_or_else(odd)
}

/// `answer` without `secret`, should it repeat that; a success is left as it is.
fn hidden(mut answer: Answer, secret: &str) -> Answer {
    if !answer.status.is_success() && !secret.is_empty() {
        let text = String::from_utf8_lossy(&answer.body);
        if text.contains(secret) {
            answer.body = text.replace(secret, "***").into();
        }
    }
    answer
}

/// Sends `request`, which has `secret` in it, with retries, until the response is one to act on. No failure repeats the secret.
async fn ask(
    name: &str,
    secret: &str,
    request: &(dyn Fn() -> Result<reqwest::RequestBuilder, Source> + Sync),
) -> Result<Answer> {
    let problem: Source = match patient(&RETRIES, MOST, &passes, request).await {
        Ok(answer) => return Ok(hidden(answer, secret)),
        Err(Problem::Answer(answer)) => {
            let answer = hidden(*answer, secret);
            let reason = refusal::reason(&answer.body).map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!("it answers {}{reason}", answer.status).into()
        }
        Err(problem) => problem.into(),
    };
    Err(Error::Store { operation: "ask the catalog".to_owned(), url: name.to_owned(), source: problem })
}

/// Gets tokens by `client_credentials`.
struct Tokens {
    http: reqwest::Client,
    oauth: OAuth,
    remedy: &'static str,
}

/// An access token of OAuth2.
#[derive(Deserialize)]
struct Token {
    access_token: String,
    #[serde(default)]
    expires_in: Option<u64>,
}

impl Token {
    /// The token as credentials that were issued at `now`.
    fn credentials(self, now: SystemTime) -> Credentials {
        let expires = self.expires_in.and_then(|seconds| now.checked_add(Duration::from_secs(seconds)));
        Credentials::new([("token".to_owned(), self.access_token)], expires)
    }
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
        let OAuth { id, secret, scope, at, by_header } = &self.oauth;
        let form = {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            form.append_pair("grant_type", "client_credentials");
            if !by_header {
                if !id.is_empty() {
                    form.append_pair("client_id", id);
                }
                form.append_pair("client_secret", secret.reveal());
            }
            form.append_pair("scope", scope).finish()
        };
        let request = || {
            let request = self.http.request(Method::POST, at.clone());
            let request = if *by_header { request.basic_auth(id, Some(secret.reveal())) } else { request };
            Ok(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.clone()))
        };
        let asked = SystemTime::now();
        let answer = ask(at.as_str(), secret.reveal(), &request).await?;
        let failed = |what: String| Error::Store {
            operation: "ask for a token".to_owned(),
            url: at.to_string(),
            source: what.into(),
        };
        if !answer.status.is_success() {
            return Err(failed(format!("it answers {}: see {}", answer.status, self.remedy)));
        }
        parse::<Token>(&answer.body).map(|token| token.credentials(asked)).map_err(failed)
    }
}
