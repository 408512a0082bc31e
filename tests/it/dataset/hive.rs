//! Tables of a Hive metastore by their names: what Hive 4.0.1 answered, played back, and the metastore itself where there is one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bowstring::Error;
use bowstring::dataset::OpenOptions;

use super::support::{open, rows, text};
use crate::support::{self, Random};

/// Where the tables lay when the answers were recorded.
const ROOT: &str = "file:/tmp/bowstring-hive";

/// `answer` with all locations moved to `root`. They are the beginnings of strings, before which their length stands.
fn moved(answer: &[u8], root: &str) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    let mut rest = answer;
    while let Some((first, after)) = rest.split_first() {
        if rest.starts_with(ROOT.as_bytes()) {
            let at = out.len() - 4;
            let length = u32::from_be_bytes(out[at..].try_into().unwrap())
                .wrapping_add(root.len() as u32)
                .wrapping_sub(ROOT.len() as u32);
            out[at..].copy_from_slice(&length.to_be_bytes());
            out.extend(root.as_bytes());
            rest = &rest[ROOT.len()..];
        } else {
            out.push(*first);
            rest = after;
        }
    }
    out
}

/// The number at byte `at` of `call`.
fn number(call: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_be_bytes(call.get(at..at + 4)?.try_into().unwrap()) as usize)
}

/// The string at byte `at` of `call`, and its end.
fn string(call: &[u8], at: usize) -> Option<(String, usize)> {
    let end = at + 4 + number(call, at)?;
    Some((String::from_utf8(call.get(at + 4..end)?.to_vec()).unwrap(), end))
}

/// The method and the table of a call.
fn asked(call: &[u8]) -> (String, String) {
    let (method, end) = string(call, 4).unwrap();
    // The number of the call, then fields: of a struct for a request.
    let first = end + 4 + if method == "get_table_req" { 3 } else { 0 } + 3;
    let (_, end) = string(call, first).unwrap();
    (method, string(call, end + 3).unwrap().0)
}

/// Answers by method and table.
type Answers = BTreeMap<(String, String), Vec<u8>>;

/// A metastore that plays answers back.
struct Metastore {
    port: u16,
    answers: Arc<Mutex<Answers>>,
}

impl Metastore {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers: Arc<Mutex<Answers>> = Arc::default();
        let shared = Arc::clone(&answers);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut call = vec![0; 4096];
                let length = stream.read(&mut call).unwrap_or(0);
                call.truncate(length);
                let answer = shared.lock().unwrap().get(&asked(&call)).cloned().unwrap_or_default();
                // The connection stays open, as a metastore's does; an empty answer closes it.
                if !answer.is_empty() && stream.write_all(&answer).is_ok() {
                    let _closed = stream.read(&mut [0]);
                }
            }
        });
        Self { port, answers }
    }

    /// Answers `method` for `table` with the fixture `name`, moved to `root`.
    fn says(&self, method: &str, table: &str, name: &str, root: &str) {
        let answer = fs::read(support::fixture("hive").join(name)).unwrap();
        self.puts(method, table, moved(&answer, root));
    }

    fn puts(&self, method: &str, table: &str, answer: Vec<u8>) {
        self.answers.lock().unwrap().insert((method.to_owned(), table.to_owned()), answer);
    }

    fn name(&self, table: &str) -> String {
        format!("hms://127.0.0.1:{}/db.{table}", self.port)
    }
}

fn options() -> OpenOptions {
    let storage_options = [("timeout".to_owned(), "2s".to_owned())].into();
    OpenOptions { storage_options, ..OpenOptions::default() }
}

/// The tables that were recorded, below `folder`.
fn tables(folder: &Path) {
    for name in ["plain", "days/day=2026-01-01", "days/day=2026-01-02", "days/day=2026-01-03"] {
        fs::create_dir_all(folder.join(name)).unwrap();
        support::write(&folder.join(name), &[vec![10]], 1);
    }
    copy(&support::fixture("delta/dv-with-columnmapping/delta"), &folder.join("lake"));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let at = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &at);
        } else {
            fs::copy(entry.path(), at).unwrap();
        }
    }
}

