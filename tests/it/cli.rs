//! The `bowstring` binary as people and scripts see it: output, JSON, exit codes, pipes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, FixedSizeListArray, Int64Array, ListArray, MapArray, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use bowstring::pipeline::rank;
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use crate::support;

/// The outcome of one run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command with arguments `args`, in an environment without options or a launcher.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowstring"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if rank::variables().any(|variable| variable == text) || text.starts_with("BOWSTRING_") {
            command.env_remove(&name);
        }
    }
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

pub(crate) fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().expect("no signal"), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn run(args: &[&str]) -> Ran {
    ran(command(args))
}

fn json(args: &[&str]) -> Value {
    let ran = run(&[args, &["--json"]].concat());
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    assert_eq!(ran.stderr, "", "{args:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}\n{}", ran.stdout))
}

/// 100 rows in row groups of 60 and 40: `id` and one float column.
pub(crate) fn small() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![60, 40]], 1);
    directory
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const PHOTOS: &str = "fixtures/imagenet40.parquet";

#[test]
fn inspect_describes_a_dataset() {
    let report = json(&["inspect", PHOTOS, "--world-size", "8"]);
    assert_eq!((&report["rows"], &report["selected"]), (&40.into(), &40.into()));
    assert_eq!(report["row_groups"].as_array().unwrap().len(), 5);
    let names: Vec<_> =
        report["columns"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names.iter().filter(|name| ["image", "label", "path"].contains(name)).count(), 3, "{names:?}");
    let images = &report["images"][0];
    assert_eq!((&images["column"], &images["formats"][0][0]), (&"image".into(), &"JPEG".into()));
    assert!(images["width"]["median"].as_u64().unwrap() > 100);
    let advice = report["advice"].to_string();
    assert!(advice.contains("5 row groups are too few for 8 ranks"), "{advice}");
    assert_eq!(json(&["inspect", PHOTOS, "--no-images"])["images"], Value::Array(Vec::new()));
}

#[test]
fn inspect_prints_a_stable_text() {
    let text = run(&["inspect", PHOTOS]).stdout;
    let expected = include_str!("cli_inspect.txt");
    assert_eq!(text, expected, "left: found; right: tests/it/cli_inspect.txt");
}

#[test]
fn inspect_tells_rows_that_a_table_deleted_from_those_that_a_filter_leaves_out() {
    let table = "fixtures/delta/dv-with-columnmapping/delta";
    let report = json(&["inspect", table]);
    let deleted = report["rows"].as_u64().unwrap() - report["selected"].as_u64().unwrap();
    let text = run(&["inspect", table]).stdout;
    assert!(deleted > 1 && text.contains(&format!("Of these, {deleted} are deleted.")), "{text}");
    let name = report["columns"][0]["name"].as_str().unwrap();
    let text = run(&["inspect", table, "--filter", &format!("{name} is not null")]).stdout;
    assert!(text.contains("The filter selects") && !text.contains("deleted"), "{text}");
}

