//! The cost of a plan at a million row groups and a billion rows. The promises: made in under 1 s and 200 MB, a step of
//! 1024 rows in under 50 us after the previous one, and in under 2 ms anywhere, since the orders of its windows are
//! drawn then.
//!
//! `cargo bench --bench plan`; each figure is the best of several runs, in ns per call.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bowstring::manifest::Manifest;
use bowstring::plan::{Mix, Plan, PlanSpec, Share, Stop};

/// Prints the best mean time of `run` over `rounds` rounds of `calls` calls.
fn time<T>(what: &str, rounds: u32, calls: u64, mut run: impl FnMut(u64) -> T) {
    let mut best = f64::INFINITY;
    for round in 0..rounds {
        let started = Instant::now();
        for call in 0..calls {
            // Spread over the epoch, at a different place each time.
            black_box(run((call + u64::from(round) * calls).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32));
        }
        best = best.min(started.elapsed().as_secs_f64() / calls as f64);
    }
    println!("{what:<60} {:>14.0} ns", best * 1e9);
}

/// Peak memory of this process so far in MiB, if the system reports it.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0) / 1024
}

fn main() {
    let manifests = [Arc::new(Manifest::imaginary(&vec![1000; 1_000_000], 1000))];
    let spec = PlanSpec::new(1, 1024).resolve(&manifests).expect("the spec is possible");
    println!("1e6 row groups, 1e9 rows, {} lanes, windows of {:?} rows", spec.lanes.unwrap_or(0), spec.window_rows);
    let new = || Plan::new(&manifests, spec.clone(), 0).expect("the plan is possible");
    time("Plan::new", 3, 1, |_| new());
    let plan = new();
    println!("{:<60} {:>14} bytes", "Plan::memory", plan.memory());
    println!("{:<60} {:>14} MiB", "peak of the process so far, with the manifest", peak());
    let one = |rank, world| Share::new(rank, world).expect("a rank of the world");
    let steps = plan.steps();
    let mut next = 0;
    time("step of 1024 rows, one after another", 20, 5000, |_| {
        next = (next + 1) % steps;
        plan.step(next, Share::whole())
    });
    time("step of 1024 rows, all of it", 20, 50, |at| plan.step(at % steps, Share::whole()));
    time("step of 1024 rows, rank 3 of 8", 200, 50, |at| plan.step(at % steps, one(3, 8)));
    time("step of 1024 rows, rank 3 of 7", 200, 50, |at| plan.step(at % steps, one(3, 7)));
    time("windows, all of them", 200, 50, |at| plan.windows(at % steps, Share::whole()));
    time("windows, rank 3 of 8", 200, 50, |at| plan.windows(at % steps, one(3, 8)));
    time("windows, rank 3 of 7", 200, 50, |at| plan.windows(at % steps, one(3, 7)));
    time("live_bytes, rank 3 of 8", 3, 1, |_| plan.live_bytes(one(3, 8), &|_, _| 1_000_000));
    time("live_bytes, all", 3, 1, |_| plan.live_bytes(Share::whole(), &|_, _| 1_000_000));
    time("quality", 3, 1, |_| plan.quality());
    println!("{:<60} {:>14.3}", "quality", plan.quality());

    let manifests = [Arc::clone(&manifests[0]), Arc::new(Manifest::imaginary(&vec![500; 200_000], 2000))];
    let mix = Some(Mix::new(&[0.9, 0.1], Stop::AllExhausted).expect("weights are positive"));
    let spec = PlanSpec { mix, ..PlanSpec::new(1, 1024) }.resolve(&manifests).expect("the spec is possible");
    println!("mixture with 2e5 row groups, 1e8 rows, 9 : 1");
    let plan = Plan::new(&manifests, spec, 0).expect("the plan is possible");
    let steps = plan.steps();
    time("step of 1024 rows, all of it", 200, 50, |at| plan.step(at % steps, Share::whole()));
    time("windows, rank 3 of 8", 200, 50, |at| plan.windows(at % steps, one(3, 8)));
    time("live_bytes, rank 3 of 8", 3, 1, |_| plan.live_bytes(one(3, 8), &|_, _| 1_000_000));
}
