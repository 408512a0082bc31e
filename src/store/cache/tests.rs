//! The cache as a whole, over an origin that counts: single flight, limits, damage, disks that fail.
#![allow(clippy::print_stdout, reason = "tests print their seeds")]

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use super::super::stamp::Stamp;
use super::admin::verify;
use super::block::{Block, ObjectKey};
use super::claim::Claimed;
use super::directory::Directory;
use super::disk::{Disk, Found, Stored};
use super::fetched::Fetched;
use super::file;
use super::foresight::{Foreseen, Later, Spans};
use super::keeper::Due;
use super::ledger::Event;
use super::memory::Memory;
use super::readers::Readers;
use super::shared::{Cache, Tier, Wanted, is_of_the_disk};
use crate::error::{Error, Result};

/// An object of any size, whose bytes tell where they are.
fn content(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

fn object(name: &str) -> ObjectKey {
    let stamp = Stamp { etag: Some("\"a\"".to_owned()), size: 1 << 30, modified: None };
    ObjectKey::of("s3://b/", name, &stamp).unwrap()
}

fn block(number: u64, length: u64) -> Block {
    Block::new(object("x"), &(number * length..(number + 1) * length)).unwrap()
}

/// The origin of `block`, with its requests and their bytes.
#[derive(Default)]
struct Origin([AtomicU64; 2]);

impl Origin {
    async fn fetch(&self, block: Block) -> Result<Bytes> {
        self.0[0].fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let bytes = content(block.start..block.end);
        self.0[1].fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(bytes.into())
    }

    fn requests(&self) -> u64 {
        self.0[0].swap(0, Ordering::SeqCst)
    }
}

fn place(directory: &Path) -> &str {
    directory.to_str().unwrap()
}

/// Files of blocks below `directory`, and their bytes including those being fetched.
fn taken(directory: &Path) -> (usize, u64) {
    let mut found = (0, 0);
    for below in ["blocks", "fetch"] {
        let mut left = vec![directory.join(below)];
        while let Some(path) = left.pop() {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                found = (found.0 + 1, found.1 + meta.len());
            }
        }
    }
    found
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

#[test]
fn a_range_is_fetched_once_whoever_asks() {
    for memory in [false, true] {
        let root = tempfile::tempdir().unwrap();
        // One cache in memory for the whole process of this test, so the limit must be the same everywhere.
        let cache = Cache::open(if memory { "memory" } else { place(root.path()) }, Some(64 << 20)).unwrap();
        let (origin, wanted) = (Arc::new(Origin::default()), block(u64::from(memory), 300_000));
        runtime().block_on(async {
            let reads = (0..20).map(|_| {
                let (cache, origin, reader) = (Arc::clone(&cache), Arc::clone(&origin), cache.reader());
                tokio::spawn(async move {
                    let bytes = cache.read(&reader, wanted, Wanted::default(), origin.fetch(wanted)).await.unwrap();
                    assert_eq!(bytes, content(wanted.start..wanted.end));
                    reader.stats()
                })
            });
            let stats = futures::future::join_all(reads).await;
            let misses: u64 = stats.iter().map(|stats| stats.as_ref().unwrap().misses).sum();
            assert_eq!((origin.requests(), misses), (1, 1));
            cache.settle().await;
            // A part of it, and all of it again.
            let reader = cache.reader();
            let part = Block { start: wanted.start + 70_000, end: wanted.start + 200_001, ..wanted };
            for asked in [part, wanted] {
                let bytes = cache.read(&reader, asked, Wanted::default(), origin.fetch(asked)).await.unwrap();
                assert_eq!(bytes, content(asked.start..asked.end));
            }
            assert_eq!((origin.requests(), reader.stats().hits), (0, 2));
            assert_eq!(reader.stats().hit_bytes, part.len() + wanted.len());
        });
    }
}

#[test]
fn a_rank_that_has_not_ended_an_epoch_says_nothing_of_the_next_one() {
    let readers = Readers::default();
    let reader = readers.join();
    let foreseen = |epoch| Foreseen::new(Arc::default(), Vec::new(), 200, Vec::new()).of_epoch(epoch);
    reader.follow(Some(Arc::new(foreseen(0))), 10);
    reader.reached(0, 99);
    assert_eq!(reader.position(), 99);
    reader.follow(Some(Arc::new(foreseen(1))), 0);
    reader.reached(0, 100);
    assert_eq!(reader.position(), 0);
    reader.reached(1, 3);
    assert_eq!(reader.position(), 3);
}

#[test]
fn what_is_fetched_ahead_takes_no_room_of_what_stays() {
    let (length, keeps) = (10_000, 10_u32);
    for memory in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let size = if memory { length } else { file::size(length) };
        let limit = size * u64::from(keeps);
        // One that is opened in memory is shared with other tests.
        let in_memory = || Arc::new(Cache::new(Tier::Memory(Box::new(Memory::new(limit))), Arc::default()));
        let on_disk = || Cache::open(place(root.path()), Some(limit)).unwrap();
        let cache = if memory { in_memory() } else { on_disk() };
        let (origin, reader) = (Arc::new(Origin::default()), cache.reader());
        let of = |group: u32| block(group.into(), length);
        // Two epochs of 20 row groups: the second one backwards.
        let spans = Spans::new((0..20).map(|group| (object("x"), of(group).start..of(group).end, group)));
        let uses = (0..20).zip(0..).chain((0..20).rev().zip(20..)).collect();
        let later = (0..20).rev().zip(20..).map(|(group, step)| Later { step, group, bytes: size });
        cache.follow(&reader, Some(Arc::new(Foreseen::new(Arc::new(spans), uses, 40, later.collect()))), 0);
        runtime().block_on(async {
            for group in 0..keeps {
                let wanted = Wanted { group: Some(group), ..Wanted::default() };
                cache.read(&reader, of(group), wanted, origin.fetch(of(group))).await.unwrap();
                cache.settle().await;
                reader.reached(0, u64::from(group) + 1);
            }
            assert_eq!((origin.requests(), cache.used().1), (u64::from(keeps), 10));
            // All at once: each has the room of one that the next epoch begins without.
            let ahead = |group: u32| {
                let (cache, origin, reader) = (Arc::clone(&cache), Arc::clone(&origin), Arc::clone(&reader));
                async move {
                    let fetch = async { origin.fetch(of(group)).await.map(Fetched::from) };
                    cache.fetch_ahead(&reader, of(group), false, fetch).await.unwrap()
                }
            };
            let first = futures::future::join_all((keeps..20).map(ahead)).await;
            cache.settle().await;
            assert!(first.iter().all(|fetched| *fetched == Some(length)), "{first:?}");
            assert_eq!((cache.used().1, cache.stats().ahead, cache.stats().refused), (10, 10, 0));
            let again = futures::future::join_all((keeps..20).map(ahead)).await;
            assert!(again.iter().all(|fetched| *fetched == Some(0)), "it is here");
            assert_eq!(origin.requests(), 10);
            // The next epoch needs these last.
            assert_eq!((ahead(0).await, ahead(1).await, origin.requests()), (None, None, 0));
            for group in keeps..20 {
                let wanted = Wanted { group: Some(group), ..Wanted::default() };
                let bytes = cache.read(&reader, of(group), wanted, origin.fetch(of(group))).await.unwrap();
                assert_eq!(bytes, content(of(group).start..of(group).end));
            }
            assert_eq!((origin.requests(), reader.stats().hits), (0, 10));
            assert!(reader.stats().hit_rate() < 0.01, "they were fetched all the same");
        });
    }
}

