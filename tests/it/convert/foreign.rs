use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Int64Type, Metadata, Schema};
use bowstring::convert::{ConvertOptions, Format, open};
use bowstring::{Error, Loader, LoaderOptions};
use bzip2::read::BzEncoder;
use serde_json::{Value, json};

use super::{batch, compared, fixture, parquet, rows, run, same, text, to};

fn expected(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture("convert").join(name)).unwrap()).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => u32::from(c - b'A'),
        b'a'..=b'z' => u32::from(c - b'a') + 26,
        b'0'..=b'9' => u32::from(c - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut out = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let pad = four.iter().filter(|c| **c == b'=').count();
        let word = four.iter().filter(|c| **c != b'=').fold(0, |word, c| word << 6 | digit(*c)) << (6 * pad);
        out.extend_from_slice(&word.to_be_bytes()[1..4 - pad]);
    }
    out
}

/// Returns the values of a cell: of a scalar the value, of a list its items; `None` for null.
fn values(column: &ArrayRef, row: usize) -> Option<ArrayRef> {
    if column.is_null(row) {
        return None;
    }
    Some(match column.as_list_opt::<i32>() {
        Some(lists) => lists.value(row),
        None => column.slice(row, 1),
    })
}

fn float(value: &Value) -> f32 {
    match value.as_str() {
        Some("nan") => f32::NAN,
        Some("inf") => f32::INFINITY,
        Some("-inf") => f32::NEG_INFINITY,
        _ => value.as_f64().unwrap() as f32,
    }
}

fn check_records(path: &Path) {
    let found = rows(path, &ConvertOptions::default()).unwrap();
    let expected = expected("tfrecord.expected.json");
    let records = expected["records"].as_array().unwrap();
    assert_eq!(found.num_rows(), records.len());
    let mut seen = 0;
    for (row, record) in records.iter().enumerate() {
        for field in found.schema().fields() {
            let cell = values(found.column_by_name(field.name()).unwrap(), row);
            let feature = record.get(field.name()).filter(|feature| !feature["kind"].is_null());
            let Some(feature) = feature else {
                assert!(cell.is_none(), "row {row}, {}", field.name());
                continue;
            };
            let cell = cell.unwrap_or_else(|| panic!("row {row}, {} is null", field.name()));
            let values = feature["values"].as_array().unwrap();
            assert_eq!(cell.len(), values.len(), "row {row}, {}", field.name());
            for (at, value) in values.iter().enumerate() {
                seen += 1;
                match feature["kind"].as_str().unwrap() {
                    "int64" => assert_eq!(cell.as_primitive::<Int64Type>().value(at), value.as_i64().unwrap()),
                    "float" => {
                        let (own, other) = (cell.as_primitive::<Float32Type>().value(at), float(value));
                        assert!(own == other || own.is_nan() && other.is_nan(), "{own} {other}");
                    }
                    _ => {
                        let bytes = cast(&cell, &DataType::Binary).unwrap();
                        assert_eq!(bytes.as_binary::<i32>().value(at), base64(value.as_str().unwrap()));
                    }
                }
            }
        }
        // Nothing of the record is missing.
        for (name, feature) in record.as_object().unwrap().iter().filter(|(_, feature)| !feature["kind"].is_null()) {
            assert!(found.column_by_name(name).is_some(), "{name} {feature}");
        }
    }
    assert!(seen > 80, "{seen} values");
}

#[test]
fn records_of_tensorflow_have_the_values_that_it_wrote() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["plain.tfrecord", "gzip.tfrecord.gz", "zlib.tfrecord.zz"] {
        let src = fixture("convert/tfrecord").join(name);
        check_records(&src);
        let [parquet, back] = ["parquet", "tfrecord"].map(|to| directory.path().join(format!("{name}-{to}")));
        let report = run(&src, &parquet, &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
        assert!(report.verified && report.rows == 10 && report.from == Format::Tfrecord, "{report:?}");
        check_records(&parquet);
        run(&parquet, &back, &to(Format::Tfrecord)).unwrap();
        check_records(&back);
    }
}

