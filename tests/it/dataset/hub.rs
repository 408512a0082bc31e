//! Datasets of the Hugging Face Hub: one commit is read, even if names, signatures and limits change meanwhile.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use bowstring::dataset::{Dataset, Index, OpenOptions};
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader};

use super::hub_server::{HubServer, TOKEN};
use super::support::{open, read, read_group, runtime};
use crate::support::{drain, write};

/// Starts a Hub with a commit of `files` in `data/`, and the other usual files of a repository.
fn served(files: &[Vec<usize>]) -> (HubServer, tempfile::TempDir, String) {
    let server = HubServer::start();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    write(&folder.path().join("data"), files, 2);
    fs::write(folder.path().join("README.md"), "a card").unwrap();
    fs::write(folder.path().join("data/notes.txt"), "no data").unwrap();
    let commit = server.commit(folder.path(), "main");
    (server, folder, commit)
}

fn options(server: &HubServer) -> OpenOptions {
    OpenOptions { storage_options: server.options(Some(TOKEN)), ..OpenOptions::default() }
}

fn ids(dataset: &Dataset) -> Vec<i64> {
    let batch = read(dataset, &["id"]).unwrap();
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

fn count(requests: &[String], text: &str) -> usize {
    requests.iter().filter(|line| line.contains(text)).count()
}

#[test]
fn files_directories_and_patterns_are_read_and_each_file_is_requested_once() {
    let (server, _folder, commit) = served(&[vec![10, 10], vec![10], vec![5]]);
    server.pages_of(2);
    for (url, rows) in [
        ("hf://datasets/o/n", 35),
        ("hf://datasets/o/n/data", 35),
        ("hf://datasets/o/n@main/data/part-000.parquet", 20),
        ("hf://datasets/o/n/data/part-00[12].parquet", 15),
        ("hf://datasets/o/n/**/*.parquet", 35),
        ("hf://datasets/old/n/data", 35),
        (&format!("hf://datasets/o/n@{commit}/data"), 35),
    ] {
        server.requests();
        let dataset = open(&[url], options(&server)).unwrap();
        assert_eq!(ids(&dataset).len(), rows, "{url}");
        let files = dataset.manifest().files.len();
        let requests = server.requests();
        let own: Vec<_> =
            requests.iter().filter(|line| line.starts_with("hub HEAD") && line.contains("/o/n/")).collect();
        let asked = own.iter().filter(|line| line.contains(".parquet")).count();
        assert_eq!(asked, files, "{url}: {requests:#?}");
        assert!(count(&requests, "data GET") >= files, "{requests:#?}");
        // Each host gets its own requests.
        assert!(
            requests.iter().filter(|line| line.starts_with("data")).all(|line| line.ends_with("nobody")),
            "{requests:#?}"
        );
        assert!(
            requests.iter().filter(|line| line.starts_with("hub")).all(|line| line.ends_with(TOKEN)),
            "{requests:#?}"
        );
        assert!(
            dataset.manifest().files.iter().all(|file| file.version.etag.as_ref().is_some_and(|etag| etag.len() == 66))
        );
        let revisions = count(&requests, "/o/n/revision/");
        assert_eq!(revisions, usize::from(!url.contains(&commit)), "a commit is asked for once: {requests:#?}");
    }
    let both = ["hf://datasets/o/n/data/part-000.parquet", "hf://datasets/o/n/data/part-001.parquet"];
    server.requests();
    assert_eq!(ids(&open(&both, options(&server)).unwrap()).len(), 30);
    assert_eq!(count(&server.requests(), "/revision/"), 1, "one dataset, one commit");
}

#[test]
fn revisions_are_branches_references_and_conversions_of_the_hub() {
    let (server, _folder, _) = served(&[vec![10]]);
    let other = tempfile::tempdir().unwrap();
    fs::create_dir_all(other.path().join("default/train a")).unwrap();
    write(&other.path().join("default/train a"), &[vec![7]], 1);
    server.commit(other.path(), "refs/convert/parquet");
    server.commit(other.path(), "a/branch");
    for url in [
        "hf://datasets/o/n@refs/convert/parquet/default",
        "hf://datasets/o/n@~parquet",
        "hf://datasets/o/n@refs%2Fconvert%2Fparquet/default/train a/part-000.parquet",
        "hf://datasets/o/n@a%2Fbranch/default/train%20a",
    ] {
        assert_eq!(ids(&open(&[url], options(&server)).unwrap()).len(), 7, "{url}");
    }
}

/// Rewrites the files of `folder` with one more row each.
fn change(folder: &Path) {
    write(&folder.join("data"), &[vec![11], vec![11]], 2);
}

#[test]
fn a_commit_is_read_to_the_end_while_the_branch_moves_and_nothing_else_is() {
    let (server, folder, commit) = served(&[vec![10], vec![10]]);
    let url = "hf://datasets/o/n/data";
    let dataset = open(&[url], options(&server)).unwrap();
    let index = dataset.index().unwrap();
    change(folder.path());
    server.commit(folder.path(), "main");
    assert_eq!(ids(&dataset), (0..20).collect::<Vec<_>>());
    assert_eq!(ids(&open(&[url], options(&server)).unwrap()).len(), 22, "who opens now has the new commit");
    // An index of the old commit is not mixed with the new one.
    let told = OpenOptions { index: Index::Bytes(index.into()), ..options(&server) };
    let known = open(&[url], told).unwrap();
    let projection = known.project(&["id".to_owned()]).unwrap();
    let error = runtime().block_on(read_group(&known, &projection, 0)).unwrap_err();
    assert!(
        matches!(&error, Error::SourceChanged { file, was, now } if file.contains("part-000") && was != now),
        "{error}"
    );
    // A rewritten history.
    let pinned = open(&[url], options(&server)).unwrap();
    server.forget(&commit);
    assert_eq!(ids(&pinned).len(), 22);
    let newest = format!("{:040x}", 0xabc + 1);
    let projection = pinned.project(&["id".to_owned()]).unwrap();
    server.forget(&newest);
    server.expire();
    let error = runtime().block_on(read_group(&pinned, &projection, 0)).unwrap_err();
    assert!(matches!(&error, Error::SourceChanged { now, .. } if now == "gone"), "{}", error.chain());
}

#[test]
fn bytes_that_are_not_of_the_version_are_refused() {
    let (server, _folder, _) = served(&[vec![10]]);
    let dataset = open(&["hf://datasets/o/n/data"], options(&server)).unwrap();
    let projection = dataset.project(&["id".to_owned()]).unwrap();
    server.fault("data GET", "206 Partial Content", "content-range: bytes 4-9/12\r\n", b"123456");
    let error = runtime().block_on(read_group(&dataset, &projection, 0)).unwrap_err();
    assert!(matches!(error, Error::SourceChanged { .. }), "{}", error.chain());
    assert!(runtime().block_on(read_group(&dataset, &projection, 0)).is_ok());
}

#[test]
fn an_epoch_outlives_its_signatures_and_failures_of_the_servers() {
    let (server, _folder, _) = served(&vec![vec![20; 4]; 3]);
    let loader = || LoaderOptions {
        storage_options: server.options(Some(TOKEN)),
        shuffle: false,
        prefetch: 1,
        lanes: Some(1),
        ..LoaderOptions::new("hf://datasets/o/n/data", 4)
    };
    let mut expected = Loader::open(loader()).unwrap();
    let expected = drain(&mut expected).concat();
    assert_eq!(expected, (0..240).collect::<Vec<_>>());
    let mut opened = Loader::open(loader()).unwrap();
    server.requests();
    // An epoch this small is read at once, so each one is preceded by a failure.
    let failures: [&dyn Fn(); 4] = [
        &|| server.expire(),
        &|| server.fault("data GET", "503 Service Unavailable", "", b""),
        &|| server.fault("data GET", "206 Partial Content", "content-length: 100000\r\n", b"cut off"),
        &|| server.fault("data GET", "500 Internal Server Error", "", b""),
    ];
    for (number, fails) in failures.iter().enumerate() {
        fails();
        let mut rows = Vec::new();
        while let Some(batch) = opened.next().unwrap() {
            rows.extend(crate::support::ids(&batch));
        }
        assert_eq!(rows, expected, "failure {number}");
    }
    let requests = server.requests();
    let asked = count(&requests, "hub HEAD");
    assert!(
        (1..=6).contains(&asked),
        "a file is asked for again when its signature is over, and not else: {requests:#?}"
    );
    let state = format!("{:?} {:?}", opened.state(), loader());
    assert!(!state.contains(TOKEN), "{state}");
}

#[test]
fn an_expired_address_is_not_tried() {
    let (server, _folder, _) = served(&[vec![10]]);
    server.sign_for(30);
    let dataset = open(&["hf://datasets/o/n/data"], options(&server)).unwrap();
    server.expire();
    server.requests();
    assert_eq!(ids(&dataset).len(), 10);
    let requests = server.requests();
    assert_eq!(count(&requests, "hub HEAD"), count(&requests, "data GET"), "{requests:#?}");
}

#[test]
fn rate_limits_are_waited_out_within_the_timeout() {
    let (server, _folder, _) = served(&[vec![10]]);
    let url = "hf://datasets/o/n/data";
    server.fault("/resolve/", "429 Too Many Requests", "retry-after: 1\r\n", b"");
    server.fault("/tree/", "429 Too Many Requests", "ratelimit: \"api\";r=0;t=1\r\n", b"");
    let start = Instant::now();
    assert_eq!(ids(&open(&[url], options(&server)).unwrap()).len(), 10);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(20), "{waited:?}");
    server.fault("/revision/", "429 Too Many Requests", "retry-after: 60\r\n", b"");
    let short = OpenOptions { timeout: Duration::from_secs(1), ..options(&server) };
    let start = Instant::now();
    let error = open(&[url], short).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && start.elapsed() < Duration::from_secs(20), "{error}");
    server.fault("/revision/", "429 Too Many Requests", "retry-after: 86400\r\n", b"");
    let error = open(&[url], options(&server)).unwrap_err();
    assert!(error.chain().contains("86400 s") && error.chain().contains("HF_TOKEN"), "{}", error.chain());
}

