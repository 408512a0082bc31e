#!/usr/bin/env bash
# Runs the test files of each framework in a process of their own, two at a time: frameworks change signal handlers, allocators and
# each other, and take seconds to import. `test_NAME.py` and `test_NAME_loops.py` are of one framework.
# The output of a process is printed whole once it has ended. pytest's status 5, no tests, means that what it tests is not installed.
# each-alone.sh PYTHON FILE...
set -euo pipefail
python=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
run() {
    local python=$1 logs=$2 status=0
    shift 2
    local log=$logs/${1//\//-}.log
    "$python" -m pytest "$@" > "$log" 2>&1 || status=$?
    # One write, so that two processes do not mix.
    printf '%s\n%s\n' "$*" "$(< "$log")"
    [ "$status" = 0 ] || [ "$status" = 5 ]
}
export -f run
declare -A files=()
order=()
for file in "$@"; do
    name=$(basename "$file" .py)
    name=${name%_loops}
    [ -n "${files[$name]-}" ] || order+=("$name")
    files[$name]+=" $file"
done
for name in "${order[@]}"; do
    printf '%s\n' "${files[$name]}"
done | xargs -P 2 -L 1 bash -c 'run "$@"' _ "$python" "$logs"
