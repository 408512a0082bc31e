//! Tables of Unity Catalog by their names: a stub that answers as the public text of its interface says, over a store like S3. No server of it
//! can be had.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader};
use serde_json::{Value, json};

use super::answering::{Answer, Request, answer};
use super::http::Server;
use super::iceberg::in_store;
use super::support::{open, rows, text};
use crate::support;

const API: &str = "/api/2.1/unity-catalog/";
const TOKEN: &str = "dapi-sEcReT";

/// Behaviour of the catalog.
#[derive(Default)]
struct State {
    /// Answers by the path below the interface.
    answers: Mutex<std::collections::BTreeMap<String, Value>>,
    /// Keys that were lent.
    lent: AtomicU64,
    /// Milliseconds that keys are good.
    life: AtomicU64,
    /// Whether keys are refused.
    closed: AtomicU64,
    requests: Mutex<Vec<String>>,
}

fn reply(status: &'static str, body: &Value) -> Option<Answer> {
    Some((status, "content-type: application/json\r\n".to_owned(), body.to_string().into_bytes()))
}

fn serve(state: &State, request: &Request) -> Option<Answer> {
    state.requests.lock().unwrap().push(format!("{} {} {}", request.method, request.path, request.body));
    if request.path == "/oidc/v1/token" {
        let basic = request.header("authorization") == Some("Basic bWU6Y2xpZW50LXNFY1JlVA==");
        let form = "grant_type=client_credentials&scope=all-apis";
        assert!(basic && request.body == form, "{request:?}");
        return reply("200 OK", &json!({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}));
    }
    if request.header("authorization") != Some(format!("Bearer {TOKEN}").as_str()) {
        let seen = request.header("authorization").unwrap_or_default();
        return reply(
            "401 Unauthorized",
            &json!({"error_code": "UNAUTHENTICATED", "message": format!("not you: {seen}")}),
        );
    }
    let path = request.path.strip_prefix(API).unwrap_or_default();
    if path == "temporary-table-credentials" {
        if state.closed.load(Ordering::SeqCst) > 0 {
            let refusal = json!({"error_code": "PERMISSION_DENIED", "message": "User lacks EXTERNAL USE SCHEMA"});
            return reply("403 Forbidden", &refusal);
        }
        let asked: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!((&asked["operation"], request.header("content-type")), (&json!("READ"), Some("application/json")));
        let number = state.lent.fetch_add(1, Ordering::SeqCst) + 1;
        let life = state.life.load(Ordering::SeqCst);
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(life);
        let keys = json!({"access_key_id": format!("{}-{number}", asked["table_id"].as_str().unwrap()),
            "secret_access_key": "lent-sEcReT", "session_token": "session"});
        return reply(
            "200 OK",
            &json!({"aws_temp_credentials": keys, "expiration_time": end.as_millis() as u64, "url": "s3://bucket"}),
        );
    }
    match state.answers.lock().unwrap().get(path) {
        Some(found) => reply("200 OK", found),
        None => reply(
            "404 Not Found",
            &json!({"error_code": "TABLE_DOES_NOT_EXIST", "message": "Table 'x' does not exist."}),
        ),
    }
}

struct Catalog {
    url: String,
    state: Arc<State>,
    store: Server,
}

impl Catalog {
    fn start() -> Self {
        let state = Arc::new(State::default());
        state.life.store(3_600_000, Ordering::SeqCst);
        let shared = Arc::clone(&state);
        let address = answer(move |request| serve(&shared, request));
        Self { url: format!("http://{address}"), state, store: Server::start() }
    }

