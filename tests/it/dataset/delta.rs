//! Tables of Delta Lake: those of the project itself with the rows that Spark reads of them, and small ones whose log is written here.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use bowstring::codec::{ColumnOptions, Nulls};
use bowstring::dataset::{Index, OpenOptions, Selector};
use bowstring::{Error, Loader, LoaderOptions, Result};

use super::http::Server;
use super::support::{open, rows, runtime, text, write};
use crate::support;

/// What is wrong with the table in `directory`, which has the rows that are right in `expected`; else how many rows it has.
fn judged(directory: &Path) -> std::result::Result<usize, String> {
    let inside = directory.join("delta");
    let table = if inside.exists() { inside } else { directory.to_owned() };
    let dataset =
        open(&[text(&table)], OpenOptions::default()).map_err(|error| format!("refused: {}", error.chain()))?;
    let found = rows(&dataset).map_err(|error| format!("refused: {}", error.chain()))?;
    if found.len() as u64 != dataset.manifest().rows() {
        return Err(format!("WRONG: {} rows, not the {} of the plan", found.len(), dataset.manifest().rows()));
    }
    let expected = directory.join("expected");
    if !expected.exists() {
        return Err(format!("{} rows, and none to hold them against", found.len()));
    }
    let expected = rows(&open(&[text(&expected)], OpenOptions::default()).map_err(|error| error.chain())?).unwrap();
    match found.iter().zip(&expected).find(|(found, expected)| found != expected) {
        _ if found.len() != expected.len() => Err(format!("WRONG: {} rows, not {}", found.len(), expected.len())),
        Some((found, expected)) => Err(format!("WRONG: {found}\n  not {expected}")),
        None => Ok(found.len()),
    }
}

fn tables(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn tables_of_delta_lake_have_the_rows_that_spark_reads() {
    let all = tables(&support::fixture("delta"));
    let mut count = 0;
    for table in all.iter().filter(|table| !table.ends_with("refused")) {
        let found = judged(table);
        assert!(found.as_ref().is_ok_and(|rows| *rows > 0), "{}: {found:?}", table.display());
        count += 1;
    }
    assert!(count >= 12, "{count} tables");
}

/// All that is in a directory of such tables, which need not be here: one line for each.
#[test]
#[ignore = "needs BOWSTRING_DELTA_TABLES, a directory of tables"]
fn every_table_of_a_directory() {
    let directory = support::variable("BOWSTRING_DELTA_TABLES").expect("a directory of tables");
    let mut wrong = 0;
    for table in tables(Path::new(&directory)) {
        let said = judged(&table).map_or_else(|what| what, |rows| format!("exact, {rows} rows"));
        wrong += usize::from(said.starts_with("WRONG"));
        println!("{}: {said}", table.file_name().unwrap().display());
    }
    assert_eq!(wrong, 0, "wrong tables");
}

#[test]
fn what_is_not_read_is_refused_by_name() {
    for (table, named) in [
        ("table-with-geo", "geospatial"),
        ("unshredded-variant", "variantType-preview"),
        ("deltalog-invalid-protocol-version", "reader version 99"),
        ("versions-not-contiguous", "commit 1 is missing"),
        ("deltalog-state-reconstruction-from-checkpoint-missing-metadata", "no metadata"),
        ("deltalog-state-reconstruction-from-checkpoint-missing-protocol", "no protocol"),
    ] {
        let table = support::fixture("delta/refused").join(table);
        let error = open(&[text(&table)], OpenOptions::default()).unwrap_err();
        assert!(error.to_string().contains(named), "{}: {error}", table.display());
        assert!(matches!(error, Error::Unsupported { .. } | Error::Corrupt { .. }), "{error}");
    }
}

const PROTOCOL: &str = r#"{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}"#;

fn metadata(fields: &[(&str, &str)], partitions: &[&str]) -> String {
    let field =
        |(name, ty): &(&str, &str)| serde_json::json!({"name": name, "type": ty, "nullable": true, "metadata": {}});
    let fields: Vec<_> = fields.iter().map(field).collect();
    let schema = serde_json::json!({"type": "struct", "fields": fields}).to_string();
    serde_json::json!({"metaData": {"id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
        "partitionColumns": partitions, "configuration": {}}})
    .to_string()
}

fn add(path: &str) -> String {
    serde_json::json!({"add": {"path": path, "partitionValues": {}, "size": 0, "modificationTime": 0, "dataChange": true}})
        .to_string()
}

fn remove(path: &str) -> String {
    serde_json::json!({"remove": {"path": path, "dataChange": true}}).to_string()
}

/// Writes commit `version`, made so many seconds after 1970.
fn commit(table: &Path, version: u64, lines: &[String]) {
    let log = table.join("_delta_log");
    fs::create_dir_all(&log).unwrap();
    let path = log.join(format!("{version:020}.json"));
    fs::write(&path, lines.join("\n")).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1000 * (version + 1))).unwrap();
}

