//! Shared by the tests of a device: values from a seed, and resources that are given back in any case.

#![expect(unsafe_code, reason = "the device's own contract: copies by address")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowstring::Result;
use bowstring::device::{Address, Device, Event};
use bowstring::memory::HostAllocator;

use super::fake::{Balance, Fake};

/// A generator of test values.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Page-locked memory, device memory and events that are given back in any case.
pub(crate) struct Held<'a> {
    pub(crate) device: &'a dyn Device,
    staging: Arc<dyn HostAllocator>,
    host: Vec<(NonNull<u8>, usize)>,
    memory: Vec<(Address, usize)>,
    pub(crate) events: Vec<Event>,
}

impl<'a> Held<'a> {
    pub(crate) fn new(device: &'a dyn Device) -> Self {
        Self { device, staging: device.staging(), host: Vec::new(), memory: Vec::new(), events: Vec::new() }
    }

    pub(crate) fn host(&mut self, len: usize) -> Result<NonNull<u8>> {
        let at = self.staging.allocate(len)?;
        self.host.push((at, len));
        Ok(at)
    }

    pub(crate) fn memory(&mut self, len: usize) -> Result<Address> {
        let at = self.device.allocate(len)?;
        assert_eq!(at % 256, 0);
        self.memory.push((at, len));
        Ok(at)
    }

    pub(crate) fn event(&mut self) -> Result<usize> {
        self.events.push(self.device.event()?);
        Ok(self.events.len() - 1)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Appended work may still touch the memory, even if a later call failed.
        drop(self.device.drain().or_else(|_| self.device.drain()));
        for (at, len) in self.host.drain(..) {
            // SAFETY: allocated once with this length; nothing is in flight.
            unsafe { self.staging.free(at, len) }
        }
        for (at, len) in self.memory.drain(..) {
            // SAFETY: as above.
            unsafe { self.device.free(at, len) }
        }
        for event in self.events.drain(..) {
            self.device.destroy(event);
        }
    }
}

/// Puts `bytes` into device memory and waits.
pub(crate) fn upload(held: &mut Held<'_>, bytes: &[u8]) -> Result<Address> {
    let (host, memory) = (held.host(bytes.len())?, held.memory(bytes.len())?);
    // SAFETY: both have the length of `bytes`, and nothing else knows them.
    unsafe {
        host.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        held.device.copy(memory, host.as_ptr(), bytes.len())?;
    }
    held.device.drain()?;
    Ok(memory)
}

/// Waits until everything that the device took is given back: ending threads hold the last of it.
pub(crate) fn settled(fake: &Fake) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let left = fake.balance();
        // The consumer's own hold of the context, and its streams.
        let consumer = Balance { contexts: 1, streams: left.streams, ..Balance::default() };
        if left == consumer {
            return;
        }
        assert!(left.violations == 0 && Instant::now() < deadline, "not given back: {left:?}");
        std::thread::yield_now();
    }
}

/// A new seed, printed with the test's output; `BOWSTRING_TEST_SEED` repeats one.
pub(crate) fn fresh_seed() -> String {
    let seed = std::env::var("BOWSTRING_TEST_SEED").unwrap_or_else(|_| {
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
        nanos.to_string()
    });
    println!("BOWSTRING_TEST_SEED={seed}");
    seed
}

pub(crate) fn seed_of_parent() -> u64 {
    std::env::var("BOWSTRING_TEST_SEED").unwrap().parse().unwrap()
}
