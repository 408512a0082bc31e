//! Files written by Spark, value by value, in every flavour.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, TimeUnit, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bowstring::dataset::OpenOptions;
use serde_json::{Map, Value, json};

use super::support::{open, read, read_all};

/// One cell in the form of the expected values.
fn cell(array: &ArrayRef, row: usize) -> Value {
    if array.is_null(row) {
        return Value::Null;
    }
    let text = || ArrayFormatter::try_new(array, &FormatOptions::default()).unwrap().value(row).to_string();
    let list = |values: ArrayRef| Value::from((0..values.len()).map(|row| cell(&values, row)).collect::<Vec<_>>());
    match array.data_type() {
        DataType::Boolean => json!(array.as_boolean().value(row)),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => json!(text().parse::<i64>().unwrap()),
        DataType::Float32 => float(f64::from(array.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8View => json!(array.as_string_view().value(row)),
        DataType::BinaryView => json!({ "b64": base64(array.as_binary_view().value(row)) }),
        DataType::Decimal128(..) | DataType::Date32 => json!(text()),
        DataType::Timestamp(unit, Some(zone)) => {
            assert_eq!((unit, zone.as_ref()), (&TimeUnit::Microsecond, "UTC"));
            let wall = array.as_primitive::<TimestampMicrosecondType>().clone().with_timezone_opt(None::<&str>);
            cell(&(Arc::new(wall) as ArrayRef), row)
        }
        DataType::Timestamp(_, None) => json!(fraction(&text())),
        DataType::List(_) => list(array.as_list::<i32>().value(row)),
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter().zip(fields);
            columns.map(|(column, field)| (field.name().clone(), cell(column, row))).collect::<Map<_, _>>().into()
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let key = |row| cell(entries.column(0), row).as_str().unwrap().to_owned();
            (0..entries.len()).map(|row| (key(row), cell(entries.column(1), row))).collect::<Map<_, _>>().into()
        }
        other => panic!("{other} is not in these files"),
    }
}

fn float(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string().replace("NaN", "nan")) }
}

/// Removes trailing zeros from the fractions of times.
fn fraction(text: &str) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for letter in 0..4 {
            let index = (bits >> (18 - 6 * letter)) as usize & 63;
            text.push(if letter <= chunk.len() { LETTERS[index] as char } else { '=' });
        }
    }
    text
}

/// Compares two values; floats may differ in the last digit, which a JSON reader gets wrong, but not in sign.
fn same(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 4e-16 * b.abs() && a.is_sign_negative() == b.is_sign_negative()
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        _ => found == expected,
    }
}

fn expected() -> Map<String, Value> {
    let text = fs::read("fixtures/spark43_parquet.expected.json").unwrap();
    let all: Value = serde_json::from_slice(&text).unwrap();
    let mut rows = all["rows"].as_object().unwrap().clone();
    for row in rows.values_mut() {
        for key in ["ts", "tn"] {
            if let Some(text) = row[key].as_str() {
                row[key] = json!(fraction(text));
            }
        }
    }
    rows
}

/// Compares every cell; returns the compared columns.
fn check(batch: &RecordBatch, expected: &Map<String, Value>, what: &str) -> Vec<String> {
    assert_eq!(batch.num_rows(), expected.len(), "{what}");
    let ids = batch.column_by_name("id").unwrap();
    let mut seen = BTreeMap::new();
    for row in 0..batch.num_rows() {
        let id = cell(ids, row).to_string();
        let wanted = expected[&id].as_object().unwrap();
        for (column, field) in batch.columns().iter().zip(batch.schema().fields()) {
            let found = cell(column, row);
            let wanted = &wanted[field.name()];
            assert!(same(&found, wanted), "{what}, id {id}, column {}: {found} instead of {wanted}", field.name());
        }
        assert_eq!(seen.insert(id, row), None, "{what}: a row came twice");
    }
    batch.schema().fields().iter().map(|field| field.name().clone()).collect()
}