/// Writes a file of one column.
fn written(path: &Path, name: &str, column: ArrayRef) {
    let batch = RecordBatch::try_from_iter([(name, column)]).unwrap();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn inspect_finds_what_lies_in_lists_of_structs_and_in_maps() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.parquet");
    let int = |nulls: bool| Field::new("a", DataType::Int64, nulls);
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let structs = |fields: Fields, columns| -> ArrayRef { Arc::new(StructArray::new(fields, columns, None)) };
    let items = structs(vec![int(true)].into(), vec![numbers]);
    let item = Arc::new(Field::new("anything", items.data_type().clone(), true));
    let lists: ArrayRef = Arc::new(FixedSizeListArray::new(Arc::clone(&item), 1, Arc::clone(&items), None));
    let offsets = || OffsetBuffer::from_lengths([2, 0]);
    let ragged: ArrayRef = Arc::new(ListArray::new(item, offsets(), items, None));
    let keys: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let pair = vec![Field::new("k", DataType::Utf8, false), Field::new("v", DataType::Int64, false)];
    let pairs = StructArray::new(pair.into(), vec![keys, Arc::new(Int64Array::from(vec![1, 2]))], None);
    let entries = Arc::new(Field::new("pairs", pairs.data_type().clone(), false));
    let map: ArrayRef = Arc::new(MapArray::new(entries, offsets(), pairs, None, false));
    let all: Fields = [("f", &lists), ("l", &ragged), ("m", &map)]
        .map(|(name, array)| Field::new(name, array.data_type().clone(), false))
        .to_vec()
        .into();
    written(&path, "s", structs(all, vec![lists, ragged, map]));
    let report = json(&["inspect", text(&path)]);
    let columns = report["columns"].as_array().unwrap();
    let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["s.f.a", "s.l.a", "s.m.key", "s.m.value"]);
    let sum: u64 = columns.iter().map(|column| column["stored_bytes"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), report["stored_bytes"].as_u64());
    assert!(columns.iter().all(|column| column["stored_bytes"].as_u64() > Some(0)), "{columns:?}");
    let advice = report["advice"].to_string();
    assert!(advice.contains("s.f.a has 1 null or empty list"), "{advice}");
    assert!(advice.contains("s.l.a has 2 nulls or empty lists"), "{advice}");
    // No key and no value can be null: an empty map is all there is.
    assert!(!advice.contains("s.m."), "{advice}");
}

#[test]
fn inspect_takes_no_empty_list_for_a_null() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.parquet");
    for (nullable, said) in [(true, 1), (false, 0)] {
        let item = Arc::new(Field::new("item", DataType::Int64, nullable));
        let numbers = Arc::new(Int64Array::from(vec![1]));
        let lists = ListArray::new(item, OffsetBuffer::from_lengths([0, 1, 0]), numbers, None);
        written(&path, "l", Arc::new(lists));
        let advice = json(&["inspect", text(&path)])["advice"].to_string();
        assert_eq!(advice.matches("l has 2 nulls or empty lists").count(), said, "{advice}");
        assert!(!advice.contains("which are errors"), "{advice}");
    }
}

#[test]
fn names_in_a_file_cannot_steer_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.parquet");
    let name = "a\u{1b}]0;owned\u{7}\u{202e}b";
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    written(&path, name, column);
    for args in [vec!["inspect", text(&path)], vec!["bench", text(&path), "--columns", "a\u{1b}x"]] {
        let ran = run(&args);
        let seen = ran.stdout + &ran.stderr;
        assert!(!seen.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{seen:?}");
    }
    assert_eq!(json(&["inspect", text(&path)])["columns"][0]["name"], name);
}

#[test]
fn inspect_of_a_filter_counts_the_selected_rows() {
    let data = small();
    let report = json(&["inspect", text(data.path()), "--filter", "id < 7"]);
    assert_eq!((&report["rows"], &report["selected"]), (&100.into(), &7.into()));
}

#[test]
fn plan_counts_steps_rows_and_reads_per_rank() {
    let data = small();
    let report = json(&["plan", text(data.path()), "--batch-size", "8", "--world-size", "3", "--tail", "drop"]);
    assert_eq!((&report["steps"], &report["rows"]), (&4.into(), &96.into()));
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!(ranks.iter().map(|rank| rank["rows"].as_u64().unwrap()).collect::<Vec<_>>(), [32, 32, 32]);
    assert!(ranks.iter().all(|rank| (1..=2).contains(&rank["row_groups"].as_u64().unwrap())), "{report}");
    assert_eq!(report["memory"]["fits"], true);
    let many = tempfile::tempdir().unwrap();
    support::write(many.path(), &[vec![100; 40]], 0);
    let quality = |shuffle: &str| {
        let report = json(&["plan", text(many.path()), "--batch-size", "64", "--shuffle", shuffle]);
        report["shuffle_quality"].as_f64().unwrap()
    };
    let (ordered, shuffled) = (quality("false"), quality("true"));
    assert!(ordered < 0.5 && 0.9 < shuffled && shuffled <= 1.0, "{ordered} {shuffled}");
    // One rank reads everything once; a budget that is too small is a finding, not an error.
    let report = json(&["plan", text(data.path()), "--batch-size", "8", "--memory-budget", "1KiB"]);
    assert_eq!((&report["ranks"][0]["row_groups"], &report["memory"]["fits"]), (&2.into(), &false.into()));
}

