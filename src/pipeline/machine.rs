//! The resources of this machine for the pipeline: threads and memory. They decide defaults of speed, never of order.

use std::thread::available_parallelism;

/// Maximum CPU threads for decoding that a loader or a server accepts.
pub(crate) const MAX_THREADS: usize = 1 << 12;

/// Maximum default byte budget, 4 GiB; otherwise it is half of the free memory.
const LARGEST_DEFAULT_BUDGET: u64 = 4 << 30;

/// CPU threads this process may use: affinity and cgroup quota are respected.
pub fn threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Bytes this process may still allocate: the smaller of the system's available memory and the cgroup's remainder.
/// `None` if neither is known.
pub fn available_memory() -> Option<u64> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let v2 = number("/sys/fs/cgroup/memory.max").zip(number("/sys/fs/cgroup/memory.current"));
    let v1 = number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        .zip(number("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
    let cgroup = v2.or(v1).map(|(limit, used)| limit.saturating_sub(used));
    match (system, cgroup) {
        (Some(system), Some(cgroup)) => Some(system.min(cgroup)),
        (one, other) => one.or(other),
    }
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The byte budget when none is given.
pub fn default_budget() -> u64 {
    available_memory().map_or(LARGEST_DEFAULT_BUDGET / 4, |free| (free / 2).min(LARGEST_DEFAULT_BUDGET))
}

/// Peak resident memory of this process, in bytes; `None` if the system does not report it.
pub fn peak_resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kibibytes() {
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert!(threads() >= 1 && default_budget() > 0);
    }
}
