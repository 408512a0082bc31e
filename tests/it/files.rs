//! Files of stores and of this machine: the bytes of the origin in any order, one request for all processes, replaced and damaged ones.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowstring::Error;
use bowstring::store::cache::CachePlace;
use bowstring::store::{Entry, File, FileOptions, FileSystem, Mount, MountSource, Mounts};

use crate::child;
use crate::dataset::{Marks, PINNED, Server};
use crate::support::{self, Random};

/// Bytes of the file: several slices, and a part of one.
const SIZE: usize = 13 * (1 << 20) + 4321;

fn content() -> Vec<u8> {
    (0..SIZE as u64).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

/// Options over `server`, with a cache at `place`.
fn options(server: &Server, place: Option<&str>) -> FileOptions {
    let cache =
        place.map(|place| CachePlace { place: place.to_owned(), bytes: Some(1 << 30), ..CachePlace::default() });
    FileOptions { storage_options: server.storage_options(), cache, ..FileOptions::default() }
}

fn system(server: &Server, place: Option<&str>) -> FileSystem {
    FileSystem::new(options(server, place)).unwrap()
}

/// Bytes of objects that were requested since the last call.
fn asked(server: &Server) -> u64 {
    let bytes = |request: &String| {
        let (start, end) = request.strip_prefix("GET ")?.rsplit_once("bytes=")?.1.split_once('-')?;
        Some(end.parse::<u64>().ok()? + 1 - start.parse::<u64>().ok()?)
    };
    server.requests().iter().filter_map(bytes).sum()
}

fn all(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Reads at random positions, in all kinds of lengths, and compares with `content`.
fn at_random(file: &mut File, content: &[u8], random: &mut Random, reads: usize) {
    let mut position = file.stream_position().unwrap() as usize;
    for _ in 0..reads {
        if random.chance(60) {
            position = match random.below(4) {
                0 => random.index(content.len() + 100),
                1 => position.saturating_sub(random.index(100_000)),
                2 => position + random.index(100_000),
                _ => content.len().saturating_sub(random.index(70_000)),
            };
            let to = match random.below(3) {
                0 => SeekFrom::Start(position as u64),
                1 => SeekFrom::End(position as i64 - content.len() as i64),
                _ => SeekFrom::Current(position as i64 - file.stream_position().unwrap() as i64),
            };
            assert_eq!(file.seek(to).unwrap(), position as u64);
        }
        let length = random.pick(&[0, 1, 30, 4096, 65_536, 1 << 20, 6 << 20]);
        let (mut bytes, expected) = (vec![0; length], content.get(position..).unwrap_or_default());
        let expected = &expected[..length.min(expected.len())];
        let mut read = 0;
        while read < expected.len() {
            let more = file.read(&mut bytes[read..]).unwrap();
            assert!(more > 0, "the end comes too early, at {}", position + read);
            read += more;
        }
        assert!(bytes[..read] == *expected, "{length} bytes at {position}");
        position += read;
        assert_eq!(file.stream_position().unwrap(), position as u64);
    }
}

#[test]
fn a_directory_that_an_empty_object_marks_is_found_as_one_and_an_empty_file_as_a_file() {
    let server = Server::start();
    for name in ["bucket/t/", "bucket/t/empty/", "bucket/t/full/", "bucket/t/none", "bucket/t/full/none"] {
        server.put(name, Vec::new(), PINNED);
    }
    let files = system(&server, None);
    let lists = |server: &Server| server.requests().iter().filter(|request| request.contains("list-type=2")).count();
    let found = files.find("s3://bucket/t").unwrap();
    let (directories, found): (Vec<_>, Vec<_>) = found.into_iter().partition(Entry::is_directory);
    let urls = |entries: &[Entry]| entries.iter().map(|entry| entry.url.clone()).collect::<Vec<_>>();
    assert_eq!(urls(&directories), ["s3://bucket/t/empty"]);
    assert_eq!(urls(&found), ["s3://bucket/t/full/none", "s3://bucket/t/none"]);
    assert_eq!(lists(&server), 3, "once, and once for each directory that has something empty in it");
    server.remove("bucket/t/empty/");
    for name in ["bucket/t/none", "bucket/t/full/none"] {
        server.put(name, b"x".to_vec(), PINNED);
    }
    assert_eq!(urls(&files.find("s3://bucket/t").unwrap()), urls(&found));
    assert_eq!(lists(&server), 1);
}

#[test]
fn bytes_are_those_of_the_origin_whatever_the_order_of_reads() {
    let seed = support::variable("FILES_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("FILES_SEED={seed} cargo test --test it files::bytes_are");
    let (root, content, server) = (tempfile::tempdir().unwrap(), content(), Server::start());
    let (local, cache) = (root.path().join("x.bin"), root.path().join("cache"));
    fs::write(&local, &content).unwrap();
    server.put("bucket/x.bin", content.clone(), PINNED);
    server.put("dated/x.bin", content.clone(), Marks { etag: None, modified: Some(1) });
    server.put("bucket/empty", Vec::new(), PINNED);
    let cache = cache.to_str().unwrap();
    let http = server.url("dated/x.bin");
    let local = local.to_str().unwrap();
    let reads = if support::soak() { 2000 } else { 150 };
    for place in [None, Some(cache), Some(cache)] {
        let files = system(&server, place);
        for url in ["s3://bucket/x.bin", &http, local, &format!("file://{local}")] {
            let mut file = files.open(url).unwrap();
            assert_eq!((file.size(), file.position()), (SIZE as u64, 0));
            at_random(&mut file, &content, &mut Random(seed), reads);
            assert!(all(&mut file) == content, "{url}");
            if place.is_none() && url != local && !url.starts_with("file:") {
                assert!(matches!(file.local_path(), Err(Error::Config { option: "cache", .. })), "{url}");
            } else {
                let path = file.local_path().unwrap().to_owned();
                assert!(fs::read(&path).unwrap() == content && path.is_absolute(), "{url}");
                at_random(&mut file, &content, &mut Random(seed + 1), reads);
            }
        }
        let mut empty = files.open("s3://bucket/empty").unwrap();
        assert_eq!((empty.size(), all(&mut empty)), (0, Vec::new()));
        if place.is_some() {
            assert!(fs::read(empty.local_path().unwrap()).unwrap().is_empty());
            assert_eq!((files.stats().damaged, files.stats().failures), (0, 0));
        }
    }
}

#[test]
fn reading_in_order_costs_each_byte_once_and_few_requests() {
    let (server, content) = (Server::start(), content());
    server.put("bucket/x.bin", content.clone(), PINNED);
    let files = system(&server, None);
    let mut file = files.open("s3://bucket/x.bin").unwrap();
    server.requests();
    let mut bytes = vec![0; SIZE];
    for part in bytes.chunks_mut(8192) {
        file.read_exact(part).unwrap();
    }
    assert!(bytes == content);
    let requests = server.requests();
    assert!((4..40).contains(&requests.len()), "{requests:?}");
    // One jump costs one small request.
    let mut jumping = files.open("s3://bucket/x.bin").unwrap();
    jumping.seek(SeekFrom::Start(5 << 20)).unwrap();
    jumping.read_exact(&mut [0; 30]).unwrap();
    let jumped = asked(&server);
    assert!(jumped <= 128 << 10, "{jumped}");
}

#[test]
fn a_replaced_file_is_an_error_and_never_a_mixture() {
    let (root, content, server) = (tempfile::tempdir().unwrap(), content(), Server::start());
    let cache = root.path().join("cache");
    let other: Vec<u8> = content.iter().map(|byte| byte ^ 0x55).collect();
    let changed = |error: Error| assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
    for place in [None, cache.to_str()] {
        server.put("bucket/x.bin", content.clone(), PINNED);
        let files = system(&server, place);
        let mut file = files.open("s3://bucket/x.bin").unwrap();
        file.read_exact(&mut [0; 100]).unwrap();
        server.put("bucket/x.bin", other.clone(), Marks { etag: Some("\"b\""), modified: None });
        file.set_position(9 << 20);
        changed(file.next_within(100, Duration::from_secs(60)).unwrap_err());
        if place.is_some() {
            changed(file.local_path().map(Path::to_owned).unwrap_err());
        }
        // Opened anew it is the new one, and so is its copy.
        let mut anew = files.open("s3://bucket/x.bin").unwrap();
        assert!(all(&mut anew) == other);
        if place.is_some() {
            assert!(fs::read(anew.local_path().unwrap()).unwrap() == other);
        }
        server.remove("bucket/x.bin");
        let mut gone = file;
        gone.set_position(5 << 20);
        changed(gone.next_within(100, Duration::from_secs(60)).unwrap_err());
        assert!(matches!(files.open("s3://bucket/x.bin"), Err(Error::NotFound { .. })));
    }
    let path = root.path().join("local.bin");
    fs::write(&path, &content).unwrap();
    let files = system(&server, None);
    let mut file = files.open(path.to_str().unwrap()).unwrap();
    fs::write(&path, &other[..1000]).unwrap();
    changed(file.next_within(100, Duration::from_secs(60)).unwrap_err());
    assert!(matches!(files.open(root.path().to_str().unwrap()), Err(Error::Config { option: "urls", .. })));
}

#[test]
fn objects_without_a_version_are_read_and_not_copied() {
    let (root, server) = (tempfile::tempdir().unwrap(), Server::start());
    server.put("web/x.bin", content(), Marks { etag: None, modified: None });
    let files = system(&server, root.path().join("cache").to_str());
    let mut file = files.open(&server.url("web/x.bin")).unwrap();
    assert!(all(&mut file) == content());
    assert!(matches!(file.local_path(), Err(Error::Unsupported { .. })));
    assert!(matches!(files.list(&server.url("web")), Err(Error::Unsupported { .. })));
    let memory = FileSystem::new(FileOptions {
        cache: Some(CachePlace { place: "memory".to_owned(), bytes: Some(64 << 20), ..CachePlace::default() }),
        ..options(&server, None)
    });
    server.put("bucket/x.bin", content(), PINNED);
    let mut file = memory.unwrap().open("s3://bucket/x.bin").unwrap();
    assert!(all(&mut file) == content());
    assert!(matches!(file.local_path(), Err(Error::Config { option: "cache", .. })));
}

#[test]
fn damaged_slices_are_read_again_and_counted() {
    let (root, content, server) = (tempfile::tempdir().unwrap(), content(), Server::start());
    server.put("bucket/x.bin", content.clone(), PINNED);
    let cache = root.path().join("cache");
    let files = system(&server, cache.to_str());
    assert!(all(&mut files.open("s3://bucket/x.bin").unwrap()) == content);
    let mut blocks: Vec<PathBuf> = Vec::new();
    for directory in fs::read_dir(cache.join("blocks")).unwrap() {
        blocks.extend(fs::read_dir(directory.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
    }
    assert_eq!(blocks.len(), 4);
    let mut bytes = fs::read(&blocks[0]).unwrap();
    bytes[70_000] ^= 1;
    fs::write(&blocks[0], bytes).unwrap();
    server.requests();
    let again = system(&server, cache.to_str());
    assert!(all(&mut again.open("s3://bucket/x.bin").unwrap()) == content);
    assert_eq!((again.stats().damaged, again.stats().misses), (1, 1), "{:?}", again.stats());
    assert!(asked(&server) <= 4 << 20);
}

#[test]
fn a_store_that_never_answers_is_an_error_after_the_timeout() {
    // Connections are taken up by the operating system, and nobody reads from them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(200);
    let files = FileSystem::new(FileOptions { timeout, ..FileOptions::default() }).unwrap();
    let url = format!("http://{}/model.pt", silent.local_addr().unwrap());
    let read = files.read(&[(url.clone(), Vec::from([0..4, 8..9]))]).remove(0);
    for error in [files.open(&url).unwrap_err(), files.entry(&url).unwrap_err(), read.unwrap_err()] {
        assert!(matches!(&error, Error::Timeout { culprit, .. } if *culprit == url), "{error}");
    }
}

#[test]
fn directories_are_listed_by_names_that_lead_back() {
    let (root, server) = (tempfile::tempdir().unwrap(), Server::start());
    server.put("bucket/d/a.bin", vec![1; 10], PINNED);
    server.put("bucket/d/b/c.bin", vec![2; 20], PINNED);
    server.put("bucket/d/b/e-f.bin", vec![3; 30], PINNED);
    fs::create_dir_all(root.path().join("d/b")).unwrap();
    for (name, size) in [("d/a.bin", 10), ("d/b/c.bin", 20), ("d/b/e f.bin", 30)] {
        fs::write(root.path().join(name), vec![1; size]).unwrap();
    }
    let files = system(&server, None);
    for base in ["s3://bucket", root.path().to_str().unwrap()] {
        let names = |url: &str| -> Vec<(String, Option<u64>)> {
            let found = files.list(&format!("{base}/{url}")).unwrap();
            let name = |found: &str| found.strip_prefix(base).unwrap().trim_start_matches('/').to_owned();
            found.iter().map(|entry| (name(&entry.url), entry.stamp.as_ref().map(|stamp| stamp.size))).collect()
        };
        assert_eq!(names("d"), [("d/a.bin".to_owned(), Some(10)), ("d/b".to_owned(), None)], "{base}");
        assert_eq!(names("d/b/").iter().map(|(_, size)| *size).collect::<Vec<_>>(), [Some(20), Some(30)]);
        assert_eq!(names("d/a.bin"), [("d/a.bin".to_owned(), Some(10))], "a file is itself");
        for entry in files.list(&format!("{base}/d/b")).unwrap() {
            let bytes = all(&mut files.open(&entry.url).unwrap());
            assert_eq!(Some(bytes.len() as u64), entry.stamp.map(|stamp| stamp.size), "{}", entry.url);
        }
        assert!(files.entry(&format!("{base}/d")).unwrap().is_directory());
        assert!(!files.entry(&format!("{base}/d/a.bin")).unwrap().is_directory());
        for missing in ["nothing", "d/nothing"] {
            let url = format!("{base}/{missing}");
            assert!(matches!(files.entry(&url), Err(Error::NotFound { .. })), "{url}");
            assert!(matches!(files.list(&url), Err(Error::NotFound { .. })), "{url}");
        }
        let wanted = [
            (format!("{base}/d/a.bin"), vec![0..4, 8..100, 50..60]),
            (format!("{base}/d/nothing"), std::iter::once(0..4).collect()),
            (format!("{base}/d/b/c.bin"), std::iter::once(0..u64::MAX).collect()),
        ];
        let read = files.read(&wanted);
        let lengths = |at: usize| read[at].as_ref().unwrap().iter().map(bytes::Bytes::len).collect::<Vec<_>>();
        assert_eq!((lengths(0), lengths(2)), (vec![4, 2, 0], vec![20]));
        assert!(matches!(read[1], Err(Error::NotFound { .. })));
    }
    assert_eq!(files.find("s3://bucket/d").unwrap().len(), 3);
}

#[test]
fn a_directory_that_is_only_marked_is_there_and_empty() {
    let server = Server::start();
    server.put("bucket/data/", Vec::new(), PINNED);
    server.put("bucket/data/sub/", Vec::new(), PINNED);
    let origin = "m.toml".into();
    let mount = Mount::new("m", "s3://bucket/data/sub", server.storage_options(), &origin).unwrap();
    let mounts = MountSource::Given(Mounts::new(vec![mount], &origin).unwrap().into());
    // A mount takes no storage options of the caller.
    let storage_options = Default::default();
    let mounted =
        FileSystem::new(FileOptions { mounts: Some(mounts), storage_options, ..options(&server, None) }).unwrap();
    let files = FileSystem::new(options(&server, None)).unwrap();
    let (bucket, mount) = (["s3://bucket/data/sub", "s3://bucket/data/sub/"], ["bow://m", "bow://m/"]);
    for (files, url) in bucket.map(|url| (&files, url)).into_iter().chain(mount.map(|url| (&mounted, url))) {
        assert!(files.entry(url).unwrap().is_directory(), "{url}");
        assert!(files.list(url).unwrap().is_empty() && files.find(url).unwrap().is_empty(), "{url}");
    }
    let names: Vec<String> = files.list("s3://bucket/data").unwrap().into_iter().map(|entry| entry.url).collect();
    assert_eq!(names, ["s3://bucket/data/sub"]);
    assert!(matches!(mounted.entry("bow://m/nothing"), Err(Error::NotFound { .. })));
    server.remove("bucket/data/sub/");
    assert!(matches!(mounted.entry("bow://m"), Err(Error::NotFound { .. })));
}

#[test]
fn many_processes_cost_the_origin_one_read() {
    let (root, content, server) = (tempfile::tempdir().unwrap(), content(), Server::start());
    server.put("bucket/x.bin", content, PINNED);
    let processes = if support::soak() { 24 } else { 4 };
    for way in ["copy", "read"] {
        let cache = root.path().join(way);
        let variables = [
            ("FILES_WAY", way.to_owned()),
            ("FILES_CACHE", cache.to_str().unwrap().to_owned()),
            ("FILES_STORAGE", serde_json::to_string(&server.storage_options()).unwrap()),
        ];
        server.requests();
        let started: Vec<_> = (0..processes).map(|_| child::start("files::reader", &variables)).collect();
        for process in started {
            let done = process.wait_with_output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        assert_eq!(asked(&server), SIZE as u64, "by {way}");
    }
}

/// Role: reads the file, or the copy of it.
pub(crate) fn reader() {
    let set = |name: &str| support::variable(name).unwrap();
    let cache = Some(CachePlace { place: set("FILES_CACHE"), bytes: Some(1 << 30), ..CachePlace::default() });
    let storage_options = serde_json::from_str(&set("FILES_STORAGE")).unwrap();
    let files = FileSystem::new(FileOptions { storage_options, cache, ..FileOptions::default() }).unwrap();
    let mut file = files.open("s3://bucket/x.bin").unwrap();
    let bytes = if set("FILES_WAY") == "copy" { fs::read(file.local_path().unwrap()).unwrap() } else { all(&mut file) };
    assert!(bytes == content());
    assert_eq!((files.stats().damaged, files.stats().failures), (0, 0), "{:?}", files.stats());
}
