//! The ranks of a plan on one server: each row group is decoded once, memory depends on the plan and not on the number of ranks, and
//! no rank waits for a step that cannot come.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{FixedSizeBinaryArray, Int64Array, RecordBatch};
use bowstring::dataset::{DatasetWriter, WriterOptions};
use bowstring::flight::server::config::ServerOptions;
use bowstring::pipeline::LoaderOptions;
use bowstring::tensor::Batch;
use bowstring::{Error, Loader};

use crate::flight::{Served, hasty, stats};

const WIDTH: usize = 8 << 10;
const GROUPS: usize = 8;
const GROUP_ROWS: usize = 512;
const ROWS: usize = GROUPS * GROUP_ROWS;

/// Writes row groups of 4 MiB, each in its own file.
fn write(directory: &Path) {
    for group in 0..GROUPS {
        let ids = (group * GROUP_ROWS) as i64..((group + 1) * GROUP_ROWS) as i64;
        let bytes = ids.clone().map(|id| {
            let mut row = vec![0; WIDTH];
            row[..8].copy_from_slice(&id.to_le_bytes());
            row
        });
        let bytes = FixedSizeBinaryArray::try_from_iter(bytes).unwrap();
        let columns =
            [("id", Arc::new(Int64Array::from_iter_values(ids)) as _, false), ("bytes", Arc::new(bytes) as _, false)];
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let path = directory.join(format!("{group}"));
        let mut writer = DatasetWriter::create(&path, rows.schema(), WriterOptions::default()).unwrap();
        writer.write(&rows).unwrap();
        writer.finish().unwrap();
        let file = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        let file = file.into_iter().find(|path| path.extension().is_some_and(|end| end == "parquet")).unwrap();
        std::fs::rename(file, directory.join(format!("{group}.parquet"))).unwrap();
        std::fs::remove_dir_all(path).unwrap();
    }
}

fn serve(directory: &Path, memory_budget: u64) -> Served {
    let options = ServerOptions { memory_budget: Some(memory_budget), ..hasty() };
    Served::start(&[("rows", directory.to_str().unwrap())], &options)
}

fn options(served: &Served, batch: u64, rank: u32, world: u32) -> LoaderOptions {
    LoaderOptions {
        urls: vec![served.url("rows")],
        rank: Some(rank),
        world_size: Some(world),
        timeout: 60.0,
        ..LoaderOptions::new("", batch)
    }
}

/// Counts the rows of a batch, and checks the content of each.
fn count(batch: &Batch, seen: &mut BTreeMap<i64, usize>) {
    let ids = batch.tensor("id").unwrap().bytes().chunks_exact(8);
    let rows = batch.tensor("bytes").unwrap().bytes().chunks_exact(WIDTH);
    for (id, row) in ids.zip(rows) {
        assert_eq!(id, &row[..8]);
        *seen.entry(i64::from_le_bytes(id.try_into().unwrap())).or_default() += 1;
    }
}

/// Takes one step of all loaders; returns false at the end.
fn step(loaders: &mut [Loader], seen: &mut BTreeMap<i64, usize>) -> bool {
    let batches: Vec<_> = loaders.iter_mut().map(|loader| loader.next().unwrap()).collect();
    batches.iter().flatten().for_each(|batch| count(batch, seen));
    let some = batches.iter().flatten().count();
    assert!(some == 0 || some == loaders.len(), "uneven steps");
    some > 0
}

fn once(seen: &BTreeMap<i64, usize>) {
    assert!(seen.len() == ROWS && seen.values().all(|count| *count == 1), "{} rows", seen.len());
}

#[test]
fn ranks_in_lockstep_share_decoded_rows_and_their_memory() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    // More steps than can be in flight, so that all streams run side by side. The last has room for a few batches of each rank.
    for (world, global, budget) in [(8, 64, 160 << 20), (32, 128, 160 << 20), (32, 128, 53 << 20)] {
        let served = serve(directory.path(), budget);
        let batch = global / u64::from(world);
        let mut loaders: Vec<_> =
            (0..world).map(|rank| Loader::open(options(&served, batch, rank, world)).unwrap()).collect();
        for _ in 0..2 {
            let mut seen = BTreeMap::new();
            while step(&mut loaders, &mut seen) {}
            once(&seen);
        }
        drop(loaders);
        let stats = stats(&served);
        assert_eq!(stats["rows_decoded"], 2 * ROWS, "{world} ranks: {stats}");
        assert_eq!(stats["row_groups_decoded"], 2 * GROUPS, "{world} ranks: {stats}");
    }
}

