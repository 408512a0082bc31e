use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    FixedSizeListArray, Float16Array, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray, StructArray, TimestampMicrosecondArray, UInt16Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int32Type, Int64Type, Metadata, Schema};
use arrow::ipc::writer::FileWriter;
use bowstring::codec::npy::{Npy, Unit, write_npy};
use bowstring::convert::{ConvertOptions, Format, Types};
use bowstring::dataset::{DatasetWriter, WriterOptions};
use bowstring::schema::{Codec, DType, Element, Stored};
use bowstring::{Loader, LoaderOptions};

use super::{batch, compared, fixture, kind, names, parquet, rows, run, same, to};

const ROWS: i64 = 1000;

/// Makes every third value null, if nulls are requested.
fn some<T>(nulls: bool, value: impl Fn(i64) -> T) -> Vec<Option<T>> {
    (0..ROWS).map(|row| (!nulls || row % 3 != 1).then(|| value(row))).collect()
}

fn column(name: &'static str, nulls: bool) -> (&'static str, ArrayRef) {
    let words = ["", "a,b", "say \"hi\"", "line\nend", "é中", " space ", "true", "7", "null", "\t"];
    let word = |row: i64| words[row as usize % words.len()].to_owned();
    let array: ArrayRef = match name {
        "id" => Arc::new(Int64Array::from_iter_values(0..ROWS)),
        "bool" => Arc::new(BooleanArray::from(some(nulls, |row| row % 2 == 0))),
        "int8" => Arc::new(Int8Array::from(some(nulls, |row| row as i8))),
        "int32" => Arc::new(Int32Array::from(some(nulls, |row| -(row as i32) * 1_000_003))),
        "int64" => Arc::new(Int64Array::from(some(nulls, |row| i64::MIN + row))),
        "uint16" => Arc::new(UInt16Array::from(some(nulls, |row| (row * 65) as u16))),
        "uint64" => Arc::new(UInt64Array::from(some(nulls, |row| u64::MAX - row as u64))),
        "float16" => {
            Arc::new(some(nulls, |row| half::f16::from_f32(row as f32 / 8.0)).into_iter().collect::<Float16Array>())
        }
        "float32" => Arc::new(Float32Array::from(some(nulls, |row| row as f32 / 7.0))),
        "float64" => Arc::new(Float64Array::from(some(nulls, |row| row as f64 / 7e300))),
        "odd32" => {
            Arc::new(Float32Array::from(some(nulls, |row| [f32::NAN, f32::INFINITY, -0.0, 1e-45][row as usize % 4])))
        }
        "odd64" => Arc::new(Float64Array::from(some(nulls, |row| {
            [f64::NAN, f64::NEG_INFINITY, -0.0, 5e-324][row as usize % 4]
        }))),
        "text" => Arc::new(StringArray::from(some(nulls, word))),
        "bytes" => {
            let cells = some(nulls, |row| vec![row as u8; row as usize % 5]);
            Arc::new(BinaryArray::from_iter(cells))
        }
        "utc" => {
            let cells = some(nulls, |row| row * 1_234_567_890_123);
            Arc::new(TimestampMicrosecondArray::from(cells).with_timezone("UTC"))
        }
        "date" => Arc::new(Date32Array::from(some(nulls, |row| row as i32 * 50 - 20_000))),
        "time" => Arc::new(TimestampMicrosecondArray::from(some(nulls, |row| row * 1_234_567_890_123))),
        "decimal" => Arc::new(
            Decimal128Array::from(some(nulls, |row| i128::from(row) * 12_345 - 99))
                .with_precision_and_scale(20, 3)
                .unwrap(),
        ),
        "ints" => {
            let cells = some(nulls, |row| (0..row % 4).map(|at| Some(row * 10 + at)).collect::<Vec<_>>());
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(cells))
        }
        "floats" => {
            let cells = some(nulls, |row| (0..row % 4).map(|at| Some((row + at) as f32 / 3.0)).collect::<Vec<_>>());
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(cells))
        }
        "holes" => {
            let cells = some(nulls, |row| (0..row % 4).map(|at| (at != 1).then_some(row as i32)).collect::<Vec<_>>());
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(cells))
        }
        "pair" => {
            let cells = some(nulls, |row| vec![Some(row as f32), Some(0.5)]);
            Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(cells, 2))
        }
        "words" => {
            let mut builder = arrow::array::ListBuilder::new(arrow::array::StringBuilder::new());
            for row in 0..ROWS {
                (0..row % 3).for_each(|at| builder.values().append_value(word(row + at)));
                builder.append(!nulls || row % 3 != 1);
            }
            Arc::new(builder.finish())
        }
        "steps" => {
            let mut builder =
                arrow::array::ListBuilder::new(arrow::array::ListBuilder::new(arrow::array::Int64Builder::new()));
            for row in 0..ROWS {
                for step in 0..row % 3 {
                    builder.values().values().append_slice(&vec![row; step as usize]);
                    builder.values().append(true);
                }
                builder.append(!nulls || row % 3 != 1);
            }
            Arc::new(builder.finish())
        }
        "struct" => {
            let (a, b) = (column("int32", nulls).1, column("words", nulls).1);
            let fields =
                vec![Field::new("a", a.data_type().clone(), true), Field::new("b", b.data_type().clone(), true)];
            Arc::new(StructArray::new(fields.into(), vec![a, b], None))
        }
        other => panic!("{other}"),
    };
    (name, array)
}