    fn says(&self, path: &str, answer: Value) {
        self.state.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Has a table `main.default.NAME` at `location`.
    fn table(&self, name: &str, format: &str, location: &str, more: Value) {
        let mut table = json!({"name": name, "catalog_name": "main", "schema_name": "default", "table_type": "EXTERNAL",
            "data_source_format": format, "storage_location": location, "table_id": "id", "columns": [], "properties": {}});
        table.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.says(&format!("tables/main.default.{name}"), table);
    }

    fn options(&self, more: &[(&str, &str)]) -> OpenOptions {
        let endpoint = self.store.url("");
        let mut all = vec![
            ("databricks_host", self.url.as_str()),
            ("aws_endpoint", endpoint.trim_end_matches('/')),
            ("aws_allow_http", "true"),
            ("aws_region", "eu-west-1"),
        ];
        all.extend(if more.is_empty() { &[("databricks_token", TOKEN)] } else { more });
        let storage_options = all.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        OpenOptions { storage_options, ..OpenOptions::default() }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }
}

/// A catalog with a table of Delta Lake in a store, and its rows.
fn lake() -> (Catalog, Vec<String>) {
    let catalog = Catalog::start();
    let fixture = support::fixture("delta/dv-with-columnmapping/delta");
    catalog.store.upload(&fixture, "bucket/lake");
    catalog.table("lake", "DELTA", "s3://bucket/lake", json!({}));
    let expected = rows(&open(&[text(&fixture)], OpenOptions::default()).unwrap()).unwrap();
    (catalog, expected)
}

const LAKE: &str = "uc://main.default.lake";

#[test]
fn a_name_leads_to_the_rows_with_temporary_keys_and_pins_the_version() {
    let (catalog, expected) = lake();
    let dataset = open(&[LAKE], catalog.options(&[])).unwrap();
    assert_eq!(rows(&dataset).unwrap(), expected);
    let asked = catalog.requests();
    assert_eq!(asked[0], format!("GET {API}tables/main.default.lake "));
    assert!(asked[1].starts_with(&format!("POST {API}temporary-table-credentials ")), "{asked:?}");
    assert_eq!(asked.len(), 2, "{asked:?}");
    let signers = catalog.store.signers();
    assert!(!signers.is_empty() && signers.iter().all(|signer| signer == "id-1 eu-west-1"), "{signers:?}");
    // The same table by its address has the same plan, so that states and indexes go on.
    let by_path = OpenOptions { storage_options: catalog.store.storage_options(), ..OpenOptions::default() };
    let by_path = open(&["s3://bucket/lake"], by_path).unwrap();
    assert_eq!(dataset.manifest().fingerprint(), by_path.manifest().fingerprint());
    assert_eq!(dataset.table_version(), by_path.table_version());
    let index = bowstring::dataset::Index::Bytes(dataset.index().unwrap().into());
    let indexed = OpenOptions { index, ..catalog.options(&[]) };
    assert_eq!(open(&[LAKE], indexed).unwrap().manifest().fingerprint(), dataset.manifest().fingerprint());
    let early = OpenOptions { version: Some(0), ..catalog.options(&[]) };
    assert_eq!(open(&[LAKE], early).unwrap().table_version(), Some(0));
    // Who has keys is not lent any.
    catalog.requests();
    catalog.store.signers();
    let own = [("databricks_token", TOKEN), ("access_key_id", "own"), ("secret_access_key", "own")];
    open(&[LAKE], catalog.options(&own)).unwrap();
    assert_eq!(catalog.requests().len(), 1);
    assert!(catalog.store.signers().iter().all(|signer| signer == "own eu-west-1"));
}

#[test]
fn keys_are_renewed_before_they_expire_and_once_where_they_are_refused() {
    let (catalog, _) = lake();
    catalog.state.life.store(1_500, Ordering::SeqCst);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let urls = [LAKE.to_owned()];
    let dataset = runtime.block_on(Dataset::open(&urls, catalog.options(&[]))).unwrap();
    let lent = catalog.state.lent.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(1_600));
    catalog.store.signers();
    rows(&dataset).unwrap();
    let signers = catalog.store.signers();
    assert!(signers.iter().all(|signer| *signer != "id-1 eu-west-1"), "{signers:?}");
    assert!(catalog.state.lent.load(Ordering::SeqCst) > lent);
    // Refused while they should be good.
    catalog.state.life.store(3_600_000, Ordering::SeqCst);
    let dataset = runtime.block_on(Dataset::open(&urls, catalog.options(&[]))).unwrap();
    let next = catalog.state.lent.load(Ordering::SeqCst) + 1;
    catalog.store.let_in(&format!("id-{next}"), "403 Forbidden", "InvalidAccessKeyId");
    rows(&dataset).unwrap();
    assert_eq!(catalog.state.lent.load(Ordering::SeqCst), next);
    // Whoever is refused with all of them gets that error.
    catalog.store.let_in("nobody", "403 Forbidden", "AccessDenied");
    let error = open(&[LAKE], catalog.options(&[])).unwrap_err();
    assert!(matches!(error, Error::Store { .. }) && !error.chain().contains("sEcReT"), "{}", error.chain());
}

