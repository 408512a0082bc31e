#!/usr/bin/env bash
# Two versions at once: builds a former version in a worktree of its own and runs python/tests/test_mixed.py with it and this checkout.
#
#   bash scripts/mixed.sh v0.1.0                  a git ref; its worktree and target stay below target/mixed
#   bash scripts/mixed.sh path/to/a/checkout -k gang   a checkout that is built, with options of pytest
#
# PY is the Python that runs the tests, TURBO is "turbo" where libjpeg-turbo can be built.
set -euo pipefail
cd "$(dirname "$0")/.."
former=${1:?a git ref, or a directory with a checkout that is built}
shift
python=${PY:-python3}
[[ $python == */* ]] && python=$(realpath -s "$python")

if [[ ! -d $former ]]; then
    commit=$(git rev-parse --verify --quiet "$former^{commit}") || { echo "$former is neither a directory nor a git ref" >&2; exit 2; }
    home=$PWD/target/mixed/${commit:0:12}
    [[ -e $home/Cargo.toml ]] || git worktree add --quiet --detach "$home" "$commit"
    # What this checkout has built of the same dependencies need not be built again.
    [[ -e $home/target || ! -d target/debug ]] || { mkdir "$home/target"; cp -a target/debug "$home/target/"; }
    features=()
    for feature in fuse ${TURBO:-}; do
        ! grep -q "^$feature = " "$home/Cargo.toml" || features+=(--features "bowstring/$feature")
    done
    echo "building $former (${commit:0:12}) in $home"
    (cd "$home" && PYO3_BUILD_EXTENSION_MODULE=1 PYO3_PYTHON=$python cargo build --locked --workspace "${features[@]}" --lib --bins)
    ln -sf ../../target/debug/lib_native.so "$home/python/bowstring/_native.abi3.so"
    former=$home
fi
former=$(realpath "$former")
cd python
BOWSTRING_FORMER=$former "$python" -m pytest -rs tests/test_mixed.py "$@"
