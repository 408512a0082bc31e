//! Tables of Iceberg: small ones that are written here, and those of Spark and PyIceberg with the rows that these read of them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Float32Array, Float64Array};
use bowstring::dataset::{Dataset, Index, Limits, OpenOptions};
use bowstring::{Error, Loader, LoaderOptions, Result};
use parquet::data_type::Int64Type;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json};

use super::http::{PINNED, Server};
use super::iceberg_table::{File, Manifest, Table, ints, words};
use super::support::{open, rows, runtime, text};
use crate::support;

fn read(path: &Path, options: OpenOptions) -> Result<Vec<String>> {
    rows(&open(&[text(path)], options)?)
}

fn latest(table: &Table) -> Vec<String> {
    table.commit(1);
    read(&table.path, OpenOptions::default()).unwrap()
}

fn opened(table: &Table) -> Result<Dataset> {
    table.commit(1);
    open(&[text(&table.path)], OpenOptions::default())
}

fn version(version: u64) -> OpenOptions {
    OpenOptions { version: Some(version), ..OpenOptions::default() }
}

fn at(timestamp: &str) -> OpenOptions {
    OpenOptions { timestamp: Some(timestamp.to_owned()), ..OpenOptions::default() }
}

fn named(name: &str) -> OpenOptions {
    OpenOptions { reference: Some(name.to_owned()), ..OpenOptions::default() }
}

/// Rows as they are shown of one column.
fn of(column: &str, values: &[i64]) -> Vec<String> {
    let mut rows: Vec<String> = values.iter().map(|value| format!("{column}={value}")).collect();
    rows.sort();
    rows
}

/// Snapshots 11 (file a), 12 (a and b), 13 (b alone), with a branch and a tag. Files have narrower integers than the table.
fn moving(path: &Path) -> Table {
    let mut table = Table::new(path, &[(1, "id", "long")]);
    let a = File::data(&table.file("a.parquet", &[(1, "id", ints(&[Some(1), Some(2)]))]));
    let b = File::data(&table.file("b.parquet", &[(1, "id", ints(&[Some(10), Some(20), Some(30)]))]));
    let was = |file: &File, sequence| File { status: 0, sequence: Some(sequence), ..file.clone() };
    table.snapshot(11, 1000, &[Manifest(0, 1, vec![a.clone()])]);
    table.snapshot(12, 2000, &[Manifest(0, 2, vec![b.clone(), was(&a, 1)])]);
    table.snapshot(13, 3000, &[Manifest(0, 3, vec![File { status: 2, ..was(&a, 1) }, was(&b, 2)])]);
    table.metadata["refs"] = json!({"main": {"snapshot-id": 13, "type": "branch"}, "first": {"snapshot-id": 11, "type": "tag"},
        "side": {"snapshot-id": 12, "type": "branch"}});
    table
}

#[test]
fn a_snapshot_a_time_or_a_name_chooses_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let table = moving(folder.path());
    let file = table.commit(1);
    let (a, b) = ([1, 2], [10, 20, 30]);
    let both = [1, 2, 10, 20, 30];
    for (options, ids) in [
        (OpenOptions::default(), &b[..]),
        (version(11), &a),
        (version(12), &both),
        (at("1970-01-01 00:33:20"), &both),
        (at("1970-01-01 00:33:19.999"), &a),
        (named("first"), &a),
        (named("side"), &both),
        (named("main"), &b),
    ] {
        assert_eq!(read(&table.path, options.clone()).unwrap(), of("id", ids), "{options:?}");
        // The metadata by their own address say the same, by the same names of files.
        let (by_file, by_directory) =
            (open(&[text(&file)], options.clone()).unwrap(), open(&[text(&table.path)], options).unwrap());
        assert_eq!(by_file.manifest().fingerprint(), by_directory.manifest().fingerprint());
        assert_eq!(by_file.manifest().files[0].path.as_ref().split('/').next(), Some("data"));
    }
    let dataset = open(&[text(&table.path)], OpenOptions::default()).unwrap();
    assert_eq!((dataset.table_version(), dataset.manifest().rows()), (Some(13), 3));
    for (options, said) in [
        (version(14), "the current one is 13"),
        (at("1970-01-01"), "1970-01-01T00:16:40 UTC"),
        (named("sdie"), "first, main, side"),
        (OpenOptions { version: Some(11), ..named("main") }, "option ref"),
        (OpenOptions { timestamp: Some("2030-01-01".to_owned()), ..named("main") }, "option timestamp"),
    ] {
        let error = read(&table.path, options).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    // What is no table has no branches, nor has one of Delta Lake.
    let error = read(&support::fixture("delta/dv-with-columnmapping/delta"), named("main")).unwrap_err();
    assert!(matches!(error, Error::Config { option: "ref", .. }), "{error}");
    let plain = tempfile::tempdir().unwrap();
    fs::copy(table.path.join("data/a.parquet"), plain.path().join("a.parquet")).unwrap();
    let error = read(plain.path(), named("main")).unwrap_err();
    assert!(matches!(error, Error::Config { option: "ref", .. }), "{error}");
}

