//! Filters on written files: every row selected by a naive evaluation is selected, and is in no skipped row group or page; no text
//! makes the parser panic.
//!
//! A failure names its seed; `BOWSTRING_SEED=<seed> cargo test --test it filter::` repeats that one case.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    Float16Array, Float32Array, Float64Array, Int16Array, Int32Array, RecordBatch, StringArray, StringViewArray,
    StructArray, TimestampMicrosecondArray, TimestampSecondArray, UInt32Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int32Type, Schema};
use bowstring::dataset::filter::Expr;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;

use crate::support::Random;

/// The full count in a soak run, a tenth otherwise.
fn cases() -> u32 {
    if std::env::var("BOWSTRING_SOAK").is_ok_and(|value| value == "1") { 2000 } else { 200 }
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() }
}

// ---- the naive evaluation ------------------------------------------------------------------------------------------

/// A value, in the least common unit of its column and the literals used with it.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum Cell {
    Whole(i128),
    Float(f64),
    Bytes(Vec<u8>),
}

/// The filter, generated together with its text.
#[derive(Debug)]
enum Tree {
    Compare(usize, &'static str, Cell),
    In(usize, Vec<Cell>),
    Between(usize, Cell, Cell),
    IsNull(usize),
    All(Vec<Tree>),
    Any(Vec<Tree>),
    Not(Box<Tree>),
}

fn naive(tree: &Tree, row: &[Option<Cell>]) -> Option<bool> {
    let compare = |column: usize, op: &str, literal: &Cell| {
        let order = row[column].as_ref()?.partial_cmp(literal);
        Some(match op {
            "=" | "==" => order == Some(Ordering::Equal),
            "!=" | "<>" => order != Some(Ordering::Equal),
            "<" => order == Some(Ordering::Less),
            "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            ">" => order == Some(Ordering::Greater),
            _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        })
    };
    match tree {
        Tree::Compare(column, op, literal) => compare(*column, op, literal),
        Tree::In(column, list) => {
            row[*column].as_ref().map(|_| list.iter().any(|l| compare(*column, "=", l) == Some(true)))
        }
        Tree::Between(column, low, high) => Some(compare(*column, ">=", low)? && compare(*column, "<=", high)?),
        Tree::IsNull(column) => Some(row[*column].is_none()),
        Tree::All(trees) => {
            let found: Vec<_> = trees.iter().map(|tree| naive(tree, row)).collect();
            if found.contains(&Some(false)) { Some(false) } else { (!found.contains(&None)).then_some(true) }
        }
        Tree::Any(trees) => {
            let found: Vec<_> = trees.iter().map(|tree| naive(tree, row)).collect();
            if found.contains(&Some(true)) { Some(true) } else { (!found.contains(&None)).then_some(false) }
        }
        Tree::Not(tree) => naive(tree, row).map(|value| !value),
    }
}

// ---- random data ---------------------------------------------------------------------------------------------------

const COLUMNS: [&str; 17] = [
    "i", "u64", "u32", "f64", "f32", "f16", "s", "dict", "view", "bin", "b", "ts", "sec", "day", "dec", "fixed", "n.x",
];
const WIDE: [f64; 9] = [f64::NEG_INFINITY, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, f64::INFINITY];
const WORDS: [&str; 9] = ["", "a", "aa", "aaaaaaaa", "aaaaaaab", "b", "größe", "zzzzzz\u{10ffff}", "\u{7f}\u{80}"];

/// Returns value `at` of `column`'s nine, in a unit that allows for finer literals.
fn value(column: &str, at: usize) -> Cell {
    let small = at as i128 - 4;
    match column {
        "i" | "n.x" => Cell::Whole(2 * small),
        "u64" => Cell::Whole(2 * [0, 1, 2, 3, 1 << 53, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1][at]),
        "u32" => Cell::Whole(2 * [0, 1, 2, 3, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 2, (1 << 32) - 1][at]),
        "f64" | "f32" | "f16" => Cell::Float(WIDE[at]),
        "s" | "dict" | "view" | "bin" => Cell::Bytes(WORDS[at].into()),
        "b" => Cell::Whole((at % 2) as i128),
        "ts" | "sec" | "day" => Cell::Whole(small * 86_400_000_000),
        "dec" => Cell::Whole(small * 1250 * 1_000_000_007),
        _ => Cell::Bytes(vec![b"axz"[at % 3], b'x', b"axz"[at / 3]]),
    }
}

/// Returns a literal for `column`: its value and its text.
fn literal(column: &str, random: &mut Random) -> (Cell, String) {
    let cell = value(column, random.index(9));
    let text = match (&cell, column) {
        (Cell::Whole(twice), "i" | "n.x" | "u32" | "u64") => {
            let twice = twice + i128::from(random.chance(20)) * (random.index(3) as i128 - 1);
            let small = twice.abs() < 1 << 33;
            let text = match twice % 2 {
                0 if small && random.chance(20) => format!("{}.0", twice / 2),
                0 => (twice / 2).to_string(),
                // Halves only if a 64-bit float can represent them.
                _ if small => format!("{:?}", twice as f64 / 2.0),
                _ => return (Cell::Whole(twice - 1), ((twice - 1).div_euclid(2)).to_string()),
            };
            return (Cell::Whole(twice), text);
        }
        (Cell::Float(value), _) => {
            let value = if value.is_finite() { *value } else { value.signum() * 1e5 };
            let text =
                if value.fract() == 0.0 && random.chance(30) { format!("{value:.0}") } else { format!("{value:?}") };
            return (Cell::Float(value), text);
        }
        (Cell::Whole(value), "b") => (*value == 1).to_string(),
        (Cell::Whole(micros), "ts" | "sec" | "day") => {
            let days = micros.div_euclid(86_400_000_000);
            let date = format!("1970-01-{:02}", days + 10);
            let hour = if random.chance(30) { random.index(24) as i128 } else { 0 };
            let zone = if column == "ts" { "Z" } else { "" };
            let text = if column == "day" && hour == 0 { date } else { format!("{date}T{hour:02}:00:00.000{zone}") };
            return (Cell::Whole(micros + hour * 3_600_000_000), format!("'{text}'"));
        }
        (Cell::Whole(value), "dec") => {
            let value = value + i128::from(random.chance(30)) * (random.index(3) as i128 - 1);
            let digits = format!("{:04}", value.abs());
            let (whole, fraction) = digits.split_at(digits.len() - 3);
            return (Cell::Whole(value), format!("'{}{whole}.{fraction}'", if value < 0 { "-" } else { "" }));
        }
        (Cell::Bytes(bytes), _) => format!("'{}'", String::from_utf8_lossy(bytes)),
        _ => unreachable!("every column has literals"),
    };
    (cell, text)
}

fn condition(random: &mut Random, depth: usize) -> (Tree, String) {
    if depth > 0 && random.chance(60) {
        let kind = random.index(3);
        if kind == 2 {
            let (tree, text) = condition(random, depth - 1);
            return (Tree::Not(Box::new(tree)), format!("{}({text})", random.pick(&["not ", "!", "~", "NOT "])));
        }
        let (trees, texts): (Vec<_>, Vec<_>) = (0..2 + random.index(2)).map(|_| condition(random, depth - 1)).unzip();
        let texts: Vec<_> = texts.iter().map(|text| format!("({text})")).collect();
        return match kind {
            0 => (Tree::All(trees), texts.join(random.pick(&[" and ", "&", " AND "]))),
            _ => (Tree::Any(trees), texts.join(random.pick(&[" or ", "|", " || "]))),
        };
    }
    let column = random.index(COLUMNS.len());
    let name = if random.chance(10) { format!("\"{}\"", COLUMNS[column]) } else { COLUMNS[column].to_owned() };
    match random.index(10) {
        0 => (Tree::IsNull(column), format!("{name} is null")),
        1 => (Tree::Not(Box::new(Tree::IsNull(column))), format!("{name} is not null")),
        kind @ 2..4 => {
            let (cells, texts): (Vec<_>, Vec<_>) =
                (0..1 + random.index(4)).map(|_| literal(COLUMNS[column], random)).unzip();
            let (tree, not) = (Tree::In(column, cells), if kind == 2 { "" } else { " not" });
            let tree = if kind == 2 { tree } else { Tree::Not(Box::new(tree)) };
            (tree, format!("{name}{not} in ({})", texts.join(", ")))
        }
        kind @ 4..6 => {
            let ((low, low_text), (high, high_text)) =
                (literal(COLUMNS[column], random), literal(COLUMNS[column], random));
            let (tree, not) = (Tree::Between(column, low, high), if kind == 4 { "" } else { " not" });
            let tree = if kind == 4 { tree } else { Tree::Not(Box::new(tree)) };
            (tree, format!("{name}{not} between {low_text} and {high_text}"))
        }
        _ => {
            let op = random.pick(&["=", "==", "!=", "<>", "<", "<=", ">", ">="]);
            let (cell, text) = literal(COLUMNS[column], random);
            (Tree::Compare(column, op, cell), format!("{name} {op} {text}"))
        }
    }
}

/// Makes rows in runs of similar values, so that pruning has an effect.
fn rows(random: &mut Random) -> Vec<Vec<Option<Cell>>> {
    let count = 20 + random.index(300);
    let columns: Vec<Vec<Option<Cell>>> = COLUMNS
        .iter()
        .map(|column| {
            let mut cells = Vec::new();
            while cells.len() < count {
                let (from, width) = (random.index(9), 1 + random.index(3));
                let (nulls, nans) = (random.pick(&[0, 0, 10, 100]), random.pick(&[0, 0, 0, 20, 100]));
                for _ in 0..1 + random.index(80) {
                    let float = column.starts_with('f') && *column != "fixed";
                    cells.push(if random.chance(nulls) {
                        None
                    } else if float && random.chance(nans) {
                        Some(Cell::Float(if random.chance(50) { f64::NAN } else { -f64::NAN }))
                    } else {
                        Some(value(column, (from + random.index(width)).min(8)))
                    });
                }
            }
            cells.truncate(count);
            cells
        })
        .collect();
    (0..count).map(|row| columns.iter().map(|cells| cells[row].clone()).collect()).collect()
}

fn batch(rows: &[Vec<Option<Cell>>]) -> RecordBatch {
    let column = |name: &str| COLUMNS.iter().position(|column| *column == name).unwrap();
    let wholes = |name: &str| {
        let at = column(name);
        rows.iter().map(move |row| match &row[at] {
            Some(Cell::Whole(value)) => Some(*value),
            _ => None,
        })
    };
    let floats = |name: &str| {
        let at = column(name);
        rows.iter().map(move |row| match &row[at] {
            Some(Cell::Float(value)) => Some(*value),
            _ => None,
        })
    };
    let bytes = |name: &str| {
        let at = column(name);
        rows.iter().map(move |row| match &row[at] {
            Some(Cell::Bytes(value)) => Some(value.as_slice()),
            _ => None,
        })
    };
    let texts = |name: &str| bytes(name).map(|value| value.map(|value| std::str::from_utf8(value).unwrap()));
    let x: Int16Array = wholes("n.x").map(|v| v.map(|v| (v / 2) as i16)).collect();
    // Every other null of `n.x` is a null of `n`, with a value below it that must stay hidden.
    let outer: Vec<bool> = wholes("n.x").enumerate().map(|(row, v)| v.is_some() || row % 2 == 0).collect();
    let x = Int16Array::new(
        x.values().clone(),
        Some(NullBuffer::from_iter((0..x.len()).map(|row| wholes("n.x").nth(row).unwrap().is_some() || !outer[row]))),
    );
    let fields = Fields::from(vec![Field::new("x", DataType::Int16, true)]);
    let n = StructArray::new(fields, vec![Arc::new(x)], Some(NullBuffer::from(outer)));
    let decimals: Decimal128Array = wholes("dec").map(|v| v.map(|v| v / 10)).collect();
    let arrays: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(wholes("i").map(|v| v.map(|v| (v / 2) as i32)).collect::<Int32Array>())),
        ("u64", Arc::new(wholes("u64").map(|v| v.map(|v| (v / 2) as u64)).collect::<UInt64Array>())),
        ("u32", Arc::new(wholes("u32").map(|v| v.map(|v| (v / 2) as u32)).collect::<UInt32Array>())),
        ("f64", Arc::new(floats("f64").collect::<Float64Array>())),
        ("f32", Arc::new(floats("f32").map(|v| v.map(|v| v as f32)).collect::<Float32Array>())),
        ("f16", Arc::new(floats("f16").map(|v| v.map(half::f16::from_f64)).collect::<Float16Array>())),
        ("s", Arc::new(texts("s").collect::<StringArray>())),
        ("dict", Arc::new(texts("dict").collect::<DictionaryArray<Int32Type>>())),
        ("view", Arc::new(texts("view").collect::<StringViewArray>())),
        ("bin", Arc::new(bytes("bin").collect::<BinaryArray>())),
        ("b", Arc::new(wholes("b").map(|v| v.map(|v| v == 1)).collect::<BooleanArray>())),
        (
            "ts",
            Arc::new(
                wholes("ts")
                    .map(|v| v.map(|v| v as i64 + DAY_TEN))
                    .collect::<TimestampMicrosecondArray>()
                    .with_timezone("UTC"),
            ),
        ),
        (
            "sec",
            Arc::new(
                wholes("sec").map(|v| v.map(|v| (v as i64 + DAY_TEN) / 1_000_000)).collect::<TimestampSecondArray>(),
            ),
        ),
        ("day", Arc::new(wholes("day").map(|v| v.map(|v| (v / 86_400_000_000) as i32 + 9)).collect::<Date32Array>())),
        ("dec", Arc::new(decimals.with_precision_and_scale(20, 2).unwrap())),
        ("fixed", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes("fixed"), 3).unwrap())),
        ("n", Arc::new(n)),
    ];
    RecordBatch::try_from_iter_with_nullable(arrays.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

/// 1970-01-10 in microseconds, the middle of the data's nine days.
const DAY_TEN: i64 = 9 * 86_400_000_000;

fn write(batch: &RecordBatch, random: &mut Random) -> Bytes {
    let statistics = random.pick(&[
        EnabledStatistics::Page,
        EnabledStatistics::Page,
        EnabledStatistics::Chunk,
        EnabledStatistics::None,
    ]);
    let properties = WriterProperties::builder()
        .set_writer_version(random.pick(&[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]))
        .set_max_row_group_row_count(Some(random.pick(&[15, 40, 1000])))
        .set_data_page_row_count_limit(random.pick(&[1, 5, 17]))
        .set_write_batch_size(random.pick(&[1, 4]))
        .set_dictionary_enabled(random.chance(50))
        .set_statistics_enabled(statistics)
        .set_statistics_truncate_length(random.pick(&[None, Some(1), Some(4)]))
        .set_column_index_truncate_length(random.pick(&[None, Some(1), Some(4)]))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap().into()
}

fn metadata(file: &Bytes) -> ParquetMetaData {
    ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Optional).parse_and_finish(file).unwrap()
}

