use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Int32Array, LargeListArray, ListArray, RecordBatch,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema};
use bowstring::Error;
use bowstring::codec::{Lengths, Lists, Nulls, Padded, Scalar, Truncate};
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

use crate::support::options;

/// Values in a list: 640 bytes.
const WIDE: usize = 160;

/// Plain pages of a few rows, which end at any row.
fn small() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_dictionary_enabled(false).set_data_page_size_limit(3000).set_write_batch_size(7)
}

fn plain() -> WriterProperties {
    small().build()
}

fn packed() -> WriterProperties {
    small().set_compression(Compression::ZSTD(ZstdLevel::default())).build()
}

fn write(path: &Path, column: ArrayRef, properties: WriterProperties) {
    let schema = Schema::new(vec![Field::new("v", column.data_type().clone(), true)]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Writes `rows` lists of `WIDE` numbers, list `row` being `first + row`, `first + row + 0.25`, ...; every 50th is null if `nulls`.
fn wide(path: &Path, first: usize, rows: usize, properties: WriterProperties, nulls: bool) {
    let values = (first..first + rows).flat_map(|row| (0..WIDE).map(move |at| row as f32 + at as f32 / 4.0));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let null = NullBuffer::from_iter((0..rows).map(|row| row % 50 != 0));
    let values = Arc::new(Float32Array::from_iter_values(values));
    let lists = FixedSizeListArray::try_new(Arc::clone(&item), WIDE as i32, values, nulls.then_some(null)).unwrap();
    write(path, Arc::new(lists), properties);
}

#[test]
fn wide_rows_left_in_their_pages_equal_decoded_ones() {
    let directory = tempfile::tempdir().unwrap();
    // Pages in place, decompressed pages, a dictionary, and filled nulls: all in one order, with row groups of each kind in a step.
    wide(&directory.path().join("a.parquet"), 0, 301, plain(), false);
    wide(&directory.path().join("b.parquet"), 301, 200, packed(), false);
    wide(&directory.path().join("c.parquet"), 501, 99, WriterProperties::builder().build(), false);
    wide(&directory.path().join("d.parquet"), 600, 250, plain(), true);
    for shuffle in [true, false] {
        let mut options = LoaderOptions { shuffle, ..options(directory.path(), 37, 0, 1) };
        options.columns.row_id = true;
        options.columns.nulls.0.insert("v".to_owned(), Nulls::Fill(Scalar::Int(-1)));
        let (mut seen, mut loader) = (Vec::new(), Loader::open(options).unwrap());
        for batch in loader.iter() {
            let batch = batch.unwrap();
            let ids = batch.tensor("_row_id").unwrap().as_slice::<i64>().unwrap();
            let mask = batch.tensor("_mask").unwrap().bytes();
            let values = batch.tensor("v").unwrap().as_slice::<f32>().unwrap();
            for ((id, real), values) in ids.iter().zip(mask).zip(values.chunks_exact(WIDE)) {
                let null = *id >= 600 && (id - 600) % 50 == 0;
                let value = |at: usize| if null { -1.0 } else { *id as f32 + at as f32 / 4.0 };
                let expected = (0..WIDE).map(|at| if *real == 1 { value(at) } else { 0.0 });
                assert!(values.iter().copied().eq(expected), "row {id}, shuffle {shuffle}");
                seen.extend((*real == 1).then_some(*id));
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..850).collect::<Vec<_>>(), "shuffle {shuffle}");
    }
}

/// Returns the bytes of a file's values that a loader prepares for its batches: values that stay in place do not count.
fn prepared(column: ArrayRef, properties: WriterProperties) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("a.parquet"), column, properties);
    let mut loader = Loader::open(options(directory.path(), 37, 0, 1)).unwrap();
    for batch in loader.iter() {
        batch.unwrap();
    }
    loader.stats().decode.bytes
}

