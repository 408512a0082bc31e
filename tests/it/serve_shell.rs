//! `bowstring serve` as operators see it: a process with flags, files, ports and signals.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::flight_service_client::FlightServiceClient;
use bowstring::Loader;
use bowstring::flight::server::tls::ClientFiles;
use bowstring::pipeline::LoaderOptions;
use parquet::arrow::ArrowWriter;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::{cli, support};

pub(crate) const PHOTOS: &str = "fixtures/imagenet40.parquet";
/// Secrets that are planted in files and must never be output.
const TOKEN: &str = "planted-token-5f1d7c";
const STORE_KEY: &str = "planted-store-key-93ab";
/// Maximum duration of a step of a test.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowstring"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BOWSTRING_") {
            command.env_remove(&name);
        }
    }
    command.arg("serve").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

/// A running server; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) listen: String,
    admin: String,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(command(args))
    }

    /// Starts a server with a limit of open files.
    fn start_with_files(files: u32, args: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let plain = command(args);
        shell.arg("-c").arg(script).arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
        shell.current_dir(env!("CARGO_MANIFEST_DIR"));
        Self::spawn(shell)
    }

    fn spawn(mut command: Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut child = command
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--print-address"])
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line = || lines.next().map(Result::unwrap).unwrap_or_default();
        let (listen, admin) = (line(), line());
        assert!(!admin.is_empty(), "the server did not start: {}", std::fs::read_to_string(&log).unwrap());
        Self { child, listen, admin, log, _directory: directory }
    }

    /// Returns host and port of the admin endpoints.
    pub(crate) fn admin(&self) -> &str {
        self.admin.strip_prefix("http://").unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin()).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn signal(&self, signal: &str) {
        support::signal(self.child.id(), signal);
    }

    /// Returns the exit code and the log. A process that is still running is killed on drop.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < LONGEST, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        (status.code(), std::fs::read_to_string(&self.log).unwrap())
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.listen.rsplit(':').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Certificates of one authority: its own, a server's for `localhost`, a client's.
pub(crate) struct Authority {
    pub(crate) ca: String,
    pub(crate) server: (String, String),
    pub(crate) client: (String, String),
}

impl Authority {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
        let signed = |of: &str| {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new([of.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
            let certificate = write(directory, &format!("{name}-{of}.pem"), &certificate.pem());
            (certificate, write(directory, &format!("{name}-{of}-key.pem"), &key.serialize_pem()))
        };
        let ca = write(directory, &format!("{name}-ca.pem"), &issuer.pem());
        Self { ca, server: signed("localhost"), client: signed("trainer") }
    }

    pub(crate) fn trusting(&self) -> ClientFiles {
        ClientFiles { ca: Some((&self.ca).into()), domain: Some("localhost".into()), ..ClientFiles::default() }
    }

    pub(crate) fn showing(&self, client: &Authority) -> ClientFiles {
        let (cert, key) = (&client.client.0, &client.client.1);
        ClientFiles { cert: Some(cert.into()), key: Some(key.into()), ..self.trusting() }
    }
}

/// Asks for the server's health, over TLS with `files`: true if it is serving, or the error.
fn health(port: u16, files: Option<&ClientFiles>) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let asked = async {
            let channel = connect(port, files).await?;
            let answer = HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await;
            answer.map(|answer| answer.into_inner().status == 1).map_err(|status| format!("{status:?}"))
        };
        tokio::time::timeout(LONGEST, asked).await.unwrap_or_else(|_| panic!("no answer from port {port}"))
    })
}

pub(crate) async fn connect(port: u16, files: Option<&ClientFiles>) -> Result<Channel, String> {
    let scheme = if files.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://127.0.0.1:{port}")).unwrap();
    if let Some(files) = files {
        endpoint = endpoint.tls_config(files.client(LONGEST).unwrap()).unwrap();
    }
    endpoint.connect().await.map_err(|error| format!("{error:?}"))
}

#[test]
fn few_open_files_cost_copies_and_no_stream() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![500; 8]], 2);
    // 8 streams would keep 256 batches each, every one an open file.
    let server = Server::start_with_files(160, &[&format!("numbers={}", directory.path().display())]);
    let url = format!("{}/numbers", server.listen);
    let ranks: Vec<_> = (0..8)
        .map(|rank| {
            let options = LoaderOptions { urls: vec![url.clone()], ..support::options(directory.path(), 8, rank, 8) };
            std::thread::spawn(move || {
                let mut loader = Loader::open(options).unwrap();
                let mut ids = Vec::new();
                while let Some(batch) = loader.next().unwrap() {
                    ids.extend(support::ids(&batch));
                }
                ids
            })
        })
        .collect();
    let mut ids: Vec<i64> = ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(0..4000), "{} rows", ids.len());
    server.signal("-TERM");
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(log.matches("further batches for ranks of this host are copied").count(), 1, "{log}");
}

