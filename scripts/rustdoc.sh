#!/usr/bin/env bash
# rustdoc as `make test-doc` calls it through cargo. Before the doc tests of a crate it lints all its docs, those of private items too,
# with the libraries that are built already; `cargo doc` would check every dependency once more for that.
set -euo pipefail
if [[ " $* " == *" --test "* ]]; then
    arguments=()
    expected=
    for argument; do
        if [ -n "$expected" ]; then
            expected=
        elif [[ $argument == --test-run-directory || $argument == --test-args ]]; then
            expected=value
        elif [[ $argument != --test && $argument != --test-*=* ]]; then
            arguments+=("$argument")
        fi
    done
    pages=$(mktemp -d)
    trap 'rm -rf "$pages"' EXIT
    rustdoc "${arguments[@]}" --document-private-items --deny warnings --out-dir "$pages"
fi
rustdoc "$@"