pub(super) fn table(names: &[&'static str], nulls: bool) -> RecordBatch {
    batch(names.iter().map(|name| column(name, nulls && *name != "id")).collect())
}

const SCALARS: [&str; 8] = ["id", "bool", "int8", "int32", "int64", "uint16", "float32", "text"];

/// Lists the types that each format holds, and whether it holds nulls.
pub(super) fn held(format: Format) -> (Vec<&'static str>, bool) {
    let with = |more: &[&'static str]| SCALARS.iter().chain(more).copied().collect();
    match format {
        Format::Parquet | Format::Arrow => (
            with(&[
                "uint64", "float16", "float64", "odd32", "odd64", "bytes", "date", "time", "utc", "decimal", "ints",
                "floats", "holes", "pair", "words", "steps", "struct",
            ]),
            true,
        ),
        Format::Datasets => (
            with(&[
                "uint64", "float64", "odd64", "bytes", "date", "time", "utc", "decimal", "ints", "holes", "words",
                "struct",
            ]),
            true,
        ),
        Format::Petastorm => {
            (with(&["float64", "odd32", "bytes", "date", "time", "utc", "ints", "floats", "pair"]), true)
        }
        Format::Csv | Format::Tsv => {
            (with(&["uint64", "float64", "odd32", "odd64", "date", "time", "utc", "decimal"]), true)
        }
        Format::Jsonl => (
            with(&[
                "uint64", "float64", "date", "time", "utc", "decimal", "ints", "floats", "holes", "pair", "words",
                "steps", "struct",
            ]),
            true,
        ),
        Format::Tfrecord => (with(&["float16", "odd32", "bytes", "ints", "floats", "pair", "words", "steps"]), true),
        Format::Webdataset => (with(&["uint64", "float64", "bytes", "ints", "floats", "pair", "words", "holes"]), true),
        Format::Mds => (
            with(&["uint64", "float16", "float64", "odd32", "bytes", "ints", "floats", "pair", "words", "struct"]),
            false,
        ),
        Format::Numpy => (vec!["floats"], false),
        other => panic!("{other}"),
    }
}

pub(super) const FORMATS: [Format; 11] = [
    Format::Parquet,
    Format::Petastorm,
    Format::Arrow,
    Format::Csv,
    Format::Tsv,
    Format::Jsonl,
    Format::Tfrecord,
    Format::Webdataset,
    Format::Mds,
    Format::Datasets,
    Format::Numpy,
];

#[test]
fn what_a_format_holds_comes_back_with_nulls_and_empty_lists() {
    for format in FORMATS {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (columns, nulls) = held(format);
        parquet(&at("src.parquet"), &table(&columns, nulls));
        let options = ConvertOptions { verify: true, target_file_size: 20_000, ..to(format) };
        let report = run(&at("src.parquet"), &at("there"), &options)
            .unwrap_or_else(|error| panic!("{format}: {}", error.chain()));
        assert!(report.rows == ROWS as u64 && report.verified && (report.files > 1), "{format}: {report:?}");
        let back = ConvertOptions { from: Some(format), ..to(Format::Parquet) };
        run(&at("there"), &at("back"), &back).unwrap_or_else(|error| panic!("{format}: {}", error.chain()));
        if format != Format::Numpy {
            let found = same(&at("src.parquet"), &at("back"));
            assert_eq!(found.columns.len(), columns.len(), "{format}");
        }
        if format == Format::Numpy {
            assert_eq!(super::rows(&at("back"), &ConvertOptions::default()).unwrap().num_rows() as i64, ROWS);
        }
    }
}

#[test]
fn dictionaries_are_values_to_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("src")).unwrap();
    for (file, words) in [("a", ["x", "y", "x"]), ("b", ["z", "y", "z"])] {
        let words: DictionaryArray<Int32Type> = words.into_iter().collect();
        parquet(&at("src").join(format!("{file}.parquet")), &batch(vec![("c", Arc::new(words))]));
    }
    for format in FORMATS.into_iter().filter(|format| *format != Format::Numpy) {
        let out = at(&format!("out-{format}"));
        let report = run(&at("src"), &out, &ConvertOptions { verify: true, ..to(format) });
        assert!(report.unwrap_or_else(|error| panic!("{format}: {}", error.chain())).verified);
        let options = ConvertOptions { to: Some(format), columns: vec!["c".into()], ..ConvertOptions::default() };
        let found = compared(&at("src"), &out, &options).unwrap();
        assert!(found.columns.iter().any(|column| column.name == "c" && column.equal), "{format}: {found:#?}");
    }
}

