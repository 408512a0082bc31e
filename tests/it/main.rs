//! Integration tests: one binary, one module per subject.
#![allow(clippy::print_stdout, reason = "tests print their seeds and figures")]

/// The allocator of the binary and of the Python extension, so that memory is measured as in production.
#[global_allocator]
static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;

/// For the targets of `fuzz/`, this crate is `libfuzzer_sys`, and a target is a function.
#[cfg(all(feature = "convert", feature = "flight"))]
extern crate self as libfuzzer_sys;

/// The definition of a target of `fuzz/` here.
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
/// Audits of killed and continued runs.
mod audits;
/// The cache below the dataset: epochs, processes, kills, damage, limits.
#[cfg(all(feature = "cloud", unix))]
mod cache;
/// Values are converted in one place.
mod casts;
/// Sources that change while they are read.
mod changed;
/// Children of this binary, and their roles.
mod child;
/// No file imports one that imports it.
mod circles;
/// The command line: output, JSON, exit codes, pipes.
#[cfg(feature = "cli")]
mod cli;
/// One cache for a cluster: each byte of the origin once, whoever is killed.
#[cfg(all(feature = "cli", feature = "cloud", feature = "flight", unix))]
mod cluster;
/// A served cache and hostile callers.
#[cfg(all(feature = "cli", feature = "cloud", feature = "flight", unix))]
mod cluster_callers;
/// The caches of other hosts, when they are hostile, slow or closed.
#[cfg(all(feature = "cli", feature = "cloud", feature = "flight", unix))]
mod cluster_hostile;
/// Columns: every type, null policy, list form, pack and bad row, with exact values.
mod columns;
/// `config`: the effective configuration of a server, its schema, its checks.
#[cfg(all(feature = "cli", feature = "flight"))]
mod config;
/// The promises of every loader, over every source of batches.
#[cfg(all(feature = "flight", unix))]
mod conformance;
/// Files that state the same thing twice, differently.
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
/// Leftovers of a crash, for everything that makes files visible atomically.
#[cfg(target_os = "linux")]
mod crash;
/// Datasets on written files: values, layouts, addresses, schemas, filters, the network.
mod dataset;
/// Batches in the memory of a device: reuse, fences, capture, failures, the loader on top.
mod device;
/// Names exchanged with links while data is written.
#[cfg(target_os = "linux")]
mod exchanged;
/// Columns with special types of Spark and Hugging Face.
mod features;
/// Files of stores for programs that know only files.
#[cfg(all(feature = "cloud", unix))]
mod files;
/// Filters on written files.
mod filter;
/// The server and its client.
#[cfg(feature = "flight")]
mod flight;
/// A server under attack: honest ranks continue.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_abuse;
/// Refused access to a server: every call, every invalid ticket.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_access;
/// The audit log's lines on calls and streams.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_audit;
/// Requests of a client: bounded before they cost anything, and never for columns that a catalogue hides.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_bounds;
/// A client and a hostile server.
#[cfg(feature = "flight")]
mod flight_hostile;
/// Ranks and servers that are killed, stopped and drained as processes.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod flight_kill;
/// Data that writers and strangers send to a server.
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
/// The floors of the house: modules and the modules they may name, purity, the places of `unsafe`.
mod floors;
/// Nulls and wide integers that are known when a loader is opened.
mod foretold;
/// The targets of `fuzz/` on their seeds, and on inputs made from them.
#[cfg(all(feature = "convert", feature = "flight"))]
mod fuzzed;
/// The gang: ranks that start, meet and restart together, on an unreliable network.
#[cfg(feature = "flight")]
mod gang;
/// Stores that are slow now and then: reads that are requested a second time.
#[cfg(feature = "cloud")]
mod hedged;
/// Images: formats, crops, orientation, damage, bombs.
mod images;
/// Processes killed at random: no row lost or repeated.
mod kill;
/// The whole chain on files: errors, memory, bad rows, packs.
mod loader;
/// Random lives of loaders, against a model of a position.
mod loader_model;
/// Memory, measured from outside.
mod memory;
/// A directory of a store, mounted as one of this machine.
#[cfg(all(feature = "cli", feature = "cloud", feature = "fuse", target_os = "linux"))]
mod mounted;
/// Arrays of NumPy in cells: against NumPy's reading, and hostile ones.
mod npy;
/// The table of options against the documentation.
mod options;
/// One order, exactly once, equal steps: the plan over random datasets, worlds, mixtures and resumptions.
mod order;
/// Golden peers: what former versions said and wrote, against what there is today.
#[cfg(all(feature = "flight", unix))]
mod peers;
/// Petastorm's metadata: schemas and indexes of every version, hostile pickles.
mod petastorm;
/// Writes that are staged, committed, aborted, forgotten and killed: exactly the committed rows are visible.
#[cfg(feature = "flight")]
mod put;
/// Row groups read by the ranks of a gang: by arithmetic, and for real.
mod ranks;
/// Reports of the command line: versions of documents, silence.
#[cfg(feature = "cli")]
mod reports;
/// States of every version of the order, and batches that threads give back.
#[cfg(feature = "flight")]
mod resume;
/// The server's shell as a process: its addresses, access, certificates, the admin port, its end.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod serve_page;
/// The catalogue of a server, reread while it runs.
#[cfg(all(feature = "cli", feature = "flight", unix))]
mod serve_reload;
mod serve_shell;
/// Shared memory between processes that are killed, stopped, slow or hostile.
#[cfg(all(feature = "flight", target_os = "linux"))]
mod shm;
mod stored;
/// Synthetic datasets and child processes.
mod support;
/// The tails `short` and `even`, of plans and of loaders.
mod tails;
/// Each wait for another process or thread, with its end and its test.
mod waits;
/// Wide rows, which stay in their pages until a batch takes them: the same values as otherwise.
mod wide;
/// Written data is read back, and appears atomically.
mod write;
