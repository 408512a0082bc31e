//! A source that changes while it is read is an error naming it: never a mixture, never stale data.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use bowstring::dataset::{Dataset, OpenOptions, Projection};
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::dataset::{Marks, Server, open, read_group, runtime};
use crate::support::{self, Random};

/// Opens `url` up to the moment after planning, before reading.
fn opened(url: &str) -> (Dataset, Projection) {
    let dataset = open(&[url], OpenOptions::default()).unwrap();
    let projection = dataset.project(&["id".to_owned(), "x".to_owned()]).unwrap();
    (dataset, projection)
}

fn refused(result: Result<impl std::fmt::Debug>, what: &str) {
    match result {
        Err(Error::SourceChanged { file, was, now }) => {
            assert!(file.ends_with("d.parquet") && was != now, "{what}: {file} {was} {now}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

type Change = fn(&Path);

/// Changes of a file, each with its name. All of them change its time, as any writer does.
fn changes() -> Vec<(&'static str, Change)> {
    fn touch(path: &Path) {
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(SystemTime::now() + Duration::from_secs(7))
            .unwrap();
    }
    vec![
        ("rewritten in place, same size", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[100] ^= 1;
            fs::write(path, bytes).unwrap();
            touch(path);
        }),
        ("truncated", |path| File::options().write(true).open(path).unwrap().set_len(100).unwrap()),
        ("grown", |path| fs::write(path, [fs::read(path).unwrap(), vec![0; 9]].concat()).unwrap()),
        ("emptied", |path| fs::write(path, []).unwrap()),
        ("replaced by a copy", |path| {
            let other = path.with_extension("new");
            fs::copy(path, &other).unwrap();
            // The same time and size: only the inode differs.
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
            fs::rename(other, path).unwrap();
        }),
        ("removed", |path| fs::remove_file(path).unwrap()),
    ]
}

#[test]
fn a_local_file_that_changes_is_refused() {
    for (what, change) in changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.parquet");
        fs::copy("fixtures/corrupt/good.parquet", &path).unwrap();
        let (dataset, projection) = opened(path.to_str().unwrap());
        let runtime = runtime();
        let before = runtime.block_on(dataset.fetch(0, &projection)).unwrap();
        change(&path);
        refused(runtime.block_on(dataset.fetch(1, &projection)), what);
        refused(runtime.block_on(dataset.fetch(0, &projection)), what);
        // Data read before the change is complete and stays so.
        assert_eq!(dataset.decode(&before, &projection, 0).unwrap().len(), 50, "{what}");
    }
}

/// A server looks for that before it gives a dataset that it has open to a new client.
#[test]
fn a_dataset_whose_file_changed_is_not_current() {
    let runtime = runtime();
    let current = |dataset: &Dataset, url: &str| {
        runtime.block_on(dataset.is_current(&[url.to_owned()], &OpenOptions::default())).unwrap()
    };
    for (what, change) in changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.parquet");
        fs::copy("fixtures/corrupt/good.parquet", &path).unwrap();
        // Named, which is not listed, and found in its directory.
        let urls = [path.as_path(), folder.path()].map(|at| at.to_str().unwrap().to_owned());
        let opened = urls.each_ref().map(|url| open(&[url], OpenOptions::default()).unwrap());
        assert!(opened.iter().zip(&urls).all(|(dataset, url)| current(dataset, url)), "{what}");
        change(&path);
        assert!(opened.iter().zip(&urls).all(|(dataset, url)| !current(dataset, url)), "{what}");
    }
    let good = fs::read("fixtures/corrupt/good.parquet").unwrap();
    let server = Server::start();
    let url = server.url("a/d.parquet");
    server.put("a/d.parquet", good.clone(), Marks { etag: Some("\"1\""), modified: None });
    let dataset = open(&[&url], OpenOptions::default()).unwrap();
    assert!(current(&dataset, &url));
    server.put("a/d.parquet", good, Marks { etag: Some("\"2\""), modified: None });
    assert!(!current(&dataset, &url));
}

/// A file that shrinks between two row groups of an epoch is an error that names it, in the loader that people use: nothing is
/// memory-mapped, so a missing page cannot kill the process.
#[test]
fn a_local_file_that_shrinks_while_a_loader_reads_it_is_an_error() {
    for left in [0, 4, 100, 2000] {
        let folder = tempfile::tempdir().unwrap();
        support::write(folder.path(), &[vec![50; 200]], 4);
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let options = LoaderOptions {
            prefetch: 1,
            lanes: Some(1),
            window_rows: Some(50),
            ..support::options(folder.path(), 5, 0, 1)
        };
        let mut loader = Loader::open(options).unwrap();
        loader.next().unwrap().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(left).unwrap();
        let error = loop {
            match loader.next() {
                Ok(batch) => assert!(batch.is_some(), "the epoch ended without its rows"),
                Err(error) => break error,
            }
        };
        let text = error.chain();
        assert!(matches!(error, Error::SourceChanged { .. }), "{left} bytes: {text}");
        assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "{text}");
    }
}