#[test]
fn the_limit_is_kept_and_what_plans_need_stays() {
    let root = tempfile::tempdir().unwrap();
    let (length, keeps) = (10_000, 10);
    let limit = file::size(length) * keeps;
    let cache = Cache::open(place(root.path()), Some(limit)).unwrap();
    let origin = Arc::new(Origin::default());
    let reader = cache.reader();
    // Two epochs of 40 row groups: the second one backwards.
    let spans = Spans::new(
        (0..40_u32)
            .map(|group| (object("x"), block(group.into(), length).start..block(group.into(), length).end, group)),
    );
    let uses =
        (0..40).map(|group| (group, u64::from(group))).chain((0..40).map(|group| (group, 79 - u64::from(group))));
    cache.follow(&reader, Some(Arc::new(Foreseen::new(Arc::new(spans), uses.collect(), 80, Vec::new()))), 0);
    runtime().block_on(async {
        let epoch = |order: Vec<u32>| {
            let (cache, origin, reader, root) = (&cache, &origin, &reader, &root);
            async move {
                for (step, group) in order.into_iter().enumerate() {
                    let (wanted, asked) =
                        (Wanted { group: Some(group), ..Wanted::default() }, block(group.into(), length));
                    let bytes = cache.read(reader, asked, wanted, origin.fetch(asked)).await.unwrap();
                    assert_eq!(bytes, content(asked.start..asked.end));
                    cache.settle().await;
                    assert!(cache.used().0 <= limit && taken(root.path()).1 <= limit, "{:?}", taken(root.path()));
                    reader.reached(0, step as u64 + 1);
                }
            }
        };
        epoch((0..40).collect()).await;
        assert_eq!(origin.requests(), 40);
        epoch((0..40).rev().collect()).await;
        assert_eq!(origin.requests(), 40 - keeps, "as many hits as blocks fit");
    });
    assert!(reader.stats().evicted > 0);
    // Larger than the cache: read, and not kept.
    let huge = Block::new(object("y"), &(0..limit)).unwrap();
    runtime().block_on(cache.read(&reader, huge, Wanted::default(), origin.fetch(huge))).unwrap();
    runtime().block_on(cache.settle());
    assert!(taken(root.path()).1 <= limit && reader.stats().refused > 0);
}