#[test]
fn a_server_with_open_access_or_wrong_options_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = write(directory.path(), "tokens", &format!("anna:{TOKEN}\n"));
    let open = write(directory.path(), "open-tokens", &format!("anna:{TOKEN}\n"));
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let short = write(directory.path(), "short-key", "too short");
    let config = format!(
        "[datasets.x]\nurl = \"{PHOTOS}\"\nstorage_options = {{ aws_secret_access_key = \"{STORE_KEY}\" }}\nbach_size = 3\n"
    );
    let config = write(directory.path(), "serve.toml", &config);
    let one = Authority::new(directory.path(), "one");
    let cert = ["--tls-cert", one.server.0.as_str(), "--tls-key", one.server.1.as_str()];
    let cases: [(Vec<&str>, &[&str]); 19] = [
        (vec![], &["required", "[NAME=]URL"]),
        (vec![PHOTOS, "--listen", "0.0.0.0:0"], &["other machines", "--tls-cert", "--tokens", "--insecure"]),
        (vec![PHOTOS, "--listen", ":0"], &["other machines", "--tls-cert", "--tokens", "--insecure"]),
        (vec![PHOTOS, "--listen", "[::]:0", "--tokens", &tokens], &["--tls-cert and --tls-key) is missing"]),
        ([&[PHOTOS, "--listen", "0.0.0.0:0"], &cert[..]].concat(), &["--tokens FILE", "is missing"]),
        (vec![PHOTOS, "--tokens", &open], &["open-tokens", "mode 0644", "chmod 600"]),
        (vec![PHOTOS, "--tokens", "/nowhere/tokens"], &["/nowhere/tokens"]),
        (vec![PHOTOS, "--key-file", &short], &["short-key", "too few"]),
        (vec![PHOTOS, "--tls-cert", &one.server.0], &["--tls-key"]),
        (vec![PHOTOS, "--tls-cert", &one.server.0, "--tls-key", &one.client.1], &["does not belong"]),
        (vec![PHOTOS, "--tls-cert", &one.server.1, "--tls-key", &one.server.1], &["holds no certificate"]),
        (vec!["--config", &config], &["serve.toml, line 4", "bach_size"]),
        (vec!["--config", "/nowhere/serve.toml"], &["/nowhere/serve.toml"]),
        (vec![PHOTOS, "--replica", "10.0.0.1:8815"], &["replicas", "grpc://"]),
        (vec![PHOTOS, "--listen", "nonsense"], &["listen", "nonsense"]),
        (vec![PHOTOS, "--drain-grace=-1"], &["drain_grace"]),
        (vec![PHOTOS, "--print-address", "--put="], &["put", "empty"]),
        (vec![PHOTOS, "--print-address", "--put", PHOTOS], &["put", PHOTOS, "is a file"]),
        (vec![PHOTOS, "--insecure=flase"], &["flase", "true or false"]),
    ];
    for (args, texts) in cases {
        let output = command(&args).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {log}");
        assert_eq!(output.stdout, b"", "{args:?}");
        for text in texts {
            assert!(log.contains(text), "{args:?} lacks {text:?}: {log}");
        }
        assert!(!log.contains(TOKEN) && !log.contains(STORE_KEY), "{args:?}: {log}");
    }
    // Before anybody is told an address.
    for journal in [PHOTOS, "/nowhere/journal"] {
        let output = command(&[PHOTOS, "--listen", "127.0.0.1:0", "--print-address", "--journal", journal]).output();
        let (output, log) = output.map(|output| (output.stdout, String::from_utf8(output.stderr).unwrap())).unwrap();
        assert!(output.is_empty() && log.contains(journal), "{log}");
    }
}

