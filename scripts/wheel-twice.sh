#!/usr/bin/env bash
# Builds the release wheel twice, each time from a copy of the committed sources at another path and into an empty target directory,
# and compares the two files byte by byte. What is built in must not know where or when it was built.
#
#   make wheel-twice            takes two release builds; crates must have been fetched, the network is not used
set -euo pipefail
cd "$(dirname "$0")/.."
MATURIN=${MATURIN:-maturin}
TURBO=${TURBO:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CARGO_NET_OFFLINE=true
registry=${CARGO_HOME:-$HOME/.cargo}

for place in one another/deeper/place; do
    at=$work/$place
    mkdir -p "$at"
    git archive HEAD | tar -x -C "$at"
    # Paths get into panics and into debug information of C: of the sources, of the crates, of the target directory.
    maps=(--remap-path-prefix="$at=/bowstring" --remap-path-prefix="$registry=/cargo")
    cmaps=(-ffile-prefix-map="$at=/bowstring" -ffile-prefix-map="$registry=/cargo")
    (
        cd "$at"
        RUSTFLAGS="${maps[*]}" CFLAGS="${cmaps[*]}" CXXFLAGS="${cmaps[*]}" CARGO_TARGET_DIR=$at/target CARGO_INCREMENTAL=0 \
            "$MATURIN" build --release --locked --offline --manifest-path python/Cargo.toml \
            --features "fuse hdfs${TURBO:+ turbo}" --out "$at/dist"
    )
done

first=("$work"/one/dist/*.whl)
second=("$work"/another/deeper/place/dist/*.whl)
sha256sum "${first[0]}" "${second[0]}" | sed "s|$work/||"
if cmp "${first[0]}" "${second[0]}"; then
    echo "the same bytes twice"
    exit 0
fi
"${PY:-python3}" - "${first[0]}" "${second[0]}" >&2 <<'PYTHON'
import sys
import zipfile

one, other = (
    {entry.filename: (entry.date_time, wheel.read(entry)) for entry in wheel.infolist()}
    for wheel in map(zipfile.ZipFile, sys.argv[1:])
)
for name in sorted(one.keys() | other.keys()):
    if one.get(name) != other.get(name):
        print(f"differs: {name}")
PYTHON
echo "the two wheels differ" >&2
exit 1