fn ids(table: &Path, options: OpenOptions) -> Result<Vec<String>> {
    rows(&open(&[text(table)], options)?)
}

fn numbers(path: &Path, ids: std::ops::Range<i64>) {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
    write(path, &RecordBatch::try_from_iter_with_nullable([("id", column, true)]).unwrap(), Default::default());
}

/// Versions 0 to 3: file a, with b, without a, with c.
fn moving(table: &Path) {
    for (name, first) in [("a", 0), ("b", 10), ("c", 20)] {
        numbers(&table.join(format!("{name}.parquet")), first..first + 3);
    }
    let id = metadata(&[("id", "long")], &[]);
    commit(table, 0, &[PROTOCOL.to_owned(), id, add("a.parquet")]);
    commit(table, 1, &[add("b.parquet")]);
    commit(table, 2, &[remove("a.parquet")]);
    commit(table, 3, &[add("c.parquet")]);
}

#[test]
fn a_version_or_a_time_chooses_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    moving(folder.path());
    let version = |version| OpenOptions { version: Some(version), ..OpenOptions::default() };
    let at = |timestamp: &str| OpenOptions { timestamp: Some(timestamp.to_owned()), ..OpenOptions::default() };
    let counts = |options| ids(folder.path(), options).map(|rows| rows.len());
    for (asked, rows) in [(0, 3), (1, 6), (2, 3), (3, 6)] {
        assert_eq!(counts(version(asked)).unwrap(), rows, "version {asked}");
    }
    assert_eq!(ids(folder.path(), version(2)).unwrap(), ["id=10", "id=11", "id=12"]);
    let latest = open(&[text(folder.path())], OpenOptions::default()).unwrap();
    assert_eq!((latest.table_version(), latest.manifest().rows()), (Some(3), 6));
    let of = |options| open(&[text(folder.path())], options).map(|dataset| dataset.table_version().unwrap());
    for (time, version) in [
        ("1970-01-01 00:16:40", 0),
        ("1970-01-01 00:33:19.999", 0),
        ("1970-01-01T01:33:20+01:00", 1),
        ("1970-01-01 00:50:00", 2),
        ("2030-01-01", 3),
    ] {
        assert_eq!(of(at(time)).unwrap(), version, "{time}");
    }
    let error = of(version(4)).unwrap_err().to_string();
    assert!(error.contains("version 4") && error.contains("the latest is 3"), "{error}");
    let error = of(at("1970-01-01 00:16:39")).unwrap_err().to_string();
    assert!(error.contains("version 0, of 1970-01-01T00:16:40 UTC"), "{error}");
    assert!(matches!(of(at("soon")).unwrap_err(), Error::Config { option: "timestamp", .. }));
    let both = OpenOptions { version: Some(1), ..at("2030-01-01") };
    assert!(matches!(of(both).unwrap_err(), Error::Config { option: "timestamp", .. }));
    // What is no table has no versions.
    let plain = tempfile::tempdir().unwrap();
    numbers(&plain.path().join("a.parquet"), 0..3);
    let error = open(&[text(plain.path())], version(0)).unwrap_err();
    assert!(matches!(error, Error::Config { option: "version", .. }), "{error}");
}

