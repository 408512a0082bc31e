//! Indexes: opening a dataset by one gives the same dataset, with few requests, and never that of other files.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use bowstring::Error;
use bowstring::dataset::{Dataset, Index, OpenOptions};
use parquet::file::properties::WriterProperties;
use sha2::{Digest, Sha256};

use super::support::{open, read, read_all, runtime, write};
use super::{Marks, PINNED, Server};
use crate::support::{Random, soak};

fn options(index: Index) -> OpenOptions {
    OpenOptions { index, ..OpenOptions::default() }
}

/// Writes files of two schemas in directories of a key: numbers with nulls and text, and wider numbers without; several row groups each.
fn made(root: &Path) {
    let properties = || WriterProperties::builder().set_max_row_group_row_count(Some(7)).build();
    for file in 0..4_i32 {
        let ids = Int32Array::from_iter((0..20).map(|row| (row % 6 > 0).then_some(file * 100 + row)));
        let texts = StringArray::from_iter_values((0..20).map(|row| format!("{file} and {row}")));
        let columns: [(&str, ArrayRef); 2] = [("id", Arc::new(ids)), ("text", Arc::new(texts))];
        let path = root.join(format!("k={}/part-{file}.parquet", file % 2));
        write(&path, &RecordBatch::try_from_iter(columns).unwrap(), properties());
    }
    let ids = Int64Array::from_iter_values(900..920);
    let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap();
    write(&root.join("k=1/wide.parquet"), &batch, properties());
}

/// Overwrites the footer of a file so that it cannot be read again, without any visible change of the file.
fn blot(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    let end = bytes.len() - 8;
    let length = u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap()) as usize;
    bytes[end - length..end].fill(0xff);
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn an_index_has_everything_that_reading_needs() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let url = folder.path().to_str().unwrap();
    let footers = open(&[url], options(Index::None)).unwrap();
    let whole = read_all(&footers).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let at = elsewhere.path().join("some.index").to_str().unwrap().to_owned();
    let runtime = runtime();
    let written = runtime.block_on(footers.write_index(Some(&at), &OpenOptions::default())).unwrap();
    assert_eq!(fs::read(&at).unwrap(), footers.index().unwrap(), "{written}");
    runtime.block_on(footers.write_index(None, &OpenOptions::default())).unwrap();
    assert!(folder.path().join("_bowstring_index").is_file());
    let filter = || Some("k = 0 and id > 205 or id >= 910".parse().unwrap());
    let filtered = open(&[url], OpenOptions { filter: filter(), ..options(Index::None) }).unwrap();
    for index in [Index::Auto, Index::At(at.clone()), Index::Bytes(footers.index().unwrap().into())] {
        let known = open(&[url], OpenOptions { filter: filter(), ..options(index.clone()) }).unwrap();
        assert_eq!(known.manifest(), filtered.manifest(), "{index:?}: footers are read for the filter's statistics");
        assert_eq!(read_all(&known).unwrap(), read_all(&filtered).unwrap(), "{index:?}");
    }
    for file in ["k=0/part-0.parquet", "k=1/part-3.parquet", "k=1/wide.parquet"] {
        blot(&folder.path().join(file));
    }
    let error = open(&[url], options(Index::None)).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    for index in [Index::Auto, Index::At(at), Index::Bytes(footers.index().unwrap().into())] {
        let known = open(&[url], options(index.clone())).unwrap();
        assert_eq!((known.manifest(), known.schema()), (footers.manifest(), footers.schema()), "{index:?}");
        assert_eq!(known.column_sizes(), footers.column_sizes(), "{index:?}");
        assert_eq!(read_all(&known).unwrap(), whole, "{index:?}");
        assert_eq!(known.index().unwrap(), footers.index().unwrap(), "{index:?}: an index of what an index told");
        // Reading the footer itself notices that it is another one.
        let error = runtime.block_on(known.footer(0)).unwrap_err();
        assert!(matches!(error, Error::SourceChanged { .. } | Error::Corrupt { .. }), "{error}");
    }
    // A subset of the files, whose first is not the index's first.
    let part = folder.path().join("k=1/part-[13].parquet");
    let at = folder.path().join("_bowstring_index").to_str().unwrap().to_owned();
    made(folder.path());
    let fresh = open(&[url], options(Index::None)).unwrap();
    runtime.block_on(fresh.write_index(None, &OpenOptions::default())).unwrap();
    let some = |index| open(&[part.to_str().unwrap()], options(index)).unwrap();
    let error = open(&[part.to_str().unwrap()], options(Index::At(at))).unwrap_err();
    assert!(error.to_string().contains("bowstring index"), "names are relative to another directory: {error}");
    assert_eq!(some(Index::Auto).manifest(), some(Index::None).manifest());
}

