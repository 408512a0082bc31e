//! The CUDA device over a fake driver, in child processes: the real calls, with streams that are threads. And without
//! any driver.
//!
//! Not covered: a real driver's asynchrony, its compiler's work on the PTX, and speed.

#![expect(unsafe_code, reason = "the device's own contract: copies and conversions by address")]

use std::collections::VecDeque;

use bowstring::device::cuda::{self, Cuda, visible};
use bowstring::device::{Conversion, Device, Fenced, Gpu, Stream};
use bowstring::schema::DType;
use bowstring::{Error, Result};

use super::fake::{Fake, build, child};
use super::held::{Dice, Held, fresh_seed, seed_of_parent, settled, upload};
use crate::support::soak;

// ---- without a driver, or with a bad one ---------------------------------------------------------------------------

#[test]
fn without_a_driver_every_way_in_is_a_clear_error() {
    let said = child("device::cuda::without_a_driver", None, &[]);
    println!("{said}");
}

pub(crate) fn without_a_driver() {
    // SAFETY: this only asks whether the library opens.
    if unsafe { cudarc::driver::sys::is_culib_present() } {
        println!("this machine has a driver: not tried");
        return;
    }
    for which in [Gpu::Default, Gpu::Ordinal(0), Gpu::Uuid("GPU-1".to_owned())] {
        match cuda::open(&which).unwrap_err() {
            Error::Device { device, what, why } => {
                assert_eq!((device.as_str(), what.as_str()), ("cuda", "no usable GPU"));
                assert!(why.contains("libcuda.so.1 was not found"), "{why}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(matches!(Cuda::new(0), Err(Error::Device { .. })));
    let there = visible::inventory();
    assert!(there.devices.is_empty() && there.problem.is_some_and(|why| why.contains("no NVIDIA driver")));
}

#[test]
fn a_driver_that_refuses_says_why() {
    let library = build(13_000);
    for (code, text) in [("100", "no CUDA-capable device"), ("3", "forked"), ("34", "stub"), ("999", "CUDA error 999")]
    {
        let said = child("device::cuda::refused", Some(&library), &[("FAKE_CUDA_INIT", code)]);
        assert!(said.contains(text), "cuInit returned {code}\n{said}");
    }
    let said = child("device::cuda::refused", Some(&build(11_080)), &[]);
    assert!(said.contains("the driver is for CUDA 11.8; 12.0 or newer is needed"), "{said}");
    let said = child("device::cuda::refused", Some(&library), &[("FAKE_CUDA_DEVICES", "0")]);
    assert!(said.contains("no CUDA-capable device"), "{said}");
}

pub(crate) fn refused() {
    // Opened twice: the answer is kept.
    for _ in 0..2 {
        let error = cuda::open(&Gpu::Default).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error}");
        println!("{error}");
    }
    assert!(visible::inventory().problem.is_some());
}

#[test]
fn the_own_gpu_is_found_and_shown() {
    let library = build(13_000);
    let variables = [("FAKE_CUDA_DEVICES", "3"), ("LOCAL_RANK", "2")];
    child("device::cuda::inventory", Some(&library), &variables);
}

pub(crate) fn inventory() {
    let there = visible::inventory();
    assert_eq!((there.driver.as_deref(), there.problem.as_deref(), there.devices.len()), (Some("13.0"), None, 3));
    assert_eq!(there.own.map(|own| (own.ordinal, own.why)), Some((2, "LOCAL_RANK=2".to_owned())));
    let second = &there.devices[1];
    assert_eq!((second.name.as_str(), second.capability.as_str(), second.memory), ("Fake GPU 1", "9.0", 8 << 30));
    assert_eq!(second.uuid, "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1");
    assert_eq!((second.bus.as_deref(), second.numa_node), (Some("ffff:01:00.0"), None));
    assert_eq!(cuda::open(&Gpu::Uuid("GPU-a1".to_owned())).unwrap().ordinal(), 1);
    assert!(matches!(cuda::open(&Gpu::Ordinal(3)), Err(Error::Config { option: "device", .. })));
}

#[cfg(feature = "cli")]
#[test]
fn doctor_shows_the_gpus_or_says_why_there_is_none() {
    let doctor = |library: &std::path::Path, variables: &[(&str, &str)]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_bowstring"));
        for unset in ["CUDA_VISIBLE_DEVICES", "BOWSTRING_RESOURCES", "LOCAL_RANK", "RANK", "WORLD_SIZE"] {
            command.env_remove(unset);
        }
        command.env_remove("BOWSTRING_NVJPEG");
        command.arg("doctor").env("LD_LIBRARY_PATH", library).envs(variables.iter().copied());
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let resources = r#"[{"id": {"resourceName": "gpu"}, "addresses": ["1"]}]"#;
    let two = doctor(&build(12_040), &[("FAKE_CUDA_DEVICES", "2"), ("BOWSTRING_RESOURCES", resources)]);
    for text in [
        "GPU           driver for CUDA 12.4, 2 visible\n",
        "cuda:1 Fake GPU 1, 8 GiB, compute 9.0\n",
        "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1\n",
        "device=cuda is cuda:1: address 1 of the task's resources\n",
    ] {
        assert!(two.contains(text), "{text}\n{two}");
    }
    let none = doctor(&build(13_000), &[("FAKE_CUDA_INIT", "100")]);
    assert!(none.contains("GPU           none") && none.contains("CUDA_ERROR_NO_DEVICE"), "{none}");
    assert!(two.contains("\nnvJPEG        ") && !none.contains("nvJPEG"), "{two}");
    let library = super::fake::build_nvjpeg();
    let found = doctor(&build(12_040), &[("BOWSTRING_NVJPEG", library.to_str().unwrap())]);
    assert!(found.contains(&format!("\nnvJPEG        12.3.1, {}\n", library.display())), "{found}");
}

// ---- slots that are used again ------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fences {
    Off,
    Stream,
    Context,
    Host,
    All,
}

#[test]
fn memory_is_used_again_only_behind_its_readers() {
    let seed = fresh_seed();
    for version in [13_000, 12_040] {
        let said = child("device::cuda::reuse", Some(&build(version)), &[("BOWSTRING_TEST_SEED", &seed)]);
        println!("CUDA {version}: {}", said.lines().find(|line| line.starts_with("reuse:")).unwrap());
    }
}

pub(crate) fn reuse() {
    let first = seed_of_parent();
    let fake = Fake::consumer();
    let mut batches = 0;
    for seed in first..first + if soak() { 200 } else { 20 } {
        for fences in [Fences::Stream, Fences::Context, Fences::Host, Fences::All] {
            fake.reset(seed, 60);
            let cuda = Cuda::new(0).unwrap();
            if fences == Fences::Context && !contexts_are_recorded(&cuda) {
                assert!(!cuda.fences_context());
                continue;
            }
            let wrong = circulate(&cuda, &fake, seed, fences);
            assert_eq!(wrong, 0, "seed {seed}, {fences:?}");
            batches += BATCHES;
            drop(cuda);
            settled(&fake);
        }
    }
    // The control: without fences the same loop must fail.
    fake.reset(first, 60);
    let cuda = Cuda::new(0).unwrap();
    let wrong = circulate(&cuda, &fake, first, Fences::Off);
    assert!(wrong > 0, "without fences nothing went wrong: this test cannot fail");
    println!("\nreuse: 0 of {batches} batches wrong; without fences {wrong} of {BATCHES}");
    drop(cuda);
    settled(&fake);
    fake.finish();
}

/// Returns true if the driver has `cuCtxRecordEvent`; otherwise the error names the remedy.
fn contexts_are_recorded(cuda: &Cuda) -> bool {
    let mut held = Held::new(cuda);
    let event = held.event().unwrap();
    match cuda.fence_context(&held.events[event]) {
        Ok(fenced) => fenced == Fenced::Recorded,
        Err(error) => {
            assert!(error.to_string().contains("CUDA 12.4") && error.to_string().contains("sync"), "{error}");
            false
        }
    }
}

const BATCHES: usize = 24;
const SLOTS: usize = 3;
const LEN: usize = 4096;

/// Sends batches through three slots to two streams that read late; each is dropped as soon as its read is queued.
/// Returns the number of wrong ones.
fn circulate(cuda: &Cuda, fake: &Fake, seed: u64, fences: Fences) -> usize {
    let mut dice = Dice(seed);
    let mut held = Held::new(cuda);
    let streams = [fake.stream(), fake.stream()];
    // The default streams, which every framework may also use.
    let streams = [streams[0], streams[1], Stream::LegacyDefault, Stream::PerThreadDefault];
    if fences == Fences::Off {
        streams.iter().for_each(|stream| fake.hold(*stream, true));
    }
    let host: Vec<_> = (0..2).map(|_| (held.host(LEN).unwrap(), held.event().unwrap())).collect();
    let slots: Vec<_> =
        (0..SLOTS).map(|_| (held.memory(LEN).unwrap(), held.event().unwrap(), held.event().unwrap())).collect();
    let mut free: VecDeque<usize> = (0..SLOTS).collect();
    let mut readings = Vec::new();
    for batch in 0..BATCHES {
        let (staged, copied) = host[batch % 2];
        cuda.synchronize(&held.events[copied]).unwrap();
        // SAFETY: the copy that read it is done.
        unsafe { staged.as_ptr().write_bytes(batch as u8 + 1, LEN) };
        let slot = free.pop_front().unwrap();
        let (memory, ready, released) = slots[slot];
        let (ready, released, copied) = (&held.events[ready], &held.events[released], &held.events[copied]);
        match fences {
            Fences::Off => {}
            Fences::Host => cuda.synchronize(released).unwrap(),
            Fences::All => cuda.synchronize_all().unwrap(),
            Fences::Stream | Fences::Context => cuda.wait(released).unwrap(),
        }
        // SAFETY: `staged` is not written before `copied` is done; the test checks that nobody reads `memory`.
        unsafe { cuda.copy(memory, staged.as_ptr(), LEN).unwrap() };
        cuda.record(ready).unwrap();
        cuda.record(copied).unwrap();
        // The consumer.
        let stream = streams[dice.below(4) as usize];
        cuda.make_visible(ready, stream).unwrap();
        readings.push(fake.read_on(stream, memory, LEN));
        let fenced = match fences {
            Fences::Context => cuda.fence_context(released).unwrap(),
            Fences::All => Fenced::Recorded,
            _ => cuda.fence(released, stream).unwrap(),
        };
        assert_eq!(fenced, Fenced::Recorded);
        free.push_back(slot);
    }
    if fences == Fences::Off {
        cuda.drain().unwrap();
        streams.iter().for_each(|stream| fake.hold(*stream, false));
    }
    let right = |(batch, reading)| fake.collect(reading).iter().all(|byte| *byte == batch as u8 + 1);
    readings.into_iter().enumerate().map(right).filter(|right| !right).count()
}

// ---- manners ----------------------------------------------------------------------------------------------------------------

#[test]
fn captures_and_the_threads_context_are_left_alone() {
    child("device::cuda::manners", Some(&build(13_000)), &[]);
}

pub(crate) fn manners() {
    let fake = Fake::consumer();
    fake.reset(7, 50);
    let (capturing, other) = (fake.stream(), fake.stream());
    let before = fake.current_context();
    fake.begin_capture(capturing);
    // While somebody captures in the global mode: all calls of the two threads of a loader, on this thread and another.
    let cuda = Cuda::new(0).unwrap();
    let work = || {
        let mut held = Held::new(&cuda);
        let at = upload(&mut held, &[3; 64]).unwrap();
        let event = held.event().unwrap();
        let event = &held.events[event];
        cuda.record(event).unwrap();
        cuda.make_visible(event, other).unwrap();
        // A foreign event would end the capture: it is waited for on the host instead.
        cuda.make_visible(event, capturing).unwrap();
        assert!(cuda.is_done(event).unwrap());
        assert_eq!(cuda.fence(event, capturing).unwrap(), Fenced::Capturing);
        assert_eq!(cuda.fence(event, other).unwrap(), Fenced::Recorded);
        cuda.synchronize(event).unwrap();
        let mut bytes = [0; 64];
        // SAFETY: `at` has 64 bytes.
        unsafe { cuda.read(at, &mut bytes).unwrap() };
        assert_eq!(bytes, [3; 64]);
    };
    work();
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
    drop(cuda);
    fake.end_capture(capturing);
    assert_eq!(fake.current_context(), before);
    // A waiting stream stands still until the event is done, and no host thread does.
    let cuda = Cuda::new(0).unwrap();
    let mut held = Held::new(&cuda);
    let (at, event) = (upload(&mut held, &[4; 64]).unwrap(), held.event().unwrap());
    fake.hold(other, true);
    let reading = fake.read_on(other, at, 64);
    assert_eq!(cuda.fence(&held.events[event], other).unwrap(), Fenced::Recorded);
    assert!(!cuda.is_done(&held.events[event]).unwrap());
    fake.hold(other, false);
    cuda.synchronize(&held.events[event]).unwrap();
    assert!(cuda.is_done(&held.events[event]).unwrap());
    assert_eq!(fake.collect(reading), [4; 64]);
    drop(held);
    drop(cuda);
    settled(&fake);
    assert_eq!(fake.balance().violations, 0);
    fake.finish();
}

// ---- every call fails once --------------------------------------------------------------------------------------------------

#[test]
fn every_call_that_fails_is_an_error_and_loses_nothing() {
    for version in [13_000, 12_040] {
        let said = child("device::cuda::failures", Some(&build(version)), &[]);
        println!("CUDA {version}: {}", said.lines().find(|line| line.starts_with("failures:")).unwrap());
    }
}

pub(crate) fn failures() {
    let fake = Fake::consumer();
    let stream = fake.stream();
    let scenario = || -> Result<()> {
        let device = cuda::open(&Gpu::Default)?;
        let mut held = Held::new(&*device);
        let at = upload(&mut held, &[5; 96])?;
        let to = held.memory(4 * 96)?;
        let what = Conversion::Cast { from: DType::Uint8, to: DType::Float32, elements: 96 };
        // SAFETY: both have the sizes of `what`.
        unsafe { device.convert(&what, at, to)? };
        let (ready, released) = (held.event()?, held.event()?);
        device.record(&held.events[ready])?;
        device.make_visible(&held.events[ready], stream)?;
        device.fence(&held.events[released], stream)?;
        device.wait(&held.events[released])?;
        device.is_done(&held.events[released])?;
        device.synchronize(&held.events[released])?;
        device.drain()?;
        device.synchronize_all()?;
        let mut bytes = [0; 4 * 96];
        // SAFETY: `to` has as many bytes.
        unsafe { device.read(to, &mut bytes)? };
        assert_eq!(bytes[..4], 5_f32.to_le_bytes());
        Ok(())
    };
    // The driver itself is found once, beforehand.
    scenario().unwrap();
    fake.reset(1, 0);
    scenario().unwrap();
    let calls = fake.calls();
    let (mut errors, mut logged) = (0, 0);
    for code in [2, 700] {
        for nth in 1..=calls {
            fake.reset(1, 0);
            fake.fail("*", nth, code);
            match scenario() {
                Err(Error::Device { device, what, why }) => {
                    assert!(device.starts_with("cuda") && !what.is_empty() && !why.is_empty());
                    errors += 1;
                }
                Err(other) => panic!("call {nth}: {other}"),
                // A failure to give something back is only logged.
                Ok(()) => logged += 1,
            }
            fake.fail("*", 0, 0);
            settled(&fake);
        }
    }
    assert!(errors > 60 && logged > 10, "{errors} errors, {logged} logged");
    println!("\nfailures: {calls} calls, each failed twice: {errors} errors, {logged} only logged, nothing lost");
    fake.finish();
}
