//! Errors in values that are known at open: nulls where they are errors, integers beyond 32 bits. Footers alone are not trusted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, StructArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use bowstring::codec::{BadRows, Nulls};
use bowstring::dataset::filter::Filter;
use bowstring::{Error, Loader, LoaderOptions, Next, Place};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;

use crate::dataset::http::{Marks, Server};

/// Writes a file with row groups of five rows.
fn write(path: &Path, columns: &[(&str, ArrayRef)], statistics: EnabledStatistics) {
    write_groups(path, columns, statistics, 5);
}

fn write_groups(path: &Path, columns: &[(&str, ArrayRef)], statistics: EnabledStatistics, rows: usize) {
    let field = |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns.iter().map(|(_, array)| Arc::clone(array)).collect());
    let properties =
        WriterProperties::builder().set_statistics_enabled(statistics).set_max_row_group_row_count(Some(rows)).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), schema, Some(properties)).unwrap();
    writer.write(&batch.unwrap()).unwrap();
    writer.close().unwrap();
}

fn numbers(rows: i64, nulls: &[i64]) -> ArrayRef {
    Arc::new((0..rows).map(|row| (!nulls.contains(&row)).then_some(row)).collect::<Int64Array>())
}

/// Writes twenty rows: `id`, `a` with nulls in rows 7, 8 and 12, `s.b` with one in row 19, `t` with none.
fn holes(directory: &Path, statistics: EnabledStatistics) -> PathBuf {
    let path = directory.join("holes.parquet");
    let words = (0..20).map(|row| (row != 19).then(|| format!("row {row}"))).collect::<StringArray>();
    let member = Arc::new(Field::new("b", DataType::Utf8, true));
    let of: ArrayRef = Arc::new(StructArray::from(vec![(member, Arc::new(words) as ArrayRef)]));
    let columns = [("id", numbers(20, &[])), ("a", numbers(20, &[7, 8, 12])), ("s", of), ("t", numbers(20, &[]))];
    write(&path, &columns, statistics);
    path
}

fn options(path: &Path) -> LoaderOptions {
    LoaderOptions { shuffle: false, threads: Some(2), ..LoaderOptions::new(path.to_str().unwrap(), 4) }
}

/// Reads an epoch; returns its number of rows.
fn drained(options: LoaderOptions) -> bowstring::Result<u64> {
    let mut loader = Loader::open(options)?;
    while loader.next()?.is_some() {}
    Ok(loader.rows())
}

#[test]
fn nulls_are_reported_when_the_loader_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = holes(directory.path(), EnabledStatistics::Chunk);
    let error = Loader::open(options(&path)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Nulls { .. }), "{text}");
    assert_eq!(error.place(), Some(&Place::file("holes.parquet").row_group(1).column("a").row(2)));
    assert!(text.contains("2 columns") && text.contains("a (3 nulls in 2 row groups)"), "{text}");
    assert!(text.contains("s.b (1 null in 1 row group)") && text.contains("mask") && text.contains("filter"), "{text}");

    // Every remedy works.
    let masked = |options: &mut LoaderOptions| options.columns.nulls = Nulls::Mask.into();
    let some = |options: &mut LoaderOptions| options.columns.columns = vec!["id".into(), "t".into()];
    let others = |options: &mut LoaderOptions| options.columns.exclude = vec!["a".into(), "s".into()];
    let bad = |options: &mut LoaderOptions| options.bad_rows = BadRows::Zero;
    for way in [&masked as &dyn Fn(&mut LoaderOptions), &some, &others, &bad] {
        let mut options = options(&path);
        way(&mut options);
        assert_eq!(drained(options).unwrap(), 20);
    }
    let filtered = |filter: &str| LoaderOptions { filter: Some(Filter::Text(filter.to_owned())), ..options(&path) };
    assert_eq!(drained(filtered("a is not null and s.b is not null")).unwrap(), 16);
    assert_eq!(drained(filtered("id < 7")).unwrap(), 7);
    // Only row 12 of the three remains.
    let error = Loader::open(filtered("id > 9 and id < 19")).unwrap_err();
    assert_eq!(error.place(), Some(&Place::file("holes.parquet").row_group(2).column("a").row(2)), "{error}");
    assert!(error.to_string().contains("a column") && error.to_string().contains("some of"), "{error}");
    // Planning needs no values.
    assert!(bowstring::pipeline::LocalSource::open(options(&path)).is_ok());
}

