use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::util::display::array_value_to_string;
use bowstring::Error;
use bowstring::convert::{ConvertOptions, Format, Types, type_text};

use super::{batch, kind, parquet, rows, run, to};

/// Makes a file of one column `x`, whose last line is beyond every sample.
fn late(format: Format, sample: &[&str], last: &str) -> String {
    let (head, row): (_, fn(&str) -> String) = match format {
        Format::Csv => ("x\n", |cell| format!("{cell}\n")),
        _ => ("", |cell| format!("{{\"x\": {cell}}}\n")),
    };
    let before = sample.iter().cycle().take(2000).map(|cell| row(cell));
    head.to_owned() + &before.chain([row(last)]).collect::<String>()
}

/// Returns the type of column `x`, and its last value as text.
fn last(path: &Path, options: &ConvertOptions) -> (String, String) {
    let found = rows(path, options).unwrap();
    let column = found.column(0);
    let value = match column.is_null(column.len() - 1) {
        true => "null".to_owned(),
        false => array_value_to_string(column, column.len() - 1).unwrap(),
    };
    (type_text(column.data_type()), value)
}

#[test]
fn another_kind_of_value_is_an_error_with_line_and_token() {
    let directory = tempfile::tempdir().unwrap();
    let integers = &["1", "2", "-3"][..];
    let (json, csv) = (Format::Jsonl, Format::Csv);
    for (number, (format, sample, token)) in [
        (json, integers, "3.7"),
        (json, integers, "-0.5"),
        (json, integers, "2.0"),
        (json, integers, "\"7\""),
        (json, integers, "true"),
        (json, integers, "9223372036854775808"),
        (json, &["1.5", "2"][..], "9007199254740993"),
        (json, &["1.5"][..], "1e400"),
        (json, &["1.5"][..], "1e-400"),
        (json, &["true", "false"][..], "1"),
        (json, &["true", "false"][..], "\"no\""),
        (json, &["\"a\""][..], "7"),
        (json, &["[1]"][..], "[1, 2.5]"),
        (json, &["{\"y\": 1}"][..], "{\"y\": 2.5}"),
        (json, integers, "01234"),
        (json, &["1.5"][..], "NaN"),
        (csv, integers, "3.7"),
        (csv, integers, "1e3"),
        (csv, integers, "\"7\""),
        (csv, integers, "01234"),
        (csv, integers, "+7"),
        (csv, integers, "9223372036854775808"),
        (csv, &["1.5", "2"][..], "9007199254740993"),
        (csv, &["1.5"][..], "1e400"),
        (csv, &["1.5"][..], "007.5"),
        (csv, &["true", "False"][..], "no"),
        (csv, &["true", "False"][..], "on"),
        (csv, &["true", "False"][..], "1"),
        (csv, &["2024-02-29"][..], "2023-02-29"),
        (csv, &["2024-02-29"][..], "2024-06-01T23:30:00-05:00"),
        (csv, &["2024-02-29T00:00:00"][..], "2024-06-01T23:30:00-05:00"),
        (csv, &["2024-02-29T00:00:00"][..], "2024-06-01T23:30:00Z"),
        (csv, &["2024-02-29T00:00:00"][..], "2024-06-01T23:30:00.123456789"),
        (csv, &["2024-02-29T00:00:00"][..], "2024-06-01"),
        (csv, &["2024-02-29T00:00:00Z"][..], "2024-06-01T23:30:00"),
        (csv, &["2024-02-29T00:00:00Z"][..], "2024-06-01T23:30:00-05:00"),
        (csv, &["2024-02-29T00:00:00.123456789"][..], "9999-12-31T00:00:00"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(format!("{number}.{}", if format == json { "jsonl" } else { "csv" }));
        std::fs::write(&path, late(format, sample, token)).unwrap();
        let out = directory.path().join("never");
        let (error, text) = kind(run(&path, &out, &ConvertOptions { verify: true, ..to(Format::Parquet) }));
        assert!(matches!(error, Error::Corrupt { .. }), "{format} {token}: {text}");
        let Error::Corrupt { place, .. } = &error else { continue };
        assert_eq!(place.file.as_deref(), path.file_name().unwrap().to_str(), "{text}");
        assert_eq!(place.row, Some(2000), "{text}");
        let line = if format == json { "line 2001" } else { "line 2002" };
        assert!(text.contains(line), "{format} {token}: {text}");
        // Invalid JSON belongs to no column.
        if !matches!(token, "01234" | "NaN") || format == csv {
            let column = if token.starts_with('{') { "x.y" } else { "x" };
            assert_eq!(place.column.as_deref(), Some(column), "{text}");
            let token = token.trim_start_matches("[1, ").trim_start_matches("{\"y\": ").trim_end_matches([']', '}']);
            assert!(text.contains(token) && text.contains("--schema"), "{format} {token}: {text}");
        }
        assert!(!out.exists());
    }
}

#[test]
fn a_null_is_not_written_as_an_empty_line() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src.parquet");
    let column = |values: [Option<i64>; 4]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
    let (x, y) = (column([Some(1), Some(2), None, Some(3)]), column([Some(1), None, None, None]));
    parquet(&src, &batch(vec![("x", x), ("y", y)]));
    for format in [Format::Csv, Format::Tsv] {
        let out = directory.path().join(format.name());
        let only = ConvertOptions { columns: vec!["x".into()], ..to(format) };
        let (error, said) = kind(run(&src, &out, &only));
        assert!(matches!(error, Error::Unsupported { .. }) && said.contains("a null in the only column"), "{said}");
        let place = error.place().unwrap();
        assert_eq!((place.column.as_deref(), place.row), (Some("x"), Some(2)), "{said}");
        assert!(!out.exists());
        // Beside another column it is an empty cell.
        assert_eq!(run(&src, &out, &ConvertOptions { verify: true, ..to(format) }).unwrap().rows, 4);
        super::same(&src, &out);
    }
}

