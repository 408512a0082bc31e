//! Golden peers: what a version of bowstring said and wrote, recorded, in the place of a program of that version.
//!
//! `fixtures/peers/VERSION` has the calls of its clients with the answers of its server, and the files that it left. Today's server is to
//! answer those calls, today's client is to live on those answers, today's readers are to load those files. Only what a program of that
//! version would notice is compared: a key that is new in an answer is free, one that is gone is not.
//!
//! `make peers` records the version of this checkout. The recording of a released version is never made again.

mod call;
mod kept;
mod life;
mod recorder;
mod written;

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use arrow::ipc::convert::try_schema_from_ipc_buffer;
use bowstring::Loader;
use bowstring::flight::server::config::ServerOptions;
use bowstring::plan::OrderVersion;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::call::{Call, KEY, unhex};
use self::kept::{changes, changes_of_form, renamed};
use self::recorder::{FORMER, Line, Listening};
use crate::flight::{Served, hasty};
use crate::support;

/// A recorded conversation.
#[derive(Debug, Serialize, Deserialize)]
struct Conversation {
    /// The calls of a rank.
    rank: Vec<Call>,
    /// What the rank saw.
    seen: Value,
    /// The calls of others.
    others: Vec<Call>,
}

fn home() -> PathBuf {
    support::fixture("peers")
}

/// The directory of the dataset.
fn rows() -> PathBuf {
    home().join(life::ROWS)
}

/// The recorded versions.
fn versions() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home()).unwrap().map(|entry| entry.unwrap().path());
    let mut versions: Vec<_> = entries.filter(|path| path.join("conversation.json").exists()).collect();
    versions.sort();
    assert!(versions.contains(&own()), "nothing of this version is recorded: make peers");
    versions
}

