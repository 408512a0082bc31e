//! Names of one tenant mean nothing to another: gangs and written datasets live in spaces, which the catalogue may share.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::utils::batches_to_flight_data;
use arrow_flight::{Action, FlightDescriptor};
use bowstring::Loader;
use bowstring::error::Error;
use bowstring::flight::client::Gang;
use bowstring::flight::gang::JoinOptions;
use bowstring::pipeline::LoaderOptions;
use serde_json::{Value, json};
use tonic::{Code, Request, Status};

use crate::serve_shell::{Server, connect, write};
use crate::support;

const TENANTS: [&str; 3] = ["anna", "bert", "carl"];

fn token(tenant: &str) -> String {
    format!("the-token-of-{tenant}-1234")
}

/// A caller; without a name, it has no token.
struct Caller<'a> {
    server: &'a Server,
    tenant: Option<&'a str>,
}

impl Caller<'_> {
    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(tenant) = self.tenant {
            let value = format!("Bearer {}", token(tenant)).parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    fn options(&self) -> BTreeMap<String, String> {
        self.tenant.map(|tenant| ("token".to_owned(), token(tenant))).into_iter().collect()
    }

    fn run<T>(&self, work: impl AsyncFnOnce(FlightServiceClient<tonic::transport::Channel>) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime
            .block_on(async { work(FlightServiceClient::new(connect(self.server.port(), None).await.unwrap())).await })
    }

    fn act(&self, action: &str, body: &Value) -> Result<Value, Status> {
        self.run(async |mut client| {
            let action = Action::new(action, body.to_string());
            let mut answer = client.do_action(self.signed(action)).await?.into_inner();
            Ok(serde_json::from_slice(&answer.message().await?.unwrap().body).unwrap())
        })
    }

    fn put(&self, dataset: &str, ids: &[i64]) -> Result<Value, Status> {
        let rows = RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(ids.to_vec())) as _)]).unwrap();
        let mut messages = batches_to_flight_data(&rows.schema(), [&rows]).unwrap();
        // A unique name: a committed write is never made again.
        let write = self.tenant.unwrap_or("w");
        let part = json!({"dataset": dataset, "write": write});
        messages[0].flight_descriptor = Some(FlightDescriptor::new_cmd(part.to_string()));
        let staged: Value = self.run(async |mut client| {
            let mut answer = client.do_put(self.signed(futures::stream::iter(messages))).await?.into_inner();
            Ok::<_, Status>(serde_json::from_slice(&answer.message().await?.unwrap().app_metadata).unwrap())
        })?;
        self.act(
            "put.commit",
            &json!({"dataset": dataset, "write": write, "mode": "create", "tokens": [staged["token"]]}),
        )
    }

    fn loader(&self, dataset: &str) -> LoaderOptions {
        let url = format!("{}/{dataset}", self.server.listen);
        LoaderOptions { storage_options: self.options(), shuffle: false, ..LoaderOptions::new(url, 2) }
    }

    /// Returns the ids of a dataset; none if it does not exist.
    fn read(&self, dataset: &str) -> Option<Vec<i64>> {
        match Loader::open(self.loader(dataset)) {
            Ok(mut loader) => Some(support::ids(&loader.next().unwrap().unwrap())),
            Err(Error::NotFound { .. }) => None,
            Err(error) => panic!("{}", error.chain()),
        }
    }

    fn join(&self, gang: &str) -> Gang {
        Gang::join(&self.server.listen, &self.options(), JoinOptions::new(gang, 0, 1)).unwrap()
    }
}