#[test]
fn a_remote_object_that_changes_is_refused_by_any_of_its_marks() {
    let good = fs::read("fixtures/corrupt/good.parquet").unwrap();
    let mut other = good.clone();
    other[100] ^= 1;
    let longer = [good.as_slice(), &[0; 9]].concat();
    let cases = [
        (
            "strong tag",
            Marks { etag: Some("\"1\""), modified: None },
            &other,
            Marks { etag: Some("\"2\""), modified: None },
        ),
        (
            "weak tag",
            Marks { etag: Some("W/\"1\""), modified: None },
            &other,
            Marks { etag: Some("W/\"2\""), modified: None },
        ),
        (
            "time beside a weak tag, which does not promise the same bytes",
            Marks { etag: Some("W/\"1\""), modified: Some(1) },
            &other,
            Marks { etag: Some("W/\"1\""), modified: Some(2) },
        ),
        ("time", Marks { etag: None, modified: Some(1) }, &other, Marks { etag: None, modified: Some(2) }),
        ("size", Marks::default(), &longer, Marks::default()),
    ];
    let runtime = runtime();
    for (what, before, bytes, after) in cases {
        let server = Server::start();
        server.put("a/d.parquet", good.clone(), before);
        let url = server.url("a/d.parquet");
        let (dataset, projection) = runtime.block_on(async {
            let dataset = Dataset::open(&[url], OpenOptions::default()).await.unwrap();
            let projection = dataset.project(&["id".to_owned()]).unwrap();
            (dataset, projection)
        });
        let first = runtime.block_on(read_group(&dataset, &projection, 0)).unwrap();
        assert_eq!(first.num_rows(), 50, "{what}");
        server.put("a/d.parquet", bytes.clone(), after);
        refused(runtime.block_on(dataset.fetch(1, &projection)), what);
        server.remove("a/d.parquet");
        refused(runtime.block_on(dataset.fetch(2, &projection)), what);
    }
}

#[test]
fn a_server_that_ignores_conditions_is_caught_too() {
    let good = fs::read("fixtures/corrupt/good.parquet").unwrap();
    let server = Server::start();
    server.ignore_conditions();
    server.put("d.parquet", good.clone(), Marks { etag: Some("\"1\""), modified: None });
    let runtime = runtime();
    let dataset = runtime.block_on(Dataset::open(&[server.url("d.parquet")], OpenOptions::default())).unwrap();
    let projection = dataset.project(&["id".to_owned()]).unwrap();
    assert!(runtime.block_on(dataset.fetch(0, &projection)).is_ok());
    server.put("d.parquet", good, Marks { etag: Some("\"2\""), modified: None });
    refused(runtime.block_on(dataset.fetch(0, &projection)), "conditions ignored");
}

#[test]
fn an_object_that_is_only_touched_is_still_the_same() {
    let good = fs::read("fixtures/corrupt/good.parquet").unwrap();
    let server = Server::start();
    server.put("d.parquet", good.clone(), Marks { etag: Some("\"1\""), modified: Some(1) });
    let runtime = runtime();
    let dataset = runtime.block_on(Dataset::open(&[server.url("d.parquet")], OpenOptions::default())).unwrap();
    let projection = dataset.project(&["id".to_owned()]).unwrap();
    server.put("d.parquet", good, Marks { etag: Some("\"1\""), modified: Some(2) });
    assert!(runtime.block_on(dataset.fetch(0, &projection)).is_ok());
}

