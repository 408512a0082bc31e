//! Page-locked host memory, which a copy engine reads without staging and decoders write into.
//!
//! Portable, so that every GPU of the process may read it; never write-combined, since decoders read back what they wrote.

#![expect(unsafe_code, reason = "page-locked memory of the CUDA driver; the bounds are stated at each use")]

use std::ffi::c_uint;
use std::fs;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;

use super::driver::Context;
use crate::error::Result;
use crate::memory::HostAllocator;

/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for every context.
const PORTABLE: c_uint = 1;

/// An allocator of page-locked memory near one GPU.
#[derive(Debug)]
pub(super) struct Pinned {
    context: Arc<Context>,
    /// The processors next to the GPU; empty if the machine does not report them, or has one node.
    near: Vec<usize>,
}

impl Pinned {
    /// For the GPU of `context`, on NUMA node `node` if known.
    pub(super) fn new(context: Arc<Context>, node: Option<u32>) -> Self {
        let near = node.map(processors).unwrap_or_default();
        Self { context, near }
    }

    fn take(&self, len: usize) -> Result<NonNull<u8>> {
        let _bound = self.context.bind()?;
        let mut at = ptr::null_mut();
        // SAFETY: the pointer is valid for the one address that is written.
        let code = unsafe { (self.context.driver.call.cuMemHostAlloc)(&raw mut at, len, PORTABLE) };
        self.context.check(code, &format!("{len} bytes of page-locked memory"))?;
        let at = NonNull::new(at.cast::<u8>()).ok_or_else(|| {
            crate::device::refused(format!("cuda:{}", self.context.ordinal), "page-locked memory", "none came")
        })?;
        // The driver does not promise zeros, and its memory may have been used before.
        // SAFETY: the driver gave `len` bytes at `at`, which nobody else knows.
        unsafe { at.write_bytes(0, len) };
        Ok(at)
    }
}

impl HostAllocator for Pinned {
    fn allocate(&self, len: usize) -> Result<NonNull<u8>> {
        let given = beside(&self.near, || self.take(len).map(Given));
        given.unwrap_or_else(|| self.take(len).map(Given)).map(|given| given.0)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, _: usize) {
        if let Some(_bound) = self.context.bind_to_free() {
            // SAFETY: the caller promises that `ptr` came from `allocate` and that nothing refers to it any more.
            let code = unsafe { (self.context.driver.call.cuMemFreeHost)(ptr.as_ptr().cast()) };
            self.context.log(code, "freeing page-locked memory");
        }
    }

    fn is_pinned(&self) -> bool {
        true
    }
}

/// Fresh memory on its way between two threads.
struct Given(NonNull<u8>);

// SAFETY: nobody else knows the memory yet, and it belongs to no thread.
unsafe impl Send for Given {}

/// Runs `work` on a thread pinned to the processors `near`, since pages come from the node of the requesting thread. It
/// is a thread of its own, so that no other is ever moved; slots are allocated once, at the start. `None`, and nothing
/// done, without a thread or without `near`.
fn beside<T: Send>(near: &[usize], work: impl FnOnce() -> T + Send) -> Option<T> {
    if near.is_empty() {
        return None;
    }
    thread::scope(|scope| {
        let there = || {
            stay_on(near);
            work()
        };
        let thread = thread::Builder::new().name("bowstring-pin".to_owned()).spawn_scoped(scope, there);
        thread.ok().and_then(|thread| thread.join().ok())
    })
}

/// The NUMA node of the device at `address` on the PCI bus, e.g. `0000:3b:00.0`; `None` if the machine does not report
/// it.
pub(super) fn node_of(address: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{}/numa_node", address.to_ascii_lowercase())).ok()?;
    // -1: there is one node, or the firmware does not report it.
    text.trim().parse().ok()
}

/// The processors of NUMA node `node`.
fn processors(node: u32) -> Vec<usize> {
    let list = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
    parse_list(&list)
}

/// The numbers in a list in the kernel's format, e.g. `0-3,8,10-11`; malformed parts are skipped.
fn parse_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?.min(MOST_PROCESSORS - 1))
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Capacity of the C library's processor set.
const MOST_PROCESSORS: usize = 1024;

/// Pins this thread to those of `near` that it may use; if there are none, or it fails, the thread is not pinned.
#[cfg(target_os = "linux")]
fn stay_on(near: &[usize]) {
    // SAFETY: the set is plain bits, for which zeros are none; both calls get its true size and this thread (0).
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let mut wanted: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut allowed) != 0 {
            return;
        }
        let usable = near.iter().copied().filter(|cpu| *cpu < MOST_PROCESSORS && libc::CPU_ISSET(*cpu, &allowed));
        let mut any = false;
        for cpu in usable {
            libc::CPU_SET(cpu, &mut wanted);
            any = true;
        }
        if any && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const wanted) != 0 {
            tracing::debug!("page-locked memory: this thread cannot be kept near the GPU");
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn stay_on(_: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("\n"), [0_usize; 0]);
        assert_eq!(parse_list("x,1-,2"), [2]);
        assert_eq!(parse_list("1022-99999999999"), [1022, 1023]);
        assert_eq!(node_of("no such device"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_beside_a_gpu_stays_there_and_moves_nobody_else() {
        let allowed = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            parse_list(list)
        };
        let before = allowed();
        let last = before[before.len() - 1];
        // One that this process may use, and one that hardly any machine has.
        assert_eq!(beside(&[last, MOST_PROCESSORS - 1], allowed).unwrap()[0], last);
        assert_eq!(beside(&[MOST_PROCESSORS], allowed).unwrap(), before, "none that it may use: it stays where it is");
        assert_eq!(beside(&[], allowed), None);
        assert_eq!(allowed(), before);
    }
}
