//! Tables by AWS's catalogs: Glue's own interface, and signed requests to Iceberg's. The stub checks every signature.

use std::sync::{Arc, Mutex};

use bowstring::Error;
use bowstring::dataset::OpenOptions;
use bowstring::store::{CredentialSource, Credentials};
use serde_json::{Value, json};

use super::answering::{Answer, Request, answer};
use super::http::Server;
use super::iceberg::in_store;
use super::signed::signer;
use super::support::{open, rows, text};
use crate::support;

const SECRET: &str = "signing-sEcReT/+";

#[derive(Default)]
struct State {
    /// Tables by name, and partitions by page.
    tables: Mutex<std::collections::BTreeMap<String, Value>>,
    partitions: Mutex<Vec<Value>>,
    /// Who signed which request.
    requests: Mutex<Vec<String>>,
    /// A key that is over.
    over: Mutex<Option<String>>,
    /// Requests that are throttled yet.
    busy: Mutex<u32>,
    /// Where the table of the REST interface has its metadata.
    metadata: Mutex<String>,
}

fn reply(status: &'static str, body: &Value) -> Option<Answer> {
    Some((status, "content-type: application/x-amz-json-1.1\r\n".to_owned(), body.to_string().into_bytes()))
}

fn serve(state: &State, request: &Request) -> Option<Answer> {
    let refused = |kind: &str, message: &str| reply("400 Bad Request", &json!({"__type": kind, "Message": message}));
    let who = match signer(request, SECRET) {
        Ok(who) => who,
        Err(why) => return refused("InvalidSignatureException", &why),
    };
    let target = request.header("x-amz-target").unwrap_or_default();
    state.requests.lock().unwrap().push(format!("{who} {target}{} {}", request.path, request.body));
    if state.over.lock().unwrap().as_ref().is_some_and(|over| who.starts_with(over)) {
        return refused("ExpiredTokenException", "The security token included in the request is expired");
    }
    let mut busy = state.busy.lock().unwrap();
    if *busy > 0 {
        *busy -= 1;
        return refused("ThrottlingException", "Rate exceeded");
    }
    if request.method == "GET" {
        return match request.path.as_str() {
            "/iceberg/v1/config?warehouse=arn%3Aaws%3As3tables%3Aa-1%3A12%3Abucket%2Fb" => reply(
                "200 OK",
                &json!({"defaults": {}, "overrides": {"prefix": "arn%3Aaws%3As3tables%3Aa-1%3A12%3Abucket%2Fb"}}),
            ),
            "/iceberg/v1/arn%3Aaws%3As3tables%3Aa-1%3A12%3Abucket%2Fb/namespaces/db%1Fpart/tables/t" => {
                reply("200 OK", &json!({"metadata-location": *state.metadata.lock().unwrap(), "config": {}}))
            }
            _ => reply(
                "404 Not Found",
                &json!({"error": {"type": "NoSuchTableException", "message": request.path, "code": 404}}),
            ),
        };
    }
    assert_eq!(request.header("content-type"), Some("application/x-amz-json-1.1"));
    let body: Value = serde_json::from_str(&request.body).unwrap();
    match target {
        "AWSGlue.GetTable" => match state.tables.lock().unwrap().get(body["Name"].as_str().unwrap()) {
            Some(table) if body["DatabaseName"] == "db" => reply("200 OK", &json!({"Table": table})),
            _ => refused("EntityNotFoundException", "Entity Not Found"),
        },
        "AWSGlue.GetPartitions" => {
            let page: usize = body["NextToken"].as_str().map_or(0, |page| page.parse().unwrap());
            let pages = state.partitions.lock().unwrap();
            let next = (page + 1 < pages.len()).then(|| (page + 1).to_string());
            reply("200 OK", &json!({"Partitions": pages[page], "NextToken": next}))
        }
        _ => refused("UnknownOperationException", target),
    }
}

struct Glue {
    url: String,
    state: Arc<State>,
    store: Server,
}

impl Glue {
    fn start() -> Self {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let address = answer(move |request| serve(&shared, request));
        Self { url: format!("http://{address}"), state, store: Server::start() }
    }

    fn table(&self, name: &str, table: Value) {
        self.state.tables.lock().unwrap().insert(name.to_owned(), table);
    }

    fn options(&self, more: &[(&str, &str)]) -> OpenOptions {
        let endpoint = self.store.url("");
        let all = [
            &[
                ("glue_endpoint", self.url.as_str()),
                ("aws_endpoint", endpoint.trim_end_matches('/')),
                ("aws_allow_http", "true"),
                ("aws_access_key_id", "me"),
                ("aws_secret_access_key", SECRET),
            ][..],
            more,
        ]
        .concat();
        let storage_options = all.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        OpenOptions { storage_options, ..OpenOptions::default() }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }
}