/// Files of a dataset, their row groups, and the rows of one: more than a loader reads ahead.
const FILES: usize = 3;
const GROUPS: usize = 60;
const GROUP: usize = 50;

/// A file whose ids tell its version. All versions have the same layout to the byte, so a mixture is no damage.
fn version(version: i64, file: usize) -> Vec<u8> {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(Some(GROUP));
    let mut writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties.build())).unwrap();
    let first = version * 1_000_000 + (file * GROUPS * GROUP) as i64;
    let ids = Int64Array::from_iter_values(first..first + (GROUPS * GROUP) as i64);
    writer.write(&RecordBatch::try_new(schema, vec![Arc::new(ids)]).unwrap()).unwrap();
    writer.into_inner().unwrap()
}

/// Loads an epoch, in the middle of which `change` replaces `files` by another version. Returns true if the loader noticed.
fn epoch(options: LoaderOptions, after: u64, change: impl FnOnce()) -> bool {
    let mut loader = Loader::open(options).unwrap();
    let (mut ids, mut change) = (Vec::new(), Some(change));
    for step in 0.. {
        if step == after {
            change.take().unwrap()();
        }
        match loader.next() {
            Ok(Some(batch)) if batch.epoch == 0 => ids.extend(support::ids(&batch)),
            Ok(_) => break,
            Err(Error::SourceChanged { .. }) => {
                assert!(ids.iter().all(|id| *id < 1_000_000), "rows of a version that was never opened");
                return true;
            }
            Err(error) => panic!("{}", error.chain()),
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..(FILES * GROUPS * GROUP) as i64).collect::<Vec<_>>(), "rows of one version, each once");
    false
}

#[test]
fn a_file_that_is_replaced_at_a_random_moment_is_never_mixed() {
    let given = std::env::var("BOWSTRING_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = given.map_or(0..if support::soak() { 400 } else { 40 }, |seed| seed..seed + 1);
    let (mut noticed, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        println!("seed {seed}: BOWSTRING_SEED={seed} cargo test --test it replaced_at_a_random_moment");
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start();
        let path = |file: usize| folder.path().join(format!("{file}.parquet"));
        let etag = random.pick(&[Some("\"0\""), Some("W/\"0\""), None]);
        for file in 0..FILES {
            fs::write(path(file), version(0, file)).unwrap();
            // Long ago, so that any writing shows in the time.
            let ago = SystemTime::now() - Duration::from_secs(1000);
            File::options().write(true).open(path(file)).unwrap().set_modified(ago).unwrap();
            server.put(&format!("{file}.parquet"), version(0, file), Marks { etag, modified: Some(1) });
        }
        let is_local = random.chance(50);
        let urls = (0..FILES).map(|file| match is_local {
            true => path(file).to_str().unwrap().to_owned(),
            false => server.url(&format!("{file}.parquet")),
        });
        let options = LoaderOptions {
            urls: urls.collect(),
            prefetch: 1 + random.index(4),
            lanes: Some(1 + random.below(3) as u32),
            window_rows: Some(50),
            threads: Some(1 + random.index(2)),
            seed,
            ..support::options(folder.path(), 50, 0, 1)
        };
        let replaced: Vec<usize> = if random.chance(30) { (0..FILES).collect() } else { vec![random.index(FILES)] };
        let in_place = random.chance(50);
        let change = || {
            for file in &replaced {
                let bytes = version(1, *file);
                let newer = etag.map(|etag| if etag.starts_with('W') { "W/\"1\"" } else { "\"1\"" });
                server.put(&format!("{file}.parquet"), bytes.clone(), Marks { etag: newer, modified: Some(2) });
                if in_place {
                    fs::write(path(*file), bytes).unwrap();
                } else {
                    fs::write(path(*file).with_extension("new"), bytes).unwrap();
                    fs::rename(path(*file).with_extension("new"), path(*file)).unwrap();
                }
            }
        };
        // There are 180 batches: some files are replaced after the last one.
        noticed += u64::from(epoch(options, random.below(200), change));
    }
    println!("{noticed} of {count} loaders noticed");
    assert!(given.is_some() || (noticed > count / 4 && noticed < count), "{noticed} of {count} loaders noticed");
}
