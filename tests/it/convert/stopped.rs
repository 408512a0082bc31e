use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array};
use bowstring::Error;
use bowstring::convert::{Begun, Conversion, ConvertOptions, Format, Progress, convert, verify};

use super::whole::{bowstring, ids, numbers};
use super::{batch, kind, names, parquet, run, same, text, to};

/// A conversion that is whole and not published.
fn unpublished(src: &Path, out: &Path, options: &ConvertOptions) -> Conversion {
    let Begun::Open(mut begun) = Conversion::begin(&text(src), out, options).unwrap() else { panic!("not begun") };
    begun.run(&Progress::default()).unwrap();
    *begun
}

#[test]
fn an_overwriting_conversion_that_was_killed_at_its_end_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    numbers(&at("src"), 2, 50);
    let options = ConvertOptions { overwrite: true, resume: true, ..to(Format::Csv) };
    let hidden = at(".out.bowstring-convert");
    for whole in [true, false] {
        run(&at("src"), &at("out"), &ConvertOptions { resume: false, ..options.clone() }).unwrap();
        let again = unpublished(&at("src"), &at("out"), &ConvertOptions { resume: false, ..options.clone() });
        let journal = fs::read(hidden.join("journal")).unwrap();
        again.finish(&Progress::default()).unwrap();
        // As a kill leaves it when the files have been renamed away.
        fs::create_dir(&hidden).unwrap();
        fs::write(hidden.join("journal"), journal).unwrap();
        if !whole {
            fs::remove_file(at("out").join("part-00000.csv")).unwrap();
            let (error, said) = kind(run(&at("src"), &at("out"), &options));
            assert!(matches!(error, Error::Corrupt { .. }) && said.contains("no file"), "{said}");
        }
        let done = run(&at("src"), &at("out"), &options).unwrap();
        assert_eq!((done.unchanged, done.rows), (whole, 100));
        assert_eq!(names(directory.path()), ["out", "src"]);
    }
}

#[test]
fn an_overwriting_conversion_that_was_killed_before_its_end_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    numbers(&at("src"), 2, 50);
    let options = ConvertOptions { overwrite: true, resume: true, ..to(Format::Csv) };
    run(&at("src"), &at("out"), &ConvertOptions { resume: false, ..options.clone() }).unwrap();
    let again = unpublished(&at("src"), &at("out"), &ConvertOptions { resume: false, ..options.clone() });
    drop(again);
    assert!(bowstring::convert::is_unfinished(&at("out")), "nothing is tested");
    // The finished dataset of the first one is still there.
    let done = run(&at("src"), &at("out"), &options).unwrap();
    assert!(!done.unchanged && done.resumed_tasks > 0, "{done:?}");
    assert_eq!(names(directory.path()), ["out", "src"]);
}

#[test]
fn what_was_interrupted_is_resumed_only_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src.parquet"), directory.path().join("out"));
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    parquet(&src, &batch(vec![("id", ids)]));
    let progress = Progress::default();
    progress.stop();
    let outcome = convert(&text(&src), &out, &to(Format::Csv), &progress);
    assert!(matches!(outcome, Err(Error::Closed { .. })) && !out.exists());
    // Nothing was finished, so nothing is kept.
    assert_eq!(names(directory.path()), ["src.parquet"]);
    // A directory as a kill leaves it.
    let staging = directory.path().join(".out.bowstring-convert");
    fs::create_dir_all(&staging).unwrap();
    fs::write(staging.join("journal"), "{\"fingerprint\":\"of another\"}\n").unwrap();
    for (resume, overwrite, ok) in [(false, false, false), (true, false, false), (false, true, true)] {
        let outcome = run(&src, &out, &ConvertOptions { resume, overwrite, ..to(Format::Csv) });
        assert_eq!(outcome.is_ok(), ok, "{outcome:?}");
    }
    assert_eq!(names(directory.path()), ["out", "src.parquet"]);
}

