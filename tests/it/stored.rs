//! Arrays in cells, through the whole loader: shapes, nulls, bad cells, and the order of a shuffled plan.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use bowstring::codec::npy::{Npy, write_npy, write_npz};
use bowstring::codec::{BadRows, Nulls};
use bowstring::dataset::filter::Filter;
use bowstring::dataset::{DatasetWriter, Ngram, WriterOptions};
use bowstring::pipeline::LoaderOptions;
use bowstring::schema::{Codec, DType, Element, Stored};
use bowstring::tensor::Batch;
use bowstring::{Error, Loader};

/// The array of row `id`: `[id % 4, 2, id % 3]`, all elements `id`.
fn shape(id: i64) -> [usize; 3] {
    [(id % 4) as usize, 2, (id % 3) as usize]
}

fn cell(id: i64, zipped: bool) -> Vec<u8> {
    let elements = vec![id as i16; shape(id).iter().product()];
    let mut cell = Vec::new();
    let write = if zipped { write_npz } else { write_npy };
    write(&Npy::number(DType::Int16), &shape(id), bytemuck::cast_slice(&elements), &mut cell).unwrap();
    cell
}

/// A dataset of `rows` rows in row groups of 16: `id`, `any` (npy, two axes vary), `list` (npz of `[id % 5, 2]`), `fixed`.
/// Rows in `bad` have damaged cells of `any`, those in `null` have none.
fn write(path: &Path, rows: i64, bad: &[i64], null: &[i64]) {
    let stored = |codec, shape: &[Option<usize>]| {
        let stored = Stored { codec, element: Element::Number(DType::Int16), shape: shape.to_vec() };
        [stored.metadata()].into_iter().collect::<std::collections::HashMap<_, _>>()
    };
    let binary = |name: &str| Field::new(name, DataType::Binary, true);
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        binary("any").with_metadata(stored(Codec::Npy, &[None, Some(2), None])),
        binary("list").with_metadata(stored(Codec::Npz, &[None, Some(2)])),
        binary("fixed").with_metadata(stored(Codec::Npy, &[Some(3)])),
    ]));
    let of = |make: &dyn Fn(i64) -> Option<Vec<u8>>| Arc::new((0..rows).map(make).collect::<BinaryArray>()) as ArrayRef;
    let array = |shape: &[usize], id: i64, write: fn(&Npy, &[usize], &[u8], &mut Vec<u8>) -> _| {
        let elements = vec![id as i16; shape.iter().product()];
        let mut cell = Vec::new();
        let written: Result<(), Error> =
            write(&Npy::number(DType::Int16), shape, bytemuck::cast_slice(&elements), &mut cell);
        written.unwrap();
        Some(cell)
    };
    let any = of(&|id| match () {
        () if null.contains(&id) => None,
        () if bad.contains(&id) => Some(cell(id, false)[..20].to_vec()),
        () => Some(cell(id, false)),
    });
    let list = of(&|id| array(&[(id % 5) as usize, 2], id, write_npz));
    let fixed = of(&|id| array(&[3], id, write_npy));
    let ids = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![ids, any, list, fixed]).unwrap();
    let options = WriterOptions { rows_per_group: 16, ..WriterOptions::default() };
    let mut writer = DatasetWriter::create(path, schema, options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

fn options(path: &Path, batch: u64, shuffle: bool) -> LoaderOptions {
    LoaderOptions {
        shuffle,
        seed: 7,
        threads: Some(2),
        rank: Some(0),
        world_size: Some(1),
        tail: Some(bowstring::plan::Tail::Pad),
        ..LoaderOptions::new(path.to_str().unwrap(), batch)
    }
}

fn batches(options: LoaderOptions) -> bowstring::Result<Vec<Batch>> {
    let mut loader = Loader::open(options)?;
    loader.iter().collect()
}

fn ints<T: bytemuck::Pod>(batch: &Batch, name: &str) -> Vec<T> {
    batch.tensor(name).unwrap_or_else(|| panic!("no {name}")).as_slice::<T>().unwrap().to_vec()
}

/// Checks all of `batch` but rows whose id is in `zero`, whose `any` is empty; the ids of its real rows.
fn check(batch: &Batch, zero: &[i64]) -> Vec<i64> {
    let (ids, mask) = (ints::<i64>(batch, "id"), ints::<u8>(batch, "_mask"));
    let (offsets, shapes) = (ints::<i64>(batch, "any__offsets"), ints::<i64>(batch, "any__shape"));
    let (values, fixed) = (ints::<i16>(batch, "any__values"), ints::<i16>(batch, "fixed"));
    let (list, starts) = (ints::<i16>(batch, "list__values"), ints::<i64>(batch, "list__offsets"));
    assert_eq!(batch.tensor("list__values").unwrap().shape()[1..], [2]);
    assert_eq!(batch.tensor("any__shape").unwrap().shape(), [batch.rows, 3]);
    assert_eq!((offsets.len(), *offsets.last().unwrap()), (batch.rows + 1, values.len() as i64));
    let mut real = Vec::new();
    for row in (0..batch.rows).filter(|row| mask[*row] == 1) {
        let id = ids[row];
        let any = &values[offsets[row] as usize..offsets[row + 1] as usize];
        let wanted = if zero.contains(&id) { [0; 3] } else { shape(id).map(|axis| axis as i64) };
        assert_eq!(shapes[row * 3..row * 3 + 3], wanted, "row {id}");
        assert_eq!(any, vec![id as i16; wanted.iter().product::<i64>() as usize], "row {id}");
        let list = &list[starts[row] as usize * 2..starts[row + 1] as usize * 2];
        assert_eq!(list, vec![id as i16; (id % 5) as usize * 2], "row {id}");
        assert_eq!(fixed[row * 3..row * 3 + 3], [id as i16; 3], "row {id}");
        real.push(id);
    }
    real
}

#[test]
fn arrays_of_any_shape_come_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    write(&path, 100, &[], &[]);
    for (batch, shuffle) in [(7, false), (32, true), (100, true)] {
        let mut ids: Vec<i64> =
            batches(options(&path, batch, shuffle)).unwrap().iter().flat_map(|batch| check(batch, &[])).collect();
        assert_eq!(ids.is_sorted(), !shuffle);
        ids.sort_unstable();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn bad_cells_are_named_zero_or_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let bad = [3, 17, 18, 63];
    write(&path, 64, &bad, &[]);
    let with = |bad_rows| LoaderOptions { bad_rows, ..options(&path, 10, false) };
    let error = batches(with(BadRows::Error)).unwrap_err().to_string();
    for part in ["any", "row 3", "row group 0"] {
        assert!(error.contains(part), "{error}");
    }
    let zero: Vec<i64> = batches(with(BadRows::Zero)).unwrap().iter().flat_map(|batch| check(batch, &bad)).collect();
    assert_eq!(zero, (0..64).collect::<Vec<_>>());
    for shuffle in [false, true] {
        let options = LoaderOptions { bad_rows: BadRows::Skip, ..options(&path, 10, shuffle) };
        let mut loader = Loader::open(options).unwrap();
        let made: Vec<Batch> = loader.iter().collect::<Result<_, _>>().unwrap();
        let mut ids: Vec<i64> = made.iter().flat_map(|batch| check(batch, &[])).collect();
        assert_eq!(ids.len(), 64);
        ids.sort_unstable();
        // The next good row of the same row group stands in, so 4, 19 (twice) and 48, the first of the last row group.
        let mut expected: Vec<i64> = (0..64).filter(|id| !bad.contains(id)).chain([4, 19, 19, 48]).collect();
        expected.sort_unstable();
        assert_eq!(ids, expected);
        assert_eq!(loader.ledger().entries.len(), 4);
    }
}

#[test]
fn missing_arrays_follow_the_null_policy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    write(&path, 40, &[], &[0, 20, 39]);
    assert!(batches(options(&path, 8, false)).unwrap_err().to_string().contains("null"));
    let mut masked = options(&path, 8, false);
    masked.columns.nulls = Nulls::Mask.into();
    let mut valid = Vec::new();
    for batch in batches(masked).unwrap() {
        check(&batch, &[0, 20, 39]);
        valid.extend(ints::<u8>(&batch, "any__valid"));
    }
    assert_eq!(valid.iter().enumerate().filter(|(_, v)| **v == 0).map(|(at, _)| at).collect::<Vec<_>>(), [0, 20, 39]);
}

