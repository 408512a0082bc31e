//! Damaged and hostile files: a typed error or the right data, never a panic that escapes, an abort, or a huge allocation.

use std::fs;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int64Type};
use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::{Error, Result};
use parquet::basic::Compression;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};

use crate::child;
use crate::dataset::{open, read_group, runtime};

use crate::support::Random;

/// Reads every row group of one file, or its error. Small pools of threads keep the address space small.
fn read(path: &Path) -> Result<Vec<Result<RecordBatch>>> {
    let runtime = runtime();
    let dataset = runtime.block_on(Dataset::open(&[path.display().to_string()], OpenOptions::default()))?;
    let names: Vec<String> = dataset.schema().fields().iter().map(|field| field.name().clone()).collect();
    let projection = dataset.project(&names)?;
    Ok((0..dataset.manifest().groups.len())
        .map(|group| runtime.block_on(read_group(&dataset, &projection, group)))
        .collect())
}

/// True if the error is one that a reader of damaged data may return.
fn is_typed(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Limit { .. })
}

/// A row of `good.parquet`: id, s, and the bits of x.
type Row = (i64, String, u32);

fn rows(batch: &RecordBatch) -> Vec<Row> {
    let (id, s, x) = (batch.column(0), batch.column(1), batch.column(2));
    assert_eq!((id.null_count(), s.null_count(), x.null_count()), (0, 0, 0));
    let (id, s, x) = (id.as_primitive::<Int64Type>(), s.as_string_view(), x.as_primitive::<Float32Type>());
    (0..batch.num_rows()).map(|row| (id.value(row), s.value(row).to_owned(), x.value(row).to_bits())).collect()
}

fn good() -> (Vec<u8>, Vec<Vec<Row>>) {
    let path = Path::new("fixtures/corrupt/good.parquet");
    let groups = read(path).unwrap().into_iter().map(|group| rows(&group.unwrap())).collect();
    (fs::read(path).unwrap(), groups)
}

#[test]
fn every_broken_fixture_is_an_error_with_its_place() {
    let (_, good) = good();
    assert_eq!(good.iter().map(Vec::len).collect::<Vec<_>>(), [50; 4]);
    assert!(
        good.iter().flatten().enumerate().all(|(row, (id, s, _))| *id == row as i64 && *s == format!("v{}", row % 9))
    );
    let expected: serde_json::Value =
        serde_json::from_slice(&fs::read("fixtures/corrupt/expected.json").unwrap()).unwrap();
    let files = expected["parquet"].as_object().unwrap();
    assert_eq!(files.len(), 23);
    for (name, facts) in files {
        let path = Path::new("fixtures/corrupt").join(name);
        let readable = facts["pyarrow"].as_str().unwrap().contains("reads 200 rows");
        let damaged_group = match name.as_str() {
            "page_bitflip_rg1.parquet" => Some((1, "id")),
            "page_header_garbage_rg2.parquet" => Some((2, "x")),
            _ => None,
        };
        match (read(&path), damaged_group) {
            (Ok(groups), Some((damaged, column))) => {
                for (number, group) in groups.into_iter().enumerate() {
                    if number != damaged {
                        assert_eq!(rows(&group.unwrap()), good[number], "{name}, row group {number}");
                        continue;
                    }
                    let error = group.unwrap_err();
                    let Error::Corrupt { place, .. } = &error else { panic!("{name}: {error}") };
                    assert_eq!(place.file.as_deref(), Some(name.as_str()));
                    assert_eq!(
                        (place.row_group, place.column.as_deref()),
                        (Some(damaged), Some(column)),
                        "{name}: {error}"
                    );
                }
            }
            (Ok(groups), None) => {
                assert!(readable, "{name} was read, but {}", facts["what"]);
                for (number, group) in groups.into_iter().enumerate() {
                    match group {
                        Ok(group) => assert_eq!(rows(&group), good[number], "{name}, row group {number}"),
                        Err(error) => assert!(is_typed(&error), "{name}: {error}"),
                    }
                }
            }
            (Err(error), _) => {
                assert!(is_typed(&error) && damaged_group.is_none(), "{name}: {error}");
                assert!(error.to_string().contains(name.as_str()), "{name}: {error}");
                assert!(name != "wrong_head_magic.parquet", "{error}");
            }
        }
    }
    let error = read(Path::new("fixtures/corrupt/encrypted_magic.parquet")).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.place().is_some_and(|place| place.file.as_deref() == Some("encrypted_magic.parquet")), "{error:?}");
}

