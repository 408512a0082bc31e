//! The cache below the dataset: the same rows and few requests, whatever happens to its directory, to its processes and to the objects.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use bowstring::pipeline::LocalSource;
use bowstring::store::cache::{remove, status, verify};
use bowstring::{Error, Loader, LoaderOptions};
use tempfile::TempDir;

use crate::child;
use crate::dataset::{Marks, Server};
use crate::support::{self, Random, drain};

/// The data: files, row groups per file, rows per row group.
pub(crate) const FILES: usize = 4;
const GROUPS: usize = 8;
const ROWS: usize = 3000;
const ROWS_OF_LARGE: usize = 12_000;

/// A dataset on a server like S3, and a directory for a cache.
pub(crate) struct Rig {
    pub(crate) root: TempDir,
    pub(crate) server: Server,
    /// Bytes of all objects.
    pub(crate) bytes: u64,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::of(ROWS)
    }

    /// With `rows` in each row group.
    fn of(rows: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        support::write(&data, &vec![vec![rows; GROUPS]; FILES], 6);
        let server = Server::start();
        server.upload(&data, "bucket/d");
        let bytes = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        Self { root, server, bytes }
    }

    fn cache(&self) -> PathBuf {
        self.root.path().join("cache")
    }

    /// Options of a loader over the server; with `limit` bytes of cache.
    pub(crate) fn options(&self, limit: Option<u64>) -> LoaderOptions {
        let mut options = options(&self.server.storage_options(), 7);
        options.cache = limit.map(|_| self.cache().to_str().unwrap().to_owned());
        options.cache_bytes = limit;
        options
    }

    /// The same for large row groups, of which a pipeline holds a few.
    fn large_options(&self, limit: Option<u64>) -> LoaderOptions {
        let window_rows = Some(ROWS_OF_LARGE as u64);
        LoaderOptions { memory_budget: Some(4 << 20), window_rows, ..self.options(limit) }
    }

    pub(crate) fn loader(&self, limit: Option<u64>) -> Loader {
        Loader::open(self.options(limit)).unwrap()
    }

    /// Bytes of objects requested since the last call, and the number of requests; listings and version checks do not count.
    pub(crate) fn asked(&self) -> (u64, usize) {
        let requests = self.server.requests();
        let ranges = requests.iter().filter_map(|request| {
            let (start, end) = request.strip_prefix("GET ")?.rsplit_once("bytes=")?.1.split_once('-')?;
            Some((start.parse::<u64>().ok()?, end.parse::<u64>().ok()?))
        });
        ranges.fold((0, 0), |(bytes, count), (start, end)| (bytes + end + 1 - start, count + 1))
    }
}

fn options(storage: &std::collections::BTreeMap<String, String>, seed: u64) -> LoaderOptions {
    LoaderOptions {
        urls: vec!["s3://bucket/d".to_owned()],
        storage_options: storage.clone(),
        seed,
        // Lanes then do not hold all of the data in memory at once.
        lanes: Some(2),
        window_rows: Some(ROWS as u64),
        ..support::options(Path::new(""), 100, 0, 1)
    }
}