#[test]
fn another_shape_or_type_than_declared_is_a_bad_row() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    write(&path, 16, &[], &[]);
    // The same files, declared as something else.
    let stored = Stored { codec: Codec::Npy, element: Element::Number(DType::Int32), shape: vec![Some(3)] };
    let schema = Arc::new(Schema::new(vec![
        Field::new("fixed", DataType::Binary, true).with_metadata(std::collections::HashMap::from([stored.metadata()])),
    ]));
    let fixed: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&cell(4, false)]));
    let mut writer = DatasetWriter::create(&directory.path().join("e"), schema, WriterOptions::default()).unwrap();
    writer.write(&RecordBatch::try_from_iter_with_nullable([("fixed", fixed, true)]).unwrap()).unwrap();
    writer.finish().unwrap();
    let error = batches(options(&directory.path().join("e"), 4, false)).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { .. }) && error.to_string().contains("int32"), "{error}");
}

#[test]
fn lists_overlap_and_hashes_split() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    let lists = (0..30).map(|id| (id % 7 != 0).then(|| (0..id % 4).map(|n| Some(n + id)).collect::<Vec<_>>()));
    let tags = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let names: StringArray = (0..30).map(|id| Some(format!("user {id}"))).collect();
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(0..30)) as ArrayRef, false),
        ("tags", Arc::new(tags) as ArrayRef, true),
        ("name", Arc::new(names) as ArrayRef, false),
    ])
    .unwrap();
    let mut writer = DatasetWriter::create(&path, batch.schema(), WriterOptions::default()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let select = |filter: &str| {
        let mut options = options(&path, 30, false);
        options.columns.columns = vec!["id".to_owned()];
        options.filter = Some(Filter::Text(filter.to_owned()));
        let batch = batches(options)?.remove(0);
        let mask = ints::<u8>(&batch, "_mask");
        Ok::<_, Error>(
            ints::<i64>(&batch, "id")
                .into_iter()
                .zip(mask)
                .filter(|(_, m)| *m == 1)
                .map(|(id, _)| id)
                .collect::<Vec<_>>(),
        )
    };
    let has = |id: i64, tag: i64| id % 7 != 0 && (0..id % 4).any(|n| n + id == tag);
    let expected: Vec<i64> = (0..30).filter(|id| has(*id, 11) || has(*id, 19)).collect();
    assert!(!expected.is_empty());
    assert_eq!(select("tags overlaps (11, 19)").unwrap(), expected);
    let not: Vec<i64> = (0..30).filter(|id| id % 7 != 0 && !expected.contains(id)).collect();
    assert_eq!(select("not tags overlaps (11, 19)").unwrap(), not, "null lists are unknown");
    assert!(select("id overlaps (1)").unwrap_err().to_string().contains("'in'"));
    for column in ["name", "id"] {
        let parts: Vec<Vec<i64>> = [(0.0, 0.25), (0.25, 1.0)]
            .iter()
            .map(|(low, high)| select(&format!("split({column}, {low:?}, {high:?})")).unwrap())
            .collect();
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, (0..30).collect::<Vec<_>>());
        assert!(!parts[0].is_empty() && parts[0].len() < parts[1].len(), "{parts:?}");
    }
    assert!(select("split(tags, 0, 1)").is_err());
    assert!(select("split(id, 0.5, 0.2)").is_err());
}

