use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Date32Type, Int64Type};
use bowstring::Error;
use bowstring::convert::{ConvertOptions, Format, Progress, Types, convert, open};
use bowstring::dataset::filter::Filter;

use super::{batch, compared, kind, parquet, rows, run, same, text, to};
use crate::dataset::Server;

/// Directories of a tree, and an id for the file in each.
const TREE: [(&str, i64); 4] = [
    ("month=07/place=K%C3%B6ln%2FDeutz", 1),
    ("month=07/place=__HIVE_DEFAULT_PARTITION__", 2),
    ("month=11/place=a b%3Dc", 3),
    ("month=11/place=2024-01-01", 4),
];

fn file(root: &Path, name: &str, content: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Writes the tree as Parquet.
fn tree(root: &Path) {
    for (directory, id) in TREE {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![id, 10 * id]));
        let words: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(id as usize), "y".to_owned()]));
        let path = root.join(directory);
        fs::create_dir_all(&path).unwrap();
        parquet(&path.join("part-0.parquet"), &batch(vec![("id", ids), ("word", words)]));
    }
}

/// Writes the tree in `format`, each directory converted by itself.
fn tree_of(format: Format, parquet: &Path, root: &Path) {
    for (directory, _) in TREE {
        fs::create_dir_all(root.join(directory).parent().unwrap()).unwrap();
        run(&parquet.join(directory), &root.join(directory), &to(format)).unwrap();
        // Spark's marks lie in the root alone.
        for mark in ["_SUCCESS", "_files"] {
            fs::remove_file(root.join(directory).join(mark)).unwrap();
        }
    }
    fs::write(root.join("_SUCCESS"), "").unwrap();
}

#[test]
fn directories_of_values_are_the_columns_that_they_are_in_parquet() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    tree(&at("parquet"));
    let columns = |found: &arrow::array::RecordBatch| {
        let months = found.column_by_name("month").unwrap().as_primitive::<Int64Type>().values().to_vec();
        let places = found.column_by_name("place").unwrap();
        let places = arrow::compute::cast(places, &DataType::Utf8).unwrap();
        let places: Vec<_> = places.as_string::<i32>().iter().map(|place| place.map(str::to_owned)).collect();
        (months, places)
    };
    let (months, places) = columns(&rows(&at("parquet"), &ConvertOptions::default()).unwrap());
    assert_eq!(months, [7, 7, 7, 7, 11, 11, 11, 11]);
    let expected = [Some("Köln/Deutz"), None, Some("2024-01-01"), Some("a b=c")].map(|place| place.map(str::to_owned));
    assert_eq!(places.iter().step_by(2).cloned().collect::<Vec<_>>(), expected);
    for format in [Format::Csv, Format::Tsv, Format::Jsonl, Format::Arrow, Format::Tfrecord, Format::Webdataset] {
        let (src, out) = (at(format.name()), at(&format!("{format}.out")));
        tree_of(format, &at("parquet"), &src);
        let source = open(&text(&src), &ConvertOptions::default()).unwrap();
        assert_eq!(source.format(), format, "found by its names, also below two levels");
        let mut found = columns(&rows(&src, &ConvertOptions::default()).unwrap());
        assert_eq!(found, (months.clone(), places.clone()), "{format}");
        // The text is read a second time, and judged with the values of the directories.
        let options = ConvertOptions { verify: true, ..to(Format::Parquet) };
        assert_eq!(run(&src, &out, &options).unwrap().rows, 8, "{format}");
        found = columns(&rows(&out, &ConvertOptions::default()).unwrap());
        assert_eq!(found, (months.clone(), places.clone()), "{format}");
        if format != Format::Webdataset {
            same(&at("parquet"), &out);
        }
        // Columns of directories alone, selected by others, in an order that has to be scattered.
        let filter = Some(Filter::Text("id > 9 and month = 11".into()));
        let options = ConvertOptions {
            columns: vec!["place".into()],
            filter,
            shuffle: Some(3),
            verify: true,
            ..to(Format::Jsonl)
        };
        assert_eq!(run(&src, &at(&format!("{format}.places")), &options).unwrap().rows, 2, "{format}");
        let options = ConvertOptions { columns: vec!["month".into()], verify: true, ..to(Format::Csv) };
        assert_eq!(run(&src, &at(&format!("{format}.months")), &options).unwrap().rows, 8, "{format}");
    }
}

