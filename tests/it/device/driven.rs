//! The suite of all devices over the fake driver, in child processes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowstring::device::cuda::{Cuda, visible};
use bowstring::device::{Address, Device, Stream};
use bowstring::pipeline::LoaderOptions;
use bowstring::schema::DType;
use bowstring::{Error, Loader};

use super::fake::{Balance, Fake, build, child};
use super::held::settled;
use super::loader::{cpu, epoch, photos};
use super::suite::{self, Bench};

/// The real calls over the fake driver, in the suite's interface.
struct Driven {
    fake: Arc<Fake>,
    cuda: Arc<Cuda>,
    streams: Mutex<Vec<Stream>>,
    captures: AtomicUsize,
    /// Allocations made earlier by others.
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
            // Only fences on streams, which come first, are compatible with captures: those of the whole context end
            // them, and no driver tells beforehand.
            return false;
        }
        true
    }

    fn fail_at(&self, n: u64) -> bool {
        // A call of the device makes several calls of the driver; seven has no divisor in common with their number.
        self.fake.fail("*", 1 + 7 * (n as i64 - 1), if n.is_multiple_of(2) { 2 } else { 719 });
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
        println!("CUDA {version}: {}", said.lines().find(|line| line.starts_with("cuda: without fences")).unwrap());
    }
}

pub(crate) fn suite_over_the_fake() {
    let fake = Arc::new(Fake::consumer());
    suite::all("cuda", |seed| Driven::new(&fake, seed));
    settled(&fake);
    Arc::try_unwrap(fake).unwrap().finish();
}

#[test]
fn the_loader_delivers_through_the_driver() {
    child("device::driven::loader_over_the_fake", Some(&build(13_000)), &[("FAKE_CUDA_DEVICES", "2")]);
}

pub(crate) fn loader_over_the_fake() {
    let fake = Fake::consumer();
    fake.reset(3, 40);
    for dtype in [DType::Float32, DType::Bfloat16, DType::Uint8] {
        let expected = epoch(&mut cpu(&photos(dtype)));
        for (device, ordinal) in [("cuda", Some(0)), ("cuda:1", Some(1)), ("auto", Some(0)), ("pinned", None)] {
            let options = LoaderOptions { device: device.to_owned(), ..photos(dtype) };
            let mut loader = Loader::open(options).unwrap();
            assert!(epoch(&mut loader) == expected, "{device}, {dtype}");
            assert_eq!(loader.device().map(|device| device.ordinal()), ordinal, "{device}");
            assert!(fake.balance().host > 0, "{device}: page-locked memory");
            drop(loader);
            settled(&fake);
        }
    }
    let missing = Loader::open(LoaderOptions { device: "cuda:2".to_owned(), ..photos(DType::Uint8) });
    assert!(matches!(missing, Err(Error::Config { option: "device", .. })));
    fake.finish();
}

#[test]
fn without_a_gpu_auto_is_the_cpu_and_cuda_an_error() {
    for library in [None, Some(build(13_000))] {
        child("device::driven::loader_without_a_gpu", library.as_deref(), &[("FAKE_CUDA_INIT", "100")]);
    }
}

pub(crate) fn loader_without_a_gpu() {
    if visible::inventory().problem.is_none() {
        println!("this machine has a GPU: not tried");
        return;
    }
    let on = |device: &str| Loader::open(LoaderOptions { device: device.to_owned(), ..photos(DType::Float32) });
    assert!(epoch(&mut on("auto").unwrap()) == epoch(&mut cpu(&photos(DType::Float32))));
    for device in ["cuda", "cuda:0", "cuda:GPU-1", "pinned"] {
        let error = on(device).map(drop).unwrap_err();
        assert!(matches!(&error, Error::Device { what, .. } if what == "no usable GPU"), "{device}: {error}");
    }
}