#[test]
fn a_blank_line_is_no_row_of_a_single_column_either() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (name, text)) in [
        ("a.csv", "x\na\n\n\"\"\n\r\nb\n\n"),
        ("b.csv", "\n\r\nx\r\na\r\n\r\n\"\"\r\nb\r"),
        ("c.tsv", "x\n\na\n\"\"\nb\n\r"),
    ]
    .into_iter()
    .enumerate()
    {
        let (path, out) = (directory.path().join(name), directory.path().join(format!("out{number}")));
        std::fs::write(&path, text).unwrap();
        let report = run(&path, &out, &ConvertOptions { verify: true, ..to(Format::Csv) }).unwrap();
        assert!(report.verified && report.rows == 3, "{name}: {report:?}");
        // And what is written comes back.
        for from in [&path, &out] {
            let found = rows(from, &ConvertOptions::default()).unwrap();
            let column = arrow::compute::cast(found.column(0), &arrow::datatypes::DataType::Utf8).unwrap();
            let texts: Vec<_> = arrow::array::AsArray::as_string::<i32>(&column).iter().collect();
            assert_eq!(texts, [Some("a"), Some(""), Some("b")], "{name}");
        }
    }
}

#[test]
fn what_a_sample_tells_is_wide_enough_for_it() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (sample, of, value)) in [
        (&["1", "18446744073709551615"][..], "uint64", "18446744073709551615"),
        (&["-1", "18446744073709551615"][..], "string", "18446744073709551615"),
        (&["18446744073709551616"][..], "string", "18446744073709551616"),
        (&["1.5", "-9223372036854775809"][..], "string", "-9223372036854775809"),
        (&["1.5", "9007199254740993"][..], "string", "9007199254740993"),
        (&["1.5", "9007199254740992"][..], "float64", "9007199254740992.0"),
        (&["1", "007"][..], "string", "007"),
        (&["1", "+7"][..], "string", "+7"),
        (&["1", "\"7\""][..], "string", "7"),
        (&["true", "no"][..], "string", "no"),
        (&["1.5", "1e400"][..], "string", "1e400"),
        (&["2024-02-29", "2023-02-29"][..], "string", "2023-02-29"),
        (&["2024-02-29", "2024-02-29T00:00:00"][..], "string", "2024-02-29T00:00:00"),
        (
            &["2024-02-29T00:00:00", "2024-06-01 23:30:00.123456789"][..],
            "timestamp[ns]",
            "2024-06-01T23:30:00.123456789",
        ),
        (&["9999-12-31T00:00:00", "2024-06-01T23:30:00.123456789"][..], "string", "2024-06-01T23:30:00.123456789"),
        (
            &["2024-02-29T00:00:00-05:00", "2024-06-01T23:30:00-05:00"][..],
            "timestamp[us, -05:00]",
            "2024-06-01T23:30:00-05:00",
        ),
        (&["2024-02-29T00:00:00Z", "2024-06-01T23:30:00+02:00"][..], "string", "2024-06-01T23:30:00+02:00"),
        (&["2024-02-29T00:00:00Z", "2024-06-01T23:30:00"][..], "string", "2024-06-01T23:30:00"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join(format!("{number}.csv"));
        std::fs::write(&path, format!("x\n{}\n", sample.join("\n"))).unwrap();
        assert_eq!(last(&path, &ConvertOptions::default()), (of.to_owned(), value.to_owned()), "{sample:?}");
        // Parquet holds the values as they were read.
        let out = directory.path().join(format!("{number}.parquet"));
        let report = run(&path, &out, &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
        assert!(report.verified);
        let found = super::same(&path, &out);
        assert_eq!(found.rows, [sample.len() as u64; 2]);
    }
    let path = directory.path().join("zulu.csv");
    std::fs::write(&path, "x\n2024-02-29T00:00:00Z\n2024-06-01T23:30:00+00:00\n").unwrap();
    assert_eq!(type_text(rows(&path, &ConvertOptions::default()).unwrap().column(0).data_type()), "timestamp[us, UTC]");
}

#[test]
fn a_type_that_is_given_says_what_tokens_mean() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.csv");
    let given = |of: &str| ConvertOptions { schema: Some(Types::parse(of).unwrap()), ..to(Format::Parquet) };
    for (token, of, value) in [
        ("007", "int32", "7"),
        ("\"7\"", "int32", "7"),
        ("1", "bool", "true"),
        ("123456789012345678901234567890.25", "decimal(38, 2)", "123456789012345678901234567890.25"),
    ] {
        std::fs::write(&path, format!("x\n{token}\n")).unwrap();
        assert_eq!(last(&path, &given(&format!("x: {of}"))), (of.to_owned(), value.to_owned()));
    }
    for (token, of) in [("3.7", "int32"), ("2024-01-01T00:00:00Z", "timestamp[us]"), ("1.005", "decimal(9, 2)")] {
        std::fs::write(&path, format!("x\n{token}\n")).unwrap();
        let (error, text) = kind(run(&path, &directory.path().join("never"), &given(&format!("x: {of}"))));
        assert!(matches!(error, Error::Corrupt { .. }) && text.contains(token) && text.contains("line 2"), "{text}");
    }
}

