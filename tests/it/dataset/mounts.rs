//! Mounts: names that stay while files move between stores, and credentials that stay with their store.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::plan::State;
use bowstring::store::cache::CachePlace;
use bowstring::store::{FileOptions, FileSystem, MountSource, Mounts, Upload};
use bowstring::{Error, Loader, LoaderOptions, Result};
use std::io::{Read, Write};

use super::answering::answer;
use super::{Server, open};
use crate::support::{self, drain, ids};

/// A directory with data of several files, and a file of mounts.
struct Rig {
    root: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let rig = Self { root: tempfile::tempdir().unwrap() };
        for (name, files) in [("a", vec![vec![40, 33], vec![70]]), ("b", vec![vec![21], vec![50, 50, 3]])] {
            fs::create_dir_all(rig.data(name)).unwrap();
            support::write(&rig.data(name), &files, 1);
        }
        rig
    }

    fn data(&self, name: &str) -> PathBuf {
        self.root.path().join("data").join(name)
    }

    fn file(&self) -> String {
        self.root.path().join("mounts.toml").to_str().unwrap().to_owned()
    }

    /// Mounts these, instead of what was mounted before.
    fn mount(&self, mounts: &[(&str, String)]) -> MountSource {
        let text: String = mounts.iter().map(|(name, rest)| format!("[mounts.{name:?}]\n{rest}\n")).collect();
        fs::write(self.file(), text).unwrap();
        MountSource::File(self.file())
    }

    fn open(&self, urls: &[&str]) -> Result<Dataset> {
        open(urls, OpenOptions { mounts: Some(MountSource::File(self.file())), ..OpenOptions::default() })
    }

    fn loader(&self, urls: &[&str]) -> Loader {
        Loader::open(LoaderOptions {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            mounts: Some(MountSource::File(self.file())),
            seed: 3,
            ..support::options(Path::new(""), 16, 0, 1)
        })
        .unwrap()
    }
}

fn here(path: &Path) -> String {
    format!("url = {:?}", path.to_str().unwrap())
}

/// A mount of `path` of the server, whose endpoint is reached with `key`.
fn there(server: &Server, path: &str, key: &str) -> String {
    let mut options = server.storage_options();
    options.insert("aws_access_key_id".to_owned(), key.to_owned());
    let options: Vec<String> = options.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
    format!("url = \"s3://{path}\"\nstorage_options = {{ {} }}", options.join(", "))
}

fn names(dataset: &Dataset) -> Vec<String> {
    dataset.manifest().files.iter().map(|file| file.path.to_string()).collect()
}

/// Those who signed requests, each once.
fn signers(server: &Server) -> Vec<String> {
    let mut signers = server.signers();
    signers.sort();
    signers.dedup();
    signers
}

#[test]
fn an_order_stays_and_a_state_goes_on_while_files_move_between_stores() {
    let (rig, server) = (Rig::new(), Server::start());
    server.upload(&rig.data("a"), "bucket/moved/a");
    server.upload(&rig.data("b"), "other/b");
    let both = rig.root.path().join("data");
    let stages = [
        vec![("data/train/a", here(&rig.data("a"))), ("data/train/b", here(&rig.data("b")))],
        vec![("data/train/a", there(&server, "bucket/moved/a", "id")), ("data/train/b", here(&rig.data("b")))],
        vec![
            ("data/train/a", there(&server, "bucket/moved/a", "id")),
            ("data/train/b", there(&server, "other/b", "id")),
        ],
        // Of one mount, or above it, it is the same dataset as well.
        vec![("data/train", here(&both))],
    ];
    let spellings: [&[&str]; 4] = [
        &["bow://data/train"],
        &["bow://data/train/a", "bow://data/train/b"],
        &["bow://data/train/*/*.parquet"],
        &["bow://data/train/a/part-000.parquet", "bow://data/train/a/part-001.parquet", "bow://data/train/b"],
    ];
    let plain = open(&[both.to_str().unwrap()], OpenOptions::default()).unwrap();
    assert_eq!(names(&plain), ["a/part-000.parquet", "a/part-001.parquet", "b/part-000.parquet", "b/part-001.parquet"]);
    let mut state: Option<(State, Vec<Vec<i64>>)> = None;
    for mounts in &stages {
        rig.mount(mounts);
        for urls in spellings {
            let dataset = rig.open(urls).unwrap();
            assert_eq!(names(&dataset), names(&plain), "{urls:?} {mounts:?}");
            assert_eq!(dataset.manifest().fingerprint(), plain.manifest().fingerprint(), "{urls:?} {mounts:?}");
        }
        let mut loader = rig.loader(spellings[0]);
        let Some((state, rest)) = &state else {
            for _ in 0..5 {
                loader.next().unwrap().unwrap();
            }
            state = Some((loader.state(), drain(&mut loader)));
            continue;
        };
        loader.load_state(state).unwrap();
        assert_eq!(&drain(&mut loader), rest, "{mounts:?}");
    }
}

