//! The page of a running server and `bowstring top`: status, headers, tokens, events, requests that nobody should send.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bowstring::Loader;
use bowstring::pipeline::LoaderOptions;
use serde_json::Value;

use crate::cli::{command, ran};
use crate::serve_shell::{LONGEST, PHOTOS, Server, write};
use crate::support::until;

const TOKEN: &str = "correct-horse-battery";

/// Sends `text` to the admin port; returns the answer.
fn send(server: &Server, text: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.admin()).unwrap();
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    // The server may close before all of it is sent.
    let _ = stream.write_all(text);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn ask(server: &Server, request: &str, more: &str) -> String {
    send(server, format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n").as_bytes())
}

fn body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Reads `count` events, with the time of each.
fn events(server: &Server, more: &str, count: usize) -> Vec<(Instant, Value)> {
    let mut stream = TcpStream::connect(server.admin()).unwrap();
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    write!(stream, "GET /ui/events HTTP/1.1\r\nhost: localhost\r\n{more}\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let data = lines.filter_map(|line| Some(serde_json::from_str(line.strip_prefix("data:")?).unwrap()));
    data.map(|event| (Instant::now(), event)).take(count).collect()
}

/// A loader of the server that took one batch and holds on.
fn rank(server: &Server) -> Loader {
    let mut options = LoaderOptions::new(format!("{}/imagenet40", server.listen), 2);
    options.seed = 3;
    let mut loader = Loader::open(options).unwrap();
    assert!(loader.next().unwrap().is_some());
    loader
}

/// Asks for data until a rank is there.
fn with_rank(server: &Server) -> Value {
    let began = Instant::now();
    loop {
        let data = body(&ask(server, "GET /ui/data", ""));
        if data["ranks"].as_array().is_some_and(|ranks| !ranks.is_empty()) {
            return data;
        }
        assert!(began.elapsed() < LONGEST, "{data}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn sum(shares: &Value) -> f64 {
    shares.as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).sum()
}

#[test]
fn the_page_and_its_data_are_served() {
    let server = Server::start(&[PHOTOS]);
    let page = ask(&server, "GET /ui", "");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>bowstring</title>"), "{page}");
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(page.contains(header), "{header}: {}", &page[..800]);
    }
    assert!(!page.to_lowercase().contains("access-control"), "no other site may read it");
    let answer = ask(&server, "GET /", "");
    assert!(answer.starts_with("HTTP/1.1 303") && answer.contains("location: /ui"), "{answer}");

    // The address is printed when the server listens, and the phase follows.
    let looks = std::iter::repeat_with(|| body(&ask(&server, "GET /ui/data", "")));
    let ready = |data: &Value| data["phase"] == "ready";
    let empty = looks.take(100).inspect(|_| std::thread::sleep(std::time::Duration::from_millis(20))).find(ready);
    let empty = empty.expect("ready within two seconds");
    assert_eq!((&empty["schema"], &empty["phase"], &empty["bottleneck"]), (&1.into(), &"ready".into(), &Value::Null));
    assert_eq!(empty["datasets"][0]["name"], "imagenet40");

    let loader = rank(&server);
    std::thread::sleep(Duration::from_millis(600));
    let data = with_rank(&server);
    let one = &data["ranks"][0];
    assert!((sum(&one["shares"]) - 100.0).abs() < 1e-9 && (sum(&data["shares"]) - 100.0).abs() < 1e-9, "{data}");
    assert_eq!((&one["dataset"], &one["rank"], &one["doing"]), (&"imagenet40".into(), &0.into(), &"consumer".into()));
    assert!(one["step"].as_u64().unwrap() >= 1 && one["rows"].as_u64().unwrap() >= 2, "{one}");
    assert!(one["shares"][7].as_f64().unwrap() > 20.0, "the rank holds its batches: {one}");
    let plan = &data["plans"][0];
    assert_eq!((&plan["world"], &plan["steps"], &plan["rows"]), (&1.into(), &20.into(), &40.into()));
    assert!(plan["strip"]["row_groups"].as_u64().unwrap() >= 1, "{plan}");
    let cells = |name: &str| plan["strip"][name].as_array().unwrap().len();
    assert!(cells("first") >= 1 && cells("first") == cells("last"), "{plan}");
    assert!(data["bottleneck"]["sentence"].as_str().unwrap().starts_with("Ranks wait for data"), "{data}");
    let origins = data["origins"].as_array().unwrap();
    assert!(
        origins.iter().any(|one| one["address"] == "(files of this machine)" && one["bytes"].as_u64() > Some(1000))
    );
    assert!(data["memory"]["used"].as_u64().unwrap() > 0, "{data}");

    // Two events, a second apart.
    let events = events(&server, "", 2);
    assert!(events[1].0 - events[0].0 > Duration::from_millis(500), "they are no busy loop");
    assert!(events.iter().all(|(_, event)| event["ranks"][0]["rank"] == 0), "{events:?}");

    // A call that fails is among the errors, with its place and without its text.
    let missing = LoaderOptions::new(format!("{}/nowhere", server.listen), 2);
    let error = Loader::open(missing).unwrap_err().to_string();
    assert!(error.contains("nowhere"), "{error}");
    std::thread::sleep(Duration::from_millis(300));
    let data = body(&ask(&server, "GET /ui/data", ""));
    let last = &data["errors"][0];
    assert_eq!(
        (&last["kind"], &last["call"], &last["dataset"]),
        (&"usage".into(), &"GetFlightInfo".into(), &"nowhere".into())
    );

    drop(loader);
    until("a stream that is over is shown no more", || {
        body(&ask(&server, "GET /ui/data", ""))["ranks"].as_array().is_none_or(Vec::is_empty)
    });
    server.signal("-TERM");
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "an open page delays nothing: {log}");
}

#[test]
fn data_need_the_token_that_operators_have() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = write(directory.path(), "operators", &format!("operator:{TOKEN}\n"));
    let server = Server::start(&[PHOTOS, "--admin-tokens", &tokens]);
    // The page has no data, and asks for the token.
    let page = ask(&server, "GET /ui", "");
    assert!(page.starts_with("HTTP/1.1 200") && !page.contains("imagenet40") && !page.contains(TOKEN));
    let good = format!("authorization: Bearer {TOKEN}\r\n");
    for path in ["/ui/data", "/ui/events"] {
        for header in ["", "authorization: Bearer wrong-wrong-wrong-wrong\r\n", "authorization: Basic x\r\n"] {
            let answer = ask(&server, &format!("GET {path}"), header);
            assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("imagenet40"), "{path} {header}: {answer}");
        }
    }
    let data = body(&ask(&server, "GET /ui/data", &good));
    assert_eq!((&data["named"], &data["datasets"][0]["name"]), (&true.into(), &"imagenet40".into()));
    assert_eq!(events(&server, &good, 1).len(), 1);
    assert!(ask(&server, "GET /metrics", &good).contains("bowstring_auth_refused_total{reason=\"unknown\"} 2"));

    let top = |more: &[&str], token: Option<&str>| {
        let admin = format!("http://{}", server.admin());
        let mut command = command(&[&["top", &admin, "--once"], more].concat());
        if let Some(token) = token {
            command.env("BOWSTRING_TOKEN", token);
        }
        ran(command)
    };
    let refused = top(&[], None);
    assert!(refused.code == 7 && refused.stderr.contains("status 401"), "{refused:?}");
    let shown = top(&[], Some(TOKEN));
    assert!(shown.code == 0 && shown.stdout.contains("No stream is open."), "{shown:?}");
    let given = top(&["--storage-options", &format!("token={TOKEN}"), "--json"], None);
    assert_eq!(serde_json::from_str::<Value>(&given.stdout).unwrap()["schema"], 1, "{given:?}");
    assert!(!(shown.stdout + &shown.stderr + &given.stdout + &refused.stderr).contains(TOKEN));
}