#[test]
fn the_current_metadata_are_found_or_their_address_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = moving(folder.path());
    let directory = table.path.join("metadata");
    let ids = |path: &Path| read(path, OpenOptions::default());
    table.commit(1);
    table.metadata["current-snapshot-id"] = 11.into();
    let second = table.commit(2);
    assert_eq!(ids(&table.path).unwrap(), of("id", &[1, 2]), "the highest version");
    fs::write(directory.join("version-hint.text"), "7").unwrap();
    assert!(matches!(ids(&table.path).unwrap_err(), Error::Corrupt { .. }));
    fs::write(directory.join("version-hint.text"), "1\n").unwrap();
    assert_eq!(ids(&table.path).unwrap(), of("id", &[1, 2]), "what follows the hint");
    fs::remove_file(directory.join("version-hint.text")).unwrap();
    // A catalog's names beside the others: nobody can tell.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    table.metadata["current-snapshot-id"] = 12.into();
    packed.write_all(table.metadata.to_string().as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let catalog = directory.join("00003-5f1c.gz.metadata.json");
    fs::write(&catalog, &packed).unwrap();
    let error = ids(&table.path).unwrap_err();
    assert!(
        matches!(&error, Error::Config { option: "urls", .. }) && error.to_string().contains("give the address"),
        "{error}"
    );
    assert_eq!(ids(&catalog).unwrap(), of("id", &[1, 2, 10, 20, 30]));
    assert_eq!(ids(&second).unwrap(), of("id", &[1, 2]));
    for version in [1, 2] {
        fs::remove_file(directory.join(format!("v{version}.metadata.json"))).unwrap();
    }
    assert_eq!(ids(&table.path).unwrap().len(), 5);
    fs::write(directory.join("00003-9abc.metadata.json.gz"), &packed).unwrap();
    assert!(matches!(ids(&table.path).unwrap_err(), Error::Config { option: "urls", .. }), "two of one number");
    // A file of metadata goes alone.
    let urls = [text(&catalog), text(&table.path)];
    assert!(matches!(open(&urls, OpenOptions::default()).unwrap_err(), Error::Config { option: "urls", .. }));
}

#[test]
fn a_loader_goes_on_on_its_snapshot_and_a_later_one_is_another_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = moving(folder.path());
    table.commit(1);
    let options = |version| LoaderOptions { version, ..support::options(&table.path, 2, 0, 1) };
    let mut loader = Loader::open(options(None)).unwrap();
    loader.next().unwrap();
    let state = loader.state();
    let left = support::drain(&mut loader);
    let urls = [text(&table.path).to_owned()];
    let open_options = |version| OpenOptions { version, ..OpenOptions::default() };
    let dataset = open(&[text(&table.path)], OpenOptions::default()).unwrap();
    let branch = open(&[text(&table.path)], named("side")).unwrap();
    let current = |dataset: &Dataset, options| runtime().block_on(dataset.is_current(&urls, &options)).unwrap();
    assert!(current(&dataset, OpenOptions::default()) && current(&branch, named("side")));
    table.metadata["current-snapshot-id"] = 12.into();
    table.metadata["refs"]["side"]["snapshot-id"] = 11.into();
    table.commit(2);
    let mut later = Loader::open(options(None)).unwrap();
    let error = later.load_state(&state).unwrap_err();
    assert!(
        matches!(error, Error::Mismatch { .. }) && error.to_string().contains("version 12 of the table"),
        "{error}"
    );
    assert_eq!((loader.table_version(), later.table_version()), (Some(13), Some(12)));
    let mut same = Loader::open(options(Some(13))).unwrap();
    same.load_state(&state).unwrap();
    assert_eq!(support::drain(&mut same), left);
    assert!(!current(&dataset, OpenOptions::default()) && current(&dataset, open_options(Some(13))));
    assert!(!current(&branch, named("side")));
    // An index is of its snapshot.
    let index = Index::Bytes(dataset.index().unwrap().into());
    let pinned = open(&[text(&table.path)], OpenOptions { index, ..OpenOptions::default() }).unwrap();
    assert_eq!((pinned.table_version(), pinned.manifest().fingerprint()), (Some(13), dataset.manifest().fingerprint()));
}

#[test]
fn a_version_has_the_columns_of_its_snapshot_whatever_is_current_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "id", "long"), (2, "label", "int")]);
    let of = |column: i64, id: i32| {
        let (ids, labels) = (ints(&[Some(id), Some(id + 1)]), ints(&[Some(5), Some(5)]));
        File::data(&table.file(&format!("{id}.parquet"), &[(1, "id", ids), (column, "label", labels)]))
    };
    let (first, second) = (of(2, 1), of(9, 3));
    table.snapshot(1, 1, &[Manifest(0, 1, vec![first.clone()])]);
    table.commit(1);
    let options = |version| LoaderOptions { version, ..support::options(&table.path, 1, 0, 1) };
    let mut loader = Loader::open(options(None)).unwrap();
    loader.next().unwrap();
    let state = loader.state();
    let left = support::drain(&mut loader);
    let goes_on = |options| {
        let mut same = Loader::open(options).unwrap();
        same.load_state(&state).unwrap();
        assert_eq!(support::drain(&mut same), left);
    };
    let early = options(Some(1));
    // The label is another column since, which makes no snapshot.
    table.alter(&[(1, "id", "long"), (9, "label", "int")]);
    table.commit(2);
    let (own, today) = (["id=1 label=5", "id=2 label=5"], ["id=1 label=null", "id=2 label=null"]);
    let opened = open(&[text(&table.path)], OpenOptions::default()).unwrap();
    assert_eq!(rows(&opened).unwrap(), today);
    let of_snapshot = |path: &Path| {
        assert_eq!(read(path, version(1)).unwrap(), own);
        assert_eq!(read(path, at("1970-01-01 00:00:01")).unwrap(), own);
    };
    of_snapshot(&table.path);
    goes_on(early.clone());
    let index = Index::Bytes(opened.index().unwrap().into());
    let old = File { status: 0, sequence: Some(1), ..first };
    table.snapshot(2, 2, &[Manifest(0, 2, vec![second, old])]);
    table.commit(3);
    of_snapshot(&table.path);
    goes_on(early);
    // Ranks that share an index share its columns too.
    let indexed = OpenOptions { index: index.clone(), ..OpenOptions::default() };
    let rank = open(&[text(&table.path)], indexed).unwrap();
    assert_eq!((rank.table_version(), rows(&rank).unwrap()), (Some(1), today.map(str::to_owned).to_vec()));
    assert_eq!(rank.index().unwrap(), opened.index().unwrap());
    assert_eq!(read(&table.path, OpenOptions { index, ..version(1) }).unwrap(), own);
}

#[test]
fn a_state_is_of_the_columns_that_names_meant() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "a", "int"), (2, "b", "int")]);
    let columns = [(1, "a", ints(&[Some(1), Some(2)])), (2, "b", ints(&[Some(8), Some(9)]))];
    let file = File::data(&table.file("a.parquet", &columns));
    table.snapshot(1, 1, &[Manifest(0, 1, vec![file])]);
    table.commit(1);
    let options = LoaderOptions { shuffle: false, ..support::options(&table.path, 1, 0, 1) };
    let state = Loader::open(options.clone()).unwrap().state();
    table.alter(&[(2, "a", "int"), (1, "b", "int")]);
    table.commit(2);
    let error = Loader::open(options.clone()).unwrap().load_state(&state).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    Loader::open(LoaderOptions { version: Some(1), ..options }).unwrap().load_state(&state).unwrap();
}

