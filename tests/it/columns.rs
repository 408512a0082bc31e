//! Columns: every type of `docs/types.md` with exact values, null policies, lists, packs, bad rows, and random schemas
//! against a naive gather.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Date64Array, Decimal32Array,
    Decimal64Array, Decimal128Array, Decimal256Array, DictionaryArray, DurationMillisecondArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float16Array, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    IntervalDayTimeArray, IntervalYearMonthArray, LargeBinaryArray, LargeListArray, LargeStringArray, ListArray,
    ListViewArray, MapArray, NullArray, RunArray, StringArray, StringViewArray, StructArray, Time32MillisecondArray,
    Time32SecondArray, Time64MicrosecondArray, Time64NanosecondArray, TimestampMicrosecondArray,
    TimestampNanosecondArray, TimestampSecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, IntervalDayTime, Schema, SchemaRef, UInt8Type, i256};
use bowstring::codec::{BadRow, BadRows, ColumnOptions, Columns, RowGroupBlock, Rows};
use bowstring::memory::{Pool, SystemAllocator};
use bowstring::tensor::Batch;
use bowstring::{Error, Place, Result};
use half::f16;

// ---- helpers --------------------------------------------------------------------------------------------------------

fn options(json: &str) -> ColumnOptions {
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn field_of(name: &str, array: &ArrayRef) -> Field {
    Field::new(name, array.data_type().clone(), true)
}

/// Returns the schema of one row group of columns.
fn schema_of(columns: &[(&str, ArrayRef)]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|(name, array)| field_of(name, array)).collect::<Vec<_>>()))
}

fn cells_of(columns: &Columns, schema: &SchemaRef, group: usize, arrays: &[ArrayRef]) -> Result<Arc<RowGroupBlock>> {
    let place = Place::file("f.parquet").row_group(group);
    let read: Vec<&str> = columns.paths().iter().map(|path| path.split('.').next().unwrap()).collect();
    let wanted = schema.fields().iter().zip(arrays).filter(|(field, _)| read.contains(&field.name().as_str()));
    let prepared = wanted.enumerate().map(|(root, (_, array))| columns.prepare(root, Arc::clone(array), &place));
    Ok(Arc::new(columns.cells(prepared.collect::<Result<Vec<_>>>()?, place)?))
}

struct Request<'a> {
    rows: &'a [(u32, u32)],
    size: usize,
    masked: bool,
    bad_rows: BadRows,
}

fn assemble(columns: &Columns, cells: &[Arc<RowGroupBlock>], request: &Request<'_>) -> Result<(Batch, Vec<BadRow>)> {
    let pool = Pool::new(Arc::new(SystemAllocator), 1 << 28);
    let reservation = pool.try_reserve(columns.batch_bytes(request.size, 16).min(1 << 27)).unwrap();
    let rows = Rows {
        epoch: 3,
        step: 7,
        cells,
        rows: request.rows,
        size: request.size,
        masked: request.masked,
        random: &|pick| u64::from(pick.1),
        row_ids: &|pick| 1000 + 100 * u64::from(pick.0) + u64::from(pick.1),
        stored_rows: &|pick| u64::from(pick.1),
        bad_rows: request.bad_rows,
        max_bytes: usize::MAX,
        lent: None,
        images: None,
    };
    columns.assemble(&rows, reservation)
}

/// Returns the rows 0, 1, 2 ... of one row group, as a batch.
fn whole(arrays: &[(&str, ArrayRef)], json: &str) -> Result<Batch> {
    let rows: Vec<(u32, u32)> = (0..arrays[0].1.len() as u32).map(|row| (0, row)).collect();
    picked(arrays, json, &rows, rows.len(), BadRows::Error).map(|(batch, _)| batch)
}

fn picked(
    arrays: &[(&str, ArrayRef)],
    json: &str,
    rows: &[(u32, u32)],
    size: usize,
    bad_rows: BadRows,
) -> Result<(Batch, Vec<BadRow>)> {
    let schema = schema_of(arrays);
    let arrays: Vec<ArrayRef> = arrays.iter().map(|(_, array)| Arc::clone(array)).collect();
    let request = Request { rows, size, masked: false, bad_rows };
    let made = |shuffled: bool| {
        let columns = Columns::new(&schema, &options(json))?.shuffled(shuffled);
        let cells = cells_of(&columns, &schema, 0, &arrays)?;
        assemble(&columns, &[cells], &request)
    };
    let found = made(false);
    // The memory layout of cells does not change the result.
    match (&found, made(true)) {
        (Ok((batch, _)), Ok((other, _))) => {
            for ((name, value), (_, other)) in batch.columns().iter().zip(other.columns()) {
                use bowstring::tensor::Value::{Arrow, Tensor};
                match (value, other) {
                    (Tensor(value), Tensor(other)) => assert!(value.bytes() == other.bytes(), "{name}"),
                    (Arrow(value), Arrow(other)) => assert_eq!(value, other, "{name}"),
                    _ => panic!("{name} is a tensor once, and Arrow once"),
                }
            }
        }
        (Err(error), Err(other)) => assert_eq!(error.to_string(), other.to_string()),
        (_, other) => panic!("side by side it is {other:?}"),
    }
    found
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

#[track_caller]
fn values<T: bytemuck::Pod>(batch: &Batch, name: &str) -> Vec<T> {
    let tensor = batch.tensor(name).unwrap_or_else(|| panic!("no tensor {name} in {:?}", batch.columns()));
    tensor.as_slice::<T>().unwrap_or_else(|| panic!("{name} is {tensor:?}")).to_vec()
}

#[track_caller]
fn shape<'a>(batch: &'a Batch, name: &str) -> &'a [usize] {
    batch.tensor(name).unwrap().shape()
}

#[track_caller]
fn text(batch: &Batch, name: &str) -> Vec<Option<String>> {
    let bowstring::tensor::Value::Arrow(array) = batch.get(name).unwrap() else { panic!("{name} is a tensor") };
    array.as_string::<i64>().iter().map(|value| value.map(str::to_owned)).collect()
}

fn some(values: &[&str]) -> Vec<Option<String>> {
    values.iter().map(|value| Some((*value).to_owned())).collect()
}

fn names(batch: &Batch) -> Vec<String> {
    batch.columns().iter().map(|(name, _)| name.to_string()).collect()
}

