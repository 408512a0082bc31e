//! The requirements of every device, and the means to check them: contents that are verified late, by slow readers,
//! just when memory is reused. `all` is the whole suite; a device implements [`Bench`].

#![expect(unsafe_code, reason = "tensors of a consumer, by address")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowstring::device::{
    Address, Consumer, Conversion, Device, DeviceBatch, Feeding, Fence, Normalisation, Padding, Pull, Recipes, Stream,
    Target, Targets, Transfer,
};
use bowstring::memory::Pool;
use bowstring::schema::DType;
use bowstring::tensor::{Batch, BatchBuilder, Next, TensorSpec};
use bowstring::{Error, Result};

use crate::support::{soak, until};

/// Rows, and height and width of a photo.
const ROWS: usize = 4;
const SIDE: usize = 5;
/// Items of a list once padded; batches have lists of one more.
const LENGTH: usize = 3;
/// Room for any batch: their lists differ.
const ROOM: usize = 12 << 10;
/// Elements of the plain tensor.
const LEN: usize = 700;
/// Long enough for any machine: only a hang exceeds it.
const LONG: Duration = Duration::from_secs(120);

/// A device under test, and its consumers.
pub(crate) trait Bench {
    /// The device.
    fn device(&self) -> Arc<dyn Device>;
    /// A new stream of a consumer.
    fn stream(&self) -> Stream;
    /// Appends a slow read of device memory to `stream`.
    fn read_later(&self, stream: Stream, at: Address, bytes: usize) -> Box<dyn FnOnce() -> Vec<u8>>;
    /// Returns true if reads and copies run later than they are appended, so that a missing fence can show.
    fn is_asynchronous(&self) -> bool {
        true
    }
    /// Sets whether `stream` is capturing a graph; returns false if that cannot be tried here.
    fn capture(&self, _stream: Stream, _capturing: bool) -> bool {
        false
    }
    /// Makes the `n`th of the coming calls fail, counted from 1; returns false if that cannot be done here.
    fn fail_at(&self, _n: u64) -> bool {
        false
    }
    /// Blocks of device memory and of page-locked memory allocated so far.
    fn allocations(&self) -> (u64, u64);
    /// Resources taken and not given back, or forbidden calls; `None` if there are none.
    fn complaint(&self) -> Option<String>;
}

/// The number of seeds of a run.
pub(crate) fn seeds() -> u64 {
    if soak() { 200 } else { 20 }
}

/// Runs the whole suite on devices made by `make`, one for each seed. Prints how many batches were wrong without
/// fences, over all seeds: on asynchronous devices some must be.
pub(crate) fn all<B: Bench>(name: &str, make: impl Fn(u64) -> B) {
    let (mut wrong, mut wrong_copies) = (0, 0);
    for seed in 0..seeds() {
        println!("{name}: seed {seed}");
        for fence in [Fence::Stream, Fence::Context, Fence::Sync] {
            let bench = make(seed);
            assert_eq!(reuse(&bench, fence, seed, 24), 0, "{name}: wrong batches with fence {fence:?}, seed {seed}");
            well(&bench, name);
        }
        let bench = make(seed);
        wrong += reuse(&bench, Fence::Off, seed, 24);
        let bench = make(seed);
        assert_eq!(filling(&bench, Fence::Stream, seed), 0, "{name}: wrong copies, seed {seed}");
        well(&bench, name);
        wrong_copies += filling(&make(seed), Fence::Off, seed);
        let bench = make(seed);
        unordered(&bench);
        well(&bench, name);
        let bench = make(seed);
        conversions(&bench, seed);
        well(&bench, name);
        let bench = make(seed);
        capture(&bench);
        well(&bench, name);
    }
    println!("{name}: without fences {wrong} wrong batches and {wrong_copies} wrong copies, over {} seeds", seeds());
    assert!(
        wrong.min(wrong_copies) > 0 || !make(0).is_asynchronous(),
        "{name}: without fences nothing went wrong, so this tests nothing"
    );
    for check in [steady, pressure, overflow, close_in_the_middle, restart, dropped_on_other_threads, misfits, copies] {
        let bench = make(7);
        check(&bench);
        well(&bench, name);
    }
    failures(name, &make);
}

