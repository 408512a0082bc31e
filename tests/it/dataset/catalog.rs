//! Tables of Iceberg by their names in a catalog: answers as Iceberg's own REST server gives them, over a store like S3.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowstring::Error;
use bowstring::dataset::{Dataset, OpenOptions};
use serde_json::{Value, json};

use super::answering::{Answer, Request, answer};
use super::http::Server;
use super::iceberg::in_store;
use super::support::{open, rows, runtime, text};
use crate::support;

/// Behaviour of the test's catalog.
#[derive(Default)]
struct State {
    /// Response for the table, without keys.
    table: Mutex<Value>,
    /// Number of the last key that was vended: `key-1` comes with the first response.
    lent: AtomicU64,
    /// Milliseconds that a key is valid; without limit if 0.
    life: AtomicU64,
    /// The token that requests must have, if any.
    token: Mutex<Option<String>>,
    /// Other tokens have expired, not just a 401.
    expires: AtomicBool,
    /// What the configuration says of namespaces, if anything.
    separator: Mutex<Option<String>>,
    tokens: AtomicU64,
    /// One line per request.
    requests: Mutex<Vec<String>>,
    /// Number of requests that still get a 503.
    busy: AtomicU64,
}

fn reply(status: &'static str, body: Value) -> Option<Answer> {
    Some((status, "content-type: application/json\r\n".to_owned(), body.to_string().into_bytes()))
}

fn refusal(status: &'static str, kind: &str, message: &str) -> Option<Answer> {
    let code: u64 = status.split(' ').next().unwrap().parse().unwrap();
    reply(status, json!({"error": {"message": message, "type": kind, "code": code}}))
}

