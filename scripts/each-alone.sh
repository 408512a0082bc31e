#!/usr/bin/env bash
# Runs each test file in a process of its own, two at a time: frameworks change signal handlers, allocators and each other.
# A file's output is printed whole once it has ended. pytest's status 5, no tests, means that what it tests is not installed.
# each-alone.sh PYTHON FILE...
set -euo pipefail
python=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run() {
    local log=$3/${2//\//-}.log status=0
    "$1" -m pytest "$2" > "$log" 2>&1 || status=$?
    # One write, so that two files do not mix.
    printf '%s\n%s\n' "$2" "$(< "$log")"
    [ "$status" = 0 ] || [ "$status" = 5 ]
}
export -f run
printf '%s\0' "$@" | xargs -0 -P 2 -I {} bash -c 'run "$@"' _ "$python" {} "$logs"
