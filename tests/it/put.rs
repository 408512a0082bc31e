//! Staged writes: exactly the committed rows are there, at once, whatever was retried, doubled, aborted, forgotten or killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, BinaryArray, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::error::Error;
use bowstring::flight::put::{DiskQuotas, Mode, Staged, Staging, StagingOptions, Token, WriteId};

use crate::child;
use crate::dataset::read_group;
use crate::support::{self, Random};

const MIB: u64 = 1 << 20;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Seeds to try, the first of them from the environment.
fn seeds() -> std::ops::Range<u64> {
    let first = support::variable("BOWSTRING_TEST_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("repeat with: BOWSTRING_TEST_SEED=<seed> cargo test --test it put::");
    first..first + if support::soak() { 200 } else { 20 }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]))
}

fn batch(ids: &[i64]) -> RecordBatch {
    RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(ids.to_vec()))]).unwrap()
}

fn write(dataset: &str, id: impl std::fmt::Display) -> WriteId {
    WriteId::new(dataset, &id.to_string()).unwrap()
}

async fn stage(staging: &Staging, write: &WriteId, task: u32, attempt: u32, ids: &[i64]) -> Result<Staged, Error> {
    let batches: Vec<_> = ids.chunks(7).map(|ids| Ok(batch(ids))).collect();
    staging.stage(write, task, attempt, schema(), futures::stream::iter(batches)).await
}

/// Ids of the dataset at `url`, in its order.
async fn ids(url: &str) -> Vec<i64> {
    let dataset = Dataset::open(&[url.to_owned()], OpenOptions::default()).await.unwrap();
    let projection = dataset.project(&["id".to_owned()]).unwrap();
    let mut ids = Vec::new();
    for group in 0..dataset.manifest().groups.len() {
        let batch = read_group(&dataset, &projection, group).await.unwrap();
        ids.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
    }
    ids
}

async fn visible(staging: &Staging, dataset: &str) -> Option<Vec<i64>> {
    Some(ids(&staging.url(dataset)?).await)
}

