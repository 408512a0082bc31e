#!/usr/bin/env bash
# Runs the unit tests of the modules with `unsafe` under Miri, which sees each access to memory: out of bounds, unaligned, uninitialised, freed,
# or at the same time from two threads. Only what needs no system runs there: no files that are mapped, no sockets, no driver of a GPU.
# miri.sh [FILTER]...
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version > /dev/null 2>&1; then
    echo "make miri needs a nightly Rust with Miri: rustup toolchain install nightly --component miri,rust-src" >&2
    exit 1
fi

# Modules with `unsafe`, and those that stand on it.
FILTERS=(
    memory::buffer memory::caching_allocator memory::fresh memory::pages memory::pool::tests memory::slab_pool
    page::
    codec::image::simd
    device::host device::lease device::ring device::sim device::slot device::placement
    tensor::
)
# What Miri cannot do: the coroutines of shuttle, descriptors of memory, and times that no interpreter keeps.
SKIPPED=(
    memory::pool::schedules
    device::ring::tests::nobody_writes_what_another_reads
)
[ $# -eq 0 ] || FILTERS=("$@")

skip=()
for name in "${SKIPPED[@]}"; do skip+=(--skip "$name"); done
# Real files and the clock, for tests that make a temporary directory. No feature brings `unsafe` of its own.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation}"
# Random tests run a few cases: an interpreter is some hundred times slower.
export PROPTEST_CASES="${PROPTEST_CASES:-4}"
bash scripts/unit-crate.sh target/miri/crate
# The lock file is that of the whole workspace, of which this crate needs a part.
cargo +nightly miri test --manifest-path target/miri/crate/Cargo.toml --target-dir target/miri --lib --no-default-features \
    -- "${FILTERS[@]}" "${skip[@]}"
