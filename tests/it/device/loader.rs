//! The loader whose batches are on a device: equal to those of the CPU bit by bit, at the same positions.

#![expect(unsafe_code, reason = "tensors of a consumer, by address")]

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, FixedSizeListBuilder, Float64Builder, Int8Builder, Int16Builder, Int32Builder};
use arrow::array::{Int64Array, Int64Builder, ListBuilder, RecordBatch};
use bowstring::codec::image::{Crop, ImageOptions, Normalize};
use bowstring::codec::{BadRows, Lengths, Lists, Nulls, Padded, Scalar, Truncate};
use bowstring::device::{Consumer, Device, DeviceBatch, DeviceValue, Fence, Host, Kind, Sim, Target, Targets};
use bowstring::pipeline::{Cause, LoaderOptions};
use bowstring::plan::Tail;
use bowstring::schema::DType;
use bowstring::tensor::{Batch, Value};
use bowstring::{AnyBatch, Error, Loader, Next};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

use crate::support::{Random, fixture, options, soak, until_told, write};

pub(super) fn photos(dtype: DType) -> LoaderOptions {
    let image = ImageOptions {
        size: Some(32.into()),
        crop: Crop::RANDOM_RESIZED,
        flip: 0.5,
        dtype,
        normalize: (dtype != DType::Uint8).then(Normalize::imagenet),
        ..ImageOptions::default()
    };
    let mut options = LoaderOptions::new(fixture("imagenet40.parquet").to_str().unwrap(), 6);
    options.columns.columns = vec!["image".to_owned(), "label".to_owned()];
    options.columns.images = [("image".to_owned(), image)].into();
    (options.threads, options.memory_budget, options.seed) = (Some(2), Some(256 << 20), 11);
    options
}

fn rows(files: &TempDir) -> LoaderOptions {
    write(files.path(), &[vec![70, 31], vec![53]], 3);
    options(files.path(), 8, 0, 1)
}

/// The longest list of [`lists`].
const LONGEST: u64 = 40;

/// 200 rows of lists of up to [`LONGEST`] items of every width: some empty, some null, some of pairs, and lists of lists.
fn lists(files: &TempDir) -> LoaderOptions {
    let mut dice = Random(5);
    let mut bytes = ListBuilder::new(Int8Builder::new());
    let mut shorts = ListBuilder::new(Int16Builder::new());
    let mut words = ListBuilder::new(Int32Builder::new());
    let mut pairs = ListBuilder::new(FixedSizeListBuilder::new(Float64Builder::new(), 2));
    let mut deep = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
    for row in 0..200 {
        let mut length = || if dice.chance(20) { 0 } else { dice.below(LONGEST + 1) };
        bytes.append_value((0..length()).map(|at| Some((row + at) as i8)));
        let values: Vec<_> = (0..length()).map(|at| Some((row * at) as i16)).collect();
        shorts.append_option((row % 9 != 0).then_some(values));
        words.append_value((0..length()).map(|at| Some((row << 16 | at) as i32)));
        for at in 0..length() {
            pairs.values().values().append_slice(&[at as f64, -(row as f64)]);
            pairs.values().append(true);
        }
        pairs.append(true);
        for at in 0..row % 3 {
            deep.values().append_value((0..at + row % 2).map(|value| Some(value as i32)));
        }
        deep.append(true);
    }
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200));
    let of = |name, array: ArrayRef| (name, array, true);
    let columns = [
        of("id", id),
        of("bytes", Arc::new(bytes.finish())),
        of("shorts", Arc::new(shorts.finish())),
        of("words", Arc::new(words.finish())),
        of("pairs", Arc::new(pairs.finish())),
        of("deep", Arc::new(deep.finish())),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let file = File::create(files.path().join("lists.parquet")).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(37)).build();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut options = options(files.path(), 24, 0, 1);
    options.columns.nulls = Nulls::Mask.into();
    options.tail = Some(Tail::Pad);
    options
}

/// The plain lists padded to `length`, lists of lists to one much smaller.
fn padded(options: &mut LoaderOptions, length: usize, truncate: Truncate, left: bool) {
    let one = Padded { fill: Scalar::Int(-7), truncate, left, ..Padded::new(length) };
    let two = Padded { length: Lengths::Each(vec![2, 2]), truncate: Truncate::Right, ..one.clone() };
    options.columns.lists.0 = [("*".to_owned(), Lists::Padded(one)), ("deep".to_owned(), Lists::Padded(two))].into();
}

/// The content of a batch: names, element types, shapes and bytes.
pub(super) type Held = (u64, u64, Vec<(String, DType, Vec<usize>, Vec<u8>)>);

