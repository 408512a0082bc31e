//! The suite of all devices over the fake driver, in child processes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowstring::device::cuda::Cuda;
use bowstring::device::{Address, Device, Stream};

use super::fake::{Balance, Fake, build, child, is_child};
use super::held::settled;
use super::suite::{self, Bench};

/// The real calls over the fake, as the suite wants a device.
struct Driven {
    fake: Arc<Fake>,
    cuda: Arc<Cuda>,
    streams: Mutex<Vec<Stream>>,
    captures: AtomicUsize,
    /// Allocations that others made before.
    before: [i64; 2],
}

impl Driven {
    fn new(fake: &Arc<Fake>, seed: u64) -> Self {
        fake.reset(seed, 30);
        let cuda = Arc::new(Cuda::new(0).unwrap());
        let (fake, before) = (Arc::clone(fake), fake.allocations());
        Self { fake, cuda, streams: Mutex::default(), captures: AtomicUsize::new(0), before }
    }
}

impl Bench for Driven {
    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.cuda) as _
    }

    fn stream(&self) -> Stream {
        let stream = self.fake.stream();
        self.streams.lock().unwrap().push(stream);
        stream
    }

    fn read_later(&self, stream: Stream, at: Address, bytes: usize) -> Box<dyn FnOnce() -> Vec<u8>> {
        let (fake, reading) = (Arc::clone(&self.fake), self.fake.read_on(stream, at, bytes));
        Box::new(move || fake.collect(reading))
    }

    fn capture(&self, stream: Stream, capturing: bool) -> bool {
        if !capturing {
            self.fake.end_capture(stream);
        } else if self.captures.fetch_add(1, Ordering::SeqCst) == 0 {
            self.fake.begin_capture(stream);
        } else {
            // Only fences on streams, which come first, go together with captures: those of the whole context end them, and
            // no driver tells beforehand.
            return false;
        }
        true
    }

    fn fail_at(&self, n: u64) -> bool {
        // A call of the device is several of the driver; seven has no divisor in common with how many.
        self.fake.fail("*", 1 + 7 * (n as i64 - 1), if n % 2 == 0 { 2 } else { 719 });
        true
    }

    fn allocations(&self) -> (u64, u64) {
        let [device, host] = self.fake.allocations();
        ((device - self.before[0]) as u64, (host - self.before[1]) as u64)
    }

    fn complaint(&self) -> Option<String> {
        let Balance { device, host, events, violations, pageable, .. } = self.fake.balance();
        let left = [device, host, events, violations, pageable];
        (left != [0; 5]).then(|| format!("device, host, events, violations, pageable copies: {left:?}"))
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.streams.lock().unwrap().drain(..).for_each(|stream| self.fake.destroy(stream));
    }
}

#[test]
fn the_suite_passes_over_the_fake_driver() {
    for version in [13_000, 12_040] {
        let said = child("device::driven::suite_over_the_fake", Some(&build(version)), &[]);
        println!("CUDA {version}: {}", said.lines().find(|line| line.starts_with("suite:")).unwrap());
    }
}

#[test]
#[ignore = "a child"]
fn suite_over_the_fake() {
    if !is_child() {
        return;
    }
    let fake = Arc::new(Fake::consumer());
    let wrong = suite::all("cuda", |seed| Driven::new(&fake, seed));
    settled(&fake);
    println!("\nsuite: {wrong} wrong batches without fences, over {} seeds", suite::seeds());
    Arc::try_unwrap(fake).unwrap().finish();
}