#[test]
fn what_hive_answered_leads_to_the_rows() {
    let (hive, folder) = (Metastore::start(), tempfile::tempdir().unwrap());
    tables(folder.path());
    let root = format!("file:{}", text(folder.path()));
    for name in ["plain", "days", "lake"] {
        hive.says("get_table_req", name, name, &root);
    }
    hive.says("get_partition_names", "days", "days-names", &root);
    hive.says("get_partitions_by_names", "days", "days-partitions", &root);
    assert_eq!(rows(&open(&[&hive.name("plain")], options()).unwrap()).unwrap().len(), 10);
    // A day whose partition was dropped is on the disk yet.
    let days = open(&[&hive.name("days")], options()).unwrap();
    let files: Vec<_> = days.manifest().files.iter().map(|file| file.path.to_string()).collect();
    assert_eq!(files, ["day=2026-01-01/part-000.parquet", "day=2026-01-02/part-000.parquet"]);
    assert!(rows(&days).unwrap()[0].contains("day=2026-01-01"));
    let lake = open(&[&hive.name("lake").replace("hms://", "thrift://")], options()).unwrap();
    let here = open(&[text(&folder.path().join("lake"))], OpenOptions::default()).unwrap();
    assert_eq!(lake.manifest().fingerprint(), here.manifest().fingerprint());

    let tables = super::iceberg::copied(folder.path());
    let place = tables.iter().find(|table| table.ends_with("positions")).unwrap();
    fs::write(place.join("metadata/v1.metadata.json"), fs::read(latest(place)).unwrap()).unwrap();
    let answer = fs::read(support::fixture("hive/ice")).unwrap();
    let ice = moved(&answer, &format!("file:{}", text(place)));
    // The table was recorded in a directory of its own.
    hive.puts("get_table_req", "ice", without(&ice, "/ice"));
    let expected = support::fixture("iceberg/expected/positions/latest.parquet");
    let expected = rows(&open(&[text(&expected)], OpenOptions::default()).unwrap()).unwrap();
    assert_eq!(rows(&open(&[&hive.name("ice")], options()).unwrap()).unwrap(), expected);
}

/// A text of Thrift, its length before it.
fn spelled(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// The strings of the list that is the third field of `call`, once all are there.
fn listed(call: &[u8]) -> Option<Vec<String>> {
    let (_, at) = string(call, 4)?;
    let (_, at) = string(call, at + 4 + 3)?;
    let (_, at) = string(call, at + 3)?;
    // The head of the field, and the kind of its items.
    let (count, mut at) = (number(call, at + 4)?, at + 8);
    let next = |_| {
        let (text, end) = string(call, at)?;
        at = end;
        Some(text)
    };
    (0..count).map(next).collect()
}

/// A metastore whose table `days` below `root` has the partitions `names`; its port, and how many partitions each call asks for.
fn metastore_of(root: String, names: Vec<String>) -> (u16, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let calls: Arc<Mutex<Vec<usize>>> = Arc::default();
    let shared = Arc::clone(&calls);
    let list = |method: &str, kind: u8, items: Vec<Vec<u8>>| {
        let head = [&[0x80, 1, 0, 2][..], &spelled(method), &[0, 0, 0, 1, 15, 0, 0, kind]].concat();
        [head, (items.len() as u32).to_be_bytes().to_vec(), items.concat(), vec![0]].concat()
    };
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut call, mut buffer) = (Vec::new(), [0; 4096]);
            let length = stream.read(&mut buffer).unwrap();
            call.extend(&buffer[..length]);
            let answer = match asked(&call).0.as_str() {
                "get_table_req" => moved(&fs::read(support::fixture("hive/days")).unwrap(), &root),
                "get_partition_names" => {
                    list("get_partition_names", 11, names.iter().map(|name| spelled(name)).collect())
                }
                method => {
                    let wanted = loop {
                        match listed(&call) {
                            Some(wanted) => break wanted,
                            None => {
                                let length = stream.read(&mut buffer).unwrap();
                                call.extend(&buffer[..length]);
                            }
                        }
                    };
                    shared.lock().unwrap().push(wanted.len());
                    // Field 6 of a partition is its storage, of which field 2 is the place and field 3 the format.
                    let format = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat";
                    let partition = |name: &String| {
                        let place = spelled(&format!("{root}/days/{name}"));
                        [&[12, 0, 6, 11, 0, 2][..], &place, &[11, 0, 3], &spelled(format), &[0, 0]].concat()
                    };
                    list(method, 12, wanted.iter().map(partition).collect())
                }
            };
            stream.write_all(&answer).unwrap();
        }
    });
    (port, calls)
}

#[test]
fn partitions_come_in_several_answers() {
    let folder = tempfile::tempdir().unwrap();
    tables(folder.path());
    let root = format!("file:{}", text(folder.path()));
    let day = |number: u64| format!("day=2026-01-{number:02}");
    let names: Vec<String> = (1..=2_500).map(day).filter(|name| name != "day=2026-01-02").collect();
    let (port, calls) = metastore_of(root, names);
    let days = open(&[&format!("hms://127.0.0.1:{port}/db.days")], options()).unwrap();
    let files: Vec<_> = days.manifest().files.iter().map(|file| file.path.to_string()).collect();
    assert_eq!(files, ["day=2026-01-01/part-000.parquet", "day=2026-01-03/part-000.parquet"]);
    assert_eq!(*calls.lock().unwrap(), [1_000, 1_000, 499]);
}

/// The current metadata of a table of the fixtures.
fn latest(place: &Path) -> std::path::PathBuf {
    let hint = fs::read_to_string(place.join("metadata/version-hint.text")).unwrap();
    place.join(format!("metadata/v{}.metadata.json", hint.trim()))
}

