use std::fs;
use std::path::Path;

use bowstring::Error;
use bowstring::convert::{ConvertOptions, Format};
use serde_json::json;

use super::{fixture, kind, names, run, to};

/// Converts a dataset that must be refused. Returns the error's text, after checking that nothing is visible at the destination.
fn refused(src: &Path, from: Format) -> (Error, String) {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let outcome = run(src, &out, &ConvertOptions { from: Some(from), ..to(Format::Parquet) });
    assert!(!out.exists(), "{}", src.display());
    let found = kind(outcome);
    assert_eq!(names(directory.path()), Vec::<String>::new(), "nothing stays behind");
    found
}

#[test]
fn damaged_records_name_file_and_byte() {
    let (error, text) = refused(&fixture("convert/tfrecord/bad_crc.tfrecord"), Format::Tfrecord);
    assert!(
        matches!(error, Error::Corrupt { .. })
            && text.contains("bad_crc.tfrecord, ") | text.contains("bad_crc.tfrecord:"),
        "{text}"
    );
    assert!(text.contains("byte 0") && text.contains("checksum"), "{text}");
    let (_, text) = refused(&fixture("convert/tfrecord/truncated.tfrecord"), Format::Tfrecord);
    assert!(text.contains("ends within a record"), "{text}");
    // Nine records are intact: the sample passes, and reading stops at the tenth.
    assert!(!text.contains("byte 0:"), "{text}");
}

#[test]
fn records_of_other_things_are_no_examples() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.tfrecord");
    let mut bytes = Vec::new();
    bowstring::convert::write_record(&[0xff; 40], &mut bytes);
    fs::write(&path, &bytes).unwrap();
    let (_, text) = refused(&path, Format::Tfrecord);
    assert!(text.contains("not a tf.train.Example"), "{text}");
    // A second file with a feature that the sample of the first files lacked is an error, not a loss.
    let many = directory.path().join("many");
    fs::create_dir(&many).unwrap();
    fs::copy(fixture("convert/tfrecord/plain.tfrecord"), many.join("a.tfrecord")).unwrap();
    fs::copy(fixture("convert/tfrecord/sequence.tfrecord"), many.join("b.tfrecord")).unwrap();
    let found = super::rows(&many, &ConvertOptions::default()).unwrap();
    assert_eq!(found.num_rows(), 13, "features of both, null where one lacks them");
}

/// A record with the feature `x`, whose list of this tag has the bytes `value`.
fn record(list: u8, value: &[u8]) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| [&[tag * 8 + 2, bytes.len() as u8][..], bytes].concat();
    let entry = [field(1, b"x"), field(2, &field(list, &field(1, value)))].concat();
    field(1, &field(1, &entry))
}

#[test]
fn a_later_record_of_another_kind_is_named_and_never_read_as_the_first_ones() {
    let (bytes, float, integer) = (1, 2, 3);
    let directory = tempfile::tempdir().unwrap();
    for (usual, odd, why) in [
        (record(integer, &[7]), record(float, &1.5_f32.to_le_bytes()), "it holds floats where integers are expected"),
        (record(integer, &[7]), record(bytes, b"7"), "it holds bytes where integers are expected"),
        (record(float, &[0; 4]), record(integer, &[7]), "it holds integers where floats are expected"),
        (record(integer, &[7]), record(integer, &[7, 8]), "it holds 2 values where one is expected"),
        (record(bytes, b"text"), record(bytes, b"\xff\xfe"), "does not"),
    ] {
        let path = directory.path().join("x.tfrecord");
        let mut out = Vec::new();
        // Beyond the sample, and in the second batch.
        for _ in 0..10_000 {
            bowstring::convert::write_record(&usual, &mut out);
        }
        bowstring::convert::write_record(&odd, &mut out);
        fs::write(&path, &out).unwrap();
        let (error, said) = refused(&path, Format::Tfrecord);
        assert!(matches!(error, Error::Corrupt { .. }) && said.contains(why), "{said}");
        let place = error.place().unwrap();
        assert_eq!(place.file.as_deref(), Some("x.tfrecord"), "{said}");
        assert_eq!((place.column.as_deref(), place.row), (Some("x"), Some(10_000)), "{said}");
    }
}