// ---- the tests -----------------------------------------------------------------------------------------------------

/// The counts of a case.
#[derive(Debug, Default)]
struct Tally {
    selected: usize,
    groups_skipped: usize,
    rows_skipped: usize,
}

fn check(seed: u64) -> Result<Tally, String> {
    let mut random = Random(seed);
    let rows = rows(&mut random);
    let data = batch(&rows);
    let file = write(&data, &mut random);
    let metadata = metadata(&file);
    let read: Vec<RecordBatch> = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .with_batch_size(64)
        .build()
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let schema = read[0].schema();
    let mut tally = Tally::default();
    for _ in 0..8 {
        let depth = random.index(4);
        let (tree, text) = condition(&mut random, depth);
        let report = |problem: String| {
            format!("{problem}; filter {text}; repeat: BOWSTRING_SEED={seed} cargo test --test it filter::")
        };
        let expr = Expr::parse(&text).map_err(|e| report(e.to_string()))?;
        let shown = expr.to_string();
        if Expr::parse(&shown).ok().as_ref() != Some(&expr) {
            return Err(report(format!("{shown} does not read back")));
        }
        let bound = expr.bind(&schema).map_err(|e| report(e.to_string()))?;
        let expected: Vec<bool> = rows.iter().map(|row| naive(&tree, row) == Some(true)).collect();
        for (name, batches) in [("read", read.as_slice()), ("written", std::slice::from_ref(&data))] {
            let mut found = Vec::new();
            for batch in batches {
                let mask = bound.evaluate(batch).map_err(|e| report(e.to_string()))?;
                if arrow::array::Array::nulls(&mask).is_some() {
                    return Err(report("nulls in the result".to_owned()));
                }
                found.extend(mask.values().iter());
            }
            if let Some(row) = (0..rows.len()).find(|row| found.get(*row) != Some(&expected[*row])) {
                let row_text = format!("{name} row {row}: {:?}", rows[row]);
                return Err(report(format!("expected {}, found {:?}, {row_text}", expected[row], found.get(row))));
            }
        }
        tally.selected += expected.iter().filter(|selected| **selected).count();
        let mut start = 0;
        for (index, group) in metadata.row_groups().iter().enumerate() {
            let count = group.num_rows() as usize;
            let selected = &expected[start..start + count];
            if !bound.may_match(&metadata, index, &|_| None) {
                tally.groups_skipped += 1;
                if selected.contains(&true) {
                    return Err(report(format!("row group {index} is skipped and has matching rows")));
                }
            }
            if let Some(selection) = bound.pages(&metadata, index) {
                let mut row = 0;
                for selector in selection.iter() {
                    if selector.skip {
                        tally.rows_skipped += selector.row_count;
                        if selected[row..row + selector.row_count].contains(&true) {
                            return Err(report(format!(
                                "row group {index}: skipped pages at row {row} have matching rows"
                            )));
                        }
                    }
                    row += selector.row_count;
                }
                if row != count {
                    return Err(report(format!("row group {index}: {row} rows in the selection of {count}")));
                }
            }
            start += count;
        }
    }
    Ok(tally)
}