#[test]
fn parquet_and_iceberg_are_read_too() {
    let (catalog, folder) = (Catalog::start(), tempfile::tempdir().unwrap());
    support::write(folder.path(), &[vec![20; 2]], 1);
    catalog.store.upload(folder.path(), "bucket/plain");
    catalog.table("plain", "PARQUET", "s3://bucket/plain", json!({}));
    let dataset = open(&["uc://main.default.plain"], catalog.options(&[])).unwrap();
    assert_eq!(rows(&dataset).unwrap().len(), 40);
    let index = bowstring::dataset::Index::Bytes(dataset.index().unwrap().into());
    let indexed = OpenOptions { index, ..catalog.options(&[]) };
    assert_eq!(open(&["uc://main.default.plain"], indexed).unwrap().manifest().rows(), 40);
    // Iceberg by the catalog's interface for it, with the same token.
    let metadata = in_store(&catalog.store, folder.path(), "positions");
    catalog.table("ice", "ICEBERG", "s3://elsewhere", json!({}));
    catalog.says("iceberg-rest/v1/config?warehouse=main", json!({"overrides": {"prefix": "catalogs/main"}}));
    let config = json!({"s3.access-key-id": "ice", "s3.secret-access-key": "sEcReT", "client.region": "a-1"});
    let loaded = json!({"metadata-location": metadata, "config": config});
    catalog.says("iceberg-rest/v1/catalogs/main/namespaces/default/tables/ice", loaded);
    let expected = support::fixture("iceberg/expected/positions/latest.parquet");
    let expected = rows(&open(&[text(&expected)], OpenOptions::default()).unwrap()).unwrap();
    assert_eq!(rows(&open(&["uc://main.default.ice"], catalog.options(&[])).unwrap()).unwrap(), expected);
    // A loader takes the name as any address.
    let options = LoaderOptions {
        storage_options: catalog.options(&[]).storage_options,
        shuffle: false,
        ..LoaderOptions::new("uc://main.default.plain", 8)
    };
    let mut loader = Loader::open(options).unwrap();
    let mut count = 0;
    while let Some(batch) = loader.next().unwrap() {
        count += support::ids(&batch).len();
    }
    assert_eq!(count, 40);
}

/// Writes a commit of a table, as file `name` of its log.
fn commit(table: &Path, name: &str, lines: &[Value]) {
    let at = table.join("_delta_log").join(name);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")).unwrap();
}