#[test]
fn json_in_other_formats_is_read_by_the_same_rules() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let tar = |cells: &[(&str, &str)]| {
        let mut bytes = Vec::new();
        for (number, (ending, content)) in cells.iter().enumerate() {
            let mut header = [0_u8; 512];
            let name = format!("{number:04}.{ending}");
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[100..108].copy_from_slice(b"0000644\0");
            header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
            header[156] = b'0';
            header[257..265].copy_from_slice(b"ustar\x0000");
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(content.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes.resize(bytes.len() + 1024, 0);
        std::fs::write(at("x.tar"), bytes).unwrap();
    };
    let given = |of: &str| ConvertOptions { schema: Some(Types::parse(of).unwrap()), ..to(Format::Parquet) };
    tar(&[("json", "1"), ("json", "3.7")]);
    let (_, text) = kind(run(&at("x.tar"), &at("never"), &given("json: int64")));
    assert!(text.contains("3.7") && text.contains("x.tar") && text.contains("json"), "{text}");
    tar(&[("json", "{\"a\": 1}"), ("json", "{\"a\": \"7\"}")]);
    let (_, text) = kind(run(&at("x.tar"), &at("never"), &given("json: struct<a: int64>")));
    assert!(text.contains("\"7\" is a text"), "{text}");
    // 0012 is a name, unless the type is given.
    tar(&[("id", "7"), ("id", "0012")]);
    assert_eq!(type_text(rows(&at("x.tar"), &ConvertOptions::default()).unwrap().column(1).data_type()), "string");
    // Only 0 and 1 are booleans.
    tar(&[("cls", "1"), ("cls", "7")]);
    let (_, text) = kind(run(&at("x.tar"), &at("never"), &given("cls: bool")));
    assert!(text.contains('7') && text.contains("true nor false"), "{text}");

    let lines = "{\"j\": {\"a\": 1}}\n{\"j\": {\"a\": 2}}\n";
    std::fs::write(at("x.jsonl"), lines).unwrap();
    run(&at("x.jsonl"), &at("mds"), &to(Format::Mds)).unwrap();
    std::fs::remove_file(at("mds").join("_SUCCESS")).unwrap();
    let (_, text) = kind(run(&at("mds"), &at("never"), &given("j: struct<a: bool>")));
    assert!(text.contains("1 is a number") && text.contains("shard.00000.mds") && text.contains("row 0"), "{text}");
}

#[test]
fn lines_that_end_in_returns_alone_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.csv");
    for content in ["a,b\r1,2\r", "a,b\n1,2\r3,4\n", "a,b\n\"1\"\r\"2\",3\n", "a,b\n1\r,2\n"] {
        std::fs::write(&path, content).unwrap();
        let error = rows(&path, &ConvertOptions::default()).unwrap_err();
        assert!(error.chain().contains("carriage return"), "{content:?}: {}", error.chain());
    }
    for content in ["a,b\r\n1,\"x\r\ny\"\r\n\r\n", "a,b\n1,\"x\r\ny\"\r", "a,b\r\n1,\"x\r\ny\""] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(last(&path, &ConvertOptions::default()).1, "1", "{content:?}");
        assert_eq!(rows(&path, &ConvertOptions::default()).unwrap().num_rows(), 1, "{content:?}");
    }
}