#[test]
fn plan_reports_shared_reads_and_advises_a_change() {
    let many = tempfile::tempdir().unwrap();
    support::write(many.path(), &[vec![1000; 16]], 0);
    let args = ["plan", text(many.path()), "--batch-size", "10", "--world-size", "8", "--rate", "1MiB"];
    let of = |more: &[&str]| json(&[&args[..], more].concat());
    let times = |report: &Value| report["reading"]["times_read"].as_f64().unwrap();
    let shuffled = of(&[]);
    assert!(times(&shuffled) < 1.25 && shuffled["advice"].as_array().unwrap().is_empty(), "{shuffled}");
    let worlds: Vec<_> =
        shuffled["worlds"].as_array().unwrap().iter().map(|world| world["world_size"].as_u64()).collect();
    assert_eq!(worlds, [1, 8, 64, 256, 1024, 4096].map(Some));
    assert!(shuffled["first_batch_seconds"].as_f64().unwrap() > 0.0, "{shuffled}");
    let (one, ordered) = (of(&["--lanes", "1"]), of(&["--shuffle", "false"]));
    for report in [&one, &ordered] {
        assert_eq!((times(report), &report["reading"]["shared_row_groups"]), (8.0, &16.into()), "{report}");
        let advice = report["advice"].as_array().unwrap();
        assert!(advice[0].as_str().unwrap().contains("read the data 8.0 times"), "{advice:?}");
        assert!(advice[1].as_str().unwrap().contains("lanes=8"), "{advice:?}");
    }
    let parts = of(&["--shuffle", "false", "--lanes", "8"]);
    assert!(times(&parts) < 1.25, "{parts}");
}

#[test]
fn bench_delivers_every_row_and_names_a_bottleneck() {
    let data = small();
    let report = json(&["bench", text(data.path()), "--batch-size", "7", "--epochs", "3"]);
    assert_eq!((&report["rows"], &report["steps"]), (&300.into(), &45.into()));
    let parts = report["time"].as_array().unwrap();
    let percent: f64 = parts.iter().map(|part| part["percent"].as_f64().unwrap()).sum();
    assert!((percent - 100.0).abs() < 1e-6, "{report}");
    assert!(parts.iter().any(|part| part["cause"] == report["bottleneck"]["cause"]), "{report}");
    assert_eq!(json(&["bench", text(data.path()), "--batch-size", "7", "--steps", "2"])["steps"], 2);
    let text = run(&["bench", text(data.path())]).stdout;
    assert!(text.contains("100 rows in 2 steps") && text.contains("The consumer waits for data"), "{text}");
}

#[test]
fn demo_resumes_exactly() {
    let report = json(&["demo", "--epochs", "1"]);
    assert_eq!((&report["resume_identical"], &report["ranks_identical"]), (&true.into(), &true.into()));
    assert_eq!((&report["rows"], &report["steps"]), (&40.into(), &5.into()));
    assert!(report["state"]["spec"].is_object());
    let again = json(&["demo", "--epochs", "1"]);
    assert_eq!(report["digests"], again["digests"]);
    let other = json(&["demo", "--epochs", "1", "--seed", "8"]);
    assert_ne!(report["digests"], other["digests"]);
}

#[test]
fn doctor_describes_the_process() {
    let alone = json(&["doctor"]);
    assert_eq!((&alone["rank"]["rank"], &alone["rank"]["world_size"]), (&0.into(), &1.into()));
    assert!(alone["threads"].as_u64().unwrap() >= 1);
    assert!(!alone["jpeg_decoder"].as_str().unwrap().is_empty());

    let mut torchrun = command(&["doctor"]);
    torchrun.env("RANK", "2").env("WORLD_SIZE", "4");
    let torchrun = ran(torchrun);
    assert!(torchrun.code == 0 && torchrun.stdout.contains("2 of 4; torchrun"), "{torchrun:?}");

    let mut own = command(&["doctor"]);
    own.env("RANK", "2").env("WORLD_SIZE", "4").env("BOWSTRING_RANK", "1").env("BOWSTRING_WORLD_SIZE", "3");
    let own = ran(own);
    assert!(own.code == 0 && own.stdout.contains("1 of 3; BOWSTRING_RANK"), "{own:?}");

    let mut half = command(&["doctor"]);
    half.env("RANK", "2");
    let half = ran(half);
    assert!(half.code == 2 && half.stdout.contains("WORLD_SIZE is not"), "{half:?}");

    let cluster = r#"{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":1}}"#;
    let mut worker = command(&["doctor"]);
    worker.env("TF_CONFIG", cluster);
    let worker = ran(worker);
    assert!(worker.code == 0 && worker.stdout.contains("1 of 2; TF_CONFIG (task worker 1"), "{worker:?}");
}

