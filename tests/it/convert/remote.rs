use std::fs;
use std::path::Path;

use bowstring::Error;
use bowstring::convert::{Budget, ConvertOptions, Format, Progress, convert, open};

use super::pairs::{FORMATS, held, table};
use super::{compared, fixture, parquet, run, to};
use crate::dataset::{Marks, PINNED, Server};

#[test]
fn every_format_is_read_from_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let server = Server::start();
    for format in FORMATS {
        let (columns, nulls) = held(format);
        parquet(&at("src.parquet"), &table(&columns, nulls));
        let (local, key) = (at(&format!("{format}-there")), format!("some/{format}"));
        run(&at("src.parquet"), &local, &ConvertOptions { target_file_size: 20_000, ..to(format) }).unwrap();
        server.upload(&local, &format!("bucket/{key}"));
        let url = format!("s3://bucket/{key}");
        // The format is detected from names, as on a disk, even with a trailing slash.
        for url in [url.clone(), format!("{url}/")] {
            let options = ConvertOptions { storage_options: server.storage_options(), ..ConvertOptions::default() };
            let source = open(&url, &options).unwrap_or_else(|error| panic!("{url}: {}", error.chain()));
            assert_eq!(source.format(), format, "{url}");
        }
        let options =
            ConvertOptions { storage_options: server.storage_options(), overwrite: true, ..to(Format::Parquet) };
        let report = convert(&url, &at("back"), &options, &Progress::default());
        let report = report.unwrap_or_else(|error| panic!("{url}: {}", error.chain()));
        assert_eq!(report.rows, 1000, "{url}");
        let options = ConvertOptions { storage_options: server.storage_options(), ..to(format) };
        let found = compared(&local, url.as_ref(), &options);
        let found = found.unwrap_or_else(|error| panic!("{url}: {}", error.chain()));
        assert!(found.equal, "{url}: {found:#?}");
    }
    // A folder of photos, many of which are requested concurrently.
    run(&fixture("imagenet40.parquet"), &at("photos"), &to(Format::Images)).unwrap();
    server.upload(&at("photos"), "bucket/photos");
    let options = ConvertOptions { storage_options: server.storage_options(), ..ConvertOptions::default() };
    let found = compared(&at("photos"), "s3://bucket/photos".as_ref(), &options).unwrap();
    assert!(found.equal && found.rows[0] > 10, "{found:#?}");
}

#[test]
fn one_file_of_a_server_without_directories_is_read_ahead_of_need() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let server = Server::start();
    // Larger than the bytes read ahead, plain and compressed.
    let line = |row: usize| format!("{{\"id\":{row},\"text\":\"{}\"}}\n", "lorem ipsum ".repeat(row % 700));
    let lines: String = (0..4000).map(line).collect();
    assert!(lines.len() > 14 << 20);
    fs::write(at("x.jsonl"), &lines).unwrap();
    server.put("data/x.jsonl", lines.into(), PINNED);
    let url = server.url("data/x.jsonl");
    let found = compared(&at("x.jsonl"), url.as_ref(), &ConvertOptions::default()).unwrap();
    assert!(found.equal && found.rows == [4000, 4000], "{found:#?}");
    for compression in ["gzip", "zstd"] {
        let options = ConvertOptions { compression: Some(compression.into()), ..to(Format::Jsonl) };
        let packed = at(compression);
        run(&at("x.jsonl"), &packed, &options).unwrap();
        let mut file = fs::read_dir(&packed).unwrap().map(|entry| entry.unwrap().path());
        let file = file.find(|path| path.to_str().unwrap().contains(".jsonl")).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        server.put(&format!("data/{name}"), fs::read(&file).unwrap(), PINNED);
        let packed = server.url(&format!("data/{name}"));
        let found = compared(url.as_ref(), packed.as_ref(), &ConvertOptions::default()).unwrap();
        assert!(found.equal, "{name}: {found:#?}");
    }
    let error = open(&server.url("data/"), &ConvertOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    for (dst, remedy) in [
        ("s3://bucket/out", "copy what is there to the store"),
        ("hdfs:/out", "copy what is there to the store"),
        ("file:/tmp/out", "give the plain path"),
    ] {
        let error = convert(&url, Path::new(dst), &to(Format::Mds), &Progress::default()).unwrap_err();
        assert!(matches!(&error, Error::Config { option, .. } if *option == "dst"), "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
    let error = open(&server.url("data/gone.jsonl"), &ConvertOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[test]
fn a_source_that_changes_in_a_store_is_no_mixture_of_both() {
    let server = Server::start();
    let lines = |word: &str| format!("{{\"text\":\"{word}\"}}\n").repeat(200_000).into_bytes();
    for (etag, packed) in [("\"b\"", false), ("\"c\"", true)] {
        let content = |word| match packed {
            true => zstd::encode_all(lines(word).as_slice(), 0).unwrap(),
            false => lines(word),
        };
        server.put("x.jsonl", content("old"), PINNED);
        let source = open(&server.url("x.jsonl"), &ConvertOptions::default()).unwrap();
        server.put("x.jsonl", content("new"), Marks { etag: Some(etag), modified: None });
        let budget = Budget::new(1 << 30);
        let read = source.read(0, &[0], &budget).and_then(|mut batches| {
            while batches.next()?.is_some() {}
            Ok(())
        });
        assert!(matches!(read.unwrap_err(), Error::SourceChanged { .. }));
    }
}
