//! Passes: every iterator has its own epoch, however the previous one ended.

use bowstring::pipeline::Pass;
use bowstring::plan::State;
use bowstring::{AnyBatch, Error, Loader, Next};

use super::ways::{Seen, Way, epoch, next, seen};
use crate::support::HANG;

/// The next batch of `pass`.
fn next_in(loader: &mut Loader, pass: Pass) -> Option<AnyBatch> {
    loader.next_in(pass, HANG).unwrap().or_error(|| loader.timed_out(HANG)).unwrap()
}

/// At most `most` batches of a pass that begins here.
fn pass(loader: &mut Loader, most: usize) -> Vec<Seen> {
    let pass = loader.begin().unwrap();
    (0..most).map_while(|_| next_in(loader, pass)).map(|batch| seen(&batch)).collect()
}

const ALL: usize = usize::MAX;

fn epochs(way: &Way, count: usize) -> Vec<Vec<Seen>> {
    let mut whole = way.whole();
    (0..count).map(|_| epoch(&mut whole)).collect()
}

pub(super) fn every_pass_is_an_epoch_of_its_own(way: &Way) {
    let epochs = epochs(way, 6);
    let steps = epochs[0].len();
    let mut loader = way.whole();
    assert_eq!(pass(&mut loader, 0), [], "{}", way.name);
    assert_eq!(pass(&mut loader, ALL), epochs[0], "{}: the first one begins where it stands", way.name);
    assert_eq!((loader.epoch(), loader.step()), (1, 0), "{}", way.name);
    assert_eq!(pass(&mut loader, 3), epochs[1][..3], "{}", way.name);
    assert_eq!((loader.epoch(), loader.step()), (1, 3), "{}: a state goes on with what was left", way.name);
    let state = loader.state();
    assert_eq!(pass(&mut loader, steps), epochs[2], "{}: left in the middle", way.name);
    assert_eq!(pass(&mut loader, 1), epochs[3][..1], "{}: its end was not asked for", way.name);
    for _ in 0..3 {
        assert_eq!(pass(&mut loader, 0), [], "{}", way.name);
        assert_eq!((loader.epoch(), loader.step()), (4, 0), "{}: nothing taken is no pass", way.name);
    }
    assert_eq!(pass(&mut loader, ALL), epochs[4], "{}", way.name);
    loader.load_state(&state).unwrap();
    assert_eq!(pass(&mut loader, 2), epochs[1][3..5], "{}: a state goes on in the middle", way.name);
    // A batch that was put back was not taken.
    loader.load_state(&state).unwrap();
    let begun = loader.begin().unwrap();
    let batch = next_in(&mut loader, begun).unwrap();
    loader.put_back_in(begun, batch);
    assert_eq!(pass(&mut loader, ALL), epochs[1][3..], "{}", way.name);
    // A batch taken by a stream counts as taken.
    assert_eq!(next(&mut loader).as_ref(), epochs[2].first(), "{}", way.name);
    assert_eq!(pass(&mut loader, ALL), epochs[3], "{}", way.name);
    if loader.device().is_none() {
        assert_eq!(loader.iter().take(4).map(|batch| batch.unwrap().step).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(loader.iter().map(|batch| seen(&batch.unwrap().into())).collect::<Vec<_>>(), epochs[5]);
    }
}

pub(super) fn an_epoch_begins_where_it_is_asked_for(way: &Way) {
    let epochs = epochs(way, 3);
    let mut loader = way.whole();
    for of in [0, 2, 2, 0, 1] {
        loader.set_epoch(of).unwrap();
        assert_eq!((loader.epoch(), loader.step()), (of, 0), "{}", way.name);
        // Left in the middle, it begins again.
        assert_eq!(pass(&mut loader, 4), epochs[of as usize][..4], "{}", way.name);
        loader.set_epoch(of).unwrap();
        loader.set_epoch(of).unwrap();
        assert_eq!(pass(&mut loader, ALL), epochs[of as usize], "{}", way.name);
    }
    // A loop that was stopped continues with the epoch that it requests first.
    assert_eq!(pass(&mut loader, 4), epochs[2][..4], "{}", way.name);
    let state = loader.state();
    let mut resumed = way.whole();
    resumed.load_state(&state).unwrap();
    resumed.set_epoch(2).unwrap();
    assert_eq!(pass(&mut resumed, ALL), epochs[2][4..], "{}", way.name);
    resumed.load_state(&state).unwrap();
    resumed.set_epoch(1).unwrap();
    assert_eq!(pass(&mut resumed, ALL), epochs[1], "{}", way.name);
}

pub(super) fn a_state_from_the_end_of_an_epoch_has_an_empty_pass(way: &Way) {
    let epochs = epochs(way, 3);
    let steps = epochs[0].len();
    let mut writer = way.whole();
    for epoch in 0..2 {
        assert_eq!(pass(&mut writer, steps), epochs[epoch as usize], "{}", way.name);
        assert_eq!((writer.epoch(), writer.step()), (epoch, steps as u64), "{}", way.name);
        // As `for epoch in saved..3` does.
        for set in [false, true] {
            let mut resumed = way.whole();
            resumed.load_state(&State::from_json(writer.state().to_json()).unwrap()).unwrap();
            for of in epoch..3 {
                if set {
                    resumed.set_epoch(of).unwrap();
                }
                let expected = if of == epoch { &[] } else { &*epochs[of as usize] };
                assert_eq!(pass(&mut resumed, ALL), expected, "{}: epoch {of} after the end of {epoch}", way.name);
            }
        }
    }
}

pub(super) fn a_pass_has_one_end_and_ends_with_the_next(way: &Way) {
    let epochs = epochs(way, 3);
    let mut loader = way.whole();
    let superseded = |loader: &mut Loader, pass| {
        let error = loader.next_in(pass, HANG).unwrap_err();
        assert!(matches!(error, Error::Closed { .. }) && error.to_string().contains("another pass"), "{error}");
    };
    let first = loader.begin().unwrap();
    let kept = next_in(&mut loader, first).unwrap();
    let second = loader.begin().unwrap();
    superseded(&mut loader, first);
    assert_eq!((loader.epoch(), loader.step()), (1, 0), "{}: the older one takes nothing", way.name);
    loader.put_back_in(first, kept);
    assert_eq!((loader.epoch(), loader.step()), (1, 0), "{}, and what it gives back is of no pass", way.name);
    for expected in &epochs[1] {
        assert_eq!(next_in(&mut loader, second).map(|batch| seen(&batch)).as_ref(), Some(expected), "{}", way.name);
    }
    for _ in 0..3 {
        assert!(matches!(loader.next_in(second, HANG), Ok(Next::End)), "{}: as many threads may ask", way.name);
    }
    assert_eq!((loader.epoch(), loader.step()), (2, 0), "{}", way.name);
    let state = loader.state();
    loader.load_state(&state).unwrap();
    superseded(&mut loader, second);
    let third = loader.begin().unwrap();
    loader.set_epoch(2).unwrap();
    assert_eq!(next_in(&mut loader, third).map(|batch| seen(&batch)).as_ref(), epochs[2].first(), "{}", way.name);
    loader.set_epoch(2).unwrap();
    superseded(&mut loader, third);
    // A pass from which nothing was taken moves with the loader.
    let fourth = loader.begin().unwrap();
    loader.load_state(&state).unwrap();
    loader.set_epoch(1).unwrap();
    let found = std::iter::from_fn(|| next_in(&mut loader, fourth)).map(|batch| seen(&batch));
    assert_eq!(found.collect::<Vec<_>>(), epochs[1], "{}", way.name);
}

pub(super) fn a_look_moves_nothing(way: &Way) {
    let epochs = epochs(way, 3);
    let steps = epochs[0].len();
    let mut loader = way.open(0, 1, |options| options.device_slots = 8);
    let look = |loader: &mut Loader, expected: &Seen| {
        let (state, before) = (loader.state(), (loader.epoch(), loader.step()));
        for _ in 0..2 {
            let batch = loader.peek().unwrap().unwrap();
            assert_eq!(&seen(&batch), expected, "{}", way.name);
        }
        assert_eq!((loader.state(), loader.epoch(), loader.step()), (state, before.0, before.1), "{}", way.name);
    };
    look(&mut loader, &epochs[0][0]);
    let pass = loader.begin().unwrap();
    for (step, expected) in epochs[0].iter().enumerate() {
        look(&mut loader, expected);
        let batch = next_in(&mut loader, pass).unwrap();
        assert_eq!(&seen(&batch), expected, "{}", way.name);
        look(&mut loader, epochs[0].get(step + 1).unwrap_or(&epochs[1][0]));
        if step == 2 {
            // A batch that was put back is the next.
            loader.put_back_in(pass, batch);
            look(&mut loader, expected);
            next_in(&mut loader, pass).unwrap();
        }
    }
    assert_eq!((loader.epoch(), loader.step()), (0, steps as u64), "{}", way.name);
    look(&mut loader, &epochs[1][0]);
    assert!(next_in(&mut loader, pass).is_none(), "{}: the end is still told", way.name);
    look(&mut loader, &epochs[1][0]);
    assert_eq!(self::pass(&mut loader, 2), epochs[1][..2], "{}", way.name);
    look(&mut loader, &epochs[1][2]);
    assert_eq!(self::pass(&mut loader, ALL), epochs[2], "{}: what was looked at was of a pass that was left", way.name);
    loader.peek().unwrap();
    loader.close();
    assert!(matches!(loader.peek(), Err(Error::Closed { .. })), "{}", way.name);
}

pub(super) fn what_a_new_pass_leaves_behind_is_not_consumed(way: &Way) {
    let consumed =
        |loader: &Loader| -> Vec<_> { loader.certificate().consumed.iter().map(|span| (span.from, span.to)).collect() };
    let mut loader = way.whole();
    let begun = loader.begin().unwrap();
    let mut last = None;
    while let Some(batch) = next_in(&mut loader, begun) {
        last = Some(batch);
    }
    let steps = loader.steps();
    loader.put_back_in(begun, last.unwrap());
    assert_eq!(consumed(&loader), [((0, 0), (0, steps - 1))], "{}", way.name);
    assert_eq!(pass(&mut loader, 2).len(), 2);
    assert_eq!(consumed(&loader), [((0, 0), (0, steps - 1)), ((1, 0), (1, 2))], "{}", way.name);
    // A closed loader does not move.
    loader.close();
    loader.set_epoch(5).unwrap();
    assert_eq!(consumed(&loader), [((0, 0), (0, steps - 1)), ((1, 0), (1, 2))], "{}", way.name);
}
