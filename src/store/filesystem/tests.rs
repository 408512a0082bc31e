//! Saving over a store in memory: what readers find, what another process takes up, what a failure leaves.

use std::io::{Read, Write};
use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::super::cache::{self, CachePlace};
use super::super::mounts::MountSource;
use super::super::multipart::PartStore;
use super::super::place::Place;
use super::*;
use crate::error::Error;

mod changes;
/// A store that fails as long as it is told to.
mod failing;

use failing::Failing;

struct Rig {
    store: Arc<Failing>,
    root: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self { store: Arc::new(Failing::new(Arc::new(InMemory::new()))), root: tempfile::tempdir().unwrap() }
    }

    fn cache(&self) -> std::path::PathBuf {
        self.root.path().join("cache")
    }

    /// That `x` is "newer" in the store and `older` in the cache, and a flush says so.
    fn assert_both_are_kept(&self, files: &FileSystem, older: &[u8]) {
        let error = files.flush().unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(self.stored("x").as_deref(), Some(&b"newer"[..]));
        assert!(read(files, "s3://bucket/x").unwrap() == older, "it is not lost");
    }

    /// As another process would open it, with a cache or without.
    fn files(&self, cached: bool) -> FileSystem {
        let place = CachePlace {
            place: self.cache().to_str().unwrap().to_owned(),
            bytes: Some(1 << 30),
            ..CachePlace::default()
        };
        let options = FileOptions { cache: cached.then_some(place), ..FileOptions::default() };
        let files = FileSystem::reaching(options, |origins| {
            let place = Place {
                numbered: Some(PartStore::new(Arc::clone(&self.store) as _)),
                ..Place::new(Arc::clone(&self.store) as Arc<dyn ObjectStore>, "s3://bucket/")
            };
            origins.know("s3://bucket", place);
        });
        files.unwrap()
    }

    fn stored(&self, path: &str) -> Option<Vec<u8>> {
        let store = Arc::clone(&self.store.inner);
        let path = Path::from(path);
        let read = async move { store.get(&path).await.ok()?.bytes().await.ok().map(|bytes| bytes.to_vec()) };
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read)
    }

    /// Saves what then waits for its upload, which has failed once.
    fn save_waiting(&self, files: &FileSystem, url: &str, content: &[u8]) {
        self.store.fail(true);
        save(files, url, content, Upload::Background).unwrap();
        wait_until(|| {
            let saves = cache::status(&self.cache()).unwrap().saves;
            saves.iter().any(|save| save.url == url && save.failure.is_some())
        });
        self.store.fail(false);
    }

    /// Saves as a process that is killed before it has ended what was saved before; the store has it if it `arrived`.
    fn save_killed(&self, files: &FileSystem, url: &str, content: &[u8], arrived: bool) {
        self.store.lose(true);
        let sent = self.store.puts();
        let mut killed = files.create(url, Upload::Wait).unwrap();
        killed.write_all(content).unwrap();
        assert!(!killed.finish_within(Duration::from_millis(200)).unwrap());
        wait_until(|| self.store.puts() > sent);
        self.store.lose(false);
        if arrived {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(self.store.handle(sent)).unwrap();
        }
        killed.abort();
    }
}

fn content(size: usize, salt: u8) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + (at >> 8) * 7) as u8 ^ salt).collect()
}

fn save(files: &FileSystem, url: &str, content: &[u8], upload: Upload) -> crate::error::Result<()> {
    let mut file = files.create(url, upload)?;
    for part in content.chunks(1_000_000) {
        file.write_all(part).unwrap();
    }
    file.finish()
}

fn read(files: &FileSystem, url: &str) -> crate::error::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files.open(url)?.read_to_end(&mut bytes).unwrap();
    Ok(bytes)
}

fn wait_until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn empty(directory: &FsPath) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

const SIZES: [usize; 4] = [0, 1000, 16 << 20, (16 << 20) + 1];

