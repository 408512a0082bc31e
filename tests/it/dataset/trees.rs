//! Addresses, differing schemas, pages, and requests over the network.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, DictionaryArray, Float32Array, Float64Array, Int32Array, Int64Array,
    RecordBatch, StringArray, StructArray,
};
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type};
use bowstring::Error;
use bowstring::dataset::filter::Expr;
use bowstring::dataset::{Dataset, Limits, OpenOptions, Partitioning};
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use super::http::{Marks, PINNED, Server};
use super::support::{open, read, read_all, read_group, runtime, write};

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn numbers(values: std::ops::Range<i64>) -> ArrayRef {
    Arc::new(values.collect::<Int64Array>())
}

fn plain() -> WriterProperties {
    WriterProperties::builder().build()
}

fn names(dataset: &Dataset) -> Vec<String> {
    dataset.manifest().files.iter().map(|file| file.path.to_string()).collect()
}

/// Makes a tree of good files and of files that are not data.
fn tree(root: &Path) {
    for name in ["a.parquet", "b/c.parquet", "b/d.pq", "b/part-00001", "e=1/f.parquet", "_e=2/f.parquet"] {
        write(&root.join(name), &batch(vec![("v", numbers(0..3))]), plain());
    }
    for name in [
        "_SUCCESS",
        "_metadata",
        "._SUCCESS.crc",
        ".a.parquet.crc",
        "b/README.md",
        "_temporary/0/x.parquet",
        ".hidden/x.parquet",
    ] {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), "no parquet").unwrap();
    }
}

#[test]
fn addresses_lead_to_sorted_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("dá ta [1]");
    tree(&root);
    let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
    let found = |urls: &[String]| {
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        names(&open(&urls, OpenOptions { partitioning: Partitioning::None, ..OpenOptions::default() }).unwrap())
    };
    let everything = ["_e=2/f.parquet", "a.parquet", "b/c.parquet", "b/d.pq", "b/part-00001", "e=1/f.parquet"];
    assert_eq!(found(&[at("")]), everything);
    assert_eq!(found(&[url::Url::from_directory_path(&root).unwrap().to_string()]), everything);
    assert_eq!(found(&[at("a.parquet")]), ["a.parquet"]);
    assert_eq!(found(&[at("b/d.pq"), at("a.parquet"), at("a.parquet")]), ["a.parquet", "a.parquet", "b/d.pq"]);
    assert_eq!(found(&[at("b"), at("e=1")]), ["b/c.parquet", "b/d.pq", "b/part-00001", "e=1/f.parquet"]);
    // The folder's own brackets are not a pattern: only the part after an existing path is.
    let plain_root = folder.path().join("plain");
    tree(&plain_root);
    let at = |path: &str| plain_root.join(path).to_str().unwrap().to_owned();
    assert_eq!(found(&[at("*.parquet")]), ["a.parquet"]);
    assert_eq!(found(&[at("**/*.parquet")]), ["_e=2/f.parquet", "a.parquet", "b/c.parquet", "e=1/f.parquet"]);
    assert_eq!(found(&[at("{b,e=?}/[c-f].p*")]), ["b/c.parquet", "b/d.pq", "e=1/f.parquet"]);
    assert_eq!(found(&[at("[be]*")]), ["b/c.parquet", "b/d.pq", "b/part-00001", "e=1/f.parquet"]);
    let missing = |path: &str| open(&[&at(path)], OpenOptions::default()).unwrap_err();
    for path in ["nothing", "no*", "nothing/*.parquet", "b/*.md"] {
        let error = missing(path);
        let expected = if path == "b/*.md" {
            matches!(error, Error::Corrupt { .. })
        } else {
            matches!(error, Error::NotFound { .. })
        };
        assert!(expected, "{path}: {error}");
    }
    fs::write(plain_root.join("z.parquet"), "").unwrap();
    assert!(missing("").to_string().contains("file z.parquet: not a Parquet file: it is empty"));
    let limits = Limits { max_files: 3, ..Limits::default() };
    let error =
        open(&[&at("b"), &at("e=1"), &at("_e=2")], OpenOptions { limits, ..OpenOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::Limit { asked: 4.., limit: 3, .. }), "{error}");
}