fn well(bench: &impl Bench, name: &str) {
    // The transfer thread gives things back; a consumer's last batch may still be on its way there.
    let deadline = Instant::now() + LONG;
    while let Some(complaint) = bench.complaint() {
        assert!(Instant::now() < deadline, "{name}: {complaint}");
        std::thread::yield_now();
    }
}

/// Batches whose every byte encodes their number, in page-locked memory, `count` of them per epoch.
#[derive(Debug)]
pub(crate) struct Numbered {
    pool: Arc<Pool>,
    next: u64,
    count: u64,
    generation: Arc<AtomicU64>,
}

impl Numbered {
    pub(crate) fn new(device: &dyn Device, count: u64) -> Self {
        let pool = Pool::new(device.staging(), 1 << 20);
        Self { pool, next: 0, count, generation: Arc::default() }
    }

    pub(crate) fn pull(mut self) -> Pull {
        Box::new(move |_| self.made())
    }

    fn made(&mut self) -> (u64, Result<Next<Batch>>) {
        let generation = self.generation.load(Ordering::SeqCst);
        if self.next == self.count {
            self.next = 0;
            return (generation, Ok(Next::End));
        }
        let batch = match batch(&self.pool, self.next) {
            Ok(batch) => batch,
            // Page-locked memory was refused: the batch is made again.
            Err(error) => return (generation, Err(error)),
        };
        // As in the pipeline: a batch that was taken is off the budget.
        batch.deliver();
        self.next += 1;
        (generation, Ok(Next::Item(batch)))
    }
}

fn plain(number: u64) -> Vec<u8> {
    (0..LEN as u64).flat_map(|at| (number * 1_000_003 + at).to_le_bytes()).collect()
}

fn pixels(number: u64) -> Vec<u8> {
    (0..(ROWS * SIDE * SIDE * 3) as u64).map(|at| (number * 31 + at * 7) as u8).collect()
}

/// The last row is padding in every third batch.
fn mask(number: u64) -> Vec<u8> {
    (0..ROWS).map(|row| u8::from(row + 1 < ROWS || !number.is_multiple_of(3))).collect()
}

/// The number of pairs in each list.
fn lengths(number: u64) -> Vec<usize> {
    (0..ROWS as u64).map(|row| ((number * 3 + row * number) % (LENGTH as u64 + 2)) as usize).collect()
}

/// The element of list `row` at `at`; the last ones are padding.
fn word(number: u64, row: usize, at: usize) -> u16 {
    (number * 1009 + row as u64 * 97 + at as u64) as u16
}

fn words(number: u64) -> (Vec<u8>, Vec<u8>) {
    let (lengths, mut offsets) = (lengths(number), vec![0_u64]);
    lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + *length as u64));
    let values = lengths.iter().enumerate().flat_map(|(row, length)| (0..2 * length).map(move |at| (row, at)));
    let values = values.flat_map(|(row, at)| word(number, row, at).to_le_bytes()).collect();
    (values, offsets.into_iter().flat_map(u64::to_le_bytes).collect())
}

fn batch(pool: &Arc<Pool>, number: u64) -> Result<Batch> {
    let spec = |name: &str, dtype, shape: &[usize]| TensorSpec { name: name.into(), dtype, shape: shape.to_vec() };
    let specs = vec![
        spec("x", DType::Uint64, &[LEN]),
        spec("image", DType::Uint8, &[ROWS, SIDE, SIDE, 3]),
        spec("none", DType::Float32, &[0]),
        spec("words__values", DType::Uint16, &[words(number).0.len() / 4, 2]),
        spec("words__offsets", DType::Int64, &[ROWS + 1]),
        spec("_mask", DType::Bool, &[ROWS]),
    ];
    let mut builder = BatchBuilder::with_room(specs, ROOM, pool.try_reserve(16 << 10).unwrap())?;
    builder.tensor(0).copy_from_slice(&plain(number));
    builder.tensor(1).copy_from_slice(&pixels(number));
    builder.tensor(3).copy_from_slice(&words(number).0);
    builder.tensor(4).copy_from_slice(&words(number).1);
    builder.tensor(5).copy_from_slice(&mask(number));
    Ok(builder.finish(0, number, ROWS, Vec::new()))
}

fn feeding(slots: usize, fence: Fence) -> Feeding {
    Feeding { slots, fence, overflow: false, recipes: Recipes::default() }
}

fn start(bench: &impl Bench, feeding: Feeding, count: u64) -> Transfer {
    let device = bench.device();
    let source = Numbered::new(&*device, count);
    Transfer::start(device, feeding, source.pull()).unwrap()
}