#[test]
fn a_catalog_managed_table_is_read_by_its_catalog_and_never_by_its_path_alone() {
    let (catalog, folder) = (Catalog::start(), tempfile::tempdir().unwrap());
    let table = folder.path().join("t");
    fs::create_dir(&table).unwrap();
    support::write(&table, &[vec![10], vec![10], vec![10]], 0);
    let schema =
        json!({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": false, "metadata": {}}]});
    let features = ["catalogManaged", "inCommitTimestamp"];
    let protocol = json!({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"], "writerFeatures": features}});
    let about = json!({"metaData": {"id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": schema.to_string(),
        "partitionColumns": [], "configuration": {"delta.enableInCommitTimestamps": "true"}}});
    let add = |number: usize| json!({"add": {"path": format!("part-{number:03}.parquet"), "partitionValues": {}, "size": 0, "modificationTime": 0, "dataChange": true}});
    let time = |at: u64| json!({"commitInfo": {"inCommitTimestamp": at}});
    let staged = "00000000000000000001.6a1f3c5e-0000-4000-8000-000000000001.json";
    commit(&table, "00000000000000000000.json", &[time(1_000), protocol, about, add(0)]);
    commit(&table, &format!("_staged_commits/{staged}"), &[time(2_000), add(1)]);
    // Of a writer whose commit the catalog refused, and one that it has not taken yet.
    commit(
        &table,
        "_staged_commits/00000000000000000001.6a1f3c5e-0000-4000-8000-000000000002.json",
        &[time(2_000), add(2)],
    );
    commit(
        &table,
        "_staged_commits/00000000000000000002.6a1f3c5e-0000-4000-8000-000000000003.json",
        &[time(3_000), add(2)],
    );
    catalog.store.upload(&table, "bucket/t");
    let managed = json!({"table_type": "MANAGED", "properties": {"delta.feature.catalogManaged": "supported"}});
    catalog.table("t", "DELTA", "s3://bucket/t", managed);

    let path = open(&[text(&table)], OpenOptions::default()).unwrap_err().to_string();
    assert!(path.contains("catalogManaged") && path.contains("uc://"), "{path}");
    // A catalog that cannot tell of commits.
    let name = "uc://main.default.t";
    let old = open(&[name], catalog.options(&[])).unwrap_err();
    assert!(
        matches!(&old, Error::Unsupported { what, .. } if what.contains("catalog-managed") && what.contains(name)),
        "{old}"
    );

    let at = "delta/v1/catalogs/main/schemas/default/tables/t";
    let told = |commits: Value, latest: u64| {
        let metadata = json!({"etag": "e", "location": "s3://bucket/t", "table-type": "MANAGED"});
        catalog.says(at, json!({"metadata": metadata, "commits": commits, "latest-table-version": latest}));
    };
    let first = json!({"version": 1, "timestamp": 2_000, "file-name": staged, "file-size": 1, "file-modification-timestamp": 2_000});
    told(json!([first]), 1);
    let dataset = open(&[name], catalog.options(&[])).unwrap();
    assert_eq!((dataset.manifest().rows(), dataset.table_version()), (20, Some(1)));
    let files: Vec<_> = dataset.manifest().files.iter().map(|file| file.path.to_string()).collect();
    assert_eq!(files, ["part-000.parquet", "part-001.parquet"]);
    let early = OpenOptions { timestamp: Some("1970-01-01 00:00:01.5".to_owned()), ..catalog.options(&[]) };
    assert_eq!(open(&[name], early).unwrap().table_version(), Some(0));
    // Published since then, and the next commit taken: the one who began goes on, and knows that there is a later version.
    let runtime = super::runtime();
    let urls = [name.to_owned()];
    assert!(runtime.block_on(dataset.is_current(&urls, &catalog.options(&[]))).unwrap());
    let second = "00000000000000000002.6a1f3c5e-0000-4000-8000-000000000003.json";
    told(
        json!([{"version": 2, "timestamp": 3_000, "file-name": second, "file-size": 1, "file-modification-timestamp": 3_000}]),
        2,
    );
    let gap = open(&[name], catalog.options(&[])).unwrap_err();
    assert!(gap.to_string().contains("commit 1 is missing"), "{gap}");
    catalog.store.put(
        "bucket/t/_delta_log/00000000000000000001.json",
        fs::read(table.join("_delta_log/_staged_commits").join(staged)).unwrap(),
        super::PINNED,
    );
    assert!(!runtime.block_on(dataset.is_current(&urls, &catalog.options(&[]))).unwrap());
    assert_eq!(open(&[name], catalog.options(&[])).unwrap().manifest().rows(), 30);
    let pinned = OpenOptions { version: Some(1), ..catalog.options(&[]) };
    assert_eq!(open(&[name], pinned).unwrap().manifest().fingerprint(), dataset.manifest().fingerprint());
    told(
        json!([{"version": 2, "timestamp": 3_000, "file-name": "../../../x.json", "file-size": 1, "file-modification-timestamp": 1}]),
        2,
    );
    assert!(open(&[name], catalog.options(&[])).unwrap_err().chain().contains("no name of one"));
}

#[test]
fn a_client_of_oauth_is_one_too() {
    let (catalog, expected) = lake();
    let client = [("databricks_client_id", "me"), ("databricks_client_secret", "client-sEcReT")];
    let dataset = open(&[LAKE], catalog.options(&client)).unwrap();
    assert_eq!(dataset.manifest().rows(), expected.len() as u64);
    assert_eq!(catalog.requests()[0].split(' ').nth(1), Some("/oidc/v1/token"));
}

#[test]
fn what_is_wrong_is_told_without_secrets() {
    let (catalog, _) = lake();
    let error = |name: &str, more: &[(&str, &str)]| {
        let error = open(&[name], catalog.options(more)).unwrap_err();
        assert!(!error.chain().contains("sEcReT"), "{}", error.chain());
        error
    };
    let missing = error("uc://main.default.nothing", &[]);
    assert!(
        matches!(&missing, Error::NotFound { what, .. } if what.contains("uc://main.default.nothing")),
        "{missing}"
    );
    assert!(missing.to_string().contains("TABLE_DOES_NOT_EXIST"), "{missing}");
    // The stub repeats the token, as some do.
    let token = error(LAKE, &[("databricks_token", "wrong-sEcReT")]).chain();
    assert!(token.contains("401") && token.contains("databricks_token") && token.contains("***"), "{token}");
    catalog.state.closed.store(1, Ordering::SeqCst);
    let closed = error(LAKE, &[]).chain();
    assert!(closed.contains("EXTERNAL USE SCHEMA") && closed.contains(LAKE), "{closed}");
    catalog.state.closed.store(0, Ordering::SeqCst);
    let folder = tempfile::tempdir().unwrap();
    let here = format!("file://{}", text(folder.path()));
    for (name, format, location, more, told) in [
        ("view", "DELTA", "s3://bucket/lake", json!({"table_type": "VIEW"}), "view"),
        ("csv", "CSV", "s3://bucket/lake", json!({}), "CSV"),
        ("empty", "DELTA", here.as_str(), json!({}), "plain files"),
        ("web", "DELTA", "https://h/x", json!({}), "no store"),
        ("r2", "DELTA", "r2://b@a.r2.cloudflarestorage.com/x", json!({}), "no store"),
        ("rows", "DELTA", "s3://bucket/lake", json!({"row_filter": {"function_name": "f"}}), "row filter"),
        ("other", "PARQUET", "s3://bucket/lake", json!({}), "Delta Lake"),
    ] {
        catalog.table(name, format, location, more);
        let name = format!("uc://main.default.{name}");
        let refused = error(&name, &[]);
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains(told) && refused.to_string().contains(&name), "{refused}");
    }
    catalog.table("nowhere", "DELTA", "", json!({}));
    assert!(error("uc://main.default.nowhere", &[]).chain().contains("storage_location"));
    assert!(matches!(error("uc://default.lake", &[]), Error::Config { option: "urls", .. }));
    let misspelt = error(LAKE, &[("databricks_tokn", "sEcReT")]).to_string();
    assert!(misspelt.contains("\"databricks_token\" is like it"), "{misspelt}");
    catalog.says("tables/main.default.broken", json!({"properties": ["sEcReT"]}));
    assert!(error("uc://main.default.broken", &[]).chain().contains("not what the interface says"));
}