fn host(batch: &Batch) -> Held {
    let tensors = batch.columns().iter().filter_map(|(name, value)| match value {
        Value::Tensor(tensor) => {
            Some((name.to_string(), tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec()))
        }
        Value::Arrow(_) => None,
    });
    (batch.epoch, batch.step, tensors.collect())
}

fn device(batch: &DeviceBatch) -> Held {
    let tensors = batch.columns().iter().filter_map(|(name, value)| match value {
        DeviceValue::Tensor(tensor) => {
            Some((name.to_string(), tensor.dtype(), tensor.shape().to_vec(), tensor.to_host().unwrap()))
        }
        DeviceValue::Arrow(_) => None,
    });
    (batch.epoch, batch.step, tensors.collect())
}

pub(super) fn next(loader: &mut Loader) -> Option<Held> {
    loader.next_any().unwrap().map(|batch| match batch {
        AnyBatch::Host(batch) => host(&batch),
        AnyBatch::Device(batch) => device(&batch),
    })
}

pub(super) fn epoch(loader: &mut Loader) -> Vec<Held> {
    std::iter::from_fn(|| next(loader)).collect()
}

pub(super) fn cpu(options: &LoaderOptions) -> Loader {
    Loader::open(options.clone()).unwrap()
}

/// The pipeline's own threads end by themselves, and with them the last of its page-locked memory.
pub(super) fn all_given_back(sim: &Sim) {
    let is_balanced = || sim.counters().is_balanced() && sim.counters().strays == 0;
    until_told(|| format!("{:?}", sim.counters()), is_balanced);
}

#[test]
fn photos_are_normalised_on_the_device_with_the_bits_of_the_cpu() {
    for (seed, dtype) in [DType::Float32, DType::Float16, DType::Bfloat16, DType::Uint8].into_iter().enumerate() {
        for tail in [Tail::Pad, Tail::Repeat] {
            let options = LoaderOptions { tail: Some(tail), ..photos(dtype) };
            let expected = epoch(&mut cpu(&options));
            let sim = Sim::new(seed as u64);
            let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
            assert_eq!(loader.schema(), cpu(&options).schema());
            assert!(epoch(&mut loader) == expected, "{dtype} with tail {tail:?}");
            let converted = sim.counters().conversions;
            assert_eq!(converted, if dtype == DType::Uint8 { 0 } else { expected.len() as u64 }, "{dtype}");
            drop(loader);
            all_given_back(&sim);
        }
    }
}

#[test]
fn lists_are_padded_on_the_device_with_the_bits_of_the_cpu() {
    let files = TempDir::new().unwrap();
    let whole = lists(&files);
    let cases = [
        (LONGEST as usize, Truncate::Error, false, BadRows::Error),
        (LONGEST as usize + 3, Truncate::Error, true, BadRows::Skip),
        (17, Truncate::Right, false, BadRows::Error),
        (17, Truncate::Left, true, BadRows::Error),
        (33, Truncate::Error, false, BadRows::Zero),
        (33, Truncate::Error, true, BadRows::Skip),
    ];
    for (seed, (length, truncate, left, bad_rows)) in cases.into_iter().enumerate() {
        let mut options = LoaderOptions { bad_rows, shuffle: seed % 2 == 0, ..whole.clone() };
        padded(&mut options, length, truncate, left);
        let mut reference = cpu(&options);
        let sim = Sim::new(seed as u64);
        let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
        assert_eq!(loader.schema(), reference.schema());
        for round in 0..3 {
            let expected = epoch(&mut reference);
            assert!(epoch(&mut loader) == expected, "{length} {truncate:?} left {left}, {bad_rows:?}, epoch {round}");
            assert_eq!(loader.state(), reference.state());
            let (steps, stats) = (expected.len() as u64, loader.device_stats().unwrap());
            assert_eq!(sim.counters().conversions, 8 * steps * (round + 1), "lists and lengths of four columns");
            let all: usize = expected.iter().flat_map(|(.., columns)| columns).map(|column| column.3.len()).sum();
            assert!(stats.bytes < (round + 1) * all as u64, "{} bytes instead of {all} an epoch", stats.bytes);
            assert!(stats.allocations <= options.device_slots as u64, "slots of one size, taken once: {stats:?}");
        }
        assert!(
            sim.counters().pinned <= options.prefetch as u64 + options.device_slots as u64 + 3,
            "{:?}",
            sim.counters()
        );
        drop(loader);
        all_given_back(&sim);
        let mut on_host = Loader::open_on(&options, Arc::new(Host::default())).unwrap();
        assert!(epoch(&mut on_host) == epoch(&mut cpu(&options)), "the host as a device");
    }
    // Too long for `error`: the same message.
    let mut options = whole.clone();
    padded(&mut options, 20, Truncate::Error, false);
    let said = |mut loader: Loader| loop {
        if let Err(error) = loader.next_any() {
            return error.to_string();
        }
    };
    assert_eq!(said(Loader::open_on(&options, Sim::new(1)).unwrap()), said(cpu(&options)));
    // Cut lists are delivered if requested.
    let cut = Padded { truncate: Truncate::Right, ..Padded::new(20) };
    options.columns.lists.0.insert("words".to_owned(), Lists::Cut(cut.clone()));
    options.columns.lists.0.insert("*".to_owned(), Lists::Padded(cut));
    let sim = Sim::new(3);
    let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
    assert_eq!(loader.schema(), cpu(&options).schema());
    let expected = epoch(&mut cpu(&options));
    assert!(epoch(&mut loader) == expected && expected[0].2.iter().any(|column| column.0 == "words__offsets"));
    assert_eq!(sim.counters().conversions, 6 * expected.len() as u64);
    // Short lists stay on the host.
    padded(&mut options, 15, Truncate::Left, false);
    let sim = Sim::new(2);
    let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
    assert!(epoch(&mut loader) == epoch(&mut cpu(&options)));
    assert_eq!(sim.counters().conversions, 0);
}

