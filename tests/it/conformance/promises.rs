//! The delivered data: rows, order, steps, tails, filters, bad rows, the consumer's own tensors.

#![expect(unsafe_code, reason = "tensors of a consumer, by address")]

use std::collections::BTreeMap;

use bowstring::Error;
use bowstring::codec::BadRows;
use bowstring::dataset::filter::Filter;
use bowstring::device::{Consumer, Target, Targets};
use bowstring::plan::Tail;
use bowstring::schema::DType;

use super::ways::{GLOBAL, ROWS, Seen, Way, epoch, is_bad, next, seen};
use crate::support::cell;

/// All ids in the order of delivery.
fn ids(batches: &[Seen]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.ids.iter().copied()).collect()
}

/// Checks that each row of `batches` comes once and is among `rows`, of which a mixture leaves out some.
fn come_once(way: &Way, batches: &[Seen], rows: &[i64]) {
    let mut ids = ids(batches);
    ids.sort_unstable();
    let left = (ROWS as u64 - way.rows) as usize;
    assert_eq!(ids.len(), rows.len() - left, "{}", way.name);
    ids.dedup();
    assert_eq!(ids.len(), rows.len() - left, "{}: a row twice", way.name);
    assert!(ids.iter().all(|id| rows.contains(id)), "{}: {ids:?}", way.name);
}

pub(super) fn every_row_comes_once_with_its_values(way: &Way) {
    let mut loader = way.whole();
    assert_eq!((loader.rows(), loader.steps()), (way.rows, way.rows.div_ceil(GLOBAL)));
    for _ in 0..2 {
        let batches = epoch(&mut loader);
        come_once(way, &batches, &(0..ROWS).collect::<Vec<_>>());
        for batch in &batches {
            let values = batch.tensors.iter().find(|(name, _)| name == "f0").unwrap().1.chunks_exact(4);
            let values: Vec<_> = values.map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect();
            let expected: Vec<_> = batch.ids.iter().map(|id| cell(*id, 0)).collect();
            assert_eq!(values[..expected.len()], expected, "{}, {:?}", way.name, batch.at);
        }
    }
}

pub(super) fn the_order_is_the_same_for_every_loader_of_a_plan(way: &Way) {
    let (mut one, mut two) = (way.whole(), way.whole());
    let (first, second) = (epoch(&mut one), epoch(&mut one));
    assert_eq!(first, epoch(&mut two), "{}", way.name);
    assert_eq!(second, epoch(&mut two), "{}", way.name);
    assert_ne!(ids(&first), ids(&second), "{}: epochs are shuffled anew", way.name);
    let positions = |batches: &[Seen]| batches.iter().map(|batch| batch.at).collect::<Vec<_>>();
    assert_eq!(positions(&second), (0..one.steps()).map(|step| (1, step)).collect::<Vec<_>>());
    let other = epoch(&mut way.open(0, 1, |options| options.seed = 8));
    assert_ne!(ids(&first), ids(&other), "{}: another seed", way.name);
    // In file order within each dataset.
    let plain = ids(&epoch(&mut way.open(0, 1, |options| options.shuffle = false)));
    let border = |id: i64| way.borders.iter().filter(|border| id >= **border).count();
    for part in 0..=way.borders.len() {
        let of: Vec<_> = plain.iter().copied().filter(|id| border(*id) == part).collect();
        assert!(of.is_sorted() && !of.is_empty(), "{}: {of:?}", way.name);
    }
}

pub(super) fn every_world_has_the_same_steps_and_global_batches(way: &Way) {
    let expected: Vec<_> = epoch(&mut way.whole()).into_iter().map(|batch| batch.ids).collect();
    for world in [2, 3, 5] {
        let mut steps = vec![Vec::new(); expected.len()];
        for rank in 0..world {
            let mut loader = way.open(rank, world, |_| ());
            assert_eq!(loader.steps(), expected.len() as u64);
            let batches = epoch(&mut loader);
            assert_eq!(batches.len(), expected.len(), "{}, rank {rank} of {world}", way.name);
            steps.iter_mut().zip(batches).for_each(|(step, batch)| step.extend(batch.ids));
        }
        assert_eq!(steps, expected, "{}, world {world}", way.name);
    }
}