/// Locates the bodies of pages in `good.parquet`: a flip there must be noticed, because its pages have checksums.
fn page_bodies(file: &[u8]) -> Vec<std::ops::Range<usize>> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::copy_from_slice(file)).unwrap();
    let mut bodies = Vec::new();
    for column in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        let (start, length) = column.byte_range();
        // A chunk ends with the body of its last page, which has at least 16 bytes in every column of this file.
        bodies.push((start + length - 16) as usize..(start + length) as usize);
    }
    bodies
}

/// Tests files made from `good.parquet` by truncation and flipped bits.
fn check_generated(count: usize, seed: u64) {
    let (file, good) = good();
    let bodies = page_bodies(&file);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.parquet");
    for case in 0..count {
        let repro = format!("BOWSTRING_SEED={seed} case {case}");
        let mut random = Random(seed.wrapping_add(case as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        let mut made = file.clone();
        let mut in_body = false;
        let truncated = case % 3 == 0;
        if truncated {
            made.truncate(random.index(file.len()));
        } else if case % 3 == 1 {
            let body = bodies[random.index(bodies.len())].clone();
            made[body.start + random.index(body.len())] ^= 1 << random.index(8);
            in_body = true;
        } else {
            for _ in 0..=random.index(4) {
                made[random.index(file.len())] ^= 1 << random.index(8);
            }
        }
        fs::write(&path, &made).unwrap();
        match read(&path) {
            Err(error) => assert!(is_typed(&error), "{repro}: {}", error.chain()),
            Ok(groups) => {
                assert!(!truncated, "{repro}: a truncated file was read");
                let mut errors = 0;
                for (number, group) in groups.into_iter().enumerate() {
                    match group {
                        Err(error) => {
                            assert!(is_typed(&error), "{repro}: {}", error.chain());
                            errors += 1;
                        }
                        Ok(group) if in_body => assert_eq!(rows(&group), good[number], "{repro}: wrong data"),
                        Ok(_) => {}
                    }
                }
                assert!(!in_body || errors == 1, "{repro}: {errors} row groups were refused, one is damaged");
            }
        }
    }
}

/// Appends a thrift number: zigzag, then seven bits a byte.
fn varint(value: i64, bytes: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// Makes a file of one int64 column whose only page has the requested header. The footer agrees with `values`.
fn crafted(kind: i64, uncompressed: i64, compressed: i64, values: i64, body: &[u8], codec: Compression) -> Vec<u8> {
    let mut header = Vec::new();
    for value in [kind, uncompressed, compressed] {
        header.push(0x15);
        varint(value, &mut header);
    }
    // The inner header is field 5, 7 or 8 of the page header.
    header.push(match kind {
        0 => 0x2c,
        2 => 0x4c,
        _ => 0x5c,
    });
    header.push(0x15);
    varint(values, &mut header);
    match kind {
        0 => header.extend([0x15, 0, 0x15, 6, 0x15, 6]),
        2 => header.extend([0x15, 0]),
        _ => {
            header.extend([0x15, 0, 0x15]);
            varint(values, &mut header);
            header.extend([0x15, 0, 0x15, 0, 0x15, 0]);
        }
    }
    header.extend([0, 0]);
    let template = template();
    let data = [b"PAR1", header.as_slice(), body].concat();
    let group = template.row_group(0).clone().into_builder().set_num_rows(values.clamp(0, i64::from(i32::MAX)));
    let column = template.row_group(0).column(0).clone().into_builder();
    let column = column
        .set_compression(codec)
        .set_num_values(values.clamp(0, i64::from(i32::MAX)))
        .set_data_page_offset(4)
        .set_dictionary_page_offset(None)
        .set_total_compressed_size(data.len() as i64 - 4)
        .set_total_uncompressed_size(uncompressed.max(0))
        .clear_statistics()
        .build()
        .unwrap();
    let group = group.set_column_metadata(vec![column]).build().unwrap();
    let file = template.file_metadata();
    let file = parquet::file::metadata::FileMetaData::new(
        file.version(),
        group.num_rows(),
        None,
        None,
        file.schema_descr_ptr(),
        None,
    );
    let mut out = data;
    let metadata = ParquetMetaData::new(file, vec![group]);
    ParquetMetaDataWriter::new(&mut out, &metadata).finish().unwrap();
    out
}

/// Returns the footer of a small file with one required int64 column.
fn template() -> ParquetMetaData {
    let schema = arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
        "v",
        arrow::datatypes::DataType::Int64,
        false,
    )]);
    let batch = RecordBatch::try_new(schema.into(), vec![std::sync::Arc::new(arrow::array::Int64Array::from(vec![1]))])
        .unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(file)).unwrap()
}