#[test]
fn filters_select_what_a_naive_evaluation_selects_and_skip_none_of_it() {
    if let Ok(seed) = std::env::var("BOWSTRING_SEED") {
        check(seed.parse().unwrap()).unwrap();
        return;
    }
    let total = std::cell::RefCell::new(Tally::default());
    proptest!(config(), |(seed in any::<u64>().no_shrink())| {
        let tally = check(seed).map_err(TestCaseError::fail)?;
        let mut total = total.borrow_mut();
        total.selected += tally.selected;
        total.groups_skipped += tally.groups_skipped;
        total.rows_skipped += tally.rows_skipped;
    });
    let total = total.into_inner();
    // Without enough of these, the test would prove nothing.
    let cases = cases() as usize;
    assert!(total.selected > cases && total.groups_skipped > cases && total.rows_skipped > cases, "{total:?}");
}

#[test]
fn no_text_makes_the_parser_panic() {
    const WORDS: [&str; 27] = [
        "a", "b.c", "\"q\"", "'s'", "''", "\"", "'", "(", ")", ",", "and", "or", "not", "in", "between", "is", "null",
        "true", "1", "-2.5", "1e", "=", "<", ">=", "!", "&", "é",
    ];
    let soup = prop::collection::vec(prop::sample::select(&WORDS[..]), 0..20).prop_map(|words| words.join(" "));
    let text = prop_oneof![soup, ".{0,40}", "[-+a-z0-9.'\"=<>!&|~(), \\x00\u{10ffff}]{0,40}"];
    proptest!(config(), |(text in text)| {
        match Expr::parse(&text) {
            Ok(expr) => prop_assert_eq!(Expr::parse(&expr.to_string()).unwrap(), expr),
            Err(error) => prop_assert!(error.to_string().starts_with("option filter: "), "{error}"),
        }
    });
}