#[test]
fn a_column_without_a_name_is_not_written_to_come_back_with_one() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("x.parquet"), directory.path().join("out"));
    let ints = || -> ArrayRef { Arc::new(Int64Array::from(vec![1, 2])) };
    parquet(&src, &batch(vec![("id", ints()), ("", ints())]));
    for format in [Format::Csv, Format::Tsv] {
        let (error, said) = kind(run(&src, &out, &to(format)));
        assert!(matches!(error, Error::Unsupported { .. }) && said.contains("column \"\""), "{format}: {said}");
        assert!(said.contains("without a name") && !out.exists(), "{format}: {said}");
    }
}

#[test]
fn verify_counts_what_stands_in_the_text() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("dates.csv"), "d\n2024-02-29\n+12345-02-28\n-0044-03-15\n").unwrap();
    let options = ConvertOptions { verify: true, ..to(Format::Parquet) };
    assert!(run(&at("dates.csv"), &at("dates"), &options).unwrap().verified);
    let lines: String = (0..5000).map(|row| format!("{row},{}.5,\"t {row}\"\n", row % 7)).collect();
    std::fs::write(at("x.csv"), format!("id,f,t\n{lines}")).unwrap();
    let filter = Some(bowstring::dataset::filter::Filter::Text("id >= 1000 and f > 2".into()));
    let chosen = ConvertOptions { filter, columns: vec!["t".into(), "id".into()], ..ConvertOptions::default() };
    for (number, options) in [
        ConvertOptions::default(),
        chosen,
        ConvertOptions { shuffle: Some(3), ..ConvertOptions::default() },
        ConvertOptions { shards: Some(4), ..ConvertOptions::default() },
    ]
    .into_iter()
    .enumerate()
    {
        for format in [Format::Parquet, Format::Jsonl] {
            let out = at(&format!("{number}-{format}"));
            let report = run(&at("x.csv"), &out, &ConvertOptions { verify: true, to: Some(format), ..options.clone() });
            assert!(report.unwrap().verified);
            // And back, as JSON.
            if format == Format::Jsonl {
                let back = at(&format!("{number}-back"));
                run(&out, &back, &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
            }
        }
    }
}
