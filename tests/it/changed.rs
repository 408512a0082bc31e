//! A source that changes while it is read is an error naming it: never a mixture, never stale data.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bowstring::dataset::{Dataset, OpenOptions, Projection};
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader, Result};

use crate::dataset::{Marks, Server, open, read_group, runtime};
use crate::support;

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