#[test]
fn given_types_decide_over_values_of_directories() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    for (day, zip) in [("2024-02-29", "01234"), ("__HIVE_DEFAULT_PARTITION__", "56789")] {
        file(&src, &format!("day={day}/zip={zip}/a.csv"), "id\n1\n2\n");
    }
    let types = Types::parse("day: date32, zip: string").unwrap();
    let options = ConvertOptions { schema: Some(types), verify: true, ..to(Format::Parquet) };
    run(&src, &out, &options).unwrap();
    let found = rows(&out, &ConvertOptions::default()).unwrap();
    let days = found.column_by_name("day").unwrap().as_primitive::<Date32Type>();
    assert_eq!(days.iter().collect::<Vec<_>>(), [Some(19_782), Some(19_782), None, None]);
    let zips = arrow::compute::cast(found.column_by_name("zip").unwrap(), &DataType::Utf8).unwrap();
    assert_eq!(zips.as_string::<i32>().value(0), "01234", "an integer without a given type");
    for (types, what) in [("zip: int8", "zip=01234/a.csv"), ("day: list<int8>", "a text can be read as")] {
        let options = ConvertOptions { schema: Some(Types::parse(types).unwrap()), ..to(Format::Parquet) };
        let (_, said) = kind(run(&src, &directory.path().join("no"), &options));
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn blank_lines_of_a_single_column_are_no_rows_below_directories() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    file(&src, "k=1/a.csv", "id\n1\n\n3\n\n");
    file(&src, "k=2/a.csv", "id\n\n\n");
    let report = run(&src, &out, &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
    assert!(report.verified && report.rows == 2, "{report:?}");
    let found = rows(&out, &ConvertOptions::default()).unwrap();
    let ids: Vec<_> = found.column_by_name("id").unwrap().as_primitive::<Int64Type>().iter().collect();
    assert_eq!(ids, [Some(1), Some(3)]);
}

#[test]
fn trees_whose_columns_are_in_doubt_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (root, files, parts) in [
        ("both", &["k=1/a.csv", "id=2/a.csv"][..], &["k=1/a.csv", "id=2/a.csv"][..]),
        ("own", &["id=2/a.csv"], &["id=2/a.csv", "\"id\"", "csv"]),
        ("deep", &["k=1/a.csv", "k=1/m=2/b.csv"], &["k=1/a.csv", "k=1/m=2/b.csv", "k, m"]),
        ("beside", &["a.csv", "k=1/b.csv"], &["a.csv", "k=1/b.csv", "none"]),
        ("twice", &["k=1/k=2/a.csv"], &["k=1/k=2/a.csv", "\"k\""]),
    ] {
        for name in files {
            file(&at(root), name, "id\n1\n");
        }
        let (error, said) = kind(run(&at(root), &at("out"), &to(Format::Parquet)));
        assert!(matches!(error, Error::Unsupported { .. } | Error::Mismatch { .. }), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        assert!(said.contains("one by one"), "{said}");
    }
    // One directory of them, whose column is lost knowingly.
    run(&at("own/id=2"), &at("one"), &to(Format::Parquet)).unwrap();
    // Images keep their classes, and a pattern its directories.
    file(&at("logs"), "day=1/a.jsonl", "{\"id\": 1}\n");
    file(&at("logs"), "day=2/a.jsonl", "{\"id\": 2}\n{\"id\": 3}\n");
    run(&at("logs/day=*/*.jsonl"), &at("days"), &to(Format::Parquet)).unwrap();
    let found = rows(&at("days"), &ConvertOptions::default()).unwrap();
    assert_eq!(found.column_by_name("day").unwrap().as_primitive::<Int64Type>().values(), &[1, 2, 2]);
    assert_eq!(found.column(1).null_count(), 0);
}

#[test]
fn partitions_in_a_store_are_found_below_several_levels() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    for (day, id) in [("k%2Fl", 1), ("__HIVE_DEFAULT_PARTITION__", 2)] {
        file(&src, &format!("year=2024/month=02/day={day}/a.csv"), &format!("id\n{id}\n"));
    }
    let server = Server::start();
    server.upload(&src, "bucket/csv");
    let options = ConvertOptions { storage_options: server.storage_options(), ..to(Format::Parquet) };
    let report = convert("s3://bucket/csv", &directory.path().join("out"), &options, &Progress::default());
    let report = report.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((report.rows, report.from), (2, Format::Csv));
    let found = compared("s3://bucket/csv".as_ref(), &directory.path().join("out"), &options).unwrap();
    assert!(found.equal, "{found:#?}");
    let found = rows(&directory.path().join("out"), &ConvertOptions::default()).unwrap();
    let days = arrow::compute::cast(found.column_by_name("day").unwrap(), &DataType::Utf8).unwrap();
    let mut days: Vec<_> = days.as_string::<i32>().iter().collect();
    days.sort_unstable();
    assert_eq!(days, [None, Some("k/l")]);
}