#[test]
fn what_the_device_cannot_tell_apart_is_normalised_on_the_host() {
    let changes: [fn(&mut LoaderOptions); 3] = [
        |options| options.bad_rows = BadRows::Zero,
        |options| options.columns.nulls = Nulls::Mask.into(),
        |options| {
            let image = options.columns.images.remove("image").unwrap();
            options.columns.images.insert("ima*".to_owned(), image);
        },
    ];
    for change in changes {
        let mut options = photos(DType::Float32);
        change(&mut options);
        let sim = Sim::new(1);
        let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
        assert!(epoch(&mut loader) == epoch(&mut cpu(&options)));
        assert_eq!(sim.counters().conversions, 0);
    }
}

#[test]
fn tables_are_copied_once_and_nothing_is_allocated_for_later_epochs() {
    let files = TempDir::new().unwrap();
    let options = LoaderOptions { device_slots: 3, ..rows(&files) };
    let mut expected = cpu(&options);
    let sim = Sim::new(5);
    let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
    assert!(loader.device().is_some() && expected.device().is_none());
    for round in 0..4 {
        let steps = loader.steps();
        assert!(epoch(&mut loader) == epoch(&mut expected), "epoch {round}");
        let stats = loader.device_stats().unwrap();
        assert_eq!((stats.batches, stats.overflows, stats.quarantined), (steps * (round + 1), 0, 0));
        assert_eq!(sim.counters().copies, stats.batches, "one copy for each batch");
        // A slot that was not needed yet may be needed in a later epoch.
        assert!(stats.allocations <= options.device_slots as u64, "device memory is allocated once: {stats:?}");
    }
    // Maximum in flight: batches being made, one for each slot, and one that waits for a slot.
    let most = options.prefetch as u64 + 2 + options.device_slots as u64 + 1;
    assert!(sim.counters().pinned <= most, "{:?}", sim.counters());
    drop(loader);
    all_given_back(&sim);
    let mut on_host = Loader::open_on(&options, Arc::new(Host::default())).unwrap();
    assert!(epoch(&mut on_host) == epoch(&mut cpu(&options)), "the host as a device");
}

/// Lists of one value each: in the file a few bytes, so the batches are larger than expected by far, and of many sizes.
#[test]
fn batches_larger_than_estimated_reuse_page_locked_memory_too() {
    let files = TempDir::new().unwrap();
    let mut words = ListBuilder::new(Int64Builder::new());
    for row in 0..160 {
        words.append_value(std::iter::repeat_n(Some(row), 3000 + (row as usize * 37) % 1000));
    }
    let batch = RecordBatch::try_from_iter([("words", Arc::new(words.finish()) as ArrayRef)]).unwrap();
    let file = File::create(files.path().join("lists.parquet")).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(8)).build();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let options = LoaderOptions { device_slots: 3, ..options(files.path(), 8, 0, 1) };
    let mut expected = cpu(&options);
    let sim = Sim::new(5);
    let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
    for round in 0..5 {
        assert!(epoch(&mut loader) == epoch(&mut expected), "epoch {round}");
    }
    // 100 batches. As many blocks as can be in flight, and some that were too small for later batches.
    let most = options.prefetch as u64 + 2 + options.device_slots as u64 + 1;
    assert!(sim.counters().pinned <= 2 * most, "{:?}", sim.counters());
}