#[test]
fn exit_codes_tell_the_kind_of_error() {
    let data = small();
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken.parquet");
    std::fs::write(&broken, b"PAR1 this is no Parquet file PAR1").unwrap();
    let cases: [(&[&str], i32, &str); 10] = [
        (&[], 2, "Usage"),
        (&["inspect"], 2, "URL"),
        (&["inspect", "/nowhere/x.parquet"], 2, "not found"),
        (&["inspect", text(&broken)], 3, "broken.parquet"),
        (&["plan", text(data.path())], 2, "batch_size"),
        (&["plan", text(data.path()), "--batch-size", "0"], 2, "--batch-size"),
        (&["bench", text(data.path()), "--memory-budget", "1KiB"], 3, "memory_budget"),
        (&["bench", text(data.path()), "--columns", "idd"], 2, "idd"),
        (&["bench", text(data.path()), "--filter", "id <"], 2, "filter"),
        // The other loader is Python's, which the binary does not have.
        (&["bench", text(data.path()), "--against", "torch"], 2, "pip install"),
    ];
    for (args, code, what) in cases {
        let ran = run(args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(what), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    let error = run(&["inspect", "/nowhere/x.parquet"]).stderr;
    assert!(error.starts_with("error: "), "{error}");
}

#[test]
fn a_store_without_credentials_is_an_error_of_five_lines_that_says_which_to_set() {
    let home = tempfile::tempdir().unwrap();
    let mut command = command(&["inspect", "s3://photos/train"]);
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"] {
        command.env_remove(name);
    }
    // Nobody answers there in place of a machine's metadata service.
    let output = command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1").env("HOME", home.path()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("set AWS_ACCESS_KEY_ID"), "{error}");
    assert!(error.lines().count() <= 5, "{error}");
}

#[test]
fn options_come_from_flags_environment_and_file_in_this_order() {
    let data = small();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, r#"{{"urls": [{:?}], "batch_size": 10, "tail": "drop", "seed": 3}}"#, text(data.path())).unwrap();
    let steps = |variable: Option<&str>, args: &[&str]| {
        let mut command = command(&[&["plan", "--json", "--options", text(file.path())], args].concat());
        command.envs(variable.map(|size| ("BOWSTRING_BATCH_SIZE", size)));
        let ran = ran(command);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["steps"].as_u64().unwrap()
    };
    assert_eq!(steps(None, &[]), 10);
    assert_eq!(steps(Some("20"), &[]), 5);
    assert_eq!(steps(Some("20"), &["--batch-size", "50"]), 2);
}

#[test]
fn completions_name_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0, "{ran:?}");
        for verb in ["inspect", "plan", "bench", "demo", "doctor", "completions"] {
            assert!(ran.stdout.contains(verb), "{shell} lacks {verb}");
        }
    }
}