/// What there is below `.bowstring`, by directory.
fn hidden(root: &Path) -> BTreeMap<String, Vec<String>> {
    let names = |path: &Path| {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    let hidden = root.join(".bowstring");
    let directories = names(&hidden).into_iter().filter(|name| hidden.join(name).is_dir());
    directories.map(|name| (name.clone(), names(&hidden.join(&name)))).collect()
}

// ---- random interleavings ------------------------------------------------------------------------------------------

/// One write: a few tasks, attempted once, again, twice at once, in vain; then committed, aborted or left.
async fn one_write(staging: &Staging, write: &WriteId, random: &mut Random, next: &mut i64) -> (Vec<Token>, Vec<i64>) {
    let mut running = Vec::new();
    for task in 0..1 + random.below(4) as u32 {
        let attempts = 1 + random.below(3) as u32;
        for attempt in 0..attempts {
            let count = random.below(40) as i64;
            // All attempts of a task write other rows, so that each can be told.
            let ids: Vec<i64> = (*next..*next + count).collect();
            *next += count;
            let (staging, write, fate) = (staging.clone(), write.clone(), random.below(6));
            running.push((
                task,
                tokio::spawn(async move {
                    match fate {
                        // The stream breaks.
                        0 => {
                            let broken = Error::Closed { why: "planted".to_owned() };
                            let batches = futures::stream::iter([Ok(batch(&ids)), Err(broken)]);
                            let error = staging.stage(&write, task, attempt, schema(), batches).await.unwrap_err();
                            assert!(error.to_string().contains("planted"), "{error}");
                            None
                        }
                        // The writer goes away in the middle.
                        1 => {
                            let endless = futures::StreamExt::chain(
                                futures::stream::iter([Ok(batch(&ids))]),
                                futures::stream::pending(),
                            );
                            let staged = staging.stage(&write, task, attempt, schema(), endless);
                            assert!(tokio::time::timeout(Duration::from_millis(5), staged).await.is_err());
                            None
                        }
                        _ => {
                            let staged = stage(&staging, &write, task, attempt, &ids).await.unwrap();
                            assert_eq!((staged.rows, staged.token.task), (ids.len() as u64, task));
                            Some((staged, ids))
                        }
                    }
                }),
            ));
        }
    }
    let mut staged: BTreeMap<u32, Vec<(Staged, Vec<i64>)>> = BTreeMap::new();
    for (task, attempt) in running {
        if let Some(attempt) = attempt.await.unwrap() {
            staged.entry(task).or_default().push(attempt);
        }
    }
    let (mut tokens, mut rows) = (Vec::new(), Vec::new());
    for attempts in staged.values() {
        let (staged, ids) = &attempts[random.below(attempts.len() as u64) as usize];
        tokens.push(staged.token);
        rows.extend_from_slice(ids);
    }
    (tokens, rows)
}

async fn interleavings(staging: &Staging, seed: u64) {
    let mut random = Random(seed);
    let mut next = 0;
    let mut expected: BTreeMap<&str, Option<Vec<i64>>> = BTreeMap::from([("a", None), ("b", None)]);
    for number in 0..8 {
        let dataset = if random.below(2) == 0 { "a" } else { "b" };
        let write = write(dataset, number);
        let (tokens, rows) = one_write(staging, &write, &mut random, &mut next).await;
        assert_eq!(visible(staging, dataset).await, expected[dataset], "seed {seed}: staged is not visible");
        let mode = [Mode::Create, Mode::Replace, Mode::Append][random.below(3) as usize];
        if random.below(5) == 0 || tokens.is_empty() {
            staging.abort(&write).await.unwrap();
            assert!(staging.commit(&write, mode, &tokens).await.is_err(), "seed {seed}: committed after an abort");
            assert!(matches!(stage(staging, &write, 0, 9, &[1]).await, Err(Error::Over { .. })), "seed {seed}");
        } else {
            let old = expected[dataset].clone();
            let committed = staging.commit(&write, mode, &tokens).await;
            match (&old, mode) {
                (Some(_), Mode::Create) => {
                    assert!(matches!(committed, Err(Error::Config { option: "mode", .. })), "seed {seed}");
                    staging.abort(&write).await.unwrap();
                }
                _ => {
                    let committed = committed.unwrap();
                    assert_eq!(committed.rows, rows.len() as u64, "seed {seed}");
                    let before = if mode == Mode::Append { old.unwrap_or_default() } else { Vec::new() };
                    expected.insert(dataset, Some([before, rows].concat()));
                    let again = staging.commit(&write, mode, &tokens).await.unwrap();
                    assert_eq!(again, committed, "seed {seed}: a commit again is none");
                    assert!(staging.abort(&write).await.is_err(), "seed {seed}: what is committed stays");
                    assert!(stage(staging, &write, 0, 9, &[1]).await.is_err(), "seed {seed}");
                }
            }
        }
        if random.below(6) == 0 {
            let dropped = staging.drop_dataset(dataset).await.unwrap();
            let was = expected.insert(dataset, None).flatten();
            assert_eq!(dropped, was.is_some(), "seed {seed}, dataset {dataset}, write {number}");
        }
        for (dataset, expected) in &expected {
            assert_eq!(visible(staging, dataset).await, *expected, "seed {seed}, dataset {dataset}, write {number}");
        }
    }
}

#[test]
fn random_interleavings_show_exactly_what_was_committed() {
    for seed in seeds() {
        runtime().block_on(async {
            let memory = Staging::memory(64 * MIB, StagingOptions::default()).unwrap();
            interleavings(&memory, seed).await;
            let root = tempfile::tempdir().unwrap();
            let directory = Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
            interleavings(&directory, seed).await;
            // An attempt whose writer went away is removed a moment later.
            for _ in 0..200 {
                if hidden(root.path())["_staged"].is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for (name, entries) in hidden(root.path()) {
                let most = if name == "_staged" { 0 } else { 2 };
                assert!(entries.len() <= most, "seed {seed}: {name} holds {entries:?}");
            }
        });
    }
}

// ---- limits and time -----------------------------------------------------------------------------------------------

#[test]
fn a_full_memory_refuses_and_keeps_nothing_half() {
    runtime().block_on(async {
        let staging = Staging::memory(MIB, StagingOptions::default()).unwrap();
        let first = write("d", "first");
        let token = stage(&staging, &first, 0, 0, &[1, 2, 3]).await.unwrap().token;
        staging.commit(&first, Mode::Create, &[token]).await.unwrap();
        let used = staging.memory_used();
        assert!(used > 0 && used < 10_000, "{used}");
        // Bytes that do not compress.
        let mut random = Random(7);
        let fields = vec![Field::new("x", DataType::Binary, false)];
        let schema = Arc::new(Schema::new(fields));
        let big: Vec<_> = (0..64)
            .map(|_| {
                let cell: Vec<u8> = (0..64 << 10).map(|_| random.below(256) as u8).collect();
                let column = Arc::new(BinaryArray::from(vec![cell.as_slice()]));
                Ok(RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap())
            })
            .collect();
        let second = write("d", "second");
        let refused = staging.stage(&second, 0, 0, schema, futures::stream::iter(big)).await.unwrap_err();
        assert!(matches!(refused, Error::Limit { limit: MIB, .. }), "{refused}");
        let said = refused.to_string();
        assert!(said.contains("half of its budget") && said.contains("raise memory_budget"), "{said}");
        assert_eq!(staging.memory_used(), used);
        assert_eq!(visible(&staging, "d").await.unwrap(), [1, 2, 3]);
        // A version that nobody needs makes room.
        for number in 0..50 {
            let write = write("d", number);
            let token = stage(&staging, &write, 0, 0, &[number]).await.unwrap().token;
            staging.commit(&write, Mode::Replace, &[token]).await.unwrap();
        }
        assert!(staging.memory_used() < 3 * used, "{} of {used}", staging.memory_used());
        let other = Staging::memory(MIB, StagingOptions::default()).unwrap();
        assert!(other.url("d").is_none(), "each memory is its own");
        let url = staging.url("d").unwrap();
        drop(staging);
        let gone = Dataset::open(&[url], OpenOptions::default()).await.unwrap_err();
        assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    });
}

#[test]
fn each_version_has_an_address_of_its_own_until_the_next_but_one() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        let memory = Staging::memory(MIB, StagingOptions::default()).unwrap();
        let directory = Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
        for staging in [&memory, &directory] {
            let mut urls = Vec::new();
            for (number, mode) in (0..3).zip([Mode::Create, Mode::Append, Mode::Replace]) {
                let token = stage(staging, &write("d", number), 0, 0, &[number]).await.unwrap().token;
                staging.commit(&write("d", number), mode, &[token]).await.unwrap();
                urls.push(staging.url("d").unwrap());
            }
            assert_eq!(ids(&urls[2]).await, [2]);
            assert_eq!(ids(&urls[1]).await, [0, 1], "who has opened the version before reads on");
            let gone = Dataset::open(&[urls[0].clone()], OpenOptions::default()).await.unwrap_err();
            assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
        }
    });
}