#[test]
fn a_lower_limit_is_kept_to_at_once() {
    let root = tempfile::tempdir().unwrap();
    let size = file::size(1000);
    let fill = || {
        let disk = Disk::open(root.path(), 1 << 20, Arc::default()).unwrap();
        for number in 0..10 {
            let block = block(number, 1000);
            if let Claimed::Mine(claim) = disk.claim(&block) {
                let bytes = content(block.start..block.end);
                assert_eq!(disk.store(claim, &block, &bytes, Due::At(number)), Stored::Kept(0));
            }
        }
        assert_eq!(taken(root.path()), (10, 10 * size));
    };
    fill();
    // Another process opens it with less; and then this one is told another limit.
    let cache = Cache::open(place(root.path()), Some(4 * size)).unwrap();
    assert_eq!((taken(root.path()), cache.used().0, cache.stats().evicted), ((4, 4 * size), 4 * size, 6));
    fill();
    let again = Cache::open(place(root.path()), Some(3 * size)).unwrap();
    assert_eq!((taken(root.path()), again.used().0, again.limit()), ((3, 3 * size), 3 * size, 3 * size));
    fill();
    // A default is no wish of anybody.
    drop((cache, again));
    let cache = Cache::open(place(root.path()), None).unwrap();
    assert_eq!((taken(root.path()).0, cache.used().1), (10, 10));
    // In memory.
    let memory = Memory::new(5000);
    for number in 0..5 {
        memory.store(&block(number, 1000), content(0..1000).into(), Due::At(number)).unwrap();
    }
    memory.set_limit(2500);
    assert_eq!((memory.shrink(), memory.kept().keeper.used()), (3, 2000));
}

