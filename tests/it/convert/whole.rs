use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use bowstring::Error;
use bowstring::convert::{ConvertOptions, Format, Progress, Types, convert, plan};
use bowstring::dataset::filter::Filter;

use super::{batch, compared, kind, names, parquet, rows, run, same, text, to};

/// Makes a directory of Parquet files with the columns `id` and `x`, `files` times `each` rows.
pub(super) fn numbers(directory: &Path, files: i64, each: i64) {
    fs::create_dir_all(directory).unwrap();
    for file in 0..files {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(file * each..(file + 1) * each));
        let noise = (file * each..(file + 1) * each).map(|id| id.wrapping_mul(0x5851_F42D_4C95_7F2D) >> 7);
        let noise: ArrayRef = Arc::new(Int64Array::from_iter_values(noise));
        parquet(&directory.join(format!("part-{file:03}.parquet")), &batch(vec![("id", ids), ("x", noise)]));
    }
}

pub(super) fn ids(path: &Path) -> Vec<i64> {
    let found = rows(path, &ConvertOptions::default()).unwrap();
    found.column_by_name("id").unwrap().as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn a_finished_conversion_is_not_done_again() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    numbers(&src, 3, 50);
    assert!(!run(&src, &out, &to(Format::Tfrecord)).unwrap().unchanged);
    let before = fs::metadata(out.join("part-00000.tfrecord")).unwrap().modified().unwrap();
    let again = run(&src, &out, &to(Format::Tfrecord)).unwrap();
    assert!(again.unchanged && again.rows == 150, "{again:?}");
    assert!(plan(&text(&src), &out, &to(Format::Tfrecord)).unwrap().unchanged);
    assert_eq!(fs::metadata(out.join("part-00000.tfrecord")).unwrap().modified().unwrap(), before);
    // Other options, or another source, make another conversion.
    let refused = |src: &Path, format: Format, what: &str| {
        let (error, said) = kind(run(src, &out, &to(format)));
        assert!(matches!(error, Error::Config { option: "overwrite", .. }) && said.contains(what), "{said}");
        let said = plan(&text(src), &out, &to(format)).unwrap_err().to_string();
        assert!(said.contains(what), "{said}");
    };
    refused(&src, Format::Csv, "was made with other options, or from other files");
    refused(&src.join("part-000.parquet"), Format::Tfrecord, "which is another source");
    numbers(&src, 4, 50);
    refused(&src, Format::Tfrecord, "was made with other options, or from other files");
    let replaced = run(&src, &out, &ConvertOptions { overwrite: true, ..to(Format::Tfrecord) }).unwrap();
    assert_eq!((replaced.rows, replaced.unchanged), (200, false));
    same(&src, &out);
    assert_eq!(names(directory.path()), ["out", "src"]);
}

#[test]
fn what_was_verified_is_done_whether_it_is_to_be_verified_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    numbers(&at("src"), 2, 50);
    let plain = to(Format::Parquet);
    let verified = ConvertOptions { verify: true, ..plain.clone() };
    assert!(run(&at("src"), &at("out"), &verified).unwrap().verified);
    for options in [&plain, &verified] {
        let again = run(&at("src"), &at("out"), options).unwrap();
        assert!(again.unchanged && again.verified, "{again:?}");
    }
    // What was not is not taken for it.
    run(&at("src"), &at("other"), &plain).unwrap();
    let again = run(&at("src"), &at("other"), &plain).unwrap();
    assert!(again.unchanged && !again.verified, "{again:?}");
    let (error, said) = kind(run(&at("src"), &at("other"), &verified));
    assert!(matches!(error, Error::Config { option: "overwrite", .. }) && said.contains("without verify"), "{said}");
    let again = run(&at("src"), &at("other"), &ConvertOptions { overwrite: true, ..verified.clone() }).unwrap();
    assert!(again.verified && run(&at("src"), &at("other"), &verified).unwrap().unchanged);
}