#[test]
fn rows_of_uncompressed_pages_are_left_where_they_were_read_to() {
    let bytes = 4 * 300 * WIDE as u64;
    let large = || WriterProperties::builder().set_dictionary_enabled(false).set_write_batch_size(64);
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for list in [lists(0, 300, false, |_| WIDE), lists(0, 300, true, |_| WIDE)] {
        assert_eq!(prepared(Arc::clone(&list), large().build()), 0);
        assert_eq!(prepared(Arc::clone(&list), plain()), 0, "pages end where rows do");
        let packed = prepared(Arc::clone(&list), large().set_compression(zstd).build());
        assert!((bytes..bytes * 5 / 4).contains(&packed), "{packed} bytes of pages, with their levels");
        // Random pages are stored uncompressed.
        let version = large().set_writer_version(WriterVersion::PARQUET_2_0).set_compression(zstd).build();
        assert!((bytes..bytes * 5 / 4).contains(&prepared(list, version)));
    }
    let uneven = prepared(lists(0, 300, false, |row| WIDE - row % 2), large().build());
    assert!(uneven >= bytes * 9 / 10, "{uneven} bytes");
}

#[test]
fn a_budget_that_is_accepted_suffices_where_rows_are_left_among_other_columns() {
    let rows = 4000;
    let list = lists(0, rows, false, |_| 100);
    let number: ArrayRef = Arc::new(Float32Array::from_iter_values((0..rows).map(|row| row as f32)));
    let mut columns = vec![("v".to_owned(), list)];
    columns.extend((0..300).map(|at| (format!("c{at}"), Arc::clone(&number))));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let properties =
        WriterProperties::builder().set_dictionary_enabled(false).set_max_row_group_row_count(Some(500)).build();
    let file = File::create(directory.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    for shuffle in [true, false] {
        let with = |memory_budget| LoaderOptions {
            shuffle,
            memory_budget: Some(memory_budget),
            ..options(directory.path(), 37, 0, 1)
        };
        let Err(Error::Limit { asked, .. }) = Loader::open(with(1)) else { panic!("a budget of one byte") };
        let mut loader = Loader::open(with(asked)).unwrap();
        let found: usize = loader.iter().map(|batch| batch.unwrap().rows).sum();
        assert!(found >= rows, "{found} rows");
    }
}

/// Makes lists `first..first + rows`, list `row` of `length(row)` numbers `1000 * row`, `1000 * row + 1`, ...
fn lists(first: usize, rows: usize, large: bool, length: impl Fn(usize) -> usize) -> ArrayRef {
    let all = first..first + rows;
    let values = all.clone().flat_map(|row| (0..length(row)).map(move |at| (1000 * row + at) as i32));
    let (item, values) =
        (Arc::new(Field::new("item", DataType::Int32, true)), Arc::new(Int32Array::from_iter_values(values)));
    let lengths = all.map(length);
    if large {
        return Arc::new(LargeListArray::new(item, OffsetBuffer::from_lengths(lengths), values, None));
    }
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, None))
}

