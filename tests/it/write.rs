//! The writer: written data is read back, and appears atomically.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, FixedSizeListArray, Int64Array, LargeStringArray,
    ListBuilder, RecordBatch, StringArray, StringViewArray, StringViewBuilder, StructArray, UInt8Builder,
};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, IntervalUnit, Schema, SchemaRef, UnionMode};
use bowstring::codec::npy::{Npy, NpyDecoder, write_npz};
use bowstring::dataset::petastorm::{FieldCodec, SparkType, Unischema, UnischemaField};
use bowstring::dataset::{Compression, DatasetWriter, Limits, OpenOptions, SCHEMA_KEY, WriterOptions, Written};
use bowstring::error::{Error, Kind, Place};
use bowstring::schema::{Codec, DType, Element, STORED_KEY, Stored};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use crate::dataset::{open, read_group, runtime};

fn ids(range: std::ops::Range<i64>) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(range))]).unwrap()
}

fn write(path: &Path, batches: &[RecordBatch], options: WriterOptions) -> Result<Written, Error> {
    let mut writer = DatasetWriter::create(path, batches[0].schema(), options)?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()
}

/// Returns the names in a directory, including hidden ones.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn metadata(file: PathBuf) -> ParquetMetaData {
    ParquetMetaDataReader::new().parse_and_finish(&fs::File::open(file).unwrap()).unwrap()
}

fn value<'a>(metadata: &'a ParquetMetaData, key: &str) -> Option<&'a str> {
    let all = metadata.file_metadata().key_value_metadata()?;
    all.iter().find(|pair| pair.key == key)?.value.as_deref()
}

/// Returns the schema and the row groups of a dataset, as `Dataset` reads them.
fn read(path: &Path) -> (SchemaRef, Vec<RecordBatch>) {
    let runtime = runtime();
    let dataset = open(&[path.to_str().unwrap()], OpenOptions::default()).unwrap();
    let names: Vec<String> = dataset.schema().fields().iter().map(|field| field.name().clone()).collect();
    let projection = dataset.project(&names).unwrap();
    let groups = (0..dataset.manifest().groups.len())
        .map(|group| runtime.block_on(read_group(&dataset, &projection, group)).unwrap())
        .collect();
    (Arc::clone(dataset.schema()), groups)
}

fn array(value: i64) -> Vec<u8> {
    let mut cell = Vec::new();
    let data: Vec<u8> = (0..6).flat_map(|at| (value * 10 + at).to_le_bytes()).collect();
    write_npz(&Npy::number(DType::Int64), &[2, 3], &data, &mut cell).unwrap();
    cell
}