#[test]
fn a_write_that_is_not_committed_in_its_time_vanishes() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        let options = StagingOptions { time_to_live: Duration::from_millis(100), ..StagingOptions::default() };
        let memory = Staging::memory(MIB, options.clone()).unwrap();
        let directory = Staging::directory(root.path(), options).await.unwrap();
        let late = write("d", "late");
        let mut tokens = Vec::new();
        for staging in [&memory, &directory] {
            tokens.push(stage(staging, &late, 0, 0, &[1]).await.unwrap().token);
        }
        assert_eq!(hidden(root.path())["_staged"].len(), 1);
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!((memory.memory_used(), hidden(root.path())["_staged"].len()), (0, 0));
        for (staging, token) in [&memory, &directory].into_iter().zip(&tokens) {
            let error = staging.commit(&late, Mode::Create, &[*token]).await.unwrap_err();
            assert!(matches!(error, Error::NotFound { .. }), "{error}");
        }
    });
}

#[test]
fn the_disk_of_a_directory_is_bounded_and_remembered_over_a_restart() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        // Numbers that hardly compress: 8 bytes each.
        let some = |seed| {
            let mut random = Random(seed);
            (0..10_000).map(|_| random.next() as i64).collect::<Vec<_>>()
        };
        let one = 10_000 * 8;
        let open = async || {
            let disk = DiskQuotas { default: Some(3 * one), ..DiskQuotas::default() };
            Staging::directory(root.path(), StagingOptions { disk, ..StagingOptions::default() }).await.unwrap()
        };
        let refused = |error: Error| match error {
            Error::Limit { asked, limit, option: "written_bytes", .. } => {
                assert!(limit == 3 * one && asked > limit, "{asked} of {limit}");
            }
            other => panic!("{other}"),
        };
        let staging = open().await;
        let all = async |staging: &Staging, id: &str| {
            let write = write("d", id);
            let token = stage(staging, &write, 0, 0, &some(7)).await?.token;
            staging.commit(&write, Mode::Append, &[token]).await
        };
        all(&staging, "a").await.unwrap();
        let open_write = write("d", "open");
        stage(&staging, &open_write, 0, 0, &some(1)).await.unwrap();
        refused(stage(&staging, &open_write, 1, 0, &some(2)).await.unwrap_err());
        assert_eq!(hidden(root.path())["_staged"].len(), 1, "nothing stays of what was refused");
        staging.abort(&open_write).await.unwrap();
        // Linked files count once: the version before has the same as this one.
        all(&staging, "b").await.unwrap();
        refused(all(&staging, "c").await.unwrap_err());
        assert_eq!(visible(&staging, "d").await.unwrap().len(), 20_000);
        drop(staging);
        let staging = open().await;
        refused(all(&staging, "c").await.unwrap_err());
        assert!(staging.drop_dataset("d").await.unwrap());
        all(&staging, "c").await.unwrap();
        assert_eq!(visible(&staging, "d").await.unwrap(), some(7));
    });
}

