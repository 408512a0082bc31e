#!/usr/bin/env bash
# The compiler of our own crates, as cargo calls a RUSTC_WORKSPACE_WRAPPER: Clippy, with CLIPPY_ARGS of cargo's environment. A library is compiled
# twice, plainly and with its unit tests. Clippy reads all of it the second time; the first time, for which everything else waits, rustc's lints do.
set -euo pipefail
arguments=" $* "
if [[ $arguments == *" --crate-name bowstring "* && $arguments == *" --crate-type lib "* && $arguments != *" --test "* ]]; then
    exec "$@" --deny warnings
fi
: "${CLIPPY_ARGS:?set it where cargo is called}"
exec clippy-driver "$@"