#[test]
fn nulls_of_a_column_that_one_dataset_lacks_are_not_counted() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let label: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(3)]));
    parquet(&at("a.parquet"), &batch(vec![("id", Arc::clone(&ids)), ("label", label)]));
    parquet(&at("b.parquet"), &batch(vec![("id", ids)]));
    let found = compared(&at("a.parquet"), &at("b.parquet"), &ConvertOptions::default()).unwrap();
    let nulls: Vec<_> = found.columns.iter().map(|column| (column.name.as_str(), column.nulls, column.equal)).collect();
    assert_eq!(nulls, [("id", [Some(0); 2], true), ("label", [None; 2], false)]);
    #[cfg(feature = "cli")]
    {
        let (a, b) = (text(&at("a.parquet")), text(&at("b.parquet")));
        let said = |more: &[&str]| {
            let output = bowstring().args(["verify", &a, &b]).args(more).output().unwrap();
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let shown = said(&[]);
        let line: Vec<&str> = shown.lines().find(|line| line.contains("label")).unwrap().split_whitespace().collect();
        assert!(line.ends_with(&["-", "-", "DIFFERENT"]), "{shown}");
        let json: serde_json::Value = serde_json::from_str(&said(&["--json"])).unwrap();
        assert_eq!(json["columns"][1]["nulls"], serde_json::json!([null, null]));
    }
}

/// Converts `src` once more: done already, or refused because it is another conversion now.
fn is_done(src: &Path, out: &Path, options: &ConvertOptions) -> bool {
    match run(src, out, options) {
        Ok(report) => report.unchanged,
        Err(Error::Config { option: "overwrite", .. }) => false,
        Err(error) => panic!("{}", error.chain()),
    }
}

#[test]
fn what_a_table_deletes_or_renames_is_converted_again() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // A later version deletes rows by a vector: the file of rows is the same.
    let fixture = super::fixture("delta/log-replay-dv-key-cases/delta");
    fs::create_dir_all(at("deleted/_delta_log")).unwrap();
    let log = |version: u64| format!("_delta_log/{version:020}.json");
    let copy = |name: &str| {
        fs::copy(fixture.join(name), at("deleted").join(name)).unwrap();
    };
    names(&fixture).iter().filter(|name| *name != "_delta_log").for_each(|name| copy(name));
    (0..2).for_each(|version| copy(&log(version)));
    let options = to(Format::Csv);
    let before = run(&at("deleted"), &at("out"), &options).unwrap();
    assert!(is_done(&at("deleted"), &at("out"), &options));
    copy(&log(2));
    assert!(!is_done(&at("deleted"), &at("out"), &options));
    let after = run(&at("deleted"), &at("out"), &ConvertOptions { overwrite: true, ..options.clone() }).unwrap();
    assert!(after.rows < before.rows && is_done(&at("deleted"), &at("out"), &options), "{after:?}");

    // A column is dropped, and another one takes its name: the file has no values of that.
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3));
    fs::create_dir_all(at("renamed/_delta_log")).unwrap();
    parquet(&at("renamed/a.parquet"), &batch(vec![("x", column)]));
    let commit = |version: u64, id: i32, physical: &str, rest: &str| {
        let metadata = format!(
            r#"{{"metaData": {{"id": "t", "format": {{"provider": "parquet", "options": {{}}}}, "partitionColumns": [],
            "configuration": {{"delta.columnMapping.mode": "name"}}, "schemaString": {}}}}}"#,
            serde_json::json!(
                serde_json::json!({"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": true, "metadata":
                    {"delta.columnMapping.id": id, "delta.columnMapping.physicalName": physical}}]})
                .to_string()
            )
        );
        fs::write(at("renamed").join(log(version)), format!("{}\n{rest}", metadata.replace('\n', ""))).unwrap();
    };
    let add = r#"{"add": {"path": "a.parquet", "partitionValues": {}, "size": 0, "modificationTime": 0, "dataChange": true}}"#;
    commit(0, 1, "x", &format!("{}\n{add}", r#"{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}"#));
    run(&at("renamed"), &at("named"), &options).unwrap();
    assert!(is_done(&at("renamed"), &at("named"), &options));
    commit(1, 2, "col-2", "");
    assert!(!is_done(&at("renamed"), &at("named"), &options));
}

#[test]
fn another_source_of_the_same_names_sizes_and_times_is_another_conversion() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (version, y) in [("v1", 1), ("v2", 9)] {
        fs::create_dir(at(version)).unwrap();
        let path = at(version).join("a.csv");
        fs::write(&path, format!("id,y\n1,{y}\n")).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }
    let options = to(Format::Jsonl);
    run(&at("v1"), &at("out"), &options).unwrap();
    for again in ["v1", "v2/../v1"] {
        assert!(is_done(&at(again), &at("out"), &options), "{again}");
    }
    assert!(!is_done(&at("v2"), &at("out"), &options));
}