/// Copies the plain MDS fixture with a changed index.
fn lying(change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture("convert/mds/plain")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let path = directory.path().join("index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut index);
    fs::write(&path, index.to_string()).unwrap();
    directory
}

#[test]
fn an_index_that_lies_is_caught() {
    type Change = fn(&mut serde_json::Value);
    let lies: [(&str, Change); 12] = [
        ("leads elsewhere", |index| index["shards"][0]["raw_data"]["basename"] = json!("../plain/shard.00000.mds")),
        ("leads elsewhere", |index| index["shards"][1]["raw_data"]["basename"] = json!("/etc/passwd")),
        ("are claimed", |index| index["shards"][0]["raw_data"]["bytes"] = json!(664)),
        ("samples", |index| index["shards"][0]["samples"] = json!(5)),
        ("samples", |index| index["shards"][0]["samples"] = json!(u64::MAX)),
        ("hash", |index| index["shards"][2]["raw_data"]["hashes"]["xxh64"] = json!("0000000000000000")),
        ("first shard", |index| index["shards"][1]["column_names"][0] = json!("z")),
        ("size", |index| {
            for shard in 0..3 {
                index["shards"][shard]["column_sizes"][1] = json!(4);
            }
        }),
        ("pickles", |index| {
            for shard in 0..3 {
                index["shards"][shard]["column_encodings"][0] = json!("pkl");
            }
        }),
        ("version 3", |index| index["version"] = json!(3)),
        ("not found", |index| index["shards"][0]["raw_data"]["basename"] = json!("gone.mds")),
        ("not an index", |index| *index = json!([1])),
    ];
    for (word, change) in lies {
        let place = lying(change);
        let (_, text) = refused(place.path(), Format::Mds);
        assert!(text.contains(word), "{word}: {text}");
    }
    let place = lying(|_| ());
    let shard = place.path().join("shard.00001.mds");
    let whole = fs::read(&shard).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&shard, &bytes).unwrap();
        let (error, text) = refused(place.path(), Format::Mds);
        assert!(
            matches!(error, Error::Corrupt { .. } | Error::Limit { .. } | Error::Unsupported { .. }),
            "byte {at}: {text}"
        );
    }
}

#[test]
fn tar_files_that_reach_out_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.tar");
    let good = fs::read(fixture("convert/webdataset/shard-000000.tar")).unwrap();
    for (name, word) in [("../../x.jpg", "leads elsewhere"), ("/etc/x.jpg", "leads elsewhere")] {
        let mut bytes = good.clone();
        // The first member is preceded by an extended header with its time.
        bytes[1024..1124].fill(0);
        bytes[1024..1024 + name.len()].copy_from_slice(name.as_bytes());
        checksum(&mut bytes[1024..1536]);
        fs::write(&path, &bytes).unwrap();
        let (_, text) = refused(&path, Format::Webdataset);
        assert!(text.contains(word) && text.contains("x.tar") && text.contains("byte 1024"), "{text}");
    }
    for (kind, word) in [(b'2', "symbolic link"), (b'1', "hard link"), (b'S', "sparse"), (b'6', "device")] {
        let mut bytes = good.clone();
        bytes[1024 + 156] = kind;
        checksum(&mut bytes[1024..1536]);
        fs::write(&path, &bytes).unwrap();
        assert!(refused(&path, Format::Webdataset).1.contains(word));
    }
    for cut in [good.len() / 8, good.len() / 8 + 100, 513] {
        fs::write(&path, &good[..cut]).unwrap();
        refused(&path, Format::Webdataset);
    }
    fs::write(&path, b"").unwrap();
    assert!(refused(&path, Format::Webdataset).1.contains("end mark"));
}