#[test]
fn positions_are_those_of_what_was_yielded() {
    let files = TempDir::new().unwrap();
    let options = rows(&files);
    let whole: Vec<Vec<Held>> = {
        let mut loader = cpu(&options);
        (0..3).map(|_| epoch(&mut loader)).collect()
    };
    let steps = whole[0].len();
    for seed in 0..if soak() { 60 } else { 6 } {
        let sim = Sim::new(seed);
        let mut loader = Loader::open_on(&options, sim).unwrap();
        let mut reference = cpu(&options);
        let cut = 1 + (seed as usize * 5) % (steps - 1);
        for expected in &whole[0][..cut] {
            assert!(next(&mut loader).as_ref() == Some(expected));
            reference.next().unwrap().unwrap();
            assert_eq!(loader.state(), reference.state());
            assert_eq!((loader.epoch(), loader.step()), (reference.epoch(), reference.step()));
        }
        let state = loader.state();

        // Resumed elsewhere: on the CPU, and on another device.
        let mut resumed = cpu(&options);
        resumed.load_state(&state).unwrap();
        assert!(epoch(&mut resumed) == whole[0][cut..]);
        let mut resumed = Loader::open_on(&options, Sim::new(seed + 1000)).unwrap();
        resumed.load_state(&state).unwrap();
        assert_eq!(resumed.state(), state);
        assert!(epoch(&mut resumed) == whole[0][cut..]);
        assert!(epoch(&mut resumed) == whole[1], "and on into the next epoch");

        // A batch that was put back comes next again.
        let Some(AnyBatch::Device(batch)) = loader.next_any().unwrap() else { panic!("no batch") };
        let after = loader.state();
        loader.put_back(batch);
        assert_eq!(loader.state(), state);
        assert!(next(&mut loader).as_ref() == Some(&whole[0][cut]));
        assert_eq!(loader.state(), after);

        // A wrong state changes nothing.
        let mut wrong = state.clone();
        wrong.spec.seed += 1;
        assert!(matches!(loader.load_state(&wrong), Err(Error::Mismatch { .. })));
        assert_eq!(loader.state(), after);
        assert!(epoch(&mut loader) == whole[0][cut + 1..]);
        assert_eq!((loader.epoch(), loader.step()), (1, 0));

        // Epochs begin at their start, including one that was left.
        next(&mut loader).unwrap();
        loader.set_epoch(1).unwrap();
        assert_eq!(loader.step(), 0);
        loader.set_epoch(2).unwrap();
        assert!(epoch(&mut loader) == whole[2]);
        loader.set_epoch(0).unwrap();
        assert!(epoch(&mut loader) == whole[0]);
        loader.close();
        assert!(matches!(loader.next_any(), Err(Error::Closed { .. })));
    }
}

#[test]
fn whoever_keeps_all_batches_is_told_so() {
    let files = TempDir::new().unwrap();
    let options = LoaderOptions { device_slots: 2, ..rows(&files) };
    let mut loader = Loader::open_on(&options, Sim::new(3)).unwrap();
    let kept: Vec<_> = (0..2).map(|_| loader.next_any().unwrap().unwrap()).collect();
    let error = loop {
        assert!(matches!(loader.next_within(Duration::from_millis(20)).unwrap(), Next::Pending));
        let error = loader.timed_out(Duration::from_secs(1)).to_string();
        // Until the next batch is there, the wait is for that.
        if error.contains("device_slots") {
            break error;
        }
    };
    assert!(error.contains("stage device") && error.contains("2 batches are alive"), "{error}");
    drop(kept);
    assert_eq!(next(&mut loader).unwrap().1, 2);

    let options = LoaderOptions { device_slots: 2, device_overflow: true, ..options };
    let mut loader = Loader::open_on(&options, Sim::new(3)).unwrap();
    let kept: Vec<_> = (0..9).map(|_| loader.next_any().unwrap().unwrap()).collect();
    let expected: Vec<_> = epoch(&mut cpu(&options)).drain(..9).collect();
    drop(loader);
    let kept: Vec<_> =
        kept.iter().map(|batch| if let AnyBatch::Device(batch) = batch { device(batch) } else { panic!() }).collect();
    assert!(kept == expected, "they outlive the loader");
}