#[test]
#[cfg(unix)]
fn a_destination_of_the_same_conversion_over_former_files_says_so() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("a.csv"), directory.path().join("out"));
    fs::write(&src, "id,y\n1,x\n").unwrap();
    let options = to(Format::Jsonl);
    run(&src, &out, &options).unwrap();
    // As a former version wrote it.
    let mut success: serde_json::Value = serde_json::from_slice(&fs::read(out.join("_SUCCESS")).unwrap()).unwrap();
    let settings = success.as_object_mut().unwrap().remove("settings").unwrap();
    fs::write(out.join("_SUCCESS"), success.to_string()).unwrap();
    assert!(is_done(&src, &out, &options));
    success["settings"] = settings;
    fs::write(out.join("_SUCCESS"), success.to_string()).unwrap();
    assert!(is_done(&src, &out, &options));
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(&src, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = |error: Error, is_touched: bool| {
        let said = error.to_string();
        assert!(matches!(error, Error::Config { option: "overwrite", .. }), "{said}");
        assert_eq!(said.contains("have been written, moved or touched since"), is_touched, "{said}");
    };
    refused(run(&src, &out, &options).unwrap_err(), true);
    refused(plan(&text(&src), &out, &options).unwrap_err(), true);
    refused(run(&src, &out, &to(Format::Csv)).unwrap_err(), false);
    assert!(!run(&src, &out, &ConvertOptions { overwrite: true, ..options.clone() }).unwrap().unchanged);
    assert!(is_done(&src, &out, &options));
}

#[test]
fn a_file_of_parquet_that_is_written_anew_in_its_place_is_another_conversion() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("a.parquet"), directory.path().join("out"));
    // As some tools write it: the same inode, size and time.
    let write = |ids: [i64; 2]| {
        let ids: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
        parquet(&src, &batch(vec![("id", ids)]));
        let file = fs::File::options().write(true).open(&src).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        file.metadata().unwrap().len()
    };
    let size = write([1, 2]);
    let options = to(Format::Jsonl);
    run(&src, &out, &options).unwrap();
    assert!(is_done(&src, &out, &options));
    assert_eq!(write([3, 4]), size, "nothing is tested");
    assert!(!is_done(&src, &out, &options));
}

#[test]
fn types_that_only_the_filter_reads_make_another_conversion() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src.csv"), directory.path().join("out"));
    fs::write(&src, "x,y\n1,2024-01-01T00:30:00+02:00\n2,2024-01-01T12:00:00+02:00\n").unwrap();
    let typed = |ty: &str| {
        let schema = Some(Types::parse(&format!("y: {ty}")).unwrap());
        let filter = Some(Filter::Text("y >= '2024-01-01T00:00:00Z'".into()));
        ConvertOptions { columns: vec!["x".into()], schema, filter, ..to(Format::Csv) }
    };
    assert_eq!(run(&src, &out, &typed("timestamp[us, UTC]")).unwrap().rows, 1);
    assert!(is_done(&src, &out, &typed("timestamp[us, UTC]")));
    assert!(!is_done(&src, &out, &typed("string")));
}