#[test]
fn written_rows_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/new/place");
    let stored = Stored { codec: Codec::Npz, element: Element::Number(DType::Int64), shape: vec![Some(2), Some(3)] };
    let rows = 300_i64;
    let mut lists = ListBuilder::new(StringViewBuilder::new());
    for row in 0..rows {
        (0..row % 3).for_each(|at| lists.values().append_value(format!("a list of views {row} {at}")));
        lists.append(row % 7 != 0);
    }
    let lists: ArrayRef = Arc::new(lists.finish());
    let columns: Vec<(Field, ArrayRef)> = vec![
        (Field::new("id", DataType::Int64, false), Arc::new(Int64Array::from_iter_values(0..rows))),
        (
            Field::new("text", DataType::Utf8View, true),
            Arc::new(StringViewArray::from_iter((0..rows).map(|row| (row % 5 != 0).then(|| format!("text {row}"))))),
        ),
        (
            Field::new("large", DataType::LargeUtf8, false),
            Arc::new(LargeStringArray::from_iter_values((0..rows).map(|row| format!("large {row}")))),
        ),
        (
            Field::new("array", DataType::BinaryView, false).with_metadata(HashMap::from([stored.metadata()])),
            Arc::new(BinaryViewArray::from_iter_values((0..rows).map(array))),
        ),
        (Field::new("lists", lists.data_type().clone(), true), lists),
    ];
    let schema = Arc::new(Schema::new(columns.iter().map(|(field, _)| field.clone()).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect()).unwrap();
    let options = WriterOptions { rows_per_group: 40, rows_per_file: Some(100), ..WriterOptions::default() };
    let written = write(&path, &[batch.slice(0, 170), batch.slice(170, 130)], options).unwrap();
    assert_eq!((written.files, written.rows, written.row_groups), (3, 300, 9));
    assert_eq!(names(&path), ["_SUCCESS", "part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]);
    assert_eq!(names(path.parent().unwrap()), ["place"]);
    let sizes = (0..3).map(|file| fs::metadata(path.join(format!("part-{file:05}.parquet"))).unwrap().len());
    assert_eq!(written.bytes, sizes.sum::<u64>());

    let (schema, groups) = read(&path);
    assert_eq!(schema.field(3).metadata().get(STORED_KEY), Some(&stored.metadata().1));
    let counts: Vec<usize> = groups.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(counts, [40, 40, 20, 40, 40, 20, 40, 40, 20]);
    let decoder = NpyDecoder::new(&stored).unwrap();
    let mut row = 0;
    for group in &groups {
        for at in 0..group.num_rows() {
            assert_eq!(group.column(0).as_primitive::<Int64Type>().value(at), row);
            let text = group.column(1).as_string_view();
            assert_eq!(text.is_valid(at).then(|| text.value(at)), (row % 5 != 0).then_some(&*format!("text {row}")));
            assert_eq!(group.column(2).as_string_view().value(at), format!("large {row}"));
            let mut values = [0; 48];
            decoder.decode_into(group.column(3).as_binary_view().value(at), &mut values).unwrap();
            assert_eq!(values[40..], (row * 10 + 5).to_le_bytes());
            let list = group.column(4).as_list::<i32>();
            assert_eq!(list.is_valid(at), row % 7 != 0);
            if list.is_valid(at) {
                assert_eq!(list.value(at).len() as i64, row % 3);
            }
            row += 1;
        }
    }
    assert_eq!(row, rows);

    for file in names(&path).iter().filter(|name| name.ends_with(".parquet")) {
        let metadata = metadata(path.join(file));
        let json: serde_json::Value = serde_json::from_str(value(&metadata, SCHEMA_KEY).unwrap()).unwrap();
        assert_eq!(json["fields"][0], serde_json::json!({"name": "id", "stored": null, "nullable": false}));
        assert_eq!(json["fields"][3], serde_json::json!({"name": "array", "stored": stored, "nullable": false}));
        assert!(metadata.file_metadata().created_by().unwrap().starts_with("bowstring version "));
        let chunk = |column: usize| metadata.row_group(0).column(column);
        assert_eq!(chunk(3).compression(), parquet::basic::Compression::UNCOMPRESSED);
        assert!(matches!(chunk(1).compression(), parquet::basic::Compression::ZSTD(_)));
        assert!(chunk(3).dictionary_page_offset().is_none() && chunk(1).dictionary_page_offset().is_some());
        assert!((0..5).all(|column| chunk(column).offset_index_offset().is_some()));
        // View types are internal to bowstring; readers of the Arrow schema in the footer must know the types.
        let arrow = parquet::arrow::parquet_to_arrow_schema(
            metadata.file_metadata().schema_descr(),
            metadata.file_metadata().key_value_metadata(),
        );
        let types: Vec<String> = arrow.unwrap().fields().iter().map(|field| field.data_type().to_string()).collect();
        assert_eq!(types[..4], ["Int64", "Utf8", "Utf8", "Binary"]);
        assert!(!types[4].contains("View"), "{}", types[4]);
    }
}

#[test]
fn groups_and_files_end_by_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    // 64 MB of random cells of 64 kB in one batch.
    let mut state = 1_u64;
    let cells: Vec<Vec<u8>> = (0..1000)
        .map(|_| {
            let words = (0..8000).map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                state
            });
            words.flat_map(u64::to_le_bytes).collect()
        })
        .collect();
    let schema = Arc::new(Schema::new(vec![Field::new("bytes", DataType::BinaryView, false)]));
    let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values(&cells));
    let batch = RecordBatch::try_new(schema, vec![column]).unwrap();
    let options = WriterOptions {
        group_bytes: 8 << 20,
        file_bytes: 25 << 20,
        compression: Compression::None,
        ..WriterOptions::default()
    };
    let written = write(&path, &[batch], options).unwrap();
    assert_eq!((written.rows, written.files), (1000, 3));
    for file in ["part-00000.parquet", "part-00001.parquet"] {
        assert!((25 << 20..30 << 20).contains(&fs::metadata(path.join(file)).unwrap().len()));
        let metadata = metadata(path.join(file));
        let groups = metadata.row_groups();
        assert!(groups[..groups.len() - 1].iter().all(|group| (6 << 20..13 << 20).contains(&group.compressed_size())));
        assert!((3..=5).contains(&groups.len()), "{}", groups.len());
    }
    let (_, groups) = read(&path);
    let read =
        groups.iter().flat_map(|group| group.column(0).as_binary_view().iter().map(|cell| cell.unwrap().to_vec()));
    assert!(read.eq(cells));
}

