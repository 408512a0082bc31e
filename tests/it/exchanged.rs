//! Names that somebody exchanges with links while data is written, replaced, deleted and cached: nothing elsewhere is written, changed or
//! deleted, and nothing from elsewhere is served.
//!
//! A thread has the rights that another user has in a shared directory: it gives any name in it to a link that leads out, and back, as
//! fast as it can. The work may fail for as long as that happens.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use bowstring::dataset::{DatasetWriter, WriterOptions};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::{self, HANG, Random};

/// Exchanges of each way of writing.
fn exchanges() -> usize {
    if support::soak() { 10_000 } else { 1_000 }
}

/// All that is at and below `directory`, with what would tell a change.
fn state(directory: &Path) -> BTreeMap<PathBuf, (u64, u64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut places = vec![directory.to_owned()];
    while let Some(place) = places.pop() {
        let about = fs::symlink_metadata(&place).unwrap();
        let content = if about.is_file() { fs::read(&place).unwrap() } else { Vec::new() };
        if about.is_dir() {
            places.extend(fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.insert(place, (about.ino(), about.len(), about.mtime(), about.mtime_nsec(), content));
    }
    found
}

/// A directory of somebody, with the names that bowstring gives to what it makes.
fn precious(directory: &Path) {
    let content = "work of years";
    for name in [
        "data",
        "tasks/0",
        "tasks/1",
        "old",
        "attempts/x",
        "_staged/0",
        "_staged/1",
        "train/00000001-w0",
        "blocks/00",
        "fetch",
        "saved",
    ] {
        fs::create_dir_all(directory.join(name)).unwrap();
        fs::write(directory.join(name).join("part-00000.parquet"), content).unwrap();
    }
    for name in [
        "part-00000.parquet",
        "_SUCCESS",
        "journal",
        "ledger",
        "lock",
        "_lock",
        "_record.json",
        "d",
        "train/_record.json",
    ] {
        if !directory.join(name).exists() {
            fs::write(directory.join(name), content).unwrap();
        }
    }
}

/// Exchanges names in a directory with links to elsewhere, until it has done so often enough.
struct Exchanger {
    done: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Exchanger {
    fn begin(shared: &Path, elsewhere: &Path, names: impl Fn() -> Vec<String> + Send + 'static, seed: u64) -> Self {
        let (done, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stop) = (Arc::clone(&done), Arc::clone(&end));
        let (shared, elsewhere) = (shared.to_owned(), elsewhere.to_owned());
        let thread = std::thread::spawn(move || {
            let mut random = Random(seed);
            let is_decoy = |path: &Path| fs::read_link(path).is_ok_and(|target| target == elsewhere);
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let names = names();
                if names.is_empty() {
                    std::thread::yield_now();
                    continue;
                }
                let (name, decoy) = (shared.join(random.pick(&names)), shared.join(format!("decoy-{number}")));
                symlink(&elsewhere, &decoy).unwrap();
                let exchanged = |flags| renameat_with(CWD, &decoy, CWD, &name, flags).is_ok();
                if exchanged(RenameFlags::EXCHANGE) {
                    count.fetch_add(1, Ordering::Relaxed);
                    for _ in 0..random.below(20) {
                        std::thread::yield_now();
                    }
                    // Back, if the link is still there, or the name is free by now.
                    if is_decoy(&name) && exchanged(RenameFlags::EXCHANGE) || exchanged(RenameFlags::NOREPLACE) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                if is_decoy(&decoy) {
                    let _ = fs::remove_file(&decoy);
                }
                std::thread::sleep(Duration::from_micros(random.below(300)));
            }
        });
        Self { done, end, thread: Some(thread) }
    }

    fn done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    fn end(mut self) -> usize {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.done()
    }
}

/// The names in `directory` that `is_meant`.
fn names(directory: &Path, is_meant: fn(&str) -> bool) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with("decoy-") && is_meant(name)).collect()
}

/// Works while names of `shared` are exchanged, and checks elsewhere. The work says what came of it.
fn attacked(what: &str, is_meant: fn(&str) -> bool, mut work: impl FnMut(&Path, u64) -> Result<(), String>) {
    let seed = support::seed("exchanged::");
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let (shared, elsewhere) = (root.join("shared"), root.join("home/precious"));
    fs::create_dir(&shared).unwrap();
    fs::create_dir_all(&elsewhere).unwrap();
    precious(&elsewhere);
    let home = root.join("home");
    work(&shared, 0).unwrap();
    let before = state(&home);
    let (meant, wanted) = (shared.clone(), exchanges());
    let exchanger = Exchanger::begin(&shared, &elsewhere, move || names(&meant, is_meant), seed);
    let (start, mut good, mut outcomes) = (Instant::now(), 0, BTreeMap::<String, usize>::new());
    let mut round = 1;
    // On a busy machine few rounds are.
    let least = if support::soak() { 10 } else { 1 };
    while exchanger.done() < wanted || good < least {
        assert!(start.elapsed() < 20 * HANG, "{what}: {} exchanges", exchanger.done());
        match work(&shared, round) {
            Ok(()) => good += 1,
            Err(error) => {
                *outcomes.entry(error).or_default() += 1;
                // On a busy machine the link may stay for a while.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        round += 1;
    }
    let done = exchanger.end();
    let after = state(&home);
    let changed: Vec<_> = before
        .iter()
        .filter(|(place, was)| after.get(*place) != Some(was))
        .map(|(place, _)| format!("changed: {}", place.display()))
        .chain(
            after.keys().filter(|place| !before.contains_key(*place)).map(|place| format!("new: {}", place.display())),
        )
        .collect();
    let mut kinds: Vec<_> = outcomes.iter().map(|(error, count)| format!("{count} x {error}")).collect();
    kinds.sort();
    println!(
        "{what}: {done} exchanges, {round} rounds, {good} of them good; others: {:#?}",
        &kinds[..kinds.len().min(12)]
    );
    assert!(changed.is_empty(), "{what}, seed {seed}: {changed:#?}");
    assert!(good > 0 && good < round, "{what}: {good} of {round} rounds were good");
    // The process is none the worse for it: where nobody interferes, it works.
    fs::remove_dir_all(&shared).unwrap();
    fs::create_dir(&shared).unwrap();
    work(&shared, round.next_multiple_of(8)).unwrap();
}

fn batch(round: u64) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let first = i64::try_from(round).unwrap() * 10;
    RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(first..first + 10))]).unwrap()
}