/// The next batch and its number; `None` at the end.
fn take(transfer: &mut Transfer) -> Option<(DeviceBatch, u64)> {
    match transfer.next(LONG).unwrap() {
        Next::Item(batch) => {
            let number = batch.step;
            Some((batch, number))
        }
        Next::End => None,
        Next::Pending => panic!("nothing came: {:?}", transfer.blocked()),
    }
}

/// Counts the batches among `count` that a slow reader found wrong, which releases each as soon as its reads are
/// queued.
fn reuse(bench: &impl Bench, fence: Fence, seed: u64, count: u64) -> usize {
    let mut transfer = start(bench, feeding(2 + seed as usize % 3, fence), count);
    let streams = [bench.stream(), bench.stream()];
    let mut reads = VecDeque::new();
    let mut wrong = 0;
    let mut expected = 0;
    while let Some((batch, number)) = take(&mut transfer) {
        assert_eq!((number, batch.step), (expected, expected));
        expected += 1;
        let x = batch.tensor("x").unwrap().clone();
        assert_eq!((x.dtype(), x.shape(), x.byte_len()), (DType::Uint64, &[LEN][..], LEN * 8));
        // One or two consumers, and now and then a copy to the host as well.
        for stream in &streams[..1 + (number + seed) as usize % 2] {
            x.give_to(Consumer::Stream(*stream)).unwrap();
            reads.push_back((number, bench.read_later(*stream, x.address(), x.byte_len())));
        }
        if number % 5 == 0 {
            assert_eq!(batch.tensor("image").unwrap().to_host().unwrap(), pixels(number));
        }
        drop(batch);
        drop(x);
        while reads.len() > 6 {
            let (number, read) = reads.pop_front().unwrap();
            wrong += usize::from(read() != plain(number));
        }
    }
    assert_eq!(expected, count);
    for (number, read) in reads {
        wrong += usize::from(read() != plain(number));
    }
    transfer.close();
    wrong
}

/// A tensor of the consumer's in the device's memory, for the column `x` of [`batch`].
fn target(bench: &impl Bench, column: &str, dtype: DType, len: usize, at: Address) -> Target {
    let device = bench.device();
    // SAFETY: the caller allocated that many bytes, and frees them when its streams are done.
    unsafe { Target::on_device(column, dtype, vec![len], (device.kind(), device.ordinal()), at).unwrap() }
}

/// Counts the consumer's copies that a slow reader found wrong: batches are copied into one tensor, and dropped at
/// once.
fn filling(bench: &impl Bench, fence: Fence, seed: u64) -> usize {
    let mut transfer = start(bench, feeding(2, fence), 16);
    let (stream, device) = (bench.stream(), bench.device());
    let at = device.allocate(LEN * 8).unwrap();
    let targets = Targets::new(vec![target(bench, "x", DType::Uint64, LEN, at)]).unwrap();
    let (mut reads, mut wrong) = (Vec::new(), 0);
    while let Some((batch, number)) = take(&mut transfer) {
        if (number + seed).is_multiple_of(4) {
            // Nobody else uses it: queued reads are done.
            reads.drain(..).for_each(|(number, read): (u64, Box<dyn FnOnce() -> Vec<u8>>)| {
                wrong += usize::from(read() != plain(number));
            });
            targets.fill_on_device(&batch, Consumer::Unordered).unwrap();
            let mut found = vec![0; LEN * 8];
            // SAFETY: allocated above with this size; nothing writes there now.
            unsafe { device.read(at, &mut found).unwrap() }
            wrong += usize::from(found != plain(number));
        } else {
            targets.fill_on_device(&batch, Consumer::Stream(stream)).unwrap();
            drop(batch);
            reads.push((number, bench.read_later(stream, at, LEN * 8)));
        }
    }
    reads.into_iter().for_each(|(number, read)| wrong += usize::from(read() != plain(number)));
    // SAFETY: allocated above; its stream is done with it.
    unsafe { device.free(at, LEN * 8) }
    wrong
}