#[test]
fn a_server_reports_readiness_and_ends_on_both_signals() {
    for (signal, json) in [("-TERM", false), ("-INT", true)] {
        let args: &[&str] = if json { &[PHOTOS, "--log-format", "json"] } else { &[PHOTOS] };
        let server = Server::start(args);
        assert_eq!(health(server.port(), None), Ok(true));
        assert!(server.get("/livez").starts_with("HTTP/1.1 200"));
        assert!(server.get("/readyz").starts_with("HTTP/1.1 200"));
        let metrics = server.get("/metrics");
        for name in ["streams_open", "connections_open", "draining", "memory_budget_bytes"] {
            assert!(metrics.contains(&format!("bowstring_{name} ")), "{name}: {metrics}");
        }
        server.signal(signal);
        let (code, log) = server.ended();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("serving") && log.contains("draining") && log.contains("imagenet40"), "{log}");
        if json {
            for line in log.lines() {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(line["level"].is_string() && line["fields"]["message"].is_string(), "{line}");
            }
        }
    }
}

#[test]
fn a_draining_server_is_not_ready_and_a_second_signal_ends_it() {
    let server = Server::start(&[PHOTOS, "--drain-grace", "60"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // A watch is a call without an end of its own: it delays the drain.
        let mut client = HealthClient::new(connect(server.port(), None).await.unwrap());
        let mut watch = client.watch(HealthCheckRequest { service: String::new() }).await.unwrap().into_inner();
        assert_eq!(watch.message().await.unwrap().unwrap().status, 1);
        server.signal("-TERM");
        let told = tokio::time::timeout(LONGEST, watch.message()).await.expect("told at once");
        assert_eq!(told.unwrap().unwrap().status, 2, "not serving");
        let answer = server.get("/readyz");
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("draining"), "{answer}");
        assert!(server.get("/livez").starts_with("HTTP/1.1 200"));
        assert!(server.get("/metrics").contains("bowstring_draining 1"));
        let began = Instant::now();
        while connect(server.port(), None).await.is_ok() {
            assert!(began.elapsed() < LONGEST, "no new connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.signal("-TERM");
        let (code, log) = server.ended();
        assert_eq!(code, Some(143), "{log}");
        drop(watch);
    });
}

#[test]
fn a_drain_ends_with_the_grace_time_despite_open_connections() {
    let server = Server::start(&[PHOTOS, "--drain-grace", "1"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _watch = runtime.block_on(async {
        let mut client = HealthClient::new(connect(server.port(), None).await.unwrap());
        client.watch(HealthCheckRequest { service: String::new() }).await.unwrap()
    });
    // A silent peer does not delay it either.
    let _mute = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    server.signal("-TERM");
    let start = Instant::now();
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    let seconds = start.elapsed().as_secs_f64();
    println!("ended {seconds:.2} s after the signal, the grace is 1 s");
    // Without the option it would be 30 s; a busy machine needs some time too.
    assert!(seconds < 20.0, "{seconds} s: {log}");
}

#[test]
fn only_those_with_the_right_certificates_get_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let one = Authority::new(directory.path(), "one");
    let other = Authority::new(directory.path(), "other");
    let cert = [PHOTOS, "--tls-cert", &one.server.0, "--tls-key", &one.server.1];

    let server = Server::start(&cert);
    assert!(server.listen.starts_with("grpc+tls://"), "{}", server.listen);
    let port = server.port();
    assert_eq!(health(port, Some(&one.trusting())), Ok(true));
    let error = health(port, Some(&other.trusting())).unwrap_err();
    assert!(error.contains("UnknownIssuer"), "wrong CA: {error}");
    let stranger = ClientFiles { domain: Some("elsewhere".into()), ..one.trusting() };
    assert!(health(port, Some(&stranger)).unwrap_err().contains("NotValidForName"), "wrong name");
    assert!(health(port, None).is_err(), "plaintext to a TLS port");
    drop(server);

    let server = Server::start(&[&cert[..], &["--client-ca", &one.ca]].concat());
    let port = server.port();
    assert_eq!(health(port, Some(&one.showing(&one))), Ok(true));
    assert!(health(port, Some(&one.trusting())).is_err(), "no client certificate");
    assert!(health(port, Some(&one.showing(&other))).is_err(), "another CA's client certificate");
    assert!(health(port, None).is_err(), "plaintext to a TLS port");
    assert_eq!(health(port, Some(&one.showing(&one))), Ok(true), "and it still serves");

    let server = Server::start(&[PHOTOS]);
    assert!(health(server.port(), Some(&one.trusting())).is_err(), "TLS to a plaintext port");
}

#[test]
fn an_address_of_another_kind_is_an_error_that_names_the_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let one = Authority::new(directory.path(), "one");
    let plain = Server::start(&[PHOTOS]);
    let secure = Server::start(&[PHOTOS, "--tls-cert", &one.server.0, "--tls-key", &one.server.1]);
    let (open, shut) = (plain.port(), secure.port());
    for (url, told) in [
        (format!("http://127.0.0.1:{open}/imagenet40"), format!("did you mean grpc://127.0.0.1:{open}/imagenet40?")),
        (format!("grpc+tls://localhost:{open}/imagenet40"), format!("speaks no TLS; write grpc://localhost:{open}")),
        (format!("grpc://localhost:{shut}/imagenet40"), format!("speaks TLS; write grpc+tls://localhost:{shut}")),
    ] {
        // The answer of a peer of the other kind arrives in more than one form.
        for _ in 0..5 {
            let trusted = url.starts_with("grpc+tls").then(|| ("ca".to_owned(), one.ca.clone()));
            let options = LoaderOptions {
                urls: vec![url.clone()],
                storage_options: trusted.into_iter().collect(),
                timeout: LONGEST.as_secs_f64(),
                ..support::options(directory.path(), 8, 0, 1)
            };
            let begun = Instant::now();
            let error = Loader::open(options).expect_err("nothing there to open");
            let text = error.chain();
            assert!(text.contains(&told) && text.len() < 160 && !text.contains('\n'), "{text}");
            assert_eq!(error.kind().exit_code(), 2, "{text}");
            assert!(begun.elapsed() < LONGEST, "{text}: as soon as it is known");
        }
    }
}

#[test]
fn inspect_lists_the_datasets_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![60, 40]], 1);
    let nullable = tempfile::tempdir().unwrap();
    let numbers = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])) as ArrayRef;
    let batch = RecordBatch::try_from_iter_with_nullable([("n", numbers, true)]).unwrap();
    let file = std::fs::File::create(nullable.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let server = Server::start(&[
        &format!("photos={PHOTOS}"),
        &format!("numbers={}", directory.path().display()),
        &format!("nullable={}", nullable.path().display()),
    ]);
    let asked = |url: &str, more: &[&str]| cli::run(&[&["inspect", url], more].concat());
    let all = asked(&server.listen, &[]);
    assert_eq!(all.code, 0, "{}", all.stderr);
    let lines: Vec<Vec<&str>> = all.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..2], ["3", "datasets"], "{}", all.stdout);
    for expected in [["numbers", "100", "2"], ["photos", "40", "3"]] {
        assert!(lines.iter().any(|line| line[..] == expected), "{}", all.stdout);
    }
    let all = asked(&server.listen, &["--json"]);
    let told: serde_json::Value = serde_json::from_str(&all.stdout).unwrap_or_else(|_| panic!("{}", all.stderr));
    let nullable = told["datasets"].as_array().unwrap().iter().find(|found| found["name"] == "nullable").unwrap();
    assert_eq!((&nullable["rows"], nullable["columns"].as_array().unwrap().len()), (&3.into(), 1), "{nullable}");
    assert!(nullable["problem"].is_null() && nullable["fingerprint"].is_string(), "{nullable}");
    assert!(nullable["note"].as_str().unwrap().starts_with("nulls in "), "{nullable}");
    let one = asked(&format!("{}/photos", server.listen), &["--columns", "label", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&one.stdout).unwrap_or_else(|_| panic!("{}", one.stderr));
    let found = &told["datasets"][0];
    assert_eq!((&found["name"], &found["rows"]), (&"photos".into(), &40.into()));
    assert_eq!(found["columns"], serde_json::json!([{"name": "label", "outcome": "int64 [B]"}]));
    // What has no effect is refused.
    for (more, option) in
        [("--filter=label > 3", "filter"), ("--no-images", "no_images"), ("--world-size=4", "world_size")]
    {
        let refused = asked(&server.listen, &[more]);
        assert!(refused.code == 2 && refused.stderr.contains(option), "{more}: {}", refused.stderr);
    }
    let refused = asked(&format!("{}/photos", server.listen), &["--partitioning=none"]);
    assert!(refused.code == 2 && refused.stderr.contains("partitioning"), "{}", refused.stderr);
    let wrong = asked(&format!("{}/phtos", server.listen), &[]);
    assert!(wrong.code == 2 && wrong.stderr.contains("photos"), "{}: {}", wrong.code, wrong.stderr);
    // A verb that reads files reports that a server has none.
    let index = cli::run(&["index", &server.listen]);
    assert!(index.code == 2 && index.stderr.contains("no files"), "{}: {}", index.code, index.stderr);
    let nobody = server.listen.clone();
    drop(server);
    let started = Instant::now();
    let refused = asked(&nobody, &[]);
    assert!(refused.code == 7 && started.elapsed() < LONGEST, "{}: {}", refused.code, refused.stderr);
}