#[test]
fn commits_tell_their_times_where_the_table_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    moving(folder.path());
    let asked = metadata(&[("id", "long")], &[]).replace(
        r#""configuration":{}"#,
        r#""configuration":{"delta.enableInCommitTimestamps":"true","delta.inCommitTimestampEnablementVersion":"2"}"#,
    );
    assert!(asked.contains("enableInCommitTimestamps"));
    let told = |millis: u64| format!(r#"{{"commitInfo":{{"inCommitTimestamp":{millis}}}}}"#);
    commit(folder.path(), 2, &[told(5_000_000), asked, remove("a.parquet")]);
    commit(folder.path(), 3, &[told(6_000_000), add("c.parquet")]);
    let of = |time: &str| {
        let options = OpenOptions { timestamp: Some(time.to_owned()), ..OpenOptions::default() };
        open(&[text(folder.path())], options).unwrap().table_version().unwrap()
    };
    // The files of commits 2 and 3 are older than what they say.
    for (time, version) in [
        ("1970-01-01 01:23:19", 1),
        ("1970-01-01 01:23:20", 2),
        ("1970-01-01 01:39:59", 2),
        ("1970-01-01 01:40:00", 3),
        ("1970-01-01 00:16:40", 0),
    ] {
        assert_eq!(of(time), version, "{time}");
    }
}

#[test]
fn a_loader_goes_on_on_its_version_and_a_later_one_is_another_dataset() {
    let folder = tempfile::tempdir().unwrap();
    moving(folder.path());
    let options = |version| LoaderOptions { version, ..support::options(folder.path(), 2, 0, 1) };
    let mut loader = Loader::open(options(None)).unwrap();
    loader.next().unwrap();
    let state = loader.state();
    let left = support::drain(&mut loader);
    commit(folder.path(), 4, &[remove("b.parquet")]);
    let mut later = Loader::open(options(None)).unwrap();
    assert!(matches!(later.load_state(&state).unwrap_err(), Error::Mismatch { .. }));
    let mut same = Loader::open(options(Some(3))).unwrap();
    same.load_state(&state).unwrap();
    assert_eq!(support::drain(&mut same), left);
    let dataset = open(&[text(folder.path())], OpenOptions { version: Some(3), ..OpenOptions::default() }).unwrap();
    let urls = [text(folder.path()).to_owned()];
    let current = |options| runtime().block_on(dataset.is_current(&urls, &options)).unwrap();
    assert!(!current(OpenOptions::default()) && current(OpenOptions { version: Some(3), ..OpenOptions::default() }));
}