/// Returns the rows' lists as a loader delivers them, of all rows together.
fn delivered(directory: &Path, shuffle: bool, of: &Lists) -> Vec<Vec<i32>> {
    let mut options = LoaderOptions { shuffle, ..options(directory, 37, 0, 1) };
    options.columns.row_id = true;
    options.columns.lists.0.insert("v".to_owned(), of.clone());
    let (mut found, mut loader) = (vec![None; ROWS], Loader::open(options).unwrap());
    for batch in loader.iter() {
        let batch = batch.unwrap();
        let ids = batch.tensor("_row_id").unwrap().as_slice::<i64>().unwrap();
        let mask = batch.tensor("_mask").unwrap().bytes();
        for (at, id) in ids.iter().enumerate().filter(|(at, _)| mask[*at] == 1) {
            let values = match of {
                Lists::Padded(padded) => {
                    let values = batch.tensor("v").unwrap().as_slice::<i32>().unwrap();
                    let Lengths::One(width) = padded.length else { panic!("one length") };
                    let kept = batch.tensor("v__lengths").unwrap().as_slice::<i64>().unwrap()[at] as usize;
                    let row = &values[at * width..(at + 1) * width];
                    let (real, padding) = if padded.left {
                        let (padding, real) = row.split_at(width - kept);
                        (real, padding)
                    } else {
                        row.split_at(kept)
                    };
                    assert!(padding.iter().all(|value| *value == -1), "padding of row {id}");
                    real
                }
                Lists::Ragged | Lists::Cut(_) => {
                    let offsets = batch.tensor("v__offsets").unwrap().as_slice::<i64>().unwrap();
                    let values = batch.tensor("v__values").unwrap().as_slice::<i32>().unwrap();
                    &values[offsets[at] as usize..offsets[at + 1] as usize]
                }
                Lists::Vector(_) | Lists::Csr => panic!("no vectors"),
            };
            assert!(found[*id as usize].replace(values.to_vec()).is_none(), "row {id} twice");
        }
    }
    found
        .into_iter()
        .enumerate()
        .map(|(row, values)| values.unwrap_or_else(|| panic!("row {row} is missing")))
        .collect()
}

const ROWS: usize = 900;

#[test]
fn lists_of_one_length_left_in_their_pages_equal_decoded_ones() {
    // In this order one step has lists in place, decompressed, of another length, from a dictionary, of many lengths, and few numbers.
    let length = |row: usize| match row {
        0..501 => WIDE,
        501..600 => WIDE + 9,
        600..700 => WIDE,
        700..800 => 1 + row % 200,
        _ => 3,
    };
    for large in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, first: usize, rows: usize, properties: WriterProperties| {
            write(&directory.path().join(name), lists(first, rows, large, length), properties);
        };
        file("a.parquet", 0, 301, plain());
        file("b.parquet", 301, 200, packed());
        file("c.parquet", 501, 99, plain());
        file("d.parquet", 600, 100, WriterProperties::builder().build());
        file("e.parquet", 700, 100, plain());
        file("f.parquet", 800, 100, plain());
        let padded =
            |length, truncate, left| Padded { length: Lengths::One(length), fill: Scalar::Int(-1), truncate, left };
        let (right, left) = (Truncate::Right, Truncate::Left);
        for of in [
            Lists::Ragged,
            Lists::Padded(padded(220, Truncate::Error, false)),
            Lists::Padded(padded(220, Truncate::Error, true)),
            Lists::Padded(padded(161, right, false)),
            Lists::Padded(padded(100, left, true)),
            Lists::Cut(padded(161, left, false)),
            Lists::Cut(padded(100, right, false)),
        ] {
            for shuffle in [true, false] {
                for (row, found) in delivered(directory.path(), shuffle, &of).iter().enumerate() {
                    let all: Vec<i32> = (0..length(row)).map(|at| (1000 * row + at) as i32).collect();
                    let expected = match &of {
                        Lists::Padded(Padded { length: Lengths::One(most), truncate, .. })
                        | Lists::Cut(Padded { length: Lengths::One(most), truncate, .. }) => match truncate {
                            Truncate::Left => &all[all.len().saturating_sub(*most)..],
                            _ => &all[..all.len().min(*most)],
                        },
                        _ => &all[..],
                    };
                    assert!(found == expected, "row {row}, {of:?}, shuffle {shuffle}, large {large}");
                }
            }
        }
        let strict = Lists::Padded(padded(165, Truncate::Error, false));
        let mut options = options(directory.path(), 37, 0, 1);
        options.columns.lists.0.insert("v".to_owned(), strict);
        let error = Loader::open(options).unwrap().iter().find_map(Result::err).map(|error| error.to_string());
        assert!(
            error.as_deref().is_some_and(|error| error.contains("longer than the length 165 in lists")),
            "{error:?}"
        );
    }
}