/// `answer` without `part` in the strings that have it before `/metadata`.
fn without(answer: &[u8], part: &str) -> Vec<u8> {
    let long = format!("{part}/metadata");
    let at = answer.windows(long.len()).position(|window| window == long.as_bytes()).unwrap();
    let start = answer[..at].windows(5).rposition(|window| window == b"file:").unwrap();
    let mut out = answer.to_vec();
    let length = u32::from_be_bytes(out[start - 4..start].try_into().unwrap()) - part.len() as u32;
    out[start - 4..start].copy_from_slice(&length.to_be_bytes());
    out.drain(at..at + part.len());
    out
}

#[test]
fn what_is_wrong_is_told() {
    let hive = Metastore::start();
    hive.says("get_table_req", "missing", "missing", ROOT);
    let missing = open(&[&hive.name("missing")], options()).unwrap_err();
    assert!(matches!(&missing, Error::NotFound { what, .. } if what.contains(&hive.name("missing"))), "{missing}");
    assert!(missing.to_string().contains("hive.db.missing table not found"), "{missing}");
    // A server that lacks both calls.
    hive.says("get_table_req", "old", "unknown-method", ROOT);
    hive.says("get_table", "old", "unknown-method", ROOT);
    assert!(open(&[&hive.name("old")], options()).unwrap_err().chain().contains("Invalid method name"));
    let closed = open(&[&hive.name("unheard")], options()).unwrap_err().chain();
    assert!(closed.contains("Kerberos"), "{closed}");
    hive.puts("get_table_req", "web", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    assert!(open(&[&hive.name("web")], options()).unwrap_err().chain().contains("Thrift"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("hms://127.0.0.1:{}/db.t", silent.local_addr().unwrap().port());
    let quick =
        OpenOptions { storage_options: [("timeout".to_owned(), "200ms".to_owned())].into(), ..OpenOptions::default() };
    assert!(matches!(open(&[&name], quick).unwrap_err(), Error::Store { .. }));
    drop(silent);
    assert!(open(&[&name], options()).unwrap_err().chain().contains(&name));
    for name in ["hms://127.0.0.1/t", "hms://user:sEcReT@h/db.t"] {
        let error = open(&[name], options()).unwrap_err().to_string();
        assert!(error.contains("hms://host:9083/database.table") && !error.contains("sEcReT"), "{error}");
    }
    let far = Metastore::start();
    far.says("get_table_req", "plain", "plain", "https://h/x");
    assert!(matches!(open(&[&far.name("plain")], options()).unwrap_err(), Error::Unsupported { .. }));
}

#[test]
fn damaged_answers_are_typed_errors() {
    let hive = Metastore::start();
    let seed = support::variable("BOWSTRING_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("BOWSTRING_SEED={seed} cargo test --test it -- dataset::hive::damaged_answers_are_typed_errors");
    let mut random = Random(seed);
    let quick = || OpenOptions {
        storage_options: [("timeout".to_owned(), "50ms".to_owned())].into(),
        ..OpenOptions::default()
    };
    for _ in 0..if support::soak() { 2_000 } else { 50 } {
        let (table, name) = random.pick(&[
            ("get_table_req", "lake"),
            ("get_table_req", "ice"),
            ("get_partition_names", "days-names"),
            ("get_partitions_by_names", "days-partitions"),
        ]);
        let mut answer = fs::read(support::fixture("hive").join(name)).unwrap();
        for _ in 0..=random.below(3) {
            let at = random.index(answer.len());
            answer[at] = random.next() as u8;
        }
        if random.chance(30) {
            answer.truncate(1 + random.index(answer.len()));
        }
        if table != "get_table_req" {
            hive.says("get_table_req", "t", "days", "file:/nowhere");
            hive.says("get_partition_names", "t", "days-names", "file:/nowhere");
        }
        hive.puts(table, "t", moved(&answer, "file:/nowhere"));
        // Nothing is there, so that each ends in an error.
        let error = open(&[&hive.name("t")], quick()).unwrap_err();
        let typed = matches!(
            error,
            Error::Store { .. } | Error::NotFound { .. } | Error::Unsupported { .. } | Error::Config { .. }
        );
        assert!(typed, "{error:?}");
    }
}

/// A table of a metastore itself, which `scripts/servers/hive.sh` starts: as `BOWSTRING_HIVE` has it, its name and how many rows it has, with a
/// blank between.
#[test]
fn a_table_of_hives_own_metastore() {
    let Some(told) = support::variable("BOWSTRING_HIVE") else {
        eprintln!("skipped: BOWSTRING_HIVE names no table");
        return;
    };
    let (name, count) = told.split_once(' ').unwrap();
    assert_eq!(rows(&open(&[name], OpenOptions::default()).unwrap()).unwrap().len().to_string(), count);
}