#[test]
fn a_directory_of_several_formats_asks_which() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 2, 50);
    fs::write(src.join("columns.json"), "{\"id\": 1}\n").unwrap();
    let out = directory.path().join("out");
    let (error, text) = kind(run(&src, &out, &to(Format::Csv)));
    assert!(matches!(error, Error::Config { option: "from", .. }), "{text}");
    for word in ["jsonl (columns.json)", "parquet (part-000.parquet)", "--from"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let chosen = ConvertOptions { from: Some(Format::Parquet), ..to(Format::Csv) };
    assert_eq!(run(&src, &out, &chosen).unwrap().rows, 100);
    // Below the first directory too; hidden names do not count.
    fs::create_dir_all(src.join("z/y")).unwrap();
    fs::rename(src.join("columns.json"), src.join("z/y/rows.csv")).unwrap();
    let (_, text) = kind(run(&src, &directory.path().join("x"), &to(Format::Jsonl)));
    assert!(text.contains("csv (z/y/rows.csv)"), "{text}");
    fs::rename(src.join("z/y/rows.csv"), src.join("_rows.csv")).unwrap();
    assert_eq!(run(&src, &directory.path().join("x"), &to(Format::Jsonl)).unwrap().rows, 100);
}

#[test]
fn a_destination_in_the_source_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 1, 10);
    for out in ["src", "src/out", "src/a/b", "src/../src/x"] {
        let (error, text) = kind(run(&src, &directory.path().join(out), &to(Format::Csv)));
        assert!(matches!(error, Error::Config { option: "dst", .. }), "{out}: {text}");
    }
    assert_eq!(names(&src), ["part-000.parquet"]);
}

#[test]
fn no_way_of_naming_a_source_lets_it_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (src, made) = (at("src"), at("made"));
    numbers(&src, 2, 10);
    // One made by a conversion, so that `overwrite` replaces it.
    run(&src, &made, &to(Format::Parquet)).unwrap();
    let before = names(&made);
    let part = before.iter().find(|name| name.ends_with(".parquet")).unwrap();
    let url = |path: &Path| format!("file://{}", text(path));
    let mut ways = vec![
        text(&made.join(part)),
        url(&made),
        url(&made.join(part)),
        text(&made.join("*.parquet")),
        text(&at("*/*")),
    ];
    ways.push(url(&made.join("*.parquet")));
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(&made, at("linked")).unwrap();
        fs::create_dir(at("views")).unwrap();
        symlink(made.join(part), at("views/a.parquet")).unwrap();
        ways.extend([text(&at("linked")), text(&at("linked/*.parquet")), text(&at("views"))]);
    }
    for way in ways {
        let options = ConvertOptions { overwrite: true, ..to(Format::Jsonl) };
        let (error, said) = kind(convert(&way, &made, &options, &Progress::default()));
        // One of the directories has a link into another, so that rows would be read twice.
        let option = if cfg!(unix) && way.ends_with("*/*") { "urls" } else { "dst" };
        assert!(matches!(error, Error::Config { option: found, .. } if found == option), "{way}: {said}");
        assert_eq!(names(&made), before, "{way}");
    }
    // A path that only begins with the same name is separate.
    convert(&text(&src.join("*.parquet")), &src.join("out"), &to(Format::Csv), &Progress::default()).unwrap();
}

#[test]
fn what_others_put_into_a_dataset_is_not_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    numbers(&src, 1, 10);
    let again = ConvertOptions { overwrite: true, ..to(Format::Parquet) };
    run(&src, &out, &again).unwrap();
    // An index of ours belongs there.
    fs::write(out.join("_bowstring_index"), "").unwrap();
    run(&src, &out, &again).unwrap();
    for name in ["notes.txt", "other/a.parquet"] {
        fs::create_dir_all(out.join("other")).unwrap();
        fs::write(out.join(name), "years of work").unwrap();
        let (error, said) = kind(run(&src, &out, &again));
        assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{said}");
        assert!(said.contains(name) && out.join(name).exists(), "{said}");
        fs::remove_file(out.join(name)).unwrap();
    }
    run(&src, &out, &again).unwrap();
}

