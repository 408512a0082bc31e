//! The server's records of its callers, and its rate of refusals.

use std::io::Write as _;
use std::time::{Duration, Instant};

use bowstring::Loader;
use bowstring::pipeline::LoaderOptions;
use serde_json::Value;

use crate::flight_abuse::{DATA, END_HEADERS, END_STREAM, HEADERS, frame, headers, introduced};
use crate::serve_shell::{LONGEST, PHOTOS, Server, write};
use crate::support;

const GOOD: &str = "a-token-that-is-known";

/// Returns the lines of the log at `path`, once there are `enough` of them.
fn lines(path: &std::path::Path, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let found: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if enough(&found) {
            return found;
        }
        assert!(start.elapsed() < LONGEST, "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn each_call_has_a_line_and_refusals_have_a_rate() {
    let directory = tempfile::tempdir().unwrap();
    let numbers = directory.path().join("numbers");
    std::fs::create_dir(&numbers).unwrap();
    support::write(&numbers, &[vec![8; 5]], 1);
    let tokens = write(directory.path(), "tokens", &format!("anna:{GOOD}\n"));
    let config = write(directory.path(), "serve.toml", "[server.limits]\nrefused_per_minute = 20\n");
    let log = directory.path().join("audit");
    let numbers = format!("numbers={}", numbers.display());
    let server =
        Server::start(&["--config", &config, "--tokens", &tokens, "--audit-log", log.to_str().unwrap(), &numbers]);
    let open = |token: &str| {
        let mut options =
            LoaderOptions { shuffle: false, ..LoaderOptions::new(format!("{}/numbers", server.listen), 4) };
        options.storage_options.insert("token".to_owned(), token.to_owned());
        options.storage_options.insert("transport".to_owned(), "tcp".to_owned());
        options.timeout = 20.0;
        Loader::open(options)
    };
    let mut loader = open(GOOD).unwrap();
    let mut rows = 0;
    while let Some(batch) = loader.next().unwrap() {
        rows += support::ids(&batch).len();
    }
    drop(loader);
    assert_eq!(rows, 40);
    let is = |line: &Value, call: &str, result: &str| line["call"] == call && line["result"] == result;
    let found = lines(&log, |lines| lines.iter().any(|line| is(line, "DoGet", "ok")));
    let stream = found.iter().find(|line| is(line, "DoGet", "ok")).unwrap();
    assert_eq!(
        (&stream["tenant"], &stream["peer"], &stream["what"]),
        (&"anna".into(), &"127.0.0.1".into(), &"numbers".into())
    );
    assert_eq!((&stream["steps"], &stream["rows"]), (&serde_json::json!([0, 10]), &40.into()));
    let fingerprints = ["data", "plan"].map(|key| stream[key].as_str().unwrap_or_default());
    assert!(fingerprints.iter().all(|it| it.len() == 64) && fingerprints[0] != fingerprints[1], "{stream}");
    assert!(stream["time"].as_f64().unwrap() > 1.7e9);
    assert!(found.iter().any(|line| is(line, "GetFlightInfo", "ok") && line["what"] == "numbers"), "{found:?}");

    // Callers without a token are refused, then delayed; callers with one get through meanwhile.
    let start = Instant::now();
    for _ in 0..22 {
        open("a-token-that-is-not-known").unwrap_err();
    }
    let held = start.elapsed();
    assert!(held >= Duration::from_secs(1), "{held:?}");
    open(GOOD).unwrap().next().unwrap();
    let refused = |lines: &[Value]| lines.iter().filter(|line| line["result"] == "Unauthenticated").count();
    let found = lines(&log, |lines| refused(lines) >= 20);
    let line = found.iter().find(|line| line["result"] == "Unauthenticated").unwrap();
    assert_eq!((&line["tenant"], &line["peer"]), (&Value::Null, &"127.0.0.1".into()));
    assert!(refused(&found) <= 20 + 1 + held.as_secs() as usize / 3, "{found:?}");

    // The file is moved away, as by rotation.
    let moved = directory.path().join("audit.1");
    std::fs::rename(&log, &moved).unwrap();
    server.signal("-HUP");
    lines(&log, |lines| {
        open(GOOD).unwrap();
        !lines.is_empty()
    });
    let text = [&log, &moved].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    assert!(!text.contains(GOOD) && !text.contains("a-token-that"), "{text}");
}

#[test]
fn a_stream_whose_ticket_is_no_message_has_a_line_too() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit");
    let config = write(directory.path(), "serve.toml", "[server.limits]\nhandshake_seconds = 1\nticket_bytes = 1000\n");
    let server = Server::start(&["--config", &config, "--audit-log", log.to_str().unwrap(), PHOTOS]);
    let mut streams = Vec::new();
    // One that is no message, one that is too long, and one that does not come.
    for body in [Some(vec![0xff; 64]), Some(vec![0; 2000]), None] {
        let mut stream = introduced(server.port()).unwrap();
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &headers("DoGet"))).unwrap();
        if let Some(body) = body {
            stream.write_all(&frame(DATA, END_STREAM, 1, &body)).unwrap();
        }
        streams.push(stream);
    }
    let is = |line: &Value, result: &str| line["call"] == "DoGet" && line["result"] == result;
    let count = |lines: &[Value], result: &str| lines.iter().filter(|line| is(line, result)).count();
    let found = lines(&log, |lines| count(lines, "InvalidArgument") == 2 && count(lines, "DeadlineExceeded") == 1);
    assert!(found.iter().all(|line| line["tenant"] == "anonymous" && line["peer"] == "127.0.0.1"), "{found:?}");
}