#[test]
fn a_state_is_of_the_columns_and_values_that_its_version_gave_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let column = |first: i64| Arc::new(Int64Array::from_iter_values(first..first + 3)) as ArrayRef;
    let batch = RecordBatch::try_from_iter_with_nullable([("c1", column(0), true), ("c2", column(10), true)]).unwrap();
    write(&folder.path().join("x.parquet"), &batch, Default::default());
    let about = |columns: [&str; 2]| {
        let field = |name: &str, physical: &str, id: i64| {
            serde_json::json!({"name": name, "type": "long", "nullable": true,
                "metadata": {"delta.columnMapping.id": id, "delta.columnMapping.physicalName": physical}})
        };
        let fields = [field("a", columns[0], 1), field("b", columns[1], 2), field("p", "p", 3)];
        let schema = serde_json::json!({"type": "struct", "fields": fields}).to_string();
        serde_json::json!({"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": schema,
            "partitionColumns": ["p"], "configuration": {"delta.columnMapping.mode": "name"}}})
        .to_string()
    };
    let with = |p: &str| {
        serde_json::json!({"add": {"path": "x.parquet", "partitionValues": {"p": p}, "size": 0, "modificationTime": 0,
            "dataChange": true}})
        .to_string()
    };
    let protocol = r#"{"protocol":{"minReaderVersion":2,"minWriterVersion":5}}"#.to_owned();
    commit(folder.path(), 0, &[protocol, about(["c1", "c2"]), with("1")]);
    commit(folder.path(), 1, &[about(["c2", "c1"])]);
    commit(folder.path(), 2, &[about(["c1", "c3"])]);
    commit(folder.path(), 3, &[about(["c1", "c2"]), remove("x.parquet"), with("2")]);
    commit(folder.path(), 4, &[remove("x.parquet"), with("1")]);
    let open = |version| {
        // No file has the column of version 2.
        let columns = ColumnOptions { nulls: Nulls::Mask.into(), ..ColumnOptions::default() };
        let options = LoaderOptions { version: Some(version), columns, ..support::options(folder.path(), 2, 0, 1) };
        Loader::open(options).unwrap()
    };
    let state = open(0).state();
    for (version, same) in [(0, true), (1, false), (2, false), (3, false), (4, true)] {
        match open(version).load_state(&state) {
            Ok(()) => assert!(same, "version {version}"),
            Err(error) => assert!(!same && matches!(error, Error::Mismatch { .. }), "version {version}: {error}"),
        }
    }
}

#[test]
fn a_table_has_the_fingerprint_of_its_files_unless_its_log_says_more() {
    let [table, files] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let names = ["p=7/x.parquet", "p=__HIVE_DEFAULT_PARTITION__/y.parquet"];
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3));
    let batch = RecordBatch::try_from_iter_with_nullable([("id", ids, true)]).unwrap();
    for folder in [&table, &files] {
        names.iter().for_each(|name| write(&folder.path().join(name), &batch, Default::default()));
    }
    let about = |mode: &str, physical: &str| {
        let field = |name: &str, physical: &str, id: i64| {
            serde_json::json!({"name": name, "type": "long", "nullable": true,
                "metadata": {"delta.columnMapping.id": id, "delta.columnMapping.physicalName": physical}})
        };
        let fields = [field("id", physical, 1), field("p", "p", 2)];
        let schema = serde_json::json!({"type": "struct", "fields": fields}).to_string();
        serde_json::json!({"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": schema,
            "partitionColumns": ["p"], "configuration": {"delta.columnMapping.mode": mode}}})
        .to_string()
    };
    let with = |name: &str, p: Option<&str>| {
        serde_json::json!({"add": {"path": name, "partitionValues": {"p": p}, "size": 0, "modificationTime": 0,
            "dataChange": true}})
        .to_string()
    };
    let protocol = r#"{"protocol":{"minReaderVersion":2,"minWriterVersion":5}}"#.to_owned();
    let as_told = with(names[0], Some("7"));
    commit(table.path(), 0, &[protocol, about("none", "id"), as_told.clone(), with(names[1], None)]);
    commit(table.path(), 1, &[remove(names[0]), with(names[0], Some("8"))]);
    commit(table.path(), 2, &[remove(names[0]), as_told, about("name", "id")]);
    commit(table.path(), 3, &[about("name", "other")]);
    let of = |folder: &Path, version| {
        let options = OpenOptions { version, ..OpenOptions::default() };
        open(&[text(folder)], options).unwrap().manifest().fingerprint()
    };
    let plain = of(files.path(), None);
    let same = [0, 1, 2, 3].map(|version| of(table.path(), Some(version)) == plain);
    assert_eq!(same, [true, false, true, false]);
}

