//! What a version leaves behind: states, tokens, certificates, the journal of gangs, written datasets, a server's file, frames of shared
//! memory. Today's readers load it; what a later version may leave is refused with both versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::flight::client::Gang;
use bowstring::flight::gang::{JoinOptions, Position, Token};
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::file::ServeFile;
use bowstring::flight::shm::wire::{Body, Frame, Refusal, VERSION};
use bowstring::plan::{Certificate, OrderVersion, State};
use bowstring::{Error, Loader, LoaderOptions};
use bytes::Bytes;
use serde_json::{Value, json};

use super::call::{Call, hex, unhex};
use super::life::{self, options};
use super::recorder::Line;
use super::{read, rows, runtime, served, versions};
use crate::flight::{Served, hasty};
use crate::support::ids;

/// The key of the certificate.
const KEY: &[u8] = b"0123456789abcdef";
/// A server's file with every kind of key.
const SERVE: &str = r#"[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"
key_file = "key"
tokens = "tokens"
tls = { cert = "server.pem", key = "server-key.pem", client_ca = "ca.pem" }
replicas = ["grpc+tls://a:8815", "grpc+tls://b:8815"]
memory_budget = "1GiB"
threads = 2
max_streams = 100
drain_grace = 5
journal = "journal"
gang_lease = 12.5
refresh = 30
share_bytes = "64MiB"
put = "memory"
shared_memory = false
audit_log = "audit"

[server.limits]
connections = 1000

[server.quotas.tenants.research]
bytes_per_second = 500_000_000

[datasets.rows]
url = "rows"
batch_size = 4
seed = 3
columns = ["id"]
filter = "id >= 4"
tail = "pad"
images = { image = { size = 64, crop = "random_resized" } }
limits = { max_batch_size = 1024, max_global_batch = 4096, allow_options = ["batch_size"] }
"#;

fn opened(order: OrderVersion) -> Loader {
    Loader::open(options(rows().to_str().unwrap().to_owned(), order)).unwrap()
}

fn rest(loader: &mut Loader) -> Vec<Vec<i64>> {
    std::iter::from_fn(|| loader.next().unwrap()).map(|batch| ids(&batch)).collect()
}

/// Writes everything into `directory`.
pub(super) fn record(directory: &Path) {
    let states: Vec<Value> = OrderVersion::ALL
        .map(|order| {
            let mut loader = opened(order);
            (0..2).for_each(|_| drop(loader.next().unwrap().unwrap()));
            let state: Value = serde_json::from_str(&loader.state().to_json()).unwrap();
            json!({"state": state, "rest": rest(&mut loader)})
        })
        .into_iter()
        .collect();
    put(directory, "states.json", &states.iter().map(Value::to_string).collect::<Vec<_>>());

    let mut loader = opened(OrderVersion::V3);
    rest(&mut loader);
    let mut certificate = loader.certificate();
    certificate.sign(KEY).unwrap();
    std::fs::write(directory.join("certificate.json"), certificate.to_json()).unwrap();

    let home = tempfile::tempdir().unwrap();
    let journal = home.path().join("journal");
    let server = served(home.path(), ServerOptions { journal: Some(journal.clone()), ..hasty() });
    let url = server.url("");
    let joining = JoinOptions { attempt: 7, timeout: Duration::from_secs(60), ..JoinOptions::new("golden", 0, 1) };
    let gang = Gang::join(url.trim_end_matches('/'), &BTreeMap::new(), joining).unwrap();
    let mut loader = Loader::open_in(&options(server.url(life::ROWS), OrderVersion::V3), &gang).unwrap();
    loader.next().unwrap().unwrap();
    gang.ack(0, 0).unwrap();
    gang.all_gather(b"golden", Duration::from_secs(60)).unwrap();
    // As a power cut leaves it: nobody has left.
    std::fs::copy(&journal, directory.join("journal")).unwrap();
    drop(loader);
    gang.leave(None).unwrap();
    drop(server);

    let written = home.path().join("written");
    let server = writing(&written);
    let others = runtime().block_on(async { life::written(&Line::to(server.address()).await).await });
    assert!(others.iter().all(|call| call.refused.is_none()), "{others:?}");
    drop(server);
    let mut tree = BTreeMap::new();
    taken(&written, &written, &mut tree);
    let lines: Vec<String> = tree.iter().map(|(path, it)| json!([path, it]).to_string()).collect();
    put(directory, "written.json", &lines);

    std::fs::write(directory.join("serve.toml"), SERVE).unwrap();
    let frames: Vec<String> = frames().iter().map(|frame| json!([VERSION, sent(frame)]).to_string()).collect();
    put(directory, "frames.json", &frames);
}