#[test]
fn a_directory_inside_a_table_is_not_the_sum_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let table = moving(folder.path());
    table.commit(1);
    let error = open(&[text(&table.path.join("data"))], OpenOptions::default()).unwrap_err();
    let expected = format!("inside the table of Iceberg at {}:", table.path.display());
    assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(&expected)), "{error}");
    assert_eq!(read(&table.path.join("data/*.parquet"), OpenOptions::default()).unwrap().len(), 5, "all files");
}

#[test]
fn a_file_that_is_gone_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let table = moving(folder.path());
    let dataset = opened(&table).unwrap();
    fs::remove_file(table.path.join("data/b.parquet")).unwrap();
    let error = opened(&table).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    for said in ["snapshot 13", "expired", "moved", "max-snapshot-age-ms"] {
        assert!(error.to_string().contains(said), "{error}");
    }
    let error = rows(&dataset).unwrap_err();
    assert!(matches!(&error, Error::SourceChanged { .. }) && error.to_string().contains("snapshot 13"), "{error}");
}

/// Two files of one partition, ids 1 to 4 of sequence 1 and 5 to 8 of sequence 3, and one of another, 9 to 12.
fn three(path: &Path) -> (Table, [File; 3]) {
    let table = Table::new(path, &[(1, "p", "int"), (2, "id", "int"), (3, "word", "string")]);
    let file = |name: &str, first: i32, p: i32, words_of: &[Option<&str>]| {
        let ids: Vec<Option<i32>> = (first..first + 4).map(Some).collect();
        let columns = [(1, "p", ints(&[Some(p); 4])), (2, "id", ints(&ids)), (3, "word", words(words_of))];
        File { rows: 4, ..File::data(&table.file(name, &columns)).at(Some(p.into())) }
    };
    let files = [
        file("a.parquet", 1, 5, &[Some("x"), Some("y"), None, Some("z")]),
        file("b.parquet", 5, 5, &[Some("x"), Some("y"), None, Some("z")]),
        file("c.parquet", 9, 6, &[Some("x"), Some("y"), None, Some("z")]),
    ];
    let sequences = [1, 3, 1];
    let files =
        files.into_iter().zip(sequences).map(|(file, sequence)| File { status: 0, sequence: Some(sequence), ..file });
    let files: Vec<File> = files.collect();
    (table, files.try_into().unwrap_or_else(|_| unreachable!()))
}

/// The ids that are left when `deletes` are of the table, of spec `spec` and sequence `sequence`.
fn left(table: &mut Table, files: &[File; 3], spec: i64, sequence: i64, deletes: Vec<File>) -> Vec<i64> {
    let id = 100 + table.metadata["snapshots"].as_array().unwrap().len() as i64;
    table.snapshot(id, id, &[Manifest(1, 3, files.to_vec()), Manifest(spec, sequence, deletes)]);
    let dataset = opened(table).unwrap();
    let found = rows(&dataset).unwrap();
    assert_eq!(found.len() as u64, dataset.manifest().rows(), "they are counted");
    let id = |row: &String| row.split(' ').find_map(|cell| cell.strip_prefix("id=")).unwrap().parse().unwrap();
    let mut ids: Vec<i64> = found.iter().map(id).collect();
    ids.sort_unstable();
    ids
}

fn without(gone: &[i64]) -> Vec<i64> {
    (1..=12).filter(|id| !gone.contains(id)).collect()
}

#[test]
fn positions_delete_rows_of_files_that_are_no_newer_in_their_partition() {
    let folder = tempfile::tempdir().unwrap();
    let (mut table, files) = three(folder.path());
    let path = |file: &File| Path::new(&file.path).to_owned();
    let [a, b, c] = files.each_ref().map(path);
    // One file of rows 0 of all three, and twice of one of them.
    let all =
        table.positions("d.parquet", &[(&a, 0), (&a, 3), (&b, 0), (&c, 0), (&a, 0), (&table.path.join("other"), 1)]);
    let delete = |sequence| File { status: 0, sequence: Some(sequence), ..File::positions(&all).at(Some(5)) };
    for (sequence, gone) in [(0, &[][..]), (1, &[1, 4]), (2, &[1, 4]), (3, &[1, 4, 5])] {
        assert_eq!(left(&mut table, &files, 1, 9, vec![delete(sequence)]), without(gone), "{sequence}");
    }
    // Directories above it are no columns of it.
    for directory in ["pos=5", "pos=eu", "file_path=x"] {
        let below = table.positions(&format!("{directory}/d.parquet"), &[(&a, 0), (&a, 3)]);
        let below = File { status: 0, sequence: Some(9), ..File::positions(&below).at(Some(5)) };
        assert_eq!(left(&mut table, &files, 1, 9, vec![below]), without(&[1, 4]), "{directory}");
    }
    // What was added has the number of its manifest.
    assert_eq!(left(&mut table, &files, 1, 1, vec![File::positions(&all).at(Some(5))]), without(&[1, 4]));
    assert_eq!(left(&mut table, &files, 1, 9, vec![delete(9).at(Some(6))]), without(&[9]));
    assert_eq!(left(&mut table, &files, 2, 9, vec![delete(9)]), without(&[]), "another spec");
    let one = File { referenced: Some(files[2].path.clone()), ..delete(9) };
    assert_eq!(left(&mut table, &files, 1, 9, vec![one]), without(&[9]), "by its path");
    let gone = File { status: 2, ..delete(9) };
    assert_eq!(left(&mut table, &files, 1, 9, vec![gone]), without(&[]), "a delete that was deleted");
}