#[test]
fn dictionaries_within_lists_and_structs_are_values_to_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let words = |words: [&'static str; 3]| -> ArrayRef {
        let words: DictionaryArray<Int32Type> = words.into_iter().collect();
        Arc::new(words)
    };
    let values = words(["x", "y", "x"]);
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    let lists = ListArray::new(Arc::clone(&item), OffsetBuffer::new(vec![0, 2, 3].into()), values, None);
    let members = words(["u", "v", "u"]).slice(0, 2);
    let members = StructArray::from(vec![(Arc::new(Field::new("m", members.data_type().clone(), true)), members)]);
    let rows = batch(vec![("l", Arc::new(lists)), ("s", Arc::new(members))]);
    let mut writer = FileWriter::try_new(fs::File::create(at("src.arrow")).unwrap(), &rows.schema()).unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();
    for format in [Format::Parquet, Format::Datasets, Format::Arrow, Format::Jsonl] {
        let out = at(&format!("out-{format}"));
        let report = run(&at("src.arrow"), &out, &ConvertOptions { verify: true, ..to(format) });
        assert!(report.unwrap_or_else(|error| panic!("{format}: {}", error.chain())).verified);
    }
    let lines = fs::read_to_string(at("out-jsonl").join("part-00000.jsonl")).unwrap();
    assert_eq!(lines, "{\"l\":[\"x\",\"y\"],\"s\":{\"m\":\"u\"}}\n{\"l\":[\"x\"],\"s\":{\"m\":\"v\"}}\n");
}

#[test]
fn times_with_zones_are_shown_and_written_at_any_depth() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let times = |zone: &str, first: i64| -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(vec![first, 2_000_000]).with_timezone(zone))
    };
    let within = |times: ArrayRef| -> ArrayRef {
        let field = Arc::new(Field::new("t", times.data_type().clone(), true));
        Arc::new(StructArray::from(vec![(field, times)]))
    };
    parquet(&at("utc.parquet"), &batch(vec![("s", within(times("UTC", 1_000_000)))]));
    let options = ConvertOptions { verify: true, ..to(Format::Jsonl) };
    let plan = |name: &str| bowstring::convert::plan(&super::text(&at(name)), &at("out"), &options);
    assert_eq!(plan("utc.parquet").unwrap().sample, [["{t: 1970-01-01T00:00:01Z}", "{t: 1970-01-01T00:00:02Z}"]]);
    run(&at("utc.parquet"), &at("out"), &options).unwrap();
    same(&at("utc.parquet"), &at("out"));
    // There is no list of named zones here: the instants are shown.
    for (name, first) in [("one", 1_000_000), ("other", 3_000_000)] {
        parquet(&at(name), &batch(vec![("s", within(times("Europe/Berlin", first)))]));
    }
    let options =
        ConvertOptions { from: Some(Format::Parquet), to: Some(Format::Parquet), ..ConvertOptions::default() };
    let plan = bowstring::convert::plan(&super::text(&at("one")), &at("more"), &options).unwrap();
    assert_eq!(plan.sample[0][0], "{t: 1970-01-01T00:00:01Z}");
    let found = compared(&at("one"), &at("other"), &options).unwrap();
    assert!(!found.equal && found.examples_first[0].contains("00:00:01"), "{found:#?}");
}

