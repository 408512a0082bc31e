//! What is recorded: the life of a rank, by the client of this version, and calls that other clients make.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::utils::batches_to_flight_data;
use bowstring::flight::client::Gang;
use bowstring::flight::gang::{JoinOptions, MemberInfo, Token};
use bowstring::plan::{OrderVersion, Tail};
use bowstring::{Error, Loader, LoaderOptions};
use serde_json::{Value, json};

use super::call::{Call, hex};
use super::recorder::Line;
use crate::support::ids;

/// The name of the dataset, which has the 24 rows of `fixtures/peers/rows`.
pub(super) const ROWS: &str = "rows";
const LONG: Duration = Duration::from_secs(60);

/// Options that decide everything, so that no later default does.
pub(super) fn options(url: String, order: OrderVersion) -> LoaderOptions {
    let mut options = LoaderOptions {
        timeout: 60.0,
        seed: 3,
        lanes: Some(2),
        window_rows: Some(6),
        tail: Some(Tail::Pad),
        order_version: Some(order),
        memory_budget: Some(64 << 20),
        ..LoaderOptions::new(url, 4)
    };
    options.columns.columns = vec!["id".to_owned(), "f0".to_owned()];
    options.columns.row_id = true;
    options
}

pub(super) fn join(url: &str, token: Option<Token>, attempt: u128) -> Result<Gang, Error> {
    let info = MemberInfo { address: "10.0.0.1:1".into(), device: "cpu".into(), host: "a".into() };
    let options = JoinOptions { info, token, timeout: LONG, attempt, ..JoinOptions::new("golden", 0, 1) };
    Gang::join(url, &BTreeMap::new(), options)
}

fn rest(loader: &mut Loader) -> Vec<Vec<i64>> {
    std::iter::from_fn(|| loader.next().unwrap()).map(|batch| ids(&batch)).collect()
}

/// Lives at the server of `url`, which ends with the name of the dataset; returns what the rank saw.
pub(super) fn of_a_rank(url: &str) -> Value {
    let mut remote = options(url.to_owned(), OrderVersion::V3);
    remote.storage_options.insert("transport".to_owned(), "tcp".to_owned());
    let mut loader = Loader::open(remote.clone()).unwrap();
    let begun: Vec<_> = (0..2).map(|_| ids(&loader.next().unwrap().unwrap())).collect();
    let state = loader.state();
    drop(loader);
    let mut loader = Loader::open(remote.clone()).unwrap();
    loader.load_state(&state).unwrap();
    let resumed = rest(&mut loader);
    drop(loader);

    let server = url.rsplit_once('/').unwrap().0;
    let gang = join(server, None, 7).unwrap();
    let mut loader = Loader::open_in(&remote, &gang).unwrap();
    let first = ids(&loader.next().unwrap().unwrap());
    drop(loader);
    let token = gang.ack(0, 0).unwrap();
    // A heartbeat is due after a quarter of the lease.
    std::thread::sleep(Duration::from_millis(2700));
    gang.barrier(LONG).unwrap();
    let gathered = gang.all_gather(b"golden", LONG).unwrap();
    let members = gang.members().unwrap();
    gang.leave(Some("it was to begin again")).unwrap();
    let again = join(server, Some(token.clone()), 8).unwrap();
    let resume = again.resume().unwrap();
    let mut loader = Loader::open_in(&remote, &again).unwrap();
    loader.load_state(&loader.state_at(0, 1)).unwrap();
    let continued = rest(&mut loader);
    drop(loader);
    again.leave(None).unwrap();
    json!({
        "begun": begun, "state": serde_json::from_str::<Value>(&state.to_json()).unwrap(), "resumed": resumed,
        "first": first, "token": token.to_string(), "gathered": gathered.iter().map(|it| hex(it)).collect::<Vec<_>>(),
        "members": members, "resume": resume, "continued": continued,
    })
}

/// A call with one message.
fn call(name: &str, asked: Value) -> Call {
    Call { name: name.to_owned(), asked: vec![asked], answered: Vec::new(), refused: None }
}

fn described(asked: Value) -> Call {
    call("GetFlightInfo", json!({ "command": asked }))
}

/// The messages of an attempt at a write, as `bowstring.flight` and Spark send them.
fn attempt(write: &str, task: u32) -> Call {
    let ids = Arc::new(Int64Array::from_iter_values(i64::from(task) * 2..i64::from(task) * 2 + 2)) as ArrayRef;
    let rows = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let part = json!({"command": {"dataset": "written", "write": write, "task": task, "attempt": 0}});
    let mut asked: Vec<Value> = batches_to_flight_data(&rows.schema(), [&rows])
        .unwrap()
        .iter()
        .map(|data| json!({"header": hex(&data.data_header), "body": hex(&data.data_body)}))
        .collect();
    asked[0]["descriptor"] = part;
    Call { name: "DoPut".to_owned(), asked, answered: Vec::new(), refused: None }
}