/// Returns all files below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(path) = left.pop() {
        let Ok(entries) = fs::read_dir(path) else { continue };
        for entry in entries.flatten() {
            if entry.file_type().unwrap().is_dir() { left.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

/// Bytes of blocks, complete or being written.
pub(crate) fn taken(cache: &Path) -> u64 {
    let blocks = files(&cache.join("blocks")).into_iter().chain(files(&cache.join("fetch")));
    blocks.filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum()
}

#[test]
fn the_second_epoch_and_the_next_process_ask_the_origin_for_nothing() {
    let rig = Rig::new();
    let mut plain = rig.loader(None);
    let epochs = [drain(&mut plain), drain(&mut plain)];
    rig.asked();
    let mut cached = rig.loader(Some(1 << 30));
    assert_eq!(drain(&mut cached), epochs[0], "rows and order are as without a cache");
    let (bytes, requests) = rig.asked();
    assert!(bytes <= rig.bytes + (FILES as u64) * (64 << 10), "{bytes} bytes for {}", rig.bytes);
    // The read of a file's end, which comes first, covers its last row groups too.
    assert!(requests >= FILES * GROUPS / 2, "{requests}");
    assert_eq!(drain(&mut cached), epochs[1]);
    let after = cached.stats().cache;
    assert_eq!((rig.asked().0, after.damaged, after.failures), (0, 0, 0), "{after:?}");
    assert!(after.hit_rate() > 0.4 && after.misses as usize == requests, "{after:?}");
    drop(cached);
    let mut next = rig.loader(Some(1 << 30));
    assert_eq!(drain(&mut next), epochs[0]);
    assert_eq!(rig.asked(), (0, 0), "not even for footers");
    assert_eq!(next.stats().cache.origin_bytes, 0);
    // Fewer columns are part of what is cached.
    let mut options = rig.options(Some(1 << 30));
    options.columns.columns = vec!["id".to_owned()];
    assert_eq!(drain(&mut Loader::open(options).unwrap()), epochs[0]);
    assert_eq!(rig.asked(), (0, 0));
    let found = status(&rig.cache()).unwrap();
    assert_eq!(
        (found.bytes, found.accounted, found.objects as usize, found.awaited),
        (taken(&rig.cache()), taken(&rig.cache()), FILES, 0)
    );
}

#[test]
fn a_small_cache_keeps_its_limit_and_has_nearly_all_the_hits_that_fit() {
    let rig = Rig::new();
    let limit = rig.bytes / 2;
    let mut plain = rig.loader(None);
    let mut cached = rig.loader(Some(limit));
    let (mut before, mut rates) = (cached.stats().cache, Vec::new());
    for epoch in 0..5 {
        assert_eq!(drain(&mut cached), drain(&mut plain), "epoch {epoch}");
        let now = cached.stats().cache;
        let one = now.since(&before);
        // What was fetched ahead is read as a hit.
        rates.push((one.hit_bytes.saturating_sub(one.ahead_bytes) as f64 / rig.bytes as f64, one.hit_rate()));
        before = now;
        assert!(taken(&rig.cache()) <= limit, "{} of {limit}", taken(&rig.cache()));
    }
    println!("hit rates of five epochs at half: {rates:?}; {before:?}");
    let mean = |of: fn(&(f64, f64)) -> f64| rates[1..].iter().map(of).sum::<f64>() / 4.0;
    // On a busy machine the order of reads differs from the plan's, and blocks that wait for a slow disk are read from memory.
    assert!(mean(|rates| rates.0) < 0.6 && mean(|rates| rates.1) > 0.2, "{rates:?}");
}

/// The bytes that are asked for until nothing more is.
fn asked_in_the_end(rig: &Rig) -> u64 {
    let mut asked = 0;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        match rig.asked().0 {
            0 => return asked,
            more => asked += more,
        }
    }
}

/// Takes `steps` batches.
fn take(loader: &mut Loader, steps: usize) {
    for _ in 0..steps {
        loader.next().unwrap().unwrap();
    }
}

#[test]
fn an_epoch_that_a_cache_holds_in_part_is_fetched_evenly() {
    // The ends of files, which are kept longest, are a small part.
    let rig = Rig::of(ROWS_OF_LARGE);
    let options = |limit: Option<u64>, ahead| LoaderOptions { cache_ahead: Some(ahead), ..rig.large_options(limit) };
    let mut plain = Loader::open(options(None, 0)).unwrap();
    let epochs = [0; 3].map(|_| drain(&mut plain));
    drop(plain);
    for ahead in [0, 1 << 20] {
        let mut cached = Loader::open(options(Some(rig.bytes / 2), ahead)).unwrap();
        for epoch in &epochs {
            assert_eq!(drain(&mut cached), *epoch);
        }
        asked_in_the_end(&rig);
        let before = cached.stats().cache;
        let mut quarters = Vec::new();
        for _ in 0..4 {
            take(&mut cached, FILES * GROUPS * ROWS_OF_LARGE / 100 / 4);
            quarters.push(asked_in_the_end(&rig));
        }
        let one = cached.stats().cache.since(&before);
        println!("{ahead} ahead: {quarters:?} by quarters of {}; {one:?}", rig.bytes);
        let total: u64 = quarters.iter().sum();
        assert!(total < rig.bytes * 7 / 10, "{quarters:?}: half of the data is there");
        assert_eq!(one.ahead > 0, ahead > 0, "{one:?}");
        // An epoch has 32 row groups, half of which are fetched.
        let first_half = quarters[..2].iter().sum::<u64>();
        let is_even = (total * 2 / 5..total * 3 / 4).contains(&first_half);
        assert_eq!(is_even, ahead > 0, "{ahead} ahead: {quarters:?}");
        assert!(taken(&rig.cache()) <= rig.bytes / 2);
        drop(cached);
        fs::remove_dir_all(rig.cache()).unwrap();
    }
}

#[test]
fn a_loader_that_is_left_fetches_nothing_more() {
    let rig = Rig::of(ROWS_OF_LARGE);
    let ahead = rig.bytes / 8;
    let options = LoaderOptions { cache_ahead: Some(ahead), ..rig.large_options(Some(1 << 30)) };
    let mut left = Loader::open(options).unwrap();
    rig.asked();
    take(&mut left, 10);
    let asked = asked_in_the_end(&rig);
    // A row group of each lane was read, and what the pipeline holds; four more are on their way when the limit is passed.
    assert!(asked < rig.bytes * 3 / 4, "{asked} of {}, {:?}", rig.bytes, left.stats().cache);
    let fetched = left.stats().cache.ahead_bytes;
    assert!(fetched > 0 && fetched < 2 * ahead + rig.bytes / 8, "{fetched}, {ahead} allowed and what was read");
    take(&mut left, 1);
    drop(left);
    rig.asked();
    assert_eq!(asked_in_the_end(&rig), 0);
}

#[test]
fn a_cache_in_memory_serves_the_next_epoch() {
    let rig = Rig::new();
    let options = LoaderOptions { cache: Some("memory".to_owned()), ..rig.options(Some(1 << 30)) };
    let mut cached = Loader::open(options).unwrap();
    let mut plain = rig.loader(None);
    assert_eq!(drain(&mut cached), drain(&mut plain));
    rig.asked();
    let first = cached.stats().cache;
    let second = drain(&mut plain);
    assert!(rig.asked().0 > 0);
    assert_eq!((drain(&mut cached), rig.asked()), (second, (0, 0)));
    assert_eq!(cached.stats().cache.since(&first).origin_bytes, 0);
    let options = LoaderOptions { cache: Some("memory".to_owned()), cache_bytes: None, ..rig.options(None) };
    // The cache may already be open, with a limit.
    drop(cached);
    if let Err(error) = Loader::open(options) {
        assert!(matches!(error, Error::Config { option: "cache_bytes", .. }), "{error}");
    }
}

#[test]
fn whatever_happens_to_the_directory_the_rows_are_the_same() {
    let rig = Rig::new();
    let seed = support::seed("cache::whatever");
    let mut random = Random(seed);
    let mut plain = rig.loader(None);
    let mut cached = rig.loader(Some(1 << 30));
    assert_eq!(drain(&mut cached), drain(&mut plain));
    let rounds = if support::soak() { 60 } else { 6 };
    for round in 0..rounds {
        let blocks = files(&rig.cache().join("blocks"));
        let mut harmed = 0;
        for path in &blocks {
            if !random.chance(50) {
                continue;
            }
            let mut bytes = fs::read(path).unwrap();
            let at = random.index(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes.truncate(at),
                2 => bytes = fs::read(&blocks[random.index(blocks.len())]).unwrap(),
                _ => bytes[at..].iter_mut().for_each(|byte| *byte = 0),
            }
            fs::write(path, bytes).unwrap();
            harmed += 1;
        }
        let before = cached.stats().cache;
        assert_eq!(drain(&mut cached), drain(&mut plain), "round {round}, {harmed} blocks harmed");
        let found = cached.stats().cache.since(&before);
        assert!(found.damaged <= harmed && (harmed < 8 || found.damaged > 0), "{found:?} of {harmed}");
    }
    fs::write(rig.cache().join("ledger"), [7; 100]).unwrap();
    assert_eq!(drain(&mut cached), drain(&mut plain), "the ledger is damaged");
    fs::remove_dir_all(rig.cache()).unwrap();
    assert_eq!(drain(&mut cached), drain(&mut plain), "the directory is gone");
}

#[test]
fn an_object_that_is_replaced_is_never_served_from_its_old_blocks() {
    let rig = Rig::new();
    let mut cached = rig.loader(Some(1 << 30));
    let old = drain(&mut cached);
    // All of it is cached: the planned version stays readable.
    let data = rig.root.path().join("data");
    let path = data.join("part-000.parquet");
    support::write(&data, &[vec![ROWS; GROUPS + 1]], 6);
    server_put(&rig, &path, "\"b\"");
    let second = drain(&mut cached);
    assert_eq!(second.iter().flatten().count(), old.iter().flatten().count());
    drop(cached);
    let new = drain(&mut rig.loader(None));
    assert_ne!(new.iter().flatten().count(), old.iter().flatten().count());
    assert_eq!(drain(&mut rig.loader(Some(1 << 30))), new, "whoever opens it now has the new version");
    // If only a part is cached, the error is that of a loader without a cache.
    remove(&rig.cache(), false).unwrap();
    let mut cached = rig.loader(Some(rig.bytes / 4));
    cached.next().unwrap().unwrap();
    for number in 0..FILES {
        let path = data.join(format!("part-{number:03}.parquet"));
        server_put(&rig, &path, "\"c\"");
    }
    // All of the first epoch may already have been read.
    let mut ends = 0;
    let error = loop {
        match cached.next() {
            Ok(Some(_)) => {}
            Ok(None) => ends += 1,
            Err(error) => break error,
        }
        assert!(ends < 2, "an epoch of which three quarters are gone ended without an error");
    };
    assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
}

fn server_put(rig: &Rig, path: &Path, etag: &'static str) {
    let name = path.file_name().unwrap().to_str().unwrap();
    rig.server.put(&format!("bucket/d/{name}"), fs::read(path).unwrap(), Marks { etag: Some(etag), modified: None });
}

#[test]
fn objects_without_versions_and_files_of_this_machine_are_not_kept() {
    let rig = Rig::new();
    let bytes = fs::read(rig.root.path().join("data/part-000.parquet")).unwrap();
    rig.server.put("plain/x.parquet", bytes, Marks::default());
    let urls = vec![rig.server.url("plain/x.parquet")];
    let mut cached = Loader::open(LoaderOptions { urls, ..rig.options(Some(1 << 30)) }).unwrap();
    assert_eq!(drain(&mut cached).iter().flatten().count(), GROUPS * ROWS);
    let stats = cached.stats().cache;
    assert!(stats.bypassed >= GROUPS as u64 && stats.kept == 0 && stats.hits == 0, "{stats:?}");
    drop(cached);
    remove(&rig.cache(), false).unwrap();
    let urls = vec![rig.root.path().join("data").to_str().unwrap().to_owned()];
    let mut local = Loader::open(LoaderOptions { urls, ..rig.options(Some(1 << 30)) }).unwrap();
    assert_eq!(drain(&mut local).iter().flatten().count(), FILES * GROUPS * ROWS);
    assert!(!rig.cache().exists(), "nothing is made for files of this machine");
    assert_eq!(local.stats().cache, Default::default());
}

#[test]
fn a_foreign_directory_is_refused_and_left_alone() {
    let rig = Rig::new();
    fs::create_dir(rig.cache()).unwrap();
    fs::write(rig.cache().join("thesis.tex"), "work of years").unwrap();
    let error = Loader::open(rig.options(Some(1 << 30))).unwrap_err();
    assert!(matches!(error, Error::Config { option: "cache", .. }), "{error}");
    for outcome in
        [remove(&rig.cache(), false).map(drop), verify(&rig.cache()).map(drop), status(&rig.cache()).map(drop)]
    {
        assert!(matches!(outcome, Err(Error::Config { option: "cache", .. })));
    }
    assert_eq!(files(&rig.cache()).len(), 1);
}

#[test]
fn a_warm_cache_asks_the_origin_for_nothing() {
    let rig = Rig::new();
    let source = LocalSource::open(rig.options(Some(1 << 30))).unwrap();
    let warmed = source.warm(2, &|_, _| true).unwrap();
    assert!(warmed.is_whole() && warmed.left_out == 0 && warmed.loaded == warmed.row_groups, "{warmed:?}");
    assert_eq!(warmed.row_groups as usize, FILES * GROUPS);
    drop(source);
    rig.asked();
    let mut plain = rig.loader(None);
    let expected = drain(&mut plain);
    drop(plain);
    rig.asked();
    let mut cached = rig.loader(Some(1 << 30));
    assert_eq!(drain(&mut cached), expected);
    assert_eq!(rig.asked(), (0, 0));
    // A second warm-up finds all of it; a stopped one resumes.
    let again = LocalSource::open(rig.options(Some(1 << 30))).unwrap().warm(1, &|_, _| true).unwrap();
    assert_eq!((again.cache.misses, again.cache.hits as usize), (0, FILES * GROUPS));
    drop(cached);
    remove(&rig.cache(), false).unwrap();
    let source = LocalSource::open(rig.options(Some(1 << 30))).unwrap();
    let stopped = source.warm(1, &|done, all| done < all / 3).unwrap();
    assert!(stopped.stopped && !stopped.is_whole() && stopped.loaded < stopped.row_groups, "{stopped:?}");
    let rest = source.warm(1, &|_, _| true).unwrap();
    assert!(rest.is_whole() && rest.cache.hits >= stopped.loaded, "{rest:?} after {stopped:?}");
    drop(source);
    // Row groups that do not fit are reported, and those needed first are cached.
    remove(&rig.cache(), false).unwrap();
    let limit = rig.bytes / 2;
    let source = LocalSource::open(rig.options(Some(limit))).unwrap();
    let half = source.warm(1, &|_, _| true).unwrap();
    assert!(half.left_out > 0 && half.loaded + half.left_out == half.row_groups, "{half:?}");
    assert!(taken(&rig.cache()) <= limit);
    drop(source);
    rig.asked();
    let mut cached = rig.loader(Some(limit));
    for _ in 0..cached.steps() / 4 {
        cached.next().unwrap().unwrap();
    }
    // Row groups read ahead may be beyond it.
    assert!(cached.stats().cache.hits >= half.loaded / 2, "{:?}", cached.stats().cache);
    let local = LocalSource::open(LoaderOptions {
        urls: vec![rig.root.path().join("data").to_str().unwrap().to_owned()],
        ..rig.options(Some(limit))
    });
    assert!(matches!(local.unwrap().warm(1, &|_, _| true), Err(Error::Config { option: "cache", .. })));
}

#[test]
fn files_that_are_smaller_than_their_ends_are_warm_once_they_are_open() {
    let rig = Rig::of(100);
    assert!(rig.bytes < FILES as u64 * (64 << 10), "{}", rig.bytes);
    let source = LocalSource::open(rig.options(Some(2 * rig.bytes))).unwrap();
    let warmed = source.warm(1, &|_, _| true).unwrap();
    assert!(warmed.is_whole() && warmed.left_out == 0 && warmed.loaded == warmed.row_groups, "{warmed:?}");
    assert_eq!(warmed.row_groups as usize, FILES * GROUPS);
    rig.asked();
    let again = source.warm(1, &|_, _| true).unwrap();
    assert_eq!((again.cache.misses, again.left_out, rig.asked()), (0, 0, (0, 0)), "{again:?}");
}

/// Child: reads epochs through a cache, and reports each correct one.
pub(crate) fn reader() {
    let set = |name: &str| support::variable(name).unwrap();
    let storage: std::collections::BTreeMap<String, String> = serde_json::from_str(&set("CACHE_STORAGE")).unwrap();
    let mut options = options(&storage, set("CACHE_SEED").parse().unwrap());
    options.cache = Some(set("CACHE_DIR"));
    options.cache_bytes = Some(set("CACHE_LIMIT").parse().unwrap());
    let peers = support::variable("CACHE_PEERS").unwrap_or_default();
    options.cache_peers = peers.split(',').filter(|peer| !peer.is_empty()).map(str::to_owned).collect();
    let mut loader = Loader::open(options).unwrap();
    for _ in 0..set("CACHE_EPOCHS").parse::<u64>().unwrap() {
        let mut ids: Vec<i64> = drain(&mut loader).into_iter().flatten().collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..(FILES * GROUPS * ROWS) as i64), "rows are missing or come twice");
    }
    let stats = loader.stats().cache;
    assert_eq!((stats.damaged, stats.failures), (0, 0), "{stats:?}");
    println!("read {} {}", stats.origin_bytes, stats.hit_bytes + stats.shared_bytes);
}