#[test]
fn options_that_a_format_has_no_use_for_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src.parquet");
    parquet(&src, &table(&["floats"], false));
    let plain = ConvertOptions::default;
    for (option, options) in [
        ("shards", ConvertOptions { shards: Some(2), ..to(Format::Numpy) }),
        ("compression", ConvertOptions { compression: Some("gzip".into()), ..to(Format::Numpy) }),
        ("target_file_size", ConvertOptions { shards: Some(2), target_file_size: 1 << 20, ..to(Format::Jsonl) }),
        ("rows_per_group", ConvertOptions { rows_per_group: Some(5), ..to(Format::Jsonl) }),
        ("compression", ConvertOptions { compression: Some("zstd:19".into()), to: Some(Format::Arrow), ..plain() }),
    ] {
        let (error, text) = kind(run(&src, &directory.path().join("out"), &options));
        assert!(matches!(error, bowstring::Error::Config { option: own, .. } if own == option), "{text}");
    }
    let schema = Some(bowstring::convert::Types::parse("flaots: float32").unwrap());
    let options = ConvertOptions { schema, ..plain() };
    let error = compared(&src, &src, &options).unwrap_err();
    assert!(error.to_string().contains("flaots"), "{error}");
}

#[test]
fn a_type_names_members_that_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let value = |value: f64| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
    let member = |name: &str| Arc::new(Field::new(name, DataType::Float64, true));
    let gps = StructArray::from(vec![(member("lat"), value(52.5)), (member("lon"), value(13.4))]);
    parquet(&at("src.parquet"), &RecordBatch::try_from_iter([("gps", Arc::new(gps) as ArrayRef)]).unwrap());
    let given = |of: &str| ConvertOptions { schema: Some(Types::parse(of).unwrap()), ..to(Format::Parquet) };
    let other = given("gps: struct<lon: float64, alt: float64>");
    let (error, text) = kind(run(&at("src.parquet"), &at("never"), &other));
    assert!(matches!(error, bowstring::Error::Config { option: "schema", .. }) && text.contains("\"alt\""), "{text}");
    assert!(!at("never").exists());
    run(&at("src.parquet"), &at("out"), &given("gps: struct<lon: float32, lat: float64>")).unwrap();
    let found = rows(&at("out"), &ConvertOptions::default()).unwrap();
    let gps = found.column(0).as_struct();
    assert_eq!(gps.column_names(), ["lon", "lat"]);
    assert_eq!(gps.column(0).as_primitive::<Float32Type>().value(0), 13.4_f32);
    assert_eq!(gps.column(1).as_primitive::<Float64Type>().value(0), 52.5);
}

#[test]
fn tabs_separate_what_is_called_so() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("t.txt"), "a\tb\n1\tx,y\n2\t\"p\tq\"\n").unwrap();
    let options = ConvertOptions { from: Some(Format::Tsv), verify: true, ..to(Format::Tsv) };
    run(&at("t.txt"), &at("out"), &options).unwrap();
    let written = fs::read_to_string(at("out/part-00000.tsv")).unwrap();
    assert_eq!(written, fs::read_to_string(at("t.txt")).unwrap());
    let found = super::rows(&at("out"), &ConvertOptions::default()).unwrap();
    assert_eq!((found.num_columns(), found.num_rows()), (2, 2));
}

#[test]
fn arrays_named_by_a_key_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let keys: ArrayRef = Arc::new(StringArray::from(vec!["a/1", "a/2"]));
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([Some([Some(1.0)]), Some([Some(2.0)])]);
    parquet(&at("src.parquet"), &batch(vec![("__key__", keys), ("x", Arc::new(lists))]));
    run(&at("src.parquet"), &at("out"), &ConvertOptions { verify: true, ..to(Format::Numpy) }).unwrap();
    same(&at("src.parquet"), &at("out"));
}