#[test]
fn nothing_is_visible_before_the_writer_finishes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let mut writer = DatasetWriter::create(&path, ids(0..1).schema(), WriterOptions::default()).unwrap();
    writer.write(&ids(0..1000)).unwrap();
    assert!(!path.exists());
    let hidden = names(directory.path());
    assert!(hidden.len() == 1 && hidden[0].starts_with(".d."), "{hidden:?}");
    // The hidden directory is not a dataset for any reader.
    let found = open(&[directory.path().to_str().unwrap()], OpenOptions::default());
    assert!(matches!(found, Err(Error::NotFound { .. })), "{found:?}");
    drop(writer);
    assert!(names(directory.path()).is_empty());

    // Killed: the destructor does not run, the leftovers are hidden, and do not hinder the next writer.
    let mut killed = DatasetWriter::create(&path, ids(0..1).schema(), WriterOptions::default()).unwrap();
    killed.write(&ids(0..1000)).unwrap();
    std::mem::forget(killed);
    assert!(!path.exists());
    assert_eq!(write(&path, &[ids(0..10)], WriterOptions::default()).unwrap().rows, 10);
    assert_eq!(names(&path), ["_SUCCESS", "part-00000.parquet"]);
    assert_eq!(read(directory.path()).1.len(), 1, "the hidden directory is not read");
}