#[test]
fn steps_of_sequences_are_lists_of_lists() {
    let src = fixture("convert/tfrecord/sequence.tfrecord");
    let directory = tempfile::tempdir().unwrap();
    let (parquet, back) = (directory.path().join("p"), directory.path().join("b"));
    run(&src, &parquet, &to(Format::Parquet)).unwrap();
    run(&parquet, &back, &to(Format::Tfrecord)).unwrap();
    for place in [&src, &parquet, &back] {
        let found = rows(place, &ConvertOptions { from: None, ..ConvertOptions::default() }).unwrap();
        assert_eq!(found.num_rows(), 3);
        let ids = cast(found.column_by_name("id").unwrap(), &DataType::Int64).unwrap();
        let frames = found.column_by_name("frames").unwrap().as_list::<i32>().clone();
        for row in 0..3 {
            assert_eq!(ids.as_primitive::<Int64Type>().value(row), row as i64);
            let steps = frames.value(row);
            let steps = steps.as_list::<i32>();
            let found: Vec<Vec<i64>> =
                (0..steps.len()).map(|step| steps.value(step).as_primitive::<Int64Type>().values().to_vec()).collect();
            let wanted: Vec<Vec<i64>> = (0..=row as i64).map(|k| vec![row as i64, k]).collect();
            assert_eq!(found, wanted);
        }
    }
}

#[test]
fn files_in_bzip2_and_brotli_are_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let plain = fixture("convert/mds/plain");
    let bz2 = |bytes: &[u8]| {
        let mut packed = Vec::new();
        BzEncoder::new(bytes, bzip2::Compression::best()).read_to_end(&mut packed).unwrap();
        packed
    };
    let br = |bytes: &[u8]| {
        let mut packed = Vec::new();
        brotli::BrotliCompress(&mut &*bytes, &mut packed, &brotli::enc::BrotliEncoderParams::default()).unwrap();
        packed
    };
    let lines: String = (0..5000).map(|row| format!("{{\"id\":{row},\"word\":\"row {row}\"}}\n")).collect();
    let [whole, packed] = ["x.jsonl", "y.jsonl.bz2"].map(|name| directory.path().join(name));
    std::fs::write(&whole, &lines).unwrap();
    // Two streams, as parallel compressors write them.
    let (first, second) = lines.as_bytes().split_at(lines.len() / 2);
    std::fs::write(&packed, [bz2(first), bz2(second)].concat()).unwrap();
    assert_eq!(same(&whole, &packed).rows, [5000, 5000]);
    for name in ["bz2:9", "br"] {
        let pack = |bytes: &[u8]| if name == "br" { br(bytes) } else { bz2(bytes) };
        let (extension, src) = (name.split(':').next().unwrap(), directory.path().join(name));
        std::fs::create_dir(&src).unwrap();
        let mut index: Value = serde_json::from_slice(&std::fs::read(plain.join("index.json")).unwrap()).unwrap();
        for shard in index["shards"].as_array_mut().unwrap() {
            let raw = shard["raw_data"]["basename"].as_str().unwrap().to_owned();
            let (zip, packed) = (format!("{raw}.{extension}"), pack(&std::fs::read(plain.join(&raw)).unwrap()));
            std::fs::write(src.join(&zip), &packed).unwrap();
            shard["zip_data"] = json!({"basename": zip, "bytes": packed.len(), "hashes": {}});
            shard["compression"] = json!(name);
        }
        std::fs::write(src.join("index.json"), index.to_string()).unwrap();
        assert!(compared(&plain, &src, &ConvertOptions::default()).unwrap().equal, "{name}");
        // Damage is reported with its place.
        let victim = src.join(format!("shard.00001.mds.{extension}"));
        let mut bytes = std::fs::read(&victim).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        std::fs::write(&victim, &bytes).unwrap();
        let error = rows(&src, &ConvertOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains("shard.00001"), "{name}: {error}");
    }
}

