#!/bin/sh
# Installs the one wheel of a directory that this Python takes into a fresh environment and uses it: no compiler, no other package, no checkout.
# Then runs its command as `uvx` and `pipx run` do, where these are; with RUNNERS=install they are installed first, from the network.
#
#   sh scripts/try-wheel.sh dist
set -eu
wheels=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
# From the directory alone, and of the tag that this Python takes.
venv/bin/python -m pip download --quiet --disable-pip-version-check --no-index --find-links "$wheels" --dest taken bowstring
wheel=$(echo "$work"/taken/*)
bytes=$(wc -c < "$wheel")
echo "$(basename "$wheel") has $bytes bytes"
[ "$bytes" -lt 25000000 ] || { echo "more than 25,000,000" >&2; exit 1; }
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
venv/bin/bowstring --version
venv/bin/bowstring doctor > doctor.txt || { cat doctor.txt; exit 1; }
cat doctor.txt
grep -q hdfs:// doctor.txt
venv/bin/bowstring demo --epochs 2
venv/bin/python -c 'import bowstring; print(bowstring.__version__, bowstring.doctor()["jpeg_decoder"])'

if [ "${RUNNERS:-}" = install ]; then
    python3 -m venv runners
    runners/bin/python -m pip install --quiet --disable-pip-version-check uv pipx
    PATH=$work/runners/bin:$PATH
fi
if command -v uvx > /dev/null; then
    UV_CACHE_DIR=$work/uv uvx --quiet --python "$(command -v python3)" --from "$wheel" bowstring demo --epochs 1
    echo "uvx: ran"
fi
if command -v pipx > /dev/null; then
    PIPX_HOME=$work/pipx pipx run --python "$(command -v python3)" --spec "$wheel" bowstring demo --epochs 1
    echo "pipx: ran"
fi