/// Stages `messages` messages of 50 rows of `columns` numbers that hardly repeat, and says how many rows each row group has in the end.
async fn wide(columns: usize, messages: u64, buffer_bytes: u64) -> Vec<u64> {
    let root = tempfile::tempdir().unwrap();
    let options = StagingOptions { buffer_bytes, ..StagingOptions::default() };
    let staging = Staging::directory(root.path(), options).await.unwrap();
    let fields: Vec<Field> = (0..columns).map(|at| Field::new(format!("c{at}"), DataType::Float64, false)).collect();
    let schema = Arc::new(Schema::new(fields));
    let batches = (0..messages).map(|message| {
        let mut random = Random(message);
        let mut column =
            || -> ArrayRef { Arc::new(Float64Array::from_iter_values((0..50).map(|_| random.next() as f64))) };
        let columns = (0..columns).map(|_| column()).collect();
        Ok(RecordBatch::try_new(Arc::clone(&schema), columns).unwrap())
    });
    let write = write("wide", "w");
    let batches = futures::stream::iter(batches.collect::<Vec<_>>());
    let token = staging.stage(&write, 0, 0, Arc::clone(&schema), batches).await.unwrap().token;
    staging.commit(&write, Mode::Create, &[token]).await.unwrap();
    let dataset = Dataset::open(&[staging.url("wide").unwrap()], OpenOptions::default()).await.unwrap();
    dataset.manifest().groups.iter().map(|group| group.rows).collect()
}

#[test]
fn row_groups_of_wide_rows_are_as_large_as_memory_allows() {
    runtime().block_on(async {
        // Half of the memory as plain numbers of 8 bytes, where that is less than what a row group has at most.
        for (columns, messages, buffer, least) in
            [(2000, 40, 64 * MIB, 1600), (2000, 40, 16 * MIB, 400), (8000, 10, 64 * MIB, 400)]
        {
            let rows = wide(columns, messages, buffer).await;
            println!("{columns} columns in {} MiB: row groups of {rows:?} rows", buffer / MIB);
            let (last, others) = rows.split_last().unwrap();
            assert_eq!(last + others.iter().sum::<u64>(), messages * 50);
            assert!(others.iter().all(|rows| *rows >= least), "{columns} columns: {rows:?}");
        }
    });
}

