//! The page of a running server at `/ui`, and its data: once at `/ui/data`, and again every second at `/ui/events`.
//!
//! The page is one document without a reference to anything else. It has no data in itself, so it needs no token; its data do, as the
//! counters: it asks for the token and sends it as a header. A page of another origin can ask for nothing: no answer allows it, and a name
//! that somebody points at this host (DNS rebinding) is refused where no token protects the data.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::Stream;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::MissedTickBehavior;

use super::state::AdminState;

/// The document.
const PAGE: &str = include_str!("page.html");
/// Time between two events.
const EVERY: Duration = Duration::from_secs(1);
/// Most pages that get events at once: most connections stay for scrapers and probes.
const WATCHERS: usize = 24;

/// The only script and style that the page may have, by their digests; and nothing from elsewhere.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| HeaderValue::from_str(&policy(PAGE)).ok());

/// The state, and true if other hosts can reach the port.
type Told = (Arc<AdminState>, bool);

/// The routes of the page.
pub(super) fn routes() -> Router<Told> {
    let watchers = Arc::new(Semaphore::new(WATCHERS));
    let events = move |state, headers| events(state, headers, Arc::clone(&watchers));
    Router::new()
        .route("/", get(|| async { Redirect::to("/ui") }))
        .route("/ui", get(page))
        .route("/ui/data", get(data))
        .route("/ui/events", get(events))
}

/// The policy of `page`.
fn policy(page: &str) -> String {
    let digest = |tag: &str| {
        let content = page.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
        let content = content.map_or("", |(content, _)| content);
        format!("'sha256-{}'", STANDARD.encode(Sha256::digest(content)))
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        digest("script"),
        digest("style")
    )
}

/// Headers of every answer here.
fn safe(content_type: &'static str) -> [(HeaderName, HeaderValue); 4] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ]
}

async fn page() -> Response {
    let mut response = (safe("text/html; charset=utf-8"), PAGE).into_response();
    match &*POLICY {
        Some(policy) => {
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy.clone());
            response
        }
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether data may be shown with names; else the refusal.
fn admitted((state, wide): &Told, headers: &HeaderMap) -> Result<bool, Box<Response>> {
    let refused =
        |code: StatusCode, why: String| Box::new((code, safe("text/plain; charset=utf-8"), why).into_response());
    match state.admit(headers) {
        Ok(true) => Ok(true),
        Ok(false) if *wide => Ok(false),
        Ok(false) if is_here(headers) => Ok(true),
        Ok(false) => {
            let why = "this host name is not allowed here: use 127.0.0.1 or localhost, or configure admin tokens\n";
            Err(refused(StatusCode::FORBIDDEN, why.to_owned()))
        }
        Err(denied) => Err(refused(StatusCode::UNAUTHORIZED, format!("{denied}\n"))),
    }
}

/// Whether a request names this host itself.
pub(super) fn is_here(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: std::net::IpAddr| address.to_canonical().is_loopback())
}

/// The snapshot; taken where it may take a while.
async fn snapshot(state: &Arc<AdminState>, named: bool) -> Option<Arc<str>> {
    let state = Arc::clone(state);
    tokio::task::spawn_blocking(move || state.snapshot(named)).await.ok()
}

async fn data(State(told): State<Told>, headers: HeaderMap) -> Response {
    let named = match admitted(&told, &headers) {
        Ok(named) => named,
        Err(refused) => return *refused,
    };
    match snapshot(&told.0, named).await {
        Some(json) => (safe("application/json"), json.to_string()).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn events(State(told): State<Told>, headers: HeaderMap, watchers: Arc<Semaphore>) -> Response {
    let named = match admitted(&told, &headers) {
        Ok(named) => named,
        Err(refused) => return *refused,
    };
    let Ok(place) = watchers.try_acquire_owned() else {
        let wait = [(header::RETRY_AFTER, HeaderValue::from_static("10"))];
        let why = "too many pages are open\n";
        return (StatusCode::SERVICE_UNAVAILABLE, wait, safe("text/plain; charset=utf-8"), why).into_response();
    };
    let headers = [
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Sse::new(ticks(told.0, named, place))).into_response()
}

/// A snapshot at once and then every second, for as long as somebody reads.
fn ticks(
    state: Arc<AdminState>,
    named: bool,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    let mut clock = tokio::time::interval(EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    futures::stream::unfold((state, clock, place), move |(state, mut clock, place)| async move {
        clock.tick().await;
        let json = snapshot(&state, named).await?;
        Some((Ok(Event::default().data(&*json)), (state, clock, place)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_allows_the_pages_own_script_and_nothing_else() {
        let policy = policy("<style>a</style><script>b</script>");
        let digest = STANDARD.encode(Sha256::digest("b"));
        assert!(policy.contains(&format!("script-src 'sha256-{digest}'")) && policy.starts_with("default-src 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        for needle in ["<script>", "</script>", "<style>", "</style>"] {
            assert_eq!(PAGE.matches(needle).count(), 1, "{needle}: the digests are of the only ones");
        }
        for outside in [
            "http://",
            "https://",
            "src=",
            "href=\"/",
            "@import",
            "url(",
            " style=\"",
            " onclick",
            "innerHTML",
            "eval(",
        ] {
            assert!(!PAGE.contains(outside), "the page has {outside}");
        }
        assert!(POLICY.is_some() && PAGE.len() < 64 << 10);
    }

    #[test]
    fn names_of_other_hosts_are_told_from_those_of_this_one() {
        for (host, here) in [
            ("localhost", true),
            ("LOCALHOST:9632", true),
            ("127.0.0.1:9632", true),
            ("[::1]:9632", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("evil.example", false),
            ("localhost.evil.example:9632", false),
            ("10.0.0.1", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            assert_eq!(is_here(&headers), here, "{host}");
        }
        assert!(!is_here(&HeaderMap::new()));
    }
}
