//! Every writer that makes files visible, killed right before every call that changes the disk: the old or the new dataset is there,
//! complete, and the next process continues.
//!
//! A library preloaded before the C library counts the calls (tests/crash/crash.c). The exchange of two names is not a call of the C
//! library; the kills right before and after it are.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use bowstring::dataset::{DatasetWriter, WriterOptions};

use crate::child;
use crate::dataset::{open, read_all};
use crate::support::{self, Random};

/// A writer that makes files visible.
struct Way {
    name: &'static str,
    /// Writes version `version` of `root/d`, in place of the existing one.
    make: fn(&Path, i64),
    /// True if the dataset may be missing after a kill, until the next process begins.
    gap: bool,
    /// True if a former dataset stays hidden beside the new one after a kill between its replacement and its removal.
    keeps_old: bool,
}

const WAYS: &[Way] = &[
    Way { name: "writer", make: by_writer, gap: false, keeps_old: true },
    #[cfg(feature = "convert")]
    Way { name: "convert", make: by_conversion, gap: true, keeps_old: false },
    #[cfg(feature = "flight")]
    Way { name: "put", make: by_commit, gap: false, keeps_old: false },
];

/// Rows of a version: enough for two files of a conversion.
const ROWS: i64 = 50;

fn rows(version: i64) -> std::ops::Range<i64> {
    version * ROWS..(version + 1) * ROWS
}

fn batch(version: i64) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
    RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(rows(version)))]).unwrap()
}