#[test]
fn an_existing_dataset_is_replaced_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    // An empty directory counts as none.
    fs::create_dir(&path).unwrap();
    write(&path, &[ids(0..10)], WriterOptions::default()).unwrap();
    let error = write(&path, &[ids(0..20)], WriterOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Config { option: "overwrite", .. }), "{error}");
    assert_eq!(read(&path).1[0].num_rows(), 10);

    let overwrite = WriterOptions { overwrite: true, ..WriterOptions::default() };
    let mut unfinished = DatasetWriter::create(&path, ids(0..1).schema(), overwrite.clone()).unwrap();
    unfinished.write(&ids(0..30)).unwrap();
    assert_eq!(read(&path).1[0].num_rows(), 10, "the old one is there until the end");
    drop(unfinished);
    assert_eq!(read(&path).1[0].num_rows(), 10);
    write(&path, &[ids(0..20)], overwrite.clone()).unwrap();
    assert_eq!(read(&path).1[0].num_rows(), 20);
    assert_eq!(names(directory.path()), ["d"]);

    // Files of others stay, and nothing else does.
    fs::write(path.join("notes.txt"), "years of work").unwrap();
    let error = write(&path, &[ids(0..1)], overwrite.clone()).unwrap_err();
    assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{error}");
    assert!(error.to_string().contains("notes.txt") && path.join("notes.txt").exists(), "{error}");
    fs::remove_file(path.join("notes.txt")).unwrap();

    // Only datasets of bowstring: with a foreign `_SUCCESS`, or none, another option is needed.
    let foreign = directory.path().join("thesis");
    for success in ["", "{}", "{\"bowstring\""] {
        fs::create_dir_all(foreign.join("chapters")).unwrap();
        fs::write(foreign.join("_SUCCESS"), success).unwrap();
        let error = write(&foreign, &[ids(0..1)], overwrite.clone()).unwrap_err();
        assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{error}");
        assert!(foreign.join("chapters").is_dir());
    }
    let both = WriterOptions { overwrite_foreign: true, ..overwrite.clone() };
    write(&foreign, &[ids(0..1)], both.clone()).unwrap();
    assert_eq!(names(&foreign), ["_SUCCESS", "part-00000.parquet"]);
    let only = WriterOptions { overwrite: false, ..both };
    let error = write(&foreign, &[ids(0..1)], only).unwrap_err();
    assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{error}");
    // A directory that becomes foreign while the writer works stays too.
    let late = DatasetWriter::create(&foreign, ids(0..1).schema(), overwrite.clone()).unwrap();
    fs::write(foreign.join("_SUCCESS"), "").unwrap();
    assert!(matches!(late.finish(), Err(Error::Config { option: "overwrite_foreign", .. })));
    fs::remove_dir_all(&foreign).unwrap();

    // Two writers without permission to overwrite: the second to finish is refused.
    let other = directory.path().join("e");
    let [first, second] =
        [0, 1].map(|_| DatasetWriter::create(&other, ids(0..1).schema(), WriterOptions::default()).unwrap());
    first.finish().unwrap();
    assert!(matches!(second.finish(), Err(Error::Config { option: "overwrite", .. })));
    // A file is not a directory, and a link is followed.
    let file = directory.path().join("file");
    fs::write(&file, "x").unwrap();
    assert_eq!(write(&file, &[ids(0..1)], overwrite.clone()).unwrap_err().kind(), Kind::Store);
    #[cfg(unix)]
    {
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("d", &link).unwrap();
        write(&link, &[ids(0..5)], overwrite).unwrap();
        assert!(link.is_symlink());
        assert_eq!(read(&path).1[0].num_rows(), 5);
    }
    assert_eq!(names(directory.path()), ["d", "e", "file", "link"]);
}

#[test]
fn row_groups_that_shrink_to_nothing_are_small_enough_to_be_read() {
    let masks: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..100).map(|_| vec![0_u8; 64 << 10])));
    let mut lists = ListBuilder::new(UInt8Builder::new());
    for _ in 0..4 {
        lists.values().append_slice(&vec![0; 1 << 20]);
        lists.append(true);
    }
    // Of lists of small numbers a reader expects many times their bytes.
    let lists: ArrayRef = Arc::new(lists.finish());
    for (column, times) in [(masks, 45), (lists, 6)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d");
        let schema = Arc::new(Schema::new(vec![Field::new("mask", column.data_type().clone(), false)]));
        let rows = (column.len() * times) as u64;
        let batch = RecordBatch::try_new(schema, vec![column]).unwrap();
        let written = write(&path, &vec![batch; times], WriterOptions::default()).unwrap();
        assert!(written.bytes < 1 << 20, "{written:?}");
        let dataset = open(&[path.to_str().unwrap()], OpenOptions::default()).unwrap();
        let projection = dataset.project(&["mask".to_owned()]).unwrap();
        let (runtime, mut found) = (runtime(), 0);
        for (number, group) in dataset.manifest().groups.iter().enumerate() {
            assert!(dataset.cost(number, &projection).decoded <= 256 << 20, "{written:?}");
            // It would be refused before anything is read.
            runtime.block_on(dataset.fetch(number, &projection)).unwrap();
            found += group.rows;
        }
        assert!(found == rows && (2..5).contains(&written.row_groups), "{written:?}");
    }
}