#[test]
fn nulls_of_all_datasets_of_a_mixture_are_reported_together() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, nulls: &[i64]| {
        let path = directory.path().join(name);
        write(&path, &[("a", numbers(20, nulls)), ("b", numbers(20, &[]))], EnabledStatistics::Chunk);
        path.to_str().unwrap().to_owned()
    };
    let urls = vec![file("first.parquet", &[]), file("second.parquet", &[9]), file("third.parquet", &[0, 1, 19])];
    let error = Loader::open(LoaderOptions { urls, weights: vec![1.0; 3], ..options(Path::new("")) }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Nulls { .. }), "{text}");
    assert_eq!(error.place(), Some(&Place::file("second.parquet").row_group(1).column("a").row(4)), "{text}");
    assert!(text.contains("nulls in a column,") && !text.contains("first.parquet"), "{text}");
    for told in ["second.parquet (1 null in 1 row group)", "third.parquet (3 nulls in 2 row groups)"] {
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn row_groups_that_may_lack_nulls_are_not_read_when_the_loader_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("holes.parquet");
    let columns = [("id", numbers(200_000, &[])), ("a", numbers(200_000, &[20_007]))];
    write_groups(&path, &columns, EnabledStatistics::Chunk, 20_000);
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(&path).unwrap()).unwrap();
    let (start, length) = metadata.row_group(1).column(1).byte_range();
    let server = Server::start();
    server.put("holes.parquet", std::fs::read(&path).unwrap(), Marks { etag: Some("\"1\""), modified: None });
    let open = |filter: &str| {
        let urls = vec![server.url("holes.parquet")];
        let filter = Some(Filter::Text(filter.to_owned()));
        server.requests();
        let opened = Loader::open(LoaderOptions { urls, filter, ..options(Path::new("")) }).map(drop);
        let starts = server.requests().into_iter().filter_map(|request| {
            request.rsplit_once("bytes=").and_then(|(_, range)| range.split('-').next()?.parse::<u64>().ok())
        });
        (opened, starts.filter(|at| (start..start + length).contains(at)).count())
    };
    let (opened, reads) = open("id != 20007");
    opened.unwrap();
    assert_eq!(reads, 0, "one row is left out of the row group, perhaps the one that is null");
    let (opened, reads) = open("id != 7");
    assert!(opened.unwrap_err().to_string().contains("a (some of 1 null in 1 row group)"));
    assert_eq!(reads, 1);
}