fn own() -> PathBuf {
    home().join(env!("CARGO_PKG_VERSION"))
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A server with the key of all recorded tickets, which takes writes.
fn served(home: &Path, options: ServerOptions) -> Served {
    let key = home.join("key");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&key).unwrap();
    std::io::Write::write_all(&mut file, KEY).unwrap();
    let options = ServerOptions { key_file: Some(key), put: Some("memory".into()), ..options };
    Served::start(&[(life::ROWS, rows().to_str().unwrap())], &options)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Writes the recording of this version if that is asked for.
#[test]
fn this_version_is_recorded_on_request() {
    if support::variable("BOWSTRING_BLESS").is_none() {
        return;
    }
    let directory = own();
    std::fs::create_dir_all(&directory).unwrap();
    if !rows().exists() {
        std::fs::create_dir_all(rows()).unwrap();
        support::write(&rows(), &[vec![8, 8, 8]], 2);
    }
    let home = tempfile::tempdir().unwrap();
    let server = served(home.path(), hasty());
    let recorder = Listening::recording(server.address());
    let seen = life::of_a_rank(&recorder.url(life::ROWS));
    let rank = recorder.calls();
    let others = runtime().block_on(async { life::of_others(&Line::to(server.address()).await).await });
    drop(recorder);
    // A call a line: what changes is seen in a diff.
    let lines = |calls: &[Call]| calls.iter().map(|call| json!(call).to_string()).collect::<Vec<_>>().join(",\n");
    let text =
        format!("{{\n\"seen\": {seen},\n\"rank\": [\n{}\n],\n\"others\": [\n{}\n]\n}}\n", lines(&rank), lines(&others));
    std::fs::write(directory.join("conversation.json"), text).unwrap();
    written::record(&directory);
}

/// Makes the calls at `line` that were made of a former server, and returns what a former client would miss in the answers.
async fn missed(line: &Line, calls: &[Call]) -> Vec<String> {
    let (mut missed, mut made) = (Vec::new(), Vec::<Call>::new());
    for then in calls {
        let mut now = Call { answered: Vec::new(), refused: None, ..then.clone() };
        life::with_tokens(&mut now, &made);
        line.call(&mut now).await;
        let about = format!("{} {}", then.name, then.asked[0]);
        missed.extend(differences(then, &now).into_iter().map(|change| format!("{about:.300}: {change}")));
        made.push(now);
    }
    missed
}

/// What a former client would miss in the answer `now`, which was `then`.
fn differences(then: &Call, now: &Call) -> Vec<String> {
    if let Some((code, detail)) = &then.refused {
        let Some((found, what)) = &now.refused else { return vec!["it is not refused any more".to_owned()] };
        let mut found: Vec<_> =
            (code != found).then(|| format!("the code is {found}, {code} before")).into_iter().collect();
        found.extend(changes_of_form(detail, what));
        found.extend((detail["kind"] != what["kind"]).then(|| format!("another error: {what}")));
        return found;
    }
    if let Some(refused) = &now.refused {
        return vec![format!("it is refused: {refused:?}")];
    }
    if then.rpc() == "DoGet" {
        let positions = |call: &Call| call.answered.iter().map(|it| it["metadata"].clone()).collect::<Vec<_>>();
        let mut found = changes(&json!(positions(then)), &json!(positions(now)));
        found.extend((then.batches() != now.batches()).then(|| "other batches".to_owned()));
        return found;
    }
    let mut found = match then.name.as_str() {
        // What they tell is of the moment.
        "stats" | "snapshot" => changes_of_form(&json!(then.answered), &json!(now.answered)),
        // More of them may come.
        "ListActions" => {
            let gone = then.answered.iter().filter(|action| !now.answered.contains(action));
            gone.map(|action| format!("{action} is gone")).collect()
        }
        _ => changes(&json!(then.answered), &json!(now.answered)),
    };
    let schemas = |call: &Call| {
        let texts = call.answered.iter().filter_map(|answer| answer.get("schema")).filter(|schema| schema.is_string());
        texts.map(|text| try_schema_from_ipc_buffer(&unhex(text)).ok()).collect::<Vec<_>>()
    };
    found.extend((schemas(then) != schemas(now)).then(|| "another schema".to_owned()));
    found
}

#[test]
fn todays_server_answers_the_calls_of_former_clients() {
    for version in versions() {
        let Conversation { rank, others, .. } = read(&version.join("conversation.json"));
        let home = tempfile::tempdir().unwrap();
        let server = served(home.path(), hasty());
        let found = runtime().block_on(async {
            let line = Line::to(server.address()).await;
            [missed(&line, &rank).await, missed(&line, &others).await].concat()
        });
        assert!(found.is_empty(), "{}: clients of this version would miss\n{}", version.display(), found.join("\n"));
    }
}

#[test]
fn todays_client_lives_on_the_answers_of_former_servers() {
    for version in versions() {
        let Conversation { rank, seen, .. } = read(&version.join("conversation.json"));
        let player = Listening::playing(&rank);
        let now = life::of_a_rank(&player.url(life::ROWS));
        assert_eq!(player.complaints(), Vec::<String>::new(), "{}: its server would refuse", version.display());
        assert_eq!(now, seen, "{}", version.display());
    }
}

#[test]
fn a_refusal_by_a_server_of_another_version_names_both() {
    let player = Listening::playing(&[]);
    let url = player.url(life::ROWS);
    let opening = Loader::open(life::options(url.clone(), OrderVersion::LATEST)).unwrap_err();
    let joining = life::join(url.rsplit_once('/').unwrap().0, None, 7).unwrap_err();
    for error in [opening, joining] {
        let (text, own) = (error.chain(), env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&format!("(bowstring {FORMER}; this is {own})")), "{text}");
    }
}

#[test]
fn a_key_with_another_name_is_noticed_by_former_clients_and_servers() {
    let Conversation { rank, others, .. } = read(&own().join("conversation.json"));
    let mut keys = 0;
    for call in rank.iter().chain(&others).filter(|call| call.rpc() != "DoGet") {
        for (place, changed) in renamed(&json!(call.answered)) {
            let found = changes_of_form(&json!(call.answered), &changed);
            assert!(!found.is_empty(), "{}: {place} has another name, and nobody notices", call.name);
            keys += 1;
        }
    }
    assert!(keys > 100, "{keys} keys");
    // A client of today with a key that the former server does not know is refused by it, as it would be.
    for (name, key) in [("GetFlightInfo", "world_size"), ("gang.ack", "plan"), ("gang.join", "info")] {
        let mut calls = rank.clone();
        for call in calls.iter_mut().filter(|call| call.name == name) {
            for message in &mut call.asked {
                let asked = if name == "GetFlightInfo" { &mut message["command"] } else { message };
                asked.as_object_mut().unwrap().remove(key);
            }
        }
        let player = Listening::playing(&calls);
        let url = player.url(life::ROWS);
        let lived = std::panic::catch_unwind(|| life::of_a_rank(&url));
        assert!(lived.is_err() && player.complaints()[0].contains(key), "{name} {key}: {:?}", player.complaints());
    }
}