/// Writes a list with one entry a line.
fn put(directory: &Path, name: &str, lines: &[String]) {
    std::fs::write(directory.join(name), format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
}

fn writing(directory: &Path) -> Served {
    let options = ServerOptions { put: Some(directory.to_str().unwrap().into()), ..hasty() };
    Served::start(&[(life::ROWS, rows().to_str().unwrap())], &options)
}

/// The files below `directory`: links, and bytes as hex.
fn taken(root: &Path, directory: &Path, tree: &mut BTreeMap<String, Value>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        if path.is_symlink() {
            tree.insert(name, json!({"link": std::fs::read_link(&path).unwrap()}));
        } else if path.is_dir() {
            taken(root, &path, tree);
        } else if !name.ends_with("_lock") {
            tree.insert(name, json!({"bytes": hex(&std::fs::read(&path).unwrap())}));
        }
    }
}

fn frames() -> Vec<Frame> {
    let body = Body { slab: 7, slab_len: 4096, offset: 64, len: 4032, new: true, exclusive: false };
    let header = Bytes::from_static(b"header");
    vec![
        Frame::Hello { version: VERSION, window: 3, ticket: Bytes::from_static(b"ticket") },
        Frame::Batch { number: 1, body: Some(body), header: header.clone(), extra: vec![Bytes::from_static(b"x")] },
        Frame::Batch { number: 0, body: None, header, extra: Vec::new() },
        Frame::End,
        Frame::Failed(Refusal { code: 5, message: "file a changed".to_owned() }),
        Frame::Release(9),
        Frame::Heartbeat,
        Frame::Forget(7),
    ]
}

fn sent(frame: &Frame) -> String {
    hex(&frame.encode().unwrap().concat())
}

#[test]
fn states_of_former_versions_continue_where_they_were() {
    for version in versions() {
        for recorded in read::<Vec<Value>>(&version.join("states.json")) {
            let state = State::from_json(recorded["state"].to_string()).unwrap();
            // Without a version of its own: the state has one.
            let options =
                LoaderOptions { order_version: None, ..options(rows().to_str().unwrap().to_owned(), OrderVersion::V3) };
            let mut loader = Loader::open(options).unwrap();
            loader.load_state(&state).unwrap();
            assert_eq!(json!(rest(&mut loader)), recorded["rest"], "{}: {}", version.display(), recorded["state"]);
        }
    }
}

#[test]
fn certificates_of_former_versions_have_their_signature() {
    for version in versions() {
        let certificate = Certificate::from_json(std::fs::read(version.join("certificate.json")).unwrap()).unwrap();
        certificate.verify(KEY).unwrap();
        assert_eq!((certificate.rows, certificate.consumed.len()), (24, 1));
    }
}

#[test]
fn gangs_in_journals_of_former_versions_continue() {
    for version in versions() {
        let home = tempfile::tempdir().unwrap();
        let journal = home.path().join("journal");
        std::fs::copy(version.join("journal"), &journal).unwrap();
        let server = served(home.path(), ServerOptions { journal: Some(journal), ..hasty() });
        let caller = json!({"gang": "golden", "generation": 1, "rank": 0, "attempt": format!("{:032x}", 7)});
        let asked = [
            ("gang.heartbeat", json!({"caller": caller})),
            (
                "gang.all_gather",
                json!({"caller": caller, "round": 1, "message": "", "timeout_ms": 1000, "poll_ms": 1000}),
            ),
            ("gang.ack", json!({"caller": caller, "position": {"epoch": 0, "step": 1}})),
            ("gang.state", json!({"gang": "golden"})),
        ];
        let answers: Vec<Value> = runtime().block_on(async {
            let line = Line::to(server.address()).await;
            let mut answers = Vec::new();
            for (name, asked) in asked {
                let mut call = Call { name: name.to_owned(), asked: vec![asked], answered: vec![], refused: None };
                line.call(&mut call).await;
                assert_eq!(call.refused, None, "{}: {name}", version.display());
                answers.push(call.answered.remove(0));
            }
            answers
        });
        assert_eq!(answers[0]["acknowledged"], json!({"epoch": 0, "step": 0}));
        assert_eq!(answers[1]["messages"], json!([hex(b"golden")]));
        let token = Token::parse(&answers[2]["token"].to_string()).unwrap();
        assert_eq!((token.generation, token.position), (1, Position { epoch: 0, step: 1 }));
        assert_eq!((&answers[3]["phase"], &answers[3]["generation"]), (&json!("running"), &json!(1)));
        assert!(token.plan.is_some() && answers[3]["reads"]["plan"] == json!(token.plan), "{}", answers[3]);
    }
}

