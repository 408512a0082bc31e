#!/usr/bin/env bash
# Runs the library's unit tests with AddressSanitizer and ThreadSanitizer, each in a build of its own.
# sanitize.sh [address|thread] [FILTER]...
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly --version > /dev/null 2>&1; then
    echo "make sanitize needs a nightly Rust with its sources: rustup toolchain install nightly --component rust-src" >&2
    exit 1
fi
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
case $host in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
    *)
        echo "make sanitize runs on Linux (x86-64 and AArch64), not on $host" >&2
        exit 1
        ;;
esac
if [ ! -d "$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library" ]; then
    echo "make sanitize needs the sources of the standard library: rustup +nightly component add rust-src" >&2
    exit 1
fi

kinds=(address thread)
if [ $# -gt 0 ] && [[ $1 == address || $1 == thread ]]; then
    kinds=("$1")
    shift
fi
bash scripts/unit-crate.sh target/sanitize/crate
for kind in "${kinds[@]}"; do
    echo "$kind"
    build=()
    # A race is seen only if the standard library is built the same way.
    [ "$kind" = thread ] && build=(-Zbuild-std)
    # The shuttle tests run on coroutines, whose stacks the sanitizers do not know. Leaks are those of the tests' own processes.
    RUSTFLAGS="-Zsanitizer=$kind" RUSTDOCFLAGS="-Zsanitizer=$kind" \
        ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" TSAN_OPTIONS="halt_on_error=0:exitcode=66:${TSAN_OPTIONS:-}" \
        cargo +nightly test "${build[@]}" --manifest-path target/sanitize/crate/Cargo.toml --target "$host" \
        --target-dir "target/sanitize/$kind" --lib --no-default-features -- \
        --skip device::ring::tests::nobody_writes_what_another_reads --skip memory::pool::schedules "$@"
done