#[test]
fn the_report_is_of_the_consumer_and_not_of_the_transfer_thread() {
    let files = TempDir::new().unwrap();
    let options = rows(&files);
    let mut loader = Loader::open_on(&options, Sim::new(3)).unwrap();
    let pause = Duration::from_millis(5);
    let mut batches = 0_u32;
    while next(&mut loader).is_some() {
        std::thread::sleep(pause);
        batches += 1;
    }
    let report = loader.report();
    let (spent, stage) = (report.stats.spent, report.stats.consumer);
    // The last pause ends with the call that finds the end.
    assert!(spent.of(Cause::Consumer) >= (pause * batches).as_secs_f64(), "{report}");
    assert!((spent.total() - stage.worked_seconds - stage.waited_seconds).abs() < 1e-6, "{report}");
    let percent: f64 = report.time.iter().map(|part| part.percent).sum();
    assert!((percent - 100.0).abs() < 1e-6, "{report}");
    assert!(!report.device.is_empty() && report.to_string().contains(&report.device), "{report}");
}

#[test]
fn tensors_of_the_consumer_are_filled_at_the_positions_of_next() {
    let files = TempDir::new().unwrap();
    let options = rows(&files);
    let ids = |held: &[Held]| -> Vec<Vec<u8>> { held.iter().map(|(_, _, columns)| columns[0].3.clone()).collect() };
    let expected = ids(&epoch(&mut cpu(&options)));
    assert_eq!(cpu(&options).schema().fields()[0].name.as_ref(), "id");
    let len = options.global_batch_size.unwrap() as usize;

    let mut memory = vec![0_u8; len * 8];
    // SAFETY: the memory outlives the targets, and is only read between batches.
    let target = unsafe { Target::on_host("id", DType::Int64, vec![len], memory.as_mut_ptr()).unwrap() };
    let targets = Targets::new(vec![target]).unwrap();
    let (mut loader, mut reference) = (cpu(&options), cpu(&options));
    let mut found = Vec::new();
    while loader.next_into(&targets, Consumer::Unordered).unwrap().is_some() {
        reference.next().unwrap().unwrap();
        assert_eq!(loader.state(), reference.state());
        found.push(memory.clone());
    }
    assert!(found == expected);

    // On a device whose calls fail now and then: the batch comes next again.
    for n in 1..if soak() { 200 } else { 40 } {
        let sim = Sim::new(n);
        let stream = sim.stream();
        let mut loader = Loader::open_on(&options, Arc::clone(&sim) as _).unwrap();
        let at = sim.allocate(len * 8).unwrap();
        // SAFETY: allocated with this size, and freed last.
        let target = unsafe { Target::on_device("id", DType::Int64, vec![len], (Kind::Sim, 0), at).unwrap() };
        let targets = Targets::new(vec![target]).unwrap();
        sim.fail_at(n);
        let (mut found, mut step, mut errors) = (Vec::new(), 0, 0);
        loop {
            assert_eq!(loader.step(), step);
            match loader.next_into(&targets, Consumer::Stream(stream)) {
                Ok(Some(batch)) => drop(batch),
                Ok(None) => break,
                Err(Error::Device { .. }) => {
                    errors += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            step += 1;
            found.push(sim.collect(&sim.read_on(stream, at, len * 8)).unwrap());
        }
        assert!(found == expected && errors <= 1, "call {n} failed");
        drop(loader);
        // SAFETY: allocated above; its stream is done with it.
        unsafe { sim.free(at, len * 8) }
        all_given_back(&sim);
    }
}

#[test]
fn options_of_devices_are_checked_where_they_are_given() {
    let files = TempDir::new().unwrap();
    let options = rows(&files);
    let refused = |options: LoaderOptions| Loader::open(options).unwrap_err();
    let error = refused(LoaderOptions { device: "gpu".to_owned(), ..options.clone() });
    assert!(matches!(error, Error::Config { option: "device", .. }), "{error}");
    let error = refused(LoaderOptions { device_slots: 1, ..options.clone() });
    assert!(matches!(error, Error::Config { option: "device_slots", .. }), "{error}");
    let json =
        r#"{"urls": ["x"], "device": "cuda:1", "device_slots": 6, "device_fence": "context", "device_overflow": true}"#;
    let read: LoaderOptions = serde_json::from_str(json).unwrap();
    assert_eq!((&*read.device, read.device_slots, read.device_fence), ("cuda:1", 6, Fence::Context));
    // Batches on a device are not delivered as if they were on the host.
    let mut loader = Loader::open_on(&options, Sim::new(0)).unwrap();
    assert!(matches!(loader.next(), Err(Error::Config { option: "device", .. })));
    let Some(AnyBatch::Device(batch)) = loader.next_any().unwrap() else { panic!("no batch") };
    batch.tensor("id").unwrap().give_to(Consumer::Unordered).unwrap();
}