#[test]
fn a_table_with_a_log_is_not_taken_for_the_sum_of_its_files() {
    for (log, kind) in [
        ("nested/_delta_log/00000000000000000001.json", "Delta Lake"),
        ("nested/metadata/00001-7.metadata.json", "Iceberg"),
        (".hoodie/hoodie.properties", "Hudi"),
        (".hoodie_partition_metadata", "Hudi"),
        ("b/.hoodie_partition_metadata", "Hudi"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path).to_str().unwrap().to_owned();
        tree(folder.path());
        assert!(open(&[&at("")], OpenOptions::default()).is_ok());
        fs::create_dir_all(folder.path().join(log).parent().unwrap()).unwrap();
        fs::write(folder.path().join(log), "{}").unwrap();
        let error = open(&[&at("")], OpenOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(kind)), "{error}");
        // Files of rows can still be named explicitly.
        assert_eq!(names(&open(&[&at("a.parquet"), &at("b/c.parquet")], OpenOptions::default()).unwrap()).len(), 2);
        assert_eq!(names(&open(&[&at("b/*.p*")], OpenOptions::default()).unwrap()), ["c.parquet", "d.pq"]);
    }
}

#[test]
fn a_copy_elsewhere_has_the_same_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    tree(&folder.path().join("x"));
    let first = open(&[folder.path().join("x").to_str().unwrap()], OpenOptions::default()).unwrap();
    for path in names(&first) {
        let to = folder.path().join("y").join(&path);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(folder.path().join("x").join(&path), to).unwrap();
    }
    let second = open(&[folder.path().join("y").to_str().unwrap()], OpenOptions::default()).unwrap();
    assert_eq!(first.manifest().fingerprint(), second.manifest().fingerprint());
    assert_ne!(first.manifest().files[0].version, second.manifest().files[0].version);
    assert!(first.manifest().files[0].version.etag.is_some());
}

#[test]
fn partition_values_are_typed_over_all_files_and_win_over_columns() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let values = || batch(vec![("v", numbers(0..2)), ("n", numbers(70..72))]);
    write(&at("n=07/s=1/a.parquet"), &values(), plain());
    write(&at("n=-3/s=x%20y/a.parquet"), &values(), plain());
    write(&at("n=__HIVE_DEFAULT_PARTITION__/a.parquet"), &values(), plain());
    let dataset = open(&[folder.path().to_str().unwrap()], OpenOptions::default()).unwrap();
    let types: Vec<_> =
        dataset.schema().fields().iter().map(|f| (f.name().as_str(), f.data_type(), f.is_nullable())).collect();
    assert_eq!(
        types,
        [("v", &DataType::Int64, false), ("n", &DataType::Int64, true), ("s", &DataType::Utf8View, true)]
    );
    let all = read_all(&dataset).unwrap();
    let n: Vec<_> = all.column(1).as_primitive::<Int64Type>().iter().collect();
    assert_eq!(n, [Some(-3), Some(-3), Some(7), Some(7), None, None]);
    let s: Vec<_> = all.column(2).as_string_view().iter().collect();
    assert_eq!(s, [Some("x y"), Some("x y"), Some("1"), Some("1"), None, None]);
    let options = OpenOptions { partitioning: Partitioning::None, ..OpenOptions::default() };
    let without = open(&[folder.path().to_str().unwrap()], options).unwrap();
    assert_eq!(read(&without, &["n"]).unwrap().column(0).as_primitive::<Int64Type>().value(0), 70);
}

