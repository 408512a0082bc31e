//! The targets of `fuzz/` under a stable driver: each on its seeds, and on seeds randomly cut, flipped, doubled and joined.
//!
//! `cargo fuzz` finds more, but needs a nightly toolchain; this runs everywhere. The targets are compiled unchanged: this crate plays the
//! role of `libfuzzer_sys`. `BOWSTRING_FUZZED=filter,npy` selects targets, `BOWSTRING_FUZZED_INPUTS=100000` sets the inputs of each, or
//! `BOWSTRING_FUZZED_SECONDS=60` the time; a failure prints them, with `BOWSTRING_SEED`, as a line that repeats it.
//! `BOWSTRING_FUZZED_CORPUS=fuzz/corpus` adds the files of a directory per target, unchanged: `scripts/fuzz.py` measures by them what the
//! targets reach.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::{self, Random};

#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/action.rs"]
mod action;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/certificate.rs"]
mod certificate;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/config.rs"]
mod config;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/delta.rs"]
mod delta;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/descriptor.rs"]
mod descriptor;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/filter.rs"]
mod filter;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/footer.rs"]
mod footer;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/iceberg.rs"]
mod iceberg;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/image.rs"]
mod image;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/index.rs"]
mod index;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/mds.rs"]
mod mds;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/npy.rs"]
mod npy;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/options.rs"]
mod options;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/pickle.rs"]
mod pickle;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/position.rs"]
mod position;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/rows.rs"]
mod rows;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/state_json.rs"]
mod state_json;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/tar.rs"]
mod tar;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/tfrecord.rs"]
mod tfrecord;
#[expect(unused_attributes, unused_imports, reason = "a program of its own elsewhere")]
#[path = "../../fuzz/fuzz_targets/ticket.rs"]
mod ticket;

type Run = fn(&[u8]);

/// The targets by name.
const TARGETS: &[(&str, Run)] = &[
    ("action", action::run),
    ("certificate", certificate::run),
    ("config", config::run),
    ("delta", delta::run),
    ("descriptor", descriptor::run),
    ("filter", filter::run),
    ("footer", footer::run),
    ("iceberg", iceberg::run),
    ("image", image::run),
    ("index", index::run),
    ("mds", mds::run),
    ("npy", npy::run),
    ("options", options::run),
    ("pickle", pickle::run),
    ("position", position::run),
    ("rows", rows::run),
    ("state_json", state_json::run),
    ("tar", tar::run),
    ("tfrecord", tfrecord::run),
    ("ticket", ticket::run),
];

/// Maximum bytes of an input made from seeds.
const MOST: usize = 64 << 10;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// Returns the seeds of a target, in the order of their names.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    files(&directory("seeds").join(target))
}

/// Returns the files of a directory, in the order of their names.
fn files(directory: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Makes an input from one of `seeds`, changed in a few places.
fn input(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = random.pick(seeds);
    for _ in 0..=random.below(4) {
        let at = random.index(bytes.len() + 1);
        match random.below(7) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 if at < bytes.len() => bytes[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'"', b'-', b'{', b'\n']),
            3 => bytes.insert(at, random.next() as u8),
            4 => {
                let end = at + random.index(bytes.len() - at + 1);
                bytes.drain(at..end);
            }
            5 => {
                let end = at + random.index((bytes.len() - at + 1).min(256));
                let part = bytes[at..end].to_vec();
                let to = random.index(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            _ => {
                let other = random.pick(seeds);
                let from = random.index(other.len() + 1);
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
        bytes.truncate(MOST);
    }
    bytes
}

fn variable(name: &str) -> Option<u64> {
    support::variable(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[test]
fn no_input_made_from_seeds_breaks_a_target() {
    let seed = variable("BOWSTRING_SEED").unwrap_or(1);
    let count = variable("BOWSTRING_FUZZED_INPUTS").unwrap_or(if support::soak() { 20_000 } else { 2000 });
    let seconds = variable("BOWSTRING_FUZZED_SECONDS");
    let corpus = support::variable("BOWSTRING_FUZZED_CORPUS").map(PathBuf::from);
    let only = support::variable("BOWSTRING_FUZZED");
    for name in only.iter().flat_map(|only| only.split(',')) {
        assert!(TARGETS.iter().any(|(known, _)| *known == name), "BOWSTRING_FUZZED: there is no target {name}");
    }
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == name));
    for (name, run) in TARGETS.iter().filter(|(name, _)| wanted(name)) {
        let (seeds, started) = (seeds(name), Instant::now());
        let mut random = Random(seed);
        let mut inputs = seeds.clone();
        inputs.push(Vec::new());
        inputs.extend(corpus.iter().flat_map(|corpus| files(&corpus.join(name))));
        let last = seconds.map_or(inputs.len() as u64 + count, |_| u64::MAX);
        let mut done = 0;
        let is_late = |number| {
            let late = seconds.is_some_and(|seconds| started.elapsed().as_secs() >= seconds);
            late && number >= inputs.len() as u64
        };
        for number in (0..last).take_while(|number| !is_late(*number)) {
            done = number + 1;
            let bytes = match inputs.get(number as usize) {
                Some(seed) => seed.clone(),
                None => input(&seeds, &mut random),
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&bytes))) {
                let place = std::env::temp_dir().join(format!("bowstring-fuzzed-{name}"));
                fs::write(&place, &bytes).unwrap();
                println!(
                    "{name} breaks on input {number}, which is in {}; repeat with: BOWSTRING_SEED={seed} BOWSTRING_FUZZED={name} \
                     BOWSTRING_FUZZED_INPUTS={} cargo test --test it fuzzed::",
                    place.display(),
                    number.max(count)
                );
                std::panic::resume_unwind(panic);
            }
        }
        println!("{name}: {done} inputs in {:.1} s", started.elapsed().as_secs_f64());
    }
}

#[test]
fn every_target_has_seeds_a_line_here_and_one_in_the_list() {
    let named: BTreeSet<String> = fs::read_dir(directory("fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let (known, list) = (
        TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>(),
        fs::read_to_string(directory("README.md")).unwrap(),
    );
    assert_eq!(named, known);
    for name in &named {
        assert!(!seeds(name).is_empty(), "{name} has no seed");
        assert!(list.contains(&format!("`{name}`")), "{name} is not in fuzz/README.md");
    }
}