#[test]
fn an_index_is_of_its_version() {
    let folder = tempfile::tempdir().unwrap();
    moving(folder.path());
    let first = open(&[text(folder.path())], OpenOptions { version: Some(1), ..OpenOptions::default() }).unwrap();
    let error = runtime().block_on(first.write_index(None, &OpenOptions::default())).unwrap_err();
    assert!(
        matches!(error, Error::Config { option: "output", .. }) && error.to_string().contains("a table"),
        "{error}"
    );
    let index = Index::Bytes(first.index().unwrap().into());
    let same = open(&[text(folder.path())], OpenOptions { index: index.clone(), ..OpenOptions::default() }).unwrap();
    assert_eq!((same.table_version(), same.manifest().fingerprint()), (Some(1), first.manifest().fingerprint()));
    let other = OpenOptions { index, version: Some(3), ..OpenOptions::default() };
    assert_eq!(open(&[text(folder.path())], other).unwrap().table_version(), Some(3));
}

#[test]
fn the_order_is_that_of_the_same_files_given_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<Vec<usize>> = (0..9).map(|file| vec![40 + file, 17, 60]).collect();
    support::write(folder.path(), &files, 1);
    let names: Vec<String> = (0..9).map(|file| format!("part-{file:03}.parquet")).collect();
    let paths: Vec<String> = names.iter().map(|name| text(&folder.path().join(name)).to_owned()).collect();
    // Not in their order, and by way of one that was removed.
    let mut lines = vec![PROTOCOL.to_owned(), metadata(&[("id", "long"), ("f0", "float")], &[])];
    lines.extend(names.iter().rev().map(|name| add(name)));
    lines.push(add("gone.parquet"));
    commit(folder.path(), 0, &lines);
    commit(folder.path(), 1, &[remove("gone.parquet")]);
    for (shuffle, seed) in [(true, 3), (true, 4), (false, 0)] {
        let options =
            |urls: Vec<String>| LoaderOptions { urls, shuffle, seed, ..support::options(folder.path(), 8, 0, 1) };
        let by_log = support::drain(&mut Loader::open(options(vec![text(folder.path()).to_owned()])).unwrap());
        let by_hand = support::drain(&mut Loader::open(options(paths.clone())).unwrap());
        assert_eq!(by_log, by_hand, "shuffle {shuffle}, seed {seed}");
        assert_eq!(by_log.iter().map(Vec::len).sum::<usize>(), 9 * 117 + 36);
    }
}

#[test]
fn deleted_rows_are_gone_before_any_filter_and_counted() {
    let table = support::fixture("delta/dv-with-columnmapping/delta");
    let all = open(&[text(&table)], OpenOptions::default()).unwrap();
    assert!(all.manifest().rows() < all.stored_rows(), "nothing is deleted");
    let every = rows(&all).unwrap();
    let with = |filter: &str| OpenOptions { filter: Some(filter.parse().unwrap()), ..OpenOptions::default() };
    let mut parts = 0;
    for filter in ["col1 < 20", "col1 >= 20"] {
        let found = open(&[text(&table)], with(filter)).unwrap();
        let found_rows = rows(&found).unwrap();
        assert_eq!(found_rows.len() as u64, found.manifest().rows());
        assert!(found_rows.iter().all(|row| every.contains(row)));
        parts += found_rows.len();
    }
    assert_eq!(parts, every.len());
    let none = open(&[text(&table)], with("col1 < -1")).unwrap();
    assert_eq!(none.manifest().rows(), 0);
    // Row groups left out by their number do not bring rows back.
    let selector: Selector = serde_json::from_value(serde_json::json!({"row_groups": [0, 1]})).unwrap();
    let some = open(&[text(&table)], OpenOptions { selector: Some(selector), ..OpenOptions::default() }).unwrap();
    let counted: u64 = all.manifest().groups.iter().take(2).map(|group| group.selected).sum();
    assert_eq!(some.manifest().rows(), counted);
    assert_ne!(all.manifest().fingerprint(), none.manifest().fingerprint());
    let loader = Loader::open(support::options(&table, 4, 0, 1)).unwrap();
    assert_eq!(loader.rows(), every.len() as u64);
}