#[test]
fn what_is_asked_to_stop_at_its_end_publishes_nothing_and_is_resumed() {
    let stopped = Progress::default();
    stopped.stop();
    // The tasks of a shuffle are its buckets, of which there may be more than parts of the source.
    for (verified, shuffle) in [(false, None), (true, None), (false, Some(3))] {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        numbers(&at("src"), 2, 50);
        let shards = shuffle.map(|_| 3);
        let options = ConvertOptions { verify: verified, shuffle, shards, ..to(Format::Csv) };
        let begun = Conversion::begin(&text(&at("src")), &at("out"), &options).unwrap();
        let Begun::Open(mut conversion) = begun else { panic!("not begun") };
        conversion.run(&Progress::default()).unwrap();
        assert!(matches!(conversion.finish(&stopped), Err(Error::Closed { .. })));
        assert!(!at("out").exists());
        let done = run(&at("src"), &at("out"), &ConvertOptions { resume: true, ..options }).unwrap();
        assert_eq!((done.rows, done.resumed_tasks), (100, done.tasks));
        let compared = verify(&text(&at("src")), &text(&at("out")), &ConvertOptions::default(), &stopped);
        assert!(matches!(compared, Err(Error::Closed { .. })));
    }
}

#[test]
fn what_was_begun_to_be_verified_is_resumed_without() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    numbers(&at("src"), 2, 50);
    let plain = to(Format::Csv);
    let verified = ConvertOptions { verify: true, ..plain.clone() };
    let resumed =
        |options: &ConvertOptions| run(&at("src"), &at("out"), &ConvertOptions { resume: true, ..options.clone() });
    drop(unpublished(&at("src"), &at("out"), &verified));
    let done = resumed(&plain).unwrap();
    assert_eq!((done.resumed_tasks, done.verified), (done.tasks, false));
    fs::remove_dir_all(at("out")).unwrap();
    // The rows of finished tasks cannot be compared if nothing was noted of them.
    drop(unpublished(&at("src"), &at("out"), &plain));
    let (error, said) = kind(resumed(&verified));
    assert!(matches!(error, Error::Config { option: "resume", .. }) && said.contains("without verify"), "{said}");
    assert_eq!(resumed(&plain).unwrap().resumed_tasks, done.tasks);
    fs::remove_dir_all(at("out")).unwrap();
    drop(unpublished(&at("src"), &at("out"), &plain));
    let anew = resumed(&ConvertOptions { overwrite: true, ..verified }).unwrap();
    assert_eq!((anew.resumed_tasks, anew.verified), (0, true));
}

/// Makes rows of some 40 MiB in Parquet, so that a shuffle has several buckets.
fn large(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut noise = || {
        let mut cell = Vec::with_capacity(1024);
        for _ in 0..128 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            cell.extend_from_slice(&state.to_le_bytes());
        }
        cell
    };
    for file in 0..4_i64 {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(file * 10_000..(file + 1) * 10_000));
        let cells: ArrayRef = Arc::new(arrow::array::BinaryArray::from_iter_values((0..10_000).map(|_| noise())));
        parquet(&directory.join(format!("part-{file}.parquet")), &batch(vec![("id", ids), ("x", cells)]));
    }
}