#[test]
fn vectors_delete_rows_of_their_file_and_positions_do_not_count_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let (mut table, files) = three(folder.path());
    table.metadata["format-version"] = 3.into();
    let path = |file: &File| Path::new(&file.path).to_owned();
    let [a, b, c] = files.each_ref().map(path);
    let vectors = table.vectors("v.puffin", &[(&a, &[1, 2]), (&c, &[3]), (&b, &[0])]);
    let at = |vector: &File, p, sequence| File { status: 0, sequence: Some(sequence), ..vector.clone().at(Some(p)) };
    let two = vec![at(&vectors[0], 5, 1), at(&vectors[1], 6, 9)];
    assert_eq!(left(&mut table, &files, 1, 9, two.clone()), without(&[2, 3, 12]));
    assert_eq!(left(&mut table, &files, 1, 9, vec![at(&vectors[2], 5, 2)]), without(&[]), "older than its file");
    assert_eq!(left(&mut table, &files, 1, 9, vec![at(&vectors[2], 6, 9)]), without(&[]), "of another partition");
    let positions = table.positions("d.parquet", &[(&a, 0), (&b, 3)]);
    let beside = [two.clone(), vec![at(&File::positions(&positions), 5, 9)]].concat();
    assert_eq!(left(&mut table, &files, 1, 9, beside), without(&[2, 3, 12, 8]));
    let error = |table: &mut Table, deletes: Vec<File>| {
        table.snapshot(99, 99, &[Manifest(1, 3, files.to_vec()), Manifest(1, 9, deletes)]);
        let error = opened(table).unwrap_err();
        table.metadata["snapshots"].as_array_mut().unwrap().pop();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        error.to_string()
    };
    assert!(error(&mut table, vec![two[0].clone(), two[0].clone()]).contains("two deletion vectors"));
    let wrong = |rows, range| vec![File { rows, range, ..two[0].clone() }];
    let (offset, size) = two[0].range.unwrap();
    assert!(error(&mut table, wrong(3, two[0].range)).contains("rows"));
    assert!(error(&mut table, wrong(2, Some((offset + 1, size)))).contains("vector"));
    assert!(error(&mut table, wrong(2, Some((offset, 1 << 40)))).contains("cut off"));
    assert!(error(&mut table, wrong(2, Some((i64::MAX, i64::MAX)))).contains("vector"));
    assert!(error(&mut table, wrong(2, None)).contains("no offset"));
    let beyond = table.vectors("w.puffin", &[(&a, &[4])]);
    assert!(error(&mut table, vec![at(&beyond[0], 5, 9)]).contains("row 4"));
}

#[test]
fn values_delete_rows_of_older_files_in_their_partition_or_in_any() {
    let folder = tempfile::tempdir().unwrap();
    let (mut table, files) = three(folder.path());
    let by_word = table.file("e1.parquet", &[(3, "word", words(&[Some("y"), None, Some("none such")]))]);
    let delete = |sequence| File { status: 0, sequence: Some(sequence), ..File::equality(&by_word, &[3]).at(Some(5)) };
    for (sequence, gone) in [(1, &[][..]), (2, &[2, 3]), (3, &[2, 3]), (4, &[2, 3, 6, 7])] {
        assert_eq!(left(&mut table, &files, 1, 9, vec![delete(sequence)]), without(gone), "{sequence}");
    }
    let global = |sequence| File { partition: None, ..delete(sequence) };
    assert_eq!(left(&mut table, &files, 0, 9, vec![global(2)]), without(&[2, 3, 10, 11]), "of every partition");
    assert_eq!(left(&mut table, &files, 2, 9, vec![delete(9)]), without(&[]), "another spec");
    // All columns must be equal; an older delete of the same values beside a newer one.
    let pairs =
        [(2, "id", ints(&[Some(1), Some(6), Some(3), None])), (3, "word", words(&[Some("x"), Some("x"), None, None]))];
    let by_both = table.file("e2.parquet", &pairs);
    let both = File { status: 0, sequence: Some(9), ..File::equality(&by_both, &[3, 2]) };
    assert_eq!(left(&mut table, &files, 0, 9, vec![both.clone()]), without(&[1, 3]));
    assert_eq!(left(&mut table, &files, 0, 9, vec![both, global(2), global(4)]), without(&[1, 2, 3, 6, 7, 10, 11]));
    // Columns that are gone, or renamed, or wider: by their numbers.
    table.alter(&[(2, "number", "long"), (4, "word", "string"), (1, "p", "int")]);
    table.snapshot(200, 200, &[Manifest(1, 3, files.to_vec()), Manifest(0, 9, vec![global(4)])]);
    let found = latest(&table);
    assert_eq!(found.len(), 6);
    assert!(found.iter().all(|row| row.contains("word=null")), "{found:?}");
    // Values are kept while they are looked for.
    table.commit(1);
    let small = OpenOptions { memory: 1 << 20, memory_limit: 200, ..OpenOptions::default() };
    let error = open(&[text(&table.path)], small).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "memory_budget", .. }), "{error}");
    // Nested columns are no values.
    let strange = File { ids: vec![77], ..global(9) };
    table.snapshot(201, 201, &[Manifest(1, 3, files.to_vec()), Manifest(0, 9, vec![strange])]);
    assert!(matches!(opened(&table).unwrap_err(), Error::Unsupported { .. }));
}

#[test]
fn a_nan_deletes_every_nan() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "id", "int"), (2, "x", "double"), (3, "y", "float")]);
    // As NumPy on x86 and Java have them.
    let (numpy, java) = (f64::from_bits(0xfff8 << 48), f64::from_bits(0x7ff8 << 48));
    let doubles = |values: &[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    let floats = |values: &[u32]| {
        Arc::new(Float32Array::from_iter_values(values.iter().map(|bits| f32::from_bits(*bits)))) as ArrayRef
    };
    let data = table.file(
        "a.parquet",
        &[
            (1, "id", ints(&[Some(1), Some(2), Some(3), Some(4)])),
            (2, "x", doubles(&[numpy, java, 0.0, -0.0])),
            (3, "y", floats(&[0xffc0_0000, 0x7fc0_0000, 0, 0])),
        ],
    );
    let deletes = table.file("e.parquet", &[(2, "x", doubles(&[java, 0.0])), (3, "y", floats(&[0xffc0_0000, 0]))]);
    let deletes = File::equality(&deletes, &[2, 3]);
    table.snapshot(1, 1, &[Manifest(0, 1, vec![File::data(&data)]), Manifest(0, 2, vec![deletes])]);
    assert_eq!(latest(&table), ["id=4 x=-0.0 y=0.0"]);
}