#[test]
fn damage_anywhere_is_read_again_from_the_origin_and_counted() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::open(place(root.path()), Some(1 << 30)).unwrap();
    let (origin, reader, wanted) = (Arc::new(Origin::default()), cache.reader(), block(0, 200_000));
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}: set it in {} to repeat", file!());
    let runtime = runtime();
    let read = || {
        let bytes = runtime.block_on(cache.read(&reader, wanted, Wanted::default(), origin.fetch(wanted))).unwrap();
        assert_eq!(bytes, content(wanted.start..wanted.end));
        runtime.block_on(cache.settle());
    };
    read();
    let path = {
        let (directory, name) = wanted.name();
        root.path().join("blocks").join(directory).join(name)
    };
    let whole = fs::read(&path).unwrap();
    let mut random = seed;
    for case in 0..40_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 20) as usize % whole.len();
        let mut bytes = whole.clone();
        match case % 4 {
            0 => bytes[at] ^= 1 << (random % 8),
            1 => bytes.truncate(at),
            2 => bytes[at..].fill(0),
            _ => bytes.extend_from_slice(b"more"),
        }
        let changed = bytes != whole;
        fs::write(&path, bytes).unwrap();
        origin.requests();
        let damaged = reader.stats().damaged;
        read();
        assert_eq!(
            (origin.requests(), reader.stats().damaged - damaged),
            (u64::from(changed), u64::from(changed)),
            "case {case}, byte {at}"
        );
        assert_eq!(fs::read(&path).unwrap(), whole, "it is replaced");
    }
    // The block is removed, or replaced by a pipe, to which nobody writes, or by a directory.
    fs::remove_file(&path).unwrap();
    read();
    assert_eq!(origin.requests(), 1);
    #[cfg(unix)]
    {
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        read();
        assert_eq!((origin.requests(), fs::read(&path).unwrap() == whole), (1, true));
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    read();
    assert_eq!(origin.requests(), 1);
}

#[test]
fn damage_that_several_find_at_once_counts_once() {
    let root = tempfile::tempdir().unwrap();
    let disk = Disk::open(root.path(), 1 << 30, Arc::new(Readers::default())).unwrap();
    let wanted = block(0, 200_000);
    let path = {
        let (directory, name) = wanted.name();
        root.path().join("blocks").join(directory).join(name)
    };
    for round in 0..20 {
        let Claimed::Mine(claim) = disk.claim(&wanted) else { panic!("not claimed") };
        assert_eq!(disk.store(claim, &wanted, &content(0..200_000), Due::At(1)), Stored::Kept(0));
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let start = Barrier::new(8);
        let look = || {
            start.wait();
            matches!(disk.look(&wanted).0, Found::Damaged)
        };
        let found = thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(look)).collect();
            all.into_iter().map(|one| one.join().unwrap()).filter(|damaged| *damaged).count()
        });
        assert_eq!(found, 1, "round {round}");
    }
}

fn full(file: &mut fs::File, _: &Block, bytes: &[u8]) -> io::Result<()> {
    // A part comes through.
    io::Write::write_all(file, &bytes[..bytes.len() / 2])?;
    Err(io::Error::from(io::ErrorKind::StorageFull))
}

#[test]
fn a_disk_that_is_full_or_fails_takes_nothing_and_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let disk = Disk::open(root.path(), 1 << 30, Arc::new(Readers::default())).unwrap().writing_by(full);
    let (wanted, due) = (block(0, 100_000), Due::At(1));
    let Claimed::Mine(claim) = disk.claim(&wanted) else { panic!("not claimed") };
    assert_eq!(disk.store(claim, &wanted, &content(0..100_000), due), Stored::Failed);
    assert_eq!((disk.keeper().used(), taken(root.path())), (0, (0, 0)), "nothing is left of it");
    assert!(matches!(disk.claim(&wanted), Claimed::Failed), "it rests for a while");
    assert!(matches!(disk.look(&wanted).0, Found::Miss));
    // Another process, or the same one later, has room.
    let disk = Disk::open(root.path(), 1 << 30, Arc::new(Readers::default())).unwrap();
    let Claimed::Mine(claim) = disk.claim(&wanted) else { panic!("not claimed") };
    assert_eq!(disk.store(claim, &wanted, &content(0..100_000), due), Stored::Kept(0));
    assert!(matches!(disk.look(&wanted).0, Found::Hit(bytes) if bytes == content(0..100_000)));
    // The directory goes while it is used.
    fs::remove_dir_all(root.path()).unwrap();
    assert!(matches!(disk.look(&wanted).0, Found::Miss));
    let other = block(1, 100_000);
    assert!(matches!(disk.claim(&other), Claimed::Failed) && !root.path().exists(), "it is not begun anew");
}

