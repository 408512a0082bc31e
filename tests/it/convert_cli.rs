//! `bowstring convert` between standard streams, and with interrupts.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cli::{Ran, command, ran, run, small, text};
use crate::support::until;

/// Runs the command with `input` on its standard input and temporary files in `room`, which must be empty afterwards.
fn fed(args: &[&str], input: &[u8], room: &Path) -> (i32, Vec<u8>, String) {
    let mut command = command(args);
    command.env("TMPDIR", room).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A child that refuses the input closes it.
    let writer = std::thread::spawn(move || stdin.write_all(&input).is_ok());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(fs::read_dir(room).unwrap().count(), 0, "{args:?} left something");
    (output.status.code().unwrap(), output.stdout, String::from_utf8(output.stderr).unwrap())
}

fn interrupt(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn standard_input_and_output_are_single_files() {
    let room = tempfile::tempdir().unwrap();
    let lines = b"id,name\n1,one\n2,\n3,\"t,h\"\n".as_slice();
    let (code, stdout, stderr) = fed(&["convert", "-", "-", "--from", "csv", "--to", "jsonl"], lines, room.path());
    assert_eq!(code, 0, "{stderr}");
    let wanted = "{\"id\":1,\"name\":\"one\"}\n{\"id\":2,\"name\":null}\n{\"id\":3,\"name\":\"t,h\"}\n";
    assert_eq!(String::from_utf8(stdout).unwrap(), wanted);
    assert!(stderr.contains("-: csv -> -: jsonl"), "{stderr}");
    // A chain of formats ends with its first input, compressed in between.
    let mut data = lines.to_vec();
    for (from, to, more) in [
        ("csv", "arrow", None),
        ("arrow", "parquet", None),
        ("parquet", "tfrecord", Some("--compression=gzip")),
        ("tfrecord", "webdataset", None),
        ("webdataset", "jsonl", Some("--compression=zstd")),
        ("jsonl", "csv", None),
    ] {
        let args = ["convert", "-", "-", "--verify", "--columns=id", "--from", from, "--to", to];
        let (code, stdout, stderr) = fed(&[&args[..], more.as_slice()].concat(), &data, room.path());
        assert_eq!(code, 0, "{from} to {to}: {stderr}");
        assert!(!stdout.is_empty());
        data = stdout;
    }
    assert_eq!(String::from_utf8(data).unwrap(), "id\n1\n2\n3\n");
}

#[test]
fn many_files_come_out_as_one_in_their_order() {
    let (room, data) = (tempfile::tempdir().unwrap(), small());
    let args = ["convert", text(data.path()), "-", "--to=csv", "--columns=id", "--json"];
    let (code, stdout, stderr) = fed(&args, b"", room.path());
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<String> = (0..100).map(|id| format!("{id}\n")).collect();
    assert_eq!(String::from_utf8(stdout).unwrap(), format!("id\n{}", rows.concat()));
    assert_eq!(serde_json::from_str::<Value>(&stderr).unwrap()["rows"], 100);
    // A failed conversion writes no output.
    let (code, stdout, stderr) = fed(&["convert", "-", "-", "--from=csv", "--to=jsonl"], b"a,b\n1\n", room.path());
    assert!(code == 3 && stdout.is_empty() && stderr.contains("standard input"), "{code}: {stderr}");
}

#[test]
fn options_that_streams_cannot_have_are_refused() {
    let data = small();
    let source = text(data.path());
    for (args, what) in [
        (&["-", "out"][..], "give it with --from"),
        (&["-", "out", "--from=mds"], "mds is a directory of files"),
        (&[source, "-"], "give it with --to"),
        (&[source, "-", "--to=images"], "images is a directory of files"),
        (&[source, "-", "--to=csv", "--resume"], "option resume"),
        (&[source, "-", "--to=csv", "--overwrite"], "option overwrite"),
        (&[source, "-", "--to=csv", "--shards=2"], "option shards"),
        (&[source, "-", "--to=csv", "--target-file-size=1KiB"], "option target_file_size"),
        (&["/dev/null", "out", "--from=csv"], "neither a file nor a directory"),
        (&[source, "out.csv.bz2"], "name it out.csv"),
        (&[source, "out.tfrecord.gz"], "name it out.tfrecord"),
    ] {
        let Ran { code, stdout, stderr } = run(&[&["convert"], args].concat());
        assert!(code == 2 && stdout.is_empty() && stderr.contains(what), "{args:?}: {code} {stderr}");
    }
}

#[test]
fn an_interrupted_input_leaves_nothing() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let directory = tempfile::tempdir().unwrap();
        let room = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let mut command = command(&["convert", "-", text(&out), "--from=csv", "--to=parquet"]);
        command.env("TMPDIR", room.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"a\n1\n").unwrap();
        // The handler is installed before the file appears.
        let begun = || {
            fs::read_dir(room.path()).unwrap().flatten().any(|inner| inner.path().join("standard input.csv").exists())
        };
        until("the file of the input", begun);
        interrupt(&child, signal);
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{told}");
        assert!(told.contains("Interrupted while standard input was read"), "{told}");
        assert!(!out.exists());
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_resume_without_earlier_work_says_that_it_starts_from_the_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let (source, out) = (directory.path().join("source.csv"), directory.path().join("out"));
    fs::write(&source, "id\n1\n").unwrap();
    let args = ["convert", text(&source), text(&out), "--to=jsonl"];
    let resumed = run(&[&args[..], &["--resume"]].concat());
    assert_eq!(resumed.code, 0, "{}", resumed.stderr);
    assert!(resumed.stdout.contains("from the beginning: nothing of an earlier run"), "{}", resumed.stdout);
    fs::remove_dir_all(&out).unwrap();
    assert!(!run(&args).stdout.contains("from the beginning"));
}

#[test]
fn an_interrupted_conversion_explains_how_to_resume() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir(&source).unwrap();
    let rows: String = (0..30_000).map(|id| format!("{id},{},text of row {id}\n", id * 3)).collect();
    for file in 0..16 {
        fs::write(source.join(format!("{file:02}.csv")), format!("id,b,c\n{rows}")).unwrap();
    }
    let (out, hidden) = (directory.path().join("out"), directory.path().join(".out.bowstring-convert"));
    let args = ["convert", text(&source), text(&out), "--to=jsonl", "--jobs=1"];
    let mut command = command(&args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the conversion", || hidden.exists());
    interrupt(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{told}");
    // The advice depends on whether a task had finished.
    let way = if hidden.exists() { "--resume" } else { "nothing was finished: the same command starts again" };
    assert!(told.contains("Interrupted after") && told.contains(way), "{told}");
    assert!(output.stdout.is_empty() && !out.exists());
    let again = ran({
        let mut command = crate::cli::command(&args);
        command.args(["--resume", "--json"]);
        command
    });
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(serde_json::from_str::<Value>(&again.stdout).unwrap()["rows"], 480_000);
    assert!(!hidden.exists());
}