fn serve(state: &State, request: &Request) -> Option<Answer> {
    let delegated = request.header("x-iceberg-access-delegation") == Some("vended-credentials");
    let line = format!("{} {}{}", request.method, request.path, if delegated { " delegated" } else { "" });
    state.requests.lock().unwrap().push(line);
    if state.busy.load(Ordering::SeqCst) > 0 {
        state.busy.fetch_sub(1, Ordering::SeqCst);
        return refusal("503 Service Unavailable", "ServiceUnavailableException", "later");
    }
    if request.path == "/catalog/v1/oauth/tokens" {
        let body = "grant_type=client_credentials&client_id=me&client_secret=se%2Fcret&scope=catalog";
        assert_eq!((request.method.as_str(), request.body.as_str()), ("POST", body));
        let number = state.tokens.fetch_add(1, Ordering::SeqCst) + 1;
        return reply(
            "200 OK",
            json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 3600}),
        );
    }
    let asked = state.token.lock().unwrap().clone();
    if asked.is_some_and(|token| request.header("authorization") != Some(format!("Bearer {token}").as_str())) {
        if state.expires.load(Ordering::SeqCst) {
            return refusal(
                "419 Authentication Timeout",
                "AuthenticationTimeoutException",
                "Credentials have timed out",
            );
        }
        return refusal("401 Unauthorized", "NotAuthorizedException", "Not authorized");
    }
    match request.path.as_str() {
        "/catalog/v1/config" if state.separator.lock().unwrap().is_some() => {
            let separator = state.separator.lock().unwrap().clone();
            reply("200 OK", json!({"defaults": null, "overrides": {"namespace-separator": separator}}))
        }
        "/catalog/v1/config" => {
            reply("200 OK", json!({"defaults": {}, "overrides": {}, "endpoints": ["GET v1/config"]}))
        }
        "/catalog/v1/config?warehouse=w%2F1" => {
            reply("200 OK", json!({"defaults": {"prefix": "no"}, "overrides": {"prefix": "ware/house"}}))
        }
        "/catalog/v1/namespaces/db%1Fpart/tables/t"
        | "/catalog/v1/namespaces/db.part/tables/t"
        | "/catalog/v1/ware/house/namespaces/db%1Fpart/tables/t" => {
            let mut table = state.table.lock().unwrap().clone();
            let number = state.lent.fetch_add(1, Ordering::SeqCst) + 1;
            let config = table["config"].as_object_mut().unwrap();
            config.insert("s3.access-key-id".to_owned(), format!("key-{number}").into());
            config.insert("s3.secret-access-key".to_owned(), "lent-secret".into());
            let life = state.life.load(Ordering::SeqCst);
            if life > 0 {
                let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(life);
                config.insert("s3.session-token".to_owned(), "session".into());
                config.insert("s3.session-token-expires-at-ms".to_owned(), end.as_millis().to_string().into());
            }
            reply("200 OK", table)
        }
        "/catalog/v1/namespaces/db/tables/away" => {
            reply("200 OK", json!({"metadata-location": "https://h/t/metadata/v1.metadata.json", "config": {}}))
        }
        "/catalog/v1/namespaces/db/tables/broken" => {
            Some(("200 OK", String::new(), br#"{"config": {"s3.secret-access-key": ["lent-secret"]}}"#.to_vec()))
        }
        _ => refusal("404 Not Found", "NoSuchTableException", "Table does not exist: db.no"),
    }
}

struct Catalog {
    address: SocketAddr,
    state: Arc<State>,
}

impl Catalog {
    /// Starts a catalog whose table has its metadata at `metadata`, in `store`.
    fn start(metadata: &str, store: &Server) -> Self {
        let state = Arc::new(State::default());
        let endpoint = store.url("");
        *state.table.lock().unwrap() = json!({"metadata-location": metadata, "metadata": {"format-version": 2}, "config": {
            "s3.path-style-access": "true", "s3.endpoint": endpoint.trim_end_matches('/'), "client.region": "us-east-1"}});
        let shared = Arc::clone(&state);
        Self { address: answer(move |request| serve(&shared, request)), state }
    }

    fn options(&self, more: &[(&str, &str)]) -> OpenOptions {
        let uri = format!("http://{}/catalog/", self.address);
        let all = [&[("iceberg_uri", uri.as_str())][..], more].concat();
        let storage_options = all.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        OpenOptions { storage_options, ..OpenOptions::default() }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }
}

const NAME: &str = "iceberg://db.part.t";

/// A table in a store, its catalog, and its rows.
fn table() -> (Server, Catalog, Vec<String>) {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let metadata = in_store(&server, folder.path(), "positions");
    let expected = support::fixture("iceberg/expected/positions/latest.parquet");
    let expected = rows(&open(&[text(&expected)], OpenOptions::default()).unwrap()).unwrap();
    let catalog = Catalog::start(&metadata, &server);
    (server, catalog, expected)
}

/// Number of rows, which takes no reading.
fn count(dataset: &Dataset) -> u64 {
    dataset.manifest().rows()
}

#[test]
fn a_name_leads_to_the_rows_and_keys_come_with_it() {
    let (server, catalog, expected) = table();
    let dataset = open(&[NAME], catalog.options(&[])).unwrap();
    assert_eq!(rows(&dataset).unwrap(), expected);
    assert_eq!(
        catalog.requests(),
        ["GET /catalog/v1/config", "GET /catalog/v1/namespaces/db%1Fpart/tables/t delegated"]
    );
    let signers = server.signers();
    assert!(!signers.is_empty() && signers.iter().all(|signer| signer == "key-1 us-east-1"), "{signers:?}");
    // A warehouse has its own prefix of paths; keys and region of the user win.
    let own =
        [("iceberg_warehouse", "w/1"), ("access_key_id", "own"), ("secret_access_key", "own"), ("Region", "eu-west-1")];
    open(&[NAME], catalog.options(&own)).unwrap();
    let asked = catalog.requests();
    assert_eq!(asked[0], "GET /catalog/v1/config?warehouse=w%2F1");
    assert!(asked[1].starts_with("GET /catalog/v1/ware/house/namespaces/"), "{asked:?}");
    let signers = server.signers();
    assert!(!signers.is_empty() && signers.iter().all(|signer| signer == "own eu-west-1"), "{signers:?}");
    // The same table is current.
    let current = runtime().block_on(dataset.is_current(&[NAME.to_owned()], &catalog.options(&[])));
    assert!(current.unwrap());
}

#[test]
fn levels_of_a_namespace_are_separated_as_the_catalog_says() {
    let (_server, catalog, expected) = table();
    for separator in [".", "%2E"] {
        *catalog.state.separator.lock().unwrap() = Some(separator.to_owned());
        assert_eq!(count(&open(&[NAME], catalog.options(&[])).unwrap()), expected.len() as u64);
        assert_eq!(catalog.requests()[1], "GET /catalog/v1/namespaces/db.part/tables/t delegated");
    }
}

#[test]
fn refused_keys_are_renewed_once() {
    let (server, catalog, expected) = table();
    // The catalog is asked again while another runtime reads, so this one has a thread of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dataset = runtime.block_on(Dataset::open(&[NAME.to_owned()], catalog.options(&[]))).unwrap();
    server.let_in("key-2", "403 Forbidden", "InvalidAccessKeyId");
    assert_eq!(rows(&dataset).unwrap(), expected);
    assert_eq!(catalog.requests().len(), 3, "one more for other keys");
    // A caller refused with every key gets that error.
    server.let_in("nobody-has-it", "403 Forbidden", "AccessDenied");
    let error = open(&[NAME], catalog.options(&[])).unwrap_err();
    assert!(matches!(error, Error::Store { .. }) && !error.chain().contains("lent-secret"), "{}", error.chain());
}

#[test]
fn a_token_is_sent_or_had_for_a_secret_and_had_again_where_it_is_refused() {
    let (_server, catalog, expected) = table();
    *catalog.state.token.lock().unwrap() = Some("given".to_owned());
    let opened = |more: &[(&str, &str)]| open(&[NAME], catalog.options(more));
    assert_eq!(count(&opened(&[("iceberg_token", "given")]).unwrap()), expected.len() as u64);
    for more in [&[][..], &[("iceberg_token", "hidden-token")]] {
        let error = opened(more).unwrap_err();
        let told = error.chain();
        assert!(told.contains("401") && told.contains("iceberg_token") && !told.contains("hidden-token"), "{told}");
    }
    *catalog.state.token.lock().unwrap() = Some("token-2".to_owned());
    catalog.requests();
    assert_eq!(count(&opened(&[("iceberg_credential", "me:se/cret")]).unwrap()), expected.len() as u64);
    let posts = catalog.requests().iter().filter(|request| request.starts_with("POST")).count();
    assert_eq!(posts, 2, "the first token was refused");
    catalog.state.expires.store(true, Ordering::SeqCst);
    *catalog.state.token.lock().unwrap() = Some("token-4".to_owned());
    assert!(opened(&[("iceberg_credential", "me:se/cret")]).is_ok(), "the first token had expired");
    let told = opened(&[("iceberg_token", "hidden-token")]).unwrap_err().chain();
    assert!(told.contains("419") && told.contains("iceberg_token"), "{told}");
    catalog.state.busy.store(2, Ordering::SeqCst);
    *catalog.state.token.lock().unwrap() = None;
    assert!(opened(&[]).is_ok(), "who is busy is asked again");
}

#[test]
fn what_is_wrong_is_told_without_secrets() {
    let (_server, catalog, _) = table();
    let error = |name: &str, more: &[(&str, &str)]| open(&[name], catalog.options(more)).unwrap_err();
    let missing = error("iceberg://db.no", &[]);
    assert!(
        matches!(missing, Error::NotFound { .. }) && missing.to_string().contains("Table does not exist"),
        "{missing}"
    );
    assert!(matches!(error("iceberg://alone", &[]), Error::Config { option: "urls", .. }));
    assert!(matches!(error("iceberg://db.away", &[]), Error::Unsupported { .. }));
    let broken = error("iceberg://db.broken", &[]).chain();
    assert!(!broken.contains("lent-secret"), "{broken}");
    for (more, named) in [
        (&[("iceberg_token", "a"), ("iceberg_credential", "b")][..], "give one"),
        (&[("iceberg_tokens", "hidden")][..], "iceberg_token"),
        (
            &[("iceberg_oauth2_server_uri", "ftp://h"), ("iceberg_credential", "hidden")][..],
            "iceberg_oauth2_server_uri",
        ),
        (&[("timeout", "soon")][..], "timeout"),
    ] {
        let error = error(NAME, more).to_string();
        assert!(error.contains(named) && !error.contains("hidden"), "{error}");
    }
    let nowhere = open(&[NAME], OpenOptions::default()).unwrap_err();
    assert!(nowhere.to_string().contains("iceberg_uri"), "{nowhere}");
}

/// A table of Iceberg's own server, which `scripts/servers/iceberg-rest.sh` starts: as `BOWSTRING_ICEBERG_REST` has it, its address, the name of
/// the table and how many rows it has, with blanks between.
#[test]
fn a_table_of_icebergs_own_server() {
    let Some(told) = support::variable("BOWSTRING_ICEBERG_REST") else {
        eprintln!("skipped: BOWSTRING_ICEBERG_REST names no catalog");
        return;
    };
    let parts: Vec<&str> = told.split(' ').collect();
    let storage_options = [("iceberg_uri".to_owned(), parts[0].to_owned())].into();
    let options = OpenOptions { storage_options, ..OpenOptions::default() };
    let dataset = open(&[parts[1]], options).unwrap();
    assert_eq!(rows(&dataset).unwrap().len().to_string(), parts[2]);
}

/// Names of files are as their metadata have them, so that nothing is looked for on this disk.
#[test]
fn a_table_on_a_disk_of_this_machine_is_one_of_a_catalog_here() {
    let folder = tempfile::tempdir().unwrap();
    let tables = super::iceberg::copied(folder.path());
    let place = tables.iter().find(|table| table.ends_with("positions")).unwrap();
    let hint = fs::read_to_string(place.join("metadata/version-hint.text")).unwrap();
    let metadata = place.join(format!("metadata/v{}.metadata.json", hint.trim()));
    let catalog = Catalog::start(&format!("file:{}", text(Path::new(&metadata))), &Server::start());
    assert!(count(&open(&[NAME], catalog.options(&[])).unwrap()) > 0);
}