#[test]
fn what_is_saved_is_in_the_store_and_in_the_cache_when_its_end_returns() {
    for cached in [false, true] {
        let rig = Rig::new();
        let files = rig.files(cached);
        for size in SIZES {
            let bytes = content(size, 0);
            let mut file = files.create("s3://bucket/d/x", Upload::Wait).unwrap();
            for part in bytes.chunks(1_000_000) {
                file.write_all(part).unwrap();
            }
            assert_eq!((file.written(), file.url()), (size as u64, "s3://bucket/d/x"));
            assert_ne!(rig.stored("d/x").map(|found| found.len()), Some(size), "it is there too early");
            file.finish().unwrap();
            assert!(matches!(file.finish(), Err(Error::Closed { .. })));
            assert!(rig.stored("d/x").unwrap() == bytes);
            let reads = rig.store.reads();
            assert!(read(&files, "s3://bucket/d/x").unwrap() == bytes);
            if cached && size > 0 {
                assert_eq!(rig.store.reads(), reads, "it is read from the cache");
                assert!(empty(&rig.cache().join("saved")), "nothing is left over");
                let path = files.open("s3://bucket/d/x").unwrap().local_path().unwrap().to_owned();
                assert!(path.starts_with(std::fs::canonicalize(rig.cache()).unwrap().join("blocks")));
            }
        }
    }
}

#[test]
fn what_is_uploaded_later_is_found_at_once_and_is_uploaded() {
    let rig = Rig::new();
    let (files, other) = (rig.files(true), rig.files(true));
    rig.store.hold(true);
    for (salt, size) in SIZES.into_iter().enumerate() {
        let (url, bytes) = (format!("s3://bucket/d/{salt}"), content(size, salt as u8));
        save(&files, &url, &bytes, Upload::Background).unwrap();
        for files in [&files, &other] {
            assert!(read(files, &url).unwrap() == bytes);
            assert_eq!(files.entry(&url).unwrap().stamp.unwrap().size, size as u64);
            let mut file = files.open(&url).unwrap();
            assert!(std::fs::read(file.local_path().unwrap()).unwrap() == bytes);
            assert_eq!(
                files.read(&[(url.clone(), std::iter::once(0..4).collect())])[0].as_ref().unwrap()[0].len(),
                size.min(4)
            );
        }
        assert_eq!(rig.stored(&format!("d/{salt}")), None);
    }
    assert_eq!(other.list("s3://bucket/d").unwrap().len(), 4);
    assert_eq!(other.find("s3://bucket").unwrap().len(), 4);
    assert!(other.entry("s3://bucket/d").unwrap().is_directory());
    let unstored = cache::status(&rig.cache()).unwrap().saves;
    assert_eq!(unstored.iter().map(|save| save.bytes as usize).collect::<Vec<_>>(), SIZES);
    assert!(matches!(cache::remove(&rig.cache(), false), Err(Error::Config { option: "cache", .. })));
    rig.store.hold(false);
    other.flush().unwrap();
    for (salt, size) in SIZES.into_iter().enumerate() {
        assert!(rig.stored(&format!("d/{salt}")).unwrap() == content(size, salt as u8));
        let reads = rig.store.reads();
        assert!(read(&other, &format!("s3://bucket/d/{salt}")).unwrap() == content(size, salt as u8));
        assert_eq!(rig.store.reads(), reads, "it is in the cache");
    }
    assert!(cache::status(&rig.cache()).unwrap().saves.is_empty());
    drop((files, other));
    wait_until(|| cache::status(&rig.cache()).is_ok() && empty(&rig.cache().join("saved")));
}

#[test]
fn what_is_given_up_was_never_there() {
    for (cached, upload) in [(false, Upload::Wait), (true, Upload::Wait), (true, Upload::Background)] {
        let rig = Rig::new();
        let files = rig.files(cached);
        save(&files, "s3://bucket/x", b"old", Upload::Wait).unwrap();
        let mut file = files.create("s3://bucket/x", upload).unwrap();
        file.write_all(&content(33 << 20, 1)).unwrap();
        file.abort();
        assert!(matches!(file.finish(), Err(Error::Closed { .. })));
        drop(file);
        let mut dropped = files.create("s3://bucket/x", upload).unwrap();
        dropped.write_all(&content(17 << 20, 1)).unwrap();
        drop(dropped);
        assert_eq!(
            (rig.stored("x").unwrap(), read(&files, "s3://bucket/x").unwrap()),
            (b"old".to_vec(), b"old".to_vec())
        );
        assert_eq!(rig.store.unended(), 0, "the store has forgotten the parts");
        assert!(!cached || empty(&rig.cache().join("saved")));
    }
}