fn checksum(bytes: &mut [u8]) {
    bytes[148..156].fill(b' ');
    let sum: u64 = bytes[..512].iter().map(|byte| u64::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn long_lines_cells_and_records_stop_at_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let limited = |name: &str, content: &[u8], from: Format| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        let mut options = ConvertOptions { from: Some(from), ..to(Format::Parquet) };
        options.limits.max_record_bytes = 1000;
        options.limits.max_columns = 50;
        kind(run(&path, &directory.path().join("out"), &options))
    };
    let wide = format!("a\n{}\n", ",".repeat(200));
    let cell = format!("a\n\"{}\n", "x\n".repeat(100_000));
    let line = format!("{{\"a\": \"{}", "x".repeat(100_000));
    let names: Vec<String> = (0..60).map(|number| format!("\"k{number}\": 1")).collect();
    let object = format!("{{{}}}\n", names.join(","));
    for (name, content, from, option) in [
        ("wide.csv", wide, Format::Csv, "max_columns"),
        ("cell.csv", cell, Format::Csv, "max_record_bytes"),
        ("line.jsonl", line, Format::Jsonl, "max_record_bytes"),
        ("object.jsonl", object, Format::Jsonl, "max_columns"),
    ] {
        let (error, text) = limited(name, content.as_bytes(), from);
        assert!(matches!(error, Error::Limit { .. }) && text.contains(option) && text.contains(name), "{name}: {text}");
    }
    // A file that decompresses to far too much is cut off at the limit, not when memory is exhausted.
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut bomb, format!("a\n\"{}", "x".repeat(50 << 20)).as_bytes()).unwrap();
    let (error, text) = limited("bomb.csv.gz", &bomb.finish().unwrap(), Format::Csv);
    assert!(matches!(error, Error::Limit { asked, .. } if asked < 2 << 20), "{text}");
}

#[test]
fn damaged_arrow_files_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    run(
        &fixture("corrupt/good.parquet"),
        &at("good"),
        &ConvertOptions { compression: Some("lz4".into()), ..to(Format::Arrow) },
    )
    .unwrap();
    let whole = fs::read(at("good/part-00000.arrow")).unwrap();
    let path = at("x.arrow");
    let (mut failed, step) = (0, (whole.len() / 300).max(1));
    for at in (0..whole.len()).step_by(step) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x80;
        fs::write(&path, &bytes).unwrap();
        let outcome = super::rows(&path, &ConvertOptions { from: Some(Format::Arrow), ..ConvertOptions::default() });
        failed += usize::from(outcome.is_err());
    }
    assert!(failed > 5, "{failed}");
    for cut in [4, 100, whole.len() / 2] {
        fs::write(&path, &whole[..cut]).unwrap();
        refused(&path, Format::Arrow);
    }
}

#[test]
fn lance_and_what_is_not_known_get_a_clear_answer() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("x.lance/_versions")).unwrap();
    let (error, text) =
        kind(run(&directory.path().join("x.lance"), &directory.path().join("out"), &to(Format::Parquet)));
    assert!(matches!(error, Error::Unsupported { .. }) && text.contains("Lance"), "{text}");
    fs::write(directory.path().join("readme"), "hello").unwrap();
    let (error, _) = kind(run(&directory.path().join("readme"), &directory.path().join("out"), &to(Format::Parquet)));
    assert!(matches!(error, Error::Config { option: "from", .. }));
    let (error, _) = kind(run(&directory.path().join("gone"), &directory.path().join("out"), &to(Format::Parquet)));
    assert!(matches!(error, Error::NotFound { .. }));
}