#[test]
fn tries_at_one_thing_are_committed_once_and_aborted_together() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        let memory = Staging::memory(MIB, StagingOptions::default()).unwrap();
        let directory = Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
        for staging in [&memory, &directory] {
            let mut committed = Vec::new();
            for (number, run) in ["a", "b", "c"].into_iter().enumerate() {
                let write = write("d", format!("q-1-{run}"));
                let token = stage(staging, &write, 0, 0, &[number as i64]).await.unwrap().token;
                committed.push(staging.commit_as(&write, "q-1", Mode::Append, &[token]).await.unwrap());
                assert!(stage(staging, &write, 1, 0, &[9]).await.is_err(), "the write is over");
            }
            assert_eq!(committed[1..], [committed[0]; 2]);
            assert_eq!(visible(staging, "d").await.unwrap(), [0]);
            let used = staging.memory_used();
            for run in ["a", "b"] {
                stage(staging, &write("d", format!("q-2-{run}")), 0, 0, &[7]).await.unwrap();
            }
            assert_eq!(staging.abort_all("d", "q-2-").await.unwrap(), 2);
            assert_eq!(staging.memory_used(), used);
            let late = stage(staging, &write("d", "q-2-b"), 1, 0, &[7]).await.unwrap_err();
            assert!(matches!(late, Error::Over { .. }), "{late}");
            let next = write("d", "q-2-c");
            let token = stage(staging, &next, 0, 0, &[8]).await.unwrap().token;
            staging.commit_as(&next, "q-2", Mode::Append, &[token]).await.unwrap();
            assert_eq!(visible(staging, "d").await.unwrap(), [0, 8]);
            for name in ["", "../x"] {
                let error = staging.abort_all("d", name).await.unwrap_err();
                assert!(matches!(error, Error::Config { .. }), "{error}");
                assert!(staging.commit_as(&next, name, Mode::Append, &[token]).await.is_err());
            }
        }
        assert_eq!(hidden(root.path())["_staged"], Vec::<String>::new());
    });
}

#[test]
fn what_a_process_before_this_one_committed_cannot_be_aborted() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        let open = async || Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
        let done = write("d", "done");
        let staging = open().await;
        let token = stage(&staging, &done, 0, 0, &[1]).await.unwrap().token;
        let committed = staging.commit(&done, Mode::Create, &[token]).await.unwrap();
        drop(staging);
        for is_repeated in [false, true] {
            let staging = open().await;
            if is_repeated {
                assert_eq!(staging.commit(&done, Mode::Create, &[token]).await.unwrap(), committed);
            }
            let error = staging.abort(&done).await.unwrap_err();
            assert!(matches!(&error, Error::Over { why } if why.contains("committed")), "{error}");
            staging.abort(&write("d", "unknown")).await.unwrap();
            assert_eq!(visible(&staging, "d").await.unwrap(), [1]);
        }
    });
}

#[test]
fn a_dropped_dataset_takes_nothing_and_stays_away() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        let memory = Staging::memory(MIB, StagingOptions::default()).unwrap();
        let directory = Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
        for staging in [&memory, &directory] {
            let mut tokens = Vec::new();
            for number in 0..3 {
                tokens.push(stage(staging, &write("d", number), 0, 0, &[number]).await.unwrap().token);
                staging.commit(&write("d", number), Mode::Append, &tokens[number as usize..]).await.unwrap();
            }
            let open = stage(staging, &write("d", "open"), 0, 0, &[7]).await.unwrap().token;
            let url = staging.url("d").unwrap();
            assert!(staging.drop_dataset("d").await.unwrap());
            assert!(!staging.drop_dataset("d").await.unwrap(), "it is gone already");
            assert_eq!(staging.url("d"), None);
            let gone = Dataset::open(&[url], OpenOptions::default()).await.unwrap_err();
            assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
            for number in 0..3 {
                let own = number as usize;
                let again = staging.commit(&write("d", number), Mode::Append, &tokens[own..=own]).await;
                assert_eq!(again.unwrap().rows, 1, "a commit that was made stays made");
            }
            let others = staging.commit(&write("d", 0), Mode::Append, &tokens[1..]).await;
            assert!(matches!(others, Err(Error::Mismatch { .. })), "of another writer: {others:?}");
            assert_eq!(staging.url("d"), None, "and brings nothing back");
            let anew = staging.commit(&write("d", "open"), Mode::Create, &[open]).await;
            assert_eq!((anew.unwrap().rows, visible(staging, "d").await.unwrap()), (1, vec![7]));
            assert!(staging.drop_dataset("d").await.unwrap());
            for name in ["..", "_staged", ".bowstring", "a/b", ""] {
                let error = staging.drop_dataset(name).await.unwrap_err();
                assert!(matches!(error, Error::Config { option: "dataset", .. }), "{name}: {error}");
            }
        }
        assert_eq!(memory.memory_used(), 0);
        assert_eq!(hidden(root.path()), BTreeMap::from([("_staged".to_owned(), Vec::new())]));
        fs::create_dir(root.path().join("foreign")).unwrap();
        let error = directory.drop_dataset("foreign").await.unwrap_err();
        assert!(matches!(error, Error::Config { option: "dataset", .. }), "{error}");
        assert!(root.path().join("foreign").exists());
    });
}