#[test]
fn compatible_schemas_become_one() {
    let folder = tempfile::tempdir().unwrap();
    let strings = |values: &[&str]| StringArray::from_iter_values(values);
    let dictionary: DictionaryArray<Int32Type> = ["p", "q"].into_iter().collect();
    let member = |name: &str, array: ArrayRef| StructArray::try_from(vec![(name, array)]).unwrap();
    let a = batch(vec![
        ("i", Arc::new(Int32Array::from(vec![1, -2]))),
        ("f", Arc::new(Float32Array::from(vec![0.5, f32::MIN]))),
        ("s", Arc::new(strings(&["a", "b"]))),
        ("t", Arc::new(member("x", Arc::new(Int32Array::from(vec![1, 2]))))),
        ("only_a", Arc::new(strings(&["m", "n"]))),
    ]);
    let b = batch(vec![
        ("t", Arc::new(member("y", Arc::new(strings(&["u", "w"]))))),
        ("s", Arc::new(dictionary)),
        ("only_b", numbers(8..10)),
        ("f", Arc::new(Float64Array::from(vec![1e300, 0.1]))),
        ("i", numbers(1 << 40..(1 << 40) + 2)),
    ]);
    write(&folder.path().join("a.parquet"), &a, plain());
    write(&folder.path().join("b.parquet"), &b, plain());
    let dataset = open(&[folder.path().to_str().unwrap()], OpenOptions::default()).unwrap();
    let fields: Vec<_> = dataset.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(fields, ["i", "f", "s", "t", "only_a", "only_b"]);
    let all = read_all(&dataset).unwrap();
    assert_eq!(all.column(0).as_primitive::<Int64Type>().values(), &[1, -2, 1 << 40, (1 << 40) + 1]);
    assert_eq!(all.column(1).as_primitive::<Float64Type>().values(), &[0.5, f64::from(f32::MIN), 1e300, 0.1]);
    assert_eq!(all.column(2).as_string_view().iter().flatten().collect::<Vec<_>>(), ["a", "b", "p", "q"]);
    let t = all.column(3).as_struct();
    assert_eq!(
        t.column_by_name("x").unwrap().as_primitive::<Int32Type>().iter().collect::<Vec<_>>(),
        [Some(1), Some(2), None, None]
    );
    assert_eq!(
        t.column_by_name("y").unwrap().as_string_view().iter().collect::<Vec<_>>(),
        [None, None, Some("u"), Some("w")]
    );
    assert_eq!(all.column(4).as_string_view().iter().collect::<Vec<_>>(), [Some("m"), Some("n"), None, None]);
    assert_eq!(all.column(5).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [None, None, Some(8), Some(9)]);
    // If one file lacks a member of a struct, it gives nulls.
    let y = read(&dataset, &["t.y"]).unwrap();
    assert_eq!(
        y.column(0).as_struct().column(0).as_string_view().iter().collect::<Vec<_>>(),
        [None, None, Some("u"), Some("w")]
    );
}

#[test]
fn incompatible_schemas_name_both_files_and_the_column() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), &batch(vec![("v", numbers(0..1)), ("w", numbers(0..1))]), plain());
    write(&folder.path().join("b.parquet"), &batch(vec![("w", numbers(0..1))]), plain());
    write(&folder.path().join("c.parquet"), &batch(vec![("v", Arc::new(StringArray::from(vec!["x"])))]), plain());
    let dataset = open(&[folder.path().to_str().unwrap()], OpenOptions::default()).unwrap();
    let error = read(&dataset, &["w", "v"]).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }));
    assert_eq!(
        error.to_string(),
        "type of column \"v\" in file a.parquet and file c.parquet: expected Int64, found Utf8View; \
         leave the column out, rewrite one of the files, or open them as separate datasets"
    );
    // Whoever does not read it is not concerned.
    let w = read(&dataset, &["w"]).unwrap();
    assert_eq!(w.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(0), Some(0), None]);
    let filtered = |text: &str| {
        let filter = Some(Expr::parse(text).unwrap());
        open(&[folder.path().to_str().unwrap()], OpenOptions { filter, ..OpenOptions::default() })
    };
    assert!(matches!(filtered("v > 0"), Err(Error::Mismatch { .. })));
    assert_eq!(read(&filtered("w = 0").unwrap(), &["w"]).unwrap().num_rows(), 2);
}