const PARQUET: &str = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat";

fn storage(location: &str, input_format: &str) -> Value {
    json!({"Location": location, "InputFormat": input_format, "SerdeInfo": {"Parameters": {"serialization.format": "1"}}, "Columns": []})
}

#[test]
fn tables_of_glue_are_read_by_name_with_signed_requests() {
    let (glue, folder) = (Glue::start(), tempfile::tempdir().unwrap());
    let metadata = in_store(&glue.store, folder.path(), "positions");
    let parameters = json!({"table_type": "ICEBERG", "metadata_location": metadata});
    glue.table(
        "ice",
        json!({"TableType": "EXTERNAL_TABLE", "Parameters": parameters, "StorageDescriptor": storage("s3://x", "")}),
    );
    let expected = support::fixture("iceberg/expected/positions/latest.parquet");
    let expected = rows(&open(&[text(&expected)], OpenOptions::default()).unwrap()).unwrap();
    let dataset = open(&["glue://db.ice"], glue.options(&[("glue_region", "eu-north-1")])).unwrap();
    assert_eq!(rows(&dataset).unwrap(), expected);
    let asked = r#"me glue eu-north-1 AWSGlue.GetTable/ {"DatabaseName":"db","Name":"ice"}"#;
    assert_eq!(glue.requests(), [asked]);
    // The bucket is where its catalog is, unless somebody says otherwise.
    assert!(glue.store.signers().iter().all(|signer| signer == "me eu-north-1"));

    let lake = support::fixture("delta/dv-with-columnmapping/delta");
    glue.store.upload(&lake, "bucket/lake");
    let delta = json!({"Parameters": {"spark.sql.sources.provider": "delta"},
        "StorageDescriptor": {"Location": "s3://bucket/lake-__PLACEHOLDER__", "SerdeInfo": {"Parameters": {"path": "s3://bucket/lake"}}}});
    glue.table("lake", delta);
    let all = [("aws_region", "a-1"), ("glue.id", "123456789012"), ("aws_session_token", "session")];
    let dataset = open(&["glue://db.lake"], glue.options(&all)).unwrap();
    let here = open(&[text(&lake)], OpenOptions::default()).unwrap();
    assert_eq!(dataset.manifest().fingerprint(), here.manifest().fingerprint());
    let asked = r#"me glue a-1 AWSGlue.GetTable/ {"CatalogId":"123456789012","DatabaseName":"db","Name":"lake"}"#;
    assert_eq!(glue.requests(), [asked]);

    // A link to a table of another account.
    glue.table("link", json!({"TargetTable": {"CatalogId": "9", "DatabaseName": "db", "Name": "lake"}}));
    assert_eq!(
        open(&["glue://db.link"], glue.options(&[("region", "a-1")])).unwrap().manifest().rows(),
        here.manifest().rows()
    );
    assert!(glue.requests()[1].contains(r#""CatalogId":"9""#));
}

#[test]
fn a_table_has_the_partitions_that_glue_has_and_no_others() {
    let (glue, folder) = (Glue::start(), tempfile::tempdir().unwrap());
    for day in ["day=1", "day=2", "day=3"] {
        std::fs::create_dir(folder.path().join(day)).unwrap();
        support::write(&folder.path().join(day), &[vec![10]], 0);
    }
    glue.store.upload(folder.path(), "bucket/days");
    let table = json!({"PartitionKeys": [{"Name": "day", "Type": "string"}], "Parameters": {"classification": "parquet"},
        "StorageDescriptor": storage("s3://bucket/days/", PARQUET)});
    glue.table("days", table);
    let at = |place: &str| json!({"Values": ["x"], "StorageDescriptor": {"Location": place}});
    let is = |pages: Vec<Value>| *glue.state.partitions.lock().unwrap() = pages;
    is(vec![json!([at("s3://bucket/days/day=1")]), json!([at("s3://bucket/days/day=3/")])]);
    let options = || glue.options(&[("glue_region", "a-1")]);
    let dataset = open(&["glue://db.days"], options()).unwrap();
    let files: Vec<_> = dataset.manifest().files.iter().map(|file| file.path.to_string()).collect();
    assert_eq!(files, ["day=1/part-000.parquet", "day=3/part-000.parquet"]);
    assert_eq!((dataset.manifest().rows(), glue.requests().len()), (20, 3));
    is(vec![json!([at("s3://bucket/elsewhere/day=1")])]);
    let error = open(&["glue://db.days"], options()).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/elsewhere/day=1") && error.contains("glue://db.days"), "{error}");
    is(vec![json!([])]);
    assert!(matches!(open(&["glue://db.days"], options()).unwrap_err(), Error::NotFound { .. }));
}

#[test]
fn keys_of_a_provider_sign_and_are_renewed_where_they_are_over() {
    let glue = Glue::start();
    let lake = support::fixture("delta/dv-with-columnmapping/delta");
    glue.store.upload(&lake, "bucket/lake");
    glue.table(
        "lake",
        json!({"Parameters": {"table_type": "delta"}, "StorageDescriptor": storage("s3://bucket/lake", PARQUET)}),
    );
    let mut options = glue.options(&[("glue_region", "a-1")]);
    options.storage_options.retain(|key, _| !key.contains("key"));
    let count = std::sync::atomic::AtomicU64::new(0);
    let source = CredentialSource::of_function("my_keys", move || {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let pairs = [("access_key_id", format!("key{number}")), ("secret_access_key", SECRET.to_owned())];
        Ok(Credentials::new(pairs.map(|(key, value)| (key.to_owned(), value)), None))
    });
    options.credential_provider = Some(source);
    *glue.state.over.lock().unwrap() = Some("key0 ".to_owned());
    *glue.state.busy.lock().unwrap() = 2;
    open(&["glue://db.lake"], options.clone()).unwrap();
    let signers: Vec<_> = glue.requests().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(signers, ["key0", "key1", "key1", "key1"], "one is over, and the rest were throttled");
    assert!(glue.store.signers().iter().all(|signer| signer == "key1 a-1"));
    *glue.state.over.lock().unwrap() = Some("key".to_owned());
    let error = open(&["glue://db.lake"], options).unwrap_err().chain();
    assert!(error.contains("ExpiredTokenException") && error.contains("glue:GetTable"), "{error}");
}

#[test]
fn what_is_wrong_is_told_without_secrets() {
    let glue = Glue::start();
    let region = ("glue_region", "a-1");
    let error = |name: &str, more: &[(&str, &str)]| {
        let error = open(&[name], glue.options(more)).unwrap_err();
        assert!(!error.chain().contains("sEcReT"), "{}", error.chain());
        error
    };
    let missing = error("glue://db.nothing", &[region]);
    assert!(matches!(&missing, Error::NotFound { what, .. } if what.contains("glue://db.nothing")), "{missing}");
    assert!(missing.to_string().contains("Entity Not Found"), "{missing}");
    let wrong = error("glue://db.t", &[region, ("aws_secret_access_key", "other-sEcReT")]).chain();
    assert!(wrong.contains("InvalidSignatureException") && wrong.contains("glue_region"), "{wrong}");
    glue.table("view", json!({"TableType": "VIRTUAL_VIEW", "StorageDescriptor": storage("", "")}));
    assert!(error("glue://db.view", &[region]).to_string().contains("a view"));
    glue.table("text", json!({"StorageDescriptor": storage("s3://b/t", "org.apache.hadoop.mapred.TextInputFormat")}));
    assert!(error("glue://db.text", &[region]).to_string().contains("TextInputFormat"));
    glue.table("loop", json!({"TargetTable": {"DatabaseName": "db", "Name": "loop"}}));
    assert!(error("glue://db.loop", &[region]).to_string().contains("a link to a link"));
    assert!(matches!(error("glue://t", &[region]), Error::Config { option: "urls", .. }));
    let misspelt = error("glue://db.t", &[("glue_regin", "a-1")]).to_string();
    assert!(misspelt.contains("\"glue_region\" is like it"), "{misspelt}");
}

#[test]
fn requests_to_icebergs_interface_are_signed_where_that_is_asked_for() {
    let (glue, folder) = (Glue::start(), tempfile::tempdir().unwrap());
    *glue.state.metadata.lock().unwrap() = in_store(&glue.store, folder.path(), "positions");
    let uri = format!("{}/iceberg", glue.url);
    let all = [
        ("iceberg_uri", uri.as_str()),
        ("iceberg_warehouse", "arn:aws:s3tables:a-1:12:bucket/b"),
        ("iceberg_rest_sigv4_enabled", "true"),
        ("rest.signing-name", "s3tables"),
        ("rest.signing-region", "a-1"),
        ("aws_session_token", "session"),
        ("aws_region", "b-1"),
    ];
    let dataset = open(&["iceberg://db.part.t"], glue.options(&all)).unwrap();
    assert!(dataset.manifest().rows() > 0);
    let asked = glue.requests();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|line| line.starts_with("me s3tables a-1 /iceberg/v1/")), "{asked:?}");
    assert!(glue.store.signers().iter().all(|signer| signer == "me b-1"));
    let unsigned: Vec<_> = all.into_iter().filter(|(key, _)| !key.contains("sigv4")).collect();
    let error = open(&["iceberg://db.part.t"], glue.options(&unsigned)).unwrap_err().chain();
    assert!(error.contains("nobody signed it") && error.contains("iceberg_token"), "{error}");
}