#[test]
fn long_cells_that_shrink_to_nothing_are_stored_so_that_they_can_be_read() {
    let mut lists = ListBuilder::new(UInt8Builder::new());
    for len in [3, 30 << 20, 2] {
        lists.values().append_slice(&vec![0; len]);
        lists.append(true);
    }
    let masks: ArrayRef = Arc::new(BinaryArray::from_iter_values([vec![1_u8; 9], vec![0; 20 << 20], vec![2; 9]]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a".into(), "b".repeat(16 << 20), "c".into()]));
    for column in [masks, texts, Arc::new(lists.finish())] {
        for compression in [Compression::Zstd(1), Compression::Snappy, Compression::Lz4] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("d");
            let fields =
                vec![Field::new("mask", column.data_type().clone(), false), Field::new("id", DataType::Int64, false)];
            let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![Arc::clone(&column), ids]).unwrap();
            let options = WriterOptions { compression, ..WriterOptions::default() };
            let written = write(&path, std::slice::from_ref(&batch), options).unwrap();
            assert!(written.row_groups <= 3, "{written:?}");
            let (_, groups) = read(&path);
            let found = arrow::compute::concat_batches(groups[0].schema_ref(), &groups).unwrap();
            let mask = arrow::compute::cast(found.column(0), column.data_type()).unwrap();
            assert_eq!((&mask, found.num_rows()), (&column, 3), "{compression:?}");
            // Without the long cell all is packed.
            let part = [batch.slice(0, 1), batch.slice(2, 1)];
            let small = directory.path().join("small");
            let written = write(&small, &part, WriterOptions { compression, ..WriterOptions::default() }).unwrap();
            assert_eq!(written.row_groups, 1);
        }
    }
}

#[test]
fn intervals_that_parquet_does_not_have_are_refused_by_column_and_type() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/d");
    let interval = DataType::Interval(IntervalUnit::MonthDayNano);
    let inner = DataType::List(Arc::new(Field::new("item", interval.clone(), true)));
    for data_type in [interval, inner] {
        let fields = vec![Field::new("id", DataType::Int64, false), Field::new("lasts", data_type.clone(), true)];
        let error = DatasetWriter::create(&path, Arc::new(Schema::new(fields)), WriterOptions::default()).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Unsupported { .. }) && said.contains("column \"lasts\" of type"), "{said}");
        assert!(said.contains(&data_type.to_string()), "{said}");
        assert_eq!(names(directory.path()), Vec::<String>::new(), "nothing is on the disk");
    }
}

#[test]
fn types_that_parquet_does_not_have_are_refused_by_column() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/d");
    let member = Arc::new(Field::new("n", DataType::Int64, true));
    let fields = [(0, Arc::clone(&member)), (1, Arc::new(Field::new("s", DataType::Utf8, true)))];
    let union = DataType::Union(fields.into_iter().collect(), UnionMode::Sparse);
    let empty = DataType::Struct(Fields::empty());
    let list = |kind: &DataType| DataType::List(Arc::new(Field::new("item", kind.clone(), true)));
    let within = |kind: &DataType| {
        DataType::Struct(vec![Arc::clone(&member), Arc::new(Field::new("x", kind.clone(), true))].into())
    };
    for kind in [union, empty] {
        for data_type in [kind.clone(), list(&kind), within(&kind), list(&within(&list(&kind)))] {
            let fields = vec![Field::new("id", DataType::Int64, false), Field::new("either", data_type, true)];
            let error =
                DatasetWriter::create(&path, Arc::new(Schema::new(fields)), WriterOptions::default()).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Unsupported { .. }) && said.contains("column \"either\" of type"), "{said}");
            assert_eq!(names(directory.path()), Vec::<String>::new(), "nothing is on the disk");
        }
    }
}