/// Tests pages that state absurd sizes and counts, in every codec. All of them lie, so all must be refused.
fn check_absurd_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.parquet");
    let body = [7_u8; 40];
    let length = body.len() as i64;
    let max = i64::from(i32::MAX);
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::ZSTD(parquet::basic::ZstdLevel::default()),
        Compression::GZIP(parquet::basic::GzipLevel::default()),
        Compression::BROTLI(parquet::basic::BrotliLevel::default()),
    ];
    let lies = [
        (0, max, length, 5),
        (0, 1 << 30, length, 5),
        (0, 255 << 20, length, 5),
        (0, -1, length, 5),
        (0, 40, max, 5),
        (0, 40, -1, 5),
        (0, 40, length, max),
        (0, 40, length, 60_000_000),
        (0, 40, length, 250_000_000),
        (0, 40, length, -1),
        (0, max, length, max),
        (2, 40, length, max),
        (3, max, length, 5),
        (3, 40, length, max),
        (9, 40, length, 5),
    ];
    for codec in codecs {
        for (kind, uncompressed, compressed, values) in lies {
            let what = format!("{codec}, page of kind {kind}, sizes {uncompressed} and {compressed}, {values} values");
            fs::write(&path, crafted(kind, uncompressed, compressed, values, &body, codec)).unwrap();
            let error = match read(&path) {
                Err(error) => error,
                Ok(groups) => match groups.into_iter().next() {
                    Some(Err(error)) => error,
                    // A footer without rows leaves nothing to read.
                    None => continue,
                    Some(Ok(_)) => panic!("{what}: was read"),
                },
            };
            assert!(is_typed(&error), "{what}: {}", error.chain());
        }
    }
    // The generator itself makes valid files: 5 values in 40 bytes.
    fs::write(&path, crafted(0, 40, 40, 5, &body, Compression::UNCOMPRESSED)).unwrap();
    let batch = read(&path).unwrap().remove(0).unwrap();
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().values(), &[i64::from_le_bytes([7; 8]); 5]);
}

fn seed() -> u64 {
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
    std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(fresh)
}

/// Runs everything above in a process limited to 2 GiB of addresses: an allocation sized by a number in a file would abort it.
#[test]
fn no_file_takes_more_than_two_gibibytes() {
    let seed = seed();
    let output = child::limited("corrupt::in_a_small_process", "-v 2097152")
        .env("BOWSTRING_SEED", seed.to_string())
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "again: BOWSTRING_SEED={seed} cargo test --test it corrupt::; {}:\n{said}",
        output.status
    );
    assert!(said.contains("1 passed"), "the child ran nothing:\n{said}");
}

pub(crate) fn in_a_small_process() {
    every_broken_fixture_is_an_error_with_its_place();
    check_absurd_pages();
    let soak = std::env::var_os("BOWSTRING_SOAK").is_some_and(|value| value == "1");
    check_generated(if soak { 1000 } else { 100 }, seed());
}

#[test]
fn a_broken_file_in_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in [("good", "a"), ("truncated_tail", "b"), ("good", "c")] {
        fs::copy(format!("fixtures/corrupt/{from}.parquet"), folder.path().join(format!("{to}.parquet"))).unwrap();
    }
    let error = open(&[folder.path().to_str().unwrap()], OpenOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("file b.parquet: not a Parquet file"), "{error}");
}