/// The error without numbers and places, to count.
fn kind(error: &bowstring::Error) -> String {
    error.to_string().split('/').next().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).take(60).collect()
}

#[test]
fn a_writer_stays_in_its_directory() {
    attacked(
        "writer",
        |_| true,
        |shared, round| {
            let batch = batch(round);
            let options = WriterOptions { overwrite: true, ..WriterOptions::default() };
            let written = || {
                let mut writer = DatasetWriter::create(&shared.join("d"), batch.schema(), options.clone())?;
                writer.write(&batch)?;
                writer.finish().map(drop)
            };
            written().map_err(|error| kind(&error))
        },
    );
}

#[cfg(feature = "convert")]
#[test]
fn a_conversion_stays_in_its_directory() {
    use bowstring::convert::{ConvertOptions, Format, Progress, convert};
    attacked(
        "convert",
        |name| name != "source.csv",
        |shared, round| {
            let source = shared.with_file_name("source.csv");
            fs::write(&source, format!("id\n{round}\n")).unwrap();
            let options = ConvertOptions {
                to: Some(Format::Parquet),
                overwrite: true,
                jobs: Some(1),
                ..ConvertOptions::default()
            };
            let done = convert(source.to_str().unwrap(), &shared.join("d"), &options, &Progress::default());
            done.map(drop).map_err(|error| kind(&error))
        },
    );
}