#[test]
fn requests_of_a_mount_are_signed_with_its_own_keys_alone() {
    let (rig, one, two) = (Rig::new(), Server::start(), Server::start());
    one.upload(&rig.data("a"), "bucket/a");
    one.upload(&rig.data("b"), "bucket/b");
    two.upload(&rig.data("b"), "bucket/b");
    // One bucket with two keys, and a bucket of the same name elsewhere.
    rig.mount(&[
        ("m/a", there(&one, "bucket/a", "anna")),
        ("m/b", there(&one, "bucket/b", "bert")),
        ("m/c", there(&two, "bucket/b", "carl")),
    ]);
    let region = |key: &str| vec![format!("{key} eu-west-1")];
    for (url, key, server, other) in
        [("bow://m/a", "anna", &one, &two), ("bow://m/b", "bert", &one, &two), ("bow://m/c", "carl", &two, &one)]
    {
        drain(&mut rig.loader(&[url]));
        assert_eq!((signers(server), signers(other)), (region(key), Vec::new()), "{url}");
    }
    let all = rig.open(&["bow://m"]).unwrap();
    assert_eq!(all.manifest().files.len(), 6);
    drain(&mut rig.loader(&["bow://m"]));
    assert_eq!(signers(&two), region("carl"));
    for request in [one.requests(), two.requests()].concat() {
        assert!(request.contains("/bucket"), "{request}");
    }
    // Each request by the key of the mount that its object is below.
    one.let_in("anna", "403 Forbidden", "AccessDenied");
    assert_eq!(rig.open(&["bow://m/a"]).unwrap().manifest().files.len(), 2);
    let error = rig.open(&["bow://m/a", "bow://m/b"]).unwrap_err();
    assert!(matches!(error, Error::Store { .. }) && error.to_string().contains("s3://bucket/b"), "{}", error.chain());
    assert!(!error.chain().contains("secret"), "{}", error.chain());
}

#[test]
fn a_redirect_carries_no_credentials_elsewhere() {
    let (rig, two) = (Rig::new(), Server::start());
    two.upload(&rig.data("a"), "bucket/a");
    let to = two.url("");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let one = answer(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        let location = format!("location: {}{}\r\n", to.trim_end_matches('/'), request.path);
        Some(("307 Temporary Redirect", location, Vec::new()))
    });
    let mount = there(&two, "bucket/a", "anna").replace(two.url("").trim_end_matches('/'), &format!("http://{one}"));
    rig.mount(&[("m", mount)]);
    let opened = rig.open(&["bow://m"]);
    assert!(asked.load(Ordering::SeqCst) > 0);
    assert!(signers(&two).iter().all(|signer| signer == "nobody"), "{:?}", opened.err());
}

#[test]
fn each_mount_has_blocks_of_its_own_in_a_cache() {
    let (rig, server) = (Rig::new(), Server::start());
    server.upload(&rig.data("a"), "bucket/a");
    let cache = rig.root.path().join("cache").to_str().unwrap().to_owned();
    let read = |mount: &str, key: &str| {
        let mounts = rig.mount(&[(mount, there(&server, "bucket/a", key))]);
        let place = CachePlace { place: cache.clone(), bytes: Some(64 << 20), ..CachePlace::default() };
        let files = FileSystem::new(FileOptions { mounts: Some(mounts), cache: Some(place), ..FileOptions::default() });
        let mut bytes = Vec::new();
        files.unwrap().open(&format!("bow://{mount}/part-000.parquet")).unwrap().read_to_end(&mut bytes).unwrap();
        let ranges = server.requests().iter().filter(|request| request.contains("bytes=")).count();
        (bytes, ranges > 0)
    };
    let whole = fs::read(rig.data("a").join("part-000.parquet")).unwrap();
    assert_eq!(read("one", "anna"), (whole.clone(), true));
    assert_eq!(read("one", "anna"), (whole.clone(), false), "the second read is of the cache");
    assert_eq!(read("two", "bert"), (whole, true), "what another mount fetched is not given");
}

#[test]
fn a_call_gives_no_options_to_a_mount() {
    let (rig, server) = (Rig::new(), Server::start());
    server.upload(&rig.data("a"), "bucket/a");
    let mounts = Some(rig.mount(&[("m", there(&server, "bucket/a", "anna"))]));
    let storage_options = server.storage_options();
    let error = open(&["bow://m"], OpenOptions { storage_options, mounts, ..OpenOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::Config { option: "storage_options", .. }), "{error}");
    assert!(error.to_string().contains("bow://m is a mount") && !error.to_string().contains("secret"), "{error}");
    assert!(signers(&server).is_empty());
}