#[test]
fn small_row_groups_and_files_are_as_small_as_they_should_be_however_the_rows_come() {
    let directory = tempfile::tempdir().unwrap();
    let (rows, options) = (100_000, WriterOptions { compression: Compression::None, ..WriterOptions::default() });
    let options = WriterOptions { plain: vec!["id".to_owned()], ..options };
    for (number, batch) in [rows, 1000, 7].into_iter().enumerate() {
        let batches: Vec<_> =
            (0..rows).step_by(batch).map(|at| ids(at as i64..(at + batch).min(rows) as i64)).collect();
        // 800 kB in all.
        let path = directory.path().join(format!("files{number}"));
        let written = write(&path, &batches, WriterOptions { file_bytes: 200_000, ..options.clone() }).unwrap();
        assert_eq!(written.rows, rows as u64);
        assert!((3..=5).contains(&written.files), "batches of {batch}: {written:?}");
        let path = directory.path().join(format!("groups{number}"));
        let written = write(&path, &batches, WriterOptions { group_bytes: 100_000, ..options.clone() }).unwrap();
        assert!((6..=10).contains(&written.row_groups), "batches of {batch}: {written:?}");
    }
}

#[test]
fn a_dataset_without_rows_has_its_schema() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let written = write(&path, &[ids(0..0)], WriterOptions::default()).unwrap();
    assert_eq!((written.files, written.rows, written.row_groups), (1, 0, 0));
    let (schema, groups) = read(&path);
    assert_eq!((schema.field(0).name().as_str(), groups.len()), ("id", 0));
}

#[test]
fn petastorm_finds_its_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let unischema = |field: &str| Unischema {
        name: "Numbers".to_owned(),
        fields: vec![UnischemaField {
            name: field.to_owned(),
            numpy_dtype: "int64".to_owned(),
            shape: Vec::new(),
            codec: Some(FieldCodec::Scalar { spark_type: SparkType::Long }),
            nullable: false,
        }],
    };
    let options = |petastorm: Unischema| WriterOptions {
        rows_per_group: 30,
        rows_per_file: Some(70),
        petastorm: Some(petastorm),
        ..WriterOptions::default()
    };
    let mut two = unischema("id");
    two.fields.push(unischema("more").fields.remove(0));
    for bad in [unischema("other"), two] {
        let error = write(&path, &[ids(0..1)], options(bad)).unwrap_err();
        assert!(matches!(error, Error::Config { option: "petastorm", .. }), "{error}");
    }
    assert!(names(directory.path()).is_empty());
    write(&path, &[ids(0..100)], options(unischema("id"))).unwrap();
    assert_eq!(names(&path), ["_SUCCESS", "_common_metadata", "part-00000.parquet", "part-00001.parquet"]);
    let common = metadata(path.join("_common_metadata"));
    assert_eq!((common.num_row_groups(), common.file_metadata().num_rows()), (0, 0));
    assert_eq!(common.file_metadata().schema_descr().num_columns(), 1);
    let pickle = value(&common, "dataset-toolkit.unischema.v1").unwrap();
    let read_back = Unischema::from_pickle(pickle.as_bytes(), &Limits::default(), &Place::default()).unwrap();
    assert_eq!(read_back, unischema("id"));
    let counts: HashMap<String, u64> =
        serde_json::from_str(value(&common, "dataset-toolkit.num_row_groups_per_file.v1").unwrap()).unwrap();
    assert_eq!(counts, HashMap::from([("part-00000.parquet".into(), 3), ("part-00001.parquet".into(), 1)]));
    assert_eq!(read(&path).1.len(), 4);
}

