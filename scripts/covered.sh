#!/usr/bin/env bash
# Compiles as the compiler that cargo names in its first argument, and counts the lines that run in the crate itself, not in its
# dependencies or tests. For RUSTC_WORKSPACE_WRAPPER; scripts/fuzz.py uses it.
set -euo pipefail
if [[ " $* " == *" --crate-name bowstring "* && " $* " == *" src/lib.rs "* ]]; then
	exec "$@" -C instrument-coverage
fi
exec "$@"