#[test]
fn a_failure_is_told_and_leaves_what_was_there() {
    for cached in [false, true] {
        let rig = Rig::new();
        let files = rig.files(cached);
        save(&files, "s3://bucket/x", b"old", Upload::Wait).unwrap();
        for size in [1000, 33 << 20] {
            rig.store.fail(true);
            let mut file = files.create("s3://bucket/x", Upload::Wait).unwrap();
            let written = file.write_all(&content(size, 1));
            let failed = written.is_err() || file.finish().is_err();
            assert!(failed);
            drop(file);
            rig.store.fail(false);
            assert_eq!(read(&files, "s3://bucket/x").unwrap(), b"old");
            save(&files, "s3://bucket/x", b"old", Upload::Wait).unwrap();
        }
    }
}

#[test]
fn a_failed_upload_is_in_the_journal_and_is_tried_again() {
    let rig = Rig::new();
    let files = rig.files(true);
    rig.store.fail(true);
    let bytes = content(17 << 20, 1);
    save(&files, "s3://bucket/x", &bytes, Upload::Background).unwrap();
    let told = || cache::status(&rig.cache()).unwrap().saves.pop().unwrap();
    wait_until(|| told().failure.is_some());
    assert!(told().failure.unwrap().contains("told to fail"), "{:?}", told());
    let error = files.flush().unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    assert!(read(&files, "s3://bucket/x").unwrap() == bytes, "readers of this machine have it");
    rig.store.fail(false);
    files.flush().unwrap();
    assert!(rig.stored("x").unwrap() == bytes);
    assert_eq!(rig.store.unended(), 0);
}

#[test]
fn another_process_goes_on_with_the_parts_that_the_store_has() {
    let rig = Rig::new();
    let bytes = content(70 << 20, 1);
    let first = rig.files(true);
    // Three parts of five.
    rig.store.take(3);
    save(&first, "s3://bucket/x", &bytes, Upload::Background).unwrap();
    wait_until(|| cache::status(&rig.cache()).unwrap().saves[0].failure.is_some());
    let sent = cache::status(&rig.cache()).unwrap().saves[0].sent;
    assert!((1..=3 * (16 << 20)).contains(&sent), "{sent}");
    drop(first);
    rig.store.take(usize::MAX);
    let before = rig.store.parts();
    let second = rig.files(true);
    second.flush().unwrap();
    assert!(rig.stored("x").unwrap() == bytes);
    assert_eq!(rig.store.parts() - before, 5 - (sent as usize).div_ceil(16 << 20));
    // A store that has forgotten the upload gets a new one.
    rig.store.take(3);
    save(&second, "s3://bucket/y", &bytes, Upload::Background).unwrap();
    wait_until(|| cache::status(&rig.cache()).unwrap().saves[0].failure.is_some());
    rig.store.forget();
    rig.store.take(usize::MAX);
    second.flush().unwrap();
    assert!(rig.stored("y").unwrap() == bytes);
}

#[test]
fn of_two_that_save_under_one_name_the_last_to_end_wins() {
    let rig = Rig::new();
    let (one, other) = (rig.files(true), rig.files(true));
    for (first, second) in [
        (Upload::Wait, Upload::Wait),
        (Upload::Background, Upload::Background),
        (Upload::Background, Upload::Wait),
        (Upload::Wait, Upload::Background),
    ] {
        let (mut early, mut late) =
            (one.create("s3://bucket/x", first).unwrap(), other.create("s3://bucket/x", second).unwrap());
        late.write_all(&content(20 << 20, 2)).unwrap();
        early.write_all(&content(21 << 20, 1)).unwrap();
        early.finish().unwrap();
        late.finish().unwrap();
        assert!(read(&one, "s3://bucket/x").unwrap() == content(20 << 20, 2), "{first:?}, {second:?}");
        one.flush().unwrap();
        other.flush().unwrap();
        assert!(rig.stored("x").unwrap() == content(20 << 20, 2), "{first:?}, {second:?}");
        // What was given up is ended by whoever had begun it. A file that was open at its end is removed by a later flush.
        wait_until(|| {
            one.flush().unwrap();
            rig.store.unended() == 0 && empty(&rig.cache().join("saved"))
        });
    }
}