#[test]
fn secrets_are_never_output() {
    let directory = tempfile::tempdir().unwrap();
    let one = Authority::new(directory.path(), "one");
    let tokens = write(directory.path(), "tokens", &format!("anna:{TOKEN}\n"));
    let key = "planted-ticket-key-0123456789-abcdefghijkl";
    let key_file = write(directory.path(), "key", key);
    let config = format!(
        "[server]\ntokens = {tokens:?}\nkey_file = {key_file:?}\ntls = {{ cert = {:?}, key = {:?} }}\n\
         [datasets.x]\nurl = \"{PHOTOS}\"\nstorage_options = {{ aws_secret_access_key = \"{STORE_KEY}\" }}\n",
        one.server.0, one.server.1
    );
    let config = write(directory.path(), "serve.toml", &config);
    let server = Server::start(&["--config", &config, "-vvv"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = connect(server.port(), Some(&one.trusting())).await.unwrap();
        let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
        request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
        let _ = HealthClient::new(channel).check(request).await;
    });
    // A connected but idle client would delay the drain for its whole grace period.
    drop(runtime);
    let mut seen = server.get("/metrics") + &server.get("/readyz") + &server.get("/livez") + &server.get("/else");
    seen += &(server.get("/ui") + &server.get("/ui/data"));
    server.signal("-TERM");
    let (code, log) = server.ended();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.len() > 1000, "everything was logged");
    seen.push_str(&log);
    let private = std::fs::read_to_string(&one.server.1).unwrap();
    let private: Vec<&str> = private.lines().filter(|line| line.len() > 30 && !line.starts_with('-')).collect();
    assert!(!private.is_empty());
    for secret in [&[TOKEN, STORE_KEY, key][..], &private].concat() {
        assert!(!seen.contains(secret), "{secret} is in\n{seen}");
    }
}