fn list(rows: &[&[i64]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.iter().map(|value| Some(*value))));
    array(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

#[test]
fn small_columns_of_many_row_groups_are_the_same_side_by_side() {
    let arrays = |group: usize| -> Vec<(&'static str, ArrayRef)> {
        let rows = 3 + 40 * (group % 3);
        let number = move |row: usize| (group * 1000 + row) as i64;
        let numbers = move || (0..rows).map(number);
        // Some row groups have no nulls.
        let holes = numbers().map(|at| (group.is_multiple_of(2) || at % 3 > 0).then_some(at as i32));
        vec![
            ("byte", array(UInt8Array::from_iter_values(numbers().map(|at| at as u8)))),
            ("half", array(Int16Array::from_iter_values(numbers().map(|at| at as i16)))),
            ("holes", array(Int32Array::from_iter(holes))),
            ("word", array(Float64Array::from_iter_values(numbers().map(|at| at as f64)))),
            (
                "sixteen",
                array(FixedSizeListArray::new(
                    Arc::new(Field::new("item", DataType::Int64, false)),
                    2,
                    array(Int64Array::from_iter_values(numbers().flat_map(|at| [at, -at]))),
                    None,
                )),
            ),
            (
                "wide",
                array(FixedSizeListArray::new(
                    Arc::new(Field::new("item", DataType::Int64, false)),
                    3,
                    array(Int64Array::from_iter_values(numbers().flat_map(|at| [at; 3]))),
                    None,
                )),
            ),
        ]
    };
    let schema = schema_of(&arrays(0));
    let rows: Vec<(u32, u32)> = (0..700_u32).map(|at| (at * 7 % 50, at * 11 % 3)).collect();
    let request = Request { rows: &rows, size: 710, masked: true, bad_rows: BadRows::Error };
    let [apart, together] = [false, true].map(|shuffled| {
        let columns = Columns::new(&schema, &options(r#"{"nulls": "mask"}"#)).unwrap().shuffled(shuffled);
        let arrays = |group| arrays(group).into_iter().map(|(_, array)| array).collect::<Vec<_>>();
        let cells: Vec<_> = (0..50).map(|group| cells_of(&columns, &schema, group, &arrays(group)).unwrap()).collect();
        assemble(&columns, &cells, &request).unwrap().0
    });
    let word: Vec<f64> = rows.iter().map(|(group, row)| f64::from(group * 1000 + row)).chain([0.0; 10]).collect();
    assert_eq!(values::<f64>(&together, "word"), word);
    for name in ["byte", "half", "holes", "holes__valid", "word", "sixteen", "wide", "_mask"] {
        assert_eq!(apart.tensor(name).unwrap().bytes(), together.tensor(name).unwrap().bytes(), "{name}");
    }
}

// ---- the table of types ---------------------------------------------------------------------------------------------

/// Returns the delivered type, as the schema prints it.
fn delivered(array: ArrayRef, json: &str) -> String {
    Columns::new(&schema_of(&[("x", array)]), &options(json)).unwrap().fields().to_string()
}

macro_rules! scalars {
    ($($array:expr => $rust:ty, $shown:literal, $expected:expr;)*) => { $({
        let array = array($array);
        assert_eq!(delivered(Arc::clone(&array), "{}"), $shown);
        let batch = whole(&[("x", array)], "{}").unwrap();
        let expected: Vec<$rust> = $expected.to_vec();
        assert_eq!(values::<$rust>(&batch, "x"), expected, "{}", $shown);
        assert_eq!(shape(&batch, "x"), [expected.len()]);
    })* };
}

#[test]
fn numbers_keep_their_type() {
    scalars! {
        BooleanArray::from(vec![true, false, true]) => u8, "x bool [B]", [1, 0, 1];
        Int8Array::from(vec![-1, 2]) => i8, "x int8 [B]", [-1, 2];
        Int16Array::from(vec![-1, 2]) => i16, "x int16 [B]", [-1, 2];
        Int32Array::from(vec![-1, 2]) => i32, "x int32 [B]", [-1, 2];
        Int64Array::from(vec![i64::MIN, 2]) => i64, "x int64 [B]", [i64::MIN, 2];
        UInt8Array::from(vec![255, 2]) => u8, "x uint8 [B]", [255, 2];
        UInt16Array::from(vec![65535, 2]) => u16, "x uint16 [B]", [65535, 2];
        UInt32Array::from(vec![u32::MAX, 2]) => u32, "x uint32 [B]", [u32::MAX, 2];
        UInt64Array::from(vec![u64::MAX, 2]) => u64, "x uint64 [B]", [u64::MAX, 2];
        Float16Array::from(vec![f16::ONE, f16::NEG_INFINITY]) => f16, "x float16 [B]", [f16::ONE, f16::NEG_INFINITY];
        Float32Array::from(vec![0.5, -1.5]) => f32, "x float32 [B]", [0.5, -1.5];
        Float64Array::from(vec![0.5, -1.5]) => f64, "x float64 [B]", [0.5, -1.5];
    }
}

#[test]
fn decimals_become_float64() {
    scalars! {
        Decimal32Array::from(vec![12345, -5]).with_precision_and_scale(9, 2).unwrap() => f64, "x float64 [B]", [123.45, -0.05];
        Decimal64Array::from(vec![12345, -5]).with_precision_and_scale(18, 2).unwrap() => f64, "x float64 [B]", [123.45, -0.05];
        Decimal128Array::from(vec![12345, -5]).with_precision_and_scale(20, 2).unwrap() => f64, "x float64 [B]", [123.45, -0.05];
        Decimal256Array::from(vec![i256::from(12345), i256::from(-5)]).with_precision_and_scale(50, 2).unwrap()
            => f64, "x float64 [B]", [123.45, -0.05];
    }
}

#[test]
fn decimals_become_integers_exactly() {
    let of = |values: Vec<Option<i128>>, scale| {
        array(Decimal128Array::from(values).with_precision_and_scale(38, scale).unwrap())
    };
    let large = 9_007_199_254_740_993;
    let columns = [("id", of(vec![Some(large), Some(7)], 0)), ("q", of(vec![Some(300), Some(-700)], 2))];
    let batch = whole(&columns, r#"{"cast": {"id": "int64", "q": "int8"}}"#).unwrap();
    assert_eq!((values::<i64>(&batch, "id"), values::<i8>(&batch, "q")), (vec![large as i64, 7], vec![3, -7]));
    let batch = whole(&columns, r#"{"pack": [{"name": "p", "columns": ["id", "q"], "dtype": "int64"}]}"#).unwrap();
    assert_eq!(values::<i64>(&batch, "p"), [large as i64, 3, 7, -7]);
    for (value, ty) in
        [(301, "int64"), (30_000, "int8"), (-100, "uint64"), (i128::from(u64::MAX) * 100 + 100, "uint64")]
    {
        let columns = [("q", of(vec![None, Some(value)], 2))];
        let cast = format!(r#"{{"cast": {{"q": "{ty}"}}, "nulls": {{"fill": 1}}}}"#);
        let error = whole(&columns, &cast).unwrap_err();
        assert!(error.to_string().contains(&format!("column q, row 1: a value does not fit {ty}")), "{error}");
    }
    let batch =
        whole(&[("q", of(vec![None, Some(1)], 0))], r#"{"cast": {"q": "uint64"}, "nulls": {"fill": 5}}"#).unwrap();
    assert_eq!(values::<u64>(&batch, "q"), [5, 1]);
}

#[test]
fn dates_and_times_keep_their_unit() {
    scalars! {
        Date32Array::from(vec![20_000]) => i32, "x int32 [B] (days)", [20_000];
        Date64Array::from(vec![86_400_000]) => i64, "x int64 [B] (ms)", [86_400_000];
        Time32SecondArray::from(vec![7]) => i32, "x int32 [B] (s)", [7];
        Time32MillisecondArray::from(vec![7]) => i32, "x int32 [B] (ms)", [7];
        Time64MicrosecondArray::from(vec![7]) => i64, "x int64 [B] (us)", [7];
        Time64NanosecondArray::from(vec![7]) => i64, "x int64 [B] (ns)", [7];
        TimestampSecondArray::from(vec![7]) => i64, "x int64 [B] (s)", [7];
        TimestampMicrosecondArray::from(vec![-7]).with_timezone("UTC") => i64, "x int64 [B] (us, UTC)", [-7];
        TimestampNanosecondArray::from(vec![7]) => i64, "x int64 [B] (ns)", [7];
        DurationMillisecondArray::from(vec![7]) => i64, "x int64 [B] (ms)", [7];
        IntervalYearMonthArray::from(vec![14]) => i32, "x int32 [B] (months)", [14];
    }
    assert_eq!(delivered(array(Date32Array::from(vec![1])), r#"{"cast": {"x": "float32"}}"#), "x float32 [B]");
}

#[test]
fn types_without_a_tensor_form_are_refused_by_name() {
    let intervals = array(IntervalDayTimeArray::from(vec![IntervalDayTime::new(1, 2)]));
    let nulls = array(NullArray::new(2));
    let empty = array(StructArray::new_empty_fields(2, None));
    for (of, ty) in [(intervals, "Interval"), (nulls, "Null"), (empty, "struct without fields")] {
        let fine = array(Int32Array::from(vec![0; of.len()]));
        let columns = [("fine", fine), ("bad", of)];
        let error = whole(&columns, "{}").unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("bad") && error.to_string().contains(ty), "{error}");
        assert_eq!(names(&whole(&columns, r#"{"exclude": ["bad"]}"#).unwrap()), ["fine"]);
        assert_eq!(names(&whole(&columns, r#"{"columns": ["fine"]}"#).unwrap()), ["fine"]);
    }
}

#[test]
fn a_column_without_a_type_takes_the_given_one() {
    let nulls = [("x", array(NullArray::new(3)))];
    let batch = whole(&nulls, r#"{"cast": {"x": "int16"}, "nulls": {"fill": -2}}"#).unwrap();
    assert_eq!(values::<i16>(&batch, "x"), [-2, -2, -2]);
    let batch = whole(&nulls, r#"{"cast": {"x": "float32"}, "nulls": "mask"}"#).unwrap();
    assert_eq!((values::<f32>(&batch, "x"), values::<u8>(&batch, "x__valid")), (vec![0.0; 3], vec![0; 3]));
}

#[test]
fn fixed_sizes_become_axes() {
    let blobs = array(FixedSizeBinaryArray::try_from_iter([[1u8, 2, 3], [4, 5, 6]].iter()).unwrap());
    assert_eq!(delivered(Arc::clone(&blobs), "{}"), "x uint8 [B, 3]");
    let batch = whole(&[("x", blobs)], "{}").unwrap();
    assert_eq!((values::<u8>(&batch, "x"), shape(&batch, "x")), (vec![1, 2, 3, 4, 5, 6], &[2usize, 3][..]));

    let numbers = |n: usize| array(Float32Array::from((0..n).map(|i| i as f32).collect::<Vec<_>>()));
    let item = |ty: &DataType| Arc::new(Field::new("item", ty.clone(), true));
    let inner = array(FixedSizeListArray::new(item(&DataType::Float32), 3, numbers(12), None));
    let outer = array(FixedSizeListArray::new(item(inner.data_type()), 2, inner, None));
    assert_eq!(delivered(Arc::clone(&outer), "{}"), "x float32 [B, 2, 3]");
    let batch = picked(&[("x", outer)], "{}", &[(0, 1), (0, 0)], 2, BadRows::Error).unwrap().0;
    assert_eq!(shape(&batch, "x"), [2, 2, 3]);
    assert_eq!(values::<f32>(&batch, "x"), [6., 7., 8., 9., 10., 11., 0., 1., 2., 3., 4., 5.]);
}

#[test]
fn small_columns_of_any_width_are_gathered_from_anywhere() {
    let rows = 300;
    let bytes = |width: usize| {
        let values: Vec<u8> = (0..rows * width).map(|at| (at * 7 / 3) as u8).collect();
        array(FixedSizeBinaryArray::try_new_with_len(width as i32, values.into(), None, rows).unwrap())
    };
    // No bytes at all, as wide as a word, as wide as none, and too wide to be stored with others.
    let widths = [0, 1, 2, 4, 8, 16, 3, 17];
    let arrays: Vec<(String, ArrayRef)> = widths.iter().map(|width| (format!("w{width}"), bytes(*width))).collect();
    let arrays: Vec<(&str, ArrayRef)> = arrays.iter().map(|(name, array)| (name.as_str(), Arc::clone(array))).collect();
    let picks: Vec<(u32, u32)> = (0..rows as u32).map(|at| (0, at * 7 % rows as u32)).collect();
    let batch = picked(&arrays, "{}", &picks, rows + 2, BadRows::Error).unwrap().0;
    for ((name, array), width) in arrays.iter().zip(widths) {
        let array = array.as_any().downcast_ref::<FixedSizeBinaryArray>().unwrap();
        let wanted = picks.iter().flat_map(|(_, row)| array.value(*row as usize)).copied();
        let wanted: Vec<u8> = wanted.chain(vec![0; 2 * width]).collect();
        assert_eq!((values::<u8>(&batch, name), shape(&batch, name)), (wanted, &[rows + 2, width][..]), "{name}");
    }
}

#[test]
fn fixed_shape_tensors_have_their_shape() {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let flat = Int32Array::from((0..12).collect::<Vec<_>>());
    let lists = array(FixedSizeListArray::new(item, 6, Arc::new(flat), None));
    let with = |metadata: &str| {
        let extension = [("ARROW:extension:name", "arrow.fixed_shape_tensor"), ("ARROW:extension:metadata", metadata)];
        let metadata: std::collections::HashMap<_, _> =
            extension.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        Arc::new(Schema::new(vec![field_of("x", &lists).with_metadata(metadata)]))
    };
    let schema = with(r#"{"shape": [2, 3], "dim_names": ["h", "w"], "permutation": [0, 1]}"#);
    let columns = Columns::new(&schema, &ColumnOptions::default()).unwrap();
    assert_eq!(columns.fields().to_string(), "x int32 [B, 2, 3]");
    let cells = cells_of(&columns, &schema, 0, &[Arc::clone(&lists)]).unwrap();
    let request = Request { rows: &[(0, 1)], size: 1, masked: false, bad_rows: BadRows::Error };
    let (batch, _) = assemble(&columns, &[cells], &request).unwrap();
    assert_eq!((values::<i32>(&batch, "x"), shape(&batch, "x")), ((6..12).collect(), &[1usize, 2, 3][..]));
    for wrong in [r#"{"shape": [2, 4]}"#, r#"{"shape": [2, 3], "permutation": [1, 0]}"#, "not json"] {
        let error = Columns::new(&with(wrong), &ColumnOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
}

#[test]
fn dictionaries_and_runs_are_decoded() {
    let numbers = DictionaryArray::<Int32Type>::new(
        Int32Array::from(vec![Some(1), Some(0), None, Some(1)]),
        Arc::new(Int64Array::from(vec![70, 80])),
    );
    let batch = whole(&[("x", array(numbers))], r#"{"nulls": {"fill": 5}}"#).unwrap();
    assert_eq!(values::<i64>(&batch, "x"), [80, 70, 5, 80]);
    let words: DictionaryArray<Int32Type> = vec!["b", "a", "b"].into_iter().collect();
    let batch = whole(&[("x", array(words))], "{}").unwrap();
    assert_eq!(text(&batch, "x"), some(&["b", "a", "b"]));
    let runs =
        RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2, 3]), &Float32Array::from(vec![0.5, 1.5])).unwrap();
    let batch = whole(&[("x", array(runs))], "{}").unwrap();
    assert_eq!(values::<f32>(&batch, "x"), [0.5, 0.5, 1.5]);
}

#[test]
fn text_and_binary_stay_arrow() {
    let long = "a text that is longer than twelve bytes";
    for of in [
        array(StringArray::from(vec!["a", "", long])),
        array(LargeStringArray::from(vec!["a", "", long])),
        array(StringViewArray::from(vec!["a", "", long])),
    ] {
        assert_eq!(delivered(Arc::clone(&of), "{}"), "x arrow LargeUtf8 [B]");
        let batch = picked(&[("x", of)], "{}", &[(0, 2), (0, 0), (0, 2)], 4, BadRows::Error).unwrap().0;
        assert_eq!(text(&batch, "x"), some(&[long, "a", long, ""]));
    }
    for of in [
        array(BinaryArray::from(vec![&b"\xff"[..], long.as_bytes()])),
        array(LargeBinaryArray::from(vec![&b"\xff"[..], long.as_bytes()])),
        array(BinaryViewArray::from(vec![&b"\xff"[..], long.as_bytes()])),
    ] {
        assert_eq!(delivered(Arc::clone(&of), "{}"), "x arrow LargeBinary [B]");
        let batch = whole(&[("x", of)], "{}").unwrap();
        let bowstring::tensor::Value::Arrow(found) = batch.get("x").unwrap() else { panic!("a tensor") };
        assert_eq!(found.as_binary::<i64>().iter().flatten().collect::<Vec<_>>(), [&b"\xff"[..], long.as_bytes()]);
        // 41 bytes of values, 3 offsets: nothing of the row group is kept.
        assert!(found.get_buffer_memory_size() < 200, "{}", found.get_buffer_memory_size());
    }
}

// ---- lists ----------------------------------------------------------------------------------------------------------

#[test]
fn lists_are_ragged() {
    for of in [
        list(&[&[1, 2, 3], &[], &[4]]),
        arrow::compute::cast(&list(&[&[1, 2, 3], &[], &[4]]), &DataType::new_large_list(DataType::Int64, true))
            .unwrap(),
        list(&[&[9, 9], &[1, 2, 3], &[], &[4], &[9]]).slice(1, 3),
    ] {
        assert_eq!(delivered(Arc::clone(&of), "{}"), "x int64 [B, ragged]");
        let batch = picked(&[("x", of)], "{}", &[(0, 2), (0, 0), (0, 1), (0, 0)], 5, BadRows::Error).unwrap().0;
        assert_eq!(names(&batch), ["x__values", "x__offsets"]);
        assert_eq!(values::<i64>(&batch, "x__values"), [4, 1, 2, 3, 1, 2, 3]);
        assert_eq!(values::<i64>(&batch, "x__offsets"), [0, 1, 4, 4, 7, 7], "the padding row is empty");
    }
}

#[test]
fn list_views_are_lists() {
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let items = Arc::new(Int64Array::from(vec![1, 2, 3, 4]));
    let (offsets, sizes) = (ScalarBuffer::from(vec![2, 0]), ScalarBuffer::from(vec![2, 3]));
    let of = array(ListViewArray::new(item, offsets, sizes, items, None));
    let batch = whole(&[("x", of)], "{}").unwrap();
    assert_eq!(values::<i64>(&batch, "x__values"), [3, 4, 1, 2, 3]);
    assert_eq!(values::<i64>(&batch, "x__offsets"), [0, 2, 5]);
}

#[test]
fn lists_are_padded() {
    let of = list(&[&[1, 2, 3], &[], &[4]]);
    let rows = [(0, 0), (0, 1), (0, 2)];
    let run = |padding: &str| {
        let json = format!(r#"{{"lists": {{"x": {{"padded": {padding}}}}}}}"#);
        picked(&[("x", Arc::clone(&of))], &json, &rows, 4, BadRows::Error).map(|(batch, _)| {
            assert_eq!(names(&batch), ["x", "x__lengths"]);
            (values::<i64>(&batch, "x"), values::<i64>(&batch, "x__lengths"))
        })
    };
    assert_eq!(
        run(r#"{"length": 4}"#).unwrap(),
        (vec![1, 2, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0], vec![3, 0, 1, 0])
    );
    assert_eq!(
        run(r#"{"length": 2, "fill": -1, "truncate": "right"}"#).unwrap(),
        (vec![1, 2, -1, -1, 4, -1, -1, -1], vec![2, 0, 1, 0])
    );
    assert_eq!(
        run(r#"{"length": 2, "fill": -1, "truncate": "left", "left": true}"#).unwrap(),
        (vec![2, 3, -1, -1, -1, 4, -1, -1], vec![2, 0, 1, 0])
    );
    let error = run(r#"{"length": 2}"#).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("file f.parquet, row group 0, column x, row 0: a list longer than the length 2 in lists"),
        "{text}"
    );
    assert!(text.ends_with("[1, 2, 3]"), "{text}");
    let holes = array(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1), None, Some(3)])]));
    let json = r#"{"lists": {"padded": {"length": 2}}, "nulls": 0}"#;
    let error = picked(&[("x", holes)], json, &[(0, 0)], 1, BadRows::Error).unwrap_err();
    assert!(error.to_string().ends_with("[1, null, 3]"), "{error}");
}

#[test]
fn lists_are_cut_like_padded_ones_into_memory_of_one_size() {
    let of = list(&[&[1, 2, 3], &[], &[4], &[5, 6, 7, 8]]);
    let run = |json: &str, rows: &[(u32, u32)], bad_rows| picked(&[("x", Arc::clone(&of))], json, rows, 5, bad_rows);
    let room = |batch: &Batch| batch.tensor("x__values").unwrap().slab().capacity();
    for (truncate, expected) in [("right", [1, 2, 5, 6, 4]), ("left", [2, 3, 7, 8, 4])] {
        let json = format!(r#"{{"lists": {{"cut": {{"length": 2, "truncate": "{truncate}"}}}}}}"#);
        assert_eq!(delivered(Arc::clone(&of), &json), "x int64 [B, ragged<=2]");
        let batch = run(&json, &[(0, 0), (0, 1), (0, 3), (0, 2)], BadRows::Error).unwrap().0;
        assert_eq!(names(&batch), ["x__values", "x__offsets"]);
        assert_eq!(values::<i64>(&batch, "x__values"), expected);
        assert_eq!(values::<i64>(&batch, "x__offsets"), [0, 2, 2, 4, 5, 5]);
        let empty = run(&json, &[(0, 1)], BadRows::Error).unwrap().0;
        assert_eq!((values::<i64>(&empty, "x__values"), room(&empty)), (vec![], room(&batch)));
    }
    // 5 rows of 1000 numbers, however short the lists are.
    let batch = run(r#"{"lists": {"cut": {"length": 1000}}}"#, &[(0, 0)], BadRows::Error).unwrap().0;
    assert!(room(&batch) >= 40_000 && batch.tensor("x__values").unwrap().slab().len() < 1000);
    let json = r#"{"lists": {"cut": {"length": 2}}}"#;
    let error = run(json, &[(0, 2), (0, 3)], BadRows::Error).unwrap_err();
    assert!(error.to_string().contains("row 3: a list longer than the length 2 in lists; raise"), "{error}");
    let (batch, bad) = run(json, &[(0, 2), (0, 3), (0, 2)], BadRows::Zero).unwrap();
    assert_eq!((values::<i64>(&batch, "x__values"), bad.len()), (vec![4, 4], 1));
    for wrong in ["0", "[2, 3]"] {
        let json = format!(r#"{{"lists": {{"x": {{"cut": {{"length": {wrong}}}}}}}}}"#);
        assert!(matches!(whole(&[("x", Arc::clone(&of))], &json), Err(Error::Config { option: "lists", .. })));
    }
    let error = whole(&[("x", list_of_lists())], r#"{"lists": {"cut": {"length": [2, 3]}}}"#).unwrap_err();
    assert!(error.to_string().contains("lists of lists"), "{error}");
}

fn list_of_lists() -> ArrayRef {
    // [[1, 2], []], [], [[3], [4, 5, 6], [7]]
    let inner = list(&[&[1, 2], &[], &[3], &[4, 5, 6], &[7]]);
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    array(ListArray::new(item, OffsetBuffer::new(vec![0, 2, 2, 5].into()), inner, None))
}

#[test]
fn lists_of_lists_are_ragged() {
    assert_eq!(delivered(list_of_lists(), "{}"), "x int64 [B, ragged, ragged]");
    let batch = picked(&[("x", list_of_lists())], "{}", &[(0, 2), (0, 1), (0, 0)], 4, BadRows::Error).unwrap().0;
    assert_eq!(names(&batch), ["x__values", "x__offsets", "x__offsets_1"]);
    assert_eq!(values::<i64>(&batch, "x__values"), [3, 4, 5, 6, 7, 1, 2]);
    assert_eq!(values::<i64>(&batch, "x__offsets"), [0, 3, 3, 5, 5]);
    assert_eq!(values::<i64>(&batch, "x__offsets_1"), [0, 1, 4, 5, 7, 7]);
}

#[test]
fn lists_of_lists_are_padded() {
    let json = r#"{"lists": {"padded": {"length": [2, 3], "fill": 9, "truncate": "right"}}}"#;
    let batch = picked(&[("x", list_of_lists())], json, &[(0, 2), (0, 0)], 3, BadRows::Error).unwrap().0;
    assert_eq!(shape(&batch, "x"), [3, 2, 3]);
    assert_eq!(values::<i64>(&batch, "x"), [3, 9, 9, 4, 5, 6, 1, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
    assert_eq!(values::<i64>(&batch, "x__lengths"), [2, 2, 0]);
    assert_eq!(
        (values::<i64>(&batch, "x__lengths_1"), shape(&batch, "x__lengths_1")),
        (vec![1, 3, 2, 0, 0, 0], &[3usize, 2][..])
    );
    let json = r#"{"lists": {"padded": {"length": [3, 2], "fill": 9, "truncate": "left", "left": true}}}"#;
    let batch = picked(&[("x", list_of_lists())], json, &[(0, 0), (0, 2)], 2, BadRows::Error).unwrap().0;
    assert_eq!(values::<i64>(&batch, "x"), [9, 9, 1, 2, 9, 9, 9, 3, 5, 6, 9, 7]);
    assert_eq!(values::<i64>(&batch, "x__lengths_1"), [0, 2, 0, 1, 2, 1]);
    let error = whole(&[("x", list_of_lists())], r#"{"lists": {"padded": {"length": 2}}}"#).unwrap_err();
    assert!(error.to_string().contains("2 lengths"), "{error}");
}

#[test]
fn lists_of_vectors_keep_their_inner_axis() {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let points = FixedSizeListArray::new(item, 2, Arc::new(Float32Array::from(vec![0., 1., 2., 3., 4., 5.])), None);
    let item = Arc::new(Field::new("item", points.data_type().clone(), true));
    let of = array(ListArray::new(item, OffsetBuffer::new(vec![0, 1, 3].into()), Arc::new(points), None));
    assert_eq!(delivered(Arc::clone(&of), "{}"), "x float32 [B, ragged, 2]");
    let batch = picked(&[("x", Arc::clone(&of))], "{}", &[(0, 1), (0, 0)], 2, BadRows::Error).unwrap().0;
    assert_eq!(
        (values::<f32>(&batch, "x__values"), shape(&batch, "x__values")),
        (vec![2., 3., 4., 5., 0., 1.], &[3usize, 2][..])
    );
    let batch = whole(&[("x", of)], r#"{"lists": {"padded": {"length": 2, "fill": 7}}}"#).unwrap();
    assert_eq!(
        (values::<f32>(&batch, "x"), shape(&batch, "x")),
        (vec![0., 1., 7., 7., 2., 3., 4., 5.], &[2usize, 2, 2][..])
    );
}

#[test]
fn fixed_size_lists_of_lists_are_lists() {
    let inner = list(&[&[1], &[], &[2, 3], &[4]]);
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    let of = array(FixedSizeListArray::new(item, 2, inner, None));
    assert_eq!(delivered(Arc::clone(&of), "{}"), "x int64 [B, ragged, ragged]");
    let batch = picked(&[("x", of)], "{}", &[(0, 1), (0, 0)], 2, BadRows::Error).unwrap().0;
    assert_eq!(values::<i64>(&batch, "x__values"), [2, 3, 4, 1]);
    assert_eq!(values::<i64>(&batch, "x__offsets"), [0, 2, 4]);
    assert_eq!(values::<i64>(&batch, "x__offsets_1"), [0, 2, 3, 4, 4]);
}

#[test]
fn lists_of_text_stay_arrow() {
    let words = array(StringArray::from(vec![Some("a"), None, Some("c")]));
    let item = Arc::new(Field::new("item", DataType::Utf8, true));
    let of = array(ListArray::new(item, OffsetBuffer::new(vec![0, 2, 2, 3].into()), words, None));
    let json = r#"{"nulls": {"fill": "?"}}"#;
    let batch = picked(&[("x", Arc::clone(&of))], json, &[(0, 2), (0, 0), (0, 1)], 4, BadRows::Error).unwrap().0;
    let bowstring::tensor::Value::Arrow(found) = batch.get("x").unwrap() else { panic!("a tensor") };
    let found: &LargeListArray = found.as_list::<i64>();
    let row = |at: usize| found.value(at).as_string::<i64>().iter().map(|v| v.map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!((found.len(), row(0), row(1), row(2), row(3)), (4, some(&["c"]), some(&["a", "?"]), vec![], vec![]));
    let error = whole(&[("x", of)], "{}").unwrap_err();
    assert!(error.to_string().starts_with("file f.parquet, row group 0, column x, row 0: null"), "{error}");
}

// ---- structs and maps -----------------------------------------------------------------------------------------------

fn nested() -> ArrayRef {
    let inner = StructArray::from(vec![(
        Arc::new(Field::new("c", DataType::Int32, true)),
        array(Int32Array::from(vec![Some(1), Some(2), None])),
    )]);
    let fields = vec![
        Arc::new(Field::new("a", DataType::Int64, true)),
        Arc::new(Field::new("b", inner.data_type().clone(), true)),
    ];
    let nulls = NullBuffer::from(vec![true, false, true]);
    array(StructArray::new(fields.into(), vec![array(Int64Array::from(vec![10, 20, 30])), array(inner)], Some(nulls)))
}

#[test]
fn structs_are_flattened_and_their_nulls_passed_down() {
    let columns = [("s", nested())];
    let batch = whole(&columns, r#"{"nulls": "mask"}"#).unwrap();
    assert_eq!(names(&batch), ["s.a", "s.a__valid", "s.b.c", "s.b.c__valid"]);
    assert_eq!((values::<i64>(&batch, "s.a"), values::<u8>(&batch, "s.a__valid")), (vec![10, 0, 30], vec![1, 0, 1]));
    assert_eq!((values::<i32>(&batch, "s.b.c"), values::<u8>(&batch, "s.b.c__valid")), (vec![1, 0, 0], vec![1, 0, 0]));
    let fill = r#"{"columns": ["s.b"], "nulls": {"fill": 7}}"#;
    assert_eq!(values::<i32>(&whole(&columns, fill).unwrap(), "s.b.c"), [1, 7, 7]);
}

#[test]
fn only_requested_columns_are_read() {
    let columns = [("x", list(&[&[1]])), ("s", nested().slice(0, 1))];
    let paths = |json: &str| Columns::new(&schema_of(&columns), &options(json)).unwrap().paths().to_vec();
    assert_eq!(paths("{}"), ["x", "s.a", "s.b.c"]);
    assert_eq!(paths(r#"{"columns": ["s.b.c", "x"]}"#), ["x", "s.b.c"]);
    // A struct read in part lacks its other fields.
    let schema = schema_of(&columns);
    let chosen = Columns::new(&schema, &options(r#"{"columns": ["s.b.c"]}"#)).unwrap();
    let whole = nested();
    let part = array(StructArray::from(vec![(
        Arc::new(Field::new("b", whole.as_struct().column(1).data_type().clone(), true)),
        Arc::clone(whole.as_struct().column(1)),
    )]));
    let prepared = chosen.prepare(0, part.slice(0, 2), &Place::default()).unwrap();
    let cells = Arc::new(chosen.cells(vec![prepared], Place::default()).unwrap());
    let request = Request { rows: &[(0, 1), (0, 0)], size: 2, masked: false, bad_rows: BadRows::Error };
    let (batch, _) = assemble(&chosen, &[cells], &request).unwrap();
    assert_eq!(values::<i32>(&batch, "s.b.c"), [2, 1]);
}

#[test]
fn lists_of_structs_and_maps_become_lists_of_their_leaves() {
    let points = StructArray::from(vec![
        (Arc::new(Field::new("x", DataType::Int32, true)), array(Int32Array::from(vec![1, 2, 3]))),
        (Arc::new(Field::new("tags", list(&[]).data_type().clone(), true)), list(&[&[1], &[], &[2, 3]])),
    ]);
    let item = Arc::new(Field::new("item", points.data_type().clone(), true));
    let of = array(ListArray::new(item, OffsetBuffer::new(vec![0, 2, 3].into()), Arc::new(points), None));
    let batch = whole(&[("p", of)], r#"{"lists": {"p.x": {"padded": {"length": 2}}}}"#).unwrap();
    assert_eq!(names(&batch), ["p.x", "p.x__lengths", "p.tags__values", "p.tags__offsets", "p.tags__offsets_1"]);
    assert_eq!((values::<i32>(&batch, "p.x"), values::<i64>(&batch, "p.x__lengths")), (vec![1, 2, 3, 0], vec![2, 1]));
    assert_eq!(values::<i64>(&batch, "p.tags__values"), [1, 2, 3]);
    assert_eq!(values::<i64>(&batch, "p.tags__offsets_1"), [0, 1, 1, 3]);

    let entries = StructArray::from(vec![
        (Arc::new(Field::new("keys", DataType::Utf8, false)), array(StringArray::from(vec!["a", "b", "c"]))),
        (Arc::new(Field::new("values", DataType::Int32, true)), array(Int32Array::from(vec![1, 2, 3]))),
    ]);
    let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let map = array(MapArray::new(field, OffsetBuffer::new(vec![0, 1, 3].into()), entries, None, false));
    let batch = picked(&[("m", map)], "{}", &[(0, 1), (0, 0)], 2, BadRows::Error).unwrap().0;
    assert_eq!(names(&batch), ["m.key", "m.value__values", "m.value__offsets"]);
    assert_eq!(values::<i32>(&batch, "m.value__values"), [2, 3, 1]);
    assert_eq!(values::<i64>(&batch, "m.value__offsets"), [0, 2, 3]);
    let bowstring::tensor::Value::Arrow(keys) = batch.get("m.key").unwrap() else { panic!("a tensor") };
    assert_eq!(keys.as_list::<i64>().values().as_string::<i64>().iter().flatten().collect::<Vec<_>>(), ["b", "c", "a"]);
}

// ---- nulls ----------------------------------------------------------------------------------------------------------

#[test]
fn nulls_are_errors_unless_told_otherwise() {
    let columns = [
        ("a", array(Int32Array::from(vec![Some(1), Some(2), Some(3)]))),
        ("b", array(Float32Array::from(vec![Some(1.0), None, None]))),
        ("s", array(StringArray::from(vec![Some("x"), Some("y"), None]))),
    ];
    let error = whole(&columns, "{}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "file f.parquet, row group 0, column b, row 1: null; set nulls to `fill` or `mask` for this column, or set bad_rows"
    );
    // A batch without the bad rows is fine.
    assert_eq!(values::<f32>(&picked(&columns, "{}", &[(0, 0)], 1, BadRows::Error).unwrap().0, "b"), [1.0]);
    let batch = whole(&columns, r#"{"nulls": {"b": {"fill": "nan"}, "s": {"fill": "none"}}}"#).unwrap();
    assert!(values::<f32>(&batch, "b")[1..].iter().all(|value| value.is_nan()));
    assert_eq!(text(&batch, "s"), some(&["x", "y", "none"]));
    let batch = whole(&columns, r#"{"nulls": {"*": "mask", "a": "error"}}"#).unwrap();
    assert_eq!(names(&batch), ["a", "b", "b__valid", "s", "s__valid"]);
    assert_eq!((values::<f32>(&batch, "b"), values::<u8>(&batch, "b__valid")), (vec![1.0, 0.0, 0.0], vec![1, 0, 0]));
    assert_eq!(text(&batch, "s"), [Some("x".to_owned()), Some("y".to_owned()), None]);
    for wrong in [r#"{"nulls": {"fill": 0}}"#, r#"{"nulls": {"a": {"fill": 0.5}, "*": "mask"}}"#] {
        let error = whole(&columns, wrong).unwrap_err();
        assert!(matches!(error, Error::Config { option: "nulls", .. }), "{error}");
    }
}

#[test]
fn nulls_within_lists_count_for_the_row() {
    let of = array(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![Some(4)]),
    ]));
    let columns = [("x", of)];
    let batch = whole(&columns, r#"{"nulls": "mask"}"#).unwrap();
    assert_eq!(
        (values::<i32>(&batch, "x__values"), values::<i64>(&batch, "x__offsets")),
        (vec![1, 0, 4], vec![0, 2, 2, 3])
    );
    assert_eq!(values::<u8>(&batch, "x__valid"), [0, 0, 1]);
    let batch = whole(&columns, r#"{"nulls": {"fill": -1}}"#).unwrap();
    assert_eq!(
        (values::<i32>(&batch, "x__values"), values::<i64>(&batch, "x__offsets")),
        (vec![1, -1, 4], vec![0, 2, 2, 3])
    );
    let error = whole(&columns, "{}").unwrap_err();
    assert!(error.to_string().contains("column x, row 0: null"), "{error}");
    assert!(picked(&columns, "{}", &[(0, 1)], 1, BadRows::Error).is_err(), "a null list");
    assert!(picked(&columns, "{}", &[(0, 2)], 1, BadRows::Error).is_ok());
}

#[test]
fn null_lists_may_have_items_and_null_vectors_garbage() {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let nulls = NullBuffer::from(vec![true, false, true]);
    let of = array(ListArray::new(
        Arc::clone(&item),
        OffsetBuffer::new(vec![0, 1, 3, 4].into()),
        Arc::new(Int32Array::from(vec![1, 300, 300, 4])),
        Some(nulls.clone()),
    ));
    // 300 would not fit uint8, but belongs to no row.
    let batch = whole(&[("x", of)], r#"{"nulls": {"fill": 0}, "cast": {"x": "uint8"}}"#).unwrap();
    assert_eq!(
        (values::<u8>(&batch, "x__values"), values::<i64>(&batch, "x__offsets")),
        (vec![1, 4], vec![0, 1, 1, 2])
    );
    let flat = Arc::new(Int32Array::from(vec![1, 2, 300, 300, 5, 6]));
    let of = array(FixedSizeListArray::new(item, 2, flat, Some(nulls)));
    let batch = whole(&[("x", of)], r#"{"nulls": {"fill": 9}, "cast": {"x": "uint8"}}"#).unwrap();
    assert_eq!(values::<u8>(&batch, "x"), [1, 2, 9, 9, 5, 6]);
}

// ---- names and casts ------------------------------------------------------------------------------------------------

#[test]
fn columns_are_chosen_by_name_prefix_and_glob() {
    let one = || array(Int32Array::from(vec![1]));
    let columns = [("i2", one()), ("i1", one()), ("label", one()), ("s", nested().slice(0, 1))];
    let chosen = |json: &str| names(&whole(&columns, json).unwrap());
    assert_eq!(chosen("{}"), ["i2", "i1", "label", "s.a", "s.b.c"]);
    assert_eq!(chosen(r#"{"columns": ["label", "i?"]}"#), ["label", "i2", "i1"]);
    assert_eq!(chosen(r#"{"columns": ["s"], "exclude": ["*.c"]}"#), ["s.a"]);
    assert_eq!(chosen(r#"{"columns": ["label"], "row_id": true}"#), ["label", "_row_id"]);
    for (json, missing) in [
        (r#"{"columns": ["lable"]}"#, "label"),
        (r#"{"columns": ["j*"]}"#, "i2, i1"),
        (r#"{"nulls": {"labl": "mask"}}"#, "label"),
        (r#"{"cast": {"labell": "int8"}}"#, "label"),
        (r#"{"exclude": ["s.x"]}"#, "s.a"),
    ] {
        let error = whole(&columns, json).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }) && error.to_string().contains(missing), "{json}: {error}");
    }
    for json in [
        r#"{"columns": ["label"], "exclude": ["label"]}"#,
        r#"{"lists": {"label": {"padded": {"length": 3}}}}"#,
        r#"{"pack": [{"name": "label", "columns": ["i1"]}], "columns": ["label", "lab*"]}"#,
        r#"{"pack": [{"name": "p", "columns": ["i1"]}, {"name": "q", "columns": ["i*"]}]}"#,
        r#"{"images": {"label": {}}}"#,
    ] {
        let error = whole(&columns, json).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{json}: {error}");
    }
}

#[test]
fn names_of_parts_do_not_collide() {
    let columns = [("x", list(&[&[1]])), ("x__offsets", array(Int64Array::from(vec![1])))];
    let error = whole(&columns, "{}").unwrap_err();
    assert!(error.to_string().contains("x__offsets"), "{error}");
}

#[test]
fn casts_are_checked() {
    let columns = [
        ("a", array(Int64Array::from(vec![1, 300, -1]))),
        ("b", array(Float64Array::from(vec![1.0, 2.0, 2.5]))),
        ("c", array(BooleanArray::from(vec![true, false, true]))),
    ];
    let batch = whole(&columns, r#"{"cast": {"*": "float32"}}"#).unwrap();
    assert_eq!(values::<f32>(&batch, "a"), [1.0, 300.0, -1.0]);
    assert_eq!(values::<f32>(&batch, "c"), [1.0, 0.0, 1.0]);
    let error = whole(&columns, r#"{"cast": {"a": "uint8"}}"#).unwrap_err();
    assert_eq!(error.to_string(), "file f.parquet, row group 0, column a, row 1: a value does not fit uint8: 300");
    let error = whole(&columns, r#"{"cast": {"b": "int32"}}"#).unwrap_err();
    assert!(error.to_string().ends_with("column b, row 2: a value does not fit int32: 2.5"), "{error}");
    let batch = picked(&columns, r#"{"cast": {"b": "int32"}}"#, &[(0, 1), (0, 0)], 2, BadRows::Error).unwrap().0;
    assert_eq!(values::<i32>(&batch, "b"), [2, 1]);
}

// ---- packs ----------------------------------------------------------------------------------------------------------

#[test]
fn packs_are_one_matrix() {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let pairs = FixedSizeListArray::new(item, 2, Arc::new(Float32Array::from(vec![7., 8., 9., 10.])), None);
    let columns = [
        ("label", array(Int8Array::from(vec![0, 1]))),
        ("i1", array(Int64Array::from(vec![1, 2]))),
        ("i2", array(Float32Array::from(vec![Some(3.5), None]))),
        ("i3", array(pairs)),
        ("i4", array(BooleanArray::from(vec![false, true]))),
    ];
    let json = r#"{"pack": [{"name": "dense", "columns": ["i4", "i*"]}], "nulls": {"i2": {"fill": -1}}}"#;
    let batch = picked(&columns, json, &[(0, 1), (0, 0)], 3, BadRows::Error).unwrap().0;
    assert_eq!(names(&batch), ["dense", "label"]);
    assert_eq!(shape(&batch, "dense"), [3, 5]);
    assert_eq!(values::<f32>(&batch, "dense"), [1., 2., -1., 9., 10., 0., 1., 3.5, 7., 8., 0., 0., 0., 0., 0.]);

    let json =
        r#"{"pack": [{"name": "dense", "columns": ["i*"]}], "nulls": {"i2": "mask"}, "columns": ["label", "dense"]}"#;
    let batch = whole(&columns, json).unwrap();
    assert_eq!(names(&batch), ["label", "dense", "dense__valid"]);
    assert_eq!(
        (values::<u8>(&batch, "dense__valid"), shape(&batch, "dense__valid")),
        (vec![1, 1, 1, 1, 1, 1, 0, 1, 1, 1], &[2usize, 5][..])
    );

    let json = r#"{"pack": [{"name": "p", "columns": ["i1", "i2"], "dtype": "int32"}], "nulls": "mask"}"#;
    let error = whole(&columns, json).unwrap_err();
    assert_eq!(error.to_string(), "file f.parquet, row group 0, column i2, row 0: a value does not fit int32: 3.5");
    let error = whole(&columns, r#"{"pack": [{"name": "p", "columns": ["i2", "i1"]}]}"#).unwrap_err();
    assert!(error.to_string().contains("column i2, row 1: null"), "{error}");
}

// ---- images, bad rows, padding --------------------------------------------------------------------------------------

/// Makes a 1 x 1 bitmap of one colour.
fn bmp(rgb: [u8; 3]) -> Vec<u8> {
    let mut bytes =
        b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0\0\0\0\0\x04\0\0\0".to_vec();
    bytes.resize(54, 0);
    bytes.extend([rgb[2], rgb[1], rgb[0], 0]);
    bytes
}

fn photos() -> Vec<(&'static str, ArrayRef)> {
    let cells = [Some(bmp([1, 2, 3])), Some(b"not an image".to_vec()), Some(bmp([7, 8, 9])), None];
    vec![
        ("image", array(BinaryViewArray::from_iter(cells))),
        ("label", array(Int64Array::from(vec![10, 11, 12, 13]))),
        ("tags", list(&[&[1], &[2, 2], &[3, 3, 3], &[4, 4]])),
    ]
}

const PHOTOS: &str = r#"{"images": {"image": {"size": 1, "layout": "hwc"}}, "row_id": true}"#;

#[test]
fn a_bad_row_is_an_error_with_its_place() {
    let rows = [(0, 2), (0, 3), (0, 1)];
    let error = picked(&photos(), PHOTOS, &rows, 3, BadRows::Error).unwrap_err();
    assert!(error.to_string().starts_with("file f.parquet, row group 0, column image, row 3: null"), "{error}");
    let rows = [(0, 2), (0, 1), (0, 3)];
    let error = picked(&photos(), PHOTOS, &rows, 3, BadRows::Error).unwrap_err();
    assert!(error.to_string().starts_with("file f.parquet, row group 0, column image, row 1: "), "{error}");
    let batch = picked(&photos(), PHOTOS, &[(0, 2), (0, 0)], 3, BadRows::Error).unwrap().0;
    assert_eq!(values::<u8>(&batch, "image"), [7, 8, 9, 1, 2, 3, 0, 0, 0]);
    assert_eq!(shape(&batch, "image"), [3, 1, 1, 3]);
}

#[test]
fn a_skipped_row_is_replaced_in_all_columns() {
    let rows = [(0, 1), (0, 3), (0, 0), (0, 2), (0, 1)];
    let (batch, bad) = picked(&photos(), PHOTOS, &rows, 6, BadRows::Skip).unwrap();
    assert_eq!(values::<i64>(&batch, "label"), [12, 10, 10, 12, 12, 0]);
    assert_eq!(values::<u8>(&batch, "image"), [7, 8, 9, 1, 2, 3, 1, 2, 3, 7, 8, 9, 7, 8, 9, 0, 0, 0]);
    assert_eq!(values::<i64>(&batch, "tags__values"), [3, 3, 3, 1, 1, 3, 3, 3, 3, 3, 3]);
    assert_eq!(values::<i64>(&batch, "tags__offsets"), [0, 3, 4, 5, 8, 11, 11]);
    assert_eq!(values::<i64>(&batch, "_row_id"), [1002, 1000, 1000, 1002, 1002, 0]);
    let found: Vec<_> = bad.iter().map(|bad| (bad.index, bad.row_id, &*bad.column, bad.replaced_by)).collect();
    let expected = [(0, 1001, "image", Some(1002)), (1, 1003, "image", Some(1000)), (4, 1001, "image", Some(1002))];
    assert_eq!(found, expected, "the next good row of the row group, whatever else is in the batch");
    assert!(bad[1].error.to_string().contains("row 3: null"), "{}", bad[1].error);
    let few = (0..40).map(|row| if row == 30 || row == 39 { bmp([row, 0, 0]) } else { b"not an image".to_vec() });
    let few = [("image", array(BinaryViewArray::from_iter_values(few)))];
    let (_, bad) = picked(&few, PHOTOS, &[(0, 5), (0, 39), (0, 20)], 3, BadRows::Skip).unwrap();
    let by: Vec<_> = bad.iter().map(|bad| bad.replaced_by).collect();
    assert_eq!(by, [Some(1039), Some(1030)], "sixteen rows are tried, then the batch");
    let hopeless = [("image", array(BinaryViewArray::from_iter([Some(b"not an image".to_vec()), None])))];
    let error = picked(&hopeless, PHOTOS, &[(0, 0)], 1, BadRows::Skip).unwrap_err();
    assert!(error.to_string().contains("row 0: no row near it or in its batch can stand in"), "{error}");
}

#[test]
fn a_zeroed_row_keeps_its_other_columns() {
    let (batch, bad) = picked(&photos(), PHOTOS, &[(0, 1), (0, 0), (0, 3)], 3, BadRows::Zero).unwrap();
    assert_eq!(values::<u8>(&batch, "image"), [0, 0, 0, 1, 2, 3, 0, 0, 0]);
    assert_eq!(values::<i64>(&batch, "label"), [11, 10, 13]);
    assert_eq!(bad.iter().map(|bad| (bad.index, bad.replaced_by)).collect::<Vec<_>>(), [(0, None), (2, None)]);
    let columns = [("x", list(&[&[1, 2, 3], &[4]])), ("y", array(Int32Array::from(vec![None, Some(2)])))];
    let json = r#"{"lists": {"padded": {"length": 2}}}"#;
    let (batch, bad) = picked(&columns, json, &[(0, 0), (0, 1)], 2, BadRows::Zero).unwrap();
    assert_eq!((values::<i64>(&batch, "x"), values::<i64>(&batch, "x__lengths")), (vec![0, 0, 4, 0], vec![0, 1]));
    assert_eq!(values::<i32>(&batch, "y"), [0, 2]);
    assert_eq!(bad.iter().map(|bad| (bad.index, &*bad.column)).collect::<Vec<_>>(), [(0, "x"), (0, "y")]);
}

#[test]
fn missing_images_may_be_masked() {
    let json =
        r#"{"images": {"image": {"size": 1, "layout": "hwc"}}, "nulls": {"image": "mask"}, "columns": ["image"]}"#;
    let batch = picked(&photos(), json, &[(0, 3), (0, 0)], 3, BadRows::Error).unwrap().0;
    assert_eq!(values::<u8>(&batch, "image"), [0, 0, 0, 1, 2, 3, 0, 0, 0]);
    assert_eq!(values::<u8>(&batch, "image__valid"), [0, 1, 0]);
}

#[test]
fn masks_and_row_ids_tell_padding_rows() {
    let schema = schema_of(&[("x", array(Int32Array::from(vec![5, 6])))]);
    let columns = Columns::new(&schema, &options(r#"{"row_id": true}"#)).unwrap();
    let cells = cells_of(&columns, &schema, 0, &[array(Int32Array::from(vec![5, 6]))]).unwrap();
    let request = Request { rows: &[(0, 1)], size: 3, masked: true, bad_rows: BadRows::Error };
    let (batch, _) = assemble(&columns, std::slice::from_ref(&cells), &request).unwrap();
    assert_eq!(
        (batch.rows, batch.epoch, batch.step, names(&batch)),
        (3, 3, 7, ["x", "_row_id", "_mask"].map(str::to_owned).to_vec())
    );
    assert_eq!(values::<i32>(&batch, "x"), [6, 0, 0]);
    assert_eq!((values::<u8>(&batch, "_mask"), values::<i64>(&batch, "_row_id")), (vec![1, 0, 0], vec![1001, 0, 0]));
    let none = Request { rows: &[], size: 2, masked: true, bad_rows: BadRows::Skip };
    assert_eq!(values::<u8>(&assemble(&columns, &[cells], &none).unwrap().0, "_mask"), [0, 0]);
}

#[test]
fn row_ids_may_be_requested_alone() {
    let schema = schema_of(&[("x", array(Int32Array::from(vec![5, 6])))]);
    let columns = Columns::new(&schema, &options(r#"{"exclude": ["x"], "row_id": true}"#)).unwrap();
    assert!(columns.paths().is_empty());
    let cells = Arc::new(columns.cells(Vec::new(), Place::default()).unwrap());
    let request = Request { rows: &[(0, 7), (0, 3)], size: 2, masked: false, bad_rows: BadRows::Error };
    assert_eq!(values::<i64>(&assemble(&columns, &[cells], &request).unwrap().0, "_row_id"), [1007, 1003]);
}

#[test]
fn rows_that_do_not_exist_are_refused() {
    let columns = [("x", array(Int32Array::from(vec![5, 6])))];
    for rows in [[(0, 2)], [(1, 0)]] {
        let error = picked(&columns, "{}", &rows, 1, BadRows::Error).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
    assert!(picked(&columns, "{}", &[(0, 0), (0, 1)], 1, BadRows::Error).is_err());
}

#[test]
fn memory_and_copies_are_counted() {
    let columns = [
        ("image", array(BinaryViewArray::from_iter_values([bmp([1, 2, 3]), bmp([4, 5, 6])]))),
        ("x", array(Float32Array::from(vec![1.0, 2.0]))),
        ("y", array(Int32Array::from(vec![1, 2]))),
    ];
    let schema = schema_of(&columns);
    let json = r#"{"images": {"image": {"size": 1}}, "cast": {"y": "int64"}}"#;
    let chosen = Columns::new(&schema, &options(json)).unwrap();
    let arrays: Vec<ArrayRef> = columns.iter().map(|(_, array)| Arc::clone(array)).collect();
    let cells = cells_of(&chosen, &schema, 0, &arrays).unwrap();
    // Two bitmaps of 58 bytes, two views, two floats, two int64.
    assert!(cells.memory() >= 116 + 32 + 8 + 16, "{}", cells.memory());
    assert_eq!(cells.rows(), 2);
    let request = Request { rows: &[(0, 0), (0, 1)], size: 2, masked: false, bad_rows: BadRows::Error };
    let (batch, _) = assemble(&chosen, &[cells], &request).unwrap();
    assert_eq!(chosen.copied_bytes(&batch), 8 + 2 * 16, "image 0, x once, y twice");
    // 6 + 8 + 16 bytes and a mask, each from a multiple of 256.
    assert_eq!(chosen.batch_bytes(2, 0), 4 * 256);
    let ragged = Columns::new(&schema_of(&[("x", list(&[&[1]]))]), &ColumnOptions::default()).unwrap();
    assert_eq!(ragged.batch_bytes(10, 100), 256 + 256 + 2 * 100 * 10);
}

#[test]
fn small_columns_lie_side_by_side_in_shuffled_orders() {
    let rows = 5000_i64;
    let columns = [
        ("a", array(Int8Array::from_iter_values((0..rows).map(|row| row as i8)))),
        ("b", array(Int64Array::from_iter_values(0..rows))),
        ("c", array(Float32Array::from_iter_values((0..rows).map(|row| row as f32)))),
        ("d", array(Int16Array::from_iter_values((0..rows).map(|row| row as i16)))),
        ("e", list(&vec![&[1, 2][..]; rows as usize])),
        ("f", array(BooleanArray::from_iter((0..rows).map(|row| Some(row % 3 == 0))))),
    ];
    let picks: Vec<(u32, u32)> = (0..rows as u32).map(|at| (0, at * 1237 % rows as u32)).collect();
    let (batch, _) = picked(&columns, "{}", &picks, picks.len() + 1, BadRows::Error).unwrap();
    let expected: Vec<i64> = picks.iter().map(|pick| i64::from(pick.1)).chain([0]).collect();
    assert_eq!(values::<i64>(&batch, "b"), expected);
    assert_eq!(values::<f32>(&batch, "c"), expected.iter().map(|row| *row as f32).collect::<Vec<_>>());
    assert_eq!(values::<i16>(&batch, "d"), expected.iter().map(|row| *row as i16).collect::<Vec<_>>());
    let chosen = Columns::new(&schema_of(&columns), &ColumnOptions::default()).unwrap();
    let copied = chosen.copied_bytes(&batch);
    // 1, 8, 4 and 2 bytes, and a boolean, copied once more each.
    assert_eq!(chosen.shuffled(true).copied_bytes(&batch) - copied, 16 * (picks.len() + 1));
}

#[test]
fn arrays_that_break_the_promise_of_the_schema_are_corrupt() {
    let schema = schema_of(&[("x", array(Int32Array::from(vec![1]))), ("y", array(Int32Array::from(vec![1])))]);
    let columns = Columns::new(&schema, &ColumnOptions::default()).unwrap();
    let place = Place::file("f.parquet");
    let error = columns.prepare(0, array(Int64Array::from(vec![1])), &place).unwrap_err();
    assert!(error.to_string().starts_with("file f.parquet, column x: type Int64"), "{error}");
    let x = columns.prepare(0, array(Int32Array::from(vec![1, 2])), &place).unwrap();
    let y = columns.prepare(1, array(Int32Array::from(vec![1])), &place).unwrap();
    assert!(matches!(columns.cells(vec![x, y], place.clone()), Err(Error::Corrupt { .. })));
    let x = columns.prepare(0, array(Int32Array::from(vec![1, 2])), &place).unwrap();
    assert!(matches!(columns.cells(vec![x], place.clone()), Err(Error::Corrupt { .. })));
    assert!(columns.prepare(2, array(Int32Array::from(vec![1])), &place).is_err());
}

// ---- random schemas against a naive gather --------------------------------------------------------------------------

mod random {
    use super::*;
    use proptest::prelude::*;

    /// One value of one row, as the naive model stores it.
    type Items = Option<Vec<Option<i32>>>;

    #[derive(Debug, Clone)]
    struct Case {
        /// By row group, by row: a scalar, a vector of 3, a list, a text, a number to pack with the scalar.
        groups: Vec<Vec<Row>>,
        picks: Vec<(usize, usize)>,
        padding: usize,
        length: usize,
        left: bool,
    }

    #[derive(Debug, Clone)]
    struct Row {
        scalar: Option<i32>,
        vector: [i32; 3],
        items: Items,
        text: Option<String>,
        small: i8,
    }

    fn row() -> impl Strategy<Value = Row> {
        let items =
            proptest::option::weighted(0.8, proptest::collection::vec(proptest::option::weighted(0.9, -9..9i32), 0..6));
        (
            proptest::option::weighted(0.8, -99..99i32),
            any::<[i8; 3]>(),
            items,
            proptest::option::weighted(0.8, "[a-zé]{0,20}"),
            any::<i8>(),
        )
            .prop_map(|(scalar, vector, items, text, small)| Row {
                scalar,
                vector: vector.map(i32::from),
                items,
                text,
                small,
            })
    }

    fn case() -> impl Strategy<Value = Case> {
        let groups = proptest::collection::vec(proptest::collection::vec(row(), 1..80), 1..4);
        let picks =
            proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..5usize), 0..60);
        (groups, picks, 0..4usize, 1..6usize, any::<bool>()).prop_map(|(groups, picks, padding, length, left)| {
            // Short runs of consecutive rows between single ones.
            let picks = picks.into_iter().flat_map(|(group, row, run)| {
                let group = group.index(groups.len());
                let row = row.index(groups[group].len());
                (row..(row + run).min(groups[group].len())).map(move |row| (group, row)).collect::<Vec<_>>()
            });
            let picks = picks.collect();
            Case { groups, picks, padding, length, left }
        })
    }

    fn arrays(rows: &[Row]) -> Vec<(&'static str, ArrayRef)> {
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        let flat: Vec<i32> = rows.iter().flat_map(|row| row.vector).collect();
        let lists =
            || array(ListArray::from_iter_primitive::<Int32Type, _, _>(rows.iter().map(|row| row.items.clone())));
        let scalars = array(Int32Array::from_iter(rows.iter().map(|row| row.scalar)));
        vec![
            ("scalar", Arc::clone(&scalars)),
            ("vector", array(FixedSizeListArray::new(item, 3, Arc::new(Int32Array::from(flat)), None))),
            ("ragged", lists()),
            ("padded", lists()),
            ("text", array(StringArray::from_iter(rows.iter().map(|row| row.text.as_deref())))),
            ("p1", scalars),
            ("p2", array(Int8Array::from_iter_values(rows.iter().map(|row| row.small)))),
        ]
    }

    fn check(case: &Case) {
        let json = format!(
            r#"{{
                "nulls": {{"scalar": "mask", "ragged": {{"fill": 77}}, "padded": "mask", "text": "mask", "p1": {{"fill": -5}}}},
                "lists": {{"padded": {{"padded": {{"length": {}, "fill": 3, "truncate": "right", "left": {}}}}}}},
                "pack": [{{"name": "pack", "columns": ["p?"]}}],
                "cast": {{"vector": "float64"}}
            }}"#,
            case.length, case.left
        );
        let schema = schema_of(&arrays(&case.groups[0]));
        let columns = Columns::new(&schema, &options(&json)).unwrap();
        let cells: Vec<Arc<RowGroupBlock>> = case
            .groups
            .iter()
            .enumerate()
            .map(|(group, rows)| {
                let arrays: Vec<ArrayRef> = arrays(rows).into_iter().map(|(_, array)| array).collect();
                cells_of(&columns, &schema, group, &arrays).unwrap()
            })
            .collect();
        let picks: Vec<(u32, u32)> = case.picks.iter().map(|(group, row)| (*group as u32, *row as u32)).collect();
        let size = picks.len() + case.padding;
        let request = Request { rows: &picks, size, masked: true, bad_rows: BadRows::Error };
        let (batch, bad) = assemble(&columns, &cells, &request).unwrap();
        assert!(bad.is_empty());

        let rows: Vec<&Row> = case.picks.iter().map(|(group, row)| &case.groups[*group][*row]).collect();
        let pad = case.padding;
        let padded =
            |values: Vec<i32>, by: usize| -> Vec<i32> { values.into_iter().chain(vec![0; pad * by]).collect() };
        assert_eq!(
            values::<i32>(&batch, "scalar"),
            padded(rows.iter().map(|row| row.scalar.unwrap_or(0)).collect(), 1)
        );
        let valid = |of: &dyn Fn(&Row) -> bool| -> Vec<u8> {
            rows.iter().map(|row| u8::from(of(row))).chain(vec![0; pad]).collect()
        };
        assert_eq!(values::<u8>(&batch, "scalar__valid"), valid(&|row| row.scalar.is_some()));
        let vectors: Vec<f64> =
            padded(rows.iter().flat_map(|row| row.vector).collect(), 3).into_iter().map(f64::from).collect();
        assert_eq!(values::<f64>(&batch, "vector"), vectors);
        let pack = rows.iter().flat_map(|row| [row.scalar.unwrap_or(-5), i32::from(row.small)]).collect();
        let pack: Vec<f32> = padded(pack, 2).into_iter().map(|value| value as f32).collect();
        assert_eq!(values::<f32>(&batch, "pack"), pack);

        let lists: Vec<Vec<i32>> =
            rows.iter().map(|row| row.items.iter().flatten().map(|item| item.unwrap_or(77)).collect()).collect();
        assert_eq!(values::<i32>(&batch, "ragged__values"), lists.concat());
        let ends = lists.iter().scan(0, |sum, list| {
            *sum += list.len() as i64;
            Some(*sum)
        });
        let mut offsets: Vec<i64> = std::iter::once(0).chain(ends).collect();
        offsets.resize(size + 1, *offsets.last().unwrap());
        assert_eq!(values::<i64>(&batch, "ragged__offsets"), offsets);

        let mut expected = Vec::new();
        let mut lengths = Vec::new();
        for row in &rows {
            let items: Vec<i32> = row.items.iter().flatten().map(|item| item.unwrap_or(0)).take(case.length).collect();
            let fill = vec![3; case.length - items.len()];
            lengths.push(items.len() as i64);
            expected.extend(if case.left { [fill, items].concat() } else { [items, fill].concat() });
        }
        expected.extend(vec![3; pad * case.length]);
        lengths.extend(vec![0; pad]);
        assert_eq!(values::<i32>(&batch, "padded"), expected);
        assert_eq!(values::<i64>(&batch, "padded__lengths"), lengths);
        let whole = |row: &Row| row.items.as_ref().is_some_and(|items| items.iter().all(Option::is_some));
        assert_eq!(values::<u8>(&batch, "padded__valid"), valid(&whole));

        let texts: Vec<Option<String>> =
            rows.iter().map(|row| row.text.clone()).chain(vec![Some(String::new()); pad]).collect();
        assert_eq!(text(&batch, "text"), texts);
        assert_eq!(values::<u8>(&batch, "_mask"), [vec![1; rows.len()], vec![0; pad]].concat());
    }

    #[test]
    fn batches_equal_a_naive_gather() {
        let soak = std::env::var("BOWSTRING_SOAK").is_ok_and(|value| value == "1");
        let config = ProptestConfig { cases: if soak { 2000 } else { 200 }, ..ProptestConfig::default() };
        proptest!(config, |(case in case())| check(&case));
    }
}

#[test]
fn large_tensors_are_filled_in_pieces() {
    let rows = 70_000usize;
    let numbers = array(Int64Array::from_iter_values((0..rows as i64).map(|i| i * 3)));
    let lists = array(ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..rows).map(|row| Some((0..row % 5).map(move |i| Some((row + i) as i32)))),
    ));
    let bytes = array(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(
        (0..rows).map(|row| Some(vec![Some(row as u8), Some(1), Some(2)])),
        3,
    ));
    let packed: Vec<(String, ArrayRef)> = (0..11)
        .map(|c| {
            (format!("p{c:02}"), array(Float32Array::from_iter_values((0..rows).map(|row| (row * 11 + c) as f32))))
        })
        .collect();
    let mut columns: Vec<(&str, ArrayRef)> =
        vec![("n", numbers), ("l", Arc::clone(&lists)), ("m", lists), ("b", bytes)];
    columns.extend(packed.iter().map(|(name, array)| (name.as_str(), Arc::clone(array))));
    let json = r#"{"pack": [{"name": "p", "columns": ["p*"]}], "lists": {"m": {"padded": {"length": 5}}}}"#;
    // A stride that visits every row once, so that neighbours in the batch are not neighbours in the file.
    let order: Vec<usize> = (0..rows).map(|at| at * 37 % rows).collect();
    let picks: Vec<(u32, u32)> = order.iter().map(|row| (0, *row as u32)).collect();
    let (batch, _) = picked(&columns, json, &picks, rows, BadRows::Error).unwrap();
    assert_eq!(values::<i64>(&batch, "n"), order.iter().map(|row| *row as i64 * 3).collect::<Vec<_>>());
    assert_eq!(values::<u8>(&batch, "b"), order.iter().flat_map(|row| [*row as u8, 1, 2]).collect::<Vec<_>>());
    let matrix: Vec<f32> = order.iter().flat_map(|row| (0..11).map(move |c| (row * 11 + c) as f32)).collect();
    assert!(values::<f32>(&batch, "p") == matrix);
    let ragged: Vec<i32> = order.iter().flat_map(|row| (0..row % 5).map(move |i| (row + i) as i32)).collect();
    assert_eq!(values::<i32>(&batch, "l__values"), ragged);
    let padded: Vec<i32> =
        order.iter().flat_map(|row| (0..5).map(move |i| if i < row % 5 { (row + i) as i32 } else { 0 })).collect();
    assert_eq!(values::<i32>(&batch, "m"), padded);
    let in_order: Vec<(u32, u32)> = (0..rows as u32).map(|row| (0, row)).collect();
    let (batch, _) = picked(&columns, json, &in_order, rows, BadRows::Error).unwrap();
    assert_eq!(values::<i64>(&batch, "n"), (0..rows as i64).map(|row| row * 3).collect::<Vec<_>>());
    assert_eq!(values::<i32>(&batch, "l__values").len(), rows * 2);
}

#[test]
fn columns_can_stay_as_they_are_stored() {
    let price =
        array(Decimal128Array::from(vec![Some(12345), None, Some(-5)]).with_precision_and_scale(20, 2).unwrap());
    let day = array(Date32Array::from(vec![1, 2, 3]));
    let arrays = [("price", Arc::clone(&price)), ("day", Arc::clone(&day))];
    let json = r#"{"arrow": ["price", "d*"], "nulls": "mask"}"#;
    // Picked out of order, and one row of padding, which is null.
    let (batch, _) = picked(&arrays, json, &[(0, 2), (0, 1)], 3, BadRows::Error).unwrap();
    let stored = |name: &str| match batch.get(name).unwrap() {
        bowstring::tensor::Value::Arrow(array) => Arc::clone(array),
        tensor => panic!("{name} is {tensor:?}"),
    };
    let expected = Decimal128Array::from(vec![Some(-5), None, None]).with_precision_and_scale(20, 2).unwrap();
    assert_eq!(&stored("price"), &array(expected));
    assert_eq!(&stored("day"), &array(Date32Array::from(vec![Some(3), Some(2), None])));
    assert_eq!(values::<u8>(&batch, "price__valid")[..2], [1, 0]);
    let error = picked(&arrays, r#"{"arrow": ["price"]}"#, &[(0, 1)], 1, BadRows::Error).unwrap_err();
    assert!(error.to_string().contains("null"), "{error}");
    let lists = [("x", array(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])], 1)))];
    assert!(picked(&lists, r#"{"arrow": ["x"]}"#, &[(0, 0)], 1, BadRows::Error).is_err());
}

#[test]
fn nulls_of_columns_that_stay_as_they_are_stored_are_filled() {
    let decimal =
        |values: Vec<Option<i128>>| array(Decimal128Array::from(values).with_precision_and_scale(20, 2).unwrap());
    let member = Arc::new(Field::new("day", DataType::Date32, true));
    let inner = array(Date32Array::from(vec![Some(1), None, Some(3)]));
    let outer = NullBuffer::from(vec![true, true, false]);
    let nested = array(StructArray::new(vec![member].into(), vec![inner], Some(outer)));
    let arrays = [("price", decimal(vec![Some(12345), None, Some(-5)])), ("s", nested)];
    let rows = [(0, 2), (0, 1), (0, 0)];
    let stored = |json: &str, bad_rows| {
        let (batch, _) = picked(&arrays, json, &rows, 3, bad_rows).unwrap();
        ["price", "s.day"].map(|name| match batch.get(name).unwrap() {
            bowstring::tensor::Value::Arrow(array) => Arc::clone(array),
            tensor => panic!("{name} is {tensor:?}"),
        })
    };
    let filled = |price: i128, day: i32| {
        [decimal(vec![Some(-5), Some(price), Some(12345)]), array(Date32Array::from(vec![day, day, 1]))]
    };
    let both = r#""arrow": ["price", "s.day"]"#;
    assert_eq!(stored(&format!(r#"{{{both}, "nulls": 0}}"#), BadRows::Error), filled(0, 0));
    assert_eq!(stored(&format!(r#"{{{both}, "nulls": -7}}"#), BadRows::Error), filled(-700, -7));
    let each = format!(r#"{{{both}, "nulls": {{"price": 0.1, "s.day": 9}}}}"#);
    assert_eq!(stored(&each, BadRows::Error), filled(10, 9));
    assert_eq!(stored(&format!("{{{both}}}"), BadRows::Zero), filled(0, 0), "a null of a bad row is 0 too");
    let refused = |json: &str, arrays: &[(&str, ArrayRef)], expected: &[&str]| {
        let error = picked(arrays, json, &[(0, 0)], 1, BadRows::Error).unwrap_err();
        assert!(matches!(error, Error::Config { option: "nulls", .. }), "{error}");
        expected.iter().for_each(|part| assert!(error.to_string().contains(part), "{part}: {error}"));
    };
    for (value, shown) in [("0.125", "0.125"), (r#"{"fill": "x"}"#, "\"x\""), (r#"{"fill": "nan"}"#, "\"nan\"")] {
        let json = format!(r#"{{"arrow": ["price"], "columns": ["price"], "nulls": {value}}}"#);
        refused(&json, &arrays, &["column price", shown, "Decimal128(20, 2)", "mask"]);
    }
    let nothing = [("n", array(NullArray::new(3)))];
    refused(r#"{"arrow": ["n"], "nulls": 0}"#, &nothing, &["column n", "type Null", "mask"]);
}