#[test]
fn readers_without_access_get_advice_and_no_error_shows_a_secret() {
    let (server, _folder, _) = served(&[vec![10]]);
    let tried = |url: &str, token: Option<&str>| {
        let storage_options = server.options(token);
        let error = open(&[url], OpenOptions { storage_options, ..OpenOptions::default() }).unwrap_err();
        assert!(!error.chain().contains("hf_unknown") && !error.chain().contains(TOKEN), "{}", error.chain());
        error
    };
    let url = "hf://datasets/o/n/data";
    let text = |error: Error| format!("{error:?}: {}", error.chain());
    assert!(matches!(tried("hf://datasets/o/nothing", Some(TOKEN)), Error::NotFound { .. }));
    let revision = tried("hf://datasets/o/n@nope/data", Some(TOKEN));
    assert!(matches!(&revision, Error::NotFound { what, .. } if what.contains("revision nope")), "{revision}");
    assert!(matches!(tried("hf://datasets/o/n/nowhere", Some(TOKEN)), Error::NotFound { .. }));
    assert!(matches!(tried("hf://datasets/o/n/data/x.parquet", Some(TOKEN)), Error::NotFound { .. }));
    let written = open(&[url], options(&server)).unwrap();
    let written = runtime().block_on(written.write_index(None, &options(&server))).unwrap_err();
    assert!(matches!(written, Error::Unsupported { .. }), "{}", text(written));
    server.close("GatedRepo");
    let gated = tried(url, None);
    assert!(matches!(gated, Error::Store { .. }) && gated.chain().contains("accept its terms at"), "{}", text(gated));
    let gated = tried(url, Some(" "));
    assert!(gated.chain().contains("hf auth login"), "{}", text(gated));
    server.close("RepoNotFound");
    let private = tried(url, Some(" "));
    assert!(matches!(&private, Error::NotFound { hint, .. } if hint.contains("private")), "{}", text(private));
    server.close("");
    let refused = tried(url, None);
    assert!(refused.chain().contains("refuses the token"), "{}", text(refused));
    assert_eq!(ids(&open(&[url], options(&server)).unwrap()).len(), 10, "the one that is known may read");
}

#[test]
fn the_hub_never_sends_the_token_elsewhere() {
    let (server, _folder, _) = served(&[vec![10]]);
    let elsewhere = HubServer::start();
    let options_elsewhere = elsewhere.options(None);
    let address = options_elsewhere.get("hf_endpoint").unwrap();
    server.fault("/tree/", "307 Temporary Redirect", &format!("location: {address}/api/x\r\n"), b"");
    let error = open(&["hf://datasets/o/n/data"], options(&server)).unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    let link = format!("link: <{address}/api/x>; rel=\"next\"\r\n");
    server.fault("/tree/", "200 OK", &link, b"[]");
    let error = open(&["hf://datasets/o/n/data"], options(&server)).unwrap_err();
    assert!(error.chain().contains("elsewhere"), "{}", error.chain());
    assert!(elsewhere.requests().is_empty());
}
