//! Integration tests: one binary, one module per subject.
#![allow(clippy::print_stdout, reason = "tests print their seeds and figures")]

/// The allocator of the binary and of the Python extension, so that memory is measured as it will be.
#[global_allocator]
static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;

/// To the targets of `fuzz/` this crate is `libfuzzer_sys`, and a target a function.
#[cfg(all(feature = "convert", feature = "flight"))]
extern crate self as libfuzzer_sys;

/// What a target of `fuzz/` is here.
#[cfg(all(feature = "convert", feature = "flight"))]
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:block) => {
        pub(super) fn run($data: &[u8]) {
            $body
        }
    };
}

/// Locked dependencies stay above the advisory floors of `deny.toml`, and no banned crate comes back.
mod advisories;
/// The cache below the dataset: epochs, processes, kills, damage, limits.
#[cfg(all(feature = "cloud", unix))]
mod cache;
/// Values become another type in one place.
mod casts;
/// Sources that change while they are read.
mod changed;
/// Children of this binary, and the roles that they play.
mod child;
/// No file imports one that imports it.
mod circles;
/// The command line: output, JSON, exit codes, pipes.
#[cfg(feature = "cli")]
mod cli;
/// Columns: every type, null policy, list form, pack and bad row, with exact values.
mod columns;
/// What every loader promises, over every way to its batches.
#[cfg(all(feature = "flight", unix))]
mod conformance;
/// Files that say one thing twice, and not the same.
#[cfg(feature = "convert")]
mod contradict;
/// Conversions: files of other libraries, round trips, refusals, hostile input, kills.
#[cfg(feature = "convert")]
mod convert;
/// `convert` on the command line: standard streams, Ctrl-C.
#[cfg(all(feature = "cli", feature = "convert", unix))]
mod convert_cli;
/// Damaged and hostile Parquet files.
mod corrupt;
/// What a crash leaves, of everything that makes files visible at once.
#[cfg(target_os = "linux")]
mod crash;
/// Datasets on written files: values, layouts, addresses, schemas, filters, the network.
mod dataset;
/// Batches in the memory of a device: reuse, fences, capture, failures, the loader on top.
mod device;
/// Columns that Spark and Hugging Face have types of their own for.
mod features;
/// Filters on written files.
mod filter;
/// The server and its client.
#[cfg(feature = "flight")]
mod flight;
/// A server under attack: honest ranks go on.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_abuse;
/// Who gets nothing from a server: every call, every ticket that is not one.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_access;
/// What the audit log says of calls and streams.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_audit;
/// What a client asks for: bounded before it costs anything, and never what a catalogue keeps back.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_bounds;
/// A client fed by a hostile server.
#[cfg(feature = "flight")]
mod flight_hostile;
/// Ranks and servers that are killed, stopped and drained as processes.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_kill;
/// What writers and strangers send to a server.
#[cfg(all(feature = "flight", unix))]
mod flight_put;
/// Many ranks of one plan at one server.
#[cfg(feature = "flight")]
mod flight_ranks;
/// Random requests of every call.
#[cfg(all(feature = "flight", target_os = "linux"))]
mod flight_requests;
/// The whole server in a simulated network.
#[cfg(feature = "flight")]
mod flight_sim;
/// Names of gangs and written datasets, in the space of each tenant.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_spaces;
/// Clients that wait for servers that are stopped, mute or out of reach.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_wait;
/// The floors of the house: which module may name which, what stays pure, where `unsafe` lives.
mod floors;
/// Nulls and wide integers that are known when a loader is opened.
mod foretold;
/// The targets of `fuzz/` on their seeds, and on what comes of these.
#[cfg(all(feature = "convert", feature = "flight"))]
mod fuzzed;
/// The gang: ranks that start, meet and restart together, on a network that fails.
#[cfg(feature = "flight")]
mod gang;
/// Images: formats, crops, orientation, damage, bombs.
mod images;
/// Processes killed at random: nothing lost, nothing twice.
mod kill;
/// The whole chain on files: errors, memory, bad rows, packs.
mod loader;
/// Memory, measured from outside.
mod memory;
/// Arrays of NumPy in cells: against what NumPy reads, and hostile ones.
mod npy;
/// The table of options against the documentation.
mod options;
/// One order, exactly once, equal steps: the plan over random datasets, worlds, mixtures and resumptions.
mod order;
/// Petastorm's metadata: schemas and indexes of every version, hostile pickles.
mod petastorm;
/// Writes that are staged, committed, aborted, forgotten and killed: exactly what was committed is there.
#[cfg(feature = "flight")]
mod put;
/// What the ranks of a gang read together: by arithmetic, and for real.
mod ranks;
/// States of every version of the order, and what threads give back.
#[cfg(feature = "flight")]
mod resume;
/// The catalogue of a server that is read again while it runs.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod serve_reload;
/// The server's shell as a process: where it may listen, who may come in, certificates, the admin port, its end.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod serve_shell;
/// Shared memory between processes that are killed, stopped, slow or hostile.
#[cfg(all(feature = "flight", target_os = "linux"))]
mod shm;
mod stored;
/// Synthetic datasets and child processes.
mod support;
/// The tails `short` and `even`, of plans and of loaders.
mod tails;
/// Wide rows, which stay in their pages until a batch takes them: as they are elsewhere.
mod wide;
/// What is written is read, and is there whole or not at all.
mod write;