#[test]
fn arrays_in_any_layout_become_mds_and_are_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let npy = |descr: &str, fortran: &str, elements: &[u8]| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': (2, 3), }}\n");
        let len = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00".as_slice(), &len, text.as_bytes(), elements].concat()
    };
    let elements = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
    let mut zipped = Vec::new();
    bowstring::codec::npy::write_npz(&Npy::number(DType::Int16), &[2, 3], &elements, &mut zipped).unwrap();
    for (folder, file, cell) in [
        ("c", "a.npy", npy("<i2", "False", &elements)),
        ("fortran", "a.npy", npy("<i2", "True", &[1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0])),
        ("big", "a.npy", npy(">i2", "False", &[0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6])),
        ("zipped", "a.npz", zipped),
    ] {
        std::fs::create_dir(at(folder)).unwrap();
        std::fs::write(at(folder).join(file), cell).unwrap();
        let out = at(&format!("{folder}-mds"));
        run(&at(folder), &out, &ConvertOptions { verify: true, ..to(Format::Mds) }).unwrap();
        same(&at(folder), &out);
        same(&at("c"), &out);
    }
    std::fs::create_dir(at("other")).unwrap();
    std::fs::write(at("other/a.npy"), npy("<i2", "True", &elements)).unwrap();
    assert!(!compared(&at("other"), &at("c-mds"), &ConvertOptions::default()).unwrap().equal);
}