#[test]
fn windows_hold_arrays_of_any_shape() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    write(&path, 40, &[], &[]);
    let ngram = Ngram {
        fields: (0..3).map(|offset| (offset, vec!["id".to_owned(), "any".to_owned(), "fixed".to_owned()])).collect(),
        timestamp_field: "id".to_owned(),
        delta_threshold: 1.0,
        timestamp_overlap: false,
    };
    let mut starts = Vec::new();
    let ngram = Some(ngram);
    for batch in batches(LoaderOptions { ngram: ngram.clone(), ..options(&path, 4, true) }).unwrap() {
        let (ids, mask) = (ints::<i64>(&batch, "id"), ints::<u8>(&batch, "_mask"));
        let (offsets, values) = (ints::<i64>(&batch, "any__offsets"), ints::<i16>(&batch, "any__values"));
        assert_eq!(batch.tensor("fixed").unwrap().shape(), [3, 4, 3]);
        assert_eq!(batch.tensor("any__shape").unwrap().shape(), [3, 4, 3]);
        assert_eq!(offsets.len(), 3 * 4 + 1);
        for window in (0..4).filter(|window| mask[*window] == 1) {
            for frame in 0..3 {
                let at = frame * 4 + window;
                assert_eq!(ids[at], ids[window] + frame as i64);
                let any = &values[offsets[at] as usize..offsets[at + 1] as usize];
                assert_eq!(any, vec![ids[at] as i16; shape(ids[at]).iter().product()]);
            }
            starts.push(ids[window]);
        }
    }
    starts.sort_unstable();
    // Row groups of 16, 16 and 8 rows: windows do not cross them.
    let expected: Vec<i64> = (0..5).map(|n| n * 3).chain((0..5).map(|n| 16 + n * 3)).chain([32, 35]).collect();
    assert_eq!(starts, expected);
    let error =
        Loader::open(LoaderOptions { ngram: ngram.clone(), bad_rows: BadRows::Skip, ..options(&path, 4, true) });
    assert!(error.unwrap_err().to_string().contains("window"));
}

#[test]
fn claims_beyond_the_budget_are_refused_before_there_is_memory_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d");
    // PNG headers of 10,000 x 10,000 pixels, 45 bytes each.
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    png.extend([10_000_u32.to_be_bytes(), 10_000_u32.to_be_bytes()].concat());
    png.extend([8, 0, 0, 0, 0]);
    let crc = crc32fast::hash(&png[12..]);
    png.extend(crc.to_be_bytes());
    png.extend(b"\0\0\0\0IEND\xae\x42\x60\x82");
    let stored = Stored { codec: Codec::Png, element: Element::Number(DType::Uint8), shape: vec![None, None] };
    let metadata = std::collections::HashMap::from([stored.metadata()]);
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Binary, false).with_metadata(metadata)]));
    let cells: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&png; 400]));
    let mut writer = DatasetWriter::create(&path, Arc::clone(&schema), WriterOptions::default()).unwrap();
    writer.write(&RecordBatch::try_new(schema, vec![cells]).unwrap()).unwrap();
    writer.finish().unwrap();
    let error = batches(LoaderOptions { memory_budget: Some(256 << 20), ..options(&path, 400, false) }).unwrap_err();
    assert!(matches!(error, Error::Limit { asked, .. } if asked > 400 * 100_000_000), "{error}");
}
