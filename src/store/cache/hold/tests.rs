//! Whole objects over an origin that counts: one fetch, room, damage, holders, killed processes.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::super::super::stamp::Stamp;
use super::super::admin::{remove, status, verify};
use super::*;

/// Bytes of the objects: three slices, the last one short.
const SIZE: u64 = 2 * SLICE + 70_001;

fn content(range: Range<u64>) -> Bytes {
    range.map(|at| (at * 31 + (at >> 8) * 7) as u8).collect()
}

fn whole(name: &str) -> Whole {
    let stamp = Stamp { etag: Some("\"a\"".to_owned()), size: SIZE, modified: None };
    let key = ObjectKey::of("s3://b/", name, &stamp).unwrap();
    Whole { key, size: SIZE, url: format!("s3://b/{name}"), patience: Duration::from_secs(5), seed: None }
}

fn block(name: &str) -> Block {
    Block::whole(whole(name).key, SIZE)
}

/// A cache in a directory, and the bytes that its origin gave.
struct Rig {
    root: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    cache: Arc<Cache>,
    fetched: AtomicU64,
}

impl Rig {
    fn new(limit: u64) -> Self {
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        let cache = Cache::open(root.path().to_str().unwrap(), Some(limit)).unwrap();
        Self { root, runtime, cache, fetched: AtomicU64::new(0) }
    }

    async fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.fetched.fetch_add(range.end - range.start, Ordering::SeqCst);
        Ok(content(range))
    }

    fn hold(&self, reader: &Arc<Reader>, name: &str) -> Result<Held> {
        self.runtime.block_on(self.cache.hold(reader, &whole(name), |range| self.fetch(range)))
    }

    fn fetched(&self) -> u64 {
        self.fetched.swap(0, Ordering::SeqCst)
    }

    fn disk(&self) -> &Disk {
        match self.cache.tier() {
            Tier::Disk(disk) => disk,
            Tier::Memory(_) => panic!("it is on a disk"),
        }
    }
}

fn is_right(held: &Held) -> bool {
    fs::read(held.path()).unwrap() == content(0..SIZE)
}

#[test]
fn an_object_is_fetched_once_whoever_wants_it_and_slices_that_are_here_are_used() {
    let rig = Rig::new(1 << 30);
    let reader = rig.cache.reader();
    // The second slice was read before, by itself.
    let slice = Block::new(whole("x").key, &(SLICE..2 * SLICE)).unwrap();
    let read = rig.cache.read(&reader, slice, Wanted::default(), rig.fetch(SLICE..2 * SLICE));
    assert_eq!(rig.runtime.block_on(read).unwrap(), content(SLICE..2 * SLICE));
    rig.runtime.block_on(rig.cache.settle());
    let held = rig.runtime.block_on(async {
        let wanted = whole("x");
        let holds = (0..10).map(|_| rig.cache.hold(&reader, &wanted, |range| rig.fetch(range)));
        futures::future::join_all(holds).await
    });
    assert!(held.iter().all(|held| is_right(held.as_ref().unwrap())));
    assert_eq!(rig.fetched(), SIZE, "each byte once");
    let path = held[0].as_ref().unwrap().path().to_owned();
    assert!(fs::metadata(&path).unwrap().permissions().readonly());
    drop(held);
    assert!(is_right(&rig.runtime.block_on(rig.cache.held(&reader, &whole("x"))).unwrap()));
    assert!(rig.runtime.block_on(rig.cache.held(&reader, &whole("y"))).is_none());
    assert_eq!((rig.fetched(), reader.stats().damaged, reader.stats().failures), (0, 0, 0));
    // Tools of the directory know of it.
    let found = status(rig.root.path()).unwrap();
    assert_eq!((found.blocks, found.bytes, found.accounted), (2, found.accounted, rig.cache.used().0));
    assert_eq!(verify(rig.root.path()).unwrap().good, 2);
    assert!(remove(rig.root.path(), false).unwrap().gone && !path.exists());
}

#[test]
fn an_object_is_whole_in_whatever_order_its_slices_come() {
    for size in [0, 1, SLICE, SIZE, 40 * SLICE + 1] {
        let in_order = slices(size, None);
        assert_eq!(in_order.iter().map(|slice| slice.end - slice.start).sum::<u64>(), size);
        for seed in 0..5 {
            let mut shuffled = slices(size, Some(seed));
            assert!(in_order.len() < 20 || shuffled != in_order, "{size} {seed}");
            shuffled.sort_by_key(|slice| slice.start);
            assert_eq!(shuffled, in_order, "{size} {seed}");
        }
    }
    for seed in 0..6 {
        let rig = Rig::new(1 << 30);
        let reader = rig.cache.reader();
        let wanted = Whole { seed: Some(seed), ..whole("x") };
        let held = rig.runtime.block_on(rig.cache.hold(&reader, &wanted, |range| rig.fetch(range))).unwrap();
        assert!(is_right(&held), "{seed}");
        drop(held);
        assert_eq!(verify(rig.root.path()).unwrap().good, 1, "its checksums are in their places");
    }
}