#[cfg(feature = "flight")]
#[test]
fn a_server_that_takes_datasets_stays_in_its_directory() {
    use bowstring::flight::put::{Mode, Staging, StagingOptions, WriteId};
    let runtime = crate::dataset::runtime();
    let mut staging = None;
    attacked(
        "put",
        |_| true,
        |shared, round| {
            // A server waits for the lock of one that ends, which may be behind a name that was exchanged.
            let work = async {
                // A new server now and then: its start removes what a killed one left.
                if round % 8 == 0 {
                    staging = None;
                }
                let staging = match &staging {
                    Some(staging) => staging,
                    None => staging.insert(Staging::directory(shared, StagingOptions::default()).await?),
                };
                let write = WriteId::new("train", &format!("w{round}"))?;
                let batch = batch(round);
                let batches = futures::stream::iter([Ok(batch.clone())]);
                let staged = staging.stage(&write, 0, 0, batch.schema(), batches).await?;
                let mode = if round % 3 == 0 { Mode::Append } else { Mode::Replace };
                staging.commit(&write, mode, &[staged.token]).await?;
                if round % 5 == 0 {
                    staging.drop_dataset("train").await?;
                }
                Ok(())
            };
            let done = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(10), work).await });
            match done {
                Ok(done) => done.map_err(|error: bowstring::Error| kind(&error)),
                Err(_) => Err("late".to_owned()),
            }
        },
    );
}

#[cfg(feature = "cloud")]
#[test]
fn a_cache_stays_in_its_directory() {
    use bowstring::{Loader, LoaderOptions};
    let data = tempfile::tempdir().unwrap();
    support::write(data.path(), &[vec![100; 4]], 2);
    let server = crate::dataset::Server::start();
    server.upload(data.path(), "bucket/d");
    let expected: Vec<i64> = (0..400).collect();
    attacked(
        "cache",
        |_| true,
        |shared, round| {
            let options = LoaderOptions {
                urls: vec!["s3://bucket/d".to_owned()],
                storage_options: server.storage_options(),
                seed: round,
                cache: Some(shared.join("cache").to_str().unwrap().to_owned()),
                cache_bytes: Some(1 << 20),
                ..support::options(Path::new(""), 100, 0, 1)
            };
            let mut loader = Loader::open(options).map_err(|error| kind(&error))?;
            let mut ids: Vec<i64> = support::drain(&mut loader).into_iter().flatten().collect();
            ids.sort_unstable();
            // Whatever becomes of the cache, the rows are right.
            assert_eq!(ids, expected, "round {round}");
            Ok(())
        },
    );
}

/// A cache that is exchanged for another one is not read, and nothing is put there.
#[cfg(feature = "cloud")]
#[test]
fn what_lies_where_a_cache_was_is_not_served() {
    use bowstring::{Loader, LoaderOptions};
    let data = tempfile::tempdir().unwrap();
    // More than opening reads.
    support::write(data.path(), &[vec![20_000; 4]], 6);
    let server = crate::dataset::Server::start();
    server.upload(data.path(), "bucket/d");
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let (own, other) = (root.join("own"), root.join("other"));
    let open = |cache: &Path| {
        let options = LoaderOptions {
            urls: vec!["s3://bucket/d".to_owned()],
            storage_options: server.storage_options(),
            cache: Some(cache.to_str().unwrap().to_owned()),
            cache_bytes: Some(64 << 20),
            ..support::options(Path::new(""), 100, 0, 1)
        };
        Loader::open(options).unwrap()
    };
    let asked = || server.requests().iter().filter(|request| request.contains("bytes=")).count();
    // All blocks, as another user may have them.
    let rows = support::drain(&mut open(&other));
    assert!(asked() > 0);
    let mut again = open(&other);
    asked();
    assert_eq!(support::drain(&mut again), rows);
    assert_eq!(asked(), 0, "a full cache is read");
    let mut loader = open(&own);
    asked();
    symlink(&other, root.join("link")).unwrap();
    renameat_with(CWD, &own, CWD, root.join("link"), RenameFlags::EXCHANGE).unwrap();
    let before = state(&other);
    assert_eq!(support::drain(&mut loader), rows);
    assert!(asked() > 0, "blocks came from where the link leads");
    assert_eq!(state(&other), before);
    // What was read is where the cache was opened.
    let kept = state(&root.join("link"))
        .keys()
        .filter(|path| path.parent().unwrap().parent().unwrap().ends_with("blocks"))
        .count();
    assert!(kept > 0, "nothing was kept");
}