/// Starts such a process with `seed`.
fn start(rig: &Rig, seed: u64, limit: u64, epochs: u64) -> std::process::Child {
    let storage = serde_json::to_string(&rig.server.storage_options()).unwrap();
    let variables = [
        ("CACHE_STORAGE", storage),
        ("CACHE_SEED", seed.to_string()),
        ("CACHE_DIR", rig.cache().to_str().unwrap().to_owned()),
        ("CACHE_LIMIT", limit.to_string()),
        ("CACHE_EPOCHS", epochs.to_string()),
    ];
    child::start("cache::reader", &variables)
}

pub(crate) fn succeeded(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("read ")
}

#[test]
fn processes_that_share_a_cache_fetch_each_block_once() {
    let rig = Rig::new();
    let children: Vec<_> = (0..3).map(|_| start(&rig, 7, 1 << 30, 1)).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(succeeded(&output), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let (bytes, _) = rig.asked();
    let most = rig.bytes + (FILES as u64) * (64 << 10);
    assert!(bytes <= most, "{bytes} bytes of {most} for three processes");
}

#[test]
fn kills_leave_a_cache_whole_and_within_its_limit() {
    let rig = Rig::new();
    let kills = if support::soak() { 200 } else { 20 };
    let seed = support::seed("cache::kills");
    let mut random = Random(seed);
    // Two thirds fit, so that blocks are replaced.
    let limit = rig.bytes * 2 / 3;
    let (mut killed, mut ended) = (0, 0);
    while killed < kills {
        let mut children: Vec<_> = (0..3).map(|number| start(&rig, number, limit, 50)).collect();
        std::thread::sleep(Duration::from_millis(100 + random.below(500)));
        for child in &mut children {
            child.kill().unwrap();
        }
        for child in children {
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                ended += 1;
                continue;
            }
            let by_kill = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
            assert!(by_kill, "{}", String::from_utf8_lossy(&output.stderr));
            killed += 1;
        }
        assert!(taken(&rig.cache()) <= limit, "{} of {limit} after {killed} kills", taken(&rig.cache()));
    }
    let output = start(&rig, 9, limit, 2).wait_with_output().unwrap();
    assert!(succeeded(&output), "{}", String::from_utf8_lossy(&output.stderr));
    let (found, checked) = (status(&rig.cache()).unwrap(), verify(&rig.cache()).unwrap());
    println!("{killed} kills, {ended} ended: {found:?}");
    assert_eq!(checked.damaged, Vec::<String>::new());
    assert_eq!((found.awaited, found.accounted), (0, found.bytes), "nothing is left of those who were killed");
    assert!(checked.good > 0 && checked.bytes == found.bytes);
}