#[test]
fn what_another_conversion_did_is_not_taken() {
    use bowstring::convert::{Begun, Conversion, work};
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    numbers(&src, 2, 10);
    let filtered = |filter: &str| ConvertOptions {
        filter: Some(Filter::Text(filter.into())),
        target_file_size: 1,
        ..to(Format::Jsonl)
    };
    let begin = |options: &ConvertOptions| match Conversion::begin(&text(&src), &out, options).unwrap() {
        Begun::Open(conversion) => *conversion,
        Begun::Unchanged(_) => panic!("it is there already"),
    };
    let (one, other) = (filtered("id < 5"), ConvertOptions { overwrite: true, ..filtered("id >= 5") });
    let first = begin(&one);
    let (late, fingerprint) = (first.attempts().unwrap(), first.fingerprint().to_owned());
    drop(first);
    let mut second = begin(&other);
    let attempts = second.attempts().unwrap();
    let tasks = second.tasks().unwrap();
    // A late task of the first conversion finds no directory.
    let did = |place: &Path, options: &ConvertOptions, fingerprint: &str, task| {
        work(&text(&src), place, options, fingerprint, task, &Progress::default())
    };
    assert!(did(&late.join("0"), &one, &fingerprint, 0).is_err());
    // Nor is it adopted if it has one.
    let place = attempts.join("late");
    let worked = did(&place, &one, &fingerprint, 0).unwrap();
    let error = second.adopt(&worked, &place).unwrap_err();
    assert!(matches!(error, Error::Config { option: "worked", .. }), "{error}");
    for task in tasks {
        let place = attempts.join(task.to_string());
        let worked = did(&place, &other, second.fingerprint(), task).unwrap();
        second.adopt(&worked, &place).unwrap();
    }
    assert_eq!(second.finish(&Progress::default()).unwrap().rows, 15);
    assert_eq!(ids(&out), (5..20).collect::<Vec<_>>());
}

#[test]
fn a_source_that_changes_is_not_published() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    fs::create_dir(&src).unwrap();
    for name in ["a.csv", "b.csv"] {
        fs::write(src.join(name), "id\n1\n2\n").unwrap();
    }
    let source = bowstring::convert::open(&text(&src), &ConvertOptions::default()).unwrap();
    fs::write(src.join("b.csv"), "id\n3\n4\n12").unwrap();
    let budget = bowstring::convert::Budget::new(1 << 30);
    assert!(source.read(0, &[0], &budget).unwrap().next().is_ok());
    let error = source.read(1, &[0], &budget).and_then(|mut batches| batches.next()).unwrap_err();
    assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn linked_directories_are_read() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["elsewhere", "src", "src/own"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("src/own/a.csv"), "id\n1\n").unwrap();
    fs::write(at("elsewhere/b.csv"), "id\n2\n").unwrap();
    symlink(at("elsewhere"), at("src/linked")).unwrap();
    symlink(at("nowhere"), at("src/broken")).unwrap();
    run(&at("src"), &at("out"), &ConvertOptions { verify: true, ..to(Format::Parquet) }).unwrap();
    assert_eq!(ids(&at("out")), [2, 1]);
    // One that would be data is not left out without a word.
    symlink("../../annex/key", at("src/own/c.csv")).unwrap();
    let (error, said) = kind(run(&at("src"), &at("more"), &to(Format::Parquet)));
    let told = ["own/c.csv", "../../annex/key", "fetch"].iter().all(|part| said.contains(part));
    assert!(matches!(error, Error::Store { .. }) && told, "{said}");
    fs::remove_file(at("src/own/c.csv")).unwrap();
    symlink(at("src"), at("src/own/again")).unwrap();
    let (error, said) = kind(run(&at("src"), &at("more"), &to(Format::Parquet)));
    assert!(matches!(error, Error::Store { .. }) && said.contains("own/again"), "{said}");
}