#[test]
fn what_does_not_belong_together_is_refused() {
    runtime().block_on(async {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("foreign")).unwrap();
        let memory = Staging::memory(MIB, StagingOptions::default()).unwrap();
        let directory = Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
        for staging in [&memory, &directory] {
            let other = Arc::new(Schema::new(vec![Field::new("id", DataType::Utf8, false)]));
            let write_1 = write("d", 1);
            let first = stage(staging, &write_1, 0, 0, &[1]).await.unwrap().token;
            let none = futures::stream::iter(Vec::new());
            let second = staging.stage(&write_1, 1, 0, Arc::clone(&other), none).await.unwrap().token;
            let error = staging.commit(&write_1, Mode::Create, &[first, second]).await.unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            assert_eq!(staging.url("d"), None);
            staging.commit(&write_1, Mode::Create, &[first]).await.unwrap();
            let write_2 = write("d", 2);
            let none = futures::stream::iter(Vec::new());
            let appended = staging.stage(&write_2, 0, 0, Arc::clone(&other), none).await.unwrap().token;
            let error = staging.commit(&write_2, Mode::Append, &[appended]).await.unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            let wrong = futures::stream::iter([Ok(batch(&[1]))]);
            let error = staging.stage(&write("d", 3), 0, 0, other, wrong).await.unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            assert_eq!(visible(staging, "d").await.unwrap(), [1]);
            for name in ["..", "_staged", ".bowstring", "a/b"] {
                assert_eq!(staging.url(name), None);
            }
        }
        let write = write("foreign", 1);
        let token = stage(&directory, &write, 0, 0, &[1]).await.unwrap().token;
        let error = directory.commit(&write, Mode::Replace, &[token]).await.unwrap_err();
        assert!(matches!(error, Error::Config { option: "dataset", .. }), "{error}");
        // Another server would sweep what this one's tasks are writing.
        let busy =
            |error: Error| assert!(matches!(&error, Error::Closed { why } if why.contains("process")), "{error}");
        busy(Staging::directory(root.path(), StagingOptions::default()).await.unwrap_err());
        let waiting =
            |seconds| StagingOptions { lock_patience: Duration::from_secs_f64(seconds), ..StagingOptions::default() };
        busy(Staging::directory(root.path(), waiting(0.1)).await.unwrap_err());
        // One that drains is waited for.
        let (next, ()) = tokio::join!(Staging::directory(root.path(), waiting(20.0)), async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(directory);
        });
        assert_eq!(visible(&next.unwrap(), "d").await.unwrap(), [1]);
    });
}

// ---- kills ---------------------------------------------------------------------------------------------------------

/// Step `number` of a seed's sequence: a write's mode and the rows of its tasks, or none to drop the dataset.
fn planned(seed: u64, number: i64) -> Option<(Mode, Vec<Vec<i64>>)> {
    let mut random = Random(seed * 1000 + number as u64);
    let mode = match random.below(5) {
        0 => return None,
        1 => Mode::Replace,
        _ => Mode::Append,
    };
    let tasks = 1 + random.below(3) as i64;
    let task = |task| (0..1 + random.below(20) as i64).map(|row| number * 1000 + task * 100 + row).collect();
    Some((mode, (0..tasks).map(task).collect()))
}

