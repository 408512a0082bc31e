//! The ends of waits and loaders: given up, interrupted, closed, dropped.

use std::time::{Duration, Instant};

use bowstring::{Error, Loader, Next};

use super::ways::{Way, epoch, next, seen};
use crate::support::HANG;

/// As Ctrl-C in Python: the wait is in slices, and a batch that was not handed over is put back.
pub(super) fn an_interrupted_wait_loses_nothing(way: &Way) {
    let expected = epoch(&mut way.whole());
    let mut loader = way.whole();
    let (mut found, mut interrupted, mut gave_up) = (Vec::new(), 0, 0);
    let deadline = Instant::now() + HANG;
    loop {
        assert!(Instant::now() < deadline, "{}: nothing more came after {} steps", way.name, found.len());
        match loader.next_within(Duration::from_micros(gave_up % 200)).unwrap() {
            // Every other batch is interrupted once.
            Next::Item(batch) if interrupted <= found.len() / 2 => {
                interrupted += 1;
                let step = batch.at().1;
                loader.put_back(batch);
                assert_eq!(loader.step(), step, "{}", way.name);
            }
            Next::Item(batch) => found.push(seen(&batch)),
            Next::End => break,
            Next::Pending => gave_up += 1,
        }
    }
    assert_eq!(found, expected, "{}", way.name);
    assert!(interrupted > 3, "{}: {interrupted} were interrupted", way.name);
}

pub(super) fn a_wait_that_is_too_long_names_its_culprit(way: &Way) {
    // A first batch takes a while; now and then the requesting thread is the one that is late.
    let waits = |mut loader: Loader| matches!(loader.next_within(Duration::ZERO), Ok(Next::Pending)).then_some(loader);
    let mut loader = (0..50).find_map(|_| waits(way.open(0, 2, |_| ()))).expect(way.name);
    assert_eq!(loader.timeout(), Duration::from_secs(60), "{}", way.name);
    let error = loader.timed_out(Duration::from_secs(5));
    assert!(matches!(error, Error::Timeout { .. }), "{}: {error:?}", way.name);
    let text = error.to_string();
    assert!(text.contains("waited 5 s for "), "{}: {text}", way.name);
    assert!(text.ends_with("; rank 0 of 2, epoch 0, step 0 (timeout=60)"), "{}: {text}", way.name);
    assert_eq!(next(&mut loader).unwrap().at, (0, 0), "{}: giving up loses nothing", way.name);
}

pub(super) fn a_closed_loader_says_so_and_its_batches_stay(way: &Way) {
    let mut loader = way.whole();
    let kept = loader.next_any().unwrap().unwrap();
    let before = seen(&kept);
    let lost = loader.next_any().unwrap().unwrap();
    loader.put_back(lost);
    let state = loader.state();
    let started = Instant::now();
    loader.close();
    for _ in 0..2 {
        assert!(matches!(loader.next_any(), Err(Error::Closed { .. })), "{}", way.name);
    }
    assert_eq!(loader.state(), state, "{}: what reached nobody is still to come", way.name);
    loader.close();
    drop(loader);
    assert!(started.elapsed() < HANG, "{}: closing took {:?}", way.name, started.elapsed());
    assert_eq!(seen(&kept), before, "{}: a delivered batch outlives its loader", way.name);
}

/// Trainers retry an epoch that failed: a pass that began there would leave out the rest of the epoch.
pub(super) fn an_error_leaves_the_position_and_no_pass_begins_after_it(way: &Way) {
    let mut loader = way.open(0, 1, |options| {
        options.columns.exclude = vec!["f0".to_owned()];
        options.columns.images = [("image".to_owned(), serde_json::from_str(r#"{"size": 1}"#).unwrap())].into();
        (options.global_batch_size, options.shuffle) = (Some(2), false);
    });
    let error = std::iter::from_fn(|| loader.next_any().transpose()).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{}: {error:?}", way.name);
    let state = loader.state();
    assert!(loader.step() > 0 || !way.borders.is_empty(), "{}: the first batch is bad", way.name);
    for _ in 0..2 {
        for again in [loader.begin().map(drop), loader.set_epoch(1), loader.next_any().map(drop)] {
            let again = again.expect_err(way.name).to_string();
            assert!(again.contains("an error ended the loader") && again.contains("image"), "{}: {again}", way.name);
        }
        assert_eq!(loader.state(), state, "{}", way.name);
    }
}

pub(super) fn a_loader_is_dropped_while_it_waits(way: &Way) {
    for wait in [0, 1, 5] {
        let mut loader = way.open(0, 1, |options| options.prefetch = 1);
        // Another thread waits for the next batch; it gives up, and the loader is dropped at once, in the middle of its
        // work.
        let waiting = std::thread::spawn(move || {
            let found = loader.next_within(Duration::from_millis(wait)).map(|next| next.map(|batch| seen(&batch)));
            let started = Instant::now();
            drop(loader);
            (found.is_ok(), started.elapsed())
        });
        let (is_ok, took) = waiting.join().unwrap();
        assert!(is_ok && took < HANG, "{}: dropping took {took:?}", way.name);
    }
    // Nothing that was dropped obstructs the next one.
    assert_eq!(epoch(&mut way.whole()).len() as u64, way.whole().steps(), "{}", way.name);
}