#[test]
fn columns_and_rows_are_chosen() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    numbers(&src, 3, 100);
    let filter = Some(Filter::Text("x > 0 and id >= 30".into()));
    let options = ConvertOptions { columns: vec!["id".into()], filter, verify: true, ..to(Format::Csv) };
    run(&src, &out, &options).unwrap();
    let found = rows(&out, &ConvertOptions::default()).unwrap();
    assert_eq!(found.num_columns(), 1);
    let positive = |id: &i64| (id.wrapping_mul(0x5851_F42D_4C95_7F2D) >> 7) > 0;
    assert_eq!(ids(&out), (30..300).filter(positive).collect::<Vec<_>>());
    let (error, text) = kind(run(&src, &out, &ConvertOptions { columns: vec!["idd".into()], ..to(Format::Csv) }));
    assert!(matches!(error, Error::NotFound { .. }) && text.contains("id, x"), "{text}");
    // An empty selection is still a dataset.
    let none = Some(Filter::Text("id < 0".into()));
    for format in
        [Format::Parquet, Format::Csv, Format::Jsonl, Format::Arrow, Format::Mds, Format::Datasets, Format::Tfrecord]
    {
        let out = directory.path().join(format!("none-{format}"));
        let report = run(&src, &out, &ConvertOptions { filter: none.clone(), verify: true, ..to(format) });
        assert_eq!(report.unwrap_or_else(|error| panic!("{format}: {}", error.chain())).rows, 0);
        let found = rows(&out, &ConvertOptions::default()).unwrap();
        assert_eq!((found.num_rows(), found.num_columns()), (0, 2), "{format}");
    }
}

#[test]
fn the_number_of_files_is_exact() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 3, 400);
    for shards in [1, 2, 5, 12, 30] {
        let out = directory.path().join(format!("out-{shards}"));
        let options = ConvertOptions { shards: Some(shards), verify: true, ..to(Format::Jsonl) };
        let report = run(&src, &out, &options).unwrap();
        assert_eq!((report.files, report.rows), (shards, 1200));
        assert_eq!(names(&out).iter().filter(|name| name.ends_with(".jsonl")).count(), shards);
        same(&src, &out);
    }
}

#[test]
fn a_shuffle_is_a_permutation_that_threads_do_not_change() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 5, 300);
    let shuffled = |name: &str, seed: u64, jobs: usize| {
        let out = directory.path().join(name);
        let options = ConvertOptions {
            shuffle: Some(seed),
            jobs: Some(jobs),
            shards: Some(3),
            verify: true,
            ..to(Format::Parquet)
        };
        run(&src, &out, &options).unwrap();
        same(&src, &out);
        ids(&out)
    };
    let (one, four, other) = (shuffled("a", 7, 1), shuffled("b", 7, 4), shuffled("c", 8, 2));
    assert_eq!(one, four);
    assert_ne!(one, other);
    // Far from the original order: neighbours seldom remain neighbours.
    let near = one.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 2).count();
    assert!(near < 40, "{near} of 1500");
}

#[test]
fn two_at_once_do_not_meet() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    numbers(&src, 2, 100);
    // Another open file holds the lock, in any process, even one that is not visible from here.
    let path = directory.path().join(".out.bowstring-convert.lock");
    let mut held = fs::File::create(&path).unwrap();
    held.try_lock().unwrap();
    writeln!(held, "process 7 of host elsewhere").unwrap();
    let (error, text) = kind(run(&src, &out, &to(Format::Csv)));
    assert!(matches!(error, Error::Closed { .. }) && text.contains("process 7 of host elsewhere"), "{text}");
    assert!(!out.exists() && !directory.path().join(".out.bowstring-convert").exists(), "nothing is touched");
    // The file of a lock that is not held, as a kill leaves it, blocks nobody, and is removed.
    drop(held);
    run(&src, &out, &to(Format::Csv)).unwrap();
    assert_eq!(names(directory.path()), ["out", "src"]);
}