#[test]
fn names_that_lead_nowhere_are_told() {
    let rig = Rig::new();
    let link = rig.root.path().join("link");
    std::os::unix::fs::symlink(rig.data("a"), &link).unwrap();
    rig.mount(&[("m/a", here(&rig.data("a"))), ("m/link", here(&link)), ("n", here(&rig.data("b")))]);
    assert_eq!(names(&rig.open(&["bow://m/link"]).unwrap()), ["part-000.parquet", "part-001.parquet"]);
    assert_eq!(names(&rig.open(&["bow://m/l*"]).unwrap()), ["link/part-000.parquet", "link/part-001.parquet"]);
    for (urls, words) in [
        (["bow://mm"], "mounts.toml has bow://m/a, bow://m/link, bow://n"),
        (["bow://n/missing.parquet"], "missing.parquet not found"),
        (["bow://n/../a"], ". or .."),
        (["bow://x*"], "Parquet files at bow://x*/ not found"),
    ] {
        let error = rig.open(&urls).unwrap_err();
        assert!(error.to_string().contains(words), "{urls:?}: {error}");
    }
    let twice = rig.open(&["bow://m/a", "bow://m/a/*.parquet"]).unwrap_err();
    assert!(twice.to_string().contains("is found twice"), "{twice}");
    let twice = rig.open(&["bow://m/a", rig.data("a").to_str().unwrap()]).unwrap_err();
    assert!(twice.to_string().contains("is found twice"), "{twice}");
    // Among addresses of stores, files are named by their addresses.
    let mixed = rig.open(&["bow://n/part-000.parquet", rig.data("a").join("part-000.parquet").to_str().unwrap()]);
    assert_eq!(names(&mixed.unwrap())[1], "bow://n/part-000.parquet");
}

#[test]
fn a_table_is_read_within_its_mount_and_not_beyond() {
    let rig = Rig::new();
    let table = rig.data("table/_delta_log");
    fs::create_dir_all(&table).unwrap();
    rig.mount(&[("m/a", here(&rig.data("a"))), ("m/table", here(&rig.data("table")))]);
    fs::write(table.join("00000000000000000000.json"), "{}").unwrap();
    let error = rig.open(&["bow://m"]).unwrap_err();
    assert!(error.to_string().contains("stands among other addresses"), "{error}");
}

#[test]
fn files_are_listed_read_and_saved_below_mounts() {
    let (rig, server) = (Rig::new(), Server::start());
    server.upload(&rig.data("a"), "bucket/deep/a");
    let mounts = rig.mount(&[("x/here", here(&rig.data("b"))), ("x/there", there(&server, "bucket/deep", "anna"))]);
    let files = FileSystem::new(FileOptions { mounts: Some(mounts), ..FileOptions::default() }).unwrap();
    let listed = |url: &str| files.list(url).unwrap().into_iter().map(|entry| entry.url).collect::<Vec<_>>();
    assert_eq!(listed("bow://"), ["bow://x"]);
    assert_eq!(listed("bow://x/"), ["bow://x/here", "bow://x/there"]);
    assert_eq!(listed("bow://x/here"), ["bow://x/here/part-000.parquet", "bow://x/here/part-001.parquet"]);
    assert_eq!(listed("bow://x/there"), ["bow://x/there/a"]);
    let found: Vec<String> = files.find("bow://x").unwrap().into_iter().map(|entry| entry.url).collect();
    assert_eq!(found.len(), 4, "{found:?}");
    // Each address that is given is one to open.
    for url in &found {
        let (mut file, mut magic) = (files.open(url).unwrap(), [0; 4]);
        file.read_exact(&mut magic).unwrap();
        assert_eq!(&magic, b"PAR1");
        assert_eq!(files.entry(url).unwrap().url, *url);
    }
    for directory in ["bow://", "bow://x"] {
        let entry = files.entry(directory).unwrap();
        assert!(entry.is_directory() && entry.url == directory, "{entry:?}");
    }
    let mut writer = files.create("bow://x/here/new", Upload::Wait).unwrap();
    writer.write_all(b"saved").unwrap();
    writer.finish().unwrap();
    assert_eq!(fs::read(rig.data("b").join("new")).unwrap(), b"saved");
    files.rename("bow://x/here/new", "bow://x/here/newer").unwrap();
    assert!(matches!(files.rename("bow://x/here/newer", "bow://x/there/new"), Err(Error::Unsupported { .. })));
    assert!(matches!(files.open("bow://x"), Err(Error::Config { .. })));
    assert!(matches!(files.open("bow://y/z"), Err(Error::NotFound { .. })));
    // Mounted anew, the same names lead elsewhere at once.
    rig.mount(&[("x/here", here(&rig.data("a"))), ("x/there", here(&rig.data("b")))]);
    assert_eq!(listed("bow://x/there").len(), 3);
    server.requests();
    let ids: Vec<i64> = rig.loader(&["bow://x/here"]).next().unwrap().map(|batch| ids(&batch)).unwrap();
    assert!(ids.len() == 16 && server.requests().is_empty());
}

#[test]
fn mounts_may_be_given_without_a_file() {
    let rig = Rig::new();
    let text = format!("[mounts.m]\n{}", here(&rig.data("a")));
    let given = MountSource::Given(Arc::new(Mounts::from_toml(&text, "here").unwrap()));
    let dataset = open(&["bow://m"], OpenOptions { mounts: Some(given), ..OpenOptions::default() }).unwrap();
    assert_eq!(dataset.manifest().rows(), 143);
}