#[test]
fn an_index_replaces_an_index_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let dataset = open(&[folder.path().to_str().unwrap()], options(Index::None)).unwrap();
    let part = folder.path().join("k=0/part-0.parquet");
    let (rows, runtime) = (fs::read(&part).unwrap(), runtime());
    let write = |at: &Path| runtime.block_on(dataset.write_index(Some(at.to_str().unwrap()), &OpenOptions::default()));
    let error = write(&part).unwrap_err();
    assert!(matches!(&error, Error::Config { option: "output", .. }), "{error}");
    assert_eq!(fs::read(&part).unwrap(), rows);
    let at = folder.path().join("x.index");
    fs::write(&at, "").unwrap();
    assert!(write(&at).is_ok() && write(&at).is_ok());
    assert_eq!(fs::read(&at).unwrap(), dataset.index().unwrap());
    // A directory, and a socket, which stands for a device: only root can make one.
    let socket = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for at in [folder.path(), &socket] {
        assert!(write(at).unwrap_err().to_string().contains("is no file; name one"));
    }
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok(), "it is what it was");
    drop(listener);
}

#[test]
fn an_index_takes_no_name_of_data_below_its_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    fs::create_dir_all(root.join("sub")).unwrap();
    made(&root);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&root, &link).unwrap();
    let dataset = open(&[root.to_str().unwrap()], options(Index::None)).unwrap();
    let write =
        |at: &Path| runtime().block_on(dataset.write_index(Some(at.to_str().unwrap()), &OpenOptions::default()));
    for name in ["footers", "x.parquet", "sub/ix"] {
        for root in [&root, &link] {
            let error = write(&root.join(name)).unwrap_err();
            assert!(matches!(&error, Error::Config { option: "output", .. }), "{name}: {error}");
            assert!(error.to_string().contains("take it for data"), "{name}: {error}");
        }
        assert!(!root.join(name).exists(), "{name}");
    }
    for at in [root.join("_footers"), root.join(".footers"), root.join("train.index"), folder.path().join("footers")] {
        write(&at).unwrap();
    }
    assert_eq!(open(&[root.to_str().unwrap()], options(Index::None)).unwrap().manifest(), dataset.manifest());
}

/// A change of files that an index does not know of.
type Change = fn(&Path);

#[test]
fn an_index_of_other_versions_gives_no_other_rows() {
    let changes: [(&str, Change); 4] = [
        ("rewritten", |root| {
            let ids = Int64Array::from_iter_values(5000..5011);
            let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap();
            write(&root.join("k=1/wide.parquet"), &batch, WriterProperties::default());
        }),
        ("added", |root| {
            fs::copy(root.join("k=1/wide.parquet"), root.join("k=1/yet.parquet")).unwrap();
        }),
        ("copied", |root| {
            fs::copy(root.join("k=1/wide.parquet"), root.join("k=1/.other")).unwrap();
            fs::rename(root.join("k=1/.other"), root.join("k=1/wide.parquet")).unwrap();
        }),
        ("touched", |root| {
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
            File::options().write(true).open(root.join("k=0/part-0.parquet")).unwrap().set_modified(later).unwrap();
        }),
    ];
    for (what, change) in changes {
        let folder = tempfile::tempdir().unwrap();
        made(folder.path());
        let url = folder.path().to_str().unwrap();
        let before = open(&[url], options(Index::None)).unwrap();
        runtime().block_on(before.write_index(None, &OpenOptions::default())).unwrap();
        change(folder.path());
        let now = open(&[url], options(Index::None)).unwrap();
        for index in [Index::Auto, Index::Bytes(before.index().unwrap().into())] {
            let known = open(&[url], options(index)).unwrap();
            assert_eq!(known.manifest(), now.manifest(), "{what}");
            assert_eq!(read(&known, &["id"]).unwrap(), read(&now, &["id"]).unwrap(), "{what}");
        }
        let at = folder.path().join("_bowstring_index").to_str().unwrap().to_owned();
        let error = open(&[url], options(Index::At(at))).unwrap_err();
        assert!(matches!(&error, Error::SourceChanged { .. }), "{what}: {error}");
        assert!(error.to_string().contains("bowstring index"), "{error}");
    }
    // Removed files are missing, and the remaining ones are unchanged.
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let url = folder.path().to_str().unwrap();
    let before = open(&[url], options(Index::None)).unwrap();
    let at = folder.path().join("_bowstring_index").to_str().unwrap().to_owned();
    runtime().block_on(before.write_index(None, &OpenOptions::default())).unwrap();
    fs::remove_file(folder.path().join("k=0/part-0.parquet")).unwrap();
    let now = open(&[url], options(Index::None)).unwrap();
    for index in [Index::Auto, Index::At(at), Index::Bytes(before.index().unwrap().into())] {
        assert_eq!(open(&[url], options(index)).unwrap().manifest(), now.manifest());
    }
}

