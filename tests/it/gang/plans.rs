//! Ranks of one gang that would read different plans, over a server: a file that was appended, another seed, a resume over other files.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bowstring::flight::client::Gang;
use bowstring::flight::gang::JoinOptions;
use bowstring::flight::server::config::ServerOptions;
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader, Result};

use crate::flight::{Served, hasty};
use crate::support;

const WORLD: u32 = 2;

fn options(served: &Served, seed: u64) -> LoaderOptions {
    LoaderOptions {
        urls: vec![served.url("numbers")],
        global_batch_size: Some(8),
        seed,
        timeout: 20.0,
        ..LoaderOptions::default()
    }
}

/// Data of two files, and a server that looks at the files for whoever begins.
fn served(data: &Path, journal: Option<&Path>) -> Served {
    support::write(data, &[vec![100], vec![60]], 0);
    let refresh = Some(0.0);
    let options = ServerOptions { refresh, journal: journal.map(Path::to_owned), drain_grace: Some(0.1), ..hasty() };
    Served::start(&[("numbers", data.to_str().unwrap())], &options)
}

fn join(served: &Served, name: &str) -> Vec<Gang> {
    let url = served.url("numbers");
    let url = url.strip_suffix("/numbers").unwrap();
    std::thread::scope(|scope| {
        let joins: Vec<_> = (0..WORLD)
            .map(|rank| scope.spawn(move || Gang::join(url, &BTreeMap::new(), JoinOptions::new(name, rank, WORLD))))
            .collect();
        joins.into_iter().map(|join| join.join().unwrap().unwrap()).collect()
    })
}

/// Adds a file to the data.
fn append(data: &Path) {
    let more = tempfile::tempdir().unwrap();
    support::write(more.path(), &[vec![24]], 0);
    let file = std::fs::read_dir(more.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(file, data.join("part-9.parquet")).unwrap();
}

/// The rows that are left of the epoch.
fn drain(loader: &mut Loader) -> Vec<i64> {
    let mut rows = Vec::new();
    while let Some(batch) = loader.next().unwrap() {
        rows.extend(support::ids(&batch));
    }
    rows
}

fn mismatch<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(error @ Error::Mismatch { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_appended_between_two_ranks_is_a_mismatch_and_a_new_beginning_reads_it() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let served = served(&data, None);
    let gang = join(&served, "appended");
    let mut first = Loader::open_in(&options(&served, 1), &gang[0]).unwrap();
    append(&data);
    let mut second = Loader::open_in(&options(&served, 1), &gang[1]).unwrap();
    assert_ne!(first.state().fingerprint, second.state().fingerprint, "nothing is tested");
    first.next().unwrap();
    let error = mismatch(second.next());
    for part in [first.state().fingerprint, second.state().fingerprint] {
        assert!(error.contains(&part.to_string()), "{error}");
    }
    gang[0].ack(0, 0).unwrap();
    drop((first, second, gang));
    let gang = join(&served, "appended");
    assert_eq!(gang[0].resume().unwrap(), None, "one rank had acknowledged nothing");
    let mut rows = Vec::new();
    for rank in &gang {
        rows.extend(drain(&mut Loader::open_in(&options(&served, 1), rank).unwrap()));
    }
    assert_eq!(rows.len(), 184, "with the rows of the new file");
}

#[test]
fn a_step_beyond_the_end_of_an_epoch_is_not_acknowledged() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let served = served(&data, None);
    let gang = join(&served, "beyond");
    let mut loader = Loader::open_in(&options(&served, 1), &gang[0]).unwrap();
    loader.next().unwrap();
    let steps = loader.steps();
    let error = mismatch(gang[0].ack(0, steps));
    assert!(error.contains(&format!("a step below {steps}")), "{error}");
    assert!(mismatch(gang[1].ack(3, steps + 5)).contains("epoch 3"), "whoever read");
    gang[0].ack(0, steps - 1).unwrap();
    gang[1].ack(3, 0).unwrap();
}

#[test]
fn a_stream_that_waits_for_its_tenants_turn_ends_with_its_generation() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    support::write(&data, &[vec![100]], 0);
    // The next batch would have to wait for many seconds, and a heartbeat tells of the end as late.
    let quotas = serde_json::from_value(serde_json::json!({ "default": { "bytes_per_second": 16 } })).unwrap();
    let options_ = ServerOptions { quotas, gang_lease: Some(60.0), drain_grace: Some(0.1), ..hasty() };
    let served = Served::start(&[("numbers", data.to_str().unwrap())], &options_);
    let mut gang = join(&served, "slow");
    let lost = gang.pop().unwrap();
    let mut loader = Loader::open_in(&options(&served, 1), &gang[0]).unwrap();
    loader.next().unwrap();
    let ended = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let error = loader.next().unwrap_err();
            (Instant::now(), error)
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!reading.is_finished(), "nothing is tested");
        let told = Instant::now();
        lost.leave(Some("it was lost")).unwrap();
        let (ended, error) = reading.join().unwrap();
        assert!(matches!(&error, Error::Fenced { why, .. } if why.contains("it was lost")), "{error}");
        ended - told
    });
    assert!(ended < Duration::from_secs(4), "{ended:?}");
}