#[test]
fn what_is_not_there_any_more_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    numbers(&src, 3, 50);
    let options = ConvertOptions { shards: Some(3), ..to(Format::Csv) };
    let again = ConvertOptions { overwrite: true, ..options.clone() };
    run(&src, &out, &options).unwrap();
    let part = out.join("part-00001.csv");
    let whole = fs::read(&part).unwrap();
    type Change<'a> = (&'a str, &'a dyn Fn());
    let changes: [Change<'_>; 5] = [
        ("part-00001.csv is missing", &|| fs::remove_file(&part).unwrap()),
        ("part-00001.csv has another size", &|| fs::write(&part, b"id,x\n").unwrap()),
        ("part-00001.csv has other content", &|| fs::write(&part, vec![b'7'; whole.len()]).unwrap()),
        ("more.csv was added", &|| fs::write(out.join("more.csv"), b"id,x\n1,1\n").unwrap()),
        ("_files is missing", &|| fs::remove_file(out.join("_files")).unwrap()),
    ];
    for (what, change) in changes {
        change();
        let refused = plan(&text(&src), &out, &options);
        assert!(matches!(refused, Err(Error::Config { option: "overwrite", .. })), "{what}: {refused:?}");
        let (error, said) = kind(run(&src, &out, &options));
        assert!(matches!(error, Error::Config { option: "overwrite", .. }) && said.contains(what), "{what}: {said}");
        let report = match what {
            // Files added by others are not deleted unless requested.
            "more.csv was added" => {
                let (error, said) = kind(run(&src, &out, &again));
                assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{said}");
                assert!(said.contains("more.csv") && out.join("more.csv").exists(), "{said}");
                run(&src, &out, &ConvertOptions { overwrite_foreign: true, ..again.clone() }).unwrap()
            }
            _ => run(&src, &out, &again).unwrap(),
        };
        assert!(!report.unchanged && fs::read(&part).unwrap() == whole, "{what}");
        assert!(run(&src, &out, &options).unwrap().unchanged);
    }
    // Overwriting makes it again, even without a difference.
    assert!(!run(&src, &out, &again).unwrap().unchanged);
    // The output of an earlier version may be replaced, and does not count as complete.
    let success = out.join("_SUCCESS");
    let mut said: serde_json::Value = serde_json::from_slice(&fs::read(&success).unwrap()).unwrap();
    said.as_object_mut().unwrap().remove("contents").unwrap();
    fs::write(&success, said.to_string()).unwrap();
    let (_, text) = kind(run(&src, &out, &options));
    assert!(text.contains("no list of its files"), "{text}");
    run(&src, &out, &again).unwrap();
    same(&src, &out);
}

#[test]
fn what_no_conversion_made_is_not_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("thesis"));
    numbers(&src, 1, 50);
    let options = |overwrite, overwrite_foreign| ConvertOptions { overwrite, overwrite_foreign, ..to(Format::Csv) };
    fs::create_dir_all(out.join("chapters")).unwrap();
    // The empty `_SUCCESS` of others does not count.
    for name in ["chapters/1.tex", "_SUCCESS"] {
        fs::write(out.join(name), "").unwrap();
    }
    let (error, text) = kind(run(&src, &out, &options(true, false)));
    assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }), "{text}");
    assert!(out.join("chapters/1.tex").exists());
    assert_eq!(names(directory.path()), ["src", "thesis"]);
    let (error, _) = kind(run(&src, &out, &options(false, true)));
    assert!(matches!(error, Error::Config { option: "overwrite_foreign", .. }));
    run(&src, &out, &options(true, true)).unwrap();
    same(&src, &out);
    // An empty directory belongs to nobody.
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    run(&src, &empty, &options(true, false)).unwrap();
}

/// Returns the binary, without a terminal.
pub(super) fn bowstring() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowstring"));
    command.stdin(Stdio::null());
    command
}

#[test]
#[cfg(feature = "cli")]
fn the_verbs_say_what_they_did() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 2, 500);
    let out = directory.path().join("out.tfrecord");
    let said = |arguments: &[&str], code: i32| {
        let output = bowstring().args(arguments).output().unwrap();
        let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stdout}{stderr}");
        stdout + &stderr
    };
    let (src, to) = (text(&src), text(&out));
    let dry = said(&["convert", &src, &to, "--dry-run"], 0);
    assert!(dry.contains("parquet (by its names) -> tfrecord") && dry.contains("int64") && !out.exists(), "{dry}");
    let done = said(&["convert", &src, &to, "--verify", "--jobs", "2"], 0);
    assert!(done.contains("1,000") && done.contains("found equal"), "{done}");
    assert!(said(&["convert", &src, &to, "--verify"], 0).contains("Nothing to do"));
    let json: serde_json::Value =
        serde_json::from_str(&said(&["convert", &src, &to, "--verify", "--json"], 0)).unwrap();
    assert_eq!((&json["unchanged"], &json["to"]), (&true.into(), &"tfrecord".into()));
    assert!(said(&["verify", &src, &to], 0).contains("The same rows"));
    let less = text(&directory.path().join("less"));
    said(&["convert", &src, &less, "--to", "csv", "--filter", "id != 7"], 0);
    let found = said(&["verify", &src, &less], 3);
    assert!(found.contains("Different") && found.contains("Only in A: 1 rows") && found.contains("id=7 "), "{found}");
    assert!(said(&["convert", &src, &less, "--to", "lance"], 2).contains("Lance"));
    assert!(said(&["convert", &src, &less, "--to", "csv"], 2).contains("overwrite"));
}

