//! States of every version of the order, and batches and pieces that are given back. `conformance` tests the rest of positions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use bowstring::flight::client::Gang;
use bowstring::flight::gang::JoinOptions;
use bowstring::pipeline::{LoaderOptions, LocalSource, RowGroups};
use bowstring::plan::{OrderVersion, State, audit};
use bowstring::{Error, Loader, Next};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::flight::{Served, hasty};
use crate::support::{self, ids, options};

fn dataset() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![100, 70, 1], vec![30, 33], vec![200, 50, 116]], 1);
    directory
}

/// Writes row groups of several MB in small pages: the latest version cuts them into units.
fn large() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let blob = DataType::FixedSizeBinary(32 << 10);
    let fields = vec![Field::new("id", DataType::Int64, false), Field::new("blob", blob, false)];
    let schema = Arc::new(Schema::new(fields));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(8)
        .set_write_batch_size(8)
        .build();
    let file = std::fs::File::create(directory.path().join("large.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties)).unwrap();
    for first in [0_i64, 250, 460] {
        let ids = first..if first == 460 { 600 } else { first + 250 - first / 250 * 40 };
        let blobs = ids.clone().map(|id| vec![id as u8; 32 << 10]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(ids)),
            Arc::new(FixedSizeBinaryArray::try_from_iter(blobs).unwrap()),
        ];
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    directory
}

fn version(directory: &Path, order_version: Option<OrderVersion>) -> LoaderOptions {
    let mut options = LoaderOptions { order_version, ..options(directory, 24, 0, 1) };
    options.columns.columns = vec!["id".to_owned()];
    options
}

fn rest(loader: &mut Loader) -> Vec<Vec<i64>> {
    std::iter::from_fn(|| loader.next().unwrap().map(|batch| ids(&batch))).collect()
}

/// Returns two epochs of `options`.
fn epochs(options: &LoaderOptions) -> [Vec<Vec<i64>>; 2] {
    let mut loader = Loader::open(options.clone()).unwrap();
    [rest(&mut loader), rest(&mut loader)]
}

#[test]
fn a_state_resumes_in_its_own_version_of_the_order_locally_and_remotely() {
    go_on(&dataset());
}

#[test]
fn a_state_resumes_in_the_row_groups_or_units_of_its_version() {
    let data = large();
    let opened = |order| LocalSource::open(version(data.path(), order)).unwrap();
    let (source, old) = (opened(None), opened(Some(OrderVersion::V2)));
    assert_eq!((old.row_groups(), old.units(), source.row_groups()), (3, 3, 3));
    assert!(source.units() > 9, "{} units", source.units());
    go_on(&data);
    // All of it once for three ranks, from a server that decodes each unit once.
    let server = Served::start(&[("data", data.path().to_str().unwrap())], &hasty());
    let ranks = (0..3).map(|rank| {
        let mut asked = version(data.path(), None);
        (asked.urls, asked.rank, asked.world_size) = (vec![server.url("data")], Some(rank), Some(3));
        std::thread::spawn(move || rest(&mut Loader::open(asked).unwrap()).concat())
    });
    let ranks: Vec<_> = ranks.collect();
    let mut all: Vec<i64> = ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..600).collect::<Vec<_>>());
    let stats = crate::flight::stats(&server);
    assert_eq!(
        (stats["rows_decoded"].as_u64(), stats["row_groups_decoded"].as_u64()),
        (Some(600), Some(source.units() as u64))
    );
}

fn go_on(data: &tempfile::TempDir) {
    let server = Served::start(&[("data", data.path().to_str().unwrap())], &hasty());
    let mut orders = Vec::new();
    for order in OrderVersion::ALL {
        let asked = version(data.path(), Some(order));
        let [first, second] = epochs(&asked);
        let mut written = Loader::open(asked).unwrap();
        for _ in 0..5 {
            written.next().unwrap();
        }
        let json = written.state().to_json();
        let state = State::from_json(&json).unwrap();
        assert_eq!(json.contains("order_version"), order != OrderVersion::V1);
        for remote in [false, true] {
            let mut asked = version(data.path(), None);
            if remote {
                asked.urls = vec![server.url("data")];
            }
            // New epochs use the latest version, until a state asks for another.
            let mut loader = Loader::open(asked.clone()).unwrap();
            let latest = Loader::open(version(data.path(), Some(OrderVersion::LATEST))).unwrap().state();
            assert_eq!(loader.state(), latest, "remote: {remote}");
            loader.next().unwrap();
            for _ in 0..2 {
                loader.load_state(&state).unwrap();
                assert_eq!(loader.state(), state);
                assert!(rest(&mut loader) == first[5..], "{order:?}, remote: {remote}");
                assert!(rest(&mut loader) == second, "{order:?}, remote: {remote}: and on in the next epoch");
            }
            for other in OrderVersion::ALL.into_iter().filter(|other| *other != order) {
                asked.order_version = Some(other);
                let error = Loader::open(asked.clone()).unwrap().load_state(&state).unwrap_err();
                assert!(matches!(&error, Error::Mismatch { what, .. } if what.contains("order_version")), "{error}");
            }
        }
        orders.push(first);
    }
    assert_ne!(orders[0], orders[1], "two versions, one order");
}

#[test]
fn a_gang_resumed_in_another_version_acknowledges_its_batches() {
    let data = dataset();
    let server = Served::start(&[("data", data.path().to_str().unwrap())], &hasty());
    let mut written = Loader::open(version(data.path(), Some(OrderVersion::V2))).unwrap();
    written.next().unwrap();
    let url = format!("grpc://{}", server.address());
    let gang = Gang::join(&url, &BTreeMap::new(), JoinOptions::new("g", 0, 1)).unwrap();
    let asked = LoaderOptions { urls: vec![server.url("data")], ..version(data.path(), None) };
    let mut loader = Loader::open_in(&asked, &gang).unwrap();
    loader.load_state(&written.state()).unwrap();
    let batch = loader.next().unwrap().unwrap();
    gang.ack(batch.epoch, batch.step).unwrap();
}