#[test]
fn a_check_of_values_ends_with_the_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("holes.parquet");
    // More row groups than are checked, of columns that the footer's read does not include.
    let column: ArrayRef = Arc::new((0..200_000).map(|row| (row % 5 > 0).then_some(row)).collect::<Int64Array>());
    let columns = [("a", Arc::clone(&column)), ("b", column)];
    write_groups(&path, &columns, EnabledStatistics::Chunk, 20_000);
    let server = Server::start();
    let bytes = std::fs::read(&path).unwrap();
    server.put("holes.parquet", bytes.clone(), Marks { etag: Some("\"1\""), modified: None });
    server.hang_below(bytes.len() as u64 / 2);
    let urls = vec![server.url("holes.parquet")];
    let started = Instant::now();
    let error = Loader::open(LoaderOptions { urls, timeout: 3.0, ..options(Path::new("")) }).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("a look at column a and 1 more"), "{error}");
    // Eight row groups are named.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn the_search_for_wide_integers_stays_within_the_budget_while_reading_ahead() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wide.parquet");
    let wide = (0..400_000).map(|row| if row == 399_999 { 1 << 40 } else { row }).collect::<Int64Array>();
    write_groups(&path, &[("id", Arc::new(wide))], EnabledStatistics::Chunk, 10_000);
    let open = |memory_budget| {
        let (memory_budget, batch_size) = (Some(memory_budget), Some(4000));
        Loader::open(LoaderOptions { memory_budget, batch_size, ..options(&path) })
    };
    let Error::Limit { asked, .. } = open(1).unwrap_err() else { panic!("a budget of one byte") };
    let mut loader = open(asked).unwrap();
    let held: Vec<_> = (0..3).map(|_| loader.next().unwrap().unwrap()).collect();
    let found = loop {
        match loader.wide_integers_within(Duration::ZERO).unwrap() {
            Next::Item(found) => break found,
            Next::Pending => std::thread::sleep(Duration::from_millis(1)),
            Next::End => panic!("no end"),
        }
    };
    assert_eq!((found.len(), found[0].value, found[0].place.row_group), (1, 1 << 40, Some(39)));
    assert_eq!(loader.wide_integers().unwrap(), found, "as often as it is asked for");
    let memory = loader.stats().memory;
    assert!(memory.peak <= memory.budget, "{memory:?}");
    // Batches read ahead still arrive.
    let rest = std::iter::from_fn(|| loader.next().unwrap());
    let ids: Vec<i64> = held.into_iter().chain(rest).flat_map(|batch| crate::support::ids(&batch)).collect();
    assert!(ids[..399_999].iter().copied().eq(0..399_999) && ids[399_999..] == [1 << 40]);
    // A caller that gives up the check continues at once.
    loader.wide_integers_within(Duration::ZERO).unwrap();
    assert_eq!(loader.next().unwrap().unwrap().step, 0);
    loader.close();
    assert!(matches!(loader.wide_integers(), Err(Error::Closed { .. })));
}

#[test]
fn the_same_error_comes_with_the_row_without_statistics() {
    let directory = tempfile::tempdir().unwrap();
    let path = holes(directory.path(), EnabledStatistics::None);
    let mut loader = Loader::open(options(&path)).unwrap();
    assert_eq!(loader.next().unwrap().unwrap().rows, 4);
    let error = loader.next().unwrap_err();
    assert!(matches!(error, Error::Nulls { .. }), "{error}");
    assert_eq!(error.place(), Some(&Place::file("holes.parquet").row_group(1).column("a").row(2)));
    // Without a row to stand in, it is not reported as damage either.
    let path = directory.path().join("empty.parquet");
    write(&path, &[("a", numbers(3, &[0, 1, 2]))], EnabledStatistics::None);
    let error = drained(LoaderOptions { bad_rows: BadRows::Skip, ..options(&path) }).unwrap_err();
    assert!(matches!(error, Error::Nulls { .. }) && error.to_string().contains("stand in"), "{error}");
}

/// Rewrites the file with other statistics of its first column.
fn lie(path: &Path, statistics: &Statistics) {
    let bytes = std::fs::read(path).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&File::open(path).unwrap()).unwrap();
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let groups = metadata.row_groups().iter().map(|group| {
        let mut columns = group.columns().to_vec();
        columns[0] = columns[0].clone().into_builder().set_statistics(statistics.clone()).build().unwrap();
        group.clone().into_builder().set_column_metadata(columns).build().unwrap()
    });
    let metadata = metadata.clone().into_builder().set_row_groups(groups.collect()).build();
    let mut file = bytes[..bytes.len() - 8 - length].to_vec();
    ParquetMetaDataWriter::new(&mut file, &metadata).finish().unwrap();
    std::fs::write(path, file).unwrap();
}