#[test]
fn names_that_reach_out_are_not_written() {
    use arrow::array::{ArrayRef, StringArray};
    use std::sync::Arc;
    let photos = super::rows(&fixture("imagenet40.parquet"), &ConvertOptions::default()).unwrap().slice(0, 1);
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src.parquet");
    for (format, column) in [(Format::Images, "class"), (Format::Images, "path"), (Format::Webdataset, "__key__")] {
        for value in ["../x", "..", ".hidden", "a\\b", ""] {
            let name: ArrayRef = Arc::new(StringArray::from(vec![value]));
            let image =
                arrow::compute::cast(photos.column_by_name("image").unwrap(), &arrow::datatypes::DataType::Binary)
                    .unwrap();
            super::parquet(&src, &super::batch(vec![("image", image), (column, name)]));
            let out = directory.path().join("out");
            let outcome = run(&src, &out, &to(format));
            if (column, value) == ("path", "../x") {
                // Only the last part of a path names the file.
                outcome.unwrap();
                assert_eq!(names(&out), ["_SUCCESS", "_files", "x.jpg"]);
                fs::remove_dir_all(&out).unwrap();
                continue;
            }
            let (error, text) = kind(outcome);
            assert!(matches!(error, Error::Unsupported { .. }) && text.contains(column), "{column} {value:?}: {text}");
            assert!(!out.exists());
        }
    }
}

/// Does briefly, without its tools, what the fuzz targets do: reads seeds with random damage to their end.
#[test]
fn random_damage_is_an_error_or_nothing() {
    let seconds = if crate::support::soak() { 60 } else { 1 };
    let seed = crate::support::seed("convert::hostile::random_damage");
    let mut random = crate::support::Random(seed);
    let mds = fs::read(fixture("convert/mds/plain/shard.00000.mds")).unwrap();
    let tar = fs::read(fixture("convert/webdataset/shard-000000.tar")).unwrap();
    let records = fs::read(fixture("convert/tfrecord/sequence.tfrecord")).unwrap();
    // The first record, without its frame.
    let message = &records[12..49];
    let directory = tempfile::tempdir().unwrap();
    for format in [Format::Tfrecord, Format::Webdataset, Format::Mds] {
        let started = std::time::Instant::now();
        let (mut tried, mut read) = (0, 0);
        while started.elapsed().as_secs() < seconds {
            let mut bytes = match format {
                Format::Tfrecord => message.to_vec(),
                Format::Webdataset => tar[..8192].to_vec(),
                _ => mds.clone(),
            };
            for _ in 0..1 + random.index(6) {
                let at = random.index(bytes.len());
                match random.index(4) {
                    0 => bytes[at] = random.index(256) as u8,
                    1 => bytes[at] ^= 1 << random.index(8),
                    2 => bytes.truncate(at.max(1)),
                    _ => {
                        let from = random.index(bytes.len());
                        let piece = bytes[from..(from + random.index(40)).min(bytes.len())].to_vec();
                        bytes.splice(at..at, piece);
                    }
                }
            }
            tried += 1;
            let options = ConvertOptions { from: Some(format), ..ConvertOptions::default() };
            let outcome = match format {
                Format::Tfrecord => {
                    let mut framed = Vec::new();
                    bowstring::convert::write_record(&bytes, &mut framed);
                    let path = directory.path().join("x.tfrecord");
                    fs::write(&path, &framed).unwrap();
                    super::rows(&path, &options).map(|found| found.num_rows() as u64)
                }
                Format::Webdataset => {
                    for block in bytes.chunks_exact_mut(512).step_by(2) {
                        checksum(block);
                    }
                    bytes.extend_from_slice(&[0; 1024]);
                    let path = directory.path().join("x.tar");
                    fs::write(&path, &bytes).unwrap();
                    super::rows(&path, &options).map(|found| found.num_rows() as u64)
                }
                _ => bowstring::convert::fuzz_mds_shard(directory.path(), &bytes, random.index(6) as u64),
            };
            read += u64::from(outcome.is_ok());
        }
        println!("{format}: {tried} damaged files, {read} of them still readable");
        assert!(tried > 20, "{format}: {tried}");
    }
}