#[test]
fn tenants_share_only_granted_names() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let lines: String = TENANTS.iter().map(|tenant| format!("{tenant}:{}\n", token(tenant))).collect();
    let tokens = write(directory.path(), "tokens", &lines);
    let config = write(directory.path(), "serve.toml", "[server.spaces]\nanna = [\"carl\"]\n");
    let (put, journal) = (at("put"), at("journal"));
    let base = ["--put", &put, "--journal", &journal, "--config", &config];

    // The state before there were tenants.
    let before = Server::start(&base);
    let nobody = Caller { server: &before, tenant: None };
    nobody.put("old", &[1, 2]).unwrap();
    nobody.join("g").ack(0, 3).unwrap();
    before.signal("-TERM");
    assert_eq!(before.ended().0, Some(0));

    let server = Server::start(&[&base[..], &["--tokens", &tokens]].concat());
    let [anna, bert, carl] = TENANTS.map(|tenant| Caller { server: &server, tenant: Some(tenant) });
    anna.put("new", &[3, 4]).unwrap();
    assert_eq!((anna.read("new"), carl.read("new"), bert.read("new")), (Some(vec![3, 4]), Some(vec![3, 4]), None));
    assert_eq!(bert.read("anna@new"), None);
    bert.put("new", &[5, 6]).expect("no name is taken by another tenant");
    let exists = carl.put("new", &[7]).unwrap_err();
    assert_eq!(exists.code(), Code::InvalidArgument, "there is one in the space already");
    assert!(exists.message().contains("\"new\"") && !exists.message().contains('@'), "{}", exists.message());
    assert_eq!((anna.read("new"), bert.read("new")), (Some(vec![3, 4]), Some(vec![5, 6])));
    assert_eq!(bert.act("put.drop", &json!({"dataset": "new"})).unwrap()["dropped"], true);
    assert_eq!(bert.act("put.drop", &json!({"dataset": "new"})).unwrap()["dropped"], false);
    assert_eq!((anna.read("new"), bert.read("new")), (Some(vec![3, 4]), None));
    // Datasets from before are visible to all, and nobody may drop them.
    for caller in [&anna, &bert, &carl] {
        assert_eq!(caller.read("old"), Some(vec![1, 2]));
        assert_eq!(caller.act("put.drop", &json!({"dataset": "old"})).unwrap()["dropped"], false);
    }

    // Three gangs of one name: one without an owner from before, and two that run at once. A second rank 0 would end the first.
    let (first, second) = (anna.join("g"), bert.join("g"));
    let acked = first.ack(0, 7).unwrap();
    assert_eq!(acked.gang, "g", "a checkpoint has the name that its tenant gave");
    assert_eq!(second.resume().unwrap(), None, "another's position is not one's own");
    let state = |caller: &Caller<'_>, gang: &str| caller.act("gang.state", &json!({"gang": gang}));
    let seen = state(&carl, "g").unwrap();
    assert_eq!((seen["gang"].as_str(), seen["acknowledged"]["step"].as_u64()), (Some("g"), Some(7)));
    assert_eq!(state(&bert, "g").unwrap()["acknowledged"], Value::Null);
    assert_eq!(state(&bert, "anna/g").unwrap_err().code(), Code::NotFound);
    // A gang's streams are fenced in its own space.
    let mut loader = Loader::open_in(&anna.loader("new"), &first).unwrap();
    assert_eq!(support::ids(&loader.next().unwrap().unwrap()), [3, 4]);
    let mut caller = serde_json::to_value(first.caller()).unwrap();
    let failure = json!({"caller": caller.take(), "failure": "another's"});
    assert!(bert.act("gang.leave", &failure).is_err());
    first.check().unwrap();
    // The grant covers the gang: another process with the same rank ends this one.
    let token = acked.to_string();
    let mut join = JoinOptions::new("g", 0, 1);
    join.token = Some(bowstring::flight::gang::wire::Token::parse(&token).unwrap());
    let third = Gang::join(&server.listen, &carl.options(), join).unwrap();
    assert_eq!(third.resume().unwrap(), Some((0, 7)));
    // It learns that with its next heartbeat.
    support::until("the first is fenced", || first.check().is_err());
    let fenced = first.check().unwrap_err();
    assert!(matches!(&fenced, Error::Fenced { gang, .. } if gang == "g"), "{fenced}");
    let error = loader.next().unwrap_err();
    assert!(matches!(&error, Error::Fenced { gang, .. } if gang == "g"), "{error}");
    let behind = third.ack(0, 7).unwrap_err().to_string();
    assert!(behind.contains("rank 0 of gang g at "), "{behind}");
    second.check().unwrap();
}