pub(super) fn tails_are_padded_repeated_or_dropped(way: &Way) {
    let (whole, left) = (way.rows / GLOBAL, way.rows % GLOBAL);
    for (tail, steps, rows, last) in [
        (Tail::Pad, whole + 1, way.rows, left),
        (Tail::Repeat, whole + 1, (whole + 1) * GLOBAL, GLOBAL),
        (Tail::Drop, whole, whole * GLOBAL, GLOBAL),
    ] {
        let batches = epoch(&mut way.open(0, 1, |options| options.tail = Some(tail)));
        assert_eq!(batches.len() as u64, steps, "{}, {tail:?}", way.name);
        let mut ids = ids(&batches);
        assert_eq!(ids.len() as u64, rows, "{}, {tail:?}", way.name);
        assert_eq!(batches.last().unwrap().ids.len() as u64, last, "{}, {tail:?}", way.name);
        let masked = batches.iter().filter(|batch| batch.tensors.iter().any(|(name, _)| name == "_mask")).count();
        assert_eq!(masked as u64, if tail == Tail::Pad { steps } else { 0 }, "{}, {tail:?}", way.name);
        assert!(batches.iter().all(|batch| batch.rows as u64 == GLOBAL), "{}, {tail:?}", way.name);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len() as u64, rows.min(way.rows), "{}, {tail:?}", way.name);
    }
    for tail in [Tail::Short, Tail::Even, Tail::Pad, Tail::Repeat, Tail::Drop] {
        let mut loader = way.open(0, 1, |options| (options.tail, options.mask) = (Some(tail), true));
        assert!(loader.masked(), "{}, {tail:?}", way.name);
        let batches = epoch(&mut loader);
        let is_masked = |batch: &Seen| batch.tensors.iter().any(|(name, _)| name == "_mask");
        assert!(batches.iter().all(is_masked), "{}, {tail:?}: a mask that was asked for comes", way.name);
    }
}