#[test]
fn deleted_rows_are_gone_before_any_filter_and_keep_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let (mut table, files) = three(folder.path());
    let by_word = table.file("e1.parquet", &[(3, "word", words(&[Some("y")]))]);
    let delete = File { status: 0, sequence: Some(9), ..File::equality(&by_word, &[3]) };
    assert_eq!(left(&mut table, &files, 0, 9, vec![delete]), without(&[2, 6, 10]));
    let with = |filter: &str| OpenOptions { filter: Some(filter.parse().unwrap()), ..OpenOptions::default() };
    for (filter, count) in [("id < 7", 4), ("id >= 7", 5), ("p = 6", 3), ("word = 'y'", 0), ("word is null", 3)] {
        let found = open(&[text(&table.path)], with(filter)).unwrap();
        assert_eq!((found.manifest().rows(), found.stored_rows()), (count, 12), "{filter}");
        assert_eq!(rows(&found).unwrap().len() as u64, count);
    }
}

#[test]
fn columns_are_found_by_their_numbers_whatever_they_were_called() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "a", "int"), (2, "b", "string")]);
    let old = File::data(&table.file("a.parquet", &[(1, "a", ints(&[Some(1)])), (2, "b", words(&[Some("old")]))]));
    table.snapshot(1, 1, &[Manifest(0, 1, vec![old.clone()])]);
    // b is gone, another one took its name; a is wider, has another name and place.
    table.alter(&[(3, "b", "int"), (1, "renamed", "long")]);
    let new = File::data(&table.file("b.parquet", &[(3, "b", ints(&[Some(7)])), (1, "a", ints(&[Some(2)]))]));
    let old = File { status: 0, sequence: Some(1), ..old };
    table.snapshot(2, 2, &[Manifest(0, 2, vec![old, new])]);
    assert_eq!(latest(&table), ["b=7 renamed=2", "b=null renamed=1"]);
    let dataset = opened(&table).unwrap();
    let names: Vec<&str> = dataset.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["b", "renamed"]);
    assert_eq!(read(&table.path, version(1)).unwrap(), ["a=1 b=old"], "a snapshot of the past has its columns");
    // A file without numbers is read by the names that the table tells, and else not at all.
    let bare = File::data(&table.file("c.parquet", &[(0, "A", ints(&[Some(3)])), (0, "b", words(&[Some("bare")]))]));
    table.snapshot(3, 3, &[Manifest(0, 3, vec![bare])]);
    let error = opened(&table).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { .. }) && error.to_string().contains("no numbers"), "{error}");
    table.metadata["properties"]["schema.name-mapping.default"] =
        r#"[{"field-id": 1, "names": ["a", "A"]}, {"field-id": 3, "names": ["other"]}]"#.into();
    assert_eq!(latest(&table), ["b=null renamed=3"]);
    table.metadata["properties"]["schema.name-mapping.default"] = "nonsense".into();
    assert!(matches!(opened(&table).unwrap_err(), Error::Corrupt { .. }));
}

/// Values of a column, with the levels of their definition and repetition.
type Levels = (&'static [i64], &'static [i16], Option<&'static [i16]>);

/// A file of one row without numbers, whose list has two levels and whose map is marked as what is in it, as old writers left them.
fn old_forms(path: &Path, list_of: &str) {
    let message = format!(
        "message t {{ optional int64 id; optional group li (LIST) {{ repeated group {list_of} {{ optional int64 u; }} }}
        optional group m (MAP_KEY_VALUE) {{ repeated group map {{ required int64 key; optional group value {{ optional int64 u; }} }} }} }}"
    );
    let columns: [Levels; 4] =
        [(&[1], &[1], None), (&[7, 8], &[3, 3], Some(&[0, 1])), (&[5], &[2], Some(&[0])), (&[9], &[4], Some(&[0]))];
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let schema = Arc::new(parse_message_type(&message).unwrap());
    let mut writer = SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (values, definition, repetition) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(values, Some(definition), repetition).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn structs_in_lists_and_maps_of_old_writers_are_read_by_the_names_that_the_table_tells() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "id", "long")]);
    let of =
        |id: i64| json!({"type": "struct", "fields": [{"id": id, "name": "u", "required": false, "type": "long"}]});
    let list = json!({"type": "list", "element-id": 3, "element-required": false, "element": of(4)});
    let map =
        json!({"type": "map", "key-id": 6, "key": "long", "value-id": 7, "value-required": false, "value": of(8)});
    let fields = table.metadata["schemas"][0]["fields"].as_array_mut().unwrap();
    fields.push(json!({"id": 2, "name": "li", "required": false, "type": list}));
    fields.push(json!({"id": 5, "name": "m", "required": false, "type": map}));
    let mapping = |of_list: Value| {
        json!([{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["li"], "fields": of_list},
            {"field-id": 5, "names": ["m"], "fields": [{"field-id": 6, "names": ["key"]},
                {"field-id": 7, "names": ["value"], "fields": [{"field-id": 8, "names": ["u"]}]}]}])
        .to_string()
    };
    let elements = json!([{"field-id": 3, "names": ["element"], "fields": [{"field-id": 4, "names": ["u"]}]}]);
    table.metadata["properties"]["schema.name-mapping.default"] = mapping(elements).into();
    for (snapshot, list_of, name) in [(1, "array", "li"), (2, "li_tuple", "li"), (3, "li_tuple", "lists")] {
        let path = table.path.join(format!("data/{snapshot}.parquet"));
        old_forms(&path, list_of);
        table.snapshot(snapshot, snapshot, &[Manifest(0, snapshot, vec![File::data(&path)])]);
        table.metadata["schemas"][0]["fields"][1]["name"] = name.into();
        assert_eq!(latest(&table), [format!("id=1 {name}=[{{u: 7}}, {{u: 8}}] m={{5: {{u: 9}}}}")], "{list_of}");
    }
    table.metadata["properties"]["schema.name-mapping.default"] =
        mapping(json!([{"field-id": 3, "names": ["element"]}])).into();
    let error = opened(&table).unwrap_err().chain();
    assert!(error.contains("no numbers") && error.contains("li_tuple"), "{error}");
}