/// A target that does not fit is an error before anything is written, and a graph being captured never contains the
/// copy.
fn misfits(bench: &impl Bench) {
    let mut transfer = start(bench, feeding(2, Fence::Stream), 4);
    let (stream, device) = (bench.stream(), bench.device());
    let at = device.allocate(2 * LEN * 8).unwrap();
    let (batch, number) = take(&mut transfer).unwrap();
    let consumer = Consumer::Stream(stream);
    let good = || target(bench, "x", DType::Uint64, LEN, at);
    let beside = at + (LEN * 8) as Address;
    let on_host = || {
        // SAFETY: nothing is written to it.
        unsafe { Target::on_host("x", DType::Uint64, vec![LEN], std::ptr::dangling_mut()).unwrap() }
    };
    let fill = |targets| Targets::new(targets).unwrap().fill_on_device(&batch, consumer);
    // If the last target is wrong, the first is not written either.
    for wrong in [
        target(bench, "image", DType::Uint64, LEN, beside),
        target(bench, "none", DType::Float32, 1, beside),
        target(bench, "y", DType::Uint64, LEN, beside),
    ] {
        let error = fill(vec![good(), wrong]).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. } | Error::NotFound { .. }), "{error}");
    }
    if bench.is_asynchronous() {
        let error = fill(vec![on_host()]).unwrap_err();
        assert!(error.to_string().contains("on the host"), "{error}");
    }
    for twice in [target(bench, "x", DType::Uint64, LEN, beside), target(bench, "image", DType::Uint8, LEN, at + 5)] {
        assert!(matches!(Targets::new(vec![good(), twice]), Err(Error::Config { option: "buffers", .. })));
    }
    let mut found = vec![1; LEN * 8];
    // SAFETY: allocated above with more than this size; nothing writes there.
    unsafe { device.read(at, &mut found).unwrap() }
    assert!(found != plain(number));
    if bench.capture(stream, true) {
        assert!(matches!(fill(vec![good()]), Err(Error::Device { .. })));
        bench.capture(stream, false);
    }
    fill(vec![good()]).unwrap();
    assert_eq!(bench.read_later(stream, at, LEN * 8)(), plain(number));
    drop(batch);
    drop(transfer);
    // SAFETY: allocated above; its stream is done with it.
    unsafe { device.free(at, 2 * LEN * 8) }
}