/// What is visible after the first `count` steps.
fn planned_rows(seed: u64, count: i64) -> Option<Vec<i64>> {
    (0..count).fold(None, |rows, number| {
        let (mode, tasks) = planned(seed, number)?;
        let before = if mode == Mode::Append { rows.unwrap_or_default() } else { Vec::new() };
        Some([before, tasks.concat()].concat())
    })
}

pub(crate) fn writer() {
    let root = support::variable("PUT_ROOT").unwrap();
    let number = |name| support::variable(name).unwrap().parse::<i64>().unwrap();
    let (seed, first) = (number("PUT_SEED") as u64, number("PUT_FIRST"));
    println!();
    runtime().block_on(async {
        let staging = Staging::directory(Path::new(&root), StagingOptions::default()).await.unwrap();
        println!("begun");
        for number in first.. {
            let Some((mode, tasks)) = planned(seed, number) else {
                staging.drop_dataset("d").await.unwrap();
                println!("committed {number}");
                continue;
            };
            let write = write("d", number);
            // An attempt that does not count beside those that do.
            stage(&staging, &write, 0, 0, &[-1]).await.unwrap();
            let mut tokens = Vec::new();
            for (task, rows) in tasks.iter().enumerate() {
                tokens.push(stage(&staging, &write, task as u32, 1, rows).await.unwrap().token);
            }
            staging.commit(&write, mode, &tokens).await.unwrap();
            println!("committed {number}");
        }
    });
}

#[test]
fn a_process_killed_in_a_commit_leaves_the_old_or_the_new() {
    let (mut kills, mut commits, mut unreported) = (0, 0, 0);
    for seed in seeds() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("d");
        let mut random = Random(seed);
        let mut done = 0;
        for _ in 0..3 {
            let variables = [
                ("PUT_ROOT", root.path().to_str().unwrap().to_owned()),
                ("PUT_SEED", seed.to_string()),
                ("PUT_FIRST", done.to_string()),
            ];
            let mut child = child::command("put::writer").envs(variables).stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line == "begun"), "seed {seed}: the child did not begin");
            // Its lines wait in the pipe meanwhile.
            std::thread::sleep(Duration::from_millis(random.below(150)));
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            let reported = lines.filter_map(|line| line.strip_prefix("committed ")?.parse::<i64>().ok()).last();
            let reported = reported.map_or(done, |last| last + 1);
            runtime().block_on(async {
                // As readers find it, before anybody cleans up.
                let seen = if path.exists() { Some(ids(path.to_str().unwrap()).await) } else { None };
                let now = if seen == planned_rows(seed, reported) { reported } else { reported + 1 };
                assert_eq!(seen, planned_rows(seed, now), "seed {seed}: torn after {reported} reported commits");
                unreported += now - reported;
                commits += now - done;
                done = now;
                let staging = Staging::directory(root.path(), StagingOptions::default()).await.unwrap();
                assert_eq!(visible(&staging, "d").await, seen, "seed {seed}: the start changed what readers see");
                for (name, entries) in hidden(root.path()) {
                    let expected = usize::from(name == "d" && seen.is_some());
                    assert_eq!(entries.len(), expected, "seed {seed}: {name} holds {entries:?}");
                }
                // Who did not hear of its commit asks again; who was not committed has to begin again.
                let token = Token { task: 0, attempt: 1, number: 1 };
                if let Some((mode, tasks)) = (done > 0).then(|| planned(seed, done - 1)).flatten() {
                    let answer = staging.commit(&write("d", done - 1), mode, &[token]).await.unwrap();
                    assert_eq!(answer.rows, tasks.concat().len() as u64, "seed {seed}");
                }
                let unknown = staging.commit(&write("d", done), Mode::Append, &[token]).await.unwrap_err();
                assert!(matches!(unknown, Error::NotFound { .. }), "seed {seed}: {unknown}");
                assert_eq!(visible(&staging, "d").await, seen, "seed {seed}");
            });
        }
    }
    println!("{kills} kills in {commits} commits, {unreported} of them made but not reported: never torn");
    assert!(commits > 0, "the processes never got to commit");
}