/// Returns the `stats` visible to a caller.
fn sent(caller: &Caller<'_>) -> Value {
    caller.act("stats", &Value::Null).unwrap()
}

#[test]
fn a_tenant_has_its_own_limits_and_sees_its_own_counts() {
    let directory = tempfile::tempdir().unwrap();
    let lines: String = TENANTS.iter().map(|tenant| format!("{tenant}:{}\n", token(tenant))).collect();
    let tokens = write(directory.path(), "tokens", &lines);
    let text = "[server.limits]\ngangs_per_tenant = 2\n[server.spaces]\nanna = [\"carl\"]\n";
    let config = write(directory.path(), "serve.toml", text);
    let server = Server::start(&["--put", "memory", "--config", &config, "--tokens", &tokens]);
    let [anna, bert, carl] = TENANTS.map(|tenant| Caller { server: &server, tenant: Some(tenant) });

    let held = [anna.join("one"), anna.join("two")];
    for (caller, name) in [(&anna, "three"), (&carl, "four")] {
        let error = Gang::join(&server.listen, &caller.options(), JoinOptions::new(name, 0, 1)).unwrap_err();
        assert!(matches!(&error, Error::Limit { option: "gangs_per_tenant", .. }), "{error}");
    }
    let berts = [bert.join("one"), bert.join("two")];
    held[0].leave(None).unwrap();
    let again = carl.join("three");

    anna.put("train", &[1, 2, 3]).unwrap();
    assert_eq!(anna.read("train"), Some(vec![1, 2]));
    for (caller, gangs, streams) in [(&anna, 2, 1), (&carl, 2, 0), (&bert, 2, 0)] {
        let stats = sent(caller);
        assert_eq!((&stats["gangs"], &stats["sent"]["streams"]), (&json!(gangs), &json!(streams)), "{stats}");
        assert_eq!(stats["tenant"], json!(caller.tenant.unwrap()));
        for others in ["memory", "rows_decoded", "written_bytes"] {
            assert!(stats.get(others).is_none(), "{others} tells what others do: {stats}");
        }
    }
    let stats = sent(&anna);
    assert!(stats["sent"]["rows"].as_u64() >= Some(2) && stats["sent"]["bytes"].as_u64() > Some(0), "{stats}");
    assert_eq!(sent(&bert)["sent"]["bytes"], json!(0));
    drop((held, berts, again));
}

/// Returns the value of a metric without labels.
fn metric(server: &Server, name: &str) -> u64 {
    let text = server.get("/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn metrics_count_the_generations_and_members_of_gangs() {
    let server = Server::start(&["d=fixtures/imagenet40.parquet", "--put", "memory"]);
    let counts = || (metric(&server, "bowstring_gang_generations_total"), metric(&server, "bowstring_gang_members"));
    assert_eq!(counts(), (0, 0));
    let join = |rank| Gang::join(&server.listen, &BTreeMap::new(), JoinOptions::new("g", rank, 2)).unwrap();
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| join(0));
        (join(1), first.join().unwrap())
    });
    assert_eq!(counts(), (1, 2));
    first.leave(None).unwrap();
    assert_eq!(counts(), (1, 1));
    second.leave(None).unwrap();
    assert_eq!(counts(), (1, 0));
}

#[test]
fn a_written_dataset_that_is_dropped_leaves_no_label() {
    let server = Server::start(&["d=fixtures/imagenet40.parquet", "--put", "memory"]);
    let nobody = Caller { server: &server, tenant: None };
    nobody.put("written", &[1, 2]).unwrap();
    assert_eq!(nobody.read("written"), Some(vec![1, 2]));
    let labelled = || server.get("/metrics").contains("{dataset=\"written\"}");
    assert!(labelled());
    assert_eq!(nobody.act("put.drop", &json!({"dataset": "written"})).unwrap()["dropped"], true);
    assert!(!labelled());
}