/// Copies of tensors outlive their batches and the loader, and their memory is returned behind their readers. If a call
/// fails, there is no copy, and nothing is lost.
fn copies(bench: &impl Bench) {
    let (stream, other) = (bench.stream(), bench.stream());
    for n in 0..if soak() { 100 } else { 30 } {
        let mut transfer = start(bench, feeding(3, Fence::Stream), 12);
        let (mut reads, mut kept, mut errors) = (Vec::new(), None, 0);
        loop {
            let batch = match transfer.next(LONG) {
                Ok(Next::Item(batch)) => batch,
                Ok(Next::End) => break,
                Err(Error::Device { .. }) if n > 0 => {
                    errors += 1;
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let number = batch.step;
            if number == 2 && n > 0 {
                bench.fail_at(n);
            }
            let x = batch.tensor("x").unwrap();
            let consumer = if number % 3 == 0 { Consumer::Unordered } else { Consumer::Stream(stream) };
            let address = x.address();
            let copy = x.copied(consumer).and_then(|copy| {
                drop(batch);
                // Done when it returned, or otherwise behind the copy.
                let reader = if number % 3 == 0 { Consumer::Unordered } else { Consumer::Stream(other) };
                copy.give_to(reader).map(|()| copy)
            });
            match copy {
                Ok(copy) => {
                    assert!(copy.address() != address && (copy.dtype(), copy.shape()) == (DType::Uint64, &[LEN][..]));
                    reads.push((number, bench.read_later(other, copy.address(), copy.byte_len())));
                    kept = (number % 2 == 0).then_some((number, copy)).or(kept);
                }
                Err(Error::Device { .. }) if n > 0 => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
        // A failed call may also have lost a slot, or a copy's memory until the end; never more than one of them.
        assert!(errors <= 1 && reads.len() >= 11, "call {n}: {errors} errors, {} read", reads.len());
        transfer.close();
        reads
            .into_iter()
            .for_each(|(number, read)| assert_eq!(read(), plain(number), "copy of batch {number}, call {n}"));
        if let Some((number, copy)) = kept {
            match copy.to_host() {
                Ok(found) => assert_eq!(found, plain(number)),
                Err(error) => assert!(n > 0 && errors == 0, "{error}"),
            }
        }
    }
}

/// A consumer that waits by other means and works on unknown streams.
fn unordered(bench: &impl Bench) {
    let mut transfer = start(bench, feeding(2, Fence::Stream), 12);
    let stream = bench.stream();
    let mut reads = Vec::new();
    while let Some((batch, number)) = take(&mut transfer) {
        let x = batch.tensor("x").unwrap();
        x.give_to(Consumer::Unordered).unwrap();
        x.synchronize().unwrap();
        reads.push((number, bench.read_later(stream, x.address(), x.byte_len())));
    }
    reads.into_iter().for_each(|(number, read)| assert_eq!(read(), plain(number)));
}

/// Photos become planes of floats on the device, bit by bit as on the host, and padding rows zeros; lists are padded
/// and cut.
fn conversions(bench: &impl Bench, seed: u64) {
    let to = [DType::Float32, DType::Float16, DType::Bfloat16][seed as usize % 3];
    let recipe = Normalisation { to, scale: [0.017, 0.0175, 0.0174, 0.0], bias: [-2.1, -2.0, -1.8, 0.0] };
    let padding = Padding { length: LENGTH, fill: 0xBEEF, left: seed % 2 == 1 };
    let recipes = Recipes {
        photos: [("image".into(), recipe)].into(),
        lists: [("words".into(), padding)].into(),
        mask: Some("_mask".into()),
        ..Recipes::default()
    };
    let mut transfer = start(bench, Feeding { recipes, ..feeding(3, Fence::Stream) }, 9);
    let stream = bench.stream();
    let mut reads = Vec::new();
    while let Some((batch, number)) = take(&mut transfer) {
        let image = batch.tensor("image").unwrap();
        assert_eq!((image.dtype(), image.shape()), (to, &[ROWS, 3, SIDE, SIDE][..]));
        image.give_to(Consumer::Stream(stream)).unwrap();
        let words = batch.tensor("words").unwrap();
        assert_eq!((words.dtype(), words.shape()), (DType::Uint16, &[ROWS, LENGTH, 2][..]));
        let lengths = batch.tensor("words__lengths").unwrap();
        assert_eq!((lengths.dtype(), lengths.shape()), (DType::Int64, &[ROWS][..]));
        assert!(batch.get("words__values").is_none() && batch.get("words__offsets").is_none());
        let tensors = [image, words, lengths];
        reads.push((number, tensors.map(|tensor| bench.read_later(stream, tensor.address(), tensor.byte_len()))));
        assert_eq!(batch.tensor("_mask").unwrap().to_host().unwrap(), mask(number));
        assert_eq!(batch.tensor("none").unwrap().to_host().unwrap(), [0_u8; 0]);
    }
    for (number, [image, words, found]) in reads {
        let what = Conversion::Normalise {
            images: ROWS as u64,
            height: SIDE as u32,
            width: SIDE as u32,
            channels: 3,
            to,
            scale: recipe.scale,
            bias: recipe.bias,
            mask: Some(0),
        };
        let mut expected = vec![0xAA; what.to_bytes().unwrap()];
        what.on_host(&pixels(number), &mut expected, Some(&mask(number)));
        assert!(image() == expected, "batch {number} as {to}");
        let (mut padded, mut kept) = (Vec::new(), Vec::new());
        for (row, length) in lengths(number).into_iter().enumerate() {
            let length = length.min(LENGTH);
            let shift = if padding.left { 2 * (LENGTH - length) } else { 0 };
            let element = |at: usize| {
                let at = at.checked_sub(shift).filter(|at| *at < 2 * length);
                at.map_or(padding.fill as u16, |at| word(number, row, at))
            };
            padded.extend((0..2 * LENGTH).flat_map(|at| element(at).to_le_bytes()));
            kept.extend((length as u64).to_le_bytes());
        }
        assert_eq!((words(), found()), (padded, kept), "lists of batch {number}");
    }
}

/// While a stream is capturing a graph, its batches are fenced later, and the graph is left alone.
fn capture(bench: &impl Bench) {
    for fence in [Fence::Stream, Fence::Context, Fence::Sync] {
        let stream = bench.stream();
        let mut transfer = start(bench, feeding(2, fence), 8);
        let mut reads = Vec::new();
        let mut kept = 0;
        for _ in 0..2 {
            let (batch, number) = take(&mut transfer).unwrap();
            let x = batch.tensor("x").unwrap();
            x.give_to(Consumer::Stream(stream)).unwrap();
            reads.push((number, bench.read_later(stream, x.address(), x.byte_len())));
            if number == 1 {
                // The slot of batch 0 was taken again: nothing is about to wait for the whole device, which would end
                // the capture.
                until("batch 2 comes", || transfer.stats().batches >= 3);
                kept = x.address();
                if !bench.capture(stream, true) {
                    return;
                }
            }
        }
        // The second was dropped while the graph is captured: the next batches go through the slot of the first.
        for expected in 2..4 {
            let (batch, number) = take(&mut transfer).unwrap();
            assert_eq!(number, expected);
            let at = batch.tensor("x").unwrap().address();
            assert_ne!(at, kept, "the slot of batch 1 was written while its stream recorded a graph");
        }
        bench.capture(stream, false);
        while take(&mut transfer).is_some() {}
        reads.into_iter().for_each(|(number, read)| assert_eq!(read(), plain(number)));
    }
}

/// After the first batches nothing is allocated any more, epoch after epoch.
fn steady(bench: &impl Bench) {
    let mut transfer = start(bench, feeding(3, Fence::Stream), 40);
    let stream = bench.stream();
    let epoch = |transfer: &mut Transfer| {
        while let Some((batch, _)) = take(transfer) {
            batch.tensor("x").unwrap().give_to(Consumer::Stream(stream)).unwrap();
        }
    };
    epoch(&mut transfer);
    let warm = bench.allocations();
    (0..3).for_each(|_| epoch(&mut transfer));
    // The number of batches in flight at once varies: at most one for each slot, and one that waits.
    assert!(warm.0 <= 3 && bench.allocations().0 == warm.0, "device memory: {warm:?}, then {:?}", bench.allocations());
    assert!(bench.allocations().1 <= 5, "page-locked memory: {:?}", bench.allocations());
    assert_eq!(transfer.stats().allocations, if bench.is_asynchronous() { warm.0 } else { 0 });
}

/// A consumer that keeps everything is told so, and continues once it lets go.
fn pressure(bench: &impl Bench) {
    let mut transfer = start(bench, feeding(3, Fence::Stream), 10);
    let mut kept: Vec<_> = (0..3).map(|_| take(&mut transfer).unwrap().0).collect();
    let deadline = Instant::now() + LONG;
    let blocked = loop {
        assert!(matches!(transfer.next(Duration::from_millis(5)).unwrap(), Next::Pending));
        match transfer.blocked() {
            Some(blocked) => break blocked,
            None => assert!(Instant::now() < deadline),
        }
    };
    assert!(blocked.contains("3 batches are alive; raise device_slots or drop references"), "{blocked}");
    assert_eq!(transfer.stats().held, 3);
    let last = kept.pop();
    let dropping = std::thread::spawn(move || drop(last));
    assert_eq!(take(&mut transfer).unwrap().1, 3);
    dropping.join().unwrap();
    for (number, batch) in kept.iter().enumerate() {
        assert_eq!(batch.tensor("x").unwrap().to_host().unwrap(), plain(number as u64));
    }
    let refused = Transfer::start(bench.device(), feeding(1, Fence::Stream), Numbered::new(&*bench.device(), 1).pull());
    assert!(matches!(refused, Err(Error::Config { option: "device_slots", .. })));
}

/// With an overflow it gets more, and the device gets it back.
fn overflow(bench: &impl Bench) {
    let mut transfer = start(bench, Feeding { overflow: true, ..feeding(2, Fence::Stream) }, 30);
    let kept: Vec<_> = (0..7).map(|_| take(&mut transfer).unwrap()).collect();
    assert!(transfer.stats().overflows >= 5);
    for (batch, number) in &kept {
        assert_eq!(batch.tensor("x").unwrap().to_host().unwrap(), plain(*number));
    }
    drop(kept);
    let mut expected = 7;
    while let Some((batch, number)) = take(&mut transfer) {
        assert_eq!(number, expected);
        assert_eq!(batch.tensor("x").unwrap().to_host().unwrap(), plain(number));
        expected += 1;
    }
    assert_eq!(expected, 30);
}

/// Batches of the consumer outlive the loader; those on their way are given back.
fn close_in_the_middle(bench: &impl Bench) {
    let stream = bench.stream();
    for held in 0..3 {
        let mut transfer = start(bench, feeding(4, Fence::Stream), 100);
        let kept: Vec<_> = (0..held).map(|_| take(&mut transfer).unwrap()).collect();
        for (batch, _) in &kept {
            batch.tensor("x").unwrap().give_to(Consumer::Stream(stream)).unwrap();
        }
        transfer.close();
        assert!(matches!(transfer.next(LONG), Err(Error::Closed { .. })));
        for (batch, number) in &kept {
            assert_eq!(batch.tensor("x").unwrap().to_host().unwrap(), plain(*number));
        }
        drop(transfer);
        for (batch, number) in kept {
            let x = batch.tensor("x").unwrap().clone();
            drop(batch);
            assert_eq!(x.to_host().unwrap(), plain(number));
        }
    }
}

/// Batches made ahead are dropped when the position changes, and nothing after it is lost.
fn restart(bench: &impl Bench) {
    let device = bench.device();
    let source = Numbered::new(&*device, 50);
    let generation = Arc::clone(&source.generation);
    let mut transfer = Transfer::start(device, feeding(3, Fence::Stream), source.pull()).unwrap();
    let mut last = None;
    for round in 1..20 {
        let (_, number) = take(&mut transfer).unwrap_or_else(|| take(&mut transfer).unwrap());
        // The source continues where it is: numbers never go back except at an epoch's end.
        assert!(last.is_none_or(|last| number > last || number < 10), "{number} after {last:?}");
        last = Some(number);
        generation.store(round, Ordering::SeqCst);
        transfer.restart(round);
    }
}

/// Tensors of one batch are released on several threads, in any order.
fn dropped_on_other_threads(bench: &impl Bench) {
    let mut transfer = start(bench, feeding(2, Fence::Stream), 60);
    let stream = bench.stream();
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = std::sync::mpsc::channel::<DeviceBatch>();
    let receiver = Arc::new(std::sync::Mutex::new(receiver));
    let droppers: Vec<_> = (0..3)
        .map(|_| {
            let (receiver, stop) = (Arc::clone(&receiver), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let next = receiver.lock().unwrap().recv();
                    let Ok(batch) = next else { return };
                    drop(batch);
                }
            })
        })
        .collect();
    let mut reads = Vec::new();
    while let Some((batch, number)) = take(&mut transfer) {
        let x = batch.tensor("x").unwrap();
        x.give_to(Consumer::Stream(stream)).unwrap();
        reads.push((number, bench.read_later(stream, x.address(), x.byte_len())));
        sender.send(batch.clone()).unwrap();
        sender.send(batch).unwrap();
    }
    drop(sender);
    droppers.into_iter().for_each(|thread| thread.join().unwrap());
    stop.store(true, Ordering::SeqCst);
    assert_eq!(reads.len(), 60);
    reads.into_iter().for_each(|(number, read)| assert_eq!(read(), plain(number)));
}

/// Every call fails once: the error has a type, every batch still comes and in order, and everything is given back.
fn failures<B: Bench>(name: &str, make: &impl Fn(u64) -> B) {
    let last = if soak() { 400 } else { 100 };
    for n in 1..=last {
        let bench = make(n);
        if !bench.fail_at(n) {
            return;
        }
        let mut expected = 0;
        let mut errors = 0;
        let stream = bench.stream();
        let mut transfer = start(&bench, feeding(3, Fence::Stream), 12);
        loop {
            match transfer.next(LONG) {
                Ok(Next::Item(batch)) => {
                    let number = batch.step;
                    assert_eq!(number, expected, "{name}: lost after call {n} failed");
                    expected += 1;
                    let x = batch.tensor("x").unwrap();
                    match x.give_to(Consumer::Stream(stream)).and_then(|()| x.to_host()) {
                        Ok(bytes) => assert!(bytes == plain(number), "{name}: batch {number} after call {n} failed"),
                        Err(Error::Device { .. }) => errors += 1,
                        Err(error) => panic!("{name}: call {n}: {error}"),
                    }
                }
                Ok(Next::End) => break,
                Ok(Next::Pending) => panic!("{name}: nothing came after call {n} failed: {:?}", transfer.blocked()),
                Err(Error::Device { .. }) => errors += 1,
                Err(error) => panic!("{name}: call {n}: {error}"),
            }
        }
        assert_eq!(expected, 12, "{name}: call {n}");
        assert!(errors <= 1, "{name}: call {n} failed once, {errors} errors");
        drop(transfer);
        well(&bench, name);
    }
}