#[test]
fn requests_that_nobody_should_send_change_nothing() {
    let server = Server::start(&[PHOTOS]);
    let status = |answer: &str| answer.get(9..12).unwrap_or_default().to_owned();
    for (request, code) in [
        ("POST /ui", "405"),
        ("PUT /ui/data", "405"),
        ("DELETE /ui/events", "405"),
        ("GET /ui/", "404"),
        ("GET /ui/data/../../etc/passwd", "404"),
        ("GET /ui/%2e%2e", "404"),
        ("HEAD /ui", "200"),
        ("GET /ui/data?x=<script>", "400"),
        ("GET /ui/data?x=y", "200"),
    ] {
        let answer = ask(&server, request, "");
        assert_eq!(status(&answer), code, "{request}: {answer}");
    }
    // A name that somebody points at this host.
    for host in ["evil.example", "10.0.0.1:9090", ""] {
        let request = format!("GET /ui/data HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = send(&server, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("imagenet40"), "{host}: {answer}");
    }
    for (what, text) in [
        ("a head without an end", [b"GET /ui HTTP/1.1\r\nx: ".to_vec(), vec![b'a'; 4 << 20]].concat()),
        ("many headers", format!("GET /ui HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000)).into_bytes()),
        ("a long path", format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(1 << 20)).into_bytes()),
        ("no HTTP", vec![0xff; 10_000]),
    ] {
        let answer = send(&server, &text);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {answer}");
    }
    // A body is not waited for.
    let long = format!("content-length: {}\r\n", 1_u64 << 40);
    let answer = ask(&server, "GET /ui/data", &long);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"schema\":1"), "{answer}");
    // As many pages as there may be, and probes still get an answer.
    let pages: Vec<TcpStream> = (0..30)
        .map(|_| {
            let mut stream = TcpStream::connect(server.admin()).unwrap();
            write!(stream, "GET /ui/events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            stream.set_read_timeout(Some(LONGEST)).unwrap();
            stream
        })
        .collect();
    let codes = pages.iter().map(|mut page| {
        let mut head = [0; 12];
        page.read_exact(&mut head).unwrap();
        String::from_utf8_lossy(&head[9..]).into_owned()
    });
    let refused = codes.filter(|code| code == "503").count();
    assert_eq!(refused, 6);
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200"));
    let began = Instant::now();
    server.signal("-TERM");
    assert_eq!(server.ended().0, Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "open pages delay nothing");
    drop(pages);
}

#[test]
fn top_shows_a_server_and_each_tenant_its_own() {
    let server = Server::start(&[PHOTOS]);
    let _loader = rank(&server);
    with_rank(&server);
    let top = |more: &[&str]| ran(command(&[&["top", &server.listen], more].concat()));
    let data = top(&["--once", "--json"]);
    assert_eq!((data.code, data.stderr.as_str()), (0, ""), "{data:?}");
    let data: Value = serde_json::from_str(&data.stdout).unwrap();
    assert_eq!((&data["schema"], &data["ranks"][0]["dataset"]), (&1.into(), &"imagenet40".into()));
    assert!(data["memory"]["budget"].as_u64().unwrap() > 0, "without tenants everybody sees everything");
    let text = top(&["--once"]);
    for part in ["ready, version", "Ranks (1 of 1 stream)", "imagenet40", "Ranks wait for data", "Plans", "Memory:"] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    assert!(!text.stdout.contains('\u{1b}'), "no terminal, no control sequences");
    for (args, code, part) in [
        (&["top", "https://x"][..], 2, "plain HTTP"),
        (&["top", "grpc://127.0.0.1:1", "--once"], 7, "127.0.0.1:1"),
        (&["top", &server.listen, "--interval", "0"], 2, "interval"),
        (&["top"], 2, "ADDRESS"),
    ] {
        let failed = ran(command(args));
        assert!(failed.code == code && failed.stderr.contains(part), "{args:?}: {failed:?}");
    }

    let directory = tempfile::tempdir().unwrap();
    let tokens = format!("anna:anna-{TOKEN}\nbert:bert-{TOKEN}\n");
    let server = Server::start(&[PHOTOS, "--tokens", &write(directory.path(), "tokens", &tokens)]);
    let mut options = LoaderOptions::new(format!("{}/imagenet40", server.listen), 2);
    options.storage_options.insert("token".to_owned(), format!("anna-{TOKEN}"));
    let mut loader = Loader::open(options).unwrap();
    assert!(loader.next().unwrap().is_some());
    with_rank(&server);
    for (tenant, ranks) in [("anna", 1), ("bert", 0)] {
        let mut command = command(&["top", &server.listen, "--once", "--json"]);
        command.env("BOWSTRING_TOKEN", format!("{tenant}-{TOKEN}"));
        let ran = ran(command);
        assert_eq!(ran.code, 0, "{ran:?}");
        let data: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(data["ranks"].as_array().unwrap().len(), ranks, "{tenant}: {data}");
        assert!(data["memory"].is_null() && data["cache"].is_null(), "{tenant}: {data}");
        assert!(data["origins"].as_array().unwrap().is_empty() && data["errors"].as_array().unwrap().is_empty());
    }
    assert_eq!(ran(command(&["top", &server.listen, "--once"])).code, 7, "without a token");
}
