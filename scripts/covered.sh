#!/usr/bin/env bash
# Compiles as the compiler that cargo names in its first argument, and counts the lines that run in the crate itself, not in its
# dependencies or tests. For RUSTC_WORKSPACE_WRAPPER; scripts/fuzz.py uses it.
set -euo pipefail
if [[ " $* " == *" --crate-name bowstring "* && " $* " == *" src/lib.rs "* ]]; then
	exec "$@" -C instrument-coverage
fi
# The tests are not counted, but the program that contains the crate must contain what writes the counts.
if [[ " $* " == *" --crate-name it "* ]]; then
	exec "$@" -C link-arg=-Wl,-u,__llvm_profile_runtime
fi
exec "$@"