/// Calls by other clients: pyarrow's, Spark's, dashboards'. Each is made at `line`, and returned with its answer.
pub(super) async fn of_others(line: &Line) -> Vec<Call> {
    let mut calls = Vec::new();
    let columns = json!({
        "columns": ["*"], "exclude": ["f1"], "nulls": {"f0": "mask"}, "row_id": true, "cast": {"f0": "float64"},
        "pack": [{"name": "both", "columns": ["id"], "dtype": "float32"}],
    });
    let every = json!({
        "global_batch_size": 6, "shuffle": true, "seed": 9, "lanes": 2, "window_rows": 6, "order_version": 2,
        "tail": "pad", "mask": true, "columns": columns, "filter": "id >= 4", "selector": {"row_groups": [0, 1, 2]},
        "bad_rows": "error", "decode": true,
    });
    let minimal = json!({"dataset": ROWS, "options": {"batch_size": 5}});
    for asked in [
        call("ListActions", json!({})),
        call("ListFlights", json!({})),
        call("GetSchema", json!({"path": [ROWS]})),
        described(minimal.clone()),
        described(json!({"dataset": ROWS, "options": every, "epoch": 1, "step": 2, "rank": 1, "world_size": 2})),
        described(json!({"dataset": ROWS, "options": {"batch_size": 2}, "world_size": 3})),
        described(json!({"dataset": ROWS, "options": {"columns": {"columns": ["id"]}}, "rows": {"parts": 2}})),
    ] {
        let mut made = asked;
        line.call(&mut made).await;
        let tickets: Vec<Value> = match made.rpc() {
            "GetFlightInfo" => made.answered[0]["tickets"].as_array().unwrap().clone(),
            _ => Vec::new(),
        };
        calls.push(made);
        for ticket in tickets {
            let mut stream = call("DoGet", ticket);
            line.call(&mut stream).await;
            calls.push(stream);
        }
    }
    let caller = json!({"gang": "pair", "generation": 1, "rank": 0, "attempt": "00000000000000000000000000000009"});
    let joining = json!({
        "gang": "pair", "rank": 0, "world_size": 2, "attempt": caller["attempt"], "share": {"rank": 0, "of": 2},
        "info": {"address": "", "device": "", "host": ""}, "token": null, "timeout_ms": 60000, "poll_ms": 0,
    });
    let state = json!({"dataset": ROWS, "options": {"batch_size": 5, "order_version": 1, "tail": "pad"}, "step": 1});
    let write = |write: &str| json!({"dataset": "written", "write": write});
    let commit = |once: Value, tokens: Value| json!({"dataset": "written", "write": "w1", "mode": "create", "once": once, "tokens": tokens});
    for asked in [
        call("state", state),
        call("stats", json!({})),
        call("snapshot", json!({})),
        call("gang.join", joining),
        call("gang.state", json!({"gang": "pair"})),
        call("gang.heartbeat", json!({"caller": caller})),
        attempt("w1", 0),
        attempt("w1", 1),
        call("put.commit", commit(json!("first"), json!("of the attempts"))),
        call("GetSchema", json!({"command": {"dataset": "written", "options": {"batch_size": 1}}})),
        attempt("w2", 0),
        call("put.abort", write("w2")),
        call("put.abort", json!({"dataset": "written", "prefix": "w"})),
        call("put.drop", json!({"dataset": "written"})),
        described(json!({"dataset": "unknown", "options": {"batch_size": 5}})),
        described(json!({"dataset": ROWS, "options": {"batch_size": 5, "later": 1}})),
        described(json!({"dataset": ROWS, "options": {"batch_size": 5}, "later": 1})),
        described(json!({"dataset": ROWS, "options": {"batch_size": 5, "columns": {"columns": ["none"]}}})),
        call("put.abort", json!({"dataset": "a/b", "write": "w"})),
        call("gang.later", json!({})),
    ] {
        let mut made = asked;
        with_tokens(&mut made, &calls);
        line.call(&mut made).await;
        calls.push(made);
    }
    calls
}

/// A dataset of four rows, written at `line` by two tasks; the calls with their answers.
pub(super) async fn written(line: &Line) -> Vec<Call> {
    let commit = json!({"dataset": "written", "write": "w1", "mode": "replace", "tokens": "of the attempts"});
    let mut calls = Vec::new();
    for mut made in [attempt("w1", 0), attempt("w1", 1), call("put.commit", commit)] {
        with_tokens(&mut made, &calls);
        line.call(&mut made).await;
        calls.push(made);
    }
    calls
}

/// Puts the tokens of the attempts in `calls` into a commit: their numbers are of each server's own.
pub(super) fn with_tokens(commit: &mut Call, calls: &[Call]) {
    if commit.name != "put.commit" {
        return;
    }
    let write = &commit.asked[0]["write"];
    let staged = calls.iter().filter(|call| call.name == "DoPut");
    let own = staged.filter(|call| &call.asked[0]["descriptor"]["command"]["write"] == write);
    let tokens: Vec<Value> = own.map(|call| call.answered[0]["token"].clone()).collect();
    commit.asked[0]["tokens"] = tokens.into();
}