#[test]
fn columns_that_files_lack_have_the_values_of_the_partition_or_their_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "p", "int"), (2, "id", "int")]);
    let has = table.file("a.parquet", &[(1, "p", ints(&[Some(5)])), (2, "id", ints(&[Some(1)]))]);
    let lacks = table.file("b.parquet", &[(2, "id", ints(&[Some(2), Some(3)]))]);
    let null = table.file("c.parquet", &[(2, "id", ints(&[Some(4)]))]);
    let files = vec![File::data(&has).at(Some(5)), File::data(&lacks).at(Some(6)), File::data(&null).at(None)];
    table.snapshot(1, 1, &[Manifest(1, 1, files)]);
    assert_eq!(latest(&table), ["id=1 p=5", "id=2 p=6", "id=3 p=6", "id=4 p=null"]);
    for (filter, count) in [("p = 6", 2), ("p is null", 1), ("p < 6", 1), ("p = 7", 0), ("id > 1 and p >= 5", 2)] {
        let options = OpenOptions { filter: Some(filter.parse().unwrap()), ..OpenOptions::default() };
        assert_eq!(read(&table.path, options).unwrap().len(), count, "{filter}");
    }
    table.metadata["format-version"] = 3.into();
    let fields = table.metadata["schemas"][0]["fields"].as_array_mut().unwrap();
    fields.push(json!({"id": 3, "name": "d", "required": true, "type": "date", "initial-default": "2021-02-03"}));
    fields.push(json!({"id": 4, "name": "n", "required": false, "type": "unknown"}));
    let found = latest(&table);
    assert!(found.iter().all(|row| row.starts_with("d=2021-02-03 ") && row.contains(" n=null ")), "{found:?}");
    let options = OpenOptions { filter: Some("d = '2021-02-03'".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(read(&table.path, options).unwrap().len(), 4);
}

#[test]
fn a_required_column_that_a_file_lacks_is_an_error_with_its_name_unless_it_has_a_default() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "id", "int"), (2, "x", "int")]);
    let has = table.file("a.parquet", &[(1, "id", ints(&[Some(1)])), (2, "x", ints(&[Some(7)]))]);
    let lacks = table.file("b.parquet", &[(1, "id", ints(&[Some(2)]))]);
    table.snapshot(1, 1, &[Manifest(0, 1, vec![File::data(&has), File::data(&lacks)])]);
    assert_eq!(latest(&table), ["id=1 x=7", "id=2 x=null"]);
    table.metadata["schemas"][0]["fields"][1]["required"] = true.into();
    let dataset = opened(&table).unwrap();
    let error = dataset.project(&["x".to_owned()]).unwrap_err();
    let Error::Corrupt { place, .. } = &error else { panic!("{error}") };
    assert!(place.file.as_deref().is_some_and(|file| file.ends_with("b.parquet")), "{error}");
    assert_eq!(place.column.as_deref(), Some("x"), "{error}");
    assert!(dataset.project(&["id".to_owned()]).is_ok(), "what nobody asks for is no error");
    table.metadata["format-version"] = 3.into();
    table.metadata["schemas"][0]["fields"][1]["initial-default"] = 9.into();
    assert_eq!(latest(&table), ["id=1 x=7", "id=2 x=9"]);
}

#[test]
fn a_default_that_is_not_read_matters_only_where_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "id", "int"), (2, "x", "int")]);
    table.metadata["format-version"] = 3.into();
    let file = File::data(&table.file("a.parquet", &[(1, "id", ints(&[Some(1)])), (2, "x", ints(&[Some(7)]))]));
    table.snapshot(1, 1, &[Manifest(0, 1, vec![file])]);
    let with = |table: &mut Table, ty: &str, default: &str| {
        let field = json!({"id": 3, "name": "d", "required": true, "type": ty, "initial-default": default});
        table.metadata["schemas"][0]["fields"][2] = field;
    };
    table.metadata["schemas"][0]["fields"].as_array_mut().unwrap().push(json!({}));
    for (ty, default) in
        [("timestamp_ns", "2021-02-03T04:05:06.000000001"), ("uuid", "00000000-0000-0000-0000-000000000001")]
    {
        with(&mut table, ty, default);
        let dataset = opened(&table).unwrap();
        assert_eq!(super::support::read(&dataset, &["id", "x"]).unwrap().num_rows(), 1);
        let error = dataset.project(&["d".to_owned()]).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("\"d\"") && error.to_string().contains("a.parquet"), "{error}");
    }
}

#[test]
fn a_date_that_became_a_time_is_midnight_in_any_unit() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "d", "date")]);
    let days: ArrayRef = Arc::new(Date32Array::from(vec![18_661, 0]));
    let file = File::data(&table.file("a.parquet", &[(1, "d", days)]));
    table.snapshot(1, 1, &[Manifest(0, 1, vec![file])]);
    table.metadata["format-version"] = 3.into();
    for unit in ["timestamp", "timestamp_ns"] {
        table.alter(&[(1, "d", unit)]);
        assert_eq!(latest(&table), ["d=1970-01-01T00:00:00", "d=2021-02-03T00:00:00"], "{unit}");
        let options = OpenOptions { filter: Some("d > '2021-02-02'".parse().unwrap()), ..OpenOptions::default() };
        assert_eq!(read(&table.path, options).unwrap().len(), 1, "{unit}");
    }
}