#[test]
fn a_disk_that_fails_at_opening_keeps_nothing_and_stops_nobody() {
    let failed = |error| crate::store::directory::failed("make the cache", Path::new("/nvme"), error);
    for code in [libc::EIO, libc::ENOSPC, libc::EROFS, libc::EDQUOT, libc::ESTALE] {
        assert!(is_of_the_disk(&failed(io::Error::from_raw_os_error(code))), "{code}");
    }
    for code in [libc::EACCES, libc::ENOENT, libc::ENOTDIR, libc::ENAMETOOLONG] {
        assert!(!is_of_the_disk(&failed(io::Error::from_raw_os_error(code))), "{code}");
    }
    assert!(!is_of_the_disk(&Error::config("cache", "it has other files")));
    let cache = Cache::keeping_nothing("/nvme", failed(io::Error::from_raw_os_error(libc::EIO)));
    let told = cache.check_open().unwrap_err();
    assert!(matches!(&told, Error::Store { url, .. } if url == "/nvme") && is_of_the_disk(&told), "{told}");
    let (reader, wanted, origin) = (cache.reader(), block(0, 1000), Arc::new(Origin::default()));
    for _ in 0..3 {
        let bytes = runtime().block_on(cache.read(&reader, wanted, Wanted::default(), origin.fetch(wanted)));
        assert_eq!(bytes.unwrap(), content(0..1000));
    }
    assert_eq!((cache.used(), cache.stats().failures, cache.stats().misses), ((0, 0), 1, 3));
}

#[test]
fn what_fails_at_the_origin_is_an_error_and_nobody_waits_for_it() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::open(place(root.path()), Some(1 << 30)).unwrap();
    let (reader, wanted) = (cache.reader(), block(0, 1000));
    let runtime = runtime();
    let failing = async { Err::<Bytes, _>(Error::Closed { why: "the origin is gone".to_owned() }) };
    runtime.block_on(cache.read(&reader, wanted, Wanted::default(), failing)).unwrap_err();
    assert_eq!(taken(root.path()).0, 0);
    // A reader that goes away in the middle.
    let origin = Arc::new(Origin::default());
    runtime.block_on(async {
        let never = std::future::pending::<Result<Bytes>>();
        let gone =
            tokio::time::timeout(Duration::from_millis(50), cache.read(&reader, wanted, Wanted::default(), never));
        gone.await.unwrap_err();
        let bytes = cache.read(&reader, wanted, Wanted::default(), origin.fetch(wanted)).await.unwrap();
        assert_eq!(bytes, content(0..1000));
    });
}

#[test]
fn two_processes_count_together() {
    // Two disks of one directory are as two processes are.
    let root = tempfile::tempdir().unwrap();
    let limit = 5 * file::size(1000);
    let open = || Disk::open(root.path(), limit, Arc::new(Readers::default())).unwrap();
    let (one, two) = (open(), open());
    let store = |disk: &Disk, number: u64, due: u64| {
        let block = block(number, 1000);
        match disk.claim(&block) {
            Claimed::Mine(claim) => Some(disk.store(claim, &block, &content(block.start..block.end), Due::At(due))),
            Claimed::There => None,
            other => panic!("{other:?}"),
        }
    };
    for number in 0..5 {
        let disk = if number % 2 == 0 { &one } else { &two };
        assert_eq!(store(disk, number, number), Some(Stored::Kept(0)));
    }
    assert_eq!(store(&one, 3, 0), None, "the other has it");
    // Each knows the other's blocks but not when they are needed: they go first.
    assert_eq!(store(&one, 5, 100), Some(Stored::Kept(1)));
    assert_eq!(store(&two, 6, 100), Some(Stored::Kept(1)));
    assert_eq!(taken(root.path()), (5, limit));
    // While one fetches a block, the other does not.
    let wanted = block(9, 1000);
    let Claimed::Mine(claim) = one.claim(&wanted) else { panic!("not claimed") };
    assert!(matches!(two.claim(&wanted), Claimed::Busy));
    drop(claim);
    assert!(matches!(two.claim(&wanted), Claimed::Mine(_)));
    // A process ended in the middle: room is taken, a part is there, and the lock is free.
    let lost = block(10, 1000);
    fs::write(root.path().join("fetch").join(lost.name().1), [0; 500]).unwrap();
    one.change(|disk, ledger| {
        ledger.append(&[(super::ledger::Event::Awaited, lost)])?;
        disk.keeper().insert(lost, file::size(1000), Due::At(0), false);
        Ok(())
    })
    .unwrap();
    assert_eq!(store(&two, 11, 1), Some(Stored::Kept(1)), "its room is given back");
    assert!(taken(root.path()).1 <= limit && !root.path().join("fetch").join(lost.name().1).exists());
    // The ledger is lost: it is made from the directory.
    fs::write(root.path().join("ledger"), "nonsense").unwrap();
    let three = open();
    assert_eq!(three.keeper().used(), taken(root.path()).1);
}