#[test]
fn a_shuffle_goes_on_with_other_memory_and_other_cores() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    large(&src);
    let options = |memory: u64, jobs: usize| ConvertOptions {
        shuffle: Some(3),
        memory_budget: memory << 20,
        jobs: Some(jobs),
        resume: true,
        verify: true,
        ..to(Format::Arrow)
    };
    // Neither memory nor cores affect the order; in 32 MiB a bucket does not fit and is scattered again.
    let mut expected: Option<Vec<i64>> = None;
    for (memory, jobs) in [(1024, 4), (32, 1)] {
        let out = directory.path().join(format!("out-{memory}-{jobs}"));
        assert_eq!(run(&src, &out, &options(memory, jobs)).unwrap().rows, 40_000);
        let found = ids(&out);
        let mut sorted = found.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..40_000), "every row, once");
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found, "{memory} MiB, {jobs} jobs");
    }
    // Interrupted after the first buckets, and continued as on another machine.
    let out = directory.path().join("out");
    for (before, after) in [((64, 1), (1024, 3)), ((1024, 1), (48, 2))] {
        let progress = Progress::default();
        let outcome = std::thread::scope(|scope| {
            let running = scope.spawn(|| convert(&text(&src), &out, &options(before.0, before.1), &progress));
            while progress.rows() == 0 && !running.is_finished() {
                std::thread::yield_now();
            }
            progress.stop();
            running.join().unwrap()
        });
        assert!(matches!(outcome, Err(Error::Closed { .. })), "{outcome:?}");
        let report = run(&src, &out, &options(after.0, after.1)).unwrap();
        assert!(report.resumed_tasks > 0 && report.rows == 40_000, "{report:?}");
        assert_eq!(Some(ids(&out)), expected);
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_shuffle_that_is_stopped_while_it_scatters_keeps_what_is_scattered() {
    let directory = tempfile::tempdir().unwrap();
    let (src, out) = (directory.path().join("src"), directory.path().join("out"));
    large(&src);
    let options = ConvertOptions { shuffle: Some(3), jobs: Some(1), verify: true, ..to(Format::Arrow) };
    let progress = Progress::default();
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| convert(&text(&src), &out, &options, &progress));
        // Some of its tasks have been read, and not all.
        while (progress.total() == 0 || progress.bytes() * 2 < progress.total()) && !running.is_finished() {
            std::thread::yield_now();
        }
        progress.stop();
        running.join().unwrap()
    });
    assert!(matches!(outcome, Err(Error::Closed { .. })) && !out.exists(), "{outcome:?}");
    assert!(bowstring::convert::is_unfinished(&out));
    assert!(directory.path().join(".out.bowstring-convert/scratch/0/whole").is_file());
    let (error, said) = kind(run(&src, &out, &options));
    assert!(matches!(error, Error::Config { option: "resume", .. }), "{said}");
    let report = run(&src, &out, &ConvertOptions { resume: true, ..options }).unwrap();
    assert!(report.rows == 40_000 && report.verified, "{report:?}");
    assert_eq!(names(directory.path()), ["out", "src"]);
}

#[test]
#[cfg(feature = "cli")]
fn kills_at_random_lose_and_repeat_nothing() {
    let kills = if crate::support::soak() { 200 } else { 15 };
    let seed = crate::support::seed("convert::stopped::kills");
    let mut random = crate::support::Random(seed);
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    numbers(&src, 24, 4_000);
    let formats = ["parquet", "tfrecord", "mds", "webdataset", "csv"];
    let (mut killed, mut finished, mut resumed) = (0, 0, 0);
    let mut patience = Duration::from_millis(400);
    while killed < kills {
        let format = formats[finished % formats.len()];
        let out = directory.path().join(format!("out-{finished}"));
        // A task per file, so that there is work to resume.
        let arguments = ["convert", &text(&src), &text(&out), "--to", format, "--shards", "24", "--resume", "--json"];
        let arguments: Vec<String> =
            arguments.iter().map(ToString::to_string).chain((finished % 4 == 3).then(|| "--shuffle".into())).collect();
        loop {
            let mut child = bowstring().args(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let started = Instant::now();
            let wait = if killed < kills {
                Duration::from_micros(random.below(patience.as_micros() as u64 + 1))
            } else {
                Duration::from_secs(600)
            };
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break Some(status);
                }
                if started.elapsed() >= wait {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    break None;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            match status {
                None => {
                    killed += 1;
                    // The destination holds all or nothing.
                    if out.exists() {
                        assert!(out.join("_SUCCESS").is_file());
                        assert_eq!(
                            names(&out).iter().filter(|name| !name.starts_with('_') && *name != "index.json").count(),
                            24
                        );
                    }
                }
                Some(status) => {
                    let output = child.wait_with_output().unwrap();
                    assert!(status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                    resumed += report["resumed_tasks"].as_u64().unwrap();
                    // Long enough to finish now and then on this machine, short enough to be killed.
                    patience = started.elapsed().max(Duration::from_millis(20)) * 3 / 2;
                    break;
                }
            }
        }
        same(&src, &out);
        assert!(!names(directory.path()).iter().any(|name| name.starts_with('.')), "nothing stays behind");
        fs::remove_dir_all(&out).unwrap();
        finished += 1;
    }
    println!("{killed} kills, {finished} conversions finished, {resumed} tasks not repeated");
}