#[test]
fn batches_and_options_that_cannot_be_written_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let mut writer = DatasetWriter::create(&path, ids(0..1).schema(), WriterOptions::default()).unwrap();
    let one = || Arc::clone(ids(0..1).column(0));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    for (name, column) in [("id", text), ("other", one()), ("id", nulls)] {
        let batch = RecordBatch::try_from_iter_with_nullable([(name, column, true)]).unwrap();
        assert!(matches!(writer.write(&batch), Err(Error::Mismatch { .. })), "{batch:?}");
    }
    let two = RecordBatch::try_from_iter([("id", one()), ("b", one())]);
    assert!(matches!(writer.write(&two.unwrap()), Err(Error::Mismatch { .. })));
    // A refused batch leaves nothing behind.
    writer.write(&ids(0..7)).unwrap();
    assert_eq!(writer.finish().unwrap().rows, 7);

    let other = directory.path().join("e");
    let of = |options: WriterOptions| DatasetWriter::create(&other, ids(0..1).schema(), options).unwrap_err();
    let default = WriterOptions::default;
    for (options, named) in [
        (WriterOptions { rows_per_group: 0, ..default() }, "rows_per_group"),
        (WriterOptions { group_bytes: 0, ..default() }, "group_bytes"),
        (WriterOptions { rows_per_file: Some(0), ..default() }, "rows_per_file"),
        (WriterOptions { file_bytes: 0, ..default() }, "file_bytes"),
        (WriterOptions { compression: Compression::Zstd(99), ..default() }, "compression"),
    ] {
        let error = of(options);
        assert!(matches!(error, Error::Config { option, .. } if option == named), "{error}");
    }
    for (data_type, json) in [(DataType::Int64, "{}"), (DataType::Binary, "{}"), (DataType::Binary, "x")] {
        let metadata = HashMap::from([(STORED_KEY.to_owned(), json.to_owned())]);
        let schema = Schema::new(vec![Field::new("a", data_type, false).with_metadata(metadata)]);
        let error = DatasetWriter::create(&other, Arc::new(schema), default()).unwrap_err();
        assert!(matches!(error, Error::Config { option: "schema", .. }), "{error}");
    }
    let empty = DatasetWriter::create(&other, Arc::new(Schema::empty()), default()).unwrap_err();
    assert!(matches!(empty, Error::Config { option: "schema", .. }), "{empty}");
    let twice = ["a", "b", "a"].map(|name| Field::new(name, DataType::Int64, false));
    let twice = DatasetWriter::create(&other, Arc::new(Schema::new(twice.to_vec())), default()).unwrap_err();
    assert!(twice.to_string().contains("two fields are named \"a\""), "{twice}");
    let odd = Schema::new(vec![Field::new("a", DataType::Duration(arrow::datatypes::TimeUnit::Second), false), {
        let ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
        Field::new("b", DataType::RunEndEncoded(ends, Arc::new(Field::new("values", DataType::Utf8, true))), true)
    }]);
    let outcome = DatasetWriter::create(&other, Arc::new(odd), default()).map(drop);
    if let Err(error) = outcome {
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    assert_eq!(names(directory.path()), ["d"]);
}

#[test]
fn columns_of_other_members_or_shapes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let one = Arc::clone(ids(0..1).column(0));
    let of = |names: &[&str]| -> ArrayRef {
        Arc::new(StructArray::from(
            names
                .iter()
                .map(|name| (Arc::new(Field::new(*name, DataType::Int64, false)), Arc::clone(&one)))
                .collect::<Vec<_>>(),
        ))
    };
    let structs = |names: &[&str]| RecordBatch::try_from_iter([("gps", of(names))]).unwrap();
    let place = directory.path().join("places");
    let mut places =
        DatasetWriter::create(&place, structs(&["lat", "lon"]).schema(), WriterOptions::default()).unwrap();
    let error = places.write(&structs(&["lon", "alt"])).unwrap_err();
    assert!(matches!(&error, Error::Mismatch { found, .. } if found.contains("alt")), "{error}");
    let three: ArrayRef = Arc::new(Int64Array::from(vec![3]));
    let swapped = ["lon", "lat"].map(|name| Arc::new(Field::new(name, DataType::Int64, false)));
    let swapped: ArrayRef =
        Arc::new(StructArray::new(Fields::from(swapped.to_vec()), vec![three, Arc::clone(&one)], None));
    places.write(&RecordBatch::try_from_iter([("gps", swapped)]).unwrap()).unwrap();
    places.finish().unwrap();
    let found = read(&place).1;
    let gps = found[0].column(0).as_struct();
    assert_eq!(gps.column_by_name("lon").unwrap().as_primitive::<Int64Type>().value(0), 3);
    assert_eq!(gps.column_by_name("lat").unwrap().as_primitive::<Int64Type>().value(0), 0);
    let tensor = |shape: &str| {
        let item = Field::new("item", DataType::Int64, false);
        let of = [("ARROW:extension:name", "arrow.fixed_shape_tensor"), ("ARROW:extension:metadata", shape)];
        let of = of.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let field = Field::new("x", DataType::FixedSizeList(Arc::new(item.clone()), 6), false).with_metadata(of);
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..6));
        let values: ArrayRef = Arc::new(FixedSizeListArray::new(Arc::new(item), 6, values, None));
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![values]).unwrap()
    };
    let own = tensor(r#"{"shape":[2,3]}"#);
    let mut tensors =
        DatasetWriter::create(&directory.path().join("tensors"), own.schema(), WriterOptions::default()).unwrap();
    tensors.write(&own).unwrap();
    for other in [r#"{"shape":[3,2]}"#, r#"{"shape":[2,3],"permutation":[1,0]}"#] {
        let error = tensors.write(&tensor(other)).unwrap_err();
        assert!(matches!(&error, Error::Mismatch { found, .. } if found.contains(other)), "{error}");
    }
}