#[test]
fn two_seeds_are_a_mismatch_when_the_second_rank_opens_or_reads() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let served = served(&data, None);
    let gang = join(&served, "seeds");
    let mut first = Loader::open_in(&options(&served, 1), &gang[0]).unwrap();
    let mut second = Loader::open_in(&options(&served, 2), &gang[1]).unwrap();
    second.next().unwrap();
    let error = mismatch(first.next());
    assert!(error.contains("\"seed\":1") && error.contains("\"seed\":2") && error.contains("rank 0"), "{error}");
    // From now on it is known when a loader is opened; with the right seed the rank goes on.
    mismatch(Loader::open_in(&options(&served, 1), &gang[0]));
    let mut rows = drain(&mut Loader::open_in(&options(&served, 2), &gang[0]).unwrap());
    rows.extend(drain(&mut Loader::open_in(&options(&served, 2), &gang[1]).unwrap()));
    rows.sort_unstable();
    assert_eq!(rows, (0..160).collect::<Vec<i64>>());
}

#[test]
fn who_resumes_goes_on_with_its_files_while_the_server_has_them_and_is_told_when_they_are_gone() {
    let home = tempfile::tempdir().unwrap();
    let (data, journal) = (home.path().join("data"), home.path().join("journal"));
    std::fs::create_dir(&data).unwrap();
    let first = served(&data, Some(&journal));
    let gang = join(&first, "resumed");
    for rank in &gang {
        let mut loader = Loader::open_in(&options(&first, 1), rank).unwrap();
        loader.next().unwrap();
        rank.ack(0, 0).unwrap();
    }
    append(&data);
    drop(gang);
    let gang = join(&first, "resumed");
    let mut rows = 0;
    for rank in &gang {
        assert_eq!(rank.resume().unwrap(), Some((0, 0)));
        let mut loader = Loader::open_in(&options(&first, 1), rank).unwrap();
        assert_eq!((loader.epoch(), loader.step()), (0, 1));
        let mut state = loader.state();
        state.step = 0;
        loader.load_state(&state).unwrap();
        let error = mismatch(loader.next());
        assert!(error.contains("a step after epoch 0 step 0, from which generation 2 resumes"), "{error}");
        rows += drain(&mut Loader::open_in(&options(&first, 1), rank).unwrap()).len();
    }
    assert_eq!(rows, 160 - 8, "the rest of the epoch that was begun");
    drop(gang);
    drop(first);
    // Another process has only the files that are there now.
    let second = Served::start(
        &[("numbers", data.to_str().unwrap())],
        &ServerOptions { journal: Some(journal), drain_grace: Some(0.1), ..hasty() },
    );
    let gang = join(&second, "resumed");
    let error = mismatch(Loader::open_in(&options(&second, 1), &gang[0]));
    assert!(error.contains("of which epoch 0 step 0 is done"), "{error}");
}