#[test]
fn any_column_name_and_string_survive_the_text() {
    proptest!(config(), |(name in ".{1,12}", text in ".{0,12}", float in any::<f64>(), int in any::<i64>())| {
        let mut tuples = vec![
            serde_json::json!([name, "=", text]),
            serde_json::json!(["x", "in", [text, int]]),
        ];
        if float.is_finite() {
            tuples.push(serde_json::json!([name, "<", float]));
        }
        let expr = Expr::from_dnf(&serde_json::Value::Array(tuples)).unwrap();
        prop_assert_eq!(Expr::parse(&expr.to_string()).unwrap(), expr);
    });
}

#[test]
fn partitions_decide_whole_files() {
    let inner = Int32Array::from(vec![1, 2, 3]);
    let data = RecordBatch::try_from_iter([("x", Arc::new(inner) as ArrayRef)]).unwrap();
    let file = write(&data, &mut Random(0));
    let metadata = metadata(&file);
    let schema = Arc::new(Schema::new(vec![
        Field::new("x", DataType::Int32, true),
        Field::new("year", DataType::Int32, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("day", DataType::Date32, true),
    ]));
    let may = |text: &str| {
        let bound = Expr::parse(text).unwrap().bind(&schema).unwrap();
        bound.may_match(&metadata, 0, &|name| match name {
            "year" => Some(Some("2024")),
            "country" => Some(None),
            "day" => Some(Some("not a date")),
            _ => None,
        })
    };
    for (text, expected) in [
        ("year = 2024", true),
        ("year = 2023", false),
        ("year != 2024", false),
        ("not year in (2023, 2024)", false),
        ("country = 'de'", false),
        ("not country = 'de'", false),
        ("country is null", true),
        ("year is null", false),
        ("year is not null and country is null", true),
        ("day = '2024-01-01'", true),
        ("not day = '2024-01-01'", true),
        ("day is not null", true),
        ("year = 2023 or x = 1", true),
    ] {
        assert_eq!(may(text), expected, "{text}");
    }
    let bound = Expr::parse("year = 2023").unwrap().bind(&schema).unwrap();
    assert!(bound.may_match(&metadata, 7, &|_| None), "no such row group");
    assert!(bound.pages(&metadata, 7).is_none());
}