#[test]
fn uncompressed_bytes_are_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let blobs: BinaryArray = (0..50_u8).map(|byte| Some(vec![byte; 10_000])).collect();
    let properties =
        WriterProperties::builder().set_dictionary_enabled(false).set_compression(Compression::UNCOMPRESSED).build();
    write(&path, &batch(vec![("blob", Arc::new(blobs))]), properties);
    let dataset = open(&[path.to_str().unwrap()], OpenOptions::default()).unwrap();
    let projection = dataset.project(&["blob".to_owned()]).unwrap();
    let cost = dataset.cost(0, &projection);
    assert!(cost.fetched > 500_000 && cost.decoded < 50 * 20, "{cost:?}");
    let fetched = runtime().block_on(dataset.fetch(0, &projection)).unwrap();
    let arrays = [0, 1].map(|_| dataset.decode(&fetched, &projection, 0).unwrap());
    let starts = arrays.each_ref().map(|array| array.as_binary_view().value(49).as_ptr());
    assert_eq!(starts[0], starts[1], "both arrays show the fetched bytes themselves");
    assert_eq!(arrays[0].as_binary_view().value(49), vec![49; 10_000]);
}

#[test]
fn limits_are_errors_that_name_their_option() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(
        &path,
        &batch(vec![("v", numbers(0..100_000)), ("w", numbers(0..100_000))]),
        WriterProperties::builder().set_compression(Compression::SNAPPY).build(),
    );
    let read_with = |limits: Limits| {
        let dataset = open(&[path.to_str().unwrap()], OpenOptions { limits, ..OpenOptions::default() })?;
        read_all(&dataset)
    };
    assert_eq!(read_with(Limits::default()).unwrap().num_rows(), 100_000);
    for (limits, name) in [
        (Limits { max_footer_bytes: 100, ..Limits::default() }, "limits.max_footer_bytes"),
        (Limits { max_columns: 1, ..Limits::default() }, "limits.max_columns"),
        (Limits { max_row_groups: 0, ..Limits::default() }, "limits.max_row_groups"),
        (Limits { max_row_group_bytes: 1_000_000, ..Limits::default() }, "limits.max_row_group_bytes"),
        (Limits { max_page_bytes: 1000, ..Limits::default() }, "limits.max_page_bytes"),
    ] {
        match read_with(limits) {
            Err(error @ Error::Limit { option, .. }) => {
                let file = error.place().and_then(|place| place.file.as_deref());
                assert!(option == name && (file.is_some() || name == "limits.max_row_groups"), "{error:?}");
                let text = error.to_string();
                assert_eq!(text.matches("file ").count(), usize::from(file.is_some()), "a place is said once: {text}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Writes a file with a page index: 40 pages of 100 rows per column, in two row groups.
fn paged(path: &Path, version: WriterVersion) {
    let values = |step: i64| {
        Arc::new((0..4000).map(|row| (row % 7 != 0).then_some(row / step)).collect::<Int64Array>()) as ArrayRef
    };
    let text: ArrayRef = Arc::new((0..4000).map(|row| Some(format!("t{:04}", row / 10))).collect::<StringArray>());
    let lists = arrow::array::ListArray::from_iter_primitive::<Int64Type, _, _>(
        (0..4000).map(|row| Some((0..row % 4).map(move |i| Some(row * i)))),
    );
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_column_dictionary_enabled("row".into(), false)
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(50)
        .set_max_row_group_row_count(Some(2000))
        .set_compression(Compression::SNAPPY)
        .build();
    let all = vec![
        ("row", numbers(0..4000)),
        ("v", values(1)),
        ("w", values(3)),
        ("text", text),
        ("list", Arc::new(lists) as ArrayRef),
    ];
    write(path, &batch(all), properties);
}

#[test]
fn pages_that_cannot_match_are_not_read_and_no_row_is_lost() {
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.parquet");
        paged(&path, version);
        let all = read_all(&open(&[path.to_str().unwrap()], OpenOptions::default()).unwrap()).unwrap();
        let column = |index: usize, row: usize| {
            let array = all.column(index).as_primitive::<Int64Type>();
            array.is_valid(row).then(|| array.value(row))
        };
        type Case = (&'static str, Box<dyn Fn(usize) -> bool>);
        let cases: Vec<Case> = vec![
            ("v between 950 and 1017", Box::new(|row| (950..=1017).contains(&row) && row % 7 != 0)),
            ("w = 500 or v in (3, 3999)", Box::new(|row| row % 7 != 0 && (row / 3 == 500 || row == 3 || row == 3999))),
            ("text = 't0123'", Box::new(|row| row / 10 == 123)),
            ("v is null and row >= 3900", Box::new(|row| row % 7 == 0 && row >= 3900)),
            ("not (v < 3990)", Box::new(|row| row % 7 != 0 && row >= 3990)),
            ("row < 0", Box::new(|_| false)),
            ("row >= 0", Box::new(|_| true)),
            ("text > 't0150' and w != 700", Box::new(|row| row / 10 > 150 && row % 7 != 0 && row / 3 != 700)),
        ];
        for (filter, keep) in cases {
            let options = OpenOptions { filter: Some(filter.parse().unwrap()), ..OpenOptions::default() };
            let dataset = open(&[path.to_str().unwrap()], options).unwrap();
            let wanted: Vec<usize> = (0..4000).filter(|row| keep(*row)).collect();
            assert_eq!(dataset.manifest().rows(), wanted.len() as u64, "{filter}");
            if wanted.is_empty() {
                continue;
            }
            let found = read_all(&dataset).unwrap();
            for (at, row) in wanted.iter().enumerate() {
                let v = found.column(1).as_primitive::<Int64Type>();
                assert_eq!(found.column(0).as_primitive::<Int64Type>().value(at), *row as i64, "{filter}");
                assert_eq!(v.is_valid(at).then(|| v.value(at)), column(1, *row), "{filter}");
                assert_eq!(
                    &found.column(4).as_list::<i32>().value(at),
                    &all.column(4).as_list::<i32>().value(*row),
                    "{filter}"
                );
            }
        }
    }
}

#[test]
fn a_filter_reads_only_the_pages_that_may_match() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.parquet");
    paged(&path, WriterVersion::PARQUET_1_0);
    let server = Server::start();
    server.put("d.parquet", fs::read(&path).unwrap(), Marks { etag: Some("\"a\""), modified: None });
    let options = OpenOptions { filter: Some("row between 10 and 150".parse().unwrap()), ..OpenOptions::default() };
    let dataset = runtime().block_on(Dataset::open(&[server.url("d.parquet")], options)).unwrap();
    assert_eq!(dataset.manifest().groups.iter().map(|group| group.selected).collect::<Vec<_>>(), [141, 0]);
    let requests = server.requests();
    let footer = runtime().block_on(dataset.footer(0)).unwrap();
    let chunks = [0, 1].map(|group| footer.row_group(group).column(0).byte_range());
    let mut data_end = 0;
    for group in footer.row_groups() {
        for column in group.columns() {
            data_end = data_end.max(column.byte_range().0 + column.byte_range().1);
        }
    }
    let ranges = requests.iter().filter_map(|request| {
        let (start, last) = request.rsplit_once('=')?.1.split_once('-')?;
        Some((start.parse::<u64>().ok()?, last.parse::<u64>().ok()? + 1))
    });
    let data: Vec<(u64, u64)> = ranges.filter(|(start, _)| *start < data_end).collect();
    let [(start, end)] = data[..] else { panic!("one read of data: {requests:?}") };
    assert!(
        start >= chunks[0].0 && end <= chunks[0].0 + chunks[0].1 / 2,
        "two pages of twenty: {start}..{end} of {chunks:?}"
    );
}

#[test]
fn a_server_gets_few_requests_and_only_for_ranges() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.parquet");
    paged(&path, WriterVersion::PARQUET_1_0);
    let bytes = fs::read(&path).unwrap();
    let server = Server::start();
    for marks in [Marks { etag: Some("\"a\""), modified: None }, Marks::default()] {
        server.put("d.parquet", bytes.clone(), marks);
        let runtime = runtime();
        let dataset = runtime.block_on(Dataset::open(&[server.url("d.parquet")], OpenOptions::default())).unwrap();
        let requests = server.requests();
        assert!(requests.len() == 1 && requests[0].starts_with("GET /d.parquet bytes=-65536"), "{requests:?}");
        let projection = dataset.project(&["row".to_owned(), "text".to_owned()]).unwrap();
        let batch = runtime.block_on(read_group(&dataset, &projection, 1)).unwrap();
        assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), 2000);
        let requests = server.requests();
        assert!(requests.len() == 1 && !requests[0].ends_with("all"), "near columns are one request: {requests:?}");
    }
    let error = runtime().block_on(Dataset::open(&[server.url("gone.parquet")], OpenOptions::default())).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    server.put("empty.parquet", Vec::new(), Marks::default());
    let error = runtime().block_on(Dataset::open(&[server.url("empty.parquet")], OpenOptions::default())).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let signed = format!("{}?token=secret", server.url("d.parquet"));
    let error = runtime().block_on(Dataset::open(&[signed], OpenOptions::default())).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }) && !error.chain().contains("secret"), "{error}");
}