#[test]
fn samples_of_mds_have_the_values_that_it_wrote() {
    let expected = expected("mds.expected.json");
    let samples = expected["samples"].as_array().unwrap();
    let directory = tempfile::tempdir().unwrap();
    for name in ["plain", "zstd"] {
        let src = fixture("convert/mds").join(name);
        let (parquet, back) = (directory.path().join(name), directory.path().join(format!("{name}-mds")));
        run(&src, &parquet, &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
        let compression = Some(if name == "zstd" { "zstd" } else { "snappy" }.to_owned());
        run(&parquet, &back, &ConvertOptions { compression, verify: true, ..to(Format::Mds) }).unwrap();
        for place in [&src, &parquet, &back] {
            let found = rows(place, &ConvertOptions::default()).unwrap();
            assert_eq!(found.num_rows(), samples.len());
            let column = |name: &str, kind: DataType| cast(found.column_by_name(name).unwrap(), &kind).unwrap();
            let (ids, bytes) = (column("id", DataType::Int64), column("b", DataType::Binary));
            let (texts, json) = (column("s", DataType::Utf8), column("j", DataType::Utf8));
            let (floats, small) = (column("x", DataType::Float32), column("u", DataType::Int64));
            let (nd, ndv) = (column("nd", DataType::Binary), column("ndv", DataType::Binary));
            for (row, sample) in samples.iter().enumerate() {
                assert_eq!(ids.as_primitive::<Int64Type>().value(row), sample["id"].as_i64().unwrap());
                assert_eq!(small.as_primitive::<Int64Type>().value(row), sample["u"].as_i64().unwrap());
                assert_eq!(floats.as_primitive::<Float32Type>().value(row), sample["x"].as_f64().unwrap() as f32);
                assert_eq!(texts.as_string::<i32>().value(row), sample["s"].as_str().unwrap());
                assert_eq!(bytes.as_binary::<i32>().value(row), base64(sample["b"].as_str().unwrap()));
                let own: Value = serde_json::from_str(json.as_string::<i32>().value(row)).unwrap();
                assert_eq!(own, sample["j"]);
                let numbers = |cell: &[u8]| {
                    let header = bowstring::codec::npy::header(cell).unwrap();
                    (header.shape.clone(), cell[header.data.clone()].to_vec(), header.element)
                };
                let (shape, data, _) = numbers(nd.as_binary::<i32>().value(row));
                assert_eq!(shape, [2, 3]);
                let wanted: Vec<u8> = flat(&sample["nd"]).iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
                assert_eq!(data, wanted);
                let (shape, data, element) = numbers(ndv.as_binary::<i32>().value(row));
                let rows = sample["ndv"].as_array().unwrap();
                assert_eq!(shape, [rows.len(), 2]);
                let found: Vec<f64> = data
                    .chunks(element.size)
                    .map(|bytes| bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)) as f64)
                    .collect();
                assert_eq!(found, flat(&sample["ndv"]), "{element}");
            }
        }
    }
}