#[test]
fn what_killed_processes_left_is_given_back_by_the_next_one() {
    let root = tempfile::tempdir().unwrap();
    let blocks = [0, 1, 2].map(|number| block(number, 1000));
    let disk = Disk::open(root.path(), 1 << 20, Arc::default()).unwrap();
    for block in &blocks {
        let Claimed::Mine(claim) = disk.claim(block) else { panic!("nobody has it") };
        assert_eq!(disk.store(claim, block, &content(block.start..block.end), Due::At(1)), Stored::Kept(0));
    }
    // Killed in the middle of an eviction: of two blocks that were to go one is gone.
    let (gone, stays) = (blocks[0], blocks[1]);
    disk.change(|_, ledger| ledger.append(&[(Event::Awaited, gone), (Event::Awaited, stays)])).unwrap();
    let directory = Directory::existing(root.path()).unwrap();
    fs::remove_file(directory.block(&gone)).unwrap();
    // And killed before it had room for its fetch; a live process has another one.
    let (left, fetched) = (block(3, 1000), block(4, 1000));
    fs::write(directory.fetch(&left), "half").unwrap();
    let living = disk.claim(&fetched);
    assert!(matches!(living, Claimed::Mine(_)));
    let next = Disk::open(root.path(), 1 << 20, Arc::default()).unwrap();
    assert_eq!(next.keeper().len(), 2);
    assert_eq!(next.keeper().used(), 2 * file::size(1000));
    assert_eq!(directory.fetched().unwrap(), [fetched]);
    assert!(matches!(next.look(&stays).0, Found::Hit(_)) && matches!(next.look(&gone).0, Found::Miss));
    drop(living);
}

#[test]
fn a_check_goes_on_after_what_it_cannot_read_or_remove() {
    let root = tempfile::tempdir().unwrap();
    let disk = Disk::open(root.path(), 1 << 20, Arc::default()).unwrap();
    let blocks = [0, 1, 2].map(|number| block(number, 1000));
    for block in &blocks {
        let Claimed::Mine(claim) = disk.claim(block) else { panic!("nobody has it") };
        assert_eq!(disk.store(claim, block, &content(block.start..block.end), Due::At(1)), Stored::Kept(0));
    }
    let directory = Directory::existing(root.path()).unwrap();
    let places = blocks.map(|block| directory.block(&block));
    // One cannot be read, nor removed as a file is; one is damaged.
    fs::remove_file(&places[0]).unwrap();
    fs::create_dir(&places[0]).unwrap();
    let mut bytes = fs::read(&places[1]).unwrap();
    bytes[500] ^= 1;
    fs::write(&places[1], bytes).unwrap();
    let verified = verify(root.path()).unwrap();
    assert_eq!((verified.good, verified.damaged.len()), (1, 2), "{verified:?}");
    assert_eq!(
        verified.damaged.iter().filter(|what| what.ends_with("it cannot be removed")).count(),
        1,
        "{verified:?}"
    );
    assert!(places[0].exists() && !places[1].exists() && places[2].exists());
    assert_eq!(verify(root.path()).unwrap().damaged.len(), 1, "as long as it is there");
}