#[cfg(feature = "cli")]
#[test]
fn the_command_line_warms_shows_checks_and_removes() {
    let rig = Rig::new();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_bowstring")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().unwrap(), text, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let cache = rig.cache();
    let cache = cache.to_str().unwrap();
    let storage: Vec<_> = rig.server.storage_options().iter().map(|(key, value)| format!("{key}={value}")).collect();
    let storage = storage.join(",");
    let warm = |more: &[&str]| {
        let all = ["warm", "s3://bucket/d", "--batch-size=100", "--storage-options", &storage, "--cache", cache];
        run(&[&all, more].concat())
    };
    let local = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/pictures.parquet");
    let (code, _, errors) = run(&["warm", local, "--batch-size=5", "--cache", cache]);
    assert!(code == 2 && errors.contains("all data are files of this machine"), "{errors}");
    let (code, text, errors) = warm(&["--cache-bytes", "1GiB"]);
    assert_eq!(code, 0, "{text}{errors}");
    assert!(text.contains(&format!("{} of {} row groups are in {cache}", FILES * GROUPS, FILES * GROUPS)), "{text}");
    rig.asked();
    let (code, text, _) = warm(&["--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &report["counters"]["misses"], &report["whole"]), (0, &0.into(), &true.into()), "{text}");
    assert_eq!(rig.asked(), (0, 0));
    for verb in ["status", "verify", "upload"] {
        let (code, text, errors) = run(&["cache", verb, cache, "--json"]);
        assert_eq!(code, 0, "{verb}: {errors}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["schema"], 1, "{verb}: {text}");
        assert_eq!(run(&["cache", verb, cache, "--quiet"]), (0, String::new(), String::new()), "{verb}");
    }
    assert_eq!(report["schema"], 1, "{report}");
    let (code, text, _) = run(&["cache", "status", cache]);
    assert!(code == 0 && text.contains(&format!("of {FILES} objects")), "{text}");
    assert_eq!(run(&["cache", "verify", cache]).0, 0);
    let block = files(&rig.cache().join("blocks")).remove(0);
    fs::write(&block, "damaged").unwrap();
    let (code, text, _) = run(&["cache", "verify", cache]);
    assert!(code == 3 && text.contains(block.to_str().unwrap()) && !block.exists(), "{text}");
    assert_eq!(run(&["cache", "verify", cache]).0, 0);
    let (code, text, _) = run(&["cache", "rm", cache]);
    assert!(code == 0 && !rig.cache().exists(), "{text}");
    assert_eq!(run(&["cache", "rm", cache]).0, 2, "there is none any more");
}