fn flat(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap()).map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn samples_of_webdataset_have_the_values_that_it_wrote() {
    let expected = expected("webdataset.expected.json");
    let samples = expected["samples"].as_array().unwrap();
    let src = fixture("convert/webdataset");
    let directory = tempfile::tempdir().unwrap();
    let (parquet, back) = (directory.path().join("p"), directory.path().join("b"));
    run(&src, &parquet, &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
    run(&parquet, &back, &ConvertOptions { verify: true, ..to(Format::Webdataset) }).unwrap();
    for place in [&src, &parquet, &back] {
        let found = rows(place, &ConvertOptions::default()).unwrap();
        assert_eq!(found.num_rows(), samples.len(), "{}", place.display());
        let column = |name: &str, kind: DataType| cast(found.column_by_name(name).unwrap(), &kind).unwrap();
        let (keys, texts) = (column("__key__", DataType::Utf8), column("txt", DataType::Utf8));
        let (classes, json) = (column("cls", DataType::Int64), column("json", DataType::Utf8));
        let (images, arrays) = (column("jpg", DataType::Binary), column("npy", DataType::Binary));
        let pixels = column("seg.png", DataType::Binary);
        for (row, sample) in samples.iter().enumerate() {
            assert_eq!(keys.as_string::<i32>().value(row), sample["key"].as_str().unwrap());
            let text = texts.is_valid(row).then(|| texts.as_string::<i32>().value(row));
            assert_eq!(text, sample["txt"].as_str());
            assert_eq!(classes.as_primitive::<Int64Type>().value(row), sample["cls"].as_i64().unwrap());
            let own: Value = serde_json::from_str(json.as_string::<i32>().value(row)).unwrap();
            assert_eq!(own, sample["json"]);
            assert_eq!(sha256(images.as_binary::<i32>().value(row)), sample["jpg_sha256"].as_str().unwrap());
            let cell = arrays.as_binary::<i32>().value(row);
            let header = bowstring::codec::npy::header(cell).unwrap();
            let found: Vec<f64> = cell[header.data.clone()]
                .chunks(header.element.size)
                .map(|bytes| match bytes.len() {
                    4 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
                    _ => f64::from_le_bytes(bytes.try_into().unwrap()),
                })
                .collect();
            let wanted: Vec<f64> = sample["npy"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            assert_eq!(found, wanted);
            assert!(pixels.as_binary::<i32>().value(row).starts_with(b"\x89PNG"));
        }
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn petastorms_own_files_become_parquet_and_petastorm_again() {
    let src = fixture("petastorm/petastorm_allcodecs_0.13.1");
    let directory = tempfile::tempdir().unwrap();
    let (parquet, back) = (directory.path().join("p"), directory.path().join("b"));
    run(&src, &parquet, &to(Format::Parquet)).unwrap();
    super::same(&src, &parquet);
    run(&parquet, &back, &to(Format::Petastorm)).unwrap();
    assert!(back.join("_common_metadata").is_file());
    let found = super::same(&src, &back);
    assert_eq!(found.rows, [40, 40]);
    assert_eq!(found.formats, [Format::Petastorm, Format::Petastorm]);
}

/// What a dataset says of its columns in Hugging Face's words.
fn features(path: &Path) -> Value {
    let source = open(&text(path), &ConvertOptions::default()).unwrap();
    let described =
        source.schema().metadata().get("huggingface").map(|json| serde_json::from_str::<Value>(json).unwrap());
    described.map(|described| described["info"]["features"].clone()).unwrap_or_default()
}

#[test]
fn features_of_hugging_face_stay_with_their_columns() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let src = fixture("features").join("huggingface.parquet");
    let told = features(&src);
    assert_eq!((&told["label"]["_type"], &told["image"]["_type"]), (&json!("ClassLabel"), &json!("Image")));
    let schema = |path: &Path| {
        let loader = Loader::open(LoaderOptions::new(text(path), 10)).unwrap();
        (loader.schema().to_string(), loader.schema().get("label").unwrap().classes.clone())
    };
    for format in [Format::Parquet, Format::Datasets, Format::Arrow] {
        let (out, back) = (at(&format!("{format}")), at(&format!("{format}.parquet")));
        run(&src, &out, &ConvertOptions { verify: true, ..to(format) }).unwrap();
        assert_eq!(features(&out), told, "{format}");
        let from = Some(format);
        run(&out, &back, &ConvertOptions { verify: true, from, ..to(Format::Parquet) }).unwrap();
        // The loader gives the image itself, and the names of the classes.
        assert_eq!(schema(&back), schema(&src), "{format}");
        same(&src, &back);
        // Those of columns that are left out are left out.
        let (some, columns) = (at(&format!("{format}.some")), vec!["text".to_owned(), "label".to_owned()]);
        run(&out, &some, &ConvertOptions { columns, from, ..to(Format::Parquet) }).unwrap();
        assert_eq!(features(&some), json!({"label": told["label"], "text": told["text"]}), "{format}");
    }
    run(&src, &at("csv"), &ConvertOptions { columns: vec!["label".to_owned()], ..to(Format::Csv) }).unwrap();
    assert_eq!(features(&at("csv")), Value::Null);
}

#[test]
fn class_names_that_contradict_each_other_are_not_converted() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let write = |name: &str, names: &[&str]| {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![0, 1]));
        let plain = batch(vec![("id", Arc::clone(&column)), ("label", column)]);
        let features = json!({"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}});
        let described = Metadata::default().with("huggingface", features.to_string());
        let schema = Schema::new_with_metadata(plain.schema().fields().clone(), described);
        std::fs::create_dir_all(at("src")).unwrap();
        parquet(&at("src").join(name), &RecordBatch::try_new(schema.into(), plain.columns().to_vec()).unwrap());
    };
    write("a.parquet", &["neg", "pos"]);
    // Names that continue others hold for both.
    write("b.parquet", &["neg", "pos", "odd"]);
    run(&at("src"), &at("longer"), &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
    assert_eq!(features(&at("longer"))["label"]["names"], json!(["neg", "pos", "odd"]));
    write("c.parquet", &["pos", "neg"]);
    let error = run(&at("src"), &at("out"), &to(Format::Parquet)).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }) && error.to_string().contains("class names"), "{error}");
    let options = ConvertOptions { columns: vec!["id".to_owned()], ..to(Format::Parquet) };
    assert_eq!(run(&at("src"), &at("out"), &options).unwrap().rows, 6);
    assert_eq!(features(&at("out")), Value::Null);
}