pub(super) fn tails_are_short_or_even_on_any_ranks(way: &Way) {
    // 9 steps and 5 rows, or 4 for a mixture: under `even` the last two steps share 30, or 29.
    const BATCH: u64 = 25;
    let open = |tail, rank, world| {
        way.open(rank, world, |options| (options.tail, options.global_batch_size) = (Some(tail), Some(BATCH)))
    };
    let (whole, left) = ((way.rows / BATCH) as usize, (way.rows % BATCH) as usize);
    let expected: Vec<Vec<i64>> = epoch(&mut open(Tail::Pad, 0, 1)).into_iter().map(|batch| batch.ids).collect();
    let sorted = |ids: &[i64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    for (tail, world, other) in [(Tail::Short, 1, 3), (Tail::Short, 3, 4), (Tail::Even, 1, 3), (Tail::Even, 7, 2)] {
        let what = format!("{}, {tail:?}, {world} ranks", way.name);
        let ranks: Vec<Vec<Seen>> = (0..world).map(|rank| epoch(&mut open(tail, rank, world))).collect();
        assert!(ranks.iter().all(|batches| batches.len() == whole + 1), "{what}");
        let masked = ranks.iter().flatten().flat_map(|batch| &batch.tensors).any(|(name, _)| name == "_mask");
        assert!(!masked, "{what}");
        let step = |at: usize| ranks.iter().flat_map(|batches| batches[at].ids.clone()).collect::<Vec<_>>();
        assert!((0..whole - 1).all(|at| step(at) == expected[at]), "{what}");
        let sizes = |at: usize| ranks.iter().map(|batches| batches[at].rows).collect::<Vec<_>>();
        let mut last = step(whole);
        if tail == Tail::Short {
            assert_eq!(sizes(whole), vec![left.div_ceil(world as usize); world as usize], "{what}");
            assert_eq!(step(whole - 1), expected[whole - 1], "{what}");
            // The filling comes from the start of the epoch.
            let start: Vec<_> = expected[..2].concat();
            let again: Vec<_> = last.iter().copied().filter(|id| !expected[whole].contains(id)).collect();
            assert_eq!(again.len(), last.len() - left, "{what}: {again:?}");
            assert!(again.iter().all(|id| start.contains(id)), "{what}: {again:?}");
            last.retain(|id| expected[whole].contains(id));
            assert_eq!(sorted(&last), sorted(&expected[whole]), "{what}");
        } else {
            for at in [whole - 1, whole] {
                let (least, most) = (*sizes(at).iter().min().unwrap(), *sizes(at).iter().max().unwrap());
                assert!(least > 0 && most - least <= 1, "{what}: {:?}", sizes(at));
            }
            let both = [step(whole - 1), last].concat();
            assert_eq!(sorted(&both), sorted(&expected[whole - 1..].concat()), "{what}");
        }
        for stop in [whole - 1, whole, whole + 1] {
            let mut found = Vec::new();
            let mut states = Vec::new();
            for rank in 0..world {
                let mut loader = open(tail, rank, world);
                found.extend((0..stop).flat_map(|_| next(&mut loader).unwrap().ids));
                states.push(loader.state());
            }
            assert!(states.iter().all(|state| *state == states[0]), "{what}");
            for rank in 0..other {
                let mut loader = open(tail, rank, other);
                loader.load_state(&states[0]).unwrap();
                let batches = epoch(&mut loader);
                assert_eq!(batches.len(), whole + 1 - stop, "{what}, then {other} from step {stop}");
                found.extend(batches.into_iter().flat_map(|batch| batch.ids));
            }
            let (times, rows) = (found.len() as u64, way.rows);
            let again = times - rows;
            assert!(again < u64::from(if tail == Tail::Even { 1 } else { world.max(other) }), "{what}: {again}");
            let mut once = sorted(&found);
            once.dedup();
            assert_eq!(once, sorted(&expected.concat()), "{what}, then {other} from step {stop}");
        }
    }
}

pub(super) fn a_filter_leaves_exactly_its_rows(way: &Way) {
    // Equally many from each half, so that a mixture of the halves ends with both.
    let filter = "(id >= 15 and id < 100 and id != 33) or id >= 146";
    let mut loader = way.open(0, 1, |options| options.filter = Some(Filter::Text(filter.to_owned())));
    let expected: Vec<_> = (15..100).filter(|id| *id != 33).chain(146..ROWS).collect();
    assert_eq!(loader.rows(), expected.len() as u64 - (ROWS as u64 - way.rows), "{}", way.name);
    come_once(way, &epoch(&mut loader), &expected);
}

pub(super) fn bad_rows_are_errors_or_replaced_and_steps_stay_equal(way: &Way) {
    let open = |bad_rows| {
        way.open(0, 1, |options| {
            options.columns.exclude = vec!["f0".to_owned()];
            let image = serde_json::from_str(r#"{"size": 1}"#).unwrap();
            options.columns.images = BTreeMap::from([("image".to_owned(), image)]);
            options.bad_rows = bad_rows;
        })
    };
    let mut strict = open(BadRows::Error);
    let error = std::iter::from_fn(|| strict.next_any().transpose()).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{}: {error:?}", way.name);
    let text = error.chain();
    assert!(text.contains("row group") && text.contains("column image, row"), "{}: {text}", way.name);
    for bad_rows in [BadRows::Skip, BadRows::Zero] {
        let mut loader = open(bad_rows);
        let batches = epoch(&mut loader);
        assert_eq!(batches.len() as u64, loader.steps(), "{}, {bad_rows:?}", way.name);
        let mut bad = 0;
        for batch in &batches {
            let pixels = &batch.tensors.iter().find(|(name, _)| name == "image").unwrap().1;
            for (row, pixel) in batch.ids.iter().zip(pixels.chunks_exact(3)) {
                let (is_bad, own) = (is_bad(*row), *row as u8);
                bad += u64::from(is_bad);
                match bad_rows {
                    BadRows::Zero => assert_eq!(pixel, [if is_bad { 0 } else { own }; 3], "{}, row {row}", way.name),
                    // Another row takes its place, with its own id.
                    _ => assert!(!is_bad && pixel == [own; 3], "{}, row {row}: {pixel:?}", way.name),
                }
            }
        }
        let ledger = loader.ledger();
        let (met, every) = (ledger.skipped + ledger.zeroed, (0..ROWS).filter(|row| is_bad(*row)).count() as u64);
        assert_eq!(met, if way.decodes { every } else { 0 }, "{}, {bad_rows:?}", way.name);
        assert_eq!(bad, if bad_rows == BadRows::Zero { every } else { 0 }, "{}, {bad_rows:?}", way.name);
    }
}

pub(super) fn tensors_of_the_consumer_are_filled_or_the_batch_stays(way: &Way) {
    let expected = epoch(&mut way.whole());
    let mut loader = way.whole();
    let device = loader.device().cloned();
    let bytes = GLOBAL as usize * 8;
    let mut host = vec![0_u64; GLOBAL as usize];
    let at = device.as_ref().map_or(host.as_mut_ptr() as u64, |device| device.allocate(bytes).unwrap());
    let target = |rows: usize| {
        let shape = vec![rows];
        // SAFETY: the memory outlives the targets, and is only read between batches, when the copies to it are done.
        let target = unsafe {
            match &device {
                Some(device) => Target::on_device("id", DType::Int64, shape, (device.kind(), device.ordinal()), at),
                None => Target::on_host("id", DType::Int64, shape, at as *mut u8),
            }
        };
        Targets::new(vec![target.unwrap()]).unwrap()
    };
    let (fits, misfits) = (target(GLOBAL as usize), target(GLOBAL as usize - 1));
    for (step, expected) in expected.iter().enumerate() {
        if step % 3 == 1 {
            let error = loader.next_into(&misfits, Consumer::Unordered).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{}: {error}", way.name);
        }
        assert_eq!(loader.step(), step as u64, "{}: what does not fit costs no batch", way.name);
        let batch = loader.next_into(&fits, Consumer::Unordered).unwrap().unwrap();
        let mut found = vec![0; bytes];
        match &device {
            // SAFETY: allocated with this size; the copy is done when the call has returned.
            Some(device) => unsafe { device.read(at, &mut found).unwrap() },
            None => found = host.iter().flat_map(|id| id.to_le_bytes()).collect(),
        }
        assert_eq!(found, expected.tensors.iter().find(|(name, _)| name == "id").unwrap().1, "{}, {step}", way.name);
        assert_eq!(&seen(&batch), expected, "{}, {step}", way.name);
    }
    assert_eq!((loader.next_into(&fits, Consumer::Unordered).unwrap().is_none(), loader.epoch()), (true, 1));
    assert_eq!(next(&mut loader).unwrap().at, (1, 0), "{}", way.name);
    if let Some(device) = device {
        // SAFETY: allocated above; no copy to it is in flight.
        unsafe { device.free(at, bytes) }
    }
}