/// Makes ten batches of 100 rows, as an Arrow file or as a stream.
fn arrow(batches: i64, stream: bool) -> Vec<u8> {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::ipc::writer::{FileWriter, StreamWriter};
    let batch = |number: i64| {
        let ids: ArrayRef = std::sync::Arc::new(Int64Array::from_iter_values(number * 100..(number + 1) * 100));
        let words = (0..100).map(|row| format!("word {row}"));
        let words: ArrayRef = std::sync::Arc::new(StringArray::from_iter_values(words));
        super::batch(vec![("id", ids), ("word", words)])
    };
    let schema = batch(0).schema();
    let mut bytes = Vec::new();
    if stream {
        let mut writer = StreamWriter::try_new(&mut bytes, &schema).unwrap();
        (0..batches).for_each(|number| writer.write(&batch(number)).unwrap());
        writer.finish().unwrap();
    } else {
        let mut writer = FileWriter::try_new(&mut bytes, &schema).unwrap();
        (0..batches).for_each(|number| writer.write(&batch(number)).unwrap());
        writer.finish().unwrap();
    }
    bytes
}

/// Returns the offsets of the messages of a file or stream, and the end of the last one.
fn messages(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = bytes.windows(4).position(|four| four == [0xff; 4]).unwrap();
    loop {
        found.push(at);
        let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        if len == 0 {
            return found;
        }
        let message = arrow::ipc::root_as_message(&bytes[at + 8..at + 8 + len]).unwrap();
        at += 8 + len + usize::try_from(message.bodyLength()).unwrap();
    }
}

#[test]
fn an_arrow_file_without_its_end_is_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.arrow");
    let whole = arrow(10, false);
    let found = messages(&whole);
    assert_eq!(found.len(), 12, "a schema, ten batches, the end");
    // After any message, in its middle, and anywhere in the end of the file.
    let end = found[found.len() - 1];
    let middles = found.windows(2).map(|pair| (pair[0] + pair[1]) / 2);
    let packed = directory.path().join("y.arrow.zst");
    for cut in found.iter().copied().chain(middles).chain((end..whole.len()).step_by(9)).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..cut]).unwrap();
        // Truncated and compressed, when the end cannot be seen before the rest was read.
        fs::write(&packed, zstd::encode_all(&whole[..cut], 1).unwrap()).unwrap();
        for path in [&path, &packed] {
            let error = super::rows(path, &ConvertOptions::default()).expect_err(&format!("cut at {cut}"));
            assert!(matches!(error, Error::Corrupt { .. }), "cut at {cut}: {}", error.chain());
        }
    }
    // After the fifth of ten batches, which looks complete from the front.
    fs::write(&path, &whole[..found[6]]).unwrap();
    let (error, text) = refused(&path, Format::Arrow);
    assert!(matches!(error, Error::Corrupt { .. }) && text.contains("x.arrow") && text.contains("cut short"), "{text}");
    // The end is there, batches are missing.
    for batches in [9, 11] {
        let other = arrow(batches, false);
        let tail = messages(&other);
        let bytes = [&whole[..end], &other[tail[tail.len() - 1]..]].concat();
        fs::write(&path, &bytes).unwrap();
        let (error, text) = refused(&path, Format::Arrow);
        assert!(matches!(error, Error::Corrupt { .. }) && text.contains("footer lists"), "{text}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(super::rows(&path, &ConvertOptions::default()).unwrap().num_rows(), 1000);
}

#[test]
fn an_arrow_stream_ends_after_a_message_or_with_its_mark() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.arrow");
    let whole = arrow(10, true);
    let found = messages(&whole);
    // As the format permits: a stream may be closed after any message. The first is the schema.
    for (batches, at) in found.iter().enumerate().skip(1) {
        fs::write(&path, &whole[..*at]).unwrap();
        let rows = super::rows(&path, &ConvertOptions::default()).unwrap().num_rows();
        assert_eq!(rows, (batches - 1) * 100, "cut at {at}");
        fs::write(&path, &whole[..at - 3]).unwrap();
        let error = super::rows(&path, &ConvertOptions::default()).expect_err(&format!("cut at {}", at - 3));
        assert!(matches!(error, Error::Corrupt { .. }), "cut at {}: {}", at - 3, error.chain());
    }
    // Nothing after the mark is skipped: another stream would be lost rows.
    fs::write(&path, [&whole[..], &whole[..]].concat()).unwrap();
    let (error, text) = refused(&path, Format::Arrow);
    assert!(matches!(error, Error::Corrupt { .. }) && text.contains("follow the end mark"), "{text}");
}