#[test]
fn a_plan_that_does_not_fit_is_refused_to_each_of_its_ranks_at_once() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    // Room for some of the ranks, if each were alone.
    let served = serve(directory.path(), 40 << 20);
    for rank in 0..8 {
        let started = Instant::now();
        let error = Loader::open(options(&served, 32, rank, 8)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let text = error.to_string();
        assert!(matches!(error, Error::Limit { .. }) && text.contains("serving 8 ranks"), "{text}");
        for part in ["the server's memory_budget", "memory of spark.serve", "lanes", "batch"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn ranks_that_join_late_or_again_get_their_rows_and_none_waits_forever() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let served = serve(directory.path(), 160 << 20);
    let open = |rank| Loader::open(options(&served, 8, rank, 8)).unwrap();
    let mut early: Vec<_> = (0..4).map(open).collect();
    let mut seen = BTreeMap::new();
    for _ in 0..20 {
        assert!(step(&mut early, &mut seen));
    }
    let mut late: Vec<_> = (4..8).map(open).collect();
    for _ in 0..20 {
        assert!(step(&mut late, &mut seen));
    }
    let mut all: Vec<_> = early.into_iter().chain(late).collect();
    for round in 0.. {
        if !step(&mut all, &mut seen) {
            break;
        }
        if round % 8 == 3 {
            // One closes and opens again.
            let at = round % 7;
            let state = all[at].state();
            all[at] = open(at as u32);
            all[at].load_state(&state).unwrap();
        }
    }
    once(&seen);
}

#[test]
fn an_idle_rank_delays_others_only_for_a_while_and_resumes_at_its_position() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let served = serve(directory.path(), 200 << 20);
    // 1,024 steps, some of which are in flight on connections.
    let open = |rank| Loader::open(options(&served, 1, rank, 4)).unwrap();
    let mut loaders: Vec<_> = (0..4).map(open).collect();
    let mut seen = BTreeMap::new();
    for _ in 0..3 {
        assert!(step(&mut loaders, &mut seen));
    }
    let mut stopped = loaders.split_off(3);
    // Another loader of the same rank takes its batches from the same queue.
    let (mut twin, mut of_twin) = ([open(3)], BTreeMap::new());
    for _ in 0..3 {
        assert!(step(&mut twin, &mut of_twin));
    }
    while step(&mut loaders, &mut seen) {}
    while step(&mut stopped, &mut seen) {}
    once(&seen);
    while step(&mut twin, &mut of_twin) {}
    assert!(of_twin.len() == ROWS / 4 && of_twin.values().all(|count| *count == 1), "{} rows", of_twin.len());
}

#[test]
fn ranks_that_run_free_are_all_served() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let served = serve(directory.path(), 160 << 20);
    let mut loaders: Vec<_> = (0..8).map(|rank| Loader::open(options(&served, 8, rank, 8)).unwrap()).collect();
    let mut seen = BTreeMap::new();
    // All have begun: a rank that runs ahead has others behind it from here on.
    assert!(step(&mut loaders, &mut seen));
    let threads = loaders.into_iter().map(|mut loader| {
        std::thread::spawn(move || {
            let mut seen = BTreeMap::new();
            while let Some(batch) = loader.next().unwrap() {
                count(&batch, &mut seen);
            }
            seen
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        for (id, count) in thread.join().unwrap() {
            *seen.entry(id).or_default() += count;
        }
    }
    once(&seen);
    let stats = stats(&served);
    assert_eq!(stats["rows_decoded"], ROWS, "{stats}");
}

/// Ranks of three servers that are replicas of each other.
#[test]
fn three_servers_divide_the_rows_and_survive_the_loss_of_one() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path());
    let mut servers: Vec<_> = (0..3).map(|_| serve(directory.path(), 160 << 20)).collect();
    let urls: Vec<String> = servers.iter().map(|server| server.url("rows")).collect();
    let open = |rank| {
        let options = LoaderOptions {
            urls: urls.clone(),
            // A lane for each row group, so that no two ranks take rows of the same one.
            lanes: Some(8),
            window_rows: Some(1),
            ..options(&servers[0], 8, rank, 8)
        };
        Loader::open(options).unwrap()
    };
    let mut loaders: Vec<_> = (0..8).map(open).collect();
    let mut seen = BTreeMap::new();
    while step(&mut loaders, &mut seen) {}
    once(&seen);
    let each: Vec<u64> = servers.iter().map(|served| stats(served)["rows_decoded"].as_u64().unwrap()).collect();
    println!("rows decoded by each server: {each:?}");
    assert_eq!(each.iter().sum::<u64>(), ROWS as u64, "each row group by one of them: {each:?}");
    assert!(each.iter().all(|rows| *rows >= ROWS as u64 / 4), "ranks are divided: {each:?}");
    // One server stops in the middle of an epoch: its ranks continue on the others.
    let mut seen = BTreeMap::new();
    for round in 0.. {
        if round == 20 {
            servers.remove(1).stop().unwrap();
        }
        if !step(&mut loaders, &mut seen) {
            break;
        }
    }
    once(&seen);
    let mut seen = BTreeMap::new();
    while step(&mut loaders, &mut seen) {}
    once(&seen);
}