#[test]
#[cfg(all(feature = "cli", target_os = "linux"))]
fn a_disk_that_takes_no_more_leaves_nothing_half() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 4, 20_000);
    for format in ["parquet", "csv", "arrow", "tfrecord", "webdataset", "mds", "jsonl", "datasets", "petastorm"] {
        let out = directory.path().join("out");
        // No file may grow beyond 16 KiB: the system's error is the same as for a full disk.
        let script = format!(
            "ulimit -f 16; trap '' XFSZ; exec {} convert \"$0\" \"$1\" --to {format}",
            env!("CARGO_BIN_EXE_bowstring")
        );
        let output = Command::new("bash").args(["-c", &script, &text(&src), &text(&out)]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{format}: {stderr}");
        assert!(stderr.contains("File too large") && stderr.contains("out"), "{format}: {stderr}");
        assert_eq!(names(directory.path()), ["src"], "{format}");
    }
    let output = bowstring().args(["convert", &text(&src), "/proc/nowhere/out", "--to", "csv"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn two_columns_of_one_name_are_neither_compared_nor_converted() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let write = |name: &str, second: Vec<i64>| {
        let column = |values: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
        let batch = batch(vec![("x", column(vec![1, 2])), ("x", column(second))]);
        let file = fs::File::create(at(name)).unwrap();
        let mut writer = arrow::ipc::writer::FileWriter::try_new(file, batch.schema_ref()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    };
    write("a.arrow", vec![3, 4]);
    write("b.arrow", vec![99, 98]);
    let said = compared(&at("a.arrow"), &at("b.arrow"), &ConvertOptions::default()).unwrap_err().to_string();
    assert!(said.contains("two columns named \"x\"") && said.contains("rename one of them"), "{said}");
    for columns in [vec![], vec!["x".to_owned()]] {
        let options = ConvertOptions { columns, ..to(Format::Parquet) };
        let (error, said) = kind(run(&at("a.arrow"), &at("never"), &options));
        assert!(matches!(error, Error::Unsupported { .. }) && said.contains("a.arrow"), "{said}");
        assert!(!at("never").exists());
    }
}

#[test]
fn differences_are_found_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let table = |ids: Vec<i64>, x: Vec<Option<i64>>| {
        batch(vec![
            ("id", Arc::new(Int64Array::from(ids)) as ArrayRef),
            ("x", Arc::new(Int64Array::from(x)) as ArrayRef),
        ])
    };
    parquet(&at("a.parquet"), &table(vec![1, 2, 3, 3], vec![Some(1), None, Some(3), Some(3)]));
    parquet(&at("b.parquet"), &table(vec![3, 1, 2, 3], vec![Some(3), Some(1), None, Some(3)]));
    same(&at("a.parquet"), &at("b.parquet"));
    parquet(&at("c.parquet"), &table(vec![1, 2, 3, 2], vec![Some(1), None, Some(3), Some(0)]));
    let found = compared(&at("a.parquet"), &at("c.parquet"), &ConvertOptions::default()).unwrap();
    assert!(!found.equal && found.only_first == 1 && found.only_second == 1, "{found:?}");
    assert_eq!(found.examples_first, ["id=3 x=3"]);
    assert_eq!(found.examples_second, ["id=2 x=0"]);
}