#[test]
fn datasets_that_clients_of_former_versions_wrote_are_served_and_grow() {
    for version in versions() {
        let home = tempfile::tempdir().unwrap();
        let written = home.path().join("written");
        for (path, it) in read::<Vec<(String, Value)>>(&version.join("written.json")) {
            let path = written.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match it.get("link") {
                Some(link) => std::os::unix::fs::symlink(link.as_str().unwrap(), path).unwrap(),
                None => std::fs::write(path, unhex(&it["bytes"])).unwrap(),
            }
        }
        let server = writing(&written);
        let calls = runtime().block_on(async { life::written(&Line::to(server.address()).await).await });
        // The same commit: it was made, and is not made again.
        assert!(calls.iter().all(|call| call.refused.is_none()), "{calls:?}");
        drop(server);
        let url = written.join("written").to_str().unwrap().to_owned();
        let rows = runtime()
            .block_on(async { Dataset::open(&[url], OpenOptions::default()).await.unwrap().manifest().rows() });
        assert_eq!(rows, 4, "{}", version.display());
    }
}

#[test]
fn files_of_former_servers_are_read() {
    for version in versions() {
        let path = version.join("serve.toml");
        let file = ServeFile::from_toml(&std::fs::read_to_string(&path).unwrap(), path.to_str().unwrap()).unwrap();
        assert_eq!(file.catalogue.names().collect::<Vec<_>>(), ["rows"]);
        assert_eq!((file.server.max_streams, file.server.memory_budget), (Some(100), Some(1 << 30)));
    }
}

/// A rank whose version of the frames is another one uses TCP, so only equal versions must agree.
#[test]
fn frames_of_shared_memory_with_the_same_version_are_the_same_bytes() {
    for version in versions() {
        let recorded: Vec<(u16, String)> = read(&version.join("frames.json"));
        let same = recorded.iter().filter(|(version, _)| *version == VERSION);
        let found: Vec<_> = same.map(|(_, bytes)| bytes.clone()).collect();
        let now: Vec<_> = frames().iter().map(sent).collect();
        assert!(found.is_empty() || found == now, "{}: give the frames another version", version.display());
    }
}

#[test]
fn what_a_later_version_leaves_is_refused_with_both_versions() {
    let own = super::own();
    let state = read::<Vec<Value>>(&own.join("states.json")).pop().unwrap()["state"].clone();
    let refused = |state: Value| match State::from_json(state.to_string()).unwrap_err() {
        Error::Mismatch { expected, found, .. } => (expected, found),
        error => panic!("{error}"),
    };
    let mut later = state.clone();
    (later["version"], later["more"]) = (json!(9), json!(1));
    assert_eq!(refused(later), ("1 to 2".to_owned(), "9".to_owned()));
    let mut later = state;
    later["spec"]["order_version"] = json!(9);
    assert_eq!(refused(later), (format!("1 to {}", OrderVersion::LATEST.number()), "9".to_owned()));

    let mut later: Value = read(&own.join("certificate.json"));
    (later["version"], later["more"]) = (json!(9), json!(1));
    let error = Certificate::from_json(later.to_string()).unwrap_err();
    assert!(matches!(&error, Error::Mismatch { expected, found, .. } if expected == "1" && found == "9"), "{error}");

    let home = tempfile::tempdir().unwrap();
    let journal = home.path().join("journal");
    let mut bytes = std::fs::read(own.join("journal")).unwrap();
    bytes[7] = b'9';
    std::fs::write(&journal, &bytes).unwrap();
    let options = ServerOptions { journal: Some(journal.clone()), ..hasty() };
    let mut catalogue = bowstring::flight::server::Catalogue::default();
    catalogue.add(life::ROWS, vec![rows().to_str().unwrap().to_owned()]).unwrap();
    let text = bowstring::flight::server::Config::new(catalogue, &options).unwrap_err().chain();
    assert!(
        text.contains("form 9") && text.contains("forms 1 to 2") && text.contains(env!("CARGO_PKG_VERSION")),
        "{text}"
    );
    assert_eq!(std::fs::read(&journal).unwrap(), bytes, "it is left as it is");
}