#[test]
fn every_verb_has_a_man_page() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("man1");
    let pages = json(&["man", text(&directory)]);
    let pages: Vec<_> = pages["pages"].as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    let help = run(&["--help"]).stdout;
    let verbs = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let verbs: Vec<_> = verbs.map_while(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").collect();
    assert!(verbs.contains(&"inspect") && verbs.contains(&"man"), "{help}");
    for verb in &verbs {
        let page = std::fs::read_to_string(directory.join(format!("bowstring-{verb}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(&format!("bowstring\\-{verb}")), "{page}");
    }
    let page = std::fs::read_to_string(directory.join("bowstring.1")).unwrap();
    assert!(
        verbs.iter().all(|verb| page.contains(&format!("bowstring\\-{verb}(1)"))) && page.contains("Exit codes"),
        "{page}"
    );
    assert!(pages.len() > verbs.len(), "those of verbs below verbs too: {pages:?}");
    #[cfg(feature = "flight")]
    assert!(pages.iter().any(|page| page.ends_with("/bowstring-cache-serve.1")), "{pages:?}");
    // The same pages at any time.
    let before = std::fs::read(directory.join("bowstring.1")).unwrap();
    assert_eq!(run(&["man", text(&directory)]).stdout.lines().count(), pages.len());
    assert_eq!(std::fs::read(directory.join("bowstring.1")).unwrap(), before);
    let ran = run(&["man", "Cargo.toml"]);
    assert!(ran.code == 1 && ran.stderr.contains("Cargo.toml cannot be written"), "{}", ran.stderr);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$0\" man \"$1\"", env!("CARGO_BIN_EXE_bowstring")]);
    limited.arg(directory.path()).env_clear().stdin(Stdio::null());
    let ran = ran(limited);
    assert!(ran.code == 1 && ran.stderr.contains("cannot be written"), "{}", ran.stderr);
}

#[test]
fn a_closed_pipe_is_quiet() {
    let mut command = command(&["completions", "bash"]);
    // The reading end closes before anything is written.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn the_next_run_opens_from_the_written_index() {
    let directory = small();
    let url = text(directory.path());
    let plain = json(&["inspect", url]);
    let made = json(&["index", url]);
    let beside = std::fs::canonicalize(directory.path()).unwrap().join("_bowstring_index");
    assert_eq!((&made["index"], &made["rows"]), (&Value::from(text(&beside)), &Value::from(100)));
    assert_eq!(made["fingerprint"], plain["fingerprint"]);
    // An index covers all columns and rows, so options that choose some are refused.
    let ran = run(&["index", url, "--columns", "nope"]);
    assert!(ran.code == 2 && ran.stderr.contains("--columns"), "{}", ran.stderr);
    // An index is found automatically, and then its damage does no harm; a requested one that is damaged is an error.
    assert_eq!(json(&["inspect", url]), plain);
    assert_eq!(json(&["inspect", url, "--index", text(&beside)]), plain);
    std::fs::write(&beside, "no index").unwrap();
    assert_eq!(json(&["inspect", url]), plain);
    let ran = run(&["inspect", url, "--index", text(&beside)]);
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("the index is damaged"), "{}", ran.stderr);
    let ran = run(&["index", url, "-o", text(&directory.path().join("of.index"))]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("100 rows in 2 row groups of 1 file: ") && ran.stdout.contains("of.index"));
}

#[cfg(feature = "convert")]
#[test]
fn convert_expands_globs_and_home_and_explains_bad_destinations() {
    let data = small();
    let directory = tempfile::tempdir().unwrap();
    let whole = std::fs::read_dir(data.path()).unwrap().next().unwrap().unwrap().path();
    for name in ["part-1.parquet", "part-2.parquet", "part-3.parquet"] {
        std::fs::copy(&whole, directory.path().join(name)).unwrap();
    }
    let rows = |pattern: &str, out: &str| {
        let mut command = command(&["convert", "--json", pattern, &format!("~/{out}")]);
        command.env("HOME", directory.path());
        let ran = ran(command);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(directory.path().join(out).is_dir());
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["rows"].as_u64().unwrap()
    };
    let one = rows("~/part-1.parquet", "one.csv");
    assert_eq!(rows("~/part-?.parquet", "all.csv"), 3 * one);
    assert_eq!(rows("~/part-[12].parquet", "two.csv"), 2 * one);
    // Also for other formats than Parquet, whose dataset lists its files itself.
    assert_eq!(rows("~/{one,two}.csv/?*.csv", "again.jsonl"), 3 * one);
    let none = text(directory.path()).to_owned() + "/one.csv/[xyz]*.csv";
    let ran = run(&["convert", &none, text(&directory.path().join("none.jsonl"))]);
    assert!(ran.code == 2 && ran.stderr.contains("[xyz]*.csv not found") && ran.stderr.contains("quote"), "{ran:?}");
    let file = directory.path().join("part-1.parquet");
    for (src, dst, what) in [
        ("-", "out", "standard input"),
        (text(&file), "-", "standard output"),
        (text(&file), "out.csv.gz", "name it out.csv"),
        (text(&file), text(&file), "is a file"),
    ] {
        let ran = run(&["convert", src, dst]);
        assert!(ran.code == 2 && ran.stderr.contains(what), "{ran:?}");
    }
}