#[test]
fn a_vacuumed_file_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    moving(folder.path());
    let dataset = open(&[text(folder.path())], OpenOptions::default()).unwrap();
    fs::remove_file(folder.path().join("b.parquet")).unwrap();
    let error = open(&[text(folder.path())], OpenOptions::default()).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::NotFound { .. }), "{said}");
    assert!(
        said.contains("version 3") && said.contains("VACUUM") && said.contains("deletedFileRetentionDuration"),
        "{said}"
    );
    let error = rows(&dataset).unwrap_err();
    assert!(matches!(&error, Error::SourceChanged { .. }) && error.to_string().contains("VACUUM"), "{error}");
}

#[test]
fn columns_come_from_the_tables_schema_and_values_from_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let old: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let extra: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    let batch = RecordBatch::try_from_iter_with_nullable([("extra", extra, true), ("id", old, true)]).unwrap();
    write(&folder.path().join("day=2020-01-01/a.parquet"), &batch, Default::default());
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![1 << 40]));
    let new: ArrayRef = Arc::new(StringArray::from(vec!["new"]));
    let batch = RecordBatch::try_from_iter_with_nullable([("id", wide, true), ("added", new, true)]).unwrap();
    write(&folder.path().join("b.parquet"), &batch, Default::default());
    let about = metadata(&[("day", "date"), ("added", "string"), ("id", "long"), ("never", "decimal(9,2)")], &["day"]);
    let with = |path: &str, day: Option<&str>| {
        serde_json::json!({"add": {"path": path, "partitionValues": {"day": day}, "size": 1, "modificationTime": 0, "dataChange": true}})
            .to_string()
    };
    // The directory says nothing: the log does.
    let lines =
        [PROTOCOL.to_owned(), about, with("day%3D2020-01-01/a.parquet", Some("2021-02-03")), with("b.parquet", None)];
    commit(folder.path(), 0, &lines);
    let dataset = open(&[text(folder.path())], OpenOptions::default()).unwrap();
    let names: Vec<&str> = dataset.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["added", "id", "never", "day"]);
    let found = rows(&dataset).unwrap();
    let expected = [
        "added=new day=null id=1099511627776 never=null",
        "added=null day=2021-02-03 id=1 never=null",
        "added=null day=2021-02-03 id=2 never=null",
    ];
    assert_eq!(found, expected);
    for (filter, count) in
        [("day = '2021-02-03'", 2), ("day is null", 1), ("day > '2021-02-03'", 0), ("id > 1", 2), ("never is null", 3)]
    {
        let options = OpenOptions { filter: Some(filter.parse().unwrap()), ..OpenOptions::default() };
        assert_eq!(ids(folder.path(), options).unwrap().len(), count, "{filter}");
    }
    commit(folder.path(), 1, &[with("b.parquet", Some("yesterday"))]);
    let error = open(&[text(folder.path())], OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("yesterday"), "{error}");
}

#[test]
fn what_a_file_or_its_entry_lacks_is_null_only_where_the_table_permits_it() {
    let folder = tempfile::tempdir().unwrap();
    numbers(&folder.path().join("a.parquet"), 0..1);
    let open_with = |nullable: bool, values: serde_json::Value| {
        let field = |name: &str, ty: &str, nullable: bool| serde_json::json!({"name": name, "type": ty, "nullable": nullable, "metadata": {}});
        let fields = [field("id", "long", true), field("w", "long", nullable), field("p", "string", nullable)];
        let schema = serde_json::json!({"type": "struct", "fields": fields}).to_string();
        let about = serde_json::json!({"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": schema,
            "partitionColumns": ["p"], "configuration": {}}});
        let add = serde_json::json!({"add": {"path": "a.parquet", "partitionValues": values, "size": 0, "modificationTime": 0,
            "dataChange": true}});
        commit(folder.path(), 0, &[PROTOCOL.to_owned(), about.to_string(), add.to_string()]);
        open(&[text(folder.path())], OpenOptions::default())
    };
    for (nullable, values) in
        [(true, serde_json::json!({})), (true, serde_json::json!({"p": null})), (true, serde_json::json!({"p": ""}))]
    {
        assert_eq!(rows(&open_with(nullable, values).unwrap()).unwrap(), ["id=0 p=null w=null"]);
    }
    for (nullable, values) in [(false, serde_json::json!({})), (true, serde_json::json!({"P": "x"}))] {
        let error = open_with(nullable, values).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("file a.parquet, column p"), "{error}");
    }
    // A column that is not asked for may be missing.
    let dataset = open_with(false, serde_json::json!({"p": "x"})).unwrap();
    assert!(dataset.project(&["id".to_owned(), "p".to_owned()]).is_ok());
    let error = dataset.project(&["w".to_owned()]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("file a.parquet, column w"), "{error}");
}