#[test]
fn a_partition_by_what_was_a_date_is_not_taken_for_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "p", "date"), (2, "id", "int")]);
    let lacks = File::data(&table.file("a.parquet", &[(2, "id", ints(&[Some(1)]))])).at(Some(18_661));
    table.snapshot(1, 1, &[Manifest(1, 1, vec![lacks.clone()])]);
    assert_eq!(latest(&table), ["id=1 p=2021-02-03"]);
    table.alter(&[(1, "p", "timestamp"), (2, "id", "int")]);
    let fails = |table: &Table| {
        let dataset = opened(table).unwrap();
        assert!(dataset.project(&["id".to_owned()]).is_ok(), "what nobody asks for is no error");
        let error = dataset.project(&["p".to_owned()]).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { .. }) && error.to_string().contains("\"p\""), "{error}");
    };
    fails(&table);
    // Manifests may say that a value is a date; then no schema of the past has to.
    table.partition = json!({"type": "int", "logicalType": "date"});
    table.snapshot(2, 2, &[Manifest(1, 2, vec![lacks])]);
    table.metadata["schemas"].as_array_mut().unwrap().remove(0);
    fails(&table);
}

#[test]
fn a_table_without_a_snapshot_has_its_columns_and_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let table = Table::new(folder.path(), &[(1, "id", "long")]);
    let dataset = opened(&table).unwrap();
    assert_eq!((dataset.manifest().rows(), dataset.schema().field(0).name().as_str()), (0, "id"));
    let index = Index::Bytes(dataset.index().unwrap().into());
    assert_eq!(
        open(&[text(&table.path)], OpenOptions { index, ..OpenOptions::default() }).unwrap().table_version(),
        Some(0)
    );
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = moving(folder.path());
    let good = table.metadata.clone();
    let mut refused = |key: &str, value: serde_json::Value, said: &str| {
        table.metadata = good.clone();
        table.metadata[key] = value;
        let error = opened(&table).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(said), "{said}: {error}");
    };
    refused("format-version", 4.into(), "version 4");
    refused("view-uuid", "x".into(), "a view");
    refused("encryption-keys", json!([{"key-id": "a"}]), "encrypted");
    refused("properties", json!({"encryption.key-id": "a"}), "encrypted");
    let field = |ty: serde_json::Value| json!([{"schema-id": 0, "fields": [{"id": 1, "name": "odd", "required": false, "type": ty}]}]);
    for ty in ["variant", "geometry", "geography(OGC:CRS84)"] {
        refused("schemas", field(ty.into()), "\"odd\"");
    }
    refused("snapshots", json!([{"snapshot-id": 13, "manifests": ["x"]}]), "list of manifests");
    refused("location", "s3://bucket/table".into(), "another kind of store");
    refused("location", "warehouse/table".into(), "does not say what it is relative to");
    for (format, said) in [("ORC", "orc"), ("AVRO", "avro")] {
        table.metadata = good.clone();
        let file = File { format, ..File::data(&table.path.join("data/x")) };
        table.snapshot(14, 4000, &[Manifest(0, 4, vec![file])]);
        let error = opened(&table).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(said), "{error}");
    }
}

#[test]
fn damaged_or_hostile_metadata_are_typed_errors() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = moving(folder.path());
    let good = table.metadata.clone();
    opened(&table).unwrap();
    let fails = |table: &Table| match open(&[text(&table.path)], OpenOptions::default()) {
        Ok(_) => panic!("it was opened"),
        Err(Error::Corrupt { .. } | Error::NotFound { .. } | Error::Limit { .. }) => {}
        Err(other) => panic!("{other:?}"),
    };
    for (key, value) in [
        ("current-snapshot-id", json!(77)),
        ("current-schema-id", json!(77)),
        ("schemas", json!([])),
        (
            "schemas",
            json!([{"schema-id": 0, "fields": [{"id": 1, "name": "a", "type": "int"}, {"id": 1, "name": "b", "type": "int"}]}]),
        ),
        ("partition-specs", json!([])),
        ("snapshots", json!([{"snapshot-id": 13, "manifest-list": text(&table.path.join("none.avro"))}])),
        ("snapshots", json!("x")),
        ("location", json!(null)),
    ] {
        table.metadata = good.clone();
        table.metadata[key] = value;
        table.commit(1);
        fails(&table);
    }
    table.metadata = good;
    let metadata = table.commit(1);
    // Files of Avro, cut off anywhere, and with any byte changed: an error, and no panic. (They have no checksums: of a changed byte some
    // go unseen.)
    for name in ["snap-13.avro", "m3.avro"] {
        let path = table.path.join("metadata").join(name);
        let whole = fs::read(&path).unwrap();
        for cut in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..cut]).unwrap();
            match open(&[text(&table.path)], OpenOptions::default()) {
                // Their list says how many files manifests have, and nothing how many manifests there are.
                Ok(dataset) if name.starts_with("snap") => {
                    assert_eq!(dataset.manifest().rows(), 0, "a list may end before its first block");
                }
                outcome => assert!(outcome.is_err(), "{name} cut off at {cut}"),
            }
        }
        for at in (4..whole.len()).step_by(5) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            fs::write(&path, &bytes).unwrap();
            drop(open(&[text(&table.path)], OpenOptions::default()));
        }
        fs::write(&path, &whole).unwrap();
    }
    let limits = Limits { max_files: 1, ..Limits::default() };
    let error = open(&[text(&table.path)], OpenOptions { limits, ..OpenOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
    let limits = Limits { max_index_bytes: 300, ..Limits::default() };
    let error = open(&[text(&table.path)], OpenOptions { limits, ..OpenOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "limits.max_index_bytes", .. }), "{error}");
    for text_of in ["", "{", "[]", "{\"format-version\": 2}"] {
        fs::write(&metadata, text_of).unwrap();
        fails(&table);
    }
    // A kilobyte that is a thousand times as much.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(&vec![b' '; 1 << 20]).unwrap();
    fs::write(&metadata, packed.finish().unwrap()).unwrap();
    let limits = Limits { max_index_bytes: 1 << 16, ..Limits::default() };
    let error = open(&[text(&table.path)], OpenOptions { limits, ..OpenOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "limits.max_index_bytes", .. }), "{error}");
}