fn by_writer(root: &Path, version: i64) {
    let batch = batch(version);
    let options = WriterOptions { overwrite: true, ..WriterOptions::default() };
    let mut writer = DatasetWriter::create(&root.join("d"), batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

#[cfg(feature = "convert")]
fn by_conversion(root: &Path, version: i64) {
    use bowstring::convert::{ConvertOptions, Format, Progress, convert};
    let source = root.with_extension("csv");
    let lines: Vec<String> = rows(version).map(|id| format!("{id}\n")).collect();
    fs::write(&source, format!("id\n{}", lines.concat())).unwrap();
    let options =
        ConvertOptions { to: Some(Format::Parquet), overwrite: true, jobs: Some(1), ..ConvertOptions::default() };
    convert(source.to_str().unwrap(), &root.join("d"), &options, &Progress::default()).unwrap();
}

#[cfg(feature = "flight")]
fn by_commit(root: &Path, version: i64) {
    use bowstring::flight::put::{Mode, Staging, StagingOptions, WriteId};
    crate::dataset::runtime().block_on(async {
        let staging = Staging::directory(root, StagingOptions::default()).await.unwrap();
        let write = WriteId::new("d", &version.to_string()).unwrap();
        let batch = batch(version);
        let batches = futures::stream::iter([Ok(batch.clone())]);
        let staged = staging.stage(&write, 0, 0, batch.schema(), batches).await.unwrap();
        staging.commit(&write, Mode::Replace, &[staged.token]).await.unwrap();
    });
}

/// The role of a child process.
pub(crate) fn make() {
    let name = support::variable("CRASH_WAY").unwrap();
    let way = WAYS.iter().find(|way| way.name == name).unwrap();
    (way.make)(Path::new(&support::variable("CRASH_ROOT").unwrap()), 1);
}

/// Returns the version that readers see.
fn seen(root: &Path) -> Option<i64> {
    let path = root.join("d");
    if !path.exists() {
        return None;
    }
    let found = read_all(&open(&[path.to_str().unwrap()], Default::default()).unwrap()).unwrap();
    let ids = found.column_by_name("id").unwrap().as_any().downcast_ref::<Int64Array>().unwrap().clone();
    let version = ids.value(0) / ROWS;
    assert_eq!(ids.values().to_vec(), rows(version).collect::<Vec<_>>(), "a version is whole");
    Some(version)
}

/// Lists the hidden files beside the dataset.
fn hidden(root: &Path) -> Vec<String> {
    let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.') && name != ".bowstring").collect()
}

/// Writes version 1 in a child that is killed before its call number `at`, or not at all. Returns its changes to the disk.
fn run(way: &Way, library: &Path, root: &Path, at: usize) -> (bool, Vec<(String, u64, PathBuf)>) {
    let log = root.with_extension("log");
    let _ = fs::remove_file(&log);
    let mut command = child::command("crash::make");
    command.env("LD_PRELOAD", library).env("CRASH_WAY", way.name).env("CRASH_ROOT", root).env("CRASH_LOG", &log);
    let output = command.env("CRASH_AT", at.to_string()).output().unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(killed || output.status.success(), "{}: {output:?}", way.name);
    let text = fs::read_to_string(&log).unwrap_or_default();
    let calls = text.lines().map(|line| {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().unwrap().to_owned();
        (word(), word().parse().unwrap(), PathBuf::from(word()))
    });
    (killed, calls.collect())
}

/// Checks that every visible file was on the disk before it became visible, and its name after that.
fn is_on_disk(way: &Way, root: &Path, calls: &[(String, u64, PathBuf)]) {
    let name = way.name;
    let shown = calls.iter().rposition(|(what, ..)| what == "rename").unwrap();
    let flushed = |number: u64| calls[..shown].iter().rposition(|(what, file, _)| what == "fsync" && *file == number);
    let directory = fs::canonicalize(root.join("d")).unwrap();
    let mut files = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        let number = entry.metadata().unwrap().ino();
        let at = flushed(number).unwrap_or_else(|| panic!("{name}: {:?} was not flushed: {calls:#?}", entry.path()));
        let written = calls.iter().rposition(|(what, file, _)| what == "write" && *file == number).unwrap_or(0);
        assert!(written <= at, "{name}: {:?} was written after it was flushed", entry.path());
        files += 1;
    }
    assert!(files >= 2, "{name}: a file and _SUCCESS");
    assert!(flushed(fs::metadata(&directory).unwrap().ino()).is_some(), "{name}: the names were not flushed");
    let above = fs::metadata(root).unwrap().ino();
    let last = calls[shown..].iter().any(|(what, file, _)| what == "fsync" && *file == above);
    assert!(last, "{name}: the new name was not flushed: {calls:#?}");
}

#[test]
fn a_writer_killed_at_any_step_leaves_the_old_or_the_new_dataset() {
    let library = crate::support::compile("tests/crash/crash.c", "crash.so", &[], &[]);
    let seed = support::seed("crash::");
    let mut random = Random(seed | 1);
    for way in WAYS {
        let directory = tempfile::tempdir().unwrap();
        let fresh = |number: usize| {
            let root = directory.path().join(number.to_string());
            fs::create_dir(&root).unwrap();
            (way.make)(&root, 0);
            assert_eq!(seen(&root), Some(0));
            root
        };
        let root = fresh(0);
        let (killed, calls) = run(way, &library, &root, 0);
        assert!(!killed && seen(&root) == Some(1), "{}", way.name);
        is_on_disk(way, &root, &calls);
        let mut outcomes = BTreeMap::<Option<i64>, usize>::new();
        // All calls around the last rename, which publishes the dataset, and some of the others.
        let shown = calls.iter().rposition(|(what, ..)| what == "rename").unwrap();
        for at in 1..=calls.len() {
            if !support::soak() && at.abs_diff(shown + 1) > 4 && random.below(10) > 0 {
                continue;
            }
            let root = fresh(at);
            let (killed, calls) = run(way, &library, &root, at);
            let place = format!("{} at call {at}: {:?}, seed {seed}", way.name, calls.last());
            let found = seen(&root);
            assert!(found.is_some() || way.gap, "{place}: nothing is there");
            *outcomes.entry(found).or_default() += 1;
            assert!(killed || found == Some(1), "{place}");
            // The next process writes another version, whatever was left.
            (way.make)(&root, 2);
            assert_eq!(seen(&root), Some(2), "{place}");
            let left = hidden(&root);
            assert!(left.iter().all(|name| way.keeps_old && name.ends_with(".old")), "{place}: {left:?} is left");
        }
        println!("{}: {} calls, seen after a kill: {outcomes:?}", way.name, calls.len());
        assert!(outcomes.contains_key(&Some(0)) && outcomes.contains_key(&Some(1)), "{}: {outcomes:?}", way.name);
    }
}