#[test]
fn a_column_that_took_the_name_of_a_dropped_one_does_not_have_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let batch = |name: &str| {
        let old: ArrayRef = Arc::new(Int64Array::from(vec![7]));
        RecordBatch::try_from_iter_with_nullable([(name, old, true)]).unwrap()
    };
    write(&folder.path().join("a.parquet"), &batch("x"), Default::default());
    write(&folder.path().join("b.parquet"), &batch("col-2"), Default::default());
    let field = serde_json::json!({"name": "x", "type": "long", "nullable": true,
        "metadata": {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-2"}});
    let schema = serde_json::json!({"type": "struct", "fields": [field]}).to_string();
    let about = serde_json::json!({"metaData": {"id": "x", "format": {"provider": "parquet"}, "schemaString": schema,
        "partitionColumns": [], "configuration": {"delta.columnMapping.mode": "name"}}});
    let protocol = r#"{"protocol":{"minReaderVersion":2,"minWriterVersion":5}}"#;
    commit(folder.path(), 0, &[protocol.to_owned(), about.to_string(), add("a.parquet"), add("b.parquet")]);
    assert_eq!(ids(folder.path(), OpenOptions::default()).unwrap(), ["x=7", "x=null"]);
    let options = OpenOptions { filter: Some("x = 7".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(ids(folder.path(), options).unwrap(), ["x=7"]);
    // By numbers a file must have some.
    let by_id = about.to_string().replace(r#"mode":"name""#, r#"mode":"id""#);
    commit(folder.path(), 1, &[by_id]);
    let error = ids(folder.path(), OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no numbers"), "{error}");
}

#[test]
fn a_directory_inside_a_table_is_not_the_sum_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let table = fs::canonicalize(folder.path()).unwrap();
    moving(&table);
    let inside = table.join("p=a/q=b");
    numbers(&inside.join("d.parquet"), 0..3);
    for directory in [&inside, &table.join("p=a"), &table.join("_delta_log")] {
        let error = open(&[text(directory)], OpenOptions::default()).unwrap_err();
        let expected = format!("inside the table of Delta Lake at {}:", table.display());
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(&expected)), "{error}");
    }
    // A pattern means all files, and so does a file's name.
    for url in [format!("{}/*.parquet", inside.display()), format!("{}/d.parquet", inside.display())] {
        assert_eq!(ids(Path::new(&url), OpenOptions::default()).unwrap().len(), 3, "{url}");
    }
    // So it is in a store.
    let server = Server::start();
    let options = OpenOptions { storage_options: server.storage_options(), ..OpenOptions::default() };
    server.upload(&table, "bucket/a/t");
    for directory in ["p=a/q=b", "p=a/"] {
        let error = open(&[&format!("s3://bucket/a/t/{directory}")], options.clone()).unwrap_err();
        let expected = "inside the table of Delta Lake at s3://bucket/a/t:";
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(expected)), "{error}");
    }
    for url in ["s3://bucket/a/t/p=a/q=b/*.parquet", "s3://bucket/a/t/p=a/q=b/d.parquet"] {
        assert_eq!(open(&[url], options.clone()).unwrap().manifest().rows(), 3, "{url}");
    }
    // Without a table around it, it is a directory like any other.
    let plain = tempfile::tempdir().unwrap();
    numbers(&plain.path().join("p=a/q=b/d.parquet"), 0..3);
    server.upload(plain.path(), "bucket/b/t");
    assert_eq!(open(&["s3://bucket/b/t/p=a"], options.clone()).unwrap().manifest().rows(), 3);
    // Whoever may read the partition alone reads it.
    server.refuse_lists("_delta_log");
    let there = open(&["s3://bucket/a/t/p=a/q=b"], options).unwrap();
    assert_eq!(there.manifest().rows(), 3);
}

#[test]
fn a_damaged_or_hostile_log_is_a_typed_error() {
    let folder = tempfile::tempdir().unwrap();
    moving(folder.path());
    let error = |lines: &[String]| {
        commit(folder.path(), 4, lines);
        open(&[text(folder.path())], OpenOptions::default()).unwrap_err()
    };
    let said = |lines: &[&str]| error(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
    for (line, what) in [
        ("{", "line 1"),
        (r#"{"add":{"path":"../../etc/x"}}"#, "not the name of a file"),
        (r#"{"add":{"path":"%zz"}}"#, "not the name of a file"),
        (r#"{"add":{"path":"b.parquet"}}{"add":1}"#, "line 1"),
        (r#"{"metaData":{"schemaString":"{}"}}"#, "schema"),
        (
            r#"{"metaData":{"schemaString":"{\"type\":\"struct\",\"fields\":[{\"name\":\"id\",\"type\":\"string\"}]}"}}"#,
            "Utf8View",
        ),
    ] {
        let error = said(&[line]);
        assert!(error.chain().contains(what), "{line}: {}", error.chain());
        assert!(matches!(error, Error::Corrupt { .. } | Error::Mismatch { .. }), "{line}: {error}");
    }
    assert!(matches!(said(&[r#"{"add":{"path":"s3://bucket/x.parquet"}}"#]), Error::Unsupported { .. }));
    let vector = r#"{"add":{"path":"c.parquet","deletionVector":{"storageType":"i","pathOrInlineDv":"^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L","sizeInBytes":44,"cardinality":6}}}"#;
    let beyond = said(&[r#"{"remove":{"path":"c.parquet"}}"#, vector]);
    assert!(beyond.to_string().contains("deletes row 3"), "{beyond}");
    // A table among other addresses, and one further down.
    let nested = tempfile::tempdir().unwrap();
    moving(&nested.path().join("t"));
    let error = open(&[text(nested.path())], OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("the table's own directory"), "{error}");
    let (table, file) = (nested.path().join("t"), nested.path().join("t/a.parquet"));
    assert!(matches!(open(&[text(&table), text(&file)], OpenOptions::default()).unwrap_err(), Error::Config { .. }));
    assert_eq!(
        ids(&nested.path().join("t/*.parquet"), OpenOptions::default()).unwrap().len(),
        9,
        "all files are meant"
    );
}

#[test]
fn a_table_in_a_store_has_the_rows_that_it_has_on_a_disk() {
    let table = support::fixture("delta/dv-with-columnmapping/delta");
    let server = Server::start();
    server.upload(&table, "bucket/data/t");
    let options = OpenOptions { storage_options: server.storage_options(), ..OpenOptions::default() };
    let here = open(&[text(&table)], OpenOptions::default()).unwrap();
    for url in ["s3://bucket/data/t", "s3://bucket/data/t/"] {
        let there = open(&[url], options.clone()).unwrap();
        assert_eq!(there.manifest().fingerprint(), here.manifest().fingerprint(), "{url}");
        assert_eq!(rows(&there).unwrap(), rows(&here).unwrap());
    }
    // Each commit behind the checkpoint and each vector's file are asked for once.
    server.requests();
    open(&["s3://bucket/data/t"], options).unwrap();
    let mut asked: Vec<String> = server.requests();
    asked.retain(|request| request.contains(".json"));
    let count = asked.len();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), count, "{asked:?}");
}