#[test]
fn every_flavour_of_spark_has_every_value() {
    let expected = expected();
    let all: Vec<&String> = expected["0"].as_object().unwrap().keys().collect();
    let mut flavours = 0;
    for entry in fs::read_dir("fixtures/spark43_parquet").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with("flat_") {
            continue;
        }
        flavours += 1;
        let dataset = open(&[&format!("fixtures/spark43_parquet/{name}")], OpenOptions::default()).unwrap();
        let columns = check(&read_all(&dataset).unwrap(), &expected, &name);
        let left: Vec<&&String> = all.iter().filter(|column| !columns.contains(column)).collect();
        let without: &[&str] = if name == "flat_legacyformat" { &["country", "tn"] } else { &["country"] };
        assert_eq!(left, without.iter().collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(flavours, 10);
}

#[test]
fn partitions_are_columns_with_nulls_and_escapes() {
    let expected = expected();
    let dataset = open(&["fixtures/spark43_parquet/partitioned"], OpenOptions::default()).unwrap();
    assert_eq!(dataset.partition_columns().collect::<Vec<_>>(), ["year", "country"]);
    assert_eq!(dataset.schema().field_with_name("year").unwrap().data_type(), &DataType::Int64);
    assert!(dataset.schema().field_with_name("country").unwrap().is_nullable());
    let columns = check(&read_all(&dataset).unwrap(), &expected, "partitioned");
    assert_eq!(columns.len(), expected["0"].as_object().unwrap().len());
    let files = &dataset.manifest().files;
    assert!(files.is_sorted_by(|a, b| a.path < b.path) && files.len() == 15);
}

#[test]
fn partition_columns_filter_files() {
    let expected = expected();
    let filter = "year = 2021 and (country is null or country = 'a b/c=d%' or country = 'été')";
    let options = OpenOptions { filter: Some(filter.parse().unwrap()), ..OpenOptions::default() };
    let dataset = open(&["fixtures/spark43_parquet/partitioned"], options).unwrap();
    let matches = |row: &Value| {
        row["year"] == 2021 && (row["country"].is_null() || row["country"] == "a b/c=d%" || row["country"] == "été")
    };
    let kept: Map<String, Value> = expected.into_iter().filter(|(_, row)| matches(row)).collect();
    assert!(!kept.is_empty());
    check(&read_all(&dataset).unwrap(), &kept, "filtered");
}

#[test]
fn members_of_structs_are_read_alone() {
    let expected = expected();
    let dataset = open(&["fixtures/spark43_parquet/flat_zstd"], OpenOptions::default()).unwrap();
    let whole = dataset.project(&["st".to_owned()]).unwrap();
    let part = dataset.project(&["st.in.z".to_owned(), "id".to_owned()]).unwrap();
    assert_eq!(part.roots().iter().map(|root| root.name()).collect::<Vec<_>>(), ["st", "id"]);
    let batch = read(&dataset, &["st.in.z", "id"]).unwrap();
    for row in 0..batch.num_rows() {
        let id = cell(batch.column(1), row).to_string();
        let found = cell(batch.column(0), row);
        let wanted = &expected[&id]["st"];
        assert_eq!(found.is_null(), wanted.is_null());
        if !wanted.is_null() {
            assert_eq!(found.as_object().unwrap().keys().collect::<Vec<_>>(), ["in"]);
            assert!(same(&found["in"], &wanted["in"]), "{found} {wanted}");
        }
    }
    let columns = |projection| dataset.cost(0, projection).decoded;
    assert!(columns(&part) < columns(&whole) + 60 * 9 + 8);
    let error = dataset.project(&["st.in.q".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("st.in.q"), "{error}");
}

#[test]
fn many_row_groups_have_their_rows_in_order() {
    let dataset = open(&["fixtures/spark43_parquet/many_rowgroups"], OpenOptions::default()).unwrap();
    assert_eq!(dataset.manifest().groups.len(), 14);
    assert_eq!((dataset.manifest().rows(), dataset.stored_rows()), (3000, 3000));
    let batch = read(&dataset, &["id", "cat", "x"]).unwrap();
    for row in 0..batch.num_rows() {
        let found = [0, 1, 2].map(|column| cell(batch.column(column), row));
        assert_eq!(found, [json!(row), json!(format!("k{}", row % 7)), json!(row as f64)]);
    }
    let sizes = dataset.column_sizes();
    assert_eq!(sizes.iter().map(|size| size.path.as_str()).collect::<Vec<_>>(), ["id", "cat", "x"]);
    assert!(sizes.iter().all(|size| size.values == 3000 && size.compressed > 0 && size.codecs.contains("SNAPPY")));
}

#[test]
fn a_filter_keeps_rows_and_their_numbers() {
    let options = OpenOptions {
        filter: Some("id >= 100 and cat = 'k3' or id = 2999".parse().unwrap()),
        ..OpenOptions::default()
    };
    let all = open(&["fixtures/spark43_parquet/many_rowgroups"], OpenOptions::default()).unwrap();
    let dataset = open(&["fixtures/spark43_parquet/many_rowgroups"], options).unwrap();
    let wanted: Vec<u64> = (0..3000).filter(|id| (*id >= 100 && id % 7 == 3) || *id == 2999).collect();
    assert_eq!((dataset.manifest().rows(), dataset.stored_rows()), (wanted.len() as u64, 3000));
    assert_ne!(dataset.manifest().fingerprint(), all.manifest().fingerprint());
    let batch = read(&dataset, &["x", "id"]).unwrap();
    let ids: Vec<u64> = (0..batch.num_rows()).map(|row| cell(batch.column(1), row).as_u64().unwrap()).collect();
    assert_eq!(ids, wanted);
    let groups = dataset.manifest().groups.iter().enumerate();
    let numbers: Vec<u64> = groups
        .flat_map(|(group, facts)| (0..facts.selected).map(move |row| (group, row)))
        .map(|(group, row)| dataset.row_id(group, row))
        .collect();
    assert_eq!(numbers, wanted, "ids are row numbers in this file");
    assert!(dataset.place(0).to_string().ends_with(".snappy.parquet, row group 0"));
}