#[test]
fn a_save_in_the_background_never_replaces_what_was_saved_elsewhere_later() {
    for (was, size) in [(false, 1000), (true, 1000), (true, (16 << 20) + 1)] {
        let rig = Rig::new();
        let files = rig.files(true);
        if was {
            save(&rig.files(false), "s3://bucket/x", b"before", Upload::Wait).unwrap();
        }
        let older = content(size, 1);
        rig.save_waiting(&files, "s3://bucket/x", &older);
        // Without the cache, or with another one.
        save(&rig.files(false), "s3://bucket/x", b"newer", Upload::Wait).unwrap();
        for _ in 0..2 {
            rig.assert_both_are_kept(&files, &older);
        }
        let error = files.rename("s3://bucket/x", "s3://bucket/y").unwrap_err();
        assert!(size > 1000 || matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(rig.stored("x").as_deref(), Some(&b"newer"[..]));
        save(&files, "s3://bucket/x", b"last", Upload::Wait).unwrap();
        files.flush().unwrap();
        assert_eq!(rig.stored("x").as_deref(), Some(&b"last"[..]));
    }
}

#[test]
fn a_save_in_the_background_does_not_replace_what_comes_while_its_request_is_on_its_way() {
    for was in [false, true] {
        let rig = Rig::new();
        let files = rig.files(true);
        if was {
            save(&rig.files(false), "s3://bucket/x", b"before", Upload::Wait).unwrap();
        }
        rig.store.hold(true);
        save(&files, "s3://bucket/x", b"older", Upload::Background).unwrap();
        wait_until(|| rig.store.held());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(rig.store.inner.put(&Path::from("x"), "newer".into())).unwrap();
        rig.store.hold(false);
        rig.assert_both_are_kept(&files, b"older");
    }
}

#[test]
fn a_save_in_the_background_is_not_dropped_for_one_that_failed() {
    let rig = Rig::new();
    let files = rig.files(true);
    rig.save_waiting(&files, "s3://bucket/x", b"older");
    rig.store.fail(true);
    save(&files, "s3://bucket/x", b"failed", Upload::Wait).unwrap_err();
    rig.store.fail(false);
    save(&rig.files(false), "s3://bucket/x", b"newer", Upload::Wait).unwrap();
    rig.assert_both_are_kept(&files, b"older");
}

#[test]
fn a_save_whose_answer_was_lost_is_uploaded_and_not_taken_for_another_one() {
    let rig = Rig::new();
    let files = rig.files(true);
    for size in SIZES {
        let bytes = content(size, 1);
        rig.save_waiting(&files, "s3://bucket/x", &bytes);
        // As if it had come to the store, and its process had not heard of that.
        save(&rig.files(false), "s3://bucket/x", &bytes, Upload::Wait).unwrap();
        files.flush().unwrap();
        assert!(rig.stored("x").unwrap() == bytes);
        assert!(cache::status(&rig.cache()).unwrap().saves.is_empty());
        // What was removed meanwhile is no later save.
        rig.save_waiting(&files, "s3://bucket/x", &bytes);
        rig.files(false).remove("s3://bucket/x").unwrap();
        files.flush().unwrap();
        assert!(rig.stored("x").unwrap() == bytes);
    }
}

#[test]
fn a_request_that_is_handled_late_replaces_nothing_that_came_after_it() {
    let rig = Rig::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for was in [None, Some("before")] {
        let url = format!("s3://bucket/{}", was.unwrap_or("nothing"));
        if let Some(was) = was {
            save(&rig.files(false), &url, was.as_bytes(), Upload::Wait).unwrap();
        }
        rig.store.lose(true);
        let sent = rig.store.puts();
        let files = rig.files(false);
        let mut killed = files.create(&url, Upload::Wait).unwrap();
        killed.write_all(b"killed").unwrap();
        assert!(!killed.finish_within(Duration::from_millis(200)).unwrap());
        wait_until(|| rig.store.puts() > sent);
        rig.store.lose(false);
        save(&rig.files(false), &url, b"later", Upload::Wait).unwrap();
        let late = runtime.block_on(rig.store.handle(sent)).unwrap_err();
        let path = url.strip_prefix("s3://bucket/").unwrap();
        assert_eq!(rig.stored(path).as_deref(), Some(&b"later"[..]), "{late}");
        killed.abort();
    }
}

#[test]
fn of_two_saves_that_a_killed_process_left_of_one_address_the_last_one_is_uploaded() {
    let rig = Rig::new();
    let files = rig.files(true);
    let failed = || cache::status(&rig.cache()).unwrap().saves.iter().all(|save| save.failure.is_some());
    let (saved, aside) = (rig.cache().join("saved"), rig.root.path().join("aside"));
    std::fs::create_dir(&aside).unwrap();
    rig.store.fail(true);
    save(&files, "s3://bucket/x", b"first", Upload::Background).unwrap();
    wait_until(failed);
    let copy = |from: &FsPath, to: &FsPath| {
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            if entry.path().extension().is_none_or(|ending| ending != "lock") {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    copy(&saved, &aside);
    save(&files, "s3://bucket/x", b"last", Upload::Background).unwrap();
    wait_until(failed);
    // As if the process had been killed before it ended the first one.
    copy(&aside, &saved);
    assert_eq!(cache::status(&rig.cache()).unwrap().saves.len(), 2);
    rig.store.fail(false);
    let puts = rig.store.puts();
    rig.files(true).flush().unwrap();
    assert_eq!((rig.stored("x").as_deref(), rig.store.puts() - puts), (Some(&b"last"[..]), 1));
    assert!(cache::status(&rig.cache()).unwrap().saves.is_empty());
}

#[test]
fn what_waits_for_its_upload_does_not_replace_a_later_save_of_a_killed_process() {
    for (was, arrived) in [(None, true), (None, false), (Some("before"), true), (Some("before"), false)] {
        let rig = Rig::new();
        if let Some(was) = was {
            save(&rig.files(false), "s3://bucket/x", was.as_bytes(), Upload::Wait).unwrap();
        }
        let files = rig.files(true);
        rig.save_waiting(&files, "s3://bucket/x", b"older");
        rig.save_killed(&files, "s3://bucket/x", b"newer", arrived);
        rig.files(true).flush().unwrap();
        let expected = if arrived { "newer" } else { "older" };
        assert_eq!(rig.stored("x").as_deref(), Some(expected.as_bytes()), "{was:?}, {arrived}");
        assert!(cache::status(&rig.cache()).unwrap().saves.is_empty());
    }
}

#[test]
fn a_record_that_cannot_be_read_is_told_and_stops_no_other_file() {
    let rig = Rig::new();
    save(&rig.files(true), "s3://bucket/x", b"x", Upload::Wait).unwrap();
    let record = rig.cache().join("saved").join(format!("{}.json", "0".repeat(32)));
    std::fs::write(&record, "").unwrap();
    let files = rig.files(true);
    assert_eq!(read(&files, "s3://bucket/x").unwrap(), b"x");
    save(&files, "s3://bucket/y", b"y", Upload::Background).unwrap();
    assert_eq!(files.list("s3://bucket").unwrap().len(), 2);
    let error = files.flush().unwrap_err();
    let directory = std::fs::canonicalize(rig.cache()).unwrap();
    assert_eq!(error.to_string(), format!("store: read the saves of {} failed", directory.display()));
    assert!(error.chain().contains("0000.json"), "{}", error.chain());
    assert_eq!(rig.stored("y").as_deref(), Some(&b"y"[..]), "the others are uploaded");
    let status = cache::status(&rig.cache()).unwrap();
    assert!(status.saves.is_empty() && status.unread.len() == 1, "{status:?}");
    let refused = cache::remove(&rig.cache(), false).unwrap_err().to_string();
    assert!(
        refused.contains("has records of saves that cannot be read (1)") && refused.contains("0000.json"),
        "{refused}"
    );
    assert!(!refused.contains("upload them first"), "{refused}");
    assert!(record.exists());
    drop(files);
    cache::remove(&rig.cache(), true).unwrap();
    assert!(!record.exists());
}

#[test]
fn a_key_with_others_below_it_is_listed_as_a_file_and_as_a_directory() {
    for cached in [false, true] {
        let rig = Rig::new();
        let files = rig.files(cached);
        for key in ["a/t", "a/t/1", "a/u"] {
            save(&files, &format!("s3://bucket/{key}"), b"abcd", Upload::Wait).unwrap();
        }
        let listed = files.list("s3://bucket/a").unwrap();
        let listed: Vec<_> = listed.iter().map(|entry| (entry.url.as_str(), entry.is_directory())).collect();
        assert_eq!(listed, [("s3://bucket/a/t", false), ("s3://bucket/a/t", true), ("s3://bucket/a/u", false)]);
    }
}

#[test]
fn a_name_that_a_store_refuses_and_shows_nothing_at_is_told_after_a_few_tries() {
    for (cached, upload) in [(false, Upload::Wait), (true, Upload::Wait), (true, Upload::Background)] {
        let rig = Rig::new();
        let files = rig.files(cached);
        rig.store.refuse(true);
        let saved = save(&files, "s3://bucket/x", b"new", upload);
        let error = saved.and_then(|()| files.flush()).unwrap_err();
        let said = error.chain();
        assert!(matches!(error, Error::Store { .. }) && said.contains("a directory of that name"), "{said}");
        assert!(rig.store.puts() <= 40, "{} tries", rig.store.puts());
        rig.store.refuse(false);
        save(&files, "s3://bucket/x", b"new", upload).and_then(|()| files.flush()).unwrap();
        assert_eq!(rig.stored("x").as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn what_was_saved_takes_no_more_room_once_it_is_uploaded_and_evicts_nothing() {
    let rig = Rig::new();
    let files = rig.files(true);
    for name in 0..4 {
        save(&files, &format!("s3://bucket/{name}"), &content(1 << 20, name), Upload::Wait).unwrap();
    }
    rig.save_waiting(&files, "s3://bucket/x", &content(1 << 20, 9));
    // As for a process that knows no limit, with half of a disk that is nearly full.
    cache::Cache::open(rig.cache().to_str().unwrap(), None).unwrap().limit_later(2 << 20);
    files.flush().unwrap();
    assert_eq!(cache::status(&rig.cache()).unwrap().blocks, 5);
}

#[test]
fn a_save_whose_bytes_are_gone_is_an_error_and_never_done() {
    let rig = Rig::new();
    let files = rig.files(true);
    rig.save_waiting(&files, "s3://bucket/x", b"new");
    for entry in std::fs::read_dir(rig.cache().join("saved")).unwrap().flatten() {
        if entry.path().extension().is_none() {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let error = files.flush().unwrap_err().chain();
    assert!(error.contains("its bytes are gone") && error.contains("s3://bucket/x"), "{error}");
    assert_eq!(rig.stored("x"), None);
}

#[test]
fn a_damaged_save_is_an_error_and_is_not_uploaded() {
    let rig = Rig::new();
    let files = rig.files(true);
    rig.store.fail(true);
    save(&files, "s3://bucket/x", &content(1 << 20, 1), Upload::Background).unwrap();
    wait_until(|| cache::status(&rig.cache()).unwrap().saves[0].failure.is_some());
    let path = files.open("s3://bucket/x").unwrap().local_path().unwrap().to_owned();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[70_000] ^= 1;
    let mut writable = std::fs::metadata(&path).unwrap().permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a file of a test")]
    writable.set_readonly(false);
    std::fs::set_permissions(&path, writable).unwrap();
    std::fs::write(&path, bytes).unwrap();
    rig.store.fail(false);
    let verified = cache::verify(&rig.cache()).unwrap();
    assert!(verified.damaged.is_empty() && verified.damaged_saves[0].contains("s3://bucket/x"), "{verified:?}");
    assert!(matches!(files.open("s3://bucket/x"), Err(Error::Corrupt { .. })));
    assert!(matches!(files.flush(), Err(Error::Corrupt { .. })));
    assert_eq!(rig.stored("x"), None);
}

#[test]
fn saves_take_their_room_and_too_many_are_an_error() {
    let rig = Rig::new();
    let place =
        CachePlace { place: rig.cache().to_str().unwrap().to_owned(), bytes: Some(48 << 20), ..CachePlace::default() };
    let files = rig.files(true);
    let _limited = cache::Cache::open(&place.place, place.bytes).unwrap();
    rig.store.hold(true);
    save(&files, "s3://bucket/x", &content(20 << 20, 1), Upload::Background).unwrap();
    let mut second = files.create("s3://bucket/y", Upload::Background).unwrap();
    let error = second.write_all(&content(30 << 20, 2)).unwrap_err();
    let error = error.into_inner().unwrap().downcast::<Error>().unwrap();
    assert!(matches!(*error, Error::Limit { option: "cache_bytes", .. }), "{error}");
    assert!(read(&files, "s3://bucket/x").unwrap() == content(20 << 20, 1));
    rig.store.hold(false);
    files.flush().unwrap();
    // Without a way to keep it, it goes to the store all the same.
    save(&files, "s3://bucket/y", &content(49 << 20, 2), Upload::Wait).unwrap();
    assert!(rig.stored("y").unwrap() == content(49 << 20, 2));
}

#[test]
fn a_flush_of_a_cache_that_is_not_there_is_an_error_and_makes_none() {
    let rig = Rig::new();
    let place = |place: &str| {
        let cache = CachePlace { place: place.to_owned(), bytes: Some(64 << 20), ..CachePlace::default() };
        FileOptions { cache: Some(cache), ..FileOptions::default() }
    };
    let error = FileSystem::of_existing_cache(place(rig.cache().to_str().unwrap())).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }) && !rig.cache().exists(), "{error}");
    drop(rig.files(true));
    for place in [place(rig.cache().to_str().unwrap()), place("memory"), FileOptions::default()] {
        FileSystem::of_existing_cache(place).unwrap().flush().unwrap();
    }
}

#[test]
fn a_cache_that_is_removed_meanwhile_keeps_nothing_from_the_store() {
    let rig = Rig::new();
    let files = rig.files(true);
    let mut file = files.create("s3://bucket/x", Upload::Wait).unwrap();
    file.write_all(b"one ").unwrap();
    cache::remove(&rig.cache(), false).unwrap();
    file.write_all(b"two").unwrap();
    file.finish().unwrap();
    assert_eq!(rig.stored("x").as_deref(), Some(&b"one two"[..]));
    files.remove("s3://bucket/x").unwrap();
    assert_eq!(rig.stored("x"), None);
}

#[test]
fn a_background_needs_a_cache_on_a_disk_and_a_file_a_name() {
    let rig = Rig::new();
    let error = rig.files(false).create("s3://bucket/x", Upload::Background).unwrap_err();
    assert!(matches!(error, Error::Config { option: "upload", .. }), "{error}");
    for url in ["s3://bucket/", "s3://bucket/d/", "s3://bucket"] {
        let error = rig.files(true).create(url, Upload::Wait).unwrap_err();
        assert!(matches!(error, Error::Config { option: "urls", .. }), "{error}");
    }
}

#[test]
fn a_key_that_begins_with_a_slash_is_no_directory_within_itself() {
    let rig = Rig::new();
    let files = rig.files(false);
    save(&files, "s3://bucket/plain", b"x", Upload::Wait).unwrap();
    rig.store.be_nameless();
    let listed = files.list("s3://bucket").unwrap();
    assert_eq!(listed.iter().map(|entry| entry.url.as_str()).collect::<Vec<_>>(), ["s3://bucket/plain"]);
}

#[test]
fn a_directory_is_looked_up_by_one_key_of_it() {
    let rig = Rig::new();
    let files = rig.files(false);
    for number in 0..20 {
        save(&files, &format!("s3://bucket/d/e/{number}"), b"x", Upload::Wait).unwrap();
    }
    for directory in ["s3://bucket/d", "s3://bucket/d/e", "s3://bucket/d/e/", "s3://bucket"] {
        let before = rig.store.listed();
        assert!(files.entry(directory).unwrap().is_directory());
        assert_eq!(rig.store.listed() - before, 1, "{directory}");
    }
    assert!(matches!(files.entry("s3://bucket/d/f"), Err(Error::NotFound { .. })));
    let found = files.list("s3://bucket/d/e").unwrap();
    assert_eq!(found.len(), 20);
}

#[test]
fn mounts_stay_while_their_file_is_written() {
    let (folder, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(data.path().join("x"), b"1234567").unwrap();
    let file = folder.path().join("mounts.toml");
    let text = |name: &str| format!("[mounts.{name}]\nurl = {:?}", data.path());
    std::fs::write(&file, text("a")).unwrap();
    let mounts = Some(MountSource::from(file.to_str().unwrap().to_owned()));
    let files = FileSystem::new(FileOptions { mounts, ..FileOptions::default() }).unwrap();
    assert_eq!(read(&files, "bow://a/x").unwrap(), b"1234567");
    for half in ["", "[mounts.b]"] {
        std::fs::write(&file, half).unwrap();
        assert_eq!(read(&files, "bow://a/x").unwrap(), b"1234567");
        assert_eq!(files.list("bow://").unwrap().len(), 1);
    }
    std::fs::write(&file, text("b")).unwrap();
    assert!(matches!(read(&files, "bow://a/x"), Err(Error::NotFound { .. })));
    assert_eq!(read(&files, "bow://b/x").unwrap(), b"1234567");
}