#[test]
fn statistics_alone_refuse_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lies.parquet");
    write(&path, &[("a", numbers(20, &[])), ("b", numbers(20, &[]))], EnabledStatistics::Chunk);
    lie(&path, &Statistics::int64(Some(-1 << 40), Some(1 << 40), None, Some(3), false));
    let mut loader = Loader::open(options(&path)).unwrap();
    assert!(loader.wide_integers().unwrap().is_empty());
    assert_eq!(drained(options(&path)).unwrap(), 20);
    // Empty lists count as nulls in footers.
    let path = directory.path().join("lists.parquet");
    let lists = (0..20).map(|row| Some((0..row % 3).map(Some).collect::<Vec<_>>()));
    write(
        &path,
        &[("l", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)))],
        EnabledStatistics::Chunk,
    );
    assert_eq!(drained(options(&path)).unwrap(), 20);
}

#[test]
fn columns_that_files_and_directories_lack_are_null() {
    let directory = tempfile::tempdir().unwrap();
    let both = [("a", numbers(5, &[])), ("b", numbers(5, &[]))];
    write(&directory.path().join("1.parquet"), &both, EnabledStatistics::Chunk);
    write(&directory.path().join("2.parquet"), &both[..1], EnabledStatistics::Chunk);
    let error = Loader::open(options(directory.path())).unwrap_err();
    assert!(error.to_string().contains("b (5 nulls in 1 row group)"), "{error}");
    assert_eq!(error.place(), Some(&Place::file("2.parquet").row_group(0).column("b").row(0)));
    let tree = tempfile::tempdir().unwrap();
    for value in ["7", "__HIVE_DEFAULT_PARTITION__"] {
        let folder = tree.path().join(format!("p={value}"));
        std::fs::create_dir(&folder).unwrap();
        write(&folder.join("x.parquet"), &both, EnabledStatistics::Chunk);
    }
    let error = Loader::open(options(tree.path())).unwrap_err();
    assert!(error.to_string().contains("p (5 nulls in 1 row group)"), "{error}");
    assert_eq!(
        drained(LoaderOptions { filter: Some(Filter::Text("p = 7".to_owned())), ..options(tree.path()) }).unwrap(),
        5
    );
}

#[test]
fn integers_beyond_32_bits_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wide.parquet");
    let at =
        |row: usize, value: i64| Arc::new((0..20).map(|at| if at == row { value } else { 1 }).collect::<Int64Array>());
    let unsigned = (0..20).map(|at| if at == 13 { 1 << 32 } else { u64::from(u32::MAX) }).collect::<UInt64Array>();
    let lists = (0..20).map(|row| Some(vec![Some(if row == 6 { 1 << 50 } else { 0 })]));
    let columns: [(&str, ArrayRef); 6] = [
        ("id", numbers(20, &[])),
        ("high", at(11, 1 << 31)),
        ("low", at(3, i64::from(i32::MIN) - 1)),
        ("bound", at(9, i64::from(i32::MIN))),
        ("unsigned", Arc::new(unsigned)),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
    ];
    write(&path, &columns, EnabledStatistics::Chunk);
    let found = |options: LoaderOptions| {
        let wide = Loader::open(options).unwrap().wide_integers().unwrap();
        let told =
            wide.into_iter().map(|wide| (wide.column.to_string(), wide.value, wide.place.row_group, wide.place.row));
        told.collect::<Vec<_>>()
    };
    let expected: [(String, i128, Option<usize>, Option<u64>); 4] = [
        ("high".to_owned(), 1 << 31, Some(2), Some(1)),
        ("low".to_owned(), i128::from(i32::MIN) - 1, Some(0), Some(3)),
        ("unsigned".to_owned(), 1 << 32, Some(2), Some(3)),
        ("list".to_owned(), 1 << 50, Some(1), None),
    ];
    assert_eq!(found(options(&path)), expected);
    let filtered = LoaderOptions { filter: Some(Filter::Text("id > 3 and id < 11".to_owned())), ..options(&path) };
    assert_eq!(found(filtered), expected[3..]);
    let mut cast = options(&path);
    cast.columns.cast = serde_json::from_str(r#"{"high": "float64", "list": "float32"}"#).unwrap();
    assert_eq!(found(cast), expected[1..3]);
}
