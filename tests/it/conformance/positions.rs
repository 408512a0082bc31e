//! Positions of a loader: states, worlds, batches put back, epochs.

use bowstring::Error;
use bowstring::plan::State;

use super::ways::{GLOBAL, Way, epoch, next, seen};

pub(super) fn a_state_goes_on_at_every_step(way: &Way) {
    let mut whole = way.whole();
    let (first, second) = (epoch(&mut whole), epoch(&mut whole));
    let mut writer = way.whole();
    for stop in 0..=first.len() {
        assert_eq!((writer.epoch(), writer.step()), (0, stop as u64), "{}", way.name);
        let json = writer.state().to_json();
        let state = State::from_json(&json).unwrap();
        let mut resumed = way.whole();
        // Twice, and in the middle of other calls.
        resumed.load_state(&state).unwrap();
        next(&mut resumed);
        resumed.load_state(&state).unwrap();
        assert_eq!(resumed.state(), state, "{}, step {stop}", way.name);
        assert_eq!(epoch(&mut resumed), first[stop..], "{}, step {stop}", way.name);
        assert_eq!((resumed.epoch(), resumed.step()), (1, 0), "{}, step {stop}", way.name);
        assert_eq!(next(&mut resumed).as_ref(), second.first(), "{}, step {stop}: and on", way.name);
        assert_eq!(next(&mut writer).as_ref(), first.get(stop), "{}, step {stop}", way.name);
    }
    assert_eq!((writer.epoch(), writer.step()), (1, 0), "{}", way.name);
}

pub(super) fn a_state_goes_on_in_any_world(way: &Way) {
    let expected: Vec<_> = epoch(&mut way.whole()).into_iter().map(|batch| batch.ids).collect();
    for (stop, stopped) in [(1, 2), (4, 3), (9, 5)] {
        let stopped_at = |rank| {
            let mut loader = way.open(rank, stopped, |_| ());
            (0..stop).for_each(|_| drop(next(&mut loader).unwrap()));
            loader.state()
        };
        let states: Vec<_> = (0..stopped).map(stopped_at).collect();
        assert!(states.iter().all(|state| *state == states[0]), "{}: every rank has the same state", way.name);
        for world in [1, 4] {
            let mut steps = vec![Vec::new(); expected.len() - stop];
            for rank in 0..world {
                let mut resumed = way.open(rank, world, |_| ());
                resumed.load_state(&states[0]).unwrap();
                let batches = epoch(&mut resumed);
                assert_eq!(batches.len(), steps.len(), "{}", way.name);
                steps.iter_mut().zip(batches).for_each(|(step, batch)| step.extend(batch.ids));
            }
            assert_eq!(steps, expected[stop..], "{}: {stop} steps of {stopped}, the rest of {world}", way.name);
        }
    }
}

pub(super) fn a_foreign_state_changes_nothing(way: &Way) {
    let expected = epoch(&mut way.whole());
    let mut loader = way.whole();
    next(&mut loader).unwrap();
    let before = loader.state();
    type Change = fn(&mut State);
    let foreign: [(&str, Change); 5] = [
        ("fingerprint", |state| state.fingerprint = bowstring::manifest::Fingerprint::from_bytes([1; 32])),
        ("seed", |state| state.spec.seed += 1),
        ("global_batch", |state| state.spec.global_batch = GLOBAL + 1),
        ("tail", |state| state.spec.tail = bowstring::plan::Tail::Drop),
        ("step", |state| state.step = 1000),
    ];
    for (field, change) in foreign {
        let mut state = before.clone();
        change(&mut state);
        let error = loader.load_state(&state).unwrap_err();
        let Error::Mismatch { what, .. } = &error else { panic!("{}, {field}: {error}", way.name) };
        assert!(what.strip_prefix("option ").unwrap_or(what).starts_with(field), "{}, {field}: {error}", way.name);
        assert_eq!(loader.state(), before, "{}, {field}", way.name);
    }
    assert_eq!(epoch(&mut loader), expected[1..], "{}", way.name);
}

pub(super) fn what_came_back_comes_again_in_order(way: &Way) {
    let mut whole = way.whole();
    let (first, second) = (epoch(&mut whole), epoch(&mut whole));
    let mut loader = way.open(0, 1, |options| options.device_slots = 8);
    let mut taken: Vec<_> = (0..6).map(|_| loader.next_any().unwrap().unwrap()).collect();
    // Of six batches out at once, three are put back.
    for at in [4, 1, 2] {
        loader.put_back(taken.remove(at.min(taken.len() - 1)));
    }
    let given: Vec<_> = taken.iter().map(|batch| batch.at().1).collect();
    let missing: Vec<_> = (0..6).filter(|step| !given.contains(step)).collect();
    assert_eq!((missing.len(), loader.step(), loader.state().step), (3, missing[0], missing[0]), "{}", way.name);
    for (at, step) in missing.iter().enumerate() {
        assert_eq!(next(&mut loader).as_ref(), first.get(*step as usize), "{}", way.name);
        assert_eq!(loader.step(), missing.get(at + 1).copied().unwrap_or(6), "{}", way.name);
    }
    drop(taken);
    // The last one is put back after the end was reported.
    let mut last = None;
    while let Some(batch) = loader.next_any().unwrap() {
        last = Some(batch);
    }
    assert_eq!((loader.epoch(), loader.step()), (1, 0));
    loader.put_back(last.unwrap());
    let steps = first.len();
    assert_eq!((loader.epoch(), loader.step()), (0, steps as u64 - 1), "{}", way.name);
    let state = loader.state();
    assert_eq!(epoch(&mut loader), first[steps - 1..], "{}", way.name);
    let stale = loader.next_any().unwrap().unwrap();
    assert_eq!(Some(&seen(&stale)), second.first(), "{}", way.name);
    loader.load_state(&state).unwrap();
    // It belongs to a position that was left.
    loader.put_back(stale);
    assert_eq!(epoch(&mut loader), first[steps - 1..], "{}", way.name);
    assert_eq!(epoch(&mut loader), second, "{}", way.name);
}