#[test]
fn mute_peers_and_crowds_are_turned_away() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!("[server.limits]\nconnections = 2\nhandshake_seconds = 1\n[datasets.x]\nurl = \"{PHOTOS}\"\n");
    let server = Server::start(&["--config", &write(directory.path(), "serve.toml", &config)]);
    let connected = || {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        stream
    };
    // Before it ends a connection, a server sends no more than its settings.
    let closed_after = |mut stream: TcpStream| {
        let start = Instant::now();
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        assert!(rest.len() < 100, "{} bytes", rest.len());
        start.elapsed().as_secs_f64()
    };
    let (first, mute, mut slow) = (connected(), connected(), connected());
    slow.write_all(b"PRI * HTTP/2").unwrap();
    let first = closed_after(first);
    let mute = closed_after(mute);
    let slow = closed_after(slow);
    println!("closed after: the first {first:.3} s, a mute one {mute:.3} s, a slow one {slow:.3} s more");
    // One that gives way is closed before a mute one is given up.
    assert!(first < mute && mute >= 0.5 && mute + slow < 60.0);
    assert_eq!(health(server.port(), None), Ok(true), "the places are free again");
    let metrics = server.get("/metrics");
    assert!(metrics.contains("bowstring_connections_refused_total 1"), "{metrics}");

    // Whoever only says hello keeps nobody out; whoever has made a call stays.
    let hello = || {
        let mut stream = connected();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        stream
    };
    let idle = [hello(), hello()];
    let callers = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    callers.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(FlightServiceClient::new(connect(server.port(), None).await.unwrap()));
            clients.last_mut().unwrap().list_actions(arrow_flight::Empty {}).await.unwrap();
        }
        for stream in idle.into_iter().chain([connected()]) {
            closed_after(stream);
        }
        for client in &mut clients {
            client.list_actions(arrow_flight::Empty {}).await.unwrap();
        }
    });
    drop(callers);
    support::until("a free place", || health(server.port(), None) == Ok(true));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = HealthClient::new(connect(server.port(), None).await.unwrap());
        for (bytes, good) in [(8 << 10, true), (20 << 10, false), (8 << 10, true)] {
            let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
            request.metadata_mut().insert("x-padding", "x".repeat(bytes).parse().unwrap());
            let answer = tokio::time::timeout(LONGEST, client.check(request)).await.unwrap();
            assert_eq!(answer.is_ok(), good, "headers of {bytes} bytes: {answer:?}");
        }
    });
}