#[test]
fn a_gang_that_began_over_the_former_fingerprint_of_a_table_goes_on_in_it() {
    // A former server gave a table the fingerprint of its files, whatever values its log had.
    let [files, table] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200));
    let batch = RecordBatch::try_from_iter_with_nullable([("id", column, true)]).unwrap();
    for folder in [&files, &table] {
        let path = folder.path().join("p=7/x.parquet");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    let field = |name| serde_json::json!({"name": name, "type": "long", "nullable": true, "metadata": {}});
    let schema = serde_json::json!({"type": "struct", "fields": [field("id"), field("p")]}).to_string();
    let log = [
        serde_json::json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
        serde_json::json!({"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": schema,
            "partitionColumns": ["p"], "configuration": {}}}),
        serde_json::json!({"add": {"path": "p=7/x.parquet", "partitionValues": {"p": "8"}, "size": 0,
            "modificationTime": 0, "dataChange": true}}),
    ];
    std::fs::create_dir(table.path().join("_delta_log")).unwrap();
    let lines = log.map(|line| line.to_string()).join("\n");
    std::fs::write(table.path().join("_delta_log/00000000000000000000.json"), lines).unwrap();
    let served = [("files", files.path().to_str().unwrap()), ("table", table.path().to_str().unwrap())];
    let server = Served::start(&served, &hasty());
    let gang = |name| {
        Gang::join(&format!("grpc://{}", server.address()), &BTreeMap::new(), JoinOptions::new(name, 0, 1)).unwrap()
    };
    let asked = |name| LoaderOptions { urls: vec![server.url(name)], ..version(files.path(), None) };
    let (old, new) = (gang("old"), gang("new"));
    let mut former = Loader::open_in(&asked("files"), &old).unwrap();
    former.next().unwrap().unwrap();
    let (state, certificate) = (former.state(), former.certificate());
    former.close();
    let mut going_on = Loader::open_in(&asked("table"), &old).unwrap();
    let batch = going_on.next().unwrap().unwrap();
    assert_eq!(going_on.state().fingerprint, state.fingerprint);
    old.ack(batch.epoch, batch.step).unwrap();
    let mut anew = Loader::open_in(&asked("table"), &new).unwrap();
    anew.next().unwrap().unwrap();
    assert_ne!(anew.state().fingerprint, state.fingerprint);
    // The same without a server: one run has one fingerprint, in states and certificates.
    for remote in [false, true] {
        let asked = if remote { asked("table") } else { version(table.path(), None) };
        let mut resumed = Loader::open(asked).unwrap();
        resumed.load_state(&state).unwrap();
        while resumed.next().unwrap().is_some() {}
        assert_eq!(resumed.state().fingerprint, state.fingerprint, "remote: {remote}");
        let audit = audit(&[certificate.clone(), resumed.certificate()]).unwrap();
        assert!(audit.exact && audit.resumes == 1, "remote: {remote}: {audit:?}");
    }
}

#[test]
fn two_threads_that_give_back_lose_nothing() {
    let data = dataset();
    let asked = LoaderOptions { prefetch: 2, ..options(data.path(), 3, 0, 1) };
    let expected = epochs(&asked)[0].concat();
    let loader = Mutex::new(Loader::open(asked).unwrap());
    let seen = Mutex::new(BTreeMap::<i64, u32>::new());
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (loader, seen) = (&loader, &seen);
            scope.spawn(move || {
                for attempt in 0.. {
                    let Some(batch) = loader.lock().unwrap().next().unwrap() else { return };
                    std::thread::yield_now();
                    if batch.epoch == 0 && (batch.step * 7 + attempt + thread) % 3 == 0 {
                        loader.lock().unwrap().put_back(batch);
                        continue;
                    }
                    if batch.epoch == 0 {
                        ids(&batch).into_iter().for_each(|id| *seen.lock().unwrap().entry(id).or_default() += 1);
                    }
                }
            });
        }
    });
    // A thread that saw the end has exited; a batch that the other one gave back later is still there.
    let mut loader = loader.into_inner().unwrap();
    while loader.epoch() == 0 {
        let Some(batch) = loader.next().unwrap() else { break };
        ids(&batch).into_iter().for_each(|id| *seen.lock().unwrap().entry(id).or_default() += 1);
    }
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), expected.len());
    assert!(seen.values().all(|count| *count == 1));
}

#[test]
fn pieces_that_were_given_back_come_again_in_order() {
    let data = dataset();
    let mut groups = RowGroups::open(options(data.path(), 1, 0, 1), Some(20)).unwrap();
    groups.start(&[0, 3]).unwrap();
    let mut next = || match groups.next_within(groups.timeout()).unwrap() {
        Next::Item(piece) => piece,
        other => panic!("{other:?}"),
    };
    let mut pieces: Vec<_> = (0..4).map(|_| next()).collect();
    let place = |piece: &bowstring::pipeline::Piece| (piece.group, piece.first);
    let places: Vec<_> = pieces.iter().map(place).collect();
    groups.put_back(pieces.remove(2));
    groups.put_back(pieces.remove(0));
    let mut again = Vec::new();
    while let Some(piece) = groups.next().unwrap() {
        again.push(place(&piece));
    }
    assert_eq!(again[..3], [places[0], places[2], (0, 80)]);
    assert_eq!(again.len(), 5 + 2 - 2);
}