#[test]
fn bench_prints_its_figures_when_interrupted() {
    let data = small();
    let mut bench =
        command(&["bench", "--json", text(data.path()), "--batch-size=1", "--epochs=100000", "--consumer-ms=20"]);
    let bench = bench.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Long enough to begin, on a busy machine too; if it has not begun by then, this fails.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let killed = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = bench.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("Interrupted after"), "{told}");
    assert!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["steps"].as_u64().unwrap() > 0);
}

#[test]
fn reports_are_pages_with_plots_too() {
    let directory = small();
    let data = text(directory.path());
    let page = directory.path().join("page.html");
    for (verb, parts) in [
        (&["inspect", data][..], ["Sizes of row groups", "Bytes of columns", "row group 1"]),
        (
            &["plan", data, "--batch-size", "8", "--world-size", "2"],
            ["Rows of each rank", "rank 1", "Quality of the shuffle"],
        ),
        (&["bench", data, "--batch-size", "8"], ["Where time goes", "consumer", "The consumer waits"]),
    ] {
        let ran = run(&[verb, &["--html", text(&page)]].concat());
        assert_eq!(ran.code, 0, "{verb:?}: {}", ran.stderr);
        let html = std::fs::read_to_string(&page).unwrap();
        for part in parts {
            assert!(html.contains(part), "{verb:?}, {part}: {html}");
        }
        assert!(html.contains("<svg") && !html.contains("<script") && !html.contains("NaN"), "{verb:?}");
        // The text that was printed is on the page.
        let first = ran.stdout.lines().next().unwrap();
        assert!(html.contains(first), "{first}: {html}");
    }
    let ran = run(&["plan", data, "--batch-size", "8", "--html", "/nowhere/page.html"]);
    assert!(ran.code == 1 && ran.stderr.contains("error: /nowhere/page.html cannot be written"), "{ran:?}");
    let mut at_home = command(&["plan", data, "--batch-size", "8", "--html=~/home.html"]);
    at_home.env("HOME", directory.path());
    assert!(self::ran(at_home).code == 0 && directory.path().join("home.html").is_file());
}

#[test]
fn what_a_server_does_not_obey_is_refused_as_a_flag_and_in_a_file_and_left_out_as_a_variable() {
    let folder = tempfile::tempdir().unwrap();
    let options = folder.path().join("options.json");
    std::fs::write(&options, r#"{"filter": "x > 1"}"#).unwrap();
    let asked = |more: &[&str], variable: Option<(&str, &str)>| {
        let mut asked = command(&[&["inspect", "grpc://127.0.0.1:1"], more].concat());
        asked.envs(variable);
        ran(asked).stderr
    };
    for (more, says) in [
        (&["--limits", r#"{"max_files": 1}"#][..], "option limits: it is set in the server's catalogue"),
        (&["--options", text(&options)], "option filter: is of one dataset"),
    ] {
        let told = asked(more, None);
        assert!(told.contains(says), "{told}");
    }
    // What the list obeys, and what is of this process, is as good in a file as elsewhere.
    std::fs::write(&options, r#"{"timeout": 20, "threads": 1, "memory_budget": "1GiB", "storage_options": {}}"#)
        .unwrap();
    let told = asked(&["--options", text(&options)], None);
    assert!(!told.contains("of one dataset") && told.contains("127.0.0.1:1"), "{told}");
    let told = asked(&[], Some(("BOWSTRING_CACHE", "memory")));
    assert!(!told.contains("option cache") && told.contains("127.0.0.1:1"), "{told}");
    let rate = run(&["plan", PHOTOS, "--batch-size", "8", "--rate", "0"]);
    assert!(rate.code == 2 && rate.stderr.contains("option rate"), "{rate:?}");
}