#[test]
fn large_footers_take_a_second_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.parquet");
    let columns: Vec<(String, ArrayRef)> =
        (0..1500).map(|column| (format!("a_rather_long_name_{column}"), numbers(0..3))).collect();
    write(&path, &RecordBatch::try_from_iter(columns).unwrap(), plain());
    let server = Server::start();
    server.put("d.parquet", fs::read(&path).unwrap(), Marks { etag: Some("\"a\""), modified: None });
    let dataset = runtime().block_on(Dataset::open(&[server.url("d.parquet")], OpenOptions::default())).unwrap();
    assert_eq!((server.requests().len(), dataset.schema().fields().len()), (2, 1500));
    let local = open(&[path.to_str().unwrap()], OpenOptions::default()).unwrap();
    assert_eq!(local.manifest().fingerprint(), dataset.manifest().fingerprint());
    let read = read(&local, &["a_rather_long_name_1499"]).unwrap();
    assert_eq!(read.column(0).as_primitive::<Int64Type>().values(), &[0, 1, 2]);
}

#[test]
fn marks_of_directories_in_a_bucket_are_no_files() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    write(&folder.path().join("a.parquet"), &batch(vec![("v", numbers(0..3))]), plain());
    server.upload(folder.path(), "bucket/t");
    for mark in ["bucket/t/", "bucket/t/sub/", "bucket/t/k%3D1", "bucket/t"] {
        server.put(mark, Vec::new(), PINNED);
    }
    let options = || OpenOptions { storage_options: server.storage_options(), ..OpenOptions::default() };
    for url in ["s3://bucket/t", "s3://bucket/t/", "s3://bucket/t/**"] {
        assert_eq!(names(&open(&[url], options()).unwrap()), ["a.parquet"], "{url}");
    }
    // An empty file of Parquet is damaged.
    server.put("bucket/t/b.parquet", Vec::new(), PINNED);
    let error = open(&["s3://bucket/t"], options()).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { .. }) && error.chain().contains("b.parquet"), "{}", error.chain());
}

#[test]
fn a_key_that_is_a_file_and_a_directory_is_refused() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let path = folder.path().join("a.parquet");
    write(&path, &batch(vec![("v", numbers(0..3))]), plain());
    server.upload(folder.path(), "bucket/t");
    server.put("bucket/t", fs::read(&path).unwrap(), PINNED);
    let options = || OpenOptions { storage_options: server.storage_options(), ..OpenOptions::default() };
    let error = open(&["s3://bucket/t"], options()).unwrap_err();
    assert!(matches!(error, Error::Config { option: "urls", .. }), "{}", error.chain());
    assert!(error.to_string().contains("write s3://bucket/t/"), "{error}");
    assert_eq!(names(&open(&["s3://bucket/t/"], options()).unwrap()), ["a.parquet"]);
    // A file alone has no more than its name.
    server.put("bucket/u", fs::read(&path).unwrap(), PINNED);
    assert_eq!(names(&open(&["s3://bucket/u"], options()).unwrap()), ["u"]);
}