#[test]
fn what_is_kept_of_many_manifests_has_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Table::new(folder.path(), &[(1, "id", "long")]);
    let path = |number: i32| table.path.join(format!("data/{number}.parquet"));
    let manifests: Vec<Manifest> = (0..100).map(|number| Manifest(0, 1, vec![File::data(&path(number))])).collect();
    table.snapshot(1, 1, &manifests);
    table.commit(1);
    let opened = |max_index_bytes| {
        let limits = Limits { max_index_bytes, ..Limits::default() };
        open(&[text(&table.path)], OpenOptions { limits, ..OpenOptions::default() }).unwrap_err()
    };
    let error = opened(12_000);
    assert!(matches!(error, Error::Limit { option: "limits.max_index_bytes", .. }), "{error}");
    assert!(error.to_string().contains("the files of the table"), "{error}");
    assert!(matches!(opened(1 << 20), Error::NotFound { .. }), "its files are not there");
}

#[test]
fn the_order_is_that_of_the_same_files_given_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let table = moving(folder.path());
    table.commit(1);
    let paths = ["a", "b"].map(|name| text(&table.path.join(format!("data/{name}.parquet"))).to_owned());
    let by_hand = open(&[&paths[0], &paths[1]], OpenOptions::default()).unwrap();
    let by_table = open(&[text(&table.path)], version(12)).unwrap();
    let groups = |dataset: &Dataset| dataset.manifest().groups.clone();
    assert_eq!(groups(&by_hand), groups(&by_table));
    assert_eq!(rows(&by_hand).unwrap(), rows(&by_table).unwrap());
}

/// What the addresses in the fixtures begin with.
const ROOT: usize = 128;

/// A copy below `folder` of the tables in the fixtures, by their names.
pub(super) fn copied(folder: &Path) -> Vec<PathBuf> {
    let fixtures = support::fixture("iceberg");
    let base = format!("{}/", text(&fs::canonicalize(folder).unwrap()));
    let root = format!("{base}{}", "x".repeat(ROOT - base.len()));
    copy(&fixtures.join("tables"), Path::new(&root), was().as_bytes(), root.as_bytes());
    let mut tables = Vec::new();
    for table in fs::read_dir(fixtures.join("expected")).unwrap() {
        let name = table.unwrap().file_name().into_string().unwrap();
        let below = if name.starts_with("python") { "py/db" } else { "db" };
        tables.push(Path::new(&root).join(below).join(name));
    }
    tables.sort();
    tables
}

/// Copies `from` to `to`, with another text of the same length for the one that addresses in it begin with.
fn copy(from: &Path, to: &Path, was: &[u8], now: &[u8]) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to, was, now);
            continue;
        }
        let mut bytes = fs::read(&from).unwrap();
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(was.len()).position(|window| window == was) {
            bytes[at + found..][..was.len()].copy_from_slice(now);
            at += found + was.len();
        }
        fs::write(to, bytes).unwrap();
    }
}

/// That text.
fn was() -> String {
    format!("{:0<ROOT$}", "/tmp/bowstring-iceberg-")
}

/// Puts table `name` of the fixtures into `server`, by way of `folder`; the address of its metadata.
pub(super) fn in_store(server: &Server, folder: &Path, name: &str) -> String {
    // Hadoop writes s3a, and everybody else reads s3.
    let root = format!("{:x<ROOT$}", "s3a://bucket/");
    let inside = root.strip_prefix("s3a://").unwrap();
    let table = folder.join(name);
    copy(&support::fixture("iceberg/tables/db").join(name), &table, was().as_bytes(), root.as_bytes());
    server.upload(&table, &format!("{inside}/db/{name}"));
    let hint = fs::read_to_string(table.join("metadata/version-hint.text")).unwrap();
    format!("s3://{inside}/db/{name}/metadata/v{}.metadata.json", hint.trim())
}

#[test]
fn a_table_in_a_store_has_the_rows_that_it_has_on_a_disk() {
    let (fixtures, folder, server) = (support::fixture("iceberg"), tempfile::tempdir().unwrap(), Server::start());
    let options = OpenOptions { storage_options: server.storage_options(), ..OpenOptions::default() };
    for name in ["positions", "vectors", "equality"] {
        let metadata = in_store(&server, folder.path(), name);
        let expected = read(&fixtures.join(format!("expected/{name}/latest.parquet")), OpenOptions::default()).unwrap();
        let url = metadata.split("/metadata/").next().unwrap().to_owned();
        for url in [&url, &format!("{url}/"), &metadata] {
            let there = open(&[url.as_str()], options.clone()).unwrap();
            assert_eq!(rows(&there).unwrap(), expected, "{url}");
            assert!(there.manifest().files.iter().all(|file| file.path.starts_with("data/")), "{url}");
        }
        // A directory of a partition is no table.
        let inside = url.strip_prefix("s3://").unwrap();
        server.put(&format!("{inside}/data/day=1/d.parquet"), Vec::new(), PINNED);
        let error = open(&[&format!("{url}/data/day=1")], options.clone()).unwrap_err();
        let surrounded = format!("inside the table of Iceberg at {url}:");
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(&surrounded)), "{error}");
        // What says which files there are is asked for once.
        server.requests();
        open(&[url.as_str()], options.clone()).unwrap();
        let mut asked: Vec<String> = server.requests();
        asked.retain(|request| request.contains(".avro") || request.contains(".json"));
        let count = asked.len();
        asked.sort();
        asked.dedup();
        assert!(count > 2 && asked.len() == count, "{asked:?}");
    }
}

#[test]
fn tables_of_iceberg_have_the_rows_that_spark_and_pyiceberg_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for place in copied(folder.path()) {
        let name = place.file_name().unwrap().to_str().unwrap();
        for case in fs::read_dir(support::fixture("iceberg/expected").join(name)).unwrap() {
            let case = case.unwrap().path();
            let label = case.file_stem().unwrap().to_str().unwrap().to_owned();
            let options = match label.split_once('-') {
                Some(("version", number)) => version(number.parse().unwrap()),
                Some(("ref", name)) => named(name),
                _ => OpenOptions::default(),
            };
            let found = read(&place, options).unwrap_or_else(|error| panic!("{name} {label}: {}", error.chain()));
            let expected = read(&case, OpenOptions::default()).unwrap();
            assert_eq!(found, expected, "{name} {label}");
            count += 1;
        }
    }
    assert!(count >= 20, "{count} tables and snapshots");
}