#[test]
fn what_is_held_is_not_evicted_and_no_room_is_an_error() {
    let rig = Rig::new(2 * file::size(SIZE) + 1000);
    let reader = rig.cache.reader();
    let (one, two) = (rig.hold(&reader, "one").unwrap(), rig.hold(&reader, "two").unwrap());
    match rig.hold(&reader, "three") {
        Err(Error::Limit { option: "cache_bytes", asked, .. }) => assert_eq!(asked, file::size(SIZE)),
        other => panic!("{other:?}"),
    }
    assert!(is_right(&one) && is_right(&two));
    drop(one);
    let three = rig.hold(&reader, "three").unwrap();
    assert!(is_right(&two) && is_right(&three));
    assert!(!rig.disk().directory().block(&block("one")).exists(), "it made room");
    assert!(!rig.disk().directory().sums(&block("one")).exists());
    assert_eq!(rig.cache.used().0, 2 * file::size(SIZE));
    // Another process, which has nothing in memory, leaves it alone too.
    let other = Disk::open(rig.root.path(), 2 * file::size(SIZE), Arc::default()).unwrap();
    assert_eq!(other.reserve(&block("four"), Due::At(0)).unwrap(), None);
    drop(three);
    assert_eq!(other.reserve(&block("four"), Due::At(0)).unwrap(), Some(1));
    assert!(is_right(&two));
}

#[test]
fn a_damaged_copy_is_fetched_again_and_counted() {
    let rig = Rig::new(1 << 30);
    let reader = rig.cache.reader();
    drop(rig.hold(&reader, "x").unwrap());
    assert_eq!(rig.fetched(), SIZE);
    let (path, sums) = (rig.disk().directory().block(&block("x")), rig.disk().directory().sums(&block("x")));
    let touch = |path: &Path| {
        File::open(path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    // Touched and whole: it is checked once, and good.
    touch(&path);
    drop(rig.hold(&reader, "x").unwrap());
    assert_eq!((rig.fetched(), reader.stats().damaged), (0, 0));
    let overwrite = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
    };
    type Damage<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let damages: [Damage<'_>; 5] = [
        ("its first byte", Box::new(|| overwrite(&path, 0))),
        ("its last byte", Box::new(|| overwrite(&path, SIZE as usize - 1))),
        ("its length", Box::new(|| fs::write(&path, content(0..SIZE - 1)).unwrap())),
        ("its checksums", Box::new(|| overwrite(&sums, 100))),
        ("no checksums", Box::new(|| fs::remove_file(&sums).unwrap())),
    ];
    for (number, (what, damage)) in damages.into_iter().enumerate() {
        if fs::metadata(&path).unwrap().permissions().readonly() {
            // As root may.
            fs::rename(&path, path.with_extension("aside")).unwrap();
            fs::copy(path.with_extension("aside"), &path).unwrap();
            fs::remove_file(path.with_extension("aside")).unwrap();
            let mut only_read = fs::metadata(&path).unwrap().permissions();
            #[allow(clippy::permissions_set_readonly_false, reason = "a file of this test")]
            only_read.set_readonly(false);
            fs::set_permissions(&path, only_read).unwrap();
        }
        damage();
        assert!(is_right(&rig.hold(&reader, "x").unwrap()), "{what}");
        assert_eq!((rig.fetched(), reader.stats().damaged), (SIZE, number as u64 + 1), "{what}");
    }
}

#[test]
fn a_fetch_that_fails_or_is_killed_leaves_the_next_one_free() {
    let rig = Rig::new(1 << 30);
    let reader = rig.cache.reader();
    let failing = |range: Range<u64>| async move {
        if range.start == 0 { Ok(content(range)) } else { Err(Error::Closed { why: "the origin is gone".to_owned() }) }
    };
    let held = rig.runtime.block_on(rig.cache.hold(&reader, &whole("x"), failing));
    assert!(matches!(held, Err(Error::Closed { .. })), "{held:?}");
    assert_eq!(rig.cache.used(), (0, 0), "its room is given back");
    assert_eq!(rig.disk().directory().fetched().unwrap(), []);
    // Given up in the middle.
    rig.runtime.block_on(async {
        let wanted = whole("x");
        let never = rig.cache.hold(&reader, &wanted, |_| std::future::pending::<Result<Bytes>>());
        tokio::time::timeout(Duration::from_millis(100), never).await.unwrap_err();
    });
    // Killed: a part is there, and room is taken.
    let part = rig.disk().directory().fetch(&block("x"));
    rig.disk().directory().prepare(&part).unwrap();
    fs::write(&part, content(0..SLICE)).unwrap();
    assert!(is_right(&rig.hold(&reader, "x").unwrap()));
    assert_eq!(rig.cache.used(), (file::size(SIZE), 1));
    // Another process has it, and gets nowhere.
    let Claimed::Mine(_claim) = rig.disk().claim(&block("y")) else { panic!("nobody has it") };
    let hasty = Whole { patience: Duration::from_millis(50), ..whole("y") };
    let held = rig.runtime.block_on(rig.cache.hold(&reader, &hasty, |range| rig.fetch(range)));
    match held {
        Err(Error::Timeout { culprit, .. }) => assert!(culprit.contains("s3://b/y"), "{culprit}"),
        other => panic!("{other:?}"),
    }
}