#[test]
fn a_damaged_index_is_an_error_or_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let url = folder.path().to_str().unwrap();
    let dataset = open(&[url], options(Index::None)).unwrap();
    let good = dataset.index().unwrap();
    let beside = folder.path().join("_bowstring_index");
    let step = if soak() { 1 } else { 97 };
    for at in (0..good.len()).step_by(step) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let cut = good[..at].to_vec();
        for bytes in [bad, cut] {
            let error = open(&[url], options(Index::Bytes(bytes.clone().into()))).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. }), "{at}: {error}");
            fs::write(&beside, bytes).unwrap();
            assert_eq!(open(&[url], options(Index::Auto)).unwrap().manifest(), dataset.manifest(), "{at}");
        }
    }
}

#[test]
fn a_false_index_is_an_error_or_reads_nothing_forbidden() {
    let folder = tempfile::tempdir().unwrap();
    made(folder.path());
    let url = folder.path().to_str().unwrap();
    let good = open(&[url], options(Index::None)).unwrap().index().unwrap();
    let content = good.len() - 32;
    let seed = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("seed {seed}: BOWSTRING_SEED={seed} cargo nextest run an_index_that_lies");
    let mut random = Random(seed);
    for _ in 0..if soak() { 4000 } else { 250 } {
        let mut lie = good[..content].to_vec();
        for _ in 0..1 + random.index(3) {
            let at = random.index(lie.len());
            lie[at] = random.next() as u8;
        }
        lie.extend_from_slice(&Sha256::digest(&lie));
        // Any error or any rows are fine; a panic, a hang or an unbounded allocation is not.
        if let Ok(dataset) = open(&[url], options(Index::Bytes(lie.into()))) {
            drop(read_all_that_can_be(&dataset));
        }
    }
}

/// Like `read_all`, without its checks of the rows.
fn read_all_that_can_be(dataset: &Dataset) -> bowstring::Result<()> {
    let names: Vec<String> = dataset.schema().fields().iter().map(|field| field.name().clone()).collect();
    let projection = dataset.project(&names)?;
    for group in 0..dataset.manifest().groups.len() {
        let fetched = runtime().block_on(dataset.fetch(group, &projection))?;
        for root in 0..projection.roots().len() {
            dataset.decode(&fetched, &projection, root)?;
        }
    }
    Ok(())
}

#[test]
fn sixty_four_ranks_send_as_many_requests_as_one() {
    const FILES: usize = 90;
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    crate::support::write(folder.path(), &vec![vec![3]; FILES], 2);
    server.upload(folder.path(), "bucket/data");
    let storage = |index| OpenOptions { storage_options: server.storage_options(), ..options(index) };
    let url = "s3://bucket/data";
    let first = open(&[url], storage(Index::Auto)).unwrap();
    let alone = server.requests().len();
    assert!(alone > FILES, "a listing, and every footer: {alone}");
    let index: bytes::Bytes = first.index().unwrap().into();
    let fingerprint = first.manifest().fingerprint();
    for _ in 1..64 {
        let rank = open(&[url], storage(Index::Bytes(index.clone()))).unwrap();
        assert_eq!(rank.manifest().fingerprint(), fingerprint);
    }
    let others = server.requests();
    assert!(others.is_empty(), "the other 63 ranks ask for nothing: {others:?}");
    // Every read names the version, so that later changes are noticed.
    let rank = open(&[url], storage(Index::Bytes(index.clone()))).unwrap();
    let projection = rank.project(&["id".to_owned()]).unwrap();
    assert!(runtime().block_on(rank.fetch(0, &projection)).is_ok());
    let name = "bucket/data/part-000.parquet";
    let bytes = fs::read(folder.path().join("part-000.parquet")).unwrap();
    server.put(name, bytes, Marks { etag: Some("\"b\""), modified: None });
    let error = runtime().block_on(rank.fetch(0, &projection)).unwrap_err();
    assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
    // With an index beside the data, a rank lists, reads it, and looks for Petastorm's metadata.
    server.requests();
    server.put("bucket/data/_bowstring_index", index.to_vec(), Marks { etag: Some("\"i\""), modified: None });
    let known = open(&[url], storage(Index::Auto)).unwrap();
    let requests = server.requests();
    assert!(requests.len() <= 8, "the changed file's footer is read beside: {requests:?}");
    assert_eq!(known.manifest().fingerprint(), fingerprint, "the bytes are the same");
    // An index of another dataset does not apply to this one.
    server.put("bucket/other/a.parquet", fs::read(folder.path().join("part-001.parquet")).unwrap(), PINNED);
    let other = open(&["s3://bucket/other"], storage(Index::Bytes(index))).unwrap();
    assert_eq!(other.manifest().files.len(), 1);
}

#[test]
fn the_part_of_a_footer_in_an_index_is_small() {
    let folder = tempfile::tempdir().unwrap();
    crate::support::write(folder.path(), &vec![vec![50; 5]; 8], 39);
    let dataset = open(&[folder.path().to_str().unwrap()], options(Index::None)).unwrap();
    let index = dataset.index().unwrap().len();
    // 8 files of 5 row groups of 40 columns; the schema, once.
    assert!(index < 8 * 200 + 40 * 200 + 1600 * 20 + 4000, "{index}");
}