#[test]
fn rows_that_end_in_an_error_are_not_published_in_part() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let writer = || DatasetWriter::create(&path, ids(0..1).schema(), WriterOptions::default()).unwrap();
    let lost = || -> Result<RecordBatch, Error> { Err(Error::Closed { why: "the network is down".into() }) };
    let other = || {
        let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        Ok(RecordBatch::try_from_iter([("id", text)]).unwrap())
    };
    for end in [&lost as &dyn Fn() -> _, &other] {
        let mut half = writer();
        half.write_all([Ok(ids(0..3)), end()]).unwrap_err();
        for error in [half.write_all([Ok(ids(0..3))]).unwrap_err(), half.finish().unwrap_err()] {
            assert!(matches!(&error, Error::Closed { why } if why.contains("start again")), "{error}");
        }
        // Nothing was written of these, so they may come once more.
        let mut whole = writer();
        whole.write_all([Ok(ids(0..0)), end()]).unwrap_err();
        whole.write_all([Ok(ids(0..3)), Ok(ids(3..5))]).unwrap();
        assert_eq!(whole.finish().unwrap().rows, 5);
        fs::remove_dir_all(&path).unwrap();
    }
    assert_eq!(names(directory.path()), [""; 0]);
}

/// A full disk is tested beside the writer itself; here are directories that accept no files.
#[cfg(target_os = "linux")]
#[test]
fn directories_that_accept_no_files_give_errors_and_keep_nothing() {
    let error = write(Path::new("/proc/self/new/dataset"), &[ids(0..1)], WriterOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Store, "{error}");
    assert!(error.chain().contains("/proc/self/new"), "{}", error.chain());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let options =
        WriterOptions { group_bytes: 1, rows_per_group: 10, rows_per_file: Some(20), ..WriterOptions::default() };
    let mut writer = DatasetWriter::create(&path, ids(0..1).schema(), options).unwrap();
    // The name of the second file is taken.
    let hidden = directory.path().join(&names(directory.path())[0]);
    fs::create_dir(hidden.join("part-00001.parquet")).unwrap();
    let error = writer.write(&ids(0..50)).unwrap_err();
    assert_eq!(error.kind(), Kind::Store, "{error}");
    assert!(error.to_string().contains("part-00001.parquet"), "{error}");
    assert!(matches!(writer.write(&ids(0..1)), Err(Error::Closed { .. })));
    assert!(matches!(writer.finish(), Err(Error::Closed { .. })));
    assert!(names(directory.path()).is_empty());
    // A directory removed while the writer works.
    let mut writer = DatasetWriter::create(&path, ids(0..1).schema(), WriterOptions::default()).unwrap();
    writer.write(&ids(0..10)).unwrap();
    fs::remove_dir_all(directory.path().join(&names(directory.path())[0])).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), Kind::Store);
    assert!(names(directory.path()).is_empty());
}