#[test]
fn a_cell_of_zeros_is_stored_so_that_it_can_be_read() {
    use ::parquet::arrow::ArrowWriter;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let masks: ArrayRef = Arc::new(BinaryArray::from_iter_values([vec![0_u8; 20 << 20], vec![1; 9]]));
    let batch = batch(vec![("mask", masks)]);
    let write = |name: &str, compression| {
        let properties = ::parquet::file::properties::WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_compression(compression)
            .build();
        let mut writer =
            ArrowWriter::try_new(std::fs::File::create(at(name)).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    };
    write("plain.parquet", ::parquet::basic::Compression::UNCOMPRESSED);
    run(&at("plain.parquet"), &at("out"), &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
    same(&at("plain.parquet"), &at("out"));
    // What others have packed is read by those who trust it.
    write("packed.parquet", ::parquet::basic::Compression::ZSTD(Default::default()));
    let mut options = ConvertOptions { verify: true, ..to(Format::Arrow) };
    let (error, said) = kind(run(&at("packed.parquet"), &at("arrow"), &options));
    assert!(matches!(error, bowstring::Error::Limit { option: "limits.max_ratio", .. }), "{said}");
    options.limits.max_ratio = 1_000_000;
    run(&at("packed.parquet"), &at("arrow"), &options).unwrap();
    assert!(compared(&at("packed.parquet"), &at("arrow"), &options).unwrap().equal);
}

#[test]
fn every_pair_keeps_what_both_hold() {
    let all: Vec<Format> = FORMATS.into_iter().filter(|format| *format != Format::Numpy).collect();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: String| directory.path().join(name);
    // Types that all of them hold, so that every pair is tried.
    parquet(
        &at("src.parquet".into()),
        &table(&["id", "bool", "int8", "int32", "int64", "uint16", "float32", "text"], false),
    );
    for (row, from) in all.iter().enumerate() {
        let first = at(format!("a-{from}"));
        run(&at("src.parquet".into()), &first, &to(*from)).unwrap();
        for (column, format) in all.iter().enumerate() {
            // A third of the pairs outside the soak: each format is read and written several times all the same.
            if !crate::support::soak() && (row + column) % 3 != 0 {
                continue;
            }
            let second = at(format!("b-{from}-{format}"));
            let columns = SCALARS.iter().map(ToString::to_string).collect();
            let options = ConvertOptions { from: Some(*from), columns, ..to(*format) };
            run(&first, &second, &options).unwrap_or_else(|error| panic!("{from} to {format}: {}", error.chain()));
            let options = ConvertOptions { to: Some(*format), ..ConvertOptions::default() };
            let found = compared(&at("src.parquet".into()), &second, &options).unwrap();
            let scalars = found.columns.iter().filter(|column| SCALARS.contains(&column.name.as_str()));
            assert!(
                found.rows == [ROWS as u64; 2] && scalars.clone().all(|column| column.equal),
                "{from} {format} {found:#?}"
            );
            assert_eq!(scalars.count(), SCALARS.len());
        }
    }
}

#[test]
fn what_a_format_cannot_hold_is_refused_before_anything_is_written() {
    let refused: [(Format, &[&str]); 9] = [
        (Format::Csv, &["bytes", "ints", "struct"]),
        (Format::Jsonl, &["bytes"]),
        (Format::Tfrecord, &["float64", "uint64", "date", "time", "decimal", "struct"]),
        (Format::Webdataset, &["date", "time", "decimal", "struct"]),
        (Format::Mds, &["date", "time", "decimal"]),
        (Format::Petastorm, &["uint64", "words", "steps", "struct"]),
        (Format::Images, &["text"]),
        (Format::Numpy, &["text", "struct"]),
        (Format::Datasets, &[]),
    ];
    for (format, columns) in refused {
        for name in columns {
            let directory = tempfile::tempdir().unwrap();
            let src = directory.path().join("src.parquet");
            let name: &'static str = held(Format::Parquet).0.into_iter().find(|own| own == name).unwrap();
            parquet(&src, &table(&[name], false));
            let (error, text) = kind(run(&src, &directory.path().join("deep/out"), &to(format)));
            let named = text.contains(&format!("{name:?}"));
            let unsupported = matches!(error, bowstring::Error::Unsupported { .. });
            assert!(unsupported && named || format == Format::Images, "{format} {name}: {text}");
            assert_eq!(names(directory.path()), ["src.parquet"], "{format} {name}");
        }
    }
}

#[test]
fn values_that_a_format_cannot_hold_leave_nothing_visible() {
    let cases: [(Format, &'static str, bool, &str); 6] = [
        (Format::Jsonl, "odd64", false, "NaN"),
        (Format::Webdataset, "odd64", false, "NaN"),
        (Format::Mds, "int32", true, "null"),
        (Format::Tfrecord, "holes", false, "null"),
        (Format::Petastorm, "holes", false, "null"),
        (Format::Webdataset, "text", true, "nulls only"),
    ];
    for (format, name, nulls, word) in cases {
        let directory = tempfile::tempdir().unwrap();
        let src = directory.path().join("src.parquet");
        parquet(&src, &batch(vec![column(name, nulls)]));
        let out = directory.path().join("out");
        let (error, text) = kind(run(&src, &out, &to(format)));
        assert!(matches!(error, bowstring::Error::Unsupported { .. }), "{format}: {text}");
        assert!(text.contains(word) && text.contains("row") && !out.exists(), "{format}: {text}");
    }
}

#[test]
fn photos_become_folders_tars_and_shards_byte_for_byte() {
    let src = fixture("imagenet40.parquet");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for format in
        [Format::Webdataset, Format::Mds, Format::Tfrecord, Format::Arrow, Format::Datasets, Format::Petastorm]
    {
        let there = at(format.name());
        run(&src, &there, &ConvertOptions { verify: true, ..to(format) })
            .unwrap_or_else(|error| panic!("{format}: {}", error.chain()));
        let options = ConvertOptions { from: Some(format), ..to(Format::Parquet) };
        let back = at(&format!("{format}-back"));
        run(&there, &back, &options).unwrap();
        same(&src, &back);
    }
    run(&src, &at("folder"), &to(Format::Images)).unwrap();
    run(&at("folder"), &at("folder-back"), &to(Format::Parquet)).unwrap();
    let options = ConvertOptions { columns: vec!["image".to_owned()], ..ConvertOptions::default() };
    let found = compared(&src, &at("folder-back"), &options).unwrap();
    assert!(found.equal && found.rows == [40, 40], "{found:#?}");
    // Images are stored as they are: compressing them again costs time and gains nothing.
    let file = std::fs::File::open(at("folder-back/part-00000.parquet")).unwrap();
    let footer = parquet::file::metadata::ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    let image = footer.row_group(0).columns().iter().find(|column| column.column_path().string() == "image").unwrap();
    assert_eq!(image.compression(), parquet::basic::Compression::UNCOMPRESSED);
    assert!(image.dictionary_page_offset().is_none());
    assert!(image.offset_index_offset().is_some(), "the page index is written");
}

#[test]
fn images_are_scaled_down_and_encoded_again() {
    let src = fixture("imagenet40.parquet");
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("small");
    let options = ConvertOptions { resize: Some(64), image_quality: Some(80), ..to(Format::Parquet) };
    let report = run(&src, &out, &options).unwrap();
    assert!(report.bytes * 5 < report.source_bytes, "{report:?}");
    let found = rows(&out, &ConvertOptions::default()).unwrap();
    let images = arrow::compute::cast(found.column_by_name("image").unwrap(), &DataType::Binary).unwrap();
    let images: &BinaryArray = images.as_any().downcast_ref().unwrap();
    for image in images.iter().flatten() {
        let info = bowstring::codec::image::probe(image).unwrap();
        assert_eq!(info.width.min(info.height), 64);
    }
    let numbers = directory.path().join("numbers.parquet");
    parquet(&numbers, &table(&["id"], false));
    let (error, text) = kind(run(&numbers, &directory.path().join("x"), &options));
    assert!(matches!(error, bowstring::Error::Config { option: "resize", .. }), "{text}");
}

#[test]
fn types_of_text_are_inferred_or_given() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let csv = "id,price,name,day,when,ok,code,empty\n1,1.5,\"a,\"\"b\",2024-02-29,2024-02-29T12:00:00,true,007,\n2,,,1999-12-31,1999-12-31 23:59:59,false,010,\n3,-2e3,\"\",2000-01-01,2000-01-01T00:00:00.5,true,100,\n";
    std::fs::write(at("x.csv"), csv).unwrap();
    let found = rows(&at("x.csv"), &ConvertOptions::default()).unwrap();
    let types: Vec<String> =
        found.schema().fields().iter().map(|field| bowstring::convert::type_text(field.data_type())).collect();
    assert_eq!(types, ["int64", "float64", "string", "date32", "timestamp[us]", "bool", "string", "string"]);
    let text: &StringArray = found.column(2).as_any().downcast_ref().unwrap();
    assert_eq!(text.iter().collect::<Vec<_>>(), [Some("a,\"b"), None, Some("")]);
    assert_eq!((found.column(1).null_count(), found.column(7).null_count()), (1, 3));
    let options = ConvertOptions {
        schema: Some(Types::parse("id: int8, price: float32, code: int32").unwrap()),
        ..to(Format::Parquet)
    };
    let report = run(&at("x.csv"), &at("out"), &options).unwrap();
    assert_eq!(report.schema[0].1, "int8");
    assert_eq!(report.schema[6], ("code".to_owned(), "int32".to_owned()));
    let json = "{\"a\": 1, \"b\": [], \"c\": {\"d\": \"x\"}}\n\n{\"a\": 2.5, \"b\": [{\"e\": true}], \"n\": null}\n";
    std::fs::write(at("x.jsonl"), json).unwrap();
    let found = rows(&at("x.jsonl"), &ConvertOptions::default()).unwrap();
    let types: Vec<String> =
        found.schema().fields().iter().map(|field| bowstring::convert::type_text(field.data_type())).collect();
    assert_eq!(types, ["float64", "list<struct<e: bool>>", "struct<d: string>", "string"]);
    for (name, content, word) in [
        ("mixed.jsonl", "{\"a\": 1}\n{\"a\": \"x\"}\n", "numbers and texts"),
        ("list.jsonl", "[1]\n", "not an object"),
        ("cut.jsonl", "{\"a\": 1}\n{\"a\":", "byte 9"),
        ("wide.csv", "a,b\n1,2\n1,2,3\n", "line 3 (byte 8)"),
        ("wider.csv", "a,b\n\n1,\"2\n\",3\n", "line 3 (byte 5)"),
        ("quote.csv", "a,b\n1,2\n3,\"x\"y\n", "line 3 (byte 8)"),
        ("return.csv", "a,b\n1,2\r3,\n", "line 2 (byte 4)"),
        ("twice.csv", "\na,a\n1,2\n", "line 2 (byte 1): the header names \"a\" twice"),
        ("open.csv", "a,b\n1,\"2\n", "quotes"),
        ("none.csv", "", "empty"),
        ("bare.jsonl", "{}\n{}\n", "bare.jsonl: jsonl without columns"),
        ("empty.jsonl", "", "empty.jsonl: jsonl without columns"),
        ("empty.tfrecord", "", "empty.tfrecord: tfrecord without columns"),
    ] {
        std::fs::write(at(name), content).unwrap();
        let (_, text) = kind(run(&at(name), &at("never"), &to(Format::Parquet)));
        assert!(text.contains(word), "{name}: {text}");
    }
    // Beyond the sample, a value of another type is an error with its place.
    let late: String = (0..3000).map(|row| if row < 2500 { format!("{row}\n") } else { "x\n".into() }).collect();
    std::fs::write(at("late.csv"), format!("a\n{late}")).unwrap();
    let (_, text) = kind(run(&at("late.csv"), &at("never"), &to(Format::Parquet)));
    assert!(text.contains("late.csv") && text.contains("--schema"), "{text}");
    assert!(!at("never").exists());
}

#[test]
fn a_timestamp_of_no_zone_is_not_one_with_a_zone() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, zone: Option<&str>| {
        let times = TimestampMicrosecondArray::from(vec![Some(1_700_000_000_000_000), None]).with_timezone_opt(zone);
        let path = directory.path().join(name);
        parquet(&path, &RecordBatch::try_from_iter_with_nullable([("at", Arc::new(times) as ArrayRef, true)]).unwrap());
        path
    };
    let (naive, utc, other) =
        (write("naive.parquet", None), write("utc.parquet", Some("UTC")), write("other.parquet", Some("+05:00")));
    same(&utc, &other);
    let found = compared(&naive, &utc, &ConvertOptions::default()).unwrap();
    assert!(!found.equal && !found.columns[0].equal, "{found:#?}");
    assert_eq!((found.only_first, found.only_second), (1, 1), "{found:#?}");
}

#[test]
fn arrays_of_timedeltas_are_declared_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let stored = Stored { codec: Codec::Npy, element: Element::Timedelta, shape: vec![Some(2)] };
    let cell = |element: &Npy| {
        let mut cell = Vec::new();
        write_npy(element, &[2], &[5_i64.to_le_bytes(), 7_i64.to_le_bytes()].concat(), &mut cell).unwrap();
        cell
    };
    let millis = Unit::named("ms").unwrap();
    let field = Field::new("x", DataType::Binary, false)
        .with_metadata(std::iter::once(stored.metadata()).collect::<Metadata>());
    let schema = Arc::new(Schema::new(vec![field]));
    let write = |name: &str, cell: Vec<u8>| {
        let mut writer = DatasetWriter::create(&at(name), Arc::clone(&schema), WriterOptions::default()).unwrap();
        let cells: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&cell; 3]));
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), vec![cells]).unwrap()).unwrap();
        writer.finish().unwrap();
    };
    let first = |path: &Path| {
        let mut loader = Loader::open(LoaderOptions::new(path.to_str().unwrap(), 3))?;
        let batch = loader.next()?.unwrap();
        Ok::<_, bowstring::Error>(batch.tensor("x").unwrap().as_slice::<i64>().unwrap()[..2].to_vec())
    };
    write("native", cell(&Npy::timedelta(millis)));
    run(&at("native"), &at("petastorm"), &to(Format::Petastorm)).unwrap();
    run(&at("petastorm"), &at("back"), &to(Format::Parquet)).unwrap();
    let metadata = std::fs::read(at("petastorm/_common_metadata")).unwrap();
    assert!(
        metadata.windows(11).any(|part| part == b"timedelta64")
            && !metadata.windows(10).any(|part| part == b"datetime64")
    );
    for name in ["native", "petastorm", "back"] {
        assert_eq!(first(&at(name)).unwrap(), [5_000_000, 7_000_000], "{name}");
    }
    write("wrong", cell(&Npy::datetime(millis)));
    let error = first(&at("wrong")).unwrap_err().to_string();
    assert!(error.contains("where timedelta64 is declared"), "{error}");
}

#[test]
fn feather_files_are_read_whatever_their_compression() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src.parquet");
    parquet(&src, &table(&held(Format::Arrow).0, true));
    for compression in ["none", "lz4", "zstd"] {
        let out = directory.path().join(compression);
        run(&src, &out, &ConvertOptions { compression: Some(compression.to_owned()), ..to(Format::Arrow) }).unwrap();
        assert!(compared(&src, &out, &to(Format::Arrow)).unwrap().equal, "{compression}");
    }
}
